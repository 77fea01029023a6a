/* Checkpoints that change while they are read. Loading, inspecting and converting end with a line that says so,
 * never with a crash, a wrong model or leftovers. */
#include "tests/support/archive.h"

#include "mar_files.h"
#include "tests/support/disturbed_files.h"
#include "tests/support/support.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/wait.h>

#define DATA "tests/weights/data/"

typedef struct {
    char *dir, mar_pth[600], mar_safetensors[600], vae[600], out[600];
    mar *m;
} fixture;

static bytes *seen; /* if not NULL: operations append their results here */

static void copy_file(const char *from, const char *to)
{
    bytes b = bytes_from_file(from);
    bytes_to_file(&b, to);
    bytes_free(&b);
}

/* Restores a file anew, not in place: some file systems write replaced contents of a file to disk at once. */
static void restore(const char *path, const bytes *contents)
{
    assert_int_equal(unlink(path), 0);
    bytes_to_file(contents, path);
}

static int set_up(void **state)
{
    fixture *x = calloc(1, sizeof *x);
    assert_non_null(x);
    memset(&disturbed, 0, sizeof disturbed);
    seen = NULL;
    x->dir = test_directory();
    x->m = open_mar(MAR_DTYPE_F32, 1);
    snprintf(x->mar_pth, sizeof x->mar_pth, "%s/mar.pth", x->dir);
    snprintf(x->mar_safetensors, sizeof x->mar_safetensors, "%s/mar.safetensors", x->dir);
    snprintf(x->vae, sizeof x->vae, "%s/vae.ckpt", x->dir);
    snprintf(x->out, sizeof x->out, "%s/out.safetensors", x->dir);
    copy_file(DATA "mar.pth", x->mar_pth);
    copy_file(DATA "vae.ckpt", x->vae);
    assert_library(x->m, mar_convert(x->m, x->mar_pth, x->mar_safetensors, MAR_DTYPE_BF16, 2));
    *state = x;
    return 0;
}

static int tear_down(void **state)
{
    fixture *x = *state;
    mar_close(x->m);
    free(x);
    return 0;
}

/* --- what is done to a file, and with it -------------------------------------------------------------------------- */

static struct {
    const char *path;
    const bytes *contents;
} victim;

static void cut_to_half(void)
{
    assert_int_equal(truncate(victim.path, (off_t)(victim.contents->size / 2)), 0);
}

static void cut_to_nothing(void)
{
    assert_int_equal(truncate(victim.path, 0), 0);
}

static void cut_one_byte(void)
{
    assert_int_equal(truncate(victim.path, (off_t)victim.contents->size - 1), 0);
}

static void add_one_byte(void)
{
    assert_int_equal(truncate(victim.path, (off_t)victim.contents->size + 1), 0);
}

/* Writes as many other bytes, and a time that differs even if the clock has not advanced. */
static void write_over(void)
{
    const struct timespec times[2] = {{.tv_sec = 1000000000}, {.tv_sec = 1000000000}};
    bytes other = {0};
    for (size_t i = 0; i < victim.contents->size; i++) bytes_number(&other, victim.contents->data[i] ^ 0x55, 1);
    const int fd = open(victim.path, O_WRONLY);
    assert_int_equal(write(fd, other.data, other.size), other.size);
    close(fd);
    bytes_free(&other);
    assert_int_equal(utimensat(AT_FDCWD, victim.path, times, 0), 0);
}

typedef mar_status operation(const fixture *x, const char *path);

/* Appends the tokens of a short run, which depend on every weight. */
static void see_model(const fixture *x, mar_model *model)
{
    const int label = 0;
    float tokens[4096];
    mar_params p;
    mar_session *s;
    const mar_model_config *c = mar_model_get_config(model);
    assert_in_range(c->seq_len * c->token_dim, 1, 4096);
    mar_params_init(&p, sizeof p);
    p.num_iter = 2;
    p.num_sampling_steps = 2;
    assert_library(x->m, mar_session_create(model, NULL, &p, 1, &s));
    assert_session(s, mar_session_begin(s, 0, &label, 1));
    while (!mar_session_done(s)) assert_session(s, mar_session_step(s));
    assert_session(s, mar_session_tokens(s, tokens));
    bytes_put(seen, tokens, (size_t)(c->seq_len * c->token_dim) * sizeof *tokens);
    mar_session_free(s);
}

static void see_report(const mar_report *r)
{
    bytes_number(seen, (uint64_t)mar_report_kind(r), 4);
    for (int i = 0; i < mar_report_fact_count(r); i++) bytes_text(seen, mar_report_fact(r, i));
    for (int i = 0; i < mar_report_problem_count(r); i++) bytes_text(seen, mar_report_problem(r, i));
}

