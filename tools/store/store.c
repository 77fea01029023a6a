#include "tools/store/store.h"

#include "tools/cli/command.h"
#include "tools/cli/json.h"
#include "tools/cli/file.h"
#include "tools/cli/file_sum.h"
#include "tools/cli/interruption.h"

#include <cjson/cJSON.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* --- runs ----------------------------------------------------------------------------------------------- */

uint64_t store_hash(const image_text *texts, int count)
{
    uint64_t sum = 0;
    for (int i = 0; i < count; i++) {
        sum = sum * 31 + memory_sum(texts[i].key, strlen(texts[i].key));
        sum = sum * 31 + memory_sum(texts[i].value, strlen(texts[i].value));
    }
    return sum;
}

/* Checks that `path` is a directory and no link. Prints an error. */
static int check_directory(const char *path)
{
    struct stat st;
    if (lstat(path, &st) != 0) return tool_error("%s: cannot read: %s", path, strerror(errno));
    if (S_ISLNK(st.st_mode)) return tool_error("%s: is a link, expected a directory of the run", path);
    return S_ISDIR(st.st_mode) ? 0 : tool_error("%s: is no directory, expected one of the run", path);
}

/* Makes a directory if it is missing; refuses a link. Returns 0, or 1 with the error printed. */
static int make_store_directory(const char *path)
{
    if (mkdir(path, 0777) == 0) return 0;
    const int reason = errno;
    return reason == EEXIST ? check_directory(path)
                            : tool_error("%s: cannot make the directory: %s", path, strerror(reason));
}

/* Sets the run's path, and that of all runs, char [STORE_PATH]. Returns 0, or 1 after printing that it is too long. */
static int set_store_path(const char *directory, uint64_t hash, store_run *r, char *runs)
{
    const size_t n = strlen(directory);
    if (n > STORE_PATH - 200) return tool_error("%s: has %zu bytes, expected a shorter path", directory, n);
    snprintf(runs, STORE_PATH, "%s%sruns", directory, n > 0 && directory[n - 1] == '/' ? "" : "/");
    snprintf(r->path, sizeof r->path, "%.*s/%016" PRIx64, STORE_PATH - 40, runs, hash);
    r->hash = hash;
    return 0;
}

/* Writes the path of the run's "run.json" or "lock" to path. Returns path. */
static const char *file_of(const store_run *r, const char *name, char *path)
{
    snprintf(path, STORE_PATH, "%.*s/%s", STORE_PATH - 20, r->path, name);
    return path;
}

enum { RUN_JSON_MAX = 1 << 20 }; /* maximum bytes of a run.json */

/* Returns whether the file has these bytes: 0 if it is missing or damaged. Returns -1 after printing if it cannot be
 * read, or is whole and belongs to another run of the same hash. */
static int run_file_has(const char *path, const char *bytes, size_t size)
{
    size_t found_size;
    const int fd = tool_open_file(path, O_RDONLY | O_NOFOLLOW);
    if (fd < 0 && errno == ENOENT) return 0;
    if (fd < 0) {
        tool_cannot_open(path, "what a run depends on");
        return -1;
    }
    char *found = tool_read_all(fd, path, RUN_JSON_MAX, &found_size);
    close(fd);
    if (!found) return found_size > RUN_JSON_MAX ? 0 : -1;
    const int same = found_size == size && memcmp(found, bytes, size) == 0;
    cJSON *other = same ? NULL : cJSON_ParseWithOpts(found, NULL, 1);
    const int is_other = cJSON_IsObject(other);
    cJSON_Delete(other);
    free(found);
    if (is_other) tool_error("%s: is of another run, expected what this one depends on; use another directory", path);
    return is_other ? -1 : same;
}

static int write_run_json(const store_run *r, const image_text *texts, int count)
{
    char path[STORE_PATH];
    size_t size;
    cJSON *record = tool_json();
    for (int i = 0; i < count; i++) cJSON_AddStringToObject(record, texts[i].key, texts[i].value);
    char *text = tool_json_text(record, 1, &size);
    if (!text) return tool_error("out of memory for what a run depends on");
    const int has = run_file_has(file_of(r, "run.json", path), text, size);
    const int failed = has < 0 || (!has && tool_write_file(path, text, size) != 0);
    free(text);
    return failed;
}

