/* The shape of a LlamaGen model from the tensors of a file. Compares it with the official lists of tensors
 * (tests/weights/data/formats), and with models made by gpt.py. */
#include "tests/support/families.h"
#include "families/mar.h"
#include "tests/support/archive.h"
#include "tests/support/shape_list.h"
#include "tests/support/support.h"
#include "vae/vae.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CONFIG(WIDTH, DEPTH, HEADS, HIDDEN, VOCABULARY, TOKENS, CLASSES, PREFIX, CAPTION, PARAMETERS)                  \
    {                                                                                                                  \
        .shape = {.width = WIDTH,                                                                                      \
                  .depth = DEPTH,                                                                                      \
                  .heads = HEADS,                                                                                      \
                  .hidden = HIDDEN,                                                                                    \
                  .vocabulary = VOCABULARY,                                                                            \
                  .seq_len = TOKENS,                                                                                   \
                  .classes = CLASSES,                                                                                  \
                  .prefix = PREFIX,                                                                                    \
                  .caption_dim = CAPTION},                                                                             \
        .config.parameters = PARAMETERS                                                                                \
    }

static void expect_config(const family_facts *c, const family_facts *expected)
{
    assert_int_equal(c->shape.width, expected->shape.width);
    assert_int_equal(c->shape.depth, expected->shape.depth);
    assert_int_equal(c->shape.heads, expected->shape.heads);
    assert_int_equal(c->shape.hidden, expected->shape.hidden);
    assert_int_equal(c->shape.vocabulary, expected->shape.vocabulary);
    assert_int_equal(c->shape.seq_len, expected->shape.seq_len);
    assert_int_equal(c->shape.classes, expected->shape.classes);
    assert_int_equal(c->shape.prefix, expected->shape.prefix);
    assert_int_equal(c->shape.caption_dim, expected->shape.caption_dim);
    assert_int_equal(c->config.parameters, expected->config.parameters);
}

/* Depths, widths and heads are those of gpt.py. The models have 111M, 343M, 775M, 1.4B and 3.1B parameters. */
TEST_CASE(official_models)
{
    static const struct {
        const char *name;
        family_facts expected;
    } models[] = {{"llamagen_B", CONFIG(768, 12, 12, 2048, 16384, 256, 1000, 1, 0, 110888448)},
                  {"llamagen_L", CONFIG(1024, 24, 16, 2816, 16384, 256, 1000, 1, 0, 342910976)},
                  {"llamagen_XL", CONFIG(1280, 36, 20, 3584, 16384, 256, 1000, 1, 0, 774699520)},
                  {"llamagen_XXL", CONFIG(1536, 48, 24, 4096, 16384, 256, 1000, 1, 0, 1410972672)},
                  {"llamagen_3B", CONFIG(3200, 24, 32, 8704, 16384, 256, 1000, 1, 0, 3096659200)}};
    for (size_t i = 0; i < sizeof models / sizeof *models; i++) {
        family_facts c;
        mar_err err = {0};
        cJSON *list = read_list(models[i].name);
        wt_file *f = open_list(list, NULL);
        assert_true(family_llamagen.recognise(f));
        assert_false(family_mar.recognise(f) || vae_config_recognise(f));
        assert_ok(derive_facts(&family_llamagen, f, (wt_asked){.heads = 0}, &c, &err), &err);
        expect_config(&c, &models[i].expected);
        comparison all = {list->child, 0};
        causal_tensors(&c.shape, compare_visit, &all);
        assert_null(all.next);
        wt_close(f);
        cJSON_Delete(list);
    }
}

typedef struct {
    const wt_file *f;
    char names[8192];
} listing;

static void list_visit(void *user, const char *name, int rank, const int64_t *shape)
{
    listing *l = user;
    const wt_tensor *t = wt_find(l->f, name);
    if (!t) fail_msg("%s has no tensor %s", wt_path(l->f), name);
    assert_int_equal(t->rank, rank);
    assert_memory_equal(t->shape, shape, (size_t)rank * sizeof *shape);
    const size_t used = strlen(l->names);
    snprintf(l->names + used, sizeof l->names - used, "%s ", name);
}

