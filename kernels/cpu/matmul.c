/* Cache of matrix-product primitives; layers of equal shape share them. A model has a few dozen shapes. Attention has
 * two per number of known tokens: hundreds where contexts of all steps are in one batch. Entries are only added, at the
 * head of a list, so it can be read without a lock. There is one list per hash. */
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/int8.h"

#include <stdatomic.h>
#include <stdlib.h>

struct cpu_matmul_entry {
    dnn_matmul_spec spec;
    dnn_primitive *primitive;
    struct cpu_matmul_entry *next;
};

/* Compares shapes. Packed layouts depend only on n, k and type; these are compared. */
static int same_spec(const dnn_matmul_spec *a, const dnn_matmul_spec *b)
{
    return a->m == b->m && a->n == b->n && a->k == b->k && a->lda == b->lda && a->ldc == b->ldc && a->bf16 == b->bf16 &&
           a->c_f32 == b->c_f32 && !a->packed == !b->packed &&
           (a->packed || (a->ldb == b->ldb && a->b_transposed == b->b_transposed)) && a->has_bias == b->has_bias &&
           a->accumulate == b->accumulate && a->activation == b->activation;
}

static unsigned list_of(const dnn_matmul_spec *spec)
{
    const unsigned hash =
        (unsigned)spec->m * 0x9e3779b1u ^ (unsigned)spec->n * 0x85ebca6bu ^ (unsigned)spec->k * 0xc2b2ae35u;
    return (hash >> 16) % CPU_MATMUL_LISTS;
}

static const dnn_primitive *find(const cpu_device *d, const dnn_matmul_spec *spec)
{
    const struct cpu_matmul_entry *e = atomic_load_explicit(&d->matmuls[list_of(spec)], memory_order_acquire);
    while (e && !same_spec(&e->spec, spec)) e = e->next;
    return e ? e->primitive : NULL;
}

/* Adds a primitive. The lock is held. */
static mar_status add(cpu_device *d, const dnn_matmul_spec *spec, const dnn_primitive **out, mar_err *err)
{
    *out = find(d, spec); /* another thread may have made it */
    if (*out) return MAR_OK;
    struct cpu_matmul_entry *e = calloc(1, sizeof *e);
    if (!e) return err_set(err, MAR_ENOMEM, "out of memory");
    const mar_status status = dnn_matmul_create(d->dnn, spec, &e->primitive, err);
    if (status != MAR_OK) {
        free(e);
        return status;
    }
    const unsigned list = list_of(spec);
    e->spec = *spec;
    e->next = atomic_load_explicit(&d->matmuls[list], memory_order_relaxed);
    atomic_store_explicit(&d->matmuls[list], e, memory_order_release);
    *out = e->primitive;
    return MAR_OK;
}

mar_status cpu_matmul(cpu_queue *q, const dnn_matmul_spec *spec, const dnn_primitive **out, mar_err *err)
{
    mar_status status = MAR_OK;
    *out = find(q->d, spec);
    if (!*out) {
        pthread_mutex_lock(&q->d->lock);
        status = add(q->d, spec, out, err);
        pthread_mutex_unlock(&q->d->lock);
    }
    return status == MAR_OK ? cpu_ready(q, *out, err) : status;
}

void cpu_matmul_free_all(cpu_device *d)
{
    for (int list = 0; list < CPU_MATMUL_LISTS; list++) {
        struct cpu_matmul_entry *e = atomic_load_explicit(&d->matmuls[list], memory_order_relaxed);
        while (e) {
            struct cpu_matmul_entry *next = e->next;
            dnn_primitive_free(e->primitive);
            free(e);
            e = next;
        }
    }
}

/* --- a queue's buffers -------------------------------------------------------------------------------------------- */

mar_status cpu_grow(cpu_queue *q, void **buffers, size_t *size, size_t bytes, mar_err *err)
{
    if (bytes <= *size) return MAR_OK;
    bytes = (bytes + 4095) / 4096 * 4096;
    for (int t = 0; t < q->d->threads; t++) {
        void *larger = aligned_alloc(64, bytes);
        if (!larger) return err_set(err, MAR_ENOMEM, "out of memory: %zu bytes of scratch for a thread", bytes);
        free(buffers[t]);
        buffers[t] = larger;
    }
    *size = bytes;
    return MAR_OK;
}

/* Replaces *buffer by one of at least `bytes` bytes. */
static mar_status grow(void **buffer, size_t *size, size_t bytes, mar_err *err)
{
    if (bytes <= *size) return MAR_OK;
    bytes = (bytes + 4095) / 4096 * 4096;
    void *larger = aligned_alloc(64, bytes);
    if (!larger) return err_set(err, MAR_ENOMEM, "out of memory: %zu bytes of scratch", bytes);
    free(*buffer);
    *buffer = larger;
    *size = bytes;
    return MAR_OK;
}

mar_status cpu_int8_room(cpu_queue *q, int rows, int words, mar_err *err)
{
    const mar_status status = grow(&q->int8_rows, &q->int8_bytes, (size_t)rows * int8_stride(words), err);
    return status == MAR_OK ? grow(&q->int8_scale, &q->scale_bytes, (size_t)rows * sizeof(float), err) : status;
}

static mar_status make_room(cpu_queue *q, int number, mar_err *err)
{
    if (number < q->operands_count) return MAR_OK;
    const int count = 2 * number + 64;
    dnn_operands **larger = realloc(q->operands, (size_t)count * sizeof *larger);
    if (!larger) return err_set(err, MAR_ENOMEM, "out of memory");
    memset(larger + q->operands_count, 0, (size_t)(count - q->operands_count) * sizeof *larger);
    q->operands = larger;
    q->operands_count = count;
    return MAR_OK;
}

mar_status cpu_ready(cpu_queue *q, const dnn_primitive *p, mar_err *err)
{
    const int number = dnn_primitive_number(p);
    if (cpu_is_ready(q, p)) return MAR_OK;
    mar_status status = make_room(q, number, err);
    if (status == MAR_OK) status = cpu_grow(q, q->scratch, &q->scratch_bytes, dnn_primitive_scratch_bytes(p), err);
    return status == MAR_OK ? dnn_operands_create(q->d->dnn, p, &q->operands[number], err) : status;
}

void cpu_operands_free_all(cpu_queue *q)
{
    for (int i = 0; i < q->operands_count; i++) dnn_operands_free(q->operands[i]);
    free(q->operands);
}
