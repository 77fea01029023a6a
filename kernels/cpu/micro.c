/* What measuring asks of the CPU backend (kern_measure_ops). */
#include "kernels/cpu/cpu.h"

#include <unistd.h>

static void machine(const kern_device *device, const kern_head *h, kern_machine *out)
{
    const cpu_device *d = (const cpu_device *)device;
    *out = (kern_machine){.processors = d->threads};
    (void)h;
#ifdef _SC_LEVEL3_CACHE_SIZE
    const long cache = sysconf(_SC_LEVEL3_CACHE_SIZE);
    if (cache > 0) out->cache_bytes = (double)cache;
#endif
}

enum { READ_FLOATS = 256 << 10 }; /* of an item */

typedef struct {
    const cpu_device *d;
    const float *x;
    size_t n;
    _Atomic unsigned sum; /* so that no compiler leaves the reading out */
} read_loop;

static void read_body(void *arg, int first, int last, int thread)
{
    read_loop *l = arg;
    (void)thread;
    for (int i = first; i < last; i++) {
        const size_t from = (size_t)i * READ_FLOATS, left = l->n - from;
        l->sum += l->d->rows->read(l->x + from, (left < READ_FLOATS ? left : READ_FLOATS) / 128 * 512);
    }
}

static void read_memory(kern_queue *k, const float *x, size_t n)
{
    cpu_queue *q = cpu_of(k);
    read_loop l = {.d = q->d, .x = x, .n = n};
    if (kern_live(k)) cpu_for(q, (int)((n + READ_FLOATS - 1) / READ_FLOATS), (double)n, read_body, &l);
}

static void meet(void *arg, int first, int last, int thread)
{
    (void)arg, (void)first, (void)last, (void)thread;
}

/* A loop of nothing, handed to all threads. */
static void barrier(cpu_queue *q)
{
    enum { WORTH_IT = 1000000 }; /* what cpu_for divides */
    cpu_for(q, q->d->threads, WORTH_IT, meet, NULL);
}

static int phase(kern_queue *k, const kern_head *h, kern_phase what, int cluster, int rows, int repeats,
                 const void *mod, void *scratch)
{
    kern_head_spec spec;
    cpu_head_spec(h, &spec);
    const size_t n = (size_t)rows * (size_t)spec.width;
    float *y = scratch;
    const void *x = y + n;
    (void)mod;
    if (cluster > 0) return 0;
    if (what == KERN_PHASE_BARRIER) {
        for (int i = 0; i < repeats && kern_live(k); i++) barrier(cpu_of(k));
        return 1;
    }
    if (what != KERN_PHASE_FC1 && what != KERN_PHASE_FC2) return 0;
    const kern_linear *l = cpu_head_product(h, what == KERN_PHASE_FC2);
    for (int i = 0; i < repeats && kern_live(k); i++) cpu_linear(k, l, x, rows, y);
    return 1;
}

const kern_measure_ops cpu_measure_ops = {
    .linear_spec = cpu_linear_spec,
    .conv_spec = cpu_conv_spec,
    .head_spec = cpu_head_spec,
    .machine = machine,
    .read = read_memory,
    .phase = phase,
};
