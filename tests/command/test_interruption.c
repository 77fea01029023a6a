/* Signals. One line follows at once. Finished images stay and are whole, nothing else is left, and the status names the
 * signal. After SIGKILL every file with a name is whole. */
#include "tests/support/command.h"

#include <dirent.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <pty.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tools/cli/interruption.h"
#include "tools/images/image.h"

#define QUICK "--num_iter", "2", "--num_sampling_steps", "4"

enum { WAIT_MS = 120000, TEXT = 1 << 20, SIDE = 32 };

static const char stopping[] = "mar: stopping; again to quit at once";

/* --- a command that runs beside the test -------------------------------------------------------------------------- */

typedef struct {
    pid_t pid;
    int from;         /* file descriptor of its terminal or its standard error */
    char text[TEXT];  /* output from there */
    size_t used;      /* of text */
    int status, over; /* over: it has ended, with this status of waitpid */
} child;

static child c;

/* Starts it in `directory`, on its own terminal or with stderr into a pipe. stdout goes to `out`. If `out` is NULL, it
 * goes to the terminal or nowhere. */
static void start(const char *directory, int on_terminal, const char *out, char *const *argv)
{
    int ends[2];
    struct winsize window = {.ws_row = 24, .ws_col = 80};
    c.used = 0, c.over = 0;
    memset(c.text, 0, sizeof c.text);
    assert_int_equal(pipe2(ends, O_CLOEXEC), 0);
    /* A test in the background may ignore them. A child that a signal reaches at once inherits this. */
    void (*const interrupted)(int) = signal(SIGINT, SIG_DFL), (*const hung_up)(int) = signal(SIGHUP, SIG_DFL);
    c.pid = on_terminal ? forkpty(&c.from, NULL, NULL, &window) : fork();
    assert_true(c.pid >= 0);
    if (c.pid == 0) {
        if (chdir(directory) != 0) _exit(127);
        if (!on_terminal) dup2(ends[1], STDERR_FILENO);
        if (out || !on_terminal) dup2(open(out ? out : "/dev/null", O_WRONLY), STDOUT_FILENO);
        execv(getenv("MAR_COMMAND"), argv);
        _exit(127);
    }
    signal(SIGINT, interrupted);
    signal(SIGHUP, hung_up);
    close(ends[1]);
    if (on_terminal)
        close(ends[0]);
    else
        c.from = ends[0];
}

/* Reads available output within `ms`. Returns 0 at its end. */
static int listen_to_it(int ms)
{
    struct pollfd p = {.fd = c.from, .events = POLLIN};
    if (poll(&p, 1, ms) <= 0) return 1;
    if (c.used == TEXT - 1) fail_msg("too much text");
    const ssize_t n = read(c.from, c.text + c.used, TEXT - 1 - c.used);
    if (n <= 0) return 0;
    c.used += (size_t)n;
    return 1;
}

static int running(void)
{
    if (!c.over) c.over = waitpid(c.pid, &c.status, WNOHANG) == c.pid;
    return !c.over;
}

/* Waits until it has printed `words`. */
static void wait_for(const char *words)
{
    for (int ms = 0; !strstr(c.text, words); ms += 10) {
        if (ms > WAIT_MS) fail_msg("it never said \"%s\", but \"%s\"", words, c.text);
        if (!listen_to_it(10) && !strstr(c.text, words)) fail_msg("no \"%s\" in \"%s\"", words, c.text);
    }
}

/* Waits until its bar has shown at least `n` finished images of 8100. */
static void wait_for_images(long n)
{
    const char *shown = c.text;
    for (int ms = 0;; ms += 10) {
        const char *next = strstr(shown, " of 8100 images");
        if (next) {
            const char *number = next;
            while (number > c.text && number[-1] >= '0' && number[-1] <= '9') number--;
            if (atol(number) >= n) return;
            shown = next + 1;
        } else if (ms > WAIT_MS || !listen_to_it(10)) {
            fail_msg("never %ld images in \"%s\"", n, c.text);
        }
    }
}

