/* The chain by the persistent kernel, all steps in one launch, against the CPU, which rounds the same numbers to FP16.
 * The relative error is at most 1e-3, and on the host 2e-4 for one step. The shapes cover every number of tiles and of
 * mma pairs. They also cover resident weights in shared memory, and streamed ones. */
#include "kernels/cuda/persistent_form.h"
#include "tests/cudahost/control.h"
#include "tests/support/chain_case.h"

#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { STEPS = CHAIN_STEPS, MOST = 128 };

enum { SWIGLU = 6, WIDE = 9 }; /* a shape of SWIGLU blocks; the shape that runs in clusters */
static const shape shapes[] = {
    {64, 3, 16, "4", 0, 0},     /* the demo model's head; two tiles per block, warps without channels */
    {160, 1, 4, "3", 0, 0},     /* seven tiles per block, the last one has six */
    {256, 6, 16, "8", 0, 0},    /* weights stream */
    {288, 2, 32, "36", 0, 0},   /* two of four pairs per warp, one tile per block */
    {512, 1, 8, "16", 0, 0},    /* two of four pairs, in all parts */
    {64, 3, 4, "3", 64, 3},     /* blocks with five or six of fc1's tiles */
    {288, 4, 16, "16", 416, 2}, /* two adaLN layers, weights stream, uneven tiles in clusters */
    {832, 1, 4, "26", 416, 1},  /* the instances of SphereAR-L and H, with few columns */
    {1056, 1, 4, "40", 544, 1}, {1056, 1, 4, "66", 0, 0}, /* five pairs, in clusters; two tiles per block */
    {1024, 6, 16, "", 0, 0},                              /* from here on too slow for the host: MAR-B, MAR-L, MAR-H */
    {1280, 8, 16, "", 0, 0},    {1536, 12, 16, "", 0, 0}, /* and SphereAR-B, SphereAR-L, SphereAR-H */
    {768, 6, 16, "", 1152, 2},  {1024, 8, 16, "", 1536, 2}, {1280, 12, 16, "", 1920, 3},
};

static size_t shape_count(void)
{
    return cuda_test_scale() > 1 ? sizeof shapes / sizeof *shapes : WIDE + 1;
}

/* Checks that the rows of one launch match the CPU's. Their number, the solver, guidance and temperature vary. */
static void agrees_with_cpu(void **state)
{
    (void)state;
    const run runs[] = {
        {1, 1, 1, 1, 0, 0},     {5, 2, 1, 1, 2, 0},  {1, 1, STEPS, 0, 3, 1}, {4, 2, STEPS, 0, 0, 1},
        {8, 2, STEPS, 1, 1, 0}, {17, 1, 2, 0, 0, 0}, {16, 2, 2, 1, 0, 0},    {21, 2, 2, 0, 9, 0.9f},
        {128, 1, 2, 0, 0, 1},   {33, 2, 2, 1, 0, 0}, {9, 1, 2, 0, 3, 1},
    };
    for (size_t i = 0; i < shape_count(); i++) {
        network n = make_network(shapes[i], 1000 * (i + 1));
        const int few = i > 0 && cuda_test_scale() == 1, most = !few ? MOST : cuda_test_brief() ? 12 : 64;
        bench cpu = make_bench(open_cpu(), &n, most), cuda = open_cuda_bench(&n, most);
        for (size_t j = 0; j < sizeof runs / sizeof *runs; j++) {
            const run *r = &runs[j];
            if (few && (cuda_test_brief() ? j != 10 : j != 1 && j != 7)) continue;
            if (cuda_test_brief() && (j == 2 || (j >= 4 && j <= 6) || j == 8)) continue; /* like others */
            compare_chains(&cuda, &cpu, r, j);
        }
        free_bench(&cpu), free_bench(&cuda);
        free_network(&n);
    }
}

/* Checks a chain with words whose clusters have blocks that own no columns: other clusters wait for them only through
 * the barriers of their own. */
