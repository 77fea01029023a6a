#include "tests/support/tensor_files.h"

#include "tests/support/support.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

uint64_t drawn_mix(uint64_t x)
{
    x += 0x9E3779B97F4A7C15;
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB;
    return x ^ (x >> 31);
}

uint64_t drawn_hash(const char *name)
{
    uint64_t hash = 0xCBF29CE484222325;
    for (; *name; name++) hash = (hash ^ (uint8_t)*name) * 0x100000001B3;
    return hash;
}

double drawn_uniform(uint64_t hash, uint64_t place)
{
    return (double)(drawn_mix(hash + place) >> 40) / (1 << 23) - 1;
}

void bytes_format(bytes *b, const char *format, ...)
{
    char text[512];
    va_list arguments;
    va_start(arguments, format);
    const int n = vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    assert_true(n >= 0 && n < (int)sizeof text);
    bytes_text(b, text);
}

void bytes_to_folder(const char *folder, const char *name, bytes *b)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    bytes_to_file(b, path);
    bytes_free(b);
}

void tensors_write_safetensors(const char *folder, const char *name, const file_tensor *tensors, int count)
{
    bytes header = {0}, b = {0};
    size_t at = 0;
    for (int i = 0; i < count; i++) {
        const file_tensor *t = &tensors[i];
        bytes_format(&header, "%s\"%s\":{\"dtype\":\"F32\",\"shape\":[", i ? "," : "{", t->name);
        for (int k = 0; k < t->rank; k++) bytes_format(&header, "%s%d", k ? "," : "", t->shape[k]);
        bytes_format(&header, "],\"data_offsets\":[%zu,%zu]}", at, at + t->data.size);
        at += t->data.size;
    }
    bytes_text(&header, "}");
    bytes_number(&b, header.size, 8);
    bytes_put(&b, header.data, header.size);
    for (int i = 0; i < count; i++) bytes_put(&b, tensors[i].data.data, tensors[i].data.size);
    bytes_to_folder(folder, name, &b);
    bytes_free(&header);
}

/* Pickles. */

/* Appends a string as a pickle's BINUNICODE. */
static void put_string(bytes *b, const char *text)
{
    bytes_text(b, "X");
    bytes_number(b, strlen(text), 4);
    bytes_text(b, text);
}

static void put_int(bytes *b, int number)
{
    bytes_text(b, "J");
    bytes_number(b, (uint64_t)(uint32_t)number, 4);
}

/* Appends a tensor as torch.save pickles it: _rebuild_tensor_v2 of a storage, with its size and stride. */
static void put_pickled(bytes *b, const file_tensor *t, int storage)
{
    char key[16];
    int stride = 1;
    snprintf(key, sizeof key, "%d", storage);
    put_string(b, t->name);
    bytes_text(b, "ctorch._utils\n_rebuild_tensor_v2\n((");
    put_string(b, "storage");
    bytes_text(b, "ctorch\nFloatStorage\n");
    put_string(b, key);
    put_string(b, "cpu");
    put_int(b, (int)(t->data.size / sizeof(float)));
    bytes_text(b, "tQK");
    bytes_number(b, 0, 1);
    bytes_text(b, "(");
    for (int i = 0; i < t->rank; i++) put_int(b, t->shape[i]);
    for (int i = 0; i < t->rank; i++) stride *= t->shape[i];
    bytes_text(b, "t(");
    for (int i = 0; i < t->rank; i++) put_int(b, stride /= t->shape[i]);
    bytes_text(b, "t\x89"
                  "ccollections\nOrderedDict\n)RtR");
}

void tensors_write_torch(const char *folder, const char *name, const char *key, const file_tensor *tensors, int count)
{
    char(*names)[32] = calloc((size_t)count, sizeof *names);
    zip_part *parts = calloc((size_t)count + 2, sizeof *parts);
    bytes pickle = {0};
    assert_true(names && parts);
    bytes_text(&pickle, key ? "\x80\x02}" : "\x80\x02");
    if (key) put_string(&pickle, key);
    bytes_text(&pickle, "}(");
    for (int i = 0; i < count; i++) {
        put_pickled(&pickle, &tensors[i], i);
        snprintf(names[i], sizeof names[i], "archive/data/%d", i);
        parts[i + 2] = (zip_part){.name = names[i], .data = tensors[i].data.data, .size = tensors[i].data.size};
    }
    bytes_text(&pickle, key ? "us." : "u.");
    parts[0] = (zip_part){.name = "archive/data.pkl", .data = pickle.data, .size = pickle.size};
    parts[1] = (zip_part){.name = "archive/version", .data = "3\n", .size = 2};
    bytes b = make_zip(parts, count + 2, 0);
    bytes_to_folder(folder, name, &b);
    bytes_free(&pickle);
    free(parts);
    free(names);
}
