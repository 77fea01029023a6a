#include "tools/bench/model.h"
#include "tools/cli/command.h"
#include "tools/cli/json_file.h"

#include <cjson/cJSON.h>
#include <stdio.h>
#include <string.h>

enum { WINDOW = 8, LARGE_BATCH = 256, STEPS = 64 };

/* --- the model beside what was measured --------------------------------------------------------------------------- */

typedef double row_model(const model_constants *c, int width, int depth, int rows);

static const struct {
    const char *group, *name;
    row_model *model;
} compared[] = {
    {"phase", "fc1", model_fc1},
    {"phase", "fc2", model_fc2},
    {"phase", "evaluation", model_step},
    {"step", "chain step", model_step},
    {"step", "evaluation by products", model_products},
    {"speculation", "round, window 8", model_round},
};

static int whole(const cJSON *object, const char *name, int most)
{
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(object, name);
    return cJSON_IsNumber(item) && item->valuedouble >= 1 && item->valuedouble <= most ? (int)item->valuedouble : 0;
}

/* What the model says of a measurement of the head; 0: nothing. */
static double model_of(const model_constants *c, const cJSON *record, const cJSON *row)
{
    const char *group = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(row, "group"));
    const char *name = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(row, "name"));
    const int width = whole(record, "head_width", 1 << 16), depth = whole(record, "head_depth", 1 << 10);
    const int rows = whole(row, "rows", 64);
    if (!group || !name || !width || !depth || !rows) return 0;
    for (size_t i = 0; i < sizeof compared / sizeof *compared; i++)
        if (strcmp(group, compared[i].group) == 0 && strcmp(name, compared[i].name) == 0)
            return compared[i].model(c, width, depth, rows);
    return 0;
}

typedef void visit_compared(void *user, const char *name, int rows, double model, double measured);

/* Calls `visit` for each measurement of the record that the model has a formula for. */
static void compare(const model_constants *c, const cJSON *record, visit_compared *visit, void *user)
{
    const cJSON *row;
    cJSON_ArrayForEach(row, cJSON_GetObjectItemCaseSensitive(record, "measurements"))
    {
        const double model = model_of(c, record, row);
        const cJSON *seconds = cJSON_GetObjectItemCaseSensitive(row, "seconds");
        if (model > 0 && cJSON_IsNumber(seconds) && seconds->valuedouble > 0)
            visit(user, cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(row, "name")), whole(row, "rows", 64),
                  model, seconds->valuedouble);
    }
}

/* --- the table ---------------------------------------------------------------------------------------------------- */

/* A line of the table: an image of one shape. */
typedef struct {
    const model_shape *shape;
    int batch, window;
    double target; /* seconds; 0: none */
    model_times times;
    char name[64];
} image_row;

enum { KINDS = 3, ROWS = MODEL_SHAPES * KINDS };

static void fill_rows(const model_constants *c, image_row rows[ROWS])
{
    static const struct {
        int batch, window;
        double target[MODEL_SHAPES];
    } kinds[KINDS] = {{1, 0, {0.20, 0, 0.50}}, {1, WINDOW, {0.08, 0, 0.20}}, {LARGE_BATCH, 0, {0.030, 0.067, 0.13}}};
    for (int i = 0; i < ROWS; i++) {
        const int kind = i / MODEL_SHAPES, shape = i % MODEL_SHAPES;
        image_row *r = &rows[i];
        *r = (image_row){.shape = &model_shapes[shape],
                         .batch = kinds[kind].batch,
                         .window = kinds[kind].window,
                         .target = kinds[kind].target[shape]};
        r->times = model_image(c, r->shape, r->batch, STEPS, r->window);
        snprintf(r->name, sizeof r->name, "%s, batch %d%s", r->shape->name, r->batch,
                 r->window ? ", --head_spec 8" : "");
    }
}

/* --- speculation across tokens -------------------------------------------------------------------------------------
 */

static const int path_steps[] = {64, 128, 256}, path_gammas[] = {0, 2, 4, 8, 16, 32}, path_windows[] = {0, 8, 16, 32};
enum {
    PATH_STEPS = sizeof path_steps / sizeof *path_steps,
    PATH_GAMMAS = sizeof path_gammas / sizeof *path_gammas,
    PATH_WINDOWS = sizeof path_windows / sizeof *path_windows,
};

/* An image of one shape, one at a time; gamma 0: without --spec path. */
typedef struct {
    int gamma, window;
    int f32; /* the head's arithmetic */
    model_times times;
} path_row;

/* All that are compared of a shape and a number of steps. */
typedef struct {
    const model_shape *shape;
    int steps, count;
    path_row row[2 * PATH_GAMMAS * PATH_WINDOWS];
} path_grid;

