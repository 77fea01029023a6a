/* The sampler of discrete tokens: its requests to models, independent sequences that come and go, dynamic trees, its
 * statistics, and how it ends. */
#include "specdec/round.h"
#include "tests/support/discrete.h"
#include "tests/support/support.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { SIZE = 12, TOKENS = 30, MOST_SEQUENCES = 6, MOST_DRAFTS = 200 };

/* A model that checks its requests. */
typedef struct {
    toy *t;
    const sampling *g;
    int is_draft, drafts; /* most drafts of a request */
    int fails_at;         /* call that fails; 0: none */
    int nan_at;           /* prefix length from which on all distributions are NaN; -1: none */
    int nan_of;           /* sequence with these distributions; -1: all */
    int cancels_at;       /* call at which the user cancels; 0: none */
    int cancel;
    int on_device;                       /* requests whose last token was on the device */
    causal_request last[MOST_SEQUENCES]; /* last request of each sequence */
    int draft[MOST_SEQUENCES][MOST_DRAFTS], parent[MOST_SEQUENCES][MOST_DRAFTS];
} checked;

static mar_status checked_laws(void *state, const causal_request *request, int n, float *log_probs, mar_err *err)
{
    checked *c = state;
    for (int r = 0; r < n; r++) {
        const causal_request *q = &request[r];
        causal_request *last = &c->last[q->sequence];
        assert_true(r == 0 || q->sequence > request[r - 1].sequence); /* increasing, so all differ */
        assert_int_equal(q->length, spec_sampler_known(c->g->s, q->sequence));
        assert_true(q->length < TOKENS); /* finished sequences make no request */
        assert_in_range(q->count, 0, c->drafts);
        assert_memory_equal(q->prefix, spec_sampler_tokens(c->g->s, q->sequence), (size_t)q->length * sizeof(int));
        for (int i = 0; i < q->count; i++) {
            int depth = 1;
            assert_true(q->parent[i] < i && q->parent[i] >= -1 && q->draft[i] >= 0 && q->draft[i] < SIZE);
            for (int p = q->parent[i]; p >= 0; p = q->parent[p]) depth++;
            assert_true(q->length + depth < TOKENS); /* no distribution beyond the end */
        }
        if (!c->is_draft) assert_int_equal(q->from, 0);
        if (q->from > 0) {
            assert_true(last->length == q->length && last->count + 1 == q->from && last->row == q->row);
            for (int i = 0; i < last->count; i++) {
                assert_int_equal(c->draft[q->sequence][i], q->draft[i]);
                assert_int_equal(c->parent[q->sequence][i], q->parent[i]);
            }
        }
        *last = *q;
        for (int i = 0; i < q->count; i++)
            c->draft[q->sequence][i] = q->draft[i], c->parent[q->sequence][i] = q->parent[i];
    }
    const mar_status status = toy_laws(c->t, request, n, log_probs, err);
    if (c->t->calls == c->fails_at) return err_set(err, MAR_EBACKEND, "no luck");
    if (c->t->calls == c->cancels_at) __atomic_store_n(&c->cancel, 1, __ATOMIC_RELAXED);
    for (int r = 0; r < n && c->nan_at >= 0; r++)
        if (request[r].length >= c->nan_at && (c->nan_of < 0 || request[r].sequence == c->nan_of))
            for (int x = 0; x < SIZE * (request[r].count + 1); x++) log_probs[request[r].row * SIZE + x] = NAN;
    return status;
}

static const int tree[] = {-1, -1, 0, 0, 1, 1, 2, 3, 4, 5};
static const double pac[] = {3, 3, 1}, uniform[] = {1.5}, lantern[] = {5, 0.3};

static int choose_hashed(const spec_choice *c, const spec_past *past)
{
    (void)c;
    return past->rounds == 0 ? 9 : (past->known * 5 + past->accepted) % 11;
}

/* Two rounds with drafts, and then three without, in all sequences. */
static int choose_in_turns(const spec_choice *c, const spec_past *past)
{
    (void)c;
    return past->rounds % 5 < 2 ? 9 : 0;
}

