/* Takes archives apart for the mutators, and writes them with a right directory and right checksums. */
#include "tests/fuzz/archives.h"

#include "weights/number.h"

#include <string.h>
#include <zlib.h>

void archive_read(archive *a, const uint8_t *data, size_t size)
{
    *a = (archive){0};
    size_t end = size >= 22 ? size - 22 : 0;
    while (end > 0 && wt_le32(data + end) != 0x06054b50) end--;
    if (end == 0) return;
    uint64_t at = wt_le32(data + end + 16);
    if (end >= 76 && wt_le32(data + end - 20) == 0x07064b50 && wt_le32(data + end - 76) == 0x06064b50) {
        a->zip64 = 1;
        at = wt_le64(data + end - 76 + 48);
    }
    while (a->count < ARCHIVE_PARTS && at <= end && end - at >= 46 && wt_le32(data + at) == 0x02014b50) {
        const uint8_t *p = data + at;
        const size_t name = wt_le16(p + 28), extra = wt_le16(p + 30);
        uint64_t packed = wt_le32(p + 20), bytes = wt_le32(p + 24), header = wt_le32(p + 42);
        if (end - at < 46 + name + extra || name > ARCHIVE_NAME) return;
        if (header == UINT32_MAX && extra >= 28) {
            bytes = wt_le64(p + 46 + name + extra - 24);
            packed = wt_le64(p + 46 + name + extra - 16);
            header = wt_le64(p + 46 + name + extra - 8);
        }
        if (header > size || size - header < 30) return;
        const uint64_t begin = header + 30 + wt_le16(data + header + 26) + wt_le16(data + header + 28);
        if (begin > size || packed > size - begin) return;
        archive_part *e = &a->parts[a->count++];
        *e = (archive_part){.name_length = name,
                            .data = data + begin,
                            .size = packed,
                            .method = wt_le16(p + 10),
                            .flags = wt_le16(p + 8),
                            .is_packed = packed != bytes,
                            .contents_size = bytes,
                            .contents_crc = wt_le32(p + 16)};
        memcpy(e->name, p + 46, name);
        at += 46 + name + extra + wt_le16(p + 32);
    }
}

static uint32_t crc_of(const archive_part *e)
{
    return e->is_packed ? e->contents_crc : (uint32_t)crc32(0, e->data, (uInt)e->size);
}

static size_t contents_of(const archive_part *e)
{
    return e->is_packed ? e->contents_size : e->size;
}
static void put_local(const archive *a, const archive_part *e, fuzz_random *r, fuzz_bytes *out)
{
    const uint32_t crc = crc_of(e);
    const size_t header = 30 + e->name_length + 4,
                 padding = fuzz_one_in(r, 2) ? 0 : (64 - (out->size + header) % 64) % 64;
    fuzz_le(out, fuzz_perhaps(r, 0x04034b50), 4);
    fuzz_le(out, 0, 2);
    fuzz_le(out, (uint64_t)e->flags | (a->descriptor ? 8 : 0), 2);
    fuzz_le(out, (uint64_t)e->method, 2);
    fuzz_le(out, 0, 4);
    fuzz_le(out, a->descriptor ? 0 : crc, 4);
    fuzz_le(out, a->descriptor ? 0 : e->size, 4);
    fuzz_le(out, a->descriptor ? 0 : contents_of(e), 4);
    fuzz_le(out, fuzz_perhaps(r, e->name_length), 2);
    fuzz_le(out, fuzz_perhaps(r, padding + 4), 2);
    fuzz_put(out, e->name, e->name_length);
    fuzz_text(out, "FB");
    fuzz_le(out, padding, 2);
    for (size_t i = 0; i < padding; i++) fuzz_le(out, 'Z', 1);
    fuzz_put(out, e->data, e->size);
    if (!a->descriptor) return;
    fuzz_le(out, 0x08074b50, 4);
    fuzz_le(out, crc, 4);
    fuzz_le(out, e->size, a->zip64 ? 8 : 4);
    fuzz_le(out, contents_of(e), a->zip64 ? 8 : 4);
}

