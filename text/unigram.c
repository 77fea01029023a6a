#include "text/unigram.h"

#include "text/protobuf.h"
#include "text/unigram_model.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* A file while it is read. */
typedef struct {
    text_unigram *u;
    const char *label; /* path, for messages */
    uint64_t model_type;
    proto_message charsmap;
    int byte_pieces;
    mar_err *err;
} reading;

/* Stores a message with the label before it. Returns MAR_EFORMAT. */
__attribute__((format(printf, 2, 3))) static mar_status unigram_refuse(const reading *r, const char *format, ...)
{
    char text[ERR_TEXT_MAX];
    va_list arguments;
    va_start(arguments, format);
    err_line_v(text, sizeof text, format, arguments);
    va_end(arguments);
    return err_set(r->err, MAR_EFORMAT, "%s: %s", r->label, text);
}

static mar_status refuse_damage(const reading *r, const char *where)
{
    return unigram_refuse(r, "%s: a damaged field; the file may be incomplete, or no SentencePiece model", where);
}

/* Reads a field that is a flag. */
static mar_status read_flag(const reading *r, const proto_field *f, const char *name, int *out)
{
    if (f->type != PROTO_VARINT || f->value > 1) return unigram_refuse(r, "%s: is no boolean", name);
    *out = (int)f->value;
    return MAR_OK;
}

static mar_status read_trainer(reading *r, proto_message m)
{
    proto_field f;
    int more;
    mar_status status = MAR_OK;
    while (status == MAR_OK && (more = proto_next(&m, &f)) != 0) {
        if (more < 0) return refuse_damage(r, "trainer_spec");
        if (f.number == 3 && f.type != PROTO_VARINT) return unigram_refuse(r, "model_type: is no number");
        if (f.number == 3) r->model_type = f.value;
        if (f.number == 24)
            status = read_flag(r, &f, "treat_whitespace_as_suffix", &r->u->whitespace_is_suffix);
        else if (f.number == 35)
            status = read_flag(r, &f, "byte_fallback", &r->u->byte_fallback);
    }
    return status;
}

static mar_status unigram_read_normalizer(reading *r, proto_message m)
{
    proto_field f;
    int more;
    mar_status status = MAR_OK;
    while (status == MAR_OK && (more = proto_next(&m, &f)) != 0) {
        if (more < 0) return refuse_damage(r, "normalizer_spec");
        if (f.number == 2 && f.type != PROTO_BYTES) return unigram_refuse(r, "precompiled_charsmap: is no string");
        if (f.number == 2) r->charsmap = f.data;
        if (f.number == 3)
            status = read_flag(r, &f, "add_dummy_prefix", &r->u->add_dummy_prefix);
        else if (f.number == 4)
            status = read_flag(r, &f, "remove_extra_whitespaces", &r->u->remove_extra_whitespaces);
        else if (f.number == 5)
            status = read_flag(r, &f, "escape_whitespaces", &r->u->escape_whitespaces);
    }
    return status;
}

/* Returns the byte of a piece "<0x41>"; -1 for another piece. */
static int piece_byte(const proto_message *piece)
{
    static const char digits[] = "0123456789ABCDEF";
    const char *high, *low, *const p = (const char *)piece->at;
    if (piece->end - piece->at != 6 || memcmp(p, "<0x", 3) != 0 || p[5] != '>' || !p[3] || !p[4]) return -1;
    if (!(high = strchr(digits, p[3])) || !(low = strchr(digits, p[4]))) return -1;
    return (int)((high - digits) * 16 + (low - digits));
}

