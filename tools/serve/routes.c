#include "tools/serve/routes.h"

#include "mar_measure.h"

#include "tools/cli/base64.h"
#include "tools/cli/command.h"
#include "tools/serve/events.h"
#include "tools/serve/links.h"
#include "tools/serve/page.h"
#include "tools/serve/picture.h"
#include "tools/serve/sdapi.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

static const char type_json[] = "application/json";

enum { LOOK_MS = 100, PREVIEW_S = 60 }; /* LOOK_MS: between looks whether the client left */

/* --- about the service -------------------------------------------------------------------------------------------- */

static void answer_page(exchange *x, answer *a)
{
    (void)x;
    answer_static(a, 200, "text/html; charset=utf-8", page_html, page_html_size());
    a->is_page = 1;
}

static void answer_style(exchange *x, answer *a)
{
    (void)x;
    answer_static(a, 200, "text/css; charset=utf-8", page_css, page_css_size());
}

static void answer_script(exchange *x, answer *a)
{
    (void)x;
    answer_static(a, 200, "text/javascript; charset=utf-8", page_js, page_js_size());
}

static void answer_health(exchange *x, answer *a)
{
    static const char good[] = "{\"status\": \"ok\"}\n", draining[] = "{\"status\": \"stopping\"}\n",
                      broken[] = "{\"status\": \"the last step failed\"}\n";
    if (atomic_load(&x->service->is_broken))
        answer_static(a, 503, type_json, broken, sizeof broken - 1);
    else if (jobs_is_draining(&x->service->jobs))
        answer_static(a, 503, type_json, draining, sizeof draining - 1);
    else
        answer_static(a, 200, type_json, good, sizeof good - 1);
}

static void write_model(service *s, FILE *out)
{
    const mar_model_config *c = mar_model_get_config(s->models.model);
    fputs("{\"id\": ", out);
    json_string(out, s->name);
    fprintf(out,
            ", \"object\": \"model\", \"created\": %lld, \"owned_by\": \"libmar\", \"family\": \"%s\", \"size\": "
            "\"%dx%d\", \"prompt\": \"%s\", \"negative_prompt\": %s, \"classes\": %d, \"class_names\": %s, \"n_max\": "
            "%d, \"cfg\": ",
            (long long)s->created, c->family, s->width, s->height,
            s->takes_text        ? "text"
            : s->models.captions ? "caption"
                                 : "class",
            s->takes_negative ? "true" : "false", s->models.classes.count, s->models.classes.names ? "true" : "false",
            JOB_IMAGES_MAX);
    json_float(out, s->options.run.used.cfg);
    fputs(", \"backend\": ", out);
    json_string(out, mar_backend_description(s->models.library));
    fputs(", \"guarantee\": ", out);
    json_string(out, mar_session_guarantee(s->session));
    putc('}', out);
}

static void answer_models(exchange *x, answer *a)
{
    text_buffer text;
    FILE *out = text_open(&text);
    if (out) {
        fputs("{\"object\": \"list\", \"data\": [", out);
        write_model(x->service, out);
        fputs("]}\n", out);
    }
    answer_text(a, 200, type_json, out, &text);
}

static void answer_model(exchange *x, answer *a)
{
    text_buffer text;
    if (strcmp(x->words[0], x->service->name) != 0) {
        answer_error(a, 404, "model", "model_not_found", "model: %s is not served, expected %.200s", x->words[0],
                     x->service->name);
        return;
    }
    FILE *out = text_open(&text);
    if (out) {
        write_model(x->service, out);
        putc('\n', out);
    }
    answer_text(a, 200, type_json, out, &text);
}

/* Answers with the first name of each class, in their order: none if they have none. */
static void answer_classes(exchange *x, answer *a)
{
    const class_table *names = x->service->models.classes.names;
    char name[CLASS_NAME_MAX + 2];
    text_buffer text;
    FILE *out = text_open(&text);
    if (out) fputs("{\"object\": \"list\", \"data\": [", out);
    for (int i = 0; out && names && i < x->service->models.classes.count; i++) {
        if (i > 0) fputs(", ", out);
        json_string(out, class_own_name(names, i, name, sizeof name));
    }
    if (out) fputs("]}\n", out);
    answer_text(a, 200, type_json, out, &text);
}

