/* mar fidelity on the demo: equal and different runs, their names, times, the page and errors. */
#include "tests/support/command.h"
#include "tests/support/page.h"

#include "tools/fidelity/compare.h"

#include <cjson/cJSON.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Enough steps for recognisable digits. */
#define DIGITS "--num_iter 4 --num_sampling_steps 20 "
/* Enough for the rest */
#define QUICK "--num_iter 4 --num_sampling_steps 8 "

/* Runs "$MAR fidelity arguments --json" in one thread, for tests that run side by side. Returns the record; the caller
 * deletes it. */
static cJSON *report(const char *directory, const char *arguments)
{
    return command_json(directory, "fidelity %s --json --threads 1", arguments);
}

static int count_of(const char *page, const char *what)
{
    int n = 0;
    for (const char *at = strstr(page, what); at; at = strstr(at + 1, what)) n++;
    return n;
}

/* --- tests ------------------------------------------------------------------------------------------ */

/* Tests the command of the issue, and a self-contained page. */
static void identical_runs(void **state)
{
    const char *d = *state;
    cJSON *record = report(d, "--model demo " QUICK "--against " QUICK "--num 20 --out a.html");
    assert_int_equal(json_count(record, "runs"), 1);
    const cJSON *run = json_at(record, "runs.0"), *energy = cJSON_GetObjectItem(run, "energy_image");
    assert_true(json_number(energy, "distance") == 0 && json_number(energy, "p") == 1);
    assert_true(json_number(run, "energy_token.distance") == 0);
    assert_true(json_number(run, "p") == 1);
    assert_true(json_number(run, "mean_gap") == 0 && json_number(run, "covariance_gap") == 0);
    assert_true(cJSON_IsTrue(cJSON_GetObjectItem(run, "identical")));
    assert_true(json_number(run, "head_calls_per_token") == 8);
    assert_string_equal(json_text(run, "verdict"), "identical to the reference: the same tokens to the last bit");
    /* one turn of 16 images and one of 4: only one is timed */
    assert_true(json_number(record, "turns_timed") == 1 && json_number(run, "speed") > 0);
    static const char *const ends[] = {"seconds_low", "seconds_high", "speed_low", "speed_high"};
    for (int i = 0; i < 4; i++) assert_true(cJSON_IsNull(cJSON_GetObjectItem(run, ends[i])));
    assert_true(cJSON_IsNull(cJSON_GetObjectItem(record, "spread")));
    assert_int_equal(count_files(d), 1); /* no temporary file */

    /* The page has that record, and the same pictures for both runs. */
    cJSON *extras, *shown = page_record(d, "a.html", "fidelity", &extras);
    assert_true(cJSON_Compare(record, shown, 1));
    assert_true(cJSON_IsFalse(cJSON_GetObjectItem(extras, "discrete")));
    const cJSON *runs = cJSON_GetObjectItem(extras, "runs"), *samples[2];
    for (int i = 0; i < 2; i++) samples[i] = cJSON_GetObjectItem(cJSON_GetArrayItem(runs, i), "samples");
    assert_int_equal(cJSON_GetArraySize(samples[0]), 20);
    assert_true(cJSON_Compare(samples[0], samples[1], 1));
    assert_string_equal(json_text(cJSON_GetArrayItem(runs, 1), "finding"), "same");
    assert_string_equal(cJSON_GetStringValue(cJSON_GetArrayItem(cJSON_GetObjectItem(extras, "command"), 3)), "demo");
    cJSON_Delete(record), cJSON_Delete(shown), cJSON_Delete(extras);
}

/* Exact runs have distances around 0. The text explains one below 0, which looks impossible; and only then. */
static void negative_distances(void **state)
{
    command_result r =
        command_run(*state, "$MAR fidelity " QUICK "--head_spec 2 --versus " QUICK "--head_spec 3 --versus " QUICK
                            "--head_spec 4 --against " QUICK "--num 20 --out n.html >text && "
                            "grep -c '^run .* -0[.]' text");
    const int negative = atoi(r.out) > 0;
    command_result_free(&r);
    r = command_run(*state, "grep -c '^A distance below 0 means indistinguishable: ' text");
    assert_int_equal(atoi(r.out), negative);
    print_message("%s distance is below 0\n", negative ? "a" : "no");
    command_result_free(&r);
    sh_ok(*state, "rm n.html text");
}

