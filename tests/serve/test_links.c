/* The address in links: a proxy's Forwarded header, and the host of --public_url. */
#include "tests/support/test.h"

#include "tools/serve/links.h"

#include <stdlib.h>
#include <string.h>

/* Checks a parameter of a header that has no byte behind its NUL. `expected` NULL: it is not used. */
static void expect(const char *header, const char *name, const char *expected)
{
    char *exact = strdup(header);
    size_t n = 0;
    assert_non_null(exact);
    const char *value = links_forwarded(exact, name, &n);
    if (!value != !expected || (value && (n != strlen(expected) || memcmp(value, expected, n) != 0)))
        fail_msg("%s of '%s' is '%.*s', expected %s", name, header, (int)n, value ? value : "",
                 expected ? expected : "none");
    free(exact);
}

TEST_CASE(forwarded)
{
    expect("host=a", "host", "a");
    expect("for=192.0.2.1;proto=https;host=\"a:80\", for=b;host=c", "host", "a:80");
    expect(" For=\"[::1]:9\" ; HOST=a ;", "host", "a");
    expect("for=\"a, b\";host=c", "host", "c"); /* a comma in quotes does not end the element */
    expect("for=a, host=c", "host", NULL);
    expect(";;host=a", "host", "a");
    expect("xhost=a;hosts=b", "host", NULL);
}

/* Of a header that is not well formed nothing is used. An open quote was read behind the header's end. */
TEST_CASE(forwarded_broken)
{
    static const char *const broken[] = {"for=\"abc",
                                         "for=\"",
                                         "host=\"evil.com",
                                         "host=a;for=\"abc",
                                         "host=\"a\\\"b\"",
                                         "host=\"a\"b",
                                         "host=a\"b\"",
                                         "host=a b",
                                         "host=a;host=b",
                                         "host=a;proto",
                                         "host=a;=b",
                                         "host",
                                         "",
                                         "host=\"a\\",
                                         "host=a for=b",
                                         "=a"};
    for (size_t i = 0; i < sizeof broken / sizeof *broken; i++) expect(broken[i], "host", NULL);
}

TEST_CASE(public_hosts)
{
    static const struct {
        const char *url, *host;
        int is_public;
    } cases[] = {{"https://a.example.com:443/mar", "a.example.com", 1},
                 {"https://a.example.com", "A.example.com:443", 1},
                 {"http://a.example.com:80", "a.example.com", 1},
                 {"https://[::1]:443", "[::1]", 1},
                 {"https://a.example.com:80", "a.example.com", 0},
                 {"https://a.example.com", "a.example.com:80", 0},
                 {"https://a.example.com:8443/x", "a.example.com:8443", 1},
                 {"https://a.example.com", "a.example.co", 0},
                 {"https://a.example.com", "", 0}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        service s = {.options.public_url = cases[i].url};
        assert_int_equal(links_check(&s), 0);
        if (links_is_public(&s, cases[i].host) != cases[i].is_public)
            fail_msg("%s and %s", cases[i].url, cases[i].host);
        free((char *)s.public_url);
    }
}