static mar_status load_model(const fixture *x, const char *path)
{
    mar_model *model = (mar_model *)1;
    const mar_status status = mar_model_load(x->m, path, 2, &model);
    if (status != MAR_OK) assert_null(model);
    if (status == MAR_OK && seen) see_model(x, model);
    mar_model_free(model);
    return status;
}

static mar_status load_vae(const fixture *x, const char *path)
{
    mar_vae *vae = (mar_vae *)1;
    const mar_status status = mar_vae_load(x->m, path, &vae);
    if (status != MAR_OK) assert_null(vae);
    mar_vae_free(vae);
    return status;
}

static mar_status inspect(const fixture *x, const char *path)
{
    mar_report *r = (mar_report *)1;
    const mar_status status = mar_inspect(x->m, path, 0, &r);
    if (status != MAR_OK) assert_null(r);
    if (status == MAR_OK && seen) see_report(r);
    mar_report_free(r);
    return status;
}

static mar_status convert(const fixture *x, const char *path)
{
    const mar_status status = mar_convert(x->m, path, x->out, MAR_DTYPE_F32, 0);
    if (status == MAR_OK && seen) {
        bytes written = bytes_from_file(x->out);
        bytes_put(seen, written.data, written.size);
        bytes_free(&written);
    }
    return status;
}

/* --- at each read in turn ----------------------------------------------------------------------------------------- */

/* Changes the file before the first read, then before the second, and later at wider steps, until the operation has
 * no more reads. */
static void change_at_each_read(const fixture *x, operation *run, const char *path, void (*change)(void))
{
    bytes contents = bytes_from_file(path);
    const int files = count_files(x->dir);
    long round = 0;
    char start[700];
    snprintf(start, sizeof start, "%s: the file changed while it was read: ", path);
    victim.path = path;
    victim.contents = &contents;
    for (int changed = 1; changed; round += 1 + round / 8) {
        disturbed.before = change;
        disturbed.at = round;
        disturbed.reads = 0;
        const mar_status status = run(x, path);
        changed = disturbed.reads > round;
        disturbed.before = NULL;
        if (changed && (status != MAR_EIO || strncmp(mar_error(x->m), start, strlen(start)) != 0))
            fail_msg("%s, read %ld: %s: %s", path, round, mar_status_name(status), mar_error(x->m));
        if (!changed) assert_library(x->m, status);
        if (changed) assert_int_equal(count_files(x->dir), files);
        restore(path, &contents);
    }
    assert_true(round > 20);
    unlink(x->out);
    bytes_free(&contents);
}

static void in_every_way(const fixture *x, operation *run, const char *path)
{
    void (*const changes[])(void) = {cut_to_half, cut_to_nothing, cut_one_byte, add_one_byte, write_over};
    for (size_t i = 0; i < sizeof changes / sizeof *changes; i++) change_at_each_read(x, run, path, changes[i]);
}

TEST_WITH(while_a_model_is_loaded, set_up, tear_down)
{
    const fixture *x = *state;
    in_every_way(x, load_model, x->mar_safetensors);
    in_every_way(x, load_model, x->mar_pth);
}

TEST_WITH(while_a_vae_is_loaded, set_up, tear_down)
{
    const fixture *x = *state;
    in_every_way(x, load_vae, x->vae);
}

TEST_WITH(while_it_is_inspected, set_up, tear_down)
{
    const fixture *x = *state;
    in_every_way(x, inspect, x->mar_safetensors);
    in_every_way(x, inspect, x->vae);
}

TEST_WITH(while_it_is_converted, set_up, tear_down)
{
    const fixture *x = *state;
    in_every_way(x, convert, x->mar_safetensors);
    in_every_way(x, convert, x->mar_pth);
}

TEST_WITH(between_opening_and_loading, set_up, tear_down)
{
    const fixture *x = *state;
    const char *const paths[] = {x->mar_safetensors, x->mar_pth};
    for (int i = 0; i < 2; i++) {
        float *values = (float *)1;
        mar_err err = {0};
        wt_file *f = open_weights(paths[i]);
        assert_int_equal(truncate(paths[i], 45), 0);
        assert_int_equal(wt_load_f32(f, "z_proj.bias", 1, (int64_t[]){16}, &values, &err), MAR_EIO);
        assert_null(values);
        if (!strstr(err.text, ": the file changed while it was read: was ") || !strstr(err.text, " bytes, is 45"))
            fail_msg("%s", err.text);
        wt_close(f);
    }
}

