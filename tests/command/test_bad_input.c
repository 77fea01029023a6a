/* Bad input: one line on stderr names the fault, the status is 1 and no file is left. Also tests --help. */
#include "tests/support/archive.h"
#include "tests/support/command.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* Ranges of the tables' options are for test_option_table.c, the parser's words for test_options.c. */
COMMAND_CASE(options)
{
    static const refusal cases[] = {
        {"generate --num_iter 65x", "--num_iter 65x", "0 to 65536"},
        {"generate --num_iter 65", "--num_iter 65", "0..64"},
        {"generate --num_iter", "--num_iter", "found nothing"},
        {"generate --num 0", "--num 0", "1 to 1000000"},
        {"generate --num 99999999999999999999", "--num 99999999999999999999", "1 to 1000000"},
        {"generate --num 200000", "--num 200000", "10"},
        {"generate --class 10", "class 10", "0 to 9"},
        {"generate --class -1", "class -1", "0 to 9"},
        {"generate --class 3,,4", "--class"},
        {"generate --class cat", "\"cat\"", "0 to 9"},
        {"generate --device 0", "--device", "--backend cuda"},
        {"generate --devices 0,0", "--devices 0,0", "0"},
        {"eval --devices 0,1 --backend cpu", "--devices", "--backend cpu"},
        {"eval --devices 0 --merge", "--devices", "--merge"},
        {"bench --backend cpu --device 0", "--device", "--backend cuda"},
        {"generate --batch 0", "--batch 0", "1 to 1024"},
        {"generate --heads 0", "--heads 0", "1 to 1024"},
        {"bench --heads 2,2,2", "--heads 2,2,2", "1 to 1024"},
        {"inspect demo --heads 2x", "--heads 2x", "1 to 1024"},
        {"generate --heads 2,7", "demo: the decoder's 7 attention heads", "--heads"},
        {"generate --model demo-discrete --heads 4,2", "--heads 4,2", "a LlamaGen model\n"},
        {"generate --heads 7", "demo: 7 attention heads", "--heads"},
        {"generate --dtype bf16 --head_dtype int8", "--head_dtype int8"},
        {"generate --int8_below 500", "--int8_below", "--dtype int8"},
        {"bench --dtype bf16 --int8_below 500", "--int8_below", "--dtype int8"},
        {"generate --dtype int8 --int8_below 1001", "--int8_below 1001", "1 to 1000"},
        {"generate --dtype int8 --backend cuda", "mar: --", "cuda"},
        {"generate --backend cpu --tuning x", "--tuning", "--backend cpu"},
        {"bench --tune", "--tune", "--tuning"},
        {"eval --images x --int8_below 5", "--int8_below"},
        {"stats x --out y.npz --int8_below 5", "--int8_below", "mar stats"},
        {"generate --dtype f32 --head_dtype bf16", "--head_dtype bf16", "--dtype"},
        {"generate --nun_iter 3", "--nun_iter", "did you mean --num_iter?"},
        {"generate --frobnicate", "--frobnicate", "--help"},
        {"generate dog", "dog: unexpected argument", "did you mean --class dog"},
        {"generate 'a cat'", "a cat: unexpected argument", "did you mean --class 'a cat'"},
        {"generate 3", "3: unexpected argument", "did you mean --class 3?"},
        {"eval pictures/", "pictures/: unexpected argument", "did you mean --images pictures/?"},
        {"eval x.npz", "x.npz: unexpected argument", "did you mean --images x.npz?"},
        {"generate --batch-size 4", "--batch-size", "did you mean --batch?"},
        {"generate --batch_size=4", "--batch_size", "did you mean --batch?"},
        {"generate --steps 9", "--steps", "did you mean --num_iter"},
        {"generate --num-inference-steps 9", "--num-inference-steps", "did you mean --num_iter"},
        {"generate --guidance 3", "--guidance", "did you mean --cfg?"},
        {"generate --guidance-scale 3", "--guidance-scale", "did you mean --cfg?"},
        {"generate --num-samples 3", "--num-samples", "did you mean --num?"},
        {"eval --num_samples 3", "--num_samples", "did you mean --num_images?"},
        {"generate --output x", "--output", "did you mean --out?"},
        {"generate --gpt-ckpt x", "--gpt-ckpt", "did you mean --model?"},
        {"generate --vq-ckpt x", "--vq-ckpt", "did you mean --vq?"},
        {"generate --fp16", "--fp16", "did you mean --dtype?"},
        {"generate --cuda", "--cuda", "did you mean --backend cuda?"},
        {"eval --ref x", "--ref", "did you mean --stats?"},
        {"stats x --batch-size 3", "--batch-size", "did you mean --batch?"},
        {"serve --host 0.0.0.0", "--host", "did you mean --listen?"},
        {"generate dog.png", "dog.png: unexpected argument", "did you mean --out dog.png?"},
        {"bench mar.pth", "mar.pth: unexpected argument", "did you mean --model mar.pth?"},
        {"methods cspd", "cspd: unexpected argument", "did you mean --name cspd?"},
        {"generate -n 3", "-n: unknown option", "did you mean --num?"},
        {"generate --text dog", "--text: encodes prompts", "expected --prompt"},
        {"generate --negative_prompt dog", "--negative_prompt", "did you mean --negative?"},
        {"generate --negative dog", "--negative", "--prompt"},
        {"generate --model demo-t2i --prompt seven --negative dog", "--negative", "in its file\n"},
        {"generate --prompt dog", "--prompt"},
        {"generate --width 512", "--width", "did you mean --size?"},
        {"generate --size 512", "--size 512", "16384"},
        {"generate --size 256x256", "--size"},
        {"generate --version", "--version"},
        {"generate --model Demo", "Demo: cannot open:", "did you mean demo?"},
        {"generate --model Demo --vae demo", "Demo: cannot open:", "did you mean demo?"},
        {"bench --draft demo_draft", "demo_draft: cannot open:", "did you mean demo-draft?"},
        {"generate --help paint", "--help paint", "Images, Model, "},
        {"version", "version: unknown command", "did you mean mar --version?"},
        {"-v", "-v: unknown command", "did you mean mar -V?"},
        {"generat", "generat: unknown command", "did you mean mar generate?"},
        {"tune", "tune: unknown command", "did you mean mar bench --tune?"},
        {"frobnicate", "frobnicate: unknown command"},
        {"--frobnicate", "--frobnicate", "unknown command"},
        {"generate --spec cspd", "--spec", "--draft"},
        {"generate --spec eagle --draft demo-draft", "--spec eagle"},
        {"generate --draft demo-draft --spec cspd --head_spec 4", "--head_spec", "--spec cspd"},
        {"generate --gamma 4", "--gamma", "--draft"},
        {"generate --prefill 0.1", "--prefill", "--draft"},
        {"generate --context full", "--context", "--draft"},
        {"generate --align off", "--align", "--draft"},
        {"generate --inner_temperature 1", "--inner_temperature", "--draft"},
        {"generate --draft demo-draft --inner_temperature 1", "--inner_temperature", "--spec"},
        {"generate --draft demo-draft --spec paper --inner_temperature 1", "--inner_temperature", "--spec"},
        {"generate --draft demo-draft --head_spec 4 --gamma 4", "--gamma", "--head_spec"},
        {"generate --draft demo-draft --head_spec 4 --align off", "--align", "--spec conditional"},
        {"generate --draft demo-draft --align off", "--align", "--spec conditional"},
        {"generate --draft self --spec cspd", "--draft self", "--spec cspd"},
        {"bench --spec paper --draft self", "--draft self", "--spec path"},
        {"fidelity --draft self --against --draft self --spec conditional", "--draft self", "--spec path"},
        {"eval --draft self --spec paper --num_images 20", "--draft self", "--spec path"},
        {"generate --draft ./self", "./self: cannot open"},
        {"generate --draft Self", "Self: cannot open"},
        {"generate --draft self --prefill 0.1", "--prefill", "--draft"},
        {"generate --draft self --context full", "--context", "--draft"},
        {"generate --draft self --align on", "--align", "--draft"},
        {"generate --spec path --context full", "--context", "--draft"},
        {"generate --spec path --prefill 0.1", "--prefill", "--draft"},
        {"generate --spec path --draft demo-draft --align on", "--align", "--spec conditional"},
        {"generate --spec path --lazy", "--lazy", "--spec path"},
        {"generate --draft demo-draft --context prefix --gamma auto", "--gamma auto", "--context prefix"},
        {"generate --draft demo-draft --context prefix --round_costs 1", "--round_costs", "--context prefix"},
        {"generate --spec path --round_costs 1,0.9", "--round_costs 1,0.9", "1.05,1.1,1.3"},
        {"generate --spec path --round_costs 1,1+0.1", "--round_costs 1,1+0.1", "1.05,1.1,1.3"},
        {"generate --spec path --round_costs 1,1 --gamma 2", "--round_costs 1,1", "up to 2, the --gamma"},
        {"generate --spec path --round_costs 1,1 --num_iter 2", "--round_costs 1,1", "up to 2, the steps of an image"},
        {"generate --draft self --sampler ddim", "--sampler", "--spec path"},
        {"generate --draft demo-draft --spec conditional --diff_annealing linear", "--diff_annealing",
         "--spec conditional"},
        {"generate --draft demo-draft --lazy", "--lazy", "--draft"},
        {"generate --head_spec 4 --sampler ddim", "--sampler", "--head_spec"},
        {"generate --temperature 0.5 --sampler ddim", "--temperature 0.5", "--sampler"},
        {"generate --cfg_interval 5", "--cfg_interval 5", " continuous\n"},
        {"generate --cfg_interval 0.8,0.2", "--cfg_interval 0.8,0.2", "0 to 1"},
        {"generate --cfg_interval=0.2,x", "--cfg_interval 0.2,x", "expected LOW,HIGH, "},
        {"generate --cfg_low 0.8 --cfg_high 0.2", "--cfg_low 0.8", "--cfg_high"},
        {"generate --lazy --gtr", "--gtr", "--lazy"},
        {"generate --gtr --gtr_generation_steps 60", "--gtr_generation_steps 60", "1..32"},
        {"generate --lazy --num_iter 2", "--lazy", "--num_iter"},
        {"generate --lazy=on", "--lazy", "takes no value"},
        {"generate --diff_upper_steps 20", "--diff_upper_steps", "--diff_annealing"},
        {"generate --diff_lower_steps 2 --diff_annealing off", "--diff_lower_steps", "--diff_annealing"},
        {"generate --diff_annealing linear --num_sampling_steps 50", "--num_sampling_steps", "--diff_annealing"},
        {"generate --diff_annealing linear --diff_upper_steps 5 --diff_lower_steps 6", "--diff_upper_steps 5",
         "--diff_lower_steps"},
        {"generate --gtr --num_iter 8", "--num_iter", "--gtr"},
        {"generate --gtr_generation_steps 8", "--gtr_generation_steps", "needs --gtr"},
        {"generate --gtr_reconstruction_steps 8", "--gtr_reconstruction_steps", "needs --gtr"},
        {"generate --gtr_detail 0.5", "--gtr_detail", "needs --gtr"},
        {"generate --gtr_sampling_steps 8", "--gtr_sampling_steps", "needs --gtr"},
        {"generate --gtr --gtr_sampling_steps 101", "--gtr_sampling_steps 101", "--num_sampling_steps"},
        {"generate --seq_len 64", "--seq_len"},
        {"stats images --seq_len 64", "--seq_len", "--help"},
        {"stats images --width 64", "--width", "--help"}, /* stats makes no images */
        {"inspect model.pth --prompt x", "--prompt", "--help"},
        {"generate --accept_map x.png", "--accept_map x.png", "--spec path"},
        {"generate --draft demo-draft --head_spec 4 --accept_map x.png", "--accept_map x.png", "--draft"},
        {"bench --gamma 4", "--gamma", "--draft"},
        {"fidelity --gamma 4 --against", "--gamma", "--draft"},
        {"fidelity --draft demo-draft --gamma 4 --versus --gamma 4 --against", "--gamma", "--draft"},
        {"methods --name foo", "--name foo", "conditional, paper, cspd"},
        {"methods --name cspf", "--name cspf", "did you mean cspd?"},
        {"inspect", "FILE is missing", "--help"},
        {"inspect a b", "b:", "--help"},
        {"convert demo demo.pth", "demo.pth:"},
        {"convert absent.pth out", "out:"}, /* before any work */
        {"fidelity --versus --against --out page", "page:"},
        {"fidelity --versus --model absent.pth --against -o x.png", "x.png:"},
        {"convert only_one", "OUT.safetensors is missing", "--help"},
        {"convert demo out.safetensors --dtype f64", "--dtype f64"},
        {"convert demo-vae out.safetensors --dtype int8", "--dtype int8"},
        {"bench --frobnicate", "--frobnicate", "--help"},
    };
    command_refuses(*state, cases, LENGTH(cases));
}