static void blocks_without_columns(void **state)
{
    (void)state;
    const run r = {14, 1, STEPS, 0, 0, 1};
    network n = make_network((shape){160, 1, 4, "24", 0, 0}, 7300);
    bench cpu = make_bench(open_cpu(), &n, 16), cuda = open_cuda_bench(&n, 16);
    compare_chains(&cuda, &cpu, &r, 0);
    free_bench(&cpu), free_bench(&cuda);
    free_network(&n);
}

/* Checks parts of a row with different means, the source of nearly all its variance. Counting 31/32 of that variance
 * gives an error of 6e-3. */
static void parts_differ_in_the_mean(void **state)
{
    (void)state;
    enum { WIDTH = 256, PART = 32 };
    const run r = {8, 2, 1, 1, 0, 0};
    network n = make_network((shape){WIDTH, 1, 16, "8", 0, 0}, 8000);
    float *in_bias = n.weights + (n.spec.in_bias - n.weights);
    float *gate = n.weights + (n.blocks[0].ada_bias - n.weights) + 2 * WIDTH;
    for (int i = 0; i < WIDTH; i++) {
        in_bias[i] += 8 * ((float)(i / PART) - 3.5f);
        gate[i] += 200;
    }
    bench cpu = make_bench(open_cpu(), &n, 16), cuda = open_cuda_bench(&n, 16);
    static float got[MOST * 32], want[MOST * 32];
    run_chain(&cuda, &r, got, NULL);
    run_chain(&cpu, &r, want, NULL);
    const double error = relative_error(got, want, (size_t)r.tokens * (size_t)n.s.channels);
    if (!(error <= 2e-4)) fail_msg("relative error %.3g, allowed 2e-4", error); /* 2e-5 in the shim */
    free_bench(&cpu), free_bench(&cuda);
    free_network(&n);
}

/* Checks that a token's bits are the same alone and among others, for each method of loading that number of rows, with
 * `conditions` to 2 conditions. */
static void check_rows(shape s, int conditions)
{
    network n = make_network(s, 5000);
    bench cuda = open_cuda_bench(&n, 64);
    for (; conditions <= 2; conditions++) {
        const int most = 64 / conditions, counts[] = {1, 3, 4, 5, 8, 9, 12, 16, 20};
        static float all[MOST * 32], some[MOST * 32];
        run_chain(&cuda, &(run){most, conditions, 2, 0, 0, 1}, all, NULL);
        for (size_t i = 0; i < sizeof counts / sizeof *counts; i += cuda_test_brief() ? 4 : 1) {
            const int from = most - counts[i];
            run_chain(&cuda, &(run){counts[i], conditions, 2, 0, from, 1}, some, NULL);
            assert_memory_equal(some, all + from * n.s.channels, (size_t)(counts[i] * n.s.channels) * sizeof *some);
        }
    }
    free_bench(&cuda);
    free_network(&n);
}

static void rows_are_independent(void **state)
{
    (void)state;
    check_rows(shapes[0], 1);
    check_rows(shapes[SWIGLU - 1], cuda_test_brief() ? 2 : 1);
    if (cuda_test_scale() > 1) check_rows(shapes[WIDE], 1); /* for the host see clusters_change_nothing */
}

/* Checks that bits do not depend on cluster size, on words or barriers, nor on whether weights are in shared memory. A
 * GPU has its own shared memory, so there the forms with less are compared repeatedly. */
