/* RUN/result.json: a result is read back with the same bits. Any other file is refused in one line. */
#include "tests/support/command.h"

#include "mar_measure.h"
#include "tools/eval/result.h"
#include "tools/cli/json.h"

#include <cjson/cJSON.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* --- results ------------------------------------------------------------------------------------------------------ */

static uint64_t random_state = 1;

static uint64_t random_bits(void)
{
    random_state ^= random_state << 13, random_state ^= random_state >> 7, random_state ^= random_state << 17;
    return random_state;
}

/* Returns any finite number, with any exponent. */
static double random_number(void)
{
    double v;
    do {
        const uint64_t bits = random_bits();
        memcpy(&v, &bits, sizeof v);
    } while (!isfinite(v));
    return v;
}

static long random_count(void)
{
    return (long)(random_bits() >> 11); /* 53 bits */
}

static void fill_text(char *text, size_t size, const char *with)
{
    size_t n = 0;
    for (const char *c = with; n + 1 < size; c = c[1] ? c + 1 : with) text[n++] = *c;
    text[n] = '\0';
}

/* Fills every number with random bits, and every text and list completely. */
static void fill(eval_result *r)
{
    memset(r, 0, sizeof *r); /* with the padding */
    double *const numbers[] = {&r->kid,        &r->kid_deviation, &r->fid,          &r->sfid,
                               &r->is_mean,    &r->is_deviation,  &r->is_adm,       &r->precision,
                               &r->recall,     &r->clip_cosine,   &r->clip_score,   &r->clip_cosine_prefixed,
                               &r->hps_cosine, &r->hps_score,     &r->image_reward, &r->accuracy,
                               &r->generate_s, &r->features_s,    &r->write_s,      &r->merge_s};
    for (size_t i = 0; i < LENGTH(numbers); i++) *numbers[i] = random_number();
    fill_text(r->why_no_sfid, sizeof r->why_no_sfid, "no mu_s, no sigma_s; ");
    fill_text(r->why_no_kid, sizeof r->why_no_kid, "few images ");
    fill_text(r->why_no_precision, sizeof r->why_no_precision, "\"quoted\"\\");
    fill_text(r->protocol, sizeof r->protocol, "reference x.npz\t1234\n");
    fill_text(r->model, sizeof r->model, "<b>&amp;");
    fill_text(r->published, sizeof r->published, "MAR-B ");
    fill_text(r->guarantee, sizeof r->guarantee, "exact to: ");
    fill_text(r->accelerators, sizeof r->accelerators, "--head_spec 8 ");
    snprintf(r->backend, sizeof r->backend, "Prüfstand für Bilder, 図");
    r->warning_count = EVAL_WARNINGS_MAX;
    for (int i = 0; i < EVAL_WARNINGS_MAX; i++) fill_text(r->warnings[i], EVAL_TEXT, "FID of few images is biased ");
    r->images = random_count(), r->reference_images = random_count();
    r->processes = (int)(random_bits() >> 33);
    r->steps = EVAL_CURVE_MAX;
    for (int i = 0; i < r->steps; i++)
        r->accepted[i] = random_count(), r->replaced[i] = random_count(), r->tokens[i] = random_count();
    r->latest = EVAL_CURVE_MAX;
    for (int i = 0; i < r->latest; i++) r->accepted_late[i] = random_count(), r->replaced_late[i] = random_count();
    mar_stats *s = &r->stats;
    double *const of_stats[] = {
        &s->encoder_s,      &s->decoder_s,       &s->head_s,       &s->vae_s,        &s->draft_s,   &s->verify_s,
        &s->total_s,        &s->encoder_flop,    &s->decoder_flop, &s->head_flop,    &s->vae_flop,  &s->draft_flop,
        &s->decoder_bytes,  &s->draft_bytes,     &s->head_calls,   &s->head_batched, &s->head_rows, &s->draft_calls,
        &s->accepted_shift, &s->head_call_bytes, &s->passes,       &s->contexts,     &s->plain_s};
    for (size_t i = 0; i < LENGTH(of_stats); i++) *of_stats[i] = random_number();
    long *const counts[] = {&s->tokens, &s->proposals,   &s->proposals_accepted, &s->drafted,  &s->accepted,
                            &s->rounds, &s->round_steps, &s->residual_tries,     &s->undrafted};
    for (size_t i = 0; i < LENGTH(counts); i++) *counts[i] = random_count();
    for (size_t i = 0; i < sizeof s->accepted_lengths / sizeof *s->accepted_lengths; i++)
        s->accepted_lengths[i] = random_count();
    s->arena_bytes = (size_t)random_count(), s->recorded_bytes = (size_t)random_count();
    s->head_call_products = 1, s->head_calls_max = 2147483647;
}

