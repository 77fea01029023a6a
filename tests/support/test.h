/* Self-registering tests. A file of TEST_CASE(name) { ... } is a program; test.c has its main. Tests run in the order
 * of the file. */
#ifndef TESTS_TEST_H
#define TESTS_TEST_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

typedef struct registered_test {
    struct CMUnitTest test;
    struct registered_test *next;
} registered_test;

/* The registered tests in their order. */
extern registered_test *test_first;

void test_register(registered_test *entry);
/* Sets the set-up and tear-down of the program's tests as a whole. */
void test_register_group(CMFixtureFunction set_up, CMFixtureFunction tear_down);

/* Begins a test's definition. `state` is the state set by the set-up. */
#define TEST_CASE(name) TEST_WITH(name, NULL, NULL)
/* The same with a set-up and a tear-down of its own. */
#define TEST_WITH(name, set_up, tear_down)                                                                             \
    static void name(void **state);                                                                                    \
    __attribute__((constructor)) static void register_##name(void)                                                     \
    {                                                                                                                  \
        static registered_test entry = {{#name, name, set_up, tear_down, NULL}, NULL};                                 \
        test_register(&entry);                                                                                         \
    }                                                                                                                  \
    static void name(__attribute__((unused)) void **state)
#define TEST_GROUP(set_up, tear_down)                                                                                  \
    __attribute__((constructor)) static void register_group(void)                                                      \
    {                                                                                                                  \
        test_register_group(set_up, tear_down);                                                                        \
    }

#endif
