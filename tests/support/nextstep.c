#include "tests/support/nextstep.h"

#include "tests/support/support.h"
#include "tests/support/tensor_files.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define DATA "tests/golden/data/nextstep/"

static int is_decoder(const file_tensor *t)
{
    return strncmp(t->name, "vae.", 4) == 0;
}

/* Makes the tensors of a model, or with `vae` those of its image decoder. Returns their number. */
static int nextstep_tensors(nextstep_kind kind, int vae, file_tensor *tensors)
{
    const int all = tensors_read("nextstep/tensors.txt", tensors);
    int count = 0;
    for (int i = 0; i < all; i++) {
        file_tensor *t = &tensors[count];
        *t = tensors[i];
        if (is_decoder(t) != vae || (kind == NEXTSTEP_NEWER && strcmp(t->name, "gen_pos_embed") == 0)) continue;
        count++;
        if (kind == NEXTSTEP_SMALLER && strcmp(t->name, "embed_tokens.weight") == 0) t->shape[0] = NEXTSTEP_FEW;
        tensor_draw(t, t->name, kind >= NEXTSTEP_DRAFT ? 0.1 : 0);
        if (vae) memmove(t->name, t->name + 4, strlen(t->name) - 3);
    }
    return count;
}

/* Writes the tensors in two files, and the index that says in which each is. */
static void nextstep_write_shards(const char *folder, const file_tensor *tensors, int count)
{
    static const char *const files[] = {"model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"};
    const int half = count / 2;
    bytes index = {0};
    tensors_write_safetensors(folder, files[0], tensors, half);
    tensors_write_safetensors(folder, files[1], tensors + half, count - half);
    bytes_text(&index, "{\"metadata\":{},\"weight_map\":{");
    for (int i = 0; i < count; i++)
        bytes_format(&index, "%s\"%s\":\"%s\"", i ? "," : "", tensors[i].name, files[i >= half]);
    bytes_text(&index, "}}");
    bytes_to_folder(folder, "model.safetensors.index.json", &index);
}

static void nextstep_copy(const char *folder, const char *name)
{
    char from[512];
    snprintf(from, sizeof from, DATA "%s", name);
    bytes b = bytes_from_file(from);
    bytes_to_folder(folder, name, &b);
}

/* Gives the configuration NextStep-1.1's names, as long as NextStep-1's with their spaces. */
static void nextstep_rename_patch(bytes *b)
{
    static const char *const names[][2] = {{"\"latent_patch_size\":", "\"patch_size\":       "},
                                           {"\"fm_head_layers\": ", "\"genloss_depth\":  "}};
    for (int i = 0; i < 2; i++) {
        char *at = memmem(b->data, b->size, names[i][0], strlen(names[i][0]));
        assert_non_null(at);
        memcpy(at, names[i][1], strlen(names[i][1]));
    }
}

static void nextstep_write_config(const char *folder, nextstep_kind kind)
{
    static const char off[] = "\"use_gen_pos_embed\": false", on[] = "\"use_gen_pos_embed\": true ";
    bytes b = bytes_from_file(DATA "config.json");
    char *at = memmem(b.data, b.size, off, sizeof off - 1);
    assert_non_null(at);
    if (kind == NEXTSTEP_POSITIONS) memcpy(at, on, sizeof on - 1);
    if (kind == NEXTSTEP_NEWER) nextstep_rename_patch(&b);
    bytes_to_folder(folder, "config.json", &b);
}

static void nextstep_write_decoder(const char *folder, file_tensor *tensors)
{
    char path[512];
    snprintf(path, sizeof path, "%s/vae", folder);
    assert_int_equal(mkdir(path, 0777), 0);
    const int count = nextstep_tensors(NEXTSTEP_FOLDER, 1, tensors);
    tensors_write_torch(path, "checkpoint.pt", NULL, tensors, count);
    tensors_free(tensors, count);
    nextstep_copy(folder, "vae/config.json");
}

void nextstep_write(const char *folder, nextstep_kind kind)
{
    file_tensor *tensors = calloc(FILE_TENSORS_MAX, sizeof *tensors);
    assert_non_null(tensors);
    const int count = nextstep_tensors(kind, 0, tensors);
    if (kind == NEXTSTEP_NEWER)
        nextstep_write_shards(folder, tensors, count);
    else
        tensors_write_safetensors(folder, "model.safetensors", tensors, count);
    tensors_free(tensors, count);
    nextstep_write_config(folder, kind);
    nextstep_copy(folder, "tokenizer.json");
    nextstep_copy(folder, "tokenizer_config.json");
    if (kind < NEXTSTEP_DRAFT) nextstep_write_decoder(folder, tensors);
    free(tensors);
}

/* --- files of all kinds ------------------------------------------------------------------------------------------- */

int nextstep_set_up(void **state)
{
    nextstep_files *f = *state = calloc(1, sizeof *f);
    assert_non_null(f);
    const char *directory = test_directory();
    for (int i = 0; i < NEXTSTEP_KINDS; i++) {
        snprintf(f->folder[i], sizeof f->folder[i], "%s/nextstep%d", directory, i);
        assert_int_equal(mkdir(f->folder[i], 0777), 0);
        nextstep_write(f->folder[i], (nextstep_kind)i);
    }
    return 0;
}

int nextstep_tear_down(void **state)
{
    free(*state);
    return 0;
}
