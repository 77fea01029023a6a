/* One request on a connection: its route, its body, and an answer that is known early. */
#ifndef TOOLS_SERVE_EXCHANGE_H
#define TOOLS_SERVE_EXCHANGE_H

#include "tools/serve/answer.h"
#include "tools/serve/form.h"
#include "tools/serve/request.h"
#include "tools/serve/service.h"

#include <microhttpd.h>

enum {
    BODY_JSON_MAX = 1 << 20,   /* bytes of a JSON body */
    BODY_FORM_MAX = 16 << 20,  /* bytes of a form with pictures */
    BODY_SMALL = 16 << 10,     /* bytes of each body, its values included, that always have room */
    BODIES_MAX = 256 << 20,    /* bytes of all bodies in memory beyond these */
    BODY_DRAINED_MAX = 8 << 20 /* bytes read of a refused body beyond its limit, so that the client reads the answer */
};

typedef enum { BODY_NONE, BODY_JSON, BODY_FORM } body_kind;

/* A whole body. */
typedef struct {
    char *data; /* [size + 1] with a NUL; NULL: none */
    size_t size, capacity;
} body_part;

typedef struct {
    service *service;
    struct MHD_Connection *connection;
    int route;          /* index in routes */
    char words[2][256]; /* parts of the path that vary */
    double began;       /* tool_seconds when the body was whole */
    answer answer;      /* code 0: none yet */
    body_kind kind;     /* of the body */
    size_t read;        /* bytes of the body so far */
    size_t held;        /* bytes of memory for it */
    size_t reserved;    /* of these in BODIES_MAX */
    body_part whole;    /* the body so far */
    form_reader form;   /* a reader of it */
    json parsed;        /* what it has if it is JSON */
    job *job;           /* a reference; NULL: none */
    int owns_job;       /* 1: the job is cancelled if the client leaves */
} exchange;

/* Returns a new exchange; NULL without memory. */
exchange *exchange_new(service *s, struct MHD_Connection *connection);
/* Cancels the job if it is the client's alone, drops it, and frees all. */
void exchange_free(exchange *x);

/* Prepares for a body of one of the two kinds, by the Content-Type. Refuses another type, and a Content-Length beyond
 * the limit, with the error in x->answer. */
void exchange_expect(exchange *x, int takes_json, int takes_form);
/* Takes the next bytes. Drops them after an error in x->answer, and if no body is expected. Returns 1 if they are too
 * many to be read at all. */
int exchange_take(exchange *x, const char *data, size_t size);
/* Reads the fields of the whole body. Returns 0, or 1 with the error in *a. */
int exchange_fields(exchange *x, request *out, answer *a);
/* Frees the body and its fields. */
void exchange_drop_body(exchange *x);

/* Returns the value of a header; NULL: none. */
const char *exchange_header(const exchange *x, const char *name);
/* Returns whose request it is. */
client_key exchange_client(const exchange *x);
/* Returns whether the client has closed its side of the connection. */
int exchange_client_left(const exchange *x);

#endif