static const spec_choice hashed = {.choose = choose_hashed}, in_turns = {.choose = choose_in_turns},
                         by_costs = {
                             .choose = spec_choose, .widths = 4, .drafts = {0, 2, 4, 8}, .cost = {1, 1.1, 1.2, 1.4}};

/* One method of each kind */
static const struct {
    const char *method;
    spec_sampler_options o;
} kinds[] = {
    {NULL, {.length = 0}},
    {"vanilla", {.length = 4}},
    {"uniform-rsd", {.parameter = uniform, .length = 40}},
    {"lantern", {.parameter = lantern, .length = 3, .parent = tree, .count = 10}},
    {"vanilla", {.length = 4, .parent = tree, .count = 10, .likeliest = 1}},
    {"vanilla", {.length = 4, .top = 3, .total = 12}},
    {"vanilla", {.length = 1, .top = 12, .total = 40}},
    {"sjd", {.length = 7}},
    {"sjd", {.length = 30, .first = SPEC_FIRST_LEFT, .side = 5}},
    {"sjd-pac", {.parameter = pac, .length = 15, .first = SPEC_FIRST_ABOVE, .side = 5}},
    {"scd", {.parameter = pac, .length = 15, .first = SPEC_FIRST_ABOVE, .side = 5}},
    {"vanilla", {.length = 8, .choice = &by_costs}},
    {"vanilla", {.length = 4, .parent = tree, .count = 10, .choice = &hashed}},
    {"vanilla", {.length = 4, .top = 3, .total = 12, .choice = &hashed}},
    {"sjd-pac",
     {.parameter = pac, .length = 13, .choice = &hashed}}, /* 12 drafts have 2 levels and cover 5 positions */
    {"scd", {.parameter = pac, .length = 9, .choice = &by_costs}},
};
enum { KINDS = sizeof kinds / sizeof *kinds };

typedef struct {
    toy *p, *q;
    checked target, draft;
    int near[SIZE * SIZE];
    sampling g;
} setup;

static mar_status try_create(setup *u, int kind, int sequences, const spec_choice *choice, mar_err *err)
{
    spec_sampler_options o = kinds[kind].o;
    if (choice) o.choice = choice;
    o.method = kinds[kind].method ? spec_method_find(kinds[kind].method) : NULL;
    o.neighbours = u->near, o.neighbour_count = SIZE;
    const spec_model target = {SIZE, &u->target, checked_laws, NULL}, draft = {SIZE, &u->draft, checked_laws, NULL};
    const mar_status status = spec_sampler_create(u->g.k, &target, o.method && !o.method->stale ? &draft : NULL, &o,
                                                  sequences, TOKENS, &u->g.s, err);
    if (status != MAR_OK) return status;
    u->g.memory = backend_memory(u->g.k, spec_sampler_lay_out(u->g.s, NULL));
    spec_sampler_lay_out(u->g.s, u->g.memory);
    u->target.drafts = spec_sampler_target_drafts(u->g.s), u->draft.drafts = spec_sampler_draft_drafts(u->g.s);
    return status;
}

/* `choice`: in place of the kind's, if not NULL. */
static void set_up_choosing(setup *u, int kind, int sequences, const spec_choice *choice)
{
    mar_err err;
    memset(u, 0, sizeof *u);
    u->p = toy_create(SIZE, 1, 3, 1, NULL, 0), u->q = toy_create(SIZE, 1, 4, 0.7, u->p, 0);
    u->p->markov = u->q->markov = 1;
    u->target = (checked){.t = u->p, .g = &u->g, .nan_at = -1, .nan_of = -1}, u->draft = u->target;
    u->draft.t = u->q, u->draft.is_draft = 1;
    circle(SIZE, u->near);
    sampling_open(&u->g, 2);
    u->g.start = (spec_start){.seed = 31, .n = TOKENS};
    assert_ok(try_create(u, kind, sequences, choice, &err), &err);
}

