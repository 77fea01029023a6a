/* The image decoders of Chameleon and Emu3 against the official code (tests/golden/make_movq.py), in f32 and bf16:
 * pixels, bytes, batches, tokens of pictures; decoding in bands; facts, and damaged files. */
#include "tests/support/support.h"

#include "mar_files.h"

#include "kernels/pixels.h"
#include "tests/support/archive.h"
#include "vae/bands.h"
#include "weights/shape.h"

#include <cjson/cJSON.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ROWS = 3, COLUMNS = 5, TOKENS = ROWS * COLUMNS, STRIDE = 4, IMAGES = 2 };
enum { VALUES = TOKENS * STRIDE * STRIDE * 3 }; /* of an image */

/* --- the files ---------------------------------------------------------------------------------------------------- */

/* Adds a tensor's numbers as make_movq.py makes them. */
static void put_values(bytes *b, const char *name, size_t count, int rank, double inputs)
{
    uint64_t state = 0xCBF29CE484222325u;
    for (const char *c = name; *c; c++) state = (state ^ (uint8_t)*c) * 0x100000001B3u;
    const char *end = strrchr(name, '.');
    const int is_scale =
        strcmp(end, ".running_var") == 0 || (strstr(name, "norm") && strcmp(end, ".weight") == 0 && rank == 1);
    const double middle = is_scale ? 1 : 0, scale = is_scale   ? 0.5
                                                    : rank < 2 ? 0.25
                                                    : strcmp(name, "quantize.embedding.weight") == 0
                                                        ? 2
                                                        : (float)(1.7 / sqrt(inputs));
    for (size_t i = 0; i < count; i++) {
        uint64_t z = state += 0x9E3779B97F4A7C15u;
        z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
        z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
        z = z ^ (z >> 31);
        const float value = (float)(middle + scale * ((double)(z >> 40) / (1 << 23) - 1));
        bytes_put(b, &value, sizeof value);
    }
}

/* A change to a file: a tensor that is left out, gets another first dimension, or is NaN. */
typedef struct {
    const char *tensor;
    int first; /* its first dimension; 0: left out; -1: its first number is NaN */
} change;

enum { SAVED_NAME = 256 };

/* Writes the name that transformers' Emu3VQVAE has for a tensor of Emu3's decoder. Returns 1 if it is there a matrix
 * instead of a convolution. */
static int name_saved(const char *name, char to[SAVED_NAME])
{
    static const char *const parts[][2] = {{"decoder.mid.attn_1.norm.", "decoder.middle_block.attn_norm."},
                                           {"decoder.mid.", "decoder.middle_block."},
                                           {"decoder.up.", "decoder.up_block.up."},
                                           {".attn.0.norm.", ".attn_norms.0."},
                                           {".attn.1.norm.", ".attn_norms.1."},
                                           {".q.", ".q_proj."},
                                           {".k.", ".k_proj."},
                                           {".v.", ".v_proj."},
                                           {".proj_out.", ".out_proj."}};
    char text[SAVED_NAME];
    snprintf(to, SAVED_NAME, "%s", name);
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        const char *at = strstr(to, parts[i][0]);
        if (!at) continue;
        snprintf(text, sizeof text, "%.*s%s%s", (int)(at - to), to, parts[i][1], at + strlen(parts[i][0]));
        memcpy(to, text, sizeof text);
    }
    return strstr(to, "_proj.weight") != NULL;
}

/* Writes the tiny file of a family, with a name's prefix and one more tensor unless they are NULL, and opens it. With
 * "vqmodel." the names are transformers'. */