static void wait_for_file(const char *directory, const char *name)
{
    char path[4096];
    struct stat st;
    snprintf(path, sizeof path, "%s/%s", directory, name);
    for (int ms = 0; stat(path, &st) != 0; ms++) {
        if (ms > WAIT_MS || !running()) fail_msg("%s was never written: %s", name, c.text);
        usleep(1000);
    }
}

/* Waits until it has ended. Returns its status as a shell shows it. */
static int wait_for_end(void)
{
    int more = 1;
    for (int ms = 0; running(); ms += 10) {
        if (ms > WAIT_MS) {
            kill(c.pid, SIGKILL);
            fail_msg("it goes on: \"%s\"", c.text);
        }
        if (more)
            more = listen_to_it(10);
        else
            usleep(10000);
    }
    for (int i = 0; more && i < 100; i++) more = listen_to_it(10);
    close(c.from);
    return WIFEXITED(c.status) ? WEXITSTATUS(c.status) : 128 + WTERMSIG(c.status);
}

/* --- files left --------------------------------------------------------------------------------------------------- */

static const char *text_of(const image_file *file, const char *key)
{
    for (int i = 0; i < file->count; i++)
        if (strcmp(file->texts[i].key, key) == 0) return file->texts[i].value;
    return "(absent)";
}

static image_file read_image(const char *directory, const char *name, int width, int height)
{
    char path[4096];
    image_file file;
    snprintf(path, sizeof path, "%s/%s", directory, name);
    if (image_read_png(path, width, height, &file) != 0) fail_msg("%s: not a whole picture", path);
    return file;
}

/* Checks that all entries are whole numbered images. Returns their number, 0 for a missing directory. */
static int count_whole(const char *directory)
{
    DIR *d = opendir(directory);
    int n = 0;
    if (!d) return 0;
    for (struct dirent *e; (e = readdir(d));) {
        if (strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0) continue;
        if (strspn(e->d_name, "0123456789") != 6) fail_msg("%s/%s was left", directory, e->d_name);
        image_file file = read_image(directory, e->d_name, SIDE, SIDE);
        if (atol(text_of(&file, "image")) != atol(e->d_name)) fail_msg("%s is another image", e->d_name);
        image_file_free(&file);
        n++;
    }
    closedir(d);
    return n;
}

static char *into_directory[] = {"mar",     "generate", "--class", "1",     "--num", "1000000",
                                 "--batch", "2",        QUICK,     "--out", "d",     NULL};

/* --- tests -------------------------------------------------------------------------------------------------------- */

/* Sends each signal in the middle of the images. */
COMMAND_CASE(keeps_what_is_finished)
{
    static const struct {
        int number, status;
    } signals[] = {{SIGINT, 130}, {SIGTERM, 143}, {SIGHUP, 129}};
    char sub[4096], expected[200];
    snprintf(sub, sizeof sub, "%s/d", (char *)*state);
    for (int i = 0; i < 3; i++) {
        start(*state, 0, NULL, into_directory);
        wait_for_file(*state, "d/000003.png");
        kill(c.pid, signals[i].number);
        assert_int_equal(wait_for_end(), signals[i].status);
        assert_true(WIFEXITED(c.status));
        const int n = count_whole(sub);
        assert_true(n >= 4);
        snprintf(expected, sizeof expected,
                 "%s\nmar: interrupted: %d of 1000000 images were made, they are in d; --resume goes on\n", stopping,
                 n);
        assert_string_equal(c.text, expected);
        remove_directory(sub);
    }
}

/* Checks that the line replaces the bar on a terminal, and that no bar comes back. */
COMMAND_CASE(ends_the_progress_line)
{
    start(*state, 1, NULL, into_directory);
    wait_for_file(*state, "d/000003.png");
    kill(c.pid, SIGINT);
    assert_int_equal(wait_for_end(), 130);
    const char *line = strstr(c.text, stopping);
    if (!line) fail_msg("no \"%s\" in \"%s\"", stopping, c.text);
    assert_true(line - c.text > 4 && memcmp(line - 4, "\r\033[K", 4) == 0);
    assert_null(strstr(line, "% "));
    assert_null(strstr(line, " of 1000000 images  "));
    const char *last = strstr(line, "\r\033[Kmar: interrupted: ");
    if (!last) fail_msg("no end in \"%s\"", line);
    assert_string_equal(strchr(last + 1, '\n'), "\n");
}

