#include "tools/eval/result.h"

#include "mar_measure.h"

#include "tools/cli/command.h"
#include "tools/cli/json.h"
#include "base/printable.h"
#include "tools/generate/stats.h"

#include <cjson/cJSON.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

/* --- fields of the file ------------------------------------------------------------------------------------------- */

typedef enum { NUMBER, WHOLE_INT, WHOLE_LONG, WHOLE_SIZE, TEXT } field_type;

typedef struct {
    const char *name;
    field_type type;
    size_t offset; /* in its struct */
    size_t size;   /* of a text */
} field;

#define FIELD(structure, type, member)                                                                                 \
    {                                                                                                                  \
#member, type, offsetof(structure, member), sizeof((structure *)0)->member                                     \
    }
#define OF(type, member) FIELD(eval_result, type, member)

/* Numbers that are the same for every number of processes. The protocol's warnings and the curves follow them. */
static const field numbers[] = {
    OF(NUMBER, fid),
    OF(NUMBER, sfid),
    OF(TEXT, why_no_sfid),
    OF(NUMBER, kid),
    OF(NUMBER, kid_deviation),
    OF(TEXT, why_no_kid),
    OF(NUMBER, is_mean),
    OF(NUMBER, is_deviation),
    OF(NUMBER, is_adm),
    OF(NUMBER, precision),
    OF(NUMBER, recall),
    OF(TEXT, why_no_precision),
    OF(NUMBER, clip_cosine),
    OF(NUMBER, clip_score),
    OF(NUMBER, clip_cosine_prefixed),
    OF(NUMBER, hps_cosine),
    OF(NUMBER, hps_score),
    OF(NUMBER, image_reward),
    OF(NUMBER, accuracy),
    OF(TEXT, protocol),
    OF(WHOLE_LONG, images),
    OF(WHOLE_LONG, reference_images),
    OF(TEXT, model),
    OF(TEXT, published),
    OF(TEXT, guarantee),
    OF(TEXT, accelerators),
    OF(WHOLE_INT, steps),
    OF(WHOLE_INT, latest),
    {0},
};

/* Numbers that vary with machine, number of processes and chance. */
static const field of_run[] = {
    OF(TEXT, backend),
    OF(WHOLE_INT, processes),
    OF(NUMBER, generate_s),
    OF(NUMBER, features_s),
    OF(NUMBER, write_s),
    OF(NUMBER, merge_s),
    {0},
};

#define STAT(type, member) FIELD(mar_stats, type, member)

/* Work done for the images, the same for every number of processes. */
static const field counts[] = {
    STAT(WHOLE_LONG, tokens),
    STAT(NUMBER, head_calls),
    STAT(WHOLE_INT, head_calls_max),
    STAT(NUMBER, head_rows),
    STAT(NUMBER, contexts),
    STAT(WHOLE_LONG, proposals),
    STAT(WHOLE_LONG, proposals_accepted),
    STAT(WHOLE_LONG, drafted),
    STAT(WHOLE_LONG, accepted),
    STAT(WHOLE_LONG, rounds),
    STAT(WHOLE_LONG, round_steps),
    STAT(WHOLE_LONG, residual_tries),
    STAT(NUMBER, accepted_shift),
    STAT(WHOLE_LONG, undrafted),
    {0},
};

/* The rest of mar_stats. */
static const field costs[] = {
    STAT(NUMBER, encoder_s),
    STAT(NUMBER, decoder_s),
    STAT(NUMBER, head_s),
    STAT(NUMBER, vae_s),
    STAT(NUMBER, draft_s),
    STAT(NUMBER, verify_s),
    STAT(NUMBER, total_s),
    STAT(NUMBER, encoder_flop),
    STAT(NUMBER, decoder_flop),
    STAT(NUMBER, decoder_bytes),
    STAT(NUMBER, head_flop),
    STAT(NUMBER, vae_flop),
    STAT(NUMBER, draft_flop),
    STAT(NUMBER, draft_bytes),
    STAT(WHOLE_SIZE, arena_bytes),
    STAT(WHOLE_SIZE, recorded_bytes),
    STAT(NUMBER, head_call_bytes),
    STAT(WHOLE_INT, head_call_products),
    STAT(NUMBER, passes),
    STAT(NUMBER, head_batched),
    STAT(NUMBER, draft_calls),
    STAT(NUMBER, plain_s),
    {0},
};

/* --- writing ------------------------------------------------------------------------------------------------------ */

/* Returns a number with 17 digits, to keep every bit. cJSON rounds some numbers to 15. */
static cJSON *number_item(double value)
{
    char text[32];
    if (!isfinite(value)) return cJSON_CreateNull();
    snprintf(text, sizeof text, "%.17g", value);
    return cJSON_CreateRaw(text);
}

