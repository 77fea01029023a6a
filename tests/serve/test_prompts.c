/* `mar serve` with a text-to-image model: a request's prompt makes the picture that mar generate makes of it. */
#include "tests/support/service.h"
#include "tests/support/test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static char *directory;
static service_process service;

static int set_up(void **state)
{
    if (command_setup(state) != 0) return 1;
    directory = *state;
    service = service_start(directory, "--model demo-t2i --batch 4 --queue 10 --timeout 300");
    return 0;
}

static int tear_down(void **state)
{
    size_t size;
    const int status = service_stop(&service);
    char *errors = read_whole_file(directory, "serve.err", &size);
    if (status != 0) fail_msg("exit status %d: %s", status, errors);
    free(errors);
    return command_teardown(state);
}

TEST_GROUP(set_up, tear_down)

/* Posts a request. Returns the answer, which has this status. */
static cJSON *post(const char *json, int code)
{
    reply r = service_post(&service, "/v1/images/generations", json);
    if (r.code != code) fail_msg("status %d, expected %d: %s", r.code, code, r.body);
    cJSON *answer = cJSON_Parse(r.body);
    assert_non_null(answer);
    reply_free(&r);
    return answer;
}

/* Checks that image i of the answer is the file's picture, with its text. */
static void check_picture(const cJSON *answer, int i, const char *file)
{
    char path[64];
    snprintf(path, sizeof path, "data.%d.url", i);
    const char *url = strstr(json_text(answer, path), "/v1/");
    assert_non_null(url);
    reply r = service_get(&service, url);
    assert_int_equal(r.code, 200);
    write_whole_file(directory, "served.png", r.body, r.size);
    assert_same_file(directory, "served.png", file);
    reply_free(&r);
}

TEST_CASE(makes_the_pictures_of_generate)
{
    static const char *const prompts[] = {"a bold seven", "\xc3\xa9t\xc3\xa9: a thin 2"};
    for (int i = 0; i < 2; i++) {
        char json[128];
        snprintf(json, sizeof json, "{\"prompt\": \"%s\", \"seed\": 3, \"n\": 2, \"response_format\": \"url\"}",
                 prompts[i]);
        cJSON *answer = post(json, 200);
        assert_string_equal(json_text(answer, "data.1.prompt"), prompts[i]);
        command_ok(directory, "generate --model demo-t2i --prompt '%s' --num 2 --seed 3 --out %d -q", prompts[i], i);
        check_picture(answer, 0, i ? "1/000000.png" : "0/000000.png");
        check_picture(answer, 1, i ? "1/000001.png" : "0/000001.png");
        cJSON_Delete(answer);
    }
    sh_ok(directory, "! cmp -s 0/000000.png 1/000000.png");
}

TEST_CASE(refuses_bad_prompts)
{
    static const char *const cases[][2] = {
        {"{}", "prompt: is missing, expected what the picture shows"},
        {"{\"prompt\": 7}", "prompt: is no string, expected what the picture shows"},
        {"{\"prompt\": \"\"}", "prompt: the prompt is empty"},
        {"{\"prompt\": \" \\n \"}", "prompt: the prompt is empty"},
        {"{\"prompt\": \"a\\u0000b\"}", "prompt: has a NUL character, expected what the picture shows"},
    };
    for (size_t i = 0; i < LENGTH(cases); i++) {
        cJSON *answer = post(cases[i][0], 400);
        assert_string_equal(json_text(answer, "error.message"), cases[i][1]);
        assert_string_equal(json_text(answer, "error.param"), "prompt");
        cJSON_Delete(answer);
    }
    cJSON *none = post("{\"prompt\": \"a bold seven\", \"negative_prompt\": \"\"}", 400);
    assert_string_equal(json_text(none, "error.message"),
                        "negative_prompt: has no effect: demo-t2i has no negative prompt");
    cJSON_Delete(none);
    char *json = malloc(100100);
    const int n = snprintf(json, 100, "{\"prompt\": \"");
    memset(json + n, 'a', 100000);
    strcpy(json + n + 100000, "\"}");
    cJSON *answer = post(json, 400);
    assert_string_equal(json_text(answer, "error.message"),
                        "prompt: a prompt of 100000 bytes, expected 4096 at most; --clean off takes longer ones");
    cJSON_Delete(answer);
    strcpy(json + n + 4097, "\"}");
    static const char *const paths[] = {"/v1/images/generations", "/v1/jobs"};
    for (int i = 0; i < 2; i++) {
        reply r = service_post(&service, paths[i], json);
        assert_int_equal(r.code, 400);
        assert_has(r.body, "prompt: a prompt of 4097 bytes, expected 4096 at most; --clean off takes longer ones");
        assert_has(r.body, "\"param\": \"prompt\"");
        reply_free(&r);
    }
    reply job = service_post(&service, "/v1/jobs", "{\"prompt\": \"a bold seven\", \"n\": 10}");
    assert_int_equal(job.code, 202);
    reply_free(&job);
    answer = post("{\"prompt\": \"a thin 2\", \"n\": 10}", 429);
    assert_string_equal(json_text(answer, "error.code"), "queue_full");
    cJSON_Delete(answer);
    free(json);
}

/* Without cleaning a prompt may be longer. */
TEST_CASE(takes_long_prompts)
{
    enum { PROMPT = 5000 };
    static char json[PROMPT + 64];
    service_process s = service_start(directory, "--model demo-t2i --clean off --timeout 300");
    int n = sprintf(json, "{\"prompt\": \"");
    memset(json + n, 'a', PROMPT);
    strcpy(json + n + PROMPT, "\"}");
    reply r = service_post(&s, "/v1/images/generations", json);
    if (r.code != 200) fail_msg("%d: %s", r.code, r.body);
    reply_free(&r);
    assert_int_equal(service_stop(&s), 0);
}

TEST_CASE(tells_that_it_takes_prompts)
{
    reply r = service_get(&service, "/v1/models");
    cJSON *models = cJSON_Parse(r.body);
    assert_string_equal(json_text(models, "data.0.prompt"), "text");
    cJSON_Delete(models);
    reply_free(&r);
}

TEST_CASE(refuses_wrong_options)
{
    static const refusal cases[] = {
        {"serve --model demo-t2i --prompt x", "--prompt: has no effect here, a request has its own prompt"},
        {"serve --model demo --t5 demo-t5", "--t5: demo makes images of classes, expected a text-to-image model"},
        {"serve --model demo-t2i --t5 none", "none: cannot open: No such file or directory"},
    };
    command_refuses(directory, cases, LENGTH(cases));
}
