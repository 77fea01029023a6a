/* Files that are complete or not there: every file the command writes goes through here. And reading small ones. */
#ifndef TOOLS_FILE_H
#define TOOLS_FILE_H

#include <stddef.h>
#include <sys/types.h>

/* Writes `data`, char [size], by a file_writer (base/file.h): the path has the old file or the whole new one. Signals
 * that end the process wait meanwhile. Returns 0, or 1 after printing an error (full disk and file size limit
 * included); nothing is left then. */
int tool_write_file(const char *path, const void *data, size_t size);

/* The same without syncing: whole if the process is killed, but not if the machine fails. */
int tool_write_file_unsynced(const char *path, const void *data, size_t size);

/* Opens a regular file with the flags of open(2): every file that is read, and those that are written in place, are
 * opened by this. A pipe is refused, and never waited for; with O_NOFOLLOW so is a link: that is for files of a run
 * directory, which others may have made. Returns the descriptor, or -1 with errno set: to 0 if it is no regular file,
 * to EMLINK if it is a link. */
int tool_open_file(const char *path, int flags);

/* Creates a file to be read and written, in place of what has the name, which is left as it is if it has others.
 * Returns the descriptor, or -1 with errno set. */
int tool_create_file(const char *path);

/* Prints why tool_open_file has failed; `expected` says what the file should be: "a PNG". Returns 1. */
int tool_cannot_open(const char *path, const char *expected);

/* All n bytes at `offset` of an open file. Return 0, or -1 with errno set; errno 0: the file has no more. */
int tool_read_at(int fd, void *data, size_t n, off_t offset);
int tool_write_at(int fd, const void *data, size_t n, off_t offset);

/* fsync, where the file system has it. Returns 0, or -1 with errno set. */
int tool_sync(int fd);

/* Writes to standard output, past stdio's buffer. Returns 0, or 1 after printing an error. */
int tool_write_output(const void *data, size_t size);

/* Reads a whole file of at most so many MB, opened by tool_open_file with the flags. `expected` as there. Returns its
 * *size bytes and a NUL, which the caller frees, or NULL after printing an error. */
void *tool_read_file(const char *path, int flags, int megabytes, const char *expected, size_t *size);

/* The directory of `path`, "" or with the slash. The caller frees it; NULL: out of memory. */
char *tool_directory_of(const char *path);

/* Prints that errno is why nothing can be written to `path`. Returns 1. */
int tool_cannot_write(const char *path);

/* Tries whether a file can be created in the directory of `path`. Returns 0, or 1 after printing why not. */
int tool_can_write(const char *path);

/* The same, and whether `path` is free or a regular file, which can be replaced, and ends in `ending`, as in
 * tool_ends_with. */
int tool_can_write_as(const char *path, const char *ending);

/* Whether two paths name the same entry of the same directory, "a.svg" and "./a.svg". A link and what it points to are
 * two: writing replaces the link. */
int tool_same_path(const char *a, const char *b);

/* Whether `path` ends in `ending` and has something in front of it. Letter case does not matter. */
int tool_ends_with(const char *path, const char *ending);

#endif
