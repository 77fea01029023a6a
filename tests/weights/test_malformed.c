/* Malicious files: each is refused with a message that names the file and the error. */
#include "tests/support/archive.h"
#include "tests/support/brief.h"
#include "tests/support/support.h"

#include "weights/hash.h"
#include "weights/number.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void expect_refusal(const bytes *b, const char *words)
{
    wt_file *f = (wt_file *)1;
    mar_err err = {0};
    const uint8_t *copy = guarded_copy(b->data, b->size);
    mar_status status = wt_open_memory(copy, b->size, "some/file", &f, &err);
    if (status == MAR_OK) fail_msg("accepted, expected \"%s\"", words);
    assert_int_equal(status, MAR_EFORMAT);
    assert_null(f);
    if (strncmp(err.text, "some/file: ", 11) != 0 || !strstr(err.text, words))
        fail_msg("\"%s\" does not name the file and \"%s\"", err.text, words);
    guarded_free(copy, b->size);
}

/* --- safetensors -------------------------------------------------------------------------------------------------- */

static void refuse_header(const char *header, size_t data_size, const char *words)
{
    bytes b = make_safetensors(header, data_size);
    expect_refusal(&b, words);
    bytes_free(&b);
}

#define ONE(dtype, shape, offsets) "{\"a\":{\"dtype\":\"" dtype "\",\"shape\":" shape ",\"data_offsets\":" offsets "}}"

TEST_CASE(test_good_header)
{
    bytes b = make_safetensors(ONE("F32", "[2,1]", "[0,8]") "   ", 8);
    wt_file *f;
    mar_err err = {0};
    assert_ok(wt_open_memory(b.data, b.size, "x", &f, &err), &err);
    assert_int_equal(wt_count(f), 1);
    wt_close(f);
    bytes_free(&b);
}

TEST_CASE(test_header_length)
{
    static const uint64_t lengths[] = {11, 1 << 20, (uint64_t)1 << 40, UINT64_MAX - 7, UINT64_MAX};
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
        bytes b = {0};
        bytes_number(&b, lengths[i], 8);
        bytes_text(&b, "{}");
        expect_refusal(&b, "the header says");
        bytes_free(&b);
    }
    size_t huge = ((size_t)16 << 20) + 1;
    char *spaces = malloc(huge + 1);
    memset(spaces, ' ', huge);
    memcpy(spaces, "{}", 2);
    spaces[huge] = 0;
    refuse_header(spaces, 0, "more than the 16777216 allowed");
    free(spaces);
}

TEST_CASE(test_header_json)
{
    refuse_header("{", 0, "no valid JSON");
    refuse_header("{\"a\":}", 0, "no valid JSON");
    refuse_header("{\"a", 0, "no valid JSON");
    refuse_header("{\"__metadata__\":{\"k\":\"v\n\"}}", 0, "no valid JSON near byte 23"); /* control character */
    refuse_header("{\"a\":{\"dtype\":\"U8\",\"shape\":[01],\"data_offsets\":[0,1]}}", 1, "no valid JSON near byte 29");
    refuse_header("{} x", 0, "goes on after its JSON object");
    refuse_header("{}{}", 0, "goes on after its JSON object");
    refuse_header("{\"a\":[]}", 0, "\"a\" is not an object");
    refuse_header("{\"a\":{\"dtype\":\"F32\",\"shape\":[]}}", 0, "no data_offsets");
    refuse_header("{\"__metadata__\":[]}", 0, "__metadata__ is not an object");
    refuse_header("{\"__metadata__\":{\"k\":1}}", 0, "metadata \"k\" is not a string");
}

static bytes deep; /* a header */

static void *refuse_deep(void *unused)
{
    refuse_header((const char *)deep.data, 0, "more than 16 levels at byte 20, expected 3");
    return unused;
}

/* Checks that deep nesting is an error, also on a thread with little stack. Brackets in strings do not count. */
TEST_CASE(test_nesting)
{
    pthread_attr_t attributes;
    pthread_t thread;
    bytes_text(&deep, "{\"a\":");
    for (int i = 0; i < 900; i++) bytes_text(&deep, "[");
    bytes_number(&deep, 0, 1);
    assert_int_equal(pthread_attr_init(&attributes), 0);
    assert_int_equal(pthread_attr_setstacksize(&attributes, (test_brief ? 1024 : 64) * (size_t)1024), 0);
    assert_int_equal(pthread_create(&thread, &attributes, refuse_deep, NULL), 0);
    assert_int_equal(pthread_join(thread, NULL), 0);
    pthread_attr_destroy(&attributes);
    bytes_free(&deep);
    refuse_header("{\"__metadata__\":{\"k\":\"[[[[[[[[[[[[[[[[[[\\\"{{{{{{{{\"},\"a\":{}}", 0, "\"a\" has no dtype");
}

