/* Sessions of small random LlamaGen models through the public calls, and a list of all methods. */
#ifndef TESTS_DISCRETE_SESSIONS_H
#define TESTS_DISCRETE_SESSIONS_H

#include "tests/support/llamagen.h"
#include "tests/support/support.h"

/* Sizes of small_llamagen with vq.pth: tokens of an image, pixels a side, bytes of an image. */
enum { DISCRETE_SEQ = 16, DISCRETE_SIDE = 16, DISCRETE_BYTES = DISCRETE_SIDE * DISCRETE_SIDE * 3, DISCRETE_BATCH = 3 };
extern const int discrete_labels[DISCRETE_BATCH];
extern const char discrete_captions[]; /* path of a text-to-image model */

/* The drafter: none, a model close to the target, a smaller one, the target itself, an EAGLE drafter. */
typedef enum { NO_DRAFT, NEAR, SMALL, ITSELF, EAGLE, DRAFTS } discrete_draft;

/* The models' files: written before a group's first test (cmocka_run_group_tests), and the group's state. */
typedef struct {
    char *directory, *target_path, *near_path, *small_path, *eagle_path, *vq_path;
} discrete_files;

int discrete_set_up(void **state);
int discrete_tear_down(void **state);

typedef struct {
    mar *m;
    mar_model *target, *drafts[DRAFTS];
    mar_vae *vae;
} discrete_models;

/* These fail the test if a call fails. In f32 on the CPU. */
discrete_models discrete_open(const discrete_files *f, int threads);
void discrete_close(discrete_models s);

/* A method with its drafter. The list has every method with plain, tree and Jacobi drafting. */
typedef struct {
    const char *options; /* argument of discrete_params */
    discrete_draft draft;
    int exact; /* whether it keeps the distribution */
} discrete_way;
enum { DISCRETE_RUNS = 30 };
extern const discrete_way discrete_runs[DISCRETE_RUNS];

/* Returns the defaults with the options of a list set, such as "cfg 2, tree 3/2/1". This tree is 3,2,1. "" sets none.
 * At most four trees are kept at a time. */
mar_params discrete_params(const char *list);
mar_session *discrete_session(const discrete_models *s, const char *options, discrete_draft draft, int batch);
/* Runs a batch of images first.. of classes labels [n] until a call fails. Returns that call's status, or MAR_OK. */
mar_status discrete_run(mar_session *s, uint64_t first, const int *labels, int n);
/* Generates a whole batch: tokens [n][DISCRETE_SEQ]. */
void discrete_generate(mar_session *s, uint64_t first, const int *labels, int n, float *tokens);

#endif
