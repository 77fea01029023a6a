/* mar eval --sweep: the file of axes, the names of points, the front, the page; a sweep of the demo, killed and
 * resumed. */
#include "tests/support/command.h"
#include "tests/support/page.h"
#include "tools/cli/command.h"
#include "tools/eval/sweep_file.h"
#include "tools/eval/sweep_report.h"

#include <cjson/cJSON.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* --- the file ----------------------------------------------------------------------------------------------------- */

/* Returns the points of the text, one a line: "name: options (lines)". The caller frees it. */
static char *points_of(const char *text)
{
    sweep_grid g;
    char *all = NULL;
    size_t size;
    FILE *out = open_memstream(&all, &size);
    assert_int_equal(sweep_grid_parse("axes.txt", text, strlen(text), &g), 0);
    for (int i = 0; i < g.points; i++) {
        sweep_point p;
        assert_int_equal(sweep_grid_point(&g, i, &p), 0);
        assert_null(p.words[p.count]);
        fprintf(out, "%s: %s (%s)\n", p.name, p.options, p.lines);
        sweep_point_free(&p);
    }
    sweep_grid_free(&g);
    fclose(out);
    return all;
}

static void expect_points(const char *text, const char *expected)
{
    char *all = points_of(text);
    if (strcmp(all, expected) != 0) fail_msg("points of\n%s\nare\n%s\nexpected\n%s", text, all, expected);
    free(all);
}

static void the_product(void **state)
{
    (void)state;
    expect_points("# guidance, by way\n"
                  "--cfg 1.5 | --cfg 2.9\n"
                  "\n"
                  "| --head_spec 8 | --sampler dpmpp --num_sampling_steps 20   # fast\n",
                  "cfg-1.5: --cfg 1.5 (line 2)\n"
                  "cfg-1.5+head_spec-8: --cfg 1.5 --head_spec 8 (lines 2, 4)\n"
                  "cfg-1.5+sampler-dpmpp+num_sampling_steps-20: --cfg 1.5 --sampler dpmpp --num_sampling_steps 20 "
                  "(lines 2, 4)\n"
                  "cfg-2.9: --cfg 2.9 (line 2)\n"
                  "cfg-2.9+head_spec-8: --cfg 2.9 --head_spec 8 (lines 2, 4)\n"
                  "cfg-2.9+sampler-dpmpp+num_sampling_steps-20: --cfg 2.9 --sampler dpmpp --num_sampling_steps 20 "
                  "(lines 2, 4)\n");
    expect_points("--lazy", "lazy: --lazy (line 1)\n");
    /* A bar at a line's end continues the axis, over empty lines and comments. Spaces are optional. \r is a space. */
    expect_points("--cfg 1|\r\n\n # no\n  --cfg 2|--cfg 3",
                  "cfg-1: --cfg 1 (line 1)\ncfg-2: --cfg 2 (line 4)\ncfg-3: --cfg 3 (line 4)\n");
    expect_points("| --lazy", "plain:  ()\nlazy: --lazy (line 1)\n");
    expect_points("--cfg 1 | | --cfg 2", "cfg-1: --cfg 1 (line 1)\nplain:  ()\ncfg-2: --cfg 2 (line 1)\n");
    /* A # within a word is part of it. */
    expect_points("--model a#b.pth", "model-a-b.pth-42e0de1a: --model \"a#b.pth\" (line 1)\n");
}

/* Checks that quoted words keep their contents. */
static void quotes(void **state)
{
    static const char text[] = "--class 'sea slug' | --class \"a|b #c\" | --out a\"b c\"d | --vae ''";
    sweep_grid g;
    (void)state;
    assert_int_equal(sweep_grid_parse("axes.txt", text, strlen(text), &g), 0);
    assert_int_equal(g.points, 4);
    assert_string_equal(g.axes[0].choices[0].words[1], "sea slug");
    assert_string_equal(g.axes[0].choices[1].words[1], "a|b #c");
    assert_string_equal(g.axes[0].choices[2].words[1], "ab cd");
    assert_string_equal(g.axes[0].choices[3].words[1], "");
    sweep_grid_free(&g);
}

