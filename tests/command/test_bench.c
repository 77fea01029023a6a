/* mar bench, mostly of discrete tokens. Bytes and flop of the passes equal a count by hand. Floors are these over the
 * measured rates. Every method gets its speed from floors. Times must only be positive. */
#include "tests/support/brief.h"
#include "tests/support/command.h"

#include <cjson/cJSON.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BYTES = 4, TOKENS = 64, CONDITIONS = 2 }; /* bytes of an f32; tokens of a demo image; cfg branches */

/* The shapes of the demo's models, as mar inspect shows them. */
static const double width = 128, depth = 6, hidden = 256, vocabulary = 256;

static cJSON *bench(const char *directory, const char *options)
{
    return command_json(directory, "bench --model demo-discrete --dtype f32 --threads 1 --seed 7 --json %s", options);
}

static void assert_equal(const char *what, double found, double expected)
{
    if (!(fabs(found - expected) <= 1e-9 * fabs(expected)))
        fail_msg("%s: %.17g, expected %.17g", what, found, expected);
}

/* --- passes by hand ----------------------------------------------------------------------------------------------- */

typedef struct {
    double bytes, flop;
} work;

/* Adds a pass of `images` images with `rows` rows each. Rows of each cfg branch follow one another. Row i attends to
 * `before` + i + 1 positions. */
static void add_pass(work *w, int images, int before, int rows, int laws)
{
    const double sequences = images * CONDITIONS, layers = depth * width * (4 * width + 3 * hidden);
    const double slots = rows ? before + rows : 0;
    double attended = 0;
    for (int i = 0; i < rows; i++) attended += before + i + 1;
    w->bytes += BYTES * ((rows ? layers : 0) + (laws ? width * vocabulary : 0) + sequences * slots * depth * 2 * width);
    w->flop += 2 * sequences * (rows * layers + 2 * attended * depth * width + laws * width * vocabulary);
}

/* Counts plain decoding. One position precedes the image tokens: it gives the first token's distribution. Each further
 * token takes a pass. */
static work plain_work(int images)
{
    work w = {0};
    add_pass(&w, images, 0, 1, 0);
    add_pass(&w, images, 1, 0, 1);
    for (int t = 1; t < TOKENS; t++) add_pass(&w, images, t, 1, 1);
    return w;
}

/* Counts drafts of the model itself: all gamma drafts are accepted, and gamma + 1 divides the tokens. A round of the
 * target has the drafts and the extra token of the previous round. The draft model has seen neither that token nor the
 * draft before it. */
static void self_work(int images, int gamma, work *target, work *draft)
{
    add_pass(target, images, 0, 1, 0);
    add_pass(draft, images, 0, 1, 0);
    for (int n = 0; n < TOKENS; n += gamma + 1) {
        add_pass(target, images, n ? n : 1, n ? gamma + 1 : gamma, gamma + 1);
        for (int i = 0; i < gamma; i++)
            if (i > 0)
                add_pass(draft, images, n + i, 1, 1);
            else
                add_pass(draft, images, n ? n - 1 : 1, n ? 2 : 0, 1);
    }
}

static void assert_work(const cJSON *passes, const char *whose, const work *w, int images)
{
    char name[64];
    snprintf(name, sizeof name, "%s_bytes", whose);
    assert_equal(name, json_number(passes, name), w->bytes / images);
    snprintf(name, sizeof name, "%s_flop", whose);
    assert_equal(name, json_number(passes, name), w->flop / images);
}

/* Counts a run whose rounds are known beforehand: each accepts all drafts. */
COMMAND_CASE(work_is_that_counted_by_hand)
{
    enum { IMAGES = 2, GAMMA = 3 };
    work target = {0}, draft = {0};
    const work plain = plain_work(IMAGES), none = {0};
    cJSON *json = bench(*state, "--draft demo-discrete --spec vanilla --gamma 3 --batch 2");
    self_work(IMAGES, GAMMA, &target, &draft);
    assert_string_equal(json_text(json, "computed"),
                        "transformer: matrix products in f32; draft's transformer: matrix products in f32");
    assert_equal("accepted", json_number(json, "mean_accepted_length"), GAMMA);
    assert_work(json_at(json, "plain_passes"), "target", &plain, IMAGES);
    assert_work(json_at(json, "plain_passes"), "draft", &none, IMAGES);
    assert_work(json_at(json, "passes"), "target", &target, IMAGES);
    assert_work(json_at(json, "passes"), "draft", &draft, IMAGES);
    cJSON_Delete(json);
}

