#include "tools/generate/models.h"

#include "mar_files.h"
#include "mar_measure.h"

#include "tools/cli/command.h"
#include "tools/generate/fast.h"
#include "base/printable.h"
#include "tools/cli/text.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int same_text(const char *a, const char *b)
{
    return a && b ? strcmp(a, b) == 0 : a == b;
}

static int same_options(const mar_options *a, const mar_options *b)
{
    return a->dtype == b->dtype && a->threads == b->threads && a->backend == b->backend && a->device == b->device &&
           a->allow_nonfinite == b->allow_nonfinite && a->seq_len == b->seq_len && a->weights == b->weights &&
           a->patch_size == b->patch_size && same_text(a->image_size, b->image_size) &&
           same_text(a->tuning, b->tuning) && a->tune == b->tune;
}

/* Returns whether the handle suits the options: opened with them, or with a dtype auto that has become theirs. The
 * arithmetic of heads counts if the model to load has one. */
static int serves(const mar *library, const mar_options *opened, const mar_options *wanted, int has_head)
{
    const mar_device *device = mar_get_device(library);
    const mar_dtype dtype = device->dtype;
    mar_options resolved = *opened;
    if (opened->dtype == MAR_DTYPE_AUTO && wanted->dtype != MAR_DTYPE_AUTO) resolved.dtype = dtype;
    const int on_gpu = device->backend == MAR_BACKEND_CUDA;
    const mar_dtype automatic = on_gpu && dtype != MAR_DTYPE_F32 ? MAR_DTYPE_F16 : dtype;
    const mar_dtype head = opened->head_dtype == MAR_DTYPE_AUTO ? automatic : opened->head_dtype;
    return same_options(&resolved, wanted) &&
           (!has_head || (head == (wanted->head_dtype == MAR_DTYPE_AUTO ? automatic : wanted->head_dtype) &&
                          opened->int8_below == wanted->int8_below));
}

static void warn_of_threads(model_store *store, const mar_options *options, const mar *library)
{
    const mar_device *d = mar_get_device(library);
    if (store->quiet || store->warned || d->threads == 0 || options->threads <= d->threads) return;
    fprintf(stderr, "mar: warning: --threads %d: %d %s used, %s\n", options->threads, d->threads,
            d->threads == 1 ? "is" : "are",
            d->threads_missing ? "the system starts no more" : "as many as there are cores for this process");
    store->warned = 1;
}

/* Prints a warning about a model, NULL: none, once for all GPUs. */
static void print_warning(model_store *store, const char *path, const char *warning)
{
    char line[512], shown[256];
    if (!warning || store->quiet) return;
    snprintf(line, sizeof line, "model %s: %s", printable(path, shown, sizeof shown), warning);
    if (strcmp(line, store->warning) == 0) return;
    snprintf(store->warning, sizeof store->warning, "%s", line);
    fprintf(stderr, "%smar: warning: %s\n", isatty(STDERR_FILENO) ? "\r\033[K" : "", line);
}

/* Opens as models_open does, for a model with a head or a network without one. */
static mar *open_for(model_store *store, const mar_options *options, int has_head, const char *dtype)
{
    for (int i = 0; i < store->handle_count; i++)
        if (serves(store->handles[i].library, &store->handles[i].options, options, has_head))
            return store->handles[i].library;
    mar *library = NULL;
    if (store->handle_count == MODELS_HANDLES_MAX) {
        tool_error("too many devices and kinds of arithmetic, expected %d at most", (int)MODELS_HANDLES_MAX);
        return NULL;
    }
    const mar_status status = mar_open(options, &library);
    if (status != MAR_OK) {
        const int is_other = strcmp(dtype, "dtype") != 0;
        tool_error("%s%s%s%s", is_other ? "--" : "", is_other ? dtype : "", is_other ? ": " : "",
                   library ? mar_error(library) : mar_status_name(status));
        mar_close(library);
        return NULL;
    }
    warn_of_threads(store, options, library);
    store->handles[store->handle_count].options = *options;
    store->handles[store->handle_count++].library = library;
    return library;
}

mar *models_open(model_store *store, const mar_options *options, const char *dtype)
{
    mar_options headless = *options;
    headless.head_dtype = MAR_DTYPE_AUTO;
    headless.int8_below = 0;
    return open_for(store, &headless, 0, dtype);
}

/* Returns the open file, NULL if it was not opened with this set of weights. */
static const mar_file *find_open(const model_store *store, const char *path, mar_weights weights)
{
    for (int i = 0; i < store->open_count; i++)
        if (store->open[i].weights == weights && strcmp(store->open[i].path, path) == 0) return store->open[i].file;
    return NULL;
}

