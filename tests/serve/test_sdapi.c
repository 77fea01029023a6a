/* AUTOMATIC1111's API of `mar serve`: images of a prompt, parts of a picture made anew, and what its clients ask for
 * besides. */
#include "tests/support/service.h"

#include "tests/support/test.h"
#include "tools/cli/base64.h"
#include "tools/images/source.h"

#include <png.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define STEPS "--num_iter 16 --num_sampling_steps 10"

static char *directory;
static service_process s;

static int set_up(void **state)
{
    if (command_setup(state) != 0) return 1;
    directory = *state;
    s = service_start(directory, STEPS " --batch 4 --timeout 300 --alias own/digits --accept_any_size");
    return 0;
}

static int tear_down(void **state)
{
    assert_int_equal(service_stop(&s), 0);
    return command_teardown(state);
}

TEST_GROUP(set_up, tear_down)

static cJSON *ask(const char *method, const char *path, const char *json, int code)
{
    reply r = service_request(&s, method, path, json ? "Content-Type: application/json\r\n" : "", json,
                              json ? strlen(json) : 0);
    if (r.code != code) fail_msg("%s %s: %d, %s", method, path, r.code, r.body);
    cJSON *answer = cJSON_Parse(r.body);
    assert_non_null(answer);
    reply_free(&r);
    return answer;
}

/* Requests as Open WebUI and webuiapi write them: the pictures are those of OpenAI's API, and `info` is an object as a
 * text that says what had no effect. */
TEST_CASE(txt2img)
{
    static const struct {
        const char *json, *warning; /* NULL: none */
        int n;
    } cases[] = {
        {"{\"prompt\": \"7\", \"batch_size\": 2, \"width\": 32, \"height\": 32, \"seed\": 5, \"cfg_scale\": 2}", NULL,
         2},
        {"{\"prompt\": \"7\", \"seed\": 5, \"cfg_scale\": 2.0, \"n_iter\": 2, \"batch_size\": 1, \"steps\": 16, "
         "\"negative_prompt\": \"\", \"enable_hr\": false, \"hr_scale\": 2, \"styles\": [], \"subseed\": -1, "
         "\"s_churn\": 0, "
         "\"denoising_strength\": 0.7, \"alwayson_scripts\": {}, \"script_name\": null, \"save_images\": false, "
         "\"override_settings\": {\"sd_model_checkpoint\": \"own/digits\"}}",
         NULL, 2},
        {"{\"prompt\": \"7\", \"seed\": 5, \"cfg_scale\": 2, \"width\": 512, \"height\": 768}",
         "size: has no effect, images are 32x32", 1},
        {"{\"prompt\": \"7\", \"seed\": 5, \"cfg_scale\": 2, \"enable_hr\": true}", "enable_hr: has no effect", 1},
        {"{\"prompt\": \"7\", \"seed\": 5, \"cfg_scale\": 2, \"sampler_name\": \"Euler a\"}",
         "sampler_name: has no effect", 1},
        {"{\"prompt\": \"7\", \"seed\": 5, \"cfg_scale\": 2, \"negative_prompt\": \"lowres\", \"steps\": 0}",
         "negative_prompt: has no effect, the model has none", 1},
        {"{\"prompt\": \"7\", \"seed\": 5, \"cfg_scale\": 2, \"override_settings\": {\"sd_vae\": \"a\"}}",
         "override_settings.sd_vae: has no effect", 1},
    };
    cJSON *plain = ask("POST", "/v1/images/generations", "{\"prompt\": \"7\", \"seed\": 5, \"cfg\": 2, \"n\": 2}", 200);
    for (size_t i = 0; i < LENGTH(cases); i++) {
        cJSON *answer = ask("POST", "/sdapi/v1/txt2img", cases[i].json, 200);
        assert_int_equal(json_count(answer, "images"), cases[i].n);
        for (int k = 0; k < cases[i].n; k++) {
            char of[32], expected[32];
            snprintf(of, sizeof of, "images.%d", k);
            snprintf(expected, sizeof expected, "data.%d.b64_json", k);
            assert_string_equal(json_text(answer, of), json_text(plain, expected));
        }
        cJSON *info = cJSON_Parse(json_text(answer, "info"));
        assert_non_null(info);
        assert_int_equal(json_number(info, "seed"), 5);
        assert_int_equal(json_count(info, "all_seeds"), cases[i].n);
        assert_int_equal(json_count(info, "warnings"), cases[i].warning != NULL);
        if (cases[i].warning) assert_string_equal(json_text(info, "warnings.0"), cases[i].warning);
        cJSON_Delete(info);
        cJSON_Delete(answer);
    }
    cJSON_Delete(plain);
    static const char *const bad[][2] = {
        {"{\"prompt\": \"7\", \"batch_size\": 0}", "batch_size: expected a whole number of 1 or more"},
        {"{\"prompt\": \"7\", \"batch_size\": 4, \"n_iter\": 3}",
         "n_iter: is out of range, expected an integer from 1 to 10"},
        {"{\"prompt\": \"7\", \"width\": 512}", "height: is missing, expected it with width"},
        {"{\"prompt\": \"7\", \"cfg_scale\": \"2\"}", "cfg_scale: is no number"},
        {"{\"prompt\": \"77\"}", "class 77: out of range"},
        {"[]", "the body is no JSON object"},
    };
    for (size_t i = 0; i < LENGTH(bad); i++) {
        cJSON *answer = ask("POST", "/sdapi/v1/txt2img", bad[i][0], 400);
        assert_has(json_text(answer, "error.message"), bad[i][1]);
        cJSON_Delete(answer);
    }
}

