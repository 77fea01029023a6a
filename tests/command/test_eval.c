/* mar eval of a model. The numbers have the same bits for any number of processes. Other settings, damage, links and
 * foreign files are recognised. */
#include "tests/support/brief.h"
#include "tests/support/command.h"
#include "tests/support/inception.h"

#include "eval/order.h"
#include "tools/images/image.h"
#include "weights/npz.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define QUICK " --num_iter 2 --num_sampling_steps 2 "
#define RUN   "eval --num_images 20 --batch 2 --shard_images 4 --seed 3" QUICK

enum { IMAGES = 20, DRAWN = 50, SIDE = 32, BYTES = SIDE * SIDE * 3 };

/* Makes the whole run once for all tests. */
static int setup(void **state)
{
    if (command_setup(state) != 0) return 1;
    command_ok(*state, RUN "--out whole --quiet");
    return 0;
}

/* Processes that go on with a run of --window auto have the times that it was begun with. */
static void times_are_taken_from_the_settings(void **state)
{
#define AUTO "eval --model demo-discrete --class 1 --spec sjd --window auto --num_images 4 --batch 2 --out auto"
    command_ok(*state, AUTO " -q");
    sh_ok(*state, "grep -q round_costs auto/settings.json && rm auto/result.json");
    command_ok(*state, AUTO " -q");
    command_refused(*state, "$MAR " AUTO " --round_costs 1,1,1,7", "was begun with --round_costs ",
                    "this is --round_costs 1,1,1,7");
#define HEAD "eval --class 1 --num_iter 8 --head_spec auto --num_images 4 --batch 2 --out heads"
    command_ok(*state, HEAD " -q");
    sh_ok(*state, "grep -q head_costs heads/settings.json && rm heads/result.json");
    command_ok(*state, HEAD " -q");
    command_refused(*state, "$MAR " HEAD " --head_costs 1,1,1,7", "was begun with --head_costs ",
                    "this is --head_costs 1,1,1,7");
#define PATHS "eval --class 1 --num_iter 8 --spec path --gamma auto --num_images 4 --batch 2 --out paths"
    command_ok(*state, PATHS " -q");
    sh_ok(*state, "grep -q round_costs paths/settings.json && rm paths/result.json");
    command_ok(*state, PATHS " -q");
    command_refused(*state, "$MAR " PATHS " --round_costs 7", "was begun with --round_costs ",
                    "this is --round_costs 7");
}

/* --- how the work is divided ---------------------------------------------------------------------------- */

/* Runs one process after the other. The last one merges, or --merge does. */
static void shards(void **state)
{
    static const int counts[] = {1, 2, 16};
    const char *d = *state;
    for (size_t c = 0; c < LENGTH(counts); c++) {
        if (!test_all && (test_brief ? c != 1 : c == 0)) continue;
        for (int i = counts[c]; i >= 1; i--) {
            command_result r = command_mar(d, RUN "--out part --shard %d/%d", i, counts[c]);
            if (r.status != 0 || (i > 1 ? *r.out || !strstr(r.err, " more (") : !strstr(r.out, "protocol: ")))
                fail_msg("%d/%d: exit status %d, \"%s\", \"%s\"", i, counts[c], r.status, r.out, r.err);
            command_result_free(&r);
        }
        assert_same_run(d, "whole", "part");
        sh_ok(d, "rm part/result.json && $MAR eval --out part --merge --quiet");
        assert_same_run(d, "whole", "part");
        sh_ok(d, "(cd whole && ls runs/*) >a && (cd part && ls runs/*) >b && cmp a b && rm -r part");
    }
}

/* Runs shards at the same time. A plain run makes the images that are missing at the end. */
static void shards_at_a_time(void **state)
{
    const char *d = *state;
    sh_ok(d, "for i in 1 2 3; do $MAR " RUN "--out part --shard $i/3 --quiet & done; wait; test -f part/result.json");
    assert_same_run(d, "whole", "part");
    sh_ok(d, "$MAR " RUN "--out rest --shard 2/3 --quiet && $MAR " RUN "--out rest --quiet");
    assert_same_run(d, "whole", "rest");
}

/* Tests ranks given by mpirun's environment. The command is moved to a place without MPI. */
static void ranks(void **state)
{
    const char *d = *state;
    sh_ok(d, "cp $MAR alone && ln -s \"$(dirname $MAR)/share\" share && for n in 1 2 3; do rm -rf part; for i in $(seq "
             "0 $((n - "
             "1))); do "
             "PMI_SIZE=$n PMI_RANK=$i ./alone " RUN "--out part & done >lines; wait; "
             "test $(grep -c '^protocol: ' lines) = 1 || { cat lines; exit 1; }; mv part ranks.$n; done");
    assert_same_run(d, "whole", "ranks.1");
    assert_same_run(d, "whole", "ranks.2");
    assert_same_run(d, "whole", "ranks.3");
}

