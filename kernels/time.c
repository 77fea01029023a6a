#include "kernels/time.h"

#include <math.h>

typedef struct {
    void (*body)(void *arg);
    void *arg;
    int count;
} repetition;

static void repeat(void *arg)
{
    const repetition *r = arg;
    for (int i = 0; i < r->count; i++) r->body(r->arg);
}

/* Seconds of so many runs, the least of `takes`. A backend may record at the second use: hence two runs before. Beside
 * a run that takes long, neither a launch nor what was not in a cache matters, and it is the only one. */
static double time_runs(kern_queue *k, repetition r, int recorded, int takes)
{
    enum { BEFORE = 2 };
    const double is_long = 0.02;
    const kern_core_ops *core = k->device->core;
    kern_recording *recording = NULL;
    double least = INFINITY;
    for (int i = 0; i < BEFORE + takes && kern_live(k); i++) {
        double seconds = 0;
        core->finish(k); /* the laps before */
        core->lap(k, NULL);
        if (recorded)
            core->replay(k, &recording, repeat, &r);
        else
            repeat(&r);
        core->lap(k, &seconds);
        core->finish(k);
        if ((i >= BEFORE || seconds >= is_long) && seconds < least) least = seconds;
        if (seconds >= is_long) break;
    }
    core->recording_free(k, recording);
    return least;
}

double kern_time(kern_queue *k, void (*body)(void *arg), void *arg, int recorded)
{
    enum { MOST = 256, TAKES = 3 };
    const double enough = 2e-3; /* seconds, beside which one launch is little */
    repetition r = {body, arg, 1};
    const double once = time_runs(k, r, recorded, 1);
    if (!(once < enough)) return once;
    r.count = once * MOST > enough ? (int)ceil(enough / once) : MOST;
    return time_runs(k, r, recorded, TAKES) / r.count;
}
