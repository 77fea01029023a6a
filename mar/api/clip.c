/* Public calls of CLIP. */
#include "eval/clip.h"

#include "base/printable.h"
#include "mar/api/judge.h"
#include "mar/api/load.h"
#include "text/entities.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

struct mar_clip {
    mar_judge judge;
    mar_clip_config config;
    clip *network;
    int is_file; /* 1: HPS, whose texts are cleaned first */
};

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

static mar_status clip_load_tokenizer(mar_clip *c, const char *path, mar_err *err)
{
    const clip_config *g = clip_get_config(c->network);
    char folder[PATH_MAX];
    mar_err why = {0};
    find_folder(c, path, folder);
    const mar_status status = text_tokenizer_open(folder, &c->judge.tokenizer, &why);
    if (status != MAR_OK && c->is_file)
        return err_set(err, status, "%s: the vocabulary of CLIP beside it: %s", path, why.text);
    if (status != MAR_OK) return err_set(err, status, "%s", why.text);
    const int size = text_tokenizer_size(c->judge.tokenizer);
    if (size > g->vocabulary)
        return err_set(err, MAR_EMODEL, "%s: the tokenizer has %d tokens, CLIP an embedding of %d", folder, size,
                       g->vocabulary);
    return mar_judge_use_texts(&c->judge, folder, "<|startoftext|>", "<|endoftext|>", g->positions, err);
}

static mar_status clip_load(mar_clip *c, const wt_file *f, const char *path, mar_err *err)
{
    mar_status status = mar_judge_begin_load(&c->judge, err);
    if (status != MAR_OK) return status;
    status = mar_judge_end_load(&c->judge, f, clip_create(c->judge.k, f, c->judge.batch, &c->network, err), err);
    if (status == MAR_OK) status = clip_load_tokenizer(c, path, err);
    if (status != MAR_OK) return status;
    const clip_config *g = clip_get_config(c->network);
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

static void clip_destroy(mar_clip *c)
{
    mar_judge_stop(&c->judge);
    clip_free(c->network);
    mar_judge_close(&c->judge);
    free(c);
}

/* Creates a CLIP. *out stays NULL on failure. */
static mar_status api_clip_create(mar *m, const char *path, int batch, mar_clip **out, mar_err *err)
{
    wt_file *f = NULL;
    struct stat st;
    const int is_file = stat(path, &st) == 0 && !S_ISDIR(st.st_mode);
    mar_status status = is_file ? mar_open_checkpoint(path, 0, MAR_WEIGHTS_AUTO, &f, err)
                                : mar_open_folder(path, MAR_WEIGHTS_AUTO, &f, err);
    if (status != MAR_OK) return status;
    wt_allow_nonfinite(f, m->allow_nonfinite);
    mar_clip *c = calloc(1, sizeof *c);
    if (c) {
        c->is_file = is_file;
        status = mar_judge_open(&c->judge, m, batch, err);
        if (status == MAR_OK) status = clip_load(c, f, path, err);
    } else {
        status = err_set(err, MAR_ENOMEM, "out of memory");
    }
    if (status == MAR_OK) {
        mar_retain(m);
        *out = c;
    } else if (c) {
        clip_destroy(c);
    }
    wt_close(f);
    return status;
}

mar_status mar_clip_load(mar *m, const char *path, int batch, mar_clip **out)
{
    const double start = mar_now();
    mar_err err = {0};
    if (out) *out = NULL;
    mar_status status = mar_judge_check_load(m, path, batch, out, &err);
    if (status == MAR_OK) status = api_clip_create(m, path, batch, out, &err);
    if (status == MAR_OK)
        mar_log(m, MAR_LOG_INFO, "clip %s: patches of %d in %d pixels, %ld parameters, loaded in %.3g s", path,
                (*out)->config.patch, (*out)->config.image_size, (*out)->config.parameters, mar_now() - start);
    return mar_result(m, status, &err);
}

void mar_clip_free(mar_clip *c)
{
    if (!c || mar_in_forked_child(c->judge.m)) return;
    mar *m = c->judge.m;
    clip_destroy(c);
    mar_release(m);
}

const mar_clip_config *mar_clip_get_config(const mar_clip *c)
{
    return c ? &c->config : NULL;
}

/* --- running ------------------------------------------------------------------------------------------------------ */

static mar_status no_clip(void)
{
    mar_err err = {0};
    return mar_result(NULL, err_set(&err, MAR_EARG, "the CLIP is NULL"), &err);
}

/* Runs the tower of images on those taken. */
static mar_status run_images(mar_clip *c, int n, float *embedding, mar_err *err)
{
    mar_judge *j = &c->judge;
    mar_judge_begin_run(j);
    return mar_judge_end_run(j, clip_images(c->network, j->pictures, n, embedding, err), err);
}

mar_status mar_clip_images(mar_clip *c, const uint8_t *rgb, int n, int width, int height, float *embedding)
{
    mar_err err = {0};
    if (!c) return no_clip();
    mar_status status = mar_check_handle(c->judge.m, &err);
    if (status == MAR_OK) status = mar_check_given(embedding, "embedding", &err);
    if (status == MAR_OK) status = mar_judge_take(&c->judge, rgb, n, width, height, &err);
    if (status == MAR_OK) status = run_images(c, n, embedding, &err);
    return mar_result(c->judge.m, status, &err);
}

mar_status mar_clip_images_each(mar_clip *c, const uint8_t *const *rgb, const int *widths, const int *heights, int n,
                                float *embedding)
{
    mar_err err = {0};
    if (!c) return no_clip();
    mar_status status = mar_check_handle(c->judge.m, &err);
    if (status == MAR_OK) status = mar_check_given(embedding, "embedding", &err);
    if (status == MAR_OK) status = mar_judge_take_each(&c->judge, rgb, widths, heights, n, &err);
    if (status == MAR_OK) status = run_images(c, n, embedding, &err);
    return mar_result(c->judge.m, status, &err);
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

/* Divides text i into tokens, of HPS a cleaned one. */
static mar_status take_text(mar_clip *c, const char *text, int i, mar_err *err)
{
    const mar_status status = mar_judge_take_text(&c->judge, text, i, err);
    if (status != MAR_OK || !c->is_file) return status; /* the text is UTF-8 */
    text_buffer cleaned = {0};
    clean(text, &cleaned);
    const mar_status again = cleaned.failed
                                 ? err_set(err, MAR_ENOMEM, "text %d: out of memory", i)
                                 : mar_judge_take_text(&c->judge, cleaned.length ? cleaned.data : "", i, err);
    text_buffer_free(&cleaned);
    return again;
}

mar_status mar_clip_texts(mar_clip *c, const char *const *texts, int n, float *embedding)
{
    mar_err err = {0};
    if (!c) return no_clip();
    mar_judge *j = &c->judge;
    mar_status status = mar_check_handle(j->m, &err);
    if (status == MAR_OK) status = mar_check_given(texts, "texts", &err);
    if (status == MAR_OK) status = mar_check_given(embedding, "embedding", &err);
    if (status == MAR_OK) status = mar_judge_check_count(j, n, "texts", &err);
    for (int i = 0; i < n && status == MAR_OK; i++) status = take_text(c, texts[i], i, &err);
    if (status == MAR_OK) {
        mar_judge_begin_run(j);
        status = clip_texts(c->network, j->ids, j->first, j->length, n, embedding, &err);
        status = mar_judge_end_run(j, status, &err);
    }
    return mar_result(j->m, status, &err);
}
