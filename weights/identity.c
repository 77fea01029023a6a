/* The hash of the tensors of a file that are read, made on the way. */
#include "weights/table.h"

#include <stdlib.h>

/* Scales of fp8 weights are read again for each piece of these: they count when all is read. */
static int is_read_again(const wt_file *f, const wt_tensor *t)
{
    const wt_tensor *matrix = wt_matrix_of(f, t);
    return matrix && wt_is_fp8(matrix->dtype);
}

mar_status wt_digest_tensor(const wt_file *f, const wt_tensor *t, mar_err *err)
{
    enum { PIECE = 1 << 20 };
    uint8_t *piece = malloc(PIECE);
    mar_status status = piece ? MAR_OK : err_set(err, MAR_ENOMEM, "%s: out of memory", f->path);
    const uint64_t bytes = wt_bytes_of(t);
    for (uint64_t at = 0; at < bytes && status == MAR_OK; at += PIECE)
        status = wt_read_bytes(f, t, at, bytes - at < PIECE ? (size_t)(bytes - at) : PIECE, piece, err);
    free(piece);
    return status;
}

mar_status wt_digest_begin(wt_file *f, mar_err *err)
{
    f->digests = calloc((size_t)f->count + 1, sizeof *f->digests);
    if (!f->digests) return err_set(err, MAR_ENOMEM, "%s: out of memory for the tensor table", f->path);
    for (int i = 0; i < f->count; i++)
        if (is_read_again(f, &f->tensors[i])) f->digests[i].bytes = UINT64_MAX;
    return MAR_OK;
}

/* Reads the scales of an fp8 matrix that was read. */
static mar_status add_scales(const wt_file *f, const wt_tensor *matrix, mar_err *err)
{
    uint8_t piece[4096];
    const wt_tensor *t = wt_scale_of(f, matrix);
    wt_digest *d = t ? &f->digests[t - f->tensors] : NULL;
    mar_status status = MAR_OK;
    if (!d || d->bytes != UINT64_MAX) return MAR_OK;
    d->bytes = 0;
    for (uint64_t at = 0, all = wt_bytes_of(t), n; at < all && status == MAR_OK; at += n) {
        n = all - at < sizeof piece ? all - at : sizeof piece;
        status = wt_read_bytes(f, t, at, (size_t)n, piece, err);
    }
    return status;
}

mar_status wt_digest_end(wt_file *f, uint64_t *hash, mar_err *err)
{
    mar_status status = MAR_OK;
    if (!f->digests) return MAR_OK;
    *hash = f->config_hash;
    for (int i = 0; i < f->count && status == MAR_OK; i++)
        if (wt_is_fp8(f->tensors[i].dtype) && f->digests[i].bytes > 0) status = add_scales(f, &f->tensors[i], err);
    for (int i = 0; i < f->n_metadata; i++)
        *hash = wt_text_digest(wt_text_digest(*hash, f->metadata[i].key), f->metadata[i].value);
    for (int i = 0; i < f->count; i++) {
        const wt_tensor *t = &f->tensors[i];
        const wt_digest *d = &f->digests[i];
        if (d->bytes == 0 || d->bytes == UINT64_MAX) continue;
        *hash = wt_number_digest(wt_text_digest(*hash, t->name), (uint64_t)t->dtype);
        for (int k = 0; k < t->rank; k++) *hash = wt_number_digest(*hash, (uint64_t)t->shape[k]);
        *hash = wt_number_digest(wt_number_digest(*hash, (uint64_t)d->sum), (uint64_t)(d->sum >> 64));
    }
    free(f->digests);
    f->digests = NULL;
    return status;
}
