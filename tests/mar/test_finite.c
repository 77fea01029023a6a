/* Tests non-finite numbers. A batch with one in a token or a pixel fails, and one line says where. With check it also
 * names the first layer with a non-finite output. */
#include "tests/support/brief.h"

#include "mar_measure.h"
#include "tests/support/changed.h"
#include "tests/support/demo.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { IMAGES = 2, TOKENS = DEMO_TOKENS, WIDTH = 64 /* width of the demo's transformer */ };

static const float huge = 3e38f; /* finite, but products overflow */

/* Opens the demo with huge weights in one tensor. The models are loaded from `file`, which the caller removes. */
static demo open_changed(const char *directory, const char *tensor)
{
    demo d = demo_open(1);
    char *path = write_changed(d.m, directory, "changed.safetensors", "demo", tensor, 0, 0, huge);
    mar_model_free(d.model);
    assert_library(d.m, mar_model_load(d.m, path, 0, &d.model));
    free(path);
    return d;
}

static mar_session *session_with(const demo *d, int run, int check)
{
    mar_params p = demo_params(d, run);
    p.check = check;
    return demo_session(d, &p, IMAGES);
}

static const struct {
    const char *tensor;
    const char *layer; /* first layer with a non-finite output */
} weights[] = {
    {"z_proj_ln.weight", "z_proj_ln"},
    {"encoder_blocks.0.norm1.weight", "encoder_blocks.0.norm1"},
    {"encoder_blocks.0.attn.qkv.weight", "encoder_blocks.0.attn.qkv"},
    {"encoder_blocks.1.attn.proj.weight", "encoder_blocks.1.attn.proj"},
    {"encoder_blocks.1.mlp.fc1.weight", "encoder_blocks.1.mlp.fc1"},
    {"encoder_blocks.1.mlp.fc2.weight", "encoder_blocks.1.mlp.fc2"},
    {"decoder_embed.weight", "decoder_embed"},
    {"decoder_blocks.0.attn.qkv.bias", "decoder_blocks.0.attn"},
    {"decoder_blocks.0.mlp.fc2.weight", "decoder_blocks.0.mlp.fc2"},
    {"decoder_blocks.1.attn.qkv.weight", "decoder_blocks.1.attn.qkv"},
    {"decoder_blocks.1.attn.proj.weight", "decoder_blocks.1.attn.proj"},
    {"decoder_norm.weight", "decoder_norm"},
    {"diffloss.net.cond_embed.weight", "diffloss.net.cond_embed"},
    {"diffloss.net.time_embed.mlp.2.weight", "diffloss.net.time_embed"},
    {"diffloss.net.res_blocks.1.adaLN_modulation.1.weight", "diffloss.net.res_blocks.1.adaLN_modulation.1"},
    {"diffloss.net.res_blocks.0.in_ln.weight", "diffloss.net.res_blocks.0.adaLN_modulation.1"}, /* folded into it */
    {"diffloss.net.input_proj.weight", "diffloss.net.input_proj"},
    {"diffloss.net.res_blocks.0.mlp.0.weight", "diffloss.net.res_blocks.0"},
    {"diffloss.net.res_blocks.1.mlp.2.weight", "diffloss.net.res_blocks.1"},
    {"diffloss.net.final_layer.adaLN_modulation.1.weight", "diffloss.net.final_layer.adaLN_modulation.1"},
    {"diffloss.net.final_layer.linear.weight", "diffloss.net.final_layer"},
};

/* Returns whether the text ends with a layer's name, with or without the diffusion step. */
static int names_layer(const char *text, const char *layer)
{
    const char *at = strstr(text, "; the first layer whose output is not finite: ");
    if (!at) return 0;
    at = strstr(at, ": ") + 2;
    const size_t n = strlen(layer);
    return strncmp(at, layer, n) == 0 && (at[n] == '\0' || strncmp(at + n, " at diffusion step ", 19) == 0);
}

/* Returns the step in "image 5, step 3: a token is NaN (position 40, channel 2)". Sets *rest to the text that follows.
 * Fails the test if the line differs. */
