#include "tools/generate/like.h"

#include "mar_methods.h"

#include "base/printable.h"
#include "tools/cli/command.h"
#include "tools/generate/record.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* --- the text ----------------------------------------------------------------------------------------------------- */

/* Returns the text of that key; NULL if there is none. */
static const char *like_text_of(const image_file *file, const char *key)
{
    for (int i = 0; i < file->count; i++)
        if (strcmp(file->texts[i].key, key) == 0) return file->texts[i].value;
    return NULL;
}

/* Returns the number of the image; -1 if the text is not a number. */
static long image_number(const char *text)
{
    const size_t n = strspn(text, "0123456789");
    return n > 0 && n <= 6 && !text[n] ? strtol(text, NULL, 10) : -1;
}

/* Checks that the class is a number or none: a list could name a file. */
static int check_class(const char *path, const char *text)
{
    if (strcmp(text, "none") == 0 || (*text && !text[strspn(text, "0123456789")])) return 0;
    return tool_error("%s: its class is %s, expected a number or none", path, text);
}

/* Checks that the file is one image with the text of mar. Returns 0, or 1 with the error printed. */
static int check_texts(const char *path, const image_file *file)
{
    static const char *const needed[] = {"Software", "image", "seed", "model", "arithmetic"};
    const char *title = like_text_of(file, "Title"), *number = like_text_of(file, "image"),
               *software = like_text_of(file, "Software");
    for (size_t i = 0; i < sizeof needed / sizeof *needed; i++)
        if (!like_text_of(file, needed[i]) || (!like_text_of(file, "class") && !like_text_of(file, "prompt")) ||
            strncmp(software, "libmar ", 7) != 0)
            return tool_error("%s: has no text of mar generate, expected an image as it wrote it", path);
    const char *edited = like_text_of(file, "edited"); /* mar edit and mar serve */
    if (edited)
        return tool_error("%s: is an edited picture (%s), expected an image that mar generate makes", path, edited);
    if (title) return tool_error("%s: is a map (%s), expected an image", path, title);
    if (image_number(number) >= 0)
        return like_text_of(file, "class") ? check_class(path, like_text_of(file, "class")) : 0;
    return tool_error(strchr(number, '-')
                          ? "%s: is a grid of the images %s, expected one image; --out DIR keeps them apart"
                          : "%s: its image number is %s, expected 0 to 999999",
                      path, number);
}

/* --- options ------------------------------------------------------------------------------------------------------ */

static int like_is_given(const option_set *set, const char *name)
{
    return options_find(set, name)->given;
}

/* Sets an option that was not given from a text. NULL: no text, nothing to set. Returns 0, or 1 with the error
 * printed. */
static int set_option(const generate_options *o, const option_set *set, const char *name, const char *text)
{
    char why[1024];
    const option *q = options_find(set, name);
    if (!text || q->given || mar_param_set(q->param, q->fields, text, why, sizeof why) == MAR_OK) return 0;
    return tool_error("%s: its text: %s", o->like, why);
}

/* Sets the parameters of the session. Files are set by set_file. */
static int set_params(const generate_options *o, const option_set *set)
{
    for (int i = 0; i < mar_param_count(); i++) {
        const mar_param *p = mar_param_get(i);
        if (strcmp(p->name, "round_costs") == 0 && /* those of its drafts */
            (like_is_given(set, "window") || like_is_given(set, "gamma") || like_is_given(set, "tree")))
            continue;
        if (strcmp(p->name, "head_costs") == 0 && like_is_given(set, "head_spec")) continue;
        if (p->type != MAR_TYPE_MODEL && set_option(o, set, p->name, like_text_of(o->like_file, p->name)) != 0)
            return 1;
    }
    return 0;
}

/* Sets the options that choose backend and arithmetic. An arithmetic that was given takes the place of the image's. */
static int set_machine(const generate_options *o, const option_set *set)
{
    static const char *const names[] = {"backend", "dtype", "head_dtype", "int8_below"};
    const int used = like_is_given(set, "dtype") ? 1 : like_is_given(set, "head_dtype") ? 2 : 4;
    for (int i = 0; i < used; i++)
        if (set_option(o, set, names[i], like_text_of(o->like_file, names[i])) != 0) return 1;
    return 0;
}

