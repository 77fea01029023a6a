#include "weights/rows.h"
#include "kernels/int4.h"
#include "weights/number.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

mar_status wt_load_array(kern_queue *k, const wt_file *f, const char *name, int rank, const int64_t *shape, float **out,
                         mar_err *err)
{
    size_t n = 1;
    float *host = NULL;
    *out = NULL;
    for (int i = 0; i < rank; i++) n *= (size_t)shape[i];
    mar_status status = wt_load_f32(f, name, rank, shape, &host, err);
    if (status == MAR_OK) status = kern_new_array(k, host, n, out, err);
    free(host);
    return status;
}

/* --- places ------------------------------------------------------------------------------------------------------- */

int wt_place_in_head(int i, int size)
{
    return i % 2 * (size / 2) + i / 2;
}

/* Returns the matrix with row r of those taken, and sets *row to its row there. */
static const wt_piece *rows_place_of(const wt_rows *w, int r, int *row)
{
    const wt_piece *p = w->piece;
    if (w->id) return *row = w->id[r], p;
    for (r += w->first; r >= p->rows; p++) r -= p->rows;
    *row = p->head ? r / p->head * p->head + wt_place_in_head(r % p->head, p->head) : r;
    return p;
}

/* Returns how many rows from r on, at most n, follow one another in the file. */
static int run_of(const wt_rows *w, int r, int n, const wt_piece **piece, int *first)
{
    int count = 1, row;
    *piece = rows_place_of(w, r, first);
    while (count < n && rows_place_of(w, r + count, &row) == *piece && row == *first + count) count++;
    return count;
}

static float rows_factor_of(float factor)
{
    return factor != 0 ? factor : 1;
}

/* --- weights ------------------------------------------------------------------------------------------------------ */

static mar_status read_f32(void *user, int first, int n, float *weight, mar_err *err)
{
    const wt_rows *w = user;
    const size_t in = (size_t)w->in;
    const wt_piece *p;
    mar_status status = MAR_OK;
    for (int count, row; n > 0 && status == MAR_OK; first += count, n -= count) {
        count = run_of(w, first, n, &p, &row);
        const float factor = rows_factor_of(p->factor);
        status = wt_load_matrix_rows(w->file, p->name, p->rows, w->in, row, count, weight, err);
        for (size_t j = 0; status == MAR_OK && factor != 1 && j < (size_t)count * in; j++) weight[j] *= factor;
        for (int r = 0; r < count; r++, weight += in)
            for (size_t j = 0; status == MAR_OK && w->column && j < in; j++) weight[j] *= w->column[j];
    }
    return status;
}

static mar_status read_int8(void *user, int first, int n, int8_t *q, float *scale, mar_err *err)
{
    const wt_rows *w = user;
    const wt_piece *p;
    mar_status status = MAR_OK;
    for (int count, row; n > 0 && status == MAR_OK; first += count, n -= count) {
        count = run_of(w, first, n, &p, &row);
        status = wt_load_int8(w->file, p->name, p->rows, w->in, row, count, q, scale, err);
        for (int j = 0; status == MAR_OK && j < count; j++) scale[j] *= rows_factor_of(p->factor);
        q += (size_t)count * (size_t)w->in, scale += count;
    }
    return status;
}

static mar_status read_int4(void *user, int first, int n, uint8_t *q, uint16_t *scale, mar_err *err)
{
    const wt_rows *w = user;
    const wt_piece *p;
    mar_status status = MAR_OK;
    for (int count, row; n > 0 && status == MAR_OK; first += count, n -= count) {
        count = run_of(w, first, n, &p, &row);
        const size_t groups = (size_t)count * (size_t)w->in / KERN_INT4_GROUP;
        const float factor = rows_factor_of(p->factor);
        status = wt_load_int4(w->file, p->name, p->rows, w->in, row, count, q, scale, err);
        for (size_t j = 0; status == MAR_OK && factor != 1 && j < groups; j++)
            scale[j] = wt_bf16_from_f32(wt_f32_from_bf16(scale[j]) * factor);
        q += groups * KERN_INT4_BYTES, scale += groups;
    }
    return status;
}

kern_linear_rows wt_linear_rows(wt_rows *rows)
{
    int int8 = !rows->column, int4 = int8;
    for (int i = 0; i < rows->count; i++) {
        int8 = int8 && wt_is_int8(rows->file, rows->piece[i].name);
        int4 = int4 && wt_is_int4(rows->file, rows->piece[i].name);
    }
    return (kern_linear_rows){read_f32, int8 ? read_int8 : NULL, int4 ? read_int4 : NULL, rows};
}

/* Loads the biases of the rows taken, out of them. */
static mar_status load_bias(const wt_rows *w, int out, float **bias, mar_err *err)
{
    float *part[WT_PIECES] = {NULL};
    mar_status status = MAR_OK;
    *bias = malloc((size_t)out * sizeof **bias);
    if (!*bias) return err_set(err, MAR_ENOMEM, "%s: out of memory for a bias", wt_path(w->file));
    for (int i = 0; status == MAR_OK && i < w->count; i++) {
        char name[WT_PIECE_NAME];
        const int64_t rows = w->piece[i].rows;
        const size_t length = strlen(w->piece[i].name) - strlen("weight");
        snprintf(name, sizeof name, "%.*sbias", (int)length, w->piece[i].name);
        status = wt_load_f32(w->file, name, 1, &rows, &part[i], err);
    }
    for (int r = 0, row; status == MAR_OK && r < out; r++) {
        const wt_piece *p = rows_place_of(w, r, &row);
        (*bias)[r] = part[p - w->piece][row] * rows_factor_of(p->bias_factor);
    }
    for (int i = 0; i < WT_PIECES; i++) free(part[i]);
    return status;
}

mar_status wt_create_linear(kern_queue *k, wt_rows *rows, kern_linear_spec spec, kern_linear **out, mar_err *err)
{
    const kern_linear_rows source = wt_linear_rows(rows);
    float *bias = NULL;
    mar_status status = rows->bias ? load_bias(rows, spec.out, &bias, err) : MAR_OK;
    spec.in = rows->in;
    spec.rows = &source;
    spec.bias = bias;
    if (status == MAR_OK) status = k->core->linear_create(k, &spec, out, err);
    free(bias);
    return status;
}
