/* The formulas of mar bench --model_time. Bytes, products, barriers and kernels are counts; what one of each takes is a
 * constant; that a sum of them is the time is the model. What is only a guess says so. */
#include "tools/bench/model.h"

#include "tools/cli/text.h"

#include <cjson/cJSON.h>
#include <math.h>
#include <string.h>

const model_constant_info model_constant_infos[MODEL_CONSTANTS] = {
    [MODEL_BARRIER] = {"barrier_seconds", "barrier of the head's grid", "us", 1e6, 1.2e-6},
    [MODEL_CLUSTER_BARRIER] = {"cluster_barrier_seconds", "barrier of a cluster", "us", 1e6, 0.3e-6},
    [MODEL_LAUNCH] = {"launch_seconds", "least operation in a recording", "us", 1e6, 2.0e-6},
    [MODEL_RAMP] = {"ramp_seconds", "what a kernel's start and end add to that", "us", 1e6, 2.0e-6},
    [MODEL_L2_RATE] = {"l2_bytes_per_second", "reads from the L2 cache", "TB/s", 1e-12, 5.5e12},
    [MODEL_MEMORY_RATE] = {"memory_bytes_per_second", "device memory", "TB/s", 1e-12, 4.3e12},
    [MODEL_MATRIX_RATE] = {"flop_per_second", "matrix products in bf16", "TFLOP/s", 1e-12, 790e12},
    /* the share of an H200's data sheet that bf16 has, 0.8 of 67 */
    [MODEL_F32_RATE] = {"f32_flop_per_second", "matrix products in f32, without TF32", "TFLOP/s", 1e-12, 53e12},
    [MODEL_CLOCK] = {"clock_hz", "clock", "GHz", 1e-9, 1.9e9},
    [MODEL_PROCESSORS] = {"multiprocessors", "multiprocessors", "", 1, 132},
    [MODEL_CACHE] = {"cache_bytes", "L2 cache", "MB", 1e-6, 50e6},
    [MODEL_CLUSTER] = {"cluster_blocks", "blocks of a cluster of the head's grid", "", 1, 8},
    [MODEL_CLUSTERS] = {"clusters_at_once", "clusters that the GPU holds at once", "", 1, 16},
    /* 3000 instructions for the tilt and 16 * 90 for a candidate (bench/README.md), 4 cycles each, are 9.3 us. */
    [MODEL_REJECTION] = {"rejection_seconds", "drawing one residual", "us", 1e6, 10e-6},
    [MODEL_CALLS] = {"calls_per_token", "calls of the head a token at --head_spec 8", "", 1, 14.3}, /* of the demo */
    [MODEL_WAIT] = {"wait_seconds", "the host's wait for a result, and its next launch", "us", 1e6,
                    20e-6}, /* a guess */
    [MODEL_POWER] = {"acceptance_power", "acceptance of a path is the demo's to the power of", "", 1, 1},
};

void model_constants_init(model_constants *c)
{
    *c = (model_constants){0};
    for (int i = 0; i < MODEL_CONSTANTS; i++) c->value[i] = model_constant_infos[i].assumed;
}

static int constant_of(const char *name)
{
    for (int i = 0; i < MODEL_CONSTANTS; i++)
        if (strcmp(model_constant_infos[i].name, name) == 0) return i;
    return -1;
}

static double larger(double a, double b)
{
    return a > b ? a : b;
}

/* Of a number above 0, whether the constant may be it. */
static int is_possible(model_constant which, double x)
{
    if (which == MODEL_CLUSTER) return x == 1 || x == 2 || x == 4 || x == 8;
    if (which == MODEL_PROCESSORS || which == MODEL_CLUSTERS) return x == floor(x) && x <= 65536;
    return 1;
}

