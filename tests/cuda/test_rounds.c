/* Rounds of speculation of up to 8 rows in the resident form (kernels/cuda/resident.cu), against the bits of the other
 * form, which test_speculation.c compares with the CPU. The heads are the demo models'. */
#include "diffusion/speculate.h"
#include "tests/cudahost/control.h"
#include "tests/support/device.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

enum { STEPS = 9, MOST = 8, CHANNELS = 16 };

typedef struct {
    int spherear; /* SphereAR's head: SwiGLU blocks, 16 channels; else MAR's: MLP blocks, 8 channels */
    int sphere;   /* tokens lie on a sphere */
    int window, guided, tokens;
    int none; /* the rule accepts no proposal */
} rounds;

typedef struct {
    float x[MOST * CHANNELS];
    int calls[MOST];
    diff_speculation_stats stats;
    size_t set; /* bytes that the launch cleared before it */
} outcome;

/* A head with its chain and speculation, on a device of its own. */
typedef struct {
    kern_queue *k;
    diff_head head;
    diff_chain chain;
    diff_speculation s;
    void *z, *x, *memory[2];
} fixture;

static void open_fixture(fixture *f, const rounds *r, int resident)
{
    mar_err err = {0};
    wt_file *file;
    diff_head_shape shape = {.width = 128, .depth = 2, .channels = 8, .z_dim = 64};
    const diff_spec ddpm = {.sampler = MAR_SAMPLER_DDPM, .steps = STEPS, .top = DIFF_TOP},
                    flow = {.sampler = MAR_SAMPLER_DDPM, .steps = STEPS, .process = DIFF_FLOW};
    f->k = open_cuda(MAR_DTYPE_BF16);
    assert_ok(wt_open(r->spherear ? "weights/demo/sphere.safetensors" : "weights/demo/target.safetensors", &file, &err),
              &err);
    if (r->spherear) assert_ok(diff_head_derive(file, DIFF_HEAD_SPHEREAR, 96, &shape, &err), &err);
    shape.sphere = r->sphere;
    if (resident) setenv("MAR_CUDA_HEAD_RESIDENT", "1", 1);
    assert_ok(diff_head_load(f->k, file, &shape, MAR_DTYPE_AUTO, 0, &f->head, &err), &err);
    unsetenv("MAR_CUDA_HEAD_RESIDENT");
    wt_close(file);
    assert_ok(
        diff_chain_create_for(f->k, &f->head, r->spherear ? &flow : &ddpm, 1, 1, r->tokens, r->guided, &f->chain, &err),
        &err);
    f->memory[0] = to_device(f->k, NULL, diff_chain_lay_out(&f->chain, NULL));
    diff_chain_lay_out(&f->chain, f->memory[0]);
    assert_ok(diff_speculate_create(&f->chain, NULL, r->window, 0, &f->s, &err), &err);
    f->memory[1] = to_device(f->k, NULL, diff_speculate_lay_out(&f->s, NULL));
    diff_speculate_lay_out(&f->s, f->memory[1]);
    if (r->none) f->s.w.rule = (kern_gaussian_rule){.temper = 1, .path_accept = -1e9};
    assert_ok(diff_speculate_plan(&f->s, r->tokens, r->tokens, &err), &err);
    const size_t n = (size_t)((r->guided ? 2 : 1) * r->tokens * shape.z_dim);
    float *z = random_floats(n, 1, 77);
    f->z = to_device(f->k, z, n * sizeof *z);
    f->x = to_device(f->k, NULL, sizeof((outcome *)0)->x);
    free(z);
}

/* Draws the tokens. */
static void draw(fixture *f, const rounds *r, outcome *out)
{
    uint64_t seed[MOST], image[MOST];
    int position[MOST];
    float cfg[MOST];
    for (int i = 0; i < r->tokens; i++)
        seed[i] = 20251130, image[i] = (uint64_t)i, position[i] = 3 * i, cfg[i] = 1.5f + 0.25f * (float)i;
    const diff_tokens drawn = {.count = r->tokens,
                               .sources = r->tokens,
                               .z = f->z,
                               .cfg = cfg,
                               .seed = seed,
                               .image = image,
                               .position = position};
    const size_t before = cudahost_set_bytes ? cudahost_set_bytes() : 0;
    *out = (outcome){.set = 0};
    diff_speculate_sample(&f->s, &drawn, f->x, NULL, &out->stats);
    f->k->core->finish(f->k);
    if (cudahost_set_bytes) out->set = cudahost_set_bytes() - before;
}

static void close_fixture(fixture *f)
{
    void *arrays[] = {f->z, f->x, f->memory[0], f->memory[1]};
    diff_speculate_free(&f->s);
    diff_chain_free(&f->chain);
    diff_head_free(&f->head);
    for (int i = 0; i < 4; i++) f->k->core->free(f->k->device, arrays[i]);
    close_queue(f->k);
}

/* Checks tokens, rounds of each and counts; with fewer slots only the evaluations of all slots are more. More rows, and
 * more tokens than a launch takes, run as ever. */
