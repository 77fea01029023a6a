/* Prompts to pictures with a model that writes images among text, a tiny Emu3 with the image decoder of demo-discrete:
 * its own folder encodes prompts; --negative and --size. */
#include "tests/support/command.h"
#include "tests/support/decoder_folder.h"

#include "tools/images/image.h"
#include "weights/weights.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

/* 4 tokens in a row and 3 rows, of 4 pixels in this decoder. */
#define MODEL    "--model m/ --vq demo-discrete --size 32x24 --dtype f32 -q "
#define GENERATE "generate --num 1 " MODEL

static void write_model(const char *directory)
{
    const char *folder = path_in(directory, "m");
    assert_int_equal(mkdir(folder, 0777), 0);
    write_emu3(folder, 256);
}

/* Returns the text of a PNG; the caller frees it. */
static char *text_of(const char *directory, const char *name, const char *key)
{
    image_file f;
    char *text = NULL;
    assert_int_equal(image_read_png(path_in(directory, "%s", name), 16, 12, &f), 0);
    for (int i = 0; i < f.count; i++)
        if (strcmp(f.texts[i].key, key) == 0) text = strdup(f.texts[i].value);
    image_file_free(&f);
    return text;
}

static void assert_text(const char *directory, const char *name, const char *key, const char *expected)
{
    char *text = text_of(directory, name, key);
    if (expected)
        assert_string_equal(text ? text : "(none)", expected);
    else
        assert_null(text);
    free(text);
}

COMMAND_CASE(pictures)
{
    write_model(*state);
    command_ok(*state, GENERATE "--prompt 'a corgi' --prompt 'a cat' --cfg 3 --out a");
    assert_text(*state, "a/000000.png", "prompt", "a corgi");
    assert_text(*state, "a/000000.png", "size", "32x24");
    assert_text(*state, "a/000000.png", "t5", NULL);
    assert_text(*state, "a/000000.png", "clean", NULL);
    assert_text(*state, "a/000000.png", "negative", NULL);
    command_ok(*state, GENERATE "--prompt 'a corgi' --cfg 3 --negative blurry --out n.png");
    assert_text(*state, "n.png", "negative", "blurry");
    sh_ok(*state, "! cmp -s a/000000.png a/000001.png && ! cmp -s a/000000.png n.png");
    command_ok(*state, "generate -q --like a/000001.png --model m/ --vq demo-discrete --out like.png");
    assert_same_file(*state, "a/000001.png", "like.png");
    command_ok(*state, "generate -q --like n.png --model m/ --vq demo-discrete --out like_n.png");
    assert_same_file(*state, "n.png", "like_n.png");
}

/* --positive is added to the prompt that is encoded, and recorded beside the one that was given. */
COMMAND_CASE(positive)
{
    const char *d = *state;
    write_model(d);
    command_ok(d, GENERATE "--prompt 'a corgi in rain' --out a.png");
    cJSON *r = command_json(d, GENERATE "--prompt 'a corgi' --positive 'in rain' --json --out b.png");
    assert_string_equal(json_text(r, "positive"), "in rain");
    cJSON_Delete(r);
    assert_text(d, "b.png", "prompt", "a corgi");
    assert_text(d, "b.png", "positive", "in rain");
    char *joined = text_of(d, "a.png", "features"), *added = text_of(d, "b.png", "features");
    assert_string_equal(joined, added);
    free(joined);
    free(added);
    command_ok(d, "generate -q --like b.png --model m/ --vq demo-discrete --out like.png");
    assert_same_file(d, "b.png", "like.png");
    write_whole_file(d, "p.txt", "a corgi\n", 8);
    command_ok(d, "captions p.txt --t5 m --size 32x24 --positive 'in rain' --out c.npz -q");
    command_ok(d, GENERATE "--captions c.npz --out c.png");
    char *files = text_of(d, "c.png", "features"), *ours = text_of(d, "b.png", "features");
    assert_string_equal(files, ours);
    free(files);
    free(ours);
    command_refused(d, "$MAR " GENERATE "--captions c.npz --positive x --out x.png", "--captions: has prompts",
                    "--positive");
    command_refused(d, "$MAR generate --class 3 --positive x --out x.png", "--positive: expected --prompt", "");
}

/* Runs of a comparison share the negative prompt. */
COMMAND_CASE(compared)
{
    write_model(*state);
    cJSON *r = command_json(*state, "fidelity --model m --vq demo-discrete --size 32x24 --prompt a --negative blurry "
                                    "--num 20 --cfg 3 --cache_dtype int8 --against --json --out f.html");
    assert_string_equal(json_text(r, "runs.0.options"), "--cache_dtype int8");
    assert_string_equal(json_text(r, "reference.options"), "plain sampling, 12 autoregressive steps");
    cJSON_Delete(r);
}

