/* Support of all tests: golden data (tests/golden/data), comparison with a tolerance, temporary files. */
#ifndef TESTS_SUPPORT_H
#define TESTS_SUPPORT_H

#include "kernels/ops.h"
#include "mar/masked_runner.h"
#include "tests/support/test.h"
#include "weights/weights.h"

/* Golden tensors are in safetensors files. tests/golden/make_*.py write them with PyTorch. */
wt_file *golden_open(const char *name);  /* "head" opens tests/golden/data/head.safetensors; fails the test */
wt_file *open_weights(const char *path); /* fails the test if it cannot be opened */
float *golden_f32(const wt_file *f, const char *name, int64_t count); /* caller frees */
/* Checks that f has every tensor of the file expected_path, bit for bit; a NaN equals any NaN. */
void assert_values(const wt_file *f, const char *expected_path);

/* Returns ||a-b|| / ||b|| over n values, or infinity if a has NaN or Inf. */
double relative_error(const float *a, const float *b, size_t n);
double max_difference(const float *a, const float *b, size_t n);
/* Returns max |a-b| / max |b|. Fails the test if all of b is 0. */
double relative_difference(const float *a, const float *b, size_t n);
#define assert_close(a, b, n, tolerance)                                                                               \
    do {                                                                                                               \
        double error_ = relative_error(a, b, n);                                                                       \
        if (!(error_ <= (tolerance)))                                                                                  \
            fail_msg("%s vs %s: relative error %.3g, allowed %.3g", #a, #b, error_, (double)(tolerance));              \
    } while (0)

/* Asserts MAR_OK, printing the message otherwise. */
#define assert_ok(status, err)                                                                                         \
    do {                                                                                                               \
        mar_status status_ = (status);                                                                                 \
        if (status_ != MAR_OK) fail_msg("%s: %s", mar_status_name(status_), (err)->text);                              \
    } while (0)

/* Assert MAR_OK of a public call on a session or a handle, printing the reason otherwise. */
#define assert_session(s, call)                                                                                        \
    do {                                                                                                               \
        mar_status status_ = (call);                                                                                   \
        if (status_ != MAR_OK) fail_msg("%s: %s", mar_status_name(status_), mar_session_error(s));                     \
    } while (0)
#define assert_library(m, call)                                                                                        \
    do {                                                                                                               \
        mar_status status_ = (call);                                                                                   \
        if (status_ != MAR_OK) fail_msg("%s: %s", mar_status_name(status_), mar_error(m));                             \
    } while (0)

/* Opens the library. Returns NULL if dtype is bf16 or int8 and the processor does not support it. */
mar *open_mar(mar_dtype dtype, int threads);

/* Returns the default parameters without guidance: 64 steps of 100. */
mar_params plain_params(void);
/* Returns plain_params with the options of a list set, such as "num_iter 8, lazy on". A refused one fails the test. */
mar_params params_with(const char *list);
/* Returns p with the options of a list set. */
mar_params params_set(mar_params p, const char *list);

/* Return a bound queue of a new CPU device, or of a handle's device. open_queue returns NULL if dtype is bf16 or int8
 * and the processor does not support it. close_queue also closes the device. */
kern_queue *open_queue(mar_dtype dtype, int threads);
void close_queue(kern_queue *k);
kern_queue *queue_of(const mar *m);
void free_queue(kern_queue *k);

/* Creates a runner of the plain chain of p->num_sampling_steps on queue k. The caller gives it backend_memory(k,
 * mar_runner_lay_out(r, NULL)). */
mar_status plain_runner(kern_queue *k, const mar_model *model, int images, int conditions, int max_tokens,
                        const mar_params *p, mar_runner *r, mar_err *err);

/* Allocates backend memory for the lay_out of a separately tested component. The caller frees it with core->free. */
void *backend_memory(kern_queue *k, size_t bytes);

/* Return a fresh directory, and the path of a new file in a fresh one. Directories, contents and strings are freed when
 * the program ends. */
char *test_directory(void);
char *test_path(const char *file);
/* Returns the number of entries of a directory, without . and .. */
int count_files(const char *directory);
/* Make a fresh directory under $TMPDIR, and remove a directory with its contents. */
char *temporary_directory(void); /* caller frees the string */
void remove_directory(const char *path);

#endif