/* --- parts made anew ---------------------------------------------------------------------------------------------- */

enum { SIDE = 32 };

/* Returns the base64 of a PNG whose lower half has one colour and the upper half another. */
static char *halves(const char *upper, const char *lower)
{
    uint8_t rgba[SIDE][SIDE][4];
    size_t size;
    for (int y = 0; y < SIDE; y++)
        for (int x = 0; x < SIDE; x++) memcpy(rgba[y][x], y < SIDE / 2 ? upper : lower, 4);
    png_image file = {.version = PNG_IMAGE_VERSION, .width = SIDE, .height = SIDE, .format = PNG_FORMAT_RGBA};
    assert_true(png_image_write_to_file(&file, path_in(directory, "halves.png"), 0, rgba, 0, NULL));
    char *png = read_whole_file(directory, "halves.png", &size), *text = malloc(base64_size(size) + 1);
    base64_write(png, size, text);
    free(png);
    return text;
}

/* Returns the base64 of the demo's picture three.png, of which edited.png is made anew in the lower half. */
static char *make_three(void)
{
    size_t size;
    command_ok(directory, "generate --quiet --class 3 --num 1 --seed 1 --out three.png");
    free(halves("\0\0\0\377", "\377\377\377\377"));
    command_ok(directory,
               "edit --quiet " STEPS " --image three.png --mask halves.png --class 3 --seed 9 --out edited.png");
    char *png = read_whole_file(directory, "three.png", &size), *text = malloc(base64_size(size) + 1);
    base64_write(png, size, text);
    free(png);
    return text;
}

/* Posts JSON of img2img. `fields` follow the picture and the mask, each with what is before its base64. */
static cJSON *vary(const char *picture, const char *mask, const char *fields, int code)
{
    char *json;
    const char *const data = "data:image/png;base64,";
    assert_true(asprintf(&json, "{\"prompt\": \"3\", \"seed\": 9, \"init_images\": [\"%s%s\"], \"mask\": \"%s\"%s}",
                         fields[0] ? data : "", picture, mask, fields) > 0);
    cJSON *answer = ask("POST", "/sdapi/v1/img2img", json, code);
    free(json);
    return answer;
}

/* What is white in a mask, or opaque if something is transparent, is made anew, as mar edit does it; inverted, the
 * rest. */
