#include "text/bpe.h"

#include "text/bpe_build.h"
#include "text/json_read.h"
#include "text/steps_json.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A letter of a word, as Rust's \w, for added tokens that are single_word. */
static const char word_letter[] = "[\\w\\x{200c}\\x{200d}]";

/* --- the model --------------------------------------------------------------------------------------------------- */

/* Reads the pieces of an object {"piece": id, ...}. */
static mar_status read_vocab(bpe_building *b, const json_value *v)
{
    if (!v || v->type != JSON_OBJECT) return err_set(b->err, MAR_EFORMAT, "%s: vocab: is no object", b->label);
    size_t n = 0;
    text_piece *pieces = malloc((json_children(v) + 1) * sizeof *pieces);
    if (!pieces) return err_set(b->err, MAR_ENOMEM, "%s: no memory for its vocabulary", b->label);
    mar_status status = MAR_OK;
    for (const json_value *name = v + 1; name < json_next(v) && status == MAR_OK; name = json_next(name + 1)) {
        int64_t id;
        if (!json_integer(name + 1, &id) || id < 0 || id > INT32_MAX / 2)
            status = err_set(b->err, MAR_EFORMAT, "%s: vocab: the id of \"%s\" is no number that an id can be",
                             b->label, name->text);
        else
            pieces[n++] = (text_piece){name->text, name->length, (int32_t)id};
    }
    if (status == MAR_OK) status = bpe_set_vocab(b, pieces, n);
    free(pieces);
    return status;
}

/* Adds the merge of a line "left right". */
static mar_status read_merge_line(bpe_building *b, const char *line, size_t length)
{
    const char *const space = memchr(line, ' ', length);
    const size_t left = space ? (size_t)(space - line) : length;
    if (!space || memchr(space + 1, ' ', length - left - 1))
        return err_set(b->err, MAR_EFORMAT, "%s: merge %zu: \"%.*s\", expected two pieces with a space between them",
                       b->label, b->n_merges, (int)(length < 100 ? length : 100), line);
    return bpe_add_merge(b, line, left, space + 1, length - left - 1);
}

/* Reads a list of merges, each ["left", "right"] or "left right". */
static mar_status read_merges(bpe_building *b, const json_value *v)
{
    if (!v || v->type != JSON_ARRAY) return err_set(b->err, MAR_EFORMAT, "%s: merges: is no list", b->label);
    mar_status status = MAR_OK;
    for (const json_value *m = v + 1; m < json_next(v) && status == MAR_OK; m = json_next(m)) {
        if (m->type == JSON_STRING && strncmp(m->text, "#version", 8) == 0) continue;
        if (m->type == JSON_STRING)
            status = read_merge_line(b, m->text, m->length);
        else if (m->type == JSON_ARRAY && m->size == 3 && m[1].type == JSON_STRING && m[2].type == JSON_STRING)
            status = bpe_add_merge(b, m[1].text, m[1].length, m[2].text, m[2].length);
        else
            status = err_set(b->err, MAR_EFORMAT, "%s: merge %zu: is no pair of strings", b->label, b->n_merges);
    }
    return status == MAR_OK ? bpe_set_merges(b) : status;
}

/* Reads the lines of merges.txt. */
static mar_status read_merges_text(bpe_building *b, const char *text, size_t length)
{
    mar_status status = MAR_OK;
    for (size_t at = 0, size; at < length && status == MAR_OK; at += size + 1) {
        const char *const end = memchr(text + at, '\n', length - at);
        size = end ? (size_t)(end - text) - at : length - at;
        const size_t shown = size && text[at + size - 1] == '\r' ? size - 1 : size;
        if (shown == 0 || (shown >= 8 && memcmp(text + at, "#version", 8) == 0)) continue;
        status = read_merge_line(b, text + at, shown);
    }
    return status == MAR_OK ? bpe_set_merges(b) : status;
}

static mar_status set_suffix(bpe_building *b, const char *text, size_t length)
{
    text_bpe *const m = b->model;
    if (length == 0) return MAR_OK;
    m->suffix = malloc(length);
    if (!m->suffix) return err_set(b->err, MAR_ENOMEM, "%s: no memory for a tokenizer", b->label);
    memcpy(m->suffix, text, length);
    m->suffix_length = length;
    return MAR_OK;
}

