/* Wrong options and files of discrete tokens. Each is refused in one line that says what was expected. No image is
 * left. */
#include "tests/support/command.h"
#include "weights/npz.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DISCRETE      "generate --model demo-discrete "
#define DRAFTED       DISCRETE "--draft demo-discrete-draft "
#define TEXT_TO_IMAGE "generate --model t2i.safetensors --vq vq.pth "
#define SELF                                                                                                           \
    "--draft self: alone it is --spec path, which is for continuous tokens; for discrete ones expected --spec sjd, "   \
    "sjd-pac or scd beside it, or a file, which every other --spec for them needs: a smaller model or an "             \
    "EAGLE "                                                                                                           \
    "drafter"

COMMAND_CASE(numbers)
{
    static const refusal cases[] = {
        {DISCRETE "--top_k 257", "--top_k 257", "0..256"},
        {DISCRETE "--cfg_interval 1.5", "--cfg_interval 1.5", "1 to 65536"},
        {DISCRETE "--cfg_interval 63", "--cfg_interval 63", "1..62"},
        {DISCRETE "--cfg_interval 0.25,0.75", "--cfg_interval 0.25,0.75"},
        {DISCRETE "--num_iter 3", "--num_iter 3", "0"},
        {DISCRETE "--seq_len 49", "--seq_len 49", "64"},
        {DISCRETE "--spec sjd --window 65", "--window 65", "64"},
        {DISCRETE "--spec sjd --round_costs 1.1,1.5,1.2", "--round_costs 1.1,1.5,1.2", "1.05,1.1,1.3"},
        {DISCRETE "--spec sjd --round_costs 1.1+0.1", "--round_costs 1.1+0.1", "1.05,1.1,1.3"},
        {DRAFTED "--round_costs 1.1+x", "--round_costs 1.1+x", "1.05,1.1,1.3+0.02"},
        {DRAFTED "--tree static --round_costs 0.5", "--round_costs 0.5", "all 25 drafts"},
        {DRAFTED "--tree 2,1 --round_costs 1.5,2", "--round_costs 1.5,2", "all 4 drafts"},
        {DRAFTED "--gamma 65", "--gamma 65", "64"},
        {DRAFTED "--tree 2,x", "--tree 2,x", "4"},
        {DRAFTED "--spec lantern --lantern_k 257", "--lantern_k 257", "256"},
        {DRAFTED "--spec cool-sd-linear --cool_ell 3", "--cool_ell 3", "--gamma"},
    };
    command_refuses(*state, cases, LENGTH(cases));
}

COMMAND_CASE(combinations)
{
    static const refusal cases[] = {
        {DISCRETE "--draft self", SELF},
        {DISCRETE "--draft self --gamma 3", SELF},
        {DISCRETE "--draft self --window 4", SELF},
        {DISCRETE "--draft self --top_k 4", SELF},
        {"bench --model demo-discrete --draft self", SELF},
        {"fidelity --num 20 --model demo-discrete --against --draft self", SELF},
        {DISCRETE "--draft self --spec vanilla", "--draft self", "--spec vanilla"},
        {DISCRETE "--spec vanilla", "--spec", "--draft"},
        {DRAFTED "--spec sjd --tree dynamic", "--tree", "--spec vanilla"},
        {DRAFTED "--spec sjd", "--draft", "--spec sjd"},
        {DRAFTED "--tree 2,2 --gamma 4", "--gamma", "--tree"},
        {DRAFTED "--tree static --tree_top 3", "--tree_top", "--tree dynamic"},
        {DRAFTED "--cool_delta 0.5", "--cool_delta", "--spec"},
        {DISCRETE "--spec scd --pac_continue off", "--pac_continue", "--spec sjd"},
        {DISCRETE "--spec sjd --pac_children 2", "--pac_children", "--spec sjd"},
        {DRAFTED "--spec lantern --lantern_lambda 2", "--lantern_lambda", "--spec lantern-pp"},
        {DISCRETE "--head_spec 4", "--head_spec"},
        {DISCRETE "--head_dtype f32", "--head_dtype"},
        {DISCRETE "--captions x.npz", "--captions"},
        {"generate --top_k 3", "--top_k"},
    };
    command_refuses(*state, cases, LENGTH(cases));
}

COMMAND_CASE(files)
{
    static const refusal cases[] = {
        {DISCRETE "--draft demo-draft", "the draft is a model of family mar"},
        {"generate --draft demo-discrete-draft", "the draft is a model of family llamagen"},
        {"generate --draft demo-discrete-eagle", "the draft is a model of family eagle"},
        {DISCRETE "--vq demo", "demo: the VAE decodes continuous latents"},
        {"generate --vq demo-discrete", "demo-discrete: the VAE decodes numbers of a codebook"},
        {"generate --model demo-discrete-eagle", "demo-discrete-eagle: is an EAGLE drafter", "--draft"},
        {"generate --model demo-discrete-vq", "demo-discrete-vq: is an image decoder", "--vae"},
        {"bench --model model.safetensors --draft demo-discrete-draft --spec lantern", "--spec lantern", "--vq"},
        {"generate --model model.safetensors --class 1 --vq demo-discrete --draft demo-draft",
         "the draft is a model of family mar"},
    };
    command_ok(*state, "convert demo-discrete model.safetensors");
    command_refuses(*state, cases, LENGTH(cases));
}

