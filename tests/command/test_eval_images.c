/* mar stats and mar eval --images. A set has distance 0 from itself, as a directory or an npz and for any batch. Digits
 * are nearer to real ones than noise is. An error is one line. */
#include "tests/support/command.h"

#include "mar_eval.h"
#include "tests/support/page.h"
#include "tests/support/golden_doubles.h"
#include "tests/support/inception.h"

#include "eval/score.h"
#include "tools/images/source.h"
#include "weights/npz.h"

#include <cjson/cJSON.h>
#include <math.h>
#include <string.h>
#include <unistd.h>

/* In f32: in bf16 the Frechet distance of 40 digits is 170 to 260, as roundings fall. */
#define QUICK " --num 4 --num_iter 8 --num_sampling_steps 10 --dtype f32 -q"
enum { IMAGES = 40, SIDE = 32, PIXELS = SIDE * SIDE * 3 };

/* Directory with 40 digits in a, and others in b. */
static char *directory;

static int set_up(void **state)
{
    (void)state;
    directory = temporary_directory();
    command_ok(directory, "generate --out a --seed 1" QUICK);
    command_ok(directory, "generate --out b --seed 2" QUICK);
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    remove_directory(directory);
    free(directory);
    return 0;
}

/* Runs "$MAR eval ARGUMENTS --features demo --json". The caller deletes the result. */
static cJSON *evaluate(const char *arguments)
{
    return command_json(directory, "eval %s --features demo --json", arguments);
}

static double number_in(const cJSON *record, const char *name)
{
    const cJSON *item = cJSON_GetObjectItem(cJSON_GetObjectItem(record, "numbers"), name);
    if (!item) item = cJSON_GetObjectItem(record, name);
    if (!cJSON_IsNumber(item)) fail_msg("%s is missing", name);
    return item->valuedouble;
}

static double number(const char *arguments, const char *name)
{
    cJSON *record = evaluate(arguments);
    const double value = number_in(record, name);
    cJSON_Delete(record);
    return value;
}

static const char *file_in(const char *name)
{
    return path_in(directory, "%s", name);
}

/* Writes images [n][side][side][3] as arr_0. */
static void write_images(const char *name, const uint8_t *rgb, int n, int side)
{
    char why[NPZ_WHY_MAX] = "";
    npz_writer *w = NULL;
    if (npz_writer_open(file_in(name), 1, &w, why) != MAR_OK ||
        npz_writer_add(w, "arr_0", NPZ_U8, 4, (int64_t[]){n, side, side, 3}, rgb, why) != MAR_OK ||
        npz_writer_commit(w, why) != MAR_OK)
        fail_msg("%s", why);
}

static void read_images(const char *name, uint8_t *rgb)
{
    image_source *s = NULL;
    assert_int_equal(image_source_open(file_in(name), &s), 0);
    assert_int_equal(image_source_count(s), IMAGES);
    assert_int_equal(image_source_read(s, 0, IMAGES, rgb), 0);
    image_source_close(s);
}

TEST_CASE(with_itself)
{
    command_ok(directory, "stats a --out a.npz --features demo --keep_features -q");
    static const char exists[] = "a.npz: exists already, expected another name, or --overwrite to replace it";
    command_refused(directory, "$MAR stats a --out a.npz --features demo -q", exists, NULL);
    command_refused(directory, "$MAR captions p.txt --t5 t5 --out a.npz", exists, NULL);
    cJSON *record = evaluate("--images a --stats a.npz");
    assert_near(number_in(record, "fid"), 0, 1e-6);
    assert_near(number_in(record, "precision"), 1, 0);
    assert_near(number_in(record, "recall"), 1, 0);
    assert_near(number_in(record, "images"), IMAGES, 0);
    assert_near(number_in(record, "reference_images"), IMAGES, 0);
    const double score = number_in(record, "is_mean");
    assert_true(score >= 1 && score <= 10);
    cJSON_Delete(record);
}

