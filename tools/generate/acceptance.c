#include "tools/generate/acceptance.h"

#include "mar_measure.h"

#include "tools/cli/command.h"
#include "tools/cli/json.h"

#include <cjson/cJSON.h>
#include <stdlib.h>
#include <string.h>

int acceptance_create(int tokens, int columns, int steps, acceptance *out)
{
    *out = (acceptance){.tokens = tokens, .columns = columns, .steps = steps};
    out->at = calloc((size_t)tokens, sizeof *out->at);
    out->in = calloc((size_t)steps, sizeof *out->in);
    out->stale = calloc((size_t)steps, sizeof *out->stale);
    if (out->at && out->in && out->stale) return 0;
    acceptance_free(out);
    return 1;
}

void acceptance_free(acceptance *a)
{
    free(a->at);
    free(a->in);
    free(a->stale);
    *a = (acceptance){0};
}

static void generate_acceptance_count(acceptance_count *c, int is_accepted)
{
    c->verified++;
    c->accepted += is_accepted;
}

void acceptance_add(acceptance *a, const uint8_t *token_status, const int *steps, const int *staleness, int n)
{
    a->token_status = token_status;
    for (int i = 0; i < n * a->tokens; i++) {
        if (token_status[i] == MAR_TOKEN_TARGET || steps[i] >= a->steps) continue;
        const int is_accepted = token_status[i] == MAR_TOKEN_ACCEPTED;
        generate_acceptance_count(&a->at[i % a->tokens], is_accepted);
        generate_acceptance_count(&a->in[steps[i]], is_accepted);
        if (staleness[i] > 0 && staleness[i] < a->steps)
            generate_acceptance_count(&a->stale[staleness[i]], is_accepted);
    }
}

void acceptance_draw(const acceptance *a, int i, int width, int height, uint8_t *rgb)
{
    static const uint8_t colours[][3] = {[MAR_TOKEN_TARGET] = {190, 190, 190},
                                         [MAR_TOKEN_ACCEPTED] = {27, 120, 55},
                                         [MAR_TOKEN_REPLACED] = {166, 219, 160}};
    const int columns = a->columns, rows = a->tokens / columns;
    const uint8_t *status = a->token_status + (size_t)i * (size_t)a->tokens;
    for (int y = 0; y < height; y++)
        for (int x = 0; x < width; x++, rgb += 3)
            memcpy(rgb, colours[status[y * rows / height * columns + x * columns / width]], 3);
}

static void add_rates(cJSON *record, const char *name, const acceptance_count *counts, int n)
{
    cJSON *list = cJSON_AddArrayToObject(record, name);
    for (const acceptance_count *c = counts; c < counts + n; c++)
        tool_json_append(list, c->verified ? cJSON_CreateNumber((double)c->accepted / (double)c->verified)
                                           : cJSON_CreateNull());
}

/* Returns the greatest staleness of any draft plus one; 0 if no draft was stale. */
static int stale_entries(const acceptance *a)
{
    int n = a->steps;
    while (n > 0 && a->stale[n - 1].verified == 0) n--;
    return n;
}

void acceptance_record(const acceptance *a, cJSON *record)
{
    add_rates(record, "acceptance_per_step", a->in, a->steps);
    add_rates(record, "acceptance_per_position", a->at, a->tokens);
    add_rates(record, "acceptance_per_lateness", a->stale, stale_entries(a));
}
