/* Images made elsewhere. Every kind of PNG and JPEG is read with the same bits as PIL. Folders and arrays are streams
 * in a fixed order. Other files are refused in one line. The files are from tests/golden/make_images.py. */
#include "tests/support/archive.h"
#include "tests/support/command.h"
#include "tests/support/png_bombs.h"

#include "tools/images/source.h"
#include "weights/npz.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define DATA "tests/golden/data/images/"

enum { W = 37, H = 23, PIXELS = W * H * 3 };

/* --- lines on stderr ---------------------------------------------------------------------------------------------- */

/* Checks that the call failed and printed one line with these words. */
static void check_said(command_result r, const char *words)
{
    assert_true(r.status);
    const char *newline = strchr(r.err, '\n');
    if (!newline || newline[1]) fail_msg("not one line: \"%s\"", r.err);
    assert_has(r.err, words);
    command_result_free(&r);
}

static void assert_not_opened(const char *path, const char *words)
{
    image_source *s = NULL;
    capture_begin();
    check_said(capture_end(image_source_open(path, &s)), words);
    assert_null(s);
}

static void assert_not_read(image_source *s, int64_t first, int64_t n, const char *words)
{
    uint8_t *rgb = malloc((size_t)n * (size_t)image_source_width(s) * (size_t)image_source_height(s) * 3);
    capture_begin();
    check_said(capture_end(image_source_read(s, first, n, rgb)), words);
    free(rgb);
}

/* --- pictures ----------------------------------------------------------------------------------------------------- */

static npz *open_npz(const char *path)
{
    char why[NPZ_WHY_MAX];
    npz *z = NULL;
    if (npz_open(path, &z, why) != MAR_OK) fail_msg("%s", why);
    return z;
}

static void load(npz *z, const char *name, int64_t count, uint8_t *rgb)
{
    char why[NPZ_WHY_MAX];
    const npz_array *a = npz_find(z, name);
    if (!a) fail_msg("no %s", name);
    assert_int_equal(a->count, count);
    if (npz_stream_begin(z, a, why) != MAR_OK || npz_stream_read(z, (size_t)count, rgb, why) != MAR_OK)
        fail_msg("%s", why);
}

TEST_CASE(test_pixels)
{
    static uint8_t wanted[PIXELS];
    npz *expected = open_npz(DATA "expected.npz");
    assert_int_equal(npz_count(expected), 41);
    for (int i = 0; i < npz_count(expected); i++) {
        char path[200], why[IMAGE_WHY_MAX];
        image picture;
        int width, height;
        const char *name = npz_name_at(expected, i);
        if (strstr(name, ".webp") && image_format_lacks(IMAGE_WEBP)) continue;
        snprintf(path, sizeof path, DATA "%s", name);
        load(expected, name, PIXELS, wanted);
        bytes b = bytes_from_file(path);
        if (image_decode(b.data, b.size, &picture, why) != 0 || image_size(b.data, b.size, &width, &height, why) != 0)
            fail_msg("%s: %s", name, why);
        bytes_free(&b);
        assert_true(picture.width == W && width == W);
        assert_true(picture.height == H && height == H);
        if (memcmp(picture.rgb, wanted, PIXELS) != 0) fail_msg("%s: other pixels", name);
        free(picture.rgb);
    }
    npz_close(expected);
}

static int decode(const void *data, size_t size, char *why)
{
    image picture;
    const uint8_t *copy = guarded_copy(data, size);
    strcpy(why, "nothing");
    const int failed = image_decode(copy, size, &picture, why);
    guarded_free(copy, size);
    if (failed) assert_null(picture.rgb);
    free(picture.rgb);
    return failed;
}

