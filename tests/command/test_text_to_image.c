/* Prompts to pictures on demo-t2i: mar captions, and the commands that take prompts. */
#include "tests/support/command.h"

#include "tools/images/image.h"
#include "weights/npz.h"

#include <stdlib.h>
#include <string.h>

#define T2I "generate --model demo-t2i -q --dtype f32 "

static void read_image(const char *directory, const char *name, image_file *out)
{
    assert_int_equal(image_read_png(path_in(directory, "%s", name), 32, 32, out), 0);
}

/* Returns the text of a PNG; "" if it has none. */
static const char *text_of(const image_file *f, const char *key)
{
    for (int i = 0; i < f->count; i++)
        if (strcmp(f->texts[i].key, key) == 0) return f->texts[i].value;
    return "";
}

static int same_pixels(const image_file *a, const image_file *b)
{
    return memcmp(a->picture.rgb, b->picture.rgb, (size_t)32 * 32 * 3) == 0;
}

/* A prompt's picture is that of its features from a file. Other prompts make other pictures. A PNG has its prompt. */
COMMAND_CASE(pictures)
{
    static const char *const prompts[] = {"a bold seven", "a \xc3\xa9t\xc3\xa9 3, thin"};
    image_file made[2], again[2];
    write_whole_file(*state, "p.txt", "a bold seven\na \xc3\xa9t\xc3\xa9 3, thin\n", 28);
    command_ok(*state, "captions p.txt --t5 demo-t5 --tokens 16 --dtype f32 --out c.npz -q");
    command_ok(*state, T2I "--prompt 'a bold seven' --prompts p.txt --num 1 --out a");
    command_ok(*state, T2I "--captions c.npz --out b");
    for (int i = 0; i < 2; i++) {
        read_image(*state, i ? "a/000002.png" : "a/000000.png", &made[i]); /* of --prompt, and the file's second */
        read_image(*state, i ? "b/000001.png" : "b/000000.png", &again[i]);
        assert_string_equal(text_of(&made[i], "prompt"), prompts[i]);
        assert_string_equal(text_of(&again[i], "prompt"), prompts[i]);
        assert_string_equal(text_of(&made[i], "features"), text_of(&again[i], "features"));
        assert_string_equal(text_of(&made[i], "t5"), "demo-t5");
        assert_string_equal(text_of(&made[i], "class"), "");
    }
    assert_true(same_pixels(&made[0], &again[0]));
    assert_false(same_pixels(&made[0], &made[1]));
    for (int i = 0; i < 2; i++) image_file_free(&made[i]), image_file_free(&again[i]);
}

/* --like makes the image of a prompt again, from its text. A prompt given beside it makes another. */
COMMAND_CASE(like)
{
    command_ok(*state, T2I "--prompt one --prompt 'a thin two' --num 2 --seed 5 --clean off --out a");
    command_ok(*state, "generate -q --like a/000003.png --out again.png");
    assert_same_file(*state, "a/000003.png", "again.png");
    command_ok(*state, "generate -q --like a/000003.png --prompt 'a bold two' --out other.png");
    sh_ok(*state, "! cmp -s other.png again.png");
    command_ok(*state, T2I "--prompt one --prompt 'a thin two' --num 2 --seed 5 --clean off --out a --resume");
    command_refused(
        *state, "$MAR " T2I "--prompt one --prompt 'a bold two' --num 2 --seed 5 --clean off --out a --resume",
        "a/000002.png: prompt is a thin two, expected a bold two", "a directory has images of one run only");
}

