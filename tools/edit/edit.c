/* mar edit: inpainting, outpainting and variations. A picture's tokens are kept where nothing is to change, and the
 * model makes the others. */
#include "tools/cli/command.h"

#include "mar_methods.h"
#include "tools/cli/interruption.h"
#include "tools/cli/options.h"
#include "tools/cli/progress.h"
#include "tools/cli/subcommands.h"
#include "tools/edit/picture.h"
#include "tools/generate/classes.h"
#include "tools/generate/models.h"
#include "tools/generate/record.h"
#include "tools/images/output.h"
#include "tools/images/source.h"
#include "base/printable.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { NUM_MAX = 10000, BATCH_DEFAULT = 16, QUALITY = 90, EARLY_SIDE = 2048 /* pixels */ };

typedef struct {
    run_options run;
    const char *image, *mask, *box, *offset, *classes, *out; /* as given; NULL: none */
    float keep;
    int paste; /* pixels in which the picture is pasted back; -1: it is not */
    int num, batch, overwrite, quiet;
} edit_options;

typedef struct {
    edit_options options;
    model_store files;
    run_models models;
    mar_session *session;
    int label;
    int x, y;   /* place of the picture; -1: the middle */
    int box[4]; /* that of --box */
    image picture, mask, canvas;
    char picture_id[RECORD_ID], mask_id[RECORD_ID];
    int count;            /* tokens */
    float *tokens;        /* [count][token_dim] of the canvas */
    uint8_t *known;       /* [count] 1: kept in every image */
    uint8_t *kept;        /* [count] 1: kept in the image of edit_choose_kept */
    float *features;      /* [caption_tokens][caption_dim] of the prompt; NULL: the model has classes */
    uint8_t *prompt_mask; /* [caption_tokens]; NULL: the model has classes */
    uint8_t *rgb;         /* [height][width][3] of a finished image */
    uint8_t *weight;      /* [height][width] of the pixels that are pasted; NULL: none */
    output out;
    int made;
} edit_job;

static const mar_param rows[] = {
    {.group = "Picture",
     OPTION_TEXT(edit_options, image, "FILE"),
     .help = "the picture to change: PNG, JPEG, or WebP in a build with libwebp\n"
             "It has the model's size, or less: then the model makes what surrounds it."},
    {OPTION_TEXT(edit_options, mask, "FILE"),
     .help = "where to change it: white is made anew, black is kept\n"
             "A picture of the size of --image, or of the model's. Tokens are cells of pixels: a cell with any white "
             "pixel, of 128 or more in a channel, is made anew as a whole. Transparency of either file is not used, "
             "with a warning."},
    {OPTION_TEXT(edit_options, box, "X,Y,WIDTH,HEIGHT"),
     .help = "in place of --mask: make this box of pixels anew\n"
             "X from the left and Y from the top of the result. As with a mask, cells that it touches are made anew."},
    {OPTION_INT(edit_options, paste, 0, 512),
     .help =
         "paste the picture back outside, in N pixels from there on\n"
         "Outside the mask or box the result then has the picture's own pixels: N pixels from it all of them, nearer "
         "to it the more of the new ones, with 0 none. Without it kept tokens are decoded, which changes pixels "
         "slightly. "
         "Beside a smaller picture nothing is pasted."},
    {OPTION_TEXT(edit_options, offset, "X,Y"),
     .help = "place of a smaller picture; default the middle\n"
             "X pixels from the left and Y from the top of the result. The tokens that it covers are kept, the "
             "others are made: outpainting."},
    {.name = OPTION("keep"),
     .offset = offsetof(edit_options, keep),
     .type = MAR_TYPE_FLOAT,
     .value = 1,
     .min = 0,
     .max = 1,
     .help = "fraction of the picture's tokens to keep: variations\n"
             "They are chosen at random, by --seed and the number of the image."},
    {.name = OPTION("class"),
     .offset = offsetof(edit_options, classes),
     .type = MAR_TYPE_TEXT,
     .argument = "CLASS",
     .help =
         "class of the result: a number or a name, as mar generate takes it\n"
         "A model of prompts, such as Harmon, takes --prompt in its place; with --captions of several prompts it is "
         "the number of one."},
    {OPTION_INT(edit_options, num, 1, NUM_MAX), .value = 1, .help = "images to make, numbered from 0"},
    {OPTION_TEXT(edit_options, out, "WHERE"),
     .help = "FILE.png, .jpg or .webp, - for standard output, or a directory\n"
             "A file is one image. Several need a directory, for 000000.png, 000001.png and so on."},
    {OPTION_FLAG(edit_options, overwrite), .help = "with a directory: replace the images of another run\n"
                                                   "Without it a directory that has any is refused."},
    {0},
};

