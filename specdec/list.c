/* What `mar methods` shows: the registry, and the shortcuts that are no verifiers. */
#include "mar.h"
#include "specdec/verifier.h"

#include <pthread.h>
#include <stdio.h>

static const mar_method_info shortcuts[] = {
    {.name = "head-spec",
     .option = "--head_spec W",
     .exact = 1,
     .guarantee = "the target's law",
     .source = "De Bortoli et al. 2025, with continuous SD Eq. 10's residual",
     .summary = "guess W steps of a token's chain, verify them in one call of the head",
     .parameter_count = 1,
     .parameters = {{"W", "steps guessed at a time; 0: off", 0, 0, 64}}},
    {.name = "disa",
     .option = "--diff_annealing linear|cosine|two-stage",
     .guarantee = "none",
     .source = "DiSA (Zhao et al. 2025)",
     .summary = "fewer diffusion steps for later tokens",
     .parameter_count = 2,
     .parameters = {{"diff_upper_steps", "diffusion steps at the first autoregressive step", 50, 2, 1000},
                    {"diff_lower_steps", "and at the last", 5, 2, 1000}}},
    {.name = "lazymar",
     .option = "--lazy",
     .guarantee = "none",
     .source = "LazyMAR (2025)",
     .summary = "keep features of tokens and of the unguided pass that change little between steps"},
    {.name = "lazymar-head",
     .option = "--lazy_head",
     .guarantee = "none",
     .source = "LazyMAR's release (diffloss_cached.py)",
     .summary = "in 6 of 7 steps the head uses again what its blocks gave, on the conditional rows only"},
    {.name = "gtr",
     .option = "--gtr",
     .guarantee = "none",
     .source = "GtR (Generation then Reconstruction, 2025)",
     .summary = "half the tokens in many steps, the rest in few; diffusion steps where detail is",
     .parameter_count = 4,
     .parameters = {{"gtr_generation_steps", "autoregressive steps of the first half", 16, 1, 4096},
                    {"gtr_reconstruction_steps", "and of the second", 1, 1, 4096},
                    {"gtr_detail", "share of the second half that gets all diffusion steps", 0.3, 0, 1},
                    {"gtr_sampling_steps", "diffusion steps of the others", 50, 2, 1000}}},
    {.name = "ddim",
     .option = "--sampler ddim",
     .guarantee = "none: converges to another law of the same model with more steps",
     .source = "DDIM, eta 0 (Song et al. 2021)",
     .summary = "the head as an ODE, first order: few diffusion steps"},
    {.name = "dpmpp",
     .option = "--sampler dpmpp",
     .guarantee = "none: converges to another law of the same model with more steps",
     .source = "DPM-Solver++(2M) (Lu et al. 2022)",
     .summary = "the head as an ODE, second order: few diffusion steps"},
};
enum { SHORTCUTS = sizeof shortcuts / sizeof *shortcuts, VERIFIERS_MAX = 64 };

static mar_method_info infos[VERIFIERS_MAX + SHORTCUTS];
static char options[VERIFIERS_MAX][64];
static int count;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static const char *shapes(int topologies)
{
    static const char *const names[] = {"none",
                                        "chain",
                                        "tree",
                                        "chain, tree",
                                        "tree-chain",
                                        "chain, tree-chain",
                                        "tree, tree-chain",
                                        "chain, tree, tree-chain"};
    return names[topologies & 7];
}

static void add_verifier(const spec_method *m)
{
    mar_method_info *info = &infos[count];
    *info = (mar_method_info){.name = m->name,
                              .kind = "verifier",
                              .tokens = m->tokens & SPEC_CONTINUOUS ? "continuous" : "discrete",
                              .topology = shapes(m->topologies),
                              .exact = m->exact,
                              .guarantee = m->guarantee,
                              .source = m->source,
                              .summary = m->summary};
    if (m->tokens & SPEC_CONTINUOUS) {
        snprintf(options[count], sizeof options[count], "--draft FILE --spec %s", m->name);
        info->option = options[count];
    }
    for (int i = 0; m->parameters[i].name; i++) {
        const spec_parameter *p = &m->parameters[i];
        info->parameters[i].name = p->name, info->parameters[i].meaning = p->meaning;
        info->parameters[i].value = p->value, info->parameters[i].min = p->min, info->parameters[i].max = p->max;
        info->parameter_count = i + 1;
    }
    count++;
}

static void fill(void)
{
    for (const spec_method *const *m = spec_methods(); *m && count < VERIFIERS_MAX; m++) add_verifier(*m);
    for (int i = 0; i < SHORTCUTS; i++) {
        infos[count] = shortcuts[i];
        infos[count].kind = "shortcut";
        infos[count++].tokens = "continuous";
    }
}

int mar_method_count(void)
{
    pthread_once(&once, fill);
    return count;
}

const mar_method_info *mar_method_get(int i)
{
    return i >= 0 && i < mar_method_count() ? &infos[i] : NULL;
}
