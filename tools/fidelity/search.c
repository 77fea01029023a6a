#include "tools/fidelity/search.h"

#include "tools/cli/command.h"
#include "tools/fidelity/compare.h"
#include "tools/generate/classes.h"
#include "tools/cli/file.h"
#include "tools/cli/file_sum.h"
#include "tools/cli/interruption.h"
#include "tools/cli/text.h"

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

/* --- the reference ------------------------------------------------------------------------------------------------ */

/* Names the JSON file and the store, beside the page. */
static int name_files(search *s)
{
    fidelity *f = s->f;
    if (tool_can_write_as(f->out, ".html") != 0) return 1;
    const int stem = (int)(strlen(f->out) - strlen(".html"));
    if (asprintf(&s->json, "%.*s.json", stem, f->out) < 0) s->json = NULL;
    if (!f->store) f->store = s->store = strndup(f->out, (size_t)stem);
    if (!s->json || !f->store) return tool_error("out of memory");
    return tool_can_write_as(s->json, ".json");
}

/* Makes the images of a range. Afterwards a signal ends the process at once, as nothing else is kept. Returns the exit
 * status; fidelity_search reports an interruption. */
static int make_range(search *s, const fidelity_range *range)
{
    const int status = fidelity_make_range(s->f, range);
    if (status != 0) return status;
    if (interruption_came()) return interruption_status();
    interruption_ends();
    return 0;
}

static int make_reference(search *s)
{
    fidelity *f = s->f;
    progress_note(f->bar, "the reference");
    if (fidelity_allocate_run(f, &f->runs[0]) != 0) return 1;
    const int status = make_range(s, &(fidelity_range){0, 1, 0, f->num, -1, NULL});
    if (status != 0) return status;
    const size_t numbers = (size_t)f->num * (size_t)f->positions * (size_t)f->channels;
    s->reference_sum = memory_sum(f->runs[0].tokens, numbers * sizeof *f->runs[0].tokens);
    return fidelity_measure_floor(f, f->screen, &s->coarse) || fidelity_measure_floor(f, f->num, &s->floor);
}

/* --- a point ------------------------------------------------------------------------------------------------------ */

/* Sets *o to the reference's options followed by those of the point. Copies the latter to `words`. */
static int set_options(const search *s, const search_point *p, char *words, size_t size, run_options *o)
{
    static char command[] = "fidelity";
    char *arguments[3 * SEARCH_AXES + 2] = {command};
    int count = 1;
    option_set set = {.command = command};
    words[0] = '\0';
    for (int k = 0; k < s->axis_count; k++) text_append(words, size, "%s ", s->axes[k].choices[p->choice[k]]);
    for (char *word = strtok(words, " "); word; word = strtok(NULL, " ")) arguments[count++] = word;
    *o = s->f->runs[0].options;
    run_options_add(o, &set);
    if (options_parse(&set, count, arguments) != OPTIONS_RUN) return 1;
    if (strstr(p->options, "--draft ")) o->draft = s->f->search_draft;
    return 0;
}

/* Opens the point's session; if it rejects the options, p->refused has the reason. */
static int open_point(search *s, search_point *p)
{
    fidelity *f = s->f;
    fidelity_run *r = &f->runs[1];
    static char words[SEARCH_TEXT];
    if (set_options(s, p, words, sizeof words, &r->options) != 0 ||
        models_load(&f->files, &r->options, f->bar, &r->models) != 0)
        return 1;
    snprintf(r->name, sizeof r->name, "%s", p->options);
    const mar_status status =
        mar_session_create(r->models.model, r->models.vae, &r->options.params, f->batch, &r->session);
    if (status == MAR_OK && models_set_negative(&r->models, r->session) != 0) return 1;
    if (status == MAR_OK)
        r->options.used = *mar_session_get_params(r->session);
    else if (status == MAR_EARG)
        snprintf(p->refused, sizeof p->refused, "%s", mar_error(r->models.library));
    else
        return tool_error("%s: %s", p->options, mar_error(r->models.library));
    return 0;
}

/* The times of a point's turns beside the reference, as a piece of its store. They belong to this reference, machine
 * and number of threads. */
typedef struct {
    char kind[STORE_KIND];
    int *labels; /* [images] */
    store_range at;
    store_array arrays[2];
} turn_times;

