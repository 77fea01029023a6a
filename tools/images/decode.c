#include "tools/images/decode.h"

#include "tools/cli/command.h"
#include "tools/cli/file.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int image_make_room(double width, double height, size_t size, double pixels_per_byte, image *out,
                    char why[IMAGE_WHY_MAX])
{
    if (!(width >= 1 && height >= 1 && width <= IMAGE_SIDE_MAX && height <= IMAGE_SIDE_MAX)) {
        snprintf(why, IMAGE_WHY_MAX, "has %.0fx%.0f pixels, expected sides of 1 to %d", width, height, IMAGE_SIDE_MAX);
        return 1;
    }
    if (width * height > pixels_per_byte * (double)size) {
        snprintf(why, IMAGE_WHY_MAX, "has %zu bytes, too few for its %.0fx%.0f pixels", size, width, height);
        return 1;
    }
    *out = (image){(int)width, (int)height, malloc((size_t)width * (size_t)height * 3)};
    if (!out->rgb) snprintf(why, IMAGE_WHY_MAX, "out of memory for %.0fx%.0f pixels", width, height);
    return !out->rgb;
}

int image_decode(const void *data, size_t size, image *out, char why[IMAGE_WHY_MAX])
{
    *out = (image){.rgb = NULL};
    if (size >= 8 && memcmp(data, "\x89PNG\r\n\x1a\n", 8) == 0) return image_decode_png(data, size, out, why);
    if (size >= 3 && memcmp(data, "\xff\xd8\xff", 3) == 0) return image_decode_jpeg(data, size, out, why);
    snprintf(why, IMAGE_WHY_MAX, size ? "is neither a PNG nor a JPEG" : "is empty, expected a PNG or a JPEG");
    return 1;
}

int image_read(const char *path, image *out)
{
    char why[IMAGE_WHY_MAX];
    size_t size;
    *out = (image){.rgb = NULL};
    void *data = tool_read_file(path, 0, 1024, "a PNG or a JPEG", &size);
    if (!data) return 1;
    const int failed = image_decode(data, size, out, why);
    free(data);
    return failed ? tool_error("%s: %s", path, why) : 0;
}
