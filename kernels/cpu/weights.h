/* Sums of a token's weights, and draws by them. Bits depend on the weights alone. */
#ifndef KERNELS_CPU_WEIGHTS_H
#define KERNELS_CPU_WEIGHTS_H

enum { WEIGHTS_PIECE = 64 };

static inline double weights_sum(const float *w, int n)
{
    double lane[4] = {0};
    int i = 0;
    for (; i + 4 <= n; i += 4)
        for (int j = 0; j < 4; j++) lane[j] += (double)w[i + j];
    for (; i < n; i++) lane[0] += (double)w[i];
    return (lane[0] + lane[2]) + (lane[1] + lane[3]);
}

static inline double weights_total(const float *w, int size)
{
    double total = 0;
    for (int i = 0; i < size; i += WEIGHTS_PIECE)
        total += weights_sum(w + i, size - i < WEIGHTS_PIECE ? size - i : WEIGHTS_PIECE);
    return total;
}

/* Returns the first i at which the sum of w[0..i] exceeds rest; rest is below the total. Returns the last i with a
 * weight where rounding misses it, and -1 if no weight is positive. */
static inline int weights_find(const float *w, int n, double rest)
{
    int last = -1;
    for (int i = 0; i < n; i++) {
        if (w[i] > 0) last = i;
        if ((double)w[i] > rest) break;
        rest -= (double)w[i];
    }
    return last;
}

/* Draws from unnormalised weights: returns the first token at which their sum exceeds uniform * total. Returns -1 if
 * all weights are 0 or one is NaN. */
static inline int weights_draw(const float *w, int size, double uniform)
{
    const double total = weights_total(w, size);
    int from = 0;
    if (!(total > 0)) return -1;
    double rest = uniform * total;
    for (int i = 0; i < size; i += WEIGHTS_PIECE) { /* ends at a piece with a weight */
        const double sum = weights_sum(w + i, size - i < WEIGHTS_PIECE ? size - i : WEIGHTS_PIECE);
        if (sum > 0) from = i;
        if (sum > rest) break;
        if (sum > 0 && i + WEIGHTS_PIECE < size) rest -= sum;
    }
    const int found = weights_find(w + from, size - from < WEIGHTS_PIECE ? size - from : WEIGHTS_PIECE, rest);
    return from + found;
}

#endif
