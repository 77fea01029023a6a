#include "weights/legacy.h"

#include "weights/number.h"

#include <stdlib.h>
#include <string.h>

enum { PICKLES_MAX = 16 << 20, VERSION = 1001 };

/* 0x1950a86a20f9469cfc6c, pickled: the first object of the file. */
static const uint8_t magic[] = {0x8a, 10, 0x6c, 0xfc, 0x9c, 0x46, 0xf9, 0x20, 0x6a, 0xa8, 0x50, 0x19};

int legacy_recognise(const uint8_t *start, size_t n)
{
    size_t at = 2; /* skip PROTO, and from protocol 4 a FRAME of 9 bytes */
    if (n < 2 || start[0] != 0x80) return 0;
    if (start[1] >= 4 && n > at && start[at] == 0x95) at += 9;
    return n >= at + sizeof magic && memcmp(start + at, magic, sizeof magic) == 0;
}

/* Reading position in the five pickles. */
typedef struct {
    const file_source *source;
    const uint8_t *data; /* [size] */
    size_t size, at;
    wt_pool *pool;
    mar_err *err;
} reader;

static mar_status read_pickle(reader *r, pk_pickle *out)
{
    const mar_status status = pk_parse(r->source->path, r->data + r->at, r->size - r->at, r->pool, out, r->err);
    if (status == MAR_OK) r->at += out->size;
    return status;
}

/* Reads and checks the magic number, the version and the byte order. */
static mar_status read_head(reader *r)
{
    pk_pickle number, version, system;
    mar_status status = read_pickle(r, &number);
    if (status == MAR_OK) status = read_pickle(r, &version);
    if (status == MAR_OK) status = read_pickle(r, &system);
    if (status != MAR_OK) return status;
    if (version.root->kind != PK_INT || version.root->as.integer != VERSION)
        return err_set(r->err, MAR_EFORMAT, "%s: it is of another version than %d of its format", r->source->path,
                       VERSION);
    const pk_value *little = pk_get(system.root, "little_endian");
    if (!little || little->kind != PK_BOOL || !little->as.integer)
        return err_set(r->err, MAR_EFORMAT, "%s: its byte order is not said to be little-endian, which is expected",
                       r->source->path);
    return MAR_OK;
}

/* --- storages ----------------------------------------------------------------------------------------------------- */

static int legacy_compare(const char *a, size_t a_length, const char *b, size_t b_length)
{
    const size_t n = a_length < b_length ? a_length : b_length;
    const int order = n ? memcmp(a, b, n) : 0;
    return order ? order : (a_length > b_length) - (a_length < b_length);
}

static int compare_storages(const void *a, const void *b)
{
    const legacy_storage *x = a, *y = b;
    return legacy_compare(x->name, x->name_length, y->name, y->name_length);
}

static legacy_storage *weights_legacy_find(const legacy_directory *d, const char *name, size_t length)
{
    const legacy_storage wanted = {.name = name, .name_length = length};
    return d->count ? bsearch(&wanted, d->storages, d->count, sizeof wanted, compare_storages) : NULL;
}

const legacy_storage *legacy_find(const legacy_directory *d, const char *name, size_t length)
{
    return weights_legacy_find(d, name, length);
}

static mar_status read_id(const reader *r, const pk_value *storage, legacy_element_size *element, legacy_storage *out)
{
    const pk_value *args = storage->as.args; /* push_storage has checked that there are five */
    const pk_value *name = args->as.list.items[2];
    char what[256];
    if (name->kind != PK_STRING) return err_set(r->err, MAR_EFORMAT, "%s: a storage has no name", r->source->path);
    *out = (legacy_storage){.name = name->as.string.text, .name_length = name->as.string.length};
    if (args->as.list.count > 5 && args->as.list.items[5]->kind != PK_NONE)
        return err_set(
            r->err, MAR_EFORMAT,
            "%s: it has views of storages, as PyTorch wrote them before 0.4; load it and torch.save it again",
            r->source->path);
    out->element = element(args->as.list.items[1]);
    if (out->element == 0)
        return err_set(r->err, MAR_EFORMAT, "%s: a storage is of %s, expected a storage of floats or integers",
                       r->source->path, pk_describe(args->as.list.items[1], what, sizeof what));
    return MAR_OK;
}

