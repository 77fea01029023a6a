#include "text/unigram_encode.h"

#include "base/printable.h"
#include "text/budget.h"
#include "text/unigram_model.h"

#include <stdlib.h>
#include <string.h>

static const char space_symbol[] = "\xe2\x96\x81"; /* U+2581, a space in pieces */

/* --- normalisation: src/normalizer.cc, Normalize and NormalizePrefix -------------------------------------------- */

/* A part of the text and its replacement. */
typedef struct {
    const char *text; /* [length] */
    size_t length, consumed;
} normal_part;

/* Returns the length of the longest user-defined piece at the start of text[0..n); 0 if there is none. */
static size_t find_user(const text_unigram *u, text_budget *budget, const char *text, size_t n)
{
    size_t passed;
    int32_t id;
    if (!u->user.nodes) return 0;
    const size_t longest = text_trie_longest(&u->user, 0, text, n, &id, &passed);
    text_charge_steps(budget, passed);
    return longest;
}

/* Normalises the first part of text[0..n), n > 0: a user-defined piece, a string of the table or a character. */
static normal_part normalize_part(const text_unigram *u, text_budget *budget, const char *text, size_t n)
{
    const char *replacement;
    unsigned c;
    size_t size = find_user(u, budget, text, n);
    if (size > 0) return (normal_part){text, size, size};
    size = text_charsmap_find(&u->charsmap, text, n, &replacement);
    if (size > 0) return (normal_part){replacement, strlen(replacement), size};
    size = utf8_decode(text, n, &c);
    return size > 0 ? (normal_part){text, size, size} : (normal_part){"\xef\xbf\xbd", 3, 1};
}

static void put_space(const text_unigram *u, text_buffer *out)
{
    if (u->escape_whitespaces)
        text_put(out, space_symbol, 3);
    else
        text_put(out, " ", 1);
}

static void put_part(const text_unigram *u, const char *text, size_t length, text_buffer *out)
{
    while (length > 0) {
        const char *const space = u->escape_whitespaces ? memchr(text, ' ', length) : NULL;
        const size_t plain = space ? (size_t)(space - text) : length;
        text_put(out, text, plain);
        if (space) put_space(u, out);
        text += plain + (space != NULL);
        length -= plain + (space != NULL);
    }
}

static void drop_spaces_at_end(const text_unigram *u, text_buffer *out)
{
    const char *const space = u->escape_whitespaces ? space_symbol : " ";
    const size_t size = strlen(space);
    while (out->length >= size && memcmp(out->data + out->length - size, space, size) == 0) out->length -= size;
}

/* Writes the normal form of text[length], in which the pieces are found, until the budget is exceeded. */
static void normalize(const text_unigram *u, text_budget *budget, const char *text, size_t length, text_buffer *out)
{
    const char *const end = text + length;
    if (u->remove_extra_whitespaces)
        while (text < end) { /* spaces at the start */
            const normal_part p = normalize_part(u, budget, text, (size_t)(end - text));
            if (p.length != 1 || *p.text != ' ') break;
            text += p.consumed;
        }
    if (text == end) return;
    if (!u->whitespace_is_suffix && u->add_dummy_prefix) put_space(u, out);
    int after_space = u->remove_extra_whitespaces;
    while (text < end && !budget->exceeded) {
        normal_part p = normalize_part(u, budget, text, (size_t)(end - text));
        if (p.length > p.consumed) text_charge_bytes(budget, p.length - p.consumed);
        for (; after_space && p.length > 0 && *p.text == ' '; p.text++) p.length--;
        put_part(u, p.text, p.length, out);
        if (p.length > 0) after_space = u->remove_extra_whitespaces && p.text[p.length - 1] == ' ';
        text += p.consumed;
    }
    if (u->remove_extra_whitespaces) drop_spaces_at_end(u, out);
    if (u->whitespace_is_suffix && u->add_dummy_prefix) put_space(u, out);
}

/* --- the best pieces: src/unigram_model.cc of 0.2.3, EncodeOptimized
 * ------------------------------------------------------ */

/* The last of the best pieces up to a place of the normal form. */
typedef struct {
    float score;    /* sum over the pieces */
    uint32_t start; /* place where the last piece begins; NOWHERE if none ends here */
    int32_t id;     /* of the last piece; after link_forward: of the piece that begins here */
} best_path;

enum { NOWHERE = UINT32_MAX };

/* Subtracted from the lowest score for an unknown character. */
static const float unknown_penalty = 10.0F;

/* A sum beyond this is subtracted from all that are still needed, so that long texts keep their precision. */
static const float reset_threshold = 100000.0F;

/* Takes the piece if no other one or a worse sum ends where it does. The first of equals stays. */
static void offer(best_path *at, float score, size_t start, int32_t id)
{
    if (at->start == (uint32_t)NOWHERE || score > at->score) *at = (best_path){score, (uint32_t)start, id};
}