static void set_up(setup *u, int kind, int sequences)
{
    set_up_choosing(u, kind, sequences, NULL);
}

static void tear_down(setup *u)
{
    sampling_close(&u->g);
    toy_free(u->p), toy_free(u->q);
}

/* Checks that a sequence has the same tokens, statuses and rounds alone as in a batch, whether it ends first or last. A
 * batch's statistics are the sum. */
TEST_CASE(sequences_are_independent)
{
    int ends = 0; /* sequences that ended before others */
    for (int kind = 0; kind < KINDS; kind++) {
        setup u, alone;
        spec_sampler_stats sum = {0};
        int rounds = 0;
        mar_err err;
        set_up(&u, kind, MOST_SEQUENCES), set_up(&alone, kind, 1);
        for (int again = 0; again < 2; again++) { /* a sampler can be reused */
            u.g.start.image = 50;
            sampling_begin(u.g.s, &u.g.start, MOST_SEQUENCES);
            for (rounds = 0; spec_sampler_running(u.g.s) > 0; rounds++) {
                int known[MOST_SEQUENCES];
                for (int i = 0; i < MOST_SEQUENCES; i++) known[i] = spec_sampler_known(u.g.s, i);
                assert_ok(spec_sampler_round(u.g.s, &err), &err);
                for (int i = 0; i < MOST_SEQUENCES; i++)
                    assert_true(known[i] == TOKENS || spec_sampler_known(u.g.s, i) > known[i]);
            }
        }
        for (int i = 0; i < MOST_SEQUENCES; i++) {
            uint8_t status[2][TOKENS];
            int round[2][TOKENS], accepted = 0;
            sampling_run(&alone.g, 50 + (uint64_t)i, 1, TOKENS);
            assert_memory_equal(spec_sampler_tokens(u.g.s, i), spec_sampler_tokens(alone.g.s, 0), TOKENS * sizeof(int));
            spec_sampler_token_status(u.g.s, i, status[0], round[0]),
                spec_sampler_token_status(alone.g.s, 0, status[1], round[1]);
            assert_memory_equal(status[0], status[1], sizeof status[0]);
            assert_memory_equal(round[0], round[1], sizeof round[0]);
            for (int j = 0; j < TOKENS; j++) {
                accepted += status[0][j] == SPEC_ACCEPTED;
                assert_true(j == 0 ? round[0][j] == 0 : round[0][j] - round[0][j - 1] <= 1);
                assert_true(round[0][j] == (j ? round[0][j - 1] : 0) || status[0][j - 1] != SPEC_ACCEPTED ||
                            kinds[kind].o.length < TOKENS);
            }
            const spec_sampler_stats *s = spec_sampler_get_stats(alone.g.s);
            assert_int_equal(s->accepted, accepted);
            assert_int_equal(s->rounds, round[0][TOKENS - 1] + 1);
            assert_int_equal(s->calls, s->rounds);
            if (s->rounds < rounds) ends++;
            sum.rounds += s->rounds, sum.rows += s->rows, sum.drafted += s->drafted, sum.positions += s->positions;
            sum.accepted += s->accepted;
            for (int n = 0; n < SPEC_LENGTHS; n++) sum.lengths[n] += s->lengths[n];
        }
        const spec_sampler_stats *s = spec_sampler_get_stats(u.g.s);
        long all = 0, weighed = 0;
        for (int n = 0; n < SPEC_LENGTHS; n++) all += s->lengths[n], weighed += n * s->lengths[n];
        assert_true(all == s->rounds && weighed == s->accepted);
        assert_memory_equal(s->lengths, sum.lengths, sizeof sum.lengths);
        assert_true(s->rounds == sum.rounds && s->rows == sum.rows && s->drafted == sum.drafted);
        assert_true(s->positions == sum.positions && s->accepted == sum.accepted);
        assert_int_equal(s->calls, rounds); /* one pass a round for all sequences */
        assert_true(s->draft_calls <= rounds * kinds[kind].o.length && (s->draft_calls > 0) == (u.q->calls > 0));
        if (kinds[kind].method)
            assert_true(s->rounds < MOST_SEQUENCES * TOKENS);
        else
            assert_true(s->rounds == MOST_SEQUENCES * TOKENS && s->drafted == 0 && s->rows == s->rounds);
        assert_int_equal(u.p->rows, 2 * s->rows);
        tear_down(&u), tear_down(&alone);
    }
    assert_true(ends > 2 * KINDS);
}

