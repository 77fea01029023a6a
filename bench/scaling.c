/* The CPU backend's loops as N cores would run them, on a machine that has fewer: a simulation.
 *
 *     ninja -C build/release scaling && SCALING_THREADS=16 build/release/scaling generate OPTIONS OF mar generate
 *
 * The command, with the pool's functions replaced by the linker (--wrap). Everything above the pool believes in N
 * threads, so loops have the items that they would have there. A loop's chunks, those of base/thread_pool.c, run one
 * after the other on the calling thread, each timed; the loop's time on N cores is that of the pool's order: own part
 * first, then others'. Only mar_session_step counts; with SCALING_PART=trunk its passes of a causal trunk before a
 * head. At the end standard error gets a line of sums, and one for each kind of loop; bench/scaling.py reads them.
 * Seconds are processor time, so other processes do not stretch a chunk, of one core that has caches and memory for
 * itself. */
#include "base/thread_pool.h"
#include "include/mar.h"
#include "kernels/cpu/cpu.h"
#include "nets/causal_runner.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { THREADS_MAX = 256, CHUNKS = 8 /* base/thread_pool.c */, KINDS = 256 };

typedef struct {
    parallel_body *body;
    int n, loops;
    double sum, span, own; /* seconds of all chunks, on N cores, and of chunks that their part's thread runs */
} kind;

typedef struct {
    int next, chunks; /* the next chunk to take */
    double seconds[CHUNKS];
} timed_part;

static int threads;
static int counting, trunk;
static parallel_body *current; /* of cpu_for */
static kind kinds[KINDS];
static int n_kinds;
static double step_seconds, loop_seconds, clock_seconds; /* of what counts, of its loops with the clock, of the clock */

mar_status __real_thread_pool_create(int n, thread_pool **out, mar_err *err);
mar_status __wrap_thread_pool_create(int n, thread_pool **out, mar_err *err);
int __wrap_thread_pool_size(const thread_pool *t);
int __wrap_parallel_width(const pool_client *c);
void __wrap_parallel_for(pool_client *c, int n, parallel_body *body, void *arg);
void __real_cpu_for(cpu_queue *q, int n, double work, parallel_body *body, void *arg);
void __wrap_cpu_for(cpu_queue *q, int n, double work, parallel_body *body, void *arg);
mar_status __real_mar_session_step(mar_session *s);
mar_status __wrap_mar_session_step(mar_session *s);
void __real_causal_vectors_run(causal_runner *r, float *hidden);
void __wrap_causal_vectors_run(causal_runner *r, float *hidden);
void __real_parallel_for(pool_client *c, int n, parallel_body *body, void *arg);