/* Writes a file with one tensor of one number. */
static void write_named(const char *directory, const char *file, const char *tensor)
{
    char header[256];
    snprintf(header, sizeof header, "{\"%s\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}", tensor);
    bytes b = make_safetensors(header, 4);
    bytes_to_file(&b, path_in(directory, "%s", file));
    bytes_free(&b);
}

COMMAND_CASE(inputs)
{
    const char *d = *state;
    char line[4096], source[2048];
    if (!getcwd(source, sizeof source)) fail_msg("no current directory");
    setenv("SOURCE", source, 1);
    command_ok(d, "convert demo good.safetensors");
    command_ok(d, "convert demo-vae vae.safetensors");
    size_t size;
    char *model = read_whole_file(d, "good.safetensors", &size);
    write_whole_file(d, "half.safetensors", model, size / 2);
    write_whole_file(d, "head.safetensors", model, 100);
    write_whole_file(d, "empty.safetensors", "", 0);
    write_whole_file(d, "text.pth", "not a model\n", 12);
    mkdir((snprintf(line, sizeof line, "%s/dir.pth", d), line), 0777);
    mkdir((snprintf(line, sizeof line, "%s/dir.safetensors", d), line), 0777);
    free(model);
    write_named(d, "sd.safetensors", "model.diffusion_model.out.2.bias");
    write_named(d, "diffusers.safetensors", "decoder.mid_block.resnets.0.conv1.bias");
    write_named(d, "other.safetensors", "weight");
    mkdir((snprintf(line, sizeof line, "%s/folder", d), line), 0777);
    write_named(d, "folder/diffusion_pytorch_model.safetensors", "decoder.mid_block.resnets.0.conv1.bias");
    write_whole_file(d, "folder/config.json", "{}", 2);
    write_whole_file(d, "x.gguf", "GGUF\3\0\0\0\0\0\0\0", 12);
    sh_ok(d, "cp \"$SOURCE/tests/weights/data/mar.pth\" guess.pth && "
             "cp \"$SOURCE/tests/weights/data/vae.ckpt\" only.ckpt");

    static const refusal cases[] = {
        {"generate --model good.safetensors", "--vae", "kl16.ckpt"},
        {"generate --model nothing.pth", "nothing.pth: cannot open", "No such file"},
        {"generate --model text.pth", "text.pth: 12 bytes"},
        {"eval --model half.safetensors --features demo --out e", "half.safetensors: tensor", "truncated?"},
        {"eval --out text.pth", "--out text.pth"},
        {"generate --model nothing.pth --vae demo --class 1", "nothing.pth", "No such file"},
        {"generate --vae nothing.ckpt", "nothing.ckpt", "No such file"},
        {"generate --model half.safetensors --vae demo --class 1", "half.safetensors: tensor", "file truncated?"},
        {"generate --model head.safetensors --vae demo --class 1", "head.safetensors: the header says", "truncated?"},
        {"generate --model empty.safetensors --vae demo --class 1", "empty.safetensors: 0 bytes"},
        {"generate --model text.pth --vae demo --class 1", "text.pth: 12 bytes"},
        {"generate --model dir.pth --vae demo --class 1", "dir.pth: is a directory"},
        {"generate --vae folder", "folder: is a directory:"},
        {"inspect folder/", "folder/: is a directory: give"},
        {"inspect .", ".: is a directory: give one of its checkpoints"},
        {"generate --model x.gguf --vae demo --class 1", "x.gguf: is a GGUF file", " a file of torch.save\n"},
        {"inspect x.gguf", "x.gguf: is a GGUF file", " a file of torch.save\n"},
        {"generate --vae sd.safetensors", "sd.safetensors: is a Stable Diffusion checkpoint"},
        {"bench --model sd.safetensors", "sd.safetensors: is a Stable Diffusion checkpoint", "alone\n"},
        {"convert sd.safetensors out.safetensors", "sd.safetensors: is a Stable Diffusion checkpoint", "alone\n"},
        {"generate --vae diffusers.safetensors", "diffusers.safetensors: is an autoencoder with diffusers' names"},
        {"convert diffusers.safetensors out.safetensors",
         "diffusers.safetensors: is an autoencoder with diffusers' names"},
        {"generate --vae other.safetensors", "other.safetensors: not a KL autoencoder"},
        {"generate --model other.safetensors --vae demo --class 1", "other.safetensors: neither a MAR model",
         "(no eagle.fc.weight)\n"},
        {"generate --model guess.pth --vae demo --class 1", "guess.pth: its width of 16 is no official model's",
         "--heads"},
        {"bench --model guess.pth", "guess.pth: its width of 16", "--heads"},
        {"fidelity --num 20 --model guess.pth --vae demo --against --lazy", "guess.pth: its width of 16", "--heads"},
        {"eval --num_images 20 --model guess.pth --vae demo --features demo --out run", "guess.pth: its width of 16",
         "--heads"},
        {"generate --draft guess.pth", "guess.pth: its width of 16", "--heads"},
        {"generate --weights both", "--weights both", "auto, ema or model"},
        {"inspect good.safetensors --weights ema", "--weights", "weights\n"},
        {"convert good.safetensors out.safetensors --weights ema", "--weights", "weights\n"},
        {"generate --model only.ckpt --weights ema --vae demo --class 1", "--weights ema", "but weights model\n"},
        {"generate --vae half.safetensors", "half.safetensors: tensor", "file truncated?"},
        {"generate --vae good.safetensors", "good.safetensors: is a MAR model", "--model"},
        {"generate --vae demo-draft", "demo-draft: is a MAR model", "--model"},
        {"generate --model demo-vae", "demo-vae: is an image decoder", "--vae"},
        {"generate --model demo-vae --vae demo", "demo-vae: is an image decoder", "--vae"},
        {"generate --draft demo-vae", "demo-vae: is an image decoder"},
        {"bench --model demo-vae", "demo-vae: is an image decoder", "--vae"},
        {"generate --model vae.safetensors", "vae.safetensors: is an image decoder", "--vae"},
        {"generate --model num_iter --vae demo", "num_iter: cannot open"}, /* file names stay as given */
        {"generate --draft seed", "seed: cannot open"},
        {"generate --model \"$(printf 'a\\nb')\" --vae demo", "a\\nb", "No such file"},
        {"generate --model good.safetensors --vae demo", "--class", "0 to 9"},
        {"fidelity --num 20 --model demo --against --model good.safetensors", "--vae"},
        {"fidelity --num 20 --model good.safetensors --against --model demo", "--vae"},
        {"inspect good.safetensors --heads 7", "good.safetensors: 7 attention heads", "--heads"},
        {"inspect nothing.pth", "nothing.pth", "No such file"},
        {"inspect half.safetensors", "half.safetensors: tensor", "file truncated?"},
        {"convert nothing.pth out.safetensors", "nothing.pth", "No such file"},
        {"convert half.safetensors out.safetensors", "half.safetensors: tensor", "file truncated?"},
        {"convert good.safetensors dir.safetensors", "dir.safetensors", "is a directory"},
        {"convert good.safetensors no/such/out.safetensors", "no/such/out.safetensors: cannot write", "No such file"},
    };
    command_refuses(d, cases, LENGTH(cases));
    command_refused(d, "$MAR generate --model \"$SOURCE/weights/demo/vae.safetensors\" --vae demo --class 1",
                    "vae.safetensors: is an image decoder", "; give it as --vae\n");
}

