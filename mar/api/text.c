/* Public calls of the text encoder. */
#include "mar/api/text.h"

#include "mar/api/kinds.h"
#include "mar/api/load.h"
#include "text/clean.h"
#include "weights/shape.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { ROWS = 1024 }; /* tokens of a pass, unless one prompt has more */

/* --- loading ------------------------------------------------------------------------------------------------------ */

/* Returns MAR_EMODEL unless the file is a T5 encoder. config.json may name its architecture. */
static mar_status check_architecture(const wt_file *f, mar_err *err)
{
    const char *type = wt_config_text(f, "model_type"), *name = wt_config_architecture(f);
    const int is_t5 = type ? strcmp(type, "t5") == 0 || strcmp(type, "mt5") == 0 : !name || strstr(name, "T5");
    if (!is_t5)
        return err_set(err, MAR_EMODEL,
                       "%s: is a %.100s, expected a T5 encoder (T5EncoderModel, model_type t5), Harmon, Qwen2, "
                       "NextStep-1, Lumina-mGPT, Anole or Emu3",
                       wt_path(f), name);
    return mar_check_kind(f, 1 << MAR_KIND_T5,
                          "a T5 encoder (T5EncoderModel), Harmon, NextStep-1, Lumina-mGPT, Anole or Emu3", err);
}

static mar_status text_load_tokenizer(mar_text *t, const char *folder, const wt_file *f, mar_err *err)
{
    const mar_status status = text_tokenizer_open(folder, &t->tokenizer, err);
    if (status != MAR_OK) return status;
    const int size = text_tokenizer_size(t->tokenizer), vocabulary = t5_get_config(t->encoder)->vocabulary;
    t->end = text_tokenizer_find(t->tokenizer, "</s>");
    if (size > vocabulary)
        return err_set(err, MAR_EMODEL, "%s: the tokenizer has %d tokens, the encoder an embedding of %d", wt_path(f),
                       size, vocabulary);
    if (t->end < 0) return err_set(err, MAR_EMODEL, "%s: the tokenizer has no end token </s>", folder);
    return MAR_OK;
}

/* Loads the encoder on a queue of its own. */
static mar_status load_encoder(mar_text *t, wt_file *f, const mar_source *source, mar_err *err)
{
    mar_loader l;
    mar_status status = mar_loader_begin(&l, t->m, f, source, err);
    if (status != MAR_OK) return status;
    status = t5_create(l.k, f, &t->encoder, err);
    status = mar_loader_end(&l, status, err);
    t->config.hash = l.hash;
    return status;
}

static mar_text_config text_config_of(const mar_text *t, const wt_file *f)
{
    const t5_config *c = t5_get_config(t->encoder);
    const nets_encoder_config *l = &c->layers;
    return (mar_text_config){.size = sizeof(mar_text_config),
                             .name = "T5 encoder",
                             .parameters = c->parameters,
                             .dim = l->width,
                             .depth = l->depth,
                             .heads = l->heads,
                             .hidden = l->hidden,
                             .vocabulary = c->vocabulary,
                             .family = "t5",
                             .conditioning = MAR_CONDITION_FEATURES,
                             .hash = t->config.hash,
                             .int8_weights = mar_has_low(f, WT_I8)};
}

static mar_status text_load(mar_text *t, wt_file *f, const mar_source *source, mar_err *err)
{
    mar_status status;
    if (!f || language_recognise(f)) return mar_text_load_decoder(t, f, source->path, err);
    status = check_architecture(f, err);
    if (status == MAR_OK) status = load_encoder(t, f, source, err);
    if (status == MAR_OK) status = text_load_tokenizer(t, source->path, f, err);
    if (status == MAR_OK) status = t->m->device->core->queue_create(t->m->device, &t->k, err);
    if (status == MAR_OK) t->config = text_config_of(t, f);
    return status;
}

static void text_destroy(mar_text *t)
{
    kern_device *d = t->m->device;
    if (t->k) {
        t->k->core->bind(t->k);
        t->k->core->finish(t->k);
        t->k->core->unbind(t->k);
        d->core->queue_free(t->k);
    }
    t5_free(d, t->encoder);
    text_tokenizer_free(t->tokenizer);
    language_free(&t->language);
    free(t);
}

