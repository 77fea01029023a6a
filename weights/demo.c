/* The models built into the library (weights/demo.S). */
#include "weights/weights.h"

#include <string.h>

/* Hidden visibility keeps the references inside the shared library. */
#pragma GCC visibility push(hidden)
extern const uint8_t wt_file_target[], wt_file_target_end[];
extern const uint8_t wt_file_draft[], wt_file_draft_end[];
extern const uint8_t wt_file_vae[], wt_file_vae_end[];
extern const uint8_t wt_file_discrete_target[], wt_file_discrete_target_end[];
extern const uint8_t wt_file_discrete_draft[], wt_file_discrete_draft_end[];
extern const uint8_t wt_file_discrete_eagle[], wt_file_discrete_eagle_end[];
extern const uint8_t wt_file_discrete_vq[], wt_file_discrete_vq_end[];
#pragma GCC visibility pop

typedef struct {
    const char *name, *other_name; /* other_name may be NULL */
    const uint8_t *begin, *end;
} built_in;

static const built_in models[] = {
    {"demo", NULL, wt_file_target, wt_file_target_end},
    {"demo-draft", NULL, wt_file_draft, wt_file_draft_end},
    {"demo-discrete", NULL, wt_file_discrete_target, wt_file_discrete_target_end},
    {"demo-discrete-draft", NULL, wt_file_discrete_draft, wt_file_discrete_draft_end},
    {"demo-discrete-eagle", NULL, wt_file_discrete_eagle, wt_file_discrete_eagle_end},
};
static const built_in decoders[] = {
    {"demo", "demo-vae", wt_file_vae, wt_file_vae_end},
    {"demo-discrete", "demo-discrete-vq", wt_file_discrete_vq, wt_file_discrete_vq_end},
};
enum { MODELS = sizeof models / sizeof *models, DECODERS = sizeof decoders / sizeof *decoders };

static wt_embedded find(const built_in *list, int count, const char *name)
{
    for (int i = 0; i < count; i++) {
        const built_in *b = &list[i];
        if (strcmp(name, b->name) != 0 && (!b->other_name || strcmp(name, b->other_name) != 0)) continue;
        /* Two objects: their pointers must not be subtracted. */
        return (wt_embedded){b->begin, (size_t)((uintptr_t)b->end - (uintptr_t)b->begin)};
    }
    return (wt_embedded){0};
}

wt_embedded wt_demo_mar(const char *name)
{
    return find(models, MODELS, name);
}

wt_embedded wt_demo_vae(const char *name)
{
    return find(decoders, DECODERS, name);
}