/* --- floors ------------------------------------------------------------------------------------------------------- */

static double floor_seconds(const cJSON *json, double bytes, double flop)
{
    return fmax(bytes / json_number(json, "memory_bandwidth"), flop / json_number(json, "matrix_peak"));
}

/* Checks the floors of a list's passes. Longer chains of drafts take longer. */
static void check_passes(const cJSON *json, const char *name, int chains)
{
    const cJSON *pass, *before = NULL;
    cJSON_ArrayForEach(pass, json_at(json, name))
    {
        const double bytes = json_number(pass, "bytes"), flop = json_number(pass, "flop"),
                     seconds = json_number(pass, "seconds");
        assert_true(bytes > 0 && flop > 0 && seconds > 0 && json_number(pass, "rows") > 0);
        assert_true(json_number(pass, "memory_bandwidth") <= json_number(json, "memory_bandwidth"));
        assert_true(json_number(pass, "matrix_peak") <= json_number(json, "matrix_peak"));
        assert_equal("memory", json_number(pass, "memory_floor_seconds"),
                     bytes / json_number(pass, "memory_bandwidth"));
        assert_equal("arithmetic", json_number(pass, "arithmetic_floor_seconds"),
                     flop / json_number(pass, "matrix_peak"));
        assert_equal("share", json_number(pass, "fraction_of_floor"), floor_seconds(pass, bytes, flop) / seconds);
        if (chains && before) {
            assert_true(json_number(pass, "drafts") > json_number(before, "drafts"));
            assert_true(json_number(pass, "rows") > json_number(before, "rows"));
            assert_true(bytes > json_number(before, "bytes") && flop > json_number(before, "flop"));
        }
        before = pass;
    }
    assert_non_null(before);
}

static double run_floor(const cJSON *json, const char *name)
{
    const cJSON *p = json_at(json, name);
    const double floor = floor_seconds(json, json_number(p, "target_bytes"), json_number(p, "target_flop")) +
                         floor_seconds(json, json_number(p, "draft_bytes"), json_number(p, "draft_flop"));
    assert_equal(name, json_number(p, "floor_seconds"), floor);
    return floor;
}

/* Checks that the target's bytes lie between two bounds: the weights alone, and the weights with all keys and values of
 * an image. */
static void check_target(const cJSON *json)
{
    const double layers = depth * width * (4 * width + 3 * hidden), output = width * vocabulary;
    const double passes = json_number(json, "passes_in_sequence"),
                 found = json_number(json_at(json, "passes"), "target_bytes");
    const double weights =
        BYTES * (passes * layers + passes * output); /* the first pass has no logits; they follow alone */
    const double drafts = json_number(json, "contexts_per_image") / (passes - 1);
    const double most = weights + BYTES * passes * CONDITIONS * (1 + TOKENS + drafts) * depth * 2 * width;
    if (!(found > weights && found < most)) fail_msg("%g bytes in passes, expected %g to %g", found, weights, most);
    const double rows =
        json_number(json, "contexts_per_image") * CONDITIONS; /* logits for each context, a row for all but one */
    const double least = 2 * rows * (layers + output), flop = json_number(json_at(json, "passes"), "target_flop");
    const double attention = 2 * rows * 2 * (1 + TOKENS) * depth * width;
    if (!(flop >= least && flop <= least + attention))
        fail_msg("%g flop in passes, expected %g to %g", flop, least, least + attention);
}

typedef struct {
    const char *options;
    int levels[8]; /* drafts of an EAGLE drafter's passes by depth from 0; ends with -1 */
    int most;      /* maximum of new tokens in a round */
} method;

