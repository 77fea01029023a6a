/* Pictures that expand. Each is read in a process of its own with a limit of memory and of processor time, far below
 * what decompressing all of it takes. */
#include "tests/support/command.h"
#include "tests/support/png_bombs.h"
#include "tests/support/test.h"

#include "tools/images/png_chunks.h"
#include "tools/images/source.h"

#include <stdio.h> /* before jpeglib.h */

#include <jpeglib.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>
#include <zlib.h>

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define LIMITS_MEMORY 0 /* their shadow memory is of terabytes */
#else
#define LIMITS_MEMORY 1
#endif

enum { SECONDS = 5, MEMORY = 256 << 20, GIGABYTES = 2400 /* MB of most bombs: 10 s to 100 s */ };

/* What the readers say. */
static struct {
    int failed, texts, black; /* black: 1 if all pixels are, and there are some */
    char why[IMAGE_WHY_MAX];
} * said;

typedef enum { DECODE, WITH_ALPHA, SIZE, TEXTS } reader;

static int is_black(const image *p)
{
    const size_t n = (size_t)p->width * (size_t)p->height * 3;
    return n > 0 && !p->rgb[0] && memcmp(p->rgb, p->rgb + 1, n - 1) == 0;
}

static void read_picture(reader how, const void *data, size_t size)
{
    image picture = {.rgb = NULL};
    image_file file = {.count = 0};
    png_frame frame;
    uint8_t *alpha = NULL;
    int width, height;
    if (how == DECODE) said->failed = image_decode(data, size, &picture, said->why);
    if (how == WITH_ALPHA) said->failed = image_decode_alpha(data, size, &picture, &alpha, said->why);
    if (how == SIZE) said->failed = image_size(data, size, &width, &height, said->why);
    if (how == TEXTS)
        said->failed = image_png_check(data, size, &frame, said->why) || image_png_texts(data, size, &file, said->why);
    said->texts = file.count;
    said->black = picture.rgb && is_black(&picture);
    free(alpha);
    free(picture.rgb);
    image_file_free(&file);
}

static rlim_t address_space(void)
{
    char line[64] = "";
    FILE *f = fopen("/proc/self/statm", "r");
    if (f && fgets(line, sizeof line, f)) fclose(f);
    return (rlim_t)strtoull(line, NULL, 10) * (rlim_t)sysconf(_SC_PAGESIZE);
}

