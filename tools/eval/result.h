/* What an evaluation has found: the numbers, the protocol they were made by, and what the run took. It is all that a
 * report, a sweep and the printed lines need; RUN/result.json has it. */
#ifndef TOOLS_EVAL_RESULT_H
#define TOOLS_EVAL_RESULT_H

#include "mar.h"

#include <stddef.h>

typedef struct cJSON cJSON;

enum { EVAL_CURVE_MAX = 1024, EVAL_WARNINGS_MAX = 12, EVAL_TEXT = 512 };

typedef struct {
    /* The numbers; those that could not be had are NaN, and why_... says why, one line. */
    double fid, sfid;
    double is_mean, is_deviation;     /* torch-fidelity's order and splits */
    double is_adm;                    /* ADM's: splits of 5000 in the order of --save_npz */
    double precision, recall;         /* ADM-style */
    char why_no_sfid[EVAL_TEXT];      /* "" if there is one */
    char why_no_precision[EVAL_TEXT]; /* the same */
    double accuracy; /* images that the demo's classifier takes for their class, 0..1; NaN without --features demo */

    /* The protocol, one line: reference file and its hash, weights file and hash, class sampling, quantiser, order of
     * IS, number of images, steps, cfg. */
    char protocol[5 * EVAL_TEXT];
    char warnings[EVAL_WARNINGS_MAX][EVAL_TEXT]; /* in words: "FID of fewer than 10000 images is biased: ..." */
    int warning_count;

    long images;               /* N */
    long reference_images;     /* 0: unknown */
    char model[EVAL_TEXT];     /* base name, or "demo"; "" of images made elsewhere */
    char published[EVAL_TEXT]; /* the published model that this one is by its shape, "MAR-B"; "" for none */
    char guarantee[EVAL_TEXT]; /* mar_session_guarantee; "" of images made elsewhere */
    char ways[EVAL_TEXT];      /* run_options_ways: options that make it faster; "" for plain sampling */
    char backend[EVAL_TEXT];   /* mar_backend_description of the process that has merged */

    /* Speed. Seconds are sums over the processes. */
    double generate_s; /* of making and decoding the images */
    double features_s; /* of the network that judges them */
    double write_s;    /* of shards and image files */
    double merge_s;    /* of adding up, FID and the other numbers */
    int processes;     /* that made shards at a time; one that was stopped and started again is one */
    mar_stats stats;   /* summed over the batches; all 0 of images made elsewhere */

    /* What became of drafts, by autoregressive step (mar_session_fates): accepted, replaced and all tokens of step i.
     */
    int steps; /* 0: none were verified */
    long accepted[EVAL_CURVE_MAX], replaced[EVAL_CURVE_MAX], tokens[EVAL_CURVE_MAX];

    /* The same by how many steps late a draft was (mar_session_lateness). */
    int latest; /* entries; 0: no draft was late */
    long accepted_late[EVAL_CURVE_MAX], replaced_late[EVAL_CURVE_MAX];
} eval_result;

/* Writes it to `path`, whole or not at all. Returns 0, or 1 after printing an error. */
int eval_result_write(const eval_result *r, const char *path);
/* Reads it back. Returns 0, or 1 after printing what is wrong with the file. */
int eval_result_read(const char *path, eval_result *r);
/* The same as a JSON record that tool_json began, to which the caller may add: "numbers" is the same for every number
 * of processes, "run" is what it took and on what. Numbers have 17 digits, so that all bits survive; NaN is null. */
cJSON *eval_result_json(const eval_result *r);
/* Adds "numbers" and "run" to an object. */
void eval_result_add(const eval_result *r, cJSON *object);
/* Prints the numbers with the protocol line and the warnings. */
void eval_result_print(const eval_result *r);
/* Prints where the page of a run in `directory` is. */
void eval_result_print_page(const char *directory);

/* Seconds per image: generation and decoding. */
double eval_result_seconds(const eval_result *r);
/* Images per second of all processes together: generation, judging and writing. 0: unknown. */
double eval_result_rate(const eval_result *r);
/* What `fid` is to be called: "FID", or "Fréchet distance" of the demo's features, which are not Inception's. */
const char *eval_result_distance(const eval_result *r);

#endif
