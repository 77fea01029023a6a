/* GtR, "Generation then Reconstruction" (Yan et al., arXiv 2510.17171). Half of the tokens, one colour of a chessboard,
 * are generated slowly; no two of them touch. The other half, each between known neighbours, is reconstructed fast. Its
 * tokens on fine detail get more diffusion steps than the rest (frequency-weighted token selection).
 *
 * The paper's code was not published when this was written. Choices made here:
 * - A stage's tokens come in the image's random order, over its number of steps by MaskGIT's cosine.
 * - Guidance follows the share of known tokens through both stages, as without GtR.
 * - A token's energy is that of its (up to four) direct neighbours, summed over channels. It is the energy of their
 *   discrete Fourier transform without the lowest frequency. By Parseval that is the sum of squared distances from
 *   their mean.
 * - Of the tokens of a step of the second stage, those with the highest energy get num_sampling_steps, the others
 *   gtr_sampling_steps. Their number is equal in every image. */
#ifndef MAR_ACCEL_GTR_H
#define MAR_ACCEL_GTR_H

#include "mar/masked_runner.h"

/* Plans all of steps[num_iter], where num_iter is the sum of both stages' steps. params have passed the accelerator's
 * check. */
void mar_gtr_plan(const mar_params *params, int grid, mar_step *steps);
/* Moves the first stage's tokens to the end of a random order [grid*grid], where it begins. scratch [grid*grid]. */
void mar_gtr_order(int grid, int *order, int *scratch);
/* Moves the `detailed` tokens of highest energy to the end of positions [n]. tokens [grid*grid][channels] has the first
 * stage's known. energy is scratch [n]. */
void mar_gtr_select(const float *tokens, int grid, int channels, int *positions, int n, int detailed, float *energy);

#endif
