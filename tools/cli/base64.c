#include "tools/cli/base64.h"

#include <stdint.h>
#include <string.h>

static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

size_t base64_size(size_t size)
{
    return (size + 2) / 3 * 4;
}

void base64_write(const void *data, size_t size, char *to)
{
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

int base64_read(const char *text, char *to, int most)
{
    uint32_t bits = 0;
    int size = 0, have = 0;
    const size_t length = strcspn(text, "=");
    if (strspn(text, digits) != length || (length + strlen(text + length)) % 4 != 0 || strlen(text + length) > 2 ||
        text[length + strspn(text + length, "=")] != '\0')
        return -1;
    for (size_t i = 0; i < length; i++) {
        bits = bits << 6 | (uint32_t)(strchr(digits, text[i]) - digits);
        have += 6;
        if (have < 8) continue;
        have -= 8;
        if (size == most) return -1;
        to[size++] = (char)(bits >> have);
    }
    to[size] = '\0';
    return size;
}
