/* Speculation inside the head (diffusion/speculate.h), a token at a time. Unlike on a GPU, rows without a state are not
 * evaluated. */
#include "kernels/cpu/cpu.h"
#include "kernels/speculation.h"

mar_status cpu_speculate_plan(kern_queue *k, const kern_head *h, const kern_speculation *w, mar_err *err)
{
    return cpu_head_plan(k, h, w->conditions * w->tokens * w->window, err);
}

void cpu_speculate_start(kern_queue *k, kern_speculation *w)
{
    cpu_normal(k, w->token, w->tokens, w->channels, w->seed, KERN_NOISE_INIT, w->image, w->position, 0);
    for (int i = 1; i < w->steps; i++)
        cpu_normal(k, kern_speculation_noise(w, 0, i), w->tokens, w->channels, w->seed, KERN_NOISE_STEP, w->image,
                   w->position, w->t[i]);
    for (int token = 0; token < w->tokens; token++) {
        w->index[token] = w->steps - 1;
        w->lowest[token] = w->steps;
        w->calls[token] = w->wide[token] = w->rejected[token] = 0;
        for (int c = 0; c < w->channels; c++) kern_speculation_reset(w, token, c);
    }
    *w->count = (kern_speculation_count){0};
}

/* --- proposals ----------------------------------------------------------------------------------------------- */

/* Assigns slots and rows to the unfinished tokens. */
static void speculation_list_slots(kern_speculation *w)
{
    const size_t channels = (size_t)w->channels;
    w->slots = w->rows = 0;
    for (int token = 0; token < w->tokens; token++) {
        if (w->index[token] < 0) continue;
        w->slot_token[w->slots] = token;
        w->slot_row[w->slots++] = w->rows;
        memcpy(w->state + (size_t)w->rows * channels, w->token + (size_t)token * channels, channels * sizeof(float));
        const int levels = kern_speculation_levels(w, token);
        for (int level = 0; level < levels; level++) {
            w->row_token[w->rows] = token;
            w->row_index[w->rows++] = w->index[token] - level;
        }
    }
}

/* Draws the state of the next row from this row's q. */
static void move(kern_speculation *w, int row)
{
    const size_t channels = (size_t)w->channels, first = (size_t)row * channels;
    const int index = w->row_index[row];
    const float *eps = kern_speculation_noise(w, w->row_token[row], index);
    for (size_t c = 0; c < channels; c++)
        w->state[first + channels + c] =
            kern_speculation_move(w, index, w->mean_q[first + c], w->log_std_q[first + c], eps[c]);
}

/* Returns the radial part of the row's proposal (kern_speculation_radial). */
static float radial_of(const kern_speculation *w, int row)
{
    const int token = w->row_token[row], index = w->row_index[row];
    const float *x = w->state + (size_t)row * (size_t)w->channels;
    float product = 0, square = 0;
    for (int c = 0; c < w->channels; c++) {
        const kern_speculation_filter f = kern_speculation_prepare(w, token, index, c);
        product += (kern_speculation_clean(w, &f, index, x[c]) - f.x0) * f.x0;
        square += f.x0 * f.x0;
    }
    return kern_speculation_radial(w, token, index, product, square);
}

static void propose_by_filter(kern_speculation *w, int row)
{
    const int channels = w->channels, index = w->row_index[row];
    const float radial = w->sphere ? radial_of(w, row) : 0;
    for (int c = 0; c < channels; c++) {
        const size_t at = (size_t)row * (size_t)channels + (size_t)c;
        const kern_speculation_filter f = kern_speculation_prepare(w, w->row_token[row], index, c);
        w->mean_q[at] = kern_speculation_mean(w, &f, index, w->state[at], radial);
        w->log_std_q[at] = f.log_std;
    }
    move(w, row);
}

/* Evaluates a head at the n rows row[0..n-1]. */
static void speculation_evaluate(kern_queue *k, kern_speculation *w, const kern_speculation_head *e, const int *row,
                                 int n)
{
    for (int i = 0; i < n; i++)
        for (int c = 0; c < w->conditions; c++) {
            w->x_index[c * n + i] = row[i];
            w->mod_index[c * n + i] = kern_speculation_mod(w, c, w->row_index[row[i]], w->source[w->row_token[row[i]]]);
        }
    cpu_head_eval(k, e->net, w->state, w->x_index, e->mod, w->mod_index, w->conditions * n, e->out, e->scratch);
}

/* Computes the Gaussian of a row's transition from row i of the head's n conditional output rows. */
static void speculation_read_gaussian(const kern_speculation *w, const float *out, int i, int n, int row, float *mean,
                                      float *log_std)
{
    const size_t channels = (size_t)w->channels, first = (size_t)row * channels;
    const float *cond = out + 2 * (size_t)i * channels;
    const float *uncond = w->conditions == 2 ? cond + 2 * (size_t)n * channels : cond;
    for (size_t c = 0; c < channels; c++)
        kern_speculation_transition(w, w->row_token[row], w->row_index[row], w->state[first + c], cond[c], uncond[c],
                                    cond[channels + c], &mean[first + c], &log_std[first + c]);
}

