/* mar fidelity --search: the order of points, the choice, the page; killed and resumed. */
#include "tests/support/command.h"
#include "tests/support/page.h"

#include "tools/fidelity/search.h"

#include <cjson/cJSON.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* --- the order, with invented figures ----------------------------------------------------------------------------- */

/* Begins a search of the demo's space without int8. The arithmetic is given. */
static void begin(search *s, fidelity *f)
{
    *f = (fidelity){.num = 100, .screen = 25, .points = 40};
    *s = (search){.f = f, .floor = {0.01, 0.001, 1}};
    run_options *o = &f->runs[0].options;
    run_options_init(o);
    o->used = (mar_params){.num_iter = 64, .num_sampling_steps = 100};
    option_set set = {.command = "fidelity"};
    char *arguments[] = {(char[]){"fidelity"}, (char[]){"--dtype"}, (char[]){"f32"}};
    run_options_add(o, &set);
    assert_int_equal(options_parse(&set, 3, arguments), OPTIONS_RUN);
    run_options_note(o, &set);
    assert_int_equal(search_list(s), 0);
}

static search_point *point(search *s, const char *options)
{
    for (int i = 0; i < s->point_count; i++)
        if (strcmp(s->points[i].options, options) == 0) return &s->points[i];
    fail_msg("no point is %s", options);
    return NULL;
}

static void measured(search_figures *m, int images, double speed, double distance)
{
    *m = (search_figures){images, 1 / speed, speed, distance, distance / 10, 0.5, -1, speed, speed, ""};
}

static void expect_why(search *s, const char *options, const char *expected)
{
    char why[512];
    assert_string_equal(search_why_untried(s, (int)(point(s, options) - s->points), why, sizeof why), expected);
}

/* Checks the order: each accelerator alone first, then the predicted combinations. The fastest of the predicted front
 * comes first. */
static void the_order(void **state)
{
    static const char *const alone[] = {"--num_iter 32",
                                        "--num_iter 16",
                                        "--num_iter 8",
                                        "--gtr",
                                        "--head_spec 8",
                                        "--num_sampling_steps 50",
                                        "--num_sampling_steps 25",
                                        "--diff_annealing linear",
                                        "--sampler dpmpp --num_sampling_steps 20",
                                        "--sampler dpmpp --num_sampling_steps 10",
                                        "--lazy",
                                        "--lazy --lazy_head",
                                        "--cfg_interval 0.1,1",
                                        "--cfg_interval 0.25,1"};
    enum { ALONE = LENGTH(alone) };
    static fidelity f;
    search s;
    (void)state;
    begin(&s, &f);
    assert_int_equal(s.point_count, 5 * 7 * 3 * 3 - 1);
    for (int i = 0; i < ALONE; i++) {
        search_rank(&s);
        const int next = search_next(&s);
        assert_in_range(next, 0, s.point_count - 1);
        assert_string_equal(s.points[next].options, alone[i]);
        measured(&s.points[next].screened, f.screen, 1.01, 5); /* hopeless */
    }
    search_rank(&s);
    assert_int_equal(search_next(&s), -1); /* points predicted beyond the last level are not tried */

    measured(&point(&s, "--num_iter 16")->screened, f.screen, 2, -0.001); /* below 0 is 0 */
    measured(&point(&s, "--num_iter 8")->screened, f.screen, 3, 0.02);
    measured(&point(&s, "--num_sampling_steps 25")->screened, f.screen, 1.5, 0.001);
    static const char *const together[] = {"--num_iter 8 --num_sampling_steps 25",
                                           "--num_iter 16 --num_sampling_steps 25"};
    for (int i = 0; i < 2; i++) {
        search_rank(&s);
        const int next = search_next(&s);
        assert_in_range(next, 0, s.point_count - 1);
        assert_string_equal(s.points[next].options, together[i]);
        assert_int_equal(s.points[next].rank, 0);
        if (i == 0) strcpy(s.points[next].refused, "do not go together");
        if (i == 1) measured(&s.points[next].screened, f.screen, 3.1, 0.001);
    }
    /* An option that is refused alone is in no combination. */
    point(&s, "--num_sampling_steps 25")->screened.images = 0;
    strcpy(point(&s, "--num_sampling_steps 25")->refused, "no");
    search_rank(&s);
    for (int i = 0; i < s.point_count; i++)
        if (strstr(s.points[i].options, "--num_sampling_steps 25")) assert_int_equal(s.points[i].rank, -1);
    f.points = ALONE;
    assert_int_equal(search_next(&s), -1);
    expect_why(&s, "--num_iter 16", "");
    expect_why(&s, "--num_iter 8 --num_sampling_steps 25", "do not go together");
    expect_why(&s, "--gtr --num_sampling_steps 25", "--num_sampling_steps 25 is not possible");
    expect_why(&s, "--num_iter 8 --lazy", "the distances of the parts add up to far more than the last level has");
    free(s.points);
}