/* --- sequences that come and go --- */

enum { GUESTS = 16 };

/* Returns sequence number i of GUESTS: seeds, lengths and given tokens differ. */
static spec_start guest(int i, const int *given)
{
    return (spec_start){.seed = 31 + (uint64_t)(i % 3),
                        .image = 50 + (uint64_t)i,
                        .n = i % 4 == 3 ? TOKENS - 7 : TOKENS,
                        .token = given,
                        .given = i % 5 == 2 ? i : 0};
}

/* Checks that a sequence has the same tokens, statuses and rounds alone as beside others, which come and go. */
TEST_CASE(sequences_come_and_go)
{
    enum { PLACES = 3 };
    int given[GUESTS];
    for (int i = 0; i < GUESTS; i++) given[i] = (i * 5 + 3) % SIZE;
    for (int kind = 0; kind < KINDS; kind++) {
        setup u, alone;
        mar_err err;
        int at[PLACES] = {-1, -1, -1}, next = 0, done = 0;
        set_up(&u, kind, PLACES), set_up(&alone, kind, 1);
        spec_sampler_begin(u.g.s);
        for (int round = 0; done < GUESTS; round++) {
            for (int p = 0; p < PLACES; p++) {
                if (at[p] >= 0 && at[p] % 6 == 4 && round % 5 == 0) { /* leaves early */
                    spec_sampler_release(u.g.s, p);
                    assert_int_equal(spec_sampler_left(u.g.s, p), 0);
                    at[p] = -1, done++;
                }
                if (at[p] >= 0 || next == GUESTS || (round + p) % 3) continue;
                const spec_start start = guest(at[p] = next++, given);
                spec_sampler_admit(u.g.s, p, &start);
                assert_int_equal(spec_sampler_left(u.g.s, p), start.n - start.given);
            }
            assert_ok(spec_sampler_round(u.g.s, &err), &err);
            for (int p = 0; p < PLACES; p++) {
                if (at[p] < 0 || spec_sampler_left(u.g.s, p) > 0) continue;
                uint8_t status[2][TOKENS];
                int rounds[2][TOKENS];
                const spec_start start = guest(at[p], given);
                sampling_begin(alone.g.s, &start, 1);
                while (spec_sampler_running(alone.g.s)) assert_ok(spec_sampler_round(alone.g.s, &err), &err);
                const int *tokens = spec_sampler_tokens(u.g.s, p);
                const size_t n = (size_t)start.n;
                assert_memory_equal(tokens, spec_sampler_tokens(alone.g.s, 0), n * sizeof *tokens);
                assert_memory_equal(tokens, given, (size_t)start.given * sizeof *tokens);
                spec_sampler_token_status(u.g.s, p, status[0], rounds[0]);
                spec_sampler_token_status(alone.g.s, 0, status[1], rounds[1]);
                assert_memory_equal(status[0], status[1], n);
                assert_memory_equal(rounds[0], rounds[1], n * sizeof *rounds[0]);
                assert_int_equal(spec_sampler_get_stats(alone.g.s)->tokens, start.n - start.given);
                at[p] = -1, done++;
                if (done % 2) spec_sampler_release(u.g.s, p); /* a finished sequence may also be replaced */
            }
        }
        assert_int_equal(next, GUESTS);
        tear_down(&u), tear_down(&alone);
    }
}

