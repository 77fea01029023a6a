#include "tools/serve/request.h"

#include "mar_methods.h"

#include "base/printable.h"
#include "tools/cli/command.h"
#include "tools/cli/file.h"
#include "tools/cli/file_sum.h"
#include "tools/cli/suggest.h"
#include "tools/cli/text.h"
#include "tools/generate/classes.h"
#include "tools/serve/picture.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

static const struct {
    const char *name;
    int is_text; /* 1: a string or bytes; 0: a number or a boolean */
} known_fields[FIELDS] = {[FIELD_PROMPT] = {"prompt", 1},
                          [FIELD_N] = {"n", 0},
                          [FIELD_SIZE] = {"size", 1},
                          [FIELD_RESPONSE_FORMAT] = {"response_format", 1},
                          [FIELD_SEED] = {"seed", 0},
                          [FIELD_CFG] = {"cfg", 0},
                          [FIELD_MODEL] = {"model", 1},
                          [FIELD_OUTPUT_FORMAT] = {"output_format", 1},
                          [FIELD_STREAM] = {"stream", 0},
                          [FIELD_IMAGE] = {"image", 1},
                          [FIELD_MASK] = {"mask", 1},
                          [FIELD_NEGATIVE_PROMPT] = {"negative_prompt", 1},
                          [FIELD_STEPS] = {"num_inference_steps", 0},
                          [FIELD_OUTPUT_COMPRESSION] = {"output_compression", 0},
                          [FIELD_PARTIAL_IMAGES] = {"partial_images", 0}};

/* Other names of fields: curl's and OpenAI's forms, vLLM-Omni, stable-diffusion.cpp. */
static const struct {
    const char *name;
    field field;
} aliases[] = {
    {"image[]", FIELD_IMAGE}, {"guidance_scale", FIELD_CFG}, {"cfg_scale", FIELD_CFG}, {"steps", FIELD_STEPS}};

/* Fields of OpenAI's that have no effect here, with the values that ask for what is so anyway. */
static const struct {
    const char *name, *usual[3];
} without_effect[] = {
    {"background", {"auto", "opaque"}}, {"input_fidelity", {NULL}}, {"moderation", {"auto"}}, {"quality", {"auto"}},
    {"safety_identifier", {NULL}},      {"style", {NULL}},          {"user", {NULL}}};
enum { WITHOUT_EFFECT = sizeof without_effect / sizeof *without_effect, ALIASES = sizeof aliases / sizeof *aliases };

/* --- reading ------------------------------------------------------------------------------------------------------ */

/* Refuses an unknown field, or warns of it. Returns 1 with the error in *a. */
static int request_take_unknown(const request *r, const char *name, answer *a)
{
    if (!r->is_strict && r->warnings->count >= WARNINGS_MAX) return r->warnings->count++, 0; /* a body has many */
    const char *names[FIELDS + ALIASES + WITHOUT_EFFECT + 1] = {0};
    char list[256], shown[41];
    const size_t n = strnlen(name, sizeof shown - 1);
    memcpy(shown, name, n);
    shown[printable_whole(shown, n)] = '\0';
    for (int f = 0; f < FIELDS; f++) names[f] = known_fields[f].name;
    for (int i = 0; i < ALIASES; i++) names[FIELDS + i] = aliases[i].name;
    for (int i = 0; i < WITHOUT_EFFECT; i++) names[FIELDS + ALIASES + i] = without_effect[i].name;
    const char *nearest = suggest_nearest(shown, names);
    names[FIELDS] = NULL; /* enough for a list */
    if (!r->is_strict) {
        const int failed = warnings_add(r->warnings, "%s: has no effect, it is no field of a request%s%s%s", shown,
                                        nearest ? ", did you mean " : "", nearest ? nearest : "", nearest ? "?" : "");
        return failed ? answer_no_memory(a) : 0;
    }
    if (nearest)
        return answer_error(a, 400, shown, NULL, "%s: is no field of a request, did you mean %s?", shown, nearest);
    return answer_error(a, 400, shown, NULL, "%s: is no field of a request, expected %s", shown,
                        text_list(names, list, sizeof list));
}

