/* Good files: those of PyTorch and safetensors read back with the values that PyTorch reports. */
#include "tests/support/archive.h"
#include "tests/support/support.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define DATA "tests/weights/data/"

static wt_file *open_good(const char *path)
{
    wt_file *f = open_weights(path);
    assert_string_equal(wt_path(f), path);
    return f;
}

static void expect_refusal(const char *path, mar_status status, const char *words)
{
    wt_file *f = (wt_file *)1;
    mar_err err = {0};
    assert_int_equal(wt_open(path, &f, &err), status);
    assert_null(f);
    if (!strstr(err.text, path) || !strstr(err.text, words))
        fail_msg("\"%s\" does not name the file and \"%s\"", err.text, words);
}

TEST_CASE(test_safetensors_dtypes)
{
    wt_file *f = open_good(DATA "dtypes.safetensors");
    assert_string_equal(wt_format(f), "safetensors");
    assert_int_equal(wt_count(f), 15);
    assert_values(f, DATA "dtypes.expected.safetensors");
    assert_int_equal(wt_find(f, "i64")->dtype, WT_I64);
    assert_int_equal(wt_find(f, "bool")->dtype, WT_BOOL);
    assert_int_equal(wt_find(f, "scalar")->rank, 0);
    assert_int_equal(wt_find(f, "scalar")->count, 1);
    assert_int_equal(wt_find(f, "empty")->count, 0);
    assert_null(wt_find(f, "absent"));
    wt_close(f);
}

TEST_CASE(test_safetensors_metadata)
{
    wt_file *f = open_good(DATA "dtypes.safetensors");
    assert_string_equal(wt_metadata(f, "mar.heads"), "2");
    assert_string_equal(wt_metadata(f, "note"), "\xc3\xa9 \"x\"");
    assert_null(wt_metadata(f, "absent"));
    assert_int_equal(wt_metadata_count(f), 2);
    wt_close(f);
}

TEST_CASE(test_torch_dtypes)
{
    wt_file *f = open_good(DATA "dtypes.pt");
    assert_string_equal(wt_format(f), "PyTorch zip");
    assert_int_equal(wt_count(f), 15);
    assert_values(f, DATA "dtypes.expected.safetensors");
    int64_t wide[2];
    uint8_t narrow;
    mar_err err = {0};
    assert_int_equal(wt_find(f, "i64")->dtype, WT_I64);
    assert_ok(wt_read_bytes(f, wt_find(f, "i64"), 0, sizeof wide, wide, &err), &err);
    assert_int_equal(wide[0], -1);
    assert_int_equal(wide[1], (int64_t)1 << 40);
    assert_ok(wt_read_bytes(f, wt_find(f, "u8"), 0, 1, &narrow, &err), &err);
    assert_int_equal(narrow, 255);
    assert_int_equal(wt_find(f, "empty")->rank, 2);
    wt_close(f);
}

/* Reads a training checkpoint: the averaged weights win. Optimizer, scaler, Namespace and numpy scalars do no harm. */
TEST_CASE(test_official_checkpoint)
{
    wt_file *f = open_good(DATA "mar.pth");
    assert_string_equal(wt_format(f), "PyTorch zip (model_ema)");
    assert_int_equal(wt_count(f), 92);
    assert_string_equal(wt_at(f, 0)->name, "fake_latent");
    assert_values(f, DATA "mar.pth.expected.safetensors");
    wt_close(f);
}

TEST_CASE(test_views)
{
    wt_file *f = open_good(DATA "views.pt");
    assert_int_equal(wt_count(f), 9);
    assert_values(f, DATA "views.pt.expected.safetensors");
    /* Contiguous views are not copied. */
    const uint64_t base = wt_find(f, "base")->offset;
    assert_int_equal(wt_find(f, "rows")->offset, base + 24 * sizeof(float));
    assert_int_equal(wt_find(f, "flat")->offset, base + 7 * sizeof(float));
    assert_true(!wt_find(f, "base")->copy && !wt_find(f, "rows")->copy && !wt_find(f, "flat")->copy);
    wt_close(f);
}

TEST_CASE(test_protocols)
{
    static const char *const paths[] = {DATA "protocol3.pt", DATA "protocol4.pt", DATA "protocol5.pt"};
    for (int i = 0; i < 3; i++) {
        wt_file *f = open_good(paths[i]);
        assert_string_equal(wt_format(f), "PyTorch zip (state_dict)");
        assert_int_equal(wt_count(f), 2);
        assert_int_equal(wt_find(f, "b")->dtype, WT_F16);
        float *a = golden_f32(f, "a", 60), *b = golden_f32(f, "b", 60);
        for (int j = 0; j < 60; j++) assert_true(a[j] == (float)j && b[j] == (float)j);
        free(a);
        free(b);
        wt_close(f);
    }
}

