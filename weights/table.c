/* The tensors of a checkpoint: filled by a reader, found by name. */
#include "weights/table.h"

#include "base/printable.h"
#include "weights/shape.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* --- filling -------------------------------------------------------------------------------------- */

/* Returns the slot of `name`, or the empty slot where it belongs. */
static size_t find_slot(const wt_file *f, const char *name)
{
    size_t i = wt_hash(&f->seed, name, strlen(name)) & (f->n_slots - 1);
    while (f->slots[i] >= 0 && strcmp(f->tensors[f->slots[i]].name, name) != 0) i = (i + 1) & (f->n_slots - 1);
    return i;
}

/* Enters all tensors in the slots. Returns one whose name another has, or NULL. */
static const wt_tensor *fill_slots(wt_file *f)
{
    const wt_tensor *twice = NULL;
    memset(f->slots, 0xff, f->n_slots * sizeof *f->slots);
    for (int i = 0; i < f->count; i++) {
        int *slot = &f->slots[find_slot(f, f->tensors[i].name)];
        if (*slot >= 0) twice = &f->tensors[i];
        *slot = i;
    }
    return twice;
}

int wt_table_grow(wt_file *f)
{
    if (f->count < f->capacity) return 1;
    int capacity = f->capacity ? 2 * f->capacity : 256;
    wt_tensor *tensors = realloc(f->tensors, (size_t)capacity * sizeof *tensors);
    if (!tensors) return 0;
    f->tensors = tensors;
    size_t n_slots = 2 * (size_t)capacity;
    int *slots = malloc(n_slots * sizeof *slots);
    if (!slots) return 0;
    free(f->slots);
    f->slots = slots;
    f->n_slots = n_slots;
    f->capacity = capacity;
    fill_slots(f);
    return 1;
}

/* Writes up to 100 bytes of text to buffer, bytes other than printable ASCII as \xNN. Returns buffer. */
static const char *escaped(const char *text, size_t length, char buffer[404])
{
    size_t n = 0;
    for (size_t i = 0; i < length && i < 100; i++) {
        const uint8_t c = (uint8_t)text[i];
        n += (size_t)snprintf(buffer + n, 404 - n, c >= 0x20 && c < 0x7f ? "%c" : "\\x%02x", c);
    }
    buffer[n] = '\0';
    return buffer;
}

mar_status wt_check_text(const wt_file *f, const char *what, const char *text, size_t length, mar_err *err)
{
    char shown[404];
    unsigned c;
    for (size_t i = 0, n; i < length; i += n) {
        n = utf8_decode(text + i, length - i, &c);
        if (n > 0 && c != 0) continue;
        return err_set(err, MAR_EFORMAT, "%s: the %s \"%s\" %s byte %zu", f->path, what, escaped(text, length, shown),
                       n > 0 ? "contains a NUL at" : "is no valid UTF-8 at", i);
    }
    return MAR_OK;
}

/* Returns the length of the prefixes of training wrappers: "module." of DistributedDataParallel and "_orig_mod." of
 * torch.compile, in either order. */
static size_t prefix_length(const char *name, size_t length)
{
    static const char *const prefixes[] = {"module.", "_orig_mod."};
    size_t n = 0;
    for (int used = 0, i = 0; i < 2; i++) {
        const size_t m = strlen(prefixes[i]);
        if ((used & 1 << i) || length - n <= m || memcmp(name + n, prefixes[i], m) != 0) continue;
        n += m;
        used |= 1 << i;
        i = -1; /* the other one may follow */
    }
    return n;
}

mar_status wt_add(wt_file *f, const wt_tensor *t, size_t name_length, mar_err *err)
{
    const size_t prefix = prefix_length(t->name, name_length);
    char *name = wt_pool_text(&f->pool, t->name + prefix, name_length - prefix);
    if (prefix && f->n_prefixed++ == 0) snprintf(f->prefix, sizeof f->prefix, "%.*s", (int)prefix, t->name);
    if (!name || !wt_table_grow(f)) return err_set(err, MAR_ENOMEM, "%s: out of memory for the tensor table", f->path);
    size_t slot = find_slot(f, name);
    if (f->slots[slot] >= 0) return err_set(err, MAR_EFORMAT, "%s: tensor \"%s\" appears twice", f->path, name);
    f->slots[slot] = f->count;
    f->tensors[f->count] = *t;
    f->tensors[f->count].name = name;
    f->count++;
    return MAR_OK;
}

void wt_narrow(wt_file *f, const char *prefix)
{
    const size_t length = strlen(prefix);
    int kept = 0;
    for (int i = 0; i < f->count; i++) {
        if (strncmp(f->tensors[i].name, prefix, length) != 0) continue;
        f->tensors[kept] = f->tensors[i];
        f->tensors[kept++].name += length;
    }
    f->count = kept;
    fill_slots(f);
}

/* A place in a name where a pattern stands. */
typedef struct {
    int begin, length;
    int number, digits; /* place and length of what # stands for */
} place;

/* Finds the first place. Returns 0 if there is none. */
static int find_pattern(const char *name, const char *pattern, place *out)
{
    for (int i = 0; name[i]; i++) {
        int at = i;
        const char *p = pattern;
        *out = (place){.begin = i};
        for (; *p && (*p == '#' || *p == name[at]); p++) {
            if (*p != '#') {
                at++;
                continue;
            }
            out->number = at;
            while (name[at] >= '0' && name[at] <= '9') at++;
            if ((out->digits = at - out->number) == 0) break;
        }
        out->length = at - i;
        if (!*p) return 1;
    }
    return 0;
}

