/* The demo models for tests of the public calls. */
#ifndef TESTS_DEMO_H
#define TESTS_DEMO_H

#include "tests/support/support.h"

/* The demo's images: tokens [DEMO_SEQ][DEMO_CHANNELS], pixels uint8_t [DEMO_SIDE][DEMO_SIDE][3]. */
enum {
    DEMO_SEQ = 64,
    DEMO_CHANNELS = 8,
    DEMO_TOKENS = DEMO_SEQ * DEMO_CHANNELS,
    DEMO_SIDE = 32,
    DEMO_BYTES = DEMO_SIDE * DEMO_SIDE * 3,
    DEMO_FIRST = 5, /* the first image of demo_begin */
    DEMO_BATCH = 3  /* the most images of it */
};

typedef struct {
    mar *m;
    mar_model *model, *draft;
    mar_vae *vae; /* may be NULL */
} demo;

/* On the CPU, in f32 or in `dtype`; m is NULL if the processor has none of it. */
demo demo_open(int threads);
demo demo_open_in(mar_dtype dtype, int threads);
void demo_close(demo d);

/* A short run with each accelerator of continuous tokens. */
enum { DEMO_RUNS = 12 };
extern const struct demo_run {
    const char *options;
    int draft; /* the parameters name the draft model */
} demo_runs[DEMO_RUNS];
mar_params demo_params(const demo *d, int run);

/* These fail the test if a call fails. The classes of a batch are always the same. */
mar_session *demo_session(const demo *d, const mar_params *p, int batch);
void demo_begin(mar_session *s, int n);
void demo_finish(mar_session *s);
/* All of a batch: tokens [n][seq_len][token_dim]. */
void demo_generate(mar_session *s, int n, float *tokens);
/* A batch up to its first call that fails, whose status it returns. */
mar_status demo_run(mar_session *s, int n);

/* What mar.h says of a session whose batch was dropped: `why` is in its calls' reasons. */
void demo_assert_dropped(mar_session *s, const char *why);

/* How many of n images show the digit of their label to the demo's classifier. */
int demo_recognised(const uint8_t *rgb, const int *label, int n);

void assert_says(const char *error, const char *what);

#endif
