/* Passes of a causal backbone in one launch (MAR_CUDA_DECODE): the log probabilities of whole images in rounds with and
 * without drafts, compared with those of passes layer by layer, and with the CPU's in f32. The cache grows, passes have
 * 1 to 8 rows in up to two sequences, and are recorded from the second of each shape on. */
#include "tests/cudahost/control.h"
#include "tests/support/causal_fixture.h"
#include "tests/support/device.h"
#include "tests/support/llamagen.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

enum { IMAGES = 2, DRAFTS = 3, LAWS = DRAFTS + 1, TOKENS = 16, VOCABULARY = 73 };

/* A model, and how it runs. */
typedef struct {
    int decoder; /* 1: a decoder with a prompt, line ends, norms of q and k; 0: LlamaGen */
    int width, depth, heads, head_dim, kv_heads, hidden;
    causal_norm norm;
    unsigned bias; /* bits of products, as in causal_shape */
    int images, guided, drafts;
    mar_dtype dtype;
    const char *multiprocessors;
} decode_case;

static const unsigned qkv_bias = 1u << CAUSAL_WQKV, all_biases = 15;

/* Writes the model's file. Returns its path, which the caller frees. */
static char *write_model(const char *directory, const decode_case *c)
{
    family_facts facts = c->decoder ? small_decoder() : small_llamagen();
    causal_shape *s = &facts.shape;
    s->width = c->width, s->depth = c->depth, s->hidden = c->hidden, s->vocabulary = VOCABULARY;
    s->heads = c->heads, s->head_dim = c->head_dim, s->kv_heads = c->kv_heads;
    if (!c->decoder) return write_llamagen(directory, "model.safetensors", &facts, 5, 0, 1);
    s->qk_norm = c->norm, s->bias = c->bias, s->rows = VOCABULARY + 5;
    return write_decoder(directory, "model.safetensors", &facts, 5);
}

static void open_model(causal_fixture *f, kern_queue *k, const char *path, const decode_case *c)
{
    const causal_sampling sampling = {.cfg = c->guided ? 1.7f : 1, .cfg_interval = -1, .temperature = 0.9f, .top_p = 1};
    causal_fixture_open_file(f, k, path, &sampling, c->images, DRAFTS, 1, c->images * LAWS);
    assert_int_equal(f->vocabulary, VOCABULARY);
}

/* Makes images in rounds, every other of a tree of drafts if c->drafts, of which the path 0, 2 is accepted. Stores the
 * log probabilities, and returns their number. */
static size_t make_images(causal_fixture *f, const decode_case *c, float *laws)
{
    static const int label[IMAGES] = {3, 1}, parent[DRAFTS] = {-1, -1, 0};
    int token[IMAGES][TOKENS];
    size_t n = 0;
    if (c->decoder)
        causal_fixture_begin_prompts(f->runner, &f->model->shape, c->images);
    else
        causal_runner_begin(f->runner, c->images, label);
    for (int length = 0, round = 0; length < TOKENS; round++) {
        int draft[IMAGES][DRAFTS];
        causal_request request[IMAGES];
        const int count = c->drafts && round % 2 && length + 3 <= TOKENS ? DRAFTS : 0, accepted = count ? 2 : 0;
        for (int i = 0; i < c->images; i++) {
            for (int d = 0; d < DRAFTS; d++) draft[i][d] = (7 * length + 11 * i + 5 * d) % VOCABULARY;
            request[i] = (causal_request){.sequence = i,
                                          .prefix = token[i],
                                          .length = length,
                                          .draft = draft[i],
                                          .parent = parent,
                                          .count = count,
                                          .row = i * LAWS};
        }
        causal_fixture_laws(f, request, c->images);
        for (int i = 0; i < c->images; i++)
            for (int site = 0; site <= count; site++, n++)
                from_device(f->k, laws + n * VOCABULARY, causal_fixture_law(f, request[i].row + site),
                            VOCABULARY * sizeof *laws);
        for (int i = 0; i < c->images; i++) {
            if (accepted) token[i][length] = draft[i][0], token[i][length + 1] = draft[i][2];
            if (length + accepted < TOKENS) token[i][length + accepted] = (3 * length + i) % VOCABULARY;
        }
        length += accepted + 1;
    }
    check_kern(f->k);
    return n;
}

static void check_case(const decode_case *c)
{
    enum { MOST = IMAGES * TOKENS * LAWS * VOCABULARY };
    static float expected[MOST], found[2][MOST];
    char *directory = temporary_directory(), *path = write_model(directory, c);
    causal_fixture f;
    open_model(&f, open_cpu(), path, c);
    const size_t n = make_images(&f, c, expected) * VOCABULARY;
    causal_fixture_close(&f);
    setenv("MAR_CUDAHOST_SMS", c->multiprocessors, 1);
    for (int together = 0; together < 2; together++) {
        if (together) setenv("MAR_CUDA_DECODE", "1", 1);
        open_model(&f, open_cuda(c->dtype), path, c);
        unsetenv("MAR_CUDA_DECODE");
        assert_int_equal(f.model->decoder != NULL, together);
        if (cudahost_launched_together) (void)cudahost_launched_together(); /* those that loading tries */
        for (int batch = 0; batch <= together; batch++)
            assert_int_equal(make_images(&f, c, found[together]) * VOCABULARY, n);
        if (cudahost_launched_together) assert_int_equal(cudahost_launched_together(), together ? 1 + c->drafts : 0);
        assert_true(f.k->recordings > 0);
        assert_int_equal(f.k->unrecorded, 0);
        causal_fixture_close(&f);
    }
    unsetenv("MAR_CUDAHOST_SMS");
    assert_close(found[1], found[0], n, 1e-2);
    if (c->dtype == MAR_DTYPE_BF16) assert_close(found[1], expected, n, 3e-2);
    remove_directory(directory);
    free(path), free(directory);
}

