#include "tools/fidelity/search.h"

#include "tools/cli/command.h"
#include "tools/fidelity/compare.h"
#include "tools/fidelity/runs.h"
#include "tools/cli/file.h"
#include "tools/cli/file_sum.h"
#include "tools/cli/interruption.h"

#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
    COARSE_TURNS = 3, /* turns of a screening; the first prepares memory and is not timed */
    FINE_TURNS = 6    /* turns of a final point */
};

typedef struct {
    search s;
    fidelity_sessions open;
    progress *bar;
    int is_new; /* 1: the JSON file may lack a measurement */
} job;

/* --- the reference ------------------------------------------------------------------------------------------------ */

/* Names the JSON file and the store, beside the page. */
static int name_files(job *j)
{
    const char *page = j->s.page;
    const size_t stem = strlen(page) - strlen(".html");
    if (tool_can_write_as(page, ".html") != 0) return 1;
    if (asprintf(&j->s.json, "%.*s.json", (int)stem, page) < 0) {
        j->s.json = NULL;
        return tool_error("out of memory");
    }
    if (!j->s.f->store) {
        if (asprintf(&j->s.store, "%.*s", (int)stem, page) < 0) j->s.store = NULL;
        if (!j->s.store) return tool_error("out of memory");
        j->s.f->store = j->s.store;
    }
    return tool_can_write_as(j->s.json, ".json");
}

/* Makes the images of a range. Afterwards a signal ends the process at once, as nothing else is kept. Returns the exit
 * status; fidelity_search reports an interruption. */
static int make_range(job *j, const fidelity_range *range)
{
    const int status = fidelity_make_range(j->s.f, j->bar, &j->open, range);
    if (status != 0) return status;
    if (interruption_came()) return interruption_status();
    interruption_ends();
    return 0;
}

static int make_reference(job *j)
{
    fidelity *f = j->s.f;
    const fidelity_range all = {0, 1, 0, f->num, -1, NULL};
    progress_note(j->bar, "the reference");
    if (fidelity_allocate_run(f, &f->runs[0]) != 0) return 1;
    const int status = make_range(j, &all);
    if (status != 0) return status;
    const size_t numbers = (size_t)f->num * (size_t)f->positions * (size_t)f->channels;
    j->s.reference_sum = memory_sum(f->runs[0].tokens, numbers * sizeof *f->runs[0].tokens);
    return 0;
}

/* Measures the floor of `images` images. */
static int measure_floor(job *j, int images, search_floor *out)
{
    fidelity *f = j->s.f;
    const int all = f->num;
    f->num = images;
    const int failed = fidelity_measure_floor(f);
    f->num = all;
    if (!failed && !f->has_floor)
        return tool_error("--screen %d: expected two images of each of %d classes, to know what another seed makes",
                          images, f->class_count);
    *out = (search_floor){f->image_floor, f->token_floor};
    return failed;
}

/* --- a point ------------------------------------------------------------------------------------------------------ */

/* Sets *o to the reference's options followed by those of the point. Copies the latter to `words`. */
static int set_options(const search *s, const search_point *p, char *words, size_t size, run_options *o)
{
    static char command[] = "fidelity";
    char *arguments[3 * SEARCH_AXES + 2] = {command};
    int count = 1, drafts = 0;
    option_set set = {.command = command};
    words[0] = '\0';
    for (int k = 0; k < s->axis_count; k++) {
        const char *choice = s->axes[k].choices[p->choice[k]];
        const size_t used = strlen(words);
        if (*choice) snprintf(words + used, size - used, "%s ", choice);
    }
    drafts = strstr(p->options, "--draft ") != NULL;
    for (char *word = strtok(words, " "); word; word = strtok(NULL, " ")) arguments[count++] = word;
    *o = s->base;
    run_options_add(o, &set);
    if (options_parse(&set, count, arguments) != OPTIONS_RUN) return 1;
    if (drafts) o->draft = s->draft;
    return 0;
}

/* Opens the point's session. Sets *refused if the session rejects the options; p->refused has the reason. */
static int open_point(job *j, search_point *p, int *refused)
{
    fidelity *f = j->s.f;
    fidelity_run *r = &f->runs[1];
    run_models *models = &j->open.models[1];
    static char words[SEARCH_TEXT];
    if (set_options(&j->s, p, words, sizeof words, &r->options) != 0 ||
        models_load(&j->open.files, &r->options, j->bar, models) != 0)
        return 1;
    const mar_status status =
        mar_session_create(models->model, models->vae, &r->options.params, f->batch, &j->open.sessions[1]);
    *refused = status == MAR_EARG;
    if (*refused) snprintf(p->refused, sizeof p->refused, "%s", mar_error(models->library));
    if (status == MAR_OK || *refused) {
        if (status == MAR_OK) r->options.used = *mar_session_get_params(j->open.sessions[1]);
        snprintf(r->name, sizeof r->name, "%s", p->options);
        return 0;
    }
    return tool_error("%s: %s", p->options, mar_error(models->library));
}

