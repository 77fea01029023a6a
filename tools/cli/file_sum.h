/* Telling files from one another by what is in them. */
#ifndef TOOLS_FILE_SUM_H
#define TOOLS_FILE_SUM_H

#include <stddef.h>
#include <stdint.h>

/* Reads the file that is open as `fd` from its beginning: its length in bytes, and a hash of every byte. Files of one
 * length that differ in a single run of 8 bytes, aligned, have different hashes for sure, others with a probability of
 * 1 - 2^-64. The hash is fast, not cryptographic. Returns 0, or -1 with errno set. */
int file_sum(int fd, long long *length, uint64_t *hash);

/* The same of its first bytes, `length` of them. Returns -1 with errno 0 if it has fewer. */
int file_sum_part(int fd, long long length, uint64_t *hash);

/* The hash that a file of these bytes has. */
uint64_t memory_sum(const void *data, size_t size);

#endif