TEST_CASE(test_duplicates)
{
    refuse_header("{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]},"
                  "\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[1,2]}}",
                  2, "\"a\" appears twice");
    refuse_header("{\"a\":{\"dtype\":\"U8\",\"dtype\":\"I8\",\"shape\":[1],\"data_offsets\":[0,1]}}", 1,
                  "dtype appears twice");
    refuse_header("{\"__metadata__\":{},\"__metadata__\":{}}", 0, "__metadata__ appears twice");
    refuse_header("{\"__metadata__\":{\"k\":\"1\",\"k\":\"2\"}}", 0, "\"k\" appears twice");
}

#define NAMED(name) "{\"" name "\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}}"

/* --- many names --------------------------------------------------------------------------------------------------- */

/* Calls of strcmp below, which replaces the C library's for the readers, too. */
static long comparisons;

int strcmp(const char *a, const char *b)
{
    comparisons++;
    while (*a && *a == *b) a++, b++;
    return (unsigned char)*a - (unsigned char)*b;
}

enum { NAMES_MANY = 1 << 14 };

static void read_many(const char *header, size_t data_size, int tensors)
{
    bytes b = make_safetensors(header, data_size);
    wt_file *f;
    mar_err err = {0};
    comparisons = 0;
    assert_ok(wt_open_memory(b.data, b.size, "x", &f, &err), &err);
    assert_int_equal(wt_count(f), tensors);
    assert_int_equal(wt_metadata_count(f), tensors ? 0 : NAMES_MANY);
    if (comparisons > 40L * NAMES_MANY) fail_msg("%d names take %ld comparisons", NAMES_MANY, comparisons);
    wt_close(f);
    bytes_free(&b);
}

/* Checks that twice the names take twice the time, even for names chosen to collide. Their FNV-1a hashes end with
 * the same 18 bits: each name is made of pieces that leave the hash as it was. */
TEST_CASE(test_many_names)
{
    static const wt_hash_seed published = {{0x0706050403020100u, 0x0f0e0d0c0b0a0908u}}; /* the paper's test vector */
    assert_true(wt_hash(&published, "\0\1\2\3\4\5\6\7\10\11\12\13\14\15\16", 15) == 0xa129ca6149be45e5u);
    const wt_hash_seed a = wt_hash_random(), b = wt_hash_random();
    assert_memory_not_equal(&a, &b, sizeof a);

    bytes header = {0};
    char text[256], piece[2][16];
    bytes_text(&header, "{\"__metadata__\":{");
    for (int i = 0; i < NAMES_MANY; i++) {
        snprintf(text, sizeof text, "%s\"%d\":\"\"", i ? "," : "", i);
        bytes_text(&header, text);
    }
    bytes_text(&header, "}}");
    bytes_number(&header, 0, 1);
    read_many((const char *)header.data, 0, 0);
    bytes_free(&header);

    int found = 0;
    for (int i = 0; found < 2; i++) {
        const uint64_t start = 0xcbf29ce484222325u;
        uint64_t h = start;
        snprintf(piece[found], sizeof piece[found], "%06x", i);
        for (const char *c = piece[found]; *c; c++) h = (h ^ (uint8_t)*c) * 0x100000001b3u;
        found += ((h ^ start) & 0x3ffff) == 0;
    }
    for (int i = 0; i < NAMES_MANY; i++) {
        bytes_text(&header, i ? ",\"" : "{\"");
        for (int bit = NAMES_MANY; bit >>= 1;) bytes_text(&header, piece[(i & bit) != 0]);
        bytes_text(&header, "\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0]}");
    }
    bytes_text(&header, "}");
    bytes_number(&header, 0, 1);
    read_many((const char *)header.data, 0, NAMES_MANY);
    bytes_free(&header);
}

/* JSON can express NUL, which ends C strings: "a" and "a\0b" would be one name. */
TEST_CASE(test_nul)
{
    const char *words = "expected names and metadata without";
    refuse_header(NAMED("a\\u0000b"), 1, "the header has a NUL at byte 3, expected names and metadata without");
    refuse_header(NAMED("\\\\\\u0000"), 1, "a NUL at byte 4"); /* an escaped backslash, then the NUL */
    refuse_header("{\"__metadata__\":{\"k\\u0000\":\"v\"}}", 0, words);
    refuse_header("{\"__metadata__\":{\"k\":\"\\u0000\"}}", 0, words);
    bytes plain = {0}; /* the byte itself */
    const char header[] = "{\"__metadata__\":{\"k\":\"a\0b\"}}";
    bytes_number(&plain, sizeof header - 1, 8);
    bytes_put(&plain, header, sizeof header - 1);
    expect_refusal(&plain, "the header has a NUL at byte 23");
    bytes_free(&plain);
    bytes good = make_safetensors(NAMED("\\\\u0000"), 1); /* an escaped backslash, and text */
    wt_file *f;
    mar_err err = {0};
    assert_ok(wt_open_memory(good.data, good.size, "x", &f, &err), &err);
    assert_string_equal(wt_at(f, 0)->name, "\\u0000");
    wt_close(f);
    bytes_free(&good);
}

