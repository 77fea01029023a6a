#include "tests/support/harmon.h"

#include "tests/support/support.h"
#include "tests/support/tensor_files.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define DATA "tests/golden/data/"

enum { TENSORS_MAX = 400 };

static int ends_with(const char *name, const char *end)
{
    const size_t length = strlen(name), size = strlen(end);
    return length >= size && strcmp(name + length - size, end) == 0;
}

/* Returns the factor of the uniform numbers: weight() of make_harmon.py. */
static double scale_of(const file_tensor *t)
{
    static const char *const tables[] = {"pos_embed_learned", "fake_latent",         "mask_token",
                                         "class_emb.weight",  "embed_tokens.weight", "lm_head.weight"};
    double inputs = 1;
    if (t->rank == 1) return 0.3;
    for (size_t i = 0; i < sizeof tables / sizeof *tables; i++)
        if (ends_with(t->name, tables[i])) return 1;
    for (int i = 1; i < t->rank; i++) inputs *= t->shape[i];
    return (strstr(t->name, "final_layer.linear") ? 0.1 : 1) * 1.3 * sqrt(3 / inputs);
}

/* Draws the numbers. The output layer is the embedding. */
static void draw(file_tensor *t)
{
    const uint64_t hash = drawn_hash(ends_with(t->name, "lm_head.weight") ? "llm.model.embed_tokens.weight" : t->name);
    const double scale = scale_of(t), mean = t->rank == 1 && ends_with(t->name, "weight");
    uint64_t n = 1;
    for (int i = 0; i < t->rank; i++) n *= (uint64_t)t->shape[i];
    for (uint64_t i = 0; i < n; i++) {
        const float x = (float)(scale * drawn_uniform(hash, i) + mean);
        bytes_put(&t->data, &x, sizeof x);
    }
}

/* Returns whether a file has a tensor. */
static int is_in(const char *name, harmon_kind kind)
{
    if (strncmp(name, "vae.", 4) == 0) return kind == HARMON_FOLDER;
    if (strncmp(name, "siglip2", 7) == 0) return kind == HARMON_UNIPIC;
    return kind != HARMON_FOLDER || !ends_with(name, "lm_head.weight");
}

/* Reads names and shapes. Returns the number of tensors that are in a file, or with `vae` of those of its decoder,
 * which lose their prefix. */
static int read_tensors(harmon_kind kind, int vae, file_tensor *tensors)
{
    char line[256];
    int count = 0;
    FILE *f = fopen(DATA "harmon/tensors.txt", "r");
    assert_non_null(f);
    while (fgets(line, sizeof line, f)) {
        const char *const name = strtok(line, " \n"), *number;
        if (vae ? strncmp(name, "vae.", 4) != 0 : !is_in(name, kind)) continue;
        assert_true(count < TENSORS_MAX);
        file_tensor *t = &tensors[count++];
        *t = (file_tensor){.rank = 0};
        snprintf(t->name, sizeof t->name, "%s", name);
        while ((number = strtok(NULL, " \n")) != NULL) {
            assert_true(t->rank < FILE_TENSOR_RANK);
            t->shape[t->rank++] = atoi(number);
        }
        draw(t);
        if (vae) memmove(t->name, t->name + 4, strlen(t->name) - 3);
    }
    fclose(f);
    return count;
}

static void copy_to(const char *folder, const char *name, const char *from)
{
    bytes b = bytes_from_file(from);
    bytes_to_folder(folder, name, &b);
}

static void write_release(const char *folder, harmon_kind kind, file_tensor *tensors, int count)
{
    char text[4096];
    file_tensor *vae = calloc(TENSORS_MAX, sizeof *vae);
    assert_non_null(vae);
    const int n = read_tensors(kind, 1, vae);
    tensors_write_torch(folder, kind == HARMON_UNIPIC ? "pytorch_model.bin" : "harmon_0.5b.pth", NULL, tensors, count);
    tensors_write_torch(folder, "kl16.ckpt", "model", vae, n);
    for (int i = 0; i < n; i++) bytes_free(&vae[i].data);
    free(vae);
    snprintf(text, sizeof text, "%s/Qwen2.5", folder);
    if (mkdir(text, 0777) != 0) fail_msg("%s: cannot be made", text);
    copy_to(text, "vocab.json", DATA "text/qwen2_files/vocab.json");
    copy_to(text, "merges.txt", DATA "text/qwen2_files/merges.txt");
    copy_to(text, "tokenizer_config.json", DATA "text/qwen2_files/tokenizer_config.json");
}

void harmon_write(const char *folder, harmon_kind kind)
{
    file_tensor *tensors = calloc(TENSORS_MAX, sizeof *tensors);
    assert_non_null(tensors);
    const int count = read_tensors(kind, 0, tensors);
    if (kind == HARMON_FOLDER) {
        tensors_write_safetensors(folder, "model.safetensors", tensors, count);
        copy_to(folder, "config.json", DATA "harmon/config.json");
        copy_to(folder, "tokenizer.json", DATA "text/qwen2/tokenizer.json");
    } else {
        write_release(folder, kind, tensors, count);
    }
    for (int i = 0; i < count; i++) bytes_free(&tensors[i].data);
    free(tensors);
}
