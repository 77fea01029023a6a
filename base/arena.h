/* One block of memory divided into arrays. */
#ifndef BASE_ARENA_H
#define BASE_ARENA_H

#include <stddef.h>

/* Returns the next array of `count` elements of `size` bytes, at base + *used. Advances *used to the next multiple of
 * 256. With base NULL it only counts and returns NULL. So one function both measures an arena and lays it out. */
static inline void *arena_carve(char *base, size_t *used, size_t count, size_t size)
{
    void *p = base ? base + *used : NULL;
    *used += (count * size + 255) / 256 * 256;
    return p;
}

#endif