/* Checks that a finished run is printed again but not made again, and that --merge works any number of times. */
static void finished_runs(void **state)
{
    const char *d = *state;
    sh_ok(d,
          "cp -r whole before && $MAR " RUN "--out whole >lines 2>said && grep -q '^protocol: ' lines && "
          "test \"$(cat said)\" = 'mar: whole: the run is finished, these are its numbers' && "
          "test \"$(tail -n 1 lines)\" = 'report: whole/report.html' && diff -r whole before -x lock && rm -r before");
    sh_ok(d, "cp -r whole again && $MAR eval --out again --merge --quiet");
    assert_same_run(d, "whole", "again");
    sh_ok(d, "$MAR " RUN "--out whole --json >json && grep -q '\"numbers\":{\"fid\":' json");
}

/* Checks the number of processes in the result of a resumed run: those that worked at the same time. */
static void processes(void **state)
{
    const char *d = *state;
    sh_ok(d, "cp -r whole again && rm again/result.json again/runs/*/00001?-*.features-* && $MAR " RUN
             "--out again --quiet && grep -q '\"processes\":.1,' again/result.json");
    sh_ok(d, "$MAR " RUN "--out two --shard 1/2 --quiet && $MAR " RUN
             "--out two --shard 2/2 --quiet && grep -q '\"processes\":.2,' two/result.json");
}

/* --- runs begun with other settings --------------------------------------------------------------------- */

typedef struct {
    const char *options, *says;
} setting;

static void refuse_settings(const char *directory, const setting *cases, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        char line[500];
        snprintf(line, sizeof line, "$MAR " RUN "--out whole %s", cases[i].options);
        command_refused(directory, line, cases[i].says, "");
    }
}

/* What --dtype auto is depends on the processor. */
static void other_dtypes(const char *directory)
{
    static const setting of_bf16[] = {
        {"--dtype f32", "was begun with arithmetic cpu bf16"},
        {"--head_dtype f32", "this is arithmetic cpu bf16, head f32"},
        {"--dtype int8", "this is arithmetic cpu int8, bf16 ("},
        {"--dtype int8 --int8_below 500", "this is arithmetic cpu int8, bf16, head int8 below 500 ("},
    };
    static const setting of_f32[] = {
        {"--dtype int8", "was begun with arithmetic cpu f32"},
        {"--dtype int8 --head_dtype f32", "this is arithmetic cpu int8, f32, head f32 ("},
        {"--dtype int8 --int8_below 500", "this is arithmetic cpu int8, f32, head int8 below 500 ("},
    };
    if (command_auto_is_bf16(directory))
        refuse_settings(directory, of_bf16, LENGTH(of_bf16));
    else
        refuse_settings(directory, of_f32, LENGTH(of_f32));
}

static void other_settings(void **state)
{
    static const setting cases[] = {
        {"--cfg 4", "whole: was begun with --cfg 2.9, this is --cfg 4; use another --out"},
        {"--seed 4", "was begun with --seed 3, this is --seed 4"},
        {"--num_iter 3", "was begun with --num_iter 2, this is --num_iter 3"},
        {"--head_spec 8", "was begun with no --head_spec, this is --head_spec 8"},
        {"--draft demo-draft", "was begun with no --draft, this is --draft demo-draft"},
        {"--draft self", "was begun with no --draft, this is --draft self"},
        {"--num_images 19", "was begun with --num_images 20, this is --num_images 19"},
        {"--batch 1", "was begun with --batch 2, this is --batch 1"},
        {"--shard_images 6", "was begun with --shard_images 4, this is --shard_images 6"},
        {"--class 1-3", "was begun with --class all 10, this is --class 1,2,3"},
        {"--class_sampling random", "was begun with --class_sampling balanced, this is --class_sampling random"},
        {"--model demo-draft", "was begun with --model demo, this is --model demo-draft"},
        {"--vae vae.safetensors", "was begun with --vae demo, this is --vae vae.safetensors"},
        {"--save_npz", "was begun with no --save_npz, this is --save_npz"},
        {"--save_images", "was begun with no --save_images, this is --save_images"},
    };
    const char *d = *state;
    sh_ok(d, "$MAR convert demo-vae vae.safetensors --quiet 2>/dev/null || $MAR convert demo-vae vae.safetensors; "
             "cp -r whole before");
    refuse_settings(d, cases, LENGTH(cases));
    other_dtypes(d);
    command_refused(d, "$MAR eval --out whole --merge --cfg 4", "was begun with --cfg 2.9, this is --cfg 4", "");
    command_refused(d, "$MAR eval --out whole --merge --stats other.npz", "other.npz", "");
    sh_ok(d, "diff -r whole before -x lock");
}

#define JUDGED "eval --num_images 8 --class 0-3 --batch 2 --shard_images 2 --seed 3 --inception small.safetensors" QUICK

static void protocol_says(const char *directory, const char *run, const char *words)
{
    char *text = numbers_of_run(directory, run);
    assert_has(text, words);
    free(text);
}

