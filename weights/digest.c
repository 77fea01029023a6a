/* Hashes of bytes that may come in any order and in any pieces. */
#include "weights/table.h"

#include <string.h>

/* Bijection whose bits all depend on all bits of x (splitmix64, Steele et al., 2014). */
static uint64_t mixed(uint64_t x)
{
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return x ^ x >> 31;
}

/* The sum of all words of 8 bytes, each times the key of its place. A word that comes in parts adds up, as zeros stand
 * for its other bytes. */
void wt_digest_add(wt_digest *d, uint64_t first, size_t n, const uint8_t *data)
{
    const uint64_t golden = 0x9e3779b97f4a7c15u;
    d->bytes += n;
    for (size_t m; n > 0; data += m, first += m, n -= m) {
        const size_t at = first % 8;
        uint64_t word = 0;
        m = 8 - at < n ? 8 - at : n;
        if (m == 8)
            memcpy(&word, data, 8);
        else
            memcpy((uint8_t *)&word + at, data, m);
        d->sum += (unsigned __int128)word * mixed((first / 8 + 1) * golden);
    }
}

uint64_t wt_number_digest(uint64_t hash, uint64_t number)
{
    return mixed((hash ^ number) + 0x9e3779b97f4a7c15u);
}

uint64_t wt_text_digest(uint64_t hash, const char *text)
{
    wt_digest d = {0};
    const size_t n = strlen(text);
    wt_digest_add(&d, 0, n, (const uint8_t *)text);
    hash = wt_number_digest(hash, n);
    hash = wt_number_digest(hash, (uint64_t)d.sum);
    return wt_number_digest(hash, (uint64_t)(d.sum >> 64));
}
