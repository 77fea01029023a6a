#include "specdec/verifier.h"

const spec_method spec_path = {
    .name = "path",
    .source = "exact form of continuous SD Eq. 4, 5 and 10, over whole paths of the chain",
    .summary = "accept a token's whole path with min(1, P/Q), else draw one from the positive part of P - Q",
    .tokens = SPEC_CONTINUOUS,
    .topologies = SPEC_CHAIN,
    .policy = SPEC_STOP,
    .exact = 1,
    .guarantee = ", of whole paths given the context",
    .paths = 1,
};
