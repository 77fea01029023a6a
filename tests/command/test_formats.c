/* Pictures as JPEG and WebP: what mar generate writes by --out, --format and --quality, and the encoders themselves. */
#include "tests/support/command.h"

#include "tools/images/image.h"
#include "tools/images/output.h"
#include "tools/images/source.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define QUICK "--num_iter 2 --num_sampling_steps 4 --quiet "

enum { SIDE = 40 };

/* Fills the picture with a smooth pattern of colours. */
static image pattern(uint8_t rgb[SIDE][SIDE][3])
{
    for (int y = 0; y < SIDE; y++)
        for (int x = 0; x < SIDE; x++) {
            rgb[y][x][0] = (uint8_t)(x * 6);
            rgb[y][x][1] = (uint8_t)(y * 6);
            rgb[y][x][2] = (uint8_t)(255 - (x + y) * 3);
        }
    return (image){SIDE, SIDE, &rgb[0][0][0]};
}

/* Returns the largest difference of two pictures of `bytes` bytes. */
static int largest_difference(const uint8_t *a, const uint8_t *b, size_t bytes)
{
    int largest = 0;
    for (size_t i = 0; i < bytes; i++)
        if (abs(a[i] - b[i]) > largest) largest = abs(a[i] - b[i]);
    return largest;
}

/* Returns the comments of a JPEG, joined; the caller frees them. */
static char *comments_of(const uint8_t *jpeg, size_t size)
{
    char *text = calloc(size + 1, 1);
    size_t n = 0;
    assert_true(size > 4 && jpeg[0] == 0xff && jpeg[1] == 0xd8);
    for (size_t at = 2; at + 4 < size && jpeg[at] == 0xff && jpeg[at + 1] != 0xda;) { /* up to the scan */
        const size_t length = (size_t)jpeg[at + 2] << 8 | jpeg[at + 3];
        if (jpeg[at + 1] == 0xfe) {
            memcpy(text + n, jpeg + at + 4, length - 2);
            n += length - 2;
        }
        at += length + 2;
    }
    return text;
}

TEST_CASE(jpeg)
{
    static uint8_t rgb[SIDE][SIDE][3];
    const image picture = pattern(rgb);
    char why[IMAGE_WHY_MAX];
    char *large = malloc(200001);
    memset(large, 'x', 200000);
    large[200000] = '\0';
    const image_text texts[] = {{"class", "3"}, {"quoted", "a \"b\" \\ \xc3\xa9"}, {"large", large}};
    size_t size[3];
    static const int quality[] = {100, 90, 20}, most[] = {3, 8, 80};
    for (int i = 0; i < 3; i++) {
        image back;
        uint8_t *data = image_encode_jpeg(&picture, quality[i], texts, i == 0 ? 3 : 2, &size[i], why);
        assert_non_null(data);
        assert_int_equal(image_decode(data, size[i], &back, why), 0);
        assert_true(back.width == SIDE && back.height == SIDE);
        const int difference = largest_difference(back.rgb, picture.rgb, sizeof rgb);
        if (difference > most[i]) fail_msg("quality %d: a difference of %d", quality[i], difference);
        char *comment = comments_of(data, size[i]);
        cJSON *json = cJSON_Parse(comment); /* more than a comment can hold goes to further ones */
        assert_string_equal(json_text(json, "class"), "3");
        assert_string_equal(json_text(json, "quoted"), texts[1].value);
        if (i == 0) assert_string_equal(json_text(json, "large"), large);
        cJSON_Delete(json);
        free(comment);
        free(back.rgb);
        free(data);
    }
    assert_true(size[1] > size[2]);
    uint8_t *data = image_encode_jpeg(&picture, 90, NULL, 0, &size[0], why);
    char *comment = comments_of(data, size[0]);
    assert_string_equal(comment, "");
    free(comment);
    free(data);
    const image wide = {65501, 1, calloc(65501, 3)};
    assert_null(image_encode_jpeg(&wide, 90, NULL, 0, &size[0], why));
    assert_has(why, "65500");
    assert_int_equal(image_format_side_max(IMAGE_JPEG), 65500);
    free(wide.rgb);
    free(large);
}

