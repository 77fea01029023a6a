/* mar edit: what it keeps and what it makes, and what it refuses. */
#include "tests/support/command.h"
#include "tests/support/test.h"
#include "tools/edit/picture.h"
#include "tools/images/source.h"

#include <math.h>
#include <png.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SIDE = 32, GRID = 8, CELL = SIDE / GRID, TOKENS = GRID * GRID };

/* Writes a picture whose pixels from row `from` on are white, the others black. */
static void write_mask_as(const char *directory, const char *name, image_format format, int width, int height, int from)
{
    image mask = {width, height, calloc((size_t)width * (size_t)height, 3)};
    assert_non_null(mask.rgb);
    memset(mask.rgb + 3 * (size_t)width * (size_t)from, 255, 3 * (size_t)width * (size_t)(height - from));
    assert_int_equal(image_write(path_in(directory, "%s", name), &mask, format, 100, NULL, 0, IMAGE_UNSYNCED), 0);
    free(mask.rgb);
}

static void write_mask(const char *directory, const char *name, int width, int height, int from)
{
    write_mask_as(directory, name, IMAGE_PNG, width, height, from);
}

/* Returns the mean difference of two pictures in rows first .. end - 1. */
static double difference(const char *directory, const char *a, const char *b, int first, int end)
{
    image pictures[2];
    double sum = 0;
    assert_int_equal(image_read_within(path_in(directory, "%s", a), SIDE, SIDE, "", &pictures[0], NULL), 0);
    assert_int_equal(image_read_within(path_in(directory, "%s", b), SIDE, SIDE, "", &pictures[1], NULL), 0);
    for (int i = 3 * SIDE * first; i < 3 * SIDE * end; i++) sum += abs(pictures[0].rgb[i] - pictures[1].rgb[i]);
    for (int i = 0; i < 2; i++) free(pictures[i].rgb);
    return sum / (3 * SIDE * (end - first));
}

TEST_WITH(inpainting, command_setup, command_teardown)
{
    const char *d = *state;
    command_ok(d, "generate -q --class 3 --num 1 --seed 1 --out a.png");
    write_mask(d, "lower.png", SIDE, SIDE, SIDE / 2);
    command_ok(d, "edit -q --image a.png --mask lower.png --class 8 --num 3 --batch 2 --out e");
    /* The upper half is the picture's but for the codec; the lower halves are of three images. */
    for (int i = 0; i < 3; i++) {
        char name[2][32];
        snprintf(name[0], sizeof name[0], "e/%06d.png", i);
        snprintf(name[1], sizeof name[1], "e/%06d.png", (i + 1) % 3);
        assert_true(difference(d, "a.png", name[0], 0, 12) < 10);
        assert_true(difference(d, name[0], name[1], 20, 32) > 2 * difference(d, name[0], name[1], 0, 12));
    }
    command_refused(d, "$MAR edit -q --image a.png --mask lower.png --class 8 --out e",
                    "e: has 000000.png and 2 more, expected --overwrite to replace it, or another --out", NULL);
    command_ok(d, "edit -q --image a.png --mask lower.png --class 8 --out again.png");
    assert_same_file(d, "e/000000.png", "again.png"); /* an image is a function of its number, not of the batch */
    command_ok(d, "edit -q --image a.png --mask lower.png --class 8 --out e --overwrite");
    sh_ok(d, "test \"$(ls e)\" = 000000.png");
    sh_ok(d, "grep -q 'edited' again.png && grep -q 'lower.png: ' again.png");
}

