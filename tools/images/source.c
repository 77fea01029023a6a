#include "tools/images/source.h"

#include "tools/cli/command.h"
#include "tools/cli/file.h"
#include "tools/cli/file_sum.h"
#include "tools/cli/text.h"
#include "tools/images/folder.h"
#include "tools/images/kind.h"
#include "tools/images/png_chunks.h"
#include "weights/npz.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

struct image_source {
    char *path;
    int64_t count;
    int width, height; /* of all images, or of the first */
    int any_size;      /* 1: the images of a directory may have other sizes */
    char **names;      /* of a directory: [count], sorted */
    npz *file;         /* of an array: the file, the array, and the images read so far */
    const npz_array *array;
    int64_t at;
};

/* --- one picture --------------------------------------------------------------------------------------------- */

int image_decode(const void *data, size_t size, image *out, char why[IMAGE_WHY_MAX])
{
    int failed;
    *out = (image){.rgb = NULL};
    switch (image_kind_format(data, size)) {
    case IMAGE_PNG:
        failed = image_decode_png(data, size, out, why);
        break;
    case IMAGE_JPEG:
        failed = image_decode_jpeg(data, size, out, why);
        break;
    case IMAGE_WEBP:
        failed = image_decode_webp(data, size, out, why);
        break;
    default:
        return image_refuse_kind(data, size, image_kind_expected(), why);
    }
    if (failed) free(out->rgb), *out = (image){.rgb = NULL};
    return failed;
}

int image_decode_alpha(const void *data, size_t size, image *out, uint8_t **alpha, char why[IMAGE_WHY_MAX])
{
    const int format = image_kind_format(data, size);
    *alpha = NULL;
    if (format != IMAGE_PNG && format != IMAGE_WEBP) return image_decode(data, size, out, why);
    *out = (image){.rgb = NULL};
    if ((format == IMAGE_PNG ? image_decode_png_alpha : image_decode_webp_alpha)(data, size, out, alpha, why) == 0)
        return 0;
    free(out->rgb);
    free(*alpha);
    *out = (image){.rgb = NULL};
    *alpha = NULL;
    return 1;
}

int image_size(const void *data, size_t size, int *width, int *height, char why[IMAGE_WHY_MAX])
{
    double w = 0, h = 0;
    int failed;
    png_frame frame = {.width = 0};
    switch (image_kind_format(data, size)) {
    case IMAGE_PNG:
        failed = image_png_size(data, size, &frame, why);
        w = frame.width, h = frame.height;
        break;
    case IMAGE_JPEG:
        failed = image_jpeg_size(data, size, &w, &h, why);
        break;
    case IMAGE_WEBP:
        failed = image_webp_size(data, size, &w, &h, why);
        break;
    default:
        return image_refuse_kind(data, size, image_kind_expected(), why);
    }
    if (failed || image_check_sides(w, h, why) != 0) return 1;
    *width = (int)w;
    *height = (int)h;
    return 0;
}

/* Reads the whole file. The caller frees the bytes. Returns NULL with the error printed. */
static void *read_bytes(const char *path, size_t *size)
{
    return tool_read_file(path, 0, 1024, image_kind_expected(), size);
}

int image_read_size(const char *path, int *width, int *height)
{
    char why[IMAGE_WHY_MAX];
    size_t size;
    void *data = read_bytes(path, &size);
    if (!data) return 1;
    const int failed = image_size(data, size, width, height, why);
    free(data);
    return failed ? tool_error("%s: %s", path, why) : 0;
}

/* Returns whether some of the pixels are not opaque. */
static int is_transparent(const image *m, const uint8_t *alpha)
{
    const size_t pixels = (size_t)m->width * (size_t)m->height;
    for (size_t i = 0; alpha && i < pixels; i++)
        if (alpha[i] < 255) return 1;
    return 0;
}

int image_read_within(const char *path, int width, int height, const char *limit, image *out, int *has_clear)
{
    char why[IMAGE_WHY_MAX];
    size_t size;
    int w, h;
    uint8_t *alpha = NULL;
    *out = (image){.rgb = NULL};
    void *data = read_bytes(path, &size);
    if (!data) return 1;
    int failed = image_size(data, size, &w, &h, why);
    if (!failed && (w > width || h > height))
        failed = text_fail(why, sizeof why, "has %dx%d pixels, expected %dx%d at most, %s", w, h, width, height, limit);
    if (!failed) failed = image_decode_alpha(data, size, out, &alpha, why);
    if (!failed && has_clear) *has_clear = is_transparent(out, alpha);
    free(alpha);
    free(data);
    return failed ? tool_error("%s: %s", path, why) : 0;
}

