#include "tests/support/sphere.h"

#include "tests/support/support.h"
#include "tests/support/tensor_files.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Of 64 channels in front of two blocks, 4 registers and one layer, for the decoder's 4x4 tokens of 8 channels. */
static const file_tensor encoder[] = {
    {"vae.encoder.conv_in.weight", 4, {64, 3, 3, 3}, {0}},
    {"vae.encoder.patchify.0.net.0.block.0.weight", 1, {64}, {0}},
    {"vae.encoder.patchify.0.net.0.block.0.bias", 1, {64}, {0}},
    {"vae.encoder.patchify.0.net.0.block.2.weight", 4, {16, 64, 3, 3}, {0}},
    {"vae.encoder.patchify.0.net.0.block.3.weight", 1, {16}, {0}},
    {"vae.encoder.patchify.0.net.0.block.3.bias", 1, {16}, {0}},
    {"vae.encoder.patchify.0.net.0.block.5.weight", 4, {16, 16, 3, 3}, {0}},
    {"vae.encoder.patchify.0.net.0.shortcut.weight", 4, {16, 64, 2, 2}, {0}},
    {"vae.encoder.patchify.0.net.1.block.0.weight", 1, {16}, {0}},
    {"vae.encoder.patchify.0.net.1.block.0.bias", 1, {16}, {0}},
    {"vae.encoder.patchify.0.net.1.block.2.weight", 4, {64, 16, 3, 3}, {0}},
    {"vae.encoder.patchify.0.net.1.block.3.weight", 1, {64}, {0}},
    {"vae.encoder.patchify.0.net.1.block.3.bias", 1, {64}, {0}},
    {"vae.encoder.patchify.0.net.1.block.5.weight", 4, {64, 64, 3, 3}, {0}},
    {"vae.encoder.patchify.0.net.1.shortcut.weight", 4, {64, 16, 2, 2}, {0}},
    {"vae.encoder.register_token.weight", 2, {4, 64}, {0}},
    {"vae.encoder.layers.0.attention.wqkv.weight", 2, {192, 64}, {0}},
    {"vae.encoder.layers.0.attention.wo.weight", 2, {64, 64}, {0}},
    {"vae.encoder.layers.0.feed_forward.w1.weight", 2, {512, 64}, {0}},
    {"vae.encoder.layers.0.feed_forward.w2.weight", 2, {64, 256}, {0}},
    {"vae.encoder.layers.0.attention_norm.weight", 1, {64}, {0}},
    {"vae.encoder.layers.0.ffn_norm.weight", 1, {64}, {0}},
    {"vae.encoder.norm.weight", 1, {64}, {0}},
    {"vae.encoder.output.weight", 2, {64, 64}, {0}},
    {"vae.quant_proj.weight", 2, {9, 64}, {0}},
    {"vae.quant_proj.bias", 1, {9}, {0}},
};
enum { ENCODER = sizeof encoder / sizeof *encoder };

static wt_output output_of(const wt_file *f, const wt_tensor *t, const char *name)
{
    wt_output out = {name, t->dtype, t->rank, {0}, f, t, WT_COPIED, NULL};
    memcpy(out.shape, t->shape, sizeof *t->shape * (size_t)t->rank);
    return out;
}

void sphere_write_with_encoder(const char *folder, const char *name)
{
    static const char *const heads[][2] = {{"mar.heads", "3"}};
    char path[600];
    mar_err err = {0};
    file_tensor drawn[ENCODER];
    memcpy(drawn, encoder, sizeof drawn);
    for (int i = 0; i < ENCODER; i++) tensor_draw(&drawn[i], drawn[i].name, 0);
    tensors_write_safetensors(folder, "encoder", drawn, ENCODER);
    tensors_free(drawn, ENCODER);
    snprintf(path, sizeof path, "%s/encoder", folder);
    wt_file *model = open_weights("tests/golden/data/sphere_model.safetensors"), *more = open_weights(path);
    wt_output *out = calloc((size_t)(wt_count(model) + ENCODER + 1), sizeof *out);
    int count = 0;
    assert_non_null(out);
    for (int i = 0; i < wt_count(model); i++) out[count++] = output_of(model, wt_at(model, i), wt_at(model, i)->name);
    for (int i = 0; i < wt_count(more); i++) out[count++] = output_of(more, wt_at(more, i), wt_at(more, i)->name);
    out[count++] = output_of(model, wt_find(model, "vae.decoder.freqs_cis"), "vae.encoder.freqs_cis");
    assert_int_equal(unlink(path), 0);
    snprintf(path, sizeof path, "%s/%s", folder, name);
    assert_ok(wt_save_safetensors(path, out, count, heads, 1, &err), &err);
    wt_close(model);
    wt_close(more);
    free(out);
}
