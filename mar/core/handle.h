/* The library handle behind mar.h. Any number of threads use it at a time: nothing in it changes after mar_open but the
 * count of references. */
#ifndef MAR_HANDLE_H
#define MAR_HANDLE_H

#include "kernels/ops.h"

#include <stdatomic.h>
#include <sys/types.h>

struct mar {
    kern_device *device; /* NULL: mar_open failed */
    mar_err why;         /* of that failure */
    pid_t process;       /* that opened it. One forked from that has neither its threads nor its GPU */
    mar_backend backend; /* CPU or CUDA */
    uint64_t serial;     /* no two handles of a process have the same, nor does any have 0 */
    mar_log_function *log;
    void *log_user;
    int allow_nonfinite; /* mar_options.allow_nonfinite */
    int seq_len;         /* mar_options.seq_len */
    int patch_size;      /* mar_options.patch_size */
    mar_weights weights; /* mar_options.weights */
    int int8_below;      /* of the heads (mar_options); 0: they have no int8 */
    int head_f32;        /* the heads of its models are f32 although the device's operands are bf16 */
    char description[sizeof((kern_device *)0)->description + 16]; /* the device's, with the head's arithmetic */
    atomic_int references;                                        /* mar_open's, and one for each model and VAE */
};

void mar_retain(mar *m);
void mar_release(mar *m); /* the last one closes the device */

/* What every public call with a status begins with. MAR_OK if the handle, which may be NULL, was opened, and by this
 * process; else MAR_EARG. */
mar_status mar_check_handle(const mar *m, mar_err *err);
/* MAR_OK if the pointer is not NULL, else MAR_EARG: "path is NULL". */
mar_status mar_check_given(const void *pointer, const char *name, mar_err *err);
/* Whether this process was forked from the one that opened the handle. Nothing is freed here then: that would mean to
 * wait for threads that are not there. */
int mar_is_elsewhere(const mar *m);

/* Returns `status`. If it is a failure, *err becomes what mar_error(m) says to this thread. m may be NULL. */
mar_status mar_result(const mar *m, mar_status status, const mar_err *err);
/* Hands the host a line, without newline, if it wants any. Not called between bind and unbind of a queue. */
void mar_log(const mar *m, mar_log_level level, const char *format, ...) __attribute__((format(printf, 3, 4)));
/* Seconds from some fixed point. */
double mar_now(void);

#endif