/* Compares all fields, bit by bit. A field that fill forgets would be 0 in both: this is checked, too. */
COMMAND_CASE(roundtrip)
{
    static eval_result written, read;
    const char *path = path_in(*state, "result.json");
    for (int i = 0; i < 60; i++) {
        fill(&written);
        assert_int_equal(eval_result_write(&written, path), 0);
        memset(&read, 0xab, sizeof read);
        assert_int_equal(eval_result_read(path, &read), 0);
        assert_memory_equal(&written, &read, sizeof read);
    }
    for (size_t at = sizeof written.stats.size; at + 4 <= sizeof written.stats; at += 4) {
        static const char zero[4];
        if (memcmp((const char *)&written.stats + at, zero, 4) == 0 &&
            memcmp((const char *)&written.stats + (at & ~(size_t)7), "\0\0\0\0\0\0\0\0", 8) == 0)
            fail_msg("mar_stats has a field at byte %zu that is not in the file", at);
    }
}

/* Tests numbers that cJSON would round, signed zeros, NaN and infinity. */
COMMAND_CASE(special_numbers)
{
    static const double numbers[] = {0.1, 1.0 / 3, 1.0000000000000002, 5e-324, 1.7976931348623157e308, -0.0};
    static eval_result written, read;
    const char *path = path_in(*state, "result.json");
    for (size_t i = 0; i < LENGTH(numbers); i++) {
        memset(&written, 0, sizeof written);
        written.fid = numbers[i], written.stats.accepted_shift = -numbers[i];
        assert_int_equal(eval_result_write(&written, path), 0);
        assert_int_equal(eval_result_read(path, &read), 0);
        assert_memory_equal(&written, &read, sizeof read);
    }
    written.fid = NAN, written.sfid = INFINITY, written.recall = -NAN;
    assert_int_equal(eval_result_write(&written, path), 0);
    assert_int_equal(eval_result_read(path, &read), 0);
    assert_true(isnan(read.fid) && isnan(read.sfid) && isnan(read.recall) && read.precision == 0);
}

/* Checks that text of any bytes, such as a file's name, is written as UTF-8. */
COMMAND_CASE(text_of_any_bytes)
{
    static eval_result r;
    const char *path = path_in(*state, "result.json");
    memset(&r, 0, sizeof r);
    strcpy(r.model, "a\xff\x80\x1b[31mz");
    assert_int_equal(eval_result_write(&r, path), 0);
    assert_int_equal(eval_result_read(path, &r), 0);
    assert_string_equal(r.model, "a\xef\xbf\xbd\xef\xbf\xbd\x1b[31mz");
}

/* Checks that "numbers" does not depend on time, machine and processes. */
TEST_CASE(what_is_the_same_is_apart)
{
    static eval_result a, b;
    (void)state;
    fill(&a);
    b = a;
    b.generate_s = 1, b.features_s = 2, b.write_s = 3, b.merge_s = 4, b.processes = 5, b.stats.total_s = 6;
    b.stats.head_s = 7, b.stats.arena_bytes = 8;
    strcpy(b.backend, "another");
    for (int i = 0; i < 2; i++) {
        cJSON *of_a = eval_result_json(&a), *of_b = eval_result_json(&b);
        char *texts[2][2];
        for (int k = 0; k < 2; k++) {
            const cJSON *record = k ? of_b : of_a;
            texts[k][0] = cJSON_PrintUnformatted(cJSON_GetObjectItem(record, "numbers"));
            texts[k][1] = cJSON_PrintUnformatted(cJSON_GetObjectItem(record, "run"));
        }
        assert_true(i ? strcmp(texts[0][0], texts[1][0]) != 0 : strcmp(texts[0][0], texts[1][0]) == 0);
        assert_string_not_equal(texts[0][1], texts[1][1]);
        for (int k = 0; k < 4; k++) cJSON_free(texts[k / 2][k % 2]);
        cJSON_Delete(of_a), cJSON_Delete(of_b);
        b.accepted[3]++;
    }
    cJSON_InitHooks(NULL);
}

/* --- files that are refused ------------------------------------------------------------------------------------------
 */

static int read_it(const char *path)
{
    static eval_result r;
    memset(&r, 0xab, sizeof r);
    const int status = eval_result_read(path, &r);
    if (status != 0 && r.images != 0) return 2; /* a refused file leaves no result */
    return status;
}

