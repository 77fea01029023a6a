/* The chain of 16 and more rows in groups (groups.cuh), and the division of the multiprocessors. Products take the
 * groups of a step in their order, step after step. */
#include "kernels/cuda/groups.cuh"

struct groups_chain_args : groups_args {
    enum { LOADED = 0 };
    kern_chain_job j;
};

/* --- the order ------------------------------------------------------------------------------------------------- */

static __device__ __forceinline__ groups_at groups_next(const persistent_args &, const groups_chain_args &g,
                                                        const groups_share &, unsigned entry)
{
    const unsigned groups = (unsigned)((g.tiles + g.group - 1) / g.group), round = entry / groups;
    return {(int)round > g.j.first ? -1 : (int)(entry - round * groups), (int)round};
}

/* Of a row without token the last one's. */
static __device__ __forceinline__ int groups_mod_row(const groups_chain_args &g, int round, int row)
{
    const int tokens = groups_states(g), token = min((row >> 4) * tokens + (row & (tokens - 1)), g.j.tokens - 1);
    return (round * g.conditions + groups_condition(g, row)) * g.j.tokens + token;
}

/* Prefetches into the L2 cache what the block's columns need of the modulation rows of the team's next group. They were
 * made for many steps at once, so they are in device memory. */
static __device__ __forceinline__ void groups_prefetch(const persistent_args &a, const groups_chain_args &g,
                                                       const groups_share &s, int block, unsigned entry)
{
    const groups_at at = groups_next(a, g, s, entry + GROUPS_TEAMS);
    if (at.group < 0) return;
    const int rows = 16 * groups_tiles_of(g, at.group), bytes = 16 * s.tiles, lines = (bytes + 127) / 128 + 1;
#pragma unroll 1
    for (int i = (int)threadIdx.x % GROUPS_TEAM; i < 3 * lines * rows; i += GROUPS_TEAM) {
        const int row = i % rows, part = i / rows % 3, line = i / rows / 3, of = part == 2 ? block : block + 1;
        const unsigned char *mod = groups_mod(a, g, groups_mod_row(g, at.round, 16 * g.group * at.group + row));
        if (of < a.depth)
            fast::prefetch_l2((const char *)groups_ada(a, mod, of, part, 8 * s.first) + min(128 * line, bytes - 1));
    }
}

/* --- the turn -------------------------------------------------------------------------------------------------- */

/* Takes the step of a thread's quad of the tile's tokens, to j.x and t.state. */
static __device__ __forceinline__ void groups_step(const persistent_args &a, const groups_chain_args &g,
                                                   const groups_turning &t, int round, int slot, int token, int channel,
                                                   const cuda_floats<4> &noise)
{
    const kern_chain_job &j = g.j;
    const kern_chain_coef coef = j.coef ? j.coef[j.first - round] : kern_chain_coef{};
    const kern_ode_coef ode = j.ode ? j.ode[j.first - round] : kern_ode_coef{};
    const float *cond = t.out + slot * 2 * a.channels + channel, *uncond = cond + 8 * 2 * a.channels;
    const float cfg = j.conditions == 2 ? j.cfg[token] : 0;
    float *x = j.x + (size_t)token * (size_t)a.channels + channel, *x0 = j.ode ? j.x0 + (x - j.x) : NULL;
#pragma unroll
    for (int n = 0; n < 4; n++) {
        const float eps = j.conditions == 2 ? kern_chain_eps(cond[n], uncond[n], cfg) : cond[n];
        x[n] = j.ode ? kern_chain_ode_next(&ode, x[n], eps, &x0[n])
                     : kern_chain_next(&coef, x[n], eps, cond[a.channels + n], noise.v[n]);
        t.state[slot * a.channels + channel + n] = x[n];
    }
}

/* Prefetches into the L2 cache what the turn of a tile reads of its modulation rows: the final layer's part of a step,
 * and the first block's shift and scale of the next one. */