TEST_CASE(test_utf8)
{
    static const char *const bad[][2] = {
        {NAMED("w\x80"), "the tensor name \"w\\x80\" is no valid UTF-8 at byte 1"},
        {NAMED("\xc0\xaf"), "the tensor name \"\\xc0\\xaf\" is no valid UTF-8 at byte 0"}, /* '/', too long */
        {NAMED("ab\xed\xa0\x80"), "\"ab\\xed\\xa0\\x80\" is no valid UTF-8 at byte 2"},    /* a surrogate */
        {NAMED("\xf4\x90\x80\x80"), "is no valid UTF-8 at byte 0"},                        /* above U+10FFFF */
        {NAMED("\xe2\x82"), "is no valid UTF-8 at byte 0"},                                /* cut short */
        {NAMED("\xe0\x9f\xbf"), "is no valid UTF-8 at byte 0"},
        {"{\"__metadata__\":{\"k\xff\":\"v\"}}", "the metadata key \"k\\xff\" is no valid UTF-8 at byte 1"},
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0],\"later\":\"\xff\"}}",
         "the header is no valid UTF-8 at byte 61"},
        {"{\"__metadata__\":{\"k\":\"v\\u001b\xfe\"}}",
         "the metadata value \"v\\x1b\\xfe\" is no valid UTF-8 at byte 2"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) refuse_header(bad[i][0], i < 6, bad[i][1]);
    static const char *const good[] = {"\xc2\x80", "\xe2\x82\xac", "\xf0\x9f\x99\x82", "\xf4\x8f\xbf\xbf",
                                       "\xee\x80\x80"};
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        char header[200];
        wt_file *f;
        mar_err err = {0};
        snprintf(header, sizeof header, NAMED("%s"), good[i]);
        bytes b = make_safetensors(header, 1);
        assert_ok(wt_open_memory(b.data, b.size, "x", &f, &err), &err);
        assert_string_equal(wt_at(f, 0)->name, good[i]);
        wt_close(f);
        bytes_free(&b);
    }
}

TEST_CASE(test_dtype_and_shape)
{
    refuse_header(ONE("F8_E4M3", "[2]", "[0,1]"), 1, "span 1 bytes, its shape needs 2");
    refuse_header(ONE("f32", "[1]", "[0,4]"), 3, "truncated"); /* of a type that is not read */
    refuse_header(ONE("f\xff", "[1]", "[0,4]"), 4, "the dtype \"f\\xff\" is no valid UTF-8 at byte 1");
    refuse_header("{\"a\":{\"dtype\":7,\"shape\":[1],\"data_offsets\":[0,1]}}", 1, "its dtype is no string");
    refuse_header(ONE("U8", "3", "[0,3]"), 3, "shape is not an array");
    refuse_header(ONE("U8", "[-1]", "[0,0]"), 0, "dimension 0 of its shape is -1, expected an integer from 0");
    refuse_header(ONE("U8", "[1,1.5]", "[0,1]"), 1, "dimension 1 of its shape is 1.5, expected an integer from 0");
    refuse_header(ONE("U8", "[1,\"2\"]", "[0,1]"), 1, "dimension 1 of its shape is no number");
    refuse_header(ONE("U8", "[1e300]", "[0,1]"), 1,
                  "dimension 0 of its shape is 1e300, expected an integer from 0 to 2^53");
    refuse_header(ONE("U8", "[1,1152921504606846976]", "[0,1]"), 1,
                  "dimension 1 of its shape is 1152921504606846976, expected an integer from 0 to 2^53");
    refuse_header(ONE("U8", "[9007199254740993]", "[0,1]"), 1,
                  "dimension 0 of its shape is 9007199254740993, expected an integer");
    refuse_header(ONE("U8", "[1,1,1,1,1,1,1,1,1]", "[0,1]"), 1, "more than 8 dimensions");
    /* 2^32 * 2^32 elements: 0 modulo 2^64. And 2^62 elements of 4 bytes. */
    refuse_header(ONE("U8", "[4294967296,4294967296]", "[0,0]"), 0, "too large");
    refuse_header(ONE("F32", "[2147483648,2147483648]", "[0,0]"), 0, "too large");
}

TEST_CASE(test_offsets)
{
    refuse_header(ONE("U8", "[4]", "[0,4]"), 3, "truncated");
    refuse_header(ONE("U8", "[4]", "[0,3]"), 4, "span 3 bytes, its shape needs 4");
    refuse_header(ONE("F32", "[1]", "[4,0]"), 4, "not [begin, end]");
    refuse_header(ONE("F32", "[1]", "[0]"), 4, "not [begin, end]");
    refuse_header(ONE("F32", "[1]", "[0,4,8]"), 8, "not [begin, end]");
    refuse_header(ONE("F32", "[1]", "[-4,0]"), 4, "not [begin, end]");
    refuse_header(ONE("U8", "[1]", "[9007199254740991,9007199254740992]"), 1, "truncated");
    refuse_header(ONE("U8", "[1]", "[1,2]"), 2, "begins at byte 1");
    refuse_header(ONE("U8", "[1]", "[0,1]"), 2, "1 bytes of data after the last tensor");
    refuse_header("{\"a\":{\"dtype\":\"U8\",\"shape\":[3],\"data_offsets\":[0,3]},"
                  "\"b\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[2,4]}}",
                  4, "\"b\" begins at byte 2 of the data, the one before ends at 3");
}

