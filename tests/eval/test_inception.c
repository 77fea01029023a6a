/* Inception-v3 below the public calls. Checks the requirements on its files, and that an image's numbers do not depend
 * on the others of its batch. tests/mar/test_features.c checks the numbers themselves. */
#include "tests/support/archive.h"
#include "tests/support/inception.h"

#include "eval/inception.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Makes the small network as a safetensors file in memory. */
static bytes small_network(void)
{
    char *path = test_path("small.safetensors");
    wt_file *golden = golden_open("inception");
    inception_write(golden, "small", path);
    wt_close(golden);
    const bytes b = bytes_from_file(path);
    return b;
}

static wt_file *open_bytes(const bytes *b)
{
    wt_file *f = NULL;
    mar_err err = {0};
    assert_ok(wt_open_memory(b->data, b->size, "net", &f, &err), &err);
    return f;
}

/* Replaces the first `old` of the header by `new`, which has the same length. */
static void edit(bytes *b, const char *old, const char *new)
{
    uint8_t *at = memmem(b->data, b->size < 100000 ? b->size : 100000, old, strlen(old));
    assert_non_null(at);
    assert_int_equal(strlen(old), strlen(new));
    memcpy(at, new, strlen(new));
}

/* Returns the address of a tensor's first float. */
static float *first_float(bytes *b, const char *name)
{
    wt_file *f = open_bytes(b);
    const wt_tensor *t = wt_find(f, name);
    assert_non_null(t);
    float *at = (float *)(void *)(b->data + t->offset);
    wt_close(f);
    return at;
}

/* Edits a network in one place, and checks that it is refused with these words. */
static void refuse(const char *old, const char *new, const char *words)
{
    bytes b = small_network();
    edit(&b, old, new);
    wt_file *f = open_bytes(&b);
    eval_inception *e = NULL;
    mar_err err = {0};
    kern_queue *k = open_queue(MAR_DTYPE_F32, 1);
    assert_int_equal(eval_inception_create(k, f, 1, &e, &err), MAR_EMODEL);
    assert_null(e);
    if (strncmp(err.text, "net: ", 5) != 0 || !strstr(err.text, words))
        fail_msg("\"%s\" does not say \"%s\"", err.text, words);
    close_queue(k);
    wt_close(f);
    bytes_free(&b);
}

TEST_CASE(misfits_are_named)
{
    refuse("\"Mixed_5c.branch5x5_2.conv.weight\"", "\"Mixed_5c.branch5x5_2.CONV.weight\"",
           "tensor Mixed_5c.branch5x5_2.conv.weight is missing, expected shape [1..65536, 6, 5, 5]");
    refuse("\"Mixed_7a.branch3x3_1.bn.running_var\"", "\"Mixed_7a.branch3x3_1.bn.running_VAR\"",
           "Mixed_7a.branch3x3_1.bn.running_var");
    refuse("\"fc.weight\"", "\"fc.WEIGHT\"", "tensor fc.weight is missing, expected shape [classes, 256]");
    refuse("[1008,256]", "[2016,128]", "tensor fc.weight has shape [2016, 128], expected [1..65536, 256]");
    refuse("[4,4,3,3]", "[6,6,2,2]",
           "tensor Conv2d_2a_3x3.conv.weight has shape [6, 6, 2, 2], expected [1..65536, 4, 3, 3]");
    refuse("[24,20,1,7]", "[24,20,7,1]", "expected [1..65536, ");
}

/* torchvision's own network has other weights and would give another distance. */
TEST_CASE(torchvision_is_refused)
{
    static const char header[] =
        "{\"AuxLogits.fc.weight\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]},"
        "\"Mixed_5b.branch1x1.conv.weight\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[4,8]}}";
    bytes b = make_safetensors(header, 8);
    wt_file *f = open_bytes(&b);
    eval_inception_config config;
    mar_err err = {0};
    assert_int_equal(eval_inception_recognise(f), 1);
    assert_int_equal(eval_inception_derive(f, &config, &err), MAR_EMODEL);
    assert_non_null(strstr(err.text, "net: is torchvision's own Inception-v3"));
    wt_close(f);
    bytes_free(&b);
}

