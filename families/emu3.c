/* Emu3 (2409.18869): a language model whose image tokens follow the end of an image in its vocabulary. */
#include "families/language.h"

#include <stdio.h>
#include <string.h>

/* Returns the number in "<|visual token 000012|>". */
static int64_t emu3_number(const char *name)
{
    static const char start[] = "<|visual token ";
    const char *at = name + sizeof start - 1, *digits = at;
    int64_t number = 0;
    if (strncmp(name, start, sizeof start - 1) != 0) return -1;
    for (; *at >= '0' && *at <= '9' && number < TEXT_CODEBOOK_MAX; at++) number = 10 * number + (*at - '0');
    return at > digits && strcmp(at, "|>") == 0 ? number : -1;
}

/* Finds the image tokens behind the end of an image (mllm/configuration_emu3.py). The embedding may be padded behind
 * them. */
static mar_status find_behind(const wt_file *f, text_vocabulary *v, mar_err *err)
{
    enum { VISUAL_TOKENS = 32768 };
    int before = 151853, end = v->rows;
    mar_status status = language_number(f, "eoi_token_id", 0, &before, err);
    if (status == MAR_OK) status = language_number(f, "vocab_size", 1, &end, err);
    if (status == MAR_OK && end > v->rows)
        status = err_set(err, MAR_EMODEL, "%s: its configuration has a vocabulary of %d, its embedding %d rows",
                         wt_path(f), end, v->rows);
    if (status != MAR_OK) return status;
    if (end > before + 1 + VISUAL_TOKENS) end = before + 1 + VISUAL_TOKENS;
    return text_vocabulary_of_range(f, before + 1, end, v, err);
}

static mar_status emu3_find(const wt_file *f, const language_family *family, text_vocabulary *v, mar_err *err)
{
    const json_value *map = language_member(f, "vocabulary_map"), *line;
    int line_end = 151846;
    int64_t id;
    if (map && map->type != JSON_OBJECT) map = NULL;
    mar_status status = map ? text_vocabulary_of_map(f, map, emu3_number, v, err) : find_behind(f, v, err);
    if (status == MAR_OK && map && (line = json_member(map, family->line_end)) != NULL)
        line_end = json_integer(line, &id) && id >= 0 && id < v->rows ? (int)id : -1;
    if (status == MAR_OK) status = language_number(f, "eol_token_id", 0, &line_end, err);
    return status == MAR_OK ? text_vocabulary_set_line_end(f, line_end, family->line_end, v, err) : status;
}

static int is_emu3(const wt_file *f, const char *name)
{
    static const char *const names[] = {"Emu3ForCausalLM", "Emu3ForConditionalGeneration", "Emu3", "emu3"};
    (void)f;
    for (size_t i = 0; name && i < sizeof names / sizeof *names; i++)
        if (strcmp(name, names[i]) == 0) return 1;
    return 0;
}

/* image_generation.py, mllm/processing_emu3.py */
const language_family language_emu3 = {
    .name = "emu3",
    .title = "Emu3",
    .prompt = "<|extra_203|>{prompt} masterpiece, film grained, best quality.<|image start|>{rows}*{columns}"
              "<|image token|>",
    .negative = "<|extra_203|>{prompt}<|image start|>{rows}*{columns}<|image token|>",
    .negative_prompt = "lowres, bad anatomy, bad hands, text, error, missing fingers, extra digit, fewer digits, "
                       "cropped, worst quality, low quality, normal quality, jpeg artifacts, signature, watermark, "
                       "username, blurry.",
    .line_end = "<|extra_200|>",
    .stride = 8,
    .unit = 8,
    .width = 720,
    .height = 720,
    .context = 9216,
    .recognise = is_emu3,
    .find_ids = emu3_find,
};
