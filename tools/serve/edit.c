#include "tools/serve/edit.h"

#include "tools/images/source.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* Decodes a field to *rgb and *alpha, which is NULL if the picture has none. A picture of another size is refused by
 * its header: the connection's thread decodes no more than the session's pixels. */
static int edit_decode(const service *s, const char *name, const json_value *v, uint8_t **rgb, uint8_t **alpha,
                       answer *a)
{
    char why[IMAGE_WHY_MAX];
    int width = 0, height = 0;
    image picture = {.rgb = NULL};
    if (v->type != JSON_STRING)
        return answer_error(a, 400, name, NULL, "%s: is missing, expected a picture of %dx%d pixels", name, s->width,
                            s->height);
    errno = 0;
    int failed = image_size(v->text, v->length, &width, &height, why);
    if (!failed && (width != s->width || height != s->height))
        return answer_error(a, 400, name, NULL, "%s: has %dx%d pixels, expected %dx%d", name, width, height, s->width,
                            s->height);
    if (!failed) failed = image_decode_alpha(v->text, v->length, &picture, alpha, why);
    if (failed)
        return errno == ENOMEM /* libpng has other words for it */
                   ? answer_no_memory(a)
                   : answer_error(a, 400, name, NULL, "%s: %s", name, why);
    *rgb = picture.rgb;
    return 0;
}

/* Returns whether pixel i is to be made anew: it is transparent, or, of a mask without transparency, white as for
 * mar edit. */
static int is_made_anew(const uint8_t *alpha, const uint8_t *rgb, size_t i)
{
    return alpha ? alpha[i] == 0 : rgb[3 * i] >= 128 || rgb[3 * i + 1] >= 128 || rgb[3 * i + 2] >= 128;
}

/* Marks the tokens whose cells have no pixel to be made anew. Returns their number. */
static int mark_known(const service *s, const uint8_t *alpha, const uint8_t *rgb, int seq_len, uint8_t *known)
{
    const int columns = mar_model_get_config(s->models.model)->grid_width, cell = s->width / columns;
    int count = 0;
    memset(known, 1, (size_t)seq_len);
    for (int y = 0; y < s->height; y++)
        for (int x = 0; x < s->width; x++)
            if (is_made_anew(alpha, rgb, (size_t)y * (size_t)s->width + (size_t)x))
                known[y / cell * columns + x / cell] = 0;
    for (int i = 0; i < seq_len; i++) count += known[i];
    return count;
}

int edit_read(const service *s, const json_value *picture, const json_value *mask, job_spec *out, answer *a)
{
    const int seq_len = mar_model_get_config(s->models.model)->seq_len, has_mask = mask->type == JSON_STRING;
    const char *const source = has_mask ? "mask" : "image";
    uint8_t *rgb = NULL, *alpha = NULL, *mask_rgb = NULL, *mask_alpha = NULL;
    int failed = edit_decode(s, "image", picture, &rgb, &alpha, a);
    if (!failed && has_mask) failed = edit_decode(s, "mask", mask, &mask_rgb, &mask_alpha, a);
    uint8_t *known = malloc((size_t)seq_len);
    if (!failed && !known) failed = answer_no_memory(a);
    int kept = seq_len;
    if (!failed && has_mask)
        kept = mark_known(s, mask_alpha, mask_rgb, seq_len, known);
    else if (!failed && alpha)
        kept = mark_known(s, alpha, rgb, seq_len, known);
    if (!failed && kept == seq_len)
        failed =
            answer_error(a, 400, source, NULL, "%s: no pixel is %s, expected %s where the picture is to be made anew%s",
                         source, has_mask && !mask_alpha ? "white" : "transparent",
                         has_mask && !mask_alpha ? "white" : "alpha 0", has_mask ? "" : ", or a mask");
    free(mask_rgb);
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