static void add_number(cJSON *object, const char *name, double value)
{
    tool_json_add(object, name, number_item(value));
}

/* Returns the text, cut to what a char [size] can hold. */
static cJSON *text_item(const char *text, size_t size)
{
    char cut[5 * EVAL_TEXT];
    snprintf(cut, sizeof cut, "%.*s", (int)printable_fits(text, size), text);
    return cJSON_CreateString(cut);
}

static void add_result_fields(cJSON *object, const field *fields, const void *from)
{
    for (const field *f = fields; f->name; f++) {
        const void *at = (const char *)from + f->offset;
        switch (f->type) {
        case NUMBER:
            add_number(object, f->name, *(const double *)at);
            break;
        case WHOLE_INT:
            cJSON_AddNumberToObject(object, f->name, *(const int *)at);
            break;
        case WHOLE_LONG:
            add_number(object, f->name, (double)*(const long *)at);
            break;
        case WHOLE_SIZE:
            add_number(object, f->name, (double)*(const size_t *)at);
            break;
        case TEXT:
            tool_json_add(object, f->name, text_item(at, f->size));
            break;
        }
    }
}

static void add_curve(cJSON *object, const char *name, const long *values, int n)
{
    cJSON *list = cJSON_AddArrayToObject(object, name);
    for (int i = 0; i < n; i++) tool_json_append(list, number_item((double)values[i]));
}

cJSON *eval_result_json(const eval_result *r)
{
    cJSON *record = tool_json();
    cJSON_AddStringToObject(record, "version", mar_version());
    cJSON *same = cJSON_AddObjectToObject(record, "numbers");
    add_result_fields(same, numbers, r);
    cJSON *warnings = cJSON_AddArrayToObject(same, "warnings");
    for (int i = 0; i < r->warning_count; i++) tool_json_append(warnings, text_item(r->warnings[i], EVAL_TEXT));
    add_result_fields(cJSON_AddObjectToObject(same, "counts"), counts, &r->stats);
    add_curve(same, "accepted_by_step", r->accepted, r->steps);
    add_curve(same, "replaced_by_step", r->replaced, r->steps);
    add_curve(same, "tokens_by_step", r->tokens, r->steps);
    add_curve(same, "accepted_by_lateness", r->accepted_late, r->latest);
    add_curve(same, "replaced_by_lateness", r->replaced_late, r->latest);
    add_curve(same, "accepted_lengths", r->stats.accepted_lengths, STATS_LENGTHS);
    cJSON *run = cJSON_AddObjectToObject(record, "run");
    add_result_fields(run, of_run, r);
    add_result_fields(cJSON_AddObjectToObject(run, "costs"), costs, &r->stats);
    return record;
}

int eval_result_write(const eval_result *r, const char *path)
{
    return json_file_write(eval_result_json(r), path);
}

/* --- reading ------------------------------------------------------------------------------------------------------ */

static const char expected[] = "what mar eval wrote";

/* An object or list of the file being read. */
typedef struct {
    const char *path;  /* of the file */
    const char *name;  /* "numbers.counts" */
    const cJSON *item; /* the object or list */
} place;

static int refuse_field(const place *p, const char *name, const char *wanted)
{
    return tool_error("%s: %s%s%s is missing or is not %s, expected %s", p->path, p->name, *p->name ? "." : "", name,
                      wanted, expected);
}

/* Returns 0, or 1 if the number is not an integer in range. */
static int read_whole(const cJSON *item, field_type type, void *to)
{
    const double limit = type == WHOLE_INT ? 2147483647.0 : 9007199254740992.0, v = item->valuedouble;
    if (!(v >= (type == WHOLE_SIZE ? 0 : -limit) && v <= limit) || v != floor(v)) return 1;
    if (type == WHOLE_INT)
        *(int *)to = (int)v;
    else if (type == WHOLE_LONG)
        *(long *)to = (long)v;
    else
        *(size_t *)to = (size_t)v;
    return 0;
}

static int read_text_field(const place *p, const cJSON *item, const char *name, char *to, size_t size)
{
    if (!cJSON_IsString(item)) return refuse_field(p, name, "a text");
    const size_t length = strlen(item->valuestring);
    if (length >= size)
        return tool_error("%s: %s.%s has %zu bytes, expected %zu at most", p->path, p->name, name, length, size - 1);
    memcpy(to, item->valuestring, length + 1);
    return 0;
}

