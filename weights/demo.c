/* The models built into the library (weights/demo.S). */
#include "weights/weights.h"

#include <string.h>

/* Hidden, so that references stay inside the shared library. */
#pragma GCC visibility push(hidden)
extern const uint8_t wt_file_target[], wt_file_target_end[];
extern const uint8_t wt_file_draft[], wt_file_draft_end[];
extern const uint8_t wt_file_vae[], wt_file_vae_end[];
#pragma GCC visibility pop

static const wt_embedded *fill(wt_embedded *e, const uint8_t *begin, const uint8_t *end)
{
    e->data = begin;
    e->size = (size_t)((uintptr_t)end - (uintptr_t)begin); /* two objects to the compiler: no pointer difference */
    return e;
}

const wt_embedded *wt_demo_mar(const char *name)
{
    static _Thread_local wt_embedded target, draft;
    if (strcmp(name, "demo") == 0) return fill(&target, wt_file_target, wt_file_target_end);
    if (strcmp(name, "demo-draft") == 0) return fill(&draft, wt_file_draft, wt_file_draft_end);
    return NULL;
}

const wt_embedded *wt_demo_vae(const char *name)
{
    static _Thread_local wt_embedded vae;
    if (strcmp(name, "demo") == 0 || strcmp(name, "demo-vae") == 0) return fill(&vae, wt_file_vae, wt_file_vae_end);
    return NULL;
}
