/* Tests the distribution of whole sessions with --spec path in raster order (mar/raster_path.h), as test_path_law.c
 * does in the masked one: the path of every kept token is a draw from the target's distribution, and not with mutants.
 * That distribution is computed independently, by one pass over the finished images. All seeds are fixed. With another
 * seed a correct session fails with probability 1e-4 at most. */
#include "mar.h"
#include "mar_measure.h"
#include "mar/api/session.h"
#include "mar/raster_path.h"
#include "tests/support/brief.h"
#include "tests/support/path_spy.h"
#include "tests/support/statistics.h"
#include "tests/support/support.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    BATCH = test_brief ? 2 : 12,
    SEQ = 64,
    C = 16,
    ROWS = BATCH * (SEQ - 1)
}; /* the model draws first tokens alone */

static const double rare = 1e-4;
static mar *library;
static mar_model *target, *draft;

static int open_models(void **state)
{
    (void)state;
    library = open_mar(MAR_DTYPE_F32, 2);
    assert_library(library, mar_model_load(library, "demo-sphere", 0, &target));
    assert_library(library, mar_model_load(library, "demo-sphere-draft", 0, &draft));
    return 0;
}

static int close_models(void **state)
{
    (void)state;
    mar_model_free(draft);
    mar_model_free(target);
    mar_close(library);
    return 0;
}

static mar_params params_of(const char *options)
{
    mar_params p = params_set(params_with("num_iter 0, spec path"), options);
    p.draft = draft;
    p.seed = 41;
    return p;
}

static void *array(kern_queue *k, size_t bytes)
{
    void *p;
    mar_err err = {0};
    assert_ok(k->core->alloc(k->device, bytes, &p, &err), &err);
    return p;
}

/* Writes the conditions z [branches][ROWS][D] of all tokens but the images' first, of images with these tokens. */
static void compute_z(kern_queue *k, const mar_params *p, const int *labels, const float *tokens, float *z)
{
    const size_t bytes = sizeof(float) * BATCH * SEQ * C;
    float *x = array(k, bytes);
    causal_runner *r;
    mar_err err = {0};
    int source[SEQ], to[SEQ];
    assert_ok(causal_runner_create(k, mar_raster_model_of(target)->net, &(causal_sampling){.cfg = p->cfg}, BATCH,
                                   SEQ - 1, 0, &r, &err),
              &err);
    void *memory = array(k, causal_runner_lay_out(r, NULL));
    causal_runner_lay_out(r, memory);
    assert_ok(causal_runner_plan(r, BATCH, &err), &err);
    k->core->upload(k, x, tokens, bytes);
    causal_runner_begin(r, BATCH, labels);
    causal_vectors_begin(r, NULL); /* the class tokens */
    causal_vectors_run(r, z);
    causal_vectors_begin(r, x);
    for (int branch = 0; branch < (p->cfg > 1 ? 2 : 1); branch++)
        for (int i = 0; i < BATCH; i++) {
            for (int j = 0; j < SEQ - 1; j++) source[j] = i * SEQ + j, to[j] = j;
            causal_vectors_add(r, i, branch, 0, SEQ - 1, source, SEQ - 1, to, branch * ROWS + i * (SEQ - 1));
        }
    causal_vectors_run(r, z);
    k->core->finish(k);
    causal_runner_free(r);
    k->core->free(k->device, memory);
    k->core->free(k->device, x);
}

