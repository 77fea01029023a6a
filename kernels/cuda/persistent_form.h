/* Division of a head over the blocks of a device by a persistent kernel (persistent.cuh). */
#ifndef KERNELS_CUDA_PERSISTENT_FORM_H
#define KERNELS_CUDA_PERSISTENT_FORM_H

#include "kernels/rng.h"

#include <stddef.h>

typedef struct {
    int cluster;         /* blocks of a cluster: 8, 4, 2 or 1 */
    int clusters;        /* clusters of the grid */
    int pairs;           /* pairs of mmas of a part of the channels; selects the kernel's instance */
    int tiles;           /* tiles of 8 columns of a cluster; the last cluster may have fewer */
    int own;             /* maximum pairs of columns a block owns */
    int chunk;           /* tiles of 16 rows a block processes at a time: 4, 2 or 1 */
    int resident;        /* the first `resident` products keep their weights in shared memory */
    int slices;          /* resident, or resident + 2 places to which the other products' weights are copied
                          * alternately; without them these weights are read from global memory */
    size_t shared_bytes; /* shared memory of a block */
} persistent_form;

/* Returns 1 if a product's weights are read from global memory at their use: they are not resident, and there are no
 * places to copy them to. */
KERN_FN int persistent_is_direct(int resident, int slices, int product)
{
    return slices == resident && product >= resident;
}

/* persistent_load.cu: chooses the form for clusters of `cluster` blocks, with shared_bytes of shared memory a block.
 * The device holds `most` clusters at once. Returns 0 if there is none. */
int persistent_choose(int width, int depth, int channels, int cluster, int most, size_t shared_bytes,
                      persistent_form *form);

#endif
