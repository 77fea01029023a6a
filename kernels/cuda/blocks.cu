/* Verification of blocks of discrete drafts: kernels/cpu/discrete.c, with one thread block per block of drafts. All
 * threads walk down together and share the loops over the vocabulary. An accepted draft needs a few numbers of two
 * distributions. A rejected one needs the residual: half a dozen passes over two cached rows. */
#include "kernels/cuda/discrete.cuh"

/* A block of drafts under verification. */
typedef struct {
    const kern_block_job *job;
    discrete_scratch *scratch;
    int drafts;
    const int *draft, *parent; /* of the block; so are the next seven */
    const int *row_p, *row_q;
    int *verdict, *id, *site;
    float *p, *q; /* workspace */
} block_walk;

/* A site under verification: log probabilities until arrays of probabilities are needed. */
typedef struct {
    const float *log_p, *log_q; /* log_q NULL: q is the point `draft` */
    int loaded;                 /* 1: the walk's p and q hold the probabilities */
    const kern_discrete_rule *rule;
    kern_address address;
    int draft; /* current draft */
} block_site;

static __device__ inline double cuda_p_of(const block_walk &w, const block_site &s, int x)
{
    return s.loaded ? (double)w.p[x] : kern_exp((double)s.log_p[x]);
}

static __device__ inline double cuda_q_of(const block_walk &w, const block_site &s, int x)
{
    return !s.log_q ? x == s.draft : s.loaded ? (double)w.q[x] : kern_exp((double)s.log_q[x]);
}

static __device__ inline block_site cuda_site_of(const block_walk &w, int node, int position)
{
    const size_t size = (size_t)w.job->size;
    const int row_q = w.row_q[node + 1];
    block_site s;
    s.log_p = w.job->log_p + (size_t)w.row_p[node + 1] * size;
    s.log_q = row_q < 0 ? NULL : w.job->log_q + (size_t)row_q * size;
    s.loaded = 0;
    s.rule = &w.job->rule[(size_t)blockIdx.x * (size_t)w.job->positions + (size_t)position];
    s.address = w.job->address[blockIdx.x];
    s.address.position += (uint32_t)position;
    s.draft = -1;
    return s;
}

/* Returns the first draft numbered `from` or more that follows `node` (-1: the prefix); w.drafts if there is none. Each
 * warp searches for itself. */
static __device__ inline int cuda_next_child(const block_walk &w, int node, int from)
{
    const int lane = (int)threadIdx.x % 32;
    for (; from < w.drafts; from += 32) {
        const unsigned children = __ballot_sync(0xffffffffu, from + lane < w.drafts && w.parent[from + lane] == node);
        if (children) return from + discrete_first(children);
    }
    return w.drafts;
}

static __device__ inline void cuda_load_probs(const block_walk &w, block_site &s)
{
    if (s.loaded) return;
    __syncthreads(); /* nobody reads the previous site's probabilities any more */
    for (int x = (int)threadIdx.x; x < w.job->size; x += (int)blockDim.x) {
        w.p[x] = discrete_exp(s.log_p[x]);
        if (s.log_q) w.q[x] = discrete_exp(s.log_q[x]);
    }
    s.loaded = 1;
    __syncthreads();
}

static __device__ inline const int *cuda_nearest_to(const block_walk &w, int draft)
{
    return w.job->neighbours + (size_t)draft * (size_t)w.job->neighbour_count;
}

/* Returns the number of tokens of A, the neighbours of the draft with itself first, and their total p in *mass. */
static __device__ inline int cuda_neighbour_set(const block_walk &w, const block_site &s, double *mass)
{
    const int others = min(s.rule->neighbours, w.job->neighbour_count) - 1, *nearest = cuda_nearest_to(w, s.draft);
    const double p = cuda_p_of(w, s, s.draft);
    const auto p_of_other = [&](int i) { return cuda_p_of(w, s, nearest[i + 1]); };
    const discrete_found f =
        discrete_find<DISCRETE_REACHES>(p_of_other, others, kern_neighbour_bound(s.rule, p), 0, w.scratch);
    *mass = p + f.before;
    return 1 + (f.passes ? f.at : others);
}

