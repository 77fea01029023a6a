#include "text/tiktoken.h"

#include "base/printable.h"
#include "text/bpe_build.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { EXTRAS = 205 }; /* tokens <|extra_0|> ... */

/* PAT_STR of tokenization_emu3.py. */
static const char words[] =
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|"
    "\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";

/* The pieces, each byte as its character of GPT-2's table. */
typedef struct {
    bpe_building b;
    text_buffer texts;
    text_piece *pieces; /* [count] sorted by id once the vocabulary is set */
    size_t *starts;     /* [count] of each in texts, while they grow */
    size_t count, capacity;
} reading;

static mar_status tiktoken_refuse_memory(const reading *r)
{
    return err_set(r->b.err, MAR_ENOMEM, "%s: no memory for a tokenizer", r->b.label);
}

/* --- lines -------------------------------------------------------------------------------------------------------- */

/* Returns the next line at *at in text[length], without white space at its ends; sets *size. NULL at the end. */
static const char *next_line(const char *text, size_t length, size_t *at, size_t *size)
{
    if (*at >= length) return NULL;
    const char *line = text + *at, *end = memchr(line, '\n', length - *at);
    size_t n = end ? (size_t)(end - line) : length - *at;
    *at += n + 1;
    while (n > 0 && strchr(" \t\r", line[n - 1]) && line[n - 1]) n--;
    while (n > 0 && strchr(" \t\r", *line) && *line) line++, n--;
    *size = n;
    return line;
}

static int digit_of(char c)
{
    if (c >= 'A' && c <= 'Z') return c - 'A';
    if (c >= 'a' && c <= 'z') return c - 'a' + 26;
    if (c >= '0' && c <= '9') return c - '0' + 52;
    return c == '+' ? 62 : c == '/' ? 63 : -1;
}

/* Decodes base64 with its padding. Returns the bytes in out; -1 for other text and for more than TIKTOKEN_PIECE_MAX. */
static int tiktoken_decode(const char *text, size_t length, uint8_t out[TIKTOKEN_PIECE_MAX])
{
    const size_t padding = length >= 2 ? (size_t)(text[length - 1] == '=') + (text[length - 2] == '=') : 0;
    size_t n = 0;
    unsigned bits = 0;
    if (length == 0 || length % 4 || length / 4 * 3 - padding > TIKTOKEN_PIECE_MAX) return -1;
    for (size_t i = 0; i < length - padding; i++) {
        const int digit = digit_of(text[i]);
        if (digit < 0) return -1;
        bits = bits << 6 | (unsigned)digit;
        if (i % 4) out[n++] = (uint8_t)(bits >> (6 - 2 * (i % 4)));
    }
    return (int)(length / 4 * 3 - padding);
}

/* --- the vocabulary ----------------------------------------------------------------------------------------------- */

static int tiktoken_grow(reading *r)
{
    if (r->count < r->capacity) return 1;
    const size_t capacity = r->capacity ? 2 * r->capacity : 1024;
    text_piece *pieces = realloc(r->pieces, capacity * sizeof *pieces);
    if (pieces) r->pieces = pieces;
    size_t *starts = realloc(r->starts, capacity * sizeof *starts);
    if (starts) r->starts = starts;
    if (!pieces || !starts) return 0;
    r->capacity = capacity;
    return 1;
}

