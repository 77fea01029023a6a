/* Memory for what is large and read as a whole: weights, caches. */
#include "kernels/cpu/cpu.h"

#include <stdlib.h>
#include <sys/mman.h>

enum { PAGE = 2 << 20 }; /* of x86-64 and of most other systems */

void *cpu_pages(size_t bytes)
{
    const size_t whole = (bytes + PAGE - 1) / PAGE * PAGE;
    bytes = (bytes + 63) / 64 * 64;
    if (bytes < PAGE) return aligned_alloc(64, bytes ? bytes : 64);
    if (whole - bytes <= bytes / 4) bytes = whole; /* so that the end is in one, too */
    void *p = NULL;
    if (posix_memalign(&p, PAGE, bytes)) return NULL; /* not aligned_alloc, which wants a whole number of pages */
#ifdef MADV_HUGEPAGE
    madvise(p, bytes / PAGE * PAGE, MADV_HUGEPAGE); /* a wish: without it all is only slower */
#endif
    return p;
}
