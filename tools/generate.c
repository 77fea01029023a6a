/* mar generate: from a checkpoint and classes to PNG. */
#include "tools/classes.h"
#include "tools/command.h"
#include "tools/file.h"
#include "tools/generate_job.h"
#include "tools/images.h"
#include "tools/options_help.h"
#include "tools/printable.h"
#include "tools/progress.h"
#include "tools/record.h"
#include "tools/stats.h"
#include "tools/subcommands.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    NUM_MAX = 1000000,          /* images in a run: their file names have six digits */
    BATCH_DEFAULT = 16,         /* enough rows to keep the matrix units busy; at MAR-H still well under 8 GB */
    GRID_PIXELS_MAX = 100000000 /* 300 MB in memory; 32x32 images of 256x256 are two thirds of it */
};

/* --- what was asked for ------------------------------------------------------------------------- */

static const mar_param image_rows[] = {
    {.name = "class",
     .offset = offsetof(generate_options, classes),
     .group = "Images",
     .type = MAR_TYPE_TEXT,
     .argument = "LIST",
     .help = "classes: 0-9,207,sea_slug, all or @FILE; demo: 0 to 9\n"
             "Numbers, ranges of numbers and names, separated by commas. all is every class. @FILE stands for the "
             "classes in a file, one a line or separated by commas, with comments behind #; @- for those on standard "
             "input. Names are those of ImageNet and for models of 1000 classes; mar classes lists them. In them upper "
             "and lower case, and spaces, dashes and underscores, are the same. A name that two classes share is "
             "refused with the numbers to choose from. A class may be there several times. The default for the demo is "
             "all ten digits."},
    {.name = "num",
     .offset = offsetof(generate_options, num),
     .group = "Images",
     .type = MAR_TYPE_INT,
     .min = 1,
     .max = NUM_MAX,
     .help = "images of each class; default 1, of the demo 4\n"
             "Images are numbered from 0 through all classes in the order given: first those of the first class."},
    {.name = "out",
     .offset = offsetof(generate_options, out),
     .group = "Images",
     .type = MAR_TYPE_TEXT,
     .argument = "WHERE",
     .help = "a directory or FILE.png\n"
             "A name ending in .png is a file: the image, or all of them on a grid if there are several. Anything else "
             "is a directory, made if it is not there, for 000000.png, 000001.png and so on, in class order."},
    {.name = "grid",
     .offset = offsetof(generate_options, grid),
     .group = "Images",
     .type = MAR_TYPE_FLAG,
     .help = "with a directory: all on a grid too, DIR/grid.png\n"
             "A row, or a column if there are more classes than images of each, is a class."},
    {.name = "accept_map",
     .offset = offsetof(generate_options, accept_map),
     .group = "Images",
     .type = MAR_TYPE_TEXT,
     .argument = "FILE.png",
     .help =
         "a map of the tokens that draft and model made\n"
         "It is laid out like the images: dark green accepted, light green replaced, grey made by the target alone. "
         "Needs draft, and no head_spec."},
    {0},
};

static const mar_param other_rows[] = {
    {.name = "batch",
     .offset = offsetof(generate_options, batch),
     .group = "Machine",
     .type = MAR_TYPE_INT,
     .min = 1,
     .max = 1024,
     .help = "images made at a time: memory against speed\n"
             "More is faster for small models, less needs less memory and shows finished images earlier."},
    {.name = "json",
     .offset = offsetof(generate_options, json),
     .group = "Messages",
     .type = MAR_TYPE_FLAG,
     .help = "print a record of the run in place of the summary\n"
             "One JSON object on standard output: the parameters, the files, and what the run took, see below."},
    {.name = "quiet",
     .offset = offsetof(generate_options, quiet),
     .group = "Messages",
     .type = MAR_TYPE_FLAG,
     .help = "no progress and no summary; errors only"},
    {0},
};

/* Defaults, and the options that set them. */
static void set_up(generate_options *o, option_set *set)
{
    *set = (option_set){
        .command = "generate",
        .about = "usage: mar generate [OPTIONS]\n"
                 "\n"
                 "Makes images and writes them as PNG. With no options: digits from the demo.\n"
                 "More on every option is in man mar, on ways to be faster in mar methods.\n",
        .example = "example: mar generate --model checkpoint-last.pth --vae kl16.ckpt \\\n"
                   "             --class \"golden retriever\" --seed 7 --out dog.png\n",
    };
    *o = (generate_options){.out = "mar.png", .batch = BATCH_DEFAULT};
    run_options_init(&o->run);
    options_add_table(set, image_rows, o, 0);
    run_options_add(&o->run, set);
    options_add_table(set, other_rows, o, 0);
}

void manual_generate(FILE *out)
{
    generate_options o;
    option_set set;
    set_up(&o, &set);
    options_manual(&set, 0, out);
}

