/* What is known of a race's noise among at most three tokens, exactly. Of independent exponential E_0, E_1, E_2 a race
 * sees ratios only, and E / sum E is uniform on a triangle. "x is ahead of y", E_x / p_x <= E_y / p_y, is a half-plane.
 * So the noise that gives some winners in some rounds is a convex polygon, and its probability an area. */
#ifndef TESTS_RACE_REGION_H
#define TESTS_RACE_REGION_H

enum { RACE_TOKENS = 3, RACE_CORNERS = 64 };

typedef struct {
    int corners;
    double e[RACE_CORNERS][RACE_TOKENS]; /* they sum to 1 */
} race_region;

race_region race_region_all(void);
/* Returns the area, as a fraction of the triangle's. */
double race_region_area(const race_region *r);
/* Returns the part where the sum of h[x] e[x] is at most 0. */
race_region race_region_cut(const race_region *r, const double h[RACE_TOKENS]);
/* Returns the part where x is ahead of every other token of weight w > 0, [size]. */
race_region race_region_won(const race_region *r, const double *w, int size, int x);

#endif