TEST_CASE(bad_numbers_are_named)
{
    static const struct {
        const char *name;
        float value;
        const char *words;
    } bad[] = {
        {"Mixed_6b.branch7x7_2.bn.running_var", -0.5f, "Mixed_6b.branch7x7_2.bn.running_var has -0.5 at [0]"},
        {"Mixed_6b.branch7x7_2.bn.running_mean", NAN, "Mixed_6b.branch7x7_2.bn.running_mean"},
        {"Conv2d_4a_3x3.conv.weight", INFINITY, "Conv2d_4a_3x3.conv.weight"},
        {"fc.weight", NAN, "fc.weight"},
    };
    kern_queue *k = open_queue(MAR_DTYPE_F32, 1);
    bytes b = small_network();
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        float *at = first_float(&b, bad[i].name), before = *at;
        eval_inception *e;
        mar_err err = {0};
        *at = bad[i].value;
        wt_file *f = open_bytes(&b);
        assert_int_equal(eval_inception_create(k, f, 1, &e, &err), MAR_EMODEL);
        if (!strstr(err.text, bad[i].words)) fail_msg("\"%s\" does not say \"%s\"", err.text, bad[i].words);
        wt_close(f);
        *at = before;
    }
    bytes_free(&b);
    close_queue(k);
}

typedef struct {
    float features[7][256], logits[7][1008], spatial[7][17 * 17 * 7];
} outputs;

static void run(eval_inception *e, kern_queue *k, const uint8_t *rgb, int first, int n, outputs *out)
{
    mar_err err = {0};
    const size_t bytes_each = (size_t)INCEPTION_SIDE * INCEPTION_SIDE * 3;
    eval_picture pictures[7];
    for (int i = 0; i < n; i++)
        pictures[i] = (eval_picture){rgb + (size_t)(first + i) * bytes_each, INCEPTION_SIDE, INCEPTION_SIDE};
    assert_ok(eval_inception_run(e, pictures, n, EVAL_INCEPTION_TF1, out->features[first], out->logits[first],
                                 out->spatial[first], &err),
              &err);
    assert_ok(kern_check(k, &err), &err);
}

static void assert_same(const outputs *a, const outputs *b)
{
    assert_memory_equal(a->features, b->features, sizeof a->features);
    assert_memory_equal(a->spatial, b->spatial, sizeof a->spatial);
    assert_memory_equal(a->logits, b->logits, sizeof a->logits);
}

/* Checks the same bits in batches of any size, with any number of threads, and after other images. */
TEST_CASE(batches_do_not_matter)
{
    enum { IMAGES = 7 };
    static uint8_t rgb[IMAGES * INCEPTION_SIDE * INCEPTION_SIDE * 3];
    static outputs whole, parts;
    bytes b = small_network();
    inception_images(0, IMAGES, rgb);
    for (int dtype = MAR_DTYPE_F32; dtype <= MAR_DTYPE_BF16; dtype++) {
        for (int threads = 1; threads <= 3; threads += 2) {
            kern_queue *k = open_queue((mar_dtype)dtype, threads);
            if (!k) continue; /* no bf16 on this processor */
            wt_file *f = open_bytes(&b);
            eval_inception *e = NULL;
            mar_err err = {0};
            assert_ok(eval_inception_create(k, f, IMAGES, &e, &err), &err);
            wt_close(f);
            if (threads == 1) run(e, k, rgb, 0, IMAGES, &whole);
            run(e, k, rgb, 0, IMAGES, &parts);
            assert_memory_equal(&parts, &whole, sizeof whole);
            for (int i = 0; i < IMAGES; i++) run(e, k, rgb, i, 1, &parts);
            assert_same(&parts, &whole);
            memset(&parts, 0, sizeof parts);
            run(e, k, rgb, 5, 2, &parts);
            run(e, k, rgb, 0, 5, &parts);
            assert_same(&parts, &whole);
            const eval_picture one = {rgb, INCEPTION_SIDE, INCEPTION_SIDE};
            assert_ok(eval_inception_run(e, &one, 1, EVAL_INCEPTION_TF1, NULL, NULL, parts.spatial[0], &err), &err);
            assert_memory_equal(parts.spatial[0], whole.spatial[0], sizeof whole.spatial[0]);
            eval_inception_free(e);
            close_queue(k);
        }
    }
    bytes_free(&b);
}