static int parse(int argc, char **argv, generate_options *o)
{
    option_set set;
    set_up(o, &set);
    const int status = options_read(&set, argc, argv);
    return status == OPTIONS_RUN && run_options_done(&o->run, &set) != 0 ? 1 : status;
}

/* --- what it comes to, once the model is known -------------------------------------------------- */

static int library_error(const generate_job *job)
{
    return tool_error("%s", mar_error(job->models.library));
}

static int resolve_classes(generate_job *job)
{
    const generate_options *o = &job->options;
    const int demo = run_is_demo(o->run.model);
    job->class_total = mar_model_get_config(job->models.model)->classes;
    if (classes_choose(o->classes, job->class_total, demo, &job->classes, &job->class_count) != 0) return 1;
    job->num = o->num ? o->num : demo ? 4 : 1;
    job->total = (long)job->num * job->class_count;
    if (job->total > NUM_MAX)
        return tool_error("--num %d for %d classes: %ld images, expected %d at most", job->num, job->class_count,
                          job->total, NUM_MAX);
    return 0;
}

/* Rows are classes, or columns if there are more classes than images of each: wide rather than high. With one
 * class, or one image of each, a square. */
static void shape_grid(generate_job *job)
{
    if (job->class_count > 1 && job->num > 1) {
        job->class_is_column = job->class_count >= job->num;
        job->columns = job->class_is_column ? job->class_count : job->num;
        job->rows = job->class_is_column ? job->num : job->class_count;
    } else {
        job->columns = (int)ceil(sqrt((double)job->total));
        job->rows = (int)((job->total + job->columns - 1) / job->columns);
    }
}

static int make_canvas(const generate_job *job, const char *path, image *canvas)
{
    double pixels = image_grid_pixels(job->rows, job->columns, job->width, job->height);
    if (pixels > GRID_PIXELS_MAX)
        return tool_error("%s: a grid of %ld images of %dx%d has %.0f pixels, expected %d at most: use fewer images or "
                          "--out DIR without --grid",
                          path, job->total, job->width, job->height, pixels, GRID_PIXELS_MAX);
    if (image_grid_create(job->rows, job->columns, job->width, job->height, canvas) != 0)
        return tool_error("out of memory for a grid of %.0f pixels", pixels);
    return 0;
}

static int make_canvases(generate_job *job)
{
    const char *map = job->options.accept_map;
    const int grid = job->out.is_file ? job->total > 1 : job->options.grid;
    shape_grid(job);
    if (grid && make_canvas(job, job->out.path, &job->grid) != 0) return 1;
    if (!map) return 0;
    job->map_cell = malloc((size_t)job->width * (size_t)job->height * 3);
    if (!job->map_cell) return tool_error("out of memory for the map of an image");
    return make_canvas(job, map, &job->map);
}

static int check_map(const generate_job *job)
{
    const char *map = job->options.accept_map;
    if (!map) return 0;
    if (!job->options.run.draft || job->options.run.params.head_spec)
        return tool_error("--accept_map %s: needs --draft, a model whose tokens are verified, and no --head_spec", map);
    if (tool_can_write_as(map, ".png") != 0) return 1;
    if (output_writes(&job->out, map))
        return tool_error("--accept_map %s: --out %s writes there, expected another file", map, job->out.path);
    return 0;
}

static int prepare(generate_job *job, progress *bar)
{
    generate_options *o = &job->options;
    double began = tool_seconds();
    if (classes_check_files(o->classes) != 0 || output_check(&job->out, o->out) != 0 || check_map(job) != 0) return 1;
    if (!o->run.vae && !run_is_demo(o->run.model)) return models_lack_vae(&o->run);
    if (models_load(&job->store, &o->run, bar, &job->models) != 0) return 1;
    if (resolve_classes(job) != 0) return 1;
    if (o->batch > job->total) o->batch = (int)job->total;
    if (models_session(&job->models, &o->run, o->batch, &job->session) != 0) return 1;
    mar_session_image_size(job->session, &job->width, &job->height);
    if (make_canvases(job) != 0) return 1;
    if (acceptance_create(mar_model_get_config(job->models.model)->seq_len, o->run.used.num_iter, o->batch,
                          &job->fates) != 0)
        return tool_error("out of memory");
    job->load_s = tool_seconds() - began;
    return 0;
}

/* --- sinks ------------------------------------------------------------------------------------------ */

/* Writes `picture` with its text; index and title as in record_texts_make. */
static int write_picture(const generate_job *job, long index, const char *title, char *path, const image *picture)
{
    record_texts texts;
    if (!path) return 1;
    int failed = record_texts_make(job, index, title, &texts) != 0;
    if (!failed) {
        failed = image_write_png(path, picture, texts.texts, texts.count);
        record_texts_free(&texts);
    }
    free(path);
    return failed;
}

