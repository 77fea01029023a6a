/* Folders as Hugging Face writes them: one file of tensors or shards with an index, and config.json. Folders of Meta's
 * releases: consolidated.pth and params.json. Image decoders of NextStep-1's: checkpoint.pt and config.json. */
#include "base/json.h"
#include "weights/shape.h"
#include "weights/table.h"

#include <dirent.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { SHARDS_MAX = 1024, LEVELS = 32 };

static const uint64_t json_max = 64u << 20; /* bytes; an index of 100 000 tensors has 10 MB */

/* Names of the files of tensors, the preferred first, and of the configuration. */
static const struct {
    const char *whole, *index, *config; /* index NULL: no shards */
} layouts[] = {{"model.safetensors", "model.safetensors.index.json", "config.json"},
               {"pytorch_model.bin", "pytorch_model.bin.index.json", "config.json"},
               {"consolidated.pth", NULL, "params.json"},
               {"checkpoint.pt", NULL, "config.json"}};
enum { LAYOUTS = sizeof layouts / sizeof *layouts };

/* A model's image decoder in a folder inside its own, as NextStep-1's release has it. */
static const char decoder_part[] = "vae/checkpoint.pt", decoder_prefix[] = "vae.";

/* Writes "FOLDER/NAME" to path [PATH_MAX]. Returns 0 if it is too long. */
static int weights_folder_join(const char *folder, const char *name, char *path)
{
    const size_t n = strlen(folder);
    return snprintf(path, PATH_MAX, "%s%s%s", folder, n && folder[n - 1] == '/' ? "" : "/", name) < PATH_MAX;
}

/* Returns 1 if the folder has such a name, also a link to nothing. */
static int folder_has(const char *folder, const char *name)
{
    char path[PATH_MAX];
    struct stat st;
    return weights_folder_join(folder, name, path) && lstat(path, &st) == 0;
}

/* Returns 1 if the folder has tensors in this layout. */
static int has_layout(const char *folder, int layout)
{
    const char *index = layouts[layout].index;
    return folder_has(folder, layouts[layout].whole) || (index && folder_has(folder, index));
}

int wt_is_folder(const char *path)
{
    for (int i = 0; i < LAYOUTS; i++)
        if (has_layout(path, i)) return 1;
    return 0;
}

/* --- JSON files --------------------------------------------------------------------------------------------------- */

/* Reads a JSON file whose first value is an object. *hash, unless NULL, becomes that of the text. The caller frees the
 * text and the values, also after an error. */
static mar_status read_json(const char *path, char **text, uint64_t *hash, json *out, mar_err *err)
{
    file_source source;
    *text = NULL;
    *out = (json){.values = NULL};
    mar_status status = file_source_open(path, &source, err);
    if (status != MAR_OK) return status;
    const size_t size = (size_t)source.size;
    if (source.size > json_max)
        status = err_set(err, MAR_EFORMAT, "%s: has %llu bytes, expected at most %llu", path,
                         (unsigned long long)source.size, (unsigned long long)json_max);
    else if (!(*text = calloc(size + 1, 1)))
        status = err_set(err, MAR_ENOMEM, "%s: out of memory", path);
    else
        status = file_source_read(&source, 0, size, *text, err);
    file_source_close(&source);
    if (status != MAR_OK) return status;
    if (hash) *hash = wt_text_digest(0, *text);
    const json_error error = json_read_python(*text, size, LEVELS, out);
    if (error == JSON_NO_MEMORY) return err_set(err, MAR_ENOMEM, "%s: out of memory", path);
    if (error != JSON_OK)
        return err_set(err, MAR_EFORMAT, "%s: is no valid JSON near byte %zu; half a download?", path, out->at);
    if (out->nul < size || out->not_utf8 < size)
        return err_set(err, MAR_EFORMAT, "%s: has a string with a NUL or with bytes that are no UTF-8", path);
    if (out->values->type != JSON_OBJECT) return err_set(err, MAR_EFORMAT, "%s: is no JSON object", path);
    return MAR_OK;
}

static mar_status read_config(wt_file *f, const char *name, mar_err *err)
{
    char path[PATH_MAX];
    if (!folder_has(f->path, name)) return MAR_OK;
    if (!weights_folder_join(f->path, name, path)) return err_set(err, MAR_EIO, "%s: the path is too long", f->path);
    return read_json(path, &f->config_text, &f->config_hash, &f->config, err);
}

