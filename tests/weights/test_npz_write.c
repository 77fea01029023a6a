/* Writing NumPy's files: the output is that of numpy.savez, byte for byte where zlib's version cannot matter. */
#include "tests/support/npz_arrays.h"

#include "weights/zip.h"

#include <fcntl.h>
#include <unistd.h>

static void write_arrays(const char *path, int deflated, const wt_file *expected)
{
    npz_writer *w = NULL;
    assert_npz(npz_writer_open(path, deflated, &w, why));
    for (int i = 0; i < ARRAYS; i++) {
        size_t size;
        void *data = expected_bytes(expected, arrays[i].name, &size);
        assert_npz(npz_writer_add(w, arrays[i].name, arrays[i].dtype, arrays[i].rank, arrays[i].shape, data, why));
        free(data);
    }
    assert_npz(npz_writer_commit(w, why));
}

TEST_CASE(test_write)
{
    char *path = test_path("a.npz");
    wt_file *expected = open_expected();
    npz *z = NULL;
    write_arrays(path, 0, expected);
    bytes ours = bytes_from_file(path), numpys = bytes_from_file(DATA "arrays.npz");
    assert_int_equal(ours.size, numpys.size);
    assert_memory_equal(ours.data, numpys.data, ours.size);
    bytes_free(&ours);
    bytes_free(&numpys);

    write_arrays(path, 1, expected); /* zlib's versions may differ in the deflated data, and so in their size */
    ours = bytes_from_file(path), numpys = bytes_from_file(DATA "deflated.npz");
    const size_t name = strlen("u8.npy");
    assert_memory_equal(ours.data, numpys.data, 30 + name + 4 + 8);
    for (int i = 0; i < ARRAYS; i++) {
        char entry[64];
        snprintf(entry, sizeof entry, "%s.npy", arrays[i].name);
        const uint8_t *a = find_entry(&ours, entry), *b = find_entry(&numpys, entry);
        assert_memory_equal(a, b, 20);
        assert_memory_equal(a + 24, b + 24, 18);
    }
    bytes_free(&ours);
    bytes_free(&numpys);
    assert_npz(npz_open(path, &z, why));
    check_arrays(z, path, expected);
    npz_close(z);
    wt_close(expected);
}

/* An array in pieces gives the bytes of one written at once, and must be whole. */
TEST_CASE(test_write_in_pieces)
{
    enum { N = 70000 };
    char *path = test_path("a.npz");
    float *numbers = malloc(N * sizeof *numbers);
    const int64_t shape[] = {7, N / 7};
    assert_non_null(numbers);
    for (int i = 0; i < N; i++) numbers[i] = (float)(i % 977) / 3;
    for (int deflated = 0; deflated < 2; deflated++) {
        npz_writer *w = NULL;
        assert_npz(npz_writer_open(path, deflated, &w, why));
        assert_npz(npz_writer_add(w, "x", NPZ_F32, 2, shape, numbers, why));
        assert_npz(npz_writer_commit(w, why));
        bytes whole = bytes_from_file(path);
        assert_npz(npz_writer_open(path, deflated, &w, why));
        assert_npz(npz_writer_begin(w, "x", NPZ_F32, 2, shape, why));
        for (int i = 0, n; i < N; i += n) {
            n = N - i < 4001 ? N - i : 4001;
            assert_npz(npz_writer_put(w, numbers + i, (size_t)n * sizeof *numbers, why));
        }
        assert_refused(npz_writer_put(w, numbers, 1, why), MAR_EARG, "1 bytes for an array that lacks 0");
        assert_npz(npz_writer_end(w, why));
        assert_npz(npz_writer_commit(w, why));
        bytes pieces = bytes_from_file(path);
        assert_int_equal(pieces.size, whole.size);
        assert_memory_equal(pieces.data, whole.data, whole.size);
        bytes_free(&whole);
        bytes_free(&pieces);
        assert_npz(npz_writer_open(path, deflated, &w, why));
        assert_npz(npz_writer_begin(w, "x", NPZ_F32, 2, shape, why));
        assert_npz(npz_writer_put(w, numbers, 8, why));
        assert_refused(npz_writer_end(w, why), MAR_EARG, "an array lacks 279992 bytes");
        npz_writer_discard(w);
    }
    free(numbers);
}