/* Adds the innovations of the spy's tokens. */
static void whiten(const path_spy *spy, const mar_params *p, const int *labels, const float *tokens, innovations *out)
{
    static size_t place[ROWS];
    static float cfg[ROWS];
    const diff_head *head = &mar_raster_model_of(target)->head;
    const diff_spec spec = {p->sampler, p->num_sampling_steps, DIFF_TOP, .process = DIFF_FLOW};
    kern_queue *k = queue_of(library);
    diff_chain chain;
    diff_paths paths;
    mar_err err = {0};
    assert_ok(diff_chain_create_for(k, head, &spec, 1, p->temperature, ROWS, p->cfg > 1, &chain, &err), &err);
    assert_ok(diff_paths_create(&chain, 1, ROWS, &paths, &err), &err);
    float *z = array(k, sizeof(float) * 2 * ROWS * (size_t)head->shape.z_dim);
    float *path = array(k, sizeof(float) * ROWS * (size_t)paths.stride), *last = array(k, sizeof(float) * ROWS * C);
    double *log_ratio = array(k, sizeof(double) * ROWS);
    char *chain_memory = array(k, diff_chain_lay_out(&chain, NULL)),
         *memory = array(k, diff_paths_lay_out(&paths, NULL));
    diff_chain_lay_out(&chain, chain_memory);
    diff_paths_lay_out(&paths, memory);
    assert_ok(diff_paths_plan(&paths, ROWS, &err), &err);
    compute_z(k, p, labels, tokens, z);
    for (int r = 0; r < ROWS; r++) {
        place[r] = (size_t)(r / (SEQ - 1) * SEQ + r % (SEQ - 1) + 1);
        cfg[r] = p->cfg;
        assert_true(spy->has[place[r]]);
    }
    const diff_tokens t = {.count = ROWS, .sources = ROWS, .z = z, .cfg = cfg};
    spy_judge(spy, k, &paths, &t, place, path, log_ratio, last, out);
    assert_ok(kern_check(k, &err), &err);
    diff_paths_free(&paths);
    diff_chain_free(&chain);
    void *arrays[] = {z, path, last, log_ratio, chain_memory, memory};
    for (size_t i = 0; i < sizeof arrays / sizeof *arrays; i++) k->core->free(k->device, arrays[i]);
    free_queue(k);
}

static innovation_test innovations_of(const mar_params *p, int mutant)
{
    static float tokens[BATCH * SEQ * C];
    static uint8_t status[BATCH * SEQ];
    static int ar_step[BATCH * SEQ];
    int labels[BATCH], of_status[3] = {0};
    mar_session *s;
    path_spy spy;
    innovations v = {0};
    mar_stats stats = {.size = sizeof stats};
    for (int i = 0; i < BATCH; i++) labels[i] = i % 10;
    assert_library(library, mar_session_create(target, NULL, p, BATCH, &s));
    kern_queue *k = ((mar_raster *)mar_session_engine_state(s))->k;
    assert_session(s, mar_session_begin(s, 0, labels, BATCH));
    spy_begin_on(&spy, k, SEQ, BATCH, 0, BATCH, mutant);
    while (!mar_session_done(s)) assert_session(s, mar_session_step(s));
    assert_session(s, mar_session_tokens(s, tokens));
    whiten(&spy, p, labels, tokens, &v);
    spy_end(&spy);
    assert_session(s, mar_session_token_status(s, status, ar_step));
    mar_session_get_stats(s, &stats);
    for (int i = 0; i < BATCH * SEQ; i++) of_status[status[i]]++, assert_int_equal(ar_step[i], i % SEQ);
    assert_int_equal(of_status[MAR_TOKEN_TARGET], BATCH);
    assert_int_equal(of_status[MAR_TOKEN_ACCEPTED], stats.accepted);
    assert_int_equal(stats.drafted, ROWS);
    assert_int_equal(stats.round_steps, ROWS);
    const innovation_test t = innovations_test(&v);
    print_message("%s: %ld of %zu accepted, gap %.2f; p of normal %.2g, along %.2g, balance %.2g, square %.2g\n",
                  spy_mutant_name(mutant), stats.accepted, v.tokens, t.mean_gap, t.normal, t.along, t.balance,
                  t.square);
    innovations_free(&v);
    mar_session_free(s);
    return t;
}

