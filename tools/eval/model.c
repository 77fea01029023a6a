/* mar eval of a model: from options to a result in a run directory. */
#include "eval/classifier.h"

#include "mar_eval.h"
#include "eval/reference.h"
#include "tools/generate/classes.h"
#include "tools/cli/command.h"
#include "tools/eval/job.h"
#include "tools/eval/report.h"
#include "tools/cli/interruption.h"
#include "tools/cli/text.h"

#include <cjson/cJSON.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
    SHARDS = 64,       /* maximum by default: enough to deal out, few enough to sum in seconds */
    DAMAGED_AGAIN = 3, /* rounds in which damaged pieces are made again */
    LISTED = 10        /* missing shards, or rows of them, in a message */
};

/* --- preparation -------------------------------------------------------------------------------------------------- */

/* Chooses the GPUs: several processes on a machine share its GPUs. */
static int choose_eval_device(eval_job *job)
{
    eval_options *o = job->options;
    const option *device = o->given ? options_find(o->given, "device") : NULL;
    const int gpus = job->process.local_count > 1 ? mar_gpu_count() : 0;
    if (gpus > 1 && o->devices)
        return tool_error(
            "--devices: %d processes on this machine share its GPUs, expected one process or no --devices",
            job->process.local_count);
    if (gpus > 1 && o->run.machine.backend != MAR_BACKEND_CPU && !(device && device->given))
        o->run.machine.device = job->process.local_index % gpus;
    return devices_read(o->devices, &o->run, &job->devices);
}

/* Loads the network, and takes the sizes of its output. */
static int load_eval_network(eval_job *job)
{
    const eval_options *o = job->options;
    eval_layout *l = &job->layout;
    if (judge_open(&o->judge, &job->files, &o->run.machine, o->batch, job->bar, &job->judge) != 0) return 1;
    const mar_features_config *network = mar_features_get_config(job->judge.network);
    if (job->judge.vgg) l->vgg = mar_features_get_config(job->judge.vgg)->features;
    if (!network) return 0;
    l->features = network->features;
    l->classes = network->classes;
    l->spatial = network->spatial;
    return 0;
}

/* Gets the texts of the captions: those of the run, of their file, or for captions without any of --prompts. */
static int get_texts(eval_job *job)
{
    const eval_options *o = job->options;
    const captions *c = job->models.captions;
    if (o->scores.prompts && scores_read_prompts(&o->scores, &job->prompts) != 0) return 1;
    if (o->scores.prompts && job->prompts.count != c->count)
        return tool_error("--prompts %s: has %d prompts, expected %d, those of the model's captions", o->scores.prompts,
                          job->prompts.count, c->count);
    job->texts = calloc((size_t)c->count, sizeof *job->texts);
    if (!job->texts) return tool_error("out of memory for %d prompts", c->count);
    for (int i = 0; i < c->count; i++) {
        job->texts[i] = o->scores.prompts ? job->prompts.text[i] : c->list[i].prompt;
        if (!job->texts[i])
            return tool_error("--prompts is missing: %s has no prompts, expected those of its captions for %s",
                              o->run.captions, scores_option(&o->scores));
    }
    return 0;
}

/* Loads the models of the scores, and the prompts of the captions. */
static int load_scorer(eval_job *job)
{
    const eval_options *o = job->options;
    const char *asked = scores_option(&o->scores);
    if (!asked) return 0;
    if (!job->models.captions)
        return tool_error("%s: %s makes images of classes, expected a text-to-image model", asked, o->run.model);
    if (get_texts(job) != 0) return 1;
    const int failed = prompt_scorer_open(&o->scores, &job->files, &o->run.machine, o->batch, job->bar, job->texts,
                                          job->models.captions->count, &job->judge.scorer);
    job->layout.columns = job->judge.scorer.columns;
    return failed;
}