/* Checks that a picture cut anywhere is refused. */
TEST_CASE(test_cut)
{
    static const char *const files[] = {"png2_8.png",      "png3_4_interlaced.png", "png6_16.png",
                                        "jpeg_420.jpg",    "jpeg_progressive.jpeg", "jpeg_restart.jpg",
                                        "webp_lossy.webp", "webp_lossless.webp",    "webp_lossy_alpha.webp",
                                        "jpeg_ycck.jpg"};
    for (size_t f = 0; f < LENGTH(files); f++) {
        char path[200], why[IMAGE_WHY_MAX];
        snprintf(path, sizeof path, DATA "%s", files[f]);
        bytes b = bytes_from_file(path);
        const int lacks = strstr(files[f], ".webp") && image_format_lacks(IMAGE_WEBP);
        for (size_t size = 0; size < b.size; size++)
            if (!decode(b.data, size, why)) fail_msg("%s is read when cut to %zu of %zu bytes", files[f], size, b.size);
        assert_int_equal(decode(b.data, b.size, why), lacks);
        bytes_free(&b);
    }
}

/* Flips each bit. A PNG is refused, except for flips in unused bytes. A JPEG has no checksum: it may become another
 * picture. */
TEST_CASE(test_flipped)
{
    static const char *const files[] = {"png2_8.png", "png3_2.png", "jpeg_grey.jpg", "jpeg_progressive.jpeg"};
    for (size_t f = 0; f < LENGTH(files); f++) {
        char path[200], why[IMAGE_WHY_MAX];
        int read = 0;
        snprintf(path, sizeof path, DATA "%s", files[f]);
        bytes b = bytes_from_file(path);
        for (size_t bit = 0; bit < b.size * 8; bit += f < 2 ? 1 : 3) {
            b.data[bit / 8] ^= (uint8_t)(1u << bit % 8);
            read += !decode(b.data, b.size, why);
            b.data[bit / 8] ^= (uint8_t)(1u << bit % 8);
        }
        if (f < 2 && read > 0) fail_msg("%s is read with one of %d bits flipped", files[f], read);
        if (f >= 2 && !read) fail_msg("%s: no flipped bit leaves a picture", files[f]);
        bytes_free(&b);
    }
}

TEST_CASE(test_refused_pictures)
{
    static const struct {
        const char *file, *words;
        size_t at; /* where the file is changed to `to`; 0: nowhere */
        const char *to;
        size_t n;
    } cases[] = {
        {DATA "png2_8.png", "is not a whole PNG (", 50, "\0", 1},
        {DATA "jpeg_420.jpg", " bytes that begin with \"....", 2, "\0", 1},
        {"tests/requirements.txt", " bytes that begin with \"# For the script\", expected a PNG", 0, "", 0},
        {DATA "refused_animated.webp", "is an animated WebP, expected one picture", 0, "", 0},
        {DATA "stack.npz", "is an npz, expected a PNG", 0, "", 0},
        {"tests/weights/data/mar.pth", "is a PyTorch file, expected a PNG", 0, "", 0},
        {"tests/weights/data/dtypes.safetensors", "is a safetensors file, expected a PNG", 0, "", 0},
        {"tools/page/template.html", "is HTML, expected a PNG", 0, "", 0},
        {DATA "png2_8.png", "has 16385x23 pixels, expected sides of 1 to 16384", 16, "\0\0\x40\x01\0\0\0\x17", 8},
        {DATA "png2_8.png", " bytes of pixels, too few for its 16384x16384", 16, "\0\0\x40\0\0\0\x40\0", 8},
    };
    for (size_t i = 0; i < LENGTH(cases); i++) {
        char why[IMAGE_WHY_MAX];
        if (strstr(cases[i].file, ".webp") && image_format_lacks(IMAGE_WEBP)) continue;
        bytes b = bytes_from_file(cases[i].file);
        if (cases[i].at) memcpy(b.data + cases[i].at, cases[i].to, cases[i].n);
        if (cases[i].at == 16) { /* in IHDR, which has a checksum */
            const uint32_t crc = npz_crc(b.data + 12, 17);
            for (int k = 0; k < 4; k++) b.data[29 + k] = (uint8_t)(crc >> (24 - 8 * k));
        }
        assert_int_equal(decode(b.data, b.size, why), 1);
        if (!strstr(why, cases[i].words))
            fail_msg("%s: \"%s\" does not say \"%s\"", cases[i].file, why, cases[i].words);
        bytes_free(&b);
    }
}