static int read_result_fields(const place *p, const field *fields, void *to)
{
    for (const field *f = fields; f->name; f++) {
        const cJSON *item = cJSON_GetObjectItemCaseSensitive(p->item, f->name);
        void *at = (char *)to + f->offset;
        if (f->type == TEXT) {
            if (read_text_field(p, item, f->name, at, f->size) != 0) return 1;
        } else if (f->type == NUMBER) {
            if (!cJSON_IsNumber(item) && !cJSON_IsNull(item)) return refuse_field(p, f->name, "a number or null");
            *(double *)at = cJSON_IsNull(item) ? NAN : item->valuedouble;
        } else if (!cJSON_IsNumber(item) || read_whole(item, f->type, at) != 0) {
            return refuse_field(p, f->name, "a whole number in its range");
        }
    }
    return 0;
}

/* Finds the object or list of that name in *in. */
static int enter_field(const place *in, const char *name, const char *full_name, int is_list, place *out)
{
    *out = (place){in->path, full_name, cJSON_GetObjectItemCaseSensitive(in->item, name)};
    if (is_list ? cJSON_IsArray(out->item) : cJSON_IsObject(out->item)) return 0;
    return refuse_field(in, name, is_list ? "a list" : "an object");
}

static int read_warnings(const place *same, eval_result *r)
{
    place list;
    if (enter_field(same, "warnings", "numbers.warnings", 1, &list) != 0) return 1;
    const cJSON *item;
    cJSON_ArrayForEach(item, list.item)
    {
        char name[32];
        snprintf(name, sizeof name, "%d", r->warning_count);
        if (r->warning_count == EVAL_WARNINGS_MAX)
            return tool_error("%s: numbers.warnings has %d texts, expected %d at most", list.path,
                              cJSON_GetArraySize(list.item), EVAL_WARNINGS_MAX);
        if (read_text_field(&list, item, name, r->warnings[r->warning_count], EVAL_TEXT) != 0) return 1;
        r->warning_count++;
    }
    return 0;
}

static int read_curve(const place *same, const char *name, int n, long *values)
{
    place list;
    int i = 0;
    if (enter_field(same, name, name, 1, &list) != 0) return 1;
    if (cJSON_GetArraySize(list.item) != n)
        return tool_error("%s: numbers.%s has %d numbers, expected %d", same->path, name, cJSON_GetArraySize(list.item),
                          n);
    const cJSON *item;
    cJSON_ArrayForEach(item, list.item)
    {
        if (!cJSON_IsNumber(item) || read_whole(item, WHOLE_LONG, &values[i]) != 0)
            return refuse_field(same, name, "a list of whole numbers");
        i++;
    }
    return 0;
}

/* Checks the number of entries. */
static int check_length(const place *same, const char *name, int n)
{
    if (n >= 0 && n <= EVAL_CURVE_MAX) return 0;
    return tool_error("%s: numbers.%s is %d, expected 0 to %d", same->path, name, n, EVAL_CURVE_MAX);
}

static int read_result_record(const place *record, eval_result *r)
{
    place same, run, done, cost;
    if (enter_field(record, "numbers", "numbers", 0, &same) != 0 || read_result_fields(&same, numbers, r) != 0 ||
        read_warnings(&same, r) != 0)
        return 1;
    if (check_length(&same, "steps", r->steps) != 0 || check_length(&same, "latest", r->latest) != 0) return 1;
    return enter_field(&same, "counts", "numbers.counts", 0, &done) || read_result_fields(&done, counts, &r->stats) ||
           read_curve(&same, "accepted_by_step", r->steps, r->accepted) ||
           read_curve(&same, "replaced_by_step", r->steps, r->replaced) ||
           read_curve(&same, "tokens_by_step", r->steps, r->tokens) ||
           read_curve(&same, "accepted_by_lateness", r->latest, r->accepted_late) ||
           read_curve(&same, "replaced_by_lateness", r->latest, r->replaced_late) ||
           read_curve(&same, "accepted_lengths", STATS_LENGTHS, r->stats.accepted_lengths) ||
           enter_field(record, "run", "run", 0, &run) || read_result_fields(&run, of_run, r) ||
           enter_field(&run, "costs", "run.costs", 0, &cost) || read_result_fields(&cost, costs, &r->stats);
}

int eval_result_read(const char *path, eval_result *r)
{
    cJSON *json;
    memset(r, 0, sizeof *r);
    if (json_file_read(path, expected, &json) != 0) return 1;
    const place record = {path, "", json};
    const int failed = read_result_record(&record, r);
    cJSON_Delete(json);
    if (failed) memset(r, 0, sizeof *r);
    return failed;
}

/* --- text --------------------------------------------------------------------------------------------------------- */

double eval_result_seconds(const eval_result *r)
{
    return r->images > 0 ? r->generate_s / (double)r->images : 0;
}

