/* Every allocation for a request fails once: those of its connection's thread, libpng's and libmicrohttpd's among them.
 * The client gets an answer of 503 or none, the service goes on, and no block is left. Skipped under the sanitizers
 * (failing_allocations.h). */
#include "tests/support/service.h"

#include "tests/support/test.h"
#include "tools/cli/base64.h"
#include "tools/cli/subcommands.h"
#include "tools/serve/exchange.h"

#define EVERY_ALLOCATION_COUNTS
#include "tests/support/failing_allocations.h"

#include <fcntl.h>
#include <png.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#ifndef HAS_SANITIZER

/* What the test and the service, its child, tell each other. */
static struct {
    _Atomic long plan;     /* allocation of the next request that fails; -1: none */
    _Atomic long failed;   /* requests in which one failed */
    _Atomic long blocks;   /* held after the last request */
    _Atomic long requests; /* ended */
} * shared;

exchange *__real_exchange_new(service *s, struct MHD_Connection *connection);
void __real_exchange_free(exchange *x);
exchange *__wrap_exchange_new(service *s, struct MHD_Connection *connection);
void __wrap_exchange_free(exchange *x);

static void end_request(void)
{
    until_failure = -1;
    if (failures > 0) shared->failed++;
    failures = 0;
    shared->blocks = __atomic_load_n(&held, __ATOMIC_RELAXED);
    shared->requests++;
}

exchange *__wrap_exchange_new(service *s, struct MHD_Connection *connection)
{
    until_failure = atomic_exchange(&shared->plan, -1);
    exchange *x = __real_exchange_new(s, connection);
    if (!x) end_request();
    return x;
}

void __wrap_exchange_free(exchange *x)
{
    __real_exchange_free(x);
    end_request();
}

static service_process s;

/* Starts the service in a child, where the failures are planned. */
static void start(void)
{
    char name[] = "serve", port[] = "--port", zero[] = "0", iterations[] = "--num_iter", two[] = "2",
         steps[] = "--num_sampling_steps", four[] = "4", quiet[] = "--quiet", grace[] = "--grace", none[] = "0",
         line[64];
    char *argv[] = {name, port, zero, iterations, two, steps, four, quiet, grace, none, NULL};
    int ends[2];
    assert_int_equal(pipe2(ends, O_CLOEXEC), 0);
    s.pid = fork();
    if (s.pid == 0) {
        dup2(ends[1], STDOUT_FILENO);
        if (!freopen("/dev/null", "w", stderr)) _exit(99); /* "out of memory" for each picture */
        exit(cmd_serve(10, argv));
    }
    close(ends[1]);
    FILE *out = fdopen(ends[0], "r");
    assert_true(fgets(line, sizeof line, out) && sscanf(line, "http://127.0.0.1:%d", &s.port) == 1);
    fclose(out);
}

/* Waits for the end of a request in the service, which may come after its answer. */
static void await_end(long before)
{
    for (int ms = 0; shared->requests == before; ms++) {
        if (ms > 300000) fail_msg("a request never ended");
        usleep(1000);
    }
}

typedef struct {
    const char *method, *path, *headers, *body;
    int code;
    size_t size; /* of the body; 0: it is text */
} kind;

static int run(const kind *k, long plan)
{
    const long before = shared->requests;
    shared->plan = plan;
    reply r = service_request(&s, k->method, k->path, k->headers, k->body,
                              k->size   ? k->size
                              : k->body ? strlen(k->body)
                                        : 0);
    await_end(before);
    const int code = r.code;
    reply_free(&r);
    return code;
}

static void fails_anywhere(const kind *k)
{
    assert_int_equal(run(k, -1), k->code);
    long failed;
    int refused = 0;
    for (long plan = 0;; plan++) {
        failed = shared->failed;
        const int code = run(k, plan);
        if (shared->failed == failed) break; /* it has no more allocations */
        if (code != k->code && code != 503 && code != 0) fail_msg("%s, allocation %ld: %d", k->path, plan, code);
        refused += code != k->code;
    }
    assert_true(refused > 0);
    assert_int_equal(run(k, -1), k->code);
}

