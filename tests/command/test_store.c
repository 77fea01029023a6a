/* The run store. Pieces come back as they were written or not at all, after any damage. Locks end with their process.
 * Commands that share a store make no image twice. */
#include "tests/support/command.h"

#include "tools/store/store.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { IMAGES = 3, NUMBERS = 5 };

static const image_text texts[] = {{"model", "demo"}, {"seed", "3"}};
static const int labels[IMAGES] = {4, -1, 7};
static const store_range range = {32, IMAGES, labels};

typedef struct {
    int32_t labels[IMAGES];
    float tokens[IMAGES * NUMBERS];
    uint8_t bytes[7];
    double seconds[2];
} contents;

static void list(contents *c, store_array arrays[4])
{
    arrays[0] = (store_array){"labels", NPZ_I32, 1, {IMAGES}, c->labels};
    arrays[1] = (store_array){"tokens", NPZ_F32, 3, {IMAGES, 1, NUMBERS}, c->tokens};
    arrays[2] = (store_array){"bytes", NPZ_U8, 1, {sizeof c->bytes}, c->bytes};
    arrays[3] = (store_array){"seconds", NPZ_F64, 1, {2}, c->seconds};
}

static contents example(void)
{
    contents c;
    memset(&c, 0, sizeof c);
    for (int i = 0; i < IMAGES; i++) c.labels[i] = i == 1 ? INT32_MIN : 1 << (10 * i);
    for (int i = 0; i < IMAGES * NUMBERS; i++) c.tokens[i] = 1.0f / (float)(i + 3) - (float)(i == 7) * 1e-42f;
    for (size_t i = 0; i < sizeof c.bytes; i++) c.bytes[i] = (uint8_t)(255 - 41 * i);
    c.seconds[0] = 0.1, c.seconds[1] = 1e300;
    return c;
}

static store_run open_in(const char *directory, const image_text *of, int count)
{
    store_run r;
    assert_int_equal(store_open(directory, of, count, &r), 0);
    return r;
}

static store_state read_back(const store_run *r, const store_range *at, const char *kind, contents *out)
{
    store_array arrays[4];
    memset(out, 0, sizeof *out);
    list(out, arrays);
    return store_read(r, at, kind, arrays, 4);
}

/* --- pieces --------------------------------------------------------------------------------------------- */

/* Compares every bit of every type. Other images, labels, kinds and runs are other pieces. */
static void pieces(void **state)
{
    static const image_text other_texts[] = {{"model", "demo"}, {"seed", "4"}};
    static const int other_labels[IMAGES] = {4, -1, 8};
    const store_range moved = {35, IMAGES, labels}, relabelled = {32, IMAGES, other_labels}, shorter = {32, 2, labels};
    contents c = example(), back;
    store_array arrays[4];
    store_run r = open_in(*state, texts, 2), other = open_in(*state, other_texts, 2);
    assert_true(r.hash != other.hash && r.hash != store_hash(texts, 1));
    list(&c, arrays);
    assert_int_equal(read_back(&r, &range, NULL, &back), STORE_MISSING);
    assert_int_equal(store_write(&r, &range, NULL, arrays, 4), 0);
    assert_true(store_has(&r, &range, NULL) && !store_has(&r, &range, "features-1"));
    assert_int_equal(read_back(&r, &range, NULL, &back), STORE_THERE);
    assert_memory_equal(&back, &c, sizeof c);
    assert_int_equal(read_back(&r, &moved, NULL, &back), STORE_MISSING);
    assert_int_equal(read_back(&r, &relabelled, NULL, &back), STORE_MISSING);
    assert_int_equal(read_back(&r, &shorter, NULL, &back), STORE_MISSING);
    assert_int_equal(read_back(&r, &range, "features-1", &back), STORE_MISSING);
    assert_int_equal(read_back(&other, &range, NULL, &back), STORE_MISSING);

    /* Some of the arrays can be read. Missing arrays, other types and other shapes cannot. */
    store_array one = arrays[3];
    memset(c.seconds, 0, sizeof c.seconds);
    store_array all[4];
    list(&c, all);
    for (int i = 0; i < 3; i++) all[i].data = NULL;
    assert_int_equal(store_read(&r, &range, NULL, all, 4), STORE_THERE);
    assert_true(c.seconds[0] == 0.1 && c.seconds[1] == 1e300);
    for (int i = 0; i < 4; i++) {
        list(&c, all);
        if (i == 0) all[3].name = "second";
        if (i == 1) all[3].dtype = NPZ_F32;
        if (i == 2) all[1].rank = 2;
        if (i == 3) all[1].shape[2]++;
        assert_int_equal(store_read(&r, &range, NULL, all, 4), STORE_DAMAGED);
    }
    assert_int_equal(store_read(&r, &range, NULL, &one, 1), STORE_DAMAGED); /* larger than possible for this shape */

    /* Existing pieces are replaced. */
    c = example();
    c.tokens[2] = 9;
    list(&c, arrays);
    assert_int_equal(store_write(&r, &range, NULL, arrays, 4), 0);
    assert_int_equal(read_back(&r, &range, NULL, &back), STORE_THERE);
    assert_memory_equal(&back, &c, sizeof c);
    store_close(&r), store_close(&other);
}

