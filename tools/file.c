#include "tools/file.h"

#include "tools/command.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <unistd.h>

enum { NAMES = 10000 }; /* of temporary files that are tried */

/* Creates a temporary file in the directory of `path`, with the mode that a plain open gives. Returns its descriptor and
 * its name (to be freed), or -1 with errno set. */
static int create_beside(const char *path, char **temporary)
{
    const char *slash = strrchr(path, '/');
    const int directory = slash ? (int)(slash - path) + 1 : 0;
    int fd = -1;
    for (unsigned i = 0; i < NAMES && fd < 0 && (i == 0 || errno == EEXIST); i++) {
        if (asprintf(temporary, "%.*s.mar-%lx-%x", directory, path, (unsigned long)getpid(), i) < 0) {
            *temporary = NULL;
            errno = ENOMEM;
            return -1;
        }
        fd = open(*temporary, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
        if (fd >= 0) break;
        const int reason = errno;
        free(*temporary);
        *temporary = NULL;
        errno = reason;
    }
    return fd;
}

static int write_all(int fd, const uint8_t *data, size_t size)
{
    while (size > 0) {
        ssize_t n = write(fd, data, size);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) return 1;
        data += n;
        size -= (size_t)n;
    }
    return 0;
}

/* 0, or 1 with errno set and nothing left behind. */
static int replace_file(const char *path, const uint8_t *data, size_t size)
{
    char *temporary;
    int fd = create_beside(path, &temporary);
    if (fd < 0) return 1;
    int failed = write_all(fd, data, size);
    failed = failed || (fsync(fd) != 0 && errno != EINVAL && errno != ENOTSUP); /* some file systems have none */
    int reason = errno;
    if (close(fd) != 0 && !failed) {
        failed = 1;
        reason = errno;
    }
    if (!failed && rename(temporary, path) != 0) {
        failed = 1;
        reason = errno;
    }
    if (failed) unlink(temporary);
    free(temporary);
    errno = reason;
    return failed;
}

int tool_write_file(const char *path, const void *data, size_t size)
{
    sigset_t ending, before;
    sigemptyset(&ending);
    sigaddset(&ending, SIGINT);
    sigaddset(&ending, SIGTERM);
    sigaddset(&ending, SIGHUP);
    sigprocmask(SIG_BLOCK, &ending, &before);
    const int failed = replace_file(path, data, size), reason = errno;
    sigprocmask(SIG_SETMASK, &before, NULL);
    return failed ? tool_error("%s: cannot write %zu bytes: %s", path, size, strerror(reason)) : 0;
}

static int cannot_write(const char *path)
{
    return tool_error("%s: cannot write there: %s", path, strerror(errno));
}

int tool_can_write(const char *path)
{
    char *temporary;
    int fd = create_beside(path, &temporary);
    if (fd < 0) return cannot_write(path);
    close(fd);
    unlink(temporary);
    free(temporary);
    return 0;
}

/* Takes the status of the directory that `path` is in. Returns 0, or -1 with errno set. */
static int stat_directory(const char *path, struct stat *st)
{
    char *directory = strndup(path, (size_t)(tool_base_name(path) - path));
    const int status = directory ? stat(*directory ? directory : ".", st) : -1;
    free(directory);
    return status;
}

int tool_same_path(const char *a, const char *b)
{
    struct stat in_a, in_b;
    return strcmp(tool_base_name(a), tool_base_name(b)) == 0 && stat_directory(a, &in_a) == 0 &&
           stat_directory(b, &in_b) == 0 && in_a.st_dev == in_b.st_dev && in_a.st_ino == in_b.st_ino;
}

int tool_ends_with(const char *path, const char *ending)
{
    size_t n = strlen(path), m = strlen(ending);
    return n > m && strcasecmp(path + n - m, ending) == 0;
}

int tool_can_write_as(const char *path, const char *ending)
{
    struct stat st;
    const int exists = stat(path, &st) == 0;
    if (!exists && errno != ENOENT) return cannot_write(path);
    if (ending && !tool_ends_with(path, ending)) return tool_error("%s: expected a name ending in %s", path, ending);
    if (exists && S_ISDIR(st.st_mode) && !ending) return tool_error("%s: is a directory, expected a file name", path);
    if (exists && S_ISDIR(st.st_mode))
        return tool_error("%s: is a directory, but a name ending in %s is a file", path, ending);
    if (exists && !S_ISREG(st.st_mode)) /* renaming onto /dev/x.png would replace the device */
        return tool_error("%s: is not a regular file, expected one that can be replaced", path);
    return tool_can_write(path);
}
