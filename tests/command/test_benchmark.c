/* mar generate --benchmark: the folders that the judges of GenEval, GenEval 2 and DPG-Bench read, and PartiPrompts'.
 * What a judge reads is checked against a plain run of the same prompts. */
#include "tests/support/command.h"

#include "tools/generate/benchmark.h"
#include "tools/images/image.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define T2I "generate --model demo-t2i -q --seed 3 "

static const char geneval[] =
    "{\"tag\": \"single_object\", \"include\": [{\"class\": \"bench\", \"count\": 1}], \"prompt\": \"a bold seven\"}\n"
    "\n"
    "{\"tag\": \"position\", \"include\": [{\"class\": \"cow\", \"count\": 1}, {\"class\": \"cup\", \"count\": 1, "
    "\"position\": [\"above\", 0]}], \"exclude\": [{\"class\": \"cow\", \"count\": 2}], \"prompt\": \"a thin "
    "\\\"2\\\"\"}";

static const char geneval2[] =
    "{\"prompt\": \"a bold seven\", \"atom_count\": 1, \"vqa_list\": [[\"How many?\", \"one\"], [\"Bold?\", \"Yes\"]], "
    "\"skills\": [\"count\", \"attribute\"]}\n"
    "{\"prompt\": \"a thin \\\"2\\\"\", \"vqa_list\": [[\"Is it a 2?\", \"Yes\"]]}\n";

static const char table[] =
    "Prompt\tCategory\tChallenge\tNote\na bold seven\tAbstract\tBasic\t\na thin \"2\"\tArts\tBasic\tx\n";

/* Writes the prompts of all benchmarks, and makes two and four images of each in plain runs. */
static int make_prompts(void **state)
{
    if (command_setup(state) != 0) return 1;
    const char *d = *state;
    write_whole_file(d, "g.jsonl", geneval, strlen(geneval));
    write_whole_file(d, "g2.jsonl", geneval2, strlen(geneval2));
    write_whole_file(d, "PartiPrompts.tsv", table, strlen(table));
    sh_ok(d, "mkdir dpg && printf 'a thin \"2\"\\r\\n' >dpg/whoops10.txt && printf '\\357\\273\\277a bold seven' "
             ">dpg/9.txt");
    command_ok(d, T2I "--prompt 'a bold seven' --prompt 'a thin \"2\"' --num 4 --out four");
    command_ok(d, T2I "--prompt 'a bold seven' --prompt 'a thin \"2\"' --num 2 --out two");
    command_ok(d, T2I "--prompt 'a bold seven' --prompt 'a thin \"2\"' --out one");
    return 0;
}

/* Checks that the folder has these files, sorted by their paths. */
static void has_files(const char *directory, const char *folder, const char *files)
{
    sh_ok(directory, "test \"$(cd %s && find . -type f | LC_ALL=C sort | tr '\\n' ' ')\" = '%s'", folder, files);
}

COPY_CASE(geneval_reads)
{
    static const char files[] =
        "./00000/metadata.jsonl ./00000/samples/00000.png ./00000/samples/00001.png ./00000/samples/00002.png "
        "./00000/samples/00003.png ./00001/metadata.jsonl ./00001/samples/00000.png ./00001/samples/00001.png "
        "./00001/samples/00002.png ./00001/samples/00003.png ";
    const char *d = *state;
    command_ok(d, T2I "--benchmark geneval --prompts g.jsonl --out a");
    has_files(d, "a", files);
    for (int i = 0; i < 8; i++) {
        char path[64], plain[64];
        snprintf(path, sizeof path, "a/%05d/samples/%05d.png", i / 4, i % 4);
        snprintf(plain, sizeof plain, "four/%06d.png", i);
        assert_same_file(d, path, plain);
    }
    for (int i = 0; i < 2; i++) {
        const cJSON *prompt;
        cJSON *metadata = read_json(d, i ? "a/00001/metadata.jsonl" : "a/00000/metadata.jsonl");
        assert_non_null(prompt = json_find(metadata, "prompt"));
        assert_string_equal(prompt->valuestring, i ? "a thin \"2\"" : "a bold seven");
        cJSON_Delete(metadata);
    }
    sh_ok(d, "test \"$(cat a/00001/metadata.jsonl)\" = \"$(sed -n 3p g.jsonl)\""); /* the very line */
    command_ok(d, T2I "--benchmark geneval --prompts g.jsonl --out b --num 2");
    sh_ok(d, "cmp b/00001/samples/00001.png two/000003.png && ! test -e b/00001/samples/00002.png");
}