TEST_WITH(outpainting_and_variations, command_setup, command_teardown)
{
    const char *d = *state;
    write_mask(d, "black.png", SIDE, SIDE / 2, SIDE / 2);
    command_result r = command_mar(d, "edit --image black.png --offset 0,0 --class 2 --out out.png");
    assert_int_equal(r.status, 0);
    assert_has(r.out, "wrote out.png: 1 image of 32x32 in ");
    assert_has(r.out, " s, 32 of 64 tokens kept\nexact to: plain sampling of the unknown tokens, ");
    command_result_free(&r);
    command_ok(d, "edit -q --image black.png --class 2 --out middle.png");
    assert_true(difference(d, "out.png", "middle.png", 0, SIDE) > 1);
    command_ok(d, "edit -q --image out.png --keep 0.5 --class 2 --num 2 --out v");
    assert_true(difference(d, "v/000000.png", "v/000001.png", 0, SIDE) > 1);
}

/* Pictures and masks may be JPEG and WebP; the result is that of the same pixels as PNG. Other files are named. */
TEST_WITH(formats, command_setup, command_teardown)
{
    static const refusal cases[] = {{"edit --image a.gif --class 3", "a.gif: is a GIF"},
                                    {"edit --image a.png --mask a.pdf --class 3", "a.pdf: is a PDF"},
                                    {"edit --image a.html --class 3", "a.html: is HTML"}};
    const char *d = *state;
    write_mask(d, "mask.png", SIDE, SIDE, SIDE / 2);
    for (image_format format = IMAGE_JPEG; format <= IMAGE_WEBP && !image_format_lacks(format); format++) {
        const char *ending = image_format_ending(format);
        image picture;
        char name[2][16];
        snprintf(name[0], sizeof name[0], "a%s", ending);
        snprintf(name[1], sizeof name[1], "m%s", ending);
        write_mask_as(d, name[0], format, SIDE, SIDE, SIDE / 4);
        write_mask_as(d, name[1], format, SIDE, SIDE, SIDE / 2);
        assert_int_equal(image_read_within(path_in(d, "%s", name[0]), SIDE, SIDE, "", &picture, NULL), 0);
        assert_int_equal(image_write(path_in(d, "a.png"), &picture, IMAGE_PNG, 0, NULL, 0, IMAGE_UNSYNCED), 0);
        free(picture.rgb);
        command_ok(d, "edit -q --image %s --mask %s --class 8 --num_iter 4 --out a", name[0], name[1]);
        command_ok(d, "edit -q --image a.png --mask mask.png --class 8 --num_iter 4 --out b");
        assert_true(difference(d, "a/000000.png", "b/000000.png", 0, SIDE) == 0);
        sh_ok(d, "rm -r a b");
    }
    sh_ok(d, "printf GIF89a >a.gif; printf %%%%PDF-1.4 >a.pdf; printf '<!doctype html>' >a.html");
    write_mask(d, "a.png", SIDE, SIDE, 0);
    command_refuses(d, cases, LENGTH(cases));
}

static void write_transparent(const char *d, const char *name, uint8_t alpha)
{
    static uint8_t rgba[SIDE][SIDE][4];
    memset(rgba, 128, sizeof rgba);
    for (int i = 0; i < SIDE * SIDE; i++) (&rgba[0][0][0])[4 * i + 3] = 255;
    rgba[SIDE - 1][SIDE - 1][3] = alpha;
    png_image png = {.version = PNG_IMAGE_VERSION, .width = SIDE, .height = SIDE, .format = PNG_FORMAT_RGBA};
    assert_true(png_image_write_to_file(&png, path_in(d, "%s", name), 0, rgba, 0, NULL));
}

/* Transparency, which says over HTTP where a picture is made anew, is not dropped without a word. */
TEST_WITH(transparency, command_setup, command_teardown)
{
    static const char *const commands[] = {"edit --image clear.png --keep 0.5 --class 3",
                                           "edit --image a.png --mask clear.png --class 3"};
    const char *d = *state;
    write_transparent(d, "clear.png", 254);
    write_transparent(d, "a.png", 255);
    for (size_t i = 0; i < LENGTH(commands); i++) {
        command_result r = command_mar(d, "%s", commands[i]);
        assert_int_equal(r.status, 0);
        assert_has(r.err, "mar: warning: clear.png: its transparency is not used, white in --mask says where a picture "
                          "is made anew\n");
        command_result_free(&r);
    }
    command_result r = command_mar(d, "edit --image a.png --keep 0.5 --class 3");
    assert_int_equal(r.status, 0);
    assert_null(strstr(r.err, "transparency"));
    command_result_free(&r);
}