/* Checks that the statistics in the file are those of the features in it. */
TEST_CASE(statistics)
{
    enum { DIM = 64 };
    static float x[IMAGES * DIM];
    static double mu[DIM], sigma[DIM * DIM];
    double images = 0;
    char why[NPZ_WHY_MAX] = "";
    npz *z = NULL;
    command_ok(directory, "stats a --out a.npz --features demo --keep_features -q --overwrite");
    if (npz_open(file_in("a.npz"), &z, why) != MAR_OK || npz_read_f32(z, npz_find(z, "features"), x, why) != MAR_OK ||
        npz_read_f64(z, npz_find(z, "mu"), mu, why) != MAR_OK ||
        npz_read_f64(z, npz_find(z, "sigma"), sigma, why) != MAR_OK ||
        npz_read_f64(z, npz_find(z, "num_images"), &images, why) != MAR_OK)
        fail_msg("%s", why);
    assert_true(images == IMAGES);
    for (int i = 0; i < DIM; i++) {
        double mean = 0, covariance = 0;
        for (int k = 0; k < IMAGES; k++) mean += (double)x[k * DIM + i] / IMAGES;
        assert_near(mu[i], mean, 1e-9);
        for (int k = 0; k < IMAGES; k++)
            covariance += ((double)x[k * DIM + i] - mean) * ((double)x[k * DIM + 7] - mu[7]) / (IMAGES - 1);
        assert_near(sigma[i * DIM + 7], covariance, 1e-9);
    }
    npz_close(z);
    command_ok(directory, "stats a --out plain.npz --features demo -q");
    if (npz_open(file_in("plain.npz"), &z, why) != MAR_OK) fail_msg("%s", why);
    assert_null(npz_find(z, "features"));
    npz_close(z);
}

TEST_CASE(one_directory_against_another)
{
    cJSON *there = evaluate("--images a --stats b"), *back = evaluate("--images b --stats a");
    const double fid = number_in(there, "fid");
    assert_true(fid > 0.1);
    assert_near(number_in(back, "fid"), fid, 1e-8 * fid);
    /* Precision and recall need a reference of images. They swap when the two sets swap. */
    assert_true(number_in(there, "precision") > 0 && number_in(there, "recall") > 0);
    assert_true(number_in(there, "precision") == number_in(back, "recall"));
    cJSON_Delete(there);
    cJSON_Delete(back);
}

/* Checks that an npz and other batch sizes give the same bits. */
TEST_CASE(same_numbers)
{
    static const char *const runs[] = {"--images a.images.npz --stats b", "--images a --stats b --batch 1",
                                       "--images a --stats b --batch 7", "--images a --stats b --threads 1",
                                       "--images a --stats b.images.npz"};
    static uint8_t rgb[IMAGES * PIXELS];
    read_images("a", rgb);
    write_images("a.images.npz", rgb, IMAGES, SIDE);
    read_images("b", rgb);
    write_images("b.images.npz", rgb, IMAGES, SIDE);
    cJSON *first = evaluate("--images a --stats b");
    for (size_t i = 0; i < LENGTH(runs); i++) {
        cJSON *other = evaluate(runs[i]);
        static const char *const names[] = {"fid", "is_mean", "is_deviation", "is_adm"};
        for (int k = 0; k < 4; k++)
            if (number_in(other, names[k]) != number_in(first, names[k]))
                fail_msg("%s: %s is %.17g, expected %.17g", runs[i], names[k], number_in(other, names[k]),
                         number_in(first, names[k]));
        cJSON_Delete(other);
    }
    cJSON_Delete(first);
}

TEST_CASE(against_real_digits)
{
    static uint8_t rgb[IMAGES * PIXELS];
    uint32_t word = 1;
    for (size_t i = 0; i < sizeof rgb; i++) rgb[i] = (uint8_t)((word = word * 1664525u + 1013904223u) >> 24);
    write_images("noise.npz", rgb, IMAGES, SIDE);
    const double digits = number("--images a", "fid"), noise = number("--images noise.npz", "fid");
    if (!(digits < 300 && noise > 3 * digits)) fail_msg("digits %g, noise %g", digits, noise);
    assert_true(number("--images a", "recall") > 0.1);
    assert_true(number("--images noise.npz", "recall") == 0);
}

