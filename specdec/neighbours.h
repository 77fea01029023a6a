/* Tokens whose codebook entries are close: LANTERN's neighbourhoods. */
#ifndef SPECDEC_NEIGHBOURS_H
#define SPECDEC_NEIGHBOURS_H

/* Which tokens are near. */
typedef enum {
    SPEC_METRIC_L2,    /* l2 distance of their codebook entries */
    SPEC_METRIC_COSINE /* the angle between them; that to an entry of length 0 is a right one */
} spec_metric;

/* Fills table [size][k], 1 <= k <= size. Row x has the k tokens nearest to x in the codebook float [size][dim], nearest
 * first, x itself before all; ties go to the lower number. Returns 0, or -1 without memory. */
int spec_neighbour_table(const float *codebook, int size, int dim, int k, spec_metric metric, int *table);

#endif
