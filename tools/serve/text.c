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

/* Makes room for a prompt in one block: the struct, features, mask and text. */
static job_prompt *make_room(const prompt_encoder *e, const char *text)
{
    const size_t positions = (size_t)e->tokens, numbers = positions * (size_t)e->dim, length = strlen(text) + 1;
    job_prompt *p = malloc(sizeof *p + numbers * sizeof *p->features + positions + length);
    if (!p) return NULL;
    p->features = (float *)(void *)(p + 1);
    p->mask = (uint8_t *)(p->features + numbers);
    p->text = (char *)(p->mask + positions);
    memcpy(p->text, text, length);
    return p;
}

int text_service_encode(text_service *t, const char *prompt, job_prompt **out, answer *a)
{
    char why[128];
    prompt_encoder *e = t->encoder;
    const size_t positions = (size_t)e->tokens, bytes = positions * (size_t)e->dim * sizeof(float);
    *out = NULL;
    const char *fault = prompts_fault(prompt, why, sizeof why);
    if (fault) return answer_error(a, 400, "prompt", NULL, "prompt: %s", fault);
    job_prompt *p = make_room(e, prompt);
    if (!p) return answer_no_memory(a);
    pthread_mutex_lock(&t->lock);
    const mar_status status = prompt_encoder_run(e, &p->text, 1);
    memcpy(p->features, e->features, bytes);
    memcpy(p->mask, e->mask, positions);
    pthread_mutex_unlock(&t->lock);
    if (status != MAR_OK) {
        free(p);
        if (status == MAR_EARG) return answer_error(a, 400, "prompt", NULL, "prompt: %s", prompt_encoder_error(e));
        return answer_error(a, 500, NULL, NULL, "the prompt could not be encoded: %s", mar_error(e->library));
    }
    p->sum = captions_sum_of(e->tokens, e->dim, p->features, p->mask);
    *out = p;
    return 0;
}
