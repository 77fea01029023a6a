/* A trace's operations of the diffusion head. */
#include "kernels/head_work.h"
#include "kernels/speculation.h"
#include "kernels/trace_call.h"

static double head_macs(const kern_head_spec *s)
{
    return kern_head_macs(s->width, s->depth, s->channels);
}

static double evaluation_bytes(const kern_queue *k, const kern_head *h, const kern_head_spec *s, int rows)
{
    const double size = kern_head_weight_size(s->width, s->int8, s->f32 ? sizeof(float) : (double)k->device->act_size);
    const double weights = kern_head_weight_bytes(s->width, s->depth, s->channels, size);
    return kern_head_bytes(weights, (double)k->head->mod_bytes(h), s->channels, rows);
}

static kern_head_spec spec_of(const kern_queue *k, const kern_head *h)
{
    kern_head_spec s;
    k->device->measure->head_spec(h, &s);
    return s;
}

typedef struct {
    kern_trace_call o;
    const kern_head *h;
    const float *temb, *cond;
    const int *temb_index;
    const uint8_t *fine;
    int steps, each;
    void *mod, *scratch;
} modulate_call;

TRACE_BODY(modulate, head->modulate, c->h, c->temb, c->temb_index, c->fine, c->steps, c->cond, c->each, c->mod,
           c->scratch)

static void traced_modulate(kern_queue *k, const kern_head *h, const float *temb, const int *temb_index,
                            const uint8_t *fine, int steps, const float *cond, int rows, void *mod, void *scratch)
{
    const kern_head_spec s = spec_of(k, h);
    const double macs = kern_modulation_macs(s.width, s.depth), all = (double)steps * rows;
    const double size = kern_head_weight_size(s.width, s.int8, s.f32 ? sizeof(float) : (double)k->device->act_size);
    const kern_trace_call o = kern_trace_call_of(k, steps * rows, size * macs + all * (double)k->head->mod_bytes(h),
                                                 2 * macs * all, "modulation %d x %d", s.depth, s.width);
    modulate_call c = {o, h, temb, cond, temb_index, fine, steps, rows, mod, scratch};
    kern_trace_run(&c.o, modulate_body, &c);
}

typedef struct {
    kern_trace_call o;
    const kern_head *h;
    const float *x;
    const int *x_index, *mod_index;
    const void *mod;
    kern_head_reuse reuse;
    float *kept;
    int kept_rows;
    float *out;
    void *scratch;
} eval_call;

static void eval_body(void *arg)
{
    const eval_call *c = arg;
    if (c->kept)
        c->o.head->eval_reusing(c->o.k, c->h, c->x, c->x_index, c->mod, c->mod_index, c->o.rows, c->reuse, c->kept,
                                c->kept_rows, c->out, c->scratch);
    else
        c->o.head->eval(c->o.k, c->h, c->x, c->x_index, c->mod, c->mod_index, c->o.rows, c->out, c->scratch);
}

static void traced_eval_reusing(kern_queue *k, const kern_head *h, const float *x, const int *x_index, const void *mod,
                                const int *mod_index, int rows, kern_head_reuse reuse, float *kept, int kept_rows,
                                float *out, void *scratch)
{
    static const char *const reuses[] = {"", ", warm", ", kept"};
    const kern_head_spec s = spec_of(k, h);
    const kern_trace_call o = kern_trace_call_of(k, rows, evaluation_bytes(k, h, &s, rows), 2 * head_macs(&s) * rows,
                                                 "head %d x %d%s", s.depth, s.width, reuses[reuse]);
    eval_call c = {o, h, x, x_index, mod_index, mod, reuse, kept, kept_rows, out, scratch};
    kern_trace_run(&c.o, eval_body, &c);
}

static void traced_eval(kern_queue *k, const kern_head *h, const float *x, const int *x_index, const void *mod,
                        const int *mod_index, int rows, float *out, void *scratch)
{
    traced_eval_reusing(k, h, x, x_index, mod, mod_index, rows, KERN_HEAD_FRESH, NULL, 0, out, scratch);
}

typedef struct {
    kern_trace_call o;
    const kern_head *h;
    const kern_chain_job *job;
} chain_call;

TRACE_BODY(chain, head->chain_run, c->h, c->job)

static void traced_chain_run(kern_queue *k, const kern_head *h, const kern_chain_job *job)
{
    const kern_head_spec s = spec_of(k, h);
    const int rows = job->tokens * job->conditions, steps = job->first - job->last + 1;
    const kern_trace_call o =
        kern_trace_call_of(k, rows, steps * evaluation_bytes(k, h, &s, rows), 2 * head_macs(&s) * rows * steps,
                           "chain %d x %d, %d steps", s.depth, s.width, steps);
    chain_call c = {o, h, job};
    kern_trace_run(&c.o, chain_body, &c);
}

