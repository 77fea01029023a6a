/* Answers of the service, and the JSON in them. */
#ifndef TOOLS_SERVE_ANSWER_H
#define TOOLS_SERVE_ANSWER_H

#include "tools/cli/text.h"
#include "tools/serve/jobs.h"

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

typedef struct {
    int code;         /* HTTP status; METRIC_GONE: the client left, nothing is sent */
    const char *type; /* of the body: "application/json" */
    char *body;       /* [size] */
    size_t size;
    int is_static;     /* 1: the body is never freed */
    int is_page;       /* 1: the headers of the page come with it */
    int is_kept;       /* 1: it never changes, so the client may keep it */
    const char *allow; /* methods of a 405; else NULL */
    int is_preflight;  /* 1: it says what a page of another origin may send */
    int retry_after;   /* seconds; 0: none */
    int is_stream;     /* 1: the body is events: the job's, or the images of the request's */
    int has_images;    /* 1: of a stream: the images */
} answer;

/* Frees the body. */
void answer_free(answer *a);

/* Answers with static bytes, or with bytes that the answer frees. */
void answer_static(answer *a, int code, const char *type, const void *body, size_t size);
void answer_bytes(answer *a, int code, const char *type, void *body, size_t size);
/* Ends the stream of text_open, whose text is the answer. Without memory the answer is 503 instead. */
void answer_text(answer *a, int code, const char *type, FILE *stream, text_buffer *text);
/* Answers 503, without an allocation. Returns 1. */
int answer_no_memory(answer *a);
/* Answers as OpenAI's service does: {"error": {"message", "type", "param", "code"}}. `param`: field of the request, or
 * NULL; `name`: what "code" says, or NULL. Returns 1. */
int answer_error(answer *a, int code, const char *param, const char *name, const char *format, ...)
    __attribute__((format(printf, 5, 6)));

/* Writes a JSON string with its quotes. U+FFFD replaces bytes that are not UTF-8. */
void json_string(FILE *out, const char *text);
/* Writes the shortest number that reads back as x, which is finite. */
void json_float(FILE *out, float x);

#endif
