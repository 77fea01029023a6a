/* All files that mar eval --merge reads: settings.json, the run store's files, images.npz.part and result.json. The
 * files are in memory: stand-ins open, name and remove them.
 *
 * An input is settings.json, a NUL, result.json, a NUL, and changes to the other files. These files are what mar
 * eval writes with such settings. Each change overwrites, cuts or removes one. If it says so, it also completes the
 * checksums, as a forger would.
 *
 * All numbers of accepted files are within their arrays. A piece changed without its checksums is refused, or has
 * the data that were written. A result reads back as it was written. An error is one line.
 */
#include "tests/fuzz/fuzz.h"

#include "mar_eval.h"

#include "base/file.h"
#include "tools/cli/command.h"
#include "tools/eval/job.h"
#include "tools/eval/pictures.h"
#include "tools/eval/report.h"
#include "tools/cli/file.h"
#include "tools/images/source.h"

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

enum { FILES = 64, NAME = 160, FILE_MAX = 1 << 20 };

static struct {
    char name[NAME]; /* "": no file */
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

/* The file that the store writes. */
static char *written;
static size_t written_size;
mar_status __wrap_file_writer_open(const char *path, file_writer *out, mar_err *err);
mar_status __wrap_file_writer_commit(file_writer *w, mar_err *err);
void __wrap_file_writer_discard(file_writer *w);

mar_status __wrap_file_writer_open(const char *path, file_writer *out, mar_err *err)
{
    *out = (file_writer){.stream = open_memstream(&written, &written_size), .path = strdup(path)};
    return out->stream && out->path ? MAR_OK : err_set(err, MAR_ENOMEM, "%s: out of memory", path);
}

void __wrap_file_writer_discard(file_writer *w)
{
    fclose(w->stream);
    free(w->path);
    free(written);
    written = NULL;
    *w = (file_writer){0};
}

mar_status __wrap_file_writer_commit(file_writer *w, mar_err *err)
{
    (void)err;
    fflush(w->stream);
    put_file(w->path, written, written_size);
    __wrap_file_writer_discard(w);
    return MAR_OK;
}

lock_status __wrap_lock_wait(int fd, off_t byte, const char *path);
void __wrap_lock_release(int fd, off_t byte);
lock_status __wrap_lock_wait(int fd, off_t byte, const char *path)
{
    (void)fd, (void)byte, (void)path;
    return LOCK_TAKEN;
}

void __wrap_lock_release(int fd, off_t byte)
{
    (void)fd, (void)byte;
}

/* A network; only its sizes are used. */
static const mar_features_config network = {
    .name = "demo digits", .features = 2, .classes = 3, .spatial = 1, .parameters = 1};
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

/* Returns whether a call failed. A failure must print its reason in one line, a success nothing. */
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

typedef struct {
    uint8_t what; /* bits 0-2: the file; 3: from its end; 4: complete its checksums; 5: cut it there; 6: remove it */
    uint16_t offset;
    uint8_t size; /* of the bytes after this */
} change;

static uint8_t contents[FILE_MAX + 256], before[FILE_MAX];

static uint64_t le(const uint8_t *at, int width)
{
    uint64_t value = 0;
    for (int i = 0; i < width; i++) value |= (uint64_t)at[i] << 8 * i;
    return value;
}

static void put_le32(uint8_t *at, uint32_t value)
{
    for (int i = 0; i < 4; i++) at[i] = (uint8_t)(value >> 8 * i);
}

/* Completes the checksums of an npz by npz_writer: those of its entries, and the copies in its directory. */
static void seal(uint8_t *data, size_t size)
{
    enum { ENTRIES = 16, LOCAL = 30, DIRECTORY = 46 };
    uint32_t crc[ENTRIES];
    size_t at = 0;
    int count = 0;
    while (count < ENTRIES && size - at > LOCAL + 20 && le(data + at, 4) == 0x04034b50) {
        const size_t header = LOCAL + le(data + at + 26, 2) + le(data + at + 28, 2);
        if (header < LOCAL + 20 || header > size - at) return;
        const uint64_t length = le(data + at + header - 16, 8);
        if (length > size - at - header) return;
        put_le32(data + at + 14, crc[count++] = npz_crc(data + at + header, length));
        at += header + length;
    }
    for (int i = 0; i < count && size - at > DIRECTORY && le(data + at, 4) == 0x02014b50; i++) {
        put_le32(data + at + 16, crc[i]);
        const size_t entry = DIRECTORY + le(data + at + 28, 2) + le(data + at + 30, 2) + le(data + at + 32, 2);
        if (entry > size - at) return;
        at += entry;
    }
}

static void change_file(const char *name, const change *c, const uint8_t *bytes)
{
    const size_t size = get_file(name, contents);
    if (find(name) < 0) return;
    if (c->what & 64) {
        __wrap_unlink(name);
        return;
    }
    const size_t at = c->offset > size ? size : c->what & 8 ? size - c->offset : c->offset;
    memcpy(contents + at, bytes, c->size);
    size_t length = c->what & 32 || at + c->size > size ? at + c->size : size;
    if (length > FILE_MAX) length = FILE_MAX;
    if ((c->what & 16) && strstr(name, ".npz")) seal(contents, length);
    put_file(name, contents, length);
}

/* --- a run ------------------------------------------------------------------------------------------------- */

enum { IMAGES = 16, PIXELS = 1024, PIECES = 7 };

/* Makes the piece of a batch as mar eval does. */
static void fill_batch(const eval_layout *l, const store_range *at, eval_batch *b)
{
    static const uint8_t rgb[PIXELS * 3];
    eval_batch_begin(l, at->n, b);
    memset(b->stats, 0, sizeof *b->stats);
    *b->process = 1;
    b->seconds[0] = 1;
    for (int i = 0; i < b->n; i++) {
        for (int k = 0; k < l->features; k++) b->features[i * l->features + k] = (float)(i + k);
        for (int k = 0; k < l->classes; k++) b->logits[i * l->classes + k] = (float)((i + k) % 3);
        for (int k = 0; k < l->spatial; k++) b->spatial[i * l->spatial + k] = (float)i;
        b->labels[i] = at->labels[i], b->verified[i] = 4, b->replaced[i] = i % 3;
        b->crc[i] = (int32_t)npz_crc(rgb, eval_pixel_bytes(l));
    }
}

/* Writes all files that a run has before its numbers are added up. */
static void write_pieces(eval_job *job, eval_batch *b)
{
    static const uint8_t rgb[PIXELS * 3], zeros[FILE_MAX];
    const eval_layout *l = &job->layout;
    for (long i = 0; i < l->images; i += l->batch) {
        const store_range at = eval_range(job, i);
        fill_batch(l, &at, b);
        if (eval_batch_write(&job->store, &at, job->facts.judged, l, b) != 0) fuzz_fail("no piece");
    }
    for (int k = 0; k < l->samples && k < IMAGES; k += 2) {
        const long i = eval_sample_at(l, k);
        if (i < l->images && eval_picture_write(job, i, eval_range(job, i).labels[0], rgb) != 0)
            fuzz_fail("no picture");
    }
    npz_slots slots;
    npz_slots_layout(l->images, (int64_t[3]){l->height, l->width, 3}, &slots);
    if (slots.size <= FILE_MAX) put_file("images.npz.part", zeros, slots.size);
}

/* Applies the changes, each to a piece or to images.npz.part. */
static void change_files(eval_job *job, const uint8_t *data, size_t size)
{
    char path[STORE_PATH];
    for (size_t at = 0; size - at >= 4;) {
        const change c = {data[at], (uint16_t)(data[at + 1] | data[at + 2] << 8), data[at + 3]};
        const size_t left = size - at - 4, n = c.size < left ? c.size : left;
        const change made = {c.what, c.offset, (uint8_t)n};
        const long first = (long)(c.what & 7) * job->layout.batch;
        if ((c.what & 7) == PIECES) {
            change_file("images.npz.part", &made, data + at + 4);
        } else if (first < job->layout.images) {
            const store_range range = eval_range(job, first);
            change_file(tool_base_name(store_path(&job->store, &range, job->facts.judged, path)), &made, data + at + 4);
        }
        at += 4 + n;
    }
}

/* Checks accepted pieces: their counts are possible, and those not sealed have the data that were written. */
static void check_pieces(eval_job *job, eval_batch *b, int sealed)
{
    const eval_layout *l = &job->layout;
    eval_batch made;
    if (eval_batch_create(l, &made) != 0) fuzz_fail("out of memory");
    for (long i = 0; i < l->images; i += l->batch) {
        const store_range at = eval_range(job, i);
        const store_state state = eval_batch_read(&job->store, &at, job->facts.judged, l, b);
        failed("eval_batch_read", state == STORE_DAMAGED || state == STORE_ERROR);
        if (state != STORE_THERE) continue;
        for (int k = 0; k < b->n; k++)
            if (b->replaced[k] < 0 || b->replaced[k] > b->verified[k]) fuzz_fail("%d replaced", b->replaced[k]);
        if (sealed) continue;
        fill_batch(l, &at, &made);
        if (memcmp(made.features, b->features, (size_t)b->n * (size_t)l->features * sizeof *b->features) != 0 ||
            memcmp(made.labels, b->labels, (size_t)b->n * sizeof *b->labels) != 0 ||
            memcmp(made.logits, b->logits, (size_t)b->n * (size_t)l->classes * sizeof *b->logits) != 0)
            fuzz_fail("a piece was changed, and is taken");
    }
    eval_batch_free(&made);
}

/* Checks that an accepted result is written as it is, and reads back the same. */
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
    eval_result_print(r);
    rewind(stdout);
    if (failed("eval_report_write", eval_report_write(r, &extras, "run/report.html"))) fuzz_fail("no report");
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
        l->height > IMAGE_SIDE_MAX || l->samples > EVAL_SHEET_MAX)
        fuzz_fail("a layout of %ld images", l->images);
    if (l->steps < 0 || l->steps > EVAL_CURVE_MAX) fuzz_fail("%d steps", l->steps);
    if (job->class_count < 1) fuzz_fail("%d classes", job->class_count);
}

