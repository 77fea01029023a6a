#include "eval/order.h"

enum { STATE = 624, SHIFT = 397 };

void eval_random_seed(eval_random *t, uint32_t seed)
{
    t->word[0] = seed;
    for (uint32_t i = 1; i < STATE; i++) t->word[i] = 1812433253u * (t->word[i - 1] ^ t->word[i - 1] >> 30) + i;
    t->next = STATE;
}

static void regenerate(eval_random *t)
{
    for (int i = 0; i < STATE; i++) {
        const uint32_t y = (t->word[i] & 0x80000000u) | (t->word[(i + 1) % STATE] & 0x7fffffffu);
        t->word[i] = t->word[(i + SHIFT) % STATE] ^ y >> 1 ^ (y & 1 ? 0x9908b0dfu : 0);
    }
    t->next = 0;
}

static uint32_t eval_order_draw(eval_random *t)
{
    if (t->next == STATE) regenerate(t);
    uint32_t y = t->word[t->next++];
    y ^= y >> 11;
    y ^= y << 7 & 0x9d2c5680u;
    y ^= y << 15 & 0xefc60000u;
    return y ^ y >> 18;
}

/* Draws uniformly from 0..most, most > 0. As NumPy's random_interval: masks to the bits of most and rejects larger
 * values. */
static uint32_t draw_up_to(eval_random *t, uint32_t most)
{
    const uint32_t mask = 0xffffffffu >> __builtin_clz(most);
    uint32_t value;
    do value = eval_order_draw(t) & mask;
    while (value > most);
    return value;
}

void eval_random_permutation(eval_random *t, int n, int *order)
{
    for (int i = 0; i < n; i++) order[i] = i;
    for (int i = n - 1; i > 0; i--) {
        const uint32_t j = draw_up_to(t, (uint32_t)i);
        const int other = order[j];
        order[j] = order[i];
        order[i] = other;
    }
}

void eval_permutation(uint32_t seed, int n, int *order)
{
    eval_random t;
    eval_random_seed(&t, seed);
    eval_random_permutation(&t, n, order);
}
