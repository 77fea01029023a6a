/* Pickles as lists of operations, for the mutator of PyTorch files. */
#ifndef TESTS_FUZZ_PICKLES_H
#define TESTS_FUZZ_PICKLES_H

#include "tests/fuzz/fuzz.h"

enum { PICKLE_OPS = 1024, PICKLE_OPERAND = 96 };

typedef struct {
    uint8_t code;
    uint8_t size;                    /* of the operand; excludes a text's length, includes both newlines of GLOBAL */
    uint8_t operand[PICKLE_OPERAND]; /* [size] */
} pickle_op;

typedef struct {
    pickle_op ops[PICKLE_OPS]; /* [count] */
    int count;
} pickle_program;

/* Reads data[size] up to the first operation that is unknown, cut or larger than an operand. */
void pickle_read(pickle_program *p, const uint8_t *data, size_t size);
/* Writes all operations. Lengths fit their operands, except once in a while. */
void pickle_write(const pickle_program *p, fuzz_random *r, fuzz_bytes *out);
/* Changes, adds, removes, moves or repeats a few operations. */
void pickle_mutate(pickle_program *p, fuzz_random *r);

/* Makes a checkpoint as torch.save writes it, in some protocol: up to 4 tensors in up to 3 storages. They are under
 * model_ema, model, module, state_dict or at the top. bytes[3]: size of each storage. numel[3]: its elements, or -1
 * if no tensor is in it. */
void pickle_generate(pickle_program *p, fuzz_random *r, size_t bytes[3], int numel[3]);

#endif
