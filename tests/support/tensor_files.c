#include "tests/support/tensor_files.h"

#include "tests/support/support.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

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

static int ends_with(const char *name, const char *end)
{
    const size_t length = strlen(name), size = strlen(end);
    return length >= size && strcmp(name + length - size, end) == 0;
}

int tensors_read(const char *list, file_tensor *tensors)
{
    char line[256];
    int count = 0;
    snprintf(line, sizeof line, "tests/golden/data/%s", list);
    FILE *f = fopen(line, "r");
    if (!f) fail_msg("%s: cannot be opened", line);
    while (fgets(line, sizeof line, f)) {
        assert_true(count < FILE_TENSORS_MAX);
        file_tensor *t = &tensors[count++];
        *t = (file_tensor){.rank = 0};
        snprintf(t->name, sizeof t->name, "%s", strtok(line, " \n"));
        for (const char *number; (number = strtok(NULL, " \n")) != NULL;) {
            assert_true(t->rank < FILE_TENSOR_RANK);
            t->shape[t->rank++] = atoi(number);
        }
    }
    fclose(f);
    return count;
}

static size_t tensor_elements(const file_tensor *t)
{
    size_t n = 1;
    for (int i = 0; i < t->rank; i++) n *= (size_t)t->shape[i];
    return n;
}

/* Returns the factor of the uniform numbers. */
static double tensor_scale(const file_tensor *t)
{
    static const char *const tables[] = {"pos_embed_learned", "positional_embedding", "fake_latent",
                                         "mask_token",        "class_emb.weight",     "embed_tokens.weight",
                                         "lm_head.weight",    "gen_pos_embed"};
    double inputs = 1;
    if (t->rank == 1) return 0.3;
    for (size_t i = 0; i < sizeof tables / sizeof *tables; i++)
        if (ends_with(t->name, tables[i])) return 1;
    for (int i = 1; i < t->rank; i++) inputs *= t->shape[i];
    const int tamed = strstr(t->name, "final_layer.linear") || strstr(t->name, "image_out_projector");
    return (tamed ? 0.1 : 1) * 1.3 * sqrt(3 / inputs);
}

void tensor_draw(file_tensor *t, const char *name, double distance)
{
    const uint64_t hash = drawn_hash(name);
    const double scale = tensor_scale(t), mean = t->rank == 1 && ends_with(t->name, "weight");
    for (uint64_t i = 0; i < tensor_elements(t); i++) {
        const double moved = distance * scale * drawn_uniform(hash + 1, i);
        const float x = (float)(scale * drawn_uniform(hash, i) + mean + moved);
        bytes_put(&t->data, &x, sizeof x);
    }
}

int tensors_drawn(const char *list, file_tensor *tensors)
{
    const int count = tensors_read(list, tensors);
    for (int i = 0; i < count; i++) tensor_draw(&tensors[i], tensors[i].name, 0);
    return count;
}

void tensors_free(file_tensor *tensors, int count)
{
    for (int i = 0; i < count; i++) bytes_free(&tensors[i].data);
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
    char path[4096];
    size_t at = 0;
    for (int i = 0; i < count; i++) {
        const file_tensor *t = &tensors[i];
        const size_t size = tensor_elements(t) * sizeof(float);
        bytes_format(&header, "%s\"%s\":{\"dtype\":\"F32\",\"shape\":[", i ? "," : "{", t->name);
        for (int k = 0; k < t->rank; k++) bytes_format(&header, "%s%d", k ? "," : "", t->shape[k]);
        bytes_format(&header, "],\"data_offsets\":[%zu,%zu]}", at, at + size);
        at += size;
    }
    bytes_text(&header, "}");
    bytes_number(&b, header.size, 8);
    bytes_put(&b, header.data, header.size);
    for (int i = 0; i < count; i++) bytes_put(&b, tensors[i].data.data, tensors[i].data.size);
    bytes_to_folder(folder, name, &b);
    snprintf(path, sizeof path, "%s/%s", folder, name);
    assert_int_equal(truncate(path, (off_t)(8 + header.size + at)), 0);
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