/* Sets the file of an option to the one that the text names: built in, or here. Returns 0, or 1 with the error
 * printed. */
static int set_file(const generate_options *o, const option_set *set, const char *name, const char **field)
{
    const char *file = like_text_of(o->like_file, name);
    if (!file || like_is_given(set, name) || (strcmp(name, "draft") == 0 && strcmp(file, "self") == 0)) return 0;
    if (!run_is_built_in(file) && access(file, F_OK) != 0)
        return tool_error("%s: its %s is %s, which is not here, expected --%s with its place", o->like,
                          strcmp(name, "vae") == 0  ? "image decoder"
                          : strcmp(name, "t5") == 0 ? "text encoder"
                                                    : name,
                          file, strcmp(name, "t5") == 0 ? options_alias(name) : name);
    *field = file;
    return 0;
}

/* Sets the model files, and how the model is read unless --model names another. */
static int set_files(generate_options *o, const option_set *set)
{
    static const char *const about[] = {"heads", "seq_len", "patch_size", "weights", "size"};
    const char *model = like_text_of(o->like_file, "model"), *vae = like_text_of(o->like_file, "vae");
    if (set_file(o, set, "model", &o->run.model) != 0) return 1;
    const int is_same = strcmp(tool_base_name(o->run.model), model) == 0;
    const int is_own = vae && strcmp(vae, model) == 0; /* in the model's file or folder */
    const int brings_vae = is_own || run_is_demo(o->run.model) || (!is_same && run_is_demo(model));
    if (!brings_vae && set_file(o, set, "vae", &o->run.vae) != 0) return 1;
    if (set_file(o, set, "draft", &o->run.draft) != 0 || set_file(o, set, "captions", &o->run.captions) != 0) return 1;
    for (size_t i = 0; i < sizeof about / sizeof *about && is_same && !run_is_built_in(model); i++)
        if (set_option(o, set, about[i], like_text_of(o->like_file, about[i])) != 0) return 1;
    return 0;
}

/* Sets the prompt, and how it is encoded. */
static int set_prompt(generate_options *o, const option_set *set)
{
    const char *prompt = like_text_of(o->like_file, "prompt");
    if (!prompt || like_text_of(o->like_file, "class") || o->run.captions) return 0;
    if (!run_has_prompts(&o->run)) o->run.prompt[o->run.prompt_count++] = prompt;
    return set_file(o, set, "t5", &o->run.t5) || set_option(o, set, "clean", like_text_of(o->like_file, "clean")) ||
           set_option(o, set, "negative", like_text_of(o->like_file, "negative")) ||
           set_option(o, set, "positive", like_text_of(o->like_file, "positive"));
}

/* Returns whether an option was given that makes another image, or makes it by another arithmetic. */
static int makes_another(const option_set *set)
{
    static const char *const of_command[] = {"class", "num",   "fast",     "prompt",  "prompts",
                                             "t5",    "clean", "negative", "positive"};
    for (size_t i = 0; i < sizeof of_command / sizeof *of_command; i++)
        if (like_is_given(set, of_command[i])) return 1;
    for (int i = 0; i < mar_param_count(); i++)
        if (mar_param_get(i)->type != MAR_TYPE_MODEL && like_is_given(set, mar_param_get(i)->name)) return 1;
    for (int i = 0; i < mar_option_count(); i++)
        if (strcmp(mar_option_get(i)->name, "threads") != 0 && like_is_given(set, mar_option_get(i)->name)) return 1;
    return 0;
}

