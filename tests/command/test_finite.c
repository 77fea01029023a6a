/* A model or an image decoder that overflows: no picture, exit status 1 and one line that says where. */
#include "tests/support/changed.h"
#include "tests/support/command.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define QUICK "--num_iter 4 --num_sampling_steps 8 --quiet "

/* Writes the demo's model and image decoder with one tensor each out of range. */
static void write_models(const char *directory)
{
    mar *m = open_mar(MAR_DTYPE_F32, 1);
    free(write_changed(m, directory, "model.safetensors", "demo", "decoder_blocks.1.attn.proj.weight", 0, 0, 3e38f));
    free(write_changed(m, directory, "vae.safetensors", "demo-vae", "decoder.conv_out.weight", 0, 0, 3e38f));
    mar_close(m);
}

/* "$MAR arguments" fails with one line that has `first` and `last` in it, and leaves no file but the models. */
static void expect_failure(const char *directory, const char *arguments, const char *first, const char *last)
{
    char line[1024];
    const int before = count_files(directory);
    snprintf(line, sizeof line, "$MAR %s", arguments);
    command_result r = command_run(directory, line);
    const char *end = strchr(r.err, '\n');
    if (r.status != 1) fail_msg("%s: status %d: %s", arguments, r.status, r.err);
    if (!strstr(r.err, first) || !strstr(r.err, last)) fail_msg("%s: %s", arguments, r.err);
    assert_true(end && end[1] == '\0');
    assert_int_equal(count_files(directory), before);
    command_result_free(&r);
}

static void no_picture_comes_of_it(void **state)
{
    const char *directory = *state;
    static const char *const ways[] = {"", "--head_spec 4 ", "--draft demo-draft ", "--draft demo-draft --head_spec 2 ",
                                       "--sampler dpmpp "};
    const char *how = "; --check names the first layer whose output is not finite",
               *layer = ": decoder_blocks.1.attn.proj\n";
    char line[256];
    write_models(directory);
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++)
        for (int check = 0; check < 2; check++) {
            snprintf(line, sizeof line,
                     "generate --model model.safetensors --vae demo --class 3 --out a.png " QUICK "%s%s", ways[i],
                     check ? "--check" : "");
            expect_failure(directory, line, "mar: image 0, step 0: a token is ", check ? layer : how);
        }
    expect_failure(directory, "generate --model demo --vae vae.safetensors --class 3 --out a.png " QUICK,
                   "mar: image 0: the image decoder's output is ", how);
    expect_failure(directory, "generate --model demo --vae vae.safetensors --class 3 --out a.png --check " QUICK,
                   "mar: image 0: the image decoder's output is ", ": decoder.conv_out\n");
}

static void nothing_is_measured_of_it(void **state)
{
    const char *directory = *state;
    write_models(directory);
    expect_failure(directory, "bench --model model.safetensors --vae demo --num_iter 4 --num_sampling_steps 8 --check",
                   "image 0, step 0: a token is ", ": decoder_blocks.1.attn.proj\n");
    expect_failure(directory,
                   "fidelity --num 20 --model model.safetensors --vae demo --check --num_iter 4 --num_sampling_steps 8 "
                   "--head_spec 2 --against",
                   "image 0, step 0: a token is ", ": decoder_blocks.1.attn.proj\n");
}

/* The picture is the same, and does not say how it was looked at. */
static void check_changes_no_byte(void **state)
{
    const char *directory = *state;
    command_ok(directory, "generate --model demo --class 3 --out a.png " QUICK);
    command_ok(directory, "generate --model demo --class 3 --out b.png --check " QUICK);
    size_t size, other;
    char *a = read_whole_file(directory, "a.png", &size), *b = read_whole_file(directory, "b.png", &other);
    assert_int_equal(size, other);
    assert_memory_equal(a, b, size);
    free(a);
    free(b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(no_picture_comes_of_it, command_setup, command_teardown),
        cmocka_unit_test_setup_teardown(nothing_is_measured_of_it, command_setup, command_teardown),
        cmocka_unit_test_setup_teardown(check_changes_no_byte, command_setup, command_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
