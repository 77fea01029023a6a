/* mar_inspect: reports what a checkpoint contains and what keeps it from loading. mar_convert: rewrites a
 * checkpoint. */
#include "base/printable.h"
#include "kernels/int4.h"
#include "kernels/int8.h"
#include "mar/api/folder.h"
#include "mar/api/kinds.h"
#include "mar/api/load.h"
#include "mar/core/params.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
    char **text; /* [count] */
    int count, capacity;
} lines;

struct mar_report {
    const wt_kind *kind; /* NULL: unknown, or incomplete */
    void *of_file;       /* what the kind derives; NULL without it */
    lines facts, problems;
    int no_memory;
};

enum { LINE = 256, NAME = 84 }; /* bytes of a report's line, and of a name in it */

/* Writes a name or key, without its middle if it is long. Returns text. */
static const char *cut(const char *name, char text[NAME])
{
    return printable(name, text, NAME);
}

static void push_line(mar_report *r, lines *l, const char *line)
{
    if (l->count == l->capacity) {
        int capacity = l->capacity ? 2 * l->capacity : 16;
        char **grown = realloc(l->text, (size_t)capacity * sizeof *grown);
        if (!grown) {
            r->no_memory = 1;
            return;
        }
        l->text = grown;
        l->capacity = capacity;
    }
    l->text[l->count] = strdup(line);
    if (l->text[l->count])
        l->count++;
    else
        r->no_memory = 1;
}

/* Adds a line, without its middle if it is long. */
__attribute__((format(printf, 3, 4))) static void add_line(mar_report *r, lines *l, const char *format, ...)
{
    char line[LINE];
    va_list args;
    va_start(args, format);
    err_line_v(line, sizeof line, format, args);
    va_end(args);
    push_line(r, l, line);
}

static void free_lines(lines *l)
{
    for (int i = 0; i < l->count; i++) free(l->text[i]);
    free(l->text);
}

/* --- checks --------------------------------------------------------------------------------------- */

typedef struct {
    mar_report *report;
    const wt_file *f;
    char *expected; /* [wt_count(f)] 1: the tensor belongs to the model */
    mar_status status;
    mar_err *err;
} check;

/* Returns the message without its leading "path: ". A report's lines do not repeat it. */
static const char *without_path(const char *message, const char *path)
{
    char shown[ERR_TEXT_MAX]; /* name escaped as in messages */
    err_line(shown, sizeof shown, "%s: ", path);
    const size_t n = strlen(shown);
    return strncmp(message, shown, n) == 0 ? message + n : message;
}

/* Takes over the result of reading a tensor: a model that is wrong is a problem, any other error ends the report. */
static void take_result(check *c, mar_status status, const mar_err *reason)
{
    if (status == MAR_EMODEL)
        add_line(c->report, &c->report->problems, "%s", without_path(reason->text, wt_path(c->f)));
    else if (status != MAR_OK)
        c->status = err_set(c->err, status, "%s", reason->text);
}

/* Counts the NaNs and infinities of t. */
static void inspect_check_finite(check *c, const wt_tensor *t)
{
    char name[NAME];
    wt_nonfinite found = {0};
    mar_err reason = {0};
    if (c->status == MAR_OK) take_result(c, wt_count_nonfinite(c->f, t, &found, &reason), &reason);
    if (c->status == MAR_OK && found.nan + found.inf > 0)
        add_line(c->report, &c->report->problems,
                 "tensor %s: %" PRId64 " NaN and %" PRId64 " Inf among %" PRId64 " values", cut(t->name, name),
                 found.nan, found.inf, t->count);
}

enum { LOW_PIECE = 1 << 16 /* weights read at a time */ };

/* Checks that low-bit weights have scales, and that both are in range. */
static void check_low(check *c, const wt_tensor *t)
{
    const wt_tensor *scale = wt_scale_of(c->f, t);
    const int out = (int)t->shape[0], in = (int)t->shape[1], most = in < LOW_PIECE ? LOW_PIECE / in : 1;
    mar_err reason = {0};
    mar_status status = MAR_OK;
    if (t->dtype == WT_I4) inspect_check_finite(c, scale);
    if (c->status != MAR_OK || t->dtype == WT_I4) return;
    float *rows = malloc((size_t)most * (size_t)in * sizeof *rows);
    if (!rows) status = err_set(&reason, MAR_ENOMEM, "%s: out of memory", wt_path(c->f));
    for (int first = 0, n; first < out && status == MAR_OK; first += n) {
        n = out - first < most ? out - first : most;
        status = wt_load_matrix_rows(c->f, t->name, out, in, first, n, rows, &reason);
    }
    free(rows);
    take_result(c, status, &reason);
}