#define QUICK "--num_iter 2 --num_sampling_steps 2 "

COMMAND_CASE(outputs)
{
    const char *d = *state;
    char path[4096];
    mkdir((snprintf(path, sizeof path, "%s/taken.png", d), path), 0777);
    write_whole_file(d, "file", "x", 1);
    assert_int_equal(symlink("nowhere", (snprintf(path, sizeof path, "%s/dangling", d), path)), 0);

    static const refusal cases[] = {
        {"generate --out taken.png", "taken.png", "is a directory"},
        {"generate --out file", "file", "expected a directory"},
        {"generate --out file/x.png", "file/x.png", "Not a directory"},
        {"generate --out /proc/no/such/x.png", "/proc/no", "No such file"},
        {"generate --out /proc/no/such", "/proc/no", "No such file"},
        {"generate --out file/no/such/x.png", "file/no", "Not a directory"},
        {"generate --out new/such.gif", "new/such.gif", "ending in .png"},
        {"generate --out - --json", "--json", "--out"},
        {"generate --out - --resume", "--resume", "expected a directory"},
        {"generate --out x.png --resume", "--resume", "expected a directory"},
        {"generate --out x.png --grid", "--grid", "--out"},
        {"generate --num 2 --out - --grid", "--grid", "--out"},
        {"generate --grid", "--grid", "--out"},
        {"generate --out dangling", "dangling: is a link to what is not there", "expected a directory"},
        {"generate --out dangling/ --draft nothing.pth", "dangling: is a link", "expected a directory"},
        {"generate --out dangling/new/such", "dangling: is a link", "expected a directory"},
        {"generate --out dangling/x.png", "dangling: is a link", "expected a directory"},
        {"generate --draft demo-draft --out new --accept_map x.png --resume", "--resume", "--accept_map"},
        {"generate --out x.gif", "x.gif", "ending in .png"},
        {"generate --out x.svg", "x.svg", "ending in .png"},
        {"generate --out ''", "--out", "a directory, FILE.png"},
        {"generate --out", "--out", "found nothing"},
        {"generate --out --grid", "--out", "--grid"},
        {"generate --out /dev/null", "/dev/null", "is a file"},
        {"generate --out /proc/x.png", "/proc/x.png", "cannot write"},
        {"generate --out /proc/x", "/proc/x", "cannot write"},
        {"generate --draft demo-draft --accept_map taken.png", "taken.png", "is a directory"},
        {"generate --draft demo-draft --accept_map .", ".", "a name ending in .png"},
        {"generate --draft demo-draft --accept_map x.jpg", "x.jpg", "a name ending in .png"},
        {"generate --draft demo-draft --accept_map no/such/x.png", "no/such/x.png", "No such file"},
        {"generate --draft demo-draft --accept_map ./mar.png", "--accept_map ./mar.png", "--out"},
        {"generate --draft demo-draft --out . --accept_map 000001.png", "000001.png", "--out"},
        {"generate --draft nothing.pth --accept_map taken.png", "taken.png", "is a directory"}, /* before loading */
        {"generate --num 10000 --out x.png", "x.png", "100000000"},
        {"generate --num 10000 --out x --grid", "x", "100000000"},
    };
    command_refuses(*state, cases, LENGTH(cases));
    /* 300 bytes are too long for a name with or without a suffix. */
    command_refused(d, "$MAR generate --out $(printf %0300d 1).png", "00001.png", "File name too long");
}