/* Changes, cuts or adds any byte. The piece is damaged, or has its contents. */
static void damage(void **state)
{
    contents c = example(), back;
    store_array arrays[4];
    char path[STORE_PATH];
    size_t size;
    int damaged = 0;
    const int errors = dup(STDERR_FILENO);
    assert_non_null(freopen("/dev/null", "w", stderr)); /* one line for each piece */
    store_run r = open_in(*state, texts, 2), other = open_in(*state, texts, 1);
    list(&c, arrays);
    assert_int_equal(store_write(&r, &range, "kind", arrays, 4), 0);
    const char *name = store_path(&r, &range, "kind", path) + strlen(*state) + 1;
    char *whole = read_whole_file(*state, name, &size);
    assert_true(size < 3000);
    for (size_t i = 0; i < size; i++) {
        whole[i] ^= 4;
        write_whole_file(*state, name, whole, size);
        const store_state found = read_back(&r, &range, "kind", &back);
        if (found == STORE_THERE && memcmp(&back, &c, sizeof c) != 0) fail_msg("byte %zu is believed", i);
        damaged += found == STORE_DAMAGED;
        whole[i] ^= 4;
        if (i % 16 == 0) {
            write_whole_file(*state, name, whole, i);
            assert_int_equal(read_back(&r, &range, "kind", &back), STORE_DAMAGED);
        }
    }
    assert_true(damaged > (int)size / 2); /* the rest are dates and the like in the zip's headers */
    char *long_one = calloc(1, size + 1000000);
    memcpy(long_one, whole, size);
    write_whole_file(*state, name, long_one, size + 1000000);
    assert_int_equal(read_back(&r, &range, "kind", &back), STORE_DAMAGED);
    free(long_one);
    /* Complete pieces of another run or another kind. */
    assert_int_equal(store_write(&other, &range, "kind", arrays, 4), 0);
    free(whole);
    whole = read_whole_file(*state, store_path(&other, &range, "kind", path) + strlen(*state) + 1, &size);
    write_whole_file(*state, store_path(&r, &range, "kind", path) + strlen(*state) + 1, whole, size);
    assert_int_equal(read_back(&r, &range, "kind", &back), STORE_DAMAGED);
    write_whole_file(*state, store_path(&other, &range, "kine", path) + strlen(*state) + 1, whole, size);
    assert_int_equal(read_back(&other, &range, "kine", &back), STORE_DAMAGED);
    free(whole);
    store_close(&r), store_close(&other);
    fflush(stderr);
    assert_true(dup2(errors, STDERR_FILENO) >= 0);
    close(errors);
}

/* Checks that run.json lists the hashed values. A damaged one is made again, a whole one of another run is not. A run
 * that is only read makes nothing. */
