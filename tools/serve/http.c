#include "tools/serve/http.h"

#include "tools/cli/command.h"
#include "tools/serve/access.h"
#include "tools/serve/events.h"
#include "tools/serve/routes.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

enum {
    SLACK = 1024,           /* connections that are being closed; libmicrohttpd drops new ones beyond them */
    BACKLOG = 256,          /* of the socket */
    HEADERS_MAX = 32 << 10, /* bytes of a request's headers, and memory of a connection */
    STACK = 512 << 10       /* bytes of a connection's thread */
};

typedef enum {
    CLIENT_READING,  /* it waits for a request or reads it */
    CLIENT_WORKING,  /* the request is answered */
    CLIENT_WATCHING, /* it looks at a job */
    CLIENT_SENDING   /* the answer is sent */
} client_state;

/* An open connection. */
typedef struct client {
    int fd;
    client_state state;
    int is_closed; /* 1: shut down by this side */
    double since;  /* tool_seconds when the state began */
    struct client *before, *after;
} client;

struct http {
    service *service;
    struct MHD_Daemon *daemon;
    struct MHD_Response *no_memory; /* made before memory runs out */
    pthread_mutex_t lock;           /* of the clients */
    client *first, *last;           /* in the order in which their states began */
    int refused;                    /* the socket, once no more connections are accepted; else -1 */
};

/* --- connections -------------------------------------------------------------------------------------------------- */

static void remove_client(http *h, client *l)
{
    *(l->before ? &l->before->after : &h->first) = l->after;
    *(l->after ? &l->after->before : &h->last) = l->before;
}

static void append_client(http *h, client *l)
{
    l->before = h->last;
    l->after = NULL;
    *(h->last ? &h->last->after : &h->first) = l;
    h->last = l;
}

static void set_state(http *h, client *l, client_state state)
{
    pthread_mutex_lock(&h->lock);
    l->state = state;
    l->since = tool_seconds();
    remove_client(h, l);
    append_client(h, l);
    pthread_mutex_unlock(&h->lock);
}

/* Shuts a connection down. Its thread then ends it. */
static void shut(client *l)
{
    l->is_closed = 1;
    shutdown(l->fd, SHUT_RDWR);
}

/* Makes room for another connection. Closes the one that has been reading or sending for the longest; if there is none,
 * one that looks at a job. */
static void http_make_room(http *h)
{
    client *found = NULL;
    for (client *l = h->first; l; l = l->after) {
        if (l->is_closed || l->state == CLIENT_WORKING) continue;
        if (l->state != CLIENT_WATCHING) {
            shut(l);
            return;
        }
        if (!found) found = l;
    }
    if (found) shut(found);
}

/* Returns the connections that may be open. */
static int most_connections(const service *s)
{
    return s->options.queue + s->options.batch + HTTP_OTHERS;
}

/* An MHD_NotifyConnectionCallback. */
static void notice(void *self, struct MHD_Connection *connection, void **context,
                   enum MHD_ConnectionNotificationCode what)
{
    http *h = self;
    client *l = *context;
    if (what == MHD_CONNECTION_NOTIFY_STARTED) {
        const union MHD_ConnectionInfo *info = MHD_get_connection_info(connection, MHD_CONNECTION_INFO_CONNECTION_FD);
        *context = l = info ? calloc(1, sizeof *l) : NULL;
        if (!l) return; /* the first request is answered with 503 */
        l->fd = info->connect_fd;
        l->since = tool_seconds();
    } else if (!l) {
        return;
    }
    pthread_mutex_lock(&h->lock);
    if (what == MHD_CONNECTION_NOTIFY_STARTED) {
        if (atomic_fetch_add(&h->service->connections, 1) >= most_connections(h->service)) http_make_room(h);
        append_client(h, l);
    } else {
        atomic_fetch_sub(&h->service->connections, 1);
        remove_client(h, l);
    }
    pthread_mutex_unlock(&h->lock);
    if (what == MHD_CONNECTION_NOTIFY_CLOSED) free(l);
}

void http_watch(http *h)
{
    const double oldest = tool_seconds() - h->service->options.timeout;
    pthread_mutex_lock(&h->lock);
    for (client *l = h->first; l && l->since < oldest; l = l->after)
        if (l->state == CLIENT_READING && !l->is_closed) shut(l);
    pthread_mutex_unlock(&h->lock);
}

