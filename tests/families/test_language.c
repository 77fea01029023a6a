/* Families of language models: recognition, ids and sizes, and what is refused. */
#include "tests/support/archive.h"
#include "tests/support/decoder_folder.h"
#include "tests/support/support.h"

#include "families/families.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define EMBEDDING "model.embed_tokens.weight"
#define TENSORS   "model.safetensors"

static const char lumina[] = LUMINA_CONFIG;

/* Returns a folder with a configuration and an embedding of `rows`. */
static char *folder_of(const char *config, int rows)
{
    char *folder = test_directory();
    write_in(folder, "config.json", config);
    write_embedding(folder, TENSORS, EMBEDDING, "F32", rows, 2);
    return folder;
}

static mar_status open_in(const char *folder, language *g, mar_err *err)
{
    wt_file *f;
    assert_ok(wt_open_folder(folder, MAR_WEIGHTS_AUTO, &f, err), err);
    const mar_status status = language_open(f, g, err);
    assert_int_equal(language_recognise(f) || status == MAR_EMODEL, 1);
    wt_close(f);
    return status;
}

static language open_good(const char *config, int rows)
{
    language g;
    mar_err err = {0};
    char *folder = folder_of(config, rows);
    assert_ok(open_in(folder, &g, &err), &err);
    return g;
}

static void refuse(const char *config, int rows, const char *words)
{
    language g;
    mar_err err = {0};
    char *folder = folder_of(config, rows);
    assert_int_equal(open_in(folder, &g, &err), MAR_EMODEL);
    if (strncmp(err.text, folder, strlen(folder)) != 0 || !strstr(err.text, words))
        fail_msg("\"%s\" does not name the folder and \"%s\"", err.text, words);
    assert_null(g.vocabulary.image_id);
}

/* --- families ----------------------------------------------------------------------------------------------------- */

TEST_CASE(chameleons_of_both_kinds)
{
    language g = open_good(lumina, 16);
    assert_string_equal(g.family->name, "lumina-mgpt");
    assert_int_equal(g.vocabulary.rows, 16);
    assert_int_equal(g.vocabulary.count, 4);
    const int ids[] = {7, 5, 6, 4};
    assert_memory_equal(g.vocabulary.image_id, ids, sizeof ids);
    assert_int_equal(g.vocabulary.line_end, 8);
    assert_int_equal(g.context, 4096);
    language_free(&g);
    assert_null(g.vocabulary.image_id);
    g = open_good("{\"architectures\":[\"ChameleonForConditionalGeneration\"],\"mask_image_logits\":false,"
                  "\"max_position_embeddings\":10240,\"vocabulary_map\":{\"IMGIMGAZ\":3,\"<reserved08799>\":8}}",
                  9);
    assert_string_equal(g.family->name, "lumina-mgpt");
    assert_int_equal(g.context, 10240);
    language_free(&g);
    g = open_good("{\"model_type\":\"chameleon\",\"vocabulary_map\":{\"IMGIMGBZ\":3,\"IMGIMGAZ\":2}}", 4);
    assert_string_equal(g.family->name, "anole");
    assert_int_equal(g.vocabulary.line_end, -1);
    assert_int_equal(g.vocabulary.image_id[1], 3);
    language_free(&g);
}

TEST_CASE(emu3_of_both_layouts)
{
    language g = open_good("{\"architectures\":[\"Emu3ForCausalLM\"],\"eoi_token_id\":11,\"eol_token_id\":5,"
                           "\"image_area\":262144,\"max_position_embeddings\":9216}",
                           20);
    assert_string_equal(g.family->name, "emu3");
    assert_int_equal(g.vocabulary.count, 8);
    for (int i = 0; i < 8; i++) assert_int_equal(g.vocabulary.image_id[i], 12 + i);
    assert_int_equal(g.vocabulary.line_end, 5);
    assert_int_equal(g.width, 512);
    assert_int_equal(g.height, 512);
    language_free(&g);
    g = open_good("{\"architectures\":[\"Emu3ForConditionalGeneration\"],\"text_config\":{\"max_position_embeddings\":"
                  "8300},\"vocabulary_map\":{\"<|extra_200|>\":1,\"<|visual token 000001|>\":2,"
                  "\"<|visual token 000000|>\":3}}",
                  4);
    assert_int_equal(g.vocabulary.count, 2);
    assert_int_equal(g.vocabulary.image_id[0], 3);
    assert_int_equal(g.vocabulary.line_end, 1);
    assert_int_equal(g.context, 8300);
    language_free(&g);
}