static void runs(void **state)
{
    const char *d = *state;
    store_run r = open_in(d, texts, 2), found;
    contents back;
    command_result text = command_run(d, "cat runs/*/run.json");
    assert_string_equal(text.out, "{\n\t\"model\":\t\"demo\",\n\t\"seed\":\t\"3\"\n}\n");
    command_result_free(&text);
    text = command_run(d, "echo x >>$(echo runs/*/run.json)");
    command_result_free(&text);
    store_close(&r);
    r = open_in(d, texts, 2);
    text = command_run(d, "cat runs/*/run.json; ls -A runs/*");
    assert_non_null(strstr(text.out, "\"3\"\n}\nlock\nrun.json\n"));
    command_result_free(&text);
    assert_int_equal(store_find(d, r.hash, &found), 0);
    assert_string_equal(found.path, r.path);
    store_close(&found);
    assert_int_equal(store_find(d, 5, &found), 0);
    assert_int_equal(read_back(&found, &range, NULL, &back), STORE_MISSING);
    text = command_run(d, "ls runs | wc -l; sed -i s/demo/Demo/ runs/*/run.json");
    assert_string_equal(text.out, "1\n");
    command_result_free(&text);
    store_close(&r);
    assert_int_equal(store_open(d, texts, 2, &r), 1);
    store_close(&r);
    text = command_run(d, "grep -c Demo runs/*/run.json");
    assert_string_equal(text.out, "1\n");
    command_result_free(&text);
}

/* --- locks ---------------------------------------------------------------------------------------------- */

/* Checks that a range and its parts belong to one process until it unlocks them or ends. */
static void locks(void **state)
{
    const store_range next = {33, 1, labels};
    store_run r = open_in(*state, texts, 2), again = open_in(*state, texts, 2);
    int ready[2], status;
    char byte;
    assert_int_equal(store_lock(&r, &range, STORE_TOKENS), LOCK_TAKEN);
    assert_int_equal(store_lock(&again, &range, STORE_TOKENS), LOCK_BUSY);
    assert_int_equal(store_lock(&again, &range, STORE_DERIVED), LOCK_TAKEN);
    assert_int_equal(store_lock(&again, &next, STORE_TOKENS), LOCK_TAKEN);
    store_unlock(&r, &range, STORE_TOKENS);
    assert_int_equal(store_lock(&again, &range, STORE_TOKENS), LOCK_TAKEN);
    store_unlock(&again, &range, STORE_TOKENS);
    assert_int_equal(pipe(ready), 0);
    const pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        store_run own;
        if (store_open(*state, texts, 2, &own) != 0 || store_lock(&own, &range, STORE_TOKENS) != LOCK_TAKEN) _exit(1);
        if (write(ready[1], "x", 1) != 1) _exit(1);
        for (;;) pause();
    }
    assert_int_equal(read(ready[0], &byte, 1), 1);
    assert_int_equal(store_lock(&r, &range, STORE_TOKENS), LOCK_BUSY);
    kill(child, SIGKILL);
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(store_lock_wait(&r, &range, STORE_TOKENS), LOCK_TAKEN);
    close(ready[0]), close(ready[1]);
    store_close(&r), store_close(&again);
}

/* --- commands ------------------------------------------------------------------------------------------- */

#define QUICK " --num_iter 2 --num_sampling_steps 2 --class 3 --batch 10 --quiet "

static void shell(const char *directory, const char *line)
{
    command_result r = command_run(directory, line);
    if (r.status != 0) fail_msg("%s: %s%s", line, r.out, r.err);
    command_result_free(&r);
}

static void same_numbers(const char *directory, const char *a, const char *b)
{
    char line[400];
    snprintf(line, sizeof line,
             "for d in %s %s; do sed -n '/\"numbers\"/,/\"run\"/p' $d/result.json >n.${d##*/}; done; test -s n.%s && "
             "cmp n.%s n.%s",
             a, b, strrchr(a, '/') ? strrchr(a, '/') + 1 : a, strrchr(a, '/') ? strrchr(a, '/') + 1 : a,
             strrchr(b, '/') ? strrchr(b, '/') + 1 : b);
    shell(directory, line);
}

/* Options of the reference after --against: steps are each run's own. */
#define AGAINST " --against --num_iter 2 --num_sampling_steps 2 "

/* Tokens in the store, by name and inode: a new image is a new file. */
#define TOKENS "(cd all/runs && ls -i */*.*.npz | grep -v -e features -e picture) "