static void answer_metrics(exchange *x, answer *a);

/* --- jobs --------------------------------------------------------------------------------------------------------- */

/* Waits for the end of the exchange's job. Returns 1 if the client left. */
static int wait_for_end(exchange *x, job_view *view)
{
    jobs *t = &x->service->jobs;
    for (;;) {
        jobs_wait_end(t, x->job, LOOK_MS);
        jobs_view(t, x->job, view);
        if (view->over) return 0;
        if (exchange_client_left(x)) return 1;
    }
}

/* Refuses a job of n images. Returns 1 with the error in *a. */
static int refuse_job(service *s, submit_result result, int n, answer *a)
{
    const int places = s->options.queue + s->options.batch, memory = JOBS_INPUT_BYTES >> 20;
    int waiting, running, unencoded;
    jobs_count(&s->jobs, &waiting, &running, &unencoded);
    if (result == SUBMIT_NO_MEMORY) return answer_no_memory(a);
    if (result == SUBMIT_DRAINING)
        answer_error(a, 503, NULL, NULL, "the service is stopping");
    else if (result == SUBMIT_SHARE)
        answer_error(a, 429, NULL, "client_share",
                     "too many images of one client wait or are made: with %d more it would have more than places are "
                     "left for others",
                     n);
    else if (result == SUBMIT_SHARE_BYTES)
        answer_error(
            a, 429, NULL, "client_share",
            "the prompts, pictures and masks of one client's unfinished jobs are too large: with this it would "
            "have more of %d MB than is left for others",
            memory);
    else if (result == SUBMIT_FULL_BYTES)
        answer_error(a, 429, NULL, "queue_full",
                     "the queue is full: the prompts, pictures and masks of unfinished jobs would have more than %d MB",
                     memory);
    else
        answer_error(a, 429, NULL, "queue_full",
                     "the queue is full: %d images wait or are made, %d more are asked, and there are %d places",
                     waiting + running, n, places);
    a->retry_after = jobs_retry_after(&s->jobs);
    return 1;
}

/* Reads the request and submits its job. Returns 0, or 1 with the error in *a. */
static int routes_submit(exchange *x, int keeps, answer *a)
{
    service *s = x->service;
    request r;
    job_spec spec;
    const int is_edit = x->kind == BODY_FORM || x->sdapi == SDAPI_IMG2IMG;
    const int failed = exchange_fields(x, &r, a) != 0 || request_resolve(s, &r, is_edit, &spec, &x->manner, a) != 0;
    exchange_drop_body(x); /* the job may wait for long */
    if (failed) return 1;
    spec.client = x->client;
    const submit_result result = jobs_submit(&s->jobs, &spec, keeps || x->manner.wants_url, &x->job);
    return result == SUBMIT_OK ? 0 : refuse_job(s, result, spec.n, a);
}

/* Writes one entry of "data". Returns 0, or 1 without memory. */
static int routes_write_image(exchange *x, int i, FILE *out)
{
    const job *j = x->job;
    fputs(i ? ", {" : "{", out);
    if (x->manner.wants_url) {
        fputs("\"url\": \"", out);
        links_write_base(x, out);
        fprintf(out, "/v1/jobs/%s/images/%d%s\"", j->id, i, image_format_ending(j->spec.format));
    } else {
        fputs("\"b64_json\": ", out);
        if (picture_write_base64(x->service, x->job, i, out) != 0) return 1;
    }
    fprintf(out, ", \"seed\": %" PRIu64 ", \"image\": %d, ", j->spec.seed, i);
    events_write_class(x->service, j, out);
    fputs(", \"cfg\": ", out);
    json_float(out, j->spec.cfg);
    putc('}', out);
    return 0;
}