/* Rows behind the vocabulary, or behind 32768 visual tokens, are padding. */
TEST_CASE(padding_is_no_image_token)
{
    language g = open_good(
        "{\"architectures\":[\"Emu3ForCausalLM\"],\"eoi_token_id\":11,\"eol_token_id\":5,\"vocab_size\":18}", 24);
    assert_int_equal(g.vocabulary.rows, 24);
    assert_int_equal(g.vocabulary.count, 6);
    language_free(&g);
    g = open_good("{\"architectures\":[\"Emu3ForCausalLM\"],\"eoi_token_id\":3,\"eol_token_id\":2}", 4 + 32768 + 50);
    assert_int_equal(g.vocabulary.count, 32768);
    assert_int_equal(g.vocabulary.image_id[32767], 4 + 32767);
    language_free(&g);
    refuse("{\"architectures\":[\"Emu3ForCausalLM\"],\"eoi_token_id\":3,\"eol_token_id\":2,\"vocab_size\":18}", 16,
           "a vocabulary of 18, its embedding 16 rows");
}

/* Meta's layout: the vocabulary is in the tokenizer. */
TEST_CASE(anole_as_released)
{
    language g;
    mar_err err = {0};
    char *root = test_directory(), *folder, *path;
    assert_true(asprintf(&path, "%s/models", root) > 0 && asprintf(&folder, "%s/models/7b", root) > 0);
    assert_int_equal(mkdir(path, 0700) | mkdir(folder, 0700), 0);
    free(path);
    assert_true(asprintf(&path, "%s/tokenizer", root) > 0);
    assert_int_equal(mkdir(path, 0700), 0);
    write_in(folder, "params.json", "{\"model\":{\"dim\":2,\"n_layers\":1,\"n_heads\":1}}");
    write_embedding(folder, "consolidated.pth", "tok_embeddings.weight", "BF16", 6, 2);
    assert_int_equal(open_in(folder, &g, &err), MAR_EIO);
    assert_non_null(strstr(err.text, "no tokenizer"));
    write_in(
        path, "text_tokenizer.json",
        "{\"model\":{\"type\":\"BPE\",\"vocab\":{\"<s>\":0,\"IMGIMGBZ\":1,\"IMGIMGAZ\":2,\"a\":3},\"merges\":[]}}");
    assert_ok(open_in(folder, &g, &err), &err);
    assert_string_equal(g.family->name, "anole");
    assert_int_equal(g.vocabulary.count, 2);
    assert_int_equal(g.vocabulary.image_id[0], 2);
    assert_int_equal(g.vocabulary.image_id[1], 1);
    language_free(&g);
    free(path);
    free(folder);
}