TEST_CASE(printed)
{
    command_result r = command_run(directory, "$MAR eval --images a --features demo --quiet");
    assert_int_equal(r.status, 0);
    assert_string_equal(r.out, "");
    command_result_free(&r);
    r = command_run(directory, "$MAR eval --images a --features demo");
    assert_int_equal(r.status, 0);
    assert_has(r.out, "reference demo; features demo digits");
    assert_int_equal(strncmp(r.out, "  Fréchet distance ", strlen("  Fréchet distance ")), 0); /* not named FID */
    assert_null(strstr(r.out, "  FID "));
    assert_has(r.out, "40 images of 32x32 in a (40 images, ");
    assert_has(r.out, "a Frechet distance of 40 images is too high: fewer than 640 are too few for 64 features");
    command_result_free(&r);
    r = command_run(directory, "$MAR stats a --out s.npz --features demo --overwrite");
    assert_string_equal(r.out, "s.npz: 40 images of 32x32, mean and covariance of 64 features of demo digits\n");
    command_result_free(&r);
}

/* KID's subsets are a setting: --merge takes their size from the run, and a run goes on with its own. */
TEST_CASE(kernel_distances)
{
    static const char run[] =
        "eval --class 3 --num_images 20 --num_iter 2 --num_sampling_steps 3 --stats b --out kid -q ";
    assert_near(number("--images a --stats a --kid_subset_size 40", "kid_deviation"), 0, 1e-9); /* all of both */
    assert_true(number("--images a --stats b --kid_subset_size 20", "kid_deviation") > 0);
    cJSON *record = evaluate("--images a --stats b");
    assert_true(cJSON_IsNull(json_at(record, "numbers.kid")));
    assert_string_equal(json_text(record, "numbers.why_no_kid"),
                        "its subsets are of 1000 images, there are 40 and 40 (--kid_subset_size takes fewer)");
    cJSON_Delete(record);
    command_ok(directory, "%s--kid_subset_size 10", run);
    sh_ok(directory, "cp kid/result.json kid.json");
    command_ok(directory, "eval --merge --stats b --out kid -q");
    record = read_json(directory, "kid.json");
    cJSON *again = read_json(directory, "kid/result.json");
    assert_true(number_in(record, "kid") != 0 && number_in(record, "kid") == number_in(again, "kid"));
    cJSON_Delete(record);
    cJSON_Delete(again);
    const refusal cases[] = {
        {"eval --merge --stats b --out kid --kid_subset_size 9", "kid_subset_size 10", "kid_subset_size 9"},
        {"eval --class 3 --num_images 20 --num_iter 2 --num_sampling_steps 3 --stats b --out kid",
         "kid_subset_size 10"},
        {"eval --images a --features none --clip x --prompts y --kid_subset_size 9",
         "--kid_subset_size: has no effect"},
    };
    command_refuses(directory, cases, LENGTH(cases));
}

/* --- Inception -----------------------------------------------------------------------------------------------------
 */

enum { FEATURES = 256, CLASSES = 1008, BATCH = 16 }; /* features of the small network; batch of the command */

typedef struct {
    float features[IMAGES * FEATURES];
    double score; /* the Inception score */
} seen;

/* Runs mar_features_run on the images in `dtype`. Returns 0 if the processor lacks it. */
static int look(mar_dtype dtype, const uint8_t *rgb, seen *out)
{
    static float logits[BATCH * CLASSES];
    double deviation;
    mar_features *network = NULL;
    eval_score *score = NULL;
    mar *m = open_mar(dtype, 2);
    if (!m) return 0;
    assert_int_equal(mar_features_load(m, file_in("small.safetensors"), BATCH, &network), MAR_OK);
    assert_int_equal(eval_score_create(EVAL_SCORE_TORCH_FIDELITY, IMAGES, CLASSES, &score), MAR_OK);
    for (int i = 0; i < IMAGES; i += BATCH) {
        const int n = IMAGES - i < BATCH ? IMAGES - i : BATCH;
        assert_int_equal(
            mar_features_run(network, rgb + i * PIXELS, n, SIDE, SIDE, out->features + i * FEATURES, logits, NULL),
            MAR_OK);
        eval_score_add(score, i, logits, n);
    }
    eval_score_finish(score, &out->score, &deviation);
    eval_score_free(score);
    mar_features_free(network);
    mar_close(m);
    return 1;
}

