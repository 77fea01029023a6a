/* A guarded call ends with its value, or with `caught` when C++ throws in it: destructors have run, the exception is
 * freed, and neither frames of C on the way nor guarded calls within guarded calls change that. */
#include "kernels/cpu/guard.h"
#include "tests/support/support.h"

#include <pthread.h>

/* throws.cpp */
int throws_from(int depth, int kind);
int throws_destroyed(void);
int throws_under_way(void);

enum { CAUGHT = -3, NOTHING = 3 };

typedef struct {
    int depth, kind;
    int again; /* guarded calls within this one, one in the other */
    int inner; /* what the next one returned */
} call;

static int body(void *arg)
{
    call *c = arg;
    volatile char frame[64] = "some C between"; /* a frame that is left and has nothing to be cleaned up */
    if (c->again > 0) {
        call next = {.depth = c->depth, .kind = c->kind, .again = c->again - 1};
        c->inner = guard_call(body, &next, CAUGHT - 1);
        return frame[0];
    }
    return throws_from(c->depth, c->kind);
}

static void test_value(void **state)
{
    (void)state;
    call c = {.depth = 3, .kind = NOTHING};
    throws_destroyed();
    assert_int_equal(guard_call(body, &c, CAUGHT), 7);
    assert_int_equal(throws_destroyed(), 4);
}

static void test_caught(void **state)
{
    (void)state;
    for (int round = 0; round < 1000; round++) /* a leak of each would be found by the sanitizer */
        for (int kind = 0; kind < NOTHING; kind++)
            for (int depth = 0; depth < 4; depth++) {
                call c = {.depth = depth, .kind = kind};
                throws_destroyed();
                assert_int_equal(guard_call(body, &c, CAUGHT), CAUGHT);
                assert_int_equal(throws_destroyed(), depth + 1 + (kind == 2)); /* the exception, too */
                assert_int_equal(throws_under_way(), 0);
            }
}

static void test_nested(void **state)
{
    (void)state;
    call c = {.depth = 2, .kind = 0, .again = 2};
    assert_int_equal(guard_call(body, &c, CAUGHT), 's');
    assert_int_equal(c.inner, 's');
    c = (call){.depth = 2, .kind = 0, .again = 1};
    assert_int_equal(guard_call(body, &c, CAUGHT), 's');
    assert_int_equal(c.inner, CAUGHT - 1);
}

/* A thread that ends in a guarded call ends. */
static int end_thread(void *arg)
{
    pthread_exit(arg);
}

static void *guarded_end(void *arg)
{
    guard_call(end_thread, arg, CAUGHT);
    return NULL;
}

static void test_thread_ends(void **state)
{
    pthread_t thread;
    void *result = NULL;
    assert_int_equal(pthread_create(&thread, NULL, guarded_end, state), 0);
    assert_int_equal(pthread_join(thread, &result), 0);
    assert_ptr_equal(result, state);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_value), cmocka_unit_test(test_caught),
                                       cmocka_unit_test(test_nested), cmocka_unit_test(test_thread_ends)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
