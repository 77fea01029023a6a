#include "tests/support/toy.h"
#include "kernels/rng.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static float *row(const toy *t, long node)
{
    return t->log_probs + node * t->size;
}

static void normalise(float *law, int size)
{
    double sum = 0;
    for (int i = 0; i < size; i++) sum += exp((double)law[i]);
    for (int i = 0; i < size; i++) law[i] = (float)(law[i] - log(sum));
}

toy *toy_create(int size, int length, uint64_t seed, double spread, const toy *base, int zeros)
{
    toy *t = calloc(1, sizeof *t);
    if (!t) abort();
    t->size = size, t->length = length;
    for (long level = 1, l = 0; l <= length; l++, level *= size) t->nodes += level;
    t->log_probs = malloc((size_t)t->nodes * (size_t)size * sizeof *t->log_probs);
    if (!t->log_probs) abort();
    for (long node = 0; node < t->nodes; node++) {
        for (int x = 0; x < size; x++) {
            uint32_t w[4];
            float normal[4];
            kern_random_words(seed, KERN_NOISE_INIT, (uint64_t)node, (uint32_t)x, 0, 0, w);
            kern_normal4(w, normal);
            row(t, node)[x] = (float)(spread * normal[0]) + (base ? row(base, node)[x] : 0);
            if (zeros && x == (node * 7 + (long)seed) % size) row(t, node)[x] = -INFINITY;
        }
        normalise(row(t, node), size);
    }
    return t;
}

void toy_free(toy *t)
{
    if (!t) return;
    free(t->log_probs);
    free(t);
}

long toy_number(const toy *t, const int *x, int n)
{
    long number = 0;
    for (int i = 0; i < n; i++) number = number * t->size + x[i];
    return number;
}

long toy_sequences(const toy *t, int n)
{
    long count = 1;
    for (int i = 0; i < n; i++) count *= t->size;
    return count;
}

const float *toy_law(const toy *t, const int *prefix, int length)
{
    long before = 0;
    if (length > t->length) length = t->length; /* past the end: any distribution will do */
    for (long l = 0, level = 1; l < length; l++, level *= t->size) before += level;
    return row(t, before + toy_number(t, prefix, length));
}

static void descend(const toy *t, int *x, int i, int n, double p, double *probability)
{
    if (i == n) {
        probability[toy_number(t, x, n)] = p;
        return;
    }
    for (int y = 0; y < t->size; y++) {
        x[i] = y;
        descend(t, x, i + 1, n, p * exp((double)toy_law(t, x, i)[y]), probability);
    }
}

void toy_probabilities(const toy *t, int n, double *probability)
{
    int x[32];
    descend(t, x, 0, n, 1, probability);
}

mar_status toy_laws(void *state, const causal_request *request, int n, float *log_probs, mar_err *err)
{
    toy *t = state;
    (void)err;
    t->calls++;
    for (int r = 0; r < n; r++)
        for (int i = request[r].from; i <= request[r].count; i++) {
            const causal_request *q = &request[r];
            int x[256], depth = q->length;
            for (int d = i - 1; d >= 0; d = q->parent[d]) depth++;
            int place = depth;
            for (int d = i - 1; d >= 0; d = q->parent[d]) x[--place] = q->draft[d];
            memcpy(x, q->prefix, (size_t)q->length * sizeof *x);
            const float *law = t->markov ? toy_law(t, depth > 0 ? &x[depth - 1] : x, depth > 0) : toy_law(t, x, depth);
            float *y = log_probs + (size_t)(q->row + i) * (size_t)t->size;
            if (t->k)
                t->k->core->upload(t->k, y, law, (size_t)t->size * sizeof *law);
            else
                memcpy(y, law, (size_t)t->size * sizeof *law);
            t->rows++;
        }
    return MAR_OK;
}
