/* Requests with line ends (nets/causal_lines.h) against a plain reference, which writes every path of a tree as a whole
 * sequence of its own: chains and trees that cross ends of rows, continued requests, tokens on the device, images of
 * one column and of one row. Changed expansions must be told apart. */
#include "nets/causal_lines.h"

#include "nets/causal_request.h"
#include "tests/support/support.h"

#include <string.h>

enum { DRAFTS = 9, TOKENS = 20, POSITIONS = 2 * TOKENS, VOCABULARY = 7, ROUNDS = 300 };

/* Rows and columns of images. */
static const int grids[][2] = {{3, 3}, {2, 4}, {4, 2}, {1, 5}, {6, 1}, {5, 4}};
enum { GRIDS = sizeof grids / sizeof *grids };

/* A sampler's request, with its arrays. */
typedef struct {
    causal_request q;
    int token[TOKENS], draft[DRAFTS], parent[DRAFTS];
} asked_request;

static int below(uint64_t *random, int n)
{
    *random = *random * 6364136223846793005u + 1442695040888963407u;
    return (int)((*random >> 33) % (uint64_t)n);
}

/* Makes a request of up to DRAFTS drafts; a chain each third time. */
static void make_request(uint64_t *random, const causal_shape *c, asked_request *a)
{
    const int chain = below(random, 3) == 0, most = below(random, DRAFTS + 1);
    causal_request *q = &a->q;
    *q = (causal_request){
        .sequence = below(random, 4), .row = below(random, 50), .length = below(random, c->seq_len + 1)};
    q->prefix = a->token, q->draft = a->draft, q->parent = a->parent;
    for (int i = 0; i < q->length; i++) a->token[i] = below(random, VOCABULARY);
    for (; q->count < most; q->count++) {
        const int n = q->count, parent = chain ? n - 1 : below(random, n + 1) - 1;
        if (q->length + causal_request_depth(q, parent) >= c->seq_len) break;
        a->parent[n] = parent;
        a->draft[n] = below(random, VOCABULARY);
    }
    q->from = below(random, q->count + 2);
    if (q->count == 0 && q->length > 0 && below(random, 2)) q->drawn = a->draft, q->last = below(random, 9);
}

/* --- the reference ------------------------------------------------------------------------------------------------ */

/* Writes tokens with a line end behind each whole row but the image's last. Returns their number. */
static int write_rows(const causal_shape *c, const int *token, int n, int *out)
{
    int length = 0;
    for (int row = 0; row * c->columns < n; row++) {
        const int first = row * c->columns, end = first + c->columns < n ? first + c->columns : n;
        for (int i = first; i < end; i++) out[length++] = token[i];
        if (end == first + c->columns && end < c->seq_len) out[length++] = c->vocabulary;
    }
    return length;
}

/* Writes the tokens from the first to this draft of a request. Returns their number. */
static int write_path(const causal_request *q, int draft, int *out)
{
    const int n = draft < 0 ? q->length : write_path(q, q->parent[draft], out);
    if (draft < 0)
        memcpy(out, q->prefix, (size_t)n * sizeof *out);
    else
        out[n] = q->draft[draft];
    return draft < 0 ? n : n + 1;
}

/* Tells whether the path that ends at draft `at` of the expanded request is that of draft `draft` with line ends. */
static int is_path(const causal_lines *l, const causal_shape *c, const causal_request *q, int draft, int at)
{
    int own[TOKENS], expected[POSITIONS], found[POSITIONS];
    const int n = write_rows(c, own, write_path(q, draft, own), expected);
    return write_path(&l->request, at, found) == n && memcmp(found, expected, (size_t)n * sizeof *found) == 0;
}

/* Returns the drafts that a request needs: one for each draft and each end of a row among them, and with last_is_draft
 * that behind the prefix. `count` drafts count. */
static int needed_drafts(const causal_lines *l, const causal_shape *c, const causal_request *q, int count)
{
    int own[TOKENS], out[POSITIONS], needed = 0;
    const int prefix = write_rows(c, q->prefix, q->length, out);
    if (l->last_is_draft && q->length > 0 && out[prefix - 1] == c->vocabulary) needed++;
    for (int i = 0; i < count; i++) {
        const int n = write_rows(c, own, write_path(q, i, own), out);
        needed += 1 + (out[n - 1] == c->vocabulary);
    }
    return needed;
}

