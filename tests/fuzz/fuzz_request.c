/* The body of a request to `mar serve`: JSON or a form, its fields, and the job they ask for. */
#include "tests/fuzz/fuzz.h"

#include "tools/images/image.h"
#include "tools/serve/form.h"
#include "tools/serve/request.h"
#include "tools/serve/sdapi.h"

#include <math.h>
#include <string.h>

static service demo;

int LLVMFuzzerInitialize(int *argc, char ***argv);
int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    (void)argc, (void)argv;
    demo.name = demo.options.run.model = "demo";
    demo.width = demo.height = 32;
    demo.models.classes.count = 10;
    demo.options.run.used.cfg = 2.9f;
    return 0;
}

/* Checks that a refusal is one line of JSON as OpenAI's clients read it. */
static void check_refusal(answer *a)
{
    json j;
    char text[8192];
    if (a->code != 400 && a->code != 404) fuzz_fail("code %d", a->code);
    if (a->size >= sizeof text) fuzz_fail("%zu bytes", a->size);
    memcpy(text, a->body, a->size);
    text[a->size] = '\0';
    if (json_read(text, a->size, 4, &j) != JSON_OK || j.not_utf8 < a->size) fuzz_fail("no JSON: %s", a->body);
    const json_value *error = json_member(j.values, "error"), *message = error ? json_member(error, "message") : NULL;
    if (!message || message->type != JSON_STRING || message->length == 0) fuzz_fail("no message");
    json_free(&j);
    answer_free(a);
}

/* Reads the bytes as a form: each part lies in them, behind the one before. */
static void read_form(char *text, size_t size)
{
    form_reader f;
    form_part part;
    form_status status;
    warnings w = {0};
    request r = {.warnings = &w};
    answer a = {.code = 0};
    char why[FORM_WHY_MAX];
    const char *behind = text;
    if (form_boundary("multipart/form-data; boundary=xx", &f) != 0) fuzz_fail("no boundary");
    form_open(&f, text, size);
    while ((status = form_next(&f, &part, why)) == FORM_PART) {
        if (part.name <= behind || part.data < part.name || part.data + part.size >= text + size || !*part.name)
            fuzz_fail("part %d lies elsewhere", f.part);
        if (part.data[part.size]) fuzz_fail("part %d has no NUL", f.part);
        behind = part.data + part.size;
        if (request_set(&r, part.name, part.data, part.size, &a) != 0) {
            check_refusal(&a);
            warnings_free(&w);
            return;
        }
    }
    warnings_free(&w);
    if (status == FORM_REFUSED && strlen(why) + 1 >= sizeof why) fuzz_fail("a long reason");
}

/* Reads the bytes as a request, by AUTOMATIC1111's API or by OpenAI's, strictly or not. */
static void read_fields(const json *j, sdapi_path path, int is_strict)
{
    request_manner manner = {.partials = -1};
    request r = {.warnings = &manner.warnings, .is_strict = is_strict};
    sdapi_texts texts;
    answer a = {.code = 0};
    job_spec spec;
    const int failed = path ? sdapi_read(&r, path, 0, j, &texts, &a) : request_read(&r, j, &a);
    if (failed != 0 || request_resolve(&demo, &r, 0, &spec, &manner, &a) != 0) {
        check_refusal(&a);
    } else {
        if (a.code != 0) fuzz_fail("no refusal, and code %d", a.code);
        if (spec.n < 1 || spec.n > JOB_IMAGES_MAX || spec.label < -1 || spec.label >= 10)
            fuzz_fail("%d images of class %d", spec.n, spec.label);
        if (!(spec.cfg >= 0 && spec.cfg <= 100) || spec.seed >> 53) fuzz_fail("guidance %g", (double)spec.cfg);
        if (spec.format < 0 || spec.format >= IMAGE_FORMATS || spec.quality < 1 || spec.quality > 100)
            fuzz_fail("format %d of quality %d", spec.format, spec.quality);
        if (spec.picture || spec.known) fuzz_fail("fields of an edit");
        if (manner.partials < 0 || manner.partials > PARTIALS_MAX) fuzz_fail("%d previews", manner.partials);
    }
    warnings_free(&manner.warnings);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char text[512];
    json j;
    if (size >= sizeof text) return -1;
    memcpy(text, data, size);
    text[size] = '\0';
    if (json_read(text, size, 32, &j) != JSON_OK) {
        read_form(text, size);
        return 0;
    }
    read_fields(&j, SDAPI_NONE, 0);
    read_fields(&j, SDAPI_NONE, 1);
    read_fields(&j, SDAPI_TXT2IMG, 0);
    read_fields(&j, SDAPI_IMG2IMG, 0); /* the last, which decodes pictures in place */
    json_free(&j);
    return 0;
}
