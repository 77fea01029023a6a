/* Folders as Hugging Face writes them: good ones in four layouts, through links, and every way in which they are
 * broken. The data is that of tests/golden/make_t5.py. */
#include "tests/support/archive.h"
#include "tests/support/support.h"
#include "weights/shape.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define SHARDED "tests/golden/data/t5/"
#define BINARY  "tests/golden/data/t5_bin/"
#define FIRST   "model-00001-of-00002.safetensors"
#define SECOND  "model-00002-of-00002.safetensors"
#define INDEX   "model.safetensors.index.json"

/* --- making folders ----------------------------------------------------------------------------------------------- */

static char *path_in(const char *folder, const char *name)
{
    char *path;
    assert_true(asprintf(&path, "%s/%s", folder, name) > 0);
    return path;
}

static void write_text(const char *folder, const char *name, const char *text, size_t size)
{
    char *path = path_in(folder, name);
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(text, 1, size, f), size);
    assert_int_equal(fclose(f), 0);
    free(path);
}

/* Copies a file of the data, its first `size` bytes; 0: all. */
static void copy(const char *from, const char *name, const char *folder, size_t size)
{
    char *path = path_in(from, name);
    bytes b = bytes_from_file(path);
    write_text(folder, name, (const char *)b.data, size ? size : b.size);
    bytes_free(&b);
    free(path);
}

/* Links to a file of the data, as the cache's snapshots do. */
static void link_to(const char *from, const char *name, const char *folder, const char *as)
{
    char here[4096], *target, *path = path_in(folder, as);
    assert_non_null(getcwd(here, sizeof here));
    assert_true(asprintf(&target, "%s/%s%s", here, from, name) > 0);
    assert_int_equal(symlink(target, path), 0);
    free(target);
    free(path);
}

/* Returns a folder with links to the sharded model but for `without`. */
static char *sharded_without(const char *without)
{
    static const char *const names[] = {"config.json", INDEX, FIRST, SECOND};
    char *folder = test_directory();
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (!without || strcmp(names[i], without) != 0) link_to(SHARDED, names[i], folder, names[i]);
    return folder;
}

static wt_file *open_good(const char *folder)
{
    wt_file *f;
    mar_err err = {0};
    assert_int_equal(wt_is_folder(folder), 1);
    assert_ok(wt_open_folder(folder, MAR_WEIGHTS_AUTO, &f, &err), &err);
    assert_string_equal(wt_path(f), folder);
    return f;
}

/* Asserts one line that names the folder, or a file in it, and has these words. */
static void expect_refusal(const char *folder, mar_status status, const char *words)
{
    wt_file *f = (wt_file *)1;
    mar_err err = {0};
    const mar_status found = wt_open_folder(folder, MAR_WEIGHTS_AUTO, &f, &err);
    if (found != status) fail_msg("%s, expected %s: %s", mar_status_name(found), mar_status_name(status), err.text);
    assert_null(f);
    if (strncmp(err.text, folder, strlen(folder)) != 0 || !strstr(err.text, words))
        fail_msg("\"%s\" does not name the folder and \"%s\"", err.text, words);
}

/* --- good folders ------------------------------------------------------------------------------------------------- */

/* Checks that both have the same tensors with the same values. */
/* Compares the tensors of `expected` but for those whose names begin with `except`, unless it is NULL. */
static void expect_same_except(const wt_file *f, const wt_file *expected, const char *except)
{
    for (int i = 0; i < wt_count(expected); i++) {
        const wt_tensor *e = wt_at(expected, i), *t = wt_find(f, e->name);
        if (except && strncmp(e->name, except, strlen(except)) == 0) continue;
        if (!t) fail_msg("%s: %s is missing", wt_path(f), e->name);
        assert_int_equal(t->count, e->count);
        float *a = golden_f32(f, e->name, e->count), *b = golden_f32(expected, e->name, e->count);
        if (memcmp(a, b, (size_t)e->count * sizeof *a) != 0) fail_msg("%s: %s differs", wt_path(f), e->name);
        free(a);
        free(b);
    }
}

static void expect_same(const wt_file *f, const wt_file *expected)
{
    expect_same_except(f, expected, NULL);
}

TEST_CASE(shards_of_safetensors)
{
    wt_file *f = open_good("tests/golden/data/t5");
    assert_string_equal(wt_format(f), "safetensors, 2 shards");
    assert_string_equal(wt_metadata(f, "format"), "pt");
    assert_non_null(wt_find(f, "shared.weight"));
    assert_non_null(wt_find(f, "encoder.final_layer_norm.weight"));
    int parts[2] = {0};
    for (int i = 0; i < wt_count(f); i++) parts[wt_at(f, i)->part]++;
    assert_true(parts[0] > 5 && parts[1] > 5);
    for (int i = 0; i < 2; i++) {
        wt_file *shard = open_weights(i ? SHARDED SECOND : SHARDED FIRST);
        assert_int_equal(wt_count(shard), parts[i]);
        expect_same(f, shard);
        wt_close(shard);
    }
    mar_err err = {0};
    assert_ok(wt_check_unchanged(f, MAR_OK, &err), &err);
    wt_close(f);
}

