/* Trees of drafts in one pass of the runner. Their distributions equal those of the same tokens one by one, bit for
 * bit. So does the state kept of drafts that become tokens. The models are LlamaGen with classes, and a decoder with
 * prompts of different lengths, grouped queries, norms of q and k, and line ends among the tokens. */
#include "tests/support/causal_fixture.h"
#include "tests/support/llamagen.h"

#include <stdlib.h>
#include <string.h>

enum { IMAGES = 2, DRAFTS = 9, LAWS = DRAFTS + 1, TOKENS = 16, VOCABULARY = 73, PROMPT = 17, WIDTH = 32 };
typedef enum { CLASSES, PROMPTS, MODELS } conditions;

static const mar_dtype dtypes[2] = {MAR_DTYPE_F32, MAR_DTYPE_BF16};
static const causal_sampling guided = {.cfg = 1.7f, .cfg_interval = 5, .temperature = 0.9f, .top_p = 1};
static const int label[IMAGES] = {2, 0};

/* A runner under test, and one that computes a sequence's tokens one by one, each in its own pass. */
typedef struct {
    causal_fixture tested, plain;
    causal_start start[IMAGES]; /* how the images of `tested` were started */
    uint64_t random;
    /* Prompts of a decoder; the last is the second context of guidance. */
    float prompt[IMAGES + 1][PROMPT]; /* ids */
    uint8_t mask[IMAGES + 1][PROMPT];
    int length[IMAGES + 1];
} fixture;

static int random_below(fixture *f, int n)
{
    f->random = f->random * 6364136223846793005u + 1442695040888963407u;
    return (int)((f->random >> 33) % (uint64_t)n);
}

/* Makes a prompt of random length and ids. */
static void make_prompt(fixture *f, int i)
{
    f->length[i] = 1 + random_below(f, PROMPT);
    for (int j = 0; j < PROMPT; j++) f->prompt[i][j] = (float)random_below(f, f->plain.model->shape.rows);
    for (int j = 0; j < PROMPT; j++) f->mask[i][j] = j >= PROMPT - f->length[i];
}

static int open_models(fixture *f, mar_dtype dtype, conditions model)
{
    const family_facts c = small_decoder();
    kern_queue *k = open_queue(dtype, 2);
    if (!k) return 0;
    if (model == CLASSES) {
        causal_fixture_open(&f->tested, k, "llamagen_c2i20", 0, &guided, IMAGES, DRAFTS, 1, IMAGES * LAWS);
        return causal_fixture_open(&f->plain, open_queue(dtype, 2), "llamagen_c2i20", 0, &guided, 1, 0, 1, 1);
    }
    char *path = write_decoder(test_directory(), "decoder.safetensors", &c, 3);
    causal_fixture_open_file(&f->tested, k, path, &guided, IMAGES, DRAFTS, 1, IMAGES * LAWS);
    causal_fixture_open_file(&f->plain, open_queue(dtype, 2), path, &guided, 1, 0, 1, 1);
    for (int i = 0; i <= IMAGES; i++) make_prompt(f, i);
    causal_runner_set_negative(f->tested.runner, f->prompt[IMAGES], f->mask[IMAGES]);
    causal_runner_set_negative(f->plain.runner, f->prompt[IMAGES], f->mask[IMAGES]);
    free(path);
    return 1;
}

/* Returns how an image starts. */
static causal_start start_of(const fixture *f, int image)
{
    return (causal_start){
        .image = image, .label = label[image], .features = f->prompt[image], .mask = f->mask[image], .cfg = guided.cfg};
}

static int open_both(fixture *f, mar_dtype dtype, conditions model)
{
    f->random = 1;
    if (!open_models(f, dtype, model)) return 0;
    assert_true(f->tested.vocabulary == VOCABULARY && f->tested.seq_len == TOKENS);
    for (int i = 0; i < IMAGES; i++) f->start[i] = start_of(f, i);
    causal_runner_admit(f->tested.runner, f->start, IMAGES);
    causal_runner_clear_stats(f->tested.runner);
    return 1;
}

static void close_both(fixture *f)
{
    causal_fixture_close(&f->tested);
    causal_fixture_close(&f->plain);
}

/* Writes tokens with the line ends behind them. Returns their number. */
static int with_line_ends(const fixture *f, const int *token, int n, int *out)
{
    int length = 0;
    for (int i = 0; i < n; i++) {
        out[length++] = token[i];
        if (causal_ends_line(&f->tested.model->shape, i)) out[length++] = VOCABULARY;
    }
    return length;
}

