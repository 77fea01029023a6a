/* Tests the distribution of whole sessions with --spec path. Mutants must be caught.
 *
 * There are two kinds of tests. The sharp one checks that the path of every kept token is a draw from the target's
 * distribution. That distribution is computed independently, from the finished images (tests/support/path_spy.h). Some
 * dozens of images give tens of thousands of standard normals. The broad one compares images with plain sampling: with
 * another seed, and paired, with the same noise.
 *
 * All seeds are fixed. With other seeds a correct session fails a check of paths with probability 1e-4 at most; there
 * are eight. It fails each of the two comparisons of images with probability 0.005. The mutants show what the tests
 * find. */
#include "mar.h"
#include "mar_measure.h"
#include "kernels/gaussian.h"
#include "specdec/path.h"
#include "tests/support/brief.h"
#include "tests/support/demo.h"
#include "tests/support/masked.h"
#include "tests/support/path_spy.h"
#include "tests/support/statistics.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const double rare = 1e-4, rare_of_images = 0.005;

/* A sanitizer makes an image ten times slower. IMAGES is a multiple of BATCH and CLASSES. */
enum { BATCH = 16, BATCHES = test_brief ? 1 : 2, IMAGES = test_brief ? 80 : test_all ? 240 : 160 };
enum { COMPARED_MUTANTS = test_brief ? 0 : test_all ? 2 : 1 };
enum { CLASSES = 10 };

/* Returns the models with the target that drafts of that kind have. The draft model as its own target takes a tenth of
 * the time. */
static demo models_of(const demo *d, int by_draft)
{
    demo models = *d;
    if (!by_draft) models.model = d->draft;
    return models;
}

static mar_params params_of(const demo *d, int by_draft, uint64_t seed, const char *options)
{
    mar_params p = params_with(options);
    p.spec = "path";
    p.draft = by_draft ? d->draft : NULL;
    p.seed = seed;
    return p;
}

static void label(int first, int n, int *labels)
{
    for (int i = 0; i < n; i++) labels[i] = (first + i) % CLASSES;
}

/* --- innovations -------------------------------------------------------------------------------------------------- */

/* Implements spec_choice.choose by an adversary within the rules: it goes on with other drafts where some were
 * rejected, and otherwise by what it remembers. */
static int choose_against(const spec_choice *c, const spec_past *past)
{
    const int some = past->known + past->rounds + (int)(4 * past->passed[0] + 2 * past->tested[1]);
    if (past->accepted < past->positions) return c->drafts[1 + some % (c->widths - 1)];
    return past->positions ? 0 : c->drafts[some % c->widths];
}

static const mar_masked *peeked; /* with one image, whose steps have one token */

/* Chooses drafts where the next step's uniform of the verdict is large: noise of the round itself. */
static int choose_by_noise(const spec_choice *c, const spec_past *past)
{
    const mar_slot *image = &peeked->slots.slot[0];
    const int position = peeked->order[0][DEMO_SEQ - 1 - past->known];
    const kern_address a = {image->seed, image->number, (uint32_t)position, DIFF_BASE_STEPS};
    return kern_uniform_at(&a, KERN_NOISE_VERIFY, 0) > 0.5 ? c->drafts[1] : 0;
}

/* The session's choice, if a test replaces it. */
typedef int choose_function(const spec_choice *c, const spec_past *past);

static spec_path *rounds_of(mar_session *s)
{
    extern const mar_accel mar_accel_path; /* its state begins with a spec_path */
    return mar_masked_state(mar_masked_of(s), &mar_accel_path);
}