static int load_eval_models(eval_job *job)
{
    eval_options *o = job->options;
    if (models_load(&job->files, &o->run, job->bar, &job->models) != 0) return 1;
    class_choices choices = job->models.classes;
    choices.no_none = "mar eval judges images of classes";
    if (models_refuse_classes(&o->run, o->class) != 0) return 1;
    if (classes_choose(o->class, &choices, 1, &job->classes, &job->class_count) != 0) return 1;
    if (o->class_sampling == EVAL_BALANCED && job->class_count > o->num_images)
        return tool_error("--num_images %d: expected one of each of %d classes at least, or --class_sampling random",
                          o->num_images, job->class_count);
    if (eval_settings_take_costs(job) != 0 || models_session(&job->models, &o->run, o->batch, &job->session) != 0 ||
        devices_load(&job->files, &o->run, &job->models, o->num_images, o->batch, job->bar, &job->devices) != 0 ||
        load_eval_network(job) != 0 || load_scorer(job) != 0)
        return 1;
    progress_note(job->bar, "hashing the model's files");
    const int failed = record_identify(&o->run, &job->models);
    progress_clear(job->bar);
    return failed;
}

/* Finds whether the reference has images or features, for precision and recall. Checks what can be checked early. */
static int look_at_reference(eval_job *job)
{
    const eval_options *o = job->options;
    char why[512];
    eval_reference reference;
    job->layout.keeps_features = o->precision_recall;
    if (!o->stats) return 0;
    if (judge_is_directory(o->stats)) {
        job->layout.keeps_features = 1;
        return 0;
    }
    if (eval_reference_load(o->stats, &reference, why, sizeof why) != MAR_OK) return tool_error("%s", why);
    const int numbers = job->judge.network ? mar_features_get_config(job->judge.network)->features : 0;
    if ((reference.feature_count > 0 && !o->judge.vgg) || reference.pictures) job->layout.keeps_features = 1;
    const int dim = reference.dim;
    eval_reference_free(&reference);
    if (dim && numbers && dim != numbers)
        return tool_error("--stats %s: has statistics of %d features, expected %d, those of %s", o->stats, dim, numbers,
                          mar_features_get_config(job->judge.network)->name);
    return 0;
}

static void set_layout(eval_job *job)
{
    const eval_options *o = job->options;
    eval_layout *l = &job->layout;
    l->images = o->num_images;
    l->batch = o->batch;
    l->shard_images = o->shard_images;
    mar_session_image_size(job->session, &l->width, &l->height);
    l->samples = eval_sample_count(o->num_images, EVAL_SHEET_MAX);
    const int steps = run_verifies_drafts(&o->run) ? o->run.used.num_iter : 0;
    l->steps = steps < EVAL_CURVE_MAX ? steps : EVAL_CURVE_MAX;
    job->seed = o->run.params.seed;
    job->is_random = o->class_sampling == EVAL_RANDOM;
}

static void find_facts(eval_job *job)
{
    const run_options *run = &job->options->run;
    const mar_model_config *model = mar_model_get_config(job->models.model);
    eval_facts *f = &job->facts;
    snprintf(f->published, sizeof f->published, "%s", eval_published_model(model));
    snprintf(f->guarantee, sizeof f->guarantee, "%s", mar_session_guarantee(job->session));
    run_options_accelerators(run, f->accelerators, sizeof f->accelerators);
    f->classes = job->models.classes.count;
    f->demo = judge_is_demo(&job->options->judge);
}

static const char *store_directory(const eval_job *job)
{
    return job->options->store ? job->options->store : job->options->out;
}

static int allocate_labels(eval_job *job)
{
    job->labels = malloc((size_t)job->layout.batch * sizeof *job->labels);
    job->written = calloc((size_t)job->layout.images, 1);
    return job->labels && job->written ? 0 : tool_error("out of memory for %d labels", job->layout.batch);
}

