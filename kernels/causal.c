#include "kernels/causal.h"

size_t kern_cache_slot_bytes(const kern_device *d, kern_cache_type type, int kv_heads, int head_dim)
{
    const size_t heads = 2 * (size_t)kv_heads, dim = (size_t)head_dim;
    if (type == KERN_CACHE_INT8) return heads * (dim + sizeof(float));
    return heads * dim * (type == KERN_CACHE_BF16 ? sizeof(uint16_t) : d->act_size);
}
