/* The T5 encoder with the CUDA backend against transformers. */
#include "tests/support/device.h"
#include "tests/support/t5_case.h"

static void check(mar_dtype dtype, int sequences, double allowed)
{
    kern_queue *k = open_cuda(dtype);
    t5_encoder *e = t5_load(k, T5_FOLDER);
    for (int twice = 0; twice < 2; twice++) {
        const double error = t5_error(k, e, sequences, 0);
        if (!(error <= allowed)) fail_msg("dtype %d: relative error %.3g, allowed %.3g", dtype, error, allowed);
    }
    t5_free(k->device, e);
    close_queue(k);
}

TEST_CASE(features_in_f32)
{
    check(MAR_DTYPE_F32, cuda_test_scale() > 1 ? T5_CASES : 4, 1e-5);
}

TEST_CASE(features_in_bf16)
{
    check(MAR_DTYPE_BF16, cuda_test_scale() > 1 ? T5_CASES : 3, 1e-2);
}
