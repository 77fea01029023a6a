/* APPNOTE.TXT 6.3.10, sections 4.3.7 (local header), 4.3.12 (directory), 4.3.14 to 4.3.16 (its end), 4.5.3
 * (ZIP64). Sizes come from the directory: PyTorch leaves those of the local headers zero. */
#include "weights/zip.h"
#include "weights/number.h"

#include <stdlib.h>
#include <string.h>

enum { LOCAL_SIZE = 30, ENTRY_SIZE = 46, END_SIZE = 22, LOCATOR_SIZE = 20, END64_SIZE = 56, COMMENT_MAX = 65535 };
enum { FLAG_ENCRYPTED = 1 };
static const uint32_t local_magic = 0x04034b50, entry_magic = 0x02014b50, end_magic = 0x06054b50,
                      locator_magic = 0x07064b50, end64_magic = 0x06064b50;

/* Offset of the end record, which is the last one whose comment ends at the end of the file; or -1. */
static int64_t find_end(const zip_directory *zip)
{
    if (zip->size < END_SIZE) return -1;
    uint64_t last = zip->size - END_SIZE, first = last > COMMENT_MAX ? last - COMMENT_MAX : 0;
    for (uint64_t at = last;; at--) {
        const uint8_t *p = zip->data + at;
        if (wt_le32(p) == end_magic && at + END_SIZE + wt_le16(p + 20) == zip->size) return (int64_t)at;
        if (at == first) return -1;
    }
}

/* Finds the directory by the ZIP64 end record if there is one, else by the plain one. */
static mar_status find_directory(const zip_directory *zip, uint64_t *offset, uint64_t *size, uint64_t *count,
                                 mar_err *err)
{
    int64_t end = find_end(zip);
    if (end < 0)
        return err_set(err, MAR_EFORMAT, "%s: a zip file without its directory at the end; truncated?", zip->path);
    const uint8_t *p = zip->data + end;
    *count = wt_le16(p + 10);
    *size = wt_le32(p + 12);
    *offset = wt_le32(p + 16);
    if (end >= LOCATOR_SIZE && wt_le32(p - LOCATOR_SIZE) == locator_magic) {
        uint64_t at = wt_le64(p - LOCATOR_SIZE + 8);
        if (at > zip->size || zip->size - at < END64_SIZE || wt_le32(zip->data + at) != end64_magic)
            return err_set(err, MAR_EFORMAT, "%s: the zip file's ZIP64 record is not at byte %llu", zip->path,
                           (unsigned long long)at);
        p = zip->data + at;
        *count = wt_le64(p + 32);
        *size = wt_le64(p + 40);
        *offset = wt_le64(p + 48);
    }
    if (*offset > (uint64_t)end || *size > (uint64_t)end - *offset || *count > *size / ENTRY_SIZE)
        return err_set(err, MAR_EFORMAT, "%s: the zip directory (%llu entries, %llu bytes at %llu) is not in the file",
                       zip->path, (unsigned long long)*count, (unsigned long long)*size, (unsigned long long)*offset);
    return MAR_OK;
}

/* Sizes and offset that do not fit 32 bits are in extra field 1, only those and in this order. */
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

/* Reads the entry at *at of a directory that ends at `end`, and moves *at past it. */
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
                         .packed = wt_le32(p + 20),
                         .size = wt_le32(p + 24),
                         .header = wt_le32(p + 42)};
    *at = p + ENTRY_SIZE + name + extra + comment;
    return read_zip64(entry, p + ENTRY_SIZE + name, extra);
}

static int compare_names(const void *a, const void *b)
{
    const zip_entry *x = a, *y = b;
    size_t n = x->name_length < y->name_length ? x->name_length : y->name_length;
    int order = memcmp(x->name, y->name, n);
    return order ? order : (x->name_length > y->name_length) - (x->name_length < y->name_length);
}

static mar_status read_entries(zip_directory *zip, uint64_t offset, uint64_t size, uint64_t count, mar_err *err)
{
    const uint8_t *at = zip->data + offset, *end = at + size;
    for (uint64_t i = 0; i < count; i++)
        if (!read_entry(&at, end, &zip->entries[zip->count++]))
            return err_set(err, MAR_EFORMAT, "%s: entry %llu of the zip directory is malformed", zip->path,
                           (unsigned long long)i);
    qsort(zip->entries, zip->count, sizeof *zip->entries, compare_names);
    for (size_t i = 1; i < zip->count; i++)
        if (compare_names(&zip->entries[i - 1], &zip->entries[i]) == 0)
            return err_set(err, MAR_EFORMAT, "%s: \"%.*s\" is twice in the zip file", zip->path,
                           (int)zip->entries[i].name_length, zip->entries[i].name);
    return MAR_OK;
}

mar_status zip_open(const char *path, const uint8_t *data, uint64_t size, zip_directory *out, mar_err *err)
{
    uint64_t offset = 0, directory_size = 0, count = 0;
    *out = (zip_directory){.path = path, .data = data, .size = size};
    mar_status status = find_directory(out, &offset, &directory_size, &count, err);
    if (status != MAR_OK) return status;
    out->entries = calloc(count + 1, sizeof *out->entries);
    if (!out->entries)
        return err_set(err, MAR_ENOMEM, "%s: out of memory for %llu zip entries", path, (unsigned long long)count);
    status = read_entries(out, offset, directory_size, count, err);
    if (status != MAR_OK) zip_close(out);
    return status;
}

void zip_close(zip_directory *zip)
{
    free(zip->entries);
    zip->entries = NULL;
    zip->count = 0;
}

const zip_entry *zip_find(const zip_directory *zip, const char *name, size_t name_length)
{
    zip_entry key = {.name = name, .name_length = name_length};
    return bsearch(&key, zip->entries, zip->count, sizeof key, compare_names);
}

mar_status zip_contents(const zip_directory *zip, const zip_entry *entry, const uint8_t **out, mar_err *err)
{
    int length = (int)entry->name_length;
    if (entry->flags & FLAG_ENCRYPTED)
        return err_set(err, MAR_EFORMAT, "%s: \"%.*s\" is encrypted", zip->path, length, entry->name);
    if (entry->method != 0 || entry->packed != entry->size)
        return err_set(err, MAR_EFORMAT, "%s: \"%.*s\" is compressed, expected a file as torch.save writes it (stored)",
                       zip->path, length, entry->name);
    if (entry->header > zip->size || zip->size - entry->header < LOCAL_SIZE ||
        wt_le32(zip->data + entry->header) != local_magic)
        return err_set(err, MAR_EFORMAT, "%s: \"%.*s\" has no zip header at byte %llu", zip->path, length, entry->name,
                       (unsigned long long)entry->header);
    const uint8_t *p = zip->data + entry->header;
    uint64_t skip = LOCAL_SIZE + (uint64_t)wt_le16(p + 26) + wt_le16(p + 28), room = zip->size - entry->header;
    if (skip > room || entry->size > room - skip)
        return err_set(err, MAR_EFORMAT, "%s: the %llu bytes of \"%.*s\" reach past the end of the file", zip->path,
                       (unsigned long long)entry->size, length, entry->name);
    *out = p + skip;
    return MAR_OK;
}
