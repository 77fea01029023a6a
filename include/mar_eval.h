/* Judging images: the networks of FID, precision and recall, Inception score, CLIP, HPS and ImageReward. mar.h has the
 * rules of structs, threads, lifetimes and errors. */
#ifndef LIBMAR_EVAL_H
#define LIBMAR_EVAL_H

#include "mar.h"

#ifdef __cplusplus
extern "C" {
#endif

/* A feature network for FID and related metrics. Its weights are on the handle's device. One thread at a time may use
 * it; several networks may be loaded. */
typedef struct mar_features mar_features;

typedef struct {
    size_t size;
    const char *name; /* "inception-v3", "vgg16" or "demo digits"; static */
    int features;     /* length of a feature vector, 2048: FID, precision and recall; VGG16: 4096 */
    int classes;      /* number of logits, 1008: Inception score; 0: none */
    int spatial;      /* length of a spatial feature vector, 17x17 pixels of 7 channels: sFID; 0: none */
    long parameters;  /* number of weights in the file */
} mar_features_config;

/* Loads Inception-v3 with TensorFlow's weights of 2015-12-05, as torch-fidelity and pytorch-fid publish them: a .pth of
 * either, or its .safetensors. "demo" is the built-in classifier of digits, for the demo's images. Networks of
 * Inception's layout with other channel counts are accepted. torchvision's vgg16-397923af.pth, or its .safetensors, is
 * VGG16, for precision and recall: its features are the second linear layer's result before the ReLU. `batch` is the
 * largest n of mar_features_run, 1..1024. Errors are those of mar_model_load. The network holds a reference on the
 * handle. mar_features_free accepts NULL. */
MAR_API mar_status mar_features_load(mar *m, const char *path, int batch, mar_features **out);
MAR_API void mar_features_free(mar_features *f);
MAR_API const mar_features_config *mar_features_get_config(const mar_features *f);

/* Computes features[n][config.features], logits[n][classes] and spatial[n][spatial], all float, from images uint8_t
 * rgb[n][height][width][3], 1 <= n <= batch. Each result may be NULL. spatial is in the order row, column, channel.
 * Inception's logits omit the last layer's bias, as published Inception scores do.
 *
 * Inception resizes images to 299x299 as TensorFlow 1 did. Sides are 1..16384 pixels, and an image has at most
 * 4096x4096 pixels. Digits are 32x32. Their features are the 64 numbers before the last ReLU and layer, as in the
 * demo's Frechet distance.
 *
 * MAR_EMODEL if a result is NaN or infinite, with the image's place in the batch. The reason is in mar_error of the
 * handle. */
MAR_API mar_status mar_features_run(mar_features *f, const uint8_t *rgb, int n, int width, int height, float *features,
                                    float *logits, float *spatial);

/* Does the same for images of different sizes: image i is uint8_t rgb[i][heights[i]][widths[i]][3]. */
MAR_API mar_status mar_features_run_each(mar_features *f, const uint8_t *const *rgb, const int *widths,
                                         const int *heights, int n, float *features, float *logits, float *spatial);

/* How a network resizes images. */
typedef enum {
    MAR_RESIZE_DEFAULT, /* Inception as TensorFlow 1; VGG16 to 224x224 as Pillow's bilinear, with antialiasing */
    MAR_RESIZE_CLEAN    /* Inception as clean-fid: Pillow's bicubic with antialiasing, on floats, without a rounding */
} mar_resize;

/* Sets the resize of later calls. MAR_EARG for MAR_RESIZE_CLEAN on another network than Inception. */
MAR_API mar_status mar_features_set_resize(mar_features *f, mar_resize how);

/* Computes precision and recall (Kynkaanniemi et al., 2019) as ADM's evaluator defines them, where k is 3. reference is
 * float [reference_count][dim], images float [count][dim]; both counts must exceed k. Precision is the fraction of
 * images whose features lie within the k-th-neighbour distance of some reference image. Recall is the converse. A point
 * is not its own neighbour, but another point with the same features is.
 *
 * Distances are f32 sums of squared differences (relative error about 1e-6); ADM's are fp16. Takes O((count +
 * reference_count)^2 dim) time on the handle's device. Takes 4 k + 5 bytes a point plus about 64 MB, on host and
 * device.
 *
 * MAR_EARG also if a number is not finite, or a k-th neighbour's squared distance overflows f32. *precision and *recall
 * are 0 on failure. */
MAR_API mar_status mar_precision_recall(mar *m, const float *reference, int reference_count, const float *images,
                                        int count, int dim, int k, double *precision, double *recall);

/* Computes the kernel distance of features (Binkowski et al., 2018), with Inception's KID, as torch-fidelity defines
 * it: the unbiased squared maximum mean discrepancy with the kernel (x y / dim + 1)^3, which may be negative, of
 * `subsets` pairs of subsets of subset_size vectors; their mean and population standard deviation. torch-fidelity's are
 * 100 subsets of 1000. reference is float [reference_count][dim], images float [count][dim]; both counts must be
 * subset_size or more.
 *
 * The subsets are those that torch-fidelity draws of the images as input 1 and the reference as input 2, in this order.
 * Sums are double; torch-fidelity's are f32. Takes O(subsets subset_size^2 dim) time on the handle's device.
 *
 * MAR_EARG also if a number is not finite, or a squared distance overflows f32. *mean and *deviation are 0 on
 * failure. */
MAR_API mar_status mar_kernel_distance(mar *m, const float *reference, int reference_count, const float *images,
                                       int count, int dim, int subsets, int subset_size, double *mean,
                                       double *deviation);

/* A CLIP (Radford et al., 2021), whose embeddings tell how well an image fits a text. Its weights are on the handle's
 * device, in the handle's dtype. It has a reference on the handle and a queue of its own. One thread at a time may use
 * it; several may be loaded. */
typedef struct mar_clip mar_clip;

typedef struct {
    size_t size;
    const char *name; /* "CLIP" or "HPS v2"; static */
    long parameters;  /* number of weights */
    int embedding;    /* length of an embedding: 512 of ViT-B, 768 of ViT-L, 1024 of HPS */
    int image_size;   /* pixels of an image's side as the network sees it, 224 */
    int patch;        /* pixels of a patch's side: 32, 16, 14 */
    int positions;    /* tokens of a text at most, start and end included, 77 */
    int vocabulary;   /* rows of the token embedding, 49408 */
    int reserved;
} mar_clip_config;

/* Loads a CLIP from a folder as Hugging Face writes it, such as openai/clip-vit-base-patch32: config.json,
 * model.safetensors or pytorch_model.bin, vocab.json with merges.txt or tokenizer.json, and preprocessor_config.json.
 * Without the last one mean and deviation are OpenAI's. Or from a file of HPS v2 (Wu et al., 2023), such as
 * HPS_v2.1_compressed.pt: OpenCLIP's ViT-H/14, whose folder must have vocab.json with merges.txt, or tokenizer.json, of
 * any of OpenAI's CLIPs. Its score is the dot product of both embeddings. `batch` is the largest n of the calls
 * below, 1..1024. Errors are those of mar_text_load. mar_clip_free accepts NULL. */
MAR_API mar_status mar_clip_load(mar *m, const char *path, int batch, mar_clip **out);
MAR_API void mar_clip_free(mar_clip *c);
MAR_API const mar_clip_config *mar_clip_get_config(const mar_clip *c);

/* Compute embeddings, float [n][config.embedding], each of length 1. The dot product of two embeddings is their cosine.
 *
 * Images are uint8_t rgb[n][height][width][3], or of different sizes as in mar_features_run_each, with the limits
 * there. The shorter side becomes image_size pixels as Pillow's bicubic does it, and the middle is cut out, as in
 * transformers' CLIPImageProcessor, or for HPS as in hpsv2 with torchvision from 0.17 on. Texts are UTF-8; of longer
 * ones the first tokens and the end token are kept.
 *
 * MAR_EARG for a text with invalid UTF-8, naming it by its index from 0. MAR_EMODEL if an embedding is NaN, infinite or
 * 0. */
MAR_API mar_status mar_clip_images(mar_clip *c, const uint8_t *rgb, int n, int width, int height, float *embedding);
MAR_API mar_status mar_clip_images_each(mar_clip *c, const uint8_t *const *rgb, const int *widths, const int *heights,
                                        int n, float *embedding);
MAR_API mar_status mar_clip_texts(mar_clip *c, const char *const *texts, int n, float *embedding);

/* An ImageReward (Xu et al., 2023), which scores how people like an image for a prompt. One thread at a time may use
 * it. */
typedef struct mar_reward mar_reward;

/* Loads THUDM/ImageReward's ImageReward.pt. Its folder must have vocab.txt of bert-base-uncased, or a folder
 * bert-base-uncased with it. `batch` is the largest n of mar_reward_score, 1..1024. MAR_EMODEL for another architecture
 * or vocabulary, MAR_EIO, MAR_EFORMAT, MAR_ENOMEM. mar_reward_free accepts NULL. */
MAR_API mar_status mar_reward_load(mar *m, const char *path, int batch, mar_reward **out);
MAR_API void mar_reward_free(mar_reward *r);

/* Computes the scores [n] of images of different sizes, as in mar_features_run_each with the limits there, and their
 * prompts, UTF-8, texts[n]. The shorter side becomes 224 pixels as Pillow's bicubic does it, and the middle is cut out,
 * as torchvision does it. Of a longer prompt the first 33 tokens count. Scores are those of ImageReward's score():
 * normalised, about -2 to 2. MAR_EARG for a text with invalid UTF-8, naming it by its index from 0. MAR_EMODEL if a
 * score is NaN or infinite. */
MAR_API mar_status mar_reward_score(mar_reward *r, const uint8_t *const *rgb, const int *widths, const int *heights,
                                    const char *const *texts, int n, double *scores);

#ifdef __cplusplus
}
#endif
#endif
