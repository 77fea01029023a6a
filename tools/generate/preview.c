#include "tools/generate/preview.h"

#include "tools/cli/command.h"

#include <math.h>
#include <stdlib.h>

enum {
    SHARE = 9, /* times a preview's own time until the next one */
    QUALITY = 90
};

int preview_create(preview *p, const char *path, mar_session *session, int images)
{
    if (!path) return 0;
    const int format = image_format_of(path);
    if (format < 0) return tool_error("--preview %s: expected FILE.png, .jpg or .webp", path);
    if (image_format_lacks((image_format)format))
        return tool_error("--preview %s: %s", path, image_format_lacks((image_format)format));
    p->format = (image_format)format;
    mar_session_image_size(session, &p->width, &p->height);
    p->columns = (int)ceil(sqrt((double)images));
    const int rows = (images + p->columns - 1) / p->columns;
    if (image_grid_create(rows, p->columns, p->width, p->height, &p->grid) != 0)
        return tool_error("out of memory for a preview of %d images", images);
    p->path = path;
    return 0;
}

void preview_free(preview *p)
{
    free(p->grid.rgb);
    *p = (preview){0};
}

/* Writes image i to its cell of the grid. */
static mar_status draw(preview *p, mar_session *session, int i)
{
    const size_t row = (size_t)(i / p->columns), column = (size_t)(i % p->columns);
    mar_pixels cell;
    mar_pixels_init(&cell, sizeof cell);
    cell.stride = 3 * (size_t)p->grid.width;
    cell.data =
        p->grid.rgb + row * (size_t)(p->height + GRID_GAP) * cell.stride + 3 * column * (size_t)(p->width + GRID_GAP);
    cell.capacity = (size_t)(p->height - 1) * cell.stride + 3 * (size_t)p->width;
    return mar_session_preview(session, mar_session_batch_request(session, i), &cell);
}

int preview_show(preview *p, mar_session *session, int n)
{
    const double began = tool_seconds();
    mar_status status = MAR_OK;
    if (!p->path || began < p->not_before) return 0;
    for (int i = 0; status == MAR_OK && i < n; i++) status = draw(p, session, i);
    if (status == MAR_ECANCELLED) return 0; /* the next step says so, too */
    if (status != MAR_OK) return tool_error("%s", mar_session_error(session));
    if (image_write(p->path, &p->grid, p->format, QUALITY, NULL, 0, IMAGE_UNSYNCED) != 0) return 1;
    const double now = tool_seconds();
    p->not_before = now + SHARE * (now - began);
    return 0;
}