/* Row and column of an image on the grid. */
static void place(const generate_job *job, long index, int *row, int *column)
{
    const long group = index / job->num, member = index % job->num; /* class, image of the class */
    *row = (int)(index / job->columns);
    *column = (int)(index % job->columns);
    if (job->class_count > 1 && job->num > 1) {
        *row = (int)(job->class_is_column ? member : group);
        *column = (int)(job->class_is_column ? group : member);
    }
}

static int keep_image(generate_job *job, long index, const uint8_t *rgb)
{
    int row, column;
    place(job, index, &row, &column);
    if (job->grid.rgb) image_grid_set(&job->grid, row, column, job->width, job->height, rgb);
    if (job->grid.rgb && job->out.is_file) return 0;
    const image picture = {job->width, job->height, (uint8_t *)(uintptr_t)rgb}; /* which writing leaves alone */
    return write_picture(job, index, NULL, output_image_path(&job->out, index), &picture);
}

/* Image `index` was number i of the batch that the figures were taken of last. */
static void keep_map(generate_job *job, long index, int i)
{
    int row, column;
    if (!job->map.rgb) return;
    place(job, index, &row, &column);
    acceptance_draw(&job->fates, i, job->width, job->height, job->map_cell);
    image_grid_set(&job->map, row, column, job->width, job->height, job->map_cell);
}

/* A sink: every image to its file, to the grid, to the map. */
static int take_pictures(void *self, const image_batch *batch)
{
    generate_job *job = self;
    const size_t bytes = (size_t)job->width * (size_t)job->height * 3;
    for (int i = 0; i < batch->n; i++) {
        if (keep_image(job, batch->first + i, batch->rgb + (size_t)i * bytes) != 0) return 1;
        keep_map(job, batch->first + i, i);
    }
    return 0;
}

/* A sink: times, counts, and what became of each token. */
static int take_figures(void *self, const image_batch *batch)
{
    generate_job *job = self;
    stats_add(&job->stats, batch->stats);
    return acceptance_add(&job->fates, batch->session, batch->n) == MAR_OK ? 0 : library_error(job);
}

static int write_map(const generate_job *job)
{
    static const char title[] =
        "accepted tokens: dark green accepted, light green replaced, grey made by the target alone";
    const long index = job->total > 1 ? -1 : 0;
    if (!job->map.rgb) return 0;
    char *path = strdup(job->options.accept_map);
    if (!path) return tool_error("%s: out of memory", job->options.accept_map);
    return write_picture(job, index, title, path, &job->map);
}

/* --- the run ------------------------------------------------------------------------------------ */

/* All images, then the grid and the map. Returns the exit status. */
static int make_files(generate_job *job, progress *bar)
{
    char kept[4200]; /* a path has room */
    snprintf(kept, sizeof kept, job->out.is_file ? "%s is not written" : "they are in %s", job->out.path);
    const image_run run = {job->models.model, job->session};
    const image_plan plan = {.runs = &run,
                             .run_count = 1,
                             .images = job->total,
                             .batch = job->options.batch,
                             .classes = job->classes,
                             .class_count = job->class_count,
                             .class_images = job->num,
                             .bar = bar,
                             .kept = kept};
    const image_sink sinks[] = {{take_figures, job, 0, 0}, {take_pictures, job, 0, 1}}; /* the map is of the figures */
    int status = run_images(&plan, sinks, 2);
    if (status == 0 && job->grid.rgb) status = write_picture(job, -1, NULL, output_grid_path(&job->out), &job->grid);
    return status == 0 ? write_map(job) : status;
}

static void print_summary(const generate_job *job)
{
    char path[8192];
    int digits = job->run_s < 9.95 ? 2 : 1;
    printf("wrote %s: %ld image%s of %dx%d in %.*f s", printable(job->out.path, path, sizeof path), job->total,
           job->total > 1 ? "s" : "", job->width, job->height, digits, job->run_s);
    if (job->total > 1) printf(" (%.2g s per image)", job->run_s / (double)job->total);
    putchar('\n');
}

static int generate(generate_job *job, progress *bar)
{
    if (prepare(job, bar) != 0) return 1;
    if (output_begin(&job->out) != 0) return 1;
    double began = tool_seconds();
    int status = make_files(job, bar);
    job->run_s = tool_seconds() - began;
    if (status != 0) {
        output_abandon(&job->out);
        return status;
    }
    if (job->options.json) return record_print_json(job);
    if (!job->options.quiet) print_summary(job);
    return 0;
}

int cmd_generate(int argc, char **argv)
{
    generate_job job = {0};
    progress bar;
    int status = parse(argc, argv, &job.options);
    if (status != OPTIONS_RUN) return status;
    progress_start(&bar, job.options.quiet);
    job.store.quiet = job.options.quiet;
    status = generate(&job, &bar);
    mar_session_free(job.session);
    models_free(&job.store);
    free(job.grid.rgb);
    free(job.map.rgb);
    free(job.map_cell);
    acceptance_free(&job.fates);
    free(job.classes);
    return status;
}