COMMAND_CASE(unwritable_directory)
{
    const char *d = *state;
    if (geteuid() == 0) skip(); /* root may write anywhere; outputs() uses /proc for that */
    sh_ok(d, "mkdir locked && chmod 555 locked");
    command_refused(d, "$MAR generate --out locked", "locked", "Permission denied");
    command_refused(d, "$MAR generate --out locked/x.png", "locked/x.png", "Permission denied");
    command_refused(d, "$MAR generate --out locked/sub", "locked/sub", "Permission denied");
}

/* Limits the file size, a full disk that any user can have; a unit is 512 bytes. The nightly tests do more
 * (test_full_disk.c). */
COMMAND_CASE(full_disk)
{
    const char *d = *state;
    command_refused(d, "ulimit -f 1; $MAR generate --class 1 --num 1 " QUICK "--out x", "x/000000.png",
                    "File too large");
    command_refused(d, "ulimit -f 1; $MAR convert demo x.safetensors", "x.safetensors", "cannot write");
    command_refused(d, "$MAR --help >/dev/full", "standard output", "No space left on device");
    write_whole_file(d, "x.png", "old", 3);
    command_refused(d, "ulimit -f 1; $MAR generate --class 1 --num 4 " QUICK "--out x.png", "x.png", "File too large");
    char *text = read_whole_file(d, "x.png", NULL);
    assert_string_equal(text, "old");
    free(text);
}