/* Returns the test of `images` images, made in batches. `choose` may be NULL. */
static innovation_test innovations_by(const demo *d, const mar_params *p, int images, int batch, int block, int mutant,
                                      choose_function *choose)
{
    static float tokens[BATCH * DEMO_TOKENS];
    static uint8_t status[BATCH * DEMO_SEQ];
    mar_session *s = demo_session(d, p, batch);
    innovations v = {0};
    mar_stats stats = {.size = sizeof stats};
    long drafted = 0, accepted = 0, undrafted = 0;
    int labels[BATCH];
    if (choose) rounds_of(s)->o.choice.choose = choose;
    peeked = mar_masked_of(s);
    for (int first = 0; first < images; first += batch) {
        path_spy spy;
        label(first, batch, labels);
        assert_session(s, mar_session_begin(s, (uint64_t)first, labels, batch));
        spy_begin(&spy, s, (uint64_t)first, batch, mutant);
        demo_finish(s);
        assert_session(s, mar_session_tokens(s, tokens));
        assert_session(s, mar_session_token_status(s, status, NULL));
        for (int i = 0; choose && i < batch * DEMO_SEQ; i++) /* dropped drafts of steps that became plain */
            if (status[i] == MAR_TOKEN_TARGET) spy.has[i] = 0;
        spy_whiten(&spy, d->model, p, block, labels, tokens, &v);
        spy_end(&spy);
        mar_session_get_stats(s, &stats);
        drafted += stats.drafted, accepted += stats.accepted, undrafted += stats.undrafted;
    }
    assert_int_equal(v.tokens, drafted);
    assert_true((undrafted > 0) == (choose != NULL));
    const innovation_test t = innovations_test(&v);
    print_message("%s: %ld of %zu accepted, gap %.2f; p of normal %.2g, along %.2g, balance %.2g, square %.2g\n",
                  spy_mutant_name(mutant), accepted, v.tokens, t.mean_gap, t.normal, t.along, t.balance, t.square);
    if (mutant == PATH_UNCHANGED) assert_true(accepted > 0 && accepted < drafted);
    if (block == 1) assert_true(v.off == 0); /* later contexts already contain these tokens */
    innovations_free(&v);
    mar_session_free(s);
    return t;
}

static innovation_test innovations_of(const demo *d, const mar_params *p, int batches, int block, int mutant)
{
    return innovations_by(d, p, batches * BATCH, BATCH, block, mutant, NULL);
}

TEST_CASE(paths_have_the_targets_law)
{
    static const struct {
        int by_draft, block;
        const char *options;
    } cases[] = {
        {0, 1, "num_iter 8, num_sampling_steps 12, cfg 2.9, gamma 4"},
        {0, 1, "num_iter 16, num_sampling_steps 12, cfg 1, gamma 8, head_spec 4"},
        {0, 1, "num_iter 16, num_sampling_steps 10, cfg 2.9, gamma 16, head_spec 4, temperature 0.9"},
        {1, 1, "num_iter 8, num_sampling_steps 25, cfg 1, gamma 4, context full, head_spec 4"},
        {1, 3, "num_iter 8, num_sampling_steps 25, cfg 1, gamma 3, context prefix"},
    };
    demo d = demo_open(2);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const mar_params p = params_of(&d, cases[i].by_draft, 100 + i, cases[i].options);
        const demo models = models_of(&d, cases[i].by_draft);
        const innovation_test t =
            innovations_of(&models, &p, cases[i].by_draft ? 1 : BATCHES, cases[i].block, PATH_UNCHANGED);
        if (!(t.worst > rare)) fail_msg("%s: p = %.2g", cases[i].options, t.worst);
    }
    demo_close(d);
}

/* Skips the mutant that counts the density of the last index. The demo's distributions nearly agree there, so it
 * changed no verdict in these runs. No test of whole sessions can catch it; specdec.path does. */
