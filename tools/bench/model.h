/* A model of the time of an image on a GPU: from constants of the machine, assumed or measured. */
#ifndef TOOLS_BENCH_MODEL_H
#define TOOLS_BENCH_MODEL_H

#include <stddef.h>

typedef struct cJSON cJSON;

typedef enum {
    MODEL_BARRIER,
    MODEL_CLUSTER_BARRIER,
    MODEL_LAUNCH,
    MODEL_RAMP,
    MODEL_L2_RATE,
    MODEL_MEMORY_RATE,
    MODEL_MATRIX_RATE,
    MODEL_F32_RATE,
    MODEL_CLOCK,
    MODEL_PROCESSORS,
    MODEL_CACHE,
    MODEL_CLUSTER,
    MODEL_CLUSTERS,
    MODEL_REJECTION,
    MODEL_CALLS,
    MODEL_WAIT,
    MODEL_POWER,
    MODEL_CONSTANTS
} model_constant;

/* The constants. */
typedef struct {
    const char *name; /* in a file: "barrier_seconds" */
    const char *meaning;
    const char *unit; /* that it is printed in */
    double scale;     /* 1 / that unit */
    double assumed;   /* value without a measurement */
} model_constant_info;
extern const model_constant_info model_constant_infos[MODEL_CONSTANTS];

typedef struct {
    double value[MODEL_CONSTANTS];
    int measured[MODEL_CONSTANTS]; /* 1: from a file */
} model_constants;

/* All as assumed. */
void model_constants_init(model_constants *c);
/* Takes those that the object "constants" of a record has, which must not be of a CPU. Returns 0; or 1 with the reason
 * in why, char [size]. */
int model_constants_read(model_constants *c, const cJSON *record, char *why, size_t size);

/* The shapes of a model that its time depends on. */
typedef struct {
    const char *name;
    int width, blocks; /* of the encoder, and as many of the decoder */
    int head_width, head_depth;
} model_shape;

enum { MODEL_SHAPES = 3 };
extern const model_shape model_shapes[MODEL_SHAPES]; /* MAR-B, MAR-L, MAR-H */

enum {
    MODEL_SEQ = 256,             /* tokens of an image */
    MODEL_DIFFUSION_STEPS = 100, /* of a token's chain */
    MODEL_CONDITIONS = 2,        /* guidance */
};

/* An image, with 100 diffusion steps and guidance. */
typedef struct {
    double passes; /* of the transformer, one after another */
    double calls;  /* of the head, one after another */
    /* Seconds. Modulation: and the image decoder. Judging: modulation and evaluations of drafts and candidates under
     * the other law. Waiting: of the host, and what runs meanwhile nowhere. */
    double transformer, modulation, head, judging, waiting, total;
} model_times;

/* One of a batch of so many images, in so many autoregressive steps, 1..MODEL_SEQ. window: of speculation inside the
 * head, 4, 8, 16 or 32; 0 for the plain chain. */
model_times model_image(const model_constants *c, const model_shape *s, int batch, int steps, int window);

/* bench_model_path.c: the same of an image by --spec path with drafts from the model's own last conditions, `gamma`
 * autoregressive steps a round. known [steps + 1]: as of model_schedule. Of another number of tokens than MODEL_SEQ
 * only passes and calls mean something. f32: the head computes in f32, which --head_dtype auto means with spec path. */
model_times model_path_image(const model_constants *c, const model_shape *s, const int *known, int steps, int gamma,
                             int window, int f32);
/* The probability that a path is accepted whose conditions are late by so many tokens of `seq`. */
double model_path_accepted(const model_constants *c, double late, double seq);

/* Parts of an image, in seconds. */
/* known [steps + 1]: the tokens that are known before each autoregressive step, and behind the last. */
void model_schedule(int steps, int *known);
/* A pass over n contexts of each of `batch` images, with known [n] tokens. */
double model_pass(const model_constants *c, const model_shape *s, const int *known, int n, int batch);
/* The modulation of so many rows: conditions * tokens * diffusion steps. */
double model_modulation(const model_constants *c, const model_shape *s, double rows, int f32);
double model_image_decoder(const model_constants *c);
/* Draws so many tokens; window as in model_image. Adds the calls of the head to *calls. */
double model_chain(const model_constants *c, const model_shape *s, int tokens, int window, int f32, double *calls);

/* Products of the head whose weights stay in the shared memory of the persistent kernel's grid. */
int model_resident(const model_constants *c, int width, int depth);
/* Seconds of a phase of the persistent kernel up to its barrier, of a step of the chain, and of a round of speculation
 * with so many rows, at most 64. */
double model_fc1(const model_constants *c, int width, int depth, int rows);
double model_fc2(const model_constants *c, int width, int depth, int rows);
double model_step(const model_constants *c, int width, int depth, int rows);
double model_round(const model_constants *c, int width, int depth, int rows);
/* Seconds of a step by products and kernels between them, in bf16 or f32. */
double model_products(const model_constants *c, int width, int depth, int rows);
double model_products_f32(const model_constants *c, int width, int depth, int rows);

/* bench_model_time.c: mar bench --model_time. file: NULL, or what `mar bench --micro --json` wrote. Returns the exit
 * status. */
int bench_model_time(const char *file, int json);

#endif
