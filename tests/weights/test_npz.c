/* NumPy's files: good files read as NumPy reads them, damaged ones are refused. The files and the numbers are from
 * tests/weights/make_npz.py. */
#include "tests/support/npz_arrays.h"

#include <fcntl.h>
#include <unistd.h>

TEST_CASE(test_read)
{
    static const char *const files[] = {DATA "arrays.npz", DATA "deflated.npz", DATA "fortran.npz",
                                        DATA "fortran_deflated.npz"};
    wt_file *expected = open_expected();
    for (int i = 0; i < 4; i++) {
        npz *z = NULL;
        assert_npz(npz_open(files[i], &z, why));
        check_arrays(z, files[i], expected);
        if (i >= 2) assert_int_equal(npz_find(z, "f64")->fortran, 1);
        npz_close(z);
        bytes b = bytes_from_file(files[i]);
        assert_npz(npz_open_memory(b.data, b.size, files[i], &z, why));
        check_arrays(z, files[i], expected);
        npz_close(z);
        bytes_free(&b);
    }
    wt_close(expected);
}

TEST_CASE(test_npy)
{
    static const char *const files[] = {"v1.npy", "v2.npy", "v3.npy"};
    wt_file *expected = open_expected();
    for (int i = 0; i < 3; i++) {
        char path[100];
        npz *z = NULL;
        snprintf(path, sizeof path, DATA "%s", files[i]);
        assert_npz(npz_open(path, &z, why));
        assert_int_equal(npz_count(z), 1);
        assert_string_equal(npz_name_at(z, 0), "");
        const npz_array *a = npz_find(z, "");
        assert_non_null(a);
        assert_int_equal(a->dtype, NPZ_F32);
        assert_true(a->rank == 2 && a->shape[0] == 4 && a->shape[1] == 6 && a->count == 24);
        assert_int_equal(a->fortran, i == 1);
        if (!reads_as(z, a, expected, files[i])) fail_msg("%s: other numbers %s", path, why);
        assert_null(npz_find(z, "mu"));
        npz_explain(z, "mu", why);
        assert_non_null(strstr(why, "is a .npy file, one array without a name, expected a .npz with \"mu\""));
        npz_close(z);
    }
    wt_close(expected);
}

/* --- what is not read --------------------------------------------------------------------------------------------- */

TEST_CASE(test_refused_arrays)
{
    static const char *const reasons[][2] = {
        {"big", "refused.npz: \"big\" is big-endian (>f8), expected little-endian"},
        {"object", "\"object\" holds Python objects (|O), which are never loaded"},
        {"complex", "\"complex\" has the type <c8, expected float16, float32, float64, uint8, int32 or int64"},
        {"structured", "\"structured\" has a structured type, expected numbers"},
        {"text", "\"text\" has the type <U1"},
        {"bool", "\"bool\" has the type |b1"},
        {"rank9", "\"rank9\" has 9 dimensions, expected at most 8"},
        {"mu", "refused.npz: has no array \"mu\"; it has \"big\", \"bool\", \"complex\","},
    };
    npz *z = NULL;
    assert_npz(npz_open(DATA "refused.npz", &z, why));
    for (size_t i = 0; i < sizeof reasons / sizeof *reasons; i++) {
        assert_null(npz_find(z, reasons[i][0]));
        npz_explain(z, reasons[i][0], why);
        if (!strstr(why, reasons[i][1])) fail_msg("\"%s\" does not say \"%s\"", why, reasons[i][1]);
    }
    const npz_array *right = npz_find(z, "right");
    double numbers[4];
    assert_true(right && right->count == 4);
    assert_npz(npz_read_f64(z, right, numbers, why));
    assert_true(numbers[0] == 0 && numbers[3] == 3);
    npz_close(z);

    assert_npz(npz_open(DATA "bzip2.npz", &z, why));
    assert_int_equal(npz_count(z), 1); /* an entry not named .npy is no array */
    npz_explain(z, "arr_0", why);
    assert_non_null(strstr(why, "is compressed in a way that is not known here"));
    npz_close(z);
}