static wt_file *open_family(const char *family, const char *prefix, const char *more, const change *c)
{
    char path[256], name[512], saved[SAVED_NAME];
    snprintf(path, sizeof path, "tests/golden/data/movq_%s.json", family);
    bytes text = bytes_from_file(path), header = {0}, data = {0}, file = {0};
    bytes_put(&text, "", 1);
    cJSON *list = cJSON_Parse((const char *)text.data);
    assert_non_null(list);
    if (more) cJSON_AddItemToObject(list, more, cJSON_CreateIntArray((int[]){3}, 1));
    bytes_text(&header, "{");
    for (const cJSON *t = list->child; t; t = t->next) {
        const int is_changed = c && strcmp(t->string, c->tensor) == 0;
        if (is_changed && c->first == 0) continue;
        char shape[64] = "";
        size_t count = 1;
        double inputs = 1;
        for (const cJSON *d = t->child; d; d = d->next) {
            const int size = is_changed && c->first > 0 && d == t->child ? c->first : d->valueint;
            snprintf(shape + strlen(shape), sizeof shape - strlen(shape), "%s%d", *shape ? "," : "", size);
            count *= (size_t)size;
            if (d != t->child) inputs *= size;
        }
        const size_t begin = data.size;
        put_values(&data, t->string, count, cJSON_GetArraySize(t), inputs);
        snprintf(saved, sizeof saved, "%s", t->string);
        if (prefix && strcmp(prefix, "vqmodel.") == 0 && name_saved(t->string, saved))
            shape[strlen(shape) - strlen(",1,1")] = '\0';
        if (is_changed && c->first < 0) memcpy(data.data + begin, &(float){NAN}, sizeof(float));
        snprintf(name, sizeof name, "%s\"%s%s\":{\"dtype\":\"F32\",\"shape\":[%s],\"data_offsets\":[%zu,%zu]}",
                 header.size > 1 ? "," : "", prefix ? prefix : "", saved, shape, begin, data.size);
        bytes_text(&header, name);
    }
    bytes_text(&header, "}");
    bytes_number(&file, header.size, 8);
    bytes_put(&file, header.data, header.size);
    bytes_put(&file, data.data, data.size);
    char *to = test_path("movq.safetensors");
    bytes_to_file(&file, to);
    bytes_free(&text), bytes_free(&header), bytes_free(&data), bytes_free(&file);
    cJSON_Delete(list);
    return open_weights(to);
}

static vae_decoder *load(kern_queue *k, const char *family, int encoder)
{
    const int is_saved = strcmp(family, "emu3 in a model") == 0;
    wt_file *f = is_saved ? open_family("emu3", "vqmodel.", NULL, NULL) : open_family(family, NULL, NULL, NULL);
    vae_decoder *d = NULL;
    mar_err err = {0};
    if (is_saved) wt_narrow(f, "vqmodel.");
    assert_ok(vae_config_rename(f, &err), &err);
    assert_ok(vae_decoder_create(k, f, &d, &err), &err);
    if (encoder) assert_ok(vae_decoder_add_encoder(d, k, f, &err), &err);
    wt_close(f);
    return d;
}

/* Decodes the images, all at a time, with at most `limit` bytes for one unless it is 0. Returns the bytes of a run. */
static size_t decode(kern_queue *k, const vae_decoder *d, int rows, int columns, const float *tokens, int images,
                     size_t limit, float *pixels, uint8_t *rgb)
{
    const size_t each = (size_t)(rows * columns), n = each * STRIDE * STRIDE * 3, budget = k->device->image_budget;
    vae_run *r = NULL;
    mar_err err = {0};
    k->device->image_budget = (size_t)1 << 30;
    assert_ok(vae_run_create(k, d, rows, columns, images, limit ? limit : VAE_MEMORY, &r, &err), &err);
    k->device->image_budget = budget;
    assert_int_equal(vae_run_images(r), limit ? 1 : images);
    assert_ok(vae_run_plan(r, images, &err), &err);
    const size_t size = vae_run_lay_out(r, NULL);
    void *memory = backend_memory(k, size);
    float *on_device = backend_memory(k, (size_t)images * each * sizeof *tokens);
    vae_run_lay_out(r, memory);
    k->core->upload(k, on_device, tokens, (size_t)images * each * sizeof *tokens);
    for (int done = 0, pass = vae_run_images(r); done < images; done += pass) {
        const vae_pictures p = vae_decode(r, on_device + (size_t)done * each, pass);
        k->core->download(k, pixels + (size_t)done * n, p.pixels, (size_t)pass * n * sizeof *pixels);
        k->core->download(k, rgb + (size_t)done * n, p.bytes, (size_t)pass * n);
    }
    assert_ok(kern_check(k, &err), &err);
    k->core->free(k->device, memory), k->core->free(k->device, on_device);
    vae_run_free(r);
    return size;
}

