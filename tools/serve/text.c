#include "tools/serve/text.h"

#include "tools/cli/file_sum.h"

#include <stdlib.h>
#include <string.h>

void text_service_create(text_service *t, prompt_encoder *encoder)
{
    pthread_mutex_init(&t->lock, NULL);
    t->encoder = encoder;
}

void text_service_destroy(text_service *t)
{
    pthread_mutex_destroy(&t->lock);
}

/* Copies the encoder's last prompt. Returns NULL without memory. */
static job_prompt *copy_prompt(const prompt_encoder *e, const char *text)
{
    int padding = 0;
    while (padding < e->tokens && !e->mask[padding]) padding++;
    const int positions = e->tokens - padding;
    const size_t dim = (size_t)e->dim, numbers = (size_t)positions * dim, length = strlen(text) + 1;
    job_prompt *p = malloc(sizeof *p + numbers * sizeof(float) + length);
    if (!p) return NULL;
    float *features = (float *)(void *)(p + 1);
    memcpy(features, e->features + (size_t)padding * dim, numbers * sizeof *features);
    p->rows =
        (caption){.features = features, .positions = positions, .prompt = memcpy(features + numbers, text, length)};
    p->sum = captions_sum(&(captions){.dim = e->dim, .list = &p->rows}, 0);
    return p;
}

int text_service_encode(text_service *t, const char *prompt, job_prompt **out, answer *a)
{
    char why[128], *text = (char *)(uintptr_t)prompt; /* it is only read */
    prompt_encoder *e = t->encoder;
    *out = NULL;
    const char *fault = prompts_fault(prompt, why, sizeof why);
    if (fault) return answer_error(a, 400, "prompt", NULL, "prompt: %s", fault);
    pthread_mutex_lock(&t->lock);
    const mar_status status = prompt_encoder_run(e, &text, 1);
    if (status == MAR_OK) *out = copy_prompt(e, prompt);
    pthread_mutex_unlock(&t->lock);
    if (*out) return 0;
    if (status == MAR_OK) return answer_no_memory(a);
    if (status == MAR_EARG) return answer_error(a, 400, "prompt", NULL, "prompt: %s", prompt_encoder_error(e));
    return answer_error(a, 500, NULL, NULL, "the prompt could not be encoded: %s", mar_error(e->library));
}
