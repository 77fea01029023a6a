/* Checkpoints that change while they are read: loading, inspecting and converting end with a line that says so, never
 * with a crash, a wrong model or something left behind. */
#include "tests/support/archive.h"
#include "tests/support/disturbed_files.h"
#include "tests/support/support.h"

#include <dirent.h>
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

static void copy_file(const char *from, const char *to)
{
    bytes b = bytes_from_file(from);
    bytes_to_file(&b, to);
    bytes_free(&b);
}

/* Anew, not over: some file systems write out at once what replaces the contents of a file. */
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
    x->dir = temporary_directory();
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
    remove_directory(x->dir);
    free(x->dir);
    free(x);
    return 0;
}

static int count_files(const char *path)
{
    int n = -2; /* . and .. */
    DIR *dir = opendir(path);
    assert_non_null(dir);
    while (readdir(dir)) n++;
    closedir(dir);
    return n;
}

/* --- what is done to a file, and with it --------------------------------------------------------------- */

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

/* Other bytes, as many, and a time that differs though the clock may not have advanced. */
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

static mar_status load_model(const fixture *x, const char *path)
{
    mar_model *model = (mar_model *)1;
    const mar_status status = mar_model_load(x->m, path, 2, &model);
    if (status != MAR_OK) assert_null(model);
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
    mar_report_free(r);
    return status;
}

static mar_status convert(const fixture *x, const char *path)
{
    return mar_convert(x->m, path, x->out, MAR_DTYPE_F32, 0);
}

/* --- at each read in turn -------------------------------------------------------------------------------- */

/* The change comes before the first read, then before the second, and later at wider steps, until
 * the operation has no more. */
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

static void while_a_model_is_loaded(void **state)
{
    const fixture *x = *state;
    in_every_way(x, load_model, x->mar_safetensors);
    in_every_way(x, load_model, x->mar_pth);
}

static void while_a_vae_is_loaded(void **state)
{
    const fixture *x = *state;
    in_every_way(x, load_vae, x->vae);
}

static void while_it_is_inspected(void **state)
{
    const fixture *x = *state;
    in_every_way(x, inspect, x->mar_safetensors);
    in_every_way(x, inspect, x->vae);
}

static void while_it_is_converted(void **state)
{
    const fixture *x = *state;
    in_every_way(x, convert, x->mar_safetensors);
    in_every_way(x, convert, x->mar_pth);
}

static void between_opening_and_loading(void **state)
{
    const fixture *x = *state;
    const char *const paths[] = {x->mar_safetensors, x->mar_pth};
    for (int i = 0; i < 2; i++) {
        wt_file *f;
        float *values = (float *)1;
        mar_err err = {0};
        assert_ok(wt_open(paths[i], &f, &err), &err);
        assert_int_equal(truncate(paths[i], 45), 0);
        assert_int_equal(wt_load_f32(f, "z_proj.bias", 1, (int64_t[]){16}, &values, &err), MAR_EIO);
        assert_null(values);
        if (!strstr(err.text, ": the file changed while it was read: was ") || !strstr(err.text, " bytes, is 45"))
            fail_msg("%s", err.text);
        wt_close(f);
    }
}

static void a_read_that_fails(void **state)
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
    disturbed.most = 11; /* bytes a read, every other one interrupted: all goes on */
    disturbed.interrupts = 1;
    for (int i = 0; i < 3; i++) assert_library(x->m, all[i](x, x->mar_safetensors));
}

/* --- at any moment ------------------------------------------------------------------------------------- */

static atomic_int stop;

static void *keep_changing(void *user)
{
    const bytes *contents = user;
    for (unsigned i = 0; !atomic_load(&stop); i++) {
        const int fd = open(victim.path, O_WRONLY);
        assert_true(fd >= 0);
        if (ftruncate(fd, (off_t)(contents->size * (i % 7) / 7)) != 0) break;
        if (pwrite(fd, contents->data, contents->size, 0) < 0) break;
        close(fd);
    }
    return NULL;
}

/* Another thread cuts and writes the file all the time: what comes is the model, or one line. */
static void at_any_moment(void **state)
{
    const fixture *x = *state;
    operation *const all[] = {load_model, inspect, convert};
    const char *const paths[] = {x->mar_safetensors, x->mar_pth};
    for (int p = 0; p < 2; p++) {
        pthread_t thread;
        bytes contents = bytes_from_file(paths[p]);
        const int files = count_files(x->dir);
        victim.path = paths[p];
        atomic_store(&stop, 0);
        assert_int_equal(pthread_create(&thread, NULL, keep_changing, &contents), 0);
        for (int round = 0; round < 300; round++) {
            const mar_status status = all[round % 3](x, paths[p]);
            if (status == MAR_OK)
                unlink(x->out);
            else if (strncmp(mar_error(x->m), paths[p], strlen(paths[p])) != 0)
                fail_msg("%s", mar_error(x->m));
            assert_int_equal(count_files(x->dir), files);
        }
        atomic_store(&stop, 1);
        pthread_join(thread, NULL);
        bytes_free(&contents);
    }
}

/* --- killed ---------------------------------------------------------------------------------------------- */

static void end_at_once(void)
{
    raise(SIGKILL);
}

/* SIGKILL at each read of a conversion: nothing is left where the file system has files without a name. */
static void a_killed_conversion_leaves_nothing(void **state)
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(while_a_model_is_loaded, set_up, tear_down),
        cmocka_unit_test_setup_teardown(while_a_vae_is_loaded, set_up, tear_down),
        cmocka_unit_test_setup_teardown(while_it_is_inspected, set_up, tear_down),
        cmocka_unit_test_setup_teardown(while_it_is_converted, set_up, tear_down),
        cmocka_unit_test_setup_teardown(between_opening_and_loading, set_up, tear_down),
        cmocka_unit_test_setup_teardown(a_read_that_fails, set_up, tear_down),
        cmocka_unit_test_setup_teardown(at_any_moment, set_up, tear_down),
        cmocka_unit_test_setup_teardown(a_killed_conversion_leaves_nothing, set_up, tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
