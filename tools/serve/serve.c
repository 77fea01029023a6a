/* mar serve: makes images for HTTP clients, as OpenAI's service does. */
#include "tools/cli/command.h"

#include "mar_methods.h"
#include "tools/cli/file.h"
#include "tools/cli/interruption.h"
#include "tools/cli/options.h"
#include "tools/cli/progress.h"
#include "tools/cli/subcommands.h"
#include "tools/generate/record.h"
#include "tools/serve/engine.h"
#include "tools/serve/http.h"
#include "tools/serve/links.h"

#include <ctype.h>
#include <fcntl.h>
#include <malloc.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum {
    TICK_MS = 100,  /* between looks at signals and at connections */
    ALIAS_MAX = 200 /* bytes */
};

static const char *const access_formats[] = {"off", "text", "json", NULL};

static const mar_param rows[] = {
    {.group = "Service",
     OPTION_TEXT(serve_options, listen, "ADDRESS"),
     .help = "numeric address to listen on\n"
             "127.0.0.1 and ::1 are reached from this machine alone, 0.0.0.0 and :: from everywhere. Those should "
             "have --token_file, and a proxy before them that speaks TLS."},
    {OPTION_INT(serve_options, port, 0, 65535),
     .help = "TCP port; 0: any free one\n"
             "The address is the first line on standard output. Nothing is served before it is printed."},
    {OPTION_TEXT(serve_options, token_file, "FILE"),
     .help = "serve only requests with the token in this file\n"
             "Its first line is the token, at least 16 characters. Requests have the header Authorization: Bearer "
             "TOKEN, OpenAI's api_key. /health, the page and the paths of a job, whose id is secret, need none."},
    {OPTION_TEXT(serve_options, public_url, "URL"),
     .help =
         "address in links to pictures, such as https://images.example.com/mar\n"
         "For a proxy that clients reach under another address. Without it links have the scheme and host that the "
         "proxy names with X-Forwarded-Proto and X-Forwarded-Host, or Forwarded, else http and the request's Host."},
    {OPTION_INT(serve_options, queue, JOB_IMAGES_MAX, 16384),
     .help =
         "images that may wait; more are refused with 429\n"
         "Clients, told apart by their address, take turns. One whose images wait or are made gets more places only "
         "while it leaves as many as it has."},
    {OPTION_INT(serve_options, timeout, 1, 3600), .argument = "SECONDS",
     .help = "time to send a request, and to go on reading an answer\n"
             "An idle connection is closed after it, too. The time in which images are made does not count."},
    {OPTION_INT(serve_options, keep, 1, 86400), .argument = "SECONDS",
     .help = "time for which links to finished images work\n"
             "If there are more than 1024 jobs or 256 MB, those of the client that has the most go earlier."},
    {OPTION_INT(serve_options, grace, 0, 3600), .argument = "SECONDS",
     .help = "time to fetch results after SIGTERM\n"
             "What was accepted is made. A finished job keeps the service up until its pictures are fetched, for this "
             "time at most. A second signal ends it at once."},
    {OPTION_TEXT(serve_options, cors, "ORIGIN"),
     .help =
         "let pages of this origin use the service, such as https://app.example.com\n"
         "A browser keeps other pages' scripts out. *: those of all pages. Without a token every page that a user of "
         "this machine opens could then make images: have --token_file with *."},
    {OPTION_CHOICE(serve_options, access_log, access_formats),
     .help = "a line on standard error for each request that was answered\n"
             "text: time, client, method, path, status, seconds, images. json: the same as an object. The ids of jobs, "
             "which are secret, are not in it."},
    {OPTION_TEXT(serve_options, alias, "NAME"),
     .help = "name of the model in /v1/models and in requests\n"
             "Without it the file's, without its directories, which requests may have in any case."},
    {OPTION_FLAG(serve_options, accept_any_model),
     .help = "requests for another model get this one's images\n"
             "The answer's warnings say so. For clients whose model's name cannot be set."},
    {OPTION_FLAG(serve_options, accept_any_size),
     .help = "requests for another size get images of the model's\n"
             "The answer's warnings say so. For clients that always ask for 1024x1024."},
    {OPTION_FLAG(serve_options, strict),
     .help = "refuse requests with unknown fields, with the nearest name\n"
             "Without it they have no effect, and the answer's warnings name them. Those of /sdapi are always named."},
    {.group = "Machine",
     OPTION_INT(serve_options, batch, 1, 1024),
     .help = "images to make at a time; fewer need less memory\n"
             "Images of different requests share a batch."},
    {.group = "Messages",
     OPTION_FLAG(serve_options, quiet),
     .help = "no progress and no warnings; errors and the address only"},
    {0},
};