int model_constants_read(model_constants *c, const cJSON *record, char *why, size_t size)
{
    const cJSON *object = cJSON_GetObjectItemCaseSensitive(record, "constants"), *item;
    const char *backend = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(record, "backend"));
    if (backend && strncmp(backend, "cpu ", 4) == 0)
        return text_fail(why, size, "was measured on a CPU (%s), expected a GPU", backend);
    if (!cJSON_IsObject(object))
        return text_fail(why, size, "has no object \"constants\", expected what mar bench --micro --json wrote");
    cJSON_ArrayForEach(item, object)
    {
        const int i = constant_of(item->string);
        if (i < 0) return text_fail(why, size, "constant %s: there is none of that name", item->string);
        if (!cJSON_IsNumber(item) || !(item->valuedouble > 0) || !isfinite(item->valuedouble))
            return text_fail(why, size, "constant %s: expected a number above 0", item->string);
        if (!is_possible((model_constant)i, item->valuedouble))
            return text_fail(why, size, "constant %s: expected %s", item->string,
                             i == MODEL_CLUSTER ? "1, 2, 4 or 8" : "a whole number from 1 to 65536");
        c->value[i] = item->valuedouble;
        c->measured[i] = 1;
    }
    if (!c->measured[MODEL_CLUSTERS] && (c->measured[MODEL_CLUSTER] || c->measured[MODEL_PROCESSORS]))
        c->value[MODEL_CLUSTERS] = larger(floor(c->value[MODEL_PROCESSORS] / c->value[MODEL_CLUSTER]), 1);
    return 0;
}

/* tools/dev/random_checkpoint.py has the same shapes. */
const model_shape model_shapes[MODEL_SHAPES] = {
    {"MAR-B", 768, 12, 1024, 6},
    {"MAR-L", 1024, 16, 1280, 8},
    {"MAR-H", 1280, 20, 1536, 12},
};

enum {
    BUFFER = 64,
    CHANNELS = 16,
    MOST_ROWS = 64, /* of the persistent kernel */
    TURNS = 4,      /* tokens of a launch of it for a slot, at most (kernels/cuda/speculation.cu) */
    PARTS = 8,      /* of the channels, in it */
};

/* --- the persistent kernel ---------------------------------------------------------------------------------------- */

/* How it divides a head: persistent_choose and persistent_carve (kernels/cuda) with the shared memory of sm_90. */
typedef struct {
    double cluster;  /* blocks of a cluster, which share the 8 parts of the channels */
    double clusters; /* of the grid */
    double pairs;    /* pairs of mmas of a part, 32 channels each */
    double tiles;    /* of 8 columns, of a cluster */
    double chunk;    /* tiles of 16 rows that a product takes at a time */
    double resident; /* products whose weights stay in shared memory */
} division;

/* Bytes of shared memory of a block beside the weights. */
static double other_bytes(const division *d, double depth)
{
    const double own = ceil(4 * d->tiles / d->cluster); /* pairs of columns of a block */
    const double inbox = PARTS * own * d->chunk * 128, least = 16384;
    const double operand = larger(d->chunk * PARTS / d->cluster * d->pairs * 1024, MOST_ROWS * PARTS * 8);
    return 16 * depth * own + 16 * ceil(own * (CHANNELS + 1) / 2) + MOST_ROWS * 16 + larger(inbox + operand, least);
}

/* Best are all weights in shared memory, then two places that the others are copied to, then none; then the largest
 * chunk. */
static division divide(const model_constants *c, double width, double depth)
{
    const double shared = 232448, products = 2 * depth, leasts[] = {products, 2, 0};
    division d = {.cluster = c->value[MODEL_CLUSTER], .pairs = ceil(width / 32 / PARTS)};
    d.tiles = ceil(width / 8 / c->value[MODEL_CLUSTERS]);
    d.clusters = ceil(width / 8 / d.tiles);
    const double slice = d.tiles * PARTS / d.cluster * d.pairs * 512; /* of a product's weights */
    for (int i = 0; i < 3; i++)
        for (d.chunk = MOST_ROWS / 16; d.chunk >= 1; d.chunk /= 2) {
            const double room = floor((shared - other_bytes(&d, depth)) / slice);
            if (room < leasts[i]) continue;
            d.resident = room >= products ? products : leasts[i] > 0 ? room - 2 : room;
            return d;
        }
    d.chunk = 1;
    return d;
}

int model_resident(const model_constants *c, int width, int depth)
{
    return (int)divide(c, width, depth).resident;
}

/* Rows that a block normalises at a time: 8 threads have a row's part. */
static double at_a_time(const division *d)
{
    return 256 / 8 / PARTS * d->cluster;
}