/* Checks that Inception-v3 runs in f32 by default. Its arithmetic is a setting, and --merge takes it over. */
static void arithmetic(void **state)
{
    const char *d = *state;
    char path[600];
    wt_file *golden = golden_open("inception");
    snprintf(path, sizeof path, "%s/small.safetensors", d);
    inception_write(golden, "small", path);
    wt_close(golden);
    sh_ok(d,
          "$MAR " JUDGED "--out f32 --quiet && $MAR " JUDGED "--out same --features_dtype f32 --shard 1/2 --quiet && "
          "$MAR " JUDGED "--out same --quiet");
    assert_same_run(d, "f32", "same");
    protocol_says(d, "f32", "features inception-v3 in f32, small.safetensors (");
    sh_ok(d, "grep -q '\"features_dtype\":.*\"f32\"' f32/settings.json && rm same/result.json && "
             "$MAR eval --out same --merge --inception small.safetensors --quiet");
    assert_same_run(d, "f32", "same");
    command_refused(d, "$MAR eval --out f32 --merge --inception small.safetensors --features_dtype bf16",
                    "f32: was begun with --features_dtype f32, this is --features_dtype bf16", "");
    mar *bf16 = open_mar(MAR_DTYPE_BF16, 1);
    if (!bf16) { /* this processor lacks bf16 */
        command_refused(d, "$MAR " JUDGED "--out bf16 --features_dtype bf16", "mar: --features_dtype bf16: ", "");
        return;
    }
    mar_close(bf16);
    command_refused(d, "$MAR " JUDGED "--out f32 --features_dtype bf16",
                    "f32: was begun with --features_dtype f32, this is --features_dtype bf16; use another --out", "");
    sh_ok(d, "$MAR " JUDGED "--out bf16 --features_dtype bf16 --quiet && cp -r bf16 again && rm again/result.json && "
             "$MAR eval --out again --merge --inception small.safetensors --quiet");
    assert_same_run(d, "bf16", "again");
    protocol_says(d, "again", "features inception-v3 in bf16, small.safetensors (");
    char *one = numbers_of_run(d, "f32"), *other = numbers_of_run(d, "bf16");
    assert_string_not_equal(one, other);
    free(one);
    free(other);
    /* For images, f32 and bf16 are distinguished as before. */
    sh_ok(d, "$MAR " JUDGED "--out f32.f32 --dtype f32 --quiet && $MAR " JUDGED
             "--out f32.bf16 --dtype f32 --features_dtype bf16 --quiet");
    protocol_says(d, "f32.f32", "features inception-v3 in f32, ");
    protocol_says(d, "f32.bf16", "features inception-v3 in bf16, ");
}

/* Checks that a run notices a change in the files of its reference folder. */
static void changed_folder(void **state)
{
    static const struct {
        const char *change, *back;
    } cases[] = {{"touch -d 2001-01-01 real/000003.png", "mv kept real/000003.png"},
                 {"mv real/000003.png real/000033.png", "rm real/000033.png; mv kept real/000003.png"},
                 {"cp real/000003.png real/000010.png", "rm real/000010.png"},
                 {"rm real/000009.png; cp -p real/000003.png real/000009.png", "mv last real/000009.png"}};
    const char *d = *state;
    sh_ok(d, "$MAR generate --num 1 --out real --quiet" QUICK "&& $MAR " RUN "--out part --stats real --quiet && "
             "grep -q '\"stats_id\":.*\"10 images, ' part/settings.json");
    for (size_t i = 0; i < LENGTH(cases); i += test_brief ? 3 : 1) {
        char line[300];
        sh_ok(d, "cp -p real/000003.png kept; cp -p real/000009.png last; cp -r part before");
        sh_ok(d, cases[i].change);
        command_refused(d, "$MAR " RUN "--out part --stats real", "part: was begun with stats_id 10 images, ", "");
        command_refused(d, "$MAR eval --out part --merge --stats real",
                        "--stats real: is not what the run was begun with (1", "");
        snprintf(line, sizeof line, "diff -r part before -x lock && rm -r before; %s", cases[i].back);
        sh_ok(d, line);
        sh_ok(d, "$MAR " RUN "--out part --stats real --quiet && echo text >real/notes.txt && "
                 "$MAR eval --out part --merge --stats real --quiet");
    }
    sh_ok(d, "mkdir none");
    command_refused(d, "$MAR " RUN "--out new --stats none", "none: has no PNG", "");
    sh_ok(d, "test ! -e new"); /* before any image was made */
}

/* Checks that --merge accepts the reference of the run and no other. The reference may be a directory of images. */
static void merged_reference(void **state)
{
    const char *d = *state;
    sh_ok(d, "$MAR " RUN "--out made --quiet --save_images && mkdir other && cp -r made/images real && "
             "cp -r made/images other/real && rm other/real/000019.png");
    sh_ok(d, "$MAR " RUN "--out against --quiet --stats real && cp -r against again && "
             "$MAR eval --out again --merge --quiet --stats real");
    assert_same_run(d, "against", "again");
    command_refused(d, "$MAR eval --out again --merge", "again: was begun with --stats real, this is --stats demo", "");
    command_refused(d, "$MAR eval --out again --merge --stats other/real",
                    "other/real: is not what the run was begun with (19", "");
    command_refused(d, "$MAR " RUN "--out again --stats other/real", "was begun with stats_id 20 images", "");
    assert_same_run(d, "against", "again");
}

