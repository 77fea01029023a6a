/* Decoders that write images among text through the public calls, in the layouts of Lumina-mGPT, Anole and Emu3-Gen:
 * prompts become the official code's sequences, and at temperature 0 every exact method and Cool-SD make its greedy
 * tokens (tests/golden/make_mgpt.py). */
#include "tests/support/decoders.h"

#include "mar_files.h"
#include "mar_measure.h"
#include "tests/support/demo.h"
#include "tests/support/discrete_sessions.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { COLUMNS = 6, ROWS = 4, TOKENS = COLUMNS * ROWS, PROMPTS = 2 };

static const char *const prompts[PROMPTS] = {"two cats", "a red house by the sea, at night"};

/* The files: written before the first test. */
typedef struct {
    char *directory, *path[DECODERS], *near[DECODERS], *eagle[DECODERS];
} files;

static int set_up(void **state)
{
    files *f = *state = calloc(1, sizeof *f);
    const eagle_config e = {.width = DECODER_WIDTH, .hidden = 48, .bias = 1, .first_norm = 1};
    const eagle_config published = {
        .width = DECODER_WIDTH, .hidden = 48, .heads = 4, .bias = 1, .first_norm = 1, .published = 1, .qk_norm = 1};
    f->directory = test_directory();
    for (int k = 0; k < DECODERS; k++) f->path[k] = decoder_write(f->directory, (decoder_kind)k, 0);
    f->near[DECODER_LUMINA] = decoder_write(f->directory, DECODER_LUMINA, 1);
    f->near[DECODER_EMU3] = decoder_write(f->directory, DECODER_EMU3, 1);
    f->eagle[DECODER_LUMINA] = write_eagle(f->directory, "published.safetensors", &published, 3);
    f->eagle[DECODER_EMU3] = write_eagle(f->directory, "eagle.safetensors", &e, 3);
    return 0;
}

static int tear_down(void **state)
{
    files *f = *state;
    for (int k = 0; k < DECODERS; k++) free(f->path[k]), free(f->near[k]), free(f->eagle[k]);
    free(f);
    return 0;
}

TEST_GROUP(set_up, tear_down)

static mar *open_for(const char *size)
{
    mar_options o;
    mar *m;
    mar_options_init(&o, sizeof o);
    o.dtype = MAR_DTYPE_F32;
    o.threads = 2;
    o.image_size = size;
    assert_library(m, mar_open(&o, &m));
    return m;
}

/* --- prompts -------------------------------------------------------------------------------------------------------
 */

enum { POSITIONS = 120, FEATURES = POSITIONS };

static void check_prompts(const files *f, decoder_kind kind, const char *size, int columns, int rows)
{
    static float features[PROMPTS * FEATURES], expected[FEATURES];
    uint8_t mask[PROMPTS * POSITIONS], ones[POSITIONS];
    int ids[DECODER_IDS], counts[PROMPTS], count;
    mar *m = open_for(size);
    mar_text *text;
    assert_library(m, mar_text_load(m, f->path[kind], &text));
    assert_library(m, mar_text_encode(text, prompts, PROMPTS, MAR_CLEAN_OFF, POSITIONS, features, mask, counts));
    for (int i = 0; i < PROMPTS; i++) {
        const int n = decoder_prompt(kind, prompts[i], columns, rows, ids);
        decoder_features(ids, n, POSITIONS, expected, ones);
        assert_int_equal(counts[i], n);
        assert_memory_equal(mask + i * POSITIONS, ones, POSITIONS);
        assert_memory_equal(features + i * FEATURES, expected, sizeof expected);
    }
    assert_library(m, mar_text_encode_negative(text, NULL, POSITIONS, features, mask, &count));
    const int n = decoder_negative(kind, columns, rows, ids);
    decoder_features(ids, n, POSITIONS, expected, ones);
    assert_int_equal(count, n);
    assert_memory_equal(mask, ones, POSITIONS);
    assert_memory_equal(features, expected, sizeof expected);
    mar_text_free(text);
    mar_close(m);
}

TEST_CASE(sequences_of_the_official_code)
{
    check_prompts(*state, DECODER_LUMINA, "96x64", COLUMNS, ROWS);
    check_prompts(*state, DECODER_ANOLE, NULL, 32, 32);
    check_prompts(*state, DECODER_RELEASE, NULL, 32, 32);
}