static void a_difference_is_found(void **state)
{
    cJSON *record =
        report(*state, "--model demo-draft " DIGITS "--versus --model demo --num_iter 4 --num_sampling_steps 18 "
                       "--against --model demo " DIGITS "--num 60 --out b.html");
    const cJSON *draft = json_at(record, "runs.0"), *fewer = json_at(record, "runs.1"),
                *level = cJSON_GetObjectItem(record, "floor");
    assert_string_equal(json_text(draft, "options"), "--model demo-draft");
    assert_true(json_number(draft, "p") <= 0.01);
    assert_true(json_number(draft, "energy_image.distance") > json_number(level, "image_95"));
    assert_true(json_number(draft, "energy_token.distance") > json_number(level, "token_95"));
    assert_has(json_text(draft, "verdict"), "differs");
    assert_int_equal(json_count(draft, "ks"), 8);
    assert_true(json_number(record, "reference.classifier_accuracy") > 0.9);
    assert_true(json_number(draft, "classifier_accuracy") < 0.8);
    /* nearly as many steps: nearer than the draft */
    assert_string_equal(json_text(fewer, "options"), "--num_sampling_steps 18");
    assert_true(json_number(fewer, "head_calls_per_token") == 18);
    assert_true(json_number(fewer, "energy_image.distance") < json_number(draft, "energy_image.distance") / 4);
    cJSON_Delete(record);
}

/* Checks that the fewest images allowed are enough to find a gross difference. */
static void a_gross_difference_is_found_in_few(void **state)
{
    cJSON *record =
        report(*state, "--num_iter 1 --num_sampling_steps 2 --cfg 1 --against " DIGITS "--num 20 --out few.html");
    assert_true(json_number(record, "runs.0.p") <= 0.01);
    assert_has(json_text(record, "runs.0.verdict"), "differs");
    cJSON_Delete(record);
}

static void assert_verdict(const fidelity *f, const fidelity_run *r, fidelity_finding finding, const char *part)
{
    char verdict[160];
    assert_int_equal(fidelity_find(f, r), finding);
    if (!strstr(fidelity_verdict(f, r, verdict, sizeof verdict), part)) fail_msg("%s, expected %s", verdict, part);
    assert_in_range(strlen(verdict), 1, sizeof verdict - 2);
}

/* Checks that "the same" is said only where "differs" was possible. With up to 12 differing pairs it is not. */
static void verdicts(void **state)
{
    (void)state;
    static const fidelity continuous, discrete = {.vocabulary = 16};
    assert_true(fidelity_least_p(&continuous, 0) == 1 && fidelity_least_p(&continuous, 1) == 1);
    assert_true(fidelity_least_p(&continuous, 12) > FIDELITY_LEVEL);
    assert_true(fidelity_least_p(&continuous, 13) <= FIDELITY_LEVEL);
    assert_true(fidelity_least_p(&continuous, FIDELITY_NUM_MIN) < FIDELITY_LEVEL / 2);
    assert_true(fidelity_least_p(&discrete, FIDELITY_NUM_MIN) < FIDELITY_LEVEL);

    static fidelity f = {.num = 20, .floor.measured = 1, .floor.image = 1, .floor.token = 1};
    fidelity_run r = {.differing = 20, .p = 0.5};
    assert_verdict(&f, &r, FIDELITY_SAME, "indistinguishable from the reference at 20 images (p = 0.500)");
    r.differing = 10;
    assert_verdict(&f, &r, FIDELITY_UNSURE, "too few images to tell: 10 of 20 differ");
    r.differing = 20, f.floor.measured = 0;
    assert_verdict(&f, &r, FIDELITY_UNSURE,
                   "indistinguishable from the reference at 20 images (p = 0.500), too few for");
    r.p = 0.01;
    assert_verdict(&f, &r, FIDELITY_OFF, "differs (p = 0.010)");
    f.floor.measured = 1, r.image.distance = r.token.distance = 0.5;
    assert_verdict(&f, &r, FIDELITY_CLOSE, "by less than another seed does");
    r.token.distance = 3;
    assert_verdict(&f, &r, FIDELITY_OFF, "differs (p = 0.010), 3.0 times");
    r.differing = 0, r.p = 1;
    assert_verdict(&f, &r, FIDELITY_SAME, "identical");
}