/* --- directories ---------------------------------------------------------------------------------------------- */

int image_source_sum(const image_source *s, uint64_t *sum)
{
    struct stat st;
    const int fd = open(s->path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0) return tool_error("%s: cannot read the directory: %s", s->path, strerror(errno));
    *sum = 0;
    for (int64_t i = 0; i < s->count; i++) {
        if (fstatat(fd, s->names[i], &st, 0) != 0) {
            const int reason = errno;
            close(fd);
            return tool_error("%s/%s: cannot read: %s", s->path, s->names[i], strerror(reason));
        }
        const int64_t stamp[] = {st.st_size, st.st_mtim.tv_sec, st.st_mtim.tv_nsec};
        *sum = *sum * 31 + memory_sum(s->names[i], strlen(s->names[i]));
        *sum = *sum * 31 + memory_sum(stamp, sizeof stamp);
    }
    close(fd);
    return 0;
}

/* Decodes image i, if it has the size of the first or may have any. */
static int decode_file(const image_source *s, const char *path, const void *data, size_t size, image *out)
{
    char why[IMAGE_WHY_MAX];
    int width = 0, height = 0;
    int failed = image_size(data, size, &width, &height, why);
    if (!failed && s->width > 0 && !s->any_size && (width != s->width || height != s->height))
        return tool_error("%s: has %dx%d pixels, expected %dx%d, as %s has; --resize takes images of any size", path,
                          width, height, s->width, s->height, s->names[0]);
    if (!failed) failed = image_decode(data, size, out, why);
    return failed ? tool_error("%s: %s", path, why) : 0;
}

/* Reads image i. The caller frees out->rgb. */
static int source_read_file(const image_source *s, int64_t i, image *out)
{
    size_t size;
    char *path = tool_join(s->path, s->names[i]);
    *out = (image){.rgb = NULL};
    void *data = path ? read_bytes(path, &size) : NULL;
    const int failed = !data || decode_file(s, path, data, size, out) != 0;
    free(data);
    free(path);
    return failed;
}

static int open_directory(image_source *s)
{
    image first = {.rgb = NULL};
    if (image_folder_list(s->path, &s->names, &s->count) != 0 || source_read_file(s, 0, &first) != 0) return 1;
    s->width = first.width;
    s->height = first.height;
    free(first.rgb);
    return 0;
}

/* --- arrays --------------------------------------------------------------------------------------------------- */

static int open_array(image_source *s)
{
    char why[NPZ_WHY_MAX];
    if (npz_open(s->path, &s->file, why) != MAR_OK) return tool_error("%s", why);
    const char *name =
        npz_count(s->file) == 1 && !*npz_name_at(s->file, 0) ? "" : "arr_0"; /* the array of a .npy has the name "" */
    const npz_array *a = s->array = npz_find(s->file, name);
    if (!a) {
        npz_explain(s->file, name, why);
        return tool_error("%s", why);
    }
    const int sides = a->rank == 4 && a->shape[1] >= 1 && a->shape[2] >= 1 && a->shape[1] <= IMAGE_SIDE_MAX &&
                      a->shape[2] <= IMAGE_SIDE_MAX && a->shape[3] == 3;
    if (a->dtype != NPZ_U8 || !sides)
        return tool_error("%s: %s is %s, expected uint8 [images, height, width, 3]", s->path,
                          *name ? name : "the array", npz_describe(a, why));
    if (a->shape[0] == 0) return tool_error("%s: has no images: it is %s", s->path, npz_describe(a, why));
    s->count = a->shape[0];
    s->height = (int)a->shape[1];
    s->width = (int)a->shape[2];
    if (npz_stream_begin(s->file, a, why) != MAR_OK) return tool_error("%s", why);
    return 0;
}

/* Moves to image `first`. */
static int seek_array(image_source *s, int64_t first, uint8_t *rgb, size_t size)
{
    char why[NPZ_WHY_MAX];
    if (first < s->at) {
        if (npz_stream_begin(s->file, s->array, why) != MAR_OK) return tool_error("%s", why);
        s->at = 0;
    }
    for (; s->at < first; s->at++)
        if (npz_stream_read(s->file, size, rgb, why) != MAR_OK) return tool_error("%s", why);
    return 0;
}

