/* The exact distribution of whole sequences. Runs the real sampler and operations through every outcome of their
 * decisions, on toy models that are small enough. Lossless methods have the target's distribution. With a planted fault
 * they do not. */
#include "specdec/round.h"
#include "tests/support/brief.h"
#include "tests/support/discrete.h"
#include "tests/support/support.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MOST = 256 }; /* sequences of a model */

typedef struct {
    const char *name; /* method; NULL: plain sampling */
    int size, n;      /* vocabulary, tokens */
    spec_sampler_options options;
    double parameter[SPEC_PARAMETERS_MAX];
    int p_zeros, q_zeros;
    int same; /* the draft is the target */
} setup;

typedef struct {
    sampling g;
    const setup *u;
    const toy *p;
    double law[MOST], total;
    long runs;
} enumeration;

static const spec_sampler *watched; /* of choices that look at more than spec_past */

static void one_run(void *arg)
{
    enumeration *e = arg;
    sampling_run(&e->g, 0, 1, e->u->n);
}

static void one_result(void *arg, double weight)
{
    enumeration *e = arg;
    e->law[toy_number(e->p, spec_sampler_tokens(e->g.s, 0), e->u->n)] += weight;
    e->total += weight;
    e->runs++;
}

static const int given[] = {1, 2};

/* Computes the distribution of sequences of n tokens whose first `count` are given. */
static void conditional(const toy *p, int n, int count, double *probability)
{
    int x[DISCRETE_MOST];
    for (long number = 0; number < toy_sequences(p, n); number++) {
        long digits = number;
        for (int i = n - 1; i >= 0; i--) x[i] = (int)(digits % p->size), digits /= p->size;
        probability[number] = memcmp(x, given, (size_t)count * sizeof *x) == 0;
        for (int i = count; i < n; i++) probability[number] *= exp((double)toy_law(p, x, i)[x[i]]);
    }
}

/* Returns the total variation between the distribution of a setup's sequences and the target's, both after `count`
 * given tokens. */
static double distance(const setup *u, uint64_t seed, fault f, int count)
{
    enumeration e = {.u = u};
    double probability[MOST], sum = 0;
    int table[DISCRETE_MOST * DISCRETE_MOST];
    toy *p = toy_create(u->size, u->n, 11 + seed, 1, NULL, u->p_zeros);
    toy *q = toy_create(u->size, u->n, 112 + seed, 1, p, u->q_zeros);
    const spec_model target = {u->size, p, toy_laws, NULL}, draft = {u->size, u->same ? p : q, toy_laws, NULL};
    const spec_method *m = u->name ? spec_method_find(u->name) : NULL;
    spec_sampler_options o = u->options;
    o.method = m, o.parameter = u->parameter;
    circle(u->size, table);
    if (m && m->neighbours) o.neighbours = table, o.neighbour_count = u->size;
    e.p = p;
    sampling_open(&e.g, 1);
    e.g.start = (spec_start){.seed = 3, .token = given, .given = count};
    script_install(&e.g, f);
    sampling_create(&e.g, &target, m && !m->stale ? &draft : NULL, &o, 1, u->n);
    watched = e.g.s;
    script_each(one_run, one_result, &e);
    sampling_close(&e.g);
    if (!(fabs(e.total - 1) < 1e-6)) fail_msg("%s: probabilities sum to %g", u->name, e.total);
    conditional(p, u->n, count, probability);
    for (long i = 0; i < toy_sequences(p, u->n); i++) sum += 0.5 * fabs(probability[i] - e.law[i]);
    toy_free(p), toy_free(q);
    if (getenv("SHOW")) print_message("%s %g: %ld runs\n", u->name ? u->name : "plain", sum, e.runs);
    return sum;
}

static void is_exact(const setup *u)
{
    for (uint64_t seed = 0; seed < 2; seed++) {
        for (int count = 0; count <= 2; count++) {
            const double tv = distance(u, seed, FAULT_NONE, count);
            if (!(tv < 2e-6))
                fail_msg("%s: total variation %g after %d tokens", u->name ? u->name : "plain", tv, count);
        }
    }
}

static const int two_levels[] = {-1, -1, 0}, three_levels[] = {-1, 0, 0, 1};

static const setup plain = {.name = NULL, .size = 3, .n = 4};
static const setup chain = {.name = "vanilla", .size = 3, .n = 4, .options = {.length = 2}};
static const setup long_chain = {.name = "vanilla", .size = 4, .n = 3, .options = {.length = 5}};
static const setup zeros = {.name = "vanilla", .size = 4, .n = 3, .options = {.length = 2}, .p_zeros = 1};
static const setup tree = {
    .name = "vanilla", .size = 4, .n = 3, .options = {.length = 2, .parent = two_levels, .count = 3}};
