#include "tests/support/decoders.h"

#include "tests/support/support.h"
#include "tests/support/tensor_files.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum {
    WIDTH = DECODER_WIDTH,
    DEPTH = 2,
    HEADS = 4,
    HEAD = WIDTH / HEADS,
    HIDDEN = 48,
    TENSORS_MAX = 64,
    NAME = FILE_TENSOR_NAME
};

static const struct {
    const char *name;
    int codebook, shards;
} kinds[DECODERS] = {
    [DECODER_LUMINA] = {"Lumina-mGPT-7B-768", 8192, 2},
    [DECODER_ANOLE] = {"Anole-7b-v0.1-hf", 64, 3},
    [DECODER_RELEASE] = {"7b", 64, 1},
    [DECODER_EMU3] = {"Emu3-Gen", 128, 2},
    [DECODER_EMU3_SAVED] = {"Emu3-Gen-hf", 128, 2},
    [DECODER_EMU3_STATE] = {"Emu3-state", 128, 1},
    [DECODER_FEW] = {"few", 3, 2},
};

int decoder_codebook(decoder_kind kind)
{
    return kinds[kind].codebook;
}

/* --- ids: ChameleonIds and Emu3Ids of make_mgpt.py ------------------------------------------------------------------
 */

enum { EMU3_LINE_END = 260, EMU3_BOS = 263, EMU3_IMG = 265, EMU3_BOI = 266, EMU3_EOI = 267, EMU3_FIRST = 268 };

static int is_emu3(decoder_kind kind)
{
    return kind == DECODER_EMU3 || kind == DECODER_EMU3_SAVED || kind == DECODER_EMU3_STATE;
}

/* Returns the id behind the image tokens, from which Chameleon's others count. */
static int base_of(decoder_kind kind)
{
    return 4 + kinds[kind].codebook;
}

static int vocabulary_of(decoder_kind kind)
{
    return is_emu3(kind) ? EMU3_FIRST + kinds[kind].codebook : base_of(kind) + 620;
}

static int image_id(decoder_kind kind, int number)
{
    return 4 + (int)(number * 2731L % kinds[kind].codebook);
}

/* Appends the ids of a text, one a byte. */
static int put_text(decoder_kind kind, const char *text, int n, int *ids)
{
    const int first = is_emu3(kind) ? 0 : base_of(kind) + 8;
    for (; *text; text++) {
        assert_true(n < DECODER_IDS);
        ids[n++] = first + (uint8_t)*text;
    }
    return n;
}

/* Appends what stands between the text and the first image token. */
static int put_begin(decoder_kind kind, int columns, int rows, int n, int *ids)
{
    char size[32];
    assert_true(n + 4 < DECODER_IDS);
    if (is_emu3(kind)) {
        snprintf(size, sizeof size, "%d*%d", rows, columns);
        ids[n++] = EMU3_BOI;
        n = put_text(kind, size, n, ids);
        ids[n++] = EMU3_IMG;
        return n;
    }
    ids[n++] = base_of(kind) + 1;
    if (kind == DECODER_ANOLE || kind == DECODER_RELEASE) return n;
    ids[n++] = base_of(kind) + 608 + rows / 2;
    ids[n++] = base_of(kind) + 608 + columns / 2;
    return n;
}

int decoder_prompt(decoder_kind kind, const char *text, int columns, int rows, int *ids)
{
    char words[DECODER_IDS];
    int n = 0;
    if (is_emu3(kind))
        snprintf(words, sizeof words, "%s masterpiece, film grained, best quality.", text);
    else if (kind == DECODER_LUMINA || kind == DECODER_FEW)
        snprintf(words, sizeof words, "Generate an image of %dx%d according to the following prompt:\n%s", 16 * columns,
                 16 * rows, text);
    else
        snprintf(words, sizeof words, "%s", text);
    ids[n++] = is_emu3(kind) ? EMU3_BOS : 0;
    n = put_text(kind, words, n, ids);
    if (!is_emu3(kind)) ids[n++] = base_of(kind) + 514;
    return put_begin(kind, columns, rows, n, ids);
}