/* Writes the answer with all images. */
static void answer_images(exchange *x, answer *a)
{
    text_buffer text;
    FILE *out = text_open(&text);
    int lacks = !out;
    if (out && x->sdapi) {
        lacks = sdapi_write_images(x->service, x->job, &x->manner.warnings, out);
    } else if (out) {
        fprintf(out, "{\"created\": %lld, \"data\": [", (long long)x->job->created);
        for (int i = 0; i < x->job->spec.n && !lacks; i++) lacks = routes_write_image(x, i, out);
        fprintf(out, "], \"background\": \"opaque\", \"output_format\": \"%s\", \"size\": \"%dx%d\"",
                picture_format_name(x->job->spec.format), x->service->width, x->service->height);
        warnings_write(&x->manner.warnings, out);
        fputs("}\n", out);
    }
    answer_text(a, 200, type_json, out, &text);
    if (!lacks || a->code != 200) return;
    answer_free(a);
    answer_no_memory(a);
}

/* Makes the images of a request while the client waits. */
static void answer_generation(exchange *x, answer *a)
{
    job_view view;
    x->owns_job = 1;
    if (exchange_client_left(x)) {
        a->code = METRIC_GONE;
        return;
    }
    if (routes_submit(x, 0, a) != 0) return;
    if (x->manner.streams) {
        *a = (answer){.code = 200, .type = "text/event-stream", .is_stream = 1, .has_images = 1};
        return;
    }
    x->shows_end = 1;
    if (wait_for_end(x, &view) != 0) {
        a->code = METRIC_GONE;
    } else if (view.state == JOB_FAILED) {
        answer_error(a, view.code, view.param, NULL, "%s", view.why);
        if (view.code == 503) a->retry_after = 1;
    } else if (view.state == JOB_CANCELLED) {
        answer_error(a, 410, NULL, NULL, "the request was cancelled"); /* not 5xx, which clients try again */
    } else {
        answer_images(x, a);
    }
}

/* --- AUTOMATIC1111's API ------------------------------------------------------------------------------------------ */

static void answer_txt2img(exchange *x, answer *a)
{
    x->sdapi = SDAPI_TXT2IMG;
    answer_generation(x, a);
}

static void answer_img2img(exchange *x, answer *a)
{
    x->sdapi = SDAPI_IMG2IMG;
    answer_generation(x, a);
}

typedef enum { SDAPI_OPTIONS, SDAPI_MODELS, SDAPI_SAMPLERS, SDAPI_SCRIPTS, SDAPI_PROGRESS } sdapi_kind;

static void answer_sdapi(exchange *x, sdapi_kind kind, answer *a)
{
    const client_key client = exchange_client(x);
    text_buffer text;
    FILE *out = text_open(&text);
    if (out && kind == SDAPI_OPTIONS) sdapi_write_options(x->service, out);
    if (out && kind == SDAPI_MODELS) sdapi_write_models(x->service, out);
    if (out && kind == SDAPI_SAMPLERS) sdapi_write_samplers(out);
    if (out && kind == SDAPI_SCRIPTS) sdapi_write_scripts(out);
    if (out && kind == SDAPI_PROGRESS) sdapi_write_progress(x->service, &client, out);
    answer_text(a, 200, type_json, out, &text);
}

static void answer_sdapi_options(exchange *x, answer *a)
{
    answer_sdapi(x, SDAPI_OPTIONS, a);
}

static void answer_sdapi_models(exchange *x, answer *a)
{
    answer_sdapi(x, SDAPI_MODELS, a);
}

static void answer_sdapi_samplers(exchange *x, answer *a)
{
    answer_sdapi(x, SDAPI_SAMPLERS, a);
}

static void answer_sdapi_scripts(exchange *x, answer *a)
{
    answer_sdapi(x, SDAPI_SCRIPTS, a);
}

static void answer_sdapi_loras(exchange *x, answer *a)
{
    (void)x;
    answer_static(a, 200, type_json, "[]\n", 3);
}

static void answer_sdapi_progress(exchange *x, answer *a)
{
    answer_sdapi(x, SDAPI_PROGRESS, a);
}

