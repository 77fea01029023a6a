/* mar_inspect and mar_convert: a good checkpoint has no problem; each possible error is one line. */
#include "tests/support/archive.h"

#include "mar_files.h"
#include "tests/support/support.h"

#include "base/file.h"
#include "mar/api/load.h"
#include "mar/core/handle.h"
#include "weights/number.h"

#include <cjson/cJSON.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define DATA "tests/weights/data/"

static kern_device no_device; /* reading files needs none */
static mar handle = {.device = &no_device};

static int set_process(void **state)
{
    (void)state;
    handle.process = getpid();
    return 0;
}

TEST_GROUP(set_process, NULL)

/* Checks that a line of a report is short. The file's path is the caller's. */
static void expect_readable(const char *line)
{
    if (strlen(line) > 255) fail_msg("a line of %zu bytes: %s", strlen(line), line);
}

static mar_report *inspect(const char *path, int heads)
{
    mar_report *r = NULL;
    assert_library(&handle, mar_inspect(&handle, path, heads, &r));
    for (int i = 0; i < mar_report_fact_count(r); i++)
        if (strncmp(mar_report_fact(r, i), "file: ", 6) != 0) expect_readable(mar_report_fact(r, i));
    for (int i = 0; i < mar_report_problem_count(r); i++) expect_readable(mar_report_problem(r, i));
    return r;
}

static void expect_fact(const mar_report *r, const char *fact)
{
    for (int i = 0; i < mar_report_fact_count(r); i++)
        if (strcmp(mar_report_fact(r, i), fact) == 0) return;
    for (int i = 0; i < mar_report_fact_count(r); i++) print_message("%s\n", mar_report_fact(r, i));
    fail_msg("no fact \"%s\"", fact);
}

static void expect_problems(const mar_report *r, int count, const char *const *problems)
{
    for (int i = 0; i < mar_report_problem_count(r) || i < count; i++) {
        if (i >= mar_report_problem_count(r)) fail_msg("no problem \"%s\"", problems[i]);
        if (i >= count) fail_msg("unexpected problem \"%s\"", mar_report_problem(r, i));
        assert_string_equal(mar_report_problem(r, i), problems[i]);
    }
}

/* --- good files --------------------------------------------------------------------------------------------------- */

TEST_CASE(test_good_mar)
{
    mar_report *r = inspect(DATA "mar.pth", 2);
    expect_problems(r, 0, NULL);
    assert_int_equal(mar_report_kind(r), MAR_KIND_MAR);
    assert_int_equal(mar_report_model(r)->heads, 2);
    assert_null(mar_report_vae(r));
    expect_fact(r, "file: " DATA "mar.pth");
    expect_fact(r, "format: PyTorch zip (model_ema)");
    expect_fact(r, "kind: MAR model");
    expect_fact(r, "transformer: width 16, 2 encoder and 2 decoder blocks, 2 heads, MLP 64");
    expect_fact(r, "diffusion head: width 8, 2 blocks");
    expect_fact(r, "tokens: 16 of 4 channels, 5 classes in 2 buffer tokens");
    expect_fact(r, "tensors: 92 (F32)");
    expect_fact(r, "parameters: 17784 (encoder 7088, decoder 7424, head 3272)");
    mar_report_free(r);
}

TEST_CASE(test_good_vae)
{
    mar_report *r = inspect(DATA "vae.ckpt", 0);
    expect_problems(r, 0, NULL);
    assert_int_equal(mar_report_kind(r), MAR_KIND_VAE);
    assert_null(mar_report_model(r));
    expect_fact(r, "autoencoder: 4 latent channels, stride 2, 2 levels from width 32, 1 residual blocks");
    expect_fact(r, "tensors: 130 (F16)");
    mar_report_free(r);
}

/* Returns the kind of a file that is opened alone. */
static mar_kind kind_of(const char *path)
{
    mar_file *f;
    assert_int_equal(mar_file_open(path, MAR_WEIGHTS_AUTO, &f), MAR_OK);
    assert_int_equal(mar_file_get_info(f)->stored, MAR_DTYPE_AUTO);
    const mar_kind kind = mar_file_get_info(f)->kind;
    mar_file_close(f);
    return kind;
}