/* Options that --help shows. */
static const char *const common[] = {
    "model", "vae", "listen",   "port",     "token_file",         "queue", "batch", "timeout", "keep",
    "grace", "t5",  "captions", "num_iter", "num_sampling_steps", "cfg",   "fast",  "dtype",   NULL};

static int serve_parse(int argc, char **argv, serve_options *o)
{
    option_set set = {
        .command = "serve",
        .about = "usage: mar serve [OPTIONS]\n"
                 "\n"
                 "Makes images for HTTP clients: OpenAI's image API, jobs with progress, and a page to try it.\n"
                 "man mar explains every option and path.\n",
        .common = common,
        .example = "example: mar serve --model checkpoint-last.pth --vae kl16.ckpt --port 8080\n"
                   "         curl -d '{\"prompt\": \"golden retriever\"}' -H 'Content-Type: application/json' \\\n"
                   "             http://127.0.0.1:8080/v1/images/generations\n",
    };
    *o = (serve_options){
        .listen = "127.0.0.1", .port = 8080, .batch = 16, .queue = 256, .timeout = 30, .keep = 3600, .grace = 30};
    run_options_init(&o->run);
    options_add_table(&set, rows, o, 0);
    run_options_add(&o->run, &set);
    const int status = options_read(&set, argc, argv);
    if (status != OPTIONS_RUN) return status;
    if (run_options_done(&o->run, &set) != 0) return 1;
    const char *site = o->cors && strncmp(o->cors, "http", 4) == 0 ? strstr(o->cors, "://") : NULL;
    if (o->cors && strcmp(o->cors, "*") != 0 && (!site || !site[3] || strchr(site + 3, '/')))
        return tool_error("--cors %s: expected an origin such as https://app.example.com, without a path, or *",
                          o->cors);
    if (o->alias && (!*o->alias || strlen(o->alias) > ALIAS_MAX || o->alias[strcspn(o->alias, "\r\n")]))
        return tool_error("--alias: expected a name of 1 to %d bytes in one line", ALIAS_MAX);
    if (run_was_given(&o->run, "seed"))
        return tool_error("--seed: has no effect, a request has its own seed or a random one");
    return OPTIONS_RUN;
}

/* --- preparation -------------------------------------------------------------------------------------------------- */

/* Reads the token. Returns 0, or 1 with the error printed. */
static int read_token(service *s)
{
    enum { SHORTEST = 16, LONGEST = 1024 };
    const char *path = s->options.token_file;
    struct stat st;
    size_t size;
    if (!path) return 0;
    s->token = tool_read_file(path, 0, 1, "a file with a token", &size);
    if (!s->token) return 1;
    s->token[strcspn(s->token, "\r\n")] = '\0';
    const size_t length = strlen(s->token);
    if (length < SHORTEST || length > LONGEST)
        return tool_error("%s: its first line has %zu characters, expected a token of %d to %d", path, length, SHORTEST,
                          LONGEST);
    for (size_t i = 0; i < length; i++)
        if (!isgraph((unsigned char)s->token[i]))
            return tool_error("%s: character %zu of the token is no printable ASCII character", path, i + 1);
    if (!s->options.quiet && stat(path, &st) == 0 && (st.st_mode & (S_IRWXG | S_IRWXO)))
        fprintf(stderr, "mar: warning: %s: others may read the token; chmod 600 keeps it from them\n", path);
    return 0;
}