static void drafts_are_mapped(void **state)
{
    cJSON *record = report(*state, "--draft demo-draft --spec cspd --gamma 2 " QUICK "--against " QUICK
                                   "--num 20 --class 5 --out e.html");
    const double rate = json_number(record, "runs.0.acceptance_rate");
    assert_true(json_number(record, "runs.0.draft_calls_in_sequence") > 0);
    assert_true(json_number(record, "reference.draft_calls_in_sequence") == 0);
    assert_true(rate >= 0 && rate <= 1);
    assert_true(cJSON_IsNull(json_find(record, "reference.acceptance_rate")));
    assert_has(json_text(record, "runs.0.options"), "--draft demo-draft --spec cspd --gamma 2");
    cJSON_Delete(record);
    cJSON *extras, *shown = page_record(*state, "e.html", "fidelity", &extras);
    const cJSON *runs = cJSON_GetObjectItem(extras, "runs"), *run = cJSON_GetArrayItem(runs, 1);
    int width, height;
    assert_int_equal(cJSON_GetArraySize(cJSON_GetObjectItem(runs->child, "maps")), 0); /* the reference has no drafts */
    assert_int_equal(json_count(run, "maps"), 7);
    free(page_pixels(cJSON_GetObjectItem(run, "maps")->child, &width, &height));
    assert_true(width == 8 && height == 8); /* a pixel for each token */
    assert_int_equal(json_count(shown, "runs.0.acceptance_per_position"), 8 * 8);
    cJSON_Delete(shown), cJSON_Delete(extras);
}

/* Tests drafts of the model itself, by step and by lateness. With a draft model no draft is late. */
static void own_drafts(void **state)
{
    cJSON *record = report(*state, "--draft self --gamma 8 --head_spec 4 --num_iter 16 --num_sampling_steps 4 "
                                   "--versus --draft demo-draft --gamma 8 --num_iter 16 --num_sampling_steps 4 "
                                   "--against --num_iter 16 --num_sampling_steps 4 --num 20 --class 5 --out own.html");
    const cJSON *own = json_at(record, "runs.0"), *other = json_at(record, "runs.1"),
                *plain = cJSON_GetObjectItem(record, "reference");
    assert_string_equal(json_text(own, "draft"), "self");
    assert_string_equal(json_text(other, "draft"), "demo-draft");
    assert_null(cJSON_GetObjectItem(plain, "draft"));
    assert_string_equal(json_text(own, "options"), "--head_spec 4 --draft self --spec path --gamma 8");
    /* the longest guarantee, complete */
    const char *end = "as later contexts saw it (accepted_shift measures the difference); not the model's defaults: "
                      "num_iter 16 (64), num_sampling_steps 4 (100)",
               *promise = json_text(own, "guarantee");
    assert_int_equal(strncmp(promise, "exact to: plain sampling, 16 steps of 4, of whole paths", 55), 0);
    if (!strstr(promise, end)) fail_msg("\"%s\" is cut", promise);
    assert_true(json_number(plain, "passes_in_sequence") == 16 * json_number(record, "turns"));
    assert_true(json_number(plain, "contexts_per_image") == 16);
    assert_true(json_number(own, "passes_in_sequence") > 0);
    assert_true(json_number(own, "contexts_per_image") > 16);
    assert_true(json_count(own, "acceptance_per_step") == 16);
    const cJSON *late = cJSON_GetObjectItem(own, "acceptance_per_lateness");
    assert_true(cJSON_GetArraySize(late) > 1 && cJSON_GetArraySize(late) <= 16);
    assert_true(cJSON_IsNull(cJSON_GetArrayItem(late, 0)));
    assert_true(cJSON_GetArrayItem(late, 1)->valuedouble > 0 && cJSON_GetArrayItem(late, 1)->valuedouble <= 1);
    assert_int_equal(json_count(other, "acceptance_per_lateness"), 0);
    assert_null(cJSON_GetObjectItem(plain, "acceptance_per_step"));
    cJSON_Delete(record);
}