/* A picture that is damaged behind its header is refused before the model is read. */
TEST_WITH(damaged, command_setup, command_teardown)
{
    static const refusal cases[] = {
        {"edit --model no.pth --image cut.png --class 3", "cut.png: is not a whole PNG"},
        {"edit --model no.pth --image a.png --mask cut.png --class 3", "cut.png: is not a whole PNG"}};
    const char *d = *state;
    write_mask(d, "a.png", SIDE, SIDE, 8);
    sh_ok(d, "head -c 60 a.png >cut.png");
    command_refuses(d, cases, LENGTH(cases));
}

TEST_WITH(refused, command_setup, command_teardown)
{
    static const refusal cases[] = {
        {"edit --class 3", "--image"},
        {"edit --image no.png --class 3", "no.png: cannot read: No such file or directory"},
        {"edit --image a.png --class 3", "--mask", "--keep"},
        {"edit --image a.png --mask black.png --class 3", "black.png: has no white pixel"},
        {"edit --image a.png --mask small.png --class 3", "small.png: has 16x16 pixels"},
        {"edit --image large.png --class 3", "large.png: has 40x32 pixels"},
        {"edit --image small.png --offset 5,20 --class 3", "--offset 5,20", "16"},
        {"edit --image small.png --offset 5 --class 3", "--offset 5", "64"},
        {"edit --image small.png --class 0-2", "--class 0-2", "3"},
        {"edit --image small.png --class 3 --num 2 --out b.png", "--out b.png", "--num"},
        {"edit --image small.png --class 3 --num_iter 8 --lazy", "--lazy keeps"},
        {"edit --image small.png --class 3 --model demo-discrete",
         "demo-discrete: makes tokens from the upper left on"},
        {"edit small.png --class 3", "small.png: unexpected argument", "did you mean --image small.png?"}};
    const char *d = *state;
    write_mask(d, "a.png", SIDE, SIDE, 0);
    write_mask(d, "black.png", SIDE, SIDE, SIDE);
    write_mask(d, "small.png", SIDE / 2, SIDE / 2, 0);
    write_mask(d, "large.png", SIDE + 8, SIDE, 0);
    command_refuses(d, cases, LENGTH(cases));
}