static void resident_changes_nothing(void **state)
{
    (void)state;
    static const struct {
        rounds r;
        int runs; /* in the resident form */
    } cases[] = {
        {{1, 1, 4, 1, 2, 0}, 1}, /* two tokens one after the other; this and the next two also with little time */
        {{0, 0, 3, 0, 3, 0}, 1}, /* two slots of 3 rows, three tokens */
        {{0, 0, 2, 1, 2, 1}, 1}, /* two slots with guidance; all proposals are replaced */
        {{1, 0, 4, 0, 4, 0}, 1}, {{1, 1, 2, 1, 4, 0}, 1}, {{0, 0, 2, 0, 8, 0}, 1}, {{0, 1, 3, 1, 1, 0}, 1},
        {{1, 1, 8, 0, 1, 1}, 1}, {{0, 0, 1, 1, 5, 0}, 1}, {{0, 0, 5, 1, 1, 0}, 0}, {{0, 0, 4, 1, 3, 0}, 0},
    };
    long accepted = 0, rejected = 0, tries = 0;
    setenv("MAR_CUDAHOST_SMS", "16", 1); /* as many as the resident form's blocks; ignored by a GPU */
    for (size_t i = 0; i < (cuda_test_brief() ? 3 : sizeof cases / sizeof *cases); i++) {
        const rounds *r = &cases[i].r;
        outcome out[2];
        for (int resident = 0; resident < 2; resident++) {
            fixture f;
            open_fixture(&f, r, resident);
            draw(&f, r, &out[resident]);
            check_kern(f.k);
            from_device(f.k, out[resident].x, f.x, (size_t)(r->tokens * f.head.shape.channels) * sizeof(float));
            from_device(f.k, out[resident].calls, f.s.w.calls, (size_t)r->tokens * sizeof(int));
            close_fixture(&f);
        }
        if (cudahost_set_bytes) assert_int_equal(out[1].set > out[0].set, cases[i].runs); /* words, a count */
        if (memcmp(out[0].x, out[1].x, sizeof out[0].x))
            fail_msg("case %zu: relative error %.3g", i, relative_error(out[1].x, out[0].x, MOST * CHANNELS));
        assert_memory_equal(out[0].calls, out[1].calls, sizeof out[0].calls);
        if (cases[i].runs && r->tokens > MOST / ((1 + r->guided) * r->window)) { /* fewer slots */
            assert_in_range(out[1].stats.batched, out[0].stats.batched + 1, out[1].stats.calls);
            out[0].stats.batched = out[1].stats.batched;
        }
        assert_memory_equal(&out[0].stats, &out[1].stats, sizeof out[0].stats);
        accepted += out[1].stats.accepted, rejected += out[1].stats.rejected, tries += out[1].stats.tries;
    }
    unsetenv("MAR_CUDAHOST_SMS");
    print_message("%ld accepted, %ld rejected, %ld tries\n", accepted, rejected, tries);
    assert_true(accepted > 0 && rejected > 0 && tries > rejected);
}

/* Checks that no word is overwritten before a block that is slower than the others has read it, for each block. Words
 * come late in this order, also its own. One slot has 8 rows, and the last rounds of its tokens do not use them all;
 * with little time the block has the outputs of the last row. Of two slots the first has no token at the end. */
static void a_slow_block_changes_nothing(void **state)
{
    (void)state;
    enum { BLOCKS = 16, LAST_ROW = 14 };
    static const rounds cases[] = {{0, 0, 4, 1, 2, 0}, {0, 0, 2, 1, 3, 0}};
    const int brief = cuda_test_brief();
    if (!cudahost_slow_block) skip(); /* a GPU cannot be told to */
    setenv("MAR_CUDAHOST_SMS", "16", 1);
    setenv("MAR_CUDAHOST_ORDER", "shuffled", 1);
    for (int i = 0; i < (brief ? 1 : 2); i++) {
        const size_t bytes = (size_t)(cases[i].tokens * CHANNELS / 2) * sizeof(float);
        outcome out, first;
        fixture f;
        open_fixture(&f, &cases[i], 1);
        draw(&f, &cases[i], &first);
        from_device(f.k, first.x, f.x, bytes);
        for (unsigned block = brief ? LAST_ROW : 0; block < (brief ? LAST_ROW + 1 : BLOCKS); block++) {
            cudahost_slow_block(block);
            draw(&f, &cases[i], &out);
            cudahost_slow_block(UINT_MAX);
            check_kern(f.k);
            from_device(f.k, out.x, f.x, bytes);
            assert_memory_equal(out.x, first.x, bytes);
        }
        close_fixture(&f);
    }
    unsetenv("MAR_CUDAHOST_SMS");
}

/* Checks that a launch without a block ends with an error although no token is finished: without the last block, which
 * has a slot, and without the first. */
static void missing_blocks_are_an_error(void **state)
{
    (void)state;
    static const char *const orders[] = {"forward", "reverse"};
    const rounds r = {0, 0, 4, 0, 4, 0};
    if (!cudahost_hold_last) skip(); /* a GPU cannot be told to */
    setenv("MAR_CUDAHOST_SMS", "16", 1);
    for (int i = 0; i < 2; i++) {
        fixture f;
        outcome out;
        mar_err err = {0};
        setenv("MAR_CUDAHOST_ORDER", orders[i], 1); /* the last block in this order is held */
        open_fixture(&f, &r, 1);
        cudahost_hold_last(ULONG_MAX);
        cudahost_give_up_after(512);
        draw(&f, &r, &out);
        cudahost_hold_last(0);
        cudahost_give_up_after(UINT_MAX);
        assert_int_equal(kern_check(f.k, &err), MAR_EBACKEND);
        assert_non_null(strstr(err.text, "the GPU ran only a part of a kernel that needs all of it; "));
        f.k->core->recover(f.k);
        close_fixture(&f);
    }
    unsetenv("MAR_CUDAHOST_SMS");
}

int main(int argc, char **argv)
{
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(resident_changes_nothing),
        cmocka_unit_test(a_slow_block_changes_nothing),
        cmocka_unit_test(missing_blocks_are_an_error),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