/* Takes options, of which only the model counts, which cannot be changed. */
static void answer_set_options(exchange *x, answer *a)
{
    request r;
    x->sdapi = SDAPI_TXT2IMG;
    if (exchange_fields(x, &r, a) != 0) return;
    const json_value *model = json_member(x->parsed.values, "sd_model_checkpoint");
    r.field[FIELD_MODEL] = model ? *model : (json_value){.size = 0};
    r.name[FIELD_MODEL] = "sd_model_checkpoint";
    if (request_check_model(x->service, &r, a) == 0) answer_static(a, 200, type_json, "null\n", 5);
    exchange_drop_body(x);
}

static void answer_interrupt(exchange *x, answer *a)
{
    const client_key client = exchange_client(x);
    jobs_cancel_client(&x->service->jobs, &client);
    answer_static(a, 200, type_json, "{}\n", 3);
}

/* --- jobs in the background --------------------------------------------------------------------------------------- */

static void answer_view(exchange *x, int code, answer *a)
{
    text_buffer text;
    job_view view;
    jobs_view(&x->service->jobs, x->job, &view);
    FILE *out = text_open(&text);
    if (out) {
        events_write_job(x->service, x->job, &view, &x->manner.warnings, out);
        putc('\n', out);
    }
    answer_text(a, code, type_json, out, &text);
    x->shows_end = view.over && a->code == code;
}

/* Starts a job that goes on without its client. */
static void answer_new_job(exchange *x, answer *a)
{
    if (routes_submit(x, 1, a) != 0) return;
    if (x->manner.is_chosen) /* without memory it is not said */
        warnings_add(&x->manner.warnings,
                     "response_format and stream: have no effect on a job, which has links and events");
    answer_view(x, 202, a);
}

/* Finds the job of the path. Returns 0, or 1 with the error in *a. */
static int routes_find_job(exchange *x, answer *a)
{
    x->job = jobs_find(&x->service->jobs, x->words[0]);
    if (x->job) return 0;
    return answer_error(
        a, 404, NULL, "job_not_found",
        "no such job: there was none with this id, or it is no longer kept: finished jobs are for %d s, "
        "%d jobs and %d MB in all at most",
        x->service->options.keep, JOBS_KEPT_MAX, JOBS_KEPT_BYTES >> 20);
}

static void answer_job(exchange *x, answer *a)
{
    if (routes_find_job(x, a) == 0) answer_view(x, 200, a);
}

static void answer_events(exchange *x, answer *a)
{
    if (routes_find_job(x, a) == 0) *a = (answer){.code = 200, .type = "text/event-stream", .is_stream = 1};
}

static void answer_cancel(exchange *x, answer *a)
{
    if (routes_find_job(x, a) != 0) return;
    jobs_cancel(&x->service->jobs, x->job);
    answer_view(x, 200, a);
    x->shows_end = a->code == 200; /* also if the step of an image has not ended */
}

/* Finds the job and the image of "/v1/jobs/ID/.../I.png", of a file I with the ending of the job's format. Returns 0,
 * or 1 with the error in *a. */
static int find_image(exchange *x, int is_file, int *i, answer *a)
{
    if (routes_find_job(x, a) != 0) return 1;
    const char *word = x->words[1], *ending = image_format_ending(is_file ? x->job->spec.format : IMAGE_PNG);
    *i = word[0] >= '0' && word[0] <= '9' && strcmp(word + 1, ending) == 0 ? word[0] - '0' : -1; /* 10 at most */
    if (*i >= 0 && *i < x->job->spec.n) return 0;
    return answer_error(a, 404, NULL, "image_not_found", "no such image, expected 0%s to %d%s", ending,
                        x->job->spec.n - 1, ending);
}

/* Answers with a copy of a file that the job owns. */
static void answer_picture(exchange *x, int i, answer *a)
{
    size_t size;
    const uint8_t *file = picture_file(x->service, x->job, i, &size);
    char *copy = file ? malloc(size) : NULL;
    if (!copy) {
        answer_no_memory(a);
        return;
    }
    memcpy(copy, file, size);
    answer_bytes(a, 200, picture_type(x->job->spec.format), copy, size);
}

/* Refuses the picture of an image that is not done. Returns 1 if so. */
static int refuse_unfinished(const job_view *view, int i, answer *a)
{
    const job_state state = view->image[i].state;
    if (state == JOB_DONE) return 0;
    if (state == JOB_FAILED) return answer_error(a, view->code ? view->code : 500, NULL, NULL, "%s", view->why);
    return answer_error(a, 404, NULL, "image_not_ready", "the image is %s", job_state_name(state));
}

