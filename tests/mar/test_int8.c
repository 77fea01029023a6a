/* Tests dtype int8 above the kernels: files with int8 weights, sessions' guarantees, and a handle's refusals. */
#include "tests/support/archive.h"

#include "mar_files.h"
#include "mar_measure.h"
#include "mar_methods.h"
#include "tests/support/demo.h"

#include "kernels/int8.h"
#include "mar/core/engine.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static const struct {
    const char *model;
    int matrices, tokens; /* number of int8 matrices; floats of an image */
} families[] = {{"demo", 16, DEMO_TOKENS}, {"demo-discrete", 30, DEMO_SEQ}};
enum { FAMILIES = 2, MOST_TOKENS = DEMO_TOKENS };

static mar *open_int8(const mar_options *with)
{
    mar_options options = with ? *with : (mar_options){0};
    mar *m;
    options.size = sizeof options;
    options.dtype = MAR_DTYPE_INT8, options.threads = 2, options.backend = MAR_BACKEND_CPU;
    if (mar_open(&options, &m) != MAR_OK) fail_msg("%s", mar_error(m));
    return m;
}

typedef struct {
    char *dir, bf16[600], int8[600], other[600];
    mar *m; /* in f32 */
} fixture;

/* Converts the model to bf16, and that file to int8. */
static fixture set_up(const char *model)
{
    fixture x = {.dir = test_directory(), .m = open_mar(MAR_DTYPE_F32, 2)};
    snprintf(x.bf16, sizeof x.bf16, "%s/bf16.safetensors", x.dir);
    snprintf(x.int8, sizeof x.int8, "%s/int8.safetensors", x.dir);
    snprintf(x.other, sizeof x.other, "%s/other.safetensors", x.dir);
    assert_library(x.m, mar_convert(x.m, model, x.bf16, MAR_DTYPE_BF16, 0));
    assert_library(x.m, mar_convert(x.m, x.bf16, x.int8, MAR_DTYPE_INT8, 0));
    return x;
}

static void tear_down(fixture *x)
{
    mar_close(x->m);
}

/* --- files -------------------------------------------------------------------------------------------------------- */

/* Checks that the blocks' matrices equal kern_int8_quantise of the source's. All else is bf16. */
TEST_CASE(converted)
{
    for (int i = 0; i < FAMILIES; i++) {
        fixture x = set_up(families[i].model);
        wt_file *from = open_weights(x.bf16), *to = open_weights(x.int8);
        int matrices = 0;
        assert_int_equal(wt_count(to), wt_count(from) + families[i].matrices);
        for (int k = 0; k < wt_count(from); k++) {
            const wt_tensor *t = wt_at(from, k), *u = wt_find(to, t->name);
            assert_non_null(u);
            float *w = golden_f32(from, t->name, t->count);
            mar_err err = {0};
            if (u->dtype == WT_I8) {
                matrices++;
                int8_t *q = malloc((size_t)t->count);
                float *scale = malloc((size_t)t->shape[0] * sizeof *scale);
                kern_int8_quantise(w, (int)t->shape[0], (int)t->shape[1], q, scale);
                const int out = (int)t->shape[0], in = (int)t->shape[1];
                int8_t *read = malloc((size_t)t->count);
                float *scales = malloc((size_t)out * sizeof *scales);
                assert_ok(wt_load_int8(to, t->name, out, in, 0, out, read, scales, &err), &err);
                assert_memory_equal(read, q, (size_t)t->count);
                assert_memory_equal(scales, scale, (size_t)out * sizeof *scale);
                free(q), free(scale), free(read), free(scales);
            } else {
                assert_int_equal(u->dtype, WT_BF16);
                float *v = golden_f32(to, t->name, t->count);
                assert_memory_equal(w, v, (size_t)t->count * sizeof *v);
                free(v);
            }
            free(w);
        }
        assert_int_equal(matrices, families[i].matrices);
        wt_close(from), wt_close(to);
        tear_down(&x);
    }
}