TEST_CASE(mutants_are_caught)
{
    static const char *const options = "num_iter 16, num_sampling_steps 12, cfg 1, gamma 8, head_spec 4";
    static const char *const larger_steps = "num_iter 8, num_sampling_steps 12, cfg 2.9, gamma 4, head_spec 4";
    demo d = demo_open(2);
    const demo models = models_of(&d, 0);
    for (int mutant = PATH_UNCHANGED + 1; mutant < SPY_MUTANTS; mutant++) {
        const mar_params p = params_of(&d, 0, 100, mutant == SPY_KEEPS_BEHIND ? larger_steps : options);
        if (mutant == PATH_LAST_COUNTED) continue;
        if (test_brief && mutant > PATH_UNCHANGED + 1 && mutant < SPY_MUTANTS - 1) continue;
        const innovation_test t = innovations_of(&models, &p, BATCHES, 1, mutant);
        if (!(t.worst < rare)) fail_msg("%s: p = %.2g, not caught", spy_mutant_name(mutant), t.worst);
    }
    demo_close(d);
}

/* --- choices ------------------------------------------------------------------------------------------------------ */

/* Images are made one at a time, so that a step has drafts or none. */
enum { ALONE = test_brief ? 4 : 48 };

TEST_CASE(choices_within_the_rules_keep_the_distribution)
{
    static const char *const cases[] = {
        "num_iter 16, num_sampling_steps 12, cfg 1, head_spec 4",
        "num_iter 8, num_sampling_steps 12, cfg 2.9",
        "num_iter 8, num_sampling_steps 25, cfg 1, context full, head_spec 4",
    };
    demo d = demo_open(2);
    for (int i = 0; i < 3; i++) {
        const int by_draft = i == 2, images = by_draft && !test_brief ? ALONE / 4 : ALONE;
        const demo models = models_of(&d, by_draft);
        mar_params p = params_of(&d, by_draft, 300 + (uint64_t)i, cases[i]);
        p.round_costs = "1,1,1";
        const innovation_test t = innovations_by(&models, &p, images, 1, 1, PATH_UNCHANGED, choose_against);
        if (!(t.worst > rare)) fail_msg("%s: p = %.2g", cases[i], t.worst);
    }
    demo_close(d);
}

/* A choice that looks at the round's noise changes the distribution, and is caught. */
TEST_CASE(a_choice_by_the_rounds_noise_is_caught)
{
    demo d = demo_open(2);
    const demo models = models_of(&d, 0);
    mar_params p = params_of(&d, 0, 310, "num_iter 64, num_sampling_steps 12, cfg 1, head_spec 4");
    p.round_costs = "1,1,1";
    const innovation_test t = innovations_by(&models, &p, ALONE, 1, 1, PATH_UNCHANGED, choose_by_noise);
    if (!test_brief && !(t.worst < rare)) fail_msg("p = %.2g, not caught", t.worst);
    demo_close(d);
}

/* --- images ------------------------------------------------------------------------------------------------------- */

enum { SIDE = 8, PRODUCTS = 2 * SIDE * (SIDE - 1), PROJECTIONS = 100, NUMBERS = DEMO_TOKENS + PRODUCTS + PROJECTIONS };

/* Generates tokens [IMAGES][DEMO_TOKENS] of images 0.. */
static float *images_of(const demo *d, const mar_params *p, int mutant)
{
    float *tokens = malloc(sizeof(float) * IMAGES * DEMO_TOKENS);
    int labels[BATCH];
    assert_non_null(tokens);
    mar_session *s = demo_session(d, p, BATCH);
    for (int first = 0; first < IMAGES; first += BATCH) {
        path_spy spy;
        label(first, BATCH, labels);
        assert_session(s, mar_session_begin(s, (uint64_t)first, labels, BATCH));
        if (mutant) spy_begin(&spy, s, (uint64_t)first, BATCH, mutant);
        demo_finish(s);
        if (mutant) spy_end(&spy);
        assert_session(s, mar_session_tokens(s, tokens + (size_t)first * DEMO_TOKENS));
    }
    mar_session_free(s);
    return tokens;
}

static double uniform(uint64_t *state)
{
    uint32_t words[4];
    kern_random_words(77, KERN_NOISE_STEP, (*state)++, 0, 0, 0, words);
    return (words[0] + 0.5) / 4294967296.0;
}

