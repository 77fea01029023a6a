/* Attacks on the service by clients, in brief; MAR_ATTACK=N in the environment makes them N times as large. All on
 * 127.0.0.1. An honest client beside them is served within bounded time and memory. */
#include "tests/support/service.h"

#include "tests/support/test.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define JSON  "Content-Type: application/json\r\n"
#define OTHER "X-Forwarded-For: 10.0.0.1\r\n"
/* An image takes minutes. */
#define SLOW "--num_iter 64 --num_sampling_steps 1000 --threads 1 --dtype f32 --batch 1"

#ifdef __SANITIZE_ADDRESS__
enum { MEMORY_MB = 4000 }; /* it keeps freed memory */
#else
enum { MEMORY_MB = 300 }; /* the bodies' 256 and what else a request needs */
#endif

static const char generations[] = "/v1/images/generations";

static int scaled(int n)
{
    const char *scale = getenv("MAR_ATTACK");
    return scale ? n * atoi(scale) : n;
}

static double seconds_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Sends a POST of JSON. Returns the connection. */
static int begin(const service_process *s, const char *json, size_t size)
{
    char head[256];
    const int fd = service_connect(s);
    const int n =
        snprintf(head, sizeof head,
                 "POST %s HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n" JSON "Content-Length: %zu\r\n\r\n",
                 generations, size);
    if (service_send(fd, head, (size_t)n)) service_send(fd, json, size);
    return fd;
}

static double memory_peak_mb(const service_process *s)
{
    char path[64], line[256];
    long kb = 0;
    snprintf(path, sizeof path, "/proc/%d/status", (int)s->pid);
    FILE *f = fopen(path, "r");
    assert_non_null(f);
    while (fgets(line, sizeof line, f))
        if (sscanf(line, "VmHWM: %ld", &kb) == 1) break;
    fclose(f);
    return (double)kb / 1024;
}

static long long log_size(const char *directory)
{
    struct stat st;
    assert_int_equal(stat(path_in(directory, "serve.err"), &st), 0);
    return (long long)st.st_size;
}

/* Posts a request of another client, which must be answered within `limit_s`. Returns its seconds. */
static double serves_other(const service_process *s, const char *json, double limit_s)
{
    const double began = seconds_now();
    reply r = service_request(s, "POST", generations, JSON OTHER, json, strlen(json));
    const double seconds = seconds_now() - began;
    if (r.code != 200) fail_msg("%d: %s", r.code, r.body);
    if (seconds > limit_s) fail_msg("%g s, expected %g", seconds, limit_s);
    reply_free(&r);
    return seconds;
}

/* Prompts that are slow to encode, of clients that leave at once, are not encoded. */
TEST_WITH(prompts_sent_and_closed, command_setup, command_teardown)
{
    enum { PROMPT = 4080 };
    static char json[PROMPT + 64];
    const int count = scaled(60);
    service_process s = service_start(*state, "--model demo-t2i --timeout 300");
    size_t n = (size_t)sprintf(json, "{\"prompt\": \"");
    for (int i = 0; i < PROMPT; i++) json[n++] = "<a "[i % 3];
    n += (size_t)sprintf(json + n, "\"}");
    const double alone = serves_other(&s, "{\"prompt\": \"a bold seven\"}", 60);
    for (int i = 0; i < count; i++) close(begin(&s, json, n));
    const double beside = serves_other(&s, "{\"prompt\": \"a bold seven\"}", 60);
    const double encoded = service_metric(&s, "mar_prompts_total") - 2; /* less the two honest ones */
    const double began = seconds_now();
    assert_int_equal(service_stop(&s), 0);
    const double end = seconds_now() - began;
    print_message("%d prompts, %.0f of them encoded: alone %.3f s, beside %.3f s, end %.3f s\n", count, encoded, alone,
                  beside, end);
    assert_true(encoded < count);
    if (log_size(*state) > 2000) fail_msg("%lld bytes of messages", log_size(*state));
}

/* Returns the number of image requests that wait, are made or were refused for want of room. */
static int read_or_refused(const service_process *s)
{
    return (int)(service_metric(s, "mar_queue_images") + service_metric(s, "mar_batch_images") +
                 service_metric(s, "mar_requests_total{route=\"generations\",code=\"429\"}") +
                 service_metric(s, "mar_requests_total{route=\"generations\",code=\"503\"}"));
}