/* Runs eval, then fidelity, in one store. The latter makes no image. Also tests the opposite order. */
static void commands_share(void **state)
{
    const char *d = *state;
    shell(d, "for o in '--head_spec 3' '--cfg 2'; do $MAR eval $o --num_images 20 --store all --out \"${o#--}\"" QUICK
             "|| exit 1; done; " TOKENS ">made && test $(wc -l <made) = 4");
    shell(d, "$MAR eval --cfg 2 --num_images 20 --store all --out eval" QUICK "&& " TOKENS "| cmp made - && "
             "mv 'cfg 2' cfg2");
    same_numbers(d, "cfg2", "eval");
    shell(d, "$MAR fidelity --num 20 --store all --out f.html --json --head_spec 3" QUICK AGAINST
             "--cfg 2 >shared && " TOKENS "| cmp made -");
    shell(d, "$MAR fidelity --num 20 --out g.html --json --head_spec 3" QUICK AGAINST "--cfg 2 >alone");
    shell(d, "for f in shared alone; do grep -o '\"energy_[a-z]*\":{[^}]*}\\|\"identical[^,]*\\|\"p\":[^,]*' $f >$f.d; "
             "done; test -s alone.d && cmp shared.d alone.d");
    /* Fewer or more images of the same plan. */
    shell(d, "$MAR eval --cfg 2 --num_images 10 --store all --out fewer" QUICK "&& " TOKENS "| cmp made - && "
             "$MAR eval --cfg 2 --num_images 30 --store all --out more" QUICK "&& " TOKENS ">now && "
             "test $(grep -vxFf made now | wc -l) = 1 && $MAR eval --cfg 2 --num_images 30 --out plain" QUICK);
    same_numbers(d, "plain", "more");
    /* A run with another reference reuses the stored features. A run whose network has no stored features reuses the
     * tokens. */
    shell(d,
          "$MAR generate --num 4 --class 3 --num_iter 2 --num_sampling_steps 2 --out real --quiet && ls all/runs/* "
          ">pieces "
          "&& $MAR eval --cfg 2 --num_images 30 --stats real --store all --out other" QUICK "&& ls all/runs/* >now && "
          "cmp pieces now && rm all/runs/*/*features* all/runs/*/*picture* && " TOKENS ">now && "
          "$MAR eval --cfg 2 --num_images 30 --store all --out again" QUICK "&& " TOKENS "| cmp now -");
    same_numbers(d, "plain", "again");
    /* eval takes the images of fidelity, with pictures. */
    shell(d,
          "rm -r all && $MAR fidelity --num 20 --store all --out f.html --head_spec 3 --against --cfg 2" QUICK
          "&& " TOKENS ">made && test $(wc -l <made) = 4 && "
          "$MAR eval --cfg 2 --num_images 20 --save_npz --store all --out first" QUICK "&& " TOKENS "| cmp made - && "
          "$MAR eval --cfg 2 --num_images 20 --save_npz --out second" QUICK
          "&& cmp first/images.npz second/images.npz");
    same_numbers(d, "first", "second");
    /* A copy of a model under another name is the same model. */
    shell(d, "$MAR convert demo a.safetensors && cp a.safetensors b.safetensors && "
             "$MAR eval --model a.safetensors --vae demo --features demo --num_images 20 --store all --out a" QUICK
             "&& " TOKENS
             ">made && $MAR eval --model b.safetensors --vae demo --features demo --num_images 20 --store all "
             "--out b" QUICK "&& " TOKENS "| cmp made -");
}