static path_grid fill_grid(const model_constants *c, const model_shape *shape, int steps)
{
    path_grid g = {.shape = shape, .steps = steps};
    int known[MODEL_SEQ + 1];
    model_schedule(steps, known);
    for (int i = 0; i < PATH_GAMMAS; i++)
        for (int j = 0; j < PATH_WINDOWS; j++)
            for (int f32 = 0; f32 <= (path_gammas[i] > 0); f32++) {
                path_row *r = &g.row[g.count++];
                *r = (path_row){.gamma = path_gammas[i], .window = path_windows[j], .f32 = f32};
                r->times = r->gamma ? model_path_image(c, shape, known, steps, r->gamma, r->window, f32)
                                    : model_image(c, shape, 1, steps, r->window);
            }
    return g;
}

enum path_kind { PLAIN, HEAD_SPEC, PATH_F32, PATH_BF16 };

static enum path_kind kind_of(const path_row *r)
{
    if (r->gamma) return r->f32 ? PATH_F32 : PATH_BF16;
    return r->window ? HEAD_SPEC : PLAIN;
}

static const path_row *fastest(const path_grid *g, enum path_kind kind)
{
    const path_row *best = NULL;
    for (int i = 0; i < g->count; i++)
        if (kind_of(&g->row[i]) == kind && (!best || g->row[i].times.total < best->times.total)) best = &g->row[i];
    return best;
}

static void print_paths(const model_constants *c)
{
    printf(
        "\nOne image at a time, with --spec path and drafts from the model's own last conditions, at the best gamma\n"
        "and W of those tried. What a trained model of these sizes accepts is not known; assumed is what the demo\n"
        "accepts, by the part of an image that a draft is late. With --spec path the head computes in f32; beside it\n"
        "what it would take if bf16 sufficed.\n\n"
        "%-18s %8s  %-13s  %-44s  %s\n%-18s %8s  %2s %10s  %5s %2s %7s %6s %8s %11s  %5s %2s %8s %11s\n",
        "", "plain", "--head_spec W", "--spec path, head in f32", "head in bf16", "", "seconds", "W", "seconds",
        "gamma", "W", "passes", "calls", "seconds", "/ head_spec", "gamma", "W", "seconds", "/ head_spec");
    for (int i = 0; i < MODEL_SHAPES; i++)
        for (int j = 0; j < PATH_STEPS; j++) {
            const path_grid g = fill_grid(c, &model_shapes[i], path_steps[j]);
            const path_row *plain = fastest(&g, PLAIN), *alone = fastest(&g, HEAD_SPEC);
            const path_row *f32 = fastest(&g, PATH_F32), *bf16 = fastest(&g, PATH_BF16);
            char name[64];
            snprintf(name, sizeof name, "%s, %d steps", g.shape->name, g.steps);
            printf("%-18s %8.4f  %2d %10.4f  %5d %2d %7.1f %6.0f %8.4f %11.2f  %5d %2d %8.4f %11.2f\n", name,
                   plain->times.total, alone->window, alone->times.total, f32->gamma, f32->window, f32->times.passes,
                   f32->times.calls, f32->times.total, f32->times.total / alone->times.total, bf16->gamma, bf16->window,
                   bf16->times.total, bf16->times.total / alone->times.total);
        }
}

static void add_path(cJSON *list, const path_grid *g, const path_row *r)
{
    cJSON *row = cJSON_CreateObject();
    cJSON_AddStringToObject(row, "model", g->shape->name);
    cJSON_AddNumberToObject(row, "num_iter", g->steps);
    cJSON_AddNumberToObject(row, "gamma", r->gamma);
    cJSON_AddNumberToObject(row, "head_spec", r->window);
    cJSON_AddStringToObject(row, "head_dtype", r->f32 ? "f32" : "bf16");
    cJSON_AddNumberToObject(row, "passes_in_sequence", r->times.passes);
    cJSON_AddNumberToObject(row, "head_calls_in_sequence", r->times.calls);
    cJSON_AddNumberToObject(row, "transformer_seconds", r->times.transformer);
    cJSON_AddNumberToObject(row, "modulation_and_vae_seconds", r->times.modulation);
    cJSON_AddNumberToObject(row, "head_seconds", r->times.head);
    cJSON_AddNumberToObject(row, "judging_seconds", r->times.judging);
    cJSON_AddNumberToObject(row, "waiting_seconds", r->times.waiting);
    cJSON_AddNumberToObject(row, "total_seconds", r->times.total);
    tool_json_append(list, row);
}

static void add_paths(const model_constants *c, cJSON *list)
{
    for (int i = 0; i < MODEL_SHAPES; i++)
        for (int j = 0; j < PATH_STEPS; j++) {
            const path_grid g = fill_grid(c, &model_shapes[i], path_steps[j]);
            for (int k = 0; k < g.count; k++) add_path(list, &g, &g.row[k]);
        }
}

