/* Tests the networks that judge images, through the public calls. The demo's digits are compared with PyTorch,
 * Inception-v3 with torch-fidelity. FID and Inception score are compared, too. */
#include "tests/support/brief.h"

#include "mar_eval.h"
#include "mar_files.h"
#include "tests/support/demo.h"
#include "tests/support/inception.h"

#include "eval/frechet.h"
#include "eval/moments.h"
#include "eval/score.h"

#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { DIGITS = 8, CLASSES = 10, FEATURES = 64 }; /* images of the golden file */

static mar_features *load(mar *m, const char *path, int batch)
{
    mar_features *f = NULL;
    assert_library(m, mar_features_load(m, path, batch, &f));
    assert_non_null(f);
    return f;
}

static void refused(mar *m, mar_status status, mar_status expected, const char *what)
{
    if (status != expected) fail_msg("%s, expected %s: %s", mar_status_name(status), mar_status_name(expected), what);
    assert_says(mar_error(m), what);
}

TEST_CASE(digits_against_pytorch)
{
    wt_file *golden = golden_open("classifier");
    float *expected = golden_f32(golden, "features", DIGITS * FEATURES);
    float *expected_logits = golden_f32(golden, "logits", DIGITS * CLASSES);
    float features[DIGITS * FEATURES], logits[DIGITS * CLASSES], one[FEATURES];
    static uint8_t rgb[DIGITS * DEMO_BYTES];
    mar_err err = {0};
    assert_ok(wt_read_bytes(golden, wt_find(golden, "rgb"), 0, sizeof rgb, rgb, &err), &err);
    mar *m = open_mar(MAR_DTYPE_F32, 1);
    mar_features *f = load(m, "demo", DIGITS);
    mar_close(m); /* the network still needs its memory */
    const mar_features_config *config = mar_features_get_config(f);
    assert_string_equal(config->name, "demo digits");
    assert_int_equal(config->features, FEATURES);
    assert_int_equal(config->classes, CLASSES);
    assert_int_equal(config->spatial, 0);
    assert_int_equal(config->parameters, 89546);
    assert_library(m, mar_features_run(f, rgb, DIGITS, DEMO_SIDE, DEMO_SIDE, features, logits, NULL));
    assert_true(max_difference(features, expected, DIGITS * FEATURES) <= 1e-4);
    assert_true(max_difference(logits, expected_logits, DIGITS * CLASSES) <= 1e-4);
    assert_library(m, mar_features_run(f, rgb + DEMO_BYTES, 1, DEMO_SIDE, DEMO_SIDE, one, NULL, NULL));
    assert_memory_equal(one, features + FEATURES, sizeof one);
    refused(m, mar_features_run(f, rgb, 1, 64, 16, one, NULL, NULL), MAR_EARG,
            "images of 64x16 pixels: the demo's features are those of 32x32");
    mar_features_free(f);
    free(expected);
    free(expected_logits);
    wt_close(golden);
}

/* Checks that files of other kinds are refused by the name of their kind. */
TEST_CASE(others_are_named)
{
    mar *m = open_mar(MAR_DTYPE_F32, 1);
    mar_features *f;
    refused(m, mar_features_load(m, "demo-draft", 1, &f), MAR_EMODEL, "demo-draft: is a MAR model, expected Inception");
    refused(m, mar_features_load(m, "demo-vae", 1, &f), MAR_EMODEL, "demo-vae: is an image decoder (KL autoencoder)");
    refused(m, mar_features_load(m, "tests/golden/data/classifier.safetensors", 1, &f), MAR_EMODEL,
            "neither a VGG16 network (no features.28.weight, no classifier.3.weight) nor an Inception-v3 network");
    refused(m, mar_features_load(m, "/nowhere/at.all", 1, &f), MAR_EIO, "/nowhere/at.all");
    assert_null(f);
    mar_close(m);
}

/* --- Inception ---------------------------------------------------------------------------------------------------- */

enum { BATCH = 20, SPATIAL = 17 * 17 * 7, MOST_FEATURES = 2048, INCEPTION_CLASSES = 1008 };

/* Results for `images` images */
typedef struct {
    float *features, *logits, *spatial;
} results;

