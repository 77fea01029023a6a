#include "tools/generate/record.h"

#include "mar_measure.h"
#include "mar_methods.h"

#include "tools/generate/classes.h"
#include "tools/cli/command.h"
#include "tools/cli/json.h"
#include "tools/cli/file.h"
#include "tools/cli/file_sum.h"
#include "base/printable.h"
#include "tools/generate/stats.h"
#include "tools/cli/text.h"

#include <cjson/cJSON.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* --- file identities ---------------------------------------------------------------------------------------------- */

int record_identify_file(const char *path, char text[RECORD_ID])
{
    long long length = 0;
    uint64_t hash = 0;
    *text = '\0';
    if (!path || run_is_built_in(path)) return 0;
    const int fd = tool_open_file(path, O_RDONLY);
    if (fd < 0) return tool_cannot_open(path, "a file");
    const int failed = file_sum(fd, &length, &hash) != 0, reason = errno;
    close(fd);
    if (failed) return tool_error("%s: cannot read: %s", path, strerror(reason));
    snprintf(text, RECORD_ID, "%lld bytes, %016" PRIx64, length, hash);
    return 0;
}

/* Writes the hash of a loaded file; "" for a built-in or unused one. */
static void write_hash(const char *path, uint64_t hash, char text[RECORD_ID])
{
    *text = '\0';
    if (path && !run_is_built_in(path)) snprintf(text, RECORD_ID, "%016" PRIx64, hash);
}

int record_identify(const run_options *run, run_models *out)
{
    record_ids *ids = &out->ids;
    write_hash(run->model, mar_model_get_config(out->model)->hash, ids->model);
    write_hash(run->vae, out->vae ? mar_vae_get_config(out->vae)->hash : 0, ids->vae);
    write_hash(run->draft, out->draft ? mar_model_get_config(out->draft)->hash : 0, ids->draft);
    record_identify_prompts(out);
    return run->captions ? record_identify_file(run->captions, ids->captions) : 0;
}

void record_identify_prompts(run_models *models)
{
    const captions *c = models->captions;
    if (c && c->encoded)
        snprintf(models->ids.captions, RECORD_ID, "%d prompt%s, %016" PRIx64, c->count, c->count == 1 ? "" : "s",
                 captions_sum(c, -1));
}

/* --- text in pictures ----------------------------------------------------------------------------------- */

void record_texts_add(record_texts *out, const char *key, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    char *value;
    if (vasprintf(&value, format, arguments) < 0) value = NULL;
    va_end(arguments);
    char *valid = value ? printable_utf8(value) : NULL; /* tEXt and iTXt admit only valid UTF-8 */
    free(value);
    image_text *larger = valid ? realloc(out->texts, ((size_t)out->count + 1) * sizeof *larger) : NULL;
    if (larger) {
        out->texts = larger;
        out->texts[out->count++] = (image_text){key, valid};
    } else {
        out->lacks = 1;
        free(valid);
    }
}

static void add_options(record_texts *out, const run_options *run)
{
    char text[4096];
    for (int i = 0; i < mar_param_count(); i++) {
        const mar_param *p = mar_param_get(i);
        const int always = p->method || run_param_is_basic(p);
        const int plain = p->type != MAR_TYPE_MODEL && !always && mar_param_is_default(p, &run->used);
        if (run_param_is_check(p) || run_param_unused(run, i) || plain) continue;
        if (*run_param_text(run, i, text, sizeof text)) record_texts_add(out, p->name, "%s", text);
    }
}

void record_texts_add_arithmetic(record_texts *out, const mar *library)
{
    record_texts_add(out, "arithmetic", "%s", mar_get_device(library)->arithmetic);
}

/* Adds the options that choose this arithmetic, with the values that are used. */
static void add_machine(record_texts *out, const mar *library, int has_head)
{
    static const char *const names[] = {"backend", "dtype", "head_dtype", "int8_below"};
    const mar_device *d = mar_get_device(library);
    const mar_options used = {
        .backend = d->backend, .dtype = d->dtype, .head_dtype = d->head_dtype, .int8_below = d->int8_below};
    char text[32];
    for (int i = 0; i < (has_head ? 4 : 2); i++) {
        const mar_param *p = run_option(names[i]);
        if (!mar_param_is_default(p, &used))
            record_texts_add(out, p->name, "%s", mar_param_text(p, &used, text, sizeof text));
    }
}

/* Models with equal bytes and different names are the same; a built-in one has its name only. */
void record_texts_add_decoder(record_texts *out, const run_options *run, const run_models *models)
{
    record_texts_add(out, "vae", "%s", *models->ids.vae ? models->ids.vae : tool_base_name(run->vae));
}

