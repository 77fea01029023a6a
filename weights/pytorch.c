/* Reads files of torch.save. Since 1.6 they are zip files: <name>/data.pkl has the structure, <name>/data/<key> the
 * bytes of a storage, <name>/byteorder "little" or "big". Old files lack byteorder and are little-endian.
 * weights/legacy.h describes the format before 1.6. */
#include "weights/legacy.h"
#include "weights/pickle.h"
#include "weights/reader.h"
#include "weights/table.h"
#include "weights/zip.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* MAR-H with its optimizer has a pickle of half a megabyte. */
enum { PICKLE_MAX = 16 << 20, PICKLE_MEMORY_MAX = 256 << 20 };

typedef struct {
    wt_file *f;
    const char *format;      /* name of the format */
    legacy_directory legacy; /* of an old file; else without bytes */
    zip_directory zip;       /* of a new file */
    const char *prefix;      /* [prefix_length] "archive" in archive/data.pkl */
    size_t prefix_length;
    wt_pool values;
    uint64_t copied; /* bytes of noncontiguous tensors copied */
    uint64_t work;   /* bytes of all other tensors, and bytes read to make the copies */
} reader;

/* Tensors may share a storage, and each copy reads it again. A small file can request unlimited reading, so this
 * multiple of the file's size is the limit. */
enum { WORK_MAX = 64 };

int wt_pytorch_recognise(const wt_file *f)
{
    return legacy_recognise(f->start, f->n_start) || (f->n_start >= 4 && memcmp(f->start, "PK\3\4", 4) == 0);
}

/* --- entries of the archive ------------------------------------------------------------------------ */

static mar_status find_prefix(reader *r, mar_err *err)
{
    static const char suffix[] = "/data.pkl";
    const size_t length = sizeof suffix - 1;
    for (size_t i = 0; i < r->zip.count; i++) {
        const zip_entry *e = &r->zip.entries[i];
        if (e->name_length <= length || memcmp(e->name + e->name_length - length, suffix, length) != 0) continue;
        r->prefix = e->name;
        r->prefix_length = e->name_length - length;
        if (!memchr(r->prefix, '/', r->prefix_length)) return MAR_OK;
    }
    return err_set(err, MAR_EFORMAT, "%s: a zip file without data.pkl, expected one written by torch.save", r->f->path);
}

/* Finds the contents of <prefix>/<a><b>: *size bytes at *offset in the file. Sets *offset to 0 if there is no such
 * entry. */
static mar_status find_contents(const reader *r, const char *a, const char *b, size_t b_length, uint64_t *offset,
                                uint64_t *size, mar_err *err)
{
    char name[512];
    *offset = *size = 0;
    if (r->prefix_length + strlen(a) + b_length + 2 > sizeof name) return MAR_OK;
    int n = snprintf(name, sizeof name, "%.*s/%s%.*s", (int)r->prefix_length, r->prefix, a, (int)b_length, b);
    const zip_entry *e = zip_find(&r->zip, name, (size_t)n);
    if (!e) return MAR_OK;
    *size = e->size;
    return zip_contents(&r->zip, e, offset, err);
}

static mar_status check_byteorder(const reader *r, mar_err *err)
{
    char order[16];
    uint64_t offset, size;
    mar_status status = find_contents(r, "byteorder", "", 0, &offset, &size, err);
    if (status != MAR_OK || !offset) return status;
    const size_t n = size < sizeof order ? (size_t)size : sizeof order;
    status = file_source_read(&r->f->source, offset, n, order, err);
    if (status == MAR_OK && (size != 6 || memcmp(order, "little", 6) != 0))
        status =
            err_set(err, MAR_EFORMAT, "%s: its byte order is \"%.*s\", expected \"little\"", r->f->path, (int)n, order);
    return status;
}

/* --- one tensor ------------------------------------------------------------------------------------- */