/* Bodies of half a million values are freed before their jobs wait. */
TEST_WITH(bodies_of_many_values, command_setup, command_teardown)
{
    enum { VALUES = 520000, CONNECTIONS = 2000 };
    static int fd[CONNECTIONS];
    const int count = scaled(60) < CONNECTIONS ? scaled(60) : CONNECTIONS;
    char *json = malloc(2 * VALUES + 64);
    service_process s = service_start(*state, SLOW " --queue 300");
    assert_non_null(json);
    size_t n = (size_t)sprintf(json, "{\"prompt\": \"1\", \"user\": [");
    for (int i = 0; i < VALUES; i++, n += 2) memcpy(json + n, "0,", 2);
    n += (size_t)sprintf(json + n, "0]}");
    const double before = memory_peak_mb(&s);
    for (int i = 0; i < count; i++) fd[i] = begin(&s, json, n);
    for (int ms = 0; read_or_refused(&s) < count; ms += 50, usleep(50000)) /* all bodies are read */
        if (ms > 240000) fail_msg("%d of %d bodies were read", read_or_refused(&s), count);
    reply job = service_request(&s, "POST", "/v1/jobs", JSON OTHER, "{\"prompt\": \"1\"}", 15);
    assert_int_equal(job.code, 202);
    reply_free(&job);
    const double grown = memory_peak_mb(&s) - before;
    print_message("%d bodies of %zu bytes: %.0f MB\n", count, n, grown);
    if (grown > MEMORY_MB) fail_msg("%.0f MB", grown);
    for (int i = 0; i < count; i++) close(fd[i]);
    kill(s.pid, SIGTERM);
    usleep(300000);
    kill(s.pid, SIGTERM);
    service_wait(&s);
    free(json);
}

/* Large bodies whose end never comes leave room for small ones. */
TEST_WITH(bodies_without_an_end, command_setup, command_teardown)
{
    enum { CONNECTIONS = 320 }; /* fewer than the service has, and more memory than all bodies may have */
    static char part[1 << 20];
    int fd[CONNECTIONS];
    service_process s = service_start(*state, "--num_iter 4 --num_sampling_steps 10 --timeout 300");
    const double before = memory_peak_mb(&s);
    memset(part, ' ', sizeof part);
    for (int i = 0; i < CONNECTIONS; i++) {
        static const char head[] =
            "POST /v1/images/generations HTTP/1.1\r\nHost: localhost\r\n" JSON "Content-Length: 1048576\r\n\r\n";
        fd[i] = service_connect(&s);
        service_send(fd[i], head, sizeof head - 1);
        service_send(fd[i], part, i < 150 ? sizeof part - 1 : i < 270 ? 20000 : 1000); /* smaller ones fill the gaps */
    }
    const double seconds = serves_other(&s, "{\"prompt\": \"1\"}", 60), grown = memory_peak_mb(&s) - before;
    print_message("%d bodies without an end: another client waited %.3f s, %.0f MB\n", (int)CONNECTIONS, seconds,
                  grown);
    assert_true(grown < MEMORY_MB);
    for (int i = 0; i < CONNECTIONS; i++) close(fd[i]);
    assert_int_equal(service_stop(&s), 0);
}

/* Returns a connection with a stream that is not read: its last event, with a long prompt, is more than a system keeps
 * for segments and a receiver this small. */
