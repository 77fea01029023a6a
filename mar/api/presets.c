/* Presets of options, and their measured effect: mar generate --fast, and hosts. */
#include "mar_methods.h"

#include <stdio.h>
#include <string.h>

enum { OPTIONS = 5 };

/* Distances are energy distances of whole images to plain sampling with the same seeds, on the demo pair, 500 images
 * (bench/RESULTS.md). */
typedef struct {
    mar_preset preset;
    mar_head head;               /* SOFTMAX: discrete tokens; else DDPM */
    const char *names[OPTIONS];  /* ends with NULL */
    const char *values[OPTIONS]; /* NULL: a number of steps */
    int tokens_a_step[OPTIONS];  /* of a number of steps */
} preset_row;

#define PRESET(row, number, far, near)                                                                                 \
    {                                                                                                                  \
        .size = sizeof(mar_preset), .level = number, .options = rows[row].names, .distance = far, .floor = near        \
    }

static const preset_row rows[] = {
    {PRESET(0, 1, 0.0061, 0.0064),
     MAR_HEAD_DDPM,
     {"dtype", "num_iter", "num_sampling_steps"},
     {"int8", NULL, "25"},
     {0, 4}},
    {PRESET(1, 2, 0.0076, 0.0064),
     MAR_HEAD_DDPM,
     {"dtype", "num_iter", "num_sampling_steps"},
     {"int8", NULL, "25"},
     {0, 8}},
    {PRESET(2, 3, 0.0411, 0.0064),
     MAR_HEAD_DDPM,
     {"dtype", "num_iter", "sampler", "num_sampling_steps"},
     {"int8", NULL, "dpmpp", "15"},
     {0, 16}},
    {PRESET(3, 1, 0.0036, 0.0117), MAR_HEAD_SOFTMAX, {"dtype"}, {"int8"}, {0}},
};

/* Returns whether the caller's struct has the fields that are read. */
static int is_known(const mar_model_config *model)
{
    return model && model->size >= offsetof(mar_model_config, num_iter) + sizeof model->num_iter;
}

const mar_preset *mar_preset_get(int level, const mar_model_config *model)
{
    if (!is_known(model) || (model->head != MAR_HEAD_SOFTMAX && model->order != MAR_ORDER_SETS)) return NULL;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        if (rows[i].preset.level == level && (rows[i].head == MAR_HEAD_SOFTMAX) == (model->head == MAR_HEAD_SOFTMAX))
            return &rows[i].preset;
    return NULL;
}

/* Returns the image's tokens over this, rounded up. A model whose own steps have more than MAR's 4 tokens (Harmon: 16)
 * has its own steps in the same ratio. */
static int steps_of(const mar_model_config *model, int tokens_a_step)
{
    const int steps = (model->seq_len + tokens_a_step - 1) / tokens_a_step;
    const int own = (4 * model->num_iter + tokens_a_step - 1) / tokens_a_step;
    return own < steps ? own : steps;
}

const char *mar_preset_value(const mar_preset *preset, int i, const mar_model_config *model, char *text, size_t size)
{
    if (!text || size == 0) return "";
    *text = '\0';
    for (size_t k = 0; k < sizeof rows / sizeof *rows && is_known(model); k++) {
        if (&rows[k].preset != preset || i < 0 || i >= OPTIONS || !rows[k].names[i]) continue;
        if (rows[k].values[i])
            snprintf(text, size, "%s", rows[k].values[i]);
        else
            snprintf(text, size, "%d", steps_of(model, rows[k].tokens_a_step[i]));
    }
    return text;
}