TEST_CASE(test_strange_starts)
{
    static const char *const starts[] = {"", "{", "<!DOCTYPE html>", "version https://git"};
    for (size_t i = 0; i < sizeof starts / sizeof *starts; i++) {
        bytes b = {0};
        bytes_text(&b, starts[i]);
        expect_refusal(&b, "expected safetensors or a file of torch.save");
        bytes_free(&b);
    }
}

/* --- zip ---------------------------------------------------------------------------------------------------------- */

static void refuse_zip(const zip_part *parts, int count, const char *words)
{
    for (int zip64 = 0; zip64 <= 1; zip64++) {
        bytes b = make_zip(parts, count, zip64);
        expect_refusal(&b, words);
        bytes_free(&b);
    }
}

TEST_CASE(test_zip_entries)
{
    refuse_zip((zip_part[]){{.name = "a.txt", .data = "x", .size = 1}}, 1, "without data.pkl");
    refuse_zip((zip_part[]){{.name = "a/data.pkl", .data = "x", .size = 1, .method = 8}}, 1, "compressed");
    refuse_zip((zip_part[]){{.name = "a/data.pkl", .data = "x", .size = 1, .flags = 1}}, 1, "encrypted");
    refuse_zip((zip_part[]){{.name = "a/data.pkl", .data = ".", .size = 1}, {.name = "a/data.pkl"}}, 2, "twice");
    refuse_zip((zip_part[]){{.name = "a/data.pkl", .data = ".", .size = 1}, {.name = "a/byteorder"}}, 2, "byte order");
}

/* Writes `value` over the field at the first occurrence of `magic`, and expects a refusal. */
static void refuse_patched(int zip64, const char *magic, size_t at, int width, uint64_t value, const char *words)
{
    const zip_part part = {.name = "a/data.pkl", .data = "}.", .size = 2};
    bytes b = make_zip(&part, 1, zip64);
    uint8_t *p = memmem(b.data, b.size, magic, 4);
    assert_non_null(p);
    for (int i = 0; i < width; i++) p[at + (size_t)i] = (uint8_t)(value >> 8 * i);
    expect_refusal(&b, words);
    bytes_free(&b);
}

TEST_CASE(test_zip_directory)
{
    const char *end = "PK\5\6", *end64 = "PK\6\6", *locator = "PK\6\7", *entry = "PK\1\2", *local = "PK\3\4";
    refuse_patched(0, end, 10, 2, 2, "not in the file");
    refuse_patched(0, end, 12, 4, 0xfffffff0, "not in the file");
    refuse_patched(0, end, 16, 4, 0xfffffff0, "not in the file");
    refuse_patched(0, end, 16, 4, 1, "entry 0 of the zip directory is malformed");
    refuse_patched(0, end, 20, 2, 1, "without its directory");
    refuse_patched(1, locator, 8, 8, UINT64_MAX, "ZIP64 record");
    refuse_patched(1, locator, 8, 8, 3, "ZIP64 record");
    refuse_patched(1, end64, 32, 8, UINT64_MAX, "not in the file");
    refuse_patched(1, end64, 40, 8, UINT64_MAX, "not in the file");
    refuse_patched(1, end64, 48, 8, UINT64_MAX - 3, "not in the file");
    refuse_patched(0, entry, 28, 2, 0xffff, "malformed");         /* name length */
    refuse_patched(0, entry, 30, 2, 0xffff, "malformed");         /* extra length */
    refuse_patched(1, entry, 46 + 10 + 2, 2, 0xff, "malformed");  /* size of the first extra field */
    refuse_patched(1, entry, 46 + 10 + 6 + 2, 2, 8, "malformed"); /* ZIP64 field too short */
    refuse_patched(0, entry, 24, 4, 0x7fffffff, "compressed");    /* size is not the packed size */
    refuse_patched(0, entry, 42, 4, 0x7fffffff, "no zip header");
    refuse_patched(1, entry, 46 + 10 + 6 + 4 + 16, 8, UINT64_MAX, "no zip header");
    refuse_patched(0, local, 28, 2, 0xffff, "past the end of the file");
}

TEST_CASE(test_zip_sizes)
{
    const zip_part part = {.name = "a/data.pkl", .data = "}.", .size = 2};
    static const uint64_t sizes[] = {1000000, UINT64_MAX, UINT64_MAX - 60, (uint64_t)1 << 63};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        bytes b = make_zip(&part, 1, 1);
        uint8_t *p = memmem(b.data, b.size, "PK\1\2", 4);
        for (int j = 0; j < 16; j++) /* both sizes in the ZIP64 field */
            p[46 + 10 + 6 + 4 + j] = (uint8_t)(sizes[i] >> 8 * (j % 8));
        expect_refusal(&b, "past the end of the file");
        bytes_free(&b);
    }
}

