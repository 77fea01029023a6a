/* mar generate: makes pictures from a checkpoint and classes. */
#include "tools/generate/classes.h"

#include "mar_methods.h"
#include "tools/cli/command.h"
#include "tools/cli/file.h"
#include "tools/generate/grid.h"
#include "tools/generate/job.h"
#include "tools/generate/images.h"
#include "tools/generate/like.h"
#include "tools/cli/interruption.h"
#include "tools/cli/options.h"
#include "base/printable.h"
#include "tools/cli/progress.h"
#include "tools/generate/record.h"
#include "tools/generate/stats.h"
#include "tools/cli/subcommands.h"

#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
    NUM_MAX = 1000000, /* images of a run: file names have six digits */
    QUALITY_DEFAULT = 90,
    BATCH_DEFAULT = 16 /* keeps the matrix units busy; at MAR-H still well under 8 GB */
};

/* --- options ------------------------------------------------------------------------------------------------------ */

static const char *const formats[] = {[IMAGE_PNG] = "png", [IMAGE_JPEG] = "jpeg", [IMAGE_WEBP] = "webp", NULL};

static const char *const default_names[] = {
    [IMAGE_PNG] = "mar.png", [IMAGE_JPEG] = "mar.jpg", [IMAGE_WEBP] = "mar.webp"};

static const mar_param image_rows[] = {
    {.name = OPTION("class"),
     .offset = offsetof(generate_options, classes),
     .group = "Images",
     .type = MAR_TYPE_TEXT,
     .argument = "LIST",
     .help = "classes: 0-9,207,sea_slug, all, none or @FILE; demo: 0 to 9\n"
             "Numbers, ranges of numbers and names, separated by commas. all is every class. none makes images of no "
             "class, which guidance does not change. @FILE reads classes "
             "from a file, one a line or separated by commas, with comments after #; @- reads standard input. "
             "Names are those of ImageNet, for models of 1000 classes, or of --class_names; mar classes lists them. "
             "They ignore case, "
             "and spaces, dashes and underscores are the same. Words of a name are enough if no other class has them. "
             "What several classes have is refused with the numbers "
             "to choose from. A class may occur several times. The default for the demo is all ten digits."},
    {OPTION_INT(generate_options, num, 1, NUM_MAX),
     .help = "images of each class or prompt; default 1, of the demo's classes 4\n"
             "Images are numbered from 0 through all classes in the given order, those of the first class first."},
    {.name = OPTION("benchmark"),
     .offset = offsetof(generate_options, benchmark),
     .type = MAR_TYPE_NAME,
     .choices = benchmark_names,
     .help =
         "write the folder that a benchmark's judge reads\n"
         "--prompts is the benchmark's: evaluation_metadata.jsonl of GenEval, geneval2_data.jsonl of GenEval 2, the "
         "folder dpg_bench/prompts of DPG-Bench, or PartiPrompts.tsv. geneval: 00000/metadata.jsonl and "
         "00000/samples/00000.png, --num 4 by default. geneval2: 00000.png and image_paths.json. dpg: a grid of "
         "two by two for each prompt, or of --num 1 to 4, with the name of the prompt's file. partiprompts: "
         "00000.png and a copy of the prompts. --resume goes on."},
    {OPTION_TEXT(generate_options, like, "FILE.png"),
     .help =
         "make the image of this PNG again, from its text\n"
         "Model, parameters, arithmetic, class, seed and number are those that the PNG's text names; options given "
         "beside it win. Alone it makes the same pixels, or says which version or arithmetic that needs. --num N "
         "makes N images from its number on. A model file is looked for in the working directory, and must have "
         "the bytes that the text names unless it is given. The image goes to --out, as always. A grid is refused."},
    {OPTION_TEXT(generate_options, out, "WHERE"),
     .help = "a directory, FILE.png, .jpg or .webp, or - for standard output\n"
             "A name that ends in .png, .jpg, .jpeg or .webp is a file: the image, or a grid of several. A single "
             "dash is standard output, which must not be a terminal. Any other name is a directory for 000000.png, "
             "000001.png and so on, in class order. Missing directories are made."},
    {OPTION_CHOICE(generate_options, format, formats),
     .help =
         "format of the pictures in a directory or on standard output\n"
         "png keeps every pixel, and the parameters as text; --resume needs it. jpeg keeps the text as a comment, a "
         "JSON object. webp keeps no text, and needs a mar that was built with libwebp."},
    {OPTION_INT(generate_options, quality, 1, 100),
     .help = "quality of JPEG and WebP\n"
             "From 90 on a JPEG keeps the colour of each pixel; below, of two by two."},
    {OPTION_FLAG(generate_options, grid),
     .help = "with a directory: also write all images to DIR/grid.png\n"
             "A row is a class, or a column if there are more classes than images of each."},
    {OPTION_FLAG(generate_options, resume),
     .help = "with a directory: make only the missing images\n"
             "All its numbered images must be whole and have the text that this run would write, else nothing is "
             "written. The directory then equals that of one run."},
    {OPTION_FLAG(generate_options, overwrite),
     .help = "with a directory: replace the images of another run\n"
             "It removes numbered images and grid.png before the first image is written. Without it and --resume a "
             "directory that has any is refused, so images of two runs are never mixed."},
    {OPTION_TEXT(generate_options, store, "DIR"),
     .help = "keep tokens in DIR/runs, and take what is there\n"
             "Images that an earlier command with the same options kept there are decoded, not made: those of mar "
             "generate, mar eval and mar fidelity, where number, class and --batch agree. A run that was stopped goes "
             "on with the same bits, one picture or grid, too."},
    {OPTION_TEXT(generate_options, preview, "FILE.png"),
     .help =
         "write the images in progress to a file, again and again\n"
         "A grid of the batch in progress: what is known of each image, the rest grey; at last the finished images. "
         "With --devices it shows the first GPU's batches alone. "
         "The file is replaced as a whole, every few seconds at least, so that a viewer can watch it. It takes a "
         "tenth of the time, or one decoded image every five seconds, and changes no image. Where decoding all "
         "images takes long, some are drawn at a time, in turn. If the file can no longer be written, the images "
         "are made without it, and the exit status is 1."},
    {OPTION_TEXT(generate_options, accept_map, "FILE.png"),
     .help = "write a map of accepted and replaced tokens\n"
             "It is laid out like the images: dark green accepted, light green replaced, grey sampled by the "
             "target alone. It needs --spec path, or --draft without --head_spec."},
    {0},
};

