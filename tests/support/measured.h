/* Collects the measurements of mar_session_measure, for the tests of both backends. */
#ifndef TESTS_MEASURED_H
#define TESTS_MEASURED_H

#include "mar.h"
#include "mar_measure.h"

enum { MEASURED_MOST = 400 };

typedef struct {
    mar_measurement row[MEASURED_MOST];
    char name[MEASURED_MOST][96];
    int count;
} measured_list;

/* Adds a measurement to the measured_list `user`. It is a mar_measurement_function. */
void measured_take(void *user, const mar_measurement *m);
/* Returns all measurements of the session. The caller frees them. */
measured_list *measured_session(mar_session *s);
/* Returns a measurement, or fails the test if there is none. rows -1: any. */
const mar_measurement *measured_get(const measured_list *l, const char *group, const char *name, int rows);

#endif
