/* Tests the T5 encoder against transformers (tests/golden/make_t5.py), through the rooms below and the public calls. */
#include "tests/support/archive.h"

#include "mar_files.h"
#include "tests/support/demo.h"
#include "tests/support/device.h"
#include "tests/support/t5_case.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { DIM = T5_DIM, TOKENS = 24, PROMPTS = 4, DISTANCE = 400 };

static const char *const prompts[PROMPTS] = {
    "a bold seven", "The quick brown fox jumps over the lazy dog, twice, and then once more over the moon", "x",
    "tall trees \xc3\x84\xc3\x96"};

/* --- relative positions ------------------------------------------------------------------------------------------- */

TEST_CASE(buckets_against_transformers)
{
    static const int shapes[][2] = {{32, 128}, {32, 256}, {64, 128}, {8, 20}};
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        char name[64];
        snprintf(name, sizeof name, "buckets.%d.%d", shapes[i][0], shapes[i][1]);
        float *bucket = t5_golden(name, 2 * DISTANCE + 1);
        for (int d = -DISTANCE; d <= DISTANCE; d++) {
            const int found = t5_bucket(d, shapes[i][0], shapes[i][1]), expected = (int)bucket[d + DISTANCE];
            if (found != expected) fail_msg("%s: bucket %d at distance %d, expected %d", name, found, d, expected);
            /* a table up to the largest distance is exact */
            const int near = d < -shapes[i][1] ? -shapes[i][1] : d > shapes[i][1] ? shapes[i][1] : d;
            assert_int_equal(t5_bucket(near, shapes[i][0], shapes[i][1]), expected);
        }
        free(bucket);
    }
}

/* --- hidden states ------------------------------------------------------------------------------------------------ */

static void check_features(const char *folder, mar_dtype dtype, double allowed)
{
    kern_queue *k = open_queue(dtype, 2);
    if (!k) return;
    t5_encoder *e = t5_load(k, folder);
    const double error = t5_error(k, e, T5_CASES, 1);
    if (!(error <= allowed)) fail_msg("%s, dtype %d: relative error %.3g, allowed %.3g", folder, dtype, error, allowed);
    t5_free(k->device, e);
    close_queue(k);
}

TEST_CASE(features_in_f32)
{
    check_features(T5_FOLDER, MAR_DTYPE_F32, 1e-5);
    check_features(T5_BINARY, MAR_DTYPE_F32, 1e-5);
}

TEST_CASE(features_in_bf16)
{
    check_features(T5_FOLDER, MAR_DTYPE_BF16, 1e-2);
}

TEST_CASE(features_in_int8)
{
    check_features(T5_FOLDER, MAR_DTYPE_INT8, 3e-2);
}

TEST_CASE(features_in_int4)
{
    check_features(T5_FOLDER, MAR_DTYPE_INT4, 0.25);
}

/* --- an error while loading --------------------------------------------------------------------------------------- */

static const kern_core_ops *real_core;
static int uploading; /* an upload has begun that no finish has waited for */

static void note_upload(kern_queue *k, void *to, const void *from, size_t size)
{
    uploading = 1;
    real_core->upload(k, to, from, size);
}

static void note_finish(kern_queue *k)
{
    uploading = 0;
    real_core->finish(k);
}

static void free_checked(kern_device *d, void *p)
{
    if (p) assert_int_equal(uploading, 0);
    real_core->free(d, p);
}

static mar_status refuse_linear(kern_queue *k, const kern_linear_spec *spec, kern_linear **out, mar_err *err)
{
    (void)k, (void)spec;
    *out = NULL;
    return err_set(err, MAR_ENOMEM, "no memory for a product");
}

TEST_CASE(memory_is_freed_after_uploads)
{
    kern_queue *k = open_queue(MAR_DTYPE_F32, 1);
    wt_file *f;
    t5_encoder *e;
    mar_err err = {0};
    assert_ok(wt_open_folder(T5_FOLDER, MAR_WEIGHTS_AUTO, &f, &err), &err);
    kern_core_ops core = *(real_core = k->core);
    core.upload = note_upload;
    core.finish = note_finish;
    core.free = free_checked;
    core.linear_create = refuse_linear;
    k->core = k->device->core = &core;
    assert_int_equal(t5_create(k, f, &e, &err), MAR_ENOMEM);
    assert_null(e);
    k->core = k->device->core = real_core;
    wt_close(f);
    close_queue(k);
}

/* --- the public calls --------------------------------------------------------------------------------------------- */