static int is_int8(const mar_report *r, const char *name)
{
    return r->kind->is_int8 && r->kind->is_int8(name);
}

/* Returns whether t is one of the scales of a tensor of the model. */
static int is_scale_of_expected(const check *c, const wt_tensor *t)
{
    const wt_tensor *matrix = wt_matrix_of(c->f, t);
    return matrix && c->expected[matrix - wt_at(c->f, 0)] &&
           (wt_is_float(matrix->dtype) || is_int8(c->report, matrix->name));
}

/* Checks one tensor of the model: present, of an allowed type, of the right shape, finite. */
static void check_tensor(void *user, const char *name, int rank, const int64_t *shape)
{
    check *c = user;
    lines *problems = &c->report->problems;
    char expected[128], found[256];
    mar_err reason = {0};
    wt_tensor want = {.rank = rank};
    memcpy(want.shape, shape, (size_t)rank * sizeof *shape);
    wt_shape_text(&want, expected, sizeof expected);
    const wt_tensor *t = wt_find(c->f, name);
    if (!t) {
        add_line(c->report, problems, "tensor %s is missing, expected shape %s", name, expected);
        return;
    }
    c->expected[t - wt_at(c->f, 0)] = 1;
    if (t->rank != rank || memcmp(t->shape, shape, (size_t)rank * sizeof *shape) != 0)
        add_line(c->report, problems, "tensor %s has shape %s, expected %s", name,
                 wt_shape_text(t, found, sizeof found), expected);
    else if ((t->dtype == WT_I8 || t->dtype == WT_I4) && is_int8(c->report, name))
        check_low(c, t);
    else if (wt_check_float(c->f, t, &reason) != MAR_OK)
        take_result(c, MAR_EMODEL, &reason);
    else
        inspect_check_finite(c, t);
}

/* Returns whether the tensor belongs to a training loss, such as a discriminator. No model here needs it. */
static int is_of_loss(const char *tensor)
{
    return strncmp(tensor, "loss.", 5) == 0;
}

static int ends_with(const char *name, const char *end)
{
    const size_t length = strlen(name), n = strlen(end);
    return length >= n && strcmp(name + length - n, end) == 0;
}

/* Returns whether the tensor is what programs that compute in fp8 keep beside the weights: scales of activations, and
 * ComfyUI's mark. */
static int is_of_fp8(const char *tensor)
{
    return ends_with(tensor, ".input_scale") || ends_with(tensor, ".scale_input") || strcmp(tensor, "scaled_fp8") == 0;
}

/* Returns whether a model can do without a tensor that it does not expect: one of integers, such as a version, or of a
 * type that is not read, such as a module's extra state, or one that its kind or training is known to leave. Another
 * float may be a layer of another architecture, or a scale, and so may integers where int8 weights are. */
static int is_harmless(const mar_report *r, const wt_file *f, const wt_tensor *t)
{
    return (!wt_is_float(t->dtype) && !is_int8(r, t->name)) || ends_with(t->name, "_extra_state") ||
           is_of_fp8(t->name) || is_of_loss(t->name) || (r->kind->ignores && r->kind->ignores(t->name)) ||
           (r->kind->repeats && r->kind->repeats(f, t->name));
}

/* Some entries of a file: "freqs_cis (C64), version (int), name (str) and 3 more". */
typedef struct {
    char text[LINE]; /* the first ones */
    int count;
} listing;
enum { LISTED = 3 };

static void list_entry(listing *l, const wt_tensor *t)
{
    char name[40], type[28];
    const size_t n = strlen(l->text);
    if (l->count++ >= LISTED) return;
    printable(t->name, name, sizeof name);
    printable(t->dtype == WT_UNREAD ? t->type : wt_dtype_name(t->dtype), type, sizeof type);
    snprintf(l->text + n, sizeof l->text - n, "%s%s (%s)", n ? ", " : "", name, type);
}