static int has_tokenizer(const char *folder)
{
    static const char *const names[] = {"tokenizer.json", "vocab.json"};
    char path[PATH_MAX];
    for (int i = 0; i < 2; i++)
        if (snprintf(path, sizeof path, "%s/%s", folder, names[i]) < PATH_MAX && access(path, F_OK) == 0) return 1;
    return 0;
}

/* Opens the folder, or a view of the open one, and writes its path to folder [PATH_MAX]. A folder with a tokenizer
 * alone has no file: *f stays NULL. */
static mar_status text_open_folder(const mar *m, const mar_source *source, wt_file **f, char *folder, mar_err *err)
{
    *f = NULL;
    if (source->file) {
        snprintf(folder, PATH_MAX, "%s", source->file->folder);
        return wt_view(source->file->f, f, err);
    }
    const mar_status status = wt_demo_folder(source->path, folder, err);
    if (!*folder) snprintf(folder, PATH_MAX, "%s", source->path);
    if (status == MAR_OK && !wt_is_folder(folder) && has_tokenizer(folder)) return MAR_OK;
    return status == MAR_OK ? mar_open_folder(folder, m->weights, f, err) : status;
}

/* Creates an encoder. *out stays NULL on failure. */
static mar_status text_create(mar *m, const mar_source *source, mar_text **out, mar_err *err)
{
    wt_file *f;
    char folder[PATH_MAX];
    mar_source found = *source;
    mar_status status = text_open_folder(m, source, &f, folder, err);
    if (status != MAR_OK) return status;
    found.path = folder;
    if (f) wt_allow_nonfinite(f, m->allow_nonfinite);
    mar_text *t = calloc(1, sizeof *t);
    status = t ? MAR_OK : err_set(err, MAR_ENOMEM, "out of memory");
    if (status == MAR_OK) {
        t->m = m;
        status = text_load(t, f, &found, err);
    }
    if (status == MAR_OK) {
        mar_retain(m);
        *out = t;
    } else if (t) {
        text_destroy(t);
    }
    wt_close(f);
    return status;
}

static mar_status check_source(const mar_source *s, mar_err *err)
{
    if (!s->path && !s->file) return err_set(err, MAR_EARG, "a text encoder is a folder: mar_source.path is NULL");
    if (s->heads) return err_set(err, MAR_EARG, "mar_source.heads is %d: a text encoder's file has them", s->heads);
    if (s->encoder) return err_set(err, MAR_EARG, "mar_source.encoder is 1: expected 0 for a text encoder");
    return MAR_OK;
}

mar_status mar_text_load_from(mar *m, const mar_source *source, mar_text **out)
{
    const double start = mar_now();
    mar_err err = {0};
    mar_source s;
    if (out) *out = NULL;
    mar_status status = mar_check_source(m, source, out, &s, &err);
    if (status == MAR_OK) status = check_source(&s, &err);
    if (status == MAR_OK) status = text_create(m, &s, out, &err);
    if (status != MAR_OK) return mar_result(m, status, &err);
    const char *path = s.file ? s.file->folder : s.path;
    if (!(*out)->encoder)
        mar_log(m, MAR_LOG_INFO, "text %s: prompts of %s, up to %d tokens, opened in %.3g s", path, (*out)->config.name,
                (*out)->config.tokens, mar_now() - start);
    else
        mar_log(m, MAR_LOG_INFO, "text %s: %s of %d layers, %ld parameters, loaded in %.3g s", path,
                (*out)->config.name, (*out)->config.depth, (*out)->config.parameters, mar_now() - start);
    return MAR_OK;
}

mar_status mar_text_load(mar *m, const char *folder, mar_text **out)
{
    mar_err err = {0};
    mar_source source;
    if (out) *out = NULL;
    const mar_status status = mar_check_load(m, folder, out, &err);
    if (status != MAR_OK) return mar_result(m, status, &err);
    mar_source_init(&source, sizeof source);
    source.path = folder;
    return mar_text_load_from(m, &source, out);
}

