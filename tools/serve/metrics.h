/* Counters of the service, and their text form for Prometheus. */
#ifndef TOOLS_SERVE_METRICS_H
#define TOOLS_SERVE_METRICS_H

#include <pthread.h>
#include <stdint.h>
#include <stdio.h>

enum { METRIC_BUCKETS = 16, METRIC_ROUTES = 28, METRIC_CODES = 20 };

/* Sums by upper bound, in seconds. */
typedef struct {
    uint64_t bucket[METRIC_BUCKETS + 1]; /* the last one has no bound */
    double sum;
    uint64_t count;
} metric_histogram;

typedef struct {
    uint64_t answers[METRIC_ROUTES][METRIC_CODES]; /* by route and code */
    uint64_t images[3];                            /* by metric_end */
    uint64_t steps, step_images;                   /* steps of the session, and images in them */
    uint64_t previews;
    uint64_t prompts;          /* encoded */
    metric_histogram job_s;    /* from request to the last image */
    metric_histogram wait_s;   /* from request to the first step */
    metric_histogram step_s;   /* of a step */
    metric_histogram answer_s; /* from a whole request to its answer, of a stream to its end */
} metric_counts;

typedef struct {
    pthread_mutex_t lock;
    metric_counts counts;
} metrics;

void metrics_create(metrics *m);
void metrics_destroy(metrics *m);

/* METRIC_GONE counts clients that left before the answer, and streams that were stopped, under nginx's code 499. */
enum { METRIC_GONE = 499 };
void metrics_answer(metrics *m, int route, int code, double seconds);
typedef enum { METRIC_DONE, METRIC_FAILED, METRIC_CANCELLED } metric_end;
void metrics_image(metrics *m, metric_end end);
void metrics_step(metrics *m, int images, double seconds);
void metrics_preview(metrics *m);
void metrics_prompt(metrics *m);
void metrics_job(metrics *m, double seconds);
void metrics_wait(metrics *m, double seconds);

/* Values of the moment. */
typedef struct {
    const char *const *routes; /* [METRIC_ROUTES] names, NULL behind the last */
    const char *model;
    int waiting, running, unencoded, batch, queue, connections;
    double since; /* seconds since the start */
} metric_gauges;
void metrics_write(metrics *m, const metric_gauges *now, FILE *out);

#endif
