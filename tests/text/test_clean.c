/* The cleaning of captions: pairs of LlamaGen's own code, and captions that would be slow. */
#include "tests/support/archive.h"
#include "tests/support/test.h"

#include "text/clean.h"
#include "text/entities.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A string of the file of pairs. */
typedef struct {
    const char *text;
    size_t length;
} string;

static string next_string(const bytes *b, size_t *at)
{
    const size_t length = b->data[*at] | (size_t)b->data[*at + 1] << 8;
    const string s = {(const char *)b->data + *at + 2, length};
    assert_true(*at + 2 + length <= b->size);
    *at += 2 + length;
    return s;
}

TEST_CASE(test_pairs)
{
    bytes b = bytes_from_file("tests/golden/data/text/captions.bin");
    int pairs = 0;
    for (size_t at = 0; at < b.size; pairs++) {
        const string caption = next_string(&b, &at), expected = next_string(&b, &at);
        mar_err err = {0};
        char *cleaned;
        if (text_clean_caption(caption.text, caption.length, &cleaned, &err) != MAR_OK)
            fail_msg("pair %d: %s", pairs, err.text);
        if (strlen(cleaned) != expected.length || memcmp(cleaned, expected.text, expected.length) != 0)
            fail_msg("pair %d: %.*s: \"%s\", expected \"%.*s\"", pairs, (int)caption.length, caption.text, cleaned,
                     (int)expected.length, expected.text);
        free(cleaned);
    }
    assert_int_equal(pairs, 600);
    bytes_free(&b);
}

static void expect(const char *caption, const char *expected)
{
    mar_err err = {0};
    char *cleaned;
    if (text_clean_caption(caption, strlen(caption), &cleaned, &err) != MAR_OK) fail_msg("%s: %s", caption, err.text);
    if (strcmp(cleaned, expected) != 0) fail_msg("%s: \"%s\", expected \"%s\"", caption, cleaned, expected);
    free(cleaned);
}

TEST_CASE(test_captions)
{
    expect("", "");
    expect("A Corgi in the Snow", "a corgi in the snow");
    expect("see <b>bold</b> cats at http://a.com/b, free download", "see bold cats at");
    expect("\xce\x9f\xce\x94\xce\x9f\xce\xa3", "\xce\xbf\xce\xb4\xce\xbf\xcf\x82"); /* a sigma at the end of a word */
    expect("\xc4\xb0", "i\xcc\x87");
    expect("this_is_my_cute_cat.png", "");
    expect("<p class='x'>a<!-- b --> c</p", "a c< p"); /* an unclosed tag stays */
    expect("a < b, 3<4 &lt;i&gt; caf&eacute;", "a < b, 3<4 caf\xc3\xa9");
}

TEST_CASE(test_refused)
{
    static char text[TEXT_CAPTION_MAX + 1];
    mar_err err = {0};
    char *cleaned = text;
    memset(text, 'a', sizeof text);
    assert_int_equal(text_clean_caption(text, sizeof text, &cleaned, &err), MAR_EARG);
    assert_null(cleaned);
    assert_non_null(strstr(err.text, "expected at most"));
    assert_int_equal(text_clean_caption("ab\xff", 3, &cleaned, &err), MAR_EARG);
    assert_non_null(strstr(err.text, "byte 2"));
}

/* The longest captions of parts that rules could take the square of the length for. Their steps have a limit in
 * proportion to it. */
TEST_CASE(test_slow_captions)
{
    static const char *const parts[] = {
        "a.",       "com.com@", "1x",    "a1",    " .",      "<",        "<a ",       "&",
        "&#",       "&a",       "%ff",   "<!--",  "<br>",    "\xce\xa3", "\"a",       "0:00 ",
        "1.1.1.",   "_a",       "free ", "page ", "a,b",     "](",       ".png",      " : ",
        "a1a1_",    "http",     "http:", "www:",  "#",       "#1",       "-",         "[[[",
        "1",        "</",       "<?",    "<!",    "/>_<!--", ".c",       "a\xce\xa3", "\xcc\x80\xce\xa3",
        ">\xce\xa3"};
    char text[TEXT_CAPTION_MAX];
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        const size_t size = strlen(parts[i]), length = sizeof text / size * size;
        mar_err err = {0};
        char *cleaned;
        for (size_t at = 0; at < length; at += size) memcpy(text + at, parts[i], size);
        if (text_clean_caption(text, length, &cleaned, &err) != MAR_OK) fail_msg("%s: %s", parts[i], err.text);
        free(cleaned);
    }
}

/* A sigma begins a text, and follows or precedes ignored characters. */
TEST_CASE(test_sigmas)
{
    expect("\xce\xa3", "\xcf\x83");
    expect("\xce\xa3\xce\xa3 \xce\xa3", "\xcf\x83\xcf\x82 \xcf\x83");
    expect("a\xcc\x80\xce\xa3\xcc\x80 b", "a\xcc\x80\xcf\x82\xcc\x80 b");
    expect("a\xcc\x80\xce\xa3\xcc\x80"
           "b",
           "a\xcc\x80\xcf\x83\xcc\x80"
           "b");
}

static void expect_unescaped(const char *text, const char *expected)
{
    text_buffer out = {0};
    text_unescape(text, strlen(text), &out);
    assert_string_equal(out.data, expected);
    text_buffer_free(&out);
}

TEST_CASE(test_entities)
{
    expect_unescaped("&AElig &zwnj; &zwnj &bne; &; &zzzz;", "\xc3\x86 \xe2\x80\x8c &zwnj =\xe2\x83\xa5 &; &zzzz;");
    expect_unescaped("&notit; &notin; &#x80; &#0; &#x1; &amp", "\xc2\xacit; \xe2\x88\x89 \xe2\x82\xac \xef\xbf\xbd  &");
}