TEST_CASE(test_which_dict)
{
    wt_file *f = open_good(DATA "no_ema.pt"); /* model_ema is None */
    assert_string_equal(wt_format(f), "PyTorch zip (model)");
    assert_int_equal(wt_count(f), 1);
    wt_close(f);
    f = open_good(DATA "top_level.pt"); /* a tensor beside an integer, a list, and a tensor of an integer key */
    assert_string_equal(wt_format(f), "PyTorch zip");
    assert_int_equal(wt_count(f), 2);
    assert_string_equal(wt_at(f, 0)->name, "a");
    assert_string_equal(wt_at(f, 1)->name, "(an integer as key) 4");
    assert_string_equal(wt_at(f, 1)->type, "tensor");
    wt_close(f);
    f = open_good(DATA "unknown_class.pt"); /* an object beside a tensor */
    assert_int_equal(wt_count(f), 2);
    assert_string_equal(wt_find(f, "n")->type, "__main__.Shift");
    wt_close(f);
}

/* Reads weights under `module`, or bare, beside other data of a training run. These are an optimizer, an average
 * under another name, and options with a date and a path. */
TEST_CASE(test_training)
{
    static const char *const paths[] = {DATA "module.pt", DATA "options_beside.pt"};
    static const char *const formats[] = {"PyTorch zip (module)", "PyTorch zip"};
    for (int i = 0; i < 2; i++) {
        wt_file *f = open_good(paths[i]);
        assert_string_equal(wt_format(f), formats[i]);
        assert_int_equal(wt_count(f), 1);
        float *w = golden_f32(f, "w", 60);
        for (int j = 0; j < 60; j++) assert_true(w[j] == (float)j);
        free(w);
        wt_close(f);
    }
}

/* Reads the format before PyTorch 1.6: several protocols, storages shared by tensors, and storages that nothing
 * reads. */
TEST_CASE(test_legacy)
{
    wt_file *f = open_good(DATA "legacy.pt");
    assert_string_equal(wt_format(f), "PyTorch before 1.6");
    assert_int_equal(wt_count(f), 1);
    float *w = golden_f32(f, "w", 60);
    for (int j = 0; j < 60; j++) assert_true(w[j] == (float)j);
    free(w);
    wt_close(f);
    f = open_good(DATA "legacy_views.pt");
    assert_int_equal(wt_count(f), 9);
    assert_values(f, DATA "views.pt.expected.safetensors");
    assert_int_equal(wt_find(f, "rows")->offset, wt_find(f, "base")->offset + 24 * sizeof(float));
    wt_close(f);
    f = open_good(DATA "legacy_model.pt");
    assert_string_equal(wt_format(f), "PyTorch before 1.6 (model_ema)");
    assert_int_equal(wt_count(f), 7);
    assert_values(f, DATA "legacy_model.pt.expected.safetensors");
    assert_int_equal(wt_find(f, "bn.num_batches_tracked")->dtype, WT_I64);
    wt_close(f);
    f = open_good(DATA "legacy4.pt"); /* protocol 4, with frames */
    assert_string_equal(wt_format(f), "PyTorch before 1.6 (state_dict)");
    assert_int_equal(wt_find(f, "empty")->count, 0);
    wt_close(f);
}

/* Checks that os.system beside the tensors is skipped, and in place of a tensor refused. It runs in neither case. */
TEST_CASE(test_evil)
{
    wt_file *f = open_good(DATA "evil_beside.pt");
    assert_int_equal(wt_count(f), 1);
    wt_close(f);
    expect_refusal(DATA "evil_tensor.pt", MAR_EFORMAT, "\"w\" has type posix.system");
    assert_int_equal(access("executed", F_OK), -1);
}

TEST_CASE(test_refusals)
{
    expect_refusal(DATA "numpy_tensor.pt", MAR_EFORMAT, "no tensors of a type that is read; \"w\" has type numpy");
    expect_refusal(DATA "no_tensors.pt", MAR_EFORMAT, "no tensors");
    expect_refusal(DATA "list.pt", MAR_EFORMAT, "a list, expected a dict");
    expect_refusal(DATA "legacy_big.pt", MAR_EFORMAT, "byte order is not said to be little-endian");
    expect_refusal(DATA "compressed.pt", MAR_EFORMAT, "compressed");
    expect_refusal(DATA "big.pt", MAR_EFORMAT, "byte order is \"big\"");
    expect_refusal(DATA "absent.pt", MAR_EIO, "No such file");
    expect_refusal("tests/weights", MAR_EIO, "not a regular file");
    expect_refusal("tests/weights/make_files.py", MAR_EFORMAT, "Writes tests/weights");
    expect_refusal("/dev/null", MAR_EIO, "not a regular file");
}