static const mar_param other_rows[] = {
    {.group = "Machine",
     OPTION_INT(generate_options, batch, 1, 1024),
     .help = "images to make at a time; fewer need less memory\n"
             "More is faster for small models. Fewer show finished images earlier."},
    {.group = "Messages",
     OPTION_FLAG(generate_options, json),
     .help = "print a JSON record instead of the summary\n"
             "One JSON object on standard output: the parameters, the files, and the cost of the run, see below."},
    {OPTION_FLAG(generate_options, quiet), .help = "no progress and no summary; errors only"},
    {0},
};

/* Options that --help shows: those most often changed. */
static const char *const common[] = {"class",
                                     "num",
                                     "out",
                                     "seed",
                                     "model",
                                     "vae",
                                     "prompt",
                                     "t5",
                                     "grid",
                                     "resume",
                                     "fast",
                                     "num_iter",
                                     "num_sampling_steps",
                                     "cfg",
                                     "temperature",
                                     "head_spec",
                                     "dtype",
                                     "batch",
                                     NULL};

/* Sets the defaults, and adds the options that set the fields. */
static void generate_set_up(generate_options *o, option_set *set)
{
    *set = (option_set){
        .command = "generate",
        .about = "usage: mar generate [OPTIONS]\n"
                 "\n"
                 "Makes images and writes them as PNG, JPEG or WebP. With no options: digits from\n"
                 "the demo.\n"
                 "man mar explains every option, mar methods every accelerator.\n",
        .common = common,
        .word = "class",
        .draws_seed = 1,
        .example = "example: mar generate --model checkpoint-last.pth --vae kl16.ckpt \\\n"
                   "             --class \"golden retriever\" --seed 7 --out dog.png\n"
                   "         mar generate --model demo-t2i --prompt \"a bold seven\" --out seven.png\n",
    };
    *o = (generate_options){.out = default_names[IMAGE_PNG], .batch = BATCH_DEFAULT, .quality = QUALITY_DEFAULT};
    run_options_init(&o->run);
    options_add_table(set, image_rows, o, 0);
    run_options_add(&o->run, set);
    options_add(set, &devices_option, &o->devices, 0);
    options_add_table(set, other_rows, o, 0);
}

