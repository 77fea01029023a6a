/* RUN/report.html: it has what was found, escapes what comes from outside, needs no other file; and which images it
 * shows. */
#include "tests/support/command.h"
#include "tools/generate/class_names.h"
#include "tools/eval/published.h"
#include "tools/eval/report.h"

#include <cjson/cJSON.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int count(const char *text, const char *what)
{
    int n = 0;
    for (; (text = strstr(text, what)) != NULL; text += strlen(what)) n++;
    return n;
}

/* The page of this result; the caller frees it. */
static char *page(const char *directory, const eval_result *r, const eval_report_extras *x)
{
    char *path;
    if (asprintf(&path, "%s/report.html", directory) < 0) fail_msg("out of memory");
    assert_int_equal(eval_report_write(r, x, path), 0);
    free(path);
    char *text = read_whole_file(directory, "report.html", NULL);
    /* Nothing is loaded, nothing runs. */
    assert_null(strstr(text, "<script"));
    assert_null(strstr(text, "<link"));
    assert_null(strstr(text, "url("));
    assert_int_equal(count(text, "src="), count(text, "src=\"data:image/png;base64,"));
    assert_null(strstr(text, "nan"));
    assert_null(strstr(text, "inf"));
    return text;
}

#define HAS(text, what)                                                                                                \
    do {                                                                                                               \
        if (!strstr(text, what)) fail_msg("the page has no %s", what);                                                 \
    } while (0)

#define LACKS(text, what)                                                                                              \
    do {                                                                                                               \
        if (strstr(text, what)) fail_msg("the page has %s", what);                                                     \
    } while (0)

static void plain(eval_result *r)
{
    memset(r, 0, sizeof *r);
    r->fid = 2.3149, r->is_mean = 281.7, r->is_deviation = 3.21, r->images = 50000, r->processes = 1;
    r->sfid = r->is_adm = r->precision = r->recall = r->accuracy = NAN;
    strcpy(r->why_no_sfid, "ref.npz has no mu_s & sigma_s");
    strcpy(r->model, "mar.pth");
    strcpy(r->protocol, "reference ref.npz");
}

/* Every text from outside, with what HTML would take for its own. */
static void escapes(void **state)
{
    static const char bad[] = "<script>alert(1)</script>&\"'\x1b[31m\xff";
    static eval_result r;
    static const uint8_t rgb[3 * 4];
    plain(&r);
    char *const texts[] = {r.why_no_sfid, r.why_no_precision, r.protocol, r.warnings[0],
                           r.model,       r.guarantee,        r.ways,     r.backend};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) strcpy(texts[i], bad);
    r.warning_count = 1;
    cJSON *settings = cJSON_CreateObject(), *inner = cJSON_AddObjectToObject(settings, bad);
    cJSON_AddStringToObject(settings, "model", bad);
    cJSON_AddStringToObject(inner, bad, bad);
    cJSON_AddStringToObject(cJSON_AddObjectToObject(inner, "deeper"), bad, bad);
    const eval_report_image shown = {.rgb = rgb, .width = 2, .height = 2};
    const eval_report_extras x = {.title = bad, .settings = settings, .sheet = &shown, .sheet_count = 1};
    char *text = page(*state, &r, &x);
    LACKS(text, "alert(1)</script");
    LACKS(text, "\x1b");
    LACKS(text, "\xff");
    assert_int_equal(count(text, "&lt;script&gt;alert(1)&lt;/script&gt;&amp;&quot;'\\x1b[31m\\xff"), 13);
    cJSON_Delete(settings);
    free(text);
}