static void clusters_change_nothing(void **state)
{
    (void)state;
    const struct {
        shape s;
        /* bytes of shared memory per block: one block alone then copies weights for each use, and a cluster takes rows
         * in chunks */
        const char *shared;
    } heads[] = {
        {{160, 1, 4, "16", 0, 0}, "38000"},    /* parts without channels; uneven tiles */
        {{256, 2, 16, "12", 0, 0}, "64000"},   /* fewer tiles than the last cluster can hold */
        {{160, 2, 4, "24", 288, 1}, "131000"}, /* SWIGLU: parts without channels; uneven tiles of both products */
        {{1056, 1, 4, "48", 0, 0}, "180000"},  /* five pairs per part, the last part has none */
    };
    enum { HEADS = sizeof heads / sizeof *heads };
    const run runs[] = {{9, 1, 1, 0, 5, 1}, {3, 2, 2, 1, 2, 0}, {17, 1, 1, 0, 5, 1}, {64, 2, 1, 0, 0, 0.9f}};
    enum { RUNS = sizeof runs / sizeof *runs };
    static const char *const sizes[] = {"8", "4", "2", "1", "1", "8"}; /* the last two with little shared memory */
    static const char *const words[] = {"1", "0", "1", "1", "0", "1"};
    static float x[6][RUNS][MOST * 32];
    for (size_t h = 0; h < HEADS; h++) {
        network n = make_network(heads[h].s, 7000 + h);
        const int few = (h == HEADS - 1 && cuda_test_scale() == 1) || cuda_test_brief() ? 1 : RUNS;
        for (int c = 0; c < 6; c++) {
            /* with little time the first head alone covers all sizes */
            if (h > 0 && cuda_test_brief() && c > 0 && c < (h == HEADS - 1 ? 5 : 4)) continue;
            setenv("MAR_CUDA_HEAD_CLUSTER", sizes[c], 1);
            setenv("MAR_CUDA_HEAD_WORDS", words[c], 1);
            if (c >= 4) setenv("MAR_CUDAHOST_SHARED", heads[h].shared, 1);
            bench cuda = open_cuda_bench(&n, few > 1 ? MOST : 16);
            for (int i = 0; i < few; i++) run_chain(&cuda, &runs[i], x[c][i], NULL);
            free_bench(&cuda);
            for (int i = 0; c > 0 && i < few; i++)
                if (memcmp(x[c][i], x[0][i], (size_t)(runs[i].tokens * n.s.channels) * sizeof(float)))
                    fail_msg("width %d, run %d: clusters of %s blocks change bits (case %d)", n.s.width, i, sizes[c],
                             c);
        }
        unsetenv("MAR_CUDA_HEAD_CLUSTER"), unsetenv("MAR_CUDA_HEAD_WORDS"), unsetenv("MAR_CUDAHOST_SHARED");
        free_network(&n);
    }
}

/* The heads with a resident form (kernels/cuda/resident.cu); the host has others than a GPU. */
static const shape resident_heads[] = {
    {128, 2, 8, "16", 0, 0},   {128, 4, 16, "16", 192, 2}, /* the demo models' of MAR, SphereAR */
    {128, 3, 16, "16", 0, 0},  {512, 1, 8, "64", 0, 0},    /* and NextStep-1; parts without channels */
    {256, 2, 4, "32", 384, 1}, {1024, 6, 16, "", 0, 0},    /* all products but one from global memory; MAR-B */
    {768, 6, 16, "", 1152, 2},                             /* SphereAR-B */
};

/* Returns whether the device has a resident form of a head. */
static int has_resident(const shape *s)
{
    return cudahost_objects ? s->width < 768 : s->width == 128 || s->width >= 768;
}

/* Checks that chains of 1 to 8 rows have the same bits in the resident form, which runs them, and in the other, which
 * agrees_with_cpu compares; and that more rows run as ever. */