/* Checks that a cell of DPG's grid is an image of a plain run. */
static void is_cell(const char *directory, const image *grid, int cell, const char *plain)
{
    image_file f;
    assert_int_equal(image_read_png(path_in(directory, "%s", plain), 32, 32, &f), 0);
    for (int y = 0; y < 32; y++)
        assert_memory_equal(grid->rgb + (cell / 2 * 32 + y) * grid->width * 3 + cell % 2 * 32 * 3,
                            f.picture.rgb + y * 32 * 3, 32 * 3);
    image_file_free(&f);
}

COPY_CASE(dpg_cuts)
{
    const char *d = *state;
    image_file f;
    command_ok(d, T2I "--benchmark dpg --prompts dpg --out a --batch 3"); /* a grid's images are of two batches */
    has_files(d, "a", "./9.png ./whoops10.png ");
    for (int i = 0; i < 8; i++) {
        char plain[64];
        snprintf(plain, sizeof plain, "four/%06d.png", i);
        assert_int_equal(image_read_png(path_in(d, i < 4 ? "a/9.png" : "a/whoops10.png"), 64, 64, &f), 0);
        is_cell(d, &f.picture, i % 4, plain);
        image_file_free(&f);
    }
    command_ok(d, T2I "--benchmark dpg --prompts dpg --out b --num 2");
    assert_int_equal(image_read_png(path_in(d, "b/whoops10.png"), 64, 32, &f), 0);
    is_cell(d, &f.picture, 0, "two/000002.png");
    is_cell(d, &f.picture, 1, "two/000003.png");
    image_file_free(&f);
    command_ok(d, T2I "--benchmark dpg --prompts dpg --out c --num 1");
    assert_same_file(d, "c/whoops10.png", "one/000001.png");
    command_ok(d, T2I "--benchmark dpg --prompts dpg --out e --num 3");
    assert_int_equal(image_read_png(path_in(d, "e/9.png"), 64, 64, &f), 0);
    for (int i = 0; i < 32 * 3; i++)
        assert_int_equal(f.picture.rgb[(32 * 64 + 32) * 3 + i], 255); /* the fourth is white */
    image_file_free(&f);
    command_refused(d, "$MAR generate -q --like a/9.png --out x.png", "a/9.png: is a grid of the images 0-3", NULL);
}

COPY_CASE(geneval2_looks_up)
{
    const char *d = *state;
    command_ok(d, T2I "--benchmark geneval2 --prompts g2.jsonl --out a/b");
    has_files(d, "a/b", "./00000.png ./00001.png ./image_paths.json ");
    assert_same_file(d, "a/b/00001.png", "one/000001.png");
    cJSON *paths = read_json(d, "a/b/image_paths.json");
    assert_int_equal(cJSON_GetArraySize(paths), 2);
    const cJSON *path = cJSON_GetObjectItemCaseSensitive(paths, "a thin \"2\"");
    assert_true(cJSON_IsString(path) && path->valuestring[0] == '/');
    sh_ok(d, "cmp '%s' a/b/00001.png", path->valuestring);
    cJSON_Delete(paths);
}

COPY_CASE(partiprompts_beside_their_table)
{
    const char *d = *state;
    command_ok(d, T2I "--benchmark partiprompts --prompts PartiPrompts.tsv --out a --num 2");
    has_files(d, "a", "./00000.png ./00001.png ./00002.png ./00003.png ./PartiPrompts.tsv ");
    sh_ok(d, "cmp a/PartiPrompts.tsv PartiPrompts.tsv && for i in 0 1 2 3; do cmp a/0000$i.png two/00000$i.png || exit "
             "1; done");
    cJSON *record =
        command_json(d, "generate --model demo-t2i --benchmark partiprompts --prompts PartiPrompts.tsv --out b --json");
    assert_string_equal(json_text(record, "files.1.file"), "b/00001.png");
    cJSON_Delete(record);
}

