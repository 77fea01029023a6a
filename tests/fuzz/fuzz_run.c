/* All that mar eval reads of a run's directory: settings.json, the shards and their journals, images.npz.part and
 * result.json. The files are in memory: what opens, names and removes files has stand-ins here.
 *
 * An input is settings.json, a NUL, result.json, a NUL, and changes of the other files. These are what mar eval itself
 * writes with such settings; each change overwrites, cuts or removes one, and completes its checksums if it says so, as
 * whoever wants to be believed would. Of what is taken: all numbers are within their arrays, a shard written of a
 * journal is read, a change without checksums is found, a result reads back as it was written. An error is one line. */
#include "tests/fuzz/fuzz.h"

#include "tools/cli/command.h"
#include "tools/eval/job.h"
#include "tools/eval/pixels.h"
#include "tools/eval/report.h"
#include "tools/cli/file.h"
#include "tools/cli/file_sum.h"
#include "tools/images/source.h"
#include "tools/eval/sweep_report.h"

#include <cjson/cJSON.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

/* --- files in memory --------------------------------------------------------------------------------------- */

enum { FILES = 24, NAME = 32, FILE_MAX = 1 << 20 };

static struct {
    char name[NAME]; /* "" : none */
    int fd;
} files[FILES];

static int find(const char *path)
{
    const char *name = tool_base_name(path);
    for (int i = 0; i < FILES; i++)
        if (strcmp(files[i].name, name) == 0) return i;
    return -1;
}

static int make(const char *path)
{
    int i = find(path);
    if (i < 0) i = find("");
    if (i < 0) fuzz_fail("%s: too many files", path);
    if (!files[i].fd) files[i].fd = memfd_create("file", MFD_CLOEXEC);
    if (files[i].fd < 0 || ftruncate(files[i].fd, 0) != 0) fuzz_fail("no memory for a file");
    snprintf(files[i].name, NAME, "%s", tool_base_name(path));
    return i;
}

static void forget_files(void)
{
    for (int i = 0; i < FILES; i++) files[i].name[0] = '\0';
}

static void put_file(const char *path, const void *data, size_t size)
{
    if (tool_write_at(files[make(path)].fd, data, size, 0) != 0) fuzz_fail("%s: cannot write", path);
}

static size_t get_file(const char *path, uint8_t *data)
{
    struct stat st;
    const int i = find(path);
    if (i < 0 || fstat(files[i].fd, &st) != 0 || st.st_size > FILE_MAX) return 0;
    return tool_read_at(files[i].fd, data, (size_t)st.st_size, 0) == 0 ? (size_t)st.st_size : 0;
}

int __wrap_tool_open_file(const char *path, int flags);
int __wrap_tool_create_file(const char *path);
void *__wrap_tool_read_file(const char *path, int flags, int megabytes, const char *expected, size_t *size);
int __wrap_tool_write_file(const char *path, const void *data, size_t size);
int __wrap_access(const char *path, int mode);
int __wrap_unlink(const char *path);
int __wrap_rename(const char *from, const char *to);

int __wrap_tool_open_file(const char *path, int flags)
{
    const int i = find(path);
    if ((flags & O_CREAT) || !(flags & O_NOFOLLOW)) fuzz_fail("%s: opened with %x", path, (unsigned)flags);
    if (i < 0) errno = ENOENT;
    return i < 0 ? -1 : dup(files[i].fd);
}

int __wrap_tool_create_file(const char *path)
{
    return dup(files[make(path)].fd);
}

void *__wrap_tool_read_file(const char *path, int flags, int megabytes, const char *expected, size_t *size)
{
    struct stat st;
    (void)megabytes, (void)expected;
    const int fd = __wrap_tool_open_file(path, O_RDONLY | flags);
    if (fd < 0 || fstat(fd, &st) != 0) fuzz_fail("%s: is not there", path);
    char *data = malloc((size_t)st.st_size + 1);
    if (!data || tool_read_at(fd, data, (size_t)st.st_size, 0) != 0) fuzz_fail("%s: cannot read", path);
    close(fd);
    data[ *size = (size_t)st.st_size] = '\0';
    return data;
}

int __wrap_tool_write_file(const char *path, const void *data, size_t size)
{
    put_file(path, data, size);
    return 0;
}

int __wrap_access(const char *path, int mode)
{
    (void)mode;
    if (find(path) >= 0) return 0;
    errno = ENOENT;
    return -1;
}

