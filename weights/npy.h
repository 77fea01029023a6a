/* The header of an array in NumPy's format: what it says is a Python dictionary, read by a parser of its own that knows
 * nothing else. */
#ifndef WEIGHTS_NPY_H
#define WEIGHTS_NPY_H

#include "base/error.h"
#include "weights/npz.h"

#include <stddef.h>
#include <stdint.h>
#include <string.h>

enum {
    NPY_PREFIX_MAX = 12,      /* bytes up to the dictionary, of every version */
    NPY_HEADER_MAX = 1 << 16, /* of a whole header */
    NPY_WRITTEN_MAX = 512     /* of one that npy_write makes */
};

/* How many bytes the header has whose first are prefix[NPY_PREFIX_MAX], in *header, and where its dictionary begins, in
 * *dictionary. `what` names file and array for messages. MAR_EFORMAT: no header of version 1.0, 2.0 or 3.0, or one of
 * more than NPY_HEADER_MAX bytes. */
mar_status npy_measure(const uint8_t *prefix, const char *what, size_t *header, size_t *dictionary, mar_err *err);

/* Reads the dictionary text[n] to all fields of *out but the name. MAR_EFORMAT if it is malformed. If it is right, but
 * of an array that cannot be read (of another type, or of too many dimensions), *readable = 0, and the line in err says
 * why. */
mar_status npy_parse(const char *text, size_t n, const char *what, npz_array *out, int *readable, mar_err *err);

/* Writes the header, of version 1.0, as NumPy 2 does, to text[NPY_WRITTEN_MAX]. Returns its size. */
size_t npy_write(npz_dtype dtype, int rank, const int64_t *shape, uint8_t *text);

size_t npy_item_size(npz_dtype dtype); /* bytes of one number */

/* Hands the line of a failure to a caller of weights/npz.h. Returns status. */
static inline mar_status npz_tell(mar_status status, const mar_err *err, char *why)
{
    _Static_assert((int)NPZ_WHY_MAX == (int)ERR_TEXT_MAX, "a line of the one fits the other");
    if (status != MAR_OK) strcpy(why, err->text);
    return status;
}

#endif
