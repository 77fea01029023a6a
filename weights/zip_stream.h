/* Reads the contents of a zip entry from beginning to end, stored or deflated, in little memory. */
#ifndef WEIGHTS_ZIP_STREAM_H
#define WEIGHTS_ZIP_STREAM_H

#include "base/file.h"

#include <stddef.h>
#include <stdint.h>
#include <zlib.h>

/* Where contents are, and what they must be. */
typedef struct {
    const file_source *source;
    const char *what; /* file and entry, for messages */
    uint64_t offset;  /* of the first byte in the file */
    uint64_t packed;  /* bytes in the file */
    uint64_t size;    /* bytes of the contents; the same if they are stored */
    int deflated;     /* 0: stored */
    int has_crc;      /* whether crc is known */
    uint32_t crc;     /* CRC-32 of the contents */
} zip_place;

enum { ZIP_BUFFER = 1 << 16 };

typedef struct {
    zip_place place;
    uint64_t at;                /* bytes of the contents that were read */
    uint64_t fetched;           /* bytes of the file that were read */
    uint32_t crc;               /* of the contents so far */
    int is_open, ended;         /* ended: the deflated data are at their end */
    z_stream z;                 /* if deflated */
    uint8_t buffer[ZIP_BUFFER]; /* deflated bytes */
} zip_stream;

/* Begins at the first byte. A stream that is open must be closed first; one of zeros is not open. */
mar_status zip_stream_open(zip_stream *s, const zip_place *place, mar_err *err);
/* dst[n] = the next bytes. With the last of them all is checked: that the data end there, their CRC-32, and that the
 * file has not changed. MAR_EFORMAT if there are fewer than n, or if they are damaged; MAR_EIO; MAR_ENOMEM. */
mar_status zip_stream_read(zip_stream *s, size_t n, void *dst, mar_err *err);
void zip_stream_close(zip_stream *s); /* one that is not open is fine */

#endif