int __wrap_unlink(const char *path)
{
    const int i = find(path);
    if (i >= 0) files[i].name[0] = '\0';
    errno = ENOENT;
    return i >= 0 ? 0 : -1;
}

int __wrap_rename(const char *from, const char *to)
{
    const int i = find(from);
    if (i < 0) {
        errno = ENOENT;
        return -1;
    }
    __wrap_unlink(to);
    snprintf(files[i].name, NAME, "%s", tool_base_name(to));
    return 0;
}

/* A network of which nothing but its sizes is asked. */
static const mar_features_config network = {"demo digits", 2, 3, 1, 1};
const mar_features_config *__wrap_mar_features_get_config(const mar_features *f);
const mar_features_config *__wrap_mar_features_get_config(const mar_features *f)
{
    (void)f;
    return &network;
}

/* --- messages ---------------------------------------------------------------------------------------------- */

static char printed[1 << 14], shown[1 << 16];

int LLVMFuzzerInitialize(int *argc, char ***argv);
int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    (void)argc, (void)argv;
    stderr = fmemopen(printed, sizeof printed, "w");
    stdout = fmemopen(shown, sizeof shown, "w");
    return stderr && stdout ? 0 : 1;
}

/* Whether a call has failed: it has said why in one line then, and else nothing. */
static int failed(const char *what, int status)
{
    fflush(stderr);
    const long n = ftell(stderr);
    rewind(stderr);
    if (!status && n) fuzz_fail("%s: succeeded, and says %.*s", what, (int)n, printed);
    if (!status) return 0;
    if (n < 1 || n > (long)sizeof printed || printed[n - 1] != '\n') fuzz_fail("%s: no whole line", what);
    printed[n - 1] = '\0';
    fuzz_check_line(what, printed);
    if (strncmp(printed, "mar: run/", 9) != 0) fuzz_fail("%s names no file: %s", what, printed);
    return 1;
}

/* --- changes ----------------------------------------------------------------------------------------------- */

enum { SHARD_HEAD = 56, JOURNAL_HEAD = 32, SHARDS = 2 };

typedef struct {
    uint8_t what; /* bits 0-2: the file; 3: from its end; 4: complete its checksums; 5: cut it there; 6: remove it */
    uint16_t offset;
    uint8_t size; /* of the bytes behind this */
} change;

static uint8_t contents[FILE_MAX + 256], before[FILE_MAX];

static void put_sum(uint8_t *at, size_t size, size_t zeroed)
{
    memset(at + zeroed, 0, 8);
    const uint64_t sum = memory_sum(at, size);
    memcpy(at + zeroed, &sum, sizeof sum);
}

/* Completes the checksums of a shard. */
static void seal_shard(uint8_t *data, size_t size)
{
    if (size < SHARD_HEAD + 8) return;
    const uint64_t head = memory_sum(data, SHARD_HEAD - 8);
    memcpy(data + SHARD_HEAD - 8, &head, sizeof head);
    const uint64_t sum = memory_sum(data, size - 8);
    memcpy(data + size - 8, &sum, sizeof sum);
}

/* The same of a journal: of each record that has the size it says. */
static void seal_journal(uint8_t *data, size_t size)
{
    if (size < JOURNAL_HEAD) return;
    const uint64_t head = memory_sum(data, JOURNAL_HEAD - 8);
    memcpy(data + JOURNAL_HEAD - 8, &head, sizeof head);
    for (size_t at = JOURNAL_HEAD; size - at >= EVAL_RECORD_HEAD;) {
        uint64_t length;
        memcpy(&length, data + at + 32, sizeof length);
        if (length < EVAL_RECORD_HEAD || length > size - at) break;
        put_sum(data + at, length, 40);
        at += length;
    }
}

/* Returns 1 if the file is another then and its checksums were left. */
static int change_file(const char *name, const change *c, const uint8_t *bytes)
{
    const size_t size = get_file(name, contents);
    if (find(name) < 0) return 0;
    if (c->what & 64) {
        __wrap_unlink(name);
        return 0;
    }
    memcpy(before, contents, size);
    const size_t at = c->offset > size ? size : c->what & 8 ? size - c->offset : c->offset;
    memcpy(contents + at, bytes, c->size);
    size_t length = c->what & 32 || at + c->size > size ? at + c->size : size;
    if (length > FILE_MAX) length = FILE_MAX;
    const int sealed = c->what & 16;
    if (sealed && strstr(name, ".mars")) seal_shard(contents, length);
    if (sealed && strstr(name, ".part")) seal_journal(contents, length);
    put_file(name, contents, length);
    return !sealed && (length != size || memcmp(before, contents, size) != 0);
}

