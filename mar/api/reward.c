/* Public calls of ImageReward. */
#include "eval/reward.h"

#include "mar/api/clip.h"
#include "mar/api/source.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { BATCH_MAX = 1024 };

struct mar_reward {
    mar *m;    /* library handle; referenced */
    int batch; /* maximum images of a call */
    reward *network;
    text_tokenizer *tokenizer;
    int start, end; /* ids of [CLS] and [SEP] */
    kern_queue *k;
    eval_picture *pictures; /* [batch] of a call */
    int *ids;               /* [batch][REWARD_TOKENS] of a call */
    int *first, *length;    /* [batch] */
};

/* --- loading ------------------------------------------------------------------------------------------------------ */

/* Opens vocab.txt beside the file, or in bert-base-uncased/ beside it. */
static mar_status open_vocabulary(mar_reward *r, const char *path, char found[PATH_MAX], mar_err *err)
{
    static const char *const places[] = {"vocab.txt", "bert-base-uncased/vocab.txt"};
    const char *slash = strrchr(path, '/');
    const int folder = slash ? (int)(slash - path) + 1 : 0;
    for (size_t i = 0; i < sizeof places / sizeof *places; i++)
        if (snprintf(found, PATH_MAX, "%.*s%s", folder, path, places[i]) < PATH_MAX && access(found, F_OK) == 0)
            return text_tokenizer_open_words(found, &r->tokenizer, err);
    return err_set(err, MAR_EIO, "%s: no vocabulary, expected %s or %s of bert-base-uncased beside it", path, places[0],
                   places[1]);
}

static mar_status load_tokenizer(mar_reward *r, const char *path, mar_err *err)
{
    char found[PATH_MAX];
    const mar_status status = open_vocabulary(r, path, found, err);
    if (status != MAR_OK) return status;
    const int size = text_tokenizer_size(r->tokenizer), vocabulary = reward_get_config(r->network)->vocabulary;
    r->start = text_tokenizer_find(r->tokenizer, "[CLS]");
    r->end = text_tokenizer_find(r->tokenizer, "[SEP]");
    if (size != vocabulary)
        return err_set(err, MAR_EMODEL, "%s: has %d pieces with [DEC] and [ENC], ImageReward an embedding of %d", found,
                       size, vocabulary);
    if (r->start < 0 || r->end < 0)
        return err_set(err, MAR_EMODEL, "%s: has no piece %s", found, r->start < 0 ? "[CLS]" : "[SEP]");
    return MAR_OK;
}

/* Loads the network on its queue. */
static mar_status load_network(mar_reward *r, const wt_file *f, mar_err *err)
{
    kern_queue *k = r->k;
    k->core->bind(k);
    mar_status status = reward_create(k, f, r->batch, &r->network, err);
    k->core->finish(k);
    if (status == MAR_OK) status = kern_check(k, err);
    k->core->unbind(k);
    return wt_check_unchanged(f, status, err);
}

static mar_status allocate(mar_reward *r, mar_err *err)
{
    const size_t n = (size_t)r->batch;
    r->pictures = malloc(n * sizeof *r->pictures);
    r->ids = malloc(n * REWARD_TOKENS * sizeof *r->ids);
    r->first = malloc(n * sizeof *r->first);
    r->length = malloc(n * sizeof *r->length);
    return r->pictures && r->ids && r->first && r->length ? MAR_OK : err_set(err, MAR_ENOMEM, "out of memory");
}

static void destroy(mar_reward *r)
{
    if (r->k) {
        r->k->core->bind(r->k);
        r->k->core->finish(r->k);
        reward_free(r->network);
        r->k->core->unbind(r->k);
        r->k->core->queue_free(r->k);
    }
    text_tokenizer_free(r->tokenizer);
    free(r->pictures);
    free(r->ids);
    free(r->first);
    free(r->length);
    free(r);
}

/* Creates an ImageReward. *out stays NULL on failure. */
static mar_status create(mar *m, const char *path, int batch, mar_reward **out, mar_err *err)
{
    wt_file *f = NULL;
    mar_status status = mar_open_checkpoint(path, 0, MAR_WEIGHTS_AUTO, &f, err);
    if (status != MAR_OK) return status;
    wt_allow_nonfinite(f, m->allow_nonfinite);
    mar_reward *r = calloc(1, sizeof *r);
    if (r) {
        r->m = m;
        r->batch = batch;
        status = m->device->core->queue_create(m->device, &r->k, err);
        if (status == MAR_OK) status = load_network(r, f, err);
        if (status == MAR_OK) status = load_tokenizer(r, path, err);
        if (status == MAR_OK) status = allocate(r, err);
    } else {
        status = err_set(err, MAR_ENOMEM, "out of memory");
    }
    if (status == MAR_OK) {
        mar_retain(m);
        *out = r;
    } else if (r) {
        destroy(r);
    }
    wt_close(f);
    return status;
}

