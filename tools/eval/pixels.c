#include "tools/eval/pixels.h"

#include "eval/order.h"
#include "tools/cli/command.h"
#include "tools/cli/file.h"
#include "tools/cli/interruption.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* --- images.npz ----------------------------------------------------------------------------------------- */

static npz_slots slots_of(const eval_layout *l)
{
    const int64_t shape[3] = {l->height, l->width, 3};
    npz_slots slots;
    npz_slots_layout(l->images, shape, &slots);
    return slots;
}

/* Room on the disk for all of it, so that it lacks now and not after a day. */
static int reserve(int fd, const char *path, uint64_t size)
{
    if (fallocate(fd, 0, 0, (off_t)size) == 0) return 0;
    if ((errno == EOPNOTSUPP || errno == ENOSYS) && ftruncate(fd, (off_t)size) == 0) return 0;
    const int reason = errno;
    unlink(path);
    return tool_error("%s: cannot have %llu bytes: %s", path, (unsigned long long)size, strerror(reason));
}

/* Images are made once: what had their pixels cannot be made from anything else in the directory. */
static int refuse_lost(const eval_job *job)
{
    char whole[RUN_PATH];
    return tool_error("%s: is not there any more, or not whole, but its images were made; put it back, or use another "
                      "--out",
                      run_path(&job->directory, "images.npz", whole));
}

/* In RUN_LOCK_SETTINGS. A finished file, of which shards were lost, becomes one in progress again: what is written to
 * it is what is there. But if another process has finished the run since this one looked, its file stays as it is, and
 * none is open. */
static int open_part(eval_job *job, eval_pixels *p)
{
    char whole[RUN_PATH];
    struct stat st;
    run_path(&job->directory, "images.npz", whole);
    run_path(&job->directory, "images.npz.part", p->npz_path);
    const int is_new = access(p->npz_path, F_OK) != 0, missing = eval_missing_shards(job); /* in this order */
    const int has_shards = missing < eval_shard_count(&job->layout);
    if (is_new && missing == 0) return 0;
    if (is_new && rename(whole, p->npz_path) != 0 && has_shards) return refuse_lost(job);
    int fd = tool_open_file(p->npz_path, O_RDWR | O_NOFOLLOW);
    if (fd < 0 && errno != ENOENT) return tool_cannot_open(p->npz_path, "the images of the run");
    const int is_ours = fd >= 0 && fstat(fd, &st) == 0 && (uint64_t)st.st_size == p->slots.size;
    if (!is_ours && fd >= 0) close(fd);
    if (!is_ours && has_shards) return refuse_lost(job);
    if (!is_ours) fd = tool_create_file(p->npz_path);
    if (fd < 0) return tool_cannot_write(p->npz_path);
    p->npz = fd + 1;
    return is_ours ? 0 : reserve(fd, p->npz_path, p->slots.size);
}

static int find_places(eval_pixels *p)
{
    const int n = (int)p->layout->images;
    int *order = malloc((size_t)n * sizeof *order);
    p->place = malloc((size_t)n * sizeof *p->place);
    if (order && p->place) {
        eval_permutation(EVAL_NPZ_SEED, n, order);
        for (int i = 0; i < n; i++) p->place[order[i]] = i;
    }
    free(order);
    return order && p->place ? 0 : tool_error("out of memory for the order of %d images", n);
}

static int open_npz(eval_job *job, eval_pixels *p)
{
    p->slots = slots_of(&job->layout);
    if (find_places(p) != 0) return 1;
    const run_lock_status lock = run_lock_wait(&job->directory, RUN_LOCK_SETTINGS);
    if (lock != RUN_LOCKED) return lock == RUN_BUSY ? interruption_status() : 1;
    const int failed = open_part(job, p);
    run_unlock(&job->directory, RUN_LOCK_SETTINGS);
    return failed;
}

static off_t slot(const eval_pixels *p, long index)
{
    return (off_t)(p->slots.first + (uint64_t)p->place[index] * p->slots.item);
}

int eval_pixels_write_slot(const eval_pixels *p, long index, const uint8_t *rgb)
{
    if (tool_write_at(p->npz - 1, rgb, (size_t)p->slots.item, slot(p, index)) == 0) return 0;
    return tool_cannot_write(p->npz_path);
}