int decoder_negative(decoder_kind kind, int columns, int rows, int *ids)
{
    int n = 0;
    if (is_emu3(kind)) {
        ids[n++] = EMU3_BOS;
        n = put_text(kind, "lowres, bad anatomy", n, ids);
    } else if (kind == DECODER_ANOLE || kind == DECODER_RELEASE) {
        ids[n++] = 0;
    }
    return put_begin(kind, columns, rows, n, ids);
}

/* --- weights: weight() of make_mgpt.py ------------------------------------------------------------------------------
 */

/* A tensor of a file. */
typedef struct {
    char name[NAME], drawn[NAME]; /* drawn: the name by whose hash it is drawn */
    int rows, columns;            /* columns 0: a vector */
    int heads;                    /* 1: rows by heads of HEAD; in the release neighbours rotate, here halves */
} tensor;

typedef struct {
    tensor t[TENSORS_MAX];
    int count;
} tensor_list;

/* Returns the place in the drawn tensor of row r. */
static int drawn_row(const tensor *t, int r)
{
    const int head = r / HEAD, i = r % HEAD;
    if (!t->heads) return r;
    return HEAD * head + (i < HEAD / 2 ? 2 * i : 2 * (i - HEAD / 2) + 1);
}

static float draw(const tensor *t, uint64_t place, unsigned variant)
{
    const uint64_t hash = drawn_hash(t->drawn);
    const int inputs = t->columns ? t->columns : t->rows, is_output = strstr(t->drawn, "lm_head") || t->drawn[0] == 'o';
    double u = drawn_uniform(hash, place);
    if (variant) u = 0.95 * u + 0.05 * drawn_uniform(hash ^ drawn_mix(variant), place);
    if (strstr(t->drawn, "norm")) {
        const size_t length = strlen(t->drawn);
        return (float)(0.3 * u + (strcmp(t->drawn + length - 4, "bias") == 0 ? 0 : 1));
    }
    if (strstr(t->drawn, "emb")) return (float)(1.7 * u);
    return (float)(u * sqrt(3.0 / inputs) * (is_output ? 1.5 : 2));
}

/* Appends the tensor's numbers to data. */
static void put_numbers(const tensor *t, unsigned variant, bytes *data)
{
    const int columns = t->columns ? t->columns : 1;
    /* transformers has the norm of q and k for each head, the release one for all. */
    const int is_norm = t->heads && t->columns == HEAD;
    for (int r = 0; r < t->rows; r++) {
        for (int c = 0; c < columns; c++) {
            const int place = is_norm ? drawn_row(t, c) : drawn_row(t, r) * columns + c;
            const float x = draw(t, (uint64_t)place, variant);
            bytes_put(data, &x, sizeof x);
        }
    }
}

static tensor *add(tensor_list *list, const char *prefix, const char *name, int rows, int columns)
{
    assert_true(list->count < TENSORS_MAX);
    tensor *t = &list->t[list->count++];
    *t = (tensor){.rows = rows, .columns = columns};
    snprintf(t->name, sizeof t->name, "%s%s", prefix, name);
    memcpy(t->drawn, t->name, sizeof t->drawn);
    return t;
}

