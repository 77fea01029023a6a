/* The table of jobs: turns and shares of clients, prompts as a stage of a job, what counts as memory, and who may still
 * come for a result. */
#include "tests/support/test.h"
#include "tools/serve/bodies.h"
#include "tools/serve/jobs.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>

enum { QUEUE = 256, BATCH = 16, SIDE = 4 };

static metrics counts;
static jobs table;

static int set_up(void **state)
{
    (void)state;
    metrics_create(&counts);
    jobs_create(&table, &counts, QUEUE, BATCH, 3600, SIDE, SIDE);
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    jobs_destroy(&table);
    metrics_destroy(&counts);
    return 0;
}

static job_spec spec_of(char client, int n)
{
    return (job_spec){.n = n, .client.address = {(uint8_t)client}};
}

/* Submits a kept job, of a prompt if it is not NULL. Returns the result, and the job with a reference. */
static submit_result submit(char client, int n, const char *text, job **out)
{
    job_spec spec = spec_of(client, n);
    job *j;
    if (text) spec.text = strdup(text);
    const submit_result result = jobs_submit(&table, &spec, 1, &j);
    if (out)
        *out = j;
    else
        jobs_release(&table, j);
    return result;
}

/* Takes images until none may begin, and finishes them at once. Writes whose they were. */
static void make_all(char *clients, job_state state)
{
    int image;
    for (job *j; (j = jobs_claim(&table, &image));) {
        *clients++ = (char)j->spec.client.address[0];
        jobs_progress(&table, j, image, 1, 1);
        jobs_finish(&table, j, image, state, 500, "why");
    }
    *clients = '\0';
}

static void check_counts(int waiting, int unencoded)
{
    int found, running, texts;
    jobs_count(&table, &found, &running, &texts);
    assert_int_equal(found + running, waiting);
    assert_int_equal(texts, unencoded);
}

TEST_WITH(serves_clients_in_turn, set_up, tear_down)
{
    char clients[64];
    submit('a', 3, NULL, NULL);
    submit('a', 3, NULL, NULL);
    submit('b', 2, NULL, NULL);
    submit('c', 1, NULL, NULL);
    make_all(clients, JOB_DONE);
    assert_string_equal(clients, "abcabaaaa");
    /* one that comes again and again waits for its turn */
    job *j;
    int image;
    submit('a', 2, NULL, NULL);
    submit('b', 1, NULL, NULL);
    j = jobs_claim(&table, &image);
    assert_int_equal(j->spec.client.address[0], 'a');
    jobs_finish(&table, j, image, JOB_DONE, 0, NULL);
    j = jobs_claim(&table, &image);
    assert_int_equal(j->spec.client.address[0], 'b');
    jobs_finish(&table, j, image, JOB_DONE, 0, NULL);
    submit('b', 1, NULL, NULL);
    make_all(clients, JOB_DONE);
    assert_string_equal(clients, "ab");
}

TEST_WITH(leaves_places_for_others, set_up, tear_down)
{
    int jobs_of_ten = 0;
    while (submit('a', 10, NULL, NULL) == SUBMIT_OK) jobs_of_ten++;
    assert_int_equal(jobs_of_ten, 13); /* 130 of 272 images, 142 are left */
    assert_int_equal(submit('a', 10, NULL, NULL), SUBMIT_SHARE);
    assert_int_equal(submit('a', 1, NULL, NULL), SUBMIT_OK);
    for (char other = 'b'; other < 'g'; other++) {
        assert_int_equal(submit(other, 10, NULL, NULL), SUBMIT_OK);
        while (submit(other, 10, NULL, NULL) == SUBMIT_OK) {
        }
    }
    assert_int_equal(submit('y', 10, NULL, NULL), SUBMIT_FULL);
    assert_int_equal(submit('y', 1, NULL, NULL), SUBMIT_OK); /* a newcomer may take the last place */
    char clients[512];
    make_all(clients, JOB_DONE);
    assert_int_equal(strcspn(clients, "y"), 6); /* its first image is made in the first round */
    check_counts(0, 0);
    assert_int_equal(submit('a', 10, NULL, NULL), SUBMIT_OK);
}