void mar_text_free(mar_text *t)
{
    if (!t || mar_in_forked_child(t->m)) return;
    mar *m = t->m;
    text_destroy(t);
    mar_release(m);
}

const mar_text_config *mar_text_get_config(const mar_text *t)
{
    return t ? &t->config : NULL;
}

/* --- encoding ----------------------------------------------------------------------------------------------------- */

/* A call. */
typedef struct {
    mar_text *t;
    int n, tokens;
    mar_clean clean;
    int negative;        /* 1: the only prompt is the second context of guidance */
    int *ids;            /* [n][tokens] the first length[i] of each prompt */
    int *length, *count; /* [n] tokens, at most `tokens`; tokens before the cut */
    float *features;     /* [n][tokens][dim] */
    uint8_t *mask;       /* [n][tokens] */
} call;

/* Puts "prompt 3: " in front of a message if there are several prompts. */
static mar_status refuse_prompt(const call *c, int prompt, mar_status status, const mar_err *reason, mar_err *err)
{
    if (c->n == 1) return err_set(err, status, "%s", reason->text);
    return err_set(err, status, "prompt %d: %s", prompt, reason->text);
}

/* Returns MAR_EARG for a prompt of `count` tokens. The message names whose limit that is beyond. */
static mar_status refuse_length(const call *c, int count, mar_err *err)
{
    const int context = language_left(&c->t->language, c->t->columns, c->t->rows);
    if (c->tokens == context)
        return err_set(err, MAR_EARG, "%d tokens with the template, the model's context leaves room for %d", count,
                       context);
    if (c->tokens == LANGUAGE_PROMPT_MAX)
        return err_set(err, MAR_EARG,
                       "%d tokens with the template, libmar takes %d at most; the model's context has room for %d",
                       count, LANGUAGE_PROMPT_MAX, context);
    return err_set(err, MAR_EARG, "%d tokens with the template, expected %d at most", count, c->tokens);
}

/* Divides a prompt into the tokens in front of an image. */
static mar_status fill_template(const call *c, int prompt, const char *text, mar_err *err)
{
    int count = 0;
    mar_err reason = {0};
    mar_status status = language_ids(&c->t->language, c->t->tokenizer, c->t->columns, c->t->rows, c->negative, text,
                                     c->ids + (size_t)prompt * (size_t)c->tokens, c->tokens, &count, &reason);
    if (status == MAR_OK && count > c->tokens) status = refuse_length(c, count, &reason);
    c->count[prompt] = c->length[prompt] = count;
    if (status == MAR_OK) return MAR_OK;
    return c->negative ? err_set(err, status, "the negative prompt: %s", reason.text)
                       : refuse_prompt(c, prompt, status, &reason, err);
}

/* Divides a prompt into tokens, with the end token. */
static mar_status text_divide(const call *c, int prompt, const char *text, mar_err *err)
{
    int *ids = c->ids + (size_t)prompt * (size_t)c->tokens, count = 0;
    mar_err reason = {0};
    char *cleaned = NULL;
    if (!text && !c->negative) return err_set(err, MAR_EARG, "prompt %d is NULL", prompt);
    if (text && !*text && !c->negative && c->n == 1)
        return err_set(err, MAR_EARG, "the prompt is empty, expected text");
    if (text && !*text && !c->negative) return err_set(err, MAR_EARG, "prompt %d is empty, expected text", prompt);
    if (!c->t->encoder) return fill_template(c, prompt, text, err);
    mar_status status = MAR_OK;
    if (c->clean == MAR_CLEAN_LLAMAGEN) status = text_clean_caption(text, strlen(text), &cleaned, &reason);
    if (cleaned) text = cleaned;
    if (status == MAR_OK)
        status = text_tokenize(c->t->tokenizer, text, strlen(text), ids, c->tokens - 1, &count, &reason);
    free(cleaned);
    if (status != MAR_OK) return refuse_prompt(c, prompt, status, &reason, err);
    c->count[prompt] = count + 1;
    c->length[prompt] = count < c->tokens ? count + 1 : c->tokens;
    ids[c->length[prompt] - 1] = c->t->end;
    return MAR_OK;
}

