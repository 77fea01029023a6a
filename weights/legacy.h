/* The format of torch.save before PyTorch 1.6: pickles of a magic number, a version, the byte order, the object and the
 * list of its storages' names; then each of these storages, its number of elements (int64) and the elements. The
 * published weights of Inception-v3 are in it. */
#ifndef WEIGHTS_LEGACY_H
#define WEIGHTS_LEGACY_H

#include "base/file.h"
#include "weights/pickle.h"

typedef struct {
    const char *name; /* [name_length] in the pickle */
    size_t name_length;
    size_t element;  /* bytes of an element */
    uint64_t offset; /* of its elements in the file; 0: the file does not list it */
    uint64_t size;   /* bytes of its elements */
} legacy_storage;

typedef struct {
    uint8_t *bytes;           /* the pickles, which values point into */
    pk_value *root;           /* the object */
    legacy_storage *storages; /* [count], sorted by name */
    size_t count;
} legacy_directory;

/* Whether a file that begins with start[n] is of this format; 24 bytes are enough. */
int legacy_recognise(const uint8_t *start, size_t n);

/* Bytes of an element in a storage of this class, a value such as torch.FloatStorage; 0: it has no such size. */
typedef size_t legacy_element_size(const pk_value *class);

/* Reads the pickles, of 16 MB at most, into memory and finds the storages; their lengths are checked against the file.
 * Values are in `pool`. MAR_EFORMAT, MAR_EIO, MAR_ENOMEM. legacy_close is fine after a failure. */
mar_status legacy_open(const file_source *source, wt_pool *pool, legacy_element_size *element, legacy_directory *out,
                       mar_err *err);
void legacy_close(legacy_directory *d);

const legacy_storage *legacy_find(const legacy_directory *d, const char *name, size_t length); /* NULL if absent */

#endif