/* Returns the rows of n tokens from number `first` on: line ends count. */
static int rows_of(const fixture *f, int first, int n)
{
    int rows = 0;
    for (int i = first; i < first + n; i++) rows += 1 + causal_ends_line(&f->tested.model->shape, i);
    return rows;
}

/* Returns the rows of a request's drafts from number `first` on. */
static int draft_rows(const fixture *f, const causal_request *q, int first)
{
    int rows = 0;
    for (int i = first; i < q->count; i++) rows += rows_of(f, q->length + causal_request_depth(q, i) - 1, 1);
    return rows;
}

/* Computes an image's tokens one by one. Then row 0 is the distribution of the next token. */
static void compute_plainly(fixture *f, int image, const int *token, int n)
{
    causal_start alone = f->start[image];
    alone.image = alone.given = 0;
    causal_runner_admit(f->plain.runner, &alone, 1);
    for (int i = 0; i <= n; i++) causal_fixture_laws(&f->plain, &(causal_request){.prefix = token, .length = i}, 1);
}

/* Writes the tokens from the first to this draft of a request. Returns their number. */
static int path_to(const causal_request *q, int draft, int *token)
{
    int depth = 0, n = q->length;
    for (int a = draft; a >= 0; a = q->parent[a]) depth++;
    memcpy(token, q->prefix, (size_t)n * sizeof *token);
    for (int a = draft, i = depth; a >= 0; a = q->parent[a]) token[n + --i] = q->draft[a];
    return n + depth;
}

/* Checks that distributions from number `first` on equal those of plain decoding. */
static void expect_laws(fixture *f, const causal_request *q, int first)
{
    for (int site = first; site <= q->count; site++) {
        int token[TOKENS];
        compute_plainly(f, q->sequence, token, path_to(q, site - 1, token));
        assert_memory_equal(causal_fixture_law(&f->tested, q->row + site), f->plain.laws, VOCABULARY * sizeof(float));
    }
}

/* Tokens of an image, and a tree of drafts after them */
typedef struct {
    int token[TOKENS], draft[DRAFTS], parent[DRAFTS], depth[DRAFTS];
    causal_request request;
} image_state;

/* Makes a random tree of up to `most` drafts that fit in the image. Siblings differ. */
static void grow_tree(fixture *f, image_state *s, int most)
{
    causal_request *q = &s->request;
    q->count = 0;
    while (q->count < most) {
        const int n = q->count, parent = random_below(f, n + 1) - 1;
        const int depth = parent < 0 ? 1 : s->depth[parent] + 1;
        if (q->length + depth > TOKENS) break;
        s->parent[n] = parent;
        s->depth[n] = depth;
        s->draft[n] = (n + random_below(f, 7) * DRAFTS) % VOCABULARY; /* equal only for equal n */
        q->count++;
    }
}

static void start(image_state *s, int image)
{
    *s = (image_state){.request = {.sequence = image, .row = image * LAWS}};
    s->request.prefix = s->token;
    s->request.draft = s->draft;
    s->request.parent = s->parent;
}

static void random_tokens(fixture *f, image_state *s, int n)
{
    while (s->request.length < n) s->token[s->request.length++] = random_below(f, VOCABULARY);
}

/* Computes the trees of both images in one pass. Before one tree, its image's tokens must be computed, too. Before the
 * other there are none. */
TEST_CASE(trees)
{
    for (int d = 0; d < 2 * MODELS; d++) {
        fixture f;
        image_state image[IMAGES];
        causal_request both[IMAGES];
        if (!open_both(&f, dtypes[d % 2], (conditions)(d / 2))) continue;
        for (int i = 0; i < IMAGES; i++) {
            start(&image[i], i);
            random_tokens(&f, &image[i], i == 0 ? 0 : 6);
            grow_tree(&f, &image[i], DRAFTS);
            both[i] = image[i].request;
        }
        causal_fixture_laws(&f.tested, both, IMAGES);
        for (int i = 0; i < IMAGES; i++) expect_laws(&f, &both[i], 0);
        close_both(&f);
    }
}