static void list_release(tensor_list *list, int vocabulary)
{
    add(list, "", "tok_embeddings.weight", vocabulary, WIDTH);
    for (int i = 0; i < DEPTH; i++) {
        char layer[32];
        snprintf(layer, sizeof layer, "layers.%d.", i);
        add(list, layer, "attention.wq.weight", WIDTH, WIDTH);
        add(list, layer, "attention.wk.weight", WIDTH, WIDTH);
        add(list, layer, "attention.wv.weight", WIDTH, WIDTH);
        add(list, layer, "attention.wo.weight", WIDTH, WIDTH);
        add(list, layer, "attention.q_normalization.weight", HEAD, 0);
        add(list, layer, "attention.q_normalization.bias", HEAD, 0);
        add(list, layer, "attention.k_normalization.weight", HEAD, 0);
        add(list, layer, "attention.k_normalization.bias", HEAD, 0);
        add(list, layer, "feed_forward.w1.weight", HIDDEN, WIDTH);
        add(list, layer, "feed_forward.w3.weight", HIDDEN, WIDTH);
        add(list, layer, "feed_forward.w2.weight", WIDTH, HIDDEN);
        add(list, layer, "attention_norm.weight", WIDTH, 0);
        add(list, layer, "ffn_norm.weight", WIDTH, 0);
    }
    add(list, "", "norm.weight", WIDTH, 0);
    add(list, "", "output.weight", vocabulary, WIDTH);
}

static void list_llama(tensor_list *list, decoder_kind kind)
{
    const int keys = is_emu3(kind) ? WIDTH / 2 : WIDTH;
    add(list, "", "model.embed_tokens.weight", vocabulary_of(kind), WIDTH);
    for (int i = 0; i < DEPTH; i++) {
        char layer[32];
        snprintf(layer, sizeof layer, "model.layers.%d.", i);
        add(list, layer, "self_attn.q_proj.weight", WIDTH, WIDTH);
        add(list, layer, "self_attn.k_proj.weight", keys, WIDTH);
        add(list, layer, "self_attn.v_proj.weight", keys, WIDTH);
        add(list, layer, "self_attn.o_proj.weight", WIDTH, WIDTH);
        for (int k = 0; k < 4 && !is_emu3(kind); k++) {
            static const char *const names[] = {"self_attn.q_norm.weight", "self_attn.q_norm.bias",
                                                "self_attn.k_norm.weight", "self_attn.k_norm.bias"};
            add(list, layer, names[k], HEADS, HEAD);
        }
        add(list, layer, "mlp.gate_proj.weight", HIDDEN, WIDTH);
        add(list, layer, "mlp.up_proj.weight", HIDDEN, WIDTH);
        add(list, layer, "mlp.down_proj.weight", WIDTH, HIDDEN);
        add(list, layer, "input_layernorm.weight", WIDTH, 0);
        add(list, layer, "post_attention_layernorm.weight", WIDTH, 0);
    }
    add(list, "", "model.norm.weight", WIDTH, 0);
    add(list, "", "lm_head.weight", vocabulary_of(kind), WIDTH);
}

/* Lists the tensors. Anole's in transformers' layout are those of the release: converted, their heads' rows move. */
static void list_tensors(tensor_list *list, decoder_kind kind)
{
    tensor_list release = {.count = 0};
    if (kind == DECODER_RELEASE) {
        list_release(list, vocabulary_of(kind));
        return;
    }
    list_llama(list, kind);
    for (int i = 0; i < list->count; i++) {
        tensor *t = &list->t[i];
        const tensor old = *t; /* snprintf's arguments are of different objects: GCC warns if they are of one */
        const int in_model = strncmp(old.drawn, "model.", 6) == 0;
        if (kind == DECODER_EMU3_SAVED) snprintf(t->name, sizeof t->name, "text_model.%.80s", old.drawn);
        if (kind == DECODER_EMU3_STATE && in_model)
            snprintf(t->name, sizeof t->name, "model.text_model.%.70s", old.drawn + 6);
    }
    if (kind != DECODER_ANOLE) return;
    list_release(&release, vocabulary_of(kind));
    for (int i = 0; i < list->count; i++) {
        tensor *t = &list->t[i];
        memcpy(t->drawn, release.t[i].name, sizeof t->drawn);
        t->heads = strstr(t->name, "q_proj") || strstr(t->name, "k_proj") || strstr(t->name, "q_norm") ||
                   strstr(t->name, "k_norm");
    }
}

