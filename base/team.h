/* A team of worker threads that share the work of any number of callers with them.
 *
 * A caller is never alone in need of a worker: it divides its work into chunks, works on them itself, and waits only
 * for chunks that a worker has begun. So a worker that the system has put aside for another process costs its help, and
 * not the caller's time. Workers spin for microseconds after their last chunk and then sleep.
 *
 * The team's threads are divided among the callers that have entered: with fewer callers than threads each has a share
 * of the workers, with more each works alone. A caller uses fewer threads than its share while other processes keep
 * them from running, which it notices by the processor time that they get, and tries again after some time. */
#ifndef BASE_TEAM_H
#define BASE_TEAM_H

#include "base/error.h"

typedef struct team team;
typedef struct team_caller team_caller;

/* A team of `threads` threads: the caller's and threads - 1 workers, which are started here with all signals blocked.
 * More threads than there are processors would take turns. If the system starts no more, the team has fewer. */
mar_status team_create(int threads, team **out, mar_err *err);
int team_threads(const team *t); /* how many it has */
void team_free(team *t);         /* after its callers; NULL is fine */

mar_status team_caller_create(team *t, team_caller **out, mar_err *err);
void team_caller_free(team_caller *c); /* NULL is fine */

/* Brackets a sequence of calls of team_for by one thread. A caller has a share of the threads from its first loop in
 * the brackets on; one that has not entered may be alone. */
void team_enter(team_caller *c);
void team_leave(team_caller *c);

/* Items first .. last-1 of a loop. `thread` is 0 for the caller, 1 .. threads-1 for the workers; no two bodies of one
 * team_for run with the same number at a time. */
typedef void team_body(void *arg, int first, int last, int thread);
/* Runs body on all items 0 .. n-1, in chunks, and waits for them. Each thread begins with its own part of the items,
 * which is the same for each loop of n items as long as the width stays, and then helps with those of others. */
void team_for(team_caller *c, int n, team_body *body, void *arg);

/* How many threads a team_for would divide its items among now. Other callers may change it at any moment. */
int team_width(const team_caller *c);
/* Thread r's own part of n items is team_part(n, width, r) .. team_part(n, width, r + 1) - 1. */
static inline int team_part(int n, int width, int r)
{
    return (int)((long long)n * r / width);
}

#endif
