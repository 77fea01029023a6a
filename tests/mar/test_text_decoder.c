/* Prompts of models that write images among text: ids of the model's vocabulary. */
#include "tests/support/decoder_folder.h"
#include "tests/support/decoders.h"
#include "tests/support/demo.h"
#include "tests/support/support.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { WIDTH = 4, TOKENS = 96 };

static char warning[256]; /* the last one of a handle of open_size */

static void keep_warning(void *user, mar_log_level level, const char *line)
{
    (void)user;
    if (level == MAR_LOG_WARNING) snprintf(warning, sizeof warning, "%s", line);
}

/* Opens a handle for images of a size; NULL: the model's own. */
static mar *open_size(const char *size)
{
    mar *m;
    mar_options o;
    mar_options_init(&o, sizeof o);
    o.backend = MAR_BACKEND_CPU;
    o.threads = 1;
    o.image_size = size;
    o.log = keep_warning;
    *warning = '\0';
    if (mar_open(&o, &m) != MAR_OK) fail_msg("%s", mar_error(m));
    return m;
}

static mar_text *load(mar *m, const char *folder)
{
    mar_text *t;
    if (mar_text_load(m, folder, &t) != MAR_OK) fail_msg("%s", mar_error(m));
    return t;
}

/* Checks that the last `count` positions are tokens, from id `first` to the ids `last`, [n]. */
static void assert_sequence(const float *features, const uint8_t *mask, int count, int first, const int *last, int n)
{
    assert_in_range(count, n, TOKENS);
    for (int i = 0; i < TOKENS; i++) assert_int_equal(mask[i], i >= TOKENS - count);
    for (int i = 0; i < TOKENS - count; i++) assert_true(features[i] == 0);
    assert_true(features[TOKENS - count] == (float)first);
    for (int i = 0; i < n; i++) assert_true(features[TOKENS - n + i] == (float)last[i]);
}

/* Ids are those of tests/golden/data/prompts/ids.txt. */
TEST_CASE(prompts_of_lumina)
{
    static const char *const types[] = {"F32", "BF16", "F16"}, *const prompts[] = {"a corgi in the snow", "a"};
    static const int own[] = {18, 17, 21, 21}, other[] = {18, 17, 22, 20};
    float features[2 * TOKENS];
    uint8_t mask[2 * TOKENS];
    int counts[2];
    for (size_t i = 0; i < 3; i++) {
        mar *m = open_size(i ? "512x1024" : NULL);
        mar_text *t = load(m, decoder_folder("lumina-mgpt", types[i], WIDTH));
        const mar_text_config *c = mar_text_get_config(t);
        if (!i) assert_string_equal(warning, "");
        if (i &&
            !strstr(warning, ": an image of 512x1024: Lumina-mGPT was trained on other sizes, the nearest is 544x1056"))
            fail_msg("\"%s\"", warning);
        assert_string_equal(c->family, "lumina-mgpt");
        assert_string_equal(c->name, "Lumina-mGPT");
        assert_int_equal(c->dim, 1);
        assert_int_equal(c->vocabulary, 400);
        assert_int_equal(c->tokens, 512);
        assert_int_equal(c->negative, 0);
        assert_int_equal(mar_text_encode(t, prompts, 2, MAR_CLEAN_LLAMAGEN, TOKENS, features, mask, counts), MAR_OK);
        assert_true(counts[0] > counts[1]);
        for (int p = 0; p < 2; p++)
            assert_sequence(features + p * TOKENS, mask + p * TOKENS, counts[p], 0, i ? other : own, 4);
        assert_int_equal(mar_text_encode_negative(t, NULL, TOKENS, features, mask, counts), MAR_OK);
        assert_int_equal(counts[0], 3);
        assert_sequence(features, mask, 3, 17, i ? other + 1 : own + 1, 3);
        assert_int_equal(mar_text_encode_negative(t, "blurry", TOKENS, features, mask, NULL), MAR_EARG);
        assert_string_equal(mar_error(m), "Lumina-mGPT has no negative prompt, expected NULL");
        mar_text_free(t);
        mar_close(m);
    }
}

TEST_CASE(prompts_of_emu3)
{
    static const char *const prompts[] = {"a corgi"};
    static const int last[] = {769, 24, 15, 9, 24, 15, 768};
    float features[512];
    uint8_t mask[512];
    int count, own;
    mar *m = open_size(NULL);
    mar_text *t = load(m, decoder_folder("emu3", "BF16", WIDTH));
    assert_int_equal(mar_text_get_config(t)->negative, 1);
    assert_int_equal(mar_text_encode(t, prompts, 1, MAR_CLEAN_OFF, TOKENS, features, mask, &count), MAR_OK);
    assert_sequence(features, mask, count, 766, last, 7);
    assert_int_equal(mar_text_encode_negative(t, NULL, 512, features, mask, &own), MAR_OK);
    assert_true(own > TOKENS);
    assert_int_equal(mar_text_encode_negative(t, "blurry, text", TOKENS, features, mask, &count), MAR_OK);
    assert_sequence(features, mask, count, 766, last, 7);
    assert_int_equal(mar_text_encode_negative(t, "", TOKENS, features, mask, &count), MAR_OK);
    assert_int_equal(count, 8);
    assert_int_equal(mar_text_encode_negative(t, NULL, TOKENS, features, mask, &count), MAR_EARG);
    assert_non_null(strstr(mar_error(m), "the negative prompt: "));
    mar_text_free(t);
    mar_close(m);
}

