/* Names from outside may be any bytes. JSON is valid UTF-8, a terminal gets no control characters, and pages and texts
 * of pictures follow their formats. */
#include "tests/support/archive.h"
#include "tests/support/command.h"
#include "base/printable.h"

#include <cjson/cJSON.h>
#include <png.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* ESC, a newline, an invalid byte, é, a direction override, CSI as one character, DEL */
#define ODD      "a\x1b[31m\n\xff\xc3\xa9\xe2\x80\xae\xc2\x9b\x7f"
#define SHOWN    "a\\x1b[31m\\n\\xff\xc3\xa9\\u202e\\u009b\\x7f"
#define REPLACED "a\x1b[31m\n\xef\xbf\xbd\xc3\xa9\xe2\x80\xae\xc2\x9b\x7f"
/* REPLACED in a JSON text that may go to a terminal. */
#define SHOWN_IN_JSON "a\\u001b[31m\\n\xef\xbf\xbd\xc3\xa9\\u202e\\u009b\\u007f"
/* The same for printf in a shell. */
#define SHELL "\"$(printf 'a\\033[31m\\n\\377\\303\\251\\342\\200\\256\\302\\233\\177')"

/* Returns whether text[0..n) is UTF-8, by the table of the standard (Unicode 15, table 3-7). */
static int is_utf8(const char *text, size_t n)
{
    static const unsigned char ranges[][8] = {
        {0x00, 0x7f},
        {0xc2, 0xdf, 0x80, 0xbf},
        {0xe0, 0xe0, 0xa0, 0xbf, 0x80, 0xbf},
        {0xe1, 0xec, 0x80, 0xbf, 0x80, 0xbf},
        {0xed, 0xed, 0x80, 0x9f, 0x80, 0xbf},
        {0xee, 0xef, 0x80, 0xbf, 0x80, 0xbf},
        {0xf0, 0xf0, 0x90, 0xbf, 0x80, 0xbf, 0x80, 0xbf},
        {0xf1, 0xf3, 0x80, 0xbf, 0x80, 0xbf, 0x80, 0xbf},
        {0xf4, 0xf4, 0x80, 0x8f, 0x80, 0xbf, 0x80, 0xbf},
    };
    for (size_t i = 0, size; i < n; i += size) {
        const unsigned char *at = (const unsigned char *)text + i;
        size = 0;
        for (size_t r = 0; r < LENGTH(ranges) && !size; r++) {
            size_t k = 0;
            while (k < 4 && i + k < n && (k == 0 || ranges[r][2 * k]) && at[k] >= ranges[r][2 * k] &&
                   at[k] <= ranges[r][2 * k + 1])
                k++;
            if (k > 0 && (k == 4 || !ranges[r][2 * k])) size = k;
        }
        if (size == 0) return 0;
    }
    return 1;
}

/* Checks that the text suits a terminal: UTF-8, with newlines and tabs as the only control characters. */
static void assert_harmless(const char *text, const char *what)
{
    if (!is_utf8(text, strlen(text))) fail_msg("%s: is not UTF-8: %s", what, text);
    for (const char *c = text; *c; c++) {
        const unsigned char u = (unsigned char)*c;
        if ((u < 32 && u != '\n' && u != '\t') || u == 127 || (u == 0xc2 && (unsigned char)c[1] < 0xa0) ||
            (u == 0xe2 && (memcmp(c, "\xe2\x80\xae", 3) == 0 || memcmp(c, "\xe2\x81\xa6", 3) == 0)))
            fail_msg("%s: has a control character at byte %ld: %s", what, (long)(c - text), text);
    }
}

/* Runs a command whose stdout and stderr must be harmless. */
static command_result run(const char *directory, const char *line, int status)
{
    command_result r = command_run(directory, line);
    if (r.status != status) fail_msg("%s: exit status %d, expected %d: %s%s", line, r.status, status, r.out, r.err);
    assert_harmless(r.out, line);
    assert_harmless(r.err, line);
    return r;
}

/* Runs a command that must print this text on either stream. */
static void says(const char *directory, const char *line, int status, const char *text)
{
    command_result r = run(directory, line, status);
    if (!strstr(r.out, text) && !strstr(r.err, text)) fail_msg("%s: no \"%s\" in %s%s", line, text, r.out, r.err);
    command_result_free(&r);
}

