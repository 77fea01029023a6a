/* A trace's operations of causal transformers and discrete tokens. */
#include "kernels/discrete.h"
#include "kernels/trace_call.h"

/* --- causal transformers ------------------------------------------------------------------------------------------ */

typedef struct {
    kern_trace_call o;
    const float *x, *weight;
    const int *index;
    int dim, y_f32;
    float eps;
    void *y;
} norm_call;

TRACE_BODY(norm, core->rms_norm, c->x, c->index, c->o.rows, c->dim, c->weight, c->eps, c->y, c->y_f32)

static void traced_rms_norm(kern_queue *k, const float *x, const int *index, int rows, int dim, const float *weight,
                            float eps, void *y, int y_f32)
{
    const double n = (double)rows * dim;
    const kern_trace_call o = kern_trace_call_of(k, rows, 4 * n + (y_f32 ? 4 * n : kern_trace_act_bytes(k, n)), 0,
                                                 "RMS norm %d%s", dim, y_f32 ? ", f32" : "");
    norm_call c = {o, x, weight, index, dim, y_f32, eps, y};
    kern_trace_run(&c.o, norm_body, &c);
}

typedef struct {
    kern_trace_call o;
    const act *x;
    int hidden;
    act *y;
} swiglu_call;

TRACE_BODY(swiglu, core->swiglu, c->x, c->o.rows, c->hidden, c->y)

static void traced_swiglu(kern_queue *k, const act *x, int rows, int hidden, act *y)
{
    const kern_trace_call o =
        kern_trace_call_of(k, rows, kern_trace_act_bytes(k, 3.0 * rows * hidden), 0, "SwiGLU %d", hidden);
    swiglu_call c = {o, x, hidden, y};
    kern_trace_run(&c.o, swiglu_body, &c);
}

typedef struct {
    kern_trace_call o;
    act *qkv, *cache;
    int heads, head_dim;
    const float *turn;
    const int *position, *slot;
} rotate_call;

TRACE_BODY(rotate, core->rotate, c->qkv, c->o.rows, c->heads, c->head_dim, c->turn, c->position, c->cache, c->slot)

static void traced_rotate(kern_queue *k, act *qkv, int rows, int heads, int head_dim, const float *turn,
                          const int *position, act *cache, const int *slot)
{
    const double width = (double)heads * head_dim;
    const kern_trace_call o = kern_trace_call_of(k, rows, kern_trace_act_bytes(k, 6 * rows * width), 0,
                                                 "positions into a cache %d x %d", heads, head_dim);
    rotate_call c = {o, qkv, cache, heads, head_dim, turn, position, slot};
    kern_trace_run(&c.o, rotate_body, &c);
}

TRACE_JOB(cache, core->attention_cache)

static void traced_attention_cache(kern_queue *k, const kern_cache_job *job)
{
    const double width = (double)job->heads * job->head_dim;
    double pairs = 0, slots = 0;
    for (int s = 0; s < job->spans; s++) {
        const int n = job->first[s + 1] - job->first[s];
        slots += n;
        pairs += (double)(job->row[s + 1] - job->row[s]) * n; /* a tree's rows know somewhat fewer */
    }
    const kern_trace_call o = kern_trace_call_of(
        k, job->rows, kern_trace_act_bytes(k, 2 * width * (slots + (job->turn ? 4 : 1) * job->rows)), 4 * width * pairs,
        "attention %d x %d over a cache, %d sequences", job->heads, job->head_dim, job->spans);
    cache_call c = {o, job};
    kern_trace_run(&c.o, cache_body, &c);
}

typedef struct {
    kern_trace_call o;
    const float *table;
    int size, dim;
    const int *token, *place;
    float *y;
} embed_call;

TRACE_BODY(embed, core->embed, c->table, c->size, c->dim, c->token, c->place, c->o.rows, c->y)

static void traced_embed(kern_queue *k, const float *table, int size, int dim, const int *token, const int *place,
                         int rows, float *y)
{
    const kern_trace_call o = kern_trace_call_of(k, rows, 8.0 * rows * dim, 0, "embeddings of drawn tokens %d", dim);
    embed_call c = {o, table, size, dim, token, place, y};
    kern_trace_run(&c.o, embed_body, &c);
}

/* --- discrete tokens ---------------------------------------------------------------------------------------------- */

TRACE_JOB(laws, discrete->laws)

static void traced_laws(kern_queue *k, const kern_law_job *job)
{
    const double n = (double)job->rows * job->size;
    const kern_trace_call o =
        kern_trace_call_of(k, job->rows, 4 * n * (job->conditions + 1), 0, "laws of %d tokens", job->size);
    laws_call c = {o, job};
    kern_trace_run(&c.o, laws_body, &c);
}

TRACE_JOB(draw, discrete->draw)

static void traced_draw(kern_queue *k, const kern_draw_job *job)
{
    const kern_trace_call o =
        kern_trace_call_of(k, job->rows, 4.0 * job->rows * job->size, 0, "draws from laws of %d tokens", job->size);
    draw_call c = {o, job};
    kern_trace_run(&c.o, draw_body, &c);
}

TRACE_JOB(verify, discrete->verify)

/* What a block reads depends on what is accepted: no bytes are counted. */
static void traced_verify(kern_queue *k, const kern_block_job *job)
{
    const kern_trace_call o = kern_trace_call_of(k, job->blocks, 0, 0, "verification of %d drafts of %d tokens",
                                                 job->node[job->blocks], job->size);
    verify_call c = {o, job};
    kern_trace_run(&c.o, verify_body, &c);
}

void kern_trace_tokens(kern_trace *t)
{
    t->core.rms_norm = traced_rms_norm;
    t->core.swiglu = traced_swiglu;
    t->core.rotate = traced_rotate;
    t->core.attention_cache = traced_attention_cache;
    t->core.embed = traced_embed;
    t->discrete.laws = traced_laws;
    t->discrete.draw = traced_draw;
    t->discrete.verify = traced_verify;
}
