/* How the CPU backend divides a product among threads: fairly, each with the weights that it touched first, and with
 * the bits of one thread. */
#include "kernels/cpu/cpu.h"
#include "tests/support/support.h"

#include <stdlib.h>

enum { THREADS = 128, CHUNKS = 8 /* base/thread_pool.c */ };

/* Blocks of the head's and the trunk's products: MAR-B's widths 768, 1024 and 3072, MAR-L's 1536, and those of causal
 * trunks, 4096 and 5120, with LlamaGen-L's 2816 and a 7B trunk's 11008 hidden. */
static const int widths[] = {12, 16, 24, 44, 48, 64, 80, 172};
static const int row_counts[] = {1, 2, 12, 13, 16, 22, 38, 64, 150};
enum { WIDTHS = sizeof widths / sizeof *widths, COUNTS = sizeof row_counts / sizeof *row_counts };

static int rows_of(const cpu_cut *c, int rows, int strip)
{
    return cpu_cut_row(c, rows, strip + 1) - cpu_cut_row(c, rows, strip);
}

/* Returns the work of the busiest thread, in rows times parts of a block, when each takes chunks of its own part and
 * then of others', as the pool's threads do if all are equally fast. */
static int busiest(int threads, int parts, int rows, const cpu_cut *c)
{
    const int jobs = parts * c->strips;
    int at[THREADS] = {0}, next[THREADS] = {0}, last = 0;
    for (;;) {
        int r = 0, p = 0, first, items, chunks;
        for (int i = 1; i < threads; i++)
            if (at[i] < at[r]) r = i;
        for (;; p++) {
            if (p == threads) return last;
            first = parallel_part(jobs, threads, (r + p) % threads);
            items = parallel_part(jobs, threads, (r + p) % threads + 1) - first, chunks = cpu_lesser(items, CHUNKS);
            if (next[(r + p) % threads] < chunks) break;
        }
        const int chunk = next[(r + p) % threads]++, end = first + parallel_part(items, chunks, chunk + 1);
        for (int job = first + parallel_part(items, chunks, chunk); job < end; job++)
            at[r] += rows_of(c, rows, job % c->strips);
        if (at[r] > last) last = at[r];
    }
}

/* Checks that no thread has half as much again as the mean, unless by less than the smallest job: half a block of up to
 * eleven rows. For powers of two a quarter. Few rows stay whole. */
TEST_CASE(fair)
{
    for (int w = 0; w < WIDTHS; w++)
        for (int i = 0; i < COUNTS; i++)
            for (int threads = 1; threads <= THREADS; threads++) {
                const int rows = row_counts[i];
                const cpu_cut cut = cpu_cut_product(threads, widths[w], rows, (cpu_cut){1, 1, 1}, 2);
                const double mean = (double)widths[w] * rows / threads, smallest = 0.5 * cpu_lesser(rows, 11);
                const double most = (double)busiest(threads, widths[w] * cut.parts, rows, &cut) / cut.parts;
                const double allowed = threads & (threads - 1) ? 1.5 : 1.25;
                if (rows > 12 && most > allowed * mean + 1e-9 && most > mean + smallest)
                    fail_msg("%d rows, %d blocks, %d threads: %g of %g", rows, widths[w], threads, most, mean);
                if (threads <= 2 || rows <= 12) assert_int_equal(cut.parts * cut.strips, 1); /* whole blocks */
            }
}

/* Checks that a thread's jobs are of blocks whose pages it touched, or of the one beside them that it shares. */
TEST_CASE(touched_first)
{
    for (int w = 0; w < WIDTHS; w++)
        for (int i = 0; i < COUNTS; i++)
            for (int threads = 1; threads <= THREADS; threads++) {
                const int blocks = widths[w];
                const cpu_cut c = cpu_cut_product(threads, blocks, row_counts[i], (cpu_cut){1, 1, 1}, 2);
                const int of_block = c.parts * c.strips, jobs = blocks * of_block;
                for (int r = 0; r < threads; r++)
                    for (int j = parallel_part(jobs, threads, r); j < parallel_part(jobs, threads, r + 1); j++) {
                        const int block = j / of_block, from = parallel_part(blocks, threads, r);
                        const int to = parallel_part(blocks, threads, r + 1);
                        assert_true(of_block == 1 ? block >= from && block < to : block >= from && block <= to);
                    }
            }
}