TRACE_JOB(verify, head->verify)

static void traced_verify(kern_queue *k, const kern_verify_job *job)
{
    const kern_trace_call o = kern_trace_call_of(k, job->rows, 24.0 * job->rows * job->channels, 0, "verify");
    verify_call c = {o, job};
    c.o.recorded = 0; /* x may be the draft, which a second run would not find */
    kern_trace_run(&c.o, verify_body, &c);
}

TRACE_JOB(path_ratio, head->path_ratio)

static void traced_path_ratio(kern_queue *k, const kern_path_job *job)
{
    const double numbers = (double)job->paths * job->steps * job->channels;
    const kern_trace_call o = kern_trace_call_of(k, job->paths, 4 * numbers * (3 + 2 * job->conditions), 0,
                                                 "path ratio, %d steps", job->steps);
    path_ratio_call c = {o, job};
    kern_trace_run(&c.o, path_ratio_body, &c);
}

TRACE_JOB(path_decide, head->path_decide)

static void traced_path_decide(kern_queue *k, const kern_path_verdict *job)
{
    const kern_trace_call o = kern_trace_call_of(k, job->rows, 12.0 * job->rows, 0, "path verdict");
    path_decide_call c = {o, job};
    kern_trace_run(&c.o, path_decide_body, &c);
}

typedef struct {
    kern_trace_call o;
    float *x;
    int channels, step;
    uint64_t seed;
    kern_noise purpose;
    const uint64_t *image;
    const int *position;
} normal_call;

TRACE_BODY(normal, head->normal, c->x, c->o.rows, c->channels, c->seed, c->purpose, c->image, c->position, c->step)

static void traced_normal(kern_queue *k, float *x, int rows, int channels, uint64_t seed, kern_noise purpose,
                          const uint64_t *image, const int *position, int step)
{
    const kern_trace_call o = kern_trace_call_of(k, rows, 4.0 * rows * channels, 0, "noise %d", channels);
    normal_call c = {o, x, channels, step, seed, purpose, image, position};
    kern_trace_run(&c.o, normal_body, &c);
}

/* Speculation inside the head: each call is timed where it is, for it depends on what it finds. */
typedef struct {
    kern_trace_call o;
    kern_speculation *w;
    const kern_speculation_head *at;
    int result;
} speculation_call;

static void propose_body(void *arg)
{
    speculation_call *c = arg;
    c->result = c->o.head->speculate_propose(c->o.k, c->w, c->at);
}
static void walk_body(void *arg)
{
    speculation_call *c = arg;
    c->o.head->speculate_walk(c->o.k, c->w, c->at);
}
static void run_body(void *arg)
{
    speculation_call *c = arg;
    c->result = c->o.head->speculate_run(c->o.k, c->w, c->at);
}

static int speculate(kern_queue *k, kern_speculation *w, const kern_speculation_head *at, const char *name,
                     void (*body)(void *arg))
{
    const kern_trace_call o =
        kern_trace_call_of(k, w->tokens * w->conditions * w->window, 0, 0, "%s, window %d", name, w->window);
    speculation_call c = {o, w, at, 0};
    c.o.recorded = 0;
    kern_trace_run(&c.o, body, &c);
    return c.result;
}

static int traced_propose(kern_queue *k, kern_speculation *w, const kern_speculation_head *draft)
{
    return speculate(k, w, draft, "proposals", propose_body);
}
static void traced_walk(kern_queue *k, kern_speculation *w, const kern_speculation_head *target)
{
    (void)speculate(k, w, target, "walk", walk_body);
}
static int traced_run(kern_queue *k, kern_speculation *w, const kern_speculation_head *target)
{
    return speculate(k, w, target, "all rounds", run_body);
}

void kern_trace_head(kern_trace *t)
{
    t->head.modulate = traced_modulate;
    t->head.eval = traced_eval;
    t->head.eval_reusing = traced_eval_reusing;
    t->head.chain_run = traced_chain_run;
    t->head.verify = traced_verify;
    t->head.path_ratio = traced_path_ratio;
    t->head.path_decide = traced_path_decide;
    t->head.normal = traced_normal;
    t->head.speculate_propose = traced_propose;
    t->head.speculate_walk = traced_walk;
    if (t->head.speculate_run) t->head.speculate_run = traced_run;
}
