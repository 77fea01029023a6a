/* The table of options is the only place that knows an option. The test compares parser, help, manual and records with
 * it row by row. */
#include "tests/support/command.h"

#include "mar_methods.h"

#include "mar/core/params.h"

#include <cjson/cJSON.h>
#include <ctype.h>
#include <inttypes.h>
#include <math.h>
#include <png.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { NAMES_MAX = 160 };

/* Returns row i of both tables, one after the other; NULL after the last. */
static const mar_param *any_row(int i)
{
    return i < mar_param_count() ? mar_param_get(i) : mar_option_get(i - mar_param_count());
}

/* Returns the default as --help and the manual print it, "" if they print none. */
static const char *default_text(const mar_param *p, char *text, size_t size)
{
    mar_params params;
    const mar_options options = {.size = sizeof options};
    mar_params_init(&params, sizeof params);
    if (p->type == MAR_TYPE_FLAG) return "";
    const int of_params = mar_param_find(p->name) == p;
    return mar_param_text(p, of_params ? (const void *)&params : &options, text, size);
}

/* --- (a) fields and rows -------------------------------------------------------------------------------- */

/* Reads the names of the fields of a struct of mar.h that ends with e.g. "} mar_params;". Returns their number. */
static int fields_of(const char *end_of_struct, char names[NAMES_MAX][64])
{
    char *header = read_whole_file("include", "mar.h", NULL);
    for (char *c = header; (c = strstr(c, "/*"));) /* comments become spaces */
        for (const char *end = strstr(c, "*/") + 2; c < end; c++) *c = ' ';
    char *end = strstr(header, end_of_struct), *at = end;
    int n = 0;
    assert_non_null(end);
    *end = '\0';
    while (*at != '{') at--;
    for (char *field = strtok(at + 1, ";"); field; field = strtok(NULL, ";")) {
        size_t length = strlen(field), first;
        while (length && isspace((unsigned char)field[length - 1])) length--;
        for (first = length; first && (isalnum((unsigned char)field[first - 1]) || field[first - 1] == '_');) first--;
        if (first == length) continue;
        assert_true(n < NAMES_MAX && !memchr(field, ',', length)); /* one field per declaration */
        snprintf(names[n++], 64, "%.*s", (int)(length - first), field + first);
    }
    free(header);
    return n;
}

static int index_of(const char *name, char names[NAMES_MAX][64], int n)
{
    for (int i = 0; i < n; i++)
        if (strcmp(names[i], name) == 0) return i;
    return -1;
}

/* Checks that rows lie in the order of their fields from `begin` to `end`. Gaps are only alignment and `reserved` ints.
 * */
static void assert_tiles(const mar_param *(*get)(int), int count, size_t begin, size_t end, int reserved)
{
    size_t at = begin;
    for (int done = 0; done < count; done++) {
        const mar_param *next = NULL;
        for (int i = 0; i < count; i++)
            if (get(i)->offset >= at && (!next || get(i)->offset < next->offset)) next = get(i);
        if (!next) fail_msg("two rows have one field, or overlap");
        const size_t size = mar_param_size(next);
        for (; reserved > 0 && next->offset > (at + size - 1) / size * size; reserved--) at += sizeof(int);
        if (next->offset != (at + size - 1) / size * size)
            fail_msg("%s: not where the field before it ends", next->name);
        at = next->offset + size;
    }
    /* no padding at the end: every new field changes the size */
    assert_true(end == at + (size_t)reserved * sizeof(int));
}