/* Checks how runs are named. Guidance of the first run holds for the others, its steps do not. --num, --seed and the
 * like may stand anywhere. Without own options before the first separator, the run is the one after it. The model of
 * the first run holds for all. An accelerated reference is named by its given accelerators. A run's name lists those
 * that it lacks. Options that nobody gave, such as the default steps of --lazy or --gtr, are in no name. */
static void names_of_runs(void **state)
{
    static const struct {
        const char *arguments, *reference, *run[2]; /* NULL: no second run */
    } cases[] = {
        {"--cfg 1.5 " QUICK "--versus " QUICK "--cfg 4 --num 20 --against --num_iter 2 --num_sampling_steps 8 --seed 9 "
         "--class 3,7",
         "plain sampling, 2 autoregressive steps of 8",
         {"--num_iter 4", "--num_iter 4 --cfg 4"}},
        {"--num 20 --versus --model demo-draft " QUICK
         "--versus --gtr --gtr_generation_steps 2 --num_sampling_steps 10 "
         "--against --num_iter 4 --num_sampling_steps 10",
         "plain sampling, 4 autoregressive steps of 10",
         {"--num_sampling_steps 8", "--gtr --gtr_generation_steps 2"}},
        {QUICK "--versus --model demo-draft " QUICK "--lazy_head --against --gtr --num_sampling_steps 8 --cfg 2 "
               "--num 20",
         "--num_sampling_steps 8 --gtr",
         {"--num_iter 4 --cfg 2.9 no gtr", "--model demo-draft --num_iter 4 --cfg 2.9 --lazy_head no gtr"}},
        {"--model demo-draft --num_iter 4 --against --lazy --num_sampling_steps 4 --num 20",
         "--num_sampling_steps 4 --lazy",
         {"--num_iter 4 --num_sampling_steps 100 no lazy", NULL}},
        {"--model demo-draft --num_iter 64 --num_sampling_steps 4 --versus --num_sampling_steps 4 --against "
         "--num_sampling_steps 4 "
         "--num 20",
         "plain sampling, 64 autoregressive steps of 4",
         {"the same options", "the same options"}}, /* 64 is the default */
    };
    for (size_t i = 0; i < LENGTH(cases); i++) {
        cJSON *record = report(*state, cases[i].arguments);
        assert_string_equal(json_text(record, "reference.options"), cases[i].reference);
        assert_string_equal(json_text(record, "runs.0.options"), cases[i].run[0]);
        assert_int_equal(json_count(record, "runs"), cases[i].run[1] ? 2 : 1);
        if (cases[i].run[1]) assert_string_equal(json_text(record, "runs.1.options"), cases[i].run[1]);
        if (i == 0) {
            assert_true(json_number(record, "seed") == 9 && json_number(record, "images") == 20);
            assert_int_equal(json_count(record, "classes"), 2);
            assert_true(json_number(record, "reference.parameters.num_iter") == 2);
        } else if (i == 1) {
            /* the steps of other tokens are at most those of detailed ones, 50 by default */
            assert_true(json_number(record, "runs.1.parameters.gtr_sampling_steps") == 10);
            assert_true(cJSON_IsTrue(json_find(record, "runs.1.parameters.gtr")));
            assert_null(json_find(record, "runs.1.parameters.num_iter")); /* has no effect with gtr */
            assert_string_equal(json_text(record, "reference.model"), "demo-draft");
        }
        cJSON_Delete(record);
    }
}

static void printed(void **state)
{
    command_result r = command_mar(*state, "fidelity " QUICK "--against " QUICK "--num 20 --out d.html");
    assert_int_equal(r.status, 0);
    assert_string_equal(r.err, ""); /* no progress where there is no terminal */
    const char *heading = strstr(r.out, "s/image");
    assert_non_null(heading);
    assert_in_range(strcspn(heading, "\n"), 40, 80 - 10); /* the names of the runs stand before it */
    static const char *const parts[] = {"\nreference ", "\nrun 1 ",
                                        "identical to the reference: the same tokens to the last bit",
                                        "one turn, no spread"};
    for (size_t i = 0; i < LENGTH(parts); i++) assert_has(r.out, parts[i]);
    assert_null(strstr(r.out, "s per image ("));
    command_result_free(&r);
}

