/* The account of --head_spec auto, for tests. */
#ifndef MAR_ACCEL_HEAD_SPEC_H
#define MAR_ACCEL_HEAD_SPEC_H

/* Returns what the draws that the statistics count have cost, over what they would have cost by the plain chain. The
 * costs are the times of head_costs. `state` is that of mar_accel_head_spec's chain hooks. */
double mar_head_spec_account(const void *state);

#endif
