#include "base/file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

mar_status file_map_open(const char *path, file_map *out, mar_err *err)
{
    *out = (file_map){0};
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* opening a pipe must not block */
    if (fd < 0) return err_set(err, MAR_EIO, "%s: cannot open: %s", path, strerror(errno));
    struct stat st;
    mar_status status = MAR_OK;
    if (fstat(fd, &st) != 0) {
        status = err_set(err, MAR_EIO, "%s: cannot stat: %s", path, strerror(errno));
    } else if (!S_ISREG(st.st_mode)) {
        status = err_set(err, MAR_EIO, "%s: is not a regular file", path);
    } else if (st.st_size > 0) {
        void *p = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
        if (p == MAP_FAILED)
            status =
                err_set(err, MAR_EIO, "%s: cannot map %lld bytes: %s", path, (long long)st.st_size, strerror(errno));
        else
            *out = (file_map){p, (size_t)st.st_size};
    }
    close(fd);
    return status;
}

void file_map_close(file_map *map)
{
    if (map->data) munmap((void *)(uintptr_t)map->data, map->size);
    *map = (file_map){0};
}

enum { NAMES = 10000, NAME_SIZE = sizeof ".mar-0123456789abcdef-01234567" };

/* Creates a file that was not there, in the directory that the first `directory` bytes of `path` are. Its name goes to
 * `name`, char [directory + NAME_SIZE]. Returns its descriptor, or -1. mkstemp would let only the owner read it. To
 * widen that as the umask says, the umask would have to be read, which means to set it, for all threads. */
static int create_beside(const char *path, size_t directory, char *name)
{
    static atomic_uint number;
    int fd = -1;
    for (int i = 0; i < NAMES && fd < 0 && (i == 0 || errno == EEXIST); i++) {
        snprintf(name, directory + NAME_SIZE, "%.*s.mar-%lx-%x", (int)directory, path, (unsigned long)getpid(),
                 atomic_fetch_add(&number, 1));
        fd = open(name, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    }
    return fd;
}

mar_status file_writer_open(const char *path, file_writer *out, mar_err *err)
{
    *out = (file_writer){0};
    const char *slash = strrchr(path, '/');
    const char *name = slash ? slash + 1 : path;
    const size_t directory = (size_t)(name - path);
    if (!*name) return err_set(err, MAR_EIO, "%s: is a directory, expected a file name", path);
    struct stat st;
    if (stat(path, &st) == 0 && !S_ISREG(st.st_mode)) /* the rename would put a file in place of a device or pipe */
        return err_set(err, MAR_EIO, "%s: is %s, expected a file name", path,
                       S_ISDIR(st.st_mode) ? "a directory" : "not a regular file");
    out->path = strdup(path);
    out->temporary = malloc(directory + NAME_SIZE);
    if (!out->path || !out->temporary) {
        free(out->path);
        free(out->temporary);
        *out = (file_writer){0};
        return err_set(err, MAR_ENOMEM, "%s: out of memory", path);
    }
    const int fd = create_beside(path, directory, out->temporary);
    if (fd >= 0) {
        out->stream = fdopen(fd, "wb");
        if (!out->stream) {
            const int reason = errno;
            close(fd);
            unlink(out->temporary);
            errno = reason;
        }
    }
    if (!out->stream) {
        mar_status status =
            err_set(err, errno == ENOMEM ? MAR_ENOMEM : MAR_EIO, "%s: cannot write: %s", path, strerror(errno));
        free(out->path);
        free(out->temporary);
        *out = (file_writer){0};
        return status;
    }
    return MAR_OK;
}

mar_status file_writer_commit(file_writer *w, mar_err *err)
{
    int failed = ferror(w->stream) || fflush(w->stream) != 0; /* after a failed fwrite errno still has its reason */
    if (!failed && fsync(fileno(w->stream)) != 0 && errno != EINVAL) failed = 1;
    const int reason = failed ? errno : 0;
    if (fclose(w->stream) != 0) failed = 1;
    if (reason) errno = reason;
    w->stream = NULL;
    if (!failed && rename(w->temporary, w->path) != 0) failed = 1;
    mar_status status = MAR_OK;
    if (failed)
        status = err_set(err, MAR_EIO, "%s: cannot write: %s", w->path, strerror(errno));
    else
        free(w->temporary), w->temporary = NULL;
    file_writer_discard(w);
    return status;
}

void file_writer_discard(file_writer *w)
{
    if (w->stream) fclose(w->stream);
    if (w->temporary) unlink(w->temporary);
    free(w->temporary);
    free(w->path);
    *w = (file_writer){0};
}
