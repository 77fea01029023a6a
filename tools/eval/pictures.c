#include "tools/eval/pictures.h"

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

/* Allocates all disk space now, so that a full disk is found before days of work. */
static int reserve_disk(int fd, const char *path, uint64_t size)
{
    if (fallocate(fd, 0, 0, (off_t)size) == 0) return 0;
    if ((errno == EOPNOTSUPP || errno == ENOSYS) && ftruncate(fd, (off_t)size) == 0) return 0;
    const int reason = errno;
    unlink(path);
    return tool_error("%s: cannot have %llu bytes: %s", path, (unsigned long long)size, strerror(reason));
}

/* Prints that the file is lost and cannot be made again with --merge. Returns 1. */
static int refuse_lost(const char *path)
{
    return tool_error("%s: is not there any more, or not whole; the same command without --merge makes it again", path);
}

/* Opens RUN/images.npz.part, under RUN_LOCK_SETTINGS. Opens none if images.npz exists: images made again have the same
 * pixels. */
static int open_npz_part(const eval_job *job, eval_pixels *p)
{
    char whole[RUN_PATH];
    struct stat st;
    run_path(&job->directory, "images.npz", whole);
    run_path(&job->directory, "images.npz.part", p->npz_path);
    int fd = tool_open_file(p->npz_path, O_RDWR | O_NOFOLLOW);
    if (fd < 0 && errno != ENOENT) return tool_cannot_open(p->npz_path, "the images of the run");
    if (fd < 0 && access(whole, F_OK) == 0) return 0;
    const int is_ours = fd >= 0 && fstat(fd, &st) == 0 && (uint64_t)st.st_size == p->slots.size;
    if (!is_ours && fd >= 0) close(fd);
    if (!is_ours && job->options->merge) return refuse_lost(whole);
    if (!is_ours) fd = tool_create_file(p->npz_path);
    if (fd < 0) return tool_cannot_write(p->npz_path);
    p->npz = fd + 1;
    return is_ours ? 0 : reserve_disk(fd, p->npz_path, p->slots.size);
}

static int find_places(eval_pixels *p)
{
    const int n = (int)p->job->layout.images;
    int *order = malloc((size_t)n * sizeof *order);
    p->place = malloc((size_t)n * sizeof *p->place);
    if (order && p->place) {
        eval_permutation(EVAL_NPZ_SEED, n, order);
        for (int i = 0; i < n; i++) p->place[order[i]] = i;
    }
    free(order);
    return order && p->place ? 0 : tool_error("out of memory for the order of %d images", n);
}

static int open_images_npz(eval_job *job, eval_pixels *p)
{
    const int64_t shape[3] = {job->layout.height, job->layout.width, 3};
    npz_slots_layout(job->layout.images, shape, &p->slots);
    if (find_places(p) != 0) return 1;
    const lock_status lock = run_lock_wait(&job->directory, RUN_LOCK_SETTINGS);
    if (lock != LOCK_TAKEN) return lock == LOCK_BUSY ? interruption_status() : 1;
    const int failed = open_npz_part(job, p);
    run_unlock(&job->directory, RUN_LOCK_SETTINGS);
    return failed;
}

static off_t npz_slot_of(const eval_pixels *p, long index)
{
    return (off_t)(p->slots.first + (uint64_t)p->place[index] * p->slots.item);
}

/* Completes the open RUN/images.npz. crc [images]. Returns 0, or 1 with the error printed. */
static int finish_npz(const eval_pixels *p, const uint32_t *crc)
{
    char whole[RUN_PATH], why[NPZ_WHY_MAX];
    const int fd = p->npz - 1;
    const long images = p->job->layout.images;
    uint32_t *sorted = malloc((size_t)images * sizeof *sorted); /* in the order of arr_0 */
    int failed = sorted ? 0 : tool_error("out of memory for the order of %ld images", images);
    for (long i = 0; i < images && !failed; i++) sorted[p->place[i]] = crc[i];
    if (!failed && npz_slots_finish(fd, p->npz_path, &p->slots, sorted, why) != MAR_OK) failed = tool_error("%s", why);
    if (!failed && tool_sync(fd) != 0) failed = tool_cannot_write(p->npz_path);
    if (!failed && rename(p->npz_path, run_path(&p->job->directory, "images.npz", whole)) != 0)
        failed = tool_cannot_write(whole);
    free(sorted);
    return failed;
}