/* Checks that the command's numbers are `expected`, bit for bit. `option` sets the arithmetic, or is "". */
static void same_as(const seen *expected, const char *option, const char *dtype)
{
    static float features[IMAGES * FEATURES];
    char says[100], why[NPZ_WHY_MAX] = "";
    npz *z = NULL;
    command_result r = command_mar(
        directory, "stats a --out i.npz --inception small.safetensors --keep_features --overwrite %s", option);
    snprintf(says, sizeof says, "256 features of inception-v3 in %s, ", dtype);
    if (r.status != 0 || !strstr(r.out, says)) fail_msg("%s: \"%s\", \"%s\"", option, r.out, r.err);
    command_result_free(&r);
    if (npz_open(file_in("i.npz"), &z, why) != MAR_OK ||
        npz_read_f32(z, npz_find(z, "features"), features, why) != MAR_OK)
        fail_msg("%s", why);
    npz_close(z);
    assert_memory_equal(features, expected->features, sizeof features);
    r = command_mar(directory, "eval --images a --inception small.safetensors --json %s", option);
    snprintf(says, sizeof says, "features inception-v3 in %s, small.safetensors (", dtype);
    if (r.status != 0 || !strstr(r.out, says)) fail_msg("%s: \"%s\", \"%s\"", option, r.out, r.err);
    cJSON *record = cJSON_Parse(r.out);
    assert_near(number_in(record, "is_mean"), expected->score, 0);
    cJSON_Delete(record);
    command_result_free(&r);
}

/* Checks that the default is f32 on every processor. */
TEST_CASE(arithmetic)
{
    static uint8_t rgb[IMAGES * PIXELS];
    static seen f32, bf16;
    wt_file *golden = golden_open("inception");
    inception_write(golden, "small", file_in("small.safetensors"));
    wt_close(golden);
    read_images("a", rgb);
    assert_true(look(MAR_DTYPE_F32, rgb, &f32));
    same_as(&f32, "", "f32");
    if (!look(MAR_DTYPE_BF16, rgb, &bf16)) return;
    assert_true(memcmp(f32.features, bf16.features, sizeof f32.features) != 0);
    same_as(&bf16, "--features_dtype bf16", "bf16");
}

/* Tests --out: the page has a sheet of the images and the numbers of --json. A grid beside the images is ignored. */
TEST_CASE(page)
{
    sh_ok(directory, "cp -r a g && $MAR generate --out g --grid --resume --seed 1" QUICK);
    command_result r = command_run(directory, "$MAR eval --images a --features demo --json --out deep/a && "
                                              "$MAR eval --images g --features demo --quiet --out g2 && "
                                              "$MAR eval --images g --features demo --out g2");
    if (r.status != 0) fail_msg("%s", r.err);
    cJSON *extras, *record = page_record(directory, "deep/a/report.html", "eval", &extras);
    const cJSON *sheet = cJSON_GetObjectItem(extras, "sheet");
    assert_int_equal(cJSON_GetArraySize(sheet), IMAGES);
    assert_int_equal(cJSON_GetObjectItem(cJSON_GetArrayItem(sheet, 39), "index")->valueint, 39);
    assert_string_equal(cJSON_GetStringValue(cJSON_GetObjectItem(extras, "title")), "a");
    cJSON_Delete(record), cJSON_Delete(extras);
    const char *end = strstr(r.out, "}\n");
    cJSON *said = cJSON_Parse(r.out);
    char *wrote = read_whole_file(directory, "deep/a/result.json", NULL);
    cJSON *found = cJSON_Parse(wrote);
    assert_true(end && cJSON_Compare(said, found, 1));
    assert_has(end, "report: g2/report.html\n"); /* again, in the same place */
    cJSON_Delete(found);
    free(wrote);
    wrote = read_whole_file(directory, "g2/result.json", NULL);
    found = cJSON_Parse(wrote);
    assert_near(number_in(found, "images"), IMAGES, 0);
    assert_near(number_in(found, "fid"), number_in(said, "fid"), 0);
    cJSON_Delete(found), cJSON_Delete(said);
    free(wrote);
    assert_int_equal(access(file_in("evaluation"), F_OK), -1); /* the default of --out in other runs */
    command_result_free(&r);
}

