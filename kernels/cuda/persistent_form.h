/* How a persistent kernel (persistent.cuh) divides a head over the blocks of a device. */
#ifndef KERNELS_CUDA_PERSISTENT_FORM_H
#define KERNELS_CUDA_PERSISTENT_FORM_H

#include "kernels/rng.h"

#include <stddef.h>

typedef struct {
    int cluster;         /* blocks of a cluster: 8, 4, 2 or 1 */
    int clusters;        /* clusters of the grid */
    int pairs;           /* pairs of mmas of a part of the channels; selects the instance of a kernel */
    int tiles;           /* tiles of 8 columns of a cluster; the last cluster may have fewer */
    int own;             /* the most pairs of columns that a block owns */
    int chunk;           /* tiles of 16 rows that a block takes at a time: 4, 2 or 1 */
    int resident;        /* the first `resident` products keep their weights in shared memory */
    int slices;          /* resident, or resident + 2 places that the other products' weights are copied to in turns;
                          * without these places the weights are read from global memory */
    size_t shared_bytes; /* shared memory of a block */
} persistent_form;

/* Whether the weights of a product are read from global memory when they are needed: they do not stay in shared memory,
 * and there are no places to copy them to. */
KERN_FN int persistent_is_direct(int resident, int slices, int product)
{
    return slices == resident && product >= resident;
}

/* persistent_load.cu: the form for clusters of `cluster` blocks on a device that holds `most` of them at once, with so
 * many bytes of shared memory a block. Returns 0 if there is none. */
int persistent_choose(int width, int depth, int channels, int cluster, int most, size_t shared_bytes,
                      persistent_form *form);

#endif