/* Checks --benchmark against the other options. */
static int check_benchmark_out(const generate_options *o, const output *out)
{
    if (!o->benchmark) return 0;
    if (out->is_file) return tool_error("--benchmark %s: --out is %s, expected a directory", o->benchmark, o->out);
    if (out->format != IMAGE_PNG)
        return tool_error("--format %s: the directories of --benchmark are of PNGs, expected png", formats[o->format]);
    if (o->grid) return tool_error("--grid: has no effect with --benchmark %s", o->benchmark);
    if (o->accept_map) return tool_error("--accept_map: expected it without --benchmark %s", o->benchmark);
    if (o->like) return tool_error("--like: makes one image again, expected it without --benchmark");
    if (o->overwrite)
        return tool_error("--overwrite: does not replace the directories of --benchmark, expected another --out");
    return 0;
}

/* Checks that the kind of --out suits the other options. */
static int check_together(const generate_options *o, const output *out)
{
    if (out->is_stream && o->json)
        return tool_error("--json: needs standard output for itself, expected another --out than -");
    if (o->gives_format && out->is_file && !out->is_stream && out->format != (image_format)o->format)
        return tool_error("--format %s: --out is %s, whose name says %s", formats[o->format], o->out,
                          image_format_name(out->format));
    if (o->gives_quality && out->format == IMAGE_PNG)
        return tool_error("--quality: has no effect on PNG, expected JPEG or WebP with it: a name ending in .jpg or "
                          ".webp, or --format");
    if (o->grid && out->is_file)
        return tool_error("--grid: --out is %s, one picture, expected a directory for images and grid", o->out);
    if (o->resume && out->is_file) return tool_error("--resume: --out is %s, expected a directory", o->out);
    if (o->resume && out->format != IMAGE_PNG)
        return tool_error("--resume: compares the text of PNGs, expected --format png, found %s", formats[o->format]);
    if (o->overwrite && out->is_file)
        return tool_error("--overwrite: --out is %s, expected a directory; a file is replaced without it", o->out);
    if (o->resume && o->seed_is_drawn)
        return tool_error("--resume: goes on with images of one seed, expected that seed, not --seed random");
    if (o->resume && o->overwrite)
        return tool_error("--overwrite: replaces the images that --resume keeps, expected one of them");
    if (o->resume && o->accept_map)
        return tool_error("--resume: cannot go on with --accept_map, whose map is of images made in one run");
    return 0;
}

static int generate_parse(int argc, char **argv, generate_options *o)
{
    option_set set;
    generate_set_up(o, &set);
    const int status = options_read(&set, argc, argv);
    o->seed_is_drawn = set.seed_is_drawn;
    o->gives_format = options_find(&set, "format")->given;
    o->gives_quality = options_find(&set, "quality")->given;
    if (o->gives_format && !options_find(&set, "out")->given) o->out = default_names[o->format];
    if (status != OPTIONS_RUN) return status;
    return like_take(o, &set) != 0 || run_options_done(&o->run, &set) != 0 ? 1 : status;
}

/* --- settings that depend on the model ---------------------------------------------------------------------------- */

static int resolve_classes(generate_job *job)
{
    const generate_options *o = &job->options;
    const int demo = run_is_demo(o->run.model) && !job->models.captions;
    if (models_refuse_classes(&o->run, o->classes) != 0) return 1;
    if (classes_choose(o->classes, &job->models.classes, demo || job->models.captions, &job->classes,
                       &job->class_count) != 0)
        return 1;
    job->num = o->benchmark ? job->benchmark.num : o->num ? o->num : demo && !o->like ? 4 : 1;
    job->total = (long)job->num * job->class_count;
    if (job->total > NUM_MAX - o->first)
        return tool_error("--num %d for %d classes: %ld images%s, expected %ld at most", job->num, job->class_count,
                          job->total, o->first ? " from that of --like on" : "", NUM_MAX - o->first);
    job->labels = malloc((size_t)job->total * sizeof *job->labels);
    if (!job->labels) return tool_error("out of memory for the classes of %ld images", job->total);
    for (long i = 0; i < job->total; i++) job->labels[i] = job->classes[i / job->num];
    return 0;
}