static cJSON *json_of(const char *directory, const char *line, int status)
{
    command_result r = run(directory, line, status);
    cJSON *root = cJSON_ParseWithOpts(r.out, NULL, 1);
    if (!root) fail_msg("%s: no JSON: %s", line, r.out);
    command_result_free(&r);
    return root;
}

/* Writes the demo model and draft as files with odd names. */
static void setup_models(const char *directory)
{
    command_ok(directory, "convert demo " SHELL "-model.safetensors\"");
    command_ok(directory, "convert demo-draft " SHELL "-draft.safetensors\"");
}

#define SHORT "--num 1 --class 3 --num_iter 2 --num_sampling_steps 2 --threads 1 "
#define MODEL "--vae demo --model " SHELL "-model.safetensors\" "
#define DRAFT "--draft " SHELL "-draft.safetensors\" "

COMMAND_CASE(json_is_utf8)
{
    const char *directory = *state;
    setup_models(directory);
    cJSON *root = json_of(directory, "$MAR generate --json " SHORT MODEL DRAFT "--out " SHELL "-out\"", 0);
    assert_string_equal(json_text(root, "model"), REPLACED "-model.safetensors");
    assert_string_equal(json_text(root, "draft"), REPLACED "-draft.safetensors");
    const cJSON *file = cJSON_GetArrayItem(cJSON_GetObjectItem(root, "files"), 0);
    assert_string_equal(json_text(file, "file"), REPLACED "-out/000000.png");
    cJSON_Delete(root);

    root = json_of(directory, "$MAR inspect --json " SHELL "-model.safetensors\"", 0);
    assert_string_equal(json_text(root, "file"), REPLACED "-model.safetensors");
    assert_string_equal(cJSON_GetArrayItem(cJSON_GetObjectItem(root, "facts"), 0)->valuestring,
                        "file: " SHOWN "-model.safetensors");
    cJSON_Delete(root);

    root = json_of(directory, "$MAR bench --json --num_iter 2 --num_sampling_steps 2 --threads 1 " MODEL, 0);
    assert_string_equal(json_text(root, "model"), REPLACED "-model.safetensors");
    cJSON_Delete(root);

    root = json_of(directory,
                   "$MAR fidelity --json --num 20 --num_iter 2 --num_sampling_steps 2 --threads 1 " MODEL DRAFT
                   "--out " SHELL ".html\" --plot " SHELL ".svg\" --against --num_iter 2 --num_sampling_steps 2",
                   0);
    assert_string_equal(json_text(root, "page"), REPLACED ".html");
    assert_string_equal(json_text(root, "plot"), REPLACED ".svg");
    const cJSON *other = cJSON_GetArrayItem(cJSON_GetObjectItem(root, "runs"), 0);
    assert_string_equal(json_text(other, "draft"), REPLACED "-draft.safetensors");
    assert_has(json_text(other, "options"), SHOWN "-draft.safetensors");
    cJSON_Delete(root);
    /* Its files are harmless, too. */
    char *page = read_whole_file(directory, ODD ".html", NULL), *plot = read_whole_file(directory, ODD ".svg", NULL);
    assert_harmless(page, "the page");
    assert_harmless(plot, "the plot");
    assert_has(page, SHOWN_IN_JSON "-model.safetensors");
    assert_has(page, SHOWN_IN_JSON "-draft.safetensors");
    free(page);
    free(plot);

    cJSON_Delete(json_of(directory, "$MAR methods --json", 0));
}

/* Writes a safetensors file of one tensor. JSON has escapes for its name. */
static void write_named_tensor(const char *directory, const char *file, const char *name)
{
    char header[400];
    snprintf(header, sizeof header, "{\"%s\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}", name);
    bytes b = make_safetensors(header, 4);
    bytes_to_file(&b, path_in(directory, "%s", file));
    bytes_free(&b);
}

