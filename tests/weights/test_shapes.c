/* Shapes of models derived from the tensors of a file, against the official lists of tensors
 * (tests/weights/data/formats). */
#include "tests/support/shape_list.h"
#include "tests/support/support.h"

#include "families/mar.h"
#include "vae/vae.h"

#include <stdio.h>
#include <string.h>

/* --- MAR ---------------------------------------------------------------------------------------------------------- */

/* Depths, widths and heads: models/mar.py and the README of the official code; MAR-B, L, H: 208M, 479M, 943M. */
TEST_CASE(test_official_models)
{
    static const struct {
        const char *name;
        int width, depth, heads, hidden, head_width, head_depth;
        long parameters;
    } models[] = {{"mar_base", 768, 12, 12, 3072, 1024, 6, 207924768},
                  {"mar_large", 1024, 16, 16, 4096, 1280, 8, 478326304},
                  {"mar_huge", 1280, 20, 16, 5120, 1536, 12, 942403104}};
    for (size_t i = 0; i < sizeof models / sizeof *models; i++) {
        mar_model_config c;
        mar_err err = {0};
        cJSON *list = read_list(models[i].name);
        wt_file *f = open_list(list, NULL);
        assert_true(family_mar.recognise(f));
        assert_false(vae_config_recognise(f));
        assert_ok(family_mar_derive(f, &(wt_asked){.heads = 0}, &c, &err), &err);
        assert_int_equal(c.width, models[i].width);
        assert_int_equal(c.encoder_depth, models[i].depth);
        assert_int_equal(c.decoder_depth, models[i].depth);
        assert_int_equal(c.heads, models[i].heads);
        assert_int_equal(c.mlp_hidden, models[i].hidden);
        assert_int_equal(c.head_width, models[i].head_width);
        assert_int_equal(c.head_depth, models[i].head_depth);
        assert_int_equal(c.parameters, models[i].parameters);
        assert_true(c.buffer == 64 && c.seq_len == 256 && c.token_dim == 16 && c.classes == 1000);
        comparison all = {list->child, 0};
        family_mar_tensors(&c, compare_visit, &all);
        assert_null(all.next);
        assert_int_equal(all.visits, wt_count(f));
        wt_close(f);
        cJSON_Delete(list);
    }
}

static mar_status derive_heads(const char *metadata, int heads, int *out, mar_err *err)
{
    mar_model_config c;
    cJSON *list = read_list("mar_base");
    wt_file *f = open_list(list, metadata);
    mar_status status = family_mar_derive(f, &(wt_asked){.heads = heads}, &c, err);
    *out = c.heads;
    wt_close(f);
    cJSON_Delete(list);
    return status;
}

TEST_CASE(test_heads)
{
    int heads;
    mar_err err = {0};
    assert_ok(derive_heads("6", 0, &heads, &err), &err);
    assert_int_equal(heads, 6);
    assert_ok(derive_heads("6", 24, &heads, &err), &err); /* the requested number wins */
    assert_int_equal(heads, 24);
    assert_int_equal(derive_heads(NULL, 7, &heads, &err), MAR_EARG);
    assert_non_null(strstr(err.text, "7 attention heads (--heads) do not divide the width 768"));
    assert_int_equal(derive_heads(NULL, -1, &heads, &err), MAR_EARG);
    assert_int_equal(derive_heads("5", 0, &heads, &err), MAR_EMODEL);
    assert_int_equal(derive_heads("0", 0, &heads, &err), MAR_EMODEL);
    assert_int_equal(derive_heads("12x", 0, &heads, &err), MAR_EMODEL);
    assert_int_equal(derive_heads("", 0, &heads, &err), MAR_EMODEL);
    assert_int_equal(derive_heads("99999999999999999999", 0, &heads, &err), MAR_EMODEL);
}

/* Checks the number of heads of a width without an official model: it is a guess. Two numbers are the encoder's and
 * the decoder's. */
