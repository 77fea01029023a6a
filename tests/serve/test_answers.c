/* Answers of `mar serve`: files in the format that is asked for, warnings of what has no effect, names that clients
 * use, and streams of images as OpenAI's service sends them. */
#include "tests/support/service.h"

#include "tests/support/test.h"
#include "tools/cli/base64.h"
#include "tools/images/source.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define STEPS "--num_iter 16 --num_sampling_steps 10"
#define PATH  "/v1/images/generations"

static char *directory;
static service_process s;

static int set_up(void **state)
{
    if (command_setup(state) != 0) return 1;
    directory = *state;
    s = service_start(directory,
                      STEPS " --batch 4 --timeout 300 --alias own/digits --accept_any_model --accept_any_size");
    return 0;
}

static int tear_down(void **state)
{
    assert_int_equal(service_stop(&s), 0);
    return command_teardown(state);
}

TEST_GROUP(set_up, tear_down)

static cJSON *post(const char *json, int code)
{
    reply r = service_post(&s, PATH, json);
    if (r.code != code) fail_msg("%s: %d, %s", json, r.code, r.body);
    cJSON *answer = cJSON_Parse(r.body);
    assert_non_null(answer);
    reply_free(&r);
    return answer;
}

/* Decodes the picture of a member "b64_json". */
static image picture_of(const cJSON *object)
{
    char why[IMAGE_WHY_MAX], *text = strdup(json_text(object, "b64_json"));
    image out;
    const int size = base64_read(text, text, (int)strlen(text));
    assert_true(size > 0);
    if (image_decode(text, (size_t)size, &out, why) != 0) fail_msg("%s", why);
    assert_int_equal(out.width, 32);
    assert_int_equal(out.height, 32);
    free(text);
    return out;
}

static void free_picture(image *picture)
{
    free(picture->rgb);
}

/* Returns the mean of squared differences. */
static double distance(const image *a, const image *b)
{
    double sum = 0;
    for (int i = 0; i < 3 * 32 * 32; i++) sum += (a->rgb[i] - b->rgb[i]) * (a->rgb[i] - b->rgb[i]) / 3072.0;
    return sum;
}

/* --- formats ------------------------------------------------------------------------------------------------------ */

/* Files of each format show the picture, are fetched by a link with their ending and type, and a lower quality is
 * smaller and farther. */
TEST_CASE(formats)
{
    static const struct {
        const char *name, *ending, *type;
        image_format format;
    } cases[] = {{"png", "png", "image/png", IMAGE_PNG},
                 {"jpeg", "jpg", "image/jpeg", IMAGE_JPEG},
                 {"webp", "webp", "image/webp", IMAGE_WEBP}};
    image plain = {0};
    for (size_t i = 0; i < LENGTH(cases); i++) {
        char json[256];
        double far[2];
        if (image_format_lacks(cases[i].format)) continue;
        for (int low = 0; low < 2; low++) {
            snprintf(json, sizeof json,
                     "{\"prompt\": \"7\", \"seed\": 5, \"output_format\": \"%s\", \"output_compression\": %d}",
                     cases[i].name, low ? 0 : 100);
            cJSON *answer = post(json, 200);
            assert_string_equal(json_text(answer, "output_format"), cases[i].name);
            assert_string_equal(json_text(answer, "background"), "opaque");
            assert_int_equal(json_count(answer, "warnings"), i == 0); /* PNG has no compression */
            image made = picture_of(cJSON_GetArrayItem(cJSON_GetObjectItem(answer, "data"), 0));
            if (i == 0 && low == 0) plain = made;
            far[low] = distance(&made, &plain);
            if (made.rgb != plain.rgb) free_picture(&made);
            cJSON_Delete(answer);
        }
        print_message("%s: %.2f, lowest quality %.2f\n", cases[i].name, far[0], far[1]);
        assert_true(i == 0 ? far[0] == 0 && far[1] == 0 : far[0] < 40 && far[1] > 2 * far[0]);
        snprintf(json, sizeof json,
                 "{\"prompt\": \"7\", \"seed\": 5, \"output_format\": \"%s\", \"response_format\": \"url\"}",
                 cases[i].name);
        cJSON *answer = post(json, 200);
        char *path = strstr(json_text(answer, "data.0.url"), "/v1/");
        assert_string_equal(strrchr(path, '.') + 1, cases[i].ending);
        reply r = service_get(&s, path);
        assert_int_equal(r.code, 200);
        assert_string_equal(reply_header(&r, "Content-Type"), cases[i].type);
        reply_free(&r);
        strcpy(strrchr(path, '.'), ".gif");
        r = service_get(&s, path);
        assert_int_equal(r.code, 404);
        assert_has(r.body, "no such image, expected 0.");
        reply_free(&r);
        cJSON_Delete(answer);
    }
    free_picture(&plain);
}

