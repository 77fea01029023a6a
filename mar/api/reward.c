/* Public calls of ImageReward. */
#include "eval/reward.h"

#include "mar/api/judge.h"
#include "mar/api/load.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct mar_reward {
    mar_judge judge;
    reward *network;
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
            return text_tokenizer_open_words(found, &r->judge.tokenizer, err);
    return err_set(err, MAR_EIO, "%s: no vocabulary, expected %s or %s of bert-base-uncased beside it", path, places[0],
                   places[1]);
}

static mar_status reward_load_tokenizer(mar_reward *r, const char *path, mar_err *err)
{
    char found[PATH_MAX];
    const mar_status status = open_vocabulary(r, path, found, err);
    if (status != MAR_OK) return status;
    const int size = text_tokenizer_size(r->judge.tokenizer), vocabulary = reward_get_config(r->network)->vocabulary;
    if (size != vocabulary)
        return err_set(err, MAR_EMODEL, "%s: has %d pieces with [DEC] and [ENC], ImageReward an embedding of %d", found,
                       size, vocabulary);
    return mar_judge_use_texts(&r->judge, found, "[CLS]", "[SEP]", REWARD_TOKENS, err);
}

static mar_status reward_load(mar_reward *r, const wt_file *f, const char *path, mar_err *err)
{
    mar_status status = mar_judge_begin_load(&r->judge, err);
    if (status != MAR_OK) return status;
    status = mar_judge_end_load(&r->judge, f, reward_create(r->judge.k, f, r->judge.batch, &r->network, err), err);
    return status == MAR_OK ? reward_load_tokenizer(r, path, err) : status;
}

static void reward_destroy(mar_reward *r)
{
    mar_judge_stop(&r->judge);
    reward_free(r->network);
    mar_judge_close(&r->judge);
    free(r);
}

/* Creates an ImageReward. *out stays NULL on failure. */
static mar_status api_reward_create(mar *m, const char *path, int batch, mar_reward **out, mar_err *err)
{
    wt_file *f = NULL;
    mar_status status = mar_open_checkpoint(path, 0, MAR_WEIGHTS_AUTO, &f, err);
    if (status != MAR_OK) return status;
    wt_allow_nonfinite(f, m->allow_nonfinite);
    mar_reward *r = calloc(1, sizeof *r);
    if (r) {
        status = mar_judge_open(&r->judge, m, batch, err);
        if (status == MAR_OK) status = reward_load(r, f, path, err);
    } else {
        status = err_set(err, MAR_ENOMEM, "out of memory");
    }
    if (status == MAR_OK) {
        mar_retain(m);
        *out = r;
    } else if (r) {
        reward_destroy(r);
    }
    wt_close(f);
    return status;
}

mar_status mar_reward_load(mar *m, const char *path, int batch, mar_reward **out)
{
    const double start = mar_now();
    mar_err err = {0};
    if (out) *out = NULL;
    mar_status status = mar_judge_check_load(m, path, batch, out, &err);
    if (status == MAR_OK) status = api_reward_create(m, path, batch, out, &err);
    if (status == MAR_OK)
        mar_log(m, MAR_LOG_INFO, "ImageReward %s: %ld parameters, loaded in %.3g s", path,
                reward_get_config((*out)->network)->parameters, mar_now() - start);
    return mar_result(m, status, &err);
}

void mar_reward_free(mar_reward *r)
{
    if (!r || mar_in_forked_child(r->judge.m)) return;
    mar *m = r->judge.m;
    reward_destroy(r);
    mar_release(m);
}

/* --- running ------------------------------------------------------------------------------------------------------ */

mar_status mar_reward_score(mar_reward *r, const uint8_t *const *rgb, const int *widths, const int *heights,
                            const char *const *texts, int n, double *scores)
{
    mar_err err = {0};
    if (!r) return mar_result(NULL, err_set(&err, MAR_EARG, "the ImageReward is NULL"), &err);
    mar_judge *j = &r->judge;
    mar_status status = mar_check_handle(j->m, &err);
    if (status == MAR_OK) status = mar_check_given(texts, "texts", &err);
    if (status == MAR_OK) status = mar_check_given(scores, "scores", &err);
    if (status == MAR_OK) status = mar_judge_take_each(j, rgb, widths, heights, n, &err);
    for (int i = 0; i < n && status == MAR_OK; i++) status = mar_judge_take_text(j, texts[i], i, &err);
    if (status == MAR_OK) {
        mar_judge_begin_run(j);
        status = reward_run(r->network, j->pictures, j->ids, j->first, j->length, n, scores, &err);
        status = mar_judge_end_run(j, status, &err);
    }
    return mar_result(j->m, status, &err);
}
