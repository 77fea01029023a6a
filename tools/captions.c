/* mar captions: encodes prompts, for --captions. */
#include "mar_files.h"
#include "tools/cli/command.h"

#include "mar_methods.h"
#include "tools/cli/file.h"
#include "tools/cli/options.h"
#include "tools/cli/progress.h"
#include "tools/cli/run_options.h"
#include "tools/cli/subcommands.h"
#include "tools/generate/models.h"
#include "tools/generate/prompt_encoder.h"
#include "tools/generate/prompts.h"
#include "weights/npz.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

typedef struct {
    const char *from, *out; /* file of prompts; file to write */
    int tokens;             /* positions of a prompt */
    int overwrite;          /* 1: replace an existing output */
    int quiet;              /* 1: print only errors */
    run_options run;        /* T5, cleaning, machine */
    operand operands[2];    /* the prompts; ends with a NULL name */
} captions_options;

static const mar_param rows[] = {
    {.group = "Options",
     OPTION_TEXT(captions_options, out, "FILE.npz"),
     .help =
         "file to write, completely or not at all\n"
         "A compressed .npz of NumPy's. features: float32 [prompts, positions, numbers], padded in front with 0. mask: "
         "uint8 [prompts, positions], 1 where a prompt's tokens are. negative, of models that encode prompts "
         "themselves: float32 "
         "[positions, numbers], the second context of guidance. prompts: uint8, the texts in UTF-8 with a NUL "
         "behind each: bytes(file[\"prompts\"]).decode().split(\"\\\\0\")[:-1] in Python."},
    {OPTION_INT(captions_options, tokens, 1, 512),
     .help =
         "positions of a prompt, as many as the image model takes\n"
         "LlamaGen's models take 120, demo-t2i takes 16. A model also takes features of more positions if no prompt "
         "has more tokens than it takes. Models that encode prompts themselves: without it as many as they take."},
    {0},
};

static const mar_param quiet_row = {OPTION_FLAG(captions_options, quiet),
                                    .help = "no progress, no warnings and no summary; errors only"};

/* Sets the defaults, and adds the options that set the fields. */
static void captions_set_up(captions_options *o, option_set *set)
{
    static const char *const of_run[] = {"t5", "clean", "negative", "positive"}, *const of_machine[] = {
                                                                                     "size", "dtype", "threads",
                                                                                     "backend", "device"};
    *o = (captions_options){.tokens = 120};
    run_options_init(&o->run);
    o->operands[0] = (operand){"PROMPTS", &o->from,
                               "a file of prompts, - for standard input: one a line, or CSV, TSV, JSON or JSONL with "
                               "prompt or caption, by the name's ending or the content",
                               NULL};
    *set = (option_set){
        .command = "captions",
        .about = "usage: mar captions PROMPTS --text DIR --out FILE.npz [OPTIONS]\n"
                 "\n"
                 "Encodes prompts with a T5, or for Harmon, NextStep-1, Lumina-mGPT, Anole and\n"
                 "Emu3 with the folder of the model, once for any number of runs: mar generate,\n"
                 "edit, eval, bench and fidelity take the file as --captions. A prompt that cannot\n"
                 "be encoded is left out with a warning, and the command ends with status 1.\n",
        .example = "example: mar captions prompts.txt --t5 flan-t5-xl --out prompts.npz\n",
        .operands = o->operands,
    };
    options_add_table(set, rows, o, 0);
    options_add(set, &option_overwrite, &o->overwrite, 0);
    for (int i = 0; i < 4; i++) options_add_under(set, "Options", run_option(of_run[i]), &o->run);
    for (int i = 0; i < 5; i++) options_add_under(set, "Options", run_option(of_machine[i]), &o->run.machine);
    options_add(set, &quiet_row, o, 0);
}

/* Encodes all prompts, and writes features and mask, uint8_t [prompts][tokens]. Sets *bad to the first prompt of a
 * batch with one that cannot be encoded. Returns 0, or 1; after an error it is printed and *bad is -1. */
