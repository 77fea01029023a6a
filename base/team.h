/* A thread pool: worker threads that any number of clients share.
 *
 * A client never waits for a worker to start. It divides its loop into chunks, works on them itself, and waits only for
 * chunks that a worker has begun. So a worker that the system has descheduled does not delay its client. Workers spin
 * for microseconds after their last chunk and then sleep.
 *
 * The threads are divided among the clients inside pool_enter. With fewer clients than threads, each has a share of the
 * workers; with more, each works alone. A client measures the processor time that its threads get. While other
 * processes take much of it, the client uses fewer threads than its share, and retries later. */
#ifndef BASE_TEAM_H
#define BASE_TEAM_H

#include "base/error.h"

typedef struct team team;
typedef struct team_caller team_caller;

/* Creates a pool of `threads` threads: the client's own and threads - 1 workers, with all signals blocked. Give no more
 * threads than there are processors: more would take turns. The pool has fewer if the system starts no more. Returns
 * MAR_ENOMEM. */
mar_status team_create(int threads, team **out, mar_err *err);
int team_threads(const team *t); /* Returns the number of threads. */
void team_free(team *t);         /* Frees the pool, after its clients. NULL is fine. */

mar_status team_caller_create(team *t, team_caller **out, mar_err *err);
void team_caller_free(team_caller *c); /* NULL is fine */

/* Brackets a sequence of loops by one thread. A client has a share of the threads from its first loop in the brackets
 * on. Outside of the brackets it may work alone. */
void team_enter(team_caller *c);
void team_leave(team_caller *c);

/* Runs items first .. last-1 of a loop. `thread` is 0 for the client, 1 .. threads-1 for the workers. No two bodies of
 * one loop run with the same number at a time. */
typedef void team_body(void *arg, int first, int last, int thread);
/* Runs body on items 0 .. n-1, in chunks, and waits for all. Each thread starts with its own part of the items, then
 * helps with the others'. The parts are the same for every loop of n items while the width stays. */
void team_for(team_caller *c, int n, team_body *body, void *arg);

/* Returns the number of threads that a loop would use now. Other clients may change it at any moment. */
int team_width(const team_caller *c);
/* Returns the start of thread r's part of n items; the part ends before pool_part(n, width, r + 1). */
static inline int team_part(int n, int width, int r)
{
    return (int)((long long)n * r / width);
}

#endif
