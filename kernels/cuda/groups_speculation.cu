/* Speculation inside the head in groups (groups.cuh): a group has some slots, a slot the `window` states of its token.
 * The turn of a group is: final layer, the walk of each slot's token (speculation.cuh), the next token where one is
 * finished, proposals by the filter, input layer. So groups do not go in step: each goes round until no token is left
 * for it, and a walk that takes long holds up its own group only.
 *
 * A group is always turned by the same block. That appends it to a queue, from which products take groups: so all
 * blocks take them in one order, as fc2's must, which wait for each other's words. A group without a token is not
 * appended again. Who finds that it was the last one appends an end for each team. */
#include "kernels/cuda/groups.cuh"
#include "kernels/cuda/speculation.cuh"

struct groups_speculation_args : groups_args {
    enum { LOADED = 1 };
    kern_speculation w;
    int groups, slots; /* groups; slots of a group */
};

/* --- the order ------------------------------------------------------------------------------------------------- */

/* Counts of a launch, behind the word that tells that a wait gave up: entries of the queue, groups that have ended. */
enum { GROUPS_APPENDED = 1, GROUPS_ENDED };

/* Appends a group to the queue; by one thread. An entry is overwritten GROUPS_QUEUE entries later, and then all teams
 * have read it: while one has not, the later entries of that team are not finished, and they are every second entry
 * and belong to different groups, of which there are GROUPS_MOST. */
static __device__ __forceinline__ void groups_append(const persistent_args &a, const groups_speculation_args &g,
                                                     int group, int round)
{
    const unsigned n = atomicAdd(a.arrivals + GROUPS_APPENDED, 1u);
    fast::store_two_words(g.queue + n % GROUPS_QUEUE, (unsigned)group, (unsigned)round, n + 1);
}

static __device__ __forceinline__ groups_at groups_next(const persistent_args &a, const groups_speculation_args &g,
                                                        const groups_share &s, unsigned entry)
{
    uint2 *found = (uint2 *)s.sums; /* free between two groups */
    if (threadIdx.x % GROUPS_TEAM == 0) {
        unsigned polls = 0;
        uint4 words;
        do {
            words = fast::load_two_words(g.queue + entry % GROUPS_QUEUE);
        } while (!persistent_polled(a, persistent_missing(words, entry + 1), &polls));
        *found = make_uint2(persistent_missing(words, entry + 1) ? ~0u : words.x, words.z);
    }
    groups_sync();
    return {(int)found->x, (int)found->y};
}

/* --- rows ------------------------------------------------------------------------------------------------------ */

/* A state of a slot. */
typedef struct {
    int slot, level; /* slot -1: none */
} groups_place;

static __device__ __forceinline__ groups_place groups_place_of(const groups_speculation_args &g, int tile, int state)
{
    const int at = tile % g.group * groups_states(g) + state, slot = tile / g.group * g.slots + at / g.w.window;
    return {at < g.slots * g.w.window && slot < g.w.slots ? slot : -1, at % g.w.window};
}
static __device__ __forceinline__ int groups_mod_row(const groups_speculation_args &g, int, int row)
{
    const groups_place p = groups_place_of(g, row >> 4, row & (groups_states(g) - 1));
    const int at = (groups_condition(g, row) * g.w.window + p.level) * g.w.slots + p.slot;
    return p.slot < 0 ? 0 : __ldcg(g.w.mod_index + at);
}
static __device__ __forceinline__ void groups_prefetch(const persistent_args &, const groups_speculation_args &,
                                                       const groups_share &, int, unsigned)
{ /* the turn does it: it knows the group first */
}

/* --- the turn -------------------------------------------------------------------------------------------------- */

/* Prefetches bytes from .. end - 1 of a tile's modulation rows into the L2 cache. They were made for all steps at once,
 * so they are in device memory. */
