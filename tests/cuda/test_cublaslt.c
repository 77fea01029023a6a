/* Products that cuBLASLt cannot compute. */
#include "tests/cudahost/control.h"
#include "tests/support/device.h"

#include <stdlib.h>
#include <string.h>

static float *product_of_64(int *status, mar_err *err)
{
    enum { SIDE = 64, ROWS = 40 };
    kern_queue *k = open_cuda(MAR_DTYPE_F32);
    float *w = random_floats(SIDE * SIDE, 0.125f, 5), *x = random_floats(ROWS * SIDE, 1, 7);
    float *y = malloc(ROWS * SIDE * sizeof *y);
    const kern_linear_spec spec = {.out = SIDE, .in = SIDE, .weight = w};
    kern_linear *l = NULL;
    assert_non_null(y);
    assert_ok(k->core->linear_create(k, &spec, &l, err), err);
    void *dx = to_device(k, x, ROWS * SIDE * sizeof *x), *dy = to_device(k, NULL, ROWS * SIDE * sizeof *y);
    assert_ok(k->core->linear_plan(k, l, ROWS, err), err);
    k->core->linear(k, l, dx, ROWS, dy);
    *status = kern_check(k, err);
    if (*status == MAR_OK) from_device(k, y, dy, ROWS * SIDE * sizeof *y);
    k->core->linear_free(k->device, l);
    k->core->free(k->device, dx), k->core->free(k->device, dy);
    close_queue(k);
    free(w), free(x);
    return y;
}

/* Checks that the simple kernel computes if cuBLASLt offers no algorithm. If the algorithm fails to run, the product
 * reports it. */
static void without_an_algorithm(void **state)
{
    int status;
    mar_err err = {0};
    (void)state;
    if (!cudahost_algorithms) return;
    float *expected = product_of_64(&status, &err);
    assert_ok(status, &err);
    cudahost_algorithms(CUDAHOST_NO_ALGORITHM);
    float *y = product_of_64(&status, &err);
    assert_ok(status, &err);
    assert_close(y, expected, 40 * 64, 1e-5);
    cudahost_algorithms(CUDAHOST_BROKEN_ALGORITHM);
    free(y), free(expected), free(product_of_64(&status, &err));
    assert_int_equal(status, MAR_EBACKEND);
    assert_non_null(strstr(err.text, "cuBLASLt: a product of 40 x 64 by 64 x 64"));
    cudahost_algorithms(CUDAHOST_ALGORITHM);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(without_an_algorithm)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