/* Checks that finals are the points on the screened front. A level is the fastest point within its reach in both
 * distances. */
static void the_choice(void **state)
{
    static fidelity f;
    search s;
    int list[SEARCH_FINALS];
    (void)state;
    begin(&s, &f);
    search_choose(&s);
    for (int i = 0; i < SEARCH_LEVELS; i++) assert_int_equal(s.chosen[i], -1);
    static const struct {
        const char *options;
        double speed, distance;
    } screened[] = {{"--num_iter 32", 1.5, 0},      {"--num_iter 16", 2, 0.004}, {"--num_iter 8", 3, 0.03},
                    {"--gtr", 1.9, 0.03},           {"--lazy", 0.9, -1},         {"--head_spec 8", 4, 9},
                    {"--lazy --lazy_head", 5, 0.15}};
    for (size_t i = 0; i < LENGTH(screened); i++)
        measured(&point(&s, screened[i].options)->screened, f.screen, screened[i].speed, screened[i].distance);
    static const char *const expected[] = {"--lazy --lazy_head", "--num_iter 8", "--num_iter 16", "--num_iter 32"};
    const int n = search_finals(&s, list); /* omits points that are slower than the reference, beaten or hopeless */
    assert_int_equal(n, 4);
    for (int i = 0; i < n; i++) {
        search_point *p = &s.points[list[i]];
        assert_string_equal(p->options, expected[i]);
        measured(&p->final, f.num, p->screened.speed, p->screened.distance);
    }
    search_choose(&s);
    assert_string_equal(s.points[s.chosen[0]].options, "--num_iter 16");
    assert_string_equal(s.points[s.chosen[1]].options, "--num_iter 8");
    assert_string_equal(s.points[s.chosen[2]].options, "--lazy --lazy_head");
    assert_true(point(&s, "--num_iter 16")->front && !point(&s, "--gtr")->front);
    point(&s, "--num_iter 16")->final.token_distance = 0.0011; /* tokens are farther than another seed's */
    search_choose(&s);
    assert_string_equal(s.points[s.chosen[0]].options, "--num_iter 32");
    assert_true(search_reach(1) == 1 && search_reach(2) == 4 && search_reach(3) == 16);
    free(s.points);
}

/* --- the command -------------------------------------------------------------------------------------------------- */

#define SEARCH                                                                                                         \
    "fidelity --search --num 40 --screen 20 --batch 10 --num_iter 4 --num_sampling_steps 8 --class 3,5 --threads 1 "

static const cJSON *point_of(const cJSON *record, const char *options, int images)
{
    const cJSON *p;
    cJSON_ArrayForEach(p, cJSON_GetObjectItem(record, "points"))
    {
        if (strcmp(json_text(p, "options"), options) == 0 && !cJSON_GetObjectItem(p, "refused") &&
            (int)json_number(p, "images") == images)
            return p;
    }
    return NULL;
}

