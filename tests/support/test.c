#include "tests/support/test.h"

#include <stdio.h>
#include <stdlib.h>

registered_test *test_first;
static registered_test *last;
static CMFixtureFunction group_set_up, group_tear_down;

void test_register(registered_test *entry)
{
    *(last ? &last->next : &test_first) = entry;
    last = entry;
}

void test_register_group(CMFixtureFunction set_up, CMFixtureFunction tear_down)
{
    group_set_up = set_up, group_tear_down = tear_down;
}

int main(void)
{
    size_t n = 0;
    for (const registered_test *e = test_first; e; e = e->next) n++;
    struct CMUnitTest *tests = calloc(n, sizeof *tests);
    if (n == 0) puts("SKIPPED: the sanitizer has what these tests replace");
    if (n == 0 || !tests) return n ? 1 : 77;
    n = 0;
    for (const registered_test *e = test_first; e; e = e->next) tests[n++] = e->test;
    /* cmocka_run_group_tests is a macro for arrays of known length. */
    const int failed = _cmocka_run_group_tests("tests", tests, n, group_set_up, group_tear_down);
    free(tests);
    return failed;
}
