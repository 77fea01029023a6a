#include "eval/score.h"

#include "eval/order.h"

#include <math.h>
#include <stdlib.h>

/* Let p(y) be the mean of p(y|x) over a split. The mean of KL(p(y|x) | p(y)) is mean(sum_y p(y|x) log p(y|x)) - sum_y
 * p(y) log p(y). So two sums per split suffice. */

enum { TORCH_SEED = 2020, TORCH_SPLITS = 10, ADM_SPLIT = 5000 };

struct eval_score {
    int classes, splits;
    int *split;      /* [images] split of each image */
    long *count;     /* [splits] images added */
    double *entropy; /* [splits] sum of p log p over images and classes */
    double *sum;     /* [splits][classes] sum of p */
    double *p;       /* [classes] scratch: p of one image */
};

/* Returns the split of position p of n. */
static int split_of_position(eval_score_order order, int splits, long n, long p)
{
    if (order != EVAL_SCORE_TORCH_FIDELITY) return (int)(p / ADM_SPLIT);
    int s = (int)(p * splits / n); /* split s is s * n / splits .. (s + 1) * n / splits - 1 */
    while ((s + 1) * n / splits <= p) s++;
    return s;
}

static mar_status assign_splits(eval_score *s, eval_score_order order, long images)
{
    int *at = malloc((size_t)images * sizeof *at); /* image at each position */
    if (!at) return MAR_ENOMEM;
    if (order == EVAL_SCORE_ADM_AS_GIVEN)
        for (long i = 0; i < images; i++) at[i] = (int)i;
    else
        eval_permutation(order == EVAL_SCORE_ADM ? EVAL_NPZ_SEED : TORCH_SEED, (int)images, at);
    for (long p = 0; p < images; p++) s->split[at[p]] = split_of_position(order, s->splits, images, p);
    free(at);
    return MAR_OK;
}

mar_status eval_score_create(eval_score_order order, long images, int classes, eval_score **out)
{
    const long splits = order == EVAL_SCORE_TORCH_FIDELITY ? TORCH_SPLITS : (images + ADM_SPLIT - 1) / ADM_SPLIT;
    *out = NULL;
    eval_score *s = calloc(1, sizeof *s);
    if (!s) return MAR_ENOMEM;
    s->classes = classes;
    s->splits = (int)splits;
    s->split = malloc((size_t)images * sizeof *s->split);
    s->count = calloc((size_t)splits, sizeof *s->count);
    s->entropy = calloc((size_t)splits, sizeof *s->entropy);
    s->sum = calloc((size_t)splits * (size_t)classes, sizeof *s->sum);
    s->p = malloc((size_t)classes * sizeof *s->p);
    if (!s->split || !s->count || !s->entropy || !s->sum || !s->p || assign_splits(s, order, images) != MAR_OK) {
        eval_score_free(s);
        return MAR_ENOMEM;
    }
    *out = s;
    return MAR_OK;
}

void eval_score_free(eval_score *s)
{
    if (!s) return;
    free(s->split);
    free(s->count);
    free(s->entropy);
    free(s->sum);
    free(s->p);
    free(s);
}

static void add_image(eval_score *s, long image, const float *logits)
{
    const int split = s->split[image], classes = s->classes;
    double *sum = s->sum + (size_t)split * (size_t)classes;
    double most = (double)logits[0], total = 0, entropy = 0;
    for (int c = 1; c < classes; c++)
        if ((double)logits[c] > most) most = (double)logits[c];
    for (int c = 0; c < classes; c++) total += s->p[c] = exp((double)logits[c] - most);
    for (int c = 0; c < classes; c++) {
        const double p = s->p[c] / total;
        sum[c] += p;
        entropy += p * ((double)logits[c] - most);
    }
    s->entropy[split] += entropy - log(total);
    s->count[split]++;
}

void eval_score_add(eval_score *s, long first, const float *logits, int n)
{
    for (int i = 0; i < n; i++) add_image(s, first + i, logits + (size_t)i * (size_t)s->classes);
}

static double score_of_split(const eval_score *s, int split)
{
    const double n = (double)s->count[split], *sum = s->sum + (size_t)split * (size_t)s->classes;
    double divergence = s->entropy[split] / n; /* NaN without images */
    for (int c = 0; c < s->classes; c++)
        if (sum[c] > 0) divergence -= sum[c] / n * log(sum[c] / n);
    return exp(divergence);
}

void eval_score_finish(const eval_score *s, double *mean, double *deviation)
{
    double square = 0;
    *mean = 0;
    for (int i = 0; i < s->splits; i++) *mean += score_of_split(s, i) / s->splits;
    for (int i = 0; i < s->splits; i++) square += pow(score_of_split(s, i) - *mean, 2) / s->splits;
    *deviation = sqrt(square);
}