/* Checks a piece and stores it as id. */
static mar_status unigram_add_piece(reading *r, int id, const proto_message *text, float score, uint64_t type)
{
    text_unigram *const u = r->u;
    const size_t length = (size_t)(text->end - text->at);
    if (length == 0 || length > UNIGRAM_PIECE_MAX || memchr(text->at, '\0', length))
        return unigram_refuse(r, "piece %d: has %zu bytes, or a NUL among them; expected 1 to %d", id, length,
                              UNIGRAM_PIECE_MAX);
    if (!isfinite(score)) return unigram_refuse(r, "piece %d: its score is not finite", id);
    if (type < PIECE_NORMAL || type > PIECE_BYTE)
        return unigram_refuse(r, "piece %d: is of type %llu, expected 1 to 6", id, (unsigned long long)type);
    if (type == PIECE_UNKNOWN && u->unknown >= 0)
        return unigram_refuse(r, "piece %d: is a second unknown piece, after %d", id, u->unknown);
    if (type == PIECE_UNKNOWN) u->unknown = id;
    if (type == PIECE_BYTE) {
        const int byte = piece_byte(text);
        if (byte < 0) return unigram_refuse(r, "piece %d: is of type byte, expected a name from <0x00> to <0xFF>", id);
        r->byte_pieces += u->bytes[byte] < 0;
        u->bytes[byte] = id;
    }
    if (type == PIECE_NORMAL) u->min_score = fminf(u->min_score, score);
    u->pieces[id] = (text_piece){(const char *)text->at, (uint32_t)length, id};
    u->score[id] = score;
    u->type[id] = (uint8_t)type;
    return MAR_OK;
}

static mar_status read_piece(reading *r, proto_message m, int id)
{
    proto_field f;
    proto_message text = {0};
    float score = 0;
    uint64_t type = PIECE_NORMAL;
    int more;
    while ((more = proto_next(&m, &f)) > 0) {
        static const proto_type types[] = {0, PROTO_BYTES, PROTO_I32, PROTO_VARINT};
        if (f.number <= 3 && f.type != types[f.number])
            return unigram_refuse(r, "piece %d: its field %u has another type than a piece's", id, f.number);
        if (f.number == 1) text = f.data;
        if (f.number == 2) score = proto_float(&f);
        if (f.number == 3) type = f.value;
    }
    if (more < 0) return refuse_damage(r, "pieces");
    return unigram_add_piece(r, id, &text, score, type);
}

/* Counts the pieces, and reads all other parts. */
static mar_status unigram_read_model(reading *r, proto_message m)
{
    proto_field f;
    int more;
    mar_status status = MAR_OK;
    while (status == MAR_OK && (more = proto_next(&m, &f)) != 0) {
        if (more < 0) return refuse_damage(r, "model");
        if (f.number > 3) continue;
        if (f.type != PROTO_BYTES) return unigram_refuse(r, "its field %u is no message", f.number);
        if (f.number == 1) r->u->count++; /* at most the file's bytes */
        if (f.number == 2) status = read_trainer(r, f.data);
        if (f.number == 3) status = unigram_read_normalizer(r, f.data);
    }
    if (status != MAR_OK) return status;
    if (r->u->count == 0) return unigram_refuse(r, "no pieces; expected a SentencePiece model");
    if (r->model_type != 1)
        return unigram_refuse(r, "its model_type is %llu, expected 1, unigram", (unsigned long long)r->model_type);
    return MAR_OK;
}

static mar_status unigram_read_pieces(reading *r, proto_message m)
{
    proto_field f;
    int id = 0;
    mar_status status = MAR_OK;
    while (status == MAR_OK && proto_next(&m, &f) > 0)
        if (f.number == 1) status = read_piece(r, f.data, id++);
    if (status != MAR_OK) return status;
    if (r->u->unknown < 0) return unigram_refuse(r, "no piece of type unknown");
    if (!r->u->byte_fallback && r->byte_pieces) return unigram_refuse(r, "pieces of type byte without byte_fallback");
    if (r->u->byte_fallback && r->byte_pieces != 256)
        return unigram_refuse(r, "%d pieces of type byte, expected 256", r->byte_pieces);
    return MAR_OK;
}

static int is_reserved(const text_unigram *u, int id)
{
    return u->type[id] == PIECE_UNKNOWN || u->type[id] == PIECE_CONTROL || u->type[id] == PIECE_BYTE;
}

static mar_status unigram_refuse_twice(const reading *r, const text_piece *sorted, size_t n)
{
    for (size_t i = 1; i < n; i++)
        if (text_same_piece(&sorted[i], &sorted[i - 1]))
            return unigram_refuse(r, "piece %d: has the text of piece %d", sorted[i].id, sorted[i - 1].id);
    return MAR_OK;
}

/* Builds the trie of the user-defined pieces. Normalisation does not change them. */
static int build_user(text_unigram *u, text_piece *user)
{
    size_t n = 0;
    for (size_t i = 0; i < u->n_text; i++)
        if (u->type[u->pieces[i].id] == PIECE_USER) user[n++] = u->pieces[i];
    return n == 0 || text_trie_build(user, n, &u->user);
}