static results make_results(const mar_features_config *c, int images)
{
    const size_t n = (size_t)images;
    const results r = {malloc(n * (size_t)c->features * sizeof(float)), malloc(n * (size_t)c->classes * sizeof(float)),
                       malloc(n * (size_t)c->spatial * sizeof(float))};
    assert_true(r.features && r.logits && r.spatial);
    return r;
}

static void free_results(results r)
{
    free(r.features);
    free(r.logits);
    free(r.spatial);
}

static float *expected(const wt_file *golden, const char *which, const char *part, int width)
{
    char name[64];
    snprintf(name, sizeof name, "%s_%s", which, part);
    return golden_f32(golden, name, (int64_t)INCEPTION_SINGLE * width);
}

static double number(const wt_file *golden, const char *which, const char *part)
{
    char name[64];
    double value;
    mar_err err = {0};
    snprintf(name, sizeof name, "%s_%s", which, part);
    assert_ok(wt_read_bytes(golden, wt_find(golden, name), 0, sizeof value, &value, &err), &err);
    return value;
}

static void check_one(const float *ours, const float *theirs, int n, double tolerance, const char *what, int image)
{
    const double error = relative_error(ours, theirs, (size_t)n);
    if (!(error <= tolerance))
        fail_msg("%s of image %d: relative error %.3g, allowed %.3g", what, image, error, tolerance);
}

/* Checks the first `images` images, of several sizes, one by one. */
static void check_single(mar *m, mar_features *f, const wt_file *golden, const char *which, int images,
                         double tolerance)
{
    const mar_features_config *c = mar_features_get_config(f);
    float *features = expected(golden, which, "features", c->features);
    float *logits = expected(golden, which, "logits", c->classes);
    float *spatial = expected(golden, which, "spatial", c->spatial);
    const results r = make_results(c, 1);
    uint8_t *rgb = malloc(500 * 500 * 3);
    assert_non_null(rgb);
    for (int i = 0; i < images; i++) {
        const int height = inception_single[i][0], width = inception_single[i][1];
        inception_image(i, height, width, rgb);
        assert_library(m, mar_features_run(f, rgb, 1, width, height, r.features, r.logits, r.spatial));
        check_one(r.features, features + i * c->features, c->features, tolerance, "features", i);
        check_one(r.logits, logits + i * c->classes, c->classes, tolerance, "logits", i);
        check_one(r.spatial, spatial + i * c->spatial, c->spatial, tolerance, "spatial features", i);
    }
    free(rgb);
    free(features);
    free(logits);
    free(spatial);
    free_results(r);
}

/* Returns the Frechet distance between rows 0, 2, .. and rows 1, 3, .. of x [2 * set][width]. */
static double distance_of(const float *x, int set, int width)
{
    const size_t n = (size_t)width;
    eval_moments moments[2];
    double *mean[2], *covariance[2], distance;
    char why[256];
    for (int k = 0; k < 2; k++) {
        assert_int_equal(eval_moments_create(width, &moments[k]), MAR_OK);
        for (int i = k; i < 2 * set; i += 2) eval_moments_add(&moments[k], x + (size_t)i * n, 1);
        mean[k] = malloc(n * sizeof **mean);
        covariance[k] = malloc(n * n * sizeof **covariance);
        assert_true(mean[k] && covariance[k]);
        eval_moments_finish(&moments[k], mean[k], covariance[k]);
    }
    const eval_gaussian a = {mean[0], covariance[0]}, b = {mean[1], covariance[1]};
    if (eval_frechet(width, &a, &b, &distance, why, sizeof why) != MAR_OK) fail_msg("%s", why);
    for (int k = 0; k < 2; k++) {
        eval_moments_free(&moments[k]);
        free(mean[k]);
        free(covariance[k]);
    }
    return distance;
}

static void check_number(double ours, double theirs, double tolerance, const char *what)
{
    print_message("%s %.7g, expected %.7g\n", what, ours, theirs);
    if (!(fabs(ours - theirs) <= tolerance)) fail_msg("%s is %.7g, expected %.7g", what, ours, theirs);
}

