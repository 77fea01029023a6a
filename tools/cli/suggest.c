#include "tools/cli/suggest.h"

#include <ctype.h>
#include <limits.h>
#include <string.h>
#include <strings.h>

static int differ(char a, char b)
{
    return tolower((unsigned char)a) != tolower((unsigned char)b);
}

int suggest_distance(const char *a, const char *b)
{
    enum { LONGEST = 63 };
    size_t na = strlen(a), nb = strlen(b);
    if (na > LONGEST || nb > LONGEST) return INT_MAX;
    int rows[3][LONGEST + 1]; /* row i % 3: distances of a[0..i) to every b[0..j) */
    for (size_t j = 0; j <= nb; j++) rows[0][j] = (int)j;
    for (size_t i = 1; i <= na; i++) {
        int *row = rows[i % 3];
        const int *before = rows[(i + 2) % 3], *two_before = rows[(i + 1) % 3];
        row[0] = (int)i;
        for (size_t j = 1; j <= nb; j++) {
            int best = before[j - 1] + differ(a[i - 1], b[j - 1]);
            if (before[j] + 1 < best) best = before[j] + 1;
            if (row[j - 1] + 1 < best) best = row[j - 1] + 1;
            const int swaps = i > 1 && j > 1 && !differ(a[i - 1], b[j - 2]) && !differ(a[i - 2], b[j - 1]);
            if (swaps && two_before[j - 2] + 1 < best) best = two_before[j - 2] + 1;
            row[j] = best;
        }
    }
    return rows[na % 3][nb];
}

const char *suggest_nearest(const char *word, const char *const *names)
{
    const char *nearest = NULL;
    int best = (int)(strlen(word) + 2) / 3; /* at most a third of the word wrong, rounded up */
    for (; *names; names++) {
        int d = suggest_distance(word, *names);
        if (d < best || (d == best && !nearest)) {
            best = d;
            nearest = *names;
        }
    }
    return nearest;
}

/* Names of other programs (diffusers, the models' own scripts, torch-fidelity, transformers) for our options. */
static const other_name others[] = {
    {"text", {"prompt"}, NULL},
    {"caption", {"prompt"}, NULL},
    {"negative_prompt", {"negative"}, NULL},
    {"neg_prompt", {"negative"}, NULL},
    {"positive_prompt", {"positive"}, NULL},
    {"timesteps_shift", {"time_shift"}, NULL},
    {"flow_shift", {"time_shift"}, NULL},
    {"use_norm", {"token_norm"}, NULL},
    {"prompt_file", {"prompts"}, NULL},
    {"width", {"size"}, NULL},
    {"height", {"size"}, NULL},
    {"image_size", {"size"}, NULL},
    {"img_size", {"size"}, NULL},
    {"resolution", {"size"}, NULL},
    {"cfg_scale", {"cfg"}, NULL},
    {"guidance", {"cfg"}, NULL},
    {"guidance_scale", {"cfg"}, NULL},
    {"scale", {"cfg"}, NULL},
    {"steps",
     {"num_iter"},
     "did you mean --num_iter, autoregressive steps of MAR, or --num_sampling_steps, denoising "
     "steps a token of MAR and SphereAR?"},
    {"num_steps",
     {"num_iter"},
     "did you mean --num_iter, autoregressive steps of MAR, or --num_sampling_steps, "
     "denoising steps a token of MAR and SphereAR?"},
    {"num_inference_steps",
     {"num_iter"},
     "did you mean --num_iter, autoregressive steps of MAR, or "
     "--num_sampling_steps, denoising steps a token of MAR and SphereAR?"},
    {"inference_steps",
     {"num_iter"},
     "did you mean --num_iter, autoregressive steps of MAR, or --num_sampling_steps, "
     "denoising steps a token of MAR and SphereAR?"},
    {"ar_steps", {"num_iter"}, NULL},
    {"iterations", {"num_iter"}, NULL},
    {"sampling_steps", {"num_sampling_steps"}, NULL},
    {"diffusion_steps", {"num_sampling_steps"}, NULL},
    {"denoising_steps", {"num_sampling_steps"}, NULL},
    {"ddim_steps", {"num_sampling_steps"}, NULL},
    {"scheduler", {"sampler"}, NULL},
    {"temp", {"temperature"}, NULL},
    {"label", {"class"}, NULL},
    {"labels", {"class"}, NULL},
    {"class_label", {"class"}, NULL},
    {"class_labels", {"class"}, NULL},
    {"class_id", {"class"}, NULL},
    {"count", {"num"}, NULL},
    {"n", {"num"}, NULL},
    {"samples", {"num_images", "num"}, NULL},
    {"num_samples", {"num_images", "num"}, NULL},
    {"num_images", {"num"}, NULL},
    {"num_fid_samples", {"num_images", "num"}, NULL},
    {"num_images_per_prompt", {"num"}, NULL},
    {"batch_size", {"batch"}, NULL},
    {"eval_bsz", {"batch"}, NULL},
    {"per_proc_batch_size", {"batch"}, NULL},
    {"output", {"out"}, NULL},
    {"output_dir", {"out"}, NULL},
    {"out_dir", {"out"}, NULL},
    {"outdir", {"out"}, NULL},
    {"output_path", {"out"}, NULL},
    {"sample_dir", {"out"}, NULL},
    {"checkpoint", {"model"}, NULL},
    {"ckpt", {"model"}, NULL},
    {"ckpt_path", {"model"}, NULL},
    {"gpt_ckpt", {"model"}, NULL},
    {"model_path", {"model"}, NULL},
    {"vq_ckpt", {"vae"}, "did you mean --vq?"},
    {"vq_model", {"vae"}, "did you mean --vq?"},
    {"vae_path", {"vae"}, NULL},
    {"vae_ckpt", {"vae"}, NULL},
    {"t5_path", {"t5"}, NULL},
    {"text_encoder", {"t5"}, NULL},
    {"precision", {"dtype"}, NULL},
    {"mixed_precision", {"dtype"}, NULL},
    {"torch_dtype", {"dtype"}, NULL},
    {"fp16", {"dtype"}, NULL},
    {"half", {"dtype"}, NULL},
    {"bf16", {"dtype"}, "did you mean --dtype bf16?"},
    {"gpu", {"backend"}, NULL},
    {"cuda", {"backend"}, "did you mean --backend cuda?"},
    {"cpu", {"backend"}, "did you mean --backend cpu?"},
    {"gpus", {"devices", "device"}, NULL},
    {"workers", {"threads"}, NULL},
    {"num_workers", {"threads"}, NULL},
    {"jobs", {"threads"}, NULL},
    {"manual_seed", {"seed"}, NULL},
    {"global_seed", {"seed"}, NULL},
    {"ref", {"stats"}, NULL},
    {"ref_batch", {"stats"}, NULL},
    {"reference", {"stats"}, NULL},
    {"fid_stats", {"stats"}, NULL},
    {"force", {"overwrite"}, NULL},
    {"host", {"listen"}, NULL},
    {"bind", {"listen"}, NULL},
    {"api_key", {"token_file"}, NULL},
    {"init_image", {"image"}, NULL},
    {"input", {"image", "images"}, NULL},
    {"mask_image", {"mask"}, NULL},
    {"strength", {"keep"}, "did you mean --keep?"},
};

const other_name *suggest_option(const char *guess)
{
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        if (strcasecmp(others[i].guess, guess) == 0) return &others[i];
    return NULL;
}
