/* SphereAR models by the command: generating, inspecting, converting, and what is refused in one line. */
#include "tests/support/command.h"
#include "tests/support/sphere.h"
#include "tests/support/test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SHORT    " --num_sampling_steps 4 --threads 1 "
#define GENERATE "generate --model m.safetensors --class 2" SHORT

static void copy(const char *directory, const char *from, const char *to)
{
    size_t size;
    char *bytes = read_whole_file("tests/golden/data", from, &size);
    write_whole_file(directory, to, bytes, size);
    free(bytes);
}

/* Setup: a fresh directory with m.safetensors, a SphereAR model with its image decoder. */
static int set_up(void **state)
{
    const int failed = command_setup(state);
    if (!failed) copy(*state, "sphere_model.safetensors", "m.safetensors");
    return failed;
}

TEST_WITH(its_file_brings_the_image_decoder, set_up, command_teardown)
{
    const char *d = *state;
    cJSON *json = command_json(d, GENERATE "--json --out a.png");
    assert_string_equal(json_text(json, "vae"), "m.safetensors");
    assert_has(json_text(json, "guarantee"), "exact to: plain sampling, 16 steps of ");
    assert_int_equal(json_number(json, "parameters.num_iter"), 16);
    cJSON_Delete(json);
    command_ok(d, GENERATE "-q --vae m.safetensors --out b.png");
    assert_same_file(d, "a.png", "b.png");
    command_ok(d, "generate -q --like a.png --threads 1 --out c.png");
    assert_same_file(d, "a.png", "c.png");
    /* Tokens in a store are those of the same model, whatever the image decoder's file. */
    command_ok(d, GENERATE "-q --store s --out a.png");
    sh_ok(d, "cp m.safetensors n.safetensors && $MAR " GENERATE "--vae n.safetensors --store s --out d.png --json | "
             "grep -q '\"images_stored\":1,'");
}

/* A shift of 1 is the model's own. Another one makes another image, which pictures and the guarantee say. */
TEST_WITH(time_may_be_shifted, set_up, command_teardown)
{
    const char *d = *state;
    command_ok(d, GENERATE "-q --out a.png && $MAR " GENERATE "-q --time_shift 1 --out b.png");
    assert_same_file(d, "a.png", "b.png");
    cJSON *json = command_json(d, GENERATE "--time_shift 2 --head_spec 4 --json --out c.png");
    assert_has(json_text(json, "guarantee"), "num_sampling_steps 4 (100), time_shift 2 (1)");
    assert_has(json_text(json, "guarantee"), "exact to: ");
    assert_int_equal(json_number(json, "parameters.time_shift"), 2);
    assert_null(json_find(json, "parameters.token_norm"));
    cJSON_Delete(json);
    command_ok(d, GENERATE "-q --time_shift 2 --out d.png");
    sh_ok(d, "! cmp -s a.png d.png");
    command_ok(d, "generate -q --like d.png --threads 1 --out e.png");
    assert_same_file(d, "d.png", "e.png");
    json = command_json(d, "generate --class 3 --num 1 --num_iter 2 --json --out f.png" SHORT);
    assert_null(json_find(json, "parameters.time_shift"));
    cJSON_Delete(json);
    sh_ok(d, "! grep -qa time_shift f.png && grep -qa time_shift a.png");
}