mar_status wt_read_beside(const wt_file *f, const char *name, char **text, json *out, mar_err *err)
{
    char folder[PATH_MAX] = ".", path[PATH_MAX];
    const char *slash = strrchr(f->place, '/');
    *text = NULL;
    *out = (json){.values = NULL};
    if (!f->parts && (f->source.memory || f->source.borrowed)) return MAR_OK;
    if (f->parts || slash)
        snprintf(folder, sizeof folder, "%.*s", (int)(f->parts ? strlen(f->place) : (size_t)(slash - f->place + 1)),
                 f->place);
    if (!folder_has(folder, name)) return MAR_OK;
    if (!weights_folder_join(folder, name, path)) return err_set(err, MAR_EIO, "%s: the path is too long", f->path);
    return read_json(path, text, NULL, out, err);
}

const json_value *wt_config(const wt_file *f)
{
    return f->config.values;
}

const char *wt_config_text(const wt_file *f, const char *key)
{
    const json_value *v = f->config.values ? json_member(f->config.values, key) : NULL;
    return v && v->type == JSON_STRING ? v->text : NULL;
}

mar_status wt_config_number(const wt_file *f, const char *key, double *out, mar_err *err)
{
    const json_value *v = f->config.values ? json_member(f->config.values, key) : NULL;
    if (!v || v->type == JSON_NULL) return MAR_OK;
    const double number = json_double(v);
    if (!(number > 0 && number < 1e15))
        return err_set(err, MAR_EMODEL, "%s: config.json has no positive number for %s", f->path, key);
    *out = number;
    return MAR_OK;
}

const char *wt_config_architecture(const wt_file *f)
{
    const json_value *v = f->config.values ? json_member(f->config.values, "architectures") : NULL;
    if (v && v->type == JSON_ARRAY && json_children(v) && v[1].type == JSON_STRING) return v[1].text;
    return wt_config_text(f, "model_type");
}

/* --- the parts ---------------------------------------------------------------------------------------------------- */

/* Returns why a part cannot be opened, beginning with its path. `index` is the file that names it, or NULL. */
static mar_status refuse_part(const char *folder, const char *name, const char *path, const char *index, int shards,
                              mar_err *err)
{
    char link[256], partial[PATH_MAX], why[400] = "";
    const ssize_t n = readlink(path, link, sizeof link - 1);
    if (n > 0) {
        link[n] = '\0';
        return err_set(err, MAR_EIO, "%s: is a link to %s, which does not exist: the download is not complete", path,
                       link);
    }
    snprintf(partial, sizeof partial, "%s.incomplete", name);
    if (folder_has(folder, partial)) snprintf(why, sizeof why, "; %.200s is half a download", partial);
    if (!index) return err_set(err, MAR_EIO, "%s: is missing%s", path, why);
    return err_set(err, MAR_EIO, "%s: is missing%s: %s names it, one of %d shards", path, why, index, shards);
}

/* Opens a part and appends it. */
static mar_status open_part(wt_file *f, const char *name, const char *index, int shards, mar_err *err)
{
    char path[PATH_MAX];
    struct stat st;
    if (!weights_folder_join(f->path, name, path)) return err_set(err, MAR_EIO, "%s: the path is too long", f->path);
    if (stat(path, &st) != 0 && errno == ENOENT) return refuse_part(f->path, name, path, index, shards, err);
    const mar_source source = {.path = path, .fd = -1};
    const mar_status status = wt_open_source(&source, f->weights, &f->parts[f->n_parts], err);
    f->n_parts += status == MAR_OK;
    return status;
}

/* Adds the tensors of part p to the table, with a prefix to their names. */
static mar_status folder_add_part(wt_file *f, int p, const char *prefix, mar_err *err)
{
    const wt_file *part = f->parts[p];
    mar_status status = MAR_OK;
    for (int i = 0; i < part->count && status == MAR_OK; i++) {
        wt_tensor t = part->tensors[i];
        const size_t size = strlen(prefix) + strlen(t.name) + 1;
        char *name = malloc(size);
        if (!name) return err_set(err, MAR_ENOMEM, "%s: out of memory for the tensor table", f->path);
        snprintf(name, size, "%s%s", prefix, t.name);
        t.name = name;
        t.part = p;
        status = wt_add(f, &t, size - 1, err);
        free(name);
    }
    wt_note_removed(f, part->removed);
    return status;
}

