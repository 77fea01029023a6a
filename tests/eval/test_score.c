/* Compares the Inception score with torch-fidelity and with ADM's evaluator. */
#include "tests/support/golden_doubles.h"

#include "eval/score.h"

#include <math.h>

enum { IMAGES = 203, CLASSES = 12, MANY = 10400, FEW_CLASSES = 4 };

/* Computes the score, adding `piece` images a call. */
static void score(eval_score_order order, const float *logits, int images, int classes, int piece, double *mean,
                  double *deviation)
{
    eval_score *s = NULL;
    assert_int_equal(eval_score_create(order, images, classes, &s), MAR_OK);
    for (int first = 0; first < images; first += piece)
        eval_score_add(s, first, logits + (size_t)first * (size_t)classes,
                       images - first < piece ? images - first : piece);
    eval_score_finish(s, mean, deviation);
    eval_score_free(s);
}

TEST_CASE(against_torch_fidelity)
{
    wt_file *f = golden_open("numbers");
    float *logits = golden_f32(f, "logits", IMAGES * CLASSES);
    double *expected = golden_f64(f, "score", 3), mean, deviation, first_mean = 0;
    for (int piece = 1; piece <= IMAGES; piece += 101) {
        score(EVAL_SCORE_TORCH_FIDELITY, logits, IMAGES, CLASSES, piece, &mean, &deviation);
        assert_near(mean, expected[0], 1e-11);
        assert_near(deviation, expected[1], 1e-11);
        if (piece == 1) first_mean = mean;
        assert_true(mean == first_mean);
    }
    score(EVAL_SCORE_ADM, logits, IMAGES, CLASSES, 64, &mean, &deviation);
    assert_near(mean, expected[2], 1e-11); /* one split, so the order has no effect */
    assert_near(deviation, 0, 0);
    free(logits);
    free(expected);
    wt_close(f);
}

TEST_CASE(against_adm)
{
    static float logits[MANY * FEW_CLASSES];
    static const int factor[FEW_CLASSES] = {7, 11, 13, 17};
    for (int i = 0; i < MANY; i++)
        for (int c = 0; c < FEW_CLASSES; c++)
            logits[i * FEW_CLASSES + c] = (float)(i * factor[c] % 101) / 16 + (float)(i / 3000 == c);
    wt_file *f = golden_open("numbers");
    double *expected = golden_f64(f, "score.adm", 2), mean, deviation;
    score(EVAL_SCORE_ADM_AS_GIVEN, logits, MANY, FEW_CLASSES, 1000, &mean, &deviation);
    assert_near(mean, expected[0], 1e-11);
    score(EVAL_SCORE_ADM, logits, MANY, FEW_CLASSES, 1000, &mean, &deviation);
    assert_near(mean, expected[1], 1e-11);
    free(expected);
    wt_close(f);
}

/* Logits far apart, as of a network that is certain: probabilities of 0, but no NaN. Each of ten classes occurs equally
 * often in one split of ADM's. So the score is 10. */
TEST_CASE(certainty)
{
    static float logits[1000 * 10];
    double mean, deviation;
    for (int i = 0; i < 1000; i++)
        for (int c = 0; c < 10; c++) logits[i * 10 + c] = i % 10 == c ? 2000 : -2000;
    score(EVAL_SCORE_ADM, logits, 1000, 10, 1000, &mean, &deviation);
    assert_near(mean, 10, 1e-12);
    score(EVAL_SCORE_TORCH_FIDELITY, logits, 9, 10, 9, &mean, &deviation);
    assert_true(isnan(mean)); /* a split is without images */
}