/* Names files of other kinds, of which the first bytes are here. */
TEST_CASE(test_kinds)
{
#define KIND(start, kind)                                                                                              \
    {                                                                                                                  \
        start, sizeof start - 1, kind                                                                                  \
    }
    static const struct {
        const char *start;
        size_t size;
        const char *kind;
    } cases[] = {
        KIND("GIF89a", "a GIF"),
        KIND("II*\0\x08\0\0\0", "a TIFF"),
        KIND("MM\0*\0\0\0\x08", "a TIFF"),
        KIND("BM\x36\x0c\0\0\0\0\0\0", "a BMP"),
        KIND("%PDF-1.7\n", "a PDF"),
        KIND("\n<!DOCTYPE html><html>", "HTML"),
        KIND("<HTML>", "HTML"),
        KIND("\0\0\0\x1c"
             "ftypavif\0\0\0\0",
             "an AVIF"),
        KIND("\0\0\0\x18"
             "ftypheic\0\0\0\0",
             "a HEIC"),
        KIND("\0\0\0\x18"
             "ftypmif1\0\0\0\0",
             "a HEIF"),
        KIND("\0\0\0\x14"
             "ftypqt  \0\0\0\0",
             "a QuickTime film"),
        KIND("\0\0\0\x18"
             "ftypcrx \0\0\0\1",
             "an ISO media file (MP4)"),
        KIND("P6\n37 23\n255\n", "a PPM, PGM or PBM"),
        KIND("PK\3\4................archive/data.pkl", "a PyTorch file"),
        KIND("\x80\x02\x8a\x0al\xfc\x9c", "a PyTorch file"),
        KIND("\x80\x04\x95\x10\0\0\0\0\0\0\0}\x94.", "a Python pickle"),
        KIND("PK\3\4................mu.npy", "an npz"),
        KIND("\x93NUMPY\1\0", "a NumPy array"),
        KIND("version https://git-lfs.github.com/spec/v1\n", "a Git LFS pointer"),
        KIND("\x1f\x8b\x08\0", "a gzip file"),
    };
#undef KIND
    for (size_t i = 0; i < LENGTH(cases); i++) {
        char why[IMAGE_WHY_MAX], wanted[IMAGE_WHY_MAX];
        assert_int_equal(decode(cases[i].start, cases[i].size, why), 1);
        snprintf(wanted, sizeof wanted, "is %s, expected a PNG", cases[i].kind);
        if (strncmp(why, wanted, strlen(wanted)) != 0) fail_msg("\"%s\", not %s", why, wanted);
    }
    char why[IMAGE_WHY_MAX];
    assert_int_equal(decode("xxxx\0\0\0\0WEBPVP8 ", 16, why), 1);
    assert_non_null(strstr(why, "16 bytes that begin with \"xxxx....WEBPVP8 \""));
}

