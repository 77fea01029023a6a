/* APPNOTE.TXT 6.3.10, sections 4.3.7 (local header), 4.3.12 (directory), 4.3.14 to 4.3.16 (its end), 4.5.3 (ZIP64).
 * Sizes are read from the directory: PyTorch leaves those of the local headers zero. */
#include "weights/zip.h"
#include "weights/number.h"

#include <stdlib.h>
#include <string.h>

enum { LOCAL_SIZE = 30, ENTRY_SIZE = 46, END_SIZE = 22, LOCATOR_SIZE = 20, END64_SIZE = 56, COMMENT_MAX = 65535 };
enum { FLAG_ENCRYPTED = 1 };
static const uint32_t local_magic = 0x04034b50, entry_magic = 0x02014b50, end_magic = 0x06054b50,
                      locator_magic = 0x07064b50, end64_magic = 0x06064b50;

/* MAR's checkpoints have some thousand entries, of a hundred bytes each. */
static const uint64_t directory_max = 16u << 20;

/* Returns the offset of the end record in tail[size], the end of the file, or -1. It is the last record whose comment
 * ends with the file. */
static int64_t find_end(const uint8_t *tail, size_t size)
{
    for (int64_t at = (int64_t)size - END_SIZE; at >= 0; at--)
        if (wt_le32(tail + at) == end_magic && (size_t)at + END_SIZE + wt_le16(tail + at + 20) == size) return at;
    return -1;
}

/* Position of the directory in the file. */
typedef struct {
    uint64_t offset, size, count; /* first byte, bytes, entries */
} extent;

/* Finds the directory from tail[size], the end of the file: by the ZIP64 end record, or else by the plain one. */
static mar_status find_in_tail(const file_source *s, const uint8_t *tail, size_t size, extent *d, mar_err *err)
{
    const int64_t at = find_end(tail, size);
    if (at < 0)
        return err_set(err, MAR_EFORMAT, "%s: a zip file without its directory at the end; truncated?", s->path);
    const uint8_t *p = tail + at;
    const uint64_t end = s->size - size + (uint64_t)at;
    *d = (extent){.count = wt_le16(p + 10), .size = wt_le32(p + 12), .offset = wt_le32(p + 16)};
    if (at >= LOCATOR_SIZE && wt_le32(p - LOCATOR_SIZE) == locator_magic) {
        const uint64_t record = wt_le64(p - LOCATOR_SIZE + 8);
        uint8_t end64[END64_SIZE] = {0};
        mar_status status = MAR_OK;
        if (record <= s->size && s->size - record >= END64_SIZE)
            status = file_source_read(s, record, sizeof end64, end64, err);
        if (status != MAR_OK) return status;
        if (wt_le32(end64) != end64_magic)
            return err_set(err, MAR_EFORMAT, "%s: the zip file's ZIP64 record is not at byte %llu", s->path,
                           (unsigned long long)record);
        *d = (extent){.count = wt_le64(end64 + 32), .size = wt_le64(end64 + 40), .offset = wt_le64(end64 + 48)};
    }
    if (d->offset > end || d->size > end - d->offset || d->count > d->size / ENTRY_SIZE)
        return err_set(err, MAR_EFORMAT, "%s: the zip directory (%llu entries, %llu bytes at %llu) is not in the file",
                       s->path, (unsigned long long)d->count, (unsigned long long)d->size,
                       (unsigned long long)d->offset);
    if (d->size > directory_max)
        return err_set(err, MAR_EFORMAT, "%s: the zip directory has %llu bytes, more than the %llu allowed", s->path,
                       (unsigned long long)d->size, (unsigned long long)directory_max);
    return MAR_OK;
}

static mar_status find_directory(const file_source *s, extent *d, mar_err *err)
{
    const size_t most = LOCATOR_SIZE + END_SIZE + COMMENT_MAX, size = s->size < most ? (size_t)s->size : most;
    uint8_t *tail = malloc(size + 1);
    if (!tail) return err_set(err, MAR_ENOMEM, "%s: out of memory for the end of the zip file", s->path);
    mar_status status = file_source_read(s, s->size - size, size, tail, err);
    if (status == MAR_OK) status = find_in_tail(s, tail, size, d, err);
    free(tail);
    return status;
}

/* Reads the sizes and offset that do not fit 32 bits from extra field 1. The field has only these, in this order.
 * Returns 0 if one is missing. */
static int read_zip64(zip_entry *entry, const uint8_t *extra, size_t length)
{
    uint64_t *fields[3] = {&entry->size, &entry->packed, &entry->header};
    int wanted = 0;
    for (int i = 0; i < 3; i++) wanted += *fields[i] == UINT32_MAX;
    if (!wanted) return 1;
    while (length >= 4) {
        size_t id = wt_le16(extra), size = wt_le16(extra + 2);
        if (size > length - 4) return 0;
        if (id == 1) {
            const uint8_t *p = extra + 4;
            if (size < (size_t)wanted * 8) return 0;
            for (int i = 0; i < 3; i++)
                if (*fields[i] == UINT32_MAX) {
                    *fields[i] = wt_le64(p);
                    p += 8;
                }
            return 1;
        }
        extra += 4 + size;
        length -= 4 + size;
    }
    return 0;
}