TEST_CASE(a_row_is_a_field)
{
    char names[NAMES_MAX][64];
    int seen[NAMES_MAX] = {0};
    int n = fields_of("} mar_params;", names), reserved = 0;
    assert_string_equal(names[0], "size");
    for (int i = 0; i < mar_param_count(); i++) {
        const int k = index_of(mar_param_get(i)->name, names, n);
        if (k < 1 || seen[k]++) fail_msg("%s: expected one row, of a field of mar_params", mar_param_get(i)->name);
        if (mar_param_get(i)->type == MAR_TYPE_MODEL && strcmp(mar_param_get(i)->name, "draft") != 0)
            fail_msg("%s: tools/cli/run_options.c loads only a draft", mar_param_get(i)->name);
    }
    for (int k = 1; k < n; k++) {
        const int is_reserved = strncmp(names[k], "reserved", 8) == 0;
        if (!seen[k] && !is_reserved) fail_msg("mar_params.%s has no row in mar/core/params.c", names[k]);
        reserved += is_reserved;
    }
    assert_null(mar_param_get(-1));
    assert_null(mar_param_get(mar_param_count()));
    assert_tiles(mar_param_get, mar_param_count(), sizeof(size_t), sizeof(mar_params), reserved);

    n = fields_of("} mar_options;", names);
    static const char *const others[] = {"size", "log",        "log_user", "alloc",
                                         "free", "alloc_user", "tune",     "reserved"}; /* for programs only */
    enum { OTHERS = sizeof others / sizeof *others };
    assert_int_equal(n - OTHERS, mar_option_count());
    memset(seen, 0, sizeof seen);
    for (int i = 0; i < OTHERS; i++) {
        const int k = index_of(others[i], names, n);
        if (k < 0 || seen[k]++) fail_msg("%s: expected a field of mar_options", others[i]);
    }
    for (int i = 0; i < mar_option_count(); i++) {
        const mar_param *p = mar_option_get(i);
        const int k = index_of(strcmp(p->name, "size") == 0 ? "image_size" : p->name, names, n);
        if (k < 0 || seen[k]++) fail_msg("%s: expected one row, of a field", p->name);
        for (int j = 0; j < i; j++) assert_true(mar_option_get(j)->offset != p->offset);
        const size_t end = p->offset + mar_param_size(p);
        assert_true(end <= offsetof(mar_options, log) || p->offset >= offsetof(mar_options, log_user) + sizeof(void *));
        assert_true(end <= offsetof(mar_options, alloc) || p->offset > offsetof(mar_options, alloc_user));
    }
}

TEST_CASE(a_row_is_complete)
{
    for (int i = 0; any_row(i); i++) {
        const mar_param *p = any_row(i);
        const int choice = p->type == MAR_TYPE_CHOICE || p->type == MAR_TYPE_NAME;
        if (!p->help || !*p->help || !p->group || !*p->group) fail_msg("%s: has no help or no group", p->name);
        if ((p->choices != NULL) != choice && p->type != MAR_TYPE_INT && p->type != MAR_TYPE_FLOAT &&
            p->type != MAR_TYPE_TEXT)
            fail_msg("%s: choices do not go with its type", p->name);
        if (p->type != MAR_TYPE_NAME && p->type != MAR_TYPE_INT && /* replaces N */
            (p->type == MAR_TYPE_TEXT || p->type == MAR_TYPE_MODEL) != (p->argument != NULL))
            fail_msg("%s: argument does not go with its type", p->name);
        if ((p->type == MAR_TYPE_INT || p->type == MAR_TYPE_FLOAT) &&
            !(p->min < p->max && p->value >= p->min && p->value <= p->max))
            fail_msg("%s: default %g is not from %g to %g", p->name, p->value, p->min, p->max);
        if (p->tokens && strcmp(p->tokens, "continuous") != 0 && strcmp(p->tokens, "discrete") != 0)
            fail_msg("%s: is for %s tokens", p->name, p->tokens);
        for (int k = 0; any_row(k); k++) assert_true(k == i || strcmp(any_row(k)->name, p->name) != 0);
    }
}

/* --- (b) text of --help and the manual ------------------------------------------------------------------ */

static int occurs(const char *text, const char *end, const char *what)
{
    const char *at = strstr(text, what);
    return at && at < end;
}

/* Removes every `what` from the text. Fails if there is none. */
static void take_out(char *text, const char *what)
{
    char *at = strstr(text, what);
    if (!at) fail_msg("\"%s\" is missing", what);
    for (; at; at = strstr(at, what)) memmove(at, at + strlen(what), strlen(at + strlen(what)) + 1);
}

/* Returns the entry of an option, from `heading` and its name to `next`. Returns NULL if there is none. */
static const char *entry_of(const char *text, const char *heading, const char *name, const char *next, const char **end)
{
    char start[96];
    const char *at = text;
    const size_t n = (size_t)snprintf(start, sizeof start, "%s%s", heading, name);
    while ((at = strstr(at, start)) && at[n] != ' ' && at[n] != '\n') at += n;
    if (!at) return NULL;
    *end = strstr(at + n, next);
    if (!*end) *end = at + strlen(at);
    if (strstr(at + n, "\n\n") && strstr(at + n, "\n\n") < *end) *end = strstr(at + n, "\n\n");
    return at;
}