/* --- discrete tokens --------------------------------------------------------------------------------- */

static void assert_counts(const cJSON *run, const char *name, int cells)
{
    const cJSON *test = cJSON_GetObjectItem(run, name);
    assert_non_null(test);
    assert_true(json_number(test, "cells") > cells);
    assert_true(json_number(test, "chi2") > 0);
    assert_true(json_number(test, "p") >= 0.001 && json_number(test, "p") <= 1);
    assert_true(json_number(test, "total_variation") > 0 && json_number(test, "total_variation") <= 1);
    assert_true(json_number(test, "total_variation_95") > 0 && json_number(test, "total_variation_95") <= 1);
}

/* Checks that a draft that keeps the distribution is not distinguished, and that half the temperature is. The record
 * has no statistic of continuous tokens. */
static void discrete_tokens(void **state)
{
    cJSON *record = report(*state, "--model demo-discrete --draft demo-discrete-draft --gamma 3 --versus "
                                   "--temperature 0.5 --against --num 40 --cfg 1 --batch 20 --out discrete.html");
    const cJSON *same = json_at(record, "runs.0"), *other = json_at(record, "runs.1");
    for (int i = 0; i < 2; i++) {
        const cJSON *run = i ? other : same;
        assert_counts(run, "tokens", 20);
        assert_counts(run, "places", 500);
        assert_counts(run, "neighbours", 500);
        assert_null(cJSON_GetObjectItem(run, "ks"));
    }
    assert_string_equal(json_text(same, "guarantee"),
                        "exact to: plain sampling, 64 steps (the model's defaults), by speculation (vanilla)");
    assert_true(json_number(same, "acceptance_rate") > 0 && json_number(same, "acceptance_rate") < 1);
    assert_true(json_number(same, "passes_in_sequence") < json_number(record, "reference.passes_in_sequence"));
    assert_true(json_number(record, "reference.contexts_per_image") == 64);
    assert_int_equal(strncmp(json_text(other, "verdict"), "differs", 7), 0);
    assert_true(json_number(other, "places.p") == 0.001);
    cJSON_Delete(record);
    cJSON *extras, *shown = page_record(*state, "discrete.html", "fidelity", &extras);
    assert_true(cJSON_IsTrue(cJSON_GetObjectItem(extras, "discrete")));
    assert_int_equal(json_number(extras, "tests"), 2 + 3);
    cJSON_Delete(shown), cJSON_Delete(extras);
    command_result r = command_run(
        *state, "$MAR fidelity --model demo-discrete --spec sjd --window 8 --against --num 20 --cfg 1 --top_k 9 "
                "--class 3 --threads 1 --out discrete.html");
    assert_int_equal(r.status, 0);
    assert_has(r.out, "s/image  speed c/image accept");
    assert_has(r.out, "           tokens by place: total variation 0.");
    assert_has(r.out, "           neighbours: total variation 0.");
    command_result_free(&r);
}

/* Checks the record of texts that the session makes, which has ended when the record is written. */
static void resolved_texts(void **state)
{
    cJSON *record = report(*state, "--model demo-discrete --draft demo-discrete-draft --tree 2,1 --versus --spec sjd "
                                   "--against --num 20 --cfg 1 --class 3 --threads 1 --out texts.html");
    assert_string_equal(json_text(record, "runs.0.parameters.tree"), "2,1");
    const char *costs = json_text(record, "runs.1.parameters.round_costs");
    assert_true(*costs && strspn(costs, "0123456789.,") == strlen(costs));
    cJSON_Delete(record);
}

/* Checks the refusal of discrete tokens without an image decoder. A model file has none. */
static void discrete_tokens_without_a_codebook(void **state)
{
    command_ok(*state, "convert demo-discrete plain.safetensors");
    command_refused(
        *state, "$MAR fidelity --model plain.safetensors --versus --temperature 0.5 --against --num 20",
        "--vae is missing: the tokens of plain.safetensors are discrete, and only an image decoder's codebook "
        "tells how far apart they are",
        NULL);
}

/* --- times ------------------------------------------------------------------------------------------ */

