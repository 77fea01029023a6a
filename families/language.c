#include "families/language.h"

#include "weights/shape.h"

#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const language_family *const languages[] = {&language_lumina_mgpt, &language_anole,    &language_emu3,
                                                   &language_harmon,      &language_nextstep, &language_demo};
enum { LANGUAGES = sizeof languages / sizeof *languages };

/* Returns the family of a file; NULL if it has none. *name gets the name that the file gives, or NULL. */
static const language_family *language_find_family(const wt_file *f, const char **name)
{
    const char *given = wt_metadata(f, "mar.family");
    *name = given ? given : wt_config_architecture(f);
    for (int i = 0; i < LANGUAGES; i++)
        if (given ? strcmp(languages[i]->name, given) == 0
                  : languages[i]->recognise && languages[i]->recognise(f, *name))
            return languages[i];
    return NULL;
}

int language_recognise(const wt_file *f)
{
    const char *name;
    return language_find_family(f, &name) != NULL;
}

const wt_tensor *language_embedding(const wt_file *f)
{
    static const char *const names[] = {"model.embed_tokens.weight", "tok_embeddings.weight", "embed_tokens.weight"};
    const wt_tensor *t = NULL;
    for (size_t i = 0; !t && i < sizeof names / sizeof *names; i++) t = wt_find(f, names[i]);
    return t;
}

/* --- opening ------------------------------------------------------------------------------------------------------ */

/* Reads a number of one to five digits. Returns what follows it; NULL if there is none. */
static const char *language_read_side(const char *text, int *out)
{
    const char *at = text;
    for (*out = 0; *at >= '0' && *at <= '9' && at < text + 5; at++) *out = 10 * *out + (*at - '0');
    return at > text && *out > 0 && *out <= LANGUAGE_SIDE_MAX ? at : NULL;
}

int language_read_size(const char *text, int *width, int *height)
{
    int w, h;
    const char *at = language_read_side(text, &w);
    if (!at || *at != 'x' || !(at = language_read_side(at + 1, &h)) || *at) return 0;
    *width = w;
    *height = h;
    return 1;
}

/* Reads the context and the default size. */
static mar_status language_read_sizes(const wt_file *f, language *l, mar_err *err)
{
    const char *size = wt_metadata(f, "mar.image_size");
    long context = l->family->context;
    int area = 0;
    l->width = l->family->width;
    l->height = l->family->height;
    l->stride = l->family->stride;
    l->unit = l->family->unit;
    mar_status status = wt_metadata_number(f, "mar.context", &context, err);
    l->context = context > INT_MAX ? INT_MAX : (int)context;
    if (status == MAR_OK) status = language_number(f, "max_position_embeddings", 1, &l->context, err);
    if (status == MAR_OK) status = language_number(f, "image_area", 1, &area, err);
    if (status != MAR_OK) return status;
    if (l->context > 1 << 24)
        return err_set(err, MAR_EMODEL, "%s: a context of %d positions, expected at most %d", wt_path(f), l->context,
                       1 << 24);
    if (area) l->width = l->height = (int)lround(sqrt(area) / l->stride) * l->stride;
    if (l->width < 1 || l->width > LANGUAGE_SIDE_MAX)
        return err_set(err, MAR_EMODEL, "%s: config.json has an image_area of %d, expected sides of at most %d",
                       wt_path(f), area, LANGUAGE_SIDE_MAX);
    if (l->family->read && (status = l->family->read(f, l, err)) != MAR_OK) return status;
    if (size && !language_read_size(size, &l->width, &l->height))
        return err_set(err, MAR_EMODEL, "%s: metadata mar.image_size is \"%s\", expected as 512x512", wt_path(f), size);
    return MAR_OK;
}

static mar_status language_refuse_family(const wt_file *f, const char *name, mar_err *err)
{
    if (!name)
        return err_set(err, MAR_EMODEL,
                       "%s: does not say what it is: expected the folder of Harmon, NextStep-1, Lumina-mGPT, Anole or "
                       "Emu3 with its config.json or params.json, or what mar convert has written",
                       wt_path(f));
    return err_set(
        err, MAR_EMODEL,
        "%s: is a %.100s, expected Harmon, NextStep-1, Lumina-mGPT, Anole (ChameleonForConditionalGeneration) or Emu3 "
        "(Emu3ForCausalLM)",
        wt_path(f), name);
}