/* After a barrier: the first load's way to the L2 cache, and threads that wait for each other within a block. 650
 * cycles are a guess. */
static double latency(const model_constants *c)
{
    return 650 / c->value[MODEL_CLOCK];
}

/* A thread normalises 4 * pairs channels of each row's part it has. Instructions are counts in the machine code of
 * sm_90a (docs/persistent.md): 218 for 16 channels, and 123 that merge a row's moments. 2 cycles of each are a guess.
 */
static double normalise(const model_constants *c, const division *d, double rows)
{
    const double elements = 4 * d->pairs * ceil(rows / at_a_time(d));
    return 2 * (123 + 218.0 / 16 * elements) / c->value[MODEL_CLOCK];
}

/* Every cluster reads an operand, `size` bytes an element. */
static double read_operand(const model_constants *c, const division *d, double width, double rows, double size)
{
    return d->clusters * rows * width * size / c->value[MODEL_L2_RATE];
}

/* The blocks of a cluster meet once when the parts' sums are there, and twice more for each chunk after the first. */
static double meet(const model_constants *c, const division *d, double rows, double before)
{
    const double chunks = ceil(ceil(rows / 16) / d->chunk);
    return d->cluster > 1 ? (before + 2 * chunks - 1) * c->value[MODEL_CLUSTER_BARRIER] : 0;
}

/* Up to 16 rows a block of a cluster, each cluster normalises all rows. A row is read in f32; modulation is loaded
 * before the barrier, as far as registers keep it: of other rows x is read twice, and shift and scale once, after it.
 */
double model_fc1(const model_constants *c, int width, int depth, int rows)
{
    const division d = divide(c, width, depth);
    const double ends = latency(c) + c->value[MODEL_BARRIER], w = width;
    const double kept = (d.pairs <= 2 ? 4 : d.pairs <= 4 ? 2 : 1) * at_a_time(&d);
    if (rows <= 4 * at_a_time(&d))
        return ends + normalise(c, &d, rows) + read_operand(c, &d, w, rows, 4) +
               read_operand(c, &d, w, larger(rows - kept, 0), 8) + meet(c, &d, rows, 1);
    /* Normalised once over the grid; a barrier; then every cluster reads the operand. */
    const double each = ceil(rows / (d.clusters * d.cluster)), once = 256 / 8 / PARTS;
    const division alone = {.cluster = 1, .pairs = d.pairs};
    return 2 * ends + ceil(each / once) * normalise(c, &alone, 1) + rows * w * 10 / c->value[MODEL_L2_RATE] +
           read_operand(c, &d, w, rows, 2) + meet(c, &d, rows, 0);
}

double model_fc2(const model_constants *c, int width, int depth, int rows)
{
    const division d = divide(c, width, depth);
    return latency(c) + read_operand(c, &d, width, rows, 2) + meet(c, &d, rows, 0) + c->value[MODEL_BARRIER];
}

/* Weights that are streamed come from the L2 cache as far as 60 % of it may be set aside, else from memory, while the
 * phases go on. */
static double stream(const model_constants *c, double width, double depth)
{
    const division d = divide(c, width, depth);
    const double streamed = (2 * depth - d.resident) * width * PARTS * d.pairs * 64;
    const double kept = fmin(streamed, 0.6 * c->value[MODEL_CACHE]);
    return kept / c->value[MODEL_L2_RATE] + (streamed - kept) / c->value[MODEL_MEMORY_RATE];
}

/* 2*depth + 2 barriers: one of each phase, of the input and of the output; `depth` more above 16 rows a block of a
 * cluster. The mmas of the products are left out. */
double model_step(const model_constants *c, int width, int depth, int rows)
{
    const double ends = 2 * (c->value[MODEL_BARRIER] + latency(c));
    const double phases = depth * (model_fc1(c, width, depth, rows) + model_fc2(c, width, depth, rows));
    return larger(phases + ends, stream(c, width, depth));
}

/* A step, a barrier in front of it, and the turn of the tokens: nearly each round of several tokens has a rejection,
 * and its residual is drawn while the grid waits. */
