/* Verification of drafted continuous tokens by their states at one index of the diffusion chain (Wang et al.,
 * "Continuous Speculative Decoding for Autoregressive Image Generation"). Target and draft each give a Gaussian there;
 * a method's rule accepts a draft's state or replaces it. Whole paths are verified in specdec/path.h.
 *
 * The caller makes the drafts, and the distributions under both models: it writes `state`, `token`, `q` and `p`. It
 * continues the verified states to tokens. */
#ifndef SPECDEC_CONTINUOUS_H
#define SPECDEC_CONTINUOUS_H

#include "diffusion/chain.h"
#include "mar_measure.h"
#include "specdec/verifier.h"

/* A model's distributions of drafted tokens, backend memory. */
typedef struct {
    float *mean;    /* [rows][channels] mean of the state after the compared index */
    float *log_std; /* [rows][channels] log standard deviation of that state */
    double *path;   /* [rows] sum of log std over the noisy steps above the index, if the rule uses it */
} spec_distributions;

/* The verdicts on a block. They are one piece, so that one transfer brings them to the host. */
typedef struct {
    float *shift;        /* [rows][channels] final token minus the draft's token */
    int *replaced;       /* [rows] kern_verify_job */
    int *tries;          /* [rows] kern_verify_job */
    int *first_replaced; /* [groups] the smallest order of the group's replaced rows; INT_MAX: none */
} spec_verdicts;

typedef struct {
    kern_queue *k;
    const spec_method *method;
    kern_gaussian_rule rule; /* the method's, with its parameters */
    int index;               /* chain index whose distributions are compared: 1, the last noisy one, or 0 */
    int channels;            /* numbers of a token */
    int max_rows, max_groups;
    float *report;    /* host copy of a block's verdicts */
    double shift_sum; /* sum of squared shifts, per channel, of accepted tokens; the caller clears it */

    /* Backend memory, from spec_continuous_lay_out. */
    spec_distributions p; /* of the target */
    spec_distributions q; /* of the draft */
    float *state; /* [rows][channels] the draft's state after the index; verification overwrites it with the result */
    float *token; /* [rows][channels] the draft's token */
    float *verdicts;
} spec_continuous;

/* Noise addresses of a block's rows, and how they hang together: host [rows]. */
typedef struct {
    int rows, groups;
    const uint64_t *seed, *image;
    const int *position;
    const int *group; /* 0 .. groups - 1, such as the image */
    const int *order; /* autoregressive step */
} spec_block_rows;

/* Creates the verifier of blocks of at most these rows and groups. k must outlive it. */
mar_status spec_continuous_create(kern_queue *k, const spec_method *method, const kern_gaussian_rule *rule,
                                  int channels, int max_rows, int max_groups, spec_continuous *out, mar_err *err);
void spec_continuous_free(spec_continuous *s);
size_t spec_continuous_lay_out(spec_continuous *s, char *base); /* as diff_chain_lay_out */
/* Carves the distributions of `rows` rows out of base from *used on. */
void spec_distributions_lay_out(spec_distributions *d, size_t rows, size_t channels, char *base, size_t *used);

/* Returns whether the rule compares paths. */
int spec_continuous_needs_path(const spec_continuous *s);
/* Returns the records of a chain's run that the rule needs. */
diff_trace spec_continuous_trace(const spec_continuous *s, const spec_distributions *d);
/* Verifies every row's state in place. Adds the time to *seconds. */
void spec_continuous_verify(spec_continuous *s, const spec_block_rows *rows, double *seconds);
/* Notes the tokens [rows][channels] that the verified states became. */
void spec_continuous_compare(spec_continuous *s, const float *tokens, const spec_block_rows *rows);
/* Reads the verdicts: the host's only wait in a round. Returns the queue's failure; then there is nothing to read. */
mar_status spec_continuous_read(spec_continuous *s, const spec_block_rows *rows, spec_verdicts *out, mar_err *err);
/* Counts a row that stays. Returns whether it was replaced. */
int spec_continuous_count(spec_continuous *s, const spec_verdicts *v, int row, mar_stats *stats);
/* Writes accepted_shift: the root mean square difference, per channel, between the draft's token of an accepted state
 * and the final token. */
void spec_continuous_stats(const spec_continuous *s, mar_stats *stats);

#endif
