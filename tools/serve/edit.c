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

/* Returns whether pixel i is to be made anew. */
static int is_made_anew(edit_mask kind, const uint8_t *alpha, const uint8_t *rgb, size_t i)
{
    if (kind == MASK_CLEAR && alpha) return alpha[i] == 0;
    const int is_white = alpha ? alpha[i] > 128 : rgb[3 * i] >= 128 || rgb[3 * i + 1] >= 128 || rgb[3 * i + 2] >= 128;
    return is_white == (kind != MASK_BLACK);
}

/* Marks the tokens whose cells have no pixel to be made anew. Returns their number. */
static int mark_known(const service *s, edit_mask kind, const uint8_t *alpha, const uint8_t *rgb, int seq_len,
                      uint8_t *known)
{
    const int columns = mar_model_get_config(s->models.model)->grid_width, cell = s->width / columns;
    int count = 0;
    memset(known, 1, (size_t)seq_len);
    for (int y = 0; y < s->height; y++)
        for (int x = 0; x < s->width; x++)
            if (is_made_anew(kind, alpha, rgb, (size_t)y * (size_t)s->width + (size_t)x))
                known[y / cell * columns + x / cell] = 0;
    for (int i = 0; i < seq_len; i++) count += known[i];
    return count;
}

/* Frees the alpha of a mask of AUTOMATIC1111's if all is opaque: then its colours count. */
static void drop_opaque(const service *s, edit_mask kind, uint8_t **alpha)
{
    const size_t pixels = (size_t)s->width * (size_t)s->height;
    size_t i = 0;
    while (*alpha && i < pixels && (*alpha)[i] == 255) i++;
    if (kind == MASK_CLEAR || i < pixels) return;
    free(*alpha);
    *alpha = NULL;
}

int edit_read(const service *s, const json_value *picture, const char *name, const json_value *mask, edit_mask kind,
              job_spec *out, answer *a)
{
    const int seq_len = mar_model_get_config(s->models.model)->seq_len, has_mask = mask->type == JSON_STRING;
    uint8_t *rgb = NULL, *alpha = NULL, *mask_rgb = NULL, *mask_alpha = NULL;
    int failed = edit_decode(s, name, picture, &rgb, &alpha, a);
    if (!failed && has_mask) failed = edit_decode(s, "mask", mask, &mask_rgb, &mask_alpha, a);
    uint8_t *known = malloc((size_t)seq_len);
    if (!failed && !known) failed = answer_no_memory(a);
    int kept = seq_len;
    if (!failed) drop_opaque(s, kind, &mask_alpha);
    if (!failed && has_mask)
        kept = mark_known(s, kind, mask_alpha, mask_rgb, seq_len, known);
    else if (!failed && alpha)
        kept = mark_known(s, kind, alpha, rgb, seq_len, known);
    if (!failed && kept == seq_len) {
        const int is_clear = kind == MASK_CLEAR && (!has_mask || mask_alpha);
        const char *const colour = is_clear ? "transparent" : kind == MASK_BLACK ? "black" : "white";
        failed = answer_error(a, 400, has_mask ? "mask" : name, NULL,
                              "%s: no pixel is %s, expected %s where the picture is to be made anew%s",
                              has_mask ? "mask" : name, colour, is_clear ? "alpha 0" : colour,
                              has_mask ? "" : ", or a mask");
    }
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