/* Returns whether any change completes its checksums. */
static int is_sealed(const uint8_t *data, size_t size)
{
    int sealed = 0;
    for (size_t at = 0; size - at >= 4; at += 4 + (data[at + 3] < size - at - 4 ? data[at + 3] : size - at - 4))
        sealed |= data[at] & 16;
    return sealed;
}

/* Checks the run of accepted settings, if it is small. */
static void check_run(eval_job *job, const uint8_t *changes, size_t size)
{
    static eval_result r;
    eval_layout *l = &job->layout;
    eval_batch batch;
    int labels[IMAGES];
    check_layout(job);
    l->features = network.features, l->classes = network.classes, l->spatial = network.spatial;
    if (l->images > IMAGES || l->batch > IMAGES || l->width * l->height > PIXELS) return;
    if (failed("store_find", store_find("run", strtoull(job->facts.images, NULL, 16), &job->store))) return;
    job->labels = labels;
    if (eval_batch_create(l, &batch) != 0) fuzz_fail("out of memory");
    write_pieces(job, &batch);
    change_files(job, changes, size);
    check_pieces(job, &batch, is_sealed(changes, size));
    eval_batch_free(&batch);
    const int status = eval_merge(job, &r);
    if (status == EVAL_MERGE_AGAIN) { /* a damaged piece printed a line, a missing one did not */
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
    if (!failed("eval_settings_take", eval_settings_take(&job, &nothing))) {
        options.save_npz = strcmp(eval_setting(&job, "save_npz"), "on") == 0;
        check_run(&job, changes, changes_size);
    }
    record_texts_free(&job.settings);
    cJSON_Delete(job.taken);
    free(job.classes);
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

/* Adds a change of eight bytes, or of a few. Most are sealed. */
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

/* Replaces a number in the texts. */
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