/* PyTorch's file has the embedding three times, in one storage. */
TEST_CASE(pytorch_with_aliases)
{
    wt_file *f = open_good("tests/golden/data/t5_bin"), *sharded = open_good("tests/golden/data/t5");
    expect_same_except(f, sharded, "decoder."); /* the file has the encoder only */
    assert_int_equal(wt_find(f, "shared.weight")->offset, wt_find(f, "encoder.embed_tokens.weight")->offset);
    wt_close(f);
    wt_close(sharded);
}

TEST_CASE(links_into_a_cache)
{
    wt_file *expected = open_good("tests/golden/data/t5"), *f = open_good(sharded_without(NULL));
    expect_same(f, expected);
    wt_close(f);
    wt_close(expected);
}

TEST_CASE(whole_files_and_preference)
{
    char *folder = test_directory();
    assert_int_equal(wt_is_folder(folder), 0);
    link_to(SHARDED, FIRST, folder, "model.safetensors"); /* any file will do */
    link_to(BINARY, "pytorch_model.bin", folder, "pytorch_model.bin");
    wt_file *f = open_good(folder);
    assert_string_equal(wt_format(f), "safetensors");
    assert_null(wt_config(f));
    assert_null(wt_config_text(f, "model_type"));
    wt_close(f);
    /* half a safetensors file and a complete one of PyTorch */
    char *path = path_in(folder, "model.safetensors");
    assert_int_equal(unlink(path), 0);
    copy(SHARDED, FIRST, folder, 5000);
    char *half = path_in(folder, FIRST);
    assert_int_equal(rename(half, path), 0);
    f = open_good(folder);
    assert_non_null(strstr(wt_format(f), "PyTorch"));
    wt_close(f);
    free(half);
    free(path);
}

TEST_CASE(shards_of_pytorch)
{
    static const char index[] = "{\"weight_map\": {\"shared.weight\": \"pytorch_model-00001-of-00002.bin\", "
                                "\"encoder.final_layer_norm.weight\": \"pytorch_model-00001-of-00002.bin\"}}";
    char *folder = test_directory();
    link_to(BINARY, "pytorch_model.bin", folder, "pytorch_model-00001-of-00002.bin");
    write_text(folder, "pytorch_model.bin.index.json", index, sizeof index - 1);
    wt_file *f = open_good(folder), *expected = open_good("tests/golden/data/t5_bin");
    expect_same(f, expected);
    wt_close(f);
    wt_close(expected);
}

/* The index of flan-t5-xl has names of the embedding that its shards lack; names may have a prefix. */
TEST_CASE(index_with_aliases)
{
    static const char index[] =
        "{\"weight_map\": {\"shared.weight\": \"" SECOND "\", \"encoder.embed_tokens.weight\": \"" SECOND
        "\", \"module.encoder.final_layer_norm.weight\": \"" FIRST "\"}}";
    char *folder = sharded_without(INDEX);
    write_text(folder, INDEX, index, sizeof index - 1);
    wt_file *f = open_good(folder), *expected = open_good("tests/golden/data/t5");
    mar_err err = {0};
    const wt_tensor *t;
    expect_same(f, expected);
    assert_null(wt_find(f, "encoder.embed_tokens.weight"));
    assert_int_equal(wt_find_shape(f, "encoder.embed_tokens.weight", 2, &t, &err), MAR_EMODEL);
    if (strncmp(err.text, folder, strlen(folder)) != 0 || !strstr(err.text, "encoder.embed_tokens.weight"))
        fail_msg("\"%s\" does not name folder and tensor", err.text);
    wt_close(f);
    wt_close(expected);
}

/* Returns the seconds of processor time for an index of many entries, whose shards are all missing. */
static double read_large_index(int shards)
{
    enum { ENTRIES = 200000 };
    char *folder = test_directory(), *path = path_in(folder, INDEX), words[64];
    FILE *out = fopen(path, "w");
    assert_non_null(out);
    fputs("{\"weight_map\": {", out);
    for (int i = 0; i < ENTRIES; i++)
        fprintf(out, "%s\"%d\": \"model-%04d.safetensors\"", i ? ", " : "", i, i % shards);
    fputs("}}", out);
    assert_int_equal(fclose(out), 0);
    free(path);
    snprintf(words, sizeof words, INDEX " names it, one of %d shards", shards);
    const clock_t begin = clock();
    expect_refusal(folder, MAR_EIO, words);
    return (double)(clock() - begin) / CLOCKS_PER_SEC;
}

