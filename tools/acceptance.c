#include "tools/acceptance.h"

#include <cjson/cJSON.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

int acceptance_create(int tokens, int steps, int max_batch, acceptance *out)
{
    const size_t all = (size_t)max_batch * (size_t)tokens;
    *out = (acceptance){.tokens = tokens, .steps = steps};
    out->verified_at = calloc((size_t)tokens, sizeof *out->verified_at);
    out->taken_at = calloc((size_t)tokens, sizeof *out->taken_at);
    out->verified_in = calloc((size_t)steps, sizeof *out->verified_in);
    out->taken_in = calloc((size_t)steps, sizeof *out->taken_in);
    out->fate = calloc(all, sizeof *out->fate);
    out->step = calloc(all, sizeof *out->step);
    if (out->verified_at && out->taken_at && out->verified_in && out->taken_in && out->fate && out->step) return 0;
    acceptance_free(out);
    return 1;
}

void acceptance_free(acceptance *a)
{
    free(a->verified_at);
    free(a->taken_at);
    free(a->verified_in);
    free(a->taken_in);
    free(a->fate);
    free(a->step);
    *a = (acceptance){0};
}

mar_status acceptance_add(acceptance *a, mar_session *s, int n)
{
    mar_status status = mar_session_fates(s, a->fate, a->step);
    for (int i = 0; status == MAR_OK && i < n * a->tokens; i++) {
        if (a->fate[i] == MAR_TOKEN_TARGET) continue;
        const int taken = a->fate[i] == MAR_TOKEN_ACCEPTED;
        a->verified_at[i % a->tokens]++;
        a->taken_at[i % a->tokens] += taken;
        a->verified_in[a->step[i]]++;
        a->taken_in[a->step[i]] += taken;
    }
    return status;
}

void acceptance_draw(const acceptance *a, int i, int width, int height, uint8_t *rgb)
{
    static const uint8_t colours[][3] = {[MAR_TOKEN_TARGET] = {190, 190, 190},
                                         [MAR_TOKEN_ACCEPTED] = {27, 120, 55},
                                         [MAR_TOKEN_REPLACED] = {166, 219, 160}};
    const int side = (int)lround(sqrt(a->tokens));
    const uint8_t *fate = a->fate + (size_t)i * (size_t)a->tokens;
    for (int y = 0; y < height; y++)
        for (int x = 0; x < width; x++, rgb += 3)
            memcpy(rgb, colours[fate[y * side / height * side + x * side / width]], 3);
}

static void add_rates(cJSON *record, const char *name, const long *taken, const long *verified, int n)
{
    cJSON *list = cJSON_AddArrayToObject(record, name);
    for (int i = 0; i < n; i++)
        cJSON_AddItemToArray(list, verified[i] ? cJSON_CreateNumber((double)taken[i] / (double)verified[i])
                                               : cJSON_CreateNull());
}

void acceptance_record(const acceptance *a, cJSON *record)
{
    add_rates(record, "acceptance_per_step", a->taken_in, a->verified_in, a->steps);
    add_rates(record, "acceptance_per_position", a->taken_at, a->verified_at, a->tokens);
}

void stats_add(mar_stats *sum, const mar_stats *s)
{
    sum->encoder_s += s->encoder_s;
    sum->decoder_s += s->decoder_s;
    sum->head_s += s->head_s;
    sum->vae_s += s->vae_s;
    sum->draft_s += s->draft_s;
    sum->verify_s += s->verify_s;
    sum->total_s += s->total_s;
    sum->encoder_flop += s->encoder_flop;
    sum->decoder_flop += s->decoder_flop;
    sum->head_flop += s->head_flop;
    sum->vae_flop += s->vae_flop;
    sum->draft_flop += s->draft_flop;
    if (s->arena_bytes > sum->arena_bytes) sum->arena_bytes = s->arena_bytes;
    sum->tokens += s->tokens;
    sum->head_calls += s->head_calls;
    if (s->head_calls_max > sum->head_calls_max) sum->head_calls_max = s->head_calls_max;
    sum->head_batched += s->head_batched;
    sum->draft_calls += s->draft_calls;
    sum->head_rows += s->head_rows;
    sum->proposals += s->proposals;
    sum->proposals_accepted += s->proposals_accepted;
    sum->drafted += s->drafted;
    const double accepted = (double)(sum->accepted + s->accepted);
    if (accepted > 0)
        sum->accepted_shift = sqrt((sum->accepted_shift * sum->accepted_shift * (double)sum->accepted +
                                    s->accepted_shift * s->accepted_shift * (double)s->accepted) /
                                   accepted);
    sum->accepted += s->accepted;
    sum->rounds += s->rounds;
    sum->round_steps += s->round_steps;
    sum->residual_tries += s->residual_tries;
}

static void add_part(cJSON *split, const char *name, double seconds, double flop)
{
    cJSON *o = cJSON_AddObjectToObject(split, name);
    cJSON_AddNumberToObject(o, "seconds", seconds);
    if (flop >= 0) cJSON_AddNumberToObject(o, "flop", flop);
}

static void add_ratio(cJSON *record, const char *name, double part, double whole)
{
    if (whole > 0)
        cJSON_AddNumberToObject(record, name, part / whole);
    else
        cJSON_AddNullToObject(record, name);
}

void stats_record(const mar_stats *s, long images, cJSON *record)
{
    cJSON *split = cJSON_AddObjectToObject(record, "split");
    add_part(split, "encoder", s->encoder_s, s->encoder_flop);
    add_part(split, "decoder", s->decoder_s, s->decoder_flop);
    add_part(split, "head", s->head_s, s->head_flop);
    add_part(split, "draft", s->draft_s, s->draft_flop);
    add_part(split, "verification", s->verify_s, -1);
    add_part(split, "vae", s->vae_s, s->vae_flop);
    add_ratio(record, "flop_per_image", s->encoder_flop + s->decoder_flop + s->head_flop + s->draft_flop + s->vae_flop,
              (double)images);
    add_ratio(record, "head_calls_per_token", s->head_calls, (double)s->tokens);
    cJSON_AddNumberToObject(record, "head_calls_max", s->head_calls_max);
    cJSON_AddNumberToObject(record, "head_calls_in_sequence", s->head_batched);
    cJSON_AddNumberToObject(record, "draft_calls_in_sequence", s->draft_calls);
    add_ratio(record, "head_evaluations_per_token", s->head_rows, (double)s->tokens);
    add_ratio(record, "proposal_acceptance_rate", (double)s->proposals_accepted, (double)s->proposals);
    add_ratio(record, "acceptance_rate", (double)s->accepted, (double)s->drafted);
    add_ratio(record, "mean_accepted_length", (double)s->accepted, (double)s->rounds);
    add_ratio(record, "mean_round_steps", (double)s->round_steps, (double)s->rounds);
    if (s->drafted) cJSON_AddNumberToObject(record, "accepted_shift", s->accepted_shift);
    cJSON_AddNumberToObject(record, "residual_tries", (double)s->residual_tries);
    cJSON_AddNumberToObject(record, "arena_bytes", (double)s->arena_bytes);
}
