/* The fields of a request for images, and the job they ask for. */
#ifndef TOOLS_SERVE_REQUEST_H
#define TOOLS_SERVE_REQUEST_H

#include "base/json.h"
#include "tools/serve/answer.h"
#include "tools/serve/edit.h"
#include "tools/serve/service.h"
#include "tools/serve/warnings.h"

/* Fields that the service knows, by OpenAI's names; negative_prompt, seed, cfg and num_inference_steps are not
 * OpenAI's. Some of OpenAI's have no effect, and the answer says so. So it is with unknown ones, or they are refused.
 */
typedef enum {
    FIELD_PROMPT,
    FIELD_NEGATIVE_PROMPT,
    FIELD_N,
    FIELD_SIZE,
    FIELD_RESPONSE_FORMAT,
    FIELD_SEED,
    FIELD_CFG,
    FIELD_STEPS,
    FIELD_MODEL,
    FIELD_OUTPUT_FORMAT,
    FIELD_OUTPUT_COMPRESSION,
    FIELD_STREAM,
    FIELD_PARTIAL_IMAGES,
    FIELD_IMAGE,
    FIELD_MASK,
    FIELDS
} field;

/* The values point to memory of their owner. JSON_NULL: not given. */
typedef struct {
    json_value field[FIELDS];
    const char *name[FIELDS]; /* static: as the client calls it; NULL: not given */
    int is_strict;            /* 1: unknown fields are refused */
    edit_mask mask;           /* what the mask of an edit marks */
    warnings *warnings;
} request;

/* How a request is answered. */
typedef struct {
    int wants_url; /* 1: with links; 0: base64 */
    int streams;   /* 1: as server-sent events */
    int partials;  /* of these, previews of each image: 0 to PARTIALS_MAX */
    int is_chosen; /* 1: the request has response_format, or asks for a stream */
    warnings warnings;
} request_manner;
enum { PARTIALS_MAX = 3 }; /* as OpenAI's */

/* Sets a field, "image[]" included, from the text of a form, char [size + 1] with a NUL. A number is read as JSON.
 * Returns 0, or 1 with the error in *a. */
int request_set(request *r, const char *name, char *text, size_t size, answer *a);
/* Sets all fields from a JSON object. Returns 0, or 1 with the error in *a. */
int request_read(request *r, const json *body, answer *a);

/* Checks the model's name. Returns 0, or 1 with the error in *a. */
int request_check_model(const service *s, const request *r, answer *a);
/* Checks the fields. is_edit: they have a picture. Returns 0, with *out, which the caller frees (jobs_free_spec), and
 * *manner, whose warnings are r's and stay. Returns 1 with the error in *a. *out has copies of all it needs, but no
 * client. */
int request_resolve(const service *s, const request *r, int is_edit, job_spec *out, request_manner *manner, answer *a);

#endif