void record_texts_add_run(record_texts *out, const run_options *run, const run_models *models)
{
    const record_ids *ids = &models->ids;
    add_options(out, run);
    record_texts_add(out, "model", "%s", tool_base_name(run->model));
    if (run->vae) record_texts_add(out, "vae", "%s", tool_base_name(run->vae));
    const mar_model_config *c = mar_model_get_config(models->model);
    const int is_decoder = c->conditioning == MAR_CONDITION_IDS; /* whose files say how many heads there are */
    if (!is_decoder)
        record_texts_add(out, "heads", c->decoder_heads == c->heads ? "%d" : "%d,%d", c->heads, c->decoder_heads);
    if (run->machine.patch_size) record_texts_add(out, "patch_size", "%d", run->machine.patch_size);
    if (run->machine.seq_len) record_texts_add(out, "seq_len", "%d", run->machine.seq_len);
    if (run->machine.image_size) record_texts_add(out, "size", "%s", run->machine.image_size);
    if (run->machine.weights)
        record_texts_add(out, "weights", "%s", run->machine.weights == MAR_WEIGHTS_EMA ? "ema" : "model");
    if (*ids->model) record_texts_add(out, "model_id", "%s", ids->model);
    if (*ids->vae) record_texts_add(out, "vae_id", "%s", ids->vae);
    if (*ids->draft) record_texts_add(out, "draft_id", "%s", ids->draft);
    if (run->captions) record_texts_add(out, "captions", "%s", tool_base_name(run->captions));
    if (run->captions && *ids->captions) record_texts_add(out, "captions_id", "%s", ids->captions);
    if (run->negative) record_texts_add(out, "negative", "%s", run->negative);
    if (run->positive) record_texts_add(out, "positive", "%s", run->positive);
    if (!run->captions && run->t5 && run->t5 != run->model) record_texts_add(out, "t5", "%s", tool_base_name(run->t5));
    if (!run->captions && run->t5 && !is_decoder)
        record_texts_add(out, "clean", "%s", run_option("clean")->choices[run->clean]);
    record_texts_add_arithmetic(out, models->library);
    add_machine(out, models->library, !c->vocabulary);
}

void record_texts_add_prompts(record_texts *out, const run_options *run, const run_models *models)
{
    if (!run->captions && *models->ids.captions) record_texts_add(out, "prompts_id", "%s", models->ids.captions);
}

int record_texts_end(record_texts *texts, const char *what)
{
    if (!texts->lacks) return 0;
    record_texts_free(texts);
    return tool_error("out of memory for %s", what);
}

/* Returns whether tokens depend on the text: not on the name of a file beside its hash, and on the image decoder only
 * if drafts of discrete tokens are verified (lantern uses its codebook). */
static int is_of_tokens(const image_text *t, const record_ids *ids, int needs_decoder)
{
    if (strcmp(t->key, "vae_id") == 0) return needs_decoder;
    if (strcmp(t->key, "vae") == 0) return needs_decoder && !*ids->vae;
    return !((strcmp(t->key, "model") == 0 && *ids->model) || (strcmp(t->key, "draft") == 0 && *ids->draft) ||
             (strcmp(t->key, "captions") == 0 && *ids->captions) || strcmp(t->key, "t5") == 0 ||
             strcmp(t->key, "clean") == 0); /* prompts_id hashes what both make of the prompts */
}

/* Raised with each change that makes other tokens (tests/record/compare.sh), so that a store does not mix them. */
enum { ARITHMETIC = 3 };

int record_check_store(const char *directory, output *out)
{
    if (!directory) return 0;
    if (output_check(out, directory, IMAGE_PNG) != 0) return 1;
    return out->is_file ? tool_error("--store %s: expected a directory", directory) : 0;
}

int record_open_store(const char *directory, const run_options *run, const run_models *models, int batch,
                      store_run *out)
{
    record_texts texts = {0};
    const mar_model_config *c = mar_model_get_config(models->model);
    const int needs_decoder = c->vocabulary && run_verifies_drafts(run);
    record_texts_add(&texts, "Software", "libmar %s, arithmetic %d", mar_version(), ARITHMETIC);
    record_texts_add_run(&texts, run, models);
    record_texts_add_prompts(&texts, run, models);
    record_texts_add(&texts, "batch", "%d", batch);
    record_texts_add(&texts, "tokens", "%d of %d numbers", c->seq_len, c->token_dim);
    record_texts_add(&texts, "stats", "%zu bytes", sizeof(mar_stats)); /* as the stored files contain it */
    if (record_texts_end(&texts, "what the tokens depend on") != 0) return 1;
    int count = 0;
    for (int i = 0; i < texts.count; i++) {
        const image_text text = texts.texts[i];
        if (!is_of_tokens(&text, &models->ids, needs_decoder)) continue;
        texts.texts[i] = texts.texts[count]; /* those that count come first, in their order */
        texts.texts[count++] = text;
    }
    const int failed = store_open(directory, texts.texts, count, out);
    record_texts_free(&texts);
    return failed;
}

