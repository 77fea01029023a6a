#include "tests/support/measured.h"

#include "mar_measure.h"

#include "tests/support/support.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void measured_take(void *user, const mar_measurement *m)
{
    measured_list *l = user;
    assert_true(l->count < MEASURED_MOST);
    l->row[l->count] = *m;
    snprintf(l->name[l->count], sizeof l->name[0], "%s", m->name);
    l->row[l->count].name = l->name[l->count];
    l->count++;
}

measured_list *measured_session(mar_session *s)
{
    measured_list *l = calloc(1, sizeof *l);
    assert_non_null(l);
    assert_session(s, mar_session_measure(s, measured_take, l));
    return l;
}

const mar_measurement *measured_get(const measured_list *l, const char *group, const char *name, int rows)
{
    for (int i = 0; i < l->count; i++)
        if (strcmp(l->row[i].group, group) == 0 && strcmp(l->row[i].name, name) == 0 &&
            (rows < 0 || l->row[i].rows == rows))
            return &l->row[i];
    fail_msg("no %s %s of %d rows", group, name, rows);
    return NULL;
}