/* Checks that help fits 80 columns, has an example and says where to read on. It has at most 24 lines. With the common
 * options of a run it has at most 40. Help that lists all of these has no limit. */
COMMAND_CASE(help)
{
    static const struct {
        const char *line;
        int most; /* lines; more than 24 with the options of a run */
        int points;
    } lines[] = {{"--help", 24, 1},           {"", 24, 1},
                 {"inspect --help", 24, 0},   {"convert --help", 24, 0},
                 {"classes --help", 24, 0},   {"methods --help", 24, 0},
                 {"generate --help", 43, 1},  {"help generate", 43, 1},
                 {"generate -h", 43, 1},      {"bench --help", 1000, 0},
                 {"fidelity --help", 1000, 0}};
    for (size_t i = 0; i < LENGTH(lines); i++) {
        command_result r = command_mar(*state, "%s", lines[i].line);
        int count = 0;
        assert_int_equal(r.status, 0);
        assert_string_equal(r.err, "");
        assert_has(r.out, "usage: mar");
        assert_has(r.out, "example");
        for (char *line = r.out, *end; (end = strchr(line, '\n')); line = end + 1, count++)
            if (end - line > 80) fail_msg("%s: %td columns: %.*s", lines[i].line, end - line, (int)(end - line), line);
        if (count > lines[i].most) fail_msg("%s: %d lines", lines[i].line, count);
        if (lines[i].most > 24) assert_has(r.out, "--num_iter");
        if (lines[i].points) assert_has(r.out, "mar methods"), assert_has(r.out, "man mar");
        command_result_free(&r);
    }
    static const struct {
        const char *line, *has, *lacks;
    } parts[] = {
        {"generate --help all", "--cfg_interval LOW,HIGH|N", "--help GROUP"},
        {"help generate all", "--gtr_detail", "--help GROUP"},
        {"generate --help", "--help GROUP those of a group: Images, ", "--top_k"},
        {"generate --help steps", "Steps:\n  --num_iter", "\n\n"},
        {"generate --help Sampling", "Sampling:\n  --cfg ", "usage"},
        {"generate --help=speculation", "Speculation over discrete tokens:", "Steps:"},
        {"generate -h top_k", "Sampling:\n", "Steps:"},
        {"inspect --help model.pth", "usage: mar inspect", "--num_iter"},
    };
    for (size_t i = 0; i < LENGTH(parts); i++) {
        command_result part = command_mar(*state, "%s", parts[i].line);
        if (part.status != 0 || *part.err || !strstr(part.out, parts[i].has) || strstr(part.out, parts[i].lacks))
            fail_msg("%s: %d, %s%s", parts[i].line, part.status, part.out, part.err);
        command_result_free(&part);
    }
    command_result r = command_run(*state, "$MAR generate --cfg 3 --help");
    assert_has(r.out, "[auto]"); /* the default, not the given value */
    command_result_free(&r);
    r = command_run(*state, "$MAR --version");
    command_result letter = command_run(*state, "$MAR -V");
    assert_true(strncmp(r.out, "mar ", 4) == 0);
    assert_string_equal(letter.out, r.out);
    command_result_free(&letter);
    command_result_free(&r);
}

