/* `mar serve` as its clients see it: OpenAI's requests, jobs and their events, refusals, limits, the token, clients
 * that leave, and the end by a signal. */
#include "tests/support/changed.h"
#include "tests/support/service.h"

#include "tests/support/test.h"
#include "tools/cli/base64.h"
#include "tools/images/image.h"

#include <png.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define QUICK "--num_iter 4 --num_sampling_steps 10"
/* An image takes seconds, and is cancelled. */
#define SLOW "--num_iter 64 --num_sampling_steps 1000 --threads 1 --dtype f32"

#define JSON      "Content-Type: application/json\r\n"
#define WITH_LINK "{\"prompt\": \"1\", \"response_format\": \"url\"}"

static char *directory;
static service_process quick; /* the service of most tests */

static int set_up(void **state)
{
    if (command_setup(state) != 0) return 1;
    directory = *state;
    quick = service_start(directory, QUICK " --batch 4 --timeout 300 --strict");
    return 0;
}

static int tear_down(void **state)
{
    size_t size;
    const int status = service_stop(&quick);
    char *errors = read_whole_file(directory, "serve.err", &size);
    if (status != 0) fail_msg("exit status %d: %s", status, errors);
    assert_string_equal(errors, "mar: stopping; again to quit at once\n");
    free(errors);
    return command_teardown(state);
}

TEST_GROUP(set_up, tear_down)

static cJSON *parse(const reply *r)
{
    cJSON *json = cJSON_Parse(r->body);
    if (!json) fail_msg("no JSON: %s", r->body);
    return json;
}

static void assert_is_file(const char *name, const void *data, size_t size)
{
    size_t expected;
    char *file = read_whole_file(directory, name, &expected);
    assert_int_equal(size, expected);
    assert_memory_equal(data, file, size);
    free(file);
}

/* --- pictures ----------------------------------------------------------------------------------------------------- */

TEST_CASE(is_there)
{
    reply r = service_get(&quick, "/health");
    assert_int_equal(r.code, 200);
    assert_string_equal(r.body, "{\"status\": \"ok\"}\n");
    reply_free(&r);
    r = service_get(&quick, "/v1/models");
    assert_int_equal(r.code, 200);
    cJSON *json = parse(&r);
    assert_string_equal(json_text(json, "data.0.id"), "demo");
    assert_string_equal(json_text(json, "data.0.size"), "32x32");
    assert_int_equal(json_number(json, "data.0.classes"), 10);
    cJSON_Delete(json);
    reply_free(&r);
    r = service_get(&quick, "/v1/models/demo");
    assert_int_equal(r.code, 200);
    reply_free(&r);
}

/* A picture of the service is the file that `mar generate` writes, to the last byte. */
TEST_CASE(gives_the_pictures_of_generate)
{
    static char png[1 << 16];
    command_ok(directory, "generate --quiet " QUICK " --class 7 --num 3 --seed 5 --cfg 2 --out seven");
    reply r = service_post(&quick, "/v1/images/generations",
                           "{\"prompt\": \"7\", \"n\": 3, \"seed\": 5, \"cfg\": 2, \"user\": \"me\"}");
    assert_int_equal(r.code, 200);
    cJSON *json = parse(&r);
    assert_int_equal(json_count(json, "data"), 3);
    for (int i = 0; i < 3; i++) {
        char path[64], name[32];
        snprintf(path, sizeof path, "data.%d.b64_json", i);
        snprintf(name, sizeof name, "seven/%06d.png", i);
        const int size = base64_read(json_text(json, path), png, sizeof png - 1);
        assert_true(size > 0);
        assert_is_file(name, png, (size_t)size);
    }
    cJSON_Delete(json);
    reply_free(&r);

    r = service_post(&quick, "/v1/images/generations",
                     "{\"prompt\": \"7\", \"n\": 2, \"seed\": 5, \"cfg\": 2.0, \"response_format\": \"url\"}");
    assert_int_equal(r.code, 200);
    json = parse(&r);
    const char *url = json_text(json, "data.1.url"), *path = strstr(url, "/v1/jobs/");
    assert_non_null(path);
    reply picture = service_get(&quick, path);
    assert_int_equal(picture.code, 200);
    assert_string_equal(reply_header(&picture, "Content-Type"), "image/png");
    assert_is_file("seven/000001.png", picture.body, picture.size);
    reply_free(&picture);
    cJSON_Delete(json);
    reply_free(&r);
}

