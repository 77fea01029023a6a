#include "tools/serve/sdapi.h"

#include "tools/cli/base64.h"
#include "tools/serve/picture.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

static const char sampler[] = "the model's own";

/* --- requests ----------------------------------------------------------------------------------------------------- */

/* Returns 1 if the value asks for nothing: null, false, 0, "", [] or {}. */
static int asks_nothing(const json_value *v)
{
    return v->type == JSON_NULL || v->type == JSON_FALSE || (v->type == JSON_STRING && v->length == 0) ||
           (v->type == JSON_NUMBER && json_double(v) == 0) ||
           ((v->type == JSON_ARRAY || v->type == JSON_OBJECT) && json_children(v) == 0);
}

static int has_name(const char *name, const char *const *names) /* NULL behind the last */
{
    while (*names && strcmp(name, *names) != 0) names++;
    return *names != NULL;
}

/* Returns 1 if the field has no effect whatever its value, which clients send with every request: numbers of the
 * samplers, of a second pass and of what is saved. */
static int is_usual(const char *name, sdapi_path path)
{
    static const char *const usual[] = {"do_not_save_grid",
                                        "do_not_save_samples",
                                        "eta",
                                        "force_task_id",
                                        "image_cfg_scale",
                                        "initial_noise_multiplier",
                                        "inpaint_full_res_padding",
                                        "override_settings_restore_afterwards",
                                        "sampler_index",
                                        "script_args",
                                        "send_images",
                                        "subseed",
                                        "use_async",
                                        NULL};
    static const char *const prefixes[] = {"firstphase_", "hr_", "s_", "seed_resize_", "subseed_"};
    for (size_t i = 0; i < sizeof prefixes / sizeof *prefixes; i++)
        if (strncmp(name, prefixes[i], strlen(prefixes[i])) == 0) return 1;
    return has_name(name, usual) || (path == SDAPI_TXT2IMG && strcmp(name, "denoising_strength") == 0);
}

static void set_field(request *r, field f, const char *name, const json_value *v)
{
    if (v->type == JSON_NULL) return;
    r->field[f] = *v;
    r->name[f] = name;
}

/* Sets a field to a text of this service. */
static void set_text(request *r, field f, const char *name, json_type type, const char *text)
{
    r->field[f] = (json_value){.text = text, .length = (uint32_t)strlen(text), .type = type, .size = 1};
    r->name[f] = name;
}

/* Reads a whole number of at least 1, `otherwise` if it is not there. Returns 0 if it is none. */
static int64_t sdapi_count(const json_value *object, const char *name, int64_t otherwise)
{
    int64_t value;
    const json_value *v = json_member(object, name);
    if (!v || v->type == JSON_NULL) return otherwise;
    return json_integer(v, &value) && value >= 1 && value <= 1 << 20 ? value : 0;
}

/* Sets n and the size. */
static int sdapi_read_shape(request *r, const json_value *object, sdapi_texts *texts, answer *a)
{
    const int64_t batch = sdapi_count(object, "batch_size", 1), batches = sdapi_count(object, "n_iter", 1);
    const int64_t width = sdapi_count(object, "width", -1), height = sdapi_count(object, "height", -1);
    const char *bad = !batch ? "batch_size" : !batches ? "n_iter" : !width ? "width" : !height ? "height" : NULL;
    if (bad) return answer_error(a, 400, bad, NULL, "%s: expected a whole number of 1 or more", bad);
    snprintf(texts->n, sizeof texts->n, "%lld", (long long)(batch * batches));
    set_text(r, FIELD_N, batches == 1 ? "batch_size" : "n_iter", JSON_NUMBER, texts->n);
    if (width < 0 && height < 0) return 0;
    if (width < 0 || height < 0)
        return answer_error(a, 400, width < 0 ? "width" : "height", NULL, "%s: is missing, expected it with %s",
                            width < 0 ? "width" : "height", width < 0 ? "height" : "width");
    snprintf(texts->size, sizeof texts->size, "%lldx%lld", (long long)width, (long long)height);
    set_text(r, FIELD_SIZE, "size", JSON_STRING, texts->size);
    return 0;
}

