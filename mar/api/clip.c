/* Public calls of CLIP. */
#include "mar/api/clip.h"

#include "base/printable.h"
#include "eval/inception.h"
#include "mar/api/source.h"

#include "text/entities.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { BATCH_MAX = 1024 };

/* --- loading ------------------------------------------------------------------------------------------------------ */

/* Writes the folder with the tokenizer: that of HPS's file, or CLIP's own. */
static void find_folder(const mar_clip *c, const char *path, char folder[PATH_MAX])
{
    const char *slash = c->is_file ? strrchr(path, '/') : NULL;
    if (slash)
        snprintf(folder, PATH_MAX, "%.*s", slash == path ? 1 : (int)(slash - path), path);
    else
        snprintf(folder, PATH_MAX, "%s", c->is_file ? "." : path);
}

static mar_status load_tokenizer(mar_clip *c, const char *path, mar_err *err)
{
    static const char start[] = "<|startoftext|>", end[] = "<|endoftext|>";
    char folder[PATH_MAX];
    mar_err why = {0};
    find_folder(c, path, folder);
    const mar_status status = text_tokenizer_open(folder, &c->tokenizer, &why);
    if (status != MAR_OK && c->is_file)
        return err_set(err, status, "%s: the vocabulary of CLIP beside it: %s", path, why.text);
    if (status != MAR_OK) return err_set(err, status, "%s", why.text);
    const int size = text_tokenizer_size(c->tokenizer), vocabulary = clip_get_config(c->network)->vocabulary;
    c->start = text_tokenizer_find(c->tokenizer, start);
    c->end = text_tokenizer_find(c->tokenizer, end);
    if (size > vocabulary)
        return err_set(err, MAR_EMODEL, "%s: the tokenizer has %d tokens, CLIP an embedding of %d", folder, size,
                       vocabulary);
    if (c->start < 0 || c->end < 0)
        return err_set(err, MAR_EMODEL, "%s: the tokenizer has no token %s", folder, c->start < 0 ? start : end);
    return MAR_OK;
}

/* Loads the network on its queue. */
static mar_status load_network(mar_clip *c, const wt_file *f, mar_err *err)
{
    kern_queue *k = c->k;
    k->core->bind(k);
    mar_status status = clip_create(k, f, c->batch, &c->network, err);
    k->core->finish(k);
    if (status == MAR_OK) status = kern_check(k, err);
    k->core->unbind(k);
    return wt_check_unchanged(f, status, err);
}

static mar_status allocate(mar_clip *c, mar_err *err)
{
    const clip_config *g = clip_get_config(c->network);
    const size_t n = (size_t)c->batch;
    c->pictures = malloc(n * sizeof *c->pictures);
    c->ids = malloc(n * (size_t)g->positions * sizeof *c->ids);
    c->first = malloc(n * sizeof *c->first);
    c->length = malloc(n * sizeof *c->length);
    if (!c->pictures || !c->ids || !c->first || !c->length) return err_set(err, MAR_ENOMEM, "out of memory");
    c->config = (mar_clip_config){.size = sizeof c->config,
                                  .name = c->is_file ? "HPS v2" : "CLIP",
                                  .parameters = g->parameters,
                                  .embedding = g->embedding,
                                  .image_size = g->image.side,
                                  .patch = g->image.patch,
                                  .positions = g->positions,
                                  .vocabulary = g->vocabulary};
    return MAR_OK;
}

static void destroy(mar_clip *c)
{
    if (c->k) {
        c->k->core->bind(c->k);
        c->k->core->finish(c->k);
        clip_free(c->network);
        c->k->core->unbind(c->k);
        c->k->core->queue_free(c->k);
    }
    text_tokenizer_free(c->tokenizer);
    free(c->pictures);
    free(c->ids);
    free(c->first);
    free(c->length);
    free(c);
}

