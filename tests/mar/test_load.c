/* Loading from a path, a descriptor and memory; its progress and cancel; the host's memory for weights and working
 * memory; two handles on one file. */
#include "mar/core/vae.h"

#include "mar_measure.h"
#include "tests/support/archive.h"
#include "tests/support/brief.h"
#include "tests/support/demo.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define DATA   "tests/weights/data/"
#define GOLDEN "tests/golden/data/"

static mar_source empty_source(void)
{
    mar_source s;
    mar_source_init(&s, sizeof s);
    return s;
}

/* --- a file of PyTorch before 1.6 --------------------------------------------------------------------------------- */

static void put_int(bytes *b, int64_t value)
{
    bytes_text(b, "J");
    bytes_number(b, (uint64_t)value, 4);
}

static void put_text(bytes *b, const char *text)
{
    bytes_text(b, "X");
    bytes_number(b, strlen(text), 4);
    bytes_text(b, text);
}

static void put_tuple(bytes *b, const int64_t *numbers, int count)
{
    bytes_text(b, "(");
    for (int i = 0; i < count; i++) put_int(b, numbers[i]);
    bytes_text(b, "t");
}

/* Adds a tensor to a pickled dict. The key of its storage is its name. */
static void put_tensor(bytes *b, const wt_tensor *t)
{
    int64_t stride[WT_MAX_RANK], count = 1;
    for (int i = t->rank - 1; i >= 0; count *= t->shape[i--]) stride[i] = count;
    put_text(b, t->name);
    bytes_text(b, "ctorch._utils\n_rebuild_tensor_v2\n((");
    put_text(b, "storage");
    bytes_text(b, "ctorch\nFloatStorage\n");
    put_text(b, t->name);
    put_text(b, "cpu");
    put_int(b, t->count);
    bytes_text(b, "NtQ");
    put_int(b, 0);
    put_tuple(b, t->shape, t->rank);
    put_tuple(b, stride, t->rank);
    bytes_text(b, "\x89"
                  "ccollections\nOrderedDict\n)RtR");
}

/* Returns the file's tensors as torch.save wrote them before PyTorch 1.6. */
static bytes make_legacy(const char *path)
{
    static const char head[] = "\x80\2\x8a\n\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19." /* magic number */
                               "\x80\2M\xe9\3."                                        /* version 1001 */
                               "\x80\2}(X\15\0\0\0little_endian\x88u.";
    wt_file *f = open_weights(path);
    mar_err err = {0};
    bytes b = {0};
    bytes_put(&b, head, sizeof head - 1);
    bytes_text(&b, "\x80\2}(");
    for (int i = 0; i < wt_count(f); i++) put_tensor(&b, wt_at(f, i));
    bytes_text(&b, "u.\x80\2](");
    for (int i = 0; i < wt_count(f); i++) put_text(&b, wt_at(f, i)->name);
    bytes_text(&b, "e.");
    for (int i = 0; i < wt_count(f); i++) {
        const wt_tensor *t = wt_at(f, i);
        float *values = malloc((size_t)t->count * sizeof *values);
        assert_non_null(values);
        assert_ok(wt_read_f32(f, t, values, &err), &err);
        bytes_number(&b, (uint64_t)t->count, 8);
        bytes_put(&b, values, (size_t)t->count * sizeof *values);
        free(values);
    }
    wt_close(f);
    return b;
}

/* --- the three sources -------------------------------------------------------------------------------------------- */

/* Files of every format. */
static struct {
    const char *path;
    int heads, vae;
} files[] = {
    {GOLDEN "lazy_small.safetensors", 0, 0},   {DATA "mar.pth", 2, 0},  {NULL, 2, 0}, /* mar.pth in the older format */
    {GOLDEN "llamagen_c2i.safetensors", 0, 0}, {DATA "vae.ckpt", 0, 1}, {GOLDEN "vq.pth", 0, 1}};
enum { FILES = sizeof files / sizeof *files };

static int set_up(void **state)
{
    bytes b = make_legacy(DATA "mar.pth");
    (void)state;
    files[2].path = test_path("legacy.pth");
    bytes_to_file(&b, files[2].path);
    bytes_free(&b);
    return 0;
}

TEST_GROUP(set_up, NULL)

/* A loaded file: the one or the other. */
typedef struct {
    mar_model *model;
    mar_vae *vae;
} loaded;

