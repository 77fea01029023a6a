/* Requests of `mar serve` as other programs write them: forms (RFC 7578), compressed and empty bodies, and links behind
 * a proxy. */
#include "tests/support/service.h"

#include "tests/support/test.h"

#include <stdio.h>
#include <string.h>

#define QUICK                   "--num_iter 2 --num_sampling_steps 2"
#define PART(disposition, text) "--xx\r\nContent-Disposition: " disposition "\r\n\r\n" text "\r\n"
#define LAST                    "--xx--\r\n"

static char *directory;
static service_process s;

static int set_up(void **state)
{
    if (command_setup(state) != 0) return 1;
    directory = *state;
    s = service_start(directory, QUICK " --batch 4 --timeout 300 --strict");
    return 0;
}

static int tear_down(void **state)
{
    assert_int_equal(service_stop(&s), 0);
    return command_teardown(state);
}

TEST_GROUP(set_up, tear_down)

static reply post_form(const char *type, const char *body, size_t size)
{
    char headers[256];
    snprintf(headers, sizeof headers, "Content-Type: %s\r\n", type);
    return service_request(&s, "POST", "/v1/jobs", headers, body, size);
}

/* Checks that a form without a picture is refused for that alone: all other fields were read, and `class` is theirs. */
static void assert_read(const char *type, const char *body)
{
    reply r = post_form(type, body, strlen(body));
    if (r.code != 400 || !strstr(r.body, "image: is missing, expected a picture"))
        fail_msg("%s: %d, %s", body, r.code, r.body);
    reply_free(&r);
}

static void assert_refused(const char *type, const char *body, size_t size, int code, const char *part)
{
    reply r = post_form(type, body, size);
    if (r.code != code || !strstr(r.body, part))
        fail_msg("%s %s: %d, %s, expected %s", type, body, r.code, r.body, part);
    reply_free(&r);
}

static const char plain[] = "multipart/form-data; boundary=xx";

/* Names as .NET's HttpClient, browsers, curl and others write them. */
TEST_CASE(reads_forms)
{
    static const char *const forms[] = {
        PART("form-data; name=\"prompt\"", "3") LAST,
        PART("form-data; name=prompt", "3") LAST,
        PART("form-data; name=prompt; filename=a.txt; filename*=utf-8''a.txt", "3") LAST,
        PART("form-data; filename=\"a; name=\\\"n\\\"\"; name=prompt", "3") LAST,
        PART("FORM-DATA;NAME=\"prompt\";", "3") LAST,
        PART("form-data; name*=UTF-8''prom%70t", "3") LAST,
        PART("form-data; name=\"pro\\mpt\"", "3") LAST,
        "preamble\r\n" PART("form-data; name=prompt", "3") "--xx-- epilogue",
        "--xx \t\r\nContent-Type: text/plain; charset=utf-8\r\ncontent-disposition: form-data; "
        "name=prompt\r\n\r\n3\r\n" LAST,
        "--xx\r\nContent-Disposition: form-data; name=prompt\r\nContent-Transfer-Encoding: Binary\r\n\r\n3\r\n" LAST,
        "--xx\r\nContent-Disposition: form-data; name=prompt\r\nContent-Type: text/plain; "
        "charset=US-ASCII\r\n\r\n3\r\n" LAST,
        PART("form-data; name=prompt", "3") PART("form-data; name=n", "2") PART("form-data; name=user", "") LAST,
    };
    for (size_t i = 0; i < LENGTH(forms); i++) assert_read(plain, forms[i]);
    assert_read("multipart/form-data; boundary=\"xx\"", forms[0]);
    assert_read("multipart/form-data; charset=utf-8; Boundary=\"x\\x\"", forms[0]);
}