/* Checks an entry. `between` separates the choices; `before` and `behind` enclose the default. */
static void assert_entry(const char *where, const char *entry, const char *end, const mar_param *p, const char *between,
                         const char *before, const char *behind)
{
    char value[64], what[512] = " ";
    if (!entry) fail_msg("%s: --%s is missing", where, p->name);
    for (int i = 0; p->choices && p->choices[i]; i++)
        if (*p->choices[i])
            snprintf(what + strlen(what), sizeof what - strlen(what), "%s%s", i ? between : "", p->choices[i]);
    if (p->choices && p->type == MAR_TYPE_INT)
        snprintf(what + strlen(what), sizeof what - strlen(what), "%s%sN", between, *between == '|' ? "" : "Ar ");
    if (p->type == MAR_TYPE_NAME && p->argument && *between == '|') /* replaces the choices */
        snprintf(what, sizeof what, " %s ", p->argument);
    if (p->choices && !occurs(entry, end, what)) fail_msg("%s: --%s without its choices%s", where, p->name, what);
    if (!p->choices && p->argument && !occurs(entry, end, p->argument))
        fail_msg("%s: --%s without %s", where, p->name, p->argument);
    if (!*default_text(p, value, sizeof value)) return;
    snprintf(what, sizeof what, "%s%s%s", before, value, behind);
    if (*before == '[' && strcmp(value, "0") == 0 && occurs(entry, end, " 0: ")) { /* the text explains it */
        if (occurs(entry, end, what)) fail_msg("%s: --%s with \"%s\" besides", where, p->name, what);
        return;
    }
    if (!occurs(entry, end, what)) fail_msg("%s: --%s without its default, \"%s\"", where, p->name, what);
}

/* Checks that every word after `heading` is an option of one of the commands. */
static void assert_known(const char *directory, const char *text, const char *heading, const char *commands)
{
    char seen[NAMES_MAX][64];
    int n = 0;
    for (const char *at = text; (at = strstr(at, heading));) {
        char name[64], line[256];
        at += strlen(heading);
        snprintf(name, sizeof name, "%.*s", (int)strspn(at, "abcdefghijklmnopqrstuvwxyz_0123456789"), at);
        if (index_of(name, seen, n) >= 0) continue;
        assert_true(n < NAMES_MAX && *name);
        memcpy(seen[n++], name, sizeof name);
        /* Options refuse an empty value. Other words are reported as unknown options. */
        snprintf(line, sizeof line, "for c in %s; do $MAR $c --%s= 2>&1 | grep -v unknown && break; done", commands,
                 name);
        command_result r = command_run(directory, line);
        if (!strstr(r.out, "expected") && !strstr(r.out, "takes no value"))
            fail_msg("--%s is no option of %s", name, commands);
        command_result_free(&r);
    }
    assert_true(n > 1);
}

/* Checks that every option name in the text has its dashes, unless it is also another word. */
static void assert_dashed(const char *where, const char *text, const char *dashes, const char *heading)
{
    for (int i = 0; any_row(i); i++) {
        const char *name = any_row(i)->name, *at = text;
        const size_t n = strlen(name), d = strlen(dashes), h = strlen(heading);
        while (strchr(name, '_') && (at = strstr(at, name))) {
            const int is_part =
                at[n] == '_' || isalnum((unsigned char)at[n]) || at[-1] == '_' || isalnum((unsigned char)at[-1]);
            if (!is_part && strncmp(at - d, dashes, d) != 0 && strncmp(at - h, heading, h) != 0)
                fail_msg("%s: %s without dashes in \"%.60s\"", where, name, at - 30);
            at += n;
        }
    }
}

TEST_CASE(help_names_every_row)
{
    static const char *const commands[] = {"generate", "bench", "fidelity", "serve"};
    for (int c = 0; c < 3; c++) {
        char line[64];
        const char *end = NULL;
        snprintf(line, sizeof line, "$MAR %s --help all", commands[c]);
        command_result r = command_run(*state, line);
        assert_dashed(line, r.out, "--", "--");
        take_out(r.out, "-s, "); /* one-letter options */
        if (c != 1) take_out(r.out, "-o, "), take_out(r.out, "-q, ");
        for (int i = 0; any_row(i); i++) {
            const char *entry = entry_of(r.out, "\n  --", any_row(i)->name, "\n  --", &end);
            assert_entry(line, entry, end, any_row(i), "|", "[", "]");
        }
        assert_known(*state, r.out, "\n  --", commands[c]);
        command_result_free(&r);
    }
}