/* The library may be missing; then the format is refused, with the reason. */
COMMAND_CASE(webp)
{
    static uint8_t rgb[SIDE][SIDE][3];
    const image picture = pattern(rgb);
    char why[IMAGE_WHY_MAX];
    size_t size;
    uint8_t *data = image_encode_webp(&picture, 90, &size, why);
    if (image_format_lacks(IMAGE_WEBP)) {
        assert_null(data);
        command_refused(*state, "$MAR generate --out x.webp",
                        "x.webp: this mar was built without libwebp, expected PNG or JPEG", NULL);
        command_refused(*state, "$MAR generate --out d --format webp",
                        "d: this mar was built without libwebp, expected PNG or JPEG", NULL);
        return;
    }
    assert_true(data && size > 30 && memcmp(data, "RIFF", 4) == 0 && memcmp(data + 8, "WEBPVP8 ", 8) == 0);
    assert_true((data[26] | data[27] << 8) == SIDE && (data[28] | data[29] << 8) == SIDE); /* of the frame */
    free(data);
    command_ok(*state, "generate " QUICK "--class 3 --num 1 --out a.webp");
    command_ok(*state, "generate " QUICK "--class 3 --num 1 --out b.webp --quality 20");
    sh_ok(*state, "head -c 4 a.webp | grep -q RIFF && test $(wc -c <a.webp) -gt $(wc -c <b.webp)");
    command_refused(*state, "$MAR generate --class 3 --num 1000 --out x.webp --class all",
                    "x.webp: a grid with a side of 33998 pixels, expected 16383 at most in WebP", NULL);
}

/* Checks that the JPEG of a run shows the PNG's picture and has its text. */
COMMAND_CASE(a_run)
{
    const char *d = *state;
    command_ok(d, "generate " QUICK "--class 3 --num 1 --seed 5 --out a.png");
    command_ok(d, "generate " QUICK "--class 3 --num 1 --seed 5 --out a.JPG --quality 100");
    image_file png;
    image back;
    char why[IMAGE_WHY_MAX];
    size_t size;
    assert_int_equal(image_read_png(path_in(d, "a.png"), 32, 32, &png), 0);
    uint8_t *data = (uint8_t *)read_whole_file(d, "a.JPG", &size);
    assert_int_equal(image_decode(data, size, &back, why), 0);
    assert_true(largest_difference(back.rgb, png.picture.rgb, 32 * 32 * 3) <= 5);
    char *comment = comments_of(data, size);
    cJSON *json = cJSON_Parse(comment);
    assert_int_equal(cJSON_GetArraySize(json), png.count);
    for (int i = 0; i < png.count; i++) assert_string_equal(json_text(json, png.texts[i].key), png.texts[i].value);
    cJSON_Delete(json);
    free(comment);
    free(data);
    free(back.rgb);
    image_file_free(&png);

    cJSON *record = command_json(d, "generate " QUICK "--class 3,4 --num 1 --out d --format jpeg --grid --json");
    assert_string_equal(json_text(record, "files.1.file"), "d/000001.jpg");
    assert_string_equal(json_text(record, "grid.file"), "d/grid.jpg");
    cJSON_Delete(record);
    assert_int_equal(count_files(path_in(d, "d")), 3);
    image_source *s; /* for mar eval --images; the grid is left out */
    assert_int_equal(image_source_open(path_in(d, "d"), &s), 0);
    assert_int_equal(image_source_count(s), 2);
    image_source_close(s);
    command_ok(d, "generate " QUICK "--class 3 --num 1 --out d --overwrite"); /* of any format */
    sh_ok(d, "test \"$(ls d)\" = 000000.png");
    sh_ok(d, "$MAR generate " QUICK "--class 3 --num 1 --format jpeg && test ! -e mar.png");
    sh_ok(d, "$MAR generate " QUICK "--class 3 --num 1 --format jpeg --out - | cmp - mar.jpg");
}

COMMAND_CASE(refusals)
{
    static const refusal cases[] = {
        {"generate --out x.jpg --format png", "--format png", "--out"},
        {"generate --out x.png --quality 50", "--quality", "--format"},
        {"generate --out d --quality 50", "--quality"},
        {"generate --quality 101 --out x.jpg", "--quality 101", "1 to 100"},
        {"generate --out d --format jpeg --resume", "--resume", "--format"},
        {"generate --out d --format gif", "--format gif"},
        {"generate --out x.gif", "x.gif: pictures are written as PNG"},
        {"generate --out in", "in: has 000000.jpg and 1 more", "--overwrite"},
        {"generate --store x.jpg", "--store x.jpg"},
    };
    sh_ok(*state, "mkdir in && touch in/000000.jpg in/grid.webp in/x.jpg");
    command_refuses(*state, cases, LENGTH(cases));
    assert_int_equal(output_image_index("000012.webp"), 12);
    assert_int_equal(output_image_index("000012.gif"), -1);
    assert_int_equal(image_format_of("a.b/x.JPEG"), IMAGE_JPEG);
    assert_int_equal(image_format_of(".jpg"), -1); /* a hidden name without an ending */
}
