#include "weights/rows.h"
#include "kernels/int4.h"
#include "weights/number.h"

/* Returns the matrix that has row `first` of W, and the rows of it until `first` + n or its end. */
static int part_of(const wt_rows *r, int first, int n, int *row, int *rows)
{
    const int i = first / r->out;
    *row = first % r->out;
    *rows = r->out - *row < n ? r->out - *row : n;
    return i;
}

static float factor_of(const wt_rows *r, int i)
{
    return r->factor ? r->factor[i] : 1;
}

static mar_status read_f32(void *user, int first, int n, float *weight, mar_err *err)
{
    const wt_rows *r = user;
    mar_status status = MAR_OK;
    for (int row, rows; n > 0 && status == MAR_OK; first += rows, n -= rows) {
        const int i = part_of(r, first, n, &row, &rows);
        const size_t count = (size_t)rows * (size_t)r->in;
        const float factor = factor_of(r, i);
        status = wt_load_matrix_rows(r->file, r->names[i], r->out, r->in, row, rows, weight, err);
        for (size_t j = 0; status == MAR_OK && factor != 1 && j < count; j++) weight[j] *= factor;
        weight += count;
    }
    return status;
}

static mar_status read_int8(void *user, int first, int n, int8_t *q, float *scale, mar_err *err)
{
    const wt_rows *r = user;
    mar_status status = MAR_OK;
    for (int row, rows; n > 0 && status == MAR_OK; first += rows, n -= rows) {
        const int i = part_of(r, first, n, &row, &rows);
        status = wt_load_int8(r->file, r->names[i], r->out, r->in, row, rows, q, scale, err);
        for (int j = 0; status == MAR_OK && j < rows; j++) scale[j] *= factor_of(r, i);
        q += (size_t)rows * (size_t)r->in, scale += rows;
    }
    return status;
}

static mar_status read_int4(void *user, int first, int n, uint8_t *q, uint16_t *scale, mar_err *err)
{
    const wt_rows *r = user;
    mar_status status = MAR_OK;
    for (int row, rows; n > 0 && status == MAR_OK; first += rows, n -= rows) {
        const int i = part_of(r, first, n, &row, &rows);
        const size_t groups = (size_t)rows * (size_t)r->in / KERN_INT4_GROUP;
        const float factor = factor_of(r, i);
        status = wt_load_int4(r->file, r->names[i], r->out, r->in, row, rows, q, scale, err);
        for (size_t j = 0; status == MAR_OK && factor != 1 && j < groups; j++)
            scale[j] = wt_bf16_from_f32(wt_f32_from_bf16(scale[j]) * factor);
        q += groups * KERN_INT4_BYTES, scale += groups;
    }
    return status;
}

kern_linear_rows wt_linear_rows(wt_rows *rows)
{
    int int8 = 1, int4 = 1;
    for (int i = 0; i < rows->count; i++) {
        int8 = int8 && wt_is_int8(rows->file, rows->names[i]);
        int4 = int4 && wt_is_int4(rows->file, rows->names[i]);
    }
    return (kern_linear_rows){read_f32, int8 ? read_int8 : NULL, int4 ? read_int4 : NULL, rows};
}
