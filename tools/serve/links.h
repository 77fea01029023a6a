/* The address in links: that of --public_url, or the one under which the client has reached the service. */
#ifndef TOOLS_SERVE_LINKS_H
#define TOOLS_SERVE_LINKS_H

#include "tools/serve/exchange.h"

/* Checks --public_url, "https://host/path", and removes the slash at its end: o->public_url becomes a copy, which the
 * caller frees. Returns 0, or 1 with the error printed. */
int links_check(service *s);

/* Writes the address before a path that begins with a slash: --public_url; or the scheme and host that a proxy names
 * with Forwarded (RFC 7239), X-Forwarded-Proto and X-Forwarded-Host, each only if valid; else http and the Host. Writes
 * nothing if no valid host is known: the link is a path. */
void links_write_base(const exchange *x, FILE *out);

/* Returns whether the text is the host, with its port, of --public_url. */
int links_is_public(const service *s, const char *host);

#endif
