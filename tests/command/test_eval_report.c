/* RUN/report.html: its record, its pictures, escaped text from outside, and the choice of images. */
#include "tests/support/command.h"
#include "tests/support/page.h"
#include "tools/generate/class_names.h"
#include "tools/eval/batch.h"
#include "tools/eval/report.h"

#include <cjson/cJSON.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Writes the page of this result. Checks that the record equals result.json to the last digit. Returns the record and
 * *extras; the caller deletes both. */
static cJSON *page(const char *directory, const eval_result *r, const eval_report_extras *x, cJSON **extras)
{
    assert_int_equal(eval_report_write(r, x, path_in(directory, "report.html")), 0);
    cJSON *record = page_record(directory, "report.html", "eval", extras);
    assert_int_equal(eval_result_write(r, path_in(directory, "result.json")), 0);
    cJSON *result = read_json(directory, "result.json");
    assert_true(cJSON_Compare(record, result, 1));
    cJSON_Delete(result);
    return record;
}

static void plain(eval_result *r)
{
    memset(r, 0, sizeof *r);
    r->fid = 2.3149, r->is_mean = 281.7, r->is_deviation = 3.21, r->images = 50000, r->processes = 1;
    r->sfid = r->is_adm = r->precision = r->recall = r->accuracy = NAN;
    r->clip_cosine = r->clip_score = r->clip_cosine_prefixed = NAN;
    r->hps_cosine = r->hps_score = r->image_reward = NAN;
    strcpy(r->why_no_sfid, "ref.npz has no mu_s & sigma_s");
    strcpy(r->model, "mar.pth");
    strcpy(r->protocol, "reference ref.npz");
}

/* Puts HTML markup into every text from outside. page_record finds no markup, and the record has the text as it was. */
static void escapes(void **state)
{
    static const char bad[] = "</script><!--<script>alert(1)</script>&\"'\x1b[31m\xe2\x80\xa8\xff";
    static const char read[] = "</script><!--<script>alert(1)</script>&\"'\x1b[31m\xe2\x80\xa8\xef\xbf\xbd";
    static eval_result r;
    static uint8_t rgb[3 * 4];
    plain(&r);
    char *const texts[] = {r.why_no_sfid, r.why_no_precision, r.protocol,     r.warnings[0],
                           r.model,       r.guarantee,        r.accelerators, r.backend};
    for (size_t i = 0; i < LENGTH(texts); i++) strcpy(texts[i], bad);
    r.warning_count = 1;
    cJSON *extras;
    const image_text settings[] = {{"model", bad}, {bad, bad}};
    const eval_report_image shown = {.rgb = rgb, .width = 2, .height = 2};
    const eval_report_extras x = {
        .title = bad, .settings = settings, .setting_count = 2, .sheet = &shown, .sheet_count = 1};
    cJSON *record = page(*state, &r, &x, &extras);
    assert_string_equal(json_text(record, "numbers.model"), read);
    assert_string_equal(json_text(extras, "title"), read);
    const cJSON *found = cJSON_GetObjectItemCaseSensitive(extras, "settings");
    assert_string_equal(json_text(found, "model"), read);
    assert_string_equal(json_text(found, read), read);
    cJSON_Delete(record);
    cJSON_Delete(extras);
}

/* Checks what the page adds to the result: title, name of the distance, published numbers. */
static void numbers(void **state)
{
    static eval_result r;
    cJSON *extras, *record;
    plain(&r);
    record = page(*state, &r, &(eval_report_extras){0}, &extras);
    assert_string_equal(json_text(extras, "title"), "mar.pth");
    assert_string_equal(json_text(extras, "distance"), "FID");
    assert_null(cJSON_GetObjectItem(extras, "published")->child);
    assert_null(cJSON_GetObjectItem(extras, "settings")->child);
    cJSON_Delete(record), cJSON_Delete(extras);
    strcpy(r.published, "MAR-B");
    r.generate_s = 90, r.features_s = 8, r.write_s = 2, r.images = 50;
    record = page(*state, &r, &(eval_report_extras){0}, &extras);
    const cJSON *list = cJSON_GetObjectItem(extras, "published"), *one = cJSON_GetArrayItem(list, 1);
    assert_int_equal(cJSON_GetArraySize(list), 3);
    assert_string_equal(json_text(one, "what"), "with guidance");
    assert_true(cJSON_GetObjectItem(one, "fid")->valuedouble == 2.31);
    assert_true(cJSON_GetObjectItem(one, "recall")->valuedouble == 0.57);
    assert_true(cJSON_IsNull(cJSON_GetObjectItem(cJSON_GetArrayItem(list, 2), "precision"))); /* not published */
    assert_true(cJSON_GetObjectItem(extras, "images_per_second")->valuedouble == 0.5);
    cJSON_Delete(record), cJSON_Delete(extras);
    r.accuracy = 0.975;
    record = page(*state, &r, &(eval_report_extras){.title = "images/"}, &extras);
    assert_string_equal(json_text(extras, "title"), "images/");
    assert_string_equal(json_text(extras, "distance"), "Fréchet distance");
    cJSON_Delete(record), cJSON_Delete(extras);
}

