/* An allocator, in place of the C library's for the whole program, that fails when it is told to. A test includes this
 * in one file and defines `counts`. Sanitizers replace the allocator, too: HAS_SANITIZER is defined under them, and in
 * systems without glibc, and then there is none here. */
#ifndef TESTS_FAILING_ALLOCATIONS_H
#define TESTS_FAILING_ALLOCATIONS_H

#include <stddef.h>

#if defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define HAS_SANITIZER 1
#endif
#endif
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__) || !defined(__GLIBC__)
#define HAS_SANITIZER 1
#endif

#ifndef HAS_SANITIZER

static long until_failure = -1; /* allocations left before one fails; -1: none does */
static long live;               /* blocks not freed */
static long failures;

/* Whether an allocation from this address is one that may fail. */
static int counts(const void *caller);

void *__libc_malloc(size_t size);
void *__libc_calloc(size_t count, size_t size);
void *__libc_realloc(void *p, size_t size);
void *__libc_memalign(size_t alignment, size_t size);
void __libc_free(void *p);

static int fails_now(const void *caller)
{
    if (until_failure < 0 || !counts(caller) || until_failure-- > 0) return 0;
    failures++;
    return 1;
}

#pragma GCC visibility push(default) /* the C library and cJSON must find these too */
void *malloc(size_t size)
{
    void *p = fails_now(__builtin_return_address(0)) ? NULL : __libc_malloc(size);
    live += p != NULL;
    return p;
}

void *calloc(size_t count, size_t size)
{
    void *p = fails_now(__builtin_return_address(0)) ? NULL : __libc_calloc(count, size);
    live += p != NULL;
    return p;
}

void *realloc(void *old, size_t size)
{
    void *p = fails_now(__builtin_return_address(0)) ? NULL : __libc_realloc(old, size);
    live += p != NULL && old == NULL;
    return p;
}

void *aligned_alloc(size_t alignment, size_t size)
{
    void *p = fails_now(__builtin_return_address(0)) ? NULL : __libc_memalign(alignment, size);
    live += p != NULL;
    return p;
}

int posix_memalign(void **out, size_t alignment, size_t size)
{
    void *p = fails_now(__builtin_return_address(0)) ? NULL : __libc_memalign(alignment, size);
    live += p != NULL;
    if (p) *out = p;
    return p ? 0 : 12; /* ENOMEM */
}

void free(void *p)
{
    live -= p != NULL;
    __libc_free(p);
}
#pragma GCC visibility pop

#endif
#endif
