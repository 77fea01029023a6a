/* mar generate --resume: a directory comes out as one run would have made it, byte by byte, whatever was missing, and
 * one with images of another run is left as it is, unless --overwrite is given. */
#include "tests/support/command.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define QUICK " --num_iter 3 --num_sampling_steps 6 "
#define RUN   "generate --class 3,1,4 --num 3 --seed 5" QUICK

enum { IMAGES = 9 };

/* `command` gives status and this text on a stream; NULL: nothing. Contained is enough. */
static void expect(const char *directory, const char *command, int status, const char *out, const char *err)
{
    char line[1000];
    snprintf(line, sizeof line, "$MAR %s", command);
    command_result r = command_run(directory, line);
    if (r.status != status || (out ? !strstr(r.out, out) : *r.out) || (err ? !strstr(r.err, err) : *r.err))
        fail_msg("%s: exit status %d, \"%s\", \"%s\"; expected %d, \"%s\", \"%s\"", command, r.status, r.out, r.err,
                 status, out ? out : "", err ? err : "");
    if (err && strchr(r.err, '\n') != r.err + strlen(r.err) - 1) fail_msg("%s: not one line: %s", command, r.err);
    command_result_free(&r);
}

static void shell(const char *directory, const char *line)
{
    command_result r = command_run(directory, line);
    if (r.status != 0) fail_msg("%s: %s%s", line, r.out, r.err);
    command_result_free(&r);
}

static int setup(void **state)
{
    if (command_setup(state) != 0) return 1;
    command_ok(*state, RUN "--out whole --grid --quiet");
    return 0;
}

/* Images of two runs are never in one directory: it is refused, or those there are removed first. */
static void two_runs(void **state)
{
    const char *d = *state;
    shell(d, "cp -r whole before");
    expect(d, "generate --class 2" QUICK "--out whole --model absent.pth --vae demo", 1, NULL, /* before loading */
           "mar: whole: has 000000.png and 9 more of another run, expected --resume to go on with it, --overwrite to "
           "replace it, or another --out\n");
    expect(d, RUN "--out whole", 1, NULL, "mar: whole: has 000000.png and 9 more of another run");
    expect(d, RUN "--out whole --overwrite --resume", 1, NULL,
           "mar: --overwrite: replaces the images that --resume keeps");
    expect(d, RUN "--out one.png --overwrite", 1, NULL, "mar: --overwrite: --out is one.png, expected a directory");
    shell(d, "diff -r whole before");
    expect(d, "generate --class 2" QUICK "--out whole --overwrite --draft absent", 1, NULL, "absent");
    shell(d, "diff -r whole before && echo mine >whole/mine.png && echo mine >whole/1.png"); /* nothing was removed */
    expect(d, "generate --class 2 --num 2" QUICK "--out whole --overwrite --quiet", 0, NULL, NULL);
    shell(d, "test \"$(ls whole | tr '\\n' ' ')\" = '000000.png 000001.png 1.png mine.png '");
    shell(d, "mkdir other && touch other/grid.png && ! $MAR generate" QUICK "--num 1 --out other 2>err && grep -q "
             "'other: has grid.png of another run' err");
}

/* Any images may be missing, whatever the batches. */
static void holes(void **state)
{
    static const char *const missing[] = {"000000", "000008", "000004", "000001 000002 000005 000007",
                                          "000003 000004 000005 000006 000007 000008"};
    static const int batches[] = {1, 2, 4, 16};
    const char *d = *state;
    for (size_t i = 0; i < sizeof missing / sizeof *missing; i++)
        for (size_t b = 0; b < sizeof batches / sizeof *batches; b++) {
            char line[500];
            snprintf(line, sizeof line,
                     "rm -rf part && cp -r whole part && cd part && rm grid.png && "
                     "for f in %s; do rm $f.png; done",
                     missing[i]);
            shell(d, line);
            snprintf(line, sizeof line, RUN "--out part --grid --resume --quiet --batch %d", batches[b]);
            command_ok(d, line);
            shell(d, "diff -r whole part");
        }
    command_ok(d, RUN "--out new/part --grid --resume --quiet"); /* and all of them */
    shell(d, "diff -r whole new/part");
}

