#include "tests/support/device.h"

#include "mar_measure.h"

#include "tests/cudahost/control.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

kern_queue *open_cpu(void)
{
    return open_queue(MAR_DTYPE_F32, 1);
}

kern_queue *new_queue(kern_device *d)
{
    kern_queue *k = NULL;
    mar_err err = {0};
    assert_ok(d->core->queue_create(d, &k, &err), &err);
    k->core->bind(k);
    return k;
}

kern_queue *open_cuda(mar_dtype dtype)
{
    kern_device *d = NULL;
    mar_err err = {0};
    assert_ok(kern_cuda_open(dtype, 0, &d, &err), &err);
    return new_queue(d);
}

int cuda_has_asked(void)
{
    kern_device *d = NULL;
    mar_err err = {0};
    const mar_status status = kern_cuda_open(MAR_DTYPE_BF16, 0, &d, &err);
    if (status == MAR_EBACKEND && !cudahost_launches && strstr(err.text, "compute capability 9.0")) return 0;
    assert_ok(status, &err);
    d->core->close(d);
    return 1;
}

void check_kern(kern_queue *k)
{
    mar_err err = {0};
    assert_ok(kern_check(k, &err), &err);
}

float *random_floats(size_t n, float scale, uint64_t seed)
{
    float *x = malloc((n + 4) * sizeof *x);
    assert_non_null(x);
    for (size_t i = 0; i < n; i += 4) {
        uint32_t words[4];
        kern_random_words(seed, KERN_NOISE_INIT, i >> 18, 0, 0, (uint32_t)(i / 4 & 0xffff), words);
        kern_normal4(words, x + i);
    }
    for (size_t i = 0; i < n; i++) x[i] *= scale;
    return x;
}

void *to_device(kern_queue *k, const void *host, size_t bytes)
{
    void *p = NULL;
    mar_err err = {0};
    assert_ok(k->core->alloc(k->device, bytes, &p, &err), &err);
    if (host) k->core->upload(k, p, host, bytes);
    return p;
}

void from_device(kern_queue *k, void *host, const void *device, size_t bytes)
{
    k->core->download(k, host, device, bytes);
    check_kern(k);
}

static uint16_t to_bf16(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

void *to_act(kern_queue *k, const float *host, size_t n)
{
    if (k->device->act_size == 4) return to_device(k, host, n * sizeof *host);
    uint16_t *half = malloc((n + 1) * sizeof *half);
    assert_non_null(half);
    for (size_t i = 0; i < n; i++) half[i] = to_bf16(host[i]);
    void *p = to_device(k, half, n * sizeof *half);
    free(half);
    return p;
}

void count_other_images(const float *x, const float *y, int images, size_t values, double tolerance, int *others)
{
    for (size_t i = 0; i < (size_t)images; i++)
        *others += !(relative_error(x + i * values, y + i * values, values) <= tolerance);
}

int flips_allowed(long decisions)
{
    const double expected = 1e-3 * (double)decisions;
    double term = exp(-expected), sum = term; /* of the Poisson distribution */
    int most = 0;
    if (cudahost_objects) return 0;
    while (sum < 0.999) term *= expected / ++most, sum += term;
    return most;
}

void expect_decisions(const char *name, const mar_stats *stats, const mar_stats *theirs, int others, long decisions,
                      int tokens)
{
    const double most = (double)others * tokens;
    if (others > flips_allowed(decisions))
        fail_msg("%s: %d images differ from the CPU's, allowed %d", name, others, flips_allowed(decisions));
    if (fabs(stats->passes - theirs->passes) > most || (double)labs(stats->accepted - theirs->accepted) > most)
        fail_msg("%s: %g passes, %ld accepted; the CPU's %g and %ld; %d images differ", name, stats->passes,
                 stats->accepted, theirs->passes, theirs->accepted, others);
}

library open_library(mar_backend backend, mar_dtype dtype, const char *model, const char *draft, const char *vae)
{
    const mar_options options = {.size = sizeof options, .dtype = dtype, .threads = 1, .backend = backend};
    library l = {0};
    const mar_status status = mar_open(&options, &l.m);
    assert_library(l.m, status);
    if (model) assert_library(l.m, mar_model_load(l.m, model, 0, &l.model));
    if (draft) assert_library(l.m, mar_model_load(l.m, draft, 0, &l.draft));
    if (vae) assert_library(l.m, mar_vae_load(l.m, vae, &l.vae));
    return l;
}

void close_library(library *l)
{
    mar_vae_free(l->vae);
    mar_model_free(l->draft);
    mar_model_free(l->model);
    mar_close(l->m);
}