TEST_WITH(options_of_other_families_are_refused, set_up, command_teardown)
{
    static const refusal cases[] = {
        {"generate --model demo --class 3 --time_shift 2",
         "--time_shift has no effect: MAR draws tokens without a flow"},
        {"generate --model demo-discrete --class 3 --time_shift 2", "--time_shift has no effect"},
        {"generate --model demo --class 3 --cache_dtype int8",
         "--cache_dtype has no effect: MAR does not make its tokens in raster order"},
        {"generate --model demo-harmon --prompt a --cache_dtype bf16", "--cache_dtype has no effect: Harmon does not"},
        {GENERATE "--time_shift 0.5", "--time_shift 0.5", "auto or a number from 1 to 100"},
        {GENERATE "--token_norm off", "--token_norm has no effect", "SphereAR"},
        {GENERATE "--lazy", "--lazy", "--head_spec"},
        {GENERATE "--gtr", "--gtr", "--head_spec"},
        {GENERATE "--spec conditional --draft m.safetensors", "--spec conditional"},
        {GENERATE "--num_iter 8", "--num_iter 8", "0"},
        {"generate --model m.safetensors --class 2 --top_k 3", "--top_k"},
        {GENERATE "--fast 2", "--fast 2", "--head_spec"},
        {GENERATE "--seq_len 16", "--seq_len"},
        {GENERATE "--patch_size 2", "--patch_size"},
        {GENERATE "--heads 3,3", "--heads 3,3"},
        {GENERATE "--draft demo-draft", "the draft is a model of family mar"},
        {GENERATE "--class 5", "--class", "0 to 4"},
        {"edit --image a.png --model m.safetensors --class 2 --keep 0.5",
         "m.safetensors: has no image encoder, which makes tokens of a picture: expected a file with one"},
    };
    command_ok(*state, GENERATE "-q --out a.png");
    command_refuses(*state, cases, LENGTH(cases));
}

/* A file with the encoder, and what is made of it, can edit: kept tokens at the beginning, and anywhere. */
TEST_WITH(edited, set_up, command_teardown)
{
    const char *d = *state;
    sphere_write_with_encoder(d, "e.safetensors");
    command_ok(d, "convert e.safetensors c.safetensors --dtype f32");
    command_ok(d, GENERATE "-q --out a.png");
    for (int i = 0; i < 2; i++) {
        const char *model = i ? "c.safetensors" : "e.safetensors";
        command_result r = command_mar(
            d, "edit --model %s --image a.png --keep 0.5 --class 3 --head_spec 4" SHORT "--out %d.png", model, i);
        if (r.status != 0) fail_msg("%s", r.err);
        assert_has(r.out, " s, 8 of 16 tokens kept\nexact to: plain sampling of the unknown tokens, each given those "
                          "before it, 16 steps of 4, by speculation inside the head");
        command_result_free(&r);
        sh_ok(d, "$MAR inspect %s | grep -q '^problems: 0$'", model);
    }
    sh_ok(d, "! cmp -s a.png 0.png");
    command_ok(d, "generate -q --model e.safetensors --class 2" SHORT "--out g.png && $MAR generate -q --model "
                  "e.safetensors --class 2" SHORT "--cache_dtype int8 --out h.png");
    sh_ok(d, "! cmp -s g.png h.png");
}

/* Writes m.safetensors under another name with every `from` replaced by `to`, of the same length. */
static void write_renamed(const char *directory, const char *name, const char *from, const char *to)
{
    size_t size;
    char *bytes = read_whole_file(directory, "m.safetensors", &size);
    int n = 0;
    for (size_t i = 0; i + strlen(from) <= size; i++)
        if (memcmp(bytes + i, from, strlen(from)) == 0) memcpy(bytes + i, to, strlen(to)), n++;
    assert_true(n > 0);
    write_whole_file(directory, name, bytes, size);
    free(bytes);
}

TEST_WITH(damaged_and_foreign_files_are_refused, set_up, command_teardown)
{
#define OF(file) "generate --class 2 --model " file SHORT
    static const refusal cases[] = {
        {OF("half.safetensors"), "half.safetensors: tensor", "file truncated?"},
        {OF("head.safetensors"), "head.safetensors: the header says", "truncated?"},
        {OF("norm.safetensors"), "norm.safetensors: tensor emb_norm.weight is missing"},
        {OF("flow.safetensors"), "flow.safetensors: tensor head.net.cond_embed.bias is missing"},
        {OF("decoder.safetensors"), "decoder.safetensors: tensor vae.decoder.conv_out.0.weight is missing"},
        {OF("none.safetensors"), "--vae"},
        {OF("vae.pt"), "vae.pt: is an image decoder", "--vae"},
        {GENERATE "--vae demo", "the VAE is a KL autoencoder"},
        {GENERATE "--vae demo-discrete", "the VAE is a VQ autoencoder"},
        {"generate --vae m.safetensors", "the VAE is the ViT decoder of SphereAR"},
        {GENERATE "--vae none.safetensors", "none.safetensors: is a SphereAR model", "--model"},
        {"convert norm.safetensors x.safetensors", "norm.safetensors: tensor emb_norm.weight is missing"},
        {"convert half.safetensors x.safetensors", "half.safetensors: tensor", "file truncated?"},
    };
    const char *d = *state;
    size_t size;
    char *bytes = read_whole_file(d, "m.safetensors", &size);
    write_whole_file(d, "half.safetensors", bytes, size / 2);
    write_whole_file(d, "head.safetensors", bytes, 100);
    free(bytes);
    copy(d, "vit.pt", "vae.pt");
    write_renamed(d, "norm.safetensors", "\"emb_norm.", "\"emb_nurm.");
    write_renamed(d, "flow.safetensors", "cond_embed.bias", "cond_embed.bios");
    write_renamed(d, "decoder.safetensors", "conv_out.0.weight", "conv_out.0.wait--");
    write_renamed(d, "none.safetensors", "\"vae.", "\"VAE.");
    command_refuses(d, cases, LENGTH(cases));
#undef OF
}