/* --- --resume ------------------------------------------------------------------------------------------ */

static const char rule[] = "a directory has images of one run only, --overwrite replaces them";

static const char *generate_value_of(const image_text *texts, int count, const char *key)
{
    for (int i = 0; i < count; i++)
        if (strcmp(texts[i].key, key) == 0) return texts[i].value;
    return NULL;
}

/* Compares one text of the run with the file's. Returns 0, or 1 with the difference printed. */
static int compare_text(const char *path, const image_file *file, const image_text *t)
{
    const char *found = generate_value_of(file->texts, file->count, t->key);
    if (!found) return tool_error("%s: has no text %s, expected %s: %s", path, t->key, t->value, rule);
    if (strcmp(found, t->value) == 0) return 0;
    return tool_error("%s: %s is %s, expected %s: %s", path, t->key, found, t->value, rule);
}

/* Compares all texts but the guarantee, which follows from the options and which other versions word otherwise. */
static int compare_texts(const char *path, const image_file *file, const record_texts *ours)
{
    for (int i = 0; i < ours->count; i++)
        if (strcmp(ours->texts[i].key, "guarantee") != 0 && compare_text(path, file, &ours->texts[i]) != 0) return 1;
    for (int i = 0; i < file->count; i++)
        if (!generate_value_of(ours->texts, ours->count, file->texts[i].key))
            return tool_error("%s: %s is %s, expected no such text: %s", path, file->texts[i].key, file->texts[i].value,
                              rule);
    return 0;
}

static int check_image(generate_job *job, const char *path, long index)
{
    image_file file;
    record_texts ours;
    int width = job->width, height = job->height;
    benchmark_size(&job->benchmark, &width, &height);
    if (image_read_png(path, width, height, &file) != 0) return 1;
    int failed = record_texts_make(job, index, NULL, &ours) != 0;
    if (!failed) {
        failed = compare_texts(path, &file, &ours);
        record_texts_free(&ours);
    }
    if (!failed && job->grid.rgb) grid_place(job, &job->grid, index, file.picture.rgb);
    image_file_free(&file);
    return failed;
}

/* Marks the images whose names are in the directory. Returns 0, or 1 with the error printed. */
static int list_existing(generate_job *job, DIR *directory)
{
    errno = 0;
    for (const struct dirent *e; (e = readdir(directory)); errno = 0) {
        const long number = output_image_index(e->d_name), index = number - job->options.first;
        if (number < 0) continue;
        if (index < 0 || index >= job->total)
            return tool_error("%s/%s: is not an image of this run, which has numbers up to %ld: %s", job->out.path,
                              e->d_name, job->options.first + job->total - 1, rule);
        job->have[index] = 1;
        job->existing++;
    }
    return errno ? tool_error("%s: cannot read: %s", job->out.path, strerror(errno)) : 0;
}

/* Reads the numbered images in the directory. Sets job->have and job->existing, and puts them on job->grid if there is
 * one. Writes no file. Returns 1, with the error printed, for a damaged image, one with other text than this run's
 * (record_texts_make), or a number that this run lacks; else 0. */
static int find_existing(generate_job *job)
{
    job->have = calloc((size_t)job->total, 1);
    if (!job->have) return tool_error("out of memory for the list of %ld images", job->total);
    int failed = 0;
    if (job->benchmark.kind) {
        job->existing = benchmark_find(&job->benchmark, &job->out, job->have);
        failed = job->existing < 0;
    } else {
        DIR *directory = opendir(job->out.path);
        if (!directory) return errno == ENOENT ? 0 : tool_error("%s: cannot read: %s", job->out.path, strerror(errno));
        failed = list_existing(job, directory);
        closedir(directory);
    }
    for (long i = 0; i < job->total && !failed; i += benchmark_images(&job->benchmark)) {
        if (!job->have[i]) continue;
        char *path = benchmark_path(&job->benchmark, &job->out, job->options.first + i);
        failed = !path || check_image(job, path, i) != 0;
        free(path);
    }
    return failed;
}

/* Returns whether check_together takes --resume with the other options. */
static int can_resume(const generate_job *job)
{
    const generate_options *o = &job->options;
    return job->out.format == IMAGE_PNG && !o->seed_is_drawn && !o->accept_map;
}

