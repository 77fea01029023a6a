/* Every allocation fails once: opening, inspecting and converting report it, release what they hold and leave
 * no file. The allocator of the whole program is replaced, which the sanitizers do too: under them this test
 * does nothing. */
#include "tests/support/support.h"

#include "mar/handle.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define DATA "tests/weights/data/"

#if defined(__has_feature)
#if __has_feature(address_sanitizer)
#define HAS_SANITIZER 1
#endif
#endif
#if defined(__SANITIZE_ADDRESS__) || !defined(__GLIBC__)
#define HAS_SANITIZER 1
#endif

#ifdef HAS_SANITIZER

int main(void)
{
    return 0;
}

#else

static long until_failure = -1; /* allocations left before one fails; -1: none does */
static long live;               /* blocks not freed */
static long failures;

void *__libc_malloc(size_t size);
void *__libc_calloc(size_t count, size_t size);
void *__libc_realloc(void *p, size_t size);
void __libc_free(void *p);

static int fails_now(void)
{
    if (until_failure < 0 || until_failure-- > 0) return 0;
    failures++;
    return 1;
}

#pragma GCC visibility push(default) /* the C library and cJSON must find these too */
void *malloc(size_t size)
{
    void *p = fails_now() ? NULL : __libc_malloc(size);
    live += p != NULL;
    return p;
}

void *calloc(size_t count, size_t size)
{
    void *p = fails_now() ? NULL : __libc_calloc(count, size);
    live += p != NULL;
    return p;
}

void *realloc(void *old, size_t size)
{
    void *p = fails_now() ? NULL : __libc_realloc(old, size);
    live += p != NULL && old == NULL;
    return p;
}

void free(void *p)
{
    live -= p != NULL;
    __libc_free(p);
}
#pragma GCC visibility pop

static mar handle;

typedef mar_status operation(const char *path, const char *out);

static mar_status open_and_close(const char *path, const char *out)
{
    wt_file *f;
    (void)out;
    mar_status status = wt_open(path, &f, &handle.err);
    if (status == MAR_OK) wt_close(f);
    return status;
}

static mar_status inspect(const char *path, const char *out)
{
    mar_report *r;
    (void)out;
    mar_status status = mar_inspect(&handle, path, 2, &r);
    if (status == MAR_OK) mar_report_free(r);
    return status;
}

static mar_status convert(const char *path, const char *out)
{
    return mar_convert(&handle, path, out, MAR_DTYPE_BF16, 2);
}

/* The first allocation fails, then only the second, and so on, until the operation gets by without the one.
 */
static void fail_each(operation *run, const char *path)
{
    char *dir = temporary_directory(), out[600];
    snprintf(out, sizeof out, "%s/out.safetensors", dir);
    mar_status status;
    long round = 0, harmless = 0;
    do {
        unlink(out);
        long before = live;
        handle.err.text[0] = 0;
        failures = 0;
        until_failure = round++;
        status = run(path, out);
        until_failure = -1;
        if (live != before) fail_msg("%s: %ld blocks leak when allocation %ld fails", path, live - before, round);
        harmless += failures && status == MAR_OK;
        if (status != MAR_OK) {
            assert_true(handle.err.text[0] != 0);
            assert_int_equal(access(out, F_OK), -1);
        }
    } while (failures);
    assert_int_equal(status, MAR_OK);
    assert_true(round > 5);
    assert_in_range(harmless, 0, 2); /* qsort and stdio do without their buffers */
    remove_directory(dir);
    free(dir);
}

static void test_open(void **state)
{
    (void)state;
    fail_each(open_and_close, DATA "dtypes.safetensors");
    fail_each(open_and_close, DATA "views.pt");
    fail_each(open_and_close, DATA "mar.pth");
}

static void test_inspect(void **state)
{
    (void)state;
    fail_each(inspect, DATA "mar.pth");
    fail_each(inspect, DATA "vae.ckpt");
}

static void test_convert(void **state)
{
    (void)state;
    fail_each(convert, DATA "mar.pth");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_open),
        cmocka_unit_test(test_inspect),
        cmocka_unit_test(test_convert),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

#endif
