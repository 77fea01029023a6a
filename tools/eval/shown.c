/* Chooses the images on the page of an evaluation. */
#include "tools/eval/report.h"

#include <string.h>

int eval_report_choose(long images, int room, long *sheet)
{
    const long count = images < room ? images : room;
    for (long i = 0; i < count; i++) sheet[i] = (long)((double)i * (double)images / (double)count);
    return (int)count;
}

/* Returns whether a precedes b: the larger share replaced / verified, then the smaller number. */
static int goes_before(const eval_report_image *a, const eval_report_image *b)
{
    const double of_a = (double)a->replaced * (double)b->verified, of_b = (double)b->replaced * (double)a->verified;
    return of_a > of_b || (of_a == of_b && a->index < b->index);
}

int eval_report_rank(eval_report_image list[EVAL_REJECTED_MAX + 1], int *count, const eval_report_image *candidate)
{
    int at = 0;
    if (candidate->verified <= 0) return -1;
    while (at < *count && goes_before(&list[at], candidate)) at++;
    if (at == EVAL_REJECTED_MAX) return -1;
    memmove(list + at + 1, list + at, (size_t)(*count - at) * sizeof *list);
    list[at] = *candidate;
    if (*count < EVAL_REJECTED_MAX) (*count)++;
    return at;
}
