/* A random head and its golden conditions, for tests of the chain against golden data (tests/golden/make_mar.py). */
#ifndef TESTS_DIFFUSION_FIXTURE_H
#define TESTS_DIFFUSION_FIXTURE_H

#include "diffusion/chain.h"
#include "tests/support/support.h"

#include <stdlib.h>
#include <string.h>

enum { WIDTH = 80, DEPTH = 2, CHANNELS = 6, Z = 96, N = 7 };
static const uint64_t seed[N] = {0x1234567890ABCDEF, 0x1234567890ABCDEF, 0x1234567890ABCDEF, 0x1234567890ABCDEF,
                                 0x1234567890ABCDEF, 0x1234567890ABCDEF, 0x1234567890ABCDEF}; /* the golden chains' */
static const uint64_t image[N] = {0, 1, 2, 3, 4, (uint64_t)1 << 33, 6};

typedef struct {
    kern_queue *k;
    wt_file *model;  /* mar_small */
    wt_file *golden; /* mar */
    diff_head head;
    float *z; /* [2N][Z] conditional, then unconditional */
    int position[N];
} fixture;

static const mar_dtype dtypes[] = {MAR_DTYPE_F32, MAR_DTYPE_BF16, MAR_DTYPE_INT8};
enum { DTYPES = sizeof dtypes / sizeof *dtypes };

/* Opens the fixture. Returns 0 if dtype is bf16 or int8 and the processor does not support it. With int8 the head uses
 * it below timestep 900. */
static int open_fixture(fixture *f, mar_dtype dtype, int threads)
{
    mar_err err = {0};
    memset(f, 0, sizeof *f);
    f->k = open_queue(dtype, threads);
    if (!f->k) return 0;
    f->model = golden_open("mar_small");
    f->golden = golden_open("mar");
    assert_ok(diff_head_load(f->k, f->model,
                             &(diff_head_shape){.width = WIDTH, .depth = DEPTH, .channels = CHANNELS, .z_dim = Z}, 0,
                             dtype == MAR_DTYPE_INT8 ? 900 : 0, &f->head, &err),
              &err);
    f->z = golden_f32(f->golden, "head.z", 2 * N * Z);
    float *p = golden_f32(f->golden, "chain.position", N);
    for (int i = 0; i < N; i++) f->position[i] = (int)p[i];
    free(p);
    return 1;
}

static void close_fixture(fixture *f)
{
    diff_head_free(&f->head);
    free(f->z);
    wt_close(f->model);
    wt_close(f->golden);
    close_queue(f->k);
}

/* Gives a chain its working memory. The caller frees it. */
static void *lay_out(kern_queue *k, diff_chain *c)
{
    void *memory = backend_memory(k, diff_chain_lay_out(c, NULL));
    diff_chain_lay_out(c, memory);
    return memory;
}

/* Asserts that a chain with guidance gives each token the same bits alone as in all [N][CHANNELS]. */
__attribute__((unused)) static void assert_alone(const fixture *f, diff_chain *c, const float *all)
{
    for (int r = 0; r < N; r++) {
        float z[2 * Z], one[CHANNELS];
        memcpy(z, f->z + r * Z, Z * sizeof *z);
        memcpy(z + Z, f->z + (N + r) * Z, Z * sizeof *z);
        diff_chain_sample(c, z, 1, &(float){2.9f}, seed + r, image + r, f->position + r, one);
        assert_memory_equal(one, all + r * CHANNELS, sizeof one);
    }
}

#endif