/* Adds the tensors of all parts to the table. */
static mar_status add_tensors(wt_file *f, mar_err *err)
{
    mar_status status = MAR_OK;
    for (int p = 0; p < f->n_parts && status == MAR_OK; p++) status = folder_add_part(f, p, "", err);
    return status;
}

/* Adds the image decoder in a folder inside the model's, if there is one. */
static mar_status folder_add_decoder(wt_file *f, mar_err *err)
{
    if (!folder_has(f->path, decoder_part)) return MAR_OK;
    for (int i = 0; i < f->count; i++)
        if (strncmp(f->tensors[i].name, decoder_prefix, strlen(decoder_prefix)) == 0)
            return MAR_OK; /* mar_convert has put it there */
    wt_file **parts = realloc(f->parts, ((size_t)f->n_parts + 1) * sizeof *parts);
    if (!parts) return err_set(err, MAR_ENOMEM, "%s: out of memory", f->path);
    f->parts = parts;
    const mar_status status = open_part(f, decoder_part, NULL, 1, err);
    return status == MAR_OK ? folder_add_part(f, f->n_parts - 1, decoder_prefix, err) : status;
}

/* Takes format and metadata from the first part. */
static mar_status folder_describe(wt_file *f, mar_err *err)
{
    const wt_file *part = f->parts[0];
    f->set = part->set;
    f->other = part->other;
    if (f->n_parts == 1)
        snprintf(f->format, sizeof f->format, "%s", part->format);
    else
        snprintf(f->format, sizeof f->format, "%.40s, %d shards", part->format, f->n_parts);
    f->metadata = calloc((size_t)part->n_metadata + 1, sizeof *f->metadata);
    if (!f->metadata) return err_set(err, MAR_ENOMEM, "%s: out of memory", f->path);
    for (int i = 0; i < part->n_metadata; i++) f->metadata[i] = part->metadata[i];
    f->n_metadata = part->n_metadata;
    return MAR_OK;
}

/* --- the index ---------------------------------------------------------------------------------------------------- */

/* Returns the place of a shard in sorted names, or the place where it belongs. */
static int folder_place_of(const char *shard, const char *const *names, int count)
{
    int from = 0, to = count;
    while (from < to) {
        const int middle = (from + to) / 2;
        if (strcmp(names[middle], shard) < 0)
            from = middle + 1;
        else
            to = middle;
    }
    return from;
}

/* Lists the shards of weight_map in names [SHARDS_MAX], sorted. */
static mar_status list_shards(const char *path, const json_value *map, const char **names, int *count, mar_err *err)
{
    *count = 0;
    for (const json_value *name = map + 1; name < json_next(map); name = json_next(name + 1)) {
        const json_value *shard = name + 1;
        if (shard->type != JSON_STRING || !*shard->text || strchr(shard->text, '/') || shard->text[0] == '.')
            return err_set(err, MAR_EFORMAT, "%s: tensor \"%s\": expected the name of a file beside the index", path,
                           name->text);
        const int at = folder_place_of(shard->text, names, *count);
        if (at < *count && strcmp(names[at], shard->text) == 0) continue;
        if (*count == SHARDS_MAX) return err_set(err, MAR_EFORMAT, "%s: has more than %d shards", path, SHARDS_MAX);
        memmove(names + at + 1, names + at, (size_t)(*count - at) * sizeof *names);
        names[at] = shard->text;
        ++*count;
    }
    return *count ? MAR_OK : err_set(err, MAR_EFORMAT, "%s: weight_map names no tensor", path);
}

/* Returns MAR_EFORMAT if a tensor of the index is in another shard. A tensor that no shard has passes: safetensors
 * writes tensors that share memory once, and transformers' index keeps their other names, as that of flan-t5-xl does.
 */
static mar_status folder_check_map(const wt_file *f, const char *path, const json_value *map, const char *const *names,
                                   mar_err *err)
{
    for (const json_value *name = map + 1; name < json_next(map); name = json_next(name + 1)) {
        const int part = folder_place_of(name[1].text, names, f->n_parts);
        const wt_tensor *t = wt_find(f, name->text);
        if (t && t->part != part)
            return err_set(err, MAR_EFORMAT, "%s: has no tensor \"%s\", which %s expects in it",
                           wt_path(f->parts[part]), name->text, path);
    }
    return MAR_OK;
}