static const mar_param other_rows[] = {
    {.group = "Machine",
     OPTION_INT(edit_options, batch, 1, 1024),
     .value = BATCH_DEFAULT,
     .help = "images to make at a time; fewer need less memory"},
    {.group = "Messages", OPTION_FLAG(edit_options, quiet), .help = "no progress and no summary; errors only"},
    {0},
};

static const char *const common[] = {"image", "mask", "box",   "paste", "offset",   "keep", "class", "prompt",
                                     "num",   "out",  "model", "vae",   "num_iter", "cfg",  "seed",  NULL};

/* --- options ------------------------------------------------------------------------------------------------------ */

static void edit_set_up(edit_options *o, option_set *set)
{
    *set = (option_set){
        .command = "edit",
        .about = "usage: mar edit --image FILE [--mask FILE | --box X,Y,WIDTH,HEIGHT]\n"
                 "                --class CLASS | --prompt TEXT [OPTIONS]\n"
                 "\n"
                 "Makes a part of a picture anew: inpainting with --mask or --box, outpainting with a\n"
                 "smaller picture, variations with --keep. Tokens that are kept come back bit for bit;\n"
                 "their pixels are decoded from them, or the picture's own with --paste. SphereAR and\n"
                 "NextStep-1 make tokens row by row: new ones fit what is kept above them and to their\n"
                 "left, not what follows.\n",
        .common = common,
        .word = "image",
        .example = "example: mar edit --model checkpoint-last.pth --vae kl16.ckpt --image dog.png \\\n"
                   "             --mask mask.png --class 207 --out edited.png\n",
    };
    *o = (edit_options){.out = "mar.png", .keep = 1, .paste = -1, .num = 1, .batch = BATCH_DEFAULT};
    run_options_init(&o->run);
    options_add_table(set, rows, o, 0);
    run_options_add(&o->run, set);
    options_add_table(set, other_rows, o, 0);
}

/* Reads "X,Y". */
static int read_offset(edit_job *job)
{
    const char *text = job->options.offset;
    int end = 0;
    job->x = job->y = -1;
    if (!text) return 0;
    if (sscanf(text, "%6d,%6d%n", &job->x, &job->y, &end) == 2 && !text[end] && job->x >= 0 && job->y >= 0) return 0;
    return tool_error("--offset %s: expected X,Y, two numbers of pixels such as 64,0", text);
}

/* Checks that the file is a picture, before the model is read. One beyond EARLY_SIDE is decoded when the model's size,
 * which may refuse it, is known. */
static int check_picture(const char *path, char *id)
{
    image whole = {.rgb = NULL};
    int width, height;
    if (image_read_size(path, &width, &height) != 0) return 1;
    if (width <= EARLY_SIDE && height <= EARLY_SIDE && image_read_within(path, width, height, "", &whole, NULL) != 0)
        return 1;
    free(whole.rgb);
    return record_identify_file(path, id);
}

static int check_pictures(edit_job *job)
{
    const edit_options *o = &job->options;
    if (!o->image) return tool_error("--image is missing, expected the picture to change");
    if (o->box && edit_read_box(o->box, job->box) != 0) return 1;
    if (o->mask && o->box) return tool_error("--box %s: has no effect beside --mask, expected one of them", o->box);
    if (o->paste >= 0 && o->keep < 1)
        return tool_error("--paste %d: has no place beside --keep, whose tokens are made anew everywhere", o->paste);
    if (o->num > 1 && job->out.is_file)
        return tool_error("--out %s: is one picture, expected a directory for --num %d", o->out, o->num);
    return check_picture(o->image, job->picture_id) != 0 || (o->mask && check_picture(o->mask, job->mask_id) != 0);
}