/* Checks that the file is refused in one line that contains `says`. */
static void expect_refused(const char *directory, const char *text, size_t size, const char *says)
{
    const char *path = path_in(directory, "bad.json");
    write_whole_file(directory, "bad.json", text, size);
    capture_begin();
    command_result p = capture_end(read_it(path));
    const char *line_end = strchr(p.err, '\n');
    if (p.status != 1 || *p.out || !line_end || line_end[1] || !strstr(p.err, "bad.json: ") || !strstr(p.err, says))
        fail_msg("%.200s: status %d, \"%s\", expected \"%s\"", text, p.status, p.err, says);
    command_result_free(&p);
}

/* Returns `text` with the first `old` replaced. The caller frees it. */
static char *replaced(const char *text, const char *old, const char *new)
{
    char *result, *at = strstr(text, old);
    if (!at) fail_msg("the file has no %s", old);
    if (asprintf(&result, "%.*s%s%s", (int)(at - text), text, new, at + strlen(old)) < 0) fail_msg("out of memory");
    return result;
}

COMMAND_CASE(damaged)
{
    static eval_result r;
    static const struct {
        const char *old, *new, *says;
    } cases[] = {
        {"\"fid\":\t1.5", "\"fid\":\t\"1.5\"", "numbers.fid is missing or is not a number or null, expected what mar"},
        {"\"fid\"", "\"FID\"", "numbers.fid is missing"},
        {"\"numbers\"", "\"figures\"", "numbers is missing or is not an object"},
        {"\"run\"", "\"walk\"", "bad.json: run is missing or is not an object"},
        {"\"costs\"", "\"price\"", "run.costs is missing"},
        {"\"counts\"", "\"earls\"", "numbers.counts is missing"},
        {"\"images\":\t7", "\"images\":\t7.5", "numbers.images is missing or is not a whole number"},
        {"\"images\":\t7", "\"images\":\t1e300", "numbers.images is"},
        {"\"images\":\t7", "\"images\":\tnull", "numbers.images is"},
        {"\"processes\":\t2", "\"processes\":\t3000000000", "run.processes is"},
        {"\"arena_bytes\":\t0", "\"arena_bytes\":\t-1", "run.costs.arena_bytes is"},
        {"\"steps\":\t2", "\"steps\":\t3", "numbers.accepted_by_step has 2 numbers, expected 3"},
        {"\"steps\":\t2", "\"steps\":\t-1", "numbers.steps is -1, expected 0 to 1024"},
        {"\"steps\":\t2", "\"steps\":\t1025", "numbers.steps is 1025, expected 0 to 1024"},
        {"\"latest\":\t1", "\"latest\":\t2", "numbers.accepted_by_lateness has 1 numbers, expected 2"},
        {"\"latest\":\t1", "\"latest\":\t1025", "numbers.latest is 1025, expected 0 to 1024"},
        {"[5, 6]", "[5, \"6\"]", "numbers.replaced_by_step is"},
        {"[5, 6]", "{}", "numbers.replaced_by_step is missing or is not a list"},
        {"[\"few images\"]", "[1]", "numbers.warnings.0 is missing or is not a text"},
        {"[\"few images\"]", "[\"\",\"\",\"\",\"\",\"\",\"\",\"\",\"\",\"\",\"\",\"\",\"\",\"\"]",
         "numbers.warnings has 13 texts, expected 12 at most"},
    };
    memset(&r, 0, sizeof r);
    r.fid = 1.5, r.images = 7, r.steps = 2, r.latest = 1, r.processes = 2, r.warning_count = 1;
    r.replaced[0] = 5, r.replaced[1] = 6;
    strcpy(r.warnings[0], "few images");
    const char *path = path_in(*state, "result.json");
    assert_int_equal(eval_result_write(&r, path), 0);
    size_t size;
    char *text = read_whole_file(*state, "result.json", &size);
    for (size_t i = 0; i < LENGTH(cases); i++) {
        char *bad = replaced(text, cases[i].old, cases[i].new);
        expect_refused(*state, bad, strlen(bad), cases[i].says);
        free(bad);
    }
    char name[600], *bad;
    memset(name, 'a', sizeof name), name[sizeof name - 1] = '\0';
    char with[700];
    snprintf(with, sizeof with, "\"model\":\t\"%s\"", name);
    bad = replaced(text, "\"model\":\t\"\"", with);
    expect_refused(*state, bad, strlen(bad), "numbers.model has 599 bytes, expected 511 at most");
    free(bad);
    for (size_t n = 0; n < size - 1; n += n < 40 || n + 40 > size ? 1 : 37) /* cut anywhere */
        expect_refused(*state, text, n, "is no JSON object, expected what mar eval wrote");
    expect_refused(*state, "[]", 2, "is no JSON object");
    expect_refused(*state, "\0\0\0", 3, "is no JSON object");
    bad = replaced(text, "\"version\"", "} \"version\"");
    expect_refused(*state, bad, strlen(bad), "is no JSON object");
    free(bad), free(text);
}