/* --- pickle ------------------------------------------------------------------------------------------------------- */

static void refuse_pickle_bytes(const char *pickle, size_t size, const char *words)
{
    bytes b = make_torch(pickle, size, 24);
    expect_refusal(&b, words);
    bytes_free(&b);
}
#define refuse_pickle(pickle, words) refuse_pickle_bytes(pickle, sizeof(pickle) - 1, words)

TEST_CASE(test_pickle_machine)
{
    refuse_pickle("", "ends in the middle");
    refuse_pickle("\x80\2", "ends in the middle");
    refuse_pickle(".", "empty stack");
    refuse_pickle("0.", "empty stack");
    refuse_pickle("(.", "empty stack");
    refuse_pickle("t.", "a mark that is not there");
    refuse_pickle("NNNt.", "a mark that is not there");
    refuse_pickle("\x85.", "empty stack");
    refuse_pickle("N\x86.", "empty stack");
    refuse_pickle("N(\x86.", "empty stack");
    refuse_pickle("2.", "empty stack");
    refuse_pickle("Ns.", "empty stack");
    refuse_pickle("NNa.", "appends to what is no list");
    refuse_pickle("]NNs.", "sets items of what is no dict");
    refuse_pickle("}(Nu.", "a key without a value");
    refuse_pickle("(Nd.", "a key without a value");
    refuse_pickle("h\5.", "never written");
    refuse_pickle("j\xff\xff\xff\xff.", "never written");
    refuse_pickle("Nr\xff\xff\xff\xff.", "out of range");
    refuse_pickle("X\xff\xff\xff\xffxx.", "ends in the middle");
    refuse_pickle("\x8d\xff\xff\xff\xff\xff\xff\xff\xffxx.", "ends in the middle");
    refuse_pickle("\x8b\xff\xff\xff\xffxx.", "ends in the middle");
    refuse_pickle("cos\nsystem", "class name does not end");
    refuse_pickle("NN\x93.", "class name is no string");
    refuse_pickle("ios\nsystem\n.", "operation that PyTorch files do not use");
    refuse_pickle("cos\nsystem\n(X\2\0\0\0lstR.", "an object made by os.system, expected a dict");
    refuse_pickle("N.", "None, expected a dict");
    refuse_pickle("}.", "no tensors");
    refuse_pickle("}q\0h\0h\0s.", "no tensors"); /* a dict that contains itself, under itself */
}

/* Tries a name of a megabyte, and a stack that its message must not walk. */
TEST_CASE(test_pickle_size)
{
    bytes b = {0};
    bytes_text(&b, "c");
    for (int i = 0; i < 1 << 20; i++) bytes_text(&b, "m");
    bytes_text(&b, "\nn\n.");
    refuse_pickle_bytes((char *)b.data, b.size, "class name of more than 1024 bytes");
    b.size = 0;
    for (int i = 0; i < 1 << 20; i++) bytes_text(&b, "\x85");
    refuse_pickle_bytes((char *)b.data, b.size, "empty stack");
    b.size = 0;
    bytes_text(&b, "N");
    for (int i = 0; i < 1 << 20; i++) bytes_text(&b, "\x85"); /* a tuple in a tuple in a tuple ... */
    bytes_text(&b, ".");
    refuse_pickle_bytes((char *)b.data, b.size, "a tuple, expected a dict");
    bytes_free(&b);
}

/* Sixteen million empty dicts would take a gigabyte. */
TEST_CASE(test_pickle_memory)
{
    size_t size = 16 << 20;
    char *pickle = malloc(size);
    wt_file *f;
    mar_err err = {0};
    memset(pickle, '}', size);
    bytes b = make_torch(pickle, size, 0);
    assert_int_equal(wt_open_memory(b.data, b.size, "some/file", &f, &err), MAR_ENOMEM);
    assert_string_equal(err.text, "some/file: its pickle takes more than the memory allowed");
    bytes_free(&b);
    pickle = realloc(pickle, size + 1);
    pickle[size] = '.';
    refuse_pickle_bytes(pickle, size + 1, "larger than 16777216 bytes");
    free(pickle);
}

/* --- tensors in a pickle ------------------------------------------------------------------------------------------ */

#define STORAGE(class, numel)                                                                                          \
    "(X\7\0\0\0storage" class "X\1\0\0\0"                                                                              \
                              "0X\3\0\0\0"                                                                             \
                              "cpu" numel "tQ"
#define FLOATS               STORAGE("ctorch\nFloatStorage\n", "K\6")
#define W(storage, geometry) "}X\1\0\0\0wctorch._utils\n_rebuild_tensor_v2\n(" storage geometry "\x89NtRs."

