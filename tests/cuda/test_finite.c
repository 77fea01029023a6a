/* Non-finite numbers on an asynchronous device (tests/mar/test_finite.c). The batch fails when it is finished, or at
 * the step with check. check finds the layer even in a chain run by a persistent kernel. It changes no bit. */
#include "mar.h"
#include "mar/core/handle.h"
#include "tests/support/masked.h"
#include "tests/support/device.h"
#include "tests/support/changed.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    SEQ = 64,
    CHANNELS = 8,
    BATCH = 1,
    TOKENS = BATCH * SEQ * CHANNELS,
    BYTES = BATCH * 32 * 32 * 3
}; /* of the demo */

static const float huge = 3e38f;

static mar_session *open_session(const library *l, const char *options, int draft, int check)
{
    mar_session *s = NULL;
    mar_params p = params_with(options);
    p.check = check;
    p.draft = draft ? l->draft : NULL;
    assert_library(l->m, mar_session_create(l->model, l->vae, &p, BATCH, &s));
    return s;
}

static mar_status run(mar_session *s, int class)
{
    mar_status status = mar_session_begin(s, 5, (int[]){class}, BATCH);
    while (status == MAR_OK && !mar_session_done(s)) status = mar_session_step(s);
    return status;
}

/* In bf16 without guidance, one token per image at a time suits the persistent kernels. */
static const struct {
    const char *options;
    int draft;
} ways[] = {
    {"num_iter 2, cfg 1, diff_annealing linear, diff_upper_steps 4, diff_lower_steps 3", 0},
    {"num_iter 2, num_sampling_steps 4, cfg 2, sampler dpmpp", 0},
    {"num_iter 2, cfg 2, diff_annealing linear, diff_upper_steps 5, diff_lower_steps 4, head_spec 2", 0},
    {"num_iter 2, num_sampling_steps 4, cfg 2, head_spec 2", 1},
    {"num_iter 2, num_sampling_steps 4, cfg 2, gamma 2, prefill 0, spec conditional", 1},
};
enum { WAYS = sizeof ways / sizeof *ways };

static void check_changes_no_bit(void **state)
{
    (void)state;
    library l = open_library(MAR_BACKEND_CUDA, MAR_DTYPE_BF16, "demo", "demo-draft", "demo");
    for (int w = 0; w < WAYS; w++) {
        static uint8_t rgb[2][BYTES];
        float tokens[2][TOKENS];
        for (int check = 0; check < 2; check++) {
            mar_session *s = open_session(&l, ways[w].options, ways[w].draft, check);
            assert_session(s, run(s, 3));
            assert_session(s, mar_session_tokens(s, tokens[check]));
            if (w == 0) assert_session(s, mar_session_images(s, rgb[check]));
            mar_session_free(s);
        }
        assert_memory_equal(tokens[1], tokens[0], sizeof tokens[0]);
        assert_memory_equal(rgb[1], rgb[0], sizeof rgb[0]);
    }
    close_library(&l);
}

/* Checks the failure with the first `count` sets of options, all of the tensor being `value`. */
static void fail_in_ways(int count, const char *directory, const char *tensor, float value, const char *layer)
{
    mar *m = open_mar(MAR_DTYPE_F32, 1);
    char *path = write_changed(m, directory, "changed.safetensors", "demo", tensor, 0, 0, value);
    library l = open_library(MAR_BACKEND_CUDA, MAR_DTYPE_BF16, path, "demo-draft", "demo");
    for (int w = 0; w < count; w++)
        for (int check = w > 0 && cuda_test_brief(); check < 2; check++) {
            mar_session *s = open_session(&l, ways[w].options, ways[w].draft, check);
            if (run(s, 3) != MAR_EMODEL) fail_msg("%s with %s is no failure", tensor, ways[w].options);
            const char *text = mar_session_error(s);
            if (strncmp(text, "image 5, step 0: a token is ", 28) != 0) fail_msg("\"%s\"", text);
            if (!strstr(text, check ? layer : "); --check names the first layer")) fail_msg("%s: %s", tensor, text);
            mar_session_free(s);
        }
    close_library(&l);
    mar_close(m);
    free(path);
}

static void token_and_layer_are_named(void **state)
{
    char *directory = temporary_directory();
    (void)state;
    fail_in_ways(1, directory, "decoder_blocks.1.attn.proj.weight", huge, ": decoder_blocks.1.attn.proj");
    /* a weight so large would put the head in f32 when it is loaded; these numbers overflow FP16 in a block later */
    fail_in_ways(WAYS, directory, "diffusion_pos_embed_learned", 1e4f, ": diffloss.net.res_blocks.");
    fail_in_ways(1, directory, "diffloss.net.final_layer.linear.weight", huge, ": diffloss.net.final_layer");
    remove_directory(directory);
    free(directory);
}

