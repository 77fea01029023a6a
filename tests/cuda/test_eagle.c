/* The runner with an EAGLE drafter on the CUDA backend, against the CPU in f32: LlamaGen, and a decoder with prompts
 * and line ends, whose drafter has norms of q and k as LANTERN's for Lumina-mGPT. Like a sampler, the test requests
 * chains and trees level by level, with guidance. Images are made several times, so passes are recorded, then replayed
 * with other tokens, slots and masks. */
#include "tests/support/device.h"

#include "specdec/eagle.h"
#include "tests/support/causal_fixture.h"
#include "tests/support/llamagen.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { IMAGES = 2, DRAFTS = 6, LAWS = DRAFTS + 1, TOKENS = 16, VOCABULARY = 73 };

static const causal_sampling guided = {.cfg = 1.7f, .cfg_interval = 5, .temperature = 0.9f, .top_p = 1};
static const int parent[DRAFTS] = {-1, -1, 0, 1, 1, 3}, ends[] = {2, 5, DRAFTS};

typedef struct {
    kern_queue *k;
    causal_model *gpt;
    wt_file *file; /* a prompt's embeddings are read from it */
    causal_runner *target;
    eagle_model *eagle;
    eagle_runner *drafter;
    void *memory[2];
    float *laws; /* device [2][IMAGES * LAWS][VOCABULARY]: log probabilities of the target, then of the drafter */
} fixture;

/* Opens the files of a decoder and its drafter, which it writes. */
static void open_decoder(wt_file **target, wt_file **drafter)
{
    const family_facts c = small_decoder();
    const eagle_config e = {.width = c.shape.width,
                            .hidden = 40,
                            .heads = c.shape.heads,
                            .first_norm = 1,
                            .published = 1,
                            .qk_norm = 1,
                            .norm_shape = CAUSAL_ONE_ROW};
    char *directory = temporary_directory();
    char *paths[] = {write_decoder(directory, "decoder.safetensors", &c, 3),
                     write_eagle(directory, "drafter.safetensors", &e, 4)};
    *target = open_weights(paths[0]);
    *drafter = open_weights(paths[1]);
    remove_directory(directory);
    free(paths[0]), free(paths[1]), free(directory);
}

static void open_models(fixture *f, kern_queue *k, int decoder)
{
    mar_err err = {0};
    family_facts config;
    wt_file *file = decoder ? NULL : golden_open("llamagen_c2i20");
    wt_file *drafter = decoder ? NULL : golden_open("eagle_official");
    *f = (fixture){.k = k};
    if (decoder) open_decoder(&file, &drafter);
    assert_ok(decoder ? derive_facts(&family_language, file, (wt_asked){.width = 0, .height = 0}, &config, &err)
                      : derive_facts(&family_llamagen, file, (wt_asked){.heads = 0}, &config, &err),
              &err);
    assert_int_equal(config.shape.vocabulary, VOCABULARY);
    assert_ok(load_net(k, file, &config, &f->gpt, &err), &err);
    release_facts(&config);
    assert_ok(eagle_model_create(k, drafter, 0, &f->eagle, &err), &err);
    f->file = file;
    wt_close(drafter);
    assert_ok(causal_runner_create(k, f->gpt, &guided, IMAGES, DRAFTS, 1, &f->target, &err), &err);
    f->memory[0] = to_device(k, NULL, causal_runner_lay_out(f->target, NULL));
    causal_runner_lay_out(f->target, f->memory[0]);
    assert_ok(causal_runner_plan(f->target, IMAGES, &err), &err);
    assert_ok(eagle_runner_create(k, f->eagle, f->gpt, f->target, &guided, IMAGES, DRAFTS, &f->drafter, &err), &err);
    f->memory[1] = to_device(k, NULL, eagle_runner_lay_out(f->drafter, NULL));
    eagle_runner_lay_out(f->drafter, f->memory[1]);
    assert_ok(eagle_runner_plan(f->drafter, IMAGES, &err), &err);
    f->laws = to_device(k, NULL, sizeof(float) * 2 * IMAGES * LAWS * VOCABULARY);
}

static void close_models(fixture *f)
{
    eagle_runner_free(f->drafter);
    causal_runner_free(f->target);
    for (int i = 0; i < 2; i++) f->k->core->free(f->k->device, f->memory[i]);
    f->k->core->free(f->k->device, f->laws);
    eagle_model_free(f->eagle);
    causal_model_free(f->gpt);
    wt_close(f->file);
}

/* Tokens and drafts of an image; different in each `run`. */
typedef struct {
    int token[TOKENS], draft[DRAFTS];
    causal_request request;
} image_state;