/* Checks that the pictures are the given ones and have their captions. */
static void images(void **state)
{
    enum { SHEET = 20, SIDE = 8 };
    static uint8_t rgb[SHEET][SIDE * SIDE * 3];
    static eval_result r;
    eval_report_image sheet[SHEET], rejected[1];
    cJSON *extras, *record;
    plain(&r);
    for (int i = 0; i < SHEET; i++) {
        for (int k = 0; k < SIDE * SIDE * 3; k++) rgb[i][k] = (uint8_t)(i * 12 + k);
        sheet[i] = (eval_report_image){.index = 50L * i, .label = i - 1, .rgb = rgb[i], .width = SIDE, .height = SIDE};
    }
    rejected[0] = sheet[3], rejected[0].verified = 64, rejected[0].replaced = 16;
    eval_report_extras x = {
        .sheet = sheet, .sheet_count = SHEET, .rejected = rejected, .rejected_count = 1, .names = class_table_of(1000)};
    record = page(*state, &r, &x, &extras);
    const cJSON *list = cJSON_GetObjectItem(extras, "sheet"), *worst = cJSON_GetObjectItem(extras, "rejected")->child;
    assert_int_equal(cJSON_GetArraySize(list), SHEET);
    for (int i = 0; i < SHEET; i++) {
        const cJSON *o = cJSON_GetArrayItem(list, i);
        int width, height;
        unsigned char *pixels = page_pixels(cJSON_GetObjectItem(o, "pictures")->child, &width, &height);
        assert_true(width == SIDE && height == SIDE);
        assert_memory_equal(pixels, rgb[i], sizeof rgb[i]);
        assert_int_equal(cJSON_GetObjectItem(o, "index")->valueint, 50 * i);
        free(pixels);
    }
    assert_string_equal(json_text(cJSON_GetArrayItem(list, 0), "label"), "no class");
    assert_string_equal(json_text(cJSON_GetArrayItem(list, 1), "label"), "0 tench");
    assert_string_equal(json_text(worst, "label"), "2 great white shark");
    assert_int_equal(cJSON_GetObjectItem(worst, "verified")->valueint, 64);
    assert_int_equal(cJSON_GetObjectItem(worst, "replaced")->valueint, 16);
    cJSON_Delete(record), cJSON_Delete(extras);
    x.names = NULL;
    record = page(*state, &r, &x, &extras);
    assert_string_equal(json_text(cJSON_GetArrayItem(cJSON_GetObjectItem(extras, "sheet"), 1), "label"), "0");
    cJSON_Delete(record), cJSON_Delete(extras);
}

static void no_directory(void **state)
{
    static eval_result r;
    plain(&r);
    assert_int_equal(eval_report_write(&r, &(eval_report_extras){0}, path_in(*state, "nowhere/report.html")), 1);
}

/* --- which images ------------------------------------------------------------------------------------------------- */

static void evenly_spread(void **state)
{
    (void)state;
    const eval_layout many = {.images = 50000, .samples = 100};
    for (int k = 0; k < 100; k++)
        assert_int_equal(eval_sample_at(&many, k), 500L * k); /* the first image of every tenth class */
    for (long n = 1; n < 300; n++) {
        const eval_layout l = {.images = n, .samples = n < 40 ? (int)n : 40};
        int k = 0;
        assert_int_equal(eval_sample_at(&l, 0), 0);
        for (long i = 0; i < n; i++) {
            const int is_next = k < l.samples && eval_sample_at(&l, k) == i;
            assert_int_equal(eval_is_sample(&l, i), is_next);
            k += is_next;
        }
        assert_int_equal(k, l.samples);
    }
}

static int by_share(const void *a, const void *b)
{
    const eval_report_image *x = a, *y = b;
    const long left = x->replaced * y->verified, right = y->replaced * x->verified;
    return left != right ? (left > right ? -1 : 1) : x->index < y->index ? -1 : 1;
}

/* Checks that the list keeps the first sixteen in sorted order, for any order of images. */
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
    assert_int_equal(eval_report_rank(list, &n, &(eval_report_image){.index = 1}), -1); /* no drafts */
    assert_int_equal(n, 0);
}

/* Checks the official shapes, and shapes that differ in one number. */
static void published_by_shape(void **state)
{
    mar_model_config c = {.width = 768, .encoder_depth = 12, .decoder_depth = 12, .seq_len = 256, .token_dim = 16};
    (void)state;
    c.classes = 1000, c.head_width = 1024, c.head_depth = 6;
    assert_string_equal(eval_published_model(&c), "MAR-B");
    int *const fields[] = {&c.width,     &c.encoder_depth, &c.decoder_depth, &c.seq_len,
                           &c.token_dim, &c.classes,       &c.head_width,    &c.head_depth};
    for (size_t i = 0; i < LENGTH(fields); i++) {
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
    const struct CMUnitTest tests[] = {COMMAND_TEST(escapes),
                                       COMMAND_TEST(numbers),
                                       COMMAND_TEST(images),
                                       COMMAND_TEST(no_directory),
                                       cmocka_unit_test(evenly_spread),
                                       cmocka_unit_test(ranked),
                                       cmocka_unit_test(published_by_shape)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
