/* The part of AUTOMATIC1111's API that its clients need to make images of a prompt and to make parts of a picture anew:
 * /sdapi/v1/txt2img and img2img, their model, sampler and progress. */
#ifndef TOOLS_SERVE_SDAPI_H
#define TOOLS_SERVE_SDAPI_H

#include "tools/serve/answer.h"
#include "tools/serve/request.h"
#include "tools/serve/service.h"

typedef enum { SDAPI_NONE, SDAPI_TXT2IMG, SDAPI_IMG2IMG } sdapi_path;

/* Texts of fields that are made of others. */
typedef struct {
    char n[16], size[32];
} sdapi_texts;

/* Sets the fields of a request from a JSON object. The texts must live as long. Pictures are decoded in place, in the
 * text of the body. What asks for what is not there is warned of, a negative prompt unless the service takes one.
 * Returns 0, or 1 with the error in *a. */
int sdapi_read(request *r, sdapi_path path, int takes_negative, const json *body, sdapi_texts *texts, answer *a);

/* Writes the answer: the job's images, and `info`, which has the warnings. Returns 0, or 1 without memory. */
int sdapi_write_images(service *s, job *j, const warnings *w, FILE *out);
void sdapi_write_options(const service *s, FILE *out);
void sdapi_write_models(const service *s, FILE *out);
void sdapi_write_samplers(FILE *out);
void sdapi_write_scripts(FILE *out);
/* Writes how far the images of a client are. */
void sdapi_write_progress(service *s, const client_key *client, FILE *out);

#endif
