/* Keyed hashes of names from files: without the seed nobody can construct collisions. Private to weights/. */
#ifndef WEIGHTS_HASH_H
#define WEIGHTS_HASH_H

#include <stddef.h>
#include <stdint.h>

typedef struct {
    uint64_t key[2];
} wt_hash_seed;

/* Returns a seed of random bits from the system. */
wt_hash_seed wt_hash_random(void);
/* Returns SipHash-2-4 of text[length] (Aumasson and Bernstein, 2012). */
uint64_t wt_hash(const wt_hash_seed *seed, const char *text, size_t length);

#endif