TEST_CASE(test_tensors)
{
    bytes b = make_torch(W(FLOATS, "K\0K\2K\3\x86K\3K\1\x86"), sizeof W(FLOATS, "K\0K\2K\3\x86K\3K\1\x86") - 1, 24);
    wt_file *f;
    mar_err err = {0};
    assert_ok(wt_open_memory(b.data, b.size, "x", &f, &err), &err);
    assert_int_equal(wt_find(f, "w")->count, 6);
    wt_close(f);
    bytes_free(&b);
    const char *past = "reaches past its storage of 6 elements";
    refuse_pickle(W(FLOATS, "K\1K\2K\3\x86K\3K\1\x86"), past);
    refuse_pickle(W(FLOATS, "K\0K\2K\3\x86K\4K\1\x86"), past);
    refuse_pickle(W(FLOATS, "K\0K\7\x85K\1\x85"), past);
    refuse_pickle(W(FLOATS, "K\7K\0\x85K\1\x85"), past);
    refuse_pickle(W(FLOATS, "J\xff\xff\xff\xffK\2\x85K\1\x85"), past);
    /* 2^62 and 2^63-1: sums and products that wrap */
    refuse_pickle(W(FLOATS, "K\0\x8a\x08\0\0\0\0\0\0\0\x40K\4\x86K\0K\0\x86"), "of at most 2^53 each");
    refuse_pickle(W(FLOATS, "K\0\x8a\x08\0\0\0\0\0\0\x20\0M\0\x10\x86K\0K\0\x86"), past); /* 2^53 times 2^12 */
    refuse_pickle(W(FLOATS, "K\0K\2\x85\x8a\x08\xff\xff\xff\xff\xff\xff\xff\x7f\x85"), past);
    refuse_pickle(W(FLOATS, "\x8a\x08\xff\xff\xff\xff\xff\xff\xff\x7fK\1\x85K\1\x85"), past);
    refuse_pickle(W(FLOATS, "K\0K\3\x85\x8a\x08\0\0\0\0\0\0\0\x40\x85"), past);
    /* A million elements out of one by a stride of 0 */
    refuse_pickle(W(FLOATS, "K\0J\x40\x42\x0f\0\x85K\0\x85"),
                  "\"w\" has type view that is not contiguous and too large to copy");
}

/* Makes a dict of `count` tensors on one storage of `floats` f32, each with this size and stride. */
static bytes many_tensors(int count, uint32_t floats, uint32_t size, uint32_t stride)
{
    static const char storage[] = "(X\7\0\0\0storagectorch\nFloatStorage\nX\1\0\0\0"
                                  "0X\3\0\0\0"
                                  "cpuJ";
    bytes pickle = {0};
    bytes_text(&pickle, "}");
    for (int i = 0; i < count; i++) {
        char name[5];
        snprintf(name, sizeof name, "%04d", i);
        bytes_put(&pickle, "X\4\0\0\0", 5);
        bytes_text(&pickle, name);
        bytes_text(&pickle, "ctorch._utils\n_rebuild_tensor_v2\n(");
        bytes_put(&pickle, storage, sizeof storage - 1);
        bytes_number(&pickle, floats, 4);
        bytes_text(&pickle, "tQ");
        bytes_put(&pickle, "K\0J", 3);
        bytes_number(&pickle, size, 4);
        bytes_text(&pickle, "\x85J");
        bytes_number(&pickle, stride, 4);
        bytes_text(&pickle, "\x85\x89NtRs");
    }
    bytes_text(&pickle, ".");
    bytes b = make_torch(pickle.data, pickle.size, 4 * (size_t)floats);
    bytes_free(&pickle);
    return b;
}

/* Checks that the file's size bounds the work of reading tensors, however often a pickle names a large storage. */
TEST_CASE(test_work)
{
    enum { FLOATS_MANY = 1 << 18 };
    bytes b = many_tensors(70, FLOATS_MANY, FLOATS_MANY, 1); /* each is the whole storage */
    expect_refusal(&b, "take more reading than 64 times the file");
    bytes_free(&b);
    b = many_tensors(2000, FLOATS_MANY, 2, FLOATS_MANY - 1); /* first and last element, read with what is around them */
    expect_refusal(&b, "take more reading than 64 times the file");
    bytes_free(&b);
    for (int strided = 0; strided < 2; strided++) {
        wt_file *f;
        mar_err err = {0};
        float two[2];
        b = many_tensors(20, FLOATS_MANY, strided ? 2 : FLOATS_MANY, strided ? FLOATS_MANY - 1 : 1);
        assert_ok(wt_open_memory(b.data, b.size, "x", &f, &err), &err);
        assert_int_equal(wt_count(f), 20);
        assert_ok(wt_read_bytes(f, wt_at(f, 19), 0, sizeof two, two, &err), &err);
        static const uint8_t begin[8] = {0, 1, 2, 3, 4, 5, 6, 7}, ends[8] = {0, 1, 2, 3, 0xfc, 0xfd, 0xfe, 0xff};
        assert_memory_equal(two, strided ? ends : begin, sizeof two);
        wt_close(f);
        bytes_free(&b);
    }
}

