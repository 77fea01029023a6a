#include "tools/generate/benchmark.h"

#include "base/json.h"
#include "tools/cli/command.h"
#include "tools/cli/file.h"
#include "tools/cli/json.h"
#include "tools/generate/prompt_folder.h"
#include "tools/generate/prompt_form.h"

#include <cjson/cJSON.h>
#include <dirent.h>
#include <errno.h>
#include <limits.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { FILE_MEGABYTES = 256, NAME_SIZE = 64 + NAME_MAX };

const char *const benchmark_names[] = {"geneval", "geneval2", "dpg", "partiprompts", NULL};

/* A benchmark, as its repository has it. */
static const struct {
    const char *title, *file;
    int num, num_max; /* images of a prompt: the default, the judge's most */
} kinds[] = {[BENCHMARK_GENEVAL] = {"GenEval", "evaluation_metadata.jsonl", 4, INT_MAX},
             [BENCHMARK_GENEVAL2] = {"GenEval 2", "geneval2_data.jsonl", 1, 1},
             [BENCHMARK_DPG] = {"DPG-Bench", "the folder dpg_bench/prompts", 4, 4},
             [BENCHMARK_PARTIPROMPTS] = {"PartiPrompts", "PartiPrompts.tsv", 1, INT_MAX}};

static const char paths_name[] = "image_paths.json";

/* --- metadata ----------------------------------------------------------------------------------------------------- */

static int is_json_text(const json_value *v)
{
    return v && v->type == JSON_STRING;
}

/* Returns whether it is a list of GenEval's objects: a class and a count, and what the judge checks besides. */
static int are_objects(const json_value *list)
{
    int64_t count;
    if (list->type != JSON_ARRAY) return 0;
    for (const json_value *v = list + 1; v < json_next(list); v = json_next(v)) {
        const json_value *number = json_member(v, "count");
        if (!is_json_text(json_member(v, "class")) || !number || !json_integer(number, &count)) return 0;
    }
    return 1;
}

/* Returns what GenEval's judge would fail at; NULL if nothing. */
static const char *geneval_fault(const json_value *v)
{
    const json_value *include = json_member(v, "include"), *exclude = json_member(v, "exclude");
    if (!is_json_text(json_member(v, "tag"))) return "no text \"tag\"";
    if (!include) return "no \"include\"";
    if (!are_objects(include)) return "\"include\" is no list of objects with \"class\" and \"count\"";
    if (exclude && !are_objects(exclude)) return "\"exclude\" is no list of objects with \"class\" and \"count\"";
    return NULL;
}

/* Returns what GenEval 2's judge would fail at; NULL if nothing. */
static const char *geneval2_fault(const json_value *v)
{
    const json_value *list = json_member(v, "vqa_list");
    if (!list || list->type != JSON_ARRAY || json_children(list) == 0) return "no list \"vqa_list\"";
    for (const json_value *pair = list + 1; pair < json_next(list); pair = json_next(pair))
        if (pair->type != JSON_ARRAY || json_children(pair) != 2 || !is_json_text(pair + 1) ||
            !is_json_text(json_next(pair + 1)))
            return "\"vqa_list\" is no list of a question and an answer each";
    return NULL;
}

static int refuse_benchmark_line(const benchmark *b, size_t line, const char *fault)
{
    return tool_error("%s, line %zu: %s, expected %s's %s", b->file, line, fault, kinds[b->kind].title,
                      kinds[b->kind].file);
}

/* Adds a copy of the text to a list that has `count`, with room for the next power of two. Returns 0, or 1 after
 * printing "out of memory". */
static int append_copy(const benchmark *b, char ***list, int count, const char *text, size_t n)
{
    if ((count & (count - 1)) == 0) {
        char **larger = realloc(*list, 2 * ((size_t)count + 1) * sizeof *larger);
        if (!larger) return tool_error("%s: out of memory for its prompts", b->file);
        *list = larger;
    }
    char *copy = malloc(n + 1);
    (*list)[count] = copy;
    if (!copy) return tool_error("%s: out of memory for its prompts", b->file);
    memcpy(copy, text, n);
    copy[n] = '\0';
    return 0;
}

