#include "base/file.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* --- reading ---------------------------------------------------------------------------------------- */

mar_status file_source_of_fd(int fd, const char *label, file_source *out, mar_err *err)
{
    struct stat st;
    *out = (file_source){.path = label, .fd = -1};
    if (fstat(fd, &st) != 0) return err_set(err, MAR_EIO, "%s: cannot stat: %s", label, strerror(errno));
    if (!S_ISREG(st.st_mode))
        return err_set(err, MAR_EIO, "%s: is not a regular file%s", label,
                       S_ISDIR(st.st_mode)    ? ", but a directory"
                       : S_ISFIFO(st.st_mode) ? ", but a pipe"
                                              : "");
    if ((fcntl(fd, F_GETFL) & O_ACCMODE) == O_WRONLY)
        return err_set(err, MAR_EIO, "%s: is open for writing only, expected a file open for reading", label);
    *out = (file_source){.path = label, .fd = fd, .borrowed = 1, .size = (uint64_t)st.st_size, .modified = st.st_mtim};
    return MAR_OK;
}

mar_status file_source_open(const char *path, file_source *out, mar_err *err)
{
    *out = (file_source){.path = path, .fd = -1};
    const int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* opening a pipe must not block */
    if (fd < 0) return err_set(err, MAR_EIO, "%s: cannot open: %s", path, strerror(errno));
    const mar_status status = file_source_of_fd(fd, path, out, err);
    if (status != MAR_OK) close(fd);
    out->borrowed = 0;
    return status;
}

file_source file_source_of_memory(const void *data, size_t size, const char *label)
{
    return (file_source){.path = label, .memory = data, .fd = -1, .size = size};
}

void file_source_close(file_source *s)
{
    if (s->fd >= 0 && !s->borrowed) close(s->fd);
    *s = (file_source){.fd = -1};
}

mar_status file_source_check(const file_source *s, mar_err *err)
{
    struct stat st;
    if (s->fd < 0) return MAR_OK;
    if (fstat(s->fd, &st) != 0) return err_set(err, MAR_EIO, "%s: cannot stat: %s", s->path, strerror(errno));
    if ((uint64_t)st.st_size != s->size)
        return err_set(err, MAR_EIO, "%s: the file changed while it was read: was %llu bytes, is %llu", s->path,
                       (unsigned long long)s->size, (unsigned long long)st.st_size);
    if (st.st_mtim.tv_sec != s->modified.tv_sec || st.st_mtim.tv_nsec != s->modified.tv_nsec)
        return err_set(err, MAR_EIO, "%s: the file changed while it was read: it was written to", s->path);
    return MAR_OK;
}

mar_status file_source_read(const file_source *s, uint64_t offset, size_t n, void *dst, mar_err *err)
{
    if (offset > s->size || n > s->size - offset)
        return err_set(err, MAR_EFORMAT, "%s: %zu bytes at %llu reach past its end at %llu", s->path, n,
                       (unsigned long long)offset, (unsigned long long)s->size);
    if (s->memory) {
        if (n) memcpy(dst, s->memory + offset, n);
        return MAR_OK;
    }
    for (uint8_t *to = dst; n > 0;) {
        const ssize_t got = pread(s->fd, to, n, (off_t)offset);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0)
            return err_set(err, MAR_EIO, "%s: cannot read %zu bytes at %llu: %s", s->path, n,
                           (unsigned long long)offset, strerror(errno));
        if (got == 0) { /* the file was longer at its opening, and may be longer again */
            const mar_status status = file_source_check(s, err);
            return status != MAR_OK ? status
                                    : err_set(err, MAR_EIO, "%s: the file changed while it was read: it ended at %llu",
                                              s->path, (unsigned long long)offset);
        }
        to += got;
        offset += (uint64_t)got;
        n -= (size_t)got;
    }
    return MAR_OK;
}

/* --- writing ---------------------------------------------------------------------------------------- */

enum {
    NAMES = 10000,
    NAME_SIZE = sizeof ".mar-0123456789abcdef-01234567",
    PROC_SIZE = sizeof "/proc/self/fd/2147483647"
};

/* Creates an unused hidden name in the writer's directory. Links the unnamed file at /proc path `unnamed` to it, or
 * with NULL creates a new file there. Returns 0 or the new file's descriptor, or -1 on failure. mkstemp would make a
 * file that only its owner can read. Reading the umask to widen that means setting it for all threads. */