static int same_bytes(const char *a, const char *b)
{
    bytes x = bytes_from_file(a), y = bytes_from_file(b);
    const int same = x.size == y.size && memcmp(x.data, y.data, x.size) == 0;
    bytes_free(&x), bytes_free(&y);
    return same;
}

/* Checks that auto and int8 keep int8 weights. Other dtypes write the dequantised values; quantising those restores the
 * same int8. */
TEST_CASE(converted_again)
{
    for (int i = 0; i < FAMILIES; i++) {
        fixture x = set_up(families[i].model);
        assert_library(x.m, mar_convert(x.m, x.int8, x.other, MAR_DTYPE_AUTO, 0));
        assert_true(same_bytes(x.int8, x.other));
        assert_library(x.m, mar_convert(x.m, x.int8, x.other, MAR_DTYPE_INT8, 0));
        assert_true(same_bytes(x.int8, x.other));
        assert_library(x.m, mar_convert(x.m, x.int8, x.other, MAR_DTYPE_F32, 0));
        wt_file *f = open_weights(x.other), *source = open_weights(x.bf16), *int8 = open_weights(x.int8);
        assert_int_equal(wt_count(f), wt_count(source));
        for (int k = 0; k < wt_count(f); k++) {
            const wt_tensor *t = wt_at(f, k);
            mar_err err = {0};
            assert_int_equal(t->dtype, WT_F32);
            if (!wt_is_int8(int8, t->name)) continue;
            float *w = golden_f32(f, t->name, t->count);
            const int out = (int)t->shape[0];
            float *rows = malloc((size_t)t->count * sizeof *rows);
            assert_ok(wt_load_matrix_rows(int8, t->name, out, (int)t->shape[1], 0, out, rows, &err), &err);
            assert_memory_equal(w, rows, (size_t)t->count * sizeof *w);
            free(rows), free(w);
        }
        wt_close(f), wt_close(source), wt_close(int8);
        tear_down(&x);
    }
}

/* Checks files of other kinds, which have no transformer to quantise. */
TEST_CASE(other_kinds)
{
    fixture x = set_up("demo");
    struct stat there;
    assert_int_equal(mar_convert(x.m, "demo-vae", x.other, MAR_DTYPE_INT8, 0), MAR_EARG);
    assert_string_equal(mar_error(x.m), "--dtype int8: demo-vae is a KL autoencoder, expected a model, whose "
                                        "transformer's matrices become int8");
    assert_int_equal(stat(x.other, &there), -1);
    assert_library(x.m, mar_convert(x.m, "demo-discrete-eagle", x.other, MAR_DTYPE_INT8, 0));
    wt_file *f = open_weights(x.other);
    assert_true(wt_is_int8(f, "eagle.layers.0.attention.wqkv.weight") && !wt_is_int8(f, "eagle.fc.weight"));
    wt_close(f);
    mar_model *model;
    assert_library(x.m, mar_model_load(x.m, x.other, 0, &model));
    mar_model_free(model);
    tear_down(&x);
}

static int has_fact(const mar_report *r, const char *fact)
{
    for (int i = 0; i < mar_report_fact_count(r); i++)
        if (strcmp(mar_report_fact(r, i), fact) == 0) return 1;
    return 0;
}