/* Finds the pieces of bytes. */
static void find_bytes(text_bpe *m)
{
    for (int i = 0; i < 256; i++) {
        char name[8];
        const int size = snprintf(name, sizeof name, "<0x%02X>", (unsigned)i);
        m->bytes[i] = bpe_piece_id(m, name, (size_t)size);
    }
}

/* Reads the strings and flags of "model". */
static mar_status bpe_read_settings(bpe_building *b, const json_value *v)
{
    text_bpe *const m = b->model;
    const json_value *const prefix = text_json_given(v, "continuing_subword_prefix"),
                            *const suffix = text_json_given(v, "end_of_word_suffix"),
                            *const unknown = text_json_given(v, "unk_token"),
                            *const dropout = text_json_given(v, "dropout");
    int byte_fallback;
    if (dropout && json_double(dropout) != 0)
        return err_set(b->err, MAR_EFORMAT, "%s: model: \"dropout\" is not supported", b->label);
    if (prefix && !json_is(prefix, ""))
        return err_set(b->err, MAR_EFORMAT, "%s: model: \"continuing_subword_prefix\" is not supported", b->label);
    if (suffix && suffix->type != JSON_STRING)
        return err_set(b->err, MAR_EFORMAT, "%s: model: \"end_of_word_suffix\" is no string", b->label);
    if (unknown && (unknown->type != JSON_STRING || (m->unknown = bpe_piece_id(m, unknown->text, unknown->length)) < 0))
        return err_set(b->err, MAR_EFORMAT, "%s: model: \"unk_token\" is no piece of the vocabulary", b->label);
    mar_status status = text_json_flag(v, "model", "fuse_unk", 0, &m->fuse_unknown, b->label, b->err);
    if (status == MAR_OK) status = text_json_flag(v, "model", "byte_fallback", 0, &byte_fallback, b->label, b->err);
    if (status == MAR_OK) status = text_json_flag(v, "model", "ignore_merges", 0, &m->ignore_merges, b->label, b->err);
    if (status == MAR_OK && suffix) status = set_suffix(b, suffix->text, suffix->length);
    if (status == MAR_OK && byte_fallback) find_bytes(m);
    return status;
}

static mar_status bpe_read_model(bpe_building *b, const json_value *v)
{
    if (!v) return err_set(b->err, MAR_EFORMAT, "%s: no \"model\"; expected a tokenizer.json", b->label);
    mar_status status = text_json_only(v, "model",
                                       "type dropout unk_token continuing_subword_prefix end_of_word_suffix fuse_unk "
                                       "byte_fallback ignore_merges vocab merges",
                                       b->label, b->err);
    const json_value *const type = json_member(v, "type");
    if (type && !json_is(type, "BPE"))
        return err_set(b->err, MAR_EFORMAT, "%s: model: type \"%s\" is not supported, expected BPE", b->label,
                       type->type == JSON_STRING ? type->text : "");
    if (status == MAR_OK) status = read_vocab(b, json_member(v, "vocab"));
    if (status == MAR_OK) status = bpe_read_settings(b, v);
    return status == MAR_OK ? read_merges(b, json_member(v, "merges")) : status;
}

/* --- added tokens ------------------------------------------------------------------------------------------------ */

/* Adds a token that `number` is the id of. */
static mar_status read_added(bpe_building *b, const json_value *v, const json_value *number)
{
    const json_value *content;
    bpe_added a = {0};
    int64_t id;
    mar_status status =
        text_json_only(v, "added_tokens", "id content single_word lstrip rstrip normalized special", b->label, b->err);
    if (status == MAR_OK) status = text_json_string(v, "added_tokens", "content", &content, b->label, b->err);
    if (status == MAR_OK && (!number || !json_integer(number, &id) || id < 0 || id > INT32_MAX / 2))
        status = err_set(b->err, MAR_EFORMAT, "%s: added_tokens: \"%s\" has no id", b->label, content->text);
    static const char *const names[] = {"single_word", "lstrip", "rstrip", "normalized", "special"};
    int *const flags[] = {&a.single_word, &a.lstrip, &a.rstrip, &a.normalized, &a.special};
    for (size_t i = 0; i < 5 && status == MAR_OK; i++)
        status = text_json_flag(v, "added_tokens", names[i], -1, flags[i], b->label, b->err);
    if (status != MAR_OK) return status;
    a.id = (int32_t)id;
    a.length = content->length;
    if (a.single_word && !b->model->word)
        status = text_pattern_translate(word_letter, strlen(word_letter), b->label, &b->model->word, b->err);
    return status == MAR_OK ? bpe_add_token(b, content->text, a) : status;
}

