/* The commands on a small NextStep-1 (tests/support/nextstep.h): its folder has the image decoder and the tokenizer. */
#include "tests/support/nextstep.h"

#include "tests/support/command.h"
#include "tests/support/golden_doubles.h"
#include "tests/support/service.h"
#include "tests/support/tensor_files.h"

#include "tools/images/image.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define RUN       "--size 64x64 --num_sampling_steps 8 --threads 1 --dtype f32 "
#define SHORT     RUN "-q "
#define GENERATE  "generate --model m " SHORT
#define INCEPTION "$OLDPWD/tests/golden/data/inception_tiny.pth "

static void write_nextstep(const char *directory, const char *name, nextstep_kind kind)
{
    const char *folder = path_in(directory, "%s", name);
    assert_int_equal(mkdir(folder, 0777), 0);
    nextstep_write(folder, kind);
}

/* Setup: a fresh directory with the folder m. */
static int nextstep_command_setup(void **state)
{
    const int failed = command_setup(state);
    if (!failed) write_nextstep(*state, "m", NEXTSTEP_FOLDER);
    return failed;
}

#define NEXTSTEP_CASE(name) TEST_WITH(name, nextstep_command_setup, command_teardown)

/* --- pictures ----------------------------------------------------------------------------------------------------- */

static int same_pixels(const char *directory, const char *a, const char *b)
{
    enum { SIDE = 64 };
    image_file made[2];
    assert_int_equal(image_read_png(path_in(directory, "%s", a), SIDE, SIDE, &made[0]), 0);
    assert_int_equal(image_read_png(path_in(directory, "%s", b), SIDE, SIDE, &made[1]), 0);
    const int same = memcmp(made[0].picture.rgb, made[1].picture.rgb, (size_t)SIDE * SIDE * 3) == 0;
    image_file_free(&made[0]), image_file_free(&made[1]);
    return same;
}

/* Every option makes another picture, and --like the same again. */
NEXTSTEP_CASE(generated)
{
    static const char *const options[] = {
        "--negative blurry", "--positive sharp",       "--time_shift 2",        "--token_norm off",
        "--cfg 3",           "--num_sampling_steps 9", "--cfg_schedule linear", "--head_spec 4",
        "--temperature 0.9", "--cache_dtype int8",     "--cache_dtype bf16",    "--spec path --draft n --gamma 4"};
    const char *d = *state;
    write_nextstep(d, "n", NEXTSTEP_DRAFT);
    command_ok(d, GENERATE "--prompt 'a dog' --out plain.png");
    for (size_t i = 0; i < LENGTH(options); i++) {
        command_ok(d, GENERATE "--prompt 'a dog' %s --out a.png", options[i]);
        command_ok(d, "generate -q --like a.png --threads 1 --out again.png");
        assert_same_file(d, "a.png", "again.png");
        if (same_pixels(d, "a.png", "plain.png")) fail_msg("%s changes no pixel", options[i]);
        sh_ok(d, "rm a.png again.png");
    }
    write_whole_file(d, "p.txt", "a cat\na dog\n", 12);
    command_ok(d, GENERATE "--prompts p.txt --num 2 --out g");
    command_ok(d, GENERATE "--prompt 'a cat' --num 2 --out one");
    assert_true(same_pixels(d, "g/000000.png", "one/000000.png"));
    assert_true(same_pixels(d, "g/000001.png", "one/000001.png"));
    command_ok(
        d, "generate --model m --prompt 'a dog' --threads 1 -q --size 16x32 --out own.png"); /* the release's steps */
}

/* A picture's tokens are kept where it covers them, and where the mask is black. Those in front of all others give the
 * model's distribution given them; others are not seen by what is before them, which the guarantee says. */
