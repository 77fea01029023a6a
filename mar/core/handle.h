/* The library handle behind mar.h. Any number of threads use it at a time: after mar_open only its reference count
 * changes. */
#ifndef MAR_HANDLE_H
#define MAR_HANDLE_H

#include "kernels/ops.h"
#include "mar_eval.h"
#include "mar_files.h"
#include "mar_measure.h"
#include "mar_methods.h"

#include <stdatomic.h>
#include <sys/types.h>

struct mar {
    kern_device *device; /* NULL: mar_open failed */
    mar_err why;         /* reason of that failure */
    pid_t process;       /* process that opened it; a forked child has neither its threads nor its GPU */
    mar_backend backend; /* CPU or CUDA */
    uint64_t serial;     /* unique in the process, never 0 */
    mar_log_function *log;
    void *log_user;
    int allow_nonfinite; /* mar_options.allow_nonfinite */
    int seq_len;         /* mar_options.seq_len */
    int patch_size;      /* mar_options.patch_size */
    mar_weights weights; /* mar_options.weights */
    int image_width;     /* mar_options.image_size; 0: the model's own */
    int image_height;
    int int8_below;        /* mar_options.int8_below, of the heads; 0: no int8 */
    mar_dtype head_dtype;  /* kern_head_spec.dtype of the heads */
    mar_device info;       /* what mar_get_device returns */
    char arithmetic[240];  /* its field */
    char description[320]; /* what mar_backend_description returns */
    atomic_int references; /* mar_open's, and one a model or VAE */
};

void mar_retain(mar *m);
void mar_release(mar *m); /* the last reference closes the device */

/* Begins every public call that returns a status. Returns MAR_OK if this process opened the handle; else MAR_EARG. m
 * may be NULL. */
mar_status mar_check_handle(const mar *m, mar_err *err);
/* Returns MAR_OK if the pointer is not NULL, else MAR_EARG: "path is NULL". */
mar_status mar_check_given(const void *pointer, const char *name, mar_err *err);
/* Returns whether this process was forked from the one that opened the handle. Such a child frees nothing: freeing
 * would wait for threads that it does not have. */
int mar_in_forked_child(const mar *m);

/* Returns `status`. On failure, *err becomes this thread's mar_error(m). m may be NULL. */
mar_status mar_result(const mar *m, mar_status status, const mar_err *err);
/* Passes one line, without newline, to the host's log if it has one. Not called between bind and unbind of a queue. */
void mar_log(const mar *m, mar_log_level level, const char *format, ...) __attribute__((format(printf, 3, 4)));
/* Returns the seconds since some fixed point. */
double mar_now(void);

#endif