TEST_WITH(queues_prompts, set_up, tear_down)
{
    job *first, *second, *j;
    char clients[64];
    int image;
    job_prompt *features = calloc(1, sizeof *features);
    assert_non_null(features);
    assert_int_equal(submit('a', 2, "first", &first), SUBMIT_OK);
    assert_int_equal(submit('a', 1, "left", &second), SUBMIT_OK);
    assert_int_equal(submit('b', 1, "third", NULL), SUBMIT_OK);
    check_counts(4, 3);
    assert_null(jobs_claim(&table, &image)); /* nothing is encoded */
    j = jobs_await_prompt(&table);
    assert_ptr_equal(j, first);
    jobs_cancel(&table, second); /* before its text is encoded */
    check_counts(3, 2);
    features->sum = 7;
    jobs_put_prompt(&table, j, features, 0, NULL, NULL);
    assert_int_equal(first->prompt_sum, 7);
    j = jobs_await_prompt(&table);
    assert_string_equal(j->spec.text, "third");
    check_counts(3, 1);
    jobs_put_prompt(&table, j, NULL, 400, "prompt", "prompt: is bad");
    check_counts(2, 0);
    make_all(clients, JOB_DONE);
    assert_string_equal(clients, "aa");
    assert_null(first->prompt); /* its memory went with the last image */
    job_view view;
    jobs_view(&table, second, &view);
    assert_int_equal(view.state, JOB_CANCELLED);
    jobs_release(&table, first);
    jobs_release(&table, second);

    /* a client that leaves while its prompt is encoded */
    assert_int_equal(submit('a', 1, "leaves", &first), SUBMIT_OK);
    j = jobs_await_prompt(&table);
    jobs_cancel(&table, first);
    check_counts(0, 0);
    jobs_put_prompt(&table, j, calloc(1, sizeof *features), 0, NULL, NULL);
    check_counts(0, 0);
    assert_null(jobs_claim(&table, &image));
    jobs_release(&table, first);
}

TEST_WITH(frees_places_of_cancelled_images_at_once, set_up, tear_down)
{
    job *j, *taken;
    int image;
    submit('a', 10, NULL, &j);
    taken = jobs_claim(&table, &image);
    jobs_cancel(&table, j);
    check_counts(1, 0);
    jobs_finish(&table, taken, image, JOB_CANCELLED, 0, NULL);
    check_counts(0, 0);
    jobs_release(&table, j);
}

TEST_WITH(counts_inputs_and_frees_them, set_up, tear_down)
{
    job_spec spec = spec_of('a', 1);
    job *j, *none;
    char clients[64];
    spec.is_edit = 1;
    spec.picture = malloc(48);
    spec.tokens = malloc(64);
    spec.known = malloc(16);
    spec.positions = 16;
    spec.bytes = JOBS_INPUT_BYTES - 10;
    assert_int_equal(jobs_submit(&table, &spec, 1, &j), SUBMIT_OK);
    spec = spec_of('b', 1);
    spec.bytes = 11;
    assert_int_equal(jobs_submit(&table, &spec, 1, &none), SUBMIT_FULL_BYTES);
    spec.bytes = 10;
    assert_int_equal(jobs_submit(&table, &spec, 0, &none), SUBMIT_OK);
    jobs_release(&table, none);
    make_all(clients, JOB_DONE);
    assert_true(!j->spec.picture && !j->spec.tokens && j->spec.known);
    assert_int_equal(table.input_bytes, 0);
    assert_int_equal(table.kept_bytes, sizeof *j + SIDE * SIDE * 3 + 16);
    jobs_release(&table, j);
}

/* One client's inputs leave as much memory as they take. */
TEST_WITH(leaves_memory_of_inputs_for_others, set_up, tear_down)
{
    job_spec spec = spec_of('a', 1);
    job *j;
    char clients[64];
    spec.bytes = JOBS_INPUT_BYTES / 8;
    for (int i = 0; i < 4; i++) {
        assert_int_equal(jobs_submit(&table, &spec, 1, &j), SUBMIT_OK);
        jobs_release(&table, j);
    }
    assert_int_equal(jobs_submit(&table, &spec, 1, &j), SUBMIT_SHARE_BYTES);
    spec.client.address[0] = 'b';
    for (int i = 0; i < 2; i++) {
        assert_int_equal(jobs_submit(&table, &spec, 1, &j), SUBMIT_OK);
        jobs_release(&table, j);
    }
    assert_int_equal(jobs_submit(&table, &spec, 1, &j), SUBMIT_SHARE_BYTES);
    spec.client.address[0] = 'c';
    spec.bytes *= 2; /* a newcomer may have all that is left */
    assert_int_equal(jobs_submit(&table, &spec, 1, &j), SUBMIT_OK);
    jobs_release(&table, j);
    make_all(clients, JOB_DONE);
    assert_int_equal(table.input_bytes, 0);
    spec.client.address[0] = 'a';
    assert_int_equal(jobs_submit(&table, &spec, 1, &j), SUBMIT_OK);
    jobs_release(&table, j);
}