/* Converts a model, and checks that it runs with the type of its weights, and says so. `arguments` make an image. */
static void check_stored_dtype(const char *directory, const char *model, const char *to, const char *dtype,
                               const char *arguments)
{
    command_ok(directory, "convert %s %s --dtype %s", model, to, dtype);
    cJSON *r = command_json(directory, "generate --num 1 --out x.png --json --model %s %s", to, arguments);
    if (!strstr(json_text(r, "backend"), dtype)) fail_msg("%s: on %s", dtype, json_text(r, "backend"));
    if (!strstr(json_text(r, "guarantee"), dtype)) fail_msg("%s: %s", dtype, json_text(r, "guarantee"));
    cJSON_Delete(r);
}

/* A converted file has no tokenizer: --t5 names the folder that it was made of. A converted folder has one. */
COMMAND_CASE(converted)
{
    write_model(*state);
    command_ok(*state, "convert m m.safetensors");
    command_ok(*state, GENERATE "--prompt 'a corgi' --cfg 3 --out a.png");
    command_ok(*state, "generate --model m.safetensors --t5 m --vq demo-discrete --size 32x24 --dtype f32 -q --prompt "
                       "'a corgi' --cfg 3 --out b.png");
    char *ours = text_of(*state, "a.png", "features"), *files = text_of(*state, "b.png", "features");
    assert_string_equal(ours, files);
    free(ours);
    free(files);
    check_stored_dtype(*state, "m", "i", "int8", "--vq demo-discrete --size 32x24 --prompt a");
    check_stored_dtype(*state, "demo-mgpt", "i.safetensors", "int4",
                       "--t5 demo-mgpt --vq demo-mgpt --size 64x32 --prompt 'one row of two digits: 1 2'");
    command_ok(*state, "convert m n");
    command_ok(*state, "generate --model n --vq demo-discrete --size 32x24 --dtype f32 -q --prompt 'a corgi' --cfg 3 "
                       "--out n.png");
    char *again = text_of(*state, "n.png", "features"), *first = text_of(*state, "a.png", "features");
    assert_string_equal(again, first);
    free(again);
    free(first);
    command_refused(*state, "$MAR generate --model m.safetensors --vq demo-discrete --prompt a --out c.png",
                    "--text is missing: m.safetensors has no tokenizer", "");
    command_refused(*state,
                    "$MAR generate --model m.safetensors --t5 demo-t5 --vq demo-discrete --prompt a --out c.png",
                    "--t5 demo-t5: is a T5, expected the folder of the model that m.safetensors is or was made of", "");
}

/* Features of a file make the same pictures, their second context included. */
COMMAND_CASE(captions)
{
    write_model(*state);
    write_whole_file(*state, "p.txt", "a corgi\na cat\n", 14);
    command_ok(*state, "captions p.txt --t5 m --size 32x24 --negative blurry --out c.npz -q");
    command_ok(*state, GENERATE "--prompts p.txt --negative blurry --cfg 3 --out a");
    command_ok(*state, GENERATE "--captions c.npz --cfg 3 --out b");
    command_refused(*state, "$MAR generate --model m --vq demo-discrete --size 24x24 --captions c.npz --out x.png",
                    "--captions c.npz: made for emu3 --size 32x24, expected emu3 --size 24x24", "");
    char *ours = text_of(*state, "a/000001.png", "features"), *files = text_of(*state, "b/000001.png", "features");
    assert_string_equal(ours, files);
    free(ours);
    free(files);
    cJSON *r = command_json(*state, "bench --repeat 1 --batch 2 --model m --size 32x24 --prompts p.txt --cfg 3 --json");
    cJSON_Delete(r);
    r = command_json(*state, GENERATE "--prompts p.txt --cfg 3 --store s --out d --json");
    cJSON_Delete(r);
    r = command_json(*state, GENERATE "--prompts p.txt --cfg 3 --negative blurry --store s --out e --json");
    assert_true(json_number(r, "images_stored") == 0);
    cJSON_Delete(r);
    r = command_json(*state, GENERATE "--prompts p.txt --cfg 3 --store s --out f --json");
    assert_true(json_number(r, "images_stored") == 2);
    cJSON_Delete(r);
}

/* Writes a file with the tensors of demo-discrete's image decoder, named as in a model's folder. */
static void write_vqmodel(const char *path)
{
    mar_err err = {0};
    wt_file *f;
    assert_ok(wt_open_demo(wt_demo_vae("demo-discrete"), &f, &err), &err);
    const int n = wt_count(f);
    wt_output *tensors = calloc((size_t)n, sizeof *tensors);
    char(*names)[128] = calloc((size_t)n, sizeof *names);
    for (int i = 0; i < n; i++) {
        const wt_tensor *t = wt_at(f, i);
        snprintf(names[i], sizeof names[i], "model.vqmodel.%s", t->name);
        tensors[i] = (wt_output){names[i], t->dtype, t->rank, {0}, f, t, WT_COPIED, NULL};
        memcpy(tensors[i].shape, t->shape, sizeof t->shape);
    }
    assert_ok(wt_save_safetensors(path, tensors, n, NULL, 0, &err), &err);
    free(tensors);
    free(names);
    wt_close(f);
}