/* Returns the open file, which stays open for whatever is loaded from it; NULL if it cannot be opened: loading it by
 * its path then says why. */
static const mar_file *models_open_file(model_store *store, const char *path, mar_weights weights)
{
    mar_file *f;
    const mar_file *found = find_open(store, path, weights);
    if (found || store->open_count == MODELS_FILES_MAX || mar_file_open(path, weights, &f) != MAR_OK) return found;
    store->open[store->open_count].path = path;
    store->open[store->open_count].weights = weights;
    return store->open[store->open_count++].file = f;
}

/* Loads a file, shown on the bar. */
static mar_status models_load_file(model_store *store, const mar_options *machine, mar *library, model_file *file,
                                   int is_model, progress *bar)
{
    mar_source source;
    const models_encoder encoder = store->encoder;
    mar_source_init(&source, sizeof source);
    if (is_model)
        source.file = models_open_file(store, file->path, machine->weights);
    else if (!run_is_built_in(file->path)) /* whose decoder may be another file */
        source.file = find_open(store, file->path, MAR_WEIGHTS_AUTO);
    if (!source.file) source.path = file->path;
    source.heads = file->heads, source.encoder = !is_model && encoder != MODELS_NO_ENCODER;
    if (bar) progress_note(bar, "loading %s", file->path);
    mar_status status = is_model ? mar_model_load_from(library, &source, &file->model)
                                 : mar_vae_load_from(library, &source, &file->vae);
    if (status == MAR_EMODEL && source.encoder && encoder == MODELS_ENCODER_IF_THERE) {
        source.encoder = 0;
        status = mar_vae_load_from(library, &source, &file->vae);
    }
    if (bar) progress_clear(bar);
    return status;
}

/* Prints why the file could not be loaded, and where a file of the other kind belongs. `role`: the option that names
 * it. */
static void explain_load(model_store *store, mar_weights weights, const model_file *file, const char *role)
{
    const char *meant = run_built_in_meant(file->path), *belongs = "";
    char reason[1024];
    snprintf(reason, sizeof reason, "%s", mar_error(file->library));
    const mar_file *open = models_open_file(store, file->path, weights);
    const mar_kind kind = open ? mar_file_get_info(open)->kind : MAR_KIND_UNKNOWN;
    if (strcmp(role, "model") == 0 && kind == MAR_KIND_VAE) belongs = "; give it as --vae";
    if (strcmp(role, "vae") == 0 && (kind == MAR_KIND_MAR || kind == MAR_KIND_SPHEREAR || kind == MAR_KIND_LLAMAGEN))
        belongs = "; give it as --model";
    tool_error("%s%s%s%s%s", reason, belongs, meant ? "; did you mean " : "", meant ? meant : "", meant ? "?" : "");
}

/* Returns a loaded file; NULL if it is not loaded. */
static const model_file *find_file(const model_store *store, const mar *library, const char *path, int heads,
                                   int is_model)
{
    for (int i = 0; i < store->file_count; i++) {
        const model_file *f = &store->files[i];
        if (f->library == library && f->heads == heads && (f->model != NULL) == is_model && strcmp(f->path, path) == 0)
            return f;
    }
    return NULL;
}

/* Sets --dtype auto to the type of the stored weights if the model is one of prompts with a tokenizer of its own. */
static void take_stored_dtype(model_store *store, run_options *o)
{
    if (o->machine.dtype != MAR_DTYPE_AUTO || run_is_built_in(o->model)) return;
    const mar_file *f = models_open_file(store, o->model, o->machine.weights);
    if (f && mar_file_get_info(f)->prompts) o->machine.dtype = mar_file_get_info(f)->stored;
}

/* Returns 1 with the error printed if an option is given that has no effect on a model of prompts with a tokenizer of
 * its own. */
static int refuse_on_decoder(model_store *store, const run_options *o)
{
    if (!o->gives_cleaning && !o->machine.seq_len) return 0;
    const mar_file *f = models_open_file(store, o->model, o->machine.weights);
    if (!f || !mar_file_get_info(f)->prompts) return 0;
    if (o->gives_cleaning)
        return tool_error("--clean llamagen has no effect: %s takes prompts as they are, expected off", o->model);
    return tool_error("--seq_len has no effect: %s has as many tokens as its image size asks for", o->model);
}

/* Prints once that a CPU could multiply the file's int8 or int4 weights directly. */
static void warn_of_restored(model_store *store, const mar_options *machine, const model_file *file)
{
    char path[4096];
    if (store->quiet || machine->dtype != MAR_DTYPE_AUTO || run_is_built_in(file->path) ||
        mar_get_device(file->library)->backend != MAR_BACKEND_CPU)
        return;
    const mar_file *f = models_open_file(store, file->path, machine->weights);
    const mar_dtype stored = f ? mar_file_get_info(f)->stored : MAR_DTYPE_AUTO;
    if (stored == MAR_DTYPE_AUTO) return;
    const char *name = stored == MAR_DTYPE_INT8 ? "int8" : "int4";
    fprintf(stderr, "mar: warning: %s: its %s weights are restored; --dtype %s multiplies them as they are\n",
            printable(file->path, path, sizeof path), name, name);
}

