#include "tools/serve/form.h"

#include "tools/cli/text.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

/* --- parameters of a header --------------------------------------------------------------------------------------- */

/* Returns whether the character may be in a token (RFC 7230). */
static int is_token(char c)
{
    return isalnum((unsigned char)c) || (c && strchr("!#$%&'*+-.^_`|~", c));
}

static char *form_skip_space(char *at)
{
    return at + strspn(at, " \t");
}

/* Reads a token or a quoted string at *at in place, without a NUL for a token. Moves *at behind it. Returns NULL if
 * there is neither. */
static char *read_value(char **at)
{
    char *const from = *at, *to = from;
    if (*from != '"') {
        while (is_token(**at)) (*at)++;
        return *at > from ? from : NULL;
    }
    for (char *c = from + 1; *c; c++) {
        if (*c == '"') {
            *to = '\0';
            *at = c + 1;
            return from;
        }
        if (*c == '\\' && c[1]) c++;
        *to++ = *c;
    }
    return NULL;
}

/* Reads the parameter at *next, "name=value", and moves *next behind it and its semicolon. Ends both strings with a
 * NUL. Returns 1; 0 at the end of the text; -1 if the text is something else. */
static int read_parameter(char **next, char **name, char **value)
{
    char *at = form_skip_space(*next);
    *name = at;
    if (*at == '\0') return 0;
    while (is_token(*at)) at++;
    if (at == *name || *at != '=') return -1;
    *at++ = '\0';
    *value = read_value(&at);
    if (!*value) return -1;
    const char *behind = form_skip_space(at);
    if (*behind && *behind != ';') return -1;
    *next = at + (behind - at) + (*behind == ';');
    *at = '\0';
    return 1;
}

/* Moves behind the value before the parameters, such as "form-data", and its semicolon. Returns NULL if the header has
 * another value. */
static char *skip_type(char *header, const char *type)
{
    const size_t n = strlen(type);
    header = form_skip_space(header);
    if (strncasecmp(header, type, n) != 0) return NULL;
    header = form_skip_space(header + n);
    if (*header && *header != ';') return NULL;
    return header + (*header == ';');
}

int form_boundary(const char *content_type, form_reader *f)
{
    char text[512], *next, *name, *value, *boundary = NULL;
    int found;
    if (strlen(content_type) >= sizeof text) return 1;
    next = skip_type(strcpy(text, content_type), "multipart/form-data");
    while (next && (found = read_parameter(&next, &name, &value)) != 0) {
        if (found < 0) return 1;
        if (strcasecmp(name, "boundary") != 0) continue;
        if (boundary) return 1;
        boundary = value;
    }
    const size_t n = boundary ? strlen(boundary) : 0;
    if (n == 0 || n > FORM_BOUNDARY_MAX || boundary[n - 1] == ' ') return 1;
    for (size_t i = 0; i < n; i++)
        if (!isalnum((unsigned char)boundary[i]) && !strchr("'()+_,-./:=? ", boundary[i])) return 1;
    memcpy(f->delimiter, "\r\n--", 4);
    memcpy(f->delimiter + 4, boundary, n + 1);
    f->length = n + 4;
    return 0;
}

/* --- a part's headers --------------------------------------------------------------------------------------------- */

static int form_refuse(const form_reader *f, char *why, const char *found, const char *expected)
{
    return text_fail(why, FORM_WHY_MAX, "part %d of the form: %s, expected %s", f->part, found, expected);
}

static int hex(char c)
{
    return isdigit((unsigned char)c) ? c - '0' : isxdigit((unsigned char)c) ? tolower((unsigned char)c) - 'a' + 10 : -1;
}

/* Decodes "UTF-8''na%6De" (RFC 8187) in place. Returns the text; NULL if it is something else. */
static char *decode_extended(char *value)
{
    static const char charset[] = "UTF-8'";
    if (strncasecmp(value, charset, sizeof charset - 1) != 0) return NULL;
    char *text = strchr(value + sizeof charset - 1, '\''), *to;
    if (!text) return NULL;
    to = ++text;
    for (const char *c = text; *c; c++) {
        if (*c != '%') {
            *to++ = *c;
            continue;
        }
        const int high = hex(c[1]), low = high < 0 ? -1 : hex(c[2]);
        if (low < 0 || (high | low) == 0) return NULL;
        *to++ = (char)(high << 4 | low);
        c += 2;
    }
    *to = '\0';
    return text;
}

/* Reads the part's name from a Content-Disposition. Returns 0, or 1 with `why`. */
static int form_read_name(const form_reader *f, char *header, const char **out, char *why)
{
    char *next = skip_type(header, "form-data"), *name, *value;
    int found;
    if (*out) return form_refuse(f, why, "has two Content-Dispositions", "one");
    if (!next) return form_refuse(f, why, "its Content-Disposition is of another kind", "form-data; name=\"...\"");
    while ((found = read_parameter(&next, &name, &value)) > 0) {
        const int is_extended = strcasecmp(name, "name*") == 0;
        if (!is_extended && strcasecmp(name, "name") != 0) continue; /* a filename */
        if (*out) return form_refuse(f, why, "has two names", "one");
        *out = is_extended ? decode_extended(value) : value;
        if (!*out) return form_refuse(f, why, "its name* is not UTF-8''...", "name=\"...\"");
    }
    if (found < 0 && strcasecmp(name, "filename") == 0)
        return form_refuse(f, why, "its filename cannot be read",
                           "filename=\"...\", with quotes as %22 and no backslash before the last quote");
    if (found < 0)
        return form_refuse(f, why, "its Content-Disposition cannot be read",
                           "form-data; name=\"...\", or a name of "
                           "letters, digits, - and _ without quotes");
    return *out && **out ? 0 : form_refuse(f, why, "its Content-Disposition has no name", "form-data; name=\"...\"");
}

