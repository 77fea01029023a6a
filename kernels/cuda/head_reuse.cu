/* Evaluation of the head's blocks. With LazyMAR outputs of their MLPs are cached and reused at a later index. */
#include "kernels/cuda/head.h"

enum { LANES = CUDA_HEAD_LANES };

/* Cached outputs, and the blocks to add. */
typedef struct {
    const float *kept; /* [depth][stride] */
    size_t stride;     /* floats of a block */
    int first, last;   /* blocks */
    int group;         /* blocks of an adaLN layer */
} reused;

/* x = s plus the cached outputs of some blocks. The block before them caches its ungated output, so s.keep is NULL. A
 * thread block has a row. T is the type of gates. Floor, bytes a row with b cached blocks: x 4W read and written, 4W b
 * read, and their gates from memory. */
template <typename T>
static __global__ void add_kept_kernel(cuda_residual s, reused n, const char *mod, const int *mod_index,
                                       size_t mod_bytes, int width, float *x)
{
    const int r = (int)blockIdx.x, i = LANES * (int)threadIdx.x;
    if (i >= width) return;
    const size_t at = (size_t)r * width + i;
    const T *gates = (const T *)(mod + (size_t)(mod_index ? mod_index[r] : r) * mod_bytes) + i;
    cuda_floats<LANES> sum = cuda_load<LANES>(s.from + (size_t)(r % s.from_rows) * width + i);
    for (int b = s.y ? n.first - 1 : n.first; b <= n.last; b++) {
        const int pending = b < n.first, block = pending ? s.block : b;
        const float *from = pending ? s.y : n.kept + (size_t)b * n.stride;
        cuda_floats<LANES> y = cuda_load<LANES>(from + at);
        if (pending || !kern_head_caches_gated(b)) {
            const cuda_floats<LANES> gate = cuda_load_once(gates + (3 * (size_t)(block / n.group) + 2) * width);
            for (int j = 0; j < LANES; j++) y.v[j] *= gate.v[j];
        }
        for (int j = 0; j < LANES; j++) sum.v[j] += y.v[j];
    }
    cuda_store(x + at, sum);
}

static void cuda_add_kept(const cuda_evaluation *e, cuda_residual *s, const reused &n)
{
    cuda_queue *c = e->c;
    const kern_head *h = e->h;
    cuda_launch(c, h->f16 ? add_kept_kernel<f16> : add_kept_kernel<float>, dim3((unsigned)e->rows),
                cuda_head_threads(h), 0, *s, n, e->mod, e->mod_index, cuda_head_mod_bytes(h), h->width, e->x);
    kern_watch(&c->base, e->x, MAR_DTYPE_F32, e->rows, h->width, h->width, KERN_HEAD_BLOCK, h->prefix,
               n.last);
    *s = cuda_residual_of(e->x, e->rows);
}

void cuda_head_layers(const cuda_evaluation *e, const float *from, int from_rows, kern_head_reuse reuse, float *kept,
                      size_t stride, float *out)
{
    cuda_residual s = cuda_residual_of(from, from_rows);
    for (int b = 0; b < e->h->depth && cuda_live(e->c); b++) {
        if (kern_head_computes(reuse, b)) {
            float *mine = kept ? kept + (size_t)b * stride : NULL;
            const int gated = !kept || kern_head_caches_gated(b);
            cuda_head_norm(e, &s, b);
            s.block = b;
            s.y = gated ? e->y : mine;
            s.keep = gated ? mine : NULL;
            cuda_head_products(e, b, (float *)s.y);
        } else {
            const int first = b;
            while (b + 1 < e->h->depth && !kern_head_computes(reuse, b + 1)) b++;
            cuda_add_kept(e, &s, {kept, stride, first, b, e->h->depth / e->h->ada_layers});
        }
    }
    cuda_head_final(e, &s, out);
}

void cuda_head_eval_reusing(kern_queue *k, const kern_head *h, const float *x, const int *x_index, const void *mod,
                            const int *mod_index, int rows, kern_head_reuse reuse, float *kept, int kept_rows,
                            float *out, void *scratch)
{
    cuda_queue *c = cuda_of(k);
    mod_index = cuda_stage(c, mod_index, (size_t)rows);
    const cuda_evaluation e = cuda_evaluation_in(c, h, mod, mod_index, rows, scratch);
    if (x_index) cuda_copy_rows(k, e.entry, NULL, x, x_index, NULL, NULL, rows, h->channels);
    cuda_linear(k, h->in, x_index ? e.entry : x, rows, e.x);
    if (rows > 0) cuda_head_layers(&e, e.x, rows, reuse, kept, (size_t)kept_rows * (size_t)h->width, out);
}
