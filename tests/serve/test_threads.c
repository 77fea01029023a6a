/* Clients on many threads at once: answers, jobs with events and previews, and clients that leave. Nothing is lost, and
 * nothing is left. Under ThreadSanitizer this is the test of the service's own threads. */
#include "tests/support/service.h"

#include "tests/support/test.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { CLIENTS = 12, ROUNDS = 3 };

static service_process s;

/* Makes an image and waits for it. */
static void generate(int seed)
{
    char body[128], expected[64];
    snprintf(body, sizeof body, "{\"prompt\": \"%d\", \"seed\": %d, \"response_format\": \"b64_json\"}", seed % 10,
             seed);
    snprintf(expected, sizeof expected, "\"seed\": %d, \"image\": 0", seed);
    reply r = service_post(&s, "/v1/images/generations", body);
    assert_int_equal(r.code, 200);
    assert_has(r.body, expected);
    reply_free(&r);
}

/* Asks for images and leaves. */
static void leave(int seed)
{
    char text[512];
    const int fd = service_connect(&s);
    const int n =
        snprintf(text, sizeof text,
                 "POST /v1/images/generations HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                 "Content-Length: 23\r\n\r\n{\"prompt\": \"%d\", \"n\": 3}",
                 seed % 10);
    service_send(fd, text, (size_t)n);
    if (seed % 2) usleep(20000);
    close(fd);
}

/* Starts a job and looks at all it has. */
static void watch(int seed)
{
    char body[128], path[128];
    snprintf(body, sizeof body, "{\"prompt\": \"%d\", \"n\": 2}", seed % 10);
    reply r = service_post(&s, "/v1/jobs", body);
    assert_int_equal(r.code, 202);
    cJSON *json = cJSON_Parse(r.body);
    const char *id = json_text(json, "id");
    snprintf(path, sizeof path, "/v1/jobs/%s/previews/0.png", id);
    reply preview = service_get(&s, path);
    assert_true(preview.code == 200 || preview.code == 404); /* 404: it waits */
    reply_free(&preview);
    if (seed % 3 == 0) {
        snprintf(path, sizeof path, "/v1/jobs/%s/cancel", id);
        reply cancelled = service_request(&s, "POST", path, "", "", 0);
        assert_int_equal(cancelled.code, 200);
        reply_free(&cancelled);
    }
    snprintf(path, sizeof path, "/v1/jobs/%s/events", id);
    reply events = service_get(&s, path);
    assert_int_equal(events.code, 200);
    assert_true(strstr(events.body, "event: done") || (seed % 3 == 0 && strstr(events.body, "event: cancelled")));
    reply_free(&events);
    snprintf(path, sizeof path, "/v1/jobs/%s/images/1.png", id);
    reply picture = service_get(&s, path);
    assert_true(picture.code == 200 || seed % 3 == 0);
    reply_free(&picture);
    cJSON_Delete(json);
    reply_free(&r);
}

static void *work(void *number)
{
    const int client = *(const int *)number;
    for (int round = 0; round < ROUNDS; round++) {
        const int seed = client * ROUNDS + round;
        if (client % 4 == 0)
            leave(seed);
        else if (client % 4 == 1)
            watch(seed);
        else
            generate(seed);
    }
    service_metric(&s, "mar_steps_total");
    return NULL;
}

static void serve_many(const char *directory, const char *options)
{
    pthread_t threads[CLIENTS];
    int numbers[CLIENTS];
    s = service_start(directory, options);
    reply first = service_get(&s, "/health");
    reply_free(&first);
    const int before = service_descriptors(&s);
    for (int i = 0; i < CLIENTS; i++) {
        numbers[i] = i;
        assert_int_equal(pthread_create(&threads[i], NULL, work, &numbers[i]), 0);
    }
    for (int i = 0; i < CLIENTS; i++) pthread_join(threads[i], NULL);
    /* Generations: all done. Leavers and watchers: their images end, too. */
    service_await_metric(&s, "mar_images_total{end=\"done\"}", CLIENTS / 2 * ROUNDS);
    for (int ms = 0;; ms += 10) {
        const double left = service_metric(&s, "mar_queue_images") + service_metric(&s, "mar_batch_images");
        if (left == 0 && service_descriptors(&s) <= before) break;
        if (ms > 300000) fail_msg("%g images and %d descriptors are left", left, service_descriptors(&s));
        usleep(10000);
    }
    char *path = strdup(s.errors);
    const int status = service_stop(&s);
    char *errors = read_whole_file(directory, strrchr(path, '/') + 1, NULL);
    if (status != 0) fail_msg("exit status %d: %s", status, errors);
    free(errors);
    free(path);
}

TEST_WITH(serves_many_at_once, command_setup, command_teardown)
{
    serve_many(*state, "--num_iter 4 --num_sampling_steps 10 --batch 4 --timeout 300");
}

/* A thread encodes prompts, too. */
TEST_WITH(serves_many_prompts_at_once, command_setup, command_teardown)
{
    serve_many(*state, "--model demo-t2i --batch 4 --timeout 300");
}