/* Returns 1 with the error printed: there are `count` classes or prompts, and one is needed. */
static int refuse_several(const edit_job *job, int count)
{
    const edit_options *o = &job->options;
    if (o->classes) return tool_error("--class %s: is %d classes, expected one", o->classes, count);
    if (o->run.captions)
        return tool_error("--captions %s: has %d captions, expected the number of one as --class", o->run.captions,
                          count);
    return tool_error("--%s: %d prompts, expected one", o->run.prompts ? "prompts" : "prompt", count);
}

/* Sets job->label. */
static int choose_class(edit_job *job)
{
    int *labels, count;
    if (models_refuse_classes(&job->options.run, job->options.classes) != 0) return 1;
    if (classes_choose(job->options.classes, &job->models.classes, job->models.captions != NULL, &labels, &count) != 0)
        return 1;
    job->label = labels[0];
    free(labels);
    return count == 1 ? 0 : refuse_several(job, count);
}

/* Writes the caption of job->label to job->features and job->prompt_mask. */
static int place_prompt(edit_job *job)
{
    const captions *c = job->models.captions;
    if (!c) return 0;
    job->features = malloc((size_t)c->tokens * (size_t)c->dim * sizeof *job->features);
    job->prompt_mask = malloc((size_t)c->tokens);
    if (!job->features || !job->prompt_mask) return tool_error("out of memory for the prompt");
    captions_place(c, job->label, job->features, job->prompt_mask);
    return 0;
}

/* --- the tokens to keep ------------------------------------------------------------------------------------------- */

static int edit_encode(edit_job *job)
{
    mar_pixels pixels;
    mar_pixels_init(&pixels, sizeof pixels);
    pixels.data = job->canvas.rgb;
    pixels.capacity = (size_t)job->canvas.width * (size_t)job->canvas.height * 3;
    if (!mar_vae_get_config(job->models.vae)->encoder)
        return tool_error("%s: has no image encoder, which makes tokens of a picture: expected a file with one",
                          job->options.run.vae);
    if (mar_session_encode(job->session, &pixels, job->tokens) == MAR_OK) return 0;
    return tool_error("%s", mar_session_error(job->session));
}

/* Reads the picture or the mask, of the model's size at most. */
static int read_picture(const edit_job *job, const char *path, int width, int height, image *out)
{
    char shown[8192];
    int has_clear;
    if (image_read_within(path, width, height, "the model's size", out, &has_clear) != 0) return 1;
    if (has_clear && !job->options.quiet)
        fprintf(stderr,
                "mar: warning: %s: its transparency is not used, white in --mask says where a picture is made anew\n",
                printable(path, shown, sizeof shown));
    return 0;
}

/* Finds the tokens to keep, and encodes the picture. */
static int prepare_tokens(edit_job *job)
{
    const edit_options *o = &job->options;
    const mar_model_config *c = mar_model_get_config(job->models.model);
    int width, height;
    mar_session_image_size(job->session, &width, &height);
    job->count = c->seq_len;
    job->tokens = malloc((size_t)c->seq_len * (size_t)c->token_dim * sizeof *job->tokens);
    job->known = malloc((size_t)c->seq_len);
    job->kept = malloc((size_t)c->seq_len);
    job->rgb = malloc((size_t)width * (size_t)height * 3);
    if (!job->tokens || !job->known || !job->kept || !job->rgb) return tool_error("out of memory for the tokens");
    if (read_picture(job, o->image, width, height, &job->picture) != 0 ||
        (o->mask && read_picture(job, o->mask, width, height, &job->mask) != 0))
        return 1;
    if (edit_place(o->image, &job->picture, job->x, job->y, width, height, c->grid_width, &job->canvas, job->known) !=
        0)
        return 1;
    if (o->box && edit_box(job->box, width, height, &job->mask) != 0) return 1;
    if (job->mask.rgb && edit_mask(o->box ? o->box : o->mask, &job->mask, &job->picture, job->x, job->y, width, height,
                                   c->grid_width, job->known) != 0)
        return 1;
    if (o->paste >= 0) {
        job->weight = malloc((size_t)width * (size_t)height);
        if (!job->weight) return tool_error("out of memory for a mask of %dx%d", width, height);
        if (edit_paste_weights(job->mask.rgb ? &job->mask : NULL, &job->picture, job->x, job->y, width, height,
                               c->grid_width, o->paste, job->weight) != 0)
            return 1;
    }
    if (edit_count(job->known, job->count) == job->count && o->keep == 1)
        return tool_error(o->mask
                              ? "%s: has no white pixel, expected white where the picture is to change"
                              : "--mask is missing: %s covers all tokens, expected --mask, --box, a smaller picture, "
                                "or --keep",
                          o->mask ? o->mask : o->image);
    return edit_encode(job);
}