/* Checks foreign files in a directory that is not a run: files that the run would replace or read. */
static void foreign_files(void **state)
{
    static const char *const names[] = {"result.json", "report.html", "images.npz", "images"};
    const char *d = *state;
    for (size_t i = 0; i < LENGTH(names); i++) {
        char line[400], says[200];
        snprintf(line, sizeof line, "mkdir mine && echo mine >mine/%s && cp -r mine before", names[i]);
        sh_ok(d, line);
        snprintf(says, sizeof says, "mine: has %s but no settings.json", names[i]);
        command_refused(d, "$MAR " RUN "--out mine", says, "");
        sh_ok(d, "diff -r mine before && rm -r mine before");
    }
    /* Results of other settings, whose settings file was lost. */
    sh_ok(d, "cp -r whole lost && rm lost/settings.json && cp -r lost before");
    command_refused(d, "$MAR " RUN "--cfg 2 --out lost", "lost: has result.json but no settings.json", "");
    sh_ok(d, "diff -r lost before");
}

/* Checks settings from others: no number overruns an array or belongs to another network. */
static void hostile_settings(void **state)
{
    static const struct {
        const char *name, *value, *says;
    } cases[] = {
        {"draft_steps", "1000000", "draft_steps is 1000000, expected 0 to 1024"},
        {"draft_steps", "1025", "draft_steps is 1025, expected 0 to 1024"},
        {"draft_steps", "-1", "draft_steps is -1, expected 0 to 1024"},
        {"draft_steps", "\"2\"", "lacks draft_steps, expected what mar eval writes"},
        {"judged", "\"..\\/..\\/x\"", "has no names of pieces in the store"},
        {"images", "\"\"", "has no names of pieces in the store"},
        {"class", "\"1,x\"", "class is \"1,x\", expected a list of classes"},
        {"width", "100000", "width is 100000, expected 0 to 16384"},
        {"height", "0", "is of images of 32x0, expected 1 pixel or more"},
        {"batch", "\"5000\"", "batch is \"5000\", expected 1 to 1024"},
        {"num_images", "\"1\"", "is of 1 images in shards of 4 and batches of 2, expected 2 or more and whole batches"},
        {"shard_images", "\"all\"", "shard_images is \"all\", expected 1 to 1000000"},
        {"classes", "1e300", "classes is 1e+300, expected 0 to 1000000"},
    };
    const char *d = *state;
    for (size_t i = 0; i < LENGTH(cases); i++) {
        char line[400];
        snprintf(line, sizeof line,
                 "rm -rf bad && cp -r whole bad && sed -i 's/\"%s\":.*[^,]/\"%s\":%s/' bad/settings.json",
                 cases[i].name, cases[i].name, cases[i].value);
        sh_ok(d, line);
        command_refused(d, "$MAR eval --out bad --merge", cases[i].says, "");
    }
}

/* Puts links and pipes in place of the run's files. None is waited for, and no link's target is written. */
static void links_and_pipes(void **state)
{
    static const struct {
        const char *line, *command, *says; /* says: NULL if the file is made new */
    } cases[] = {
        {"rm settings.json && mkfifo settings.json", RUN,
         "settings.json: is not a regular file, expected the settings"},
        {"mv settings.json s && ln -s s settings.json", RUN,
         "settings.json: is a link, expected the settings of a run"},
        {"rm settings.json && mkfifo settings.json", "eval --merge ", "settings.json: is not a regular file"},
        {"rm result.json && mkfifo result.json", RUN, "result.json: is not a regular file, expected what mar eval"},
        {"rm lock && ln -s ../precious lock", RUN, "lock: is a link, expected the lock of a run"},
        {"rm lock && mkfifo lock", RUN, "lock: is not a regular file, expected the lock of a run"},
        {"rm lock && ln ../precious lock", RUN, "lock: is no lock of a run, expected another --out"},
        {"echo 7 >lock", RUN, "lock: is no lock of a run, expected another --out"},
        {"mv runs s && ln -s s runs", RUN, "runs: is a link, expected a directory of the run"},
        {"mv runs s && mkfifo runs", RUN, "runs: is no directory, expected one of the run"},
        {"cd runs && r=$(echo *) && mv $r s && ln -s s $r", RUN, "is a link, expected a directory of the run"},
        {"cd runs && r=$(echo *) && mv $r s && ln -s s $r", "eval --merge ", "is a link, expected a directory of the"},
        {"cd runs/* && f=$(ls *features* | head -n 3 | tail -n 1) && rm $f && mkfifo $f", RUN,
         "is not a regular file, expected a piece of this run"},
        {"cd runs/* && f=$(ls *features* | head -n 3 | tail -n 1) && mv $f a && ln -s a $f", RUN,
         "is a link, expected a piece of this run"},
        {"cd runs/* && f=$(ls *.*.npz | grep -v [fp]..t | head -n 1) && rm *features* $f && mkfifo $f", RUN,
         "is not a regular file, expected a piece of this run"},
        {"cd runs/* && f=$(ls *.*.npz | grep -v [fp]..t | head -n 1) && rm *features* $f && ln -s ../../../precious $f",
         RUN, "is a link, expected a piece of this run"},
        {"cd runs/* && f=$(ls *.*.npz | grep -v [fp]..t | head -n 1) && rm *features* $f && ln ../../../precious $f",
         RUN, NULL},
        {"cd runs/* && rm run.json && mkfifo run.json", RUN, "run.json: is not a regular file, expected what a run"},
        {"cd runs/* && rm run.json && ln -s ../../../precious run.json", RUN, "run.json: is a link, expected what a"},
        {"cd runs/* && rm run.json && ln ../../../precious run.json", RUN, NULL},
        {"cd runs/* && rm lock && ln -s ../../../precious lock", RUN, "lock: is a link, expected the lock of a run"},
        {"cd runs/* && rm lock && ln ../../../precious lock", RUN, NULL},
    };
    const char *d = *state;
    sh_ok(d, "seq 1000 >precious && cp precious before");
    for (size_t i = 0; i < LENGTH(cases); i += test_brief ? 3 : 1) {
        char line[600];
        const int merges = strstr(cases[i].command, "--merge") != NULL,
                  result = strstr(cases[i].line, "result") != NULL;
        snprintf(line, sizeof line, "rm -rf bad && cp -r whole bad && cd bad && %s%s",
                 merges || result ? "" : "rm result.json && ", cases[i].line);
        sh_ok(d, line);
        snprintf(line, sizeof line, "timeout 60 $MAR %s --out bad --quiet", cases[i].command);
        if (cases[i].says)
            command_refused(d, line, cases[i].says, "");
        else
            sh_ok(d, line), assert_same_run(d, "whole", "bad");
        sh_ok(d, "cmp precious before");
    }
    /* Links and pipes in place of the pixels' files, in a run that has only its settings. */
    static const char small[] =
        "timeout 60 $MAR eval --num_images 10 --save_npz --save_images --quiet" QUICK "--out bad";
    static const struct {
        const char *line, *says;
    } pixels[] = {
        {"ln -s ../precious bad/images.npz.part", "images.npz.part: is a link, expected the images of the run"},
        {"mkfifo bad/images.npz.part", "images.npz.part: is not a regular file, expected the images"},
        {"ln -s .. bad/images", "images: is a link, expected a directory of the run"},
        {"ln precious bad/images.npz.part", NULL},
    };
    sh_ok(d, "rm -r bad");
    sh_ok(d, small);
    sh_ok(d, "mv bad/settings.json .");
    for (size_t i = 0; i < LENGTH(pixels); i++) {
        sh_ok(d, "rm -r bad && mkdir bad && cp settings.json bad");
        sh_ok(d, pixels[i].line);
        if (pixels[i].says)
            command_refused(d, small, pixels[i].says, "");
        else
            sh_ok(d, small);
        sh_ok(d, "cmp precious before && test ! -e 000000.png");
    }
}

