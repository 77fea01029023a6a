/* Cooperative groups on the CPU: the cluster of a block. */
#ifndef CUDAHOST_COOPERATIVE_GROUPS_H
#define CUDAHOST_COOPERATIVE_GROUPS_H

#include "cudahost_device.h"

namespace cooperative_groups
{

struct cluster_group {
    void sync(CUDAHOST_HERE) const
    {
        cudahost_sync_cluster(file, line);
    }
    unsigned block_rank() const
    {
        return cudahost_cluster_rank();
    }
    /* Maps the address p of this block's shared memory to the shared memory of block `rank`. */
    template <typename T> T *map_shared_rank(T *p, unsigned rank, CUDAHOST_HERE) const
    {
        return (T *)cudahost_cluster_map(p, rank, file, line);
    }
};

static inline cluster_group this_cluster()
{
    return cluster_group();
}

} // namespace cooperative_groups

#endif