/* --- warnings ----------------------------------------------------------------------------------------------------- */

/* What has no effect is said; what is so anyway is not. */
TEST_CASE(warns)
{
    static const struct {
        const char *fields, *warning; /* NULL: none */
    } cases[] = {
        {"", NULL},
        {", \"quality\": \"auto\", \"background\": \"opaque\", \"moderation\": \"auto\", \"user\": null", NULL},
        {", \"size\": \"auto\", \"model\": \"demo\", \"steps\": 16, \"partial_images\": 0, \"stream\": false", NULL},
        {", \"size\": \"32x32\", \"model\": \"own/digits\", \"num_inference_steps\": 10, \"stream\": null", NULL},
        {", \"cfg\": null, \"guidance_scale\": 2, \"sede\": null", NULL},
        {", \"quality\": \"high\"", "quality: has no effect"},
        {", \"background\": \"transparent\"", "background: has no effect"},
        {", \"safety_identifier\": \"a\"", "safety_identifier: has no effect"},
        {", \"style\": 7", "style: has no effect"},
        {", \"partial_images\": 2", "partial_images: has no effect without stream"},
        {", \"num_inference_steps\": 20", "num_inference_steps: has no effect, images take 16 steps of 10"},
        {", \"size\": \"1024x1024\"", "size: has no effect, images are 32x32"},
        {", \"model\": \"gpt-image-1\"", "model: has no effect, own/digits makes the images"},
        {", \"sede\": 7", "sede: has no effect, it is no field of a request, did you mean seed?"},
        {", \"guidence_scale\": 7",
         "guidence_scale: has no effect, it is no field of a request, did you mean guidance_scale?"},
        {", \"hires\": {\"a\": [1]}", "hires: has no effect, it is no field of a request"},
    };
    for (size_t i = 0; i < LENGTH(cases); i++) {
        char json[256];
        snprintf(json, sizeof json, "{\"prompt\": \"7\"%s}", cases[i].fields);
        cJSON *answer = post(json, 200);
        if (json_count(answer, "warnings") != (cases[i].warning != NULL)) fail_msg("%s", cJSON_Print(answer));
        if (cases[i].warning) assert_string_equal(json_text(answer, "warnings.0"), cases[i].warning);
        cJSON_Delete(answer);
    }
    char many[1024] = "{\"prompt\": \"7\"";
    for (int i = 0; i < 20; i++) sprintf(many + strlen(many), ", \"field%d\": 1", i);
    strcat(many, "}");
    cJSON *answer = post(many, 200);
    assert_int_equal(json_count(answer, "warnings"), 17);
    assert_string_equal(json_text(answer, "warnings.16"), "and 4 more");
    cJSON_Delete(answer);
    reply r = service_post(&s, "/v1/jobs", "{\"prompt\": \"7\", \"sede\": 7, \"stream\": true}");
    assert_int_equal(r.code, 202);
    assert_has(r.body, "\"warnings\": [\"sede: has no effect");
    assert_has(r.body, "response_format and stream: have no effect on a job");
    reply_free(&r);
}

