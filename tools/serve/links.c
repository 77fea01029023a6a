#include "tools/serve/links.h"

#include "tools/cli/command.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

enum { HOST_MAX = 260 }; /* a name of 253 characters and a port */

/* Returns whether text[0..n) is a name or an address, with or without a port. */
static int is_host(const char *text, size_t n)
{
    size_t name = 0;
    if (n == 0 || n > HOST_MAX) return 0;
    if (text[0] == '[') {
        for (name = 1; name < n && (isxdigit((unsigned char)text[name]) || strchr(":.", text[name]));) name++;
        if (name == 1 || name == n || text[name++] != ']') return 0;
    } else {
        while (name < n && (isalnum((unsigned char)text[name]) || (text[name] && strchr("-._", text[name])))) name++;
    }
    if (name == 0 || name == n) return name == n && n > 0;
    size_t digits = name + 1;
    while (digits < n && isdigit((unsigned char)text[digits])) digits++;
    return text[name] == ':' && digits == n && n > name + 1 && n <= name + 6;
}

/* Returns the size of "http" or "https" as text[0..n), or 0 if it is neither. */
static size_t scheme_size(const char *text, size_t n)
{
    return (n == 4 || n == 5) && strncasecmp(text, "https", n) == 0 ? n : 0;
}

/* --- --public_url ------------------------------------------------------------------------------------------------- */

/* Returns the host in a URL, and its size; NULL if it has none. */
static const char *host_of(const char *url, size_t *n)
{
    const char *at = strstr(url, "://");
    if (!at) return NULL;
    at += 3;
    *n = strcspn(at, "/");
    return at;
}

int links_check(service *s)
{
    static const char path[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~!$&'()*+,;=:@%/";
    const char *given = s->options.public_url;
    if (!given) return 0;
    size_t n = 0, size = strlen(given);
    const char *host = host_of(given, &n);
    if (!host || !scheme_size(given, (size_t)(host - given) - 3) || !is_host(host, n) ||
        strspn(host + n, path) != strlen(host + n))
        return tool_error("--public_url %s: expected an address such as https://images.example.com/mar, without ? and "
                          "#",
                          given);
    while (given[size - 1] == '/') size--;
    s->public_url = strndup(given, size);
    return s->public_url ? 0 : tool_error("out of memory");
}

int links_is_public(const service *s, const char *host)
{
    size_t n;
    const char *own = s->public_url ? host_of(s->public_url, &n) : NULL;
    return own && strlen(host) == n && strncasecmp(own, host, n) == 0;
}

/* --- a proxy's headers -------------------------------------------------------------------------------------------- */

/* Returns the first element of a list, *n bytes; that of the proxy nearest to the client. */
static const char *first_of(const char *list, size_t *n)
{
    list += strspn(list, " \t");
    *n = strcspn(list, ",");
    while (*n && (list[*n - 1] == ' ' || list[*n - 1] == '\t')) --*n;
    return list;
}

/* Finds a parameter of the first element of Forwarded, such as host="images.example.com". Returns its value, *n bytes,
 * or NULL. */
static const char *forwarded(const exchange *x, const char *name, size_t *n)
{
    const char *at = exchange_header(x, "Forwarded");
    const size_t length = strlen(name);
    if (!at) return NULL;
    for (const char *end = at + strcspn(at, ","); at < end; at += *at == ';') {
        at += strspn(at, " \t");
        const int is_it = strncasecmp(at, name, length) == 0 && at[length] == '=';
        const char *value = at + strcspn(at, "=;,");
        if (*value != '=') return NULL;
        const int is_quoted = *++value == '"';
        value += is_quoted;
        *n = strcspn(value, is_quoted ? "\"" : ";, \t");
        if (is_it) return value;
        at = value + *n + is_quoted;
        at += strspn(at, " \t");
        if (at < end && *at != ';') return NULL;
    }
    return NULL;
}

/* Returns the value that a proxy names, *n bytes; NULL: none. */
static const char *named(const exchange *x, const char *parameter, const char *header, size_t *n)
{
    const char *value = forwarded(x, parameter, n);
    if (value) return value;
    value = exchange_header(x, header);
    return value ? first_of(value, n) : NULL;
}

void links_write_base(const exchange *x, FILE *out)
{
    size_t host_size, size;
    if (x->service->public_url) {
        fputs(x->service->public_url, out);
        return;
    }
    const char *host = named(x, "host", "X-Forwarded-Host", &host_size);
    const char *scheme = named(x, "proto", "X-Forwarded-Proto", &size);
    if (!host || !is_host(host, host_size)) {
        host = exchange_header(x, MHD_HTTP_HEADER_HOST);
        host_size = host ? strlen(host) : 0;
    }
    if (!host || !is_host(host, host_size)) return;
    const int is_secure = scheme && scheme_size(scheme, size) == 5;
    fprintf(out, "http%s://%.*s", is_secure ? "s" : "", (int)host_size, host);
}