/* Sends signals at many moments: while the process starts, loads, makes a directory, or writes. */
COMMAND_CASE(at_many_moments)
{
    static const int signals[] = {SIGINT, SIGTERM, SIGHUP};
    char sub[4096], above[4096], *argv[] = {"mar",     "generate", "--class", "1",     "--num", "1000000",
                                            "--batch", "2",        QUICK,     "--out", "a/b/d", NULL};
    snprintf(sub, sizeof sub, "%s/a/b/d", (char *)*state);
    snprintf(above, sizeof above, "%s/a", (char *)*state);
    for (int i = 0; i < 18; i++) {
        start(*state, i % 2, NULL, argv);
        usleep((useconds_t)(i * i * 800)); /* up to a quarter of a second */
        kill(c.pid, signals[i % 3]);
        assert_int_equal(wait_for_end(), 128 + signals[i % 3]);
        const int n = count_whole(sub);
        if (n == 0 && count_files(*state) != 0) fail_msg("signal %d: an empty directory was left", i);
        if (n > 0 && !strstr(c.text, " images were made")) fail_msg("signal %d: no word of %d images", i, n);
        if (n > 0) remove_directory(above);
    }
}

/* Checks that files with a name are whole after SIGKILL. */
COMMAND_CASE(killed)
{
    char sub[4096];
    snprintf(sub, sizeof sub, "%s/d", (char *)*state);
    for (int i = 0; i < 6; i++) {
        start(*state, 0, NULL, into_directory);
        wait_for_file(*state, "d/000001.png");
        usleep((useconds_t)(i * 3000));
        kill(c.pid, SIGKILL);
        assert_int_equal(wait_for_end(), 128 + SIGKILL);
        assert_true(count_whole(sub) >= 2);
        remove_directory(sub);
    }
}

/* Checks the grid of the finished images: the first cells equal those of a whole run, the others are white. */
COMMAND_CASE(a_grid_of_what_is_finished)
{
    enum { TOTAL = 8100, ROW = 90, GRID = ROW * (SIDE + GRID_GAP) - GRID_GAP };
    char *argv[] = {"mar", "generate", "--class", "1", "--num", "8100", "--batch", "2", QUICK, "--out", "p.png", NULL};
    char expected[200];
    start(*state, 1, NULL, argv);
    wait_for_images(6);
    kill(c.pid, SIGINT);
    assert_int_equal(wait_for_end(), 130);
    assert_int_equal(count_files(*state), 1);
    image_file grid = read_image(*state, "p.png", GRID, GRID);
    const int n = atoi(text_of(&grid, "finished"));
    assert_in_range(n, 6, ROW * ROW - 1);
    snprintf(expected, sizeof expected, "%d of 8100 images", n);
    assert_string_equal(text_of(&grid, "finished"), expected);
    snprintf(expected, sizeof expected, "mar: interrupted: %d of 8100 images were made, they are on the grid p.png\r\n",
             n);
    assert_non_null(strstr(c.text, expected));

    command_ok(*state, "generate --class 1 --num 6 --num_iter 2 --num_sampling_steps 4 --out whole --quiet");
    for (int i = 0; i < n + 3; i++) {
        char name[32];
        snprintf(name, sizeof name, "whole/%06d.png", i);
        image_file one = {.count = 0};
        if (i < 6) one = read_image(*state, name, SIDE, SIDE);
        int white = 1;
        for (int y = 0; y < SIDE; y++) {
            const uint8_t *row =
                grid.picture.rgb + 3 * (size_t)((i / ROW * (SIDE + GRID_GAP) + y) * GRID + i % ROW * (SIDE + GRID_GAP));
            if (i < 6) assert_memory_equal(row, one.picture.rgb + (size_t)y * SIDE * 3, SIDE * 3);
            for (int x = 0; x < 3 * SIDE; x++) white &= row[x] == 255;
        }
        assert_int_equal(white, i >= n);
        image_file_free(&one);
    }
    image_file_free(&grid);
}

