/* Tensors whose numbers are drawn by their names, as Python scripts of tests/golden draw them, and files of them. So
 * models of golden data need no room in the repository. */
#ifndef TESTS_TENSOR_FILES_H
#define TESTS_TENSOR_FILES_H

#include "tests/support/archive.h"

enum { FILE_TENSOR_NAME = 96, FILE_TENSOR_RANK = 4, FILE_TENSORS_MAX = 400 };

typedef struct {
    char name[FILE_TENSOR_NAME];
    int rank, shape[FILE_TENSOR_RANK];
    bytes data; /* f32 */
} file_tensor;

/* Returns the hash of a name, FNV-1a, and of it and a place a number of -1..1, by splitmix64. */
uint64_t drawn_hash(const char *name);
double drawn_uniform(uint64_t hash, uint64_t place);
uint64_t drawn_mix(uint64_t x); /* splitmix64 (Steele, Lea, Flood 2014) */

/* Reads names and shapes from tests/golden/data/LIST, as tests/golden/drawn_weights.py writes them, to tensors
 * [FILE_TENSORS_MAX]. Returns their number. A failure fails the test. */
int tensors_read(const char *list, file_tensor *tensors);
/* Draws the numbers of a tensor, as weight() there does, by the hash of `name`. Each is moved by at most `distance`
 * times the largest: of a model beside the first one. */
void tensor_draw(file_tensor *t, const char *name, double distance);
/* Reads a list and draws all numbers. */
int tensors_drawn(const char *list, file_tensor *tensors);
void tensors_free(file_tensor *tensors, int count); /* the numbers */

/* Appends a formatted text of at most 511 bytes. */
void bytes_format(bytes *b, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* Writes the buffer to FOLDER/NAME and frees it. A failure fails the test. */
void bytes_to_folder(const char *folder, const char *name, bytes *b);

/* Write tensors [count] to FOLDER/NAME: as safetensors, whose numbers are zeros in a sparse file if there are none; or
 * as torch.save writes a dictionary of them, with a key inside another dictionary that has only this key. */
void tensors_write_safetensors(const char *folder, const char *name, const file_tensor *tensors, int count);
void tensors_write_torch(const char *folder, const char *name, const char *key, const file_tensor *tensors, int count);

#endif