/* --- numbers ------------------------------------------------------------------------------------------------------ */

static float *golden_of(const char *family, const char *what, size_t n)
{
    char name[64];
    wt_file *f = golden_open("movq");
    snprintf(name, sizeof name, "%s.%s", family, what);
    float *values = golden_f32(f, name, (int64_t)n);
    wt_close(f);
    return values;
}

static void check_golden(const char *family, mar_dtype dtype, double tolerance)
{
    kern_queue *k = open_queue(dtype, 2);
    if (!k) skip(); /* a processor without bf16 */
    vae_decoder *d = load(k, family, 0);
    const char *name = family[0] == 'e' ? "emu3" : family;
    float *tokens = golden_of(name, "tokens", IMAGES * TOKENS), *expected = golden_of(name, "image", IMAGES * VALUES);
    static float pixels[IMAGES * VALUES], alone[VALUES];
    static uint8_t rgb[IMAGES * VALUES];
    decode(k, d, ROWS, COLUMNS, tokens + TOKENS, 1, 0, alone, rgb);
    decode(k, d, ROWS, COLUMNS, tokens, IMAGES, 0, pixels, rgb);
    assert_close(pixels, expected, IMAGES * VALUES, tolerance);
    assert_memory_equal(alone, pixels + VALUES, sizeof alone);
    for (int i = 0; i < IMAGES * VALUES; i++) assert_int_equal(rgb[i], kern_pixel_byte(pixels[i], KERN_BYTES_CUT));
    free(tokens), free(expected);
    vae_decoder_free(d);
    close_queue(k);
}

TEST_CASE(chameleon_is_the_official_code)
{
    check_golden("chameleon", MAR_DTYPE_F32, 1e-5);
    float *expected = golden_of("chameleon", "image", IMAGES * VALUES),
          *rgb = golden_of("chameleon", "bytes", IMAGES * VALUES);
    for (int i = 0; i < IMAGES * VALUES; i++)
        assert_int_equal(kern_pixel_byte(expected[i], KERN_BYTES_CUT), (int)rgb[i]);
    free(expected), free(rgb);
}

/* The golden image is the first frame of the official decoder's video. */
TEST_CASE(emu3_is_the_official_codes_first_frame)
{
    check_golden("emu3", MAR_DTYPE_F32, 1e-5);
    check_golden("emu3 in a model", MAR_DTYPE_F32, 1e-5); /* Emu3ForConditionalGeneration's vqmodel */
}

TEST_CASE(bf16_is_near)
{
    check_golden("chameleon", MAR_DTYPE_BF16, 5e-2);
    check_golden("emu3", MAR_DTYPE_BF16, 1e-1);
}