TEST_CASE(other_models_are_refused)
{
    refuse("{\"architectures\":[\"LlamaForCausalLM\"]}", 4,
           "is a LlamaForCausalLM, expected Harmon, NextStep-1, Lumina-mGPT, Anole");
    refuse("{}", 4, "does not say what it is");
    refuse("{\"model_type\":\"chameleon\",\"vocabulary_map\":{\"a\":1}}", 4, "no image tokens");
    refuse("{\"model_type\":\"chameleon\",\"vocabulary_map\":{\"IMGIMGBZ\":1}}", 4, "lacks some of its image tokens");
    refuse("{\"model_type\":\"chameleon\",\"vocabulary_map\":{\"IMGIMGAZ\":4}}", 4, "id 4, expected one of the embedd");
    refuse("{\"model_type\":\"chameleon\",\"vocabulary_map\":{\"IMGIMGAZ\":-1}}", 4, "id -1, expected");
    refuse("{\"model_type\":\"chameleon\",\"vocabulary_map\":{\"IMGIMGAZ\":\"1\"}}", 4, "is no whole number");
    refuse("{\"model_type\":\"chameleon\",\"vocabulary_map\":{\"IMGIMGAZ\":1,\"IMGIMGAZ\":2}}", 4, "there twice");
    refuse("{\"model_type\":\"chameleon\",\"vocabulary_map\":{\"IMGIMGAZ\":1,\"IMGIMGBZ\":1}}", 4, "there twice");
    refuse("{\"model_type\":\"chameleon\",\"vocabulary_map\":{\"IMGIMGJJJJJJJZ\":1}}", 4, "no image tokens");
    refuse("{\"model_type\":\"chameleon\",\"dropout\":0,\"vocabulary_map\":{\"IMGIMGAZ\":1}}", 4,
           "no line end <reserved08799>");
    refuse("{\"architectures\":[\"Emu3ForCausalLM\"]}", 4, "no image tokens");
    refuse("{\"architectures\":[\"Emu3ForCausalLM\"],\"eoi_token_id\":1,\"eol_token_id\":3}", 4, "no line end");
    refuse("{\"architectures\":[\"Emu3ForCausalLM\"],\"eoi_token_id\":-1}", 4, "no whole number from 0 on");
    refuse("{\"model_type\":\"chameleon\",\"max_position_embeddings\":1.5}", 4, "max_position_embeddings");
}

TEST_CASE(a_model_without_embedding_is_refused)
{
    language g;
    mar_err err = {0};
    char *folder = folder_of(lumina, 16);
    write_embedding(folder, TENSORS, "weight", "F32", 16, 2);
    assert_int_equal(open_in(folder, &g, &err), MAR_EMODEL);
    assert_non_null(strstr(err.text, "no embedding model.embed_tokens.weight"));
}

/* --- metadata ----------------------------------------------------------------------------------------------------- */

/* Opens the language of a file with metadata, JSON. */
static mar_status open_metadata(const char *metadata, language *g, mar_err *err)
{
    char *header;
    wt_file *f;
    assert_true(asprintf(&header,
                         "{\"__metadata__\":{%s},\"%s\":{\"dtype\":\"F32\",\"shape\":[16,1],\"data_offsets\":[0,64]}}",
                         metadata, EMBEDDING) > 0);
    bytes b = make_safetensors(header, 64);
    assert_ok(wt_open_memory(b.data, b.size, "file", &f, err), err);
    const mar_status status = language_open(f, g, err);
    wt_close(f);
    bytes_free(&b);
    free(header);
    return status;
}

TEST_CASE(metadata_say_the_same)
{
    language g = open_good(lumina, 16), h;
    wt_pairs p = {.count = 0};
    mar_err err = {0};
    char text[512] = "";
    g.width = 1024;
    assert_ok(language_put(&g, &p, &err), &err);
    assert_int_equal(p.count, 5);
    for (int i = 0; i < p.count; i++) {
        const size_t n = strlen(text);
        snprintf(text + n, sizeof text - n, "%s\"%s\":\"%s\"", i ? "," : "", p.pairs[i][0], p.pairs[i][1]);
    }
    assert_non_null(strstr(text, "\"mar.image_tokens\":\"7,5-6,4\""));
    wt_pairs_free(&p);
    assert_ok(open_metadata(text, &h, &err), &err);
    assert_ptr_equal(h.family, g.family);
    assert_int_equal(h.vocabulary.count, g.vocabulary.count);
    assert_memory_equal(h.vocabulary.image_id, g.vocabulary.image_id, 4 * sizeof *g.vocabulary.image_id);
    assert_int_equal(h.vocabulary.line_end, g.vocabulary.line_end);
    assert_int_equal(h.context, g.context);
    assert_int_equal(h.width, 1024);
    assert_int_equal(h.height, 768);
    language_free(&g);
    language_free(&h);
}