/* A picture to edit keeps its transparency, and is refused where PIL would make it white. */
TEST_CASE(test_alpha)
{
    static const struct {
        const char *file;
        int has_alpha;
    } cases[] = {{"png6_8.png", 1},
                 {"png4_8.png", 1},
                 {"png3_8.png", 1},
                 {"colour_with_clear_value.png", 1},
                 {"png2_8.png", 0},
                 {"jpeg_cmyk.jpg", 0},
                 {"jpeg_420.jpg", 0},
                 {"webp_lossless_alpha.webp", 1},
                 {"webp_lossy_alpha.webp", 1},
                 {"webp_lossy.webp", 0}};
    for (size_t i = 0; i < LENGTH(cases); i++) {
        char path[200], why[IMAGE_WHY_MAX];
        image with, without;
        uint8_t *alpha;
        if (strstr(cases[i].file, ".webp") && image_format_lacks(IMAGE_WEBP)) continue;
        snprintf(path, sizeof path, DATA "%s", cases[i].file);
        bytes b = bytes_from_file(path);
        if (image_decode_alpha(b.data, b.size, &with, &alpha, why) != 0) fail_msg("%s: %s", path, why);
        assert_int_equal(image_decode(b.data, b.size, &without, why), 0);
        assert_memory_equal(with.rgb, without.rgb, PIXELS);
        if ((alpha != NULL) != cases[i].has_alpha) fail_msg("%s: transparency", path);
        free(alpha);
        free(with.rgb);
        free(without.rgb);
        bytes_free(&b);
    }
    char why[IMAGE_WHY_MAX];
    image out;
    uint8_t *alpha;
    bytes b = bytes_from_file(DATA "png0_16.png");
    assert_int_equal(image_decode_alpha(b.data, b.size, &out, &alpha, why), 1);
    assert_string_equal(why, "is a PNG of 16-bit grey, expected 8 bits");
    bytes_free(&b);
}

/* --- folders ------------------------------------------------------------------------------------------------------ */

static void copy_file(const char *name, const char *dir, const char *as)
{
    char from[200], to[700];
    snprintf(from, sizeof from, DATA "%s", name);
    snprintf(to, sizeof to, "%s/%s", dir, as);
    bytes b = bytes_from_file(from);
    bytes_to_file(&b, to);
    bytes_free(&b);
}

COMMAND_CASE(test_folder)
{
    const char *dir = *state;
    static uint8_t rgb[4 * PIXELS], wanted[PIXELS];
    static const char *const files[][2] = {
        {"B.PNG", "png2_8.png"}, {"a b.jpeg", "jpeg_420.jpg"}, {"a.jpg", "jpeg_progressive.jpeg"},
        {"a.png", "png3_8.png"}, {"aa.JPG", "jpeg_bad.JPG"},   {"\xc3\xa4.png", "png0_1.png"}};
    enum { N = LENGTH(files) };
    char path[600];
    image_source *s = NULL;
    for (int i = N - 1; i >= 0; i--) copy_file(files[i][1], dir, files[i][0]);
    write_whole_file(dir, "record.json", "{}", 2);
    write_whole_file(dir, "png", "", 0);
    write_whole_file(dir, ".png", "", 0);
    snprintf(path, sizeof path, "%s/inner.png", dir);
    assert_int_equal(mkdir(path, 0777), 0);
    write_whole_file(path, "z.txt", "", 0);
    snprintf(path, sizeof path, "%s/", dir);
    assert_int_equal(image_source_open(path, &s), 0);
    assert_int_equal(image_source_count(s), N);
    assert_int_equal(image_source_width(s), W);
    assert_int_equal(image_source_height(s), H);
    npz *expected = open_npz(DATA "expected.npz");
    for (int i = 0; i < N; i++) assert_string_equal(image_source_name(s, i), files[i][0]);
    for (int first = 0; first < N; first += 4) {
        const int n = N - first < 4 ? N - first : 4;
        assert_int_equal(image_source_read(s, first, n, rgb), 0);
        for (int i = 0; i < n; i++) {
            load(expected, files[first + i][1], PIXELS, wanted);
            assert_memory_equal(rgb + i * PIXELS, wanted, PIXELS);
        }
    }
    npz_close(expected);
    image_source_close(s);
    copy_file("png2_8.png", dir, "grid.png"); /* an image among others */
    assert_int_equal(image_source_open(path, &s), 0);
    assert_int_equal(image_source_count(s), N + 1);
    image_source_close(s);
    copy_file("png2_8.png", dir, "000007.png"); /* a numbered grid of mar generate --grid */
    assert_int_equal(image_source_open(path, &s), 0);
    assert_int_equal(image_source_count(s), N + 1);
    for (int i = 0; i <= N; i++) assert_string_not_equal(image_source_name(s, i), "grid.png");
    image_source_close(s);
}

