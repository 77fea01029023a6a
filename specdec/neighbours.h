/* Neighbouring tokens by codebook distance: LANTERN's neighbourhoods. */
#ifndef SPECDEC_NEIGHBOURS_H
#define SPECDEC_NEIGHBOURS_H

/* Distance between two tokens. */
typedef enum {
    SPEC_METRIC_L2,    /* l2 distance of the codebook entries */
    SPEC_METRIC_COSINE /* angle between the codebook entries; a right angle if one has length 0 */
} spec_metric;

/* Fills table [size][k], 1 <= k <= size. Row x lists the k tokens nearest to x in the codebook float [size][dim],
 * nearest first. x itself comes first; ties go to the lower number. Returns 0, or -1 without memory. */
int spec_neighbour_table(const float *codebook, int size, int dim, int k, spec_metric metric, int *table);

#endif
