/* A thread pool: worker threads that any number of clients share.
 *
 * A client never waits for a worker to start. It divides its loop into chunks, works on them itself, and waits only for
 * chunks that a worker has begun. So a worker that the system has descheduled does not delay its client. Workers spin
 * for microseconds after their last chunk and then sleep.
 *
 * The threads are divided among the clients inside pool_client_enter. With fewer clients than threads, each has a share
 * of the workers; with more, each works alone. A client measures the processor time that its threads get. While other
 * processes take much of it, the client uses fewer threads than its share, and retries later. */
#ifndef BASE_THREAD_POOL_H
#define BASE_THREAD_POOL_H

#include "base/error.h"

typedef struct thread_pool thread_pool;
typedef struct pool_client pool_client;

/* Creates a pool of `threads` threads: the client's own and threads - 1 workers, with all signals blocked. Give no more
 * threads than there are processors: more would take turns. The pool has fewer if the system starts no more. Returns
 * MAR_ENOMEM. */
mar_status thread_pool_create(int threads, thread_pool **out, mar_err *err);
int thread_pool_size(const thread_pool *t); /* Returns the number of threads. */
void thread_pool_free(thread_pool *t);      /* Frees the pool, after its clients. NULL is fine. */

mar_status pool_client_create(thread_pool *t, pool_client **out, mar_err *err);
void pool_client_free(pool_client *c); /* NULL is fine */

/* Brackets a sequence of loops by one thread. A client has a share of the threads from its first loop in the brackets
 * on. Outside of the brackets it may work alone. */
void pool_client_enter(pool_client *c);
void pool_client_leave(pool_client *c);

/* Runs items first .. last-1 of a loop. `thread` is 0 for the client, 1 .. threads-1 for the workers. No two bodies of
 * one loop run with the same number at a time. */
typedef void parallel_body(void *arg, int first, int last, int thread);
/* Runs body on items 0 .. n-1, in chunks, and waits for all. Each thread starts with its own part of the items, then
 * helps with the others'. The parts are the same for every loop of n items while the width stays. */
void parallel_for(pool_client *c, int n, parallel_body *body, void *arg);

/* Returns the number of threads that a loop would use now. Other clients may change it at any moment. */
int parallel_width(const pool_client *c);
/* Returns the start of thread r's part of n items; the part ends before parallel_part(n, width, r + 1). */
static inline int parallel_part(int n, int width, int r)
{
    return (int)((long long)n * r / width);
}

#endif
