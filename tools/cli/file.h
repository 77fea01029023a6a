/* Files that are complete or absent: every file the command writes goes through here. Small files are read here,
 * too. */
#ifndef TOOLS_FILE_H
#define TOOLS_FILE_H

#include <stddef.h>
#include <sys/types.h>

/* Writes `data`, char [size], by a file_writer (base/file.h): the path has the old file or the whole new one. Signals
 * that end the process wait meanwhile. Returns 0, or 1 with the error printed and no file left, also on a full disk or
 * at the file size limit. */
int tool_write_file(const char *path, const void *data, size_t size);

/* Does the same without syncing: the file is whole if the process is killed, but not if the machine fails. */
int tool_write_file_unsynced(const char *path, const void *data, size_t size);

/* Opens a regular file with the flags of open(2). Every file that is read or written in place is opened here. A pipe is
 * refused without waiting. O_NOFOLLOW refuses a link, for files of a run directory that others may have made. Returns
 * the descriptor, or -1 with errno set: 0 if it is no regular file, EMLINK if it is a link. */
int tool_open_file(const char *path, int flags);

/* Creates a file for reading and writing, in place of the one with that name. Other names of the old file keep it.
 * Returns the descriptor, or -1 with errno set. */
int tool_create_file(const char *path);

/* Prints why tool_open_file failed. `expected` names the kind of file: "a PNG". Returns 1. */
int tool_cannot_open(const char *path, const char *expected);

/* Reads n bytes at `offset` of an open file, or those up to its end. Returns their number, or -1 with errno set. */
ssize_t tool_read_up_to(int fd, void *data, size_t n, off_t offset);
/* Read or write all n bytes at `offset` of an open file. Return 0, or -1 with errno set; errno 0: the file is
 * shorter. */
int tool_read_at(int fd, void *data, size_t n, off_t offset);
int tool_write_at(int fd, const void *data, size_t n, off_t offset);

/* Calls fsync if the file system has it. Returns 0, or -1 with errno set. */
int tool_sync(int fd);

/* Writes to standard output, bypassing stdio's buffer. Returns 0, or 1 with the error printed. */
int tool_write_output(const void *data, size_t size);

/* Reads a whole file of at most `megabytes` MB, opened by tool_open_file with the flags and `expected`. Returns its
 * *size bytes and a NUL; the caller frees them. Returns NULL with the error printed. */
void *tool_read_file(const char *path, int flags, int megabytes, const char *expected, size_t *size);

/* Reads all bytes of the open file, and a NUL; the caller frees them. Returns NULL with the error printed; or with
 * nothing printed and *size above `most` if the file has more. */
void *tool_read_all(int fd, const char *path, size_t most, size_t *size);

/* Returns the directory of `path`, "" or with the slash. The caller frees it. NULL: out of memory. */
char *tool_directory_of(const char *path);

/* Returns DIRECTORY/NAME, which the caller frees; NULL after printing "out of memory". */
char *tool_join(const char *directory, const char *name);

/* Prints errno as the reason that `path` cannot be written. Returns 1. */
int tool_cannot_write(const char *path);

/* Checks that a file can be created in the directory of `path`. Returns 0, or 1 with the error printed. */
int tool_can_write(const char *path);

/* Checks the same, that `path` is free or a regular file, and that it ends in `ending` (tool_ends_with). */
int tool_can_write_as(const char *path, const char *ending);

/* Checks that nothing has the name, unless `overwrites`: for files of data, such as models and statistics. Returns 0,
 * or 1 with the error printed. */
int tool_can_replace(const char *path, int overwrites);

/* Returns whether two paths name the same entry of the same directory: "a.svg" and "./a.svg". A link and its target are
 * two: writing replaces the link. */
int tool_same_path(const char *a, const char *b);

/* Returns whether `path` ends in `ending`, in either case, behind at least one character. */
int tool_ends_with(const char *path, const char *ending);

#endif
