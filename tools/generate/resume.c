#include "tools/generate/resume.h"

#include "tools/cli/command.h"
#include "tools/generate/grid.h"
#include "tools/generate/record.h"

#include <dirent.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

static const char rule[] = "--resume goes on with images of the same parameters only";

static const char *value_of(const image_text *texts, int count, const char *key)
{
    for (int i = 0; i < count; i++)
        if (strcmp(texts[i].key, key) == 0) return texts[i].value;
    return NULL;
}

/* Compares one text of the run with the file's. Returns 0, or 1 with the difference printed. */
static int compare_text(const char *path, const image_file *file, const image_text *t)
{
    const char *found = value_of(file->texts, file->count, t->key);
    if (!found) return tool_error("%s: has no text %s, expected %s: %s", path, t->key, t->value, rule);
    if (strcmp(found, t->value) == 0) return 0;
    return tool_error("%s: %s is %s, expected %s: %s", path, t->key, found, t->value, rule);
}

/* Compares all texts. The last one, the guarantee, follows from the options, so a difference is reported of these. */
static int compare(const char *path, const image_file *file, const record_texts *ours)
{
    for (int i = 0; i + 1 < ours->count; i++)
        if (compare_text(path, file, &ours->texts[i]) != 0) return 1;
    for (int i = 0; i < file->count; i++)
        if (!value_of(ours->texts, ours->count, file->texts[i].key))
            return tool_error("%s: %s is %s, expected no such text: %s", path, file->texts[i].key, file->texts[i].value,
                              rule);
    return compare_text(path, file, &ours->texts[ours->count - 1]);
}

static int check_image(generate_job *job, const char *path, long index)
{
    image_file file;
    record_texts ours;
    if (image_read_png(path, job->width, job->height, &file) != 0) return 1;
    int failed = record_texts_make(job, index, NULL, &ours) != 0;
    if (!failed) {
        failed = compare(path, &file, &ours);
        record_texts_free(&ours);
    }
    if (!failed && job->grid.rgb) grid_place(job, &job->grid, index, file.picture.rgb);
    image_file_free(&file);
    return failed;
}

/* Marks the images whose names are in the directory. Returns 0, or 1 with the error printed. */
static int list(generate_job *job, DIR *directory)
{
    errno = 0;
    for (const struct dirent *e; (e = readdir(directory)); errno = 0) {
        const long index = output_image_index(e->d_name);
        if (index < 0) continue;
        if (index >= job->total)
            return tool_error("%s/%s: is not an image of this run, which has numbers up to %ld: %s", job->out.path,
                              e->d_name, job->total - 1, rule);
        job->have[index] = 1;
        job->existing++;
    }
    return errno ? tool_error("%s: cannot read: %s", job->out.path, strerror(errno)) : 0;
}

int resume_find(generate_job *job)
{
    job->have = calloc((size_t)job->total, 1);
    if (!job->have) return tool_error("out of memory for the list of %ld images", job->total);
    DIR *directory = opendir(job->out.path);
    if (!directory) return errno == ENOENT ? 0 : tool_error("%s: cannot read: %s", job->out.path, strerror(errno));
    int failed = list(job, directory);
    closedir(directory);
    for (long i = 0; i < job->total && !failed; i++) {
        if (!job->have[i]) continue;
        char *path = output_image_path(&job->out, i);
        failed = !path || check_image(job, path, i) != 0;
        free(path);
    }
    return failed;
}
