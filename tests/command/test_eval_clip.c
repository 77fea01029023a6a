/* mar eval with CLIP's score, HPS v2, ImageReward, precision and recall on VGG16, and clean-fid's resize, on images of
 * several sizes. */
#include "tests/support/scores.h"
#include "tests/support/command.h"
#include "tests/support/golden_doubles.h"
#include "tests/support/inception.h"
#include "tests/support/test.h"

#include "eval/reference.h"
#include "tools/images/image.h"
#include "weights/npz.h"

#include <cjson/cJSON.h>
#include <math.h>
#include <string.h>
#include <unistd.h>

#define CLIP      "$OLDPWD/tests/golden/data/clip_tiny"
#define VGG       "$OLDPWD/tests/golden/data/vgg_tiny.pth"
#define INCEPTION "$OLDPWD/tests/golden/data/inception_tiny.pth"

static char *directory;
static float plain[CLIP_PICTURES][CLIP_PICTURES]; /* cosine of picture i and prompt j, by transformers */

/* Prompts of the pictures, by their places among the golden texts; one of those is empty. */
static const int prompt_of[CLIP_PICTURES] = {0, 1, 3, 4};

static void write_picture(const char *name, const uint8_t *rgb, int width, int height)
{
    const image picture = {width, height, (uint8_t *)(uintptr_t)rgb};
    assert_int_equal(image_write(path_in(directory, "%s", name), &picture, IMAGE_PNG, 0, NULL, 0, IMAGE_UNSYNCED), 0);
}

/* Writes the pictures of CLIP with names whose natural order is theirs and whose bytewise order is not, and those of
 * Inception. */
static void write_pictures(const wt_file *golden)
{
    static const char *const names[CLIP_PICTURES] = {"clip/1.png", "clip/2.png", "clip/10.png", "clip/11.png"};
    static uint8_t rgb[500 * 500 * 3];
    sh_ok(directory, "mkdir clip many");
    for (int i = 0; i < CLIP_PICTURES; i++) {
        uint8_t *picture = clip_picture(golden, i);
        write_picture(names[i], picture, clip_widths[i], clip_heights[i]);
        free(picture);
    }
    for (int i = 0; i < INCEPTION_SINGLE; i++) {
        char name[16];
        snprintf(name, sizeof name, "many/%d.png", i);
        inception_image(i, inception_single[i][0], inception_single[i][1], rgb);
        write_picture(name, rgb, inception_single[i][1], inception_single[i][0]);
    }
}

static int set_up(void **state)
{
    (void)state;
    char text[2048] = "";
    directory = temporary_directory();
    wt_file *golden = golden_open("clip");
    float *images = golden_f32(golden, "images", CLIP_PICTURES * CLIP_EMBEDDING);
    float *texts = golden_f32(golden, "texts", CLIP_TEXTS * CLIP_EMBEDDING);
    for (int i = 0; i < CLIP_PICTURES; i++)
        for (int j = 0; j < CLIP_PICTURES; j++)
            for (int k = 0; k < CLIP_EMBEDDING; k++)
                plain[i][j] += images[i * CLIP_EMBEDDING + k] * texts[prompt_of[j] * CLIP_EMBEDDING + k];
    write_pictures(golden);
    for (int i = 0; i < CLIP_PICTURES; i++) {
        strcat(text, clip_golden_texts[prompt_of[i]]);
        strcat(text, "\n");
    }
    write_whole_file(directory, "prompts.txt", text, strlen(text));
    free(images);
    free(texts);
    wt_close(golden);
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    remove_directory(directory);
    free(directory);
    return 0;
}

TEST_GROUP(set_up, tear_down)