TEST_CASE(paths_have_the_targets_distribution)
{
    static const char *const cases[] = {
        "num_sampling_steps 12, cfg 2.9, cfg_schedule constant, gamma 4",
        "num_sampling_steps 10, cfg 1, gamma 8, head_spec 4, temperature 0.9",
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const mar_params p = params_of(cases[i]);
        const innovation_test t = innovations_of(&p, PATH_UNCHANGED);
        if (!(t.worst > rare)) fail_msg("%s: p = %.2g", cases[i], t.worst);
    }
}

/* Returns the tokens of request `kept` beside another one, which is cancelled after two steps, if `cancelled`. */
static void make_beside(int cancelled, float *tokens, long *made)
{
    const mar_params p = params_of("num_sampling_steps 8, cfg 2.9, gamma 4");
    mar_session *s;
    mar_request r;
    mar_stats stats = {.size = sizeof stats};
    uint64_t other, kept;
    assert_library(library, mar_session_create(target, NULL, &p, 2, &s));
    mar_request_init(s, &r, sizeof r);
    r.label = 3;
    assert_session(s, mar_session_submit(s, &r, &other));
    r.label = 7, r.image = 1;
    assert_session(s, mar_session_submit(s, &r, &kept));
    for (int step = 0; mar_session_pending(s); step++) {
        if (step == 2 && cancelled) assert_session(s, mar_session_cancel_request(s, other));
        assert_session(s, mar_session_step(s));
    }
    mar_session_get_stats(s, &stats);
    *made = stats.tokens;
    assert_session(s, mar_session_take(s, kept, tokens, NULL));
    mar_session_free(s);
}

/* Rounds leave a cancelled image out, and the other image is as it is beside one. */
TEST_CASE(a_cancelled_image_takes_part_in_no_round)
{
    static float whole[SEQ * C], alone[SEQ * C];
    long both, one;
    make_beside(0, whole, &both);
    make_beside(1, alone, &one);
    assert_memory_equal(whole, alone, sizeof whole);
    assert_int_equal(both, 2 * SEQ);
    assert_in_range(one, SEQ + 2, SEQ + 1 + 4 + 1);
}

/* Skips two mutants whose terms are too small here: that of the first step, where a flow's distributions hardly differ,
 * and that of the last index. specdec.path catches them. */
TEST_CASE(mutants_are_caught)
{
    for (int mutant = PATH_UNCHANGED + 1; mutant < (test_brief ? 0 : SPY_MUTANTS); mutant++) {
        const mar_params p = params_of("num_sampling_steps 12, cfg 1, gamma 4");
        if (mutant == PATH_STEP_LEFT_OUT || mutant == PATH_LAST_COUNTED) continue;
        const innovation_test t = innovations_of(&p, mutant);
        if (!(t.worst < rare)) fail_msg("%s: p = %.2g, not caught", spy_mutant_name(mutant), t.worst);
    }
}

/* --- rounds by choice --------------------------------------------------------------------------------------------- */

enum { SOME = 3 };

/* Implements spec_choice.choose without regard to costs: all widths, by what may decide. */
static int choose_any(const spec_choice *c, const spec_past *past)
{
    return c->drafts[(past->known / 3 + 2 * past->rounds + 3 * past->accepted) % c->widths];
}

/* Makes the tokens of SOME images in batches, by choose_any if `any`. */
static mar_stats make_some(const mar_params *p, int batch, int any, float *tokens)
{
    mar_session *s;
    mar_stats stats = {.size = sizeof stats};
    const int labels[SOME] = {3, 7, 1};
    assert_library(library, mar_session_create(target, NULL, p, batch, &s));
    if (any) ((mar_raster *)mar_session_engine_state(s))->diffusion->paths->rounds.o.choice.choose = choose_any;
    for (int i = 0; i < SOME; i += batch) {
        assert_session(s, mar_session_begin(s, (uint64_t)i, labels + i, batch));
        while (!mar_session_done(s)) assert_session(s, mar_session_step(s));
        assert_session(s, mar_session_tokens(s, tokens + i * SEQ * C));
    }
    mar_session_get_stats(s, &stats);
    mar_session_free(s);
    return stats;
}

