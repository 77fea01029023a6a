/* Probabilities from logits, the most likely tokens, and draws. A block has a row of log_probs. The row, 64 kB with
 * 16384 tokens, stays in cache between the block's ten or so passes. A row costs latency only, negligible beside a
 * model pass that reads its weights for it. */
#include "kernels/cuda/discrete.cuh"

/* --- probabilities ---------------------------------------------------------------------------------------------- */

/* The digits of a key, found highest first, as in kernels/cpu/discrete.c. */
enum { KEY_DIGIT = 11, KEY_DIGITS = 1 << KEY_DIGIT };

typedef struct {
    discrete_scratch scratch;
    unsigned long long sum[KEY_DIGITS]; /* weight of each digit */
} probs_memory;

/* The point where the sum of weights by falling x passes a limit: the key, and the sum above it. */
typedef struct {
    int passes;
    unsigned key;
    double above;
} probs_crossing;

/* Add to a sum in shared memory, which has no 64-bit addition: it would be a loop of compare-and-swap, long where many
 * threads add to one sum. The halves may be added in any order. */
static __device__ inline void add_weight(unsigned *sum, unsigned w)
{
    atomicAdd(sum, w);
}
static __device__ inline void add_weight(unsigned long long *sum, unsigned long long w)
{
    unsigned *low = (unsigned *)sum;
    const unsigned added = (unsigned)w, carry = atomicAdd(low, added) + added < added;
    atomicAdd(low + 1, (unsigned)(w >> 32) + carry);
}

/* Finds the crossing for weights weight(x) of type T. They are integers, so sums and results do not depend on the
 * order. All sums must be below 2^53 for a double, and fit in a T. */
template <typename T, typename W>
static __device__ inline probs_crossing cuda_find_crossing(const float *row, const W &weight, int size, double limit,
                                                           probs_memory *m)
{
    probs_crossing c = {1, 0, 0};
    T *sum = (T *)m->sum;
#pragma unroll 1
    for (int shift = 32 - KEY_DIGIT, before = 32; c.passes && before > 0;
         before = shift, shift = max(shift - KEY_DIGIT, 0)) {
        const unsigned known = before == 32 ? 0 : ~0u << before;
        __syncthreads();
        for (int i = (int)threadIdx.x; i < KEY_DIGITS; i += (int)blockDim.x) sum[i] = 0;
        __syncthreads();
        for (int x = (int)threadIdx.x; x < size; x += (int)blockDim.x) {
            const unsigned key = discrete_key(row[x]);
            const T w = (key & known) == c.key ? weight(row[x]) : 0;
            if (w) add_weight(&sum[key >> shift & (KEY_DIGITS - 1)], w);
        }
        const auto falling = [=](int i) { return (double)sum[KEY_DIGITS - 1 - i]; };
        const discrete_found f = discrete_find<DISCRETE_EXCEEDS>(falling, KEY_DIGITS, limit - c.above, 0, &m->scratch);
        c.passes = f.passes;
        c.above += f.before;
        c.key |= (unsigned)(KEY_DIGITS - 1 - f.at) << shift;
    }
    return c;
}

/* Removes tokens below the top_k-th largest logit. */
static __device__ inline void cuda_keep_top_k(float *row, int size, int top_k, probs_memory *m)
{
    if (top_k <= 0 || top_k >= size) return;
    const auto one = [](float) { return 1u; };
    const probs_crossing c = cuda_find_crossing<unsigned>(row, one, size, top_k - 0.5, m);
    for (int x = (int)threadIdx.x; x < size; x += (int)blockDim.x)
        if (discrete_key(row[x]) < c.key) row[x] = -INFINITY;
}

/* Removes tokens outside top-p. A token stays if the running sum over more likely tokens, and equal ones before it, has
 * not passed p. */