static int check_digit_size(const eval_job *job)
{
    const eval_layout *l = &job->layout;
    if (!job->facts.demo || (l->width == EVAL_DIGIT_SIDE && l->height == EVAL_DIGIT_SIDE)) return 0;
    return tool_error("--features demo: images of %dx%d, expected %dx%d, the demo's digits", l->width, l->height,
                      EVAL_DIGIT_SIDE, EVAL_DIGIT_SIDE);
}

/* Finds all errors that can be found before anything is written. */
static int prepare_eval(eval_job *job)
{
    eval_options *o = job->options;
    if (classes_check_files(o->class) != 0 || run_directory_check(o->out, &job->directory) != 0 ||
        record_check_store(o->store, &job->store_directory) != 0)
        return 1;
    if (eval_settings_check_place(job) != 0 || launch_find(o->shard, &job->process) != 0) return 1;
    if (job->process.kind != LAUNCH_ALONE && job->process.index > 0) job->bar->shown = 0;
    if (o->batch > o->num_images) o->batch = o->num_images;
    if (o->shard_images == 0) o->shard_images = (o->num_images + SHARDS - 1) / SHARDS;
    o->shard_images = (o->shard_images + o->batch - 1) / o->batch * o->batch;
    if (choose_eval_device(job) != 0 || load_eval_models(job) != 0 || look_at_reference(job) != 0) return 1;
    set_layout(job);
    find_facts(job);
    return check_digit_size(job) || allocate_labels(job) || eval_settings_make(job);
}

/* Checks the file of --merge against the hash in the settings. */
static int check_same_file(const eval_job *job, const char *name, const char *path)
{
    char key[32], id[RECORD_ID];
    const char *was = eval_setting(job, name);
    if (!path && *was)
        return tool_error("%s: was begun with --%s %s, expected it for --merge, too", job->options->out, name, was);
    if (path && strcmp(tool_base_name(path), was) != 0)
        return tool_error("%s: was begun with %s--%s%s%s, this is --%s %s", job->options->out, *was ? "" : "no ", name,
                          *was ? " " : "", was, name, path);
    if (!path) return 0;
    snprintf(key, sizeof key, "%s_id", name);
    was = eval_setting(job, key);
    if (judge_identify(path, id) != 0) return 1;
    return strcmp(id, was) == 0
               ? 0
               : tool_error("--%s %s: is not what the run was begun with (%s, then %s)", name, path, id, was);
}

/* Loads the network for --merge, if the reference is images, or for precision and recall. */
static int prepare_merge(eval_job *job)
{
    eval_options *o = job->options;
    char path[RUN_PATH];
    job->directory.out.path = o->out;
    if (access(run_path(&job->directory, "settings.json", path), F_OK) != 0)
        return tool_error("%s: cannot read: %s; expected a run directory for --merge", path, strerror(errno));
    if (run_directory_check(o->out, &job->directory) != 0 || eval_settings_take(job, o->given) != 0) return 1;
    const int none = strcmp(eval_setting(job, "features"), "none") == 0;
    if (none) o->judge.features = "none";
    if ((!job->facts.demo && !none) != (o->judge.inception != NULL))
        return tool_error("%s: was begun with --features %s, expected it%s for --merge, too", o->out,
                          eval_setting(job, "features"), job->facts.demo ? "" : " and --inception");
    o->batch = job->layout.batch;
    o->save_images = strcmp(eval_setting(job, "save_images"), "on") == 0;
    o->save_npz = strcmp(eval_setting(job, "save_npz"), "on") == 0;
    o->judge.dtype =
        strcmp(eval_setting(job, "features_dtype"), judge_dtypes[JUDGE_BF16]) == 0 ? JUDGE_BF16 : JUDGE_F32;
    o->judge.resize = *eval_setting(job, "resize") ? JUDGE_CLEAN : JUDGE_TF1;
    if (check_same_file(job, "inception", o->judge.inception) != 0 || check_same_file(job, "vgg", o->judge.vgg) != 0 ||
        check_same_file(job, "stats", o->stats) != 0)
        return 1;
    return allocate_labels(job) || load_eval_network(job);
}