/* Checks warps without inputs, shares that are no whole groups, blocks without items, and more items of a block than
 * its threads end at a time. */
static void passes_are_the_same(void **state)
{
    (void)state;
    static const decode_case cases[] = {
        {0, 288, 2, 3, 96, 3, 224, CAUSAL_NO_NORM, 0, 1, 1, 0, MAR_DTYPE_BF16, "4"},
        {0, 128, 3, 4, 32, 4, 352, CAUSAL_NO_NORM, 0, 2, 0, 1, MAR_DTYPE_BF16, "5"},
        {0, 64, 2, 2, 32, 2, 64, CAUSAL_NO_NORM, 0, 1, 0, 0, MAR_DTYPE_BF16, "40"},
        {1, 96, 2, 6, 16, 1, 544, CAUSAL_NO_NORM, qkv_bias, 1, 0, 1, MAR_DTYPE_BF16, "12"},
        {1, 128, 2, 8, 16, 2, 192, CAUSAL_LAYER_NORM, all_biases, 1, 0, 1, MAR_DTYPE_INT8, "4"},
        {1, 544, 1, 4, 136, 4, 96, CAUSAL_RMS_NORM, 0, 1, 0, 1, MAR_DTYPE_BF16, "16"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) check_case(&cases[i]);
}

/* Checks layers that have their norms in the weights (product.cu). */
static void norms_are_applied_once(void **state)
{
    (void)state;
    static const decode_case c = {0, 64, 2, 2, 32, 2, 64, CAUSAL_NO_NORM, 0, 1, 0, 0, MAR_DTYPE_BF16, "40"};
    setenv("MAR_CUDA_PRODUCTS", "1", 1);
    const int has = cuda_has_asked();
    if (has) check_case(&c);
    unsetenv("MAR_CUDA_PRODUCTS");
    if (!has) skip();
}

/* Checks that the form is refused by name where it is asked for and cannot be. */
static void refused(void **state)
{
    (void)state;
    static const char none[] = "the environment variable MAR_CUDA_DECODE is 1: this model has no pass in one launch on "
                               "this GPU";
    static const struct {
        int head_dim;
        mar_dtype dtype;
        const char *asked, *error;
        mar_status status;
    } cases[] = {
        {16, MAR_DTYPE_BF16, "on", "the environment variable MAR_CUDA_DECODE is 'on', expected 0 or 1", MAR_EARG},
        {16, MAR_DTYPE_F32, "1", none, MAR_EBACKEND},
        {16, MAR_DTYPE_INT4, "1", none, MAR_EBACKEND},
        {12, MAR_DTYPE_BF16, "1", none, MAR_EBACKEND}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const decode_case c = {1, 4 * cases[i].head_dim, 1,  4, cases[i].head_dim, 2, 64, CAUSAL_NO_NORM, 0, 1, 0,
                               0, cases[i].dtype,        "4"};
        char *directory = temporary_directory(), *path = write_model(directory, &c);
        kern_queue *k = open_cuda(c.dtype);
        wt_file *file = open_weights(path);
        family_facts facts;
        causal_model *model = NULL;
        mar_err err = {0};
        assert_ok(derive_facts(&family_language, file, (wt_asked){.width = 0, .height = 0}, &facts, &err), &err);
        setenv("MAR_CUDA_DECODE", cases[i].asked, 1);
        assert_int_equal(load_net(k, file, &facts, &model, &err), cases[i].status);
        unsetenv("MAR_CUDA_DECODE");
        assert_null(model);
        assert_string_equal(err.text, cases[i].error);
        release_facts(&facts);
        wt_close(file);
        close_queue(k);
        remove_directory(directory);
        free(path), free(directory);
    }
}

/* Checks that a launch whose last block never begins fails, and that passes are right again afterwards. */
static void missing_blocks_are_an_error(void **state)
{
    (void)state;
    static const decode_case c = {0, 64, 2, 2, 32, 2, 64, CAUSAL_NO_NORM, 0, 1, 1, 0, MAR_DTYPE_BF16, "4"};
    static float laws[2][TOKENS * VOCABULARY];
    if (!cudahost_hold_last) skip(); /* a GPU cannot be told to */
    char *directory = temporary_directory(), *path = write_model(directory, &c);
    const int token[1] = {5}, label = 3;
    causal_fixture f;
    mar_err err = {0};
    setenv("MAR_CUDA_DECODE", "1", 1);
    open_model(&f, open_cuda(c.dtype), path, &c);
    unsetenv("MAR_CUDA_DECODE");
    make_images(&f, &c, laws[0]);
    causal_runner_begin(f.runner, 1, &label);
    cudahost_hold_last(ULONG_MAX);
    cudahost_give_up_after(512);
    (void)causal_runner_log_probs(f.runner, &(causal_request){.prefix = token, .length = 1}, 1, f.laws, &err);
    f.k->core->finish(f.k);
    cudahost_hold_last(0);
    cudahost_give_up_after(UINT_MAX);
    assert_int_equal(kern_check(f.k, &err), MAR_EBACKEND);
    assert_non_null(strstr(err.text, "the GPU ran only a part of a kernel that needs all of it"));
    f.k->core->recover(f.k);
    make_images(&f, &c, laws[1]);
    assert_memory_equal(laws[1], laws[0], sizeof laws[0]);
    causal_fixture_close(&f);
    remove_directory(directory);
    free(path), free(directory);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(passes_are_the_same), cmocka_unit_test(norms_are_applied_once),
                                       cmocka_unit_test(refused), cmocka_unit_test(missing_blocks_are_an_error)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
