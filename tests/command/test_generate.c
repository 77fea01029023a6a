/* mar generate on the demo: files, their text, the record, progress, and the options that change an image. */
#include "tests/support/command.h"

#include <cjson/cJSON.h>
#include <math.h>
#include <png.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

/* Enough to run everything, short enough for many runs. */
#define QUICK "--num_iter 4 --num_sampling_steps 8 "

/* --- PNG, read back with libpng --------------------------------------------------------------------- */

typedef struct {
    png_structp png;
    png_infop info;
    int width, height;
    png_bytepp rows;
} picture;

static picture open_picture(const char *directory, const char *name)
{
    picture p;
    char path[4096];
    snprintf(path, sizeof path, "%s/%s", directory, name);
    FILE *f = fopen(path, "rb");
    if (!f) fail_msg("%s: cannot open", path);
    p.png = png_create_read_struct(PNG_LIBPNG_VER_STRING, NULL, NULL, NULL);
    p.info = png_create_info_struct(p.png);
    if (setjmp(png_jmpbuf(p.png))) fail_msg("%s: not a whole PNG", path);
    png_init_io(p.png, f);
    png_read_png(p.png, p.info, PNG_TRANSFORM_IDENTITY, NULL);
    p.width = (int)png_get_image_width(p.png, p.info);
    p.height = (int)png_get_image_height(p.png, p.info);
    p.rows = png_get_rows(p.png, p.info);
    assert_int_equal(png_get_color_type(p.png, p.info), PNG_COLOR_TYPE_RGB);
    assert_int_equal(png_get_bit_depth(p.png, p.info), 8);
    fclose(f);
    return p;
}

static void close_picture(picture *p)
{
    png_destroy_read_struct(&p->png, &p->info, NULL);
}

static const char *text_of(const picture *p, const char *key)
{
    png_textp texts;
    int n;
    png_get_text(p->png, p->info, &texts, &n);
    for (int i = 0; i < n; i++)
        if (strcmp(texts[i].key, key) == 0) return texts[i].text;
    return "(absent)";
}

static void assert_text(const picture *p, const char *key, const char *value)
{
    if (strcmp(text_of(p, key), value) != 0) fail_msg("%s is \"%s\", expected \"%s\"", key, text_of(p, key), value);
}

/* Checks the texts in a list such as "class=7|image=2". "(absent)" means that the text is missing. */
static void assert_texts(const picture *p, const char *list)
{
    char *all = strdup(list), *rest = all;
    for (char *value; (value = strsep(&rest, "|"));) {
        const char *key = strsep(&value, "=");
        assert_text(p, key, value);
    }
    free(all);
}

/* --- tests ------------------------------------------------------------------------------------------ */

COMMAND_CASE(text_chunks)
{
    const char *d = *state;
    command_ok(d, "generate --class 3,7 --num 2 --seed 18446744073709551615 --cfg 1.7 --cfg_schedule constant "
                  "--temperature 0.9 " QUICK "--out d --grid");
    assert_int_equal(count_files(d), 1);
    assert_int_equal(count_files(path_in(d, "d")), 5); /* four images and the grid, no temporary file */

    picture p = open_picture(d, "d/000002.png");
    assert_texts(&p, "class=7|class_name=(absent)|image=2|seed=18446744073709551615|cfg=1.7|cfg_schedule=constant|"
                     "temperature=0.9|num_iter=4|num_sampling_steps=8|model=demo|vae=demo");
    assert_has(text_of(&p, "Software"), "libmar ");
    assert_null(strstr(text_of(&p, "arithmetic"), "thread")); /* changes nothing in the image */
    close_picture(&p);

    p = open_picture(d, "d/grid.png");
    assert_texts(&p, "class=3,7|image=0-3|num=2");
    close_picture(&p);
}