static __device__ __forceinline__ void groups_prefetch_turn(const persistent_args &a, const groups_chain_args &g,
                                                            int round, int tile)
{
    const int last = 8 * a.width, first = 4 * a.width; /* bytes */
#pragma unroll 1
    for (int i = (int)threadIdx.x; i < 16 * (last + first) / 128; i += PERSISTENT_THREADS) {
        const int at = i / 16 * 128, row = 16 * tile + i % 16;
        if (at < last)
            fast::prefetch_l2(groups_mod(a, g, groups_mod_row(g, round, row)) + a.mod_final + at);
        else if (round < g.j.first)
            fast::prefetch_l2(groups_mod(a, g, groups_mod_row(g, round + 1, row)) + at - last);
    }
}

/* The life of a block that turns tiles rank, rank + form.turners, ... The states are in j.x, each of one block. */
template <bool SWIGLU>
static __device__ __forceinline__ void groups_turn(const persistent_args &a, const groups_chain_args &g, int rank)
{
    const kern_chain_job &j = g.j;
    const int quads = a.channels / 4, slot = (int)threadIdx.x / quads, channel = (int)threadIdx.x % quads * 4;
    const groups_turning t = groups_begin_turn(a);
#pragma unroll 1
    for (int round = -1; round <= j.first; round++)
#pragma unroll 1
        for (int tile = rank; tile < g.tiles; tile += g.form.turners) {
            const int token = tile * groups_states(g) + slot, group = tile / g.group;
            const bool some = slot < groups_states(g) && token < j.tokens;
            float *state = t.state + slot * a.channels + channel;
            cuda_floats<4> noise = {};
            if (round >= 0) {
                uint32_t words[4];
                groups_prefetch_turn(a, g, round, tile);
                if (some && j.coef && j.coef[j.first - round].noise != 0) {
                    kern_random_words(j.seed[token], KERN_NOISE_STEP, j.image[token], (uint32_t)j.position[token],
                                      (uint32_t)j.t[j.first - round], (uint32_t)channel / 4, words);
                    kern_normal4(words, noise.v);
                }
                const unsigned target = (unsigned)(round + 1) * groups_arrivals(a, g, group);
                if (threadIdx.x == 0) groups_wait(a, g.counts + group * GROUPS_LINE, target);
                __syncthreads();
                groups_out(a, g, t, round, tile);
            }
            if (!some)
                for (int n = 0; n < 4 && slot < 16; n++) state[n] = 0;
            else if (round < 0)
                for (int n = 0; n < 4; n++) state[n] = j.x[(size_t)token * (size_t)a.channels + channel + n];
            else
                groups_step(a, g, t, round, slot, token, channel, noise);
            if (round < j.first) groups_enter<SWIGLU>(a, g, t, round + 1, tile);
        }
}

/* --- the kernel ------------------------------------------------------------------------------------------------ */

template <int MT, bool SWIGLU>
static __global__ void __launch_bounds__(PERSISTENT_THREADS, 1) groups_chain(persistent_args a, groups_chain_args g)
{
    const int turner = groups_turner(a, g);
    if (g.tiles == 0) return; /* loading only tests whether the kernel starts */
    if (turner >= 0)
        groups_turn<SWIGLU>(a, g, turner);
    else
        groups_multiplies<MT, SWIGLU>(a, g);
    persistent_report(a);
}
static void (*const groups_chains[2][2])(persistent_args, groups_chain_args) = {
    {groups_chain<1, false>, groups_chain<1, true>}, {groups_chain<2, false>, groups_chain<2, true>}};

/* --- the host -------------------------------------------------------------------------------------------------- */

/* Divides the multiprocessors over the turn, a twelfth, and the products, by their bytes; but an fc2 gets enough that
 * its blocks take their columns in one pass. Returns 0 if there are too few. */