void decoder_features(const int *ids, int n, int positions, float *features, uint8_t *mask)
{
    assert_true(n <= positions);
    for (int i = 0; i < positions; i++) {
        mask[i] = i >= positions - n;
        features[i] = mask[i] ? (float)ids[i - (positions - n)] : 0;
    }
}

/* --- files ----------------------------------------------------------------------------------------------------------
 */

/* Returns the tensors first .. end-1 with their numbers, for free_numbers. */
static file_tensor *draw_numbers(const tensor_list *list, int first, int end, unsigned variant)
{
    file_tensor *out = calloc((size_t)(end - first), sizeof *out);
    assert_non_null(out);
    for (int i = first; i < end; i++) {
        const tensor *t = &list->t[i];
        file_tensor *to = &out[i - first];
        memcpy(to->name, t->name, sizeof to->name);
        to->rank = t->columns ? 2 : 1;
        to->shape[0] = t->rows;
        to->shape[1] = t->columns;
        put_numbers(t, variant, &to->data);
    }
    return out;
}

static void free_numbers(file_tensor *tensors, int count)
{
    for (int i = 0; i < count; i++) bytes_free(&tensors[i].data);
    free(tensors);
}

static void write_shards(const char *folder, decoder_kind kind, const tensor_list *list, unsigned variant)
{
    const int shards = kinds[kind].shards;
    bytes index = {0};
    bytes_text(&index, "{\"metadata\":{},\"weight_map\":{");
    for (int s = 0; s < shards; s++) {
        char file[64];
        const int first = list->count * s / shards, end = list->count * (s + 1) / shards;
        snprintf(file, sizeof file, "model-%05d-of-%05d.safetensors", s + 1, shards);
        file_tensor *tensors = draw_numbers(list, first, end, variant);
        tensors_write_safetensors(folder, file, tensors, end - first);
        free_numbers(tensors, end - first);
        for (int i = first; i < end; i++) bytes_format(&index, "%s\"%s\":\"%s\"", i ? "," : "", list->t[i].name, file);
    }
    bytes_text(&index, "}}");
    bytes_to_folder(folder, "model.safetensors.index.json", &index);
}

/* Appends "name": id of all of Chameleon's image tokens and special tokens. Text has ids base + 8 to base + 263. */
static void put_vocabulary(bytes *b, decoder_kind kind)
{
    const int base = base_of(kind);
    bytes_text(b, "\"<s>\":0,\"<pad>\":1,\"</s>\":2,\"<unk>\":3");
    for (int k = 0; k < kinds[kind].codebook; k++) {
        char digits[16];
        snprintf(digits, sizeof digits, "%d", k);
        bytes_text(b, ",\"IMGIMG");
        for (const char *d = digits; *d; d++) bytes_number(b, (uint64_t)('A' + *d - '0'), 1);
        bytes_format(b, "Z\":%d", image_id(kind, k));
    }
    bytes_format(b, ",\"<eoss>\":%d,\"<racm3:break>\":%d", base, base + 1);
    for (int i = 2; i < 620; i++)
        if (i < 8 || i >= 264) bytes_format(b, ",\"<reserved%05d>\":%d", 8192 + i, base + i);
}

/* Appends a byte's letter in byte-level BPE, in UTF-8. */
static void put_letter(bytes *b, int byte)
{
    int letter = byte, moved = 0;
    for (int i = 0; i <= byte; i++) {
        const int kept = (i >= 33 && i < 127) || (i >= 161 && i < 173) || i >= 174;
        letter = kept ? i : 256 + moved++;
    }
    if (letter == '"' || letter == '\\') bytes_text(b, "\\");
    if (letter < 128) {
        bytes_number(b, (uint64_t)letter, 1);
    } else {
        bytes_number(b, (uint64_t)(0xC0 | letter >> 6), 1);
        bytes_number(b, (uint64_t)(0x80 | (letter & 63)), 1);
    }
}