/* A box is a mask, and with --paste pixels outside are the picture's own, those inside the new ones. */
TEST_WITH(boxes_and_pasting, command_setup, command_teardown)
{
    const char *d = *state;
    image mask = {SIDE, SIDE, calloc((size_t)SIDE * SIDE, 3)}, picture, made, pasted, soft;
    assert_non_null(mask.rgb);
    for (int y = 9; y < 21; y++)
        for (int x = 6; x < 22; x++) memset(mask.rgb + 3 * (y * SIDE + x), 255, 3);
    assert_int_equal(image_write(path_in(d, "box.png"), &mask, IMAGE_PNG, 100, NULL, 0, IMAGE_UNSYNCED), 0);
    command_ok(d, "generate -q --class 3 --num 1 --seed 1 --out a.png");
    command_ok(d, "edit -q --image a.png --mask box.png --class 8 --seed 2 --out masked.png");
    command_ok(d, "edit -q --image a.png --box 6,9,16,12 --class 8 --seed 2 --out boxed.png");
    command_ok(d, "edit -q --image a.png --box 6,9,16,12 --paste 0 --class 8 --seed 2 --out pasted.png");
    command_ok(d, "edit -q --image a.png --mask box.png --paste 4 --class 8 --seed 2 --out soft.png");
    assert_true(difference(d, "masked.png", "boxed.png", 0, SIDE) == 0);
    image *const all[] = {&picture, &made, &pasted, &soft};
    static const char *const names[] = {"a.png", "boxed.png", "pasted.png", "soft.png"};
    for (size_t i = 0; i < LENGTH(all); i++)
        assert_int_equal(image_read_within(path_in(d, "%s", names[i]), SIDE, SIDE, "", all[i], NULL), 0);
    int decoded = 0, between = 0;
    for (int i = 0; i < SIDE * SIDE; i++) {
        const int inside = mask.rgb[3 * i] != 0, y = i / SIDE, x = i % SIDE;
        const int is_far = y < 9 - 4 || y >= 21 + 4 || x < 6 - 4 || x >= 22 + 4;
        for (int c = 3 * i; c < 3 * i + 3; c++) {
            assert_int_equal(pasted.rgb[c], inside ? made.rgb[c] : picture.rgb[c]);
            if (inside || is_far) assert_int_equal(soft.rgb[c], inside ? made.rgb[c] : picture.rgb[c]);
            decoded += !inside && made.rgb[c] != picture.rgb[c];
            between += soft.rgb[c] != made.rgb[c] && soft.rgb[c] != picture.rgb[c];
        }
    }
    assert_true(decoded > 0 && between > 0);
    for (size_t i = 0; i < LENGTH(all); i++) free(all[i]->rgb);
    free(mask.rgb);
    sh_ok(d, "grep -q '6,9,16,12' pasted.png");
    static const refusal cases[] = {
        {"edit --image a.png --box 6,9,16 --class 8", "--box 6,9,16: expected X,Y,WIDTH,HEIGHT"},
        {"edit --image a.png --box 6,9,0,4 --class 8", "--box 6,9,0,4: expected X,Y,WIDTH,HEIGHT"},
        {"edit --image a.png --box 20,9,16,12 --class 8",
         "--box 20,9,16,12: ends at 36,21, beyond the model's 32x32 pixels"},
        {"edit --image a.png --box 6,9,16,12 --mask box.png --class 8", "--box 6,9,16,12: has no effect beside --mask"},
        {"edit --image a.png --paste 2 --keep 0.5 --class 8", "--paste 2: has no place beside --keep"},
        {"edit --image a.png --paste 600 --class 8", "--paste 600: ", "from 0 to 512"},
    };
    command_refuses(d, cases, LENGTH(cases));
}

/* --- the parts ---------------------------------------------------------------------------------------------------- */

static image picture_of(int width, int height)
{
    image p = {width, height, calloc((size_t)width * (size_t)height, 3)};
    assert_non_null(p.rgb);
    for (int i = 0; i < width * height * 3; i++) p.rgb[i] = (uint8_t)(i % 97);
    return p;
}

/* Weights grow with the distance to the nearest pixel that is made, wherever that is, and beside a smaller picture all
 * is made. */
TEST_CASE(paste_weights)
{
    enum { W = 24, H = 16, FEATHER = 5 };
    static uint8_t pixels[3 * W * H], weight[W * H];
    image mask = {W, H, pixels};
    const image picture = {16, 12, pixels};
    static const int white[][2] = {{3, 5}, {4, 5}, {11, 13}};
    for (size_t i = 0; i < LENGTH(white); i++) pixels[3 * (white[i][0] * W + white[i][1]) + 1] = 200;
    static uint8_t part[3 * 16 * 12]; /* the mask of a smaller picture, in the middle: at 4, 0, on a border of cells */
    const image own = {16, 12, part};
    part[3 * (7 * 16 + 3)] = 255;
    assert_int_equal(edit_paste_weights(&own, &picture, -1, -1, W, H, 6, 0, weight), 0);
    for (int i = 0; i < W * H; i++) {
        const int y = i / W, x = i % W, inside = y < 12 && x >= 4 && x < 20;
        assert_int_equal(weight[i], inside && !(y == 7 && x == 7) ? 255 : 0);
    }
    for (int smaller = 0; smaller < 2; smaller++)
        for (int feather = 0; feather <= FEATHER; feather += FEATHER) {
            const image *of = smaller ? &picture : &mask;
            assert_int_equal(edit_paste_weights(&mask, of, smaller ? 4 : 0, smaller ? 2 : 0, W, H, 6, feather, weight),
                             0);
            for (int i = 0; i < W * H; i++) {
                double nearest = 1e9;
                for (int j = 0; j < W * H; j++) {
                    const int y = j / W, x = j % W;
                    const int made = pixels[3 * j + 1] >= 128 || (smaller && (y < 2 || y >= 14 || x < 4 || x >= 20));
                    if (made) nearest = fmin(nearest, hypot(y - i / W, x - i % W));
                }
                assert_int_equal(weight[i], lrint(255 * fmin(1, nearest / (feather + 1))));
            }
        }
}