/* Finishes a job of the client. Writes its id if `id` is not NULL. */
static void finish_job(char client, job_state state, char *id)
{
    job *j;
    char clients[64];
    assert_int_equal(submit(client, 1, NULL, &j), SUBMIT_OK);
    if (state == JOB_CANCELLED) {
        jobs_cancel(&table, j);
        jobs_note_seen(&table, j);
    }
    make_all(clients, state);
    if (id) memcpy(id, j->id, JOB_ID);
    jobs_release(&table, j);
}

static int is_kept(const char *id)
{
    job *j = jobs_find(&table, id);
    jobs_release(&table, j);
    return j != NULL;
}

/* Whatever a client does, another's link works for as long as the other keeps less. */
TEST_WITH(keeps_results_of_others, set_up, tear_down)
{
    static const job_state ends[] = {JOB_CANCELLED, JOB_FAILED, JOB_DONE};
    char done[JOB_ID], failed[JOB_ID];
    finish_job('b', JOB_DONE, done);
    finish_job('b', JOB_FAILED, failed);
    for (int e = 0; e < 3; e++) {
        for (int i = 0; i < 1100; i++) finish_job('a', ends[e], NULL);
        if (!is_kept(done) || !is_kept(failed)) fail_msg("lost after 1100 jobs that are %s", job_state_name(ends[e]));
        assert_int_equal(table.kept_count, JOBS_KEPT_MAX);
    }
}

/* Clients without pictures push nobody's results out, however many they are. */
TEST_WITH(keeps_results_beside_cancelled_jobs, set_up, tear_down)
{
    char id[2][JOB_ID];
    for (int i = 0; i < 2; i++) finish_job('b', JOB_DONE, id[i]);
    for (int i = 0; i < 1100; i++) {
        job_spec spec = {.n = 1, .client.address = {'x', (uint8_t)i, (uint8_t)(i >> 8)}};
        job *j;
        assert_int_equal(jobs_submit(&table, &spec, 1, &j), SUBMIT_OK);
        jobs_note_seen(&table, j);
        jobs_cancel(&table, j);
        jobs_release(&table, j);
        jobs_expire(&table);
    }
    assert_true(is_kept(id[0]) && is_kept(id[1]));
    assert_int_equal(table.kept_count, JOBS_KEPT_MAX);
}

/* Of one client's jobs those go first whose pictures were fetched. */
TEST_WITH(drops_fetched_jobs_first, set_up, tear_down)
{
    char first[JOB_ID], second[JOB_ID], fetched[JOB_ID];
    finish_job('a', JOB_DONE, first);
    finish_job('a', JOB_DONE, second);
    finish_job('a', JOB_DONE, fetched);
    job *j = jobs_find(&table, fetched);
    jobs_note_fetched(&table, j, 0);
    for (int i = 3; i < JOBS_KEPT_MAX; i++) finish_job('a', JOB_DONE, NULL);
    assert_true(is_kept(first) && is_kept(fetched));
    finish_job('a', JOB_DONE, NULL);
    assert_true(is_kept(first) && !is_kept(fetched));
    finish_job('a', JOB_DONE, NULL);
    assert_true(!is_kept(first) && is_kept(second));
    /* a picture that is encoded for a job that went counts nowhere */
    const size_t bytes = table.kept_bytes, own = table.clients->kept_bytes;
    const uint8_t *png;
    size_t size;
    assert_non_null(jobs_encode(&table, j, 0, &png, &size));
    jobs_encoded(&table, j, 0, malloc(7), 7);
    assert_int_equal(table.kept_bytes, bytes);
    assert_int_equal(own, bytes);
    jobs_release(&table, j);
}

/* The memory of bodies: a client has as much as it leaves, and it comes back. */
TEST_CASE(leaves_memory_of_bodies_for_others)
{
    enum { PART = BODIES_MAX / 32 };
    bodies b;
    const client_key key[] = {{{'a'}}, {{'b'}}, {{'c'}}};
    static const int expected[] = {16, 8, 4};
    bodies_create(&b);
    for (int k = 0; k < 3; k++) {
        int parts = 0;
        while (bodies_hold(&b, &key[k], PART) == BODIES_OK) parts++;
        assert_int_equal(parts, expected[k]);
        assert_int_equal(bodies_hold(&b, &key[k], PART), BODIES_SHARE);
    }
    assert_int_equal(bodies_hold(&b, &key[2], BODIES_MAX), BODIES_FULL);
    for (int k = 0; k < 3; k++) bodies_drop(&b, &key[k], (size_t)expected[k] * PART);
    assert_int_equal(b.bytes, 0);
    assert_null(b.clients);
    bodies_destroy(&b);
}