static mar_status read_added_list(bpe_building *b, const json_value *v)
{
    mar_status status = MAR_OK;
    if (v && v->type != JSON_NULL && v->type != JSON_ARRAY)
        return err_set(b->err, MAR_EFORMAT, "%s: added_tokens: is no list", b->label);
    if (v)
        for (const json_value *a = v + 1; a < json_next(v) && status == MAR_OK; a = json_next(a))
            status = read_added(b, a, json_member(a, "id"));
    return status;
}

/* Reads normalizers, pre-tokenizers and added tokens, once the model is there. */
static mar_status read_around(bpe_building *b, const json_value *root)
{
    text_bpe *const m = b->model;
    mar_status status =
        text_read_normalizers(json_member(root, "normalizer"), b->label, &b->budget, &m->normalizers, b->err);
    if (status == MAR_OK)
        status = text_read_splits(json_member(root, "pre_tokenizer"), b->label, &b->budget, &m->splits, b->err);
    if (status == MAR_OK) status = read_added_list(b, json_member(root, "added_tokens"));
    return status == MAR_OK ? bpe_index_added(b) : status;
}

/* --- files ------------------------------------------------------------------------------------------------------- */

static mar_status bpe_read_root(bpe_building *b, const json_value *root)
{
    const json_value *const version = json_member(root, "version");
    mar_status status =
        text_json_only(root, "tokenizer",
                       "version truncation padding added_tokens normalizer pre_tokenizer post_processor "
                       "decoder model",
                       b->label, b->err);
    if (status == MAR_OK && version && !json_is(version, "1.0"))
        status = err_set(b->err, MAR_EFORMAT, "%s: \"version\" is not \"1.0\"", b->label);
    if (status == MAR_OK) status = bpe_read_model(b, json_member(root, "model"));
    return status == MAR_OK ? read_around(b, root) : status;
}

/* Ends the reading: sets *out, or frees the model. */
static mar_status bpe_finish(bpe_building *b, mar_status status, text_bpe **out)
{
    free(b->merges);
    if (status == MAR_OK)
        *out = b->model;
    else
        text_bpe_free(b->model);
    return status;
}

/* Reads text[length] and changes it. */
static mar_status bpe_read_json(char *text, size_t length, const char *label, text_bpe **out, mar_err *err)
{
    bpe_building b = {.model = bpe_new_model(), .label = label, .budget = text_budget_of_file(), .err = err};
    json j;
    if (!b.model) return err_set(err, MAR_ENOMEM, "%s: no memory for a tokenizer", label);
    mar_status status = text_json_parse(text, length, label, &j, err);
    if (status == MAR_OK) {
        status = bpe_read_root(&b, j.values);
        json_free(&j);
    }
    return bpe_finish(&b, status, out);
}

static char *copy_of(const char *text, size_t length)
{
    char *copy = malloc(length + 1);
    if (!copy) return NULL;
    if (length) memcpy(copy, text, length);
    copy[length] = '\0';
    return copy;
}

mar_status text_bpe_read(const char *text, size_t length, const char *label, text_bpe **out, mar_err *err)
{
    char *copy = copy_of(text, length);
    *out = NULL;
    if (!copy) return err_set(err, MAR_ENOMEM, "%s: no memory for %zu bytes", label, length);
    const mar_status status = bpe_read_json(copy, length, label, out, err);
    free(copy);
    return status;
}

/* --- vocab.json and merges.txt ----------------------------------------------------------------------------------- */

/* The steps of CLIP, GPT-2 and Qwen2, as the `transformers` library makes them for these files. */
typedef enum { STEPS_GPT2, STEPS_CLIP, STEPS_QWEN2, STEPS } bpe_steps;