static client *client_of(struct MHD_Connection *connection)
{
    const union MHD_ConnectionInfo *info = MHD_get_connection_info(connection, MHD_CONNECTION_INFO_SOCKET_CONTEXT);
    return info ? info->socket_context : NULL;
}

/* --- answers ------------------------------------------------------------------------------------------------------ */

static const char policy[] =
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src "
    "'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/* Adds the headers of the answer to x, or to a request without memory, NULL. is_last: the connection is closed after
 * it. Returns 0, or 1 without memory. */
static int add_headers(struct MHD_Response *r, const answer *a, const exchange *x, int is_last)
{
    const char *asked = x ? routes_asked_headers(x) : NULL;
    char seconds[16];
    snprintf(seconds, sizeof seconds, "%d", a->retry_after);
    const struct {
        const char *name, *value;
    } headers[] = {
        {"Content-Type", a->type},
        {"Cache-Control", a->is_kept ? "private, max-age=3600" : "no-store"},
        {"X-Content-Type-Options", "nosniff"},
        {"Allow", a->allow},
        {"Retry-After", a->retry_after ? seconds : NULL},
        {"WWW-Authenticate", a->code == 401 ? "Bearer" : NULL},
        {"Content-Security-Policy", a->is_page ? policy : NULL},
        {"Referrer-Policy", "no-referrer"},
        {"Access-Control-Allow-Origin", x ? routes_allowed_origin(x) : NULL},
        {"Vary", x && x->service->options.cors ? "Origin" : NULL},
        {"Access-Control-Allow-Methods", a->is_preflight ? "GET, POST" : NULL},
        {"Access-Control-Allow-Headers", a->is_preflight ? asked ? asked : "Authorization, Content-Type" : NULL},
        {"Access-Control-Max-Age", a->is_preflight ? "600" : NULL},
        {"Connection", is_last ? "close" : NULL},
    };
    for (size_t i = 0; i < sizeof headers / sizeof *headers; i++)
        if (headers[i].value && MHD_add_response_header(r, headers[i].name, headers[i].value) != MHD_YES) return 1;
    return 0;
}

/* Returns the response of an answer, and takes over its body; NULL without memory. */
static struct MHD_Response *response_of(exchange *x, answer *a)
{
    struct MHD_Response *r =
        a->is_stream ? events_response(x, a->has_images)
                     : MHD_create_response_from_buffer(a->size, a->body,
                                                       a->is_static ? MHD_RESPMEM_PERSISTENT : MHD_RESPMEM_MUST_FREE);
    if (!r) return NULL;
    a->is_static = 1; /* the response frees it */
    if (add_headers(r, a, x, jobs_is_draining(&x->service->jobs)) == 0) return r;
    MHD_destroy_response(r);
    return NULL;
}

/* Queues the answer and frees it. */
static enum MHD_Result send_answer(http *h, exchange *x, answer *a)
{
    service *s = h->service;
    const double seconds = x->began > 0 ? tool_seconds() - x->began : 0;
    if (a->code == METRIC_GONE) {
        metrics_answer(&s->metrics, x->route, METRIC_GONE, seconds);
        return MHD_NO;
    }
    struct MHD_Response *r = response_of(x, a);
    const int code = r ? a->code : 503;
    if (!r) x->shows_end = x->shows_image = 0;
    x->code = code;
    x->is_stream = r && a->is_stream;
    const enum MHD_Result result = MHD_queue_response(x->connection, (unsigned)code, r ? r : h->no_memory);
    if (r) MHD_destroy_response(r);
    answer_free(a);
    if (!x->is_stream) metrics_answer(&s->metrics, x->route, code, seconds);
    return result;
}

/* --- requests ----------------------------------------------------------------------------------------------------- */

/* Answers a whole request. Its connection's time stands still meanwhile. */
static enum MHD_Result answer_whole(http *h, exchange *x)
{
    answer a = {.code = 0};
    client *l = client_of(x->connection);
    if (l) set_state(h, l, routes_watches(x) ? CLIENT_WATCHING : CLIENT_WORKING);
    x->began = tool_seconds();
    MHD_set_connection_option(x->connection, MHD_CONNECTION_OPTION_TIMEOUT, 0u);
    if (x->answer.code != 0) {
        a = x->answer;
        x->answer = (answer){.code = 0};
    } else {
        routes_answer(x, &a);
    }
    MHD_set_connection_option(x->connection, MHD_CONNECTION_OPTION_TIMEOUT, (unsigned)h->service->options.timeout);
    if (l && !a.is_stream) set_state(h, l, CLIENT_SENDING);
    return send_answer(h, x, &a);
}

