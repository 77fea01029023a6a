/* mar eval --sweep: a grid of runs, each in its own directory, with a common report. */
#include "tools/cli/command.h"

#include "mar_methods.h"
#include "tools/eval/options.h"
#include "tools/cli/file_sum.h"
#include "tools/cli/interruption.h"
#include "tools/cli/json.h"
#include "tools/cli/launch.h"
#include "tools/generate/models.h"
#include "tools/eval/sweep_file.h"
#include "tools/eval/sweep_report.h"

#include <cjson/cJSON.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* The run of a point. */
typedef struct {
    sweep_point point;
    char *directory; /* DIR/NAME */
    int begun;       /* 1: this process has checked the settings in the directory */
} sweep_run;

typedef struct {
    const eval_options *common; /* options of the command line */
    progress *bar;
    sweep_grid grid;
    sweep_run *runs;          /* [grid.points] */
    char *json, *html;        /* DIR/sweep.json, DIR/sweep.html */
    sweep_table table;        /* results of the points */
    const char *stats;        /* last reference identified; NULL: none */
    char stats_id[RECORD_ID]; /* identity of `stats` */
    model_store models;       /* loaded files, shared by the points */
} sweep;

/* --- options of a point ------------------------------------------------------------------------------------------- */

/* Returns whether the option belongs to the sweep as a whole. */
static int is_of_all(const char *name)
{
    static const char *const names[] = {"sweep", "out",   "images", "shard",  "merge",
                                        "json",  "quiet", "store",  "devices"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (strcmp(name, names[i]) == 0) return 1;
    return 0;
}

static int check_place(const option_set *set)
{
    for (int i = 0; i < set->count; i++) {
        const char *name = set->options[i].param->name;
        if (set->options[i].given && is_of_all(name))
            return tool_error("--%s: has no place in the file of a sweep, expected it on the command line", name);
    }
    return 0;
}

/* Parses the common options, followed by those of a point or of one alternative. Returns 0, or 1 with the error
 * printed. */
static int read_words(const sweep *s, int count, char **words, eval_options *o, option_set *set)
{
    static char command[] = "eval";
    char **arguments = calloc((size_t)count + 2, sizeof *arguments);
    if (!arguments) return tool_error("out of memory for the options");
    arguments[0] = command;
    if (count) memcpy(arguments + 1, words, (size_t)count * sizeof *words);
    eval_options_set_up(o, set);
    *o = *s->common; /* defaults of a point */
    o->given = set;
    o->sweep = NULL;
    const int status = options_parse(set, count + 1, arguments);
    free(arguments);
    if (status == OPTIONS_HELP) return tool_error("--help: has no place in the file of a sweep");
    return status == OPTIONS_RUN ? check_place(set) : 1;
}

/* Marks the command line's options as given. */
static void add_given(option_set *set, const option_set *common)
{
    for (int i = 0; i < set->count && common; i++) {
        const option *o = options_find(common, set->options[i].param->name);
        if (o && o->given) set->options[i].given = 1;
    }
}

/* Parses all options of point i. `set` must outlive *o. Returns 0, or 1 with the error printed. */
static int read_point(const sweep *s, int i, eval_options *o, option_set *set)
{
    const sweep_point *p = &s->runs[i].point;
    if (read_words(s, p->count, p->words, o, set) != 0 || eval_options_done(o, set) != 0) return 1;
    const option *threads = options_find(set, "threads");
    const int is_timed = threads && threads->given;
    add_given(set, s->common->given);
    o->out = s->runs[i].directory;
    if (!o->store) o->store = s->common->out; /* shared by all points */
    if (is_timed) o->store = NULL;            /* except points that differ in their times only */
    return 0;
}

/* Adds the identity of a file to the hash. */
static uint64_t add_file(uint64_t sum, const char *path)
{
    struct stat st;
    const int64_t stamp[] = {path && stat(path, &st) == 0 ? st.st_size : -1, path ? st.st_mtim.tv_sec : 0,
                             path ? st.st_mtim.tv_nsec : 0};
    return stamp[0] < 0 ? sum * 31 : sum * 31 + memory_sum(stamp, sizeof stamp);
}

/* Identifies the reference of a point, for hash_of; cached, as points share it. Returns 0, or 1 with the error
 * printed. */
static int identify_stats(sweep *s, const char *path)
{
    if (!path || (s->stats && strcmp(s->stats, path) == 0)) return 0;
    s->stats = path;
    return judge_identify(path, s->stats_id);
}

/* Returns a hash of all options that define a run; with `seeded` 0 without the seed. Call it after identify_stats. */
static uint64_t hash_of(const sweep *s, const eval_options *o, const option_set *set, int seeded)
{
    char text[4400];
    uint64_t sum = memory_sum(mar_version(), strlen(mar_version()));
    for (int i = 0; i < set->count; i++) {
        const option *q = &set->options[i];
        if (is_of_all(q->param->name) || (!seeded && strcmp(q->param->name, "seed") == 0)) continue;
        const char *value = q->param->type == MAR_TYPE_MODEL ? *(const char *const *)q->fields
                                                             : mar_param_text(q->param, q->fields, text, sizeof text);
        sum = sum * 31 + memory_sum(q->param->name, strlen(q->param->name));
        if (value) sum = sum * 31 + memory_sum(value, strlen(value));
    }
    for (int i = 0; i < o->run.prompt_count; i++)
        sum = sum * 31 + memory_sum(o->run.prompt[i], strlen(o->run.prompt[i]));
    sum = add_file(add_file(add_file(add_file(sum, o->run.model), o->run.vae), o->run.draft), o->run.captions);
    sum = add_file(sum, o->run.prompts);
    return add_file(sum, o->judge.inception) * 31 + (o->stats ? memory_sum(s->stats_id, strlen(s->stats_id)) : 0);
}

/* --- checks before the first run ---------------------------------------------------------------------------------- */

/* Writes "FILE, line 3" for errors. Returns text. */
static const char *place_of(const sweep *s, const char *lines, char *text, size_t size)
{
    snprintf(text, size, "%s%s%s", s->grid.path, *lines ? ", " : "", lines);
    return text;
}

/* Checks the words and values of each alternative. */
static int check_choices(const sweep *s)
{
    char line[32], place[4400];
    int failed = 0;
    eval_options o;
    option_set set;
    for (int a = 0; a < s->grid.count && !failed; a++)
        for (int k = 0; k < s->grid.axes[a].count && !failed; k++) {
            const sweep_choice *c = &s->grid.axes[a].choices[k];
            snprintf(line, sizeof line, "line %d", c->line);
            tool_error_within(place_of(s, line, place, sizeof place));
            failed = read_words(s, c->count, c->words, &o, &set);
        }
    tool_error_within(NULL);
    return failed;
}

/* Frees the files of earlier points if this run needs others. */
static void make_room(sweep *s, const eval_options *o)
{
    if (models_have(&s->models, &o->run)) return;
    models_free(&s->models);
    s->models.quiet = s->common->quiet;
    s->models.needs_vae = 1;
    s->models.needs_all = 1;
}

/* Returns whether a session accepts the options: it alone knows conflicts and limits of the model. */
static int try_session(sweep *s, const eval_options *o)
{
    run_options run = o->run;
    run.reported_fast = 1; /* reported when the point is made */
    run_models models;
    mar_session *session = NULL;
    make_room(s, o);
    if (models_load(&s->models, &run, s->bar, &models) != 0) return 1;
    const int failed = models_session(&models, &run, 1, &session);
    mar_session_free(session);
    return failed;
}

/* Reads the result of point i from its directory, if there is one. Returns 0, or 1 with the error printed. */
static int take_result(sweep *s, int i)
{
    char *path;
    sweep_entry *e = &s->table.entries[i];
    if (asprintf(&path, "%s/result.json", s->runs[i].directory) < 0) return tool_error("out of memory");
    int failed = 0;
    if (access(path, F_OK) == 0) {
        e->result = malloc(sizeof *e->result);
        failed = e->result ? eval_result_read(path, e->result) : tool_error("out of memory");
        if (failed) {
            free(e->result);
            e->result = NULL;
        }
    }
    free(path);
    return failed;
}

/* Reads the result if the directory's settings have the point's options. */
static int take_finished(sweep *s, int i)
{
    uint64_t asked;
    if (eval_settings_asked(s->runs[i].directory, &asked) != 0) return 1;
    return asked == s->table.entries[i].settings ? take_result(s, i) : 0;
}

/* Checks every point with all its options; those to be made with their models, too. */
static int check_points(sweep *s)
{
    char place[4400];
    int failed = 0;
    eval_options o;
    option_set set;
    for (int i = 0; i < s->grid.points && !failed; i++) {
        sweep_entry *e = &s->table.entries[i];
        tool_error_within(place_of(s, s->runs[i].point.lines, place, sizeof place));
        failed = read_point(s, i, &o, &set);
        if (!failed) failed = identify_stats(s, o.stats);
        if (failed) break;
        e->settings = hash_of(s, &o, &set, 1);
        e->group = hash_of(s, &o, &set, 0);
        failed = take_finished(s, i);
        if (failed) break;
        if (!e->result && !o.merge) failed = try_session(s, &o);
    }
    tool_error_within(NULL);
    return failed;
}

/* Checks that the JSON file to be replaced is a sweep's. */
static int check_json(const sweep *s)
{
    cJSON *record;
    if (access(s->json, F_OK) != 0) return 0;
    const int failed = json_file_read(s->json, "what mar eval --sweep wrote", &record);
    cJSON_Delete(record);
    return failed;
}

static int prepare(sweep *s)
{
    const size_t n = (size_t)s->grid.points;
    s->runs = calloc(n, sizeof *s->runs);
    s->table = (sweep_table){s->grid.path, calloc(n, sizeof *s->table.entries), 0};
    int lacks = !s->runs || !s->table.entries;
    if (asprintf(&s->json, "%s/sweep.json", s->common->out) < 0) s->json = NULL;
    if (asprintf(&s->html, "%s/sweep.html", s->common->out) < 0) s->html = NULL;
    for (int i = 0; i < s->grid.points && !lacks; i++) {
        lacks = sweep_grid_point(&s->grid, i, &s->runs[i].point);
        if (lacks) break;
        s->table.entries[i] = (sweep_entry){.name = s->runs[i].point.name, .options = s->runs[i].point.options};
        s->table.count++;
        if (asprintf(&s->runs[i].directory, "%s/%s", s->common->out, s->runs[i].point.name) < 0)
            s->runs[i].directory = NULL;
        lacks = !s->runs[i].directory;
    }
    return lacks || !s->json || !s->html ? tool_error("out of memory for %d points", s->grid.points) : 0;
}

/* --- output ------------------------------------------------------------------------------------------------------- */

/* Adds points that other processes have finished meanwhile, and writes the files. */
static int write_files(sweep *s)
{
    for (int i = 0; i < s->grid.points; i++)
        if (s->runs[i].begun && !s->table.entries[i].result && take_result(s, i) != 0) return 1;
    return sweep_mark_front(&s->table) || sweep_write_json(&s->table, s->json) || sweep_write_html(&s->table, s->html);
}

static int count_there(const sweep *s)
{
    int n = 0;
    for (int i = 0; i < s->grid.points; i++) n += s->table.entries[i].result != NULL;
    return n;
}

/* --- the runs ----------------------------------------------------------------------------------------------------- */

static void report_done(const sweep *s, int i)
{
    const eval_result *r = s->table.entries[i].result;
    printf("point %d of %d, %s: %s %.3f, %.4g s per image\n", i + 1, s->grid.points, s->runs[i].point.name,
           eval_result_distance(r), r->fid, eval_result_seconds(r));
    fflush(stdout);
}

/* Makes or resumes point i. Returns as eval_model_run. */
static int make_point(sweep *s, int i, int prints)
{
    int done = 0;
    eval_options o;
    option_set set;
    eval_result *r = calloc(1, sizeof *r);
    if (!r) return tool_error("out of memory");
    tool_error_within(s->runs[i].point.name);
    int status = read_point(s, i, &o, &set);
    if (status == 0) {
        make_room(s, &o);
        o.models = &s->models;
        o.asked = s->table.entries[i].settings;
        status = eval_model_run(&o, s->bar, r, &done);
    }
    tool_error_within(NULL);
    s->runs[i].begun = status == 0;
    if (status != 0 || !done) {
        free(r);
        return status;
    }
    s->table.entries[i].result = r;
    if (prints) report_done(s, i);
    return 0;
}

static int report_interruption(const sweep *s)
{
    return interruption_end("%d of %d points are in %s; the same command goes on", count_there(s), s->grid.points,
                            s->common->out);
}

static int make_points(sweep *s, int prints)
{
    for (int i = 0; i < s->grid.points; i++) {
        if (s->table.entries[i].result) continue;
        if (interruption_came()) return report_interruption(s);
        const int status = make_point(s, i, prints);
        if (status != 0) return status;
        if (write_files(s) != 0) return 1;
        interruption_limit(EVAL_STATUS_GOES_ON); /* loading the next point, too */
    }
    return 0;
}

static int finish(sweep *s, int prints)
{
    interruption_unlimit();
    if (write_files(s) != 0) return 1;
    if (s->common->json) return prints ? sweep_print_json(&s->table) : 0;
    if (!s->common->quiet && prints) {
        sweep_print(&s->table);
        printf("wrote %s and sweep.html beside it\n", s->json);
    }
    return 0;
}

static int run(sweep *s)
{
    launch process;
    if (sweep_grid_read(s->common->sweep, &s->grid) != 0 || check_choices(s) != 0 || prepare(s) != 0 ||
        launch_find(s->common->shard, &process) != 0 || check_json(s) != 0 || check_points(s) != 0)
        return 1;
    const int first = process.kind != LAUNCH_MPI || process.index == 0;
    if (first && !s->common->quiet && count_there(s) == s->grid.points)
        fprintf(stderr, "mar: %s: all points are finished, these are their numbers\n", s->common->out);
    const int status = make_points(s, first && !s->common->json && !s->common->quiet);
    return status != 0 ? status : finish(s, first);
}

int eval_sweep_run(const eval_options *o, progress *bar)
{
    sweep s = {.common = o, .bar = bar};
    const int status = run(&s);
    models_free(&s.models);
    for (int i = 0; i < s.table.count; i++) {
        free(s.table.entries[i].result);
        free(s.runs[i].directory);
        sweep_point_free(&s.runs[i].point);
    }
    free(s.table.entries);
    free(s.runs);
    free(s.json);
    free(s.html);
    sweep_grid_free(&s.grid);
    return status;
}
