/* PyTorch's files. The mutator takes a zip archive apart, changes the operations of its pickle, or its entries, and
 * puts it together again with a right directory and right checksums, or with one thing wrong. Of a file from before
 * PyTorch 1.6 it changes the operations of the object's pickle, or what follows it. */
#include "tests/fuzz/pickles.h"

#include "weights/number.h"

#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    fuzz_check_checkpoint(data, size);
    return 0;
}

/* --- archives ---------------------------------------------------------------------------------------------- */

enum { PARTS = 12, NAME_SIZE = 64, PART_SIZE = 6 * 1024, STORAGE_SIZE = 512 };

typedef struct {
    char name[NAME_SIZE]; /* [name_length] */
    size_t name_length;
    const uint8_t *data; /* [size], not owned */
    size_t size;
    int method, flags;
} part;

typedef struct {
    part parts[PARTS]; /* [count] */
    int count;
    int zip64;      /* sizes and offsets in ZIP64 records */
    int descriptor; /* sizes and checksums behind the data */
} archive;

/* Takes apart what the mutator itself has made, and torch.save: plain entries, found by the directory. */
static void read_archive(archive *a, const uint8_t *data, size_t size)
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
    while (a->count < PARTS && at <= end && end - at >= 46 && wt_le32(data + at) == 0x02014b50) {
        const uint8_t *p = data + at;
        const size_t name = wt_le16(p + 28), extra = wt_le16(p + 30);
        uint64_t bytes = wt_le32(p + 24), header = wt_le32(p + 42);
        if (end - at < 46 + name + extra || name > NAME_SIZE) return;
        if (header == UINT32_MAX && extra >= 28) {
            bytes = wt_le64(p + 46 + name + extra - 24);
            header = wt_le64(p + 46 + name + extra - 8);
        }
        if (header > size || size - header < 30) return;
        const uint64_t begin = header + 30 + wt_le16(data + header + 26) + wt_le16(data + header + 28);
        if (begin > size || bytes > size - begin) return;
        part *e = &a->parts[a->count++];
        *e = (part){.name_length = name,
                    .data = data + begin,
                    .size = bytes,
                    .method = wt_le16(p + 10),
                    .flags = wt_le16(p + 8)};
        memcpy(e->name, p + 46, name);
        at += 46 + name + extra + wt_le16(p + 32);
    }
}

static uint32_t crc32_of(const uint8_t *data, size_t size)
{
    uint32_t crc = UINT32_MAX;
    for (size_t i = 0; i < size; i++) {
        crc ^= data[i];
        for (int bit = 0; bit < 8; bit++) crc = crc >> 1 ^ (crc & 1 ? 0xedb88320u : 0);
    }
    return ~crc;
}

/* `value`, or once in a while another. */
static uint64_t perhaps(fuzz_random *r, uint64_t value)
{
    return fuzz_one_in(r, 1500) ? fuzz_number(r) : value;
}

static void put_local(const archive *a, const part *e, fuzz_random *r, fuzz_bytes *out)
{
    const uint32_t crc = crc32_of(e->data, e->size);
    const size_t header = 30 + e->name_length + 4,
                 padding = fuzz_one_in(r, 2) ? 0 : (64 - (out->size + header) % 64) % 64;
    fuzz_le(out, perhaps(r, 0x04034b50), 4);
    fuzz_le(out, 0, 2);
    fuzz_le(out, (uint64_t)e->flags | (a->descriptor ? 8 : 0), 2);
    fuzz_le(out, (uint64_t)e->method, 2);
    fuzz_le(out, 0, 4);
    fuzz_le(out, a->descriptor ? 0 : crc, 4);
    fuzz_le(out, a->descriptor ? 0 : e->size, 4);
    fuzz_le(out, a->descriptor ? 0 : e->size, 4);
    fuzz_le(out, perhaps(r, e->name_length), 2);
    fuzz_le(out, perhaps(r, padding + 4), 2);
    fuzz_put(out, e->name, e->name_length);
    fuzz_text(out, "FB");
    fuzz_le(out, padding, 2);
    for (size_t i = 0; i < padding; i++) fuzz_le(out, 'Z', 1);
    fuzz_put(out, e->data, e->size);
    if (!a->descriptor) return;
    fuzz_le(out, 0x08074b50, 4);
    fuzz_le(out, crc, 4);
    fuzz_le(out, e->size, a->zip64 ? 8 : 4);
    fuzz_le(out, e->size, a->zip64 ? 8 : 4);
}