NEXTSTEP_CASE(edited)
{
    static const struct {
        const char *options;
        int kept;
        const char *given;
    } cases[] = {{"--image small.png --offset 0,0", 8, ""},
                 {"--image small.png --offset 0,32", 8, ", each given those before it"},
                 {"--image plain.png --mask lower.png", 8, ""},
                 {"--image plain.png --keep 0.25", 4, ", each given those before it"}};
    const char *d = *state;
    image mask = {64, 64, calloc(64 * 64, 3)};
    assert_non_null(mask.rgb);
    memset(mask.rgb + 3 * 64 * 32, 255, 3 * 64 * 32);
    assert_int_equal(image_write(path_in(d, "lower.png"), &mask, IMAGE_PNG, 0, NULL, 0, IMAGE_UNSYNCED), 0);
    free(mask.rgb);
    command_ok(d, GENERATE "--prompt 'a dog' --out plain.png");
    command_ok(
        d, "generate --model m --size 64x32 --num_sampling_steps 8 --threads 1 -q --prompt 'a dog' --out small.png");
    for (size_t i = 0; i < LENGTH(cases); i++) {
        char line[160];
        command_result r =
            command_mar(d, "edit --model m " RUN "%s --prompt 'a cat' --negative blurry --head_spec 4 --out a.png",
                        cases[i].options);
        if (r.status != 0) fail_msg("%s: %s", cases[i].options, r.err);
        snprintf(line, sizeof line,
                 " s, %d of 16 tokens kept\nexact to: plain sampling of the unknown tokens%s, 16 steps of 8, by",
                 cases[i].kept, cases[i].given);
        assert_has(r.out, line);
        command_result_free(&r);
        command_ok(
            d, "edit --model m " SHORT "%s --prompt 'a cat' --negative blurry --head_spec 4 --num 3 --batch 2 --out e",
            cases[i].options);
        assert_same_file(d, "a.png", "e/000000.png");
        assert_true(!same_pixels(d, "e/000000.png", "e/000001.png"));
        sh_ok(d, "rm -r e");
    }
    sh_ok(d, "grep -qa 'of the unknown tokens, each given those before it, 16 steps' a.png");
    command_refused(d,
                    "$MAR edit --model m " SHORT
                    "--image plain.png --mask lower.png --prompt a --spec path --draft m --out b.png",
                    "--spec path: expected a request without known tokens", NULL);
}

NEXTSTEP_CASE(recorded)
{
    const char *d = *state;
    cJSON *json = command_json(d, GENERATE "--prompt 'a dog' --negative blurry --positive sharp --time_shift 2 "
                                           "--token_norm off --cfg_schedule linear --head_spec 4 --json --out a.png");
    assert_string_equal(json_text(json, "vae"), "m");
    assert_string_equal(json_text(json, "negative"), "blurry");
    assert_string_equal(json_text(json, "positive"), "sharp");
    assert_string_equal(json_text(json, "parameters.token_norm"), "off");
    assert_string_equal(json_text(json, "guarantee"),
                        "exact to: plain sampling, 16 steps of 8, by speculation inside the head; not the model's "
                        "defaults: num_sampling_steps 8 (50), time_shift 2 (1), cfg_schedule linear (constant), "
                        "token_norm off (on)");
    cJSON_Delete(json);
    sh_ok(d,
          "for key in prompt negative positive time_shift token_norm size; do grep -qa \"tEXt$key\" a.png || exit 1; "
          "done");
}

/* --- its folder --------------------------------------------------------------------------------------------------- */

NEXTSTEP_CASE(inspected)
{
    const char *d = *state;
    command_result r = command_mar(d, "inspect m");
    assert_int_equal(r.status, 0);
    assert_has(r.out, "\nkind: NextStep model\n");
    assert_has(r.out, "\nflow head: width 48, 3 blocks\n");
    assert_has(r.out, "\nimage decoder: in the same folder, 4 latent channels, stride 8\n");
    assert_has(r.out, "\ndefaults: num_iter 1024, num_sampling_steps 50, time_shift 1, cfg 7.5, cfg_schedule constant, "
                      "token_norm on\n");
    assert_has(r.out, "\nproblems: 0\n");
    command_result_free(&r);
    cJSON *json = command_json(d, "inspect m --json");
    assert_string_equal(json_text(json, "config.family"), "nextstep");
    assert_string_equal(json_text(json, "config.defaults.token_norm"), "on");
    assert_int_equal(json_count(json, "problems"), 0);
    cJSON_Delete(json);
}