/* crc [images] by number, in the order of arr_0. */
static uint32_t *in_order(const eval_layout *l, const uint32_t *crc)
{
    const size_t n = (size_t)l->images;
    int *order = malloc(n * sizeof *order);
    uint32_t *sorted = malloc(n * sizeof *sorted);
    if (order && sorted) {
        eval_permutation(EVAL_NPZ_SEED, (int)n, order);
        for (size_t i = 0; i < n; i++) sorted[i] = crc[order[i]];
    } else {
        free(sorted);
        sorted = NULL;
    }
    free(order);
    return sorted;
}

int eval_pixels_finish_npz(eval_job *job, const uint32_t *crc)
{
    char part[RUN_PATH], whole[RUN_PATH], why[NPZ_WHY_MAX];
    const npz_slots slots = slots_of(&job->layout);
    run_path(&job->directory, "images.npz", whole);
    run_path(&job->directory, "images.npz.part", part);
    const int fd = tool_open_file(part, O_RDWR | O_NOFOLLOW);
    if (fd < 0 && errno == ENOENT && access(whole, F_OK) == 0) return 0; /* finished before */
    if (fd < 0 && errno == ENOENT) return refuse_lost(job);
    if (fd < 0) return tool_cannot_open(part, "the images of the run");
    uint32_t *sorted = in_order(&job->layout, crc);
    int failed = !sorted;
    if (failed) tool_error("out of memory for the order of %ld images", job->layout.images);
    if (!failed && npz_slots_finish(fd, part, &slots, sorted, why) != MAR_OK) failed = tool_error("%s", why);
    if (!failed && tool_sync(fd) != 0) failed = tool_cannot_write(part);
    if (!failed && rename(part, whole) != 0) failed = tool_cannot_write(whole);
    close(fd);
    free(sorted);
    return failed;
}

/* --- PNG ------------------------------------------------------------------------------------------------ */

static int open_folder(eval_job *job, eval_pixels *p)
{
    struct stat st;
    p->images = 1;
    p->folder.path = run_path(&job->directory, "images", p->folder_path);
    if (lstat(p->folder.path, &st) == 0 && S_ISLNK(st.st_mode))
        return tool_error("%s: is a link, expected a directory of the run", p->folder.path);
    return output_begin(&p->folder);
}

int eval_pixels_write_png(const eval_pixels *p, long index, const uint8_t *rgb, const image_text *texts, int count)
{
    const image picture = {p->layout->width, p->layout->height, (uint8_t *)(uintptr_t)rgb}; /* which writing leaves */
    char *path = output_image_path(&p->folder, index);
    const int failed = !path || image_write_png(path, &picture, texts, count, IMAGE_UNSYNCED) != 0;
    free(path);
    return failed;
}

static int has_png(const eval_pixels *p, long index, uint32_t crc)
{
    image_file file;
    char *path = output_image_path(&p->folder, index);
    int same = path && image_read_png(path, p->layout->width, p->layout->height, &file) == 0;
    free(path);
    if (!same) return 0;
    same = npz_crc(file.picture.rgb, eval_pixel_bytes(p->layout)) == crc;
    image_file_free(&file);
    return same;
}

/* --- both ----------------------------------------------------------------------------------------------- */

int eval_pixels_open(eval_job *job, eval_pixels *out)
{
    *out = (eval_pixels){.layout = &job->layout};
    if (job->options->save_images && open_folder(job, out) != 0) return 1;
    return job->options->save_npz ? open_npz(job, out) : 0;
}

void eval_pixels_close(eval_pixels *p)
{
    if (p->npz) close(p->npz - 1);
    if (p->images) output_free(&p->folder);
    free(p->place);
    *p = (eval_pixels){0};
}

static int has_slot(const eval_pixels *p, long index, uint32_t crc, uint8_t *rgb)
{
    const size_t bytes = (size_t)p->slots.item;
    return tool_read_at(p->npz - 1, rgb, bytes, slot(p, index)) == 0 && npz_crc(rgb, bytes) == crc;
}

int eval_pixels_have(const eval_pixels *p, const eval_record *r)
{
    int have = 1;
    uint8_t *rgb = p->npz ? malloc((size_t)p->slots.item) : NULL;
    if (p->npz && !rgb) return 0;
    for (int i = 0; i < r->n && have; i++) {
        if (p->images) have = has_png(p, r->first + i, r->crc[i]);
        if (p->npz && have) have = has_slot(p, r->first + i, r->crc[i], rgb);
    }
    free(rgb);
    return have;
}

int eval_pixels_sync(const eval_pixels *p)
{
    if (p->npz && tool_sync(p->npz - 1) != 0) return tool_cannot_write(p->npz_path);
    return p->images ? output_sync(&p->folder) : 0;
}