static double seconds_of(clockid_t clock)
{
    struct timespec t;
    clock_gettime(clock, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static double now(void)
{
    return seconds_of(CLOCK_THREAD_CPUTIME_ID);
}

static void nothing(void *arg, int first, int last, int thread)
{
    (void)arg, (void)first, (void)last, (void)thread;
}

/* Returns the seconds of an empty loop on two real threads, the least of many: what a loop costs beside its chunks. */
static double dispatch_seconds(void)
{
    thread_pool *pool;
    pool_client *client;
    mar_err err;
    double best = 1;
    if (__real_thread_pool_create(2, &pool, &err) != MAR_OK || pool_client_create(pool, &client, &err) != MAR_OK)
        return 0;
    pool_client_enter(client);
    for (int i = 0; i < 2000; i++) {
        const double start = seconds_of(CLOCK_MONOTONIC);
        for (int k = 0; k < 20; k++) __real_parallel_for(client, 16, nothing, NULL);
        const double took = (seconds_of(CLOCK_MONOTONIC) - start) / 20;
        if (took < best) best = took;
    }
    pool_client_leave(client);
    pool_client_free(client);
    thread_pool_free(pool);
    return best;
}

static void report(void)
{
    double sum = 0, span = 0, own = 0;
    int loops = 0;
    for (int i = 0; i < n_kinds; i++) {
        own += kinds[i].own;
        sum += kinds[i].sum;
        span += kinds[i].span;
        loops += kinds[i].loops;
    }
    fprintf(stderr, "scaling %d %.6f %.6f %.6f %.6f %d %.9f\n", threads, step_seconds - loop_seconds, sum, span, own,
            loops, dispatch_seconds());
    for (int i = 0; i < n_kinds; i++)
        fprintf(stderr, "kind %td %d %d %.6f %.6f\n", (char *)kinds[i].body - (char *)dispatch_seconds, kinds[i].n,
                kinds[i].loops, kinds[i].sum, kinds[i].span);
}

mar_status __wrap_thread_pool_create(int n, thread_pool **out, mar_err *err)
{
    const char *text = getenv("SCALING_THREADS");
    (void)n;
    threads = text ? atoi(text) : 0;
    if (threads < 1 || threads > THREADS_MAX)
        return err_set(err, MAR_EARG, "SCALING_THREADS: expected 1 to %d", THREADS_MAX);
    text = getenv("SCALING_PART");
    trunk = text && strcmp(text, "trunk") == 0;
    clock_seconds = 1;
    for (int i = 0; i < 1000; i++) {
        const double start = now(), took = now() - start;
        if (took < clock_seconds) clock_seconds = took;
    }
    atexit(report);
    return __real_thread_pool_create(1, out, err);
}

int __wrap_thread_pool_size(const thread_pool *t)
{
    (void)t;
    return threads;
}

int __wrap_parallel_width(const pool_client *c)
{
    (void)c;
    return threads;
}

/* Returns the seconds until all parts are done: the thread that is free first takes the next chunk, of its own part, or
 * else of the next part that has one. Adds those of chunks of the own part to *own. */
static double makespan(timed_part *parts, double *own)
{
    double at[THREADS_MAX] = {0}, last = 0;
    for (;;) {
        int r = 0, p = 0;
        for (int i = 1; i < threads; i++)
            if (at[i] < at[r]) r = i;
        while (p < threads && parts[(r + p) % threads].next == parts[(r + p) % threads].chunks) p++;
        if (p == threads) return last;
        timed_part *taken = &parts[(r + p) % threads];
        if (p == 0) *own += taken->seconds[taken->next];
        at[r] += taken->seconds[taken->next++];
        if (at[r] > last) last = at[r];
    }
}

static kind *kind_of(parallel_body *body, int n)
{
    for (int i = 0; i < n_kinds; i++)
        if (kinds[i].body == body && kinds[i].n == n) return &kinds[i];
    if (n_kinds == KINDS) return &kinds[KINDS - 1]; /* the rest together */
    kinds[n_kinds] = (kind){.body = body, .n = n};
    return &kinds[n_kinds++];
}

void __wrap_parallel_for(pool_client *c, int n, parallel_body *body, void *arg)
{
    static timed_part parts[THREADS_MAX];
    (void)c;
    if (n <= 0) return;
    double sum = 0, before = now();
    const double began = before;
    for (int r = 0; r < threads; r++) {
        const int first = parallel_part(n, threads, r), items = parallel_part(n, threads, r + 1) - first;
        parts[r] = (timed_part){.chunks = items < CHUNKS ? items : CHUNKS};
        for (int i = 0; i < parts[r].chunks; i++) {
            body(arg, first + parallel_part(items, parts[r].chunks, i),
                 first + parallel_part(items, parts[r].chunks, i + 1), r);
            const double after = now(), took = after - before - clock_seconds;
            parts[r].seconds[i] = took > 0 ? took : 0;
            sum += parts[r].seconds[i];
            before = after;
        }
    }
    if (!counting) return;
    kind *k = kind_of(current ? current : body, n);
    k->loops++;
    k->sum += sum;
    k->span += n == 1 ? sum : makespan(parts, &k->own);
    if (n == 1) k->own += sum;
    loop_seconds += now() - began;
}

void __wrap_cpu_for(cpu_queue *q, int n, double work, parallel_body *body, void *arg)
{
    current = body;
    __real_cpu_for(q, n, work, body, arg);
    current = NULL;
}

mar_status __wrap_mar_session_step(mar_session *s)
{
    const double start = now();
    counting = !trunk;
    const mar_status status = __real_mar_session_step(s);
    if (counting) step_seconds += now() - start;
    counting = 0;
    return status;
}

void __wrap_causal_vectors_run(causal_runner *r, float *hidden)
{
    const double start = now();
    const int before = counting;
    counting = 1;
    __real_causal_vectors_run(r, hidden);
    if (!before) step_seconds += now() - start;
    counting = before;
}