/* Returns the file of the role "model", "draft" or "vae", loading it if needed; NULL with the error printed. */
static const model_file *get_file(model_store *store, const mar_options *machine, mar *library, const char *role,
                                  const char *path, int heads, progress *bar)
{
    const int is_model = strcmp(role, "vae") != 0;
    const model_file *found = find_file(store, library, path, heads, is_model);
    if (found) return found;
    if (store->file_count == MODELS_FILES_MAX) {
        tool_error("%s: too many files on all GPUs, expected %d at most", path, (int)MODELS_FILES_MAX);
        return NULL;
    }
    model_file *f = &store->files[store->file_count];
    *f = (model_file){.library = library, .path = path, .heads = heads};
    if (models_load_file(store, machine, library, f, is_model, bar) != MAR_OK) {
        explain_load(store, machine->weights, f, role);
        return NULL;
    }
    store->file_count++;
    if (is_model) warn_of_restored(store, machine, f);
    if (is_model) print_warning(store, path, mar_model_get_config(f->model)->warning);
    return f;
}

static const char *tokens_of(const mar_model *model)
{
    return mar_model_get_config(model)->head == MAR_HEAD_SOFTMAX ? "discrete" : "continuous";
}

/* Returns the kind of tokens of a model loaded with any options; NULL if it is not loaded. */
static const char *known_tokens(const model_store *store, const char *path)
{
    for (int i = 0; i < store->file_count; i++)
        if (store->files[i].model && strcmp(store->files[i].path, path) == 0) return tokens_of(store->files[i].model);
    return NULL;
}

/* Sets o->tokens if the arithmetic of the heads depends on it: the draft alone decides the method, and with path heads
 * are f32 on a CPU. Loads the draft, the smaller model, to know. A draft for continuous tokens is loaded again, in f32,
 * for the run. Returns 0, or 1 with the error printed. */
static int learn_tokens(model_store *store, run_options *o, progress *bar)
{
    if (!run_draft_decides(o) || o->machine.head_dtype != MAR_DTYPE_AUTO) return 0;
    if ((o->tokens = known_tokens(store, o->draft)) != NULL) return 0;
    mar *library = open_for(store, &o->machine, 1, "dtype");
    const model_file *draft = library ? get_file(store, &o->machine, library, "draft", o->draft, 0, bar) : NULL;
    if (!draft) return 1;
    o->tokens = tokens_of(draft->model);
    if (run_machine(o).head_dtype != MAR_DTYPE_AUTO) mar_model_free(store->files[--store->file_count].model);
    return 0;
}

/* --- captions ----------------------------------------------------------------------------------------------------- */

/* Returns the options that name prompts or captions, one a line; NULL after printing "out of memory". */
static char *caption_key(const run_options *o)
{
    text_buffer text;
    FILE *stream = text_open(&text);
    if (stream) {
        fprintf(stream, "%s\n%s\n%s\n%d\n%s\n%s\n", o->captions ? o->captions : "", o->t5 ? o->t5 : "",
                o->prompts ? o->prompts : "", o->clean, o->negative ? o->negative : "", o->positive ? o->positive : "");
        for (int i = 0; i < o->prompt_count; i++) fprintf(stream, "%zu %s\n", strlen(o->prompt[i]), o->prompt[i]);
    }
    if (stream && text_close(stream, &text) == 0) return text.data;
    tool_error("out of memory for the prompts");
    return NULL;
}

/* Returns the captions that the store has; NULL if it has none. */
static const captions *find_captions(const model_store *store, const mar *library, const char *key,
                                     const mar_model_config *c)
{
    for (int i = 0; i < store->text_count; i++) {
        const captions *found = &store->texts[i].captions;
        if (strcmp(store->texts[i].key, key) == 0 && (!store->texts[i].library || store->texts[i].library == library) &&
            found->tokens == c->caption_tokens && found->dim == c->caption_dim)
            return found;
    }
    return NULL;
}

/* Returns 1 with the error printed if prompts were left out and numbers are made of them. */
static int refuse_skipped(const model_store *store, const prompts *texts)
{
    if (!store->needs_all || texts->skipped == 0) return 0;
    return tool_error("%d prompt%s would be left out, expected good ones only: numbers are of all prompts",
                      texts->skipped, texts->skipped == 1 ? "" : "s");
}

