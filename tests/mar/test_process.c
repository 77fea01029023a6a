/* Checks that no call changes the process: umask, locale, signals, the affinity of the caller's threads. No call
 * prints. tests/rooms/test_symbols.sh looks for the functions that could. No call uses more stack than mar.h says, or
 * more memory than there is. */
#include "tests/support/brief.h"

#include "mar_eval.h"
#include "mar_files.h"
#include "mar_measure.h"
#include "mar_methods.h"
#include "tests/support/demo.h"

#include <fcntl.h>
#include <locale.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

typedef struct {
    mode_t mask;
    char locale[256];
    cpu_set_t processors;
    sigset_t blocked;
    void (*handler[NSIG])(int); /* handler of each signal */
    int flags[NSIG];
} process;

/* Records the state of the process in *p. Unused bytes are zero. */
static void look(process *p)
{
    memset(p, 0, sizeof *p);
    p->mask = umask(0);
    umask(p->mask);
    snprintf(p->locale, sizeof p->locale, "%s", setlocale(LC_ALL, NULL));
    assert_int_equal(sched_getaffinity(0, sizeof p->processors, &p->processors), 0);
    assert_int_equal(sigprocmask(SIG_BLOCK, NULL, &p->blocked), 0);
    for (int i = 1; i < NSIG; i++) {
        struct sigaction action;
        if (sigaction(i, NULL, &action) != 0) continue;
        p->handler[i] = action.sa_handler;
        p->flags[i] = action.sa_flags;
    }
}

static void note(void *user, mar_session *s, const mar_progress *p)
{
    (void)user, (void)s, (void)p;
}

/* Makes every public call; some fail. */
static void call_everything(const char *directory)
{
    char path[600];
    float tokens[DEMO_TOKENS];
    uint8_t rgb[DEMO_BYTES], fate[DEMO_SEQ];
    int width, height;
    mar_report *report;
    mar_session *s;
    mar_stats stats = {.size = sizeof stats};
    mar_model *none;
    double peak;
    const demo d = demo_open(2);
    mar_params p = params_with("num_iter 4, num_sampling_steps 4, spec conditional, gamma 2");
    p.draft = d.draft;
    s = demo_session(&d, &p, 1);
    mar_session_on_progress(s, note, NULL);
    demo_generate(s, 1, tokens);
    assert_session(s, mar_session_images(s, rgb));
    assert_session(s, mar_session_token_status(s, fate, NULL));
    mar_session_image_size(s, &width, &height);
    mar_session_get_stats(s, &stats);
    mar_session_cancel(s);
    assert_int_equal(mar_session_tokens(s, tokens), MAR_ECANCELLED);
    assert_int_equal(mar_session_set_stream(s, NULL), MAR_EARG);
    mar_session_free(s);
    assert_int_equal(mar_model_load(d.m, "no such file", 0, &none), MAR_EIO);
    assert_library(d.m, mar_inspect(d.m, "demo", 0, &report));
    mar_report_free(report);
    snprintf(path, sizeof path, "%s/demo.safetensors", directory);
    assert_library(d.m, mar_convert(d.m, "demo", path, MAR_DTYPE_BF16, 0));
    snprintf(path, sizeof path, "%s/nowhere/demo.safetensors", directory);
    assert_int_equal(mar_convert(d.m, "demo", path, MAR_DTYPE_BF16, 0), MAR_EIO);
    assert_library(d.m, mar_measure_peak(d.m, &peak));
    assert_library(d.m, mar_measure_bandwidth(d.m, &peak));
    for (int i = 0; i < mar_method_count(); i++) assert_non_null(mar_method_get(i));
    demo_close(d);
}

static int redirect(FILE *stream, const char *directory, const char *name, int *kept)
{
    char path[600];
    snprintf(path, sizeof path, "%s/%s", directory, name);
    const int file = open(path, O_RDWR | O_CREAT | O_EXCL, 0600);
    fflush(stream);
    *kept = dup(fileno(stream));
    assert_true(file >= 0 && *kept >= 0 && dup2(file, fileno(stream)) >= 0);
    return file;
}

/* Restores the stream. Returns the number of bytes written in the meantime. */
static long restore(FILE *stream, int file, int kept)
{
    fflush(stream);
    const long bytes = (long)lseek(file, 0, SEEK_END);
    assert_true(dup2(kept, fileno(stream)) >= 0);
    close(file), close(kept);
    return bytes;
}

static void handle(int number)
{
    (void)number;
}

