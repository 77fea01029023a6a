#include "base/thread_pool.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum {
    LINE = 64,  /* bytes of a cache line */
    CHUNKS = 8, /* in a thread's part of a loop */
};

/* Nanoseconds. */
#define SPIN       50000      /* a thread spins this long before it sleeps: a few times the cost of waking it */
#define WINDOW     4000000    /* between two measurements of processor time: a slice of the scheduler */
#define MEMORY     24000000   /* averaging time of the measurements: longer than brief work of other processes */
#define LINGER     2000000    /* a client keeps its share this long after pool_client_leave */
#define RETRY      25000000   /* wait before a client on a busy machine tries more threads; doubles after a vain try */
#define RETRY_MOST 1000000000 /* longest such wait */

/* A client uses fewer threads when other processes take more than this many threads' time from it. */
#define BUSY 0.35

/* A thread's part of a loop. A compare-and-swap of `left` takes a chunk. The loop cannot end before the taker has
 * finished, so it may read the loop's description. */
typedef struct {
    _Alignas(LINE) atomic_int left;
    int chunks, first, last; /* items first .. last-1, in `chunks` chunks */
} part;

/* A thread's use of its processor. */
typedef struct {
    int64_t wall, cpu;     /* ns: clocks at the last measurement */
    int64_t slept;         /* ns asleep since then, waiting for other threads */
    _Atomic double stolen; /* average fraction of time the thread was ready but did not run */
    _Atomic int64_t at;    /* ns: time of that measurement */
} cpu_usage;

struct pool_client {
    _Alignas(LINE) atomic_uint loop; /* number of the loop; waiting workers poll it */
    atomic_int sleepers;             /* workers of this client that sleep or are about to */
    /* The current loop. */
    parallel_body *body;
    void *arg;
    part *parts;                          /* [threads] */
    atomic_int in_use;                    /* parts of the current loop */
    _Alignas(LINE) atomic_int unfinished; /* chunks not finished */
    atomic_int waiting;                   /* 1: the client sleeps until unfinished is 0 */
    pthread_mutex_t mutex;
    pthread_cond_t finished;

    thread_pool *pool;
    pool_client *next;
    atomic_int width; /* threads it may use: itself and its workers */
    /* Guarded by the pool's lock. */
    int working; /* 1: has run a loop since pool_client_enter */
    int counted; /* 1: working, or left less than LINGER ago */
    int64_t left_at;
    int limit; /* the most threads that the machine seems to have for this client */
    /* Private to the client's thread. */
    int entered;
    int grew;                  /* 1: the last change raised the limit */
    int64_t changed_at, retry; /* ns: time of that change; wait before the limit rises again */
    cpu_usage usage;
};

typedef struct {
    _Alignas(LINE) _Atomic(pool_client *) client; /* the client it works for; NULL: idle */
    atomic_int rank;                              /* index among that client's workers */
    atomic_int asleep;
    pthread_mutex_t mutex;
    pthread_cond_t wake;
    cpu_usage usage;
    int number; /* 1 .. threads-1 */
    thread_pool *pool;
    pthread_t thread;
} worker;

struct thread_pool {
    int threads;
    atomic_int stop;
    pthread_mutex_t lock;
    pool_client *clients, *spare; /* spare: freed clients. A late worker may still read their parts */
    int made;                     /* workers running */
    worker *workers;              /* [threads - 1] */
};