TEST_CASE(chameleon_tokens_are_the_nearest_rows)
{
    kern_queue *k = open_queue(MAR_DTYPE_F32, 2);
    vae_decoder *d = load(k, "chameleon", 1);
    float *picture = golden_of("chameleon", "picture", VALUES), *expected = golden_of("chameleon", "encoded", TOKENS);
    uint8_t rgb[VALUES];
    float tokens[TOKENS];
    vae_run *r = NULL;
    mar_err err = {0};
    for (int i = 0; i < VALUES; i++) rgb[i] = (uint8_t)picture[i];
    assert_ok(vae_run_create(k, d, ROWS, COLUMNS, 1, VAE_MEMORY, &r, &err), &err);
    assert_ok(vae_run_plan(r, 1, &err), &err);
    void *memory = backend_memory(k, vae_run_lay_out(r, NULL));
    vae_run_lay_out(r, memory);
    vae_encode(r, rgb, (size_t)COLUMNS * STRIDE * 3, 3, tokens);
    for (int i = 0; i < TOKENS; i++) assert_int_equal((int)tokens[i], (int)expected[i]);
    k->core->free(k->device, memory);
    vae_run_free(r);
    vae_decoder_free(d);
    close_queue(k);
    free(picture), free(expected);
}

/* --- bands -------------------------------------------------------------------------------------------------------- */

/* Decodes an oblong image in bands, under each bound from the least memory to that of the whole. The bits are those of
 * one piece; the memory is within the bound, but for the least. */
static void check_bands(const char *family, mar_dtype dtype)
{
    enum { H = 24, W = 3, N = H * W * STRIDE * STRIDE * 3 };
    static float tokens[H * W], whole[N], pixels[N];
    static uint8_t rgb[N];
    kern_queue *k = open_queue(dtype, 3);
    if (!k) skip();
    vae_decoder *d = load(k, family, 0);
    for (int i = 0; i < H * W; i++) tokens[i] = (float)(i * 7 % 48);
    const size_t most = decode(k, d, H, W, tokens, 1, 0, whole, rgb);
    const size_t least = decode(k, d, H, W, tokens, 1, 1, pixels, rgb);
    assert_memory_equal(pixels, whole, sizeof whole);
    assert_true(least < most);
    for (int i = 1; i < 4; i++) {
        const size_t limit = least + (most - least) * (size_t)i / 4;
        memset(pixels, 0, sizeof pixels);
        assert_true(decode(k, d, H, W, tokens, 1, limit, pixels, rgb) <= limit);
        assert_memory_equal(pixels, whole, sizeof whole);
    }
    vae_decoder_free(d);
    close_queue(k);
}

TEST_CASE(bands_have_the_bits_of_one_piece)
{
    check_bands("chameleon", MAR_DTYPE_F32);
    check_bands("emu3", MAR_DTYPE_F32);
}

TEST_CASE(bands_have_the_bits_of_one_piece_in_bf16)
{
    check_bands("chameleon", MAR_DTYPE_BF16);
    check_bands("emu3", MAR_DTYPE_BF16);
}

/* A layer with a NaN is named as in whole images, although others are computed before it in each band. */
TEST_CASE(layers_of_bands_are_named)
{
    static const struct {
        const char *family, *tensor, *layer;
    } spoiled[] = {{"chameleon", "decoder.up.1.upsample.conv.bias", "decoder.up.1.upsample.conv"},
                   {"chameleon", "decoder.up.0.block.0.conv1.weight", "decoder.up.0.block.0.conv1"},
                   {"chameleon", "decoder.up.0.block.1.conv2.bias", "decoder.up.0.block.1.conv2"},
                   {"chameleon", "decoder.norm_out.weight", "decoder.norm_out"},
                   {"chameleon", "decoder.conv_out.bias", "decoder.conv_out"},
                   {"emu3", "post_quant_conv.conv.bias", "post_quant_conv.conv"},
                   {"emu3", "decoder.time_res_stack.0.conv2.conv.bias", "decoder.time_res_stack.0"},
                   {"emu3", "decoder.time_conv.1.conv.conv.bias", "decoder.time_conv.1"},
                   {"emu3", "decoder.up.1.block.0.nin_shortcut.bias", "decoder.up.1.block.0.nin_shortcut"},
                   {"emu3", "decoder.up.0.block.1.norm2.conv_b.bias", "decoder.up.0.block.1.norm2"}};
    enum { H = 24, W = 3, N = H * W * STRIDE * STRIDE * 3 };
    static float tokens[H * W], pixels[N];
    static uint8_t rgb[N];
    for (size_t i = 0; i < sizeof spoiled / sizeof *spoiled; i++) {
        const change c = {spoiled[i].tensor, -1};
        wt_file *f = open_family(spoiled[i].family, NULL, NULL, &c);
        kern_queue *k = open_queue(MAR_DTYPE_F32, 2);
        vae_decoder *d = NULL;
        mar_err err = {0};
        wt_allow_nonfinite(f, 1);
        assert_ok(vae_decoder_create(k, f, &d, &err), &err);
        k->watch.on = 1;
        kern_watch_begin(k);
        decode(k, d, H, W, tokens, 1, 1, pixels, rgb);
        k->watch.on = 0;
        assert_string_equal(k->watch.layer, spoiled[i].layer);
        vae_decoder_free(d);
        close_queue(k);
        wt_close(f);
    }
}

