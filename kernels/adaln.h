/* The adaLN layers of the diffusion head's blocks as both backends keep them: one layer, with each block's layer norm
 * folded in. */
#ifndef KERNELS_ADALN_H
#define KERNELS_ADALN_H

#include "kernels/ops.h"

/* Makes the weight [depth*3W][W] and the bias [depth*3W] of one linear layer from those of all blocks; block b has rows
 * 3bW.. of shift, (3b+1)W.. of scale and (3b+2)W.. of gate. They lie in one array, which *weight owns and the caller
 * frees.
 *
 * The layer norm's weight w and bias b are part of it. With n = (x - mean)/sqrt(var + eps) the official layer computes
 *   u = (n*w + b) * (1 + scale) + shift = n * (1 + scale') + shift',
 *   scale' = w*(1 + scale) - 1 and shift' = b*(1 + scale) + shift,
 * which are linear in the condition as scale and shift are. So u = n * (1 + scale') + shift' is all that is left to
 * compute.
 *
 * The limit of it: where scale' is kept in bf16 its error is relative to scale', which is near -1 where w is much below
 * 1, and not to 1 + scale'. The relative error of u then grows: in a simulation 0.022 with w = 0.05, 0.0057 with 0.2,
 * 0.0024 with 0.5, 0.0017 with 1 and 0.0019 with 2, against 0.0017 unfolded. In proportion to channels with w near 1
 * it stays what their own rounding is.
 *
 * MAR_ENOMEM without memory. */
mar_status kern_head_adaln(const kern_head_spec *spec, float **weight, const float **bias, mar_err *err);

#endif
