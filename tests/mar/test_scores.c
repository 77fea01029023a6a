/* HPS v2 and ImageReward through the public calls against their own code, and files that are refused. */
#include "tests/support/command.h"

#include "mar_eval.h"
#include "tests/support/scores.h"
#include "tests/support/test.h"

static uint8_t *rgb[CLIP_PICTURES];
static char *directory;

static int set_up(void **state)
{
    (void)state;
    wt_file *golden = golden_open("clip");
    for (int i = 0; i < CLIP_PICTURES; i++) rgb[i] = clip_picture(golden, i);
    wt_close(golden);
    directory = temporary_directory();
    score_folder(directory);
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    for (int i = 0; i < CLIP_PICTURES; i++) free(rgb[i]);
    remove_directory(directory);
    free(directory);
    return 0;
}

TEST_GROUP(set_up, tear_down)

static void check(const float *expected, int i, int j, double got, double tolerance)
{
    const double wanted = (double)expected[i * SCORE_TEXTS + j];
    if (!(fabs(got - wanted) <= tolerance)) fail_msg("picture %d, text %d: %.7f, expected %.7f", i, j, got, wanted);
}

/* Compares all pairs of pictures and texts, several pictures at a time. */
static void compare_hps(mar_dtype dtype, double tolerance)
{
    float images[CLIP_PICTURES * CLIP_EMBEDDING], texts[SCORE_TEXTS * CLIP_EMBEDDING];
    mar_clip *c;
    mar *m = open_mar(dtype, 1);
    if (!m) return; /* not on this processor */
    wt_file *golden = golden_open("scores");
    float *expected = golden_f32(golden, "hps", CLIP_PICTURES * SCORE_TEXTS);
    assert_library(m, mar_clip_load(m, path_in(directory, "hps.pt"), SCORE_TEXTS, &c));
    assert_string_equal(mar_clip_get_config(c)->name, "HPS v2");
    assert_int_equal(mar_clip_get_config(c)->embedding, CLIP_EMBEDDING);
    assert_library(
        m, mar_clip_images_each(c, (const uint8_t *const *)rgb, clip_widths, clip_heights, CLIP_PICTURES, images));
    assert_library(m, mar_clip_texts(c, score_texts, SCORE_TEXTS, texts));
    for (int i = 0; i < CLIP_PICTURES; i++)
        for (int j = 0; j < SCORE_TEXTS; j++) {
            double sum = 0;
            for (int k = 0; k < CLIP_EMBEDDING; k++)
                sum += (double)images[i * CLIP_EMBEDDING + k] * (double)texts[j * CLIP_EMBEDDING + k];
            check(expected, i, j, sum, tolerance);
        }
    free(expected);
    wt_close(golden);
    mar_clip_free(c);
    mar_close(m);
}

static void compare_reward(mar_dtype dtype, double tolerance)
{
    mar_reward *r;
    mar *m = open_mar(dtype, 1);
    if (!m) return; /* not on this processor */
    wt_file *golden = golden_open("scores");
    float *expected = golden_f32(golden, "reward", CLIP_PICTURES * SCORE_TEXTS);
    assert_library(m, mar_reward_load(m, path_in(directory, "reward.pt"), CLIP_PICTURES, &r));
    for (int j = 0; j < SCORE_TEXTS; j++) { /* texts of different lengths side by side */
        const char *texts[CLIP_PICTURES];
        double scores[CLIP_PICTURES];
        for (int i = 0; i < CLIP_PICTURES; i++) texts[i] = score_texts[(i + j) % SCORE_TEXTS];
        assert_library(m, mar_reward_score(r, (const uint8_t *const *)rgb, clip_widths, clip_heights, texts,
                                           CLIP_PICTURES, scores));
        for (int i = 0; i < CLIP_PICTURES; i++) check(expected, i, (i + j) % SCORE_TEXTS, scores[i], tolerance);
    }
    free(expected);
    wt_close(golden);
    mar_reward_free(r);
    mar_close(m);
}

TEST_CASE(hps_is_hpsv2s)
{
    compare_hps(MAR_DTYPE_F32, 2e-6);
}

TEST_CASE(hps_in_bf16)
{
    compare_hps(MAR_DTYPE_BF16, 0.02);
}

TEST_CASE(reward_is_imagerewards)
{
    compare_reward(MAR_DTYPE_F32, 2e-6);
}