static void answer_image(exchange *x, answer *a)
{
    int i;
    job_view view;
    if (find_image(x, 1, &i, a) != 0) return;
    jobs_view(&x->service->jobs, x->job, &view);
    if (refuse_unfinished(&view, i, a) != 0) return;
    answer_picture(x, i, a);
    a->is_kept = x->shows_image = a->code == 200;
    x->image = i;
}

/* Waits for a preview that is newer than the last. Returns its step, or -1 if the image ended, the client left or
 * PREVIEW_S passed. */
static int wait_for_preview(exchange *x, int i, uint8_t *rgb)
{
    jobs *t = &x->service->jobs;
    const double began = tool_seconds();
    job_view view;
    int step = -1;
    jobs_view(t, x->job, &view);
    while (view.image[i].state == JOB_RUNNING && (step = jobs_get_preview(t, x->job, i, rgb)) < 0 &&
           !exchange_client_left(x) && tool_seconds() - began < PREVIEW_S) {
        jobs_wait_change(t, x->job, view.version, LOOK_MS);
        jobs_view(t, x->job, &view);
    }
    return step;
}

/* Answers with the picture of the tokens so far, or with the finished one. */
static void answer_preview(exchange *x, answer *a)
{
    service *s = x->service;
    int i;
    job_view view;
    if (find_image(x, 0, &i, a) != 0) return;
    uint8_t *rgb = malloc((size_t)s->width * (size_t)s->height * 3), *png = NULL;
    size_t size;
    if (!rgb || jobs_ask_preview(&s->jobs, x->job, i) != 0) {
        answer_no_memory(a);
    } else if (wait_for_preview(x, i, rgb) >= 0) {
        png = picture_plain(s, rgb, IMAGE_PNG, 0, &size);
        if (png)
            answer_bytes(a, 200, picture_type(IMAGE_PNG), png, size);
        else
            answer_no_memory(a);
    } else {
        jobs_view(&s->jobs, x->job, &view);
        if (refuse_unfinished(&view, i, a) == 0) answer_picture(x, i, a);
    }
    free(rgb);
}

/* --- the table ---------------------------------------------------------------------------------------------------- */

/* A path of which each '*' is a part that varies. A job's id is a secret of 128 bits, so that its paths need no token:
 * a picture's link can be opened by a browser. */
static const struct {
    const char *name, *method, *path;
    int needs_token, takes;
    void (*answer)(exchange *x, answer *a);
} routes[METRIC_ROUTES] = {
    {"page", "GET", "/", 0, TAKES_NONE, answer_page},
    {"page.css", "GET", "/page.css", 0, TAKES_NONE, answer_style},
    {"page.js", "GET", "/page.js", 0, TAKES_NONE, answer_script},
    {"health", "GET", "/health", 0, TAKES_NONE, answer_health},
    {"metrics", "GET", "/metrics", 1, TAKES_NONE, answer_metrics},
    {"models", "GET", "/v1/models", 1, TAKES_NONE, answer_models},
    {"model", "GET", "/v1/models/**", 1, TAKES_NONE, answer_model},
    {"classes", "GET", "/v1/classes", 1, TAKES_NONE, answer_classes},
    {"generations", "POST", "/v1/images/generations", 1, TAKES_JSON, answer_generation},
    {"edits", "POST", "/v1/images/edits", 1, TAKES_FORM, answer_generation},
    {"jobs", "POST", "/v1/jobs", 1, TAKES_JSON | TAKES_FORM, answer_new_job},
    {"job", "GET", "/v1/jobs/*", 0, TAKES_NONE, answer_job},
    {"events", "GET", "/v1/jobs/*/events", 0, TAKES_NONE, answer_events},
    {"cancel", "POST", "/v1/jobs/*/cancel", 0, TAKES_NONE, answer_cancel},
    {"image", "GET", "/v1/jobs/*/images/*", 0, TAKES_NONE, answer_image},
    {"preview", "GET", "/v1/jobs/*/previews/*", 0, TAKES_NONE, answer_preview},
    {"txt2img", "POST", "/sdapi/v1/txt2img", 1, TAKES_JSON, answer_txt2img},
    {"img2img", "POST", "/sdapi/v1/img2img", 1, TAKES_JSON | TAKES_PICTURES, answer_img2img},
    {"options", "GET", "/sdapi/v1/options", 1, TAKES_NONE, answer_sdapi_options},
    {"set_options", "POST", "/sdapi/v1/options", 1, TAKES_JSON, answer_set_options},
    {"sd_models", "GET", "/sdapi/v1/sd-models", 1, TAKES_NONE, answer_sdapi_models},
    {"samplers", "GET", "/sdapi/v1/samplers", 1, TAKES_NONE, answer_sdapi_samplers},
    {"scripts", "GET", "/sdapi/v1/scripts", 1, TAKES_NONE, answer_sdapi_scripts},
    {"loras", "GET", "/sdapi/v1/loras", 1, TAKES_NONE, answer_sdapi_loras},
    {"progress", "GET", "/sdapi/v1/progress", 1, TAKES_NONE, answer_sdapi_progress},
    {"interrupt", "POST", "/sdapi/v1/interrupt", 1, TAKES_NONE, answer_interrupt},
    {"other", NULL, NULL, 0, TAKES_NONE, NULL},
};

