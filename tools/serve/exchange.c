#include "tools/serve/exchange.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>

enum { FORM_BUFFER = 64 << 10 }; /* of libmicrohttpd's parser of forms */

exchange *exchange_new(service *s, struct MHD_Connection *connection)
{
    exchange *x = calloc(1, sizeof *x);
    if (!x) return NULL;
    x->service = s;
    x->connection = connection;
    atomic_fetch_add(&s->exchanges, 1);
    return x;
}

void exchange_drop_body(exchange *x)
{
    if (x->form) MHD_destroy_post_processor(x->form); /* it may call take_part */
    x->form = NULL;
    json_free(&x->parsed);
    free(x->whole.data);
    x->whole = (body_part){.size = 0};
    for (int i = 0; i < FIELDS; i++) {
        free(x->part[i].data);
        x->part[i] = (body_part){.size = 0};
    }
    atomic_fetch_sub(&x->service->body_size, x->reserved);
    x->reserved = x->held = 0;
}

void exchange_free(exchange *x)
{
    service *s = x->service;
    exchange_drop_body(x);
    if (x->job && x->owns_job) jobs_abandon(&s->jobs, x->job);
    jobs_release(&s->jobs, x->job);
    answer_free(&x->answer);
    free(x);
    atomic_fetch_sub(&s->exchanges, 1);
}

const char *exchange_header(const exchange *x, const char *name)
{
    return MHD_lookup_connection_value(x->connection, MHD_HEADER_KIND, name);
}

/* An MHD_KeyValueIterator: keeps the last X-Forwarded-For, which the nearest proxy added. */
static enum MHD_Result keep_forwarded(void *self, enum MHD_ValueKind kind, const char *name, const char *value)
{
    const char **last = self;
    (void)kind;
    if (strcasecmp(name, "X-Forwarded-For") == 0) *last = value;
    return MHD_YES;
}

client_key exchange_client(const exchange *x)
{
    const char *forwarded = NULL;
    const union MHD_ConnectionInfo *info = MHD_get_connection_info(x->connection, MHD_CONNECTION_INFO_CLIENT_ADDRESS);
    MHD_get_connection_values(x->connection, MHD_HEADER_KIND, keep_forwarded, &forwarded);
    return client_key_of(info ? info->client_addr : NULL, forwarded);
}

int exchange_client_left(const exchange *x)
{
    const union MHD_ConnectionInfo *info = MHD_get_connection_info(x->connection, MHD_CONNECTION_INFO_CONNECTION_FD);
    if (!info) return 1;
    struct pollfd p = {.fd = info->connect_fd, .events = POLLRDHUP};
    return poll(&p, 1, 0) > 0 && (p.revents & (POLLRDHUP | POLLHUP | POLLERR | POLLNVAL));
}

/* --- the body ----------------------------------------------------------------------------------------------------- */

static size_t limit_of(const exchange *x)
{
    return x->kind == BODY_FORM ? BODY_FORM_MAX : x->kind == BODY_JSON ? BODY_JSON_MAX : 0;
}

static void refuse_size(exchange *x)
{
    exchange_drop_body(x);
    answer_error(&x->answer, 413, NULL, NULL, "the body is too large, expected at most %zu bytes", limit_of(x));
}

/* Counts memory for the body. Returns 0, or 1 with the error in *a. */
static int hold(exchange *x, size_t bytes, answer *a)
{
    const size_t held = x->held + bytes, more = held > BODY_SMALL + x->reserved ? held - BODY_SMALL - x->reserved : 0;
    if (atomic_fetch_add(&x->service->body_size, more) + more > BODIES_MAX) {
        atomic_fetch_sub(&x->service->body_size, more);
        answer_error(a, 503, NULL, NULL, "too many large requests at a time, try again");
        a->retry_after = 1;
        return 1;
    }
    x->held = held;
    x->reserved += more;
    return 0;
}

/* Appends to a part. Returns 0, or 1 with the error in x->answer. */
static int append(exchange *x, body_part *part, const char *data, size_t size)
{
    const size_t needed = part->size + size + 1;
    if (needed > part->capacity) {
        const size_t capacity = needed < 4096 ? 4096 : 2 * needed;
        if (hold(x, capacity - part->capacity, &x->answer) != 0) return 1;
        char *larger = realloc(part->data, capacity);
        if (!larger) return answer_no_memory(&x->answer);
        part->data = larger;
        part->capacity = capacity;
    }
    memcpy(part->data + part->size, data, size);
    part->size += size;
    part->data[part->size] = '\0';
    return 0;
}

/* An MHD_PostDataIterator: takes the next bytes of a form's part. */
static enum MHD_Result take_part(void *self, enum MHD_ValueKind kind, const char *name, const char *file,
                                 const char *type, const char *encoding, const char *data, uint64_t offset, size_t size)
{
    exchange *x = self;
    (void)kind, (void)file, (void)type, (void)encoding;
    const field f = name ? request_field(name) : FIELDS;
    if (f == FIELDS) return MHD_YES;
    if (offset == 0 && x->part[f].size > 0) {
        answer_error(&x->answer, 400, name, NULL, "%.40s: is given more than once, expected once", name);
        return MHD_NO;
    }
    return append(x, &x->part[f], data, size) == 0 ? MHD_YES : MHD_NO;
}

