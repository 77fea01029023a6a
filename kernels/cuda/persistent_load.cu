/* At load: whether and how a persistent kernel runs a head on a device, and its weights, packed as it reads them. */
#include "kernels/cuda/persistent_layers.cuh"

#include <stdlib.h>
#include <string.h>

/* Shared memory of a block of this form, with so many of the products' weights in it. */
static size_t persistent_shared_bytes(const persistent_form *f, int depth, int channels, int slices)
{
    persistent_args a = {};
    persistent_block none;
    a.depth = depth;
    a.channels = channels;
    a.cluster = f->cluster;
    a.tiles = f->tiles;
    a.own = f->own;
    a.chunk = f->chunk;
    a.slices = slices;
    return persistent_carve(a, f->pairs, NULL, &none);
}

int persistent_choose(int width, int depth, int channels, int cluster, int most, size_t shared_bytes,
                      persistent_form *f)
{
    const int tiles = width / 8, products = 2 * depth;
    *f = {};
    if (width < 32 || width % 32 || width > 32 * PERSISTENT_PARTS * PERSISTENT_PAIRS) return 0;
    if (depth < 1 || channels < 4 || channels % 4 || channels > PERSISTENT_CHANNELS) return 0;
    if (most < 1) return 0;
    f->cluster = cluster;
    f->pairs = (int)cuda_blocks((size_t)width, 32 * PERSISTENT_PARTS);
    f->tiles = (int)cuda_blocks((size_t)tiles, (size_t)most);
    f->clusters = (int)cuda_blocks((size_t)tiles, (size_t)f->tiles);
    f->own = (int)cuda_blocks(4 * (size_t)f->tiles, (size_t)cluster);
    if (f->own > PERSISTENT_OWN) return 0;
    /* Best are all weights in shared memory, then places that the others are copied to, then none; and of forms equal
     * in that, the largest chunk. */
    for (int least = products;; least = least > 2 ? 2 : 0) {
        for (f->chunk = PERSISTENT_ROWS / 16; f->chunk > 0; f->chunk /= 2) {
            const size_t other = persistent_shared_bytes(f, depth, channels, 0);
            const size_t slice = persistent_shared_bytes(f, depth, channels, 1) - other;
            const size_t room = other > shared_bytes ? 0 : (shared_bytes - other) / slice;
            if (other > shared_bytes || room < (size_t)least) continue;
            f->slices = room < (size_t)products ? (int)room : products;
            f->resident = f->slices < products && least > 0 ? f->slices - 2 : f->slices;
            f->shared_bytes = persistent_shared_bytes(f, depth, channels, f->slices);
            return 1;
        }
        if (least == 0) return 0;
    }
}

/* Decides how to run this head on this device with clusters of `cluster` blocks. Returns 0 if it cannot. */
static int persistent_fit(const cuda_queue *c, const kern_head_spec *spec, int cluster, persistent_head *f)
{
    const size_t width = (size_t)spec->width, products = 2 * (size_t)spec->depth;
    const int most = persistent_clusters(c, spec->width, cluster);
    persistent_form form;
    if (!c->device->bf16 ||
        !persistent_choose(spec->width, spec->depth, spec->channels, cluster, most, c->device->shared_bytes, &form))
        return 0;
    persistent_args *a = &f->args;
    a->width = spec->width;
    a->depth = spec->depth;
    a->channels = spec->channels;
    a->cluster = cluster;
    a->tiles = form.tiles;
    a->own = form.own;
    a->own_inverse = 65536 / form.own + 1; /* exact for q < 256: a cluster has at most 8 * PERSISTENT_OWN pairs */
    a->chunk = form.chunk;
    a->resident = form.resident;
    a->slices = form.slices;
    a->mod_final = 3u * (size_t)spec->depth * width * sizeof(bf16);
    a->mod_bytes = a->mod_final + 2u * width * sizeof(float);
    f->pairs = form.pairs;
    f->blocks = (unsigned)(form.clusters * cluster);
    f->shared_bytes = form.shared_bytes;
    f->streamed_bytes =
        (products - (size_t)form.resident) * (width / 8) * (size_t)(form.pairs * PERSISTENT_PARTS) * 512;
    return 1;
}

/* Decides how many of the weights that do not stay in shared memory are to persist in the L2 cache. */
static void persistent_keep_in_l2(const cuda_device *d, persistent_head *f)
{
    int most = 0;
    if (!f->streamed_bytes || !d->l2_persisting_bytes) return;
    if (cudaDeviceGetAttribute(&most, cudaDevAttrMaxAccessPolicyWindowSize, d->number) != cudaSuccess) {
        cudaGetLastError();
        return;
    }
    if (f->streamed_bytes > (size_t)most) f->streamed_bytes = (size_t)most;
    const double fraction = (double)d->l2_persisting_bytes / (double)f->streamed_bytes;
    f->kept_in_l2 = fraction < 1 ? (float)fraction : 1;
}

