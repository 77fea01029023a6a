/* One request on a connection: its route, its body, and an answer that is known early. */
#ifndef TOOLS_SERVE_EXCHANGE_H
#define TOOLS_SERVE_EXCHANGE_H

#include "tools/serve/answer.h"
#include "tools/serve/form.h"
#include "tools/serve/request.h"
#include "tools/serve/sdapi.h"
#include "tools/serve/service.h"

#include <microhttpd.h>

enum {
    BODY_JSON_MAX = 1 << 20,   /* bytes of a JSON body */
    BODY_FORM_MAX = 16 << 20,  /* bytes of a form, or of JSON, with pictures */
    BODY_DRAINED_MAX = 8 << 20 /* bytes read of a refused body beyond its limit, so that the client reads the answer */
};

typedef enum { BODY_NONE, BODY_JSON, BODY_FORM } body_kind;

/* What a path takes, a sum. */
enum { TAKES_NONE = 0, TAKES_JSON = 1, TAKES_FORM = 2, TAKES_PICTURES = 4 /* the JSON has pictures */ };

/* A whole body. */
typedef struct {
    char *data; /* [size + 1] with a NUL; NULL: none */
    size_t size, capacity;
} body_part;

typedef struct exchange {
    service *service;
    struct MHD_Connection *connection;
    void *server;                             /* of note_sending */
    void (*note_sending)(struct exchange *x); /* to be called when a stream has nothing more to wait for */
    int route;                                /* index in routes */
    char words[2][256];                       /* parts of the path that vary */
    char method[16];                          /* of the request, cut; for the log */
    const char *path;      /* static: that of the request with * for what varies; NULL: none of the service's */
    int code;              /* HTTP status that was sent; 0: none */
    double came;           /* tool_seconds when the headers were read */
    double began;          /* tool_seconds when the body was whole */
    answer answer;         /* code 0: none yet */
    int is_stream;         /* 1: the answer is made while it is sent */
    client_key client;     /* whose request it is, if it has a body */
    body_kind kind;        /* of the body */
    size_t limit;          /* bytes that it may have */
    size_t length;         /* Content-Length; 0: unknown */
    size_t read;           /* bytes of the body so far */
    size_t held;           /* bytes of memory for it */
    size_t reserved;       /* of these in BODIES_MAX */
    body_part whole;       /* the body so far */
    form_reader form;      /* a reader of it */
    json parsed;           /* what it has if it is JSON */
    sdapi_path sdapi;      /* of AUTOMATIC1111's API */
    sdapi_texts texts;     /* of such a one */
    request_manner manner; /* how it is answered, if it asks for images */
    job *job;              /* a reference; NULL: none */
    int owns_job;          /* 1: the job is cancelled if the client leaves */
    int is_head;           /* 1: the answer is sent without its body */
    int shows_end;         /* 1: the answer says how the job ends */
    int shows_image;       /* 1: the answer is a picture of the job, */
    int image;             /* of this image */
} exchange;

/* Returns a new exchange; NULL without memory. */
exchange *exchange_new(service *s, struct MHD_Connection *connection);
/* Cancels the job if it is the client's alone, drops it, and frees all. */
void exchange_free(exchange *x);

/* Prepares for a body of one of the kinds that the path takes, by the Content-Type, and reads whose it is. Refuses
 * another type, and a Content-Length beyond the limit, with the error in x->answer. */
void exchange_expect(exchange *x, int takes);
/* Takes the next bytes. Drops them after an error in x->answer, and if no body is expected. Returns 1 if they are too
 * many to be read at all. */
int exchange_take(exchange *x, const char *data, size_t size);
/* Reads the fields of the whole body. Returns 0, or 1 with the error in *a. */
int exchange_fields(exchange *x, request *out, answer *a);
/* Frees the body and its fields. */
void exchange_drop_body(exchange *x);
/* Notes that the client has had the whole answer, body included. */
void exchange_note_sent(const exchange *x);

/* Returns whose request it is. */
client_key exchange_client(const exchange *x);
/* Returns the value of a header; NULL: none. */
const char *exchange_header(const exchange *x, const char *name);
/* Returns whether the client has closed its side of the connection. */
int exchange_client_left(const exchange *x);

#endif
