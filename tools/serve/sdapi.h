/* The part of AUTOMATIC1111's API that its clients need to make images of a prompt: /sdapi/v1/txt2img, its model,
 * sampler and progress. */
#ifndef TOOLS_SERVE_SDAPI_H
#define TOOLS_SERVE_SDAPI_H

#include "tools/serve/answer.h"
#include "tools/serve/request.h"
#include "tools/serve/service.h"

/* Texts of fields that are made of others. */
typedef struct {
    char n[16], size[32];
} sdapi_texts;

/* Sets the fields of a request from a JSON object of txt2img. The texts must live as long. What asks for what is not
 * there is warned of, a negative prompt unless the service takes one. Returns 0, or 1 with the error in *a. */
int sdapi_read(request *r, int takes_negative, const json *body, sdapi_texts *texts, answer *a);

/* Writes the answer to txt2img: the job's images, and `info`, which has the warnings. Returns 0, or 1 without memory.
 */
int sdapi_write_images(service *s, job *j, const warnings *w, FILE *out);
void sdapi_write_options(const service *s, FILE *out);
void sdapi_write_models(const service *s, FILE *out);
void sdapi_write_samplers(FILE *out);
/* Writes how far the images of a client are. */
void sdapi_write_progress(service *s, const client_key *client, FILE *out);

#endif