TEST_WITH(knows_who_may_come_for_results, set_up, tear_down)
{
    job *j, *failed;
    char clients[64];
    submit('a', 2, NULL, &j);
    assert_int_equal(jobs_are_wanted(&table, 60), 0); /* not finished: jobs_wait_idle */
    make_all(clients, JOB_DONE);
    assert_int_equal(jobs_are_wanted(&table, 60), 1);
    assert_int_equal(jobs_are_wanted(&table, 0), 0);
    jobs_note_seen(&table, j);
    jobs_note_fetched(&table, j, 1);
    assert_int_equal(jobs_are_wanted(&table, 60), 1);
    jobs_note_fetched(&table, j, 0);
    assert_int_equal(jobs_are_wanted(&table, 60), 0);
    submit('a', 1, NULL, &failed);
    make_all(clients, JOB_FAILED);
    assert_int_equal(jobs_are_wanted(&table, 60), 1);
    jobs_note_seen(&table, failed);
    assert_int_equal(jobs_are_wanted(&table, 60), 0);
    jobs_release(&table, j);
    jobs_release(&table, failed);
}

static client_key key(const char *peer, const char *forwarded)
{
    struct sockaddr_in v4 = {.sin_family = AF_INET};
    struct sockaddr_in6 v6 = {.sin6_family = AF_INET6};
    if (inet_pton(AF_INET, peer, &v4.sin_addr) == 1) return client_key_of((const struct sockaddr *)&v4, forwarded);
    assert_int_equal(inet_pton(AF_INET6, peer, &v6.sin6_addr), 1);
    return client_key_of((const struct sockaddr *)&v6, forwarded);
}

TEST_CASE(tells_clients_apart)
{
    static const struct {
        const char *peer, *forwarded, *other_peer, *other_forwarded;
        int same;
    } cases[] = {
        {"10.0.0.1", NULL, "10.0.0.1", NULL, 1},
        {"10.0.0.1", NULL, "10.0.0.2", NULL, 0},
        {"10.0.0.1", NULL, "::ffff:10.0.0.1", NULL, 1},
        {"2001:db8:1:2::1", NULL, "2001:db8:1:2:ffff::7", NULL, 1}, /* one network */
        {"2001:db8:1:2::1", NULL, "2001:db8:1:3::1", NULL, 0},
        {"127.0.0.1", "10.0.0.1", "10.0.0.1", NULL, 1},                   /* behind a proxy on this machine */
        {"::1", "1.1.1.1, 10.0.0.1", "127.0.0.1", "2.2.2.2,10.0.0.1", 1}, /* the last is the proxy's word */
        {"127.0.0.1", "10.0.0.1, 1.1.1.1", "127.0.0.1", "10.0.0.1, 2.2.2.2", 0},
        {"10.0.0.1", "1.1.1.1", "10.0.0.1", "2.2.2.2", 1}, /* anyone may write it */
        {"127.0.0.1", "10.0.0.1, unknown", "127.0.0.1", NULL, 1},
        {"127.0.0.1", "1.2.3.4:4711", "1.2.3.4", NULL, 1},
        {"127.0.0.1", "10.0.0.1, 1.2.3.4:80 ", "1.2.3.4", NULL, 1},
        {"127.0.0.1", "[2001:db8:1:2::1]:5", "2001:db8:1:2::9", NULL, 1},
        {"127.0.0.1", "[2001:db8:1:2::1]", "2001:db8:1:2::9", NULL, 1},
        {"127.0.0.1", "2001:db8:1:2::1", "2001:db8:1:2::9", NULL, 1},
        {"127.0.0.1", "1.2.3.4:", "127.0.0.1", NULL, 1},
        {"127.0.0.1", "1.2.3.4:x", "127.0.0.1", NULL, 1},
        {"127.0.0.1", "[1.2.3.4]:5", "127.0.0.1", NULL, 1},
        {"127.0.0.1", "[2001:db8::1", "127.0.0.1", NULL, 1},
        {"127.0.0.1", "[2001:db8::1]5", "127.0.0.1", NULL, 1},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const client_key a = key(cases[i].peer, cases[i].forwarded),
                         b = key(cases[i].other_peer, cases[i].other_forwarded);
        if ((memcmp(&a, &b, sizeof a) == 0) != cases[i].same) fail_msg("case %zu", i);
    }
}