int store_open(const char *directory, const image_text *texts, int count, store_run *out)
{
    char runs[STORE_PATH], path[STORE_PATH];
    *out = (store_run){0};
    if (set_store_path(directory, store_hash(texts, count), out, runs) != 0 || make_store_directory(runs) != 0 ||
        make_store_directory(out->path) != 0 || write_run_json(out, texts, count) != 0)
        return 1;
    const int fd = lock_open(file_of(out, "lock", path));
    out->lock = fd + 1;
    return fd < 0;
}

int store_find(const char *directory, uint64_t hash, store_run *out)
{
    char runs[STORE_PATH];
    *out = (store_run){0};
    if (set_store_path(directory, hash, out, runs) != 0) return 1;
    if (access(out->path, F_OK) != 0 && errno == ENOENT) return 0;
    return check_directory(runs) || check_directory(out->path);
}

void store_close(store_run *r)
{
    if (r->lock) close(r->lock - 1);
    *r = (store_run){0};
}

/* --- pieces --------------------------------------------------------------------------------------------- */

enum { NAME = 160, HEADERS = 512 /* maximum bytes of a file besides the numbers of an array */ };

/* Writes "000016-000031.LABELS.KIND.npz". Returns name. */
static const char *piece_name(const store_range *at, const char *kind, char name[NAME])
{
    snprintf(name, NAME, "%06ld-%06ld.%016" PRIx64 "%s%s.npz", at->first, at->first + at->n - 1,
             memory_sum(at->labels, (size_t)at->n * sizeof *at->labels), kind ? "." : "", kind ? kind : "");
    return name;
}

const char *store_path(const store_run *r, const store_range *at, const char *kind, char *path)
{
    char name[NAME];
    snprintf(path, STORE_PATH, "%.*s/%s", STORE_PATH - NAME - 1, r->path, piece_name(at, kind, name));
    return path;
}

int store_has(const store_run *r, const store_range *at, const char *kind)
{
    char path[STORE_PATH];
    return access(store_path(r, at, kind, path), F_OK) == 0;
}

/* Writes a piece's array "of", its address: "RUN/000016-000031.LABELS.npz". Returns its length. */
static size_t piece_address(const store_run *r, const store_range *at, const char *kind, char text[2 * NAME])
{
    char name[NAME];
    return (size_t)snprintf(text, 2 * NAME, "%016" PRIx64 "/%s", r->hash, piece_name(at, kind, name));
}

int store_write(const store_run *r, const store_range *at, const char *kind, const store_array *arrays, int count)
{
    char path[STORE_PATH], why[NPZ_WHY_MAX], address[2 * NAME];
    npz_writer *w;
    sigset_t before;
    const int64_t length = (int64_t)piece_address(r, at, kind, address);
    interruption_hold(&before); /* the file may have a hidden name */
    mar_status status = npz_writer_open(store_path(r, at, kind, path), 0, &w, why);
    const int is_open = status == MAR_OK;
    if (is_open) npz_writer_leave_unsynced(w);
    if (is_open) status = npz_writer_add(w, "of", NPZ_U8, 1, &length, address, why);
    for (int i = 0; i < count && status == MAR_OK; i++)
        status =
            npz_writer_add(w, arrays[i].name, arrays[i].dtype, arrays[i].rank, arrays[i].shape, arrays[i].data, why);
    if (is_open && status != MAR_OK)
        npz_writer_discard(w);
    else if (is_open)
        status = npz_writer_commit(w, why);
    interruption_release(&before);
    return status == MAR_OK ? 0 : tool_error("%s", why);
}

static size_t array_numbers(const store_array *a)
{
    size_t n = 1;
    for (int d = 0; d < a->rank; d++) n *= (size_t)a->shape[d];
    return n;
}

static size_t array_bytes(const store_array *a)
{
    return array_numbers(a) * (a->dtype == NPZ_U8 ? 1 : a->dtype == NPZ_I32 || a->dtype == NPZ_F32 ? 4 : 8);
}

