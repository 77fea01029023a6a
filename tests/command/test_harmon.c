/* The commands on a small Harmon (tests/support/harmon.h): pictures of prompts, and edits of them. */
#include "tests/support/command.h"
#include "tests/support/golden_doubles.h"
#include "tests/support/harmon.h"
#include "tests/support/scores.h"
#include "tests/support/service.h"

#include "tools/images/image.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define SHORT    "--num_iter 4 --num_sampling_steps 4 --dtype f32 -q "
#define GENERATE "generate --model m " SHORT
#define EDIT     "edit --model m --image a.png " SHORT

/* Files of the networks that judge (tests/support/scores.h). */
#define INCEPTION "$OLDPWD/tests/golden/data/inception_tiny.pth "
#define SCORES    "--clip $OLDPWD/tests/golden/data/clip_tiny --hps hps.pt --imagereward reward.pt "

enum { SIDE = 16 };

static void write_model(const char *directory)
{
    const char *folder = path_in(directory, "m");
    assert_int_equal(mkdir(folder, 0777), 0);
    harmon_write(folder, HARMON_FOLDER);
}

static void read_picture(const char *directory, const char *name, image_file *out)
{
    assert_int_equal(image_read_png(path_in(directory, "%s", name), SIDE, SIDE, out), 0);
}

/* Returns the text of a PNG; "" if it has none. */
static const char *text_of(const image_file *f, const char *key)
{
    for (int i = 0; i < f->count; i++)
        if (strcmp(f->texts[i].key, key) == 0) return f->texts[i].value;
    return "";
}

static int same_pixels(const char *directory, const char *a, const char *b)
{
    image_file made[2];
    read_picture(directory, a, &made[0]);
    read_picture(directory, b, &made[1]);
    const int same = memcmp(made[0].picture.rgb, made[1].picture.rgb, (size_t)SIDE * SIDE * 3) == 0;
    image_file_free(&made[0]), image_file_free(&made[1]);
    return same;
}

/* An edit depends on the picture, its prompt and the negative one. A prompt's ids from a file make the same picture. */
COMMAND_CASE(edits)
{
    const char *d = *state;
    image_file made;
    write_model(d);
    command_ok(d, GENERATE "--prompt 'a corgi' --out a.png");
    command_ok(d, EDIT "--keep 0.5 --prompt 'a cat' --num 2 --out b");
    command_ok(d, EDIT "--keep 0.5 --prompt 'a dog' --out dog.png");
    command_ok(d, EDIT "--keep 0.5 --prompt 'a cat' --negative blurry --out n.png");
    command_ok(d, EDIT "--keep 0.5 --prompt 'a cat' --text m --out again.png");
    assert_true(same_pixels(d, "b/000000.png", "again.png"));
    assert_false(same_pixels(d, "b/000000.png", "b/000001.png"));
    assert_false(same_pixels(d, "b/000000.png", "dog.png"));
    assert_false(same_pixels(d, "b/000000.png", "n.png"));
    read_picture(d, "n.png", &made);
    assert_string_equal(text_of(&made, "prompt"), "a cat");
    assert_string_equal(text_of(&made, "negative"), "blurry");
    assert_string_equal(text_of(&made, "class"), "");
    assert_has(text_of(&made, "edited"), "a.png: ");
    image_file_free(&made);

    write_whole_file(d, "p.txt", "a dog\na cat\n", 12);
    command_ok(d, "captions p.txt --text m --out c.npz -q");
    command_ok(d, EDIT "--keep 0.5 --captions c.npz --class 1 --out c.png");
    assert_true(same_pixels(d, "b/000000.png", "c.png"));
    command_refused(d, "$MAR " EDIT "--keep 0.5 --captions c.npz --out no.png", "--captions c.npz: has 2 captions",
                    "--class");
}

/* --like takes the image decoder of the model's folder, wherever that is, and the negative prompt. */
COMMAND_CASE(like)
{
    const char *d = *state;
    write_model(d);
    sh_ok(d, "mkdir away");
    command_ok(d, GENERATE "--prompt 'a corgi' --negative blurry --num 2 --out a");
    sh_ok(d, "mv m away");
    command_ok(d, "generate -q --like a/000001.png --model away/m --out again.png");
    assert_same_file(d, "a/000001.png", "again.png");
}