/* Checks that plain sampling continues its own tokens, any number of them, as if it had drawn them. */
TEST_CASE(plain_sampling_continues_itself)
{
    setup u;
    int tokens[TOKENS];
    set_up(&u, 0, 1);
    sampling_run(&u.g, 9, 1, TOKENS);
    memcpy(tokens, spec_sampler_tokens(u.g.s, 0), sizeof tokens);
    u.g.start.token = tokens;
    for (u.g.start.given = 1; u.g.start.given <= TOKENS; u.g.start.given++) {
        sampling_run(&u.g, 9, 1, TOKENS);
        assert_memory_equal(spec_sampler_tokens(u.g.s, 0), tokens, sizeof tokens);
        assert_int_equal(spec_sampler_get_stats(u.g.s)->calls, TOKENS - u.g.start.given);
    }
    tear_down(&u);
}

/* Rounds without drafts are plain sampling, to the bit. Statistics count them, and their cost. */
TEST_CASE(no_drafts_are_plain_sampling)
{
    static const spec_choice none = {.choose = spec_choose, .widths = 2, .drafts = {0, 4}, .cost = {1, 5}};
    setup plain;
    set_up(&plain, 0, 1);
    sampling_run(&plain.g, 9, 1, TOKENS);
    for (int kind = 1; kind < KINDS; kind++) {
        setup u;
        set_up_choosing(&u, kind, 1, &none);
        sampling_run(&u.g, 9, 1, TOKENS);
        assert_memory_equal(spec_sampler_tokens(u.g.s, 0), spec_sampler_tokens(plain.g.s, 0), TOKENS * sizeof(int));
        const spec_sampler_stats *s = spec_sampler_get_stats(u.g.s);
        assert_true(s->rounds == TOKENS && s->undrafted == TOKENS && s->drafted == 0 && s->spent == TOKENS);
        assert_int_equal(u.q->calls, 0);
        tear_down(&u);
    }
    tear_down(&plain);
}

/* --- tokens that stay on the device --- */

/* Answers requests whose last token is on the device. toy_laws depends on that token alone. */
static mar_status laws_then(void *state, const causal_request *request, int n, float *log_probs,
                            const causal_continuation *continuation, mar_err *err)
{
    static int prefix[MOST_SEQUENCES][TOKENS];
    causal_request on_host[MOST_SEQUENCES];
    checked *c = state;
    for (int r = 0; r < n; r++) {
        on_host[r] = request[r];
        if (!request[r].drawn) continue;
        c->on_device++;
        memcpy(prefix[r], request[r].prefix, (size_t)request[r].length * sizeof **prefix);
        prefix[r][request[r].length - 1] = request[r].drawn[request[r].last];
        on_host[r].prefix = prefix[r];
    }
    const mar_status status = toy_laws(c->t, on_host, n, log_probs, err);
    if (status == MAR_OK) continuation->run(continuation->arg);
    return status;
}

/* On an asynchronous device rounds without drafts leave their tokens there. They are the same tokens, with the same
 * choices. */
TEST_CASE(rounds_without_drafts_stay_on_the_device)
{
    for (int kind = 0; kind < KINDS; kind++) {
        setup u, other;
        mar_err err;
        set_up_choosing(&u, kind, 3, &in_turns), set_up_choosing(&other, kind, 3, &in_turns);
        other.g.device->asynchronous = 1;
        other.g.s->target.log_probs_then = laws_then;
        for (int i = 0; i < 2; i++) sampling_begin(i ? other.g.s : u.g.s, &u.g.start, 3);
        for (int round = 0; spec_sampler_running(other.g.s) > 0; round++) {
            if (spec_sampler_running(u.g.s) > 0) assert_ok(spec_sampler_round(u.g.s, &err), &err);
            assert_ok(spec_sampler_round(other.g.s, &err), &err);
            if (round % 7 == 3) spec_sampler_read(other.g.s);
        }
        assert_true(other.target.on_device > 0);
        assert_int_equal(spec_sampler_get_stats(u.g.s)->rounds, spec_sampler_get_stats(other.g.s)->rounds);
        assert_true(spec_sampler_get_stats(u.g.s)->spent == spec_sampler_get_stats(other.g.s)->spent);
        for (int i = 0; i < 3; i++) {
            uint8_t status[2][TOKENS];
            assert_memory_equal(spec_sampler_tokens(u.g.s, i), spec_sampler_tokens(other.g.s, i), TOKENS * sizeof(int));
            spec_sampler_token_status(u.g.s, i, status[0], NULL);
            spec_sampler_token_status(other.g.s, i, status[1], NULL);
            assert_memory_equal(status[0], status[1], TOKENS);
        }
        tear_down(&u), tear_down(&other);
    }
}

