/* The formulas of mar bench --model_time for --spec path (mar/ways/path.h) with drafts from the model's own last
 * conditions, one image at a time. A round is an arithmetic of counts, as in bench_model.c; how many rounds an image
 * has is an expectation over what is accepted. No sampling: a round's first step says all about it but what the round
 * before left to replace, so expectations follow from the last step to the first.
 *
 * Guesses beside those of bench_model.c: a step's tokens are accepted independently of each other, an image's first
 * steps as often as its last. */
#include "tools/bench/model.h"

#include <math.h>

/* Acceptance of the demo target's own late conditions, measured with guidance 2.9, 64 steps of one token and 100
 * diffusion steps in f32, by how many 64ths of the image they are late, of all tokens. `python3 bench/path_figures.py`
 * measures it of steps that counted: up to 0.02 less below a lateness of 8, and 0.09 more at 16. */
static const struct {
    double late, accepted;
} demo[] = {{1, 0.949}, {2, 0.930}, {4, 0.871}, {8, 0.816}, {16, 0.723}, {32, 0.556}};
enum { DEMO = sizeof demo / sizeof *demo };

/* -log of the acceptance is a power of the lateness between two measurements, and beyond them. What is late by a part
 * of an image is late by the same part of a larger one: of the demo's four-token steps, late by 1, 2 and 4 steps,
 * 0.867, 0.807 and 0.718 were accepted, as of its single tokens late by 4, 8 and 16. */
double model_path_accepted(const model_constants *c, double late, double seq)
{
    const double x = log(64 * late / seq);
    int i = 0;
    while (i < DEMO - 2 && x > log(demo[i + 1].late)) i++;
    const double x0 = log(demo[i].late), x1 = log(demo[i + 1].late);
    const double y0 = log(-log(demo[i].accepted)), y1 = log(-log(demo[i + 1].accepted));
    return exp(-c->value[MODEL_POWER] * exp(y0 + (x - x0) / (x1 - x0) * (y1 - y0)));
}

/* What a step of a round is verified with. */
typedef struct {
    int tokens;
    double accepted; /* the probability of a path */
    double kept;     /* of all the step's paths */
} verified;

/* Step `first` + j of a round that begins with step `first` > 0. Its drafts' conditions are those of the context of
 * step first - 1, the last one of the round before. */
static verified verify(const model_constants *c, const int *known, int steps, int first, int j)
{
    const int at = first + j;
    verified v = {.tokens = known[at + 1] - known[at]};
    v.accepted = model_path_accepted(c, known[at] - known[first - 1], known[steps]);
    v.kept = pow(v.accepted, v.tokens);
    return v;
}

static int round_length(int steps, int first, int gamma)
{
    return gamma < steps - first ? gamma : steps - first;
}

/* --- replacements ------------------------------------------------------------------------------------------------- */

enum { CANDIDATES = 8, CANDIDATES_MOST = 64 }; /* PATH_CANDIDATES, PATH_CANDIDATES_MOST of mar/ways/path.h */

/* Tokens of one step that have to be replaced. */
typedef struct {
    int tokens;
    double rejected; /* the share of drafts that are */
} replaced;

/* Of a step with a rejection: the mean number of them. */
static replaced replaced_of(const verified *v)
{
    const double share = 1 - v->accepted;
    return (replaced){.tokens = (int)ceil(v->tokens * share / (1 - v->kept) - 1e-9), .rejected = share};
}

/* A candidate is kept as often as a draft of that token is rejected, which differs among tokens: let the share be
 * Beta(1, b) distributed. Then this is the probability that a token needs more than n candidates. For the demo, whose
 * mean is 1/7, it gives 1 % beyond 54, and the longest of its replacements took 54 to 91. */
static double beyond(double rejected, double n)
{
    const double b = 1 / rejected - 1;
    return b * (b + 1) / ((b + n) * (b + n + 1));
}

/* The mean number of candidates that a token needs after n: the sum of that from n on. */
static double needed_after(double rejected, double n)
{
    const double b = 1 / rejected - 1;
    return b * (b + 1) / (b + n);
}

/* --- time --------------------------------------------------------------------------------------------------------- */

typedef struct {
    const model_constants *c;
    const model_shape *shape;
    const int *known;
    int steps, gamma, window, f32;
} path_run;

static void add(model_times *to, double weight, const model_times *t)
{
    to->passes += weight * t->passes;
    to->calls += weight * t->calls;
    to->transformer += weight * t->transformer;
    to->modulation += weight * t->modulation;
    to->head += weight * t->head;
    to->judging += weight * t->judging;
    to->waiting += weight * t->waiting;
}

/* Calls of the head over all states of some paths, under conditions that are new to it. A kernel a call adds up,
 * another one decides, and the host waits for what it says. */
