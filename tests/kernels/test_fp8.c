/* FP8's rounding and scales, against E4M3's definition. tests/ops/test_linear.c tests the products. */
#include "kernels/fp8.h"
#include "kernels/rng.h"
#include "tests/support/support.h"

#include <math.h>

enum { LARGEST = 126, NUMBERS = 20000 }; /* the code of 448; 127 is NaN */

/* Returns the magnitude of a code. */
static float value_of(int code)
{
    const int exponent = code >> 3, mantissa = code & 7;
    return exponent ? ldexpf((float)(8 + mantissa), exponent - 10) : ldexpf((float)mantissa, -9);
}

static void expect(float x, int code)
{
    for (int sign = 0; sign < 2; sign++) {
        const float rounded = kern_fp8_round(sign ? -x : x);
        const int found = kern_fp8_code(rounded), expected = code ? code | sign << 7 : 0;
        if (rounded != (sign ? -value_of(code) : value_of(code)) || found != expected)
            fail_msg("%a is %a, code %d, expected code %d", (double)x, (double)rounded, found, expected);
    }
}

/* Checks each code, the tie between it and the next, and its neighbours. */
TEST_CASE(ties)
{
    for (int code = 0; code <= LARGEST; code++) expect(value_of(code), code);
    for (int code = 0; code < LARGEST; code++) {
        const float tie = (value_of(code) + value_of(code + 1)) / 2;
        expect(tie, code + (code & 1));
        expect(nextafterf(tie, 0), code);
        expect(nextafterf(tie, 448), code + 1);
    }
    assert_true(isnan(kern_fp8_round(NAN)));
}

/* Checks random numbers of all magnitudes, subnormal ones too, against the nearest of all codes; and scales. */
TEST_CASE(random_numbers)
{
    for (uint32_t i = 0; i < NUMBERS; i++) {
        uint32_t w[4];
        int nearest = 0;
        float inverse;
        kern_random_words(7, KERN_NOISE_INIT, 0, 0, 0, i, w);
        const float x = ldexpf((float)w[0] * 0x1p-32f, (int)(w[1] % 22) - 12);
        for (int code = 1; code <= LARGEST; code++)
            if (fabsf(value_of(code) - x) < fabsf(value_of(nearest) - x)) nearest = code;
        if (x <= 448) expect(x, nearest);
        const float most = ldexpf(x, (int)(w[2] % 200) - 100), scale = kern_fp8_scale(most, &inverse);
        int exponent;
        assert_true(frexpf(scale, &exponent) == 0.5f && scale * inverse == 1);
        assert_true(most <= 448 * scale && (most > 224 * scale || scale == 0x1p-100f));
    }
}

TEST_CASE(special_scales)
{
    float inverse;
    assert_true(kern_fp8_scale(448, &inverse) == 1 && inverse == 1);
    assert_true(kern_fp8_scale(nextafterf(448, 500), &inverse) == 2 && inverse == 0.5f);
    assert_true(kern_fp8_scale(0, &inverse) == 0x1p-100f && inverse == 0x1p100f);
    assert_true(isfinite(kern_fp8_scale(3.4e38f, &inverse)) && inverse > 0);
    assert_true(isnan(kern_fp8_scale(INFINITY, &inverse)) && isnan(inverse));
    assert_true(isnan(kern_fp8_scale(NAN, &inverse)) && isnan(inverse));
}