static void answer_metrics(exchange *x, answer *a)
{
    service *s = x->service;
    text_buffer text;
    const char *names[METRIC_ROUTES] = {NULL};
    metric_gauges now = {.routes = names,
                         .model = s->name,
                         .batch = s->options.batch,
                         .queue = s->options.queue,
                         .connections = atomic_load(&s->connections),
                         .since = tool_seconds() - s->began};
    for (int i = 0; i < METRIC_ROUTES; i++) names[i] = routes[i].name;
    jobs_count(&s->jobs, &now.waiting, &now.running, &now.unencoded);
    FILE *out = text_open(&text);
    if (out) metrics_write(&s->metrics, &now, out);
    answer_text(a, 200, "text/plain; version=0.0.4; charset=utf-8", out, &text);
}

/* Compares a path with a route's, and copies the parts that vary: * without a slash, ** the rest. */
static int matches(const char *path, const char *url, char words[2][256])
{
    for (int count = 0; *path; path++) {
        if (*path != '*') {
            if (*path != *url++) return 0;
            continue;
        }
        char *word = words[count++];
        const int is_rest = path[1] == '*';
        size_t n = 0;
        while (*url && (is_rest || (*url != '/' && *url != path[1])) && n < 255) word[n++] = *url++;
        path += is_rest;
        word[n] = '\0';
        if (n == 0) return 0;
    }
    return *url == '\0';
}

/* --- before the body ---------------------------------------------------------------------------------------------- */

/* Compares in a time that does not depend on where the texts differ. */
static int same_secret(const char *given, const char *secret)
{
    const size_t n = strlen(secret), m = strlen(given);
    unsigned differ = n != m;
    for (size_t i = 0; i < n; i++) differ |= (unsigned char)secret[i] ^ (unsigned char)given[m ? i % m : 0];
    return differ == 0;
}

/* Returns whether the request has the token: as OpenAI's clients send it, or as the password of any user, as those of
 * AUTOMATIC1111's API do. */
static int has_token(const exchange *x)
{
    static const char bearer[] = "Bearer ", basic[] = "Basic ";
    enum { LONGEST = 2048 };
    char login[LONGEST + 1];
    const char *given = exchange_header(x, MHD_HTTP_HEADER_AUTHORIZATION);
    if (given && strncasecmp(given, bearer, sizeof bearer - 1) == 0) {
        given += sizeof bearer - 1;
        return same_secret(given + strspn(given, " "), x->service->token);
    }
    if (!given || strncasecmp(given, basic, sizeof basic - 1) != 0) return 0;
    given += sizeof basic - 1;
    const int size = base64_read(given + strspn(given, " "), login, LONGEST);
    const char *colon = size < 0 ? NULL : strchr(login, ':');
    return colon && strlen(login) == (size_t)size && same_secret(colon + 1, x->service->token);
}