/* Renames a tensor that has the pattern. */
static mar_status rename_tensor(wt_file *f, wt_tensor *t, const wt_naming *n, mar_err *err)
{
    const char *mark = strchr(n->to, '#'), *old = t->name;
    const int before = (int)(mark ? (size_t)(mark - n->to) : strlen(n->to));
    place p;
    char *text, *name;
    if (!find_pattern(old, n->from, &p)) return MAR_OK;
    if (asprintf(&text, "%.*s%.*s%.*s%s%s", p.begin, old, before, n->to, mark ? p.digits : 0, old + p.number,
                 mark ? mark + 1 : "", old + p.begin + p.length) < 0)
        text = NULL;
    name = text ? wt_pool_text(&f->pool, text, strlen(text)) : NULL;
    free(text);
    if (!name) return err_set(err, MAR_ENOMEM, "%s: out of memory for the tensor table", f->path);
    t->name = name;
    while (t->rank > 1 && t->rank < n->rank) t->shape[t->rank++] = 1;
    return MAR_OK;
}

mar_status wt_rename(wt_file *f, const wt_naming *names, int count, mar_err *err)
{
    for (int i = 0; i < f->count; i++)
        for (int j = 0; j < count; j++) {
            const mar_status status = rename_tensor(f, &f->tensors[i], &names[j], err);
            if (status != MAR_OK) return status;
        }
    const wt_tensor *twice = fill_slots(f);
    if (twice) return err_set(err, MAR_EFORMAT, "%s: tensor \"%s\" appears twice", f->path, twice->name);
    return MAR_OK;
}

int wt_measure(wt_tensor *t, uint64_t *bytes)
{
    int64_t count = 1;
    for (int i = 0; i < t->rank; i++)
        if (t->shape[i] < 0 || __builtin_mul_overflow(count, t->shape[i], &count)) return 0;
    t->count = count;
    return !__builtin_mul_overflow((uint64_t)count, (uint64_t)wt_dtype_size(t->dtype), bytes);
}

/* --- finding -------------------------------------------------------------------------------------- */

const char *wt_path(const wt_file *f)
{
    return f->path;
}

const char *wt_format(const wt_file *f)
{
    return f->format;
}

int wt_count(const wt_file *f)
{
    return f->count;
}

const wt_tensor *wt_at(const wt_file *f, int i)
{
    return &f->tensors[i];
}

const wt_tensor *wt_find(const wt_file *f, const char *name)
{
    int i = f->slots[find_slot(f, name)];
    return i < 0 ? NULL : &f->tensors[i];
}

const char *wt_metadata(const wt_file *f, const char *key)
{
    for (int i = 0; i < f->n_metadata; i++)
        if (strcmp(f->metadata[i].key, key) == 0) return f->metadata[i].value;
    return NULL;
}

int wt_metadata_count(const wt_file *f)
{
    return f->n_metadata;
}

const char *wt_metadata_at(const wt_file *f, int i, const char **value)
{
    *value = f->metadata[i].value;
    return f->metadata[i].key;
}

static const struct {
    const char *name;
    size_t size;
} dtypes[] = {
    [WT_F64] = {"F64", 8}, [WT_F32] = {"F32", 4},   [WT_F16] = {"F16", 2}, [WT_BF16] = {"BF16", 2},
    [WT_I64] = {"I64", 8}, [WT_I32] = {"I32", 4},   [WT_I16] = {"I16", 2}, [WT_I8] = {"I8", 1},
    [WT_U8] = {"U8", 1},   [WT_BOOL] = {"BOOL", 1}, [WT_I4] = {"I4", 0},
};

const char *wt_set(const wt_file *f)
{
    return f->set;
}

mar_weights wt_other_weights(const wt_file *f)
{
    return f->other;
}

const char *wt_prefix(const wt_file *f, int *tensors)
{
    *tensors = f->n_prefixed;
    return f->n_prefixed ? f->prefix : NULL;
}

const char *wt_dtype_name(wt_dtype dtype)
{
    return dtypes[dtype].name;
}

size_t wt_dtype_size(wt_dtype dtype)
{
    return dtypes[dtype].size;
}

uint64_t wt_bytes_of(const wt_tensor *t)
{
    const uint64_t n = (uint64_t)t->count;
    return t->dtype == WT_I4 ? n / 2 : n * wt_dtype_size(t->dtype);
}

const char *wt_format_shape(int rank, const int64_t *shape, char *buffer, size_t size)
{
    size_t n = (size_t)snprintf(buffer, size, "[");
    for (int i = 0; i < rank && n < size; i++)
        n += (size_t)snprintf(buffer + n, size - n, "%s%lld", i ? ", " : "", (long long)shape[i]);
    if (n < size) snprintf(buffer + n, size - n, "]");
    return buffer;
}

void wt_add_elements(void *total, const char *name, int rank, const int64_t *shape)
{
    long count = 1;
    (void)name;
    for (int i = 0; i < rank; i++) count *= (long)shape[i];
    *(long *)total += count;
}

const char *wt_shape_text(const wt_tensor *t, char *buffer, size_t size)
{
    return wt_format_shape(t->rank, t->shape, buffer, size);
}