static void resident_changes_nothing(void **state)
{
    (void)state;
    /* The words of a launch of one step would be those of the next launch, if that did not clear them. */
    const run runs[] = {{1, 1, 1, 1, 0, 0},     {1, 1, STEPS, 0, 3, 1},    {1, 2, STEPS, 1, 0, 0},
                        {3, 1, STEPS, 1, 1, 0}, {2, 2, STEPS, 0, 2, 0.9f}, {5, 1, 2, 0, 0, 1},
                        {3, 2, STEPS, 0, 4, 1}, {7, 1, STEPS, 0, 2, 0.9f}, {4, 2, STEPS, 1, 0, 0},
                        {8, 1, STEPS, 0, 1, 1}, {9, 1, 2, 0, 0, 1}};
    enum { RUNS = sizeof runs / sizeof *runs, KERNELS = 4 }; /* up to 2, 4 and 8 rows, and the other form's */
    static float x[2][2][RUNS][MOST * 32];
    for (size_t h = 0; h < sizeof resident_heads / sizeof *resident_heads; h++) {
        if (!has_resident(&resident_heads[h])) continue;
        network n = make_network(resident_heads[h], 7100 + h);
        const int few = h > 1 && cuda_test_scale() == 1 ? 3 : 1; /* runs with 1, 3, 6 and 8 rows */
        for (int resident = 0; resident < 2; resident++) {
            if (resident) setenv("MAR_CUDA_HEAD_RESIDENT", "1", 1);
            bench cuda = open_cuda_bench(&n, 16);
            unsetenv("MAR_CUDA_HEAD_RESIDENT");
            if ((strstr(cuda.k->head->describe(cuda.h), ", resident up to 8 rows") != NULL) != resident)
                fail_msg("width %d: %s", n.s.width, cuda.k->head->describe(cuda.h));
            if (cudahost_launched_together) (void)cudahost_launched_together(); /* those that loading tries */
            for (int i = 0; i < RUNS; i += few)
                run_chain(&cuda, &runs[i], x[resident][0][i], runs[i].ode ? x[resident][1][i] : NULL);
            if (cudahost_launched_together && few == 1)
                assert_int_equal(cudahost_launched_together(), resident ? KERNELS : 1);
            free_bench(&cuda);
        }
        for (int i = 0; i < RUNS; i += few)
            for (int a = 0; a < 1 + runs[i].ode; a++)
                if (memcmp(x[0][a][i], x[1][a][i], (size_t)(runs[i].tokens * n.s.channels) * sizeof(float)))
                    fail_msg("width %d, run %d, array %d: relative error %.3g", n.s.width, i, a,
                             relative_error(x[1][a][i], x[0][a][i], (size_t)(runs[i].tokens * n.s.channels)));
        free_network(&n);
    }
}

/* Sets two environment variables, or with NULL unsets them. */
static void ask_for_form(const char *cluster, const char *words)
{
    if (cluster) setenv("MAR_CUDA_HEAD_CLUSTER", cluster, 1);
    if (words) setenv("MAR_CUDA_HEAD_WORDS", words, 1);
    if (!cluster) unsetenv("MAR_CUDA_HEAD_CLUSTER");
    if (!words) unsetenv("MAR_CUDA_HEAD_WORDS");
}

/* Checks that loading makes the form that the environment asks for, and refuses by name what is no form. */
static void environment_chooses_the_form(void **state)
{
    (void)state;
    static const struct {
        const char *cluster, *words, *describes, *describes_not;
    } forms[] = {
        {"4", NULL, ", clusters of 4 blocks, ", "without words"}, {"2", "0", ", clusters of 2 blocks, ", NULL},
        {"1", "1", ", no clusters, ", "without words"},           {NULL, "0", ", without words", NULL},
        {NULL, NULL, "up to 128 rows, ", "without words"},
    };
    static const struct {
        const char *cluster, *words, *error;
    } refused[] = {
        {"3", NULL, "the environment variable MAR_CUDA_HEAD_CLUSTER is '3', expected 8, 4, 2 or 1"},
        {"16", NULL, "the environment variable MAR_CUDA_HEAD_CLUSTER is '16', expected 8, 4, 2 or 1"},
        {"", NULL, "the environment variable MAR_CUDA_HEAD_CLUSTER is '', expected 8, 4, 2 or 1"},
        {"8", "on\n", "the environment variable MAR_CUDA_HEAD_WORDS is 'on\\n', expected 0 or 1"},
    };
    network n = make_network(shapes[WIDE], 9100);
    for (size_t i = 0; i < sizeof forms / sizeof *forms; i++) {
        ask_for_form(forms[i].cluster, forms[i].words);
        bench b = open_cuda_bench(&n, 8);
        const char *how = b.k->head->describe(b.h);
        if (!strstr(how, forms[i].describes) || (forms[i].describes_not && strstr(how, forms[i].describes_not)))
            fail_msg("form %zu: %s", i, how);
        if (forms[i].words && *forms[i].words == '0') assert_non_null(strstr(how, ", without words"));
        free_bench(&b);
    }
    setenv("MAR_CUDAHOST_SMS", n.s.multiprocessors, 1);
    kern_queue *k = open_cuda(MAR_DTYPE_BF16);
    kern_head *h = NULL;
    mar_err err = {0};
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        ask_for_form(refused[i].cluster, refused[i].words);
        assert_int_equal(k->head->create(k, &n.spec, &h, &err), MAR_EARG);
        assert_null(h);
        assert_string_equal(err.text, refused[i].error);
    }
    if (cudahost_objects) { /* the simulated device can be given no room for clusters */
        ask_for_form("8", NULL);
        setenv("MAR_CUDAHOST_CLUSTER", "4", 1);
        assert_int_equal(k->head->create(k, &n.spec, &h, &err), MAR_EBACKEND);
        assert_string_equal(err.text, "the environment variable MAR_CUDA_HEAD_CLUSTER is 8: refused with clusters of 8 "
                                      "blocks: the GPU has room for none");
        unsetenv("MAR_CUDAHOST_CLUSTER");
    }
    ask_for_form(NULL, NULL);
    close_queue(k);
    free_network(&n);
}