static const setup deep_tree = {
    .name = "vanilla", .size = 3, .n = 4, .options = {.length = 3, .parent = three_levels, .count = 4}};
static const setup few_tokens = {
    .name = "vanilla", .size = 3, .n = 3, .options = {.length = 2, .parent = two_levels, .count = 3}, .q_zeros = 2};
static const setup likeliest = {
    .name = "vanilla", .size = 4, .n = 3, .options = {.length = 2, .parent = two_levels, .count = 3, .likeliest = 1}};
static const setup likeliest_few = {.name = "vanilla",
                                    .size = 3,
                                    .n = 3,
                                    .options = {.length = 2, .parent = two_levels, .count = 3, .likeliest = 1},
                                    .p_zeros = 1,
                                    .q_zeros = 2};
static const setup dynamic = {.name = "vanilla", .size = 4, .n = 4, .options = {.length = 3, .top = 2, .total = 5}};
static const setup dynamic_wide = {
    .name = "vanilla", .size = 3, .n = 4, .options = {.length = 3, .top = 3, .total = 9}, .p_zeros = 1};
static const setup sjd = {.name = "sjd", .size = 3, .n = 4, .options = {.length = 4}};
static const setup sjd_short = {.name = "sjd", .size = 3, .n = 4, .options = {.length = 2}};
static const setup sjd_left = {
    .name = "sjd", .size = 3, .n = 4, .options = {.length = 3, .first = SPEC_FIRST_LEFT, .side = 2}};
static const setup sjd_above = {
    .name = "sjd", .size = 3, .n = 4, .options = {.length = 3, .first = SPEC_FIRST_ABOVE, .side = 2}};
static const setup pac = {.name = "sjd-pac", .size = 3, .n = 4, .options = {.length = 7}, .parameter = {2, 3, 1}};
static const setup pac_no_tree = {
    .name = "sjd-pac", .size = 3, .n = 3, .options = {.length = 3}, .parameter = {1, 0, 1}};
static const setup pac_stops = {.name = "sjd-pac", .size = 3, .n = 4, .options = {.length = 4}, .parameter = {2, 2, 0}};
static const setup pac_neither = {
    .name = "sjd-pac", .size = 3, .n = 3, .options = {.length = 3}, .parameter = {4, 0, 0}};
static const setup pac_above = {.name = "sjd-pac",
                                .size = 2,
                                .n = 4,
                                .options = {.length = 7, .first = SPEC_FIRST_ABOVE, .side = 2},
                                .parameter = {2, 3, 1}};

static const setup scd = {.name = "scd", .size = 3, .n = 4, .options = {.length = 4}, .parameter = {1, 0}};
static const setup scd_short = {.name = "scd", .size = 3, .n = 4, .options = {.length = 2}, .parameter = {1, 0}};
static const setup scd_left = {.name = "scd",
                               .size = 3,
                               .n = 4,
                               .options = {.length = 3, .first = SPEC_FIRST_LEFT, .side = 2},
                               .parameter = {1, 0}};
static const setup scd_above = {.name = "scd",
                                .size = 3,
                                .n = 4,
                                .options = {.length = 3, .first = SPEC_FIRST_ABOVE, .side = 2},
                                .parameter = {1, 0}};
static const setup scd_tree = {.name = "scd", .size = 3, .n = 4, .options = {.length = 7}, .parameter = {2, 3}};
static const setup scd_siblings = {.name = "scd", .size = 3, .n = 4, .options = {.length = 4}, .parameter = {3, 2}};
static const setup scd_zeros = {
    .name = "scd", .size = 3, .n = 4, .options = {.length = 4}, .parameter = {2, 2}, .p_zeros = 1};
static const setup scd_two = {.name = "scd", .size = 2, .n = 5, .options = {.length = 5}, .parameter = {1, 0}};

TEST_CASE(lossless_with_a_draft)
{
    is_exact(&plain), is_exact(&chain), is_exact(&long_chain), is_exact(&zeros), is_exact(&tree);
    is_exact(&deep_tree), is_exact(&few_tokens), is_exact(&likeliest), is_exact(&likeliest_few), is_exact(&dynamic),
        is_exact(&dynamic_wide);
}

TEST_CASE(lossless_without)
{
    is_exact(&sjd), is_exact(&sjd_short), is_exact(&sjd_left), is_exact(&sjd_above), is_exact(&pac),
        is_exact(&pac_no_tree);
    is_exact(&pac_stops), is_exact(&pac_neither), is_exact(&pac_above);
}

