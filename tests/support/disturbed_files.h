/* Replaces the C library's system calls used by base/file.c, for the whole program. They fail or do less on demand. A
 * test includes this in one file. */
#ifndef TESTS_DISTURBED_FILES_H
#define TESTS_DISTURBED_FILES_H

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

static struct {
    void (*before)(void); /* called before read number `at`, from 0, if it is not NULL */
    long at, reads;
    size_t most;      /* bytes that a read gives; 0: all */
    int interrupts;   /* every other read fails with EINTR first */
    int error;        /* errno of every read; 0: none */
    int no_tmpfile;   /* O_TMPFILE is not supported */
    int no_proc;      /* /proc is missing */
    int rename_fails; /* with EACCES */
    int no_links;     /* linkat fails with EPERM */
} disturbed;

#pragma GCC visibility push(default)
ssize_t pread(int fd, void *to, size_t n, off_t offset)
{
    const long number = disturbed.reads++;
    if (disturbed.before && number == disturbed.at) disturbed.before();
    if (disturbed.error) return errno = disturbed.error, -1;
    if (disturbed.interrupts && number % 2 == 0) return errno = EINTR, -1;
    return syscall(SYS_pread64, fd, to, disturbed.most && n > disturbed.most ? disturbed.most : n, offset);
}

int open(const char *path, int flags, ...)
{
    va_list arguments;
    va_start(arguments, flags);
    const int mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(arguments, int) : 0;
    va_end(arguments);
    if (disturbed.no_tmpfile && (flags & O_TMPFILE) == O_TMPFILE) return errno = EOPNOTSUPP, -1;
    return (int)syscall(SYS_openat, AT_FDCWD, path, flags, mode);
}

int access(const char *path, int mode)
{
    if (disturbed.no_proc && strncmp(path, "/proc/", 6) == 0) return errno = ENOENT, -1;
    return (int)syscall(SYS_faccessat, AT_FDCWD, path, mode);
}

int rename(const char *from, const char *to)
{
    if (disturbed.rename_fails) return errno = EACCES, -1;
    return (int)syscall(SYS_renameat2, AT_FDCWD, from, AT_FDCWD, to, 0);
}

int linkat(int from_at, const char *from, int to_at, const char *to, int flags)
{
    if (disturbed.no_links) return errno = EPERM, -1;
    return (int)syscall(SYS_linkat, from_at, from, to_at, to, flags);
}
#pragma GCC visibility pop

#endif