/* Creates a CLIP. *out stays NULL on failure. */
static mar_status create(mar *m, const char *path, int batch, mar_clip **out, mar_err *err)
{
    wt_file *f = NULL;
    struct stat st;
    const int is_file = stat(path, &st) == 0 && !S_ISDIR(st.st_mode);
    mar_status status = is_file ? wt_open(path, &f, err) : wt_open_folder(path, MAR_WEIGHTS_AUTO, &f, err);
    if (status != MAR_OK) return status;
    wt_allow_nonfinite(f, m->allow_nonfinite);
    mar_clip *c = calloc(1, sizeof *c);
    if (c) {
        c->m = m;
        c->batch = batch;
        c->is_file = is_file;
        status = m->device->core->queue_create(m->device, &c->k, err);
        if (status == MAR_OK) status = load_network(c, f, err);
        if (status == MAR_OK) status = load_tokenizer(c, path, err);
        if (status == MAR_OK) status = allocate(c, err);
    } else {
        status = err_set(err, MAR_ENOMEM, "out of memory");
    }
    if (status == MAR_OK) {
        mar_retain(m);
        *out = c;
    } else if (c) {
        destroy(c);
    }
    wt_close(f);
    return status;
}

mar_status mar_clip_load(mar *m, const char *path, int batch, mar_clip **out)
{
    const double start = mar_now();
    mar_err err = {0};
    if (out) *out = NULL;
    mar_status status = mar_check_load(m, path, out, &err);
    if (status == MAR_OK && (batch < 1 || batch > BATCH_MAX))
        status = err_set(&err, MAR_EARG, "batch of %d: expected 1..%d", batch, BATCH_MAX);
    if (status == MAR_OK) status = create(m, path, batch, out, &err);
    if (status == MAR_OK)
        mar_log(m, MAR_LOG_INFO, "clip %s: patches of %d in %d pixels, %ld parameters, loaded in %.3g s", path,
                (*out)->config.patch, (*out)->config.image_size, (*out)->config.parameters, mar_now() - start);
    return mar_result(m, status, &err);
}

void mar_clip_free(mar_clip *c)
{
    if (!c || mar_in_forked_child(c->m)) return;
    mar *m = c->m;
    destroy(c);
    mar_release(m);
}

const mar_clip_config *mar_clip_get_config(const mar_clip *c)
{
    return c ? &c->config : NULL;
}

/* --- running ------------------------------------------------------------------------------------------------------ */

/* Checks what all calls have in common. */
static mar_status check_call(const mar_clip *c, const void *items, const char *name, int n, const float *embedding,
                             mar_err *err)
{
    mar_status status = mar_check_handle(c->m, err);
    if (status == MAR_OK) status = mar_check_given(items, name, err);
    if (status == MAR_OK) status = mar_check_given(embedding, "embedding", err);
    if (status == MAR_OK && (n < 1 || n > c->batch))
        status = err_set(err, MAR_EARG, "%d %s: expected 1..%d, the batch that CLIP was prepared for", n,
                         strcmp(name, "rgb") == 0 ? "images" : name, c->batch);
    return status;
}

mar_status mar_clip_check_size(int width, int height, mar_err *err)
{
    if (width >= 1 && height >= 1 && width <= EVAL_SIDE_MAX && height <= EVAL_SIDE_MAX &&
        width * height <= EVAL_INCEPTION_PIXELS_MAX)
        return MAR_OK;
    return err_set(err, MAR_EARG, "images of %dx%d pixels: expected sides of 1..%d and at most 4096x4096 pixels", width,
                   height, EVAL_SIDE_MAX);
}

static mar_status no_clip(void)
{
    mar_err err = {0};
    return mar_result(NULL, err_set(&err, MAR_EARG, "the CLIP is NULL"), &err);
}

/* Runs a tower: on c->pictures, or with `texts` on c->ids. */
static mar_status run(mar_clip *c, int texts, int n, float *embedding, mar_err *err)
{
    kern_queue *k = c->k;
    k->core->bind(k);
    const mar_status status = texts ? clip_texts(c->network, c->ids, c->first, c->length, n, embedding, err)
                                    : clip_images(c->network, c->pictures, n, embedding, err);
    k->core->finish(k);
    if (status != MAR_OK) k->core->recover(k);
    k->core->unbind(k);
    return status;
}