/* Checks precision and recall of the even images against the odd ones. In f32 they must agree to one image. */
static void check_precision(mar *m, const mar_features_config *c, const results *r, int set, const wt_file *golden,
                            const char *which, double distance)
{
    const size_t width = (size_t)c->features;
    float *parts[2];
    double precision, recall;
    for (size_t k = 0; k < 2; k++) {
        parts[k] = malloc((size_t)set * width * sizeof **parts);
        assert_non_null(parts[k]);
        for (size_t i = 0; i < (size_t)set; i++)
            memcpy(parts[k] + i * width, r->features + (2 * i + k) * width, width * sizeof **parts);
    }
    assert_library(m, mar_precision_recall(m, parts[1], set, parts[0], set, c->features, 3, &precision, &recall));
    const double tolerance = distance < 1e-3 ? 1.5 / set : 0.2;
    check_number(precision, number(golden, which, "precision"), tolerance, "precision");
    check_number(recall, number(golden, which, "recall"), tolerance, "recall");
    for (int k = 0; k < 2; k++) free(parts[k]);
}

/* Checks FID, sFID and Inception score of two sets of `set` images. Tolerances of the first two are relative. */
static void check_sets(mar *m, mar_features *f, int set, const wt_file *golden, const char *which, double distance,
                       double score)
{
    const mar_features_config *c = mar_features_get_config(f);
    const results r = make_results(c, 2 * set);
    uint8_t *rgb = malloc((size_t)BATCH * INCEPTION_SIDE * INCEPTION_SIDE * 3);
    assert_non_null(rgb);
    for (int i = 0; i < 2 * set; i += BATCH) {
        inception_images(i, BATCH, rgb);
        assert_library(m, mar_features_run(f, rgb, BATCH, INCEPTION_SIDE, INCEPTION_SIDE,
                                           r.features + (size_t)i * (size_t)c->features,
                                           r.logits + (size_t)i * (size_t)c->classes,
                                           r.spatial + (size_t)i * (size_t)c->spatial));
    }
    eval_score *s;
    double mean, deviation;
    assert_int_equal(eval_score_create(EVAL_SCORE_TORCH_FIDELITY, 2 * set, c->classes, &s), MAR_OK);
    eval_score_add(s, 0, r.logits, 2 * set);
    eval_score_finish(s, &mean, &deviation);
    eval_score_free(s);
    const double fid = number(golden, which, "fid"), sfid = number(golden, which, "sfid");
    check_number(distance_of(r.features, set, c->features), fid, distance * fid, "FID");
    check_number(distance_of(r.spatial, set, c->spatial), sfid, distance * sfid, "sFID");
    check_number(mean, number(golden, which, "is_mean"), score, "Inception score");
    check_number(deviation, number(golden, which, "is_std"), score, "its deviation");
    check_precision(m, c, &r, set, golden, which, distance);
    free(rgb);
    free_results(r);
}

static char *directory; /* for this test's files */

static int make_directory(void **state)
{
    (void)state;
    directory = test_directory();
    return directory ? 0 : -1;
}

static int drop_directory(void **state)
{
    (void)state;
    return 0;
}

static void path_of(const char *name, char path[600])
{
    snprintf(path, 600, "%s/%s.safetensors", directory, name);
}

static void write_float(const char *path, long at, float value)
{
    FILE *f = fopen(path, "r+b");
    assert_non_null(f);
    assert_int_equal(fseek(f, at, SEEK_SET), 0);
    assert_int_equal(fwrite(&value, sizeof value, 1, f), 1);
    assert_int_equal(fclose(f), 0);
}

/* Returns the path of the network's file. The first call writes the file. */
static const char *network(const wt_file *golden, int full)
{
    static char paths[2][600];
    const char *which = full ? "full" : "small";
    if (!*paths[full]) {
        path_of(which, paths[full]);
        inception_write(golden, which, paths[full]);
    }
    return paths[full];
}

/* Parts of the golden file that a comparison uses */
typedef struct {
    int full;   /* 1: published size, against torch-fidelity; 0: small, against PyTorch */
    int single; /* number of images compared one by one */
    int sets;   /* whether sets of images are compared */
} extent;

/* Only the nightly lane compares sets more than once, and all images with the network of published size. A sanitizer
 * makes an image ten times slower. */
enum { MORE = test_all && !test_brief };
static const extent small_f32 = {0, INCEPTION_SINGLE, 1}, small_bf16 = {0, INCEPTION_SINGLE, MORE};
static const extent full_f32 = {1, MORE ? INCEPTION_SINGLE : 2, MORE}, full_bf16 = {1, MORE ? INCEPTION_SINGLE : 1, 0};