static void add_listing(mar_report *r, const char *what, const listing *l)
{
    if (l->count > LISTED)
        add_line(r, &r->facts, "%s: %s and %d more", what, l->text, l->count - LISTED);
    else if (l->count)
        add_line(r, &r->facts, "%s: %s", what, l->text);
}

static mar_status inspect_check_file(mar_report *r, const wt_file *f, mar_err *err)
{
    listing spare = {.count = 0};
    check c = {r, f, calloc((size_t)wt_count(f) + 1, 1), MAR_OK, err};
    if (!c.expected) return err_set(err, MAR_ENOMEM, "%s: out of memory", wt_path(f));
    r->kind->tensors(f, r->of_file, check_tensor, &c);
    for (int i = 0; i < wt_count(f); i++) {
        char shape[128], name[NAME];
        const wt_tensor *t = wt_at(f, i);
        if (c.expected[i] || is_scale_of_expected(&c, t)) continue;
        if (!is_harmless(r, f, t))
            add_line(r, &r->problems, "tensor %s %s is extra: no such tensor in this model", cut(t->name, name),
                     wt_shape_text(t, shape, sizeof shape));
        else if (t->dtype != WT_UNREAD && !is_of_loss(t->name)) /* those have lines of their own */
            list_entry(&spare, t);
    }
    add_listing(r, "not needed", &spare);
    free(c.expected);
    return c.status;
}

/* --- facts ---------------------------------------------------------------------------------------- */

enum { DTYPES = WT_UNREAD + 1, DTYPES_TEXT = 256 };

/* Writes "16 F32, 76 BF16", or "F32" if all `count` tensors are, to text. Returns text. */
static const char *dtypes_text(const int counts[DTYPES], int count, char text[DTYPES_TEXT])
{
    size_t n = 0;
    *text = '\0';
    for (int d = 0; d < DTYPES; d++)
        if (counts[d] && counts[d] == count)
            n += (size_t)snprintf(text + n, DTYPES_TEXT - n, "%s", wt_dtype_name((wt_dtype)d));
        else if (counts[d])
            n += (size_t)snprintf(text + n, DTYPES_TEXT - n, "%s%d %s", n ? ", " : "", counts[d],
                                  wt_dtype_name((wt_dtype)d));
    return text;
}

/* Returns the number of tensors, without entries that are not read. */
static int count_read(const wt_file *f)
{
    int n = 0;
    for (int i = 0; i < wt_count(f); i++) n += wt_at(f, i)->dtype != WT_UNREAD;
    return n;
}

static void add_dtypes(mar_report *r, const wt_file *f)
{
    int counts[DTYPES] = {0};
    char text[DTYPES_TEXT];
    for (int i = 0; i < wt_count(f); i++) counts[wt_at(f, i)->dtype]++;
    const int read = count_read(f);
    counts[WT_UNREAD] = 0;
    add_line(r, &r->facts, "tensors: %d (%s)", read, dtypes_text(counts, read, text));
}

/* Adds the entries of types that are not read: "not read: 5, freqs_cis (C64), version (int) and 3 more". */
static void add_unread(mar_report *r, const wt_file *f)
{
    listing unread = {.count = 0};
    for (int i = 0; i < wt_count(f); i++)
        if (wt_at(f, i)->dtype == WT_UNREAD) list_entry(&unread, wt_at(f, i));
    add_listing(r, "not read", &unread);
}

static void add_fact(void *report, const char *line)
{
    mar_report *r = report;
    add_line(r, &r->facts, "%s", line);
}

/* Adds the numbers of int8, int4 and fp8 matrices, if there are any. */
static void inspect_add_low(mar_report *r, const wt_file *f)
{
    int int8 = 0, int4 = 0, fp8 = 0, scaled = 0;
    for (int i = 0; i < wt_count(f); i++) {
        const wt_tensor *t = wt_at(f, i);
        const int is_fp8 = t->dtype == WT_F8_E4M3 || t->dtype == WT_F8_E5M2;
        fp8 += is_fp8 && t->count > 0 && !is_of_fp8(t->name);
        scaled += is_fp8 && wt_scale_of(f, t);
        if (!wt_scale_of(f, t) || !is_int8(r, t->name)) continue;
        int8 += t->dtype == WT_I8;
        int4 += t->dtype == WT_I4;
    }
    if (1u << r->kind->kind & WT_KINDS_OF_MODELS) ((family_facts *)r->of_file)->config.int8_weights = int8 > 0;
    if (int8)
        add_line(r, &r->facts, "int8 weights: %d matrices with a scale for each output channel; use: --dtype int8",
                 int8);
    if (int4)
        add_line(r, &r->facts, "int4 weights: %d matrices with a scale for each 32 of a row; use: --dtype int4", int4);
    if (fp8) add_line(r, &r->facts, "fp8 weights: %d tensors, %d with scales; they are restored", fp8, scaled);
}