TEST_CASE(inspected)
{
    static const char *const facts[FAMILIES][3] = {
        {"tensors: 108 (16 F32, 76 BF16, 16 I8)",
         "int8 weights: 16 matrices with a scale for each output channel; use: --dtype int8",
         "parameters: 479760 (encoder 106624, decoder 113536, head 259600)"},
        {"tensors: 76 (30 F32, 16 BF16, 30 I8)",
         "int8 weights: 30 matrices with a scale for each output channel; use: --dtype int8", "parameters: 1051648"}};
    for (int i = 0; i < FAMILIES; i++) {
        fixture x = set_up(families[i].model);
        mar_report *r;
        assert_library(x.m, mar_inspect(x.m, x.int8, 0, &r));
        assert_int_equal(mar_report_problem_count(r), 0);
        for (int k = 0; k < 3; k++)
            if (!has_fact(r, facts[i][k])) fail_msg("no fact \"%s\"", facts[i][k]);
        assert_int_equal(mar_report_model(r)->int8_weights, 1);
        mar_file *file;
        assert_int_equal(mar_file_open(x.int8, MAR_WEIGHTS_AUTO, &file), MAR_OK);
        assert_int_equal(mar_file_get_info(file)->kind, mar_report_kind(r));
        assert_int_equal(mar_file_get_info(file)->stored, MAR_DTYPE_INT8);
        mar_file_close(file);
        mar_report_free(r);
        assert_library(x.m, mar_inspect(x.m, x.bf16, 0, &r));
        assert_int_equal(mar_report_model(r)->int8_weights, 0);
        mar_report_free(r);
        tear_down(&x);
    }
}

/* Changes bytes of a tensor's data in the file at x->int8. */
static void overwrite(const fixture *x, const char *name, size_t first, const void *with, size_t size)
{
    wt_file *f = open_weights(x->int8);
    const uint64_t at = wt_find(f, name)->offset + first;
    wt_close(f);
    bytes b = bytes_from_file(x->int8);
    memcpy(b.data + at, with, size);
    bytes_to_file(&b, x->int8);
    bytes_free(&b);
}

/* Replaces text in the header of the file at x->int8 by text of the same length. */
static void say(const fixture *x, const char *from, const char *to)
{
    bytes b = bytes_from_file(x->int8);
    char *at = memmem(b.data, b.size, from, strlen(from));
    assert_non_null(at);
    assert_int_equal(strlen(from), strlen(to));
    memcpy(at, to, strlen(to));
    bytes_to_file(&b, x->int8);
    bytes_free(&b);
}

/* Checks that mar_inspect reports the problem first, and that loading fails with the same text. */
static void expect(const fixture *x, const char *problem)
{
    mar_report *r;
    mar_model *model;
    char message[900];
    assert_library(x->m, mar_inspect(x->m, x->int8, 0, &r));
    if (mar_report_problem_count(r) < 1) fail_msg("no problem, expected \"%s\"", problem);
    assert_string_equal(mar_report_problem(r, 0), problem);
    mar_report_free(r);
    snprintf(message, sizeof message, "%s: %s", x->int8, problem);
    assert_int_equal(mar_model_load(x->m, x->int8, 0, &model), MAR_EMODEL);
    if (strncmp(mar_error(x->m), message, strlen(message)) != 0)
        fail_msg("\"%s\" is not \"%s\"", mar_error(x->m), message);
    assert_int_equal(mar_convert(x->m, x->int8, x->other, MAR_DTYPE_F32, 0), MAR_EMODEL);
}

TEST_CASE(damaged)
{
    const float negative = -1, nan = __builtin_nanf("");
    const int8_t least = -128;
    fixture x = set_up("demo");
    overwrite(&x, "encoder_blocks.1.mlp.fc1.weight_scale", 8, &negative, 4);
    expect(&x, "tensor encoder_blocks.1.mlp.fc1.weight_scale has the value -1 at 2, expected scales of 0 or more");
    overwrite(&x, "encoder_blocks.1.mlp.fc1.weight_scale", 8, &nan, 4);
    expect(&x, "tensor encoder_blocks.1.mlp.fc1.weight_scale has 1 value that is NaN, the first at 2: expected finite "
               "weights (--allow_nonfinite loads it all the same)");
    tear_down(&x);
    x = set_up("demo");
    overwrite(&x, "decoder_blocks.0.attn.proj.weight", 77, &least, 1);
    expect(&x, "tensor decoder_blocks.0.attn.proj.weight has the value -128 at 77, expected int8 weights from -127 to "
               "127");
    tear_down(&x);
    x = set_up("demo");
    say(&x, "decoder_blocks.0.attn.proj.weight_scale", "decoder_blocks.0.attn.proj.weight_scalf");
    expect(&x, "tensor decoder_blocks.0.attn.proj.weight_scale is missing, expected shape [64]");
    tear_down(&x);
}