int like_take(generate_options *o, const option_set *set)
{
    static const char *const names[LIKE_FILES] = {"model", "vae", "draft", "captions"};
    if (!o->like) return 0;
    const int format = image_format_of(o->like);
    if (format >= 0 && format != IMAGE_PNG)
        return tool_error("--like %s: %s has no text to read, expected a PNG", o->like,
                          image_format_name((image_format)format));
    o->like_file = calloc(1, sizeof *o->like_file);
    if (!o->like_file) return tool_error("%s: out of memory", o->like);
    if (image_read_texts(o->like, o->like_file) != 0 || check_texts(o->like, o->like_file) != 0) return 1;
    o->first = image_number(like_text_of(o->like_file, "image"));
    o->like_differs = makes_another(set);
    for (int i = 0; i < LIKE_FILES; i++) o->like_given[i] = like_is_given(set, names[i]);
    if (!o->classes) o->classes = like_text_of(o->like_file, "class");
    return set_params(o, set) || set_machine(o, set) || set_files(o, set) || set_prompt(o, set);
}

void like_free(generate_options *o)
{
    if (o->like_file) image_file_free(o->like_file);
    free(o->like_file);
    o->like_file = NULL;
}

/* --- the check ---------------------------------------------------------------------------------------------------- */

/* Compares a model file with the image's, by its bytes, or a built-in one by its name. *other is set if they differ.
 * Returns 0; 1 with the error printed if they differ and the file was not given. */
static int like_check_file(const generate_options *o, const char *name, const char *key, int given, const char *path,
                           const char *id, int *other)
{
    char shown[4096];
    const char *file = like_text_of(o->like_file, name), *file_id = like_text_of(o->like_file, key);
    if (!file || !path || strcmp(file, "self") == 0) {
        *other |= given;
        return 0;
    }
    if (*id ? file_id && strcmp(file_id, id) == 0 : !file_id && strcmp(file, tool_base_name(path)) == 0) return 0;
    *other = 1;
    if (!given)
        return tool_error("%s: has other bytes than the %s of %s (%s), expected --%s with its place", path, file,
                          o->like, file_id ? file_id : "built in", name);
    if (!o->quiet)
        fprintf(stderr, "mar: warning: --%s: is not the file of %s\n", name, printable(o->like, shown, sizeof shown));
    return 0;
}

static int check_text(const generate_options *o, const char *key, const char *ours)
{
    const char *found = like_text_of(o->like_file, key);
    if (strcmp(found, ours) == 0) return 0;
    return tool_error("%s: was made by %s, expected %s: --like alone makes the same bits; with another option, such as "
                      "--dtype auto, it makes the image anew",
                      o->like, found, ours);
}

/* Checks that the T5 makes the same of the prompt. */
static int check_features(const generate_job *job)
{
    const captions *c = job->models.captions;
    const char *found = like_text_of(job->options.like_file, "features");
    char ours[32];
    if (!found || !c || !c->encoded) return 0;
    snprintf(ours, sizeof ours, "%016" PRIx64, captions_sum(c, 0));
    if (strcmp(found, ours) == 0) return 0;
    return tool_error("%s: encodes the prompt of %s otherwise, expected --%s", job->options.run.t5, job->options.like,
                      mar_model_get_config(job->models.model)->conditioning == MAR_CONDITION_IDS
                          ? "text with the same tokenizer"
                          : "t5 with the same T5");
}

int like_check(const generate_job *job)
{
    const generate_options *o = &job->options;
    const record_ids *ids = &job->models.ids;
    record_texts ours = {0};
    int other = o->like_differs;
    if (!o->like) return 0;
    if (like_check_file(o, "model", "model_id", o->like_given[0], o->run.model, ids->model, &other) != 0 ||
        like_check_file(o, "vae", "vae_id", o->like_given[1], o->run.vae, ids->vae, &other) != 0 ||
        like_check_file(o, "draft", "draft_id", o->like_given[2], o->run.draft, ids->draft, &other) != 0 ||
        like_check_file(o, "captions", "captions_id", o->like_given[3], o->run.captions, ids->captions, &other) != 0)
        return 1;
    if (other) return 0;
    record_texts_add(&ours, "Software", "libmar %s", mar_version());
    record_texts_add_arithmetic(&ours, job->models.library);
    if (record_texts_end(&ours, "the text of an image") != 0) return 1;
    const int failed =
        check_text(o, "Software", ours.texts[0].value) || check_text(o, "arithmetic", ours.texts[1].value);
    record_texts_free(&ours);
    return failed || check_features(job);
}
