/* mar inspect and mar convert as a user runs them. */
#include "tests/support/command.h"

#include <cjson/cJSON.h>
#include <string.h>

#define DATA "tests/weights/data/"

static command_result run(const char *line, int status)
{
    command_result r = command_run(".", line);
    if (r.status != status) fail_msg("%s: exit status %d, expected %d: %s", line, r.status, status, r.err);
    return r;
}

static void test_text(void **state)
{
    (void)state;
    command_result r = run("$MAR inspect --heads 2 " DATA "mar.pth", 0);
    assert_non_null(strstr(r.out, "\nformat: PyTorch zip (model_ema)\n"));
    assert_non_null(strstr(r.out, "\nproblems: 0\n"));
    assert_string_equal(r.err, "");
    command_result_free(&r);
    r = run("$MAR inspect " DATA "dtypes.pt", 1); /* no model: problems on stdout, nothing went wrong on stderr */
    assert_non_null(strstr(r.out, "\nproblem: neither a MAR model"));
    assert_non_null(strstr(r.out, "\nproblems: 1\n"));
    assert_string_equal(r.err, "");
    command_result_free(&r);
}

static cJSON *run_json(const char *line, int status)
{
    command_result r = run(line, status);
    cJSON *root = cJSON_Parse(r.out);
    assert_non_null(root);
    command_result_free(&r);
    return root;
}

static void test_json(void **state)
{
    (void)state;
    cJSON *root = run_json("$MAR inspect --json --heads 2 " DATA "mar.pth", 0);
    assert_string_equal(cJSON_GetObjectItem(root, "kind")->valuestring, "mar");
    assert_int_equal(cJSON_GetObjectItem(cJSON_GetObjectItem(root, "config"), "width")->valueint, 16);
    assert_int_equal(cJSON_GetArraySize(cJSON_GetObjectItem(root, "problems")), 0);
    cJSON_Delete(root);
    root = run_json("$MAR inspect --json " DATA "vae.ckpt", 0);
    assert_int_equal(cJSON_GetObjectItem(cJSON_GetObjectItem(root, "config"), "stride")->valueint, 2);
    cJSON_Delete(root);
    root = run_json("$MAR inspect --json " DATA "dtypes.pt", 1);
    assert_string_equal(cJSON_GetObjectItem(root, "kind")->valuestring, "unknown");
    assert_null(cJSON_GetObjectItem(root, "config"));
    assert_int_equal(cJSON_GetArraySize(cJSON_GetObjectItem(root, "problems")), 1);
    cJSON_Delete(root);
}

static void test_convert(void **state)
{
    (void)state;
    command_result r = run("d=$(mktemp -d) && $MAR convert " DATA "mar.pth $d/m.safetensors --dtype bf16 --heads 2 && "
                           "$MAR inspect $d/m.safetensors; s=$?; ls -A $d; rm -r $d; exit $s",
                           0);
    assert_non_null(strstr(r.out, "\ntensors: 92 (BF16)\n"));
    assert_non_null(strstr(r.out, "blocks, 2 heads,"));
    assert_non_null(strstr(r.out, "problems: 0\nm.safetensors\n"));
    command_result_free(&r);
    r = run("$MAR convert " DATA "mar.pth /nonexistent/m.safetensors", 1);
    assert_string_equal(r.out, "");
    assert_non_null(strstr(r.err, "mar: /nonexistent/m.safetensors: cannot write there: No such file"));
    command_result_free(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_text),
        cmocka_unit_test(test_json),
        cmocka_unit_test(test_convert),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