/* Reads the run's prompts. */
static int read_prompts(const model_store *store, const run_options *o, prompts *texts)
{
    for (int i = 0; i < o->prompt_count; i++)
        if (prompts_add(o->prompt[i], texts) != 0) return 1;
    if (o->prompts && prompts_read(o->prompts, texts) != 0) return 1;
    return refuse_skipped(store, texts) || texts->count == 0; /* bad ones are reported */
}

/* Returns 1 with the error printed if the model's prompts are not encoded by a T5, which the folder has. */
static int refuse_t5(const run_options *o, const mar_model_config *c)
{
    if (c->conditioning != MAR_CONDITION_IDS) return 0;
    return tool_error("--%s %s: is a T5, expected the folder of the model that %s is or was made of", o->t5_name, o->t5,
                      o->model);
}

/* Returns 1 with the error printed if prompts of this shape, and of a model of this family (NULL: any), are not those
 * that the model takes. */
static int refuse_encoder(const run_options *o, const mar_model_config *c, const char *family, int tokens, int dim)
{
    if (family && strcmp(family, c->family) != 0)
        return tool_error("--%s %s: is the folder of a model of family %s, expected one of %s, as %s is", o->t5_name,
                          o->t5, family, c->family, o->model);
    if (tokens == c->caption_tokens && dim == c->caption_dim) return 0;
    return tool_error("--%s %s: is the folder of another model than %s, whose prompts have up to %d tokens of %d "
                      "number%s",
                      o->t5_name, o->t5, o->model, c->caption_tokens, c->caption_dim, c->caption_dim == 1 ? "" : "s");
}

/* Loads what encodes prompts from a folder (prompt_encoder_open). */
static int open_encoder(model_store *store, mar *library, const run_options *o, const char *folder, int tokens, int dim,
                        progress *bar, prompt_encoder *out)
{
    const mar_file *f = models_open_file(store, folder, o->machine.weights);
    if (f && !mar_file_get_info(f)->folder) f = NULL;
    if (prompt_encoder_open(out, library, folder, f, tokens, dim, dim ? o->model : NULL, bar) != 0) return 1;
    print_warning(store, folder, mar_text_get_config(out->text)->warning);
    return 0;
}

/* Opens the encoder in the folder o->t5. */
static int open_t5(model_store *store, mar *library, const run_options *o, const mar_model_config *c, progress *bar,
                   prompt_encoder *out)
{
    const int dim = c->conditioning == MAR_CONDITION_IDS ? 0 : c->caption_dim; /* else refuse_t5 says it */
    if (open_encoder(store, library, o, o->t5, c->caption_tokens, dim, bar, out) != 0) return 1;
    if (!out->is_decoder && refuse_t5(o, c) != 0) return 1;
    out->clean = (mar_clean)o->clean;
    out->positive = o->positive;
    out->quiet = store->quiet;
    return 0;
}

/* Encodes the run's prompts, and the second context: with the encoder of a model's own folder, or NULL: the T5. */
static int encode_captions(model_store *store, mar *library, const run_options *o, const mar_model_config *c,
                           prompt_encoder *e, progress *bar, captions *out, prompts *texts)
{
    prompt_encoder t5 = {0};
    texts->is_cleaned = !e && o->clean == MAR_CLEAN_LLAMAGEN;
    int failed = read_prompts(store, o, texts) || (!e && open_t5(store, library, o, c, bar, &t5));
    if (!e) e = &t5;
    if (!failed && (failed = prompt_encoder_run_all(e, texts, bar, out)) == 0)
        failed = refuse_skipped(store, texts) || (e->is_decoder && prompt_encoder_negative(e, o->negative, out));
    if (failed) captions_free(out);
    prompt_encoder_close(&t5);
    return failed;
}

/* Returns 1 with the error printed if the captions in a file are of another family or size than the run's. */
static int check_made_for(const run_options *o, const mar_model_config *c, captions *set)
{
    char text[CAPTIONS_MADE_FOR];
    if (!set->made_for || strcmp(set->made_for, captions_made_for(c->family, o->machine.image_size, text)) == 0)
        return 0;
    tool_error("--captions %s: made for %s, expected %s", o->captions, set->made_for, text);
    captions_free(set);
    return 1;
}