TEST_WITH(a_read_that_fails, set_up, tear_down)
{
    const fixture *x = *state;
    operation *const all[] = {load_model, inspect, convert};
    disturbed.error = EIO;
    for (int i = 0; i < 3; i++) {
        assert_int_equal(all[i](x, x->mar_safetensors), MAR_EIO);
        assert_non_null(strstr(mar_error(x->m), "Input/output error"));
    }
    assert_int_equal(access(x->out, F_OK), -1);
    disturbed.error = 0;
    disturbed.most = 11; /* bytes a read, every other one interrupted: all must succeed */
    disturbed.interrupts = 1;
    for (int i = 0; i < 3; i++) assert_library(x->m, all[i](x, x->mar_safetensors));
}

/* --- at any moment ------------------------------------------------------------------------------------------------ */

static atomic_int stop;
static atomic_int failed; /* the thread cannot continue: cmocka's asserts are the main thread's */

static void *keep_changing(void *user)
{
    const bytes *contents = user;
    for (unsigned i = 0; !atomic_load(&stop); i++) {
        const int fd = open(victim.path, O_WRONLY);
        if (fd < 0 || ftruncate(fd, (off_t)(contents->size * (i % 7) / 7)) != 0 ||
            pwrite(fd, contents->data, contents->size, 0) != (ssize_t)contents->size)
            atomic_store(&failed, 1), atomic_store(&stop, 1);
        if (fd >= 0) close(fd);
        usleep(i * 37 % 11 * 500); /* so that some reads end before the next change */
    }
    return NULL;
}

/* Another thread cuts and writes the file, with pauses of up to 5 ms. Each operation gives the unchanged file's
 * result, bit for bit, or one line. */
TEST_WITH(at_any_moment, set_up, tear_down)
{
    const fixture *x = *state;
    operation *const all[] = {load_model, inspect, convert};
    const char *const paths[] = {x->mar_safetensors, x->mar_pth};
    for (int p = 0; p < 2; p++) {
        static bytes contents; /* static: the thread may outlive a failed assertion */
        pthread_t thread;
        contents = bytes_from_file(paths[p]);
        const int files = count_files(x->dir);
        bytes expected[3] = {0};
        int whole = 0;
        for (int i = 0; i < 3; i++) {
            seen = &expected[i];
            assert_library(x->m, all[i](x, paths[p]));
            assert_true(expected[i].size > 20);
        }
        unlink(x->out);
        victim.path = paths[p];
        atomic_store(&stop, 0);
        atomic_store(&failed, 0);
        assert_int_equal(pthread_create(&thread, NULL, keep_changing, &contents), 0);
        for (int round = 0; round < 300; round++) {
            const bytes *e = &expected[round % 3];
            bytes got = {0};
            seen = &got;
            const mar_status status = all[round % 3](x, paths[p]);
            if (status == MAR_OK) {
                if (got.size != e->size || memcmp(got.data, e->data, e->size) != 0)
                    fail_msg("%s, round %d: another model came", paths[p], round);
                unlink(x->out);
                whole++;
            } else if (strncmp(mar_error(x->m), paths[p], strlen(paths[p])) != 0) {
                fail_msg("%s", mar_error(x->m));
            }
            bytes_free(&got);
            assert_int_equal(count_files(x->dir), files);
        }
        atomic_store(&stop, 1);
        pthread_join(thread, NULL);
        assert_int_equal(atomic_load(&failed), 0);
        print_message("%d of 300 were whole\n", whole);
        seen = NULL;
        for (int i = 0; i < 3; i++) bytes_free(&expected[i]);
        bytes_free(&contents);
    }
}

/* --- killed ------------------------------------------------------------------------------------------------------- */

static void end_at_once(void)
{
    raise(SIGKILL);
}

/* Sends SIGKILL at each read of a conversion. Nothing may be left where the file system has files without a name. */
TEST_WITH(a_killed_conversion_leaves_nothing, set_up, tear_down)
{
    const fixture *x = *state;
    const int fd = open(x->dir, O_TMPFILE | O_WRONLY, 0600), files = count_files(x->dir);
    if (fd >= 0) close(fd);
    int killed = 1, hidden = 0;
    for (long at = 0; killed; at += 9) {
        const pid_t child = fork();
        assert_true(child >= 0);
        if (child == 0) {
            fixture mine = *x;
            mine.m = open_mar(MAR_DTYPE_F32, 1);
            disturbed.before = end_at_once;
            disturbed.at = at;
            disturbed.reads = 0;
            _exit(convert(&mine, x->mar_safetensors) == MAR_OK ? 0 : 1);
        }
        int status;
        assert_int_equal(waitpid(child, &status, 0), child);
        killed = WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL;
        if (killed) hidden = count_files(x->dir) - files;
        if (killed && fd >= 0) assert_int_equal(hidden, 0);
        if (!killed) assert_int_equal(status, 0);
        assert_true(at > 0 || killed);
    }
    assert_int_equal(count_files(x->dir), files + hidden + 1);
}
