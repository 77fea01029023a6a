#include "tools/generate/acceptance.h"

#include "tools/cli/command.h"
#include "tools/cli/json.h"

#include <cjson/cJSON.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

int acceptance_create(int tokens, int steps, acceptance *out)
{
    *out = (acceptance){.tokens = tokens, .steps = steps};
    out->verified_at = calloc((size_t)tokens, sizeof *out->verified_at);
    out->accepted_at = calloc((size_t)tokens, sizeof *out->accepted_at);
    out->verified_in = calloc((size_t)steps, sizeof *out->verified_in);
    out->accepted_in = calloc((size_t)steps, sizeof *out->accepted_in);
    out->verified_stale = calloc((size_t)steps, sizeof *out->verified_stale);
    out->accepted_stale = calloc((size_t)steps, sizeof *out->accepted_stale);
    if (out->verified_at && out->accepted_at && out->verified_in && out->accepted_in && out->verified_stale &&
        out->accepted_stale)
        return 0;
    acceptance_free(out);
    return 1;
}

void acceptance_free(acceptance *a)
{
    free(a->verified_at);
    free(a->accepted_at);
    free(a->verified_in);
    free(a->accepted_in);
    free(a->verified_stale);
    free(a->accepted_stale);
    *a = (acceptance){0};
}

void acceptance_add(acceptance *a, const uint8_t *token_status, const int *steps, const int *staleness, int n)
{
    a->token_status = token_status;
    for (int i = 0; i < n * a->tokens; i++) {
        if (token_status[i] == MAR_TOKEN_TARGET || steps[i] >= a->steps) continue;
        const int taken = token_status[i] == MAR_TOKEN_ACCEPTED;
        a->verified_at[i % a->tokens]++;
        a->accepted_at[i % a->tokens] += taken;
        a->verified_in[steps[i]]++;
        a->accepted_in[steps[i]] += taken;
        if (staleness[i] <= 0 || staleness[i] >= a->steps) continue;
        a->verified_stale[staleness[i]]++;
        a->accepted_stale[staleness[i]] += taken;
    }
}

void acceptance_draw(const acceptance *a, int i, int width, int height, uint8_t *rgb)
{
    static const uint8_t colours[][3] = {[MAR_TOKEN_TARGET] = {190, 190, 190},
                                         [MAR_TOKEN_ACCEPTED] = {27, 120, 55},
                                         [MAR_TOKEN_REPLACED] = {166, 219, 160}};
    const int side = (int)lround(sqrt(a->tokens));
    const uint8_t *status = a->token_status + (size_t)i * (size_t)a->tokens;
    for (int y = 0; y < height; y++)
        for (int x = 0; x < width; x++, rgb += 3)
            memcpy(rgb, colours[status[y * side / height * side + x * side / width]], 3);
}

static void add_rates(cJSON *record, const char *name, const long *taken, const long *verified, int n)
{
    cJSON *list = cJSON_AddArrayToObject(record, name);
    for (int i = 0; i < n; i++)
        tool_json_append(list,
                         verified[i] ? cJSON_CreateNumber((double)taken[i] / (double)verified[i]) : cJSON_CreateNull());
}

/* Returns the greatest staleness of any draft plus one; 0 if no draft was stale. */
static int stale_entries(const acceptance *a)
{
    int n = a->steps;
    while (n > 0 && a->verified_stale[n - 1] == 0) n--;
    return n;
}

void acceptance_record(const acceptance *a, cJSON *record)
{
    add_rates(record, "acceptance_per_step", a->accepted_in, a->verified_in, a->steps);
    add_rates(record, "acceptance_per_position", a->accepted_at, a->verified_at, a->tokens);
    add_rates(record, "acceptance_per_lateness", a->accepted_stale, a->verified_stale, stale_entries(a));
}
