#include "mar/core/handle.h"

#include "mar/core/option.h"
#include "mar/core/sized.h"
#include "families/language.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* The process that has initialised a GPU; 0: none yet. CUDA fails in its forked children. */
static atomic_int cuda_process;

static int cuda_in_forked_child(void)
{
    const int process = atomic_load(&cuda_process);
    return process != 0 && process != (int)getpid();
}

/* Returns the number of usable GPUs. `why`, if not NULL, receives the reason if there is none. */
static int count_gpus(mar_err *why)
{
    if (!kern_cuda_open || !kern_cuda_devices || cuda_in_forked_child()) return 0;
    const int count = kern_cuda_devices(why);
    if (count > 0) atomic_store(&cuda_process, (int)getpid());
    return count;
}

/* Chooses the backend. AUTO takes a GPU if there is one: failing to use it is then an error, not a reason to compute
 * slowly. `why` receives the reason for taking the CPU if the library has CUDA. */
static mar_backend choose(mar_backend asked, mar_err *why)
{
    if (asked != MAR_BACKEND_AUTO) return asked;
    return count_gpus(why) > 0 || cuda_in_forked_child() ? MAR_BACKEND_CUDA : MAR_BACKEND_CPU;
}

static void close_device(mar *m)
{
    m->device->core->close(m->device);
    m->device = NULL;
}

static mar_status open_backend(mar *m, const mar_options *o, mar_err *err)
{
    const kern_memory memory = {o->alloc, o->free, o->alloc_user};
    switch (m->backend) {
    case MAR_BACKEND_CPU:
        if (o->tuning) return err_set(err, MAR_EARG, "--tuning has no effect on a CPU: expected --backend cuda");
        return kern_cpu_open(o->dtype, o->threads, &memory, &m->device, err);
    case MAR_BACKEND_CUDA:
        if (o->alloc)
            return err_set(err, MAR_EARG, "mar_options.alloc has no effect on a GPU: expected --backend cpu or NULL");
        if (cuda_in_forked_child())
            return err_set(
                err, MAR_EBACKEND,
                "--backend cuda: this process was forked from process %d, which uses CUDA: it works in one of "
                "them only; expected --backend cpu, or a program that is started anew",
                atomic_load(&cuda_process));
        if (kern_cuda_open) {
            mar_status status = kern_cuda_open(o->dtype, o->device, &m->device, err);
            if (status != MAR_OK) return status;
            atomic_store(&cuda_process, (int)getpid());
            if (o->tuning) status = kern_cuda_tuning(m->device, o->tuning, o->tune, err);
            if (status != MAR_OK) close_device(m);
            return status;
        }
        return err_set(err, MAR_EBACKEND,
                       "--backend cuda: this libmar was built without CUDA; build it with the preset cuda");
    default:
        return err_set(err, MAR_EARG, "--backend %d: expected auto, cpu or cuda", (int)m->backend);
    }
}

/* Checks that each option is in its range. */
static mar_status check_options(const mar_options *options, mar_err *err)
{
    for (int i = 0; i < mar_option_count(); i++) {
        const mar_status status = mar_param_check(mar_option_get(i), options, err);
        if (status != MAR_OK) return status;
    }
    if (options->tune && !options->tuning) return err_set(err, MAR_EARG, "mar_options gives tune but not tuning");
    if (options->alloc && !options->free) return err_set(err, MAR_EARG, "mar_options gives alloc but not free");
    if (options->free && !options->alloc) return err_set(err, MAR_EARG, "mar_options gives free but not alloc");
    return MAR_OK;
}

enum { INT8_BELOW = 985 }; /* the first two of 100 steps are above it */

/* Returns MAR_EARG or MAR_EBACKEND if the arithmetic of the heads does not go with that of the other products. */
static mar_status check_head(const mar *m, const mar_options *o, mar_err *err)
{
    static const char *const names[] = {[MAR_DTYPE_F32] = "f32", [MAR_DTYPE_BF16] = "bf16", [MAR_DTYPE_F16] = "f16"};
    const kern_device *d = m->device;
    const int bf16 = d->act_size != sizeof(float);
    if (o->head_dtype == MAR_DTYPE_BF16 && m->backend == MAR_BACKEND_CUDA)
        return err_set(err, MAR_EARG,
                       "--head_dtype bf16: a GPU computes heads in f16, eight times as fine at the same rate, "
                       "expected auto, f16 or f32");
    if (o->head_dtype == MAR_DTYPE_BF16 && !bf16)
        return err_set(err, o->dtype == MAR_DTYPE_F32 ? MAR_EARG : MAR_EBACKEND,
                       "--head_dtype bf16: the other products are in f32 %s, expected auto%s, f16 or f32",
                       o->dtype == MAR_DTYPE_F32 ? "with --dtype f32" : "here", d->int8 ? ", int8" : "");
    if ((o->head_dtype == MAR_DTYPE_INT8 || o->int8_below) && d->int8 && !d->int8_head)
        return err_set(err, MAR_EARG, "%s: a GPU has no int8 heads",
                       o->int8_below ? "--int8_below" : "--head_dtype int8");
    if (o->head_dtype == MAR_DTYPE_INT8 && !d->int8)
        return err_set(err, MAR_EARG,
                       "--head_dtype int8: the other products are not in int8, expected auto%s, f16 or f32",
                       bf16 && m->backend == MAR_BACKEND_CPU ? ", bf16" : "");
    if (o->int8_below && !d->int8) return err_set(err, MAR_EARG, "--int8_below needs --dtype int8");
    if (o->int8_below && o->head_dtype != MAR_DTYPE_AUTO && o->head_dtype != MAR_DTYPE_INT8)
        return err_set(err, MAR_EARG, "--int8_below has no effect with --head_dtype %s, expected auto or int8",
                       names[o->head_dtype]);
    return MAR_OK;
}