static void put_entry(const archive *a, const part *e, size_t offset, fuzz_random *r, fuzz_bytes *out)
{
    fuzz_le(out, perhaps(r, 0x02014b50), 4);
    fuzz_le(out, 0, 4);
    fuzz_le(out, (uint64_t)e->flags | (a->descriptor ? 8 : 0), 2);
    fuzz_le(out, (uint64_t)e->method, 2);
    fuzz_le(out, 0, 4);
    fuzz_le(out, crc32_of(e->data, e->size), 4);
    fuzz_le(out, a->zip64 ? UINT32_MAX : perhaps(r, e->size), 4);
    fuzz_le(out, a->zip64 ? UINT32_MAX : perhaps(r, e->size), 4);
    fuzz_le(out, perhaps(r, e->name_length), 2);
    fuzz_le(out, perhaps(r, a->zip64 ? 28 : 0), 2);
    fuzz_le(out, perhaps(r, 0), 2);
    fuzz_le(out, 0, 2 + 2 + 4);
    fuzz_le(out, a->zip64 ? UINT32_MAX : perhaps(r, offset), 4);
    fuzz_put(out, e->name, e->name_length);
    if (!a->zip64) return;
    fuzz_le(out, perhaps(r, 1), 2);
    fuzz_le(out, perhaps(r, 24), 2);
    fuzz_le(out, perhaps(r, e->size), 8);
    fuzz_le(out, perhaps(r, e->size), 8);
    fuzz_le(out, perhaps(r, offset), 8);
}

static void put_end(const archive *a, size_t offset, size_t size, fuzz_random *r, fuzz_bytes *out)
{
    const uint64_t count = (uint64_t)a->count;
    if (a->zip64) {
        const size_t at = out->size;
        fuzz_le(out, perhaps(r, 0x06064b50), 4);
        fuzz_le(out, 44, 8);
        fuzz_le(out, 0, 2 + 2 + 4 + 4);
        fuzz_le(out, perhaps(r, count), 8);
        fuzz_le(out, perhaps(r, count), 8);
        fuzz_le(out, perhaps(r, size), 8);
        fuzz_le(out, perhaps(r, offset), 8);
        fuzz_le(out, perhaps(r, 0x07064b50), 4);
        fuzz_le(out, 0, 4);
        fuzz_le(out, perhaps(r, at), 8);
        fuzz_le(out, 1, 4);
    }
    fuzz_le(out, 0x06054b50, 4);
    fuzz_le(out, 0, 4);
    fuzz_le(out, a->zip64 ? UINT16_MAX : perhaps(r, count), 2);
    fuzz_le(out, a->zip64 ? UINT16_MAX : perhaps(r, count), 2);
    fuzz_le(out, a->zip64 ? UINT32_MAX : perhaps(r, size), 4);
    fuzz_le(out, a->zip64 ? UINT32_MAX : perhaps(r, offset), 4);
    const uint64_t comment = fuzz_one_in(r, 64) ? fuzz_next(r, 30) : 0;
    fuzz_le(out, comment, 2);
    for (uint64_t i = 0; i < comment; i++) fuzz_le(out, 'c', 1);
}

static void put_archive(const archive *a, fuzz_random *r, fuzz_bytes *out)
{
    size_t offsets[PARTS];
    for (int i = 0; i < a->count; i++) {
        offsets[i] = out->size;
        put_local(a, &a->parts[i], r, out);
    }
    const size_t directory = out->size;
    for (int i = 0; i < a->count; i++) put_entry(a, &a->parts[i], offsets[i], r, out);
    put_end(a, directory, out->size - directory, r, out);
}

/* --- the mutator ------------------------------------------------------------------------------------------- */

static part *add_part(archive *a, const char *name, const uint8_t *data, size_t size)
{
    if (a->count == PARTS) return NULL;
    part *e = &a->parts[a->count++];
    *e = (part){.name_length = strlen(name), .data = data, .size = size};
    memcpy(e->name, name, e->name_length);
    return e;
}

