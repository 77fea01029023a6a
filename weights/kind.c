#include "weights/kind.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void wt_add_fact(const wt_report *to, const char *format, ...)
{
    char line[ERR_TEXT_MAX];
    va_list args;
    va_start(args, format);
    err_line_v(line, sizeof line, format, args);
    va_end(args);
    to->add(to->user, line);
}

void wt_put_text(wt_pairs *m, const char *key, const char *value)
{
    m->pairs[m->count][0] = key;
    m->pairs[m->count][1] = value;
    m->count++;
}

void wt_put_number(wt_pairs *m, const char *key, long value)
{
    char *text = m->numbers[m->count];
    snprintf(text, sizeof m->numbers[0], "%ld", value);
    wt_put_text(m, key, text);
}

void wt_put_real(wt_pairs *m, const char *key, double value)
{
    char *text = m->numbers[m->count];
    snprintf(text, sizeof m->numbers[0], "%.9g", value);
    wt_put_text(m, key, text);
}

void wt_pairs_free(wt_pairs *m)
{
    free(m->owned);
    *m = (wt_pairs){.count = 0};
}

int wt_begins_with(const char *name, const char *const *prefixes)
{
    for (; *prefixes; prefixes++)
        if (strncmp(name, *prefixes, strlen(*prefixes)) == 0) return 1;
    return 0;
}

long wt_sum_elements(const wt_file *f, const char *const *prefixes)
{
    long sum = 0;
    for (int i = 0; i < wt_count(f); i++)
        if (wt_begins_with(wt_at(f, i)->name, prefixes) && wt_at(f, i)->dtype != WT_UNREAD &&
            !wt_matrix_of(f, wt_at(f, i)))
            sum += (long)wt_at(f, i)->count;
    return sum;
}