/* A form that is not understood is refused, with what is wrong and the part's number or the field's name. */
TEST_CASE(refuses_forms)
{
    static const struct {
        const char *body, *part;
    } cases[] = {
        {PART("form-data; name=prompt", "10") LAST, "class 10: out of range"},
        {PART("form-data; name=promt", "3") LAST, "promt: is no field of a request, did you mean prompt?"},
        {PART("form-data; name=\"num_iter\"", "3") LAST, "num_iter: is no field of a request, expected prompt, n"},
        {PART("form-data; name=prompt", "3") PART("form-data; name=prompt", "4") LAST,
         "prompt: is given more than once"},
        {PART("form-data; name=prompt", "") PART("form-data; name=prompt", "4") LAST,
         "prompt: is given more than once"},
        {PART("form-data; name=pro mpt", "3") LAST, "part 1 of the form: its Content-Disposition cannot be read"},
        {PART("form-data; name=prompt; filename=my photo.png", "3") LAST,
         "part 1 of the form: its filename cannot be read, expected filename="},
        {PART("form-data; name=prompt; filename=\"C:\\dir\\\"", "3") LAST,
         "part 1 of the form: its filename cannot be read, expected filename="},
        {"--xx\r\nContent-Disposition: form-data; name=prompt\r\nContent-Type: text/plain; "
         "charset=\"UTF-16\"\r\n\r\n3\r\n" LAST,
         "part 1 of the form: has the charset UTF-16, expected utf-8"},
        {"--xx\r\nContent-Disposition: form-data; name=prompt\r\nContent-Type: text/plain; charset\r\n\r\n3\r\n" LAST,
         "part 1 of the form: its Content-Type cannot be read"},
        {PART("form-data; name=\"prompt", "3") LAST, "part 1 of the form: its Content-Disposition cannot be read"},
        {PART("form-data; name=prompt; name=n", "3") LAST, "part 1 of the form: has two names"},
        {PART("form-data; name*=latin1''prompt", "3") LAST, "part 1 of the form: its name* is not UTF-8''"},
        {PART("form-data; name*=UTF-8''prompt%00", "3") LAST, "part 1 of the form: its name* is not UTF-8''"},
        {PART("form-data", "3") LAST, "part 1 of the form: its Content-Disposition has no name"},
        {PART("attachment; name=prompt", "3") LAST, "part 1 of the form: its Content-Disposition is of another kind"},
        {PART("form-data; name=n", "1") PART("form-data; name=prompt;\r\n filename=a", "3") LAST,
         "part 2 of the form: continues a header on a second line"},
        {"--xx\r\nContent-Type: text/plain\r\n\r\n3\r\n" LAST, "part 1 of the form: has no Content-Disposition"},
        {"--xx\r\nContent-Disposition: form-data; name=prompt\r\nContent-Transfer-Encoding: "
         "base64\r\n\r\nMw==\r\n" LAST,
         "part 1 of the form: has another Content-Transfer-Encoding"},
        {PART("form-data; name=prompt", "3") "--xx\r\nContent-", "part 2 of the form: ends within its headers"},
        {"--xx\r\nContent-Disposition: form-data; name=prompt\r\n\r\n3",
         "part 1 of the form: has no boundary behind it"},
        {"--xy\r\n", "the body is no form with the boundary of its Content-Type"},
        {"--xx", "the body is no form with the boundary of its Content-Type"},
        {"", "the body is empty, expected a form"},
    };
    for (size_t i = 0; i < LENGTH(cases); i++)
        assert_refused(plain, cases[i].body, strlen(cases[i].body), 400, cases[i].part);
    static const char nul[] = "--xx\r\nContent-Disposition: form-data; name=prompt\0\r\n\r\n3\r\n" LAST;
    assert_refused(plain, nul, sizeof nul - 1, 400, "part 1 of the form: its headers have a NUL");
    static const char *const types[] = {
        "multipart/form-data",
        "multipart/form-data; boundary=",
        "multipart/form-data; boundary=;",
        "multipart/form-data; boundary",
        "multipart/form-data; boundary=\"xx",
        "multipart/form-data; xboundary=xx",
        "multipart/form-data; boundary=xx; boundary=yy",
        "multipart/form-data; boundary=\"x<x\"",
        "multipart/form-data; boundary=0123456789012345678901234567890123456789012345678901234567890123456789x"};
    for (size_t i = 0; i < LENGTH(types); i++)
        assert_refused(types[i], cases[0].body, strlen(cases[0].body), 400, "Content-Type: has no valid boundary");
}

/* Compressed and empty bodies are called that. */
TEST_CASE(refuses_compressed_and_empty_bodies)
{
    static const char gzip[] = "\x1f\x8b\x08\0\0\0\0\0\0\x03\xabV*(\xca\xcf-(Q\xb2RP2T\xaa\x05\0\0\0\0\0",
                      json[] = "Content-Type: application/json\r\n";
    reply r = service_request(&s, "POST", "/v1/images/generations", json, gzip, sizeof gzip - 1);
    assert_int_equal(r.code, 415);
    assert_non_null(strstr(r.body, "the body is compressed by gzip, expected one that is not compressed"));
    reply_free(&r);
    char headers[128];
    snprintf(headers, sizeof headers, "%sContent-Encoding: gzip\r\n", json);
    r = service_request(&s, "POST", "/v1/images/generations", headers, gzip, sizeof gzip - 1);
    assert_int_equal(r.code, 415);
    assert_non_null(strstr(r.body, "Content-Encoding: is gzip, expected a body that is not compressed"));
    reply_free(&r);
    snprintf(headers, sizeof headers, "%sContent-Encoding: identity\r\n", json);
    r = service_request(&s, "POST", "/v1/images/generations", headers, "{\"prompt\": \"1\"}", 15);
    assert_int_equal(r.code, 200);
    reply_free(&r);
    r = service_request(&s, "POST", "/v1/images/generations", json, NULL, 0);
    assert_int_equal(r.code, 400);
    assert_non_null(strstr(r.body, "the body is empty, expected {\\\"prompt\\\": ...}"));
    reply_free(&r);
}

