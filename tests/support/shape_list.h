/* Lists of tensors, {"name": [shape], ...} in a model's order (tests/weights/data/formats), and their files. */
#ifndef TESTS_SHAPE_LIST_H
#define TESTS_SHAPE_LIST_H

#include "weights/weights.h"

#include <cjson/cJSON.h>

cJSON *read_list(const char *name); /* "kl16"; fails the test. The caller deletes it */
void set_shape(cJSON *list, const char *name, int rank, const double *shape);
#define SHAPE(list, name, ...)                                                                                         \
    set_shape(list, name, (int)(sizeof((double[]){__VA_ARGS__}) / sizeof(double)), (double[]){__VA_ARGS__})

/* Opens a safetensors file of F32 tensors with these names and shapes, all zero and not stored on disk. Its metadata
 * has key = value, unless value is NULL. */
wt_file *open_list_with(const cJSON *list, const char *key, const char *value);
/* Opens the same with metadata mar.heads. */
wt_file *open_list(const cJSON *list, const char *heads);

/* Compares visits with the list, in its order. */
typedef struct {
    const cJSON *next;
    int visits;
} comparison;
void compare_visit(void *user, const char *name, int rank, const int64_t *shape); /* user: a comparison */

#endif