/* Takes the model of the settings that a request brings, and warns of others. settings NULL: none. */
static int sdapi_read_settings(request *r, const json_value *settings, answer *a)
{
    if (!settings || settings->type != JSON_OBJECT) return 0;
    const json_value *name = settings;
    for (const json_value *end = json_next(name++); name < end; name = json_next(name + 1)) {
        if (json_is(name, "sd_model_checkpoint"))
            set_field(r, FIELD_MODEL, "sd_model_checkpoint", name + 1);
        else if (!asks_nothing(name + 1) &&
                 warnings_add(r->warnings, "override_settings.%.40s: has no effect", name->text) != 0)
            return answer_no_memory(a);
    }
    return 0;
}

/* Sets a picture from base64 or a data URL, which it replaces by the bytes of the file. */
static int set_picture(request *r, field f, const char *name, const json_value *v, answer *a)
{
    const char *text = v && v->type == JSON_STRING && strlen(v->text) == v->length ? v->text : "";
    const char *data = strncmp(text, "data:", 5) == 0 ? strstr(text, ";base64,") : NULL;
    char *bytes = (char *)(data ? data + 8 : text); /* the body is the exchange's, and json_read has changed it, too */
    const int size = *bytes ? base64_read(bytes, bytes, (int)strlen(bytes)) : 0;
    if (size <= 0)
        return answer_error(a, 400, name, NULL, "%s: is no picture, expected its file in base64 or a data URL", name);
    r->field[f] = (json_value){.text = bytes, .length = (uint32_t)size, .type = JSON_STRING, .size = 1};
    r->name[f] = name;
    return 0;
}

/* Sets the picture and the mask of img2img. */
static int sdapi_read_edit(request *r, const json_value *object, answer *a)
{
    const json_value *pictures = json_member(object, "init_images"), *mask = json_member(object, "mask"),
                     *invert = json_member(object, "inpainting_mask_invert"),
                     *strength = json_member(object, "denoising_strength");
    const int is_list = pictures && pictures->type == JSON_ARRAY && json_children(pictures) == 1;
    int64_t number = invert && invert->type == JSON_TRUE;
    if (!is_list) return answer_error(a, 400, "init_images", NULL, "init_images: expected an array of one picture");
    if (!mask || mask->type == JSON_NULL)
        return answer_error(a, 400, "mask", NULL,
                            "mask: is missing, expected a picture that is white where the other is to be made anew; "
                            "these models cannot vary a whole picture, txt2img makes a new one");
    if (invert && !asks_nothing(invert) && invert->type != JSON_TRUE && (!json_integer(invert, &number) || number != 1))
        return answer_error(a, 400, "inpainting_mask_invert", NULL, "inpainting_mask_invert: expected 0 or 1");
    r->mask = number ? MASK_BLACK : MASK_WHITE;
    if (strength && strength->type != JSON_NULL && json_double(strength) != 1 &&
        warnings_add(r->warnings, "denoising_strength: has no effect, what the mask marks is made anew as with 1") != 0)
        return answer_no_memory(a);
    return set_picture(r, FIELD_IMAGE, "init_images", pictures + 1, a) || set_picture(r, FIELD_MASK, "mask", mask, a);
}

int sdapi_read(request *r, sdapi_path path, int takes_negative, const json *body, sdapi_texts *texts, answer *a)
{
    static const struct {
        const char *name;
        field field;
    } fields[] = {{"prompt", FIELD_PROMPT},
                  {"negative_prompt", FIELD_NEGATIVE_PROMPT},
                  {"seed", FIELD_SEED},
                  {"cfg_scale", FIELD_CFG},
                  {"steps", FIELD_STEPS}};
    static const char *const shapes[] = {"batch_size", "n_iter", "width", "height", "override_settings", NULL};
    static const char *const edits[] = {"init_images", "mask", "inpainting_mask_invert", "denoising_strength", NULL};
    const json_value *name = body->values, *object = name;
    if (object->type != JSON_OBJECT)
        return answer_error(a, 400, NULL, NULL, "the body is no JSON object, expected {\"prompt\": ...}");
    for (const json_value *end = json_next(name++); name < end; name = json_next(name + 1)) {
        size_t i = 0;
        while (i < sizeof fields / sizeof *fields && !json_is(name, fields[i].name)) i++;
        const int is_read = has_name(name->text, shapes) || (path == SDAPI_IMG2IMG && has_name(name->text, edits));
        if (i < sizeof fields / sizeof *fields)
            set_field(r, fields[i].field, fields[i].name, name + 1);
        else if (!is_read && !is_usual(name->text, path) && !asks_nothing(name + 1) &&
                 warnings_add(r->warnings, "%.40s: has no effect", name->text) != 0)
            return answer_no_memory(a);
    }
    int64_t seed;
    if (json_integer(&r->field[FIELD_SEED], &seed) && seed < 0) r->field[FIELD_SEED] = (json_value){.size = 0};
    if (asks_nothing(&r->field[FIELD_STEPS])) r->field[FIELD_STEPS] = (json_value){.size = 0};
    json_value *negative = &r->field[FIELD_NEGATIVE_PROMPT];
    const int is_lost = !takes_negative && !asks_nothing(negative);
    if (is_lost || asks_nothing(negative)) *negative = (json_value){.size = 0};
    if (is_lost && warnings_add(r->warnings, "negative_prompt: has no effect, the model has none") != 0)
        return answer_no_memory(a);
    return sdapi_read_settings(r, json_member(object, "override_settings"), a) ||
           sdapi_read_shape(r, object, texts, a) || (path == SDAPI_IMG2IMG && sdapi_read_edit(r, object, a));
}