static void assert_spread(const cJSON *run, const char *middle, const char *low, const char *high)
{
    assert_true(json_number(run, low) > 0);
    assert_true(json_number(run, low) <= json_number(run, middle) &&
                json_number(run, middle) <= json_number(run, high));
}

static void spreads(void **state)
{
    cJSON *record = report(*state, "--num_iter 1 --num_sampling_steps 2 --versus --num_iter 2 --num_sampling_steps 4 "
                                   "--against --num_iter 1 --num_sampling_steps 2 --num 38 --batch 4 --out t.html");
    const cJSON *reference = cJSON_GetObjectItem(record, "reference");
    assert_true(json_number(record, "turns") == 10);
    assert_true(json_number(record, "turns_timed") == 8); /* neither the first nor the one of 2 images */
    assert_string_equal(json_text(record, "spread"), "quartiles");
    assert_true(json_number(reference, "speed") == 1 && json_number(reference, "speed_low") == 1);
    for (int i = 0; i < 2; i++) {
        const cJSON *run = json_at(record, i ? "runs.1" : "runs.0");
        assert_spread(run, "speed", "speed_low", "speed_high");
        assert_spread(run, "seconds_per_image", "seconds_low", "seconds_high");
        assert_int_equal(json_count(run, "turn_seconds"), 10);
    }
    cJSON_Delete(record);
}

/* Plans 6 turns of 4 images and one of 2. The first turn and the last are not counted. A turn in which the machine was
 * ten times slower changes no speed. */
static void a_load_changes_no_speed(void **state)
{
    (void)state;
    static fidelity f;
    double reference[] = {9, 2, 2, 20, 2.2, 2, 77}, fast[] = {1, 1, 1, 10, 1, 1, 77};
    f = (fidelity){.num = 26, .batch = 4, .turns = 7, .run_count = 2};
    f.runs[0].turn_seconds = reference, f.runs[1].turn_seconds = fast;
    assert_int_equal(fidelity_time(&f), 0);
    assert_int_equal(f.timed_turns, 5);
    assert_true(fidelity_has_spread(&f));
    assert_true(f.runs[1].speed.median == 2 && f.runs[1].speed.low == 2);
    assert_float_equal(f.runs[1].speed.high, 2.2, 1e-12);
    assert_true(f.runs[1].seconds.median == 1 && f.runs[1].seconds.low == 1 && f.runs[1].seconds.high == 10);
    assert_true(f.runs[0].speed.low == 1 && f.runs[0].speed.high == 1);
    assert_true(reference[0] == 9 && fast[3] == 10); /* stays in the order of the turns */

    f.num = f.batch = 26; /* one turn: no other is left */
    assert_int_equal(fidelity_time(&f), 0);
    assert_true(f.timed_turns == 1 && f.runs[1].speed.median == 9 && f.runs[1].speed.high == 9);
    assert_false(fidelity_has_spread(&f));
}

/* Checks that from eight turns on, a quarter of them is omitted on either side. */
static void quartiles(void **state)
{
    (void)state;
    static fidelity f;
    double reference[10], run[10] = {50, 8, 1, 7, 2, 6, 3, 5, 4, 9};
    for (int i = 0; i < 10; i++) reference[i] = 1;
    f = (fidelity){.num = 20, .batch = 2, .turns = 10, .run_count = 2};
    f.runs[0].turn_seconds = reference, f.runs[1].turn_seconds = run;
    assert_int_equal(fidelity_time(&f), 0);
    assert_int_equal(f.timed_turns, 9);
    assert_float_equal(f.runs[1].seconds.low, 3, 1e-12);
    assert_float_equal(f.runs[1].seconds.median, 5, 1e-12);
    assert_float_equal(f.runs[1].seconds.high, 7, 1e-12);
    assert_float_equal(f.runs[1].speed.median, 0.2, 1e-12);
}

/* Checks that every figure except the times depends on its run alone. Turns with other runs and shared models change
 * nothing. */