/* Folders of classes, as ImageNet unpacks: sorted by path, to the last level. */
COMMAND_CASE(test_folders_below)
{
    const char *dir = *state;
    static uint8_t rgb[4 * PIXELS], wanted[PIXELS];
    static const char *const files[][2] = {{"n01440764/n01440764_10026.JPEG", "jpeg_420.jpg"},
                                           {"n01440764/n01440764_9.JPEG", "jpeg_cmyk.jpg"},
                                           {"n01443537/a/b/n01443537_1.JPEG", "png2_8.png"},
                                           {"n01443537/c/000000.png", "png3_8.png"}};
    enum { N = LENGTH(files) };
    image_source *s = NULL;
    sh_ok(dir, "mkdir -p t/n01440764 t/n01443537/a/b t/n01443537/c t/empty t/.hidden t/n01443537/text");
    for (int i = N - 1; i >= 0; i--) copy_file(files[i][1], path_in(dir, "t"), files[i][0]);
    copy_file("png2_8.png", path_in(dir, "t"), "n01443537/c/grid.png"); /* beside numbered ones */
    assert_int_equal(image_source_open(path_in(dir, "t"), &s), 0);
    assert_int_equal(image_source_count(s), N);
    npz *expected = open_npz(DATA "expected.npz");
    assert_int_equal(image_source_read(s, 0, N, rgb), 0);
    for (int i = 0; i < N; i++) {
        assert_string_equal(image_source_name(s, i), files[i][0]);
        load(expected, files[i][1], PIXELS, wanted);
        assert_memory_equal(rgb + i * PIXELS, wanted, PIXELS);
    }
    npz_close(expected);
    image_source_close(s);

    copy_file("png2_8.png", path_in(dir, "t"), ".hidden/x.png");
    assert_not_opened(path_in(dir, "t"),
                      "/t/.hidden: has images, expected none in a directory whose name begins with a dot");
    sh_ok(dir, "rm t/.hidden/x.png");
    copy_file("png2_8.png", path_in(dir, "t"), "loose.png");
    assert_not_opened(path_in(dir, "t"),
                      "/t: has images, and so has its directory n01440764, expected images in one of "
                      "them only");
    sh_ok(dir, "rm t/loose.png && cp t/n01443537/c/000000.png t/n01443537");
    assert_not_opened(path_in(dir, "t"), "/t/n01443537: has images, and so has its directory a, expected");
    sh_ok(dir, "rm -r t/n01443537/000000.png && touch t/n01440764/a.gif");
    assert_not_opened(path_in(dir, "t"),
                      "/t/n01440764/a.gif: is an image of a kind that is not read here, expected a PNG");
    sh_ok(dir, "rm t/n01440764/a.gif && ln -s /nowhere t/n02");
    assert_not_opened(path_in(dir, "t"), "/t/n02: cannot read: No such file");
    static const char *const archives[] = {"n06.tar", "n06.TGZ", "n06.tar.gz", "n06.zip", "n06.7z"};
    sh_ok(dir, "rm t/n02");
    for (size_t i = 0; i < LENGTH(archives); i++) {
        char words[80];
        snprintf(words, sizeof words, "/t/%s: is an archive, expected it unpacked, or elsewhere", archives[i]);
        sh_ok(dir, "touch t/%s", archives[i]);
        assert_not_opened(path_in(dir, "t"), words);
        sh_ok(dir, "rm t/%s", archives[i]);
    }
    sh_ok(dir, "touch t/readme.gz && mkdir l && ln -s . l/up");
    assert_not_opened(path_in(dir, "l"),
                      "up: is more than 16 directories deep, expected fewer, and no link to one above");
    sh_ok(dir, "mkdir m && ln -s ../t/n01440764 m/linked");
    assert_int_equal(image_source_open(path_in(dir, "m"), &s), 0);
    assert_int_equal(image_source_count(s), 2);
    image_source_close(s);
}