static int token_step(const char *text, const char **rest)
{
    int image, step, position, channel, length = 0;
    char kind[16];
    if (sscanf(text, "image %d, step %d: a token is %15s (position %d, channel %d)%n", &image, &step, kind, &position,
               &channel, &length) != 5 ||
        length == 0)
        fail_msg("\"%s\" names no token", text);
    assert_true(strcmp(kind, "NaN") == 0 || strcmp(kind, "infinite") == 0);
    assert_in_range(image, DEMO_FIRST, DEMO_FIRST + IMAGES - 1);
    assert_in_range(position, 0, DEMO_SEQ - 1);
    assert_in_range(channel, 0, DEMO_CHANNELS - 1);
    *rest = text + length;
    return step;
}

/* Breaks every layer in turn, each in some of the runs. Each run meets many layers. */
TEST_CASE(the_token_and_the_layer_are_named)
{
    char *directory = test_directory();
    for (size_t i = 0; i < sizeof weights / sizeof *weights; i++) {
        demo d = open_changed(directory, weights[i].tensor);
        const int apart = test_all ? 4 : 8;
        for (int w = (int)i % apart; w < DEMO_RUNS; w += apart)
            for (int check = 0; check < 2; check++) {
                const char *rest;
                mar_session *s = session_with(&d, w, check);
                const mar_status status = demo_run(s, IMAGES);
                if (status != MAR_EMODEL)
                    fail_msg("%s with %s: %s", weights[i].tensor, demo_runs[w].options, mar_status_name(status));
                token_step(mar_session_error(s), &rest);
                if (!check)
                    assert_string_equal(rest, "; --check names the first layer whose output is not finite");
                else if (!names_layer(rest, weights[i].layer))
                    fail_msg("%s with %s: %s, expected %s", weights[i].tensor, demo_runs[w].options,
                             mar_session_error(s), weights[i].layer);
                demo_assert_dropped(s, "failed, begin another first: image ");
                assert_int_equal(demo_run(s, IMAGES), MAR_EMODEL); /* a repeated batch fails again */
                mar_session_free(s);
            }
        demo_close(d);
    }
}

/* Checks the reported step. Tokens are added to the known ones after the step that predicts them. Tokens that depend on
 * them belong to the next step. */
TEST_CASE(the_step_is_the_first_with_such_a_token)
{
    char *directory = test_directory();
    const char *rest;
    demo d = open_changed(directory, "z_proj.weight");
    mar_session *s = session_with(&d, 0, 0);
    assert_int_equal(demo_run(s, IMAGES), MAR_EMODEL);
    assert_int_equal(token_step(mar_session_error(s), &rest), 1);
    mar_session_free(s);
    s = session_with(&d, 0, 1); /* check finds it before any token is non-finite */
    assert_int_equal(demo_run(s, IMAGES), MAR_EMODEL);
    assert_string_equal(mar_session_error(s), "images 5 to 6, step 0: the output of z_proj is not finite, although all "
                                              "tokens so far are");
    mar_session_free(s);
    demo_close(d);
}

/* Breaks one image of the batch, by its class. The next batch, without that class, equals the unchanged model's. */
TEST_CASE(a_later_batch_is_not_concerned)
{
    char *directory = test_directory();
    const demo good = demo_open(1);
    demo bad = demo_open(1);
    char *path =
        write_changed(bad.m, directory, "class.safetensors", "demo", "class_emb.weight", 4L * WIDTH, WIDTH, huge);
    mar_model_free(bad.model);
    assert_library(bad.m, mar_model_load(bad.m, path, 0, &bad.model));
    for (int w = 0; w < DEMO_RUNS; w++)
        for (int check = 0; check < 2; check++) {
            if (!test_all && check != w % 2) continue;
            float expected[IMAGES * TOKENS], tokens[IMAGES * TOKENS];
            const int wrong[IMAGES] = {7, 4}, right[IMAGES] = {2, 8};
            mar_session *s = session_with(&good, w, 0);
            assert_session(s, mar_session_begin(s, 9, right, IMAGES));
            demo_finish(s);
            assert_session(s, mar_session_tokens(s, expected));
            mar_session_free(s);
            s = session_with(&bad, w, check);
            mar_status status = mar_session_begin(s, 9, wrong, IMAGES);
            while (status == MAR_OK && !mar_session_done(s)) status = mar_session_step(s);
            assert_int_equal(status, MAR_EMODEL);
            assert_says(mar_session_error(s), "image 10, step ");
            if (check) assert_true(names_layer(mar_session_error(s), "z_proj_ln"));
            assert_session(s, mar_session_begin(s, 9, right, IMAGES));
            demo_finish(s);
            assert_session(s, mar_session_tokens(s, tokens));
            assert_memory_equal(tokens, expected, sizeof tokens);
            mar_session_free(s);
        }
    free(path);
    demo_close(bad);
    demo_close(good);
}