/* Checks that data left in the images by a failed batch do not make the next one fail. */
static void a_later_batch_is_not_concerned(void **state)
{
    enum { WIDTH = 64 };
    char *directory = temporary_directory();
    (void)state;
    mar *m = open_mar(MAR_DTYPE_F32, 1);
    char *path = write_changed(m, directory, "class.safetensors", "demo", "class_emb.weight", 4L * WIDTH, WIDTH, huge);
    library good = open_library(MAR_BACKEND_CUDA, MAR_DTYPE_BF16, "demo", "demo-draft", "demo"),
            bad = open_library(MAR_BACKEND_CUDA, MAR_DTYPE_BF16, path, "demo-draft", "demo");
    for (int check = 0; check < 2; check++) {
        float expected[TOKENS], tokens[TOKENS];
        mar_session *s = open_session(&good, ways[0].options, 0, 0);
        assert_session(s, run(s, 3));
        assert_session(s, mar_session_tokens(s, expected));
        mar_session_free(s);
        s = open_session(&bad, ways[0].options, 0, check);
        assert_int_equal(run(s, 4), MAR_EMODEL);
        assert_session(s, run(s, 3));
        assert_session(s, mar_session_tokens(s, tokens));
        assert_memory_equal(tokens, expected, sizeof tokens);
        mar_session_free(s);
    }
    close_library(&good);
    close_library(&bad);
    mar_close(m);
    remove_directory(directory);
    free(directory);
    free(path);
}

static void the_pixel_is_named(void **state)
{
    static uint8_t rgb[BYTES];
    char *directory = temporary_directory();
    (void)state;
    mar *m = open_mar(MAR_DTYPE_F32, 1);
    char *path =
        write_changed(m, directory, "vae.safetensors", "demo-vae", "decoder.up.1.block.0.conv1.weight", 0, 0, huge);
    library l = open_library(MAR_BACKEND_CUDA, MAR_DTYPE_BF16, "demo", "demo-draft", path);
    for (int check = 0; check < 2; check++) {
        mar_session *s = open_session(&l, ways[0].options, 0, check);
        assert_session(s, run(s, 3));
        assert_int_equal(mar_session_images(s, rgb), MAR_EMODEL);
        const char *text = mar_session_error(s);
        assert_non_null(strstr(text, "image 5: the image decoder's output is "));
        assert_non_null(strstr(text, check ? ": decoder.up.1.block.0.conv1" : "; --check names the first layer"));
        mar_session_free(s);
    }
    close_library(&l);
    mar_close(m);
    remove_directory(directory);
    free(directory);
    free(path);
}

static void count_images(void *user, mar_session *s, const mar_progress *p)
{
    (void)s;
    *(int *)user = p->images;
}

/* Checks that the non-finite image of a batch decoded together is named. Images before it are complete, and were
 * reported. */
static void the_image_of_a_batch_is_named(void **state)
{
    enum { IMAGES = 5, IMAGE = 32 * 32 * 3 };
    static uint8_t good[IMAGES * IMAGE], rgb[IMAGES * IMAGE];
    const int classes[IMAGES] = {3, 4, 5, 6, 7};
    (void)state;
    library l = open_library(MAR_BACKEND_CUDA, MAR_DTYPE_BF16, "demo", "demo-draft", "demo");
    const size_t budget = l.m->device->image_budget;
    for (int pass = 3; pass <= (cuda_test_brief() ? 3 : IMAGES); pass += 2) { /* three images at a time, then all */
        mar_session *s = NULL;
        const mar_params p = params_with("num_iter 1, num_sampling_steps 2, cfg 1, sampler dpmpp");
        l.m->device->image_budget = (size_t)pass * 3 * 32 * 32 * 32 * sizeof(float) - 1; /* sized by its streams */
        assert_library(l.m, mar_session_create(l.model, l.vae, &p, IMAGES, &s));
        assert_session(s, mar_session_begin(s, 5, classes, IMAGES));
        while (!mar_session_done(s)) assert_session(s, mar_session_step(s));
        assert_session(s, mar_session_images(s, good));
        for (int bad = pass == 3 ? 1 : 4; bad < IMAGES; bad += 3) {
            char name[64];
            int told = 0;
            const float nan = NAN;
            mar_masked *g = mar_masked_of(s);
            float *token = g->slots.tokens + (size_t)bad * SEQ * CHANNELS + 77;
            g->k->core->upload(g->k, token, &nan, sizeof nan);
            mar_session_on_progress(s, count_images, &told);
            memset(rgb, 1, sizeof rgb);
            assert_int_equal(mar_session_images(s, rgb), MAR_EMODEL);
            snprintf(name, sizeof name, "image %d: the image decoder's output is NaN at pixel (", 5 + bad);
            assert_non_null(strstr(mar_session_error(s), name));
            assert_int_equal(told, bad);
            assert_memory_equal(rgb, good, (size_t)bad * IMAGE);
            mar_session_on_progress(s, NULL, NULL);
            assert_session(s, mar_session_begin(s, 5, classes, IMAGES));
            while (!mar_session_done(s)) assert_session(s, mar_session_step(s));
            assert_session(s, mar_session_images(s, rgb));
            assert_memory_equal(rgb, good, sizeof good);
        }
        mar_session_free(s);
    }
    l.m->device->image_budget = budget;
    close_library(&l);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(check_changes_no_bit),           cmocka_unit_test(token_and_layer_are_named),
        cmocka_unit_test(a_later_batch_is_not_concerned), cmocka_unit_test(the_pixel_is_named),
        cmocka_unit_test(the_image_of_a_batch_is_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