/* Models of gpt.py, one of them for captions. The names are those of state_dict, in its order. */
TEST_CASE(small_models)
{
    static const struct {
        const char *name;
        family_facts expected;
    } models[] = {{"llamagen_c2i", CONFIG(48, 2, 3, 128, 61, 64, 5, 1, 0, 0)},
                  {"llamagen_c2i20", CONFIG(40, 2, 2, 112, 73, 16, 4, 1, 0, 0)},
                  {"llamagen_t2i", CONFIG(32, 2, 2, 96, 50, 16, 0, 120, 12, 0)}};
    for (size_t i = 0; i < sizeof models / sizeof *models; i++) {
        family_facts c, expected = models[i].expected;
        mar_err err = {0};
        listing l = {.f = golden_open(models[i].name)};
        for (int t = 0; t < wt_count(l.f); t++) expected.config.parameters += wt_at(l.f, t)->count;
        assert_true(family_llamagen.recognise(l.f));
        assert_ok(derive_facts(&family_llamagen, l.f, (wt_asked){.heads = 0}, &c, &err), &err);
        expect_config(&c, &expected);
        causal_tensors(&c.shape, list_visit, &l);
        assert_string_equal(l.names, wt_metadata(l.f, "names"));
        wt_close((wt_file *)(uintptr_t)l.f);
    }
}

static mar_status derive(const cJSON *list, const char *key, const char *value, int heads, family_facts *c,
                         mar_err *err)
{
    wt_file *f = open_list_with(list, key, value);
    const mar_status status = derive_facts(&family_llamagen, f, (wt_asked){.heads = heads}, c, err);
    if (status == MAR_EMODEL && !strstr(err->text, wt_path(f))) fail_msg("\"%s\" does not name the file", err->text);
    wt_close(f);
    return status;
}

/* Widths of gpt.py's models, including those of text-to-image models only. The last two are none of them. */
TEST_CASE(heads)
{
    static const int known[][3] = {
        {768, 12, 0},  {1024, 16, 0}, {1280, 20, 0}, {1536, 24, 0}, {2048, 32, 0}, /* width, heads, whether guessed */
        {2560, 40, 0}, {3200, 32, 0}, {4096, 32, 0}, {640, 10, 1},  {48, 1, 1}};
    family_facts c;
    mar_err err = {0};
    cJSON *list = read_list("llamagen_B");
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        SHAPE(list, "tok_embeddings.weight", 100, known[i][0]);
        assert_ok(derive(list, NULL, NULL, 0, &c, &err), &err);
        assert_int_equal(c.shape.heads, known[i][1]);
        assert_int_equal(c.config.heads_guessed, known[i][2]);
        assert_ok(derive(list, NULL, NULL, known[i][1], &c, &err), &err);
        assert_false(c.config.heads_guessed);
    }
    SHAPE(list, "tok_embeddings.weight", 100, 768);
    assert_ok(derive(list, "mar.heads", "6", 0, &c, &err), &err);
    assert_int_equal(c.shape.heads, 6);
    assert_ok(derive(list, "mar.heads", "6", 24, &c, &err), &err); /* the requested number wins */
    assert_int_equal(c.shape.heads, 24);
    assert_int_equal(derive(list, NULL, NULL, 7, &c, &err), MAR_EARG);
    assert_non_null(strstr(err.text, "7 attention heads (--heads) do not divide the width 768 into multiples of 4"));
    assert_int_equal(derive(list, NULL, NULL, 384, &c, &err), MAR_EARG); /* heads of size 2 */
    assert_int_equal(derive(list, NULL, NULL, 2, &c, &err), MAR_EARG);   /* heads of size 384 */
    assert_non_null(strstr(err.text, "2 attention heads (--heads) do not divide the width 768 into multiples of 4 up "
                                     "to 256"));
    assert_ok(derive(list, NULL, NULL, 3, &c, &err), &err); /* heads of size 256 */
    assert_int_equal(derive(list, "mar.heads", "1", 0, &c, &err), MAR_EMODEL);
    assert_int_equal(derive(list, NULL, NULL, -1, &c, &err), MAR_EARG);
    assert_int_equal(derive(list, "mar.heads", "5", 0, &c, &err), MAR_EMODEL);
    assert_int_equal(derive(list, "mar.heads", "12x", 0, &c, &err), MAR_EMODEL);
    assert_non_null(strstr(err.text, "metadata mar.heads is \"12x\", expected a positive number"));
    cJSON_Delete(list);
}

