/* A trace's operations of causal transformers and discrete tokens. */
#ifndef KERNELS_TRACE_TOKENS_H
#define KERNELS_TRACE_TOKENS_H

#include "kernels/trace_call.h"

/* Puts them into the trace's tables, which have the backend's. */
void kern_trace_tokens(kern_trace *t);

#endif