/* The type of a tensor's elements. */
typedef struct {
    const char *name; /* class of its storage, or the dtype */
    wt_dtype dtype;
    size_t size;      /* bytes in its storage */
    const char *type; /* of WT_UNREAD: its name */
} element_type;

static const element_type types[] = {
    {"torch.FloatStorage", WT_F32, 4, NULL},
    {"torch.HalfStorage", WT_F16, 2, NULL},
    {"torch.BFloat16Storage", WT_BF16, 2, NULL},
    {"torch.DoubleStorage", WT_F64, 8, NULL},
    {"torch.LongStorage", WT_I64, 8, NULL},
    {"torch.IntStorage", WT_I32, 4, NULL},
    {"torch.ShortStorage", WT_I16, 2, NULL},
    {"torch.CharStorage", WT_I8, 1, NULL},
    {"torch.ByteStorage", WT_U8, 1, NULL},
    {"torch.BoolStorage", WT_BOOL, 1, NULL},
    {"torch.ComplexFloatStorage", WT_UNREAD, 8, "C64"},
    {"torch.ComplexDoubleStorage", WT_UNREAD, 16, "C128"},
    {"torch.QInt8Storage", WT_UNREAD, 1, "quantized I8"},
    {"torch.QUInt8Storage", WT_UNREAD, 1, "quantized U8"},
    {"torch.QInt32Storage", WT_UNREAD, 4, "quantized I32"},
    {"torch.storage.UntypedStorage", WT_UNREAD, 1, "untyped storage"}, /* the tensor has a dtype of its own */
    {"torch.float8_e4m3fn", WT_F8_E4M3, 1, NULL},
    {"torch.float8_e5m2", WT_F8_E5M2, 1, NULL},
};

/* Returns the type of this storage class or dtype, or NULL. */
static const element_type *find_type(const pk_value *class)
{
    for (size_t i = 0; i < sizeof types / sizeof *types; i++)
        if (pk_is_class(class, types[i].name)) return &types[i];
    return NULL;
}

static size_t element_size(const pk_value *class)
{
    const element_type *type = find_type(class);
    return type ? type->size : 0;
}

/* A tensor's storage: [numel] elements of the tensor's type. */
typedef struct {
    uint64_t offset; /* in the file */
    int64_t numel;
} storage;

/* Finds a storage by its name, as find_contents does. */
static mar_status find_storage(const reader *r, const pk_value *name, uint64_t *offset, uint64_t *size, mar_err *err)
{
    const char *text = name->as.string.text;
    if (!r->legacy.bytes) return find_contents(r, "data/", text, name->as.string.length, offset, size, err);
    const legacy_storage *s = legacy_find(&r->legacy, text, name->as.string.length);
    *offset = s ? s->offset : 0;
    *size = s ? s->size : 0;
    return MAR_OK;
}

static mar_status read_storage(const reader *r, const char *name, const pk_value *id, const element_type *type,
                               storage *out, mar_err *err)
{
    pk_value *const *items = id->as.list.items; /* push_storage has checked that there are five */
    const pk_value *key = items[2], *numel = items[4];
    if (key->kind != PK_STRING || numel->kind != PK_INT || numel->as.integer < 0)
        return err_set(err, MAR_EFORMAT, "%s: tensor \"%s\": its storage has no name or no size", r->f->path, name);
    uint64_t size, expected;
    const mar_status status = find_storage(r, key, &out->offset, &size, err);
    if (status != MAR_OK) return status;
    if (!out->offset)
        return err_set(err, MAR_EFORMAT,
                       r->legacy.bytes ? "%s: tensor \"%s\": the file does not list its storage %.*s"
                                       : "%s: tensor \"%s\": the file has no entry data/%.*s",
                       r->f->path, name, (int)(key->as.string.length < 64 ? key->as.string.length : 64),
                       key->as.string.text);
    out->numel = numel->as.integer;
    if (__builtin_mul_overflow((uint64_t)out->numel, (uint64_t)type->size, &expected) || expected != size)
        return err_set(err, MAR_EFORMAT, "%s: tensor \"%s\": its storage has %llu bytes, expected %lld elements of %s",
                       r->f->path, name, (unsigned long long)size, (long long)out->numel, wt_dtype_name(type->dtype));
    return MAR_OK;
}