/* Takes a line of metadata, and changes it. */
static int take_metadata(benchmark *b, char *line, size_t n, size_t number)
{
    json j;
    if (append_copy(b, &b->data, b->count, line, n) != 0) return 1;
    char *const whole = b->data[b->count];
    const json_error error = json_read(line, n, JSON_LEVELS_MAX, &j);
    if (error != JSON_OK) {
        free(whole);
        return error == JSON_NO_MEMORY ? tool_error("%s: out of memory for a line", b->file)
                                       : refuse_benchmark_line(b, number, "no JSON");
    }
    const json_value *prompt = json_member(j.values, "prompt");
    const char *fault = !is_json_text(prompt)
                            ? "no text \"prompt\""
                            : (b->kind == BENCHMARK_GENEVAL ? geneval_fault : geneval2_fault)(j.values);
    int failed = fault ? refuse_benchmark_line(b, number, fault)
                       : append_copy(b, &b->prompts, b->count, prompt->text, prompt->length);
    json_free(&j);
    if (failed)
        free(whole);
    else
        b->count++;
    return failed;
}

/* Reads JSON lines; blank ones are none of them, as for the command's reader. */
static int read_benchmark_lines(benchmark *b, char *text, size_t size)
{
    size_t number = 0;
    for (size_t begin = 0, whole; begin < size; begin += whole) {
        char *const line = text + begin;
        const size_t n = prompt_line_size(line, size - begin, &whole);
        number++;
        if (strspn(line, " \t") >= n) continue;
        line[n] = '\0';
        if (take_metadata(b, line, n, number) != 0) return 1;
    }
    return b->count ? 0 : refuse_benchmark_line(b, number, "no prompt in the file");
}

/* Compares prompts, then their places. */
static int compare_prompts(const void *a, const void *b)
{
    char *const *x = *(char *const *const *)a, *const *y = *(char *const *const *)b;
    const int order = strcmp(*x, *y);
    return order != 0 ? order : (x > y) - (x < y);
}

/* GenEval 2's judge finds an image by its prompt. */
static int check_different(const benchmark *b)
{
    char ***sorted = malloc((size_t)b->count * sizeof *sorted);
    if (!sorted) return tool_error("%s: out of memory for its prompts", b->file);
    for (int i = 0; i < b->count; i++) sorted[i] = &b->prompts[i];
    qsort(sorted, (size_t)b->count, sizeof *sorted, compare_prompts);
    int failed = 0;
    for (int i = 1; i < b->count && !failed; i++)
        if (strcmp(*sorted[i - 1], *sorted[i]) == 0)
            failed = tool_error("%s: prompt %td is that of prompt %td, \"%s\", expected each once: %s's judge finds "
                                "images by them",
                                b->file, sorted[i] - b->prompts + 1, sorted[i - 1] - b->prompts + 1, *sorted[i],
                                kinds[b->kind].title);
    free(sorted);
    return failed;
}

/* --- other prompts ------------------------------------------------------------------------------------------------ */

/* Returns whether the first line names a column, between tabs or commas. */
static int has_column(const char *line, size_t n, const char *name)
{
    const size_t size = strlen(name);
    for (size_t at = 0, end; at <= n; at = end + 1) {
        for (end = at; end < n && line[end] != '\t' && line[end] != ',';) end++;
        if (end - at == size && memcmp(line + at, name, size) == 0) return 1;
    }
    return 0;
}

static int read_parti_table(benchmark *b)
{
    size_t whole;
    b->copied = tool_read_file(b->file, 0, FILE_MEGABYTES, "PartiPrompts.tsv", &b->copied_size);
    if (!b->copied) return 1;
    const char *line = b->copied;
    size_t size = b->copied_size;
    if (size >= 3 && memcmp(line, "\xef\xbb\xbf", 3) == 0) line += 3, size -= 3;
    const size_t n = prompt_line_size(line, size, &whole);
    if (has_column(line, n, "Prompt") && has_column(line, n, "Category") && has_column(line, n, "Challenge")) return 0;
    return refuse_benchmark_line(b, 1, "no columns Prompt, Category and Challenge");
}

