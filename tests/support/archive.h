/* Files made by hand, valid or not: bytes, safetensors, and zip archives as torch.save writes them. */
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

/* Length, JSON text, and data_size bytes of 0, 1, 2, ... */
bytes make_safetensors(const char *header, size_t data_size);

typedef struct {
    const char *name;
    const void *data;
    size_t size;
    int method, flags; /* 0: stored, plain */
    uint32_t crc;      /* CRC-32, which PyTorch's reader does not look at */
} zip_part;

/* A zip file; with zip64 every size and offset is in ZIP64 records. */
bytes make_zip(const zip_part *parts, int count, int zip64);
/* Writes such a file as a sparse file, with the last part's local header at last_offset. */
void write_sparse_zip(const char *path, const zip_part *parts, int count, uint64_t last_offset);
/* archive/data.pkl with this pickle, and archive/data/0 with storage_size bytes of 0, 1, 2, ... */
bytes make_torch(const void *pickle, size_t pickle_size, size_t storage_size);

/* A copy of data that ends where unreadable memory begins, so that reading past its end crashes. */
const uint8_t *guarded_copy(const void *data, size_t size);
void guarded_free(const uint8_t *copy, size_t size);

#endif