/* --- dynamic trees --- */

typedef struct {
    int token, parent, level; /* parent: node number, or -1 */
    double log_p;
} node;

/* EAGLE-2 by sorting. Expands the `top` best candidates of every level. Keeps the `total` best of all candidates. */
static int by_log_p(const void *a, const void *b)
{
    const node *x = *(const node *const *)a, *y = *(const node *const *)b;
    return x->log_p < y->log_p ? 1 : x->log_p > y->log_p ? -1 : x < y ? -1 : 1;
}

static int best_of(node *all, int first, int count, node **best)
{
    for (int i = first; i < count; i++) best[i - first] = &all[i];
    qsort(best, (size_t)(count - first), sizeof *best, by_log_p);
    return count - first;
}

TEST_CASE(dynamic_trees)
{
    setup u;
    mar_err err;
    const int kind = 5, top = 3, total = 12, length = 4;
    set_up(&u, kind, 1);
    assert_int_equal(spec_sampler_target_drafts(u.g.s), total);
    assert_int_equal(spec_sampler_draft_drafts(u.g.s), top * (length - 1));
    u.g.start.image = 9;
    sampling_begin(u.g.s, &u.g.start, 1);
    while (spec_sampler_left(u.g.s, 0) > length) {
        static node all[1000];
        node *best[1000], *expanded[100] = {NULL};
        int prefix[TOKENS], count = 0, from = 1, chosen = 0;
        const int known = spec_sampler_known(u.g.s, 0);
        memcpy(prefix, spec_sampler_tokens(u.g.s, 0), (size_t)known * sizeof *prefix);
        for (int level = 0; level < length; level++) {
            const int before = count;
            for (int e = 0; e < from; e++) {
                const int token = expanded[e] ? expanded[e]->token : known ? prefix[known - 1] : 0;
                const float *law = toy_law(u.q, &token, expanded[e] != NULL || known > 0);
                char listed[SIZE] = {0};
                for (int k = 0; k < top; k++) {
                    int x = -1;
                    for (int y = 0; y < SIZE; y++)
                        if (!listed[y] && (x < 0 || law[y] > law[x])) x = y;
                    listed[x] = 1;
                    all[count++] = (node){x, expanded[e] ? (int)(expanded[e] - all) : -1, level,
                                          (double)law[x] + (expanded[e] ? expanded[e]->log_p : 0)};
                }
            }
            from = best_of(all, before, count, best) < top ? count - before : top;
            memcpy(expanded, best, (size_t)from * sizeof *best);
        }
        best_of(all, 0, count, best);
        assert_ok(spec_sampler_round(u.g.s, &err), &err);
        const causal_request *r = &u.target.last[0];
        assert_int_equal(r->count, total);
        int number[1000];
        for (int i = 0; i < count; i++) {
            int in = 0;
            for (int j = 0; j < total; j++) in |= best[j] == &all[i];
            if (!in) continue;
            number[i] = chosen;
            assert_int_equal(u.target.draft[0][chosen], all[i].token);
            assert_int_equal(u.target.parent[0][chosen], all[i].parent < 0 ? -1 : number[all[i].parent]);
            chosen++;
        }
        assert_int_equal(chosen, total);
        assert_int_equal(u.draft.last[0].count, top * (length - 1)); /* size of the last level's request */
    }
    tear_down(&u);
}

/* --- how it ends --- */