/* The numbers; and why there are no others. */
static void numbers(void **state)
{
    static eval_result r;
    plain(&r);
    char *text = page(*state, &r, &(eval_report_extras){0});
    HAS(text, "<h1>Evaluation: mar.pth</h1>");
    HAS(text, "FID<b>2.31</b>");
    HAS(text, "Inception score<b>281.70</b><small>± 3.21 over 10 splits");
    HAS(text, "No sFID: ref.npz has no mu_s &amp; sigma_s");
    LACKS(text, "recall<b>");
    LACKS(text, "<h2>Drafts");
    LACKS(text, "<h2>Images");
    LACKS(text, "<h2>Settings");
    LACKS(text, "<h2>Where the time went");
    HAS(text, "No numbers of a model of this shape are known here");
    free(text);
    r.precision = 0.8216, r.recall = 0.5, r.sfid = 5.01, r.is_adm = 300;
    strcpy(r.published, "MAR-B");
    text = page(*state, &r, &(eval_report_extras){0});
    HAS(text, "precision<b>0.822</b>");
    HAS(text, "sFID<b>5.01</b>");
    LACKS(text, "No sFID");
    HAS(text, "<td>2.31<td>281.7<td>0.82<td>0.57"); /* MAR-B's published ones */
    HAS(text, "<td>3.48<td>192.4<td>0.78<td>0.58");
    LACKS(text, "MAR-L");
    free(text);
    strcpy(r.published, "MAR-H");
    text = page(*state, &r, &(eval_report_extras){0});
    HAS(text,
        "MAR-H, GtR, 3.72 times as fast<small>Yan et al., 2025 (arXiv 2510.17171)</small><td>1.59<td>304.4<td>–<td>–");
    free(text);
    r.published[0] = '\0', r.accuracy = 0.975;
    text = page(*state, &r, &(eval_report_extras){0});
    HAS(text, "Fréchet distance<b>2.31</b>");
    HAS(text, "digits recognised<b>97.5</b>");
    HAS(text, "it is no FID");
    free(text);
    r.accuracy = NAN, r.model[0] = '\0';
    text = page(*state, &r, &(eval_report_extras){.title = "images/"});
    HAS(text, "<h1>Evaluation: images/</h1>");
    HAS(text, "The images were made elsewhere");
    free(text);
}

/* Where the time goes: all parts, with the rest of generation, are everything. */
static void the_time(void **state)
{
    static eval_result r;
    plain(&r);
    r.generate_s = 80, r.features_s = 15, r.write_s = 1, r.merge_s = 4, r.processes = 2, r.images = 100;
    r.stats.encoder_s = 10, r.stats.decoder_s = 20, r.stats.head_s = 30, r.stats.vae_s = 15;
    char *text = page(*state, &r, &(eval_report_extras){0});
    HAS(text, "100 s in all, summed over 2 processes. An image takes 0.8 s to make, and judging adds 18.8 % to that.");
    HAS(text, "<span style=\"width:10.000%;background:#0072b2\" title=\"encoder: 10.0 %\"></span>");
    HAS(text, "</span>the rest of making images<td>5.00<td>0.0500<td>5.0 %");
    LACKS(text, "draft model");
    free(text);
}

/* The curve has a point for every step with verified drafts, and a line that breaks between. */
static void drafts(void **state)
{
    static eval_result r;
    plain(&r);
    r.steps = 8;
    for (int i = 1; i < 8; i++)
        if (i != 4) r.accepted[i] = 3, r.replaced[i] = 1, r.tokens[i] = 5;
    r.stats.drafted = 24, r.stats.accepted = 18, r.stats.rounds = 2, r.stats.round_steps = 5;
    r.stats.residual_tries = 9, r.stats.accepted_shift = 0.25;
    r.stats.proposals = 50, r.stats.proposals_accepted = 40, r.stats.tokens = 10, r.stats.head_calls = 125;
    r.stats.head_calls_max = 20;
    char *text = page(*state, &r, &(eval_report_extras){0});
    HAS(text, "18 of 24 verified drafts were accepted, 75.0 %. A round of verification advances 2.50 autoregressive");
    LACKS(text, "candidates"); /* those inside the head are counted with them */
    HAS(text,
        "40 of 50 proposed transitions were accepted, 80.0 %. The calls of the head one after another are 12.5 for "
        "each token of an image, at most 20 for one.");
    assert_int_equal(count(text, "<polyline"), 2);
    assert_int_equal(count(text, "<circle"), 6);
    HAS(text, "<title>step 7: 3 accepted, 1 replaced, 5 tokens in all</title>");
    LACKS(text, "conditions were late");
    free(text);
    r.stats.proposals = 0;
    r.latest = 4; /* of nothing drafted with late conditions there is no curve */
    for (int i = 1; i < 4; i++) r.accepted_late[i] = 9 - i, r.replaced_late[i] = i;
    text = page(*state, &r, &(eval_report_extras){0});
    assert_int_equal(count(text, "<polyline"), 3);
    assert_int_equal(count(text, "<circle"), 6 + 3);
    HAS(text,
        "A token that replaces a rejected draft took 1.50 candidates. At the last index draft and target differ by "
        "0.25 a channel");
    HAS(text, "steps by which the draft’s conditions were late");
    HAS(text, "<title>late by 3: 6 accepted, 3 replaced</title>");
    free(text);
    r.stats.tokens = 100, r.stats.head_calls = 0,
    r.stats.decoder_s = 2; /* of a model without a head, as those of discrete tokens are */
    text = page(*state, &r, &(eval_report_extras){0});
    HAS(text, "on other branches of a tree included. A round of verification");
    HAS(text, "transformer");
    LACKS(text, "candidates");
    LACKS(text, "At the last index");
    free(text);
    r.stats.head_calls = 100;
    text = page(*state, &r, &(eval_report_extras){0});
    HAS(text, "candidates");
    LACKS(text, "transformer");
    free(text);
}

