#include "tools/serve/bodies.h"

#include <stdlib.h>
#include <string.h>

void bodies_create(bodies *b)
{
    *b = (bodies){.bytes = 0};
    pthread_mutex_init(&b->lock, NULL);
}

void bodies_destroy(bodies *b)
{
    pthread_mutex_destroy(&b->lock);
}

/* Returns the link to a client, or to the end of the list. */
static body_client **bodies_find(bodies *b, const client_key *key)
{
    body_client **at = &b->clients;
    while (*at && memcmp(&(*at)->key, key, sizeof *key) != 0) at = &(*at)->next;
    return at;
}

/* The lock is held. */
static bodies_result serve_bodies_hold(bodies *b, const client_key *key, size_t bytes)
{
    body_client **at = bodies_find(b, key);
    const size_t own = (*at ? (*at)->bytes : 0) + bytes;
    if (bytes > BODIES_MAX - b->bytes) return BODIES_FULL;
    if (own > BODIES_MAX - b->bytes - bytes) return BODIES_SHARE;
    if (!*at) {
        if (!(*at = calloc(1, sizeof **at))) return BODIES_FULL;
        (*at)->key = *key;
    }
    (*at)->bytes = own;
    b->bytes += bytes;
    return BODIES_OK;
}

bodies_result bodies_hold(bodies *b, const client_key *key, size_t bytes)
{
    pthread_mutex_lock(&b->lock);
    const bodies_result result = serve_bodies_hold(b, key, bytes);
    pthread_mutex_unlock(&b->lock);
    return result;
}

void bodies_drop(bodies *b, const client_key *key, size_t bytes)
{
    pthread_mutex_lock(&b->lock);
    body_client **at = bodies_find(b, key), *c = *at;
    b->bytes -= bytes;
    c->bytes -= bytes;
    if (c->bytes == 0) {
        *at = c->next;
        free(c);
    }
    pthread_mutex_unlock(&b->lock);
}