TEST_CASE(test_demo)
{
    static const struct {
        const char *name;
        mar_kind kind;
    } models[] = {
        {"demo", MAR_KIND_MAR},
        {"demo-draft", MAR_KIND_MAR},
        {"demo-vae", MAR_KIND_VAE},
        {"demo-discrete", MAR_KIND_LLAMAGEN},
        {"demo-discrete-draft", MAR_KIND_LLAMAGEN},
        {"demo-discrete-eagle", MAR_KIND_EAGLE},
        {"demo-discrete-vq", MAR_KIND_VAE},
        {"demo-sphere", MAR_KIND_SPHEREAR},
        {"demo-sphere-draft", MAR_KIND_SPHEREAR},
        {"demo-t2i", MAR_KIND_LLAMAGEN},
        {"demo-mgpt", MAR_KIND_DECODER},
        {"demo-harmon", MAR_KIND_MAR},
        {"demo-nextstep", MAR_KIND_NEXTSTEP},
    };
    for (size_t i = 0; i < sizeof models / sizeof *models; i++) {
        mar_report *r = inspect(models[i].name, 0);
        expect_problems(r, 0, NULL);
        assert_int_equal(mar_report_kind(r), models[i].kind);
        assert_int_equal(kind_of(models[i].name), models[i].kind);
        mar_report_free(r);
    }
    assert_int_equal(kind_of(DATA "dtypes.safetensors"), MAR_KIND_UNKNOWN);
    mar_file *f;
    assert_int_equal(mar_file_open(DATA "absent", MAR_WEIGHTS_AUTO, &f), MAR_EIO);
    assert_null(f);
    assert_non_null(strstr(mar_error(NULL), DATA "absent"));
}

TEST_CASE(test_other_files)
{
    mar_report *r = inspect(DATA "dtypes.safetensors", 0);
    assert_int_equal(mar_report_kind(r), MAR_KIND_UNKNOWN);
    assert_null(mar_report_model(r));
    assert_null(mar_report_vae(r));
    assert_int_equal(mar_report_problem_count(r), 1);
    expect_fact(r, "kind: unknown");
    expect_fact(r, "metadata: mar.heads = 2");
    mar_report_free(r);
    assert_int_equal(mar_inspect(&handle, DATA "big.pt", 0, &r), MAR_EFORMAT);
    assert_null(r);
    assert_int_equal(mar_inspect(&handle, DATA "absent", 0, &r), MAR_EIO);
    assert_int_equal(mar_inspect(&handle, DATA "mar.pth", 3, &r), MAR_EARG);
    assert_non_null(strstr(mar_error(&handle), "3 attention heads"));
}

/* --- files with one thing wrong ----------------------------------------------------------------------------------- */

typedef struct {
    const char *drop, *integers; /* a tensor to leave out, one to store as I32 */
    const char *reshape;         /* [a, b] becomes [b, a], or [a] [1, a] */
    const char *spoil;           /* gets two NaN and one -Inf */
    const char *extra;           /* a tensor [2] to add */
    const char *version;         /* an I64 [] to add */
    const char *unread;          /* a U16 [2] to add */
    const char *scale;           /* scales [3] of the fp8 matrix to add, in place of the one number */
    const char *key;             /* of metadata to add */
    const char *prefix;          /* prefix of all names */
    const char *fp8;             /* a matrix X.weight to store as 1 in F8_E4M3, with the scale 0.5 */
} damage;

static void add_tensor(cJSON *header, bytes *data, const char *name, const char *dtype, cJSON *shape,
                       const void *values, size_t size)
{
    const double offsets[2] = {(double)data->size, (double)(data->size + size)};
    cJSON *entry = cJSON_AddObjectToObject(header, name);
    cJSON_AddStringToObject(entry, "dtype", dtype);
    cJSON_AddItemToObject(entry, "shape", shape);
    cJSON_AddItemToObject(entry, "data_offsets", cJSON_CreateDoubleArray(offsets, 2));
    bytes_put(data, values, size);
}

static int same(const char *a, const char *b)
{
    return a && strcmp(a, b) == 0;
}

