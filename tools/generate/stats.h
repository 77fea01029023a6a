/* The statistics of several batches, summed and as JSON. */
#ifndef TOOLS_STATS_H
#define TOOLS_STATS_H

#include "mar.h"
#include "mar_measure.h"

#include <stdio.h>

typedef struct cJSON cJSON;

enum { STATS_LENGTHS = sizeof((mar_stats){0}.accepted_lengths) / sizeof(long) };

/* Adds one batch's statistics to *sum. head_calls_max, arena_bytes and recorded_bytes keep the larger value,
 * head_call_bytes and head_call_products that of the batch. accepted_shift is averaged as a root mean square. */
void stats_add(mar_stats *sum, const mar_stats *s);
/* Returns 1 if n images can have such counts, so that no sum over a run overflows; else 0. */
int stats_check(const mar_stats *s, int n);

/* Adds as accepted_lengths how many rounds accepted 0, 1, ... drafts, up to the most accepted; null without rounds. */
void stats_record_lengths(const mar_stats *stats, cJSON *record);
/* Add and print what the choice of drafts has done, and what plain decoding would have taken by its costs. Nothing
 * without one. */
void stats_record_choice(const mar_stats *stats, cJSON *record);
void stats_print_choice(const mar_stats *stats, FILE *stream);
/* Adds the fields of `stats` that `mar generate --json` and `mar fidelity --json` print. */
void stats_record(const mar_stats *stats, long images, cJSON *record);

#endif