/* Checks the parameters of a part's Content-Type: its text is UTF-8. Returns 0, or 1 with `why`. */
static int check_type(const form_reader *f, char *header, char *why)
{
    char *next = strchr(header, ';'), *name, *value, has[64];
    int found;
    if (!next) return 0;
    for (next++; (found = read_parameter(&next, &name, &value)) > 0;) {
        if (strcasecmp(name, "charset") != 0 || strcasecmp(value, "utf-8") == 0 || strcasecmp(value, "us-ascii") == 0)
            continue;
        snprintf(has, sizeof has, "has the charset %.40s", value);
        return form_refuse(f, why, has, "utf-8");
    }
    return found < 0 ? form_refuse(f, why, "its Content-Type cannot be read", "such as text/plain; charset=utf-8") : 0;
}

/* Returns the value of the header `name` if the line is one; NULL if it is another. */
static char *form_value_of(char *line, const char *name)
{
    const size_t n = strlen(name);
    return strncasecmp(line, name, n) == 0 && line[n] == ':' ? line + n + 1 : NULL;
}

static int form_read_header(const form_reader *f, char *line, form_part *out, char *why)
{
    char *value = form_value_of(line, "Content-Disposition");
    if (value) return form_read_name(f, value, &out->name, why);
    value = form_value_of(line, "Content-Type");
    if (value) return check_type(f, value, why);
    value = form_value_of(line, "Content-Transfer-Encoding");
    if (!value) return 0;
    value = form_skip_space(value);
    for (const char *const *as_it_is = (const char *const[]){"binary", "8bit", "7bit", NULL}; *as_it_is; as_it_is++)
        if (strcasecmp(value, *as_it_is) == 0) return 0;
    return form_refuse(f, why, "has another Content-Transfer-Encoding", "binary, the bytes as they are");
}

/* Reads the header lines and the empty line behind them. Returns 0, or 1 with `why`. */
static int read_headers(form_reader *f, form_part *out, char *why)
{
    for (;;) {
        char *line = f->at, *end = memmem(line, (size_t)(f->end - line), "\r\n", 2);
        if (!end) return form_refuse(f, why, "ends within its headers", "a whole form");
        *end = '\0';
        f->at = end + 2;
        if (line == end) break;
        if (strlen(line) != (size_t)(end - line)) return form_refuse(f, why, "its headers have a NUL", "text");
        if (*line == ' ' || *line == '\t')
            return form_refuse(f, why, "continues a header on a second line", "one line");
        if (form_read_header(f, line, out, why) != 0) return 1;
    }
    return out->name ? 0 : form_refuse(f, why, "has no Content-Disposition", "form-data; name=\"...\"");
}

/* --- parts -------------------------------------------------------------------------------------------------------- */

void form_open(form_reader *f, char *body, size_t size)
{
    f->at = body;
    f->end = body + size;
    f->part = 0;
}

/* Moves behind the next delimiter and its line. Returns where it begins; NULL if there is none. */
static char *find_delimiter(form_reader *f)
{
    const size_t left = (size_t)(f->end - f->at);
    /* the first has no line break before it if the body begins with it */
    const int begins = f->part == 0 && left >= f->length - 2 && memcmp(f->at, f->delimiter + 2, f->length - 2) == 0;
    char *found = begins ? f->at : memmem(f->at, left, f->delimiter, f->length);
    if (!found) return NULL;
    char *behind = found + f->length - (begins ? 2 : 0);
    f->is_over = strncmp(behind, "--", 2) == 0;
    if (!f->is_over) {
        behind = form_skip_space(behind);
        if (strncmp(behind, "\r\n", 2) != 0) return NULL;
        behind += 2;
    }
    f->at = behind;
    return found;
}

form_status form_next(form_reader *f, form_part *out, char *why)
{
    *out = (form_part){.name = NULL};
    if (f->part == 0 && !find_delimiter(f)) {
        text_fail(why, FORM_WHY_MAX, "the body is no form with the boundary of its Content-Type, expected one");
        return FORM_REFUSED;
    }
    if (f->is_over) return FORM_END;
    f->part++;
    if (read_headers(f, out, why) != 0) return FORM_REFUSED;
    out->data = f->at;
    char *end = find_delimiter(f);
    if (!end) {
        form_refuse(f, why, "has no boundary behind it", "a whole form");
        return FORM_REFUSED;
    }
    *end = '\0';
    out->size = (size_t)(end - out->data);
    return FORM_PART;
}
