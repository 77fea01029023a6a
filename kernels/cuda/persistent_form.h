/* Division of a head over the blocks of a device by a persistent kernel (persistent.cuh). */
#ifndef KERNELS_CUDA_PERSISTENT_FORM_H
#define KERNELS_CUDA_PERSISTENT_FORM_H

#include "kernels/ops.h"

/* Division of a layer's columns. */
typedef struct {
    int tiles;   /* maximum tiles of 8 columns of a cluster */
    int own;     /* maximum pairs of columns a block owns */
    int inverse; /* q / own is q * inverse >> 16, for any pair q of a cluster */
} persistent_cut;

typedef struct {
    int cluster;         /* blocks of a cluster: 8, 4, 2 or 1 */
    int clusters;        /* clusters of the grid */
    int instance;        /* number of the kernel's instance */
    persistent_cut cut;  /* of the residual stream: the columns of fc2 and of the input layer */
    persistent_cut wide; /* of fc1's columns; MLP: as `cut` */
    int chunk;           /* tiles of 16 rows a block processes at a time: 4, 2 or 1 */
    int resident;        /* the first `resident` products keep their weights in shared memory; those of the others are
                          * copied alternately to two places there */
    size_t shared_bytes; /* shared memory of a block */
} persistent_form;

/* persistent_load.cu: chooses the form of a head's shape for clusters of `cluster` blocks, with shared_bytes of shared
 * memory a block. The device holds `most` clusters at once. Returns 0 if there is none. */
int persistent_choose(const kern_head_spec *shape, int cluster, int most, size_t shared_bytes, persistent_form *form);

#endif