/* Starts images beside others, with a class, a guidance scale and given tokens of their own. */
TEST_CASE(admissions)
{
    static const float scales[] = {1, 1.7f, 4};
    for (int d = 0; d < 2 * MODELS; d++) {
        fixture f;
        image_state image[IMAGES];
        if (!open_both(&f, dtypes[d % 2], (conditions)(d / 2))) continue;
        for (int i = 0; i < IMAGES; i++) start(&image[i], i);
        for (int round = 0; round < 10; round++) {
            const int first = random_below(&f, IMAGES), last = round % 3 ? first : IMAGES - 1;
            const long before = causal_runner_get_stats(f.tested.runner)->rows;
            int rows = 0;
            causal_request both[IMAGES];
            for (int i = first; i <= last; i++) {
                start(&image[i], i);
                random_tokens(&f, &image[i], random_below(&f, TOKENS + 1));
                if (d / 2 == PROMPTS) make_prompt(&f, i);
                f.start[i] = start_of(&f, i);
                f.start[i].label = random_below(&f, 5) - 1;
                f.start[i].cfg = scales[random_below(&f, 3)];
                f.start[i].token = image[i].token;
                f.start[i].given = image[i].request.length;
                /* the class or the prompts, and all but the last token */
                rows += d / 2 == PROMPTS ? f.length[i] + f.length[IMAGES] : 2;
                rows += 2 * rows_of(&f, 0, f.start[i].given - 1);
            }
            causal_runner_admit(f.tested.runner, &f.start[first], last - first + 1);
            assert_int_equal(causal_runner_get_stats(f.tested.runner)->rows - before, rows);
            for (int j = 0; j < IMAGES; j++) {
                grow_tree(&f, &image[j], DRAFTS);
                both[j] = image[j].request;
            }
            causal_fixture_laws(&f.tested, both, IMAGES);
            for (int j = 0; j < IMAGES; j++)
                if (both[j].length < TOKENS) expect_laws(&f, &both[j], 0);
        }
        close_both(&f);
    }
}

/* Computes the same tree by levels. Each request continues the one before, whose distributions stay. */
TEST_CASE(levels)
{
    static const int ends[] = {2, 5, 6, DRAFTS}, parent[DRAFTS] = {-1, -1, 0, 0, 1, 4, 2, 2, 5};
    for (int d = 0; d < 2 * MODELS; d++) {
        fixture f;
        image_state s;
        if (!open_both(&f, dtypes[d % 2], (conditions)(d / 2))) continue;
        start(&s, 1);
        random_tokens(&f, &s, 6); /* a row of the decoder's ends among the drafts */
        grow_tree(&f, &s, DRAFTS);
        memcpy(s.parent, parent, sizeof parent);
        for (size_t l = 0; l < sizeof ends / sizeof *ends; l++) {
            s.request.from = l ? s.request.count + 1 : 0;
            s.request.count = ends[l];
            const long rows = causal_runner_get_stats(f.tested.runner)->rows;
            causal_fixture_laws(&f.tested, &s.request, 1);
            if (l)
                assert_int_equal(causal_runner_get_stats(f.tested.runner)->rows - rows,
                                 2 * draft_rows(&f, &s.request, ends[l - 1]));
        }
        expect_laws(&f, &s.request, 0);
        /* A request with a changed draft is no continuation: it is computed in full. */
        s.draft[1] = (s.draft[1] + 1) % VOCABULARY;
        s.request.from = DRAFTS;
        memset(f.tested.laws, 0, (size_t)IMAGES * LAWS * VOCABULARY * sizeof(float));
        causal_fixture_laws(&f.tested, &s.request, 1);
        expect_laws(&f, &s.request, 0);
        close_both(&f);
    }
}

/* Checks that the features of an image's tokens under both conditions equal those of plain decoding. */
static void expect_features(fixture *f, const image_state *s, int known)
{
    const int d = f->tested.model->shape.width, image = s->request.sequence, positions = rows_of(f, 0, known);
    compute_plainly(f, image, s->token, known);
    for (int c = 0; c < 2; c++)
        for (int i = -1; i < positions; i++) {
            const int slot = causal_runner_slot(f->tested.runner, image, c, i),
                      other = causal_runner_slot(f->plain.runner, 0, c, i);
            assert_true(slot >= 0 && other >= 0);
            assert_memory_equal(causal_runner_features(f->tested.runner) + (size_t)slot * (size_t)d,
                                causal_runner_features(f->plain.runner) + (size_t)other * (size_t)d,
                                (size_t)d * sizeof(float));
        }
    assert_int_equal(causal_runner_slot(f->tested.runner, image, 0, positions), -1);
}