/* --- PNG ------------------------------------------------------------------------------------------------ */

static int pictures_open_folder(eval_job *job, eval_pixels *p)
{
    struct stat st;
    p->images = 1;
    p->folder.path = run_path(&job->directory, "images", p->folder_path);
    if (lstat(p->folder.path, &st) == 0 && S_ISLNK(st.st_mode))
        return tool_error("%s: is a link, expected a directory of the run", p->folder.path);
    return output_begin(&p->folder);
}

/* Writes the image as a PNG with its text. */
static int write_png(const eval_pixels *p, long index, int label, const uint8_t *rgb)
{
    const eval_job *job = p->job;
    record_texts texts = {0};
    record_texts_add(&texts, "Software", "libmar %s", mar_version());
    record_texts_add_image(&texts, &job->models, label, index);
    record_texts_add_run(&texts, &job->options->run, &job->models);
    record_texts_add(&texts, "guarantee", "%s", job->facts.guarantee);
    if (record_texts_end(&texts, "the text in a picture") != 0) return 1;
    const image picture = {job->layout.width, job->layout.height,
                           (uint8_t *)(uintptr_t)rgb}; /* the cast is safe: writing only reads the pixels */
    char *path = output_image_path(&p->folder, index);
    const int failed =
        !path || image_write(path, &picture, IMAGE_PNG, 0, texts.texts, texts.count, IMAGE_UNSYNCED) != 0;
    free(path);
    record_texts_free(&texts);
    return failed;
}

/* Returns whether the PNG exists with these pixels. Prints what is wrong with a file. */
static int has_png(const eval_pixels *p, long index, uint32_t crc)
{
    image_file file;
    char *path = output_image_path(&p->folder, index);
    int same = path && access(path, F_OK) == 0 &&
               image_read_png(path, p->job->layout.width, p->job->layout.height, &file) == 0;
    free(path);
    if (!same) return 0;
    same = npz_crc(file.picture.rgb, eval_pixel_bytes(&p->job->layout)) == crc;
    image_file_free(&file);
    return same;
}

/* --- both ----------------------------------------------------------------------------------------------- */

int eval_pixels_open(eval_job *job, eval_pixels *out)
{
    *out = (eval_pixels){.job = job};
    if (job->options->save_images && pictures_open_folder(job, out) != 0) return 1;
    return job->options->save_npz ? open_images_npz(job, out) : 0;
}

void eval_pixels_close(eval_pixels *p)
{
    if (p->npz) close(p->npz - 1);
    if (p->images) output_free(&p->folder);
    free(p->place);
    *p = (eval_pixels){0};
}

int eval_pixels_write(const eval_pixels *p, long index, int label, const uint8_t *rgb)
{
    if (p->images && write_png(p, index, label, rgb) != 0) return 1;
    if (!p->npz || tool_write_at(p->npz - 1, rgb, (size_t)p->slots.item, npz_slot_of(p, index)) == 0) return 0;
    return tool_cannot_write(p->npz_path);
}

int eval_pixels_sync(const eval_pixels *p)
{
    if (p->npz && tool_sync(p->npz - 1) != 0) return tool_cannot_write(p->npz_path);
    return p->images ? output_sync(&p->folder) : 0;
}

/* Returns whether the files have image i, by the CRC-32 of its pixels. rgb: room for them. */
static int files_have(const eval_pixels *p, long i, uint32_t crc, uint8_t *rgb)
{
    const size_t bytes = eval_pixel_bytes(&p->job->layout);
    if (p->images && !has_png(p, i, crc)) return 0;
    return !p->npz || (tool_read_at(p->npz - 1, rgb, bytes, npz_slot_of(p, i)) == 0 && npz_crc(rgb, bytes) == crc);
}

/* An image_sink: writes the pictures again. */
static int take_lost_files(void *self, const image_batch *batch)
{
    const eval_pixels *p = self;
    const size_t bytes = eval_pixel_bytes(&p->job->layout);
    for (int i = 0; i < batch->n; i++)
        if (eval_pixels_write(p, batch->first + i, batch->labels[i], batch->rgb + (size_t)i * bytes) != 0) return 1;
    return 0;
}