/* Returns the line of text that begins with `name` and ": ", in a static buffer. */
static const char *fact(const char *text, const char *name)
{
    static char line[256];
    const char *at = strstr(text, name);
    if (!at) fail_msg("no %s in %s", name, text);
    snprintf(line, sizeof line, "%.*s", (int)strcspn(at, "\n"), at);
    return line;
}

TEST_WITH(inspected_and_converted, set_up, command_teardown)
{
    static const char *const types[] = {"f32", "bf16", "f16", "int8"};
    const char *d = *state;
    command_result r = command_mar(d, "inspect m.safetensors");
    assert_int_equal(r.status, 0);
    assert_string_equal(fact(r.out, "kind: "), "kind: SphereAR model");
    assert_string_equal(fact(r.out, "flow head: "), "flow head: width 32, 4 blocks, SwiGLU 48, 2 adaLN layers");
    assert_string_equal(fact(r.out, "defaults: "),
                        "defaults: num_iter 16, num_sampling_steps 100, time_shift 1, cfg 4.6, "
                        "cfg_schedule linear");
    command_result_free(&r);
    for (size_t i = 0; i < LENGTH(types); i++) {
        command_ok(d, "convert m.safetensors c.safetensors --dtype %s --overwrite", types[i]);
        command_ok(d, "generate -q --model c.safetensors --class 2 --dtype %s" SHORT "--out %s.png",
                   i == 2 ? "f32" : types[i], types[i]);
    }
    command_ok(d, "generate -q --model m.safetensors --class 2 --dtype f32" SHORT "--out m.png");
    sh_ok(d, "$MAR convert m.safetensors f32.safetensors --dtype f32 && $MAR inspect f32.safetensors | "
             "grep -q 'mar.kind = spherear' && $MAR inspect c.safetensors | grep -q 'int8 weights: 8 matrices'");
    cJSON *json = command_json(d, "inspect m.safetensors --json");
    assert_string_equal(json_text(json, "kind"), "spherear");
    assert_string_equal(json_text(json, "config.family"), "spherear");
    assert_int_equal(json_count(json, "problems"), 0);
    char *defaults = cJSON_PrintUnformatted(json_find(json, "config.defaults"));
    assert_string_equal(defaults, "{\"num_iter\":16,\"num_sampling_steps\":100,\"time_shift\":1,\"cfg\":4.6,"
                                  "\"cfg_schedule\":\"linear\"}");
    free(defaults);
    cJSON_Delete(json);
}

TEST_WITH(measured_by_its_parts, set_up, command_teardown)
{
    const char *d = *state;
    command_result r = command_mar(d, "bench --model m.safetensors --head_spec 4" SHORT);
    assert_int_equal(r.status, 0);
    assert_has(r.out, "\ntransformer ");
    assert_null(strstr(r.out, "encoder"));
    assert_has(r.out, ", by speculation inside the head");
    command_result_free(&r);
    sh_ok(d, "$MAR methods --name head-spec | grep -q 'models: *Harmon, UniPic-1, MAR, SphereAR, NextStep-1, "
             "NextStep-1.1$' && "
             "$MAR methods --name lazymar | grep -q 'models: *Harmon, UniPic-1, MAR$' && "
             "$MAR methods --name sjd | grep -q 'models: *Lumina-mGPT, Anole, Emu3, LlamaGen$'");
}
