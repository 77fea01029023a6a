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

/* Writes the path of a file in the folder. Returns whether there is one. */
static int find_file(const char *folder, const char *name, char path[PATH_MAX])
{
    return snprintf(path, PATH_MAX, "%s/%s", folder, name) < PATH_MAX && access(path, F_OK) == 0;
}

/* Does the same for a tokenizer.json, also where Meta's release has it: models/7b beside tokenizer. */
static int find_json(const char *folder, char path[PATH_MAX])
{
    static const char *const names[] = {"tokenizer.json", "text_tokenizer.json", "tokenizer/text_tokenizer.json",
                                        "../../tokenizer/text_tokenizer.json"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (find_file(folder, names[i], path)) return 1;
    return 0;
}

int text_tokenizer_elsewhere(const char *folder, char path[PATH_MAX])
{
    if (find_file(folder, "spiece.model", path) || !find_json(folder, path)) return 0;
    return strchr(path + strlen(folder) + 1, '/') != NULL;
}

static mar_status open_file(const char *folder, text_tokenizer *t, mar_err *err)
{
    char path[PATH_MAX], merges[PATH_MAX];
    if (find_file(folder, "spiece.model", path)) return text_unigram_open(path, &t->unigram, err);
    if (find_json(folder, path)) return text_bpe_open(path, &t->bpe, err);
    if (find_file(folder, "vocab.json", path) && find_file(folder, "merges.txt", merges))
        return text_bpe_open_files(path, merges, &t->bpe, err);
    if (find_file(folder, "emu3.tiktoken", path) && find_file(folder, "emu3_vision_tokens.txt", merges))
        return text_tiktoken_open(path, merges, &t->bpe, err);
    return err_set(
        err, MAR_EIO,
        "%s: no tokenizer, expected spiece.model, tokenizer.json, vocab.json and merges.txt, or emu3.tiktoken "
        "and emu3_vision_tokens.txt",
        folder);
}

static mar_status open_words(const char *path, text_tokenizer *t, mar_err *err)
{
    return text_words_open(path, &t->words, err);
}

static mar_status open_with(mar_status (*open)(const char *path, text_tokenizer *t, mar_err *err), const char *path,
                            text_tokenizer **out, mar_err *err)
{
    text_tokenizer *t = calloc(1, sizeof *t);
    *out = NULL;
    if (!t) return err_set(err, MAR_ENOMEM, "%s: no memory for a tokenizer", path);
    const mar_status status = open(path, t, err);
    if (status == MAR_OK)
        *out = t;
    else
        text_tokenizer_free(t);
    return status;
}

mar_status text_tokenizer_open(const char *folder, text_tokenizer **out, mar_err *err)
{
    return open_with(open_file, folder, out, err);
}

mar_status text_tokenizer_open_words(const char *path, text_tokenizer **out, mar_err *err)
{
    return open_with(open_words, path, out, err);
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