/* Makes the changes of the files of that kind; `spoilt` [SHARDS]: those that are other then, without checksums. Returns
 * how many changes there are. */
static int change_files(const uint8_t *data, size_t size, const char *kind, int spoilt[SHARDS])
{
    static const char *const names[8] = {"000000.mars", "000001.mars",     "000000.part", "000001.part",
                                         "000000.part", "images.npz.part", "000000.mars", "000001.mars"};
    int count = 0;
    for (size_t at = 0; size - at >= 4;) {
        const change c = {data[at], (uint16_t)(data[at + 1] | data[at + 2] << 8), data[at + 3]};
        const char *name = names[c.what & 7];
        const size_t left = size - at - 4, n = c.size < left ? c.size : left;
        const change made = {c.what, c.offset, (uint8_t)n};
        if (strstr(name, kind)) {
            const int shard = name[5] == '1';
            const int is_spoilt = change_file(name, &made, data + at + 4);
            if (is_spoilt || (c.what & 16)) spoilt[shard] = is_spoilt;
            count++;
        }
        at += 4 + n;
    }
    return count;
}

/* --- a run ------------------------------------------------------------------------------------------------- */

enum { IMAGES = 16, PIXELS = 1024 };

/* The record of a batch, as mar eval makes it. */
static void fill_record(const eval_layout *l, long first, eval_record *r)
{
    static uint8_t rgb[IMAGES * PIXELS * 3];
    eval_record_begin(l, first, r);
    r->figures->generate_s = 1;
    for (int i = 0; i < r->n; i++) {
        for (int k = 0; k < l->features; k++) r->features[i * l->features + k] = (float)(i + k);
        for (int k = 0; k < l->classes; k++) r->logits[i * l->classes + k] = (float)((i + k) % 3);
        for (int k = 0; k < l->spatial; k++) r->spatial[i * l->spatial + k] = (float)i;
        r->labels[i] = i, r->verified[i] = 4, r->replaced[i] = (uint32_t)(i % 3);
    }
    eval_record_finish(l, rgb, r);
}

/* The journals of the shards, whole. */
static void write_journals(const eval_job *job, eval_record *r)
{
    const eval_layout *l = &job->layout;
    eval_journal j;
    for (int s = 0; s < eval_shard_count(l) && s < SHARDS; s++) {
        if (eval_journal_open(&job->directory, l, s, &j) != 0) fuzz_fail("no journal");
        while (j.next < eval_shard_first(l, s) + eval_shard_size(l, s)) {
            fill_record(l, j.next, r);
            if (eval_journal_append(&j, r) != 0) fuzz_fail("no record");
        }
        eval_journal_close(&j);
    }
}

/* Makes shards of the journals that are whole, as mar eval does that goes on; `changed`: they may be any bytes. */
static void make_shards(const eval_job *job, eval_record *r, int changed)
{
    const eval_layout *l = &job->layout;
    eval_journal j;
    eval_shard shard;
    for (int s = 0; s < eval_shard_count(l) && s < SHARDS; s++) {
        if (failed("eval_journal_open", eval_journal_open(&job->directory, l, s, &j))) continue;
        const long first = eval_shard_first(l, s), behind = first + eval_shard_size(l, s);
        long next = first;
        while (changed && !failed("eval_journal_read", 0) && eval_journal_read(&j, r) == 1) {
            if (r->first != next || r->n < 1 || r->n > l->batch || r->size > r->capacity || j.next > behind)
                fuzz_fail("a record of images %ld to %ld", r->first, r->first + r->n);
            if (!eval_figures_check(r->figures, r->n)) fuzz_fail("a record of figures that cannot be");
            next += r->n;
        }
        const int whole = !changed || j.next == behind;
        if (failed("eval_shard_write", eval_shard_write(&job->directory, l, &j, s, r)) == whole)
            fuzz_fail("shard %d: the journal is %s", s, whole ? "whole" : "not whole");
        eval_journal_close(&j);
        if (!whole || !changed) continue;
        const eval_shard_state state = eval_shard_open(&job->directory, l, s, &shard);
        if (failed("eval_shard_open", state != EVAL_SHARD_THERE)) fuzz_fail("what was written is refused: %s", printed);
        eval_shard_close(&shard);
    }
}

