#include "text/words.h"

#include "base/printable.h"
#include "text/steps.h"
#include "text/trie.h"

#include <stdlib.h>
#include <string.h>

#include <utf8proc.h>

enum { WORD_MAX = 100, SPECIALS = 7 }; /* characters of the longest word that is cut into pieces, as in transformers */

struct text_words {
    char *text;         /* the file */
    text_piece *pieces; /* [count] sorted, different */
    size_t count;
    text_trie trie;
    int size;              /* lines, and the two tokens added */
    int unknown;           /* id of [UNK] */
    int special[SPECIALS]; /* ids; -1: not in the file */
};

static const char *const special_names[SPECIALS] = {"[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "[DEC]", "[ENC]"};

/* --- the file ----------------------------------------------------------------------------------------------------- */

/* Lists the lines, without empty ones. pieces has room for all. */
static void list_lines(text_words *w, size_t length)
{
    for (size_t at = 0, size; at < length; at += size + 1, w->size++) {
        const char *line = w->text + at, *end = memchr(line, '\n', length - at);
        size = end ? (size_t)(end - line) : length - at;
        const size_t shown = size && line[size - 1] == '\r' ? size - 1 : size;
        if (shown) w->pieces[w->count++] = (text_piece){line, (uint32_t)shown, w->size};
    }
}

/* Sorts the pieces, and keeps the last of equal ones. */
static void sort_pieces(text_words *w)
{
    size_t kept = 0;
    text_sort_pieces(w->pieces, w->count);
    for (size_t i = 0; i < w->count; i++) {
        const text_piece *p = &w->pieces[i];
        if (i + 1 == w->count || !text_same_piece(p, p + 1)) w->pieces[kept++] = *p;
    }
    w->count = kept;
}

static mar_status words_build(text_words *w, size_t length, const char *label, mar_err *err)
{
    size_t lines = 1;
    for (size_t i = 0; i < length; i++) lines += w->text[i] == '\n';
    w->pieces = malloc(lines * sizeof *w->pieces);
    if (!w->pieces) return err_set(err, MAR_ENOMEM, "%s: no memory for %zu pieces", label, lines);
    list_lines(w, length);
    sort_pieces(w);
    if (!text_trie_build(w->pieces, w->count, &w->trie))
        return err_set(err, MAR_ENOMEM, "%s: no memory for %zu pieces", label, w->count);
    for (int i = 0; i < SPECIALS; i++) {
        const text_piece *p = text_find_piece(w->pieces, w->count, special_names[i], strlen(special_names[i]));
        w->special[i] = p ? p->id : i < SPECIALS - 2 ? -1 : w->size++;
    }
    w->unknown = w->special[1];
    if (w->unknown >= 0) return MAR_OK;
    return err_set(err, MAR_EFORMAT, "%s: has no piece [UNK], expected BERT's vocabulary, a piece a line", label);
}

mar_status text_words_read(const char *text, size_t length, const char *label, text_words **out, mar_err *err)
{
    text_words *w = calloc(1, sizeof *w);
    *out = NULL;
    if (w) w->text = malloc(length + 1);
    mar_status status = MAR_OK;
    if (!w || !w->text) status = err_set(err, MAR_ENOMEM, "%s: no memory for a tokenizer", label);
    if (status == MAR_OK) {
        memcpy(w->text, text, length);
        status = words_build(w, length, label, err);
    }
    if (status == MAR_OK)
        *out = w;
    else
        text_words_free(w);
    return status;
}

void text_words_free(text_words *w)
{
    if (!w) return;
    text_trie_free(&w->trie);
    free(w->pieces);
    free(w->text);
    free(w);
}

int text_words_size(const text_words *w)
{
    return w->size;
}

int text_words_find(const text_words *w, const char *piece)
{
    for (int i = 0; i < SPECIALS; i++)
        if (strcmp(piece, special_names[i]) == 0) return w->special[i];
    const text_piece *p = text_find_piece(w->pieces, w->count, piece, strlen(piece));
    return p ? p->id : -1;
}

/* --- words -------------------------------------------------------------------------------------------------------- */

/* Adds the pieces of a word of n bytes; [UNK] if it is no row of pieces, or too long. */
static void put_word(const text_words *w, const char *word, size_t n, text_ids *out)
{
    size_t characters = 0;
    int id = w->unknown;
    const int before = out->count;
    uint32_t node = 0;
    for (size_t i = 0; i < n; i++) characters += ((uint8_t)word[i] & 0xc0) != 0x80;
    for (size_t at = 0, size; at < n; at += size) {
        size = characters > WORD_MAX || (at && !node) ? 0
                                                      : text_trie_longest(&w->trie, node, word + at, n - at, &id, NULL);
        if (size == 0) {
            out->count = before;
            text_add_id(out, w->unknown);
            return;
        }
        text_add_id(out, id);
        node = text_trie_walk(&w->trie, 0, "##", 2, NULL);
    }
}

static int is_ideograph(unsigned c)
{
    return (c >= 0x4e00 && c <= 0x9fff) || (c >= 0x3400 && c <= 0x4dbf) || (c >= 0x20000 && c <= 0x2a6df) ||
           (c >= 0x2a700 && c <= 0x2b73f) || (c >= 0x2b740 && c <= 0x2b81f) || (c >= 0x2b820 && c <= 0x2ceaf) ||
           (c >= 0xf900 && c <= 0xfaff) || (c >= 0x2f800 && c <= 0x2fa1f);
}

static int is_punctuation(unsigned c, utf8proc_category_t category)
{
    return (c >= 33 && c <= 47) || (c >= 58 && c <= 64) || (c >= 91 && c <= 96) || (c >= 123 && c <= 126) ||
           (category >= UTF8PROC_CATEGORY_PC && category <= UTF8PROC_CATEGORY_PO);
}

/* Returns whether c is dropped: a control character that is no white space, U+FFFD, or a nonspacing mark. */
static int words_is_dropped(unsigned c, utf8proc_category_t category)
{
    const int is_control = category == UTF8PROC_CATEGORY_CC || category == UTF8PROC_CATEGORY_CF ||
                           category == UTF8PROC_CATEGORY_CO || category == UTF8PROC_CATEGORY_CS;
    if (c == '\t' || c == '\n' || c == '\r') return 0;
    return c == 0 || c == 0xfffd || is_control || category == UTF8PROC_CATEGORY_MN;
}

static void end_word(const text_words *w, text_buffer *word, text_ids *out)
{
    if (word->length) put_word(w, word->data, word->length, out);
    word->length = 0;
}

/* Adds the ids of text[n], in normal form D. */
static void words_put_words(const text_words *w, const char *text, size_t n, text_buffer *word, text_ids *out)
{
    unsigned c = 0;
    for (size_t at = 0, size; at < n; at += size) {
        size = utf8_decode(text + at, n - at, &c);
        if (size == 0) return; /* checked by the caller */
        const utf8proc_category_t category = utf8proc_category((utf8proc_int32_t)c);
        if (words_is_dropped(c, category)) continue;
        const int is_alone = is_ideograph(c) || is_punctuation(c, category), is_space = text_is_space(c);
        if (is_alone || is_space) end_word(w, word, out);
        if (!is_space) text_put_char(word, (unsigned)utf8proc_tolower((utf8proc_int32_t)c));
        if (is_alone) end_word(w, word, out);
    }
    end_word(w, word, out);
}

/* Finds the first special token in text[n]. Returns its place, or n if there is none. */
static size_t find_special(const text_words *w, const char *text, size_t n, size_t *length, int *id)
{
    for (size_t at = 0; at < n; at++)
        for (int i = 0; i < SPECIALS && text[at] == '['; i++) {
            *length = strlen(special_names[i]);
            *id = w->special[i];
            if (*id >= 0 && *length <= n - at && memcmp(text + at, special_names[i], *length) == 0) return at;
        }
    return n;
}

mar_status text_words_encode(const text_words *w, const char *text, size_t n, text_ids *out, mar_err *err)
{
    text_step decompose = {.kind = STEP_NFD};
    const text_steps steps = {&decompose, 1, 1};
    text_budget budget = text_budget_of_text(n);
    text_matcher *matcher = text_matcher_new(&budget);
    text_buffer word = {0};
    mar_status status = matcher ? MAR_OK : err_set(err, MAR_ENOMEM, "no memory for the words of a text");
    for (size_t at = 0, size, length = 0; at < n && status == MAR_OK; at += size + length) {
        text_buffer normal = {0};
        int id = -1;
        size = find_special(w, text + at, n - at, &length, &id);
        status = text_normalize(&steps, matcher, text + at, size, &normal, err);
        if (status == MAR_OK && normal.length) words_put_words(w, normal.data, normal.length, &word, out);
        if (size == n - at)
            length = 0;
        else
            text_add_id(out, id);
        text_buffer_free(&normal);
    }
    if (status == MAR_OK && word.failed) status = err_set(err, MAR_ENOMEM, "no memory for the words of a text");
    text_buffer_free(&word);
    text_matcher_free(matcher);
    return status;
}