/* Checks that the draft's name precedes its layers' names. Without check such a draft costs time but changes no
 * distribution: all its tokens are replaced. */
TEST_CASE(the_draft_s_layers_are_told_apart)
{
    char *directory = test_directory();
    demo d = demo_open(1);
    char *path =
        write_changed(d.m, directory, "draft.safetensors", "demo-draft", "diffloss.net.cond_embed.weight", 0, 0, huge);
    mar_model_free(d.draft);
    assert_library(d.m, mar_model_load(d.m, path, 0, &d.draft));
    for (int w = 0; w < DEMO_RUNS; w++) {
        float tokens[IMAGES * TOKENS];
        if (!demo_runs[w].draft) continue;
        mar_session *s = session_with(&d, w, 1);
        assert_int_equal(demo_run(s, IMAGES), MAR_EMODEL);
        assert_says(mar_session_error(s), "the output of draft: diffloss.net.cond_embed is not finite");
        mar_session_free(s);
        mar_stats stats = {.size = sizeof stats};
        s = session_with(&d, w, 0);
        demo_generate(s, IMAGES, tokens);
        mar_session_get_stats(s, &stats);
        assert_true(stats.drafted + stats.proposals > 0);
        assert_int_equal(stats.accepted + stats.proposals_accepted, 0);
        mar_session_free(s);
    }
    free(path);
    demo_close(d);
}

TEST_CASE(check_changes_no_bit)
{
    const demo d = demo_open(1);
    for (int w = 0; w < DEMO_RUNS; w++) {
        static uint8_t rgb[2][IMAGES * DEMO_BYTES];
        float tokens[2][IMAGES * TOKENS];
        for (int check = 0; check < 2; check++) {
            mar_session *s = session_with(&d, w, check);
            demo_generate(s, IMAGES, tokens[check]);
            assert_session(s, mar_session_images(s, rgb[check]));
            mar_session_free(s);
        }
        assert_memory_equal(tokens[1], tokens[0], sizeof tokens[0]);
        assert_memory_equal(rgb[1], rgb[0], sizeof rgb[0]);
    }
    demo_close(d);
}

static const struct {
    const char *tensor, *layer;
} decoder_weights[] = {
    {"post_quant_conv.weight", "post_quant_conv"},
    {"decoder.conv_in.weight", "decoder.conv_in"},
    {"decoder.mid.block_1.norm1.weight", "decoder.mid.block_1.norm1"},
    {"decoder.mid.attn_1.k.weight", "decoder.mid.attn_1.k"},
    {"decoder.mid.attn_1.q.bias", "decoder.mid.attn_1"},
    {"decoder.mid.attn_1.proj_out.weight", "decoder.mid.attn_1.proj_out"},
    {"decoder.up.2.block.1.conv1.weight", "decoder.up.2.block.1.conv1"},
    {"decoder.up.2.upsample.conv.weight", "decoder.up.2.upsample.conv"},
    {"decoder.up.1.block.0.nin_shortcut.weight", "decoder.up.1.block.0.nin_shortcut"},
    {"decoder.up.0.block.1.conv2.weight", "decoder.up.0.block.1.conv2"},
    {"decoder.norm_out.weight", "decoder.norm_out"},
    {"decoder.conv_out.weight", "decoder.conv_out"},
};