/* Returns kern_head_spec.dtype of the heads; AUTO where that means the device's operands. */
static mar_dtype head_dtype(const mar *m, mar_dtype asked)
{
    const int bf16 = m->device->act_size != sizeof(float);
    if (asked == MAR_DTYPE_F16 || (bf16 && asked == MAR_DTYPE_F32)) return asked;
    return bf16 && m->backend == MAR_BACKEND_CUDA ? MAR_DTYPE_F16 : MAR_DTYPE_AUTO;
}

/* Sets the arithmetic of the heads. */
static mar_status set_head(mar *m, const mar_options *o, mar_err *err)
{
    const mar_status status = check_head(m, o, err);
    if (status != MAR_OK) {
        close_device(m);
        return status;
    }
    const int int8 = m->device->int8_head && (o->head_dtype == MAR_DTYPE_AUTO || o->head_dtype == MAR_DTYPE_INT8);
    m->head_dtype = head_dtype(m, o->head_dtype);
    m->int8_below = !int8 ? 0 : o->int8_below ? o->int8_below : INT8_BELOW;
    return MAR_OK;
}

/* Sets the facts of the device, and its description: "cpu bf16, head f32 (avx512_bf16), 2 threads". */
static void describe(mar *m, int asked_below)
{
    static const char *const heads[] = {[MAR_DTYPE_F32] = "f32", [MAR_DTYPE_BF16] = "bf16", [MAR_DTYPE_F16] = "f16"};
    const kern_device *d = m->device;
    const char *low = kern_low_name(d);
    const int bf16 = d->act_size != sizeof(float), on_cpu = m->backend == MAR_BACKEND_CPU;
    const mar_dtype plain = bf16 ? MAR_DTYPE_BF16 : MAR_DTYPE_F32;
    const mar_dtype head = m->int8_below ? MAR_DTYPE_INT8 : m->head_dtype != MAR_DTYPE_AUTO ? m->head_dtype : plain;
    char shown[32] = "", threads[80] = "";
    m->info = (mar_device){
        .size = sizeof m->info,
        .backend = m->backend,
        .dtype = d->int8   ? MAR_DTYPE_INT8
                 : d->int4 ? MAR_DTYPE_INT4
                           : plain,
        .head_dtype = head,
        .int8_below = m->int8_below,
        .threads = d->threads,
        .threads_missing = d->threads_missing,
        .unit = d->unit,
        .arithmetic = m->arithmetic,
    };
    if (head == MAR_DTYPE_INT8 && asked_below && asked_below != INT8_BELOW)
        snprintf(shown, sizeof shown, ", head int8 below %d", asked_below);
    else if (head != m->info.dtype)
        snprintf(shown, sizeof shown, ", head %s", heads[head]);
    snprintf(m->arithmetic, sizeof m->arithmetic, "%s %s%s%s%s (%s)", on_cpu ? "cpu" : "cuda", low ? low : "",
             low ? ", " : "", bf16 ? "bf16" : "f32", shown, d->unit);
    if (on_cpu) snprintf(threads, sizeof threads, ", %d thread%s", d->threads, d->threads == 1 ? "" : "s");
    const size_t n = strlen(threads);
    if (d->threads_missing)
        snprintf(threads + n, sizeof threads - n, " (of %d; the system starts no more)",
                 d->threads + d->threads_missing);
    snprintf(m->description, sizeof m->description, "%s%s", m->arithmetic, threads);
}

static mar_status set_size(mar *m, const char *text, mar_err *err)
{
    if (!text || language_read_size(text, &m->image_width, &m->image_height)) return MAR_OK;
    return err_set(err, MAR_EARG, "--size %s: expected width and height in pixels up to %d, as 768x512",
                   *text ? text : "(empty)", LANGUAGE_SIDE_MAX);
}

