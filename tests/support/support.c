#include "tests/support/support.h"

#include <dirent.h>
#include <ftw.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

wt_file *open_weights(const char *path)
{
    wt_file *f = NULL;
    mar_err err = {0};
    assert_ok(wt_open(path, &f, &err), &err);
    return f;
}

wt_file *golden_open(const char *name)
{
    char path[256];
    snprintf(path, sizeof path, "tests/golden/data/%s.safetensors", name);
    return open_weights(path);
}

float *golden_f32(const wt_file *f, const char *name, int64_t count)
{
    const wt_tensor *t = wt_find(f, name);
    if (!t) fail_msg("golden tensor %s is missing", name);
    if (count >= 0 && t->count != count)
        fail_msg("golden tensor %s has %lld values, expected %lld", name, (long long)t->count, (long long)count);
    float *values = malloc(sizeof(float) * (size_t)t->count + 1);
    mar_err err = {0};
    assert_non_null(values);
    assert_ok(wt_read_f32(f, t, values, &err), &err);
    return values;
}

void assert_values(const wt_file *f, const char *expected_path)
{
    wt_file *expected = open_weights(expected_path);
    assert_true(wt_count(expected) > 0);
    for (int i = 0; i < wt_count(expected); i++) {
        const wt_tensor *e = wt_at(expected, i), *t = wt_find(f, e->name);
        if (!t) fail_msg("%s: %s is missing", wt_path(f), e->name);
        assert_int_equal(t->rank, e->rank);
        assert_memory_equal(t->shape, e->shape, (size_t)e->rank * sizeof *e->shape);
        float *a = golden_f32(f, e->name, e->count), *b = golden_f32(expected, e->name, e->count);
        for (int64_t j = 0; j < e->count; j++)
            if (memcmp(&a[j], &b[j], sizeof *a) != 0 && !(a[j] != a[j] && b[j] != b[j]))
                fail_msg("%s: %s[%lld] is %g, expected %g", wt_path(f), e->name, (long long)j, (double)a[j],
                         (double)b[j]);
        free(a), free(b);
    }
    wt_close(expected);
}

double relative_error(const float *a, const float *b, size_t n)
{
    double difference = 0, norm = 0;
    for (size_t i = 0; i < n; i++) {
        if (!isfinite(a[i])) return INFINITY;
        difference += ((double)a[i] - b[i]) * ((double)a[i] - b[i]);
        norm += (double)b[i] * b[i];
    }
    return sqrt(difference) / (norm > 0 ? sqrt(norm) : 1);
}

double max_difference(const float *a, const float *b, size_t n)
{
    double worst = 0;
    for (size_t i = 0; i < n; i++) {
        if (!isfinite(a[i])) return INFINITY;
        worst = fmax(worst, fabs((double)a[i] - b[i]));
    }
    return worst;
}

double relative_difference(const float *a, const float *b, size_t n)
{
    double most = 0;
    for (size_t i = 0; i < n; i++) most = fmax(most, fabs((double)b[i]));
    assert_true(most > 0);
    return max_difference(a, b, n) / most;
}

mar *open_mar(mar_dtype dtype, int threads)
{
    const mar_options options = {
        .size = sizeof options, .dtype = dtype, .threads = threads, .backend = MAR_BACKEND_CPU};
    mar *m = NULL;
    mar_status status = mar_open(&options, &m);
    if ((dtype == MAR_DTYPE_BF16 || dtype == MAR_DTYPE_INT8) && status == MAR_EBACKEND) {
        mar_close(m);
        return NULL;
    }
    assert_int_equal(status, MAR_OK);
    return m;
}

mar_params plain_params(void)
{
    mar_params p;
    mar_params_init(&p, sizeof p);
    p.num_iter = 64;
    p.cfg = 1;
    return p;
}

mar_params params_set(mar_params p, const char *list)
{
    char copy[512], why[256];
    snprintf(copy, sizeof copy, "%s", list);
    for (char *rest = copy, *name; (name = strsep(&rest, ","));) {
        name += *name == ' ';
        char *text = strchr(name, ' ');
        if (!text) fail_msg("\"%s\": expected a name and a value", name);
        *text++ = '\0';
        if (mar_params_set(&p, name, text, why, sizeof why) != MAR_OK) fail_msg("%s", why);
    }
    return p;
}

mar_params params_with(const char *list)
{
    return params_set(plain_params(), list);
}

static kern_queue *enter_queue(kern_device *d)
{
    kern_queue *k = NULL;
    mar_err err = {0};
    assert_ok(d->core->queue_create(d, &k, &err), &err);
    k->core->bind(k);
    return k;
}

kern_queue *open_queue(mar_dtype dtype, int threads)
{
    kern_device *d = NULL;
    mar_err err = {0};
    const mar_status status = kern_cpu_open(dtype, threads, NULL, &d, &err);
    if ((dtype == MAR_DTYPE_BF16 || dtype == MAR_DTYPE_INT8) && status == MAR_EBACKEND) return NULL;
    assert_ok(status, &err);
    return enter_queue(d);
}

kern_queue *queue_of(const mar *m)
{
    return enter_queue(m->device);
}

void free_queue(kern_queue *k)
{
    k->core->unbind(k);
    k->core->queue_free(k);
}

void close_queue(kern_queue *k)
{
    kern_device *d = k->device;
    free_queue(k);
    d->core->close(d);
}

mar_status plain_runner(kern_queue *k, const mar_model *model, int images, int conditions, int max_tokens,
                        const mar_params *p, mar_runner *r, mar_err *err)
{
    const diff_spec spec = {.sampler = MAR_SAMPLER_DDPM, .steps = p->num_sampling_steps, .top = DIFF_TOP};
    return mar_runner_create(k, mar_masked_model_of(model), images, conditions, max_tokens, &spec, 1, p->temperature, r,
                             err);
}

void *backend_memory(kern_queue *k, size_t bytes)
{
    void *p = NULL;
    mar_err err = {0};
    assert_ok(k->core->alloc(k->device, bytes, &p, &err), &err);
    return p;
}

char *temporary_directory(void)
{
    const char *base = getenv("TMPDIR");
    char path[512];
    snprintf(path, sizeof path, "%s/mar-test-XXXXXX", base && *base ? base : "/tmp");
    assert_non_null(mkdtemp(path));
    return strdup(path);
}

static struct kept {
    struct kept *next;
    char *path; /* path of a directory or of a file in one */
} * kept;

static void remove_kept(void)
{
    while (kept) {
        struct kept *k = kept;
        kept = k->next;
        remove_directory(k->path);
        free(k->path);
        free(k);
    }
}

static char *keep(char *path)
{
    struct kept *k = malloc(sizeof *k);
    assert_non_null(k);
    if (!kept) assert_int_equal(atexit(remove_kept), 0);
    *k = (struct kept){kept, path};
    return (kept = k)->path;
}

char *test_directory(void)
{
    return keep(temporary_directory());
}

char *test_path(const char *file)
{
    char *path;
    assert_true(asprintf(&path, "%s/%s", test_directory(), file) > 0);
    return keep(path);
}

static int remove_entry(const char *path, const struct stat *st, int type, struct FTW *ftw)
{
    (void)st, (void)type, (void)ftw;
    return remove(path);
}

void remove_directory(const char *path)
{
    nftw(path, remove_entry, 16, FTW_DEPTH | FTW_PHYS);
}

int count_files(const char *directory)
{
    DIR *d = opendir(directory);
    if (!d) fail_msg("%s: cannot open", directory);
    int n = 0;
    for (struct dirent *e; (e = readdir(d));) n += strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0;
    closedir(d);
    return n;
}
