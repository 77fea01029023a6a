#include "tools/serve/events.h"

#include "tools/serve/picture.h"

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
    /* Of the images of a request. */
    int images;   /* 1: it is such a stream */
    uint8_t *rgb; /* [height][width][3] of a preview */
    struct {
        int partials, step; /* previews that were sent, and the steps of the last */
        int part;           /* of the steps, of partials + 1 in all, in which the next preview may be made */
        int is_completed;   /* 1: the image was sent */
    } image[JOB_IMAGES_MAX];
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

void events_write_job(const service *s, const job *j, const job_view *view, const warnings *w, FILE *out)
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
            fprintf(out, ", \"url\": \"%s/v1/jobs/%s/images/%d%s\"", base, j->id, i,
                    image_format_ending(j->spec.format));
        if (view->image[i].state == JOB_RUNNING)
            fprintf(out, ", \"preview\": \"%s/v1/jobs/%s/previews/%d.png\"", base, j->id, i);
        putc('}', out);
    }
    fputs("], \"error\": ", out);
    if (view->state == JOB_FAILED)
        json_string(out, view->why);
    else
        fputs("null", out);
    if (w) warnings_write(w, out);
    putc('}', out);
}

/* --- a job's events ----------------------------------------------------------------------------------------------- */

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
        events_write_job(x->service, x->job, &view, NULL, out);
        fputs("\n\n", out);
        s->over = view.over;
        x->shows_end = view.over;
        s->version = view.version;
        s->begun = 1;
    }
    s->sent = 0;
    return text_close(out, &s->text);
}

/* --- the images of a request -------------------------------------------------------------------------------------- */

/* Begins an event of image i, up to its picture. */
static void begin_image_event(const stream *s, const char *kind, int i, FILE *out)
{
    const exchange *x = s->exchange;
    const job *j = x->job;
    const char *of = j->spec.is_edit ? "image_edit" : "image_generation";
    fprintf(out,
            "event: %s.%s\ndata: {\"type\": \"%s.%s\", \"created_at\": %lld, \"size\": \"%dx%d\", \"quality\": "
            "\"auto\", \"background\": \"opaque\", \"output_format\": \"%s\", \"image\": %d, \"seed\": %" PRIu64
            ", \"b64_json\": ",
            of, kind, of, kind, (long long)j->created, x->service->width, x->service->height,
            picture_format_name(j->spec.format), i, j->spec.seed);
}

/* Writes the image, whose last event this is. Returns 1 without memory. */
static int write_completed(const stream *s, int i, FILE *out)
{
    const exchange *x = s->exchange;
    begin_image_event(s, "completed", i, out);
    if (picture_write_base64(x->service, x->job, i, out) != 0) return 1;
    fputs(", ", out);
    events_write_class(x->service, x->job, out);
    warnings_write(&x->manner.warnings, out);
    fputs("}\n\n", out);
    return 0;
}

/* Writes a preview in the format of the images. Returns 1 without memory. */
static int write_partial(const stream *s, int i, FILE *out)
{
    const exchange *x = s->exchange;
    size_t size;
    uint8_t *file = picture_plain(x->service, s->rgb, x->job->spec.format, x->job->spec.quality, &size);
    begin_image_event(s, "partial_image", i, out);
    const int failed = picture_write_bytes(file, size, out);
    fprintf(out, ", \"partial_image_index\": %d}\n\n", s->image[i].partials);
    free(file);
    return failed;
}

/* Writes why there are no images. */
static void write_failure(const job_view *view, FILE *out)
{
    answer a = {.code = 0};
    if (view->state == JOB_FAILED)
        answer_error(&a, view->code, view->param, NULL, "%s", view->why);
    else
        answer_error(&a, 410, NULL, NULL, "the request was cancelled");
    fprintf(out, "event: error\ndata: %.*s\n\n", a.size > 0 ? (int)a.size - 1 : 0, a.body); /* without its newline */
    answer_free(&a);
}

/* Returns 1 if the next preview of image i is due and made, in s->rgb. Asks for it otherwise. The previews of an image
 * divide its steps evenly. When one comes late, those that would have been before it are left out. */