TEST_CASE(test_guessed_heads)
{
    static const int widths[][2] = {{128, 2}, {1152, 18}, {100, 1}, {200, 2}, {1536, 24}};
    mar_model_config c;
    mar_err err = {0};
    cJSON *list = read_list("mar_base");
    for (size_t i = 0; i < sizeof widths / sizeof *widths; i++) {
        SHAPE(list, "z_proj.weight", widths[i][0], 16);
        SHAPE(list, "decoder_embed.weight", widths[i][0], widths[i][0]);
        wt_file *f = open_list(list, NULL), *said = open_list(list, "4");
        assert_ok(family_mar_derive(f, &(wt_asked){.heads = 0}, &c, &err), &err);
        assert_int_equal(c.heads, widths[i][1]);
        assert_int_equal(c.decoder_heads, widths[i][1]);
        assert_int_equal(c.heads_guessed, 1);
        assert_ok(family_mar_derive(f, &(wt_asked){.heads = 4}, &c, &err), &err);
        assert_int_equal(c.heads_guessed, 0);
        assert_ok(family_mar_derive(said, &(wt_asked){.heads = 0}, &c, &err), &err);
        assert_int_equal(c.heads, 4);
        assert_int_equal(c.heads_guessed, 0);
        wt_close(f), wt_close(said);
    }
    cJSON_Delete(list);
    list = read_list("mar_base");
    wt_file *f = open_list_with(list, "mar.decoder_heads", "16");
    assert_ok(family_mar_derive(f, &(wt_asked){.heads = mar_heads(12, 24)}, &c, &err), &err);
    assert_int_equal(c.heads, 12);
    assert_int_equal(c.decoder_heads, 24);
    assert_int_equal(family_mar_derive(f, &(wt_asked){.heads = mar_heads(12, 7)}, &c, &err), MAR_EARG);
    assert_non_null(strstr(err.text, ": the decoder's 7 attention heads (--heads) do not divide the width 768"));
    assert_int_equal(family_mar_derive(f, &(wt_asked){.heads = mar_heads(7, 12)}, &c, &err), MAR_EARG);
    assert_non_null(strstr(err.text, ": the encoder's 7 attention heads (--heads)"));
    assert_int_equal(family_mar_derive(f, &(wt_asked){.heads = mar_heads(0, 12)}, &c, &err), MAR_EARG);
    wt_close(f);
    cJSON_Delete(list);
}

static void refuse_mar(const cJSON *list, const char *words)
{
    mar_model_config c;
    mar_err err = {0};
    wt_file *f = open_list(list, NULL);
    assert_int_equal(family_mar_derive(f, &(wt_asked){.heads = 0}, &c, &err), MAR_EMODEL);
    if (!strstr(err.text, words) || !strstr(err.text, wt_path(f)))
        fail_msg("\"%s\" does not say \"%s\"", err.text, words);
    wt_close(f);
}

TEST_CASE(test_bad_mar)
{
    static const char *const needed[] = {"class_emb.weight",
                                         "z_proj.weight",
                                         "diffusion_pos_embed_learned",
                                         "encoder_pos_embed_learned",
                                         "encoder_blocks.0.mlp.fc1.weight",
                                         "diffloss.net.input_proj.weight"};
    for (size_t i = 0; i < sizeof needed / sizeof *needed; i++) {
        char words[128];
        cJSON *list = read_list("mar_base");
        cJSON_DeleteItemFromObjectCaseSensitive(list, needed[i]);
        snprintf(words, sizeof words, "tensor %s is missing", needed[i]);
        refuse_mar(list, words);
        cJSON_Delete(list);
    }
    cJSON *list = read_list("mar_base");
    SHAPE(list, "class_emb.weight", 1000);
    refuse_mar(list, "class_emb.weight has shape [1000], expected 2 dimensions");
    SHAPE(list, "class_emb.weight", 0, 768);
    refuse_mar(list, "class_emb.weight has shape [0, 768]");
    SHAPE(list, "class_emb.weight", 2e6, 1);
    refuse_mar(list, "class_emb.weight has shape [2000000, 1]");
    SHAPE(list, "class_emb.weight", 1000, 768);
    SHAPE(list, "diffusion_pos_embed_learned", 1, 255, 768);
    refuse_mar(list, "255 positions, expected a square");
    SHAPE(list, "diffusion_pos_embed_learned", 1, 324, 768);
    refuse_mar(list, "320 positions, expected more than the 324");
    cJSON_Delete(list);
    list = read_list("mar_base");
    SHAPE(list, "decoder_embed.weight", 512, 768);
    SHAPE(list, "decoder_pos_embed_learned", 1, 320, 512);
    refuse_mar(list, "the encoder is 768 wide and the decoder 512, expected one width of both");
    cJSON_Delete(list);
}

/* Checks that a block number beyond the file's blocks does not make a model of two billion blocks. A gap in the
 * numbers must not end the model early. */
TEST_CASE(test_block_numbers)
{
    static const char *const strange[] = {"encoder_blocks.2000000000.norm1.weight", "encoder_blocks.14.norm1.weight",
                                          "encoder_blocks.99999999999999999999.norm1.weight",
                                          "encoder_blocks.13x.norm1.weight", "encoder_blocks.-1.norm1.weight"};
    for (int i = 0; i < 5; i++) {
        mar_model_config c;
        mar_err err = {0};
        cJSON *list = read_list("mar_base");
        SHAPE(list, strange[i], 768);
        wt_file *f = open_list(list, NULL);
        assert_ok(family_mar_derive(f, &(wt_asked){.heads = 0}, &c, &err), &err);
        assert_int_equal(c.encoder_depth, i == 1 ? 15 : 12);
        assert_int_equal(c.decoder_depth, 12);
        wt_close(f);
        cJSON_Delete(list);
    }
}