/* Checks that the images of a grid equal those of a directory, pixel by pixel. The manual page states their cells. */
COMMAND_CASE(grid_and_directory)
{
    const char *d = *state;
    command_ok(d, "generate --class 1,2,5 --num 2 " QUICK "--out grid.png");
    command_ok(d, "generate --class 1,2,5 --num 2 " QUICK "--out d --quiet");
    picture grid = open_picture(d, "grid.png");
    for (int i = 0; i < 6; i++) {
        char name[32];
        snprintf(name, sizeof name, "d/%06d.png", i);
        picture p = open_picture(d, name);
        assert_true(p.width >= 32 && p.height >= 32);
        assert_int_equal(grid.width, 3 * p.width + 4); /* a column is a class; two white pixels between */
        assert_int_equal(grid.height, 2 * p.height + 2);
        int left = i / 2 * (p.width + 2), top = i % 2 * (p.height + 2);
        for (int y = 0; y < p.height; y++)
            assert_memory_equal(grid.rows[top + y] + 3 * left, p.rows[y], 3 * (size_t)p.width);
        close_picture(&p);
    }
    close_picture(&grid);
}

COMMAND_CASE(single_image)
{
    const char *d = *state;
    command_result r = command_run(d, "$MAR generate --class 4 --num 1 " QUICK "--out One.PNG");
    assert_int_equal(r.status, 0);
    assert_string_equal(r.err, "");
    assert_has(r.out, "wrote One.PNG: 1 image of 32x32 in ");
    command_result_free(&r);
    picture p = open_picture(d, "One.PNG");
    assert_int_equal(p.width, 32);
    assert_int_equal(p.height, 32);
    assert_texts(&p, "class=4|image=0");
    close_picture(&p);
    assert_int_equal(count_files(d), 1);

    r = command_run(d,
                    "umask 027; $MAR generate --class 4 --num 1 " QUICK "--out One.PNG --quiet && stat -c %a One.PNG");
    assert_string_equal(r.out, "640\n"); /* mode of a plain open; nothing else printed */
    command_result_free(&r);
}

/* Checks that the same seed gives the same bytes for any batch, number of threads and number of images. */
COMMAND_CASE(what_an_image_depends_on)
{
    const char *d = *state;
    static const char *const variants[] = {"--batch 1 --threads 1", "--batch 3 --threads 2", "--batch 5 --threads 1",
                                           "--threads 2 --grid"};
    for (int v = 0; v < 4; v++) {
        command_ok(d, "generate --class 0,8,5,3,9 --num 1 --seed 11 " QUICK "%s --out %d", variants[v], v);
    }
    command_ok(d, "generate --class 0,8 --num 1 --seed 11 " QUICK "--out fewer");
    command_ok(d, "generate --class 0,8 --num 1 --seed 12 " QUICK "--out other");
    for (int i = 0; i < 5; i++)
        for (int v = 1; v < 4; v++) {
            char a[32], b[32];
            snprintf(a, sizeof a, "0/%06d.png", i);
            snprintf(b, sizeof b, "%d/%06d.png", v, i);
            assert_same_file(d, a, b);
        }
    assert_same_file(d, "0/000001.png", "fewer/000001.png");
    sh_ok(d, "! cmp -s 0/000000.png other/000000.png");
}