TEST_CASE(manual_names_every_row)
{
    char directory[4096];
    snprintf(directory, sizeof directory, "%s", getenv("MAR_COMMAND"));
    *strrchr(directory, '/') = '\0';
    char *manual = read_whole_file(directory, "mar.1", NULL);
    const char *end = NULL, *shared = strstr(manual, "\n.Ss Options of a run\n");
    assert_non_null(shared);
    assert_dashed("mar.1", manual, "\\-\\-", "Fl -");
    assert_null(strstr(manual, "@\n")); /* unfilled places of the template */
    take_out(manual, "Fl s , ");
    take_out(manual, "Fl o , ");
    take_out(manual, "Fl q , ");
    for (int i = 0; any_row(i); i++) {
        const char *entry = entry_of(shared, "\n.It Fl -", any_row(i)->name, "\n.It Fl", &end);
        assert_entry("mar.1", entry, end, any_row(i), " | ", "default is ", ".\n");
    }
    assert_known(*state, manual, "\n.It Fl -",
                 "generate bench fidelity inspect convert classes methods eval stats edit serve captions");
    free(manual);
}

/* --- (c), (d) values ------------------------------------------------------------------------------------- */

TEST_CASE(init_sets_every_default)
{
    mar_params p;
    memset(&p, 0xa5, sizeof p);
    mar_params_init(&p, sizeof p);
    assert_true(p.size == sizeof p);
    for (int i = 0; i < mar_param_count(); i++)
        if (!mar_param_is_default(mar_param_get(i), &p)) fail_msg("%s", mar_param_get(i)->name);
    assert_true(p.num_iter == 0 && p.num_sampling_steps == 0 && p.cfg == -1 && p.temperature == 1 && p.seed == 0);
    assert_true(p.time_shift == 0 && p.token_norm == 0);
    assert_true(p.gamma == -1 && p.align == 1 && p.inner_temperature == 42 && !p.draft && !p.spec && !p.head_spec);
    for (int i = 0; i < mar_option_count(); i++) {
        const mar_options zero = {.size = sizeof zero};
        assert_true(mar_param_is_default(mar_option_get(i), &zero)); /* equals mar_open(NULL) */
    }
}

typedef union {
    mar_params params;
    mar_options options;
} fields;

static void reads_back(const mar_param *p, const char *text)
{
    fields one, two;
    char why[256] = "", written[256];
    memset(&one, 0, sizeof one);
    two = one;
    if (mar_param_set(p, &one, text, why, sizeof why) != MAR_OK) fail_msg("%s %s: %s", p->name, text, why);
    mar_param_text(p, &one, written, sizeof written);
    if (mar_param_set(p, &two, written, why, sizeof why) != MAR_OK) fail_msg("%s %s: %s", p->name, written, why);
    if (memcmp(&one, &two, sizeof one) != 0) fail_msg("%s: %s became %s", p->name, text, written);
    assert_int_equal(mar_param_check(p, &one, NULL), MAR_OK);
}

static void is_refused(const mar_param *p, const char *text)
{
    fields before, after;
    char why[512] = "", expected[256], start[128];
    memset(&before, 0x5a, sizeof before);
    after = before;
    assert_int_equal(mar_param_set(p, &after, text, why, sizeof why), MAR_EARG);
    assert_memory_equal(&before, &after, sizeof before);
    snprintf(start, sizeof start, "--%s %s: expected ", p->name, *text ? text : "(empty)");
    mar_param_expects(p, expected, sizeof expected);
    if (strncmp(why, start, strlen(start)) != 0 || strcmp(why + strlen(start), expected) != 0 || strchr(why, '\n'))
        fail_msg("\"%s\", expected \"%s%s\"", why, start, expected);
    assert_int_equal(mar_param_set(p, &after, text, NULL, 0), MAR_EARG);
}

