/* mar generate --resume. A directory becomes what one run makes, byte by byte, for any missing images. Images of
 * another run stay as they are, unless --overwrite is given. */
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

/* Checks that a run succeeds and prints this text on stdout. */
static void says(const char *directory, const char *arguments, const char *out)
{
    command_result r = command_mar(directory, "%s", arguments);
    if (r.status != 0 || *r.err || !strstr(r.out, out))
        fail_msg("%s: exit status %d, \"%s\", \"%s\"; expected \"%s\"", arguments, r.status, r.out, r.err, out);
    command_result_free(&r);
}

/* Checks that a run is refused in one line and makes nothing. */
static void refused(const char *directory, const char *arguments, const char *part)
{
    command_refuses(directory, &(const refusal){arguments, part, ""}, 1);
}

/* Makes the whole run once for all tests. */
static int make_whole(void **state)
{
    if (command_setup(state) != 0) return 1;
    command_ok(*state, RUN "--out whole --grid --quiet");
    return 0;
}

/* The times of --window auto are those of the images that are there. */
COMMAND_CASE(times_are_taken_from_the_images)
{
    const char *d = *state;
    const char run[] = "generate --model demo-discrete --class 3 --num 3 --spec sjd --window auto --quiet --out auto";
    command_ok(d, "%s", run);
    sh_ok(d, "cp -r auto before && rm auto/000000.png auto/000001.png");
    command_ok(d, "%s --resume", run);
    sh_ok(d, "diff -r auto before && grep -aq round_costs auto/000001.png");
    refused(d,
            "generate --model demo-discrete --class 3 --num 3 --spec sjd --window auto --out auto --resume "
            "--round_costs 1,1,1,7",
            "expected 1,1,1,7: a directory has images of one run only");
    command_ok(d, "generate --like before/000001.png --window 4 --out four.png --quiet");
    sh_ok(d, "! grep -aq round_costs four.png");
}

/* The standard times of the default depend on no run and on no batch. */
COMMAND_CASE(standard_times)
{
    static const char *const runs[] = {"--spec sjd", "--spec sjd-pac", "--draft demo-discrete-draft"};
    const char *d = *state;
    for (size_t i = 0; i < LENGTH(runs); i++) {
        static const char *const outs[] = {"--batch 3 --out once", "--batch 3 --out twice", "--batch 1 --out alone"};
        for (size_t k = 0; k < LENGTH(outs); k++)
            command_ok(d, "generate --model demo-discrete --class 3 --num 3 --quiet %s %s", runs[i], outs[k]);
        sh_ok(d, "diff -r once twice && diff -r once alone && grep -aq round_costs once/000001.png");
        sh_ok(d, "rm -r once twice alone");
    }
}

/* The times of --head_spec auto are taken from the images, too. */
COMMAND_CASE(times_of_the_head_are_taken_from_the_images)
{
    const char *d = *state;
    const char run[] = "generate --class 3 --num 3 --num_iter 8 --head_spec auto --quiet --out heads";
    command_ok(d, "%s", run);
    sh_ok(d, "cp -r heads made && rm heads/000000.png heads/000001.png");
    command_ok(d, "%s --resume", run);
    sh_ok(d, "diff -r heads made && grep -aq head_costs heads/000001.png");
    refused(d, "generate --class 3 --num 3 --num_iter 8 --head_spec auto --out heads --resume --head_costs 1,1,1,7",
            "expected 1,1,1,7: a directory has images of one run only");
    command_ok(d, "generate --like made/000001.png --out like.png --quiet");
    command_ok(d, "generate --like made/000001.png --head_spec 4 --out four.png --quiet");
    sh_ok(d, "cmp like.png made/000001.png && ! grep -aq head_costs four.png");
}

