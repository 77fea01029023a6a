/* A running `mar serve`: its options, its model, and the state that its threads share. */
#ifndef TOOLS_SERVE_SERVICE_H
#define TOOLS_SERVE_SERVICE_H

#include "tools/cli/run_options.h"
#include "tools/generate/models.h"
#include "tools/serve/bodies.h"
#include "tools/serve/jobs.h"
#include "tools/serve/log.h"
#include "tools/serve/metrics.h"
#include "tools/serve/text.h"

#include <stdatomic.h>
#include <stddef.h>
#include <time.h>

typedef struct {
    run_options run;
    const char *listen;     /* numeric address, IPv4 or IPv6 */
    const char *token_file; /* NULL: no token is asked for */
    const char *public_url; /* address in links; NULL: that of the request */
    const char *cors;       /* origin whose pages may use the service, "*": any; NULL: none */
    const char *alias;      /* name of the model for clients; NULL: the file's */
    int port;               /* 0: any free one */
    int batch;              /* images in progress */
    int queue;              /* images that may wait */
    int timeout;            /* seconds for a client to send a request, or to go on reading its answer */
    int keep;               /* seconds that finished jobs are kept */
    int grace;              /* seconds that clients have for a finished job when the service ends */
    int access_log;         /* access_format */
    int strict;             /* 1: unknown fields of requests are refused */
    int accept_any_size;    /* 1: requests for another size get the model's */
    int accept_any_model;   /* 1: requests for another model get this one's images */
    int quiet;              /* 1: print only errors and the address */
} serve_options;

/* After the first connection only the atomic fields change, and jobs and metrics by their calls. */
typedef struct {
    serve_options options;
    model_store files;    /* owns the models */
    run_models models;    /* owned by the store */
    mar_session *session; /* the engine thread's alone while it runs */
    int takes_text;       /* 1: text encodes prompts */
    int takes_negative;   /* 1: and negative ones */
    text_service text;
    service_log log;
    const char *name;  /* of the model, as clients see it: the file's without its directories */
    int width, height; /* of an image */
    char *token;       /* NULL: none */
    int is_local;      /* 1: it listens on loopback */
    char *public_url;  /* that of the options without a slash at its end; NULL: none */
    time_t created;
    double began; /* tool_seconds */
    metrics metrics;
    jobs jobs;
    atomic_int connections; /* open ones */
    atomic_int exchanges;   /* requests that are not answered in full */
    bodies bodies;
    atomic_int is_broken; /* 1: the last step failed as a whole */
} service;

#endif