static void a_search(void **state)
{
    const char *d = *state;
    command_result r = command_run(d, "$MAR " SEARCH "--points 3 --out s.html");
    if (r.status != 0) fail_msg("%s", r.err);
    assert_string_equal(r.err, "");
    assert_has(r.out, "--num_iter 2: 20 images, ");
    assert_has(r.out, "level 3, at most four times as far as another seed: ");
    assert_has(r.out, "wrote s.html and s.json");
    command_result_free(&r);
    assert_int_equal(count_files(d), 3); /* the page, the figures, the store */

    cJSON *record = read_json(d, "s.json");
    const cJSON *screened = point_of(record, "--num_iter 1", 20), *floor = cJSON_GetObjectItem(record, "floor");
    assert_non_null(point_of(record, "--num_iter 2", 20));
    assert_non_null(screened);
    assert_non_null(point_of(record, "--gtr", 20));
    assert_true(json_number(floor, "image_95") > 0 &&
                json_number(floor, "screen_image_95") > json_number(floor, "image_95"));
    assert_string_equal(json_text(record, "search.reference"), "plain sampling, 4 autoregressive steps of 8");
    assert_int_equal(json_count(record, "levels"), 3);

    /* The distance equals that of a comparison of the same images. */
    cJSON *compared =
        command_json(d, "fidelity --num 20 --batch 10 --class 3,5 --threads 1 --num_iter 1 --num_sampling_steps 8 "
                        "--against --num_iter 4 --num_sampling_steps 8 --json --out c.html");
    const cJSON *run = json_at(compared, "runs.0");
    assert_float_equal(json_number(run, "energy_image.distance"), json_number(screened, "distance"), 1e-9);
    assert_float_equal(json_number(run, "p"), json_number(screened, "p"), 1e-9);
    assert_float_equal(json_number(run, "classifier_accuracy"), json_number(screened, "classifier_accuracy"), 1e-9);
    assert_float_equal(json_number(compared, "floor.image_95"), json_number(floor, "screen_image_95"), 1e-9);
    cJSON_Delete(compared);

    /* A proposed command line makes images. */
    const char *line = json_text(record, "levels.2.command");
    assert_int_equal(strncmp(line, "mar generate ", 13), 0);
    command_ok(d, "%s --class 3 --num 1 --quiet --out p.png", line + 4);

    /* The page has that record, and a reason for each point that was not tried. */
    cJSON *extras, *shown = page_record(d, "s.html", "search", &extras);
    assert_true(cJSON_Compare(record, shown, 1));
    assert_int_equal(json_number(extras, "screened"), 3);
    const cJSON *left_out = cJSON_GetObjectItem(extras, "left_out"), *one;
    int budget = 0, draft = 0;
    cJSON_ArrayForEach(one, left_out)
    {
        budget += strcmp(json_text(one, "why"), "the 3 points of --points were spent") == 0;
        draft += strcmp(json_text(one, "why"), "no draft was given (--draft FILE)") == 0;
    }
    assert_true(draft == 1 && budget > 3);
    assert_true(json_number(extras, "points") >= 3 + budget);
    cJSON_Delete(record), cJSON_Delete(shown), cJSON_Delete(extras);
}

/* Checks the other axes of runs with a draft or with discrete tokens. */
static void other_spaces(void **state)
{
    const char *d = *state;
    command_result r =
        command_run(d, "$MAR fidelity --search --model demo-discrete --draft demo-discrete-draft --num 20 "
                       "--cfg 1 --dtype f32 --points 4 --class 1,2 --threads 1 --out q.html");
    if (r.status != 0) fail_msg("%s", r.err);
    static const char *const tried[] = {"\n--draft demo-discrete-draft --spec vanilla: 20 images",
                                        "--draft demo-discrete-draft --spec lantern: ", "--spec sjd: 20 images"};
    for (size_t i = 0; i < LENGTH(tried); i++)
        if (!strstr(r.out, tried[i])) fail_msg("%s is not in %s", tried[i], r.out);
    assert_null(strstr(r.out, "num_iter"));
    command_result_free(&r);
}

/* Returns the beginning of the first point, which stays as it is. The caller frees it. */
static char *first_point(const char *directory)
{
    cJSON *record = read_json(directory, "k.json");
    char *first = cJSON_PrintUnformatted(cJSON_GetArrayItem(cJSON_GetObjectItem(record, "points"), 0));
    cJSON_Delete(record);
    first[strnlen(first, 120)] = '\0';
    return first;
}