static void wrong_options(void **state)
{
    static const struct {
        const char *options, *says;
    } cases[] = {
        {"--features inception", "--inception is missing, expected Inception-v3's weights"},
        {"--model m.safetensors", "--inception is missing"},
        {"--features demo --inception x.pth", "--inception: has no effect with --features demo"},
        {"--features_dtype f32", "--features_dtype: has no effect with --features demo"},
        {"--features_dtype auto --inception x.pth", "--features_dtype auto: expected f32 or bf16"},
        {"--inception x.pth", "x.pth"},
        {"--stats nowhere.npz", "nowhere.npz"},
        {"--shard 3/2", "--shard is \"3/2\""},
        {"--shard 1", "--shard is \"1\""},
        {"--merge --shard 1/2", "--shard: has no effect with --merge"},
        {"--merge", "nowhere/settings.json: cannot read"},
        {"--num_images 1", "--num_images 1: expected"},
        {"--num_images 5", "--num_images 5: expected one of each of 10 classes"},
        {"--class nine", "nine"},
        {"--class_sampling none", "--class_sampling none: expected"},
        {"--batch 0", "--batch 0: expected"},
        {"--out x.png", "x.png"},
        {"--out -", "-: expected a directory"},
        {"--out /proc/x", "/proc/x"},
        {"--images whole --save_npz", "--save_npz: has no effect with --images"},
        {"--images whole --shard 1/2", "--shard: has no effect with --images"},
        {"--images whole --dtype f32",
         "--dtype: has no effect with --images, which are made already; the arithmetic of "
         "the network that judges is --features_dtype"},
    };
    for (size_t i = 0; i < LENGTH(cases); i++) {
        char arguments[500];
        snprintf(arguments, sizeof arguments, "eval --out nowhere %s", cases[i].options);
        command_refuses(*state, &(const refusal){arguments, cases[i].says, ""}, 1);
    }
}

/* --- damage --------------------------------------------------------------------------------------------- */

/* Changes byte `at` of a file. */
static void flip(const char *directory, const char *name, size_t at)
{
    size_t size;
    char *data = read_whole_file(directory, name, &size);
    assert_true(at < size);
    data[at] ^= 4;
    write_whole_file(directory, name, data, size);
    free(data);
}

/* Writes the name of the first file that matches the pattern to name, char [600]. Returns it. */
static const char *find(const char *directory, const char *pattern, char *name)
{
    char line[300];
    snprintf(line, sizeof line, "ls %s | head -n 1", pattern);
    command_result r = command_run(directory, line);
    if (r.status != 0 || !strchr(r.out, '\n')) fail_msg("%s: no such file", pattern);
    snprintf(name, 600, "%.*s", (int)strcspn(r.out, "\n"), r.out);
    command_result_free(&r);
    return name;
}