/* Checks that generate uses the images of other commands, and they use those of generate. */
static void generate_shares(void **state)
{
    const char *d = *state;
    shell(d,
          "$MAR eval --num_images 25 --store all --out eval" QUICK "&& " TOKENS ">made && test $(wc -l <made) = 3 && "
          "$MAR generate --num 25 --store all --out grid.png --json" QUICK ">record && " TOKENS "| cmp made - && "
          "grep -q '\"images_stored\":25,' record && $MAR generate --num 25 --out plain.png" QUICK
          "&& cmp plain.png grid.png");
    shell(d, "$MAR eval --num_images 20 --store all --out eval2" QUICK "--class 1,3 && " TOKENS ">made && "
             "$MAR generate --num 10 --store all --out two.png" QUICK "--class 1,3 && " TOKENS "| cmp made -");
    /* Any images may be missing in a directory. The text in its pictures equals that of a run without a store. */
    shell(d, "$MAR generate --num 12 --out plain" QUICK "&& $MAR generate --num 12 --out part --store all" QUICK
             "&& ls all/runs/* >pieces && rm part/00000[258].png && $MAR generate --num 12 --out part --store all "
             "--resume" QUICK "&& diff -r plain part && ls all/runs/* | cmp pieces -");
    /* With drafts, the status of tokens is kept for the map and the statistics. */
    shell(d, "for i in 0 1; do $MAR generate --num 20 --draft self --gamma 8 --out a --overwrite --json --accept_map "
             "map.$i.png "
             "--store all" QUICK ">record.$i || exit 1; done; " TOKENS ">made; "
             "$MAR generate --num 20 --draft self --gamma 8 --out b --accept_map map.2.png" QUICK
             "&& cmp map.0.png map.1.png && cmp map.0.png map.2.png && diff -r a b");
    shell(d, "for i in 0 1; do tr , '\\n' <record.$i | sed '/images_stored/d; /accept_map/d; "
             "s/\"[a-z_]*seconds[a-z_]*\":.*//' "
             ">same.$i; done; grep -q '\"images_stored\":20,' record.1 && grep -q acceptance_per_step same.0 && "
             "cmp same.0 same.1");
    shell(d,
          "$MAR fidelity --num 20 --store all --out f.html --json --draft self --gamma 8" QUICK AGAINST
          ">shared && " TOKENS ">now && test $(grep -vxFf now made | wc -l) = 0 && "
          "$MAR fidelity --num 20 --out f.html --json --draft self --gamma 8" QUICK AGAINST ">alone && "
          "for f in shared alone; do grep -o '\"acceptance_per[a-z_]*\":[^]]*\\|\"energy_[a-z]*\":{[^}]*}' $f >$f.d; "
          "done; test -s alone.d && cmp alone.d shared.d");
    /* A damaged piece is made again. */
    shell(d,
          "for f in $(ls all/runs/*/000010-000019.*.npz | grep -v features); do echo x >$f; done; "
          "$MAR generate --num 25 --store all --out again.png" QUICK "2>err; test $? = 0 && cmp again.png plain.png && "
          "grep -q 'is damaged, expected images 10 to 19' err && "
          "$MAR generate --num 25 --store all --out again.png --json" QUICK "| grep -q '\"images_stored\":25,'");
}

enum { WAIT_MS = 60000 };

/* Starts the command, and sends the signal when the store has `count` batches or more. Returns its status as a shell
 * shows it. */
static int stop_at(const char *directory, const char *arguments, int count, int number)
{
    char line[200];
    const pid_t child = command_start(directory, arguments);
    snprintf(line, sizeof line, "test $(ls s/runs/*/*.npz 2>/dev/null | wc -l) -ge %d", count);
    for (int ms = 0, there = 0; !there; ms += 20) {
        command_result r = command_run(directory, line);
        there = r.status == 0;
        command_result_free(&r);
        if (ms > WAIT_MS) fail_msg("%s: no batches after %d ms", arguments, ms);
        usleep(20000);
    }
    kill(child, number);
    return command_wait(child);
}

/* Stops a grid at many moments. It continues where it was, and ends the same. */
static void stopped_grids(void **state)
{
    static const char run[] = "generate --class 3 --num 60 --batch 4 --num_iter 8 --num_sampling_steps 10 --store s "
                              "--out g.png";
    const char *d = *state;
    assert_int_equal(stop_at(d, run, 2, SIGKILL), 128 + SIGKILL);
    shell(d, "ls -i s/runs/*/*.npz >made && test ! -e g.png");
    assert_int_equal(stop_at(d, run, 6, SIGTERM), 128 + SIGTERM);
    shell(d, "grep -q ' of 60 images were made, they are on the grid g.png; the same command goes on$' errors && "
             "ls -i s/runs/*/*.npz >now && test $(grep -vxFf now made | wc -l) = 0 && "
             "$MAR generate --class 3 --num 60 --batch 4 --num_iter 8 --num_sampling_steps 10 --store s --out g.png "
             "--quiet && ls -i s/runs/*/*.npz >end && test $(grep -vxFf end now | wc -l) = 0 && "
             "$MAR generate --class 3 --num 60 --batch 4 --num_iter 8 --num_sampling_steps 10 --out plain.png --quiet "
             "&& cmp plain.png g.png");
}

