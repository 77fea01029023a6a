/* PNG, with its texts, JPEG and WebP. The mutator changes a PNG chunk by chunk, with right checksums, and a JPEG
 * segment by segment. */
#include "tests/fuzz/fuzz.h"

#include "tools/images/png_chunks.h"
#include "tools/images/source.h"

#include <stdlib.h>
#include <string.h>
#include <zlib.h>

/* Checks that the header has the picture's size, and that the reader of transparency sees the same picture. It alone
 * refuses 16-bit grey. */
static void check_others(const uint8_t *data, size_t size, const image *expected)
{
    char why[IMAGE_WHY_MAX] = "";
    int width, height;
    image same;
    uint8_t *alpha;
    if (image_size(data, size, &width, &height, why) != 0) fuzz_fail("the size: %s", why);
    if (width != expected->width || height != expected->height) fuzz_fail("the header has %dx%d", width, height);
    if (image_decode_alpha(data, size, &same, &alpha, why) != 0) {
        if (!strstr(why, "16-bit grey")) fuzz_fail("with transparency: %s", why);
        return;
    }
    if (memcmp(same.rgb, expected->rgb, (size_t)same.width * (size_t)same.height * 3) != 0) fuzz_fail("other pixels");
    free(same.rgb);
    free(alpha);
}

/* Reads the texts of a whole PNG. */
static void read_texts(const uint8_t *data, size_t size)
{
    char why[IMAGE_WHY_MAX] = "";
    png_frame frame;
    image_file file = {.count = 0};
    size_t bytes = 0;
    if (image_png_check(data, size, &frame, why) != 0) return;
    if (image_png_texts(data, size, &file, why) != 0) fuzz_check_line("image_png_texts", why);
    for (int i = 0; i < file.count && !*why; i++) bytes += strlen(file.texts[i].value);
    if (bytes > PNG_TEXTS_BYTES_MAX) fuzz_fail("%zu bytes of texts", bytes);
    image_file_free(&file);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char why[IMAGE_WHY_MAX] = "", second[IMAGE_WHY_MAX] = "";
    image a, b;
    read_texts(data, size);
    const int failed = image_decode(data, size, &a, why);
    if (image_decode(data, size, &b, second) != failed || strcmp(why, second) != 0)
        fuzz_fail("the second time: \"%s\", the first: \"%s\"", second, why);
    if (failed) {
        fuzz_check_line("image_decode", why);
        if (a.rgb || b.rgb) fuzz_fail("a picture and a failure: %s", why);
        return 0;
    }
    if (a.width < 1 || a.height < 1 || a.width > IMAGE_SIDE_MAX || a.height > IMAGE_SIDE_MAX || a.width != b.width ||
        a.height != b.height)
        fuzz_fail("%dx%d pixels, then %dx%d", a.width, a.height, b.width, b.height);
    if (memcmp(a.rgb, b.rgb, (size_t)a.width * (size_t)a.height * 3) != 0) fuzz_fail("other pixels the second time");
    check_others(data, size, &a);
    free(a.rgb);
    free(b.rgb);
    return 0;
}

/* --- the mutator ------------------------------------------------------------------------------------------- */

enum { CHUNKS = 24, DATA_MAX = 4096, HEADER = 8 };

typedef struct {
    char name[4];
    uint8_t data[DATA_MAX]; /* [size]; IDAT is inflated where possible */
    size_t size;
    int inflated;
} chunk;

static uint32_t be32(const uint8_t *p)
{
    return (uint32_t)p[0] << 24 | (uint32_t)p[1] << 16 | (uint32_t)p[2] << 8 | p[3];
}

static void put_be32(fuzz_bytes *b, uint32_t x)
{
    const uint8_t bytes[4] = {(uint8_t)(x >> 24), (uint8_t)(x >> 16), (uint8_t)(x >> 8), (uint8_t)x};
    fuzz_put(b, bytes, 4);
}

static int read_chunks(chunk *chunks, const uint8_t *data, size_t size)
{
    int n = 0;
    for (size_t at = HEADER; n < CHUNKS && size - at >= 12; n++) {
        chunk *c = &chunks[n];
        const size_t length = be32(data + at);
        if (length > size - at - 12 || length > DATA_MAX) break;
        memcpy(c->name, data + at + 4, 4);
        uLongf room = DATA_MAX;
        c->inflated = memcmp(c->name, "IDAT", 4) == 0 && uncompress(c->data, &room, data + at + 8, length) == Z_OK;
        c->size = c->inflated ? room : length;
        if (!c->inflated) memcpy(c->data, data + at + 8, length);
        at += 12 + length;
    }
    return n;
}

static void write_chunks(const chunk *chunks, int n, fuzz_random *r, fuzz_bytes *out)
{
    static uint8_t packed[2 * DATA_MAX];
    fuzz_put(out, "\x89PNG\r\n\x1a\n", HEADER);
    for (int i = 0; i < n; i++) {
        const chunk *c = &chunks[i];
        const uint8_t *data = c->data;
        uLongf size = c->size;
        if (c->inflated) {
            size = sizeof packed;
            compress2(packed, &size, c->data, c->size, 1 + (int)fuzz_next(r, 9));
            data = packed;
        }
        uLong crc = crc32(crc32(0, (const Bytef *)c->name, 4), data, (uInt)size);
        if (size == 0) crc = crc32(0, (const Bytef *)c->name, 4);
        put_be32(out, (uint32_t)size);
        fuzz_put(out, c->name, 4);
        fuzz_put(out, data, size);
        put_be32(out, (uint32_t)crc ^ (fuzz_one_in(r, 256) ? 1 : 0));
    }
}