/* Subtracts the class means of both samples together, and divides by the deviation. */
static void standardise(float *a, float *b)
{
    for (int j = 0; j < DEMO_TOKENS; j++) {
        double mean[CLASSES] = {0}, square = 0;
        for (int i = 0; i < IMAGES; i++)
            mean[i % CLASSES] += ((double)a[i * DEMO_TOKENS + j] + b[i * DEMO_TOKENS + j]) / (2.0 * IMAGES / CLASSES);
        for (int i = 0; i < IMAGES; i++) {
            float *x = &a[i * DEMO_TOKENS + j], *y = &b[i * DEMO_TOKENS + j];
            *x -= (float)mean[i % CLASSES], *y -= (float)mean[i % CLASSES];
            square += (double)*x * *x + (double)*y * *y;
        }
        for (int i = 0; i < IMAGES; i++)
            for (int k = 0; k < 2; k++) (k ? b : a)[i * DEMO_TOKENS + j] /= (float)sqrt(square / (2.0 * IMAGES));
    }
}

/* Computes the compared numbers of an image, [NUMBERS]: coordinates, products of neighbouring tokens, random
 * projections. */
static void numbers_of(const float *image, const float *lines, float *out)
{
    float *next = out + DEMO_TOKENS;
    memcpy(out, image, sizeof(float) * DEMO_TOKENS);
    for (int down = 0; down < 2; down++)
        for (int y = 0; y < SIDE - down; y++)
            for (int x = 0; x < SIDE - !down; x++, next++) {
                const float *token = image + (y * SIDE + x) * DEMO_CHANNELS,
                            *other = token + (down ? SIDE : 1) * DEMO_CHANNELS;
                *next = 0;
                for (int c = 0; c < DEMO_CHANNELS; c++) *next += token[c] * other[c];
            }
    for (int l = 0; l < PROJECTIONS; l++, next++) {
        *next = 0;
        for (int j = 0; j < DEMO_TOKENS; j++) *next += lines[l * DEMO_TOKENS + j] * image[j];
    }
}

/* Returns the p-value of the energy distances' sum over classes. Labels are permuted within classes, or swapped within
 * pairs. */
static double energy_p(const float *a, const float *b, int paired)
{
    enum { EACH = IMAGES / CLASSES, BOTH = 2 * EACH, PERMUTATIONS = 999 };
    static float distance[CLASSES][BOTH][BOTH];
    uint64_t random = 0;
    double observed = 0;
    int above = 0;
    for (int c = 0; c < CLASSES; c++)
        for (int i = 0; i < BOTH; i++)
            for (int j = 0; j < i; j++) {
                const float *x = (i < EACH ? a : b) + (i % EACH * CLASSES + c) * DEMO_TOKENS;
                const float *y = (j < EACH ? a : b) + (j % EACH * CLASSES + c) * DEMO_TOKENS;
                double sum = 0;
                for (int k = 0; k < DEMO_TOKENS; k++) sum += ((double)x[k] - y[k]) * ((double)x[k] - y[k]);
                distance[c][i][j] = distance[c][j][i] = (float)sqrt(sum);
            }
    for (int k = 0; k <= PERMUTATIONS; k++) {
        double total = 0;
        for (int c = 0; c < CLASSES; c++) {
            int sign[BOTH];
            for (int i = 0; i < BOTH; i++) sign[i] = i < EACH ? 1 : -1;
            for (int i = paired ? EACH - 1 : BOTH - 1; k && i >= 0; i--) {
                const int j = paired ? (uniform(&random) < 0.5 ? i : i + EACH) : (int)(uniform(&random) * (i + 1));
                const int swap = sign[paired ? i + EACH : i];
                sign[paired ? i + EACH : i] = sign[j], sign[j] = swap;
            }
            for (int i = 0; i < BOTH; i++) {
                float row = 0;
                for (int j = 0; j < BOTH; j++) row += (float)sign[j] * distance[c][i][j];
                total -= sign[i] * (double)row;
            }
        }
        if (k == 0) observed = total;
        above += total >= observed;
    }
    return (double)above / (PERMUTATIONS + 1);
}