static int64_t clock_ns(clockid_t clock)
{
    struct timespec t;
    clock_gettime(clock, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static int64_t now_ns(void)
{
    return clock_ns(CLOCK_MONOTONIC);
}

static inline void relax(void)
{
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("isb" ::: "memory");
#endif
}

/* --- chunks ------------------------------------------------------------------------------------------------------- */

/* Takes and runs chunks of a part until none is left. Returns how many it ran. */
static int run_part(pool_client *c, part *p, int thread)
{
    int done = 0;
    for (int left = atomic_load_explicit(&p->left, memory_order_relaxed); left > 0;) {
        if (!atomic_compare_exchange_weak_explicit(&p->left, &left, left - 1, memory_order_acquire,
                                                   memory_order_relaxed))
            continue;
        const int n = p->last - p->first, chunk = p->chunks - left;
        c->body(c->arg, p->first + parallel_part(n, p->chunks, chunk),
                p->first + parallel_part(n, p->chunks, chunk + 1), thread);
        done++;
        left = atomic_load_explicit(&p->left, memory_order_relaxed);
    }
    return done;
}

/* Runs chunks of all parts, starting with part `own`. */
static void run_parts(pool_client *c, int own, int thread)
{
    const int parts = atomic_load_explicit(&c->in_use, memory_order_relaxed);
    for (int i = 0; i < parts; i++) {
        const int done = run_part(c, &c->parts[(own + i) % parts], thread);
        if (done == 0 || atomic_fetch_sub(&c->unfinished, done) > done || !atomic_load(&c->waiting)) continue;
        pthread_mutex_lock(&c->mutex);
        pthread_cond_signal(&c->finished);
        pthread_mutex_unlock(&c->mutex);
    }
}

/* --- the share of the processors ---------------------------------------------------------------------------------- */

static void start_usage(cpu_usage *s, int64_t now)
{
    s->wall = now;
    s->cpu = clock_ns(CLOCK_THREAD_CPUTIME_ID);
    s->slept = 0;
    atomic_store_explicit(&s->stolen, 0, memory_order_relaxed);
}

/* Measures the time that the thread was ready but did not run, at most once a window. Returns 1 if it measured. */
static int update_usage(cpu_usage *s, int64_t now)
{
    const int64_t wall = now - s->wall;
    if (wall < WINDOW) return 0;
    const int64_t cpu = clock_ns(CLOCK_THREAD_CPUTIME_ID), stolen = wall - (cpu - s->cpu) - s->slept;
    const int64_t counts = wall < 2 * WINDOW ? wall : 2 * WINDOW; /* one long wait for something else proves nothing */
    const double now_stolen = stolen > 0 ? (double)stolen / (double)wall : 0;
    const double weight = (double)counts / (double)(counts + MEMORY);
    const double before = atomic_load_explicit(&s->stolen, memory_order_relaxed);
    atomic_store_explicit(&s->stolen, before + weight * (now_stolen - before), memory_order_relaxed);
    atomic_store_explicit(&s->at, now, memory_order_relaxed);
    s->wall = now;
    s->cpu = cpu;
    s->slept = 0;
    return 1;
}

static void wake(worker *w)
{
    if (!atomic_load(&w->asleep) || !atomic_exchange(&w->asleep, 0)) return;
    pthread_mutex_lock(&w->mutex);
    pthread_cond_signal(&w->wake);
    pthread_mutex_unlock(&w->mutex);
}

/* Assigns a worker to client c. Wakes it, so that it counts among the sleepers of its new client. */
static void assign(worker *w, pool_client *c)
{
    if (atomic_exchange(&w->client, c) != c) wake(w);
}

/* Divides the threads among the working clients. Call it with the lock held. */
static void thread_pool_divide(thread_pool *t, int64_t now)
{
    int clients = 0, place = 0, w = 0;
    for (pool_client *c = t->clients; c; c = c->next) {
        c->counted = c->working || (c->counted && now - c->left_at < LINGER);
        clients += c->counted;
    }
    for (pool_client *c = t->clients; c; c = c->next) {
        int width = 1;
        if (c->counted) {
            width = t->threads / clients + (place++ < t->threads % clients);
            if (width > c->limit) width = c->limit;
            if (width < 1) width = 1;
        }
        for (int rank = 0; rank < width - 1 && w < t->made; rank++, w++) {
            atomic_store(&t->workers[w].rank, rank);
            assign(&t->workers[w], c);
        }
        atomic_store(&c->width, width);
    }
    for (; w < t->made; w++) assign(&t->workers[w], NULL);
}

/* Lowers or raises the client's limit by the processor time that its threads get. */
static void adapt(pool_client *c, int64_t now)
{
    thread_pool *t = c->pool;
    const int width = atomic_load(&c->width);
    double stolen = atomic_load_explicit(&c->usage.stolen, memory_order_relaxed);
    pthread_mutex_lock(&t->lock);
    for (int w = 0; w < t->made; w++) {
        const worker *helper = &t->workers[w];
        if (atomic_load(&helper->client) == c && now - atomic_load(&helper->usage.at) < 2 * WINDOW)
            stolen += atomic_load_explicit(&helper->usage.stolen, memory_order_relaxed);
    }
    if (width > 1 && stolen > BUSY) {
        c->limit = (int)(width - stolen + BUSY);
        if (c->limit < 1) c->limit = 1;
        if (c->grew && now - c->changed_at < 4 * MEMORY) /* in vain: noticing that takes more than MEMORY */
            c->retry = 2 * c->retry < RETRY_MOST ? 2 * c->retry : RETRY_MOST;
        else if (c->grew)
            c->retry = RETRY;
        c->grew = 0;
        c->changed_at = now;
    } else if (c->limit < t->threads && width == c->limit && now - c->changed_at > (c->grew ? 2 * MEMORY : c->retry)) {
        c->limit = 2 * c->limit < t->threads ? 2 * c->limit : t->threads;
        c->grew = 1;
        c->changed_at = now;
    }
    thread_pool_divide(t, now);
    pthread_mutex_unlock(&t->lock);
}

/* --- workers ------------------------------------------------------------------------------------------------------ */

static int has_change(const worker *w, const pool_client *c, unsigned loop)
{
    return atomic_load(&w->client) != c || (c && atomic_load(&c->loop) != loop) || atomic_load(&w->pool->stop);
}

/* Sleeps until there is a new loop, another client, or the end. */
static void sleep_until_change(worker *w, pool_client *c, unsigned loop)
{
    const int64_t start = now_ns();
    atomic_store(&w->asleep, 1);
    if (c) atomic_fetch_add(&c->sleepers, 1);
    pthread_mutex_lock(&w->mutex);
    while (atomic_load(&w->asleep) && !has_change(w, c, loop)) pthread_cond_wait(&w->wake, &w->mutex);
    pthread_mutex_unlock(&w->mutex);
    atomic_store(&w->asleep, 0);
    if (c) atomic_fetch_sub(&c->sleepers, 1);
    const int64_t now = now_ns();
    w->usage.slept += now - start;
    if (w->usage.slept > WINDOW / 2) start_usage(&w->usage, now);
}

static void thread_pool_wait_for_change(worker *w, pool_client *c, unsigned loop)
{
    const int64_t end = c ? now_ns() + SPIN : 0;
    while (c && now_ns() < end)
        for (int i = 0; i < 16; i++) {
            if (has_change(w, c, loop)) return;
            relax();
        }
    sleep_until_change(w, c, loop);
}

static void *thread_pool_work(void *arg)
{
    worker *w = arg;
    pool_client *last = NULL;
    unsigned loop = 0;
    start_usage(&w->usage, now_ns());
    while (!atomic_load(&w->pool->stop)) {
        pool_client *c = atomic_load(&w->client);
        if (!c || (c == last && atomic_load(&c->loop) == loop)) {
            thread_pool_wait_for_change(w, c, loop);
            continue;
        }
        last = c;
        loop = atomic_load(&c->loop);
        run_parts(c, 1 + atomic_load(&w->rank), w->number);
        update_usage(&w->usage, now_ns());
    }
    return NULL;
}

/* Starts the workers, or as many as the system allows. */
static void start_workers(thread_pool *t)
{
    sigset_t all, old;
    int failed = 0;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old); /* workers inherit the mask: signals go to the host's threads */
    for (; !failed && t->made < t->threads - 1; t->made += !failed) {
        worker *w = &t->workers[t->made];
        w->pool = t;
        w->number = t->made + 1;
        pthread_mutex_init(&w->mutex, NULL);
        pthread_cond_init(&w->wake, NULL);
        failed = pthread_create(&w->thread, NULL, thread_pool_work, w);
        if (failed) {
            pthread_cond_destroy(&w->wake);
            pthread_mutex_destroy(&w->mutex);
        }
    }
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    t->threads = t->made + 1;
}

/* --- pools and clients -------------------------------------------------------------------------------------------- */

mar_status thread_pool_create(int threads, thread_pool **out, mar_err *err)
{
    *out = NULL;
    thread_pool *t = calloc(1, sizeof *t);
    if (!t) return err_set(err, MAR_ENOMEM, "out of memory");
    t->threads = threads;
    pthread_mutex_init(&t->lock, NULL);
    const size_t bytes = (size_t)threads * sizeof *t->workers; /* one too many, so that it is never 0 */
    t->workers = aligned_alloc(LINE, bytes);
    if (!t->workers) {
        thread_pool_free(t);
        return err_set(err, MAR_ENOMEM, "out of memory");
    }
    memset(t->workers, 0, bytes);
    start_workers(t);
    *out = t;
    return MAR_OK;
}

int thread_pool_size(const thread_pool *t)
{
    return t->threads;
}

static void client_destroy(pool_client *c)
{
    pthread_cond_destroy(&c->finished);
    pthread_mutex_destroy(&c->mutex);
    free(c->parts);
    free(c);
}

static void destroy_clients(pool_client *c)
{
    while (c) {
        pool_client *next = c->next;
        client_destroy(c);
        c = next;
    }
}

void thread_pool_free(thread_pool *t)
{
    if (!t) return;
    atomic_store(&t->stop, 1);
    for (int i = 0; i < t->made; i++) wake(&t->workers[i]);
    for (int i = 0; i < t->made; i++) {
        worker *w = &t->workers[i];
        pthread_join(w->thread, NULL);
        pthread_cond_destroy(&w->wake);
        pthread_mutex_destroy(&w->mutex);
    }
    destroy_clients(t->clients);
    destroy_clients(t->spare);
    free(t->workers);
    pthread_mutex_destroy(&t->lock);
    free(t);
}

static pool_client *make_client(thread_pool *t)
{
    pool_client *c = aligned_alloc(LINE, sizeof *c);
    part *parts = aligned_alloc(LINE, (size_t)t->threads * sizeof *parts);
    if (!c || !parts) {
        free(c);
        free(parts);
        return NULL;
    }
    memset(c, 0, sizeof *c);
    memset(parts, 0, (size_t)t->threads * sizeof *parts);
    pthread_mutex_init(&c->mutex, NULL);
    pthread_cond_init(&c->finished, NULL);
    c->pool = t;
    c->parts = parts;
    return c;
}

mar_status pool_client_create(thread_pool *t, pool_client **out, mar_err *err)
{
    pthread_mutex_lock(&t->lock);
    pool_client *c = t->spare;
    if (c)
        t->spare = c->next;
    else
        c = make_client(t);
    if (c) {
        atomic_store(&c->width, 1);
        c->limit = t->threads;
        c->retry = RETRY;
        c->grew = 1;
        c->changed_at = 0;
        c->entered = c->working = c->counted = 0;
        c->usage.wall = c->usage.cpu = c->usage.slept = 0;
        atomic_store(&c->usage.stolen, 0);
        c->next = t->clients;
        t->clients = c;
    }
    pthread_mutex_unlock(&t->lock);
    *out = c;
    return c ? MAR_OK : err_set(err, MAR_ENOMEM, "out of memory");
}

void pool_client_free(pool_client *c)
{
    if (!c) return;
    thread_pool *t = c->pool;
    pthread_mutex_lock(&t->lock);
    pool_client **p = &t->clients;
    while (*p != c) p = &(*p)->next;
    *p = c->next;
    c->next = t->spare;
    t->spare = c;
    for (int w = 0; w < t->made; w++)
        if (atomic_load(&t->workers[w].client) == c) assign(&t->workers[w], NULL);
    pthread_mutex_unlock(&t->lock);
}

/* Stops or restarts the clocks: turns the times of the last measurement into elapsed times, and back. Time between
 * calls is not the machine's fault, and the next call may come from another thread. */
static void stop_or_start_clocks(cpu_usage *s)
{
    s->wall = now_ns() - s->wall;
    s->cpu = clock_ns(CLOCK_THREAD_CPUTIME_ID) - s->cpu;
}

void pool_client_enter(pool_client *c)
{
    if (c->entered++ == 0) stop_or_start_clocks(&c->usage);
}

void pool_client_leave(pool_client *c)
{
    thread_pool *t = c->pool;
    if (--c->entered > 0) return;
    stop_or_start_clocks(&c->usage);
    if (!c->working) return;
    pthread_mutex_lock(&t->lock);
    c->working = 0;
    c->left_at = now_ns();
    pthread_mutex_unlock(&t->lock);
}

/* Gives the client its share, at its first loop since pool_client_enter. */
static void begin_work(pool_client *c)
{
    thread_pool *t = c->pool;
    pthread_mutex_lock(&t->lock);
    c->working = 1;
    if (!c->counted) thread_pool_divide(t, now_ns());
    pthread_mutex_unlock(&t->lock);
}

int parallel_width(const pool_client *c)
{
    return atomic_load_explicit(&c->width, memory_order_relaxed);
}

/* --- loops -------------------------------------------------------------------------------------------------------- */

static void post(pool_client *c, int n, int width, parallel_body *body, void *arg)
{
    int chunks = 0;
    c->body = body;
    c->arg = arg;
    for (int r = 0; r < width; r++) {
        part *p = &c->parts[r];
        p->first = parallel_part(n, width, r);
        p->last = parallel_part(n, width, r + 1);
        p->chunks = p->last - p->first < CHUNKS ? p->last - p->first : CHUNKS;
        chunks += p->chunks;
    }
    atomic_store(&c->unfinished, chunks);
    atomic_store_explicit(&c->in_use, width, memory_order_relaxed);
    for (int r = 0; r < width; r++) atomic_store_explicit(&c->parts[r].left, c->parts[r].chunks, memory_order_release);
    atomic_fetch_add(&c->loop, 1);
    if (atomic_load(&c->sleepers) == 0) return;
    for (int w = 0; w < c->pool->made; w++)
        if (atomic_load(&c->pool->workers[w].client) == c) wake(&c->pool->workers[w]);
}

static void wait_until_finished(pool_client *c)
{
    const int64_t start = now_ns();
    do
        for (int i = 0; i < 16; i++) {
            if (atomic_load(&c->unfinished) == 0) return;
            relax();
        }
    while (now_ns() - start < SPIN);
    const int64_t slept = now_ns();
    pthread_mutex_lock(&c->mutex);
    atomic_store(&c->waiting, 1);
    while (atomic_load(&c->unfinished) > 0) pthread_cond_wait(&c->finished, &c->mutex);
    atomic_store(&c->waiting, 0);
    pthread_mutex_unlock(&c->mutex);
    c->usage.slept += now_ns() - slept;
}

void parallel_for(pool_client *c, int n, parallel_body *body, void *arg)
{
    if (n <= 0) return;
    if (c->entered && !c->working) begin_work(c);
    const int width = parallel_width(c);
    if (n == 1 || width == 1) {
        body(arg, 0, n, 0);
    } else {
        post(c, n, width, body, arg);
        run_parts(c, 0, 0);
        wait_until_finished(c);
    }
    if (c->pool->threads > 1 && c->entered) {
        const int64_t now = now_ns();
        if (update_usage(&c->usage, now)) adapt(c, now);
    }
}