static void draft_anew(image_state *s, int round, int run)
{
    for (int i = 0; i < DRAFTS; i++)
        s->draft[i] = (7 * i + 11 * round + 29 * s->request.sequence + 5 * run) % VOCABULARY;
    s->request.count = s->request.length + 3 <= TOKENS ? DRAFTS : 0;
}

/* Runs a round: the drafter's levels, then the target. Reads their probabilities to p[2][IMAGES * LAWS][VOCABULARY]. */
static void run_round(fixture *f, image_state *image, float *p)
{
    const size_t n = (size_t)IMAGES * LAWS * VOCABULARY;
    mar_err err = {0};
    causal_request both[IMAGES];
    for (size_t level = 0; level < sizeof ends / sizeof *ends; level++) {
        for (int i = 0; i < IMAGES; i++) {
            both[i] = image[i].request;
            both[i].from = level ? ends[level - 1] + 1 : 0;
            both[i].count = ends[level];
        }
        if (image[0].request.count)
            assert_ok(eagle_runner_log_probs(f->drafter, both, IMAGES, f->laws + n, &err), &err);
    }
    for (int i = 0; i < IMAGES; i++) both[i] = image[i].request;
    assert_ok(causal_runner_log_probs(f->target, both, IMAGES, f->laws, &err), &err);
    from_device(f->k, p, f->laws, 2 * n * sizeof *p);
    for (size_t i = 0; i < 2 * n; i++) p[i] = expf(p[i]);
}

/* Accepts drafts 1 and 3 in some rounds and none in others, then adds another token. */
static void go_on(image_state *s, int round, int run)
{
    causal_request *q = &s->request;
    if (q->count && (round + s->request.sequence) % 2 == 0) {
        s->token[q->length++] = s->draft[1];
        s->token[q->length++] = s->draft[3];
    }
    s->token[q->length++] = (round * 17 + run + 3) % VOCABULARY;
}

static void run_image(fixture *f, int run, float *p, int rounds)
{
    const int label[IMAGES] = {run % 4, 2};
    static image_state image[IMAGES];
    memset(image, 0, sizeof image);
    for (int i = 0; i < IMAGES; i++)
        image[i].request = (causal_request){
            .sequence = i, .prefix = image[i].token, .draft = image[i].draft, .parent = parent, .row = i * LAWS};
    if (f->gpt->shape.prompt)
        causal_fixture_begin_prompts(f->target, &f->gpt->shape, IMAGES);
    else
        causal_runner_begin(f->target, IMAGES, label);
    eagle_runner_begin(f->drafter, IMAGES);
    for (int round = 0; round < rounds; round++) {
        for (int i = 0; i < IMAGES; i++) draft_anew(&image[i], round, run);
        run_round(f, image, p + (size_t)round * 2 * IMAGES * LAWS * VOCABULARY);
        for (int i = 0; i < IMAGES; i++) go_on(&image[i], round, run);
    }
}

static void check(mar_dtype dtype, int decoder, double allowed)
{
    enum { MOST = 5 };
    const int rounds = cuda_test_brief() ? 3 : MOST, runs = decoder ? 2 : 4;
    const size_t n = (size_t)rounds * 2 * IMAGES * LAWS * VOCABULARY;
    kern_queue *cpu = open_cpu(), *cuda = open_cuda(dtype);
    fixture plain, tested;
    float *want = malloc(n * sizeof *want), *got = malloc(n * sizeof *got);
    assert_true(want && got);
    open_models(&plain, cpu, decoder);
    open_models(&tested, cuda, decoder);
    for (int run = 0; run < runs; run++) {
        run_image(&plain, run, want, rounds);
        run_image(&tested, run, got, rounds);
        assert_close(got, want, n, allowed);
    }
    check_kern(cuda);
    assert_true(cuda->recordings > 0 && cuda->unrecorded == 0);
    close_models(&plain);
    close_models(&tested);
    free(want), free(got);
    close_queue(cpu);
    close_queue(cuda);
}

static void laws_f32_are_the_cpus(void **unused)
{
    (void)unused;
    check(MAR_DTYPE_F32, 0, 1e-4);
}

static void laws_bf16_are_near(void **unused)
{
    (void)unused;
    check(MAR_DTYPE_BF16, 0, 1e-1);
}

static void laws_of_decoders_f32_are_the_cpus(void **unused)
{
    (void)unused;
    check(MAR_DTYPE_F32, 1, 1e-4);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(laws_f32_are_the_cpus),
        cmocka_unit_test(laws_bf16_are_near),
        cmocka_unit_test(laws_of_decoders_f32_are_the_cpus),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