/* Gets the captions of a text-to-image model, reading or encoding them (encode_captions) if the store lacks them. */
static int get_captions(model_store *store, mar *library, const run_options *o, const mar_model_config *c,
                        prompt_encoder *e, progress *bar)
{
    char *key = caption_key(o);
    captions *out = &store->texts[store->text_count].captions;
    prompts *texts = &store->texts[store->text_count].prompts;
    int failed = !key;
    if (failed || find_captions(store, library, key, c)) {
        free(key);
        return failed;
    }
    failed = o->captions
                 ? captions_read(o->captions, c->caption_tokens, c->caption_dim, out) || check_made_for(o, c, out)
                 : encode_captions(store, library, o, c, e, bar, out, texts);
    if (failed) {
        prompts_free(texts);
        free(key);
        return 1;
    }
    store->texts[store->text_count].key = key;
    store->texts[store->text_count++].library = o->captions ? NULL : library;
    return 0;
}

static int refuse_no_prompt(const run_options *o)
{
    return tool_error("--prompt is missing: %s makes images of prompts, expected one; or --captions, what mar captions "
                      "made of them",
                      o->model);
}

/* Takes the image decoder in the file or folder of a model of prompts, unless another is given. If
 * the store needs one and there is none, prints it. */
static int find_own_vae(model_store *store, mar *library, run_options *o, progress *bar)
{
    model_file *f = &store->files[store->file_count];
    if (o->vae) return 0;
    if (!find_file(store, library, o->model, 0, 0)) {
        *f = (model_file){.library = library, .path = o->model};
        const mar_status status = models_load_file(store, &o->machine, library, f, 0, bar);
        if (status == MAR_EMODEL && store->needs_vae)
            return tool_error("--vae is missing: %s; Harmon's is kl16.ckpt, Lumina-mGPT's and Anole's Chameleon's "
                              "vqgan.ckpt, Emu3's the folder Emu3-VisionTokenizer, NextStep-1's the folder vae",
                              mar_error(library));
        if (status != MAR_OK) return 0; /* the model's loading says it */
        store->file_count++;
    }
    o->vae = o->model;
    return 0;
}

/* Does what prepare_captions does if prompts are encoded by the folder of a model with a tokenizer. Sets
 * *done to 0, and does nothing, if they are not. The model's weights are not read. */
static int prepare_decoder(model_store *store, mar *library, run_options *o, progress *bar, int *done)
{
    const char *folder = o->t5 ? o->t5 : o->model;
    prompt_encoder e;
    const mar_file *f = o->captions ? NULL : models_open_file(store, folder, o->machine.weights);
    *done = f && mar_file_get_info(f)->prompts && mar_file_get_info(f)->folder;
    if (!*done) return 0;
    if (!run_has_prompts(o) && !store->keeps_encoder) return refuse_no_prompt(o); /* before the weights are read */
    if (store->keeps_encoder && run_has_prompts(o))
        return tool_error("--%s: has no effect here, a request has its own prompt",
                          o->prompt_count ? "prompt" : "prompts");
    if (open_encoder(store, library, o, folder, 0, 0, bar, &e) != 0) return 1;
    if (find_own_vae(store, library, o, bar) != 0) {
        prompt_encoder_close(&e);
        return 1;
    }
    o->t5 = folder;
    e.quiet = store->quiet;
    e.clean = MAR_CLEAN_OFF;
    e.positive = o->positive;
    if (!store->keeps_encoder) {
        const mar_model_config shape = {.caption_tokens = e.tokens, .caption_dim = e.dim};
        const int failed = get_captions(store, library, o, &shape, &e, bar);
        prompt_encoder_close(&e);
        return failed;
    }
    store->encoder_kept = e;
    store->negative_kept = (captions){.tokens = e.tokens, .dim = e.dim};
    return prompt_encoder_negative(&store->encoder_kept, o->negative, &store->negative_kept);
}

/* Checks the options about prompts against the model. */
static int check_captions(const model_store *store, const run_options *o, const mar_model_config *c)
{
    const char *given = o->captions ? "captions" : o->prompt_count ? "prompt" : o->prompts ? "prompts" : o->t5_name;
    if (c->caption_tokens == 0)
        return tool_error("--%s: %s makes images of classes, expected a text-to-image model", given, o->model);
    if (o->captions) return 0;
    if (!o->t5 && c->conditioning == MAR_CONDITION_IDS)
        return tool_error(
            "--text is missing: %s has no tokenizer, expected the folder of the model that it was made of, for Harmon "
            "Qwen2.5's; or --captions, what mar captions made of prompts",
            o->model);
    if (!o->t5)
        return tool_error("--t5 is missing: %s takes prompts as a T5 of width %d encodes them, expected the T5's "
                          "folder; or --captions, what mar captions made of them",
                          o->model, c->caption_dim);
    return store->keeps_encoder && run_has_prompts(o)
               ? tool_error("--%s: has no effect here, a request has its own prompt", given)
               : 0;
}

/* Gets the captions or the encoder of the run before its model is loaded: a T5 may be larger than the model. What the
 * model takes is in its header. A file that cannot be read is reported when it is loaded. */