TEST_CASE(failures_end_the_round)
{
    for (int kind = 0; kind < KINDS; kind++)
        for (int of_draft = 0; of_draft < 2; of_draft++) {
            setup u;
            mar_err err = {0};
            mar_status status = MAR_OK;
            set_up(&u, kind, 2);
            *(of_draft ? &u.draft.fails_at : &u.target.fails_at) = 2;
            sampling_begin(u.g.s, &u.g.start, 2);
            while (status == MAR_OK && spec_sampler_running(u.g.s) > 0) status = spec_sampler_round(u.g.s, &err);
            if (!of_draft || u.q->calls > 1) {
                assert_int_equal(status, MAR_EBACKEND);
                assert_string_equal(err.text, "no luck");
                assert_true(spec_sampler_running(u.g.s) > 0);
            }
            tear_down(&u);
        }
}

TEST_CASE(a_law_without_tokens_is_an_error)
{
    for (int kind = 0; kind < KINDS; kind++) {
        setup u;
        mar_err err = {0};
        mar_status status = MAR_OK;
        set_up(&u, kind, 3);
        u.target.nan_at = 0;
        u.g.start.image = 70;
        sampling_begin(u.g.s, &u.g.start, 3);
        assert_ok(spec_sampler_round(u.g.s, &err), &err);
        assert_int_equal(spec_sampler_running(u.g.s), 0);
        assert_int_equal(spec_sampler_failed(u.g.s, 1, &err), MAR_EMODEL);
        assert_string_equal(err.text, "image 71, token 0: the logits are not finite");
        u.target.nan_at = -1, u.draft.nan_at = 0;
        sampling_begin(u.g.s, &u.g.start, 3);
        assert_ok(spec_sampler_round(u.g.s, &err), &err);
        status = spec_sampler_failed(u.g.s, 0, &err);
        assert_int_equal(status, u.q->calls > 0 ? MAR_EMODEL : MAR_OK);
        if (status != MAR_OK) assert_string_equal(err.text, "draft: image 70, token 0: the logits are not finite");
        tear_down(&u);
    }
}

/* Checks that a NaN fails its own sequence. The others go on, and a new one takes its place. */
TEST_CASE(a_failure_is_its_sequence_s)
{
    for (int kind = 0; kind < KINDS; kind++)
        for (int of_draft = 0; of_draft < 2; of_draft++) {
            setup u, alone;
            mar_err err = {0};
            set_up(&u, kind, 3), set_up(&alone, kind, 1);
            checked *bad = of_draft ? &u.draft : &u.target;
            bad->nan_at = 6, bad->nan_of = 1;
            u.g.start.image = 70;
            sampling_begin(u.g.s, &u.g.start, 3);
            while (spec_sampler_running(u.g.s) == 3) assert_ok(spec_sampler_round(u.g.s, &err), &err);
            if (!of_draft || u.q->calls > 0) {
                assert_int_equal(spec_sampler_failed(u.g.s, 1, &err), MAR_EMODEL);
                assert_non_null(strstr(err.text, "image 71, token "));
                assert_int_equal(strncmp(err.text, "draft: ", 7) == 0, of_draft);
                bad->nan_at = -1;
                u.g.start.image = 73;
                spec_sampler_admit(u.g.s, 1, &u.g.start);
            }
            while (spec_sampler_running(u.g.s) > 0) assert_ok(spec_sampler_round(u.g.s, &err), &err);
            for (int i = 0; i < 3; i++) {
                assert_ok(spec_sampler_failed(u.g.s, i, &err), &err);
                sampling_run(&alone.g, i == 1 ? u.g.start.image == 73 ? 73 : 71 : 70 + (uint64_t)i, 1, TOKENS);
                assert_memory_equal(spec_sampler_tokens(u.g.s, i), spec_sampler_tokens(alone.g.s, 0),
                                    TOKENS * sizeof(int));
            }
            tear_down(&u), tear_down(&alone);
        }
}