/* The arrays of a pass. */
typedef struct {
    int *first, *length; /* [prompts] */
    int *ids;            /* [rows] */
    float *y;            /* [rows][dim] */
} pass;

static void free_pass(pass *p)
{
    free(p->first);
    free(p->ids);
    free(p->y);
}

static mar_status make_pass(const call *c, int rows, pass *p, mar_err *err)
{
    p->first = malloc(2 * (size_t)c->n * sizeof *p->first);
    p->ids = malloc((size_t)rows * sizeof *p->ids);
    p->y = malloc((size_t)rows * (size_t)c->t->config.dim * sizeof *p->y);
    if (!p->first || !p->ids || !p->y) return err_set(err, MAR_ENOMEM, "out of memory for %d tokens", rows);
    p->length = p->first + c->n;
    return MAR_OK;
}

/* Returns the number of prompts from `prompt` on that one pass takes, at least one, and their tokens in *rows. */
static int prompts_of_pass(const call *c, int prompt, int *rows)
{
    int n = 1;
    *rows = c->length[prompt];
    while (prompt + n < c->n && *rows + c->length[prompt + n] <= ROWS) *rows += c->length[prompt + n++];
    return n;
}

/* Writes a prompt's features behind its padding. */
static mar_status write_features(const call *c, int prompt, const float *y, mar_err *err)
{
    const size_t dim = (size_t)c->t->config.dim, tokens = (size_t)c->tokens, length = (size_t)c->length[prompt];
    const size_t row = (size_t)prompt * tokens + tokens - length;
    for (size_t i = 0; i < length * dim; i++)
        if (!isfinite(y[i]))
            return err_set(err, MAR_EMODEL,
                           "prompt %d: its features have a NaN or an infinity: the weights are damaged, or their "
                           "numbers too large",
                           prompt);
    memcpy(c->features + row * dim, y, length * dim * sizeof *y);
    memset(c->mask + row, 1, length);
    return MAR_OK;
}

static mar_status run_encoder(const call *c, int n, int rows, const pass *p, mar_err *err)
{
    kern_queue *k = c->t->k;
    const nets_spans spans = {n, rows, p->first, p->length};
    k->core->bind(k);
    const mar_status status = t5_run(k, c->t->encoder, &spans, p->ids, p->y, err);
    if (status != MAR_OK) k->core->recover(k);
    k->core->unbind(k);
    return status;
}

/* Encodes prompts first .. first + n - 1 in one pass. */
static mar_status run_pass(const call *c, int first, int n, int rows, mar_err *err)
{
    pass p = {0};
    mar_status status = make_pass(c, rows, &p, err);
    if (status == MAR_OK) {
        for (int i = 0, row = 0; i < n; row += p.length[i++]) {
            p.first[i] = row;
            p.length[i] = c->length[first + i];
            memcpy(p.ids + row, c->ids + (size_t)(first + i) * (size_t)c->tokens, (size_t)p.length[i] * sizeof *p.ids);
        }
        if (c->t->encoder)
            status = run_encoder(c, n, rows, &p, err);
        else
            for (int i = 0; i < rows; i++) p.y[i] = (float)p.ids[i];
    }
    for (int i = 0; i < n && status == MAR_OK; i++)
        status = write_features(c, first + i, p.y + (size_t)p.first[i] * (size_t)c->t->config.dim, err);
    free_pass(&p);
    return status;
}

static mar_status text_run(const call *c, const char *const *prompts, mar_err *err)
{
    mar_status status = MAR_OK;
    for (int i = 0; i < c->n && status == MAR_OK; i++) status = text_divide(c, i, prompts[i], err);
    for (int i = 0, n, rows; i < c->n && status == MAR_OK; i += n) {
        n = prompts_of_pass(c, i, &rows);
        status = run_pass(c, i, n, rows, err);
    }
    return status;
}