/* Whatever is missing, --resume makes the folder that one run makes. */
COPY_CASE(resumed)
{
    static const char *const runs[][2] = {
        {"geneval --prompts g.jsonl", "00000/samples/00003.png 00001/samples"},
        {"geneval --prompts g.jsonl", "00000"},
        {"geneval2 --prompts g2.jsonl", "00001.png image_paths.json"},
        {"dpg --prompts dpg --batch 3", "9.png"},
        {"partiprompts --prompts PartiPrompts.tsv --num 3", "00002.png PartiPrompts.tsv"}};
    const char *d = *state;
    for (size_t i = 0; i < LENGTH(runs); i++) {
        sh_ok(d, "rm -rf part whole");
        command_ok(d, T2I "--benchmark %s --out whole", runs[i][0]);
        sh_ok(d, "mkdir part; cp -r whole/* part; cd part; rm -r %s", runs[i][1]);
        command_ok(d, T2I "--benchmark %s --out part --resume", runs[i][0]);
        sh_ok(d, "sed -i s,/part/,/whole/, part/*.json 2>/dev/null; diff -r whole part");
        sh_ok(d,
              "rm -r part; timeout -s INT 0.2 $MAR " T2I "--benchmark %s --out part >out 2>&1; $MAR " T2I
              "--benchmark %s --out part --resume && sed -i s,/part/,/whole/, part/*.json 2>/dev/null; diff -r whole "
              "part",
              runs[i][0], runs[i][0]);
    }
}

/* Folders of two runs are never mixed. */
COPY_CASE(two_runs)
{
    const char *d = *state;
    command_ok(d, T2I "--benchmark geneval --prompts g.jsonl --out a");
    command_ok(d, T2I "--benchmark dpg --prompts dpg --out b");
    command_ok(d, T2I "--benchmark geneval2 --prompts g2.jsonl --out c");
    sh_ok(d,
          "cp -r a a.was; head -1 g.jsonl >less.jsonl; head -1 g2.jsonl >less2.jsonl; mkdir less; cp dpg/9.txt less");
    const refusal cases[] = {
        {T2I "--benchmark geneval --prompts g.jsonl --out a", "a: has 0000", "expected --resume"},
        {T2I "--benchmark geneval --prompts g.jsonl --out a --resume --num 3",
         "samples/00003.png: is none of this run"},
        {T2I "--benchmark geneval --prompts less.jsonl --out a --resume", "a/00001: is none of this run"},
        {T2I "--benchmark geneval --prompts g.jsonl --out a --resume --top_k 3",
         "a/00000/samples/00000.png: top_k is 0, expected 3"},
        {T2I "--benchmark dpg --prompts less --out b --resume", "b/whoops10.png: is none of this run"},
        {T2I "--benchmark dpg --prompts dpg --out b --resume --num 1", "b/9.png", "64x64"},
        {T2I "--benchmark geneval2 --prompts less2.jsonl --out c --resume", "c/00001.png: is none of this run"},
        {T2I "--benchmark geneval --prompts g.jsonl --out dpg", "dpg: has ", "expected --resume"},
    };
    command_refuses(d, cases, LENGTH(cases));
    sh_ok(d, "diff -r a a.was");
}