/* Adds a step of a decoder without weights. */
static void add_step(vae_network *net, vae_step_kind kind, int in, int out, int spatial)
{
    static char weights; /* something that is not NULL */
    vae_step *s = &net->steps[net->n_steps++];
    *s = (vae_step){.kind = kind, .in = in, .out = out};
    for (int i = 0; i < 2 && spatial; i++) s->norm[i].cells = (kern_linear *)(void *)&weights;
}

/* Returns the bytes that an image of `side` pixels takes with the published sizes: width, levels and multipliers. */
static size_t memory_at(kern_queue *k, int width, const int *multiplier, int levels, int is_emu3, int side)
{
    vae_step steps[64];
    vae_decoder d = {.network = {.steps = steps, .in = is_emu3 ? 4 : 256, .out = 3, .width_out = width}};
    vae_network *net = &d.network;
    vae_bands *b = NULL;
    mar_err err = {0};
    const int stride = 1 << (levels - 1);
    int in = net->width_in = width * multiplier[levels - 1];
    for (int i = 0; i < 3; i++) add_step(net, i == 1 ? VAE_ATTENTION : VAE_RESIDUAL, in, in, is_emu3);
    for (int level = levels - 1; level >= 0; level--) {
        const int out = width * multiplier[level];
        for (int i = 0; i < 3; i++, in = out) {
            add_step(net, VAE_RESIDUAL, in, out, is_emu3);
            if (is_emu3 && level == levels - 1) add_step(net, VAE_ATTENTION, out, out, is_emu3);
        }
        if (level > 0) add_step(net, VAE_UPSAMPLE, out, out, 0);
    }
    const vae_pass p = {.k = k, .grid = {side / stride, side / stride}};
    vae_sizes whole = {0};
    vae_measure(k, net, NULL, p.grid, net->n_steps, p.grid, &whole);
    assert_ok(vae_bands_create(&p, &d, VAE_MEMORY - ((size_t)8 << 20), &b, &err), &err);
    const size_t size = b ? vae_bands_lay_out(b, NULL) : 2 * whole.stream + whole.act + whole.cells;
    print_message("%s, %d pixels: %.0f MB, in one piece %.0f MB\n", is_emu3 ? "Emu3" : "Chameleon", side,
                  (double)size / 1e6, (double)(2 * whole.stream + whole.act + whole.cells) / 1e6);
    vae_bands_free(b);
    return size;
}

/* An image of up to 1024 pixels a side decodes in 1.5 GB, with pixels, bytes and latents in the 8 MiB left out. */
TEST_CASE(large_images_take_at_most_1500_megabytes)
{
    static const int chameleon[] = {1, 1, 2, 2, 4}, emu3[] = {1, 2, 2, 4};
    for (int bf16 = 0; bf16 < 2; bf16++) {
        kern_queue *k = open_queue(bf16 ? MAR_DTYPE_BF16 : MAR_DTYPE_F32, 1);
        if (!k) skip();
        for (int side = 256; side <= 1024; side += 256) {
            assert_true(memory_at(k, 128, chameleon, 5, 0, side) <= VAE_MEMORY - ((size_t)8 << 20));
            assert_true(memory_at(k, 256, emu3, 4, 1, side) <= VAE_MEMORY - ((size_t)8 << 20));
        }
        close_queue(k);
    }
}