static void add_metadata(mar_report *r, const wt_file *f)
{
    enum { LONG = 100 };
    for (int i = 0; i < wt_metadata_count(f); i++) {
        char name[NAME];
        const char *value, *key = cut(wt_metadata_at(f, i, &value), name);
        const size_t length = strlen(value);
        if (length > LONG)
            add_line(r, &r->facts, "metadata: %s = %.*s... (%zu bytes)", key, LONG, value, length);
        else
            add_line(r, &r->facts, "metadata: %s = %s", key, value);
    }
}

/* --- the report ------------------------------------------------------------------------------------ */

/* Adds that the file is of no known kind, with names of its tensors. */
static void add_unknown(mar_report *r, const wt_file *f)
{
    enum { SHOWN = 3 };
    char names[SHOWN * 44 + 1] = "";
    add_line(r, &r->facts, "kind: unknown");
    for (int i = 0; i < wt_count(f) && i < SHOWN; i++) {
        const size_t n = strlen(names);
        snprintf(names + n, sizeof names - n, "%s%.40s", i ? ", " : "", wt_at(f, i)->name);
    }
    add_line(r, &r->problems, "is of no known kind: its tensors are %s%s", names, wt_count(f) > SHOWN ? " ..." : "");
}

/* Adds the chosen weights of a training checkpoint, the prefix removed from names, and the tensors left out. */
static void add_training(mar_report *r, const wt_file *f)
{
    static const char *const names[] = {
        [MAR_WEIGHTS_EMA] = "ema, the averaged weights", [MAR_WEIGHTS_MODEL] = "model, those without average"};
    int n, ignored = 0;
    const mar_weights other = wt_other_weights(f);
    const char *prefix = wt_prefix(f, &n);
    if (other) add_line(r, &r->facts, "weights: %s; the file has weights %s, too", wt_set(f), names[other]);
    if (prefix) add_line(r, &r->facts, "names: without %s, which %d of %d tensors have", prefix, n, count_read(f));
    for (int i = 0; i < wt_count(f); i++) ignored += is_of_loss(wt_at(f, i)->name);
    if (r->kind && ignored) add_line(r, &r->facts, "ignored: %d tensors of the training's loss (loss.*)", ignored);
}

/* Returns MAR_EARG for heads, or for a seq_len, patch_size or weights of the handle, that do not apply to such a
 * file. */
static mar_status check_asked(const mar *m, const wt_file *f, const wt_kind *kind, int heads, mar_err *err)
{
    if (heads && !kind->has_heads)
        return err_set(err, MAR_EARG, "--heads has no effect: %s is %s %s, expected a model", wt_path(f), kind->article,
                       kind->name);
    if (m->seq_len && !kind->has_seq_len)
        return err_set(err, MAR_EARG, "--seq_len has no effect: %s is %s %s, expected a LlamaGen model", wt_path(f),
                       kind->article, kind->name);
    if (m->patch_size && !kind->has_patch_size)
        return err_set(err, MAR_EARG, "--patch_size has no effect: %s is %s %s, expected a MAR model", wt_path(f),
                       kind->article, kind->name);
    if (m->weights && !wt_set(f))
        return err_set(err, MAR_EARG, "--weights has no effect: %s has one set of weights", wt_path(f));
    return mar_check_heads(f, heads, err);
}

/* Finds the kind and the configuration. A file without a derivable configuration stays MAR_KIND_UNKNOWN, and the reason
 * is its first problem. Returns MAR_EARG for impossible heads or seq_len. */