TEST_CASE(values_as_text)
{
    char text[64];
    for (int i = 0; any_row(i); i++) {
        const mar_param *p = any_row(i);
        is_refused(p, "");
        if (p->type == MAR_TYPE_MODEL) {
            is_refused(p, "demo");
            continue;
        }
        for (int k = 0; p->choices && p->choices[k]; k++)
            if (*p->choices[k]) reads_back(p, p->choices[k]); /* "": a value without a name */
        if (p->type != MAR_TYPE_TEXT) is_refused(p, "nonsense");
        if (p->type == MAR_TYPE_FLAG) reads_back(p, "on"), reads_back(p, "off"), is_refused(p, "1");
        if (p->type == MAR_TYPE_UINT64) reads_back(p, "18446744073709551615"), is_refused(p, "-1");
        int named = 0; /* values of a number that have only a name */
        while (p->choices && p->choices[named]) named++;
        if (p->type == MAR_TYPE_FLOAT)
            reads_back(p, p->min + named < 1 ? "0.7" : "2.7"), is_refused(p, "nan"), is_refused(p, "inf");
        if (p->type != MAR_TYPE_INT && p->type != MAR_TYPE_FLOAT) continue;
        const double bounds[] = {p->min + named, p->max, fmax(p->value, p->min + named)};
        for (int k = 0; k < 3; k++) reads_back(p, (snprintf(text, sizeof text, "%.10g", bounds[k]), text));
        for (int k = 0; k < 2; k++)
            is_refused(p, (snprintf(text, sizeof text, "%.10g", bounds[k] + (k ? 1 : -1)), text));
    }
}

/* Tests names for the first values of a number, in any table. */
TEST_CASE(numbers_with_names)
{
    static const char *const names[] = {"none", "auto", NULL};
    const mar_param p = {.size = sizeof p,
                         .name = "depth",
                         .help = "how deep",
                         .group = "Test",
                         .type = MAR_TYPE_INT,
                         .value = 5,
                         .min = -1,
                         .max = 9,
                         .choices = names};
    static const struct {
        const char *text;
        int value;
    } values[] = {{"none", -1}, {"auto", 0}, {"1", 1}, {"9", 9}};
    char text[64], why[128];
    for (int i = 0; i < 4; i++) {
        int field = 77;
        assert_int_equal(mar_param_set(&p, &field, values[i].text, why, sizeof why), MAR_OK);
        assert_int_equal(field, values[i].value);
        assert_string_equal(mar_param_text(&p, &field, text, sizeof text), values[i].text);
        assert_int_equal(mar_param_check(&p, &field, NULL), MAR_OK);
    }
    static const char *const wrong[] = {"0", "-1", "10", "-2", "", "non", "none ", "autos", "1x"};
    for (size_t i = 0; i < LENGTH(wrong); i++) is_refused(&p, wrong[i]);
    mar_err err;
    for (int field = -3; field < 12; field++)
        assert_int_equal(mar_param_check(&p, &field, &err) == MAR_OK, field >= -1 && field <= 9);
    assert_string_equal(mar_param_expects(&p, text, sizeof text), "none, auto or a whole number from 1 to 9");
    assert_string_equal(mar_param_text(&p, &(int){-2}, text, sizeof text), "-2");
    assert_string_equal(mar_param_text(&p, &(int){12}, text, sizeof text), "12");
    const mar_param *gamma = mar_param_find("gamma");
    assert_string_equal(mar_param_expects(gamma, text, sizeof text),
                        "standard, auto or a whole number from 1 to 65536");
}

/* --- (e) sizes -------------------------------------------------------------------------------------------- */

/* Returns the parameters of a program compiled with a mar.h up to field `last`. The bytes after it are arbitrary. */
static mar_params older(const mar_param *last)
{
    mar_params p;
    memset(&p, 0xff, sizeof p);
    mar_params_init(&p, last->offset + mar_param_size(last));
    return p;
}

