#include "text/vocabulary.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The ids while they are found. */
typedef struct {
    const wt_file *f;
    int rows;
    int *ids;             /* [room] by number, -1: not found */
    int room, count, end; /* ids found; one more than the largest number */
    uint8_t *seen;        /* [rows] 1: an image token has this id */
    mar_err *err;
} finding;

static mar_status vocabulary_refuse_memory(const wt_file *f, mar_err *err)
{
    return err_set(err, MAR_ENOMEM, "%s: out of memory for its vocabulary", wt_path(f));
}

static mar_status finding_begin(const wt_file *f, const text_vocabulary *v, finding *n, mar_err *err)
{
    *n = (finding){.f = f, .rows = v->rows, .seen = calloc((size_t)v->rows, 1), .err = err};
    return n->seen ? MAR_OK : vocabulary_refuse_memory(f, err);
}

/* Makes room for a number up to TEXT_CODEBOOK_MAX. */
static int vocabulary_make_room(finding *n, int number)
{
    int room = n->room ? n->room : 1024;
    while (room <= number) room *= 2;
    if (room == n->room) return 1;
    int *grown = realloc(n->ids, (size_t)room * sizeof *grown);
    if (!grown) return 0;
    for (int i = n->room; i < room; i++) grown[i] = -1;
    n->ids = grown;
    n->room = room;
    return 1;
}

/* Moves what was found to *v, unless an error came before or there are gaps. */
static mar_status finding_end(finding *n, mar_status status, text_vocabulary *v)
{
    if (status == MAR_OK && (n->count == 0 || n->count != n->end))
        status = err_set(n->err, MAR_EMODEL,
                         n->count == 0 ? "%s: the vocabulary has no image tokens"
                                       : "%s: the vocabulary lacks some of its image tokens",
                         wt_path(n->f));
    if (status == MAR_OK && !vocabulary_make_room(n, n->count)) status = vocabulary_refuse_memory(n->f, n->err);
    free(n->seen);
    *v = (text_vocabulary){.rows = v->rows, .line_end = -1};
    if (status == MAR_OK) {
        v->image_id = n->ids;
        v->count = n->count;
        v->image_id[v->count] = -1;
    } else {
        free(n->ids);
    }
    return status;
}

/* Adds the id of an image token. */
static mar_status vocabulary_add_image_id(finding *n, int64_t number, int64_t id)
{
    const char *path = wt_path(n->f);
    if (number < 0 || number >= TEXT_CODEBOOK_MAX)
        return err_set(n->err, MAR_EMODEL, "%s: image token %lld, expected a number below %d", path, (long long)number,
                       TEXT_CODEBOOK_MAX);
    if (id < 0 || id >= n->rows)
        return err_set(n->err, MAR_EMODEL, "%s: image token %lld has id %lld, expected one of the embedding's %d rows",
                       path, (long long)number, (long long)id, n->rows);
    if (!vocabulary_make_room(n, (int)number)) return vocabulary_refuse_memory(n->f, n->err);
    if (n->ids[number] >= 0 || n->seen[id])
        return err_set(n->err, MAR_EMODEL, "%s: image token %lld or id %lld is there twice", path, (long long)number,
                       (long long)id);
    n->ids[number] = (int)id;
    n->seen[id] = 1;
    n->count++;
    if (number >= n->end) n->end = (int)number + 1;
    return MAR_OK;
}

mar_status text_vocabulary_of_map(const wt_file *f, const json_value *map, text_image_number *number_of,
                                  text_vocabulary *v, mar_err *err)
{
    finding n;
    mar_status status = finding_begin(f, v, &n, err);
    for (const json_value *name = map + 1; name < json_next(map) && status == MAR_OK; name = json_next(name + 1)) {
        const int64_t number = number_of(name->text);
        int64_t id = -1;
        if (number < 0) continue;
        status = json_integer(name + 1, &id)
                     ? vocabulary_add_image_id(&n, number, id)
                     : err_set(err, MAR_EMODEL, "%s: the id of %s is no whole number", wt_path(f), name->text);
    }
    return finding_end(&n, status, v);
}

mar_status text_vocabulary_of_tokenizer(const wt_file *f, const text_tokenizer *t, text_image_name *write,
                                        text_vocabulary *v, mar_err *err)
{
    finding n;
    char name[32];
    mar_status status = finding_begin(f, v, &n, err);
    for (int number = 0, id; number < TEXT_CODEBOOK_MAX && status == MAR_OK; number++) {
        write(number, name);
        if ((id = text_tokenizer_find(t, name)) < 0) break;
        status = vocabulary_add_image_id(&n, number, id);
    }
    return finding_end(&n, status, v);
}

mar_status text_vocabulary_of_range(const wt_file *f, int first, int end, text_vocabulary *v, mar_err *err)
{
    finding n;
    mar_status status = finding_begin(f, v, &n, err);
    for (int id = first; id < end && status == MAR_OK; id++) status = vocabulary_add_image_id(&n, id - first, id);
    return finding_end(&n, status, v);
}

mar_status text_vocabulary_of_text(const wt_file *f, const char *text, text_vocabulary *v, mar_err *err)
{
    finding n;
    mar_status status = finding_begin(f, v, &n, err);
    while (*text && status == MAR_OK) {
        char *end;
        const long first = strtol(text, &end, 10);
        const long last = *end == '-' ? strtol(text = end + 1, &end, 10) : first;
        if (end == text || (*end && (*end != ',' || !end[1])) || first < 0 || last < first || last >= v->rows) {
            status = err_set(err, MAR_EMODEL, "%s: metadata mar.image_tokens is no list of ids below %d", wt_path(f),
                             v->rows);
            break;
        }
        for (long id = first; id <= last && status == MAR_OK; id++) status = vocabulary_add_image_id(&n, n.end, id);
        text = *end ? end + 1 : end;
    }
    return finding_end(&n, status, v);
}

mar_status text_vocabulary_set_line_end(const wt_file *f, int64_t id, const char *name, text_vocabulary *v,
                                        mar_err *err)
{
    int is_image = 0;
    for (int i = 0; i < v->count; i++) is_image |= v->image_id[i] == id;
    if (id < 0 || id >= v->rows || is_image)
        return err_set(err, MAR_EMODEL, "%s: the vocabulary has no line end %s", wt_path(f), name);
    v->line_end = v->image_id[v->count] = (int)id;
    return MAR_OK;
}

void text_vocabulary_free(text_vocabulary *v)
{
    free(v->image_id);
    *v = (text_vocabulary){.line_end = -1};
}

char *text_vocabulary_put(const text_vocabulary *v)
{
    enum { NUMBER = 24 }; /* bytes of a number with its mark */
    char *text = malloc(((size_t)v->count + 1) * NUMBER), *at = text;
    if (!text) return NULL;
    *at = '\0';
    for (int i = 0, last; i < v->count; i = last + 1) {
        for (last = i; last + 1 < v->count && v->image_id[last + 1] == v->image_id[last] + 1;) last++;
        at += snprintf(at, NUMBER, "%s%d", i ? "," : "", v->image_id[i]);
        if (last > i) at += snprintf(at, NUMBER, "-%d", v->image_id[last]);
    }
    return text;
}