TEST_CASE(test_write_refused)
{
    char *dir = test_directory(), path[600];
    npz_writer *w = NULL;
    const double x = 1;
    assert_refused(npz_writer_open("no such folder/a.npz", 0, &w, why), MAR_EIO, "no such folder/a.npz: cannot write");
    assert_null(w);
    snprintf(path, sizeof path, "%s/a.npz", dir);
    assert_npz(npz_writer_open(path, 1, &w, why));
    assert_npz(npz_writer_add(w, "a", NPZ_F64, 0, NULL, &x, why));
    assert_refused(npz_writer_add(w, "a", NPZ_F64, 0, NULL, &x, why), MAR_EARG, "\"a\" is written twice");
    assert_refused(npz_writer_add(w, "", NPZ_F64, 0, NULL, &x, why), MAR_EARG, "not valid");
    assert_refused(npz_writer_add(w, "b", NPZ_F64, 1, (int64_t[]){-1}, &x, why), MAR_EARG, "not valid");
    assert_refused(npz_writer_add(w, "b", NPZ_F64, 9, (int64_t[]){1, 1, 1, 1, 1, 1, 1, 1, 1}, &x, why), MAR_EARG, "9");
    npz_writer_discard(w);
    npz_writer_discard(NULL);
    assert_int_equal(access(path, F_OK), -1);
    assert_int_equal(rmdir(dir), 0); /* nothing is left in it */
}

/* Writes two deflated arrays of more than a buffer each, one that compresses and one that does not. */
TEST_CASE(test_write_large)
{
    enum { N = 300001 };
    char *path = test_path("a.npz");
    uint8_t *data = malloc(2 * N), *got = malloc(N);
    npz_writer *w = NULL;
    npz *z = NULL;
    uint32_t random = 1;
    for (int i = 0; i < N; i++) {
        random = random * 1664525u + 1013904223u;
        data[i] = (uint8_t)(i / 1000);
        data[N + i] = (uint8_t)(random >> 24);
    }
    assert_npz(npz_writer_open(path, 1, &w, why));
    for (int i = 0; i < 2; i++)
        assert_npz(npz_writer_add(w, i ? "b" : "a", NPZ_U8, 1, (int64_t[]){N}, data + i * N, why));
    assert_npz(npz_writer_commit(w, why));
    assert_npz(npz_open(path, &z, why));
    for (int i = 0; i < 2; i++) {
        assert_npz(npz_stream_begin(z, npz_find(z, i ? "b" : "a"), why));
        assert_npz(npz_stream_read(z, N, got, why));
        assert_memory_equal(got, data + i * N, N);
    }
    npz_close(z);
    free(data);
    free(got);
}

/* Reads an array that begins beyond 4 GB. */
TEST_CASE(test_far)
{
    char *path = test_path("a.npz");
    npz *z = NULL;
    float numbers[4];
    bytes npy = make_npy("{'descr': '<f4', 'fortran_order': False, 'shape': (4,), }", 1, 16);
    const zip_part parts[] = {
        {.name = "a.npy", .data = npy.data, .size = npy.size, .crc = npz_crc(npy.data, npy.size)},
        {.name = "b.npy", .data = npy.data, .size = npy.size, .crc = npz_crc(npy.data, npy.size)}};
    write_sparse_zip(path, parts, 2, 5ull << 30);
    assert_npz(npz_open(path, &z, why));
    assert_npz(npz_read_f32(z, npz_find(z, "b"), numbers, why));
    assert_memory_equal(numbers, npy.data + npy.size - 16, 16);
    npz_close(z);
    bytes_free(&npy);
}

/* --- slots -------------------------------------------------------------------------------------------------------- */