COMMAND_CASE(json_record)
{
    const char *d = *state;
    cJSON *record =
        command_json(d, "generate --class 2,0 --num 3 --seed 5 --cfg 2.9 " QUICK "--batch 4 --out d --grid --json");
    assert_true(json_number(record, "images") == 6);
    assert_true(json_number(record, "width") == 32);
    assert_true(json_number(record, "parameters.seed") == 5 && json_number(record, "parameters.num_iter") == 4);
    assert_true(json_number(record, "parameters.cfg") == 2.9);
    const cJSON *files = cJSON_GetObjectItem(record, "files"), *file;
    assert_int_equal(cJSON_GetArraySize(files), 6);
    cJSON_ArrayForEach(file, files)
    {
        picture p = open_picture(d, json_text(file, "file"));
        assert_int_equal(atoi(text_of(&p, "class")), (int)json_number(file, "class"));
        assert_int_equal(atoi(text_of(&p, "image")), (int)json_number(file, "image"));
        close_picture(&p);
    }
    picture p = open_picture(d, json_text(record, "grid.file"));
    close_picture(&p);

    double seconds = json_number(record, "seconds"), parts = 0;
    static const char *const names[] = {"encoder", "decoder", "head", "vae"};
    for (int i = 0; i < 4; i++) {
        const cJSON *part = cJSON_GetObjectItem(cJSON_GetObjectItem(record, "split"), names[i]);
        assert_true(json_number(part, "seconds") > 0);
        assert_true(json_number(part, "flop") > 0);
        parts += json_number(part, "seconds");
    }
    assert_true(parts <= seconds);
    assert_true(json_number(record, "seconds_per_image") > 0);
    assert_non_null(cJSON_GetObjectItem(record, "backend"));
    cJSON_Delete(record);
}

/* Checks that mar bench says how the backend computes the head. */
COMMAND_CASE(bench_says_how)
{
    static const char how[] = "head: matrix products in ";
    cJSON *report = command_json(*state, "bench --num_iter 1 --num_sampling_steps 4 --json");
    assert_int_equal(strncmp(json_text(report, "computed"), how, strlen(how)), 0);
    cJSON_Delete(report);
    command_result r = command_mar(*state, "bench --num_iter 1 --num_sampling_steps 4");
    assert_has(r.out, "\nhead: matrix products in ");
    command_result_free(&r);
}

static cJSON *generated(const char *directory, const char *arguments)
{
    return command_json(directory, "generate %s --json --threads 1", arguments);
}

/* Checks that the record has a list of `length` rates, or null where nothing was verified. */
static void assert_rates(const cJSON *record, const char *key, int length)
{
    const cJSON *list = cJSON_GetObjectItem(record, key), *rate;
    int some = 0;
    assert_int_equal(cJSON_GetArraySize(list), length);
    cJSON_ArrayForEach(rate, list)
    {
        if (cJSON_IsNull(rate)) continue;
        assert_true(rate->valuedouble >= 0 && rate->valuedouble <= 1);
        some++;
    }
    assert_in_range(some, 1, length);
}

/* Returns where cell i of a row or column of cells begins: 8 of 4 pixels an image, 2 pixels between images. */
static int cell_begin(int i)
{
    return i / 8 * (8 * 4 + 2) + i % 8 * 4;
}

/* Counts the cells of a map of images x images by colour. Fails on other colours and on a cell of two colours. */
static void count_map(const picture *p, int images, int *accepted, int *replaced, int *target)
{
    static const uint8_t green[3] = {27, 120, 55}, light[3] = {166, 219, 160}, grey[3] = {190, 190, 190};
    const int side = 8 * images;
    assert_int_equal(p->width, cell_begin(side - 1) + 4);
    *accepted = *replaced = *target = 0;
    for (int i = 0; i < side * side; i++) {
        const int top = cell_begin(i / side), left = 3 * cell_begin(i % side);
        const png_bytep corner = p->rows[top] + left;
        for (int y = 0; y < 4; y++)
            for (int x = 0; x < 4; x++) assert_memory_equal(p->rows[top + y] + left + 3 * x, corner, 3);
        *accepted += memcmp(corner, green, 3) == 0;
        *replaced += memcmp(corner, light, 3) == 0;
        *target += memcmp(corner, grey, 3) == 0;
    }
    assert_int_equal(*accepted + *replaced + *target, side * side);
}