static void add_damaged(cJSON *header, bytes *data, const wt_file *f, const wt_tensor *t, const damage *d)
{
    double shape[WT_MAX_RANK];
    int rank = t->rank;
    for (int i = 0; i < rank; i++) shape[i] = (double)t->shape[i];
    if (same(d->reshape, t->name)) {
        shape[1] = shape[0];
        shape[0] = rank == 1 ? 1 : (double)t->shape[1];
        rank = 2;
    }
    char name[256];
    snprintf(name, sizeof name, "%s%s", d->prefix ? d->prefix : "", t->name);
    float *values = golden_f32(f, t->name, -1);
    if (same(d->fp8, t->name)) {
        char scale[300];
        memset(values, 0x38, (size_t)t->count);
        add_tensor(header, data, name, "F8_E4M3", cJSON_CreateDoubleArray(shape, rank), values, (size_t)t->count);
        snprintf(scale, sizeof scale, "%s_scale", name);
        if (!d->scale) add_tensor(header, data, scale, "F32", cJSON_CreateArray(), (float[]){0.5f}, 4);
        free(values);
        return;
    }
    if (same(d->spoil, t->name)) {
        values[1] = values[3] = NAN;
        values[4] = -INFINITY;
    }
    add_tensor(header, data, name, same(d->integers, t->name) ? "I32" : "F32", cJSON_CreateDoubleArray(shape, rank),
               values, (size_t)t->count * sizeof *values);
    free(values);
}

/* Writes the damaged `source` to `path`. */
static void write_damaged(const char *path, const char *source, const damage *d)
{
    cJSON *header = cJSON_CreateObject();
    bytes data = {0}, file = {0};
    wt_file *f = open_weights(source);
    for (int i = 0; i < wt_count(f); i++)
        if (!same(d->drop, wt_at(f, i)->name)) add_damaged(header, &data, f, wt_at(f, i), d);
    if (d->extra) add_tensor(header, &data, d->extra, "F32", cJSON_CreateIntArray((int[]){2}, 1), (float[2]){0}, 8);
    if (d->version) add_tensor(header, &data, d->version, "I64", cJSON_CreateArray(), (int64_t[1]){3}, 8);
    if (d->unread) add_tensor(header, &data, d->unread, "U16", cJSON_CreateIntArray((int[]){2}, 1), (short[2]){0}, 4);
    if (d->scale) add_tensor(header, &data, d->scale, "F32", cJSON_CreateIntArray((int[]){3}, 1), (float[3]){0}, 12);
    if (d->key) cJSON_AddStringToObject(cJSON_AddObjectToObject(header, "__metadata__"), d->key, "some value");
    char *text = cJSON_PrintUnformatted(header);
    bytes_number(&file, strlen(text), 8);
    bytes_text(&file, text);
    bytes_put(&file, data.data, data.size);
    bytes_to_file(&file, path);
    wt_close(f);
    cJSON_free(text);
    cJSON_Delete(header);
    bytes_free(&data);
    bytes_free(&file);
}

/* Checks that inspect shows the problem, and that convert is refused for it and leaves nothing behind. */
static void expect_one(const char *source, const damage *d, const char *problem)
{
    char *dir = test_directory(), path[600], out[620];
    snprintf(path, sizeof path, "%s/in.safetensors", dir);
    snprintf(out, sizeof out, "%s/out.safetensors", dir);
    write_damaged(path, source, d);
    mar_report *r = inspect(path, 0);
    expect_problems(r, problem ? 1 : 0, &problem);
    mar_report_free(r);
    mar_status status = mar_convert(&handle, path, out, MAR_DTYPE_F32, 0);
    assert_int_equal(status, problem ? MAR_EMODEL : MAR_OK);
    assert_int_equal(access(out, F_OK), problem ? -1 : 0);
    if (problem) {
        assert_memory_equal(mar_error(&handle), path, strlen(path));
        assert_string_equal(mar_error(&handle) + strlen(path) + 2, problem);
    }
}

TEST_CASE(test_mar_problems)
{
    const char *source = DATA "mar.pth";
    expect_one(source, &(damage){0}, NULL);
    expect_one(source, &(damage){.drop = "decoder_blocks.1.attn.qkv.weight"},
               "tensor decoder_blocks.1.attn.qkv.weight is missing, expected shape [48, 16]");
    expect_one(source, &(damage){.drop = "class_emb.weight"}, "tensor class_emb.weight is missing");
    expect_one(source, &(damage){.reshape = "encoder_blocks.1.mlp.fc2.weight"},
               "tensor encoder_blocks.1.mlp.fc2.weight has shape [64, 16], expected [16, 64]");
    expect_one(source, &(damage){.reshape = "z_proj.bias"}, "tensor z_proj.bias has shape [1, 16], expected [16]");
    expect_one(source, &(damage){.extra = "diffloss.net.other"},
               "tensor diffloss.net.other [2] is extra: no such tensor in this model");
    expect_one(source, &(damage){.integers = "z_proj_ln.weight"},
               "tensor z_proj_ln.weight has dtype I32, expected F32, BF16, F16, F64, F8_E4M3 or F8_E5M2");
    expect_one(source, &(damage){.spoil = "encoder_norm.weight"},
               "tensor encoder_norm.weight: 2 NaN and 1 Inf among 16 values");
}

