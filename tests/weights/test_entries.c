/* Entries of a type that is not read, which matter only to a model that needs them; fp8, alone and scaled. */
#include "tests/support/archive.h"
#include "tests/support/support.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DATA "tests/weights/data/"

/* Checks that an entry is not read, and that a model that needs it is told its type. */
static void expect_unread(const wt_file *f, const char *name, const char *type)
{
    char expected[300];
    float *values;
    mar_err err = {0};
    const wt_tensor *t = wt_find(f, name);
    if (!t) fail_msg("%s: no entry %s", wt_path(f), name);
    assert_int_equal(t->dtype, WT_UNREAD);
    assert_string_equal(t->type, type);
    assert_int_equal(wt_load_f32(f, name, t->rank, t->shape, &values, &err), MAR_EMODEL);
    snprintf(expected, sizeof expected,
             "%s: tensor %s has type %s, which is not read; expected F32, BF16, F16, F64, F8_E4M3 or F8_E5M2",
             wt_path(f), name, type);
    assert_string_equal(err.text, expected);
}

/* PyTorch's files: what modules keep among their tensors, and tensors of other types, beside all 256 codes of fp8. */
TEST_CASE(test_torch_entries)
{
    static const char *const paths[] = {DATA "entries.pt", DATA "entries_legacy.pt"};
    static const char *const entries[][2] = {{"freqs_cis", "C64"},
                                             {"block._extra_state", "_io.BytesIO"},
                                             {"attn._extra_state", "None"},
                                             {"bytes", "bytes"},
                                             {"version", "int"},
                                             {"name", "str"},
                                             {"(an integer as key) 7", "str"},
                                             {"u16", "torch.uint16"},
                                             {"fnuz", "torch.float8_e4m3fnuz"},
                                             {"sparse", "sparse tensor"},
                                             {"meta", "meta tensor"},
                                             {"conj", "conjugated or negated view"},
                                             {"negated", "conjugated or negated view"}};
    for (int i = 0; i < 2; i++) {
        wt_file *f = open_weights(paths[i]);
        assert_int_equal(wt_count(f), 13 + 5);
        for (size_t j = 0; j < sizeof entries / sizeof *entries; j++) expect_unread(f, entries[j][0], entries[j][1]);
        assert_int_equal(wt_find(f, "e4m3")->dtype, WT_F8_E4M3);
        assert_int_equal(wt_find(f, "e5m2")->dtype, WT_F8_E5M2);
        assert_values(f, DATA "entries.expected.safetensors");
        assert_int_equal(wt_count_parameters(f), 3 * 256 + 6 + 4);
        wt_close(f);
    }
}

