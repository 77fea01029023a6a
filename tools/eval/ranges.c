/* The ranges of an evaluation: labels of their images, what the run store has of them, and their images. */
#include "tools/eval/job.h"

/* Returns number i of the sequence of a seed (Steele, Lea, Flood: "Fast splittable pseudorandom number generators",
 * 2014). */
static uint64_t label_random(uint64_t seed, uint64_t i)
{
    uint64_t z = seed * 0xd1342543de82ef95u + (i + 1) * 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

/* Returns the label of image i. */
static int label_of(const eval_job *job, long i)
{
    if (!job->is_random) return job->classes[(long long)i * job->class_count / job->layout.images];
    const uint64_t r = label_random(job->seed, (uint64_t)i) >> 32;
    return job->classes[r * (uint64_t)job->class_count >> 32];
}

store_range eval_range(eval_job *job, long first)
{
    const int n = eval_batch_size(&job->layout, first);
    for (int i = 0; i < n; i++) job->labels[i] = label_of(job, first + i);
    return (store_range){first, n, job->labels};
}

static int has_features(eval_job *job, long first)
{
    const store_range at = eval_range(job, first);
    return store_has(&job->store, &at, job->facts.judged);
}

long eval_images_there(eval_job *job)
{
    const eval_layout *l = &job->layout;
    long n = 0;
    for (long i = 0; i < l->images; i += l->batch) n += has_features(job, i) ? eval_batch_size(l, i) : 0;
    return n;
}

int eval_is_missing_shard(eval_job *job, int shard)
{
    const eval_layout *l = &job->layout;
    for (long i = eval_shard_first(l, shard); i < eval_shard_end(l, shard); i += l->batch)
        if (!has_features(job, i)) return 1;
    return 0;
}

int eval_missing_shards(eval_job *job)
{
    int missing = 0;
    for (int s = 0; s < eval_shard_count(&job->layout); s++) missing += eval_is_missing_shard(job, s);
    return missing;
}

int eval_make_images(eval_job *job, image_plan *plan, const image_sink *sink)
{
    const image_run first = {.model = job->models.model,
                             .session = job->session,
                             .captions = job->models.captions,
                             .store = &job->store,
                             .has_drafts = job->layout.steps > 0};
    image_run runs[DEVICES_MAX];
    plan->runs = runs;
    plan->run_count = 1;
    plan->batch = job->layout.batch;
    plan->workers = devices_runs(plan->choose ? &job->devices : NULL, &first, runs);
    plan->bar = job->bar;
    plan->bar_total = job->layout.images;
    plan->made = &job->made;
    return run_images(plan, sink, 1);
}

int eval_make_pixels(eval_job *job, long first, image_sink take)
{
    const store_range at = eval_range(job, first);
    image_plan plan = {.first = at.first, .images = at.n, .labels = at.labels, .bar_before = job->layout.images};
    return eval_make_images(job, &plan, &take);
}
