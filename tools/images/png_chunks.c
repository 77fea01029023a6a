#include "tools/images/png_chunks.h"

#include "tools/cli/text.h"
#include "tools/images/kind.h"

#include <stdlib.h>
#include <string.h>

#include <zlib.h>

/* --- chunks ------------------------------------------------------------------------------------------------------- */

enum { SIGNATURE = 8, CHUNK_FRAME = 12, HEADER = 13 };

typedef struct {
    const uint8_t *name; /* [4] */
    const uint8_t *data; /* [size] */
    size_t size;
} chunk;

static uint32_t be32(const uint8_t *p)
{
    return (uint32_t)p[0] << 24 | (uint32_t)p[1] << 16 | (uint32_t)p[2] << 8 | p[3];
}

/* Sets *out to the chunk at *at, and moves *at behind it. Returns 0 if none lies there whole. */
static int next_chunk(const uint8_t *data, size_t size, size_t *at, chunk *out)
{
    if (size - *at < CHUNK_FRAME) return 0;
    const uint8_t *p = data + *at;
    *out = (chunk){p + 4, p + 8, be32(p)};
    if (out->size > size - *at - CHUNK_FRAME) return 0;
    *at += CHUNK_FRAME + out->size;
    return 1;
}

static int is_named(const chunk *c, const char *name)
{
    return memcmp(c->name, name, 4) == 0;
}

static int has_checksum(const chunk *c)
{
    return crc32_z(0, c->name, c->size + 4) == be32(c->data + c->size);
}

static int refuse_end(char *why)
{
    return text_fail(why, IMAGE_WHY_MAX, "is not a whole PNG (it ends too early)");
}

static int refuse_checksum(char *why)
{
    return text_fail(why, IMAGE_WHY_MAX, "is not a whole PNG (a checksum is wrong)");
}

int image_png_size(const uint8_t *data, size_t size, png_frame *out, char why[IMAGE_WHY_MAX])
{
    size_t at = SIGNATURE;
    chunk c;
    if (memcmp(data, IMAGE_PNG_SIGNATURE, size < SIGNATURE ? size : SIGNATURE) != 0)
        return image_refuse_kind(data, size, "a PNG", why);
    if (size < SIGNATURE || !next_chunk(data, size, &at, &c)) return refuse_end(why);
    if (!is_named(&c, "IHDR") || c.size != HEADER)
        return text_fail(why, IMAGE_WHY_MAX, "is not a whole PNG (it does not begin with its size)");
    *out = (png_frame){be32(c.data), be32(c.data + 4), 0};
    return has_checksum(&c) ? 0 : refuse_checksum(why);
}

int image_png_check(const uint8_t *data, size_t size, png_frame *out, char why[IMAGE_WHY_MAX])
{
    size_t at = SIGNATURE;
    chunk c;
    if (image_png_size(data, size, out, why) != 0) return 1;
    while (next_chunk(data, size, &at, &c)) {
        if (!has_checksum(&c)) return refuse_checksum(why);
        if (is_named(&c, "IDAT")) out->pixel_bytes += c.size;
        if (is_named(&c, "IEND")) return 0;
    }
    return refuse_end(why);
}

/* --- texts -------------------------------------------------------------------------------------------------------- */

/* Moves the chunk's beginning behind its first NUL. Returns the bytes before it, or NULL without a NUL. */
static const char *png_chunks_take_string(chunk *c)
{
    const uint8_t *end = memchr(c->data, 0, c->size);
    const char *text = (const char *)c->data;
    if (!end) return NULL;
    c->size -= (size_t)(end + 1 - c->data);
    c->data = end + 1;
    return text;
}

/* Moves the chunk's beginning behind the key and what is between key and value. Returns the key, of 1..79 bytes, or
 * NULL if they are damaged. *packed: 1 if the value is compressed. */