static void compare(const extent *x, mar_dtype dtype, double single, double distance, double score)
{
    const char *which = x->full ? "full" : "small";
    wt_file *golden = golden_open("inception");
    mar *m = open_mar(dtype, 2);
    if (m) { /* else: no bf16 here */
        mar_features *f = load(m, network(golden, x->full), BATCH);
        const mar_features_config *c = mar_features_get_config(f);
        assert_string_equal(c->name, "inception-v3");
        assert_int_equal(c->features, x->full ? 2048 : 256);
        assert_int_equal(c->classes, INCEPTION_CLASSES);
        assert_int_equal(c->spatial, SPATIAL);
        if (x->full) assert_int_equal(c->parameters, 23885392);
        check_single(m, f, golden, which, x->single, single);
        if (x->sets) check_sets(m, f, x->full ? INCEPTION_FULL_SET : INCEPTION_SET, golden, which, distance, score);
        mar_features_free(f);
        mar_close(m);
    }
    wt_close(golden);
}

TEST_CASE(small_in_f32)
{
    compare(&small_f32, MAR_DTYPE_F32, 3e-5, 1e-5, 1e-5);
}

/* Random weights amplify the rounding of operands to bf16. In PyTorch, with bf16 operands in convolutions and f32
 * elsewhere, the small network's features differ by 0.05 to 0.11. The spatial ones differ by 0.03 to 0.17. */
TEST_CASE(small_in_bf16)
{
    compare(&small_bf16, MAR_DTYPE_BF16, 0.25, 0.05, 0.1);
}

TEST_CASE(full_in_f32)
{
    compare(&full_f32, MAR_DTYPE_F32, 3e-5, 1e-5, 3e-5);
}

TEST_CASE(full_in_bf16)
{
    compare(&full_bf16, MAR_DTYPE_BF16, 0.15, 0, 0);
}

/* clean-fid's resize against its own code; the default again afterwards. */
TEST_CASE(clean_resize)
{
    wt_file *golden = golden_open("clean_resize"), *plain = golden_open("inception");
    mar *m = open_mar(MAR_DTYPE_F32, 1);
    mar_features *f = load(m, "tests/golden/data/inception_tiny.pth", INCEPTION_SINGLE);
    const int width = mar_features_get_config(f)->features;
    uint8_t *rgb[INCEPTION_SINGLE];
    int widths[INCEPTION_SINGLE], heights[INCEPTION_SINGLE];
    float *got = malloc((size_t)INCEPTION_SINGLE * (size_t)width * sizeof *got);
    float *clean = golden_f32(golden, "features", (int64_t)INCEPTION_SINGLE * width);
    float *tf1 = golden_f32(plain, "tiny_features", (int64_t)INCEPTION_SINGLE * width);
    for (int i = 0; i < INCEPTION_SINGLE; i++) {
        heights[i] = inception_single[i][0], widths[i] = inception_single[i][1];
        rgb[i] = malloc((size_t)heights[i] * (size_t)widths[i] * 3);
        inception_image(i, heights[i], widths[i], rgb[i]);
    }
    for (int how = MAR_RESIZE_CLEAN; how >= MAR_RESIZE_DEFAULT; how--) {
        assert_library(m, mar_features_set_resize(f, (mar_resize)how));
        assert_library(m, mar_features_run_each(f, (const uint8_t *const *)rgb, widths, heights, INCEPTION_SINGLE, got,
                                                NULL, NULL));
        for (int i = 0; i < INCEPTION_SINGLE; i++)
            check_one(got + i * width, (how ? clean : tf1) + i * width, width, 1e-3, "features", i);
    }
    for (int i = 0; i < INCEPTION_SINGLE; i++) free(rgb[i]);
    free(got);
    free(clean);
    free(tf1);
    mar_features_free(f);
    mar_close(m);
    wt_close(golden);
    wt_close(plain);
}

/* Tests a file in its published form: the format before PyTorch 1.6, with counters of batches. mar inspect and mar
 * convert accept it. The converted file gives the same network. Functions for other models name its kind. */