static void put_entry(const archive *a, const archive_part *e, size_t offset, fuzz_random *r, fuzz_bytes *out)
{
    fuzz_le(out, fuzz_perhaps(r, 0x02014b50), 4);
    fuzz_le(out, 0, 4);
    fuzz_le(out, (uint64_t)e->flags | (a->descriptor ? 8 : 0), 2);
    fuzz_le(out, (uint64_t)e->method, 2);
    fuzz_le(out, 0, 4);
    fuzz_le(out, crc_of(e), 4);
    fuzz_le(out, a->zip64 ? UINT32_MAX : fuzz_perhaps(r, e->size), 4);
    fuzz_le(out, a->zip64 ? UINT32_MAX : fuzz_perhaps(r, contents_of(e)), 4);
    fuzz_le(out, fuzz_perhaps(r, e->name_length), 2);
    fuzz_le(out, fuzz_perhaps(r, a->zip64 ? 28 : 0), 2);
    fuzz_le(out, fuzz_perhaps(r, 0), 2);
    fuzz_le(out, 0, 2 + 2 + 4);
    fuzz_le(out, a->zip64 ? UINT32_MAX : fuzz_perhaps(r, offset), 4);
    fuzz_put(out, e->name, e->name_length);
    if (!a->zip64) return;
    fuzz_le(out, fuzz_perhaps(r, 1), 2);
    fuzz_le(out, fuzz_perhaps(r, 24), 2);
    fuzz_le(out, fuzz_perhaps(r, contents_of(e)), 8);
    fuzz_le(out, fuzz_perhaps(r, e->size), 8);
    fuzz_le(out, fuzz_perhaps(r, offset), 8);
}

static void put_end(const archive *a, size_t offset, size_t size, fuzz_random *r, fuzz_bytes *out)
{
    const uint64_t count = (uint64_t)a->count;
    if (a->zip64) {
        const size_t at = out->size;
        fuzz_le(out, fuzz_perhaps(r, 0x06064b50), 4);
        fuzz_le(out, 44, 8);
        fuzz_le(out, 0, 2 + 2 + 4 + 4);
        fuzz_le(out, fuzz_perhaps(r, count), 8);
        fuzz_le(out, fuzz_perhaps(r, count), 8);
        fuzz_le(out, fuzz_perhaps(r, size), 8);
        fuzz_le(out, fuzz_perhaps(r, offset), 8);
        fuzz_le(out, fuzz_perhaps(r, 0x07064b50), 4);
        fuzz_le(out, 0, 4);
        fuzz_le(out, fuzz_perhaps(r, at), 8);
        fuzz_le(out, 1, 4);
    }
    fuzz_le(out, 0x06054b50, 4);
    fuzz_le(out, 0, 4);
    fuzz_le(out, a->zip64 ? UINT16_MAX : fuzz_perhaps(r, count), 2);
    fuzz_le(out, a->zip64 ? UINT16_MAX : fuzz_perhaps(r, count), 2);
    fuzz_le(out, a->zip64 ? UINT32_MAX : fuzz_perhaps(r, size), 4);
    fuzz_le(out, a->zip64 ? UINT32_MAX : fuzz_perhaps(r, offset), 4);
    const uint64_t comment = fuzz_one_in(r, 64) ? fuzz_next(r, 30) : 0;
    fuzz_le(out, comment, 2);
    for (uint64_t i = 0; i < comment; i++) fuzz_le(out, 'c', 1);
}

void archive_write(const archive *a, fuzz_random *r, fuzz_bytes *out)
{
    size_t offsets[ARCHIVE_PARTS];
    for (int i = 0; i < a->count; i++) {
        offsets[i] = out->size;
        put_local(a, &a->parts[i], r, out);
    }
    const size_t directory = out->size;
    for (int i = 0; i < a->count; i++) put_entry(a, &a->parts[i], offsets[i], r, out);
    put_end(a, directory, out->size - directory, r, out);
}

archive_part *archive_add(archive *a, const char *name, const uint8_t *data, size_t size)
{
    if (a->count == ARCHIVE_PARTS) return NULL;
    archive_part *e = &a->parts[a->count++];
    *e = (archive_part){.name_length = strlen(name), .data = data, .size = size};
    memcpy(e->name, name, e->name_length);
    return e;
}
