/* mar generate --like and --seed random: an image can be made again from what its file or the summary says. */
#include "tests/support/command.h"

#include "tools/images/image.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <zlib.h>

#define QUICK "--num_iter 8 --num_sampling_steps 4 "

/* Checks that --like alone makes the same file again: pixels and all text. */
COMMAND_CASE(same_file)
{
    static const char *const runs[] = {
        QUICK "--class 3,7 --cfg 1.7 --cfg_schedule constant --temperature 0.9 --seed 18446744073709551615",
        QUICK "--class 3,none --dtype int8 --int8_below 900",
        QUICK "--class 3,7 --spec path --head_spec 8 --dtype bf16 --head_dtype bf16",
        QUICK "--class 3,7 --spec path --gamma auto",
        QUICK "--class 3,7 --draft demo-draft --dtype f32",
        QUICK "--class 3,7 --lazy --cfg_interval 0.2,0.8",
        "--class 3,7 --model demo-discrete --spec sjd-pac --top_k 50",
    };
    const char *d = *state;
    for (size_t i = 0; i < LENGTH(runs); i++) {
        const int num = i == 0 ? 2 : 1; /* that image is the first of the second class */
        command_ok(d, "generate %s --num %d --out d%zu --quiet", runs[i], num, i);
        command_ok(d, "generate --like d%zu/00000%d.png --out again.png --quiet", i, num);
        assert_same_file(d, path_in("", "d%zu/00000%d.png", i, num) + 1, "again.png");
    }
    /* More images from its number on, and one of a grid's class. */
    command_ok(d, "generate --like d0/000002.png --num 2 --out more --grid --quiet");
    assert_same_file(d, "d0/000002.png", "more/000002.png");
    assert_same_file(d, "d0/000003.png", "more/000003.png");
    assert_int_equal(count_files(path_in(d, "more")), 3);
    sh_ok(d, "grep -aq 'image.2-3' more/grid.png && rm more/000003.png && "
             "$MAR generate --like d0/000002.png --num 2 --out more --resume -q && cmp d0/000003.png more/000003.png");
}

/* Checks that options given beside --like win, and that the others are the image's. */
COMMAND_CASE(options_win)
{
    const char *d = *state;
    command_ok(d, "generate " QUICK "--class 3 --num 1 --seed 7 --cfg 1.7 --head_spec 4 --out a.png --quiet");
    command_ok(d, "generate " QUICK "--class 5 --num 1 --seed 9 --cfg 1.7 --head_spec 4 --out b.png --quiet");
    command_ok(d, "generate --like a.png --class 5 --seed 9 --out c.png --quiet");
    assert_same_file(d, "b.png", "c.png");
    cJSON *record = command_json(d, "generate --like a.png --fast 1 --out d.png --json 2>/dev/null");
    assert_true(json_number(record, "parameters.num_iter") != 8 && json_number(record, "parameters.seed") == 7);
    cJSON_Delete(record);
}

/* A model file is the one in the working directory, by its bytes, or the one that is given. */
COMMAND_CASE(model_files)
{
    const char *d = *state;
    size_t size, other_size;
    char *model = read_whole_file("weights/demo", "target.safetensors", &size);
    char *other = read_whole_file("weights/demo", "draft.safetensors", &other_size);
    write_whole_file(d, "my.safetensors", model, size);
    write_whole_file(d, "draft.safetensors", other, other_size);
    sh_ok(d, "mkdir far && cp my.safetensors far");
    command_ok(d, "generate " QUICK "--model far/my.safetensors --vae demo --class 3 --out a.png --quiet");
    command_ok(d, "generate --like a.png --out b.png --quiet");
    assert_same_file(d, "a.png", "b.png");
    write_whole_file(d, "my.safetensors", other, other_size);
    command_refused(d, "$MAR generate --like a.png --out c.png",
                    "my.safetensors: has other bytes than the my.safetensors of a.png (", "expected --model");
    sh_ok(d, "rm my.safetensors");
    command_refused(d, "$MAR generate --like a.png --out c.png",
                    "a.png: its model is my.safetensors, which is not here, expected --model with its place", NULL);
    command_ok(d, "generate --like a.png --model far/my.safetensors --out c.png --quiet");
    assert_same_file(d, "a.png", "c.png");
    command_result r = command_mar(d, "generate --like a.png --model draft.safetensors --out c.png");
    assert_int_equal(r.status, 0);
    assert_string_equal(r.err, "mar: warning: --model: is not the file of a.png\n");
    command_result_free(&r);
    free(model);
    free(other);
}

