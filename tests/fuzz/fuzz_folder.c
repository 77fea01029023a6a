/* A folder as Hugging Face writes it, and the language of a decoder in it. The input is the index of the shards and,
 * behind a NUL, config.json. The shards are fixed: a.safetensors has x, y and an embedding of 16 rows, b.safetensors
 * has z, and c.safetensors ends in its header. */
#include "tests/fuzz/fuzz.h"

#include "families/families.h"
#include "weights/shape.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static char folder[64];
static const char *const names[] = {"a.safetensors", "b.safetensors", "c.safetensors", "config.json",
                                    "model.safetensors.index.json"};
enum { CONFIG = 3, INDEX, NAMES };

static void path_of(int name, char path[128])
{
    snprintf(path, 128, "%s/%s", folder, names[name]);
}

static void write_file(int name, const void *data, size_t size)
{
    char path[128];
    path_of(name, path);
    FILE *f = fopen(path, "wb");
    if (!f || fwrite(data, 1, size, f) != size || fclose(f) != 0) fuzz_fail("cannot write %s", path);
}

static void write_shard(int name, const char *header, size_t data_size)
{
    uint8_t file[512] = {0};
    const size_t n = strlen(header);
    file[0] = (uint8_t)n;
    memcpy(file + 8, header, n);
    write_file(name, file, 8 + n + data_size);
}

static void remove_files(void)
{
    char path[128];
    for (int i = 0; i < NAMES; i++) {
        path_of(i, path);
        unlink(path);
    }
    rmdir(folder);
}

int LLVMFuzzerInitialize(int *argc, char ***argv);
int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    (void)argc, (void)argv;
    const int in_memory = access("/dev/shm", W_OK) == 0;
    snprintf(folder, sizeof folder, "%s/mar-fuzz-XXXXXX", in_memory ? "/dev/shm" : "/tmp");
    if (!mkdtemp(folder)) fuzz_fail("cannot make %s", folder);
    atexit(remove_files);
    write_shard(0,
                "{\"x\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]},"
                "\"y\":{\"dtype\":\"BF16\",\"shape\":[1],\"data_offsets\":[8,10]},"
                "\"model.embed_tokens.weight\":{\"dtype\":\"BF16\",\"shape\":[16,1],\"data_offsets\":[10,42]}}",
                42);
    write_shard(1, "{\"z\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}", 4);
    write_shard(2, "{\"w\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}", 1);
    return 0;
}

/* Checks the language: its ids are rows of the embedding, and its metadata fit its family. */
static void check_language(const wt_file *f)
{
    language g;
    wt_pairs p = {.count = 0};
    mar_err err = {0};
    const mar_status status = language_open(f, &g, &err);
    if (status == MAR_EIO) /* no tokenizer */
        fuzz_check_line("language_open", err.text);
    else
        fuzz_check_error("language_open", status, &err);
    if (status != MAR_OK) return;
    int columns = 0, rows = 0;
    if (!language_recognise(f) || g.vocabulary.count < 1 || g.vocabulary.count > 16)
        fuzz_fail("%d image tokens", g.vocabulary.count);
    for (int i = 0; i < g.vocabulary.count; i++)
        if (g.vocabulary.image_id[i] < 0 || g.vocabulary.image_id[i] >= g.vocabulary.rows ||
            g.vocabulary.image_id[i] == g.vocabulary.line_end)
            fuzz_fail("image token %d has id %d", i, g.vocabulary.image_id[i]);
    if ((g.vocabulary.line_end >= 0) != (g.family->line_end != NULL))
        fuzz_fail("the line end is %d", g.vocabulary.line_end);
    if (language_size(&g, "m", 0, 0, &columns, &rows, &err) == MAR_OK &&
        language_room(&g, columns, rows) < LANGUAGE_PROMPT_MIN)
        fuzz_fail("%d columns leave no room", columns);
    if (language_put(&g, &p, &err) != MAR_OK || strcmp(p.pairs[0][1], g.family->name) != 0) fuzz_fail("%s", err.text);
    wt_pairs_free(&p);
    language_free(&g);
}

/* Checks an open folder: its tensors can be found and read, and its configuration looked up. */
static void check_open(const wt_file *f)
{
    mar_err err = {0};
    for (int i = 0; i < wt_count(f); i++) {
        float values[16];
        const wt_tensor *t = wt_at(f, i);
        if (wt_find(f, t->name) != t || t->count > 16) fuzz_fail("tensor %s", t->name);
        const mar_status status = wt_read_f32(f, t, values, &err);
        if (status != MAR_OK) fuzz_fail("%s", err.text);
    }
    const json_value *config = wt_config(f);
    if (config && config->type != JSON_OBJECT) fuzz_fail("the configuration is no object");
    double number = 1;
    const mar_status status = wt_config_number(f, "n", &number, &err);
    fuzz_check_error("wt_config_number", status, &err);
    if (!(number > 0)) fuzz_fail("the number is %g", number);
    const char *text = wt_config_architecture(f);
    if (!config && text) fuzz_fail("an architecture without config.json");
    check_language(f);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const uint8_t *end = memchr(data, 0, size);
    const size_t n = end ? (size_t)(end - data) : size;
    char path[128];
    write_file(INDEX, data, n);
    if (end) write_file(CONFIG, end + 1, size - n - 1);
    path_of(CONFIG, path);
    if (!end) unlink(path);
    mar_status first = MAR_OK;
    for (int twice = 0; twice < 2; twice++) {
        wt_file *f = NULL;
        mar_err err = {0};
        const mar_status status = wt_open_folder(folder, MAR_WEIGHTS_AUTO, &f, &err);
        if (status == MAR_EIO) /* a shard that is missing */
            fuzz_check_line("wt_open_folder", err.text);
        else
            fuzz_check_error("wt_open_folder", status, &err);
        if ((status == MAR_OK) != (f != NULL)) fuzz_fail("a file and an error");
        if (twice && status != first) fuzz_fail("another status");
        first = status;
        if (f) check_open(f);
        if (f && family_rename(f, &err) == MAR_OK) check_language(f);
        wt_close(f);
    }
    return 0;
}
