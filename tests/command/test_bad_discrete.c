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

static void numbers(void **state)
{
    static const refusal cases[] = {
        {DISCRETE "--top_k 257", "--top_k 257: expected 0..256, the model's vocabulary"},
        {DISCRETE "--cfg_interval 1.5", "--cfg_interval 1.5: expected a whole number from -1 to 65536"},
        {DISCRETE "--cfg_interval 63", "--cfg_interval 63: expected -1..62, the number of an image's tokens less 2"},
        {DISCRETE "--cfg_interval 0.25,0.75",
         "--cfg_interval 0.25,0.75: expected one number, the last step with guidance, as the model's tokens are "
         "discrete"},
        {DISCRETE "--num_iter 3", "--num_iter 3: expected 0 or 64: the model makes its tokens one after another"},
        {DISCRETE "--seq_len 49", "--seq_len 49: the metadata of demo-discrete say 64"},
        {DISCRETE "--spec sjd --window 65", "--window 65: expected 64 at most, the tokens of an image"},
        {DRAFTED "--gamma 65", "--gamma 65: expected 64 at most, the tokens of an image"},
        {DRAFTED "--tree 2,x", "--tree 2,x: expected chain, static, dynamic, or the numbers of children by levels, "
                               "such as 4,2,1,1"},
        {DRAFTED "--spec lantern --lantern_k 257", "--lantern_k 257: expected 256 at most, the tokens of the codebook"},
        {DRAFTED "--spec cool-sd-linear --cool_ell 3",
         "--cool_ell 3: expected more than 8, which is --gamma: nothing drafted from number 3 on is accepted"},
    };
    command_refuses(*state, cases, LENGTH(cases));
}

static void combinations(void **state)
{
    static const refusal cases[] = {
        {DISCRETE "--draft self", SELF},
        {DISCRETE "--draft self --gamma 3", SELF},
        {DISCRETE "--draft self --window 4", SELF},
        {DISCRETE "--draft self --top_k 4", SELF},
        {"bench --model demo-discrete --draft self", SELF},
        {"fidelity --num 20 --model demo-discrete --against --draft self", SELF},
        {DISCRETE "--draft self --spec vanilla",
         "--draft self: with it the model drafts for itself, which --spec vanilla cannot verify; expected --spec path, "
         "sjd, sjd-pac or scd, or a draft model's file"},
        {DISCRETE "--spec vanilla", "--spec: needs --draft"},
        {DRAFTED "--spec sjd --tree dynamic", "--tree: needs --spec vanilla, uniform-rsd, cool-sd-exp, cool-sd-linear, "
                                              "lantern, lantern-pp, lantern-gstar or "
                                              "lantern-pp-gstar"},
        {DRAFTED "--spec sjd", "--draft and --spec sjd do not go together: --draft changes the drafting, which --spec "
                               "sjd needs unchanged; expected one of them"},
        {DRAFTED "--tree 2,2 --gamma 4", "--gamma: has no effect with --tree, expected the levels of --tree"},
        {DRAFTED "--tree static --tree_top 3", "--tree_top: needs --tree dynamic"},
        {DRAFTED "--cool_delta 0.5", "--cool_delta: needs --spec uniform-rsd, cool-sd-exp or cool-sd-linear"},
        {DISCRETE "--spec scd --pac_continue off", "--pac_continue: needs --spec sjd-pac"},
        {DISCRETE "--spec sjd --pac_children 2", "--pac_children: needs --spec sjd-pac or scd"},
        {DRAFTED "--spec lantern --lantern_lambda 2", "--lantern_lambda: needs --spec lantern-pp or lantern-pp-gstar"},
        {DISCRETE "--head_spec 4", "--head_spec has no effect: the model's tokens are discrete"},
        {DISCRETE "--head_dtype f32",
         "--head_dtype has no effect: the model's tokens are discrete, and it has no diffusion head"},
        {DISCRETE "--captions x.npz",
         "--captions: demo-discrete makes images of classes, expected a text-to-image model"},
        {"generate --top_k 3", "--top_k has no effect: the model's tokens are continuous"},
    };
    command_refuses(*state, cases, LENGTH(cases));
}

static void files(void **state)
{
    static const refusal cases[] = {
        {DISCRETE "--draft demo-draft",
         "the draft is a model of family mar, expected one of family llamagen, as the model is, or an EAGLE drafter"},
        {"generate --draft demo-discrete-draft",
         "the draft is a model of family llamagen, expected one of family mar, as the model is"},
        {"generate --draft demo-discrete-eagle",
         "the draft is a model of family eagle, expected one of family mar, as the model is"},
        {DISCRETE "--vq demo",
         "demo: the VAE decodes continuous latents (KL), but the model's tokens are numbers of a "
         "codebook: expected a VQ tokenizer"},
        {"generate --vq demo-discrete",
         "demo-discrete: the VAE decodes numbers of a codebook (VQ), but the model's tokens are "
         "continuous: expected a KL autoencoder"},
        {"generate --model demo-discrete-eagle",
         "demo-discrete-eagle: is an EAGLE drafter, expected a MAR, SphereAR or LlamaGen model; give it as "
         "--draft"},
        {"generate --model demo-discrete-vq", "demo-discrete-vq: is an image decoder (VQ autoencoder), expected a MAR, "
                                              "SphereAR or LlamaGen model; give it as --vae"},
        {"bench --model model.safetensors --draft demo-discrete-draft --spec lantern",
         "--spec lantern: needs the image decoder's codebook, which says what tokens are near: --vq is missing, "
         "expected its file"},
        {"generate --model model.safetensors --class 1 --vq demo-discrete --draft demo-draft",
         "the draft is a model of family mar, expected one of family llamagen, as the model is, or an EAGLE drafter"},
    };
    command_ok(*state, "convert demo-discrete model.safetensors");
    command_refuses(*state, cases, LENGTH(cases));
}