/* Warns of a field without effect, unless its text asks for what is so anyway. text NULL: no text. */
static int request_take_unused(const request *r, int i, const char *text, answer *a)
{
    for (int j = 0; text && j < 3 && without_effect[i].usual[j]; j++)
        if (strcmp(text, without_effect[i].usual[j]) == 0) return 0;
    return warnings_add(r->warnings, "%s: has no effect", without_effect[i].name) ? answer_no_memory(a) : 0;
}

/* Returns 1 if requests have a field of that name. */
static int request_is_known(const char *name)
{
    for (int f = 0; f < FIELDS; f++)
        if (strcmp(known_fields[f].name, name) == 0) return 1;
    for (int i = 0; i < ALIASES; i++)
        if (strcmp(aliases[i].name, name) == 0) return 1;
    for (int i = 0; i < WITHOUT_EFFECT; i++)
        if (strcmp(without_effect[i].name, name) == 0) return 1;
    return 0;
}

/* Finds the field of that name, *found, and notes the name; FIELDS for one without effect. `text`: its value, NULL: no
 * text. Returns 0, or 1 with the error in *a for a name that is refused, and for a field that is given already. */
static int find_field(request *r, const char *name, const char *text, field *found, answer *a)
{
    int f = 0, alias = 0;
    while (f < FIELDS && strcmp(known_fields[f].name, name) != 0) f++;
    while (f == FIELDS && alias < ALIASES && strcmp(aliases[alias].name, name) != 0) alias++;
    if (f == FIELDS && alias < ALIASES) f = aliases[alias].field;
    *found = (field)f;
    for (int i = 0; f == FIELDS && i < WITHOUT_EFFECT; i++)
        if (strcmp(without_effect[i].name, name) == 0) return request_take_unused(r, i, text, a);
    if (f == FIELDS) return request_take_unknown(r, name, a);
    if (r->field[f].size > 0 && strcmp(r->name[f], name) != 0) /* a value has 1 at least */
        return answer_error(a, 400, name, NULL, "%s: is also given as %s, expected one of them", name, r->name[f]);
    if (r->field[f].size > 0)
        return answer_error(a, 400, name, NULL, "%s: is given more than once, expected once", name);
    r->name[f] = strcmp(known_fields[f].name, name) == 0 ? known_fields[f].name : aliases[alias].name;
    return 0;
}

int request_set(request *r, const char *name, char *text, size_t size, answer *a)
{
    field f;
    json read;
    if (find_field(r, name, text, &f, a) != 0) return 1;
    if (f == FIELDS) return 0;
    if (known_fields[f].is_text) {
        r->field[f] = (json_value){.text = text, .length = (uint32_t)size, .type = JSON_STRING, .size = 1};
        return 0;
    }
    const json_error error = json_read(text, size, 0, &read);
    if (error == JSON_NO_MEMORY) return answer_no_memory(a);
    if (error != JSON_OK) /* a string, so that the message is that of a value of another kind */
        r->field[f] = (json_value){.text = text, .length = (uint32_t)size, .type = JSON_STRING, .size = 1};
    else
        r->field[f] = read.values[0];
    json_free(&read);
    return 0;
}

int request_read(request *r, const json *body, answer *a)
{
    field f;
    const json_value *name = body->values;
    if (name->type != JSON_OBJECT)
        return answer_error(a, 400, NULL, NULL, "the body is no JSON object, expected {\"prompt\": ...}");
    for (const json_value *end = json_next(name++); name < end; name = json_next(name + 1)) {
        if (strlen(name->text) != name->length)
            return answer_error(a, 400, NULL, NULL, "the name of a field has a NUL character");
        const char *text = name[1].type == JSON_STRING ? name[1].text : NULL;
        if (name[1].type == JSON_NULL && (request_is_known(name->text) || !r->is_strict))
            continue; /* as if not there */
        if (find_field(r, name->text, text, &f, a) != 0) return 1;
        if (f == FIELD_IMAGE || f == FIELD_MASK)
            return answer_error(a, 400, name->text, NULL,
                                "%s: is a picture, expected it in a form "
                                "(multipart/form-data)",
                                name->text);
        if (f < FIELDS) r->field[f] = name[1];
    }
    return 0;
}

static const char *request_name(const request *r, field f)
{
    return r->name[f] ? r->name[f] : known_fields[f].name;
}