/* --- output ------------------------------------------------------------------------------------------------------- */

static void print_compared(void *user, const char *name, int rows, double model, double measured)
{
    int *printed = user;
    if (!(*printed)++)
        printf("\n%-28s %6s %11s %11s %9s\n", "the head in the file", "rows", "model us", "measured us", "ratio");
    printf("%-28s %6d %11.2f %11.2f %9.2f\n", name, rows, 1e6 * model, 1e6 * measured, measured / model);
}

static void print_table(const model_constants *c, const image_row rows[ROWS], const cJSON *record)
{
    int printed = 0;
    printf("Seconds an image that a model expects on a GPU, with 64 autoregressive and 100 diffusion\n"
           "steps and guidance. It is a model: what is measured is marked so.\n\n");
    for (int i = 0; i < MODEL_CONSTANTS; i++) {
        const model_constant_info *info = &model_constant_infos[i];
        printf("%-44s %9.4g %-8s %s\n", info->meaning, c->value[i] * info->scale, info->unit,
               c->measured[i] ? "measured" : "assumed");
    }
    printf("\n%-32s %11s %16s %8s %8s %8s\n", "", "transformer", "modulation + VAE", "head", "total", "target");
    for (int i = 0; i < ROWS; i++) {
        const model_times *t = &rows[i].times;
        printf("%-32s %11.4f %16.4f %8.4f %8.4f", rows[i].name, t->transformer, t->modulation, t->head, t->total);
        if (rows[i].target > 0) printf(" %8.3f", rows[i].target);
        printf("\n");
    }
    print_paths(c);
    compare(c, record, print_compared, &printed);
}

static void add_compared(void *user, const char *name, int rows, double model, double measured)
{
    cJSON *row = cJSON_CreateObject();
    cJSON_AddStringToObject(row, "name", name);
    cJSON_AddNumberToObject(row, "rows", rows);
    cJSON_AddNumberToObject(row, "model_seconds", model);
    cJSON_AddNumberToObject(row, "measured_seconds", measured);
    cJSON_AddNumberToObject(row, "ratio", measured / model);
    tool_json_append(user, row);
}

static int print_json(const model_constants *c, const image_row rows[ROWS], const cJSON *record)
{
    cJSON *root = tool_json();
    cJSON *constants = cJSON_AddObjectToObject(root, "constants");
    for (int i = 0; i < MODEL_CONSTANTS; i++)
        cJSON_AddNumberToObject(constants, model_constant_infos[i].name, c->value[i]);
    cJSON *measured = cJSON_AddArrayToObject(root, "measured");
    for (int i = 0; i < MODEL_CONSTANTS; i++)
        if (c->measured[i]) tool_json_append(measured, cJSON_CreateString(model_constant_infos[i].name));
    cJSON *images = cJSON_AddArrayToObject(root, "images");
    for (int i = 0; i < ROWS; i++) {
        cJSON *row = cJSON_CreateObject();
        cJSON_AddStringToObject(row, "model", rows[i].shape->name);
        cJSON_AddNumberToObject(row, "batch", rows[i].batch);
        cJSON_AddNumberToObject(row, "head_spec", rows[i].window);
        cJSON_AddNumberToObject(row, "transformer_seconds", rows[i].times.transformer);
        cJSON_AddNumberToObject(row, "modulation_and_vae_seconds", rows[i].times.modulation);
        cJSON_AddNumberToObject(row, "head_seconds", rows[i].times.head);
        cJSON_AddNumberToObject(row, "total_seconds", rows[i].times.total);
        if (rows[i].target > 0) cJSON_AddNumberToObject(row, "target_seconds", rows[i].target);
        tool_json_append(images, row);
    }
    add_paths(c, cJSON_AddArrayToObject(root, "paths"));
    compare(c, record, add_compared, cJSON_AddArrayToObject(root, "compared"));
    return tool_print_json(root, 1);
}

int bench_model_time(const char *file, int json)
{
    model_constants c;
    image_row rows[ROWS];
    cJSON *record = NULL;
    char why[512];
    int exit_status = file ? json_file_read_small(file, 4, "what mar bench --micro --json wrote", &record) : 0;
    model_constants_init(&c);
    if (record && model_constants_read(&c, record, why, sizeof why) != 0) exit_status = tool_error("%s: %s", file, why);
    if (exit_status == 0) {
        fill_rows(&c, rows);
        if (json)
            exit_status = print_json(&c, rows, record);
        else
            print_table(&c, rows, record);
    }
    cJSON_Delete(record);
    return exit_status;
}