/* And those of --spec path --gamma auto. */
COMMAND_CASE(times_of_paths_are_taken_from_the_images)
{
    const char *d = *state;
    const char run[] = "generate --class 3 --num 3 --num_iter 8 --spec path --gamma auto --quiet --out paths";
    command_ok(d, "%s", run);
    sh_ok(d, "cp -r paths made && rm paths/000000.png paths/000001.png");
    command_ok(d, "%s --resume", run);
    sh_ok(d, "diff -r paths made && grep -aq round_costs paths/000001.png");
    refused(d, "generate --class 3 --num 3 --num_iter 8 --spec path --gamma auto --out paths --resume --round_costs 7",
            "expected 7: a directory has images of one run only");
    command_ok(d, "generate --like made/000001.png --out like.png --quiet");
    command_ok(d, "generate --like made/000001.png --gamma 4 --out four.png --quiet");
    sh_ok(d, "cmp like.png made/000001.png && ! grep -aq round_costs four.png");
}

/* Checks that images of two runs never share a directory. The second run is refused, or the images are removed first.
 * */
COPY_CASE(two_runs)
{
    const char *d = *state;
    sh_ok(d, "cp -r whole before");
    refused(d, "generate --class 2" QUICK "--out whole --model absent.pth --vae demo",
            "mar: whole: has 000000.png and 9 more, expected --resume to go on with it, --overwrite to "
            "replace it, or another --out\n");
    refused(d, RUN "--out whole --num_iter 5",
            "whole/000000.png: num_iter is 3, expected 5: a directory has images of "
            "one run only, --overwrite replaces them\n");
    refused(d, RUN "--out whole --class 3,1,4,5", "mar: whole: has 000000.png and 9 more, expected --resume");
    refused(d, RUN "--out whole --seed 6", "mar: whole: has 000000.png and 9 more, expected --resume");
    refused(d, RUN "--out whole --overwrite --resume", "mar: --overwrite: replaces the images that --resume keeps");
    refused(d, RUN "--out one.png --overwrite", "mar: --overwrite: --out is one.png, expected a directory");
    sh_ok(d, "diff -r whole before");
    refused(d, "generate --class 2" QUICK "--out whole --overwrite --draft absent", "absent");
    sh_ok(d, "diff -r whole before && echo mine >whole/mine.png && echo mine >whole/1.png"); /* no image was removed */
    command_ok(d, "generate --class 2 --num 2" QUICK "--out whole --overwrite --quiet");
    sh_ok(d, "test \"$(ls whole | tr '\\n' ' ')\" = '000000.png 000001.png 1.png mine.png '");
    sh_ok(d, "mkdir other && touch other/grid.png && ! $MAR generate" QUICK "--num 1 --out other 2>err && grep -q "
             "'other: has grid.png, expected' err");
}

/* Checks that a finished run that is repeated says so, and changes nothing. */
COPY_CASE(a_repeated_run)
{
    const char *d = *state;
    sh_ok(d, "cp -rp whole repeated");
    says(d, RUN "--out repeated",
         "repeated: the run is finished, all 9 images were there already; --overwrite makes them again\n");
    sh_ok(d, "diff -r whole repeated && test \"$(stat -c %%Y whole/000008.png)\" = \"$(stat -c %%Y "
             "repeated/000008.png)\" && rm -r repeated");
}

/* Checks that --resume is named only where it is taken: not for pictures whose text is not read, nor for a run whose
 * map or seed is new each time. */
COPY_CASE(what_cannot_be_resumed)
{
    static const char *const runs[] = {RUN "--out whole --format jpeg", RUN "--out whole --seed random",
                                       RUN "--out whole --draft self --accept_map m.png"};
    static const char expected[] = "mar: whole: has 000000.png and 9 more, expected --overwrite to replace it, or "
                                   "another --out\n";
    const char *d = *state;
    for (size_t i = 0; i < LENGTH(runs); i++) refused(d, runs[i], expected);
    command_ok(d, "generate --class 3 --num 2 --format jpeg --out jpeg --quiet" QUICK);
    refused(d, "generate --class 3 --num 2 --format jpeg --out jpeg" QUICK,
            "mar: jpeg: has 000000.jpg and 1 more, expected --overwrite to replace it, or another --out\n");
    refused(d, "generate --class 3 --num 2 --out jpeg" QUICK, "000000.jpg and 1 more, expected --overwrite");
}

