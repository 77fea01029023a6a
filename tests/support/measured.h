/* What mar_session_measure lists, for the tests of both backends. */
#ifndef TESTS_MEASURED_H
#define TESTS_MEASURED_H

#include "mar.h"

enum { MEASURED_MOST = 400 };

typedef struct {
    mar_measurement row[MEASURED_MOST];
    char name[MEASURED_MOST][96];
    int count;
} measured_list;

/* A mar_measurement_function: adds to the measured_list `user`. */
void measured_take(void *user, const mar_measurement *m);
/* All that the session measures. The caller frees it. */
measured_list *measured_session(mar_session *s);
/* Fails the test if there is none. rows -1: any. */
const mar_measurement *measured_get(const measured_list *l, const char *group, const char *name, int rows);

#endif
