/* Names of tensors as training writes them: every family is read as if nothing had been added to its names. */
#include "tests/support/archive.h"
#include "tests/support/support.h"

#include "mar/api/kinds.h"
#include "mar/api/load.h"
#include "weights/shape.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define GOLDEN "tests/golden/data/"

/* Files of all families. */
static const char *const files[] = {"demo",
                                    "demo-vae",
                                    "demo-discrete",
                                    "demo-discrete-vq",
                                    "demo-discrete-eagle",
                                    "demo-sphere",
                                    "demo-t2i",
                                    "demo-mgpt",
                                    "demo-mgpt-vq",
                                    "demo-harmon",
                                    GOLDEN "t5",
                                    GOLDEN "clip_tiny",
                                    GOLDEN "inception_tiny.pth",
                                    GOLDEN "vgg_tiny.pth",
                                    GOLDEN "vq.pth",
                                    GOLDEN "encoder.pth",
                                    GOLDEN "lantern_c2i.bin"};

/* Writes to text what wrappers make of a name: one in front, and one in front of its last part but one. */
static void wrap(const char *name, const char *front, const char *middle, char *text, size_t size)
{
    const char *dot = strrchr(name, '.');
    while (dot && dot > name && dot[-1] != '.') dot--;
    const int head = dot ? (int)(dot - name) : 0;
    snprintf(text, size, "%s%.*s%s%s", front, head, name, middle, name + head);
}

/* Writes the tensors of f under such names. */
static void write_wrapped(const wt_file *f, const char *path, const char *front, const char *middle)
{
    const int count = wt_count(f);
    wt_output *outputs = calloc((size_t)count, sizeof *outputs);
    char(*names)[400] = calloc((size_t)count, sizeof *names);
    mar_err err = {0};
    assert_true(outputs && names);
    for (int i = 0; i < count; i++) {
        const wt_tensor *t = wt_at(f, i);
        wrap(t->name, front, middle, names[i], sizeof *names);
        outputs[i] = (wt_output){names[i], t->dtype, t->rank, {0}, f, t, WT_COPIED, NULL};
        memcpy(outputs[i].shape, t->shape, sizeof t->shape);
    }
    assert_ok(wt_save_safetensors(path, outputs, count, NULL, 0, &err), &err);
    free(outputs);
    free(names);
}

static wt_file *open_checkpoint(const char *path)
{
    wt_file *f;
    mar_err err = {0};
    assert_ok(mar_open_checkpoint(path, strstr(path, "-vae") || strstr(path, "-vq"), MAR_WEIGHTS_AUTO, &f, &err), &err);
    return f;
}

static void expect_names(const char *file, const char *front, const char *middle, const char *removed)
{
    int n;
    char *path = test_path("wrapped.safetensors");
    wt_file *f = open_checkpoint(file);
    write_wrapped(f, path, front, middle);
    wt_file *wrapped = open_checkpoint(path);
    const wt_kind *kind = mar_kind_of(wrapped), *wanted = mar_kind_of(f);
    if (kind != wanted) fail_msg("%s, %s: another kind", file, front);
    assert_int_equal(wt_count(wrapped), wt_count(f));
    for (int i = 0; i < wt_count(f); i++)
        if (!wt_find(wrapped, wt_at(f, i)->name))
            fail_msg("%s, %s: no %s but %s", file, front, wt_at(f, i)->name, wt_at(wrapped, i)->name);
    const char *text = wt_prefix(wrapped, &n);
    if (!removed) {
        assert_null(text);
    } else {
        assert_non_null(text);
        assert_string_equal(text, removed);
        assert_int_equal(n, wt_count(f));
    }
    wt_close(wrapped);
    wt_close(f);
}