/* --- methods -------------------------------------------------------------------------------------------------------
 */

typedef enum { NONE, NEARBY, FEATURE } drafter;

static const struct {
    const char *options;
    drafter by;
} methods[] = {
    {"", NONE},
    {"spec sjd, window 8", NONE},
    {"spec sjd, window 16, first above", NONE},
    {"spec sjd-pac, window 12", NONE},
    {"spec sjd-pac, window 8, pac_children 2, pac_continue off, first left", NONE},
    {"spec scd, window 8", NONE},
    {"spec scd, window 8, pac_children 4, first above", NONE},
    {"gamma 4", NEARBY},
    {"tree 3/2/1", NEARBY},
    {"tree dynamic, gamma 3, tree_top 3, tree_total 9", NEARBY},
    {"spec uniform-rsd, cool_delta 1, gamma 4", NEARBY},
    {"spec cool-sd-exp, gamma 4", NEARBY},
    {"spec cool-sd-linear, gamma 4", FEATURE},
    {"gamma 3", FEATURE},
    {"tree static", FEATURE},
    {"tree dynamic, gamma 3, tree_top 3, tree_total 9", FEATURE},
};

/* A model with its drafters, and its prompts' features. */
typedef struct {
    mar *m;
    mar_model *model, *near, *eagle;
    int positions; /* of a caption */
    float *features, *negative;
    uint8_t *mask, *negative_mask;
    float tokens[PROMPTS * TOKENS]; /* expected */
} opened;

static void read_tokens(opened *o, const char *name)
{
    wt_file *golden = golden_open("mgpt");
    for (int i = 0; i < PROMPTS; i++) {
        char key[64];
        snprintf(key, sizeof key, "%s.%d.tokens", name, i);
        float *values = golden_f32(golden, key, TOKENS);
        memcpy(o->tokens + i * TOKENS, values, sizeof *values * TOKENS);
        free(values);
    }
    wt_close(golden);
}

static opened open_all(const files *f, decoder_kind kind, const char *size, const char *name)
{
    opened o = {.m = open_for(size)};
    int ids[DECODER_IDS];
    assert_library(o.m, mar_model_load(o.m, f->path[kind], 0, &o.model));
    assert_library(o.m, mar_model_load(o.m, f->near[kind], 0, &o.near));
    assert_library(o.m, mar_model_load(o.m, f->eagle[kind], 0, &o.eagle));
    const mar_model_config *c = mar_model_get_config(o.model);
    assert_true(c->seq_len == TOKENS && c->grid_width == COLUMNS && c->vocabulary == decoder_codebook(kind));
    assert_true(c->caption_dim == 1 && c->classes == 0);
    o.positions = c->caption_tokens;
    const size_t numbers = (size_t)o.positions;
    o.features = malloc(sizeof(float) * PROMPTS * numbers), o.negative = malloc(sizeof(float) * numbers);
    o.mask = malloc(PROMPTS * (size_t)o.positions), o.negative_mask = malloc((size_t)o.positions);
    for (int i = 0; i < PROMPTS; i++) {
        const int n = decoder_prompt(kind, prompts[i], COLUMNS, ROWS, ids);
        decoder_features(ids, n, o.positions, o.features + (size_t)i * numbers, o.mask + i * o.positions);
    }
    decoder_features(ids, decoder_negative(kind, COLUMNS, ROWS, ids), o.positions, o.negative, o.negative_mask);
    read_tokens(&o, name);
    return o;
}

static void close_all(opened *o)
{
    mar_model_free(o->eagle);
    mar_model_free(o->near);
    mar_model_free(o->model);
    mar_close(o->m);
    free(o->features), free(o->negative), free(o->mask), free(o->negative_mask);
}

