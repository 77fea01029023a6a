/* Statistics of a tokenizer's latents, as l-DeTok's release has them: stats.pkl beside the tokenizer, which
 * collect_tokenizer_stats writes (utils/train_utils.py). It is a pickle of a dict: name of a tokenizer -> {"channel":
 * (mean, std), ...}. The tensors lie in it as files of torch.save before 1.6. */
#include "weights/legacy.h"
#include "weights/table.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { STATISTICS_MAX = 16 << 20 };

static const char statistics_name[] = "stats.pkl";

/* An open stats.pkl. */
typedef struct {
    wt_file *f; /* the tokenizer's */
    char path[PATH_MAX];
    uint8_t *bytes;
    wt_pool values;
    const pk_value *key; /* of the entry */
    int channels;
} statistics;

/* Finds the file in the tokenizer's folder. */
static mar_status statistics_find(statistics *s, mar_err *err)
{
    const char *path = s->f->path, *slash = strrchr(path, '/');
    const int folder = slash ? (int)(slash - path) + 1 : 0, is_path = !s->f->source.memory && !s->f->source.borrowed;
    if (is_path && snprintf(s->path, sizeof s->path, "%.*s%s", folder, path, statistics_name) < PATH_MAX &&
        access(s->path, F_OK) == 0)
        return MAR_OK;
    return err_set(err, is_path ? MAR_EIO : MAR_EMODEL,
                   "%s: has no tensors mean and std, the statistics of its latents%s%s", path,
                   is_path ? ": expected the release's stats.pkl beside it, " : ", and no folder with stats.pkl",
                   is_path ? s->path : "");
}

static mar_status statistics_parse(statistics *s, pk_pickle *out, mar_err *err)
{
    file_source source;
    mar_status status = file_source_open(s->path, &source, err);
    if (status != MAR_OK) return status;
    const size_t size = (size_t)source.size;
    if (source.size > STATISTICS_MAX)
        status = err_set(err, MAR_EFORMAT, "%s: has %llu bytes, expected at most %d", s->path,
                         (unsigned long long)source.size, STATISTICS_MAX);
    else if (!(s->bytes = malloc(size + 1)))
        status = err_set(err, MAR_ENOMEM, "%s: out of memory", s->path);
    else
        status = file_source_read(&source, 0, size, s->bytes, err);
    file_source_close(&source);
    if (status == MAR_OK) status = pk_parse(s->path, s->bytes, size, &s->values, out, err);
    if (status == MAR_OK && out->root->kind != PK_DICT)
        status = err_set(err, MAR_EFORMAT, "%s: is no dict of tokenizers' statistics", s->path);
    return status;
}

/* Chooses the only entry, or the one with the longest name that begins the tokenizer's: the release names a file by the
 * tokenizer, and what is tuned behind the latents follows. */
static mar_status statistics_choose(statistics *s, const pk_value *root, const pk_value **entry, mar_err *err)
{
    const char *slash = strrchr(s->f->path, '/'), *name = slash ? slash + 1 : s->f->path;
    const size_t count = root->as.list.count / 2;
    for (size_t i = 0; i < count; i++) {
        const pk_value *key = root->as.list.items[2 * i];
        if (key->kind != PK_STRING) continue;
        const size_t n = key->as.string.length;
        const int fits = count == 1 || (strlen(name) >= n && memcmp(name, key->as.string.text, n) == 0);
        if (!fits || (s->key && n < s->key->as.string.length)) continue;
        s->key = key;
        *entry = root->as.list.items[2 * i + 1];
    }
    if (s->key) return MAR_OK;
    return err_set(err, MAR_EMODEL, "%s: has %zu tokenizers, expected one whose name begins that of the file, %s",
                   s->path, count, name);
}

static size_t statistics_element(const pk_value *class)
{
    return pk_is_class(class, "torch.FloatStorage") ? sizeof(float) : 0;
}

