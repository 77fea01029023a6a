/* The adaLN layers of the diffusion head's blocks as one layer, for both backends. Layer norms of MLP blocks are folded
 * in. */
#ifndef KERNELS_ADALN_H
#define KERNELS_ADALN_H

#include "kernels/ops.h"

/* Builds the weight [ada_layers*3W][W] and bias [ada_layers*3W] of one linear layer from those of all blocks. adaLN
 * layer i has rows 3iW.. of shift, (3i+1)W.. of scale and (3i+2)W.. of gate. Both lie in one array; *weight owns it and
 * the caller frees it. Returns MAR_ENOMEM without memory.
 *
 * SWIGLU blocks share layers but not norms, so their layers are unchanged. With MLP blocks the layer norm's weight w
 * and bias b are folded in. With n = (x - mean)/sqrt(var + eps) the official layer computes
 *   u = (n*w + b) * (1 + scale) + shift = n * (1 + scale') + shift',
 *   scale' = w*(1 + scale) - 1 and shift' = b*(1 + scale) + shift.
 *
 * scale' and shift' are linear in the condition, as scale and shift are. Only u = n * (1 + scale') + shift' is left to
 * compute.
 *
 * Limit: the bf16 error of scale' is relative to scale', not to 1 + scale'. Where w is much below 1, scale' is near -1
 * and the relative error of u grows. A simulation measured 0.022 at w = 0.05, 0.0057 at 0.2, 0.0024 at 0.5, 0.0017 at 1
 * and 0.0019 at 2, against 0.0017 unfolded. Relative to channels with w near 1 it stays their own rounding error. */
mar_status kern_head_adaln(const kern_head_spec *spec, float **weight, const float **bias, mar_err *err);

#endif