TEST_CASE(test_families)
{
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        expect_names(files[i], "", "", NULL);
        expect_names(files[i], "model.", "", "model.");
        expect_names(files[i], "_orig_mod.module.", "", "module. and _orig_mod.");
        expect_names(files[i], "model.module.", "_checkpoint_wrapped_module.",
                     "module., _checkpoint_wrapped_module. and model.");
        expect_names(files[i], "_fsdp_wrapped_module.", "_fsdp_wrapped_module._orig_mod.",
                     "_orig_mod. and _fsdp_wrapped_module.");
    }
}

/* A part of a name that only looks like one that was added stays, and so does "model." where nothing is known. */
TEST_CASE(test_own_names)
{
    static const char *const names[] = {"my_module.weight", "module", "x.module.", "model.x", "models.module_.y"};
    wt_file *source = open_checkpoint("demo"), *f;
    wt_output outputs[5];
    mar_err err = {0};
    int n;
    char *path = test_path("own.safetensors");
    const wt_tensor *t = wt_at(source, 0);
    for (int i = 0; i < 5; i++) {
        outputs[i] = (wt_output){names[i], t->dtype, t->rank, {0}, source, t, WT_COPIED, NULL};
        memcpy(outputs[i].shape, t->shape, sizeof t->shape);
    }
    assert_ok(wt_save_safetensors(path, outputs, 5, NULL, 0, &err), &err);
    f = open_checkpoint(path);
    for (int i = 0; i < 5; i++) assert_non_null(wt_find(f, names[i]));
    assert_null(wt_prefix(f, &n));
    wt_close(f);
    wt_close(source);
}

/* Parts of names are those of the tensors that are left, and of no entry that is not read. */
TEST_CASE(test_removed_parts)
{
    bytes b = make_safetensors("{\"module.a.x\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]},"
                               "\"_orig_mod.b.x\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[1,2]},"
                               "\"b.y\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[2,3]},"
                               "\"c.x\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[3,4]},"
                               "\"module.c.y\":{\"dtype\":\"U16\",\"shape\":[1],\"data_offsets\":[4,6]}}",
                               6);
    static const struct {
        const char *kept, *removed;
        int count;
    } cases[] = {{"", "module. and _orig_mod.", 2}, {"a.", "module.", 1}, {"b.", "_orig_mod.", 1}, {"c.", NULL, 0}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        wt_file *f;
        mar_err err = {0};
        int n;
        assert_ok(wt_open_memory(b.data, b.size, "x", &f, &err), &err);
        wt_narrow(f, cases[i].kept);
        const char *text = wt_prefix(f, &n);
        assert_int_equal(n, cases[i].count);
        if (cases[i].removed) {
            assert_non_null(text);
            assert_string_equal(text, cases[i].removed);
        } else {
            assert_null(text);
        }
        wt_close(f);
    }
    bytes_free(&b);
}

/* Two tensors that lose what distinguishes them are refused by name. */
TEST_CASE(test_clash)
{
    wt_file *source = open_checkpoint("demo"), *f = NULL;
    mar_err err = {0};
    char *path = test_path("clash.safetensors"), wanted[700];
    const wt_tensor *t = wt_find(source, "class_emb.weight");
    wt_output outputs[] = {{"model.class_emb.weight", t->dtype, t->rank, {0}, source, t, WT_COPIED, NULL},
                           {"model.x", t->dtype, t->rank, {0}, source, t, WT_COPIED, NULL},
                           {"x", t->dtype, t->rank, {0}, source, t, WT_COPIED, NULL}};
    for (int i = 0; i < 3; i++) memcpy(outputs[i].shape, t->shape, sizeof t->shape);
    assert_ok(wt_save_safetensors(path, outputs, 3, NULL, 0, &err), &err);
    assert_int_equal(mar_open_checkpoint(path, 0, MAR_WEIGHTS_AUTO, &f, &err), MAR_EFORMAT);
    assert_null(f);
    snprintf(wanted, sizeof wanted, "%s: tensor \"x\" appears twice, where names lost model.", path);
    assert_string_equal(err.text, wanted);
    wt_close(source);
}
