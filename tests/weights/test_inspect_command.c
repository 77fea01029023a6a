/* mar inspect and mar convert as a user runs them. */
#include "tests/support/command.h"
#include "tests/support/llamagen.h"

#include <cjson/cJSON.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DATA  "tests/weights/data/"
#define STEPS "--num_iter 4 --num_sampling_steps 10 --sampler ddim --dtype f32"

static command_result run(const char *line, int status)
{
    command_result r = command_run(".", line);
    if (r.status != status) fail_msg("%s: exit status %d, expected %d: %s", line, r.status, status, r.err);
    return r;
}

TEST_CASE(test_text)
{
    command_result r = run("$MAR inspect --heads 2 " DATA "mar.pth", 0);
    assert_non_null(strstr(r.out, "\nformat: PyTorch zip (model_ema)\n"));
    assert_non_null(strstr(r.out, "\nproblems: 0\n"));
    assert_string_equal(r.err, "");
    command_result_free(&r);
    r = run("$MAR inspect " DATA "dtypes.pt", 1); /* no model: problems on stdout, nothing went wrong on stderr */
    assert_non_null(strstr(r.out, "\nproblem: is of no known kind: its tensors are f64, f32, f16 ...\n"));
    for (const char *line = r.out, *end; (end = strchr(line, '\n')); line = end + 1)
        assert_in_range(end - line, 0, 140);
    assert_non_null(strstr(r.out, "\nproblems: 1\n"));
    assert_string_equal(r.err, "");
    command_result_free(&r);
}

static cJSON *run_json(const char *line, int status)
{
    command_result r = run(line, status);
    cJSON *root = cJSON_Parse(r.out);
    assert_non_null(root);
    command_result_free(&r);
    return root;
}

TEST_CASE(test_json)
{
    cJSON *root = run_json("$MAR inspect --json --heads 2 " DATA "mar.pth", 0);
    assert_string_equal(cJSON_GetObjectItem(root, "kind")->valuestring, "mar");
    assert_int_equal(cJSON_GetObjectItem(cJSON_GetObjectItem(root, "config"), "width")->valueint, 16);
    assert_int_equal(cJSON_GetArraySize(cJSON_GetObjectItem(root, "problems")), 0);
    cJSON_Delete(root);
    root = run_json("$MAR inspect --json " DATA "vae.ckpt", 0);
    assert_int_equal(cJSON_GetObjectItem(cJSON_GetObjectItem(root, "config"), "stride")->valueint, 2);
    cJSON_Delete(root);
    root = run_json("$MAR inspect --json tests/golden/data/t5", 0);
    assert_string_equal(cJSON_GetObjectItem(root, "kind")->valuestring, "t5");
    cJSON_Delete(root);
    root = run_json("$MAR inspect --json demo-mgpt", 0);
    assert_string_equal(cJSON_GetObjectItem(root, "kind")->valuestring, "decoder");
    cJSON_Delete(root);
    root = run_json("$MAR inspect --json " DATA "dtypes.pt", 1);
    assert_string_equal(cJSON_GetObjectItem(root, "kind")->valuestring, "unknown");
    assert_null(cJSON_GetObjectItem(root, "config"));
    assert_int_equal(cJSON_GetArraySize(cJSON_GetObjectItem(root, "problems")), 1);
    cJSON_Delete(root);
}

TEST_CASE(test_convert)
{
    command_result r = run("d=$(mktemp -d) && $MAR convert " DATA "mar.pth $d/m.safetensors --dtype bf16 --heads 2 && "
                           "$MAR inspect $d/m.safetensors; s=$?; ls -A $d; rm -r $d; exit $s",
                           0);
    assert_non_null(strstr(r.out, "\ntensors: 92 (BF16)\n"));
    assert_non_null(strstr(r.out, "blocks, 2 heads,"));
    assert_non_null(strstr(r.out, "problems: 0\nm.safetensors\n"));
    command_result_free(&r);
    r = run("$MAR convert " DATA "mar.pth /nonexistent/m.safetensors", 1);
    assert_string_equal(r.out, "");
    assert_non_null(strstr(r.err, "mar: /nonexistent/m.safetensors: cannot write: No such file"));
    command_result_free(&r);
}