/* Reads the picture within the limits. A reader that exceeds them fails the test. */
static void read_within_limits(const char *what, reader how, const void *data, size_t size)
{
    int status = 0;
    said = mmap(NULL, sizeof *said, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_true(said != MAP_FAILED);
    const pid_t child = fork();
    if (child == 0) {
        const rlim_t space = address_space() + MEMORY;
        setrlimit(RLIMIT_CPU, &(struct rlimit){SECONDS, SECONDS});
        if (LIMITS_MEMORY) setrlimit(RLIMIT_AS, &(struct rlimit){space, space});
        read_picture(how, data, size);
        _exit(0);
    }
    assert_true(waitpid(child, &status, 0) == child);
    if (WIFSIGNALED(status)) fail_msg("%s, reader %d: ended by signal %d", what, how, WTERMSIG(status));
    assert_int_equal(WEXITSTATUS(status), 0);
}

static void forget(void)
{
    munmap(said, sizeof *said);
}

TEST_CASE(chunks_that_expand)
{
    static const struct {
        const char *what;
        bomb_kind kind;
        int width, height, megabytes;
        const char *texts; /* what the reader of texts says; NULL: nothing, it finds none */
    } cases[] = {
        {"zTXt", BOMB_ZTXT, 32, 32, GIGABYTES, "has texts of more than 8 MB together, decompressed"},
        {"iTXt", BOMB_ITXT, 32, 32, GIGABYTES, "has texts of more than 8 MB together, decompressed"},
        {"iCCP", BOMB_ICCP, 32, 32, GIGABYTES, NULL},
        {"pixels", BOMB_SURPLUS, 32, 32, GIGABYTES, NULL},
        {"pixels of one row", BOMB_SURPLUS, 5, 1, GIGABYTES, NULL},
        {"interlaced pixels", BOMB_SURPLUS_INTERLACED, 32, 32, GIGABYTES, NULL},
        {"interlaced pixels of odd height", BOMB_SURPLUS_INTERLACED, 33, 31, GIGABYTES, NULL},
        {"an interlaced pixel", BOMB_SURPLUS_INTERLACED, 1, 1, GIGABYTES, NULL},
    };
    for (size_t i = 0; i < LENGTH(cases); i++) {
        png_file f = png_bomb(cases[i].kind, cases[i].width, cases[i].height, cases[i].megabytes);
        for (reader how = DECODE; how <= WITH_ALPHA; how++) {
            read_within_limits(cases[i].what, how, f.data, f.size);
            if (said->failed || !said->black) fail_msg("%s: %s", cases[i].what, said->why);
            forget();
        }
        read_within_limits(cases[i].what, TEXTS, f.data, f.size);
        assert_int_equal(said->failed, cases[i].texts != NULL);
        assert_int_equal(said->texts > 0, said->failed);
        if (cases[i].texts) assert_string_equal(said->why, cases[i].texts);
        forget();
        free(f.data);
    }
}

/* The limit is one of all texts: of two, which are within it alone, the second is beyond. */
TEST_CASE(texts_within_the_limit)
{
    static const char long_key[] = "Comment";
    for (int megabytes = 3; megabytes <= 5; megabytes += 2) {
        png_file f = {0};
        image_file file;
        png_frame frame;
        char why[IMAGE_WHY_MAX];
        png_begin(&f, 1, 1, 8, 0);
        png_put_chunk(&f, "tEXt", "class\0003", 7);
        png_put_pixels(&f, 1, 1, 8, 0, 0);
        for (int i = 0; i < 2; i++) {
            png_file packed = {0};
            char *text = malloc((size_t)megabytes << 20);
            memset(text, 'x', (size_t)megabytes << 20);
            uLongf size = compressBound((uLong)megabytes << 20);
            packed.data = malloc(size + 32);
            const size_t head = i ? 12 : 9;
            memcpy(packed.data, i ? "Comment\0\1\0\0\0" : "Comment\0\0", head);
            compress(packed.data + head, &size, (Bytef *)text, (uLong)megabytes << 20);
            png_put_chunk(&f, i ? "iTXt" : "zTXt", packed.data, head + size);
            free(packed.data);
            free(text);
        }
        png_put_chunk(&f, "IEND", NULL, 0);
        assert_int_equal(image_png_check(f.data, f.size, &frame, why), 0);
        file = (image_file){.count = 0};
        assert_int_equal(image_png_texts(f.data, f.size, &file, why), megabytes > 4);
        assert_string_equal(file.texts[0].key, "class");
        assert_string_equal(file.texts[0].value, "3");
        assert_string_equal(file.texts[1].key, long_key);
        assert_int_equal(strspn(file.texts[1].value, "x"), megabytes << 20);
        if (megabytes > 4) assert_string_equal(why, "has texts of more than 8 MB together, decompressed");
        if (megabytes < 4) assert_int_equal(strspn(file.texts[2].value, "x"), megabytes << 20);
        image_file_free(&file);
        free(f.data);
    }
}

/* What is no text is refused, not dropped. */
TEST_CASE(damaged_texts)
{
    static const struct {
        const char *name, *data;
        size_t size;
    } cases[] = {
        {"tEXt", "no value", 8},      {"tEXt", "\0a", 2},          {"tEXt", "a\0b\0c", 5},    {"zTXt", "a\0\1", 3},
        {"zTXt", "a\0\0\x78\xda", 5}, {"iTXt", "a\0\2\0\0\0x", 7}, {"iTXt", "a\0\0\0\0x", 6},
    };
    for (size_t i = 0; i < LENGTH(cases); i++) {
        png_file f = {0};
        image_file file = {.count = 0};
        char why[IMAGE_WHY_MAX] = "";
        png_begin(&f, 1, 1, 8, 0);
        png_put_chunk(&f, cases[i].name, cases[i].data, cases[i].size);
        png_put_chunk(&f, "IEND", NULL, 0);
        assert_int_equal(image_png_texts(f.data, f.size, &file, why), 1);
        assert_string_equal(why, "has a damaged text");
        image_file_free(&file);
        free(f.data);
    }
}

/* The command refuses a size by its header. */
TEST_WITH(a_huge_size, command_setup, command_teardown)
{
    const char *d = *state;
    png_file f = png_bomb(BOMB_HUGE, 0, 0, 0);
    read_within_limits("a huge size", SIZE, f.data, f.size);
    assert_int_equal(said->failed, 0);
    forget();
    write_whole_file(d, "huge.png", f.data, f.size);
    sh_ok(d, "mkdir d && cp huge.png d/b.png");
    command_ok(d, "generate -q --class 3 --num 1 --num_iter 2 --out d/a.png");
    const char *limit = LIMITS_MEMORY ? "ulimit -v 700000; " : ""; /* KB: its pixels alone have 786432 */
    char line[256];
    snprintf(line, sizeof line, "%s$MAR edit --image huge.png --class 3", limit);
    command_refused(d, line, "huge.png: has 16384x16384 pixels, expected 32x32 at most, the model's size", NULL);
    snprintf(line, sizeof line, "%s$MAR stats d --features demo --out s.npz -q", limit);
    command_refused(d, line,
                    "d/b.png: has 16384x16384 pixels, expected 32x32, as a.png has; --resize takes images of any "
                    "size",
                    NULL);
    free(f.data);
}

/* --- JPEG --------------------------------------------------------------------------------------------------------- */

/* Returns a black progressive JPEG in grey whose last scan is there `scans` - 1 times. The caller frees it. */
static uint8_t *jpeg_of_scans(int side, int scans, size_t *size)
{
    static const jpeg_scan_info script[] = {{1, {0}, 0, 0, 0, 0}, {1, {0}, 1, 63, 0, 0}};
    struct jpeg_compress_struct c;
    struct jpeg_error_mgr errors;
    uint8_t *file = NULL, *row = calloc(1, (size_t)side);
    unsigned long whole = 0;
    c.err = jpeg_std_error(&errors);
    jpeg_create_compress(&c);
    jpeg_mem_dest(&c, &file, &whole);
    c.image_width = c.image_height = (JDIMENSION)side;
    c.input_components = 1;
    c.in_color_space = JCS_GRAYSCALE;
    jpeg_set_defaults(&c);
    c.scan_info = script;
    c.num_scans = 2;
    jpeg_start_compress(&c, TRUE);
    while (c.next_scanline < c.image_height) jpeg_write_scanlines(&c, &row, 1);
    jpeg_finish_compress(&c);
    jpeg_destroy_compress(&c);
    free(row);
    size_t at = whole - 2;
    while (file[at] != 0xff || file[at + 1] != 0xda) at--;
    const size_t scan = whole - 2 - at;
    uint8_t *out = malloc(whole + scan * (size_t)scans);
    memcpy(out, file, at);
    for (int i = 0; i < scans - 1; i++) memcpy(out + at + scan * (size_t)i, file + at, scan);
    *size = at + scan * (size_t)(scans - 1);
    memcpy(out + *size, "\xff\xd9", 2);
    *size += 2;
    free(file);
    return out;
}

TEST_CASE(scans_of_a_jpeg)
{
    static const struct {
        int side, scans;
        const char *why; /* NULL: it is read */
    } cases[] = {{64, 100, NULL},
                 {64, 101, "is a JPEG of more than 100 scans"},
                 {64, 30000, "is a JPEG of more than 100 scans"},
                 {4096, 64, NULL}, /* 2^30 / 4096^2 */
                 {4096, 65, "is a JPEG of more than 64 scans"}};
    for (size_t i = 0; i < LENGTH(cases); i++) {
        size_t size;
        uint8_t *data = jpeg_of_scans(cases[i].side, cases[i].scans, &size);
        read_within_limits("JPEG", DECODE, data, size);
        if (said->failed != (cases[i].why != NULL)) fail_msg("case %zu: \"%s\"", i, said->why);
        if (cases[i].why) assert_string_equal(said->why, cases[i].why);
        forget();
        free(data);
    }
}
