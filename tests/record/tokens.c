/* Prints a hash of the tokens, and of the images, of every configuration that the tests know: one line each. Two builds
 * that print the same lines draw bit-identical tokens. It uses the public header only, so that it compiles against an
 * older tree: tests/record/compare.sh REV.
 *   token_record [cpu|cuda] */
#include "mar.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { IMAGES = 3, TOKENS_MAX = 256 * 16, PIXELS_MAX = 256 * 256 * 3 };

/* FNV-1a */
static uint64_t hash(const void *data, size_t size)
{
    uint64_t h = UINT64_C(14695981039346656037);
    for (size_t i = 0; i < size; i++) h = (h ^ ((const uint8_t *)data)[i]) * UINT64_C(1099511628211);
    return h;
}

static mar_params plain(void)
{
#ifdef MAR_PARAMS_DEFAULT
    mar_params p = MAR_PARAMS_DEFAULT;
#else
    mar_params p;
    mar_params_init(&p, sizeof p);
#endif
    p.num_iter = 24;
    p.num_sampling_steps = 12;
    p.cfg = 2.9f;
    p.diff_upper_steps = 12, p.diff_lower_steps = 4;
    p.gtr_generation_steps = 5, p.gtr_reconstruction_steps = 2, p.gtr_sampling_steps = 4;
    return p;
}

enum { SAMPLER = 1, DISA = 2, LAZY = 4, LAZY_HEAD = 8, HEAD_SPEC = 16, GTR = 32 };

/* Turns on the ways of a set; those that do not go together are refused by mar_session_create. */
static void turn_on(mar_params *p, int set)
{
    if (set & SAMPLER) p->sampler = MAR_SAMPLER_DPMPP;
    if (set & DISA) p->diff_annealing = MAR_ANNEAL_LINEAR;
    p->lazy = (set & LAZY) != 0;
    p->lazy_head = (set & LAZY_HEAD) != 0;
    if (set & HEAD_SPEC) p->head_spec = 8;
    p->gtr = (set & GTR) != 0;
}

static void run(mar_model *model, mar_vae *vae, const char *name, const mar_params *p, int batch)
{
    static float tokens[IMAGES * TOKENS_MAX];
    static uint8_t pixels[IMAGES * PIXELS_MAX];
    const mar_model_config *c = mar_model_get_config(model);
    const int labels[IMAGES] = {3, -1, 0};
    const size_t size = (size_t)c->seq_len * (size_t)c->token_dim;
    mar_session *s;
    if (mar_session_create(model, vae, p, batch, &s) != MAR_OK) {
        printf("%s: refused\n", name);
        return;
    }
    int width = 0, height = 0;
    mar_session_image_size(s, &width, &height);
    const size_t bytes = (size_t)width * (size_t)height * 3;
    mar_status status = MAR_OK;
    for (int i = 0; status == MAR_OK && i < IMAGES; i += batch) {
        const int n = IMAGES - i < batch ? IMAGES - i : batch;
        status = mar_session_begin(s, (uint64_t)(100 + i), labels + i, n);
        while (status == MAR_OK && !mar_session_done(s)) status = mar_session_step(s);
        if (status == MAR_OK) status = mar_session_tokens(s, tokens + (size_t)i * size);
        if (status == MAR_OK && vae) status = mar_session_images(s, pixels + (size_t)i * bytes);
    }
    mar_stats stats;
    mar_session_get_stats(s, &stats);
    printf("%s: %s %016llx %016llx, %.0f %.0f %.0f calls, %ld of %ld, %.6g flop\n", name, mar_status_name(status),
           (unsigned long long)hash(tokens, IMAGES * size * sizeof *tokens),
           (unsigned long long)hash(pixels, IMAGES * bytes), stats.head_calls, stats.head_batched, stats.draft_calls,
           stats.accepted, stats.drafted,
           stats.encoder_flop + stats.decoder_flop + stats.head_flop + stats.draft_flop + stats.vae_flop);
    mar_session_free(s);
    fflush(stdout);
}