static void mutate_name(part *e, fuzz_random *r)
{
    static const char *const names[] = {"archive/data.pkl", "archive/data/0",  "archive/data/1",
                                        "archive/data/2",   "archive/version", "archive/byteorder",
                                        "other/data.pkl",   "data.pkl",        ""};
    if (fuzz_one_in(r, 2)) {
        e->name_length = LLVMFuzzerMutate((uint8_t *)e->name, e->name_length, NAME_SIZE);
        return;
    }
    const char *name = names[fuzz_next(r, sizeof names / sizeof *names)];
    e->name_length = strlen(name);
    memcpy(e->name, name, e->name_length);
}

static void mutate_part(archive *a, part *e, fuzz_random *r)
{
    static uint8_t contents[STORAGE_SIZE];
    static const char *const orders[] = {"little", "big", "", "littlelittlelittle"};
    const char *order = orders[fuzz_next(r, 4)];
    switch (fuzz_next(r, 9)) {
    case 0:
        mutate_name(e, r);
        break;
    case 1:
        e->size = fuzz_next(r, (uint32_t)e->size + 1); /* cut */
        break;
    case 2:
        for (size_t i = 0; i < STORAGE_SIZE; i++) contents[i] = (uint8_t)(i * 37);
        e->data = contents;
        e->size = fuzz_next(r, STORAGE_SIZE);
        break;
    case 3:
        if (e->size > STORAGE_SIZE) break;
        memcpy(contents, e->data, e->size);
        e->size = LLVMFuzzerMutate(contents, e->size, STORAGE_SIZE);
        e->data = contents;
        break;
    case 4:
        e->method = fuzz_one_in(r, 2) ? 0 : (int)fuzz_next(r, 10);
        e->flags = fuzz_one_in(r, 2) ? 0 : (int)fuzz_next(r, 16);
        break;
    case 5:
        *e = a->parts[--a->count];
        break;
    case 6:
        if (a->count < PARTS) a->parts[a->count++] = *e;
        if (fuzz_one_in(r, 2)) mutate_name(&a->parts[a->count - 1], r);
        break;
    case 7:
        add_part(a, "archive/byteorder", (const uint8_t *)order, strlen(order));
        break;
    default:
        if (fuzz_one_in(r, 2))
            a->zip64 = !a->zip64;
        else
            a->descriptor = !a->descriptor;
    }
}

static void mutate_archive(archive *a, fuzz_random *r)
{
    static pickle_program program;
    static uint8_t pickle[PART_SIZE];
    part *e = &a->parts[fuzz_next(r, (uint32_t)a->count)];
    for (int i = 0; i < a->count && !fuzz_one_in(r, 4); i++) /* the pickle, mostly */
        if (a->parts[i].name_length >= 8 && memcmp(a->parts[i].name + a->parts[i].name_length - 8, "data.pkl", 8) == 0)
            e = &a->parts[i];
    if (fuzz_one_in(r, 4) || e->name_length < 8 || memcmp(e->name + e->name_length - 8, "data.pkl", 8) != 0) {
        mutate_part(a, e, r);
        return;
    }
    pickle_read(&program, e->data, e->size);
    pickle_mutate(&program, r);
    fuzz_bytes out = {.data = pickle, .capacity = sizeof pickle};
    pickle_write(&program, r, &out);
    e->data = pickle;
    e->size = out.size;
}

static void generate_archive(archive *a, fuzz_random *r)
{
    static pickle_program program;
    static uint8_t pickle[PART_SIZE], storage[STORAGE_SIZE];
    static const char *const names[] = {"archive/data/0", "archive/data/1", "archive/data/2"};
    size_t bytes[3];
    int numel[3];
    fuzz_bytes out = {.data = pickle, .capacity = sizeof pickle};
    pickle_generate(&program, r, bytes, numel);
    pickle_write(&program, r, &out);
    *a = (archive){.zip64 = fuzz_one_in(r, 4), .descriptor = fuzz_one_in(r, 4)};
    for (size_t i = 0; i < STORAGE_SIZE; i++) storage[i] = (uint8_t)fuzz_next(r, 256);
    add_part(a, "archive/data.pkl", pickle, out.size);
    if (fuzz_one_in(r, 4)) add_part(a, "archive/byteorder", (const uint8_t *)"little", 6);
    for (int i = 0; i < 3; i++) add_part(a, names[i], storage, bytes[i] < STORAGE_SIZE ? bytes[i] : STORAGE_SIZE);
}

