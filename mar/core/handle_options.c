/* The table of a library handle's options, as mar/core/params.c is of a session's: a field of mar_options and a row
 * each. */
#include "families/mar.h"
#include "mar/core/params.h"
#include "mar/core/sized.h"

static const char *const automatic[] = {"auto", NULL}; /* 0 */
/* mar_dtype, of arithmetic: of all products, which are not in f16, a number without a name here; and of heads. */
static const char *const dtypes[] = {"auto", "f32", "bf16", "int8", "", "int4", NULL};
static const char *const head_dtypes[] = {"auto", "f32", "bf16", "int8", "f16", NULL};
static const char *const weights[] = {"auto", "ema", "model", NULL}; /* mar_weights */
static const char *const backends[] = {"auto", "cpu", "cuda", NULL}; /* mar_backend */

#define FIELD(name) #name, .size = sizeof(mar_param), .offset = offsetof(mar_options, name)
static const mar_param rows[] = {
    {.name = FIELD(backend),
     .group = "Machine",
     .type = MAR_TYPE_CHOICE,
     .choices = backends,
     .help = "where to compute; auto: a GPU if there is one\n"
             "auto is the GPU if there is one and the library was built with CUDA, else the CPU."},
    {.name = FIELD(device),
     .group = "Machine",
     .type = MAR_TYPE_INT,
     .max = 1023,
     .help = "number of the GPU, from 0, with CUDA"},
    {.name = FIELD(dtype),
     .group = "Machine",
     .type = MAR_TYPE_CHOICE,
     .choices = dtypes,
     .help =
         "arithmetic of products; auto: bf16 where it is fast\n"
         "auto is bf16 on a GPU and on processors with instructions for it. mar runs a converted Lumina-mGPT, Anole "
         "or Emu3 with the type of its weights, int8 or int4, which are approximate. With int8 the blocks of the "
         "transformer and of the head compute in int8, the rest as with auto. "
         "With int4 the blocks of the transformer have 4-bit weights. On a GPU only the transformer's weights are int8 "
         "or int4: that is meant for decoding few images."},
    {.name = FIELD(threads),
     .group = "Machine",
     .type = MAR_TYPE_INT,
     .max = 1024,
     .help =
         "threads of the CPU; 0: one per core\n"
         "No more than the cores that the process may use. A quota of its control group (a container's limit) lowers "
         "the number that 0 stands for. While other processes keep the cores busy, fewer are used."},
    {.name = FIELD(head_dtype),
     .group = "Machine",
     .type = MAR_TYPE_CHOICE,
     .choices = head_dtypes,
     .help =
         "arithmetic of the diffusion head; auto: f16 on a GPU\n"
         "A GPU multiplies f16 at the rate of bf16, eight times as fine; it has no bf16 heads, and with dtype f32 auto "
         "is "
         "f32. A head with numbers beyond 65504 is in f32 instead. On a CPU auto is f32 with spec path and a fixed "
         "--gamma, else as dtype. That criterion compares two evaluations of the head, and rounding in bf16 alone "
         "rejects many "
         "drafts, in f16 few. A CPU rounds f32 numbers to f16, slower than in f32. In the library auto on a CPU is "
         "always as dtype."},
    {.name = FIELD(int8_below),
     .group = "Machine",
     .type = MAR_TYPE_INT,
     .max = 1000,
     .choices = automatic,
     .help = "dtype int8: the head is in int8 below this timestep\n"
             "Timesteps are 0 to 999. At the others the head computes as with dtype auto, because the first steps "
             "of a chain multiply its error by up to 20000. auto is 985."},
    {.name = FIELD(tuning),
     .group = "Machine",
     .type = MAR_TYPE_TEXT,
     .argument = "FILE",
     .help = "CUDA: algorithms of products, from mar bench --tune\n"
             "Of the file's products those count that were timed on such a GPU and with this version of cuBLASLt. For "
             "other products cuBLASLt's first proposal is taken. Nothing is timed outside mar bench --tune. Images may "
             "differ in the last bits."},
    {.name = FIELD(allow_nonfinite),
     .group = "Model",
     .type = MAR_TYPE_FLAG,
     .max = 1,
     .help = "load weights even if they are NaN or infinite\n"
             "Such a model is refused otherwise, because its images are not finite either."},
    {.name = FIELD(seq_len),
     .group = "Model",
     .type = MAR_TYPE_INT,
     .max = MAR_STEPS_MAX,
     .choices = automatic,
     .help = "LlamaGen: tokens of an image, if the file does not say\n"
             "A square number. No tensor stores it; options of the training beside the weights do. Where nothing "
             "says it, auto is 256, for images of 256 pixels, with a warning; the official models for 384 pixels need "
             "576. mar convert writes it into its files. It is refused for files of other kinds."},
    {.name = FIELD(patch_size),
     .group = "Model",
     .type = MAR_TYPE_INT,
     .max = MAR_PATCH_MAX,
     .choices = automatic,
     .help = "MAR: latent pixels on a side of a token\n"
             "The official option. auto is 1 if a token has as many channels as the image decoder. Otherwise it "
             "follows from KL-16's 16 channels: 2 for tokens of 64 channels. For another image decoder give it, or "
             "let mar convert --patch_size write it into the file."},
    {.name = FIELD(weights),
     .group = "Model",
     .type = MAR_TYPE_CHOICE,
     .choices = weights,
     .help = "weights of a training checkpoint to load: ema or model\n"
             "ema is the average over the training (model_ema, ema), model the trained weights (model, module, "
             "state_dict). auto takes what the models' own code takes: the first of model_ema, model, module, "
             "state_dict and ema; of a SphereAR model ema before all. A file without the chosen weights is refused. "
             "Image decoders are loaded as with "
             "auto."},
    {.name = "size",
     .size = sizeof(mar_param),
     .offset = offsetof(mar_options, image_size),
     .group = "Model",
     .type = MAR_TYPE_TEXT,
     .argument = "WxH",
     .help = "Harmon, NextStep-1, Lumina-mGPT, Emu3: image size, as 768x512\n"
             "Without it the model's own: 512x512 of Harmon and NextStep-1, 768x768 of Lumina-mGPT, 720x720 of Emu3. "
             "Sides in "
             "pixels are multiples of 16, 32 and 8; of Lumina-mGPT one side is at most 4 times the other, and a "
             "warning names "
             "the nearest size that it was trained on. Other models have one size."},
};
enum { ROWS = sizeof rows / sizeof *rows };

void mar_options_init(mar_options *options, size_t size)
{
    mar_sized_init(options, size, &(const mar_options){0}, sizeof *options);
}

int mar_option_count(void)
{
    return ROWS;
}

const mar_param *mar_option_get(int i)
{
    return i >= 0 && i < ROWS ? rows + i : NULL;
}