/* One model, whole: `brief` runs the plain configurations and every way alone only. */
static void run_all(const mar_options *o, const char *file, const char *draft_file, int brief)
{
    static const char *const dtypes[] = {"auto", "f32", "bf16"};
    mar *m;
    mar_model *model = NULL, *draft = NULL;
    mar_vae *vae = NULL;
    char name[128];
    if (mar_open(o, &m) != MAR_OK || mar_model_load(m, file, 0, &model) != MAR_OK ||
        (draft_file && mar_model_load(m, draft_file, 0, &draft) != MAR_OK) ||
        (strcmp(file, "demo") == 0 && mar_vae_load(m, "demo", &vae) != MAR_OK)) {
        printf("%s %s: %s\n", file, dtypes[o->dtype], mar_error(m));
        exit(1);
    }
    const char *base = strrchr(file, '/') ? strrchr(file, '/') + 1 : file;
#define RUN(batch, ...)                                                                                                \
    (snprintf(name, sizeof name, __VA_ARGS__),                                                                         \
     snprintf(name + strlen(name), sizeof name - strlen(name), " %s %s, %d threads, batch %d", base, dtypes[o->dtype], \
              o->threads, batch),                                                                                      \
     run(model, vae, name, &p, batch))
    for (int set = 0; set < 64; set++) {
        mar_params p = plain();
        if (brief && (set & (set - 1))) continue;
        if (o->backend == MAR_BACKEND_CUDA) /* on the host a step of the chain takes seconds */
            p.num_iter = set == LAZY ? 7 : 2, p.num_sampling_steps = 4, p.diff_upper_steps = 4, p.diff_lower_steps = 3;
        turn_on(&p, set);
        RUN(o->backend == MAR_BACKEND_CUDA ? IMAGES : 2, "ways %d", set);
    }
    if (o->backend == MAR_BACKEND_CUDA) goto close;
    mar_params p = plain();
    for (int batch = 1; batch <= 3; batch += 2) RUN(batch, "plain");
    p.num_iter = 7, p.cfg_schedule = MAR_CFG_CONSTANT, p.temperature = 0.9f, p.seed = UINT64_C(0x1234567890ABCDEF);
    RUN(2, "constant, temperature");
    if (!brief) {
        for (int set = 0; set < 64; set += set < 4 ? 1 : 4) {
            p = plain();
            p.cfg = 1;
            turn_on(&p, set);
            RUN(3, "ways %d, no guidance", set);
        }
        for (int kind = MAR_ANNEAL_COSINE; kind <= MAR_ANNEAL_TWO_STAGE; kind++) {
            p = plain();
            p.diff_annealing = (mar_annealing)kind;
            RUN(2, "annealing %d", kind);
        }
        p = plain(), p.sampler = MAR_SAMPLER_DDIM;
        RUN(2, "ddim");
        for (int w = 1; w <= 32; w *= 2) {
            p = plain(), p.head_spec = w;
            RUN(2, "head_spec %d", w);
        }
        p = plain(), p.head_spec = 4, p.temperature = 0;
        RUN(2, "head_spec 4, temperature 0");
    }
    if (draft) {
        static const char *const specs[] = {NULL, "conditional", "paper", "cspd"};
        for (int i = 0; i < 4; i++)
            for (int full = 0; full < 2; full++)
                for (int align = 0; align < 2; align++) {
                    if (brief && (i < 2 || align == 0)) continue;
                    p = plain();
                    p.draft = draft, p.spec = specs[i], p.context = full ? MAR_CONTEXT_FULL : MAR_CONTEXT_PREFIX;
                    p.align = align, p.gamma = 3 + i;
                    p.prefill = align ? 0.3f : 0.05f;
                    if (i == 0) p.gamma = 1000;
                    RUN(align ? 2 : 3, "%s, context %d, align %d", specs[i] ? specs[i] : "draft", full, align);
                }
        p = plain(), p.draft = draft, p.head_spec = 6;
        RUN(2, "draft, head_spec 6");
        p.spec = "paper";
        RUN(2, "draft, head_spec 6, paper");
        p = plain(), p.draft = draft, p.spec = "conditional", p.prefill = 1;
        RUN(2, "draft, prefill 1");
        p = plain(), p.draft = draft, p.spec = "cspd", p.inner_temperature = 3, p.cfg = 1;
        RUN(1, "cspd, inner_temperature 3, no guidance");
    }
close:
    mar_vae_free(vae);
    mar_model_free(draft);
    mar_model_free(model);
    mar_close(m);
#undef RUN
}

int main(int argc, char **argv)
{
    static const char lazy_small[] = "tests/golden/data/lazy_small.safetensors";
    const int cuda = argc > 1 && strcmp(argv[1], "cuda") == 0;
    for (int dtype = MAR_DTYPE_F32; dtype <= MAR_DTYPE_BF16; dtype++) {
        mar_options o = {.dtype = (mar_dtype)dtype, .threads = 1, .backend = cuda ? MAR_BACKEND_CUDA : MAR_BACKEND_CPU};
        run_all(&o, lazy_small, NULL, cuda);
        if (cuda) continue;
        run_all(&o, "demo", "demo-draft", 0);
        o.threads = 2;
        run_all(&o, "demo", "demo-draft", 1);
    }
    return 0;
}