/* Writes a PNG of 32x32 pixels, half of it transparent. Returns its size. */
static size_t make_png(char *png, size_t room)
{
    enum { SIDE = 32 };
    static uint8_t rgba[SIDE][SIDE][4];
    png_image picture = {.version = PNG_IMAGE_VERSION, .width = SIDE, .height = SIDE, .format = PNG_FORMAT_RGBA};
    png_alloc_size_t size = room;
    for (int y = 0; y < SIDE; y++)
        for (int x = 0; x < SIDE; x++) rgba[y][x][3] = y < SIDE / 2 ? 255 : 0;
    assert_true(png_image_write_to_memory(&picture, png, &size, 0, rgba, 0, NULL));
    return size;
}

/* Writes JSON of img2img with that picture, which is its own mask. Returns its size. */
static size_t make_json(char body[8192])
{
    char png[1024], text[2048];
    base64_write(png, make_png(png, sizeof png), text);
    return (size_t)snprintf(
        body, 8192, "{\"prompt\": \"1\", \"mask_blur\": 4, \"init_images\": [\"%s\"], \"mask\": \"%s\"}", text, text);
}

/* Writes a form with that picture. Returns its size. */
static size_t make_form(char form[8192])
{
    static const char end[] = "\r\n--xx--\r\n";
    size_t size =
        (size_t)snprintf(form, 8192,
                         "--xx\r\nContent-Disposition: form-data; name=\"prompt\"\r\n\r\n1\r\n"
                         "--xx\r\nContent-Disposition: form-data; name=\"response_format\"\r\n\r\nb64_json\r\n"
                         "--xx\r\nContent-Disposition: form-data; name=\"image\"; filename=\"a\"\r\n\r\n");
    size += make_png(form + size, 8192 - size - sizeof end);
    memcpy(form + size, end, sizeof end);
    return size + sizeof end - 1;
}

#define JSON "Content-Type: application/json\r\n"
#define FORM "Content-Type: multipart/form-data; boundary=xx\r\n"

TEST_CASE(answers_or_refuses)
{
    static char form[8192], body[8192];
    const kind kinds[] = {
        {"GET", "/health", "", NULL, 200},
        {"GET", "/v1/models", "", NULL, 200},
        {"GET", "/metrics", "", NULL, 200},
        {"GET", "/nothing", "", NULL, 404},
        {"POST", "/v1/images/generations", JSON, "{\"prompt\": \"x\"}", 400},
        {"POST", "/v1/images/generations", JSON, "{\"prompt\": \"1\", \"n\": 2, \"output_format\": \"jpeg\"}", 200},
        {"POST", "/v1/images/generations", JSON,
         "{\"prompt\": \"1\", \"stream\": true, \"partial_images\": 1, \"user\": \"x\", \"sede\": 1}", 200},
        {"POST", "/v1/images/edits", FORM, "--xx\r\nContent-Disposition: form-data; name=\"n\"\r\n\r\n1\r\n--xx--\r\n",
         400},
        {"POST", "/v1/images/edits", FORM, form, 200, make_form(form)},
        {"POST", "/sdapi/v1/img2img", JSON, body, 200, make_json(body)},
    };
    shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_true(shared != MAP_FAILED);
    shared->plan = -1;
    start();
    for (size_t i = 0; i < LENGTH(kinds); i++) run(&kinds[i], -1);
    const long before = shared->blocks;
    for (size_t i = 0; i < LENGTH(kinds); i++) fails_anywhere(&kinds[i]);
    run(&kinds[0], -1);
    if (shared->blocks > before + 8) fail_msg("%ld blocks, %ld before", shared->blocks, before);

    reply r = service_post(&s, "/v1/jobs", "{\"prompt\": \"1\"}");
    cJSON *made = cJSON_Parse(r.body);
    char path[128];
    const kind new_job = {"POST", "/v1/jobs", JSON, "{\"prompt\": \"1\"}", 202}, events = {"GET", path, "", NULL, 200};
    fails_anywhere(&new_job);
    snprintf(path, sizeof path, "/v1/jobs/%s/events", json_text(made, "id"));
    fails_anywhere(&events);
    snprintf(path, sizeof path, "/v1/jobs/%s/images/0.png", json_text(made, "id"));
    fails_anywhere(&events);
    cJSON_Delete(made);
    reply_free(&r);
    assert_int_equal(service_stop(&s), 0);
}

#endif
