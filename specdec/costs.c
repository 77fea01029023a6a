#include "specdec/costs.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* Adds a plain round, or the next width of at most `most` drafts. Returns 0 if there is none. */
static int costs_add_width(spec_choice *c, int first, int most, double cost)
{
    const int i = c->widths, drafts = i ? first << (i - 1) : 0;
    if (i == SPEC_WIDTHS || drafts > most) return 0;
    c->drafts[i] = drafts;
    c->cost[i] = cost;
    c->widths++;
    return 1;
}

void spec_costs_begin(spec_choice *out, int first, int most)
{
    *out = (spec_choice){.choose = spec_choose, .depth = out->depth};
    while (costs_add_width(out, first, most, 1)) continue;
}

int spec_costs_choose_last(const spec_choice *c, const spec_past *past)
{
    (void)past;
    return c->drafts[c->widths - 1];
}

void spec_costs_take(spec_choice *c, const double *seconds, double caught_up)
{
    for (int i = 1; i < c->widths; i++) /* a NaN is the cost before */
        c->cost[i] = fmin(fmax(seconds[i] / seconds[0], c->cost[i - 1]), SPEC_COST_MOST);
    if (caught_up > 0)
        c->catch_up = fmin(fmax((caught_up - seconds[1]) / (SPEC_COSTS_BEHIND * seconds[0]), 0), SPEC_COST_MOST);
}

/* Reads a number of at most 15 digits and a point, SPEC_COST_MOST at most. Its text is the same in all locales. Returns
 * where it ends; NULL for other text. */
static const char *costs_read_one(const char *at, double *out)
{
    double number = 0, scale = 1; /* whole */
    int digits = 0, point = 0;
    for (; (*at >= '0' && *at <= '9') || (*at == '.' && !point); at++) {
        if (*at == '.') {
            point = 1;
            continue;
        }
        number = 10 * number + (*at - '0');
        if (point) scale *= 10;
        if (++digits > 15) return NULL;
    }
    *out = number / scale;
    return digits && *out <= SPEC_COST_MOST ? at : NULL;
}

int spec_costs_read(const char *text, int first, int most, int may_catch_up, spec_choice *out)
{
    spec_costs_begin(out, first, 0);
    for (const char *at = text;; at++) {
        double cost = 0;
        at = costs_read_one(at, &cost);
        if (!at || !(cost >= out->cost[out->widths - 1]) || !costs_add_width(out, first, most, cost)) return 0;
        if (*at == '\0') return 1;
        if (*at == '+' && may_catch_up) {
            at = costs_read_one(at + 1, &out->catch_up);
            return at && *at == '\0';
        }
        if (*at != ',') return 0;
    }
}

/* Appends a number with three digits, and rounds it to these. */
static void costs_append(char *text, const char *before, double *number)
{
    const double limits[] = {0.9995, 9.995, 99.95};
    const size_t used = strlen(text);
    int decimals = 3;
    long scale = 1000;
    for (int i = 0; i < 3 && *number >= limits[i]; i++) decimals--, scale /= 10;
    const long whole = lround(*number * (double)scale);
    long fraction = whole % scale;
    *number = (double)whole / (double)scale;
    for (; decimals > 0 && fraction % 10 == 0; decimals--) fraction /= 10;
    const int n = snprintf(text + used, SPEC_COSTS_TEXT - used, "%s%ld", before, whole / scale);
    if (decimals > 0) snprintf(text + used + n, SPEC_COSTS_TEXT - used - (size_t)n, ".%0*ld", decimals, fraction);
}

const char *spec_costs_write(spec_choice *c, char *text)
{
    text[0] = '\0';
    for (int i = 1; i < c->widths; i++) costs_append(text, i > 1 ? "," : "", &c->cost[i]);
    if (c->catch_up < 0.0005)
        c->catch_up = 0;
    else
        costs_append(text, "+", &c->catch_up);
    return text;
}