static int read_array(image_source *s, int64_t first, int64_t n, uint8_t *rgb, size_t size)
{
    char why[NPZ_WHY_MAX];
    if (n == 0) return 0;
    if (seek_array(s, first, rgb, size) != 0) return 1;
    if (npz_stream_read(s->file, (size_t)n * size, rgb, why) != MAR_OK) return tool_error("%s", why);
    s->at += n;
    return 0;
}

/* --- sources ------------------------------------------------------------------------------------------------------ */

static int open_source(const char *path, int any_size, image_source **out)
{
    struct stat st;
    *out = NULL;
    if (stat(path, &st) != 0) return tool_error("%s: cannot open: %s", path, strerror(errno));
    image_source *s = calloc(1, sizeof *s);
    if (s) s->path = strdup(path), s->any_size = any_size;
    if (!s || !s->path) {
        free(s);
        return tool_error("%s: out of memory", path);
    }
    if ((S_ISDIR(st.st_mode) ? open_directory(s) : open_array(s)) != 0) {
        image_source_close(s);
        return 1;
    }
    *out = s;
    return 0;
}

int image_source_open(const char *path, image_source **out)
{
    return open_source(path, 0, out);
}

int image_source_open_any(const char *path, image_source **out)
{
    return open_source(path, 1, out);
}

void image_source_close(image_source *s)
{
    if (!s) return;
    for (int64_t i = 0; s->names && i < s->count; i++) free(s->names[i]);
    free(s->names);
    npz_close(s->file);
    free(s->path);
    free(s);
}

int64_t image_source_count(const image_source *s)
{
    return s->count;
}

int image_source_width(const image_source *s)
{
    return s->width;
}

int image_source_height(const image_source *s)
{
    return s->height;
}

const char *image_source_name(const image_source *s, int64_t i)
{
    return s->names ? s->names[i] : NULL;
}

int image_source_read(image_source *s, int64_t first, int64_t n, uint8_t *rgb)
{
    const size_t size = (size_t)s->width * (size_t)s->height * 3;
    if (s->file) return read_array(s, first, n, rgb, size);
    for (int64_t i = 0; i < n; i++) {
        image picture = {.rgb = NULL};
        if (source_read_file(s, first + i, &picture) != 0) return 1;
        memcpy(rgb + (size_t)i * size, picture.rgb, size);
        free(picture.rgb);
    }
    return 0;
}

int64_t image_source_read_pictures(image_source *s, int64_t first, int64_t n, image *pictures)
{
    const size_t size = (size_t)s->width * (size_t)s->height * 3;
    size_t bytes = 0;
    int failed = 0;
    int64_t done = 0;
    for (; done < n && !failed && bytes < IMAGE_SOURCE_BYTES; done++) {
        image *p = &pictures[done];
        *p = (image){s->width, s->height, NULL};
        if (!s->file) {
            failed = source_read_file(s, first + done, p);
        } else if (!(p->rgb = malloc(size))) {
            failed = tool_error("%s: out of memory for its images", s->path);
        } else {
            failed = read_array(s, first + done, 1, p->rgb, size);
        }
        bytes += (size_t)p->width * (size_t)p->height * 3;
    }
    for (int64_t i = 0; i < done && failed; i++) {
        free(pictures[i].rgb);
        pictures[i].rgb = NULL;
    }
    return failed ? -1 : done;
}

/* --- natural order ------------------------------------------------------------------------------------------------ */

typedef struct {
    const char *name;
    int32_t index;
} named;

static int compare_named(const void *a, const void *b)
{
    const named *x = a, *y = b;
    const int order = text_compare_names(x->name, y->name);
    return order != 0 ? order : x->index - y->index;
}

int image_source_rank(const image_source *s, int32_t *rank)
{
    for (int64_t i = 0; i < s->count; i++) rank[i] = (int32_t)i;
    if (!s->names) return 0;
    named *list = malloc((size_t)s->count * sizeof *list);
    if (!list) return 1;
    for (int64_t i = 0; i < s->count; i++) list[i] = (named){s->names[i], (int32_t)i};
    qsort(list, (size_t)s->count, sizeof *list, compare_named);
    for (int64_t i = 0; i < s->count; i++) rank[list[i].index] = (int32_t)i;
    free(list);
    return 0;
}
