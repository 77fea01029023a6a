/* Telling files from one another by what is in them. */
#ifndef TOOLS_FILE_SUM_H
#define TOOLS_FILE_SUM_H

#include <stdint.h>

/* Reads the file that is open as `fd` from its beginning: its length in bytes, and a hash of every byte. Files of one
 * length that differ in a single run of 8 bytes, aligned, have different hashes for sure, others with a probability of
 * 1 - 2^-64. The hash is fast, not cryptographic. Returns 0, or -1 with errno set. */
int file_sum(int fd, long long *length, uint64_t *hash);

#endif