/* Requests without a seed get different ones, and their seed makes the picture again. */
TEST_CASE(draws_seeds)
{
    char seeds[2][32], line[200];
    for (int i = 0; i < 2; i++) {
        reply r = service_post(&quick, "/v1/images/generations", WITH_LINK);
        cJSON *json = parse(&r);
        snprintf(seeds[i], sizeof seeds[i], "%.0f", json_number(json, "data.0.seed"));
        reply picture = service_get(&quick, strstr(json_text(json, "data.0.url"), "/v1/"));
        write_whole_file(directory, "drawn.png", picture.body, picture.size);
        reply_free(&picture);
        cJSON_Delete(json);
        reply_free(&r);
    }
    assert_string_not_equal(seeds[0], seeds[1]);
    snprintf(line, sizeof line, "generate --quiet " QUICK " --class 1 --num 1 --seed %s --out again.png", seeds[1]);
    command_ok(directory, "%s", line);
    assert_same_file(directory, "drawn.png", "again.png");
}

/* --- jobs --------------------------------------------------------------------------------------------------------- */

TEST_CASE(tells_the_progress_of_a_job)
{
    char path[128];
    reply r = service_post(&quick, "/v1/jobs", "{\"prompt\": \"3\", \"n\": 2}");
    assert_int_equal(r.code, 202);
    cJSON *json = parse(&r);
    const char *id = json_text(json, "id");
    assert_int_equal(strlen(id), 32);
    snprintf(path, sizeof path, "/v1/jobs/%s/events", id);
    reply events = service_get(&quick, path);
    assert_int_equal(events.code, 200);
    assert_string_equal(reply_header(&events, "Content-Type"), "text/event-stream");
    const char *last = strstr(events.body, "event: done\ndata: ");
    assert_non_null(last);
    cJSON *done = cJSON_Parse(last + strlen("event: done\ndata: "));
    assert_string_equal(json_text(done, "status"), "done");
    assert_int_equal(json_number(done, "images.1.step"), 4);
    reply picture = service_get(&quick, json_text(done, "images.1.url"));
    assert_int_equal(picture.code, 200);
    reply_free(&picture);
    cJSON_Delete(done);
    reply_free(&events);
    snprintf(path, sizeof path, "/v1/jobs/%s/images/2.png", id);
    picture = service_get(&quick, path);
    assert_int_equal(picture.code, 404);
    reply_free(&picture);
    cJSON_Delete(json);
    reply_free(&r);
}

/* Writes uint8_t rgba[height][width][4] as a PNG. */
static void write_rgba_png(const char *name, int width, int height, const uint8_t *rgba)
{
    png_image png = {.version = PNG_IMAGE_VERSION,
                     .width = (png_uint_32)width,
                     .height = (png_uint_32)height,
                     .format = PNG_FORMAT_RGBA};
    assert_true(png_image_write_to_file(&png, path_in(directory, "%s", name), 0, rgba, 0, NULL));
}

