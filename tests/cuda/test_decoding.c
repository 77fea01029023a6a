/* Decoding on the device. One recording runs a step: from the embedding of a drawn token to the next draw. The
 * same operations also run without a recording, and with each token read by the host. Probabilities and tokens are
 * equal, bit for bit. */
#include "specdec/sampler.h"
#include "tests/support/device.h"
#include "tests/cudahost/control.h"
#include "tests/support/discrete.h"
#include "tests/support/causal_fixture.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { IMAGES = 3, TOKENS = 25, GAMMA = 3, VOCABULARY = 73 };
enum { READ = 16 }; /* rounds of plain sampling per read of tokens (specdec/sampler.h) */

static const causal_sampling guided = {
    .cfg = 1.7f, .cfg_interval = 6, .temperature = 0.9f, .top_k = 40, .top_p = 0.95f};
static const causal_sampling unguided = {.cfg = 1, .cfg_interval = -1, .temperature = 0.8f, .top_p = 1};

/* How the operations are run. */
typedef enum {
    RECORDED,
    REFUSED, /* the device refuses to record */
    WATCHED, /* as in the search for layers: no recordings, and the host reads each token */
    APART,   /* the verification is a separate call after the recorded pass; the host reads each token */
    WAYS,
} way;

typedef struct {
    causal_fixture f;
    causal_runner *drafter;
    spec_sampler *s;
    void *memory[2];
    float *laws;  /* host [count][VOCABULARY]: log probabilities of all passes, or NULL */
    size_t count; /* rows of `laws` */
} decoder;

/* Stores the log probabilities of a pass. */
static mar_status note(decoder *d, const causal_request *request, int n, const float *log_probs, mar_status status)
{
    for (int i = 0; i < n && d->laws && status == MAR_OK; i++)
        for (int site = 0; site <= request[i].count; site++)
            from_device(d->f.k, d->laws + VOCABULARY * d->count++,
                        log_probs + (size_t)(request[i].row + site) * VOCABULARY, VOCABULARY * sizeof *log_probs);
    return status;
}

static mar_status laws_then(void *state, const causal_request *request, int n, float *log_probs,
                            const causal_continuation *continuation, mar_err *err)
{
    decoder *d = state;
    return note(d, request, n, log_probs,
                causal_runner_log_probs_then(d->f.runner, request, n, log_probs, continuation, err));
}

static mar_status laws(void *state, const causal_request *request, int n, float *log_probs, mar_err *err)
{
    decoder *d = state;
    return note(d, request, n, log_probs, causal_runner_log_probs(d->f.runner, request, n, log_probs, err));
}

/* Opens a sampler over a golden model: plain, or with chains of GAMMA drafts by the same model without guidance. */
static void open_decoder(decoder *d, mar_dtype dtype, int drafts, way how)
{
    const spec_method *vanilla = spec_method_find("vanilla");
    const spec_sampler_options options = {.method = drafts ? vanilla : NULL, .length = GAMMA};
    mar_err err = {0};
    *d = (decoder){0};
    causal_fixture_open(&d->f, open_cuda(dtype), "llamagen_c2i20", TOKENS, &guided, IMAGES, GAMMA, 0, 1);
    assert_int_equal(d->f.vocabulary, VOCABULARY);
    assert_ok(causal_runner_create(d->f.k, d->f.model, &unguided, IMAGES, GAMMA, 0, &d->drafter, &err), &err);
    const spec_model target = {VOCABULARY, d, laws, how == APART ? NULL : laws_then};
    const spec_model draft = {VOCABULARY, d->drafter, causal_runner_log_probs, NULL};
    assert_ok(spec_sampler_create(d->f.k, &target, drafts ? &draft : NULL, &options, IMAGES, TOKENS, &d->s, &err),
              &err);
    d->memory[0] = backend_memory(d->f.k, causal_runner_lay_out(d->drafter, NULL));
    d->memory[1] = backend_memory(d->f.k, spec_sampler_lay_out(d->s, NULL));
    causal_runner_lay_out(d->drafter, d->memory[0]);
    spec_sampler_lay_out(d->s, d->memory[1]);
    assert_ok(causal_runner_plan(d->drafter, IMAGES, &err), &err);
    d->f.k->watch.on = how == WATCHED;
    if (how == REFUSED && cudahost_refuse) cudahost_refuse(CUDAHOST_BEGIN_CAPTURE, 2);
}

