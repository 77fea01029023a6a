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

static mar_status refuse_twice(const wt_file *f, const char *name, mar_err *err)
{
    if (!f->removed) return err_set(err, MAR_EFORMAT, "%s: tensor \"%s\" appears twice", f->path, name);
    return err_set(err, MAR_EFORMAT, "%s: tensor \"%s\" appears twice, where names lost %s", f->path, name, f->prefix);
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

/* Parts of names that training adds: DistributedDataParallel, torch.compile, FSDP and activation checkpointing wrap a
 * module anywhere in a model. No model that is read has such parts in its own names. Lightning's "model." is the name
 * of a field, and may be a model's own: it is removed by wt_take_off_model alone. */
static const char *const added[] = {"module.", "_orig_mod.", "_fsdp_wrapped_module.", "_checkpoint_wrapped_module.",
                                    "model."};
enum { WRAPPERS = 4, MODEL = 4, ADDED = 5 };

/* Returns the wrapper whose part begins text[length] and does not end it, or -1. */
static int wrapper_at(const char *text, size_t length)
{
    for (int i = 0; i < WRAPPERS; i++) {
        const size_t n = strlen(added[i]);
        if (length > n && memcmp(text, added[i], n) == 0) return i;
    }
    return -1;
}

/* Removes the parts that wrappers have added to a name. Returns their bits. */
static unsigned unwrap(char *name)
{
    unsigned bits = 0;
    size_t n = 0;
    for (size_t i = 0, length = strlen(name); i <= length;) { /* the NUL, too */
        const int wrapper = i == 0 || name[i - 1] == '.' ? wrapper_at(name + i, length - i) : -1;
        if (wrapper < 0) {
            name[n++] = name[i++];
            continue;
        }
        bits |= 1u << wrapper;
        i += strlen(added[wrapper]);
    }
    return bits;
}

void wt_note_removed(wt_file *f, unsigned bits)
{
    f->removed |= bits;
    f->prefix[0] = '\0';
    size_t n = 0;
    for (unsigned i = 0, left = f->removed; i < ADDED; i++) {
        if (!(left & 1u << i)) continue;
        left &= ~(1u << i);
        n += (size_t)snprintf(f->prefix + n, sizeof f->prefix - n, "%s%s",
                              n == 0 ? ""
                              : left ? ", "
                                     : " and ",
                              added[i]);
    }
}

mar_status wt_add(wt_file *f, const wt_tensor *t, size_t name_length, mar_err *err)
{
    char *name = wt_pool_text(&f->pool, t->name, name_length);
    const unsigned bits = name ? unwrap(name) : 0;
    const char *type = t->dtype == WT_UNREAD ? wt_pool_text(&f->pool, t->type, strlen(t->type)) : NULL;
    if (!name || (t->dtype == WT_UNREAD && !type) || !wt_table_grow(f))
        return err_set(err, MAR_ENOMEM, "%s: out of memory for the tensor table", f->path);
    if (bits) wt_note_removed(f, bits);
    size_t slot = find_slot(f, name);
    if (f->slots[slot] >= 0) return refuse_twice(f, name, err);
    f->slots[slot] = f->count;
    wt_tensor *new = &f->tensors[f->count];
    *new = *t;
    new->name = name;
    new->type = type;
    new->shortened |= bits;
    uint64_t bytes;
    if (type && !wt_measure(new, &bytes)) new->rank = 0, new->count = 1;
    f->count++;
    return MAR_OK;
}

/* Takes `prefix` off the names that have it. Returns their number. */
static int take_off(wt_file *f, const char *prefix)
{
    const size_t length = strlen(prefix);
    int taken = 0;
    for (int i = 0; i < f->count; i++) {
        wt_tensor *t = &f->tensors[i];
        if (strncmp(t->name, prefix, length) != 0 || !t->name[length]) continue;
        t->name += length;
        taken++;
    }
    return taken;
}

mar_status wt_take_off_model(wt_file *f, int (*fits)(const wt_file *f), mar_err *err)
{
    if (fits(f)) return MAR_OK;
    const char **names = malloc(((size_t)f->count + 1) * sizeof *names);
    if (!names) return err_set(err, MAR_ENOMEM, "%s: out of memory for the tensor table", f->path);
    const wt_tensor *twice = NULL;
    int found = 0;
    for (int i = 0; i < f->count; i++) names[i] = f->tensors[i].name;
    for (int times = 0; times < 2 && !found && take_off(f, added[MODEL]) > 0; times++) {
        twice = fill_slots(f);
        found = fits(f);
    }
    for (int i = 0; i < f->count; i++) {
        wt_tensor *t = &f->tensors[i];
        if (!found)
            t->name = names[i];
        else if (t->name != names[i])
            t->shortened |= 1u << MODEL;
    }
    free(names);
    if (!found) fill_slots(f);
    if (!found) return MAR_OK;
    wt_note_removed(f, 1u << MODEL);
    return twice ? refuse_twice(f, twice->name, err) : MAR_OK;
}

void wt_narrow(wt_file *f, const char *prefix)
{
    const size_t length = strlen(prefix);
    unsigned removed = 0;
    int kept = 0;
    for (int i = 0; i < f->count; i++) {
        if (strncmp(f->tensors[i].name, prefix, length) != 0) continue;
        f->tensors[kept] = f->tensors[i];
        removed |= f->tensors[kept].shortened;
        f->tensors[kept++].name += length;
    }
    f->count = kept;
    f->removed = 0;
    wt_note_removed(f, removed);
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
    return twice ? refuse_twice(f, twice->name, err) : MAR_OK;
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

mar_status wt_add_metadata(wt_file *f, const char *key, const char *value, size_t length, mar_err *err)
{
    wt_pair *pairs = realloc(f->metadata, ((size_t)f->n_metadata + 1) * sizeof *pairs);
    if (pairs) f->metadata = pairs;
    const wt_pair pair = {wt_pool_text(&f->pool, key, strlen(key)), wt_pool_text(&f->pool, value, length)};
    if (!pairs || !pair.key || !pair.value) return err_set(err, MAR_ENOMEM, "%s: out of memory", f->path);
    pairs[f->n_metadata++] = pair;
    return MAR_OK;
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
    [WT_F64] = {"F64", 8},         [WT_F32] = {"F32", 4},         [WT_F16] = {"F16", 2}, [WT_BF16] = {"BF16", 2},
    [WT_F8_E4M3] = {"F8_E4M3", 1}, [WT_F8_E5M2] = {"F8_E5M2", 1}, [WT_I64] = {"I64", 8}, [WT_I32] = {"I32", 4},
    [WT_I16] = {"I16", 2},         [WT_I8] = {"I8", 1},           [WT_U8] = {"U8", 1},   [WT_BOOL] = {"BOOL", 1},
    [WT_I4] = {"I4", 0},           [WT_UNREAD] = {"unread", 0},
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
    *tensors = 0;
    for (int i = 0; i < f->count; i++) *tensors += f->tensors[i].dtype != WT_UNREAD && f->tensors[i].shortened != 0;
    return *tensors ? f->prefix : NULL;
}

const char *wt_dtype_name(wt_dtype dtype)
{
    return dtypes[dtype].name;
}

size_t wt_dtype_size(wt_dtype dtype)
{
    return dtypes[dtype].size;
}

int wt_is_float(wt_dtype dtype)
{
    return dtype <= WT_BF16 || wt_is_fp8(dtype);
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
    wt_format_shape(t->rank, t->shape, buffer, size);
    const size_t n = strlen(buffer);
    if (t->dtype == WT_UNREAD) snprintf(buffer + n, size - n, " of type %s, which is not read", t->type);
    return buffer;
}
