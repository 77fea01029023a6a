#include "tools/generate/preview.h"

#include "tools/cli/command.h"
#include "tools/cli/file.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum {
    SHARE = 9,      /* times a preview's own time until the next one */
    WAIT_MAX_S = 5, /* but never longer: the file of a slow image decoder is written every few seconds, too */
    GREY = 128,     /* as mar_session_preview's unknown tokens */
    QUALITY = 90
};
static const double slice_s = 0.5; /* decoding before the file is written: with a slow decoder a part of the images */

int preview_check(const char *path)
{
    if (!path) return 0;
    const int format = image_format_of(path);
    if (format < 0) return tool_error("--preview %s: expected FILE.png, .jpg or .webp", path);
    if (image_format_lacks((image_format)format))
        return tool_error("--preview %s: %s", path, image_format_lacks((image_format)format));
    return tool_can_write_as(path, strrchr(path, '.'));
}

int preview_create(preview *p, const char *path, mar_session *session, int images)
{
    if (!path) return 0;
    p->format = (image_format)image_format_of(path);
    mar_session_image_size(session, &p->width, &p->height);
    p->columns = (int)ceil(sqrt((double)images));
    const int rows = (images + p->columns - 1) / p->columns;
    if (image_grid_create(rows, p->columns, p->width, p->height, &p->grid) != 0)
        return tool_error("out of memory for a preview of %d images", images);
    p->path = path;
    p->is_over = 1;
    return 0;
}

void preview_free(preview *p)
{
    free(p->grid.rgb);
    *p = (preview){0};
}

/* Returns the first pixel of image i in the grid. */
static uint8_t *cell_of(const preview *p, int i)
{
    const size_t row = (size_t)(i / p->columns), column = (size_t)(i % p->columns);
    return p->grid.rgb +
           3 * (row * (size_t)(p->height + GRID_GAP) * (size_t)p->grid.width + column * (size_t)(p->width + GRID_GAP));
}

/* Begins a batch of n images: their cells are grey, the others white. */
static void clear(preview *p, int n)
{
    const size_t stride = 3 * (size_t)p->grid.width;
    memset(p->grid.rgb, 255, stride * (size_t)p->grid.height);
    for (int i = 0; i < n; i++)
        for (int y = 0; y < p->height; y++) memset(cell_of(p, i) + (size_t)y * stride, GREY, 3 * (size_t)p->width);
    p->next = p->is_over = 0;
}

/* Writes image i to its cell of the grid. */
static mar_status preview_draw(preview *p, mar_session *session, int i)
{
    mar_pixels cell;
    mar_pixels_init(&cell, sizeof cell);
    cell.stride = 3 * (size_t)p->grid.width;
    cell.data = cell_of(p, i);
    cell.capacity = (size_t)(p->height - 1) * cell.stride + 3 * (size_t)p->width;
    return mar_session_preview(session, mar_session_batch_request(session, i), &cell);
}

static void write_grid(preview *p)
{
    p->has_failed = image_write(p->path, &p->grid, p->format, QUALITY, NULL, 0, IMAGE_UNSYNCED) != 0;
}

void preview_show(preview *p, mar_session *session, int n)
{
    const double began = tool_seconds();
    mar_status status = MAR_OK;
    if (!p->path || p->has_failed || began < p->not_before) return;
    if (p->is_over) clear(p, n);
    for (int i = 0; status == MAR_OK && i < n && (i == 0 || tool_seconds() - began < slice_s); i++) {
        status = preview_draw(p, session, p->next);
        p->next = (p->next + 1) % n;
    }
    if (status == MAR_ECANCELLED) return; /* the next step says so, too */
    if (status == MAR_OK)
        write_grid(p);
    else
        p->has_failed = tool_error("--preview %s: %s", p->path, mar_session_error(session));
    const double now = tool_seconds();
    p->not_before = now + fmin(SHARE * (now - began), WAIT_MAX_S);
}

void preview_finish(preview *p, int n, const uint8_t *rgb)
{
    if (!p->path || p->has_failed) return;
    if (p->is_over) clear(p, n);
    for (int i = 0; i < n; i++)
        image_grid_set(&p->grid, i / p->columns, i % p->columns, p->width, p->height,
                       rgb + 3 * (size_t)i * (size_t)p->width * (size_t)p->height);
    p->is_over = 1;
    write_grid(p);
}
