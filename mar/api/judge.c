#include "mar/api/judge.h"

#include "eval/inception.h"
#include "mar/api/load.h"

#include <stdlib.h>
#include <string.h>

enum { BATCH_MAX = 1024 };

/* --- loading ------------------------------------------------------------------------------------------------------ */

mar_status mar_judge_check_load(const mar *m, const char *path, int batch, const void *out, mar_err *err)
{
    const mar_status status = mar_check_load(m, path, out, err);
    if (status != MAR_OK || (batch >= 1 && batch <= BATCH_MAX)) return status;
    return err_set(err, MAR_EARG, "batch of %d images: expected 1..%d", batch, BATCH_MAX);
}

mar_status mar_judge_open(mar_judge *j, mar *m, int batch, mar_err *err)
{
    *j = (mar_judge){.m = m, .batch = batch};
    j->pictures = calloc((size_t)batch, sizeof *j->pictures);
    return j->pictures ? MAR_OK : err_set(err, MAR_ENOMEM, "out of memory");
}

mar_status mar_judge_begin_load(mar_judge *j, mar_err *err)
{
    const mar_status status = j->m->device->core->queue_create(j->m->device, &j->k, err);
    if (status == MAR_OK) j->k->core->bind(j->k);
    return status;
}

mar_status mar_judge_end_load(mar_judge *j, const wt_file *f, mar_status status, mar_err *err)
{
    j->k->core->finish(j->k);
    if (status == MAR_OK) status = kern_check(j->k, err);
    j->k->core->unbind(j->k);
    return wt_check_unchanged(f, status, err);
}

mar_status mar_judge_use_texts(mar_judge *j, const char *path, const char *start, const char *end, int positions,
                               mar_err *err)
{
    const size_t n = (size_t)j->batch;
    j->start = text_tokenizer_find(j->tokenizer, start);
    j->end = text_tokenizer_find(j->tokenizer, end);
    if (j->start < 0 || j->end < 0)
        return err_set(err, MAR_EMODEL, "%s: has no piece %s", path, j->start < 0 ? start : end);
    j->positions = positions;
    j->ids = malloc(n * (size_t)positions * sizeof *j->ids);
    j->first = malloc(n * sizeof *j->first);
    j->length = malloc(n * sizeof *j->length);
    return j->ids && j->first && j->length ? MAR_OK : err_set(err, MAR_ENOMEM, "out of memory");
}

void mar_judge_stop(mar_judge *j)
{
    if (!j->k) return;
    j->k->core->bind(j->k);
    j->k->core->finish(j->k);
}

void mar_judge_close(mar_judge *j)
{
    if (j->k) {
        j->k->core->unbind(j->k);
        j->k->core->queue_free(j->k);
    }
    text_tokenizer_free(j->tokenizer);
    free(j->pictures);
    free(j->ids);
    free(j->first);
    free(j->length);
}

/* --- running ------------------------------------------------------------------------------------------------------ */

void mar_judge_begin_run(mar_judge *j)
{
    j->k->core->bind(j->k);
}

mar_status mar_judge_end_run(mar_judge *j, mar_status status, mar_err *err)
{
    j->k->core->finish(j->k);
    if (status == MAR_OK) status = kern_check(j->k, err);
    if (status != MAR_OK) j->k->core->recover(j->k);
    j->k->core->unbind(j->k);
    return status;
}

mar_status mar_judge_check_count(const mar_judge *j, int n, const char *what, mar_err *err)
{
    if (n >= 1 && n <= j->batch) return MAR_OK;
    return err_set(err, MAR_EARG, "%d %s: expected 1..%d, the batch that was prepared", n, what, j->batch);
}

static mar_status judge_check_size(int width, int height, mar_err *err)
{
    if (width >= 1 && height >= 1 && width <= EVAL_SIDE_MAX && height <= EVAL_SIDE_MAX &&
        width * height <= EVAL_INCEPTION_PIXELS_MAX)
        return MAR_OK;
    return err_set(err, MAR_EARG, "images of %dx%d pixels: expected sides of 1..%d and at most 4096x4096 pixels", width,
                   height, EVAL_SIDE_MAX);
}

mar_status mar_judge_take(mar_judge *j, const uint8_t *rgb, int n, int width, int height, mar_err *err)
{
    mar_status status = mar_check_given(rgb, "rgb", err);
    if (status == MAR_OK) status = mar_judge_check_count(j, n, "images", err);
    if (status == MAR_OK) status = judge_check_size(width, height, err);
    for (int i = 0; i < n && status == MAR_OK; i++)
        j->pictures[i] = (eval_picture){rgb + (size_t)i * (size_t)width * (size_t)height * 3, width, height};
    return status;
}

mar_status mar_judge_take_each(mar_judge *j, const uint8_t *const *rgb, const int *widths, const int *heights, int n,
                               mar_err *err)
{
    mar_status status = mar_check_given(rgb, "rgb", err);
    if (status == MAR_OK) status = mar_check_given(widths, "widths", err);
    if (status == MAR_OK) status = mar_check_given(heights, "heights", err);
    if (status == MAR_OK) status = mar_judge_check_count(j, n, "images", err);
    for (int i = 0; i < n && status == MAR_OK; i++) {
        status = mar_check_given(rgb[i], "rgb", err);
        if (status == MAR_OK) status = judge_check_size(widths[i], heights[i], err);
        j->pictures[i] = (eval_picture){rgb[i], widths[i], heights[i]};
    }
    return status;
}

mar_status mar_judge_take_text(mar_judge *j, const char *text, int i, mar_err *err)
{
    const int room = j->positions - 2;
    int *ids = j->ids + (size_t)i * (size_t)j->positions, count = 0;
    mar_err why = {0};
    if (!text) return err_set(err, MAR_EARG, "text %d is NULL", i);
    const mar_status status = text_tokenize(j->tokenizer, text, strlen(text), ids + 1, room, &count, &why);
    if (status != MAR_OK) return err_set(err, status, "text %d: %s", i, why.text);
    if (count > room) count = room;
    ids[0] = j->start;
    ids[count + 1] = j->end;
    j->first[i] = i * j->positions;
    j->length[i] = count + 2;
    return MAR_OK;
}
