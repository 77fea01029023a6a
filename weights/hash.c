#include "weights/hash.h"

#include "weights/number.h"

#include <sys/random.h>
#include <time.h>

wt_hash_seed wt_hash_random(void)
{
    wt_hash_seed seed;
    if (getrandom(&seed, sizeof seed, GRND_NONBLOCK) == (ssize_t)sizeof seed) return seed;
    struct timespec now; /* old kernel, or early boot: use numbers that are hard to guess */
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (wt_hash_seed){{(uint64_t)now.tv_nsec << 32 ^ (uint64_t)now.tv_sec, (uint64_t)(uintptr_t)&seed}};
}

static uint64_t rotated(uint64_t x, int bits)
{
    return x << bits | x >> (64 - bits);
}

static void rounds(uint64_t v[4], int count)
{
    for (int i = 0; i < count; i++) {
        v[0] += v[1], v[2] += v[3];
        v[1] = rotated(v[1], 13) ^ v[0], v[3] = rotated(v[3], 16) ^ v[2];
        v[0] = rotated(v[0], 32);
        v[2] += v[1], v[0] += v[3];
        v[1] = rotated(v[1], 17) ^ v[2], v[3] = rotated(v[3], 21) ^ v[0];
        v[2] = rotated(v[2], 32);
    }
}

uint64_t wt_hash(const wt_hash_seed *seed, const char *text, size_t length)
{
    const uint64_t *k = seed->key;
    const uint8_t *p = (const uint8_t *)text;
    uint64_t v[4] = {k[0] ^ 0x736f6d6570736575u, k[1] ^ 0x646f72616e646f6du, k[0] ^ 0x6c7967656e657261u,
                     k[1] ^ 0x7465646279746573u};
    uint64_t last = (uint64_t)length << 56;
    for (size_t left = length; left >= 8; left -= 8, p += 8) {
        const uint64_t word = wt_le64(p);
        v[3] ^= word;
        rounds(v, 2);
        v[0] ^= word;
    }
    for (size_t i = 0; i < length % 8; i++) last |= (uint64_t)p[i] << 8 * i;
    v[3] ^= last;
    rounds(v, 2);
    v[0] ^= last;
    v[2] ^= 0xff;
    rounds(v, 4);
    return v[0] ^ v[1] ^ v[2] ^ v[3];
}
