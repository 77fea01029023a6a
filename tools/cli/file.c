#include "tools/cli/file.h"

#include "base/file.h"
#include "tools/cli/command.h"
#include "tools/cli/interruption.h"

#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <unistd.h>

char *tool_directory_of(const char *path)
{
    const char *slash = strrchr(path, '/');
    return strndup(path, slash ? (size_t)(slash + 1 - path) : 0);
}

char *tool_join(const char *directory, const char *name)
{
    char *path;
    const size_t n = strlen(directory);
    if (asprintf(&path, "%s%s%s", directory, n > 0 && directory[n - 1] == '/' ? "" : "/", name) >= 0) return path;
    tool_error("%s: out of memory", directory);
    return NULL;
}

static int write_all(int fd, const uint8_t *data, size_t size)
{
    while (size > 0) {
        ssize_t n = write(fd, data, size);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) return -1;
        data += n;
        size -= (size_t)n;
    }
    return 0;
}

ssize_t tool_read_up_to(int fd, void *data, size_t n, off_t offset)
{
    size_t used = 0;
    while (used < n) {
        const ssize_t got = pread(fd, (uint8_t *)data + used, n - used, offset + (off_t)used);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) return -1;
        if (got == 0) break;
        used += (size_t)got;
    }
    return (ssize_t)used;
}

int tool_read_at(int fd, void *data, size_t n, off_t offset)
{
    const ssize_t got = tool_read_up_to(fd, data, n, offset);
    if (got == (ssize_t)n) return 0;
    if (got >= 0) errno = 0;
    return -1;
}

int tool_write_at(int fd, const void *data, size_t n, off_t offset)
{
    for (const uint8_t *from = data; n > 0;) {
        const ssize_t written = pwrite(fd, from, n, offset);
        if (written < 0 && errno == EINTR) continue;
        if (written <= 0) return -1;
        from += written;
        offset += written;
        n -= (size_t)written;
    }
    return 0;
}

int tool_sync(int fd)
{
    return fsync(fd) == 0 || errno == EINVAL || errno == ENOTSUP ? 0 : -1; /* some file systems have no fsync */
}

static int write_file(const char *path, const void *data, size_t size, int unsynced)
{
    file_writer w;
    mar_err err;
    sigset_t before;
    interruption_hold(&before); /* the temporary file must not be left */
    mar_status status = file_writer_open(path, &w, &err);
    if (status == MAR_OK) {
        w.unsynced = unsynced;
        (void)fwrite(data, 1, size, w.stream); /* commit reports a failure */
        status = file_writer_commit(&w, &err);
    }
    interruption_release(&before);
    return status == MAR_OK ? 0 : tool_error("%s", err.text);
}

int tool_write_file(const char *path, const void *data, size_t size)
{
    return write_file(path, data, size, 0);
}

int tool_write_file_unsynced(const char *path, const void *data, size_t size)
{
    return write_file(path, data, size, 1);
}

int tool_write_output(const void *data, size_t size)
{
    return write_all(STDOUT_FILENO, data, size) == 0
               ? 0
               : tool_error("standard output: cannot write %zu bytes: %s", size, strerror(errno));
}

int tool_cannot_write(const char *path)
{
    return tool_error("%s: cannot write there: %s", path, strerror(errno));
}

int tool_can_write(const char *path)
{
    file_writer w;
    mar_err err;
    sigset_t before;
    interruption_hold(&before);
    const mar_status status = file_writer_open(path, &w, &err);
    if (status == MAR_OK) file_writer_discard(&w);
    interruption_release(&before);
    return status == MAR_OK ? 0 : tool_error("%s", err.text);
}

/* Takes the status of the directory of `path`. Returns 0, or -1 with errno set. */
static int stat_directory(const char *path, struct stat *st)
{
    char *directory = tool_directory_of(path);
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
    if (!exists && errno != ENOENT) return tool_cannot_write(path);
    if (!tool_ends_with(path, ending)) return tool_error("%s: expected a name ending in %s", path, ending);
    if (exists && S_ISDIR(st.st_mode))
        return tool_error("%s: is a directory, but a name ending in %s is a file", path, ending);
    if (exists && !S_ISREG(st.st_mode)) /* renaming onto /dev/x.png would replace the device */
        return tool_error("%s: is not a regular file, expected one that can be replaced", path);
    return tool_can_write(path);
}

int tool_can_replace(const char *path, int overwrites)
{
    struct stat st;
    if (overwrites || lstat(path, &st) != 0) return 0;
    return tool_error("%s: exists already, expected another name, or --overwrite to replace it", path);
}

/* --- reading ---------------------------------------------------------------------------------------------- */

int tool_open_file(const char *path, int flags)
{
    struct stat st;
    const int fd = open(path, flags | O_CLOEXEC | O_NONBLOCK, 0666); /* opening a pipe must not block */
    if (fd < 0) {
        if (errno == ELOOP && (flags & O_NOFOLLOW)) errno = EMLINK;
        if (errno == ENXIO || errno == EISDIR) errno = 0; /* a socket; or a pipe or directory opened for writing */
        return -1;
    }
    const int failed = fstat(fd, &st) != 0, reason = failed ? errno : 0;
    if (!failed && S_ISREG(st.st_mode)) return fd;
    close(fd);
    errno = reason;
    return -1;
}

int tool_create_file(const char *path)
{
    if (unlink(path) != 0 && errno != ENOENT) return -1;
    return open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
}

int tool_cannot_open(const char *path, const char *expected)
{
    if (errno == 0) return tool_error("%s: is not a regular file, expected %s", path, expected);
    if (errno == EMLINK) return tool_error("%s: is a link, expected %s", path, expected);
    return tool_error("%s: cannot read: %s", path, strerror(errno));
}

void *tool_read_all(int fd, const char *path, size_t most, size_t *size)
{
    struct stat st;
    char *data = NULL;
    *size = 0;
    if (fstat(fd, &st) != 0) {
        tool_error("%s: cannot read: %s", path, strerror(errno));
    } else if ((*size = (size_t)st.st_size) > most) {
        return NULL;
    } else if (!(data = malloc(*size + 1))) {
        tool_error("%s: out of memory for its %zu bytes", path, *size);
    } else if (tool_read_at(fd, data, *size, 0) != 0) {
        tool_error("%s: cannot read: %s", path, errno ? strerror(errno) : "it became shorter meanwhile");
        free(data);
        data = NULL;
    }
    if (data) data[*size] = '\0';
    return data;
}

void *tool_read_file(const char *path, int flags, int megabytes, const char *expected, size_t *size)
{
    const int fd = tool_open_file(path, O_RDONLY | flags);
    if (fd < 0) {
        tool_cannot_open(path, expected);
        return NULL;
    }
    const size_t most = (size_t)megabytes << 20;
    char *data = tool_read_all(fd, path, most, size);
    if (*size > most) tool_error("%s: has more than %d MB, expected %s", path, megabytes, expected);
    close(fd);
    return data;
}