/* The record has the prompts, and the store keeps those of other prompts apart. */
COMMAND_CASE(records)
{
    cJSON *r = command_json(*state, T2I "--prompt one --prompt two --num 2 --store s --out a --json");
    assert_int_equal(json_count(r, "prompts"), 2);
    assert_string_equal(json_text(r, "prompts.1.prompt"), "two");
    assert_string_equal(json_text(r, "files.2.prompt"), "two");
    assert_null(json_find(r, "classes"));
    cJSON_Delete(r);
    r = command_json(*state, T2I "--prompt one --prompt three --num 2 --store s --out b --json");
    assert_true(json_number(r, "images_stored") == 0);
    cJSON_Delete(r);
    r = command_json(*state, T2I "--prompt one --prompt two --num 2 --store s --out c --json");
    assert_true(json_number(r, "images_stored") == 4);
    cJSON_Delete(r);
    sh_ok(*state, "cmp a/000002.png c/000002.png && ! cmp -s a/000002.png b/000002.png");
}

/* Runs the line, which ends with status 1, and checks that its errors have both parts. */
static void warned(const char *directory, const char *line, const char *part, const char *other)
{
    command_result r = command_run(directory, line);
    assert_int_equal(r.status, 1);
    assert_has(r.err, part);
    assert_has(r.err, other);
    command_result_free(&r);
}

/* A bad prompt is named and left out; the others are made, and the status is 1. */
COMMAND_CASE(bad_prompts)
{
    write_whole_file(*state, "p.txt", "one\n\n\xff\ntwo\n", 11);
    warned(*state, "$MAR " T2I "--prompts p.txt --out a", "p.txt, line 2: the prompt is empty: skipped",
           "p.txt, line 3: byte 1 of the prompt is 0xff, expected UTF-8 text: skipped");
    sh_ok(*state, "test -f a/000001.png && test ! -e a/000002.png");
    warned(*state, "$MAR " T2I "--prompts - --out b.png < p.txt", "line 2: the prompt is empty: skipped", "skipped");
    warned(*state, "$MAR " T2I "--prompt '' --prompt one --out c.png", "--prompt \"\": the prompt is empty: skipped",
           "");
    sh_ok(*state, "test -f b.png && test -f c.png");
    warned(*state, "$MAR captions p.txt --t5 demo-t5 --out c.npz", "line 3: byte 1", "skipped");
    sh_ok(*state, "test -f c.npz");
    sh_ok(*state, "head -c 100000 /dev/zero | tr '\\0' a > long.txt");
    warned(*state, "$MAR " T2I "--prompt one --prompts long.txt --out d.png",
           "long.txt, line 1: a prompt of 100000 bytes, expected 4096 at most; --clean off takes longer ones: skipped",
           "");
    sh_ok(*state, "test -f d.png && rm d.png");
    command_result r =
        command_mar(*state, "generate --model demo-t2i --out d.png --prompt 'b b b b b b b b b b b b b b b b b b'");
    assert_int_equal(r.status, 0);
    assert_has(r.err, "b b\": has ");
    assert_has(r.err, " are left out: 16 fit\n");
    command_result_free(&r);
}

COMMAND_CASE(refusals)
{
    static const refusal cases[] = {
        {T2I, "--prompt"},
        {"bench --model demo-t2i", "--prompt"},
        {T2I "--prompt x --class 1", "--class", "--prompt"},
        {T2I "--prompts p.txt --class 1", "--class", "--prompts"},
        {T2I "--prompt x --captions c.npz", "--captions", "--prompt"},
        {T2I "--t5 demo-t5 --captions c.npz", "--captions", "--t5"},
        {T2I "--t5 demo-t5", "--t5", "--prompt"},
        {T2I "--prompt x --t5 none", "none: cannot open: No such file or directory"},
        {T2I "--prompts none", "none: cannot read: No such file or directory"},
        {T2I "--prompt ''", "--prompt \"\""},
        {"generate --model demo-discrete --prompt x", "--prompt"},
        {T2I "--prompt x --class_names p.txt", "--class_names"},
        {"captions p.txt --out c.npz", "--text is missing"},
        {"captions p.txt --t5 demo-t5", "--out"},
        {"captions p.txt --t5 demo-t5 --out c.txt", "c.txt", ".npz"},
        {"eval --model demo-t2i --prompts bad.txt --num_images 2 --out e", "bad.txt", "2"},
    };
    write_whole_file(*state, "p.txt", "one\n", 4);
    write_whole_file(*state, "bad.txt", "one\n\xff\n", 6);
    for (size_t i = 0; i < LENGTH(cases); i++) {
        command_result r = command_mar(*state, "%s", cases[i].arguments);
        assert_int_equal(r.status, 1);
        assert_has(r.err, cases[i].part);
        if (cases[i].other) assert_has(r.err, cases[i].other);
        command_result_free(&r);
    }
}