/* Checks that the file is refused at once: a pipe is not waited for. */
static void expect_refused_at(const char *directory, const char *name, const char *says)
{
    const char *path = path_in(directory, "%s", name);
    alarm(30);
    capture_begin();
    command_result p = capture_end(read_it(path));
    alarm(0);
    if (p.status != 1 || !strstr(p.err, says)) fail_msg("status %d, \"%s\", expected \"%s\"", p.status, p.err, says);
    command_result_free(&p);
}

COMMAND_CASE(no_file)
{
    sh_ok(*state, "mkfifo pipe && ln -s /etc/passwd link");
    expect_refused_at(*state, "missing.json", "missing.json: cannot read: No such file or directory\n");
    expect_refused_at(*state, ".", ".: is not a regular file, expected what mar eval wrote\n");
    expect_refused_at(*state, "pipe", "pipe: is not a regular file, expected what mar eval wrote\n");
    expect_refused_at(*state, "link", "link: is a link, expected what mar eval wrote\n");
}

/* Checks that a failed write leaves no file. */
COMMAND_CASE(whole_or_not_at_all)
{
    static eval_result r;
    memset(&r, 0, sizeof r);
    const char *path = path_in(*state, "nowhere/result.json");
    assert_int_equal(eval_result_write(&r, path), 1);
    assert_int_equal(count_files(*state), 0);
}

/* --- in words ----------------------------------------------------------------------------------------------------- */

static void expect_printed(const eval_result *r, const char *text)
{
    capture_begin();
    eval_result_print(r);
    command_result p = capture_end(0);
    if (strcmp(p.out, text) != 0) fail_msg("printed\n%s\nexpected\n%s", p.out, text);
    command_result_free(&p);
}

TEST_CASE(in_words)
{
    static eval_result r;
    memset(&r, 0, sizeof r);
    r.fid = 2.3149, r.sfid = NAN, r.kid = 0.00123456, r.kid_deviation = 0.00012, r.is_mean = 281.7,
    r.is_deviation = 3.21, r.is_adm = 281.6;
    r.precision = 0.8216, r.recall = 0.57, r.accuracy = NAN, r.images = 1000;
    r.clip_score = 31.4159, r.clip_cosine = 0.314159, r.clip_cosine_prefixed = 0.32;
    r.hps_score = 27.182, r.hps_cosine = 0.27182, r.image_reward = -0.5772;
    strcpy(r.why_no_sfid, "ref.npz has no mu_s and sigma_s");
    strcpy(r.protocol, "reference ref.npz");
    r.generate_s = 90, r.features_s = 9, r.merge_s = 1, r.processes = 1, r.warning_count = 1;
    strcpy(r.warnings[0], "FID of fewer than 10000 images is biased");
    r.stats.drafted = 200, r.stats.accepted = 150;
    expect_printed(&r,
                   "  FID                     2.31\n"
                   "  sFID                       –   ref.npz has no mu_s and sigma_s\n"
                   "  KID                 0.001235 ± 0.000120\n"
                   "  Inception score       281.70 ± 3.21\n"
                   "    in ADM's order      281.60\n"
                   "  precision             0.8216\n"
                   "  recall                0.5700\n"
                   "  CLIP score            31.416\n"
                   "  CLIP cosine          0.31416\n"
                   "    with prefix        0.32000\n"
                   "  HPS v2                27.182\n"
                   "  HPS v2 cosine        0.27182\n"
                   "  ImageReward          -0.5772\n"
                   "  0.09 s per image to generate, 10.1 images/s: generating 90.0 %, judging 9.0 %, writing 0.0 %, "
                   "adding up 1.0 %\n"
                   "  75.0 % of 200 drafted tokens were accepted\n"
                   "protocol: reference ref.npz\n"
                   "warning: FID of fewer than 10000 images is biased\n");
    /* The demo's features, images made elsewhere, several processes. */
    r.accuracy = 0.975, r.is_mean = r.is_adm = r.precision = r.recall = r.clip_cosine = NAN, r.why_no_sfid[0] = '\0';
    r.hps_score = r.image_reward = r.kid = NAN;
    strcpy(r.why_no_kid, "few");
    r.generate_s = 0, r.stats.drafted = 0, r.processes = 3, r.warning_count = 0;
    expect_printed(&r, "  Fréchet distance        2.31\n"
                       "  kernel distance            –   few\n"
                       "  digits recognised     0.9750\n"
                       "  333.3 images/s with 3 processes: judging 90.0 %, writing 0.0 %, adding up 10.0 %\n"
                       "protocol: reference ref.npz\n");
    assert_true(eval_result_seconds(&r) == 0);
}