/* --- the run -------------------------------------------------------------------------------------------- */

static int open_eval_store(eval_job *job)
{
    const char *path = store_directory(job);
    if (job->options->store && output_begin(&job->store_directory) != 0) return 1;
    if (record_open_store(path, &job->options->run, &job->models, job->layout.batch, &job->store) != 0) return 1;
    snprintf(job->facts.images, sizeof job->facts.images, "%016" PRIx64, job->store.hash);
    return 0;
}

/* Agrees on the settings: the first process writes them, the others compare theirs. Then opens the store. */
static int agree_on_settings(eval_job *job)
{
    int is_new = 0;
    const lock_status lock = run_lock_wait(&job->directory, RUN_LOCK_SETTINGS);
    if (lock == LOCK_FAILED) return 1;
    if (lock == LOCK_BUSY) return interruption_status();
    const int failed =
        eval_settings_agree(job, &is_new) || open_eval_store(job) || (is_new && eval_settings_write(job) != 0);
    run_unlock(&job->directory, RUN_LOCK_SETTINGS);
    return failed;
}

/* Writes the missing shards, "3, 7-9", as far as there is room. Returns text. */
static const char *list_missing(eval_job *job, char *text, size_t size)
{
    const int count = eval_shard_count(&job->layout);
    text[0] = '\0';
    for (int s = 0, listed = 0; s < count; s++) {
        int end = s;
        while (end < count && eval_is_missing_shard(job, end)) end++;
        if (end == s) continue;
        if (++listed > LISTED) {
            text_append(text, size, ", ...");
            break;
        }
        text_append(text, size, end - s > 1 ? "%s%d-%d" : "%s%d", *text ? ", " : "", s, end - 1);
        s = end;
    }
    return text;
}

/* Reports the shards of other processes that are missing, after --shard. */
static void report_missing(eval_job *job)
{
    char text[256];
    const int count = eval_shard_count(&job->layout), missing = eval_missing_shards(job);
    if (job->options->quiet) return;
    fprintf(
        stderr,
        "mar: %s: %d of %d shards are there; %d more (%s) are for the other processes of %s; the last one adds up\n",
        job->options->out, count - missing, count, missing, list_missing(job, text, sizeof text), job->process.source);
}

/* Sums unless another process has, or does. Each rank waits for the result, so that another continues if the summing
 * one dies; the first prints it. Returns as eval_merge. *done is 1 if *r is set and to be printed. Adds to *rounds if
 * this process has found damage. */
static int try_merge(eval_job *job, eval_result *r, int *done, int *rounds)
{
    char path[RUN_PATH];
    int status = 0;
    const int waits = job->process.kind == LAUNCH_MPI;
    const lock_status lock =
        waits ? run_lock_wait(&job->directory, RUN_LOCK_MERGE) : run_lock(&job->directory, RUN_LOCK_MERGE);
    if (lock == LOCK_FAILED) return 1;
    if (lock == LOCK_BUSY) return waits ? interruption_status() : 0;
    if (access(run_path(&job->directory, "result.json", path), F_OK) == 0) {
        status = eval_result_read(path, r);
        if (status == 0 && job->made == 0 && !job->options->quiet && (!waits || job->process.index == 0))
            fprintf(stderr, "mar: %s: the run is finished, these are its numbers\n", job->options->out);
    } else if (eval_missing_shards(job) > 0) { /* what another one has found to be damaged */
        status = EVAL_MERGE_AGAIN;
    } else {
        status = eval_merge(job, r);
        *rounds += status == EVAL_MERGE_AGAIN;
    }
    *done = status == 0 && (job->process.kind != LAUNCH_MPI || job->process.index == 0);
    run_unlock(&job->directory, RUN_LOCK_MERGE);
    return status;
}

