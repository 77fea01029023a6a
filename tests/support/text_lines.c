#include "tests/support/text_lines.h"

#include "tests/support/test.h"
#include "tests/support/archive.h"

#include "text/tokenizer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define COUNT(array) (sizeof(array) / sizeof *(array))

static const char *const words[] = {
    "a",      "the",    "of",       "in",       "with",       "and",      "on",        "corgi",    "snow",  "photo",
    "bold",   "seven",  "red",      "blue",     "cat",        "dog",      "house",     "mountain", "river", "old",
    "young",  "woman",  "man",      "painting", "watercolor", "portrait", "astronaut", "riding",   "horse", "digital",
    "art",    "highly", "detailed", "light",    "sunset",     "city",     "street",    "wooden",   "table", "flower",
    "garden", "small",  "large",    "bright",   "dark",       "green",    "yellow",    "white",    "black", "person's",
    "don't",  "it's",   "we've",    "I'll",     "you're",     "they'd",   "3d",        "4k",       "1920s", "HDR"};

/* First and last code points of the runs from which words are drawn. */
static const unsigned blocks[][2] = {
    {0xA1, 0xFF},       {0x100, 0x17F},     {0x1C4, 0x1CC},     {0x391, 0x3A1},     {0x3A3, 0x3C9},
    {0x410, 0x44F},     {0x531, 0x556},     {0x5D0, 0x5EA},     {0x621, 0x64A},     {0x64B, 0x652},
    {0x904, 0x939},     {0x93E, 0x94D},     {0xE01, 0xE3A},     {0x10D0, 0x10FA},   {0x13A0, 0x13F5},
    {0x1100, 0x1112},   {0x1161, 0x1175},   {0x11A8, 0x11C2},   {0xAC00, 0xD7A3},   {0x3041, 0x3096},
    {0x30A1, 0x30FA},   {0x4E00, 0x9FA5},   {0xF900, 0xFA2D},   {0xFF01, 0xFF9D},   {0x300, 0x36F},
    {0x2010, 0x2027},   {0x2030, 0x205E},   {0x2074, 0x208E},   {0x2100, 0x214F},   {0x2150, 0x2188},
    {0x2460, 0x24FF},   {0x1D400, 0x1D454}, {0x1F600, 0x1F64F}, {0x1F300, 0x1F5FF}, {0x1F1E6, 0x1F1FF},
    {0x1, 0x1F},        {0x7F, 0x9F},       {0x200B, 0x200F},   {0xFE76, 0xFEFC},   {0xFB00, 0xFB06},
    {0x1D15E, 0x1D164}, {0x1E00, 0x1EFF},   {0x10400, 0x1044F}, {0x660, 0x669},     {0x30, 0x39},
    {0x21, 0x2F}};

/* A string with its length, as one has a NUL. */
typedef struct {
    const char *text;
    size_t length;
} special;
#define S(text)                                                                                                        \
    {                                                                                                                  \
        text, sizeof(text) - 1                                                                                         \
    }

static const special specials[] = {S("</s>"),
                                   S("<unk>"),
                                   S("<s>"),
                                   S("<extra_id_0>"),
                                   S("<|endoftext|>"),
                                   S("<|startoftext|>"),
                                   S("\342\226\201"),
                                   S("\342\226\201\342\226\201"),
                                   S("\360\237\221\251\342\200\215\360\237\221\251\342\200\215\360\237\221\247"),
                                   S("e\314\201"),
                                   S("\357\254\201n"),
                                   S("\304\260"),
                                   S("\316\237\316\243"),
                                   S("\342\200\246"),
                                   S("\000"),
                                   S("\357\277\275"),
                                   S("\357\273\277"),
                                   S("<0x41>"),
                                   S("\302\275"),
                                   S("\342\204\246"),
                                   S("\341\272\233\314\243"),
                                   S("\360\235\205\236"),
                                   S("\340\275\263"),
                                   S("[img]"),
                                   S("<sep>"),
                                   S("http://a.b/c\077d=e&f"),
                                   S("\343\202\253\343\202\231"),
                                   S("\341\204\200\341\205\241\341\206\250"),
                                   S("\341\240\216"),
                                   S("\315\205"),
                                   S("\302\255"),
                                   S("'S")};

static const char *const separators[] = {" ",
                                         " ",
                                         " ",
                                         " ",
                                         " ",
                                         " ",
                                         " ",
                                         " ",
                                         " ",
                                         " ",
                                         "  ",
                                         "   ",
                                         "\011",
                                         "\012",
                                         "\015\012",
                                         "",
                                         "\302\240",
                                         "\343\200\200",
                                         "\342\200\203",
                                         "\013\014"};

/* SplitMix64. */
static size_t below(uint64_t *state, size_t n)
{
    uint64_t z = *state += 0x9E3779B97F4A7C15u;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return (size_t)((z ^ (z >> 31)) % n);
}

