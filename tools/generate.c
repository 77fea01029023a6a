/* mar generate: from a checkpoint and classes to PNG. */
#include "tools/generate.h"

#include "tools/classes.h"
#include "tools/command.h"
#include "tools/options.h"
#include "tools/progress.h"
#include "tools/record.h"

#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    NUM_MAX = 1000000,          /* images in a run: their file names have six digits */
    BATCH_DEFAULT = 16,         /* enough rows to keep the matrix units busy; at MAR-H still well under 8 GB */
    GRID_PIXELS_MAX = 100000000 /* 300 MB in memory; 32x32 images of 256x256 are two thirds of it */
};

/* --- interruption: the step in hand is finished, whole images stay ------------------------------ */

static volatile sig_atomic_t interrupted; /* the signal's number */

static void on_signal(int number)
{
    interrupted = number;
}

static void catch_signals(void)
{
    struct sigaction old, action = {.sa_handler = on_signal, .sa_flags = (int)SA_RESETHAND}; /* twice: die */
    sigemptyset(&action.sa_mask);
    static const int numbers[] = {SIGINT, SIGTERM, SIGHUP};
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++)
        if (sigaction(numbers[i], NULL, &old) == 0 && old.sa_handler != SIG_IGN) /* nohup stays in force */
            sigaction(numbers[i], &action, NULL);
}

/* --- what was asked for ------------------------------------------------------------------------- */