TEST_CASE(test_headers)
{
    static const char malformed[] = "has a malformed header at its byte";
    static const struct {
        const char *dictionary, *words; /* words: of the refusal; NULL if it opens */
    } cases[] = {
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (4,), }\n", NULL},
        {"{\"shape\":(2L,2),\"fortran_order\":True,\"descr\":\"<f4\"}", NULL},
        {" { 'fortran_order' : False , 'shape' : ( 2 , 2 , ) , 'descr' : '<f8' }", "has 96 bytes, expected 112"},
        {"{'descr': '|u1', 'fortran_order': False, 'shape': (), }", "expected 66 by its header"},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (5,), }", "expected 87 by its header"},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (3,), }", "expected 79 by its header"},
        {"{'descr': '<f8', 'fortran_order': False, 'shape': (2305843009213693953,), }", "more than any file"},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (4294967296, 4294967296), }", "cannot be multiplied"},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (4), }", malformed},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (-4,), }", malformed},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (99999999999999999999,), }", malformed},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (4 4), }", malformed},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': [4], }", malformed},
        {"{'descr': '<f4', 'fortran_order': 0, 'shape': (4,), }", malformed},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (4,), 'more': 1}", malformed},
        {"{'descr': '<f4', 'descr': '<f4', 'fortran_order': False, 'shape': (4,)}", malformed},
        {"{'descr': '<f4', 'shape': (4,), }", malformed},
        {"{'descr': '', 'fortran_order': False, 'shape': (4,), }", malformed},
        {"{'descr': '<f4, 'fortran_order': False, 'shape': (4,), }", malformed},
        {"{'descr': __import__('os'), 'fortran_order': False, 'shape': (4,), }", malformed},
        {"{'descr': [('a', '<f4'), 'fortran_order': False, 'shape': (4,), }", malformed},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (4,), } 1", malformed},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (4,), ", malformed},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (4,),", malformed},
        {"{'descr': '<f4\\", malformed},
        {"  ", malformed},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (int version = 1; version <= 3; version++) {
            if (version > 1 && cases[i].words != malformed) continue; /* the sizes are those of version 1 */
            bytes b = make_npy(cases[i].dictionary, version, 16);
            const uint8_t *copy = guarded_copy(b.data, b.size);
            npz *z = NULL;
            if (cases[i].words) {
                assert_refused(npz_open_memory(copy, b.size, "x.npy", &z, why), MAR_EFORMAT, cases[i].words);
                assert_non_null(strstr(why, "x.npy: the array "));
                assert_null(z);
            } else {
                float numbers[4];
                assert_npz(npz_open_memory(copy, b.size, "x.npy", &z, why));
                assert_npz(npz_read_f32(z, npz_find(z, ""), numbers, why));
                npz_close(z);
            }
            guarded_free(copy, b.size);
            bytes_free(&b);
        }
    npz *z = NULL;
    bytes none = make_npy("{'descr': '<f4', 'fortran_order': True, 'shape': (0, 4294967296, 4294967296), }", 1, 0);
    assert_npz(npz_open_memory(none.data, none.size, "x.npy", &z, why)); /* no numbers, though two sizes overflow */
    assert_int_equal(npz_find(z, "")->count, 0);
    assert_npz(npz_read_f64(z, npz_find(z, ""), &(double){0}, why));
    npz_close(z);
    bytes_free(&none);
    bytes b = make_npy("{'descr': [[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[", 1, 0);
    assert_refused(npz_open_memory(b.data, b.size, "x.npy", &z, why), MAR_EFORMAT, malformed);
    b.data[6] = 4;
    assert_refused(npz_open_memory(b.data, b.size, "x.npy", &z, why), MAR_EFORMAT, "version 4.0");
    b.data[6] = 2;
    memset(b.data + 8, 0xff, 4);
    assert_refused(npz_open_memory(b.data, b.size, "x.npy", &z, why), MAR_EFORMAT, "a header of 4294967295 bytes");
    memcpy(b.data + 8, "\x77\x77\0\0", 4);
    assert_refused(npz_open_memory(b.data, b.size, "x.npy", &z, why), MAR_EFORMAT, "a header of 30595 bytes and 60");
    bytes_free(&b);
    assert_refused(npz_open_memory("<html>\n<body> and so on", 23, "x", &z, why), MAR_EFORMAT,
                   "x: 23 bytes that begin with \"<html>.<body> an\", expected a .npz or .npy file");
    assert_refused(npz_open_memory(NULL, 0, "x", &z, why), MAR_EFORMAT, "x: 0 bytes that begin with \"\"");
    assert_refused(npz_open("tests", &z, why), MAR_EIO, "tests: is not a regular file");
    assert_refused(npz_open("none\n.npz", &z, why), MAR_EIO, "none\\n.npz: cannot open: ");
}

/* --- streams ------------------------------------------------------------------------------------------------------ */

