/* Sequential reading of a zip entry, stored or deflated, in constant memory. */
#ifndef WEIGHTS_ZIP_STREAM_H
#define WEIGHTS_ZIP_STREAM_H

#include "base/file.h"

#include <stddef.h>
#include <stdint.h>
#include <zlib.h>

/* Place and expected properties of an entry's contents. */
typedef struct {
    const file_source *source;
    const char *what; /* file and entry, for messages */
    uint64_t offset;  /* of the first byte in the file */
    uint64_t packed;  /* bytes in the file */
    uint64_t size;    /* bytes, decompressed */
    int deflated;     /* 0: stored */
    int has_crc;      /* 1: crc is known */
    uint32_t crc;     /* CRC-32 of the contents */
} zip_place;

enum { ZIP_BUFFER = 1 << 16 };

typedef struct {
    zip_place place;
    uint64_t at;                /* bytes of the contents read */
    uint64_t fetched;           /* bytes of the file read */
    uint32_t crc;               /* of the contents read */
    int is_open, ended;         /* ended: the deflated data have ended */
    z_stream z;                 /* inflate's state, if deflated */
    uint8_t buffer[ZIP_BUFFER]; /* deflated bytes */
} zip_stream;

/* Opens the stream at the first byte. Close an open stream first; a zeroed one is closed. */
mar_status zip_stream_open(zip_stream *s, const zip_place *place, mar_err *err);
/* Reads the next n bytes to dst. The last byte also checks that the data end there, their CRC-32, and that the file has
 * not changed. Returns MAR_EFORMAT for damaged or missing data, MAR_EIO or MAR_ENOMEM. */
mar_status zip_stream_read(zip_stream *s, size_t n, void *dst, mar_err *err);
void zip_stream_close(zip_stream *s); /* a closed one is fine */

#endif
