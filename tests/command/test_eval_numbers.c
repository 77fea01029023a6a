/* From features to numbers: FID, sFID and scores of golden data, reasons for a missing number, warnings. */
#include "tests/support/command.h"

#include "mar_eval.h"
#include "tests/support/golden_doubles.h"

#include "tools/eval/numbers.h"

#include <math.h>
#include <string.h>

enum { KID_SUBSET = 100, DIM = 40, X = 300, Y = 200, CLASSES = 12 };

typedef struct {
    mar *library;
    float *x, *y; /* [X][DIM], [Y][DIM] */
    double frechet, mean[DIM], covariance[DIM * DIM];
    mar_features_config network;
    judged images;            /* x */
    eval_reference reference; /* of y, borrowed arrays */
} fixture;

static fixture f;

static int set_up(void **state)
{
    (void)state;
    wt_file *golden = golden_open("numbers");
    double *expected = golden_f64(golden, "frechet", 3);
    eval_moments m;
    f.x = golden_f32(golden, "x", X * DIM);
    f.y = golden_f32(golden, "y", Y * DIM);
    f.frechet = expected[0];
    free(expected);
    wt_close(golden);
    assert_int_equal(eval_moments_create(DIM, &m), MAR_OK);
    assert_int_equal(eval_moments_create(DIM, &f.images.pooled), MAR_OK);
    eval_moments_add(&m, f.y, Y);
    eval_moments_add(&f.images.pooled, f.x, X);
    eval_moments_finish(&m, f.mean, f.covariance);
    eval_moments_free(&m);
    f.library = open_mar(MAR_DTYPE_F32, 1);
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    free(f.x);
    free(f.y);
    eval_moments_free(&f.images.pooled);
    mar_close(f.library);
    return 0;
}

/* Returns complete features of 20000 images with a published reference. A missing number that states its reason gets no
 * warning. */
static eval_gathered everything(void)
{
    f.network = (mar_features_config){.name = "inception-v3", .features = DIM, .classes = CLASSES, .spatial = DIM};
    f.reference = (eval_reference){.path = "x/adm_in256_stats.npz",
                                   .dim = DIM,
                                   .mu = f.mean,
                                   .sigma = f.covariance,
                                   .spatial = DIM,
                                   .mu_s = f.mean,
                                   .sigma_s = f.covariance,
                                   .features = f.y,
                                   .feature_dim = DIM,
                                   .feature_count = Y};
    f.images.spatial = f.images.pooled;
    f.images.features = f.x;
    f.images.feature_count = X;
    f.images.images = 20000;
    f.images.width = f.images.height = 256;
    return (eval_gathered){.library = f.library,
                           .network = &f.network,
                           .kid_subset = KID_SUBSET,
                           .reference = &f.reference,
                           .images = &f.images};
}

static eval_result numbers(const eval_gathered *g)
{
    eval_result r = {0};
    assert_int_equal(eval_numbers(g, &r), 0);
    return r;
}