static void judge(const path_run *p, int paths, int conditions, double weight, model_times *t)
{
    enum { ROWS = MODEL_CONDITIONS * MODEL_DIFFUSION_STEPS, MOST = 4096 / ROWS }; /* diffusion/paths.c: JUDGED_ROWS */
    const model_constants *c = p->c;
    const double calls = ceil((double)paths / MOST), small = c->value[MODEL_LAUNCH] + c->value[MODEL_RAMP];
    if (paths == 0) return;
    const double a_call = model_modulation(c, p->shape, ROWS * conditions / calls, p->f32) + small +
                          (p->f32 ? model_products_f32 : model_products)(c, p->shape->head_width, p->shape->head_depth,
                                                                         (int)ceil(ROWS * paths / calls));
    t->calls += weight * calls;
    t->judging += weight * (calls * a_call + small);
    t->waiting += weight * c->value[MODEL_WAIT];
}

/* Draws paths, of so many conditions. */
static void draw(const path_run *p, int paths, int conditions, double weight, model_times *t)
{
    const double steps = (double)MODEL_CONDITIONS * MODEL_DIFFUSION_STEPS;
    double calls = 0;
    if (paths == 0) return;
    t->head += weight * model_chain(p->c, p->shape, paths, p->window, p->f32, &calls);
    t->calls += weight * calls;
    t->modulation += weight * model_modulation(p->c, p->shape, steps * conditions, p->f32);
}

static int candidates_of(int tokens, int each)
{
    const int most = tokens > CANDIDATES_MOST ? tokens : CANDIDATES_MOST;
    return tokens * each < most ? tokens * each : most;
}

/* Draws `drafts` tokens and, in the same chain, the first candidates for what the round before left to replace; then
 * more candidates, twice as many each time, until all are replaced. */
static void draw_and_replace(const path_run *p, int drafts, replaced r, model_times *t)
{
    double weight = 1, had = 0; /* the mean number of such draws, and the candidates that a token had before them */
    int tokens = r.tokens, candidates = candidates_of(tokens, CANDIDATES);
    draw(p, drafts + candidates, drafts + tokens, 1, t);
    judge(p, candidates, tokens, 1, t);
    if (tokens == 0) return;
    for (int each = 2 * CANDIDATES; candidates < CANDIDATES_MOST; each *= 2) {
        had += (double)candidates / tokens;
        weight = 1 - pow(1 - beyond(r.rejected, had), r.tokens);
        if (weight <= 0) return;
        tokens = (int)ceil(r.tokens * beyond(r.rejected, had) / weight - 1e-9);
        candidates = candidates_of(tokens, each);
        draw(p, candidates, tokens, weight, t);
        judge(p, candidates, tokens, weight, t);
    }
    had += (double)candidates / tokens; /* from here on the draws have one size */
    weight = r.tokens * needed_after(r.rejected, had) / candidates;
    draw(p, candidates, tokens, weight, t);
    judge(p, candidates, tokens, weight, t);
}

static int tokens_between(const path_run *p, int first, int end)
{
    return p->known[end] - p->known[first];
}

/* From the draw before the round that begins with step `first`, to the image's end; `rest` has the rounds from each
 * later step on, without that draw. */
static void draw_from(const path_run *p, int first, replaced r, const model_times *rest, double weight, model_times *t)
{
    model_times drawn = {0};
    draw_and_replace(p, tokens_between(p, first, first + round_length(p->steps, first, p->gamma)), r, &drawn);
    add(t, weight, &drawn);
    add(t, weight, &rest[first]);
}

/* The round of steps first .. first + length - 1, whose drafts have been drawn, and all after it. */
static model_times round_from(const path_run *p, int first, int length, const model_times *rest)
{
    const int drafts = tokens_between(p, first, first + length);
    model_times t = {.passes = 1};
    double left = 1; /* the probability that all steps so far are kept */
    t.transformer = model_pass(p->c, p->shape, p->known + first, length, 1);
    judge(p, drafts, drafts, 1, &t);
    for (int j = 0; j < length; j++) {
        const verified v = verify(p->c, p->known, p->steps, first, j);
        if (v.kept < 1) draw_from(p, first + j + 1, replaced_of(&v), rest, left * (1 - v.kept), &t);
        left *= v.kept;
    }
    draw_from(p, first + length, (replaced){0}, rest, left, &t);
    return t;
}

/* The first pass has one context, of which the first step's conditions are true ones: this step's drafts need no judge.
 */
model_times model_path_image(const model_constants *c, const model_shape *s, const int *known, int steps, int gamma,
                             int window, int f32)
{
    model_times rest[MODEL_SEQ + 1] = {{0}}, t = {.passes = 1};
    const path_run p = {c, s, known, steps, gamma, window, f32};
    const int length = round_length(steps, 0, gamma);
    for (int first = steps - 1; first > 0; first--)
        rest[first] = round_from(&p, first, round_length(steps, first, gamma), rest);
    t.transformer = model_pass(c, s, known, 1, 1);
    draw_and_replace(&p, tokens_between(&p, 0, length), (replaced){0}, &t);
    if (length > 1) {
        const model_times others = round_from(&p, 1, length - 1, rest);
        add(&t, 1, &others);
    } else {
        draw_from(&p, 1, (replaced){0}, rest, 1, &t);
    }
    t.modulation += model_image_decoder(c);
    t.total = t.transformer + t.modulation + t.head + t.judging + t.waiting;
    return t;
}