/* Opens tensors of one number and gives them this library's names. */
static mar_status open_named(const char *const *names, int n, wt_file **f, mar_err *err)
{
    char header[512] = "{";
    for (int i = 0; i < n; i++)
        snprintf(header + strlen(header), sizeof header - strlen(header),
                 "%s\"%s\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[%d,%d]}", i ? "," : "", names[i], 4 * i,
                 4 * i + 4);
    strcat(header, "}");
    bytes b = make_safetensors(header, 4 * (size_t)n);
    char *path = test_path("named.safetensors");
    bytes_to_file(&b, path);
    bytes_free(&b);
    *f = open_weights(path);
    return family_rename(*f, err);
}

TEST_CASE(names_of_transformers)
{
    static const char *const saved[] = {"text_model.model.embed_tokens.weight", "text_model.lm_head.weight",
                                        "vqmodel.a"},
                             *const both[] = {"text_model.model.embed_tokens.weight", "model.embed_tokens.weight"},
                             *const clip[] = {"text_model.embeddings.token_embedding.weight"};
    mar_err err = {0};
    wt_file *f;
    assert_ok(open_named(saved, 3, &f, &err), &err);
    assert_true(wt_find(f, EMBEDDING) && wt_find(f, "lm_head.weight") && wt_find(f, "vqmodel.a") &&
                !wt_find(f, saved[0]));
    wt_close(f);
    assert_int_equal(open_named(both, 2, &f, &err), MAR_EFORMAT);
    assert_non_null(strstr(err.text, "tensor \"model.embed_tokens.weight\" appears twice"));
    wt_close(f);
    assert_ok(open_named(clip, 1, &f, &err), &err);
    assert_non_null(wt_find(f, clip[0]));
    wt_close(f);
}

static void refuse_metadata(const char *metadata, const char *words)
{
    language g;
    mar_err err = {0};
    assert_int_equal(open_metadata(metadata, &g, &err), MAR_EMODEL);
    if (!strstr(err.text, words)) fail_msg("\"%s\" does not say \"%s\"", err.text, words);
}

TEST_CASE(bad_metadata_are_refused)
{
    refuse_metadata("\"mar.family\":\"llama\"", "is a llama, expected Harmon, NextStep-1, Lumina-mGPT");
    refuse_metadata("\"mar.family\":\"anole\",\"mar.image_tokens\":\"\"", "no image tokens");
    static const char *const lists[] = {"x", "1-", "-1", "3-2", "1;2", "16", "1-99999999999999999999", "1,,2", "1--2"};
    for (size_t i = 0; i < sizeof lists / sizeof *lists; i++) {
        char text[128];
        snprintf(text, sizeof text, "\"mar.family\":\"anole\",\"mar.image_tokens\":\"%s\"", lists[i]);
        refuse_metadata(text, "mar.image_tokens is no list of ids below 16");
    }
    refuse_metadata("\"mar.family\":\"anole\",\"mar.image_tokens\":\"1-3,2\"", "there twice");
    refuse_metadata("\"mar.family\":\"emu3\",\"mar.image_tokens\":\"1-3\",\"mar.line_end\":\"3\"", "no line end");
    refuse_metadata("\"mar.family\":\"emu3\",\"mar.image_tokens\":\"1-3\",\"mar.line_end\":\"99\"", "no line end");
    refuse_metadata("\"mar.family\":\"anole\",\"mar.image_tokens\":\"1\",\"mar.context\":\"0\"", "mar.context");
    refuse_metadata("\"mar.family\":\"anole\",\"mar.image_tokens\":\"1\",\"mar.image_size\":\"3\"", "mar.image_size");
}

/* --- sizes -------------------------------------------------------------------------------------------------------- */

static void expect_size(const language *g, int width, int height, int columns, int rows)
{
    mar_err err = {0};
    int c = 0, r = 0;
    assert_ok(language_size(g, "m", width, height, &c, &r, &err), &err);
    assert_int_equal(c, columns);
    assert_int_equal(r, rows);
}

static void refuse_size(const language *g, int width, int height, const char *words)
{
    mar_err err = {0};
    int c, r;
    assert_int_equal(language_size(g, "m", width, height, &c, &r, &err), MAR_EARG);
    if (strncmp(err.text, "m: an image of ", 15) != 0 || !strstr(err.text, words))
        fail_msg("\"%s\" does not say \"%s\"", err.text, words);
}