TEST_CASE(all_numbers)
{
    eval_gathered g = everything();
    eval_score *score = NULL, *adm = NULL;
    wt_file *golden = golden_open("numbers");
    double *expected = golden_f64(golden, "score", 3);
    float *logits = golden_f32(golden, "logits", 203 * CLASSES);
    assert_int_equal(eval_score_create(EVAL_SCORE_TORCH_FIDELITY, 203, CLASSES, &score), MAR_OK);
    assert_int_equal(eval_score_create(EVAL_SCORE_ADM, 203, CLASSES, &adm), MAR_OK);
    eval_score_add(score, 0, logits, 203);
    eval_score_add(adm, 0, logits, 203);
    f.images.score = score;
    f.images.adm = adm;
    const eval_result r = numbers(&g);
    assert_near(r.fid, f.frechet, 1e-8);
    assert_near(r.sfid, f.frechet, 1e-8);
    assert_near(r.is_mean, expected[0], 1e-10);
    assert_near(r.is_deviation, expected[1], 1e-10);
    assert_near(r.is_adm, expected[2], 1e-10);
    /* torch_fidelity.metric_kid.kid_features_to_metric(x, y, kid_subset_size=100) in float64; in float32 7e-9 more */
    assert_near(r.kid, 0.1782678200438163, 1e-8);
    assert_near(r.kid_deviation, 0.05975430853685807, 1e-8);
    assert_true(r.precision > 0 && r.precision < 1 && r.recall > 0 && r.recall < 1);
    assert_string_equal(r.why_no_sfid, "");
    assert_string_equal(r.why_no_kid, "");
    assert_string_equal(r.why_no_precision, "");
    assert_int_equal(r.warning_count, 0);
    assert_int_equal(r.images, 20000);
    assert_int_equal(r.reference_images, 0);

    /* the reference itself */
    f.images.features = f.y;
    f.images.feature_count = Y;
    const eval_result same = numbers(&g);
    assert_true(same.precision == 1 && same.recall == 1);
    eval_score_free(score);
    eval_score_free(adm);
    f.images.score = f.images.adm = NULL;
    free(logits);
    free(expected);
    wt_close(golden);
}

TEST_CASE(reasons)
{
    eval_gathered g = everything();
    f.reference.features = NULL;
    f.reference.spatial = 0;
    eval_result r = numbers(&g);
    assert_true(isnan(r.sfid) && isnan(r.precision) && isnan(r.recall) && isnan(r.is_mean) && isnan(r.is_adm));
    assert_true(isnan(r.kid) && isnan(r.kid_deviation));
    assert_string_equal(r.why_no_kid, "as for precision and recall");
    assert_string_equal(r.why_no_sfid, "x/adm_in256_stats.npz has no mu_s and sigma_s");
    assert_has(r.why_no_precision, "x/adm_in256_stats.npz has statistics only: precision and recall need the features");
    g = everything();
    f.network.spatial = 0;
    f.images.features = NULL;
    r = numbers(&g);
    assert_string_equal(r.why_no_sfid, "inception-v3 has no spatial features");
    assert_has(r.why_no_precision, "the features of single images were not kept");
    g = everything();
    g.kid_subset = 201;
    r = numbers(&g);
    assert_string_equal(r.why_no_kid,
                        "its subsets are of 201 images, there are 300 and 200 (--kid_subset_size takes fewer)");
    g = everything();
    g.vgg = &f.network;
    r = numbers(&g);
    assert_true(isnan(r.kid) && isfinite(r.precision));
    assert_has(r.why_no_kid, "are VGG16's");
    g = everything();
    f.images.feature_count = 3;
    r = numbers(&g);
    assert_has(r.why_no_precision, "more than 3 images on either side, there are 3 and 200");
    g = everything();
    g.reference = NULL;
    r = numbers(&g);
    assert_true(isnan(r.fid));
    assert_string_equal(r.why_no_sfid, "there is no reference");
    assert_string_equal(r.why_no_kid, "there is no reference");
    assert_string_equal(r.why_no_precision, "there is no reference");
    assert_int_equal(r.warning_count, 0);
    f.images.images = 399; /* without a FID there is no warning about it */
    r = numbers(&g);
    assert_int_equal(r.warning_count, 1);
    assert_has(r.warnings[0], "an Inception score of 399 images is too low");
}

