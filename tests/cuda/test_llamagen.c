/* The runner with the CUDA backend against the CPU in f32: LlamaGen, and a decoder with prompts, grouped queries, norms
 * of q and k, and line ends. As with a sampler, whole images are made in rounds of drafts. Passes are recorded from the
 * second of each shape on. */
#include "tests/cudahost/control.h"

#include "mar_files.h"
#include "tests/support/device.h"
#include "tests/support/causal_fixture.h"
#include "tests/support/llamagen.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { IMAGES = 2, DRAFTS = 4, LAWS = DRAFTS + 1, TOKENS = 16, VOCABULARY = 73 };

static const causal_sampling guided = {.cfg = 1.7f, .cfg_interval = 6, .temperature = 0.9f, .top_p = 1};

/* Makes the request of an image at `length` tokens: a tree of four drafts if they fit, else none. */
static causal_request request_at(int image, const int *token, int length, const int *draft)
{
    static const int parent[DRAFTS] = {-1, -1, 0, 2};
    return (causal_request){.sequence = image,
                            .prefix = token,
                            .length = length,
                            .draft = draft,
                            .parent = parent,
                            .count = length + 3 <= TOKENS ? DRAFTS : 0,
                            .row = image * LAWS};
}

/* Starts the images: classes, or a decoder's prompts. */
static void begin(const causal_fixture *f)
{
    static const int label[IMAGES] = {3, -1};
    if (f->model->shape.prompt)
        causal_fixture_begin_prompts(f->runner, &f->model->shape, IMAGES);
    else
        causal_runner_begin(f->runner, IMAGES, label);
}

/* Runs rounds that each accept the path of drafts 0 and 2, then single tokens. Stores the log probabilities of all
 * rounds, and returns the number of rounds. */
static size_t make_images(causal_fixture *f, float *laws)
{
    int token[IMAGES][TOKENS];
    size_t n = 0;
    begin(f);
    for (int length = 0; length < TOKENS;) {
        int draft[IMAGES][DRAFTS];
        causal_request request[IMAGES];
        for (int i = 0; i < IMAGES; i++) {
            for (int d = 0; d < DRAFTS; d++) draft[i][d] = (7 * length + 11 * i + 5 * d) % VOCABULARY;
            request[i] = request_at(i, token[i], length, draft[i]);
        }
        causal_fixture_laws(f, request, IMAGES);
        for (int i = 0; i < IMAGES; i++)
            for (int site = 0; site <= request[i].count; site++, n++)
                from_device(f->k, laws + n * VOCABULARY, causal_fixture_law(f, request[i].row + site),
                            VOCABULARY * sizeof *laws);
        const int accepted = request[0].count ? 2 : 0;
        for (int i = 0; i < IMAGES; i++) {
            if (accepted) token[i][length] = draft[i][0], token[i][length + 1] = draft[i][2];
            token[i][length + accepted] = (3 * length + i) % VOCABULARY;
        }
        length += accepted + 1;
    }
    check_kern(f->k);
    return n;
}

static void images(void **state)
{
    (void)state;
    static const mar_dtype dtypes[] = {MAR_DTYPE_F32, MAR_DTYPE_BF16};
    static const double tolerance[] = {1e-5, 2e-2};
    enum { MOST = IMAGES * TOKENS * LAWS };
    float *expected = malloc(sizeof *expected * MOST * VOCABULARY), *found = malloc(sizeof *found * MOST * VOCABULARY);
    causal_fixture f;
    causal_fixture_open(&f, open_cpu(), "llamagen_c2i20", 0, &guided, IMAGES, DRAFTS, 1, IMAGES * LAWS);
    const size_t n = make_images(&f, expected);
    causal_fixture_close(&f);
    for (int d = 0; d < 2; d++) {
        causal_fixture_open(&f, open_cuda(dtypes[d]), "llamagen_c2i20", 0, &guided, IMAGES, DRAFTS, 1, IMAGES * LAWS);
        for (int batch = 0; batch <= d; batch++) { /* whole blocks in one: run, recorded and replayed */
            assert_int_equal(make_images(&f, found), n);
            assert_close(found, expected, n * VOCABULARY, tolerance[d]);
        }
        assert_true(f.k->recordings > 0);
        assert_int_equal(f.k->unrecorded, 0);
        causal_fixture_close(&f);
    }
    free(expected), free(found);
}

/* Makes images without drafts. Each token is in an array of the backend when its pass begins, and the host does not
 * have those of the last rounds. Stores log probabilities as make_images does. */
static size_t make_unread(causal_fixture *f, float *laws)
{
    int token[IMAGES][TOKENS], known[IMAGES][TOKENS];
    int *drawn = to_device(f->k, NULL, sizeof(int) * IMAGES * TOKENS);
    begin(f);
    for (int n = 0; n < TOKENS; n++) {
        causal_request request[IMAGES];
        for (int i = 0; i < IMAGES; i++) {
            request[i] = (causal_request){.sequence = i, .prefix = known[i], .length = n, .row = i};
            if (n == 0) continue;
            token[i][n - 1] = (3 * n + i) % VOCABULARY;
            known[i][n - 1] = CAUSAL_UNREAD;
            request[i].drawn = drawn;
            request[i].last = n * IMAGES + i;
            f->k->core->upload(f->k, drawn + n * IMAGES + i, &token[i][n - 1], sizeof(int));
        }
        causal_fixture_laws(f, request, IMAGES);
        from_device(f->k, laws + n * IMAGES * VOCABULARY, f->laws, IMAGES * VOCABULARY * sizeof *laws);
        for (int i = 0; n % 6 == 5 && i < IMAGES; i++) memcpy(known[i], token[i], (size_t)n * sizeof(int));
    }
    check_kern(f->k);
    f->k->core->free(f->k->device, drawn);
    return IMAGES * TOKENS;
}