/* guidance_scale and cfg_scale are other names of cfg, --alias is the model's. */
TEST_CASE(names)
{
    static const char *const fields[] = {"cfg", "guidance_scale", "cfg_scale"};
    char *first = NULL;
    for (size_t i = 0; i < LENGTH(fields); i++) {
        char json[128];
        snprintf(json, sizeof json, "{\"prompt\": \"7\", \"seed\": 5, \"%s\": 1.5}", fields[i]);
        cJSON *answer = post(json, 200);
        const char *text = json_text(answer, "data.0.b64_json");
        if (!first) first = strdup(text);
        assert_string_equal(text, first);
        assert_true(json_number(answer, "data.0.cfg") == 1.5);
        cJSON_Delete(answer);
    }
    free(first);
    reply r = service_get(&s, "/v1/models/own/digits");
    assert_int_equal(r.code, 200);
    reply_free(&r);
}

/* /v1/classes has a name by which a request finds each class, else its number; none if they have no names. */
TEST_CASE(names_of_classes)
{
    static const char names[] = "zero\none, single\nOne, two\nthree\nthree\nfive\nsix\nseven\neight\nnine \"9\"\n";
    reply r = service_get(&s, "/v1/classes");
    assert_int_equal(r.code, 200);
    assert_string_equal(r.body, "{\"object\": \"list\", \"data\": []}\n");
    reply_free(&r);
    const char *own = test_directory();
    write_whole_file(own, "names.txt", names, sizeof names - 1);
    service_process named = service_start(own, STEPS " --class_names names.txt");
    r = service_get(&named, "/v1/classes");
    cJSON *answer = cJSON_Parse(r.body);
    assert_int_equal(json_count(answer, "data"), 10);
    assert_string_equal(json_text(answer, "data.0"), "zero");
    assert_string_equal(json_text(answer, "data.1"), "single"); /* another is "one", too */
    assert_string_equal(json_text(answer, "data.2"), "two");
    assert_string_equal(json_text(answer, "data.3"), "3");
    assert_string_equal(json_text(answer, "data.9"), "nine \"9\"");
    cJSON_Delete(answer);
    reply_free(&r);
    assert_int_equal(service_stop(&named), 0);
}

/* --- streams ------------------------------------------------------------------------------------------------------ */

typedef struct {
    int partials[4], completed[4]; /* of each image */
    int errors;
} counts;

/* Returns the steps that a preview of 16 has: its tokens are those that the cosine schedule leaves unmasked. */
static int steps_of(const image *preview)
{
    enum { CELL = 4, COLUMNS = 8, TOKENS = COLUMNS * COLUMNS };
    int known = 0, steps = 0;
    for (int token = 0; token < TOKENS; token++) {
        int is_grey = 1;
        for (int i = 0; i < CELL * CELL; i++) {
            const int y = token / COLUMNS * CELL + i / CELL, x = token % COLUMNS * CELL + i % CELL;
            for (int c = 0; c < 3; c++) is_grey &= preview->rgb[3 * (y * 32 + x) + c] == 128;
        }
        known += !is_grey;
    }
    while (steps < 16 && TOKENS - (int)(TOKENS * cos(1.5707963267948966 * steps / 16)) < known) steps++;
    return steps;
}

/* Reads the events of a stream with at most `partials` previews of an image. `final`: the images, [n] "b64_json", which
 * the completed ones must be. The steps have partials + 1 parts: no preview is in
 * the first, no two in one.
 */
