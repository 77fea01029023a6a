#include "tools/image.h"

#include "tools/command.h"

#include <errno.h>
#include <fcntl.h>
#include <png.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* --- PNG in memory: encoding cannot then fail half-way through a file ------------------------------- */

typedef struct {
    uint8_t *data;
    size_t size, capacity;
    char why[128]; /* libpng's message, if it failed */
} png_buffer;

static void png_failed(png_structp png, png_const_charp message)
{
    png_buffer *buffer = png_get_error_ptr(png);
    snprintf(buffer->why, sizeof buffer->why, "%s", message);
    longjmp(png_jmpbuf(png), 1);
}

static void png_warned(png_structp png, png_const_charp message)
{
    (void)png;
    (void)message; /* e.g. a text key libpng would rather have capitalised */
}

static void png_append(png_structp png, png_bytep data, size_t size)
{
    png_buffer *buffer = png_get_io_ptr(png);
    if (size > buffer->capacity - buffer->size) {
        size_t capacity = 2 * buffer->capacity + size;
        uint8_t *grown = realloc(buffer->data, capacity);
        if (!grown) png_error(png, "out of memory");
        buffer->data = grown;
        buffer->capacity = capacity;
    }
    memcpy(buffer->data + buffer->size, data, size);
    buffer->size += size;
}

static void png_nothing_to_flush(png_structp png)
{
    (void)png;
}

static int is_ascii(const char *text)
{
    for (; *text; text++)
        if ((unsigned char)*text >= 128) return 0;
    return 1;
}

/* libpng reports errors by longjmp, so nothing that must be freed is made between setjmp and the end. */
static int encode(const image *picture, png_text *texts, int text_count, png_buffer *buffer)
{
    png_structp png = png_create_write_struct(PNG_LIBPNG_VER_STRING, buffer, png_failed, png_warned);
    png_infop info = png ? png_create_info_struct(png) : NULL;
    if (!info) {
        png_destroy_write_struct(&png, NULL);
        snprintf(buffer->why, sizeof buffer->why, "out of memory");
        return 1;
    }
    if (setjmp(png_jmpbuf(png))) {
        png_destroy_write_struct(&png, &info);
        return 1;
    }
    png_set_write_fn(png, buffer, png_append, png_nothing_to_flush);
    png_set_IHDR(png, info, (png_uint_32)picture->width, (png_uint_32)picture->height, 8, PNG_COLOR_TYPE_RGB,
                 PNG_INTERLACE_NONE, PNG_COMPRESSION_TYPE_DEFAULT, PNG_FILTER_TYPE_DEFAULT);
    png_set_text(png, info, texts, text_count);
    png_write_info(png, info);
    for (int y = 0; y < picture->height; y++) png_write_row(png, picture->rgb + (size_t)y * (size_t)picture->width * 3);
    png_write_end(png, info);
    png_destroy_write_struct(&png, &info);
    return 0;
}

/* --- files -------------------------------------------------------------------------------------------- */

/* Creates a temporary file in the directory of `path`. Returns its descriptor and its name (to be freed), or
 * -1 with errno set. */
static int create_beside(const char *path, char **temporary)
{
    const char *slash = strrchr(path, '/');
    int directory = slash ? (int)(slash - path) + 1 : 0;
    if (asprintf(temporary, "%.*s.mar-XXXXXX", directory, path) < 0) {
        *temporary = NULL;
        errno = ENOMEM;
        return -1;
    }
    int fd = mkostemp(*temporary, O_CLOEXEC);
    if (fd < 0) {
        int reason = errno;
        free(*temporary);
        *temporary = NULL;
        errno = reason;
    }
    return fd;
}

static int write_all(int fd, const uint8_t *data, size_t size)
{
    while (size > 0) {
        ssize_t n = write(fd, data, size);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) return 1;
        data += n;
        size -= (size_t)n;
    }
    return 0;
}