static mar_status load(mar *m, const mar_source *s, int vae, loaded *out)
{
    *out = (loaded){0};
    return vae ? mar_vae_load_from(m, s, &out->vae) : mar_model_load_from(m, s, &out->model);
}

static void unload(loaded l)
{
    mar_model_free(l.model);
    mar_vae_free(l.vae);
}

enum { TOKENS_MAX = 4096 };

/* Writes a model's image to tokens, and returns their number. */
static int generate(mar *m, mar_model *model, float tokens[TOKENS_MAX])
{
    const mar_model_config *c = mar_model_get_config(model);
    const int n = c->seq_len * c->token_dim;
    const mar_params p = params_with(c->vocabulary ? "num_iter 0, cfg 2" : "num_iter 2, num_sampling_steps 2");
    mar_session *s;
    assert_in_range(n, 1, TOKENS_MAX);
    assert_library(m, mar_session_create(model, NULL, &p, 1, &s));
    assert_session(s, demo_run(s, 1));
    assert_session(s, mar_session_tokens(s, tokens));
    mar_session_free(s);
    return n;
}

/* Checks that two loaded files are the same model. */
static void assert_same(mar *m, loaded a, loaded b)
{
    if (a.vae) {
        const mar_vae_config *c = mar_vae_get_config(a.vae), *d = mar_vae_get_config(b.vae);
        assert_true(c->parameters == d->parameters && c->codebook == d->codebook && c->z_channels == d->z_channels);
        if (c->codebook)
            assert_memory_equal(mar_vae_codebook(a.vae), mar_vae_codebook(b.vae),
                                sizeof(float) * (size_t)c->codebook * (size_t)c->z_channels);
        return;
    }
    static float x[TOKENS_MAX], y[TOKENS_MAX];
    const int n = generate(m, a.model, x);
    assert_int_equal(generate(m, b.model, y), n);
    assert_memory_equal(x, y, (size_t)n * sizeof *x);
}

TEST_CASE(sources_give_the_same_model)
{
    mar *m = open_mar(MAR_DTYPE_F32, 1);
    for (int i = 0; i < FILES; i++) {
        mar_source path = empty_source(), fd = empty_source(), memory = empty_source();
        loaded a, b;
        bytes whole = bytes_from_file(files[i].path);
        path.path = files[i].path;
        fd.fd = open(files[i].path, O_RDONLY | O_CLOEXEC);
        memory.data = guarded_copy(whole.data, whole.size);
        memory.bytes = whole.size;
        path.heads = fd.heads = memory.heads = files[i].heads;
        assert_int_equal(lseek(fd.fd, 77, SEEK_SET), 77);
        assert_library(m, load(m, &path, files[i].vae, &a));
        assert_library(m, load(m, &fd, files[i].vae, &b));
        assert_int_equal(lseek(fd.fd, 0, SEEK_CUR), 77);
        assert_same(m, a, b);
        unload(b);
        assert_library(m, load(m, &memory, files[i].vae, &b));
        guarded_free(memory.data, memory.bytes); /* not needed any more */
        assert_same(m, a, b);
        unload(b);
        unload(a);
        assert_int_equal(close(fd.fd), 0);
        bytes_free(&whole);
    }
    mar_close(m);
}

/* Checks that loading `s` fails with a line that is `says`, or begins with it. */
static void assert_refused(mar *m, mar_source s, mar_status status, const char *says)
{
    loaded l;
    for (int vae = 0; vae <= 1; vae++) {
        if (load(m, &s, vae, &l) != status || strncmp(mar_error(m), says, strlen(says)) != 0)
            fail_msg("\"%s\", expected \"%s\"", mar_error(m), says);
        assert_true(!l.model && !l.vae && !strchr(mar_error(m), '\n'));
    }
}

