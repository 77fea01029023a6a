/* Replaces the C library's allocator for the whole program; it fails on demand. A test includes this in one file. Only
 * allocations of the requesting thread fail, since other threads may run beside it. Sanitizers also replace the
 * allocator. Under them, and without glibc, HAS_SANITIZER is defined and this allocator is missing. A program whose
 * tests all need it is then skipped (test.c). */
#ifndef TESTS_FAILING_ALLOCATIONS_H
#define TESTS_FAILING_ALLOCATIONS_H

#include <errno.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#if defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define HAS_SANITIZER 1
#endif
#endif
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__) || !defined(__GLIBC__)
#define HAS_SANITIZER 1
#endif

#ifndef HAS_SANITIZER

/* Of the calling thread: */
static _Thread_local long until_failure = -1; /* counted allocations left before one fails; -1: none fails */
static _Thread_local int failures_last;       /* 1: all later ones also fail, while until_failure is not -1 */
static _Thread_local long failures;
static _Thread_local long allocations; /* counted allocations */
static _Thread_local int others_fail;  /* 1: uncounted allocations also fail */
/* Of all threads, read and written atomically: */
static long live; /* blocks not freed */
static long held; /* live blocks whose allocation was counted */

/* Tells whether an allocation from this address may fail. Those of this program, including libmar, may; those of other
 * libraries may not. */
static int counts(const void *caller);
#ifndef OWN_COUNTS /* otherwise the test defines it */
static int counts(const void *caller)
{
#ifdef EVERY_ALLOCATION_COUNTS
    (void)caller;
    return 1;
#else
    extern const char __executable_start, etext;
    return (const char *)caller >= &__executable_start && (const char *)caller < &etext;
#endif
}
#endif

void *__libc_malloc(size_t size);
void *__libc_calloc(size_t count, size_t size);
void *__libc_realloc(void *p, size_t size);
void *__libc_memalign(size_t alignment, size_t size);
void __libc_free(void *p);

size_t malloc_usable_size(void *p);

/* A counted block ends with a mark, in room added behind the requested size. */
typedef uint64_t block_mark;

static char *place_of_mark(void *p)
{
    return (char *)p + malloc_usable_size(p) - sizeof(block_mark);
}

static block_mark mark_of(const void *p)
{
    return (block_mark)(uintptr_t)p ^ 0x9e3779b97f4a7c15u;
}

static int is_marked(void *p)
{
    block_mark found;
    const block_mark expected = mark_of(p);
    if (malloc_usable_size(p) < sizeof found) return 0;
    memcpy(&found, place_of_mark(p), sizeof found);
    return found == expected;
}

/* Records a new block unless p is NULL, and returns it. */
static void *noted(void *p, int counted)
{
    const block_mark mark = counted ? mark_of(p) : 0;
    if (!p) return NULL;
    if (counted || is_marked(p)) memcpy(place_of_mark(p), &mark, sizeof mark); /* erases a stale mark */
    __atomic_add_fetch(&live, 1, __ATOMIC_RELAXED);
    if (counted) __atomic_add_fetch(&held, 1, __ATOMIC_RELAXED);
    return p;
}

/* Records that a block is about to be freed. */
static void forget(void *p)
{
    const block_mark none = 0;
    __atomic_sub_fetch(&live, 1, __ATOMIC_RELAXED);
    if (!is_marked(p)) return;
    memcpy(place_of_mark(p), &none, sizeof none);
    __atomic_sub_fetch(&held, 1, __ATOMIC_RELAXED);
}

/* Tells whether the current allocation must fail. */
static int fails_now(int counted)
{
    if (!counted && !others_fail) return 0;
    allocations += counted;
    if (until_failure < 0 || until_failure-- > 0) return 0;
    if (failures_last) until_failure = 0;
    failures++;
    errno = ENOMEM;
    return 1;
}

#pragma GCC visibility push(default) /* the C library and cJSON must find these too */
void *malloc(size_t size)
{
    const int counted = counts(__builtin_return_address(0));
    if (fails_now(counted)) return NULL;
    return noted(__libc_malloc(counted ? size + sizeof(block_mark) : size), counted);
}

void *calloc(size_t count, size_t size)
{
    const int counted = counts(__builtin_return_address(0));
    size_t total;
    if (fails_now(counted) || (counted && __builtin_mul_overflow(count, size, &total))) return NULL;
    return noted(counted ? __libc_calloc(1, total + sizeof(block_mark)) : __libc_calloc(count, size), counted);
}

void *realloc(void *old, size_t size)
{
    const int counted = counts(__builtin_return_address(0));
    if (fails_now(counted)) return NULL;
    const int was_counted = old && is_marked(old);
    if (old) forget(old);
    void *p = __libc_realloc(old, counted ? size + sizeof(block_mark) : size);
    if (!p && old) noted(old, was_counted);
    return noted(p, counted);
}

void *aligned_alloc(size_t alignment, size_t size)
{
    const int counted = counts(__builtin_return_address(0));
    if (fails_now(counted)) return NULL;
    return noted(__libc_memalign(alignment, counted ? size + sizeof(block_mark) : size), counted);
}

int posix_memalign(void **out, size_t alignment, size_t size)
{
    const int counted = counts(__builtin_return_address(0));
    void *p = fails_now(counted)
                  ? NULL
                  : noted(__libc_memalign(alignment, counted ? size + sizeof(block_mark) : size), counted);
    if (p) *out = p;
    return p ? 0 : ENOMEM;
}

void free(void *p)
{
    if (!p) return;
    forget(p);
    __libc_free(p);
}
#pragma GCC visibility pop

#endif
#endif
