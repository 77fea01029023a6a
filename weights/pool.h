/* An arena: many small allocations, freed together, with a limit on their sum. */
#ifndef WEIGHTS_POOL_H
#define WEIGHTS_POOL_H

#include <stddef.h>

typedef struct wt_pool_block wt_pool_block;

typedef struct {
    wt_pool_block *blocks;
    size_t used;  /* bytes allocated */
    size_t limit; /* largest allowed value of `used` */
} wt_pool;

/* Allocates zeroed memory, 16-byte aligned. Returns NULL if memory or the limit is exhausted. */
void *wt_pool_alloc(wt_pool *pool, size_t size);
/* Copies `length` bytes and adds a NUL. Returns NULL if memory or the limit is exhausted. */
char *wt_pool_text(wt_pool *pool, const char *text, size_t length);
void wt_pool_free(wt_pool *pool);

#endif
