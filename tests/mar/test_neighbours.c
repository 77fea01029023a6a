/* Tests the table of near tokens: its content, and its cache file beside the checkpoint. */
#include "tests/support/archive.h"
#include "tests/support/support.h"

#include "mar/core/neighbours.h"
#include "weights/npz.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

enum { SIZE = 50, DIM = 4, K = 7 };
static const char golden_path[] = "tests/golden/data/vq.pth";

/* A copy of the tokenizer in its own folder */
typedef struct {
    mar *m;
    mar_vae *vae;
    char *folder, path[600], cache[700];
    char log[4096]; /* the lines so far */
} fixture;

static void note(void *user, mar_log_level level, const char *line)
{
    fixture *x = user;
    const size_t n = strlen(x->log);
    (void)level;
    snprintf(x->log + n, sizeof x->log - n, "%s\n", line);
}

static void write_whole(const char *path, const void *data, size_t size)
{
    bytes b = {0};
    bytes_put(&b, data, size);
    bytes_to_file(&b, path);
    bytes_free(&b);
}

static void load(fixture *x)
{
    x->m = open_mar(MAR_DTYPE_F32, 1);
    assert_library(x->m, mar_vae_load(x->m, x->path, &x->vae));
    x->m->log = note;
    x->m->log_user = x;
}

static fixture *begin(void)
{
    fixture *x = calloc(1, sizeof *x);
    assert_non_null(x);
    x->folder = test_directory();
    snprintf(x->path, sizeof x->path, "%s/vq.pth", x->folder);
    snprintf(x->cache, sizeof x->cache, "%s.neighbours-l2-%d.npz", x->path, K);
    bytes tokenizer = bytes_from_file(golden_path);
    bytes_to_file(&tokenizer, x->path);
    bytes_free(&tokenizer);
    load(x);
    return x;
}

static void end(fixture *x)
{
    mar_vae_free(x->vae);
    mar_close(x->m);
    free(x);
}

/* --- near tokens -------------------------------------------------------------------------------------------------- */

static double distance(const float *a, const float *b, mar_metric metric)
{
    double square = 0, product = 0, aa = 0, bb = 0;
    for (int i = 0; i < DIM; i++) {
        square += ((double)a[i] - b[i]) * ((double)a[i] - b[i]);
        product += (double)a[i] * b[i], aa += (double)a[i] * a[i], bb += (double)b[i] * b[i];
    }
    return metric == MAR_METRIC_L2 ? square : aa * bb > 0 ? 1 - product / sqrt(aa * bb) : 1;
}

/* Checks that each row begins with its own token. The nearest tokens by the file's rows follow; no nearer token is
 * missing. */
static void check_table(const fixture *x, mar_metric metric, int k, const int *table)
{
    const float *rows = vae_decoder_embedding(x->vae->decoder);
    for (int i = 0; i < SIZE; i++) {
        const int *row = table + i * k;
        double last = -1;
        int seen[SIZE] = {0};
        assert_int_equal(row[0], i);
        for (int j = 0; j < k; j++) {
            assert_in_range(row[j], 0, SIZE - 1);
            const double d = distance(rows + i * DIM, rows + row[j] * DIM, metric);
            assert_int_equal(seen[row[j]]++, 0);
            if (j > 0) assert_true(d >= last - 1e-6 * (1 + last));
            if (j > 0) last = d;
        }
        for (int j = 0; j < SIZE; j++)
            if (!seen[j]) assert_true(distance(rows + i * DIM, rows + j * DIM, metric) >= last - 1e-6 * (1 + last));
    }
}

static void find(fixture *x, mar_metric metric, int k, int *table)
{
    mar_err err = {0};
    *x->log = '\0';
    assert_ok(mar_neighbours(x->vae, metric, k, table, &err), &err);
    check_table(x, metric, k, table);
}

TEST_CASE(tables_are_right)
{
    static const int counts[] = {1, 2, K, SIZE};
    fixture *x = begin();
    int first[SIZE * SIZE], again[SIZE * SIZE], differences = 0;
    for (int metric = 0; metric < 2; metric++)
        for (int i = 0; i < 4; i++) {
            const size_t size = sizeof *first * SIZE * (size_t)counts[i];
            find(x, (mar_metric)metric, counts[i], first);
            assert_null(strstr(x->log, "read from"));
            find(x, (mar_metric)metric, counts[i], again);
            assert_non_null(strstr(x->log, "read from"));
            assert_memory_equal(again, first, size);
        }
    find(x, MAR_METRIC_L2, K, first);
    find(x, MAR_METRIC_COSINE, K, again);
    for (int i = 0; i < SIZE * K; i++) differences += first[i] != again[i];
    assert_true(differences > SIZE);
    end(x);
}