/* Where the mask is transparent, a picture is made anew, with the pixels of mar edit, whose mask is white there. */
TEST_CASE(edits_a_picture)
{
    enum { SIDE = 32 };
    static const char type[] = "Content-Type: multipart/form-data; boundary=xx\r\n",
                      fields[] = "--xx\r\nContent-Disposition: form-data; name=\"prompt\"\r\n\r\n3\r\n"
                                 "--xx\r\nContent-Disposition: form-data; name=\"seed\"\r\n\r\n9\r\n"
                                 "--xx\r\nContent-Disposition: form-data; name=\"response_format\"\r\n\r\nurl\r\n",
                      image_part[] = "--xx\r\nContent-Disposition: form-data; name=\"image\"; filename=\"a\"\r\n\r\n",
                      mask_part[] = "\r\n--xx\r\nContent-Disposition: form-data; name=\"mask\"; filename=\"b\"\r\n\r\n",
                      end[] = "\r\n--xx--\r\n";
    uint8_t rgba[SIDE][SIDE][4];
    size_t picture_size, mask_size, size = 0;
    for (int y = 0; y < SIDE; y++) /* the lower half is white and transparent */
        for (int x = 0; x < SIDE; x++) memcpy(rgba[y][x], y < SIDE / 2 ? "\0\0\0\377" : "\377\377\377\0", 4);
    write_rgba_png("mask.png", SIDE, SIDE, &rgba[0][0][0]);
    command_ok(directory, "generate --quiet --class 3 --num 1 --seed 1 --out three.png");
    command_ok(directory,
               "edit --quiet " QUICK " --image three.png --mask mask.png --class 3 --seed 9 --out edited.png");
    char *picture = read_whole_file(directory, "three.png", &picture_size);
    char *mask = read_whole_file(directory, "mask.png", &mask_size);
    const struct {
        const char *data;
        size_t size;
    } pieces[] = {{fields, sizeof fields - 1}, {image_part, sizeof image_part - 1},
                  {picture, picture_size},     {mask_part, sizeof mask_part - 1},
                  {mask, mask_size},           {end, sizeof end - 1}};
    static char form[1 << 15];
    for (size_t i = 0; i < LENGTH(pieces); i++) {
        assert_true(size + pieces[i].size <= sizeof form);
        memcpy(form + size, pieces[i].data, pieces[i].size);
        size += pieces[i].size;
    }
    reply r = service_request(&quick, "POST", "/v1/images/edits", type, form, size);
    if (r.code != 200) fail_msg("%d, %s", r.code, r.body);
    cJSON *json = parse(&r);
    reply made = service_get(&quick, strstr(json_text(json, "data.0.url"), "/v1/"));
    assert_int_equal(made.code, 200);
    write_whole_file(directory, "served.png", made.body, made.size);
    image_file served, edited;
    assert_int_equal(image_read_png(path_in(directory, "served.png"), SIDE, SIDE, &served), 0);
    assert_int_equal(image_read_png(path_in(directory, "edited.png"), SIDE, SIDE, &edited), 0);
    assert_memory_equal(served.picture.rgb, edited.picture.rgb, (size_t)SIDE * SIDE * 3);
    image_file_free(&served);
    image_file_free(&edited);
    reply_free(&made);
    cJSON_Delete(json);
    reply_free(&r);
    free(picture);
    free(mask);
}

/* --- refusals ----------------------------------------------------------------------------------------------------- */

TEST_CASE(refuses_wrong_requests)
{
    static const struct {
        const char *body, *part;
    } cases[] = {
        {"", "the body is empty, expected {\"prompt\": ...}"},
        {"{\"prompt\": \"1\", \"sede\": 7}", "sede: is no field of a request, did you mean seed?"},
        {"{\"prompt\": \"1\", \"num_iter\": 7}",
         "num_iter: is no field of a request, expected prompt, negative_prompt, n, size"},
        {"{\"prompt\": \"1\", \"prompt\": \"2\"}", "prompt: is given more than once"},
        {"{\"prompt\\u0000\": \"1\"}", "the name of a field has a NUL character"},
        {"{\"prompt\": \"1\", \"image\": \"x\"}", "image: is a picture, expected it in a form"},
        {"{\"prompt\": \"1\"", "the body is no JSON: byte 14"},
        {"[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[", "levels of brackets"},
        {"{\"prompt\": \"\xff\"}", "not UTF-8"},
        {"\"7\"", "no JSON object"},
        {"{}", "prompt: is missing, expected a class"},
        {"{\"prompt\": null}", "prompt: is missing"},
        {"{\"prompt\": 7}", "prompt: is no string"},
        {"{\"prompt\": \"7\\u0000\"}", "prompt: has a NUL character"},
        {"{\"prompt\": \"10\"}", "class 10: out of range, expected 0 to 9"},
        {"{\"prompt\": \"sea slug\"}", "expected a number from 0 to 9"},
        {"{\"prompt\": \"1-3\"}", "prompt: names 3 classes"},
        {"{\"prompt\": \"@/etc/passwd\"}", "expected a class, not a file"},
        {"{\"prompt\": \"1\", \"n\": 0}", "n: is out of range, expected an integer from 1 to 10"},
        {"{\"prompt\": \"1\", \"n\": 1e1}", "n: is no integer"},
        {"{\"prompt\": \"1\", \"n\": \"2\"}", "n: is no number"},
        {"{\"prompt\": \"1\", \"size\": \"256x256\"}", "size: is 256x256, expected 32x32, the model's, or auto"},
        {"{\"prompt\": \"1\", \"seed\": -1}", "seed: is out of range"},
        {"{\"prompt\": \"1\", \"cfg\": 101}", "cfg: is out of range, expected a number from 0 to 100"},
        {"{\"prompt\": \"1\", \"cfg\": 1e999}", "cfg: is out of range"},
        {"{\"prompt\": \"1\", \"response_format\": \"gif\"}", "response_format: is gif, expected b64_json or url"},
        {"{\"prompt\": \"1\", \"output_format\": \"gif\"}", "output_format: is gif, expected png, jpeg or webp"},
        {"{\"prompt\": \"1\", \"output_compression\": 101}", "output_compression: is out of range"},
        {"{\"prompt\": \"1\", \"stream\": 1}", "stream: is no boolean, expected true or false"},
        {"{\"prompt\": \"1\", \"stream\": true, \"response_format\": \"url\"}", "expected b64_json with stream"},
        {"{\"prompt\": \"1\", \"partial_images\": 4}",
         "partial_images: is out of range, expected an integer from 0 to 3"},
        {"{\"prompt\": \"1\", \"cfg_scale\": 101}", "cfg_scale: is out of range, expected a number from 0 to 100"},
        {"{\"prompt\": \"1\", \"cfg\": 1, \"guidance_scale\": 2}",
         "guidance_scale: is also given as cfg, expected one"},
        {"{\"prompt\": \"1\", \"steps\": 0}", "steps: is out of range"},
    };
    for (size_t i = 0; i < LENGTH(cases); i++) {
        reply r = service_post(&quick, "/v1/images/generations", cases[i].body);
        if (r.code != 400) fail_msg("%s: %d, %s", cases[i].body, r.code, r.body);
        cJSON *json = parse(&r);
        assert_string_equal(json_text(json, "error.type"), "invalid_request_error");
        assert_has(json_text(json, "error.message"), cases[i].part);
        cJSON_Delete(json);
        reply_free(&r);
    }
    reply r = service_post(&quick, "/v1/images/generations", "{\"prompt\": \"1\", \"model\": \"dall-e-3\"}");
    assert_int_equal(r.code, 404);
    assert_has(r.body, "\"code\": \"model_not_found\"");
    reply_free(&r);
}