static int write_encoded(prompt_encoder *e, const prompts *p, npz_writer *w, progress *bar, uint8_t *mask, int *bad)
{
    const int64_t shape[] = {p->count, e->tokens, e->dim};
    char why[NPZ_WHY_MAX];
    *bad = -1;
    if (npz_writer_begin(w, "features", NPZ_F32, 3, shape, why) != MAR_OK) return tool_error("%s", why);
    for (int i = 0; i < p->count; i += e->batch) {
        const int n = p->count - i < e->batch ? p->count - i : e->batch;
        const size_t positions = (size_t)n * (size_t)e->tokens;
        progress_note(bar, "encoding prompt %d of %d", i + 1, p->count);
        const mar_status status = prompt_encoder_run(e, p->text + i, n);
        progress_clear(bar);
        if (status == MAR_EARG) *bad = i;
        if (status != MAR_OK) return status == MAR_EARG ? 1 : tool_error("%s", prompt_encoder_error(e, status));
        if (npz_writer_put(w, e->features, positions * (size_t)e->dim * sizeof *e->features, why) != MAR_OK)
            return tool_error("%s", why);
        memcpy(mask + (size_t)i * (size_t)e->tokens, e->mask, positions);
    }
    if (npz_writer_end(w, why) != MAR_OK || npz_writer_add(w, "mask", NPZ_U8, 2, shape, mask, why) != MAR_OK)
        return tool_error("%s", why);
    return 0;
}

static int write_texts(const prompts *p, npz_writer *w)
{
    char why[NPZ_WHY_MAX];
    int64_t bytes = 0;
    for (int i = 0; i < p->count; i++) bytes += (int64_t)strlen(p->text[i]) + 1;
    mar_status status = npz_writer_begin(w, "prompts", NPZ_U8, 1, &bytes, why);
    for (int i = 0; i < p->count && status == MAR_OK; i++)
        status = npz_writer_put(w, p->text[i], strlen(p->text[i]) + 1, why);
    if (status == MAR_OK) status = npz_writer_end(w, why);
    return status == MAR_OK ? 0 : tool_error("%s", why);
}

/* Writes the family and the size that ids of a prompt depend on. */
static int write_made_for(const captions_options *o, const prompt_encoder *e, npz_writer *w)
{
    char why[NPZ_WHY_MAX], text[CAPTIONS_MADE_FOR];
    if (!e->is_decoder) return 0;
    captions_made_for(mar_text_get_config(e->text)->family, o->run.machine.image_size, text);
    const int64_t bytes = (int64_t)strlen(text);
    return npz_writer_add(w, "made_for", NPZ_U8, 1, &bytes, text, why) == MAR_OK ? 0 : tool_error("%s", why);
}

/* Writes the second context of guidance if the model has one. */
static int write_negative(const captions_options *o, prompt_encoder *e, npz_writer *w)
{
    char why[NPZ_WHY_MAX];
    captions set = {.tokens = e->tokens, .dim = e->dim};
    if (!e->is_decoder) return 0;
    int failed = prompt_encoder_negative(e, o->run.negative, &set);
    const int64_t shape[] = {set.negative.positions, e->dim};
    if (!failed && npz_writer_add(w, "negative", NPZ_F32, 2, shape, set.negative.features, why) != MAR_OK)
        failed = tool_error("%s", why);
    captions_free(&set);
    return failed;
}

/* Writes the file. The other results are those of write_encoded. */
static int try_file(const captions_options *o, prompt_encoder *e, const prompts *p, progress *bar, int *bad)
{
    *bad = -1;
    char why[NPZ_WHY_MAX];
    npz_writer *w;
    uint8_t *mask = malloc((size_t)p->count * (size_t)e->tokens);
    if (!mask) return tool_error("out of memory for %d prompts", p->count);
    int failed = npz_writer_open(o->out, 1, &w, why) != MAR_OK ? tool_error("%s", why) : 0;
    if (!failed && (write_encoded(e, p, w, bar, mask, bad) != 0 || write_texts(p, w) != 0 ||
                    write_negative(o, e, w) != 0 || write_made_for(o, e, w) != 0)) {
        npz_writer_discard(w);
        failed = 1;
    } else if (!failed && npz_writer_commit(w, why) != MAR_OK) {
        failed = tool_error("%s", why);
    }
    free(mask);
    return failed;
}