/* --- the file ----------------------------------------------------------------------------------------------------- */

static int read_i32(npz *z, const char *name, float *values)
{
    char why[NPZ_WHY_MAX];
    const npz_array *a = npz_find(z, name);
    assert_non_null(a);
    assert_int_equal(npz_read_f32(z, a, values, why), MAR_OK);
    return (int)a->dtype;
}

/* Writes a cache file with this codebook, metric and table. */
static void write_cache(const char *path, const float *codebook, int metric, int k, const int *table)
{
    char why[NPZ_WHY_MAX];
    npz_writer *w;
    assert_int_equal(npz_writer_open(path, 0, &w, why), MAR_OK);
    assert_int_equal(npz_writer_add(w, "codebook", NPZ_F32, 2, (int64_t[]){SIZE, DIM}, codebook, why), MAR_OK);
    assert_int_equal(npz_writer_add(w, "metric", NPZ_I32, 1, (int64_t[]){1}, &metric, why), MAR_OK);
    assert_int_equal(npz_writer_add(w, "neighbours", NPZ_I32, 2, (int64_t[]){SIZE, k}, table, why), MAR_OK);
    assert_int_equal(npz_writer_commit(w, why), MAR_OK);
}

TEST_CASE(the_file_is_used)
{
    fixture *x = begin();
    int table[SIZE * K], other[SIZE * K];
    float values[SIZE * K];
    char why[NPZ_WHY_MAX];
    npz *z;
    find(x, MAR_METRIC_L2, K, table);
    assert_non_null(strstr(x->log, "near tokens: 7 of each of 50 found"));
    assert_int_equal(npz_open(x->cache, &z, why), MAR_OK);
    assert_int_equal(npz_count(z), 3);
    assert_int_equal(read_i32(z, "neighbours", values), NPZ_I32);
    for (int i = 0; i < SIZE * K; i++) assert_int_equal((int)values[i], table[i]);
    npz_close(z);
    for (int i = 0; i < SIZE * K; i++) other[i] = i % K ? table[i - i % K + K - i % K] : table[i]; /* reversed */
    write_cache(x->cache, vae_decoder_embedding(x->vae->decoder), 0, K, other);
    mar_err err = {0};
    assert_ok(mar_neighbours(x->vae, MAR_METRIC_L2, K, table, &err), &err);
    assert_memory_equal(table, other, sizeof table);
    end(x);
}

/* Checks that a useless file is reported and the table is right. A useful file replaces it. */
static void expect_replaced(fixture *x, const char *reason)
{
    int table[SIZE * K];
    find(x, MAR_METRIC_L2, K, table);
    if (!strstr(x->log, "looked for anew") || !strstr(x->log, reason)) fail_msg("%s: the log has %s", reason, x->log);
    find(x, MAR_METRIC_L2, K, table);
    assert_non_null(strstr(x->log, "read from"));
}

TEST_CASE(a_file_of_no_use_is_replaced)
{
    fixture *x = begin();
    const float *rows = vae_decoder_embedding(x->vae->decoder);
    int table[SIZE * K], wrong[SIZE * K], fewer[SIZE * (K - 1)];
    float codebook[SIZE * DIM];
    find(x, MAR_METRIC_L2, K, table);
    memcpy(codebook, rows, sizeof codebook);
    codebook[SIZE * DIM - 1] += 1e-3f;
    write_cache(x->cache, codebook, 0, K, table); /* stale */
    expect_replaced(x, "another codebook");
    write_cache(x->cache, rows, 1, K, table);
    expect_replaced(x, "another metric");
    memset(fewer, 0, sizeof fewer);
    write_cache(x->cache, rows, 0, K - 1, fewer);
    expect_replaced(x, "neighbours is int32 [50, 6]");
    static const int bad[] = {-1, SIZE, 2147483647, -2147483647 - 1};
    for (int i = 0; i < 4; i++) {
        memcpy(wrong, table, sizeof wrong);
        wrong[SIZE * K - 1] = bad[i];
        write_cache(x->cache, rows, 0, K, wrong);
        expect_replaced(x, "none of its tokens");
    }
    memcpy(wrong, table, sizeof wrong);
    wrong[3 * K] = 4; /* a row that does not begin with its own token */
    write_cache(x->cache, rows, 0, K, wrong);
    expect_replaced(x, "none of its tokens");
    write_whole(x->cache, "", 0);
    expect_replaced(x, ".npz");
    write_whole(x->cache, "not an archive at all", 21);
    expect_replaced(x, ".npz");
    bytes whole = bytes_from_file(x->cache);
    for (size_t n = 1; n < whole.size; n += whole.size / 23) { /* truncated */
        write_whole(x->cache, whole.data, n);
        expect_replaced(x, x->cache);
    }
    for (size_t at = whole.size / 31; at < whole.size; at += whole.size / 31) {
        whole.data[at] ^= 0x14; /* damaged: the table is right, the log may vary */
        bytes_to_file(&whole, x->cache);
        whole.data[at] ^= 0x14;
        find(x, MAR_METRIC_L2, K, wrong);
        assert_memory_equal(wrong, table, sizeof table);
    }
    bytes_free(&whole);
    end(x);
}