/* Looks at a directory without --resume and --overwrite. It must have no pictures; but the PNGs may be those of this
 * very run, repeated: then, if the first has its model and seed, sets job->repeats. Returns 0, or 1 with the error
 * printed. */
static int check_free(generate_job *job)
{
    const generate_options *o = &job->options;
    image_file first;
    char seed[24];
    if (o->resume || o->overwrite) return 0;
    if (o->benchmark) return benchmark_check_free(&job->out);
    char *path = output_image_path(&job->out, o->first);
    if (!path) return 1;
    const int is_candidate = !job->out.is_file && can_resume(job) && access(path, F_OK) == 0;
    const int failed = is_candidate && image_read_texts(path, &first) != 0;
    free(path);
    if (failed || !is_candidate) return failed ? 1 : output_check_free(&job->out, can_resume(job));
    snprintf(seed, sizeof seed, "%" PRIu64, o->run.params.seed);
    const char *seed_was = generate_value_of(first.texts, first.count, "seed");
    const char *model_was = generate_value_of(first.texts, first.count, "model");
    job->repeats =
        seed_was && strcmp(seed_was, seed) == 0 && model_was && strcmp(model_was, tool_base_name(o->run.model)) == 0;
    image_file_free(&first);
    return job->repeats ? 0 : output_check_free(&job->out, can_resume(job));
}

/* Takes the times of rounds and of the head from the first of the run's images that is there, so that the others are
 * like it. */
static int take_costs(generate_job *job)
{
    generate_options *o = &job->options;
    int failed = 0, found = 0;
    if (o->overwrite || job->out.is_file || !can_resume(job)) return 0;
    for (long i = 0; i < job->total && !failed && !found; i += benchmark_images(&job->benchmark)) {
        image_file made;
        char *path = benchmark_path(&job->benchmark, &job->out, o->first + i);
        found = path && access(path, F_OK) == 0;
        failed = !path || (found && image_read_texts(path, &made) != 0);
        if (found && !failed) {
            run_take_costs(&o->run, generate_value_of(made.texts, made.count, "round_costs"),
                           generate_value_of(made.texts, made.count, "head_costs"));
            image_file_free(&made);
        }
        free(path);
    }
    return failed;
}

/* Finds the images of --resume, or those of a repeated run, which must be all. Returns 0, or 1 with the error
 * printed. */
static int take_existing(generate_job *job)
{
    if (!job->options.resume && !job->repeats) return 0;
    if (find_existing(job) != 0) return 1;
    return job->repeats && job->existing < job->total ? output_check_free(&job->out, 1) : 0;
}

/* --- preparation --------------------------------------------------------------------------------------- */

static int generate_check_map(const generate_job *job)
{
    const char *map = job->options.accept_map;
    if (!map) return 0;
    if (!run_verifies_drafts(&job->options.run))
        return tool_error(
            "--accept_map %s: needs drafted tokens that are verified: --spec path, sjd, sjd-pac or scd, or --draft "
            "without --head_spec",
            map);
    if (tool_can_write_as(map, ".png") != 0) return 1;
    if (output_writes(&job->out, map))
        return tool_error("--accept_map %s: --out %s writes there, expected another file", map, job->out.path);
    return 0;
}

/* Checks that no picture replaces that of --like. */
static int check_like(const generate_job *job)
{
    const generate_options *o = &job->options;
    if (!o->like || !output_writes(&job->out, o->like)) return 0;
    return tool_error("--like %s: --out %s writes there, expected another --out", o->like, o->out);
}