TEST_CASE(score_is_transformers)
{
    double mean = 0;
    cJSON *record =
        command_json(directory, "eval --clip " CLIP " --images clip --prompts prompts.txt --json --out page");
    for (int i = 0; i < CLIP_PICTURES; i++) mean += (double)plain[i][i] / CLIP_PICTURES;
    assert_near(json_number(record, "numbers.clip_cosine"), mean, 1e-6);
    assert_near(json_number(record, "numbers.clip_score"), 100 * fmax(mean, 0), 1e-4);
    assert_true(fabs(json_number(record, "numbers.clip_cosine_prefixed") - mean) > 1e-3);
    assert_true(cJSON_IsNull(json_at(record, "numbers.fid")));
    assert_has(json_text(record, "numbers.protocol"), "features none; CLIP clip_tiny (316244 bytes");
    cJSON_Delete(record);
    record = read_json(directory, "page/result.json");
    assert_near(json_number(record, "numbers.clip_cosine"), mean, 1e-6);
    cJSON_Delete(record);
}

/* The second cosine is the first one of prompts with the prefix. */
TEST_CASE(prefix)
{
    sh_ok(directory, "sed 's/^/A photo depicts /' prompts.txt > prefixed.txt");
    cJSON *with = command_json(directory, "eval --clip " CLIP " --images clip --prompts prompts.txt --json");
    cJSON *as = command_json(directory, "eval --clip " CLIP " --images clip --prompts prefixed.txt --json --batch 3");
    assert_true(json_number(with, "numbers.clip_cosine_prefixed") == json_number(as, "numbers.clip_cosine"));
    cJSON_Delete(with);
    cJSON_Delete(as);
}

TEST_CASE(images_of_each_prompt)
{
    const double mean = (double)(plain[0][0] + plain[1][0] + plain[2][1] + plain[3][1]) / 4;
    sh_ok(directory, "head -n 2 prompts.txt > two.txt");
    cJSON *record = command_json(directory, "eval --clip " CLIP " --images clip --prompts - --num 2 --json < two.txt");
    assert_near(json_number(record, "numbers.clip_cosine"), mean, 1e-6);
    cJSON_Delete(record);
}

/* The means of HPS v2 and ImageReward are their own code's; with CLIP, too, they are the same. */
TEST_CASE(scores_are_the_references)
{
    double hps = 0, reward = 0;
    wt_file *golden = golden_open("scores");
    float *of_hps = golden_f32(golden, "hps", CLIP_PICTURES * SCORE_TEXTS);
    float *of_reward = golden_f32(golden, "reward", CLIP_PICTURES * SCORE_TEXTS);
    for (int i = 0; i < CLIP_PICTURES; i++) {
        hps += (double)of_hps[i * SCORE_TEXTS + prompt_of[i]] / CLIP_PICTURES;
        reward += (double)of_reward[i * SCORE_TEXTS + prompt_of[i]] / CLIP_PICTURES;
    }
    score_folder(directory);
    cJSON *record = command_json(
        directory, "eval --hps hps.pt --imagereward reward.pt --images clip --prompts prompts.txt --json --batch 3");
    assert_near(json_number(record, "numbers.hps_cosine"), hps, 1e-6);
    assert_near(json_number(record, "numbers.hps_score"), 100 * hps, 1e-4);
    assert_near(json_number(record, "numbers.image_reward"), reward, 1e-6);
    assert_true(cJSON_IsNull(json_at(record, "numbers.clip_cosine")));
    assert_has(json_text(record, "numbers.protocol"), "features none; HPS v2 hps.pt (");
    assert_has(json_text(record, "numbers.protocol"), ") in f32; ImageReward reward.pt (");
    cJSON *all = command_json(directory, "eval --clip " CLIP " --imagereward reward.pt --hps hps.pt --images clip "
                                         "--prompts prompts.txt --json --batch 3");
    assert_true(json_number(all, "numbers.hps_cosine") == json_number(record, "numbers.hps_cosine"));
    assert_true(json_number(all, "numbers.image_reward") == json_number(record, "numbers.image_reward"));
    assert_true(json_number(all, "numbers.clip_cosine") != json_number(all, "numbers.clip_cosine_prefixed"));
    cJSON_Delete(record);
    cJSON_Delete(all);
    free(of_hps);
    free(of_reward);
    wt_close(golden);
}