/* --- arithmetic --------------------------------------------------------------------------------------------------- */

/* Generates images 5, 6 and 7 with the file, in the handle's arithmetic. */
static void generate(mar *m, const char *path, float *tokens)
{
    demo d = {.m = m};
    mar_params p;
    mar_params_init(&p, sizeof p);
    assert_library(m, mar_model_load(m, path, 0, &d.model));
    if (!mar_model_get_config(d.model)->vocabulary) p.num_iter = 8, p.num_sampling_steps = 20;
    mar_session *s = demo_session(&d, &p, DEMO_BATCH);
    demo_generate(s, DEMO_BATCH, tokens);
    mar_session_free(s);
    mar_model_free(d.model);
}

/* Checks that a bf16 file converted to int8 equals quantising it on load: the same tokens to the bit. Without dtype
 * int8 the weights are dequantised to f32. */
TEST_CASE(loaded)
{
    mar *int8 = open_int8(NULL);
    for (int i = 0; i < FAMILIES; i++) {
        static float a[DEMO_BATCH * MOST_TOKENS], b[DEMO_BATCH * MOST_TOKENS], c[DEMO_BATCH * MOST_TOKENS];
        const size_t size = (size_t)(DEMO_BATCH * families[i].tokens) * sizeof *a;
        fixture x = set_up(families[i].model);
        assert_library(x.m, mar_convert(x.m, x.int8, x.other, MAR_DTYPE_F32, 0));
        generate(x.m, x.int8, a);
        generate(x.m, x.other, b);
        assert_memory_equal(a, b, size);
        generate(int8, x.bf16, a);
        generate(int8, x.int8, b);
        generate(int8, x.other, c);
        assert_memory_equal(a, b, size);
        assert_memory_equal(a, c, size); /* quantising again gives the same weights */
        tear_down(&x);
    }
    mar_close(int8);
}

typedef struct {
    char lines[1000];
} journal;

static void keep(void *user, mar_log_level level, const char *line)
{
    journal *j = user;
    (void)level;
    snprintf(j->lines, sizeof j->lines, "%s", line);
}

/* Checks that dtype auto never means int8. For an int8 file the log says that weights are dequantised. */
TEST_CASE(automatic)
{
    fixture x = set_up("demo-discrete");
    journal j = {""};
    const mar_options options = {
        .size = sizeof options, .threads = 1, .backend = MAR_BACKEND_CPU, .log = keep, .log_user = &j};
    static const char restored[] = "its int8 weights are restored, where --dtype int8 would multiply them as they are";
    mar *m;
    mar_model *model;
    assert_int_equal(mar_open(&options, &m), MAR_OK);
    assert_null(strstr(mar_backend_description(m), "int8"));
    assert_library(m, mar_model_load(m, x.int8, 0, &model));
    assert_int_equal(mar_model_get_config(model)->int8_weights, 1);
    assert_non_null(strstr(j.lines, restored));
    mar_model_free(model);
    assert_library(m, mar_model_load(m, x.bf16, 0, &model));
    assert_int_equal(mar_model_get_config(model)->int8_weights, 0);
    assert_null(strstr(j.lines, restored));
    mar_model_free(model);
    mar_close(m);
    m = open_int8(&options);
    assert_library(m, mar_model_load(m, x.int8, 0, &model));
    assert_null(strstr(j.lines, restored));
    mar_model_free(model);
    mar_close(m);
    tear_down(&x);
}

/* --- descriptions ------------------------------------------------------------------------------------------------- */