/* Writes `to` like the PNG `from` with another text of that key. */
static void edit_text(const char *directory, const char *from, const char *to, const char *key, const char *value)
{
    size_t size, n = 8;
    uint8_t *png = (uint8_t *)read_whole_file(directory, from, &size), *out = malloc(size + 256);
    memcpy(out, png, 8);
    for (size_t at = 8; at < size;) {
        uint32_t length =
            (uint32_t)png[at] << 24 | (uint32_t)png[at + 1] << 16 | (uint32_t)png[at + 2] << 8 | png[at + 3];
        const size_t whole = length + 12;
        memcpy(out + n, png + at, whole);
        if (memcmp(png + at + 4, "tEXt", 4) == 0 && strcmp((char *)png + at + 8, key) == 0) {
            length = (uint32_t)(strlen(key) + 1 + strlen(value));
            memcpy(out + n + 9 + strlen(key), value, strlen(value));
            const uint32_t crc = (uint32_t)crc32(0, out + n + 4, length + 4);
            for (int i = 0; i < 4; i++) {
                out[n + (size_t)i] = (uint8_t)(length >> (24 - 8 * i));
                out[n + 8 + length + (size_t)i] = (uint8_t)(crc >> (24 - 8 * i));
            }
        }
        n += length + 12;
        at += whole;
    }
    write_whole_file(directory, to, out, n);
    free(png);
    free(out);
}

/* Pictures of versions that worded the guarantee otherwise are made again, and their directories continued. */
COMMAND_CASE(old_words)
{
    const char *d = *state;
    command_ok(d, "generate " QUICK "--class 3,7 --num 1 --out old --quiet");
    sh_ok(d, "cp old/000000.png new.png");
    edit_text(d, "new.png", "old/000000.png", "guarantee", "exact: the target's distribution");
    command_ok(d, "generate --like old/000000.png --out again.png --quiet");
    assert_same_file(d, "new.png", "again.png");
    command_ok(d, "generate " QUICK "--class 3,7 --num 2 --out two --quiet");
    edit_text(d, "two/000000.png", "two/000000.png", "guarantee", "exact: the target's distribution");
    sh_ok(d, "cp two/000001.png one.png && rm two/000001.png");
    command_ok(d, "generate " QUICK "--class 3,7 --num 2 --out two --resume --quiet");
    assert_same_file(d, "two/000001.png", "one.png");
}

