#include "tools/eval/numbers.h"

#include "mar_eval.h"

#include "eval/frechet.h"
#include "tools/cli/command.h"

#include <ctype.h>
#include <limits.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    NEIGHBOURS = 3,    /* k of precision and recall in ADM's evaluator */
    KID_SUBSETS = 100, /* as in torch-fidelity */
    IMAGES_ENOUGH =
        10000, /* with 2048 features; with fewer images FID's bias exceeds the differences between methods */
    IMAGES_A_FEATURE = 10,       /* the same for networks with fewer features */
    ADM_REFERENCE_IMAGES = 10000 /* of arr_0 in VIRTUAL_imagenet256_labeled.npz */
};

void eval_warn(eval_result *r, const char *format, ...)
{
    va_list arguments;
    if (r->warning_count == EVAL_WARNINGS_MAX) return;
    va_start(arguments, format);
    vsnprintf(r->warnings[r->warning_count++], EVAL_TEXT, format, arguments);
    va_end(arguments);
}

/* --- Frechet distances ------------------------------------------------------------------------------------------ */

static int frechet_to(const eval_moments *m, const double *mu, const double *sigma, double *distance)
{
    const size_t n = (size_t)m->dim;
    double *mean = malloc(n * sizeof *mean), *covariance = malloc(n * n * sizeof *covariance);
    char why[EVAL_TEXT] = "out of memory for the Frechet distance";
    mar_status status = mean && covariance ? MAR_OK : MAR_ENOMEM;
    if (status == MAR_OK) {
        eval_moments_finish(m, mean, covariance);
        status = eval_frechet(m->dim, &(eval_gaussian){mean, covariance}, &(eval_gaussian){mu, sigma}, distance, why,
                              sizeof why);
    }
    free(mean);
    free(covariance);
    return status == MAR_OK ? 0 : tool_error("%s", why);
}

static int refuse_feature_size(const eval_gathered *g, const char *array, int found, int expected)
{
    return tool_error("%s: %s has %d numbers, expected %d, the features of %s%s", g->reference->path, array, found,
                      expected, g->network ? g->network->name : g->vgg->name,
                      found == 2048 || found == 64 ? "; is it a reference for another network?" : "");
}

static int fill_fid(const eval_gathered *g, eval_result *r)
{
    const eval_reference *reference = g->reference;
    if (!g->network || !reference || !reference->dim) return 0;
    if (reference->dim != g->network->features)
        return refuse_feature_size(g, "mu", reference->dim, g->network->features);
    return frechet_to(&g->images->pooled, reference->mu, reference->sigma, &r->fid);
}

static int fill_sfid(const eval_gathered *g, eval_result *r)
{
    const eval_reference *reference = g->reference;
    char *why = r->why_no_sfid;
    if (!g->network) return 0;
    if (!reference)
        snprintf(why, EVAL_TEXT, "there is no reference");
    else if (!g->network->spatial)
        snprintf(why, EVAL_TEXT, "%s has no spatial features", g->network->name);
    else if (!reference->spatial)
        snprintf(why, EVAL_TEXT, "%s has no mu_s and sigma_s", reference->path);
    if (*why) return 0;
    if (reference->spatial != g->network->spatial)
        return refuse_feature_size(g, "mu_s", reference->spatial, g->network->spatial);
    return frechet_to(&g->images->spatial, reference->mu_s, reference->sigma_s, &r->sfid);
}

/* --- kernel distance -------------------------------------------------------------------------------------------- */

static int fill_kid(const eval_gathered *g, eval_result *r)
{
    const eval_reference *reference = g->reference;
    const judged *images = g->images;
    char *why = r->why_no_kid;
    if (!g->network) return 0;
    if (!reference)
        snprintf(why, EVAL_TEXT, "there is no reference");
    else if (g->vgg)
        snprintf(why, EVAL_TEXT, "the features of single images are VGG16's, run again without --vgg");
    else if (!reference->features || !images->features)
        snprintf(why, EVAL_TEXT, "as for precision and recall");
    else if (reference->feature_count < g->kid_subset || images->feature_count < g->kid_subset)
        snprintf(why, EVAL_TEXT, "its subsets are of %d images, there are %ld and %ld (--kid_subset_size takes fewer)",
                 g->kid_subset, images->feature_count, reference->feature_count);
    else if (reference->feature_count > INT_MAX || images->feature_count > INT_MAX)
        snprintf(why, EVAL_TEXT, "there are more than %d images", INT_MAX);
    if (*why) return 0;
    if (reference->feature_dim != g->network->features)
        return refuse_feature_size(g, "features", reference->feature_dim, g->network->features);
    if (mar_kernel_distance(g->library, reference->features, (int)reference->feature_count, images->features,
                            (int)images->feature_count, reference->feature_dim, KID_SUBSETS, g->kid_subset, &r->kid,
                            &r->kid_deviation) == MAR_OK)
        return 0;
    return tool_error("kernel distance: %s", mar_error(g->library));
}