TEST_CASE(refuses_wrong_paths_methods_and_kinds)
{
    static const char garbage[] = "\r\n\x01\x02 garbage \xff\xfe\r\n\r\n";
    char *large = calloc(1, 9 << 20);
    reply r = service_get(&quick, "/v2");
    assert_int_equal(r.code, 404);
    reply_free(&r);
    r = service_request(&quick, "DELETE", "/v1/models", "", NULL, 0);
    assert_int_equal(r.code, 405);
    assert_string_equal(reply_header(&r, "Allow"), "GET");
    reply_free(&r);
    r = service_request(&quick, "POST", "/v1/images/generations", "", "{}", 2);
    assert_int_equal(r.code, 415);
    reply_free(&r);
    static const char *const boundaries[] = {"", "; boundary=", "; boundary=;", "; boundary=; charset=utf-8",
                                             "; boundary=\"\""};
    for (size_t i = 0; i < LENGTH(boundaries); i++) {
        char headers[128];
        snprintf(headers, sizeof headers, "Content-Type: multipart/form-data%s\r\n", boundaries[i]);
        r = service_request(&quick, "POST", "/v1/images/edits", headers, "--;\r\n", 5);
        assert_int_equal(r.code, 400);
        assert_has(r.body, "boundary");
        reply_free(&r);
    }
    r = service_request(&quick, "POST", "/v1/images/generations", "Content-Type: application/json\r\n", large, 9 << 20);
    assert_int_equal(r.code, 413);
    assert_has(r.body, "expected at most 1048576 bytes");
    reply_free(&r);
    free(large);
    const int fd = service_connect(&quick);
    service_send(fd, garbage, sizeof garbage - 1);
    shutdown(fd, SHUT_WR);
    r = service_read(fd);
    assert_true(r.code == 0 || r.code == 400);
    reply_free(&r);
}