static void close_decoder(decoder *d)
{
    if (cudahost_refuse) cudahost_refuse(0, 2);
    spec_sampler_free(d->s);
    causal_runner_free(d->drafter);
    for (int i = 0; i < 2; i++) d->f.k->core->free(d->f.k->device, d->memory[i]);
    causal_fixture_close(&d->f);
}

static void begin(decoder *d, uint64_t first)
{
    static const int label[IMAGES] = {3, -1, 0};
    kern_watch_begin(d->f.k);
    causal_runner_begin(d->f.runner, IMAGES, label);
    causal_runner_begin(d->drafter, IMAGES, label);
    sampling_begin(d->s, &(spec_start){.seed = 9, .image = first, .n = TOKENS}, IMAGES);
}

static void run_round(decoder *d)
{
    mar_err err = {0};
    assert_ok(spec_sampler_round(d->s, &err), &err);
}

static void decode_batch(decoder *d, uint64_t first, int *tokens)
{
    begin(d, first);
    while (spec_sampler_running(d->s) > 0) run_round(d);
    for (int i = 0; i < IMAGES; i++) memcpy(tokens + i * TOKENS, spec_sampler_tokens(d->s, i), TOKENS * sizeof *tokens);
}

/* Decodes all tokens of two batches; with little time of one, in which most passes are replayed, too. */
static void decode(decoder *d, int *tokens)
{
    decode_batch(d, 5, tokens);
    if (!cuda_test_brief()) decode_batch(d, 105, tokens + IMAGES * TOKENS);
}

static void compare_ways(mar_dtype dtype, int drafts)
{
    enum { N = 2 * IMAGES * TOKENS, MOST = N * (GAMMA + 1) };
    float *expected = malloc(sizeof *expected * MOST * VOCABULARY), *found = malloc(sizeof *found * MOST * VOCABULARY);
    int tokens[N] = {0}, again[N] = {0};
    size_t count = 0;
    assert_true(expected && found);
    for (way how = RECORDED; how < WAYS; how++) {
        decoder d;
        if (how == REFUSED && !cudahost_refuse) continue; /* a real GPU never refuses */
        /* with little time each way with or without drafts */
        if (cuda_test_brief() && how != RECORDED && (how == WATCHED) == drafts) continue;
        open_decoder(&d, dtype, drafts, how);
        d.laws = how == RECORDED ? expected : found;
        decode(&d, how == RECORDED ? tokens : again);
        if (how == RECORDED) count = d.count;
        assert_int_equal(d.count, count);
        assert_true(count <= MOST);
        if (how != RECORDED) assert_memory_equal(again, tokens, sizeof tokens);
        if (how != RECORDED) assert_memory_equal(found, expected, count * VOCABULARY * sizeof *found);
        assert_true(how == RECORDED || how == APART ? d.f.k->recordings > 0 : d.f.k->recordings == 0);
        assert_true(how == REFUSED ? d.f.k->unrecorded > 0 : d.f.k->unrecorded == 0);
        close_decoder(&d);
    }
    for (int i = 0; i < N; i++) assert_true(tokens[i] >= 0 && tokens[i] < VOCABULARY);
    free(expected), free(found);
}

static void plain_steps_are_the_same_bits(void **state)
{
    (void)state;
    compare_ways(MAR_DTYPE_BF16, 0);
}

static void rounds_of_drafts_are_the_same_bits(void **state)
{
    (void)state;
    compare_ways(MAR_DTYPE_F32, 1);
}

/* Counts the kernels of a step. A layer has 5: norm and qkv, attention with rotation, wo, norm, w13 and SwiGLU, and w2.
 * Besides the layers there are the embedding, the last norm with the output layer, probabilities and draw. All are in
 * one graph, without a wait. */