/* Reads the ids from the metadata of a file that mar_convert has written, or has the family find them. */
static mar_status language_find_ids(const wt_file *f, language *l, mar_err *err)
{
    const char *ids = wt_metadata(f, "mar.image_tokens"), *line_end = wt_metadata(f, "mar.line_end");
    char *end;
    l->vocabulary.line_end = -1;
    if (!l->family->find_ids) return MAR_OK;
    if (!ids) return l->family->find_ids(f, l->family, &l->vocabulary, err);
    const mar_status status = text_vocabulary_of_text(f, ids, &l->vocabulary, err);
    if (status != MAR_OK || !l->family->line_end) return status;
    const long id = line_end ? strtol(line_end, &end, 10) : -1;
    return text_vocabulary_set_line_end(f, line_end && end > line_end && !*end ? id : -1, l->family->line_end,
                                        &l->vocabulary, err);
}

static mar_status read_language(const wt_file *f, language *l, mar_err *err)
{
    const char *name;
    const wt_tensor *t = language_embedding(f);
    l->family = language_find_family(f, &name);
    if (!l->family) return language_refuse_family(f, name, err);
    if (!t) return err_set(err, MAR_EMODEL, "%s: has no embedding model.embed_tokens.weight", wt_path(f));
    mar_status status = wt_find_shape(f, t->name, 2, &t, err);
    if (status != MAR_OK) return status;
    l->vocabulary.rows = (int)t->shape[0];
    status = language_read_sizes(f, l, err);
    return status == MAR_OK ? language_find_ids(f, l, err) : status;
}

mar_status language_open(const wt_file *f, language *out, mar_err *err)
{
    *out = (language){0};
    const mar_status status = read_language(f, out, err);
    if (status != MAR_OK) language_free(out);
    return status;
}

void language_free(language *l)
{
    text_vocabulary_free(&l->vocabulary);
    *l = (language){0};
}

/* --- sizes -------------------------------------------------------------------------------------------------------- */

static long language_image_positions(const language *l, int columns, int rows)
{
    return (long)rows * (columns + (l->vocabulary.line_end >= 0)) + l->family->behind;
}

int language_left(const language *l, int columns, int rows)
{
    /* nothing is computed behind the last image token */
    const long left = l->context - language_image_positions(l, columns, rows) + (l->vocabulary.line_end >= 0);
    return left < 0 ? 0 : (int)left;
}

int language_room(const language *l, int columns, int rows)
{
    const int left = language_left(l, columns, rows);
    return left < LANGUAGE_PROMPT_MAX ? left : LANGUAGE_PROMPT_MAX;
}

mar_status language_size(const language *l, const char *path, int width, int height, int *columns, int *rows,
                         mar_err *err)
{
    const language_family *f = l->family;
    if (!width && !height) width = l->width, height = l->height;
    if (f->fixed_size && (width != l->width || height != l->height))
        return err_set(err, MAR_EARG, "%s: an image of %dx%d: %s makes images of %dx%d only", path, width, height,
                       f->title, l->width, l->height);
    if (width < l->unit || height < l->unit || width % l->unit || height % l->unit || width > LANGUAGE_SIDE_MAX ||
        height > LANGUAGE_SIDE_MAX)
        return err_set(err, MAR_EARG, "%s: an image of %dx%d: sides of %s's images are multiples of %d, at most %d",
                       path, width, height, f->title, l->unit, LANGUAGE_SIDE_MAX);
    if (f->ratio && (width > f->ratio * height || height > f->ratio * width))
        return err_set(err, MAR_EARG, "%s: an image of %dx%d: one side of %s's images is at most %d times the other",
                       path, width, height, f->title, f->ratio);
    *columns = width / l->stride;
    *rows = height / l->stride;
    const long positions = language_image_positions(l, *columns, *rows);
    if (positions + LANGUAGE_PROMPT_MIN > l->context)
        return err_set(
            err, MAR_EARG,
            "%s: an image of %dx%d has %ld tokens: the model's context of %d has to hold %d more for the prompt", path,
            width, height, positions, l->context, LANGUAGE_PROMPT_MIN);
    return MAR_OK;
}

