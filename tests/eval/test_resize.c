/* Compares resized pictures with Pillow's, and with clean-fid's: the same bytes, and floats to the last bits. */
#include "tests/support/support.h"
#include "tests/support/test.h"

#include "eval/resize.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { CASES = 10, SIDE = 6 };

static wt_file *golden;

static float *numbers(int n, const char *what, int64_t count)
{
    char name[32];
    snprintf(name, sizeof name, "%d.%s", n, what);
    return golden_f32(golden, name, count);
}

/* Reads a picture and the size to which it is resized. The caller frees the pixels. */
static uint8_t *picture_of(int n, eval_picture *p, int *width, int *height)
{
    float *size = numbers(n, "size", 4);
    *p = (eval_picture){.width = (int)size[0], .height = (int)size[1]};
    *width = (int)size[2], *height = (int)size[3];
    const size_t bytes = (size_t)p->width * (size_t)p->height * 3;
    float *values = numbers(n, "picture", (int64_t)bytes);
    uint8_t *rgb = malloc(bytes);
    assert_non_null(rgb);
    for (size_t i = 0; i < bytes; i++) rgb[i] = (uint8_t)values[i];
    p->rgb = rgb;
    free(values);
    free(size);
    return rgb;
}

/* Checks that the bytes are those of the file. */
static void assert_bytes(int n, const char *what, const uint8_t *got, size_t count)
{
    float *expected = numbers(n, what, (int64_t)count);
    for (size_t i = 0; i < count; i++)
        if (got[i] != (int)expected[i])
            fail_msg("picture %d, %s: byte %zu is %d, expected %d", n, what, i, got[i], (int)expected[i]);
    free(expected);
}

static int set_up(void **state)
{
    (void)state;
    golden = golden_open("resize");
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    wt_close(golden);
    return 0;
}

TEST_GROUP(set_up, tear_down)

TEST_CASE(bytes_are_pillows)
{
    static const char *const names[] = {"bilinear", "bicubic", "lanczos"};
    for (int n = 0; n < CASES; n++) {
        eval_picture p;
        int width, height;
        uint8_t *rgb = picture_of(n, &p, &width, &height);
        const size_t count = (size_t)width * (size_t)height * 3;
        uint8_t *got = malloc(count);
        for (int f = EVAL_BILINEAR; f <= EVAL_LANCZOS; f++) {
            memset(got, 0xaa, count);
            assert_int_equal(eval_resize_bytes(&p, (eval_filter)f, width, height, got, NULL), MAR_OK);
            assert_bytes(n, names[f], got, count);
        }
        free(got);
        free(rgb);
    }
}

TEST_CASE(squares_are_clips)
{
    for (int n = 0; n < CASES; n++) {
        uint8_t got[SIDE * SIDE * 3];
        eval_picture p;
        int width, height;
        uint8_t *rgb = picture_of(n, &p, &width, &height);
        memset(got, 0xaa, sizeof got);
        assert_int_equal(eval_resize_square(&p, EVAL_BICUBIC, SIDE, 0, got, NULL), MAR_OK);
        assert_bytes(n, "square", got, sizeof got);
        free(rgb);
    }
}

TEST_CASE(floats_are_clean_fids)
{
    for (int n = 0; n < CASES; n++) {
        eval_picture p;
        int width, height;
        uint8_t *rgb = picture_of(n, &p, &width, &height);
        const size_t count = (size_t)width * (size_t)height * 3;
        float *got = malloc(count * sizeof *got), *expected = numbers(n, "clean", (int64_t)count);
        assert_int_equal(eval_resize_floats(&p, EVAL_BICUBIC, width, height, got, NULL), MAR_OK);
        for (size_t i = 0; i < count; i++)
            if (!(fabsf(got[i] - expected[i]) <= 1e-4f))
                fail_msg("picture %d: number %zu is %.9g, expected %.9g", n, i, (double)got[i], (double)expected[i]);
        free(expected);
        free(got);
        free(rgb);
    }
}

/* Only the middle of a very long picture is computed. */
TEST_CASE(extreme_shape)
{
    const eval_picture p = {.rgb = calloc(EVAL_SIDE_MAX, 3), .width = 1, .height = EVAL_SIDE_MAX};
    uint8_t *got = malloc(224 * 224 * 3);
    assert_true(p.rgb && got);
    memset((uint8_t *)(uintptr_t)p.rgb, 77, (size_t)EVAL_SIDE_MAX * 3);
    assert_int_equal(eval_resize_square(&p, EVAL_BICUBIC, 224, 0, got, NULL), MAR_OK);
    for (int i = 0; i < 224 * 224 * 3; i++) assert_int_equal(got[i], 77);
    free((uint8_t *)(uintptr_t)p.rgb);
    free(got);
}
