/* At load: whether and how a persistent kernel runs a head on a device, and the packing of its weights. */
#include "kernels/cuda/persistent_layers.cuh"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Returns the number of pairs of mmas of a part. */
static int persistent_pairs(int channels)
{
    return (int)cuda_blocks((size_t)channels, 32 * PERSISTENT_PARTS);
}

/* Returns the number of the kernels' instance for a head, or -1 if it is too wide. */
static int persistent_instance(const kern_head_spec *shape)
{
    const int swiglu = shape->form == KERN_HEAD_SWIGLU;
    for (int i = 0; i < PERSISTENT_INSTANCES; i++)
        if ((persistent_instances[i].wide > 0) == swiglu &&
            persistent_pairs(shape->width) <= persistent_instances[i].pairs &&
            (!swiglu || persistent_pairs(shape->hidden) <= persistent_instances[i].wide))
            return i;
    return -1;
}

/* Returns the arguments that follow from a head's shape and form. */
static persistent_args persistent_shape(const kern_head_spec *shape, const persistent_form *f)
{
    const int swiglu = shape->form == KERN_HEAD_SWIGLU, fc1_pairs = persistent_instances[f->instance].pairs;
    const int fc2_pairs = swiglu ? persistent_instances[f->instance].wide : fc1_pairs;
    const int tile = PERSISTENT_PARTS * 32; /* pieces of a tile for each pair */
    const size_t width = (size_t)shape->width;
    persistent_args a = {};
    static_cast<persistent_form &>(a) = *f;
    a.width = shape->width, a.depth = shape->depth, a.channels = shape->channels, a.hidden = shape->hidden;
    a.inverse_width = 1 / (float)a.width;
    a.group = swiglu ? shape->depth / shape->ada_layers : 1;
    a.fc1_columns = swiglu ? 2 * shape->hidden : shape->hidden;
    a.fc2_slice = f->wide.tiles * tile / f->cluster * fc1_pairs;
    a.block_slice = a.fc2_slice + f->cut.tiles * tile / f->cluster * fc2_pairs;
    a.fc2_weights = (size_t)(a.fc1_columns / 8) * (size_t)(tile * fc1_pairs);
    a.block_weights = a.fc2_weights + width / 8 * (size_t)(tile * fc2_pairs);
    a.mod_final = 3u * (size_t)shape->ada_layers * width * sizeof(f16);
    a.mod_bytes = a.mod_final + 2u * width * sizeof(float);
    return a;
}

/* Writes the form's shared_bytes. Returns whether they are at most `most`. */
static int persistent_has_room(const kern_head_spec *shape, size_t most, persistent_form *f)
{
    const persistent_args a = persistent_shape(shape, f);
    const int pairs = persistent_instances[f->instance].pairs, wide = persistent_instances[f->instance].wide;
    persistent_block none;
    f->shared_bytes = (size_t)persistent_carve(a, pairs > wide ? pairs : wide, NULL, &none);
    return f->shared_bytes <= most;
}

/* Divides `columns` columns over f->clusters clusters. Returns 0 if a block would own too many. */
static int persistent_divide(const persistent_form *f, int columns, persistent_cut *cut)
{
    cut->tiles = (int)cuda_blocks((size_t)columns / 8, (size_t)f->clusters);
    cut->own = (int)cuda_blocks(4 * (size_t)cut->tiles, (size_t)f->cluster);
    cut->inverse = 65536 / cut->own + 1; /* exact for q * own < 65536: a cluster has at most 8 * PERSISTENT_OWN pairs */
    return cut->own <= PERSISTENT_OWN;
}

int persistent_choose(const kern_head_spec *shape, int cluster, int most, size_t shared_bytes, persistent_form *f)
{
    const int width = shape->width, hidden = shape->hidden, products = 2 * shape->depth, channels = shape->channels;
    *f = {};
    if (width < 32 || width % 32 || shape->depth < 1 || shape->depth > PERSISTENT_DEPTH) return 0;
    if (channels < 4 || channels % 4 || channels > PERSISTENT_CHANNELS) return 0;
    if (shape->form == KERN_HEAD_MLP ? hidden != width : hidden % 32 || 2 * hidden < width) return 0;
    if (most < 1) return 0;
    f->instance = persistent_instance(shape);
    if (f->instance < 0) return 0;
    f->cluster = cluster;
    const size_t tiles = (size_t)width / 8; /* a cluster has one or more of any layer */
    f->clusters = (int)cuda_blocks(tiles, cuda_blocks(tiles, (size_t)most));
    if (!persistent_divide(f, width, &f->cut)) return 0;
    if (!persistent_divide(f, shape->form == KERN_HEAD_SWIGLU ? 2 * hidden : hidden, &f->wide)) return 0;
    f->resident = products;
    for (f->chunk = PERSISTENT_CHUNK; f->chunk > 0; f->chunk /= 2)
        if (persistent_has_room(shape, shared_bytes, f)) return 1;
    for (f->chunk = PERSISTENT_CHUNK; f->chunk > 0; f->chunk /= 2)
        for (f->resident = products - 1; f->resident >= 0; f->resident--)
            if (persistent_has_room(shape, shared_bytes, f)) return 1;
    return 0;
}