/* Checks that a repeated --like is known to be finished, too. */
COPY_CASE(a_repeated_like)
{
    const char *d = *state;
    command_ok(d, "generate --like whole/000004.png --out like --quiet");
    sh_ok(d, "cmp like/000004.png whole/000004.png");
    says(d, "generate --like whole/000004.png --out like",
         "like: the run is finished, the image was there already; --overwrite makes it again\n");
    refused(d, "generate --like whole/000005.png --out like", "mar: like: has 000004.png, expected --resume");
    refused(d, "generate --like whole/000004.png --num_iter 4 --out like",
            "like/000004.png: num_iter is 3, expected 4: ");
    sh_ok(d, "cmp like/000004.png whole/000004.png && rm -r like");
}

/* Removes images, with any batch. */
COPY_CASE(holes)
{
    static const struct {
        const char *missing;
        int batches[2];
    } cases[] = {{"000000", {1, 16}},
                 {"000008", {2, 4}},
                 {"000004", {1, 4}},
                 {"000001 000002 000005 000007", {2, 16}},
                 {"000003 000004 000005 000006 000007 000008", {4, 1}}};
    const char *d = *state;
    for (size_t i = 0; i < LENGTH(cases); i++)
        for (int b = 0; b < 2; b++)
            sh_ok(d,
                  "rm -rf part && cp -r whole part && rm part/grid.png && for f in %s; do rm part/$f.png; done && "
                  "$MAR " RUN "--out part --grid --resume --quiet --batch %d && diff -r whole part",
                  cases[i].missing, cases[i].batches[b]);
    sh_ok(d, "$MAR " RUN "--out new/part --grid --resume --quiet && diff -r whole new/part"); /* all are missing */
}

/* Checks that the summary and the record state the number of existing images. */
COPY_CASE(what_is_said)
{
    const char *d = *state;
    sh_ok(d, "cp -r whole part && rm part/000002.png part/000006.png");
    says(d, RUN "--out part --resume", ", 7 were there already\n");
    says(d, RUN "--out part --resume", "part: all 9 images were there already\n");
    says(d, RUN "--out part --resume --json", "\"images_existing\":9,");
    says(d, RUN "--out part --resume --json", "\"seconds_per_image\":null");
    says(d, RUN "--out part --overwrite --json", "\"images_existing\":0,");
    sh_ok(d, "rm part/000006.png");
    says(d, RUN "--out part --resume --json", "\"images_existing\":8,");
    says(d, RUN "--out part --resume --grid", "part: all 9 images were there already, wrote grid.png\n");
    command_ok(d, "generate --class 3 --num 1 --quiet --out one" QUICK);
    says(d, "generate --class 3 --num 1 --out one --resume" QUICK, "one: the image was there already\n");
    sh_ok(d, "diff -r whole part");
}

/* Checks that more images are a longer run for one class. For several classes they change the order of the numbers. */
COMMAND_CASE(a_longer_run)
{
    const char *d = *state;
    command_ok(d, "generate --class 3 --num 6 --quiet --out six" QUICK);
    command_ok(d, "generate --class 3 --num 4 --quiet --out four" QUICK);
    command_ok(d, "generate --class 3 --num 6 --quiet --out four --resume" QUICK);
    sh_ok(d, "diff -r six four");
    refused(d, "generate --class 3 --num 4 --quiet --out six --resume" QUICK,
            "is not an image of this run, which has numbers up to 3");
}

/* A run other than the one in part, and its refusal. */
typedef struct {
    const char *command, *says;
} change;

static void refuse_changes(const char *d, const change *changes, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        char line[500];
        snprintf(line, sizeof line, "%s --out part --resume", changes[i].command);
        refused(d, line, changes[i].says);
        sh_ok(d, "diff -r before part");
    }
}

