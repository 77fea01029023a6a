/* The hash that identifies model files: every bit and the length count. */
#include "tests/support/support.h"

#include "tools/cli/file_sum.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MEGABYTE = 1 << 20, MOST = 2 * MEGABYTE + 77 };

static FILE *file;
static unsigned char data[MOST];

static uint64_t sum_of(size_t size)
{
    long long length;
    uint64_t hash;
    const int fd = fileno(file);
    assert_int_equal(ftruncate(fd, 0), 0);
    assert_int_equal(pwrite(fd, data, size, 0), size);
    assert_int_equal(file_sum(fd, &length, &hash), 0);
    assert_int_equal(length, size);
    return hash;
}

TEST_CASE(every_bit_counts)
{
    static const size_t sizes[] = {1, 7, 8, 31, 32, 33, 4096, MEGABYTE, MEGABYTE + 1, MOST};
    (void)state;
    for (size_t i = 0; i < MOST; i++) data[i] = (unsigned char)(i * 2654435761u >> 24);
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
        const size_t size = sizes[s], step = size < 100 ? 1 : size / 23;
        const uint64_t whole = sum_of(size);
        assert_int_equal(sum_of(size), whole);
        for (size_t at = size - 1;; at -= step) {
            const int bit = 1 << (at % 8);
            data[at] ^= bit;
            if (sum_of(size) == whole) fail_msg("byte %zu of %zu does not count", at, size);
            data[at] ^= bit;
            if (at < step) break;
        }
    }
}

/* Checks that length and order count where all bytes are alike, and for parts that change places. */
TEST_CASE(length_and_order_count)
{
    uint64_t sums[80];
    memset(data, 0, sizeof data);
    for (size_t n = 0; n < 80; n++) {
        sums[n] = sum_of(n);
        for (size_t i = 0; i < n; i++)
            if (sums[i] == sums[n]) fail_msg("%zu and %zu zeros are the same", i, n);
    }
    for (size_t a = 0; a < MEGABYTE; a += MEGABYTE / 4 + 8)
        for (size_t b = a + 8; b < MEGABYTE; b += MEGABYTE / 4) {
            data[a] = 1, data[b] = 2;
            const uint64_t first = sum_of(MEGABYTE);
            data[a] = 2, data[b] = 1;
            if (sum_of(MEGABYTE) == first) fail_msg("bytes %zu and %zu may change places", a, b);
            data[a] = data[b] = 0;
        }
}

/* Checks that memory has the hash of a file with the same bytes. */
TEST_CASE(memory)
{
    static const size_t sizes[] = {0, 1, 31, 32, 33, 4095, MEGABYTE, MEGABYTE + 1, MOST};
    (void)state;
    for (size_t i = 0; i < MOST; i++) data[i] = (unsigned char)(i * 2654435761u >> 24);
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++)
        assert_true(memory_sum(data, sizes[s]) == sum_of(sizes[s]));
}

TEST_CASE(errors)
{
    long long length;
    uint64_t hash;
    const int directory = open(".", O_RDONLY | O_CLOEXEC);
    assert_true(directory >= 0);
    assert_int_equal(file_sum(directory, &length, &hash), -1);
    assert_int_equal(errno, EISDIR);
    close(directory);
}

static int open_file(void **state)
{
    (void)state;
    file = tmpfile();
    return file ? 0 : 1;
}

static int close_file(void **state)
{
    (void)state;
    return fclose(file);
}

TEST_GROUP(open_file, close_file)