/* Takes the names of the folder's files without ".txt". */
static int read_names(benchmark *b)
{
    prompt_folder folder;
    if (!prompt_folder_is(b->file))
        return tool_error("--prompts %s: expected %s's folder dpg_bench/prompts, with a NAME.txt for each prompt",
                          b->file, kinds[b->kind].title);
    if (prompt_folder_list(b->file, &folder) != 0) return 1;
    for (int i = 0; i < folder.count; i++) folder.names[i][strlen(folder.names[i]) - 4] = '\0';
    b->data = folder.names;
    b->count = folder.count;
    for (int i = 0; i < b->count; i++)
        if (strchr(b->data[i], '.'))
            return tool_error("%s/%s.txt: has a dot in its name, where %s's judge ends it", b->file, b->data[i],
                              kinds[b->kind].title);
    return 0;
}

/* --- opening ------------------------------------------------------------------------------------------------------ */

static int check_benchmark_options(const benchmark *b, const run_options *run, const char *name)
{
    const char *title = kinds[b->kind].title;
    if (run->captions)
        return tool_error("--captions: has no effect with --benchmark %s, expected --prompts with %s's %s", name, title,
                          kinds[b->kind].file);
    if (run->prompt_count)
        return tool_error("--prompt: --benchmark %s has its own prompts, expected --prompts with %s's %s alone", name,
                          title, kinds[b->kind].file);
    if (!run->prompts || strcmp(run->prompts, "-") == 0)
        return tool_error("--benchmark %s: --prompts is missing, expected %s's %s", name, title, kinds[b->kind].file);
    if (b->num > kinds[b->kind].num_max)
        return tool_error("--num %d: %s's judge reads %d image%s of a prompt at most", b->num, title,
                          kinds[b->kind].num_max, kinds[b->kind].num_max > 1 ? "s" : "");
    return 0;
}

int benchmark_open(const char *name, const run_options *run, int num, benchmark *b)
{
    size_t size;
    *b = (benchmark){.kind = BENCHMARK_NONE, .prompt = -1};
    if (!name) return 0;
    while (b->kind == BENCHMARK_NONE || strcmp(benchmark_names[b->kind - 1], name) != 0) b->kind++;
    b->num = num ? num : kinds[b->kind].num;
    b->file = run->prompts;
    if (check_benchmark_options(b, run, name) != 0) return 1;
    if (b->kind == BENCHMARK_DPG) return read_names(b);
    if (b->kind == BENCHMARK_PARTIPROMPTS) return read_parti_table(b);
    char *text = tool_read_file(b->file, 0, FILE_MEGABYTES, kinds[b->kind].file, &size);
    if (!text) return 1;
    const int failed =
        read_benchmark_lines(b, text, size) || (b->kind == BENCHMARK_GENEVAL2 && check_different(b) != 0);
    free(text);
    return failed;
}

int benchmark_check(benchmark *b, const captions *c, int width, int height)
{
    if (b->kind == BENCHMARK_NONE) return 0;
    if (!b->data) b->count = c->count;
    int same = c->count == b->count;
    for (int i = 0; same && b->prompts && i < b->count; i++)
        same = c->list[i].prompt && strcmp(c->list[i].prompt, b->prompts[i]) == 0;
    if (!same) return tool_error("%s: has changed while it was read", b->file);
    if (b->kind != BENCHMARK_DPG || width == height) return 0;
    return tool_error("--benchmark dpg: images of %dx%d, expected squares: DPG-Bench's judge cuts them from the grid",
                      width, height);
}

void benchmark_free(benchmark *b)
{
    for (int i = 0; i < b->count; i++) {
        if (b->prompts) free(b->prompts[i]);
        if (b->data) free(b->data[i]);
    }
    free(b->prompts);
    free(b->data);
    free(b->copied);
    free(b->grid.rgb);
    *b = (benchmark){0};
}

/* --- places ------------------------------------------------------------------------------------------------------- */

/* Writes the name of a prompt's picture, or of its folder. Returns text. */
static const char *benchmark_name(const benchmark *b, long index, char text[NAME_SIZE])
{
    const long prompt = index / b->num, member = index % b->num;
    switch (b->kind) {
    case BENCHMARK_GENEVAL:
        snprintf(text, NAME_SIZE, "%05ld/samples/%05ld.png", prompt, member);
        break;
    case BENCHMARK_DPG:
        snprintf(text, NAME_SIZE, "%s.png", b->data[prompt]);
        break;
    default:
        snprintf(text, NAME_SIZE, "%05ld.png", index);
    }
    return text;
}