/* Reads the entry at *at in a directory that ends at `end`, and advances *at. Returns 0 if it is malformed. */
static int read_entry(const uint8_t **at, const uint8_t *end, zip_entry *entry)
{
    const uint8_t *p = *at;
    if (end - p < ENTRY_SIZE || wt_le32(p) != entry_magic) return 0;
    size_t name = wt_le16(p + 28), extra = wt_le16(p + 30), comment = wt_le16(p + 32);
    if ((size_t)(end - p) - ENTRY_SIZE < name + extra + comment) return 0;
    *entry = (zip_entry){.name = (const char *)p + ENTRY_SIZE,
                         .name_length = name,
                         .flags = wt_le16(p + 8),
                         .method = wt_le16(p + 10),
                         .crc = wt_le32(p + 16),
                         .packed = wt_le32(p + 20),
                         .size = wt_le32(p + 24),
                         .header = wt_le32(p + 42)};
    *at = p + ENTRY_SIZE + name + extra + comment;
    return read_zip64(entry, p + ENTRY_SIZE + name, extra);
}

static int zip_compare_names(const void *a, const void *b)
{
    const zip_entry *x = a, *y = b;
    size_t n = x->name_length < y->name_length ? x->name_length : y->name_length;
    int order = memcmp(x->name, y->name, n);
    return order ? order : (x->name_length > y->name_length) - (x->name_length < y->name_length);
}

static mar_status zip_read_entries(zip_directory *zip, const extent *d, mar_err *err)
{
    const char *path = zip->source->path;
    const uint8_t *at = zip->bytes, *end = at + d->size;
    for (uint64_t i = 0; i < d->count; i++)
        if (!read_entry(&at, end, &zip->entries[zip->count++]))
            return err_set(err, MAR_EFORMAT, "%s: entry %llu of the zip directory is malformed", path,
                           (unsigned long long)i);
    qsort(zip->entries, zip->count, sizeof *zip->entries, zip_compare_names);
    for (size_t i = 1; i < zip->count; i++)
        if (zip_compare_names(&zip->entries[i - 1], &zip->entries[i]) == 0)
            return err_set(err, MAR_EFORMAT, "%s: \"%.*s\" is twice in the zip file", path,
                           (int)zip->entries[i].name_length, zip->entries[i].name);
    return MAR_OK;
}

mar_status zip_open(const file_source *source, zip_directory *out, mar_err *err)
{
    extent d = {0};
    *out = (zip_directory){.source = source};
    mar_status status = find_directory(source, &d, err);
    if (status != MAR_OK) return status;
    out->bytes = malloc(d.size + 1);
    out->entries = calloc(d.count + 1, sizeof *out->entries);
    if (!out->bytes || !out->entries)
        status = err_set(err, MAR_ENOMEM, "%s: out of memory for %llu zip entries", source->path,
                         (unsigned long long)d.count);
    if (status == MAR_OK) status = file_source_read(source, d.offset, d.size, out->bytes, err);
    if (status == MAR_OK) status = zip_read_entries(out, &d, err);
    if (status != MAR_OK) zip_close(out);
    return status;
}

void zip_close(zip_directory *zip)
{
    free(zip->bytes);
    free(zip->entries);
    *zip = (zip_directory){0};
}

const zip_entry *zip_find(const zip_directory *zip, const char *name, size_t name_length)
{
    zip_entry key = {.name = name, .name_length = name_length};
    return bsearch(&key, zip->entries, zip->count, sizeof key, zip_compare_names);
}

int zip_is_encrypted(const zip_entry *entry)
{
    return entry->flags & FLAG_ENCRYPTED;
}

mar_status zip_locate(const zip_directory *zip, const zip_entry *entry, uint64_t *offset, mar_err *err)
{
    const file_source *s = zip->source;
    const int length = (int)entry->name_length;
    uint8_t p[LOCAL_SIZE] = {0};
    mar_status status = MAR_OK;
    if (entry->header <= s->size && s->size - entry->header >= LOCAL_SIZE)
        status = file_source_read(s, entry->header, sizeof p, p, err);
    if (status != MAR_OK) return status;
    if (wt_le32(p) != local_magic)
        return err_set(err, MAR_EFORMAT, "%s: \"%.*s\" has no zip header at byte %llu", s->path, length, entry->name,
                       (unsigned long long)entry->header);
    uint64_t skip = LOCAL_SIZE + (uint64_t)wt_le16(p + 26) + wt_le16(p + 28), room = s->size - entry->header;
    if (skip > room || entry->packed > room - skip)
        return err_set(err, MAR_EFORMAT, "%s: the %llu bytes of \"%.*s\" reach past the end of the file", s->path,
                       (unsigned long long)entry->packed, length, entry->name);
    *offset = entry->header + skip;
    return MAR_OK;
}

mar_status zip_contents(const zip_directory *zip, const zip_entry *entry, uint64_t *offset, mar_err *err)
{
    const char *path = zip->source->path;
    const int length = (int)entry->name_length;
    if (zip_is_encrypted(entry))
        return err_set(err, MAR_EFORMAT, "%s: \"%.*s\" is encrypted", path, length, entry->name);
    if (entry->method != ZIP_STORED || entry->packed != entry->size)
        return err_set(err, MAR_EFORMAT, "%s: \"%.*s\" is compressed, expected a file as torch.save writes it (stored)",
                       path, length, entry->name);
    return zip_locate(zip, entry, offset, err);
}
