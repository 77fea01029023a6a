/* The result of an evaluation: numbers, protocol and cost. RUN/result.json has it. The page and the printed lines need
 * nothing else. */
#ifndef TOOLS_EVAL_RESULT_H
#define TOOLS_EVAL_RESULT_H

#include "mar.h"
#include "mar_measure.h"

#include <stddef.h>

typedef struct cJSON cJSON;

enum { EVAL_CURVE_MAX = 1024, EVAL_WARNINGS_MAX = 12, EVAL_TEXT = 512 };

typedef struct {
    /* The numbers. A missing one is NaN, and why_... has the reason, one line. */
    double fid, sfid;
    double kid, kid_deviation;        /* of subsets, as torch-fidelity computes them */
    double is_mean, is_deviation;     /* torch-fidelity's order and splits */
    double is_adm;                    /* ADM's: splits of 5000 in the order of --save_npz */
    double precision, recall;         /* as ADM computes them, or on VGG16 */
    double clip_cosine;               /* mean cosine of an image and its prompt in CLIP */
    double clip_score;                /* 100 times it, or 0 below 0, as in torchmetrics */
    double clip_cosine_prefixed;      /* the same with "A photo depicts " before the prompt, as in LANTERN */
    double hps_cosine;                /* mean cosine in HPS v2, as hpsv2.score has it */
    double hps_score;                 /* 100 times it, as papers have it */
    double image_reward;              /* mean score of ImageReward */
    char why_no_sfid[EVAL_TEXT];      /* "" if sfid is set */
    char why_no_kid[EVAL_TEXT];       /* "" if kid is set */
    char why_no_precision[EVAL_TEXT]; /* "" if precision and recall are set */
    double accuracy; /* share of images that the demo's classifier recognises, 0..1; NaN without --features demo */

    /* The protocol, one line: reference file and weights file with hashes, class sampling, quantiser, order of IS,
     * number of images, steps, cfg. */
    char protocol[5 * EVAL_TEXT];
    char warnings[EVAL_WARNINGS_MAX][EVAL_TEXT]; /* text: "FID of fewer than 10000 images is biased: ..." */
    int warning_count;

    long images;                  /* N */
    long reference_images;        /* 0: unknown */
    char model[EVAL_TEXT];        /* base name, or "demo"; "" for images made elsewhere */
    char published[EVAL_TEXT];    /* published model of this shape, "MAR-B"; "" for none */
    char guarantee[EVAL_TEXT];    /* mar_session_guarantee; "" for images made elsewhere */
    char accelerators[EVAL_TEXT]; /* run_options_accelerators: options that accelerate it; "" for plain sampling */
    char backend[EVAL_TEXT];      /* mar_backend_description of the process that merged */

    /* Speed, as sums over the processes. */
    double generate_s; /* generation and decoding */
    double features_s; /* the judging network */
    double write_s;    /* shards and image files */
    double merge_s;    /* summing, FID and the other numbers */
    int processes;     /* processes at work together; one that was restarted counts once */
    mar_stats stats;   /* sum over the batches; all 0 for images made elsewhere */

    /* Drafts by autoregressive step (mar_session_token_status): accepted, replaced and all tokens of step i. */
    int steps; /* 0: none were verified */
    long accepted[EVAL_CURVE_MAX], replaced[EVAL_CURVE_MAX], tokens[EVAL_CURVE_MAX];

    /* The same by staleness of the draft (mar_session_staleness). */
    int latest; /* entries; 0: no draft was stale */
    long accepted_late[EVAL_CURVE_MAX], replaced_late[EVAL_CURVE_MAX];
} eval_result;

/* Writes it to `path`, whole or not at all. Returns 0, or 1 with the error printed. */
int eval_result_write(const eval_result *r, const char *path);
/* Reads it from `path`. Returns 0, or 1 with the error printed. */
int eval_result_read(const char *path, eval_result *r);
/* Returns it as a JSON record of tool_json, to which the caller may add. "numbers" is the same for every number of
 * processes; "run" has cost and machine. Numbers have 17 digits and keep all bits; NaN is null. */
cJSON *eval_result_json(const eval_result *r);
/* Prints the numbers with the protocol line and the warnings. */
void eval_result_print(const eval_result *r);
/* Prints the path of the page of a run in `directory`. */
void eval_result_print_page(const char *directory);

/* Returns the seconds per image of generation and decoding. */
double eval_result_seconds(const eval_result *r);
/* Returns the images per second of all processes together: generation, judging and writing. 0: unknown. */
double eval_result_rate(const eval_result *r);
/* Return the names of `fid` and `kid`: "FID" and "KID", or "Fréchet distance" and "kernel distance" for features of the
 * demo's network. */
const char *eval_result_distance(const eval_result *r);
const char *eval_result_kernel(const eval_result *r);

#endif