static const char *const steps_of[STEPS] = {
    [STEPS_GPT2] = "{\"pre_tokenizer\": {\"type\": \"ByteLevel\", \"add_prefix_space\": false}}",
    [STEPS_CLIP] =
        "{\"normalizer\": {\"type\": \"Sequence\", \"normalizers\": [{\"type\": \"NFC\"},"
        " {\"type\": \"Replace\", \"pattern\": {\"Regex\": \"\\\\s+\"}, \"content\": \" \"}, {\"type\": "
        "\"Lowercase\"}]},"
        " \"pre_tokenizer\": {\"type\": \"Sequence\", \"pretokenizers\": [{\"type\": \"Split\", \"pattern\": "
        "{\"Regex\":"
        " \"'s|'t|'re|'ve|'m|'ll|'d|[\\\\p{L}]+|[\\\\p{N}]|[^\\\\s\\\\p{L}\\\\p{N}]+\"}, \"behavior\": \"Removed\","
        " \"invert\": true}, {\"type\": \"ByteLevel\", \"add_prefix_space\": false}]}}",
    [STEPS_QWEN2] =
        "{\"normalizer\": {\"type\": \"NFC\"}, \"pre_tokenizer\": {\"type\": \"Sequence\", \"pretokenizers\": ["
        "{\"type\": \"Split\", \"pattern\": {\"Regex\": "
        "\"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\\\r\\\\n\\\\p{L}\\\\p{N}]?\\\\p{L}+|"
        "\\\\p{N}| ?[^\\\\s\\\\p{L}\\\\p{N}]+[\\\\r\\\\n]*|\\\\s*[\\\\r\\\\n]+|\\\\s+(?!\\\\S)|\\\\s+\"},"
        " \"behavior\": \"Isolated\", \"invert\": false},"
        " {\"type\": \"ByteLevel\", \"add_prefix_space\": false, \"use_regex\": false}]}}"};

/* Returns whether a piece of the vocabulary ends with "</w>". */
static int has_word_ends(const json_value *vocab)
{
    for (const json_value *name = vocab + 1; name < json_next(vocab); name = json_next(name + 1))
        if (name->length > 4 && strcmp(name->text + name->length - 4, "</w>") == 0) return 1;
    return 0;
}

/* Sets *steps to those of the class that a tokenizer_config.json names. Without a name they stay. */
static mar_status read_class(bpe_building *b, const json_value *config, bpe_steps *steps)
{
    static const char *const names[STEPS] = {
        [STEPS_GPT2] = "GPT2Tokenizer", [STEPS_CLIP] = "CLIPTokenizer", [STEPS_QWEN2] = "Qwen2Tokenizer"};
    const json_value *const name = text_json_given(config, "tokenizer_class");
    if (!name) return MAR_OK;
    for (bpe_steps i = 0; i < STEPS && name->type == JSON_STRING; i++) {
        const size_t n = strlen(names[i]);
        if (strncmp(name->text, names[i], n) != 0 || (name->text[n] && strcmp(name->text + n, "Fast") != 0)) continue;
        *steps = i;
        return MAR_OK;
    }
    return err_set(b->err, MAR_EFORMAT,
                   "%s: tokenizer_class \"%.100s\" is not supported, expected CLIPTokenizer, GPT2Tokenizer or "
                   "Qwen2Tokenizer",
                   b->label, name->type == JSON_STRING ? name->text : "");
}

/* Reads what a tokenizer_config.json says about Qwen2's ids: {"added_tokens_decoder": {"id": {...}, ...}} and flags. */
static mar_status read_qwen2_config(bpe_building *b, const json_value *config)
{
    const json_value *const added = text_json_given(config, "added_tokens_decoder");
    int flag = 0;
    mar_status status = MAR_OK;
    for (int i = 0; i < 2 && status == MAR_OK; i++) {
        const char *const name = i ? "split_special_tokens" : "add_prefix_space";
        if (text_json_given(config, name))
            status = text_json_flag(config, "tokenizer_config", name, 0, &flag, b->label, b->err);
        if (status == MAR_OK && flag)
            status = err_set(b->err, MAR_EFORMAT, "%s: \"%s\" is not supported", b->label, name);
    }
    if (status == MAR_OK && added && added->type != JSON_OBJECT)
        status = err_set(b->err, MAR_EFORMAT, "%s: added_tokens_decoder: is no object", b->label);
    if (!added) return status;
    for (const json_value *id = added + 1; id < json_next(added) && status == MAR_OK; id = json_next(id + 1)) {
        json_value number = *id; /* a name that is a number */
        if (*id->text >= '0' && *id->text <= '9') number.type = JSON_NUMBER;
        status = read_added(b, id + 1, &number);
    }
    return status;
}

