/* Compares EAGLE drafters as LANTERN publishes them with LANTERN's own code (tests/golden/make_lantern.py): their
 * files, their distributions behind a class's, a caption's and a prompt's prefix and in a tree, with line ends behind
 * rows of tokens and drafts, and the trees of its choices.py. */
#include "tests/support/causal_fixture.h"

#include "mar/raster_options.h"
#include "specdec/eagle.h"
#include "tests/support/llamagen.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { DRAFTS = 8, LAWS = DRAFTS + 1, TOKENS = 8, CAPTION = 120, PROMPT = 17, WIDTH = 16 };

static const int parent[DRAFTS] = {-1, -1, -1, 0, 0, 2, 3, 5};

/* A target with features, and a drafter over it, for one image. */
typedef struct {
    causal_fixture target;
    eagle_model *model;
    eagle_runner *runner;
    void *memory;
    float *laws; /* [LAWS][vocabulary] */
} fixture;

static int open_both(fixture *f, mar_dtype dtype, const char *target, const char *drafter,
                     const causal_sampling *sampling)
{
    mar_err err = {0};
    char path[128];
    if (!causal_fixture_open(&f->target, open_queue(dtype, 1), target, 0, sampling, 1, DRAFTS, 1, LAWS)) return 0;
    kern_queue *k = f->target.k;
    snprintf(path, sizeof path, "tests/golden/data/%s", drafter);
    wt_file *file = open_weights(path);
    assert_true(eagle_config_recognise(file));
    assert_ok(eagle_model_create(k, file, 0, &f->model, &err), &err);
    wt_close(file);
    assert_ok(
        eagle_runner_create(k, f->model, f->target.model, f->target.runner, sampling, 1, DRAFTS, &f->runner, &err),
        &err);
    f->memory = backend_memory(k, eagle_runner_lay_out(f->runner, NULL));
    eagle_runner_lay_out(f->runner, f->memory);
    assert_ok(eagle_runner_plan(f->runner, 1, &err), &err);
    f->laws = backend_memory(k, sizeof(float) * LAWS * (size_t)f->target.vocabulary);
    return 1;
}

static void close_both(fixture *f)
{
    eagle_runner_free(f->runner);
    eagle_model_free(f->model);
    f->target.k->core->free(f->target.k->device, f->memory);
    f->target.k->core->free(f->target.k->device, f->laws);
    causal_fixture_close(&f->target);
}

static int read_tokens(const wt_file *f, const char *name, int image, const char *what, int *token)
{
    char key[64];
    snprintf(key, sizeof key, "%s.%d.%s", name, image, what);
    const wt_tensor *t = wt_find(f, key);
    assert_non_null(t);
    float *values = golden_f32(f, key, -1);
    for (int i = 0; i < (int)t->count; i++) token[i] = (int)values[i];
    free(values);
    return (int)t->count;
}

/* Writes a prompt's ids, padded on the left. */
static void read_prompt(const wt_file *golden, const char *name, int image, const char *what, int positions, float *ids,
                        uint8_t *mask)
{
    int id[PROMPT];
    const int n = read_tokens(golden, name, image, what, id), pad = positions - n;
    for (int i = 0; i < positions; i++) {
        mask[i] = i >= pad;
        ids[i] = i >= pad ? (float)id[i - pad] : 0;
    }
}

/* Begins an image of a decoder: its prompt, and the shorter one in the second branch of guidance. */
static void begin_prompt(fixture *f, const char *name, int image)
{
    const int positions = f->target.model->shape.prefix;
    float ids[PROMPT];
    uint8_t mask[PROMPT];
    wt_file *golden = golden_open("lantern");
    assert_true(positions <= PROMPT);
    read_prompt(golden, name, image, "negative", positions, ids, mask);
    causal_runner_set_negative(f->target.runner, ids, mask);
    read_prompt(golden, name, image, "prompt", positions, ids, mask);
    causal_runner_begin_captions(f->target.runner, 1, ids, mask);
    wt_close(golden);
}

/* Begins image `image` of a golden file: a class, a caption some of whose positions are masked, or a prompt. */
static void begin(fixture *f, const char *name, int image)
{
    const int label = 2 - 2 * image;
    const int dim = f->target.model->shape.caption_dim;
    if (f->target.model->shape.prompt) {
        begin_prompt(f, name, image);
    } else if (dim == 0) {
        causal_runner_begin(f->target.runner, 1, &label);
    } else {
        wt_file *golden = golden_open("llamagen");
        float *features = golden_f32(golden, "t2i.captions", -1), *numbers = golden_f32(golden, "t2i.masks", -1);
        uint8_t mask[CAPTION];
        for (int i = 0; i < CAPTION; i++) mask[i] = (uint8_t)numbers[image * CAPTION + i];
        causal_runner_begin_captions(f->target.runner, 1, features + image * CAPTION * dim, mask);
        free(features), free(numbers);
        wt_close(golden);
    }
    eagle_runner_begin(f->runner, 1);
}