static const refusal refusals[] = {
    {"eval --hps hps.pt --images clip", "--prompts", "--hps"},
    {"eval --imagereward hps.pt --images clip --prompts prompts.txt", "--imagereward"},
    {"eval --clip hps.pt --images clip --prompts prompts.txt", "--clip hps.pt", "--hps"},
    {"eval --hps " CLIP " --images clip --prompts prompts.txt", "is a folder of CLIP"},
    {"eval --imagereward reward.pt --out other", "--imagereward"},
    {"eval --clip " CLIP " --images clip", "--prompts"},
    {"eval --clip " CLIP " --images clip --prompts two.txt", "clip: has 4 images", "--num"},
    {"eval --images clip --prompts two.txt --features demo", "--prompts", "--images"},
    {"eval --clip " CLIP " --images clip --prompts two.txt --num 2 --stats many", "--stats", "--clip"},
    {"eval --vgg " INCEPTION " --images clip --stats many", "is inception-v3"},
    {"eval --inception " VGG " --images clip", "is vgg16", "--vgg"},
    {"eval --inception " INCEPTION " --images many", "expected 256x256", "0."},
    {"eval --resize clean --images clip --features demo", "--resize", "--inception"},
    {"eval --resize tf1 --images clip --features demo", "--resize", "--inception"},
    {"eval --kid_subset_size 9 --images clip --inception x", "--kid_subset_size: has no effect without --stats"},
    {"eval --kid_subset_size 9 --images clip --vgg x --stats y", "--kid_subset_size: has no effect with --vgg"},
    {"eval --kid_subset_size 1 --images clip --features demo", "--kid_subset_size", "2"},
};

TEST_CASE(mistakes_are_named)
{
    command_refuses(directory, refusals, LENGTH(refusals));
    sh_ok(directory, "printf 'a\\n\\nb\\nc\\nd\\n' > gap.txt");
    command_result r = command_mar(directory, "eval --clip %s --images clip --prompts gap.txt", CLIP);
    assert_int_equal(r.status, 1);
    assert_has(r.err, "gap.txt, line 2: the prompt is empty: skipped\n");
    assert_has(r.err, "1 of its prompts cannot be used, expected none");
    command_result_free(&r);
}

/* --- a model's images --------------------------------------------------------------------------------------------- */

#define GOLDEN "$OLDPWD/tests/golden/data/"
#define MODEL                                                                                                          \
    "eval --model " GOLDEN "llamagen_t2i.safetensors --vae " GOLDEN "vq.pth --captions c.npz --clip " CLIP             \
    " --num_images 12 --batch 2 --shard_images 4 "
#define HPS "--hps hps.pt --imagereward reward.pt "

/* The score of a model's images is that of the same images from a directory, and does not depend on the processes. */
TEST_CASE(images_of_a_model)
{
    static float features[3 * 5 * 12];
    static const int64_t shape[] = {3, 5, 12};
    char why[NPZ_WHY_MAX] = "";
    npz_writer *w;
    for (int i = 0; i < 3 * 5 * 12; i++) features[i] = (float)((i * 37) % 19 - 9) / 6;
    assert_int_equal(npz_writer_open(path_in(directory, "c.npz"), 0, &w, why), MAR_OK);
    assert_int_equal(npz_writer_add(w, "features", NPZ_F32, 3, shape, features, why), MAR_OK);
    assert_int_equal(npz_writer_commit(w, why), MAR_OK);
    sh_ok(directory, "printf 'a cat\\na dog\\nthe mat\\n' > three.txt");
    command_ok(directory, MODEL HPS "--prompts three.txt --out whole --save_images -q");
    sh_ok(directory, "$MAR " MODEL HPS
                     "--prompts three.txt --out parts --save_images --shard 2/2 -q 2> /dev/null && $MAR " MODEL HPS
                     "--prompts three.txt --out parts --save_images --shard 1/2 -q");
    char *whole = numbers_of_run(directory, "whole"), *parts = numbers_of_run(directory, "parts");
    assert_string_equal(whole, parts);
    free(whole);
    free(parts);
    cJSON *run = read_json(directory, "whole/result.json");
    cJSON *as =
        command_json(directory, "eval " HPS "--clip " CLIP " --images whole/images --prompts three.txt --num 4 --json");
    assert_true(json_number(run, "numbers.hps_cosine") == json_number(as, "numbers.hps_cosine"));
    assert_true(json_number(run, "numbers.image_reward") == json_number(as, "numbers.image_reward"));
    assert_true(json_number(run, "numbers.clip_cosine") == json_number(as, "numbers.clip_cosine"));
    assert_true(json_number(run, "numbers.clip_cosine_prefixed") == json_number(as, "numbers.clip_cosine_prefixed"));
    cJSON_Delete(run);
    cJSON_Delete(as);
    command_refused(directory, "$MAR " MODEL "--prompts prompts.txt --out other",
                    "has 4 prompts, expected 3, those of the model's captions", "");
    command_refused(directory, "$MAR eval --clip " CLIP " --out other",
                    "--clip: demo makes images of classes, expected a text-to-image model", "");
}