/* Returns what is wrong with an expansion of q, or NULL. */
static const char *fault_of(const causal_lines *l, const causal_shape *c, const causal_request *q)
{
    const causal_request *r = &l->request;
    int out[POSITIONS], length = write_rows(c, q->prefix, q->length, out);
    if (l->last_is_draft && length > 0 && out[length - 1] == c->vocabulary) length--;
    if (r->sequence != q->sequence || r->row != q->row || r->drawn != q->drawn || r->last != q->last) return "fields";
    if (r->length != length || memcmp(r->prefix, out, (size_t)length * sizeof *out) != 0) return "prefix";
    if (r->count != needed_drafts(l, c, q, q->count)) return "count";
    for (int i = 0; i < r->count; i++)
        if (r->parent[i] < -1 || r->parent[i] >= i) return "parent";
    for (int site = 0; site <= q->count; site++)
        if (!is_path(l, c, q, site - 1, causal_lines_site(l, site))) return "site";
    if (r->from != (q->from ? needed_drafts(l, c, q, q->from - 1) + 1 : 0)) return "from";
    if (!q->drawn != (l->drawn_at < 0)) return "drawn";
    if (q->drawn && l->drawn_at != write_rows(c, q->prefix, q->length - 1, out)) return "drawn";
    return NULL;
}

static causal_shape config_of(int grid)
{
    return (causal_shape){
        .vocabulary = VOCABULARY, .line_end = 1, .columns = grids[grid][1], .seq_len = grids[grid][0] * grids[grid][1]};
}

TEST_CASE(expansions_are_right)
{
    uint64_t random = 3;
    mar_err err = {0};
    for (int grid = 0; grid < GRIDS; grid++) {
        const causal_shape c = config_of(grid);
        causal_lines l;
        assert_ok(causal_lines_create(&c, DRAFTS, &l, &err), &err);
        int out[POSITIONS], none[TOKENS] = {0};
        assert_int_equal(causal_positions(&c), write_rows(&c, none, c.seq_len, out));
        for (int round = 0; round < ROUNDS; round++) {
            asked_request a;
            make_request(&random, &c, &a);
            l.last_is_draft = round % 2;
            causal_lines_expand(&l, &c, &a.q);
            const char *fault = fault_of(&l, &c, &a.q);
            if (fault) fail_msg("grid %d, round %d: wrong %s", grid, round, fault);
            assert_true(l.request.count <= causal_lines_drafts(&c, DRAFTS) + l.last_is_draft);
        }
        causal_lines_free(&l);
    }
}

/* A continued request begins with what its first drafts alone give: the runner keeps what it has computed of them. */
TEST_CASE(continuations_begin_alike)
{
    uint64_t random = 5;
    mar_err err = {0};
    for (int grid = 0; grid < GRIDS; grid++) {
        const causal_shape c = config_of(grid);
        causal_lines whole, part;
        assert_ok(causal_lines_create(&c, DRAFTS, &whole, &err), &err);
        assert_ok(causal_lines_create(&c, DRAFTS, &part, &err), &err);
        for (int round = 0; round < ROUNDS; round++) {
            asked_request a;
            make_request(&random, &c, &a);
            whole.last_is_draft = part.last_is_draft = round % 2;
            causal_lines_expand(&whole, &c, &a.q);
            if (a.q.from == 0) continue;
            a.q.count = a.q.from - 1;
            causal_lines_expand(&part, &c, &a.q);
            const size_t bytes = (size_t)part.request.count * sizeof(int);
            assert_int_equal(part.request.count, whole.request.from - 1);
            assert_memory_equal(part.request.draft, whole.request.draft, bytes);
            assert_memory_equal(part.request.parent, whole.request.parent, bytes);
        }
        causal_lines_free(&whole);
        causal_lines_free(&part);
    }
}

/* --- changed expansions ------------------------------------------------------------------------------------------- */

typedef enum {
    OTHER_PARENT, /* a line end behind another draft */
    MISSED,       /* a draft behind a row's last token, not behind its line end */
    NO_LINE_END,  /* no line end behind a row's last token, in the prefix */
    ONE_MORE,     /* a line end behind the prefix where there is none */
    SITE_BEFORE,  /* the distribution in front of the line end */
    FROM_BEFORE,  /* a continuation that computes a draft twice */
    DRAWN_BEFORE, /* the token on the device at another place */
    MUTANTS
} mutant;