/* Tests captions with a text-to-image model: up to 120 positions of 12 features. */
static void captions(void **state)
{
    static const char lacks[] =
        "--prompt is missing: t2i.safetensors makes images of prompts, expected one, and with --t5 the folder of "
        "a T5 of width 12; or --captions, what mar captions made of them";
    static const refusal cases[] = {
        {TEXT_TO_IMAGE, lacks},
        {TEXT_TO_IMAGE "--class 1", lacks},
        {TEXT_TO_IMAGE "--prompt x", "--t5 is missing: t2i.safetensors takes prompts as a T5 of width 12 encodes them, "
                                     "expected the T5's folder; or --captions, what mar captions made of them"},
        {TEXT_TO_IMAGE "--prompt x --t5 demo-t5",
         "--t5 demo-t5: a T5 of width 128, expected 12, the width of the captions of t2i.safetensors"},
        {TEXT_TO_IMAGE "--captions none.npz", "--captions none.npz: cannot open: No such file or directory"},
        {TEXT_TO_IMAGE "--captions text.npz", "--captions text.npz: 4 bytes that begin with \"none\", expected a .npz "
                                              "or .npy file of NumPy's"},
        {TEXT_TO_IMAGE "--captions c.npz --class 2", "--class: class 2: out of range, expected 0 to 1"},
        {TEXT_TO_IMAGE "--captions c.npz --draft demo-discrete-draft",
         "the draft's vocabulary has 256 tokens, expected the model's 50"},
        {"generate --model t2i.safetensors --captions c.npz --vq demo-discrete",
         "demo-discrete: the VAE and the model have different codebooks: the VAE's has 256 tokens, the model's "
         "50"},
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
static void inspected(void **state)
{
    static const refusal cases[] = {
        {"inspect demo --seq_len 64", "--seq_len has no effect: demo is a MAR model, expected a LlamaGen model"},
        {"inspect demo-vae --seq_len 64",
         "--seq_len has no effect: demo-vae is a KL autoencoder, expected a LlamaGen model"},
        {"inspect demo-discrete-vq --json --seq_len 64",
         "--seq_len has no effect: demo-discrete-vq is a VQ autoencoder, expected a LlamaGen model"},
        {"inspect demo-discrete-eagle --seq_len 64",
         "--seq_len has no effect: demo-discrete-eagle is an EAGLE drafter, expected a LlamaGen model"},
        {"inspect demo-discrete --seq_len 49", "--seq_len 49: the metadata of demo-discrete say 64"},
        {"inspect demo-vae --heads 4", "--heads has no effect: demo-vae is a KL autoencoder, expected a model"},
        {"convert demo x.safetensors --seq_len 64",
         "--seq_len has no effect: demo is a MAR model, expected a LlamaGen model"},
        {"convert demo-discrete-vq x.safetensors --seq_len 64",
         "--seq_len has no effect: demo-discrete-vq is a VQ autoencoder, expected a LlamaGen model"},
        {"convert demo-discrete x.safetensors --seq_len 49", "--seq_len 49: the metadata of demo-discrete say 64"},
        {"convert demo-discrete-vq x.safetensors --heads 4",
         "--heads has no effect: demo-discrete-vq is a VQ autoencoder, expected a model"},
        {"inspect demo-discrete-eagle --heads 3",
         "demo-discrete-eagle: 3 attention heads (--heads) do not divide the width 128 into multiples of 4 up to 256"},
        {"convert demo x.safetensors --heads 7", "demo: 7 attention heads (--heads) do not divide the width 64"},
    };
    command_refuses(*state, cases, LENGTH(cases));
    command_ok(*state, "inspect demo-discrete --seq_len 64"); /* as in its metadata */
    command_ok(*state, "inspect demo-discrete-eagle --heads 2");
}

/* Checks that the limits themselves are accepted. */
static void most(void **state)
{
    command_ok(*state, DISCRETE "-q --class 3 --num 1 --spec sjd --window 64 --cfg_interval 62 --top_k 256");
    command_ok(*state, DRAFTED "-q --class 3 --num 1 --spec lantern --lantern_k 256 --gamma 64");
}

int main(void)
{
    const struct CMUnitTest tests[] = {COMMAND_TEST(numbers),  COMMAND_TEST(combinations), COMMAND_TEST(files),
                                       COMMAND_TEST(captions), COMMAND_TEST(inspected),    COMMAND_TEST(most)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