static void images(void **state)
{
    enum { SHEET = 20, SIDE = 8 };
    static uint8_t rgb[SHEET][SIDE * SIDE * 3];
    static eval_result r;
    eval_report_image sheet[SHEET], rejected[1];
    plain(&r);
    for (int i = 0; i < SHEET; i++) {
        memset(rgb[i], i * 12, sizeof rgb[i]);
        sheet[i] = (eval_report_image){.index = 50L * i, .label = i - 1, .rgb = rgb[i], .width = SIDE, .height = SIDE};
    }
    rejected[0] = sheet[3], rejected[0].verified = 64, rejected[0].replaced = 16;
    eval_report_extras x = {
        .sheet = sheet, .sheet_count = SHEET, .rejected = rejected, .rejected_count = 1, .classes = IMAGENET_CLASSES};
    char *text = page(*state, &r, &x);
    assert_int_equal(count(text, "<img "), SHEET + 1);
    HAS(text, "title=\"image 50, class 0 tench\"");
    HAS(text, "<figcaption>no class</figcaption>");
    HAS(text, "<b>25.0 %</b> (16 of 64)<br>image 150, class 2 great white shark");
    HAS(text, "<img class=map width=16 height=16 ");
    free(text);
    x.classes = 10;
    text = page(*state, &r, &x);
    HAS(text, "<figcaption>0</figcaption>");
    free(text);
}

/* Settings of every kind; numbers as they are written. */
static void settings(void **state)
{
    static eval_result r;
    plain(&r);
    cJSON *s = cJSON_Parse("{\"text\":\"a\",\"on\":true,\"off\":false,\"none\":null,\"list\":[1,2],\"empty\":{}}");
    cJSON_AddRawToObject(cJSON_AddObjectToObject(s, "parameters"), "seed", "18446744073709551615");
    char *text = page(*state, &r, &(eval_report_extras){.settings = s});
    HAS(text, "<td>text<td>a\n");
    HAS(text, "<td>on<td>on\n<tr><td>off<td>off\n<tr><td>none<td>–\n<tr><td>list<td>[1,2]\n");
    HAS(text, "<h3>parameters</h3>\n<div class=wide><table class=narrow>\n<tr><td>seed<td>18446744073709551615\n");
    LACKS(text, "<h3>empty");
    cJSON_Delete(s);
    free(text);
}

static void no_directory(void **state)
{
    static eval_result r;
    char path[4096];
    plain(&r);
    snprintf(path, sizeof path, "%s/nowhere/report.html", (const char *)*state);
    assert_int_equal(eval_report_write(&r, &(eval_report_extras){0}, path), 1);
}

/* --- which images ------------------------------------------------------------------------------------------------- */