/* Checks that a damaged piece is reported and made again, with the same numbers. */
static void damaged_pieces(void **state)
{
    static const char *const kinds[] = {"part/runs/*/000008-000009.*.features-*",
                                        "part/runs/*/000008-000009.????????????????.npz"};
    const char *d = *state;
    char name[600], line[900];
    size_t size;
    sh_ok(d, "cp -r whole part");
    for (int tokens = 0; tokens < 2; tokens++) {
        free(read_whole_file(d, find(d, kinds[tokens], name), &size));
        const size_t places[] = {0, size / 6, size / 3, size / 2, size * 2 / 3, size - 22, size - 1};
        int noticed = 0, count = 0;
        for (size_t i = 0; i < LENGTH(places); i += 2, count++) {
            flip(d, name, places[i]);
            if (!tokens && i == 0)
                sh_ok(d, "$MAR eval --out part --merge 2>err; test $? = 1 && head -n 1 err | grep -q 'npz: is damaged, "
                         "expected images 8 to 9 of this run'");
            sh_ok(d, "rm -f part/result.json");
            if (tokens) sh_ok(d, "rm part/runs/*/000008-*.features-*");
            command_result r = command_mar(d, RUN "--out part --quiet");
            if (r.status != 0) fail_msg("%s, byte %zu: exit status %d, \"%s\"", name, places[i], r.status, r.err);
            noticed += strstr(r.err, "npz: is damaged, expected images 8 to 9 of this run") != NULL;
            command_result_free(&r);
            assert_same_run(d, "whole", "part");
        }
        assert_in_range(noticed, count / 2 + 1, count); /* the rest are dates and the like in zip headers */
        static const char *const cuts[] = {"head -c 0 f >g", "head -c -1 f >g", "{ cat f; seq 1000; } >g",
                                           "cp ../../../whole/runs/*/$o g", "cp ../../../other/runs/*/$f g"};
        sh_ok(d, "rm -rf other && $MAR eval --num_images 20 --batch 2 --seed 4" QUICK "--out other --quiet");
        for (size_t i = 0; i < LENGTH(cuts); i++) {
            snprintf(line, sizeof line,
                     "cd part/runs/* && f=${0##*/} && o=$(ls %s | tail -n 1) && mv $f f && %s && mv g $f && rm f "
                     "../../result.json%s",
                     tokens ? "000006-000007.????????????????.npz" : "000006-*features*", cuts[i],
                     tokens ? " 000008-*.features-*" : "");
            char script[1700];
            snprintf(script, sizeof script, "sh -c '%s' %s", line, name);
            sh_ok(d, script);
            sh_ok(d, "$MAR " RUN "--out part --quiet 2>err && grep -q 'npz: is damaged, expected images 8 to 9' err");
            assert_same_run(d, "whole", "part");
        }
    }
}

/* Damages every piece of features, for one process and for ranks. Each piece is reported once and made again. */
static void many_damaged_pieces(void **state)
{
    const char *d = *state;
    sh_ok(d, "cp $MAR alone && ln -s \"$(dirname $MAR)/share\" share && for n in 1 3; do rm -rf part && cp -r whole "
             "part && rm "
             "part/result.json && for f in "
             "part/runs/*/*.features-*; do : >$f; done; for i in $(seq 0 $((n - 1))); do PMI_SIZE=$n PMI_RANK=$i "
             "./alone " RUN "--out part --quiet & done 2>lines; wait; test $(grep -c 'is damaged' lines) = 10 && "
             "test $(wc -l <lines) = 10 || { cat lines; exit 1; }; mv part many.$n; done");
    assert_same_run(d, "whole", "many.1");
    assert_same_run(d, "whole", "many.3");
}

/* Continues an evaluation that an older mar has begun, with shards. */
static void older_runs(void **state)
{
    const char *d = *state;
    sh_ok(d, "cp -r whole older && rm -r older/runs older/result.json && mkdir older/shards && cp -r older before");
    command_refused(d, "$MAR " RUN "--out older",
                    "older: was begun by an older mar, whose shards this one does not go on with; use another --out",
                    "");
    sh_ok(d, "diff -r older before");
}

static void damaged_settings(void **state)
{
    static const char *const texts[] = {"",
                                        "{",
                                        "[]",
                                        "{}",
                                        "{\"settings\":{}}",
                                        "{\"settings\":{\"cfg\":2},\"facts\":{}}",
                                        "{\"settings\":{\"cfg\":\"2.9\"},\"facts\":{}}"};
    const char *d = *state;
    sh_ok(d, "cp -r whole part");
    for (size_t i = 0; i < LENGTH(texts); i++) {
        write_whole_file(d, "part/settings.json", texts[i], strlen(texts[i]));
        command_refused(d, "$MAR " RUN "--out part", "part", "");
        command_refused(d, "$MAR eval --out part --merge", "part/settings.json: ", "");
    }
}

/* --- pictures ------------------------------------------------------------------------------------------- */