/* Reads numbers that int32 represents exactly, as npz_read_f64 returns them. */
static mar_status read_i32(npz *z, const npz_array *found, size_t n, int32_t *to, char *why)
{
    double *numbers = malloc(n * sizeof *numbers + 1);
    if (!numbers) return MAR_ENOMEM;
    const mar_status status = npz_read_f64(z, found, numbers, why);
    for (size_t i = 0; i < n && status == MAR_OK; i++) to[i] = (int32_t)numbers[i];
    free(numbers);
    return status;
}

static mar_status read_piece_array(npz *z, const store_array *a, char *why)
{
    const npz_array *found = npz_find(z, a->name);
    int same = found && found->dtype == a->dtype && found->rank == a->rank && !found->fortran && !found->deflated;
    for (int d = 0; d < a->rank && same; d++) same = found->shape[d] == a->shape[d];
    if (!same) return MAR_EFORMAT;
    if (!a->data || array_numbers(a) == 0) return MAR_OK;
    if (a->dtype == NPZ_F32) return npz_read_f32(z, found, a->data, why);
    if (a->dtype == NPZ_F64) return npz_read_f64(z, found, a->data, why);
    if (a->dtype == NPZ_I32) return read_i32(z, found, array_numbers(a), a->data, why);
    const mar_status status = npz_stream_begin(z, found, why);
    return status == MAR_OK ? npz_stream_read(z, array_numbers(a), a->data, why) : status;
}

/* Reads the arrays of the file in memory, and checks its address. */
static mar_status read_arrays(const void *data, size_t size, const char *address, size_t length,
                              const store_array *arrays, int count, char *why)
{
    char of[2 * NAME];
    npz *z;
    const store_array own = {"of", NPZ_U8, 1, {(int64_t)length}, of};
    mar_status status = npz_open_memory(data, size, "", &z, why);
    if (status != MAR_OK) return status;
    status = read_piece_array(z, &own, why);
    if (status == MAR_OK && memcmp(of, address, length) != 0) status = MAR_EFORMAT;
    for (int i = 0; i < count && status == MAR_OK; i++) status = read_piece_array(z, &arrays[i], why);
    npz_close(z);
    return status;
}

store_state store_read(const store_run *r, const store_range *at, const char *kind, const store_array *arrays,
                       int count)
{
    char path[STORE_PATH], why[NPZ_WHY_MAX] = "", address[2 * NAME];
    const size_t length = piece_address(r, at, kind, address);
    size_t size, most = length + HEADERS;
    for (int i = 0; i < count; i++) most += array_bytes(&arrays[i]) + HEADERS;
    const int fd = tool_open_file(store_path(r, at, kind, path), O_RDONLY | O_NOFOLLOW);
    if (fd < 0 && errno == ENOENT) return STORE_MISSING;
    if (fd < 0) {
        tool_cannot_open(path, "a piece of this run");
        return STORE_ERROR;
    }
    void *data = tool_read_all(fd, path, most, &size);
    store_state state = size > most ? STORE_DAMAGED : STORE_ERROR;
    close(fd);
    if (data) {
        const mar_status status = read_arrays(data, size, address, length, arrays, count, why);
        state = status == MAR_OK ? STORE_THERE : status == MAR_ENOMEM ? STORE_ERROR : STORE_DAMAGED;
        if (state == STORE_ERROR) tool_error("%s: out of memory", path);
    }
    if (state == STORE_DAMAGED)
        tool_error("%s: is damaged, expected images %ld to %ld of this run", path, at->first, at->first + at->n - 1);
    free(data);
    return state;
}

/* --- locks ---------------------------------------------------------------------------------------------- */

static off_t byte_of(const store_range *at, store_part part)
{
    return 2 * (off_t)at->first + part;
}

lock_status store_lock(const store_run *r, const store_range *at, store_part part)
{
    return lock_take(r->lock - 1, byte_of(at, part), 0, r->path);
}

lock_status store_lock_wait(const store_run *r, const store_range *at, store_part part)
{
    return lock_wait(r->lock - 1, byte_of(at, part), r->path);
}

void store_unlock(const store_run *r, const store_range *at, store_part part)
{
    lock_release(r->lock - 1, byte_of(at, part));
}
