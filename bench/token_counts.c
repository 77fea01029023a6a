/* eval_token_counts for bench/discrete_law.py, which loads it; libmar.so has the calls of mar.h alone. */
#include "eval/counts.h"

__attribute__((visibility("default"))) mar_status token_counts(const eval_token_pairs *pairs, int permutations,
                                                               eval_counts_test *tokens, eval_counts_test *places,
                                                               eval_counts_test *neighbours);

mar_status token_counts(const eval_token_pairs *pairs, int permutations, eval_counts_test *tokens,
                        eval_counts_test *places, eval_counts_test *neighbours)
{
    return eval_token_counts(pairs, permutations, tokens, places, neighbours);
}