/* Entries that no model needs: integers are listed. A float may be a layer of another architecture, or a scale. */
TEST_CASE(test_not_needed)
{
    char *path = test_path("in.safetensors");
    expect_one(DATA "mar.pth", &(damage){.version = "version"}, NULL);
    expect_one(DATA "vae.ckpt", &(damage){.version = "encoder.norm_out.num_batches_tracked"}, NULL);
    write_damaged(path, DATA "mar.pth", &(damage){.version = "version"});
    mar_report *r = inspect(path, 0);
    expect_fact(r, "not needed: version (I64)");
    mar_report_free(r);
    expect_one(DATA "mar.pth", &(damage){.extra = "version"},
               "tensor version [2] is extra: no such tensor in this model");
    expect_one("weights/demo/discrete-target.safetensors", &(damage){.version = "layers.99.attention.wqkv.weight"},
               "tensor layers.99.attention.wqkv.weight [] is extra: no such tensor in this model");
}

/* Scales that are not understood are a problem of their matrix. */
TEST_CASE(test_scale_problems)
{
    expect_one(
        DATA "mar.pth", &(damage){.fp8 = "z_proj.weight", .scale = "z_proj.weight_scale"},
        "tensor z_proj.weight_scale has shape [3], expected scales of z_proj.weight [16, 4]: one number, one for "
        "each row, or, as _scale_inv, one for each block of 128x128");
}

/* Names and keys are cut where they are long. */
TEST_CASE(test_long_names)
{
    char *path = test_path("in.safetensors"), name[501], line[256];
    memset(name, 'x', 500);
    name[500] = '\0';
    write_damaged(path, DATA "mar.pth", &(damage){.extra = name, .key = name});
    mar_report *r = inspect(path, 0);
    assert_int_equal(mar_report_problem_count(r), 1);
    snprintf(line, sizeof line, "tensor %.40s...%.40s [2] is extra: no such tensor in this model", name, name);
    assert_string_equal(mar_report_problem(r, 0), line);
    snprintf(line, sizeof line, "metadata: %.40s...%.40s = some value", name, name);
    expect_fact(r, line);
    mar_report_free(r);
    write_damaged(path, DATA "mar.pth", &(damage){.extra = "x", .version = name, .prefix = "model."});
    mar_report_free(inspect(path, 0));
    write_damaged(path, DATA "mar.pth", &(damage){.extra = name, .prefix = "other."}); /* of no known kind */
    mar_report_free(inspect(path, 0));
}

TEST_CASE(test_vae_problems)
{
    const char *source = DATA "vae.ckpt";
    expect_one(source, &(damage){0}, NULL);
    expect_one(source, &(damage){.drop = "encoder.conv_out.bias"},
               "tensor encoder.conv_out.bias is missing, expected shape [8]");
    expect_one(source, &(damage){.drop = "post_quant_conv.weight"}, "tensor post_quant_conv.weight is missing");
    expect_one(source, &(damage){.extra = "loss.logvar"}, NULL); /* used by LDM's training */
    expect_one(source, &(damage){.extra = "losses"}, "tensor losses [2] is extra: no such tensor in this model");
    expect_one(source, &(damage){.spoil = "decoder.conv_in.bias"},
               "tensor decoder.conv_in.bias: 2 NaN and 1 Inf among 32 values");
}

TEST_CASE(test_vq_problems)
{
    const char *source = "tests/golden/data/vq.pth";
    expect_one(source, &(damage){0}, NULL); /* its file has quantize.codebook_used */
    expect_one(source, &(damage){.drop = "encoder.conv_blocks.2.attn.0.q.bias"},
               "tensor encoder.conv_blocks.2.attn.0.q.bias is missing, expected shape [64]");
    expect_one(source, &(damage){.drop = "quantize.embedding.weight"}, "tensor quantize.embedding.weight is missing");
    expect_one(source, &(damage){.extra = "decoder.conv_blocks.2.upsample.conv.bias"},
               "tensor decoder.conv_blocks.2.upsample.conv.bias [2] is extra: no such tensor in this model");
    expect_one(source, &(damage){.extra = "decoder.conv_blocks.2.attn.0.q.bias"},
               "tensor decoder.conv_blocks.2.attn.0.q.bias: attention in the decoder's upper levels is not supported");
    expect_one(source, &(damage){.spoil = "quantize.embedding.weight"},
               "tensor quantize.embedding.weight: 2 NaN and 1 Inf among 200 values");
}

