#include "tests/support/harmon.h"

#include "tests/support/support.h"
#include "tests/support/tensor_files.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define DATA "tests/golden/data/"

static int is_trained(harmon_kind kind)
{
    return kind == HARMON_TRAINED || kind == HARMON_TRAINED_DRAFT;
}

/* Returns how far a draft's numbers are from those of the model. */
static double distance_of(harmon_kind kind)
{
    return kind == HARMON_DRAFT ? 0.1 : kind == HARMON_TRAINED_DRAFT ? 0.002 : 0;
}

static int is_output(const file_tensor *t)
{
    return strcmp(t->name, "llm.lm_head.weight") == 0;
}

/* Draws the numbers. The output layer is the embedding. */
static void draw(file_tensor *t, harmon_kind kind)
{
    tensor_draw(t, is_output(t) ? "llm.model.embed_tokens.weight" : t->name, distance_of(kind));
}

/* Takes shape and numbers of a tower's or the head's tensor from the demo's file. */
static void take_trained(const wt_file *demo, file_tensor *t, harmon_kind kind)
{
    const wt_tensor *from = wt_find(demo, t->name + 4);
    assert_non_null(from);
    float *x = golden_f32(demo, from->name, -1);
    double square = 0;
    t->rank = from->rank;
    for (int i = 0; i < from->rank; i++) t->shape[i] = (int)from->shape[i];
    for (int64_t i = 0; i < from->count; i++) square += (double)x[i] * x[i];
    const double scale = distance_of(kind) * sqrt(square / (double)from->count);
    for (int64_t i = 0; i < from->count; i++) x[i] += (float)(scale * drawn_uniform(drawn_hash(t->name), (uint64_t)i));
    bytes_put(&t->data, x, (size_t)from->count * sizeof *x);
    free(x);
}

/* Makes a tensor of the model between the demo's towers, whose outcome is small beside what they make. */
static void draw_between(file_tensor *t, harmon_kind kind)
{
    enum { TRAINED_WIDTH = 64 };
    if (strcmp(t->name, "proj_in.0.weight") == 0) t->shape[1] = TRAINED_WIDTH;
    if (strncmp(t->name, "proj_out.2", 10) == 0) t->shape[0] = TRAINED_WIDTH;
    draw(t, kind);
    float *x = (float *)(void *)t->data.data;
    for (size_t i = 0; strncmp(t->name, "proj_out.2", 10) == 0 && i < t->data.size / sizeof *x; i++) x[i] *= 0.3f;
}

static int is_folder(harmon_kind kind)
{
    return kind == HARMON_FOLDER || kind == HARMON_DRAFT || is_trained(kind);
}

/* Tells whether a file has a tensor. */
static int is_in(const file_tensor *t, harmon_kind kind)
{
    if (strncmp(t->name, "vae.", 4) == 0) return is_folder(kind) && !is_trained(kind);
    if (strncmp(t->name, "siglip2", 7) == 0) return kind == HARMON_UNIPIC;
    return !is_folder(kind) || !is_output(t);
}

/* Makes the tensors of a file, or with `vae` those of its decoder, which lose their prefix. Returns their number. */
static int make_tensors(harmon_kind kind, int vae, file_tensor *tensors)
{
    wt_file *demo = is_trained(kind) ? open_weights("weights/demo/target.safetensors") : NULL;
    const int all = tensors_read("harmon/tensors.txt", tensors);
    int count = 0;
    for (int i = 0; i < all; i++) {
        file_tensor *t = &tensors[count];
        *t = tensors[i];
        if (vae ? strncmp(t->name, "vae.", 4) != 0 : !is_in(t, kind)) continue;
        count++;
        if (demo && strncmp(t->name, "mar.", 4) == 0)
            take_trained(demo, t, kind);
        else if (demo)
            draw_between(t, kind);
        else
            draw(t, kind);
        if (vae) memmove(t->name, t->name + 4, strlen(t->name) - 3);
    }
    wt_close(demo);
    return count;
}

static void copy_to(const char *folder, const char *name, const char *from)
{
    bytes b = bytes_from_file(from);
    bytes_to_folder(folder, name, &b);
}

/* Writes config.json; the sizes of the demo's towers are in its tensors. */
static void write_config(const char *folder, harmon_kind kind)
{
    static const char *const other[][2] = {{"\"img_size\": 16", "\"img_size\": 32"},
                                           {"\"encoder_embed_dim\": 128", "\"encoder_embed_dim\":  64"}};
    bytes b = bytes_from_file(DATA "harmon/config.json");
    for (int i = 0; is_trained(kind) && i < 2; i++) {
        char *at = memmem(b.data, b.size, other[i][0], strlen(other[i][0]));
        assert_non_null(at);
        memcpy(at, other[i][1], strlen(other[i][1]));
    }
    bytes_to_folder(folder, "config.json", &b);
}

static void write_release(const char *folder, harmon_kind kind, file_tensor *tensors, int count)
{
    char text[4096];
    file_tensor *vae = calloc(FILE_TENSORS_MAX, sizeof *vae);
    assert_non_null(vae);
    const int n = make_tensors(kind, 1, vae);
    tensors_write_torch(folder, kind == HARMON_UNIPIC ? "pytorch_model.bin" : "harmon_0.5b.pth", NULL, tensors, count);
    tensors_write_torch(folder, "kl16.ckpt", "model", vae, n);
    tensors_free(vae, n);
    free(vae);
    snprintf(text, sizeof text, "%s/Qwen2.5", folder);
    if (mkdir(text, 0777) != 0) fail_msg("%s: cannot be made", text);
    copy_to(text, "vocab.json", DATA "text/qwen2_files/vocab.json");
    copy_to(text, "merges.txt", DATA "text/qwen2_files/merges.txt");
    copy_to(text, "tokenizer_config.json", DATA "text/qwen2_files/tokenizer_config.json");
}