/* Checks that every run says what its images' distribution is relative to, on a line and in its pictures. */
COMMAND_CASE(guarantee)
{
    static const char few[] = "; not the model's defaults: num_iter 4 (64), num_sampling_steps 8 (100)";
    static const struct {
        const char *options, *says, *departs;
    } runs[] = {
        {"--num_iter 64", "exact to: plain sampling, 64 steps of 100 (the model's defaults)", ""},
        {QUICK, "exact to: plain sampling, 4 steps of 8", few},
        {QUICK "--head_spec 2", "exact to: plain sampling, 4 steps of 8, by speculation inside the head", few},
        {QUICK "--sampler ddim", "approximate: changed by sampler ddim; relative to plain sampling, 4 steps of 8", few},
        {QUICK "--draft demo-draft --gamma 8",
         "exact to: plain sampling, 4 steps of 8, of whole paths, by criterion path with drafts of the draft model; an "
         "accepted token is its draft's last, noiseless mean, as later contexts saw it (accepted_shift measures the "
         "difference)",
         few},
        {"--model demo-discrete --cfg 1 --draft demo-discrete-draft --spec lantern",
         "approximate: changed by lantern; guarantee: the distribution a draft is tested against is within TV delta of "
         "the "
         "target's; relative to plain sampling, 64 steps",
         "; not the model's defaults: cfg 1 (2.9)"},
        /* noise, which no option accelerates */
        {"--num_iter 1 --num_sampling_steps 2", "exact to: plain sampling, 1 step of 2",
         "; not the model's defaults: num_iter 1 (64), num_sampling_steps 2 (100)"},
        {"--temperature 0", "exact to: plain sampling, 64 steps of 100",
         "; not the model's defaults: temperature 0 (1)"},
        {"--cfg 30", "exact to: plain sampling, 64 steps of 100", "; not the model's defaults: cfg 30 (2.9)"},
        {"--model demo-discrete --top_k 3 --top_p 0.5 --cfg_interval 4 --spec sjd",
         "exact to: plain sampling, 64 steps, by speculation (sjd)",
         "; not the model's defaults: cfg_interval 4 (-1), top_k 3 (0), top_p 0.5 (1)"},
        {"--gtr --num_sampling_steps 9", "approximate: changed by gtr; relative to plain sampling, 64 steps of 9",
         "; not the model's defaults: num_sampling_steps 9 (100)"},
    };
    for (size_t i = 0; i < LENGTH(runs); i++) {
        char line[300], expected[600];
        snprintf(line, sizeof line, "$MAR generate %s --class 3 --num 1 --out g%zu.png", runs[i].options, i);
        snprintf(expected, sizeof expected, "%s%s", runs[i].says, runs[i].departs);
        command_result r = command_run(*state, line);
        if (r.status != 0) fail_msg("%s: %s", line, r.err);
        char *at = strchr(r.out, '\n');
        at[1 + strcspn(at + 1, "\n")] = '\0';
        assert_string_equal(at + 1, expected);
        char name[16];
        snprintf(name, sizeof name, "g%zu.png", i);
        picture p = open_picture(*state, name);
        assert_text(&p, "guarantee", expected);
        close_picture(&p);
        command_result_free(&r);
    }
    static const char *const others[] = {"bench", "fidelity --num 20 --versus " QUICK "--against"};
    for (int i = 0; i < 2; i++) {
        char line[300], expected[160];
        snprintf(line, sizeof line, "$MAR %s %s", others[i], QUICK);
        snprintf(expected, sizeof expected, "exact to: plain sampling, 4 steps of 8%s\n", few);
        command_result r = command_run(*state, line);
        if (!strstr(r.out, expected)) fail_msg("%s: %s%s", line, r.out, r.err);
        command_result_free(&r);
    }
    /* methods word theirs alike */
    sh_ok(*state,
          "$MAR methods --name head-spec | grep -q 'guarantee: *exact to: plain sampling with the same options$'");
    sh_ok(*state, "! $MAR methods | grep -q 'exact: \\|the target.s distribution$'");
}

