/* Locks on bytes of a file. They belong to the process that has opened it, and go with it however it ends. */
#ifndef TOOLS_LOCK_H
#define TOOLS_LOCK_H

#include <sys/types.h>

typedef enum { LOCK_TAKEN, LOCK_BUSY, LOCK_FAILED } lock_status;

/* Opens the file, or makes it; no link, and no pipe. Returns its descriptor, or -1 after printing an error. */
int lock_open(const char *path);

/* Takes the byte of the file `fd`, alone or shared with others, or says that another process has it, or that it cannot
 * be had, which was printed of `path`. */
lock_status lock_take(int fd, off_t byte, int shared, const char *path);
/* Waits until it is there. LOCK_BUSY after a signal (tools/cli/interruption.h). */
lock_status lock_wait(int fd, off_t byte, const char *path);
void lock_release(int fd, off_t byte);

/* The first of `count` bytes that another process has locked; -1: none. */
off_t lock_holder(int fd, off_t first, off_t count);

/* Sleeps for a fraction of a second, or until a signal comes. */
void lock_pause(void);

#endif