static int make_hidden(file_writer *w, const char *unnamed)
{
    static atomic_uint number;
    int result = -1;
    for (int i = 0; i < NAMES && result < 0 && (i == 0 || errno == EEXIST); i++) {
        snprintf(w->temporary, w->directory + NAME_SIZE, "%.*s.mar-%lx-%x", (int)w->directory, w->path,
                 (unsigned long)getpid(), atomic_fetch_add(&number, 1));
        result = unnamed ? linkat(AT_FDCWD, unnamed, AT_FDCWD, w->temporary, AT_SYMLINK_FOLLOW)
                         : open(w->temporary, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    }
    if (result < 0) *w->temporary = '\0';
    return result;
}

/* Writes the /proc path of an open file to `name` for linkat, and returns it. */
static const char *proc_name(int fd, char name[PROC_SIZE])
{
    snprintf(name, PROC_SIZE, "/proc/self/fd/%d", fd);
    return name;
}

/* Creates a file without a name (O_TMPFILE). Returns its descriptor. Returns -1 if the file system has no such files.
 * Returns -1 also without /proc: the file could not get a name later. */
static int create_unnamed(const file_writer *w)
{
    char name[PROC_SIZE], directory[4096] = ".";
    if (w->directory >= sizeof directory) return -1;
    if (w->directory) snprintf(directory, sizeof directory, "%.*s", (int)w->directory, w->path);
    const int fd = open(directory, O_TMPFILE | O_RDWR | O_CLOEXEC, 0666);
    if (fd < 0 || access(proc_name(fd, name), F_OK) == 0) return fd;
    close(fd);
    return -1;
}

/* Syncs a file, unless the file system or the caller does without. Returns nonzero on failure, with errno. */
static int sync_file(const file_writer *w, int fd)
{
    return !w->unsynced && fsync(fd) != 0 && errno != EINVAL && errno != ENOTSUP;
}

/* Copies the unnamed file to a hidden one, where the file system has no links. Returns nonzero on failure, with errno.
 */
static int copy_to_hidden(file_writer *w)
{
    char buffer[8192];
    const int from = fileno(w->stream), to = make_hidden(w, NULL);
    off_t at = 0;
    ssize_t n, written = 0;
    if (to < 0) return -1;
    while ((n = pread(from, buffer, sizeof buffer, at)) > 0 && (written = write(to, buffer, (size_t)n)) > 0)
        at += written;
    const int failed = n != 0 || sync_file(w, to);
    return close(to) != 0 || failed;
}

/* Gives the finished file its name. Only a rename replaces an existing name, so an unnamed file gets a hidden name
 * first. Signals are blocked: a handler that ends the thread in between would leave the hidden file behind. Returns
 * nonzero on failure, with errno. */
static int publish(file_writer *w)
{
    char name[PROC_SIZE];
    int failed = 0;
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    if (!*w->temporary) {
        const char *unnamed = proc_name(fileno(w->stream), name);
        failed = linkat(AT_FDCWD, unnamed, AT_FDCWD, w->path, AT_SYMLINK_FOLLOW) != 0;
        if (failed) failed = errno == EEXIST ? make_hidden(w, unnamed) < 0 : copy_to_hidden(w);
    }
    if (!failed && *w->temporary) {
        failed = rename(w->temporary, w->path) != 0;
        const int reason = errno;
        if (failed) unlink(w->temporary);
        errno = reason;
        *w->temporary = '\0';
    }
    const int reason = errno;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    errno = reason;
    return failed;
}

mar_status file_writer_open(const char *path, file_writer *out, mar_err *err)
{
    *out = (file_writer){0};
    const char *slash = strrchr(path, '/');
    const char *name = slash ? slash + 1 : path;
    if (!*name) return err_set(err, MAR_EIO, "%s: is a directory, expected a file name", path);
    struct stat st;
    if (stat(path, &st) == 0 && !S_ISREG(st.st_mode)) /* a rename would replace a device or pipe */
        return err_set(err, MAR_EIO, "%s: is %s, expected a file name", path,
                       S_ISDIR(st.st_mode) ? "a directory" : "not a regular file");
    out->directory = (size_t)(name - path);
    out->path = strdup(path);
    out->temporary = calloc(out->directory + NAME_SIZE, 1);
    if (!out->path || !out->temporary) {
        file_writer_discard(out);
        return err_set(err, MAR_ENOMEM, "%s: out of memory", path);
    }
    int fd = create_unnamed(out);
    if (fd < 0) fd = make_hidden(out, NULL);
    if (fd >= 0) out->stream = fdopen(fd, "wb");
    if (!out->stream) {
        const int reason = errno;
        if (fd >= 0) close(fd);
        file_writer_discard(out);
        return err_set(err, reason == ENOMEM ? MAR_ENOMEM : MAR_EIO, "%s: cannot write: %s", path, strerror(reason));
    }
    return MAR_OK;
}

mar_status file_writer_commit(file_writer *w, mar_err *err)
{
    int failed = ferror(w->stream) || fflush(w->stream) != 0; /* errno is still that of a failed fwrite */
    if (!failed) failed = sync_file(w, fileno(w->stream));
    if (!failed && *w->temporary) { /* a network file system may report a full disk here */
        failed = fclose(w->stream) != 0;
        w->stream = NULL;
    }
    if (!failed) failed = publish(w);
    mar_status status = MAR_OK;
    if (failed) status = err_set(err, MAR_EIO, "%s: cannot write: %s", w->path, strerror(errno));
    file_writer_discard(w);
    return status;
}

void file_writer_discard(file_writer *w)
{
    if (w->stream) fclose(w->stream);
    if (w->temporary && *w->temporary) unlink(w->temporary);
    free(w->temporary);
    free(w->path);
    *w = (file_writer){0};
}