static int prepare_captions(model_store *store, mar *library, run_options *o, int heads, progress *bar)
{
    mar_model_config config = {.size = sizeof config}, *c = &config;
    const char *fault = run_prompts_fault(o, store->keeps_encoder);
    int done;
    if (fault) return tool_error("%s", fault);
    const int failed_decoder = prepare_decoder(store, library, o, bar, &done);
    if (done) return failed_decoder;
    if (!o->t5 && !o->captions && (run_has_prompts(o) || store->keeps_encoder)) o->t5 = run_demo_t5(o->model);
    if (!run_has_prompts(o) && !o->captions && !o->t5) return 0;
    int failed = 0;
    const mar_file *f = models_open_file(store, o->model, o->machine.weights);
    if (f && mar_file_get_model(library, f, heads, c) == MAR_OK) {
        failed = check_captions(store, o, c) ||
                 (c->conditioning == MAR_CONDITION_IDS && find_own_vae(store, library, o, bar));
        if (!failed && store->keeps_encoder && o->t5) failed = open_t5(store, library, o, c, bar, &store->encoder_kept);
        if (!failed && (!store->keeps_encoder || o->captions)) failed = get_captions(store, library, o, c, NULL, bar);
    }
    return failed;
}

/* Sets the captions of a text-to-image model and their number, for another model its classes. */
static int set_captions(const model_store *store, const run_options *o, run_models *models)
{
    const mar_model_config *c = mar_model_get_config(models->model);
    models->classes = (class_choices){.count = c->classes};
    if (c->caption_tokens == 0) return run_has_prompts(o) || o->t5 ? check_captions(store, o, c) : 0;
    if (store->encoder_kept.text) {
        const prompt_encoder *e = &store->encoder_kept;
        models->negative = store->negative_kept.negative.positions ? &store->negative_kept : NULL;
        return refuse_encoder(o, c, e->is_decoder ? mar_text_get_config(e->text)->family : NULL, e->tokens, e->dim);
    }
    char *key = caption_key(o);
    if (!key) return 1;
    models->captions = find_captions(store, models->library, key, c);
    models->negative = models->captions && models->captions->negative.positions ? models->captions : NULL;
    free(key);
    if (!models->captions && o->t5) return refuse_encoder(o, c, NULL, 0, 0);
    if (models->captions && models->captions->family &&
        refuse_encoder(o, c, models->captions->family, models->captions->tokens, models->captions->dim))
        return 1;
    if (!models->captions && c->conditioning == MAR_CONDITION_IDS) return refuse_no_prompt(o);
    if (!models->captions && store->keeps_encoder)
        return tool_error("--t5 is missing: %s makes images of prompts, expected the folder of a T5 of width %d; or "
                          "--captions, what mar captions made of some",
                          o->model, c->caption_dim);
    if (!models->captions && run_demo_t5(o->model))
        return tool_error("--prompt is missing: %s makes images of prompts, expected one such as \"a bold seven\"",
                          o->model);
    if (!models->captions)
        return tool_error(
            "--prompt is missing: %s makes images of prompts, expected one, and with --t5 the folder of a "
            "T5 of width %d; or --captions, what mar captions made of them",
            o->model, c->caption_dim);
    models->classes = (class_choices){.count = models->captions->count, .no_none = "the model needs a caption"};
    return 0;
}

int models_status(const model_store *store, int status)
{
    int skipped = 0;
    for (int i = 0; i < store->text_count; i++) skipped += store->texts[i].prompts.skipped;
    return status == 0 && skipped > 0 ? 1 : status;
}

/* Reads the file of --class_names, if there is one, unless the store has it. Call it before anything is loaded, which
 * may take long. */
static int read_class_names(model_store *store, const run_options *o)
{
    for (int i = 0; i < store->name_count; i++)
        if (o->class_names && strcmp(store->names[i].path, o->class_names) == 0) return 0;
    if (!o->class_names) return 0;
    if (class_table_read(o->class_names, &store->names[store->name_count].table) != 0) return 1;
    store->names[store->name_count++].path = o->class_names;
    return 0;
}

/* Sets the names of the classes: those of the file, or ImageNet's. */
static int get_class_names(const model_store *store, const run_options *o, run_models *models)
{
    const int classes = models->classes.count;
    if (!o->class_names && !models->captions) models->classes.names = class_table_of(classes);
    if (!o->class_names) return 0;
    if (mar_model_get_config(models->model)->caption_tokens)
        return tool_error("--class_names: %s makes images of prompts, expected a model of classes", o->model);
    const class_table *table = NULL;
    for (int i = 0; i < store->name_count; i++)
        if (strcmp(store->names[i].path, o->class_names) == 0) table = &store->names[i].table;
    if (table->count != classes)
        return tool_error("--class_names %s: has the names of %d class%s, expected those of the %d of %s",
                          o->class_names, table->count, table->count > 1 ? "es" : "", classes, o->model);
    models->classes.names = table;
    return 0;
}