/* Checks that every option that changes the picture is compared, and that nothing is written. */
COPY_CASE(another_run)
{
    static const change cases[] = {
        {"generate --class 3,1,4 --num 3 --seed 6" QUICK, "part/000000.png: seed is 5, expected 6: "},
        {"generate --class 3,1,5 --num 3 --seed 5" QUICK, "part/000006.png: class is 4, expected 5: "},
        {"generate --class 3,1 --num 5 --seed 5" QUICK, "part/000003.png: class is 1, expected 3: "},
        {"generate --class 3,1,4 --num 2 --seed 5" QUICK, "which has numbers up to 5: "},
        {RUN "--num_iter 4", "part/000000.png: num_iter is 3, expected 4: "},
        {RUN "--cfg 2", "cfg is 2.9, expected 2: "},
        {RUN "--temperature 0.9", "temperature is 1, expected 0.9: "},
        {RUN "--head_spec 8", "part/000000.png: has no text head_spec, expected 8: "},
        {RUN "--model demo-draft", "part/000000.png: model is demo, expected demo-draft: "},
        {RUN "--model demo.safetensors --vae demo", "model is demo, expected demo.safetensors: "},
        {RUN "--vae vae.safetensors", "vae is demo, expected vae.safetensors: "},
        {RUN "--draft demo-draft --gamma 1", "has no text draft, expected demo-draft: "},
        {RUN "--draft self", "has no text draft, expected self: "},
    };
    static const change of_bf16[] = {
        {RUN "--dtype f32", ", expected cpu f32"},
        {RUN "--head_dtype f32", ", expected cpu bf16, head f32"},
        {RUN "--dtype int8", ", expected cpu int8, bf16 ("},
        {RUN "--dtype int8 --int8_below 500", ", expected cpu int8, bf16, head int8 below 500 ("},
        {RUN "--dtype int8 --head_dtype bf16", ", expected cpu int8, bf16, head bf16 ("},
    };
    static const change of_f32[] = {
        {RUN "--dtype bf16", ", expected cpu bf16"},
        {RUN "--dtype bf16 --head_dtype f32", ", expected cpu bf16, head f32"},
        {RUN "--dtype int8", ", expected cpu int8, f32 ("},
        {RUN "--dtype int8 --int8_below 500", ", expected cpu int8, f32, head int8 below 500 ("},
        {RUN "--dtype int8 --head_dtype f32", ", expected cpu int8, f32, head f32 ("},
    };
    const char *d = *state;
    sh_ok(d, "$MAR convert demo demo.safetensors && $MAR convert demo-vae vae.safetensors && "
             "cp -r whole part && rm part/000001.png && cp -r part before");
    refuse_changes(d, cases, LENGTH(cases));
    if (command_auto_is_bf16(d))
        refuse_changes(d, of_bf16, LENGTH(of_bf16));
    else
        refuse_changes(d, of_f32, LENGTH(of_f32));
    /* A run with more options than this one. */
    command_ok(d, "generate --class 3 --num 2 --head_spec 4 --quiet --out spec" QUICK);
    refused(d, "generate --class 3 --num 2 --out spec --resume" QUICK,
            "spec/000000.png: head_spec is 4, expected no such text: ");
}

/* Tests drafts of the model itself. Missing images come out the same for any batches and either spelling. Another gamma
 * is another run, and so is a draft model. */
COPY_CASE(own_drafts)
{
    const char *d = *state;
#define OWN "generate --class 3,1 --num 2 --num_iter 8 --num_sampling_steps 6 --quiet "
    command_ok(d, OWN "--draft self --gamma 8 --batch 4 --out own");
    sh_ok(d, "cp -r own part && rm part/000001.png part/000002.png");
    command_ok(d, OWN "--spec path --gamma 8 --batch 1 --out part --resume");
    sh_ok(d, "diff -r own part && rm part/000002.png");
    refused(d, OWN "--draft self --gamma 4 --out part --resume", "gamma is 8, expected 4: ");
    refused(d, OWN "--draft demo-draft --spec path --gamma 8 --out part --resume",
            "draft is self, expected demo-draft: ");
    refused(d, OWN "--head_dtype f32 --out part --resume", "draft is self, expected no such text: ");
#undef OWN
}