COPY_CASE(refusals)
{
    static const refusal cases[] = {
        {T2I "--benchmark geneval --out a", "--benchmark geneval: --prompts is missing", "evaluation_metadata.jsonl"},
        {T2I "--benchmark geneval --prompts - --out a", "--prompts is missing"},
        {T2I "--benchmark geneval --prompts g.jsonl --prompt x --out a", "--prompt: --benchmark geneval has its own"},
        {T2I "--benchmark geneval --captions c.npz --out a", "--captions: has no effect with --benchmark geneval"},
        {T2I "--benchmark geneval2 --prompts g2.jsonl --num 2 --out a", "--num 2: GenEval 2's judge reads 1 image of"},
        {T2I "--benchmark dpg --prompts dpg --num 5 --out a", "--num 5: DPG-Bench's judge reads 4 images of",
         "at most"},
        {T2I "--benchmark geneval --prompts g.jsonl --out a.png", "--out is a.png, expected a directory"},
        {T2I "--benchmark geneval --prompts g.jsonl --out a --format jpeg", "--format jpeg", "expected png"},
        {T2I "--benchmark geneval --prompts g.jsonl --out a --grid", "--grid: has no effect with --benchmark"},
        {T2I "--benchmark geneval --prompts g.jsonl --out a --overwrite", "--overwrite: does not replace"},
        {T2I "--benchmark geneval --prompts g.jsonl --out a --accept_map a/1.png", "--accept_map: expected it without"},
        {"generate -q --like one/000000.png --benchmark geneval --prompts g.jsonl --out a", "--like: "},
        {T2I "--benchmark coco --prompts g.jsonl --out a", "coco", "geneval"},
        {T2I "--benchmark geneval --prompts g.jsonl --class 1 --out a", "--class"},
        {"generate -q --model demo --benchmark geneval --prompts g.jsonl --out a", "--prompts"},
        {T2I "--benchmark geneval --prompts none.jsonl --out a", "none.jsonl"},
        {T2I "--benchmark geneval --prompts dpg --out a", "dpg"},
        {T2I "--benchmark dpg --prompts g.jsonl --out a", "--prompts g.jsonl: expected DPG-Bench's folder"},
        {T2I "--benchmark geneval --prompts g2.jsonl --out a", "g2.jsonl, line 1: no text \"tag\""},
        {T2I "--benchmark geneval2 --prompts g.jsonl --out a", "g.jsonl, line 1: no list \"vqa_list\""},
        {T2I "--benchmark partiprompts --prompts g.jsonl --out a", "g.jsonl, line 1: no columns Prompt, Category"},
    };
    command_refuses(*state, cases, LENGTH(cases));
}

/* What a judge would fail at is refused with its line before anything is made. */
COPY_CASE(metadata)
{
#define RIGHT "{\"tag\": \"t\", \"prompt\": \"p\", \"include\": [{\"class\": \"c\", \"count\": 1}]}\n"
#define ASKED "{\"prompt\": \"p\", \"vqa_list\": [[\"q\", \"a\"]]}\n"
    static const struct {
        const char *kind, *text, *says;
    } cases[] = {
        {"geneval", "\n", "line 1: no prompt in the file, expected GenEval's evaluation_metadata.jsonl"},
        {"geneval", RIGHT "{\"tag\"", "line 2: no JSON"},
        {"geneval", RIGHT "\n[]", "line 3: no text \"prompt\""},
        {"geneval", RIGHT "{\"tag\": \"t\", \"caption\": \"p\", \"include\": []}", "line 2: no text \"prompt\""},
        {"geneval", RIGHT "{\"tag\": 1, \"prompt\": \"p\", \"include\": []}", "line 2: no text \"tag\""},
        {"geneval", RIGHT "{\"tag\": \"t\", \"prompt\": \"p\"}", "line 2: no \"include\""},
        {"geneval", "{\"tag\": \"t\", \"prompt\": \"p\", \"include\": {}}", "line 1: \"include\" is no list of"},
        {"geneval", "{\"tag\": \"t\", \"prompt\": \"p\", \"include\": [{\"class\": \"c\", \"count\": 1.5}]}",
         "line 1: \"include\" is no list of"},
        {"geneval", "{\"tag\": \"t\", \"prompt\": \"p\", \"include\": [{\"count\": 1}]}", "line 1: \"include\" is no"},
        {"geneval", "{\"tag\": \"t\", \"prompt\": \"p\", \"include\": [], \"exclude\": [1]}",
         "line 1: \"exclude\" is no"},
        {"geneval", RIGHT "{\"tag\": \"t\", \"prompt\": \" \", \"include\": []}", "expected good ones only"},
        {"geneval2", ASKED "{\"prompt\": \"x\", \"vqa_list\": []}", "line 2: no list \"vqa_list\""},
        {"geneval2", ASKED "{\"prompt\": \"x\", \"vqa_list\": [[\"q\"]]}",
         "line 2: \"vqa_list\" is no list of a question"},
        {"geneval2", "{\"prompt\": \"x\", \"vqa_list\": [[\"q\", 1]]}",
         "line 1: \"vqa_list\" is no list of a question"},
        {"geneval2", ASKED "{\"prompt\": \"x\", \"vqa_list\": [[\"q\", \"a\"]]}\n" ASKED,
         "m.jsonl: prompt 3 is that of prompt 1, \"p\", expected each once"},
        {"partiprompts", "Prompt\tCategory\na\tb\n", "line 1: no columns Prompt, Category and Challenge"},
    };
    for (size_t i = 0; i < LENGTH(cases); i++) {
        write_whole_file(*state, "m.jsonl", cases[i].text, strlen(cases[i].text));
        command_result r = command_mar(*state, T2I "--benchmark %s --prompts m.jsonl --out m", cases[i].kind);
        assert_int_equal(r.status, 1);
        assert_has(r.err, cases[i].says);
        command_result_free(&r);
        sh_ok(*state, "! test -e m");
    }
}