int groups_find(const cuda_queue *c, const persistent_args *a, groups_form *f)
{
    const int blocks = c->device->multiprocessors, each = (blocks - max(1, blocks / 12)) / a->depth;
    const int tiles1 = a->fc1_columns / 8, tiles2 = a->width / 8, least = (int)cuda_blocks((size_t)tiles2, GROUPS_PASS);
    const int share = each * a->hidden / (a->hidden + a->fc1_columns);
    const int pieces = (int)(c->device->shared_bytes / sizeof(uint4));
    const int turn = max(4 * a->width + 12 * a->channels, (int)(PERSISTENT_SCRATCH / sizeof(uint4)));
    *f = {};
    f->fc2 = min(max(share, least), min(tiles2, 2 * (int)GROUPS_ENTRIES)), f->fc1 = min(each - f->fc2, tiles1);
    if (f->fc1 < 1 || f->fc2 < least) return 0;
    const int most1 = (int)cuda_blocks((size_t)tiles1, (size_t)f->fc1), fixed1 = GROUPS_FIXED + 2 * most1;
    const int most2 = (int)cuda_blocks((size_t)tiles2, (size_t)f->fc2), fixed2 = GROUPS_FIXED + 2 * most2;
    if (max(turn, max(fixed1, fixed2)) > pieces) return 0;
    f->resident1 = min(most1, (pieces - fixed1) / a->width), f->resident2 = min(most2, (pieces - fixed2) / a->hidden);
    /* each group reads the other weights from the L2 cache again */
    if (2 * f->resident1 < most1 || 2 * f->resident2 < most2) return 0;
    const int products = max(fixed1 + f->resident1 * a->width, fixed2 + f->resident2 * a->hidden);
    f->turners = blocks - a->depth * (f->fc1 + f->fc2);
    f->shared_bytes = (size_t)max(turn, products) * sizeof(uint4);
    return 1;
}

/* Returns the bytes that a launch sets to 0 first: a line for waits that gave up, the queue, counts and moments. */
static size_t groups_zeros(const persistent_head *f, size_t tiles)
{
    return (1 + tiles) * GROUPS_LINE * sizeof(unsigned) +
           (GROUPS_QUEUE + tiles * 16 * 2 * (size_t)f->groups.fc2) * sizeof(uint4);
}

size_t groups_tiles(int rows)
{
    return cuda_blocks((size_t)rows, 16) + 1; /* also with guidance, of rows / 2 tokens; a whole group */
}

size_t groups_scratch_bytes(const persistent_head *f, int rows)
{
    const size_t tiles = groups_tiles(rows);
    if (!f || !f->groups.turners) return 0;
    return groups_zeros(f, tiles) + tiles * 16 * (size_t)(6 * f->args.width + 2 * f->args.hidden);
}

size_t groups_lay_out(const persistent_head *f, void *scratch, persistent_args *a, groups_args *g)
{
    const size_t tiles = cuda_blocks((size_t)g->tiles, (size_t)g->group) * (size_t)g->group; /* with the missing one */
    const size_t zeros = groups_zeros(f, tiles), x = 16 * tiles * (size_t)a->width;          /* channels */
    a->arrivals = (unsigned *)scratch; /* tells only that a wait gave up */
    g->queue = (uint4 *)(a->arrivals + GROUPS_LINE);
    g->counts = (unsigned *)(g->queue + GROUPS_QUEUE);
    g->moments = (uint4 *)(g->counts + tiles * GROUPS_LINE);
    a->x = (uint4 *)((char *)scratch + zeros), g->u = a->x + x / 4, a->v = g->u + x / 8;
    return zeros;
}

cudaError_t groups_try(const cuda_queue *c, const persistent_head *f, const groups_form *form)
{
    groups_chain_args g = {};
    g.form = *form;
    g.group = 1;
    const cudaError_t e = groups_start(c, f->args, groups_chains, g);
    g.group = 2;
    return e == cudaSuccess ? groups_start(c, f->args, groups_chains, g) : e;
}

int groups_run(cuda_queue *c, const persistent_head *f, const kern_chain_job *job)
{
    groups_chain_args g = {};
    if (!f || !f->groups.turners || job->tokens * job->conditions < GROUPS_LEAST) return 0;
    persistent_args a = f->args;
    g.form = f->groups, g.conditions = job->conditions, g.mod = (const unsigned char *)job->mod, g.j = *job;
    g.tiles = (int)cuda_blocks((size_t)job->tokens, job->conditions == 2 ? 8 : 16);
    g.group = g.tiles <= 5 * a.depth ? 1 : 2; /* docs/persistent.md */
    const size_t zeros = groups_lay_out(f, job->scratch, &a, &g);
    groups_launch(c, a, zeros, groups_chains, g);
    return 1;
}