/* A conversion makes a folder that needs no other: it has the image decoder and the tokenizer. */
NEXTSTEP_CASE(converted)
{
    static const char *const types[] = {"bf16", "int8", "int4"};
    const char *d = *state;
    command_ok(d, GENERATE "--prompt 'a dog' --out m.png");
    command_ok(d, "convert m f32 --dtype f32");
    for (size_t i = 0; i < LENGTH(types); i++) command_ok(d, "convert m %s --dtype %s", types[i], types[i]);
    sh_ok(d, "cp -r m/vae int8 && rm -r m && test ! -e f32/vae"); /* a second decoder beside the first has no effect */
    command_ok(d, "generate --model f32 " SHORT "--prompt 'a dog' --out f32.png");
    assert_true(same_pixels(d, "m.png", "f32.png"));
    write_nextstep(d, "positions", NEXTSTEP_POSITIONS); /* with the table of positions, which others have unused */
    command_ok(d, "generate --model positions " SHORT "--prompt 'a dog' --out positions.png");
    command_ok(d, "convert positions placed --dtype f32");
    sh_ok(d, "rm -r positions");
    command_ok(d, "generate --model placed " SHORT "--prompt 'a dog' --out placed.png");
    assert_true(same_pixels(d, "positions.png", "placed.png") && !same_pixels(d, "m.png", "placed.png"));
    for (size_t i = 0; i < LENGTH(types); i++) {
        command_ok(d, "generate --model %s " SHORT "--prompt 'a dog' --dtype %s --out %s.png", types[i], types[i],
                   types[i]);
        sh_ok(d, "$MAR inspect %s | grep -q '^image decoder: in the same folder, 4 latent channels, stride 8$'",
              types[i]);
    }
}

/* --- measurements ------------------------------------------------------------------------------------------------- */

NEXTSTEP_CASE(measured)
{
    const char *d = *state;
    command_result r = command_mar(d, "bench --model m --prompt 'a dog' --head_spec 4 " RUN);
    assert_int_equal(r.status, 0);
    assert_has(r.out, "\ntransformer ");
    assert_has(r.out, "\nVAE ");
    assert_has(r.out, ", by speculation inside the head");
    command_result_free(&r);
    cJSON *json = command_json(d, "fidelity --model m --prompt 'a dog' --num 20 " SHORT
                                  "--head_spec 4 --out f.html --json --against --num_sampling_steps 8");
    assert_has(json_text(json, "runs.0.guarantee"), "by speculation inside the head");
    cJSON_Delete(json);
    write_whole_file(d, "p.txt", "a dog\na cat\n", 12);
    command_ok(d, GENERATE "--prompts p.txt --negative blurry --positive sharp --num 2 --out g");
    json = command_json(d, "eval --model m --prompts p.txt --negative blurry --positive sharp --num_images 4 --stats g "
                           "--inception " INCEPTION SHORT "--json");
    assert_near(json_number(json, "numbers.fid"), 0, 1e-4);
    assert_has(json_text(json, "numbers.protocol"), "token_norm on, cfg 7.5 (constant), negative prompt \"blurry\", "
                                                    "positive prompt \"sharp\", ");
    cJSON_Delete(json);
}

NEXTSTEP_CASE(served)
{
    const char *d = *state;
    service_process s = service_start(d, "--model m --size 64x64 --num_sampling_steps 8 --threads 1 --dtype f32 "
                                         "--negative blurry --positive snowy");
    reply r = service_post(&s, "/v1/images/generations",
                           "{\"prompt\": \"a dog\", \"seed\": 3, \"n\": 2, \"response_format\": \"url\"}");
    assert_int_equal(r.code, 200);
    cJSON *answer = cJSON_Parse(r.body);
    reply picture = service_get(&s, strstr(json_text(answer, "data.0.url"), "/v1/"));
    write_whole_file(d, "served.png", picture.body, picture.size);
    command_ok(d, GENERATE "--prompt 'a dog' --negative blurry --positive snowy --seed 3 --out made.png");
    assert_same_file(d, "served.png", "made.png");
    reply_free(&picture);
    reply_free(&r);
    cJSON_Delete(answer);
    assert_int_equal(service_stop(&s), 0);
}

/* --- refusals ----------------------------------------------------------------------------------------------------- */

#define MANY "\"$(yes a | head -600 | tr '\\n' ' ')\" "

