#include "mar/api/folder.h"
#include "base/file.h"
#include "text/tokenizer.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* Returns whether a folder of a model has this file for its configuration or its tokenizer. */
static int is_companion(const char *name)
{
    static const char *const names[] = {"config.json",       "generation_config.json",  "tokenizer.json",
                                        "vocab.json",        "tokenizer_config.json",   "merges.txt",
                                        "spiece.model",      "special_tokens_map.json", "tokenizer.model",
                                        "added_tokens.json", "text_tokenizer.json",     "emu3_vision_tokens.txt"};
    const size_t n = strlen(name), end = strlen(".tiktoken");
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (strcmp(name, names[i]) == 0) return 1;
    return n > end && strcmp(name + n - end, ".tiktoken") == 0;
}

/* Writes "FOLDER/NAME" to path [PATH_MAX]. Returns 0 if it is too long. */
static int folder_join(const char *folder, const char *name, char *path)
{
    return snprintf(path, PATH_MAX, "%s/%s", folder, name) < PATH_MAX;
}

/* Returns 1 if a folder has nothing but . and .., 0 if it has, -1 if it cannot be read. */
static int is_empty(const char *path)
{
    DIR *d = opendir(path);
    if (!d) return -1;
    int empty = 1;
    for (const struct dirent *e; empty && (e = readdir(d));)
        empty = strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0;
    closedir(d);
    return empty;
}

mar_status mar_folder_open(const char *path, mar_folder_writer *out, mar_err *err)
{
    struct stat st;
    size_t n = strlen(path);
    while (n > 1 && path[n - 1] == '/') n--;
    snprintf(out->path, PATH_MAX, "%.*s", (int)n, path);
    if (stat(out->path, &st) == 0 && (!S_ISDIR(st.st_mode) || is_empty(out->path) != 1))
        return err_set(
            err, MAR_EIO,
            "%s: exists, and folders are not replaced; expected a new folder, an empty one or a name ending in "
            ".safetensors",
            path);
    if (snprintf(out->temporary, PATH_MAX, "%.*s.partial-%ld", (int)n, path, (long)getpid()) >= PATH_MAX ||
        !folder_join(out->temporary, "model.safetensors", out->model))
        return err_set(err, MAR_EIO, "%s: the path is too long", path);
    if (mkdir(out->temporary, 0777) != 0)
        return err_set(err, MAR_EIO, "%s: cannot make the folder: %s", out->temporary, strerror(errno));
    return MAR_OK;
}

static mar_status copy_file(const char *from, const char *to, mar_err *err)
{
    enum { PIECE = 1 << 20 };
    file_source source;
    file_writer w;
    mar_status status = file_source_open(from, &source, err);
    if (status != MAR_OK) return status;
    char *piece = malloc(PIECE);
    status = piece ? file_writer_open(to, &w, err) : err_set(err, MAR_ENOMEM, "%s: out of memory", from);
    const int opened = status == MAR_OK;
    for (uint64_t at = 0, n; status == MAR_OK && at < source.size && !ferror(w.stream); at += n) {
        n = source.size - at < PIECE ? source.size - at : PIECE;
        status = file_source_read(&source, at, (size_t)n, piece, err);
        if (status == MAR_OK) fwrite(piece, 1, (size_t)n, w.stream); /* commit reports an error */
    }
    if (status == MAR_OK) status = file_source_check(&source, err);
    if (status == MAR_OK)
        status = file_writer_commit(&w, err);
    else if (opened)
        file_writer_discard(&w);
    free(piece);
    file_source_close(&source);
    return status;
}

static mar_status copy_companions(const char *from, const char *to, mar_err *err)
{
    char source[PATH_MAX], target[PATH_MAX];
    mar_status status = MAR_OK;
    DIR *d = opendir(from);
    if (!d) return err_set(err, MAR_EIO, "%s: cannot list: %s", from, strerror(errno));
    for (const struct dirent *e; status == MAR_OK && (e = readdir(d));) {
        if (!is_companion(e->d_name)) continue;
        status = folder_join(from, e->d_name, source) && folder_join(to, e->d_name, target)
                     ? copy_file(source, target, err)
                     : err_set(err, MAR_EIO, "%s/%s: the path is too long", from, e->d_name);
    }
    closedir(d);
    if (status != MAR_OK || !text_tokenizer_elsewhere(from, source)) return status;
    return folder_join(to, "text_tokenizer.json", target) ? copy_file(source, target, err)
                                                          : err_set(err, MAR_EIO, "%s: the path is too long", to);
}

mar_status mar_folder_commit(mar_folder_writer *w, const char *from, mar_err *err)
{
    const mar_status status = copy_companions(from, w->temporary, err);
    if (status != MAR_OK) return status;
    if (rename(w->temporary, w->path) == 0) return MAR_OK; /* also onto an empty folder */
    return err_set(err, MAR_EIO, "%s: cannot rename %s: %s", w->path, w->temporary, strerror(errno));
}

void mar_folder_discard(mar_folder_writer *w)
{
    char path[PATH_MAX];
    DIR *d = opendir(w->temporary);
    for (const struct dirent *e; d && (e = readdir(d));)
        if (strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0 && folder_join(w->temporary, e->d_name, path))
            (void)unlink(path);
    if (d) closedir(d);
    (void)rmdir(w->temporary);
}
