/* Memory for large arrays read as a whole: weights, caches. */
#include "kernels/cpu/cpu.h"

#include <stdlib.h>
#include <sys/mman.h>

enum { PAGE = 2 << 20 }; /* on x86-64 and most other systems */

void *cpu_pages(size_t bytes)
{
    const size_t whole = (bytes + PAGE - 1) / PAGE * PAGE;
    bytes = (bytes + 63) / 64 * 64;
    if (bytes < PAGE) return aligned_alloc(64, bytes ? bytes : 64);
    if (whole - bytes <= bytes / 4) bytes = whole; /* lets the end be in a huge page, too */
    void *p = NULL;
    if (posix_memalign(&p, PAGE, bytes)) return NULL; /* unlike aligned_alloc, it takes any size */
#ifdef MADV_HUGEPAGE
    madvise(p, bytes / PAGE * PAGE, MADV_HUGEPAGE); /* a hint: failing only costs speed */
#endif
    return p;
}
