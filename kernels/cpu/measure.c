/* The CPU backend's kern_measure_ops. */
#include "kernels/cpu/cpu.h"

#include <unistd.h>

static void machine(const kern_device *device, kern_machine *out)
{
    const cpu_device *d = (const cpu_device *)device;
    *out = (kern_machine){.processors = d->threads};
#ifdef _SC_LEVEL3_CACHE_SIZE
    const long cache = sysconf(_SC_LEVEL3_CACHE_SIZE);
    if (cache > 0) out->cache_bytes = (double)cache;
#endif
}

enum { READ_FLOATS = 256 << 10 }; /* floats of an item */

typedef struct {
    const cpu_device *d;
    const float *x;
    size_t n;
    _Atomic unsigned sum; /* keeps compilers from dropping the reads */
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

const kern_measure_ops cpu_measure_ops = {
    .linear_spec = cpu_linear_spec,
    .conv_spec = cpu_conv_spec,
    .head_spec = cpu_head_spec,
    .machine = machine,
    .read = read_memory,
};