TEST_CASE(sequences)
{
    family_facts c;
    mar_err err = {0};
    cJSON *list = read_list("llamagen_B");
    assert_ok(derive(list, "mar.seq_len", "576", 0, &c, &err), &err);
    assert_int_equal(c.shape.seq_len, 576);
    assert_int_equal(c.seq_len_guessed, 0);
    static const char *const wrong[] = {"575", "0", "-4", "70000", "1000000", "99999999999999999999", "x", ""};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        assert_int_equal(derive(list, "mar.seq_len", wrong[i], 0, &c, &err), MAR_EMODEL);
        assert_non_null(strstr(err.text, "metadata mar.seq_len is "));
    }
    /* One option of train_c2i.py: the other's default is a guess. */
    static const struct {
        const char *key, *value;
        int seq_len;
    } options[] = {{"args.image_size", "384", 576}, {"args.downsample_size", "8", 1024}};
    for (size_t i = 0; i < sizeof options / sizeof *options; i++) {
        assert_ok(derive(list, options[i].key, options[i].value, 0, &c, &err), &err);
        assert_int_equal(c.shape.seq_len, options[i].seq_len);
        assert_int_equal(c.seq_len_guessed, 1);
    }
    assert_int_equal(derive(list, "args.image_size", "15", 0, &c, &err), MAR_EMODEL);
    assert_non_null(strstr(err.text, "args.image_size 15 and args.downsample_size 16 (a guess) make 0 tokens a side"));
    assert_int_equal(derive(list, "args.downsample_size", "257", 0, &c, &err), MAR_EMODEL);
    assert_non_null(strstr(err.text, "args.image_size 256 (a guess) and args.downsample_size 257 make 0 tokens"));
    assert_int_equal(derive(list, "args.image_size", "99999999999999999999", 0, &c, &err), MAR_EMODEL);
    assert_int_equal(derive(list, "args.image_size", "x", 0, &c, &err), MAR_EMODEL);
    assert_non_null(strstr(err.text, "args.image_size is x, expected a positive integer"));
    cJSON_Delete(list);
    assert_int_equal(causal_side(576), 24);
    assert_int_equal(causal_side(1), 1);
    assert_int_equal(causal_side(255), 0);
}

static void refuse(const cJSON *list, const char *words)
{
    family_facts c;
    mar_err err = {0};
    assert_int_equal(derive(list, NULL, NULL, 0, &c, &err), MAR_EMODEL);
    if (!strstr(err.text, words)) fail_msg("\"%s\" does not say \"%s\"", err.text, words);
}

TEST_CASE(bad_models)
{
    static const char *const needed[] = {"cls_embedding.embedding_table.weight", "tok_embeddings.weight",
                                         "layers.0.feed_forward.w1.weight"};
    for (size_t i = 0; i < sizeof needed / sizeof *needed; i++) {
        char words[128];
        cJSON *list = read_list("llamagen_B");
        cJSON_DeleteItemFromObjectCaseSensitive(list, needed[i]);
        snprintf(words, sizeof words, "tensor %s is missing", needed[i]);
        refuse(list, words);
        cJSON_Delete(list);
    }
    cJSON *list = read_list("llamagen_B");
    SHAPE(list, "tok_embeddings.weight", 768);
    refuse(list, "tok_embeddings.weight has shape [768], expected 2 dimensions of 1 to 1048576");
    SHAPE(list, "tok_embeddings.weight", 16384, 0);
    refuse(list, "tok_embeddings.weight has shape [16384, 0]");
    SHAPE(list, "tok_embeddings.weight", 2, 2e6);
    refuse(list, "tok_embeddings.weight has shape [2, 2000000]");
    SHAPE(list, "tok_embeddings.weight", 16384, 766);
    refuse(list, "1 attention heads (a guess) do not divide the width 766");
    SHAPE(list, "tok_embeddings.weight", 16384, 768);
    SHAPE(list, "cls_embedding.embedding_table.weight", 1, 768);
    refuse(list, "has 1 row, expected a class and the unconditional one");
    SHAPE(list, "cls_embedding.uncond_embedding", 120);
    refuse(list, "cls_embedding.uncond_embedding has shape [120], expected 2 dimensions");
    cJSON_Delete(list);
}

