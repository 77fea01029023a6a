/* The built-in decoder that writes images among text: prompts to pictures of several digits, in two sizes. */
#include "tests/support/demo.h"
#include "tests/support/discrete_sessions.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { IMAGES = 6, CELL = 32, CELLS = 6, CELL_BYTES = CELL * CELL * 3, PIXELS = CELLS * CELL_BYTES, TOKENS = 96 };

static const int labels[IMAGES][CELLS] = {{1, 2, 3, 4, 5, 6}, {7, 0, 8, 9, 2, 1}, {3, 3, 0, 5, 7, 7},
                                          {9, 8, 6, 4, 0, 2}, {5, 1, 4, 2, 6, 3}, {0, 7, 9, 8, 1, 5}};

/* The models, and a session's features of the prompts. */
typedef struct {
    mar *m;
    mar_text *text;
    mar_model *model;
    mar_vae *vae;
    int rows, columns; /* of digits */
    float *features, *negative;
    uint8_t *mask, *negative_mask;
} opened;

static void write_prompt(int rows, int columns, const int *label, char text[128])
{
    static const char *const numbers[] = {"zero", "one", "two", "three"};
    int n = sprintf(text, "%s row%s of %s digit%s:", numbers[rows], rows > 1 ? "s" : "", numbers[columns],
                    columns > 1 ? "s" : "");
    for (int i = 0; i < rows * columns; i++) n += sprintf(text + n, "%s%d", i == columns ? " / " : " ", label[i]);
}

static opened open_all(const char *size, int rows, int columns)
{
    opened o = {.rows = rows, .columns = columns};
    mar_options options;
    char text[IMAGES][128];
    const char *prompts[IMAGES];
    mar_options_init(&options, sizeof options);
    options.dtype = MAR_DTYPE_F32;
    options.threads = 2;
    options.image_size = size;
    assert_library(o.m, mar_open(&options, &o.m));
    assert_library(o.m, mar_text_load(o.m, "demo-mgpt", &o.text));
    assert_library(o.m, mar_model_load(o.m, "demo-mgpt", 0, &o.model));
    assert_library(o.m, mar_vae_load(o.m, "demo-mgpt", &o.vae));
    const mar_model_config *c = mar_model_get_config(o.model);
    const size_t positions = (size_t)c->caption_tokens, numbers = positions * (size_t)c->caption_dim;
    assert_int_equal(c->grid_width, 4 * columns);
    assert_int_equal(c->seq_len, 16 * rows * columns);
    o.features = malloc(sizeof(float) * IMAGES * numbers), o.negative = malloc(sizeof(float) * numbers);
    o.mask = malloc(IMAGES * positions), o.negative_mask = malloc(positions);
    for (int i = 0; i < IMAGES; i++) write_prompt(rows, columns, labels[i], text[i]), prompts[i] = text[i];
    assert_library(o.m,
                   mar_text_encode(o.text, prompts, IMAGES, MAR_CLEAN_OFF, (int)positions, o.features, o.mask, NULL));
    assert_library(o.m, mar_text_encode_negative(o.text, NULL, (int)positions, o.negative, o.negative_mask, NULL));
    return o;
}

static void close_all(opened *o)
{
    mar_vae_free(o->vae);
    mar_model_free(o->model);
    mar_text_free(o->text);
    mar_close(o->m);
    free(o->features), free(o->negative), free(o->mask), free(o->negative_mask);
}

static mar_session *generate(const opened *o, const char *options, int with_draft, int n)
{
    mar_session *s;
    mar_params p = discrete_params(options);
    p.draft = with_draft ? o->model : NULL;
    if (mar_session_create(o->model, o->vae, &p, n, &s) != MAR_OK) fail_msg("%s: %s", options, mar_error(o->m));
    assert_session(s, mar_session_set_negative(s, o->negative, o->negative_mask));
    assert_session(s, mar_session_begin_captions(s, 1, o->features, o->mask, n));
    demo_finish(s);
    return s;
}

/* Returns how many digits of the images are recognised. */
static int recognised(const opened *o, mar_session *s)
{
    static uint8_t rgb[IMAGES * PIXELS], cell[IMAGES * CELLS * CELL_BYTES];
    int label[IMAGES * CELLS], width, height, n = 0;
    mar_session_image_size(s, &width, &height);
    assert_true(width == CELL * o->columns && height == CELL * o->rows);
    assert_session(s, mar_session_images(s, rgb));
    for (int i = 0; i < IMAGES; i++)
        for (int r = 0; r < o->rows; r++)
            for (int c = 0; c < o->columns; c++, n++) {
                const uint8_t *from = rgb + 3 * ((i * height + r * CELL) * width + c * CELL);
                label[n] = labels[i][r * o->columns + c];
                for (int y = 0; y < CELL; y++)
                    memcpy(cell + n * CELL_BYTES + y * CELL * 3, from + 3 * y * width, (size_t)CELL * 3);
            }
    return demo_recognised(cell, label, n);
}

TEST_CASE(digits_of_the_prompt)
{
    opened o = open_all(NULL, 2, 3);
    mar_session *s = generate(&o, "cfg 2", 0, IMAGES);
    const int found = recognised(&o, s);
    if (found < 27) fail_msg("%d of 36 digits recognised", found);
    mar_session_free(s);
    close_all(&o);
    o = open_all("64x32", 1, 2);
    s = generate(&o, "cfg 2", 0, IMAGES);
    if (recognised(&o, s) < 9) fail_msg("%d of 12 digits recognised", recognised(&o, s));
    mar_session_free(s);
    close_all(&o);
}

/* Methods of the codebook's neighbours need the image decoder. With one neighbour they are exact. */
TEST_CASE(greedy)
{
    static const struct {
        const char *options;
        int with_draft;
    } methods[] = {
        {"spec lantern, lantern_k 1, gamma 4", 1},          {"spec lantern-pp, lantern_k 1, tree 3/2/1", 1},
        {"spec lantern-gstar, lantern_k 1, tree 3/2/1", 1}, {"spec lantern-pp-gstar, lantern_k 1, gamma 4", 1},
        {"spec sjd-pac, window 16, first above", 0},        {"spec scd, window 12", 0}};
    opened o = open_all(NULL, 2, 3);
    float expected[2 * TOKENS], tokens[2 * TOKENS];
    mar_session *s = generate(&o, "cfg 2, temperature 0", 0, 2);
    assert_session(s, mar_session_tokens(s, expected));
    mar_session_free(s);
    for (size_t i = 0; i < sizeof methods / sizeof *methods; i++) {
        char options[128];
        snprintf(options, sizeof options, "cfg 2, temperature 0, %s", methods[i].options);
        s = generate(&o, options, methods[i].with_draft, 2);
        assert_session(s, mar_session_tokens(s, tokens));
        if (memcmp(tokens, expected, sizeof tokens) != 0) fail_msg("%s: other tokens than plain", options);
        mar_session_free(s);
    }
    close_all(&o);
}