/* Checks that guarantees of exactness refer to the int8 model. */
TEST_CASE(guarantees)
{
    static const struct {
        const char *model, *draft, *options, *says;
    } cases[] = {
        {"demo", NULL, "num_iter 4", "approximate: int8"},
        {"demo", NULL, "head_spec 8", "approximate: int8"},
        {"demo", NULL, "num_iter 8, lazy on", "approximate: int8, changed by lazy"},
        {"demo", NULL, "sampler ddim, num_sampling_steps 20", "approximate: int8, changed by sampler ddim"},
        {"demo", "demo-draft", "spec cspd, gamma 4", "approximate: int8, criterion cspd"},
        {"demo-discrete", NULL, "", "approximate: int8"},
        {"demo-discrete", NULL, "spec sjd", "approximate: int8"},
        {"demo-discrete", "demo-discrete-draft", "spec vanilla", "approximate: int8"},
        {"demo-discrete", "demo-discrete-draft", "spec uniform-rsd",
         "approximate: int8, changed by uniform-rsd; guarantee: "},
    };
    mar *m = open_int8(NULL), *plain = open_mar(MAR_DTYPE_F32, 2);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (int int8 = 0; int8 < 2; int8++) {
            demo d = {.m = int8 ? m : plain};
            mar_params p = *cases[i].options ? params_with(cases[i].options) : plain_params();
            if (!*cases[i].options) mar_params_init(&p, sizeof p);
            assert_library(d.m, mar_model_load(d.m, cases[i].model, 0, &d.model));
            if (cases[i].draft) assert_library(d.m, mar_model_load(d.m, cases[i].draft, 0, &d.draft));
            p.draft = d.draft;
            mar_session *s;
            assert_library(d.m, mar_session_create(d.model, NULL, &p, 1, &s));
            const char *text = mar_session_guarantee(s), *says = cases[i].says;
            const size_t n = strlen(says);
            const int alone = strcmp(says, "approximate: int8") == 0;
            if (int8 && (strncmp(text, says, n) != 0 ||
                         (alone && strncmp(text + n, "; relative to plain sampling, ", 30) != 0)))
                fail_msg("%s: \"%s\", expected \"%s\"", cases[i].options, text, says);
            if (!int8 && (strstr(text, "int8") || (strncmp(text, "exact to: ", 10) == 0) != alone))
                fail_msg("%s: \"%s\"", cases[i].options, text);
            mar_session_free(s);
            mar_model_free(d.model), mar_model_free(d.draft);
        }
    mar_close(m), mar_close(plain);
}

/* Tells whether other products of an int8 handle are in bf16. They are in f32 without instructions for bf16, and then
 * so is every head. */
static int has_bf16(void)
{
    mar *m = open_int8(NULL);
    const int bf16 = m->device->act_size == 2;
    mar_close(m);
    return bf16;
}

/* Checks the handle's description of its heads. It is part of the texts that identify pictures and evaluations. */
TEST_CASE(heads)
{
    static const struct {
        mar_options options;
        const char *says; /* text after "cpu int8, bf16" */
        int below;
    } cases[] = {{{.head_dtype = MAR_DTYPE_AUTO}, "", 985},
                 {{.head_dtype = MAR_DTYPE_INT8}, "", 985},
                 {{.head_dtype = MAR_DTYPE_AUTO, .int8_below = 985}, "", 985},
                 {{.head_dtype = MAR_DTYPE_INT8, .int8_below = 1000}, ", head int8 below 1000", 1000},
                 {{.head_dtype = MAR_DTYPE_BF16}, ", head bf16", 0},
                 {{.head_dtype = MAR_DTYPE_F32}, ", head f32", 0}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char expected[64];
        if (cases[i].options.head_dtype == MAR_DTYPE_BF16 && !has_bf16()) continue;
        mar *m = open_int8(&cases[i].options);
        snprintf(expected, sizeof expected, "cpu int8, bf16%s (", cases[i].says);
        if (m->device->act_size == 2 && strncmp(mar_backend_description(m), expected, strlen(expected)) != 0)
            fail_msg("\"%s\" does not begin with \"%s\"", mar_backend_description(m), expected);
        assert_int_equal(m->int8_below, cases[i].below);
        mar_close(m);
    }
}

