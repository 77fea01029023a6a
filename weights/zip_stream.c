#include "weights/zip_stream.h"

#include <limits.h>

static mar_status zip_stream_refuse(const zip_stream *s, int result, mar_err *err)
{
    if (result == Z_MEM_ERROR) return err_set(err, MAR_ENOMEM, "%s: out of memory for decompressing it", s->place.what);
    return err_set(err, MAR_EFORMAT, "%s: its compressed data are damaged%s%s", s->place.what, s->z.msg ? ": " : "",
                   s->z.msg ? s->z.msg : "");
}

mar_status zip_stream_open(zip_stream *s, const zip_place *place, mar_err *err)
{
    s->place = *place;
    s->at = s->fetched = 0;
    s->crc = 0;
    s->ended = 0;
    s->z = (z_stream){.next_in = s->buffer};
    const int result = place->deflated ? inflateInit2(&s->z, -MAX_WBITS) : Z_OK; /* negative: without zlib's header */
    s->is_open = result == Z_OK;
    return s->is_open ? MAR_OK : zip_stream_refuse(s, Z_MEM_ERROR, err);
}

void zip_stream_close(zip_stream *s)
{
    if (s->is_open && s->place.deflated) inflateEnd(&s->z);
    s->is_open = 0;
}

/* Gives zlib more input if it has consumed all, and the file has more. */
static mar_status refill(zip_stream *s, mar_err *err)
{
    const uint64_t left = s->place.packed - s->fetched;
    if (s->z.avail_in > 0 || left == 0) return MAR_OK;
    const size_t n = left < ZIP_BUFFER ? (size_t)left : ZIP_BUFFER;
    const mar_status status = file_source_read(s->place.source, s->place.offset + s->fetched, n, s->buffer, err);
    if (status != MAR_OK) return status;
    s->fetched += n;
    s->z.next_in = s->buffer;
    s->z.avail_in = (uInt)n;
    return MAR_OK;
}

/* Decompresses to dst[*n] until it is full or the data end. Sets *n to the bytes written. */
static mar_status decompress(zip_stream *s, size_t *n, uint8_t *dst, mar_err *err)
{
    const size_t wanted = *n;
    *n = 0;
    while (*n < wanted && !s->ended) {
        const mar_status status = refill(s, err);
        if (status != MAR_OK) return status;
        const uInt room = wanted - *n < UINT_MAX ? (uInt)(wanted - *n) : UINT_MAX;
        s->z.next_out = dst + *n;
        s->z.avail_out = room;
        const int result = inflate(&s->z, Z_NO_FLUSH);
        *n += room - s->z.avail_out;
        s->ended = result == Z_STREAM_END;
        if (result != Z_OK && result != Z_STREAM_END)
            return zip_stream_refuse(s, result, err); /* Z_BUF_ERROR: input ended early */
    }
    return MAR_OK;
}

/* Checks the end of the data, after their last byte. */
static mar_status check_end(zip_stream *s, mar_err *err)
{
    const char *what = s->place.what;
    if (s->place.deflated) {
        uint8_t more;
        size_t n = 1;
        const mar_status status = decompress(s, &n, &more, err);
        if (status != MAR_OK) return status;
        if (n > 0 || s->z.avail_in > 0 || s->fetched < s->place.packed)
            return err_set(err, MAR_EFORMAT, "%s: its compressed data go on after the %llu bytes expected", what,
                           (unsigned long long)s->place.size);
    }
    if (s->place.has_crc && s->crc != s->place.crc)
        return err_set(err, MAR_EFORMAT, "%s: its data are damaged: their CRC-32 is %08x, expected %08x", what, s->crc,
                       s->place.crc);
    return file_source_check(s->place.source, err);
}

mar_status zip_stream_read(zip_stream *s, size_t n, void *dst, mar_err *err)
{
    mar_status status = MAR_OK;
    size_t got = n;
    if (n > s->place.size - s->at)
        return err_set(err, MAR_EFORMAT, "%s: %zu bytes at %llu reach past its end at %llu", s->place.what, n,
                       (unsigned long long)s->at, (unsigned long long)s->place.size);
    if (n == 0) return MAR_OK;
    if (s->place.deflated)
        status = decompress(s, &got, dst, err);
    else
        status = file_source_read(s->place.source, s->place.offset + s->at, n, dst, err);
    if (status == MAR_OK && got < n)
        status = err_set(err, MAR_EFORMAT, "%s: its compressed data end after %llu bytes, expected %llu", s->place.what,
                         (unsigned long long)(s->at + got), (unsigned long long)s->place.size);
    if (status == MAR_OK) {
        s->crc = (uint32_t)crc32_z(s->crc, dst, n);
        s->at += n;
        if (s->at == s->place.size) status = check_end(s, err);
    }
    if (status == MAR_OK) return MAR_OK;
    const mar_status changed = file_source_check(s->place.source, err); /* a change of the file may explain the error */
    return changed != MAR_OK ? changed : status;
}