mar_status mar_open(const mar_options *options, mar **out)
{
    static atomic_uint_fast64_t handles;
    mar_options all = {0};
    mar_err err = {0}, why_cpu = {0};
    if (mar_check_given(out, "out", &err) != MAR_OK) return mar_result(NULL, MAR_EARG, &err);
    *out = NULL;
    mar *m = calloc(1, sizeof *m);
    if (!m) return mar_result(NULL, err_set(&err, MAR_ENOMEM, "out of memory"), &err);
    *out = m;
    m->process = getpid();
    m->serial = atomic_fetch_add(&handles, 1) + 1;
    m->references = 1;
    mar_status status = options ? mar_sized_read(options, &all, sizeof all, "mar_options", &err) : MAR_OK;
    options = &all;
    m->log = options->log;
    m->log_user = options->log_user;
    m->allow_nonfinite = options->allow_nonfinite;
    m->seq_len = options->seq_len;
    m->patch_size = options->patch_size;
    m->weights = options->weights;
    if (status == MAR_OK) status = check_options(options, &err);
    if (status == MAR_OK) status = set_size(m, options->image_size, &err);
    if (status == MAR_OK) m->backend = choose(options->backend, &why_cpu);
    if (status == MAR_OK) status = open_backend(m, options, &err);
    if (status == MAR_OK) status = set_head(m, options, &err);
    if (status == MAR_OK) {
        describe(m, options->int8_below);
        const int explains = m->backend == MAR_BACKEND_CPU && why_cpu.text[0];
        mar_log(m, MAR_LOG_INFO, "libmar %s on %s%s%s", mar_version(), mar_backend_description(m), explains ? "; " : "",
                explains ? why_cpu.text : "");
    }
    if (status != MAR_OK) m->why = err;
    return mar_result(m, status, &err);
}

int mar_in_forked_child(const mar *m)
{
    return m->process != getpid();
}

mar_status mar_check_handle(const mar *m, mar_err *err)
{
    if (!m) return err_set(err, MAR_EARG, "the handle is NULL, expected one that mar_open has opened");
    if (!m->device) return err_set(err, MAR_EARG, "the handle was not opened: %s", m->why.text);
    if (mar_in_forked_child(m))
        return err_set(err, MAR_EARG,
                       "the handle was opened in process %ld, which this one was forked from: open another one here",
                       (long)m->process);
    return MAR_OK;
}

mar_status mar_check_given(const void *pointer, const char *name, mar_err *err)
{
    return pointer ? MAR_OK : err_set(err, MAR_EARG, "%s is NULL", name);
}

void mar_retain(mar *m)
{
    atomic_fetch_add(&m->references, 1);
}

void mar_release(mar *m)
{
    if (atomic_fetch_sub(&m->references, 1) > 1) return;
    if (m->device) m->device->core->close(m->device);
    free(m);
}

void mar_close(mar *m)
{
    if (m && !mar_in_forked_child(m)) mar_release(m);
}

/* A thread's last errors: of calls without a handle, and of the handles whose calls failed last. A program that goes on
 * with NULL after a failed load still finds the load's reason. They end with the thread and need no lock. */
enum { HANDLES_KEPT = 4 };
static _Thread_local struct {
    uint64_t serial; /* of the handle; 0: none */
    mar_err err;
} kept[1 + HANDLES_KEPT];
static _Thread_local int oldest; /* of the handles kept */

/* Returns the place of a handle's error, or -1. */
static int place_of(const mar *m)
{
    if (!m) return 0;
    for (int i = 1; i <= HANDLES_KEPT; i++)
        if (kept[i].serial == m->serial) return i;
    return -1;
}

mar_status mar_result(const mar *m, mar_status status, const mar_err *err)
{
    if (status == MAR_OK) return status;
    int i = place_of(m);
    if (i < 0) {
        i = 1 + oldest;
        oldest = (oldest + 1) % HANDLES_KEPT;
        kept[i].serial = m->serial;
    }
    kept[i].err = *err;
    return status;
}

const char *mar_error(const mar *m)
{
    const int i = place_of(m);
    return i >= 0 ? kept[i].err.text : m->why.text;
}

void mar_log(const mar *m, mar_log_level level, const char *format, ...)
{
    char line[ERR_TEXT_MAX];
    va_list arguments;
    if (!m->log) return;
    va_start(arguments, format);
    err_line_v(line, sizeof line, format, arguments);
    va_end(arguments);
    m->log(m->log_user, level, line);
}

double mar_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

const char *mar_backend_description(const mar *m)
{
    return m ? m->description : "";
}

const mar_device *mar_get_device(const mar *m)
{
    return m && m->device ? &m->info : NULL;
}

int mar_gpu_count(void)
{
    return count_gpus(NULL);
}
