/* Hashes of files by content. */
#ifndef TOOLS_FILE_SUM_H
#define TOOLS_FILE_SUM_H

#include <stddef.h>
#include <stdint.h>

/* Reads the file open as `fd` from its beginning: length in bytes, and a hash of every byte. Files of equal length that
 * differ in one aligned run of 8 bytes have different hashes. Others differ with probability 1 - 2^-64. The hash is
 * fast, not cryptographic. Returns 0, or -1 with errno set. */
int file_sum(int fd, long long *length, uint64_t *hash);

/* Returns the hash of a file with these bytes. */
uint64_t memory_sum(const void *data, size_t size);

#endif