/* --- precision and recall --------------------------------------------------------------------------------------- */

static int fill_precision(const eval_gathered *g, eval_result *r)
{
    const eval_reference *reference = g->reference;
    const mar_features_config *network = g->vgg ? g->vgg : g->network;
    char *why = r->why_no_precision;
    if (!network) return 0;
    if (!reference)
        snprintf(why, EVAL_TEXT, "there is no reference");
    else if (!reference->features && g->vgg)
        snprintf(why, EVAL_TEXT,
                 "%s has no images: precision and recall on VGG16 need the reference images (an npz with arr_0, a "
                 "directory of images)",
                 reference->path);
    else if (!reference->features)
        snprintf(why, EVAL_TEXT,
                 "%s has statistics only: precision and recall need the features of single reference images, or these "
                 "images (an npz with features or arr_0, a directory of images)",
                 reference->path);
    else if (!g->images->features)
        snprintf(why, EVAL_TEXT, "the features of single images were not kept (--precision_recall keeps them)");
    else if (reference->feature_count <= NEIGHBOURS || g->images->feature_count <= NEIGHBOURS)
        snprintf(why, EVAL_TEXT, "they need more than %d images on either side, there are %ld and %ld", NEIGHBOURS,
                 g->images->feature_count, reference->feature_count);
    else if (reference->feature_count > INT_MAX || g->images->feature_count > INT_MAX)
        snprintf(why, EVAL_TEXT, "there are more than %d images", INT_MAX);
    if (*why) return 0;
    if (reference->feature_dim != network->features)
        return refuse_feature_size(g, "features", reference->feature_dim, network->features);
    if (mar_precision_recall(g->library, reference->features, (int)reference->feature_count, g->images->features,
                             (int)g->images->feature_count, reference->feature_dim, NEIGHBOURS, &r->precision,
                             &r->recall) != MAR_OK)
        return tool_error("%s", mar_error(g->library));
    return 0;
}

/* --- warnings ----------------------------------------------------------------------------------------------------- */

/* Returns whether the word or number occurs in text, in either case, without a letter or digit of its kind beside it.
 */
static int name_has_word(const char *text, const char *word)
{
    const size_t n = strlen(word);
    int (*const is_more)(int) = isdigit((unsigned char)*word) ? isdigit : isalpha;
    for (const char *at = strcasestr(text, word); at; at = strcasestr(at + 1, word))
        if ((at == text || !is_more((unsigned char)at[-1])) && !is_more((unsigned char)at[n])) return 1;
    return 0;
}

static int name_has_number(const char *text, int number)
{
    char digits[16];
    snprintf(digits, sizeof digits, "%d", number);
    return name_has_word(text, digits);
}

static void warn_of_image_size(const eval_gathered *g, const char *name, eval_result *r)
{
    static const int sizes[] = {64, 128, 256, 512};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        if (name_has_number(name, sizes[i]) && !name_has_number(name, g->images->width) && sizes[i] != g->images->width)
            eval_warn(r, "the images have %dx%d pixels, but by its name %s is of images of %dx%d", g->images->width,
                      g->images->height, name, sizes[i], sizes[i]);
}

static int is_inception(const eval_gathered *g)
{
    return g->network && strcmp(g->network->name, "inception-v3") == 0;
}

/* Warns of a negative mean: Inception's pooled features are means behind ReLU. */
static void warn_of_mean(const eval_gathered *g, const char *name, eval_result *r)
{
    int below = 0;
    if (!is_inception(g)) return;
    for (int i = 0; i < g->reference->dim; i++) below += g->reference->mu[i] < 0;
    if (below)
        eval_warn(r,
                  "%d of the %d means in %s are below 0, and Inception's features never are: these are the statistics "
                  "of another network",
                  below, g->reference->dim, name);
}

