/* Cancelling inside an operation: how much a loop of the CPU backend still does. */
#include "base/cpus.h"
#include "kernels/cpu/cpu.h"
#include "tests/support/support.h"

#include <sched.h>
#include <stdatomic.h>

typedef struct {
    int *cancel;
    atomic_long items, bodies; /* items that were run, calls of the body */
    long at;                   /* the item, counted from 1, in which the queue is cancelled; 0: in none */
    int threads;               /* that take part */
} planted_loop;

/* The queue is cancelled when every thread is inside an item, that one or a later one, which it ends only then. */
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

/* A loop of 1e14 multiply-adds, hours on any processor: once the queue is cancelled each thread ends the item it has
 * begun, nothing else is begun, and the queue has failed, so that nobody takes what is there for whole. */
static void cancelled_inside_a_loop(void **state)
{
    enum { ITEMS = 100000, AT = 7 };
    (void)state;
    for (int threads = 1; threads <= 4 && threads <= cpus_affinity(); threads++) { /* more would be as many */
        kern_queue *k = open_queue(MAR_DTYPE_F32, threads);
        int cancel = 0;
        mar_err err = {0};
        planted_loop l = {.cancel = &cancel, .at = AT, .threads = threads};
        assert_int_equal(cpu_of(k)->d->threads, threads);
        k->cancel = &cancel;
        cpu_for(cpu_of(k), ITEMS, 1e14, count_and_cancel, &l);
        assert_int_equal(l.items, AT + threads - 1);
        assert_int_equal(kern_check(k, &err), MAR_ECANCELLED);

        const long before = l.items; /* the operations that follow begin nothing, large or small */
        cpu_for(cpu_of(k), ITEMS, 1e14, count_and_cancel, &l);
        cpu_for(cpu_of(k), 1, 1, count_and_cancel, &l);
        assert_int_equal(l.items, before);

        cancel = 0; /* and without a cancel every item is run, those of a small loop in few calls */
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(cancelled_inside_a_loop),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