/* Returns 1 with the error printed if the model can be a draft only. */
static int refuse_drafter(const model_file *model, const run_options *o)
{
    if (mar_model_get_config(model->model)->conditioning != MAR_CONDITION_NONE) return 0;
    return tool_error("%s: is an EAGLE drafter, expected a MAR, SphereAR or LlamaGen model; give it as --draft",
                      o->model);
}

/* Returns 1 with the error printed if an option is given for another family, besides those that the library rejects:
 * --seq_len for a model whose file has its whole size; --patch_size for one whose tokens are latent pixels; --fast for
 * one without a preset of that level; --head_dtype, --int8_below and --draft self for one without a head. */
static int refuse_options(const model_file *model, const run_options *o)
{
    const mar_model_config *c = mar_model_get_config(model->model);
    const int discrete = c->head == MAR_HEAD_SOFTMAX, sets = c->order == MAR_ORDER_SETS;
    if (o->machine.seq_len && !discrete)
        return tool_error("--seq_len has no effect: the model is a %s model, whose file says how many tokens it makes",
                          c->title);
    if (o->machine.image_size && !c->sizes && c->conditioning != MAR_CONDITION_IDS)
        return tool_error("--size has no effect: the model makes images of one size");
    if (o->negative && c->conditioning != MAR_CONDITION_IDS)
        return tool_error("--negative: has no effect: guidance of %s is against the unconditional caption in its file",
                          o->model);
    if (o->machine.patch_size && discrete)
        return tool_error("--patch_size has no effect: the model's tokens are discrete, one for each latent pixel");
    if (o->machine.patch_size && !sets)
        return tool_error("--patch_size has no effect: the model is a %s model, whose file has the sizes", c->title);
    if (o->fast && !mar_preset_get(o->fast, c))
        return discrete ? tool_error("--fast %d: the model's tokens are discrete, which have level 1 only: expected "
                                     "--fast 1",
                                     o->fast)
                        : tool_error("--fast %d: has no preset for %s models, expected options such as --head_spec 8 "
                                     "or --dtype int8",
                                     o->fast, c->title);
    if (o->machine.head_dtype != MAR_DTYPE_AUTO && discrete)
        return tool_error("--head_dtype has no effect: the model's tokens are discrete, and it has no diffusion head");
    if (o->machine.int8_below && discrete)
        return tool_error("--int8_below has no effect: the model's tokens are discrete, and it has no diffusion head");
    return o->self_is_path && discrete ? run_refuse_self() : 0;
}

/* Returns 1 with the error printed if the store needs an image decoder and the run has none. */
static int models_refuse_no_vae(const model_store *store, const run_options *o)
{
    if (o->vae || !store->needs_vae) return 0;
    return tool_error(
        "--vae is missing, expected an image decoder: MAR's and Harmon's is kl16.ckpt, linked from the page "
        "github.com/LTH14/mar, LlamaGen's vq_ds16_c2i.pt, from that of github.com/FoundationVision/LlamaGen; "
        "Lumina-mGPT's and Anole's is Chameleon's vqgan.ckpt, Emu3's the folder Emu3-VisionTokenizer, NextStep-1's the "
        "folder vae in its own; SphereAR's is in the model's own file");
}

/* Prints once what --fast set. */
static void report_fast(const model_store *store, run_options *o, progress *bar)
{
    char text[1024];
    if (o->fast && !o->reported_fast && !store->quiet) {
        if (bar) progress_clear(bar);
        fprintf(stderr, "mar: %s\n", fast_describe(o, text, sizeof text));
    }
    o->reported_fast = 1;
}

int models_load(model_store *store, run_options *o, progress *bar, run_models *out)
{
    if (read_class_names(store, o) != 0 || refuse_on_decoder(store, o) != 0) return 1;
    fast_set_machine(o);
    take_stored_dtype(store, o);
    if (learn_tokens(store, o, bar) != 0) return 1;
    const mar_options machine = run_machine(o);
    *out = (run_models){.library = open_for(store, &machine, 1, "dtype")};
    if (!out->library) return 1;
    if (!o->vae) o->vae = run_demo_vae(o->model);
    int heads;
    if (run_read_heads(o->heads, &heads) != 0 || prepare_captions(store, out->library, o, heads, bar) != 0) return 1;
    const model_file *model = get_file(store, &machine, out->library, "model", o->model, heads, bar), *draft = NULL,
                     *vae = NULL;
    if (!model || refuse_drafter(model, o) != 0 || refuse_options(model, o) != 0) return 1;
    if (!o->vae && mar_model_get_config(model->model)->image_decoder) o->vae = o->model;
    if (o->draft && !(draft = get_file(store, &machine, out->library, "draft", o->draft, 0, bar))) return 1;
    if (o->vae && !(vae = get_file(store, &machine, out->library, "vae", o->vae, 0, bar))) return 1;
    out->model = model->model;
    out->draft = draft ? draft->model : NULL;
    out->vae = vae ? vae->vae : NULL;
    o->params.draft = out->draft;
    o->tokens = tokens_of(out->model);
    if (fast_set_params(o, out->model, out->vae) != 0) return 1;
    report_fast(store, o, bar);
    return set_captions(store, o, out) || get_class_names(store, o, out) || models_refuse_no_vae(store, o);
}

