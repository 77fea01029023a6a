/* Compares decoders that write images among text with transformers and the official code (tests/golden/make_mgpt.py):
 * the layouts of Lumina-mGPT, Anole and Emu3-Gen, distributions behind prompts, guidance, top-k, greedy sequences over
 * rows with line ends. Enumerates the distribution of sampling methods over such a model. */
#include "tests/support/decoders.h"
#include "tests/support/discrete.h"
#include "tests/support/causal_fixture.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SUBSET = 64, TOKENS_MAX = 1024, CFG = 3 };

static const char *const prompts[] = {"two cats", "a red house by the sea, at night"};

/* A model of the golden file. */
static const struct {
    const char *name;
    decoder_kind kind;
    int columns, rows, stride;
    int images; /* prompts */
    int at[6];  /* positions of golden distributions; -1: no more */
} models[] = {
    {"lumina", DECODER_LUMINA, 6, 4, 16, 2, {0, 5, 6, 17, 23, -1}},
    {"anole", DECODER_ANOLE, 32, 32, 16, 1, {0, 1, 31, 32, 500, 1023}},
    {"anole", DECODER_RELEASE, 32, 32, 16, 1, {0, 1, 31, 32, 500, 1023}},
    {"emu3", DECODER_EMU3, 6, 4, 8, 2, {0, 5, 6, 17, 23, -1}},
    {"emu3", DECODER_EMU3_SAVED, 6, 4, 8, 2, {0, 5, 6, 17, 23, -1}},
    {"emu3", DECODER_EMU3_STATE, 6, 4, 8, 2, {0, 5, 6, 17, 23, -1}},
};
enum { MODELS = sizeof models / sizeof *models };

static int set_up(void **state)
{
    char **path = *state = calloc(DECODERS + 1, sizeof *path), *directory = test_directory();
    for (int k = 0; k < DECODERS; k++) path[k] = decoder_write(directory, (decoder_kind)k, 0);
    path[DECODERS] = decoder_write(directory, DECODER_FEW, 1);
    return 0;
}

static int tear_down(void **state)
{
    char **path = *state;
    for (int k = 0; k <= DECODERS; k++) free(path[k]);
    free(path);
    return 0;
}

TEST_GROUP(set_up, tear_down)

static causal_sampling sampling_of(float cfg, float temperature, int top_k)
{
    return (causal_sampling){.cfg = cfg, .cfg_interval = -1, .temperature = temperature, .top_k = top_k, .top_p = 1};
}

/* What stands before the image tokens: a prompt, the second context alone, or both, in its branch. */
typedef enum { PLAIN, WITHOUT, GUIDED } context;

/* Begins one image behind these ids, with the second context of guidance. */
static void begin_ids(const causal_fixture *f, const int *ids, int n, const int *negative, int m)
{
    const int positions = f->model->shape.prefix;
    float *features = malloc(sizeof *features * (size_t)positions);
    uint8_t *mask = malloc((size_t)positions);
    decoder_features(negative, m, positions, features, mask);
    causal_runner_set_negative(f->runner, features, mask);
    decoder_features(ids, n, positions, features, mask);
    causal_runner_begin_captions(f->runner, 1, features, mask);
    free(features);
    free(mask);
}

static void begin(const causal_fixture *f, int model, int prompt, context c)
{
    const decoder_kind kind = models[model].kind;
    int ids[DECODER_IDS], negative[DECODER_IDS];
    const int m = decoder_negative(kind, models[model].columns, models[model].rows, negative);
    const int n = decoder_prompt(kind, prompts[prompt], models[model].columns, models[model].rows, ids);
    if (c == WITHOUT)
        begin_ids(f, negative, m, negative, m);
    else
        begin_ids(f, ids, n, negative, m);
}

static void open_model(causal_fixture *f, void **state, int model, const causal_sampling *of)
{
    const char *const *path = *state;
    const int width = models[model].columns * models[model].stride, height = models[model].rows * models[model].stride;
    assert_true(causal_fixture_open_decoder(f, open_queue(MAR_DTYPE_F32, 2), path[models[model].kind], width, height,
                                            of, 1, 0, 1));
    assert_int_equal(f->vocabulary, decoder_codebook(models[model].kind));
    assert_int_equal(f->seq_len, models[model].columns * models[model].rows);
}

static void ask(causal_fixture *f, const int *token, int length)
{
    const causal_request q = {.prefix = token, .length = length};
    causal_fixture_laws(f, &q, 1);
}

/* Reads a golden array of a prompt; the caller frees it. */
static float *golden_of(const wt_file *golden, int model, int prompt, const char *what, int64_t count)
{
    char name[64];
    snprintf(name, sizeof name, "%s.%d.%s", models[model].name, prompt, what);
    return golden_f32(golden, name, count);
}