/* Checks that other options give another name, with only letters that any file system and any address allows. */
static void names(void **state)
{
    static const char text[] =
        "--a_b c | --a b-c | --a-b c | --a b --c | --a b c | --a_b-c | -a b | a b | --a 'b c' | --a b/c | --a b:c |"
        "--a '' | --a | -- | .. | ../x | --../x | '' | --plain | --a b+c | --a +c | --a=b | --A b | --a \"b\\\" | "
        "| "
        "--"
        "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"
        "| "
        "--"
        "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"
        "a";
    sweep_grid g;
    (void)state;
    assert_int_equal(sweep_grid_parse("axes.txt", text, strlen(text), &g), 0);
    sweep_point *p = calloc((size_t)g.points, sizeof *p);
    for (int i = 0; i < g.points; i++) {
        assert_int_equal(sweep_grid_point(&g, i, &p[i]), 0);
        assert_true(*p[i].name && strlen(p[i].name) < SWEEP_NAME && p[i].name[0] != '.' && p[i].name[0] != '-');
        if (p[i].name[strspn(p[i].name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.,+=_-")])
            fail_msg("%s has other letters", p[i].name);
        for (int k = 0; k < i; k++)
            if (strcmp(p[i].name, p[k].name) == 0) fail_msg("%s and %s: %s", p[i].options, p[k].options, p[i].name);
    }
    for (int i = 0; i < g.points; i++) sweep_point_free(&p[i]);
    free(p);
    sweep_grid_free(&g);
    /* The name depends on the options alone. */
    expect_points("--cfg 2 --class 'sea slug'",
                  "cfg-2+class-sea-slug-da8af4b3: --cfg 2 --class \"sea slug\" (line 1)\n");
}

/* --- errors of the file ------------------------------------------------------------------------------------------- */

static void refused_files(void **state)
{
    static const struct {
        const char *text, *says;
    } cases[] = {
        {"", "axes.txt: has no options, expected alternatives separated by |"},
        {"# nothing\n\n", "axes.txt: has no options"},
        {"--cfg 1 |\n", "axes.txt: ends in |, expected another alternative behind it"},
        {"--cfg 1\n--class 'a\n", "axes.txt, line 2: ' is not closed, expected another in the line"},
        {"--cfg 1 | --lazy |\n--cfg 1\n",
         "axes.txt, line 2: --cfg 1 is there twice, expected alternatives that differ"},
        {"| |--cfg 1\n", "axes.txt, line 1: no option is there twice"},
        {"--cfg 1\n--cgf 2\n", "axes.txt, line 2: --cgf: unknown option of mar eval, did you mean --cfg?"},
        {"--cfg 1 |\n--cfg -1\n", "axes.txt, line 2: --cfg -1: expected a number from 0 to 100"},
        {"--cfg\n", "axes.txt, line 1: --cfg: expected a number from 0 to 100, found nothing"},
        {"--help\n", "axes.txt, line 1: --help: has no place in the file of a sweep"},
        {"--cfg 1 | --out x\n", "axes.txt, line 1: --out: has no place in the file of a sweep"},
        {"--sweep x\n", "axes.txt, line 1: --sweep: has no place"},
        {"--shard 1/2\n", "axes.txt, line 1: --shard: has no place"},
        {"stray\n", "axes.txt, line 1: stray: unexpected argument"},
        {"--cfg 1\n|--gamma 2\n", "axes.txt, lines 1, 2: --gamma: needs --draft or --spec path"},
        {"--lazy\n--gtr|--lazy_head\n--cfg 1\n", "axes.txt, lines 1, 2, 3: --"}, /* options that a session refuses */
        {"--num_iter 64 | --num_iter 65\n", "axes.txt, line 1: --num_iter 65"},
        {"--draft nowhere.pth --gamma 2\n", "axes.txt, line 1: nowhere.pth: "},
    };
    const char *d = *state;
    for (size_t i = 0; i < LENGTH(cases); i++) {
        write_whole_file(d, "axes.txt", cases[i].text, strlen(cases[i].text));
        command_result r = command_run(d, "$MAR eval --sweep axes.txt --out sweep --num_images 20");
        const char *end = strchr(r.err, '\n');
        if (r.status != 1 || *r.out || !strstr(r.err, cases[i].says) || !end || end[1])
            fail_msg("%s: status %d, \"%s\", \"%s\", expected \"%s\"", cases[i].text, r.status, r.out, r.err,
                     cases[i].says);
        command_result_free(&r);
        assert_int_equal(count_files(d), 1); /* no file was made */
    }
    write_whole_file(d, "axes.txt", "--cfg 1\0", 8);
    command_result r = command_run(d, "$MAR eval --sweep axes.txt --out sweep; $MAR eval --sweep missing --out sweep; "
                                      "$MAR eval --sweep . --out sweep; mkfifo pipe; "
                                      "timeout 30 $MAR eval --sweep pipe --out sweep");
    assert_string_equal(r.err, "mar: axes.txt: is no text, expected lines of options\n"
                               "mar: missing: cannot read: No such file or directory\n"
                               "mar: .: is not a regular file, expected lines of options\n"
                               "mar: pipe: is not a regular file, expected lines of options\n");
    command_result_free(&r);
}

static void too_many_points(void **state)
{
    char text[4000] = "";
    sweep_grid g;
    for (int axis = 0; axis < 3; axis++)
        for (int i = 0; i < 11; i++)
            snprintf(text + strlen(text), sizeof text - strlen(text), "%s--x %d", i ? "|" : "\n", i);
    (void)state;
    assert_int_equal(sweep_grid_parse("axes.txt", text, strlen(text), &g), 1);
    sweep_grid_free(&g);
}

/* --- the front ---------------------------------------------------------------------------------------------------- */

static void the_front(void **state)
{
    static const double distance[] = {5, 4, 4, 3, 6, 2, NAN, 1, INFINITY};
    static const double seconds[] = {1, 2, 2, 2.5, 1, 9, 0.1, NAN, 0.1};
    static const uint8_t expected[] = {1, 1, 1, 1, 0, 1, 0, 0, 0};
    uint8_t front[9];
    (void)state;
    sweep_front(distance, seconds, 9, front);
    assert_memory_equal(front, expected, sizeof expected);
    /* For random points: a point is off the front exactly if one on it beats it. */
    srand(2);
    for (int turn = 0; turn < 500; turn++) {
        enum { N = 12 };
        double x[N], y[N];
        uint8_t on[N];
        for (int i = 0; i < N; i++) x[i] = rand() % 6, y[i] = rand() % 6;
        sweep_front(x, y, N, on);
        for (int i = 0; i < N; i++) {
            int beaten = 0;
            for (int j = 0; j < N; j++)
                beaten |= on[j] && x[j] <= x[i] && y[j] <= y[i] && (x[j] != x[i] || y[j] != y[i]);
            assert_int_equal(on[i], !beaten);
        }
    }
}

/* --- the page ----------------------------------------------------------------------------------------------------- */

/* Tests the page of a sweep. Its points have one seed or three, no number or no result, and one point has two
 * spellings. One point has its own page with a picture. Pictures in other formats than PNG are not taken. */
static void the_page(void **state)
{
    enum { N = 7 };
    static eval_result r[N];
    static const double distance[N] = {10, 12, 11, 12, 3, NAN, 0}, seconds[N] = {1, 1.1, 0.9, 1.1, 20, 1, 0};
    static const uint64_t settings[N] = {1, 2, 3, 2, 4, 5, 6}, group[N] = {7, 7, 7, 7, 8, 9, 10};
    static const char bad[] = "--class \"</script><b>&\x1b\"",
                      own[] = "<script type=\"application/json\" "
                              "id=\"record\">{\"extras\":{\"sheet\":[{\"pictures\":[\"data:image/png;base64,AA==\"]},"
                              "{\"pictures\":[\"javascript:0\"]},{}]}}</script>";
    sweep_entry e[N];
    cJSON *extras;
    char path[4096];
    for (int i = 0; i < N; i++) {
        r[i].fid = distance[i], r[i].images = 100, r[i].generate_s = 100 * seconds[i], r[i].accuracy = NAN;
        r[i].sfid = r[i].is_mean = r[i].is_adm = r[i].precision = r[i].recall = r[i].clip_score = NAN;
        strcpy(r[i].protocol, "<i>reference</i>");
        e[i] = (sweep_entry){i ? "name" : "own", i == 4 ? bad : "--seed 1", settings[i],
                             group[i],           i == 6 ? NULL : &r[i],     0};
    }
    sweep_table t = {"<axes>", e, N};
    assert_int_equal(sweep_mark_front(&t), 0);
    assert_true(e[0].front && !e[1].front && e[2].front && e[4].front && !e[5].front && !e[6].front);
    snprintf(path, sizeof path, "%s/own", (const char *)*state);
    assert_int_equal(mkdir(path, 0700), 0);
    write_whole_file(path, "report.html", own, sizeof own - 1);
    assert_int_equal(sweep_write_html(&t, path_in(*state, "sweep.html")), 0);
    cJSON *record = page_record(*state, "sweep.html", "sweep", &extras);
    const cJSON *points = cJSON_GetObjectItem(extras, "points"), *first = cJSON_GetArrayItem(points, 0);
    assert_string_equal(cJSON_GetStringValue(cJSON_GetObjectItem(record, "sweep")), "<axes>");
    assert_string_equal(cJSON_GetStringValue(cJSON_GetObjectItem(first, "group")), "0000000000000007");
    assert_int_equal(cJSON_GetArraySize(points), N);
    const cJSON *pictures = cJSON_GetObjectItem(first, "pictures");
    assert_int_equal(cJSON_GetArraySize(pictures), 1);
    assert_string_equal(cJSON_GetStringValue(pictures->child), "data:image/png;base64,AA==");
    assert_null(cJSON_GetObjectItem(cJSON_GetArrayItem(points, 1), "pictures")->child);
    /* The rest equals sweep.json. */
    assert_int_equal(sweep_write_json(&t, path_in(*state, "sweep.json")), 0);
    char *text = read_whole_file(*state, "sweep.json", NULL);
    cJSON *written = cJSON_Parse(text);
    assert_true(cJSON_Compare(record, written, 1));
    assert_string_equal(cJSON_GetStringValue(cJSON_GetObjectItem(
                            cJSON_GetArrayItem(cJSON_GetObjectItem(record, "points"), 4), "options")),
                        bad);
    cJSON_Delete(record), cJSON_Delete(extras), cJSON_Delete(written);
    free(text);
}

/* --- a sweep of the demo ------------------------------------------------------------------------------------------ */

#define AXES   "--cfg 1 | --cfg 3\n| --head_spec 3\n"
#define RUN    "eval --sweep axes.txt --num_images 20 --num_iter 2 --num_sampling_steps 4 --shard_images 8 --threads 1 "
#define POINTS 4

static int setup(void **state)
{
    if (command_setup(state) != 0) return 1;
    write_whole_file(*state, "axes.txt", AXES, strlen(AXES));
    return 0;
}

/* Returns the numbers of all points as text. The caller frees it. */
static char *numbers_in(const char *directory, const char *name)
{
    cJSON *json = read_json(directory, name), *all = cJSON_CreateArray();
    const cJSON *point;
    cJSON_ArrayForEach(point, cJSON_GetObjectItem(json, "points"))
    {
        assert_true(cJSON_IsTrue(cJSON_GetObjectItem(point, "done")));
        cJSON_AddItemToArray(all, cJSON_Duplicate(cJSON_GetObjectItem(point, "name"), 1));
        cJSON_AddItemToArray(all, cJSON_Duplicate(cJSON_GetObjectItem(point, "numbers"), 1));
    }
    assert_int_equal(cJSON_GetArraySize(all), 2 * POINTS);
    char *text = cJSON_Print(all);
    cJSON_Delete(all);
    cJSON_Delete(json);
    return text;
}

static time_t written(const char *directory, const char *name, long *nanoseconds)
{
    char path[4096];
    struct stat st;
    snprintf(path, sizeof path, "%s/%s", directory, name);
    if (stat(path, &st) != 0) fail_msg("%s is not there", path);
    *nanoseconds = st.st_mtim.tv_nsec;
    return st.st_mtim.tv_sec;
}

/* Checks that points compared with a folder are made again when the folder has changed. */
static void changed_folder(void **state)
{
    const char *d = *state;
    static const char again[] = "$MAR eval --sweep axes.txt --num_images 10 --num_iter 2 --num_sampling_steps 2 "
                                "--stats real --out sweep --quiet";
    write_whole_file(d, "axes.txt", "--cfg 1 | --cfg 3\n", 18);
    sh_ok(d, "$MAR generate --num 1 --num_iter 2 --num_sampling_steps 2 --out real --quiet");
    sh_ok(d, again);
    sh_ok(d, "mv sweep/runs gone");
    sh_ok(d, again); /* nothing is made or read */
    sh_ok(d, "test ! -e sweep/runs && mv gone sweep/runs && touch -d 2001-01-01 real/000003.png");
    command_refused(d, again, "mar: cfg-1: sweep/cfg-1: was begun with stats_id 10 images, ", "");
    sh_ok(d, "rm -r real");
    command_refused(d, again, "real: cannot read", "");
}

/* Checks that a sweep prints and writes its points, and makes finished points only once. */
static void a_sweep(void **state)
{
    const char *d = *state;
    command_result r = command_run(d, "$MAR " RUN "--out sweep");
    if (r.status != 0) fail_msg("%s", r.err);
    assert_has(r.out, "point 4 of 4, cfg-3+head_spec-3: Fréchet distance ");
    assert_has(r.out, "  --cfg 3 --head_spec 3\n");
    assert_has(r.out, "wrote sweep/sweep.json");
    command_result_free(&r);
    cJSON *extras, *record = page_record(d, "sweep/sweep.html", "sweep", &extras);
    assert_string_equal(cJSON_GetStringValue(cJSON_GetArrayItem(cJSON_GetObjectItem(extras, "command"), 1)), "eval");
    assert_string_equal(cJSON_GetStringValue(cJSON_GetObjectItem(extras, "distance")), "Fréchet distance");
    const cJSON *shown_point;
    cJSON_ArrayForEach(shown_point, cJSON_GetObjectItem(extras, "points"))
    {
        int width, height;
        assert_int_equal(json_count(shown_point, "pictures"), 6);
        free(page_pixels(cJSON_GetObjectItem(shown_point, "pictures")->child, &width, &height));
        assert_true(width == 32 && height == 32);
    }
    cJSON_Delete(record), cJSON_Delete(extras);
    sh_ok(d,
          "for p in cfg-1 cfg-3 cfg-1+head_spec-3 cfg-3+head_spec-3; do test -s sweep/$p/report.html || exit 1; done");

    /* Each point equals the run of its options. */
    command_ok(d, "eval --num_images 20 --num_iter 2 --num_sampling_steps 4 --shard_images 8 --cfg 3 --head_spec 3 "
                  "--out alone --quiet");
    cJSON *alone = read_json(d, "alone/result.json"), *point = read_json(d, "sweep/cfg-3+head_spec-3/result.json");
    assert_true(cJSON_Compare(cJSON_GetObjectItem(alone, "numbers"), cJSON_GetObjectItem(point, "numbers"), 1));
    cJSON_Delete(alone), cJSON_Delete(point);

    /* A repeated sweep makes only the points that are gone. */
    long before, after;
    char *whole = numbers_in(d, "sweep/sweep.json");
    const time_t was = written(d, "sweep/cfg-1/result.json", &before);
    command_ok(d, RUN "--out sweep --quiet");
    assert_true(written(d, "sweep/cfg-1/result.json", &after) == was && before == after);
    sh_ok(d, "rm -r sweep/cfg-3 && cp -rp sweep/runs before");
    r = command_run(d, "$MAR " RUN "--out sweep");
    sh_ok(d, "diff -r before sweep/runs"); /* its images come from the store */
    assert_has(r.out, "point 3 of 4, cfg-3: ");
    assert_null(strstr(r.out, "point 1 of 4"));
    command_result_free(&r);
    assert_true(written(d, "sweep/cfg-1/result.json", &after) == was && before == after);
    char *again = numbers_in(d, "sweep/sweep.json");
    assert_string_equal(whole, again);
    free(again);

    /* The same sweep as JSON. */
    r = command_run(d, "$MAR " RUN "--out sweep --json");
    write_whole_file(d, "printed.json", r.out, strlen(r.out));
    command_result_free(&r);
    again = numbers_in(d, "printed.json");
    assert_string_equal(whole, again);
    free(again), free(whole);

    /* Other common options make another sweep: the directory of the first is refused. */
    command_refused(d, "$MAR " RUN "--out sweep --temperature 0.9",
                    "cfg-1: sweep/cfg-1: was begun with --temperature 1, this is --temperature 0.9", "");
    /* Another axis keeps the existing points. */
    write_whole_file(d, "axes.txt", AXES "| --seed 1\n", strlen(AXES "| --seed 1\n"));
    r = command_run(d, "$MAR " RUN "--out sweep");
    assert_null(strstr(r.out, "point 1 of 8"));
    assert_has(r.out, "point 2 of 8, cfg-1+seed-1: ");
    assert_has(r.out, "chance: --cfg 1 and 1 other seed: ");
    command_result_free(&r);
    /* Foreign files are refused and not overwritten. */
    sh_ok(d, "echo '{' >sweep/sweep.json");
    command_refused(d, "$MAR " RUN "--out sweep",
                    "sweep/sweep.json: is no JSON object, expected what mar eval --sweep wrote", NULL);
}

/* Kills a sweep at many moments. Checks that it continues and ends with the same numbers. */
static void killed(void **state)
{
    const char *d = *state;
    command_ok(d, RUN "--out whole --quiet");
    char *whole = numbers_in(d, "whole/sweep.json");
    srand(3);
    for (int turn = 0; turn < 8; turn++) {
        const int number = turn % 2 ? SIGTERM : SIGKILL;
        const pid_t child = command_start(d, RUN "--out cut");
        usleep((useconds_t)(20000 + rand() % 400000));
        kill(child, number);
        const int said = command_wait(child);
        if (said != 0 && said != 128 + number && said != 75) fail_msg("exit status %d after signal %d", said, number);
    }
    command_ok(d, RUN "--out cut --quiet");
    char *cut = numbers_in(d, "cut/sweep.json");
    assert_string_equal(whole, cut);
    free(cut);
    /* Two processes share the work, one after the other. The second merges. */
    command_result r =
        command_run(d, "$MAR " RUN "--out parts --shard 1/2 && $MAR " RUN "--out parts --shard 2/2 --quiet");
    if (r.status != 0) fail_msg("%s", r.err);
    assert_has(r.out, "0 of 4 points are there\n");
    command_result_free(&r);
    cut = numbers_in(d, "parts/sweep.json");
    assert_string_equal(whole, cut);
    free(cut), free(whole);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(the_product),
                                       cmocka_unit_test(quotes),
                                       cmocka_unit_test(names),
                                       COMMAND_TEST(refused_files),
                                       cmocka_unit_test(too_many_points),
                                       cmocka_unit_test(the_front),
                                       COMMAND_TEST(the_page),
                                       COMMAND_TEST(changed_folder),
                                       cmocka_unit_test_setup_teardown(a_sweep, setup, command_teardown),
                                       cmocka_unit_test_setup_teardown(killed, setup, command_teardown)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