static counts read_stream(char *body, int partials, const char *const *final)
{
    counts c = {{0}};
    int last[4] = {0}; /* parts */
    for (char *at = body, *end; (end = strstr(at, "\n\n")); at = end + 2) {
        char name[64];
        *end = '\0';
        if (at[0] == ':') continue;
        if (sscanf(at, "event: %63s", name) != 1) fail_msg("%s", at);
        cJSON *data = cJSON_Parse(strstr(at, "\ndata: ") + 7);
        assert_non_null(data);
        if (strcmp(name, "error") == 0) {
            c.errors++;
            assert_non_null(json_text(data, "error.message"));
            cJSON_Delete(data);
            continue;
        }
        assert_string_equal(json_text(data, "type"), name);
        assert_string_equal(json_text(data, "size"), "32x32");
        const int image_number = (int)json_number(data, "image");
        assert_true(image_number >= 0 && image_number < 4 && !c.completed[image_number]);
        if (strstr(name, ".partial_image")) {
            assert_int_equal(json_number(data, "partial_image_index"), c.partials[image_number]++);
            image partial = picture_of(data);
            const int steps = steps_of(&partial), part = steps * (partials + 1) / 16;
            if (part <= last[image_number]) fail_msg("of %d previews one has %d steps", partials, steps);
            last[image_number] = part;
            free_picture(&partial);
        } else {
            assert_true(strstr(name, ".completed") != NULL);
            assert_string_equal(json_text(data, "b64_json"), final[image_number]);
            c.completed[image_number] = 1;
        }
        cJSON_Delete(data);
    }
    return c;
}

/* A stream has each image once, the same as without stream, after as many previews as are asked for at most, each with
 * more of its tokens. */
TEST_CASE(streams)
{
    cJSON *plain = post("{\"prompt\": \"7\", \"seed\": 5, \"n\": 3}", 200);
    int previews = 0;
    const char *final[3];
    for (int i = 0; i < 3; i++) {
        char path[32];
        snprintf(path, sizeof path, "data.%d.b64_json", i);
        final[i] = json_text(plain, path);
    }
    for (int partials = 0; partials <= 3; partials++) {
        char json[160];
        snprintf(json, sizeof json,
                 "{\"prompt\": \"7\", \"seed\": 5, \"n\": 3, \"stream\": true, \"partial_images\": %d, \"quality\": "
                 "\"low\"}",
                 partials);
        reply r = service_post(&s, PATH, json);
        assert_int_equal(r.code, 200);
        assert_string_equal(reply_header(&r, "Content-Type"), "text/event-stream");
        assert_has(r.body, "\"warnings\": [\"quality: has no effect\"]");
        const counts c = read_stream(r.body, partials, final);
        assert_int_equal(c.errors, 0);
        for (int i = 0; i < 3; i++) {
            assert_int_equal(c.completed[i], 1);
            assert_true(c.partials[i] <= partials); /* late ones are left out */
            previews += c.partials[i];
        }
        reply_free(&r);
    }
    assert_true(previews > 0);
    cJSON_Delete(plain);
}

/* A stream counts in /metrics when it ends, with all its seconds: at least those of its job. */
TEST_CASE(streams_count_with_their_seconds)
{
    static const char ok[] = "mar_requests_total{route=\"generations\",code=\"200\"}";
    const double requests = service_metric(&s, ok), before = service_metric(&s, "mar_request_seconds_sum"),
                 jobs_before = service_metric(&s, "mar_job_seconds_sum");
    reply r = service_post(&s, PATH, "{\"prompt\": \"7\", \"n\": 4, \"stream\": true}");
    assert_int_equal(r.code, 200);
    reply_free(&r);
    service_await_metric(&s, ok, requests + 1);
    assert_int_equal(service_metric(&s, ok), requests + 1);
    assert_true(service_metric(&s, "mar_request_seconds_sum") - before >=
                service_metric(&s, "mar_job_seconds_sum") - jobs_before);
}

/* What is refused is no stream. */
TEST_CASE(refuses_before_a_stream)
{
    reply r = service_post(&s, PATH, "{\"prompt\": \"77\", \"stream\": true}");
    assert_int_equal(r.code, 400);
    assert_string_equal(reply_header(&r, "Content-Type"), "application/json");
    reply_free(&r);
}

