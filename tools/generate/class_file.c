#include "tools/generate/class_file.h"

#include "tools/cli/file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
    CHUNK = 64 * 1024,
    SIZE_LIMIT = 64 * 1024 * 1024 /* a million names of ImageNet take less */
};

/* Checks that the bytes are text, and counts lines. UTF-8 and any encoding above ASCII pass. */
static int check_text(const char *text, size_t n, long *line, char *why, size_t size)
{
    for (size_t i = 0; i < n; i++) {
        const unsigned char c = (unsigned char)text[i];
        const int is_blank = c >= '\t' && c <= '\r'; /* includes line ends */
        if ((c < 32 && !is_blank) || c == 127) {
            snprintf(why, size, "line %ld: the byte 0x%02x, expected text", *line, c);
            return 1;
        }
        *line += c == '\n';
    }
    return 0;
}

/* Makes room for a chunk and a NUL behind `used` bytes. Returns 0, or 1 without memory. */
static int make_room(char **text, size_t used, size_t *capacity)
{
    if (used + CHUNK < *capacity) return 0;
    char *larger = realloc(*text, 2 * used + CHUNK + 1);
    if (!larger) return 1;
    *text = larger;
    *capacity = 2 * used + CHUNK + 1;
    return 0;
}

/* Appends the stream to *text. The caller frees it, even on failure. Returns 0, or 1 and the reason. */
static int read_all(FILE *in, char **text, char *why, size_t size)
{
    size_t used = 0, capacity = 0;
    long line = 1;
    for (size_t n = CHUNK; n == CHUNK; used += n) {
        if (used >= SIZE_LIMIT) {
            snprintf(why, size, "more than %d MB, expected a list of classes", SIZE_LIMIT / 1024 / 1024);
            return 1;
        }
        if (make_room(text, used, &capacity) != 0) {
            snprintf(why, size, "out of memory for %zu bytes", 2 * used + CHUNK + 1);
            return 1;
        }
        n = fread(*text + used, 1, CHUNK, in);
        if (n < CHUNK && ferror(in)) {
            snprintf(why, size, "%s", strerror(errno));
            return 1;
        }
        if (check_text(*text + used, n, &line, why, size) != 0) return 1;
        (*text)[used + n] = '\0';
    }
    return 0;
}

/* Opens the file. Returns NULL and the reason on failure. */
static FILE *open_file(const char *name, char *why, size_t size)
{
    if (strcmp(name, "-") == 0) return stdin;
    const int fd = tool_open_file(name, O_RDONLY);
    FILE *in = fd >= 0 ? fdopen(fd, "rb") : NULL;
    if (in) return in;
    snprintf(why, size, "%s",
             errno ? strerror(errno) : "is not a regular file, expected a list of classes; @- is standard input");
    if (fd >= 0) close(fd);
    return NULL;
}

int class_file_check(const char *name, char *why, size_t size)
{
    FILE *in = open_file(name, why, size);
    if (in && in != stdin) fclose(in);
    return !in;
}

int class_file_read(const char *name, char **text, char *why, size_t size)
{
    FILE *in = open_file(name, why, size);
    *text = NULL;
    if (!in) return 1;
    const int failed = read_all(in, text, why, size);
    if (in != stdin) fclose(in);
    if (failed) {
        free(*text);
        *text = NULL;
    } else if (strncmp(*text, "\xef\xbb\xbf", 3) == 0) {
        memset(*text, ' ', 3); /* byte order mark of UTF-8 */
    }
    return failed;
}
