/* Hashes of names from files: nobody who has not seen the seed can make names that collide. Private to weights/. */
#ifndef WEIGHTS_HASH_H
#define WEIGHTS_HASH_H

#include <stddef.h>
#include <stdint.h>

typedef struct {
    uint64_t key[2];
} wt_hash_seed;

/* Random bits of the system's. */
wt_hash_seed wt_hash_random(void);
/* SipHash-2-4 of text[length] (Aumasson and Bernstein, 2012). */
uint64_t wt_hash(const wt_hash_seed *seed, const char *text, size_t length);

#endif