char *benchmark_path(const benchmark *b, const output *out, long index)
{
    char name[NAME_SIZE];
    return b->kind ? tool_join(out->path, benchmark_name(b, index, name)) : output_image_path(out, index);
}

int benchmark_images(const benchmark *b)
{
    return b->kind == BENCHMARK_DPG ? b->num : 1;
}

void benchmark_size(const benchmark *b, int *width, int *height)
{
    *width *= benchmark_images(b) > 1 ? 2 : 1;
    *height *= benchmark_images(b) > 2 ? 2 : 1;
}

int benchmark_place(benchmark *b, long index, int width, int height, const uint8_t *rgb)
{
    const int prompt = (int)(index / b->num), member = (int)(index % b->num);
    image *g = &b->grid;
    if (!g->rgb) {
        *g = (image){width, height, NULL};
        benchmark_size(b, &g->width, &g->height);
        g->rgb = malloc((size_t)g->width * (size_t)g->height * 3);
        if (!g->rgb) return -tool_error("out of memory for a grid of %dx%d pixels", g->width, g->height);
    }
    if (prompt != b->prompt) memset(g->rgb, 255, (size_t)g->width * (size_t)g->height * 3), b->placed = 0;
    b->prompt = prompt;
    const size_t row = (size_t)width * 3, top = (size_t)(member / 2) * (size_t)height;
    for (size_t y = 0; y < (size_t)height; y++)
        memcpy(g->rgb + ((top + y) * (size_t)g->width + (size_t)(member % 2) * (size_t)width) * 3, rgb + y * row, row);
    return ++b->placed == b->num;
}

/* --- the folder --------------------------------------------------------------------------------------------------- */

int benchmark_check_free(const output *out)
{
    int failed = 0;
    DIR *directory = opendir(out->path);
    if (!directory) return errno == ENOENT ? 0 : tool_error("%s: cannot read: %s", out->path, strerror(errno));
    for (const struct dirent *e; !failed && (e = readdir(directory));)
        if (strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0)
            failed =
                tool_error("%s: has %s, expected --resume to go on with it, or another --out", out->path, e->d_name);
    closedir(directory);
    return failed;
}

/* Returns the number in a name of five digits or more and `ending`, as %05ld writes it; -1 for another. */
static long number_of(const char *name, const char *ending)
{
    char same[NAME_SIZE];
    const long number = strspn(name, "0123456789") < 10 ? strtol(name, NULL, 10) : -1;
    snprintf(same, sizeof same, "%05ld%s", number, ending);
    return number >= 0 && strcmp(same, name) == 0 ? number : -1;
}

/* Returns whether the folder of prompts has NAME.txt of a picture NAME.png. */
static int has_prompt(const benchmark *b, const char *name)
{
    char file[NAME_SIZE];
    const size_t n = strlen(name);
    if (n < 5 || strcmp(name + n - 4, ".png") != 0) return 0;
    snprintf(file, sizeof file, "%.*s.txt", (int)n - 4, name);
    char *path = tool_join(b->file, file);
    const int has = path && access(path, F_OK) == 0;
    free(path);
    return has;
}

/* Returns whether the judge reads no such entry, or it is one of the run. */
static int is_known(const benchmark *b, const char *name, int is_sample)
{
    const size_t digits = strspn(name, "0123456789");
    if (is_sample) {
        const long member = number_of(name, ".png");
        return digits == 0 || strncmp(name + digits, ".png", 4) != 0 || (member >= 0 && member < b->num);
    }
    if (b->kind == BENCHMARK_GENEVAL) {
        const long prompt = number_of(name, "");
        return digits == 0 || name[digits] || (prompt >= 0 && prompt < b->count);
    }
    if (image_format_of(name) < 0) return 1;
    if (b->kind == BENCHMARK_DPG) return has_prompt(b, name);
    const long index = number_of(name, ".png");
    return index >= 0 && index < (long)b->count * b->num;
}