static int generate_prepare(generate_job *job, progress *bar)
{
    generate_options *o = &job->options;
    double began = tool_seconds();
    if (classes_check_files(o->classes) != 0) return 1;
    if (output_check(&job->out, o->out, (image_format)o->format) != 0 || check_together(o, &job->out) != 0 ||
        check_benchmark_out(o, &job->out) != 0 || benchmark_open(o->benchmark, &o->run, o->num, &job->benchmark) != 0 ||
        generate_check_map(job) != 0 || check_like(job) != 0 || preview_check(o->preview) != 0 ||
        record_check_store(o->store, &job->tokens) != 0)
        return 1;
    if (check_free(job) != 0) return 1;
    job->files.needs_all = o->benchmark != NULL; /* a prompt's number names its files */
    if (devices_read(o->devices, &o->run, &job->devices) != 0) return 1;
    if (models_load(&job->files, &o->run, bar, &job->models) != 0) return 1;
    progress_note(bar, "hashing the model's files");
    if (record_identify(&o->run, &job->models) != 0 || resolve_classes(job) != 0 || take_costs(job) != 0) return 1;
    if (o->batch > job->total) o->batch = (int)job->total;
    progress_note(bar, "preparing");
    if (models_session(&job->models, &o->run, o->batch, &job->session) != 0 || like_check(job) != 0) return 1;
    if (devices_load(&job->files, &o->run, &job->models, job->total, o->batch, bar, &job->devices) != 0) return 1;
    progress_clear(bar);
    mar_session_image_size(job->session, &job->width, &job->height);
    if (benchmark_check(&job->benchmark, job->models.captions, job->width, job->height) != 0) return 1;
    if (grid_create(job) != 0 || preview_create(&job->preview, o->preview, job->session, o->batch) != 0) return 1;
    const mar_model_config *c = mar_model_get_config(job->models.model);
    if (acceptance_create(c->seq_len, c->grid_width, o->run.used.num_iter, &job->accepted) != 0)
        return tool_error("out of memory");
    job->load_s = tool_seconds() - began;
    return take_existing(job);
}

/* --- sinks ------------------------------------------------------------------------------------------ */

/* Returns how pictures are stored: those in a directory are synced together at the end. */
static image_store store_of(const generate_job *job)
{
    return job->out.is_stream ? IMAGE_STREAM : job->out.directory ? IMAGE_UNSYNCED : IMAGE_SYNCED;
}

/* Writes `picture` with its text and frees the path. index and title are those of record_texts_make. */
static int generate_write_picture(const generate_job *job, long index, const char *title, char *path,
                                  const image *picture, image_format format, image_store store)
{
    record_texts texts;
    if (!path) return 1;
    int failed = record_texts_make(job, index, title, &texts) != 0;
    if (!failed) {
        failed = image_write(path, picture, format, job->options.quality, texts.texts, texts.count, store);
        record_texts_free(&texts);
    }
    free(path);
    return failed;
}

/* Writes the image, or DPG's grid, which it completes, and counts their images. */
static int write_image(generate_job *job, long index, const image *picture)
{
    const int images = benchmark_images(&job->benchmark);
    const long first = index - index % images;
    if (generate_write_picture(job, first, NULL, benchmark_path(&job->benchmark, &job->out, job->options.first + first),
                               picture, job->out.format, store_of(job)) != 0)
        return 1;
    job->made += images;
    return 0;
}

static int keep_image(generate_job *job, long index, const uint8_t *rgb)
{
    const image picture = {job->width, job->height,
                           (uint8_t *)(uintptr_t)rgb}; /* the cast is safe: writing only reads the pixels */
    if (job->grid.rgb) grid_place(job, &job->grid, index, rgb);
    if (job->grid.rgb && job->out.is_file) {
        job->made++;
        return 0;
    }
    if (benchmark_images(&job->benchmark) == 1) return write_image(job, index, &picture);
    const int complete = benchmark_place(&job->benchmark, index, job->width, job->height, rgb);
    return complete == 1 ? write_image(job, index, &job->benchmark.grid) : complete < 0;
}

/* Keeps the map of image `index`, number i of the batch whose figures were taken last. */
static void keep_map(generate_job *job, long index, int i)
{
    if (!job->map.rgb) return;
    acceptance_draw(&job->accepted, i, job->width, job->height, job->map_cell);
    grid_place(job, &job->map, index, job->map_cell);
}

/* An image_sink: writes every image to its file, the grid and the map. */
static int take_pictures(void *self, const image_batch *batch)
{
    generate_job *job = self;
    const size_t bytes = (size_t)job->width * (size_t)job->height * 3;
    for (int i = 0; i < batch->n; i++) {
        const long index = batch->first + i - job->options.first;
        if (keep_image(job, index, batch->rgb + (size_t)i * bytes) != 0) return 1;
        keep_map(job, index, i);
    }
    return 0;
}

