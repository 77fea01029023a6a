/* The ids in front of an image, as the official code of each family makes them (tests/golden/make_prompts.py). */
#include "tests/support/archive.h"
#include "tests/support/decoder_folder.h"
#include "tests/support/support.h"

#include "base/json.h"
#include "families/language.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DATA "tests/golden/data/prompts/"

enum { PROMPTS = 10, IDS_MAX = 1024 };

/* A family's language and tokenizer. */
typedef struct {
    language language;
    text_tokenizer *tokenizer;
} model;

static model open_model(const char *family)
{
    model m;
    wt_file *f;
    mar_err err = {0};
    char *folder = decoder_folder(family, "F32", 4);
    assert_ok(wt_open_folder(folder, MAR_WEIGHTS_AUTO, &f, &err), &err);
    assert_ok(language_open(f, &m.language, &err), &err);
    assert_string_equal(m.language.family->name, family);
    assert_ok(text_tokenizer_open(folder, &m.tokenizer, &err), &err);
    wt_close(f);
    return m;
}

static void close_model(model *m)
{
    language_free(&m->language);
    text_tokenizer_free(m->tokenizer);
}

/* Compares the ids of a line, "family width height text id id ...". */
static void compare(const char *line, const char *const texts[PROMPTS + 1])
{
    char family[32];
    int width, height, number, at, count, columns, rows, ids[IDS_MAX];
    mar_err err = {0};
    assert_int_equal(sscanf(line, "%31s %d %d %d%n", family, &width, &height, &number, &at), 4);
    const char *text = number < 0 ? NULL : texts[number], *next = line + at;
    model m = open_model(family);
    assert_ok(language_size(&m.language, "m", width, height, &columns, &rows, &err), &err);
    assert_ok(language_ids(&m.language, m.tokenizer, columns, rows, number < 0 || number == PROMPTS, text, ids, IDS_MAX,
                           &count, &err),
              &err);
    for (int i = 0; i < count; i++) {
        char *end;
        const long id = strtol(next, &end, 10);
        if (end == next || id != ids[i])
            fail_msg("%s text %d: id %d is %d, expected %ld", family, number, i, ids[i], id);
        next = end;
    }
    if (strspn(next, " ") != strlen(next)) fail_msg("%s text %d: %d ids, expected more", family, number, count);
    close_model(&m);
}

TEST_CASE(ids_are_the_official_ones)
{
    bytes file = bytes_from_file(DATA "ids.txt"), list = bytes_from_file(DATA "prompts.json");
    const char *texts[PROMPTS + 1];
    json j;
    int lines = 0, n = 0;
    bytes_put(&file, "", 1);
    bytes_put(&list, "", 1);
    assert_int_equal(json_read((char *)list.data, list.size - 1, 4, &j), JSON_OK);
    assert_int_equal(json_children(j.values), PROMPTS + 1);
    for (const json_value *v = j.values + 1; v < json_next(j.values); v = json_next(v)) texts[n++] = v->text;
    for (char *line = strtok((char *)file.data, "\n"); line; line = strtok(NULL, "\n"), lines++) compare(line, texts);
    assert_int_equal(lines, 41);
    json_free(&j);
    bytes_free(&file);
    bytes_free(&list);
}

/* The first `max` ids are kept, all are counted. */
TEST_CASE(ids_are_counted_beyond_the_room)
{
    model m = open_model("lumina-mgpt");
    enum { COLUMNS = 48, ROWS = 48 };
    int all[IDS_MAX], some[8], count, n;
    mar_err err = {0};
    assert_ok(
        language_ids(&m.language, m.tokenizer, COLUMNS, ROWS, 0, "a corgi in the snow", all, IDS_MAX, &count, &err),
        &err);
    for (int max = 0; max < 8; max++) {
        memset(some, 0x55, sizeof some);
        assert_ok(language_ids(&m.language, m.tokenizer, COLUMNS, ROWS, 0, "a corgi in the snow", some, max, &n, &err),
                  &err);
        assert_int_equal(n, count);
        assert_memory_equal(some, all, (size_t)max * sizeof *some);
        assert_int_equal(some[max], 0x55555555);
    }
    assert_int_equal(language_ids(&m.language, m.tokenizer, COLUMNS, ROWS, 0, "\xff", all, IDS_MAX, &n, &err),
                     MAR_EARG);
    assert_non_null(strstr(err.text, "is not UTF-8"));
    m.language.vocabulary.rows = 30;
    assert_int_equal(language_ids(&m.language, m.tokenizer, COLUMNS, ROWS, 0, "a corgi", all, IDS_MAX, &n, &err),
                     MAR_EMODEL);
    assert_non_null(strstr(err.text, "the model's embedding 30 rows"));
    close_model(&m);
}

/* Size tokens are those that the tokenizer has. */
TEST_CASE(a_size_without_token_is_refused)
{
    model m = open_model("lumina-mgpt");
    enum { COLUMNS = 62, ROWS = 48 };
    int ids[8], count;
    mar_err err = {0};
    assert_int_equal(language_ids(&m.language, m.tokenizer, COLUMNS, ROWS, 1, NULL, ids, 8, &count, &err), MAR_EMODEL);
    assert_string_equal(err.text, "the tokenizer has no token <reserved08831>");
    close_model(&m);
}