TEST_CASE(img2img)
{
    static const char black[] = "\0\0\0\377", white[] = "\377\377\377\377", clear[] = "\377\377\377\0";
    static const char usual[] =
        ", \"denoising_strength\": 1.0, \"resize_mode\": 0, \"mask_blur\": 0, "
        "\"inpainting_fill\": 0, \"inpaint_full_res\": false, \"inpaint_full_res_padding\": 32, "
        "\"initial_noise_multiplier\": 1, \"image_cfg_scale\": 1.5, \"width\": 32, \"height\": 32";
    static const char all[] =
        ", \"denoising_strength\": 0.75, \"mask_blur\": 4, \"inpainting_fill\": 1, "
        "\"inpaint_full_res\": true, \"include_init_images\": true, \"inpainting_mask_invert\": 0";
    static const struct {
        const char *upper, *lower, *fields;
        int warnings;
    } cases[] = {{black, white, "", 0},
                 {black, white, usual, 0},
                 {black, white, all, 5},
                 {clear, black, ", \"inpainting_mask_invert\": false", 0},
                 {white, black, ", \"inpainting_mask_invert\": 1", 0},
                 {black, clear, ", \"inpainting_mask_invert\": true", 0}};
    char *picture = make_three(), why[IMAGE_WHY_MAX];
    image_file edited;
    assert_int_equal(image_read_png(path_in(directory, "edited.png"), SIDE, SIDE, &edited), 0);
    for (size_t i = 0; i < LENGTH(cases); i++) {
        image made;
        char *mask = halves(cases[i].upper, cases[i].lower);
        cJSON *answer = vary(picture, mask, cases[i].fields, 200);
        char *text = strdup(json_text(answer, "images.0"));
        const int size = base64_read(text, text, (int)strlen(text));
        assert_int_equal(json_count(answer, "images"), 1);
        assert_int_equal(image_decode(text, (size_t)size, &made, why), 0);
        if (memcmp(made.rgb, edited.picture.rgb, SIDE * SIDE * 3) != 0) fail_msg("%zu: another picture", i);
        cJSON *info = cJSON_Parse(json_text(answer, "info"));
        if (json_count(info, "warnings") != cases[i].warnings) fail_msg("%s", json_text(answer, "info"));
        cJSON_Delete(info);
        free(made.rgb), free(text), free(mask);
        cJSON_Delete(answer);
    }
    image_file_free(&edited);
    free(picture);
}

TEST_CASE(img2img_refuses)
{
#define ASK "{\"prompt\": \"3\", \"init_images\": "
    static const char *const bad[][2] = {
        {"{\"prompt\": \"3\"}", "init_images: expected an array of one picture"},
        {ASK "[]}", "init_images: expected an array of one picture"},
        {ASK "[\"YQ==\", \"YQ==\"], \"mask\": \"YQ==\"}", "init_images: expected an array of one picture"},
        {ASK "[\"YQ==\"]}",
         "mask: is missing, expected a picture that is white where the other is to be made anew; these "
         "models cannot vary a whole picture, txt2img makes a new one"},
        {ASK "[\"YQ==\"], \"mask\": null}", "mask: is missing"},
        {ASK "[\"http://a.b/c.png\"], \"mask\": \"YQ==\"}", "init_images: is no picture, expected its file in base64"},
        {ASK "[7], \"mask\": \"YQ==\"}", "init_images: is no picture"},
        {ASK "[\"YQ==\"], \"mask\": \"\"}", "mask: is no picture"},
        {ASK "[\"YQ==\\u0000\"], \"mask\": \"YQ==\"}", "init_images: is no picture"},
        {ASK "[\"YQ==\"], \"mask\": \"YQ==\"}", "init_images: 1 bytes that begin with \"a\", expected a PNG"},
        {ASK "[\"YQ==\"], \"mask\": \"YQ==\", \"inpainting_mask_invert\": 2}",
         "inpainting_mask_invert: expected 0 or 1"},
    };
    for (size_t i = 0; i < LENGTH(bad); i++) {
        cJSON *answer = ask("POST", "/sdapi/v1/img2img", bad[i][0], 400);
        assert_has(json_text(answer, "error.message"), bad[i][1]);
        cJSON_Delete(answer);
    }
    static const char black[] = "\0\0\0\377", white[] = "\377\377\377\377";
    char *all_white = halves(white, white), *all_black = halves(black, black);
    const struct {
        const char *mask, *fields, *message;
    } masks[] = {{all_black, "", "mask: no pixel is white, expected white where"},
                 {all_white, ", \"inpainting_mask_invert\": 1", "mask: no pixel is black, expected black where"},
                 {"iVBORw0KGgo=", "", "mask: "}};
    for (size_t i = 0; i < LENGTH(masks); i++) {
        cJSON *answer = vary(all_white, masks[i].mask, masks[i].fields, 400);
        assert_has(json_text(answer, "error.message"), masks[i].message);
        cJSON_Delete(answer);
    }
    free(all_white), free(all_black);
}