/* Checks that two models of the same name, like the official ones, are distinguished by their contents. */
COMMAND_CASE(another_model_of_the_same_name)
{
    const char *d = *state;
    sh_ok(d, "mkdir a b && $MAR convert demo a/m.safetensors && cp a/m.safetensors b/m.safetensors && "
             "size=$(wc -c <b/m.safetensors) && "
             "dd if=b/m.safetensors bs=$((size / 2)) count=1 iflag=fullblock 2>/dev/null >b/n && "
             "dd if=/dev/zero bs=8192 count=1 2>/dev/null >>b/n && "
             "tail -c +$((size / 2 + 8193)) b/m.safetensors >>b/n && mv b/n b/m.safetensors");
    command_ok(d, "generate --model a/m.safetensors --vae demo --class 1 --num 2 --quiet --out images" QUICK);
    sh_ok(d, "cp a/m.safetensors m.safetensors");
    says(d, "generate --model m.safetensors --vae demo --class 1 --num 2 --out images --resume" QUICK, "all 2 images");
    refused(d, "generate --model b/m.safetensors --vae demo --class 1 --num 2 --out images --resume" QUICK,
            "images/000000.png: model_id is ");
}

/* Checks that any weight counts: the file differs in one bit. The built-in decoder has two names. */
COMMAND_CASE(one_weight_differs)
{
    enum { PLACES = 8 };
    const char *d = *state;
    size_t size;
    command_ok(d, "convert demo m.safetensors");
    command_ok(d, "generate --model m.safetensors --vae demo-vae --class 1 --num 1 --quiet --out images" QUICK);
    char *whole = read_whole_file(d, "m.safetensors", &size);
    for (size_t i = 0; i < PLACES; i++) {
        const size_t at = size - 4 - (i * (size / 2) / PLACES & ~(size_t)3); /* after the header */
        whole[at] ^= 1;
        write_whole_file(d, "m.safetensors", whole, size);
        refused(d, "generate --model m.safetensors --vae demo-vae --class 1 --num 1 --out images --resume" QUICK,
                "images/000000.png: model_id is ");
        whole[at] ^= 1;
    }
    write_whole_file(d, "m.safetensors", whole, size);
    free(whole);
    says(d, "generate --model m.safetensors --vae demo-vae --class 1 --num 1 --out images --resume" QUICK,
         "the image was there already");
}

/* Tests foreign files that have an image's name. */
COPY_CASE(files_of_others)
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
    for (size_t i = 0; i < LENGTH(cases); i++) {
        sh_ok(d,
              "rm -rf part before && cp -r whole part && rm part/000001.png part/000003.png && %s "
              "&& cp -a part before",
              cases[i].make);
        refused(d, RUN "--out part --resume", cases[i].says);
        sh_ok(d, "rm -f $(find part before ! -type f ! -type d) && diff -r before part");
    }
    sh_ok(d, "rm -rf part && cp -r whole part && rm part/000001.png && echo hello >part/notes.txt");
    command_ok(d, RUN "--out part --resume --quiet"); /* other files are ignored */
    sh_ok(d, "rm part/notes.txt && diff -r whole part");
}

/* Continues after a signal, and after a crash. */
COMMAND_CASE(after_an_interruption)
{
    static const int signals[] = {SIGINT, SIGTERM, SIGHUP, SIGKILL};
    const char *d = *state;
    enum { MANY = 40 };
    char path[4096];
    struct stat st;
    command_ok(d, "generate --class 1,2 --num 20 --quiet --out many" QUICK);
    snprintf(path, sizeof path, "%s/cut", d);
    for (int i = 0; i < 4; i++) {
        for (int turns = 0; turns < 3; turns++) {
            const int before = stat(path, &st) == 0 ? count_files(path) : 0;
            const pid_t child =
                command_start(d, "generate --class 1,2 --num 20 --quiet --batch 3 --out cut --resume" QUICK);
            siginfo_t over = {0};
            while (!over.si_pid && (stat(path, &st) != 0 || count_files(path) < before + 5)) {
                waitid(P_PID, (id_t)child, &over, WEXITED | WNOHANG | WNOWAIT);
                usleep(1000);
            }
            kill(child, signals[i]);
            const int status = command_wait(child);
            if (status != 0) assert_int_equal(status, 128 + signals[i]);
            if (status == 0) assert_int_equal(count_files(path), MANY);
        }
        sh_ok(d,
              "$MAR generate --class 1,2 --num 20 --quiet --out cut --resume" QUICK "&& diff -r many cut && rm -r cut");
    }
}

TEST_GROUP(make_whole, command_teardown)