COMMAND_CASE(test_bad_folders)
{
    const char *dir = *state;
    char path[600], other[700];
    image_source *s = NULL;
    assert_not_opened("no/such/thing", "no/such/thing: cannot open: No such file");
    assert_not_opened(dir, "files, neither directly nor in subfolders\n");
    snprintf(path, sizeof path, "%s/in\nner", dir);
    assert_int_equal(mkdir(path, 0777), 0);
    assert_not_opened(dir, "files, neither directly nor in subfolders\n");

    copy_file("png2_8.png", path, "b.png");
    write_whole_file(path, "a.bmp", "BM", 2);
    assert_not_opened(path, "in\\nner/a.bmp: is an image of a kind that is not read here, expected a PNG");
    snprintf(other, sizeof other, "%s/a.bmp", path);
    unlink(other);

    write_whole_file(path, "a.png", "<html>", 6);
    assert_not_opened(path, "in\\nner/a.png: is HTML, expected a PNG");
    write_whole_file(path, "a.png", "", 0);
    assert_not_opened(path, "in\\nner/a.png: is empty, expected a PNG");

    snprintf(other, sizeof other, "%s/a.png", path);
    unlink(other);
    assert_int_equal(mkfifo(other, 0666), 0);
    assert_not_opened(path, "in\\nner/a.png: is not a regular file, expected a PNG");
    unlink(other);
    assert_int_equal(symlink("nowhere", other), 0);
    assert_not_opened(path, "in\\nner/a.png: cannot read: No such file");
    unlink(other);

    bytes b = bytes_from_file("docs/pictures/prompt.png");
    snprintf(other, sizeof other, "%s/c.png", path);
    bytes_to_file(&b, other);
    bytes_free(&b);
    copy_file("jpeg_420.jpg", path, "d.jpg");
    snprintf(other, sizeof other, "%s/d.jpg", path);
    assert_int_equal(truncate(other, 1000), 0);
    assert_int_equal(image_source_open(path, &s), 0);
    assert_int_equal(image_source_count(s), 3);
    assert_not_read(s, 0, 3, "in\\nner/c.png: has ");
    assert_not_read(s, 0, 3, " pixels, expected 37x23, as b.png has; --resize takes images of any size");
    assert_not_read(s, 2, 1, "in\\nner/d.jpg: is not a whole JPEG (it ends too early)");
    image_source_close(s);
}

/* A batch ends with the picture that brings its pixels to the limit: the sum is bounded, not the number of pictures. */
COMMAND_CASE(test_large_pictures)
{
    const char *dir = *state;
    enum { SIDE = 9472 }; /* 257 MB */
    png_file large = {.data = NULL};
    image_source *s = NULL;
    image pictures[4];
    png_begin(&large, SIDE, SIDE, 1, 0);
    png_put_pixels(&large, SIDE, SIDE, 1, 0, 0);
    png_put_chunk(&large, "IEND", "", 0);
    assert_true((size_t)SIDE * SIDE * 3 > IMAGE_SOURCE_BYTES);
    copy_file("png2_8.png", dir, "a.png");
    write_whole_file(dir, "b.png", large.data, large.size);
    write_whole_file(dir, "c.png", large.data, large.size);
    copy_file("png2_8.png", dir, "d.png");
    free(large.data);
    assert_int_equal(image_source_open_any(dir, &s), 0);
    assert_int_equal(image_source_read_pictures(s, 0, 4, pictures), 2);
    assert_int_equal(pictures[1].width, SIDE);
    for (int i = 0; i < 2; i++) free(pictures[i].rgb);
    assert_int_equal(image_source_read_pictures(s, 3, 1, pictures), 1);
    assert_int_equal(pictures[0].width, W);
    free(pictures[0].rgb);
    image_source_close(s);
}

/* --- arrays ------------------------------------------------------------------------------------------------------- */

