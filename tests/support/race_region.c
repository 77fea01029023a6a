#include "tests/support/race_region.h"

#include "tests/support/support.h"

#include <math.h>

race_region race_region_all(void)
{
    return (race_region){3, {{1, 0, 0}, {0, 1, 0}, {0, 0, 1}}};
}

double race_region_area(const race_region *r)
{
    double twice = 0;
    for (int i = 0; i < r->corners; i++) {
        const double *a = r->e[i], *b = r->e[(i + 1) % r->corners];
        twice += a[0] * b[1] - a[1] * b[0];
    }
    return fabs(twice);
}

static double side_of(const double h[RACE_TOKENS], const double e[RACE_TOKENS])
{
    return h[0] * e[0] + h[1] * e[1] + h[2] * e[2];
}

race_region race_region_cut(const race_region *r, const double h[RACE_TOKENS])
{
    race_region out = {0};
    for (int i = 0; i < r->corners; i++) {
        const double *a = r->e[i], *b = r->e[(i + 1) % r->corners];
        const double at_a = side_of(h, a), at_b = side_of(h, b);
        assert_true(out.corners + 2 <= RACE_CORNERS);
        if (at_a <= 0) {
            for (int x = 0; x < RACE_TOKENS; x++) out.e[out.corners][x] = a[x];
            out.corners++;
        }
        if ((at_a < 0 && at_b > 0) || (at_a > 0 && at_b < 0)) {
            for (int x = 0; x < RACE_TOKENS; x++) out.e[out.corners][x] = (a[x] * at_b - b[x] * at_a) / (at_b - at_a);
            out.corners++;
        }
    }
    return out;
}

race_region race_region_won(const race_region *r, const double *w, int size, int x)
{
    race_region out = *r;
    assert_true(size <= RACE_TOKENS);
    if (!(w[x] > 0)) return (race_region){0};
    for (int y = 0; y < size; y++) {
        double h[RACE_TOKENS] = {0};
        if (y == x || !(w[y] > 0)) continue;
        h[x] = w[y], h[y] = -w[x];
        out = race_region_cut(&out, h);
    }
    return out;
}