static int request_refuse(const request *r, answer *a, field f, const char *found, const char *expected)
{
    const char *name = request_name(r, f);
    return answer_error(a, 400, name, NULL, "%s: %s, expected %s", name, found, expected);
}

static int request_is_given(const request *r, field f)
{
    return r->field[f].type != JSON_NULL;
}

/* Returns the field's text, or `otherwise` if it is not given. Returns NULL with the error in *a. */
static const char *request_text_of(const request *r, field f, const char *otherwise, const char *expected, answer *a)
{
    const json_value *v = &r->field[f];
    if (v->type == JSON_NULL) return otherwise;
    if (v->type != JSON_STRING) {
        request_refuse(r, a, f, "is no string", expected);
        return NULL;
    }
    if (strlen(v->text) == v->length) return v->text;
    request_refuse(r, a, f, "has a NUL character", expected);
    return NULL;
}

/* Returns 0, or 1 with the error in *a. */
static int integer_of(const request *r, field f, int64_t least, int64_t most, int64_t *out, answer *a)
{
    char expected[80];
    snprintf(expected, sizeof expected, "an integer from %lld to %lld", (long long)least, (long long)most);
    if (!request_is_given(r, f)) return 0;
    if (r->field[f].type != JSON_NUMBER) return request_refuse(r, a, f, "is no number", expected);
    int64_t value;
    if (!json_integer(&r->field[f], &value)) return request_refuse(r, a, f, "is no integer, or too large", expected);
    if (value < least || value > most) return request_refuse(r, a, f, "is out of range", expected);
    *out = value;
    return 0;
}

/* --- fields ------------------------------------------------------------------------------------------------------- */

/* The largest integer that JSON's readers keep exactly. */
static const int64_t seed_max = ((int64_t)1 << 53) - 1;

static int read_seed(const request *r, job_spec *out, answer *a)
{
    int64_t seed = -1;
    uint64_t random;
    if (integer_of(r, FIELD_SEED, 0, seed_max, &seed, a) != 0) return 1;
    if (seed < 0 && getrandom(&random, sizeof random, 0) != (ssize_t)sizeof random)
        return answer_error(a, 503, NULL, NULL, "the system has no random numbers yet");
    out->seed = seed < 0 ? random & (uint64_t)seed_max : (uint64_t)seed;
    return 0;
}

static int read_cfg(const service *s, const request *r, job_spec *out, answer *a)
{
    const mar_param *p = run_option("cfg");
    char expected[128];
    out->cfg = s->options.run.used.cfg;
    if (!request_is_given(r, FIELD_CFG)) return 0;
    snprintf(expected, sizeof expected, "a number from 0 to %g", p->max);
    const double cfg = json_double(&r->field[FIELD_CFG]);
    if (isnan(cfg)) return request_refuse(r, a, FIELD_CFG, "is no number", expected);
    if (cfg < 0 || cfg > p->max) return request_refuse(r, a, FIELD_CFG, "is out of range", expected);
    out->cfg = (float)cfg;
    return 0;
}

/* Writes what a prompt may be. */
static void describe_prompt(const service *s, char *text, size_t size)
{
    const class_choices *c = &s->models.classes;
    char name[CLASS_NAME_MAX + 2];
    if (s->takes_text)
        snprintf(text, size, "what the picture shows");
    else if (s->models.captions)
        snprintf(text, size, "the number of a caption of --captions, from 0 to %d", c->count - 1);
    else if (c->names)
        snprintf(text, size, "a class, a number from 0 to %d or a name such as %s", c->count - 1,
                 class_name(c->names, class_example(c->names), name, sizeof name));
    else
        snprintf(text, size, "a class, a number from 0 to %d", c->count - 1);
}

/* Copies a prompt of a text-to-image model. */
static int request_copy_text(const prompt_encoder *e, field f, const char *text, char **out, answer *a)
{
    char why[128];
    const int is_cleaned = !e->is_decoder && e->clean == MAR_CLEAN_LLAMAGEN;
    const char *fault = prompts_fault(is_cleaned, text, why, sizeof why), *name = known_fields[f].name;
    if (fault) return answer_error(a, 400, name, NULL, "%s: %s", name, fault);
    *out = strdup(text);
    return *out ? 0 : answer_no_memory(a);
}