COMMAND_CASE(refusals)
{
    static const char *const edits[][3] = {
        {"old.png", "Software", "libmar 0.0.9"},      {"alien.png", "Software", "other 1"},
        {"list.png", "class", "@/etc/passwd"},        {"range.png", "num_iter", "-3"},
        {"number.png", "image", "1000000"},           {"far.png", "image", "999999"},
        {"cpu.png", "arithmetic", "cpu bf16 (zx81)"}, {"dtype.png", "dtype", "f64"}};
    static const refusal cases[] = {
        {"absent.png", "absent.png: cannot read: No such file or directory"},
        {"a.jpg", "--like a.jpg"},
        {"no.png", "no.png: 2 bytes that begin with \"no\""},
        {"grid.png", "grid.png: is a grid of the images 0-1", "--out"},
        {"map.png", "map.png: is a map", "), expected an image"},
        {"plain.png", "plain.png: has no text of mar generate"},
        {"edited.png", "edited.png: is an edited picture", "1"},
        {"alien.png", "alien.png: has no text of mar generate"},
        {"list.png", "list.png: its class is @/etc/passwd"},
        {"range.png", "range.png: its text: --num_iter -3: expected a whole number from 0 to "},
        {"number.png", "number.png: its image number is 1000000", "0 to 999999"},
        {"far.png --num 2", "--num 2", "--like"},
        {"old.png", "old.png: was made by libmar 0.0.9", "--like"},
        {"cpu.png", "cpu.png: was made by cpu bf16", "--dtype"},
        {"dtype.png", "dtype.png: its text: --dtype f64: expected"},
        {"a.png --out ./a.png", "--like a.png", "--out"},
    };
    static const image_text edited[] = {{"Software", "libmar 0.1.0"},    {"class", "3"}, {"image", "0"},
                                        {"edited", "a.png: 1"},          {"seed", "0"},  {"model", "demo"},
                                        {"arithmetic", "cpu f32 (avx2)"}};
    uint8_t rgb[3] = {0};
    const char *d = *state;
    assert_int_equal(image_write(path_in(d, "edited.png"), &(image){1, 1, rgb}, IMAGE_PNG, 0, edited, LENGTH(edited),
                                 IMAGE_UNSYNCED),
                     0);
    command_ok(d, "generate " QUICK "--class 3 --num 1 --out a.png --dtype bf16 --quiet");
    command_ok(d, "generate " QUICK "--class 3 --num 2 --out grid.png --quiet");
    command_ok(d, "generate " QUICK "--class 3 --num 1 --out b.png --spec path --accept_map map.png --quiet");
    size_t size;
    char *plain = read_whole_file("tests/golden/data/images", "png6_8.png", &size);
    write_whole_file(d, "plain.png", plain, size);
    write_whole_file(d, "no.png", "no", 2);
    free(plain);
    for (size_t i = 0; i < LENGTH(edits); i++) edit_text(d, "a.png", edits[i][0], edits[i][1], edits[i][2]);
    for (size_t i = 0; i < LENGTH(cases); i++) {
        char line[256];
        snprintf(line, sizeof line, "$MAR generate --out x.png --like %s", cases[i].arguments);
        command_refused(d, line, cases[i].part, cases[i].other);
    }
    command_ok(d, "generate --like old.png --cfg 2.9 --out x.png --quiet"); /* another image, so the version is free */
    command_ok(d, "generate --like cpu.png --dtype auto --out x.png --quiet");
}

/* Reads the seed in the summary, which is a line of its own before the guarantee. */
COMMAND_CASE(random_seeds)
{
    const char *d = *state;
    char seed[32], again[32];
    command_result r = command_mar(d, "generate " QUICK "--class 3 --num 1 -s random --out a.png");
    const char *at = strstr(r.out, "\n--seed ");
    assert_true(r.status == 0 && at && sscanf(at, "\n--seed %31[0-9]\nexact to: ", seed) == 1);
    assert_true(strtoull(seed, NULL, 10) < 1ull << 53);
    command_result_free(&r);
    command_ok(d, "generate " QUICK "--class 3 --num 1 --seed %s --out b.png --quiet", seed);
    assert_same_file(d, "a.png", "b.png");

    cJSON *record = command_json(d, "generate " QUICK "--class 3 --num 1 --seed=random --json --out c.png");
    snprintf(again, sizeof again, "%.0f", json_number(record, "parameters.seed"));
    assert_string_not_equal(seed, again);
    cJSON_Delete(record);
    sh_ok(d, "grep -aq 'seed.%s' c.png", again);
    command_ok(d, "generate " QUICK "--like a.png --seed random --store s --out e.png"); /* kept under the seed drawn */
    r = command_mar(d, "generate " QUICK "--class 3 --num 1 --seed random --seed 7 --out f.png"); /* the last counts */
    assert_null(strstr(r.out, "--seed"));
    command_result_free(&r);

    static const refusal cases[] = {
        {"generate --resume --out d --seed random", "--resume", "--seed"},
        {"generate --seed rnd", "--seed rnd", "0 to 18446744073709551615"},
        {"bench --seed random", "--seed random", "0 to 18446744073709551615"},
    };
    command_refuses(d, cases, LENGTH(cases));
}