/* The time for an index depends little on the number of its shards. */
TEST_CASE(large_index)
{
    const double one = read_large_index(1), many = read_large_index(1024);
    if (many > 4 * one) fail_msg("%.3f s for 1024 shards, %.3f s for one", many, one);
}

TEST_CASE(configuration)
{
    wt_file *f = open_good("tests/golden/data/t5");
    mar_err err = {0};
    double number = 3;
    assert_string_equal(wt_config_text(f, "model_type"), "t5");
    assert_string_equal(wt_config_architecture(f), "t5");
    assert_null(wt_config_text(f, "d_model"));
    assert_ok(wt_config_number(f, "d_ff", &number, &err), &err);
    assert_true(number == 40);
    assert_ok(wt_config_number(f, "nothing", &number, &err), &err);
    assert_true(number == 40);
    assert_int_equal(wt_config_number(f, "model_type", &number, &err), MAR_EMODEL);
    assert_non_null(strstr(err.text, "config.json has no positive number for model_type"));
    wt_close(f);
    char *folder = sharded_without("config.json");
    static const char text[] = "{\"architectures\": [\"GPT2LMHeadModel\"], \"model_type\": \"gpt2\"}";
    write_text(folder, "config.json", text, sizeof text - 1);
    f = open_good(folder);
    assert_string_equal(wt_config_architecture(f), "GPT2LMHeadModel");
    wt_close(f);
}

/* --- broken folders ----------------------------------------------------------------------------------------------- */

TEST_CASE(no_folder)
{
    char *folder = test_directory();
    expect_refusal("tests/golden/data/t5/config.json", MAR_EIO, "is no folder");
    expect_refusal("tests/golden/nothing", MAR_EIO, "No such file");
    expect_refusal(folder, MAR_EIO, "has neither model.safetensors nor pytorch_model.bin, alone or as shards");
    write_text(folder, "pytorch_model.bin.incomplete", "x", 1);
    expect_refusal(folder, MAR_EIO, "pytorch_model.bin.incomplete is half a download, expected pytorch_model.bin");
}

TEST_CASE(missing_shards)
{
    char *folder = sharded_without(SECOND);
    expect_refusal(folder, MAR_EIO, SECOND ": is missing: " INDEX " names it, one of 2 shards");
    write_text(folder, SECOND ".incomplete", "x", 1);
    expect_refusal(folder, MAR_EIO, SECOND ": is missing; " SECOND ".incomplete is half a download: " INDEX);
    char *path = path_in(folder, SECOND);
    assert_int_equal(symlink("../../blobs/0123", path), 0);
    expect_refusal(folder, MAR_EIO, SECOND ": is a link to ../../blobs/0123, which does not exist");
    free(path);
}

TEST_CASE(damaged_shards)
{
    char *folder = sharded_without(SECOND);
    copy(SHARDED, SECOND, folder, 6000);
    expect_refusal(folder, MAR_EFORMAT, "truncated?");
    write_text(folder, SECOND, "", 0);
    expect_refusal(folder, MAR_EFORMAT, SECOND ": 0 bytes");
    static const char pointer[] = "version https://git-lfs.github.com/spec/v1\noid sha256:0123\nsize 123\n";
    write_text(folder, SECOND, pointer, sizeof pointer - 1);
    expect_refusal(folder, MAR_EFORMAT, SECOND ": is a Git LFS pointer of 68 bytes, expected the file: run git lfs");
    folder = sharded_without(SECOND);
    link_to(SHARDED, FIRST, folder, SECOND);
    expect_refusal(folder, MAR_EFORMAT, "appears twice");
    folder = sharded_without(SECOND);
    char *path = path_in(folder, SECOND);
    assert_int_equal(mkdir(path, 0700), 0);
    expect_refusal(folder, MAR_EIO, SECOND ": is not a regular file, but a directory");
    free(path);
}

static void expect_bad_index(const char *text, const char *words)
{
    char *folder = sharded_without(INDEX);
    write_text(folder, INDEX, text, strlen(text));
    expect_refusal(folder, MAR_EFORMAT, words);
}