/* 0, or 1 with errno set and nothing left behind. */
static int replace_file(const char *path, const uint8_t *data, size_t size)
{
    char *temporary;
    int fd = create_beside(path, &temporary);
    if (fd < 0) return 1;
    mode_t mask = umask(0);
    umask(mask);
    /* mkostemp makes 0600: give what a plain open would. Some file systems have no modes or no fsync. */
    int failed = fchmod(fd, 0666 & ~mask) != 0 && errno != EPERM && errno != ENOTSUP;
    failed = failed || write_all(fd, data, size);
    failed = failed || (fsync(fd) != 0 && errno != EINVAL && errno != ENOTSUP);
    int reason = errno;
    if (close(fd) != 0 && !failed) {
        failed = 1;
        reason = errno;
    }
    if (!failed && rename(temporary, path) != 0) {
        failed = 1;
        reason = errno;
    }
    if (failed) unlink(temporary);
    free(temporary);
    errno = reason;
    return failed;
}

int image_write_png(const char *path, const image *picture, const image_text *texts, int text_count)
{
    png_text *chunks = calloc((size_t)text_count + 1, sizeof *chunks);
    png_buffer buffer = {.capacity = 0};
    if (!chunks) return tool_error("%s: out of memory for its text", path);
    for (int i = 0; i < text_count; i++) {
        int ascii = is_ascii(texts[i].value); /* tEXt is Latin-1; anything else goes to iTXt, which is UTF-8 */
        chunks[i].compression = ascii ? PNG_TEXT_COMPRESSION_NONE : PNG_ITXT_COMPRESSION_NONE;
        chunks[i].key = (char *)(uintptr_t)texts[i].key; /* libpng only reads them */
        chunks[i].text = (char *)(uintptr_t)texts[i].value;
    }
    int failed = encode(picture, chunks, text_count, &buffer);
    if (failed) {
        tool_error("%s: cannot encode %dx%d pixels as PNG: %s", path, picture->width, picture->height, buffer.why);
    } else {
        sigset_t ending, before;
        sigemptyset(&ending);
        sigaddset(&ending, SIGINT);
        sigaddset(&ending, SIGTERM);
        sigaddset(&ending, SIGHUP);
        sigprocmask(SIG_BLOCK, &ending, &before);
        failed = replace_file(path, buffer.data, buffer.size);
        int reason = errno;
        sigprocmask(SIG_SETMASK, &before, NULL);
        if (failed) tool_error("%s: cannot write %zu bytes: %s", path, buffer.size, strerror(reason));
    }
    free(buffer.data);
    free(chunks);
    return failed;
}

int image_can_write(const char *path)
{
    char *temporary;
    int fd = create_beside(path, &temporary);
    if (fd < 0) return tool_error("%s: cannot write there: %s", path, strerror(errno));
    close(fd);
    unlink(temporary);
    free(temporary);
    return 0;
}

/* --- grids -------------------------------------------------------------------------------------------- */

double image_grid_pixels(int rows, int columns, int cell_width, int cell_height)
{
    return ((double)columns * (cell_width + GRID_GAP) - GRID_GAP) *
           ((double)rows * (cell_height + GRID_GAP) - GRID_GAP);
}

int image_grid_create(int rows, int columns, int cell_width, int cell_height, image *grid)
{
    grid->width = columns * (cell_width + GRID_GAP) - GRID_GAP;
    grid->height = rows * (cell_height + GRID_GAP) - GRID_GAP;
    size_t bytes = (size_t)grid->width * (size_t)grid->height * 3;
    grid->rgb = malloc(bytes);
    if (!grid->rgb) return 1;
    memset(grid->rgb, 255, bytes);
    return 0;
}

void image_grid_set(image *grid, int row, int column, int cell_width, int cell_height, const uint8_t *rgb)
{
    size_t left = (size_t)column * (size_t)(cell_width + GRID_GAP);
    size_t top = (size_t)row * (size_t)(cell_height + GRID_GAP);
    for (int y = 0; y < cell_height; y++)
        memcpy(grid->rgb + ((top + (size_t)y) * (size_t)grid->width + left) * 3,
               rgb + (size_t)y * (size_t)cell_width * 3, (size_t)cell_width * 3);
}
