/* The matrix-product primitives made so far. Layers of equal shape share them; a model has a few dozen shapes. */
#include "kernels/cpu/cpu.h"

#include <stdlib.h>

struct cpu_matmul_entry {
    dnn_matmul_spec spec;
    dnn_matmul *primitive;
    struct cpu_matmul_entry *next;
};

/* Packed layouts need no comparison: they depend on n, k and type, which are compared. */
static int same_spec(const dnn_matmul_spec *a, const dnn_matmul_spec *b)
{
    return a->m == b->m && a->n == b->n && a->k == b->k && a->lda == b->lda && a->ldc == b->ldc && a->bf16 == b->bf16 &&
           a->c_f32 == b->c_f32 && !a->packed == !b->packed &&
           (a->packed || (a->ldb == b->ldb && a->b_transposed == b->b_transposed)) && a->has_bias == b->has_bias &&
           a->accumulate == b->accumulate && a->activation == b->activation;
}

mar_status cpu_grow(cpu_kern *k, void **buffers, size_t *size, size_t bytes, mar_err *err)
{
    if (bytes <= *size) return MAR_OK;
    bytes = (bytes + 4095) / 4096 * 4096;
    for (int t = 0; t < k->threads; t++) {
        void *larger = aligned_alloc(64, bytes);
        if (!larger) return err_set(err, MAR_ENOMEM, "out of memory: %zu bytes of scratch for a thread", bytes);
        free(buffers[t]);
        buffers[t] = larger;
    }
    *size = bytes;
    return MAR_OK;
}

mar_status cpu_matmul(cpu_kern *k, const dnn_matmul_spec *spec, const dnn_matmul **out, mar_err *err)
{
    for (struct cpu_matmul_entry *e = k->matmuls; e; e = e->next)
        if (same_spec(&e->spec, spec)) {
            *out = e->primitive;
            return MAR_OK;
        }
    struct cpu_matmul_entry *e = calloc(1, sizeof *e);
    if (!e) return err_set(err, MAR_ENOMEM, "out of memory");
    e->spec = *spec;
    mar_status status = dnn_matmul_create(k->dnn, spec, &e->primitive, err);
    if (status == MAR_OK)
        status = cpu_grow(k, k->scratch, &k->scratch_bytes, dnn_matmul_scratch_bytes(e->primitive), err);
    if (status != MAR_OK) {
        dnn_matmul_free(e->primitive);
        free(e);
        return status;
    }
    e->next = k->matmuls;
    k->matmuls = e;
    *out = e->primitive;
    return MAR_OK;
}

void cpu_matmul_free_all(cpu_kern *k)
{
    while (k->matmuls) {
        struct cpu_matmul_entry *e = k->matmuls;
        k->matmuls = e->next;
        dnn_matmul_free(e->primitive);
        free(e);
    }
}
