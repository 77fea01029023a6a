#include "tools/serve/text.h"

#include "base/printable.h"
#include "tools/cli/command.h"

#include <stdlib.h>
#include <string.h>

/* Copies the encoder's last prompt. Returns NULL without memory. */
static job_prompt *copy_prompt(const prompt_encoder *e)
{
    int padding = 0;
    while (padding < e->tokens && !e->mask[padding]) padding++;
    const int positions = e->tokens - padding;
    const size_t dim = (size_t)e->dim, numbers = (size_t)positions * dim;
    job_prompt *p = malloc(sizeof *p + numbers * sizeof(float));
    if (!p) return NULL;
    float *features = (float *)(void *)(p + 1);
    memcpy(features, e->features + (size_t)padding * dim, numbers * sizeof *features);
    p->rows = (caption){.features = features, .positions = positions};
    p->negative = NULL;
    p->sum = captions_sum(&(captions){.dim = e->dim, .list = &p->rows}, 0);
    return p;
}

static void note_cut(const text_service *t, const char *text, int count)
{
    enum { SHOWN = 100 };
    char shown[SHOWN];
    const int fit = t->encoder->tokens;
    if (t->encoder->quiet || count <= fit) return;
    log_line(t->log, LOG_CUT, "warning: prompt \"%s\": has %d tokens, the last %d are left out: %d fit",
             printable(text, shown, sizeof shown), count, count - fit, fit);
}

/* Encodes a job's prompt, then its negative one, to *out. Sets *param, static, to the field that is encoded. */
static mar_status serve_text_run_encoder(const text_service *t, const job_spec *spec, job_prompt **out,
                                         const char **param)
{
    const prompt_encoder *e = t->encoder;
    int count;
    *param = "prompt";
    mar_status status = prompt_encoder_encode(e, &spec->text, 1, e->tokens, &count);
    if (status != MAR_OK) return status;
    note_cut(t, spec->text, count);
    *out = copy_prompt(e);
    if (!*out || !spec->negative) return *out ? MAR_OK : MAR_ENOMEM;
    *param = "negative_prompt";
    status = mar_text_encode_negative(e->text, spec->negative, e->tokens, e->features, e->mask, NULL);
    if (status == MAR_OK && ((*out)->negative = copy_prompt(e)) == NULL) status = MAR_ENOMEM;
    return status;
}

static void serve_text_encode(const text_service *t, job *j)
{
    const prompt_encoder *e = t->encoder;
    const char *field, *param = NULL;
    char why[JOB_WHY] = "out of memory";
    job_prompt *made = NULL;
    int code = 503;
    const mar_status status = serve_text_run_encoder(t, &j->spec, &made, &field);
    metrics_prompt(t->jobs->metrics);
    if (status != MAR_OK) {
        jobs_free_prompt(made);
        made = NULL;
    }
    if (status == MAR_EARG) {
        code = 400;
        param = field;
        snprintf(why, sizeof why, "%s: %.400s", field, mar_error(e->library));
    } else if (status != MAR_OK && status != MAR_ENOMEM) {
        code = 500;
        snprintf(why, sizeof why, "the prompt could not be encoded: %.400s", mar_error(e->library));
        log_line(t->log, LOG_PROMPT, "%s", why);
    }
    jobs_put_prompt(t->jobs, j, made, code, param, why);
}

static void *serve_text_run(void *self)
{
    const text_service *t = self;
    for (job *j; (j = jobs_await_prompt(t->jobs));) serve_text_encode(t, j);
    return NULL;
}

int text_start(text_service *t, prompt_encoder *encoder, jobs *all, service_log *log)
{
    *t = (text_service){.encoder = encoder, .jobs = all, .log = log};
    if (pthread_create(&t->thread, NULL, serve_text_run, t) == 0) return 0;
    t->encoder = NULL;
    return tool_error("the system starts no more threads");
}

void text_end(text_service *t)
{
    if (t->encoder) pthread_join(t->thread, NULL);
    t->encoder = NULL;
}