static mar_text *load_text(mar *m, const char *folder)
{
    mar_text *t = NULL;
    assert_library(m, mar_text_load(m, folder, &t));
    assert_non_null(t);
    return t;
}

TEST_CASE(captions_against_llamagen)
{
    static float features[PROMPTS * TOKENS * DIM], one[TOKENS * DIM];
    uint8_t mask[PROMPTS * TOKENS], one_mask[TOKENS];
    int counts[PROMPTS], one_count;
    float *expected = t5_golden("captions.features", PROMPTS * TOKENS * DIM);
    float *expected_mask = t5_golden("captions.mask", PROMPTS * TOKENS);
    float *expected_counts = t5_golden("captions.counts", PROMPTS);
    mar *m = open_mar(MAR_DTYPE_F32, 2);
    mar_text *t = load_text(m, T5_FOLDER);
    mar_close(m); /* the encoder still needs its memory */
    const mar_text_config *c = mar_text_get_config(t);
    assert_string_equal(c->name, "T5 encoder");
    assert_int_equal(c->dim, DIM);
    assert_int_equal(c->depth, 2);
    assert_int_equal(c->heads, 2);
    assert_int_equal(c->hidden, 40);
    assert_int_equal(c->vocabulary, 256);
    assert_int_equal(c->parameters, 256 * 32 + 32 * 2 + 2 * (4 * 48 * 32 + 3 * 40 * 32 + 2 * 32) + 32);
    assert_library(m, mar_text_encode(t, prompts, PROMPTS, MAR_CLEAN_OFF, TOKENS, features, mask, counts));
    assert_close(features, expected, PROMPTS * TOKENS * DIM, 1e-5);
    assert_true(expected_counts[1] > TOKENS); /* one prompt is cut */
    for (int i = 0; i < PROMPTS; i++) assert_int_equal(counts[i], (int)expected_counts[i]);
    for (int i = 0; i < PROMPTS * TOKENS; i++) {
        assert_int_equal(mask[i], (int)expected_mask[i]);
        for (int j = 0; !mask[i] && j < DIM; j++) assert_true(features[i * DIM + j] == 0);
    }
    for (int i = 0; i < PROMPTS; i++) {
        assert_library(m, mar_text_encode(t, prompts + i, 1, MAR_CLEAN_OFF, TOKENS, one, one_mask, &one_count));
        assert_memory_equal(one, features + i * TOKENS * DIM, sizeof one);
        assert_memory_equal(one_mask, mask + i * TOKENS, sizeof one_mask);
        assert_int_equal(one_count, counts[i]);
    }
    mar_text_free(t);
    free(expected);
    free(expected_mask);
    free(expected_counts);
}

/* LlamaGen's cleaning stands before the tokenizer. What it empties is the end token alone, as in the release. */
TEST_CASE(cleaned_prompts)
{
    static const char *const dirty[] = {"<person> A BOLD  Seven \xc2\xa9", "\xc2\xa9", "person a bold seven"};
    static float features[3 * TOKENS * DIM];
    float end[DIM];
    uint8_t mask[3 * TOKENS];
    int counts[3];
    mar *m = open_mar(MAR_DTYPE_F32, 1);
    mar_text *t = load_text(m, T5_FOLDER);
    assert_library(m, mar_text_encode(t, dirty, 3, MAR_CLEAN_LLAMAGEN, TOKENS, features, mask, counts));
    assert_int_equal(counts[0], counts[2]);
    assert_int_equal(counts[1], 1);
    assert_memory_equal(features, features + 2 * TOKENS * DIM, TOKENS * DIM * sizeof *features);
    assert_library(m, mar_text_encode(t, dirty, 1, MAR_CLEAN_LLAMAGEN, 1, end, mask, NULL));
    assert_memory_equal(features + (2 * TOKENS - 1) * DIM, end, sizeof end);
    assert_library(m, mar_text_encode(t, dirty, 3, MAR_CLEAN_OFF, TOKENS, features, mask, counts));
    assert_true(counts[0] > counts[2] && counts[1] > 1);
    mar_text_free(t);
    mar_close(m);
}

static void refuse(mar *m, mar_text *t, const char *second, const char *what)
{
    const char *const pair[] = {"fine", second};
    static float features[2 * TOKENS * DIM], zeros[2 * TOKENS * DIM];
    uint8_t mask[2 * TOKENS], no_mask[2 * TOKENS] = {0};
    int counts[2], no_counts[2] = {0};
    memset(features, 1, sizeof features);
    memset(mask, 1, sizeof mask);
    memset(counts, 1, sizeof counts);
    assert_int_equal(mar_text_encode(t, pair, 2, MAR_CLEAN_OFF, TOKENS, features, mask, counts), MAR_EARG);
    assert_says(mar_error(m), what);
    assert_memory_equal(features, zeros, sizeof features);
    assert_memory_equal(mask, no_mask, sizeof mask);
    assert_memory_equal(counts, no_counts, sizeof counts);
}