TEST_CASE(test_slots)
{
    enum { N = 5, ITEM = 32 * 32 * 3 };
    static const int order[N] = {3, 0, 4, 2, 1};
    char *path = test_path("a.npz");
    wt_file *expected = open_expected();
    size_t size;
    uint8_t *images = expected_bytes(expected, "images", &size);
    uint32_t crc[N] = {0};
    npz_slots s;
    npz_slots_layout(N, (const int64_t[]){32, 32, 3}, &s);
    assert_int_equal(s.item, ITEM);
    const int fd = open(path, O_RDWR | O_CREAT, 0666);
    assert_true(fd >= 0);
    assert_refused(npz_slots_finish(fd, path, &s, crc, why), MAR_EFORMAT, "has 0 bytes, expected");
    for (int i = 0; i < N; i++) {
        const uint8_t *image = images + order[i] * ITEM;
        crc[order[i]] = npz_crc(image, ITEM);
        assert_int_equal(pwrite(fd, image, ITEM, (off_t)(s.first + (uint64_t)order[i] * ITEM)), ITEM);
    }
    bytes numpys = bytes_from_file(DATA "slots.npz");
    for (int again = 0; again < 2; again++) {
        assert_npz(npz_slots_finish(fd, path, &s, crc, why));
        bytes ours = bytes_from_file(path);
        assert_int_equal(ours.size, s.size);
        assert_int_equal(ours.size, numpys.size);
        assert_memory_equal(ours.data, numpys.data, ours.size);
        bytes_free(&ours);
    }
    assert_int_equal(ftruncate(fd, (off_t)s.size + 1), 0);
    assert_refused(npz_slots_finish(fd, path, &s, crc, why), MAR_EFORMAT, "expected the");
    close(fd);
    bytes_free(&numpys);
    free(images);
    wt_close(expected);
}

/* Checks the last image's bytes, and the array's entry in the directory. test_slots has checked that the CRC-32 is
 * right. */
static void check_huge_end(const char *path, const npz_slots *s, uint32_t crc)
{
    file_source source;
    zip_directory zip;
    mar_err err = {0};
    uint8_t *image = malloc(s->item);
    assert_non_null(image);
    assert_ok(file_source_open(path, &source, &err), &err);
    assert_int_equal(source.size, s->size);
    assert_ok(file_source_read(&source, s->first + (uint64_t)(s->n - 1) * s->item, s->item, image, &err), &err);
    assert_int_equal(npz_crc(image, s->item), crc);
    assert_ok(zip_open(&source, &zip, &err), &err);
    const zip_entry *e = zip_find(&zip, "arr_0.npy", 9);
    assert_true(e && e->size == e->packed && e->size == 128 + (uint64_t)s->n * s->item && e->header == 0);
    zip_close(&zip);
    file_source_close(&source);
    free(image);
}

/* Writes more than 4 GB. Sizes are ZIP64 in both headers, and so is the directory's offset. The file is sparse. Only
 * its ends are read, as reading all of it takes seconds. */
TEST_CASE(test_huge_slots)
{
    enum { N = 1400, SIDE = 1024, ITEM = SIDE * SIDE * 3 };
    char *path = test_path("a.npz");
    uint8_t *image = calloc(1, ITEM);
    uint32_t *crc = malloc(N * sizeof *crc);
    npz_slots s;
    npz *z = NULL;
    npz_slots_layout(N, (const int64_t[]){SIDE, SIDE, 3}, &s);
    assert_true(s.size > UINT32_MAX);
    const int fd = open(path, O_RDWR | O_CREAT, 0666);
    assert_true(fd >= 0 && image && crc);
    crc[0] = npz_crc(image, ITEM);
    for (int i = 1; i < N; i++) crc[i] = crc[0];
    for (int i = 0; i < N; i += N - 1) { /* first and last */
        for (int j = 0; j < ITEM; j++) image[j] = (uint8_t)(i + j * 31);
        crc[i] = npz_crc(image, ITEM);
        assert_int_equal(pwrite(fd, image, ITEM, (off_t)(s.first + (uint64_t)i * ITEM)), ITEM);
    }
    assert_npz(npz_slots_finish(fd, path, &s, crc, why));
    close(fd);
    assert_npz(npz_open(path, &z, why));
    const npz_array *a = npz_find(z, "arr_0");
    assert_true(a && a->dtype == NPZ_U8 && a->rank == 4 && a->shape[0] == N && a->count == (int64_t)N * ITEM);
    assert_npz(npz_stream_begin(z, a, why));
    assert_npz(npz_stream_read(z, ITEM, image, why));
    for (int j = 0; j < ITEM; j++)
        if (image[j] != (uint8_t)(j * 31)) fail_msg("byte %d of the first image is %d", j, image[j]);
    npz_close(z);
    check_huge_end(path, &s, crc[N - 1]);
    free(image);
    free(crc);
}
