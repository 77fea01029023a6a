#include "tests/support/service.h"

#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

enum { WORDS = 64, WAIT_S = 300 };

/* --- the process -------------------------------------------------------------------------------------------------- */

service_process service_start(const char *directory, const char *arguments)
{
    service_process s = {.pid = -1};
    char line[256] = "", *words[WORDS] = {NULL}, *copy = NULL, port[] = "--port", zero[] = "0", serve[] = "serve",
         grace[] = "--grace", command[] = "mar";
    int ends[2], count = 0;
    assert_true(asprintf(&copy, "%s", arguments) >= 0 && asprintf(&s.errors, "%s/serve.err", directory) >= 0);
    words[count++] = command;
    words[count++] = serve;
    words[count++] = port;
    words[count++] = zero;
    if (!strstr(arguments, "--grace")) { /* else it stays up for links that no test opens */
        words[count++] = grace;
        words[count++] = zero;
    }
    for (char *word = strtok(copy, " "); word && count < WORDS - 1; word = strtok(NULL, " ")) words[count++] = word;
    assert_int_equal(pipe2(ends, O_CLOEXEC), 0);
    s.pid = fork();
    assert_true(s.pid >= 0);
    if (s.pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL); /* a test that fails leaves no service */
        dup2(ends[1], STDOUT_FILENO);
        dup2(open(s.errors, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600), STDERR_FILENO);
        if (chdir(directory) == 0) execv(getenv("MAR_COMMAND"), words);
        _exit(127);
    }
    close(ends[1]);
    FILE *out = fdopen(ends[0], "r");
    if (!fgets(line, sizeof line, out) || sscanf(line, "http://127.0.0.1:%d", &s.port) != 1)
        fail_msg("mar serve %s: printed \"%s\", expected its address", arguments, line);
    fclose(out);
    free(copy);
    return s;
}

int service_wait(service_process *s)
{
    int status;
    while (waitpid(s->pid, &status, 0) < 0 && errno == EINTR) {
    }
    free(s->errors);
    s->errors = NULL;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

int service_stop(service_process *s)
{
    if (s->pid <= 0) fail_msg("the service has not started");
    kill(s->pid, SIGTERM);
    return service_wait(s);
}

int service_descriptors(const service_process *s)
{
    char path[64];
    int count = 0;
    snprintf(path, sizeof path, "/proc/%d/fd", (int)s->pid);
    DIR *d = opendir(path);
    assert_non_null(d);
    while (readdir(d)) count++;
    closedir(d);
    return count;
}

/* --- the client --------------------------------------------------------------------------------------------------- */

void reply_free(reply *r)
{
    free(r->head);
    free(r->body);
    *r = (reply){.code = 0};
}

const char *reply_header(const reply *r, const char *name)
{
    static _Thread_local char values[4][512];
    static _Thread_local int next;
    const size_t n = strlen(name);
    for (const char *at = r->head; (at = strstr(at, "\r\n")); at += 2) {
        if (strncasecmp(at + 2, name, n) != 0 || at[2 + n] != ':') continue;
        char *value = values[next++ % 4];
        const char *from = at + 3 + n + strspn(at + 3 + n, " ");
        snprintf(value, sizeof values[0], "%.*s", (int)strcspn(from, "\r"), from);
        return value;
    }
    return "";
}

int service_connect(const service_process *s)
{
    const struct sockaddr_in a = {
        .sin_family = AF_INET, .sin_port = htons((uint16_t)s->port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    const struct timeval limit = {.tv_sec = WAIT_S};
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    if (fd < 0 || connect(fd, (const struct sockaddr *)&a, sizeof a) != 0) fail_msg("connect: %s", strerror(errno));
    return fd;
}

int service_send(int fd, const void *data, size_t size)
{
    for (size_t sent = 0; sent < size;) {
        const ssize_t n = send(fd, (const char *)data + sent, size - sent, MSG_NOSIGNAL);
        if (n <= 0) return 0;
        sent += (size_t)n;
    }
    return 1;
}

/* Joins the chunks of a body in place. */
static void join_chunks(reply *r)
{
    char *from = r->body, *to = r->body;
    for (;;) {
        char *end;
        const size_t n = strtoul(from, &end, 16);
        if (n == 0 || end == from || end + 2 + n > r->body + r->size) break;
        memmove(to, end + 2, n);
        to += n;
        from = end + 2 + n + 2;
    }
    *to = '\0';
    r->size = (size_t)(to - r->body);
}

reply service_read(int fd)
{
    size_t size = 0, capacity = 1 << 16;
    char *text = malloc(capacity + 1);
    reply r = {.code = 0};
    for (ssize_t n; text && (n = recv(fd, text + size, capacity - size, 0)) > 0;) {
        size += (size_t)n;
        if (size == capacity) text = realloc(text, (capacity *= 2) + 1);
    }
    assert_non_null(text);
    close(fd);
    text[size] = '\0';
    char *body = strstr(text, "\r\n\r\n");
    if (body && sscanf(text, "HTTP/1.1 %d", &r.code) == 1) {
        r.head = strndup(text, (size_t)(body + 2 - text));
        r.size = size - (size_t)(body + 4 - text);
        r.body = malloc(r.size + 1);
        assert_true(r.head && r.body);
        memcpy(r.body, body + 4, r.size + 1);
        if (strcasecmp(reply_header(&r, "Transfer-Encoding"), "chunked") == 0) join_chunks(&r);
    } else {
        r.head = strdup("");
        r.body = strdup("");
    }
    free(text);
    return r;
}

reply service_request(const service_process *s, const char *method, const char *path, const char *headers,
                      const void *body, size_t size)
{
    char head[2048];
    const int fd = service_connect(s);
    int n = snprintf(head, sizeof head, "%s %s HTTP/1.1\r\nHost: 127.0.0.1:%d\r\nConnection: close\r\n%s", method, path,
                     s->port, headers);
    if (body) n += snprintf(head + n, sizeof head - (size_t)n, "Content-Length: %zu\r\n", size);
    n += snprintf(head + n, sizeof head - (size_t)n, "\r\n");
    if (service_send(fd, head, (size_t)n) && body) service_send(fd, body, size);
    return service_read(fd);
}

reply service_get(const service_process *s, const char *path)
{
    return service_request(s, "GET", path, "", NULL, 0);
}

reply service_post(const service_process *s, const char *path, const char *json)
{
    return service_request(s, "POST", path, "Content-Type: application/json\r\n", json, strlen(json));
}

double service_metric(const service_process *s, const char *name)
{
    reply r = service_get(s, "/metrics");
    char line[256];
    assert_int_equal(r.code, 200);
    snprintf(line, sizeof line, "\n%s ", name);
    const char *at = strstr(r.body, line);
    const double value = at ? strtod(at + strlen(line), NULL) : 0;
    reply_free(&r);
    return value;
}

void service_await_metric(const service_process *s, const char *name, double least)
{
    for (int ms = 0; service_metric(s, name) < least; ms += 10) {
        if (ms > WAIT_S * 1000) fail_msg("%s never reached %g", name, least);
        usleep(10000);
    }
}