static int begin_unread_stream(const service_process *s)
{
    enum { PROMPT = 60000, SEGMENT = 536, RECEIVER = 4096 };
    static char json[6 * PROMPT + 128], request[sizeof json + 256];
    const int segment = SEGMENT, receiver = RECEIVER, fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    const struct sockaddr_in a = {
        .sin_family = AF_INET, .sin_port = htons((uint16_t)s->port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    assert_int_equal(setsockopt(fd, IPPROTO_TCP, TCP_MAXSEG, &segment, sizeof segment), 0);
    assert_int_equal(setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &receiver, sizeof receiver), 0);
    assert_int_equal(connect(fd, (const struct sockaddr *)&a, sizeof a), 0);
    size_t n = (size_t)sprintf(json, "{\"stream\": true, \"prompt\": \"seven");
    for (int i = 0; i < PROMPT; i++) n += (size_t)sprintf(json + n, "\\u0001");
    n += (size_t)sprintf(json + n, "\"}");
    const int size = sprintf(request, "POST %s HTTP/1.1\r\nHost: localhost\r\n" JSON "Content-Length: %zu\r\n\r\n%s",
                             generations, n, json);
    assert_int_equal(service_send(fd, request, (size_t)size), 1);
    return fd;
}

/* A client that does not read the end of its stream makes room for others. */
TEST_WITH(streams_that_are_not_read, command_setup, command_teardown)
{
    enum { CONNECTIONS = 400 }; /* more than the service has */
    static int fd[CONNECTIONS];
    int count = 0;
    service_process s = service_start(*state, "--model demo-t2i --clean off --queue 10 --batch 1 --timeout 300");
    const int stream = begin_unread_stream(&s);
    service_await_metric(&s, "mar_images_total{end=\"done\"}", 1);
    while (service_metric(&s, "mar_requests_total{route=\"generations\",code=\"499\"}") == 0) {
        if (count == CONNECTIONS) fail_msg("the stream was not closed");
        fd[count++] = service_connect(&s);
    }
    print_message("closed at connection %d\n", count);
    assert_true(count > 200); /* not before there were too many */
    for (int i = 0; i < count; i++) close(fd[i]);
    close(stream);
    assert_int_equal(service_stop(&s), 0);
}

/* A client that asks for all it can get keeps nobody out. */
TEST_WITH(jobs_of_ten, command_setup, command_teardown)
{
    const int count = scaled(27);
    int accepted = 0;
    service_process s = service_start(*state, "--num_iter 8 --num_sampling_steps 10 --batch 4 --timeout 300");
    for (int i = 0; i < count; i++) {
        reply r = service_post(&s, "/v1/jobs", "{\"prompt\": \"1\", \"n\": 10}");
        accepted += r.code == 202;
        assert_true(r.code == 202 || r.code == 429);
        reply_free(&r);
    }
    const double seconds = serves_other(&s, "{\"prompt\": \"2\"}", 60);
    const double waiting = service_metric(&s, "mar_queue_images");
    print_message("%d jobs of ten, %d accepted: another client waited %.3f s, %.0f images wait\n", count, accepted,
                  seconds, waiting);
    assert_true(accepted >= 10 && accepted < count);
    assert_true(waiting > 0);              /* it did not wait for all others */
    assert_int_equal(service_stop(&s), 0); /* all accepted work is made */
}

/* Bad requests and prompts that are cut add a bounded number of lines. */
TEST_WITH(floods_of_messages, command_setup, command_teardown)
{
    static char json[4096];
    static const struct {
        const char *method, *path, *headers, *body;
    } bad[] = {
        {"POST", "/v1/images/generations", JSON, "{"},
        {"POST", "/v1/images/generations", JSON, "{\"prompt\": \"\"}"},
        {"POST", "/v1/images/generations", "Content-Type: multipart/form-data; boundary=;\r\n", "x"},
        {"POST", "/v1/images/edits", "Content-Type: multipart/form-data; boundary=xx\r\n", "--xx\r\n\r\n\x01"},
        {"PUT", "/v1/jobs", JSON, "{}"},
        {"GET", "/\x1b[2J", "", NULL},
    };
    const int count = scaled(100);
    service_process s = service_start(*state, "--model demo-t2i --timeout 300");
    size_t n = (size_t)sprintf(json, "{\"prompt\": \"");
    for (int i = 0; i < 600; i++) n += (size_t)sprintf(json + n, "seven ");
    sprintf(json + n, "\"}");
    for (int i = 0; i < count; i++) {
        reply r = service_post(&s, "/v1/jobs", json);
        assert_true(r.code == 202 || r.code == 429);
        reply_free(&r);
        for (size_t k = 0; k < LENGTH(bad); k++) {
            r = service_request(&s, bad[k].method, bad[k].path, bad[k].headers, bad[k].body,
                                bad[k].body ? strlen(bad[k].body) : 0);
            if (r.code >= 500) fail_msg("%s %s: %d", bad[k].method, bad[k].path, r.code);
            reply_free(&r);
        }
    }
    assert_int_equal(service_stop(&s), 0);
    size_t size;
    char *errors = read_whole_file(*state, "serve.err", &size);
    print_message("%d rounds: %zu bytes of messages\n", count, size);
    if (size > 1000) fail_msg("%zu bytes: %.2000s", size, errors);
    assert_has(errors, "mar: warning: prompt \"seven ");
    assert_has(errors, "more prompts cut");
    free(errors);
}

/* SIGTERM under load: everything accepted is made, and its pictures are there to fetch; then the service ends. */
TEST_WITH(end_under_load, command_setup, command_teardown)
{
    enum { JOBS = 8 };
    char path[JOBS][128];
    service_process s =
        service_start(*state, "--num_iter 8 --num_sampling_steps 10 --batch 4 --timeout 300 --grace 3600");
    for (int i = 0; i < JOBS; i++) {
        reply r = service_post(&s, "/v1/jobs", "{\"prompt\": \"1\"}");
        assert_int_equal(r.code, 202);
        cJSON *json = cJSON_Parse(r.body);
        snprintf(path[i], sizeof path[i], "/v1/jobs/%s", json_text(json, "id"));
        cJSON_Delete(json);
        reply_free(&r);
    }
    const double began = seconds_now();
    kill(s.pid, SIGTERM);
    for (int i = 0; i < JOBS; i++) {
        char picture[160];
        reply r = service_get(&s, path[i]);
        for (; !strstr(r.body, "\"status\": \"done\""); usleep(10000)) { /* polled to its end */
            if (r.code != 200 || seconds_now() - began > 120) fail_msg("%d: %s", r.code, r.body);
            reply_free(&r);
            r = service_get(&s, path[i]);
        }
        reply_free(&r);
        snprintf(picture, sizeof picture, "%s/images/0.png", path[i]);
        for (int tries = 0;; tries++) { /* image 0 may be done before the job's state is read */
            r = service_get(&s, picture);
            if (r.code == 200) break;
            if (tries > 1000) fail_msg("%d: %s", r.code, r.body);
            reply_free(&r);
            usleep(10000);
        }
        reply_free(&r);
    }
    assert_int_equal(service_wait(&s), 0);
    print_message("%d jobs: ended %.3f s after SIGTERM\n", (int)JOBS, seconds_now() - began);
}
