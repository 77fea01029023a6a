/* The address in links: that of --public_url, or the one under which the client has reached the service. */
#ifndef TOOLS_SERVE_LINKS_H
#define TOOLS_SERVE_LINKS_H

#include "tools/serve/exchange.h"

/* Checks the option --public_url, "https://host/path". Sets s->public_url to a copy without the slash at its end, which
 * the caller frees; leaves it NULL without the option. Returns 0, or 1 with the error printed. */
int links_check(service *s);

/* Writes the address before a path that begins with a slash: --public_url; or the scheme and host that a proxy names
 * with Forwarded (RFC 7239), X-Forwarded-Proto and X-Forwarded-Host, each only if valid; else http and the Host. Writes
 * nothing if no valid host is known: the link is a path. */
void links_write_base(const exchange *x, FILE *out);

/* Finds a parameter of the first element of a Forwarded header, such as host="images.example.com". Returns its value,
 * *n bytes; NULL if the element lacks it, has it twice, or is not well formed. Escapes with a backslash are refused. */
const char *links_forwarded(const char *header, const char *name, size_t *n);

/* Returns whether the text is the host, with its port, of --public_url. The scheme's own port may be left out. */
int links_is_public(const service *s, const char *host);

#endif