/* Returns the bytes of the character, by its first byte only. */
static size_t character_size(char c)
{
    return (size_t) "\1\1\1\1\1\1\1\1\1\1\1\1\2\2\3\4"[(uint8_t)c >> 4];
}

/* Returns the score of a piece. That of a user-defined one is better than any normal piece's. */
static float piece_score(const text_unigram *u, int32_t id, size_t length)
{
    return u->type[id] == PIECE_USER ? (float)(0.1 * (double)(length - 1)) : u->score[id];
}

/* Offers all pieces that begin at `start`, and an unknown character if none is as long as the character there. Returns
 * the last place where one ends. All sums are float, as the reference's. */
static size_t offer_pieces(const text_unigram *u, text_budget *budget, const char *text, size_t n, size_t start,
                           size_t character, best_path *best)
{
    const float here = best[start].score;
    size_t last = start, at = start;
    int has_character = 0;
    uint32_t node = 0;
    while (at < n && (node = text_trie_step(&u->trie, node, (uint8_t)text[at])) != 0) {
        const int32_t id = u->trie.nodes[node].id;
        at++;
        if (id < 0 || u->type[id] == PIECE_UNUSED) continue;
        offer(&best[at], piece_score(u, id, at - start) + here, start, id);
        has_character |= at - start == character;
        last = at;
    }
    text_charge_steps(budget, at - start + 1);
    if (has_character) return last;
    offer(&best[start + character], (u->min_score - unknown_penalty) + here, start, u->unknown);
    return last > start + character ? last : start + character;
}

/* Finds the best path to every place that a character ends at, until the budget is exceeded. best is [n + 1]. */
static void find_best(const text_unigram *u, text_budget *budget, const char *text, size_t n, best_path *best)
{
    size_t reached = 0;
    for (size_t i = 0; i <= n; i++) best[i] = (best_path){0, (uint32_t)NOWHERE, -1};
    for (size_t start = 0; start < n && !budget->exceeded;) {
        const float sum = best[start].score;
        if ((sum < -reset_threshold || sum > reset_threshold) && text_charge_steps(budget, reached + 1 - start))
            for (size_t i = start; i <= reached; i++)
                if (best[i].start != (uint32_t)NOWHERE) best[i].score -= sum;
        size_t character = character_size(text[start]);
        if (character > n - start) character = n - start;
        const size_t last = offer_pieces(u, budget, text, n, start, character, best);
        if (last > reached) reached = last;
        start += character;
    }
}

/* Turns the best path around: afterwards best[i].start is the end of the piece that begins at i, and .id its id. */
static void link_forward(best_path *best, size_t n)
{
    uint32_t end = (uint32_t)n, next_end = 0;
    int32_t id = best[n].id, next_id;
    for (uint32_t start = n ? best[n].start : 0; end > 0; end = start, start = next_end, id = next_id) {
        next_end = best[start].start;
        next_id = best[start].id;
        best[start].start = end;
        best[start].id = id;
    }
}

/* Adds the ids of the pieces. Unknown characters in a row are one token, or their bytes. */
static void add_path(const text_unigram *u, const char *text, size_t n, const best_path *best, text_ids *out)
{
    int after_unknown = 0;
    for (size_t at = 0; at < n; at = best[at].start) {
        const int is_unknown = best[at].id == u->unknown;
        if (is_unknown && u->byte_fallback)
            for (size_t i = at; i < best[at].start; i++) text_add_id(out, u->bytes[(uint8_t)text[i]]);
        else if (!is_unknown || !after_unknown)
            text_add_id(out, best[at].id);
        after_unknown = is_unknown;
    }
}

mar_status text_unigram_encode(const text_unigram *u, const char *text, size_t length, text_ids *out, mar_err *err)
{
    text_buffer normal = {0};
    text_budget budget = text_budget_of_text(length);
    if (length > INT32_MAX) return err_set(err, MAR_EARG, "a text of %zu bytes, expected fewer than 2^31", length);
    normalize(u, &budget, text, length, &normal);
    const size_t n = normal.length;
    if (n == 0 && !normal.failed && !budget.exceeded) {
        text_buffer_free(&normal);
        return MAR_OK;
    }
    mar_status status = MAR_OK;
    best_path *best = normal.failed || n > INT32_MAX ? NULL : malloc((n + 1) * sizeof *best);
    if (best) {
        find_best(u, &budget, normal.data, n, best);
        status = text_budget_check(&budget, "the tokenizer", err);
        if (status == MAR_OK) {
            link_forward(best, n);
            add_path(u, normal.data, n, best, out);
        }
    } else {
        status = text_refuse_memory(length, err);
    }
    free(best);
    text_buffer_free(&normal);
    return status;
}