double model_round(const model_constants *c, int width, int depth, int rows)
{
    return model_step(c, width, depth, rows) + c->value[MODEL_BARRIER] + latency(c) + 0.97 * c->value[MODEL_REJECTION];
}

/* --- many rows: products, and kernels between them ------------------------------------------------------------------
 */

/* Four kernels a block, three more for input, output and the step. Bytes a row and block: the norm reads 4W and writes
 * 2W, fc1 4W, silu 4W, fc2 6W, gate and sum 12W; and a modulation row. In f32 all are 4W but for the norm, silu and
 * fc2, which are 8W, and gate and sum. The weights come from memory while products go on. */
static double products(const model_constants *c, int width, int depth, int rows, int f32)
{
    const double w = width, size = f32 ? 4 : 2, flop = 2.0 * rows * w * (2.0 * depth * w + 3.0 * CHANNELS);
    const double mod = 3.0 * size * depth * w + 8.0 * w, bytes = rows * ((f32 ? 40.0 : 32.0) * w * depth + mod);
    const double multiplied = larger(flop / c->value[f32 ? MODEL_F32_RATE : MODEL_MATRIX_RATE],
                                     2 * depth * w * w * size / c->value[MODEL_MEMORY_RATE]);
    return multiplied + bytes / c->value[MODEL_MEMORY_RATE] +
           (4 * depth + 3) * (c->value[MODEL_LAUNCH] + c->value[MODEL_RAMP]);
}

double model_products(const model_constants *c, int width, int depth, int rows)
{
    return products(c, width, depth, rows, 0);
}

double model_products_f32(const model_constants *c, int width, int depth, int rows)
{
    return products(c, width, depth, rows, 1);
}

/* --- an image -------------------------------------------------------------------------------------------------------
 */

void model_schedule(int steps, int *known)
{
    known[0] = 0;
    for (int i = 0, masked = MODEL_SEQ; i < steps; i++) { /* the cosine schedule, mar/masked/steps.c */
        int after = (int)floor(MODEL_SEQ * cos(acos(-1.0) / 2 * (i + 1) / steps));
        if (after > masked - 1) after = masked - 1;
        if (after < 1) after = 1;
        masked = i == steps - 1 ? 0 : after;
        known[i + 1] = MODEL_SEQ - masked;
    }
}

/* A pass of some transformer blocks over so many rows, of sequences of `length`. Products: 12 D^2 multiply-adds a row,
 * attention 2 D a pair. Seven kernels a block. Bytes a row and block: 64 D, the operands and results of four products,
 * attention and two norms, and the f32 stream that two of them add to, in the L2 cache where it has room for a hidden
 * layer. The weights come from memory while products go on. */
static double transformer(const model_constants *c, double width, double blocks, double rows, double length)
{
    const double flop = 2 * rows * blocks * width * (12 * width + 2 * length);
    const double products =
        larger(flop / c->value[MODEL_MATRIX_RATE], 24 * width * width * blocks / c->value[MODEL_MEMORY_RATE]);
    const int fits = rows * 8 * width < c->value[MODEL_CACHE];
    const double kernels = 7 * blocks * (c->value[MODEL_LAUNCH] + c->value[MODEL_RAMP]);
    return products + blocks * rows * 64 * width / c->value[fits ? MODEL_L2_RATE : MODEL_MEMORY_RATE] + kernels;
}

double model_pass(const model_constants *c, const model_shape *s, const int *known, int n, int batch)
{
    double rows = 0, pairs = 0; /* of the encoder */
    for (int i = 0; i < n; i++) {
        const double length = BUFFER + known[i], sequences = MODEL_CONDITIONS * (double)batch;
        rows += sequences * length;
        pairs += sequences * length * length;
    }
    const double length = BUFFER + MODEL_SEQ, sequences = MODEL_CONDITIONS * (double)batch * n;
    return transformer(c, s->width, s->blocks, rows, pairs / rows) +
           transformer(c, s->width, s->blocks, sequences * length, length);
}