static const char unconditional[] = "none"; /* in place of a class, as --class has it */

/* Returns "207,none" or "golden retriever,none" for the grid; NULL without memory. */
static char *class_list(const generate_job *job, int names)
{
    text_buffer text;
    FILE *stream = text_open(&text);
    if (!stream) return NULL;
    for (int i = 0; i < job->class_count; i++) {
        char name[CLASS_NAME_MAX + 2];
        const int label = job->classes[i];
        if (label < 0)
            fprintf(stream, "%s%s", i ? "," : "", unconditional);
        else if (names)
            fprintf(stream, "%s%s", i ? "," : "", models_class_name(&job->models, label, name, sizeof name));
        else
            fprintf(stream, "%s%d", i ? "," : "", label);
    }
    return text_close(stream, &text) == 0 ? text.data : NULL;
}

/* Returns the prompts of the grid, one a line; NULL without memory. */
static char *prompt_list(const generate_job *job)
{
    text_buffer text;
    FILE *stream = text_open(&text);
    if (!stream) return NULL;
    for (int i = 0; i < job->class_count; i++)
        fprintf(stream, "%s%s", i ? "\n" : "", job->models.captions->list[job->classes[i]].prompt);
    return text_close(stream, &text) == 0 ? text.data : NULL;
}

/* Adds the classes or the prompts of the grid. */
static void add_grid_classes(record_texts *out, const generate_job *job)
{
    const captions *c = job->models.captions;
    const int named = job->models.classes.names != NULL, prompted = c && c->encoded;
    char *list = prompted ? prompt_list(job) : class_list(job, 0), *names = named ? class_list(job, 1) : NULL;
    out->lacks |= !list || (named && !names);
    if (list) record_texts_add(out, prompted ? "prompt" : "class", "%s", list);
    if (names) record_texts_add(out, "class_name", "%s", names);
    free(list);
    free(names);
    if (prompted) record_texts_add_prompts(out, &job->options.run, &job->models);
}

/* Adds the class or the prompt of an image. */
static void add_subject(record_texts *out, const run_models *models, int label)
{
    char name[CLASS_NAME_MAX + 2];
    const captions *c = models->captions;
    const char *prompt = c ? c->list[label].prompt : NULL;
    if (prompt) record_texts_add(out, "prompt", "%s", prompt);
    if (prompt) record_texts_add(out, "features", "%016" PRIx64, captions_sum(c, label));
    if (label < 0)
        record_texts_add(out, "class", "%s", unconditional);
    else if (!c || !c->encoded)
        record_texts_add(out, "class", "%d", label);
    if (*models_class_name(models, label, name, sizeof name)) record_texts_add(out, "class_name", "%s", name);
}

void record_texts_add_image(record_texts *out, const run_models *models, int label, long index)
{
    add_subject(out, models, label);
    record_texts_add(out, "image", "%ld", index);
}

static void add_range(record_texts *out, long first, long count, int num)
{
    record_texts_add(out, "image", "%ld-%ld", first, first + count - 1);
    record_texts_add(out, "num", "%d", num);
}

int record_texts_make(const generate_job *job, long index, const char *title, record_texts *out)
{
    *out = (record_texts){0};
    if (title) record_texts_add(out, "Title", "%s", title);
    record_texts_add(out, "Software", "libmar %s", mar_version());
    const int images = benchmark_images(&job->benchmark);
    if (index >= 0 && images > 1) {
        add_subject(out, &job->models, job->classes[index / job->num]);
        add_range(out, job->options.first + index, images, job->num);
    } else if (index >= 0) {
        record_texts_add_image(out, &job->models, job->classes[index / job->num], job->options.first + index);
    } else {
        add_grid_classes(out, job);
        add_range(out, job->options.first, job->total, job->num);
        if (job->existing + job->made < job->total)
            record_texts_add(out, "finished", "%ld of %ld images", job->existing + job->made, job->total);
    }
    record_texts_add_run(out, &job->options.run, &job->models);
    record_texts_add(out, "guarantee", "%s", mar_session_guarantee(job->session));
    return record_texts_end(out, "the text in the picture");
}

void record_texts_free(record_texts *texts)
{
    for (int i = 0; i < texts->count; i++) free((char *)(uintptr_t)texts->texts[i].value);
    free(texts->texts);
    *texts = (record_texts){0};
}

/* --- JSON ----------------------------------------------------------------------------------------------- */

static void add_class(cJSON *o, const captions *c, int label)
{
    if (c && c->list[label].prompt) cJSON_AddStringToObject(o, "prompt", c->list[label].prompt);
    if (c && c->encoded) return;
    if (label < 0)
        cJSON_AddNullToObject(o, "class");
    else
        cJSON_AddNumberToObject(o, "class", label);
}