static void a_step_is_one_graph(void **state)
{
    (void)state;
    enum { FIRST = 4, STEPS = 8 }; /* before them: the first step of a shape, and the recorded one */
    decoder d;
    if (!cudahost_launches) skip();
    open_decoder(&d, MAR_DTYPE_BF16, 0, RECORDED);
    const int depth = d.f.model->shape.depth;
    const long instantiated = cudahost_instantiated(), graphs = cudahost_graph_launches();
    begin(&d, 5);
    for (int i = 0; i < FIRST; i++) run_round(&d);
    d.f.k->core->finish(d.f.k);
    const long launches = cudahost_launches(), waits = cudahost_waits();
    for (int i = 0; i < STEPS; i++) run_round(&d);
    assert_int_equal(spec_sampler_tokens(d.s, 0)[FIRST + STEPS - 1], CAUSAL_UNREAD);
    assert_int_equal(cudahost_waits(), waits);
    d.f.k->core->finish(d.f.k);
    assert_int_equal(cudahost_launches() - launches, STEPS * (5 * depth + 4));
    const long read = cudahost_waits();
    while (spec_sampler_running(d.s) > 0) run_round(&d);
    assert_int_equal(cudahost_waits() - read, (TOKENS + READ - 1) / READ);
    for (int i = 0; i < TOKENS; i++) assert_true(spec_sampler_tokens(d.s, 0)[i] >= 0);
    /* Two tokens are drawn without a graph. The first has no rows; the second is the first of its shape. */
    assert_int_equal(cudahost_instantiated() - instantiated, 1);
    assert_int_equal(cudahost_graph_launches() - graphs, TOKENS - 2);
    assert_int_equal(d.f.k->recordings, 1);
    check_kern(d.f.k);
    close_decoder(&d);
}

/* Checks that passes recur although the images of a batch accept different numbers of drafts. In the second batch four
 * of five passes are replayed, including the draft model's. */
static void most_passes_are_replayed(void **state)
{
    (void)state;
    decoder d;
    int tokens[IMAGES * TOKENS];
    if (!cudahost_graph_launches) skip();
    open_decoder(&d, MAR_DTYPE_BF16, 1, RECORDED);
    decode_batch(&d, 5, tokens);
    const long graphs = cudahost_graph_launches();
    decode_batch(&d, 105, tokens);
    const spec_sampler_stats *s = spec_sampler_get_stats(d.s);
    const long passes = s->calls + s->draft_calls, replayed = cudahost_graph_launches() - graphs;
    assert_true(s->accepted > 0 && s->accepted < s->drafted);
    if (replayed * 5 < passes * 4) fail_msg("%ld of %ld passes are replayed, expected four of five", replayed, passes);
    close_decoder(&d);
}

/* A model of two tokens whose image 6 has NaN logits after token 6. */
static mar_status broken_laws(void *state, const causal_request *request, int n, float *log_probs,
                              const causal_continuation *continuation, mar_err *err)
{
    kern_queue *k = state;
    for (int i = 0; i < n; i++) {
        const float x = request[i].sequence == 1 && request[i].length == 7 ? NAN : logf(0.5f), law[2] = {x, x};
        k->core->upload(k, log_probs + 2 * request[i].row, law, sizeof law);
    }
    continuation->run(continuation->arg);
    return kern_check(k, err);
}

/* Checks that deferred reading of tokens does not hide NaN logits. The message equals that of a round whose token is
 * read. The other image goes on. */
static void a_nan_shows_when_tokens_are_read(void **state)
{
    (void)state;
    static const spec_sampler_options plain = {.length = 0};
    kern_queue *k = open_cuda(MAR_DTYPE_BF16);
    const spec_model target = {2, k, NULL, broken_laws};
    spec_sampler *s = NULL;
    mar_err err = {0};
    int rounds = 0;
    assert_ok(spec_sampler_create(k, &target, NULL, &plain, 2, TOKENS, &s, &err), &err);
    void *memory = backend_memory(k, spec_sampler_lay_out(s, NULL));
    spec_sampler_lay_out(s, memory);
    sampling_begin(s, &(spec_start){.seed = 1, .image = 5, .n = TOKENS}, 2);
    for (; spec_sampler_running(s) > 0; rounds++) {
        assert_int_equal(spec_sampler_failed(s, 1, &err), rounds < READ ? MAR_OK : MAR_EMODEL);
        assert_ok(spec_sampler_round(s, &err), &err);
    }
    assert_int_equal(rounds, TOKENS);
    assert_int_equal(spec_sampler_failed(s, 1, &err), MAR_EMODEL);
    assert_string_equal(err.text, "image 6, token 7: the logits are not finite");
    assert_ok(spec_sampler_failed(s, 0, &err), &err);
    for (int i = 0; i < TOKENS; i++) assert_true(spec_sampler_tokens(s, 0)[i] >= 0);
    spec_sampler_free(s);
    k->core->free(k->device, memory);
    close_queue(k);
}

