/* Cancelling inside an operation: the work that a loop of the CPU backend still does. */
#include "base/cpus.h"
#include "kernels/cpu/cpu.h"
#include "tests/support/support.h"

#include <sched.h>
#include <stdatomic.h>

typedef struct {
    int *cancel;
    atomic_long items, bodies; /* items run, calls of the body */
    long at;                   /* item in which the queue is cancelled, counted from 1; 0: none */
    int threads;               /* participating threads */
} planted_loop;

/* Cancels the queue in item `at`, once every other thread is inside a later item. No item from `at` on ends before. */
static void count_and_cancel(void *arg, int first, int last, int thread)
{
    planted_loop *l = arg;
    (void)thread;
    atomic_fetch_add(&l->bodies, 1);
    for (int i = first; i < last; i++) {
        const long item = atomic_fetch_add(&l->items, 1) + 1;
        if (!l->at || item < l->at) continue;
        while (item == l->at && atomic_load(&l->items) < l->at + l->threads - 1) sched_yield();
        if (item == l->at) __atomic_store_n(l->cancel, 1, __ATOMIC_RELAXED);
        while (!__atomic_load_n(l->cancel, __ATOMIC_RELAXED)) sched_yield();
    }
}

/* Checks a cancelled loop of 1e14 multiply-adds, hours on any processor. Each thread ends its current item, and no
 * other item begins. The queue fails, so that nobody takes the partial result as complete. */
TEST_CASE(cancelled_inside_a_loop)
{
    enum { ITEMS = 100000, AT = 7 };
    (void)state;
    for (int threads = 1; threads <= 4 && threads <= cpus_affinity(); threads++) { /* at most one per CPU */
        kern_queue *k = open_queue(MAR_DTYPE_F32, threads);
        int cancel = 0;
        mar_err err = {0};
        planted_loop l = {.cancel = &cancel, .at = AT, .threads = threads};
        assert_int_equal(cpu_of(k)->d->threads, threads);
        k->cancel = &cancel;
        cpu_for(cpu_of(k), ITEMS, 1e14, count_and_cancel, &l);
        assert_int_equal(l.items, AT + threads - 1);
        assert_int_equal(kern_check(k, &err), MAR_ECANCELLED);

        const long before = l.items; /* later operations begin no item, large or small */
        cpu_for(cpu_of(k), ITEMS, 1e14, count_and_cancel, &l);
        cpu_for(cpu_of(k), 1, 1, count_and_cancel, &l);
        assert_int_equal(l.items, before);

        cancel = 0; /* without a cancel every item runs; a small loop takes few calls */
        k->core->recover(k);
        l.at = 0;
        l.items = 0;
        cpu_for(cpu_of(k), ITEMS, 1e14, count_and_cancel, &l);
        assert_int_equal(l.items, ITEMS);
        l.items = l.bodies = 0;
        cpu_for(cpu_of(k), ITEMS, 1e7, count_and_cancel, &l);
        assert_int_equal(l.items, ITEMS);
        assert_in_range(l.bodies, 1, 8 * threads);
        assert_int_equal(kern_check(k, &err), MAR_OK);
        close_queue(k);
    }
}