static void write_tokenizer(const char *folder, const char *file, decoder_kind kind)
{
    const int base = base_of(kind);
    const struct {
        const char *name;
        int id;
    } special[] = {{"<s>", 0},
                   {"<pad>", 1},
                   {"</s>", 2},
                   {"<eoss>", base},
                   {"<racm3:break>", base + 1},
                   {"<reserved08706>", base + 514},
                   {"<reserved08799>", base + 607}};
    bytes b = {0};
    bytes_text(&b, "{\"version\":\"1.0\",\"truncation\":null,\"padding\":null,\"added_tokens\":[");
    for (size_t i = 0; i < sizeof special / sizeof *special; i++)
        bytes_format(&b,
                     "%s{\"id\":%d,\"content\":\"%s\",\"single_word\":false,\"lstrip\":false,\"rstrip\":false,"
                     "\"normalized\":false,\"special\":true}",
                     i ? "," : "", special[i].id, special[i].name);
    for (int i = 0; i < 12; i++)
        bytes_format(&b,
                     ",{\"id\":%d,\"content\":\"<reserved%05d>\",\"single_word\":false,\"lstrip\":false,"
                     "\"rstrip\":false,\"normalized\":false,\"special\":true}",
                     base + 608 + i, 8800 + i);
    bytes_text(&b,
               "],\"normalizer\":null,\"pre_tokenizer\":{\"type\":\"ByteLevel\",\"add_prefix_space\":false,"
               "\"trim_offsets\":true,\"use_regex\":true},\"post_processor\":null,\"decoder\":{\"type\":"
               "\"ByteLevel\",\"add_prefix_space\":true,\"trim_offsets\":true,\"use_regex\":true},\"model\":{\"type\":"
               "\"BPE\",\"dropout\":null,\"unk_token\":null,\"continuing_subword_prefix\":null,"
               "\"end_of_word_suffix\":null,\"fuse_unk\":false,\"byte_fallback\":false,\"vocab\":{");
    put_vocabulary(&b, kind);
    for (int byte = 0; byte < 256; byte++) {
        bytes_text(&b, ",\"");
        put_letter(&b, byte);
        bytes_format(&b, "\":%d", base + 8 + byte);
    }
    bytes_text(&b, "},\"merges\":[]}}");
    bytes_to_folder(folder, file, &b);
}

/* Writes what transformers 5 writes for Emu3ForConditionalGeneration; its tokenizer is not there. */
static void write_emu3_config(const char *folder, decoder_kind kind)
{
    bytes b = {0};
    bytes_format(&b,
                 "{\"architectures\":[\"Emu3ForConditionalGeneration\"],\"model_type\":\"emu3\",\"text_config\":{"
                 "\"model_type\":\"emu3_text_model\",\"hidden_act\":\"silu\",\"hidden_size\":%d,"
                 "\"intermediate_size\":%d,\"num_hidden_layers\":%d,\"num_attention_heads\":%d,"
                 "\"num_key_value_heads\":%d,\"max_position_embeddings\":9216,",
                 WIDTH, HIDDEN, DEPTH, HEADS, HEADS / 2);
    bytes_format(&b,
                 "\"rms_norm_eps\":1e-05,\"rope_parameters\":{\"rope_theta\":1000000.0,\"rope_type\":\"default\"},"
                 "\"tie_word_embeddings\":false,\"vocab_size\":%d},\"tie_word_embeddings\":false,\"vq_config\":{"
                 "\"codebook_size\":%d,\"hidden_size\":64},\"vocabulary_map\":{\"<|extra_200|>\":%d",
                 vocabulary_of(kind), kinds[kind].codebook, EMU3_LINE_END);
    for (int i = kinds[kind].codebook - 1; i >= 0; i--) /* in any order */
        bytes_format(&b, ",\"<|visual token %06d|>\":%d", i, EMU3_FIRST + i);
    bytes_text(&b, "}}");
    bytes_to_folder(folder, "config.json", &b);
}