static void expect_nearest(const language *g, int width, int height, const char *expected)
{
    char text[32];
    mar_err err = {0};
    int columns, rows, w, h;
    assert_ok(language_size(g, "m", width, height, &columns, &rows, &err), &err);
    language_nearest(g, columns, rows, &w, &h);
    snprintf(text, sizeof text, "%dx%d", w, h);
    assert_string_equal(text, expected);
}

/* Returns the number of sizes that are their own nearest. */
static int count_trained(const language *g)
{
    int n = 0, w, h;
    for (int columns = 2; columns <= 128; columns += 2)
        for (int rows = 2; rows <= 128; rows += 2) {
            language_nearest(g, columns, rows, &w, &h);
            n += w == 16 * columns && h == 16 * rows;
        }
    return n;
}

TEST_CASE(sizes_of_images)
{
    language g = open_good(lumina, 16);
    expect_size(&g, 0, 0, 48, 48);
    expect_size(&g, 768, 512, 48, 32);
    expect_size(&g, 1024, 256, 64, 16);
    assert_int_equal(language_room(&g, 48, 48), LANGUAGE_PROMPT_MAX);
    assert_int_equal(language_room(&g, 63, 63), 4096 - 63 * 64 + 1);
    expect_nearest(&g, 0, 0, "768x768");
    expect_nearest(&g, 1024, 512, "1056x544"); /* 33 x 17 of 24 x 24 units */
    expect_nearest(&g, 512, 512, "512x512");
    expect_nearest(&g, 1024, 992, "768x736"); /* the context does not hold the images of 1024 */
    expect_nearest(&g, 1536, 384, "1536x384");
    expect_nearest(&g, 128, 96, "576x448");
    expect_nearest(&g, 768, 512, "928x608");
    expect_nearest(&g, 32, 32, "512x512");
    assert_int_equal(count_trained(&g), 49 + 73); /* those of 512 and 768 */
    g.context = 10240;
    expect_nearest(&g, 1024, 992, "1024x992");
    expect_nearest(&g, 2048, 512, "2048x512");
    assert_int_equal(count_trained(&g), 49 + 73 + 97); /* and of 1024 */
    g.context = 4096;
    refuse_size(&g, 770, 512, "multiples of 32");
    refuse_size(&g, 16, 16, "multiples of 32");
    refuse_size(&g, 1056, 256, "at most 4 times the other");
    refuse_size(&g, 1024, 1024, "has 4160 tokens: the model's context of 4096 has to hold 16 more");
    refuse_size(&g, -32, 32, "multiples of 32");
    language_free(&g);
    g = open_good("{\"model_type\":\"chameleon\",\"vocabulary_map\":{\"IMGIMGAZ\":2}}", 4);
    expect_size(&g, 0, 0, 32, 32);
    expect_size(&g, 512, 512, 32, 32);
    refuse_size(&g, 256, 512, "Anole makes images of 512x512 only");
    language_free(&g);
    g = open_good("{\"architectures\":[\"Emu3ForCausalLM\"],\"eoi_token_id\":1,\"eol_token_id\":0}", 4);
    expect_size(&g, 0, 0, 90, 90);
    expect_size(&g, 8, 1600, 1, 200);
    refuse_size(&g, 724, 720, "multiples of 8");
    language_free(&g);
}

TEST_CASE(sizes_as_text)
{
    int width = 0, height = 0;
    assert_int_equal(language_read_size("768x512", &width, &height), 1);
    assert_int_equal(width, 768);
    assert_int_equal(height, 512);
    static const char *const bad[] = {"",     "768",   "x",     "768x",    "x768", "768X512",  "768x512 ",
                                      " 1x1", "-1x1",  "0x16",  "16x0",    "1e3x", "16385x16", "99999999999x1",
                                      "+1x1", "1x1x1", "1x1\n", "0.5x0.5", "1 x1", "1x 1"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        if (language_read_size(bad[i], &width, &height)) fail_msg("%s is a size", bad[i]);
    assert_int_equal(width, 768);
}
