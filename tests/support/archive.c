#include "tests/support/archive.h"
#include "tests/support/support.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

void bytes_put(bytes *b, const void *data, size_t size)
{
    if (size > b->capacity - b->size) {
        b->capacity = 2 * (b->size + size) + 64;
        b->data = realloc(b->data, b->capacity);
        assert_non_null(b->data);
    }
    if (size) memcpy(b->data + b->size, data, size);
    b->size += size;
}

void bytes_text(bytes *b, const char *text)
{
    bytes_put(b, text, strlen(text));
}

void bytes_number(bytes *b, uint64_t value, int width)
{
    for (int i = 0; i < width; i++) {
        uint8_t byte = i < 8 ? (uint8_t)(value >> 8 * i) : 0;
        bytes_put(b, &byte, 1);
    }
}

void bytes_free(bytes *b)
{
    free(b->data);
    *b = (bytes){0};
}

void bytes_to_file(const bytes *b, const char *path)
{
    FILE *f = fopen(path, "wb");
    if (!f || (b->size && fwrite(b->data, 1, b->size, f) != b->size) || fclose(f) != 0)
        fail_msg("%s: cannot write", path);
}

bytes bytes_from_file(const char *path)
{
    bytes b = {0};
    uint8_t chunk[4096];
    FILE *file = fopen(path, "rb");
    if (!file) fail_msg("%s: cannot open", path);
    for (size_t n; (n = fread(chunk, 1, sizeof chunk, file)) > 0;) bytes_put(&b, chunk, n);
    fclose(file);
    return b;
}

static void put_pattern(bytes *b, size_t size)
{
    for (size_t i = 0; i < size; i++) bytes_number(b, i & 0xff, 1);
}

bytes make_safetensors(const char *header, size_t data_size)
{
    bytes b = {0};
    bytes_number(&b, strlen(header), 8);
    bytes_text(&b, header);
    put_pattern(&b, data_size);
    return b;
}

/* --- zip ---------------------------------------------------------------------------------------------------------- */

/* Writes a local header as PyTorch does: sizes only in the directory, padding in the extra field. */
static void put_local(bytes *b, const zip_part *part)
{
    bytes_number(b, 0x04034b50, 4);
    bytes_number(b, 0, 2);
    bytes_number(b, (uint64_t)part->flags, 2);
    bytes_number(b, (uint64_t)part->method, 2);
    bytes_number(b, 0, 4);
    bytes_number(b, 0, 4 + 4 + 4); /* CRC and sizes: later, in the directory */
    bytes_number(b, strlen(part->name), 2);
    bytes_number(b, 8, 2);
    bytes_text(b, part->name);
    bytes_text(b, "FB");
    bytes_number(b, 4, 2);
    bytes_text(b, "ZZZZ");
    bytes_put(b, part->data, part->size);
}

static void put_entry(bytes *b, const zip_part *part, uint64_t offset, int zip64)
{
    bytes_number(b, 0x02014b50, 4);
    bytes_number(b, 0, 4);
    bytes_number(b, (uint64_t)part->flags, 2);
    bytes_number(b, (uint64_t)part->method, 2);
    bytes_number(b, 0, 4); /* time */
    bytes_number(b, part->crc, 4);
    bytes_number(b, zip64 ? UINT32_MAX : part->size, 4);
    bytes_number(b, zip64 ? UINT32_MAX : part->size, 4);
    bytes_number(b, strlen(part->name), 2);
    bytes_number(b, zip64 ? 6 + 28 : 0, 2);
    bytes_number(b, 0, 2 + 2 + 2 + 4);
    bytes_number(b, zip64 ? UINT32_MAX : offset, 4);
    bytes_text(b, part->name);
    if (!zip64) return;
    bytes_number(b, 0x4242, 2); /* a field of another kind first */
    bytes_number(b, 2, 2);
    bytes_number(b, 0, 2);
    bytes_number(b, 1, 2);
    bytes_number(b, 24, 2);
    bytes_number(b, part->size, 8);
    bytes_number(b, part->size, 8);
    bytes_number(b, offset, 8);
}