/* What numpy.load gives of the file: shapes, padding in front, and the texts. */
COMMAND_CASE(file_of_captions)
{
    enum { TOKENS = 9, DIM = 128 };
    char why[NPZ_WHY_MAX], texts[64];
    float features[2 * TOKENS * DIM], mask[2 * TOKENS];
    npz *z;
    write_whole_file(*state, "p.json", "[\"one\", \"a bold two\"]", 21);
    command_ok(*state, "captions p.json --t5 demo-t5 --tokens 9 --out c.npz");
    assert_int_equal(npz_open(path_in(*state, "c.npz"), &z, why), MAR_OK);
    const npz_array *f = npz_find(z, "features"), *m = npz_find(z, "mask"), *p = npz_find(z, "prompts");
    assert_true(f && f->dtype == NPZ_F32 && f->rank == 3 && f->shape[0] == 2 && f->shape[1] == TOKENS &&
                f->shape[2] == DIM);
    assert_true(m && m->dtype == NPZ_U8 && m->rank == 2 && m->count == 2 * TOKENS);
    assert_true(p && p->dtype == NPZ_U8 && p->count == 15);
    assert_int_equal(npz_read_f32(z, f, features, why), MAR_OK);
    assert_int_equal(npz_read_f32(z, m, mask, why), MAR_OK);
    assert_int_equal(npz_stream_begin(z, p, why), MAR_OK);
    assert_int_equal(npz_stream_read(z, 15, (uint8_t *)texts, why), MAR_OK);
    assert_memory_equal(texts, "one\0a bold two", 15);
    int ones = 0;
    for (int i = 0; i < 2 * TOKENS; i++) {
        ones += mask[i] == 1;
        if (mask[i] == 0)
            for (int k = 0; k < DIM; k++) assert_true(features[i * DIM + k] == 0);
    }
    assert_int_equal(ones, 2 + 4); /* pieces of the prompts, and an end token each */
    assert_true(mask[TOKENS - 1] == 1 && mask[0] == 0);
    npz_close(z);
}

/* CLIP scores the images of the run with the run's prompts, encoded here or by mar captions. */
COMMAND_CASE(clip_score)
{
    static const char options[] = "--num_images 4 --clip $OLDPWD/tests/golden/data/clip_tiny --features none --json";
    write_whole_file(*state, "p.txt", "a seven\na two\n", 14);
    command_ok(*state, "captions p.txt --t5 demo-t5 --tokens 16 --out c.npz -q");
    cJSON *encoded = command_json(*state, "eval --model demo-t2i --prompts p.txt --out a %s", options);
    cJSON *read = command_json(*state, "eval --model demo-t2i --captions c.npz --out b %s", options);
    assert_true(json_number(encoded, "numbers.clip_cosine") == json_number(read, "numbers.clip_cosine"));
    cJSON_Delete(encoded);
    cJSON_Delete(read);
}

/* The other commands that take --captions take prompts. */
COMMAND_CASE(other_commands)
{
    command_ok(*state, "eval --model demo-t2i --prompt 'a seven' --prompt 'a two' --num_images 4 -q --out e");
    sh_ok(*state,
          "grep -q 'prompts balanced (2 prompts, ' e/result.json && ! grep -q '\"accuracy\": *[0-9]' e/result.json");
    command_ok(*state,
               "fidelity --model demo-t2i --prompt 'a seven' --prompt 'a two' --num 20 -q --out f.html --against "
               "--spec sjd");
    sh_ok(*state, "test -s f.html");
}