/* Accepts a path of the tree, and a token after it. The path's drafts stay in their slots. Returns their number. */
static int accept(fixture *f, image_state *s)
{
    causal_request *q = &s->request;
    const int before = q->length, end = random_below(f, q->count + 1) - 1;
    int token[TOKENS], all[2 * TOKENS];
    const int accepted = path_to(q, end, token);
    memcpy(s->token, token, (size_t)accepted * sizeof *token);
    q->length = accepted;
    causal_runner_follow(f->tested.runner, q->sequence, all, with_line_ends(f, token, accepted, all));
    expect_features(f, s, accepted);
    if (accepted < TOKENS) random_tokens(f, s, accepted + 1);
    return accepted - before;
}

/* Generates whole images in rounds of trees. A round computes the drafts and the last token, and nothing twice. */
TEST_CASE(rounds)
{
    for (int d = 0; d < 2 * MODELS; d++) {
        fixture f;
        image_state image[IMAGES];
        if (!open_both(&f, dtypes[d % 2], (conditions)(d / 2))) continue;
        for (int i = 0; i < IMAGES; i++) start(&image[i], i);
        for (int round = 0;; round++) {
            causal_request request[IMAGES];
            int n = 0, expected = 0;
            for (int i = 0; i < IMAGES; i++) {
                if (image[i].request.length == TOKENS) continue;
                grow_tree(&f, &image[i], random_below(&f, DRAFTS + 1));
                const causal_request *q = &image[i].request;
                expected += 2 * (draft_rows(&f, q, 0) + (q->length > 0 ? rows_of(&f, q->length - 1, 1) : 0));
                request[n++] = image[i].request;
            }
            if (n == 0) break;
            const causal_runner_stats before = *causal_runner_get_stats(f.tested.runner);
            causal_fixture_laws(&f.tested, request, n);
            assert_int_equal(causal_runner_get_stats(f.tested.runner)->passes - before.passes, 1);
            assert_int_equal(causal_runner_get_stats(f.tested.runner)->rows - before.rows, expected);
            for (int i = 0; i < n; i++) expect_laws(&f, &request[i], 0);
            for (int i = 0; i < n; i++) accept(&f, &image[request[i].sequence]);
        }
        close_both(&f);
    }
}

/* Prefixes that do not continue the last one: shorter, with other tokens, the same again, much longer. */
TEST_CASE(jumps)
{
    for (int d = 0; d < 2 * MODELS; d++) {
        fixture f;
        image_state s;
        if (!open_both(&f, dtypes[d % 2], (conditions)(d / 2))) continue;
        start(&s, 1);
        for (int round = 0; round < 40; round++) {
            s.request.length = random_below(&f, s.request.length + 1);
            random_tokens(&f, &s, s.request.length + random_below(&f, TOKENS + 1 - s.request.length));
            grow_tree(&f, &s, random_below(&f, DRAFTS + 1));
            for (int again = 0; again < 2; again++) {
                causal_fixture_laws(&f.tested, &s.request, 1);
                expect_laws(&f, &s.request, 0);
            }
        }
        close_both(&f);
    }
}

/* Tokens whose numbers the host does not have: each is read from an array of the backend, with the line end behind it
 * in the same pass. Now and then the host reads those that it lacks. */
TEST_CASE(tokens_on_the_device)
{
    for (int d = 0; d < 2 * MODELS; d++) {
        fixture f;
        image_state image[IMAGES];
        int known[IMAGES][TOKENS];
        if (!open_both(&f, dtypes[d % 2], (conditions)(d / 2))) continue;
        int *drawn = backend_memory(f.tested.k, sizeof(int) * IMAGES * TOKENS);
        for (int i = 0; i < IMAGES; i++) start(&image[i], i);
        for (int n = 0; n < TOKENS; n++) {
            causal_request both[IMAGES];
            for (int i = 0; i < IMAGES; i++) {
                random_tokens(&f, &image[i], n);
                both[i] = image[i].request;
                both[i].drawn = n ? drawn : NULL;
                both[i].last = n * IMAGES + i;
                both[i].prefix = known[i];
                if (n) known[i][n - 1] = CAUSAL_UNREAD;
                if (n)
                    f.tested.k->core->upload(f.tested.k, drawn + n * IMAGES + i, &image[i].token[n - 1], sizeof(int));
            }
            const long rows = causal_runner_get_stats(f.tested.runner)->rows;
            causal_fixture_laws(&f.tested, both, IMAGES);
            assert_int_equal(causal_runner_get_stats(f.tested.runner)->rows - rows,
                             n ? 2 * IMAGES * rows_of(&f, n - 1, 1) : 0);
            for (int i = 0; i < IMAGES; i++) expect_laws(&f, &image[i].request, 0);
            for (int i = 0; n % 5 == 4 && i < IMAGES; i++) memcpy(known[i], image[i].token, (size_t)n * sizeof(int));
        }
        f.tested.k->core->free(f.tested.k->device, drawn);
        close_both(&f);
    }
}

