#include "tools/generate/stats.h"

#include "mar_measure.h"

#include "tools/cli/command.h"
#include "tools/cli/json.h"

#include <cjson/cJSON.h>
#include <math.h>

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
    if (s->recorded_bytes > sum->recorded_bytes) sum->recorded_bytes = s->recorded_bytes;
    sum->head_call_bytes = s->head_call_bytes;
    sum->head_call_products = s->head_call_products;
    sum->tokens += s->tokens;
    sum->head_calls += s->head_calls;
    if (s->head_calls_max > sum->head_calls_max) sum->head_calls_max = s->head_calls_max;
    sum->head_batched += s->head_batched;
    sum->draft_calls += s->draft_calls;
    sum->head_rows += s->head_rows;
    sum->passes += s->passes;
    sum->contexts += s->contexts;
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
    sum->undrafted += s->undrafted;
    sum->plain_s += s->plain_s;
    for (size_t i = 0; i < STATS_LENGTHS; i++) sum->accepted_lengths[i] += s->accepted_lengths[i];
}

int stats_check(const mar_stats *s, int n)
{
    /* At least 2^30 an image: sums over a million images fit in a double, and in result.json. */
    const long counts[] = {s->tokens, s->proposals,   s->proposals_accepted, s->drafted,  s->accepted,
                           s->rounds, s->round_steps, s->residual_tries,     s->undrafted};
    uint64_t limit = (uint64_t)1 << 30, bits = 0;
    while (limit < (uint64_t)n << 30) limit *= 2;
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) bits |= (uint64_t)counts[i];
    for (size_t i = 0; i < STATS_LENGTHS; i++) bits |= (uint64_t)s->accepted_lengths[i];
    return bits < limit && s->total_s >= 0 && s->total_s <= 1e9 * n && (s->arena_bytes | s->recorded_bytes) >> 53 == 0;
}

static void stats_add_part(cJSON *split, const char *name, double seconds, double flop)
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

void stats_record_lengths(const mar_stats *s, cJSON *record)
{
    double lengths[STATS_LENGTHS];
    int n = 0;
    for (int i = 0; i < STATS_LENGTHS; i++)
        if ((lengths[i] = (double)s->accepted_lengths[i]) > 0) n = i + 1;
    if (n > 0)
        tool_json_add(record, "accepted_lengths", cJSON_CreateDoubleArray(lengths, n));
    else
        cJSON_AddNullToObject(record, "accepted_lengths");
}

/* Returns the seconds of an image's tokens. */
static double stats_decoding_s(const mar_stats *s)
{
    return s->encoder_s + s->decoder_s + s->head_s + s->draft_s + s->verify_s;
}

void stats_record_choice(const mar_stats *s, cJSON *record)
{
    if (s->plain_s > 0 && s->rounds == 0) { /* --head_spec auto */
        add_ratio(record, "states_per_head_call", s->head_rows, s->head_calls);
        add_ratio(record, "tokens_by_plain_chain", (double)s->undrafted, (double)s->tokens);
        cJSON_AddNumberToObject(record, "plain_head_seconds", s->plain_s);
    } else if (s->plain_s > 0 || s->undrafted > 0) {
        add_ratio(record, "mean_drafts", (double)s->drafted, (double)s->rounds);
        add_ratio(record, "rounds_without_drafts", (double)s->undrafted, (double)s->rounds);
        cJSON_AddNumberToObject(record, "decoding_seconds", stats_decoding_s(s));
        if (s->plain_s > 0) cJSON_AddNumberToObject(record, "plain_decoding_seconds", s->plain_s);
    }
}

void stats_print_choice(const mar_stats *s, FILE *stream)
{
    if (s->plain_s > 0 && s->rounds == 0) {
        fprintf(stream,
                "--head_spec auto: %.1f states a call of the head, %.0f %% of the tokens by the plain chain; the head "
                "took %.2g s, and by the plain chain would have taken %.2g s\n",
                s->head_rows / s->head_calls, 100.0 * (double)s->undrafted / (double)s->tokens, s->head_s, s->plain_s);
    } else if (s->plain_s > 0 || s->undrafted > 0) {
        fprintf(stream, "chosen: %.1f drafts a round, none in %.0f %% of the rounds; ",
                (double)s->drafted / (double)s->rounds, 100.0 * (double)s->undrafted / (double)s->rounds);
        if (s->plain_s > 0)
            fprintf(stream, "decoding took %.2g s, and without drafts would have taken %.2g s\n", stats_decoding_s(s),
                    s->plain_s);
        else
            fputs("by standard times; auto measures this machine's\n", stream);
    }
}

void stats_record(const mar_stats *s, long images, cJSON *record)
{
    cJSON *split = cJSON_AddObjectToObject(record, "split");
    stats_add_part(split, "encoder", s->encoder_s, s->encoder_flop);
    stats_add_part(split, "decoder", s->decoder_s, s->decoder_flop);
    stats_add_part(split, "head", s->head_s, s->head_flop);
    stats_add_part(split, "draft", s->draft_s, s->draft_flop);
    stats_add_part(split, "verification", s->verify_s, -1);
    stats_add_part(split, "vae", s->vae_s, s->vae_flop);
    add_ratio(record, "flop_per_image", s->encoder_flop + s->decoder_flop + s->head_flop + s->draft_flop + s->vae_flop,
              (double)images);
    add_ratio(record, "head_calls_per_token", s->head_calls, (double)s->tokens);
    cJSON_AddNumberToObject(record, "head_calls_max", s->head_calls_max);
    cJSON_AddNumberToObject(record, "passes_in_sequence", s->passes);
    add_ratio(record, "contexts_per_image", s->contexts, (double)images);
    cJSON_AddNumberToObject(record, "head_calls_in_sequence", s->head_batched);
    cJSON_AddNumberToObject(record, "draft_calls_in_sequence", s->draft_calls);
    add_ratio(record, "head_evaluations_per_token", s->head_rows, (double)s->tokens);
    add_ratio(record, "proposal_acceptance_rate", (double)s->proposals_accepted, (double)s->proposals);
    add_ratio(record, "acceptance_rate", (double)s->accepted, (double)s->drafted);
    add_ratio(record, "mean_accepted_length", (double)s->accepted, (double)s->rounds);
    add_ratio(record, "mean_round_steps", (double)s->round_steps, (double)s->rounds);
    if (s->drafted) cJSON_AddNumberToObject(record, "accepted_shift", s->accepted_shift);
    stats_record_choice(s, record);
    stats_record_lengths(s, record);
    cJSON_AddNumberToObject(record, "residual_tries", (double)s->residual_tries);
    cJSON_AddNumberToObject(record, "arena_bytes", (double)s->arena_bytes);
}