mar_status mar_clip_images(mar_clip *c, const uint8_t *rgb, int n, int width, int height, float *embedding)
{
    mar_err err = {0};
    if (!c) return no_clip();
    mar_status status = check_call(c, rgb, "rgb", n, embedding, &err);
    if (status == MAR_OK) status = mar_clip_check_size(width, height, &err);
    for (int i = 0; i < n && status == MAR_OK; i++)
        c->pictures[i] = (eval_picture){rgb + (size_t)i * (size_t)width * (size_t)height * 3, width, height};
    if (status == MAR_OK) status = run(c, 0, n, embedding, &err);
    return mar_result(c->m, status, &err);
}

mar_status mar_clip_images_each(mar_clip *c, const uint8_t *const *rgb, const int *widths, const int *heights, int n,
                                float *embedding)
{
    mar_err err = {0};
    if (!c) return no_clip();
    mar_status status = check_call(c, rgb, "rgb", n, embedding, &err);
    if (status == MAR_OK) status = mar_check_given(widths, "widths", &err);
    if (status == MAR_OK) status = mar_check_given(heights, "heights", &err);
    for (int i = 0; i < n && status == MAR_OK; i++) {
        status = mar_check_given(rgb[i], "rgb", &err);
        if (status == MAR_OK) status = mar_clip_check_size(widths[i], heights[i], &err);
        c->pictures[i] = (eval_picture){rgb[i], widths[i], heights[i]};
    }
    if (status == MAR_OK) status = run(c, 0, n, embedding, &err);
    return mar_result(c->m, status, &err);
}

/* Writes a text as OpenCLIP's tokenizer cleans it: character references are replaced twice, curly quotes made straight.
 * Of ftfy's other repairs, such as those of a wrong encoding, there is none. */
static void clean(const char *text, text_buffer *out)
{
    text_buffer straight = {0}, once = {0};
    unsigned ch;
    for (size_t at = 0, left = strlen(text), size; left > 0; at += size, left -= size) {
        size = utf8_decode(text + at, left, &ch);
        if (ch == 0x2bc || (ch >= 0x2018 && ch <= 0x201b)) ch = '\'';
        if (ch >= 0x201c && ch <= 0x201f) ch = '"';
        text_put_char(&straight, ch);
    }
    text_unescape(straight.length ? straight.data : "", straight.length, &once);
    text_unescape(once.length ? once.data : "", once.length, out);
    out->failed |= straight.failed | once.failed;
    text_buffer_free(&straight);
    text_buffer_free(&once);
}

/* Writes the ids of a text, of HPS a cleaned one. */
static mar_status write_ids(const mar_clip *c, const char *text, int *ids, int room, int *count, mar_err *err)
{
    const mar_status status = text_tokenize(c->tokenizer, text, strlen(text), ids, room, count, err);
    if (status != MAR_OK || !c->is_file) return status; /* the text is UTF-8 */
    text_buffer cleaned = {0};
    clean(text, &cleaned);
    const mar_status again = cleaned.failed ? err_set(err, MAR_ENOMEM, "out of memory")
                                            : text_tokenize(c->tokenizer, cleaned.length ? cleaned.data : "",
                                                            cleaned.length, ids, room, count, err);
    text_buffer_free(&cleaned);
    return again;
}

/* Writes the tokens of text i: start, as many of its own as fit, end. */
static mar_status tokenize(mar_clip *c, const char *text, int i, mar_err *err)
{
    const int room = c->config.positions - 2;
    int *ids = c->ids + (size_t)i * (size_t)c->config.positions, count = 0;
    mar_err why = {0};
    if (!text) return err_set(err, MAR_EARG, "text %d is NULL", i);
    const mar_status status = write_ids(c, text, ids + 1, room, &count, &why);
    if (status != MAR_OK) return err_set(err, status, "text %d: %s", i, why.text);
    if (count > room) count = room;
    ids[0] = c->start;
    ids[count + 1] = c->end;
    c->first[i] = i * c->config.positions;
    c->length[i] = count + 2;
    return MAR_OK;
}

mar_status mar_clip_texts(mar_clip *c, const char *const *texts, int n, float *embedding)
{
    mar_err err = {0};
    if (!c) return no_clip();
    mar_status status = check_call(c, texts, "texts", n, embedding, &err);
    for (int i = 0; i < n && status == MAR_OK; i++) status = tokenize(c, texts[i], i, &err);
    if (status == MAR_OK) status = run(c, 1, n, embedding, &err);
    return mar_result(c->m, status, &err);
}