/* Writes a MAR model with one such tensor too many. */
static void write_model_with(const char *directory, const char *name)
{
    char path[600], length[8];
    snprintf(path, sizeof path, "%s/m.safetensors", directory);
    bytes all = bytes_from_file(path), b = {0}, header = {0};
    uint64_t size;
    memcpy(&size, all.data, 8);
    bytes_text(&header, "{\"");
    bytes_text(&header, name);
    bytes_text(&header, "\":{\"dtype\":\"F32\",\"shape\":[0],\"data_offsets\":[0,0]},");
    bytes_put(&header, all.data + 9, (size_t)size - 1);
    size = header.size;
    memcpy(length, &size, 8);
    bytes_put(&b, length, 8);
    bytes_put(&b, header.data, header.size);
    uint64_t old;
    memcpy(&old, all.data, 8);
    bytes_put(&b, all.data + 8 + old, all.size - 8 - (size_t)old);
    bytes_to_file(&b, path);
    bytes_free(&all), bytes_free(&b), bytes_free(&header);
}

COMMAND_CASE(tensor_names_are_shown)
{
    const char *directory = *state;
    command_ok(directory, "convert demo m.safetensors");
    write_model_with(directory, "e\\u001b[2J\\n\\u202e\\u009b\\u007f\xc3\xa9");
    says(directory, "$MAR inspect m.safetensors", 1, "problem: tensor e\\x1b[2J\\n\\u202e\\u009b\\x7f\xc3\xa9 ");
    cJSON *root = json_of(directory, "$MAR inspect --json m.safetensors", 1);
    assert_has(cJSON_GetArrayItem(cJSON_GetObjectItem(root, "problems"), 0)->valuestring,
               "tensor e\\x1b[2J\\n\\u202e\\u009b\\x7f\xc3\xa9 ");
    cJSON_Delete(root);
    says(directory, "$MAR convert m.safetensors n.safetensors", 1, "tensor e\\x1b[2J\\n\\u202e");
    says(directory, "$MAR generate --vae demo --model m.safetensors --out o.png", 1, "");
    /* If the name is not UTF-8, the file may be refused or the name shown. */
    write_named_tensor(directory, "t.safetensors", "e\xff\xe2\x80");
    says(directory, "$MAR inspect t.safetensors", 1, "");
    cJSON_Delete(json_of(directory, "$MAR inspect --json demo-vae", 0));
    /* A PyTorch file: {"e ESC newline 0xff": ...} with a value that is not a tensor. */
    static const char pickle[] = "\x80\x02}X\x04\x00\x00\x00"
                                 "e\x1b\n\xff"
                                 "ccollections\nOrde\x1b\xff\n)Rs.";
    bytes b = make_torch(pickle, sizeof pickle - 1, 4);
    bytes_to_file(&b, path_in(directory, "p.pt"));
    bytes_free(&b);
    command_result r = run(directory, "$MAR inspect p.pt", 1);
    assert_true(r.err[0] || r.out[0]);
    command_result_free(&r);
}

COMMAND_CASE(lines_are_harmless)
{
    const char *directory = *state;
    setup_models(directory);
    says(directory, "$MAR generate " SHORT MODEL "--out " SHELL ".png\"", 0, "wrote " SHOWN ".png: 1 image of");
    says(directory, "$MAR inspect " SHELL "-model.safetensors\"", 0, "file: " SHOWN "-model.safetensors\n");
    command_result r = run(directory, "$MAR bench --num_iter 2 --num_sampling_steps 2 --threads 1 " MODEL DRAFT, 0);
    assert_has(r.out, SHOWN "-model.safetensors on cpu");
    assert_has(r.out, "--draft " SHOWN "-draft.safetensors");
    command_result_free(&r);
    r = run(directory,
            "$MAR fidelity --num 20 --num_iter 2 --num_sampling_steps 2 --threads 1 " MODEL DRAFT "--out " SHELL
            ".html\" --against --num_iter 2 --num_sampling_steps 2",
            0);
    assert_has(r.out, SHOWN "-model.safetensors on cpu");
    assert_has(r.out, "the page is " SHOWN ".html");
    assert_has(r.out, SHOWN "-draft.safetensors");
    command_result_free(&r);
    /* Errors: texts of the library and of the command. */
    static const char *const failing[] = {
        "$MAR inspect " SHELL "\"",
        "$MAR convert " SHELL "\" x.safetensors",
        "$MAR convert demo " SHELL "/x.safetensors\"",
        "$MAR generate --model " SHELL "\" --vae demo",
        "$MAR generate --class " SHELL "\"",
        "$MAR generate --cfg " SHELL "\"",
        "$MAR generate --out " SHELL ".gif\"",
        "$MAR generate " SHELL "\"",
        "$MAR generate --" SHELL "\"",
        "$MAR methods " SHELL "\"",
        "$MAR " SHELL "\"",
        "$MAR fidelity --lazy --out /proc/nowhere/" SHELL ".html\" --against",
        "$MAR fidelity --lazy --plot " SHELL "\" --against",
        "$MAR bench --spec " SHELL "\"",
    };
    for (size_t i = 0; i < LENGTH(failing); i++) {
        r = run(directory, failing[i], 1);
        assert_has(r.err, "\\x1b[31m\\n\\xff\xc3\xa9\\u202e\\u009b\\x7f");
        if (strchr(r.err, '\n') != r.err + strlen(r.err) - 1) fail_msg("%s: not one line: %s", failing[i], r.err);
        command_result_free(&r);
    }
    /* A long path of three-byte characters keeps the reason, and no character is cut. */
    r = run(directory, "$MAR inspect \"$(printf '\\346\\227\\245%.0s' $(seq 1 900))\"", 1);
    assert_has(r.err, "...");
    assert_null(strchr(r.err, '\\'));
    assert_true(strstr(r.err, "cannot open") || strstr(r.err, "too long"));
    command_result_free(&r);
}