/* Packs the weight of a product in pieces; channels past the width are zero. */
static void persistent_pack_product(const float *weight, int width, int pairs, bf16 *to)
{
    for (int tile = 0; tile < width / 8; tile++)
        for (int pair = 0; pair < pairs; pair++)
            for (int lane = 0; lane < 32; lane++, to += 8) {
                const int k = 32 * pair + 8 * (lane % 4);
                const float *from = weight + (size_t)(8 * tile + lane / 4) * (size_t)width + k;
                for (int i = 0; i < 8; i++) to[i] = __float2bfloat16(k < width ? from[i] : 0);
            }
}

static mar_status persistent_pack_products(cuda_queue *c, const kern_head_spec *spec, persistent_head *f, mar_err *err)
{
    const int pairs = f->pairs * PERSISTENT_PARTS;
    const size_t product = (size_t)spec->width / 8 * (size_t)pairs * 256, n = 2 * (size_t)spec->depth * product;
    bf16 *packed = (bf16 *)malloc(n * sizeof *packed);
    if (!packed) return err_set(err, MAR_ENOMEM, "out of memory: %zu bytes for the head's weights", n * sizeof *packed);
    for (int b = 0; b < spec->depth; b++) {
        persistent_pack_product(spec->blocks[b].fc1_weight, spec->width, pairs, packed + 2 * (size_t)b * product);
        persistent_pack_product(spec->blocks[b].fc2_weight, spec->width, pairs, packed + (2 * (size_t)b + 1) * product);
    }
    const mar_status status = cuda_alloc_copy(c, packed, n * sizeof *packed, &f->weights, err);
    f->args.weights = (const uint4 *)f->weights;
    f->streamed = (unsigned char *)f->weights + (n * sizeof *packed - f->streamed_bytes);
    free(packed);
    return status;
}

static float *persistent_put(float *to, const float *from, size_t n)
{
    memcpy(to, from, n * sizeof *to);
    return to + n;
}

/* Packs biases and the layers that are f32. */
static mar_status persistent_pack_floats(cuda_queue *c, const kern_head_spec *spec, persistent_head *f, mar_err *err)
{
    const size_t w = (size_t)spec->width, depth = (size_t)spec->depth, channels = (size_t)spec->channels;
    const size_t n = 2 * depth * w + w * (channels + 1) + 2 * channels * (w + 1);
    float *host = (float *)malloc(n * sizeof *host), *p = host;
    if (!host) return err_set(err, MAR_ENOMEM, "out of memory: %zu bytes for the head's weights", n * sizeof *host);
    for (size_t b = 0; b < depth; b++) {
        p = persistent_put(p, spec->blocks[b].fc1_bias, w);
        p = persistent_put(p, spec->blocks[b].fc2_bias, w);
    }
    p = persistent_put(p, spec->in_weight, w * channels);
    p = persistent_put(p, spec->in_bias, w);
    p = persistent_put(p, spec->out_weight, 2 * channels * w);
    persistent_put(p, spec->out_bias, 2 * channels);
    const mar_status status = cuda_alloc_copy(c, host, n * sizeof *host, &f->floats, err);
    free(host);
    persistent_args *a = &f->args;
    a->bias = (const float *)f->floats;
    a->in = a->bias + 2 * depth * w;
    a->in_bias = a->in + w * channels;
    a->out_weight = a->in_bias + w;
    a->out_bias = a->out_weight + 2 * channels * w;
    return status;
}

mar_status persistent_create(cuda_queue *c, const kern_head_spec *spec, persistent_head **out, mar_err *err)
{
    *out = NULL;
    persistent_head *f = (persistent_head *)calloc(1, sizeof *f);
    if (!f) return err_set(err, MAR_ENOMEM, "out of memory");
    int cluster = c->device->major >= 9 ? PERSISTENT_PARTS : 1; /* the largest that the device has room for */
    while (cluster > 0 && !(persistent_fit(c, spec, cluster, f) && persistent_fits_device(c, f))) cluster /= 2;
    if (cluster == 0) {
        free(f);
        return MAR_OK;
    }
    persistent_keep_in_l2(c->device, f);
    mar_status status = persistent_pack_products(c, spec, f, err);
    if (status == MAR_OK) status = persistent_pack_floats(c, spec, f, err);
    if (status != MAR_OK) {
        persistent_free(&c->device->base, f);
        return status;
    }
    *out = f;
    return MAR_OK;
}

void persistent_free(kern_device *d, persistent_head *f)
{
    if (!f) return;
    if (f->kept_in_l2 > 0) {
        const int before = cuda_switch(cuda_device_of(d)->number);
        cuda_disturb_begin();
        (void)cudaCtxResetPersistingL2Cache();
        cuda_disturb_end();
        (void)cuda_switch(before);
    }
    cuda_free(d, f->weights);
    cuda_free(d, f->floats);
    free(f);
}
