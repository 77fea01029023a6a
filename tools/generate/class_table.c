/* Names of a model's classes from a file. */
#include "tools/generate/class_names.h"

#include "tools/cli/command.h"
#include "tools/cli/file.h"
#include "tools/cli/text.h"

#include <stdlib.h>
#include <string.h>

enum { NAMES_MEGABYTES = 16 };

/* Cuts the text into lines, without blanks at their ends. t->count leaves out empty lines at the end. Returns 0, or 1
 * with the reason: no memory, or a byte that is no text. */
static int split(char *text, size_t size, class_table *t, char *why, size_t why_size)
{
    size_t most = 1;
    int line = 0;
    for (size_t i = 0; i < size; i++) most += text[i] == '\n';
    t->lines = malloc(most * sizeof *t->lines);
    if (!t->lines) return text_fail(why, why_size, "out of memory for %zu lines", most);
    char *begin = text, *end = text; /* of the line, without blanks */
    for (char *at = text; at <= text + size; at++) {
        const unsigned char c = (unsigned char)*at;
        if (at == text + size || c == '\n') {
            t->lines[line++] = begin;
            if (end > begin) t->count = line;
            *end = '\0';
            begin = end = at + 1;
        } else if ((c < 32 && c != '\t' && !(c == '\r' && at[1] == '\n')) || c == 127) {
            return text_fail(why, why_size, "line %d: the byte 0x%02x, expected text", line + 1, c);
        } else if (c > ' ') {
            end = at + 1;
        } else if (begin == at) {
            begin = end = at + 1;
        }
    }
    return t->count > 0 ? 0 : text_fail(why, why_size, "no name in it, expected the names of a class on each line");
}

/* Checks the names of a line. Returns 0, or 1 with the reason. */
static int check_names(const char *names, int line, char *why, size_t why_size)
{
    if (!*names) return text_fail(why, why_size, "line %d: is empty, expected the name of class %d", line, line - 1);
    for (const char *at = names;; at++) {
        at += strspn(at, " \t");
        const size_t n = strcspn(at, ",");
        if (n == 0)
            return text_fail(why, why_size, "line %d: an empty name, expected names of class %d separated by commas",
                             line, line - 1);
        if (n > CLASS_NAME_MAX)
            return text_fail(why, why_size, "line %d: a name of %zu bytes, expected %d at most", line, n,
                             CLASS_NAME_MAX);
        at += n;
        if (!*at) return 0;
    }
}

/* Fills in the table, which owns `text`. Returns 0, or 1 with the reason. */
static int class_table_fill(char *text, size_t size, class_table *t, char *why, size_t why_size)
{
    if (size >= 3 && memcmp(text, "\xef\xbb\xbf", 3) == 0) memset(text, ' ', 3); /* byte order mark of UTF-8 */
    int failed = split(text, size, t, why, why_size);
    for (int i = 0; i < t->count && !failed; i++) failed = check_names(t->lines[i], i + 1, why, why_size);
    return failed;
}

int class_table_parse(char *text, size_t size, const char *path, class_table *out, char *why, size_t why_size)
{
    *out = (class_table){.file = tool_base_name(path), .text = text};
    if (class_table_fill(text, size, out, why, why_size) == 0) return 0;
    class_table_free(out);
    return 1;
}

int class_table_read(const char *path, class_table *out)
{
    char why[256];
    size_t size;
    *out = (class_table){0};
    char *text = tool_read_file(path, 0, NAMES_MEGABYTES, "a list of names", &size);
    if (!text) return 1;
    return class_table_parse(text, size, path, out, why, sizeof why) != 0 ? tool_error("%s: %s", path, why) : 0;
}

void class_table_free(class_table *t)
{
    free(t->lines);
    free(t->text);
    *t = (class_table){0};
}