static mar_status classify(mar_report *r, const mar *m, const wt_file *f, int heads, mar_err *err)
{
    mar_err reason = {0};
    const wt_kind *kind = mar_kind_of(f);
    if (!kind) {
        add_unknown(r, f);
        return MAR_OK;
    }
    if (kind->instead) {
        add_line(r, &r->facts, "kind: %s", kind->name);
        add_line(r, &r->problems, "is %s %s, expected %s", kind->article, kind->name, kind->instead);
        return MAR_OK;
    }
    mar_status status = check_asked(m, f, kind, heads, err);
    if (status != MAR_OK) return status;
    r->of_file = calloc(1, kind->facts_size);
    if (!r->of_file) return err_set(err, MAR_ENOMEM, "%s: out of memory for the report", wt_path(f));
    const wt_asked asked = mar_asked(m, heads);
    status = kind->derive(f, &asked, r->of_file, &reason);
    if (status != MAR_OK && kind->release) kind->release(r->of_file);
    if (status == MAR_EARG || status == MAR_ENOMEM) return err_set(err, status, "%s", reason.text);
    if (status == MAR_OK) r->kind = kind;
    add_line(r, &r->facts, "kind: %s%s", kind->name, status == MAR_OK ? "" : ", incomplete");
    if (status != MAR_OK) add_line(r, &r->problems, "%s", without_path(reason.text, wt_path(f)));
    return MAR_OK;
}

/* Adds the model's values of options that are automatic. */
static void add_defaults(mar_report *r, const mar_model_config *c)
{
    char text[256] = "", value[32], automatic[32];
    mar_params usual, own;
    mar_params_init(&usual, sizeof usual);
    own = usual;
    mar_params_take_defaults(&own, c);
    for (int i = 0; c->num_iter && i < mar_param_count(); i++) {
        const mar_param *o = mar_param_get(i);
        const size_t used = strlen(text);
        mar_param_text(o, &usual, automatic, sizeof automatic);
        if (strcmp(mar_param_text(o, &own, value, sizeof value), automatic) != 0)
            snprintf(text + used, sizeof text - used, "%s%s %s", used ? ", " : "", o->name, value);
    }
    if (*text) add_line(r, &r->facts, "defaults: %s", text);
}

static mar_status make_report(const mar *m, const wt_file *f, int heads, mar_report **out, mar_err *err)
{
    mar_report *r = calloc(1, sizeof *r);
    if (!r) return err_set(err, MAR_ENOMEM, "%s: out of memory", wt_path(f));
    char file[ERR_TEXT_MAX]; /* whole: the path is the caller's */
    err_line(file, sizeof file, "file: %s", wt_path(f));
    push_line(r, &r->facts, file);
    add_line(r, &r->facts, "format: %s", wt_format(f));
    mar_status status = classify(r, m, f, heads, err);
    add_dtypes(r, f);
    add_unread(r, f);
    add_training(r, f);
    if (r->kind) inspect_add_low(r, f);
    if (r->kind) r->kind->describe(f, r->of_file, &(wt_report){add_fact, r});
    if (r->kind && 1u << r->kind->kind & WT_KINDS_OF_MODELS) add_defaults(r, &((family_facts *)r->of_file)->config);
    add_metadata(r, f);
    if (status == MAR_OK && r->kind) status = inspect_check_file(r, f, err);
    if (status == MAR_OK && r->no_memory)
        status = err_set(err, MAR_ENOMEM, "%s: out of memory for the report", wt_path(f));
    status = wt_check_unchanged(f, status, err);
    if (status != MAR_OK)
        mar_report_free(r);
    else
        *out = r;
    return status;
}

mar_status mar_inspect(mar *m, const char *path, int heads, mar_report **out)
{
    wt_file *f;
    mar_err err = {0};
    if (out) *out = NULL;
    mar_status status = mar_check_load(m, path, out, &err);
    if (status == MAR_OK) status = mar_open_checkpoint(path, 0, m->weights, &f, &err);
    if (status != MAR_OK) return mar_result(m, status, &err);
    status = make_report(m, f, heads, out, &err);
    wt_close(f);
    return mar_result(m, status, &err);
}

void mar_report_free(mar_report *r)
{
    if (!r) return;
    if (r->kind && r->kind->release) r->kind->release(r->of_file);
    free(r->of_file);
    free_lines(&r->facts);
    free_lines(&r->problems);
    free(r);
}

mar_kind mar_report_kind(const mar_report *r)
{
    return r && r->kind ? r->kind->kind : MAR_KIND_UNKNOWN;
}

