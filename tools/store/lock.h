/* Locks on bytes of a file. They belong to the process that opened it, and end with it. */
#ifndef TOOLS_LOCK_H
#define TOOLS_LOCK_H

#include <sys/types.h>

typedef enum { LOCK_TAKEN, LOCK_BUSY, LOCK_FAILED } lock_status;

/* Opens or creates the file; refuses links and pipes. Returns its descriptor, or -1 with the error printed. */
int lock_open(const char *path);

/* Locks the byte of the file `fd`, exclusively or shared. Returns LOCK_BUSY if another process has it. Prints an error,
 * with `path`. */
lock_status lock_take(int fd, off_t byte, int shared, const char *path);
/* Waits for the lock. Returns LOCK_BUSY after a signal (tools/cli/interruption.h). */
lock_status lock_wait(int fd, off_t byte, const char *path);
void lock_release(int fd, off_t byte);

/* Returns the first of `count` bytes that another process has locked; -1 if there is none. */
off_t lock_holder(int fd, off_t first, off_t count);

/* Sleeps for a fraction of a second, or until a signal comes. */
void lock_pause(void);

#endif