TEST_CASE(the_pixel_and_the_decoder_s_layer_are_named)
{
    char *directory = test_directory();
    static uint8_t rgb[IMAGES * DEMO_BYTES];
    float expected[IMAGES * TOKENS], tokens[IMAGES * TOKENS];
    demo d = demo_open(1);
    mar_session *s = session_with(&d, 0, 0);
    demo_generate(s, IMAGES, expected);
    mar_session_free(s);
    for (size_t i = 0; i < sizeof decoder_weights / sizeof *decoder_weights; i++) {
        char *path =
            write_changed(d.m, directory, "vae.safetensors", "demo-vae", decoder_weights[i].tensor, 0, 0, huge);
        mar_vae_free(d.vae);
        assert_library(d.m, mar_vae_load(d.m, path, &d.vae));
        free(path);
        for (int check = i > 0 && !test_all; check < 2; check++) {
            s = session_with(&d, 0, check);
            demo_generate(s, IMAGES, tokens);
            assert_memory_equal(tokens, expected, sizeof tokens);
            if (mar_session_images(s, rgb) != MAR_EMODEL) fail_msg("%s makes pictures", decoder_weights[i].tensor);
            int x = -1, y = -1;
            const char *text = mar_session_error(s), *at = strstr(text, " at pixel (");
            assert_true(strncmp(text, "image 5: the image decoder's output is NaN at pixel (", 53) == 0 ||
                        strncmp(text, "image 5: the image decoder's output is infinite at pixel (", 58) == 0);
            assert_int_equal(sscanf(at, " at pixel (%d, %d)", &x, &y), 2);
            assert_in_range(x, 0, DEMO_SIDE - 1);
            assert_in_range(y, 0, DEMO_SIDE - 1);
            if (check && !names_layer(text, decoder_weights[i].layer))
                fail_msg("%s: %s", decoder_weights[i].tensor, text);
            if (!check) assert_says(text, "); --check names the first layer whose output is not finite");
            demo_assert_dropped(s, "failed, begin another first: image 5: the image decoder");
            demo_generate(s, IMAGES, tokens);
            assert_memory_equal(tokens, expected, sizeof tokens);
            mar_session_free(s);
        }
    }
    demo_close(d);
}

/* Tests finite numbers whose variance overflows. LayerNorm's output is then not finite; it must not be its bias in
 * every row. */
TEST_CASE(a_variance_that_overflows_shows)
{
    static const char *const layers[][2] = {{"z_proj.weight", "z_proj_ln"},
                                            {"decoder_embed.weight", "decoder_blocks.0.norm1"},
                                            {"diffloss.net.input_proj.weight", "diffloss.net.res_blocks.0"}};
    char *directory = test_directory();
    for (size_t i = 0; i < sizeof layers / sizeof *layers; i++) {
        demo d = demo_open(1);
        char *path = write_changed(d.m, directory, "model.safetensors", "demo", layers[i][0], 0, 1, 1e30f);
        mar_model_free(d.model);
        assert_library(d.m, mar_model_load(d.m, path, 0, &d.model));
        free(path);
        mar_session *s = session_with(&d, 0, 1);
        if (demo_run(s, IMAGES) != MAR_EMODEL || !strstr(mar_session_error(s), layers[i][1]))
            fail_msg("%s: %s", layers[i][0], mar_session_error(s));
        mar_session_free(s);
        demo_close(d);
    }
}

/* Tests finite weights and a finite picture with values far out of range. */
TEST_CASE(a_blank_picture_is_refused)
{
    static const struct {
        const char *tensor;
        float value;
    } biases[] = {{"decoder.norm_out.bias", 1e30f}, {"decoder.conv_out.bias", -1e30f}, {"decoder.conv_out.bias", 2}};
    char *directory = test_directory();
    static uint8_t rgb[IMAGES * DEMO_BYTES];
    float tokens[IMAGES * TOKENS];
    demo d = demo_open(1);
    for (int i = 0; i < 3; i++) {
        char *path =
            write_changed(d.m, directory, "vae.safetensors", "demo-vae", biases[i].tensor, 0, 0, biases[i].value);
        mar_vae_free(d.vae);
        assert_library(d.m, mar_vae_load(d.m, path, &d.vae));
        free(path);
        mar_session *s = session_with(&d, 0, 0);
        demo_generate(s, IMAGES, tokens);
        const mar_status status = mar_session_images(s, rgb);
        if (i < 2) {
            assert_int_equal(status, MAR_EMODEL);
            assert_says(mar_session_error(s), "image 5: no value of the image decoder's output is between -1 and 1");
            assert_says(mar_session_error(s), "the picture would be blank");
        } else {
            assert_int_equal(status, MAR_OK); /* far too bright, but not blank */
        }
        mar_session_free(s);
    }
    demo_close(d);
}