TEST_CASE(test_many_problems)
{
    char *path = test_path("in.safetensors");
    write_damaged(path, DATA "mar.pth",
                  &(damage){.drop = "z_proj.bias", .extra = "more", .spoil = "fake_latent", .integers = "mask_token"});
    mar_report *r = inspect(path, 0);
    expect_problems(
        r, 4,
        (const char *const[]){"tensor fake_latent: 2 NaN and 1 Inf among 16 values",
                              "tensor mask_token has dtype I32, expected F32, BF16, F16, F64, F8_E4M3 or F8_E5M2",
                              "tensor z_proj.bias is missing, expected shape [16]",
                              "tensor more [2] is extra: no such tensor in this model"});
    mar_report_free(r);
    assert_int_equal(mar_convert(&handle, path, path, MAR_DTYPE_F32, 0), MAR_EMODEL);
    assert_non_null(strstr(mar_error(&handle), "fake_latent: 2 NaN and 1 Inf among 16 values (and more"));
}

/* Checks that `out` has the values of expected_path, rounded to `dtype`, bit for bit. */
static void expect_converted(const char *out, const char *expected_path, wt_dtype dtype)
{
    wt_file *f, *expected;
    f = open_weights(out);
    expected = open_weights(expected_path);
    assert_int_equal(wt_count(f), wt_count(expected));
    for (int i = 0; i < wt_count(expected); i++) {
        const wt_tensor *e = wt_at(expected, i), *t = wt_find(f, e->name);
        assert_non_null(t);
        assert_int_equal(t->dtype, dtype);
        float *a = golden_f32(f, e->name, e->count), *b = golden_f32(expected, e->name, e->count);
        for (int64_t j = 0; j < e->count; j++) {
            float rounded = dtype == WT_BF16  ? wt_f32_from_bf16(wt_bf16_from_f32(b[j]))
                            : dtype == WT_F16 ? wt_f32_from_f16(wt_f16_from_f32(b[j]))
                                              : b[j];
            assert_true(a[j] == rounded);
        }
        free(a);
        free(b);
    }
    wt_close(f);
    wt_close(expected);
}

/* A model with fp8 weights has no problem, and is converted without their scales. */
TEST_CASE(test_fp8)
{
    char *path = test_path("in.safetensors"), *out = test_path("out.safetensors");
    write_damaged(path, DATA "mar.pth", &(damage){.fp8 = "z_proj.weight", .extra = "z_proj.input_scale"});
    mar_report *r = inspect(path, 2);
    expect_problems(r, 0, NULL);
    expect_fact(r, "tensors: 94 (93 F32, 1 F8_E4M3)");
    expect_fact(r, "fp8 weights: 1 tensors, 1 with scales; they are restored");
    mar_report_free(r);
    assert_library(&handle, mar_convert(&handle, path, out, MAR_DTYPE_AUTO, 2));
    wt_file *f = open_weights(out);
    assert_int_equal(wt_count(f), 92);
    assert_int_equal(wt_find(f, "z_proj.weight")->dtype, WT_F32);
    float *values = golden_f32(f, "z_proj.weight", 64);
    for (int i = 0; i < 64; i++) assert_true(values[i] == 0.5f);
    free(values);
    wt_close(f);
}

/* Entries of other types are listed, and are no problem. */
TEST_CASE(test_unread)
{
    char *path = test_path("in.safetensors");
    mar_report *r = inspect(DATA "entries.pt", 0);
    expect_fact(r, "tensors: 5 (2 F32, 2 F8_E4M3, 1 F8_E5M2)");
    expect_fact(r, "not read: freqs_cis (C64), block._extra_state (_io.BytesIO), attn._extra_state (None) and 10 more");
    mar_report_free(r);
    write_damaged(path, DATA "mar.pth", &(damage){.extra = "blocks.0._extra_state"});
    r = inspect(path, 2);
    expect_problems(r, 0, NULL);
    mar_report_free(r);
}

