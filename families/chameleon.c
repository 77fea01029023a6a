/* Families of Chameleon's kind (2405.09818): Lumina-mGPT (2408.02657), Anole (2407.06135), and the demo of prompts.
 * Their image tokens have names, "IMGIMG", the number's digits as letters A to J, and "Z" (inference/vocab.py). */
#include "families/language.h"

#include <stdio.h>
#include <string.h>

/* --- image tokens ------------------------------------------------------------------------------------------------- */

static int64_t chameleon_number(const char *name)
{
    static const char start[] = "IMGIMG";
    const char *at = name + sizeof start - 1, *digits = at;
    int64_t number = 0;
    if (strncmp(name, start, sizeof start - 1) != 0) return -1;
    for (; *at >= 'A' && *at <= 'J' && number < TEXT_CODEBOOK_MAX; at++) number = 10 * number + (*at - 'A');
    return at > digits && strcmp(at, "Z") == 0 ? number : -1;
}

static void chameleon_name(int number, char name[32])
{
    char digits[16];
    const int length = snprintf(digits, sizeof digits, "%d", number);
    strcpy(name, "IMGIMG");
    for (int i = 0; i < length; i++) name[6 + i] = (char)(digits[i] - '0' + 'A');
    strcpy(name + 6 + length, "Z");
}

/* Finds the tokens in the configuration's vocabulary_map, else in the tokenizer. */
static mar_status chameleon_find(const wt_file *f, const language_family *family, text_vocabulary *v, mar_err *err)
{
    const json_value *map = language_member(f, "vocabulary_map");
    text_tokenizer *t = NULL;
    mar_status status;
    if (map && map->type != JSON_OBJECT) map = NULL;
    if (map) {
        status = text_vocabulary_of_map(f, map, chameleon_number, v, err);
    } else {
        status = text_tokenizer_open(wt_path(f), &t, err);
        if (status == MAR_OK) status = text_vocabulary_of_tokenizer(f, t, chameleon_name, v, err);
    }
    if (status == MAR_OK && family->line_end) {
        const json_value *line = map ? json_member(map, family->line_end) : NULL;
        int64_t id = -1;
        if (t) id = text_tokenizer_find(t, family->line_end);
        if (line && !json_integer(line, &id)) id = -1;
        status = text_vocabulary_set_line_end(f, id, family->line_end, v, err);
    }
    text_tokenizer_free(t);
    return status;
}

/* --- configurations ----------------------------------------------------------------------------------------------- */

static int is_chameleon(const char *name)
{
    static const char *const names[] = {"ChameleonForConditionalGeneration", "ChameleonForCausalLM", "chameleon"};
    for (size_t i = 0; name && i < sizeof names / sizeof *names; i++)
        if (strcmp(name, names[i]) == 0) return 1;
    return 0;
}

/* Returns whether the configuration has a key that only Lumina's fine-tuning writes. */
static int is_fine_tuned(const wt_file *f)
{
    static const char *const keys[] = {"dropout", "mask_image_logits", "z_loss_weight"};
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        if (language_member(f, keys[i])) return 1;
    return 0;
}

static int is_lumina(const wt_file *f, const char *name)
{
    return name && (strncmp(name, "ChameleonXLLMX", 14) == 0 || (is_chameleon(name) && is_fine_tuned(f)));
}

/* Anole, or Meta's release (params.json), which names no architecture. */
static int is_anole(const wt_file *f, const char *name)
{
    const json_value *model = name ? NULL : language_member(f, "model");
    return name ? is_chameleon(name) && !is_fine_tuned(f) : model && json_member(model, "n_layers");
}

/* --- the families ------------------------------------------------------------------------------------------------- */

/* generate_examples/generate.py, data/item_processor.py */
const language_family language_lumina_mgpt = {
    .name = "lumina-mgpt",
    .title = "Lumina-mGPT",
    .prompt = "{<s>}Generate an image of {W}x{H} according to the following prompt:\n{prompt}<reserved08706>"
              "{<racm3:break>}{size_h}{size_w}",
    .negative = "{<racm3:break>}{size_h}{size_w}",
    .line_end = "<reserved08799>",
    .stride = 16,
    .unit = 32,
    .ratio = 4,
    .trained = {512, 768, 1024},
    .width = 768,
    .height = 768,
    .size_token = 8800,
    .context = 4096,
    .recognise = is_lumina,
    .find_ids = chameleon_find,
};

/* text2image.py; LANTERN's ea_model_anole.py */
const language_family language_anole = {
    .name = "anole",
    .title = "Anole",
    .prompt = "{<s>}{prompt}{<reserved08706>}{<racm3:break>}",
    .negative = "{<s>}{<racm3:break>}",
    .stride = 16,
    .unit = 512,
    .width = 512,
    .height = 512,
    .fixed_size = 1,
    .context = 4096,
    .recognise = is_anole,
    .find_ids = chameleon_find,
};

/* demo/train_mgpt.py; its file names this family */
const language_family language_demo = {
    .name = "demo-mgpt",
    .title = "demo-mgpt",
    .prompt = "{<s>}{prompt}{<reserved08706>}{<racm3:break>}{size_h}{size_w}",
    .negative = "{<racm3:break>}{size_h}{size_w}",
    .line_end = "<reserved08799>",
    .stride = 8,
    .unit = 32,
    .ratio = 3,
    .width = 96,
    .height = 64,
    .size_token = 8800,
    .context = 256,
    .find_ids = chameleon_find,
};
