/* Zip archives for mutators: taken apart, changed, and written again. The directory and the checksums are right, or
 * once in a while one thing is wrong. */
#ifndef TESTS_FUZZ_ARCHIVES_H
#define TESTS_FUZZ_ARCHIVES_H

#include "tests/fuzz/fuzz.h"

enum { ARCHIVE_PARTS = 12, ARCHIVE_NAME = 64 };

typedef struct {
    char name[ARCHIVE_NAME]; /* [name_length] */
    size_t name_length;
    const uint8_t *data; /* [size], not owned: as stored in the file */
    size_t size;
    int method, flags;
    int is_packed;         /* data are deflated; the next two describe the unpacked contents */
    size_t contents_size;  /* bytes */
    uint32_t contents_crc; /* and CRC-32 */
} archive_part;

typedef struct {
    archive_part parts[ARCHIVE_PARTS]; /* [count] */
    int count;
    int zip64;      /* sizes and offsets in ZIP64 records */
    int descriptor; /* sizes and checksums behind the data */
} archive;

/* Takes apart archives by archive_write, torch.save and numpy.savez: plain entries, found through the directory. */
void archive_read(archive *a, const uint8_t *data, size_t size);
void archive_write(const archive *a, fuzz_random *r, fuzz_bytes *out);
/* Adds a part. Returns NULL if there is no room. */
archive_part *archive_add(archive *a, const char *name, const uint8_t *data, size_t size);

#endif