/* An image_sink: takes times, counts and the status of tokens. */
static int take_figures(void *self, const image_batch *batch)
{
    generate_job *job = self;
    stats_add(&job->stats, batch->stats);
    acceptance_add(&job->accepted, batch->token_status, batch->steps, batch->staleness, batch->n);
    return 0;
}

static int write_map(const generate_job *job)
{
    static const char title[] =
        "accepted tokens: dark green accepted, light green replaced, grey made by the target alone";
    const long index = job->total > 1 ? -1 : 0;
    if (!job->map.rgb) return 0;
    char *path = strdup(job->options.accept_map);
    if (!path) return tool_error("%s: out of memory", job->options.accept_map);
    return generate_write_picture(job, index, title, path, &job->map, IMAGE_PNG, IMAGE_SYNCED);
}

/* --- the run ------------------------------------------------------------------------------------ */

static void show_preview(void *watcher, mar_session *session, int n, const uint8_t *rgb)
{
    if (rgb)
        preview_finish(watcher, n, rgb);
    else
        preview_show(watcher, session, n);
}

static int generate_make_images(generate_job *job, progress *bar)
{
    const generate_options *o = &job->options;
    image_run runs[DEVICES_MAX];
    const image_run run = {.model = job->models.model,
                           .session = job->session,
                           .captions = job->models.captions,
                           .store = job->options.store ? &job->kept : NULL,
                           .has_drafts = run_verifies_drafts(&job->options.run)};
    const image_plan plan = {.runs = runs,
                             .run_count = 1,
                             .workers = devices_runs(&job->devices, &run, runs),
                             .first = job->options.first,
                             .images = job->total,
                             .batch = job->options.batch,
                             .labels = job->labels,
                             .have = job->have,
                             .takes_parts = 1,
                             .watch = o->preview ? show_preview : NULL,
                             .watcher = &job->preview,
                             .bar = bar,
                             .made = &job->sampled};
    const image_sink sinks[] = {{take_figures, job, 0, 0, 1},
                                {take_pictures, job, 0, 1, 0}}; /* the map is drawn from the figures */
    return run_images(&plan, sinks, 2);
}

/* Returns how an ended run can go on. */
static const char *way_on(const generate_job *job)
{
    if (!job->out.is_file && !job->options.accept_map) return "; --resume goes on";
    if (!job->options.store) return "";
    return job->out.is_file ? "; the same command goes on" : "; --overwrite goes on";
}

enum { KEPT_SIZE = 6000 }; /* room for a path */

/* Writes what a run that ended early has left, where, and how to go on. `map`: where the map is, or "". Returns
 * text. */
static const char *describe_kept(const generate_job *job, const char *map, char text[KEPT_SIZE])
{
    char existing[64] = "";
    const char *go_on = way_on(job);
    if (job->existing) snprintf(existing, sizeof existing, ", %ld were there already", job->existing);
    if (job->made == 0)
        snprintf(text, KEPT_SIZE, "no image was finished%s%s", existing, job->existing ? go_on : "");
    else
        snprintf(text, KEPT_SIZE, "%ld of %ld images were made%s, they are %s %s%s%s", job->made, job->total, existing,
                 job->out.is_file ? "on the grid" : "in", job->out.is_stream ? "of standard output" : job->out.path,
                 map, go_on);
    return text;
}

/* Reports an interruption. Returns the exit status. */
static int report_interruption(const generate_job *job)
{
    char text[KEPT_SIZE], map[1100] = "";
    if (job->map.rgb) snprintf(map, sizeof map, ", the map of their tokens is %.1000s", job->options.accept_map);
    return interruption_end("%s", describe_kept(job, map, text));
}

/* Reports the images in a directory, if any, after a printed error. Returns 1. */
static int report_failure(const generate_job *job)
{
    char text[KEPT_SIZE];
    return job->out.is_file || job->made == 0 ? 1 : tool_error("%s", describe_kept(job, "", text));
}

/* Makes all images, then the grid and the map; after an interruption those of the finished images. The grid of a
 * directory is left to the run that completes it. Returns the exit status. */