/* A body with pictures may have what a form may, one of txt2img 1 MB. */
TEST_CASE(limits_of_bodies)
{
    enum { LARGE = 3 << 20, TOO_LARGE = 17 << 20 };
    char *json = malloc(TOO_LARGE);
    assert_non_null(json);
    memset(json, ' ', TOO_LARGE);
    memcpy(json, "{\"prompt\": \"3\"", 14);
    json[LARGE - 1] = json[TOO_LARGE - 1] = '}';
    static const struct {
        const char *path;
        size_t size;
        int code;
    } cases[] = {{"/sdapi/v1/txt2img", LARGE, 413},
                 {"/sdapi/v1/img2img", LARGE, 400}, /* read, and refused for its fields */
                 {"/sdapi/v1/img2img", TOO_LARGE, 413}};
    for (size_t i = 0; i < LENGTH(cases); i++) {
        reply r = service_request(&s, "POST", cases[i].path, "Content-Type: application/json\r\n", json, cases[i].size);
        if (r.code != cases[i].code) fail_msg("%s, %zu bytes: %d, %s", cases[i].path, cases[i].size, r.code, r.body);
        reply_free(&r);
    }
    free(json);
}

/* --- what clients ask besides ------------------------------------------------------------------------------------- */

TEST_CASE(what_clients_of_txt2img_ask)
{
    cJSON *answer = ask("GET", "/sdapi/v1/options", NULL, 200);
    assert_string_equal(json_text(answer, "sd_model_checkpoint"), "own/digits");
    cJSON_Delete(answer);
    answer = ask("GET", "/sdapi/v1/sd-models", NULL, 200);
    assert_string_equal(json_text(answer, "0.title"), "own/digits");
    assert_string_equal(json_text(answer, "0.model_name"), "own/digits");
    cJSON_Delete(answer);
    answer = ask("GET", "/sdapi/v1/samplers", NULL, 200);
    assert_int_equal(cJSON_GetArraySize(answer), 1);
    cJSON_Delete(answer);
    answer = ask("GET", "/sdapi/v1/scripts", NULL, 200); /* webuiapi at its start */
    assert_true(cJSON_IsArray(cJSON_GetObjectItem(answer, "txt2img")));
    cJSON_Delete(answer);
    answer = ask("GET", "/sdapi/v1/loras?model=own%2Fdigits", NULL, 200); /* llama-swap's page */
    assert_true(cJSON_IsArray(answer) && cJSON_GetArraySize(answer) == 0);
    cJSON_Delete(answer);
    cJSON_Delete(ask("POST", "/sdapi/v1/options",
                     "{\"sd_model_checkpoint\": \"own/digits\", \"samples_format\": \"png\"}", 200));
    service_process slow =
        service_start(test_directory(), "--num_iter 64 --num_sampling_steps 1000 --threads 1 --dtype f32");
    const service_process before = s;
    s = slow;
    cJSON_Delete(ask("POST", "/sdapi/v1/options", "{\"sd_model_checkpoint\": \"other\"}", 404));
    answer = ask("GET", "/sdapi/v1/progress?skip_current_image=true", NULL, 200);
    assert_true(json_number(answer, "progress") == 0);
    assert_int_equal(json_number(answer, "state.job_count"), 0);
    cJSON_Delete(answer);
    cJSON_Delete(ask("POST", "/v1/jobs", "{\"prompt\": \"7\", \"n\": 2}", 202));
    double progress = 0;
    for (int tries = 0; progress == 0; tries++, usleep(2000)) { /* an image takes seconds */
        if (tries > 30000) fail_msg("no progress");
        answer = ask("GET", "/sdapi/v1/progress", NULL, 200);
        progress = json_number(answer, "progress");
        if (progress > 0) {
            assert_true(progress < 1);
            assert_int_equal(json_number(answer, "state.job_count"), 1);
            assert_int_equal(json_number(answer, "state.sampling_steps"), 64);
            assert_true(json_number(answer, "state.sampling_step") > 0);
        }
        cJSON_Delete(answer);
    }
    static const char other[] = "X-Forwarded-For: 10.0.0.9\r\n";
    reply r = service_request(&s, "GET", "/sdapi/v1/progress", other, NULL, 0);
    assert_has(r.body, "\"progress\": 0.0000"); /* that of another client */
    reply_free(&r);
    r = service_request(&s, "POST", "/sdapi/v1/interrupt", other, NULL, 0);
    assert_int_equal(r.code, 200);
    reply_free(&r);
    usleep(20000);
    assert_int_equal(service_metric(&s, "mar_images_total{end=\"cancelled\"}"), 0);
    cJSON_Delete(ask("POST", "/sdapi/v1/interrupt", NULL, 200));
    service_await_metric(&s, "mar_images_total{end=\"cancelled\"}", 2);
    answer = ask("GET", "/sdapi/v1/progress", NULL, 200);
    assert_int_equal(json_number(answer, "state.job_count"), 0);
    cJSON_Delete(answer);
    s = before;
    assert_int_equal(service_stop(&slow), 0);
}