static void check(mar_dtype dtype, const char *name, const char *target, const char *drafter,
                  const causal_sampling *sampling, double tolerance)
{
    fixture f = {0};
    mar_err err = {0};
    if (!open_both(&f, dtype, target, drafter, sampling)) return;
    const int images = f.target.model->shape.prompt ? 3 : 2;
    wt_file *golden = golden_open("lantern");
    for (int image = 0; image < images; image++) {
        int prefix[TOKENS], draft[DRAFTS];
        char key[64];
        causal_request q = {.prefix = prefix, .draft = draft, .parent = parent, .count = DRAFTS};
        q.length = read_tokens(golden, name, image, "prefix", prefix);
        assert_int_equal(read_tokens(golden, name, image, "draft", draft), DRAFTS);
        begin(&f, name, image);
        const causal_request known = {.prefix = prefix, .length = q.length - 1};
        causal_fixture_laws(&f.target, &known, 1);
        assert_ok(eagle_runner_log_probs(f.runner, &q, 1, f.laws, &err), &err);
        snprintf(key, sizeof key, "%s.%d.laws", name, image);
        float *expected = golden_f32(golden, key, (int64_t)LAWS * f.target.vocabulary);
        assert_close(f.laws, expected, (size_t)LAWS * (size_t)f.target.vocabulary, tolerance);
        free(expected);
    }
    wt_close(golden);
    close_both(&f);
}

static const causal_sampling guided = {.cfg = 3, .cfg_interval = -1, .temperature = 1, .top_p = 1};

TEST_CASE(distributions_are_lanterns)
{
    check(MAR_DTYPE_F32, "c2i", "llamagen_c2i20", "lantern_c2i.bin", &causal_fixture_plain, 1e-5);
    check(MAR_DTYPE_F32, "t2i", "llamagen_t2i", "lantern_t2i.bin", &guided, 1e-5);
    check(MAR_DTYPE_F32, "anole", "anole", "lantern_anole.bin", &guided, 1e-5);
    check(MAR_DTYPE_F32, "lumina", "lumina", "lantern_lumina.safetensors", &guided, 1e-5);
}

TEST_CASE(distributions_in_bf16_are_near)
{
    check(MAR_DTYPE_BF16, "t2i", "llamagen_t2i", "lantern_t2i.bin", &guided, 3e-2);
    check(MAR_DTYPE_BF16, "lumina", "lumina", "lantern_lumina.safetensors", &guided, 1e-1);
}

/* --- requests one after another ----------------------------------------------------------------------------------- */

enum { IMAGE = 16, STEPS = 40 };

typedef struct {
    int token[IMAGE], draft[DRAFTS];
    causal_request q;
} history;

static int below(uint64_t *random, int n)
{
    *random = *random * 6364136223846793005u + 1442695040888963407u;
    return (int)((*random >> 33) % (uint64_t)n);
}

/* Goes on from some of the tokens with others, and drafts the first drafts of the tree, as many as fit. */
static void go_on(history *h, uint64_t *random, int vocabulary)
{
    causal_request *q = &h->q;
    int kept = below(random, q->length + 1);
    q->length = kept + below(random, IMAGE + 1 - kept);
    while (kept < q->length) h->token[kept++] = below(random, vocabulary);
    for (int i = 0; i < DRAFTS; i++) h->draft[i] = below(random, vocabulary);
    q->prefix = h->token, q->draft = h->draft, q->parent = parent;
    q->count = q->length + 3 <= IMAGE ? DRAFTS : q->length + 1 <= IMAGE ? 3 : 0;
}

/* Asks the drafter in parts, each of which continues the one before. The target has the tokens but the last. */
static void ask(fixture *f, const causal_request *q, const int *ends, int parts)
{
    mar_err err = {0};
    const causal_request known = {.prefix = q->prefix, .length = q->length ? q->length - 1 : 0};
    causal_fixture_laws(&f->target, &known, 1);
    for (int i = 0; i < parts; i++) {
        causal_request part = *q;
        if (i > 0 && ends[i - 1] >= q->count) break;
        part.from = i ? ends[i - 1] + 1 : 0;
        part.count = ends[i] < q->count ? ends[i] : q->count;
        assert_ok(eagle_runner_log_probs(f->runner, &part, 1, f->laws, &err), &err);
    }
}

/* Rows end among tokens and drafts, and behind the last token: its line end is a draft. Distributions have the same
 * bits whatever was asked before, by levels or at once. */
TEST_CASE(histories_do_not_matter)
{
    static const int levels[] = {3, 6, DRAFTS}, once[] = {DRAFTS};
    static float laws[LAWS * IMAGE];
    uint64_t random = 11;
    history h = {.q = {0}};
    fixture f = {0}, plain = {0};
    assert_true(open_both(&f, MAR_DTYPE_F32, "lumina", "lantern_lumina.safetensors", &guided));
    assert_true(open_both(&plain, MAR_DTYPE_F32, "lumina", "lantern_lumina.safetensors", &guided));
    assert_true(f.target.seq_len == IMAGE && f.target.vocabulary == IMAGE);
    begin(&f, "lumina", 1);
    for (int step = 0; step < STEPS; step++) {
        go_on(&h, &random, f.target.vocabulary);
        const size_t bytes = sizeof(float) * (size_t)(h.q.count + 1) * (size_t)f.target.vocabulary;
        ask(&f, &h.q, levels, 3);
        memcpy(laws, f.laws, bytes);
        begin(&plain, "lumina", 1);
        ask(&plain, &h.q, once, 1);
        assert_memory_equal(laws, plain.laws, bytes);
    }
    close_both(&f);
    close_both(&plain);
}

