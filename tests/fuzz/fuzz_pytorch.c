/* PyTorch's files. The mutator takes a zip archive apart, and changes the operations of its pickle, or its entries.
 * It puts the archive together again with a right directory and right checksums, or with one error. In a file from
 * before PyTorch 1.6 it changes the operations of the object's pickle, or the bytes after it. */
#include "tests/fuzz/archives.h"
#include "tests/fuzz/pickles.h"

#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    fuzz_check_checkpoint(data, size);
    return 0;
}

enum { PART_SIZE = 6 * 1024, STORAGE_SIZE = 512 };

/* --- the mutator ------------------------------------------------------------------------------------------- */

static void mutate_name(archive_part *e, fuzz_random *r)
{
    static const char *const names[] = {"archive/data.pkl", "archive/data/0",  "archive/data/1",
                                        "archive/data/2",   "archive/version", "archive/byteorder",
                                        "other/data.pkl",   "data.pkl",        ""};
    if (fuzz_one_in(r, 2)) {
        e->name_length = LLVMFuzzerMutate((uint8_t *)e->name, e->name_length, ARCHIVE_NAME);
        return;
    }
    const char *name = names[fuzz_next(r, sizeof names / sizeof *names)];
    e->name_length = strlen(name);
    memcpy(e->name, name, e->name_length);
}

static void mutate_part(archive *a, archive_part *e, fuzz_random *r)
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
        if (a->count < ARCHIVE_PARTS) a->parts[a->count++] = *e;
        if (fuzz_one_in(r, 2)) mutate_name(&a->parts[a->count - 1], r);
        break;
    case 7:
        archive_add(a, "archive/byteorder", (const uint8_t *)order, strlen(order));
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
    archive_part *e = &a->parts[fuzz_next(r, (uint32_t)a->count)];
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
    archive_add(a, "archive/data.pkl", pickle, out.size);
    if (fuzz_one_in(r, 4)) archive_add(a, "archive/byteorder", (const uint8_t *)"little", 6);
    for (int i = 0; i < 3; i++) archive_add(a, names[i], storage, bytes[i] < STORAGE_SIZE ? bytes[i] : STORAGE_SIZE);
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

/* Returns where the pickle after the one at `from` begins, or `size`. */
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
        fuzz_le(out, fuzz_perhaps(r, (uint64_t)numel[i]), 8);
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
    archive_read(&a, data, size);
    if (a.count == 0 || fuzz_one_in(&r, 12)) generate_archive(&a, &r);
    if (!fuzz_one_in(&r, 12)) mutate_archive(&a, &r);
    archive_write(&a, &r, &out);
    if (out.full) return LLVMFuzzerMutate(data, size, max_size);
    memcpy(data, made, out.size);
    return out.size;
}