TEST_CASE(test_directory_size)
{
    const zip_part part = {.name = "a/data.pkl", .data = "}.", .size = 2};
    const size_t much = (16 << 20) + 1;
    bytes b = make_zip(&part, 1, 0), padded = {0};
    uint8_t *end = memmem(b.data, b.size, "PK\5\6", 4), *zeros = calloc(much, 1);
    assert_true(end && zeros);
    bytes_put(&padded, b.data, (size_t)(end - b.data));
    bytes_put(&padded, zeros, much); /* the end record says that the directory reaches it */
    const uint32_t size = (uint32_t)((size_t)(end - b.data) + much - wt_le32(end + 16));
    for (int i = 0; i < 4; i++) end[12 + i] = (uint8_t)(size >> 8 * i);
    bytes_put(&padded, end, b.size - (size_t)(end - b.data));
    expect_refusal(&padded, "more than the 16777216 allowed");
    free(zeros);
    bytes_free(&b);
    bytes_free(&padded);
}

TEST_CASE(test_bad_geometry)
{
    const char *malformed = "\"w\" is malformed";
    refuse_pickle(W(FLOATS, "K\0K\6\x85K\1K\1\x86"), malformed); /* ranks differ */
    refuse_pickle(W(FLOATS, "K\0K\6K\1"), malformed);            /* no tuples */
    refuse_pickle(W(FLOATS, "NK\6\x85K\1\x85"), malformed);
    refuse_pickle(W(FLOATS, "K\0J\xff\xff\xff\xff\x85K\1\x85"), malformed);
    refuse_pickle(W(FLOATS, "K\0K\2\x85J\xff\xff\xff\xff\x85"), malformed);
    refuse_pickle(W(FLOATS, "K\0K\2\x85\x8a\1\xff\x85"), malformed); /* -1 as LONG1 */
    refuse_pickle(W(FLOATS, "K\0(K\1K\1K\1K\1K\1K\1K\1K\1K\1t(K\1K\1K\1K\1K\1K\1K\1K\1K\1t"), malformed); /* rank 9 */
    refuse_pickle(W("N", "K\0K\6\x85K\1\x85"), malformed);
    refuse_pickle("}X\1\0\0\0wctorch._utils\n_rebuild_tensor_v2\n)Rs.", malformed); /* no arguments */
    refuse_pickle("}X\3\0\0\0w\0xctorch._utils\n_rebuild_tensor_v2\n(" FLOATS "K\0K\6\x85K\1\x85\x89NtRs.", "NUL");
    refuse_pickle("}X\5\0\0\0model}K\1K\2ss.", "\"(an integer as key) 1\" has type int"); /* a key that is no name */
}

TEST_CASE(test_bad_storage)
{
    refuse_pickle(W(STORAGE("ctorch\nFloatStorage\n", "K\7"), "K\0K\6\x85K\1\x85"),
                  "24 bytes, expected 7 elements of F32");
    refuse_pickle(W(STORAGE("ctorch\nDoubleStorage\n", "K\6"), "K\0K\6\x85K\1\x85"),
                  "24 bytes, expected 6 elements of F64");
    refuse_pickle(W(STORAGE("ctorch\nFloatStorage\n", "\x8a\x08\6\0\0\0\0\0\0\x40"), "K\0K\6\x85K\1\x85"), "expected");
    refuse_pickle(W(STORAGE("ctorch\nFloatStorage\n", "J\xff\xff\xff\xff"), "K\0K\6\x85K\1\x85"), "no size");
    refuse_pickle(W(STORAGE("ctorch\nQUInt8Storage\n", "K\6"), "K\0K\6\x85K\1\x85"), "\"w\" has type quantized U8");
    refuse_pickle(W(STORAGE("cos\nsystem\n", "K\6"), "K\0K\6\x85K\1\x85"), "\"w\" has type os.system");
    refuse_pickle(W("(X\7\0\0\0storagectorch\nFloatStorage\nX\1\0\0\0"
                    "9X\3\0\0\0"
                    "cpuK\6tQ",
                    "K\0K\6\x85K\1\x85"),
                  "no entry data/9");
    refuse_pickle(W("NQ", "K\0K\6\x85K\1\x85"), "malformed");
    refuse_pickle("}X\1\0\0\0w" FLOATS "sX\1\0\0\0v" FLOATS "s.", "no tensors"); /* bare storages */
    refuse_pickle("}X\5\0\0\0model}X\1\0\0\0w" FLOATS "ss.", "\"w\" has type bare storage");
}

/* --- files from before PyTorch 1.6 -------------------------------------------------------------------------------- */

#define LEGACY_MAGIC  "\x80\2\x8a\n\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19."
#define LEGACY_SYSTEM "\x80\2}X\r\0\0\0little_endian\x88s."
#define LEGACY_HEAD   LEGACY_MAGIC "\x80\2M\xe9\3." LEGACY_SYSTEM
/* A tensor of 6 floats in storage 0. */
#define LEGACY_OBJECT "\x80\2" W(FLOATS, "K\0K\6\x85K\1\x85")
#define LEGACY_NAMES  "\x80\2]X\1\0\0\0000a."

