#include "tools/file_sum.h"

#include <errno.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { PIECE = 1 << 20, LANES = 4, BLOCK = LANES * sizeof(uint64_t) }; /* bytes; a piece is a whole number of blocks */

/* Odd, so that multiplying by them loses nothing: the fractions of the golden ratio and of the roots of 2 and 3. */
static const uint64_t by_golden = 0x9e3779b97f4a7c15u, by_two = 0x6a09e667f3bcc909u, by_three = 0xbb67ae8584caa73bu;

static uint64_t turn(uint64_t x, int bits)
{
    return x << bits | x >> (64 - bits);
}

/* Adds whole blocks, each word to its lane. For one lane it is a bijection of the word, and for one word of the lane.
 */
static void add_blocks(uint64_t lanes[LANES], const unsigned char *data, size_t blocks)
{
    for (size_t b = 0; b < blocks; b++)
        for (int i = 0; i < LANES; i++) {
            uint64_t word;
            memcpy(&word, data + b * BLOCK + (size_t)i * sizeof word, sizeof word);
            lanes[i] = turn(lanes[i] ^ word * by_golden, 29) * by_two;
        }
}

/* Reads until the piece is full or the file ends. Returns how many bytes, or -1 with errno set. */
static ssize_t read_piece(int fd, unsigned char *piece, off_t at)
{
    size_t used = 0;
    while (used < PIECE) {
        const ssize_t n = pread(fd, piece + used, PIECE - used, at + (off_t)used);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return -1;
        if (n == 0) break;
        used += (size_t)n;
    }
    return (ssize_t)used;
}

int file_sum(int fd, long long *length, uint64_t *hash)
{
    uint64_t lanes[LANES] = {by_golden, by_two, by_three, 0};
    unsigned char *piece = malloc(PIECE);
    ssize_t n = PIECE;
    *length = 0;
    *hash = 0;
    if (!piece) return -1;
    while (n == PIECE && (n = read_piece(fd, piece, (off_t)*length)) > 0) {
        const size_t blocks = ((size_t)n + BLOCK - 1) / BLOCK;
        memset(piece + n, 0, blocks * BLOCK - (size_t)n); /* the length tells these zeros from the file's */
        add_blocks(lanes, piece, blocks);
        *length += n;
    }
    const int reason = errno;
    free(piece);
    errno = reason;
    if (n < 0) return -1;
    uint64_t sum = (uint64_t)*length;
    for (int i = 0; i < LANES; i++) {
        sum = (sum ^ lanes[i]) * by_three;
        sum ^= sum >> 32;
    }
    *hash = sum;
    return 0;
}