/* Reads size and stride, two tuples of equally many non-negative integers. Returns 0 if they are not. */
static int read_geometry(const pk_value *size, const pk_value *stride, wt_tensor *t, int64_t strides[WT_MAX_RANK])
{
    if (size->kind != PK_TUPLE || stride->kind != PK_TUPLE || size->as.list.count != stride->as.list.count ||
        size->as.list.count > WT_MAX_RANK)
        return 0;
    t->rank = (int)size->as.list.count;
    for (int i = 0; i < t->rank; i++) {
        const pk_value *s = size->as.list.items[i], *step = stride->as.list.items[i];
        if (s->kind != PK_INT || step->kind != PK_INT || s->as.integer < 0 || step->as.integer < 0 ||
            s->as.integer > WT_DIMENSION_MAX)
            return 0;
        t->shape[i] = s->as.integer;
        strides[i] = step->as.integer;
    }
    return 1;
}

/* Returns 1 if every element lies in a storage of numel elements. */
static int fits(const wt_tensor *t, int64_t offset, const int64_t *strides, int64_t numel)
{
    int64_t last = offset, reach;
    if (offset < 0 || offset > numel) return 0;
    if (t->count == 0) return 1;
    for (int i = 0; i < t->rank; i++)
        if (__builtin_mul_overflow(t->shape[i] - 1, strides[i], &reach) || __builtin_add_overflow(last, reach, &last))
            return 0;
    return last < numel;
}

static int is_contiguous(const wt_tensor *t, const int64_t *strides)
{
    int64_t expected = 1;
    for (int i = t->rank - 1; i >= 0; i--) {
        if (t->shape[i] != 1 && strides[i] != expected) return 0;
        expected *= t->shape[i];
    }
    return 1;
}

static mar_status pytorch_add_work(reader *r, const wt_tensor *t, uint64_t bytes, mar_err *err)
{
    uint64_t most;
    if (__builtin_mul_overflow(r->f->source.size, (uint64_t)WORK_MAX, &most)) most = UINT64_MAX;
    if (bytes > most - r->work)
        return err_set(err, MAR_EFORMAT, "%s: with tensor \"%s\" its tensors take more reading than %d times the file",
                       r->f->path, t->name, WORK_MAX);
    r->work += bytes;
    return MAR_OK;
}

/* Dimensions of a strided tensor by falling stride, so that the file is read forwards. */
typedef struct {
    int64_t shape[WT_MAX_RANK];
    int64_t stride[WT_MAX_RANK]; /* in the storage, elements */
    int64_t to[WT_MAX_RANK];     /* in the copy, elements */
} traversal;

static traversal traverse_along_file(const wt_tensor *t, const int64_t *strides)
{
    traversal w = {0};
    int64_t to = 1;
    for (int d = t->rank - 1; d >= 0; d--) { /* insertion sort: dimensions after d are sorted */
        int i = d;
        for (; i + 1 < t->rank && w.stride[i + 1] > strides[d]; i++) {
            w.shape[i] = w.shape[i + 1];
            w.stride[i] = w.stride[i + 1];
            w.to[i] = w.to[i + 1];
        }
        w.shape[i] = t->shape[d];
        w.stride[i] = strides[d];
        w.to[i] = to;
        to *= t->shape[d];
    }
    return w;
}

/* A part of the file in memory. */
typedef struct {
    uint8_t *bytes; /* [room] */
    size_t room;
    uint64_t begin, end; /* its range in the file */
} window;

