/* Shared by the fuzz targets: assertions of properties, and building blocks of mutators.
 *
 * A target is one file with LLVMFuzzerTestOneInput. It asserts properties of any input, with fuzz_fail.
 * AddressSanitizer, UBSan and libFuzzer's limits of time and memory see the rest.
 */
#ifndef TESTS_FUZZ_H
#define TESTS_FUZZ_H

#include "weights/weights.h"

#include <stddef.h>
#include <stdint.h>

/* Prints the line and aborts: libFuzzer then keeps the input. */
_Noreturn void fuzz_fail(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* Fails unless text is one line, not empty, without control characters, in valid UTF-8. `what` names it. */
void fuzz_check_line(const char *what, const char *text);
/* Checks the status and the text of an error. A failure must be one that a file can cause, and its text passes
 * fuzz_check_line. After success the text must be empty. */
void fuzz_check_error(const char *what, mar_status status, const mar_err *err);

/* --- files ------------------------------------------------------------------------------------------------- */

/* Opens the checkpoint data[size] and asserts: a second opening gives the same; each tensor's count is the product
 * of its shape; all values can be read; names find their tensors. One input in 16 that opens is also saved: its
 * floating-point tensors are written as safetensors and read back the same. Others are not, as the writer takes
 * large buffers. */
void fuzz_check_checkpoint(const uint8_t *data, size_t size);

/* The last file written by base/file.h's writer, in targets linked with written.c. */
extern char *fuzz_written;
extern size_t fuzz_written_size;
void fuzz_forget_written(void);

/* Returns the FNV-1a hash, so that only the input decides which of the rarer checks it gets. */
uint32_t fuzz_hash(const uint8_t *data, size_t size);

/* --- mutators ---------------------------------------------------------------------------------------------- */

typedef struct {
    uint64_t state;
} fuzz_random;

uint32_t fuzz_next(fuzz_random *r, uint32_t below);    /* uniform in 0..below-1 */
int fuzz_one_in(fuzz_random *r, uint32_t n);           /* 1 once in n times */
uint64_t fuzz_number(fuzz_random *r);                  /* mostly small, sometimes at the edge of an integer type */
uint64_t fuzz_perhaps(fuzz_random *r, uint64_t value); /* value, or once in a while such a number */

/* Bytes in an array of a fixed capacity. Bytes that do not fit are left out, and `full` says so. */
typedef struct {
    uint8_t *data; /* [capacity] */
    size_t size, capacity;
    int full;
} fuzz_bytes;

void fuzz_put(fuzz_bytes *b, const void *data, size_t size);
void fuzz_text(fuzz_bytes *b, const char *text);
void fuzz_le(fuzz_bytes *b, uint64_t value, int width); /* little-endian */

/* Returns whether the target's own LLVMFuzzerCustomMutator leaves the input to LLVMFuzzerMutate. That is once in a
 * while, and always if FUZZ_PLAIN is set in the environment, to compare the two. */
int fuzz_plain_wanted(fuzz_random *r);

/* libFuzzer's */
size_t LLVMFuzzerMutate(uint8_t *data, size_t size, size_t max_size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t max_size, unsigned seed);

#endif