static void turns_change_no_figure(void **state)
{
    static const char *const names[] = {"p", "mean_gap", "covariance_gap", "head_calls_per_token",
                                        "head_calls_in_sequence"};
    cJSON *alone = report(*state, "--sampler ddim " QUICK "--against " QUICK "--num 20 --batch 6 --out u.html");
    cJSON *among = report(*state, "--model demo-draft " QUICK "--versus --model demo --sampler ddim " QUICK
                                  "--versus --model demo --draft demo-draft " QUICK "--against --model demo " QUICK
                                  "--num 20 --batch 6 --out u.html");
    const cJSON *a = json_at(alone, "runs.0"), *b = json_at(among, "runs.1");
    assert_string_equal(json_text(a, "options"), json_text(b, "options"));
    assert_true(json_number(a, "energy_image.distance") != 0);
    assert_true(json_number(a, "energy_image.distance") == json_number(b, "energy_image.distance"));
    for (size_t i = 0; i < LENGTH(names); i++)
        if (json_number(a, names[i]) != json_number(b, names[i])) fail_msg("%s depends on the other runs", names[i]);
    cJSON_Delete(alone);
    cJSON_Delete(among);
}

/* --- the plot --------------------------------------------------------------------------------------- */

/* Fails unless tags, quotes and entities of the text are those of XML. */
static void assert_xml(const char *page)
{
    char open[32][16];
    int depth = 0;
    for (const char *c = page; *c; c++) {
        if ((unsigned char)*c < 32 && *c != '\n') fail_msg("a control character");
        if (*c == '&' && strncmp(c, "&lt;", 4) != 0 && strncmp(c, "&gt;", 4) != 0 && strncmp(c, "&amp;", 5) != 0 &&
            strncmp(c, "&quot;", 6) != 0)
            fail_msg("no entity: %.20s", c);
        if (*c != '<') continue;
        const int closing = c[1] == '/';
        char name[16] = "";
        sscanf(c + 1 + closing, "%15[a-zA-Z]", name);
        if (closing && (depth == 0 || strcmp(open[--depth], name) != 0)) fail_msg("%.30s closes nothing", c);
        for (; *c != '>'; c++) {
            if (*c == '=' && c[1] != '"') fail_msg("an attribute without quotes: %.30s", c);
            if (*c == '"') c = strchr(c + 1, '"');
            if (!c || !*c) fail_msg("a tag without end");
        }
        if (!closing && c[-1] != '/') strcpy(open[depth++], name);
        assert_in_range(depth, 0, 31);
    }
    assert_int_equal(depth, 0);
}

#define FIFTY "_model_with_a_name_longer_than_a_legend_has_room__"

/* Checks the plot's XML and the texts on it. A tooltip has a run's whole name, of which the legend shows the ends. */
static void plot_file(void **state)
{
    const char *d = *state;
    command_ok(d, "convert demo-draft 'a<b&\"c\377" FIFTY FIFTY ".safetensors'");
    sh_ok(d, "$MAR fidelity --num_iter 1 --num_sampling_steps 2 --versus --model 'a<b&\"c\377" FIFTY FIFTY
             ".safetensors' --vae demo --num_iter 1 --num_sampling_steps 2 --against --model demo --num_iter 1 "
             "--num_sampling_steps 2 --num 20 --quiet --out v.html --plot v.svg >said && test ! -s said");
    cJSON *extras, *shown = page_record(d, "v.html", "fidelity", &extras);
    assert_string_equal(json_text(shown, "runs.1.model"), "a<b&\"c\xef\xbf\xbd" FIFTY FIFTY ".safetensors");
    cJSON_Delete(shown), cJSON_Delete(extras);
    char *plot = read_whole_file(d, "v.svg", NULL);
    assert_int_equal(strncmp(plot, "<svg xmlns=\"http://www.w3.org/2000/svg\"", 39), 0);
    assert_xml(plot);
    assert_int_equal(count_of(plot, "<circle "), 3);
    assert_has(plot, "<title>--model a&lt;b&amp;&quot;c\\xff" FIFTY FIFTY ".safetensors</title>");
    assert_has(plot, "\">--model a&lt;b&amp;&quot;c\\xff_model_with");
    assert_int_equal(count_of(plot, FIFTY FIFTY), 1);
    assert_in_range(strlen(plot), 1000, 8000);
    free(plot);
}

/* --- interruption ----------------------------------------------------------------------------------- */

