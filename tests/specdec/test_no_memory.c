/* Lets every allocation of a sampler and of a neighbour table fail once. Both report the failure and leave nothing
 * behind. The test replaces the allocator of the whole program, as the sanitizers do. Under them it is skipped. */
#include "specdec/neighbours.h"
#include "tests/support/support.h"
#include "tests/support/toy.h"
#include "specdec/sampler.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define EVERY_ALLOCATION_COUNTS /* also those of other libraries */
#include "tests/support/failing_allocations.h"

#ifndef HAS_SANITIZER

TEST_CASE(sampler)
{
    static const double parameter[] = {4, 3, 1};
    const spec_sampler_options options = {.method = spec_method_find("sjd-pac"), .parameter = parameter, .length = 16};
    const spec_model target = {100, NULL, toy_laws, NULL};
    kern_queue k = {0};
    int ended = 0;
    for (long n = 0; !ended; n++) {
        spec_sampler *s = NULL;
        mar_err err = {0};
        const long before = live;
        until_failure = n;
        failures = 0;
        const mar_status status = spec_sampler_create(&k, &target, NULL, &options, 3, 20, &s, &err);
        until_failure = -1;
        ended = failures == 0;
        assert_int_equal(status, ended ? MAR_OK : MAR_ENOMEM);
        if (!ended) assert_string_equal(err.text, "out of memory");
        assert_true(ended == (s != NULL) && (!ended || n >= 2));
        spec_sampler_free(s);
        assert_int_equal(live, before);
    }
}

TEST_CASE(neighbours)
{
    float codebook[40 * 3];
    int table[40 * 5], ended = 0;
    for (int i = 0; i < 120; i++) codebook[i] = (float)(i * 7 % 31);
    for (long n = 0; !ended; n++) {
        const long before = live;
        until_failure = n;
        failures = 0;
        const int status = spec_neighbour_table(codebook, 40, 3, 5, SPEC_METRIC_L2, table);
        until_failure = -1;
        ended = failures == 0;
        assert_int_equal(status, ended ? 0 : -1);
        assert_true(!ended || n >= 2);
        assert_int_equal(live, before);
    }
}

#endif
