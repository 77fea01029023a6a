/* The HTTP server: libmicrohttpd with a thread for each connection, and limits that it lacks. */
#ifndef TOOLS_SERVE_HTTP_H
#define TOOLS_SERVE_HTTP_H

#include "tools/serve/service.h"

typedef struct http http;

/* Connections beside those that wait for images. A client that waits has an image in the queue or in the batch. */
enum { HTTP_OTHERS = 256 };

/* Takes the service's address, so that one in use is known before the model is loaded. Returns a socket, or -1 with the
 * error printed. */
int http_bind(service *s);
/* Prints the address to standard output, "http://127.0.0.1:8080", before anything is served. Returns 0, or 1 with the
 * error printed. */
int http_listen(const service *s, int bound);
/* Serves until http_end. Takes over the listening socket. Returns NULL with the error printed. */
http *http_start(service *s, int listening);
/* Closes connections that take too long to send a request. Call it some times a second. */
void http_watch(http *h);
/* Accepts no more connections. */
void http_refuse(http *h);
/* Closes all connections, and frees all. NULL is fine. */
void http_end(http *h);

#endif
