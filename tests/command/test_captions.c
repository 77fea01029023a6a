/* Features of captions from files: padding in front, padding behind, missing captions, one caption or several. Every
 * other file is refused in one line that says why. */
#include "tests/support/command.h"

#include "tools/generate/captions.h"
#include "weights/npz.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { TOKENS = 4, DIM = 3, MOST = 2 * 5 * DIM };

static char why[NPZ_WHY_MAX];

/* Writes DIR/c.npz of features [n][positions][DIM] = 1, 2, 3, ... and, if `mask` is not NULL, the mask [n][positions].
 * */
static char *write_file(const char *directory, int n, int positions, int dim, const float *mask, float first)
{
    float features[MOST];
    const int64_t shape[] = {n, positions, dim};
    npz_writer *w;
    char *path;
    assert_true(asprintf(&path, "%s/c.npz", directory) > 0);
    for (int i = 0; i < n * positions * dim; i++) features[i] = first + (float)i;
    assert_int_equal(npz_writer_open(path, 0, &w, why), MAR_OK);
    assert_int_equal(npz_writer_add(w, "features", NPZ_F32, 3, shape, features, why), MAR_OK);
    if (mask) assert_int_equal(npz_writer_add(w, "mask", NPZ_F32, 2, shape, mask, why), MAR_OK);
    assert_int_equal(npz_writer_commit(w, why), MAR_OK);
    return path;
}

/* Checks that caption i has features first, first + 1, ... at its last n positions, and zeros before them. */
static void check_caption(const captions *c, int i, int n, float first)
{
    float x[TOKENS * DIM];
    uint8_t mask[TOKENS];
    captions_place(c, i, x, mask);
    captions one = {.tokens = TOKENS, .dim = DIM, .list = calloc(1, sizeof *one.list)};
    assert_int_equal(captions_add(&one, 1, x, mask, (char *[]){NULL}), 0);
    assert_true(captions_sum(&one, 0) == captions_sum(c, i));
    captions_free(&one);
    for (int p = 0; p < TOKENS; p++) {
        assert_int_equal(mask[p], p >= TOKENS - n);
        for (int k = 0; k < DIM; k++) {
            const float expected = p < TOKENS - n ? 0 : first + (float)((p - (TOKENS - n)) * DIM + k);
            assert_true(x[p * DIM + k] == expected);
        }
    }
}

COMMAND_CASE(padding)
{
    const float mask[] = {1, 1, 0, 0, 0, 1, 1, 1};
    captions c;
    char *path = write_file(*state, 2, TOKENS, DIM, mask, 1);
    assert_int_equal(captions_read(path, TOKENS, DIM, &c), 0);
    assert_int_equal(c.count, 2);
    check_caption(&c, 0, 2, 1);                      /* padded behind, as in T5 */
    check_caption(&c, 1, 3, 1 + (TOKENS + 1) * DIM); /* padded in front */
    captions_free(&c);
    free(path);
    path = write_file(*state, 1, 2, DIM, NULL, 5); /* shorter than the model's, without a mask */
    assert_int_equal(captions_read(path, TOKENS, DIM, &c), 0);
    check_caption(&c, 0, 2, 5);
    captions_free(&c);
    free(path);
}

/* Reads a .npy of one caption, as numpy.save writes it. */
COMMAND_CASE(one_array)
{
    static const char header[] = "\x93NUMPY\x01\x00\x76\x00{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }";
    char file[128 + 2 * DIM * sizeof(float)];
    const float features[2 * DIM] = {1, 2, 3, 4, 5, 6};
    captions c;
    memset(file, ' ', 128);
    memcpy(file, header, sizeof header - 1);
    file[127] = '\n';
    memcpy(file + 128, features, sizeof features);
    write_whole_file(*state, "c.npy", file, sizeof file);
    assert_int_equal(captions_read(path_in(*state, "c.npy"), TOKENS, DIM, &c), 0);
    assert_int_equal(c.count, 1);
    check_caption(&c, 0, 2, 1);
    captions_free(&c);
}

/* Checks that reading fails with one line that contains `words`, and leaves no captions. */
static void refused(char *path, const char *words)
{
    captions c;
    capture_begin();
    command_result r = capture_end(captions_read(path, TOKENS, DIM, &c));
    assert_int_equal(r.status, 1);
    assert_true(!c.list && !c.blocks && c.count == 0);
    if (!strstr(r.err, words) || strchr(r.err, '\n') != r.err + strlen(r.err) - 1)
        fail_msg("\"%s\", expected one line with \"%s\"", r.err, words);
    command_result_free(&r);
    free(path);
}

COMMAND_CASE(bad_files)
{
    const float gap[] = {1, 0, 1, 0}, half[] = {0, 0.5f, 1, 0}, none[4] = {0}, longer[] = {1, 1, 1, 1, 1};
    refused(strdup("/nowhere/c.npz"), "cannot open");
    refused(write_file(*state, 1, TOKENS, DIM + 1, NULL, 1), "features of 4 numbers");
    refused(write_file(*state, 1, 5, DIM, NULL, 1), "caption 0 has 5 positions, expected 4 at most");
    refused(write_file(*state, 1, 5, DIM, longer, 1), "caption 0 has 5 positions, expected 4 at most");
    refused(write_file(*state, 1, TOKENS, DIM, gap, 1), "the mask of caption 0 is 0 at position 1");
    refused(write_file(*state, 1, TOKENS, DIM, half, 1), "is 0.5 at position 1");
    refused(write_file(*state, 1, TOKENS, DIM, none, 1), "has no 1");
    refused(write_file(*state, 1, TOKENS, DIM, NULL, NAN), "caption 0 has a feature that is no number");
}
