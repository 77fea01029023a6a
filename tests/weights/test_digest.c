/* The hash of what is read: it depends on the tensors that were read and their bytes, not on the division into reads. A
 * view has a table of its own. */
#include "tests/support/archive.h"
#include "tests/support/support.h"
#include "weights/shape.h"

#include <stdlib.h>
#include <string.h>

#define GOOD "tests/weights/data/mar.pth.expected.safetensors"

/* Returns the hash after all tensors are read in pieces of at most `piece` bytes, each tensor `times` times, those of
 * odd places from their end on. `but`: a tensor to leave out; -1: none. */
static uint64_t read_all(wt_file *f, size_t piece, int times, int but)
{
    mar_err err = {0};
    uint64_t hash = 0;
    uint8_t *data = malloc(piece);
    assert_ok(wt_digest_begin(f, &err), &err);
    for (int i = 0; i < wt_count(f); i++) {
        const wt_tensor *t = wt_at(f, i);
        const uint64_t size = wt_bytes_of(t), pieces = (size + piece - 1) / piece;
        for (uint64_t p = 0; i != but && p < pieces * (uint64_t)times; p++) {
            const uint64_t at = (i % 2 ? pieces - 1 - p % pieces : p % pieces) * piece;
            const size_t n = size - at < piece ? (size_t)(size - at) : piece;
            assert_ok(wt_read_bytes(f, t, at, n, data, &err), &err);
        }
    }
    assert_ok(wt_digest_end(f, &hash, &err), &err);
    free(data);
    return hash;
}

TEST_CASE(reads_may_be_divided)
{
    wt_file *f = open_weights(GOOD);
    const uint64_t whole = read_all(f, 1 << 20, 1, -1);
    assert_true(whole != 0);
    assert_true(read_all(f, 1, 1, -1) == whole && read_all(f, 6, 1, -1) == whole && read_all(f, 4096, 1, -1) == whole);
    assert_true(read_all(f, 1 << 20, 2, -1) == whole && read_all(f, 4096, 3, -1) == whole);
    for (int i = 0; i < wt_count(f); i++) assert_true(read_all(f, 4096, 1, i) != whole);
    wt_close(f);
}

TEST_CASE(every_byte_counts)
{
    bytes file = bytes_from_file(GOOD);
    uint8_t *data = file.data;
    mar_err err = {0};
    wt_file *f;
    assert_ok(wt_open_memory(data, file.size, "memory", &f, &err), &err);
    const uint64_t whole = read_all(f, 4096, 1, -1);
    for (int i = 0; i < wt_count(f); i++) {
        const wt_tensor *t = wt_at(f, i);
        for (int k = 0; k < 3; k++) {
            uint8_t *byte = data + t->offset + (uint64_t)k * (wt_bytes_of(t) - 1) / 2;
            *byte ^= 0x80;
            if (read_all(f, 4096, 1, -1) == whole) fail_msg("tensor %s: a sign changed, the hash did not", t->name);
            *byte ^= 0x80;
        }
    }
    assert_true(read_all(f, 4096, 1, -1) == whole);
    wt_close(f);
    bytes_free(&file);
}

TEST_CASE(a_view_is_apart)
{
    mar_err err = {0};
    wt_file *f = open_weights(GOOD), *view;
    const int count = wt_count(f);
    const uint64_t whole = read_all(f, 4096, 1, -1);
    assert_ok(wt_view(f, &view, &err), &err);
    assert_true(read_all(view, 4096, 1, -1) == whole);
    wt_narrow(view, "diffloss.");
    assert_in_range(wt_count(view), 1, count - 1);
    assert_non_null(wt_find(view, "net.cond_embed.weight"));
    assert_null(wt_find(f, "net.cond_embed.weight"));
    assert_int_equal(wt_count(f), count);
    assert_true(read_all(view, 4096, 1, -1) != whole);
    wt_close(view);
    assert_true(read_all(f, 4096, 1, -1) == whole);
    wt_close(f);
}