/* Returns where a product's packed weights begin, in bytes; for the product after the last one their size. */
static size_t persistent_weight_offset(const persistent_args *a, int product)
{
    return ((size_t)(product / 2) * a->block_weights + (size_t)(product % 2) * a->fc2_weights) * sizeof(uint4);
}

/* Decides how to run this head on this device with clusters of `cluster` blocks. Returns 0 if it cannot. `refused` gets
 * the first refusal. */
static int persistent_fit(const cuda_queue *c, const kern_head_spec *spec, int cluster, persistent_head *f,
                          mar_err *refused)
{
    const int instance = persistent_instance(spec), most = instance < 0 ? 0 : persistent_clusters(c, instance, cluster);
    persistent_form form;
    if (!persistent_choose(spec, cluster, most, c->device->shared_bytes, &form)) {
        if (most == 0 && !refused->text[0] &&
            persistent_choose(spec, 1, c->device->multiprocessors, c->device->shared_bytes, &form))
            (void)err_set(refused, MAR_EBACKEND, "refused with clusters of %d blocks: the GPU has room for none",
                          cluster);
        return 0;
    }
    f->args = persistent_shape(spec, &form);
    return 1;
}

/* Returns the row of fc1's weight and bias that column n is. SWIGLU: columns are a0, b0, a1, b1, ... */
static size_t persistent_fc1_row(const kern_head_spec *spec, int n)
{
    return (size_t)(spec->form == KERN_HEAD_SWIGLU ? n % 2 * spec->hidden + n / 2 : n);
}

/* Packs the weight of a block's fc1 or fc2 in pieces; channels past the last one are 0. */
static void persistent_pack_product(const kern_head_spec *spec, const kern_head_block *block, int fc1, int columns,
                                    int pairs, f16 *to)
{
    const int channels = fc1 ? spec->width : spec->hidden;
    for (int tile = 0; tile < columns / 8; tile++)
        for (int pair = 0; pair < pairs * PERSISTENT_PARTS; pair++)
            for (int lane = 0; lane < 32; lane++, to += 8) {
                const int n = 8 * tile + lane / 4, k = 32 * pair + 8 * (lane % 4);
                const float *from = fc1 ? block->fc1_weight + persistent_fc1_row(spec, n) * (size_t)channels + k
                                        : block->fc2_weight + (size_t)n * (size_t)channels + k;
                for (int i = 0; i < 8; i++) to[i] = __float2half_rn(k < channels ? from[i] : 0);
            }
}

static mar_status persistent_pack_products(cuda_queue *c, const kern_head_spec *spec, persistent_head *f, mar_err *err)
{
    const int pairs = persistent_instances[f->args.instance].pairs;
    const int wide = persistent_instances[f->args.instance].wide;
    const size_t bytes = persistent_weight_offset(&f->args, 2 * spec->depth);
    unsigned char *packed = (unsigned char *)malloc(bytes);
    if (!packed) return err_set(err, MAR_ENOMEM, "out of memory: %zu bytes for the head's weights", bytes);
    for (int b = 0; b < spec->depth; b++) {
        persistent_pack_product(spec, &spec->blocks[b], 1, f->args.fc1_columns, pairs,
                                (f16 *)(packed + persistent_weight_offset(&f->args, 2 * b)));
        persistent_pack_product(spec, &spec->blocks[b], 0, spec->width, wide ? wide : pairs,
                                (f16 *)(packed + persistent_weight_offset(&f->args, 2 * b + 1)));
    }
    const mar_status status = cuda_alloc_copy(c, packed, bytes, &f->weights, err);
    f->args.weights = (const uint4 *)f->weights;
    free(packed);
    return status;
}

