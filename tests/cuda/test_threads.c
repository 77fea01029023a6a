/* Sessions on several threads with the CUDA backend. */
#define THREADS_ON_CUDA
#include "tests/mar/test_threads.c"
