#include "tools/cli/base64.h"

#include <stdint.h>

size_t base64_size(size_t size)
{
    return (size + 2) / 3 * 4;
}

void base64_write(const void *data, size_t size, char *to)
{
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    const uint8_t *from = data;
    for (size_t i = 0; i < size; i += 3) {
        const uint32_t three = (uint32_t)from[i] << 16 | (uint32_t)(i + 1 < size ? from[i + 1] : 0) << 8 |
                               (uint32_t)(i + 2 < size ? from[i + 2] : 0);
        *to++ = digits[three >> 18];
        *to++ = digits[three >> 12 & 63];
        *to++ = i + 1 < size ? digits[three >> 6 & 63] : '=';
        *to++ = i + 2 < size ? digits[three & 63] : '=';
    }
    *to = '\0';
}