/* Posts a request for images, and writes the first to a file. */
static void make_served(const service_process *s, const char *directory, const char *json, const char *file)
{
    reply r = service_post(s, "/v1/images/generations", json);
    if (r.code != 200) fail_msg("%d: %s", r.code, r.body);
    cJSON *answer = cJSON_Parse(r.body);
    reply picture = service_get(s, strstr(json_text(answer, "data.0.url"), "/v1/"));
    assert_int_equal(picture.code, 200);
    write_whole_file(directory, file, picture.body, picture.size);
    reply_free(&picture);
    reply_free(&r);
    cJSON_Delete(answer);
}

/* Makes images of a prompt over HTTP, the first as mar generate makes it: with the service's negative prompt, with
 * the request's own, and with an empty one, which is none. */
COMMAND_CASE(served)
{
    static const char *const wishes[][3] = {{"", "blurry", "0.png"},
                                            {", \"negative_prompt\": \"a cat\"", "a cat", "1.png"},
                                            {", \"negative_prompt\": \"\"", "blurry", "2.png"}};
    const char *d = *state;
    write_model(d);
    service_process s = service_start(d, "--model m --num_iter 4 --num_sampling_steps 4 --dtype f32 --negative blurry "
                                         "--positive snowy");
    for (size_t i = 0; i < LENGTH(wishes); i++) {
        char json[128];
        snprintf(json, sizeof json, "{\"prompt\": \"a corgi\", \"seed\": 3, \"n\": 2, \"response_format\": \"url\"%s}",
                 wishes[i][0]);
        make_served(&s, d, json, "served.png");
        command_ok(d, GENERATE "--prompt 'a corgi' --positive snowy --negative '%s' --seed 3 --out %s", wishes[i][1],
                   wishes[i][2]);
        assert_same_file(d, "served.png", wishes[i][2]);
    }
    assert_false(same_pixels(d, "0.png", "1.png"));
    reply r = service_get(&s, "/v1/models");
    assert_has(r.body, "\"negative_prompt\": true");
    reply_free(&r);
    char many[1204] = "\"";
    for (int i = 0; i < 600; i++) strcat(many, "a ");
    strcat(many, "\"");
    const char *const bad[][2] = {
        {"7", "negative_prompt: is no string, expected what the picture is guided away from"},
        {many, "negative_prompt: the negative prompt: "},
    };
    for (size_t i = 0; i < LENGTH(bad); i++) {
        char json[1300];
        snprintf(json, sizeof json, "{\"prompt\": \"a corgi\", \"negative_prompt\": %s}", bad[i][0]);
        r = service_post(&s, "/v1/images/generations", json);
        assert_int_equal(r.code, 400);
        assert_has(r.body, bad[i][1]);
        assert_has(r.body, "\"param\": \"negative_prompt\"");
        reply_free(&r);
    }
    char json[1300]; /* the encoder finds it wrong after the stream has begun */
    snprintf(json, sizeof json, "{\"prompt\": \"a corgi\", \"n\": 2, \"stream\": true, \"negative_prompt\": %s}", many);
    r = service_post(&s, "/v1/images/generations", json);
    assert_int_equal(r.code, 200);
    assert_has(r.body, "event: error\ndata: {\"error\": {\"message\": \"negative_prompt: the negative prompt: ");
    assert_null(strstr(r.body, "completed"));
    reply_free(&r);
    assert_int_equal(service_stop(&s), 0);
}