/* Writes the file; without the prompts that cannot be encoded, which are reported. */
static int captions_write_file(const captions_options *o, prompt_encoder *e, prompts *p, progress *bar)
{
    int bad, failed = try_file(o, e, p, bar, &bad);
    if (bad < 0) return failed;
    /* The file begins with the number of prompts: begin again once all bad ones are known. */
    if (prompt_encoder_drop_bad(e, p, bad, p->count - bad) != 0) return 1;
    failed = try_file(o, e, p, bar, &bad);
    return bad < 0 ? failed : tool_error("%s", mar_error(e->library));
}

static void captions_print_summary(const captions_options *o, const prompt_encoder *e, const prompts *p)
{
    struct stat st;
    if (o->quiet) return;
    printf("wrote %s: %d prompt%s of up to %d positions of %d numbers", o->out, p->count, p->count == 1 ? "" : "s",
           e->tokens, e->dim);
    if (stat(o->out, &st) == 0) printf(", %.1f MB", (double)st.st_size / 1e6);
    putchar('\n');
}

static int captions_run(captions_options *o, int gives_tokens, progress *bar)
{
    model_store store = {.quiet = o->quiet};
    prompt_encoder e = {0};
    mar_file *f = NULL;
    (void)mar_file_open(o->run.t5, MAR_WEIGHTS_AUTO, &f); /* loading says what is wrong */
    const int is_folder = f && mar_file_get_info(f)->folder;
    const int is_decoder = !f || (is_folder && mar_file_get_info(f)->prompts); /* or a tokenizer alone */
    prompts p = {.is_cleaned = o->run.clean == MAR_CLEAN_LLAMAGEN && !is_decoder};
    if (is_decoder && !gives_tokens) o->tokens = 0;
    int failed = prompts_read(o->from, &p);
    mar *library = failed ? NULL : models_open(&store, &o->run.machine, "dtype");
    failed = failed || !library ||
             prompt_encoder_open(&e, library, o->run.t5, is_folder ? f : NULL, o->tokens, 0, NULL, bar) != 0;
    if (!failed && o->run.gives_cleaning && e.is_decoder)
        failed = tool_error("--clean llamagen has no effect: %s takes prompts as they are, expected off", o->run.t5);
    if (!failed && o->run.negative && !e.is_decoder)
        failed = tool_error("--negative: has no effect: a T5 encodes no second context of guidance");
    if (!failed) {
        e.clean = (mar_clean)o->run.clean;
        e.positive = o->run.positive;
        e.quiet = o->quiet;
        failed = captions_write_file(o, &e, &p, bar);
        if (!failed) captions_print_summary(o, &e, &p);
    }
    prompt_encoder_close(&e);
    mar_file_close(f);
    models_free(&store);
    failed = failed || p.skipped > 0;
    prompts_free(&p);
    return failed;
}

int cmd_captions(int argc, char **argv)
{
    captions_options o;
    option_set set;
    progress bar;
    captions_set_up(&o, &set);
    const int status = options_read(&set, argc, argv);
    if (status != OPTIONS_RUN) return status;
    if (!o.run.t5)
        return tool_error("--text is missing, expected the folder of a T5, such as flan-t5-xl, or of Harmon, "
                          "NextStep-1, Lumina-mGPT, Anole or Emu3");
    if (!o.out) return tool_error("--out is missing, expected a file to write, such as prompts.npz");
    run_options_note(&o.run, &set);
    if (tool_can_write_as(o.out, ".npz") != 0 || tool_can_replace(o.out, o.overwrite) != 0 ||
        run_machine_done(&o.run.machine, &set) != 0)
        return 1;
    progress_start(&bar, o.quiet);
    return captions_run(&o, options_find(&set, "tokens")->given, &bar);
}