/* Checks that arr_0 has the pixels of the PNGs in the fixed order, and that mar generate makes the same. */
static void pictures(void **state)
{
    const char *d = *state;
    char path[600], why[NPZ_WHY_MAX];
    static uint8_t pixels[BYTES];
    static int order[IMAGES];
    sh_ok(d, "$MAR " RUN "--out all --save_npz --save_images --shard 1/2 --quiet && "
             "$MAR " RUN "--out all --save_npz --save_images --quiet");
    assert_same_run(d, "whole", "all");
    snprintf(path, sizeof path, "%s/all", d);
    assert_int_equal(count_files(path), 7); /* settings, lock, runs, images, images.npz, result.json, report.html */
    snprintf(path, sizeof path, "%s/all/images.npz", d);
    npz *z;
    assert_int_equal(npz_open(path, &z, why), MAR_OK);
    const npz_array *a = npz_find(z, "arr_0");
    assert_non_null(a);
    assert_int_equal(a->rank, 4);
    assert_int_equal(a->shape[0], IMAGES);
    assert_int_equal(a->count, IMAGES * BYTES);
    assert_int_equal(npz_stream_begin(z, a, why), MAR_OK);
    eval_permutation(EVAL_NPZ_SEED, IMAGES, order);
    for (int p = 0; p < IMAGES; p++) {
        image_file file;
        assert_int_equal(npz_stream_read(z, BYTES, pixels, why), MAR_OK);
        snprintf(path, sizeof path, "%s/all/images/%06d.png", d, order[p]);
        assert_int_equal(image_read_png(path, SIDE, SIDE, &file), 0);
        assert_memory_equal(pixels, file.picture.rgb, BYTES);
        image_file_free(&file);
    }
    npz_close(z);
    command_ok(d, "generate --num 2 --seed 3 --quiet --out generated" QUICK); /* two of each of ten classes */
    for (int i = 0; i < IMAGES; i += 3) {
        image_file ours, generated;
        snprintf(path, sizeof path, "%s/all/images/%06d.png", d, i);
        assert_int_equal(image_read_png(path, SIDE, SIDE, &ours), 0);
        snprintf(path, sizeof path, "%s/generated/%06d.png", d, i);
        assert_int_equal(image_read_png(path, SIDE, SIDE, &generated), 0);
        assert_memory_equal(ours.picture.rgb, generated.picture.rgb, BYTES);
        image_file_free(&ours);
        image_file_free(&generated);
    }
    sh_ok(d, "test $(ls all/images | wc -l) = 20");
    /* Images lost later return to their places in the finished file. */
    sh_ok(d, "cp all/images.npz npz && rm all/runs/*/000010-*features* all/result.json && "
             "$MAR " RUN "--out all --save_npz --save_images --quiet && cmp npz all/images.npz");
    /* Missing or foreign pictures are decoded again from the store. */
    sh_ok(d, "rm -r all/images all/images.npz all/result.json && cp -r all/runs before && "
             "$MAR " RUN "--out all --save_npz --save_images --quiet && cmp npz all/images.npz && "
             "diff -r before all/runs && test $(ls all/images | wc -l) = 20");
    sh_ok(d, "rm all/result.json && mv all/images.npz all/images.npz.part && "
             "printf x | dd of=all/images.npz.part bs=1 seek=70000 conv=notrunc 2>dd && "
             "cp all/images/000001.png all/images/000003.png && "
             "$MAR " RUN "--out all --save_npz --save_images --quiet 2>&1 && cmp npz all/images.npz && "
             "! cmp -s all/images/000001.png all/images/000003.png");
}

/* Checks that lost or damaged pictures of the report return to the store, and that the page stays the same. */
static void report_pictures(void **state)
{
    const char *d = *state;
    sh_ok(d,
          "cp -r whole part && ls part/runs/*/* >before && rm part/result.json $(ls part/runs/*/*.picture-* | head -n "
          "7) && for f in $(ls part/runs/*/*.picture-* | tail -n 3); do : >$f; done && $MAR " RUN
          "--out part --quiet 2>lines && test $(grep -c 'is damaged' lines) = 3 && ls part/runs/*/* | cmp before - && "
          "rm part/result.json && $MAR " RUN "--out part --quiet 2>lines && test ! -s lines");
    sh_ok(d, "for r in whole part; do grep -o 'data:image/png[^\"]*' $r/report.html >$r.pictures; done; "
             "test $(wc -l <whole.pictures) -ge 20 && cmp whole.pictures part.pictures");
}

/* Checks the error for a missing images.npz: a message, and no file in its place. */
static void lost_pictures(void **state)
{
    const char *d = *state;
    static const char says[] = "part/images.npz: is not there any more, or not whole";
    sh_ok(d, "$MAR " RUN "--out part --save_npz --quiet && mv part/images.npz away.npz");
    command_refused(d, "$MAR eval --out part --merge", says, "");
    sh_ok(d, "test ! -e part/images.npz.part && rm part/result.json && $MAR " RUN "--out part --save_npz --quiet && "
             "cmp part/images.npz away.npz");
    assert_same_run(d, "whole", "part");
}