/* A model of two tokens whose distributions depend on the last token, which it reads where the request says it is. */
static mar_status chained_laws(void *state, const causal_request *request, int n, float *log_probs,
                               const causal_continuation *continuation, mar_err *err)
{
    kern_queue *k = state;
    for (int i = 0; i < n; i++) {
        const causal_request *q = &request[i];
        int last = q->length ? q->prefix[q->length - 1] : 1;
        assert_true((q->drawn != NULL) == (request[0].drawn != NULL));
        if (q->drawn) k->core->download(k, &last, q->drawn + q->last, sizeof last);
        assert_in_range(last, 0, 1);
        const float p = 0.2f + 0.5f * (float)last + 0.02f * (float)(q->length % 10), law[2] = {logf(1 - p), logf(p)};
        k->core->upload(k, log_probs + 2 * q->row, law, sizeof law);
    }
    continuation->run(continuation->arg);
    return kern_check(k, err);
}

/* Checks that images have the tokens that they have alone, while others come and go beside them. Most rounds leave
 * their tokens on the device. */
static void images_come_and_go(void **state)
{
    (void)state;
    enum { PLACES = 3, GUESTS = 12, FEW = 5 };
    static const spec_sampler_options plain = {.length = 0};
    kern_queue *k = open_cuda(MAR_DTYPE_BF16);
    const spec_model target = {2, k, NULL, chained_laws};
    int given[FEW] = {1, 0, 0, 1, 1}, expected[GUESTS][TOKENS], at[PLACES] = {-1, -1, -1}, next = 0, done = 0;
    spec_sampler *s = NULL;
    mar_err err = {0};
    assert_ok(spec_sampler_create(k, &target, NULL, &plain, PLACES, TOKENS, &s, &err), &err);
    void *memory = backend_memory(k, spec_sampler_lay_out(s, NULL));
    spec_sampler_lay_out(s, memory);
    spec_start guest[GUESTS];
    for (int i = 0; i < GUESTS; i++) {
        guest[i] = (spec_start){.seed = (uint64_t)i / 2, .image = 7, .n = TOKENS - i % 4, .token = given};
        guest[i].given = i % 3 == 1 ? FEW : 0;
        sampling_begin(s, &guest[i], 1);
        while (spec_sampler_running(s) > 0) assert_ok(spec_sampler_round(s, &err), &err);
        memcpy(expected[i], spec_sampler_tokens(s, 0), (size_t)guest[i].n * sizeof **expected);
    }
    spec_sampler_begin(s);
    for (int round = 0; done < GUESTS; round++) {
        for (int p = 0; p < PLACES; p++) {
            if (at[p] < 0 && next < GUESTS && round % 7 == p * 3) spec_sampler_admit(s, p, &guest[at[p] = next++]);
            if (at[p] % 5 == 4 && round % 11 == 0) spec_sampler_release(s, p), at[p] = -1, done++; /* leaves early */
        }
        assert_ok(spec_sampler_round(s, &err), &err);
        for (int p = 0; p < PLACES; p++) {
            if (at[p] < 0 || spec_sampler_left(s, p) > 0) continue;
            assert_memory_equal(spec_sampler_tokens(s, p), expected[at[p]], (size_t)guest[at[p]].n * sizeof **expected);
            at[p] = -1, done++;
        }
    }
    spec_sampler_free(s);
    k->core->free(k->device, memory);
    close_queue(k);
}

typedef struct {
    kern_queue *k;
    kern_cache_job job;
} early_call;

static void attend_twice(void *arg)
{
    const early_call *c = arg;
    for (int i = 0; i < 2; i++) c->k->core->attention_cache(c->k, &c->job);
}