/* Checks the arguments but for the prompts' text. */
static mar_status check_encode(const mar_text *t, const char *const *prompts, int n, mar_clean clean, int tokens,
                               const float *features, const uint8_t *mask, mar_err *err)
{
    mar_status status = mar_check_handle(t->m, err);
    if (status == MAR_OK) status = mar_check_given(prompts, "prompts", err);
    if (status == MAR_OK) status = mar_check_given(features, "features", err);
    if (status == MAR_OK) status = mar_check_given(mask, "mask", err);
    if (status != MAR_OK) return status;
    if (n < 1) return err_set(err, MAR_EARG, "%d prompts: expected 1 or more", n);
    if (tokens < 1 || tokens > MAR_TEXT_TOKENS_MAX)
        return err_set(err, MAR_EARG, "%d tokens: expected 1..%d", tokens, MAR_TEXT_TOKENS_MAX);
    if (clean != MAR_CLEAN_LLAMAGEN && clean != MAR_CLEAN_OFF)
        return err_set(err, MAR_EARG, "clean is %d: expected MAR_CLEAN_LLAMAGEN or MAR_CLEAN_OFF", (int)clean);
    return MAR_OK;
}

/* Encodes checked arguments. All results are 0 after an error. */
static mar_status text_encode(call *c, const char *const *prompts, int *counts, mar_err *err)
{
    const size_t n = (size_t)c->n, rows = n * (size_t)c->tokens;
    memset(c->features, 0, rows * (size_t)c->t->config.dim * sizeof *c->features);
    memset(c->mask, 0, rows);
    if (counts) memset(counts, 0, n * sizeof *counts);
    c->ids = malloc(rows * sizeof *c->ids);
    c->length = malloc(2 * n * sizeof *c->length);
    mar_status status = c->ids && c->length ? MAR_OK : err_set(err, MAR_ENOMEM, "out of memory for %d prompts", c->n);
    if (status == MAR_OK) {
        c->count = c->length + n;
        status = text_run(c, prompts, err);
    }
    if (status == MAR_OK && counts) memcpy(counts, c->count, n * sizeof *counts);
    if (status != MAR_OK) {
        memset(c->features, 0, rows * (size_t)c->t->config.dim * sizeof *c->features);
        memset(c->mask, 0, rows);
    }
    free(c->ids);
    free(c->length);
    return status;
}

mar_status mar_text_encode(mar_text *t, const char *const *prompts, int n, mar_clean clean, int tokens, float *features,
                           uint8_t *mask, int *counts)
{
    mar_err err = {0};
    if (!t) return mar_result(NULL, err_set(&err, MAR_EARG, "the text encoder is NULL"), &err);
    call c = {.t = t, .n = n, .tokens = tokens, .clean = clean, .features = features, .mask = mask};
    mar_status status = check_encode(t, prompts, n, clean, tokens, features, mask, &err);
    if (status == MAR_OK) status = text_encode(&c, prompts, counts, &err);
    return mar_result(t->m, status, &err);
}

mar_status mar_text_encode_negative(mar_text *t, const char *text, int tokens, float *features, uint8_t *mask,
                                    int *count)
{
    mar_err err = {0};
    if (!t) return mar_result(NULL, err_set(&err, MAR_EARG, "the text encoder is NULL"), &err);
    call c = {.t = t, .n = 1, .tokens = tokens, .clean = MAR_CLEAN_OFF, .negative = 1};
    c.features = features;
    c.mask = mask;
    mar_status status = check_encode(t, &text, 1, MAR_CLEAN_OFF, tokens, features, mask, &err);
    if (status == MAR_OK && t->encoder)
        status = err_set(&err, MAR_EARG, "a T5 has no second context: LlamaGen's guidance needs none");
    if (status == MAR_OK && text && !t->config.negative)
        status = err_set(&err, MAR_EARG, "%s has no negative prompt, expected NULL", t->config.name);
    if (status == MAR_OK) status = text_encode(&c, &text, count, &err);
    return mar_result(t->m, status, &err);
}