TEST_CASE(placing)
{
    const image p = picture_of(10, 12);
    image canvas;
    uint8_t known[TOKENS];
    assert_int_equal(edit_place("p", &p, 3, 4, SIDE, SIDE, GRID, &canvas, known), 0);
    for (int y = 0; y < SIDE; y++)
        for (int x = 0; x < SIDE; x++) { /* the picture, continued by its outermost pixels */
            const int row = y < 4 ? 0 : y > 15 ? 11 : y - 4, column = x < 3 ? 0 : x > 12 ? 9 : x - 3;
            assert_memory_equal(canvas.rgb + 3 * (y * SIDE + x), p.rgb + 3 * (row * 10 + column), 3);
        }
    for (int i = 0; i < TOKENS; i++) /* columns 4 .. 11 and rows 4 .. 15 are whole cells */
        assert_int_equal(known[i], i / GRID >= 1 && i / GRID < 4 && i % GRID >= 1 && i % GRID < 3);
    free(canvas.rgb);

    image mask = {10, 12, calloc(10 * 12, 3)};
    assert_non_null(mask.rgb);
    mask.rgb[3 * (5 * 10 + 2) + 1] = 128; /* pixel 5, 9 of the canvas */
    assert_int_equal(edit_mask("m", &mask, &p, 3, 4, SIDE, SIDE, GRID, known), 0);
    for (int i = 0; i < TOKENS; i++)
        assert_int_equal(known[i], i / GRID >= 1 && i / GRID < 4 && i % GRID >= 1 && i % GRID < 3 && i != 2 * GRID + 1);
    assert_int_equal(edit_place("p", &p, -1, -1, SIDE, SIDE, GRID, &canvas, known), 0); /* at 8, 8 */
    for (int i = 0; i < TOKENS; i++)
        assert_int_equal(known[i], i / GRID >= 2 && i / GRID < 5 && i % GRID >= 2 && i % GRID < 4);
    free(canvas.rgb);
    free(mask.rgb);
    free(p.rgb);
}

/* On 4 rows of 8 tokens of 4x4 pixels. */
TEST_CASE(placing_on_an_oblong_canvas)
{
    enum { COLUMNS = 8, ROWS = 4 };
    const image p = picture_of(10, 9);
    image canvas;
    uint8_t known[ROWS * COLUMNS];
    assert_int_equal(edit_place("p", &p, 20, 4, COLUMNS * CELL, ROWS * CELL, COLUMNS, &canvas, known), 0);
    for (int i = 0; i < ROWS * COLUMNS; i++) /* columns 20 .. 27 and rows 4 .. 11 are whole cells */
        assert_int_equal(known[i], (i / COLUMNS == 1 || i / COLUMNS == 2) && (i % COLUMNS == 5 || i % COLUMNS == 6));
    image mask = {10, 9, calloc(10 * 9, 3)};
    assert_non_null(mask.rgb);
    mask.rgb[3 * (5 * 10 + 6)] = 255; /* row 9, column 26 of the canvas */
    assert_int_equal(edit_mask("m", &mask, &p, 20, 4, COLUMNS * CELL, ROWS * CELL, COLUMNS, known), 0);
    for (int i = 0; i < ROWS * COLUMNS; i++)
        assert_int_equal(known[i], ((i / COLUMNS == 1 || i / COLUMNS == 2) && (i % COLUMNS == 5 || i % COLUMNS == 6)) &&
                                       i != 2 * COLUMNS + 6);
    free(canvas.rgb);
    free(mask.rgb);
    free(p.rgb);
}