const mar_model_config *mar_report_model(const mar_report *r)
{
    const mar_kind kind = mar_report_kind(r);
    return kind != MAR_KIND_UNKNOWN && 1u << kind & WT_KINDS_OF_MODELS ? &((const family_facts *)r->of_file)->config
                                                                       : NULL;
}

const mar_vae_config *mar_report_vae(const mar_report *r)
{
    return mar_report_kind(r) == MAR_KIND_VAE ? r->of_file : NULL;
}

int mar_report_fact_count(const mar_report *r)
{
    return r ? r->facts.count : 0;
}

const char *mar_report_fact(const mar_report *r, int i)
{
    return r && i >= 0 && i < r->facts.count ? r->facts.text[i] : NULL;
}

int mar_report_problem_count(const mar_report *r)
{
    return r ? r->problems.count : 0;
}

const char *mar_report_problem(const mar_report *r, int i)
{
    return r && i >= 0 && i < r->problems.count ? r->problems.text[i] : NULL;
}

/* --- conversion ------------------------------------------------------------------------------------ */

/* Returns the output type of a floating-point tensor that does not become int8 or int4. */
static wt_dtype output_dtype(mar_dtype wanted, const wt_file *f, const wt_tensor *t)
{
    switch (wanted) {
    case MAR_DTYPE_F32:
        return WT_F32;
    case MAR_DTYPE_BF16:
    case MAR_DTYPE_INT8:
    case MAR_DTYPE_INT4:
        return WT_BF16;
    case MAR_DTYPE_F16:
        return WT_F16;
    case MAR_DTYPE_AUTO:
        break;
    }
    if (t->dtype == WT_F8_E4M3 || t->dtype == WT_F8_E5M2) return wt_scale_of(f, t) ? WT_F32 : WT_BF16; /* exact */
    return t->dtype == WT_F64 ? WT_F32 : t->dtype; /* no code computes in f64 */
}

/* The factor that smooths a matrix and the norm in front of it (kern_int8_smooth). */
typedef struct {
    const wt_tensor *matrix;
    char norm[96];
    float *factor; /* [width of the norm] */
} smoothing;

/* The tensors of the converted file. */
typedef struct {
    const wt_file *f;
    const mar_report *report;
    mar_dtype dtype;
    wt_output *tensors;          /* [count] */
    char (*names)[WT_INT8_NAME]; /* names of the scales to write */
    int count;
    smoothing *smoothed; /* [smoothed_count] */
    int smoothed_count;
} conversion;

/* Reads a tensor of the file as f32. The caller frees it. */
static mar_status inspect_read_tensor(const wt_file *f, const wt_tensor *t, float **values, mar_err *err)
{
    return wt_load_f32(f, t->name, t->rank, t->shape, values, err);
}

/* Adds the factor of a matrix with a norm in front of it. */
static mar_status add_smoothing(conversion *c, const wt_tensor *t, mar_err *err)
{
    smoothing *s = &c->smoothed[c->smoothed_count];
    char name[sizeof s->norm + 8];
    if (!is_int8(c->report, t->name) || !wt_is_float(t->dtype) || !c->report->kind->norm_of) return MAR_OK;
    if (!c->report->kind->norm_of(t->name, s->norm, sizeof s->norm)) return MAR_OK;
    snprintf(name, sizeof name, "%s.weight", s->norm);
    const wt_tensor *norm = wt_find(c->f, name);
    float *gain = NULL, *weight = NULL;
    s->matrix = t;
    s->factor = malloc(sizeof *s->factor * ((size_t)t->shape[1] + 1));
    mar_status status = s->factor ? MAR_OK : err_set(err, MAR_ENOMEM, "%s: out of memory", wt_path(c->f));
    c->smoothed_count++;
    if (status == MAR_OK) status = inspect_read_tensor(c->f, norm, &gain, err);
    if (status == MAR_OK) status = inspect_read_tensor(c->f, t, &weight, err);
    if (status == MAR_OK) kern_int8_smooth(gain, weight, (int)t->shape[0], (int)t->shape[1], s->factor);
    free(gain);
    free(weight);
    return status;
}

/* Returns the factor of a matrix, or of a norm's weight or bias; NULL if it has none. */
static const float *inspect_factor_of(const conversion *c, const wt_tensor *t)
{
    for (int i = 0; i < c->smoothed_count; i++) {
        const smoothing *s = &c->smoothed[i];
        const size_t n = strlen(s->norm);
        if (t == s->matrix) return s->factor;
        if (strncmp(t->name, s->norm, n) == 0 && (!strcmp(t->name + n, ".weight") || !strcmp(t->name + n, ".bias")))
            return s->factor;
    }
    return NULL;
}