static void expect_not_kept(fixture *x)
{
    int table[SIZE * K];
    find(x, MAR_METRIC_L2, K, table);
    if (!strstr(x->log, "are not kept")) fail_msg("the log has %s", x->log);
}

/* Tests a folder in the file's place, and a folder that is not writable. */
TEST_CASE(it_is_done_without_a_file)
{
    fixture *x = begin();
    assert_int_equal(mkdir(x->cache, 0700), 0);
    expect_not_kept(x);
    struct stat st;
    assert_true(stat(x->cache, &st) == 0 && S_ISDIR(st.st_mode));
    char *path = x->vae->path;
    x->vae->path = strdup("/proc/self/vq.pth");
    assert_non_null(x->vae->path);
    expect_not_kept(x);
    free(x->vae->path);
    x->vae->path = NULL; /* as in a built-in model */
    int table[SIZE * K];
    find(x, MAR_METRIC_L2, K, table);
    assert_null(strstr(x->log, "kept"));
    x->vae->path = path;
    end(x);
}

/* Checks that a relative path still holds after the working directory changes. */
TEST_CASE(the_file_stays_beside_the_checkpoint)
{
    fixture *x = begin();
    int table[SIZE * K];
    const int before = open(".", O_RDONLY | O_DIRECTORY);
    assert_true(before >= 0);
    mar_vae_free(x->vae);
    assert_int_equal(chdir(x->folder), 0);
    const mar_status status = mar_vae_load(x->m, "vq.pth", &x->vae);
    assert_int_equal(fchdir(before), 0);
    close(before);
    assert_library(x->m, status);
    assert_int_equal(access(x->cache, F_OK), -1);
    find(x, MAR_METRIC_L2, K, table);
    assert_int_equal(access(x->cache, F_OK), 0);
    end(x);
}

/* --- several processes -------------------------------------------------------------------------------------------- */

/* Finds the table many times while the file comes and goes. Returns the number of errors. */
static int find_many_times(const char *path, const char *cache, const int *expected)
{
    fixture x = {0};
    int table[SIZE * K], wrong = 0;
    snprintf(x.path, sizeof x.path, "%s", path);
    load(&x);
    for (int i = 0; i < 40; i++) {
        mar_err err = {0};
        memset(table, -1, sizeof table);
        *x.log = '\0';
        wrong += mar_neighbours(x.vae, MAR_METRIC_L2, K, table, &err) != MAR_OK;
        wrong += memcmp(table, expected, sizeof table) != 0;
        /* The file is complete or absent. It may vanish between two accesses. */
        wrong += strstr(x.log, "anew") && !strstr(x.log, "No such file");
        wrong += strstr(x.log, "not kept") != NULL;
        if (i % 3 == 0) unlink(cache);
    }
    mar_vae_free(x.vae);
    mar_close(x.m);
    return wrong;
}

TEST_CASE(several_processes_do_not_disturb_one_another)
{
    enum { PROCESSES = 4 };
    fixture *x = begin();
    int table[SIZE * K];
    pid_t child[PROCESSES];
    find(x, MAR_METRIC_L2, K, table);
    char path[sizeof x->path], cache[sizeof x->cache];
    memcpy(path, x->path, sizeof path), memcpy(cache, x->cache, sizeof cache);
    mar_vae_free(x->vae);
    mar_close(x->m);
    free(x);
    for (int i = 0; i < PROCESSES; i++) {
        child[i] = fork();
        assert_true(child[i] >= 0);
        if (child[i] == 0) _exit(find_many_times(path, cache, table) ? 1 : 0);
    }
    for (int i = 0; i < PROCESSES; i++) {
        int status = -1;
        while (waitpid(child[i], &status, 0) < 0 && errno == EINTR) continue;
        assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    }
}