/* Adds the piece of a line "IQ== 0". */
static mar_status tiktoken_add_piece(reading *r, const char *line, size_t size)
{
    uint8_t piece[TIKTOKEN_PIECE_MAX];
    const char *space = memchr(line, ' ', size), *at = space ? space + 1 : NULL;
    const int n = space ? tiktoken_decode(line, (size_t)(space - line), piece) : -1;
    int64_t rank = at && at < line + size ? 0 : -1;
    for (; at && at < line + size && rank >= 0; at++)
        rank = *at >= '0' && *at <= '9' && rank <= BPE_FILE_MAX ? 10 * rank + (*at - '0') : -1;
    if (n < 1 || rank < 0 || rank > BPE_FILE_MAX)
        return err_set(r->b.err, MAR_EFORMAT,
                       "%s: piece %zu: \"%.*s\", expected 1 to %d bytes in base64 and their rank", r->b.label, r->count,
                       (int)(size < 100 ? size : 100), line, TIKTOKEN_PIECE_MAX);
    if (!tiktoken_grow(r)) return tiktoken_refuse_memory(r);
    const size_t start = r->texts.length;
    for (int i = 0; i < n; i++) text_put_byte(piece[i], &r->texts);
    r->starts[r->count] = start;
    r->pieces[r->count++] = (text_piece){NULL, (uint32_t)(r->texts.length - start), (int32_t)rank};
    return MAR_OK;
}

static int compare_ids(const void *a, const void *b)
{
    const text_piece *const x = a, *const y = b;
    return (x->id > y->id) - (x->id < y->id);
}

/* Returns MAR_EFORMAT unless each byte is a piece: all texts can be divided. */
static mar_status check_bytes(const reading *r)
{
    for (unsigned byte = 0; byte < 256; byte++) {
        text_buffer one = {0};
        text_put_byte((uint8_t)byte, &one);
        const int32_t id = one.failed ? -1 : bpe_piece_id(r->b.model, one.data, one.length);
        const int failed = one.failed;
        text_buffer_free(&one);
        if (failed) return tiktoken_refuse_memory(r);
        if (id < 0) return err_set(r->b.err, MAR_EFORMAT, "%s: has no piece for the byte 0x%02x", r->b.label, byte);
    }
    return MAR_OK;
}

static mar_status tiktoken_read_pieces(reading *r, const char *text, size_t length)
{
    mar_status status = MAR_OK;
    const char *line;
    for (size_t at = 0, size; status == MAR_OK && (line = next_line(text, length, &at, &size));)
        if (size) status = tiktoken_add_piece(r, line, size);
    if (status != MAR_OK) return status;
    if (r->texts.failed) return tiktoken_refuse_memory(r);
    for (size_t i = 0; i < r->count; i++) r->pieces[i].text = r->texts.data + r->starts[i];
    status = bpe_set_vocab(&r->b, r->pieces, r->count);
    if (status != MAR_OK) return status;
    qsort(r->pieces, r->count, sizeof *r->pieces, compare_ids);
    return check_bytes(r);
}

/* Returns the size of the character at text: those of GPT-2's table have one or two bytes. */
static uint32_t size_at(const char *text)
{
    return (uint8_t)*text < 0x80 ? 1 : 2;
}

/* Returns the id of a piece; -1 if it has none. Charges the bytes. */
static int32_t find_rest(reading *r, const char *text, size_t length)
{
    const text_trie *const t = &r->b.model->vocab;
    size_t passed;
    const uint32_t node = text_trie_walk(t, 0, text, length, &passed);
    text_charge_steps(&r->b.budget, passed + 1);
    return node ? t->nodes[node].id : -1;
}

/* Adds each way to make a piece of two others, with the piece's rank. */
static mar_status split_piece(reading *r, const text_piece *p)
{
    const text_trie *const t = &r->b.model->vocab;
    uint32_t node = 0;
    mar_status status = MAR_OK;
    for (uint32_t at = 0, size; at < p->length && status == MAR_OK; at += size) {
        const int32_t left = at ? t->nodes[node].id : -1;
        const int32_t right = left >= 0 ? find_rest(r, p->text + at, p->length - at) : -1;
        if (right >= 0) {
            text_charge_bytes(&r->b.budget, sizeof(bpe_named_merge) + sizeof(bpe_merge));
            status = bpe_put_merge(&r->b, left, (bpe_merge){right, p->id, p->id});
        }
        size = size_at(p->text + at);
        for (uint32_t i = 0; i < size; i++) node = text_trie_step(t, node, (uint8_t)p->text[at + i]);
    }
    return status;
}