/* A LlamaGen file that does not say how many tokens an image has: the run warns that 256 is a guess. */
COMMAND_CASE(guessed_tokens)
{
    size_t size;
    char *model = read_whole_file("weights/demo", "discrete-target.safetensors", &size);
    char *key = memmem(model, size, "mar.seq_len", 11);
    assert_non_null(key);
    *key = 'x';
    write_whole_file(*state, "silent.safetensors", model, size);
    static const char pairs[] = "\"xar.seq_len\":\"64\",\"mar.data\":\"";
    key = memmem(model, size, pairs, sizeof pairs - 1);
    assert_non_null(key);
    memcpy(key, "\"args.image_size\":\"128\", \"xx\":\"", sizeof pairs - 1);
    write_whole_file(*state, "half.safetensors", model, size);
    free(model);
    command_result r = command_run(
        *state, "$MAR generate --model silent.safetensors --vq demo-discrete --class 3 --num 1 --out a.png");
    assert_int_equal(r.status, 0);
    assert_string_equal(r.err,
                        "mar: warning: model silent.safetensors: nothing in the file says how many tokens an image "
                        "has: 256 is a guess, for 256 pixels; with another --seq_len: 576 for 384 pixels, 784 for "
                        "448, 1024 for 512\n");
    command_result_free(&r);
    r = command_run(*state,
                    "$MAR generate --model silent.safetensors --seq_len 64 --vq demo-discrete --class 3 --num 1 "
                    "--out b.png");
    assert_string_equal(r.err, "");
    command_result_free(&r);
    sh_ok(*state,
          "$MAR inspect silent.safetensors | grep -q '^tokens: 256 of a vocabulary of 256 (nothing in the file'");
    /* One of the two options that give the number is there; mar convert keeps it. */
    r = command_run(*state, "$MAR convert half.safetensors again.safetensors && "
                            "$MAR generate --model again.safetensors --vq demo-discrete --class 3 --num 1 --out c.png");
    assert_int_equal(r.status, 0);
    const char *said = strstr(r.err, "mar: warning: ");
    assert_non_null(said);
    assert_string_equal(said, "mar: warning: model again.safetensors: args.image_size is 128, args.downsample_size is "
                              "missing: 64 is a guess, with 16; --seq_len gives another\n");
    command_result_free(&r);
    sh_ok(*state, "$MAR inspect half.safetensors | grep -q '^tokens: 64 of a vocabulary of 256 (args.image_size is '");
}

COMMAND_CASE(speculation)
{
    const char *d = *state;
    cJSON *record = generated(d, "--draft demo-draft --spec cspd --gamma 3 --prefill 0.1 --class 3 --num 9 "
                                 "--num_iter 10 --num_sampling_steps 20 --accept_map map.png --out a.png");
    static const char *const keys[] = {"mean_accepted_length", "residual_tries",          "head_calls_per_token",
                                       "head_calls_max",       "draft_calls_in_sequence", "seconds_per_image"};
    for (size_t i = 0; i < LENGTH(keys); i++)
        if (!(json_number(record, keys[i]) > 0)) fail_msg("%s is not positive", keys[i]);
    assert_rates(record, "acceptance_per_step", 10);
    assert_rates(record, "acceptance_per_position", 64);
    static const char *const parts[] = {"split.draft.seconds", "split.head.seconds", "split.verification.seconds"};
    for (int i = 0; i < 3; i++) assert_true(json_number(record, parts[i]) > 0);
    assert_string_equal(json_text(record, "accept_map.file"), "map.png");

    int accepted, replaced, target; /* of nine images: one alone may have no accepted draft */
    picture p = open_picture(d, "map.png");
    count_map(&p, 3, &accepted, &replaced, &target);
    assert_true(target > 0 && accepted > 0); /* the first step comes from the target */
    assert_true(fabs(json_number(record, "acceptance_rate") - accepted / (double)(accepted + replaced)) < 1e-12);
    assert_text(&p, "Title",
                "accepted tokens: dark green accepted, light green replaced, grey made by the target alone");
    close_picture(&p);
    cJSON_Delete(record);
}