/* A page from elsewhere cannot use the browser of someone who runs the service. */
TEST_CASE(refuses_other_sites)
{
    static const char body[] = "{\"prompt\": \"1\"}", type[] = "Content-Type: application/json\r\n";
    char headers[256];
    snprintf(headers, sizeof headers, "%sOrigin: https://example.com\r\n", type);
    reply r = service_request(&quick, "POST", "/v1/jobs", headers, body, sizeof body - 1);
    assert_int_equal(r.code, 403);
    reply_free(&r);
    snprintf(headers, sizeof headers, "%sOrigin: http://127.0.0.1:%d\r\n", type, quick.port);
    r = service_request(&quick, "POST", "/v1/jobs", headers, body, sizeof body - 1);
    assert_int_equal(r.code, 202);
    reply_free(&r);
    const int fd = service_connect(&quick);
    static const char rebound[] = "GET /health HTTP/1.1\r\nHost: example.com\r\nConnection: close\r\n\r\n";
    service_send(fd, rebound, sizeof rebound - 1);
    r = service_read(fd);
    assert_int_equal(r.code, 403);
    reply_free(&r);
}

TEST_CASE(serves_its_page)
{
    static const char *const files[][2] = {
        {"/", "text/html"}, {"/page.css", "text/css"}, {"/page.js", "text/javascript"}};
    for (size_t i = 0; i < LENGTH(files); i++) {
        reply r = service_get(&quick, files[i][0]);
        assert_int_equal(r.code, 200);
        assert_has(reply_header(&r, "Content-Type"), files[i][1]);
        assert_null(strstr(r.body, "http:"));
        assert_null(strstr(r.body, "https:"));
        if (i == 0) assert_has(reply_header(&r, "Content-Security-Policy"), "default-src 'none'");
        reply_free(&r);
    }
}

TEST_CASE(asks_for_the_token)
{
    write_whole_file(directory, "token", "0123456789abcdef\n", 17);
    write_whole_file(directory, "short", "0123456789\n", 11);
    command_refused(directory, "$MAR serve --port 0 --token_file short", "short: its first line has 10 characters",
                    "expected a token of 16");
    sh_ok(directory, "chmod 600 token");
    service_process s = service_start(directory, QUICK " --token_file token");
    static const struct {
        const char *path, *headers;
        int code;
    } cases[] = {
        {"/v1/models", "", 401},
        {"/v1/models", "Authorization: Bearer 0123456789abcdeF\r\n", 401},
        {"/v1/models", "Authorization: Bearer 0123456789abcdef0\r\n", 401},
        {"/v1/models", "Authorization: Bearer \r\n", 401},
        {"/v1/models", "Authorization: Basic 0123456789abcdef\r\n", 401},
        {"/v1/models", "Authorization: Bearer 0123456789abcdef\r\n", 200},
        {"/sdapi/v1/options", "Authorization: Basic dXNlcjowMTIzNDU2Nzg5YWJjZGVm\r\n", 200}, /* user:0123456789abcdef */
        {"/sdapi/v1/options", "Authorization: Basic dXNlcjowMTIzNDU2Nzg5YWJjZGVY\r\n", 401}, /* user:0123456789abcdeX */
        {"/sdapi/v1/options", "Authorization: Basic MDEyMzQ1Njc4OWFiY2RlZg==\r\n", 401},     /* no user */
        {"/sdapi/v1/options", "Authorization: Basic dXNlcjow=TIzNDU2Nzg5YWJjZGVm\r\n", 401},
        {"/metrics", "", 401},
        {"/health", "", 200},
        {"/", "", 200},
    };
    for (size_t i = 0; i < LENGTH(cases); i++) {
        reply r = service_request(&s, "GET", cases[i].path, cases[i].headers, NULL, 0);
        if (r.code != cases[i].code) fail_msg("%s %s: %d", cases[i].path, cases[i].headers, r.code);
        if (r.code == 401) assert_string_equal(reply_header(&r, "WWW-Authenticate"), "Bearer");
        reply_free(&r);
    }
    reply r = service_post(&s, "/v1/images/generations", "{\"prompt\": \"1\"}");
    assert_int_equal(r.code, 401);
    reply_free(&r);
    static const char headers[] = "Content-Type: application/json\r\nAuthorization: Bearer 0123456789abcdef\r\n";
    r = service_request(&s, "POST", "/v1/images/generations", headers, WITH_LINK, strlen(WITH_LINK));
    assert_int_equal(r.code, 200);
    cJSON *json = parse(&r);
    reply picture = service_get(&s, strstr(json_text(json, "data.0.url"), "/v1/")); /* a browser opens it */
    assert_int_equal(picture.code, 200);
    reply_free(&picture);
    cJSON_Delete(json);
    reply_free(&r);
    assert_int_equal(service_stop(&s), 0);
}