TEST_CASE(test_stream)
{
    wt_file *expected = open_expected();
    size_t size;
    uint8_t *wanted = expected_bytes(expected, "images", &size), *got = malloc(size);
    npz *z = NULL;
    assert_npz(npz_open(DATA "images.npz", &z, why));
    const npz_array *a = npz_find(z, "arr_0");
    assert_true(a && a->rank == 4 && (size_t)a->count == size);
    assert_refused(npz_stream_read(z, 1, got, why), MAR_EARG, "no array was begun");
    for (size_t piece = 1000; piece < 2 * size;
         piece *= 7) { /* later rounds begin again after a stream that ended early */
        assert_npz(npz_stream_begin(z, a, why));
        memset(got, 0, size);
        for (size_t at = 0; at < size; at += piece)
            assert_npz(npz_stream_read(z, size - at < piece ? size - at : piece, got + at, why));
        assert_memory_equal(got, wanted, size);
        assert_refused(npz_stream_read(z, 1, got, why), MAR_EFORMAT, "\"arr_0\": 1 bytes at 73856 reach past its end");
        assert_npz(npz_stream_begin(z, a, why));
        assert_npz(npz_stream_read(z, 5, got, why));
    }
    npz_close(z);
    assert_npz(npz_open(DATA "fortran.npz", &z, why));
    assert_refused(npz_stream_begin(z, npz_find(z, "u8"), why), MAR_EFORMAT, "\"u8\" is in Fortran order");
    assert_refused(npz_stream_begin(z, npz_find(z, "f64"), why), MAR_EFORMAT,
                   "\"f64\" is float64 [5, 4], expected uint8");
    npz_close(z);
    free(wanted);
    free(got);
    wt_close(expected);
}

TEST_CASE(test_changed_file)
{
    char *path = test_path("a.npz");
    bytes b = bytes_from_file(DATA "images.npz");
    bytes_to_file(&b, path);
    npz *z = NULL;
    static uint8_t got[24 * 32 * 32 * 3];
    assert_npz(npz_open(path, &z, why));
    assert_npz(npz_stream_begin(z, npz_find(z, "arr_0"), why));
    assert_npz(npz_stream_read(z, sizeof got - 1, got, why));
    assert_int_equal(truncate(path, (off_t)b.size - 1), 0);
    assert_refused(npz_stream_read(z, 1, got, why), MAR_EIO, "the file changed while it was read");
    assert_refused(npz_stream_read(z, 1, got, why), MAR_EARG, "no array was begun");
    npz_close(z);
    bytes_free(&b);
}

/* --- damage ------------------------------------------------------------------------------------------------------- */

/* Checks what opened from a damaged file. Every array of a known name is as NumPy wrote it, or is refused. */
static int check_damaged(npz *z, const wt_file *expected)
{
    int whole = 1;
    for (int i = 0; i < npz_count(z); i++) {
        int known = 0;
        const npz_array *a = npz_find(z, npz_name_at(z, i));
        for (int j = 0; j < ARRAYS; j++) known |= strcmp(npz_name_at(z, i), arrays[j].name) == 0;
        if (!a) {
            npz_explain(z, npz_name_at(z, i), why);
            whole = 0;
        }
        if (a && known && !reads_as(z, a, expected, a->name)) {
            if (!*why && a->dtype == arrays[0].dtype) fail_msg("%s is read, but as other numbers", a->name);
            whole = 0;
        }
        if (!whole && *why && strncmp(why, "damaged: ", 9) != 0) fail_msg("\"%s\" does not name the file", why);
    }
    return whole;
}

static int try_damaged(const uint8_t *data, size_t size, const wt_file *expected)
{
    npz *z = NULL;
    const mar_status status = npz_open_memory(data, size, "damaged", &z, why);
    if (status != MAR_OK) {
        assert_null(z);
        assert_true(status == MAR_EFORMAT || status == MAR_ENOMEM);
        if (strncmp(why, "damaged: ", 9) != 0) fail_msg("\"%s\" does not name the file", why);
        return 0;
    }
    const int whole = check_damaged(z, expected);
    npz_close(z);
    return whole;
}

/* Checks that thousands of directory entries may share one place in the file. */
TEST_CASE(test_many_arrays)
{
    enum { MANY = 4097 };
    static zip_part parts[MANY];
    static char names[MANY][16];
    npz *z;
    for (int i = 0; i < MANY; i++) {
        snprintf(names[i], sizeof names[i], "%d", i);
        parts[i] = (zip_part){.name = names[i], .data = "", .size = 0};
    }
    bytes b = make_zip(parts, MANY - 1, 0);
    assert_npz(npz_open_memory(b.data, b.size, "many", &z, why));
    npz_close(z);
    bytes_free(&b);
    b = make_zip(parts, MANY, 0);
    assert_refused(npz_open_memory(b.data, b.size, "many", &z, why), MAR_EFORMAT,
                   "many: its zip directory has 4097 entries, expected at most 4096");
    bytes_free(&b);
}

