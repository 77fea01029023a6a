/* Finds the demo models' files, by MAR_DATA_DIR or from the place of the program. tests/install moves installed trees.
 */
#include "tests/support/support.h"

#include "base/data.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static const char name[] = "demo/vae.safetensors";

TEST_CASE(test_build_folder)
{
    char path[PATH_MAX];
    mar_err err = {0};
    unsetenv("MAR_DATA_DIR");
    assert_ok(data_find(name, path, &err), &err);
    assert_int_equal(access(path, R_OK), 0);
    assert_non_null(strstr(path, "/../share/libmar/demo/vae.safetensors")); /* this program is in BUILD/tests */
    assert_int_equal(data_find("demo/none", path, &err), MAR_EIO);
    assert_non_null(strstr(err.text, "demo/none: not found in share/libmar beside or above /"));
    assert_non_null(strstr(err.text, ", /usr/")); /* the folder of the build's prefix is named, too */
    assert_non_null(strstr(err.text, "MAR_DATA_DIR can name the folder"));
}

TEST_CASE(test_environment)
{
    char path[PATH_MAX], file[600], expected[800], *dir = temporary_directory();
    mar_err err = {0};
    setenv("MAR_DATA_DIR", dir, 1);
    assert_int_equal(data_find(name, path, &err), MAR_EIO); /* although the build folder has it */
    snprintf(expected, sizeof expected, "%s: not found in %s, which is MAR_DATA_DIR", name, dir);
    assert_string_equal(err.text, expected);
    snprintf(file, sizeof file, "%s/demo", dir);
    assert_int_equal(mkdir(file, 0700), 0);
    snprintf(file, sizeof file, "%s/%s", dir, name);
    FILE *f = fopen(file, "w");
    assert_non_null(f);
    fclose(f);
    assert_ok(data_find(name, path, &err), &err);
    assert_string_equal(path, file);

    char *deep = malloc(2 * PATH_MAX); /* a name that is too long for a path */
    assert_non_null(deep);
    memset(deep, '/', 2 * PATH_MAX - 1);
    deep[2 * PATH_MAX - 1] = '\0';
    setenv("MAR_DATA_DIR", deep, 1);
    assert_int_equal(data_find(name, path, &err), MAR_EIO);
    free(deep);

    setenv("MAR_DATA_DIR", "", 1); /* as unset */
    assert_ok(data_find(name, path, &err), &err);
    unsetenv("MAR_DATA_DIR");
    remove_directory(dir);
    free(dir);
}