static int generate_make_files(generate_job *job, progress *bar)
{
    int status = generate_make_images(job, bar), failed = 0;
    const int interrupted = status > 1, one_picture = job->out.is_file;
    if (status == 1) return report_failure(job);
    if (interrupted && job->made == 0) return report_interruption(job);
    if (job->grid.rgb && (one_picture || !interrupted))
        failed = generate_write_picture(job, -1, NULL, output_grid_path(&job->out), &job->grid, job->out.format,
                                        store_of(job));
    if (!failed) failed = write_map(job);
    if (failed) return report_failure(job);
    if (output_sync(&job->out) != 0 || (!interrupted && benchmark_finish(&job->benchmark, &job->out) != 0)) return 1;
    return interrupted ? report_interruption(job) : 0;
}

/* Makes the directories and opens the store, then removes what --overwrite replaces. */
static int generate_begin(generate_job *job)
{
    const generate_options *o = &job->options;
    if (output_begin(&job->out) != 0 || benchmark_begin(&job->benchmark, &job->out) != 0) return 1;
    if (o->store && (output_begin(&job->tokens) != 0 ||
                     record_open_store(o->store, &o->run, &job->models, o->batch, &job->kept) != 0))
        return 1;
    return o->overwrite && output_clear(&job->out) != 0;
}

static void generate_print_summary(const generate_job *job)
{
    FILE *stream = job->out.is_stream ? stderr : stdout; /* the picture goes to the other stream */
    char path[8192];
    int digits = job->run_s < 9.95 ? 2 : 1;
    printable(job->out.is_stream ? "standard output" : job->out.path, path, sizeof path);
    if (job->made == 0) {
        fprintf(stream, "%s: %s", path, job->repeats ? "the run is finished, " : "");
        if (job->total == 1)
            fputs("the image was there already", stream);
        else
            fprintf(stream, "all %ld images were there already", job->total);
        if (job->repeats)
            fputs(job->total == 1 ? "; --overwrite makes it again" : "; --overwrite makes them again", stream);
        fputs(job->grid.rgb ? ", wrote grid.png\n" : "\n", stream); /* --resume, so PNG */
        return;
    }
    fprintf(stream, "wrote %s: %ld image%s of %dx%d in %.*f s", path, job->made, job->made > 1 ? "s" : "", job->width,
            job->height, digits, job->run_s);
    if (job->made > 1) fprintf(stream, " (%.2g s per image)", job->run_s / (double)job->made);
    if (job->existing) fprintf(stream, ", %ld were there already", job->existing);
    if (job->made > job->sampled) fprintf(stream, ", tokens of %ld from the store", job->made - job->sampled);
    if (job->options.seed_is_drawn) fprintf(stream, "\n--seed %" PRIu64, job->options.run.params.seed);
    fprintf(stream, "\n%s\n", mar_session_guarantee(job->session));
    stats_print_choice(&job->stats, stream);
}

static int generate(generate_job *job, progress *bar)
{
    if (generate_prepare(job, bar) != 0) return 1;
    interruption_catch(); /* from here on there are files */
    int status = generate_begin(job);
    const double began = tool_seconds();
    if (status == 0) status = generate_make_files(job, bar);
    job->run_s = tool_seconds() - began;
    if (status != 0) {
        output_abandon(&job->out);
        output_abandon(&job->tokens);
        return status;
    }
    if (job->options.json) status = record_print_json(job);
    if (!job->options.json && !job->options.quiet) generate_print_summary(job);
    return job->preview.has_failed ? 1 : status;
}

int cmd_generate(int argc, char **argv)
{
    generate_job job = {0};
    progress bar;
    int status = generate_parse(argc, argv, &job.options);
    if (status != OPTIONS_RUN) {
        like_free(&job.options);
        return status;
    }
    progress_start(&bar, job.options.quiet);
    job.files.quiet = job.options.quiet;
    job.files.needs_vae = 1;
    status = generate(&job, &bar);
    status = models_status(&job.files, status);
    mar_session_free(job.session);
    devices_free(&job.devices);
    models_free(&job.files);
    free(job.grid.rgb);
    free(job.map.rgb);
    free(job.map_cell);
    free(job.have);
    benchmark_free(&job.benchmark);
    output_free(&job.out);
    output_free(&job.tokens);
    store_close(&job.kept);
    acceptance_free(&job.accepted);
    preview_free(&job.preview);
    free(job.classes);
    free(job.labels);
    like_free(&job.options);
    return status;
}