static __device__ __forceinline__ void groups_prefetch_rows(const persistent_args &a, const groups_speculation_args &g,
                                                            int tile, size_t from, size_t end)
{
    const int row = (int)threadIdx.x % 16, step = 128 * PERSISTENT_THREADS / 16;
    if (groups_place_of(g, tile, row & (groups_states(g) - 1)).slot < 0) return;
    const unsigned char *mod = groups_mod(a, g, groups_mod_row(g, 0, 16 * tile + row));
#pragma unroll 1
    for (size_t at = from + threadIdx.x / 16 * 128; at < end; at += step) fast::prefetch_l2(mod + at);
}

/* Takes the head's outputs of a tile, t.out. */
static __device__ __forceinline__ void groups_take(const persistent_args &a, const groups_speculation_args &g,
                                                   const groups_turning &t, int tile)
{
#pragma unroll 1
    for (int i = (int)threadIdx.x; i < groups_states(g) * a.channels; i += PERSISTENT_THREADS) {
        const int state = i / a.channels, c = i % a.channels;
        const groups_place p = groups_place_of(g, tile, state);
        const int token = p.slot < 0 ? -1 : g.w.slot_token[p.slot];
        if (token < 0 || p.level >= kern_speculation_levels(&g.w, token)) continue;
        const float *out = t.out + state * 2 * a.channels + c;
        const float uncond = g.conditions == 2 ? out[8 * 2 * a.channels] : out[0];
        speculate_take(g.w, p.slot, token, p.level, c, out[0], uncond, out[a.channels]);
    }
}

/* Moves the tokens of a group's slots by a round, unless this is the first, and proposes for the next one. Returns
 * whether a slot has a token. */
static __device__ __forceinline__ bool groups_walk(const groups_speculation_args &g, int group, bool first)
{
    bool some = false;
    const int end = min((group + 1) * g.slots, g.w.slots);
#pragma unroll 1
    for (int slot = group * g.slots; slot < end; slot++) {
        int token = g.w.slot_token[slot];
        if (!first && token >= 0) {
            speculate_walk(g.w, slot, token, (speculate_scratch *)cuda_shared()); /* over t.rows */
            token = speculate_next_token(g.w, slot);
        }
        speculate_filter(g.w, slot, token, cuda_shared(), PERSISTENT_SCRATCH);
        some |= token >= 0;
    }
    __syncthreads();
    return some;
}

/* Sends a group into a round. */
template <int MT, bool SWIGLU>
static __device__ __forceinline__ void groups_send(const persistent_args &a, const groups_speculation_args &g,
                                                   const groups_turning &t, int group, int round)
{
    const size_t first = 2 * sizeof(f16) * (size_t)a.width; /* what the turn itself needs */
#pragma unroll 1
    for (int tile = MT * group; tile < MT * (group + 1); tile++) {
        groups_prefetch_rows(a, g, tile, 0, first);
#pragma unroll 1
        for (int i = (int)threadIdx.x; i < groups_states(g) * a.channels; i += PERSISTENT_THREADS) {
            const groups_place p = groups_place_of(g, tile, i / a.channels);
            const int row = p.level * g.w.slots + p.slot;
            t.state[i] = p.slot < 0 ? 0 : g.w.state[row * a.channels + i % a.channels];
        }
        groups_enter<SWIGLU>(a, g, t, round, tile);
    }
    if (threadIdx.x == 0) groups_append(a, g, group, round);
#pragma unroll 1
    for (int tile = MT * group; tile < MT * (group + 1); tile++) groups_prefetch_rows(a, g, tile, first, a.mod_bytes);
}

/* The life of a block that turns groups rank, rank + form.turners, ... They come in the order in which they were sent.
 */