/* --- images ------------------------------------------------------------------------------------------------------- */

/* Sets job->kept: the tokens that an image keeps. */
static void edit_choose_kept(edit_job *job, uint64_t seed, int number)
{
    memcpy(job->kept, job->known, (size_t)job->count);
    if (job->options.keep < 1) edit_keep((double)job->options.keep, seed, (uint64_t)number, job->count, job->kept);
}

/* Writes the guarantee of an image, whose kept tokens are known, to text. Returns text. */
static const char *edit_guarantee_of(edit_job *job, int number, char *text, size_t size)
{
    mar_request request;
    mar_request_init(job->session, &request, sizeof request);
    edit_choose_kept(job, request.seed, number);
    request.known = job->kept;
    return mar_session_request_guarantee(job->session, &request, text, size);
}

static int edit_write_image(edit_job *job, int number)
{
    const edit_options *o = &job->options;
    char guarantee[1024];
    record_texts texts = {0};
    record_texts_add(&texts, "Software", "libmar %s", mar_version());
    record_texts_add_image(&texts, &job->models, job->label, number);
    record_texts_add(&texts, "edited", "%s: %s", tool_base_name(o->image), job->picture_id);
    if (o->mask) record_texts_add(&texts, "mask", "%s: %s", tool_base_name(o->mask), job->mask_id);
    if (o->box) record_texts_add(&texts, "box", "%s", o->box);
    if (o->paste >= 0) record_texts_add(&texts, "paste", "%d", o->paste);
    if (o->offset) record_texts_add(&texts, "offset", "%s", o->offset);
    if (o->keep < 1) record_texts_add(&texts, "keep", "%.9g", (double)o->keep);
    record_texts_add_run(&texts, &o->run, &job->models);
    record_texts_add(&texts, "guarantee", "%s", edit_guarantee_of(job, number, guarantee, sizeof guarantee));
    if (record_texts_end(&texts, "the text in the picture") != 0) return 1;
    char *path = output_image_path(&job->out, number);
    const image picture = {job->canvas.width, job->canvas.height, job->rgb};
    const image_store store = job->out.is_stream ? IMAGE_STREAM : job->out.directory ? IMAGE_UNSYNCED : IMAGE_SYNCED;
    const int failed =
        !path || image_write(path, &picture, job->out.format, QUALITY, texts.texts, texts.count, store) != 0;
    free(path);
    record_texts_free(&texts);
    return failed;
}

static int edit_submit(edit_job *job, int number, uint64_t *id)
{
    mar_request request;
    mar_request_init(job->session, &request, sizeof request);
    edit_choose_kept(job, request.seed, number);
    if (!job->models.captions) request.label = job->label;
    request.features = job->features;
    request.mask = job->prompt_mask;
    request.image = (uint64_t)number;
    request.tokens = job->tokens;
    request.known = job->kept;
    return mar_session_submit(job->session, &request, id) == MAR_OK ? 0
                                                                    : tool_error("%s", mar_session_error(job->session));
}

/* Takes the finished images and writes them. Returns 0, 1 with the error printed, or 2 after an interruption. */
static int edit_take(edit_job *job, uint64_t first)
{
    mar_pixels pixels;
    mar_pixels_init(&pixels, sizeof pixels);
    pixels.data = job->rgb;
    pixels.capacity = (size_t)job->canvas.width * (size_t)job->canvas.height * 3;
    for (uint64_t id; (id = mar_session_next_finished(job->session)) != 0; job->made++) {
        const mar_status status = mar_session_take(job->session, id, NULL, &pixels);
        if (status == MAR_ECANCELLED && interruption_came()) return 2;
        if (status != MAR_OK) return tool_error("%s", mar_session_error(job->session));
        if (job->weight) edit_paste(&job->canvas, job->weight, job->rgb);
        if (edit_write_image(job, (int)(id - first)) != 0) return 1;
    }
    return 0;
}

