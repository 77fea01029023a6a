/* The data folder, share/libmar: files that come with the library and are read at run time. */
#ifndef BASE_DATA_H
#define BASE_DATA_H

#include "base/error.h"

#include <limits.h>

/* Writes the path of a file of the data folder, such as "demo/vae.safetensors". $MAR_DATA_DIR is the folder if that is
 * set and not empty. Otherwise the folder is the first of these that has the file:
 *
 * - share/libmar beside the shared library (or the program that libmar.a is linked into), or one or two folders above:
 *   a build folder or Python package, PREFIX/lib or PREFIX/bin, and PREFIX/lib/TRIPLET.
 * - the folder that the build was configured with, and /usr/share/libmar, Debian's.
 *
 * Returns MAR_EIO, naming these folders, if none has the file. */
mar_status data_find(const char *name, char path[PATH_MAX], mar_err *err);

#endif