/* Checks that an interrupted run leaves no page, no half-written file and two lines. */
static void interrupt_fidelity(int store)
{
    static const char first[] = "mar: stopping; again to quit at once\n";
    char *d = temporary_directory(), *said = NULL;
    char command[160];
    snprintf(command, sizeof command,
             "fidelity --num_iter 4 --num_sampling_steps 8 --against --num 10000 --threads 1 --out never.html "
             "--plot never.svg%s",
             store ? " --store kept" : "");
    for (useconds_t pause = 250000; !said || !strstr(said, first); pause *= 2) { /* until it was at work */
        free(said);
        const pid_t child = command_start(d, command);
        usleep(pause);
        kill(child, SIGTERM);
        assert_int_equal(command_wait(child), 128 + SIGTERM);
        said = read_whole_file(d, "errors", NULL);
        assert_in_range(count_files(d), 1, store ? 2 : 1); /* the output, and the store if it was at work */
    }
    assert_int_equal(count_files(d), store ? 2 : 1);
    assert_int_equal(strncmp(said, first, strlen(first)), 0);
    const char *second = said + strlen(first);
    long made = 0, wanted = 0;
    if (sscanf(second, "mar: interrupted: %ld of %ld images were made, never.html is not written", &made, &wanted) ==
        2) {
        assert_true(made > 0 && made < wanted && wanted == 20000);
        assert_int_equal(strstr(second, "; images are in kept, the same command goes on") != NULL, store);
    } else {
        assert_has(second, "no image was finished"); /* the signal came during the first batch */
    }
    assert_int_equal(count_of(second, "\n"), 1);
    free(said);
    remove_directory(d);
    free(d);
}

static void interrupted(void **state)
{
    (void)state;
    interrupt_fidelity(0);
    interrupt_fidelity(1);
}

static void mistakes(void **state)
{
    static const refusal cases[] = {
        {"fidelity ",
         "--against is missing, expected the options of the reference run behind it, or none for plain sampling", ""},
        {"fidelity --against --against", "--against: given twice, expected one reference run", ""},
        {"fidelity --against", "the fast run is missing, expected its options in front of --against, or --versus", ""},
        {"fidelity --num 20 --against --num_iter 4", "the fast run is missing", ""},
        {"fidelity --against --num 19", "--num 19: expected a whole number from 20 to 10000", ""},
        {"fidelity --head_spce 3 --against", "did you mean --head_spec?", ""},
        {"fidelity --versus --against --num_iter 65", "mar: --num_iter 65: expected 0..64", ""},
        {"fidelity --num_iter 4 --versus --model absent.pth --against", "absent.pth", ""},
        {"fidelity --versus --against --class 10", "--class: ", ""},
        {"fidelity --versus --against --out nowhere/x.html", "nowhere/x.html: cannot write", ""},
        {"fidelity --versus --against --out .", ".: expected a name ending in .html", ""},
        {"fidelity --versus --against --plot plot.png", "plot.png: expected a name ending in .svg", ""},
        {"fidelity --versus --against --plot nowhere/x.svg", "nowhere/x.svg: cannot write", ""},
        {"fidelity --against stray", "stray: unexpected argument", ""},
    };
    command_refuses(*state, cases, LENGTH(cases));
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(identical_runs),
                                       cmocka_unit_test(negative_distances),
                                       cmocka_unit_test(a_difference_is_found),
                                       cmocka_unit_test(a_gross_difference_is_found_in_few),
                                       cmocka_unit_test(verdicts),
                                       cmocka_unit_test(names_of_runs),
                                       cmocka_unit_test(drafts_are_mapped),
                                       cmocka_unit_test(own_drafts),
                                       cmocka_unit_test(printed),
                                       cmocka_unit_test(discrete_tokens),
                                       cmocka_unit_test(resolved_texts),
                                       cmocka_unit_test(discrete_tokens_without_a_codebook),
                                       cmocka_unit_test(spreads),
                                       cmocka_unit_test(a_load_changes_no_speed),
                                       cmocka_unit_test(quartiles),
                                       cmocka_unit_test(turns_change_no_figure),
                                       cmocka_unit_test(plot_file),
                                       cmocka_unit_test(interrupted),
                                       cmocka_unit_test(mistakes)};
    return cmocka_run_group_tests(tests, command_setup, command_teardown);
}