TEST_CASE(refused)
{
    static const struct {
        mar_options options;
        const char *says;
    } cases[] = {
        {{.dtype = MAR_DTYPE_F32, .int8_below = 5}, "--int8_below needs --dtype int8"},
        {{.dtype = MAR_DTYPE_AUTO, .int8_below = 985}, "--int8_below needs --dtype int8"},
        {{.dtype = MAR_DTYPE_INT8, .head_dtype = MAR_DTYPE_F32, .int8_below = 5},
         "--int8_below has no effect with --head_dtype f32, expected auto or int8"},
        {{.dtype = MAR_DTYPE_INT8, .head_dtype = MAR_DTYPE_BF16, .int8_below = 5},
         "--int8_below has no effect with --head_dtype bf16, expected auto or int8"},
        {{.dtype = MAR_DTYPE_F32, .head_dtype = MAR_DTYPE_INT8},
         "--head_dtype int8: the other products are not in int8, expected auto, f16 or f32"},
        {{.dtype = MAR_DTYPE_INT8, .int8_below = 1001},
         "--int8_below 1001: expected auto or a whole number from 1 to 1000"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        mar_options options = cases[i].options;
        mar *m;
        options.size = sizeof options, options.threads = 1, options.backend = MAR_BACKEND_CPU;
        if (options.head_dtype == MAR_DTYPE_BF16 && !has_bf16()) continue;
        if (mar_open(&options, &m) != MAR_EARG) fail_msg("opened, expected \"%s\"", cases[i].says);
        if (!strstr(mar_error(m), cases[i].says)) fail_msg("\"%s\", expected \"%s\"", mar_error(m), cases[i].says);
        mar_close(m);
    }
}

/* Checks the bytes read by a step of LlamaGen's decoding. Int8 weights of the layers take half of bf16's and a quarter
 * of f32's. Each output channel adds a scale. */
TEST_CASE(bytes_read)
{
    enum { DEPTH = 6, WIDTH = 128, HIDDEN = 256 };
    const double weights = DEPTH * WIDTH * (4.0 * WIDTH + 3.0 * HIDDEN), scales = DEPTH * (5.0 * WIDTH + 2.0 * HIDDEN);
    double read[2], size = 4;
    mar *handles[2] = {open_mar(MAR_DTYPE_AUTO, 2), open_int8(NULL)};
    for (int i = 0; i < 2; i++) {
        demo d = {.m = handles[i]};
        mar_params p;
        mar_stats stats = {.size = sizeof stats};
        static float tokens[DEMO_SEQ];
        mar_params_init(&p, sizeof p);
        p.cfg = 1;
        assert_library(d.m, mar_model_load(d.m, "demo-discrete", 0, &d.model));
        mar_session *s = demo_session(&d, &p, 1);
        demo_generate(s, 1, tokens);
        mar_session_get_stats(s, &stats);
        read[i] = stats.decoder_bytes;
        size = (double)d.m->device->act_size;
        mar_session_free(s);
        mar_model_free(d.model);
    }
    assert_true(read[0] - read[1] == DEMO_SEQ * (weights * (size - 1) - 4 * scales));
    mar_close(handles[0]), mar_close(handles[1]);
}

TEST_CASE(listed)
{
    const mar_method_info *info = NULL;
    const mar_method_parameter *parameter = NULL;
    for (int i = 0; i < mar_method_count(); i++)
        if (strcmp(mar_method_get(i)->name, "int8") == 0)
            info = mar_method_get(i), parameter = mar_method_get_parameter(i, 0);
    assert_non_null(info);
    assert_false(info->exact);
    assert_string_equal(info->option, "--dtype int8");
    assert_string_equal(info->tokens, "continuous, discrete");
    assert_int_equal(info->parameter_count, 1);
    assert_string_equal(parameter->name, "int8_below");
}
