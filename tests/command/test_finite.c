/* A model or an image decoder that overflows: no picture, status 1 and one line that says where. */
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

/* Checks that "$MAR arguments" fails in one line with both texts, and leaves no file but the models. */
static void refused(const char *directory, const char *arguments, const char *first, const char *last)
{
    command_refuses(directory, &(const refusal){arguments, first, last}, 1);
}

COMMAND_CASE(no_picture_comes_of_it)
{
    const char *directory = *state;
    static const char *const runs[] = {"", "--head_spec 4 ", "--draft demo-draft ", "--draft demo-draft --head_spec 2 ",
                                       "--sampler dpmpp "};
    const char *how = "; --check names the first layer whose output is not finite",
               *layer = ": decoder_blocks.1.attn.proj\n";
    char line[256];
    write_models(directory);
    for (size_t i = 0; i < LENGTH(runs); i++)
        for (int check = 0; check < 2; check++) {
            snprintf(line, sizeof line,
                     "generate --model model.safetensors --vae demo --class 3 --out a.png " QUICK "%s%s", runs[i],
                     check ? "--check" : "");
            refused(directory, line, "mar: image 0, step 0: a token is ", check ? layer : how);
        }
    refused(directory, "generate --model demo --vae vae.safetensors --class 3 --out a.png " QUICK,
            "mar: image 0: the image decoder's output is ", how);
    refused(directory, "generate --model demo --vae vae.safetensors --class 3 --out a.png --check " QUICK,
            "mar: image 0: the image decoder's output is ", ": decoder.conv_out\n");
}

COMMAND_CASE(nothing_is_measured_of_it)
{
    const char *directory = *state;
    write_models(directory);
    refused(directory, "bench --model model.safetensors --vae demo --num_iter 4 --num_sampling_steps 8 --check",
            "image 0, step 0: a token is ", ": decoder_blocks.1.attn.proj\n");
    refused(directory,
            "fidelity --num 20 --model model.safetensors --vae demo --check --num_iter 4 --num_sampling_steps 8 "
            "--head_spec 2 --against",
            "image 0, step 0: a token is ", ": decoder_blocks.1.attn.proj\n");
}

/* Checks that the check for finite values changes no byte of the picture. */
COMMAND_CASE(check_changes_no_byte)
{
    const char *directory = *state;
    command_ok(directory, "generate --model demo --class 3 --out a.png " QUICK);
    command_ok(directory, "generate --model demo --class 3 --out b.png --check " QUICK);
    assert_same_file(directory, "a.png", "b.png");
}

/* Checks the warning about a head that FP16 does not hold: once, and the picture is made. */
COMMAND_CASE(a_head_in_f32_is_told)
{
    const char *directory = *state;
    mar *m = open_mar(MAR_DTYPE_F32, 1);
    free(write_changed(m, directory, "wide.safetensors", "demo", "diffloss.net.res_blocks.0.mlp.2.weight", 0, 1, 7e4f));
    mar_close(m);
    command_result r = command_mar(directory, "generate --model wide.safetensors --vae demo --class 3 --out a.png "
                                              "--num_iter 1 --num_sampling_steps 2 --dtype f32 --head_dtype f16");
    assert_string_equal(r.err, "mar: warning: model wide.safetensors: the diffusion head computes in f32: f16 ends at "
                               "65504, and a weight or an activation is beyond it\n");
    assert_int_equal(r.status, 0);
    command_result_free(&r);
}
