#include "base/file.h"

#include <errno.h>
#include <fcntl.h>
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

mar_status file_writer_open(const char *path, file_writer *out, mar_err *err)
{
    *out = (file_writer){0};
    const char *slash = strrchr(path, '/');
    const char *name = slash ? slash + 1 : path;
    size_t dir = (size_t)(name - path), size = dir + sizeof ".mar-XXXXXX";
    if (!*name) return err_set(err, MAR_EIO, "%s: is a directory, expected a file name", path);
    struct stat st;
    if (stat(path, &st) == 0 && !S_ISREG(st.st_mode)) /* the rename would put a file in place of a device or pipe */
        return err_set(err, MAR_EIO, "%s: is %s, expected a file name", path,
                       S_ISDIR(st.st_mode) ? "a directory" : "not a regular file");
    out->path = strdup(path);
    out->temporary = malloc(size);
    if (!out->path || !out->temporary) {
        free(out->path);
        free(out->temporary);
        *out = (file_writer){0};
        return err_set(err, MAR_ENOMEM, "%s: out of memory", path);
    }
    snprintf(out->temporary, size, "%.*s.mar-XXXXXX", (int)dir, path);
    int fd = mkstemp(out->temporary);
    if (fd >= 0) {
        mode_t mask = umask(0);
        umask(mask);
        fchmod(fd, 0666 & ~mask); /* mkstemp makes 0600; give what a plain open would */
        out->stream = fdopen(fd, "wb");
        if (!out->stream) {
            close(fd);
            unlink(out->temporary);
        }
    }
    if (!out->stream) {
        mar_status status = err_set(err, MAR_EIO, "%s: cannot write: %s", path, strerror(errno));
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