TEST_CASE(lossless_coupled)
{
    is_exact(&scd), is_exact(&scd_short), is_exact(&scd_left), is_exact(&scd_above), is_exact(&scd_tree);
    is_exact(&scd_siblings), is_exact(&scd_zeros), is_exact(&scd_two);
}

/* --- choices of the number of drafts (specdec/choice.h) --- */

enum { ALL = 99 };

/* All drafts after a rejection, none after an acceptance. */
static int choose_contrary(const spec_choice *c, const spec_past *past)
{
    (void)c;
    return past->accepted > 0 ? 0 : ALL;
}

static int choose_cycling(const spec_choice *c, const spec_past *past)
{
    (void)c;
    return past->rounds % 3 == 0 ? 3 : past->rounds % 3 == 1 ? 1 : 0;
}

/* A number of drafts for each past, final tokens included. */
static int choose_hashed(const spec_choice *c, const spec_past *past)
{
    uint32_t hash = (uint32_t)(past->positions * 7 + past->accepted);
    (void)c;
    for (int i = 0; i < past->known; i++) hash = (hash + (uint32_t)watched->sequence[0].token[i] + 1) * 2654435761u;
    return (int)((hash >> 16) % 5);
}

/* Returns the last round's tokens. The drafts of a chain have as many before those of the next round's position. */
static int last_final(const spec_sequence *q)
{
    int n = 0;
    while (n < q->known - q->given && q->round[q->known - 1 - n] == q->round[q->known - 1]) n++;
    return n;
}

/* Looks at the draft that the next round would verify first. */
static int choose_by_tail(const spec_choice *c, const spec_past *past)
{
    const spec_sequence *q = &watched->sequence[0];
    (void)c;
    return past->rounds > 0 && q->tail_known > 0 && q->tail_token[0] == 0 ? 0 : ALL;
}

/* Looks at the last round's draft of the next position. */
static int choose_by_draft(const spec_choice *c, const spec_past *past)
{
    const spec_sequence *q = &watched->sequence[0];
    (void)c;
    return past->rounds > 0 && q->tail > 0 && q->drawn[last_final(q) * watched->children] == 0 ? 0 : ALL;
}

/* Looks at the verdict behind the first rejection. */
static int choose_by_verdict(const spec_choice *c, const spec_past *past)
{
    const spec_sequence *q = &watched->sequence[0];
    (void)c;
    return past->rounds > 0 && q->tail_known > 0 && q->tail_token[0] == q->drawn[last_final(q) * watched->children]
               ? 0
               : ALL;
}

static const spec_choice contrary = {.choose = choose_contrary}, cycling = {.choose = choose_cycling},
                         hashed = {.choose = choose_hashed}, by_tail = {.choose = choose_by_tail},
                         by_draft = {.choose = choose_by_draft}, by_verdict = {.choose = choose_by_verdict};

static double distance_choosing(const setup *u, const spec_choice *choice, uint64_t seed, int count)
{
    setup v = *u;
    v.options.choice = choice;
    return distance(&v, seed, FAULT_NONE, count);
}

TEST_CASE(lossless_with_any_choice_of_drafts)
{
    static const setup *const setups[] = {&chain, &long_chain,  &tree,      &dynamic, &sjd,      &sjd_left,
                                          &pac,   &pac_no_tree, &pac_stops, &scd,     &scd_tree, &scd_two};
    static const spec_choice *const choices[] = {&contrary, &cycling, &hashed};
    for (size_t i = 0; i < sizeof setups / sizeof *setups; i++)
        for (int c = 0; c < 3; c += test_brief ? 2 : 1)
            for (int count = 0; count <= 2; count += 2) {
                const double tv = distance_choosing(setups[i], choices[c], (uint64_t)c, count);
                if (!(tv < 2e-6)) fail_msg("%s, choice %d: total variation %g", setups[i]->name, c, tv);
            }
}

/* What a method's choice may not look at (specdec/choice.h), and what it may: sjd's tail is drawn after the choice. */
TEST_CASE(a_choice_that_looks_at_the_tail_is_noticed)
{
    static const struct {
        const setup *u;
        const spec_choice *choice;
        int exact;
    } cases[] = {{&pac_no_tree, &by_tail, 0},  {&pac, &by_tail, 0},        {&pac_no_tree, &by_verdict, 0},
                 {&pac_no_tree, &by_draft, 0}, {&scd, &by_draft, 0},       {&scd_tree, &by_draft, 0},
                 {&sjd, &by_draft, 1},         {&pac_stops, &by_draft, 1}, {&chain, &by_draft, 1}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const double tv = distance_choosing(cases[i].u, cases[i].choice, 0, 0);
        if (cases[i].exact ? !(tv < 2e-6) : !(tv > 1e-4))
            fail_msg("case %zu, %s: total variation %g", i, cases[i].u->name, tv);
    }
}

