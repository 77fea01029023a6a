/* Header of an array in NumPy's format. It is a Python dictionary, read by a parser that knows nothing else. */
#ifndef WEIGHTS_NPY_H
#define WEIGHTS_NPY_H

#include "base/error.h"
#include "weights/npz.h"

#include <stddef.h>
#include <stdint.h>
#include <string.h>

enum {
    NPY_PREFIX_MAX = 12,      /* bytes before the dictionary, in any version */
    NPY_HEADER_MAX = 1 << 16, /* bytes of a header */
    NPY_WRITTEN_MAX = 512     /* bytes of a header from npy_write */
};

/* Sets *header to the size of the header that begins with prefix[NPY_PREFIX_MAX], and *dictionary to the offset of its
 * dictionary. `what` names file and array in messages. Returns MAR_EFORMAT unless the version is 1.0, 2.0 or 3.0 and
 * the header has at most NPY_HEADER_MAX bytes. */
mar_status npy_measure(const uint8_t *prefix, const char *what, size_t *header, size_t *dictionary, mar_err *err);

/* Parses the dictionary text[n] into all fields of *out but the name. Returns MAR_EFORMAT if it is malformed. For a
 * valid array of an unsupported type or rank, sets *readable = 0 and the reason in err. */
mar_status npy_parse(const char *text, size_t n, const char *what, npz_array *out, int *readable, mar_err *err);

/* Writes a header of version 1.0, as NumPy 2 does, to text[NPY_WRITTEN_MAX]. Returns its size. */
size_t npy_write(npz_dtype dtype, int rank, const int64_t *shape, uint8_t *text);

size_t npy_item_size(npz_dtype dtype); /* bytes of one number */

/* Copies the message of a failure to the `why` of weights/npz.h. Returns status. */
static inline mar_status npz_export_error(mar_status status, const mar_err *err, char *why)
{
    _Static_assert((int)NPZ_WHY_MAX == (int)ERR_TEXT_MAX, "a line of the one fits the other");
    if (status != MAR_OK) strcpy(why, err->text);
    return status;
}

#endif