/* The modulation of all diffusion steps: 3 depth + 2 products of W^2 a row, whose results are written once. */
double model_modulation(const model_constants *c, const model_shape *s, double rows, int f32)
{
    const double w = s->head_width, macs = w * w * (3.0 * s->head_depth + 2), size = f32 ? 4 : 2;
    const double bytes = size * macs + rows * (3.0 * size * s->head_depth * w + 8 * w);
    return 2 * macs * rows / c->value[f32 ? MODEL_F32_RATE : MODEL_MATRIX_RATE] + bytes / c->value[MODEL_MEMORY_RATE] +
           5 * (c->value[MODEL_LAUNCH] + c->value[MODEL_RAMP]);
}

/* KL-16 at 256x256: 0.22 TFLOP by `mar bench`, 130 kernels and 5 GB by a rough count of its layers. One at a time. */
double model_image_decoder(const model_constants *c)
{
    return 0.22e12 / c->value[MODEL_MATRIX_RATE] + 5e9 / c->value[MODEL_MEMORY_RATE] +
           130 * (c->value[MODEL_LAUNCH] + c->value[MODEL_RAMP]);
}

/* Calls of the head a token, of the demo, by window (bench/README.md): at W = 8 this is the constant's assumed value.
 */
double model_calls(const model_constants *c, int window)
{
    static const struct {
        int window;
        double calls;
    } demo[] = {{4, 26.3}, {8, 14.3}, {16, 8.7}, {32, 6.2}};
    const double scale = c->value[MODEL_CALLS] / model_constant_infos[MODEL_CALLS].assumed;
    for (size_t i = 0; i < sizeof demo / sizeof *demo; i++)
        if (demo[i].window == window) return scale * demo[i].calls;
    return MODEL_DIFFUSION_STEPS;
}

/* How many calls more the slowest of some tokens needs: the demo's has 15.4, 16.3 and 17.1 at W = 8 among 4, 16 and 64
 * tokens, 9.9, 11.0 and 12.0 at W = 16 (`mar bench --batch N --head_spec W`). */
static double slowest(double tokens)
{
    return 0.75 * log(tokens);
}

/* Up to TURNS tokens a slot one launch draws them (kernels/cuda/speculation.cu), in bf16; else products evaluate
 * between two small kernels, and the host looks about twice who is finished. */
double model_chain(const model_constants *c, const model_shape *s, int tokens, int window, int f32, double *calls)
{
    const int rows = MODEL_CONDITIONS * tokens, w = s->head_width, depth = s->head_depth;
    if (tokens == 0) return 0;
    if (window == 0) {
        *calls += MODEL_DIFFUSION_STEPS;
        return MODEL_DIFFUSION_STEPS *
               (rows <= MOST_ROWS && !f32 ? model_step(c, w, depth, rows) : products(c, w, depth, rows, f32));
    }
    const int fit = MOST_ROWS / (MODEL_CONDITIONS * window), slots = tokens < fit ? tokens : fit;
    const double mean = model_calls(c, window);
    if (tokens <= TURNS * fit && !f32) {
        const double rounds = ceil((double)tokens / slots) * mean + slowest(slots);
        *calls += rounds;
        return rounds * model_round(c, w, depth, MODEL_CONDITIONS * window * slots);
    }
    const double rounds = mean + slowest(tokens), small = c->value[MODEL_LAUNCH] + c->value[MODEL_RAMP];
    *calls += rounds;
    return rounds * (products(c, w, depth, rows * window, f32) + 2 * small + 0.97 * c->value[MODEL_REJECTION]) +
           2 * c->value[MODEL_WAIT];
}

model_times model_image(const model_constants *c, const model_shape *s, int batch, int steps, int window)
{
    model_times t = {0};
    int known[MODEL_SEQ + 1];
    model_schedule(steps, known);
    for (int i = 0; i < steps; i++) {
        const int tokens = batch * (known[i + 1] - known[i]);
        t.transformer += model_pass(c, s, &known[i], 1, batch);
        t.modulation += model_modulation(c, s, (double)MODEL_CONDITIONS * tokens * MODEL_DIFFUSION_STEPS, 0);
        t.head += model_chain(c, s, tokens, window, 0, &t.calls);
    }
    t.passes = steps;
    t.transformer /= batch;
    t.modulation = t.modulation / batch + model_image_decoder(c);
    t.head /= batch;
    t.total = t.transformer + t.modulation + t.head;
    return t;
}
