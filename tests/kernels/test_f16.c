/* Tests rounding to FP16 against the definition: the nearest of all FP16 numbers, the even one of two. */
#include "kernels/f16.h"
#include "tests/support/support.h"

#include <math.h>
#include <string.h>

/* Returns the positive FP16 number with these bits, 0 .. 0x7bff. */
static float number(int bits)
{
    const int exponent = bits >> 10, mantissa = bits & 0x3ff;
    return ldexpf((float)(exponent ? 0x400 | mantissa : mantissa), (exponent ? exponent : 1) - 25);
}

static float rounded(float x)
{
    kern_f16_round(&x, 1);
    return x;
}

static int same(float a, float b)
{
    return memcmp(&a, &b, sizeof a) == 0;
}

TEST_CASE(every_number_and_every_middle)
{
    for (int i = 0; i < 0x7c00; i++) {
        const float x = number(i), next = i < 0x7bff ? number(i + 1) : 65536, middle = x + (next - x) / 2;
        const float even = i % 2 ? next : x, above = next > 65504 ? INFINITY : next;
        if (!same(rounded(x), x) || !same(rounded(-x), -x)) fail_msg("%a became %a", (double)x, (double)rounded(x));
        if (!same(rounded(middle), even > 65504 ? INFINITY : even) || !same(rounded(nextafterf(middle, 0)), x) ||
            !same(rounded(-nextafterf(middle, INFINITY)), -above))
            fail_msg("a number near %a became %a", (double)middle, (double)rounded(middle));
    }
    assert_true(isnan(rounded(NAN)));
    assert_true(same(rounded(3e38f), INFINITY) && same(rounded(-INFINITY), -INFINITY));
}
