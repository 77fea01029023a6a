/* Measuring: what a session's images cost, where each token came from, the device, and its rates. */
#ifndef LIBMAR_MEASURE_H
#define LIBMAR_MEASURE_H

#include "mar.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Cost of the batch since mar_session_begin; of requests, since the last one began while none was in progress. Times
 * are in seconds. flop counts matrix products and convolutions, 2 per multiply-add. encoder_, decoder_ and head_ are
 * the target's. draft_ is the draft's, except that its head inside head_spec counts as head_. verify_s belongs to
 * speculation across tokens. */
typedef struct {
    size_t size; /* sizeof(mar_stats) in the caller, by mar_stats_init; new fields come last */
    double encoder_s, decoder_s, head_s, vae_s, draft_s, verify_s, total_s;
    double encoder_flop, decoder_flop, head_flop, vae_flop, draft_flop;
    /* Discrete tokens: bytes of weights, keys and values that the passes of target and draft must read, each once per
     * pass; else 0. Divided by mar_measure_bandwidth they bound the time from below. */
    double decoder_bytes, draft_bytes;
    size_t arena_bytes;     /* the session's working memory on the backend */
    size_t recorded_bytes;  /* host arrays of the session's recorded steps, besides the arena (GPU; else 0) */
    double head_call_bytes; /* weights of the head, read by each of its sequential calls */
    int head_call_products; /* matrix products of one call, each of which waits for the previous one */

    /* The target's head: sequential calls, each of which waits for the previous one. A token's calls are those of its
     * chain, shared with the tokens drawn beside it. */
    long tokens; /* tokens placed in the images */
    /* Sum over tokens of the sequential calls of their chains. With spec path the sum includes dropped drafts and
     * candidates. */
    double head_calls;
    int head_calls_max;  /* the most of one token */
    double head_batched; /* sequential calls of the target's head, each for all tokens in progress */
    double draft_calls;  /* the same for the draft's head */
    double head_rows;    /* states that the head evaluated, unconditional rows not counted */
    double passes;       /* sequential passes of the target's transformer, each for all images in progress */
    double contexts;     /* contexts in these passes, summed over images; a plain pass has one per image */

    /* Inside the head (head_spec): transitions proposed and accepted. residual_tries includes these. */
    long proposals, proposals_accepted;

    /* Across tokens (spec): */
    long drafted, accepted;   /* tokens verified, and accepted */
    long rounds, round_steps; /* blocks verified, and autoregressive steps they advanced */
    long residual_tries;      /* candidates tried to replace rejected tokens */
    /* Discrete tokens: rounds of an image by number of accepted drafts; the last entry: 65 or more. */
    long accepted_lengths[66];
    /* Root mean square, per channel, of the difference between an accepted token's draft and target versions at the
     * last index. The token is the draft's with spec path in context full, else the target's. In context full, later
     * contexts have seen the draft's version. */
    double accepted_shift;
    long undrafted; /* rounds without drafts by choice; head_spec -1: tokens by the plain chain */
    /* With round_costs measured or given, and where spec path makes no drafts: what encoder_s + decoder_s + head_s +
     * draft_s + verify_s would have been without drafts; with head_costs: head_s by the plain chain; else 0. */
    double plain_s;
} mar_stats;
/* Sets size, and every other field to 0. Writes the first `size` bytes; pass sizeof *stats. */
MAR_API void mar_stats_init(mar_stats *stats, size_t size);
/* Writes the fields within stats->size after waiting for pending steps; with size 0 nothing. Fields that the library
 * lacks stay. All others are 0 in a forked process. */
MAR_API void mar_session_get_stats(const mar_session *s, mar_stats *stats);

/* A measurement. Values of `group`: "machine", the device's description and rates; "pass", passes of one autoregressive
 * step, and the image decoder; "operation", operations of that step; "image decoder", its operations. */