/* The times of a point's turns beside the reference, as a piece of its store. They belong to this reference, machine and
 * number of threads. */
typedef struct {
    char kind[STORE_KIND];
    int *labels; /* [images] */
    store_range at;
    store_array arrays[2];
} turn_times;

static int describe_times(const job *j, int images, int turns, turn_times *out)
{
    const fidelity *f = j->s.f;
    char host[HOST_NAME_MAX + 1] = "";
    gethostname(host, sizeof host - 1);
    const image_text of[] = {{"reference", j->s.run}, {"backend", f->backend}, {"host", host}};
    *out = (turn_times){.labels = malloc((size_t)images * sizeof *out->labels)};
    if (!out->labels) return tool_error("out of memory for %d labels", images);
    for (int i = 0; i < images; i++) out->labels[i] = f->classes[i % f->class_count];
    out->at = (store_range){0, images, out->labels};
    snprintf(out->kind, sizeof out->kind, "times-%016" PRIx64, store_hash(of, (int)(sizeof of / sizeof *of)));
    out->arrays[0] = (store_array){"seconds", NPZ_F64, 1, {turns}, f->runs[1].turn_seconds};
    out->arrays[1] = (store_array){"reference", NPZ_F64, 1, {turns}, f->runs[0].turn_seconds};
    return 0;
}

/* Reads the times. A missing or unreadable piece is to be made. */
static store_state read_times(const job *j, const turn_times *t, int turns)
{
    const fidelity *f = j->s.f;
    store_state state = store_read(&j->open.stores[1], &t->at, t->kind, t->arrays, 2);
    for (int r = 0; r < 2 && state == STORE_THERE; r++)
        for (int i = 0; i < turns; i++)
            if (!(f->runs[r].turn_seconds[i] > 0 && f->runs[r].turn_seconds[i] < 1e9)) state = STORE_DAMAGED;
    return state;
}

/* Makes the point's images. The first are made in turns with the reference, unless their times are stored. */
static int make_images(job *j, const turn_times *t, int images, int turns)
{
    const int paired = t->at.n;
    const store_state state = read_times(j, t, turns);
    const int stored = state == STORE_THERE, first = stored ? 0 : paired;
    const fidelity_range pair = {0, 2, 0, paired, 0, NULL}, rest = {1, 1, first, images - first, -1, NULL};
    int status = state == STORE_ERROR;
    if (status == 0 && !stored) {
        j->is_new = 1;
        status = make_range(j, &pair);
        if (status == 0) status = store_write(&j->open.stores[1], &t->at, t->kind, t->arrays, 2);
    }
    if (status == 0 && rest.images > 0) status = make_range(j, &rest);
    if (status == 0 && stored)
        status = read_times(j, t, turns) != STORE_THERE; /* another run's turns have replaced them */
    return status;
}

static int make_point(job *j, int images, int turns)
{
    fidelity *f = j->s.f;
    const int paired = turns * f->batch < images ? turns * f->batch : images;
    const int timed = (paired + f->batch - 1) / f->batch;
    const long before = f->made;
    turn_times t;
    if (fidelity_open_stores(f, 1, 1, &j->open) != 0 || fidelity_allocate_run(f, &f->runs[1]) != 0 ||
        describe_times(j, paired, timed, &t) != 0)
        return 1;
    const int status = make_images(j, &t, images, timed);
    if (f->made > before) j->is_new = 1;
    free(t.labels);
    return status;
}

/* Compares the images, and computes the times of the turns that both runs made. */
static int judge_point(job *j, int images, int turns, search_figures *out)
{
    fidelity *f = j->s.f;
    fidelity_run *r = &f->runs[1];
    const int all = f->num, timed = turns * f->batch < images ? turns * f->batch : images;
    f->num = timed, f->run_count = 2;
    int status = fidelity_time(f);
    f->num = images, f->run_count = 1;
    progress_note(j->bar, "comparing");
    if (status == 0) status = fidelity_compare_run(f, r);
    f->num = all;
    progress_clear(j->bar);
    if (status != 0) return 1;
    j->s.reference_seconds = f->runs[0].seconds.median;
    *out = (search_figures){.images = images,
                            .seconds = r->seconds.median,
                            .speed = r->speed.median,
                            .distance = r->image.distance,
                            .token_distance = r->token.distance,
                            .p = r->p,
                            .recognised = f->judged ? (double)r->recognised / images : -1,
                            .speed_low = r->speed.low,
                            .speed_high = r->speed.high};
    snprintf(out->guarantee, sizeof out->guarantee, "%s", mar_session_guarantee(j->open.sessions[1]));
    return 0;
}