/* Writes the end records of a directory of `size` bytes at `offset`. */
static void put_end(bytes *b, int count, uint64_t offset, uint64_t size, int zip64)
{
    if (zip64) {
        bytes_number(b, 0x06064b50, 4);
        bytes_number(b, 44, 8);
        bytes_number(b, 0, 2 + 2 + 4 + 4);
        bytes_number(b, (uint64_t)count, 8);
        bytes_number(b, (uint64_t)count, 8);
        bytes_number(b, size, 8);
        bytes_number(b, offset, 8);
        bytes_number(b, 0x07064b50, 4);
        bytes_number(b, 0, 4);
        bytes_number(b, offset + size, 8);
        bytes_number(b, 1, 4);
    }
    bytes_number(b, 0x06054b50, 4);
    bytes_number(b, 0, 4);
    bytes_number(b, zip64 ? UINT16_MAX : (uint64_t)count, 2);
    bytes_number(b, zip64 ? UINT16_MAX : (uint64_t)count, 2);
    bytes_number(b, zip64 ? UINT32_MAX : size, 4);
    bytes_number(b, zip64 ? UINT32_MAX : offset, 4);
    bytes_number(b, 0, 2);
}

/* Writes local parts, then directory and end. Offsets from part `sparse` on are `shift` bytes larger. */
static bytes build(const zip_part *parts, int count, int zip64, int sparse, uint64_t shift, size_t *sparse_at)
{
    bytes b = {0}, directory = {0};
    for (int i = 0; i < count; i++) {
        if (i == sparse) *sparse_at = b.size;
        put_entry(&directory, &parts[i], b.size + (i >= sparse ? shift : 0), zip64);
        put_local(&b, &parts[i]);
    }
    uint64_t offset = b.size + shift;
    bytes_put(&b, directory.data, directory.size);
    put_end(&b, count, offset, directory.size, zip64);
    bytes_free(&directory);
    return b;
}

bytes make_zip(const zip_part *parts, int count, int zip64)
{
    size_t unused;
    return build(parts, count, zip64, count, 0, &unused);
}

void write_sparse_zip(const char *path, const zip_part *parts, int count, uint64_t last_offset)
{
    size_t at = 0;
    bytes before = {0};
    for (int i = 0; i < count - 1; i++) put_local(&before, &parts[i]);
    bytes b = build(parts, count, 1, count - 1, last_offset - before.size, &at);
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    fwrite(b.data, 1, at, file);
    assert_int_equal(fseeko(file, (off_t)last_offset, SEEK_SET), 0);
    fwrite(b.data + at, 1, b.size - at, file);
    assert_int_equal(fclose(file), 0);
    bytes_free(&before);
    bytes_free(&b);
}

bytes make_torch(const void *pickle, size_t pickle_size, size_t storage_size)
{
    bytes storage = {0};
    put_pattern(&storage, storage_size);
    const zip_part parts[] = {
        {.name = "archive/data.pkl", .data = pickle, .size = pickle_size},
        {.name = "archive/data/0", .data = storage.data, .size = storage_size},
    };
    bytes b = make_zip(parts, 2, 0);
    bytes_free(&storage);
    return b;
}

/* --- memory with a guard ------------------------------------------------------------------------------------------ */

static size_t guarded_pages(size_t size)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    return (size + page - 1) / page * page;
}

const uint8_t *guarded_copy(const void *data, size_t size)
{
    size_t room = guarded_pages(size), page = (size_t)sysconf(_SC_PAGESIZE);
    uint8_t *map = mmap(NULL, room + page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_true(map != MAP_FAILED);
    assert_int_equal(mprotect(map + room, page, PROT_NONE), 0);
    if (size) memcpy(map + room - size, data, size);
    return map + room - size;
}

void guarded_free(const uint8_t *copy, size_t size)
{
    size_t room = guarded_pages(size), page = (size_t)sysconf(_SC_PAGESIZE);
    munmap((void *)(uintptr_t)(copy + size - room), room + page);
}