/* Runs relaxed methods without relaxation, in chains and trees that reach residuals and points. */
TEST_CASE(unrelaxed)
{
    static const char *const names[] = {"uniform-rsd", "cool-sd-exp",   "lantern",
                                        "lantern-pp",  "lantern-gstar", "lantern-pp-gstar"};
    for (int i = 0; i < 6; i++)
        for (int shape = 0; shape < 3; shape += test_brief ? 2 : 1) {
            setup u = shape == 0 ? chain : shape == 1 ? tree : dynamic;
            u.name = names[i];
            u.parameter[0] = i < 2 ? 1 : 3;
            is_exact(&u);
        }
}

TEST_CASE(faults_are_noticed)
{
    static const struct {
        const char *name;
        const setup *u;
        fault f;
    } cases[] = {
        {"swapped, chain", &chain, FAULT_SWAPPED},
        {"swapped, tree", &tree, FAULT_SWAPPED},
        {"swapped, dynamic", &dynamic, FAULT_SWAPPED},
        {"swapped, sjd", &sjd, FAULT_SWAPPED},
        {"swapped, sjd-pac", &pac, FAULT_SWAPPED},
        {"always, chain", &chain, FAULT_ALWAYS},
        {"always, dynamic", &dynamic, FAULT_ALWAYS},
        {"always, sjd left", &sjd_left, FAULT_ALWAYS},
        {"no residual, chain", &chain, FAULT_NO_RESIDUAL},
        {"no residual, tree", &tree, FAULT_NO_RESIDUAL},
        {"no residual, dynamic", &dynamic, FAULT_NO_RESIDUAL},
        {"no residual, sjd", &sjd_short, FAULT_NO_RESIDUAL},
        {"no residual, sjd-pac", &pac_no_tree, FAULT_NO_RESIDUAL},
        {"swapped residual, chain", &chain, FAULT_SWAPPED_RESIDUAL},
        {"swapped residual, tree", &tree, FAULT_SWAPPED_RESIDUAL},
        {"stale q, sjd", &sjd, FAULT_STALE_Q},
        {"stale q, sjd-pac", &pac_no_tree, FAULT_STALE_Q},
        {"kept tail, sjd", &sjd, FAULT_KEPT_TAIL},
        {"with replacement, tree", &tree, FAULT_WITH_REPLACEMENT},
        {"with replacement, sjd-pac", &pac, FAULT_WITH_REPLACEMENT},
        {"sorted siblings, tree", &tree, FAULT_SORTED_SIBLINGS},
        {"sorted siblings, sjd-pac", &pac, FAULT_SORTED_SIBLINGS},
        {"siblings' q, tree", &tree, FAULT_SIBLINGS_Q},
        {"siblings' q, sjd-pac", &pac, FAULT_SIBLINGS_Q},
        {"point as law, dynamic", &dynamic, FAULT_POINT_AS_LAW},
        {"point as law, likeliest siblings", &likeliest, FAULT_POINT_AS_LAW},
        {"point as law, sjd left", &sjd_left, FAULT_POINT_AS_LAW},
        {"point as law, sjd above", &sjd_above, FAULT_POINT_AS_LAW},
        {"wrong bonus, chain", &chain, FAULT_WRONG_BONUS},
        {"wrong bonus, sjd", &sjd_short, FAULT_WRONG_BONUS},
        {"swapped, scd", &scd, FAULT_SWAPPED},
        {"always, scd left", &scd_left, FAULT_ALWAYS},
        {"no residual, scd", &scd_short, FAULT_NO_RESIDUAL},
        {"stale q, scd", &scd, FAULT_STALE_Q},
        {"kept tail, scd", &scd, FAULT_KEPT_TAIL},
        {"sorted siblings, scd", &scd_tree, FAULT_SORTED_SIBLINGS},
        {"siblings' q, scd", &scd_tree, FAULT_SIBLINGS_Q},
        {"wrong bonus, scd", &scd_short, FAULT_WRONG_BONUS},
        {"spent noise, scd", &scd, FAULT_SPENT_NOISE},
        {"noise as coin, scd", &scd, FAULT_NOISE_AS_COIN},
        {"shared noise, scd", &scd, FAULT_SHARED_NOISE},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i += test_brief ? 5 : 1) {
        const double tv = distance(cases[i].u, 0, cases[i].f, 0);
        if (!(tv > 1e-4)) fail_msg("%s: total variation %g", cases[i].name, tv);
    }
}