/* Measures point i with `images` images, and writes the JSON file. Returns the exit status. */
static int measure(job *j, int i, int images, int turns)
{
    search *s = &j->s;
    search_point *p = &s->points[i];
    search_figures found = {0};
    int refused = 0;
    int status = open_point(j, p, &refused);
    if (status == 0 && !refused) status = make_point(j, images, turns);
    if (status == 0 && !refused) status = judge_point(j, images, turns, &found);
    mar_session_free(j->open.sessions[1]);
    j->open.sessions[1] = NULL;
    fidelity_free_run(&s->f->runs[1]);
    if (status != 0) return status;
    if (!refused && images == s->screen) p->screened = found;
    if (!refused && images == s->f->num) p->final = found;
    search_choose(s);
    if (j->is_new && search_write(s) != 0) return 1;
    const int prints = !s->f->quiet && !s->f->json && (refused || j->is_new);
    j->is_new = 0;
    if (!prints) return 0;
    if (refused)
        printf("%s: left out, %s\n", p->options, p->refused);
    else
        printf("%s: %d images, %.4g s per image, speed %.2f, distance %.4f\n", p->options, images, found.seconds,
               found.speed, found.distance);
    fflush(stdout);
    return 0;
}

/* --- the search --------------------------------------------------------------------------------------------------- */

static int screen(job *j)
{
    search *s = &j->s;
    for (;;) {
        search_rank(s);
        const int i = search_next(s);
        if (i < 0) return 0;
        const int status = measure(j, i, s->screen, COARSE_TURNS);
        if (status != 0) return status;
    }
}

static int finish(job *j)
{
    search *s = &j->s;
    int list[SEARCH_FINALS];
    const int n = search_finals(s, list);
    for (int k = 0; k < n; k++) {
        if (s->points[list[k]].final.images) continue;
        const int status = measure(j, list[k], s->f->num, FINE_TURNS);
        if (status != 0) return status;
    }
    search_choose(s);
    return search_write(s) || search_write_page(s, search_record(s));
}

static int run(job *j)
{
    search *s = &j->s;
    fidelity *f = s->f;
    if (s->screen == 0) s->screen = f->num;
    if (s->screen > f->num)
        return tool_error("--screen %d: expected no more than the %d images of --num", s->screen, f->num);
    if (f->batch > s->screen) f->batch = s->screen; /* so that a whole turn fits */
    if (name_files(j) != 0 || fidelity_open(f, j->bar, &j->open) != 0) return 1;
    fidelity_name_run(f, &f->runs[0]);
    f->shown = 0; /* the page has no samples */
    snprintf(s->reference, sizeof s->reference, "%s", f->runs[0].name);
    if (search_list(s) != 0 || fidelity_open_stores(f, 0, 1, &j->open) != 0) return 1;
    snprintf(s->run, sizeof s->run, "%016" PRIx64, j->open.stores[0].hash);
    int status = make_reference(j);
    if (status == 0) status = measure_floor(j, s->screen, &s->coarse);
    if (status == 0) status = measure_floor(j, f->num, &s->floor);
    if (status == 0) status = search_check(s);
    if (status == 0) status = screen(j);
    if (status == 0) status = finish(j);
    if (status != 0) return status;
    if (f->json) return search_print_json(s);
    if (!f->quiet) search_print(s);
    return 0;
}

int fidelity_search(fidelity *f, progress *bar)
{
    job *j = calloc(1, sizeof *j);
    if (!j) return tool_error("out of memory");
    j->bar = bar;
    j->s = (search){.f = f,
                    .base = f->runs[0].options,
                    .draft = f->search_draft,
                    .screen = f->screen,
                    .budget = f->points,
                    .page = f->out};
    const int status = run(j);
    if (status > 1) interruption_end("what was made is in %s; the same command goes on", f->store);
    fidelity_close(&j->open);
    free(j->s.points);
    free(j->s.json);
    free(j->s.store);
    free(j);
    return status;
}