/* Makes both images at a time; their prompts have different lengths. */
static void check_method(const opened *o, int method)
{
    char options[160];
    float tokens[PROMPTS * TOKENS];
    mar_session *s;
    mar_stats stats = {.size = sizeof stats};
    snprintf(options, sizeof options, "cfg 3, temperature 0%s%s", *methods[method].options ? ", " : "",
             methods[method].options);
    mar_params p = discrete_params(options);
    p.draft = methods[method].by == NEARBY ? o->near : methods[method].by == FEATURE ? o->eagle : NULL;
    if (mar_session_create(o->model, NULL, &p, PROMPTS, &s) != MAR_OK) fail_msg("%s: %s", options, mar_error(o->m));
    assert_session(s, mar_session_set_negative(s, o->negative, o->negative_mask));
    assert_session(s, mar_session_begin_captions(s, 5, o->features, o->mask, PROMPTS));
    demo_finish(s);
    assert_session(s, mar_session_tokens(s, tokens));
    mar_session_get_stats(s, &stats);
    for (int i = 0; i < PROMPTS * TOKENS; i++)
        if (tokens[i] != o->tokens[i])
            fail_msg("%s, by %d: token %d of image %d is %g, expected %g", options, methods[method].by, i % TOKENS,
                     i / TOKENS, (double)tokens[i], (double)o->tokens[i]);
    if (methods[method].by == NEARBY && !(stats.accepted > 0)) fail_msg("%s: no draft accepted", options);
    mar_session_free(s);
}

TEST_CASE(greedy_lumina)
{
    opened o = open_all(*state, DECODER_LUMINA, "96x64", "lumina");
    for (size_t i = 0; i < sizeof methods / sizeof *methods; i++) check_method(&o, (int)i);
    close_all(&o);
}

TEST_CASE(greedy_emu3)
{
    opened o = open_all(*state, DECODER_EMU3, "48x32", "emu3");
    for (size_t i = 0; i < sizeof methods / sizeof *methods; i++) check_method(&o, (int)i);
    close_all(&o);
}

/* transformers' names of Emu3: the file can be read and converted, like the release's. */
TEST_CASE(emu3_as_transformers_saves_it)
{
    const files *f = *state;
    const char *path = test_path("emu3.safetensors");
    for (int kind = DECODER_EMU3_SAVED; kind <= DECODER_EMU3_STATE; kind++) {
        mar *m = open_for("48x32");
        mar_report *r;
        mar_model *model;
        assert_library(m, mar_inspect(m, f->path[kind], 0, &r));
        assert_int_equal(mar_report_kind(r), MAR_KIND_DECODER);
        assert_int_equal(mar_report_problem_count(r), 0);
        mar_report_free(r);
        assert_library(m, mar_convert(m, f->path[kind], path, MAR_DTYPE_AUTO, 0));
        assert_library(m, mar_model_load(m, path, 0, &model));
        assert_int_equal(mar_model_get_config(model)->vocabulary, decoder_codebook((decoder_kind)kind));
        mar_model_free(model);
        mar_close(m);
    }
}

/* In Meta's release the tokenizer is beside the models; a converted folder has it inside. */
TEST_CASE(converted_release)
{
    char *root = test_directory(), *folder;
    char path[600], other[600];
    snprintf(path, sizeof path, "%s/models", root);
    assert_int_equal(mkdir(path, 0777), 0);
    folder = decoder_write(path, DECODER_RELEASE, 0);
    snprintf(path, sizeof path, "%s/tokenizer", root);
    assert_int_equal(mkdir(path, 0777), 0);
    snprintf(path, sizeof path, "%s/text_tokenizer.json", folder);
    snprintf(other, sizeof other, "%s/tokenizer/text_tokenizer.json", root);
    assert_int_equal(rename(path, other), 0);
    snprintf(other, sizeof other, "%s/converted", root);
    mar *m = open_for(NULL);
    mar_text *from, *to;
    assert_library(m, mar_convert(m, folder, other, MAR_DTYPE_AUTO, 0));
    assert_library(m, mar_text_load(m, folder, &from));
    assert_library(m, mar_text_load(m, other, &to));
    float features[2][FEATURES];
    uint8_t mask[2][POSITIONS];
    assert_library(m, mar_text_encode(from, prompts, 1, MAR_CLEAN_OFF, POSITIONS, features[0], mask[0], NULL));
    assert_library(m, mar_text_encode(to, prompts, 1, MAR_CLEAN_OFF, POSITIONS, features[1], mask[1], NULL));
    assert_memory_equal(features[0], features[1], sizeof features[0]);
    mar_text_free(from);
    mar_text_free(to);
    mar_close(m);
    free(folder);
}