/* --- VGG16 -------------------------------------------------------------------------------------------------------- */

TEST_CASE(precision_on_vgg)
{
    cJSON *record = command_json(directory, "eval --vgg " VGG " --images many --stats many --json");
    assert_near(json_number(record, "numbers.precision"), 1, 0);
    assert_near(json_number(record, "numbers.recall"), 1, 0);
    assert_has(json_text(record, "numbers.protocol"),
               "precision and recall on vgg16 (fc2 before its ReLU) in f32, vgg_tiny.pth");
    cJSON_Delete(record);
    record = command_json(directory, "eval --vgg " VGG " --images clip --stats many --json");
    const double precision = json_number(record, "numbers.precision"), recall = json_number(record, "numbers.recall");
    assert_true(precision >= 0 && precision <= 1 && recall >= 0 && recall <= 1);
    cJSON_Delete(record);
}

/* --- clean-fid's resize ------------------------------------------------------------------------------------------- */

TEST_CASE(statistics_are_clean_fids)
{
    char why[NPZ_WHY_MAX] = "";
    npz *z = NULL;
    double clean = 0;
    command_ok(directory, "stats many --inception %s --resize clean --out clean.npz --batch 2 -q", INCEPTION);
    /* The same in folders of classes, as ImageNet unpacks. */
    sh_ok(directory, "mkdir -p tree/n01 tree/n02 && cp many/[0-1].png tree/n01 && cp many/* tree/n02 && "
                     "rm tree/n02/[0-1].png");
    command_ok(directory, "stats tree --inception %s --resize clean --out tree.npz --batch 2 -q", INCEPTION);
    assert_same_file(directory, "clean.npz", "tree.npz");
    assert_int_equal(npz_open(path_in(directory, "clean.npz"), &z, why), MAR_OK);
    const npz_array *mu = npz_find(z, "mu");
    const int64_t dim = mu->count;
    wt_file *golden = golden_open("clean_resize");
    double *mean = golden_f64(golden, "mu", dim), *covariance = golden_f64(golden, "sigma", dim * dim);
    double *got = malloc((size_t)(dim * dim) * sizeof *got), error = 0, size = 0;
    assert_int_equal(npz_read_f64(z, mu, got, why), MAR_OK);
    for (int64_t i = 0; i < dim; i++) error += (got[i] - mean[i]) * (got[i] - mean[i]), size += mean[i] * mean[i];
    assert_true(sqrt(error / size) < 1e-3);
    assert_int_equal(npz_read_f64(z, npz_find(z, "sigma"), got, why), MAR_OK);
    error = size = 0;
    for (int64_t i = 0; i < dim * dim; i++)
        error += (got[i] - covariance[i]) * (got[i] - covariance[i]), size += covariance[i] * covariance[i];
    assert_true(sqrt(error / size) < 2e-3);
    assert_int_equal(npz_read_f64(z, npz_find(z, "clean_resize"), &clean, why), MAR_OK);
    assert_true(clean == 1);
    npz_close(z);
    wt_close(golden);
    free(got);
    free(mean);
    free(covariance);
}

/* With --resize tf1 each picture of a folder is resized by itself: mean and covariance are those of one picture at a
 * time. Without it they are refused. */