/* Checks that the files have all images of the batch, and decodes them again if not. rgb: room for an image. */
static int complete_batch_files(eval_pixels *p, eval_job *job, long first, const uint32_t *crc, uint8_t *rgb)
{
    int all = 1;
    for (long i = first; i < first + eval_batch_size(&job->layout, first) && all; i++)
        all = files_have(p, i, crc[i], rgb);
    if (all) return 0;
    if (!job->session) return refuse_lost(p->npz ? p->npz_path : p->folder.path);
    return eval_make_pixels(job, first, (image_sink){take_lost_files, p, 0, 1, 0});
}

int eval_pictures_finish(eval_job *job, const uint32_t *crc)
{
    eval_pixels p;
    uint8_t *rgb = malloc(eval_pixel_bytes(&job->layout));
    int status = eval_pixels_open(job, &p);
    if (status == 0 && !rgb) status = tool_error("out of memory for an image");
    for (long i = 0; i < job->layout.images && status == 0 && (p.npz || p.images); i += job->layout.batch) {
        if (job->written && job->written[i]) continue;
        progress_note(job->bar, "checking the images' files");
        status = interruption_came() ? interruption_status() : complete_batch_files(&p, job, i, crc, rgb);
    }
    if (status == 0) status = eval_pixels_sync(&p);
    if (status == 0 && p.npz) status = finish_npz(&p, crc);
    eval_pixels_close(&p);
    free(rgb);
    return status;
}

/* --- pictures of the page ----------------------------------------------------------------------------------------- */

static store_array array_of(const eval_job *job, uint8_t *rgb)
{
    return (store_array){"rgb", NPZ_U8, 3, {job->layout.height, job->layout.width, 3}, rgb};
}

int eval_picture_write(const eval_job *job, long index, int label, const uint8_t *rgb)
{
    const store_range at = {index, 1, &label};
    const store_array array = array_of(job, (uint8_t *)(uintptr_t)rgb);
    return store_write(&job->store, &at, job->facts.pictures, &array, 1);
}

/* The source of pictures that the store lacks: their batches, decoded again. */
typedef struct {
    const eval_job *job;
    eval_report_image *list; /* [count] rgb NULL: is wanted */
    int count;
} picture_sink;

/* A sink. The store has them then. */
static int take_page_pictures(void *self, const image_batch *batch)
{
    const picture_sink *p = self;
    const size_t bytes = eval_pixel_bytes(&p->job->layout);
    for (int i = 0; i < p->count; i++) {
        eval_report_image *picture = &p->list[i];
        const long at = picture->index - batch->first;
        if (picture->rgb || at < 0 || at >= batch->n) continue;
        uint8_t *rgb = malloc(bytes);
        if (!rgb) return tool_error("out of memory for a picture of the report");
        memcpy(rgb, batch->rgb + (size_t)at * bytes, bytes);
        picture->rgb = rgb;
        if (eval_picture_write(p->job, picture->index, picture->label, rgb) != 0) return 1;
    }
    return 0;
}

/* Reads the pixels of a picture from the store; NULL if they are missing. Returns 0, or 1 after printing "out of
 * memory". */
static int read_page_picture(const eval_job *job, eval_report_image *picture)
{
    const store_range at = {picture->index, 1, &picture->label};
    uint8_t *rgb = malloc(eval_pixel_bytes(&job->layout));
    if (!rgb) return tool_error("out of memory for a picture of the report");
    const store_array array = array_of(job, rgb);
    picture->rgb = rgb;
    if (store_read(&job->store, &at, job->facts.pictures, &array, 1) == STORE_THERE) return 0;
    picture->rgb = NULL;
    free(rgb);
    return 0;
}

int eval_pictures_get(eval_job *job, eval_report_image *list, int *count)
{
    picture_sink sink = {job, list, *count};
    const int all = *count, batch = job->layout.batch;
    for (int i = 0; i < all; i++)
        if (read_page_picture(job, &list[i]) != 0) return 1;
    for (int i = 0; i < all && job->session; i++) {
        const long first = list[i].index - list[i].index % batch;
        const int status =
            list[i].rgb ? 0 : eval_make_pixels(job, first, (image_sink){take_page_pictures, &sink, 0, 1, 0});
        if (status != 0) return status;
    }
    *count = 0;
    for (int i = 0; i < all; i++)
        if (list[i].rgb) list[(*count)++] = list[i];
    return 0;
}