TEST_CASE(reward_in_bf16)
{
    compare_reward(MAR_DTYPE_BF16, 0.02);
}

/* Batches larger than a pass give the same bits. */
TEST_CASE(many_images)
{
    enum { MANY = 70 };
    const uint8_t *pictures[MANY];
    const char *texts[MANY];
    int widths[MANY], heights[MANY];
    double scores[MANY];
    mar_reward *r;
    mar *m = open_mar(MAR_DTYPE_F32, 1);
    for (int i = 0; i < MANY; i++) {
        pictures[i] = rgb[i % CLIP_PICTURES], texts[i] = score_texts[i % SCORE_TEXTS];
        widths[i] = clip_widths[i % CLIP_PICTURES], heights[i] = clip_heights[i % CLIP_PICTURES];
    }
    assert_library(m, mar_reward_load(m, path_in(directory, "reward.pt"), MANY, &r));
    assert_library(m, mar_reward_score(r, pictures, widths, heights, texts, MANY, scores));
    for (int i = 12; i < MANY; i++) assert_true(scores[i] == scores[i - 12]);
    mar_reward_free(r);
    mar_close(m);
}

/* Makes a folder `bad` with the models, runs `change` there, and checks that loading one fails with these words. */
static void refuse(const char *change, const char *model, mar_status expected, const char *words)
{
    mar_clip *c = NULL;
    mar_reward *r = NULL;
    mar *m = open_mar(MAR_DTYPE_F32, 1);
    sh_ok(directory, "rm -rf bad; mkdir bad; cp *.* bad; cd bad; %s", change);
    const int is_hps = strncmp(model, "hps", 3) == 0;
    const mar_status status = is_hps ? mar_clip_load(m, path_in(directory, "bad/%s", model), 1, &c)
                                     : mar_reward_load(m, path_in(directory, "bad/%s", model), 1, &r);
    if (status != expected || c || r || !strstr(mar_error(m), words))
        fail_msg("%s: %s, expected %s with \"%s\"", mar_status_name(status), mar_error(m), mar_status_name(expected),
                 words);
    mar_close(m);
}

TEST_CASE(files_are_refused)
{
    refuse("rm vocab.json", "hps.pt", MAR_EIO, "hps.pt: the vocabulary of CLIP beside it: ");
    refuse("cp reward.pt hps.pt", "hps.pt", MAR_EMODEL, "is no CLIP");
    refuse("sed -i s/visual.proj/visual.PROJ/ hps.pt", "hps.pt", MAR_EMODEL, "visual.proj");
    refuse("sed -i 's/160/161/g' hps.pt", "hps.pt", MAR_EFORMAT, "hps.pt");
    refuse("rm vocab.txt", "reward.pt", MAR_EIO,
           "no vocabulary, expected vocab.txt or bert-base-uncased/vocab.txt of bert-base-uncased beside it");
    refuse("cp hps.pt reward.pt", "reward.pt", MAR_EMODEL, "is no ImageReward");
    refuse("sed -i 5d vocab.txt", "reward.pt", MAR_EMODEL, "has 601 pieces with [DEC] and [ENC], ImageReward an");
    refuse("sed -i 's/^.CLS.$/[cls]/' vocab.txt", "reward.pt", MAR_EMODEL, "has no piece [CLS]");
    refuse("sed -i 's/^.UNK.$/x/' vocab.txt", "reward.pt", MAR_EFORMAT, "has no piece [UNK]");
    refuse("sed -i s/crossattention.self.key/crossattention.self.KEY/ reward.pt", "reward.pt", MAR_EMODEL,
           "crossattention.self.key.bias");
    refuse("sed -i s/mlp.layers.7.bias/mlp.layers.7.BIAS/ reward.pt", "reward.pt", MAR_EMODEL, "mlp.layers.7.bias");
}

/* The vocabulary may lie in transformers' folder. */
TEST_CASE(vocabulary_of_the_folder)
{
    mar_reward *r = NULL;
    mar *m = open_mar(MAR_DTYPE_F32, 1);
    sh_ok(directory,
          "rm -rf bad; mkdir -p bad/bert-base-uncased; cp reward.pt bad; cp vocab.txt bad/bert-base-uncased");
    assert_library(m, mar_reward_load(m, path_in(directory, "bad/reward.pt"), 1, &r));
    mar_reward_free(r);
    mar_close(m);
}