/* Every judge of images and prompts gives a run of the model the numbers of the same images made before. */
COMMAND_CASE(judged)
{
    static const char *const numbers[] = {"numbers.clip_cosine", "numbers.hps_cosine", "numbers.image_reward"};
    const char *d = *state;
    write_model(d);
    score_folder(d);
    write_whole_file(d, "p.txt", "a dog\na cat\n", 12);
    command_ok(d, GENERATE "--prompts p.txt --negative blurry --positive sharp --num 2 --out g");
    cJSON *made = command_json(d, "eval --model m --prompts p.txt --negative blurry --positive sharp --num_images 4 "
                                  "--stats g --inception " INCEPTION SCORES SHORT "--json");
    cJSON *of_images =
        command_json(d, "eval --images g --prompts p.txt --num 2 --stats g --inception " INCEPTION SCORES "-q --json");
    for (size_t i = 0; i < LENGTH(numbers); i++)
        assert_true(json_number(made, numbers[i]) == json_number(of_images, numbers[i]));
    assert_near(json_number(made, "numbers.fid"), 0, 1e-4);
    assert_has(json_text(made, "numbers.protocol"), "; 4 images of 16x16, prompts balanced (2 prompts, ");
    assert_has(json_text(made, "numbers.protocol"),
               ", negative prompt \"blurry\", positive prompt \"sharp\", temperature 1, ");
    assert_has(json_text(of_images, "numbers.protocol"), "; 4 images of 16x16 in g (");
    cJSON_Delete(made);
    cJSON_Delete(of_images);
    command_refused(d, "$MAR eval --model m --prompts p.txt --num 2 --features none " SCORES SHORT,
                    "--num: has no effect without --images", "--num_images");
}

/* Outpainting keeps the picture's tokens, which are the middle of a larger image. */
COMMAND_CASE(outpainting)
{
    const char *d = *state;
    write_model(d);
    command_ok(d, GENERATE "--prompt 'a corgi' --out a.png");
    command_result r = command_mar(d, "edit --model m --image a.png --size 16x24 --prompt 'a cat' --num_iter 2 "
                                      "--num_sampling_steps 2 --out out.png");
    assert_int_equal(r.status, 0);
    assert_has(r.out, "wrote out.png: 1 image of 16x24 in ");
    assert_has(r.out, " s, 16 of 24 tokens kept\nexact to: plain sampling of the unknown tokens, ");
    command_result_free(&r);
}

COMMAND_CASE(refused)
{
    static const refusal cases[] = {
        {EDIT "--keep 0.5", "--prompt is missing: m makes images of prompts"},
        {EDIT "--keep 0.5 --class 3", "--prompt is missing: m makes images of prompts"},
        {EDIT "--keep 0.5 --class 3 --prompt a", "--class: has no effect beside --prompt"},
        {EDIT "--keep 0.5 --prompt a --prompt b", "--prompt: 2 prompts, expected one"},
        {EDIT "--keep 0.5 --prompts p.txt", "--prompts: 2 prompts, expected one"},
        {EDIT "--keep 0.5 --prompt ''", "--prompt \"\": the prompt is empty"},
        {EDIT "--keep 0.5 --negative a", "--negative: expected --prompt"},
        {EDIT "--keep 0.5 --prompt a --text demo-t5", "--text demo-t5: is a T5", "m is or was made of"},
        {EDIT "--keep 0.5 --prompt a --t5 demo-t5", "--t5 demo-t5: is a T5", "m is or was made of"},
        {GENERATE "--prompt a --text demo-mgpt", "--text demo-mgpt: is the folder of another model than m"},
        {GENERATE "--prompt a --text ''", "--text (empty): expected DIR"},
        {GENERATE "--prompt a --vq ''", "--vq (empty): expected FILE"},
        {GENERATE "--prompt a --text", "--text: expected DIR"},
        {EDIT "--prompt a", "--mask", "--keep"},
        {EDIT "--keep 0.5 --prompt a --size 16x18", "16x18"},
        {"edit --model demo --image a.png --keep 0.5 --prompt a", "--prompt: demo makes images of classes"},
        {"edit --model demo --image a.png --keep 0.5 --class 3 --negative a", "--negative: expected --prompt"},
    };
    const char *d = *state;
    write_model(d);
    write_whole_file(d, "p.txt", "a dog\na cat\n", 12);
    command_ok(d, GENERATE "--prompt 'a corgi' --out a.png");
    command_refuses(d, cases, LENGTH(cases));
}
