#include "tools/eval/published.h"

#include <math.h>
#include <string.h>

enum { OFFICIAL_TOKENS = 256, OFFICIAL_CHANNELS = 16, IMAGENET = 1000 };

/* Also in tools/dev/random_checkpoint.py. */
static const struct {
    const char *name;
    int width, blocks; /* of the encoder, and of the decoder */
    int head_width, head_depth;
} shapes[] = {{"MAR-B", 768, 12, 1024, 6}, {"MAR-L", 1024, 16, 1280, 8}, {"MAR-H", 1280, 20, 1536, 12}};

const char *eval_published_model(const mar_model_config *c)
{
    if (c->seq_len != OFFICIAL_TOKENS || c->token_dim != OFFICIAL_CHANNELS || c->classes != IMAGENET) return "";
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        if (c->width == shapes[i].width && c->encoder_depth == shapes[i].blocks &&
            c->decoder_depth == shapes[i].blocks && c->head_width == shapes[i].head_width &&
            c->head_depth == shapes[i].head_depth)
            return shapes[i].name;
    return "";
}

static const char paper[] = "Li et al., 2024 (arXiv 2406.11838), 256 autoregressive steps";
static const char lazy[] = "Yan et al., 2025 (arXiv 2503.12450) and its release";

static const eval_published results[] = {
    {"MAR-B", "without guidance", paper, 3.48, 192.4, 0.78, 0.58},
    {"MAR-B", "with guidance", paper, 2.31, 281.7, 0.82, 0.57},
    {"MAR-B", "LazyMAR", lazy, 2.45, 281.3, NAN, NAN},
    {"MAR-L", "without guidance", paper, 2.60, 221.4, 0.79, 0.60},
    {"MAR-L", "with guidance", paper, 1.78, 296.0, 0.81, 0.60},
    {"MAR-L", "LazyMAR", lazy, 1.93, 297.4, NAN, NAN},
    {"MAR-H", "without guidance", paper, 2.35, 227.8, 0.79, 0.62},
    {"MAR-H", "with guidance", paper, 1.55, 303.7, 0.81, 0.62},
    {"MAR-H", "LazyMAR, 2.83 times as fast", lazy, 1.69, 299.2, NAN, NAN},
    {"MAR-H", "GtR, 3.72 times as fast", "Yan et al., 2025 (arXiv 2510.17171)", 1.59, 304.4, NAN, NAN},
    {"MAR-H", "DiSA, 5 to 10 times as fast, guidance 3.3", "Zhao et al., 2025 (arXiv 2505.20297)", NAN, NAN, NAN, NAN},
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