/* Returns 0, 1 with the error printed, or 2 after an interruption. */
static int edit_make_images(edit_job *job, progress *bar)
{
    const edit_options *o = &job->options;
    uint64_t first = 0;
    for (int i = 0; i < o->num; i++) {
        uint64_t id;
        if (edit_submit(job, i, &id) != 0) return 1;
        if (i == 0) first = id;
    }
    progress_begin(bar);
    const int steps = o->run.used.num_iter;
    for (long step = 0; mar_session_pending(job->session); step++) {
        const mar_status status = mar_session_step(job->session);
        if (interruption_came()) return 2;
        progress_clear(bar);
        if (status != MAR_OK) return tool_error("%s", mar_session_error(job->session));
        const int taken = edit_take(job, first);
        if (taken != 0) return taken;
        const double all = (double)steps * ((o->num + o->batch - 1) / o->batch);
        progress_update(bar, (double)step / (all > step ? all : (double)step + 1), job->made, o->num);
    }
    progress_clear(bar);
    return 0;
}

static int edit_make_files(edit_job *job, progress *bar)
{
    interruption_catch(); /* from here on there are files */
    interruption_cancels(0, job->session);
    int status = output_begin(&job->out) != 0 || (job->options.overwrite && output_clear(&job->out) != 0);
    if (status == 0) status = edit_make_images(job, bar);
    interruption_cancels(0, NULL);
    if (status == 0) status = output_sync(&job->out);
    if (status != 0) output_abandon(&job->out);
    if (status != 2) return status;
    return interruption_end("%d of %d images were made", job->made, job->options.num);
}

static void edit_print_summary(edit_job *job, double seconds)
{
    char path[8192], guarantee[1024];
    const int kept = edit_count(job->known, job->count);
    printable(job->out.is_stream ? "standard output" : job->out.path, path, sizeof path);
    fprintf(job->out.is_stream ? stderr : stdout, "wrote %s: %d image%s of %dx%d in %.2f s, %d of %d tokens kept\n%s\n",
            path, job->made, job->made > 1 ? "s" : "", job->canvas.width, job->canvas.height, seconds,
            (int)((double)job->options.keep * kept + 0.5), job->count,
            edit_guarantee_of(job, 0, guarantee, sizeof guarantee));
}

static int edit(edit_job *job, progress *bar)
{
    edit_options *o = &job->options;
    if (output_check(&job->out, o->out, IMAGE_PNG) != 0 || read_offset(job) != 0 || check_pictures(job) != 0) return 1;
    if (!job->out.is_file && !o->overwrite && output_check_free(&job->out, 0) != 0) return 1;
    job->files.quiet = o->quiet;
    job->files.needs_vae = 1;
    job->files.encoder = MODELS_ENCODER_IF_THERE;
    if (models_load(&job->files, &o->run, bar, &job->models) != 0) return 1;
    if (record_identify(&o->run, &job->models) != 0) return 1;
    if (mar_model_get_config(job->models.model)->vocabulary)
        return tool_error("%s: makes tokens from the upper left on, and can only continue a picture: expected a model "
                          "of continuous tokens",
                          o->run.model);
    if (choose_class(job) != 0 || place_prompt(job) != 0) return 1;
    if (o->batch > o->num) o->batch = o->num;
    if (models_session(&job->models, &o->run, o->batch, &job->session) != 0 || prepare_tokens(job) != 0) return 1;
    const double began = tool_seconds();
    const int status = edit_make_files(job, bar);
    if (status == 0 && !o->quiet) edit_print_summary(job, tool_seconds() - began);
    return status;
}

int cmd_edit(int argc, char **argv)
{
    edit_job job = {0};
    option_set set;
    progress bar;
    edit_set_up(&job.options, &set);
    int status = options_read(&set, argc, argv);
    if (status == OPTIONS_RUN && run_options_done(&job.options.run, &set) != 0) return 1;
    if (status != OPTIONS_RUN) return status;
    progress_start(&bar, job.options.quiet);
    status = edit(&job, &bar);
    mar_session_free(job.session);
    models_free(&job.files);
    image *pictures[] = {&job.picture, &job.mask, &job.canvas};
    for (int i = 0; i < 3; i++) free(pictures[i]->rgb);
    free(job.tokens);
    free(job.known);
    free(job.kept);
    free(job.features);
    free(job.prompt_mask);
    free(job.rgb);
    free(job.weight);
    output_free(&job.out);
    return status;
}