/* Returns whether the file is a source of published numbers on ImageNet. */
static int is_published_reference(const char *name)
{
    static const char *const names[] = {"adm_in256_stats.npz", "VIRTUAL_imagenet64_labeled.npz",
                                        "VIRTUAL_imagenet128_labeled.npz", "VIRTUAL_imagenet256_labeled.npz",
                                        "VIRTUAL_imagenet512.npz"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (strcmp(name, names[i]) == 0) return 1;
    return 0;
}

static void warn_of_reference(const eval_gathered *g, eval_result *r)
{
    const eval_reference *reference = g->reference;
    const char *name = tool_base_name(reference->path);
    if (strcmp(reference->path, "demo") == 0) return;
    warn_of_image_size(g, name, r);
    if (reference->dim) warn_of_mean(g, name, r);
    if (g->clean && reference->resize < 0 && !reference->pictures && !name_has_word(name, "clean"))
        eval_warn(r,
                  "%s does not say how its images were resized; with --resize clean it should be mar stats --resize "
                  "clean, or clean-fid's own",
                  name);
    if (!g->clean && !is_published_reference(name))
        eval_warn(r,
                  "published numbers are not made with %s: compare only with others of this reference (those on "
                  "ImageNet have adm_in256_stats.npz or VIRTUAL_imagenet256_labeled.npz)",
                  name);
    if (strcmp(name, "VIRTUAL_imagenet256_labeled.npz") == 0 && reference->pictures != ADM_REFERENCE_IMAGES)
        eval_warn(r, "%s has the name of ADM's file, which has %d images in arr_0; this one has %ld", name,
                  ADM_REFERENCE_IMAGES, reference->pictures);
    if (name_has_word(name, "val") || name_has_word(name, "validation"))
        eval_warn(r,
                  "by its name %s is of validation images: published numbers compare with the training images, and "
                  "are lower",
                  name);
}

static void warn_of_count(const eval_gathered *g, eval_result *r)
{
    if (!g->network) return;
    const long few = (long)IMAGES_A_FEATURE * g->network->features;
    const long enough = few < IMAGES_ENOUGH ? few : IMAGES_ENOUGH;
    const char *distance = is_inception(g) ? "FID" : "a Frechet distance";
    if (g->images->images < enough && g->reference)
        eval_warn(r,
                  "%s of %ld images is too high: fewer than %ld are too few for %d features; published numbers are of "
                  "50000",
                  distance, g->images->images, enough, g->network->features);
    else if (g->images->images < enough)
        eval_warn(r, "an Inception score of %ld images is too low: published numbers are of 50000", g->images->images);
    if (g->reference && r->reference_images && r->reference_images < enough)
        eval_warn(r, "the reference is of %ld images: fewer than %ld are too few for %d features", r->reference_images,
                  enough, g->network->features);
}

/* Returns the mean of a column of the scores, added in the order of the images; NaN if it is -1. */
static double mean_score(const judged *d, int column)
{
    double sum = 0;
    if (!d->scores || column < 0) return NAN;
    for (long i = 0; i < d->images; i++) sum += d->scores[d->columns.count * i + column];
    return sum / (double)d->images;
}

static void fill_scores(const judged *d, eval_result *r)
{
    const int *c = d->columns.of;
    r->clip_cosine = mean_score(d, c[SCORE_CLIP]);
    r->clip_cosine_prefixed = mean_score(d, c[SCORE_CLIP] < 0 ? -1 : c[SCORE_CLIP] + 1);
    r->clip_score = isnan(r->clip_cosine) ? NAN : fmax(100 * r->clip_cosine, 0);
    r->hps_cosine = mean_score(d, c[SCORE_HPS]);
    r->hps_score = 100 * r->hps_cosine;
    r->image_reward = mean_score(d, c[SCORE_REWARD]);
}

/* Refuses statistics of images that were resized in another way. */
static int check_resize(const eval_gathered *g)
{
    const eval_reference *r = g->reference;
    if (!g->network || !r || r->resize < 0 || r->resize == (g->clean != 0)) return 0;
    return r->resize ? tool_error("%s: is of images resized as clean-fid does it, expected --resize clean, or a "
                                  "reference of TensorFlow 1's resize",
                                  r->path)
                     : tool_error("%s: is of images resized as TensorFlow 1 does it, expected --resize tf1, or a "
                                  "reference of clean-fid's resize, such as mar stats --resize clean",
                                  r->path);
}

int eval_numbers(const eval_gathered *g, eval_result *r)
{
    r->fid = r->sfid = r->kid = r->kid_deviation = r->precision = r->recall = r->is_mean = r->is_deviation = r->is_adm =
        NAN;
    r->why_no_sfid[0] = r->why_no_kid[0] = r->why_no_precision[0] = '\0';
    r->images = g->images->images;
    r->reference_images = g->reference ? g->reference->images : 0;
    fill_scores(g->images, r);
    if (!g->network && !g->vgg) return 0;
    if (g->images->images < 2) return tool_error("numbers of %ld images: expected 2 or more", g->images->images);
    if (check_resize(g) != 0 || fill_fid(g, r) != 0 || fill_sfid(g, r) != 0 || fill_kid(g, r) != 0 ||
        fill_precision(g, r) != 0)
        return 1;
    double deviation;
    if (g->images->score) eval_score_finish(g->images->score, &r->is_mean, &r->is_deviation);
    if (g->images->adm) eval_score_finish(g->images->adm, &r->is_adm, &deviation);
    warn_of_count(g, r);
    if (g->reference && g->network) warn_of_reference(g, r);
    return 0;
}

int eval_judged_numbers(const judge *j, const eval_reference *reference, const judged *images, eval_result *r)
{
    const eval_gathered g = {.library = j->library,
                             .network = mar_features_get_config(j->network),
                             .vgg = mar_features_get_config(j->vgg),
                             .clean = j->clean,
                             .kid_subset = j->kid_subset,
                             .reference = reference,
                             .images = images};
    return eval_numbers(&g, r);
}