/* Moves the window to `at`, the next element of t; the last element of t ends at `end`. */
static mar_status move_window(reader *r, window *w, const wt_tensor *t, uint64_t at, uint64_t end, mar_err *err)
{
    const size_t n = end - at < w->room ? (size_t)(end - at) : w->room;
    const mar_status status = pytorch_add_work(r, t, n, err);
    if (status != MAR_OK) return status;
    w->begin = at;
    w->end = at + n;
    return file_source_read(&r->f->source, at, n, w->bytes, err);
}

/* Copies t, whose first element is at t->offset in the file, to dst [t->count]. */
static mar_status gather(reader *r, const wt_tensor *t, const int64_t *strides, uint8_t *dst, mar_err *err)
{
    static const uint64_t most = 256 * 1024;
    const size_t element = wt_dtype_size(t->dtype);
    const traversal w = traverse_along_file(t, strides);
    uint64_t end = t->offset + element;
    for (int d = 0; d < t->rank; d++) end += (uint64_t)((t->shape[d] - 1) * strides[d]) * element;
    window seen = {.room = (size_t)(end - t->offset < most ? end - t->offset : most)};
    seen.bytes = malloc(seen.room);
    if (!seen.bytes) return err_set(err, MAR_ENOMEM, "%s: out of memory for tensor \"%s\"", r->f->path, t->name);
    mar_status status = MAR_OK;
    int64_t index[WT_MAX_RANK] = {0};
    for (int64_t i = 0; i < t->count && status == MAR_OK; i++) {
        int64_t from = 0, to = 0;
        for (int d = 0; d < t->rank; d++) {
            from += index[d] * w.stride[d];
            to += index[d] * w.to[d];
        }
        const uint64_t at = t->offset + (uint64_t)from * element;
        if (at < seen.begin || at + element > seen.end) status = move_window(r, &seen, t, at, end, err);
        if (status == MAR_OK) memcpy(dst + (size_t)to * element, seen.bytes + (at - seen.begin), element);
        for (int d = t->rank - 1; d >= 0 && ++index[d] == w.shape[d]; d--) index[d] = 0;
    }
    free(seen.bytes);
    return status;
}

/* Copies a transposed or otherwise strided tensor. A stride of 0 repeats elements without limit, so all copies together
 * may not exceed the file's size: a tensor beyond that is not read. */
static mar_status copy_strided(reader *r, wt_tensor *t, uint64_t bytes, const int64_t *strides, mar_err *err)
{
    if (bytes > r->f->source.size - r->copied) {
        t->dtype = WT_UNREAD;
        t->type = "view that is not contiguous and too large to copy";
        return MAR_OK;
    }
    r->copied += bytes;
    uint8_t *dst = wt_pool_alloc(&r->f->pool, bytes);
    if (!dst) return err_set(err, MAR_ENOMEM, "%s: out of memory for tensor \"%s\"", r->f->path, t->name);
    t->copy = dst;
    return gather(r, t, strides, dst, err);
}

/* Returns the type of a tensor of these arguments (pk_tensor), or NULL, with its name in `other` [size], if it is not
 * read. Nothing else of such a tensor is looked at. */
static const element_type *type_of(const pk_value *args, char *other, size_t size)
{
    pk_value *const *items = args->as.list.items;
    const pk_value *class = items[0]->as.args->as.list.items[1], *more = args->as.list.count > 6 ? items[6] : NULL;
    if (more && more->kind == PK_CLASS && pk_is_class(class, "torch.storage.UntypedStorage")) class = more;
    const element_type *type = find_type(class);
    const int is_read = type && type->type == NULL;
    if (more && more->kind == PK_DICT && more->as.list.count > 0) /* conjugated or negated as it is read */
        snprintf(other, size, "conjugated or negated view");
    else if (is_read)
        return type;
    else if (type)
        snprintf(other, size, "%s", type->type);
    else
        snprintf(other, size, "%s", class->kind == PK_CLASS ? class->as.string.text : "tensor of no class");
    return NULL;
}