/* --- KL autoencoder ----------------------------------------------------------------------------------------------- */

static void expect_vae(const cJSON *list, const mar_vae_config *expected)
{
    mar_vae_config c;
    mar_err err = {0};
    wt_file *f = open_list(list, NULL);
    assert_true(vae_config_recognise(f));
    assert_false(family_mar.recognise(f));
    assert_ok(vae_config_derive(f, &c, &err), &err);
    assert_int_equal(c.z_channels, expected->z_channels);
    assert_int_equal(c.stride, expected->stride);
    assert_int_equal(c.channels, expected->channels);
    assert_int_equal(c.levels, expected->levels);
    assert_int_equal(c.res_blocks, expected->res_blocks);
    assert_int_equal(c.parameters, expected->parameters);
    comparison all = {list->child, 0};
    vae_config_tensors(f, &c, compare_visit, &all);
    assert_null(all.next);
    wt_close(f);
}

TEST_CASE(test_kl16)
{
    cJSON *list = read_list("kl16");
    expect_vae(
        list,
        &(mar_vae_config){
            .z_channels = 16, .stride = 16, .channels = 128, .levels = 5, .res_blocks = 2, .parameters = 66456019});
    cJSON_Delete(list);
}

/* Tests an encoder trained at a size where the lowest level is not 16x16. It has attention only in the middle. */
TEST_CASE(test_kl_without_attention)
{
    enum { WIDTH = 512, ATTENTION = 2 * WIDTH + 4 * (WIDTH * WIDTH + WIDTH) };
    cJSON *list = read_list("kl16");
    for (cJSON *item = list->child, *next; item; item = next) {
        next = item->next;
        if (strncmp(item->string, "encoder.down.4.attn.", 20) == 0)
            cJSON_Delete(cJSON_DetachItemViaPointer(list, item));
    }
    expect_vae(list, &(mar_vae_config){.z_channels = 16,
                                       .stride = 16,
                                       .channels = 128,
                                       .levels = 5,
                                       .res_blocks = 2,
                                       .parameters = 66456019 - 2 * ATTENTION});
    cJSON_Delete(list);
}

/* Tests the small ones of the tests and the demo, from PyTorch's names. */
TEST_CASE(test_small_vae)
{
    mar_vae_config c;
    mar_err err = {0};
    wt_file *f = open_weights("tests/weights/data/vae.ckpt");
    assert_ok(vae_config_derive(f, &c, &err), &err);
    assert_int_equal(c.z_channels, 4);
    assert_int_equal(c.stride, 2);
    assert_int_equal(c.channels, 32);
    assert_int_equal(c.levels, 2);
    assert_int_equal(c.res_blocks, 1);
    long sum = 0;
    for (int i = 0; i < wt_count(f); i++) sum += (long)wt_at(f, i)->count;
    assert_int_equal(c.parameters, sum);
    wt_close(f);
}

static void refuse_vae(const cJSON *list, const char *words)
{
    mar_vae_config c;
    mar_err err = {0};
    wt_file *f = open_list(list, NULL);
    assert_int_equal(vae_config_derive(f, &c, &err), MAR_EMODEL);
    if (!strstr(err.text, words)) fail_msg("\"%s\" does not say \"%s\"", err.text, words);
    wt_close(f);
}

TEST_CASE(test_bad_vae)
{
    static const char *const needed[] = {"post_quant_conv.weight", "decoder.up.3.block.0.conv2.weight"};
    for (size_t i = 0; i < sizeof needed / sizeof *needed; i++) {
        cJSON *list = read_list("kl16");
        cJSON_DeleteItemFromObjectCaseSensitive(list, needed[i]);
        refuse_vae(list, needed[i]);
        cJSON_Delete(list);
    }
    cJSON *list = read_list("kl16");
    SHAPE(list, "decoder.up.3.block.0.conv2.weight", 250, 250, 3, 3);
    refuse_vae(list, "250 channels, expected a multiple of 32");
    SHAPE(list, "decoder.up.3.block.0.conv2.weight", 256, 256);
    refuse_vae(list, "has shape [256, 256], expected a convolution");
    SHAPE(list, "decoder.up.3.block.0.conv2.weight", 256, 256, 3, 3);
    SHAPE(list, "decoder.up.4.attn.0.q.weight", 512, 512, 1, 1);
    refuse_vae(list, "decoder.up.4.attn.0.q.weight: attention in the decoder's upper levels");
    cJSON_Delete(list);
}
