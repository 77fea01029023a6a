/* Compares an EAGLE drafter with PyTorch (tests/golden/make_eagle.py). Covers distributions of chains and trees in
 * the rounds of whole images, after accepted and rejected drafts, with guidance and filters. Also checks the work of a
 * round, and that invalid files are refused. */
#include "tests/support/causal_fixture.h"

#include "specdec/eagle.h"
#include "tests/support/llamagen.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { IMAGES = 2, ROUNDS = 7, DRAFTS = 7, LAWS = DRAFTS + 1, TOKENS = 16, VOCABULARY = 73 };

static const int label[IMAGES] = {2, 0};
static const causal_sampling guided = {
    .cfg = 1.7f, .cfg_interval = 5, .temperature = 0.8f, .top_k = 30, .top_p = 0.95f};

/* A target with features, and a drafter over it. Row image * LAWS holds the first distribution of an image. */
typedef struct {
    causal_fixture target;
    eagle_model *model;
    eagle_runner *runner;
    void *memory;
    float *laws; /* [IMAGES * LAWS][VOCABULARY] */
} fixture;

static void open_eagle(kern_queue *k, const char *name, eagle_model **out)
{
    mar_err err = {0};
    wt_file *f = golden_open(name);
    assert_ok(eagle_model_create(k, f, 0, out, &err), &err);
    wt_close(f);
}