/* Returns the side of the images, as squares, of the release whose images are nearest in area; 0 if there is none. */
static int language_nearest_release(const language *l, double area)
{
    double least = HUGE_VAL;
    int nearest = 0;
    for (const int *side = l->family->trained; *side; side++) {
        const int tokens = *side / l->stride;
        const double distance = fabs(log((double)*side * *side / area));
        if (distance > least || language_image_positions(l, tokens, tokens) + LANGUAGE_PROMPT_MIN > l->context)
            continue;
        least = distance;
        nearest = *side;
    }
    return nearest;
}

void language_nearest(const language *l, int columns, int rows, int *width, int *height)
{
    const language_family *f = l->family;
    const double of_width = columns * l->stride, of_height = rows * l->stride;
    const int side = language_nearest_release(l, of_width * of_height) / l->unit, units = side * side;
    double least = HUGE_VAL;
    *width = columns * l->stride;
    *height = rows * l->stride;
    /* the sizes of generate_crop_size_list (data/item_processor.py of Lumina-mGPT), by the ratio of their sides */
    for (int w = units, h = 1; w > 0; (h + 1) * w <= units ? h++ : w--) {
        const double distance = fabs(log(w * of_height / (h * of_width)));
        if (w > f->ratio * h || h > f->ratio * w || distance >= least) continue;
        least = distance;
        *width = w * l->unit;
        *height = h * l->unit;
    }
}

/* --- prompts ------------------------------------------------------------------------------------------------------ */

/* Returns MAR_EARG for a prompt with l->picture, unless the tokenizer's files say which token that is. */
static mar_status language_check_prompt(const language *l, const text_tokenizer *t, const char *prompt, mar_err *err)
{
    if (!prompt || !l->picture || !strstr(prompt, l->picture) || text_tokenizer_find(t, l->picture) >= 0) return MAR_OK;
    return err_set(err, MAR_EARG,
                   "%s is UniPic-1's token for a picture to understand, expected a prompt without it; Harmon's own "
                   "folder reads it as text",
                   l->picture);
}

mar_status language_ids(const language *l, const text_tokenizer *t, int columns, int rows, int negative,
                        const char *prompt, int *ids, int max, int *count, mar_err *err)
{
    enum { FIELDS = 7, NUMBERS = 6 };
    const language_family *f = l->family;
    char text[NUMBERS][24];
    const int sizes[NUMBERS] = {columns * l->stride,
                                rows * l->stride,
                                columns,
                                rows,
                                f->size_token + columns * l->stride / l->unit,
                                f->size_token + rows * l->stride / l->unit};
    const char *otherwise = f->negative_prompt ? f->negative_prompt : "";
    const text_field fields[FIELDS] = {{"prompt", prompt ? prompt : otherwise, 0},
                                       {"W", text[0], 0},
                                       {"H", text[1], 0},
                                       {"columns", text[2], 0},
                                       {"rows", text[3], 0},
                                       {"size_w", text[4], 1},
                                       {"size_h", text[5], 1}};
    const mar_status status = language_check_prompt(l, t, prompt, err);
    if (status != MAR_OK) return status;
    for (int i = 0; i < NUMBERS; i++) snprintf(text[i], sizeof text[i], i < 4 ? "%d" : "<reserved%05d>", sizes[i]);
    return text_template_ids(negative ? f->negative : f->prompt, fields, FIELDS, t, l->vocabulary.rows, ids, max, count,
                             err);
}

/* --- metadata ----------------------------------------------------------------------------------------------------- */

mar_status language_put(const language *l, wt_pairs *m, mar_err *err)
{
    m->owned = text_vocabulary_put(&l->vocabulary);
    if (!m->owned) return err_set(err, MAR_ENOMEM, "out of memory for the ids of %d image tokens", l->vocabulary.count);
    wt_put_text(m, "mar.family", l->family->name);
    wt_put_text(m, "mar.image_tokens", m->owned);
    wt_put_number(m, "mar.context", l->context);
    char *size = m->numbers[m->count];
    snprintf(size, sizeof m->numbers[0], "%dx%d", l->width, l->height);
    wt_put_text(m, "mar.image_size", size);
    if (l->vocabulary.line_end >= 0) wt_put_number(m, "mar.line_end", l->vocabulary.line_end);
    return MAR_OK;
}