/* --- pages of other origins, and the log -------------------------------------------------------------------------- */

#define ORIGIN "https://app.example.com"

/* Returns the lines of the log so far. */
static size_t count_entries(const char *folder)
{
    size_t size, count = 0;
    char *log = read_whole_file(folder, "serve.err", &size);
    for (const char *at = log; (at = strstr(at, "{\"time\"")); at++) count++;
    free(log);
    return count;
}

/* Pages of --cors's origin may use the service, those of others may not. The log has each request, but no job's id. */
TEST_CASE(cors_and_the_access_log)
{
    static const struct {
        const char *method, *path, *headers, *body;
        int code;
        const char *route;
        int images;
    } cases[] = {
        {"OPTIONS", PATH,
         "Origin: " ORIGIN "\r\nAccess-Control-Request-Method: POST\r\n"
         "Access-Control-Request-Headers: X-Stainless-OS\r\n",
         NULL, 204, PATH, 0},
        {"OPTIONS", PATH, "Origin: https://other.example.com\r\n", NULL, 403, PATH, 0},
        {"OPTIONS", "/v2", "Origin: " ORIGIN "\r\n", NULL, 404, "*", 0},
        {"OPTIONS", PATH, "", NULL, 405, PATH, 0},
        {"POST", PATH, "Content-Type: application/json\r\nOrigin: " ORIGIN "\r\n", "{\"prompt\": \"7\", \"n\": 2}", 200,
         PATH, 2},
        {"POST", PATH, "Content-Type: application/json\r\nOrigin: " ORIGIN "\r\n", "{\"prompt\": \"77\"}", 400, PATH,
         0},
        {"POST", PATH, "Content-Type: application/json\r\nOrigin: " ORIGIN "\r\n",
         "{\"prompt\": \"7\", \"stream\": true}", 200, PATH, 1},
        {"POST", PATH, "Content-Type: application/json\r\nOrigin: http://app.example.com\r\n", "{\"prompt\": \"7\"}",
         403, PATH, 0},
        {"GET", "/v1/jobs/0123456789abcdef0123456789abcdef", "", NULL, 404, "/v1/jobs/*", 0},
        {"GET", "/health", "Origin: " ORIGIN "\r\n", NULL, 200, "/health", 0},
    };
    const char *own = test_directory();
    service_process logged = service_start(own, STEPS " --cors " ORIGIN " --access_log json");
    for (size_t i = 0; i < LENGTH(cases); i++) {
        const size_t size = cases[i].body ? strlen(cases[i].body) : 0;
        reply r = service_request(&logged, cases[i].method, cases[i].path, cases[i].headers, cases[i].body, size);
        if (r.code != cases[i].code) fail_msg("%zu: %d, %s", i, r.code, r.body);
        const char *allowed = reply_header(&r, "Access-Control-Allow-Origin");
        const int is_own = strstr(cases[i].headers, "Origin: " ORIGIN) != NULL;
        assert_string_equal(allowed, is_own ? ORIGIN : "");
        const char *methods = reply_header(&r, "Access-Control-Allow-Methods");
        assert_string_equal(methods, r.code == 204 ? "GET, POST" : "");
        assert_string_equal(reply_header(&r, "Access-Control-Allow-Headers"), r.code == 204 ? "X-Stainless-OS" : "");
        assert_string_equal(reply_header(&r, "Vary"), "Origin");
        reply_free(&r);
        for (int ms = 0; count_entries(own) <= i; ms++, usleep(1000)) /* a line may come after the answer */
            if (ms > 60000) fail_msg("%zu: no line in the log", i);
    }
    assert_int_equal(service_stop(&logged), 0);
    size_t size, seen = 0;
    char *log = read_whole_file(own, "serve.err", &size);
    assert_null(strstr(log, "0123456789abcdef"));
    for (char *line = strtok(log, "\n"); line; line = strtok(NULL, "\n")) {
        if (line[0] != '{') continue;
        cJSON *entry = cJSON_Parse(line);
        assert_non_null(entry);
        assert_true(seen < LENGTH(cases));
        assert_string_equal(json_text(entry, "method"), cases[seen].method);
        assert_string_equal(json_text(entry, "path"), cases[seen].route);
        assert_string_equal(json_text(entry, "client"), "127.0.0.1");
        assert_int_equal(json_number(entry, "status"), cases[seen].code);
        assert_int_equal(json_number(entry, "images"), cases[seen].images);
        seen++;
        cJSON_Delete(entry);
    }
    assert_int_equal(seen, LENGTH(cases));
    free(log);
    service_process any = service_start(test_directory(), STEPS " --cors *");
    static const char *const asked[] = {"", "Access-Control-Request-Headers:\r\n",
                                        "Access-Control-Request-Headers: a\"b\r\n"};
    for (size_t i = 0; i < LENGTH(asked); i++) { /* what cannot be repeated is not */
        char headers[160];
        snprintf(headers, sizeof headers, "Origin: http://a.b\r\n%s", asked[i]);
        reply preflight = service_request(&any, "OPTIONS", PATH, headers, NULL, 0);
        assert_int_equal(preflight.code, 204);
        assert_string_equal(reply_header(&preflight, "Access-Control-Allow-Headers"), "Authorization, Content-Type");
        reply_free(&preflight);
    }
    reply empty = service_request(&any, "GET", "/health", "Origin:\r\n", NULL, 0);
    assert_true(empty.code == 200 || empty.code == 403);
    reply_free(&empty);
    empty = service_request(&any, "DELETE", "/sdapi/v1/options", "", NULL, 0);
    assert_int_equal(empty.code, 405);
    assert_string_equal(reply_header(&empty, "Allow"), "GET, POST");
    reply_free(&empty);
    reply r = service_request(&any, "GET", "/v1/models", "Origin: http://a.b\r\n", NULL, 0);
    assert_int_equal(r.code, 200);
    assert_string_equal(reply_header(&r, "Access-Control-Allow-Origin"), "http://a.b");
    reply_free(&r);
    assert_int_equal(service_stop(&any), 0);
    command_refused(directory, "$MAR serve --port 0 --cors app.example.com",
                    "--cors app.example.com: expected an origin", "https://app.example.com");
}