TEST_CASE(the_published_format)
{
    static const char published[] = "tests/golden/data/inception_tiny.pth";
    char converted[600];
    wt_file *golden = golden_open("inception");
    mar *m = open_mar(MAR_DTYPE_F32, 2);
    mar_features *f = load(m, published, 1);
    assert_int_equal(mar_features_get_config(f)->classes, 16);
    check_single(m, f, golden, "tiny", INCEPTION_SINGLE, 1e-3); /* 8 channels instead of 192: roundings weigh more */
    mar_report *report;
    assert_library(m, mar_inspect(m, published, 0, &report));
    assert_int_equal(mar_report_kind(report), MAR_KIND_INCEPTION);
    assert_int_equal(mar_report_problem_count(report), 0);
    assert_string_equal(mar_report_fact(report, 1), "format: PyTorch before 1.6");
    assert_string_equal(mar_report_fact(report, 2), "kind: Inception-v3 network");
    mar_report_free(report);

    path_of("converted", converted);
    assert_library(m, mar_convert(m, published, converted, MAR_DTYPE_F32, 0));
    mar_features *g = load(m, converted, 2);
    assert_int_equal(mar_features_get_config(g)->parameters, mar_features_get_config(f)->parameters);
    float x[128], y[128];
    uint8_t rgb[64 * 64 * 3];
    assert_in_range(mar_features_get_config(f)->features, 1, 128);
    inception_image(1, 64, 64, rgb);
    assert_library(m, mar_features_run(f, rgb, 1, 64, 64, x, NULL, NULL));
    assert_library(m, mar_features_run(g, rgb, 1, 64, 64, y, NULL, NULL));
    assert_memory_equal(x, y, sizeof *x * (size_t)mar_features_get_config(f)->features);
    refused(m, mar_features_run(f, rgb, 2, 64, 64, x, NULL, NULL), MAR_EARG, "2 images: expected 1..1");
    refused(m, mar_features_run(f, rgb, 1, 0, 64, x, NULL, NULL), MAR_EARG, "images of 0x64 pixels: expected sides of");
    refused(m, mar_features_run(f, rgb, 1, 8192, 4096, x, NULL, NULL), MAR_EARG, "at most 4096x4096 pixels");
    mar_features_free(f);
    mar_features_free(g);

    mar_model *model;
    mar_vae *vae;
    refused(m, mar_model_load(m, published, 0, &model), MAR_EMODEL,
            "is an Inception-v3 network, expected a MAR, SphereAR or LlamaGen model");
    refused(m, mar_vae_load(m, published, &vae), MAR_EMODEL, "is an Inception-v3 network, expected an image decoder");
    mar_close(m);
    wt_close(golden);
}

typedef struct {
    mar *m;
    const float *expected; /* features of image 1 */
    size_t bytes;
    char problem[256]; /* "" if none; a thread cannot fail a test by itself */
} judge;

/* Loads its own network several times and runs it. */
static void *judge_images(void *arg)
{
    judge *j = arg;
    static const char published[] = "tests/golden/data/inception_tiny.pth";
    uint8_t rgb[64 * 64 * 3];
    float features[128];
    inception_image(1, 64, 64, rgb);
    for (int i = 0; i < 3 && !*j->problem; i++) {
        mar_features *f;
        if (mar_features_load(j->m, published, 1, &f) != MAR_OK) {
            snprintf(j->problem, sizeof j->problem, "%s", mar_error(j->m));
            break;
        }
        for (int k = 0; k < 2 && !*j->problem; k++)
            if (mar_features_run(f, rgb, 1, 64, 64, features, NULL, NULL) != MAR_OK)
                snprintf(j->problem, sizeof j->problem, "%s", mar_error(j->m));
            else if (memcmp(features, j->expected, j->bytes) != 0)
                snprintf(j->problem, sizeof j->problem, "other features");
        mar_features_free(f);
    }
    return NULL;
}

TEST_CASE(networks_on_many_threads)
{
    enum { THREADS = 4 };
    pthread_t threads[THREADS];
    judge judges[THREADS];
    float expected[128];
    uint8_t rgb[64 * 64 * 3];
    mar *m = open_mar(MAR_DTYPE_F32, 3);
    mar_features *f = load(m, "tests/golden/data/inception_tiny.pth", 1);
    inception_image(1, 64, 64, rgb);
    assert_library(m, mar_features_run(f, rgb, 1, 64, 64, expected, NULL, NULL));
    for (int i = 0; i < THREADS; i++) {
        judges[i] = (judge){m, expected, sizeof *expected * (size_t)mar_features_get_config(f)->features, ""};
        assert_int_equal(pthread_create(&threads[i], NULL, judge_images, &judges[i]), 0);
    }
    for (int i = 0; i < THREADS; i++) assert_int_equal(pthread_join(threads[i], NULL), 0);
    for (int i = 0; i < THREADS; i++)
        if (*judges[i].problem) fail_msg("thread %d: %s", i, judges[i].problem);
    mar_features_free(f);
    mar_close(m);
}