static const char *const mutant_names[MUTANTS] = {"other parent", "missed",      "no line end", "one more",
                                                  "site before",  "from before", "drawn before"};

/* Changes the draft with number i if the mutant applies to it. Returns 1 if it does. */
static int change_draft(causal_lines *l, const causal_shape *c, mutant m, int i)
{
    const int parent = l->parent[i];
    if (m == OTHER_PARENT && l->draft[i] == c->vocabulary && i > 1)
        return l->parent[i] = parent == i - 1 ? i - 2 : -1, 1;
    if (m == MISSED && parent >= 0 && l->draft[parent] == c->vocabulary) return l->parent[i] = l->parent[parent], 1;
    return 0;
}

/* Changes an expansion. Returns 1 if the mutant applies to it. */
static int plant(causal_lines *l, const causal_shape *c, const causal_request *q, mutant m)
{
    causal_request *r = &l->request;
    for (int i = 0; i < r->count; i++)
        if (change_draft(l, c, m, i)) return 1;
    for (int i = 0; m == NO_LINE_END && i < r->length; i++) {
        if (l->token[i] != c->vocabulary) continue;
        memmove(l->token + i, l->token + i + 1, (size_t)(--r->length - i) * sizeof *l->token);
        return 1;
    }
    if (m == ONE_MORE && r->length > 0 && l->token[r->length - 1] != c->vocabulary && q->length < c->seq_len)
        return l->token[r->length++] = c->vocabulary, 1;
    for (int site = 0; m == SITE_BEFORE && site <= q->count; site++)
        if (l->site[site] >= 0 && l->draft[l->site[site]] == c->vocabulary)
            return l->site[site] = l->parent[l->site[site]], 1;
    if (m == FROM_BEFORE && r->from > 1) return r->from--, 1;
    if (m == DRAWN_BEFORE && q->drawn) return l->drawn_at--, 1;
    return 0;
}

TEST_CASE(changed_expansions_are_found)
{
    mar_err err = {0};
    for (int m = 0; m < MUTANTS; m++) {
        uint64_t random = 7;
        int planted = 0;
        for (int grid = 0; grid < GRIDS; grid++) {
            const causal_shape c = config_of(grid);
            causal_lines l;
            assert_ok(causal_lines_create(&c, DRAFTS, &l, &err), &err);
            for (int round = 0; round < ROUNDS; round++) {
                asked_request a;
                make_request(&random, &c, &a);
                l.last_is_draft = round % 2;
                causal_lines_expand(&l, &c, &a.q);
                if (!plant(&l, &c, &a.q, (mutant)m)) continue;
                planted++;
                if (!fault_of(&l, &c, &a.q)) fail_msg("%s: grid %d, round %d", mutant_names[m], grid, round);
            }
            causal_lines_free(&l);
        }
        if (planted < ROUNDS / 6) fail_msg("%s: planted %d times", mutant_names[m], planted);
    }
}

/* A model without line ends: the request itself. */
TEST_CASE(other_models_have_the_request_itself)
{
    const causal_shape c = {.vocabulary = VOCABULARY, .seq_len = 16};
    const int token[3] = {1, 2, 3}, draft[2] = {4, 5}, parent[2] = {-1, 0};
    const causal_request q = {
        .prefix = token, .length = 3, .draft = draft, .parent = parent, .count = 2, .from = 1, .row = 9};
    causal_lines l;
    mar_err err = {0};
    assert_int_equal(causal_lines_drafts(&c, 5), 5);
    assert_ok(causal_lines_create(&c, 2, &l, &err), &err);
    for (int last = 0; last < 2; last++) {
        l.last_is_draft = last;
        causal_lines_expand(&l, &c, &q);
        assert_memory_equal(&l.request, &q, sizeof q);
        for (int site = 0; site <= 2; site++) assert_int_equal(causal_lines_site(&l, site), site - 1);
        assert_int_equal(l.drawn_at, -1);
    }
    const causal_request drawn = {.prefix = token, .length = 3, .drawn = draft, .last = 1};
    causal_lines_expand(&l, &c, &drawn);
    assert_int_equal(l.drawn_at, 2);
    causal_lines_free(&l);
}
