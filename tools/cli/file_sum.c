#include "tools/cli/file_sum.h"

#include "tools/cli/file.h"

#include <errno.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

enum { PIECE = 1 << 20, LANES = 4, BLOCK = LANES * sizeof(uint64_t) }; /* bytes; a piece is a whole number of blocks */

/* Odd, so that multiplication is a bijection: the fractions of the golden ratio and of the roots of 2 and 3. */
static const uint64_t by_golden = 0x9e3779b97f4a7c15u, by_two = 0x6a09e667f3bcc909u, by_three = 0xbb67ae8584caa73bu;

static uint64_t turn(uint64_t x, int bits)
{
    return x << bits | x >> (64 - bits);
}

/* Adds whole blocks, each word to its lane. The step is a bijection of the word for a fixed lane, and of the lane for a
 * fixed word. */
static void add_blocks(uint64_t lanes[LANES], const unsigned char *data, size_t blocks)
{
    for (size_t b = 0; b < blocks; b++)
        for (int i = 0; i < LANES; i++) {
            uint64_t word;
            memcpy(&word, data + b * BLOCK + (size_t)i * sizeof word, sizeof word);
            lanes[i] = turn(lanes[i] ^ word * by_golden, 29) * by_two;
        }
}

/* Adds n bytes, a multiple of BLOCK except at the end, where the buffer has room for a whole block. The file's length
 * tells the zeros of padding from those of the file. */
static void add_piece(uint64_t lanes[LANES], unsigned char *piece, size_t n)
{
    const size_t blocks = (n + BLOCK - 1) / BLOCK;
    memset(piece + n, 0, blocks * BLOCK - n);
    add_blocks(lanes, piece, blocks);
}

static uint64_t file_sum_finish(const uint64_t lanes[LANES], uint64_t length)
{
    uint64_t sum = length;
    for (int i = 0; i < LANES; i++) {
        sum = (sum ^ lanes[i]) * by_three;
        sum ^= sum >> 32;
    }
    return sum;
}

int file_sum(int fd, long long *length, uint64_t *hash)
{
    uint64_t lanes[LANES] = {by_golden, by_two, by_three, 0};
    unsigned char *piece = malloc(PIECE);
    ssize_t n = PIECE;
    *length = 0;
    *hash = 0;
    if (!piece) return -1;
    while (n == PIECE) {
        n = tool_read_up_to(fd, piece, PIECE, (off_t)*length);
        if (n <= 0) break;
        add_piece(lanes, piece, (size_t)n);
        *length += n;
    }
    const int reason = errno;
    free(piece);
    errno = reason;
    if (n < 0) return -1;
    *hash = file_sum_finish(lanes, (uint64_t)*length);
    return 0;
}

uint64_t memory_sum(const void *data, size_t size)
{
    uint64_t lanes[LANES] = {by_golden, by_two, by_three, 0};
    unsigned char last[BLOCK];
    const size_t whole = size / BLOCK * BLOCK;
    add_blocks(lanes, data, whole / BLOCK);
    memcpy(last, (const unsigned char *)data + whole, size - whole);
    add_piece(lanes, last, size - whole);
    return file_sum_finish(lanes, size);
}