static int request_read_negative(const service *s, const request *r, job_spec *out, answer *a)
{
    if (!request_is_given(r, FIELD_NEGATIVE_PROMPT)) return 0;
    if (!s->takes_negative)
        return answer_error(a, 400, "negative_prompt", NULL,
                            "negative_prompt: has no effect: %.200s has no negative prompt%s", s->name,
                            s->models.captions ? " with --captions" : "");
    const char *text = request_text_of(r, FIELD_NEGATIVE_PROMPT, NULL, "what the picture is guided away from", a);
    if (text && !*text) return 0; /* as clients send it that have none */
    return text ? request_copy_text(&s->files.encoder_kept, FIELD_NEGATIVE_PROMPT, text, &out->negative, a) : 1;
}

/* Reads a class as --class takes it, or the number of a caption, or a prompt. */
static int read_prompt(const service *s, const request *r, job_spec *out, answer *a)
{
    char why[1536], expected[256];
    int *labels, count;
    describe_prompt(s, expected, sizeof expected);
    if (!request_is_given(r, FIELD_PROMPT)) return request_refuse(r, a, FIELD_PROMPT, "is missing", expected);
    const char *prompt = request_text_of(r, FIELD_PROMPT, NULL, expected, a);
    if (!prompt) return 1;
    if (s->takes_text) return request_copy_text(&s->files.encoder_kept, FIELD_PROMPT, prompt, &out->text, a);
    errno = 0;
    if (classes_parse(prompt, &s->models.classes, &labels, &count, why, sizeof why) != 0)
        return errno == ENOMEM ? answer_no_memory(a) : answer_error(a, 400, "prompt", NULL, "prompt: %s", why);
    out->label = labels[0];
    free(labels);
    snprintf(why, sizeof why, "names %d classes", count);
    return count == 1 ? 0 : request_refuse(r, a, FIELD_PROMPT, why, expected);
}

static int request_check_size(const service *s, const request *r, answer *a)
{
    char own[32], expected[80];
    snprintf(own, sizeof own, "%dx%d", s->width, s->height);
    snprintf(expected, sizeof expected, "%s, the model's, or auto", own);
    const char *size = request_text_of(r, FIELD_SIZE, "auto", expected, a);
    if (!size) return 1;
    if (strcmp(size, "auto") == 0 || strcmp(size, own) == 0) return 0;
    if (!s->options.accept_any_size)
        return answer_error(a, 400, "size", NULL, "size: is %.40s, expected %s", size, expected);
    return warnings_add(r->warnings, "size: has no effect, images are %s", own) ? answer_no_memory(a) : 0;
}

int request_check_model(const service *s, const request *r, answer *a)
{
    const char *model = request_text_of(r, FIELD_MODEL, "", s->name, a);
    if (!model) return 1;
    if (!*model || strcmp(model, s->name) == 0 || strcmp(model, tool_base_name(s->options.run.model)) == 0) return 0;
    if (s->options.accept_any_model)
        return warnings_add(r->warnings, "model: has no effect, %.200s makes the images", s->name) ? answer_no_memory(a)
                                                                                                   : 0;
    return answer_error(a, 404, "model", "model_not_found", "model: %.200s is not served, expected %.200s or none",
                        model, s->name);
}

/* Reads the file format of the pictures. */
static int read_format(const request *r, job_spec *out, answer *a)
{
    static const char expected[] = "png, jpeg or webp";
    int64_t compression = 100; /* OpenAI's */
    const char *name = request_text_of(r, FIELD_OUTPUT_FORMAT, "png", expected, a);
    if (!name || integer_of(r, FIELD_OUTPUT_COMPRESSION, 0, 100, &compression, a) != 0) return 1;
    while (out->format < IMAGE_FORMATS && strcmp(picture_format_name(out->format), name) != 0) out->format++;
    if (out->format == IMAGE_FORMATS)
        return answer_error(a, 400, "output_format", NULL, "output_format: is %.40s, expected %s", name, expected);
    const char *lacks = image_format_lacks(out->format);
    if (lacks) return answer_error(a, 400, "output_format", NULL, "output_format: %s", lacks);
    out->quality = compression < 1 ? 1 : (int)compression;
    if (out->format == IMAGE_PNG && request_is_given(r, FIELD_OUTPUT_COMPRESSION) &&
        warnings_add(r->warnings, "output_compression: has no effect on png") != 0)
        return answer_no_memory(a);
    return 0;
}