/* The choice is told: here the plain chain, as states cost as many times one. */
COMMAND_CASE(head_speculation_by_choice)
{
    const char run[] = "--head_spec auto --head_costs 2,4,8,16 --class 3 --num 1 --num_iter 16 --out a.png";
    cJSON *record = generated(*state, run);
    assert_true(json_number(record, "states_per_head_call") == 1 && json_number(record, "tokens_by_plain_chain") == 1);
    assert_true(json_number(record, "plain_head_seconds") > 0);
    cJSON_Delete(record);
    command_result r = command_mar(*state, "generate %s", run);
    assert_non_null(strstr(r.out, "--head_spec auto: 1.0 states a call of the head, 100 % of the tokens by the plain"));
    command_result_free(&r);
}

/* By default a CPU makes no drafts, which is told, and auto measures them. */
COMMAND_CASE(paths_by_choice)
{
    const char *d = *state;
    cJSON *record = generated(d, "--spec path --class 3 --num 1 --num_iter 8 --out a.png");
    assert_true(json_number(record, "rounds_without_drafts") == 1 && json_number(record, "mean_drafts") == 0);
    assert_true(json_number(record, "decoding_seconds") == json_number(record, "plain_decoding_seconds"));
    assert_string_equal(json_text(record, "parameters.gamma"), "standard");
    cJSON_Delete(record);
    record = generated(d, "--spec path --gamma auto --class 3 --num 1 --num_iter 8 --out b.png");
    assert_true(json_number(record, "parameters.gamma") >= 2 && *json_text(record, "parameters.round_costs") >= '1');
    assert_true(json_number(record, "plain_decoding_seconds") > 0);
    cJSON_Delete(record);
    record = generated(d, "--spec path --gamma 2 --class 3 --num 1 --num_iter 8 --out c.png");
    assert_null(cJSON_GetObjectItem(record, "rounds_without_drafts"));
    cJSON_Delete(record);
    command_result r =
        command_mar(d, "generate --spec path --round_costs 1,1,1 --class 3 --num 1 --num_iter 8 --out d.png");
    assert_non_null(strstr(r.out, " drafts a round, none in "));
    assert_non_null(strstr(r.out, "s, and without drafts would have taken "));
    command_result_free(&r);
}

/* The costs of a draft model end with that of a token that it catches up on, after plain rounds. Rounds are chosen by
 * it, and pictures have it. */
COMMAND_CASE(catching_up_has_a_cost)
{
    static const char *const costs[] = {"1.02,1.03", "1.02,1.03+0.3456"};
    const char *d = *state;
    double plain[2];
    for (int i = 0; i < 2; i++) {
        cJSON *record = command_json(d,
                                     "generate --spec path --draft demo-draft --class 3 --num 1 --num_iter 64 "
                                     "--num_sampling_steps 8 --round_costs %s --json --threads 1 --out %d.png",
                                     costs[i], i);
        assert_string_equal(json_text(record, "parameters.round_costs"), i ? "1.02,1.03+0.346" : "1.02,1.03");
        plain[i] = json_number(record, "rounds_without_drafts");
        assert_true(json_number(record, "plain_decoding_seconds") > json_number(record, "decoding_seconds") / 1.021);
        cJSON_Delete(record);
    }
    assert_true(plain[0] > 0 && plain[0] < plain[1] && plain[1] < 1);
    command_ok(d, "generate --like 1.png --threads 1 --quiet --out like.png");
    assert_same_file(d, "1.png", "like.png");
}

COMMAND_CASE(head_speculation)
{
    cJSON *record = generated(*state, "--head_spec 4 --class 3 --num 1 --num_iter 8 --out a.png");
    const double rate = json_number(record, "proposal_acceptance_rate"),
                 calls = json_number(record, "head_calls_per_token");
    assert_true(rate > 0.5 && rate <= 1);
    assert_true(calls >= 25 && calls < 40); /* 100 steps, 4 a call at best */
    assert_true(json_number(record, "head_calls_in_sequence") > calls);
    assert_true(json_number(record, "draft_calls_in_sequence") == 0);
    assert_true(cJSON_IsNull(cJSON_GetObjectItem(record, "acceptance_rate")));
    cJSON_Delete(record);
}