/* Tests captions with a text-to-image model: up to 120 positions of 12 features. */
COMMAND_CASE(captions)
{
    static const char lacks[] =
        "--prompt is missing: t2i.safetensors makes images of prompts, expected one, and with --t5 the folder of "
        "a T5 of width 12; or --captions, what mar captions made of them";
    static const refusal cases[] = {
        {TEXT_TO_IMAGE, lacks},
        {TEXT_TO_IMAGE "--class 1", lacks},
        {TEXT_TO_IMAGE "--prompt x", "--t5", "--captions"},
        {TEXT_TO_IMAGE "--prompt x --t5 demo-t5", "demo-t5: a T5 of width", "128"},
        {TEXT_TO_IMAGE "--captions none.npz", "--captions none.npz"},
        {TEXT_TO_IMAGE "--captions text.npz", "--captions text.npz", "4"},
        {TEXT_TO_IMAGE "--captions c.npz --class 2", "--class", "0 to 1"},
        {TEXT_TO_IMAGE "--captions c.npz --draft demo-discrete-draft", "the draft's vocabulary has 256 tokens", "50"},
        {"generate --model t2i.safetensors --captions c.npz --vq demo-discrete", "demo-discrete: the VAE", "256"},
        {"bench --model t2i.safetensors --batch 1", lacks},
    };
    static const float features[2 * 3 * 12];
    static const int64_t shape[] = {2, 3, 12};
    static const char *const copies[][2] = {{"llamagen_t2i.safetensors", "t2i.safetensors"}, {"vq.pth", "vq.pth"}};
    char why[NPZ_WHY_MAX];
    npz_writer *w;
    for (size_t i = 0; i < 2; i++) {
        size_t size;
        char *bytes = read_whole_file("tests/golden/data", copies[i][0], &size);
        write_whole_file(*state, copies[i][1], bytes, size);
        free(bytes);
    }
    write_whole_file(*state, "text.npz", "none", 4);
    assert_int_equal(npz_writer_open(path_in(*state, "c.npz"), 0, &w, why), MAR_OK);
    assert_int_equal(npz_writer_add(w, "features", NPZ_F32, 3, shape, features, why), MAR_OK);
    assert_int_equal(npz_writer_commit(w, why), MAR_OK);
    command_refuses(*state, cases, LENGTH(cases));
    command_ok(*state, TEXT_TO_IMAGE "-q --captions c.npz");
    /* The store identifies images by the bytes of the captions. */
    command_ok(*state, TEXT_TO_IMAGE "-q --captions c.npz --store all --out a.png");
    sh_ok(*state, "cp c.npz d.npz && $MAR " TEXT_TO_IMAGE "--captions d.npz --store all --out b.png --json | grep -q "
                  "'\"images_stored\":2,' && cmp a.png mar.png");
}

/* Checks the refusal of options that contradict the file or that it cannot use. */
COMMAND_CASE(inspected)
{
    static const refusal cases[] = {
        {"inspect demo --seq_len 64", "--seq_len"},
        {"inspect demo-vae --seq_len 64", "--seq_len"},
        {"inspect demo-discrete-vq --json --seq_len 64", "--seq_len"},
        {"inspect demo-discrete-eagle --seq_len 64", "--seq_len"},
        {"inspect demo-discrete --seq_len 49", "--seq_len 49", "64"},
        {"inspect demo-vae --heads 4", "--heads"},
        {"convert demo x.safetensors --seq_len 64", "--seq_len"},
        {"convert demo-discrete-vq x.safetensors --seq_len 64", "--seq_len"},
        {"convert demo-discrete x.safetensors --seq_len 49", "--seq_len 49", "64"},
        {"convert demo-discrete-vq x.safetensors --heads 4", "--heads"},
        {"inspect demo-discrete-eagle --heads 3", "demo-discrete-eagle: 3 attention heads", "--heads"},
        {"convert demo x.safetensors --heads 7", "demo: 7 attention heads", "--heads"},
    };
    command_refuses(*state, cases, LENGTH(cases));
    command_ok(*state, "inspect demo-discrete --seq_len 64"); /* as in its metadata */
    command_ok(*state, "inspect demo-discrete-eagle --heads 2");
}

/* Checks that the limits themselves are accepted. */
COMMAND_CASE(most)
{
    command_ok(*state, DISCRETE "-q --class 3 --num 1 --spec sjd --window 64 --cfg_interval 62 --top_k 256");
    command_ok(*state, DRAFTED "-q --class 3 --num 1 --spec lantern --lantern_k 256 --gamma 64");
}