/* The command's reader must have read the same file; DPG's judge cuts squares. */
COPY_CASE(checks_of_the_model)
{
    caption list[] = {{.prompt = "a bold seven"}, {.prompt = "a thin \"2\""}};
    captions c = {.count = 2, .list = list};
    char file[512];
    snprintf(file, sizeof file, "%s", path_in(*state, "g.jsonl"));
    run_options run = {.prompts = file};
    benchmark b;
    assert_int_equal(benchmark_open("geneval", &run, 0, &b), 0);
    assert_int_equal(benchmark_check(&b, &c, 64, 32), 0);
    list[1].prompt = "a thin 2";
    capture_begin();
    command_result r = capture_end(benchmark_check(&b, &c, 32, 32));
    assert_int_equal(r.status, 1);
    assert_has(r.err, "g.jsonl: has changed while it was read");
    command_result_free(&r);
    benchmark_free(&b);
    snprintf(file, sizeof file, "%s", path_in(*state, "dpg"));
    assert_int_equal(benchmark_open("dpg", &run, 0, &b), 0);
    assert_int_equal(benchmark_check(&b, &c, 32, 32), 0);
    capture_begin();
    r = capture_end(benchmark_check(&b, &c, 64, 32));
    assert_int_equal(r.status, 1);
    assert_has(r.err, "--benchmark dpg: images of 64x32, expected squares");
    command_result_free(&r);
    c.count = 1;
    capture_begin();
    r = capture_end(benchmark_check(&b, &c, 32, 32));
    assert_int_equal(r.status, 1);
    command_result_free(&r);
    benchmark_free(&b);
}

/* A folder of prompts, in natural order: of other commands, too. */
COPY_CASE(folders_of_prompts)
{
    static const refusal cases[] = {
        {T2I "--prompts empty --out a", "empty: has no file, expected prompts, a NAME.txt each"},
        {T2I "--prompts other --out a", "other/x.csv: expected files NAME.txt in a folder of prompts"},
        {T2I "--prompts upper --out a", "upper/x.TXT: expected files NAME.txt"},
        {T2I "--benchmark dpg --prompts dots --out a", "dots/a.b.txt: has a dot in its name"},
        {T2I "--prompts hidden --out a", "hidden/.txt: expected files NAME.txt"},
        {T2I "--prompts lines --out a", "lines/1.txt: has several lines, expected one, the prompt"},
        {T2I "--prompts wide --out a", "wide/1.txt: is UTF-16, expected UTF-8"},
        {T2I "--prompts within --out a", "within/1.txt"},
        {T2I "--prompts blank --out a", "blank/1.txt \"\": the prompt is empty: skipped"},
        {T2I "--benchmark dpg --prompts other --out a", "other/x.csv: expected files NAME.txt"},
    };
    const char *d = *state;
    sh_ok(d,
          "mkdir empty other hidden lines wide within within/1.txt blank upper dots && echo x >other/x.csv && echo x "
          ">hidden/.txt && echo x >upper/x.TXT && echo x >dots/a.b.txt && printf 'a\\nb\\n' >lines/1.txt && "
          "printf '\\377\\376a\\000\\n\\000' >wide/1.txt && echo ' ' >blank/1.txt");
    command_refuses(d, cases, LENGTH(cases));
    command_ok(d, T2I "--prompts dpg --num 2 --out a");
    sh_ok(d, "diff -r a two && printf x >dpg/10.txt");
    command_ok(d, "captions dpg --t5 demo-t5 --tokens 16 --dtype f32 --out c.npz -q");
    cJSON *r = command_json(d, "generate --model demo-t2i --captions c.npz --out b --json");
    assert_string_equal(json_text(r, "classes.1.prompt"), "x"); /* 10 follows 9 */
    cJSON_Delete(r);
}

TEST_GROUP(make_prompts, command_teardown)
