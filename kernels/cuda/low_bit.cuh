/* int8 and int4 weights as the device has them, so that a lane of a product loads 16 bytes and restores its weights
 * with few instructions. A row of weights has units of 64 bytes, the last one padded. A unit is STEPS steps of 32
 * inputs. Of each step lane t of four has inputs 8t .. 8t+7: its bytes 16t .. 16t+15 are those of step 0, step 1, ...
 *
 * Inputs k0, k1, k2, k3 of an int8 layer are in the order k0, k2, k1, k3. Inputs k0 .. k7 of an int4 layer are nibbles
 * k0, k2, k4, k6, k1, k3, k5, k7 of a word, rotated to the left by 3 bits. So pairs of neighbours are 16 bits apart,
 * and a rotation by 4 bits brings the next pair into a mantissa. */
#ifndef KERNELS_CUDA_LOW_BIT_CUH
#define KERNELS_CUDA_LOW_BIT_CUH

#include "kernels/cuda/linear.h"
#include "kernels/cuda/ptx.h"

template <cuda_weights FORM> struct low_bit {
    enum {
        STEPS = FORM == CUDA_INT4   ? 4
                : FORM == CUDA_INT8 ? 2
                                    : 1,
        INPUTS = 32 * STEPS,
        OFFSET = FORM == CUDA_INT4 ? 24 : 0,
    };
};

/* Writes 8 neighbouring inputs, integers plus OFFSET, as pairs of bf16, exactly. */
template <cuda_weights FORM>
static __device__ inline void low_bit_integers(const uint4 &unit, int step, uint32_t pair[4])
{
    const uint32_t word[4] = {unit.x, unit.y, unit.z, unit.w};
    if constexpr (FORM == CUDA_INT4) {
        for (int i = 0; i < 4; i++) { /* 0x4180 is 16, and the mantissa's code = integer + 8 adds to it */
            const uint32_t two = word[step] >> 4 * i | word[step] << (32 - 4 * i) % 32;
            pair[i] = fast::mask_and_set(two, 0x00780078, 0x41804180);
        }
    } else if constexpr (FORM == CUDA_INT8) {
        const uint32_t base = 0x43004300;
        for (int i = 0; i < 4; i++) { /* 128 + lower bits - (128 + sign bit): 0x4300 + n is 128 + n for n < 128 */
            const uint32_t two = word[2 * step + i / 2] >> i % 2 * 8;
            pair[i] = fast::fma_pairs(fast::mask_and_set(two, 0x00800080, base), 0xbf80bf80,
                                      fast::mask_and_set(two, 0x007f007f, base));
        }
    } else {
        for (int i = 0; i < 4; i++) pair[i] = word[i];
    }
}

#endif