/* Writes the proposals of one level of all slots. */
static void cpu_propose_by_draft(kern_queue *k, kern_speculation *w, const kern_speculation_head *draft, int level)
{
    int *row = w->row_list, n = 0;
    for (int slot = 0; slot < w->slots; slot++)
        if (level + 1 < kern_speculation_levels(w, w->slot_token[slot])) row[n++] = w->slot_row[slot] + level;
    speculation_evaluate(k, w, draft, row, n);
    for (int i = 0; i < n; i++) {
        speculation_read_gaussian(w, draft->out, i, n, row[i], w->mean_q, w->log_std_q);
        move(w, row[i]);
    }
    w->count->draft_evaluations += (unsigned)n;
}

int cpu_speculate_propose(kern_queue *k, kern_speculation *w, const kern_speculation_head *draft)
{
    if (!kern_live(k)) return 0;
    speculation_list_slots(w);
    for (int level = 0; draft && level + 1 < w->window; level++) cpu_propose_by_draft(k, w, draft, level);
    for (int row = 0; !draft && row + 1 < w->rows; row++)
        if (w->row_token[row + 1] == w->row_token[row]) propose_by_filter(w, row);
    return w->slots;
}

/* --- the walk ------------------------------------------------------------------------------------------------ */

/* Reads the head's output for a row: p of its transition, and the evaluation of its state. */
static void read_outputs(const kern_speculation *w, const float *out, int row)
{
    const size_t channels = (size_t)w->channels, first = (size_t)row * channels;
    const float *v = out + 2 * first + channels;
    const int token = w->row_token[row], index = w->row_index[row];
    speculation_read_gaussian(w, out, row, w->rows, row, w->mean_p, w->log_std_p);
    for (size_t c = 0; c < channels; c++) {
        kern_speculation_remember(w, token, index, (int)c, w->state[first + c], w->mean_p[first + c], v[c]);
        w->tempered_p[first + c] = w->log_std_p[first + c] + w->log_temperature;
        w->tempered_q[first + c] = w->log_std_q[first + c] + w->log_temperature;
    }
    w->lowest[token] = index; /* each round reaches lower than the previous one */
}

/* Verifies the proposals after a slot's first row. Returns the number of decided transitions; x [C] is the state after
 * them. */
static int speculation_verify(const kern_speculation *w, int first, int proposals, float *x)
{
    const size_t channels = (size_t)w->channels;
    for (int n = 0; n < proposals; n++) {
        const int row = first + n;
        const kern_gaussians pq = kern_speculation_gaussians(w, row);
        const kern_address address = kern_speculation_address(w, w->row_token[row], w->row_index[row]);
        const float *draft = w->state + (size_t)(row + 1) * channels;
        kern_residual residual;
        long tries;
        if (kern_gaussian_verify(&residual, &w->rule, &pq, KERN_SPECULATION_PATH, &address, draft, x, &tries)) {
            w->count->tries += (unsigned long)tries;
            w->count->rejected++;
            w->rejected[w->row_token[row]]++;
            return n + 1;
        }
        memcpy(x, draft, channels * sizeof *x);
        w->count->accepted++;
    }
    /* p of the last transition is known, so its state is drawn from p */
    const int row = first + proposals, index = w->row_index[row];
    const float *eps = kern_speculation_noise(w, w->row_token[row], index);
    for (size_t c = 0; c < channels; c++)
        x[c] = kern_speculation_move(w, index, w->mean_p[(size_t)row * channels + c],
                                     w->log_std_p[(size_t)row * channels + c], eps[c]);
    return proposals + 1;
}

/* Updates the ratio r with the step to index k. */
static void learn(const kern_speculation *w, int token, int k)
{
    float mean_square = 1e-12f;
    for (int c = 0; c < w->channels; c++) {
        const float expected = kern_speculation_expected(w, token, k, c);
        mean_square += expected * expected / (float)w->channels;
    }
    for (int c = 0; c < w->channels; c++) kern_speculation_learn(w, token, k, c, mean_square);
}

/* Moves a slot's token to the end of its round. */
static void speculation_walk(const kern_speculation *w, int slot)
{
    const int token = w->slot_token[slot], from = w->index[token], levels = kern_speculation_levels(w, token);
    const int decided =
        speculation_verify(w, w->slot_row[slot], levels - 1, w->token + (size_t)token * (size_t)w->channels);
    for (int k = from; k > from - decided; k--)
        if (k + 1 < w->steps) learn(w, token, k);
    w->index[token] = from - decided;
    w->calls[token]++;
    w->wide[token] += levels > 1;
    w->count->calls++;
    if ((unsigned)w->calls[token] > w->count->calls_max) w->count->calls_max = (unsigned)w->calls[token];
}

void cpu_speculate_walk(kern_queue *k, kern_speculation *w, const kern_speculation_head *target)
{
    for (int row = 0; row < w->rows; row++) w->row_list[row] = row;
    speculation_evaluate(k, w, target, w->row_list, w->rows);
    if (!kern_live(k)) return;
    for (int row = 0; row < w->rows; row++) read_outputs(w, target->out, row);
    for (int slot = 0; slot < w->slots; slot++) speculation_walk(w, slot);
    w->count->rounds++;
    w->count->evaluations += (unsigned)w->rows;
}