/* The summary and the record say what was there. */
static void what_is_said(void **state)
{
    const char *d = *state;
    shell(d, "cp -r whole part && rm part/000002.png part/000006.png");
    expect(d, RUN "--out part --resume", 0, ", 7 were there already\n", NULL);
    expect(d, RUN "--out part --resume", 0, "part: all 9 images were there already\n", NULL);
    expect(d, RUN "--out part --resume --json", 0, "\"images_existing\":9,", NULL);
    expect(d, RUN "--out part --resume --json", 0, "\"seconds_per_image\":null", NULL);
    expect(d, RUN "--out part --overwrite --json", 0, "\"images_existing\":0,", NULL);
    shell(d, "rm part/000006.png");
    expect(d, RUN "--out part --resume --json", 0, "\"images_existing\":8,", NULL);
    expect(d, RUN "--out part --resume --grid", 0, "part: all 9 images were there already, wrote grid.png\n", NULL);
    command_ok(d, "generate --class 3 --num 1 --quiet --out one" QUICK);
    expect(d, "generate --class 3 --num 1 --out one --resume" QUICK, 0, "one: the image was there already\n", NULL);
    shell(d, "diff -r whole part");
}

/* More images of each class are another order of the same numbers; of one class they are a longer run. */
static void a_longer_run(void **state)
{
    const char *d = *state;
    command_ok(d, "generate --class 3 --num 6 --quiet --out six" QUICK);
    command_ok(d, "generate --class 3 --num 4 --quiet --out four" QUICK);
    command_ok(d, "generate --class 3 --num 6 --quiet --out four --resume" QUICK);
    shell(d, "diff -r six four");
    expect(d, "generate --class 3 --num 4 --quiet --out six --resume" QUICK, 1, NULL,
           "is not an image of this run, which has numbers up to 3");
}

/* Whatever changes the picture, or could. Nothing is written. */
static void another_run(void **state)
{
    static const struct {
        const char *command, *says;
    } cases[] = {
        {"generate --class 3,1,4 --num 3 --seed 6" QUICK, "part/000000.png: seed is 5, expected 6: "},
        {"generate --class 3,1,5 --num 3 --seed 5" QUICK, "part/000006.png: class is 4, expected 5: "},
        {"generate --class 3,1 --num 5 --seed 5" QUICK, "part/000003.png: class is 1, expected 3: "},
        {"generate --class 3,1,4 --num 2 --seed 5" QUICK, "which has numbers up to 5: "},
        {RUN "--num_iter 4", "part/000000.png: num_iter is 3, expected 4: "},
        {RUN "--cfg 2", "cfg is 2.9, expected 2: "},
        {RUN "--temperature 0.9", "temperature is 1, expected 0.9: "},
        {RUN "--head_spec 8", "part/000000.png: has no text head_spec, expected 8: "},
        {RUN "--dtype f32", ", expected cpu f32"},
        {RUN "--head_dtype f32", ", expected cpu bf16, head f32"},
        {RUN "--dtype int8", ", expected cpu int8, bf16 ("},
        {RUN "--dtype int8 --int8_below 500", ", expected cpu int8, bf16, head int8 below 500 ("},
        {RUN "--dtype int8 --head_dtype bf16", ", expected cpu int8, bf16, head bf16 ("},
        {RUN "--model demo-draft", "part/000000.png: model is demo, expected demo-draft: "},
        {RUN "--model demo.safetensors --vae demo", "model is demo, expected demo.safetensors: "},
        {RUN "--vae vae.safetensors", "vae is demo, expected vae.safetensors: "},
        {RUN "--draft demo-draft --gamma 1", "has no text draft, expected demo-draft: "},
        {RUN "--draft self", "has no text draft, expected self: "},
    };
    const char *d = *state;
    shell(d, "$MAR convert demo demo.safetensors && $MAR convert demo-vae vae.safetensors && "
             "cp -r whole part && rm part/000001.png && cp -r part before");
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char line[500];
        snprintf(line, sizeof line, "%s --out part --resume", cases[i].command);
        expect(d, line, 1, NULL, cases[i].says);
        shell(d, "diff -r before part");
    }
    /* One with more options than this run. */
    command_ok(d, "generate --class 3 --num 2 --head_spec 4 --quiet --out spec" QUICK);
    expect(d, "generate --class 3 --num 2 --out spec --resume" QUICK, 1, NULL,
           "spec/000000.png: head_spec is 4, expected no such text: ");
}

