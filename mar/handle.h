/* The library handle behind mar.h. Any number of threads use it at a time: nothing in it changes after mar_open but the
 * count of references. */
#ifndef MAR_HANDLE_H
#define MAR_HANDLE_H

#include "kernels/ops.h"

#include <stdatomic.h>

struct mar {
    kern_device *device;
    mar_backend backend; /* CPU or CUDA */
    uint64_t serial;     /* no two handles of a process have the same, nor does any have 0 */
    mar_log_function *log;
    void *log_user;
    int allow_nonfinite;   /* mar_options.allow_nonfinite */
    atomic_int references; /* mar_open's, and one for each model and VAE */
};

void mar_retain(mar *m);
void mar_release(mar *m); /* the last one closes the device */

/* Returns `status`. If it is a failure, *err becomes what mar_error(m) says to this thread. */
mar_status mar_result(const mar *m, mar_status status, const mar_err *err);
/* Hands the host a line, without newline, if it wants any. Not called between enter and leave of a queue. */
void mar_log(const mar *m, mar_log_level level, const char *format, ...) __attribute__((format(printf, 3, 4)));
/* Seconds from some fixed point. */
double mar_now(void);

#endif