/* A number without layers in the file makes no layer. A gap in the numbers ends nothing. */
TEST_CASE(layer_numbers)
{
    static const struct {
        const char *name;
        int depth;
    } strange[] = {{"layers.2000000000.attention.wo.weight", 12},
                   {"layers.14.attention.wo.weight", 15},
                   {"layers.99999999999999999999.ffn_norm.weight", 12},
                   {"layers.13x.ffn_norm.weight", 12},
                   {"layers.-1.ffn_norm.weight", 12},
                   {"layers.", 12}};
    for (size_t i = 0; i < sizeof strange / sizeof *strange; i++) {
        family_facts c;
        mar_err err = {0};
        cJSON *list = read_list("llamagen_B");
        SHAPE(list, strange[i].name, 768);
        assert_ok(derive(list, NULL, NULL, 0, &c, &err), &err);
        assert_int_equal(c.shape.depth, strange[i].depth);
        cJSON_Delete(list);
    }
}

TEST_CASE(ignored)
{
    assert_true(family_llamagen.ignores("freqs_cis") && family_llamagen.ignores("causal_mask") &&
                family_llamagen.ignores("layers.3.attention.kv_cache.k_cache"));
    assert_false(family_llamagen.ignores("layers.3.attention.wo.weight") ||
                 family_llamagen.ignores("freqs_cis.weight"));
}

/* Derives a decoder of width 512 whose k has `rows` rows, of heads of size 4 unless `more`, metadata, says another. */
static mar_status derive_decoder(int rows, const char *more, family_facts *c, mar_err *err)
{
    char header[1024];
    wt_file *f;
    snprintf(header, sizeof header,
             "{\"__metadata__\":{\"mar.family\":\"lumina-mgpt\",\"mar.image_tokens\":\"4-7\",\"mar.line_end\":\"8\","
             "%s\"mar.heads\":\"128\"},\"model.embed_tokens.weight\":{\"dtype\":\"F32\",\"shape\":[9,512],"
             "\"data_offsets\":[0,18432]},\"model.layers.0.mlp.down_proj.weight\":{\"dtype\":\"F32\","
             "\"shape\":[512,4],\"data_offsets\":[18432,26624]},\"model.layers.0.self_attn.k_proj.weight\":{"
             "\"dtype\":\"F32\",\"shape\":[%d,512],\"data_offsets\":[26624,%d]}}",
             more, rows, 26624 + rows * 2048);
    bytes b = make_safetensors(header, (size_t)(26624 + rows * 2048));
    assert_ok(wt_open_memory(b.data, b.size, "decoder", &f, err), err);
    const mar_status status = derive_facts(&family_language, f, (wt_asked){.width = 64, .height = 64}, c, err);
    release_facts(c);
    wt_close(f);
    bytes_free(&b);
    return status;
}

/* Attention has room for groups of up to KERN_CACHE_GROUP_MAX. */
TEST_CASE(groups)
{
    static const int wrong[] = {4, 2, 6, 12, 516};
    family_facts c;
    mar_err err = {0};
    for (int kv_heads = 2; kv_heads <= 128; kv_heads *= 2) {
        assert_ok(derive_decoder(4 * kv_heads, "", &c, &err), &err);
        assert_int_equal(c.shape.kv_heads, kv_heads);
    }
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        assert_int_equal(derive_decoder(wrong[i], "", &c, &err), MAR_EMODEL);
        assert_non_null(strstr(err.text, i ? "expected heads of 4 that divide the 128 of q"
                                           : "128 heads of q read one head of tensor "
                                             "model.layers.0.self_attn.k_proj.weight, expected 64 at most"));
    }
}

/* Heads whose numbers are not the width. */
TEST_CASE(head_dim)
{
    static const char *const wrong[] = {"6", "260", "12.5", "0"};
    family_facts c;
    mar_err err = {0};
    assert_ok(derive_decoder(2 * 12, "\"mar.head_dim\":\"12\",", &c, &err), &err);
    assert_true(c.shape.heads == 128 && c.shape.head_dim == 12 && c.shape.kv_heads == 2);
    assert_int_equal(causal_q_width(&c.shape), 128 * 12);
    assert_int_equal(causal_qkv_width(&c.shape), (128 + 2 * 2) * 12);
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        char more[48];
        snprintf(more, sizeof more, "\"mar.head_dim\":\"%s\",", wrong[i]);
        assert_int_equal(derive_decoder(24, more, &c, &err), MAR_EMODEL);
        assert_true(strstr(err.text, "128 heads of") || strstr(err.text, "mar.head_dim"));
    }
}