static __device__ inline int cuda_accepts_token(const block_walk &w, const block_site &s, int sibling)
{
    double mass;
    if (s.rule->neighbours)
        (void)cuda_neighbour_set(w, s, &mass);
    else
        mass = kern_exp(s.rule->log_omega) * cuda_p_of(w, s, s.draft);
    const double f = kern_draft_accept(mass, cuda_q_of(w, s, s.draft));
    return kern_draft_passes(f, kern_uniform_at(&s.address, KERN_NOISE_VERIFY, (uint32_t)sibling));
}

/* p = [p - q f]+ * scale, for a thread's tokens; returns its sum. */
static __device__ inline double cuda_make_residual(const block_walk &w, const block_site &s, double omega, double scale,
                                                   int store)
{
    double sum = 0;
    for (int x = (int)threadIdx.x; x < w.job->size; x += (int)blockDim.x) {
        const double weight = kern_residual_weight((double)w.p[x], cuda_q_of(w, s, x), omega) * scale;
        sum += weight;
        if (store) w.p[x] = (float)weight;
    }
    return sum;
}

/* Removes the draft from q. Returns 0 if q is empty then. */
static __device__ inline int cuda_remove_draft(const block_walk &w, const block_site &s)
{
    double rest = 0;
    __syncthreads();
    if (!s.log_q) return 1;
    for (int x = (int)threadIdx.x; x < w.job->size; x += (int)blockDim.x) {
        if (x == s.draft) w.q[x] = 0;
        rest += (double)w.q[x];
    }
    rest = discrete_sum(rest, w.scratch);
    if (!(rest > 0)) return 0;
    const double scale = 1 / rest;
    for (int x = (int)threadIdx.x; x < w.job->size; x += (int)blockDim.x) w.q[x] = (float)((double)w.q[x] * scale);
    __syncthreads();
    return 1;
}

/* Outcome of a draft's rejection. */
enum { NEXT_SIBLING, REPLACED, KEPT }; /* as in kernels/cpu/discrete.c */

static __device__ inline int cuda_reject_block(const block_walk &w, block_site &s, int has_next, int *id)
{
    const double uniform = kern_uniform_at(&s.address, KERN_NOISE_RESIDUAL, 0), p = cuda_p_of(w, s, s.draft);
    const double omega = kern_residual_omega(s.rule);
    cuda_load_probs(w, s);
    if (s.rule->neighbours && s.rule->exclude_neighbours) {
        double mass;
        const int *nearest = cuda_nearest_to(w, s.draft), count = cuda_neighbour_set(w, s, &mass);
        __syncthreads();
        for (int i = (int)threadIdx.x; i < count; i += (int)blockDim.x) w.p[nearest[i]] = 0;
        __syncthreads();
    }
    const double total = discrete_sum(cuda_make_residual(w, s, omega, 1, 0), w.scratch);
    if (kern_draft_stays(s.rule, p, total)) return KEPT;
    if (total > 0) (void)cuda_make_residual(w, s, omega, 1 / total, 1);
    if (total > 0 && has_next && cuda_remove_draft(w, s)) return NEXT_SIBLING;
    const auto weight = [&](int x) { return w.p[x]; };
    *id = discrete_find<DISCRETE_EXCEEDS>(weight, w.job->size, uniform, 1, w.scratch).at;
    return REPLACED;
}

/* Verifies the drafts that follow `node` one by one, from draft number `child` on; with `first_only` that one alone.
 * Returns the accepted one, or -1 with the replacement in *id. */
static __device__ int cuda_verify_children(const block_walk &w, int node, int position, int child, int first_only,
                                           int *id)
{
    block_site s = cuda_site_of(w, node, position);
    for (int sibling = 0;; sibling++) {
        const int next = first_only ? w.drafts : cuda_next_child(w, node, child + 1);
        *id = s.draft = w.draft[child];
        if (cuda_accepts_token(w, s, sibling)) break;
        const int outcome = cuda_reject_block(w, s, next < w.drafts, id);
        if (outcome == KEPT) break;
        if (outcome == REPLACED) {
            if (threadIdx.x == 0) w.verdict[child] = KERN_DRAFT_REPLACED;
            return -1;
        }
        child = next;
    }
    if (threadIdx.x == 0) w.verdict[child] = KERN_DRAFT_ACCEPTED;
    return child;
}

