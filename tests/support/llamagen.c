#include "tests/support/llamagen.h"

#include "families/mar.h"
#include "tests/support/archive.h"
#include "tests/support/support.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
    bytes header, data;
    uint64_t random, other; /* states */
    double noise;
    const char *prefix; /* begins every name */
} writer;

static double uniform(uint64_t *state) /* -1..1, xorshift64* */
{
    *state ^= *state >> 12;
    *state ^= *state << 25;
    *state ^= *state >> 27;
    return (double)((*state * 0x2545F4914F6CDD1D) >> 11) / (double)(1LL << 52) - 1;
}

/* Draws a weight. Norm weights are about 1. A matrix keeps its input's magnitude; the output layer doubles it. */
static float draw(writer *w, const char *name, int rank, const int64_t *shape)
{
    const double own = uniform(&w->random), other = uniform(&w->other), u = own + w->noise * other;
    if (rank == 1) return (float)(1 + 0.1 * u);
    if (strstr(name, "embed") && !strstr(name, "cap_proj")) return (float)u;
    return (float)(u * sqrt(3.0 / (double)shape[1]) * (strcmp(name, "output.weight") == 0 ? 2 : 1));
}

static void write_tensor(void *user, const char *name, int rank, const int64_t *shape)
{
    writer *w = user;
    char text[256];
    const size_t begin = w->data.size;
    long count = 0;
    wt_add_elements(&count, name, rank, shape);
    for (long i = 0; i < count; i++) {
        const float x = draw(w, name, rank, shape);
        bytes_put(&w->data, &x, sizeof x);
    }
    snprintf(text, sizeof text, "%s\"%s%s\":{\"dtype\":\"F32\",\"shape\":[%ld", w->header.size ? "," : "", w->prefix,
             name, (long)shape[0]);
    bytes_text(&w->header, text);
    for (int i = 1; i < rank; i++) {
        snprintf(text, sizeof text, ",%ld", (long)shape[i]);
        bytes_text(&w->header, text);
    }
    snprintf(text, sizeof text, "],\"data_offsets\":[%zu,%zu]}", begin, w->data.size);
    bytes_text(&w->header, text);
}

static writer begin_file(unsigned seed, double noise)
{
    return (writer){.random = 0x9E3779B97F4A7C15u * (seed + 1),
                    .other = 0xD1B54A32D192ED03u * (seed + 7),
                    .noise = noise,
                    .prefix = ""};
}

/* Writes the gathered tensors; `metadata` is ",..." or "". */
static char *end_file(writer *w, const char *directory, const char *file, const char *metadata)
{
    char *path;
    bytes b = {0};
    assert_true(asprintf(&path, "%s/%s", directory, file) > 0);
    bytes_text(&w->header, metadata);
    bytes_number(&b, w->header.size + 2, 8);
    bytes_text(&b, "{");
    bytes_put(&b, w->header.data, w->header.size);
    bytes_text(&b, "}");
    bytes_put(&b, w->data.data, w->data.size);
    bytes_to_file(&b, path);
    bytes_free(&b);
    bytes_free(&w->header);
    bytes_free(&w->data);
    return path;
}

char *write_llamagen(const char *directory, const char *file, const family_facts *c, unsigned seed, double noise,
                     int says)
{
    char metadata[128];
    writer w = begin_file(seed, noise);
    causal_shape shape = c->shape;
    shape.rows = shape.vocabulary;
    shape.kv_heads = shape.heads;
    shape.head_dim = shape.width / shape.heads;
    causal_tensors(&shape, write_tensor, &w);
    snprintf(metadata, sizeof metadata, ",\"__metadata__\":{\"mar.heads\":\"%d\",\"mar.seq_len\":\"%d\"}",
             c->shape.heads, c->shape.seq_len);
    return end_file(&w, directory, file, says ? metadata : "");
}

char *write_eagle(const char *directory, const char *file, const eagle_config *c, unsigned seed)
{
    writer w = begin_file(seed, 0);
    eagle_config_tensors(c, write_tensor, &w);
    return end_file(&w, directory, file, "");
}

char *write_mar(const char *directory, const char *file, const mar_model_config *c, unsigned seed, const char *prefix)
{
    char metadata[64];
    writer w = begin_file(seed, 0);
    w.prefix = prefix;
    family_mar_tensors(c, write_tensor, &w);
    snprintf(metadata, sizeof metadata, ",\"__metadata__\":{\"mar.heads\":\"%d\"}", c->heads);
    return end_file(&w, directory, file, metadata);
}

char *copy_vq(const char *directory)
{
    char *path;
    bytes b = bytes_from_file("tests/golden/data/vq.pth");
    assert_true(asprintf(&path, "%s/vq.pth", directory) > 0);
    bytes_to_file(&b, path);
    bytes_free(&b);
    return path;
}

family_facts small_decoder(void)
{
    family_facts c = {.shape = {.names = &language_llama_names,
                                .width = 32,
                                .depth = 2,
                                .heads = 4,
                                .head_dim = 8,
                                .hidden = 48,
                                .vocabulary = 73,
                                .prompt = 1}};
    c.shape.kv_heads = 2;
    c.shape.qk_norm = CAUSAL_LAYER_NORM;
    c.shape.seq_len = 16, c.shape.columns = 4, c.shape.line_end = 1;
    c.language.family = &language_lumina_mgpt;
    c.shape.rows = c.shape.vocabulary + 5;
    c.shape.prefix = 17;
    return c;
}

char *write_decoder(const char *directory, const char *file, const family_facts *c, unsigned seed)
{
    char metadata[320];
    writer w = begin_file(seed, 0);
    causal_tensors(&c->shape, write_tensor, &w);
    const int rows = c->shape.seq_len / c->shape.columns;
    snprintf(metadata, sizeof metadata,
             ",\"__metadata__\":{\"mar.family\":\"%s\",\"mar.heads\":\"%d\",\"mar.eps\":\"1e-5\","
             "\"mar.image_tokens\":\"%d-%d\",\"mar.line_end\":\"%d\",\"mar.image_size\":\"%dx%d\","
             "\"mar.context\":\"%d\"}",
             c->language.family->name, c->shape.heads, SMALL_FIRST_ID, SMALL_FIRST_ID + c->shape.vocabulary - 1,
             SMALL_LINE_END, 16 * c->shape.columns, 16 * rows, causal_positions(&c->shape) + c->shape.prefix);
    return end_file(&w, directory, file, metadata);
}

family_facts small_llamagen(void)
{
    return (family_facts){.shape = {.names = &llamagen_names,
                                    .joined_qkv = 1,
                                    .width = 32,
                                    .depth = 2,
                                    .heads = 2,
                                    .hidden = 64,
                                    .vocabulary = 50,
                                    .seq_len = 16,
                                    .classes = 5,
                                    .prefix = 1}};
}
