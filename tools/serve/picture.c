#include "tools/serve/picture.h"

#include "tools/cli/base64.h"
#include "tools/generate/record.h"
#include "tools/images/image.h"

#include <inttypes.h>
#include <stdlib.h>

/* Makes the texts of `mar generate` with the job's class, seed and guidance. Returns 0, or 1 without memory. */
static int make_texts(const service *s, const job *j, int i, record_texts *out)
{
    char guarantee[1024];
    mar_request request;
    run_options run = s->options.run;
    run.params.seed = run.used.seed = j->spec.seed;
    run.params.cfg = run.used.cfg = j->spec.cfg;
    if (j->spec.negative) run.negative = j->spec.negative;
    *out = (record_texts){0};
    record_texts_add(out, "Software", "libmar %s", mar_version());
    if (j->spec.text) {
        record_texts_add(out, "prompt", "%s", j->spec.text);
        record_texts_add(out, "features", "%016" PRIx64, j->prompt_sum);
        record_texts_add(out, "image", "%d", i);
    } else {
        record_texts_add_image(out, &s->models, j->spec.label, i);
    }
    if (j->spec.is_edit) {
        const int seq_len = mar_model_get_config(s->models.model)->seq_len;
        record_texts_add(out, "edited", "%d of %d tokens kept, of a picture with the sum %016" PRIx64,
                         j->spec.kept_tokens, seq_len, j->spec.picture_sum);
    }
    record_texts_add_run(out, &run, &s->models);
    mar_request_init(s->session, &request, sizeof request);
    request.cfg = j->spec.cfg;
    request.known = j->spec.known;
    record_texts_add(out, "guarantee", "%s",
                     mar_session_request_guarantee(s->session, &request, guarantee, sizeof guarantee));
    if (!out->lacks) return 0;
    record_texts_free(out);
    return 1;
}

static uint8_t *picture_encode(const service *s, const uint8_t *rgb, image_format format, int quality,
                               const image_text *texts, int count, size_t *size)
{
    char why[IMAGE_WHY_MAX];
    /* the cast is safe: writing only reads the pixels */
    const image picture = {s->width, s->height, (uint8_t *)(uintptr_t)rgb};
    return format == IMAGE_PNG    ? image_encode_png(&picture, texts, count, size, why)
           : format == IMAGE_JPEG ? image_encode_jpeg(&picture, quality, texts, count, size, why)
                                  : image_encode_webp(&picture, quality, size, why);
}

const uint8_t *picture_file(service *s, job *j, int i, size_t *size)
{
    const uint8_t *file;
    const uint8_t *rgb = jobs_encode(&s->jobs, j, i, &file, size);
    if (!rgb) return file;
    record_texts texts;
    uint8_t *made = NULL;
    if (make_texts(s, j, i, &texts) == 0) {
        made = picture_encode(s, rgb, j->spec.format, j->spec.quality, texts.texts, texts.count, size);
        record_texts_free(&texts);
    }
    jobs_encoded(&s->jobs, j, i, made, *size);
    return made;
}

uint8_t *picture_plain(const service *s, const uint8_t *rgb, image_format format, int quality, size_t *size)
{
    return picture_encode(s, rgb, format, quality, NULL, 0, size);
}

int picture_write_bytes(const uint8_t *bytes, size_t size, FILE *out)
{
    char *text = bytes ? malloc(base64_size(size) + 1) : NULL;
    if (!text) return 1;
    base64_write(bytes, size, text);
    fprintf(out, "\"%s\"", text);
    free(text);
    return 0;
}

int picture_write_base64(service *s, job *j, int i, FILE *out)
{
    size_t size;
    const uint8_t *file = picture_file(s, j, i, &size);
    return picture_write_bytes(file, size, out);
}

const char *picture_format_name(image_format format)
{
    static const char *const names[IMAGE_FORMATS] = {"png", "jpeg", "webp"};
    return names[format];
}

const char *picture_type(image_format format)
{
    static const char *const types[IMAGE_FORMATS] = {"image/png", "image/jpeg", "image/webp"};
    return types[format];
}