/* Checks that nothing is lost if Ctrl-C also ends the reader of standard error, as in "mar generate 2>&1 | tee log". */
COMMAND_CASE(nobody_reads_its_words)
{
    enum { GRID = 90 * (SIDE + GRID_GAP) - GRID_GAP };
    static char *const argv[] = {"mar",     "generate", "--class", "1",     "--num", "8100",
                                 "--batch", "2",        QUICK,     "--out", "p.png", NULL};
    signal(SIGPIPE, SIG_DFL);                                               /* the child inherits it */
    for (useconds_t pause = 100000; count_files(*state) == 0; pause *= 2) { /* until an image was finished */
        start(*state, 0, NULL, argv);
        close(c.from);
        c.from = open("/dev/null", O_RDONLY);
        usleep(pause);
        assert_true(running());
        kill(c.pid, SIGINT);
        assert_int_equal(wait_for_end(), 130);
    }
    image_file grid = read_image(*state, "p.png", GRID, GRID);
    assert_in_range(atoi(text_of(&grid, "finished")), 1, 8099);
    image_file_free(&grid);
}

/* Checks that the second signal ends the process at once. Here it waits for a reader of the grid. */
COMMAND_CASE(the_second_ends_it)
{
    char path[4096],
        *argv[] = {"mar", "generate", "--class", "1", "--num", "8100", "--batch", "8", QUICK, "--out", "-", NULL};
    snprintf(path, sizeof path, "%s/pipe", (char *)*state);
    assert_int_equal(mkfifo(path, 0666), 0);
    const int reader = open(path, O_RDWR); /* never read from: a page goes in, less than the grid has */
    assert_true(reader >= 0 && fcntl(reader, F_SETPIPE_SZ, 4096) == 4096);
    start(*state, 1, "pipe", argv);
    wait_for_images(16);
    kill(c.pid, SIGINT);
    struct pollfd full = {.fd = reader, .events = POLLIN};
    for (int ms = 0; running() && poll(&full, 1, 10) == 0 && ms < WAIT_MS; ms += 10) listen_to_it(0);
    wait_for(stopping);
    assert_true(running());
    kill(c.pid, SIGTERM);
    assert_int_equal(wait_for_end(), 128 + SIGTERM);
    assert_true(WIFSIGNALED(c.status));
    close(reader);
}

/* --- the limit of an evaluation ----------------------------------------------------------------------------------- */

enum { GOES_ON = 75, LATE = 9 /* status of a child that outlives its limit */ };

/* Runs the function in a child of the test. Returns its exit status. */
static int status_in_child(void (*run)(void))
{
    const pid_t process = fork();
    assert_true(process >= 0);
    if (process == 0) {
        signal(SIGTERM, SIG_DFL);
        run();
        _exit(LATE);
    }
    return command_wait(process);
}

static int file; /* that a thread writes */
static pthread_barrier_t turn;

/* Writes a file in two halves; the other thread gets the alarm between them. */
static void *write_halves(void *unused)
{
    sigset_t before;
    interruption_hold(&before);
    if (write(file, "one", 3) != 3) _exit(1);
    pthread_barrier_wait(&turn);
    pthread_barrier_wait(&turn);
    if (write(file, "two", 3) != 3) _exit(1);
    interruption_release(&before);
    return unused;
}

static void get_alarm_beside_a_writer(void)
{
    pthread_t writer;
    interruption_limit(GOES_ON);
    if (pthread_create(&writer, NULL, write_halves, NULL) != 0) _exit(1);
    pthread_barrier_wait(&turn);
    raise(SIGTERM);
    raise(SIGALRM);
    pthread_barrier_wait(&turn);
    pthread_join(writer, NULL);
    raise(SIGALRM);
}