/* Reads a tensor from its arguments: (storage, offset, size, stride, requires_grad, hooks, ...). */
static mar_status pytorch_read_tensor(reader *r, const char *name, size_t name_length, const pk_value *args,
                                      mar_err *err)
{
    wt_tensor t = {.name = name};
    storage s;
    int64_t strides[WT_MAX_RANK];
    uint64_t bytes;
    char other[256];
    pk_value *const *items = args->as.list.items;
    if (args->as.list.count < 4 || items[0]->kind != PK_STORAGE || items[1]->kind != PK_INT ||
        !read_geometry(items[2], items[3], &t, strides))
        return err_set(err, MAR_EFORMAT,
                       "%s: tensor \"%s\" is malformed, expected storage, offset, size (at most %d "
                       "dimensions, of at most 2^53 each) and stride",
                       r->f->path, name, WT_MAX_RANK);
    const element_type *type = type_of(args, other, sizeof other);
    if (!type) {
        t.dtype = WT_UNREAD;
        t.type = other;
        return wt_add(r->f, &t, name_length, err);
    }
    mar_status status = read_storage(r, name, items[0]->as.args, type, &s, err);
    if (status != MAR_OK) return status;
    t.dtype = type->dtype;
    if (!wt_measure(&t, &bytes) || !fits(&t, items[1]->as.integer, strides, s.numel))
        return err_set(err, MAR_EFORMAT, "%s: tensor \"%s\" reaches past its storage of %lld elements", r->f->path,
                       name, (long long)s.numel);
    t.offset = s.offset + (uint64_t)items[1]->as.integer * type->size;
    if (t.count > 0 && !is_contiguous(&t, strides))
        status = copy_strided(r, &t, bytes, strides, err);
    else
        status = pytorch_add_work(r, &t, bytes, err);
    return status == MAR_OK ? wt_add(r->f, &t, name_length, err) : status;
}

/* --- the tensors of a checkpoint --------------------------------------------------------------------- */

/* Adds entry i of a dict, whose key is no string and so no tensor's name: "(an integer as key) 7", "(a tuple as key)".
 * Two of the latter are refused: names that differed would let a small file make a large table of one key. */
static mar_status add_nameless(reader *r, const pk_value *dict, size_t i, mar_err *err)
{
    char what[256], name[128], type[256];
    const pk_value *key = dict->as.list.items[i];
    if (key->kind == PK_INT)
        err_line(name, sizeof name, "(an integer as key) %lld", (long long)key->as.integer);
    else
        err_line(name, sizeof name, "(%.64s as key)", pk_describe(key, what, sizeof what));
    const wt_tensor t = {
        .name = name, .dtype = WT_UNREAD, .type = pk_type(dict->as.list.items[i + 1], type, sizeof type)};
    return wt_add(r->f, &t, strlen(name), err);
}

/* Reads the tensors of a dict. Its other entries are WT_UNREAD: modules keep extra states and versions among their
 * tensors. The top level is a training run's, too, whose plain values and options are skipped. */
static mar_status read_dict(reader *r, const pk_value *dict, int top_level, mar_err *err)
{
    for (size_t i = 0; i < dict->as.list.count; i += 2) {
        const pk_value *key = dict->as.list.items[i], *value = dict->as.list.items[i + 1];
        int plain = value->kind != PK_TENSOR && value->kind != PK_OPAQUE;
        if (top_level && plain) continue;
        if (key->kind != PK_STRING) {
            const mar_status status = add_nameless(r, dict, i, err);
            if (status != MAR_OK) return status;
            continue;
        }
        char what[256];
        const char *name = wt_pool_text(&r->values, key->as.string.text, key->as.string.length);
        if (!name) return err_set(err, MAR_ENOMEM, "%s: out of memory for tensor names", r->f->path);
        mar_status status = wt_check_text(r->f, "tensor name", key->as.string.text, key->as.string.length, err);
        if (status != MAR_OK) return status;
        const wt_tensor other = {.name = name,
                                 .dtype = WT_UNREAD,
                                 .type = value->kind == PK_TENSOR ? "" : pk_type(value, what, sizeof what)};
        status = value->kind == PK_TENSOR ? pytorch_read_tensor(r, name, key->as.string.length, value->as.args, err)
                                          : wt_add(r->f, &other, key->as.string.length, err);
        if (status != MAR_OK) return status;
    }
    return MAR_OK;
}

