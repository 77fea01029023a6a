/* A running `mar serve`, and an HTTP client of few lines that can also misbehave. */
#ifndef TESTS_SERVICE_H
#define TESTS_SERVICE_H

#include "tests/support/command.h"

#include <stddef.h>

typedef struct {
    pid_t pid;
    int port;
    char *errors; /* path of its standard error */
} service_process;

/* Starts "mar serve --port 0 ARGUMENTS" (words without spaces) in the directory, with --grace 0 unless they have one,
 * and reads its address. */
service_process service_start(const char *directory, const char *arguments);
/* Sends SIGTERM and waits. Returns the exit status as a shell shows it. */
int service_stop(service_process *s);
/* Waits for its end. Returns its exit status. */
int service_wait(service_process *s);
/* Returns the open descriptors of the process. */
int service_descriptors(const service_process *s);

typedef struct {
    int code;   /* 0: the connection was closed without an answer */
    char *head; /* status line and headers, with a NUL */
    char *body; /* [size], then a NUL; chunks are joined */
    size_t size;
} reply;
void reply_free(reply *r);
/* Returns the value of a header, in one of four buffers used in turn; "" if it is missing. */
const char *reply_header(const reply *r, const char *name);

/* Connects to the service. Returns the socket. */
int service_connect(const service_process *s);
/* Sends all bytes. Returns 0 if the service closed the connection. */
int service_send(int fd, const void *data, size_t size);
/* Reads the answer up to the end of the connection, and closes it. */
reply service_read(int fd);
/* Makes a request. `headers` end with "\r\n" each. A body of NULL: none. */
reply service_request(const service_process *s, const char *method, const char *path, const char *headers,
                      const void *body, size_t size);
reply service_get(const service_process *s, const char *path);
/* Posts JSON. */
reply service_post(const service_process *s, const char *path, const char *json);

/* Returns the value of a line of /metrics, such as "mar_images_total{end=\"done\"}"; 0 if it is missing. */
double service_metric(const service_process *s, const char *name);
/* Waits until the metric has at least that value. */
void service_await_metric(const service_process *s, const char *name, double least);

#endif