/* Checks that the alarm does not end the process while another thread writes a file, and does so afterwards. */
COMMAND_CASE(a_file_of_another_thread)
{
    char text[8] = "";
    file = open(path_in(*state, "file"), O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    assert_true(file >= 0);
    assert_int_equal(pthread_barrier_init(&turn, NULL, 2), 0);
    assert_int_equal(status_in_child(get_alarm_beside_a_writer), GOES_ON);
    assert_int_equal(pread(file, text, sizeof text - 1, 0), 6);
    assert_string_equal(text, "onetwo");
    pthread_barrier_destroy(&turn);
    close(file);
}

/* Gets the signal and the alarm just before the limit is off, as a blocked signal has it, and the alarm later. */
static void report_without_limit(void)
{
    sigset_t late;
    sigemptyset(&late);
    sigaddset(&late, SIGALRM);
    interruption_limit(GOES_ON);
    sigprocmask(SIG_BLOCK, &late, NULL);
    raise(SIGTERM);
    raise(SIGALRM);
    interruption_unlimit();
    sigprocmask(SIG_UNBLOCK, &late, NULL);
    raise(SIGALRM);
}

static void limit_again(void)
{
    report_without_limit();
    interruption_limit(GOES_ON);
    raise(SIGALRM);
}

/* Does work that no session cancels. */
static void work_on(void)
{
    interruption_limit(GOES_ON);
    raise(SIGTERM);
    for (;;) pause();
}

COMMAND_CASE(the_limit_ends_other_work)
{
    assert_int_equal(status_in_child(work_on), GOES_ON);
}

COMMAND_CASE(the_limit_is_taken_off)
{
    assert_int_equal(status_in_child(report_without_limit), LATE);
    assert_int_equal(status_in_child(limit_again), GOES_ON);
}

/* Checks that a finished evaluation prints its numbers to a slow reader although a signal came. */
COMMAND_CASE(a_slow_reader_of_numbers)
{
    enum { PAGE = 4096 };
    static char page[PAGE], text[TEXT];
    char *argv[] = {"mar", "eval", "--num_images", "10", "--batch", "5", QUICK, "--out", "run", NULL};
    const char *path = path_in(*state, "pipe");
    size_t used = 0;
    assert_int_equal(mkfifo(path, 0666), 0);
    const int reader = open(path, O_RDWR | O_NONBLOCK);
    assert_true(reader >= 0 && fcntl(reader, F_SETPIPE_SZ, PAGE) == PAGE);
    assert_int_equal(write(reader, page, PAGE), PAGE); /* so the numbers wait */
    start(*state, 0, "pipe", argv);
    wait_for_file(*state, "run/result.json");
    kill(c.pid, SIGTERM);
    wait_for(stopping);
    usleep(1500000); /* more than the limit */
    assert_int_equal(read(reader, page, PAGE), PAGE);
    assert_int_equal(wait_for_end(), 0);
    for (ssize_t n; (n = read(reader, text + used, sizeof text - 1 - used)) > 0;) used += (size_t)n;
    assert_has(text, "FID");
    assert_has(text, "report.html");
    close(reader);
}

/* --- other commands and signals ----------------------------------------------------------------------------------- */

/* Checks that ignored signals, as under nohup, stay ignored. */
COMMAND_CASE(ignored)
{
    command_result r = command_run(*state, "trap '' HUP INT TERM; $MAR generate --class 1 --num 40 --num_iter 2 "
                                           "--num_sampling_steps 4 --batch 2 --out d & p=$!; "
                                           "for i in 1 2 3 4 5 6 7 8 9; do kill -HUP $p; kill -INT $p; done; wait $p");
    assert_int_equal(r.status, 0);
    assert_string_equal(r.err, "");
    command_result_free(&r);
}

/* Checks that the other commands write nothing before they are done. */
COMMAND_CASE(other_commands)
{
    char *bench[] = {"mar", "bench", "--batch", "1", "--repeat", "1000", NULL};
    char *fidelity[] = {"mar", "fidelity", "--num", "10000", "--out", "p.html", QUICK, "--against", NULL};
    for (int i = 0; i < 12; i++) {
        start(*state, i % 4 / 2, NULL, i % 2 ? bench : fidelity);
        usleep((useconds_t)(i * i * 3000));
        kill(c.pid, SIGINT);
        assert_int_equal(wait_for_end(), 130);
        assert_null(strstr(c.text, "s/image"));
        assert_int_equal(count_files(*state), 0);
    }
}