/* Names of weight sets, in order of preference. LlamaGen's average is `ema`, but its own code loads `model`. */
static const struct {
    const char *name;
    mar_weights weights;
} sets[] = {{"model_ema", MAR_WEIGHTS_EMA},
            {"model", MAR_WEIGHTS_MODEL},
            {"module", MAR_WEIGHTS_MODEL},
            {"state_dict", MAR_WEIGHTS_MODEL},
            {"ema", MAR_WEIGHTS_EMA}};

/* Finds the requested set, or returns NULL. Sets f->set, and f->other for another kind that is present. */
static const pk_value *find_set(wt_file *f, const pk_value *root)
{
    const pk_value *found = NULL;
    int has[MAR_WEIGHTS_MODEL + 1] = {0};
    mar_weights taken = MAR_WEIGHTS_AUTO;
    for (size_t i = 0; i < sizeof sets / sizeof *sets; i++) {
        const pk_value *v = pk_get(root, sets[i].name);
        if (!v || v->kind != PK_DICT) continue; /* model_ema is None if training kept no average */
        has[sets[i].weights] = 1;
        if (found || (f->weights && f->weights != sets[i].weights)) continue;
        found = v;
        f->set = sets[i].name;
        taken = sets[i].weights;
    }
    for (mar_weights w = MAR_WEIGHTS_EMA; w <= MAR_WEIGHTS_MODEL; w++)
        if (has[w] && w != taken) f->other = w;
    return found;
}

/* Returns MAR_EFORMAT for a file without a tensor that is read. */
static mar_status refuse_empty(const wt_file *f, mar_err *err)
{
    const wt_tensor *unread = NULL;
    for (int i = f->count; i-- > 0;) {
        if (f->tensors[i].dtype != WT_UNREAD) return MAR_OK;
        unread = &f->tensors[i];
    }
    if (!unread)
        return err_set(err, MAR_EFORMAT, "%s: no tensors in it, nor in its model_ema, model, module, state_dict or ema",
                       f->path);
    return err_set(err, MAR_EFORMAT, "%s: no tensors of a type that is read; \"%s\" has type %s", f->path, unread->name,
                   unread->type);
}

/* Writes an option's value: a number as it is, and in words what is no number: "the string '384'". */
static void option_text(const pk_value *v, char *text, size_t size)
{
    char what[256];
    if (v->kind == PK_INT)
        err_line(text, size, "%lld", (long long)v->as.integer);
    else if (v->kind == PK_STRING)
        err_line(text, size, "the string '%.*s'", v->as.string.length < 64 ? (int)v->as.string.length : 64,
                 v->as.string.text);
    else if (v->kind == PK_FLOAT)
        err_line(text, size, "the float %.9g", v->as.real);
    else if (v->kind == PK_BOOL)
        err_line(text, size, "the bool %s", v->as.integer ? "True" : "False");
    else
        err_line(text, size, "%s", pk_describe(v, what, sizeof what));
}

/* Keeps options of the training run, an argparse.Namespace or a dict, that no tensor shows as metadata: those that give
 * the number of tokens of LlamaGen's images. Any value is kept, so that a model that needs the option can refuse it. */