/* By default a CPU makes no drafts, and the images are plain ones. An interval of guidance has steps without it. */
TEST_CASE(rounds_without_drafts_are_plain)
{
    static const char *const cases[] = {"num_sampling_steps 8, cfg 2.9", "num_sampling_steps 8, cfg 1, temperature 0.8",
                                        "an interval of guidance"};
    static float plain[SOME * SEQ * C], tokens[SOME * SEQ * C];
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        mar_params p = params_of(i < 2 ? cases[i] : "num_sampling_steps 8, cfg 2.9"), alone;
        if (i == 2) p.cfg_low = 0.25f, p.cfg_high = 0.75f;
        alone = p;
        alone.spec = NULL, alone.draft = NULL;
        for (int batch = 1; batch <= SOME; batch += SOME - 1) {
            make_some(&alone, batch, 0, plain);
            const mar_stats stats = make_some(&p, batch, 0, tokens);
            if (memcmp(tokens, plain, sizeof plain) != 0) fail_msg("%s: not the plain image", cases[i]);
            assert_true(stats.drafted == 0 && stats.undrafted == stats.rounds && stats.passes == SEQ);
            assert_true(stats.plain_s > 0);
        }
    }
}

/* Plain and drafted rounds side by side make the images that they make alone. A model that drafts for itself makes the
 * plain ones. The draft model first computes the tokens of plain rounds. */
TEST_CASE(images_choose_for_themselves)
{
    static float one[SOME * SEQ * C], all[SOME * SEQ * C], plain[SOME * SEQ * C];
    for (int own = 0; own < 2; own++) {
        mar_params p = params_of("num_sampling_steps 8, cfg 2.9"), alone = p;
        alone.spec = NULL, alone.draft = NULL;
        p.round_costs = "1,1,1";
        if (own) p.draft = target;
        const mar_stats of_one = make_some(&p, 1, 1, one), of_all = make_some(&p, SOME, 1, all);
        assert_memory_equal(one, all, sizeof one);
        assert_true(of_one.undrafted > 0 && of_one.undrafted < of_one.rounds && of_one.drafted > 0);
        assert_int_equal(of_all.round_steps, SOME * (SEQ - 1));
        assert_true(own ? of_all.accepted == of_all.drafted : of_all.accepted < of_all.drafted);
        make_some(&alone, SOME, 0, plain);
        assert_true(!own || memcmp(all, plain, sizeof plain) == 0);
        p.round_costs = "1,1,1+900"; /* the account has what the draft model catches up on */
        const mar_stats dear = make_some(&p, 1, 1, one);
        assert_true(dear.plain_s < 0.5 * (dear.decoder_s + dear.head_s + dear.draft_s + dear.verify_s));
    }
}

TEST_CASE(measured_costs_are_kept)
{
    static float x[SOME * SEQ * C], again[SOME * SEQ * C];
    char costs[128];
    mar_session *s;
    mar_params p = params_of("num_sampling_steps 8, cfg 2.9, gamma auto");
    const int label = 3;
    assert_library(library, mar_session_create(target, NULL, &p, 1, &s));
    snprintf(costs, sizeof costs, "%s", mar_session_get_params(s)->round_costs);
    assert_session(s, mar_session_begin(s, 0, &label, 1));
    while (!mar_session_done(s)) assert_session(s, mar_session_step(s));
    assert_session(s, mar_session_tokens(s, x));
    mar_session_free(s);
    p.round_costs = costs;
    make_some(&p, 1, 0, again);
    assert_memory_equal(x, again, SEQ * C * sizeof *x);
}

TEST_GROUP(open_models, close_models)
