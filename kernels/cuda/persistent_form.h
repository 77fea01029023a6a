/* Division of a head over the blocks of a device by a persistent kernel (persistent.cuh). */
#ifndef KERNELS_CUDA_PERSISTENT_FORM_H
#define KERNELS_CUDA_PERSISTENT_FORM_H

#include "kernels/ops.h"

/* Division of a layer's columns. */
typedef struct {
    int tiles; /* maximum tiles of 8 columns of a cluster */
    int own;   /* maximum pairs of columns a block owns */
} persistent_cut;

typedef struct {
    int cluster;         /* blocks of a cluster: 8, 4, 2 or 1 */
    int clusters;        /* clusters of the grid */
    int instance;        /* number of the kernel's instance */
    persistent_cut cut;  /* of the residual stream: the columns of fc2 and of the input layer */
    persistent_cut wide; /* of fc1's columns; MLP: as `cut` */
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

/* persistent_load.cu: chooses the form of a head's shape for clusters of `cluster` blocks, with shared_bytes of shared
 * memory a block. The device holds `most` clusters at once. Returns 0 if there is none. */
int persistent_choose(const kern_head_spec *shape, int cluster, int most, size_t shared_bytes, persistent_form *form);

#endif