TEST_CASE(any_sizes_as_tensorflow_resizes)
{
    command_refused(directory, "$MAR stats many --inception " INCEPTION " --out no.npz",
                    "; --resize takes images of any", "many/");
    command_refused(directory, "$MAR eval --images many --inception " INCEPTION, "; --resize takes images of any",
                    "many/");
    command_ok(directory, "stats many --inception %s --resize tf1 --keep_features --out any.npz --batch 3 -q",
               INCEPTION);
    sh_ok(directory,
          "i=0; for f in many/*; do rm -rf one; mkdir one; cp $f one/a.${f##*.}; cp $f one/b.${f##*.}; $MAR stats "
          "one --inception " INCEPTION " --keep_features --out one.$i.npz -q || exit 1; i=$((i+1)); done");
    char why[NPZ_WHY_MAX] = "";
    npz *all = NULL;
    assert_int_equal(npz_open(path_in(directory, "any.npz"), &all, why), MAR_OK);
    const npz_array *features = npz_find(all, "features");
    const size_t dim = (size_t)features->shape[1];
    float *got = malloc((size_t)features->count * sizeof *got), *one = malloc(2 * dim * sizeof *one);
    assert_int_equal(npz_read_f32(all, features, got, why), MAR_OK);
    for (int i = 0; i < features->shape[0]; i++) {
        npz *z = NULL;
        assert_int_equal(npz_open(path_in(directory, "one.%d.npz", i), &z, why), MAR_OK);
        assert_int_equal(npz_read_f32(z, npz_find(z, "features"), one, why), MAR_OK);
        assert_memory_equal(got + (size_t)i * dim, one, dim * sizeof *one);
        npz_close(z);
    }
    npz_close(all);
    free(got);
    free(one);
    cJSON *record = command_json(directory, "eval --images many --resize tf1 --inception " INCEPTION
                                            " --stats any.npz --kid_subset_size 2 --json");
    assert_near(json_number(record, "numbers.fid"), 0, 1e-6);
    assert_true(json_number(record, "numbers.precision") == 1);
    assert_true(isfinite(json_number(record, "numbers.kid")));
    assert_has(json_text(record, "numbers.protocol"), " and other sizes in many");
    assert_has(json_text(record, "numbers.protocol"), "; KID of subsets of 2");
    cJSON_Delete(record);
}

TEST_CASE(both_sides_are_resized_alike)
{
    cJSON *record =
        command_json(directory, "eval --images many --resize clean --inception " INCEPTION " --stats clean.npz --json");
    assert_near(json_number(record, "numbers.fid"), 0, 1e-6);
    assert_has(json_text(record, "numbers.protocol"), "inception_tiny.pth");
    assert_has(json_text(record, "numbers.protocol"), ", resized as clean-fid;");
    cJSON_Delete(record);
    sh_ok(directory, "mkdir same; cp many/0.png same/a.png; cp many/0.png same/b.png");
    command_refused(directory, "$MAR eval --images same --inception " INCEPTION " --stats clean.npz",
                    "is of images resized as clean-fid does it, expected --resize clean", "");
    command_ok(directory, "stats same --inception %s --out tf1.npz -q", INCEPTION);
    command_refused(directory, "$MAR eval --images many --resize clean --inception " INCEPTION " --stats tf1.npz",
                    "is of images resized as TensorFlow 1 does it, expected --resize tf1", "");
    char why[512];
    eval_reference reference;
    assert_int_equal(eval_reference_load(path_in(directory, "tf1.npz"), &reference, why, sizeof why), MAR_OK);
    reference.resize = -1;
    assert_int_equal(eval_reference_save(path_in(directory, "unknown.npz"), &reference, why, sizeof why), MAR_OK);
    eval_reference_free(&reference);
    record = command_json(directory,
                          "eval --images many --resize clean --inception " INCEPTION " --stats unknown.npz --json");
    int said = 0;
    for (int i = 0; i < json_count(record, "numbers.warnings"); i++) {
        char at[32];
        snprintf(at, sizeof at, "numbers.warnings.%d", i);
        said |= strstr(json_text(record, at), "does not say how its images were resized") != NULL;
    }
    assert_true(said);
    cJSON_Delete(record);
}