static void read_tokens(const wt_file *golden, int model, int prompt, int *token)
{
    const int n = models[model].columns * models[model].rows;
    float *values = golden_of(golden, model, prompt, "tokens", n);
    for (int i = 0; i < n; i++) token[i] = (int)values[i];
    free(values);
}

/* Writes the part of the distribution that the golden file has, [SUBSET]. */
static void take_subset(const causal_fixture *f, float *out)
{
    for (int i = 0; i < SUBSET; i++) out[i] = causal_fixture_law(f, 0)[i * (f->vocabulary / SUBSET)];
}

static void laws_case(void **state, int model, context c)
{
    static const char *const names[] = {"plain", "without", "guided"};
    const causal_sampling of = sampling_of(c == GUIDED ? CFG : 1, 1, 0);
    int token[TOKENS_MAX], count = 0;
    causal_fixture f;
    wt_file *golden = golden_open("mgpt");
    open_model(&f, state, model, &of);
    while (count < 6 && models[model].at[count] >= 0) count++;
    for (int prompt = 0; prompt < models[model].images; prompt++) {
        float found[6 * SUBSET], *expected = golden_of(golden, model, prompt, names[c], (int64_t)count * SUBSET);
        read_tokens(golden, model, prompt, token);
        begin(&f, model, prompt, c);
        for (int i = 0; i < count; i++) {
            ask(&f, token, models[model].at[i]);
            take_subset(&f, found + i * SUBSET);
        }
        const double error = relative_error(found, expected, (size_t)(count * SUBSET));
        if (!(error <= 1e-5))
            fail_msg("%s %d, %s: relative error %.3g", models[model].name, models[model].kind, names[c], error);
        free(expected);
    }
    wt_close(golden);
    causal_fixture_close(&f);
}

TEST_CASE(laws_of_the_official_code)
{
    for (int model = 0; model < MODELS; model++)
        for (int c = PLAIN; c <= GUIDED; c++) laws_case(state, model, (context)c);
}

/* Compares with the probabilities behind Lumina's InterleavedTopKLogitsWarper. */
TEST_CASE(top_k_of_the_official_code)
{
    const causal_sampling of = sampling_of(CFG, 1, 2000);
    int token[TOKENS_MAX];
    causal_fixture f;
    wt_file *golden = golden_open("mgpt");
    open_model(&f, state, 0, &of);
    for (int prompt = 0; prompt < models[0].images; prompt++) {
        float found[SUBSET], *expected = golden_of(golden, 0, prompt, "top", SUBSET);
        int kept = 0;
        read_tokens(golden, 0, prompt, token);
        begin(&f, 0, prompt, GUIDED);
        ask(&f, token, 3);
        take_subset(&f, found);
        for (int i = 0; i < SUBSET; i++) found[i] = expf(found[i]);
        for (int i = 0; i < f.vocabulary; i++) kept += causal_fixture_law(&f, 0)[i] > -INFINITY;
        assert_int_equal(kept, 2000);
        assert_close(found, expected, SUBSET, 1e-4);
        free(expected);
    }
    wt_close(golden);
    causal_fixture_close(&f);
}

/* Checks the greedy sequences: the official processors force the line ends, and forbid all but image tokens. */
TEST_CASE(greedy_sequences_of_the_official_code)
{
    const causal_sampling of = sampling_of(CFG, 0, 0);
    wt_file *golden = golden_open("mgpt");
    for (int model = 0; model < MODELS; model++) {
        causal_fixture f;
        open_model(&f, state, model, &of);
        for (int prompt = 0; prompt < models[model].images; prompt++) {
            int expected[TOKENS_MAX], token[TOKENS_MAX];
            read_tokens(golden, model, prompt, expected);
            begin(&f, model, prompt, GUIDED);
            for (int t = 0; t < f.seq_len; t++) {
                ask(&f, token, t);
                token[t] = 0;
                while (token[t] < f.vocabulary && causal_fixture_law(&f, 0)[token[t]] != 0) token[t]++;
                if (token[t] != expected[t])
                    fail_msg("%s %d: token %d is %d, expected %d", models[model].name, models[model].kind, t, token[t],
                             expected[t]);
            }
        }
        causal_fixture_close(&f);
    }
    wt_close(golden);
}

/* --- the distribution of sampling methods ---------------------------------------------------------------------------
 */

enum { FEW = 3, SIDE = 2, LENGTH = SIDE * SIDE, SEQUENCES = 81 /* FEW^LENGTH */, DRAFTS = 12 };

static const int few_ids[] = {0, 40, 521, 8}, few_negative[] = {8};