/* Returns whether the client waits for an answer before it sends the body. */
static int is_expecting(const exchange *x)
{
    const char *expect = exchange_header(x, MHD_HTTP_HEADER_EXPECT);
    return expect && strcasecmp(expect, "100-continue") == 0;
}

/* Notes that the client has only to read: one that is slow may be closed. */
static void note_sending(exchange *x)
{
    client *l = client_of(x->connection);
    if (l) set_state(x->server, l, CLIENT_SENDING);
}

/* An MHD_AccessHandlerCallback. It is called with the headers, with each piece of the body, and at the end. */
static enum MHD_Result http_handle(void *self, struct MHD_Connection *connection, const char *url, const char *method,
                                   const char *version, const char *data, size_t *size, void **context)
{
    http *h = self;
    exchange *x = *context;
    (void)version;
    if (!x) {
        *context = x = client_of(connection) ? exchange_new(h->service, connection) : NULL;
        if (!x) return MHD_queue_response(connection, 503, h->no_memory);
        x->server = h;
        x->note_sending = note_sending;
        routes_check(x, method, url);
        return x->answer.code != 0 && is_expecting(x) ? answer_whole(h, x) : MHD_YES;
    }
    if (*size > 0) {
        const int is_over = exchange_take(x, data, *size);
        *size = 0;
        return is_over ? MHD_NO : MHD_YES;
    }
    return answer_whole(h, x);
}

/* An MHD_RequestCompletedCallback. */
static void complete(void *self, struct MHD_Connection *connection, void **context, enum MHD_RequestTerminationCode why)
{
    http *h = self;
    client *l = client_of(connection);
    exchange *x = *context;
    const int is_whole = why == MHD_REQUEST_TERMINATED_COMPLETED_OK;
    if (x && is_whole && !x->is_head) exchange_note_sent(x);
    if (x && x->is_stream)
        metrics_answer(&h->service->metrics, x->route, is_whole ? x->code : METRIC_GONE, tool_seconds() - x->began);
    if (x) access_note(x, is_whole);
    if (x) exchange_free(x);
    *context = NULL;
    if (l) set_state(h, l, CLIENT_READING);
}

/* --- the server --------------------------------------------------------------------------------------------------- */

static struct MHD_Response *make_no_memory(void)
{
    answer a;
    answer_no_memory(&a);
    struct MHD_Response *r = MHD_create_response_from_buffer(a.size, a.body, MHD_RESPMEM_PERSISTENT);
    if (r && add_headers(r, &a, NULL, 0) == 0) return r;
    if (r) MHD_destroy_response(r);
    return NULL;
}

typedef union {
    struct sockaddr any;
    struct sockaddr_in v4;
    struct sockaddr_in6 v6;
} address;

/* Reads --listen and --port. Returns the size of the address; 0 if it is invalid. */
static socklen_t read_address(const serve_options *o, address *out)
{
    memset(out, 0, sizeof *out);
    if (inet_pton(AF_INET, o->listen, &out->v4.sin_addr) == 1) {
        out->v4.sin_family = AF_INET;
        out->v4.sin_port = htons((uint16_t)o->port);
        return sizeof out->v4;
    }
    if (inet_pton(AF_INET6, o->listen, &out->v6.sin6_addr) == 1) {
        out->v6.sin6_family = AF_INET6;
        out->v6.sin6_port = htons((uint16_t)o->port);
        return sizeof out->v6;
    }
    return 0;
}

static int http_is_loopback(const address *a)
{
    return a->any.sa_family == AF_INET ? ntohl(a->v4.sin_addr.s_addr) >> 24 == 127
                                       : IN6_IS_ADDR_LOOPBACK(&a->v6.sin6_addr);
}

