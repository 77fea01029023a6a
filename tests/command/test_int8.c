/* --dtype int8: refusals, files with int8 weights, guarantees. */
#include "tests/support/command.h"

#include <cjson/cJSON.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define QUICK " --num_iter 2 --num_sampling_steps 4 --threads 1 "

/* Checks that every processor has int8, possibly computed in int16. */
COMMAND_CASE(on_every_processor)
{
    sh_ok(*state,
          "for isa in generic avx2 avx512; do MAR_ISA=$isa $MAR generate --dtype int8 --class 3 --num 1 --out i.png "
          "--json" QUICK "| grep -q 'cpu int8, ' || exit 1; done");
}

COMMAND_CASE(options)
{
    static const refusal cases[] = {
        {"generate --dtype int8 --head_dtype f32 --int8_below 500", "--int8_below", "--head_dtype"},
        {"generate --dtype int8 --spec path --gamma 8 --int8_below 500 --class 3", "--int8_below", "--head_dtype"},
        {"generate --dtype int8 --model demo-discrete --int8_below 500 --class 3", "--int8_below"},
    };
    static const refusal of_bf16 = {"generate --dtype int8 --head_dtype bf16 --int8_below 500 --class 3",
                                    "--int8_below has no effect with --head_dtype bf16, expected auto or int8"};
    command_refuses(*state, cases, LENGTH(cases));
    if (command_auto_is_bf16(*state)) command_refuses(*state, &of_bf16, 1);
}

/* Tests a file with int8 weights: its conversion, and the line about multiplying them without restoring. */
COMMAND_CASE(files)
{
    const char *d = *state;
    static const char warning[] =
        "mar: warning: m.safetensors: its int8 weights are restored; --dtype int8 multiplies them as they are\n";
#define GENERATE "$MAR generate --model m.safetensors --vae demo-vae --class 3 --num 1 --out x.png" QUICK
    command_ok(d, "convert demo m.safetensors --dtype int8");
    sh_ok(d, "$MAR inspect m.safetensors | grep -q 'tensors: 108 (16 F32, 76 BF16, 16 I8)' && "
             "$MAR convert m.safetensors n.safetensors && cmp m.safetensors n.safetensors && "
             "$MAR convert m.safetensors n.safetensors --dtype f32 --overwrite && "
             "$MAR inspect n.safetensors | grep -q 'tensors: 92 (F32)'");
    command_result r = command_run(d, GENERATE);
    assert_int_equal(r.status, 0);
    assert_has(r.err, warning);
    command_result_free(&r);
    static const char *const silent[] = {GENERATE "--quiet", GENERATE "--dtype bf16", GENERATE "--dtype f32",
                                         GENERATE "--dtype int8"};
    for (size_t i = 0; i < LENGTH(silent); i++) {
        r = command_run(d, silent[i]);
        if (r.status != 0) fail_msg("%s: %s", silent[i], r.err);
        if (strstr(r.err, "int8 weights")) fail_msg("%s: %s", silent[i], r.err);
        command_result_free(&r);
    }
    command_ok(d, "convert demo m.safetensors --dtype int4 --overwrite");
    r = command_run(d, GENERATE);
    assert_int_equal(r.status, 0);
    assert_has(r.err, "m.safetensors: its int4 weights are restored; --dtype int4 multiplies them as they are\n");
    command_result_free(&r);
#undef GENERATE
}

/* Checks the guarantee in all places that state it. */
COMMAND_CASE(guarantees)
{
    static const struct {
        const char *line, *path, *says;
    } cases[] = {
        {"generate --class 3 --num 1 --json --out x.png --dtype int8 --head_spec 4" QUICK, "guarantee",
         "approximate: int8"},
        {"generate --class 3 --num 1 --json --out x.png --dtype int8 --lazy --num_iter 8 --threads 1", "guarantee",
         "approximate: int8, changed by lazy"},
        {"generate --model demo-discrete --class 3 --num 1 --json --out x.png --dtype int8 --threads 1 "
         "--draft demo-discrete-draft --spec vanilla",
         "guarantee", "approximate: int8"},
        {"bench --json --dtype int8" QUICK, "guarantee", "approximate: int8"},
        {"fidelity --versus --dtype int8" QUICK "--against --num 20 --json" QUICK, "runs.0.guarantee",
         "approximate: int8"},
    };
    for (size_t i = 0; i < LENGTH(cases); i++) {
        cJSON *json = command_json(*state, "%s", cases[i].line);
        const char *found = json_text(json, cases[i].path);
        const size_t n = strlen(cases[i].says);
        if (strncmp(found, cases[i].says, n) != 0 || strncmp(found + n, "; relative to plain sampling, ", 30) != 0)
            fail_msg("%s: %s", cases[i].line, found);
        cJSON_Delete(json);
    }
    sh_ok(*state, "$MAR methods --name int8 | grep -q 'option: *--dtype int8'");
}