/* Sets element `at` of a tensor of the file to `value`. Returns the old value. */
static float change(const char *path, const char *tensor, size_t at, float value)
{
    mar_err err = {0};
    float before;
    wt_file *file = open_weights(path);
    const wt_tensor *t = wt_find(file, tensor);
    const long offset = (long)(t->offset + at * sizeof value);
    assert_ok(wt_read_bytes(file, t, at * sizeof before, sizeof before, &before, &err), &err);
    wt_close(file);
    write_float(path, offset, value);
    return before;
}

/* Checks that overflow or NaN in the network fails the call and names the image. The next call works. */
TEST_CASE(numbers_that_are_not_finite)
{
    static const struct {
        const char *tensor;
        float value;
        const char *what;
    } cases[] = {
        {"Mixed_7c.branch1x1.bn.bias", INFINITY, "image 0 of the batch: its features have"},
        {"Conv2d_2b_3x3.bn.weight", INFINITY, "image 0 of the batch: its "},
        {"fc.weight", INFINITY, "image 0 of the batch: its logits have"},
        {"Mixed_6d.branch1x1.bn.bias", NAN, "image 0 of the batch: its "}, /* ReLU keeps NaN */
        {"Mixed_7a.branch3x3_1.bn.bias", NAN, "image 0 of the batch: its features have"},
    };
    wt_file *golden = golden_open("inception");
    const char *path = network(golden, 0);
    wt_close(golden);
    const mar_options options = {
        .size = sizeof options, .backend = MAR_BACKEND_CPU, .threads = 2, .allow_nonfinite = 1};
    for (int dtype = MAR_DTYPE_F32; dtype <= MAR_DTYPE_BF16; dtype++)
        for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
            mar_options o = options;
            o.dtype = (mar_dtype)dtype;
            mar *m;
            if (mar_open(&o, &m) != MAR_OK) {
                mar_close(m);
                continue; /* no bf16 here */
            }
            const float before = change(path, cases[i].tensor, 0, cases[i].value);
            static uint8_t rgb[2][64 * 64 * 3];
            static float features[2 * 256], logits[2 * INCEPTION_CLASSES], spatial[2 * SPATIAL];
            mar_features *f = load(m, path, 2);
            inception_image(0, 64, 64, rgb[0]);
            inception_image(1, 64, 64, rgb[1]);
            refused(m, mar_features_run(f, *rgb, 2, 64, 64, features, logits, spatial), MAR_EMODEL, cases[i].what);
            mar_features_free(f);
            mar_close(m);
            change(path, cases[i].tensor, 0, before);
        }
}

/* Checks which image is named. The product of two huge weights is not finite. A grey image, whose pixels are 0 for the
 * network, avoids the first one. The image beside it fails; the next call succeeds. */
TEST_CASE(the_image_is_named)
{
    static uint8_t rgb[3][64 * 64 * 3];
    static float features[3 * 256], again[2 * 256];
    wt_file *golden = golden_open("inception");
    const char *path = network(golden, 0);
    wt_close(golden);
    const float first = change(path, "Conv2d_1a_3x3.conv.weight", 0, 1e30f);
    const float second = change(path, "Conv2d_2a_3x3.conv.weight", 4, 1e30f);
    mar *m = open_mar(MAR_DTYPE_F32, 2);
    mar_features *f = load(m, path, 3);
    memset(rgb[0], 128, sizeof rgb[0]);
    memset(rgb[1], 128, sizeof rgb[1]);
    memset(rgb[2], 255, sizeof rgb[2]);
    refused(m, mar_features_run(f, *rgb, 3, 64, 64, features, NULL, NULL), MAR_EMODEL,
            "image 2 of the batch: its features have");
    assert_library(m, mar_features_run(f, *rgb, 2, 64, 64, again, NULL, NULL));
    mar_features_free(f);
    mar_close(m);
    change(path, "Conv2d_1a_3x3.conv.weight", 0, first);
    change(path, "Conv2d_2a_3x3.conv.weight", 4, second);
}

TEST_GROUP(make_directory, drop_directory)
