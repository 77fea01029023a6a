/* The formats of pictures. */
#include "tools/cli/command.h"
#include "tools/cli/file.h"
#include "tools/images/image.h"

#include <limits.h>
#include <stdlib.h>

static const struct {
    const char *name, *ending, *other_ending; /* other_ending may be NULL */
    int side_max;
} formats[] = {[IMAGE_PNG] = {"PNG", ".png", NULL, INT_MAX},
               [IMAGE_JPEG] = {"JPEG", ".jpg", ".jpeg", 65500},
               [IMAGE_WEBP] = {"WebP", ".webp", NULL, 16383}};

int image_format_of(const char *path)
{
    for (int i = 0; i < IMAGE_FORMATS; i++)
        if (tool_ends_with(path, formats[i].ending) ||
            (formats[i].other_ending && tool_ends_with(path, formats[i].other_ending)))
            return i;
    return -1;
}

const char *image_format_name(image_format format)
{
    return formats[format].name;
}

const char *image_format_ending(image_format format)
{
    return formats[format].ending;
}

int image_format_side_max(image_format format)
{
    return formats[format].side_max;
}

int image_write(const char *path, const image *picture, image_format format, int quality, const image_text *texts,
                int text_count, image_store store)
{
    char why[IMAGE_WHY_MAX];
    size_t size;
    uint8_t *data = format == IMAGE_PNG    ? image_encode_png(picture, texts, text_count, &size, why)
                    : format == IMAGE_JPEG ? image_encode_jpeg(picture, quality, texts, text_count, &size, why)
                                           : image_encode_webp(picture, quality, &size, why);
    if (!data)
        return tool_error("%s: cannot encode %dx%d pixels as %s: %s", path, picture->width, picture->height,
                          formats[format].name, why);
    const int failed = store == IMAGE_STREAM     ? tool_write_output(data, size)
                       : store == IMAGE_UNSYNCED ? tool_write_file_unsynced(path, data, size)
                                                 : tool_write_file(path, data, size);
    free(data);
    return failed;
}