static int open_both(fixture *f, mar_dtype dtype, const char *name, const causal_sampling *sampling)
{
    mar_err err = {0};
    if (!causal_fixture_open(&f->target, open_queue(dtype, 2), "llamagen_c2i20", 0, sampling, IMAGES, DRAFTS, 1,
                             IMAGES * LAWS))
        return 0;
    kern_queue *k = f->target.k;
    open_eagle(k, name, &f->model);
    assert_ok(
        eagle_runner_create(k, f->model, f->target.model, f->target.runner, sampling, IMAGES, DRAFTS, &f->runner, &err),
        &err);
    f->memory = backend_memory(k, eagle_runner_lay_out(f->runner, NULL));
    eagle_runner_lay_out(f->runner, f->memory);
    assert_ok(eagle_runner_plan(f->runner, IMAGES, &err), &err);
    f->laws = backend_memory(k, sizeof(float) * IMAGES * LAWS * VOCABULARY);
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

/* --- rounds of the golden file ------------------------------------------------------------------------------------ */

typedef struct {
    int prefix[TOKENS], draft[DRAFTS], parent[DRAFTS];
    causal_request request;
} golden_round;

static int read_list(const wt_file *f, const char *name, int *list)
{
    float *values = golden_f32(f, name, -1);
    const int n = (int)values[0];
    for (int i = 0; i < n; i++) list[i] = (int)values[i + 1];
    free(values);
    return n;
}

static void read_round(const wt_file *f, const char *name, int image, int i, golden_round *out)
{
    char key[64];
    *out = (golden_round){.request = {.sequence = image, .row = image * LAWS}};
    causal_request *q = &out->request;
    snprintf(key, sizeof key, "%s.%d.%d.prefix", name, image, i);
    q->length = read_list(f, key, out->prefix);
    snprintf(key, sizeof key, "%s.%d.%d.draft", name, image, i);
    q->count = read_list(f, key, out->draft);
    snprintf(key, sizeof key, "%s.%d.%d.parent", name, image, i);
    assert_int_equal(read_list(f, key, out->parent), q->count);
    q->prefix = out->prefix, q->draft = out->draft, q->parent = out->parent;
}

/* Checks that the distributions of a request, as probabilities, equal those of the golden file. */
static void expect_golden(const fixture *f, const wt_file *file, const char *name, int i, const causal_request *q,
                          double tolerance)
{
    char key[64];
    const size_t n = (size_t)(q->count + 1) * VOCABULARY;
    snprintf(key, sizeof key, "%s.%d.%d.laws", name, q->sequence, i);
    float *expected = golden_f32(file, key, (int64_t)n), *found = malloc(n * sizeof *found);
    assert_non_null(found);
    for (size_t j = 0; j < n; j++) found[j] = expf(f->laws[(size_t)q->row * VOCABULARY + j]);
    assert_close(found, expected, n, tolerance);
    free(expected), free(found);
}

static void ask(fixture *f, const causal_request *request, int n)
{
    mar_err err = {0};
    assert_ok(eagle_runner_log_probs(f->runner, request, n, f->laws, &err), &err);
}

/* Computes in the target what a sampler would ask for. At a round's end these are the drafts. If unseen tokens follow
 * them, these are computed, too, except the last. */
static void compute_target(fixture *f, const causal_request *q, int with_drafts)
{
    causal_request r = *q;
    if (!with_drafts) r.count = 0, r.length--;
    r.from = 0;
    causal_fixture_laws(&f->target, &r, 1);
}

static void start(fixture *f)
{
    causal_runner_begin(f->target.runner, IMAGES, label);
    eagle_runner_begin(f->runner, IMAGES);
}

/* Returns the number of computed tokens of both conditions. A round computes those after the last round's tokens. */
static long rows_of(const fixture *f)
{
    return eagle_runner_get_stats(f->runner)->rows;
}

static void check_rounds(mar_dtype dtype, const char *name, const char *file, const causal_sampling *sampling,
                         double tolerance)
{
    fixture f;
    if (!open_both(&f, dtype, file, sampling)) return;
    wt_file *golden = golden_open("eagle");
    const int conditions = sampling->cfg > 1 ? 2 : 1;
    start(&f);
    for (int i = 0, length[IMAGES] = {0}; i < ROUNDS; i++) {
        golden_round round[IMAGES];
        causal_request both[IMAGES];
        long rows = rows_of(&f), expected = 0;
        for (int image = 0; image < IMAGES; image++) {
            read_round(golden, name, image, i, &round[image]);
            both[image] = round[image].request;
            expected += conditions * (both[image].length - length[image] + both[image].count);
            length[image] = both[image].length;
            if (i == 5) compute_target(&f, &both[image], 0);
        }
        ask(&f, both, IMAGES);
        assert_int_equal(rows_of(&f) - rows, expected);
        for (int image = 0; image < IMAGES; image++) {
            expect_golden(&f, golden, name, i, &both[image], tolerance);
            compute_target(&f, &both[image], 1);
        }
    }
    wt_close(golden);
    close_both(&f);
}

TEST_CASE(rounds_are_pytorchs)
{
    check_rounds(MAR_DTYPE_F32, "plain", "eagle_plain", &causal_fixture_plain, 1e-5);
    check_rounds(MAR_DTYPE_F32, "official", "eagle_official", &guided, 1e-5);
}

/* A relative error of a probability is an absolute error of a logit. Some logits are about 5. No filters: the last
 * token that a filter keeps depends on rounding. */
TEST_CASE(rounds_in_bf16_are_near)
{
    check_rounds(MAR_DTYPE_BF16, "plain", "eagle_plain", &causal_fixture_plain, 6e-2);
}

/* --- the same distributions, computed differently ----------------------------------------------------------------- */

/* Asks for one image's distributions in one call, from a new beginning. The target then has the prefix without its last
 * token. */
static void ask_anew(fixture *f, const causal_request *q, float *laws)
{
    start(f);
    if (q->length > 0) compute_target(f, q, 0);
    ask(f, q, 1);
    memcpy(laws, f->laws + (size_t)q->row * VOCABULARY, sizeof(float) * VOCABULARY * (size_t)(q->count + 1));
}

/* Drafts by levels, as a sampler does. Each request continues the one before, and computes only the new drafts. */
TEST_CASE(levels_are_the_same)
{
    static const mar_dtype dtypes[2] = {MAR_DTYPE_F32, MAR_DTYPE_BF16};
    static const int parent[DRAFTS] = {-1, -1, 0, 0, 1, 2, 4}, ends[] = {2, 3, 5, DRAFTS};
    const int prefix[] = {5, 70, 11}, draft[DRAFTS] = {9, 1, 30, 31, 9, 72, 0};
    static float whole[LAWS * VOCABULARY];
    for (int d = 0; d < 2; d++)
        for (int length = 0; length <= 3; length += 3) {
            fixture f;
            if (!open_both(&f, dtypes[d], "eagle_official", &guided)) continue;
            causal_request q = {.sequence = 1, .prefix = prefix, .length = length, .draft = draft, .parent = parent};
            q.row = LAWS, q.count = DRAFTS;
            ask_anew(&f, &q, whole);
            start(&f);
            if (length) compute_target(&f, &q, 0);
            for (size_t l = 0; l < sizeof ends / sizeof *ends; l++) {
                q.from = l ? q.count + 1 : 0;
                q.count = ends[l];
                const long rows = rows_of(&f);
                ask(&f, &q, 1);
                if (l) assert_int_equal(rows_of(&f) - rows, 2 * (ends[l] - ends[l - 1]));
            }
            assert_memory_equal(f.laws + LAWS * VOCABULARY, whole, sizeof whole);
            q.from = DRAFTS; /* only seems to continue: draft 1 has changed */
            int other[DRAFTS];
            memcpy(other, draft, sizeof other);
            other[1] = 2;
            q.draft = other;
            ask(&f, &q, 1);
            static float changed[LAWS * VOCABULARY];
            memcpy(changed, f.laws + LAWS * VOCABULARY, sizeof changed);
            q.from = 0;
            ask_anew(&f, &q, whole);
            assert_memory_equal(changed, whole, sizeof whole);
            close_both(&f);
        }
}

/* Checks what a pass of one image under both conditions must read. Always: the output layer, keys and values. With
 * rows: the layer's weights and fc, and for each row its embedding and feature, in f32. Without rows: the feature of
 * the image's first distribution. `attended` is the sum of positions that rows attend to. */
static void expect_pass(const fixture *f, const causal_runner_stats *before, int rows, int laws, int slots,
                        int attended)
{
    const causal_runner_stats *now = eagle_runner_get_stats(f->runner);
    const double d = f->model->config.width, size = (double)f->target.k->device->act_size;
    const double layer = d * (4 * d + 3 * f->model->config.hidden), fc = 2 * d * d, output = d * VOCABULARY;
    const double bytes = size * ((rows ? layer + fc : 0) + output + 2 * slots * 2 * d) +
                         sizeof(float) * d * 2 * (2 * rows + (rows ? 0 : laws));
    const double flop = 2 * 2 * (rows * (layer + fc) + 2 * attended * d + laws * output);
    assert_int_equal(now->passes - before->passes, 1);
    assert_int_equal(now->rows - before->rows, 2 * rows);
    assert_true(now->bytes - before->bytes == bytes);
    assert_true(now->flop - before->flop == flop);
}

TEST_CASE(passes_are_counted)
{
    static const mar_dtype dtypes[2] = {MAR_DTYPE_F32, MAR_DTYPE_BF16};
    static const int parent[DRAFTS] = {-1, -1, 0, 0, 1, 2, 4}, ends[] = {2, 5, DRAFTS};
    const int prefix[] = {5, 70, 11}, draft[DRAFTS] = {9, 1, 30, 31, 9, 72, 0};
    for (int d = 0; d < 2; d++)
        for (int length = 0; length <= 3; length += 3) {
            fixture f;
            if (!open_both(&f, dtypes[d], "eagle_official", &guided)) continue;
            causal_request q = {.sequence = 1, .prefix = prefix, .length = length, .draft = draft, .parent = parent};
            start(&f);
            if (length) compute_target(&f, &q, 0);
            causal_runner_stats before = *eagle_runner_get_stats(f.runner);
            ask(&f, &q, 1);
            expect_pass(&f, &before, length, 1, length, length * (length + 1) / 2);
            for (int l = 0; l < 3; l++) {
                const int n = ends[l] - q.count;
                q.from = q.count + 1, q.count = ends[l];
                before = *eagle_runner_get_stats(f.runner);
                ask(&f, &q, 1);
                expect_pass(&f, &before, n, n, length + q.count, n * (length + l + 1));
            }
            close_both(&f);
        }
}

/* Checks that an image's distributions have the same bits alone, whatever was asked before: longer and shorter
 * prefixes, more tokens than fit in a pass, the other image beside it. */
TEST_CASE(images_and_histories_do_not_matter)
{
    uint64_t random = 7;
    static float alone[IMAGES][LAWS * VOCABULARY];
    fixture f, plain;
    assert_true(open_both(&f, MAR_DTYPE_F32, "eagle_plain", &guided));
    assert_true(open_both(&plain, MAR_DTYPE_F32, "eagle_plain", &guided));
    start(&f);
    golden_round at[IMAGES] = {{.request = {.sequence = 0}}, {.request = {.sequence = 1}}};
#define BELOW(n) (random = random * 6364136223846793005u + 1442695040888963407u, (int)((random >> 33) % (uint64_t)(n)))
    for (int step = 0; step < 25; step++) {
        causal_request both[IMAGES];
        for (int i = 0; i < IMAGES; i++) {
            causal_request *q = &at[i].request;
            int kept = BELOW(q->length + 1);
            q->row = i * LAWS;
            q->length = kept + BELOW(TOKENS + 1 - kept);
            while (kept < q->length) at[i].prefix[kept++] = BELOW(VOCABULARY);
            q->count = q->length < TOKENS - 3 ? BELOW(DRAFTS + 1) : 0;
            for (int n = 0; n < q->count; n++) {
                at[i].parent[n] = n < 3 ? -1 : BELOW(3);
                at[i].draft[n] = BELOW(VOCABULARY);
            }
            q->prefix = at[i].prefix, q->draft = at[i].draft, q->parent = at[i].parent;
            if (q->length > 0) compute_target(&f, q, 0);
            both[i] = *q;
            ask_anew(&plain, q, alone[i]);
        }
        ask(&f, both, IMAGES);
        for (int i = 0; i < IMAGES; i++)
            assert_memory_equal(f.laws + (size_t)both[i].row * VOCABULARY, alone[i],
                                sizeof(float) * VOCABULARY * (size_t)(both[i].count + 1));
    }
    close_both(&f);
    close_both(&plain);
}

/* Nothing is drafted yet: the distribution is the target's own, up to rounding. */
TEST_CASE(the_first_law_is_the_targets)
{
    fixture f;
    assert_true(open_both(&f, MAR_DTYPE_F32, "eagle_plain", &causal_fixture_plain));
    start(&f);
    for (int i = 0; i < IMAGES; i++) {
        const causal_request q = {.sequence = i, .row = i * LAWS};
        ask(&f, &q, 1);
        causal_fixture_laws(&f.target, &q, 1);
        assert_close(f.laws + i * LAWS * VOCABULARY, causal_fixture_law(&f.target, i * LAWS), VOCABULARY, 1e-6);
    }
    close_both(&f);
}

/* Captions are 120 positions in front of the image tokens, some of them masked. An image's distributions are the same
 * alone. At its first token they are the target's. They depend on the caption. */
TEST_CASE(captions)
{
    enum { CAPTIONS = 3, POSITIONS = 120, DIM = 12, OUT = 50 };
    const eagle_config shape = {.width = 32, .hidden = 48, .first_norm = 1};
    char *folder = test_directory(), *path = write_eagle(folder, "eagle.safetensors", &shape, 5);
    fixture f = {0};
    wt_file *file = NULL, *golden = golden_open("llamagen");
    mar_err err = {0};
    kern_queue *k = open_queue(MAR_DTYPE_F32, 2);
    assert_true(causal_fixture_open(&f.target, k, "llamagen_t2i", 0, &guided, CAPTIONS, 2, 1, 3 * CAPTIONS));
    file = open_weights(path);
    assert_ok(eagle_model_create(k, file, 0, &f.model, &err), &err);
    wt_close(file);
    assert_ok(eagle_runner_create(k, f.model, f.target.model, f.target.runner, &guided, CAPTIONS, 2, &f.runner, &err),
              &err);
    f.memory = backend_memory(k, eagle_runner_lay_out(f.runner, NULL));
    eagle_runner_lay_out(f.runner, f.memory);
    assert_ok(eagle_runner_plan(f.runner, CAPTIONS, &err), &err);
    f.laws = backend_memory(k, sizeof(float) * 3 * CAPTIONS * OUT);
    float *features = golden_f32(golden, "t2i.captions", -1);
    float *numbers = golden_f32(golden, "t2i.masks", -1);
    uint8_t mask[CAPTIONS * POSITIONS];
    for (int i = 0; i < CAPTIONS * POSITIONS; i++) mask[i] = (uint8_t)numbers[i];
    const int draft[2] = {7, 8}, parent[2] = {-1, 0};
    static float together[CAPTIONS * 3 * OUT];
    causal_request all[CAPTIONS];
    for (int i = 0; i < CAPTIONS; i++)
        all[i] = (causal_request){.sequence = i, .draft = draft, .parent = parent, .count = 2, .row = 3 * i};
    causal_runner_begin_captions(f.target.runner, CAPTIONS, features, mask);
    eagle_runner_begin(f.runner, CAPTIONS);
    ask(&f, all, CAPTIONS);
    memcpy(together, f.laws, sizeof together);
    causal_fixture_laws(&f.target, all, CAPTIONS);
    for (int i = 0; i < CAPTIONS; i++)
        for (int j = 0; j < OUT; j++)
            assert_true(fabsf(expf(together[3 * i * OUT + j]) - expf(causal_fixture_law(&f.target, 3 * i)[j])) < 1e-5f);
    for (int i = 0; i < CAPTIONS; i++) {
        causal_runner_begin_captions(f.target.runner, 1, features + i * POSITIONS * DIM, mask + i * POSITIONS);
        eagle_runner_begin(f.runner, 1);
        ask(&f, all, 1);
        assert_memory_equal(f.laws, together + 3 * i * OUT, sizeof(float) * 3 * OUT);
        if (i) assert_memory_not_equal(together, together + 3 * i * OUT, sizeof(float) * 3 * OUT);
    }
    free(features), free(numbers), free(path);
    wt_close(golden);
    close_both(&f);
}

/* --- failures ----------------------------------------------------------------------------------------------------- */

TEST_CASE(refusals_and_failures)
{
    fixture f;
    const int token[] = {1, 2, 3}, high[] = {VOCABULARY};
    static float before[VOCABULARY];
    mar_err err = {0};
    assert_true(open_both(&f, MAR_DTYPE_F32, "eagle_plain", &guided));
    start(&f);
    const causal_request ahead = {.prefix = token, .length = 3}, none = {.prefix = high, .length = 1};
    assert_int_equal(eagle_runner_log_probs(f.runner, &ahead, 1, f.laws, &err), MAR_EARG);
    assert_non_null(strstr(err.text, "the model has not computed token 1 of image 0"));
    assert_int_equal(eagle_runner_log_probs(f.runner, &none, 1, f.laws, &err), MAR_EARG);
    assert_non_null(strstr(err.text, "token 73 at position 0"));
    compute_target(&f, &ahead, 0);
    ask(&f, &ahead, 1);
    memcpy(before, f.laws, sizeof before);
    int cancel = 1;
    kern_queue *k = f.target.k;
    k->cancel = &cancel;
    start(&f);
    assert_int_equal(eagle_runner_log_probs(f.runner, &ahead, 1, f.laws, &err), MAR_ECANCELLED);
    k->cancel = NULL;
    k->core->recover(k);
    start(&f);
    compute_target(&f, &ahead, 0);
    ask(&f, &ahead, 1);
    assert_memory_equal(f.laws, before, sizeof before);
    k->watch.on = 1; /* the search for non-finite layers reports the drafter's by name */
    kern_watch_begin(k);
    const float nan = strtof("nan", NULL);
    k->core->upload(k, f.model->layer.ffn_norm + 3, &nan, sizeof nan);
    start(&f);
    compute_target(&f, &ahead, 0);
    assert_ok(eagle_runner_log_probs(f.runner, &ahead, 1, f.laws, &err), &err);
    assert_string_equal(k->watch.layer, "draft: eagle.layers.0.ffn_norm");
    k->watch.on = 0;
    close_both(&f);
}

/* Checks that a drafter for another model is refused. */
TEST_CASE(other_targets_are_refused)
{
    causal_fixture wide;
    mar_err err = {0};
    eagle_model *model;
    eagle_runner *r = (eagle_runner *)&err;
    assert_true(
        causal_fixture_open(&wide, open_queue(MAR_DTYPE_F32, 2), "llamagen_c2i", 0, &causal_fixture_plain, 1, 1, 1, 1));
    open_eagle(wide.k, "eagle_plain", &model);
    assert_int_equal(eagle_runner_create(wide.k, model, wide.model, wide.runner, &causal_fixture_plain, 1, 1, &r, &err),
                     MAR_EMODEL);
    assert_null(r);
    assert_string_equal(err.text, "the EAGLE drafter has width 40, expected the model's, 48");
    eagle_config heads = {.width = 48, .heads = 4};
    assert_int_equal(eagle_config_fits(&heads, &wide.model->shape, &err), MAR_EMODEL);
    assert_string_equal(err.text, "the EAGLE drafter has 4 attention heads, expected as many as the model, 3");
    heads.heads = 0;
    assert_ok(eagle_config_fits(&heads, &wide.model->shape, &err), &err);
    eagle_runner_free(NULL);
    eagle_model_free(model);
    eagle_model_free(NULL);
    causal_fixture_close(&wide);
}

/* --- files -------------------------------------------------------------------------------------------------------- */

typedef struct {
    const wt_file *f;
    int count;
} listing;

static void expect_tensor(void *user, const char *name, int rank, const int64_t *shape)
{
    listing *l = user;
    const wt_tensor *t = wt_find(l->f, name);
    if (!t) fail_msg("%s is not in the file", name);
    assert_int_equal(t->rank, rank);
    assert_memory_equal(t->shape, shape, (size_t)rank * sizeof *shape);
    l->count++;
}

TEST_CASE(shapes_and_tensors)
{
    static const char *const names[2] = {"eagle_plain", "eagle_official"};
    for (int official = 0; official < 2; official++) {
        wt_file *f = golden_open(names[official]);
        eagle_config c;
        mar_err err = {0};
        assert_true(eagle_config_recognise(f));
        assert_false(family_llamagen.recognise(f));
        assert_ok(eagle_config_derive(f, 0, &c, &err), &err);
        assert_true(c.width == 40 && c.hidden == 56 && c.heads == 2);
        assert_true(c.bias == official && c.first_norm == !official);
        listing l = {.f = f};
        eagle_config_tensors(&c, expect_tensor, &l);
        assert_int_equal(l.count, wt_count(f));
        assert_true(c.parameters == 40 * 80 + 4 * 40 * 40 + 3 * 40 * 56 + 80);
        assert_ok(eagle_config_derive(f, 5, &c, &err), &err);
        assert_int_equal(c.heads, 5);
        assert_int_equal(eagle_config_derive(f, 3, &c, &err), MAR_EARG);
        assert_non_null(strstr(err.text, "do not divide the width 40"));
        assert_int_equal(eagle_config_derive(f, -1, &c, &err), MAR_EARG);
        wt_close(f);
    }
    wt_file *f = golden_open("llamagen_c2i");
    assert_false(eagle_config_recognise(f));
    wt_close(f);
}

/* Writes the drafter without tensor number `without`, or with that tensor transposed, and with this mar.heads. */
static wt_file *spoil(const char *path, int without, int transposed, const char *heads)
{
    wt_file *f = golden_open("eagle_plain"), *out = NULL;
    wt_output tensors[16];
    const char *const metadata[1][2] = {{"mar.heads", heads}};
    mar_err err = {0};
    int n = 0;
    for (int i = 0; i < wt_count(f); i++) {
        const wt_tensor *t = wt_at(f, i);
        if (i == without && !transposed) continue;
        tensors[n] = (wt_output){t->name, WT_F16, t->rank, {0}, f, t, WT_VALUES, NULL};
        memcpy(tensors[n].shape, t->shape, sizeof t->shape);
        if (i == without) tensors[n].rank = 2, tensors[n].shape[0] = t->count / 2, tensors[n].shape[1] = 2;
        n++;
    }
    assert_ok(wt_save_safetensors(path, tensors, n, metadata, 1, &err), &err);
    wt_close(f);
    out = open_weights(path);
    return out;
}

static void expect_refused(kern_queue *k, wt_file *f, const char *reason)
{
    mar_err err = {0};
    eagle_model *m = (eagle_model *)&err;
    const mar_status status = eagle_model_create(k, f, 0, &m, &err);
    if (status != MAR_EMODEL || !strstr(err.text, reason) || strchr(err.text, '\n'))
        fail_msg("%s: %s (%s)", reason, mar_status_name(status), err.text);
    assert_null(m);
    wt_close(f);
}

TEST_CASE(damaged_files_are_refused)
{
    char *path = test_path("eagle.safetensors");
    kern_queue *k = open_queue(MAR_DTYPE_F32, 1);
    wt_file *f = golden_open("eagle_plain");
    for (int i = 0; i < wt_count(f); i++) {
        const char *name = wt_at(f, i)->name;
        expect_refused(k, spoil(path, i, 1, "2"), name);
        if (strcmp(name, "eagle.layers.0.attention_norm.weight") == 0) continue; /* optional tensor */
        expect_refused(k, spoil(path, i, 0, "2"), name);
    }
    static const char *const heads[] = {"3", "0", "-2", "two", "2x", "", "99999999999999999999"};
    for (size_t i = 0; i < sizeof heads / sizeof *heads; i++)
        expect_refused(k, spoil(path, -1, 0, heads[i]), "attention heads");
    wt_close(f);
    close_queue(k);
}