/* Kills a search at many moments. Checks that it continues and measures no finished point again. */
static void killed(void **state)
{
    const char *d = *state;
    char path[4096], *done = NULL;
    snprintf(path, sizeof path, "%s/k.json", d);
    srand(5);
    for (int turn = 0; turn < 7; turn++) {
        const int number = turn % 2 ? SIGTERM : SIGKILL;
        const pid_t child = command_start(d, SEARCH "--points 4 --out k.html");
        usleep((useconds_t)(50000 + rand() % 400000));
        if (turn < 6) kill(child, number); /* the last one ends by itself */
        const int status = command_wait(child);
        if (status != 0 && (turn == 6 || status != 128 + number)) fail_msg("turn %d: exit status %d", turn, status);
        if (access(path, F_OK) != 0) continue;
        char *first = first_point(d);
        if (done && strcmp(done, first) != 0) fail_msg("%s became %s", done, first);
        free(done);
        done = first;
    }
    free(done);
    cJSON *record = read_json(d, "k.json");
    int screened = 0;
    const cJSON *p;
    cJSON_ArrayForEach(p, cJSON_GetObjectItem(record, "points"))
    {
        screened += cJSON_GetObjectItem(p, "refused") || (int)json_number(p, "images") == 20;
    }
    assert_int_equal(screened, 4);
    cJSON_Delete(record);
    /* A repeated search measures and makes nothing. Its lost figures come out the same. */
    sh_ok(d, "ls -i k/runs/* >pieces && cp k.json before.json && rm k.json k.html && $MAR " SEARCH
             "--points 4 --out k.html >said && ! grep -e ': 20 images, ' -e ': 40 images, ' said && "
             "ls -i k/runs/* | cmp pieces - && cmp before.json k.json");
}

static void refused(void **state)
{
    static const refusal cases[] = {
        {"fidelity --search --against", "mar: --against: has no place with --search, whose options are the", ""},
        {"fidelity --search --versus --lazy", "mar: --versus: has no place with --search, whose options are", ""},
        {"fidelity --search --lazy", "mar: --lazy: has no place with --search, which tries the accelerators itself",
         ""},
        {"fidelity --search --fast 1", "mar: --fast: has no place with --search, which tries the accelerators itself",
         ""},
        {"fidelity --search --draft self", "mar: --draft self: has no place with --search", ""},
        {"fidelity --search --plot a.svg", "mar: --plot: has no place with --search, whose page has a plot", ""},
        {"fidelity --points 3 --against", "mar: --points: needs --search", ""},
        {"fidelity --search --num 30 --screen 40", "mar: --screen 40: expected no more than the 30 images of", ""},
        {"fidelity --search --num 20 --class all --num_iter 1 --num_sampling_steps 2 --model demo --class 0-9 "
         "--out a.txt",
         "mar: a.txt: ", ""},
    };
    const char *d = *state;
    command_refuses(d, cases, LENGTH(cases));
    /* These errors are known after loading the model, before any image. */
    sh_ok(d, "$MAR fidelity --search --num 40 --class 0-9,0-9 --num_iter 1 --num_sampling_steps 2 --screen 20 2>err; "
             "test $? = 1 && test ! -e search && grep -q '^mar: --screen 20: expected two images of each of 20 "
             "classes, to know what another "
             "seed makes' err");

    command_ok(d, SEARCH "--points 1 --out s.html --quiet");
    command_refused(
        d, "$MAR " SEARCH "--points 1 --out s.html --seed 2",
        "mar: s.json: a search of other settings is in it, seed 0, expected 2; another --out begins a new one\n", "");
    command_refused(d, "$MAR " SEARCH "--points 1 --out s.html --cfg 1",
                    "mar: s.json: a search of other settings is in it, reference_tokens ", "");
    char *text = read_whole_file(d, "s.json", NULL);
    write_whole_file(d, "s.json", text, strlen(text) / 2);
    command_refused(d, "$MAR " SEARCH "--points 1 --out s.html", "mar: s.json: ", "");
    write_whole_file(d, "s.json", "{}", 2);
    command_refused(d, "$MAR " SEARCH "--points 1 --out s.html",
                    "mar: s.json: has no settings of a search, expected what mar", "");
    /* A record from an older version, which kept no images. */
    cJSON *record = cJSON_Parse(text);
    cJSON_DeleteItemFromObject(cJSON_GetObjectItem(record, "search"), "run");
    char *older = cJSON_Print(record);
    write_whole_file(d, "s.json", older, strlen(older));
    command_refused(d, "$MAR " SEARCH "--points 1 --out s.html",
                    "mar: s.json: a search of other settings is in it, run is missing, expected ", "");
    cJSON_Delete(record);
    free(older);
    free(text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(the_order), cmocka_unit_test(the_choice),
                                       COMMAND_TEST(a_search),      COMMAND_TEST(other_spaces),
                                       COMMAND_TEST(killed),        COMMAND_TEST(refused)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