enum { IN = 96, WIDEST = 520, MOST = 130, GATES = 3 };

typedef struct {
    kern_queue *k;
    kern_linear *l;
    char *x;
    int rows, out;
    size_t size; /* bytes of y */
} product;

/* Computes a product as for `threads` threads: with a gate for results that are added, in cpu_linear_columns. */
static void run_as(const product *p, int threads, float *gates, const int *index, char *y)
{
    cpu_device *d = cpu_of(p->k)->d;
    const int real = d->threads;
    const gemm_gate gate = {(const char *)gates, index, WIDEST * sizeof *gates, 1};
    mar_err err = {0};
    memset(y, 1, p->size);
    d->threads = threads;
    if (gates)
        cpu_linear_columns(cpu_of(p->k), p->l, p->x, p->rows, y, &gate, p->l);
    else
        p->k->core->linear(p->k, p->l, p->x, p->rows, y);
    d->threads = real;
    assert_ok(kern_check(p->k, &err), &err);
}

TEST_CASE(same_bits)
{
    static const int shapes[][2] = {{1, 64}, {2, 128}, {9, 200}, {13, 96}, {38, 72}, {64, 520}, {130, 130}};
    static const int threads[] = {2, 3, 16, 64, 128};
    static float weight[WIDEST * IN], bias[WIDEST], numbers[MOST * IN], gates[GATES * WIDEST];
    static int index[MOST];
    for (int i = 0; i < WIDEST * IN; i++) weight[i] = (float)(i * 37 % 101 - 50) / 100;
    for (int i = 0; i < MOST * IN; i++) numbers[i] = (float)(i * 53 % 97 - 48) / 30;
    for (int i = 0; i < WIDEST; i++) bias[i] = (float)(i % 7 - 3);
    for (int i = 0; i < GATES * WIDEST; i++) gates[i] = (float)(i * 29 % 83 - 41) / 40;
    for (int i = 0; i < MOST; i++) index[i] = i * 5 % GATES;
    for (int i = 0; i < 7 * 4 * 2; i++) {
        const mar_dtype dtypes[] = {MAR_DTYPE_F32, MAR_DTYPE_BF16, MAR_DTYPE_INT8, MAR_DTYPE_INT4};
        const int gated = i % 2;
        const kern_linear_spec spec = {.out = shapes[i / 8][1],
                                       .in = IN,
                                       .weight = weight,
                                       .bias = bias,
                                       .activation = gated ? KERN_LINEAR : KERN_GELU,
                                       .flags = KERN_LOW | (gated ? KERN_OUT_F32 : 0)};
        product p = {.k = open_queue(dtypes[i / 2 % 4], 2), .rows = shapes[i / 8][0], .out = spec.out};
        mar_err err = {0};
        p.size = (size_t)p.rows * (size_t)p.out * (gated ? sizeof(float) : p.k->device->act_size);
        p.x = backend_memory(p.k, MOST * IN * sizeof(float));
        char *want = backend_memory(p.k, p.size), *y = backend_memory(p.k, p.size);
        assert_ok(p.k->core->linear_create(p.k, &spec, &p.l, &err), &err);
        assert_ok(p.k->core->linear_plan(p.k, p.l, p.rows, &err), &err);
        p.k->core->to_act(p.k, numbers, (size_t)p.rows * IN, p.x);
        run_as(&p, 1, gated ? gates : NULL, index, want);
        for (size_t t = 0; t < sizeof threads / sizeof *threads; t++) {
            run_as(&p, threads[t], gated ? gates : NULL, index, y);
            assert_memory_equal(y, want, p.size);
        }
        p.k->core->linear_free(p.k->device, p.l);
        char *arrays[] = {p.x, want, y};
        for (int a = 0; a < 3; a++) p.k->core->free(p.k->device, arrays[a]);
        close_queue(p.k);
    }
}