/* Tests tokens that are patches: where the patch size is reported, requested, recorded and refused. */
TEST_WITH(test_patches, command_setup, command_teardown)
{
    static const mar_model_config shape = {.width = 32,
                                           .encoder_depth = 1,
                                           .decoder_depth = 1,
                                           .heads = 2,
                                           .mlp_hidden = 64,
                                           .buffer = 2,
                                           .seq_len = 16,
                                           .token_dim = 32,
                                           .classes = 10,
                                           .head_width = 32,
                                           .head_depth = 1};
    static const struct {
        const char *line;
        int status;
        const char *part;
    } cases[] = {
        {"$MAR inspect p.safetensors", 0, "\ntokens: 16 of 32 channels, 10 classes"},
        {"$MAR inspect kl16.safetensors", 0,
         "\ntokens: 16 of 64 channels (patch_size 2 with the 16 channels of KL-16), "},
        {"$MAR inspect p.safetensors --patch_size 2", 0, "\ntokens: 16 of 32 channels (patch_size 2), 10 classes"},
        {"$MAR inspect p.safetensors --json --patch_size 2", 0, "\"patch_size\":\t2"},
        {"$MAR generate --model p.safetensors --vae demo --class 1 " STEPS, 1,
         "mar: demo: the VAE decodes 8 channels but the model's tokens have 32; if a token is 2x2 latent pixels, "
         "expected "
         "--patch_size 2\n"},
        {"$MAR generate --model p.safetensors --vae demo --class 1 --patch_size 2 --out a.png " STEPS, 0, " of 32x32 "},
        {"$MAR convert p.safetensors said.safetensors --patch_size 2 && $MAR inspect said.safetensors", 0,
         "metadata: mar.patch_size = 2"},
        {"$MAR generate --model said.safetensors --vae demo --class 1 --out b.png " STEPS, 0, " of 32x32 "},
        {"$MAR bench --model said.safetensors --vae demo --batch 1 " STEPS, 0, "image"},
        {"$MAR eval --model said.safetensors --vae demo --features demo --num_images 20 --out run " STEPS, 0, ""},
        {"$MAR generate --model said.safetensors --vae demo --class 1 --patch_size 4 " STEPS, 1,
         "mar: --patch_size 4: the metadata of said.safetensors say 2\n"},
        {"$MAR inspect p.safetensors --patch_size 3", 1,
         "mar: --patch_size 3: the tokens of p.safetensors have 32 channels, expected 1 to 16 whose square divides "
         "that\n"},
        {"$MAR generate --model p.safetensors --vae demo --class 1 --patch_size 4 " STEPS, 1,
         "mar: demo: the VAE decodes 8 channels but the model's tokens have 32, 2 in each of 16 latent pixels\n"},
        {"$MAR generate --model demo-discrete --class 1 --patch_size 2", 1, "mar: --patch_size has no effect: "},
        {"$MAR inspect demo-vae --patch_size 2", 1,
         "mar: --patch_size has no effect: demo-vae is a KL autoencoder, expected a MAR model\n"},
    };
    mar_model_config kl16 = shape;
    kl16.token_dim = 64;
    free(write_mar(*state, "p.safetensors", &shape, 1, ""));
    free(write_mar(*state, "kl16.safetensors", &kl16, 1, ""));
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        command_result r = command_run(*state, cases[i].line);
        if (r.status != cases[i].status) fail_msg("%s: exit status %d: %s%s", cases[i].line, r.status, r.out, r.err);
        if (!strstr(r.out, cases[i].part) && !strstr(r.err, cases[i].part))
            fail_msg("%s: \"%s%s\", expected \"%s\" in it", cases[i].line, r.out, r.err, cases[i].part);
        command_result_free(&r);
    }
}

/* A folder's config.json as editors and Python write it: with a byte order mark, and with NaN where nothing needs the
 * number. NaN where one is needed is refused by the member's name, and so is a folder without config.json. */
TEST_CASE(test_config)
{
    static const struct {
        const char *edit; /* of config.json in a copy of the T5, as $f */
        int status;
        const char *part;
    } cases[] = {
        {"{ printf '\\357\\273\\277'; cat $t/config.json; } > $f", 0, "\nkind: T5 encoder\n"},
        {"sed 's/{/{\"x\": NaN, \"y\": [Infinity, -Infinity],/' $t/config.json > $f", 0, "\nkind: T5 encoder\n"},
        {"sed 's/\"d_model\": *[0-9]*/\"d_model\": NaN/' $t/config.json > $f", 1,
         "config.json has no positive number for d_model"},
        {"rm -f $f", 1, "problem: has no config.json, expected the one with the T5's activation and epsilon\n"},
    };
    char line[600];
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        snprintf(
            line, sizeof line,
            "t=$PWD/weights/demo/t5; d=$(mktemp -d) && f=$d/config.json && cp $t/* $d && %s && $MAR inspect $d; s=$?; "
            "rm -r $d; exit $s",
            cases[i].edit);
        command_result r = run(line, cases[i].status);
        if (!strstr(r.out, cases[i].part)) fail_msg("%s: \"%s\", expected \"%s\" in it", line, r.out, cases[i].part);
        command_result_free(&r);
    }
    command_result r = run("d=$(mktemp -d) && cp weights/demo/mgpt/[mt]* $d && $MAR inspect $d; s=$?; rm -r $d; "
                           "exit $s",
                           1);
    assert_non_null(strstr(r.out, "problem: has no config.json (Meta's release: params.json), expected"));
    command_result_free(&r);
}