static void mutate_header(chunk *c, fuzz_random *r)
{
    static const uint8_t kinds[] = {0, 2, 3, 4, 6, 1}, depths[] = {1, 2, 4, 8, 16, 3};
    if (c->size != 13) return;
    switch (fuzz_next(r, 5)) {
    case 0:
    case 1:
        c->data[fuzz_one_in(r, 2) ? 3 : 7] = (uint8_t)fuzz_next(r, 40);
        break;
    case 2:
        c->data[9] = kinds[fuzz_next(r, 6)];
        c->data[8] = depths[fuzz_next(r, 6)];
        break;
    case 3:
        c->data[12] ^= 1;
        break;
    default:
        c->data[fuzz_next(r, 13)] = (uint8_t)fuzz_next(r, 256);
    }
}

static void mutate_chunks(chunk *chunks, int *n, fuzz_random *r)
{
    static const char *const names[] = {"PLTE", "tRNS", "gAMA", "iCCP", "IDAT", "tEXt",
                                        "sBIT", "zTXt", "bKGD", "eXIf", "pHYs", "IEND"};
    const int i = *n > 0 ? (int)fuzz_next(r, (uint32_t)*n) : 0;
    switch (*n > 0 ? fuzz_next(r, 7) : 6) {
    case 0:
    case 1:
        mutate_header(&chunks[0], r);
        break;
    case 2:
        chunks[i].size = LLVMFuzzerMutate(chunks[i].data, chunks[i].size, DATA_MAX);
        break;
    case 3:
        memcpy(chunks[i].name, names[fuzz_next(r, 12)], 4);
        break;
    case 4:
        memmove(&chunks[i], &chunks[i + 1], (size_t)(--*n - i) * sizeof *chunks);
        break;
    case 5:
        if (i > 0 && i < *n - 1) {
            const chunk other = chunks[i];
            chunks[i] = chunks[i + 1];
            chunks[i + 1] = other;
        }
        break;
    default: /* another chunk before the last */
        if (*n == CHUNKS) break;
        if (*n > 0) chunks[*n] = chunks[*n - 1];
        chunk *c = &chunks[*n > 0 ? *n - 1 : 0];
        memcpy(c->name, names[fuzz_next(r, 12)], 4);
        c->inflated = 0;
        for (c->size = fuzz_next(r, 48); c->size % 3; c->size++) {
        }
        for (size_t k = 0; k < c->size; k++) c->data[k] = (uint8_t)fuzz_next(r, 256);
        ++*n;
    }
}

/* Changes one of the segments before the pixels, or bytes anywhere. */
static size_t mutate_jpeg(uint8_t *data, size_t size, size_t max_size, fuzz_random *r)
{
    size_t at = 2;
    for (uint32_t skip = fuzz_next(r, 8); skip > 0 && size - at >= 4 && data[at] == 0xff && data[at + 1] != 0xda;
         skip--) {
        const size_t length = 2 + ((size_t)data[at + 2] << 8 | data[at + 3]);
        if (length > size - at - 4) break;
        at += length;
    }
    if (size < at + 6 || fuzz_one_in(r, 4)) return LLVMFuzzerMutate(data, size, max_size);
    const size_t room = size - at - 4;
    data[at + 4 + fuzz_next(r, (uint32_t)(room < 20 ? room : 20))] =
        (uint8_t)(fuzz_one_in(r, 2) ? fuzz_number(r) : fuzz_next(r, 256));
    if (fuzz_one_in(r, 8)) data[at + 1] = (uint8_t)(0xc0 + fuzz_next(r, 64));
    return size;
}

size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t max_size, unsigned seed)
{
    static chunk chunks[CHUNKS + 1];
    static uint8_t made[64 * 1024];
    fuzz_random r = {seed};
    fuzz_next(&r, 1);
    if (fuzz_plain_wanted(&r)) return LLVMFuzzerMutate(data, size, max_size);
    if (size > 8 && data[0] == 0xff && data[1] == 0xd8) return mutate_jpeg(data, size, max_size, &r);
    if (size < HEADER + 12 || memcmp(data, "\x89PNG", 4) != 0) return LLVMFuzzerMutate(data, size, max_size);
    int n = read_chunks(chunks, data, size);
    for (uint32_t k = 1 + fuzz_next(&r, 2); k > 0; k--) mutate_chunks(chunks, &n, &r);
    fuzz_bytes out = {.data = made, .capacity = max_size < sizeof made ? max_size : sizeof made};
    write_chunks(chunks, n, &r, &out);
    if (out.full || n == 0) return LLVMFuzzerMutate(data, size, max_size);
    memcpy(data, made, out.size);
    return out.size;
}