/* Entries of a state dict whose keys are no names. */
TEST_CASE(test_other_keys)
{
    static const struct {
        const char *key, *name;
    } cases[] = {{"K\7", "(an integer as key) 7"},
                 {"K\1\x85", "(a tuple as key)"},
                 {"N", "(None as key)"},
                 {"\x88", "(a bool as key)"},
                 {"cos\nsy\033stem\n", "(the class os.sy\\x1bstem as key)"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        static const char head[] = "\x80\2}X\5\0\0\0model}";
        bytes pickle = {0};
        wt_file *f;
        char expected[200];
        mar_err err = {0};
        bytes_put(&pickle, head, sizeof head - 1);
        bytes_text(&pickle, cases[i].key);
        bytes_text(&pickle, "K\3ss."); /* {"model": {key: 3}} */
        bytes b = make_torch(pickle.data, pickle.size, 0);
        assert_int_equal(wt_open_memory(b.data, b.size, "x", &f, &err), MAR_EFORMAT);
        snprintf(expected, sizeof expected, "x: no tensors of a type that is read; \"%s\" has type int", cases[i].name);
        assert_string_equal(err.text, expected);
        bytes_free(&pickle);
        bytes_free(&b);
    }
}

TEST_CASE(test_equal_keys)
{
    static const char pickle[] = "\x80\2}X\5\0\0\0model}NK\3sNK\3ss.";
    wt_file *f;
    mar_err err = {0};
    bytes b = make_torch(pickle, sizeof pickle - 1, 0);
    assert_int_equal(wt_open_memory(b.data, b.size, "x", &f, &err), MAR_EFORMAT);
    assert_string_equal(err.text, "x: tensor \"(None as key)\" appears twice");
    bytes_free(&b);
}

TEST_CASE(test_safetensors_entries)
{
    wt_file *f = open_weights(DATA "entries.safetensors");
    assert_int_equal(wt_count(f), 8);
    expect_unread(f, "freqs_cis", "C64");
    expect_unread(f, "u16", "U16");
    expect_unread(f, "e8m0", "F8_E8M0");
    assert_values(f, DATA "entries.expected.safetensors");
    wt_close(f);
}

/* Scales as compressed-tensors, ComfyUI and DeepSeek write them: PyTorch's products, bit for bit. */
TEST_CASE(test_scales)
{
    wt_file *f = open_weights(DATA "fp8_scaled.safetensors");
    assert_values(f, DATA "fp8_scaled.expected.safetensors");
    /* Rows from the middle of the file's, across blocks. */
    wt_file *expected = open_weights(DATA "fp8_scaled.expected.safetensors");
    float rows[4 * 130], *all = golden_f32(expected, "block.weight", 130 * 130);
    mar_err err = {0};
    assert_ok(wt_load_rows(f, "block.weight", 130, 130, 126, 4, rows, &err), &err);
    assert_memory_equal(rows, all + 126 * 130, sizeof rows);
    assert_ptr_equal(wt_scale_of(f, wt_find(f, "comfy.weight")), wt_find(f, "comfy.scale_weight"));
    assert_ptr_equal(wt_matrix_of(f, wt_find(f, "block.weight_scale_inv")), wt_find(f, "block.weight"));
    assert_null(wt_matrix_of(f, wt_find(f, "one.input_scale")));
    free(all);
    wt_close(expected);
    wt_close(f);
}

/* A tensor outlives the memory that it came from with its scales. */
TEST_CASE(scales_outlive_their_memory)
{
    static uint8_t data[1 << 20];
    wt_file *expected = open_weights(DATA "fp8_scaled.expected.safetensors"), *f;
    float rows[4 * 130], *all = golden_f32(expected, "block.weight", 130 * 130);
    mar_err err = {0};
    FILE *stream = fopen(DATA "fp8_scaled.safetensors", "rb");
    assert_non_null(stream);
    const size_t n = fread(data, 1, sizeof data, stream);
    fclose(stream);
    assert_ok(wt_open_memory(data, n, "memory", &f, &err), &err);
    assert_ok(wt_outlive_source(f, "block.weight", &err), &err);
    memset(data, 0, n);
    assert_ok(wt_load_rows(f, "block.weight", 130, 130, 126, 4, rows, &err), &err);
    assert_memory_equal(rows, all + 126 * 130, sizeof rows);
    free(all);
    wt_close(expected);
    wt_close(f);
}

/* Scales of another form are refused by name, not guessed. */
TEST_CASE(test_other_scales)
{
#define SCALED(more) "{\"x.weight\":{\"dtype\":\"F8_E4M3\",\"shape\":[2,3],\"data_offsets\":[0,6]}," more "}"
#define F32S(name, shape, from, to)                                                                                    \
    "\"" name "\":{\"dtype\":\"F32\",\"shape\":" shape ",\"data_offsets\":[" #from "," #to "]}"
    static const struct {
        const char *header;
        size_t bytes;
        const char *message;
    } cases[] = {
        {SCALED(F32S("x.weight_scale", "[3]", 6, 18)), 18,
         "x: tensor x.weight_scale has shape [3], expected scales of x.weight [2, 3]: one number, one for each row, "
         "or, "
         "as _scale_inv, one for each block of 128x128"},
        {SCALED(F32S("x.weight_scale_inv", "[]", 6, 10)), 10, "x: tensor x.weight_scale_inv has shape [], expected"},
        {SCALED(F32S("x.weight_scale", "[]", 6, 10) "," F32S("x.scale_weight", "[]", 10, 14)), 14,
         "x: tensor x.weight has two scales, x.weight_scale and x.scale_weight"},
        {SCALED("\"x.weight_scale\":{\"dtype\":\"F8_E8M0\",\"shape\":[2,1],\"data_offsets\":[6,8]}"), 8,
         "x: tensor x.weight_scale has type F8_E8M0, expected scales in F32, BF16 or F16"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        bytes b = make_safetensors(cases[i].header, cases[i].bytes);
        wt_file *f;
        float *values;
        mar_err err = {0};
        assert_ok(wt_open_memory(b.data, b.size, "x", &f, &err), &err);
        assert_int_equal(wt_load_f32(f, "x.weight", 2, (int64_t[]){2, 3}, &values, &err), MAR_EMODEL);
        assert_memory_equal(err.text, cases[i].message, strlen(cases[i].message));
        wt_close(f);
        bytes_free(&b);
    }
}

/* A number has no blocks. */
TEST_CASE(test_scales_of_a_number)
{
    bytes b = make_safetensors("{\"x\":{\"dtype\":\"F8_E5M2\",\"shape\":[],\"data_offsets\":[0,1]},"
                               "\"x_scale_inv\":{\"dtype\":\"F32\",\"shape\":[1,1],\"data_offsets\":[1,5]}}",
                               5);
    wt_file *f;
    float *values;
    mar_err err = {0};
    assert_ok(wt_open_memory(b.data, b.size, "x", &f, &err), &err);
    assert_int_equal(wt_load_f32(f, "x", 0, (int64_t[1]){0}, &values, &err), MAR_EMODEL);
    assert_non_null(strstr(err.text, "tensor x_scale_inv has shape [1, 1], expected scales of x []: "));
    wt_close(f);
    bytes_free(&b);
}

/* A header's integers are integers, and its metadata may be null. */
TEST_CASE(test_header)
{
    static const char *const refused[] = {"[2.0]", "[2e0]", "[1.5]", "[-1]", "[true]"};
    char header[200];
    wt_file *f;
    mar_err err = {0};
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        snprintf(header, sizeof header, "{\"a\":{\"dtype\":\"U8\",\"shape\":%s,\"data_offsets\":[0,2]}}", refused[i]);
        bytes b = make_safetensors(header, 2);
        assert_int_equal(wt_open_memory(b.data, b.size, "x", &f, &err), MAR_EFORMAT);
        assert_non_null(strstr(err.text, "x: tensor \"a\": dimension 0 of its shape is "));
        bytes_free(&b);
    }
    bytes b =
        make_safetensors("{\"__metadata__\":null,\"a\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[0,2]}}", 2);
    assert_ok(wt_open_memory(b.data, b.size, "x", &f, &err), &err);
    assert_int_equal(wt_metadata_count(f), 0);
    assert_int_equal(wt_count(f), 1);
    wt_close(f);
    bytes_free(&b);
}