/* A model that overflows: each of its images fails with the library's line, and the service goes on. */
TEST_CASE(reports_failed_images)
{
    mar *m = open_mar(MAR_DTYPE_F32, 1);
    free(write_changed(m, directory, "overflows.safetensors", "demo-vae", "decoder.conv_out.weight", 0, 0, 3e38f));
    mar_close(m);
    service_process s = service_start(directory, QUICK " --vae overflows.safetensors");
    for (int i = 0; i < 2; i++) {
        reply r = service_post(&s, "/v1/images/generations", "{\"prompt\": \"1\", \"n\": 2}");
        assert_int_equal(r.code, 500);
        assert_has(r.body, "\"type\": \"server_error\"");
        assert_has(r.body, "the image decoder's output is ");
        reply_free(&r);
    }
    assert_int_equal(service_metric(&s, "mar_images_total{end=\"failed\"}"), 4);
    reply r = service_get(&s, "/health");
    assert_int_equal(r.code, 200);
    reply_free(&r);
    assert_int_equal(service_stop(&s), 0);
}

/* --- limits ------------------------------------------------------------------------------------------------------- */

/* Starts a generation and leaves the connection open. */
static int begin(const service_process *s, const char *json)
{
    char text[512];
    const int fd = service_connect(s);
    const int n = snprintf(text, sizeof text,
                           "POST /v1/images/generations HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
                           "Content-Type: application/json\r\nContent-Length: %zu\r\n\r\n%s",
                           strlen(json), json);
    assert_true(service_send(fd, text, (size_t)n));
    return fd;
}

/* A client that leaves cancels its images, others wait no longer, and a full queue says so. */
TEST_CASE(queues_and_cancels)
{
    service_process s = service_start(directory, SLOW " --batch 1 --queue 10");
    char path[128];
    const int leaver = begin(&s, "{\"prompt\": \"1\", \"n\": 10}");
    service_await_metric(&s, "mar_batch_images", 1);
    assert_int_equal(service_metric(&s, "mar_queue_images"), 9);
    reply full = service_post(&s, "/v1/images/generations", "{\"prompt\": \"1\", \"n\": 2}");
    assert_int_equal(full.code, 429);
    assert_has(full.body, "10 images wait or are made, 2 more are asked, and there are 11 places");
    assert_true(atoi(reply_header(&full, "Retry-After")) >= 1);
    assert_has(full.body, "\"type\": \"rate_limit_error\"");
    reply_free(&full);
    reply last = service_post(&s, "/v1/jobs", "{\"prompt\": \"2\"}");
    assert_int_equal(last.code, 429); /* one more place is free, for another client */
    assert_has(last.body, "\"code\": \"client_share\"");
    reply_free(&last);
    last = service_request(&s, "POST", "/v1/jobs", JSON "X-Forwarded-For: 10.0.0.1, 10.0.0.2\r\n",
                           "{\"prompt\": \"2\"}", 15);
    assert_int_equal(last.code, 202);
    cJSON *json = parse(&last);
    snprintf(path, sizeof path, "/v1/jobs/%s/previews/0.png", json_text(json, "id"));
    reply early = service_get(&s, path);
    assert_int_equal(early.code, 404);
    assert_has(early.body, "the image is queued");
    reply_free(&early);
    close(leaver);
    service_await_metric(&s, "mar_images_total{end=\"cancelled\"}", 10);
    service_await_metric(&s, "mar_batch_images", 1);
    service_await_metric(&s, "mar_requests_total{route=\"generations\",code=\"499\"}", 1);
    snprintf(path, sizeof path, "/v1/jobs/%s/previews/0.png", json_text(json, "id"));
    reply preview = service_get(&s, path);
    assert_int_equal(preview.code, 200);
    assert_memory_equal(preview.body, "\x89PNG", 4);
    assert_int_equal(service_metric(&s, "mar_previews_total"), 1);
    reply_free(&preview);
    snprintf(path, sizeof path, "/v1/jobs/%s/cancel", json_text(json, "id"));
    reply cancelled = service_request(&s, "POST", path, "Content-Type: application/json\r\n", "{}", 2);
    assert_int_equal(cancelled.code, 200);
    assert_has(cancelled.body, "\"status\": \"cancelled\"");
    reply_free(&cancelled);
    service_await_metric(&s, "mar_images_total{end=\"cancelled\"}", 11);
    const int streamer = begin(&s, "{\"prompt\": \"1\", \"n\": 3, \"stream\": true, \"partial_images\": 3}");
    service_await_metric(&s, "mar_batch_images", 1);
    close(streamer);
    service_await_metric(&s, "mar_images_total{end=\"cancelled\"}", 14);
    service_await_metric(&s, "mar_requests_total{route=\"generations\",code=\"499\"}", 2); /* the stream, too */
    cJSON_Delete(json);
    reply_free(&last);
    assert_int_equal(service_stop(&s), 0);
}