static const mar_param image_rows[] = {
    {.name = "class",
     .offset = offsetof(generate_options, classes),
     .group = "Images",
     .type = MAR_TYPE_TEXT,
     .argument = "LIST",
     .help = "numbers or ImageNet names: 207,sea_slug; demo: 0 to 9\n"
             "Separated by commas. Names are for models of 1000 classes. In them upper and lower case, and spaces, "
             "dashes and underscores, are the same. A name that two classes share is refused with the numbers to "
             "choose from. The default for the demo is all ten digits."},
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

static int parse(int argc, char **argv, generate_options *o)
{
    option_set set = {
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
    options_add_table(&set, image_rows, o, 0);
    run_options_add(&o->run, &set);
    options_add_table(&set, other_rows, o, 0);
    const int status = options_parse(&set, argc, argv);
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
    job->class_total = mar_model_get_config(job->models.model)->classes;
    if (o->classes) {
        char why[1024];
        if (classes_parse(o->classes, job->class_total, &job->classes, &job->class_count, why, sizeof why) != 0)
            return tool_error("--class: %s", why);
    } else if (run_is_demo(o->run.model)) {
        job->class_count = job->class_total;
        job->classes = malloc((size_t)job->class_count * sizeof *job->classes);
        if (!job->classes) return tool_error("out of memory for %d classes", job->class_count);
        for (int i = 0; i < job->class_count; i++) job->classes[i] = i;
    } else {
        return tool_error("--class is missing, expected numbers from 0 to %d%s", job->class_total - 1,
                          job->class_total == IMAGENET_CLASSES ? " or names such as \"golden retriever\"" : "");
    }
    job->num = o->num ? o->num : run_is_demo(o->run.model) ? 4 : 1;
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
    return map ? make_canvas(job, map, &job->map) : 0;
}

static int check_map(const generate_job *job)
{
    const char *map = job->options.accept_map;
    if (!map) return 0;
    if (!job->options.run.draft || job->options.run.params.head_spec)
        return tool_error("--accept_map %s: needs --draft, a model whose tokens are verified, and no --head_spec", map);
    if (output_check_file(map) != 0) return 1;
    if (output_writes(&job->out, map))
        return tool_error("--accept_map %s: --out %s writes there, expected another file", map, job->out.path);
    return 0;
}

static int prepare(generate_job *job, progress *bar)
{
    generate_options *o = &job->options;
    double began = tool_seconds();
    if (output_check(&job->out, o->out) != 0 || check_map(job) != 0) return 1;
    if (!o->run.vae && !run_is_demo(o->run.model))
        return tool_error("--vae is missing, expected an image decoder: the official models use kl16.ckpt, linked from "
                          "the page github.com/LTH14/mar");
    if (run_load(&o->run, bar, &job->models) != 0) return 1;
    if (resolve_classes(job) != 0) return 1;
    if (o->batch > job->total) o->batch = (int)job->total;
    mar_status status = run_session(&o->run, &job->models, o->batch, &job->session);
    if (status == MAR_ENOMEM && o->batch > 1)
        return tool_error("%s; a smaller --batch than %d needs less", mar_error(job->models.library), o->batch);
    if (status != MAR_OK) return library_error(job);
    mar_session_image_size(job->session, &job->width, &job->height);
    if (make_canvases(job) != 0) return 1;
    if (acceptance_create(mar_model_get_config(job->models.model)->seq_len, o->run.params.num_iter, o->batch,
                          &job->fates) != 0)
        return tool_error("out of memory");
    job->load_s = tool_seconds() - began;
    return 0;
}

/* --- the run ------------------------------------------------------------------------------------ */

/* Images first..first+n-1 into rgb. 1 after an error or when interrupted. */
static int run_batch(generate_job *job, long first, int n, int *labels, uint8_t *rgb, progress *bar)
{
    for (int i = 0; i < n; i++) labels[i] = job->classes[(first + i) / job->num];
    if (mar_session_begin(job->session, (uint64_t)first, labels, n) != MAR_OK) return library_error(job);
    double steps = job->options.run.params.num_iter + 1; /* the image decoder counts as one more */
    double total = (double)job->total;
    while (!mar_session_done(job->session)) {
        double step = steps - 1 - mar_session_steps_left(job->session);
        progress_update(bar, ((double)first + n * step / steps) / total, first, job->total);
        if (mar_session_step(job->session) != MAR_OK) return library_error(job);
        if (interrupted) return 1;
    }
    if (mar_session_images(job->session, rgb) != MAR_OK) return library_error(job);
    mar_stats stats;
    mar_session_get_stats(job->session, &stats);
    stats_add(&job->stats, &stats);
    if (acceptance_add(&job->fates, job->session, n) != MAR_OK) return library_error(job);
    progress_update(bar, (double)(first + n) / total, first + n, job->total);
    return 0;
}

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

static int keep_image(generate_job *job, long index, uint8_t *rgb)
{
    int row, column;
    place(job, index, &row, &column);
    if (job->grid.rgb) image_grid_set(&job->grid, row, column, job->width, job->height, rgb);
    if (job->grid.rgb && job->out.is_file) return 0;
    const image picture = {job->width, job->height, rgb};
    return write_picture(job, index, NULL, output_image_path(&job->out, index), &picture);
}

/* Image `index` was number i of its batch; its own pixels are no longer needed. */
static void keep_map(generate_job *job, long index, int i, uint8_t *rgb)
{
    int row, column;
    if (!job->map.rgb) return;
    place(job, index, &row, &column);
    acceptance_draw(&job->fates, i, job->width, job->height, rgb);
    image_grid_set(&job->map, row, column, job->width, job->height, rgb);
}

static int write_map(const generate_job *job)
{
    static const char title[] =
        "accepted tokens: dark green accepted, light green replaced, grey made by the target alone";
    const long index = job->total > 1 ? -1 : 0;
    return job->map.rgb ? write_picture(job, index, title, strdup(job->options.accept_map), &job->map) : 0;
}

/* Returns the number of images finished, job->total if all is well. */
static long run(generate_job *job, progress *bar)
{
    size_t image_bytes = (size_t)job->width * (size_t)job->height * 3;
    int batch = job->options.batch, failed = 0;
    uint8_t *rgb = malloc((size_t)batch * image_bytes);
    int *labels = malloc((size_t)batch * sizeof *labels);
    long done = 0;
    if (!rgb || !labels) failed = tool_error("out of memory for %d images of %dx%d", batch, job->width, job->height);
    while (!failed && !interrupted && done < job->total) {
        int n = job->total - done < batch ? (int)(job->total - done) : batch;
        failed = run_batch(job, done, n, labels, rgb, bar);
        for (int i = 0; i < n && !failed; i++) {
            failed = keep_image(job, done, rgb + (size_t)i * image_bytes);
            keep_map(job, done, i, rgb + (size_t)i * image_bytes);
            done += !failed;
        }
    }
    free(rgb);
    free(labels);
    return done;
}

static void print_summary(const generate_job *job)
{
    const char *path = job->out.path;
    int digits = job->run_s < 9.95 ? 2 : 1;
    printf("wrote %s: %ld image%s of %dx%d in %.*f s", path, job->total, job->total > 1 ? "s" : "", job->width,
           job->height, digits, job->run_s);
    if (job->total > 1) printf(" (%.2g s per image)", job->run_s / (double)job->total);
    putchar('\n');
}

static int generate(generate_job *job, progress *bar)
{
    if (prepare(job, bar) != 0) return 1;
    if (output_begin(&job->out) != 0) return 1;
    catch_signals();
    double began = tool_seconds();
    progress_begin(bar);
    long done = run(job, bar);
    int failed = done < job->total;
    if (!failed && job->grid.rgb) failed = write_picture(job, -1, NULL, output_grid_path(&job->out), &job->grid);
    if (!failed) failed = write_map(job);
    progress_clear(bar);
    job->run_s = tool_seconds() - began;
    if (failed) {
        if (job->out.is_file) done = 0;
        if (interrupted) tool_error("interrupted: %ld of %ld images are in %s", done, job->total, job->out.path);
        output_abandon(&job->out);
        return interrupted ? 128 + interrupted : 1;
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
    status = generate(&job, &bar);
    mar_session_free(job.session);
    run_unload(&job.models);
    free(job.grid.rgb);
    free(job.map.rgb);
    acceptance_free(&job.fates);
    free(job.classes);
    return status;
}