TEST_CASE(test_damaged)
{
    static const char *const files[] = {DATA "arrays.npz", DATA "deflated.npz"};
    wt_file *expected = open_expected();
    for (int f = 0; f < 2; f++) {
        bytes b = bytes_from_file(files[f]);
        size_t whole = 0, tried = 0;
        for (size_t size = 0; size < b.size; size++) {
            const uint8_t *copy = guarded_copy(b.data, size);
            if (try_damaged(copy, size, expected)) fail_msg("%s opens when cut to %zu", files[f], size);
            guarded_free(copy, size);
        }
        const uint8_t *guarded = guarded_copy(b.data, b.size);
        uint8_t *copy = (uint8_t *)(uintptr_t)guarded;
        for (size_t bit = 0; bit < b.size * 8; bit += 3, tried++) { /* two or three bits of each byte */
            copy[bit / 8] ^= (uint8_t)(1u << bit % 8);
            whole += (size_t)try_damaged(copy, b.size, expected);
            copy[bit / 8] ^= (uint8_t)(1u << bit % 8);
        }
        /* Harmless changes: names, dates, versions, and sizes that the directory repeats. */
        assert_in_range(whole, tried / 20, tried / 2);
        guarded_free(guarded, b.size);
        bytes_free(&b);
    }
    wt_close(expected);
}

/* Tests directories whose sizes differ from the data's, and damage that only shows in the data. */
TEST_CASE(test_disagreement)
{
    npz *z = NULL;
    bytes b = bytes_from_file(DATA "deflated.npz");
    uint8_t *entry = find_entry(&b, "f64.npy");
    const uint8_t size = entry[24];
    entry[24]++;
    assert_refused(npz_open_memory(b.data, b.size, "x", &z, why), MAR_EFORMAT, "expected 288 by its header");
    entry[24] = size;
    entry[27] = 0x40; /* a gigabyte */
    assert_refused(npz_open_memory(b.data, b.size, "x", &z, why), MAR_EFORMAT, "which cannot be 1073742112 bytes of");
    entry[27] = 0;
    entry[20]--; /* the last byte of the deflated data is missing */
    double numbers[20];
    assert_npz(npz_open_memory(b.data, b.size, "x", &z, why));
    assert_refused(npz_read_f64(z, npz_find(z, "f64"), numbers, why), MAR_EFORMAT, "x: \"f64\": its compressed data");
    npz_close(z);
    entry[20] += 2;
    assert_npz(npz_open_memory(b.data, b.size, "x", &z, why));
    assert_refused(npz_read_f64(z, npz_find(z, "f64"), numbers, why), MAR_EFORMAT, "go on after the 288 bytes");
    npz_close(z);
    entry[20]--;
    entry[16] ^= 1;
    assert_npz(npz_open_memory(b.data, b.size, "x", &z, why));
    assert_refused(npz_read_f64(z, npz_find(z, "f64"), numbers, why), MAR_EFORMAT, "their CRC-32 is ");
    npz_close(z);
    entry[16] ^= 1;
    entry[8] |= 1;
    assert_npz(npz_open_memory(b.data, b.size, "x", &z, why));
    assert_null(npz_find(z, "f64"));
    npz_explain(z, "f64", why);
    assert_string_equal(why, "x: \"f64\" is encrypted");
    npz_close(z);
    bytes_free(&b);
}

/* Tests ZIP64 everywhere, and an entry without an array. */
TEST_CASE(test_zip64)
{
    npz *z = NULL;
    double numbers[4];
    bytes npy = make_npy("{'descr': '<i4', 'fortran_order': False, 'shape': (4,), }", 1, 16);
    zip_part parts[] = {{.name = "a.npy", .data = npy.data, .size = npy.size}, {.name = "b", .data = "b", .size = 1}};
    bytes b = make_zip(parts, 2, 1);
    assert_npz(npz_open_memory(b.data, b.size, "x", &z, why));
    assert_int_equal(npz_count(z), 1);
    /* make_zip leaves the CRC-32 out, as 0 */
    assert_refused(npz_read_f64(z, npz_find(z, "a"), numbers, why), MAR_EFORMAT, "expected 00000000");
    npz_close(z);
    bytes_free(&b);
    parts[1].name = "b.npy";
    b = make_zip(parts, 2, 1);
    assert_refused(npz_open_memory(b.data, b.size, "x", &z, why), MAR_EFORMAT, "x: \"b\" has 1 bytes, too few");
    bytes_free(&b);
    b = make_zip(parts, 0, 0);
    assert_npz(npz_open_memory(b.data, b.size, "x", &z, why));
    assert_int_equal(npz_count(z), 0);
    npz_explain(z, "mu", why);
    assert_string_equal(why, "x: has no arrays, expected \"mu\"");
    npz_close(z);
    bytes_free(&b);
    bytes_free(&npy);
}