TEST_CASE(test_load_f32)
{
    wt_file *f = open_good(DATA "dtypes.safetensors");
    float *values;
    mar_err err = {0};
    assert_ok(wt_load_f32(f, "bf16", 1, (int64_t[]){9}, &values, &err), &err);
    assert_true(values[3] == -2.5f);
    free(values);
    assert_int_equal(wt_load_f32(f, "bf16", 1, (int64_t[]){8}, &values, &err), MAR_EMODEL);
    assert_string_equal(err.text, DATA "dtypes.safetensors: tensor bf16 has shape [9], expected [8]");
    assert_null(values);
    assert_int_equal(wt_load_f32(f, "bf16", 2, (int64_t[]){9, 1}, &values, &err), MAR_EMODEL);
    assert_int_equal(wt_load_f32(f, "gone", 2, (int64_t[]){3, 4}, &values, &err), MAR_EMODEL);
    assert_string_equal(err.text, DATA "dtypes.safetensors: tensor gone is missing, expected shape [3, 4]");
    assert_int_equal(wt_load_f32(f, "i64", 1, (int64_t[]){2}, &values, &err), MAR_EMODEL);
    assert_non_null(strstr(err.text, "tensor i64 has dtype I64"));
    assert_ok(wt_load_f32(f, "empty", 2, (int64_t[]){0, 3}, &values, &err), &err);
    free(values);
    wt_close(f);
}

/* Reads a ZIP64 archive whose second storage begins beyond 4 GB, as in MAR-L with its optimizer. */
TEST_CASE(test_beyond_4_gb)
{
    static const char pickle[] = "\x80\x02}(X\x01\0\0\0wctorch._utils\n_rebuild_tensor_v2\n("
                                 "(X\x07\0\0\0storagectorch\nFloatStorage\nX\x01\0\0\0"
                                 "0X\x03\0\0\0"
                                 "cpuK\x03tQ"
                                 "K\0K\x03\x85K\x01\x85\x89NtRu.";
    const float values[3] = {1, 2, 4};
    const zip_part parts[] = {
        {.name = "x/data.pkl", .data = pickle, .size = sizeof pickle - 1},
        {.name = "x/data/0", .data = values, .size = sizeof values},
    };
    char *path = test_path("large.pth");
    write_sparse_zip(path, parts, 2, ((uint64_t)5 << 30) + 12345);
    wt_file *f = open_good(path);
    float *read = golden_f32(f, "w", 3);
    assert_memory_equal(read, values, sizeof values);
    free(read);
    wt_close(f);
}

/* Checks that the demo models open and are of the named kind. */
TEST_CASE(test_demo)
{
    const struct {
        const wt_demo *demo;
        const char *tensor; /* one that only this kind of model has */
        int rank;
        int64_t shape[WT_MAX_RANK];
        const char *kind;
    } all[] = {
        {wt_demo_mar("demo"), "class_emb.weight", 2, {10, 64}, "mar"},
        {wt_demo_mar("demo-draft"), "class_emb.weight", 2, {10, 32}, "mar"},
        {wt_demo_vae("demo"), "decoder.conv_in.weight", 4, {64, 8, 3, 3}, "vae"},
        {wt_demo_mar("demo-discrete"), "cls_embedding.embedding_table.weight", 2, {11, 128}, "llamagen"},
        {wt_demo_mar("demo-discrete-draft"), "cls_embedding.embedding_table.weight", 2, {11, 64}, "llamagen"},
        {wt_demo_mar("demo-discrete-eagle"), "eagle.fc.weight", 2, {128, 256}, "eagle"},
        {wt_demo_vae("demo-discrete"), "quantize.embedding.weight", 2, {256, 8}, "vq"},
        {wt_demo_mar("demo-sphere"), "cls_embedding.weight", 2, {11, 384}, "spherear"},
        {wt_demo_mar("demo-sphere-draft"), "cls_embedding.weight", 2, {11, 192}, "spherear"},
        {wt_demo_mar("demo-t2i"), "cls_embedding.uncond_embedding", 2, {16, 128}, "llamagen"},
        {wt_demo_mar("demo-mgpt"), "model.layers.0.self_attn.q_norm.bias", 2, {4, 32}, "decoder"},
        {wt_demo_vae("demo-mgpt"), "quantize.embedding.weight", 2, {512, 8}, "vq"},
        {wt_demo_vae("demo-sphere"), "vae.post_quant_proj.weight", 2, {96, 16}, "spherear"},
    };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        wt_file *f;
        mar_err err = {0};
        assert_non_null(all[i].demo);
        assert_ok(wt_open_demo(all[i].demo, &f, &err), &err);
        assert_string_equal(wt_path(f), all[i].demo->name);
        const wt_tensor *t = wt_find(f, all[i].tensor);
        assert_non_null(t);
        assert_int_equal(t->rank, all[i].rank);
        assert_memory_equal(t->shape, all[i].shape, (size_t)t->rank * sizeof *t->shape);
        assert_string_equal(wt_metadata(f, "mar.kind"), all[i].kind);
        wt_close(f);
    }
    assert_string_equal(wt_demo_vae("demo-vae")->file, wt_demo_vae("demo")->file);
    assert_string_equal(wt_demo_vae("demo-discrete-vq")->file, wt_demo_vae("demo-discrete")->file);
    assert_null(wt_demo_mar("other"));
    assert_null(wt_demo_vae("demo-draft"));
    assert_null(wt_demo_vae("demo-discrete-draft"));
    assert_null(wt_demo_vae("demo-sphere-draft"));
}