/* --- facts -------------------------------------------------------------------------------------------------------- */

TEST_CASE(config_and_codebook)
{
    static const struct {
        const char *family;
        int codebook, z;
    } cases[] = {{"chameleon", 48, 16}, {"emu3", 64, 4}};
    for (int i = 0; i < 2; i++) {
        kern_queue *k = open_queue(MAR_DTYPE_F32, 1);
        vae_decoder *d = load(k, cases[i].family, 0);
        const mar_vae_config *c = vae_decoder_config(d);
        assert_true(c->codebook == cases[i].codebook && c->z_channels == cases[i].z && c->stride == STRIDE);
        assert_true(c->channels == 32 && c->levels == 3 && c->res_blocks == 1);
        assert_memory_equal(vae_decoder_codebook(d), vae_decoder_embedding(d),
                            sizeof(float) * (size_t)(c->codebook * c->z_channels)); /* not normalised */
        vae_decoder_free(d);
        close_queue(k);
    }
}

/* Counts the numbers of the file's tensors but those with these beginnings. */
static long numbers_without(const wt_file *f, const char *a, const char *b)
{
    long n = 0;
    for (int i = 0; i < wt_count(f); i++) {
        const wt_tensor *t = wt_at(f, i);
        if (strncmp(t->name, a, strlen(a)) != 0 && strncmp(t->name, b, strlen(b)) != 0 &&
            !strstr(t->name, "num_batches"))
            n += (long)t->count;
    }
    return n;
}

TEST_CASE(all_tensors_are_listed)
{
    mar_vae_config c;
    mar_err err = {0};
    wt_file *f = open_family("chameleon", NULL, "loss.logvar", NULL);
    assert_ok(vae_config_derive(f, &c, &err), &err);
    assert_int_equal(c.parameters, numbers_without(f, "loss.", "loss."));
    assert_true(vae_config_is_vq(f) && vae_config_ignores_vq("loss.logvar"));
    assert_string_equal(vae_config_made_for(f), "Chameleon");
    wt_close(f);
    f = open_family("emu3", NULL, NULL, NULL);
    assert_ok(vae_config_derive(f, &c, &err), &err);
    assert_int_equal(c.parameters, numbers_without(f, "encoder.", "quant_conv."));
    assert_true(vae_config_is_emu3(f) && vae_config_ignores_emu3("decoder.time_res_stack.0.norm1.num_batches_tracked"));
    assert_string_equal(vae_config_made_for(f), "Emu3");
    wt_close(f);
}

static void expect_refused(const char *family, const char *tensor, int first, const char *reason)
{
    const change c = {tensor, first};
    wt_file *f = open_family(family, NULL, NULL, &c);
    kern_queue *k = open_queue(MAR_DTYPE_F32, 1);
    vae_decoder *d = (vae_decoder *)&c;
    mar_err err = {0};
    assert_int_equal(vae_decoder_create(k, f, &d, &err), MAR_EMODEL);
    if (!strstr(err.text, reason) || strchr(err.text, '\n')) fail_msg("%s of %s: %s", tensor, family, err.text);
    assert_null(d);
    wt_close(f);
    close_queue(k);
}

