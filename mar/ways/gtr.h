/* GtR, "Generation then Reconstruction" (Yan et al., arXiv 2510.17171): half of the tokens, one colour of a chessboard,
 * are generated slowly; no two of them touch. The other half, each between known neighbours, is reconstructed fast, its
 * tokens on fine detail with more diffusion steps than the rest (frequency-weighted token selection).
 *
 * The paper's code was not out when this was written. Here:
 * - a stage's tokens come in the image's random order, over its number of steps by MaskGIT's cosine;
 * - guidance follows the share of known tokens through both stages, as without GtR;
 * - a token's energy is that of all but the lowest frequency of the discrete Fourier transform of its (up to four)
 * direct neighbours, summed over channels: by Parseval, the sum of squared distances from their mean;
 * - of the tokens of a step of the second stage, those with the highest energy get num_sampling_steps, an equal number
 * in every image, the others gtr_sampling_steps. */
#ifndef MAR_WAYS_GTR_H
#define MAR_WAYS_GTR_H

#include "mar/masked/steps.h"

/* All of steps[num_iter], num_iter being the sum of both stages' steps; params as the way has checked them. */
void mar_gtr_plan(const mar_params *params, int grid, mar_step *steps);
/* Moves the first stage's tokens to the end of a random order [grid*grid], where it begins; scratch [grid*grid]. */
void mar_gtr_order(int grid, int *order, int *scratch);
/* Moves the `detailed` of n tokens with the most energy to the end of positions [n]. tokens [grid*grid][channels], of
 * which the first stage's are known; energy: scratch [n]. */
void mar_gtr_select(const float *tokens, int grid, int channels, int *positions, int n, int detailed, float *energy);

#endif