int models_load_again(model_store *store, const run_options *o, const run_models *first, progress *bar, run_models *out)
{
    const mar_options machine = run_machine(o);
    const model_file *model, *draft = NULL, *vae = NULL;
    int heads;
    *out = *first;
    out->library = open_for(store, &machine, 1, "dtype");
    if (!out->library || run_read_heads(o->heads, &heads) != 0) return 1;
    if (!(model = get_file(store, &machine, out->library, "model", o->model, heads, bar))) return 1;
    if (o->draft && !(draft = get_file(store, &machine, out->library, "draft", o->draft, 0, bar))) return 1;
    if (o->vae && !(vae = get_file(store, &machine, out->library, "vae", o->vae, 0, bar))) return 1;
    out->model = model->model;
    out->draft = draft ? draft->model : NULL;
    out->vae = vae ? vae->vae : NULL;
    return 0;
}

const char *models_class_name(const run_models *models, int label, char *text, size_t size)
{
    return class_name(models->classes.names, label, text, size);
}

int models_refuse_classes(const run_options *o, const char *classes)
{
    if (!classes || !run_has_prompts(o)) return 0;
    return tool_error("--class: has no effect beside --%s: prompts take the place of classes",
                      o->prompt_count ? "prompt" : "prompts");
}

/* Returns whether the session's verifier needs a codebook. */
static int needs_codebook(const run_options *o)
{
    for (int i = 0; o->params.spec && i < mar_method_count(); i++)
        if (strcmp(mar_method_get(i)->name, o->params.spec) == 0) return mar_method_get(i)->codebook;
    return 0;
}

int models_set_negative(const run_models *models, mar_session *s)
{
    const captions *c = models->negative;
    if (!c) return 0;
    const size_t positions = (size_t)c->tokens;
    float *features = malloc(positions * (size_t)c->dim * sizeof *features);
    uint8_t *mask = malloc(positions);
    int failed = features && mask ? 0 : tool_error("out of memory for the second context of guidance");
    if (!failed) captions_place(c, -1, features, mask);
    if (!failed && mar_session_set_negative(s, features, mask) != MAR_OK)
        failed = tool_error("%s", mar_session_error(s));
    free(features);
    free(mask);
    return failed;
}

int models_session(const run_models *models, run_options *o, int max_batch, mar_session **out)
{
    if (!models->vae && mar_model_get_config(models->model)->vocabulary && needs_codebook(o))
        return tool_error("--spec %s: needs the image decoder's codebook, which says what tokens are near: --vq is "
                          "missing, expected its file",
                          o->params.spec);
    const mar_status status = mar_session_create(models->model, models->vae, &o->params, max_batch, out);
    if (status == MAR_ENOMEM && max_batch > 1)
        return tool_error("%s; a smaller --batch than %d needs less", mar_error(models->library), max_batch);
    if (status != MAR_OK) return tool_error("%s", mar_error(models->library));
    if (models_set_negative(models, *out) != 0) {
        mar_session_free(*out);
        *out = NULL;
        return 1;
    }
    run_take_used(o, mar_session_get_params(*out));
    return 0;
}

void models_free(model_store *store)
{
    prompt_encoder_close(&store->encoder_kept); /* before its handle */
    captions_free(&store->negative_kept);
    for (int i = 0; i < store->file_count; i++) {
        mar_model_free(store->files[i].model);
        mar_vae_free(store->files[i].vae);
    }
    for (int i = 0; i < store->handle_count; i++) mar_close(store->handles[i].library);
    for (int i = 0; i < store->open_count; i++) mar_file_close(store->open[i].file);
    for (int i = 0; i < store->text_count; i++) {
        free(store->texts[i].key);
        captions_free(&store->texts[i].captions);
        prompts_free(&store->texts[i].prompts);
    }
    for (int i = 0; i < store->name_count; i++) class_table_free(&store->names[i].table);
    *store = (model_store){0};
}