/* Lets the process have a descriptor for each connection. Returns 0, or 1 with the error printed. */
static int make_descriptors(const service *s)
{
    enum { OTHERS = 64 }; /* files, libmicrohttpd's own */
    struct rlimit limit;
    const rlim_t needed = (rlim_t)(most_connections(s) + SLACK + OTHERS);
    if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur >= needed) return 0;
    const rlim_t most = limit.rlim_max;
    limit.rlim_cur = needed;
    if (most >= needed && setrlimit(RLIMIT_NOFILE, &limit) == 0) return 0;
    return tool_error("--queue %d: needs %llu open files, the system allows %llu", s->options.queue,
                      (unsigned long long)needed, (unsigned long long)most);
}

/* Prints why the address cannot be had, and what to do. Returns 1. */
static int refuse_address(const serve_options *o, int reason)
{
    const char *advice = "";
    if (reason == EADDRINUSE)
        advice = "; another process listens there: end it, or give another --port (0: a free one)";
    if (reason == EACCES) advice = "; ports below 1024 need privileges, give another --port";
    if (reason == EADDRNOTAVAIL) advice = "; no address of this machine, give another --listen";
    return tool_error("cannot listen on %s, port %d: %s%s", o->listen, o->port, strerror(reason), advice);
}

int http_bind(service *s)
{
    const serve_options *o = &s->options;
    address a;
    const int yes = 1;
    const socklen_t size = read_address(o, &a);
    if (make_descriptors(s) != 0) return -1;
    if (!size) {
        tool_error("--listen %s: expected a numeric address such as 127.0.0.1, 0.0.0.0 or ::1", o->listen);
        return -1;
    }
    s->is_local = http_is_loopback(&a);
    const int fd = socket(a.any.sa_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd >= 0 && setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes) == 0 && bind(fd, &a.any, size) == 0)
        return fd;
    refuse_address(o, errno);
    if (fd >= 0) close(fd);
    return -1;
}

int http_listen(const service *s, int bound)
{
    const serve_options *o = &s->options;
    address a;
    socklen_t size = sizeof a;
    if (listen(bound, BACKLOG) != 0 || getsockname(bound, &a.any, &size) != 0) return refuse_address(o, errno);
    const int port = ntohs(a.any.sa_family == AF_INET ? a.v4.sin_port : a.v6.sin6_port);
    const char *const brackets = a.any.sa_family == AF_INET ? "" : "[]";
    printf("http://%.1s%s%s:%d\n", brackets, o->listen, *brackets ? brackets + 1 : "", port);
    return fflush(stdout) == 0 ? 0 : tool_error("standard output: cannot write: %s", strerror(errno));
}

http *http_start(service *s, int listening)
{
    http *h = calloc(1, sizeof *h);
    if (h) h->no_memory = make_no_memory();
    if (h && h->no_memory) {
        h->service = s;
        h->refused = -1;
        pthread_mutex_init(&h->lock, NULL);
        h->daemon = MHD_start_daemon(
            MHD_USE_THREAD_PER_CONNECTION | MHD_USE_INTERNAL_POLLING_THREAD | MHD_USE_POLL | MHD_USE_ITC, 0, NULL, NULL,
            http_handle, h, MHD_OPTION_LISTEN_SOCKET, listening, MHD_OPTION_NOTIFY_COMPLETED, complete, h,
            MHD_OPTION_NOTIFY_CONNECTION, notice, h, MHD_OPTION_CONNECTION_LIMIT,
            (unsigned)(most_connections(s) + SLACK), MHD_OPTION_CONNECTION_MEMORY_LIMIT, (size_t)HEADERS_MAX,
            MHD_OPTION_CONNECTION_TIMEOUT, (unsigned)s->options.timeout, MHD_OPTION_THREAD_STACK_SIZE, (size_t)STACK,
            MHD_OPTION_END);
        if (h->daemon) return h;
    }
    const int reason = errno;
    close(listening);
    tool_error("cannot serve: %s", strerror(reason));
    http_end(h);
    return NULL;
}

void http_refuse(http *h)
{
    h->refused = MHD_quiesce_daemon(h->daemon);
}

void http_end(http *h)
{
    if (!h) return;
    if (h->daemon) MHD_stop_daemon(h->daemon); /* closes the socket unless it is refused */
    if (h->daemon && h->refused >= 0) close(h->refused);
    if (h->no_memory) MHD_destroy_response(h->no_memory);
    if (h->service) pthread_mutex_destroy(&h->lock);
    free(h);
}