TEST_CASE(messages_name_the_source)
{
    mar *m = open_mar(MAR_DTYPE_F32, 1);
    mar_source s = empty_source();
    char line[128];
    int ends[2];
    s.data = "GGUF and so on";
    s.bytes = 14;
    assert_refused(m, s, MAR_EFORMAT, "memory: is a GGUF file, expected safetensors or a file of torch.save");
    s.name = "models.bundle\n(mar)";
    assert_refused(m, s, MAR_EFORMAT, "models.bundle\\n(mar): is a GGUF file, ");
    s.bytes = 0;
    s.name = NULL;
    assert_refused(m, s, MAR_EFORMAT, "memory: 0 bytes that begin with \"\", expected safetensors or a file");
    s.data = NULL;
    assert_int_equal(pipe(ends), 0);
    s.fd = ends[0];
    snprintf(line, sizeof line, "fd %d: is not a regular file, but a pipe", s.fd);
    assert_refused(m, s, MAR_EIO, line);
    close(ends[0]);
    close(ends[1]);
    snprintf(line, sizeof line, "fd %d: cannot stat: Bad file descriptor", s.fd);
    assert_refused(m, s, MAR_EIO, line);
    s.fd = open("tests", O_RDONLY | O_CLOEXEC);
    s.name = "tests";
    assert_refused(m, s, MAR_EIO, "tests: is not a regular file, but a directory");
    close(s.fd);
    s.fd = open(test_path("new"), O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    s.name = "new";
    assert_refused(m, s, MAR_EIO, "new: is open for writing only, expected a file open for reading");
    close(s.fd);
    mar_close(m);
}

TEST_CASE(truncated_memory_is_refused)
{
    mar *m = open_mar(MAR_DTYPE_F32, 1);
    enum { LENGTHS = 40 };
    for (int i = 0; i < FILES; i++) {
        bytes whole = bytes_from_file(files[i].path);
        for (size_t cut = 1; cut <= LENGTHS; cut++) {
            loaded l;
            mar_source s = empty_source();
            s.bytes = whole.size - (cut < 8 ? cut : whole.size * cut / LENGTHS);
            s.data = guarded_copy(whole.data, s.bytes);
            s.heads = files[i].heads;
            const mar_status status = load(m, &s, files[i].vae, &l);
            if (status != MAR_EFORMAT || strncmp(mar_error(m), "memory: ", 8) != 0 || strchr(mar_error(m), '\n'))
                fail_msg("%s cut to %zu bytes: %s, \"%s\"", files[i].path, s.bytes, mar_status_name(status),
                         mar_error(m));
            assert_true(!l.model && !l.vae);
            guarded_free(s.data, s.bytes);
        }
        bytes_free(&whole);
    }
    mar_close(m);
}

/* --- the image encoder -------------------------------------------------------------------------------------------- */

TEST_CASE(an_encoder_is_loaded_if_asked_for)
{
    static const char *const with[] = {"demo", "weights/demo/vae.safetensors", GOLDEN "encoder.pth", GOLDEN "vq.pth"};
    mar *m = open_mar(MAR_DTYPE_F32, 1);
    loaded l;
    mar_source s = empty_source();
    for (size_t i = 0; i < 2 * sizeof with / sizeof *with; i++) {
        s.path = with[i / 2];
        s.encoder = (int)i % 2;
        assert_library(m, load(m, &s, 1, &l));
        assert_int_equal(vae_decoder_has_encoder(l.vae->decoder), s.encoder);
        unload(l);
    }
    s.path = "demo-discrete";
    s.encoder = 0;
    assert_library(m, load(m, &s, 1, &l));
    unload(l);
    s.encoder = 1;
    assert_int_equal(load(m, &s, 1, &l), MAR_EMODEL);
    assert_null(l.vae);
    assert_says(mar_error(m), "demo-discrete has no encoder");
    s.path = GOLDEN "lazy_small.safetensors";
    assert_int_equal(load(m, &s, 0, &l), MAR_EARG);
    assert_says(mar_error(m),
                "mar_source.encoder is 1: " GOLDEN "lazy_small.safetensors is a model, expected an image");
    mar_close(m);
}

/* --- progress ----------------------------------------------------------------------------------------------------- */

/* The calls of one load. */
typedef struct {
    mar *m; /* not NULL: each call makes an image with another model of this handle */
    int calls, cancel_at;
    uint64_t done, total;
} calls;

static int note_progress(void *user, uint64_t done, uint64_t total)
{
    calls *c = user;
    if (c->calls == 0) c->total = total;
    assert_true(total == c->total && done <= total && (c->calls == 0 ? done == 0 : done > c->done));
    c->done = done;
    if (c->m) {
        static float tokens[TOKENS_MAX];
        mar_model *other;
        assert_library(c->m, mar_model_load(c->m, "demo-draft", 0, &other));
        generate(c->m, other, tokens);
        mar_model_free(other);
    }
    return c->calls++ == c->cancel_at;
}

TEST_CASE(progress_reaches_the_end_or_cancels)
{
    mar *m = open_mar(MAR_DTYPE_F32, 1);
    for (int i = 0; i < FILES; i++) {
        loaded l;
        calls all = {.cancel_at = -1};
        mar_source s = empty_source();
        s.path = files[i].path;
        s.heads = files[i].heads;
        s.progress = note_progress;
        s.user = &all;
        assert_library(m, load(m, &s, files[i].vae, &l));
        unload(l);
        assert_true(all.done == all.total && all.total > 10000);
        assert_in_range(all.calls, 5, 210);
        for (int at = 0; at < all.calls; at += test_brief ? 17 : 1) {
            calls some = {.cancel_at = at};
            s.user = &some;
            assert_int_equal(load(m, &s, files[i].vae, &l), MAR_ECANCELLED);
            assert_true(!l.model && !l.vae);
            assert_int_equal(some.calls, at + 1);
            assert_says(mar_error(m), files[i].path);
            assert_says(mar_error(m), ": loading was cancelled at ");
        }
    }
    mar_close(m);
}

/* A call loads another model of the handle, and makes an image with it. */
TEST_CASE(progress_may_use_the_handle)
{
    mar *m = open_mar(MAR_DTYPE_F32, 2);
    loaded l, plain;
    calls c = {.m = m, .cancel_at = -1};
    mar_source s = empty_source();
    s.path = DATA "mar.pth";
    s.heads = 2;
    assert_library(m, load(m, &s, 0, &plain));
    s.progress = note_progress;
    s.user = &c;
    assert_library(m, load(m, &s, 0, &l));
    assert_same(m, l, plain);
    unload(l);
    unload(plain);
    mar_close(m);
}

/* --- the host's memory -------------------------------------------------------------------------------------------- */

/* Memory that is not zero at first, and counts. */
typedef struct {
    size_t now, most; /* bytes */
    long calls, fail_at;
    int unaligned;
} host_memory;

static void *host_alloc(void *user, size_t size, size_t alignment)
{
    host_memory *h = user;
    assert_true(size > 0 && alignment >= 64 && (alignment & (alignment - 1)) == 0);
    if (h->calls++ == h->fail_at) return NULL;
    char *p = aligned_alloc(alignment, (size + 8 + alignment - 1) / alignment * alignment);
    assert_non_null(p);
    memset(p, 0xff, size + 8);
    h->now += size;
    if (h->now > h->most) h->most = h->now;
    return p + (h->unaligned ? 8 : 0);
}

static void host_free(void *user, void *p, size_t size)
{
    host_memory *h = user;
    assert_non_null(p);
    assert_true(size <= h->now);
    h->now -= size;
    char *block = (char *)p - (h->unaligned ? 8 : 0);
    memset(p, 0xff, size); /* a NaN for whoever still reads it */
    free(block);
}

static mar_options host_options(host_memory *h)
{
    return (mar_options){.size = sizeof(mar_options),
                         .dtype = MAR_DTYPE_F32,
                         .backend = MAR_BACKEND_CPU,
                         .threads = 2,
                         .alloc = host_alloc,
                         .free = host_free,
                         .alloc_user = h};
}

/* Makes an image on a handle with h as its memory, or with NULL the C library's. Returns the first failure, with its
 * reason. Frees everything. */
static mar_status picture(host_memory *h, uint8_t rgb[DEMO_BYTES], char why[ERR_TEXT_MAX])
{
    mar_options o = {.size = sizeof o, .dtype = MAR_DTYPE_F32, .backend = MAR_BACKEND_CPU, .threads = 2};
    if (h) o = host_options(h);
    const mar_params p = params_with("num_iter 2, num_sampling_steps 2");
    demo d = {0};
    mar_session *s = NULL;
    mar_status status = mar_open(&o, &d.m);
    if (status == MAR_OK) status = mar_model_load(d.m, "demo", 0, &d.model);
    if (status == MAR_OK) status = mar_vae_load(d.m, "demo", &d.vae);
    if (status == MAR_OK) status = mar_session_create(d.model, d.vae, &p, 1, &s);
    snprintf(why, ERR_TEXT_MAX, "%s", mar_error(d.m));
    if (status == MAR_OK) {
        if (h) h->calls = h->fail_at = -1; /* generating allocates nothing */
        assert_session(s, demo_run(s, 1));
        assert_session(s, mar_session_images(s, rgb));
        mar_stats stats = {.size = sizeof stats};
        mar_session_get_stats(s, &stats);
        if (h) assert_int_equal(h->calls, -1);
        if (h) assert_true(h->now > stats.arena_bytes);
    }
    mar_session_free(s);
    demo_close(d);
    return status;
}

TEST_CASE(weights_and_working_memory_are_the_hosts)
{
    static uint8_t expected[DEMO_BYTES], rgb[DEMO_BYTES];
    char why[ERR_TEXT_MAX];
    host_memory h = {.fail_at = -1};
    assert_int_equal(picture(NULL, expected, why), MAR_OK);
    assert_int_equal(picture(&h, rgb, why), MAR_OK);
    assert_memory_equal(rgb, expected, sizeof rgb);
    assert_int_equal(h.now, 0);
    assert_true(h.most > 1000000);
}

/* Fails each allocation of loading and of a session once. In the end nothing is left. */
TEST_CASE(failing_host_memory_is_reported)
{
    static uint8_t rgb[DEMO_BYTES];
    char why[ERR_TEXT_MAX];
    long at = 0;
    for (mar_status status = MAR_ENOMEM; status != MAR_OK; at += test_brief ? 29 : 1) {
        host_memory h = {.fail_at = at};
        status = picture(&h, rgb, why);
        assert_int_equal(h.now, 0);
        if (status == MAR_OK) continue;
        if (status != MAR_ENOMEM || strchr(why, '\n')) fail_msg("%s: %s", mar_status_name(status), why);
        assert_says(why, "mar_options.alloc returned NULL for ");
        assert_int_equal(h.calls, at + 1);
    }
    assert_in_range(at, 100, 1000);
}

TEST_CASE(wrong_host_memory_is_refused)
{
    host_memory h = {.fail_at = -1, .unaligned = 1};
    mar_options o = host_options(&h);
    mar_model *model;
    mar *m;
    assert_int_equal(mar_open(&o, &m), MAR_OK);
    assert_int_equal(mar_model_load(m, "demo", 0, &model), MAR_EARG);
    assert_says(mar_error(m), "mar_options.alloc returned 0x");
    assert_says(mar_error(m), ", expected a multiple of 64");
    assert_int_equal(h.now, 0);
    mar_close(m);
    o.free = NULL;
    assert_int_equal(mar_open(&o, &m), MAR_EARG);
    assert_string_equal(mar_error(m), "mar_options gives alloc but not free");
    mar_close(m);
    o = host_options(&h);
    o.alloc = NULL;
    assert_int_equal(mar_open(&o, &m), MAR_EARG);
    assert_string_equal(mar_error(m), "mar_options gives free but not alloc");
    mar_close(m);
    o = host_options(&h);
    o.backend = MAR_BACKEND_CUDA;
    assert_int_equal(mar_open(&o, &m), MAR_EARG);
    assert_says(mar_error(m), "mar_options.alloc has no effect on a GPU");
    mar_close(m);
}

/* --- two handles -------------------------------------------------------------------------------------------------- */

/* Every handle allocates its own weights. Freeing one, which overwrites them, does not change the other's images. */
TEST_CASE(two_handles_share_nothing)
{
    static float before[TOKENS_MAX], after[TOKENS_MAX];
    host_memory h[2] = {{.fail_at = -1}, {.fail_at = -1}};
    mar *m[2];
    mar_model *model[2];
    for (int i = 0; i < 2; i++) {
        const mar_options o = host_options(&h[i]);
        assert_int_equal(mar_open(&o, &m[i]), MAR_OK);
        assert_library(m[i], mar_model_load(m[i], GOLDEN "lazy_small.safetensors", 0, &model[i]));
        assert_true(h[i].now > 400000);
    }
    assert_int_equal(h[0].now, h[1].now);
    const int n = generate(m[1], model[1], before);
    mar_model_free(model[0]);
    mar_close(m[0]);
    assert_int_equal(h[0].now, 0);
    assert_int_equal(generate(m[1], model[1], after), n);
    assert_memory_equal(before, after, (size_t)n * sizeof *before);
    mar_model_free(model[1]);
    mar_close(m[1]);
    assert_int_equal(h[1].now, 0);
}