static void inspect_put(conversion *c, const wt_tensor *t, wt_dtype dtype, wt_content content)
{
    wt_output *o = &c->tensors[c->count];
    *o = (wt_output){t->name, dtype, t->rank, {0}, c->f, t, content, inspect_factor_of(c, t)};
    memcpy(o->shape, t->shape, sizeof t->shape);
    if (content == WT_SCALES) {
        o->name = wt_scale_name(t->name, c->names[c->count], sizeof *c->names);
        o->rank = dtype == WT_F32 ? 1 : 2;
        o->shape[1] /= KERN_INT4_GROUP; /* of int4 */
    }
    c->count++;
}

/* Returns whether low-bit weights stay as they are. */
static int keeps(const conversion *c, const wt_tensor *t)
{
    if (t->dtype != WT_I8 && t->dtype != WT_I4) return 0;
    return c->dtype == MAR_DTYPE_AUTO || c->dtype == (t->dtype == WT_I8 ? MAR_DTYPE_INT8 : MAR_DTYPE_INT4);
}

typedef struct {
    const char *name;
    int found;
} name_search;

static void inspect_compare_name(void *user, const char *name, int rank, const int64_t *shape)
{
    name_search *s = user;
    (void)rank, (void)shape;
    s->found |= strcmp(name, s->name) == 0;
}

/* Returns whether the model has a tensor of this name: not all that a kind ignores is unused in each of its models. */
static int is_of_model(const mar_report *r, const wt_file *f, const char *name)
{
    name_search s = {name, 0};
    r->kind->tensors(f, r->of_file, inspect_compare_name, &s);
    return s.found;
}

static void put_tensor(conversion *c, const wt_tensor *t)
{
    const wt_dtype dtype = output_dtype(c->dtype, c->f, t);
    const wt_tensor *matrix = wt_matrix_of(c->f, t);
    const int covered = is_int8(c->report, t->name);
    if (is_harmless(c->report, c->f, t) && !is_of_model(c->report, c->f, t->name)) return;
    if (keeps(c, matrix ? matrix : t)) {
        inspect_put(c, t, t->dtype, WT_COPIED);
    } else if (matrix) {
        return;
    } else if (c->dtype == MAR_DTYPE_INT8 && covered) {
        inspect_put(c, t, WT_I8, WT_QUANTISED);
        inspect_put(c, t, WT_F32, WT_SCALES);
    } else if (c->dtype == MAR_DTYPE_INT4 && covered && t->shape[1] % KERN_INT4_GROUP == 0) {
        inspect_put(c, t, WT_I4, WT_QUANTISED);
        inspect_put(c, t, WT_BF16, WT_SCALES);
    } else if (!wt_is_float(t->dtype)) {
        inspect_put(c, t, dtype, WT_DEQUANTISED);
    } else {
        inspect_put(c, t, dtype, WT_VALUES);
    }
}

/* Logs what was written: "wrote OUT: 108 tensors (16 F32, 76 BF16, 16 I8)". */
static void log_written(const mar *m, const char *out, const conversion *c)
{
    int counts[DTYPES] = {0};
    char text[DTYPES_TEXT];
    for (int i = 0; i < c->count; i++) counts[c->tensors[i].dtype]++;
    mar_log(m, MAR_LOG_INFO, "wrote %s: %d tensors (%s)", out, c->count, dtypes_text(counts, c->count, text));
}