/* Draws a token from p alone. */
static __device__ int cuda_draw_bonus(const block_walk &w, int node, int position)
{
    const block_site s = cuda_site_of(w, node, position);
    const auto p = [&](int x) { return discrete_exp(s.log_p[x]); };
    const double uniform = kern_uniform_at(&s.address, KERN_NOISE_RESIDUAL, 0);
    return discrete_find<DISCRETE_EXCEEDS>(p, w.job->size, uniform, 1, w.scratch).at;
}

static __device__ inline void cuda_note_token(int *at, int x)
{
    if (threadIdx.x == 0) *at = x;
}

/* Follows accepted drafts down from the prefix, then writes the replacement or the bonus token. */
static __device__ void cuda_walk_down(const block_walk &w, int *accepted, int *final)
{
    *accepted = *final = 0;
    for (int node = -1;;) {
        const int position = *final, child = cuda_next_child(w, node, 0);
        int id = -1;
        cuda_note_token(&w.site[position], node + 1);
        if (child == w.drafts && w.row_p[node + 1] < 0) return;
        const int bonus = child == w.drafts;
        if (bonus)
            id = cuda_draw_bonus(w, node, position);
        else
            node = cuda_verify_children(w, node, position, child, 0, &id);
        cuda_note_token(&w.id[position], id);
        ++*final;
        if (bonus || node < 0) return;
        ++*accepted;
    }
}

/* Follows the first path behind the final tokens: records its sites, and verifies its drafts with past_rejection.
 * Returns the new number of tokens. */
static __device__ int cuda_walk_tail(const block_walk &w, int final)
{
    int length = final;
    for (int node = -1, position = 0;; position++) {
        const int child = cuda_next_child(w, node, 0);
        if (child == w.drafts) return length;
        if (position >= final) {
            cuda_note_token(&w.site[position], node + 1);
            if (w.job->past_rejection) {
                int id;
                (void)cuda_verify_children(w, node, position, child, 1, &id);
                cuda_note_token(&w.id[position], id);
                length = position + 1;
            }
        }
        node = child;
    }
}

static __global__ void __launch_bounds__(DISCRETE_THREADS, 1) block_kernel(kern_block_job job)
{
    const int b = (int)blockIdx.x, node = job.node[b], sites = node + b;
    const size_t positions = (size_t)b * (size_t)job.positions;
    const size_t place = (size_t)(job.place ? job.place[b] : b) * (size_t)job.positions;
    float *workspace = job.workspace + (size_t)b * 2 * (size_t)job.size;
    const block_walk w = {&job,
                          (discrete_scratch *)cuda_shared(),
                          job.node[b + 1] - node,
                          job.draft + node,
                          job.parent + node,
                          job.p + sites,
                          job.q + sites,
                          job.verdict + node,
                          job.id + place,
                          job.site + positions,
                          workspace,
                          workspace + job.size};
    for (int n = (int)threadIdx.x; n < w.drafts; n += (int)blockDim.x) w.verdict[n] = KERN_DRAFT_DROPPED;
    __syncthreads();
    int accepted, final;
    cuda_walk_down(w, &accepted, &final);
    const int length = cuda_walk_tail(w, final);
    int *count = job.count + (size_t)b * KERN_BLOCK_COUNTS;
    cuda_note_token(&count[KERN_BLOCK_ACCEPTED], accepted);
    cuda_note_token(&count[KERN_BLOCK_FINAL], final);
    cuda_note_token(&count[KERN_BLOCK_LENGTH], length);
}

void cuda_verify_blocks(kern_queue *k, const kern_block_job *job)
{
    cuda_queue *c = cuda_of(k);
    if (job->blocks <= 0) return;
    const size_t blocks = (size_t)job->blocks, drafts = (size_t)job->node[blocks], sites = drafts + blocks;
    kern_block_job device = *job;
    device.node = cuda_stage(c, job->node, blocks + 1);
    device.draft = cuda_stage(c, drafts ? job->draft : NULL, drafts);
    device.parent = cuda_stage(c, drafts ? job->parent : NULL, drafts);
    device.p = cuda_stage(c, job->p, sites);
    device.q = cuda_stage(c, job->q, sites);
    device.rule = cuda_stage(c, job->rule, blocks * (size_t)job->positions);
    device.address = cuda_stage(c, job->address, blocks);
    device.place = cuda_stage(c, job->place, blocks);
    cuda_launch(c, block_kernel, (unsigned)job->blocks, discrete_threads(job->size), sizeof(discrete_scratch), device);
}
