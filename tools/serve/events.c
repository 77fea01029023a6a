#include "tools/serve/events.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum { BLOCK = 16 << 10, QUIET_MS = 10000, LOOK_MS = 100 }; /* a comment ends a silence of QUIET_MS */

typedef struct {
    exchange *exchange;
    text_buffer text; /* data is NULL: nothing to send */
    size_t sent;      /* of text */
    unsigned version; /* of the job in the last event */
    int begun, over;  /* over: the last event is in text or sent */
} stream;

void events_write_class(const service *s, const job *j, FILE *out)
{
    char name[CLASS_NAME_MAX + 2];
    if (j->spec.text) {
        fputs("\"class\": null, \"class_name\": \"\", \"prompt\": ", out);
        json_string(out, j->spec.text);
        if (j->spec.negative) fputs(", \"negative_prompt\": ", out), json_string(out, j->spec.negative);
        return;
    }
    if (j->spec.label < 0)
        fputs("\"class\": null, \"class_name\": ", out);
    else
        fprintf(out, "\"class\": %d, \"class_name\": ", j->spec.label);
    json_string(out, models_class_name(&s->models, j->spec.label, name, sizeof name));
}

void events_write_job(const service *s, const job *j, const job_view *view, FILE *out)
{
    fprintf(out, "{\"id\": \"%s\", \"object\": \"job\", \"status\": \"%s\", \"created\": %lld, \"model\": ", j->id,
            job_state_name(view->state), (long long)j->created);
    json_string(out, s->name);
    fputs(", ", out);
    events_write_class(s, j, out);
    fprintf(out, ", \"seed\": %" PRIu64 ", \"cfg\": ", j->spec.seed);
    json_float(out, j->spec.cfg);
    fprintf(out, ", \"n\": %d, \"step\": %d, \"steps\": %d, \"images\": [", j->spec.n, view->step, view->steps);
    const char *base = s->public_url ? s->public_url : "";
    for (int i = 0; i < j->spec.n; i++) {
        fprintf(out, "%s{\"image\": %d, \"status\": \"%s\", \"step\": %d, \"steps\": %d", i ? ", " : "", i,
                job_state_name(view->image[i].state), view->image[i].step, view->image[i].steps);
        if (view->image[i].state == JOB_DONE)
            fprintf(out, ", \"url\": \"%s/v1/jobs/%s/images/%d.png\"", base, j->id, i);
        if (view->image[i].state == JOB_RUNNING)
            fprintf(out, ", \"preview\": \"%s/v1/jobs/%s/previews/%d.png\"", base, j->id, i);
        putc('}', out);
    }
    fputs("], \"error\": ", out);
    if (view->state == JOB_FAILED)
        json_string(out, view->why);
    else
        fputs("null", out);
    putc('}', out);
}

/* Waits for a change, or for the end of a silence. Returns 1 if the client left. */
static int events_wait_for_change(stream *s, job_view *view)
{
    exchange *x = s->exchange;
    for (int ms = 0; ms < QUIET_MS; ms += LOOK_MS) {
        jobs_view(&x->service->jobs, x->job, view);
        if (!s->begun || view->version != s->version) return 0;
        if (exchange_client_left(x)) return 1;
        jobs_wait_change(&x->service->jobs, x->job, s->version, LOOK_MS);
    }
    return 0;
}

/* Makes the next text. Returns 1 without memory, or if the client left. */
static int make_text(stream *s)
{
    exchange *x = s->exchange;
    job_view view;
    if (events_wait_for_change(s, &view) != 0) return 1;
    FILE *out = text_open(&s->text);
    if (!out) return 1;
    if (s->begun && view.version == s->version) {
        fputs(": waiting\n\n", out);
    } else {
        fprintf(out, "event: %s\ndata: ", view.over ? job_state_name(view.state) : "progress");
        events_write_job(x->service, x->job, &view, out);
        fputs("\n\n", out);
        s->over = view.over;
        x->shows_end = view.over;
        s->version = view.version;
        s->begun = 1;
    }
    s->sent = 0;
    return text_close(out, &s->text);
}

/* An MHD_ContentReaderCallback. It may block: the connection has a thread of its own. */
static ssize_t read_events(void *self, uint64_t position, char *buffer, size_t room)
{
    stream *s = self;
    struct MHD_Connection *connection = s->exchange->connection;
    (void)position;
    if (!s->text.data && s->over) return MHD_CONTENT_READER_END_OF_STREAM;
    /* The connection's time does not run while the job is at work. */
    MHD_set_connection_option(connection, MHD_CONNECTION_OPTION_TIMEOUT, 0u);
    const int failed = !s->text.data && make_text(s) != 0;
    MHD_set_connection_option(connection, MHD_CONNECTION_OPTION_TIMEOUT,
                              (unsigned)s->exchange->service->options.timeout);
    if (failed) return MHD_CONTENT_READER_END_WITH_ERROR;
    const size_t left = s->text.size - s->sent, n = left < room ? left : room;
    memcpy(buffer, s->text.data + s->sent, n);
    s->sent += n;
    if (n == left) {
        free(s->text.data);
        s->text.data = NULL;
    }
    return (ssize_t)n;
}

static void end_stream(void *self)
{
    stream *s = self;
    free(s->text.data);
    free(s);
}

struct MHD_Response *events_response(exchange *x)
{
    stream *s = calloc(1, sizeof *s);
    if (!s) return NULL;
    s->exchange = x;
    struct MHD_Response *r = MHD_create_response_from_callback(MHD_SIZE_UNKNOWN, BLOCK, read_events, s, end_stream);
    if (!r) free(s);
    return r;
}