static __device__ inline void cuda_keep_top_p(float *row, int size, float top, float p, probs_memory *m)
{
    if (!(p < 1)) return;
    double total = 0, scale = 0x1p52; /* of exponentials, which keeps a row's sum below 2^53 */
    for (int n = 1; n < size; n *= 2) scale /= 2;
    const auto weight = [=](float x) { return (unsigned long long)((double)discrete_exp(x - top) * scale); };
    for (int x = (int)threadIdx.x; x < size; x += (int)blockDim.x) total += (double)weight(row[x]);
    total = discrete_sum(total, &m->scratch);
    const double limit = (double)p * total;
    const probs_crossing c = cuda_find_crossing<unsigned long long>(row, weight, size, limit, m);
    int last = size; /* last token that stays among those with the crossing's key */
    if (c.passes) {
        const double one = (double)weight(discrete_of_key(c.key)), stay = floor((limit - c.above) / one) + 1;
        const auto equal = [=](int x) { return discrete_key(row[x]) == c.key; };
        const discrete_found f = discrete_find<DISCRETE_EXCEEDS>(equal, size, stay - 0.5, 0, &m->scratch);
        if (f.passes) last = f.at;
        __syncthreads(); /* no thread searches the row any more */
    }
    for (int x = (int)threadIdx.x; x < size; x += (int)blockDim.x) {
        const unsigned key = discrete_key(row[x]);
        const int stays = !c.passes || key > c.key || (key == c.key && x <= last);
        if (!stays || !(discrete_exp(row[x] - top) > 0)) row[x] = -INFINITY;
    }
}

/* Applies the steps of LlamaGen's generate.py, each rounded as on the CPU: equal logits stay equal. */
static __device__ inline float probs_logit(const kern_probs_job &job, const float *logits, size_t r, int x)
{
    float logit = logits[x];
    if (job.conditions == 2 && job.cfg[r] > 1) {
        const float without = logits[(size_t)job.rows * (size_t)job.size + (size_t)x];
        logit = __fadd_rn(without, __fmul_rn(__fsub_rn(logit, without), job.cfg[r]));
    }
    return job.temperature > 0 ? __fdiv_rn(logit, fmaxf(job.temperature, 1e-5f)) : logit;
}

static __global__ void __launch_bounds__(DISCRETE_THREADS, 1) probs_kernel(kern_probs_job job)
{
    probs_memory *m = (probs_memory *)cuda_shared();
    const size_t r = blockIdx.x;
    const int size = job.size;
    const float *logits = job.logits + r * (size_t)size;
    float *row = job.log_probs + (size_t)job.place[r] * (size_t)size, top = -INFINITY;
    int nan = 0;
    for (int x = (int)threadIdx.x; x < size; x += (int)blockDim.x) {
        row[x] = probs_logit(job, logits, r, x);
        top = fmaxf(top, row[x]);
        nan |= isnan(row[x]);
    }
    top = discrete_max(top, &m->scratch);
    if (__syncthreads_or(nan) || !(fabsf(top) <= FLT_MAX)) {
        for (int x = (int)threadIdx.x; x < size; x += (int)blockDim.x) row[x] = NAN;
        return;
    }
    if (!(job.temperature > 0)) {
        const auto largest = [=](int x) { return row[x] >= top; };
        const int first = discrete_find<DISCRETE_EXCEEDS>(largest, size, 0, 0, &m->scratch).at;
        __syncthreads();
        for (int x = (int)threadIdx.x; x < size; x += (int)blockDim.x) row[x] = x == first ? 0 : -INFINITY;
        return;
    }
    cuda_keep_top_k(row, size, job.top_k, m);
    cuda_keep_top_p(row, size, top, job.top_p, m);
    double sum = 0;
    for (int x = (int)threadIdx.x; x < size; x += (int)blockDim.x) sum += (double)discrete_exp(row[x] - top);
    const double log_sum = (double)top + kern_log(discrete_sum(sum, &m->scratch));
    for (int x = (int)threadIdx.x; x < size; x += (int)blockDim.x) row[x] = (float)((double)row[x] - log_sum);
}