/* Adds the special tokens that the vocabulary has. */
static mar_status bpe_add_special(bpe_building *b)
{
    static const char *const names[] = {"<|startoftext|>", "<|endoftext|>"};
    mar_status status = MAR_OK;
    for (size_t i = 0; i < 2 && status == MAR_OK; i++) {
        const size_t length = strlen(names[i]);
        const int32_t id = bpe_piece_id(b->model, names[i], length);
        if (id >= 0) status = bpe_add_token(b, names[i], (bpe_added){.length = length, .id = id, .special = 1});
    }
    return status;
}

/* Reads the steps, once the vocabulary and the added tokens of a configuration are there. */
static mar_status bpe_add_steps(bpe_building *b, bpe_steps steps)
{
    json j;
    const size_t length = strlen(steps_of[steps]);
    char *copy = copy_of(steps_of[steps], length);
    if (!copy) return err_set(b->err, MAR_ENOMEM, "%s: no memory for a tokenizer", b->label);
    mar_status status = text_json_parse(copy, length, b->label, &j, b->err);
    if (status == MAR_OK) {
        if (steps != STEPS_QWEN2) status = bpe_add_special(b);
        if (status == MAR_OK) status = read_around(b, j.values);
        json_free(&j);
    }
    if (status == MAR_OK && steps == STEPS_CLIP) {
        status = set_suffix(b, "</w>", 4);
        b->model->unknown = bpe_piece_id(b->model, "<|endoftext|>", 13);
    }
    free(copy);
    return status;
}

/* Reads vocab.json, and the steps that belong to it unless a configuration names others. */
static mar_status read_vocab_file(bpe_building *b, const text_file *vocab, bpe_steps *steps)
{
    char *copy = copy_of(vocab->text, vocab->length);
    json j;
    b->label = vocab->label;
    mar_status status = copy ? text_json_parse(copy, vocab->length, b->label, &j, b->err)
                             : err_set(b->err, MAR_ENOMEM, "%s: no memory for a tokenizer", b->label);
    if (status == MAR_OK) {
        *steps = has_word_ends(j.values) ? STEPS_CLIP : STEPS_GPT2;
        status = read_vocab(b, j.values);
        json_free(&j);
    }
    free(copy);
    return status;
}

/* Reads tokenizer_config.json. */
static mar_status read_config_file(bpe_building *b, const text_file *config, bpe_steps *steps)
{
    char *copy = copy_of(config->text, config->length);
    json j;
    b->label = config->label;
    mar_status status = copy ? text_json_parse(copy, config->length, b->label, &j, b->err)
                             : err_set(b->err, MAR_ENOMEM, "%s: no memory for a tokenizer", b->label);
    if (status == MAR_OK) {
        status = read_class(b, j.values, steps);
        if (status == MAR_OK && *steps == STEPS_QWEN2) status = read_qwen2_config(b, j.values);
        json_free(&j);
    }
    free(copy);
    return status;
}

mar_status text_bpe_read_files(const text_file *vocab, const text_file *merges, const text_file *config, text_bpe **out,
                               mar_err *err)
{
    bpe_building b = {.model = bpe_new_model(), .budget = text_budget_of_file(), .err = err};
    bpe_steps steps;
    *out = NULL;
    if (!b.model) return err_set(err, MAR_ENOMEM, "%s: no memory for a tokenizer", vocab->label);
    mar_status status = read_vocab_file(&b, vocab, &steps);
    if (status == MAR_OK && config->text) status = read_config_file(&b, config, &steps);
    if (status == MAR_OK) status = bpe_add_steps(&b, steps);
    b.label = merges->label;
    if (status == MAR_OK) status = read_merges_text(&b, merges->text, merges->length);
    return bpe_finish(&b, status, out);
}

/* --- the rest ---------------------------------------------------------------------------------------------------- */

void text_bpe_free(text_bpe *b)
{
    if (!b) return;
    for (size_t i = 0; i < b->n_added; i++) free(b->added[i].text);
    free(b->added);
    free(b->names);
    text_trie_free(&b->vocab);
    text_trie_free(&b->raw);
    text_trie_free(&b->normal);
    text_steps_free(&b->normalizers);
    text_steps_free(&b->splits);
    text_pattern_free(b->word);
    free(b->merge_rows);
    free(b->merges);
    free(b->suffix);
    free(b);
}

int text_bpe_size(const text_bpe *b)
{
    return b->count;
}

int text_bpe_find(const text_bpe *b, const char *piece)
{
    const size_t length = strlen(piece);
    const text_piece *const p = text_find_piece(b->names, b->n_names, piece, length);
    return p ? p->id : bpe_piece_id(b, piece, length);
}