/* Returns whether the Content-Type is `type`, with or without parameters. */
static int has_type(const char *value, const char *type)
{
    const size_t n = strlen(type);
    return value && strncasecmp(value, type, n) == 0 && (value[n] == '\0' || value[n] == ';' || value[n] == ' ');
}

static int has_boundary(const char *type)
{
    static const char name[] = "boundary=";
    const char *at = strstr(type, name);
    return at && at[sizeof name - 1 + strspn(at + sizeof name - 1, "\" \t")] != '\0' && at[sizeof name - 1] != ';';
}

void exchange_expect(exchange *x, int takes_json, int takes_form)
{
    const char *type = exchange_header(x, MHD_HTTP_HEADER_CONTENT_TYPE);
    const char *length = exchange_header(x, MHD_HTTP_HEADER_CONTENT_LENGTH);
    const char *const expected = !takes_form   ? "application/json"
                                 : !takes_json ? "multipart/form-data"
                                               : "application/json or multipart/form-data";
    if (takes_json && has_type(type, "application/json"))
        x->kind = BODY_JSON;
    else if (takes_form && has_type(type, MHD_HTTP_POST_ENCODING_MULTIPART_FORMDATA))
        x->kind = BODY_FORM;
    if (x->kind == BODY_NONE) {
        answer_error(&x->answer, 415, NULL, NULL, "Content-Type: is %.60s, expected %s", type ? type : "missing",
                     expected);
    } else if (length && strtoull(length, NULL, 10) > limit_of(x)) {
        refuse_size(x);
    } else if (x->kind == BODY_FORM && !has_boundary(type)) {
        answer_error(&x->answer, 400, NULL, NULL, "Content-Type: has no boundary, expected %s; boundary=...", expected);
    } else if (x->kind == BODY_FORM &&
               !(x->form = MHD_create_post_processor(x->connection, FORM_BUFFER, take_part, x))) {
        answer_no_memory(&x->answer);
    }
}

/* Answers after libmicrohttpd has failed to read a form. It leaves out names it has no memory for, and says no reason;
 * malloc does. Returns 1. */
static int refuse_form(answer *a)
{
    if (errno == ENOMEM) return answer_no_memory(a);
    return answer_error(a, 400, NULL, NULL, "the body is no whole form, expected multipart/form-data");
}

int exchange_take(exchange *x, const char *data, size_t size)
{
    x->read += size;
    if (x->answer.code == 0 && x->kind != BODY_NONE && x->read > limit_of(x)) refuse_size(x);
    if (x->answer.code != 0 || x->kind == BODY_NONE) return x->read > limit_of(x) + BODY_DRAINED_MAX;
    errno = 0;
    if (x->kind == BODY_JSON)
        append(x, &x->whole, data, size);
    else if ((MHD_post_process(x->form, data, size) != MHD_YES || errno == ENOMEM) && x->answer.code == 0)
        refuse_form(&x->answer);
    return 0;
}

/* --- fields ------------------------------------------------------------------------------------------------------- */

static int read_form(exchange *x, request *out, answer *a)
{
    errno = 0;
    const int whole = MHD_destroy_post_processor(x->form) == MHD_YES; /* it may call take_part */
    x->form = NULL;
    if (x->answer.code != 0) {
        *a = x->answer;
        x->answer = (answer){.code = 0};
        return 1;
    }
    if (!whole || errno == ENOMEM) return refuse_form(a);
    for (int f = 0; f < FIELDS; f++)
        if (x->part[f].data && request_set(out, (field)f, x->part[f].data, x->part[f].size, a) != 0) return 1;
    return 0;
}

int exchange_fields(exchange *x, request *out, answer *a)
{
    enum { LEVELS = 32 };
    char empty[1] = "";
    *out = (request){.field[0].size = 0};
    if (x->kind == BODY_FORM) return read_form(x, out, a);
    char *text = x->whole.data ? x->whole.data : empty;
    if (hold(x, (x->whole.size / 2 + 1) * sizeof(json_value), a) != 0) return 1; /* "[0,0,": no text has more values */
    switch (json_read(text, x->whole.size, LEVELS, &x->parsed)) {
    case JSON_OK:
        break;
    case JSON_NO_MEMORY:
        answer_no_memory(a);
        return 1;
    case JSON_DEEP:
        return answer_error(a, 400, NULL, NULL, "the body has more than %d levels of brackets", LEVELS);
    default:
        return answer_error(a, 400, NULL, NULL, "the body is no JSON: byte %zu", x->parsed.at);
    }
    if (x->parsed.not_utf8 < x->whole.size)
        return answer_error(a, 400, NULL, NULL, "the body is not UTF-8: byte %zu", x->parsed.not_utf8);
    return request_read(out, &x->parsed, a);
}