NEXTSTEP_CASE(refused)
{
    static const refusal cases[] = {
        {GENERATE, "--prompt is missing: m makes images of prompts"},
        {GENERATE "--prompt a --heads 4", "--heads 4: has no effect on m, whose config.json says how many there are"},
        {GENERATE "--prompt a --sampler ddim --temperature 0.9", "--temperature 0.9: expected 1", "--sampler"},
        {GENERATE "--prompt a --lazy", "--lazy changes the transformer passes", "--head_spec"},
        {GENERATE "--prompt a --num_iter 8", "--num_iter 8: expected 0 or 16"},
        {GENERATE "--prompt a --patch_size 2", "--patch_size has no effect"},
        {GENERATE "--prompt a --spec path", "--spec path: needs --draft with a NextStep-1 model"},
        {GENERATE "--prompt a --spec path --draft demo-harmon", "the draft is a model of family ", "family nextstep"},
        {GENERATE "--prompt a --spec path --draft demo-sphere", "the draft makes 64 tokens of 16 channels",
         "the model's 16 of 16"},
        {GENERATE "--prompt a --size 60x64", "an image of 60x64", "multiples of 16"},
        {GENERATE "--prompt a --size 2048x2048",
         "m: an image of 2048x2048 has 16384 tokens: the model's context of 4096"},
        {GENERATE "--prompt ''", "--prompt \"\": the prompt is empty"},
        {GENERATE "--prompt " MANY, "tokens with the template, libmar takes 512 at most"},
        {GENERATE "--prompt a --positive " MANY, "tokens with the template, libmar takes 512 at most"},
        {GENERATE "--prompt a --negative " MANY, "tokens with the template, libmar takes 512 at most"},
        {GENERATE "--prompt a --clean llamagen", "--clean llamagen has no effect", "expected off"},
        {GENERATE "--prompt a --text demo-mgpt", "--text demo-mgpt: is the folder of", "m"},
        {GENERATE "--prompt a --vae demo", "demo: the VAE decodes 8 channels but the model's tokens have 16"},
        {GENERATE "--prompt a --vae kl.ckpt",
         "kl.ckpt: the VAE makes 4 pixels of a token's side, expected 16 as the model's"},
    };
    const char *d = *state;
    bytes kl = bytes_from_file("tests/weights/data/vae.ckpt");
    bytes_to_folder(d, "kl.ckpt", &kl);
    command_refuses(d, cases, LENGTH(cases));
}

#define OF(folder) "generate --prompt a --model " folder " " SHORT

NEXTSTEP_CASE(damaged_folders_are_refused)
{
    static const refusal cases[] = {
        {OF("text"), "text: no tokenizer, expected ", "tokenizer.json"},
        {OF("patch"), "patch: latent_patch_size 3: tokens of 16 numbers are no patches of 3x3 latent pixels"},
        {OF("zero"), "zero: its configuration has no whole number from 1 on for latent_patch_size"},
        {OF("guided"), "guided: its configuration has a cfg of 0.5, expected 1 to 100"},
        {OF("one"), "one: the VAE decodes 4 channels but the model's tokens have 16"},
        {OF("table"), "table: tensor gen_pos_embed is missing", "expected [1, tokens, 64]"},
        {OF("positions") "--size 512x528", "positions: an image of 1056 tokens: the model's table has 1024 positions"},
        {OF("cut"), "cut/vae/checkpoint.pt: ", "truncated?"},
        {OF("bare"), "--vae is missing: bare", "NextStep-1's the folder vae"},
        {OF("m/model.safetensors"), "m/model.safetensors: has no config.json"},
        {"convert cut x", "cut/vae/checkpoint.pt: ", "truncated?"},
    };
    const char *d = *state;
    write_nextstep(d, "table", NEXTSTEP_NEWER);
    write_nextstep(d, "positions", NEXTSTEP_POSITIONS);
    sh_ok(d,
          "for i in text patch zero guided one cut bare; do cp -r m $i; done; rm text/tokenizer.json; rm -r bare/vae; "
          "truncate -s 1000000 cut/vae/checkpoint.pt; "
          "sed -i 's/latent_patch_size\": 2/latent_patch_size\": 3/' patch/config.json; "
          "sed -i 's/latent_patch_size\": 2/latent_patch_size\": 0/' zero/config.json; "
          "sed -i 's/latent_patch_size\": 2/latent_patch_size\": 1/' one/config.json; "
          "sed -i 's/latent_patch_size\": 2/latent_patch_size\": 2, \"cfg\": 0.5/' guided/config.json; "
          "sed -i 's/gen_pos_embed\": false/gen_pos_embed\": true/' table/config.json");
    command_refuses(d, cases, LENGTH(cases));
}
