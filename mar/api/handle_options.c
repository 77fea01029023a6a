/* The table of a library handle's options, as mar/api/params.c has that of a session's: a field of mar_options and a
 * row.
 */
#include "mar/api/config.h"
#include "mar/api/params.h"

static const char *const automatic[] = {"auto", NULL};                     /* 0 */
static const char *const dtypes[] = {"auto", "f32", "bf16", "int8", NULL}; /* mar_dtype, of arithmetic */
static const char *const tunings[] = {"on", "off", NULL};                  /* mar_tuning */
static const char *const weights[] = {"auto", "ema", "model", NULL};       /* mar_weights */
static const char *const backends[] = {"auto", "cpu", "cuda", NULL};       /* mar_backend */

static const mar_param rows[] = {
    {.name = "backend",
     .offset = offsetof(mar_options, backend),
     .group = "Machine",
     .type = MAR_TYPE_CHOICE,
     .choices = backends,
     .help = "what computes; auto: a GPU if there is one\n"
             "auto is the GPU if there is one and the library was built with CUDA, else the CPU."},
    {.name = "device",
     .offset = offsetof(mar_options, device),
     .group = "Machine",
     .type = MAR_TYPE_INT,
     .max = 1023,
     .help = "number of the GPU, from 0, with CUDA"},
    {.name = "dtype",
     .offset = offsetof(mar_options, dtype),
     .group = "Machine",
     .type = MAR_TYPE_CHOICE,
     .choices = dtypes,
     .help =
         "matrix arithmetic; auto: bf16 where it is fast\n"
         "That of the matrix products. auto is bf16 on a GPU, and where the processor has instructions for it. int8, "
         "on "
         "a CPU with AVX512-VNNI, AVX-VNNI or AMX-INT8, is approximate: the transformer's blocks and those of the head "
         "are in int8, the rest as with auto."},
    {.name = "threads",
     .offset = offsetof(mar_options, threads),
     .group = "Machine",
     .type = MAR_TYPE_INT,
     .max = 1024,
     .help =
         "threads of the CPU; 0: one per core\n"
         "No more than the cores that the process may use. A quota of its control group (a container's limit) lowers "
         "the number that 0 stands for. While other processes keep the cores busy, fewer are used."},
    {.name = "tuning",
     .offset = offsetof(mar_options, tuning),
     .group = "Machine",
     .type = MAR_TYPE_CHOICE,
     .choices = tunings,
     .help =
         "time algorithms of matrix products, with CUDA\n"
         "Of the algorithms that cuBLASLt proposes for a matrix product, several are timed, and the fastest of those "
         "that give the same bits is taken: the images are the same. It happens once for each shape of product, "
         "before the first batch, with spec path during batches too."},
    {.name = "head_dtype",
     .offset = offsetof(mar_options, head_dtype),
     .group = "Machine",
     .type = MAR_TYPE_CHOICE,
     .choices = dtypes,
     .help = "the head's arithmetic; auto: f32 with spec path\n"
             "That of the matrix products of the diffusion head. auto is f32 with the criterion path, else as dtype. "
             "That criterion compares two evaluations of the head, and in bf16 their rounding alone rejects many of "
             "its drafts. In the library auto is as dtype."},
    {.name = "int8_below",
     .offset = offsetof(mar_options, int8_below),
     .group = "Machine",
     .type = MAR_TYPE_INT,
     .max = 1000,
     .choices = automatic,
     .help =
         "dtype int8: the head is in int8 below this timestep\n"
         "The head is in int8 at timesteps below this, of 1000, and at the others as with dtype auto: the first steps "
         "of a chain multiply an error of the head by up to 20000. auto is 985."},
    {.name = "allow_nonfinite",
     .offset = offsetof(mar_options, allow_nonfinite),
     .group = "Model",
     .type = MAR_TYPE_FLAG,
     .max = 1,
     .help = "load weights that are NaN or infinite, too\n"
             "Such a model is refused otherwise: what it makes is not finite either."},
    {.name = "seq_len",
     .offset = offsetof(mar_options, seq_len),
     .group = "Model",
     .type = MAR_TYPE_INT,
     .max = MAR_STEPS_MAX,
     .choices = automatic,
     .help = "LlamaGen: tokens of an image, if the file does not say\n"
             "A square number. No tensor tells how large a LlamaGen model's images are. auto is 256, for images of 256 "
             "pixels; the official models for 384 pixels need 576. mar convert writes it to its files. It is "
             "refused for a file of any other kind."},
    {.name = "patch_size",
     .offset = offsetof(mar_options, patch_size),
     .group = "Model",
     .type = MAR_TYPE_INT,
     .max = MAR_PATCH_MAX,
     .choices = automatic,
     .help = "MAR: latent pixels on a side of a token\n"
             "The official option. auto is 1 if a token has as many channels as the image decoder, and else what goes "
             "with the 16 channels of KL-16: 2 for tokens of 64 channels. For another image decoder it has to be "
             "given, or be in the file, to which mar convert --patch_size writes it."},
    {.name = "weights",
     .offset = offsetof(mar_options, weights),
     .group = "Model",
     .type = MAR_TYPE_CHOICE,
     .choices = weights,
     .help =
         "which weights of a training checkpoint: ema or model\n"
         "ema is the average of the weights over the training (model_ema, ema), model the weights that were "
         "trained (model, module, state_dict). auto takes what the models' own code takes: the first there is of "
         "model_ema, model, module, state_dict and ema. A file with the other ones only is refused. An image decoder "
         "is loaded as with auto."},
};
enum { ROWS = sizeof rows / sizeof *rows };

int mar_option_count(void)
{
    return ROWS;
}

const mar_param *mar_option_get(int i)
{
    return i >= 0 && i < ROWS ? rows + i : NULL;
}