/* A method over the model with three image tokens and a line end behind the second. */
typedef struct {
    const char *name; /* NULL: plain sampling */
    spec_sampler_options options;
    double parameter[SPEC_PARAMETERS_MAX];
    int has_draft;
} setup;

typedef struct {
    sampling g;
    causal_fixture target, draft;
    const setup *u;
    double law[SEQUENCES], total;
} enumeration;

static void begin_few(const causal_fixture *f)
{
    begin_ids(f, few_ids, 4, few_negative, 1);
}

static void one_run(void *arg)
{
    enumeration *e = arg;
    begin_few(&e->target);
    if (e->u->has_draft) begin_few(&e->draft);
    sampling_run(&e->g, 0, 1, LENGTH);
}

static int number_of(const int *token)
{
    int number = 0;
    for (int i = 0; i < LENGTH; i++) number = FEW * number + token[i];
    return number;
}

static void one_result(void *arg, double weight)
{
    enumeration *e = arg;
    e->law[number_of(spec_sampler_tokens(e->g.s, 0))] += weight;
    e->total += weight;
}

/* Opens a runner of the small model on the sampler's queue. causal_fixture_close would close this queue. */
static void open_few(causal_fixture *f, kern_queue *k, const char *path)
{
    const causal_sampling of = sampling_of(1.5F, 1, 0);
    assert_true(causal_fixture_open_decoder(f, k, path, 32, 32, &of, 1, DRAFTS, 1));
    assert_true(f->vocabulary == FEW && f->seq_len == LENGTH);
}

static void close_few(causal_fixture *f)
{
    causal_runner_free(f->runner);
    causal_model_free(f->model);
    wt_close(f->file);
    f->k->core->free(f->k->device, f->memory);
    f->k->core->free(f->k->device, f->laws);
}

/* Multiplies the runner's distributions, one position at a time, without drafts. */
static void plain_law(causal_fixture *f, double *law)
{
    begin_few(f);
    for (int number = 0; number < SEQUENCES; number++) {
        int token[LENGTH];
        for (int i = LENGTH - 1, rest = number; i >= 0; i--, rest /= FEW) token[i] = rest % FEW;
        law[number] = 1;
        for (int t = 0; t < LENGTH; t++) {
            ask(f, token, t);
            law[number] *= exp((double)causal_fixture_law(f, 0)[token[t]]);
        }
    }
}

/* Returns the total variation between the distribution of a method's sequences and the model's. */
static double distance(const setup *u, char *const *path)
{
    static enumeration e;
    double expected[SEQUENCES], sum = 0;
    const spec_method *m = u->name ? spec_method_find(u->name) : NULL;
    spec_sampler_options o = u->options;
    e = (enumeration){.u = u};
    o.method = m, o.parameter = u->parameter, o.side = SIDE;
    sampling_open(&e.g, 1);
    e.g.start = (spec_start){.seed = 3};
    open_few(&e.target, e.g.k, path[DECODER_FEW]);
    open_few(&e.draft, e.g.k, path[DECODERS]);
    plain_law(&e.target, expected);
    const spec_model target = {FEW, e.target.runner, causal_runner_log_probs, NULL},
                     draft = {FEW, e.draft.runner, causal_runner_log_probs, NULL};
    script_install(&e.g, FAULT_NONE);
    sampling_create(&e.g, &target, u->has_draft ? &draft : NULL, &o, 1, LENGTH);
    script_each(one_run, one_result, &e);
    close_few(&e.draft);
    close_few(&e.target);
    sampling_close(&e.g);
    if (!(fabs(e.total - 1) < 1e-5)) fail_msg("%s: probabilities sum to %g", u->name, e.total);
    for (int i = 0; i < SEQUENCES; i++) sum += 0.5 * fabs(expected[i] - e.law[i]);
    return sum;
}

/* Guidance is on: each context has a sequence of its own. Drafts of a round stand on both sides of a line end. */
TEST_CASE(methods_have_the_models_law)
{
    static const int tree[] = {-1, -1, 0};
    static const setup setups[] = {
        {.name = NULL},
        {.name = "vanilla", .options = {.length = 2}, .has_draft = 1},
        {.name = "vanilla", .options = {.length = 2, .parent = tree, .count = 3}, .has_draft = 1},
        {.name = "sjd", .options = {.length = 2}},
        {.name = "sjd-pac", .options = {.length = 3}, .parameter = {2, 1, 1}},
        {.name = "scd", .options = {.length = 3, .first = SPEC_FIRST_ABOVE}, .parameter = {1, 0}},
    };
    char *const *path = *state;
    for (size_t i = 0; i < sizeof setups / sizeof *setups; i++) {
        const double tv = distance(&setups[i], path);
        if (!(tv < 1e-5)) fail_msg("%s: total variation %g", setups[i].name ? setups[i].name : "plain", tv);
    }
}