template <int MT, bool SWIGLU>
static __device__ __forceinline__ void groups_turn(const persistent_args &a, const groups_speculation_args &g, int rank)
{
    const groups_turning t = groups_begin_turn(a);
    unsigned long long ended = 0; /* bit i: its group number i */
    int left = (g.groups - rank + g.form.turners - 1) / g.form.turners;
#pragma unroll 1
    for (int round = -1; left > 0; round++)
#pragma unroll 1
        for (int group = rank, i = 0; group < g.groups; group += g.form.turners, i++) {
            if (ended >> i & 1) continue;
            if (round >= 0) {
                const unsigned target = (unsigned)(round + 1) * groups_arrivals(a, g, group);
                const unsigned *count = g.counts + group * GROUPS_LINE;
                if (__syncthreads_or(threadIdx.x == 0 && !groups_wait(a, count, target))) return;
#pragma unroll 1
                for (int tile = MT * group; tile < MT * (group + 1); tile++) {
                    groups_out(a, g, t, round, tile);
                    groups_take(a, g, t, tile);
                }
                if (threadIdx.x == 0) atomicMax(&g.w.count->rounds, (unsigned long long)round + 1);
            }
            if (groups_walk(g, group, round < 0)) {
                groups_send<MT, SWIGLU>(a, g, t, group, round + 1);
                continue;
            }
            ended |= 1ull << i, left--;
            if (threadIdx.x == 0 && atomicAdd(a.arrivals + GROUPS_ENDED, 1u) + 1 == (unsigned)g.groups)
                for (int team = 0; team < GROUPS_TEAMS; team++) groups_append(a, g, -1, 0);
        }
}

/* --- the kernel ------------------------------------------------------------------------------------------------ */

template <int MT, bool SWIGLU>
static __global__ void __launch_bounds__(PERSISTENT_THREADS, 1)
    groups_speculate(persistent_args a, groups_speculation_args g)
{
    const int turner = groups_turner(a, g);
    if (g.tiles == 0) return; /* loading only tests whether the kernel starts */
    if (turner >= 0)
        groups_turn<MT, SWIGLU>(a, g, turner);
    else
        groups_multiplies<MT, SWIGLU>(a, g);
    persistent_report(a);
}
static void (*const groups_speculations[2][2])(persistent_args, groups_speculation_args) = {
    {groups_speculate<1, false>, groups_speculate<1, true>}, {groups_speculate<2, false>, groups_speculate<2, true>}};

cudaError_t groups_try_speculation(const cuda_queue *c, const persistent_head *f, const groups_form *form)
{
    groups_speculation_args g = {};
    g.form = *form;
    g.group = 1;
    const cudaError_t e = groups_start(c, f->args, groups_speculations, g);
    g.group = 2;
    return e == cudaSuccess ? groups_start(c, f->args, groups_speculations, g) : e;
}

int groups_run_speculation(cuda_queue *c, const kern_speculation *w, const kern_speculation_head *target)
{
    const persistent_head *f = target->net->persistent;
    const int states = 16 / w->conditions, window = w->window;
    groups_speculation_args g = {};
    if (!f || !f->groups.turners || window > 2 * states || w->tokens * window * w->conditions < GROUPS_LEAST) return 0;
    persistent_args a = f->args;
    g.form = f->groups, g.conditions = w->conditions, g.mod = (const unsigned char *)target->mod;
    g.w = *w, g.group = window > states ? 2 : 1;
    /* a slot each as long as every turner has one group at most: it walks them in turn */
    const int rows = w->conditions * max(w->group * window, w->max_steps * w->sources);
    const int most = min((int)GROUPS_MOST, (int)groups_tiles(rows) / g.group);
    const int each = (int)cuda_blocks((size_t)w->tokens, (size_t)min(most, f->groups.turners));
    g.slots = min(g.group * states / window, each);
    g.groups = min(most, (int)cuda_blocks((size_t)w->tokens, (size_t)g.slots)), g.tiles = g.group * g.groups;
    g.w.slots = min(w->tokens, g.slots * g.groups);
    const size_t zeros = groups_lay_out(f, target->scratch, &a, &g);
    groups_launch(c, a, zeros, groups_speculations, g);
    return 1;
}