COMMAND_CASE(letters)
{
    command_ok(*state, "generate -qs7 -oa.png --class 3 --num 1 " QUICK);
    sh_ok(*state, "$MAR generate --quiet --seed 7 --class 3 --num 1 " QUICK
                  "--out b.png && cmp a.png b.png >out && test ! -s out");
}

/* Checks the warning about more threads than cores: once, with the number used, and not under --quiet. */
COMMAND_CASE(threads)
{
    static const char *const lines[] = {"generate --num 1 --threads 1024 " QUICK, "bench --threads 1024 " QUICK,
                                        "fidelity --versus " QUICK
                                        "--against --num 20 --dtype f32 --threads 1024 " QUICK};
    static const char warning[] = "mar: warning: --threads 1024: ";
    for (int i = 0; i < 5; i++) { /* bench has no --quiet */
        const int quiet = i > 2;
        command_result r = command_mar(*state, "%s%s", lines[quiet ? 2 * (i - 3) : i], quiet ? " --quiet" : "");
        if (r.status != 0 || (quiet ? *r.err
                                    : strncmp(r.err, warning, sizeof warning - 1) != 0 ||
                                          !strstr(r.err, " used, as many as") || strchr(r.err, '\n')[1]))
            fail_msg("%d: %d, %s", i, r.status, r.err);
        command_result_free(&r);
    }
    command_result r = command_run(*state, "$MAR generate --num 1 --threads 1 " QUICK);
    assert_string_equal(r.err, "");
    command_result_free(&r);
}

/* What the documents name is in the help; names are the same with dashes and underscores. */
COMMAND_CASE(names_that_work)
{
    sh_ok(
        *state,
        "$MAR generate --help | grep -q -e '^  --vae, --vq FILE ' && $MAR generate --help vq | grep -q -e '--vq FILE'");
    sh_ok(*state, "$MAR methods --name head_spec >a && $MAR methods --name head-spec >b && cmp a b && test -s a");
    sh_ok(*state, "$MAR --help | grep -q 'MAR, Harmon, NextStep-1, SphereAR, LlamaGen, Lumina-mGPT, Emu3$'");
}