/* Goes through a folder, which may be missing. Returns 0, or 1 after printing an entry of another run. */
static int check_entries(const benchmark *b, const char *path, int is_sample)
{
    int failed = 0;
    DIR *directory = opendir(path);
    if (!directory) return errno == ENOENT ? 0 : tool_error("%s: cannot read: %s", path, strerror(errno));
    for (const struct dirent *e; !failed && (e = readdir(directory));)
        if (!is_known(b, e->d_name, is_sample))
            failed = tool_error("%s/%s: is none of this run, and the judge would read it; expected another --out", path,
                                e->d_name);
    closedir(directory);
    return failed;
}

long benchmark_find(const benchmark *b, const output *out, uint8_t *have)
{
    char name[NAME_SIZE];
    long found = 0;
    int failed = check_entries(b, out->path, 0);
    for (long i = 0; !failed && i < (long)b->count * b->num; i++) {
        char *path = benchmark_path(b, out, i);
        have[i] = path && access(path, F_OK) == 0;
        found += have[i];
        failed = !path;
        free(path);
    }
    for (int i = 0; !failed && b->kind == BENCHMARK_GENEVAL && i < b->count; i++) {
        snprintf(name, sizeof name, "%05d/samples", i);
        char *path = tool_join(out->path, name);
        failed = !path || check_entries(b, path, 1) != 0;
        free(path);
    }
    return failed ? -1 : found;
}

/* Makes the folder out/name, unless it is there. */
static int make_folder(const output *out, const char *name)
{
    char *path = tool_join(out->path, name);
    int failed = !path;
    if (path && mkdir(path, 0777) != 0 && errno != EEXIST)
        failed = tool_error("%s: cannot make the directory: %s", path, strerror(errno));
    free(path);
    return failed;
}

static int write_benchmark_file(const output *out, const char *name, const void *data, size_t size)
{
    char *path = tool_join(out->path, name);
    const int failed = !path || tool_write_file_unsynced(path, data, size) != 0;
    free(path);
    return failed;
}

/* Writes GenEval's folder of a prompt. */
static int begin_prompt_folder(const benchmark *b, const output *out, int prompt)
{
    char name[NAME_SIZE];
    const size_t n = strlen(b->data[prompt]);
    snprintf(name, sizeof name, "%05d", prompt);
    if (make_folder(out, name) != 0) return 1;
    snprintf(name, sizeof name, "%05d/samples", prompt);
    if (make_folder(out, name) != 0) return 1;
    snprintf(name, sizeof name, "%05d/metadata.jsonl", prompt);
    return write_benchmark_file(out, name, b->data[prompt], n);
}

int benchmark_begin(const benchmark *b, const output *out)
{
    int failed = 0;
    for (int i = 0; !failed && b->kind == BENCHMARK_GENEVAL && i < b->count; i++)
        failed = begin_prompt_folder(b, out, i);
    if (b->kind == BENCHMARK_PARTIPROMPTS)
        failed = write_benchmark_file(out, tool_base_name(b->file), b->copied, b->copied_size);
    if (b->kind == BENCHMARK_GENEVAL2) { /* says that all images are there */
        char *path = tool_join(out->path, paths_name);
        if (!path) return 1;
        if (unlink(path) != 0 && errno != ENOENT) failed = tool_error("%s: cannot remove: %s", path, strerror(errno));
        free(path);
    }
    return failed;
}

int benchmark_finish(const benchmark *b, const output *out)
{
    if (b->kind != BENCHMARK_GENEVAL2) return 0;
    char name[NAME_SIZE], *folder = realpath(out->path, NULL), *path = tool_join(out->path, paths_name);
    if (!folder) tool_error("%s: cannot find its path: %s", out->path, strerror(errno));
    int failed = !folder || !path;
    cJSON *record = failed ? NULL : tool_json();
    for (int i = 0; !failed && i < b->count; i++) {
        char *file = tool_join(folder, benchmark_name(b, i, name));
        failed = !file;
        if (file) cJSON_AddStringToObject(record, b->prompts[i], file);
        free(file);
    }
    if (failed)
        cJSON_Delete(record);
    else
        failed = json_file_write(record, path);
    free(folder);
    free(path);
    return failed;
}