/* Folders in shards, and Meta's release with its pickle: features are those of the ids that the layout's code makes. */
TEST_CASE(prompts_of_folders_in_other_layouts)
{
    enum { POSITIONS = 200, KINDS = 3 };
    static const decoder_kind kinds[KINDS] = {DECODER_LUMINA, DECODER_ANOLE, DECODER_RELEASE};
    static const char *const prompts[] = {"two cats"};
    static float ours[POSITIONS], theirs[POSITIONS];
    uint8_t mask[POSITIONS], their_mask[POSITIONS];
    char *directory = test_directory();
    for (int k = 0; k < KINDS; k++) {
        const int columns = k ? 32 : 6, rows = k ? 32 : 4;
        char *folder = decoder_write(directory, kinds[k], 0);
        int ids[DECODER_IDS], count;
        mar *m = open_size(k ? NULL : "96x64");
        mar_text *t = load(m, folder);
        for (int negative = 0; negative < 2; negative++) {
            const int n = negative ? decoder_negative(kinds[k], columns, rows, ids)
                                   : decoder_prompt(kinds[k], prompts[0], columns, rows, ids);
            decoder_features(ids, n, POSITIONS, theirs, their_mask);
            const mar_status status =
                negative ? mar_text_encode_negative(t, NULL, POSITIONS, ours, mask, &count)
                         : mar_text_encode(t, prompts, 1, MAR_CLEAN_OFF, POSITIONS, ours, mask, &count);
            if (status != MAR_OK) fail_msg("%s: %s", folder, mar_error(m));
            assert_int_equal(count, n);
            assert_memory_equal(mask, their_mask, sizeof mask);
            for (int i = 0; i < POSITIONS; i++)
                if (ours[i] != theirs[i]) fail_msg("%s: %g at %d, expected %g", folder, ours[i], i, theirs[i]);
        }
        mar_text_free(t);
        mar_close(m);
        free(folder);
    }
}

/* Nothing is cut: a longer prompt is an error, and leaves zeros. */
TEST_CASE(a_long_prompt_is_refused)
{
    static const char *const prompts[] = {"a", "a corgi in the snow"};
    static const float zeros[2 * 8];
    float features[2 * 8];
    uint8_t mask[2 * 8];
    mar *m = open_size(NULL);
    mar_text *t = load(m, decoder_folder("anole", "F32", WIDTH));
    memset(features, 1, sizeof features);
    assert_int_equal(mar_text_encode(t, prompts, 2, MAR_CLEAN_OFF, 8, features, mask, NULL), MAR_EARG);
    assert_string_equal(mar_error(m), "prompt 1: 13 tokens with the template, expected 8 at most");
    assert_memory_equal(features, zeros, sizeof zeros);
    assert_int_equal(mar_text_encode(t, prompts, 1, MAR_CLEAN_OFF, 8, features, mask, NULL), MAR_OK);
    mar_text_free(t);
    mar_close(m);
}

static void refuse(const char *size, const char *folder, mar_status status, const char *words)
{
    mar *m = open_size(size);
    mar_text *t = (mar_text *)1;
    assert_int_equal(mar_text_load(m, folder, &t), status);
    assert_null(t);
    if (!strstr(mar_error(m), words)) fail_msg("\"%s\" does not say \"%s\"", mar_error(m), words);
    mar_close(m);
}

TEST_CASE(folders_that_are_refused)
{
    char *folder = decoder_folder("lumina-mgpt", "F32", WIDTH);
    refuse("768x770", folder, MAR_EARG, "multiples of 32");
    refuse("1024x1024", folder, MAR_EARG, "the model's context of 4096");
    refuse("768x736", folder, MAR_EMODEL, "the tokenizer has no token <reserved08823>");
    refuse("256x512", decoder_folder("anole", "F32", WIDTH), MAR_EARG, "Anole makes images of 512x512 only");
    write_in(folder, "config.json", "{\"architectures\":[\"LlamaForCausalLM\"],\"model_type\":\"llama\"}");
    refuse(NULL, folder, MAR_EMODEL, "is a LlamaForCausalLM, expected a T5 encoder");
    write_in(folder, "config.json", LUMINA_CONFIG);
    write_in(folder, "tokenizer.json", "{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0},\"merges\":[]}}");
    refuse(NULL, folder, MAR_EMODEL, "the tokenizer has no token <s>");
    write_in(folder, "tokenizer.json", "{");
    refuse(NULL, folder, MAR_EFORMAT, "tokenizer.json: no JSON");
}
