/* Every allocation fails once. Opening, inspecting, converting, and reading and writing NumPy's files report it and
 * release all that they hold. They leave no file, or the older one. The allocator of the whole program is replaced.
 * The sanitizers replace it too, so under them this test is skipped. */
#include "tests/support/support.h"

#include "mar_files.h"

#include "mar/core/handle.h"
#include "weights/npz.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define DATA "tests/weights/data/"

#define EVERY_ALLOCATION_COUNTS /* those of other libraries, too */
#include "tests/support/failing_allocations.h"

#ifndef HAS_SANITIZER

static kern_device no_device; /* reading files needs none */
static mar handle = {.device = &no_device};

static int set_process(void **state)
{
    (void)state;
    handle.process = getpid();
    return 0;
}

TEST_GROUP(set_process, NULL)

typedef mar_status operation(const char *path, const char *out);

static mar_status open_and_close(const char *path, const char *out)
{
    wt_file *f;
    mar_err err = {0};
    (void)out;
    mar_status status = wt_open(path, &f, &err);
    if (status == MAR_OK) wt_close(f);
    return mar_result(&handle, status, &err);
}

static mar_status open_folder(const char *path, const char *out)
{
    wt_file *f;
    mar_err err = {0};
    (void)out;
    mar_status status = wt_open_folder(path, MAR_WEIGHTS_AUTO, &f, &err);
    if (status == MAR_OK) wt_close(f);
    return mar_result(&handle, status, &err);
}

/* Returns the number of heads to pass: mar.pth does not give it, and other files have none. */
static int heads_of(const char *path)
{
    return strstr(path, "mar.pth") ? 2 : 0;
}

static mar_status inspect(const char *path, const char *out)
{
    mar_report *r;
    (void)out;
    mar_status status = mar_inspect(&handle, path, heads_of(path), &r);
    if (status == MAR_OK) mar_report_free(r);
    return status;
}

static mar_status convert(const char *path, const char *out)
{
    return mar_convert(&handle, path, out, MAR_DTYPE_BF16, heads_of(path));
}

/* Records the result at the handle, as for wt_open: the message is looked up there. */
static mar_status npz_result(mar_status status, const char *why)
{
    mar_err err = {0};
    if (status != MAR_OK) err_set(&err, status, "%s", why);
    return mar_result(&handle, status, &err);
}

static mar_status read_npz(const char *path, const char *out)
{
    static double numbers[20];
    char why[NPZ_WHY_MAX];
    npz *z = NULL;
    (void)out;
    mar_status status = npz_open(path, &z, why);
    if (status == MAR_OK) status = npz_read_f64(z, npz_find(z, "f64"), numbers, why);
    npz_close(z);
    return npz_result(status, why);
}

static mar_status write_npz(const char *path, const char *out)
{
    static const double numbers[20] = {1, 2, 3};
    char why[NPZ_WHY_MAX];
    npz_writer *w = NULL;
    (void)path;
    mar_status status = npz_writer_open(out, 1, &w, why);
    if (status == MAR_OK) status = npz_writer_add(w, "mu", NPZ_F64, 1, (const int64_t[]){20}, numbers, why);
    if (status == MAR_OK)
        status = npz_writer_commit(w, why);
    else
        npz_writer_discard(w);
    return npz_result(status, why);
}

/* Checks that the directory is empty, or with `older` that it has only `out`, unchanged. */
static void nothing_is_new(const char *dir, const char *out, int older)
{
    char text[4] = "";
    assert_int_equal(count_files(dir), older);
    if (!older) return;
    FILE *f = fopen(out, "rb");
    assert_non_null(f);
    assert_int_equal(fread(text, 1, sizeof text, f), 3);
    assert_string_equal(text, "old");
    fclose(f);
}

static void write_old(const char *out)
{
    FILE *f = fopen(out, "wb");
    assert_non_null(f);
    fputs("old", f);
    assert_int_equal(fclose(f), 0);
}

/* Fails the first allocation, then only the second, and so on, until the operation ends before the failing one. With
 * `last` all later ones fail, too, and the error must be MAR_ENOMEM. In every other round there is an older file in
 * the output's place. */
static void fail_in_turn(operation *run, const char *path, int last)
{
    char *dir = test_directory(), out[600];
    snprintf(out, sizeof out, "%s/out.safetensors", dir);
    mar_status status;
    long round = 0, harmless = 0;
    do {
        const int older = round % 2;
        unlink(out);
        if (older) write_old(out);
        long before = live;
        mar_result(&handle, MAR_EARG, &(mar_err){""}); /* clears the previous round's reason */
        failures = 0;
        failures_last = last;
        until_failure = round++;
        status = run(path, out);
        until_failure = -1;
        if (live != before) fail_msg("%s: %ld blocks leak when allocation %ld fails", path, live - before, round);
        harmless += failures && status == MAR_OK;
        if (status != MAR_OK) {
            assert_true(*mar_error(&handle) != 0 && !strchr(mar_error(&handle), '\n'));
            if (last && status != MAR_ENOMEM) fail_msg("%s: allocation %ld: %s", path, round, mar_error(&handle));
            nothing_is_new(dir, out, older);
        }
    } while (failures);
    assert_int_equal(status, MAR_OK);
    assert_true(round > 5);
    assert_in_range(harmless, 0, 2); /* qsort and stdio do without their buffers */
}

static void fail_each(operation *run, const char *path)
{
    fail_in_turn(run, path, 0);
    fail_in_turn(run, path, 1);
}

TEST_CASE(test_open)
{
    fail_each(open_and_close, DATA "dtypes.safetensors");
    fail_each(open_and_close, DATA "views.pt");
    fail_each(open_and_close, DATA "mar.pth");
    fail_each(open_and_close, DATA "legacy_views.pt");
    fail_each(open_and_close, DATA "llamagen_384.pt"); /* with options of the training */
}

TEST_CASE(test_open_folder)
{
    fail_each(open_folder, "tests/golden/data/t5");
    fail_each(open_folder, "tests/golden/data/t5_bin");
}

TEST_CASE(test_inspect)
{
    fail_each(inspect, DATA "mar.pth");
    fail_each(inspect, DATA "vae.ckpt");
}

TEST_CASE(test_convert)
{
    fail_each(convert, DATA "mar.pth");
}

TEST_CASE(test_npz)
{
    fail_each(read_npz, DATA "npz/deflated.npz");
    fail_each(write_npz, "");
}

#endif
