/* Precedes the C library in a process (LD_PRELOAD) and makes its memory run out. It sees every allocation, mapping and
 * thread start of every library. Counting begins with main, since ld.so and library constructors may allocate before
 * it.
 *
 *   FAIL_AT=N          call N fails, counted from 0
 *   FAIL_LAST=1        all later calls also fail
 *   FAIL_BUDGET=BYTES  calls fail that would make the live memory exceed BYTES
 *   FAIL_THREAD=N      the start of thread N fails, counted from 0; -1: every start
 *   FAIL_COUNT=FILE    at exit the process writes "CALLS FAILURES MOST_BYTES" to FILE */
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <malloc.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

void *__libc_malloc(size_t size);
void *__libc_calloc(size_t count, size_t size);
void *__libc_realloc(void *p, size_t size);
void *__libc_memalign(size_t alignment, size_t size);
void __libc_free(void *p);

static int counting;
static long calls, failures, live, most, threads; /* atomic */
static long at = -1, last, budget = -1, failing_thread = -2;

static long number(const char *name, long without)
{
    const char *text = getenv(name);
    return text ? atol(text) : without;
}

static int fail(int error)
{
    __atomic_add_fetch(&failures, 1, __ATOMIC_RELAXED);
    errno = error;
    return 1;
}

/* Tells whether the current call, for `bytes` more bytes, must fail. */
static int fails(size_t bytes)
{
    if (!counting) return 0;
    const long n = __atomic_fetch_add(&calls, 1, __ATOMIC_RELAXED);
    const long then = __atomic_load_n(&live, __ATOMIC_RELAXED) + (long)bytes;
    const int now = (at >= 0 && (n == at || (last && n > at))) || (budget >= 0 && then > budget);
    return now && fail(ENOMEM);
}

static void add(long bytes)
{
    if (!counting) return;
    const long now = __atomic_add_fetch(&live, bytes, __ATOMIC_RELAXED);
    if (now > __atomic_load_n(&most, __ATOMIC_RELAXED)) __atomic_store_n(&most, now, __ATOMIC_RELAXED);
}

static void *noted(void *p)
{
    if (p) add((long)malloc_usable_size(p));
    return p;
}

void *malloc(size_t size)
{
    return fails(size) ? NULL : noted(__libc_malloc(size));
}

void *calloc(size_t count, size_t size)
{
    size_t bytes;
    if (__builtin_mul_overflow(count, size, &bytes) || fails(bytes)) return NULL;
    return noted(__libc_calloc(count, size));
}

void *realloc(void *old, size_t size)
{
    const size_t before = old ? malloc_usable_size(old) : 0;
    if (fails(size > before ? size - before : 0)) return NULL;
    void *p = __libc_realloc(old, size);
    if (p || size == 0) add(-(long)before);
    return noted(p);
}

void *memalign(size_t alignment, size_t size)
{
    return fails(size) ? NULL : noted(__libc_memalign(alignment, size));
}

void *aligned_alloc(size_t alignment, size_t size)
{
    return fails(size) ? NULL : noted(__libc_memalign(alignment, size));
}

int posix_memalign(void **out, size_t alignment, size_t size)
{
    void *p = fails(size) ? NULL : noted(__libc_memalign(alignment, size));
    if (p) *out = p;
    return p ? 0 : ENOMEM;
}

void free(void *p)
{
    const int error = errno;
    if (p) add(-(long)malloc_usable_size(p));
    __libc_free(p);
    errno = error;
}

void *mmap(void *address, size_t size, int protection, int flags, int fd, off_t offset)
{
    if (fails(fd < 0 ? size : 0)) return MAP_FAILED;
    void *p = (void *)syscall(SYS_mmap, address, size, protection, flags, fd, offset);
    if (p != MAP_FAILED && fd < 0) add((long)size); /* for good: few are, and munmap does not tell which */
    return p;
}

void *mmap64(void *address, size_t size, int protection, int flags, int fd, off_t offset)
{
    return mmap(address, size, protection, flags, fd, offset);
}

int pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*body)(void *), void *arg)
{
    const long n = __atomic_fetch_add(&threads, 1, __ATOMIC_RELAXED);
    int (*real)(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *);
    *(void **)&real = dlsym(RTLD_NEXT, "pthread_create");
    if (((failing_thread == -1 || n == failing_thread) && fail(EAGAIN)) || fails(0)) return EAGAIN;
    return real(thread, attributes, body, arg);
}

static void report(void)
{
    char text[96];
    const char *name = getenv("FAIL_COUNT");
    const int fd = name ? open(name, O_WRONLY | O_CREAT | O_TRUNC, 0600) : -1;
    if (fd < 0) return;
    const int length = snprintf(text, sizeof text, "%ld %ld %ld\n", calls, failures, most);
    if (write(fd, text, (size_t)length) != length) _exit(99);
    close(fd);
}

typedef int program(int argc, char **argv, char **environment);
static program *real_main;

static int counted_main(int argc, char **argv, char **environment)
{
    at = number("FAIL_AT", -1);
    last = number("FAIL_LAST", 0);
    budget = number("FAIL_BUDGET", -1);
    failing_thread = number("FAIL_THREAD", -2);
    counting = 1;
    const int status = real_main(argc, argv, environment);
    counting = 0;
    report();
    return status;
}

int __libc_start_main(program *main_of_process, int argc, char **argv, void (*init)(void), void (*fini)(void),
                      void (*rtld_fini)(void), void *stack_end)
{
    int (*real)(program *, int, char **, void (*)(void), void (*)(void), void (*)(void), void *);
    *(void **)&real = dlsym(RTLD_NEXT, "__libc_start_main");
    real_main = main_of_process;
    return real(counted_main, argc, argv, init, fini, rtld_fini, stack_end);
}
