/* Damaged files: cut at any length, with any bit flipped, with bytes of a pickle replaced. Each is refused with a
 * message that names the file, or opens with every byte of every tensor readable. The copies end where unreadable
 * memory begins. A read past the end thus crashes even without a sanitizer. */
#include "tests/support/archive.h"
#include "tests/support/brief.h"
#include "tests/support/support.h"

#include "families/mar.h"
#include "vae/vae.h"

#include <stdlib.h>
#include <string.h>

#define DATA "tests/weights/data/"

/* The nightly lane flips every bit. The change lane flips one of three: all bits of a byte, in turns. */
enum { APART = test_all ? 1 : 3, ROUNDS = test_all ? 10000 : 3000 };

static const char *const small_files[] = {DATA "views.pt", DATA "protocol4.pt", DATA "evil_beside.pt"};

static const char *const legacy_files[] = {DATA "legacy.pt", DATA "legacy_views.pt", DATA "legacy_model.pt",
                                           DATA "legacy4.pt"};
enum { LEGACY_FILES = sizeof legacy_files / sizeof *legacy_files };

static uint32_t next_random(uint32_t *state)
{
    *state = *state * 1664525u + 1013904223u; /* Numerical Recipes' generator: the same tests every time */
    return *state >> 8;
}

static void count_visit(void *user, const char *name, int rank, const int64_t *shape)
{
    (void)name, (void)rank, (void)shape;
    ++*(int *)user;
}

/* Reads every tensor, and derives the configuration from the tensors. */
static void read_everything(const wt_file *f)
{
    volatile uint8_t sum = 0;
    mar_model_config model;
    mar_vae_config vae;
    mar_err err = {0};
    int visits = 0;
    for (int i = 0; i < wt_count(f); i++) {
        const wt_tensor *t = wt_at(f, i);
        assert_ptr_equal(wt_find(f, t->name), t);
        size_t size = (size_t)t->count * wt_dtype_size(t->dtype);
        uint8_t *data = malloc(size + 1);
        assert_non_null(data);
        assert_ok(wt_read_bytes(f, t, 0, size, data, &err), &err);
        for (size_t j = 0; j < size; j++) sum = (uint8_t)(sum + data[j]);
        free(data);
    }
    if (family_mar.recognise(f) && family_mar_derive(f, &(wt_asked){.heads = 0}, &model, &err) == MAR_OK)
        family_mar_tensors(&model, count_visit, &visits);
    if (vae_config_recognise(f) && vae_config_derive(f, &vae, &err) == MAR_OK)
        vae_config_tensors(f, &vae, count_visit, &visits);
}

/* Returns whether data[size] opened. A guard follows it. */
static int try_open(const uint8_t *data, size_t size)
{
    wt_file *f = NULL;
    mar_err err = {0};
    mar_status status = wt_open_memory(data, size, "damaged", &f, &err);
    if (status == MAR_OK) {
        read_everything(f);
        wt_close(f);
        return 1;
    }
    assert_null(f);
    assert_true(status == MAR_EFORMAT || status == MAR_ENOMEM);
    if (strncmp(err.text, "damaged: ", 9) != 0) fail_msg("\"%s\" does not name the file", err.text);
    return 0;
}

static void truncate_file(const char *path, size_t step)
{
    bytes b = bytes_from_file(path);
    for (size_t size = 0; size < b.size; size += step) {
        const uint8_t *copy = guarded_copy(b.data, size);
        if (try_open(copy, size)) fail_msg("%s opens when cut to %zu of %zu bytes", path, size, b.size);
        guarded_free(copy, size);
    }
    bytes_free(&b);
}

TEST_CASE(test_truncated)
{
    for (size_t i = 0; i < sizeof small_files / sizeof *small_files; i++) truncate_file(small_files[i], 1);
    for (int i = 0; i < LEGACY_FILES; i++) truncate_file(legacy_files[i], 1);
    truncate_file(DATA "dtypes.safetensors", 1);
    truncate_file(DATA "dtypes.pt", 7);
    truncate_file(DATA "mar.pth", 257);
    truncate_file(DATA "vae.ckpt", 101);
}

/* Flips bits first, first+step, ... of bytes begin..end-1. Returns how many of the files still opened. */
static int flip_bits(const char *path, size_t begin, size_t end, size_t step, int *tried)
{
    bytes b = bytes_from_file(path);
    const uint8_t *guarded = guarded_copy(b.data, b.size);
    uint8_t *copy = (uint8_t *)(uintptr_t)guarded;
    int opened = 0;
    if (end > b.size) end = b.size;
    for (size_t bit = begin * 8; bit < end * 8; bit += step) {
        copy[bit / 8] ^= (uint8_t)(1u << bit % 8);
        opened += try_open(copy, b.size);
        copy[bit / 8] ^= (uint8_t)(1u << bit % 8);
        ++*tried;
    }
    guarded_free(guarded, b.size);
    bytes_free(&b);
    return opened;
}

