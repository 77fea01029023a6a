/* --dtype int8 as a user meets it: what is refused, what is said of files and of runs. Of a processor that multiplies
 * no int8 all that is asked is its refusal, which MAR_ISA=generic makes here, too. */
#include "tests/support/command.h"

#include <cjson/cJSON.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define REFUSAL "--dtype int8: this processor has neither AVX512-VNNI, AVX-VNNI nor AMX-INT8; use "
#define QUICK   " --num_iter 2 --num_sampling_steps 4 --threads 1 "

static int has_int8(void)
{
    const mar_options options = {.dtype = MAR_DTYPE_INT8, .threads = 1, .backend = MAR_BACKEND_CPU};
    mar *m;
    const mar_status status = mar_open(&options, &m);
    mar_close(m);
    return status == MAR_OK;
}

/* Fails unless the command ends so and says so on stderr. */
static void expect(const char *directory, const char *line, int status, const char *says)
{
    command_result r = command_run(directory, line);
    if (r.status != status || !strstr(r.err, says))
        fail_msg("%s: %d \"%s\", expected %d \"%s\"", line, r.status, r.err, status, says);
    command_result_free(&r);
}

/* The same of a line that is all there is on stderr, and leaves nothing behind. */
static void refused(const char *directory, const char *line, const char *says)
{
    char expected[512];
    snprintf(expected, sizeof expected, "mar: %s\n", says);
    const int files = count_files(directory);
    command_result r = command_run(directory, line);
    if (r.status != 1 || *r.out || strcmp(r.err, expected) != 0)
        fail_msg("%s: %d \"%s\", expected \"%s\"", line, r.status, r.err, expected);
    assert_int_equal(count_files(directory), files);
    command_result_free(&r);
}

static void without_the_instructions(void **state)
{
    static const char *const lines[] = {
        "MAR_ISA=generic $MAR generate --dtype int8 --class 3" QUICK,
        "MAR_ISA=generic $MAR bench --dtype int8" QUICK,
        "MAR_ISA=generic $MAR generate --model demo-discrete --dtype int8 --class 3",
    };
    for (size_t i = 0; i < sizeof lines / sizeof *lines; i++) {
        expect(*state, lines[i], 1, "mar: " REFUSAL);
        assert_int_equal(count_files(*state), 0);
    }
}

static void options(void **state)
{
    static const struct {
        const char *line, *says;
    } cases[] = {
        {"$MAR generate --dtype int8 --head_dtype f32 --int8_below 500",
         "--int8_below has no effect with --head_dtype f32, expected auto or int8"},
        {"$MAR generate --dtype int8 --head_dtype bf16 --int8_below 500 --class 3",
         "--int8_below has no effect with --head_dtype bf16, expected auto or int8"},
        {"$MAR generate --dtype int8 --spec path --int8_below 500 --class 3",
         "--int8_below has no effect with --head_dtype f32, expected auto or int8"},
        {"$MAR generate --dtype int8 --model demo-discrete --int8_below 500 --class 3",
         "--int8_below has no effect: the model's tokens are discrete, and it has no diffusion head"},
    };
    for (size_t i = 0; has_int8() && i < sizeof cases / sizeof *cases; i++)
        refused(*state, cases[i].line, cases[i].says);
}

/* A file with int8 weights: what converting makes of it, and the line that says how they are multiplied as they are. */
static void files(void **state)
{
    const char *d = *state;
    static const char warning[] =
        "mar: warning: m.safetensors: its int8 weights are restored; --dtype int8 multiplies them as they are\n";
#define GENERATE "$MAR generate --model m.safetensors --vae demo-vae --class 3 --num 1 --out x.png" QUICK
    command_ok(d, "convert demo m.safetensors --dtype int8");
    expect(d, "$MAR inspect m.safetensors | grep -q 'tensors: 108 (16 F32, 76 BF16, 16 I8)'", 0, "");
    command_ok(d, "convert m.safetensors n.safetensors");
    expect(d, "cmp m.safetensors n.safetensors", 0, "");
    command_ok(d, "convert m.safetensors n.safetensors --dtype f32");
    expect(d, "$MAR inspect n.safetensors | grep -q 'tensors: 92 (F32)'", 0, "");
    command_result r = command_run(d, GENERATE);
    assert_int_equal(r.status, 0);
    assert_int_equal(strstr(r.err, warning) != NULL, has_int8());
    command_result_free(&r);
    static const char *const silent[] = {GENERATE "--quiet", GENERATE "--dtype bf16", GENERATE "--dtype f32",
                                         GENERATE "--dtype int8", "MAR_ISA=generic " GENERATE};
    for (size_t i = 0; i < sizeof silent / sizeof *silent; i++) {
        r = command_run(d, silent[i]);
        if (r.status != 0 && !strstr(r.err, "this processor has neither")) fail_msg("%s: %s", silent[i], r.err);
        if (strstr(r.err, "int8 weights")) fail_msg("%s: %s", silent[i], r.err);
        command_result_free(&r);
    }
    refused(d, "$MAR convert demo-vae x.safetensors --dtype int8",
            "--dtype int8: demo-vae is a KL autoencoder, expected a model, whose transformer's matrices become int8");
#undef GENERATE
}

/* Whether an object somewhere in the JSON has this text under that name. */
static int has_text(const cJSON *json, const char *name, const char *value)
{
    const cJSON *item;
    cJSON_ArrayForEach(item, json)
    {
        const int named = item->string && strcmp(item->string, name) == 0;
        if (named && cJSON_IsString(item) && strcmp(item->valuestring, value) == 0) return 1;
        if (has_text(item, name, value)) return 1;
    }
    return 0;
}

/* Wherever a run's guarantee is told. */
static void guarantees(void **state)
{
    const char *d = *state;
    static const struct {
        const char *line, *says;
    } cases[] = {
        {"generate --class 3 --num 1 --json --out x.png --dtype int8 --head_spec 4" QUICK, "approximate: int8"},
        {"generate --class 3 --num 1 --json --out x.png --dtype int8 --lazy --num_iter 8 --threads 1",
         "approximate: int8, changed by lazy"},
        {"bench --model demo-discrete --json --dtype int8 --threads 1 --draft demo-discrete-draft --spec vanilla",
         "approximate: int8"},
        {"fidelity --versus --dtype int8 --against --num 20 --json" QUICK, "approximate: int8"},
    };
    for (size_t i = 0; has_int8() && i < sizeof cases / sizeof *cases; i++) {
        char line[512];
        snprintf(line, sizeof line, "$MAR %s", cases[i].line);
        command_result r = command_run(d, line);
        if (r.status != 0) fail_msg("%s: %s", line, r.err);
        cJSON *json = cJSON_Parse(r.out);
        if (!has_text(json, "guarantee", cases[i].says)) fail_msg("%s: no \"%s\"", line, cases[i].says);
        cJSON_Delete(json);
        command_result_free(&r);
    }
    expect(d, "$MAR methods --name int8 | grep -q 'option: *--dtype int8'", 0, "");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(without_the_instructions, command_setup, command_teardown),
        cmocka_unit_test_setup_teardown(options, command_setup, command_teardown),
        cmocka_unit_test_setup_teardown(files, command_setup, command_teardown),
        cmocka_unit_test_setup_teardown(guarantees, command_setup, command_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
