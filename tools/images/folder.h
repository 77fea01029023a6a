/* The pictures in a directory and in the directories below it. */
#ifndef TOOLS_IMAGE_FOLDER_H
#define TOOLS_IMAGE_FOLDER_H

#include <stdint.h>

/* Lists the pictures of a directory: files that end in .png, .jpg, .jpeg or, in a build with libwebp, .webp, in either
 * case, with their paths from `path` on, sorted bytewise, in the directories below it, too. Refused are pictures that
 * other tools leave out: below a directory that has some of its own, or one whose name begins with a dot; a file of
 * another image format, since it would be missed; and more than 16 levels, which a link to a directory above has. A
 * grid.png beside numbered images, from mar generate --grid, is left out. Returns 0, and the caller frees
 * (*names)[0..*count-1] and *names, also after 1, with the error printed. */
int image_folder_list(const char *path, char ***names, int64_t *count);

#endif