TEST_CASE(test_array)
{
    static uint8_t all[5 * PIXELS], got[5 * PIXELS];
    static const int reads[][2] = {{0, 2}, {2, 1}, {4, 1}, {0, 5}, {3, 0}, {1, 3}};
    image_source *s = NULL;
    npz *z = open_npz(DATA "stack.npz");
    load(z, "arr_0", sizeof all, all);
    npz_close(z);
    assert_int_equal(image_source_open(DATA "stack.npz", &s), 0);
    assert_int_equal(image_source_count(s), 5);
    assert_int_equal(image_source_width(s), W);
    assert_int_equal(image_source_height(s), H);
    assert_null(image_source_name(s, 0));
    for (size_t i = 0; i < LENGTH(reads); i++) {
        assert_int_equal(image_source_read(s, reads[i][0], reads[i][1], got), 0);
        assert_memory_equal(got, all + reads[i][0] * PIXELS, (size_t)reads[i][1] * PIXELS);
    }
    image_source_close(s);
}

static void write_array(const char *path, const char *name, npz_dtype dtype, int rank, const int64_t *shape)
{
    static const uint8_t zeros[8 * 4 * 4 * 4 * 4];
    char why[NPZ_WHY_MAX];
    npz_writer *w = NULL;
    if (npz_writer_open(path, 0, &w, why) != MAR_OK ||
        npz_writer_add(w, name, dtype, rank, shape, zeros, why) != MAR_OK || npz_writer_commit(w, why) != MAR_OK)
        fail_msg("%s", why);
}

COMMAND_CASE(test_bad_arrays)
{
    const char *dir = *state;
    static const struct {
        const char *name;
        npz_dtype dtype;
        int rank;
        int64_t shape[5];
        const char *words;
    } cases[] = {
        {"arr_0",
         NPZ_F32,
         4,
         {4, 4, 4, 3},
         "a.npz: arr_0 is float32 [4, 4, 4, 3], expected uint8 [images, height, width, 3]"},
        {"arr_0",
         NPZ_U8,
         4,
         {4, 3, 4, 4},
         "a.npz: arr_0 is uint8 [4, 3, 4, 4], expected uint8 [images, height, width, 3]"},
        {"arr_0", NPZ_U8, 3, {4, 4, 3}, "arr_0 is uint8 [4, 4, 3], expected"},
        {"arr_0", NPZ_U8, 5, {1, 4, 4, 4, 3}, "arr_0 is uint8 [1, 4, 4, 4, 3], expected"},
        {"arr_0", NPZ_U8, 4, {4, 0, 4, 3}, "arr_0 is uint8 [4, 0, 4, 3], expected"},
        {"arr_0", NPZ_U8, 4, {0, 4, 4, 3}, "a.npz: has no images: it is uint8 [0, 4, 4, 3]"},
        {"mu", NPZ_U8, 4, {4, 4, 4, 3}, "a.npz: has no array \"arr_0\"; it has \"mu\""},
    };
    char path[600];
    snprintf(path, sizeof path, "%s/a.npz", dir);
    for (size_t i = 0; i < LENGTH(cases); i++) {
        write_array(path, cases[i].name, cases[i].dtype, cases[i].rank, cases[i].shape);
        assert_not_opened(path, cases[i].words);
    }
    assert_not_opened("tests/weights/data/npz/v1.npy", "v1.npy: the array is float32 [4, 6], expected uint8");
    assert_not_opened(DATA "png2_8.png", "bytes that begin with \".PNG");

    /* Damage that shows only in the last image. */
    image_source *s = NULL;
    bytes b = bytes_from_file(DATA "stack.npz");
    b.data[5000] ^= 1;
    bytes_to_file(&b, path);
    bytes_free(&b);
    assert_int_equal(image_source_open(path, &s), 0);
    uint8_t *rgb = malloc(4 * PIXELS);
    assert_int_equal(image_source_read(s, 0, 4, rgb), 0);
    free(rgb);
    assert_not_read(s, 4, 1, "a.npz: \"arr_0\": its data are damaged: their CRC-32 is ");
    image_source_close(s);
}