TEST_CASE(structs_of_other_sizes)
{
    mar_params out;
    mar_err err;
    for (int i = 0; i < mar_param_count(); i++) {
        const mar_params p = older(mar_param_get(i));
        if (p.size % _Alignof(mar_params)) { /* size of no header */
            assert_int_equal(mar_params_read(&p, &out, &err), MAR_EARG);
            continue;
        }
        assert_ok(mar_params_read(&p, &out, &err), &err);
        for (int k = 0; k < mar_param_count(); k++) assert_true(mar_param_is_default(mar_param_get(k), &out));
        assert_true(out.size == sizeof out);
    }

    mar *m = open_mar(MAR_DTYPE_F32, 1);
    mar_model *model;
    mar_session *s;
    assert_int_equal(mar_model_load(m, "demo-draft", 0, &model), MAR_OK);
    mar_params p = older(mar_param_find("seed"));
    p.num_iter = 3;
    assert_int_equal(mar_session_create(model, NULL, &p, 1, &s), MAR_OK);
    assert_int_equal(mar_session_get_params(s)->num_iter, 3);
    assert_int_equal(mar_session_get_params(s)->diff_upper_steps, 50);
    mar_session_free(s);

    struct {
        mar_params params;
        int field;
    } newer = {.field = 1};
    mar_params_init(&newer.params, sizeof newer);
    const size_t sizes[] = {0, sizeof(size_t), sizeof newer};
    for (int i = 0; i < 3; i++) {
        newer.params.size = sizes[i];
        assert_int_equal(mar_session_create(model, NULL, &newer.params, 1, &s), MAR_EARG);
        assert_null(s);
        const char *why = mar_error(m);
        if (!strstr(why, "mar_params.size is ") || !strstr(why, "expected") || strchr(why, '\n')) fail_msg("%s", why);
    }
    assert_non_null(strstr(mar_error(m), "newer mar.h"));
    mar_model_free(model);
    mar_close(m);
}

/* --- (f) the ten lines ------------------------------------------------------------------------------------ */

/* clang-format off */
#define TEN_LINES(MODEL, VAE, LABEL)                                                                                   \
    mar *m;  mar_pipeline *p;  mar_job job;  uint8_t *rgb;  int width, height;                                         \
    mar_open(NULL, &m);                                                                                                \
    mar_pipeline_load(m, MODEL, VAE, NULL, &p);                                                                        \
    mar_job_init(&job, sizeof job);                                                                                    \
    job.label = LABEL;                                                                                                 \
    mar_generate(p, &job, &rgb, &width, &height);                                                                      \
    fwrite(rgb, 3, (size_t)width * (size_t)height, file);                                                              \
    mar_rgb_free(rgb);  mar_pipeline_free(p);  mar_close(m);
#define TEXT_OF(...) #__VA_ARGS__
#define EXPANDED(...) TEXT_OF(__VA_ARGS__)
/* clang-format on */

/* Removes spaces, comments, and the stars of a comment's lines. */
static char *squeezed(const char *text)
{
    char *out = calloc(1, strlen(text) + 1), *to = out;
    for (const char *c = text; *c; c++) {
        if (c[0] == '/' && c[1] == '/') c += strcspn(c, "\n");
        if (strncmp(c, "\n * ", 4) == 0) c += 3;
        if (*c && !isspace((unsigned char)*c)) *to++ = *c;
    }
    return out;
}

TEST_CASE(the_ten_lines_make_the_image_of_the_command)
{
    uint8_t written[32 * 32 * 3];
    FILE *file = tmpfile();
    {TEN_LINES("demo", "demo", 7)} rewind(file);
    assert_int_equal(fread(written, 1, sizeof written, file), sizeof written);
    assert_int_equal(fgetc(file), EOF);
    fclose(file);
    command_ok(*state, "generate --class 7 --num 1 --out seven.png");
    png_image png = {.version = PNG_IMAGE_VERSION};
    assert_true(png_image_begin_read_from_file(&png, path_in(*state, "seven.png")));
    png.format = PNG_FORMAT_RGB;
    assert_true(png.width == 32 && png.height == 32);
    uint8_t made[32 * 32 * 3];
    assert_true(png_image_finish_read(&png, NULL, made, 0, NULL));
    assert_memory_equal(written, made, sizeof made);

    static const char *const files[][2] = {{"include", "mar.h"}, {".", "README.md"}};
    char *lines = squeezed(EXPANDED(TEN_LINES("mar_base.safetensors", "kl16.safetensors", 207)));
    char *null = squeezed(EXPANDED(NULL)); /* the preprocessor has expanded it */
    for (char *at; (at = strstr(lines, null));) {
        memmove(at + 4, at + strlen(null), strlen(at + strlen(null)) + 1);
        memcpy(at, "NULL", 4);
    }
    free(null);
    for (int i = 0; i < 2; i++) {
        char *text = read_whole_file(files[i][0], files[i][1], NULL), *squeezed_text = squeezed(text);
        if (!strstr(squeezed_text, lines)) fail_msg("%s: not the lines of this test: %s", files[i][1], lines);
        free(squeezed_text);
        free(text);
    }
    free(lines);
}

/* --- (g) records ------------------------------------------------------------------------------------------ */