/* Makes a file of `text`, `count` as the number of elements of the next storage, and `size` zero bytes. */
static bytes make_legacy(const char *text, size_t text_size, uint64_t count, size_t size)
{
    bytes b = {0};
    bytes_put(&b, text, text_size);
    bytes_number(&b, count, 8);
    for (size_t i = 0; i < size; i++) bytes_number(&b, 0, 1);
    return b;
}

static void refuse_legacy(const char *text, size_t text_size, uint64_t count, size_t size, const char *words)
{
    bytes b = make_legacy(text, text_size, count, size);
    expect_refusal(&b, words);
    bytes_free(&b);
}

TEST_CASE(test_legacy)
{
#define REFUSE(text, count, size, words) refuse_legacy(text, sizeof(text) - 1, count, size, words)
#define WHOLE                            LEGACY_HEAD LEGACY_OBJECT LEGACY_NAMES
    wt_file *f;
    mar_err err = {0};
    bytes b = make_legacy(WHOLE, sizeof WHOLE - 1, 6, 24);
    assert_ok(wt_open_memory(b.data, b.size, "x", &f, &err), &err);
    assert_int_equal(wt_count(f), 1);
    wt_close(f);
    bytes_free(&b);
    REFUSE(LEGACY_MAGIC "\x80\2M\xea\3." LEGACY_SYSTEM LEGACY_OBJECT LEGACY_NAMES, 6, 24, "another version than 1001");
    REFUSE(LEGACY_MAGIC "\x80\2N." LEGACY_SYSTEM LEGACY_OBJECT LEGACY_NAMES, 6, 24, "another version than 1001");
    REFUSE(LEGACY_MAGIC "\x80\2M\xe9\3.\x80\2}." LEGACY_OBJECT LEGACY_NAMES, 6, 24, "not said to be little-endian");
    REFUSE(LEGACY_MAGIC "\x80\2M\xe9\3.\x80\2N." LEGACY_OBJECT LEGACY_NAMES, 6, 24, "not said to be little-endian");
    REFUSE(WHOLE, 6, 23, "storage 0 reaches past the end");
    REFUSE(WHOLE, 6, 25, "1 bytes follow its last storage");
    REFUSE(WHOLE, 5, 20, "20 bytes, expected 6 elements of F32");
    REFUSE(WHOLE, UINT64_MAX, 24, "storage 0 reaches past the end");
    REFUSE(WHOLE, (uint64_t)1 << 62, 24, "storage 0 reaches past the end");
    REFUSE(LEGACY_HEAD LEGACY_OBJECT "\x80\2N.", 6, 24, "there is no list of storages");
    REFUSE(LEGACY_HEAD LEGACY_OBJECT "\x80\2].", 6, 24, "32 bytes follow its last storage");
    REFUSE(LEGACY_HEAD LEGACY_OBJECT "\x80\2]K\1a.", 6, 24, "entry 0 of its list of storages is not one of its object");
    REFUSE(LEGACY_HEAD LEGACY_OBJECT "\x80\2]X\1\0\0\0001a.", 6, 24, "entry 0 of its list of storages is not one");
    REFUSE(LEGACY_HEAD LEGACY_OBJECT "\x80\2]X\1\0\0\0000aX\1\0\0\0000a.", 6, 32, "that was not listed before");
    REFUSE(LEGACY_HEAD LEGACY_OBJECT, 6, 24, "malformed pickle");
    REFUSE(LEGACY_HEAD, 6, 24, "malformed pickle");
    REFUSE(LEGACY_HEAD "\x80\2N." LEGACY_NAMES, 6, 24, "entry 0 of its list of storages is not one of its object");
    REFUSE(LEGACY_HEAD "\x80\2" W(STORAGE("cos\nsystem\n", "K\6"), "K\0K\6\x85K\1\x85") LEGACY_NAMES, 6, 24,
           "a storage is of the class os.system");
    REFUSE(LEGACY_HEAD "\x80\2}X\1\0\0\0wctorch._utils\n_rebuild_tensor_v2\n((X\7\0\0\0storagectorch\nFloatStorage\n"
                       "X\1\0\0\0000X\3\0\0\0cpuK\6(K\0K\0K\1ttQK\0K\6\x85K\1\x85\x89NtRs." LEGACY_NAMES,
           6, 24, "views of storages");
    static const char none_listed[] = LEGACY_HEAD LEGACY_OBJECT "\x80\2].";
    bytes lacking = {0};
    bytes_put(&lacking, none_listed, sizeof none_listed - 1);
    expect_refusal(&lacking, "the file does not list its storage 0");
    bytes_free(&lacking);
    bytes cut = make_legacy(WHOLE, sizeof WHOLE - 1, 6, 0);
    cut.size -= 4;
    expect_refusal(&cut, "it ends in front of storage 0");
    bytes_free(&cut);
}
