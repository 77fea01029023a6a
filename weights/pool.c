#include "weights/pool.h"

#include <stdlib.h>
#include <string.h>

enum { POOL_ALIGN = 16, POOL_BLOCK = 64 * 1024 };

struct wt_pool_block {
    wt_pool_block *next;
    size_t used, size;
    _Alignas(POOL_ALIGN) unsigned char data[];
};

void *wt_pool_alloc(wt_pool *pool, size_t size)
{
    if (size > pool->limit - pool->used) return NULL;
    size_t rounded = (size + POOL_ALIGN - 1) & ~(size_t)(POOL_ALIGN - 1);
    if (rounded < size) return NULL;
    wt_pool_block *block = pool->blocks;
    if (!block || rounded > block->size - block->used) {
        size_t room = rounded > POOL_BLOCK ? rounded : POOL_BLOCK;
        block = calloc(1, sizeof *block + room);
        if (!block) return NULL;
        block->size = room;
        block->next = pool->blocks;
        pool->blocks = block;
    }
    void *p = block->data + block->used;
    block->used += rounded;
    pool->used += size;
    return p;
}

char *wt_pool_text(wt_pool *pool, const char *text, size_t length)
{
    char *copy = wt_pool_alloc(pool, length + 1);
    if (copy && length) memcpy(copy, text, length);
    return copy;
}

void wt_pool_free(wt_pool *pool)
{
    for (wt_pool_block *block = pool->blocks; block;) {
        wt_pool_block *next = block->next;
        free(block);
        block = next;
    }
    pool->blocks = NULL;
    pool->used = 0;
}