/* --- files from before PyTorch 1.6 ---------------------------------------------------------------------------- */

static const uint8_t legacy_head[] = "\x80\2\x8a\n\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19." /* the magic number */
                                     "\x80\2M\xe9\3."                                        /* version 1001 */
                                     "\x80\2}X\r\0\0\0little_endian\x88s.";
enum { LEGACY_HEAD = sizeof legacy_head - 1, LEGACY_MAGIC = 15 };

static int is_legacy(const uint8_t *data, size_t size)
{
    return size > LEGACY_MAGIC && memcmp(data, legacy_head, LEGACY_MAGIC) == 0;
}

/* Where the pickle after the one at `from` begins, or `size`. */
static size_t next_pickle(const uint8_t *data, size_t size, size_t from)
{
    for (size_t i = from; i + 1 < size; i++)
        if (data[i] == '.' && data[i + 1] == 0x80) return i + 1;
    return size;
}

static void generate_legacy(fuzz_random *r, fuzz_bytes *out)
{
    static pickle_program program;
    size_t bytes[3];
    int numel[3];
    pickle_generate(&program, r, bytes, numel);
    fuzz_put(out, legacy_head, LEGACY_HEAD);
    pickle_write(&program, r, out);
    fuzz_put(out, "\x80\2]", 3);
    for (int i = 0; i < 3; i++) {
        if (numel[i] < 0) continue;
        const uint8_t name[] = {'X', 1, 0, 0, 0, (uint8_t)('0' + i), 'a'};
        fuzz_put(out, name, sizeof name);
    }
    fuzz_put(out, ".", 1);
    for (int i = 0; i < 3; i++) {
        if (numel[i] < 0) continue;
        fuzz_le(out, perhaps(r, (uint64_t)numel[i]), 8);
        for (size_t k = 0; k < bytes[i]; k++) fuzz_le(out, fuzz_next(r, 256), 1);
    }
}

static void mutate_legacy(const uint8_t *data, size_t size, fuzz_random *r, fuzz_bytes *out)
{
    static pickle_program program;
    static uint8_t tail[PART_SIZE];
    size_t object = 0;
    for (int i = 0; i < 3; i++) object = next_pickle(data, size, object);
    const size_t names = next_pickle(data, size, object);
    if (names == size || fuzz_one_in(r, 12)) {
        generate_legacy(r, out);
        return;
    }
    fuzz_put(out, data, object);
    if (fuzz_one_in(r, 4) && size - names <= sizeof tail) {
        memcpy(tail, data + names, size - names);
        fuzz_put(out, data + object, names - object);
        fuzz_put(out, tail, LLVMFuzzerMutate(tail, size - names, sizeof tail));
        return;
    }
    pickle_read(&program, data + object, names - object);
    pickle_mutate(&program, r);
    pickle_write(&program, r, out);
    fuzz_put(out, data + names, size - names);
}

size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t max_size, unsigned seed)
{
    static uint8_t made[32 * 1024];
    static archive a;
    fuzz_random r = {seed};
    fuzz_next(&r, 1);
    if (fuzz_plain_wanted(&r)) return LLVMFuzzerMutate(data, size, max_size);
    fuzz_bytes out = {.data = made, .capacity = max_size < sizeof made ? max_size : sizeof made};
    if (is_legacy(data, size)) {
        mutate_legacy(data, size, &r, &out);
        if (out.full) return LLVMFuzzerMutate(data, size, max_size);
        memcpy(data, made, out.size);
        return out.size;
    }
    read_archive(&a, data, size);
    if (a.count == 0 || fuzz_one_in(&r, 12)) generate_archive(&a, &r);
    if (!fuzz_one_in(&r, 12)) mutate_archive(&a, &r);
    put_archive(&a, &r, &out);
    if (out.full) return LLVMFuzzerMutate(data, size, max_size);
    memcpy(data, made, out.size);
    return out.size;
}