void cuda_probs(kern_queue *k, const kern_probs_job *job)
{
    cuda_queue *c = cuda_of(k);
    const size_t rows = (size_t)job->rows;
    if (job->rows <= 0) return;
    kern_probs_job device = *job;
    device.cfg = job->conditions == 2 ? cuda_stage(c, job->cfg, rows) : NULL;
    device.place = cuda_stage(c, job->place, rows);
    cuda_launch(c, probs_kernel, (unsigned)job->rows, discrete_threads(job->size), sizeof(probs_memory), device);
}

/* --- draws ------------------------------------------------------------------------------------------------------ */

static __global__ void __launch_bounds__(DISCRETE_THREADS, 1) draw_kernel(kern_draw_job job)
{
    discrete_scratch *s = (discrete_scratch *)cuda_shared();
    const size_t r = blockIdx.x, candidates = r * (size_t)job.max_draws;
    const kern_address address = job.address[r];
    const float *log_probs = job.log_probs + (size_t)job.source[r] * (size_t)job.size;
    int *id = job.id + candidates, drawn = job.given[r];
    const auto undrawn = [&](int x) {
        for (int i = 0; i < drawn; i++)
            if (id[i] == x) return 0.0f;
        return discrete_exp(log_probs[x]);
    };
    for (int i = (int)threadIdx.x; i < drawn; i += (int)blockDim.x) id[i] = job.earlier[candidates + (size_t)i];
    while (drawn < job.wanted[r]) {
        const double uniform = kern_uniform_at(&address, KERN_NOISE_STEP, (uint32_t)drawn);
        const int x = discrete_find<DISCRETE_EXCEEDS>(undrawn, job.size, uniform, 1, s).at;
        if (x < 0) break;
        if (threadIdx.x == 0) id[drawn] = x;
        drawn++;
    }
    if (threadIdx.x == 0) job.drawn[r] = drawn;
}

/* Takes the lesser of two (time, token) pairs; ties go to the lower token. */
static __device__ inline void take_earlier(double &time, int &x, double other_time, int other_x)
{
    if (other_time < time || (other_time == time && other_x < x)) time = other_time, x = other_x;
}

typedef struct {
    double time[DISCRETE_WARPS];
    int token[DISCRETE_WARPS];
} race_memory;

/* Gives all threads the least time of the block, and its token. */
static __device__ inline void race_share(double &time, int &x, race_memory *m)
{
    for (int bit = 16; bit > 0; bit /= 2)
        take_earlier(time, x, __shfl_xor_sync(0xffffffffu, time, bit), __shfl_xor_sync(0xffffffffu, x, bit));
    __syncthreads();
    if (threadIdx.x % 32 == 0) m->time[threadIdx.x / 32] = time, m->token[threadIdx.x / 32] = x;
    __syncthreads();
    for (unsigned w = 0; w < blockDim.x / 32; w++) take_earlier(time, x, m->time[w], m->token[w]);
}

/* Returns the token of the least time below `limit` that is not among the `drawn` ones; -1 if there is none. A thread
 * has the tokens of every blockDim.x-th block of words, and computes the times of those that can be its least. */
static __device__ inline int race_next(const kern_draw_job &job, const kern_address *a, const float *log_probs,
                                       const int *id, int drawn, double limit, race_memory *m)
{
    const int blocks = (job.size + KERN_RACE_PIECE - 1) / KERN_RACE_PIECE * KERN_RACE_LANES;
    double time = limit;
    int x = INT_MAX;
    __syncthreads();
#pragma unroll 1
    for (int b = (int)threadIdx.x; b < blocks; b += (int)blockDim.x) {
        uint32_t word[4];
        kern_random_words(a->seed, KERN_NOISE_RACE, a->image, a->position, 0, (uint32_t)b, word);
#pragma unroll 1
        for (int w = 0; w < 4; w++) {
            const int y = b / KERN_RACE_LANES * KERN_RACE_PIECE + w * KERN_RACE_LANES + b % KERN_RACE_LANES;
            if (y >= job.size || !(log_probs[y] >= -87)) continue;
            if (!kern_race_is_open(word[w], discrete_exp(log_probs[y]), kern_race_limit(time))) continue;
            int is_drawn = 0;
            for (int i = 0; i < drawn; i++) is_drawn |= id[i] == y;
            if (!is_drawn) take_earlier(time, x, kern_race_time(a, y, (double)log_probs[y]), y);
        }
    }
    race_share(time, x, m);
    return x < INT_MAX ? x : -1;
}