/* --- files -------------------------------------------------------------------------------------------------------- */

TEST_CASE(files)
{
    eagle_config c;
    mar_err err = {0};
    wt_file *f = open_weights("tests/golden/data/lantern_t2i.bin");
    assert_ok(eagle_config_derive(f, 0, &c, &err), &err);
    wt_close(f);
    assert_true(c.published && !c.bias && !c.first_norm && c.heads == 0);
    assert_true(c.width == 32 && c.hidden == 40 && c.vocabulary == 50);
    assert_int_equal(c.parameters, 32 * 64 + 4 * 32 * 32 + 3 * 32 * 40 + 32 + 50 * 32);
    const causal_shape other = {.width = 32, .heads = 2, .head_dim = 16, .vocabulary = 51};
    assert_int_equal(eagle_config_fits(&c, &other, &err), MAR_EMODEL);
    assert_string_equal(err.text, "the EAGLE drafter has 50 tokens, expected the model's, 51");
}

/* The heads follow from the size of the norms' rows: one for each head, or one for all of them. The copy of the
 * target's embedding is not used. */
TEST_CASE(files_with_norms)
{
    static const char *const paths[] = {"tests/golden/data/lantern_anole.bin",
                                        "tests/golden/data/lantern_lumina.safetensors"};
    for (int lumina = 0; lumina < 2; lumina++) {
        eagle_config c;
        mar_err err = {0};
        wt_file *f = open_weights(paths[lumina]);
        assert_true(eagle_config_recognise(f) && !family_language.recognise(f));
        assert_ok(eagle_config_derive(f, 0, &c, &err), &err);
        wt_close(f);
        assert_true(c.published && c.bias == !lumina && c.first_norm && c.qk_norm);
        assert_true(c.width == 16 && c.hidden == 20 && c.heads == 2 && c.vocabulary == 0);
        assert_int_equal(c.norm_shape, lumina ? CAUSAL_ONE_ROW : CAUSAL_ROWS);
        const int norms = 2 * 16 + 4 * (lumina ? 8 : 16);
        assert_int_equal(c.parameters, 16 * 32 + (lumina ? 0 : 16) + 4 * 16 * 16 + 3 * 16 * 20 + norms);
        const causal_shape plain = {.width = 16, .heads = 2, .head_dim = 8};
        assert_int_equal(eagle_config_fits(&c, &plain, &err), MAR_EMODEL);
        assert_string_equal(err.text, "the EAGLE drafter has norms of q and k, expected a layer like the model's");
    }
}

/* Checks that norms whose size does not divide the width into heads are refused, in one line. */
TEST_CASE(other_norms_are_refused)
{
    eagle_config c;
    wt_output tensors[32];
    mar_err err = {0};
    char *path = test_path("drafter.safetensors");
    wt_file *f = open_weights("tests/golden/data/lantern_lumina.safetensors");
    const int n = wt_count(f);
    assert_true(n <= 32);
    for (int i = 0; i < n; i++) {
        const wt_tensor *t = wt_at(f, i);
        tensors[i] = (wt_output){t->name, WT_F16, t->rank, {0}, f, t, WT_VALUES, NULL};
        memcpy(tensors[i].shape, t->shape, sizeof t->shape);
        if (strstr(t->name, "q_norm.weight")) tensors[i].shape[0] = 4, tensors[i].shape[1] = 2;
    }
    assert_ok(wt_save_safetensors(path, tensors, n, NULL, 0, &err), &err);
    wt_close(f);
    f = open_weights(path);
    assert_int_equal(eagle_config_derive(f, 0, &c, &err), MAR_EMODEL);
    assert_non_null(
        strstr(err.text, "tensor layers.0.self_attn.q_norm.weight has heads of size 2, expected a multiple"));
    wt_close(f);
}

TEST_CASE(trees_are_lanterns)
{
    static const char *const names[] = {"mc_sim_7b_63", "mc_sim_7b_63_balanced", "naive_extend_57", "medusa_2_7b_63",
                                        "reverse_balanced_25"};
    wt_file *golden = golden_open("lantern");
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char key[64];
        raster_tree t;
        mar_err err = {0};
        int depth[RASTER_TREE_DRAFTS], deepest = 0;
        snprintf(key, sizeof key, "tree.%s", names[i]);
        assert_ok(raster_tree_read(names[i], &t, &err), &err);
        float *expected = golden_f32(golden, key, t.count);
        for (int n = 0; n < t.count; n++) {
            assert_int_equal(t.parent[n], (int)expected[n]);
            depth[n] = t.parent[n] < 0 ? 1 : depth[t.parent[n]] + 1;
            deepest = depth[n] > deepest ? depth[n] : deepest;
        }
        assert_int_equal(t.depth, deepest);
        free(expected);
    }
    wt_close(golden);
}