/* What bad prompts get; the encoder works afterwards. */
TEST_CASE(bad_prompts)
{
    enum { LONG = 100 * 1000 };
    mar *m = open_mar(MAR_DTYPE_F32, 1);
    mar_text *t = load_text(m, T5_FOLDER);
    refuse(m, t, "", "prompt 1 is empty, expected text");
    refuse(m, t, "caf\xe9 au lait", "prompt 1: ");
    refuse(m, t, "caf\xe9 au lait", "byte 3");
    refuse(m, t, NULL, "prompt 1 is NULL");
    char *text = malloc(LONG + 1);
    for (int i = 0; i < LONG; i++) text[i] = "seven "[i % 6];
    text[LONG] = '\0';
    float features[TOKENS * DIM];
    uint8_t mask[TOKENS];
    int count;
    assert_library(m, mar_text_encode(t, (const char *const *)&text, 1, MAR_CLEAN_OFF, TOKENS, features, mask, &count));
    assert_true(count > 10000);
    assert_int_equal(mask[0], 1);
    /* one token is the end token, whatever the prompt */
    float end[DIM], other[DIM];
    assert_library(m, mar_text_encode(t, (const char *const *)&text, 1, MAR_CLEAN_OFF, 1, end, mask, NULL));
    assert_library(m, mar_text_encode(t, prompts, 1, MAR_CLEAN_OFF, 1, other, mask, NULL));
    assert_memory_equal(end, other, sizeof end);
    free(text);
    mar_text_free(t);
    mar_close(m);
}

/* More tokens than a pass takes: the bits of each prompt alone. */
TEST_CASE(many_prompts)
{
    enum { MANY = 130, TOKENS_EACH = 64 };
    const char *list[MANY];
    for (int i = 0; i < MANY; i++) list[i] = prompts[i * 7 % PROMPTS];
    mar *m = open_mar(MAR_DTYPE_F32, 2);
    mar_text *t = load_text(m, T5_FOLDER);
    float *features = malloc(sizeof(float) * MANY * TOKENS_EACH * DIM),
          *one = malloc(sizeof(float) * TOKENS_EACH * DIM);
    uint8_t *mask = malloc(MANY * TOKENS_EACH), one_mask[TOKENS_EACH];
    assert_library(m, mar_text_encode(t, list, MANY, MAR_CLEAN_OFF, TOKENS_EACH, features, mask, NULL));
    for (int i = 0; i < MANY; i += 43) {
        assert_library(m, mar_text_encode(t, list + i, 1, MAR_CLEAN_OFF, TOKENS_EACH, one, one_mask, NULL));
        assert_memory_equal(one, features + i * TOKENS_EACH * DIM, sizeof(float) * TOKENS_EACH * DIM);
        assert_memory_equal(one_mask, mask + i * TOKENS_EACH, sizeof one_mask);
    }
    free(features);
    free(one);
    free(mask);
    mar_text_free(t);
    mar_close(m);
}

/* --- progress ----------------------------------------------------------------------------------------------------- */

typedef struct {
    uint64_t last, cancel_at;
    int calls;
} progress;

static int report(void *user, uint64_t done, uint64_t total)
{
    progress *p = user;
    assert_true(done >= p->last && done <= total);
    p->last = done;
    p->calls++;
    return p->cancel_at && done >= p->cancel_at;
}

TEST_CASE(loading_reports_and_cancels)
{
    mar *m = open_mar(MAR_DTYPE_F32, 1);
    mar_source source;
    mar_source_init(&source, sizeof source);
    progress p = {0};
    source.path = T5_FOLDER, source.progress = report, source.user = &p;
    mar_text *t;
    assert_library(m, mar_text_load_from(m, &source, &t));
    assert_true(p.calls > 3);
    mar_text_free(t);
    p = (progress){.cancel_at = 20000};
    assert_int_equal(mar_text_load_from(m, &source, &t), MAR_ECANCELLED);
    assert_null(t);
    mar_close(m);
}

/* --- inspect and convert ------------------------------------------------------------------------------------------ */