double eval_result_rate(const eval_result *r)
{
    const double seconds = r->generate_s + r->features_s + r->write_s;
    return seconds > 0 ? (double)r->images * (r->processes > 1 ? r->processes : 1) / seconds : 0;
}

static int is_of_inception(const eval_result *r)
{
    /* Without a recognised share, as for images made elsewhere, the protocol names the network. */
    return isnan(r->accuracy) && !strstr(r->protocol, "features demo digits;");
}

const char *eval_result_distance(const eval_result *r)
{
    return is_of_inception(r) ? "FID" : "Fréchet distance";
}

const char *eval_result_kernel(const eval_result *r)
{
    return is_of_inception(r) ? "KID" : "kernel distance";
}

/* Prints "name   1.23 ± 0.45", or why it is missing. */
static void print_result_number(const char *name, double value, int digits, const char *why)
{
    const int letters = (int)strlen(name) - (strstr(name, "é") != NULL); /* é has two bytes */
    printf("  %s%*s", name, 18 - letters, "");
    if (isfinite(value))
        printf("%10.*f\n", digits, value);
    else
        printf("         –%s%s\n", *why ? "   " : "", why);
}

static void print_speed(const eval_result *r)
{
    const double all = r->generate_s + r->features_s + r->write_s + r->merge_s;
    if (!(all > 0)) return;
    if (r->generate_s > 0)
        printf("  %.4g s per image to generate, ", eval_result_seconds(r));
    else
        printf("  ");
    printf("%.4g images/s", eval_result_rate(r));
    if (r->processes > 1) printf(" with %d processes", r->processes);
    fputs(": ", stdout);
    if (r->generate_s > 0) printf("generating %.1f %%, ", 100 * r->generate_s / all);
    printf("judging %.1f %%, writing %.1f %%, adding up %.1f %%\n", 100 * r->features_s / all, 100 * r->write_s / all,
           100 * r->merge_s / all);
}

static void print_drafts(const mar_stats *s)
{
    if (s->drafted > 0)
        printf("  %.1f %% of %ld drafted tokens were accepted\n", 100.0 * (double)s->accepted / (double)s->drafted,
               s->drafted);
    if (s->proposals > 0)
        printf("  %.1f %% of %ld proposals in the head were accepted\n",
               100.0 * (double)s->proposals_accepted / (double)s->proposals, s->proposals);
}

void eval_result_print(const eval_result *r)
{
    if (isfinite(r->fid) || isfinite(r->is_mean)) /* neither without a network */
        print_result_number(eval_result_distance(r), r->fid, 2, "there is no reference; --stats names one");
    if (isfinite(r->sfid) || *r->why_no_sfid) print_result_number("sFID", r->sfid, 2, r->why_no_sfid);
    if (isfinite(r->kid))
        printf("  %-18s%10.6f ± %.6f\n", eval_result_kernel(r), r->kid, r->kid_deviation);
    else if (*r->why_no_kid)
        print_result_number(eval_result_kernel(r), r->kid, 6, r->why_no_kid);
    if (isfinite(r->is_mean)) printf("  Inception score   %10.2f ± %.2f\n", r->is_mean, r->is_deviation);
    if (isfinite(r->is_adm)) print_result_number("  in ADM's order", r->is_adm, 2, "");
    if (isfinite(r->precision) || *r->why_no_precision) {
        print_result_number("precision", r->precision, 4, r->why_no_precision);
        print_result_number("recall", r->recall, 4, "");
    }
    if (isfinite(r->clip_cosine)) {
        print_result_number("CLIP score", r->clip_score, 3, "");
        print_result_number("CLIP cosine", r->clip_cosine, 5, "");
        print_result_number("  with prefix", r->clip_cosine_prefixed, 5, "");
    }
    if (isfinite(r->hps_score)) {
        print_result_number("HPS v2", r->hps_score, 3, "");
        print_result_number("HPS v2 cosine", r->hps_cosine, 5, "");
    }
    if (isfinite(r->image_reward)) print_result_number("ImageReward", r->image_reward, 4, "");
    if (isfinite(r->accuracy)) print_result_number("digits recognised", r->accuracy, 4, "");
    print_speed(r);
    print_drafts(&r->stats);
    if (*r->guarantee) printf("%s\n", r->guarantee);
    printf("protocol: %s\n", r->protocol);
    for (int i = 0; i < r->warning_count; i++) printf("warning: %s\n", r->warnings[i]);
}

void eval_result_print_page(const char *directory)
{
    char path[4096];
    printable(directory, path, sizeof path);
    printf("report: %s%sreport.html\n", path, path[strlen(path) - 1] == '/' ? "" : "/");
}