/* Replays attention with rotation of a span of `rows` rows, and `slots` slots that earlier passes filled, twice, so
 * that a kernel is before the second. Returns the bytes that are read before a wait for the kernel before, and writes
 * the kernels that ran. */
static size_t early_bytes(kern_queue *k, int rows, int heads, int slots, long *kernels)
{
    enum { DIM = 64, HEADS = 2, ROWS = 17, MOST = 64 + ROWS };
    int slot[MOST];
    const int row[] = {0, rows}, first[] = {0, slots + rows}, *own = slot + slots;
    uint64_t mask[ROWS];
    for (int i = 0; i < MOST; i++) slot[i] = i;
    for (int i = 0; i < rows; i++) mask[i] = ((uint64_t)2 << i) - 1;
    const size_t slot_bytes = kern_cache_slot_bytes(k->device, KERN_CACHE_ACT, HEADS, DIM);
    void *q = to_device(k, NULL, (size_t)(ROWS * (heads + 2 * HEADS) * DIM) * sizeof(float)),
         *cache = to_device(k, NULL, MOST * slot_bytes);
    void *rope = to_device(k, NULL, MOST * DIM * sizeof(float));
    void *y = to_device(k, NULL, (size_t)(ROWS * heads * DIM) * sizeof(float));
    early_call c = {k,
                    {.rows = rows,
                     .heads = heads,
                     .head_dim = DIM,
                     .kv_heads = HEADS,
                     .type = KERN_CACHE_ACT,
                     .q = q,
                     .q_stride = (heads + 2 * HEADS) * DIM,
                     .cache = cache,
                     .spans = 1,
                     .row = row,
                     .first = first,
                     .common = &slots,
                     .slot = slot,
                     .mask = mask,
                     .words = 1,
                     .max_slots = slots + rows,
                     .rope = rope,
                     .position = own,
                     .own = own,
                     .y = y}};
    kern_recording *recording = NULL;
    size_t before = 0;
    for (int use = 0; use < 3; use++) { /* run, recorded, replayed */
        before = cudahost_early_bytes(), *kernels = cudahost_launches();
        k->core->replay(k, &recording, attend_twice, &c);
        k->core->finish(k);
    }
    *kernels = cudahost_launches() - *kernels;
    k->core->recording_free(k, recording);
    check_kern(k);
    void *all[] = {q, cache, rope, y};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) k->core->free(k->device, all[i]);
    return cudahost_early_bytes() - before;
}

/* Checks that attention of several rows a sequence, and of more query heads for a key than a tile has, reads older
 * slots early and is one kernel, as that of one row is: up to the rows of a skinny product. */
static void several_rows_read_early(void **state)
{
    (void)state;
    enum { SLOTS = 64, BYTES = SLOTS * 2 * 2 * 64 * 2 }; /* keys and values of two heads of 64 in bf16 */
    static const int calls[][3] = {{1, 2, 2}, {2, 2, 2}, {5, 2, 2}, {1, 14, 2}, {16, 2, 2}, {17, 2, 4}};
    if (!cudahost_early_bytes) skip(); /* not counted */
    kern_queue *k = open_cuda(MAR_DTYPE_BF16);
    for (size_t i = 0; i < sizeof calls / sizeof *calls; i++) {
        const int rows = calls[i][0], heads = calls[i][1], kernels = calls[i][2];
        long ran;
        const size_t none = early_bytes(k, rows, heads, 0, &ran), early = early_bytes(k, rows, heads, SLOTS, &ran);
        if (ran != kernels) fail_msg("%d rows, %d heads: %ld kernels, expected %d", rows, heads, ran, kernels);
        if (kernels == 2 && early < none + BYTES)
            fail_msg("%d rows, %d heads: %zu bytes early, %zu without slots, expected %d more", rows, heads, early,
                     none, BYTES);
    }
    close_queue(k);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(plain_steps_are_the_same_bits),
        cmocka_unit_test(rounds_of_drafts_are_the_same_bits),
        cmocka_unit_test(a_step_is_one_graph),
        cmocka_unit_test(most_passes_are_replayed),
        cmocka_unit_test(several_rows_read_early),
        cmocka_unit_test(a_nan_shows_when_tokens_are_read),
        cmocka_unit_test(images_come_and_go),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