/* Clients that send their request a byte at a time are closed, and keep nobody out meanwhile. */
TEST_CASE(outlasts_slow_clients)
{
    enum { CLIENTS = 700 }; /* more connections than it has */
    static const char part[] = "POST /v1/images/generations HTTP/1.1\r\nHost: localhost\r\nContent-Ty";
    static int fd[CLIENTS];
    const int before = service_descriptors(&quick);
    for (int i = 0; i < CLIENTS; i++) {
        fd[i] = service_connect(&quick);
        service_send(fd[i], part, sizeof part - 1);
    }
    reply r = service_post(&quick, "/v1/images/generations", "{\"prompt\": \"1\"}");
    assert_int_equal(r.code, 200);
    reply_free(&r);
    for (int i = 0; i < CLIENTS; i++) close(fd[i]);
    for (int ms = 0; service_descriptors(&quick) > before; ms += 10) {
        if (ms > 60000) fail_msg("%d descriptors, %d before", service_descriptors(&quick), before);
        usleep(10000);
    }
    service_process s = service_start(directory, QUICK " --timeout 1");
    const int slow = service_connect(&s);
    service_send(slow, part, sizeof part - 1);
    reply none = service_read(slow); /* ends only if the service closes the connection */
    assert_int_equal(none.code, 0);
    reply_free(&none);
    assert_int_equal(service_stop(&s), 0);
}

/* SIGTERM: what was accepted is made and sent, what comes later is refused, and the status is 0. */
TEST_CASE(ends_with_what_it_began)
{
    service_process s = service_start(directory, "--batch 1 --num_iter 16");
    const int waiting = begin(&s, "{\"prompt\": \"1\", \"n\": 10}");
    service_await_metric(&s, "mar_batch_images", 1);
    kill(s.pid, SIGTERM);
    reply refused = service_post(&s, "/v1/jobs", "{\"prompt\": \"1\"}");
    for (; refused.code == 202; usleep(5000)) { /* it looks for the signal some times a second; each job keeps it up */
        reply_free(&refused);
        refused = service_post(&s, "/v1/jobs", "{\"prompt\": \"1\"}");
    }
    assert_int_equal(refused.code, 503);
    assert_true(atoi(reply_header(&refused, "Retry-After")) >= 1);
    assert_string_equal(reply_header(&refused, "Connection"), "close");
    reply_free(&refused);
    reply made = service_read(waiting);
    assert_int_equal(made.code, 200);
    cJSON *json = parse(&made);
    assert_int_equal(json_count(json, "data"), 10);
    cJSON_Delete(json);
    reply_free(&made);
    assert_int_equal(service_wait(&s), 0);
}

static double seconds_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Gets the path until the answer has `part`. */
static void await_answer(const service_process *s, const char *path, const char *part)
{
    const double began = seconds_now();
    for (int has = 0; !has; usleep(5000)) {
        reply r = service_get(s, path);
        has = strstr(r.body, part) != NULL;
        if (r.code == 0 || seconds_now() - began > 300) fail_msg("%s: %d, %s", path, r.code, r.body);
        reply_free(&r);
    }
}

/* Posts a request, and writes the path of its job's first picture. */
static void make_picture(const service_process *s, char path[128])
{
    reply r = service_post(s, "/v1/images/generations", WITH_LINK);
    assert_int_equal(r.code, 200);
    cJSON *json = parse(&r);
    snprintf(path, 128, "%s", strstr(json_text(json, "data.0.url"), "/v1/"));
    cJSON_Delete(json);
    reply_free(&r);
}

/* Sends HEAD and checks that there is an answer without a body. */
static void look_at_head(const service_process *s, const char *path)
{
    reply r = service_request(s, "HEAD", path, "", NULL, 0);
    assert_int_equal(r.code, 200);
    assert_true(atoi(reply_header(&r, "Content-Length")) > 0);
    assert_int_equal(r.size, 0);
    reply_free(&r);
}

