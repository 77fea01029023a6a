/* The thread pool runs every item of every loop once, while clients come, go and compete. */
#include "base/thread_pool.h"
#include "tests/support/support.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <unistd.h>

enum { THREADS = 4, MOST = 1000 };

typedef struct {
    int n;
    atomic_int runs[MOST];      /* runs of each item */
    atomic_int inside[THREADS]; /* running bodies with this thread number */
    atomic_int by[THREADS];     /* items run with this thread number */
    atomic_int outside, shared; /* bodies with an invalid number or range; with a number already in use */
    int slow;                   /* microseconds a worker takes for an item */
} loop;

static void count(void *arg, int first, int last, int thread)
{
    loop *l = arg;
    if (thread < 0 || thread >= THREADS || first < 0 || last > l->n || first >= last) {
        atomic_fetch_add(&l->outside, 1);
        return;
    }
    if (atomic_fetch_add(&l->inside[thread], 1)) atomic_fetch_add(&l->shared, 1);
    for (int i = first; i < last; i++) {
        if (thread && l->slow) usleep((useconds_t)l->slow);
        atomic_fetch_add(&l->runs[i], 1);
        atomic_fetch_add(&l->by[thread], 1);
    }
    atomic_fetch_sub(&l->inside[thread], 1);
}

/* Runs a loop of n items. Returns how many items did not run exactly once. */
static int wrong(pool_client *c, loop *l, int n)
{
    int bad = 0;
    for (int i = 0; i < MOST; i++) atomic_store(&l->runs[i], 0);
    l->n = n;
    parallel_for(c, n, count, l);
    for (int i = 0; i < MOST; i++) bad += atomic_load(&l->runs[i]) != (i < n);
    return bad + atomic_load(&l->outside) + atomic_load(&l->shared);
}

static const int sizes[] = {0, 1, 2, 3, 4, 5, 7, 8, 31, 32, 33, 63, 64, 65, 999, MOST};
enum { SIZES = sizeof sizes / sizeof *sizes };

TEST_CASE(every_item_once)
{
    static loop l;
    mar_err err = {0};
    for (int threads = 1; threads <= THREADS; threads++) {
        thread_pool *t;
        pool_client *c;
        assert_ok(thread_pool_create(threads, &t, &err), &err);
        assert_ok(pool_client_create(t, &c, &err), &err);
        for (int entered = 0; entered < 2; entered++) {
            if (entered) pool_client_enter(c);
            for (int round = 0; round < 50; round++)
                for (int i = 0; i < SIZES; i++) assert_int_equal(wrong(c, &l, sizes[i]), 0);
            if (entered) pool_client_leave(c);
        }
        pool_client_free(c);
        thread_pool_free(t);
    }
}

/* Runs loops after pauses, so that the workers sleep. Some workers are slow to finish their items. */
TEST_CASE(sleepers_and_latecomers)
{
    static loop l;
    mar_err err = {0};
    thread_pool *t;
    pool_client *c;
    assert_ok(thread_pool_create(THREADS, &t, &err), &err);
    assert_ok(pool_client_create(t, &c, &err), &err);
    pool_client_enter(c);
    for (int round = 0; round < 100; round++) {
        l.slow = round % 3 == 0 ? 200 : 0;
        if (round % 2) usleep(500);
        assert_int_equal(wrong(c, &l, 64), 0);
    }
    pool_client_leave(c);
    pool_client_free(c);
    thread_pool_free(t);
}

/* Checks that a client that has not entered runs alone, and that clients that have entered divide the threads. */
TEST_CASE(who_helps)
{
    static loop l;
    mar_err err = {0};
    thread_pool *t;
    pool_client *a, *b;
    assert_ok(thread_pool_create(THREADS, &t, &err), &err);
    assert_ok(pool_client_create(t, &a, &err), &err);
    assert_ok(pool_client_create(t, &b, &err), &err);
    assert_int_equal(parallel_width(a), 1);
    assert_int_equal(wrong(a, &l, 64), 0);
    assert_int_equal(atomic_load(&l.by[0]), 64);
    pool_client_enter(a);
    pool_client_enter(b);
    assert_int_equal(wrong(a, &l, 1), 0);         /* its first loop gives it a share; a single item is not divided */
    assert_int_equal(parallel_width(a), THREADS); /* b has run no loop yet */
    assert_int_equal(wrong(b, &l, 1), 0);
    assert_int_equal(parallel_width(a), THREADS / 2);
    assert_int_equal(parallel_width(b), THREADS / 2);
    pool_client_leave(b);
    pool_client_leave(a);
    pool_client_free(a);
    pool_client_free(b);
    thread_pool_free(t);
}

typedef struct {
    thread_pool *pool;
    int seed, bad;
} competitor;

static void *compete(void *arg)
{
    competitor *me = arg;
    loop *l = calloc(1, sizeof *l);
    mar_err err = {0};
    unsigned random = (unsigned)me->seed;
    for (int life = 0; life < 20; life++) {
        pool_client *c;
        if (pool_client_create(me->pool, &c, &err) != MAR_OK) {
            me->bad++;
            break;
        }
        for (int stay = 0; stay < 5; stay++) {
            pool_client_enter(c);
            for (int i = 0; i < 20; i++) {
                random = random * 1664525u + 1013904223u;
                me->bad += wrong(c, l, sizes[random >> 16 & 15]);
            }
            pool_client_leave(c);
        }
        pool_client_free(c);
    }
    free(l);
    return NULL;
}

TEST_CASE(many_callers)
{
    enum { CALLERS = 8 };
    mar_err err = {0};
    thread_pool *t;
    pthread_t thread[CALLERS];
    competitor c[CALLERS];
    assert_ok(thread_pool_create(THREADS, &t, &err), &err);
    for (int i = 0; i < CALLERS; i++) {
        c[i] = (competitor){t, i + 1, 0};
        assert_int_equal(pthread_create(&thread[i], NULL, compete, &c[i]), 0);
    }
    for (int i = 0; i < CALLERS; i++) {
        pthread_join(thread[i], NULL);
        assert_int_equal(c[i].bad, 0);
    }
    thread_pool_free(t);
}

static atomic_int signals_of_workers;
static pthread_t main_thread;

static void on_signal(int number)
{
    (void)number;
    if (!pthread_equal(pthread_self(), main_thread)) atomic_fetch_add(&signals_of_workers, 1);
}

/* Checks that the host's signals reach the host's threads. */
TEST_CASE(signals)
{
    mar_err err = {0};
    thread_pool *t;
    main_thread = pthread_self();
    struct sigaction action = {.sa_handler = on_signal}, old;
    sigset_t set, before;
    assert_int_equal(sigaction(SIGUSR1, &action, &old), 0);
    assert_ok(thread_pool_create(THREADS, &t, &err), &err);
    sigemptyset(&set);
    sigaddset(&set, SIGUSR1);
    pthread_sigmask(SIG_BLOCK, &set, &before); /* so that only another thread could take the signal */
    assert_false(sigismember(&before, SIGUSR1));
    kill(getpid(), SIGUSR1);
    usleep(2000);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    thread_pool_free(t);
    sigaction(SIGUSR1, &old, NULL);
    assert_int_equal(atomic_load(&signals_of_workers), 0);
}
