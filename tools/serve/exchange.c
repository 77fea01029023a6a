#include "tools/serve/exchange.h"

#include "tools/cli/command.h"

#include <poll.h>
#include <stdlib.h>
#include <string.h>

exchange *exchange_new(service *s, struct MHD_Connection *connection)
{
    exchange *x = calloc(1, sizeof *x);
    if (!x) return NULL;
    x->service = s;
    x->connection = connection;
    x->came = tool_seconds();
    atomic_fetch_add(&s->exchanges, 1);
    return x;
}

void exchange_drop_body(exchange *x)
{
    json_free(&x->parsed);
    free(x->whole.data);
    x->whole = (body_part){.size = 0};
    if (x->reserved > 0) bodies_drop(&x->service->bodies, &x->client, x->reserved);
    x->reserved = x->held = 0;
}

void exchange_free(exchange *x)
{
    service *s = x->service;
    exchange_drop_body(x);
    if (x->job && x->owns_job) jobs_abandon(&s->jobs, x->job);
    jobs_release(&s->jobs, x->job);
    answer_free(&x->answer);
    warnings_free(&x->manner.warnings);
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

void exchange_note_sent(const exchange *x)
{
    if (x->shows_end) jobs_note_seen(&x->service->jobs, x->job);
    if (x->shows_image) jobs_note_fetched(&x->service->jobs, x->job, x->image);
}

int exchange_client_left(const exchange *x)
{
    const union MHD_ConnectionInfo *info = MHD_get_connection_info(x->connection, MHD_CONNECTION_INFO_CONNECTION_FD);
    if (!info) return 1;
    struct pollfd p = {.fd = info->connect_fd, .events = POLLRDHUP};
    return poll(&p, 1, 0) > 0 && (p.revents & (POLLRDHUP | POLLHUP | POLLERR | POLLNVAL));
}

/* --- the body ----------------------------------------------------------------------------------------------------- */

static void refuse_size(exchange *x)
{
    exchange_drop_body(x);
    answer_error(&x->answer, 413, NULL, NULL, "the body is too large, expected at most %zu bytes", x->limit);
}

/* Counts memory for the body. Returns 0, or 1 with the error in *a. */
static int exchange_hold(exchange *x, size_t bytes, answer *a)
{
    const size_t held = x->held + bytes, more = held > BODY_SMALL + x->reserved ? held - BODY_SMALL - x->reserved : 0;
    const bodies_result result = more > 0 ? bodies_hold(&x->service->bodies, &x->client, more) : BODIES_OK;
    if (result != BODIES_OK) {
        answer_error(a, 503, NULL, NULL, "too many large requests%s at a time, try again",
                     result == BODIES_SHARE ? " of one client" : "");
        a->retry_after = 1;
        return 1;
    }
    x->held = held;
    x->reserved += more;
    return 0;
}

/* Returns the memory for a body of at least `needed` bytes: what it says that it needs, and no more than that for a
 * small one. */
static size_t capacity_of(const exchange *x, size_t needed)
{
    const size_t capacity = needed > BODY_SMALL ? 2 * needed : needed;
    return needed <= x->length + 1 && x->length + 1 < 2 * needed ? x->length + 1 : capacity;
}

/* Appends to a part. Returns 0, or 1 with the error in x->answer. */
static int exchange_append(exchange *x, body_part *part, const char *data, size_t size)
{
    const size_t needed = part->size + size + 1;
    if (needed > part->capacity) {
        const size_t capacity = capacity_of(x, needed);
        if (exchange_hold(x, capacity - part->capacity, &x->answer) != 0) return 1;
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

/* Returns whether the Content-Type is `type`, with or without parameters. */
static int has_type(const char *value, const char *type)
{
    const size_t n = strlen(type);
    return value && strncasecmp(value, type, n) == 0 && (value[n] == '\0' || value[n] == ';' || value[n] == ' ');
}

void exchange_expect(exchange *x, int takes)
{
    const int takes_json = takes & TAKES_JSON, takes_form = takes & TAKES_FORM;
    const char *type = exchange_header(x, MHD_HTTP_HEADER_CONTENT_TYPE);
    const char *length = exchange_header(x, MHD_HTTP_HEADER_CONTENT_LENGTH);
    const char *const expected = !takes_form   ? "application/json"
                                 : !takes_json ? "multipart/form-data"
                                               : "application/json or multipart/form-data";
    if (takes_json && has_type(type, "application/json"))
        x->kind = BODY_JSON;
    else if (takes_form && has_type(type, MHD_HTTP_POST_ENCODING_MULTIPART_FORMDATA))
        x->kind = BODY_FORM;
    const size_t json_max = takes & TAKES_PICTURES ? BODY_FORM_MAX : BODY_JSON_MAX;
    x->limit = x->kind == BODY_FORM ? BODY_FORM_MAX : x->kind == BODY_JSON ? json_max : 0;
    const char *encoding = exchange_header(x, MHD_HTTP_HEADER_CONTENT_ENCODING);
    x->client = exchange_client(x);
    x->length = length ? strtoull(length, NULL, 10) : 0;
    if (encoding && *encoding && strcasecmp(encoding, "identity") != 0) {
        answer_error(&x->answer, 415, NULL, NULL, "Content-Encoding: is %.60s, expected a body that is not compressed",
                     encoding);
    } else if (x->kind == BODY_NONE) {
        answer_error(&x->answer, 415, NULL, NULL, "Content-Type: is %.60s, expected %s", type ? type : "missing",
                     expected);
    } else if (x->length > x->limit) {
        refuse_size(x);
    } else if (x->kind == BODY_FORM && form_boundary(type, &x->form) != 0) {
        answer_error(&x->answer, 400, NULL, NULL,
                     "Content-Type: has no valid boundary, expected multipart/form-data; boundary=..., of 1 to %d "
                     "characters",
                     FORM_BOUNDARY_MAX);
    }
}

int exchange_take(exchange *x, const char *data, size_t size)
{
    x->read += size;
    if (x->answer.code == 0 && x->kind != BODY_NONE && x->read > x->limit) refuse_size(x);
    if (x->answer.code != 0 || x->kind == BODY_NONE) return x->read > x->limit + BODY_DRAINED_MAX;
    exchange_append(x, &x->whole, data, size);
    return 0;
}

/* --- fields ------------------------------------------------------------------------------------------------------- */

static int read_form(exchange *x, request *out, answer *a)
{
    char why[FORM_WHY_MAX];
    form_part part;
    form_status status;
    form_open(&x->form, x->whole.data, x->whole.size);
    while ((status = form_next(&x->form, &part, why)) == FORM_PART)
        if (request_set(out, part.name, part.data, part.size, a) != 0) return 1;
    return status == FORM_END ? 0 : answer_error(a, 400, NULL, NULL, "%s", why);
}

/* Returns whether the body begins as gzip. */
static int is_gzip(const body_part *body)
{
    return body->size > 2 && memcmp(body->data, "\x1f\x8b", 2) == 0;
}

/* Returns at least the number of values of a JSON text: the first one, and one behind each bracket, comma and colon. */
static size_t count_values(const body_part *body)
{
    size_t count = 1;
    int is_string = 0;
    for (const char *c = body->data, *end = c + body->size; c < end; c++) {
        if (is_string && *c == '\\')
            c++;
        else if (*c == '"')
            is_string = !is_string;
        else if (!is_string)
            count += *c == '[' || *c == '{' || *c == ',' || *c == ':';
    }
    return count;
}

int exchange_fields(exchange *x, request *out, answer *a)
{
    enum { LEVELS = 32 };
    *out = (request){.is_strict = x->service->options.strict, .warnings = &x->manner.warnings};
    if (x->whole.size == 0)
        return answer_error(a, 400, NULL, NULL, "the body is empty, expected %s",
                            x->kind == BODY_FORM ? "a form" : "{\"prompt\": ...}");
    if (is_gzip(&x->whole))
        return answer_error(a, 415, NULL, NULL, "the body is compressed by gzip, expected one that is not compressed");
    if (x->kind == BODY_FORM) return read_form(x, out, a);
    if (exchange_hold(x, count_values(&x->whole) * sizeof(json_value), a) != 0) return 1;
    switch (json_read(x->whole.data, x->whole.size, LEVELS, &x->parsed)) {
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
    return x->sdapi ? sdapi_read(out, x->sdapi, x->service->takes_negative, &x->parsed, &x->texts, a)
                    : request_read(out, &x->parsed, a);
}