static void copy_to(const char *folder, const char *from, const char *name)
{
    char *path;
    bytes b = bytes_from_file(from);
    assert_true(asprintf(&path, "%s/%s", folder, name) > 0);
    bytes_to_file(&b, path);
    bytes_free(&b);
    free(path);
}

TEST_CASE(inspected)
{
    static const char *const folders[] = {T5_FOLDER, T5_BINARY};
    mar *m = open_mar(MAR_DTYPE_F32, 1);
    for (int i = 0; i < 2; i++) {
        mar_report *r;
        char all[4096] = "";
        assert_library(m, mar_inspect(m, folders[i], 0, &r));
        assert_int_equal(mar_report_kind(r), MAR_KIND_T5);
        assert_int_equal(mar_report_problem_count(r), 0);
        for (int j = 0; j < mar_report_fact_count(r); j++) {
            const size_t n = strlen(all);
            snprintf(all + n, sizeof all - n, "%s\n", mar_report_fact(r, j));
        }
        assert_says(all, "kind: T5 encoder\n");
        assert_says(all, i ? "format: PyTorch zip\n" : "format: safetensors, 2 shards\n");
        assert_says(all, "width 32, 2 layers, 2 heads of 24, gated GELU 40, 32 buckets of positions up to 128\n");
        assert_says(all, "vocabulary: 256 tokens\n");
        assert_says(all, "parameters of the decoder, which nothing needs");
        mar_report_free(r);
    }
    int heads = mar_inspect(m, T5_FOLDER, 4, &(mar_report *){0});
    assert_int_equal(heads, MAR_EARG);
    assert_says(mar_error(m), "--heads has no effect");
    mar_close(m);
}

/* Converts a folder to one with the encoder's file and the tokenizer only, and compares its hidden states. */
static void check_converted(const char *from, mar_dtype file, mar_dtype device, double allowed)
{
    char *folder = test_directory(), *path;
    mar *m = open_mar(device, 1);
    if (!m) return;
    assert_true(asprintf(&path, "%s/model.safetensors", folder) > 0);
    assert_library(m, mar_convert(m, from, path, file, 0));
    copy_to(folder, T5_FOLDER "/spiece.model", "spiece.model");
    wt_file *f = open_weights(path);
    const int norms = 2 * 2 + 1, matrices = 2 * 7, groups = 2 * 5; /* groups: of a width that int4 takes */
    const int scales = file == MAR_DTYPE_INT8 ? matrices : file == MAR_DTYPE_INT4 ? groups : 0;
    assert_int_equal(wt_count(f), 2 + norms + matrices + scales);
    assert_string_equal(wt_metadata(f, "mar.kind"), "t5");
    assert_string_equal(wt_metadata(f, "mar.eps"), "9.99999997e-07");
    wt_close(f);
    mar_text *t;
    assert_library(m, mar_text_load(m, folder, &t));
    assert_int_equal(mar_text_get_config(t)->int8_weights, file == MAR_DTYPE_INT8);
    mar_text_free(t);
    kern_queue *k = queue_of(m);
    t5_encoder *e = t5_load(k, folder);
    const double error = t5_error(k, e, T5_CASES, 0);
    if (!(error <= allowed)) fail_msg("%s as %d: relative error %.3g, allowed %.3g", from, file, error, allowed);
    t5_free(k->device, e);
    free_queue(k);
    mar_close(m);
    free(path);
}

TEST_CASE(converted)
{
    check_converted(T5_FOLDER, MAR_DTYPE_F32, MAR_DTYPE_F32, 1e-5);
    check_converted(T5_BINARY, MAR_DTYPE_F32, MAR_DTYPE_F32, 1e-5);
    check_converted(T5_FOLDER, MAR_DTYPE_BF16, MAR_DTYPE_F32, 1e-2);
    check_converted(T5_FOLDER, MAR_DTYPE_INT8, MAR_DTYPE_F32, 3e-2);
    check_converted(T5_FOLDER, MAR_DTYPE_INT8, MAR_DTYPE_INT8, 3e-2);
    check_converted(T5_FOLDER, MAR_DTYPE_INT4, MAR_DTYPE_F32, 0.25);
    check_converted(T5_FOLDER, MAR_DTYPE_INT4, MAR_DTYPE_INT4, 0.25);
}