static int describe_times(const search *s, int images, int turns, turn_times *out)
{
    const fidelity *f = s->f;
    char host[HOST_NAME_MAX + 1] = "";
    gethostname(host, sizeof host - 1);
    const image_text of[] = {{"reference", s->run}, {"backend", f->runs[0].backend}, {"host", host}};
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
static store_state read_times(const fidelity *f, const turn_times *t, int turns)
{
    store_state state = store_read(&f->runs[1].store, &t->at, t->kind, t->arrays, 2);
    for (int r = 0; r < 2 && state == STORE_THERE; r++)
        for (int i = 0; i < turns; i++)
            if (!(f->runs[r].turn_seconds[i] > 0 && f->runs[r].turn_seconds[i] < 1e9)) state = STORE_DAMAGED;
    return state;
}

/* Makes the point's images. The first are made in turns with the reference, unless their times are stored. */
static int make_images(search *s, const turn_times *t, int images, int turns)
{
    const fidelity *f = s->f;
    const int paired = t->at.n;
    const store_state state = read_times(f, t, turns);
    const int stored = state == STORE_THERE, first = stored ? 0 : paired;
    const fidelity_range pair = {0, 2, 0, paired, 0, NULL}, rest = {1, 1, first, images - first, -1, NULL};
    int status = state == STORE_ERROR;
    if (status == 0 && !stored) {
        s->is_new = 1;
        status = make_range(s, &pair);
        if (status == 0) status = store_write(&f->runs[1].store, &t->at, t->kind, t->arrays, 2);
    }
    if (status == 0 && rest.images > 0) status = make_range(s, &rest);
    if (status == 0 && stored)
        status = read_times(f, t, turns) != STORE_THERE; /* another run's turns have replaced them */
    return status;
}

/* Makes the point's images, of which the first `paired` are timed, and compares them. */
static int make_point(search *s, int images, int paired)
{
    fidelity *f = s->f;
    const int turns = (paired + f->batch - 1) / f->batch;
    const long before = f->made;
    turn_times t;
    if (fidelity_open_stores(f, 1, 1) != 0 || fidelity_allocate_run(f, &f->runs[1]) != 0 ||
        describe_times(s, paired, turns, &t) != 0)
        return 1;
    int status = make_images(s, &t, images, turns);
    free(t.labels);
    if (f->made > before) s->is_new = 1;
    if (status == 0) status = fidelity_time(f, paired);
    if (status != 0) return status;
    progress_note(f->bar, "comparing");
    status = fidelity_compare_run(f, images, &f->runs[1]);
    progress_clear(f->bar);
    return status;
}

/* Returns the figures of the point that runs[1] has measured. */
static search_figures figures(const fidelity *f, int images)
{
    const fidelity_run *r = &f->runs[1];
    search_figures out = {.images = images,
                          .seconds = r->seconds.median,
                          .speed = r->speed.median,
                          .distance = r->image.distance,
                          .token_distance = r->token.distance,
                          .p = r->p,
                          .recognised = f->judged ? (double)r->recognised / images : -1,
                          .speed_low = r->speed.low,
                          .speed_high = r->speed.high};
    snprintf(out.guarantee, sizeof out.guarantee, "%s", mar_session_guarantee(r->session));
    return out;
}

/* Prints what was newly found of a point. */
static void print_point(const search_point *p, const search_figures *found)
{
    if (p->refused[0])
        printf("%s: left out, %s\n", p->options, p->refused);
    else
        printf("%s: %d images, %.4g s per image, speed %.2f, distance %.4f\n", p->options, found->images,
               found->seconds, found->speed, found->distance);
    fflush(stdout);
}

/* Measures point i with `images` images, and writes the JSON file. Returns the exit status. */
static int measure(search *s, int i, int images, int turns)
{
    fidelity *f = s->f;
    search_point *p = &s->points[i];
    search_figures found = {0};
    const int paired = turns * f->batch < images ? turns * f->batch : images;
    int status = open_point(s, p);
    const int refused = p->refused[0] != '\0';
    if (status == 0 && !refused) status = make_point(s, images, paired);
    if (status == 0 && !refused) {
        found = figures(f, images);
        s->reference_seconds = f->runs[0].seconds.median;
        if (images == f->screen) p->screened = found;
        if (images == f->num) p->final = found;
    }
    fidelity_free_run(&f->runs[1]);
    if (status != 0) return status;
    search_choose(s);
    if (s->is_new && search_write(s) != 0) return 1;
    if (!f->quiet && !f->json && (refused || s->is_new)) print_point(p, &found);
    s->is_new = 0;
    return 0;
}

/* --- the search --------------------------------------------------------------------------------------------------- */

static int screen(search *s)
{
    for (;;) {
        search_rank(s);
        const int i = search_next(s);
        if (i < 0) return 0;
        const int status = measure(s, i, s->f->screen, COARSE_TURNS);
        if (status != 0) return status;
    }
}

static int finish(search *s)
{
    int list[SEARCH_FINALS];
    const int n = search_finals(s, list);
    for (int k = 0; k < n; k++) {
        if (s->points[list[k]].final.images) continue;
        const int status = measure(s, list[k], s->f->num, FINE_TURNS);
        if (status != 0) return status;
    }
    search_choose(s);
    return search_write(s) || search_write_page(s);
}

/* Checks that a screening has the two images of each class that a floor needs. */
static int check_screen(const fidelity *f)
{
    if (f->screen / f->class_count >= 2) return 0;
    return tool_error("--screen %d: expected two images of each of %d classes, to know what another seed makes",
                      f->screen, f->class_count);
}

static int run(search *s)
{
    fidelity *f = s->f;
    if (f->screen == 0) f->screen = f->num;
    if (f->screen > f->num)
        return tool_error("--screen %d: expected no more than the %d images of --num", f->screen, f->num);
    if (f->batch > f->screen) f->batch = f->screen; /* so that a whole turn fits */
    if (classes_check_files(f->class_list) != 0 || name_files(s) != 0 || fidelity_open(f) != 0 || check_screen(f) != 0)
        return 1;
    fidelity_name_run(f, &f->runs[0]);
    f->run_count = 2;
    f->shown = 0; /* the page has no samples */
    if (search_list(s) != 0 || fidelity_open_stores(f, 0, 1) != 0) return 1;
    snprintf(s->run, sizeof s->run, "%016" PRIx64, f->runs[0].store.hash);
    int status = make_reference(s);
    if (status == 0) status = search_check(s);
    if (status == 0) status = screen(s);
    if (status == 0) status = finish(s);
    if (status != 0) return status;
    if (f->json) return search_print_json(s);
    if (!f->quiet) search_print(s);
    return 0;
}

int fidelity_search(fidelity *f)
{
    search s = {.f = f};
    const int status = run(&s);
    if (status > 1) interruption_end("what was made is in %s; the same command goes on", f->store);
    fidelity_close(f);
    free(s.points);
    free(s.json);
    free(s.store);
    return status;
}
