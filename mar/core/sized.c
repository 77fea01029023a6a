#include "mar/core/sized.h"

#include <string.h>

#define TEXT(number)        TEXT_OF(number)
#define TEXT_OF(characters) #characters
const char *mar_version(void)
{
    return TEXT(MAR_VERSION_MAJOR) "." TEXT(MAR_VERSION_MINOR) "." TEXT(MAR_VERSION_PATCH);
}

int mar_version_number(void)
{
    return MAR_VERSION_MAJOR * 10000 + MAR_VERSION_MINOR * 100 + MAR_VERSION_PATCH;
}

static size_t size_of(const void *given)
{
    size_t size;
    memcpy(&size, given, sizeof size);
    return size;
}

static size_t min(size_t a, size_t b)
{
    return a < b ? a : b;
}

/* Copies min(size, own) bytes without the first field. */
static void copy_fields(void *to, const void *from, size_t size, size_t own)
{
    const size_t n = min(size, own);
    if (n > sizeof size) memcpy((char *)to + sizeof size, (const char *)from + sizeof size, n - sizeof size);
}

void mar_sized_init(void *given, size_t size, const void *defaults, size_t own)
{
    if (!given) return;
    memset(given, 0, size);
    memcpy(given, &size, min(size, sizeof size));
    copy_fields(given, defaults, size, own);
}

mar_status mar_sized_check(const void *given, size_t own, const char *type, mar_err *err)
{
    if (!given) return err_set(err, MAR_EARG, "%s is NULL, expected what %s_init has set up", type, type);
    const size_t size = size_of(given);
    if (size <= sizeof size || size % sizeof size != 0) /* in every mar.h a multiple of the alignment */
        return err_set(err, MAR_EARG, "%s.size is %zu: expected %s_init", type, size, type);
    if (size > own)
        return err_set(err, MAR_EARG,
                       "%s.size is %zu: the program was compiled with a newer mar.h, expected %zu at most with libmar "
                       "%s",
                       type, size, own, mar_version());
    return MAR_OK;
}

mar_status mar_sized_read(const void *given, void *out, size_t own, const char *type, mar_err *err)
{
    const mar_status status = mar_sized_check(given, own, type, err);
    if (status == MAR_OK) copy_fields(out, given, size_of(given), own);
    return status;
}

void mar_sized_write(void *given, const void *made, size_t own)
{
    copy_fields(given, made, size_of(given), own);
}