void harmon_write(const char *folder, harmon_kind kind)
{
    file_tensor *tensors = calloc(FILE_TENSORS_MAX, sizeof *tensors);
    assert_non_null(tensors);
    const int count = make_tensors(kind, 0, tensors);
    if (is_folder(kind)) {
        tensors_write_safetensors(folder, "model.safetensors", tensors, count);
        write_config(folder, kind);
        copy_to(folder, "tokenizer.json", DATA "text/qwen2/tokenizer.json");
    } else {
        write_release(folder, kind, tensors, count);
    }
    tensors_free(tensors, count);
    free(tensors);
}

/* --- files of all kinds ------------------------------------------------------------------------------------------- */

int harmon_set_up(void **state)
{
    harmon_files *f = *state = calloc(1, sizeof *f);
    assert_non_null(f);
    const char *directory = test_directory();
    for (int i = 0; i < HARMON_KINDS; i++) {
        char folder[sizeof f->folder[i]], from[512], to[512];
        snprintf(folder, sizeof folder, "%s/layout%d", directory, i);
        memcpy(f->folder[i], folder, sizeof folder);
        assert_int_equal(mkdir(folder, 0777), 0);
        harmon_write(folder, (harmon_kind)i);
        snprintf(from, sizeof from, "%s/harmon_0.5b.pth", folder);
        snprintf(to, sizeof to, "%s/pytorch_model.bin", folder);
        if (i == HARMON_RELEASE) assert_int_equal(rename(from, to), 0);
        if (!is_folder((harmon_kind)i)) /* no official width: config.json has to say the heads */
            copy_to(folder, "config.json", DATA "harmon/config.json");
        snprintf(f->text[i], sizeof f->text[i], "%s%s", folder, is_folder((harmon_kind)i) ? "" : "/Qwen2.5");
        snprintf(f->vae[i], sizeof f->vae[i], "%s%s", folder, is_folder((harmon_kind)i) ? "" : "/kl16.ckpt");
    }
    return 0;
}

int harmon_tear_down(void **state)
{
    free(*state);
    return 0;
}

/* --- a model ------------------------------------------------------------------------------------------------------ */

harmon harmon_open_paths(const char *model, const char *vae, const char *text, mar_dtype dtype, const char *size,
                         const char *const *prompts, int n, const char *negative)
{
    harmon h = {.prompts = n};
    mar_options o;
    mar_options_init(&o, sizeof o);
    o.dtype = dtype;
    o.threads = 2;
    o.image_size = size;
    assert_library(h.m, mar_open(&o, &h.m));
    assert_library(h.m, mar_model_load(h.m, model, 0, &h.model));
    if (vae) assert_library(h.m, mar_vae_load(h.m, vae, &h.vae));
    assert_library(h.m, mar_text_load(h.m, text, &h.text));
    h.tokens = mar_model_get_config(h.model)->caption_tokens;
    assert_int_equal(mar_text_get_config(h.text)->tokens, h.tokens);
    const size_t positions = (size_t)h.tokens;
    h.ids = calloc((size_t)(n + 1) * positions, sizeof *h.ids);
    h.mask = calloc((size_t)(n + 1) * positions, 1);
    assert_true(h.ids && h.mask);
    assert_library(h.m, mar_text_encode(h.text, prompts, n, MAR_CLEAN_OFF, h.tokens, h.ids, h.mask, NULL));
    assert_library(h.m, mar_text_encode_negative(h.text, negative, h.tokens, h.ids + (size_t)n * positions,
                                                 h.mask + (size_t)n * positions, NULL));
    return h;
}

harmon harmon_open(const harmon_files *f, harmon_kind kind, mar_dtype dtype, const char *size,
                   const char *const *prompts, int n)
{
    return harmon_open_paths(f->folder[kind], is_trained(kind) ? NULL : f->vae[kind], f->text[kind], dtype, size,
                             prompts, n, NULL);
}

void harmon_load_draft(harmon *h, const harmon_files *f, harmon_kind kind)
{
    assert_library(h->m, mar_model_load(h->m, f->folder[kind], 0, &h->draft));
}

void harmon_close(harmon *h)
{
    mar_text_free(h->text);
    mar_vae_free(h->vae);
    mar_model_free(h->draft);
    mar_model_free(h->model);
    mar_close(h->m);
    free(h->ids);
    free(h->mask);
}

const float *harmon_ids(const harmon *h, int i)
{
    return h->ids + (size_t)i * (size_t)h->tokens;
}

const uint8_t *harmon_mask(const harmon *h, int i)
{
    return h->mask + (size_t)i * (size_t)h->tokens;
}

mar_session *harmon_session(const harmon *h, const mar_params *p, int batch)
{
    mar_session *s;
    assert_library(h->m, mar_session_create(h->model, h->vae, p, batch, &s));
    if (p->cfg != 1)
        assert_session(s, mar_session_set_negative(s, harmon_ids(h, h->prompts), harmon_mask(h, h->prompts)));
    return s;
}
