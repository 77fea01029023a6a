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
    DEMO_BATCH = 3  /* most images of a batch */
};

typedef struct {
    mar *m;
    mar_model *model, *draft;
    mar_vae *vae; /* may be NULL */
} demo;

/* Open the demo models on the CPU, in f32 or in `dtype`. m is NULL if the processor does not support dtype. */
demo demo_open(int threads);
demo demo_open_in(mar_dtype dtype, int threads);
void demo_close(demo d);

/* Short runs, one with each accelerator of continuous tokens. */
enum { DEMO_RUNS = 12 };
extern const struct demo_run {
    const char *options;
    int draft; /* the parameters name the draft model */
} demo_runs[DEMO_RUNS];
mar_params demo_params(const demo *d, int run);

/* These fail the test if a call fails. Every batch has the same classes. */
mar_session *demo_session(const demo *d, const mar_params *p, int batch);
void demo_begin(mar_session *s, int n);
void demo_finish(mar_session *s);
/* Generates a whole batch: tokens [n][seq_len][token_dim]. */
void demo_generate(mar_session *s, int n, float *tokens);
/* Runs a batch until a call fails. Returns that call's status, or MAR_OK. */
mar_status demo_run(mar_session *s, int n);

/* Checks mar.h's promises about a session whose batch was dropped: its calls fail with reasons containing `why`. */
void demo_assert_dropped(mar_session *s, const char *why);

/* Returns how many of n images the demo's classifier recognises as their label's digit. */
int demo_recognised(const uint8_t *rgb, const int *label, int n);
extern const char *const demo_names[10]; /* "zero", "one", ... */
/* Enlarges the digit at `place` of three in a row to a whole image (separate in demo/digits.py). */
void demo_enlarge(const uint8_t *rgb, int place, uint8_t out[DEMO_BYTES]);

void assert_says(const char *error, const char *what);

#endif