/* Compares and keeps tokens of a model without an image decoder. */
static void without_decoder(void **state)
{
    const char *d = *state;
    shell(d, "$MAR convert demo m.safetensors");
    for (int i = 0; i < 2; i++)
        shell(d, "$MAR fidelity --model m.safetensors --num 20 --store all --out f.html --head_spec 3" QUICK AGAINST
                 "&& " TOKENS ">made && test $(wc -l <made) = 4");
}

/* Checks that another image decoder makes the same tokens, unless drafts are accepted by its codebook. */
static void other_decoders(void **state)
{
    const char *d = *state;
    const char each[] = "for vq in demo-discrete vq.safetensors; do $MAR eval --model demo-discrete --vq $vq --class 3 "
                        "--num_images 10 --store %s --out %s.$vq --quiet%s || exit 1; done; test $(ls %s/runs | wc "
                        "-l) = %d";
    char line[500];
    shell(d, "$MAR convert demo-discrete-vq vq.safetensors");
    snprintf(line, sizeof line, each, "plain", "plain", "", "plain", 1);
    shell(d, line);
    snprintf(line, sizeof line, each, "near", "near", " --draft demo-discrete-draft --spec lantern", "near", 2);
    shell(d, line);
}

/* Checks that another instruction set, whose bits differ, makes its own images. */
static void instruction_sets(void **state)
{
    shell(*state, "for isa in generic other; do MAR_ISA=$isa $MAR eval --dtype f32 --num_images 20 --store all "
                  "--out $isa" QUICK "|| exit 1; done; test $(ls all/runs | wc -l) = 2");
}

/* Runs different commands at the same time on the same images. */
static void commands_at_a_time(void **state)
{
    const char *d = *state;
    shell(d, "$MAR eval --cfg 2 --num_images 40 --out plain" QUICK "&& mkdir all && for i in 1 2; do "
             "$MAR eval --cfg 2 --num_images 40 --store all --out run$i" QUICK "& done; "
             "$MAR fidelity --num 40 --store all --out f.html --cfg 2" QUICK AGAINST
             "--cfg 2 --head_spec 4; s=$?; wait; " TOKENS ">made; test $s = 0 && test $(wc -l <made) = 8");
    same_numbers(d, "plain", "run1");
    same_numbers(d, "plain", "run2");
}

/* Tests stores that cannot be used. */
static void refused_stores(void **state)
{
    static const char *const lines[][2] = {
        {"eval --store a.png", "--store a.png: expected a directory"},
        {"eval --store file", "file: is a file, expected a directory"},
        {"eval --store file/x", "file/x: "},
        {"eval --images x --store y", "--store: has no effect with --images"},
        {"eval --out run --merge", "shards are missing (0-9), expected all of them for --merge, and --store if the run "
                                   "has one"},
        {"generate --store a.png", "--store a.png: expected a directory"},
        {"generate --store file --out d", "file: is a file, expected a directory"},
        {"generate --store file/x --out d", "file/x: "},
        {"generate --store new --out d --class 10", "class 10: out of range"},
        {"fidelity --store file --num 20 --lazy --against", "file: is a file, expected a directory"},
    };
    const char *d = *state;
    shell(d,
          "echo mine >file; $MAR eval --num_images 20 --shard_images 2 --batch 2 --num_iter 2 --num_sampling_steps 2 "
          "--store all --out run --quiet && $MAR eval --out run --store all --merge --quiet");
    for (size_t i = 0; i < sizeof lines / sizeof *lines; i++) {
        char line[300];
        snprintf(line, sizeof line, "$MAR %s", lines[i][0]);
        command_result r = command_run(d, line);
        if (r.status != 1 || !strstr(r.err, lines[i][1]) || strchr(r.err, '\n')[1])
            fail_msg("%s: status %d, \"%s\", expected \"%s\"", line, r.status, r.err, lines[i][1]);
        command_result_free(&r);
    }
    assert_int_equal(count_files(d), 3);
}

int main(void)
{
#define TEST(f) cmocka_unit_test_setup_teardown(f, command_setup, command_teardown)
    const struct CMUnitTest tests[] = {
        TEST(pieces),
        TEST(damage),
        TEST(runs),
        TEST(locks),
        TEST(commands_share),
        TEST(generate_shares),
        TEST(stopped_grids),
        TEST(without_decoder),
        TEST(other_decoders),
        TEST(instruction_sets),
        TEST(commands_at_a_time),
        TEST(refused_stores),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
