/* CLIP through the public calls, from a folder, pictures and texts, against transformers; folders that are refused. */
#include "tests/support/clip.h"

#include "mar_eval.h"
#include "tests/support/command.h"
#include "tests/support/test.h"

#include <math.h>
#include <string.h>

static mar_clip *load(mar *m, int batch)
{
    mar_clip *c;
    assert_library(m, mar_clip_load(m, clip_folder, batch, &c));
    return c;
}

TEST_CASE(against_transformers)
{
    float images[CLIP_PICTURES * CLIP_EMBEDDING], texts[CLIP_TEXTS * CLIP_EMBEDDING], alone[CLIP_EMBEDDING];
    uint8_t *rgb[CLIP_PICTURES];
    mar *m = open_mar(MAR_DTYPE_F32, 1);
    wt_file *golden = golden_open("clip");
    mar_clip *c = load(m, CLIP_TEXTS);
    const mar_clip_config *g = mar_clip_get_config(c);
    assert_int_equal(g->embedding, CLIP_EMBEDDING);
    assert_int_equal(g->image_size, 32);
    assert_int_equal(g->positions, 20);
    for (int i = 0; i < CLIP_PICTURES; i++) rgb[i] = clip_picture(golden, i);
    assert_library(
        m, mar_clip_images_each(c, (const uint8_t *const *)rgb, clip_widths, clip_heights, CLIP_PICTURES, images));
    clip_check(golden, "images", images, CLIP_PICTURES, 1e-5);
    assert_library(m, mar_clip_images(c, rgb[1], 1, clip_widths[1], clip_heights[1], alone));
    assert_memory_equal(alone, images + CLIP_EMBEDDING, sizeof alone);
    assert_library(m, mar_clip_texts(c, clip_golden_texts, CLIP_TEXTS, texts));
    clip_check(golden, "texts", texts, CLIP_TEXTS, 1e-5);
    for (int i = 0; i < CLIP_PICTURES; i++) free(rgb[i]);
    mar_clip_free(c);
    mar_close(m);
    wt_close(golden);
}

/* Copies the folder to DIR/clip, runs `change` there, and checks that loading fails with a line that has the words. */
static void refuse(const char *directory, const char *change, mar_status expected, const char *words)
{
    mar_clip *c = NULL;
    mar *m = open_mar(MAR_DTYPE_F32, 1);
    sh_ok(directory, "rm -rf clip; cp -r \"$OLDPWD/%s\" clip && cd clip && %s", clip_folder, change);
    const mar_status status = mar_clip_load(m, path_in(directory, "clip"), 1, &c);
    if (status != expected || c || !strstr(mar_error(m), words))
        fail_msg("%s: %s, expected %s with \"%s\"", mar_status_name(status), mar_error(m), mar_status_name(expected),
                 words);
    mar_close(m);
}

static void bad_folders(void **state)
{
    const char *d = *state;
    refuse(d, "rm model.safetensors", MAR_EIO, "has neither model.safetensors nor pytorch_model.bin");
    refuse(d, "rm merges.txt", MAR_EIO, "merges.txt");
    refuse(d, "sed -i s/clip/siglip/ config.json", MAR_EMODEL, "is a siglip, expected a CLIP (model_type clip)");
    refuse(d, "sed -i s/quick_gelu/relu/ config.json", MAR_EMODEL,
           "hidden_act of text_config is another than quick_gelu and gelu");
    refuse(d, "sed -i 's/heads\": 3/heads\": 5/' config.json", MAR_EMODEL, "5 heads, which do not divide the width 48");
    refuse(d, "sed -i 's/resample\": 3/resample\": 2/' preprocessor_config.json", MAR_EMODEL, "Pillow's bicubic");
    refuse(d, "sed -i 's/edge\": 32/edge\": 64/' preprocessor_config.json", MAR_EMODEL, "size is another than 32");
    refuse(d, "echo x > preprocessor_config.json", MAR_EFORMAT, "is no JSON object");
    refuse(d, "sed -i s/visual_projection/visual_PROJECTION/ model.safetensors", MAR_EMODEL,
           "visual_projection.weight");
    refuse(d, "sed -i s/text_projection/text_PROJECTION/ model.safetensors", MAR_EMODEL, "is no CLIP");
}

TEST_WITH(folders_are_refused, command_setup, command_teardown)
{
    bad_folders(state);
}

/* Without preprocessor_config.json mean and deviation are OpenAI's, which the file has, too. */
TEST_WITH(no_preprocessor, command_setup, command_teardown)
{
    float images[CLIP_EMBEDDING];
    mar_clip *c;
    mar *m = open_mar(MAR_DTYPE_F32, 1);
    wt_file *golden = golden_open("clip");
    uint8_t *rgb = clip_picture(golden, 0);
    sh_ok(*state, "cp -r \"$OLDPWD/%s\" clip && rm clip/preprocessor_config.json", clip_folder);
    assert_library(m, mar_clip_load(m, path_in(*state, "clip"), 1, &c));
    assert_library(m, mar_clip_images(c, rgb, 1, clip_widths[0], clip_heights[0], images));
    clip_check(golden, "images", images, 1, 1e-5);
    free(rgb);
    mar_clip_free(c);
    mar_close(m);
    wt_close(golden);
}