/* After SIGTERM links of an answer work, and a job that is polled is seen done. Once all is fetched the service ends,
 * long before --grace has passed. HEAD fetches nothing. */
TEST_CASE(stays_for_results)
{
    enum { ENDS_US = 500000 }; /* a service that nobody keeps up is gone after it */
    service_process s = service_start(directory, QUICK " --grace 3600");
    char link[128], path[128], picture[128];
    make_picture(&s, link);
    reply job = service_post(&s, "/v1/jobs", "{\"prompt\": \"1\"}");
    assert_int_equal(job.code, 202);
    cJSON *json = parse(&job);
    snprintf(path, sizeof path, "/v1/jobs/%s", json_text(json, "id"));
    snprintf(picture, sizeof picture, "%s/images/0.png", path);
    kill(s.pid, SIGTERM);
    await_answer(&s, "/health", "{\"status\": \"stopping\"}\n");
    await_answer(&s, path, "\"status\": \"done\"");
    look_at_head(&s, link);
    look_at_head(&s, path);
    const char *const paths[] = {picture, link};
    for (int i = 0; i < 2; i++) {
        usleep(ENDS_US);
        reply r = service_get(&s, paths[i]);
        assert_int_equal(r.code, 200);
        reply_free(&r);
    }
    cJSON_Delete(json);
    reply_free(&job);
    const double began = seconds_now();
    assert_int_equal(service_wait(&s), 0);
    assert_true(seconds_now() - began < 60);
}

/* A client that cancels a job while it is made knows its end, and keeps the service up no longer. */
TEST_CASE(ends_after_a_cancelled_job)
{
    service_process s = service_start(directory, SLOW " --grace 3600");
    char path[128];
    reply job = service_post(&s, "/v1/jobs", "{\"prompt\": \"1\"}");
    cJSON *json = parse(&job);
    snprintf(path, sizeof path, "/v1/jobs/%s/cancel", json_text(json, "id"));
    service_await_metric(&s, "mar_batch_images", 1);
    reply cancelled = service_request(&s, "POST", path, "", "", 0);
    assert_int_equal(cancelled.code, 200);
    const double began = seconds_now();
    assert_int_equal(service_stop(&s), 0);
    assert_true(seconds_now() - began < 600);
    reply_free(&cancelled);
    cJSON_Delete(json);
    reply_free(&job);
}

/* Nobody comes for a picture: the service ends after --grace. A second signal ends it at once. */
TEST_CASE(ends_without_clients)
{
    char link[128];
    service_process s = service_start(directory, QUICK " --grace 2");
    double began = seconds_now(); /* before the picture is done, from when on the grace counts */
    make_picture(&s, link);
    assert_int_equal(service_stop(&s), 0);
    assert_true(seconds_now() - began >= 2 && seconds_now() - began < 60);
    s = service_start(directory, QUICK " --grace 3600");
    make_picture(&s, link);
    began = seconds_now();
    kill(s.pid, SIGTERM);
    await_answer(&s, "/health", "stopping");
    kill(s.pid, SIGTERM);
    assert_int_equal(service_wait(&s), 128 + SIGTERM);
    assert_true(seconds_now() - began < 60);
}

TEST_CASE(refuses_wrong_options)
{
    static const refusal cases[] = {
        {"serve --listen example.com", "--listen example.com: expected a numeric address", "127.0.0.1"},
        {"serve --seed 1", "--seed: has no effect", "its own seed"},
        {"serve --token_file absent", "absent: ", "No such file"},
        {"serve --port 65536", "--port 65536", "65535"},
        {"serve --queue 9", "--queue 9", "10"},
        {"serve --port 0 --model absent.pth --vae demo", "absent.pth", "No such file"},
    };
    command_refuses(directory, cases, LENGTH(cases));
    char line[128];
    /* before the model is loaded, which would fail */
    snprintf(line, sizeof line, "$MAR serve --port %d --model absent.pth --vae demo", quick.port);
    command_refused(directory, line, "cannot listen on 127.0.0.1, port",
                    "Address already in use; another process listens there: end it, or give another --port");
    command_refused(directory, "$MAR serve --port 0 --listen 192.0.2.1", "cannot listen on 192.0.2.1, port 0",
                    "give another --listen");
}