/* An image decoder in the model's folder needs no --vq. */
COMMAND_CASE(own_decoder)
{
    static const char index[] = "{\"weight_map\":{\"model.norm.weight\":\"a.safetensors\","
                                "\"model.vqmodel.quantize.embedding.weight\":\"b.safetensors\"}}";
    write_model(*state);
    command_ok(*state, GENERATE "--prompt 'a corgi' --out a.png");
    sh_ok(*state, "mv m/model.safetensors m/a.safetensors");
    write_vqmodel(path_in(*state, "m/b.safetensors"));
    write_whole_file(*state, "m/model.safetensors.index.json", index, sizeof index - 1);
    command_ok(*state, "generate --num 1 --model m --size 32x24 --dtype f32 -q --prompt 'a corgi' --out b.png");
    char *other = text_of(*state, "a.png", "features"), *own = text_of(*state, "b.png", "features");
    assert_string_equal(other, own);
    free(other);
    free(own);
}

/* A missing decoder is reported before the weights are read: these are damaged. */
COMMAND_CASE(no_decoder)
{
    write_model(*state);
    sh_ok(*state, "printf '\\377\\377\\377\\377' | dd of=m/model.safetensors bs=1 conv=notrunc status=none "
                  "seek=$(($(stat -c %%s m/model.safetensors) - 4))");
    command_refused(*state, "$MAR " GENERATE "--prompt a --out a.png", "1 value that is NaN", "");
    command_refused(*state, "$MAR generate --model m --prompt a --size 32x24 --out a.png",
                    "mar: --vae is missing: m: is a decoder that writes images among text", "");
    command_refused(*state, "$MAR serve --model m --size 32x24", "--vae is missing: m: is a", "");
}

COMMAND_CASE(refused)
{
    write_model(*state);
    command_refused(*state, "$MAR " GENERATE "--out a.png", "--prompt is missing: m/ makes images of prompts", "");
    command_refused(*state, "$MAR generate --model m --prompt a --size 33x24 --out a.png", "multiples of 8", "33x24");
    command_refused(*state, "$MAR " GENERATE "--prompt a --seq_len 12 --out a.png",
                    "--seq_len has no effect: m/ has as many tokens as its image size asks for", NULL);
    command_refused(*state, "$MAR " GENERATE "--prompt a --clean llamagen --out a.png",
                    "--clean llamagen has no effect: m/ takes prompts as they are, expected off", NULL);
    command_refused(*state, "$MAR generate --model m --captions none.npz --seq_len 12 --out a.png",
                    "--seq_len has no effect: m has as many tokens as its image size asks for", NULL);
    command_refused(*state, "$MAR generate --model demo-t2i --t5 m --clean llamagen --prompt a --out a.png",
                    "--t5 m: is the folder of another model than demo-t2i", "");
    command_refused(*state, "$MAR generate --model demo-discrete --t5 m --prompt a --out a.png",
                    "--prompt: demo-discrete makes images of classes", "");
    command_refused(*state, "$MAR generate --model demo-t2i --t5 m --prompt a --out a.png",
                    "--t5 m: is the folder of another model than demo-t2i", "");
    command_refused(*state, "$MAR serve --model demo-t2i --t5 m", "--t5 m: is the folder of a model of family emu3",
                    "");
    command_refused(*state, "$MAR generate --model m --prompt a --size 9000x9000 --out a.png", "the model's context",
                    "");
    sh_ok(*state, "head -c 4000 /dev/zero | tr '\\0' a > long.txt");
    command_refused(
        *state, "$MAR " GENERATE "--prompts long.txt --out a.png",
        "long.txt, line 1: 4037 tokens with the template, libmar takes 512 at most; the model's context has "
        "room for 9202: skipped",
        NULL);
    command_refused(*state, "$MAR captions long.txt --t5 m --clean llamagen --out c.npz",
                    "--clean llamagen has no effect: m takes prompts as they are, expected off", NULL);
    command_refused(*state, "$MAR captions long.txt --t5 m --tokens 16 --size 32x24 --out c.npz",
                    "tokens with the template, expected 16 at most: skipped\n", "");
    command_result r = command_run(*state, "$MAR " GENERATE "--prompt '' --prompt \"$(cat long.txt)\" --out a.png");
    assert_int_equal(r.status, 1);
    assert_ptr_equal(strstr(r.err, "mar: --prompt \"\": the prompt is empty: skipped\nmar: --prompt \"aaaaaaaa"),
                     r.err);
    assert_null(strstr(r.err, "is left"));
    command_result_free(&r);
    sh_ok(*state, "sed -i s/Emu3ForCausalLM/LlamaForCausalLM/ m/config.json");
    command_refused(*state, "$MAR captions long.txt --t5 m --out c.npz", "is a LlamaForCausalLM, expected a T5",
                    "Emu3");
}