static mar_status open_shards(wt_file *f, const char *index, const char *path, const json_value *root, mar_err *err)
{
    const json_value *map = json_member(root, "weight_map");
    int count = 0;
    if (!map || map->type != JSON_OBJECT)
        return err_set(err, MAR_EFORMAT, "%s: has no object weight_map, expected tensors and their shards", path);
    const char **names = calloc(SHARDS_MAX, sizeof *names);
    mar_status status = names ? MAR_OK : err_set(err, MAR_ENOMEM, "%s: out of memory", path);
    if (status == MAR_OK) status = list_shards(path, map, names, &count, err);
    if (status == MAR_OK && !(f->parts = calloc((size_t)count, sizeof(wt_file *))))
        status = err_set(err, MAR_ENOMEM, "%s: out of memory", path);
    for (int i = 0; i < count && status == MAR_OK; i++) status = open_part(f, names[i], index, count, err);
    if (status == MAR_OK) status = add_tensors(f, err);
    if (status == MAR_OK) status = folder_check_map(f, path, map, names, err);
    free(names);
    return status;
}

static mar_status open_index(wt_file *f, const char *index, mar_err *err)
{
    char path[PATH_MAX], *text;
    json j;
    if (!weights_folder_join(f->path, index, path)) return err_set(err, MAR_EIO, "%s: the path is too long", f->path);
    mar_status status = read_json(path, &text, NULL, &j, err);
    if (status == MAR_OK) status = open_shards(f, index, path, j.values, err);
    json_free(&j);
    free(text);
    return status;
}

static mar_status open_whole(wt_file *f, const char *name, mar_err *err)
{
    f->parts = calloc(1, sizeof(wt_file *));
    if (!f->parts) return err_set(err, MAR_ENOMEM, "%s: out of memory", f->path);
    const mar_status status = open_part(f, name, NULL, 1, err);
    return status == MAR_OK ? add_tensors(f, err) : status;
}

/* --- opening ------------------------------------------------------------------------------------------------------ */

/* Opens the tensors in a layout. Leaves *out NULL after an error. */
static mar_status open_layout(const char *path, mar_weights which, int layout, wt_file **out, mar_err *err)
{
    wt_file *f = wt_file_new(path, which);
    *out = NULL;
    if (!f) return err_set(err, MAR_ENOMEM, "%s: out of memory", path);
    mar_status status = read_config(f, layouts[layout].config, err);
    if (status == MAR_OK)
        status = folder_has(path, layouts[layout].whole) ? open_whole(f, layouts[layout].whole, err)
                                                         : open_index(f, layouts[layout].index, err);
    if (status == MAR_OK) status = folder_describe(f, err);
    if (status == MAR_OK) status = folder_add_decoder(f, err);
    if (status == MAR_OK) wt_find_int4(f); /* scales may be in another shard */
    if (status != MAR_OK)
        wt_close(f);
    else
        *out = f;
    return status;
}

static mar_status refuse_folder(const char *path, mar_err *err)
{
    struct stat st;
    if (stat(path, &st) != 0) return err_set(err, MAR_EIO, "%s: cannot open: %s", path, strerror(errno));
    if (!S_ISDIR(st.st_mode)) return err_set(err, MAR_EIO, "%s: is no folder", path);
    for (int i = 0; i < LAYOUTS; i++) {
        char partial[64];
        snprintf(partial, sizeof partial, "%s.incomplete", layouts[i].whole);
        if (folder_has(path, partial))
            return err_set(err, MAR_EIO, "%s: %s is half a download, expected %s", path, partial, layouts[i].whole);
    }
    return err_set(err, MAR_EIO,
                   "%s: has neither %s nor %s, alone or as shards with an index (.index.json), nor %s nor %s", path,
                   layouts[0].whole, layouts[1].whole, layouts[2].whole, layouts[3].whole);
}

mar_status wt_open_folder(const char *path, mar_weights which, wt_file **out, mar_err *err)
{
    mar_err other;
    mar_status status = MAR_OK;
    int tried = 0;
    *out = NULL;
    for (int i = 0; i < LAYOUTS && !*out; i++) {
        if (!has_layout(path, i)) continue;
        const mar_status this = open_layout(path, which, i, out, tried++ ? &other : err);
        if (tried == 1 || this == MAR_OK) status = this; /* the reason of the preferred one */
        if (this == MAR_ENOMEM) break;
    }
    return tried ? status : refuse_folder(path, err);
}