/* --- bad input -----------------------------------------------------------------------------------------------------
 */

/* Checks that loading fails with a line that has these words. */
static void refuses(const files *f, decoder_kind kind, const char *size, const char *what)
{
    mar *m = open_for(size);
    mar_model *model;
    assert_int_not_equal(mar_model_load(m, f->path[kind], 0, &model), MAR_OK);
    assert_null(model);
    assert_says(mar_error(m), what);
    assert_null(strchr(mar_error(m), '\n'));
    mar_close(m);
}

/* Returns the status of an image behind the ids, padded on the left. */
static mar_status begin_ids(mar_session *s, int positions, const float *last, int n)
{
    float *ids = calloc((size_t)positions, sizeof *ids);
    uint8_t *mask = calloc((size_t)positions, 1);
    memcpy(ids + positions - n, last, (size_t)n * sizeof *ids);
    memset(mask + positions - n, 1, (size_t)n);
    const mar_status status = mar_session_begin_captions(s, 1, ids, mask, 1);
    free(ids);
    free(mask);
    return status;
}

/* Writes the path of one of the folder's files of weights. */
static void find_weights(const char *folder, char path[4096])
{
    char command[4200];
    snprintf(command, sizeof command, "find '%s' -name '*.safetensors' | sort | head -1", folder);
    FILE *found = popen(command, "r");
    assert_non_null(fgets(path, 4096, found));
    pclose(found);
    path[strcspn(path, "\n")] = '\0';
}

/* Prompts read rows of the embedding from the model's file, which may be deleted, but not changed. */
TEST_CASE(the_file_of_a_model_of_prompts)
{
    static const float good[] = {0, 40, 521}, bad[][2] = {{-1, 0}, {1, 1e6f}, {0.5f, 0}, {NAN, 0}};
    float first[64 * 64], second[64 * 64];
    char *folder = decoder_write(test_directory(), DECODER_FEW, 0), copy[4096], weights[4096], command[9000];
    snprintf(copy, sizeof copy, "%s-copy", folder);
    snprintf(command, sizeof command, "cp -r '%s' '%s'", folder, copy);
    assert_int_equal(system(command), 0);
    mar *m = open_for("32x32");
    mar_model *model;
    mar_session *s;
    const mar_params p = discrete_params("cfg 1, temperature 0");
    assert_library(m, mar_model_load(m, folder, 0, &model));
    const mar_model_config *c = mar_model_get_config(model);
    assert_in_range(c->seq_len, 1, 64 * 64);
    assert_library(m, mar_session_create(model, NULL, &p, 1, &s));
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        assert_int_equal(begin_ids(s, c->caption_tokens, bad[i], 2), MAR_EARG);
        if (i != 3) assert_says(mar_session_error(s), "the prompt's id at position");
    }
    assert_session(s, begin_ids(s, c->caption_tokens, good, 3));
    demo_finish(s);
    assert_session(s, mar_session_tokens(s, first));
    find_weights(folder, weights);
    assert_int_equal(remove(weights), 0);
    assert_session(s, begin_ids(s, c->caption_tokens, good, 3));
    demo_finish(s);
    assert_session(s, mar_session_tokens(s, second));
    assert_memory_equal(first, second, (size_t)c->seq_len * sizeof *first);
    mar_session_free(s);
    mar_model_free(model);

    assert_library(m, mar_model_load(m, copy, 0, &model));
    c = mar_model_get_config(model);
    assert_library(m, mar_session_create(model, NULL, &p, 1, &s));
    find_weights(copy, weights);
    FILE *file = fopen(weights, "r+b");
    assert_non_null(file);
    fseek(file, 0, SEEK_END);
    fputc(0, file);
    fclose(file);
    assert_int_equal(begin_ids(s, c->caption_tokens, good, 3), MAR_EIO);
    assert_says(mar_session_error(s), "changed while it was read");
    mar_session_free(s);
    mar_model_free(model);
    mar_close(m);
    free(folder);
}

TEST_CASE(sizes)
{
    refuses(*state, DECODER_LUMINA, "100x64", "100x64");
    refuses(*state, DECODER_LUMINA, "2048x2048", "2048x2048");
    refuses(*state, DECODER_ANOLE, "256x256", "256x256");
}
