#include "tests/support/decoder_folder.h"

#include "tests/support/archive.h"
#include "tests/support/support.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PROMPT_DATA "tests/golden/data/prompts/"

static void write_bytes(const char *folder, const char *name, const bytes *b)
{
    char *path;
    assert_true(asprintf(&path, "%s/%s", folder, name) > 0);
    bytes_to_file(b, path);
    free(path);
}

void write_in(const char *folder, const char *name, const char *text)
{
    bytes b = {0};
    bytes_text(&b, text);
    write_bytes(folder, name, &b);
    bytes_free(&b);
}

void copy_in(const char *folder, const char *name, const char *from)
{
    bytes b = bytes_from_file(from);
    write_bytes(folder, name, &b);
    bytes_free(&b);
}

float decoder_value(int i)
{
    return (float)(i * 37 % 101 - 50) / 64;
}

/* Returns the bits of a value of at most 7 significant bits. */
static unsigned bits_of(float value, const char *dtype)
{
    unsigned bits;
    memcpy(&bits, &value, sizeof bits);
    if (strcmp(dtype, "F32") == 0) return bits;
    if (strcmp(dtype, "BF16") == 0) return bits >> 16;
    const unsigned exponent = bits >> 23 & 255; /* F16 */
    return value == 0 ? 0 : (bits >> 16 & 0x8000u) | (exponent - 112) << 10 | (bits >> 13 & 1023);
}

void write_embedding(const char *folder, const char *name, const char *tensor, const char *dtype, int rows, int width)
{
    const int size = strcmp(dtype, "F32") == 0 ? 4 : 2;
    char *header;
    assert_true(asprintf(&header, "{\"%s\":{\"dtype\":\"%s\",\"shape\":[%d,%d],\"data_offsets\":[0,%d]}}", tensor,
                         dtype, rows, width, rows * width * size) > 0);
    bytes b = make_safetensors(header, 0);
    for (int i = 0; i < rows * width; i++) bytes_number(&b, bits_of(decoder_value(i), dtype), size);
    write_bytes(folder, name, &b);
    bytes_free(&b);
    free(header);
}

char *decoder_folder(const char *family, const char *dtype, int width)
{
    char *folder = test_directory();
    if (strcmp(family, "emu3") == 0) {
        copy_in(folder, "emu3.tiktoken", PROMPT_DATA "emu3/emu3.tiktoken");
        copy_in(folder, "emu3_vision_tokens.txt", PROMPT_DATA "emu3/emu3_vision_tokens.txt");
        write_in(folder, "config.json",
                 "{\"architectures\":[\"Emu3ForCausalLM\"],\"eoi_token_id\":770,\"eol_token_id\":763}");
        write_embedding(folder, "model.safetensors", "model.embed_tokens.weight", dtype, 775, width);
    } else {
        copy_in(folder, "tokenizer.json", PROMPT_DATA "chameleon/tokenizer.json");
        write_in(folder, "config.json",
                 strcmp(family, "anole") == 0 ? "{\"architectures\":[\"ChameleonForConditionalGeneration\"]}"
                                              : "{\"architectures\":[\"ChameleonXLLMXForConditionalGeneration\"]}");
        write_embedding(folder, "model.safetensors", "model.embed_tokens.weight", dtype, 400, width);
    }
    return folder;
}

enum { EMU3_IDS = 771, WIDTH = 8, HEADS = 2, HIDDEN = 12 };

/* A tensor of write_emu3: rows 0: a vector. */
typedef struct {
    const char *name;
    int rows, columns;
} shape;

/* Appends n numbers, those of norms near 1. */
static void put_weights(bytes *b, int n, int is_norm, unsigned *seed)
{
    for (int i = 0; i < n; i++) {
        *seed = *seed * 1664525u + 1013904223u;
        const float value = (float)(int)(*seed >> 8) / (1 << 23) - 1;
        bytes_number(b, bits_of(is_norm ? 1 + value / 8 : value, "F32"), 4);
    }
}

void write_emu3(const char *folder, int codebook)
{
#define LAYER "model.layers.0."
    const int rows = EMU3_IDS + codebook;
    const shape tensors[] = {{"model.embed_tokens.weight", rows, WIDTH},
                             {LAYER "input_layernorm.weight", 0, WIDTH},
                             {LAYER "self_attn.q_proj.weight", WIDTH, WIDTH},
                             {LAYER "self_attn.k_proj.weight", WIDTH / HEADS, WIDTH},
                             {LAYER "self_attn.v_proj.weight", WIDTH / HEADS, WIDTH},
                             {LAYER "self_attn.o_proj.weight", WIDTH, WIDTH},
                             {LAYER "post_attention_layernorm.weight", 0, WIDTH},
                             {LAYER "mlp.gate_proj.weight", HIDDEN, WIDTH},
                             {LAYER "mlp.up_proj.weight", HIDDEN, WIDTH},
                             {LAYER "mlp.down_proj.weight", WIDTH, HIDDEN},
                             {"model.norm.weight", 0, WIDTH},
                             {"lm_head.weight", rows, WIDTH}};
    enum { TENSORS = sizeof tensors / sizeof *tensors };
    char header[2048] = "{", config[512];
    unsigned seed = 1;
    int at = 0;
    for (int i = 0; i < TENSORS; i++) {
        const shape *t = &tensors[i];
        const int end = at + 4 * (t->rows ? t->rows : 1) * t->columns;
        const size_t n = strlen(header);
        char row[16] = "";
        if (t->rows) snprintf(row, sizeof row, "%d,", t->rows);
        snprintf(header + n, sizeof header - n,
                 "%s\"%s\":{\"dtype\":\"F32\",\"shape\":[%s%d],\"data_offsets\":[%d,%d]}", i ? "," : "", t->name, row,
                 t->columns, at, end);
        at = end;
    }
    strcat(header, "}");
    bytes b = make_safetensors(header, 0);
    for (int i = 0; i < TENSORS; i++)
        put_weights(&b, (tensors[i].rows ? tensors[i].rows : 1) * tensors[i].columns, !tensors[i].rows, &seed);
    write_bytes(folder, "model.safetensors", &b);
    bytes_free(&b);
    snprintf(config, sizeof config,
             "{\"architectures\":[\"Emu3ForCausalLM\"],\"eoi_token_id\":%d,\"eol_token_id\":763,\"hidden_size\":%d,"
             "\"num_attention_heads\":%d,\"num_key_value_heads\":1,\"rms_norm_eps\":1e-05,\"rope_theta\":10000.0,"
             "\"hidden_act\":\"silu\",\"max_position_embeddings\":9216}",
             EMU3_IDS - 1, WIDTH, HEADS);
    write_in(folder, "config.json", config);
    copy_in(folder, "emu3.tiktoken", PROMPT_DATA "emu3/emu3.tiktoken");
    copy_in(folder, "emu3_vision_tokens.txt", PROMPT_DATA "emu3/emu3_vision_tokens.txt");
}