/* Writes the model to the file `out`. `shown` is its name, or its folder's, for the log. */
static mar_status write_converted(const mar *library, const wt_file *f, const mar_report *r, const char *out,
                                  const char *shown, mar_dtype dtype, mar_err *err)
{
    const size_t most = 2 * (size_t)wt_count(f) + 1;
    wt_pairs m = {.count = 0};
    wt_put_text(&m, "format", "pt");
    r->kind->put(r->of_file, &m);
    wt_put_text(&m, "mar.source_format", wt_format(f));
    conversion c = {.f = f, .report = r, .dtype = dtype};
    c.tensors = calloc(most, sizeof *c.tensors);
    c.names = calloc(most, sizeof *c.names);
    c.smoothed = calloc(most, sizeof *c.smoothed);
    mar_status status =
        c.tensors && c.names && c.smoothed ? MAR_OK : err_set(err, MAR_ENOMEM, "%s: out of memory", wt_path(f));
    if (status == MAR_OK && r->kind->put_more) status = r->kind->put_more(r->of_file, &m, err);
    for (int i = 0; status == MAR_OK && dtype == MAR_DTYPE_INT8 && i < wt_count(f); i++)
        status = add_smoothing(&c, wt_at(f, i), err);
    for (int i = 0; status == MAR_OK && i < wt_count(f); i++) put_tensor(&c, wt_at(f, i));
    if (status == MAR_OK)
        status = wt_save_safetensors(out, c.tensors, c.count, (const char *const(*)[2])m.pairs, m.count, err);
    wt_pairs_free(&m);
    if (status == MAR_OK) log_written(library, shown, &c);
    for (int i = 0; i < c.smoothed_count; i++) free(c.smoothed[i].factor);
    free(c.smoothed);
    free(c.tensors);
    free(c.names);
    return status;
}

/* Returns MAR_EARG for dtype int8 or int4 and a file whose kind has no such weights. */
static mar_status check_dtype(const wt_file *f, const mar_report *r, mar_dtype dtype, mar_err *err)
{
    const char *name = dtype == MAR_DTYPE_INT8 ? "int8" : "int4";
    if ((dtype != MAR_DTYPE_INT8 && dtype != MAR_DTYPE_INT4) || !r->kind || r->kind->is_int8) return MAR_OK;
    return err_set(err, MAR_EARG, "--dtype %s: %s is %s %s, expected a model, whose transformer's matrices become %s",
                   name, wt_path(f), r->kind->article, r->kind->name, name);
}

/* Returns whether the output is a folder: of one that has a tokenizer and a configuration, unless `out` names a file.
 */
static int makes_folder(const mar_report *r, const char *in, const char *out)
{
    const size_t n = strlen(out), end = strlen(".safetensors");
    return r->kind->is_folder && wt_is_folder(in) && !(n >= end && strcmp(out + n - end, ".safetensors") == 0);
}

static mar_status write_output(const mar *library, const wt_file *f, const mar_report *r, const char *in,
                               const char *out, mar_dtype dtype, mar_err *err)
{
    mar_folder_writer w;
    if (!makes_folder(r, in, out)) return write_converted(library, f, r, out, out, dtype, err);
    mar_status status = mar_folder_open(out, &w, err);
    if (status != MAR_OK) return status;
    status = write_converted(library, f, r, w.model, out, dtype, err);
    if (status == MAR_OK) status = mar_folder_commit(&w, in, err);
    if (status != MAR_OK) mar_folder_discard(&w);
    return status;
}

mar_status mar_convert(mar *m, const char *in, const char *out, mar_dtype dtype, int heads)
{
    wt_file *f;
    mar_report *r = NULL;
    mar_err err = {0};
    mar_status status = mar_check_handle(m, &err);
    if (status == MAR_OK) status = mar_check_given(in, "in", &err);
    if (status == MAR_OK) status = mar_check_given(out, "out", &err);
    if (status == MAR_OK && ((int)dtype < MAR_DTYPE_AUTO || (int)dtype > MAR_DTYPE_INT4))
        status = err_set(&err, MAR_EARG, "--dtype %d: expected auto, f32, bf16, int8, f16 or int4, which are %d to %d",
                         (int)dtype, MAR_DTYPE_AUTO, MAR_DTYPE_INT4);
    if (status == MAR_OK) status = mar_open_checkpoint(in, 0, m->weights, &f, &err);
    if (status != MAR_OK) return mar_result(m, status, &err);
    status = make_report(m, f, heads, &r, &err);
    if (status == MAR_OK && r->problems.count > 0)
        status = err_set(&err, MAR_EMODEL, "%s: %s%s", in, r->problems.text[0],
                         r->problems.count > 1 ? " (and more: see mar inspect)" : "");
    if (status == MAR_OK) status = check_dtype(f, r, dtype, &err);
    if (status == MAR_OK) status = write_output(m, f, r, in, out, dtype, &err);
    mar_report_free(r);
    wt_close(f);
    return mar_result(m, status, &err);
}