static void evenly_spread(void **state)
{
    (void)state;
    long at[EVAL_SHEET_MAX];
    assert_int_equal(eval_report_choose(3, 40, at), 3);
    assert_true(at[0] == 0 && at[1] == 1 && at[2] == 2);
    assert_int_equal(eval_report_choose(50000, 100, at), 100);
    for (int i = 0; i < 100; i++) assert_true(at[i] == 500L * i); /* the first of every tenth class */
    assert_int_equal(eval_report_choose(0, 40, at), 0);
    for (long n = 1; n < 300; n++) {
        const int k = eval_report_choose(n, 40, at);
        assert_int_equal(k, n < 40 ? n : 40);
        for (int i = 0; i < k; i++) assert_true(at[i] < n && (i == 0 ? at[0] == 0 : at[i] > at[i - 1]));
    }
}

static int by_share(const void *a, const void *b)
{
    const eval_report_image *x = a, *y = b;
    const long left = x->replaced * y->verified, right = y->replaced * x->verified;
    return left != right ? (left > right ? -1 : 1) : x->index < y->index ? -1 : 1;
}

/* The first sixteen of a sorted list, in whatever order the images come. */
static void ranked(void **state)
{
    enum { IMAGES = 60, EXPECTED = EVAL_REJECTED_MAX };
    eval_report_image all[IMAGES], list[EVAL_REJECTED_MAX + 1];
    (void)state;
    srand(1);
    for (int turn = 0; turn < 200; turn++) {
        const int images = 1 + rand() % IMAGES;
        int n = 0, fell = 0, entered = 0;
        for (int i = 0; i < images; i++) {
            const long verified = 1 + rand() % 6;
            all[i] = (eval_report_image){.index = i, .verified = verified, .replaced = rand() % (verified + 1)};
        }
        for (int i = images - 1; i > 0; i--) {
            const int k = rand() % (i + 1);
            const eval_report_image other = all[i];
            all[i] = all[k], all[k] = other;
        }
        for (int i = 0; i < images; i++) {
            const int was = n, at = eval_report_rank(list, &n, &all[i]);
            if (at >= 0) assert_true(list[at].index == all[i].index);
            entered += at >= 0;
            fell += at >= 0 && was == EVAL_REJECTED_MAX;
        }
        assert_int_equal(n, entered - fell);
        assert_int_equal(n, images < EXPECTED ? images : EXPECTED);
        qsort(all, (size_t)images, sizeof *all, by_share);
        for (int i = 0; i < n; i++) assert_true(list[i].index == all[i].index);
    }
    int n = 0;
    assert_int_equal(eval_report_rank(list, &n, &(eval_report_image){.index = 1}), -1); /* nothing was drafted */
    assert_int_equal(n, 0);
}

/* The official shapes, and those that differ in one number. */
static void published_by_shape(void **state)
{
    mar_model_config c = {.width = 768, .encoder_depth = 12, .decoder_depth = 12, .seq_len = 256, .token_dim = 16};
    (void)state;
    c.classes = 1000, c.head_width = 1024, c.head_depth = 6;
    assert_string_equal(eval_published_model(&c), "MAR-B");
    int *const fields[] = {&c.width,     &c.encoder_depth, &c.decoder_depth, &c.seq_len,
                           &c.token_dim, &c.classes,       &c.head_width,    &c.head_depth};
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++) {
        ++*fields[i];
        assert_string_equal(eval_published_model(&c), "");
        --*fields[i];
    }
    c.width = 1280, c.encoder_depth = c.decoder_depth = 20, c.head_width = 1536, c.head_depth = 12;
    assert_string_equal(eval_published_model(&c), "MAR-H");
    assert_null(eval_published_get("MAR-B", 3));
    assert_null(eval_published_get("", 0));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(escapes, command_setup, command_teardown),
        cmocka_unit_test_setup_teardown(numbers, command_setup, command_teardown),
        cmocka_unit_test_setup_teardown(the_time, command_setup, command_teardown),
        cmocka_unit_test_setup_teardown(drafts, command_setup, command_teardown),
        cmocka_unit_test_setup_teardown(images, command_setup, command_teardown),
        cmocka_unit_test_setup_teardown(settings, command_setup, command_teardown),
        cmocka_unit_test_setup_teardown(no_directory, command_setup, command_teardown),
        cmocka_unit_test(evenly_spread),
        cmocka_unit_test(ranked),
        cmocka_unit_test(published_by_shape),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