/* Drafts of the model itself: what is missing comes out the same, whatever the batches and however it is asked for;
 * another gamma is another run, and so is a draft model. */
static void own_drafts(void **state)
{
    const char *d = *state;
#define OWN "generate --class 3,1 --num 2 --num_iter 8 --num_sampling_steps 6 --quiet "
    command_ok(d, OWN "--draft self --batch 4 --out own");
    shell(d, "cp -r own part && rm part/000001.png part/000002.png");
    command_ok(d, OWN "--spec path --batch 1 --out part --resume");
    shell(d, "diff -r own part && rm part/000002.png");
    expect(d, OWN "--draft self --gamma auto --out part --resume", 1, NULL, "gamma is 8, expected auto: ");
    expect(d, OWN "--draft demo-draft --spec path --out part --resume", 1, NULL,
           "draft is self, expected demo-draft: ");
    expect(d, OWN "--head_dtype f32 --out part --resume", 1, NULL, "draft is self, expected no such text: ");
#undef OWN
}

/* Two models of one name, as the official ones have, are told apart by what is in them. */
static void another_model_of_the_same_name(void **state)
{
    const char *d = *state;
    shell(d, "mkdir a b && $MAR convert demo a/m.safetensors && cp a/m.safetensors b/m.safetensors && "
             "size=$(wc -c <b/m.safetensors) && "
             "dd if=b/m.safetensors bs=$((size / 2)) count=1 iflag=fullblock 2>/dev/null >b/n && "
             "dd if=/dev/zero bs=8192 count=1 2>/dev/null >>b/n && "
             "tail -c +$((size / 2 + 8193)) b/m.safetensors >>b/n && mv b/n b/m.safetensors");
    command_ok(d, "generate --model a/m.safetensors --vae demo --class 1 --num 2 --quiet --out images" QUICK);
    shell(d, "cp a/m.safetensors m.safetensors");
    expect(d, "generate --model m.safetensors --vae demo --class 1 --num 2 --out images --resume" QUICK, 0,
           "all 2 images", NULL);
    expect(d, "generate --model b/m.safetensors --vae demo --class 1 --num 2 --out images --resume" QUICK, 1, NULL,
           "images/000000.png: model_id is ");
}

/* Any weight counts: the file is that of the images but for one bit. */
static void one_weight_differs(void **state)
{
    enum { PLACES = 24 };
    const char *d = *state;
    size_t size;
    command_ok(d, "convert demo m.safetensors");
    command_ok(d, "generate --model m.safetensors --vae demo --class 1 --num 1 --quiet --out images" QUICK);
    char *whole = read_whole_file(d, "m.safetensors", &size);
    for (size_t i = 0; i < PLACES; i++) {
        const size_t at = size - 4 - (i * (size / 2) / PLACES & ~(size_t)3); /* behind the header */
        whole[at] ^= 1;
        write_whole_file(d, "m.safetensors", whole, size);
        expect(d, "generate --model m.safetensors --vae demo --class 1 --num 1 --out images --resume" QUICK, 1, NULL,
               "images/000000.png: model_id is ");
        whole[at] ^= 1;
    }
    write_whole_file(d, "m.safetensors", whole, size);
    free(whole);
    expect(d, "generate --model m.safetensors --vae demo --class 1 --num 1 --out images --resume" QUICK, 0,
           "the image was there already", NULL);
}

/* Every name of a built-in model works where it belongs, and needs no file. */
static void built_in_by_any_name(void **state)
{
    const char *d = *state;
    command_ok(d, "convert demo m.safetensors");
    command_ok(d, "generate --model m.safetensors --vae demo-vae --class 1 --num 1 --quiet --out images" QUICK);
    expect(d, "generate --model m.safetensors --vae demo-vae --class 1 --num 1 --out images --resume" QUICK, 0,
           "the image was there already", NULL);
}