static int read_manner(const request *r, request_manner *out, answer *a)
{
    static const char formats[] = "b64_json or url";
    int64_t partials = 0;
    const char *format = request_text_of(r, FIELD_RESPONSE_FORMAT, "b64_json", formats, a);
    if (!format) return 1;
    out->wants_url = strcmp(format, "url") == 0;
    if (!out->wants_url && strcmp(format, "b64_json") != 0)
        return answer_error(a, 400, "response_format", NULL, "response_format: is %.40s, expected %s", format, formats);
    const json_type stream = r->field[FIELD_STREAM].type;
    if (request_is_given(r, FIELD_STREAM) && stream != JSON_FALSE && stream != JSON_TRUE)
        return request_refuse(r, a, FIELD_STREAM, "is no boolean", "true or false");
    out->streams = stream == JSON_TRUE;
    if (out->streams && out->wants_url)
        return answer_error(a, 400, "response_format", NULL, "response_format: is url, expected b64_json with stream");
    if (integer_of(r, FIELD_PARTIAL_IMAGES, 0, PARTIALS_MAX, &partials, a) != 0) return 1;
    out->partials = (int)partials;
    out->is_chosen = request_is_given(r, FIELD_RESPONSE_FORMAT) || out->streams;
    if (partials > 0 && !out->streams && warnings_add(r->warnings, "partial_images: has no effect without stream") != 0)
        return answer_no_memory(a);
    return 0;
}

/* Checks a number of steps, which are the service's own. */
static int check_steps(const service *s, const request *r, answer *a)
{
    const mar_params *used = &s->options.run.used;
    int64_t steps = used->num_iter;
    if (integer_of(r, FIELD_STEPS, 1, 1 << 20, &steps, a) != 0) return 1;
    if (steps == used->num_iter || steps == used->num_sampling_steps) return 0;
    char of[32] = "";
    if (used->num_sampling_steps > 0) snprintf(of, sizeof of, " of %d", used->num_sampling_steps);
    return warnings_add(r->warnings, "%s: has no effect, images take %d steps%s", request_name(r, FIELD_STEPS),
                        used->num_iter, of)
               ? answer_no_memory(a)
               : 0;
}

/* Decodes the picture and the mask of an edit, and makes room for the picture's tokens. */
static int read_edit(const service *s, const request *r, job_spec *out, answer *a)
{
    const mar_model_config *c = mar_model_get_config(s->models.model);
    const size_t pixels = (size_t)s->width * (size_t)s->height * 3, positions = (size_t)c->seq_len,
                 tokens = positions * (size_t)c->token_dim * sizeof *out->tokens;
    if (edit_read(s, &r->field[FIELD_IMAGE], request_name(r, FIELD_IMAGE), &r->field[FIELD_MASK], r->mask, out, a) != 0)
        return 1;
    out->is_edit = 1;
    out->positions = c->seq_len;
    out->picture_sum = memory_sum(out->picture, pixels);
    out->tokens = malloc(tokens);
    out->bytes = pixels + tokens + positions;
    return out->tokens ? 0 : answer_no_memory(a);
}

int request_resolve(const service *s, const request *r, int is_edit, job_spec *out, request_manner *manner, answer *a)
{
    int64_t n = 1;
    *out = (job_spec){.label = -1};
    if (request_check_model(s, r, a) != 0 || integer_of(r, FIELD_N, 1, JOB_IMAGES_MAX, &n, a) != 0 ||
        request_check_size(s, r, a) != 0 || read_manner(r, manner, a) != 0 || read_format(r, out, a) != 0 ||
        read_seed(r, out, a) != 0 || check_steps(s, r, a) != 0 || read_cfg(s, r, out, a) != 0 ||
        read_prompt(s, r, out, a) != 0)
        return 1;
    out->n = (int)n;
    if (request_read_negative(s, r, out, a) != 0 || (is_edit && read_edit(s, r, out, a) != 0)) {
        jobs_free_spec(out);
        return 1;
    }
    out->bytes += jobs_text_bytes(out);
    return 0;
}