/* --- training checkpoints ----------------------------------------------------------------------------------------- */

/* Tests what training wrappers add to names, anywhere in them. tests/weights/test_names.c has the families. */
TEST_CASE(test_prefixes)
{
    static const char *const cases[][2] = {
        {"module.", "module."},
        {"_orig_mod.module.", "module. and _orig_mod."},
        {"module.module.", "module."},
        {"model.", "model."},
        {"model.model.", "model."},
        {"model._fsdp_wrapped_module._checkpoint_wrapped_module._orig_mod.module.",
         "module., _orig_mod., _fsdp_wrapped_module., _checkpoint_wrapped_module. and model."},
    };
    char *dir = test_directory(), path[600], out[600], fact[200];
    snprintf(path, sizeof path, "%s/in.safetensors", dir);
    snprintf(out, sizeof out, "%s/out.safetensors", dir);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        write_damaged(path, DATA "mar.pth", &(damage){.prefix = cases[i][0]});
        mar_report *r = inspect(path, 2);
        expect_problems(r, 0, NULL);
        assert_int_equal(mar_report_kind(r), MAR_KIND_MAR);
        snprintf(fact, sizeof fact, "names: without %s, which 92 of 92 tensors have", cases[i][1]);
        expect_fact(r, fact);
        mar_report_free(r);
        assert_library(&handle, mar_convert(&handle, path, out, MAR_DTYPE_F32, 2));
        expect_converted(out, DATA "mar.pth.expected.safetensors", WT_F32);
    }
    /* Both numbers are those of tensors that are read, as the line "tensors:" has them. */
    write_damaged(path, DATA "mar.pth", &(damage){.prefix = "module.", .unread = "x", .version = "module.y"});
    mar_report *beside = inspect(path, 2);
    expect_fact(beside, "tensors: 93 (92 F32, 1 I64)");
    expect_fact(beside, "not read: x (U16)");
    expect_fact(beside, "names: without module., which 93 of 93 tensors have");
    mar_report_free(beside);
    /* Two names that become equal are refused. */
    mar_report *r;
    write_damaged(path, DATA "mar.pth", &(damage){.extra = "module.fake_latent"});
    assert_int_equal(mar_inspect(&handle, path, 0, &r), MAR_EFORMAT);
    assert_non_null(strstr(mar_error(&handle), "tensor \"fake_latent\" appears twice, where names lost module."));
}

/* Tests `model` beside `model_ema`: the latter is read unless the other is requested. Missing weights are refused. */
TEST_CASE(test_weights)
{
    static const struct {
        mar_weights asked;
        const char *format, *fact;
        int is_average;
    } cases[] = {
        {MAR_WEIGHTS_AUTO, "format: PyTorch zip (model_ema)",
         "weights: model_ema; the file has weights model, those without average, too", 1},
        {MAR_WEIGHTS_EMA, "format: PyTorch zip (model_ema)",
         "weights: model_ema; the file has weights model, those without average, too", 1},
        {MAR_WEIGHTS_MODEL, "format: PyTorch zip (model)",
         "weights: model; the file has weights ema, the averaged weights, too", 0},
    };
    mar_report *r;
    wt_file *expected, *f;
    mar_err err = {0};
    expected = open_weights(DATA "mar.pth.expected.safetensors");
    float *average = golden_f32(expected, "z_proj.weight", 64);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        handle.weights = cases[i].asked;
        r = inspect(DATA "mar.pth", 2);
        expect_problems(r, 0, NULL);
        expect_fact(r, cases[i].format);
        expect_fact(r, cases[i].fact);
        mar_report_free(r);
        assert_ok(wt_open_source(&(mar_source){.path = DATA "mar.pth", .fd = -1}, cases[i].asked, &f, &err), &err);
        float *values = golden_f32(f, "z_proj.weight", 64);
        assert_int_equal(memcmp(values, average, 64 * sizeof *values) == 0, cases[i].is_average);
        free(values);
        wt_close(f);
    }
    handle.weights = MAR_WEIGHTS_EMA;
    assert_int_equal(mar_inspect(&handle, DATA "vae.ckpt", 0, &r), MAR_EARG);
    assert_string_equal(mar_error(&handle),
                        "--weights ema: " DATA "vae.ckpt has no model_ema or ema, but weights model");
    r = inspect(DATA "module.pt", 0); /* LlamaGen's `ema`, of an unknown model */
    expect_fact(r, "format: PyTorch zip (ema)");
    mar_report_free(r);
    assert_int_equal(mar_inspect(&handle, DATA "mar.pth.expected.safetensors", 0, &r), MAR_EARG);
    assert_string_equal(mar_error(&handle),
                        "--weights has no effect: " DATA "mar.pth.expected.safetensors has one set of weights");
    handle.weights = MAR_WEIGHTS_AUTO;
    free(average);
    wt_close(expected);
}

