/* Changed copies of image decoders' files, and what is expected of them. */
#ifndef TESTS_VAE_FILES_H
#define TESTS_VAE_FILES_H

#include "tests/support/changed.h"
#include "tests/support/support.h"
#include "vae/vae.h"

#include <string.h>

typedef struct {
    const wt_file *f;
    int at;
    long parameters;
    int (*skips)(const char *name); /* tensors of the file that the decoder does not need */
} listing;

/* Compares a tensor's name and shape with the file's, in the order of the official state dict. */
static void compare_tensor(void *user, const char *name, int rank, const int64_t *shape)
{
    listing *l = user;
    while (l->skips(wt_at(l->f, l->at)->name)) l->at++;
    const wt_tensor *t = wt_at(l->f, l->at++);
    assert_string_equal(t->name, name);
    assert_int_equal(t->rank, rank);
    assert_memory_equal(t->shape, shape, (size_t)rank * sizeof *shape);
    l->parameters += (long)t->count;
}

/* Checks that the configuration lists all tensors of a file. */
static void check_listing(const char *path, int (*skips)(const char *name))
{
    wt_file *f = open_weights(path);
    mar_vae_config c;
    mar_err err = {0};
    assert_true(vae_config_recognise(f));
    assert_ok(vae_config_derive(f, &c, &err), &err);
    listing l = {.f = f, .skips = skips};
    vae_config_tensors(f, &c, compare_tensor, &l);
    assert_int_equal(l.at, wt_count(f));
    assert_true(l.parameters == c.parameters);
    wt_close(f);
}

/* Expects the decoder of a file to be refused in one line with the path and the reason. */
static void expect_decoder_refused(const char *path, const char *reason)
{
    wt_file *f = open_weights(path);
    assert_true(vae_config_recognise(f));
    kern_queue *k = open_queue(MAR_DTYPE_F32, 1);
    mar_err err = {0};
    vae_decoder *d = (vae_decoder *)&err;
    const mar_status status = vae_decoder_create(k, f, &d, &err);
    if (status != MAR_EMODEL || !strstr(err.text, reason) || !strstr(err.text, path) || strchr(err.text, '\n'))
        fail_msg("expected \"%s\": %s (%s)", reason, mar_status_name(status), err.text);
    assert_null(d);
    wt_close(f);
    close_queue(k);
}

/* Makes a tensor of a decoder's file NaN. Checks that loading names it, and returns the decoder as --allow_nonfinite
 * loads it. */
static vae_decoder *load_spoiled(kern_queue *k, const char *path, const char *tensor)
{
    vae_decoder *d = NULL;
    mar_err err = {0};
    write_nan(path, tensor, 0);
    wt_file *f = open_weights(path);
    assert_int_equal(vae_decoder_create(k, f, &d, &err), MAR_EMODEL);
    assert_non_null(strstr(err.text, tensor));
    wt_allow_nonfinite(f, 1);
    assert_ok(vae_decoder_create(k, f, &d, &err), &err);
    wt_close(f);
    return d;
}

#endif