/* Returns 1 if the layer's columns are divided over the form's clusters and their blocks. */
static int is_divided(const persistent_form *f, const persistent_cut *cut, int columns)
{
    return f->clusters * cut->tiles >= columns / 8 && columns / 8 >= f->clusters &&
           cut->own * f->cluster >= 4 * cut->tiles;
}

/* Checks the forms of the published heads on GPUs, for numbers of clusters that drivers allow. */
static void published_heads_have_forms(void **state)
{
    (void)state;
    const shape *heads = &shapes[WIDE + 1];
    static const struct {
        size_t shared;
        int cluster, most, resident[6]; /* of each head: products in shared memory; -1: it has no form */
    } gpus[] = {
        {232448, 8, 16, {12, 5, 2, 6, 2, 0}},      {232448, 8, 15, {8, 4, 2, 4, 1, 0}},
        {232448, 4, 33, {12, 4, 2, 4, 1, 0}},      {232448, 4, 31, {6, 3, 1, 2, 0, 0}},
        {232448, 2, 66, {12, 1, 0, 1, 0, 0}},      {232448, 1, 132, {3, 1, 0, 2, 0, -1}},
        {166912, 1, 108, {0, 0, 0, 1, -1, -1}},                                               /* A100 */
        {101376, 1, 128, {1, -1, -1, -1, -1, -1}}, {101376, 1, 84, {-1, -1, -1, -1, -1, -1}}, /* RTX 4090, 3090 */
        {101376, 8, 20, {2, 0, 0, 0, 0, -1}},      {101376, 4, 42, {1, 1, 0, 0, -1, -1}},     /* RTX 5090 */
    };
    for (size_t h = 0; heads + h < shapes + sizeof shapes / sizeof *shapes; h++)
        for (size_t g = 0; g < sizeof gpus / sizeof *gpus; g++) {
            const kern_head_spec spec = spec_of(heads[h]);
            const int wide = heads[h].hidden ? 2 : 1;
            persistent_form f;
            const int has = persistent_choose(&spec, gpus[g].cluster, gpus[g].most, gpus[g].shared, &f);
            if ((has ? f.resident : -1) != gpus[g].resident[h])
                fail_msg("width %d, %zu bytes, %d clusters of %d: %d products in shared memory, expected %d",
                         spec.width, gpus[g].shared, gpus[g].most, gpus[g].cluster, has ? f.resident : -1,
                         gpus[g].resident[h]);
            if (!has) continue;
            assert_true(f.shared_bytes <= gpus[g].shared && f.clusters <= gpus[g].most);
            assert_true(is_divided(&f, &f.cut, spec.width) && is_divided(&f, &f.wide, wide * spec.hidden));
        }
    /* Values assumed by the counts in docs/persistent.md and bench/gpu_model.py. */
    static const struct {
        int head, cluster, most, resident, chunk;
    } counted[] = {{0, 8, 16, 12, 4}, {0, 8, 15, 8, 4}, {1, 8, 16, 5, 4}, {2, 8, 16, 2, 4}, {0, 4, 33, 12, 2},
                   {0, 2, 66, 12, 1}, {3, 8, 16, 6, 4}, {4, 8, 16, 2, 4}, {5, 8, 16, 0, 4}};
    persistent_form f;
    for (size_t i = 0; i < sizeof counted / sizeof *counted; i++) {
        const kern_head_spec spec = spec_of(heads[counted[i].head]);
        assert_true(persistent_choose(&spec, counted[i].cluster, counted[i].most, 232448, &f));
        if (f.resident != counted[i].resident || f.chunk != counted[i].chunk)
            fail_msg("width %d, %d clusters of %d: %d products stay, chunk %d", spec.width, counted[i].most,
                     counted[i].cluster, f.resident, f.chunk);
    }
    kern_head_spec spec = spec_of(heads[2]);
    assert_false(persistent_choose(&spec, 1, 28, 65536, &f));
    spec = spec_of(heads[0]);
    assert_false(persistent_choose(&spec, 8, 0, 232448, &f));
    spec.width = spec.hidden = 1040;
    assert_false(persistent_choose(&spec, 8, 16, 232448, &f));
    spec = spec_of(heads[3]);
    spec.hidden = 1168; /* no multiple of 32 */
    assert_false(persistent_choose(&spec, 8, 16, 232448, &f));
    spec.hidden = 2080; /* no instance */
    assert_false(persistent_choose(&spec, 8, 16, 232448, &f));
}