TEST_CASE(everything_is_as_it_was)
{
    static process before, after;
    char *directory = test_directory(), path[600];
    cpu_set_t all, one;
    struct stat st;
    int kept[2];
    /* Values that no library would choose by itself */
    const mode_t mask = umask(027);
    setlocale(LC_ALL, "C.UTF-8");
    const int signals[] = {SIGINT, SIGTERM, SIGPIPE, SIGCHLD, SIGUSR2};
    for (size_t i = 0; i < sizeof signals / sizeof *signals; i++) signal(signals[i], handle);
    sched_getaffinity(0, sizeof all, &all);
    CPU_ZERO(&one);
    for (int i = 0; i < CPU_SETSIZE && !CPU_COUNT(&one); i++)
        if (CPU_ISSET(i, &all)) CPU_SET(i, &one);
    sched_setaffinity(0, sizeof one, &one);

    look(&before);
    const int out = redirect(stdout, directory, "out", &kept[0]), err = redirect(stderr, directory, "err", &kept[1]);
    call_everything(directory);
    const long printed = restore(stdout, out, kept[0]), complained = restore(stderr, err, kept[1]);
    look(&after);
    assert_memory_equal(&after, &before, sizeof after);
    assert_int_equal(printed, 0);
    assert_int_equal(complained, 0);
    snprintf(path, sizeof path, "%s/demo.safetensors", directory);
    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(st.st_mode & 0777, 0640); /* 0666 under the umask */

    sched_setaffinity(0, sizeof all, &all);
    for (size_t i = 0; i < sizeof signals / sizeof *signals; i++) signal(signals[i], SIG_DFL);
    umask(mask);
}

/* --- stack and memory --------------------------------------------------------------------------------------------- */

static void generate_as(mar_dtype dtype)
{
    static const char *const models[] = {"demo", "demo-discrete"};
    static uint8_t rgb[DEMO_BYTES];
    static float numbers[DEMO_TOKENS];
    mar *m;
    mar_features *features;
    assert_int_equal(
        mar_open(&(mar_options){.size = sizeof(mar_options), .backend = MAR_BACKEND_CPU, .dtype = dtype, .threads = 2},
                 &m),
        MAR_OK);
    for (int i = 0; i < 2; i++) {
        mar_model *model;
        mar_vae *vae;
        mar_session *s;
        assert_library(m, mar_model_load(m, models[i], 0, &model));
        assert_library(m, mar_vae_load(m, models[i], &vae));
        const mar_params p = params_with(i == 0 ? "num_iter 2, num_sampling_steps 4, spec path" : "top_k 9, top_p 0.9");
        assert_library(m, mar_session_create(model, vae, &p, 1, &s));
        assert_session(s, mar_session_begin(s, 0, (int[]){3}, 1));
        while (!mar_session_done(s)) assert_session(s, mar_session_step(s));
        assert_session(s, mar_session_images(s, rgb));
        mar_session_free(s);
        mar_vae_free(vae);
        mar_model_free(model);
    }
    assert_library(m, mar_features_load(m, "demo", 1, &features));
    assert_library(m, mar_features_run(features, rgb, 1, DEMO_SIDE, DEMO_SIDE, numbers, NULL, NULL));
    mar_features_free(features);
    mar_close(m);
}

static void *call_with_little_stack(void *directory)
{
    call_everything(directory);
    generate_as(MAR_DTYPE_AUTO); /* bf16, if the processor has it */
    generate_as(MAR_DTYPE_INT8);
    return directory;
}

TEST_CASE(a_small_stack_is_enough)
{
    const size_t size = (test_brief ? 1024 : 64) * (size_t)1024; /* the sanitizers use much stack */
    char *directory = test_directory();
    void *done = NULL;
    pthread_attr_t attributes;
    pthread_t thread;
    assert_int_equal(pthread_attr_init(&attributes), 0);
    assert_int_equal(pthread_attr_setstacksize(&attributes, size), 0);
    assert_int_equal(pthread_create(&thread, &attributes, call_with_little_stack, directory), 0);
    assert_int_equal(pthread_join(thread, &done), 0);
    assert_ptr_equal(done, directory);
    pthread_attr_destroy(&attributes);
}

static long resident_kilobytes(void)
{
    long pages = 0;
    FILE *f = fopen("/proc/self/statm", "r");
    assert_non_null(f);
    assert_int_equal(fscanf(f, "%*d %ld", &pages), 1);
    fclose(f);
    return pages * (sysconf(_SC_PAGESIZE) / 1024);
}

/* Checks that a session beyond the available memory is refused first. Available memory is taken on first use. */
TEST_CASE(absurd_sessions)
{
    const demo d = demo_open(1);
    mar_params p = params_with("num_iter 1, num_sampling_steps 1000, spec path"); /* keeps the path of every token */
    mar_session *s;
    assert_int_equal(mar_session_create(d.model, d.vae, &p, 65536, &s), MAR_ENOMEM);
    assert_says(mar_error(d.m), "a batch of 65536 images needs ");
    assert_says(mar_error(d.m), " available");
    p = params_with("num_iter 4, num_sampling_steps 4");
    const long before = resident_kilobytes();
    s = demo_session(&d, &p, 4096);
    mar_stats stats = {.size = sizeof stats};
    mar_session_get_stats(s, &stats);
    const long kilobytes = (long)(stats.arena_bytes / 1024), taken = resident_kilobytes() - before;
    if (taken > kilobytes / 4) fail_msg("%ld of %ld kB are taken at once", taken, kilobytes);
    mar_session_free(s);
    demo_close(d);
}