TEST_CASE(damaged_index)
{
    expect_bad_index("{\"weight_map\": {\"encoder.final_layer_norm.weight\": \"" SECOND
                     "\", \"shared.weight\": \"" FIRST "\"}}",
                     FIRST ": has no tensor \"shared.weight\", which");
    expect_bad_index("{\"weight_map\": {\"a\": \"../" FIRST "\"}}", "tensor \"a\": expected the name of a file beside");
    expect_bad_index("{\"weight_map\": {\"a\": \"..\"}}", "tensor \"a\": expected the name of a file beside the index");
    expect_bad_index("{\"weight_map\": {\"a\": 3}}", "tensor \"a\": expected the name of a file beside the index");
    expect_bad_index("{\"weight_map\": {}}", "weight_map names no tensor");
    expect_bad_index("{\"weight_map\": []}", "has no object weight_map");
    expect_bad_index("{\"metadata\": {}}", "has no object weight_map");
    expect_bad_index("[]", INDEX ": is no JSON object");
    expect_bad_index("{\"weight_map\": {\"a\": \"mod", INDEX ": is no valid JSON near byte");
    expect_bad_index("", INDEX ": is no valid JSON near byte 0");
    expect_bad_index("{\"weight_map\": {\"a\\u0000\": \"x\"}}", "has a string with a NUL");
}

TEST_CASE(damaged_configuration)
{
    char *folder = sharded_without("config.json");
    write_text(folder, "config.json", "{\"d_model\": 32", 14);
    expect_refusal(folder, MAR_EFORMAT, "config.json: is no valid JSON near byte");
}

TEST_CASE(changed_shard)
{
    char *folder = sharded_without(SECOND);
    copy(SHARDED, SECOND, folder, 0);
    wt_file *f = open_good(folder);
    mar_err err = {0};
    assert_ok(wt_check_unchanged(f, MAR_OK, &err), &err);
    write_text(folder, SECOND, "gone", 4);
    assert_int_equal(wt_check_unchanged(f, MAR_OK, &err), MAR_EIO);
    assert_non_null(strstr(err.text, SECOND ": the file changed while it was read"));
    wt_close(f);
}

/* --- parts of a matrix -------------------------------------------------------------------------------------------- */

TEST_CASE(rows_of_a_matrix)
{
    static const char name[] = "encoder.block.0.layer.1.DenseReluDense.wi_0.weight";
    enum { ROWS = 40, COLUMNS = 32, FIRST_ROW = 7, COUNT = 5 };
    wt_file *f = open_good("tests/golden/data/t5");
    float *all = golden_f32(f, name, ROWS * COLUMNS), some[COUNT * COLUMNS];
    mar_err err = {0};
    assert_ok(wt_load_rows(f, name, ROWS, COLUMNS, FIRST_ROW, COUNT, some, &err), &err);
    assert_memory_equal(some, all + FIRST_ROW * COLUMNS, sizeof some);
    assert_int_equal(wt_load_rows(f, name, ROWS, COLUMNS + 1, 0, 1, some, &err), MAR_EMODEL);
    assert_non_null(strstr(err.text, "has shape [40, 32], expected [40, 33]"));
    assert_int_equal(wt_load_rows(f, "nothing", ROWS, COLUMNS, 0, 1, some, &err), MAR_EMODEL);
    assert_non_null(strstr(err.text, "tensor nothing is missing, expected shape [40, 32]"));
    int8_t q[4];
    float scale[2];
    assert_int_equal(wt_load_int8(f, name, 2, 2, 0, 2, q, scale, &err), MAR_EMODEL);
    assert_non_null(strstr(err.text, "is [40, 32], expected int8 weights [2, 2]"));
    free(all);
    wt_close(f);
}

/* A NaN is refused where its row is read, with the counts of the whole tensor. */
TEST_CASE(rows_with_nan)
{
    static const float values[] = {1, 2, 3, NAN, NAN, 6};
    bytes b = make_safetensors("{\"w\":{\"dtype\":\"F32\",\"shape\":[3,2],\"data_offsets\":[0,24]}}", 24);
    memcpy(b.data + b.size - sizeof values, values, sizeof values);
    wt_file *f;
    mar_err err = {0};
    float row[2];
    assert_ok(wt_open_memory(b.data, b.size, "memory", &f, &err), &err);
    assert_ok(wt_load_rows(f, "w", 3, 2, 0, 1, row, &err), &err);
    assert_true(row[0] == 1 && row[1] == 2);
    assert_int_equal(wt_load_rows(f, "w", 3, 2, 1, 1, row, &err), MAR_EMODEL);
    assert_non_null(strstr(err.text, "tensor w has 2 values that are NaN, the first at 3"));
    wt_allow_nonfinite(f, 1);
    assert_ok(wt_load_rows(f, "w", 3, 2, 1, 1, row, &err), &err);
    assert_true(row[0] == 3 && row[1] != row[1]);
    wt_close(f);
    bytes_free(&b);
}
