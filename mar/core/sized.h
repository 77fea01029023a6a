/* Structs of a program that may have been compiled with an older mar.h. Their first field is their size: the caller's,
 * as its initialiser has stored it. No struct has padding at its end, so a field lies within the size or outside. */
#ifndef MAR_SIZED_H
#define MAR_SIZED_H

#include "base/error.h"
#include "mar.h"

/* Writes the first `size` bytes of the caller's struct: the defaults, with `size` in the first field, and 0 behind the
 * library's own `own` bytes. NULL is fine. */
void mar_sized_init(void *given, size_t size, const void *defaults, size_t own);
/* Returns MAR_EARG, naming `type`, for NULL, for a struct that was not set up, and for that of a newer mar.h. */
mar_status mar_sized_check(const void *given, size_t own, const char *type, mar_err *err);
/* Copies the fields that the caller has over the defaults in *out, `own` bytes; out's size stays. Fails as
 * mar_sized_check. */
mar_status mar_sized_read(const void *given, void *out, size_t own, const char *type, mar_err *err);
/* Copies the fields that the caller has from `made`, `own` bytes. The caller's size, and bytes beyond it, stay. */
void mar_sized_write(void *given, const void *made, size_t own);

#endif