/* Returns whether the name in a Host header is an address or localhost. A page from elsewhere, whose name was made to
 * lead here, sends its own. */
static int is_own_host(const char *host)
{
    const size_t name = host[0] == '[' ? strcspn(host, "]") + 1 : strcspn(host, ":");
    return host[0] == '[' || strspn(host, "0123456789.") == name ||
           (name == 9 && strncasecmp(host, "localhost", name) == 0);
}

const char *routes_allowed_origin(const exchange *x)
{
    const char *cors = x->service->options.cors, *origin = exchange_header(x, "Origin");
    if (!cors || !origin || !*origin) return NULL; /* a header of ours has a value */
    return strcmp(cors, "*") == 0 || strcasecmp(cors, origin) == 0 ? origin : NULL;
}

const char *routes_asked_headers(const exchange *x)
{
    static const char allowed[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-, ";
    const char *asked = exchange_header(x, "Access-Control-Request-Headers");
    return asked && *asked && asked[strspn(asked, allowed)] == '\0' ? asked : NULL;
}

/* Refuses requests that a browser makes for a page from elsewhere. */
static int check_origin(exchange *x)
{
    const char *host = exchange_header(x, MHD_HTTP_HEADER_HOST), *origin = exchange_header(x, "Origin");
    if (x->service->token) return 0; /* which a page from elsewhere does not have */
    if (host && x->service->is_local && !is_own_host(host) && !links_is_public(x->service, host))
        return answer_error(&x->answer, 403, NULL, NULL,
                            "Host: is %.100s, expected localhost or an address; another name needs --token_file or "
                            "--public_url",
                            host);
    const char *site = origin && strncmp(origin, "http", 4) == 0 ? strstr(origin, "://") : NULL;
    if (routes_allowed_origin(x)) return 0;
    if (origin && (!site || !((host && strcasecmp(site + 3, host) == 0) || links_is_public(x->service, site + 3))))
        return answer_error(&x->answer, 403, NULL, NULL, "Origin: is %.100s, expected a page of this service", origin);
    return 0;
}

void routes_check(exchange *x, const char *method, const char *url)
{
    const char *allowed = NULL;
    const char *const wanted = strcmp(method, "HEAD") == 0 ? "GET" : method;
    int i = 0;
    for (; routes[i].path; i++) {
        if (!matches(routes[i].path, url, x->words)) continue;
        x->path = routes[i].path;
        allowed = allowed ? "GET, POST" : routes[i].method;
        if (strcmp(routes[i].method, wanted) == 0) break;
    }
    x->route = i;
    x->is_head = wanted != method;
    const int is_word = strspn(method, "ABCDEFGHIJKLMNOPQRSTUVWXYZ") == strlen(method);
    snprintf(x->method, sizeof x->method, "%s", is_word ? method : "?");
    if (check_origin(x) != 0) return;
    if (allowed && strcmp(method, "OPTIONS") == 0 && routes_allowed_origin(x)) { /* a browser asks before it sends */
        answer_static(&x->answer, 204, NULL, "", 0);
        x->answer.is_preflight = 1;
        return;
    }
    if (!routes[i].path && !allowed) {
        answer_error(&x->answer, 404, NULL, NULL,
                     "no such path, expected /v1/images/generations, /v1/images/edits, "
                     "/v1/jobs, /v1/models, /health, /metrics or /");
    } else if (!routes[i].path) {
        answer_error(&x->answer, 405, NULL, NULL, "the path is for %s", allowed);
        x->answer.allow = allowed;
    } else if (routes[i].needs_token && x->service->token && !has_token(x)) {
        answer_error(&x->answer, 401, NULL, "invalid_api_key",
                     "the request has no valid token, expected the header "
                     "Authorization: Bearer TOKEN");
    } else if (routes[i].takes) {
        exchange_expect(x, routes[i].takes);
    }
}

int routes_watches(const exchange *x)
{
    return routes[x->route].answer == answer_events || routes[x->route].answer == answer_preview;
}

void routes_answer(exchange *x, answer *a)
{
    routes[x->route].answer(x, a);
}
