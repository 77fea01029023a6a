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