/* --- answers ------------------------------------------------------------------------------------------------------ */

/* Writes the object that is the text of `info`. */
static void write_info(const service *s, const job *j, const warnings *w, FILE *out)
{
    fputs("{\"prompt\": ", out);
    json_string(out, j->spec.text ? j->spec.text : "");
    fputs(", \"negative_prompt\": ", out);
    json_string(out, j->spec.negative ? j->spec.negative : "");
    fprintf(out, ", \"seed\": %" PRIu64 ", \"all_seeds\": [", j->spec.seed);
    for (int i = 0; i < j->spec.n; i++) fprintf(out, "%s%" PRIu64, i ? ", " : "", j->spec.seed);
    fputs("], \"images\": [", out); /* their numbers: pictures of one seed */
    for (int i = 0; i < j->spec.n; i++) fprintf(out, "%s%d", i ? ", " : "", i);
    fprintf(out, "], \"width\": %d, \"height\": %d, \"batch_size\": %d, \"steps\": %d, \"sampler_name\": ", s->width,
            s->height, j->spec.n, s->options.run.used.num_iter);
    json_string(out, sampler);
    fputs(", \"cfg_scale\": ", out);
    json_float(out, j->spec.cfg);
    fputs(", \"sd_model_name\": ", out);
    json_string(out, s->name);
    warnings_write(w, out);
    putc('}', out);
}

int sdapi_write_images(service *s, job *j, const warnings *w, FILE *out)
{
    text_buffer info;
    fputs("{\"images\": [", out);
    for (int i = 0; i < j->spec.n; i++) {
        if (i) fputs(", ", out);
        if (picture_write_base64(s, j, i, out) != 0) return 1;
    }
    FILE *text = text_open(&info);
    if (!text) return 1;
    write_info(s, j, w, text);
    if (text_close(text, &info) != 0) return 1;
    fputs("], \"parameters\": {}, \"info\": ", out);
    json_string(out, info.data);
    fputs("}\n", out);
    free(info.data);
    return 0;
}

void sdapi_write_options(const service *s, FILE *out)
{
    fputs("{\"sd_model_checkpoint\": ", out);
    json_string(out, s->name);
    fputs(", \"samples_format\": \"png\"}\n", out);
}

void sdapi_write_models(const service *s, FILE *out)
{
    fputs("[{\"title\": ", out);
    json_string(out, s->name);
    fputs(", \"model_name\": ", out);
    json_string(out, s->name);
    fputs(", \"hash\": null, \"sha256\": null, \"filename\": ", out);
    json_string(out, s->name);
    fputs(", \"config\": null}]\n", out);
}

void sdapi_write_samplers(FILE *out)
{
    fputs("[{\"name\": ", out);
    json_string(out, sampler);
    fputs(", \"aliases\": [], \"options\": {}}]\n", out);
}

void sdapi_write_scripts(FILE *out)
{
    fputs("{\"txt2img\": [], \"img2img\": []}\n", out);
}

void sdapi_write_progress(service *s, const client_key *client, FILE *out)
{
    client_progress p;
    jobs_client_progress(&s->jobs, client, &p);
    fprintf(
        out,
        "{\"progress\": %.4f, \"eta_relative\": %.1f, \"state\": {\"skipped\": false, \"interrupted\": false, \"job\": "
        "\"\", \"job_count\": %d, \"job_timestamp\": \"0\", \"job_no\": 0, \"sampling_step\": %d, \"sampling_steps\": "
        "%d}, \"current_image\": null, \"textinfo\": null}\n",
        p.images ? p.done / p.images : 0, p.seconds, p.jobs, p.step, p.steps);
}