static int has_type(const mar_param *p, const cJSON *value)
{
    switch (p->type) {
    case MAR_TYPE_FLAG:
        return cJSON_IsBool(value);
    case MAR_TYPE_INT:
        if (cJSON_IsString(value)) return mar_param_choice(p, value->valuestring) >= 0;
        return cJSON_IsNumber(value);
    case MAR_TYPE_UINT64:
    case MAR_TYPE_FLOAT:
        return cJSON_IsNumber(value);
    case MAR_TYPE_CHOICE:
        return cJSON_IsString(value) && mar_param_choice(p, value->valuestring) >= 0;
    default:
        return cJSON_IsString(value) || cJSON_IsNull(value);
    }
}

/* Returns whether the option is for the demo model: for its tokens, and not for a flow's alone. */
static int is_for_demo(const mar_param *p)
{
    if (strcmp(p->name, "time_shift") == 0 || strcmp(p->name, "token_norm") == 0) return 0;
    return !p->tokens || strcmp(p->tokens, "continuous") == 0;
}

/* Checks the parameters of a record: the options that have an effect with the given ones, each with its type. */
static void assert_parameters(const cJSON *parameters, const mar_params *given)
{
    int expected = 0;
    assert_true(cJSON_IsObject(parameters));
    for (int i = 0; i < mar_param_count(); i++) {
        const mar_param *p = mar_param_get(i);
        const cJSON *value = cJSON_GetObjectItemCaseSensitive(parameters, p->name);
        const int used = is_for_demo(p) && !mar_params_unused(given, i);
        expected += used;
        if (used != (value != NULL)) fail_msg("%s: %s", p->name, value ? "has no effect" : "is missing");
        if (value && !has_type(p, value)) fail_msg("%s: has the wrong type", p->name);
    }
    assert_int_equal(cJSON_GetArraySize(parameters), expected);
}

/* Reads the text of a picture into `names` and `values`. Returns their number. */
static int texts_of(const char *directory, const char *name, char names[NAMES_MAX][64], char values[NAMES_MAX][64])
{
    size_t size, at = 8;
    char *file = read_whole_file(directory, name, &size);
    int n = 0;
    while (at + 8 < size) { /* chunks: length, type, data, checksum */
        const uint8_t *c = (const uint8_t *)file + at;
        const size_t length = (size_t)c[0] << 24 | (size_t)c[1] << 16 | (size_t)c[2] << 8 | c[3];
        const char *key = (const char *)c + 8;
        if (memcmp(c + 4, "tEXt", 4) == 0) {
            const size_t key_length = strlen(key);
            snprintf(names[n], 64, "%s", key);
            snprintf(values[n++], 64, "%.*s", (int)(length - key_length - 1), key + key_length + 1);
        }
        at += 12 + length;
    }
    free(file);
    return n;
}

/* Checks that a key of the picture is one of `other`, or an option with an effect and a value. The text is that value.
 * */
static void assert_texts(const char *directory, const char *name, const mar_params *given, const cJSON *parameters)
{
    static const char other[] = " Software class image model vae heads model_id vae_id draft_id arithmetic backend "
                                "dtype head_dtype int8_below guarantee ";
    char names[NAMES_MAX][64], values[NAMES_MAX][64], word[80];
    const int n = texts_of(directory, name, names, values);
    for (int k = 0; k < n; k++) {
        const mar_param *p = mar_param_find(names[k]);
        assert_int_equal(index_of(names[k], names, n), k); /* once */
        snprintf(word, sizeof word, " %.63s ", names[k]);
        if (!p && !strstr(other, word)) fail_msg("%s: is no option", names[k]);
    }
    for (int i = 0; i < mar_param_count(); i++) {
        const mar_param *p = mar_param_get(i);
        const int k = index_of(p->name, names, n);
        const int always = p->method || strcmp(p->group, "Steps") == 0 || strcmp(p->group, "Sampling") == 0;
        const cJSON *value = cJSON_GetObjectItem(parameters, p->name);
        const int used = is_for_demo(p) && !mar_params_unused(given, i) &&
                         (always || p->type == MAR_TYPE_MODEL || !mar_param_is_default(p, given)) &&
                         !cJSON_IsNull(value);
        if (used != (k >= 0)) fail_msg("%s: %s", p->name, k >= 0 ? "should not be there" : "is missing");
        if (k >= 0 && cJSON_IsString(value)) assert_string_equal(values[k], value->valuestring);
        if (k >= 0 && cJSON_IsNumber(value)) assert_true((float)atof(values[k]) == (float)value->valuedouble);
        if (k >= 0 && cJSON_IsBool(value)) assert_string_equal(values[k], cJSON_IsTrue(value) ? "on" : "off");
    }
}