static float *persistent_put(float *to, const float *from, size_t n)
{
    memcpy(to, from, n * sizeof *to);
    return to + n;
}

/* Packs biases and the f32 layers. */
static mar_status persistent_pack_floats(cuda_queue *c, const kern_head_spec *spec, persistent_head *f, mar_err *err)
{
    const size_t w = (size_t)spec->width, depth = (size_t)spec->depth, channels = (size_t)spec->channels;
    const size_t biases = depth * ((size_t)f->args.fc1_columns + w);
    const size_t n = biases + w * (channels + 1) + 2 * channels * (w + 1);
    float *host = (float *)malloc(n * sizeof *host), *p = host;
    if (!host) return err_set(err, MAR_ENOMEM, "out of memory: %zu bytes for the head's weights", n * sizeof *host);
    for (size_t b = 0; b < depth; b++) {
        for (int i = 0; i < f->args.fc1_columns; i++) *p++ = spec->blocks[b].fc1_bias[persistent_fc1_row(spec, i)];
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
    a->in = a->bias + biases;
    a->in_bias = a->in + w * channels;
    a->out_weight = a->in_bias + w;
    a->out_bias = a->out_weight + 2 * channels * w;
    return status;
}

/* --- what the device accepts ----------------------------------------------------------------------------------- */

/* Starts each kernel without work, and waits for those that start: their weights may be freed next. */
static cudaError_t persistent_starts(const cuda_queue *c, const persistent_head *f)
{
    cudaError_t e = persistent_try_chain(c, f);
    if (e == cudaSuccess) e = speculate_try(c, f);
    return cuda_tried(c, e);
}

/* Returns "clusters of 2 blocks", written to text, or "no clusters". */
static const char *persistent_clusters_text(const persistent_head *f, char text[48])
{
    if (f->args.cluster == 1) return "no clusters";
    snprintf(text, 48, "clusters of %d blocks", f->args.cluster);
    return text;
}

/* Tests whether the form in *f starts. `refused` gets the first refusal. */
static int persistent_accepted(const cuda_queue *c, const persistent_head *f, mar_err *refused)
{
    char text[48];
    const cudaError_t e = persistent_starts(c, f);
    if (e != cudaSuccess && !refused->text[0])
        (void)err_set(refused, MAR_EBACKEND, "refused with %s: launching the head's kernels: %s",
                      persistent_clusters_text(f, text), cudaGetErrorString(e));
    return e == cudaSuccess;
}

static void persistent_describe(const persistent_head *f, int streamed, const mar_err *refused, mar_err *how)
{
    char clusters[48];
    (void)err_set(how, MAR_OK, "persistent kernel up to %d rows, %s, %d of %d products in shared memory%s%s%s%s%s",
                  (int)PERSISTENT_ROWS, persistent_clusters_text(f, clusters), f->args.resident, 2 * f->args.depth,
                  f->word_rows ? "" : ", without words",
                  f->few     ? ", resident up to 8 rows"
                  : streamed ? ", streamed up to 8 rows"
                             : "",
                  f->groups.turners ? ", in groups from 16 rows on" : "", refused->text[0] ? "; " : "", refused->text);
}

/* --- loading --------------------------------------------------------------------------------------------------- */

/* Makes the form with clusters of `cluster` blocks, with its weights. *out is NULL if the device does not accept it. */
static mar_status persistent_make(cuda_queue *c, const kern_head_spec *spec, const float *norms, int cluster,
                                  persistent_head **out, mar_err *refused, mar_err *err)
{
    mar_status status = MAR_OK;
    persistent_head *f = (persistent_head *)calloc(1, sizeof *f);
    *out = NULL;
    if (!f) return err_set(err, MAR_ENOMEM, "out of memory");
    if (persistent_fit(c, spec, cluster, f, refused)) {
        f->args.norms = norms;
        status = persistent_pack_products(c, spec, f, err);
        if (status == MAR_OK) status = persistent_pack_floats(c, spec, f, err);
        if (status == MAR_OK && persistent_accepted(c, f, refused)) *out = f;
    }
    if (!*out) persistent_free(&c->device->base, f);
    return status;
}

/* What environment variables ask of the form, to compare forms (bench/gpu, scripts/gpu_hour.sh). */
typedef struct {
    int cluster; /* blocks of a cluster: 8, 4, 2 or 1; 0: the largest that the device accepts */
    int words;   /* 0: grid barriers for any number of rows */
    int few;     /* 1: up to 8 rows by resident.cu, or chains of a head that does not fit by streamed.cu; 2: by the
                  * latter */
    int groups;  /* 1: 16 and more rows by groups.cuh */
} persistent_wish;

static mar_status persistent_read_wishes(persistent_wish *wish, mar_err *err)
{
    *wish = {0, 1, 0, 0};
    mar_status status = cuda_read_wish("MAR_CUDA_HEAD_CLUSTER", "8421", "8, 4, 2 or 1", &wish->cluster, err);
    if (status == MAR_OK) status = cuda_read_wish("MAR_CUDA_HEAD_WORDS", "01", "0 or 1", &wish->words, err);
    if (status == MAR_OK) status = cuda_read_wish("MAR_CUDA_HEAD_RESIDENT", "012", "0, 1 or 2", &wish->few, err);
    return status == MAR_OK ? cuda_read_wish("MAR_CUDA_HEAD_GROUPS", "01", "0 or 1", &wish->groups, err) : status;
}

static mar_status persistent_refuse(const char *name, int value, const char *why, mar_err *err)
{
    return err_set(err, MAR_EBACKEND, "the environment variable MAR_CUDA_HEAD_%s is %d: %s", name, value, why);
}

/* Gives h the forms besides that are wished for. It is an error if the head or the GPU has none, because only who asks
 * for one gets it. */
static mar_status persistent_add_forms(cuda_queue *c, const kern_head_spec *spec, const persistent_wish *wish,
                                       kern_head *h, mar_err *err)
{
    persistent_head *f = h->persistent;
    const resident_head *few = f && wish->few == 1 ? resident_find(c, spec) : NULL;
    const char *name = "RESIDENT";
    groups_form groups = {};
    char why[128];
    mar_status status = wish->few && !few ? streamed_create(c, spec, h, &h->streamed, err) : MAR_OK;
    if (status != MAR_OK) return status;
    if (wish->few && !few && !h->streamed)
        return persistent_refuse(name, wish->few, "this head has no resident or streamed form on this GPU", err);
    if (wish->groups && (!f || !groups_find(c, &f->args, &groups)))
        return persistent_refuse("GROUPS", 1, "this head has no form in groups on this GPU", err);
    if (!f) return MAR_OK;
    cudaError_t e = few ? resident_try(c, f, few) : cudaSuccess;
    if (e == cudaSuccess && wish->groups) name = "GROUPS", e = groups_try(c, f, &groups);
    if (e == cudaSuccess && wish->groups) e = groups_try_speculation(c, f, &groups);
    e = cuda_tried(c, e);
    snprintf(why, sizeof why, "launching the head's kernels: %s", cudaGetErrorString(e));
    if (e != cudaSuccess) return persistent_refuse(name, 1, why, err);
    f->few = few, f->groups = groups;
    return MAR_OK;
}

/* Tries the forms from the largest clusters to none, or only the form that is wished for. */
mar_status persistent_create(cuda_queue *c, const kern_head_spec *spec, kern_head *h, mar_err *how, mar_err *err)
{
    mar_err refused = {};
    persistent_wish wish;
    persistent_head *f = NULL;
    mar_status status = persistent_read_wishes(&wish, err);
    const int largest = c->device->major >= 9 ? PERSISTENT_PARTS : 1, last = wish.cluster ? wish.cluster : 1;
    for (int n = wish.cluster ? wish.cluster : largest; n >= last && status == MAR_OK && !f; n /= 2)
        status = persistent_make(c, spec, h->norms, n, &f, &refused, err);
    h->persistent = f;
    if (f) f->word_rows = wish.words ? (int)PERSISTENT_WORD_ROWS : 0;
    if (status == MAR_OK && (wish.few || wish.groups)) status = persistent_add_forms(c, spec, &wish, h, err);
    if (f) {
        persistent_describe(f, h->streamed != NULL, &refused, how);
        return status;
    }
    (void)err_set(how, status, "%s",
                  refused.text[0] ? refused.text : "no form of the persistent kernel fits this head on this GPU");
    if (status == MAR_OK && wish.cluster)
        return err_set(err, MAR_EBACKEND, "the environment variable MAR_CUDA_HEAD_CLUSTER is %d: %s", wish.cluster,
                       how->text);
    return status;
}

void persistent_free(kern_device *d, persistent_head *f)
{
    if (!f) return;
    cuda_free(d, f->weights);
    cuda_free(d, f->floats);
    free(f);
}