static int serve_prepare(service *s, progress *bar)
{
    serve_options *o = &s->options;
    if (read_token(s) != 0 || links_check(s) != 0) return 1;
    if (models_load(&s->files, &o->run, bar, &s->models) != 0) return 1;
    progress_note(bar, "hashing the model's files");
    if (record_identify(&o->run, &s->models) != 0) return 1;
    progress_note(bar, "preparing");
    if (models_session(&s->models, &o->run, o->batch, &s->session) != 0) return 1;
    progress_clear(bar);
    s->takes_text = s->files.encoder_kept.text != NULL;
    s->takes_negative = s->takes_text && mar_text_get_config(s->files.encoder_kept.text)->negative;
    mar_session_image_size(s->session, &s->width, &s->height);
    s->name = o->alias ? o->alias : tool_base_name(o->run.model);
    s->created = time(NULL);
    s->began = tool_seconds();
    metrics_create(&s->metrics);
    jobs_create(&s->jobs, &s->metrics, o->queue, o->batch, o->keep, s->width, s->height);
    bodies_create(&s->bodies);
    log_create(&s->log);
    return 0;
}

/* --- the run ------------------------------------------------------------------------------------------------------ */

static void warn_of_strangers(const service *s)
{
    if (!s->is_local && !s->token && !s->options.quiet)
        fprintf(stderr,
                "mar: warning: --listen %s: everyone who reaches this machine may use it; --token_file asks for a "
                "token\n",
                s->options.listen);
}

/* Waits until a signal comes. Then refuses new jobs, and waits until all others are made and their clients have had
 * the time to fetch them. */
static void serve(service *s, http *h)
{
    while (!interruption_came()) {
        usleep(TICK_MS * 1000);
        http_watch(h);
        jobs_expire(&s->jobs);
    }
    jobs_drain(&s->jobs);
    while (!jobs_wait_idle(&s->jobs, TICK_MS)) http_watch(h);
    const double end = tool_seconds() + s->options.grace + s->options.timeout; /* for clients that read slowly */
    for (; jobs_are_wanted(&s->jobs, s->options.grace); usleep(TICK_MS * 1000)) http_watch(h);
    http_refuse(h);
    for (; atomic_load(&s->exchanges) > 0 && tool_seconds() < end; usleep(TICK_MS * 1000)) http_watch(h);
}

/* Serves at the bound socket, and closes it. */
static int serve_run(service *s, int bound)
{
    engine e = {.service = NULL};
    http *h = NULL;
    mallopt(M_MMAP_THRESHOLD, 256 << 10); /* large bodies go back to the system, whichever thread frees them */
    interruption_catch();
    const int failed = engine_start(&e, s) != 0 ||
                       (s->takes_text && text_start(&s->text, &s->files.encoder_kept, &s->jobs, &s->log) != 0) ||
                       http_listen(s, bound) != 0;
    if (failed)
        close(bound);
    else
        h = http_start(s, bound);
    if (h) {
        warn_of_strangers(s);
        serve(s, h);
        http_end(h);
    }
    jobs_stop(&s->jobs);
    engine_end(&e);
    text_end(&s->text);
    return h ? 0 : 1;
}

int cmd_serve(int argc, char **argv)
{
    service s = {.is_local = 0};
    progress bar;
    int status = serve_parse(argc, argv, &s.options);
    if (status != OPTIONS_RUN) return status;
    progress_start(&bar, s.options.quiet);
    s.files.quiet = s.options.quiet;
    s.files.needs_vae = 1;
    s.files.encoder = MODELS_ENCODER_IF_THERE;
    s.files.keeps_encoder = 1;
    const int bound = http_bind(&s);
    status = bound < 0 || serve_prepare(&s, &bar) != 0;
    if (status == 0) {
        status = serve_run(&s, bound);
        log_destroy(&s.log);
        bodies_destroy(&s.bodies);
        jobs_destroy(&s.jobs);
        metrics_destroy(&s.metrics);
    }
    mar_session_free(s.session);
    models_free(&s.files);
    free(s.token);
    free(s.public_url);
    return status;
}