TEST_CASE(test_flipped_bits)
{
    int tried = 0, opened = 0;
    for (size_t i = 0; i < sizeof small_files / sizeof *small_files; i++)
        opened += flip_bits(small_files[i], 0, SIZE_MAX, APART, &tried);
    for (int i = 0; i < LEGACY_FILES; i++) opened += flip_bits(legacy_files[i], 0, SIZE_MAX, APART, &tried);
    opened += flip_bits(DATA "dtypes.safetensors", 0, 1600, APART, &tried); /* the header */
    opened += flip_bits(DATA "dtypes.pt", 0, SIZE_MAX, 31 * APART, &tried);
    opened += flip_bits(DATA "mar.pth", 0, 20000, 37 * APART, &tried);         /* the pickle */
    opened += flip_bits(DATA "mar.pth", 190000, SIZE_MAX, 37 * APART, &tried); /* the directory */
    opened += flip_bits(DATA "vae.ckpt", 0, SIZE_MAX, 53 * APART, &tried);
    /* Both outcomes must occur, or the test says nothing. */
    assert_true(opened > tried / 10 && opened < tried * 9 / 10);
}

/* Replaces a few bytes in begin..end-1 of copies of a file by operations of a pickle. Returns how many open. */
static int replace_operations(const bytes *b, size_t begin, size_t end, uint32_t *random)
{
    static const uint8_t operations[] =
        "\x80\x95.(012N\x88\x89JKM\x8a\x8bGX\x8c\x8dTUBC\x8e\x96)\x85\x86\x87t]lae}dsu\x8f"
        "\x90\x91"
        "c\x93R\x81\x92"
        "bQqr\x94hj";
    const uint8_t *guarded = guarded_copy(b->data, b->size);
    uint8_t *copy = (uint8_t *)(uintptr_t)guarded;
    int opened = 0;
    for (int round = 0; round < ROUNDS; round++) {
        memcpy(copy, b->data, b->size);
        for (uint32_t n = 1 + next_random(random) % 3; n > 0; n--) {
            size_t at = begin + next_random(random) % (uint32_t)(end - begin);
            copy[at] = operations[next_random(random) % (sizeof operations - 1)];
        }
        opened += try_open(copy, b->size);
    }
    guarded_free(guarded, b->size);
    return opened;
}

TEST_CASE(test_mutated_pickles)
{
    uint32_t random = 1;
    int opened = 0;
    for (size_t i = 0; i < sizeof small_files / sizeof *small_files; i++) {
        bytes b = bytes_from_file(small_files[i]);
        const uint8_t *begin = memmem(b.data, b.size, "data.pkl", 8),
                      *end = memmem(b.data, b.size, ".format_version", 15);
        assert_true(begin && end && end > begin);
        const size_t first = (size_t)(begin - b.data) + 8;
        opened += replace_operations(&b, first, first + (size_t)(end - begin), &random);
        bytes_free(&b);
    }
    assert_true(opened > ROUNDS / 100 && opened < 3 * ROUNDS - ROUNDS / 10);
    opened = 0;
    for (int i = 0; i < LEGACY_FILES; i++) {
        bytes b = bytes_from_file(legacy_files[i]);
        opened += replace_operations(&b, 0, b.size, &random);
        bytes_free(&b);
    }
    assert_true(opened > ROUNDS / 100 && opened < 4 * ROUNDS - ROUNDS / 10);
}

/* Opens pickles of random operations only. */
TEST_CASE(test_random_pickles)
{
    uint32_t random = 7;
    for (int round = 0; round < 2 * ROUNDS; round++) {
        uint8_t pickle[64];
        size_t size = 1 + next_random(&random) % sizeof pickle;
        for (size_t i = 0; i < size; i++) {
            static const uint8_t common[] = "}](NK\1)tusaeRbQq\1h\1.";
            uint32_t r = next_random(&random);
            pickle[i] = r % 8 ? common[r / 8 % (sizeof common - 1)] : (uint8_t)(r >> 3);
        }
        bytes b = make_torch(pickle, size, 24);
        const uint8_t *copy = guarded_copy(b.data, b.size);
        try_open(copy, b.size);
        guarded_free(copy, b.size);
        bytes_free(&b);
    }
}