/* Files with an image's name that are no images of ours. */
static void files_of_others(void **state)
{
    static const struct {
        const char *make, *says;
    } cases[] = {
        {": >part/000001.png", "part/000001.png: is not a whole PNG ("},
        {"head -c 1000 whole/000001.png >part/000001.png", "part/000001.png: is not a whole PNG ("},
        {"head -c -1 whole/000001.png >part/000001.png", "part/000001.png: is not a whole PNG ("},
        {"cp whole/grid.png part/000001.png", "part/000001.png: has 100x100 pixels, expected 32x32 of RGB"},
        {"cp whole/000002.png part/000001.png", "part/000001.png: image is 2, expected 1: "},
        {"cp whole/000002.png part/000009.png", "part/000009.png: is not an image of this run"},
        {"mkdir part/000001.png", "part/000001.png: is not a regular file, expected a PNG or no such file\n"},
        {"mkfifo part/000001.png", "part/000001.png: is not a regular file, expected a PNG or no such file\n"},
        {"ln -s nowhere part/000001.png", "part/000001.png: cannot read: No such file or directory\n"},
    };
    const char *d = *state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char line[500];
        snprintf(line, sizeof line,
                 "rm -rf part before && cp -r whole part && rm part/000001.png part/000003.png && %s "
                 "&& cp -a part before",
                 cases[i].make);
        shell(d, line);
        expect(d, RUN "--out part --resume", 1, NULL, cases[i].says);
        shell(d, "rm -f $(find part before ! -type f ! -type d) && diff -r before part");
    }
    shell(d, "rm -rf part && cp -r whole part && rm part/000001.png && echo hello >part/notes.txt");
    command_ok(d, RUN "--out part --resume --quiet"); /* other files are nobody's business */
    shell(d, "rm part/notes.txt && diff -r whole part");
}

/* After a signal, and after a crash. */
static void after_an_interruption(void **state)
{
    static const int signals[] = {SIGINT, SIGTERM, SIGHUP, SIGKILL};
    const char *d = *state;
    enum { MANY = 200 };
    char path[4096];
    command_ok(d, "generate --class 1,2 --num 100 --quiet --out many" QUICK);
    snprintf(path, sizeof path, "%s/cut", d);
    for (int i = 0; i < 4; i++) {
        for (int turns = 0; turns < 3; turns++) {
            const pid_t child = fork();
            assert_true(child >= 0);
            if (child == 0) {
                if (chdir(d) != 0 || !freopen("/dev/null", "w", stderr)) _exit(127);
                signal(SIGINT, SIG_DFL);
                signal(SIGHUP, SIG_DFL);
                execl(getenv("MAR_COMMAND"), "mar", "generate", "--class", "1,2", "--num", "100", "--quiet", "--batch",
                      "3", "--num_iter", "3", "--num_sampling_steps", "6", "--out", "cut", "--resume", (char *)NULL);
                _exit(127);
            }
            struct stat st;
            const int before = stat(path, &st) == 0 ? count_files(path) : 0;
            int status, over = 0;
            while (!over && (stat(path, &st) != 0 || count_files(path) < before + 5)) {
                over = waitpid(child, &status, WNOHANG) == child;
                usleep(1000);
            }
            if (!over) {
                kill(child, signals[i]);
                waitpid(child, &status, 0);
            }
            const int said = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
            if (said != 0) assert_int_equal(said, 128 + signals[i]);
            if (said == 0) assert_int_equal(count_files(path), MANY);
        }
        command_ok(d, "generate --class 1,2 --num 100 --quiet --out cut --resume" QUICK);
        shell(d, "diff -r many cut && rm -r cut");
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(two_runs, setup, command_teardown),
        cmocka_unit_test_setup_teardown(holes, setup, command_teardown),
        cmocka_unit_test_setup_teardown(what_is_said, setup, command_teardown),
        cmocka_unit_test_setup_teardown(a_longer_run, command_setup, command_teardown),
        cmocka_unit_test_setup_teardown(another_run, setup, command_teardown),
        cmocka_unit_test_setup_teardown(own_drafts, setup, command_teardown),
        cmocka_unit_test_setup_teardown(another_model_of_the_same_name, command_setup, command_teardown),
        cmocka_unit_test_setup_teardown(one_weight_differs, command_setup, command_teardown),
        cmocka_unit_test_setup_teardown(built_in_by_any_name, command_setup, command_teardown),
        cmocka_unit_test_setup_teardown(files_of_others, setup, command_teardown),
        cmocka_unit_test_setup_teardown(after_an_interruption, command_setup, command_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