/* Sorts the pieces into those of text and reserved ones, and builds the tries. */
static mar_status index_pieces(reading *r)
{
    text_unigram *const u = r->u;
    const size_t n = (size_t)u->count;
    text_piece *reserved = malloc(n * sizeof *reserved);
    if (!reserved) return err_set(r->err, MAR_ENOMEM, "%s: no memory for %d pieces", r->label, u->count);
    size_t n_reserved = 0;
    for (size_t i = 0; i < n; i++)
        if (is_reserved(u, (int)i))
            reserved[n_reserved++] = u->pieces[i];
        else
            u->pieces[u->n_text++] = u->pieces[i];
    memcpy(u->pieces + u->n_text, reserved, n_reserved * sizeof *reserved);
    text_sort_pieces(u->pieces, u->n_text);
    text_sort_pieces(u->pieces + u->n_text, n_reserved);
    mar_status status = unigram_refuse_twice(r, u->pieces, u->n_text);
    if (status == MAR_OK) status = unigram_refuse_twice(r, u->pieces + u->n_text, n_reserved);
    if (status == MAR_OK && u->n_text == 0) status = unigram_refuse(r, "no pieces of text");
    if (status == MAR_OK && (!text_trie_build(u->pieces, u->n_text, &u->trie) || !build_user(u, reserved)))
        status = err_set(r->err, MAR_ENOMEM, "%s: no memory for the index of %d pieces", r->label, u->count);
    free(reserved);
    return status;
}

/* Reads u->file. */
static mar_status unigram_read_file(text_unigram *u, size_t size, const char *label, mar_err *err)
{
    reading r = {.u = u, .label = label, .model_type = 1, .err = err};
    const proto_message m = {(const uint8_t *)u->file, (const uint8_t *)u->file + size};
    u->unknown = -1;
    u->min_score = FLT_MAX;
    u->add_dummy_prefix = u->remove_extra_whitespaces = u->escape_whitespaces = 1;
    for (int i = 0; i < 256; i++) u->bytes[i] = -1;
    mar_status status = unigram_read_model(&r, m);
    if (status != MAR_OK) return status;
    const size_t n = (size_t)u->count;
    u->pieces = malloc(n * sizeof *u->pieces);
    u->score = malloc(n * sizeof *u->score);
    u->type = malloc(n);
    if (!u->pieces || !u->score || !u->type)
        return err_set(err, MAR_ENOMEM, "%s: no memory for %d pieces", label, u->count);
    status = unigram_read_pieces(&r, m);
    if (status == MAR_OK) status = index_pieces(&r);
    if (status == MAR_OK && r.charsmap.at != r.charsmap.end)
        status = text_charsmap_read(r.charsmap.at, (size_t)(r.charsmap.end - r.charsmap.at), label, &u->charsmap, err);
    return status;
}

mar_status text_unigram_read(const void *data, size_t size, const char *label, text_unigram **out, mar_err *err)
{
    text_unigram *u = calloc(1, sizeof *u);
    *out = NULL;
    if (u) u->file = malloc(size + 1);
    if (u && u->file && size) memcpy(u->file, data, size);
    const mar_status status = u && u->file ? unigram_read_file(u, size, label, err)
                                           : err_set(err, MAR_ENOMEM, "%s: no memory for a tokenizer", label);
    if (status == MAR_OK)
        *out = u;
    else
        text_unigram_free(u);
    return status;
}

void text_unigram_free(text_unigram *u)
{
    if (!u) return;
    text_trie_free(&u->trie);
    text_trie_free(&u->user);
    text_charsmap_free(&u->charsmap);
    free(u->pieces);
    free(u->score);
    free(u->type);
    free(u->file);
    free(u);
}

int text_unigram_size(const text_unigram *u)
{
    return u->count;
}

int text_unigram_find(const text_unigram *u, const char *piece)
{
    const size_t length = strlen(piece);
    const text_piece *p = text_find_piece(u->pieces + u->n_text, (size_t)u->count - u->n_text, piece, length);
    if (!p) p = text_find_piece(u->pieces, u->n_text, piece, length);
    return p ? p->id : -1;
}