/* Tests --class_sampling. Each process draws the same classes. */
static void classes(void **state)
{
    const char *d = *state;
    sh_ok(d, "$MAR " RUN "--num_images 50 --out random --class_sampling random --save_images --quiet && "
             "$MAR " RUN "--num_images 50 --out parts --class_sampling random --save_images --shard 2/3 --quiet && "
             "$MAR " RUN "--num_images 50 --out parts --class_sampling random --save_images --quiet && diff -r "
             "random/images parts/images");
    assert_same_run(d, "random", "parts");
    int counts[10] = {0}, runs = 0, last = -1;
    for (int i = 0; i < DRAWN; i++) {
        char path[600];
        image_file file;
        int label = -1;
        snprintf(path, sizeof path, "%s/random/images/%06d.png", d, i);
        assert_int_equal(image_read_png(path, SIDE, SIDE, &file), 0);
        for (int k = 0; k < file.count; k++)
            if (strcmp(file.texts[k].key, "class") == 0) label = atoi(file.texts[k].value);
        image_file_free(&file);
        assert_in_range(label, 0, 9);
        counts[label]++;
        runs += label != last;
        last = label;
    }
    for (int k = 0; k < 10; k++) assert_in_range(counts[k], 1, 12); /* 5 expected, standard deviation 2.1 */
    assert_in_range(runs, 38, 50);                                  /* 45 of 50 differ from the one before */
    /* A long list of classes leaves room for the rest of the protocol. */
    sh_ok(d,
          "$MAR eval --num_images 100 --batch 50 --class $(seq -s, 0 99 | sed 's/[0-9]*\\([0-9]\\)/\\1/g') --out "
          "many "
          "--quiet" QUICK " && grep -q '\"protocol\":.*classes balanced (0,1,2,3,.*,[0-9], ... 100 in all); .*seed 0' "
          "many/result.json");
    /* Any number of images, of any classes. */
    sh_ok(d, "$MAR eval --num_images 7 --class 3,1,4 --batch 2 --save_images --out few --quiet" QUICK);
    static const int expected[] = {3, 3, 3, 1, 1, 4, 4}; /* class i * 3 / 7 */
    for (int i = 0; i < 7; i++) {
        char line[300];
        snprintf(line, sizeof line,
                 "grep -aq 'class.%d' few/images/%06d.png || strings few/images/%06d.png | grep -qx 'class.*%d'",
                 expected[i], i, i, expected[i]);
        sh_ok(d, line);
    }
}

/* Checks that the result has the acceptance of a draft model by step. */
static void drafts(void **state)
{
    const char *d = *state;
    sh_ok(d, "$MAR " RUN "--draft demo-draft --gamma 1 --out spec --shard 2/2 --quiet && "
             "$MAR " RUN "--draft demo-draft --gamma 1 --out spec --quiet && "
             "$MAR " RUN
             "--draft demo-draft --gamma 1 --out one --quiet && grep -q '\"accepted_by_step\"' one/result.json");
    assert_same_run(d, "spec", "one");
}

/* Tests drafts of the model itself: two spellings give the same run. Also tests acceptance by lateness. */
static void own_drafts(void **state)
{
    const char *d = *state;
#define OWN "$MAR eval --num_images 10 --batch 2 --shard_images 4 --num_iter 8 --num_sampling_steps 2 --quiet "
    sh_ok(d, OWN "--draft self --gamma 3 --out own --shard 2/2 && " OWN "--spec path --gamma 3 --out own && " OWN
                 "--draft self --gamma 3 --out one && $MAR eval --merge --draft self --gamma 3 --out one --quiet");
#undef OWN
    assert_same_run(d, "own", "one");
    char *settings = read_whole_file(d, "own/settings.json", NULL), *numbers = numbers_of_run(d, "own");
    static const char *const parts[] = {"\"draft\":\t\"self\"", "\"spec\":\t\"path\"", "\"gamma\":\t\"3\"",
                                        "\"accelerators\":\t\"--draft self --spec path --gamma 3\""};
    for (size_t i = 0; i < LENGTH(parts); i++) assert_has(settings, parts[i]);
    assert_null(strstr(settings, "draft_id"));
    assert_has(numbers, ", draft self;");
    assert_has(numbers, "\"accepted_by_lateness\":\t[0, ");
    free(settings), free(numbers);
    command_refused(d, "$MAR eval --merge --draft demo-draft --out one",
                    "one: was begun with --draft self, this is --draft demo-draft; use another --out", "");
    command_refused(d, "$MAR eval --merge --draft self --gamma 4 --out one",
                    "was begun with --gamma 3, this is --gamma 4", "");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        COPY_TEST(shards),           COPY_TEST(shards_at_a_time),  COPY_TEST(ranks),
        COPY_TEST(finished_runs),    COPY_TEST(processes),         COPY_TEST(other_settings),
        COMMAND_TEST(arithmetic),    COMMAND_TEST(changed_folder), COPY_TEST(merged_reference),
        COPY_TEST(foreign_files),    COPY_TEST(hostile_settings),  COPY_TEST(links_and_pipes),
        COMMAND_TEST(wrong_options), COPY_TEST(damaged_pieces),    COPY_TEST(many_damaged_pieces),
        COPY_TEST(older_runs),       COPY_TEST(damaged_settings),  COPY_TEST(pictures),
        COPY_TEST(report_pictures),  COPY_TEST(lost_pictures),     COPY_TEST(classes),
        COPY_TEST(drafts),           COMMAND_TEST(own_drafts),     COMMAND_TEST(times_are_taken_from_the_settings)};
    return cmocka_run_group_tests(tests, setup, command_teardown);
}