/* Lists the storages that the object refers to, sorted, each once. */
static mar_status list_storages(const reader *r, const pk_pickle *object, legacy_element_size *element,
                                legacy_directory *d)
{
    d->storages = malloc((object->n_storages + 1) * sizeof *d->storages);
    if (!d->storages) return err_set(r->err, MAR_ENOMEM, "%s: out of memory for its storages", r->source->path);
    for (size_t i = 0; i < object->n_storages; i++) {
        const mar_status status = read_id(r, object->storages[i], element, &d->storages[i]);
        if (status != MAR_OK) return status;
    }
    qsort(d->storages, object->n_storages, sizeof *d->storages, compare_storages);
    for (size_t i = 0; i < object->n_storages; i++) {
        const legacy_storage *s = &d->storages[i];
        if (d->count == 0 || compare_storages(s, &d->storages[d->count - 1]) != 0)
            d->storages[d->count++] = *s;
        else if (s->element != d->storages[d->count - 1].element)
            return err_set(r->err, MAR_EFORMAT, "%s: a storage is of two types", r->source->path);
    }
    return MAR_OK;
}

/* Computes each storage's offset from the list of names: storages follow one another to the end of the file. */
static mar_status place_storages(const reader *r, const pk_value *names, legacy_directory *d)
{
    uint64_t at = r->at, bytes;
    uint8_t count[8];
    if (names->kind != PK_LIST)
        return err_set(r->err, MAR_EFORMAT, "%s: behind its object there is no list of storages", r->source->path);
    for (size_t i = 0; i < names->as.list.count; i++) {
        const pk_value *name = names->as.list.items[i];
        legacy_storage *s =
            name->kind == PK_STRING ? weights_legacy_find(d, name->as.string.text, name->as.string.length) : NULL;
        if (!s || s->offset)
            return err_set(r->err, MAR_EFORMAT, "%s: entry %zu of its list of storages is not one of its object%s",
                           r->source->path, i, s ? " that was not listed before" : "");
        mar_status status = MAR_OK;
        if (r->source->size - at < sizeof count)
            status = err_set(r->err, MAR_EFORMAT, "%s: it ends in front of storage %zu", r->source->path, i);
        else
            status = file_source_read(r->source, at, sizeof count, count, r->err);
        if (status != MAR_OK) return status;
        at += sizeof count;
        if (__builtin_mul_overflow(wt_le64(count), (uint64_t)s->element, &bytes) || bytes > r->source->size - at)
            return err_set(r->err, MAR_EFORMAT, "%s: storage %zu reaches past the end of the file", r->source->path, i);
        s->offset = at;
        s->size = bytes;
        at += bytes;
    }
    if (at != r->source->size)
        return err_set(r->err, MAR_EFORMAT, "%s: %llu bytes follow its last storage, expected none", r->source->path,
                       (unsigned long long)(r->source->size - at));
    return MAR_OK;
}

mar_status legacy_open(const file_source *source, wt_pool *pool, legacy_element_size *element, legacy_directory *out,
                       mar_err *err)
{
    *out = (legacy_directory){0};
    const size_t size = source->size < PICKLES_MAX ? (size_t)source->size : PICKLES_MAX;
    out->bytes = malloc(size + 1);
    if (!out->bytes) return err_set(err, MAR_ENOMEM, "%s: out of memory for its pickles", source->path);
    reader r = {.source = source, .data = out->bytes, .size = size, .pool = pool, .err = err};
    pk_pickle object, names;
    mar_status status = file_source_read(source, 0, size, out->bytes, err);
    if (status == MAR_OK) status = read_head(&r);
    if (status == MAR_OK) status = read_pickle(&r, &object);
    if (status == MAR_OK) status = read_pickle(&r, &names);
    if (status == MAR_OK) status = list_storages(&r, &object, element, out);
    if (status == MAR_OK) status = place_storages(&r, names.root, out);
    if (status == MAR_OK) out->root = object.root;
    return status;
}

void legacy_close(legacy_directory *d)
{
    free(d->bytes);
    free(d->storages);
}