TEST_CASE(warnings)
{
    static const struct {
        const char *path;
        int width, images, reference_images, negative;
        const char *says, *also;
    } cases[] = {
        {"demo", 32, 400, 1797, 0, NULL, NULL},
        {"demo", 32, 399, 1797, 0, "FID of 399 images is too high: fewer than 400 are too few for 40 features", NULL},
        {"d/adm_in256_stats.npz", 256, 400, 0, 0, NULL, NULL},
        {"adm_in256_stats.npz", 512, 400, 0, 0,
         "have 512x512 pixels, but by its name adm_in256_stats.npz is of images of 256x256", NULL},
        {"VIRTUAL_imagenet512.npz", 256, 400, 10000, 0,
         "have 256x256 pixels, but by its name VIRTUAL_imagenet512.npz is of images of 512x512", NULL},
        {"VIRTUAL_imagenet256_labeled.npz", 256, 400, 10000, 0, NULL, NULL},
        {"VIRTUAL_imagenet256_labeled.npz", 256, 400, 50000, 0, "which has 10000 images in arr_0; this one has 50000",
         NULL},
        {"a/mine.npz", 256, 400, 100, 0, "the reference is of 100 images",
         "published numbers are not made with mine.npz"},
        {"in256_val.npz", 256, 400, 0, 0, "published numbers are not made", "is of validation images"},
        {"interval.npz", 2560, 400, 0, 0, "published numbers are not made", NULL},
        {"adm_in256_stats.npz", 256, 400, 0, 1, "1 of the 40 means in adm_in256_stats.npz are below 0", NULL},
    };
    for (size_t i = 0; i < LENGTH(cases); i++) {
        eval_gathered g = everything();
        double mean[DIM];
        memcpy(mean, f.mean, sizeof mean);
        f.reference.path = cases[i].path;
        f.reference.images = cases[i].reference_images;
        f.reference.pictures = cases[i].reference_images > 1797 ? cases[i].reference_images : 0;
        if (cases[i].negative) mean[7] = -1;
        f.reference.mu = mean;
        f.images.width = f.images.height = cases[i].width;
        f.images.images = cases[i].images;
        const eval_result r = numbers(&g);
        const int expected = (cases[i].says != NULL) + (cases[i].also != NULL);
        if (r.warning_count != expected)
            fail_msg("%s: %d warnings, expected %d: \"%s\"", cases[i].path, r.warning_count, expected, r.warnings[0]);
        if (expected > 0) assert_has(r.warnings[0], cases[i].says);
        if (expected > 1) assert_has(r.warnings[1], cases[i].also);
    }
    eval_result r = {0};
    for (int i = 0; i < EVAL_WARNINGS_MAX + 3; i++) eval_warn(&r, "number %d", i);
    assert_int_equal(r.warning_count, EVAL_WARNINGS_MAX);
    assert_string_equal(r.warnings[EVAL_WARNINGS_MAX - 1], "number 11");
}

/* Checks that the function fails and prints one line. */
static void refused(const eval_gathered *g, const char *expected)
{
    eval_result out = {0};
    capture_begin();
    command_result r = capture_end(eval_numbers(g, &out));
    assert_int_equal(r.status, 1);
    assert_ptr_equal(strchr(r.err, '\n'), r.err + strlen(r.err) - 1);
    assert_has(r.err, expected);
    command_result_free(&r);
}

TEST_CASE(errors)
{
    eval_gathered g = everything();
    f.reference.dim = 39;
    refused(&g, "mar: x/adm_in256_stats.npz: mu has 39 numbers, expected 40, the features of inception-v3");
    g = everything();
    f.reference.spatial = 7;
    refused(&g, "mar: x/adm_in256_stats.npz: mu_s has 7 numbers, expected 40");
    g = everything();
    f.images.images = 1;
    refused(&g, "mar: numbers of 1 images: expected 2 or more");
    g = everything();
    eval_moments m;
    assert_int_equal(eval_moments_create(DIM, &m), MAR_OK);
    float bad[2 * DIM] = {[5] = INFINITY};
    eval_moments_add(&m, bad, 2);
    const eval_moments own = f.images.pooled;
    f.images.pooled = m;
    refused(&g, "mar: the mean of the images is not finite, expected numbers");
    eval_moments_free(&m);
    f.images.pooled = own;
}

TEST_GROUP(set_up, tear_down)
