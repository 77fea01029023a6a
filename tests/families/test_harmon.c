/* What tells UniPic-1 from Harmon, and what follows from it. */
#include "tests/support/families.h"
#include "tests/support/support.h"
#include "tests/support/tensor_files.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Returns a number of a shape of the small model (tests/golden/data/harmon) for towers of another width, and
 * Qwen2.5-0.5B's heads. */
static int widened(int n, int width)
{
    enum { TOWERS = 128, LLM = 48, LLM_HEADS = 64, LLM_GROUPS = 32 };
    switch (n) {
    case TOWERS:
        return width;
    case 3 * TOWERS:
        return 3 * width;
    case 4 * TOWERS:
        return 4 * width;
    case LLM:
    case LLM_HEADS:
        return 896;
    case LLM_GROUPS:
        return 128;
    default:
        return n;
    }
}

/* Opens a file with the tensors of Harmon's release, of towers of a width with position tables of side x side tokens,
 * or also with UniPic-1's image encoder. */
static wt_file *open_towers(int width, int side, int has_encoder)
{
    enum { BUFFER = 8, TOKENS = 16 };
    file_tensor *tensors = calloc(FILE_TENSORS_MAX, sizeof *tensors);
    assert_non_null(tensors);
    const int all = tensors_read("harmon/tensors.txt", tensors);
    int count = 0;
    for (int i = 0; i < all; i++) {
        file_tensor *t = &tensors[count];
        *t = tensors[i];
        if (strncmp(t->name, "vae.", 4) == 0 || (!has_encoder && strncmp(t->name, "siglip2", 7) == 0)) continue;
        count++;
        for (int k = 0; k < t->rank; k++) t->shape[k] = widened(t->shape[k], width);
        if (strstr(t->name, "pos_embed_learned")) t->shape[1] += side * side - TOKENS;
    }
    char path[4096];
    const char *folder = test_directory();
    wt_file *f;
    mar_err err = {0};
    tensors_write_safetensors(folder, "model.safetensors", tensors, count);
    snprintf(path, sizeof path, "%s/model.safetensors", folder);
    f = open_weights(path);
    assert_ok(family_rename(f, &err), &err);
    free(tensors);
    return f;
}

/* UniPic-1 without its image encoder has position tables that no Harmon has. */
TEST_CASE(positions_tell_unipic)
{
    static const struct {
        int width, side, has_encoder, is_unipic;
    } cases[] = {{1280, 32, 1, 1}, {1280, 32, 0, 1}, {1280, 16, 0, 0}, {768, 16, 0, 0}, {768, 32, 0, 0}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const int is_unipic = cases[i].is_unipic, side = cases[i].side;
        wt_file *f = open_towers(cases[i].width, side, cases[i].has_encoder);
        family_facts facts;
        mar_err err = {0};
        assert_true(family_harmon.recognise(f));
        assert_ok(derive_facts(&family_harmon, f, (wt_asked){0}, &facts, &err), &err);
        const mar_model_config *c = &facts.config;
        assert_string_equal(c->title, is_unipic ? "UniPic-1" : "Harmon");
        assert_int_equal(c->width, cases[i].width);
        assert_int_equal(c->num_iter, is_unipic ? 32 : 64);
        assert_float_equal(c->cfg, 3, 0);
        assert_int_equal(c->cfg_schedule, MAR_CFG_CONSTANT);
        assert_int_equal(facts.process, is_unipic ? DIFF_DDPM_CLIPPED : DIFF_DDPM);
        assert_int_equal(facts.language.width, 2 * side * 16);
        assert_int_equal(c->seq_len, 4 * side * side);
        assert_int_equal(facts.language.picture != NULL, is_unipic);
        release_facts(&facts);
        wt_close(f);
    }
}