/* What other checks cannot see: a shard that was changed, with its checksums left, is not taken. */
static void check_spoilt(const eval_job *job, const int spoilt[SHARDS])
{
    eval_shard shard;
    for (int s = 0; s < eval_shard_count(&job->layout) && s < SHARDS; s++) {
        const eval_shard_state state = eval_shard_open(&job->directory, &job->layout, s, &shard);
        if (state == EVAL_SHARD_THERE) eval_shard_close(&shard);
        failed("eval_shard_open", state == EVAL_SHARD_DAMAGED || state == EVAL_SHARD_ERROR);
        if (state == EVAL_SHARD_THERE && spoilt[s]) fuzz_fail("shard %d was changed, and is taken", s);
    }
}

/* A result that was taken is written as it is, and read back the same. */
static void check_result(const eval_result *r, int often)
{
    static eval_result again;
    const eval_report_extras extras = {.title = NULL};
    if (r->steps < 0 || r->steps > EVAL_CURVE_MAX || r->latest < 0 || r->latest > EVAL_CURVE_MAX ||
        r->warning_count < 0 || r->warning_count > EVAL_WARNINGS_MAX)
        fuzz_fail("%d steps, %d late, %d warnings", r->steps, r->latest, r->warning_count);
    if (failed("eval_result_write", eval_result_write(r, "run/result.json"))) fuzz_fail("not written");
    const size_t size = get_file("result.json", before);
    if (failed("eval_result_read", eval_result_read("run/result.json", &again)))
        fuzz_fail("what was written is refused: %s", printed);
    if (failed("eval_result_write", eval_result_write(&again, "run/result.json"))) fuzz_fail("not written");
    if (get_file("result.json", contents) != size || memcmp(before, contents, size) != 0)
        fuzz_fail("the result read back is another");
    if (!often) return;
    sweep_entry entry = {.name = "plain", .options = "", .result = &again};
    const sweep_table table = {"axes", &entry, 1};
    eval_result_print(r);
    rewind(stdout);
    if (failed("eval_report_write", eval_report_write(r, &extras, "run/report.html"))) fuzz_fail("no report");
    if (failed("sweep_write_html", sweep_write_html(&table, "run/sweep.html"))) fuzz_fail("no page");
}

static int pages; /* 1: reports are written */
int __real_eval_report_write(const eval_result *r, const eval_report_extras *x, const char *path);
int __wrap_eval_report_write(const eval_result *r, const eval_report_extras *x, const char *path);
int __wrap_eval_report_write(const eval_result *r, const eval_report_extras *x, const char *path)
{
    const eval_report_image *const lists[] = {x->sheet, x->rejected};
    const int counts[] = {x->sheet_count, x->rejected_count};
    if (counts[0] > EVAL_SHEET_MAX || counts[1] > EVAL_REJECTED_MAX) fuzz_fail("%d, %d images", counts[0], counts[1]);
    for (int k = 0; k < 2; k++)
        for (int i = 0; i < counts[k]; i++)
            if (lists[k][i].index < 0 || lists[k][i].index >= r->images || lists[k][i].replaced > lists[k][i].verified)
                fuzz_fail("a picture of image %ld of %ld", lists[k][i].index, r->images);
    return pages ? __real_eval_report_write(r, x, path) : 0;
}

static void check_layout(const eval_job *job)
{
    const eval_layout *l = &job->layout;
    if (l->images < 2 || l->images > 1000000 || l->batch < 1 || l->batch > 1024 || l->shard_images < l->batch ||
        l->shard_images % l->batch != 0 || l->width < 1 || l->width > IMAGE_SIDE_MAX || l->height < 1 ||
        l->height > IMAGE_SIDE_MAX || l->samples > EVAL_SHEET_MAX || l->rejected_images > EVAL_REJECTED_MAX)
        fuzz_fail("a layout of %ld images", l->images);
    if (job->facts.steps < 0 || job->facts.steps > EVAL_CURVE_MAX) fuzz_fail("%d steps", job->facts.steps);
}