/* Returns the 32 values of proj_in.weight of a set of weights. The caller frees them. */
static float *projection(mar_weights weights)
{
    wt_file *f;
    mar_err err = {0};
    assert_ok(mar_open_checkpoint(DATA "spherear.pt", 0, weights, &f, &err), &err);
    float *values = golden_f32(f, "proj_in.weight", 32);
    wt_close(f);
    return values;
}

/* Tests that `ema` comes before `model` in a file of SphereAR, and that the model's matrices are from there. */
TEST_CASE(test_weights_of_spherear)
{
    static const struct {
        mar_weights asked;
        const char *format, *fact;
    } cases[] = {
        {MAR_WEIGHTS_AUTO, "format: PyTorch zip (ema)",
         "weights: ema; the file has weights model, those without average, too"},
        {MAR_WEIGHTS_EMA, "format: PyTorch zip (ema)",
         "weights: ema; the file has weights model, those without average, too"},
        {MAR_WEIGHTS_MODEL, "format: PyTorch zip (model)",
         "weights: model; the file has weights ema, the averaged weights, too"},
    };
    float *values[3];
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        handle.weights = cases[i].asked;
        mar_report *r = inspect(DATA "spherear.pt", 2);
        expect_problems(r, 0, NULL);
        expect_fact(r, cases[i].format);
        expect_fact(r, cases[i].fact);
        mar_report_free(r);
        values[i] = projection(cases[i].asked);
    }
    handle.weights = MAR_WEIGHTS_AUTO;
    assert_memory_equal(values[0], values[1], 32 * sizeof(float));
    assert_memory_not_equal(values[0], values[2], 32 * sizeof(float));
    for (int i = 0; i < 3; i++) free(values[i]);
}

/* Checks that files of another kind are named in one line, with the expected kind. */
TEST_CASE(test_foreign_files)
{
    static const struct {
        const char *tensors[2], *kind, *problem;
    } cases[] = {
        {{"model.diffusion_model.input_blocks.0.0.weight", "first_stage_model.decoder.conv_in.weight"},
         "kind: Stable Diffusion checkpoint",
         "is a Stable Diffusion checkpoint, expected a MAR, SphereAR or LlamaGen model, or an image decoder alone"},
        {{"decoder.conv_in.weight", "decoder.up_blocks.0.resnets.0.conv1.weight"},
         "kind: autoencoder with diffusers' names (decoder.up_blocks)",
         "is an autoencoder with diffusers' names (decoder.up_blocks), expected CompVis's (decoder.up)"}};
    char *path = test_path("in.safetensors"), header[512];
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        snprintf(header, sizeof header,
                 "{\"%s\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]},"
                 "\"%s\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[4,8]}}",
                 cases[i].tensors[0], cases[i].tensors[1]);
        bytes b = make_safetensors(header, 8);
        bytes_to_file(&b, path);
        bytes_free(&b);
        mar_report *r = inspect(path, 0);
        assert_int_equal(mar_report_kind(r), MAR_KIND_UNKNOWN);
        expect_fact(r, cases[i].kind);
        expect_problems(r, 1, &cases[i].problem);
        mar_report_free(r);
    }
}

/* --- conversion --------------------------------------------------------------------------------------------------- */

static void expect_metadata(const wt_file *f, const char *key, const char *value)
{
    if (!wt_metadata(f, key)) fail_msg("no metadata %s", key);
    assert_string_equal(wt_metadata(f, key), value);
}