/* Checks that a folder becomes one with configuration and tokenizer, or nothing. */
TEST_CASE(converted_to_a_folder)
{
    char *dir = test_directory(), from[600], to[600], name[700];
    mar *m = open_mar(MAR_DTYPE_F32, 1);
    mar_text *t;
    snprintf(from, sizeof from, "%s/from", dir), snprintf(to, sizeof to, "%s/to/", dir);
    assert_library(m, mar_convert(m, T5_FOLDER, from, MAR_DTYPE_INT8, 0)); /* one that can be damaged */
    snprintf(name, sizeof name, "%s/config.json", from);
    assert_int_equal(access(name, F_OK), 0);
    assert_library(m, mar_convert(m, from, to, MAR_DTYPE_INT4, 0));
    assert_library(m, mar_text_load(m, to, &t));
    mar_text_free(t);
    assert_int_equal(mar_convert(m, from, to, MAR_DTYPE_F32, 0), MAR_EIO);
    assert_says(
        mar_error(m),
        "exists, and folders are not replaced; expected a new folder, an empty one or a name ending in .safetensors");
    snprintf(name, sizeof name, "%s/tokenizer.json", from);
    assert_int_equal(mkdir(name, 0777), 0); /* cannot be copied */
    snprintf(to, sizeof to, "%s/none", dir);
    assert_int_equal(mar_convert(m, from, to, MAR_DTYPE_F32, 0), MAR_EIO);
    assert_says(mar_error(m), "tokenizer.json");
    assert_int_equal(access(to, F_OK), -1);
    snprintf(name, sizeof name, "%s.partial-%ld", to, (long)getpid());
    assert_int_equal(access(name, F_OK), -1);
    mar_close(m);
}

/* --- other folders ------------------------------------------------------------------------------------------------ */

/* Makes a folder of the encoder with another config.json and without `without`. */
static char *folder_with(const char *config, const char *without)
{
    static const char *const names[] = {"pytorch_model.bin", "spiece.model"};
    char *folder = test_directory(), *path;
    for (int i = 0; i < 2; i++) {
        char from[128];
        snprintf(from, sizeof from, "%s/%s", T5_BINARY, names[i]);
        if (!without || strcmp(without, names[i]) != 0) copy_to(folder, from, names[i]);
    }
    bytes b = {0};
    bytes_text(&b, config);
    assert_true(asprintf(&path, "%s/config.json", folder) > 0);
    bytes_to_file(&b, path);
    bytes_free(&b);
    free(path);
    return folder;
}

TEST_CASE(other_folders)
{
    static const struct {
        const char *config, *without;
        mar_status status;
        const char *what;
    } cases[] = {
        {"{\"model_type\": \"gpt2\", \"architectures\": [\"GPT2LMHeadModel\"]}", NULL, MAR_EMODEL,
         ": is a GPT2LMHeadModel, expected a T5 encoder (T5EncoderModel, model_type t5)"},
        {"{\"model_type\": \"umt5\"}", NULL, MAR_EMODEL, ": is a umt5, expected a T5 encoder"},
        {"{\"num_heads\": 4}", NULL, MAR_EMODEL, ": config.json says num_heads 4, the tensors have 2"},
        {"{\"feed_forward_proj\": \"relu\"}", NULL, MAR_EMODEL, ": the activation is relu, expected gated-gelu"},
        {"{\"layer_norm_epsilon\": 2}", NULL, MAR_EMODEL, ": the norms' epsilon is 2, expected 0 to 1"},
        {"{\"relative_attention_max_distance\": 8}", NULL, MAR_EMODEL, ": relative positions up to 8, expected more"},
        {"{}", "spiece.model", MAR_EIO, "spiece.model"},
        {"{}", "pytorch_model.bin", MAR_EIO, "has neither model.safetensors nor pytorch_model.bin"},
    };
    mar *m = open_mar(MAR_DTYPE_F32, 1);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        mar_text *t = (mar_text *)1;
        const mar_status status = mar_text_load(m, folder_with(cases[i].config, cases[i].without), &t);
        if (status != cases[i].status || t) fail_msg("%s: %s", mar_status_name(status), mar_error(m));
        assert_says(mar_error(m), cases[i].what);
    }
    /* calls for models name it */
    mar_model *model;
    assert_int_equal(mar_model_load(m, T5_FOLDER, 0, &model), MAR_EMODEL);
    assert_says(mar_error(m), "is a T5 encoder, expected a MAR, SphereAR or LlamaGen model");
    /* and an image decoder's file as model.safetensors */
    char *folder = test_directory();
    mar_text *t;
    copy_to(folder, "weights/demo/vae.safetensors", "model.safetensors");
    assert_int_equal(mar_text_load(m, folder, &t), MAR_EMODEL);
    assert_says(mar_error(m), "is an image decoder (KL autoencoder), expected a T5 encoder");
    mar_close(m);
}
