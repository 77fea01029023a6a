/* Memory for large arrays: weights, caches, scratch. */
#include "kernels/cpu/cpu.h"

#include <stdlib.h>
#include <sys/mman.h>

enum {
    PAGE = 2 << 20, /* on x86-64 and most other systems */
    LINE = 64       /* alignment; precedes a block of the host's, whose size is in it */
};

static void *pages_take(size_t bytes)
{
    if (bytes > SIZE_MAX - PAGE) return NULL;
    const size_t whole = (bytes + PAGE - 1) / PAGE * PAGE;
    bytes = (bytes + LINE - 1) / LINE * LINE;
    if (bytes < PAGE) return aligned_alloc(LINE, bytes ? bytes : LINE);
    /* lets the end be in a huge page, too, unless it is short: it would waste most of the page */
    if (whole - bytes <= bytes / 4 && whole - bytes <= PAGE / 2) bytes = whole;
    void *p = NULL;
    if (posix_memalign(&p, PAGE, bytes)) return NULL; /* unlike aligned_alloc, it takes any size */
#ifdef MADV_HUGEPAGE
    madvise(p, bytes / PAGE * PAGE, MADV_HUGEPAGE); /* a hint: failing only costs speed */
#endif
    return p;
}

static mar_status take_from_host(const kern_memory *host, size_t bytes, const char *what, void **out, mar_err *err)
{
    const size_t whole = bytes <= SIZE_MAX - LINE ? bytes + LINE : SIZE_MAX;
    char *p = host->alloc(host->user, whole, LINE);
    if (!p) return err_set(err, MAR_ENOMEM, "mar_options.alloc returned NULL for %zu bytes of %s", whole, what);
    if ((uintptr_t)p % LINE) {
        host->free(host->user, p, whole);
        return err_set(err, MAR_EARG, "mar_options.alloc returned %p for %zu bytes of %s, expected a multiple of %d",
                       (void *)p, whole, what, LINE);
    }
    memcpy(p, &whole, sizeof whole);
    *out = p + LINE;
    return MAR_OK;
}

mar_status cpu_pages(const cpu_device *d, size_t bytes, const char *what, void **out, mar_err *err)
{
    *out = NULL;
    if (d->memory.alloc) return take_from_host(&d->memory, bytes, what, out, err);
    *out = pages_take(bytes);
    return *out ? MAR_OK : err_set(err, MAR_ENOMEM, "out of memory: %zu bytes of %s", bytes, what);
}

mar_status cpu_zeros(const cpu_device *d, size_t n, float **out, mar_err *err)
{
    const mar_status status = cpu_pages(d, n * sizeof **out, "weights", (void **)out, err);
    if (status == MAR_OK) memset(*out, 0, n * sizeof **out);
    return status;
}

void cpu_pages_free(const cpu_device *d, void *p)
{
    size_t whole;
    if (!p || !d->memory.alloc) {
        free(p);
        return;
    }
    char *block = (char *)p - LINE;
    memcpy(&whole, block, sizeof whole);
    d->memory.free(d->memory.user, block, whole);
}
