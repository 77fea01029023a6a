/* An attack with pictures that expand: PNGs of random sizes with texts, profiles and pixels that decompress to
 * gigabytes. Each goes to mar edit, mar stats or mar generate --like, in a process of its own, or over HTTP to one mar
 * serve, whose client may leave. Checked: each run ends by itself with status 0 or 1 and says why on lines that begin
 * with "mar: ", within limits of memory and processor time; the service answers all, ends when it is told to, and has
 * the same limits.
 *
 *     pictures COMMAND COUNT [FIRST [SEED]]
 *
 * A case depends on (SEED, its number) only. Directories are made under TMPDIR; that of a case that found something
 * stays. The last line has the counts. The exit status is 0 if nothing was found.
 */
#include "tests/attack/random.h"
#include "tests/support/png_bombs.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { LIMITS_MEMORY = 0 }; /* their shadow memory is of terabytes */
#else
enum { LIMITS_MEMORY = 1 };
#endif

enum {
    SIDE = 32, /* of the demo's pictures */
    SPACE_MB = 1000,
    RESIDENT_MB = 300,
    SECONDS = 20,       /* of a command */
    SERVICE_S = 2,      /* of the service, for each picture */
    PATIENCE = 300,     /* seconds until an answer */
    BODY_MAX = 16 << 20 /* bytes that the service takes */
};

static uint64_t random_state;
static const char *command;
static long found;

static int below(int n)
{
    return (int)(random_next(&random_state) % (uint64_t)n);
}

__attribute__((format(printf, 1, 2))) static void find(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    vprintf(format, arguments);
    va_end(arguments);
    putchar('\n');
    fflush(stdout);
    found++;
}

static void fail(const char *what)
{
    perror(what);
    exit(2);
}

/* --- pictures ----------------------------------------------------------------------------------------------------- */

/* Appends up to three kinds of chunks that expand, each once or many times. */
static void put_extras(png_file *f)
{
    static const char *const names[] = {"zTXt", "iTXt", "iCCP", "zTXt"};
    for (int kinds = below(4); kinds > 0; kinds--) {
        const char *name = names[below(4)];
        const int times = below(2) ? 1 : 1 + below(400), megabytes = times == 1 ? 1 + below(3000) : 1 + below(9);
        png_file one = {0};
        png_put_packed(&one, name, megabytes);
        const size_t size = one.size;
        for (int i = 0; i < times; i++) png_put_chunk(f, name, one.data + 8, size - 12);
        free(one.data);
    }
}

static png_file random_picture(void)
{
    png_file f = {0};
    const int is_interlaced = below(3) == 0, is_huge = below(6) == 0, is_large = below(6) == 0;
    const int width = is_huge ? 16384 : is_large ? 1 + below(4096) : SIDE, depth = is_huge ? 1 : 8;
    const int height = is_huge || is_large ? width : SIDE;
    png_begin(&f, width, height, depth, is_interlaced);
    put_extras(&f);
    png_put_pixels(&f, width, height, depth, is_interlaced, below(2) ? below(3000) : 0);
    for (int i = below(3) ? 0 : below(100000); i > 0; i--) png_put_chunk(&f, "IDAT", "", 0);
    put_extras(&f);
    if (below(8)) png_put_chunk(&f, "IEND", NULL, 0);
    return f;
}

static void write_file(const char *name, const void *data, size_t size)
{
    FILE *f = fopen(name, "wb");
    if (!f || fwrite(data, 1, size, f) != size || fclose(f) != 0) fail(name);
}

static void write_plain(const char *name)
{
    png_file f = png_bomb(BOMB_ZTXT, SIDE, SIDE, 0);
    write_file(name, f.data, f.size);
    free(f.data);
}

/* --- commands ----------------------------------------------------------------------------------------------------- */

static void limit(rlim_t seconds)
{
    const rlim_t space = (rlim_t)SPACE_MB << 20;
    setrlimit(RLIMIT_CPU, &(struct rlimit){seconds, seconds});
    if (LIMITS_MEMORY) setrlimit(RLIMIT_AS, &(struct rlimit){space, space});
}

