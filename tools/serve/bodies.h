/* Memory of the bodies of requests: a sum over all, of which a client has at most as much as it leaves to others. Every
 * call may come from any thread. */
#ifndef TOOLS_SERVE_BODIES_H
#define TOOLS_SERVE_BODIES_H

#include "tools/serve/client_key.h"

#include <pthread.h>
#include <stddef.h>

enum {
    BODY_SMALL = 16 << 10, /* bytes of each body, its values included, that always have room */
    BODIES_MAX = 256 << 20 /* bytes of all bodies in memory beyond these */
};

/* A client with some of it. */
typedef struct body_client {
    client_key key;
    size_t bytes;
    struct body_client *next;
} body_client;

typedef struct {
    pthread_mutex_t lock;
    size_t bytes; /* of all clients */
    body_client *clients;
} bodies;

void bodies_create(bodies *b);
/* Nothing is held any more. */
void bodies_destroy(bodies *b);

typedef enum {
    BODIES_OK,
    BODIES_FULL,
    BODIES_SHARE /* the client would have more than is left for others */
} bodies_result;
/* Counts memory for a client. A failure counts nothing. */
bodies_result bodies_hold(bodies *b, const client_key *key, size_t bytes);
/* Takes what was counted off again. */
void bodies_drop(bodies *b, const client_key *key, size_t bytes);

#endif