/* Returns the least p-value of two samples of images, corrected for the number of tests. */
static double compare(const float *a, const float *b, int paired)
{
    static float x[IMAGES][NUMBERS], y[IMAGES][NUMBERS], lines[PROJECTIONS * DEMO_TOKENS], u[IMAGES], v[IMAGES];
    float *copy[2] = {malloc(sizeof(float) * IMAGES * DEMO_TOKENS), malloc(sizeof(float) * IMAGES * DEMO_TOKENS)};
    uint64_t random = 1 << 20;
    double least[3] = {1, 1, 1};
    assert_true(copy[0] && copy[1]);
    memcpy(copy[0], a, sizeof(float) * IMAGES * DEMO_TOKENS), memcpy(copy[1], b, sizeof(float) * IMAGES * DEMO_TOKENS);
    standardise(copy[0], copy[1]);
    for (int i = 0; i < PROJECTIONS * DEMO_TOKENS; i++)
        lines[i] = (float)(uniform(&random) + uniform(&random) + uniform(&random) - 1.5);
    for (int i = 0; i < IMAGES; i++) {
        numbers_of(copy[0] + i * DEMO_TOKENS, lines, x[i]);
        numbers_of(copy[1] + i * DEMO_TOKENS, lines, y[i]);
    }
    for (int j = 0; j < NUMBERS; j++) {
        double *of = &least[j < DEMO_TOKENS ? 0 : j < DEMO_TOKENS + PRODUCTS ? 1 : 2], sum = 0, square = 0, p;
        for (int i = 0; i < IMAGES; i++) {
            u[i] = x[i][j], v[i] = y[i][j];
            sum += (double)u[i] - v[i], square += ((double)u[i] - v[i]) * ((double)u[i] - v[i]);
        }
        p = paired ? erfc(fabs(sum) / sqrt(2 * square)) : stat_ks_two_sample_p(u, IMAGES, v, IMAGES);
        *of = fmin(*of, p * (j < DEMO_TOKENS ? DEMO_TOKENS : j < DEMO_TOKENS + PRODUCTS ? PRODUCTS : PROJECTIONS));
    }
    const double energy = energy_p(copy[0], copy[1], paired);
    print_message("%s: p of coordinates %.2g, neighbour products %.2g, projections %.2g, energy distance %.3f\n",
                  paired ? "paired" : "unpaired", least[0], least[1], least[2], energy);
    free(copy[0]), free(copy[1]);
    return fmin(1, fmin(4 * fmin(least[0], fmin(least[1], least[2])), 4 * energy));
}

TEST_CASE(images_have_the_targets_law)
{
    static const int mutants[] = {PATH_SWAPPED, SPY_ACCEPTS_ALL};
    demo d = demo_open(2);
    const demo models = models_of(&d, 0);
    const mar_params p = params_of(&d, 0, 200, "num_iter 8, num_sampling_steps 10, cfg 2.9, gamma 8, head_spec 4");
    mar_params same = p, other;
    same.spec = NULL, other = same, other.seed = 201;
    float *path = images_of(&models, &p, PATH_UNCHANGED), *paired = images_of(&models, &same, PATH_UNCHANGED);
    float *unpaired = images_of(&models, &other, PATH_UNCHANGED);
    assert_true(compare(path, unpaired, 0) > rare_of_images);
    assert_true(compare(path, paired, 1) > rare_of_images);
    for (int i = 0; i < COMPARED_MUTANTS; i++) {
        float *wrong = images_of(&models, &p, mutants[i]);
        print_message("%s:\n", spy_mutant_name(mutants[i]));
        assert_true(compare(wrong, unpaired, 0) < rare_of_images);
        assert_true(compare(wrong, paired, 1) < rare_of_images);
        free(wrong);
    }
    free(path), free(paired), free(unpaired);
    demo_close(d);
}