static int partial_is_ready(stream *s, const job_view *view, int i)
{
    jobs *t = &s->exchange->service->jobs;
    const int parts = s->exchange->manner.partials + 1, steps = view->image[i].steps;
    const int64_t due = (int64_t)steps * (s->image[i].part + 1); /* in steps / parts */
    if (view->image[i].state != JOB_RUNNING || s->image[i].part + 1 >= parts || steps == 0) return 0;
    if ((int64_t)view->image[i].step * parts < due) return 0;
    const int step = jobs_get_preview(t, s->exchange->job, i, s->rgb);
    if (step > s->image[i].step && (int64_t)step * parts >= due) {
        s->image[i].step = step;
        s->image[i].part = (int)((int64_t)step * parts / steps);
        return 1;
    }
    jobs_ask_preview(t, s->exchange->job, i);
    return 0;
}

/* Writes the events that are due. Returns their number, or -1 without memory. */
static int write_due_images(stream *s, const job_view *view, FILE *out)
{
    const int n = s->exchange->job->spec.n;
    int written = 0, left = 0;
    for (int i = 0; i < n; i++) {
        if (view->image[i].state == JOB_DONE && !s->image[i].is_completed) {
            if (write_completed(s, i, out) != 0) return -1;
            s->image[i].is_completed = 1;
            written++;
        } else if (partial_is_ready(s, view, i)) {
            if (write_partial(s, i, out) != 0) return -1;
            s->image[i].partials++;
            written++;
        }
        left += !s->image[i].is_completed;
    }
    if (view->over && left > 0) {
        write_failure(view, out);
        written++;
    }
    s->over = s->exchange->shows_end = view->over;
    return written;
}

/* Makes the next text of a request's images. Returns 1 without memory, or if the client left. */
static int make_image_text(stream *s)
{
    exchange *x = s->exchange;
    FILE *out = text_open(&s->text);
    if (!out) return 1;
    int written = 0, gone = 0;
    for (int ms = 0; ms < QUIET_MS && written == 0 && !gone; ms += LOOK_MS) {
        job_view view;
        jobs_view(&x->service->jobs, x->job, &view);
        written = write_due_images(s, &view, out);
        gone = exchange_client_left(x);
        if (written == 0 && !gone) jobs_wait_change(&x->service->jobs, x->job, view.version, LOOK_MS);
    }
    if (written == 0) fputs(": waiting\n\n", out);
    s->sent = 0;
    return text_close(out, &s->text) != 0 || written < 0 || gone;
}

/* --- streams ------------------------------------------------------------------------------------------------------ */

/* An MHD_ContentReaderCallback. It may block: the connection has a thread of its own. */
static ssize_t read_events(void *self, uint64_t position, char *buffer, size_t room)
{
    stream *s = self;
    struct MHD_Connection *connection = s->exchange->connection;
    (void)position;
    if (!s->text.data && s->over) return MHD_CONTENT_READER_END_OF_STREAM;
    const int was_over = s->over;
    /* The connection's time does not run while the job is at work. */
    MHD_set_connection_option(connection, MHD_CONNECTION_OPTION_TIMEOUT, 0u);
    const int failed = !s->text.data && (s->images ? make_image_text(s) : make_text(s)) != 0;
    MHD_set_connection_option(connection, MHD_CONNECTION_OPTION_TIMEOUT,
                              (unsigned)s->exchange->service->options.timeout);
    if (failed) return MHD_CONTENT_READER_END_WITH_ERROR;
    if (s->over && !was_over) s->exchange->note_sending(s->exchange);
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
    free(s->rgb);
    free(s);
}

struct MHD_Response *events_response(exchange *x, int images)
{
    stream *s = calloc(1, sizeof *s);
    if (!s) return NULL;
    s->exchange = x;
    s->images = images;
    if (images) s->rgb = malloc((size_t)x->service->width * (size_t)x->service->height * 3);
    struct MHD_Response *r =
        images && !s->rgb ? NULL
                          : MHD_create_response_from_callback(MHD_SIZE_UNKNOWN, BLOCK, read_events, s, end_stream);
    if (!r) end_stream(s);
    return r;
}
