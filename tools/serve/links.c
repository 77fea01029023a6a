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

/* Returns the size of a host without the port that its scheme has anyway. */
static size_t size_without_port(const char *host, size_t n, int is_secure)
{
    const char *const port = is_secure ? ":443" : ":80";
    const size_t size = strlen(port);
    return n > size && memcmp(host + n - size, port, size) == 0 ? n - size : n;
}

int links_is_public(const service *s, const char *host)
{
    size_t n;
    const char *own = s->public_url ? host_of(s->public_url, &n) : NULL;
    if (!own) return 0;
    const int is_secure = scheme_size(s->public_url, (size_t)(own - s->public_url) - 3) == 5;
    n = size_without_port(own, n, is_secure);
    return size_without_port(host, strlen(host), is_secure) == n && strncasecmp(own, host, n) == 0;
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

const char *links_forwarded(const char *header, const char *name, size_t *n)
{
    const char *found = NULL;
    for (const char *at = header;; at += *at == ';') {
        at += strspn(at, " \t");
        if (!*at || *at == ',') return found;
        if (*at == ';') continue;
        const char *const key = at;
        at += strcspn(at, "=;, \t\"");
        const size_t length = (size_t)(at - key);
        if (*at != '=' || length == 0) return NULL;
        const int is_quoted = at[1] == '"';
        const char *const value = at + 1 + is_quoted;
        const size_t size = strcspn(value, is_quoted ? "\"\\" : ";, \t\"");
        if (is_quoted && value[size] != '"') return NULL;
        at = value + size + is_quoted;
        at += strspn(at, " \t");
        if (*at && !strchr(";,", *at)) return NULL;
        if (length != strlen(name) || strncasecmp(key, name, length) != 0) continue;
        if (found) return NULL;
        found = value;
        *n = size;
    }
}

/* Returns the value that a proxy names, *n bytes; NULL: none. */
static const char *named(const exchange *x, const char *parameter, const char *header, size_t *n)
{
    const char *value = exchange_header(x, "Forwarded");
    if (value) value = links_forwarded(value, parameter, n);
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