/* Checks that a request that fits no image is refused, and that the next one is answered. */
TEST_CASE(refusals)
{
    fixture f;
    const int token[TOKENS + 1] = {1, 2, 3}, high[] = {VOCABULARY}, low[] = {-1}, parent[] = {-1, 0, 2}, many[20] = {0};
    assert_true(open_both(&f, MAR_DTYPE_F32, CLASSES));
    const struct {
        causal_request request;
        const char *words;
    } wrong[] = {
        {{.prefix = token, .length = TOKENS + 1}, "token 0 at position 16, expected one of 73 tokens at one of 16"},
        {{.prefix = high, .length = 1}, "token 73 at position 0"},
        {{.prefix = low, .length = 1}, "token -1 at position 0"},
        {{.prefix = token, .length = TOKENS, .draft = token, .parent = parent, .count = 1}, "at position 16"},
        {{.prefix = token, .length = TOKENS - 1, .draft = token, .parent = parent, .count = 2},
         "token 2 at position 16"},
        {{.draft = token, .parent = parent, .count = 3}, "draft 2 follows draft 2, expected an earlier one"},
        {{.draft = many, .parent = many, .count = DRAFTS + 1}, "10 drafts for image 0 of a batch, expected at most 9"},
        {{.sequence = IMAGES}, "0 drafts for image 2 of a batch, expected at most 9 for one of 2"},
    };
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        mar_err err = {0};
        assert_int_equal(causal_runner_log_probs(f.tested.runner, &wrong[i].request, 1, f.tested.laws, &err), MAR_EARG);
        if (!strstr(err.text, wrong[i].words)) fail_msg("\"%s\" does not say \"%s\"", err.text, wrong[i].words);
    }
    const causal_request good = {.prefix = token, .length = 3};
    causal_fixture_laws(&f.tested, &good, 1);
    expect_laws(&f, &good, 0);
    close_both(&f);
}

/* Checks that nothing is computed after a failure, and that the caller learns of it. A new beginning restores
 * everything. */
TEST_CASE(failures)
{
    fixture f;
    int cancel = 1;
    mar_err err = {0};
    const int token[] = {4, 5};
    const causal_request request = {.prefix = token, .length = 2};
    assert_true(open_both(&f, MAR_DTYPE_F32, CLASSES));
    kern_queue *k = f.tested.k;
    k->cancel = &cancel;
    causal_runner_begin(f.tested.runner, IMAGES, label);
    assert_int_equal(causal_runner_log_probs(f.tested.runner, &request, 1, f.tested.laws, &err), MAR_ECANCELLED);
    k->cancel = NULL;
    k->core->recover(k);
    causal_runner_begin(f.tested.runner, IMAGES, label);
    causal_fixture_laws(&f.tested, &request, 1);
    expect_laws(&f, &request, 0);
    close_both(&f);
}

/* Checks that the search for non-finite layers reports a layer by its name, behind the name of its part. */
TEST_CASE(watching)
{
    fixture f;
    mar_err err = {0};
    const int token[] = {4};
    const causal_request request = {.prefix = token, .length = 1};
    assert_true(open_both(&f, MAR_DTYPE_F32, CLASSES));
    kern_queue *k = f.tested.k;
    const float nan = strtof("nan", NULL);
    causal_runner_name(f.tested.runner, "draft: ");
    k->watch.on = 1;
    kern_watch_begin(k);
    causal_fixture_laws(&f.tested, &request, 1);
    assert_string_equal(k->watch.layer, "");
    k->core->upload(k, f.tested.model->layers[1].ffn_norm + 3, &nan, sizeof nan);
    assert_ok(causal_runner_log_probs(f.tested.runner, &request, 1, f.tested.laws, &err), &err);
    assert_string_equal(k->watch.layer, "draft: layers.1.ffn_norm");
    assert_true(f.tested.laws[0] != f.tested.laws[0]); /* the distribution has a NaN */
    close_both(&f);
}
