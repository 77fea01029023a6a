/* Tensor elements as f32. */
#include "weights/number.h"
#include "weights/table.h"

int wt_is_float(wt_dtype dtype)
{
    return dtype == WT_F64 || dtype == WT_F32 || dtype == WT_F16 || dtype == WT_BF16;
}

static uint16_t load16(const uint8_t *p)
{
    uint16_t bits;
    memcpy(&bits, p, sizeof bits);
    return bits;
}

void wt_convert_f32(const wt_tensor *t, int64_t first, size_t n, float *dst)
{
    if (n == 0) return;
    const uint8_t *src = (const uint8_t *)t->data + (size_t)first * wt_dtype_size(t->dtype);
    switch (t->dtype) {
    case WT_F32:
        memcpy(dst, src, n * sizeof *dst);
        break;
    case WT_F64:
        for (size_t i = 0; i < n; i++) {
            double value;
            memcpy(&value, src + 8 * i, sizeof value);
            dst[i] = (float)value;
        }
        break;
    case WT_F16:
        for (size_t i = 0; i < n; i++) dst[i] = wt_f32_from_f16(load16(src + 2 * i));
        break;
    case WT_BF16:
        for (size_t i = 0; i < n; i++) dst[i] = wt_f32_from_bf16(load16(src + 2 * i));
        break;
    default:
        break; /* callers have checked wt_is_float */
    }
}

mar_status wt_read_f32(const wt_file *f, const wt_tensor *t, float *dst, mar_err *err)
{
    if (!wt_is_float(t->dtype))
        return err_set(err, MAR_EMODEL, "%s: tensor %s has dtype %s, expected F32, BF16, F16 or F64", f->path, t->name,
                       wt_dtype_name(t->dtype));
    wt_convert_f32(t, 0, (size_t)t->count, dst);
    return MAR_OK;
}