TEST_CASE(test_convert_mar)
{
    static const struct {
        mar_dtype asked;
        wt_dtype stored;
    } cases[] = {{MAR_DTYPE_F32, WT_F32}, {MAR_DTYPE_BF16, WT_BF16}, {MAR_DTYPE_F16, WT_F16}, {MAR_DTYPE_AUTO, WT_F32}};
    char *out = test_path("out.safetensors");
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        wt_file *f;
        assert_library(&handle, mar_convert(&handle, DATA "mar.pth", out, cases[i].asked, 4));
        expect_converted(out, DATA "mar.pth.expected.safetensors", cases[i].stored);
        f = open_weights(out);
        expect_metadata(f, "format", "pt");
        expect_metadata(f, "mar.kind", "mar");
        expect_metadata(f, "mar.heads", "4");
        expect_metadata(f, "mar.width", "16");
        expect_metadata(f, "mar.head_depth", "2");
        expect_metadata(f, "mar.parameters", "17784");
        expect_metadata(f, "mar.source_format", "PyTorch zip (model_ema)");
        wt_close(f);
        mar_report *r = inspect(out, 0); /* the heads come from the metadata now */
        expect_problems(r, 0, NULL);
        assert_int_equal(mar_report_model(r)->heads, 4);
        mar_report_free(r);
    }
    /* Two numbers are both written, a guess is not. */
    wt_file *f;
    assert_library(&handle, mar_convert(&handle, DATA "mar.pth", out, MAR_DTYPE_F32, mar_heads(4, 2)));
    f = open_weights(out);
    expect_metadata(f, "mar.heads", "4");
    expect_metadata(f, "mar.decoder_heads", "2");
    wt_close(f);
    mar_report *r = inspect(out, 0);
    assert_int_equal(mar_report_model(r)->decoder_heads, 2);
    assert_int_equal(mar_report_model(r)->heads_guessed, 0);
    mar_report_free(r);
    assert_library(&handle, mar_convert(&handle, DATA "mar.pth", out, MAR_DTYPE_F32, 0));
    f = open_weights(out);
    assert_null(wt_metadata(f, "mar.heads"));
    wt_close(f);
    r = inspect(out, 0);
    assert_int_equal(mar_report_model(r)->heads_guessed, 1);
    expect_fact(
        r, "transformer: width 16, 2 encoder and 2 decoder blocks, 1 heads (a guess: nothing in the file says it), "
           "MLP 64");
    mar_report_free(r);
    /* Converts onto itself: the source stays readable while the new file is made. */
    assert_library(&handle, mar_convert(&handle, out, out, MAR_DTYPE_BF16, 0));
    expect_converted(out, DATA "mar.pth.expected.safetensors", WT_BF16);
}

TEST_CASE(test_convert_vae)
{
    char *out = test_path("out.safetensors");
    assert_library(&handle, mar_convert(&handle, DATA "vae.ckpt", out, MAR_DTYPE_AUTO, 0));
    expect_converted(out, DATA "vae.ckpt", WT_F16);
    wt_file *f = open_weights(out);
    expect_metadata(f, "mar.kind", "vae");
    expect_metadata(f, "mar.vae_stride", "2");
    wt_close(f);
}

TEST_CASE(test_convert_vq)
{
    char *out = test_path("out.safetensors");
    assert_library(&handle, mar_convert(&handle, "tests/golden/data/vq.pth", out, MAR_DTYPE_AUTO, 0));
    wt_file *f = open_weights(out);
    expect_metadata(f, "mar.kind", "vae");
    expect_metadata(f, "mar.vae_codebook", "50");
    expect_metadata(f, "mar.vae_z_channels", "4");
    assert_null(wt_find(f, "quantize.codebook_used"));
    wt_close(f);
    mar_report *r = inspect(out, 0);
    expect_problems(r, 0, NULL);
    assert_int_equal(mar_report_kind(r), MAR_KIND_VAE);
    assert_int_equal(mar_report_vae(r)->codebook, 50);
    mar_report_free(r);
}

TEST_CASE(test_convert_failures)
{
    char *dir = test_directory(), out[600];
    snprintf(out, sizeof out, "%s/absent/out.safetensors", dir);
    assert_int_equal(mar_convert(&handle, DATA "mar.pth", out, MAR_DTYPE_F32, 0), MAR_EIO);
    assert_non_null(strstr(mar_error(&handle), out));
    snprintf(out, sizeof out, "%s/out.safetensors", dir);
    assert_int_equal(mar_convert(&handle, DATA "absent", out, MAR_DTYPE_F32, 0), MAR_EIO);
    assert_int_equal(mar_convert(&handle, DATA "dtypes.pt", out, MAR_DTYPE_F32, 0), MAR_EMODEL);
    assert_int_equal(mar_convert(&handle, DATA "mar.pth", out, MAR_DTYPE_F32, 5), MAR_EARG);
    assert_int_equal(access(out, F_OK), -1);
}