TEST_CASE(records_are_typed)
{
    static const struct {
        const char *line, *list; /* options of the command; the same for params_with */
        int draft;
    } runs[] = {
        {"--num_iter 2 --num_sampling_steps 3 --seed 18446744073709551615 --temperature 0.7", "temperature 0.7", 0},
        {"--num_iter 2 --num_sampling_steps 3 --draft demo-draft --spec cspd --align off", "spec cspd, align off", 1},
        {"--num_iter 2 --num_sampling_steps 3 --draft demo-draft --head_spec 2", "head_spec 2", 1},
        {"--num_iter 2 --num_sampling_steps 3 --draft self --gamma 2", "spec path, gamma 2", 0},
        {"--num_iter 2 --num_sampling_steps 3 --spec path --head_spec 2", "spec path, head_spec 2", 0},
        {"--num_iter 2 --num_sampling_steps 3 --draft demo-draft --spec path", "spec path", 1},
        {"--num_iter 2 --num_sampling_steps 3 --draft demo-draft --gamma 2", "gamma 2", 1},
        {"--gtr --gtr_generation_steps 2 --num_sampling_steps 3", "gtr on", 0},
        {"--num_iter 2 --diff_annealing cosine --sampler ddim", "diff_annealing cosine, sampler ddim", 0},
    };
    for (size_t i = 0; i < LENGTH(runs); i++) {
        char line[512];
        mar_params given = params_with(runs[i].list);
        given.draft = runs[i].draft ? (mar_model *)&given : NULL; /* never dereferenced */
        if (runs[i].draft && !given.head_spec && !given.spec) given.spec = "path";
        snprintf(line, sizeof line, "generate %s --class 3 --num 1 --out a.png --json", runs[i].line);
        cJSON *record = command_json(*state, "%s", line), *parameters = cJSON_GetObjectItem(record, "parameters");
        assert_parameters(parameters, &given);
        assert_texts(*state, "a.png", &given, parameters);
        assert_null(cJSON_GetObjectItem(parameters, "method"));
        cJSON_Delete(record);
    }
}

/* Checks that the values are exact and are those of the session. */
TEST_CASE(records_are_resolved)
{
    command_result r = command_run(*state, "$MAR generate --class 3 --num 1 --num_sampling_steps 2 --json --out b.png "
                                           "--seed 18446744073709551615 --temperature 0.7");
    assert_int_equal(r.status, 0);
    static const char *const parts[] = {"\"num_iter\":64,",     "\"seed\":18446744073709551615,",
                                        "\"temperature\":0.7,", "\"cfg\":2.9,",
                                        "\"lazy\":false,",      "\"draft\":null"};
    for (size_t i = 0; i < LENGTH(parts); i++)
        if (!strstr(r.out, parts[i])) fail_msg("%s is not in %s", parts[i], r.out);
    command_result_free(&r);
    char names[NAMES_MAX][64], values[NAMES_MAX][64];
    const int n = texts_of(*state, "b.png", names, values);
    assert_string_equal(values[index_of("num_iter", names, n)], "64");
    assert_string_equal(values[index_of("seed", names, n)], "18446744073709551615");
}

TEST_CASE(other_records)
{
    static const char *const lines[] = {
        "bench --num_iter 2 --num_sampling_steps 2 --json",
        "fidelity --num_iter 2 --num_sampling_steps 2 --against --num_iter 2 --num_sampling_steps 2 --num 20 "
        "--json",
    };
    const mar_params given = plain_params();
    for (int i = 0; i < 2; i++) {
        cJSON *record = command_json(*state, "%s", lines[i]);
        const cJSON *of = i == 0 ? record : cJSON_GetObjectItem(record, "reference");
        assert_parameters(cJSON_GetObjectItem(of, "parameters"), &given);
        assert_true(json_find(of, "parameters.num_iter")->valueint == 2);
        assert_null(cJSON_GetObjectItem(of, "method"));
        cJSON_Delete(record);
    }
}

TEST_GROUP(command_setup, command_teardown)