static void decoders(void **state)
{
    (void)state;
    static const mar_dtype dtypes[] = {MAR_DTYPE_F32, MAR_DTYPE_BF16};
    static const double tolerance[] = {1e-5, 3e-2};
    enum { MOST = 2 * IMAGES * TOKENS * LAWS };
    const family_facts c = small_decoder();
    char *directory = temporary_directory(), *path = write_decoder(directory, "decoder.safetensors", &c, 3);
    float *expected = malloc(sizeof *expected * MOST * VOCABULARY), *found = malloc(sizeof *found * MOST * VOCABULARY);
    causal_fixture f;
    causal_fixture_open_file(&f, open_cpu(), path, &guided, IMAGES, DRAFTS, 1, IMAGES * LAWS);
    size_t n = make_images(&f, expected);
    n += make_unread(&f, expected + n * VOCABULARY);
    causal_fixture_close(&f);
    for (int d = 0; d < 2; d++) {
        causal_fixture_open_file(&f, open_cuda(dtypes[d]), path, &guided, IMAGES, DRAFTS, 1, IMAGES * LAWS);
        const size_t half = make_images(&f, found);
        assert_int_equal(half + make_unread(&f, found + half * VOCABULARY), n);
        assert_close(found, expected, n * VOCABULARY, tolerance[d]);
        assert_true(f.k->recordings > 0);
        assert_int_equal(f.k->unrecorded, 0);
        causal_fixture_close(&f);
    }
    remove_directory(directory);
    free(expected), free(found), free(path), free(directory);
}

/* Tests int8 and int4 weights of a file. A GPU multiplies them by operands in bf16; the CPU restores them, in f32. */
static void low_bits(void **state)
{
    (void)state;
    static const mar_dtype dtypes[] = {MAR_DTYPE_INT8, MAR_DTYPE_INT4};
    enum { N = IMAGES * TOKENS * VOCABULARY };
    static float law[2][N];
    const family_facts c = small_decoder();
    char *directory = temporary_directory(), *path = write_decoder(directory, "decoder.safetensors", &c, 3), low[4096];
    mar *m = open_mar(MAR_DTYPE_F32, 1);
    snprintf(low, sizeof low, "%s/low.safetensors", directory);
    for (int d = 0; d < 2; d++) {
        assert_int_equal(mar_convert(m, path, low, dtypes[d], 0), MAR_OK);
        for (int cuda = 0; cuda < 2; cuda++) {
            causal_fixture f;
            kern_queue *k = cuda ? open_cuda(dtypes[d]) : open_cpu();
            causal_fixture_open_file(&f, k, low, &guided, IMAGES, DRAFTS, 1, IMAGES * LAWS);
            make_unread(&f, law[cuda]);
            assert_int_equal(f.k->unrecorded, 0);
            causal_fixture_close(&f);
        }
        assert_close(law[1], law[0], N, 3e-2);
    }
    mar_close(m);
    remove_directory(directory);
    free(path), free(directory);
}

/* Tests captions: their prefixes take two passes, and their MLP has GELU in tanh form. */
static void captions(void **state)
{
    (void)state;
    enum { PREFIX = 120, DIM = 12, SIZE = 50 };
    static const causal_sampling sampling = {.cfg = 3, .cfg_interval = -1, .temperature = 1, .top_p = 1};
    float *features = random_floats(IMAGES * PREFIX * DIM, 1, 5), law[3][IMAGES * SIZE];
    uint8_t mask[IMAGES * PREFIX];
    for (int i = 0; i < IMAGES * PREFIX; i++) mask[i] = i < PREFIX || i > PREFIX + 80;
    for (int b = 0; b < 3; b++) {
        causal_fixture f;
        kern_queue *k = b == 0 ? open_cpu() : open_cuda(b == 1 ? MAR_DTYPE_F32 : MAR_DTYPE_BF16);
        causal_fixture_open(&f, k, "llamagen_t2i", 0, &sampling, IMAGES, 0, 0, IMAGES);
        causal_runner_begin_captions(f.runner, IMAGES, features, mask);
        causal_fixture_laws(&f, (causal_request[]){{.sequence = 0, .row = 0}, {.sequence = 1, .row = 1}}, IMAGES);
        from_device(f.k, law[b], f.laws, sizeof law[b]);
        causal_fixture_close(&f);
    }
    assert_close(law[1], law[0], IMAGES * SIZE, 1e-5);
    assert_close(law[2], law[0], IMAGES * SIZE, 2e-2);
    free(features);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(images), cmocka_unit_test(decoders), cmocka_unit_test(low_bits),
                                       cmocka_unit_test(captions)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