static char upper(char c)
{
    return c >= 'a' && c <= 'z' ? (char)(c - 32) : c;
}

static void put_word(uint64_t *r, text_buffer *out)
{
    const char *const word = words[below(r, COUNT(words))];
    const size_t how = below(r, 8), length = strlen(word);
    for (size_t i = 0; i < length; i++) {
        const char c = how == 0 || (how == 1 && i == 0) ? upper(word[i]) : word[i];
        text_put(out, &c, 1);
    }
}

/* Writes 1 to `most` characters, `count` of which begin at `first`. */
static void put_run(uint64_t *r, size_t most, unsigned first, size_t count, text_buffer *out)
{
    for (size_t n = 1 + below(r, most); n > 0; n--) text_put_char(out, first + (unsigned)below(r, count));
}

static void put_letters(uint64_t *r, text_buffer *out)
{
    for (size_t n = 1 + below(r, 10); n > 0; n--) {
        const unsigned first = below(r, 3) == 0 ? 0x41 : 0x61;
        text_put_char(out, first + (unsigned)below(r, 26));
    }
}

static void put_special(uint64_t *r, text_buffer *out)
{
    const special *const s = &specials[below(r, COUNT(specials))];
    text_put(out, s->text, s->length);
}

static void put_block(uint64_t *r, int one, text_buffer *out)
{
    const unsigned *const block = blocks[below(r, COUNT(blocks))];
    const size_t count = block[1] - block[0] + 1;
    if (one)
        text_put_char(out, block[0] + (unsigned)below(r, count));
    else
        put_run(r, 6, block[0], count, out);
}

static void put_part(uint64_t *r, text_buffer *out)
{
    const size_t kind = below(r, 20);
    if (kind < 10)
        put_word(r, out);
    else if (kind == 10)
        put_letters(r, out);
    else if (kind == 11)
        put_run(r, 8, 0x30, 10, out);
    else if (kind == 12)
        put_run(r, 5, 0x21, 15, out);
    else if (kind == 18)
        put_special(r, out);
    else
        put_block(r, kind == 19, out);
}

static void put_separator(uint64_t *r, text_buffer *out)
{
    const char *const separator = separators[below(r, COUNT(separators))];
    text_put(out, separator, strlen(separator));
}

void text_line(int i, text_buffer *out)
{
    uint64_t r = (uint64_t)i;
    out->length = 0;
    if (i % 1000 == 0) return;
    if (i % 1000 == 2) {
        for (int k = 0; k < 5; k++) put_separator(&r, out);
        return;
    }
    size_t first = 0;
    for (size_t n = i % 1000 == 1 ? 10000 : 1 + below(&r, 12); n > 0; n--) {
        put_separator(&r, out);
        if (first == 0) first = out->length + 1;
        put_part(&r, out);
    }
    if (below(&r, 4) == 0) return; /* else without the first separator */
    out->length -= first - 1;
    memmove(out->data, out->data + first - 1, out->length);
}

unsigned text_hash_ids(const int *ids, int count)
{
    uint32_t h = 0x811C9DC5;
    for (int i = 0; i < count; i++)
        for (int shift = 0; shift < 32; shift += 8) h = (h ^ ((uint32_t)ids[i] >> shift & 0xff)) * 0x01000193;
    return (h ^ h >> 16) & 0xffff;
}

void text_compare_lines(const char *folder, int step)
{
    mar_err err = {0};
    text_tokenizer *t;
    if (text_tokenizer_open(folder, &t, &err) != MAR_OK) fail_msg("%s", err.text);
    text_compare_lines_with(t, folder, step);
    text_tokenizer_free(t);
}

void text_compare_lines_with(const text_tokenizer *t, const char *folder, int step)
{
    enum { MAX = 1 << 18 };
    char path[512];
    mar_err err = {0};
    text_buffer line = {0};
    int *ids = malloc(MAX * sizeof *ids), count;
    assert_non_null(ids);
    snprintf(path, sizeof path, "%s/hashes.bin", folder);
    bytes hashes = bytes_from_file(path);
    for (int i = 0; (size_t)i < hashes.size / 2; i += step) {
        text_line(i, &line);
        if (text_tokenize(t, line.length ? line.data : "", line.length, ids, MAX, &count, &err) != MAR_OK)
            fail_msg("line %d: %s", i, err.text);
        assert_in_range(count, 0, MAX);
        const unsigned expected = hashes.data[2 * i] | (unsigned)hashes.data[2 * i + 1] << 8;
        if (text_hash_ids(ids, count) != expected) fail_msg("%s: line %d has other ids (%d of them)", folder, i, count);
    }
    text_buffer_free(&line);
    bytes_free(&hashes);
    free(ids);
}