static mar_status add_merges(reading *r)
{
    char part[ERR_TEXT_MAX];
    mar_status status = MAR_OK;
    snprintf(part, sizeof part, "%s: the merges of its pieces", r->b.label);
    for (size_t i = 0; i < r->count && status == MAR_OK; i++) {
        status = split_piece(r, &r->pieces[i]);
        if (status == MAR_OK && text_budget_check(&r->b.budget, part, r->b.err) != MAR_OK) status = MAR_EFORMAT;
    }
    return status == MAR_OK ? bpe_set_merges(&r->b) : status;
}

/* --- special tokens and steps ------------------------------------------------------------------------------------- */

/* Adds a special token, which is found in the normalised text, with the next id. */
static mar_status tiktoken_add_special(reading *r, const char *text, size_t length)
{
    unsigned c;
    for (size_t at = 0, size; at < length; at += size)
        if ((size = utf8_decode(text + at, length - at, &c)) == 0)
            return err_set(r->b.err, MAR_EFORMAT, "%s: token %d is not UTF-8", r->b.label, r->b.model->count);
    return bpe_add_token(&r->b, text,
                         (bpe_added){.length = length, .id = r->b.model->count, .normalized = 1, .special = 1});
}

static mar_status tiktoken_add_specials(reading *r, const char *text, size_t length)
{
    static const char *const names[] = {"<|endoftext|>", "<|im_start|>", "<|im_end|>"};
    mar_status status = MAR_OK;
    const char *line;
    for (int i = 0; i < 3 && status == MAR_OK; i++) status = tiktoken_add_special(r, names[i], strlen(names[i]));
    for (int i = 0; i < EXTRAS && status == MAR_OK; i++) {
        char name[24];
        status = tiktoken_add_special(r, name, (size_t)snprintf(name, sizeof name, "<|extra_%d|>", i));
    }
    for (size_t at = 0, size; status == MAR_OK && (line = next_line(text, length, &at, &size));)
        if (size) status = tiktoken_add_special(r, line, size);
    return status;
}

static mar_status tiktoken_add_steps(reading *r)
{
    text_bpe *const m = r->b.model;
    text_step split = {.kind = STEP_SPLIT, .behavior = SPLIT_ISOLATED};
    const mar_status status = text_pattern_translate(words, strlen(words), r->b.label, &split.pattern, r->b.err);
    if (status != MAR_OK) return status;
    if (!text_steps_add(&m->splits, split) || !text_steps_add(&m->splits, (text_step){.kind = STEP_BYTES}) ||
        !text_steps_add(&m->normalizers, (text_step){.kind = STEP_NFC}))
        return tiktoken_refuse_memory(r);
    m->ignore_merges = 1;
    return MAR_OK;
}

/* --- opening ------------------------------------------------------------------------------------------------------ */

mar_status text_tiktoken_read(const char *ranks, size_t ranks_length, const char *ranks_label, const char *tokens,
                              size_t tokens_length, const char *tokens_label, text_bpe **out, mar_err *err)
{
    reading r = {.b = {.model = bpe_new_model(), .label = ranks_label, .budget = text_budget_of_file(), .err = err}};
    *out = NULL;
    mar_status status = r.b.model ? tiktoken_read_pieces(&r, ranks, ranks_length) : tiktoken_refuse_memory(&r);
    if (status == MAR_OK) status = add_merges(&r);
    if (status == MAR_OK) status = tiktoken_add_steps(&r);
    r.b.label = tokens_label;
    if (status == MAR_OK) status = tiktoken_add_specials(&r, tokens, tokens_length);
    if (status == MAR_OK) status = bpe_index_added(&r.b);
    text_buffer_free(&r.texts);
    free(r.pieces);
    free(r.starts);
    free(r.b.merges);
    if (status == MAR_OK)
        *out = r.b.model;
    else
        text_bpe_free(r.b.model);
    return status;
}