/* Copies the first `channels` of the storage's floats from `first` on. */
static mar_status statistics_copy(statistics *s, const pk_value *bytes, int64_t first, float *to, mar_err *err)
{
    const uint8_t *data = (const uint8_t *)bytes->as.string.text;
    const size_t size = bytes->as.string.length;
    const file_source source = file_source_of_memory(data, size, s->path);
    legacy_directory d = {0};
    if (!legacy_recognise(data, size))
        return err_set(err, MAR_EFORMAT, "%s: a storage is no file of torch.save before 1.6", s->path);
    mar_status status = legacy_open(&source, &s->values, statistics_element, &d, err);
    const pk_value *key = status == MAR_OK && d.root->kind == PK_STORAGE ? d.root->as.args->as.list.items[2] : NULL;
    const legacy_storage *storage = key ? legacy_find(&d, key->as.string.text, key->as.string.length) : NULL;
    const uint64_t end = ((uint64_t)first + (uint64_t)s->channels) * sizeof *to;
    if (status == MAR_OK && (!storage || !storage->offset || first < 0 || first > INT_MAX || end > storage->size))
        status = err_set(err, MAR_EFORMAT, "%s: a storage has not the %d numbers of its tensor", s->path, s->channels);
    if (status == MAR_OK)
        memcpy(to, data + storage->offset + (size_t)first * sizeof *to, (size_t)s->channels * sizeof *to);
    legacy_close(&d);
    return status;
}

/* Returns the only number of a tuple, or -1. */
static int64_t statistics_only(const pk_value *tuple)
{
    const int is_one = tuple->kind == PK_TUPLE && tuple->as.list.count == 1;
    return is_one && tuple->as.list.items[0]->kind == PK_INT ? tuple->as.list.items[0]->as.integer : -1;
}

/* Adds a tensor `name` of the pickled tensor v, which has as many numbers as channels, or twice: those of logarithms of
 * variances follow. */
static mar_status statistics_add(statistics *s, const char *name, const pk_value *v, mar_err *err)
{
    char what[256];
    wt_tensor t = {.name = name, .dtype = WT_F32, .rank = 1, .shape = {s->channels}, .count = s->channels};
    pk_value *const *items = v->kind == PK_TENSOR && v->as.args->as.list.count >= 4 ? v->as.args->as.list.items : NULL;
    const int64_t size = items ? statistics_only(items[2]) : -1;
    if (!items || items[0]->kind != PK_BYTES || items[1]->kind != PK_INT || statistics_only(items[3]) != 1)
        return err_set(err, MAR_EFORMAT, "%s: %s of %.*s is %s, expected a tensor of one dimension", s->path, name,
                       (int)(s->key->as.string.length < 64 ? s->key->as.string.length : 64), s->key->as.string.text,
                       pk_describe(v, what, sizeof what));
    if (size != s->channels && size != 2 * (int64_t)s->channels)
        return err_set(err, MAR_EMODEL, "%s: %s of %.*s has %lld numbers, expected those of %d channels", s->path, name,
                       (int)(s->key->as.string.length < 64 ? s->key->as.string.length : 64), s->key->as.string.text,
                       (long long)size, s->channels);
    float *copy = wt_pool_alloc(&s->f->pool, (size_t)s->channels * sizeof *copy);
    if (!copy) return err_set(err, MAR_ENOMEM, "%s: out of memory", s->path);
    t.copy = (const uint8_t *)copy;
    const mar_status status = statistics_copy(s, items[0], items[1]->as.integer, copy, err);
    return status == MAR_OK ? wt_add(s->f, &t, strlen(name), err) : status;
}

mar_status wt_add_statistics(wt_file *f, int channels, mar_err *err)
{
    statistics s = {.f = f, .values = {.limit = STATISTICS_MAX}, .channels = channels};
    pk_pickle pickle;
    const pk_value *entry = NULL, *channel = NULL;
    mar_status status = statistics_find(&s, err);
    if (status == MAR_OK) status = statistics_parse(&s, &pickle, err);
    if (status == MAR_OK) status = statistics_choose(&s, pickle.root, &entry, err);
    if (status == MAR_OK) channel = pk_get(entry, "channel");
    if (status == MAR_OK && (!channel || channel->kind != PK_TUPLE || channel->as.list.count != 2))
        status = err_set(err, MAR_EFORMAT, "%s: an entry has no \"channel\", expected a mean and a standard deviation",
                         s.path);
    if (status == MAR_OK) status = statistics_add(&s, "mean", channel->as.list.items[0], err);
    if (status == MAR_OK) status = statistics_add(&s, "std", channel->as.list.items[1], err);
    free(s.bytes);
    wt_pool_free(&s.values);
    return status;
}