mar_status mar_reward_load(mar *m, const char *path, int batch, mar_reward **out)
{
    const double start = mar_now();
    mar_err err = {0};
    if (out) *out = NULL;
    mar_status status = mar_check_load(m, path, out, &err);
    if (status == MAR_OK && (batch < 1 || batch > BATCH_MAX))
        status = err_set(&err, MAR_EARG, "batch of %d: expected 1..%d", batch, BATCH_MAX);
    if (status == MAR_OK) status = create(m, path, batch, out, &err);
    if (status == MAR_OK)
        mar_log(m, MAR_LOG_INFO, "ImageReward %s: %ld parameters, loaded in %.3g s", path,
                reward_get_config((*out)->network)->parameters, mar_now() - start);
    return mar_result(m, status, &err);
}

void mar_reward_free(mar_reward *r)
{
    if (!r || mar_in_forked_child(r->m)) return;
    mar *m = r->m;
    destroy(r);
    mar_release(m);
}

/* --- running ------------------------------------------------------------------------------------------------------ */

/* Writes the tokens of text i: [CLS], as many of its own as fit, [SEP]. */
static mar_status tokenize(mar_reward *r, const char *text, int i, mar_err *err)
{
    const int room = REWARD_TOKENS - 2;
    int *ids = r->ids + i * REWARD_TOKENS, count = 0;
    mar_err why = {0};
    if (!text) return err_set(err, MAR_EARG, "text %d is NULL", i);
    const mar_status status = text_tokenize(r->tokenizer, text, strlen(text), ids + 1, room, &count, &why);
    if (status != MAR_OK) return err_set(err, status, "text %d: %s", i, why.text);
    if (count > room) count = room;
    ids[0] = r->start;
    ids[count + 1] = r->end;
    r->first[i] = i * REWARD_TOKENS;
    r->length[i] = count + 2;
    return MAR_OK;
}

static mar_status check_call(const mar_reward *r, const void *rgb, const int *widths, const int *heights,
                             const void *texts, int n, const double *scores, mar_err *err)
{
    mar_status status = mar_check_handle(r->m, err);
    if (status == MAR_OK) status = mar_check_given(rgb, "rgb", err);
    if (status == MAR_OK) status = mar_check_given(widths, "widths", err);
    if (status == MAR_OK) status = mar_check_given(heights, "heights", err);
    if (status == MAR_OK) status = mar_check_given(texts, "texts", err);
    if (status == MAR_OK) status = mar_check_given(scores, "scores", err);
    if (status == MAR_OK && (n < 1 || n > r->batch))
        status = err_set(err, MAR_EARG, "%d images: expected 1..%d, the batch that ImageReward was prepared for", n,
                         r->batch);
    return status;
}

/* Takes image and text i of a call. */
static mar_status take(mar_reward *r, const uint8_t *rgb, int width, int height, const char *text, int i, mar_err *err)
{
    mar_status status = mar_check_given(rgb, "rgb", err);
    if (status == MAR_OK) status = mar_clip_check_size(width, height, err);
    r->pictures[i] = (eval_picture){rgb, width, height};
    return status == MAR_OK ? tokenize(r, text, i, err) : status;
}

mar_status mar_reward_score(mar_reward *r, const uint8_t *const *rgb, const int *widths, const int *heights,
                            const char *const *texts, int n, double *scores)
{
    mar_err err = {0};
    if (!r) return mar_result(NULL, err_set(&err, MAR_EARG, "the ImageReward is NULL"), &err);
    mar_status status = check_call(r, rgb, widths, heights, texts, n, scores, &err);
    for (int i = 0; i < n && status == MAR_OK; i++) status = take(r, rgb[i], widths[i], heights[i], texts[i], i, &err);
    if (status == MAR_OK) {
        kern_queue *k = r->k;
        k->core->bind(k);
        status = reward_run(r->network, r->pictures, r->ids, r->first, r->length, n, scores, &err);
        k->core->finish(k);
        if (status != MAR_OK) k->core->recover(k);
        k->core->unbind(k);
    }
    return mar_result(r->m, status, &err);
}