static void check_method(const char *directory, const method *m)
{
    const work plain = plain_work(1);
    cJSON *json = bench(directory, m->options);
    const int is_eagle = m->most > 0, drafts = json_number(json, "draft_calls_in_sequence") > 0;
    const cJSON *pass, *list = cJSON_GetObjectItemCaseSensitive(json, "draft_passes");
    check_passes(json, "target_passes", 1);
    check_target(json);
    assert_work(json_at(json, "plain_passes"), "target", &plain, 1);
    assert_equal("speed", json_number(json, "speed_by_floors"),
                 run_floor(json, "plain_passes") / run_floor(json, "passes"));
    assert_true((json_number(json_at(json, "passes"), "draft_bytes") > 0) == drafts);
    assert_true((json_number(json_at(json, "passes"), "draft_flop") > 0) == drafts);
    assert_true(cJSON_IsArray(list) == drafts);
    if (drafts) check_passes(json, "draft_passes", !is_eagle);
    int n = 0;
    if (is_eagle) cJSON_ArrayForEach(pass, list)
        {
            const int last = m->levels[n] < 0, wanted = last ? 0 : m->levels[n];
            const int rows = CONDITIONS * (last ? m->most : n ? wanted : 1);
            assert_equal("drafts of the level", json_number(pass, "drafts"), wanted);
            assert_equal("depth", json_number(pass, "depth"), last ? 0 : n);
            assert_equal("rows", json_number(pass, "rows"), rows);
            n += !last;
        }
    if (is_eagle) assert_int_equal(cJSON_GetArraySize(list), n + 1);
    cJSON_Delete(json);
}

COMMAND_CASE(methods_have_floors)
{
    static const method methods[] = {
        {"--draft demo-discrete-eagle --spec vanilla --tree 3,2,1 --repeat 2", {0, 3, 6, -1}, 4},
        {"--spec sjd --window 8", {0}, 0},
        {"--draft demo-discrete-eagle --spec vanilla --tree dynamic --tree_top 4 --tree_total 12 --gamma 3",
         {0, 4, 4, -1},
         4},
        {"--draft demo-discrete-draft --spec vanilla --gamma 4", {0}, 0},
        {"--draft demo-discrete-eagle --spec vanilla --gamma 4", {0, 1, 1, 1, -1}, 5},
        {"--spec sjd-pac --window 16", {0}, 0},
        {"--draft demo-discrete-draft --spec vanilla --gamma 4 --temperature 0", {0}, 0},
    };
    for (size_t i = 0; i < (test_brief ? 2 : LENGTH(methods)); i++) check_method(*state, &methods[i]);
}

/* Checks that plain decoding has passes and no speeds, in JSON and in the table. */
COMMAND_CASE(plain_decoding)
{
    const work plain = plain_work(1);
    cJSON *json = bench(*state, "");
    assert_work(json_at(json, "passes"), "target", &plain, 1);
    assert_null(cJSON_GetObjectItemCaseSensitive(json, "speed_by_floors"));
    check_passes(json, "target_passes", 1);
    cJSON_Delete(json);
    char *argv[] = {"mar", "bench", "--model", "demo-discrete", "--threads", "1", NULL};
    char *shown = command_on_terminal(*state, argv);
    assert_has(shown, "\rloading demo-discrete\033[K");
    assert_has(shown, "100%  1 of 1 images  ");
    assert_has(shown, "\rmeasuring passes\033[K\r\033[K"); /* a repeated measurement of the machine may follow it */
    assert_has(shown, "\r\033[Kdemo-discrete on cpu ");
    assert_has(shown, "measured memory bandwidth ");
    assert_has(shown, "all passes read 0.1");
    assert_has(shown, "a token takes ");
    assert_null(strstr(shown, "above 100 %"));
    free(shown);
}

/* Checks that --repeat makes the same images each time: the counts of the fastest batch are those of the first. The
 * first image of both seeds takes more work than the next ones. */
COMMAND_CASE(repetitions_are_alike)
{
    static const char *const runs[] = {
        "--model demo-discrete --draft demo-discrete-draft --spec vanilla --gamma 4 --seed 5",
        "--model demo --num_iter 4 --num_sampling_steps 16 --head_spec 4 --seed 3"};
    static const char *const counts[][3] = {
        {"passes_in_sequence", "draft_calls_in_sequence", "mean_accepted_length"},
        {"head_calls_per_token", "head_calls_in_sequence", "head_evaluations_per_token"}};
    for (int i = 0; i < 2; i++) {
        cJSON *once = command_json(*state, "bench --threads 1 --json %s", runs[i]),
              *often = command_json(*state, "bench --threads 1 --json --repeat 4 %s", runs[i]);
        for (int j = 0; j < 3; j++)
            assert_equal(counts[i][j], json_number(often, counts[i][j]), json_number(once, counts[i][j]));
        cJSON_Delete(once), cJSON_Delete(often);
    }
}
