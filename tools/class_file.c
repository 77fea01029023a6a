#include "tools/class_file.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    CHUNK = 64 * 1024,
    SIZE_LIMIT = 64 * 1024 * 1024 /* a million names of ImageNet have less */
};

/* Whether the bytes are those of text; counts lines. UTF-8 and any other encoding above ASCII pass. */
static int check_text(const char *text, size_t n, long *line, char *why, size_t size)
{
    for (size_t i = 0; i < n; i++) {
        const unsigned char c = (unsigned char)text[i];
        if (c >= 32 ? c == 127 : !strchr("\t\n\v\f\r", c) || c == 0) {
            snprintf(why, size, "line %ld: the byte 0x%02x, expected text", *line, c);
            return 1;
        }
        *line += c == '\n';
    }
    return 0;
}

/* Returns 0, or 1 with errno set to 0 if `why` has the reason. */
static int read_all(FILE *in, char **text, char *why, size_t size)
{
    size_t used = 0;
    long line = 1;
    *text = NULL;
    for (;;) {
        char *larger = realloc(*text, used + CHUNK + 1);
        if (!larger) break;
        *text = larger;
        errno = 0;
        const size_t n = fread(*text + used, 1, CHUNK, in);
        if (n < CHUNK && ferror(in)) break;
        if (check_text(*text + used, n, &line, why, size) != 0) {
            errno = 0;
            break;
        }
        used += n;
        (*text)[used] = '\0';
        if (n < CHUNK) return 0;
        if (used >= SIZE_LIMIT) {
            snprintf(why, size, "more than %d MB, expected a list of classes", SIZE_LIMIT / 1024 / 1024);
            errno = 0;
            break;
        }
    }
    const int reason = errno;
    free(*text);
    *text = NULL;
    errno = reason;
    return 1;
}

int class_file_read(const char *name, char **text, char *why, size_t size)
{
    const int is_input = strcmp(name, "-") == 0;
    FILE *in = is_input ? stdin : fopen(name, "rb");
    int failed = in ? read_all(in, text, why, size) : 1;
    if (failed && errno) snprintf(why, size, "%s", strerror(errno));
    if (in && !is_input) fclose(in);
    if (!failed && strncmp(*text, "\xef\xbb\xbf", 3) == 0) memset(*text, ' ', 3); /* a mark of UTF-8 */
    return failed;
}
