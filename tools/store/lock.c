#include "tools/store/lock.h"

#include "tools/cli/command.h"
#include "tools/cli/file.h"
#include "tools/cli/interruption.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

/* Prefer locks of the open file: other code of the process may open and close the file without dropping them. */
#ifdef F_OFD_SETLK
enum { SET_LOCK = F_OFD_SETLK, GET_LOCK = F_OFD_GETLK };
#else
enum { SET_LOCK = F_SETLK, GET_LOCK = F_GETLK };
#endif

int lock_open(const char *path)
{
    const int fd = tool_open_file(path, O_RDWR | O_CREAT | O_NOFOLLOW);
    if (fd < 0) tool_cannot_open(path, "the lock of a run");
    return fd;
}

lock_status lock_take(int fd, off_t byte, int shared, const char *path)
{
    struct flock lock = {.l_type = shared ? F_RDLCK : F_WRLCK, .l_whence = SEEK_SET, .l_start = byte, .l_len = 1};
    int status;
    do status = fcntl(fd, SET_LOCK, &lock);
    while (status != 0 && errno == EINTR);
    if (status == 0) return LOCK_TAKEN;
    if (errno == EAGAIN || errno == EACCES) return LOCK_BUSY;
    tool_error("%s: cannot lock: %s; expected a file system on which processes can lock files", path, strerror(errno));
    return LOCK_FAILED;
}

void lock_release(int fd, off_t byte)
{
    struct flock lock = {.l_type = F_UNLCK, .l_whence = SEEK_SET, .l_start = byte, .l_len = 1};
    fcntl(fd, SET_LOCK, &lock);
}

off_t lock_holder(int fd, off_t first, off_t count)
{
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = first, .l_len = count};
    return fcntl(fd, GET_LOCK, &lock) == 0 && lock.l_type != F_UNLCK ? lock.l_start : -1;
}

void lock_pause(void)
{
    nanosleep(&(struct timespec){.tv_nsec = 100000000}, NULL);
}

lock_status lock_wait(int fd, off_t byte, const char *path)
{
    lock_status status;
    while ((status = lock_take(fd, byte, 0, path)) == LOCK_BUSY && !interruption_came()) lock_pause();
    return status;
}