/* Each token is kept as often, each image keeps as many, and seed and number decide. */
TEST_CASE(keeping)
{
    enum { IMAGES = 4000, KNOWN = 48, KEPT = 12 };
    int often[TOKENS] = {0};
    for (int n = 0; n < IMAGES; n++) {
        uint8_t known[TOKENS], again[TOKENS];
        for (int i = 0; i < TOKENS; i++) known[i] = again[i] = i < KNOWN;
        edit_keep(0.25, 7, (uint64_t)n, TOKENS, known);
        edit_keep(0.25, 7, (uint64_t)n, TOKENS, again);
        assert_memory_equal(known, again, TOKENS);
        assert_int_equal(edit_count(known, TOKENS), KEPT);
        for (int i = 0; i < TOKENS; i++) often[i] += known[i];
    }
    const double mean = IMAGES * 0.25, deviation = sqrt(IMAGES * 0.25 * 0.75);
    for (int i = 0; i < TOKENS; i++)
        if (fabs(often[i] - (i < KNOWN ? mean : 0)) > 5 * deviation) fail_msg("token %d: %d times", i, often[i]);
}

/* --preview shows the images as they form and ends with the finished ones; the images are the same without it. */
TEST_WITH(preview_file, command_setup, command_teardown)
{
    const char *d = *state;
    image shown;
    command_ok(d, "generate -q --class 3 --num 2 --seed 1 --num_iter 8 --preview p.png --out a");
    command_ok(d, "generate -q --class 3 --num 2 --seed 1 --num_iter 8 --out b");
    sh_ok(d, "cmp a/000000.png b/000000.png && cmp a/000001.png b/000001.png");
    assert_int_equal(image_read_within(path_in(d, "p.png"), 100, 100, "", &shown, NULL), 0);
    assert_int_equal(shown.width, 2 * SIDE + GRID_GAP);
    assert_int_equal(shown.height, SIDE);
    for (int i = 0; i < 2; i++) { /* the last state: the finished images */
        image made;
        assert_int_equal(image_read_within(path_in(d, "a/00000%d.png", i), SIDE, SIDE, "", &made, NULL), 0);
        for (int y = 0; y < SIDE; y++)
            assert_memory_equal(shown.rgb + 3 * ((size_t)y * (size_t)shown.width + (size_t)i * (SIDE + GRID_GAP)),
                                made.rgb + 3 * (size_t)y * SIDE, 3 * SIDE);
        free(made.rgb);
    }
    free(shown.rgb);
    command_refused(d, "$MAR generate --preview p.txt", "--preview p.txt: expected FILE.png, .jpg or .webp", NULL);
    command_refused(d, "$MAR generate --preview no/p.png --model absent.pth", "no/p.png: ", "No such file");
}

/* Checks that a preview that becomes too large for the disk, the last one here, costs no image. */
TEST_WITH(a_preview_that_fails, command_setup, command_teardown)
{
#define SIXTEEN "generate -q --class 3 --num 16 --batch 16 --seed 1 --num_iter 4 "
    const char *d = *state;
    command_ok(d, SIXTEEN "--out a");
    command_result r = command_run(d, "ulimit -f 12; $MAR " SIXTEEN "--preview p.png --out b"); /* of 512 bytes */
    assert_int_equal(r.status, 1);
    assert_string_equal(r.err, "mar: p.png: cannot write: File too large\n");
    command_result_free(&r);
    sh_ok(d, "diff -r a b");
#undef SIXTEEN
}