TEST_CASE(damaged_files_are_refused)
{
    static const char *const needed[] = {"decoder.time_res_stack.0.norm2.running_var",
                                         "decoder.time_res_stack.0.conv1.conv.weight",
                                         "decoder.time_conv.1.conv.conv.bias",
                                         "decoder.up.0.block.1.norm1.norm_layer.bias",
                                         "decoder.up.2.attn.0.norm.conv_y.weight",
                                         "decoder.norm_out.conv_b.bias",
                                         "post_quant_conv.conv.bias",
                                         "quantize.embedding.weight"};
    for (size_t i = 0; i < sizeof needed / sizeof *needed; i++) {
        expect_refused("emu3", needed[i], 0, needed[i]);
        expect_refused("emu3", needed[i], -1, needed[i]);
    }
    expect_refused("emu3", "post_quant_conv.conv.weight", 8, "expected as many outputs as inputs");
    expect_refused("emu3", "decoder.up.1.upsample.conv.weight", 8, "decoder.up.1.upsample.conv.weight");
    expect_refused("chameleon", "post_quant_conv.bias", 0, "post_quant_conv.bias is missing");
    expect_refused("chameleon", "decoder.mid.attn_1.q.weight", -1, "decoder.mid.attn_1.q.weight");
    kern_queue *k = open_queue(MAR_DTYPE_F32, 1);
    vae_decoder *d = load(k, "emu3", 0);
    wt_file *f = open_family("emu3", NULL, NULL, NULL);
    mar_err err = {0};
    assert_int_equal(vae_decoder_add_encoder(d, k, f, &err), MAR_EMODEL);
    assert_non_null(strstr(err.text, "the encoder of Emu3's autoencoder is not supported"));
    wt_close(f);
    vae_decoder_free(d);
    close_queue(k);
}

/* --- the public calls --------------------------------------------------------------------------------------------- */

static void expect_report(mar *m, const char *family, const char *more)
{
    mar_report *r = NULL;
    char codebook[64];
    wt_file *f = open_family(family, NULL, more, NULL);
    assert_int_equal(mar_inspect(m, wt_path(f), 0, &r), MAR_OK);
    wt_close(f);
    assert_int_equal(mar_report_kind(r), MAR_KIND_VAE);
    assert_int_equal(mar_report_problem_count(r), 0);
    snprintf(codebook, sizeof codebook, "of %c%s models", family[0] - 'a' + 'A', family + 1);
    int found = 0;
    for (int i = 0; i < mar_report_fact_count(r); i++) found += strstr(mar_report_fact(r, i), codebook) != NULL;
    assert_int_equal(found, 1);
    mar_report_free(r);
}

TEST_CASE(public_calls_know_the_files)
{
    mar_options options;
    mar *m = NULL;
    mar_vae *vae = NULL;
    mar_options_init(&options, sizeof options);
    options.backend = MAR_BACKEND_CPU;
    options.dtype = MAR_DTYPE_F32;
    assert_int_equal(mar_open(&options, &m), MAR_OK);
    expect_report(m, "chameleon", "loss.logvar");
    expect_report(m, "emu3", NULL);
    wt_file *f = open_family("chameleon", "model.vqmodel.", NULL, NULL); /* as in a model's folder */
    assert_int_equal(mar_vae_load(m, wt_path(f), &vae), MAR_OK);
    wt_close(f);
    assert_int_equal(mar_vae_get_config(vae)->codebook, 48);
    mar_vae_free(vae);
    f = open_family("emu3", "vqmodel.", NULL, NULL);
    assert_int_equal(mar_vae_load(m, wt_path(f), &vae), MAR_OK);
    wt_close(f);
    assert_int_equal(mar_vae_get_config(vae)->codebook, 64);
    mar_vae_free(vae);
    f = open_family("emu3", "model.vqmodel.encoder.", NULL, NULL); /* as transformers' Chameleon has it */
    assert_int_equal(mar_vae_load(m, wt_path(f), &vae), MAR_EMODEL);
    wt_close(f);
    assert_non_null(strstr(mar_error(m), "has an image encoder alone, expected a decoder: Chameleon's is vqgan.ckpt"));
    mar_close(m);
}