/* Checks that the text of a picture is UTF-8: an invalid byte becomes U+FFFD. */
COMMAND_CASE(pictures_have_utf8)
{
    const char *directory = *state;
    setup_models(directory);
    says(directory, "$MAR generate --quiet " SHORT MODEL DRAFT "--out p.png", 0, "");
    FILE *file = fopen(path_in(directory, "p.png"), "rb");
    png_structp png = png_create_read_struct(PNG_LIBPNG_VER_STRING, NULL, NULL, NULL);
    png_infop info = png_create_info_struct(png);
    if (setjmp(png_jmpbuf(png))) fail_msg("no PNG");
    png_init_io(png, file);
    png_read_info(png, info);
    png_textp texts;
    int count, models = 0;
    png_get_text(png, info, &texts, &count);
    for (int i = 0; i < count; i++) {
        if (!is_utf8(texts[i].text, strlen(texts[i].text))) fail_msg("%s is not UTF-8", texts[i].key);
        if (strcmp(texts[i].key, "model") == 0 || strcmp(texts[i].key, "draft") == 0) {
            assert_int_equal(texts[i].compression, PNG_ITXT_COMPRESSION_NONE);
            assert_memory_equal(texts[i].text, REPLACED, sizeof REPLACED - 1);
            models++;
        }
    }
    assert_int_equal(models, 2);
    png_destroy_read_struct(&png, &info, NULL);
    fclose(file);
}

/* Tests the functions themselves. */
TEST_CASE(text_is_printable)
{
    static const struct {
        const char *from, *shown, *replaced;
    } cases[] = {
        {ODD, SHOWN, REPLACED},
        {"\xc0\xaf", "\\xc0\\xaf", "\xef\xbf\xbd\xef\xbf\xbd"},
        {"\xed\xa0\x80|", "\\xed\\xa0\\x80|", "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd|"},
        {"\xf4\x90\x80\x80", "\\xf4\\x90\\x80\\x80", "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd"},
        {"\xf0\x9f\x98\x80 \xe6\x97", "\xf0\x9f\x98\x80 \\xe6\\x97", "\xf0\x9f\x98\x80 \xef\xbf\xbd\xef\xbf\xbd"},
        {"", "", ""},
    };
    for (size_t i = 0; i < LENGTH(cases); i++) {
        char line[200];
        assert_string_equal(printable(cases[i].from, line, sizeof line), cases[i].shown);
        char *replaced = printable_utf8(cases[i].from);
        assert_string_equal(replaced, cases[i].replaced);
        free(replaced);
    }
    for (size_t size = 1; size < 60; size++) {
        char line[61];
        memset(line, 'z', sizeof line);
        printable(ODD ODD ODD ODD ODD, line, size);
        assert_true(strlen(line) < size);
        assert_int_equal(line[size], 'z');
        assert_harmless(line, "a short line");
    }
    static const char letters[] = "a\xc3\xa9\xe6\x97\xa5\xf0\x9f\x98\x80";
    static const size_t whole[] = {0, 1, 1, 3, 3, 3, 6, 6, 6, 6, 10};
    for (size_t n = 0; n <= 10; n++) assert_int_equal(printable_whole(letters, n), whole[n]);
}