/* Returns the address before the path in the link to a picture that a request with these headers gets. */
static void assert_link(const service_process *service, const char *headers, const char *base)
{
    static const char json[] = "{\"prompt\": \"1\", \"response_format\": \"url\"}";
    char all[512], expected[300];
    snprintf(all, sizeof all, "Content-Type: application/json\r\n%s", headers);
    reply r = service_request(service, "POST", "/v1/images/generations", all, json, sizeof json - 1);
    if (r.code != 200) fail_msg("%s: %d, %s", headers, r.code, r.body);
    snprintf(expected, sizeof expected, "\"url\": \"%s/v1/jobs/", base);
    if (!strstr(r.body, expected)) fail_msg("%s: %s, expected %s", headers, r.body, expected);
    reply_free(&r);
}

/* Links have the address under which the client has reached the service. */
TEST_CASE(links_follow_the_proxy)
{
    char own[64], secure[64];
    snprintf(own, sizeof own, "http://127.0.0.1:%d", s.port);
    snprintf(secure, sizeof secure, "https://127.0.0.1:%d", s.port);
    assert_link(&s, "", own);
    assert_link(&s, "X-Forwarded-Proto: https\r\n", secure);
    assert_link(&s, "X-Forwarded-Proto: HTTPS , http\r\nX-Forwarded-Host: a.example.com:444, b\r\n",
                "https://a.example.com:444");
    assert_link(&s, "X-Forwarded-Host: [::1]:8443\r\n", "http://[::1]:8443");
    assert_link(&s, "Forwarded: for=192.0.2.1;proto=https;host=\"a.example.com\", for=10.0.0.1;host=b\r\n",
                "https://a.example.com");
    static const char *const invalid[] = {
        "X-Forwarded-Host: a\"b\r\n",     "X-Forwarded-Host: a/b\r\n",  "X-Forwarded-Host: a@b\r\n",
        "X-Forwarded-Host: \r\n",         "X-Forwarded-Host: a:b\r\n",  "X-Forwarded-Host: :80\r\n",
        "X-Forwarded-Host: a:123456\r\n", "X-Forwarded-Host: [::1\r\n", "X-Forwarded-Proto: javascript\r\n",
        "X-Forwarded-Proto: htt\r\n",     "Forwarded: host\r\n",        "Forwarded: \r\n",
        "Forwarded: host=\"evil.com\r\n"};
    for (size_t i = 0; i < LENGTH(invalid); i++) assert_link(&s, invalid[i], own);
}

/* --public_url wins over a proxy's headers, and its host may use the service. */
TEST_CASE(public_url)
{
    static const char *const invalid[] = {"images.example.com",      "ftp://a",       "http://",   "https://a b",
                                          "https://a.example.com?b", "https://a/\"b", "https:///a"};
    char line[128], named[160];
    for (size_t i = 0; i < LENGTH(invalid); i++) {
        snprintf(line, sizeof line, "$MAR serve --port 0 --public_url '%s'", invalid[i]);
        snprintf(named, sizeof named, "--public_url %s: expected an address such as https://", invalid[i]);
        command_refused(directory, line, named, "without ? and #");
    }
    service_process public = service_start(directory, QUICK " --public_url https://images.example.com/mar/");
    assert_link(&public, "X-Forwarded-Proto: http\r\nX-Forwarded-Host: a\r\n", "https://images.example.com/mar");
    static const char request[] =
        "GET /health HTTP/1.1\r\nHost: images.example.com\r\nOrigin: https://images.example.com\r\n"
        "Connection: close\r\n\r\n";
    const int fd = service_connect(&public);
    service_send(fd, request, sizeof request - 1);
    reply r = service_read(fd);
    assert_int_equal(r.code, 200);
    reply_free(&r);
    r = service_post(&public, "/v1/jobs", "{\"prompt\": \"1\"}");
    cJSON *job = cJSON_Parse(r.body);
    char path[128];
    snprintf(path, sizeof path, "/v1/jobs/%s/events", json_text(job, "id"));
    cJSON_Delete(job);
    reply_free(&r);
    r = service_get(&public, path);
    assert_non_null(strstr(r.body, "\"url\": \"https://images.example.com/mar/v1/jobs/"));
    reply_free(&r);
    assert_int_equal(service_stop(&public), 0);
}
