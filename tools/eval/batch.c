#include "tools/eval/batch.h"

#include "mar_measure.h"

#include "tools/cli/command.h"
#include "tools/generate/stats.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* --- division of the images --------------------------------------------------------------------------------------- */

int eval_shard_count(const eval_layout *l)
{
    return (int)((l->images + l->shard_images - 1) / l->shard_images);
}

long eval_shard_first(const eval_layout *l, int shard)
{
    return (long)shard * l->shard_images;
}

long eval_shard_end(const eval_layout *l, int shard)
{
    const long end = eval_shard_first(l, shard + 1);
    return end < l->images ? end : l->images;
}

int eval_batch_size(const eval_layout *l, long first)
{
    return l->images - first < l->batch ? (int)(l->images - first) : l->batch;
}

int eval_sample_count(long images, int room)
{
    return images < room ? (int)images : room;
}

long eval_sample_at(const eval_layout *l, int k)
{
    return (long)((long long)k * l->images / l->samples);
}

int eval_is_sample(const eval_layout *l, long i)
{
    const long long k = ((long long)i * l->samples + l->images - 1) / l->images;
    return k < l->samples && eval_sample_at(l, (int)k) == i;
}

size_t eval_pixel_bytes(const eval_layout *l)
{
    return (size_t)l->width * (size_t)l->height * 3;
}

int eval_feature_dim(const eval_layout *l)
{
    return l->vgg ? l->vgg : l->features;
}

/* --- a piece -------------------------------------------------------------------------------------------- */

enum { ARRAYS = 13 };

/* Lists the arrays of a piece of b->n images. Returns their number. */
static int list_batch_arrays(const eval_layout *l, const eval_batch *b, store_array list[ARRAYS])
{
    const int64_t n = b->n;
    const store_array all[ARRAYS] = {{"features", NPZ_F32, 2, {n, l->features}, b->features},
                                     {"logits", NPZ_F32, 2, {n, l->classes}, b->logits},
                                     {"spatial", NPZ_F32, 2, {n, l->spatial}, b->spatial},
                                     {"labels", NPZ_I32, 1, {n}, b->labels},
                                     {"crc", NPZ_I32, 1, {n}, b->crc},
                                     {"stats", NPZ_U8, 1, {sizeof *b->stats}, b->stats},
                                     {"seconds", NPZ_F64, 1, {2}, b->seconds},
                                     {"process", NPZ_I32, 1, {1}, b->process}};
    const store_array drafts[] = {{"verified", NPZ_I32, 1, {n}, b->verified},
                                  {"replaced", NPZ_I32, 1, {n}, b->replaced},
                                  {"curves", NPZ_F64, 2, {EVAL_CURVES, l->steps}, b->curves}};
    int count = 8;
    memcpy(list, all, sizeof all);
    if (l->steps) memcpy(list + count, drafts, sizeof drafts), count += 3;
    if (l->vgg) list[count++] = (store_array){"vgg", NPZ_F32, 2, {n, l->vgg}, b->vgg};
    if (l->columns.count) /* CLIP's alone at first, hence the name */
        list[count++] = (store_array){"cosines", NPZ_F64, 2, {n, l->columns.count}, b->scores};
    return count;
}

int eval_batch_create(const eval_layout *l, eval_batch *out)
{
    const size_t n = (size_t)l->batch;
    const size_t numbers = n * ((size_t)l->features + (size_t)l->classes + (size_t)l->spatial + (size_t)l->vgg + 4);
    const size_t curves = 2 + (size_t)EVAL_CURVES * (size_t)l->steps, wide = curves + n * (size_t)l->columns.count;
    *out = (eval_batch){.block = malloc(sizeof(mar_stats) + wide * sizeof(double) + (numbers + 1) * sizeof(float))};
    if (!out->block)
        return tool_error("out of memory for what is kept of %d images; a smaller --batch needs less", l->batch);
    out->stats = out->block;
    out->seconds = (double *)(void *)(out->stats + 1);
    out->curves = out->seconds + 2;
    out->scores = out->seconds + curves;
    out->features = (float *)(void *)(out->seconds + wide);
    out->logits = out->features + n * (size_t)l->features;
    out->spatial = out->logits + n * (size_t)l->classes;
    out->vgg = out->spatial + n * (size_t)l->spatial;
    out->crc = (int32_t *)(void *)(out->vgg + n * (size_t)l->vgg);
    out->labels = out->crc + n;
    out->verified = out->labels + n;
    out->replaced = out->verified + n;
    out->process = out->replaced + n;
    return 0;
}

void eval_batch_free(eval_batch *b)
{
    free(b->block);
    *b = (eval_batch){0};
}

void eval_batch_begin(const eval_layout *l, int n, eval_batch *b)
{
    b->n = n;
    memset(b->curves, 0, (size_t)EVAL_CURVES * (size_t)l->steps * sizeof *b->curves);
    memset(b->verified, 0, (size_t)n * sizeof *b->verified);
    memset(b->replaced, 0, (size_t)n * sizeof *b->replaced);
    b->seconds[0] = b->seconds[1] = 0;
}

#define COSINE_MAX 1.01
#define REWARD_MAX 1e6 /* ImageReward's scores are about -2 to 2 */

/* Returns whether the counts are possible: a checksum does not vouch for them. */
static int is_plausible_batch(const eval_layout *l, const eval_batch *b)
{
    const double most = 1e9 * b->n;
    int can = stats_check(b->stats, b->n) && *b->process >= 0;
    for (int i = 0; i < 2; i++) can &= b->seconds[i] >= 0 && b->seconds[i] <= most;
    for (int i = 0; i < b->n; i++) can &= b->replaced[i] >= 0 && b->replaced[i] <= b->verified[i];
    for (int i = 0; i < b->n * l->columns.count; i++)
        can &= fabs(b->scores[i]) < (i % l->columns.count == l->columns.of[SCORE_REWARD] ? REWARD_MAX : COSINE_MAX);
    for (int i = 0; i < EVAL_CURVES * l->steps; i++) can &= b->curves[i] >= 0 && b->curves[i] <= most;
    return can;
}

store_state eval_batch_read(const store_run *r, const store_range *at, const char *kind, const eval_layout *l,
                            eval_batch *b)
{
    store_array arrays[ARRAYS];
    char path[STORE_PATH];
    eval_batch_begin(l, at->n, b);
    const int count = list_batch_arrays(l, b, arrays);
    const store_state state = store_read(r, at, kind, arrays, count);
    if (state != STORE_THERE || is_plausible_batch(l, b)) return state;
    tool_error("%s: is damaged (a count), expected what mar eval wrote", store_path(r, at, kind, path));
    return STORE_DAMAGED;
}

int eval_batch_write(const store_run *r, const store_range *at, const char *kind, const eval_layout *l,
                     const eval_batch *b)
{
    store_array arrays[ARRAYS];
    const int count = list_batch_arrays(l, b, arrays);
    return store_write(r, at, kind, arrays, count);
}
