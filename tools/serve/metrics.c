#include "tools/serve/metrics.h"

/* Seconds: from a step of a small model to a minute-long image. */
static const double bounds[METRIC_BUCKETS] = {0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25,
                                              0.5,   1,      2.5,   5,    10,    30,   60,  300};
/* The codes that the service answers with; the last entry is all others. */
static const int codes[METRIC_CODES] = {200, 202, 204, 400, 401, 403,         404, 405, 409,
                                        410, 411, 413, 415, 429, METRIC_GONE, 500, 503};

void metrics_create(metrics *m)
{
    *m = (metrics){.counts.steps = 0};
    pthread_mutex_init(&m->lock, NULL);
}

void metrics_destroy(metrics *m)
{
    pthread_mutex_destroy(&m->lock);
}

static void metrics_add(metric_histogram *h, double seconds)
{
    int i = 0;
    while (i < METRIC_BUCKETS && seconds > bounds[i]) i++;
    h->bucket[i]++;
    h->sum += seconds;
    h->count++;
}

void metrics_answer(metrics *m, int route, int code, double seconds)
{
    int i = 0;
    while (i < METRIC_CODES - 1 && codes[i] != code) i++;
    pthread_mutex_lock(&m->lock);
    m->counts.answers[route][i]++;
    metrics_add(&m->counts.answer_s, seconds);
    pthread_mutex_unlock(&m->lock);
}

void metrics_image(metrics *m, metric_end end)
{
    pthread_mutex_lock(&m->lock);
    m->counts.images[end]++;
    pthread_mutex_unlock(&m->lock);
}

void metrics_step(metrics *m, int images, double seconds)
{
    pthread_mutex_lock(&m->lock);
    m->counts.steps++;
    m->counts.step_images += (uint64_t)images;
    metrics_add(&m->counts.step_s, seconds);
    pthread_mutex_unlock(&m->lock);
}

void metrics_preview(metrics *m)
{
    pthread_mutex_lock(&m->lock);
    m->counts.previews++;
    pthread_mutex_unlock(&m->lock);
}

void metrics_prompt(metrics *m)
{
    pthread_mutex_lock(&m->lock);
    m->counts.prompts++;
    pthread_mutex_unlock(&m->lock);
}

void metrics_job(metrics *m, double seconds)
{
    pthread_mutex_lock(&m->lock);
    metrics_add(&m->counts.job_s, seconds);
    pthread_mutex_unlock(&m->lock);
}

void metrics_wait(metrics *m, double seconds)
{
    pthread_mutex_lock(&m->lock);
    metrics_add(&m->counts.wait_s, seconds);
    pthread_mutex_unlock(&m->lock);
}

static void metrics_begin(FILE *out, const char *name, const char *type, const char *help)
{
    fprintf(out, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, type);
}

static void gauge(FILE *out, const char *name, const char *help, double value)
{
    metrics_begin(out, name, "gauge", help);
    fprintf(out, "%s %.17g\n", name, value);
}

static void counter(FILE *out, const char *name, const char *help, uint64_t value)
{
    metrics_begin(out, name, "counter", help);
    fprintf(out, "%s %llu\n", name, (unsigned long long)value);
}

static void histogram(FILE *out, const char *name, const char *help, const metric_histogram *h)
{
    uint64_t below = 0;
    metrics_begin(out, name, "histogram", help);
    for (int i = 0; i < METRIC_BUCKETS; i++) {
        below += h->bucket[i];
        fprintf(out, "%s_bucket{le=\"%g\"} %llu\n", name, bounds[i], (unsigned long long)below);
    }
    fprintf(out, "%s_bucket{le=\"+Inf\"} %llu\n", name, (unsigned long long)h->count);
    fprintf(out, "%s_sum %.9g\n%s_count %llu\n", name, h->sum, name, (unsigned long long)h->count);
}

/* Writes a label's value: backslash, quote and newline are escaped. */
static void write_label(FILE *out, const char *text)
{
    for (; *text; text++) {
        if (*text == '\\' || *text == '"') putc('\\', out);
        if (*text == '\n')
            fputs("\\n", out);
        else
            putc(*text, out);
    }
}

void metrics_write(metrics *m, const metric_gauges *now, FILE *out)
{
    static const char *const ends[] = {"done", "failed", "cancelled"};
    pthread_mutex_lock(&m->lock);
    const metric_counts copy = m->counts;
    pthread_mutex_unlock(&m->lock);
    metrics_begin(out, "mar_requests_total", "counter",
                  "HTTP requests by route and status; 499: the client left, or its stream was stopped");
    for (int r = 0; r < METRIC_ROUTES && now->routes[r]; r++)
        for (int c = 0; c < METRIC_CODES; c++)
            if (copy.answers[r][c] > 0) {
                fprintf(out, "mar_requests_total{route=\"%s\",code=\"", now->routes[r]);
                if (codes[c])
                    fprintf(out, "%d", codes[c]);
                else
                    fputs("other", out);
                fprintf(out, "\"} %llu\n", (unsigned long long)copy.answers[r][c]);
            }
    metrics_begin(out, "mar_images_total", "counter", "Images by outcome");
    for (int i = 0; i < 3; i++)
        fprintf(out, "mar_images_total{end=\"%s\"} %llu\n", ends[i], (unsigned long long)copy.images[i]);
    counter(out, "mar_steps_total", "Steps of the session, each for all images in progress", copy.steps);
    counter(out, "mar_step_images_total", "Images in these steps; over mar_steps_total the mean batch",
            copy.step_images);
    counter(out, "mar_previews_total", "Previews decoded", copy.previews);
    counter(out, "mar_prompts_total", "Prompts that the text encoder has read", copy.prompts);
    gauge(out, "mar_batch_size", "Images that may be in progress (--batch)", now->batch);
    gauge(out, "mar_batch_images", "Images in progress", now->running);
    gauge(out, "mar_queue_size", "Images that may wait (--queue)", now->queue);
    gauge(out, "mar_queue_images", "Images that wait", now->waiting);
    gauge(out, "mar_queue_prompts", "Jobs of these whose prompts are not encoded", now->unencoded);
    gauge(out, "mar_connections", "Open connections", now->connections);
    gauge(out, "mar_uptime_seconds", "Seconds since the start", now->since);
    histogram(out, "mar_request_seconds", "Seconds from a whole request to its answer, of a stream to its end",
              &copy.answer_s);
    histogram(out, "mar_job_seconds", "Seconds from a job's request to its last image", &copy.job_s);
    histogram(out, "mar_wait_seconds", "Seconds from a job's request to its first step", &copy.wait_s);
    histogram(out, "mar_step_seconds", "Seconds of a step", &copy.step_s);
    metrics_begin(out, "mar_info", "gauge", "The model served");
    fputs("mar_info{model=\"", out);
    write_label(out, now->model);
    fputs("\"} 1\n", out);
}
