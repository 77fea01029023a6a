/* The small HPS v2 and ImageReward of tests/golden/make_scores.py, for the pictures of tests/support/clip.h. */
#ifndef TESTS_SCORES_H
#define TESTS_SCORES_H

#include "tests/support/archive.h"
#include "tests/support/clip.h"

#include <math.h>
#include <string.h>

enum { SCORE_TEXTS = CLIP_TEXTS + 1 };

/* Its last text is cleaned before HPS reads it: It's a "cat" & the mat <3. */
static const char *const score_texts[SCORE_TEXTS] = {
    "a cat",
    "A photo depicts  the cat on the mat!",
    "",
    "\xc3\x9c"
    "ber \xf0\x9f\x98\x80 caf\xc3\xa9 \xe6\xbc\xa2 1234",
    CLIP_HAT CLIP_HAT CLIP_HAT CLIP_HAT CLIP_HAT CLIP_HAT CLIP_HAT CLIP_HAT,
    "It\xe2\x80\x99s a \xe2\x80\x9c"
    "cat&quot; &amp;amp; the mat &lt;3"};

/* Writes the values of a tensor, which follow from its name. */
static inline void score_values(const wt_tensor *t, uint8_t *data)
{
    uint32_t seed = 0x811c9dc5;
    for (const char *c = t->name; *c; c++) seed = (seed ^ (uint8_t)*c) * 0x01000193;
    const size_t length = strlen(t->name);
    const int is_scale = t->rank == 1 && length > 7 && strcmp(t->name + length - 7, ".weight") == 0;
    const float factor = t->rank == 1 ? 0.3f : (float)(1.5 / sqrt((double)(t->count / t->shape[0])));
    for (int64_t i = 0; i < t->count; i++) {
        uint64_t z = (((uint64_t)seed << 32) + (uint64_t)i) * 0x9e3779b97f4a7c15;
        z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
        z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
        const float value = (float)(int32_t)((z ^ (z >> 31)) >> 32) / 2147483648.0f * factor + (float)is_scale;
        memcpy(data + 4 * i, &value, 4);
    }
}

/* Returns the file of the model "hps" or "imagereward". */
static inline bytes score_model(const char *name)
{
    char path[64];
    wt_file *f = NULL;
    mar_err err = {0};
    uint64_t end = 0;
    snprintf(path, sizeof path, "tests/golden/data/%s.header", name);
    bytes header = bytes_from_file(path);
    bytes_put(&header, "", 1);
    for (const char *at = (const char *)header.data; (at = strstr(at, "data_offsets")); at++)
        end = strtoull(strchr(at, ',') + 1, NULL, 10);
    bytes made = make_safetensors((const char *)header.data, end);
    assert_ok(wt_open_memory(made.data, made.size, name, &f, &err), &err);
    for (int i = 0; i < wt_count(f); i++) score_values(wt_at(f, i), made.data + wt_at(f, i)->offset);
    wt_close(f);
    bytes_free(&header);
    return made;
}

/* Writes the models and their vocabularies to a folder: hps.pt, reward.pt, vocab.json, merges.txt, vocab.txt. */
static inline void score_folder(const char *directory)
{
    static const char *const copies[][2] = {{"tests/golden/data/clip_tiny/vocab.json", "vocab.json"},
                                            {"tests/golden/data/clip_tiny/merges.txt", "merges.txt"},
                                            {"tests/golden/data/text/words/vocab.txt", "vocab.txt"}};
    char path[4096];
    for (int i = 0; i < 5; i++) {
        const char *name = i < 3 ? copies[i][1] : i == 3 ? "hps.pt" : "reward.pt";
        bytes b = i < 3 ? bytes_from_file(copies[i][0]) : score_model(i == 3 ? "hps" : "imagereward");
        snprintf(path, sizeof path, "%s/%s", directory, name);
        bytes_to_file(&b, path);
        bytes_free(&b);
    }
}

#endif