TEST_CASE(errors)
{
    static uint8_t rgb[3 * 16 * 16 * 3];
    static const refusal cases[] = {
        {"stats a --features demo", "--out"},
        {"stats a --out new.npz", "--inception"},
        {"stats a --out new.npz --features demo --inception x.pth", "--inception", "--features"},
        {"stats a --out new.npz --features vgg", "--features vgg"},
        {"stats a --out new.npz --inception x.pth --features_dtype f16", "--features_dtype f16"},
        {"stats a --out new.npz --inception x.pth --dtype f32", "--dtype", "did you mean --features_dtype?"},
        {"stats a --out s.txt --features demo", "s.txt"},
        {"stats a --out nowhere/s.npz --features demo", "nowhere/s.npz"},
        {"stats a --out new.npz --features demo --device 1", "--device", "--backend cuda"},
        {"stats nowhere --out new.npz --features demo", "nowhere:"},
        {"stats empty --out new.npz --features demo", "empty:"},
        {"stats one --out new.npz --features demo", "one: has 1 image", "2"},
        {"stats mixed --out new.npz --features demo", "mixed/b.png:"},
        {"stats small.npz --out new.npz --features demo",
         "images of 16x16 pixels: the demo's features are those of 32x32"},
        {"stats text.npz --out new.npz --features demo", "text.npz:"},
        {"stats cut.npz --out new.npz --features demo", "cut.npz:"},
        {"stats a --out new.npz --inception demo.safetensors", "is a MAR model"},
        {"eval --images a --features demo --stats three.npz", "three.npz: mu has 3 numbers", "64"},
        {"eval --images a --features demo --stats text.npz", "text.npz:"},
        {"eval --images a --features demo --stats nowhere.npz", "nowhere.npz"},
        {"eval --images a --features demo --stats small.npz", "images of 16x16 pixels"},
        {"eval --images a --features demo --cfg 2", "--cfg", "--images"},
        {"eval --images a --features demo --head_dtype f32", "--head_dtype", "--images"},
        {"eval --images a --features demo --num_images 9", "--num_images", "--images"},
        {"eval --images a --features demo --out e.png", "--out e.png"},
        {"eval --images a --features demo --out text.npz", "text.npz: is a file"},
        {"eval --images a --features demo --out run", "run: is a run of a model", "--out"},
        {"eval --images empty --features demo", "empty:"},
        {"eval --images one --features demo", "numbers of 1 images: expected 2 or more"},
    };
    char why[NPZ_WHY_MAX];
    npz_writer *w = NULL;
    write_images("small.npz", rgb, 3, 16);
    assert_int_equal(npz_writer_open(file_in("three.npz"), 1, &w, why), MAR_OK);
    assert_int_equal(npz_writer_add(w, "mu", NPZ_F64, 1, (int64_t[]){3}, (double[3]){0}, why), MAR_OK);
    assert_int_equal(npz_writer_add(w, "sigma", NPZ_F64, 2, (int64_t[]){3, 3}, (double[9]){0}, why), MAR_OK);
    assert_int_equal(npz_writer_commit(w, why), MAR_OK);
    sh_ok(
        directory,
        "mkdir empty one mixed run && touch run/settings.json && cp a/000000.png one && cp a/000000.png mixed/a.png && "
        "$MAR generate --num 1 --class 1,2 --num_iter 2 --num_sampling_steps 2 -q --out mixed/b.png && "
        "$MAR convert demo demo.safetensors && echo no zip > text.npz && head -c 700 small.npz > cut.npz");
    command_refuses(directory, cases, LENGTH(cases));
    assert_int_equal(access(file_in("new.npz"), F_OK), -1);
}

TEST_GROUP(set_up, tear_down)
