#include "tools/serve/edit.h"

#include "tools/images/image.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* Decodes a field to rgb and alpha, which is NULL if the PNG has none. */
static int decode(const service *s, const char *name, const json_value *v, uint8_t **rgb, uint8_t **alpha, answer *a)
{
    char why[IMAGE_WHY_MAX];
    image picture = {s->width, s->height, NULL};
    if (v->type != JSON_STRING)
        return answer_error(a, 400, name, NULL, "%s: is missing, expected a PNG of %dx%d pixels", name, s->width,
                            s->height);
    errno = 0;
    if (image_decode_png_alpha(v->text, v->length, &picture, alpha, why) != 0)
        return errno == ENOMEM /* libpng has other words for it */
                   ? answer_no_memory(a)
                   : answer_error(a, 400, name, NULL, "%s: %s", name, why);
    *rgb = picture.rgb;
    return 0;
}

/* Marks the tokens whose cells have no transparent pixel. Returns their number. */
static int mark_known(const service *s, const uint8_t *alpha, int seq_len, uint8_t *known)
{
    const int columns = mar_model_get_config(s->models.model)->grid_width, cell = s->width / columns;
    int count = 0;
    memset(known, 1, (size_t)seq_len);
    for (int y = 0; y < s->height; y++)
        for (int x = 0; x < s->width; x++)
            if (alpha[(size_t)y * (size_t)s->width + (size_t)x] == 0) known[y / cell * columns + x / cell] = 0;
    for (int i = 0; i < seq_len; i++) count += known[i];
    return count;
}

int edit_read(const service *s, const json_value *picture, const json_value *mask, job_spec *out, answer *a)
{
    const int seq_len = mar_model_get_config(s->models.model)->seq_len, has_mask = mask->type == JSON_STRING;
    const char *const source = has_mask ? "mask" : "image";
    uint8_t *rgb = NULL, *alpha = NULL, *unused = NULL, *mask_alpha = NULL;
    int failed = decode(s, "image", picture, &rgb, &alpha, a);
    if (!failed && has_mask) failed = decode(s, "mask", mask, &unused, &mask_alpha, a);
    const uint8_t *transparency = has_mask ? mask_alpha : alpha;
    uint8_t *known = malloc((size_t)seq_len);
    if (!failed && !known) failed = answer_no_memory(a);
    const int kept = !failed && transparency ? mark_known(s, transparency, seq_len, known) : seq_len;
    if (!failed && kept == seq_len)
        failed = answer_error(a, 400, source, NULL,
                              "%s: no pixel is transparent, expected alpha 0 where the picture is to be made anew%s",
                              source, has_mask ? "" : ", or a mask");
    free(unused);
    free(alpha);
    free(mask_alpha);
    if (failed) {
        free(rgb);
        free(known);
        return 1;
    }
    out->picture = rgb;
    out->known = known;
    out->kept_tokens = kept;
    return 0;
}