static void add_classes(cJSON *record, const generate_job *job)
{
    const captions *c = job->models.captions;
    cJSON *list = cJSON_AddArrayToObject(record, c && c->encoded ? "prompts" : "classes");
    for (int i = 0; i < job->class_count; i++) {
        char name[CLASS_NAME_MAX + 2];
        cJSON *o = cJSON_CreateObject();
        add_class(o, job->models.captions, job->classes[i]);
        if (*models_class_name(&job->models, job->classes[i], name, sizeof name))
            cJSON_AddStringToObject(o, "name", name);
        tool_json_append(list, o);
    }
}

/* Adds the path and frees it. NULL: creating the path failed, with the error printed. Returns whether it was added. */
static int add_file(cJSON *o, char *path)
{
    if (path) cJSON_AddStringToObject(o, "file", path);
    free(path);
    return path != NULL;
}

/* Returns 0, or 1 with the error printed. */
static int add_files(cJSON *record, const generate_job *job)
{
    int complete = 1;
    if (!job->out.is_file || !job->grid.rgb) {
        cJSON *list = cJSON_AddArrayToObject(record, "files");
        for (long i = 0; complete && i < job->total; i++) {
            cJSON *o = cJSON_CreateObject();
            complete = add_file(o, benchmark_path(&job->benchmark, &job->out, job->options.first + i));
            cJSON_AddNumberToObject(o, "image", (double)(job->options.first + i));
            add_class(o, job->models.captions, job->classes[i / job->num]);
            tool_json_append(list, o);
        }
    }
    if (complete && job->grid.rgb) {
        cJSON *o = cJSON_AddObjectToObject(record, "grid");
        complete = add_file(o, output_grid_path(&job->out));
        cJSON_AddNumberToObject(o, "rows", job->rows);
        cJSON_AddNumberToObject(o, "columns", job->columns);
        cJSON_AddNumberToObject(o, "width", job->grid.width);
        cJSON_AddNumberToObject(o, "height", job->grid.height);
    }
    if (job->options.accept_map)
        cJSON_AddStringToObject(cJSON_AddObjectToObject(record, "accept_map"), "file", job->options.accept_map);
    return !complete;
}

static void add_times(cJSON *record, const generate_job *job)
{
    cJSON_AddNumberToObject(record, "load_seconds", job->load_s);
    cJSON_AddNumberToObject(record, "seconds", job->run_s);
    if (job->made > 0)
        cJSON_AddNumberToObject(record, "seconds_per_image", job->run_s / (double)job->made);
    else
        cJSON_AddNullToObject(record, "seconds_per_image");
    stats_record(&job->stats, job->made, record);
    if (run_verifies_drafts(&job->options.run)) acceptance_record(&job->accepted, record);
}

int record_print_json(const generate_job *job)
{
    cJSON *record = tool_json();
    cJSON_AddStringToObject(record, "version", mar_version());
    cJSON_AddStringToObject(record, "model", job->options.run.model);
    if (run_draft(&job->options.run)) cJSON_AddStringToObject(record, "draft", run_draft(&job->options.run));
    cJSON_AddStringToObject(record, "vae", job->options.run.vae);
    cJSON_AddStringToObject(record, "backend", mar_backend_description(job->models.library));
    const mar_model_config *c = mar_model_get_config(job->models.model);
    cJSON_AddNumberToObject(record, "heads", c->heads);
    if (c->decoder_heads != c->heads) cJSON_AddNumberToObject(record, "decoder_heads", c->decoder_heads);
    params_record(&job->options.run, cJSON_AddObjectToObject(record, "parameters"));
    cJSON_AddStringToObject(record, "guarantee", mar_session_guarantee(job->session));
    add_classes(record, job);
    if (job->options.run.negative) cJSON_AddStringToObject(record, "negative", job->options.run.negative);
    if (job->options.run.positive) cJSON_AddStringToObject(record, "positive", job->options.run.positive);
    cJSON_AddNumberToObject(record, "num", job->num);
    cJSON_AddNumberToObject(record, "images", (double)job->total);
    cJSON_AddNumberToObject(record, "images_existing", (double)job->existing);
    if (job->options.store) cJSON_AddNumberToObject(record, "images_stored", (double)(job->made - job->sampled));
    cJSON_AddNumberToObject(record, "batch", job->options.batch);
    cJSON_AddNumberToObject(record, "width", job->width);
    cJSON_AddNumberToObject(record, "height", job->height);
    const int failed = add_files(record, job);
    add_times(record, job);
    if (failed) {
        cJSON_Delete(record);
        return 1;
    }
    return tool_print_json(record, 0);
}
