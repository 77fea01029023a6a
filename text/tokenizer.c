#include "text/tokenizer.h"

#include "base/printable.h"
#include "text/bpe.h"
#include "text/bpe_encode.h"
#include "text/tiktoken.h"
#include "text/unigram.h"
#include "text/unigram_encode.h"
#include "text/words.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct text_tokenizer {
    text_unigram *unigram; /* one of these */
    text_bpe *bpe;
    text_words *words;
};

typedef enum { KIND_UNIGRAM, KIND_BPE, KIND_WORDS } file_kind;

/* Writes the path of a file in the folder. Returns whether there is one. */
static int tokenizer_find_file(const char *folder, const char *name, char path[PATH_MAX])
{
    return snprintf(path, PATH_MAX, "%s/%s", folder, name) < PATH_MAX && access(path, F_OK) == 0;
}

/* Does the same for a tokenizer.json, also where Meta's release has it: models/7b beside tokenizer. */
static int tokenizer_find_json(const char *folder, char path[PATH_MAX])
{
    static const char *const names[] = {"tokenizer.json", "text_tokenizer.json", "tokenizer/text_tokenizer.json",
                                        "../../tokenizer/text_tokenizer.json"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (tokenizer_find_file(folder, names[i], path)) return 1;
    return 0;
}

int text_tokenizer_elsewhere(const char *folder, char path[PATH_MAX])
{
    if (tokenizer_find_file(folder, "spiece.model", path) || !tokenizer_find_json(folder, path)) return 0;
    return strchr(path + strlen(folder) + 1, '/') != NULL;
}

/* Reads a file of this kind. */
static mar_status read_one(file_kind kind, const char *path, text_tokenizer *t, mar_err *err)
{
    static const size_t most[] = {
        [KIND_UNIGRAM] = UNIGRAM_FILE_MAX, [KIND_BPE] = BPE_FILE_MAX, [KIND_WORDS] = WORDS_FILE_MAX};
    char *text;
    size_t size;
    mar_status status = text_read_file(path, most[kind], &text, &size, err);
    if (status != MAR_OK) return status;
    if (kind == KIND_UNIGRAM) status = text_unigram_read(text, size, path, &t->unigram, err);
    if (kind == KIND_BPE) status = text_bpe_read(text, size, path, &t->bpe, err);
    if (kind == KIND_WORDS) status = text_words_read(text, size, path, &t->words, err);
    free(text);
    return status;
}

/* Reads files that belong together: vocab.json, merges.txt and tokenizer_config.json unless its path is NULL; or
 * emu3.tiktoken and emu3_vision_tokens.txt. */
static mar_status read_several(const char *const paths[3], int is_tiktoken, text_tokenizer *t, mar_err *err)
{
    char *text[3] = {NULL, NULL, NULL};
    text_file file[3] = {{.text = NULL}};
    mar_status status = MAR_OK;
    for (int i = 0; i < 3 && status == MAR_OK; i++) {
        if (!paths[i]) continue;
        status = text_read_file(paths[i], BPE_FILE_MAX, &text[i], &file[i].length, err);
        file[i].text = text[i];
        file[i].label = paths[i];
    }
    if (status == MAR_OK)
        status = is_tiktoken ? text_tiktoken_read(file[0].text, file[0].length, file[0].label, file[1].text,
                                                  file[1].length, file[1].label, &t->bpe, err)
                             : text_bpe_read_files(&file[0], &file[1], &file[2], &t->bpe, err);
    for (int i = 0; i < 3; i++) free(text[i]);
    return status;
}

static mar_status read_folder(const char *folder, text_tokenizer *t, mar_err *err)
{
    char path[PATH_MAX], other[PATH_MAX], config[PATH_MAX];
    if (tokenizer_find_file(folder, "spiece.model", path)) return read_one(KIND_UNIGRAM, path, t, err);
    if (tokenizer_find_json(folder, path)) return read_one(KIND_BPE, path, t, err);
    if (tokenizer_find_file(folder, "vocab.json", path) && tokenizer_find_file(folder, "merges.txt", other)) {
        const int is_configured = tokenizer_find_file(folder, "tokenizer_config.json", config);
        return read_several((const char *const[]){path, other, is_configured ? config : NULL}, 0, t, err);
    }
    if (tokenizer_find_file(folder, "emu3.tiktoken", path) &&
        tokenizer_find_file(folder, "emu3_vision_tokens.txt", other))
        return read_several((const char *const[]){path, other, NULL}, 1, t, err);
    return err_set(
        err, MAR_EIO,
        "%s: no tokenizer, expected spiece.model, tokenizer.json, vocab.json and merges.txt, or emu3.tiktoken "
        "and emu3_vision_tokens.txt",
        folder);
}

/* Opens a folder, or with is_words a vocab.txt. */
static mar_status open_tokenizer(const char *path, int is_words, text_tokenizer **out, mar_err *err)
{
    text_tokenizer *t = calloc(1, sizeof *t);
    *out = NULL;
    if (!t) return err_set(err, MAR_ENOMEM, "%s: no memory for a tokenizer", path);
    const mar_status status = is_words ? read_one(KIND_WORDS, path, t, err) : read_folder(path, t, err);
    if (status == MAR_OK)
        *out = t;
    else
        text_tokenizer_free(t);
    return status;
}

mar_status text_tokenizer_open(const char *folder, text_tokenizer **out, mar_err *err)
{
    return open_tokenizer(folder, 0, out, err);
}

mar_status text_tokenizer_open_words(const char *path, text_tokenizer **out, mar_err *err)
{
    return open_tokenizer(path, 1, out, err);
}

void text_tokenizer_free(text_tokenizer *t)
{
    if (!t) return;
    text_unigram_free(t->unigram);
    text_bpe_free(t->bpe);
    text_words_free(t->words);
    free(t);
}

mar_status text_tokenize(const text_tokenizer *t, const char *text, size_t length, int *ids, int max, int *count,
                         mar_err *err)
{
    text_ids out = {.ids = ids, .max = max};
    unsigned c;
    *count = 0;
    for (size_t at = 0, size; at < length; at += size)
        if ((size = utf8_decode(text + at, length - at, &c)) == 0)
            return err_set(err, MAR_EARG, "the text is not UTF-8 at byte %zu", at);
    const mar_status status = t->words ? text_words_encode(t->words, text, length, &out, err)
                              : t->bpe ? text_bpe_encode(t->bpe, text, length, &out, err)
                                       : text_unigram_encode(t->unigram, text, length, &out, err);
    if (status == MAR_OK) *count = out.count;
    return status;
}

int text_tokenizer_size(const text_tokenizer *t)
{
    if (t->words) return text_words_size(t->words);
    return t->bpe ? text_bpe_size(t->bpe) : text_unigram_size(t->unigram);
}

int text_tokenizer_find(const text_tokenizer *t, const char *piece)
{
    if (t->words) return text_words_find(t->words, piece);
    return t->bpe ? text_bpe_find(t->bpe, piece) : text_unigram_find(t->unigram, piece);
}