/* Checks that the process stayed within the limits. Returns the exit status, or -1. */
static int check_end(long number, const char *what, int status, const struct rusage *used)
{
    if (WIFSIGNALED(status)) find("case %ld: %s ended by signal %d", number, what, WTERMSIG(status));
    if (LIMITS_MEMORY && used->ru_maxrss > RESIDENT_MB * 1024)
        find("case %ld: %s took %ld MB", number, what, used->ru_maxrss / 1024);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static void check_messages(long number, int status)
{
    char line[1024];
    int lines = 0;
    FILE *f = fopen("err", "r");
    if (!f) fail("err");
    for (; fgets(line, sizeof line, f); lines++)
        if (strncmp(line, "mar: ", 5) != 0) find("case %ld: said %s", number, line);
    fclose(f);
    if (status != 0 && status != 1) find("case %ld: exit status %d", number, status);
    if (status == 1 && lines == 0) find("case %ld: failed without a word", number);
}

/* Runs a command on ./in.png. Returns its exit status. */
static int run_command(long number, struct rusage *used)
{
    static const char *const lines[] = {"edit -q --image in.png --keep 0.5 --class 3 --num_iter 2 --out out.png",
                                        "edit -q --image plain.png --mask in.png --class 3 --num_iter 2 --out out.png",
                                        "stats d --features demo -q --out out.npz",
                                        "generate --like in.png --out out.png"};
    const char *line = lines[below(4)];
    char words[256], *args[32] = {NULL};
    int status, n = 0;
    snprintf(words, sizeof words, "mar %s", line);
    for (char *word = strtok(words, " "); word && n < 31; word = strtok(NULL, " ")) args[n++] = word;
    const pid_t child = fork();
    if (child == 0) {
        limit(SECONDS);
        if (!freopen("/dev/null", "r", stdin) || !freopen("/dev/null", "w", stdout) || !freopen("err", "w", stderr))
            _exit(125);
        execv(command, args);
        _exit(126);
    }
    if (wait4(child, &status, 0, used) != child) fail("wait4");
    const int ended = check_end(number, line, status, used);
    if (ended >= 0) check_messages(number, ended);
    return ended;
}

/* --- the service -------------------------------------------------------------------------------------------------- */

typedef struct {
    pid_t pid;
    int port;
} server;

static server start_service(long pictures)
{
    char line[256] = "";
    int ends[2];
    server s = {.pid = 0};
    if (pipe(ends) != 0) fail("pipe");
    s.pid = fork();
    if (s.pid == 0) {
        limit(SECONDS + SERVICE_S * (rlim_t)pictures);
        dup2(ends[1], STDOUT_FILENO);
        if (!freopen("serve.err", "w", stderr)) _exit(125);
        close(ends[0]);
        close(ends[1]);
        execl(command, "mar", "serve", "--port", "0", "--num_iter", "2", "--num_sampling_steps", "4", (char *)NULL);
        _exit(126);
    }
    close(ends[1]);
    FILE *out = fdopen(ends[0], "r");
    if (!out || !fgets(line, sizeof line, out) || sscanf(line, "http://127.0.0.1:%d", &s.port) != 1) fail(line);
    return s;
}

static void send_all(int fd, const void *data, size_t size)
{
    for (size_t sent = 0; sent < size;) {
        const ssize_t n = send(fd, (const char *)data + sent, size - sent, MSG_NOSIGNAL);
        if (n <= 0) return; /* refused already; the answer is read */
        sent += (size_t)n;
    }
}

/* Sends an edit of the picture. Returns the code of the answer; 0 after leaving before it. */
static int ask_service(const server *s, const png_file *f)
{
    static const char prompt[] = "--xx\r\nContent-Disposition: form-data; name=\"prompt\"\r\n\r\n3\r\n",
                      part[] = "--xx\r\nContent-Disposition: form-data; name=\"image\"; filename=\"a\"\r\n\r\n",
                      end[] = "\r\n--xx--\r\n";
    const struct sockaddr_in to = {
        .sin_family = AF_INET, .sin_port = htons((uint16_t)s->port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    const struct timeval patience = {.tv_sec = PATIENCE};
    char head[512], answer[64] = "";
    int code = -1;
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), leaves = below(4) == 0;
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    if (fd < 0 || connect(fd, (const struct sockaddr *)&to, sizeof to) != 0) return -1;
    const int n =
        snprintf(head, sizeof head,
                 "POST /v1/images/edits HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\nContent-Length: %zu\r\n"
                 "Content-Type: multipart/form-data; boundary=xx\r\n\r\n",
                 sizeof prompt - 1 + sizeof part - 1 + f->size + sizeof end - 1);
    send_all(fd, head, (size_t)n);
    send_all(fd, prompt, sizeof prompt - 1);
    send_all(fd, part, sizeof part - 1);
    send_all(fd, f->data, f->size);
    send_all(fd, end, sizeof end - 1);
    if (leaves)
        code = 0;
    else if (recv(fd, answer, sizeof answer - 1, MSG_WAITALL) > 0)
        sscanf(answer, "HTTP/1.1 %d", &code);
    close(fd);
    return code;
}

static void stop_service(const server *s, long pictures)
{
    struct rusage used;
    int status;
    kill(s->pid, SIGTERM);
    if (wait4(s->pid, &status, 0, &used) != s->pid) fail("wait4");
    const int ended = check_end(pictures, "the service", status, &used);
    if (ended > 0) find("the service: exit status %d", ended);
    printf("pictures: the service took %ld MB and %ld s for all\n", used.ru_maxrss / 1024,
           (long)(used.ru_utime.tv_sec + used.ru_stime.tv_sec));
}

/* --- cases -------------------------------------------------------------------------------------------------------- */

typedef struct {
    long cases, ok, refused, answered, left, megabytes, milliseconds; /* the last two: the most of a command */
} totals;

static void run_case(const server *s, long number, totals *t)
{
    png_file f = random_picture();
    struct rusage used = {0};
    const long before = found;
    t->cases++;
    if (below(2)) {
        const int code = ask_service(s, &f);
        const int is_cut = code < 0 && f.size > BODY_MAX; /* the service stops reading, and the answer may be lost */
        if (!is_cut && code != 0 && code != 200 && code != 400 && code != 413)
            find("case %ld: of %zu bytes: the answer is %d", number, f.size, code);
        if (code == 0) t->left++;
        if (code > 0) t->answered++;
    } else {
        write_file("in.png", f.data, f.size);
        write_file("d/b.png", f.data, f.size);
        const int status = run_command(number, &used);
        const long ms = (long)(used.ru_utime.tv_sec + used.ru_stime.tv_sec) * 1000 +
                        (long)(used.ru_utime.tv_usec + used.ru_stime.tv_usec) / 1000;
        if (status == 0) t->ok++;
        if (status == 1) t->refused++;
        if (ms > t->milliseconds) t->milliseconds = ms;
        if (used.ru_maxrss / 1024 > t->megabytes) t->megabytes = used.ru_maxrss / 1024;
    }
    if (found > before) {
        char name[64];
        snprintf(name, sizeof name, "found-%ld.png", number);
        write_file(name, f.data, f.size);
    }
    free(f.data);
}

int main(int argc, char **argv)
{
    if (argc < 3 || argc > 5) {
        fprintf(stderr, "usage: pictures COMMAND COUNT [FIRST [SEED]]\n");
        return 2;
    }
    const long count = atol(argv[2]), first = argc > 3 ? atol(argv[3]) : 0;
    const uint64_t seed = argc > 4 ? strtoull(argv[4], NULL, 10) : 1;
    const char *base = getenv("TMPDIR");
    char directory[512], line[600];
    command = realpath(argv[1], NULL);
    snprintf(directory, sizeof directory, "%s/pictures-XXXXXX", base && *base ? base : "/tmp");
    if (!command || !mkdtemp(directory) || chdir(directory) != 0 || mkdir("d", 0777) != 0) fail(argv[1]);
    write_plain("plain.png");
    write_plain("d/a.png");
    totals t = {0};
    const server s = start_service(count);
    for (long i = first; i < first + count; i++) {
        random_state = seed ^ (uint64_t)i * 0xd1342543de82ef95u;
        run_case(&s, i, &t);
    }
    stop_service(&s, count);
    printf(
        "pictures: %ld cases: commands %ld succeeded, %ld refused, %ld MB and %ld ms at most; HTTP %ld answered, %ld "
        "left; %ld findings\n",
        t.cases, t.ok, t.refused, t.megabytes, t.milliseconds, t.answered, t.left, found);
    snprintf(line, sizeof line, "rm -r '%s'", directory);
    if (found > 0)
        printf("in %s\n", directory);
    else if (system(line) != 0)
        return 2;
    return found > 0;
}