static mar_status keep_options(wt_file *f, const pk_value *root, mar_err *err)
{
    static const char *const names[] = {"image_size", "downsample_size"};
    const pk_value *args = pk_get(root, "args");
    if (!args || (args->kind != PK_OPTIONS && args->kind != PK_DICT)) return MAR_OK;
    f->metadata = calloc(sizeof names / sizeof *names, sizeof *f->metadata);
    if (!f->metadata) return err_set(err, MAR_ENOMEM, "%s: out of memory for its options", f->path);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char key[32], text[256];
        const pk_value *value = pk_get(args, names[i]);
        if (!value || value->kind == PK_NONE) continue;
        const int n = snprintf(key, sizeof key, "args.%s", names[i]);
        option_text(value, text, sizeof text);
        f->metadata[f->n_metadata] =
            (wt_pair){wt_pool_text(&f->pool, key, (size_t)n), wt_pool_text(&f->pool, text, strlen(text))};
        if (!f->metadata[f->n_metadata].key || !f->metadata[f->n_metadata].value)
            return err_set(err, MAR_ENOMEM, "%s: out of memory for its options", f->path);
        f->n_metadata++;
    }
    return MAR_OK;
}

static mar_status read_root(reader *r, const pk_value *root, mar_err *err)
{
    char what[256];
    if (root->kind != PK_DICT)
        return err_set(err, MAR_EFORMAT, "%s: it contains %s, expected a dict of tensors", r->f->path,
                       pk_describe(root, what, sizeof what));
    const pk_value *set = find_set(r->f, root), *dict = set ? set : root;
    if (!set && r->f->other)
        return err_set(err, MAR_EARG,
                       r->f->weights == MAR_WEIGHTS_EMA
                           ? "--weights ema: %s has no model_ema or ema, but weights model"
                           : "--weights model: %s has no model, module or state_dict, but weights ema",
                       r->f->path);
    if (set)
        snprintf(r->f->format, sizeof r->f->format, "%s (%s)", r->format, r->f->set);
    else
        snprintf(r->f->format, sizeof r->f->format, "%s", r->format);
    mar_status status = read_dict(r, dict, dict == root, err);
    if (status == MAR_OK) status = keep_options(r->f, root, err);
    return status == MAR_OK ? refuse_empty(r->f, err) : status;
}

static mar_status read_archive(reader *r, mar_err *err)
{
    uint64_t offset, size;
    pk_pickle structure;
    mar_status status = find_prefix(r, err);
    if (status == MAR_OK) status = check_byteorder(r, err);
    if (status == MAR_OK) status = find_contents(r, "data.pkl", "", 0, &offset, &size, err);
    if (status != MAR_OK) return status;
    if (!offset || size > PICKLE_MAX)
        return err_set(err, MAR_EFORMAT, "%s: its data.pkl is missing or larger than %d bytes", r->f->path, PICKLE_MAX);
    uint8_t *pickle = malloc(size + 1);
    if (!pickle) return err_set(err, MAR_ENOMEM, "%s: out of memory for data.pkl", r->f->path);
    status = file_source_read(&r->f->source, offset, size, pickle, err);
    if (status == MAR_OK) status = pk_parse(r->f->path, pickle, size, &r->values, &structure, err);
    if (status == MAR_OK) status = read_root(r, structure.root, err);
    free(pickle); /* values point into it */
    return status;
}

static mar_status read_legacy(reader *r, mar_err *err)
{
    r->format = "PyTorch before 1.6";
    mar_status status = legacy_open(&r->f->source, &r->values, element_size, &r->legacy, err);
    if (status == MAR_OK) status = read_root(r, r->legacy.root, err);
    legacy_close(&r->legacy);
    return status;
}

static mar_status read_zip(reader *r, mar_err *err)
{
    r->format = "PyTorch zip";
    mar_status status = zip_open(&r->f->source, &r->zip, err);
    if (status != MAR_OK) return status;
    status = read_archive(r, err);
    zip_close(&r->zip);
    return status;
}

mar_status wt_pytorch_read(wt_file *f, mar_err *err)
{
    reader r = {.f = f, .values = {.limit = PICKLE_MEMORY_MAX}};
    const mar_status status = legacy_recognise(f->start, f->n_start) ? read_legacy(&r, err) : read_zip(&r, err);
    wt_pool_free(&r.values);
    return status;
}