static const char *take_key(chunk *c, int *packed)
{
    const int is_international = is_named(c, "iTXt");
    const size_t marks = is_international ? 2 : is_named(c, "zTXt") ? 1 : 0; /* bytes: compressed or not, and method */
    const char *key = png_chunks_take_string(c);
    if (!key || !*key || strlen(key) > 79 || c->size < marks) return NULL;
    const uint8_t *mark = c->data;
    *packed = is_international ? mark[0] : marks > 0;
    if (marks > 0 && (*packed > 1 || mark[marks - 1] != 0)) return NULL; /* method 0 is zlib's; there is no other */
    c->data += marks;
    c->size -= marks;
    return is_international && (!png_chunks_take_string(c) || !png_chunks_take_string(c))
               ? NULL
               : key; /* language, translated key */
}

static const char no_memory[] = "out of memory", damaged[] = "has a damaged text",
                  too_large[] = "has texts of more than 8 MB together, decompressed";

/* Inflates the chunk to *out, of *size bytes and a NUL, at most `most`. Returns NULL, or the reason. The caller frees
 * *out. */
static const char *inflate_value(z_stream *z, const chunk *c, size_t most, char **out, size_t *size)
{
    size_t capacity = 0;
    int result = Z_OK;
    z->next_in = (Bytef *)(uintptr_t)c->data; /* zlib only reads it */
    z->avail_in = (uInt)c->size;
    while (result == Z_OK && z->total_out == capacity) {
        if (capacity > most) return too_large;
        const size_t wanted = 4 * capacity + 1024;
        const size_t grown = wanted < most + 1 ? wanted : most + 1; /* the last byte shows that it has more */
        char *larger = realloc(*out, grown + 1);
        if (!larger) return no_memory;
        *out = larger;
        z->next_out = (Bytef *)larger + capacity;
        z->avail_out = (uInt)(grown - capacity);
        capacity = grown;
        result = inflate(z, Z_NO_FLUSH);
    }
    if (result == Z_MEM_ERROR) return no_memory;
    if (result != Z_STREAM_END) return damaged;
    *size = z->total_out;
    (*out)[*size] = '\0';
    return *size > most ? too_large : NULL;
}

/* Copies the value of a text to *out, as inflate_value does. */
static const char *copy_value(const chunk *c, int packed, size_t most, char **out, size_t *size)
{
    z_stream z = {0};
    if (packed) {
        if (inflateInit(&z) != Z_OK) return no_memory;
        const char *failed = inflate_value(&z, c, most, out, size);
        inflateEnd(&z);
        return failed;
    }
    *size = c->size;
    if (*size > most) return too_large;
    *out = malloc(*size + 1);
    if (!*out) return no_memory;
    memcpy(*out, c->data, *size);
    (*out)[*size] = '\0';
    return NULL;
}

/* Adds the text of a chunk. *left: bytes that it and all further values may have. Returns NULL, or the reason. */
static const char *png_chunks_add_text(chunk c, size_t *left, image_file *out)
{
    int packed = 0;
    size_t size = 0;
    char *value = NULL;
    if (out->count == PNG_TEXTS_MAX) return "has more than 1000 texts";
    const char *key = take_key(&c, &packed);
    if (!key) return damaged;
    const char *failed = copy_value(&c, packed, *left, &value, &size);
    char *name = strdup(key);
    out->texts[out->count++] = (image_text){name, value}; /* image_file_free frees a part of one, too */
    if (failed) return failed;
    *left -= size;
    return !name ? no_memory : strlen(value) != size ? damaged : NULL;
}

int image_png_texts(const uint8_t *data, size_t size, image_file *out, char why[IMAGE_WHY_MAX])
{
    size_t at = SIGNATURE, left = PNG_TEXTS_BYTES_MAX;
    chunk c;
    const char *failed;
    out->texts = calloc(PNG_TEXTS_MAX, sizeof *out->texts);
    if (!out->texts) return text_fail(why, IMAGE_WHY_MAX, "out of memory");
    while (next_chunk(data, size, &at, &c) && !is_named(&c, "IEND"))
        if ((is_named(&c, "tEXt") || is_named(&c, "zTXt") || is_named(&c, "iTXt")) &&
            (failed = png_chunks_add_text(c, &left, out)) != NULL)
            return text_fail(why, IMAGE_WHY_MAX, "%s", failed);
    return 0;
}