/* Checks that a launch clears the words of 32 rows before it, those of x and of v, and without words only the arrivals.
 */
static void a_launch_clears_its_words(void **state)
{
    (void)state;
    static const struct {
        const shape *s;
        int rows,
            bytes; /* bytes: of words a row and channel of x and v, 8 and 4 for two channels a word, 8 of SWIGLU */
    } launches[] = {{&shapes[0], 2, 12}, {&shapes[0], 33, 0}, {&shapes[SWIGLU - 1], 2, 16}};
    if (!cudahost_set_bytes) skip(); /* a GPU does not count */
    for (size_t i = 0; i < sizeof launches / sizeof *launches; i++) {
        network n = make_network(*launches[i].s, 6500);
        bench cuda = open_cuda_bench(&n, 64);
        chain c;
        open_chain(&cuda, &(run){launches[i].rows, 1, 1, 0, 0, 0}, &c);
        cuda.k->core->finish(cuda.k);
        const size_t before = cudahost_set_bytes();
        chain_body(&c);
        const size_t set = cudahost_set_bytes() - before, words = (size_t)(32 * n.s.width * launches[i].bytes);
        assert_int_equal(set, words ? 128 + words : sizeof(unsigned));
        close_chain(&c, NULL, NULL);
        free_bench(&cuda);
        free_network(&n);
    }
}

/* Checks the launch on a recording, with other host arrays at each call. */
static void check_replays(shape s, run r)
{
    network n = make_network(s, 6000);
    bench cuda = open_cuda_bench(&n, 16);
    kern_queue *k = cuda.k;
    kern_recording *recording = NULL;
    chain c;
    static float plain[MOST * 32], recorded[MOST * 32];
    open_chain(&cuda, &r, &c);
    float *x = random_floats(MOST * (size_t)n.s.channels, 1, 99);
    for (int call = 0; call < 4; call++) { /* run, recorded, replayed */
        fill_chain(&c, &r);
        for (int i = 0; i < r.tokens; i++) {
            c.seed[i] += (uint64_t)(i * call), c.image[i] += (uint64_t)call;
            c.cfg[i] -= 0.2f * (float)call;
        }
        k->core->upload(k, c.job.x, x, (size_t)(r.tokens * n.s.channels) * sizeof *x);
        k->core->replay(k, &recording, chain_body, &c);
        from_device(k, recorded, c.job.x, (size_t)(r.tokens * n.s.channels) * sizeof *x);
        k->core->upload(k, c.job.x, x, (size_t)(r.tokens * n.s.channels) * sizeof *x);
        chain_body(&c);
        from_device(k, plain, c.job.x, (size_t)(r.tokens * n.s.channels) * sizeof *x);
        assert_memory_equal(recorded, plain, (size_t)(r.tokens * n.s.channels) * sizeof *x);
    }
    k->core->recording_free(k, recording);
    free(x);
    close_chain(&c, NULL, NULL);
    free_bench(&cuda);
    free_network(&n);
}

