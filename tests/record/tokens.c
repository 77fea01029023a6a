/* Prints one line for every configuration that the tests know: a hash of the tokens, and of the images. Two builds with
 * the same lines draw bit-identical tokens. It includes only the public header, so that it compiles against an older
 * tree: tests/record/compare.sh REV.
 *   token_record [cpu|cuda] */
#include "mar.h"
#include "mar_measure.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifdef MAR_VERSION_MAJOR /* since then structs begin with their size; older revisions are built with this file, too */
#define SIZE(type) .size = sizeof(type),
#else
#define SIZE(type)
#endif

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

/* Turns on the accelerators of a set. mar_session_create refuses those that conflict. */
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
        printf("%s: refused\n", name); /* the message is omitted, since it may change */
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
    mar_stats stats = {SIZE(mar_stats).total_s = 0};
    mar_session_get_stats(s, &stats);
    printf("%s: %s %016llx %016llx, %.0f %.0f %.0f calls, %ld of %ld\n", name, mar_status_name(status),
           (unsigned long long)hash(tokens, IMAGES * size * sizeof *tokens),
           (unsigned long long)hash(pixels, IMAGES * bytes), stats.head_calls, stats.head_batched, stats.draft_calls,
           stats.accepted, stats.drafted);
    mar_session_free(s);
    fflush(stdout);
}

/* Runs one model in all configurations. `brief` runs only the plain ones and each accelerator alone. */
static void run_all(const mar_options *o, const char *file, const char *draft_file, int brief)
{
    static const char *const dtypes[] = {"auto", "f32", "bf16", "int8"};
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
        for (int i = 0; i < 12; i++) { /* whole paths: own drafts or those of another model, with windows */
            if (brief && i % 5) continue;
            p = plain();
            p.spec = "path", p.gamma = 2 + 3 * (i % 3), p.head_spec = i / 3 % 2 ? 4 : 1, p.draft = i / 6 ? draft : NULL;
            if (i % 2) p.cfg_low = 0.1f, p.cfg_high = 0.9f;
            RUN(1 + i % 3, "path, gamma %d, head_spec %d, %s", p.gamma, p.head_spec, p.draft ? "draft" : "self");
        }
    }
close:
    mar_vae_free(vae);
    mar_model_free(draft);
    mar_model_free(model);
    mar_close(m);
#undef RUN
}

/* Runs the demo of discrete tokens in full: every method for them, chains and trees, both kinds of drafts. */
static void run_discrete(const mar_options *o)
{
    static const char *const dtypes[] = {"auto", "f32", "bf16", "int8"};
    static const struct {
        const char *spec, *tree;
        int draft; /* 0: none; 1: a small model; 2: EAGLE */
        float cfg, temperature;
        int top_k;
    } cases[] = {
        {NULL, NULL, 0, 1, 1, 0},
        {NULL, NULL, 0, 2.9f, 0.9f, 50},
        {NULL, NULL, 0, 2.9f, 0, 0},
        {"vanilla", NULL, 1, 2.9f, 1, 0},
        {"vanilla", "static", 1, 1, 1, 0},
        {"vanilla", "dynamic", 2, 2.9f, 1, 0},
        {"vanilla", "4,2,1", 2, 2.9f, 0, 0},
        {"uniform-rsd", NULL, 1, 2.9f, 1, 100},
        {"cool-sd-exp", NULL, 1, 2.9f, 1, 0},
        {"cool-sd-linear", NULL, 2, 2.9f, 1, 0},
        {"lantern", NULL, 1, 2.9f, 1, 0},
        {"lantern-pp", "static", 2, 2.9f, 1, 0},
        {"lantern-gstar", NULL, 2, 1, 0.9f, 0},
        {"lantern-pp-gstar", "dynamic", 1, 2.9f, 1, 0},
        {"sjd", NULL, 0, 2.9f, 1, 0},
        {"sjd", NULL, 0, 1, 0, 0},
        {"sjd-pac", NULL, 0, 2.9f, 1, 100},
    };
    mar *m;
    mar_model *model = NULL, *drafts[3] = {NULL};
    mar_vae *vae = NULL;
    if (mar_open(o, &m) != MAR_OK || mar_model_load(m, "demo-discrete", 0, &model) != MAR_OK ||
        mar_model_load(m, "demo-discrete-draft", 0, &drafts[1]) != MAR_OK ||
        mar_model_load(m, "demo-discrete-eagle", 0, &drafts[2]) != MAR_OK ||
        mar_vae_load(m, "demo-discrete", &vae) != MAR_OK) {
        printf("demo-discrete %s: %s\n", dtypes[o->dtype], mar_error(m));
        exit(1);
    }
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (int batch = 1; batch <= 3; batch += 2) {
            char name[128];
            mar_params p;
            mar_params_init(&p, sizeof p);
            p.spec = cases[i].spec, p.tree = cases[i].tree, p.draft = drafts[cases[i].draft];
            p.cfg = cases[i].cfg, p.temperature = cases[i].temperature, p.top_k = cases[i].top_k;
            p.gamma = 8, p.window = 16; /* of every round: by default the demo's are plain */
            snprintf(name, sizeof name, "discrete %s, tree %s, draft %d, cfg %g, temperature %g, top_k %d %s, batch %d",
                     p.spec ? p.spec : "plain", p.tree ? p.tree : "chain", cases[i].draft, (double)p.cfg,
                     (double)p.temperature, p.top_k, dtypes[o->dtype], batch);
            run(model, vae, name, &p, batch);
        }
    mar_vae_free(vae);
    mar_model_free(drafts[1]);
    mar_model_free(drafts[2]);
    mar_model_free(model);
    mar_close(m);
}

int main(int argc, char **argv)
{
    static const char lazy_small[] = "tests/golden/data/lazy_small.safetensors";
    const int cuda = argc > 1 && strcmp(argv[1], "cuda") == 0;
    for (int dtype = MAR_DTYPE_F32; dtype <= (cuda ? MAR_DTYPE_BF16 : MAR_DTYPE_INT8); dtype++) {
        mar_options o = {SIZE(mar_options).dtype = (mar_dtype)dtype, .threads = 1,
                         .backend = cuda ? MAR_BACKEND_CUDA : MAR_BACKEND_CPU};
        run_all(&o, lazy_small, NULL, cuda);
        if (cuda) continue;
        run_all(&o, "demo", "demo-draft", 0);
        o.threads = 2;
        run_all(&o, "demo", "demo-draft", 1);
        run_discrete(&o);
    }
    return 0;
}