static __global__ void __launch_bounds__(DISCRETE_THREADS, 1) race_kernel(kern_draw_job job)
{
    race_memory *m = (race_memory *)cuda_shared();
    const size_t r = blockIdx.x;
    const kern_address address = job.address[r];
    const float *log_probs = job.log_probs + (size_t)job.source[r] * (size_t)job.size;
    int *id = job.id + r * (size_t)job.max_draws, drawn = 0;
    while (drawn < job.wanted[r]) {
        int x = race_next(job, &address, log_probs, id, drawn, KERN_RACE_FIRST, m);
        if (x < 0) x = race_next(job, &address, log_probs, id, drawn, INFINITY, m);
        if (x < 0) break;
        if (threadIdx.x == 0) id[drawn] = x;
        drawn++;
    }
    if (threadIdx.x == 0) job.drawn[r] = drawn;
}

void cuda_draw(kern_queue *k, const kern_draw_job *job)
{
    cuda_queue *c = cuda_of(k);
    const size_t rows = (size_t)job->rows;
    if (job->rows <= 0) return;
    kern_draw_job device = *job;
    device.source = cuda_stage(c, job->source, rows);
    device.given = cuda_stage(c, job->given, rows);
    device.wanted = cuda_stage(c, job->wanted, rows);
    device.earlier = cuda_stage(c, job->earlier, rows * (size_t)job->max_draws);
    device.address = cuda_stage(c, job->address, rows);
    if (job->race)
        cuda_launch(c, race_kernel, (unsigned)job->rows, discrete_threads(job->size), sizeof(race_memory), device);
    else
        cuda_launch(c, draw_kernel, (unsigned)job->rows, discrete_threads(job->size), sizeof(discrete_scratch), device);
}

/* --- most likely tokens ------------------------------------------------------------------------------------------ */

/* Finds the next most likely token in each pass. */
static __global__ void __launch_bounds__(DISCRETE_THREADS, 1)
    top_kernel(const float *log_probs, const int *source, int size, int count, int *id, float *log_p)
{
    race_memory *m = (race_memory *)cuda_shared();
    const size_t r = blockIdx.x;
    const float *row = log_probs + (size_t)source[r] * (size_t)size;
    float last_p = INFINITY;
    int last_x = -1;
    for (int i = 0; i < count; i++) {
        double time = INFINITY; /* -log p */
        int x = INT_MAX;
        for (int y = (int)threadIdx.x; y < size; y += (int)blockDim.x)
            if (row[y] < last_p || (row[y] == last_p && y > last_x)) take_earlier(time, x, -(double)row[y], y);
        race_share(time, x, m);
        last_p = (float)-time, last_x = time < INFINITY ? x : -1;
        if (threadIdx.x > 0) continue;
        id[r * (size_t)count + (size_t)i] = last_x;
        log_p[r * (size_t)count + (size_t)i] = last_p;
    }
}

void cuda_top(kern_queue *k, const float *log_probs, const int *source, int rows, int size, int count, int *id,
              float *log_p)
{
    cuda_queue *c = cuda_of(k);
    if (rows <= 0 || count <= 0) return;
    const int *staged = cuda_stage(c, source, (size_t)rows);
    cuda_launch(c, top_kernel, (unsigned)rows, discrete_threads(size), sizeof(race_memory), log_probs, staged, size,
                count, id, log_p);
}