/* Tests runs without a draft model: --spec path and --draft self are the same run. */
COMMAND_CASE(own_drafts)
{
    const char *d = *state;
    cJSON *record = generated(d, "--draft self --head_spec 4 --gamma 8 --class 3 --num 1 --num_iter 16 "
                                 "--num_sampling_steps 20 --accept_map map.png --out a.png");
    const cJSON *parameters = cJSON_GetObjectItem(record, "parameters");
    assert_string_equal(json_text(record, "draft"), "self");
    assert_string_equal(json_text(parameters, "draft"), "self");
    assert_string_equal(json_text(parameters, "spec"), "path");
    assert_true(json_number(parameters, "gamma") == 8);
    assert_null(cJSON_GetObjectItem(parameters, "prefill"));
    assert_null(cJSON_GetObjectItem(parameters, "context"));
    assert_null(cJSON_GetObjectItem(parameters, "align"));
    const double passes = json_number(record, "passes_in_sequence"),
                 contexts = json_number(record, "contexts_per_image");
    assert_true(passes >= 2 && passes < 16 && contexts >= 16);
    assert_true(json_number(record, "proposal_acceptance_rate") > 0); /* head_spec works inside */
    assert_true(json_number(record, "draft_calls_in_sequence") == 0);
    assert_true(json_number(record, "accepted_shift") > 0);
    assert_rates(record, "acceptance_per_step", 16);
    assert_rates(record, "acceptance_per_position", 64);
    assert_rates(record, "acceptance_per_lateness", json_count(record, "acceptance_per_lateness"));
    assert_true(json_count(record, "acceptance_per_lateness") > 1);
    cJSON_Delete(record);
    picture p = open_picture(d, "a.png");
    assert_texts(&p, "draft=self|draft_id=(absent)|spec=path|gamma=8|head_spec=4|prefill=(absent)");
    close_picture(&p);

    int accepted, replaced, target;
    p = open_picture(d, "map.png");
    count_map(&p, 1, &accepted, &replaced, &target);
    assert_true(accepted > 0 && target > 0);
    close_picture(&p);

    command_result r = command_run(d, "$MAR generate --spec path --head_spec 4 --gamma 8 --class 3 --num 1 "
                                      "--num_iter 16 --num_sampling_steps 20 --out b.png && cmp a.png b.png && "
                                      "$MAR convert demo-draft self.safetensors && mv self.safetensors self && "
                                      "$MAR generate --draft ./self --gamma 8 --class 3 --num 1 " QUICK "--out c.png");
    if (r.status != 0) fail_msg("%s%s", r.out, r.err);
    command_result_free(&r);
    p = open_picture(d, "c.png");
    assert_texts(&p, "spec=path|context=full");
    assert_has(text_of(&p, "arithmetic"), "f32"); /* --spec path computes the head in f32 */
    assert_int_equal(strspn(text_of(&p, "draft_id"), "0123456789abcdef"), 16);
    assert_int_equal(strlen(text_of(&p, "draft_id")), 16);
    close_picture(&p);
}

/* Checks the passes of the transformer and their contexts. */
COMMAND_CASE(passes)
{
    static const struct {
        const char *options;
        double passes, contexts; /* of three images in two batches */
    } runs[] = {
        {"--num_iter 4", 2 * 4, 4},
        {"--num_iter 7 --lazy", 2 * 7, 7},
        {"--gtr --gtr_generation_steps 3 --gtr_reconstruction_steps 2", 2 * 5, 5},
        {"--num_iter 8 --draft demo-draft --spec cspd --gamma 3 --prefill 0.25", 2 * 4, 4}, /* blocks are of 3 steps */
        {"--num_iter 8 --head_spec 4", 2 * 8, 8},
    };
    for (size_t i = 0; i < LENGTH(runs); i++) {
        char line[300];
        snprintf(line, sizeof line, "--class 3 --num 3 --batch 2 --num_sampling_steps 8 --out p --overwrite %s",
                 runs[i].options);
        cJSON *record = generated(*state, line);
        if (json_number(record, "passes_in_sequence") != runs[i].passes ||
            json_number(record, "contexts_per_image") != runs[i].contexts)
            fail_msg("%s: %g passes of %g contexts", runs[i].options, json_number(record, "passes_in_sequence"),
                     json_number(record, "contexts_per_image"));
        cJSON_Delete(record);
    }
}