/* --- forms -------------------------------------------------------------------------------------------------------- */

#define PART(name, text) "--xx\r\nContent-Disposition: form-data; name=" name "\r\n\r\n" text "\r\n"

/* A form has the same fields: this one is refused for its picture alone, after all others were read. */
TEST_CASE(forms)
{
    static const struct {
        const char *body, *part;
    } cases[] = {
        {PART("prompt", "3") PART("output_format", "jpeg") PART("stream", "true") PART("cfg_scale", "2")
             PART("sede", "1") PART("quality", "high") "--xx--\r\n",
         "image: is missing, expected a picture"},
        {PART("prompt", "3") PART("stream", "yes") "--xx--\r\n", "stream: is no boolean, expected true or false"},
        {PART("prompt", "3") PART("guidance_scale", "200") "--xx--\r\n", "guidance_scale: is out of range"},
        {PART("prompt", "3") PART("cfg", "2") PART("cfg_scale", "2") "--xx--\r\n", "cfg_scale: is also given as cfg"},
    };
    for (size_t i = 0; i < LENGTH(cases); i++) {
        reply r = service_request(&s, "POST", "/v1/images/edits", "Content-Type: multipart/form-data; boundary=xx\r\n",
                                  cases[i].body, strlen(cases[i].body));
        if (r.code != 400 || !strstr(r.body, cases[i].part)) fail_msg("%zu: %d, %s", i, r.code, r.body);
        reply_free(&r);
    }
}