/* Makes shards until all exist, and sums them. */
static int make_and_merge(eval_job *job, eval_result *r, int *done)
{
    for (int rounds = 0; rounds <= DAMAGED_AGAIN;) {
        int status = eval_make_shards(job);
        if (status != 0) return status;
        if (eval_missing_shards(job) > 0) {
            if (job->process.kind != LAUNCH_SHARD) continue; /* another run of the store has found damage */
            report_missing(job);
            return 0;
        }
        status = try_merge(job, r, done, &rounds);
        if (status != EVAL_MERGE_AGAIN) return status;
        if (interruption_came()) return interruption_status();
    }
    return tool_error("%s: pieces are damaged again and again, expected a disk that keeps them", job->options->out);
}

static int merge_only(eval_job *job, eval_result *r, int *done)
{
    char text[256];
    const int count = eval_shard_count(&job->layout), missing = eval_missing_shards(job);
    if (missing > 0)
        return tool_error("%s: %d of %d shards are missing (%s), expected all of them for --merge%s", job->options->out,
                          missing, count, list_missing(job, text, sizeof text),
                          job->options->store ? "" : ", and --store if the run has one");
    const lock_status lock = run_lock_wait(&job->directory, RUN_LOCK_MERGE);
    if (lock == LOCK_FAILED) return 1;
    if (lock == LOCK_BUSY) return interruption_status();
    const int status = eval_merge(job, r);
    *done = status == 0;
    run_unlock(&job->directory, RUN_LOCK_MERGE);
    return status == EVAL_MERGE_AGAIN
               ? tool_error("%s: a piece is damaged; the same command without --merge makes it again",
                            job->options->out)
               : status;
}

/* Prints the interruption. Returns the exit status. */
static int report_eval_interruption(eval_job *job, int status)
{
    if (job->store.hash)
        interruption_end("%ld images were made now, %s has %ld of %ld; the same command goes on", job->made,
                         job->options->out, eval_images_there(job), job->layout.images);
    else
        interruption_end("no image was made now in %s; the same command goes on", job->options->out);
    return status;
}

static int execute_eval(eval_job *job, eval_result *r, int *done)
{
    const eval_options *o = job->options;
    if ((o->merge ? prepare_merge(job) : prepare_eval(job)) != 0) return 1;
    interruption_limit(EVAL_STATUS_GOES_ON); /* from here on there is work to keep */
    if (run_directory_begin(&job->directory, o->merge ? NULL : &job->process) != 0) return 1;
    int status = o->merge ? store_find(store_directory(job), strtoull(job->facts.images, NULL, 16), &job->store)
                          : agree_on_settings(job);
    if (status == 0) status = o->merge ? merge_only(job, r, done) : make_and_merge(job, r, done);
    interruption_unlimit();
    return status > 1 ? report_eval_interruption(job, status) : status;
}

int eval_model_run(eval_options *o, progress *bar, eval_result *r, int *done)
{
    eval_job *job = calloc(1, sizeof *job);
    *done = 0;
    if (!job) return tool_error("out of memory");
    job->options = o;
    job->bar = bar;
    job->files.quiet = o->quiet;
    job->files.needs_vae = 1;
    job->files.needs_all = 1;
    const int status = execute_eval(job, r, done);
    store_close(&job->store);
    run_directory_end(&job->directory, status == 1);
    if (status == 1) output_abandon(&job->store_directory);
    output_free(&job->store_directory);
    judge_close(&job->judge);
    prompts_free(&job->prompts);
    free(job->texts);
    mar_session_free(job->session);
    devices_free(&job->devices);
    models_free(&job->files);
    record_texts_free(&job->settings);
    cJSON_Delete(job->taken);
    free(job->classes);
    free(job->labels);
    free(job->written);
    free(job);
    return status;
}
