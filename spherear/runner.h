/* SphereAR's transformer at work on several images at a time: passes over class tokens and tokens, which give the
 * conditions z of the tokens after them.
 *
 * A sequence is an image in one branch: with guidance an image has two. Position p of a sequence has slot p of its
 * cache. A pass writes its rows' keys and values, so tokens behind a position may be computed anew with other values.
 */
#ifndef SPHEREAR_RUNNER_H
#define SPHEREAR_RUNNER_H

#include "llamagen/pass.h"
#include "spherear/model.h"

typedef struct {
    kern_queue *k;
    const sphere_model *model;
    int images, branches; /* maximum images; sequences of an image */
    int rows;             /* maximum rows of a sequence in a pass */
    const char *part;     /* prefix of its layers' names (kern_watch): "", or "draft: " */
    gpt_pass pass;
    gpt_recordings recordings;
    int *source; /* host [rows of a pass] row of the tokens that a row embeds, or of the class table */
    int classes; /* 1: the listed rows are class tokens */
    int z_rows;  /* rows whose z is wanted */
    int *z_row;  /* host [rows of a pass] those rows */
    int *z_next; /* host [rows of a pass] number of the token after it */
    int *z_to;   /* host [rows of a pass] row of z that it becomes */
    long passes;
    double seconds, flop;

    /* Backend memory, from sphere_runner_lay_out. */
    float *token;    /* [rows of a pass][C] */
    float *embedded; /* [rows of a pass][D] before emb_norm */
    float *normed;   /* [rows of a pass][D] after the last norm */
} sphere_runner;

/* Creates a runner for up to `images` images on queue k. A sequence has at most `tokens` tokens in a pass. k and model
 * must outlive it. Returns MAR_ENOMEM without memory. */
mar_status sphere_runner_create(kern_queue *k, const sphere_model *model, int images, int branches, int tokens,
                                sphere_runner *out, mar_err *err);
void sphere_runner_free(sphere_runner *r);
size_t sphere_runner_lay_out(sphere_runner *r, char *base); /* as diff_chain_lay_out */
/* Prepares passes over class tokens of up to `images` images, and over up to `tokens` tokens of each. */
mar_status sphere_runner_plan(sphere_runner *r, int images, int tokens, mar_err *err);

/* Starts the list of a pass's rows. */
void sphere_runner_begin(sphere_runner *r);
/* Adds the class tokens of a sequence, label 0..classes (classes: the null class). z of token 0 becomes row `to`. */
void sphere_runner_add_class(sphere_runner *r, int image, int branch, int label, int to);
/* Adds tokens first .. first+n-1 of a sequence: rows source[0..n-1] of the tokens of sphere_runner_run. All earlier
 * tokens have been computed. z of the token after each of the last `wanted` tokens becomes row offset + to[0..wanted-1]
 * of z. */
void sphere_runner_add(sphere_runner *r, int image, int branch, int first, int n, const int *source, int wanted,
                       int offset, const int *to);
/* Runs the listed pass. tokens is backend float [..][C], not read for class tokens. z is backend float [..][D]. A pass
 * has class tokens or tokens, not both. */
void sphere_runner_run(sphere_runner *r, const float *tokens, float *z);

#endif
