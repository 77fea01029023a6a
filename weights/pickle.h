/* Parser of Python's pickle, the data.pkl of a PyTorch file. It builds values and executes nothing. A call of a class
 * or function becomes a PK_OPAQUE value with its name, except the calls that make tensors. */
#ifndef WEIGHTS_PICKLE_H
#define WEIGHTS_PICKLE_H

#include "weights/pool.h"

#include "base/error.h"

#include <stddef.h>
#include <stdint.h>

typedef enum {
    PK_NONE,
    PK_BOOL,
    PK_INT,
    PK_FLOAT,
    PK_STRING,
    PK_BYTES,
    PK_TUPLE,
    PK_LIST,
    PK_DICT,
    PK_CLASS,   /* GLOBAL: a name */
    PK_STORAGE, /* persistent id; args is its tuple ('storage', class, key, location, count) */
    PK_TENSOR,  /* torch._utils._rebuild_tensor_v2: args is (storage, offset, size, stride, requires_grad, hooks, ...);
                   of _rebuild_tensor_v3 args[6] is the dtype, a class. Outside torch.save the storage is PK_BYTES:
                   the storage saved by torch.save */
    PK_OPAQUE,  /* any other; `callee` is the class or function, or NULL */
    PK_OPTIONS, /* argparse.Namespace, options of a program: `list` has them as that of a dict */
} pk_kind;

typedef struct pk_value pk_value;
struct pk_value {
    pk_kind kind;
    union {
        int64_t integer; /* PK_BOOL, PK_INT */
        double real;
        struct {
            const char *text; /* [length], NUL-terminated only for PK_CLASS ("module.name") */
            size_t length;
        } string; /* PK_STRING, PK_BYTES, PK_CLASS */
        struct {
            pk_value **items; /* PK_DICT: key, value, key, value, ... */
            size_t count, capacity;
        } list; /* PK_TUPLE, PK_LIST, PK_DICT */
        pk_value *args;
        const pk_value *callee;
    } as;
};

typedef struct {
    pk_value *root;
    pk_value *const *storages; /* [n_storages] every PK_STORAGE, in the pickle's order */
    size_t n_storages;
    size_t size; /* bytes of the pickle; more may follow */
} pk_pickle;

/* Parses the pickle at the start of data[size]. Values are in the pool and point into `data`; their graph may be
 * cyclic. Returns MAR_EFORMAT, with `path` and the byte, or MAR_ENOMEM. */
mar_status pk_parse(const char *path, const uint8_t *data, size_t size, wt_pool *pool, pk_pickle *out, mar_err *err);

/* Returns 1 for a class of this name, "module.name". */
int pk_is_class(const pk_value *v, const char *name);
/* Returns the value of the last entry with this key. Returns NULL if it is absent, or `dict` is no dict or options. */
const pk_value *pk_get(const pk_value *dict, const char *key);
/* Describes a value for messages, such as "an integer" or "a call of os.system". Returns buffer. */
const char *pk_describe(const pk_value *v, char *buffer, size_t size);
/* Writes the type of a value that is no tensor, as Python or PyTorch names it: "int", "bytes", "sparse tensor", or what
 * made an object, "os.system". Returns buffer. */
const char *pk_type(const pk_value *v, char *buffer, size_t size);

#endif
