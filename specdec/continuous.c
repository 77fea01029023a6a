#include "specdec/continuous.h"

#include "base/arena.h"

#include <math.h>
#include <stdlib.h>

/* Returns the words (an int or a float) of the verdicts on this many rows and groups. */
static size_t continuous_words(const spec_continuous *s, size_t rows, size_t groups)
{
    return rows * (size_t)s->channels + 2 * rows + groups;
}

/* Returns the verdicts on `rows` rows in backend memory or in its host copy. */
static spec_verdicts continuous_verdicts(const spec_continuous *s, float *memory, int rows)
{
    int *replaced = (int *)(memory + (size_t)rows * (size_t)s->channels);
    return (spec_verdicts){memory, replaced, replaced + rows, replaced + 2 * (size_t)rows};
}

mar_status spec_continuous_create(kern_queue *k, const spec_method *method, const kern_gaussian_rule *rule,
                                  int channels, int max_rows, int max_groups, spec_continuous *out, mar_err *err)
{
    *out = (spec_continuous){.k = k,
                             .method = method,
                             .rule = *rule,
                             .index = method->last_index ? 0 : 1,
                             .channels = channels,
                             .max_rows = max_rows,
                             .max_groups = max_groups};
    out->report = calloc(continuous_words(out, (size_t)max_rows, (size_t)max_groups), sizeof *out->report);
    return out->report ? MAR_OK : err_set(err, MAR_ENOMEM, "out of memory for blocks of %d tokens", max_rows);
}

void spec_continuous_free(spec_continuous *s)
{
    free(s->report);
}

void spec_distributions_lay_out(spec_distributions *d, size_t rows, size_t channels, char *base, size_t *used)
{
    d->mean = arena_carve(base, used, rows * channels, sizeof *d->mean);
    d->log_std = arena_carve(base, used, rows * channels, sizeof *d->log_std);
    d->path = arena_carve(base, used, rows, sizeof *d->path);
}

size_t spec_continuous_lay_out(spec_continuous *s, char *base)
{
    const size_t rows = (size_t)s->max_rows, channels = (size_t)s->channels;
    size_t used = 0;
    spec_distributions_lay_out(&s->p, rows, channels, base, &used);
    spec_distributions_lay_out(&s->q, rows, channels, base, &used);
    s->state = arena_carve(base, &used, rows * channels, sizeof *s->state);
    s->token = arena_carve(base, &used, rows * channels, sizeof *s->token);
    s->verdicts = arena_carve(base, &used, continuous_words(s, rows, (size_t)s->max_groups), sizeof *s->verdicts);
    return used;
}

int spec_continuous_needs_path(const spec_continuous *s)
{
    return s->rule.path_accept != 0 || s->rule.path_scale != 0;
}

diff_trace spec_continuous_trace(const spec_continuous *s, const spec_distributions *d)
{
    return (diff_trace){s->index, d->mean, d->log_std, spec_continuous_needs_path(s) ? d->path : NULL};
}

void spec_continuous_verify(spec_continuous *s, const spec_block_rows *rows, double *seconds)
{
    const spec_verdicts v = continuous_verdicts(s, s->verdicts, rows->rows);
    const int path = spec_continuous_needs_path(s);
    const kern_verify_job job = {.rows = rows->rows,
                                 .channels = s->channels,
                                 .draft = s->state,
                                 .mean_p = s->p.mean,
                                 .log_std_p = s->p.log_std,
                                 .mean_q = s->q.mean,
                                 .log_std_q = s->q.log_std,
                                 .path_p = path ? s->p.path : NULL,
                                 .path_q = path ? s->q.path : NULL,
                                 .rule = s->rule,
                                 /* verifications inside the head have a step of the chain as address, never this one */
                                 .step = DIFF_BASE_STEPS,
                                 .seed = rows->seed,
                                 .image = rows->image,
                                 .position = rows->position,
                                 .group = rows->group,
                                 .order = rows->order,
                                 .groups = rows->groups,
                                 .x = s->state,
                                 .replaced = v.replaced,
                                 .tries = v.tries,
                                 .first_replaced = v.first_replaced};
    s->k->core->timer_mark(s->k, NULL);
    s->k->head->verify(s->k, &job);
    s->k->core->timer_mark(s->k, seconds);
}

void spec_continuous_compare(spec_continuous *s, const float *tokens, const spec_block_rows *rows)
{
    s->k->core->subtract(s->k, tokens, s->token, (size_t)rows->rows * (size_t)s->channels, s->verdicts);
}

mar_status spec_continuous_read(spec_continuous *s, const spec_block_rows *rows, spec_verdicts *out, mar_err *err)
{
    const size_t words = continuous_words(s, (size_t)rows->rows, (size_t)rows->groups);
    s->k->core->download(s->k, s->report, s->verdicts, words * sizeof *s->report);
    *out = continuous_verdicts(s, s->report, rows->rows);
    return kern_check(s->k, err);
}

int spec_continuous_count(spec_continuous *s, const spec_verdicts *v, int row, mar_stats *stats)
{
    const int replaced = v->replaced[row] != 0;
    stats->drafted++;
    stats->accepted += !replaced;
    stats->residual_tries += v->tries[row];
    for (int c = 0; c < s->channels && !replaced; c++) {
        const double shift = v->shift[row * s->channels + c];
        s->shift_sum += shift * shift;
    }
    return replaced;
}

void spec_continuous_stats(const spec_continuous *s, mar_stats *stats)
{
    const double count = (double)stats->accepted * s->channels;
    stats->accepted_shift = count > 0 ? sqrt(s->shift_sum / count) : 0;
}