TEST_CASE(cancelling)
{
    for (int kind = 0; kind < KINDS; kind++)
        for (int of_draft = 0; of_draft < 2; of_draft++) {
            setup u;
            mar_err err = {0};
            mar_status status = MAR_OK;
            set_up(&u, kind, 2);
            checked *c = of_draft ? &u.draft : &u.target;
            c->cancels_at = 2;
            u.g.k->cancel = &c->cancel;
            sampling_begin(u.g.s, &u.g.start, 2);
            while (status == MAR_OK && spec_sampler_running(u.g.s) > 0) status = spec_sampler_round(u.g.s, &err);
            if (c->t->calls > 1) assert_int_equal(status, MAR_ECANCELLED);
            u.g.k->cancel = NULL;
            u.g.k->core->recover(u.g.k);
            c->cancels_at = 0;
            sampling_run(&u.g, 0, 2, TOKENS); /* the sampler can begin again */
            tear_down(&u);
        }
}

TEST_CASE(options_must_fit)
{
    static const int bad_tree[] = {-1, 1}, not_by_levels[] = {-1, 0, -1}, near[] = {0, 1, 2};
    toy *p = toy_create(3, 1, 11, 1, NULL, 0);
    const spec_model model = {3, p, toy_laws, NULL}, other = {4, p, toy_laws, NULL};
    const spec_method *vanilla = spec_method_find("vanilla"), *sjd = spec_method_find("sjd");
    static const double parameter[] = {4, 3, 1, 0};
    const struct {
        spec_sampler_options o;
        const spec_model *draft;
        const char *says;
    } bad[] = {
        {{.method = NULL}, &model, "plain sampling: a draft model without a method"},
        {{.method = vanilla}, &model, "vanilla: length below 1"},
        {{.method = vanilla, .length = 3}, NULL, "vanilla: no draft model"},
        {{.method = vanilla, .length = 3}, &other, "the draft has 4 tokens, the target 3"},
        {{.method = sjd, .length = 3}, &model, "sjd: a draft model, and"},
        {{.method = sjd, .length = 3, .first = SPEC_FIRST_LEFT}, NULL, "without a side"},
        {{.method = sjd, .length = 3, .top = 2, .total = 3}, NULL, "a method without trees"},
        {{.method = spec_method_find("lantern"), .parameter = parameter, .length = 3},
         &model,
         "no table of neighbours"},
        {{.method = spec_method_find("lantern"), .parameter = parameter, .length = 3, .neighbours = near},
         &model,
         "no table of neighbours"},
        {{.method = spec_method_find("conditional"), .length = 3}, &model, "a method for continuous tokens"},
        {{.method = vanilla, .length = 3, .parent = bad_tree, .count = 2}, &model, "by levels"},
        {{.method = vanilla, .length = 3, .parent = not_by_levels, .count = 3}, &model, "by levels"},
        {{.method = vanilla, .length = 3, .parent = bad_tree}, &model, "by levels"},
        {{.method = vanilla, .length = 3, .parent = bad_tree, .count = 1, .top = 2, .total = 3},
         &model,
         "a dynamic tree"},
        {{.method = vanilla, .length = 3, .top = 2}, &model, "a dynamic tree without drafts"},
    };
    sampling g;
    sampling_open(&g, 1);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        mar_err err = {0};
        spec_sampler *s = NULL;
        assert_int_equal(spec_sampler_create(g.k, &model, bad[i].draft, &bad[i].o, 1, 4, &s, &err), MAR_EARG);
        assert_null(s);
        if (!strstr(err.text, bad[i].says)) fail_msg("\"%s\" does not say \"%s\"", err.text, bad[i].says);
    }
    const spec_model large = {KERN_RACE_TOKENS + 1, p, toy_laws, NULL};
    const spec_sampler_options scd = {.method = spec_method_find("scd"), .parameter = parameter, .length = 3};
    spec_sampler *s = NULL;
    mar_err err = {0};
    assert_int_equal(spec_sampler_create(g.k, &large, NULL, &scd, 1, 4, &s, &err), MAR_EARG);
    assert_string_equal(err.text, "scd: more than 262144 tokens");
    spec_sampler_free(NULL);
    sampling_close(&g);
    toy_free(p);
}

/* --- continuous SD Eq. 35 --- */