static void write_config(const char *folder, decoder_kind kind)
{
    bytes b = {0};
    if (kind == DECODER_EMU3_SAVED || kind == DECODER_EMU3_STATE) {
        write_emu3_config(folder, kind);
        return;
    }
    if (kind == DECODER_RELEASE) {
        bytes_format(&b,
                     "{\"model\":{\"dim\":%d,\"n_layers\":%d,\"n_heads\":%d,\"vocab_size\":%d,\"multiple_of\":48,"
                     "\"ffn_dim_multiplier\":0.5,\"norm_eps\":1e-05,\"rope_theta\":10000.0,\"qk_normalization\":true,"
                     "\"swin_norm\":false}}",
                     WIDTH, DEPTH, HEADS, vocabulary_of(kind));
        bytes_to_folder(folder, "params.json", &b);
        return;
    }
    bytes_format(&b,
                 "{\"hidden_size\":%d,\"intermediate_size\":%d,\"num_hidden_layers\":%d,\"num_attention_heads\":%d,"
                 "\"num_key_value_heads\":%d,\"vocab_size\":%d,\"hidden_act\":\"silu\",\"rms_norm_eps\":1e-05,"
                 "\"tie_word_embeddings\":false,",
                 WIDTH, HIDDEN, DEPTH, HEADS, is_emu3(kind) ? HEADS / 2 : HEADS, vocabulary_of(kind));
    if (is_emu3(kind)) {
        bytes_format(&b,
                     "\"architectures\":[\"Emu3ForCausalLM\"],\"model_type\":\"Emu3\",\"max_position_embeddings\":9216,"
                     "\"rope_theta\":1000000.0,\"rope_scaling\":null,\"pretraining_tp\":1,\"image_area\":518400,"
                     "\"bos_token_id\":%d,\"eos_token_id\":264,\"img_token_id\":%d,\"boi_token_id\":%d,"
                     "\"eoi_token_id\":%d,\"eol_token_id\":%d,\"eof_token_id\":261}",
                     EMU3_BOS, EMU3_IMG, EMU3_BOI, EMU3_EOI, EMU3_LINE_END);
    } else {
        const int anole = kind == DECODER_ANOLE;
        bytes_format(&b,
                     "\"architectures\":[\"%s\"],\"model_type\":\"chameleon\",%s\"max_position_embeddings\":4096,"
                     "\"rope_theta\":10000.0,\"rope_scaling\":null,\"swin_norm\":false,\"vocabulary_map\":{",
                     anole ? "ChameleonForConditionalGeneration" : "ChameleonXLLMXForConditionalGeneration",
                     anole ? "" : "\"dropout\":0.05,\"mask_image_logits\":false,");
        put_vocabulary(&b, kind);
        bytes_text(&b, "}}");
    }
    bytes_to_folder(folder, "config.json", &b);
}

char *decoder_write(const char *directory, decoder_kind kind, unsigned variant)
{
    char *folder;
    tensor_list list = {.count = 0};
    assert_true(asprintf(&folder, "%s/%s%.0d", directory, kinds[kind].name, (int)variant) > 0);
    if (mkdir(folder, 0777) != 0) fail_msg("%s: cannot be made", folder);
    list_tensors(&list, kind);
    write_config(folder, kind);
    if (kind == DECODER_RELEASE) {
        file_tensor *tensors = draw_numbers(&list, 0, list.count, variant);
        tensors_write_torch(folder, "consolidated.pth", NULL, tensors, list.count);
        free_numbers(tensors, list.count);
        write_tokenizer(folder, "text_tokenizer.json", kind);
        return folder;
    }
    write_shards(folder, kind, &list, variant);
    if (!is_emu3(kind)) write_tokenizer(folder, "tokenizer.json", kind);
    return folder;
}
