/* torch.save's format before PyTorch 1.6. It begins with five pickles: a magic number, a version, the byte order, the
 * object, and the list of its storages' names. Then each storage follows: its number of elements (int64) and the
 * elements. The published weights of Inception-v3 have this format. */
#ifndef WEIGHTS_LEGACY_H
#define WEIGHTS_LEGACY_H

#include "base/file.h"
#include "weights/pickle.h"

typedef struct {
    const char *name; /* [name_length], points into the pickle */
    size_t name_length;
    size_t element;  /* bytes of an element */
    uint64_t offset; /* of the elements in the file; 0: the file does not list it */
    uint64_t size;   /* bytes of all elements */
} legacy_storage;

typedef struct {
    uint8_t *bytes;           /* the pickles; values point into them */
    pk_value *root;           /* the saved object */
    legacy_storage *storages; /* [count], sorted by name */
    size_t count;
} legacy_directory;

/* Returns 1 if a file that begins with start[n] has this format; 24 bytes are enough. */
int legacy_recognise(const uint8_t *start, size_t n);

/* Returns the bytes of an element in a storage of this class, such as torch.FloatStorage. Returns 0 if unknown. */
typedef size_t legacy_element_size(const pk_value *class);

/* Reads the pickles, at most 16 MB, and finds the storages, whose lengths it checks against the file. Allocates values
 * in `pool`. Returns MAR_EFORMAT, MAR_EIO or MAR_ENOMEM; call legacy_close even then. */
mar_status legacy_open(const file_source *source, wt_pool *pool, legacy_element_size *element, legacy_directory *out,
                       mar_err *err);
void legacy_close(legacy_directory *d);

const legacy_storage *legacy_find(const legacy_directory *d, const char *name, size_t length); /* NULL if absent */

#endif