static void replays(void **state)
{
    (void)state;
    check_replays(shapes[0], (run){6, 2, 3, 0, 0, 1});
}

static void resident_replays(void **state)
{
    (void)state;
    for (int streamed = 0; streamed < 2; streamed++) {
        setenv("MAR_CUDA_HEAD_RESIDENT", streamed ? "2" : "1", 1);
        check_replays(resident_heads[0], (run){4, 2, 3, 0, 0, 1});
    }
    unsetenv("MAR_CUDA_HEAD_RESIDENT");
}

/* Checks that a launch of which only a part runs ends with an error, and that the next launch is as always: its last
 * block begins late, but before the others give up. */
static void check_missing_blocks(shape s)
{
    if (!cudahost_hold_last) skip(); /* a GPU cannot be told to */
    const run r = {8, 1, STEPS, 0, 0, 1};
    float x[3][MOST * 32];
    network n = make_network(s, 9000);
    setenv("MAR_CUDAHOST_CLUSTER", "1", 1); /* else the last cluster is all */
    bench cuda = open_cuda_bench(&n, 16);
    unsetenv("MAR_CUDAHOST_CLUSTER");
    run_chain(&cuda, &r, x[0], NULL);
    for (int i = 1; i < 3; i++) {
        chain c;
        mar_err err = {0};
        open_chain(&cuda, &r, &c);
        cudahost_hold_last(i == 1 ? ULONG_MAX : 300000);
        cudahost_give_up_after(i == 1 ? 512 : 400000);
        chain_body(&c);
        cuda.k->core->finish(cuda.k);
        cudahost_hold_last(0);
        cudahost_give_up_after(UINT_MAX);
        assert_int_equal(kern_check(cuda.k, &err), i == 1 ? MAR_EBACKEND : MAR_OK);
        if (i == 1)
            assert_string_equal(err.text,
                                "waiting for the GPU: the GPU ran only a part of a kernel that needs all of it; other "
                                "processes or streams hold the rest of it");
        cuda.k->core->recover(cuda.k);
        check_kern(cuda.k);
        close_chain(&c, x[i], NULL);
    }
    assert_memory_equal(x[2], x[0], (size_t)(r.tokens * n.s.channels) * sizeof **x);
    free_bench(&cuda);
    free_network(&n);
}

static void missing_blocks_are_an_error(void **state)
{
    (void)state;
    check_missing_blocks(shapes[0]);
}

static void resident_gives_up(void **state)
{
    (void)state;
    setenv("MAR_CUDA_HEAD_RESIDENT", "1", 1);
    check_missing_blocks(resident_heads[0]);
    unsetenv("MAR_CUDA_HEAD_RESIDENT");
}

int main(int argc, char **argv)
{
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(agrees_with_cpu),
        cmocka_unit_test(blocks_without_columns),
        cmocka_unit_test(parts_differ_in_the_mean),
        cmocka_unit_test(rows_are_independent),
        cmocka_unit_test(published_heads_have_forms),
        cmocka_unit_test(clusters_change_nothing),
        cmocka_unit_test(environment_chooses_the_form),
        cmocka_unit_test(resident_changes_nothing),
        cmocka_unit_test(resident_replays),
        cmocka_unit_test(resident_gives_up),
        cmocka_unit_test(a_launch_clears_its_words),
        cmocka_unit_test(replays),
        cmocka_unit_test(missing_blocks_are_an_error),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
