/* Handmade files, valid or not: bytes, safetensors, and zip archives as torch.save writes them. */
#ifndef TESTS_ARCHIVE_H
#define TESTS_ARCHIVE_H

#include <stddef.h>
#include <stdint.h>

typedef struct {
    uint8_t *data; /* [size] */
    size_t size, capacity;
} bytes;

void bytes_put(bytes *b, const void *data, size_t size);
void bytes_text(bytes *b, const char *text);
void bytes_number(bytes *b, uint64_t value, int width); /* little-endian, zeros beyond 8 bytes */
void bytes_free(bytes *b);
bytes bytes_from_file(const char *path);              /* a failure fails the test */
void bytes_to_file(const bytes *b, const char *path); /* a failure fails the test */

/* Returns a file of the header's length, the JSON header, and data_size bytes 0, 1, 2, ... */
bytes make_safetensors(const char *header, size_t data_size);

typedef struct {
    const char *name;
    const void *data;
    size_t size;
    int method, flags; /* 0: stored, plain */
    uint32_t crc;      /* CRC-32; PyTorch's reader ignores it */
} zip_part;

/* Returns a zip file. With zip64 every size and offset is in ZIP64 records. */
bytes make_zip(const zip_part *parts, int count, int zip64);
/* Writes a zip file as a sparse file, with the last part's local header at last_offset. */
void write_sparse_zip(const char *path, const zip_part *parts, int count, uint64_t last_offset);
/* Returns an archive: archive/data.pkl is the pickle, archive/data/0 has storage_size bytes 0, 1, 2, ... */
bytes make_torch(const void *pickle, size_t pickle_size, size_t storage_size);

/* Copies data to the end of readable memory, so that reading past its end crashes. */
const uint8_t *guarded_copy(const void *data, size_t size);
void guarded_free(const uint8_t *copy, size_t size);

#endif
