#include "tools/eval_published.h"

#include <math.h>
#include <string.h>

/* The official shapes (models/mar.py, and the heads of the README's training commands); heads and buffer follow. */
static const struct {
    const char *name;
    int width, depth, head_width, head_depth;
} shapes[] = {
    {"MAR-B", 768, 12, 1024, 6},
    {"MAR-L", 1024, 16, 1280, 8},
    {"MAR-H", 1280, 20, 1536, 12},
};

enum { SHAPES = sizeof shapes / sizeof shapes[0], OFFICIAL_TOKENS = 256, OFFICIAL_CHANNELS = 16, IMAGENET = 1000 };

const char *eval_published_model(const mar_model_config *c)
{
    if (c->seq_len != OFFICIAL_TOKENS || c->token_dim != OFFICIAL_CHANNELS || c->classes != IMAGENET) return "";
    for (int i = 0; i < SHAPES; i++)
        if (c->width == shapes[i].width && c->encoder_depth == shapes[i].depth && c->decoder_depth == shapes[i].depth &&
            c->head_width == shapes[i].head_width && c->head_depth == shapes[i].head_depth)
            return shapes[i].name;
    return "";
}

static const char mar[] = "Li et al., 2024 (arXiv 2406.11838), 256 autoregressive steps";

static const eval_published results[] = {
    {"MAR-B", "without guidance", mar, 3.48, 192.4, 0.78, 0.58},
    {"MAR-B", "with guidance", mar, 2.31, 281.7, 0.82, 0.57},
    {"MAR-L", "without guidance", mar, 2.60, 221.4, 0.79, 0.60},
    {"MAR-L", "with guidance", mar, 1.78, 296.0, 0.81, 0.60},
    {"MAR-H", "without guidance", mar, 2.35, 227.8, 0.79, 0.62},
    {"MAR-H", "with guidance", mar, 1.55, 303.7, 0.81, 0.62},
    {"MAR-H", "LazyMAR, 2.83 times as fast", "Yan et al., 2025 (arXiv 2503.12450)", 1.69, NAN, NAN, NAN},
    {"MAR-H", "GtR, 3.72 times as fast", "Generation then Reconstruction, 2025", 1.59, NAN, NAN, NAN},
    {"MAR-H", "DiSA, 5 to 10 times as fast, guidance 3.3", "Zhao et al., 2025", NAN, NAN, NAN, NAN},
    {"MAR-H", "CSpD, up to 2.33 times as fast", "Wang et al., 2024 (arXiv 2411.11925), Table 2", NAN, NAN, NAN, NAN},
    {"MAR-H", "MARVAL: a head distilled to one step, more than 30 times as fast", "arXiv 2511.15190", 2.00, NAN, NAN,
     NAN},
};

const eval_published *eval_published_get(const char *model, int i)
{
    for (size_t k = 0; k < sizeof results / sizeof results[0]; k++)
        if (strcmp(results[k].model, model) == 0 && i-- == 0) return &results[k];
    return NULL;
}
