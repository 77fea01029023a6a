/* One block of memory cut into arrays. */
#ifndef BASE_ARENA_H
#define BASE_ARENA_H

#include <stddef.h>

/* Hands out `count` elements behind *used, at a multiple of 256 bytes from base; with base NULL it only
 * counts, so that one function lays an arena out and tells its size. */
static inline void *arena_carve(char *base, size_t *used, size_t count, size_t size)
{
    void *p = base ? base + *used : NULL;
    *used += (count * size + 255) / 256 * 256;
    return p;
}

#endif