/* Checks that a picture has the name of the draft, not its path. */
COMMAND_CASE(draft_in_the_text)
{
    const char *d = *state;
    command_ok(d, "convert demo-draft secret.safetensors");
    cJSON *record = generated(d, "--draft ./secret.safetensors --class 3 --num 1 " QUICK "--out a.png");
    assert_string_equal(json_text(record, "draft"), "./secret.safetensors");
    assert_string_equal(json_text(record, "parameters.draft"), "secret.safetensors");
    cJSON_Delete(record);
    picture p = open_picture(d, "a.png");
    assert_texts(&p, "draft=secret.safetensors|spec=path|method=(absent)|Title=(absent)");
    close_picture(&p);
}

COMMAND_CASE(progress_on_a_terminal)
{
    char *argv[] = {
        "mar", "generate", "--class", "1,2", "--num", "2", "--batch", "2", "--num_iter", "8", "--num_sampling_steps",
        "8",   "--out",    "p.png",   NULL,  NULL};
    char *shown = command_on_terminal(*state, argv);
    assert_has(shown, "\r[");
    assert_has(shown, "100%  4 of 4 images");
    assert_has(shown, " left");
    assert_has(shown, "\r\033[Kwrote p.png: 4 images of 32x32");
    free(shown);

    argv[14] = "--quiet";
    shown = command_on_terminal(*state, argv);
    assert_string_equal(shown, "");
    free(shown);

    command_result r = command_run(*state, "$MAR generate --class 1,2 --num 2 " QUICK "--out p.png");
    assert_string_equal(r.err, "");
    assert_null(strchr(r.out, '\r'));
    command_result_free(&r);
}

/* Checks that the terminal names the file or model being loaded or read. The line is gone before the next is printed.
 * */
COMMAND_CASE(waiting_on_a_terminal)
{
    static const struct {
        char *argv[12];
        const char *first, *then; /* beginning of the output, and a later part */
    } cases[] = {
        {{"mar", "convert", "demo", "a.safetensors"},
         "\rconverting demo\033[K\r\033[K",
         "\r\033[Kwrote a.safetensors: 92 tensors (F16), 1.0 MB\r\n"},
        {{"mar", "inspect", "a.safetensors"},
         "\rreading a.safetensors\033[K\r\033[K",
         "\r\033[Kfile: a.safetensors\r\n"},
        {{"mar", "bench", "--model", "a.safetensors", "--num_iter", "1", "--num_sampling_steps", "2"},
         "\rloading a.safetensors\033[K\r\033[K",
         "\rmeasuring the machine\033[K\r\033[K\r[....."},
    };
    for (size_t i = 0; i < LENGTH(cases); i++) {
        char *shown = command_on_terminal(*state, cases[i].argv);
        if (strncmp(shown, cases[i].first, strlen(cases[i].first)) != 0 || !strstr(shown, cases[i].then))
            fail_msg("mar %s: \"%s\", expected \"%s\" and \"%s\"", cases[i].argv[1], shown, cases[i].first,
                     cases[i].then);
        free(shown);
    }
    command_refused(*state, "$MAR convert demo a.safetensors",
                    "a.safetensors: exists already, expected another name, or --overwrite to replace it", NULL);
    command_result r = command_run(*state, "$MAR convert demo a.safetensors --overwrite");
    assert_string_equal(r.out, "wrote a.safetensors: 92 tensors (F16), 1.0 MB\n");
    assert_string_equal(r.err, "");
    command_result_free(&r);
}