typedef struct {
    size_t size;
    const char *group; /* static */
    const char *name;  /* "linear 3072 x 768, gelu"; valid during the call */
    int rows;          /* rows it works on; 0: none */
    double count;      /* calls in that step; for a rate or number of the machine, its value */
    double seconds;    /* time of one call; 0 if the value is in count */
    double bytes;      /* least traffic of one call; 0: not counted */
    double flop;       /* arithmetic of one call's products; 0: not counted */
} mar_measurement;
typedef void mar_measurement_function(void *user, const mar_measurement *m);
/* Makes the measurements of `mar bench --micro`, with the session's model, parameters and batch. Calls f for each row
 * at the end, only if everything succeeded. On the session, f has the rights of a mar_progress_function. Takes seconds,
 * on a slow device minutes, and additional memory. Drops the batch in progress. MAR_ECANCELLED after
 * mar_session_cancel. */
MAR_API mar_status mar_session_measure(mar_session *s, mar_measurement_function *f, void *user);

/* Returns the status of each token of the batch after the last step: uint8_t map[n][seq_len] (mar_token_status), and
 * int step[n][seq_len], the token's autoregressive step; for discrete tokens the round. Either may be NULL. */
typedef enum { MAR_TOKEN_TARGET = 0, MAR_TOKEN_ACCEPTED, MAR_TOKEN_REPLACED } mar_token_status;
MAR_API mar_status mar_session_token_status(mar_session *s, uint8_t *map, int *step);
/* Returns the staleness of each token's draft after the last step: int late[n][seq_len]. It is the number of
 * autoregressive steps by which the draft's conditions are older than the token's own. With spec path without a draft
 * model it is 1 or more. 0: the token was not drafted that way. */
MAR_API mar_status mar_session_staleness(mar_session *s, int *late);

/* Writes how the backend computes this session's batches to `text`, char [size], in one line. Returns text, or "" for
 * invalid arguments. The line names the head's implementation, and why not a faster one; on a GPU also the number of
 * recordings, or why the device refuses them: "head: persistent kernel up to 128 rows, clusters of 2 blocks, 6 of 6
 * products in shared memory; 14 recordings". 1024 bytes are usually enough; the rest is cut. The log has the first part
 * when a model is loaded, and a WARNING for a refused recording. */
MAR_API const char *mar_session_description(const mar_session *s, char *text, size_t size);

/* Describes the handle's device: "cpu bf16 (avx512_bf16), 2 threads", or "cpu bf16, head f32 (...". Returns "" if the
 * handle failed to open. */
MAR_API const char *mar_backend_description(const mar *m);

/* A handle's device. */
typedef struct {
    size_t size;
    mar_backend backend;    /* CPU or CUDA */
    mar_dtype dtype;        /* arithmetic of the transformer's matrix products: F32, BF16, INT8 or INT4 */
    mar_dtype head_dtype;   /* of diffusion heads: F32, F16, BF16 or INT8 */
    int int8_below;         /* of INT8 heads: mar_options.int8_below; else 0 */
    int threads;            /* CPU: worker threads; 0: a GPU */
    int threads_missing;    /* CPU: threads that the system did not start */
    const char *unit;       /* CPU: instruction sets, "avx512_bf16"; CUDA: the GPU's name and size */
    const char *arithmetic; /* the description without the number of threads, which changes no image */
} mar_device;

/* Returns what the handle computes with, valid as long as the handle; NULL if it failed to open. */
MAR_API const mar_device *mar_get_device(const mar *m);

/* Measures the rate of large matrix products on this handle's backend and arithmetic, in flop per second (2 per
 * multiply-add). The value is the best of many 1024x1024x1024 products, or of 8192x8192x8192 where those are too short
 * to time. The products use the operation of the models' layers. Takes some seconds. `mar bench` relates its results to
 * this rate. */
MAR_API mar_status mar_measure_peak(mar *m, double *flop_per_second);
/* Measures the bandwidth of uncached reads on this handle's backend, in bytes per second. The value is the best of many
 * passes over an array, with all threads, in pages like those of weights. The array has 512 MiB, or four times the last
 * cache, up to 4 GiB. A backend without a read-only operation copies, and counts written bytes too. The bytes of the
 * weights over this rate bound a decoding step at batch 1 from below. Takes about a second. */
MAR_API mar_status mar_measure_bandwidth(mar *m, double *bytes_per_second);

#ifdef __cplusplus
}
#endif
#endif