/* The run of settings that were taken, if it is small. */
static void check_run(eval_job *job, const uint8_t *changes, size_t size)
{
    static eval_result r;
    const eval_layout *l = &job->layout;
    eval_record record;
    int spoilt[SHARDS] = {0};
    check_layout(job);
    if (failed("eval_settings_check_network", eval_settings_check_network(job))) return;
    if (l->images > IMAGES || l->batch > IMAGES || l->width * l->height > PIXELS) return;
    if (eval_record_create(l, &record) != 0) fuzz_fail("out of memory");
    write_journals(job, &record);
    const int changed = change_files(changes, size, "0.part", spoilt) + change_files(changes, size, "1.part", spoilt);
    make_shards(job, &record, changed);
    memset(spoilt, 0, sizeof spoilt);
    change_files(changes, size, ".mars", spoilt);
    change_files(changes, size, ".npz.part", (int[SHARDS]){0});
    if (spoilt[0] || spoilt[1]) check_spoilt(job, spoilt);
    eval_record_free(&record);
    const int status = eval_merge(job, &r);
    if (status == EVAL_MERGE_AGAIN) { /* a damaged shard was said, one that is missing not */
        rewind(stderr);
    } else if (!failed("eval_merge", status)) {
        if (r.images != l->images || find("result.json") < 0) fuzz_fail("a result of %ld images", r.images);
        check_result(&r, 0);
    }
}

static void check_settings(const uint8_t *text, size_t size, const uint8_t *changes, size_t changes_size)
{
    static const option_set nothing;
    eval_options options = {.merge = 1, .quiet = 1, .out = "run"};
    progress bar;
    eval_job job = {.options = &options, .bar = &bar};
    progress_start(&bar, 1);
    job.directory.out.path = "run";
    put_file("settings.json", text, size);
    if (!failed("eval_settings_take", eval_settings_take(&job, &nothing))) check_run(&job, changes, changes_size);
    record_texts_free(&job.settings);
    cJSON_Delete(job.taken);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static eval_result r;
    const uint8_t *end = data + size, *result = memchr(data, 0, size), *changes;
    if (!result) result = end;
    changes = result < end ? memchr(result + 1, 0, (size_t)(end - result - 1)) : end;
    if (!changes) changes = end;
    const uint8_t *text = result < end ? result + 1 : end, *rest = changes < end ? changes + 1 : end;
    pages = fuzz_hash(data, size) % 16 == 0;
    rewind(stderr);
    check_settings(data, (size_t)(result - data), rest, (size_t)(end - rest));
    forget_files();
    put_file("result.json", text, (size_t)(changes - text));
    if (!failed("eval_result_read", eval_result_read("run/result.json", &r))) check_result(&r, pages);
    forget_files();
    return 0;
}

/* --- the mutator ------------------------------------------------------------------------------------------- */

/* Adds a change of eight bytes, or of a few, sealed mostly. */
static size_t add_change(uint8_t *data, size_t size, size_t max_size, fuzz_random *r)
{
    uint8_t made[4 + 8];
    fuzz_bytes b = {.data = made, .capacity = sizeof made};
    const size_t n = fuzz_one_in(r, 2) ? 8 : fuzz_next(r, 5);
    const int from_end = fuzz_one_in(r, 2);
    fuzz_le(&b, fuzz_next(r, 8) | (from_end ? 8 : 0) | (fuzz_one_in(r, 4) ? 0 : 16) | (fuzz_one_in(r, 16) ? 32 : 0), 1);
    fuzz_le(&b, (fuzz_one_in(r, 2) ? fuzz_next(r, 65536) : fuzz_next(r, 400)) & ~(uint64_t)(fuzz_one_in(r, 4) ? 0 : 3),
            2);
    fuzz_le(&b, n, 1);
    fuzz_le(&b, fuzz_number(r), (int)n);
    if (b.size > max_size - size) return size;
    memcpy(data + size, made, b.size);
    return size + b.size;
}

/* Another number in the place of one in the texts. */
static size_t change_number(uint8_t *data, size_t size, size_t max_size, fuzz_random *r)
{
    char text[32];
    size_t at = fuzz_next(r, (uint32_t)size), end;
    while (at < size && (data[at] < '0' || data[at] > '9')) at++;
    for (end = at; end < size && data[end] >= '0' && data[end] <= '9';) end++;
    if (end == at) return LLVMFuzzerMutate(data, size, max_size);
    const size_t n = (size_t)snprintf(text, sizeof text, "%llu", (unsigned long long)fuzz_number(r));
    if (size - (end - at) + n > max_size) return size;
    memmove(data + at + n, data + end, size - end);
    memcpy(data + at, text, n);
    return size - (end - at) + n;
}

size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t max_size, unsigned seed)
{
    fuzz_random r = {seed};
    fuzz_next(&r, 1);
    if (fuzz_plain_wanted(&r) || size == 0) return LLVMFuzzerMutate(data, size, max_size);
    switch (fuzz_next(&r, 4)) {
    case 0:
        return LLVMFuzzerMutate(data, size, max_size);
    case 1:
        return change_number(data, size, max_size, &r);
    default:
        return add_change(data, size, max_size, &r);
    }
}
