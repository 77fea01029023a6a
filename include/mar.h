/* libmar: images of classes or prompts from autoregressive models. Continuous tokens: MAR (Li, Tian, Li, Deng, He,
 * "Autoregressive Image Generation without Vector Quantization", 2024) and SphereAR (Ke and Xue, "Hyperspherical
 * Latents Improve Continuous-Token Autoregressive Generation", 2025), Harmon (Wu et al., 2025), UniPic-1 and
 * NextStep-1. Discrete tokens: LlamaGen (Sun et al., 2024), Lumina-mGPT, Anole and Emu3.
 *
 * How to use it (error handling left out: every call returns a status, and mar_error() returns the reason in one line):
 *
 *     mar *m;  mar_pipeline *p;  mar_job job;  uint8_t *rgb;  int width, height;
 *     mar_open(NULL, &m);
 *     mar_pipeline_load(m, "mar_base.safetensors", "kl16.safetensors", NULL, &p);
 *     mar_job_init(&job, sizeof job);                       // the model's defaults
 *     job.label = 207;                                      // a golden retriever; job.prompt for a model of prompts
 *     mar_generate(p, &job, &rgb, &width, &height);         // uint8_t rgb[height][width][3]
 *     fwrite(rgb, 3, (size_t)width * (size_t)height, file);
 *     mar_rgb_free(rgb);  mar_pipeline_free(p);  mar_close(m);
 *
 * A session (mar_session_create) gives control of batches, steps, requests, previews and cancelling. Beside this
 * header: mar_measure.h (statistics and measurements), mar_methods.h (tables of options and methods), mar_files.h
 * (contents and conversion of checkpoints), mar_eval.h (judging images).
 *
 * Reproducibility: an image is a function of (model, parameters, seed, image index). It does not depend on the batch
 * size, the number of threads, or earlier images. On a CPU this holds bit for bit. On a GPU some products depend on the
 * batch in their last bits. Processors with other instruction sets have other bits.
 *
 * Structs: each begins with its size, which tells which fields it has; new fields come last. mar_X_init(&x, sizeof x)
 * sets up the caller's. A program may be older than the library: fields that its mar.h lacks have their defaults and
 * are not written. A newer program's structs are refused with MAR_EARG. In the library's structs, size is that of the
 * library's mar.h: a later field exists only if it lies within size. Enumerations may get new values.
 *
 * Threads: any number of threads may share a handle, its models and its VAEs, which do not change after loading. One
 * thread may load a model while others generate. A session belongs to one thread at a time; only mar_session_cancel may
 * be called from any thread. To generate on several threads, make a session for each. On a CPU, working sessions share
 * the handle's threads. A call on a CPU uses at most 64 KB of its thread's stack.
 *
 * Lifetimes: a session holds a reference to its model, draft model and VAE; each of these holds one to the handle, as
 * do text encoders and feature networks. The free functions and mar_close drop the caller's reference, in any order and
 * on any thread; memory is released with the last. Strings returned by the library stay valid until their owner is
 * freed, unless the function says otherwise.
 *
 * Invalid arguments: a call with a status returns MAR_EARG and sets the reason: NULL for a pointer, a number out of
 * range, a handle that failed to open. Without a handle or session, mar_error(NULL) returns the reason. A call without
 * a status does nothing, or returns NULL, "" or 0.
 *
 * Forks: in a forked child, calls on a handle that the parent opened return MAR_EARG, freeing does nothing, and getters
 * such as mar_session_get_params still work. The child can open a handle of its own. CUDA works in one of the two
 * processes only. A program started with exec has no such limit.
 *
 * Text: messages and log lines are valid UTF-8 and safe to print: control characters, direction marks and invalid bytes
 * appear as \n, \x1b or \u202e.
 *
 * Failures: a failed call leaves all other sessions and the handle as they were. Running out of memory returns
 * MAR_ENOMEM. If libmar is loaded by dlopen, glibc ends the program when memory runs out at a thread's first call.
 *
 * Side effects: the library prints nothing and never ends the program, but for the case above. It does not touch signal
 * handlers, locale, umask, or the affinity of the caller's threads. LC_NUMERIC should be "C".
 */
#ifndef MAR_H
#define MAR_H

#include "mar_types.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Version of this header. mar_version_number() has that of the library. */
#define MAR_VERSION_MAJOR 0
#define MAR_VERSION_MINOR 1
#define MAR_VERSION_PATCH 0

/* --- the library handle ------------------------------------------------------------------------- */

typedef struct mar mar; /* a device: a GPU, or the CPU with its worker threads */

typedef enum { MAR_BACKEND_AUTO = 0, MAR_BACKEND_CPU, MAR_BACKEND_CUDA } mar_backend;

/* Log callback: one line without newline, valid during the call.
 *
 * INFO: something was opened, loaded, converted or created, and for AUTO why the handle uses the CPU. WARNING: a batch
 * failed; a GPU refuses to record steps; the head's arithmetic suits the session's criterion badly.
 *
 * It runs on the thread that called the library, so on several at a time if several use the handle. It may call the
 * library; on the session whose call it interrupts, the rules of mar_progress_function hold. */
typedef enum { MAR_LOG_INFO, MAR_LOG_WARNING } mar_log_level;
typedef void mar_log_function(void *user, mar_log_level level, const char *line);

typedef struct {
    size_t size; /* sizeof(mar_options) in the caller, by mar_options_init; new fields come last */
    /* Arithmetic of matrix products: F32, BF16, INT8 or INT4 (approximate), or AUTO: bf16 on a GPU and on processors
     * with bf16 instructions, else f32. INT8 covers the blocks of the transformer and of the head: weights per output
     * channel, activations per row. INT4 covers the blocks of the transformer: weights of 4 bits and activations of 8,
     * each 32 neighbours of a row with a scale. On a GPU both cover the transformer's blocks, and activations stay
     * bf16. A file's int8 or int4 weights (mar_convert) are used directly with that type, else dequantised. */
    mar_dtype dtype;
    int threads;           /* of a CPU, at most its cores; 0: one per core that affinity and quota allow */
    mar_backend backend;   /* AUTO: CUDA if the library has it and there is a GPU, else CPU */
    int device;            /* CUDA: number of the GPU, from 0 */
    mar_log_function *log; /* NULL: no log */
    void *log_user;        /* first argument of log */
    int allow_nonfinite;   /* 1: models and VAEs may have NaN or infinite weights */
    /* Arithmetic of diffusion heads: F32; F16; BF16, if dtype is BF16 too and on a CPU; AUTO: that of dtype, but F16 on
     * a GPU unless dtype is F32. Criterion path compares two evaluations of the head, where bf16's rounding rejects
     * many drafts and f16's few. A GPU multiplies F16 at bf16's rate; a CPU is slower with it than with F32. Beyond
     * 65504, weights or activations at random inputs make the head F32 with a warning in the log, and activations of an
     * image make a MAR_EMODEL. */
    mar_dtype head_dtype;
    /* dtype INT8: the head uses int8 at timesteps below this, of 1000; 0: 985. The first steps of a chain multiply an
     * error of the head by up to 20000. MAR_EARG with another dtype or head_dtype. */
    int int8_below;
    /* LlamaGen models whose file does not give the tokens of an image: a square number up to 65536; 0: 256, a guess,
     * which the log warns of. Official models for 384 pixels need 576. MAR_EARG if the file gives another number. */
    int seq_len;
    /* Which weights of a PyTorch training checkpoint to load. EMA: `model_ema` or `ema`. MODEL: `model`, `module` or
     * `state_dict`. AUTO: the first present of `model_ema`, `model`, `module`, `state_dict`, `ema`, but for a SphereAR
     * model `ema` before all. MAR_EARG if the file has only the others. */
    mar_weights weights;
    /* MAR models without mar.patch_size in the file's metadata: latent pixels per side of a token, up to 16. 0: 1 if
     * token_dim equals the image decoder's channels, else sqrt(token_dim / 16) for a decoder of 16 channels (KL-16). */
    int patch_size;
    /* Memory of a CPU handle's weights and working memory, as it is packed and laid out; NULL: the C library's, in huge
     * pages where the system has them. Give both functions or neither. MAR_EARG on a GPU, which has its own memory. */
    mar_alloc_function *alloc;
    mar_free_function *free;
    void *alloc_user; /* first argument of both */
    /* Models that make images of several sizes: width and height in pixels, as "768x512"; NULL: the model's own size.
     * Loading returns MAR_EARG for a size that the model does not have. mar_open keeps no reference to the text. */
    const char *image_size;
    /* CUDA: file with the fastest algorithms of matrix products for this GPU; NULL: the first that cuBLASLt proposes.
     * Results may differ in the last bits. MAR_EARG on a CPU. */
    const char *tuning;
    /* 1: algorithms of products that `tuning` does not have are timed when they are first planned, and the fastest is
     * added to the file. Takes some milliseconds a product. */
    int tune;
    int reserved; /* 0 */
} mar_options;

/* Sets every field to its default. Writes the first `size` bytes; pass sizeof *options. */
MAR_API void mar_options_init(mar_options *options, size_t size);

/* Opens the library. `options` are as mar_options_init has set them up; NULL: the defaults. *out is set even on
 * failure, so that mar_error(*out) has the reason; it is NULL only without memory. Close such a handle with mar_close.
 * All other calls on it fail with that reason. */
MAR_API mar_status mar_open(const mar_options *options, mar **out);
/* Drops the caller's reference. Existing models, VAEs and sessions keep working. NULL is fine. */
MAR_API void mar_close(mar *m);

/* Returns why this thread's last failing call on the handle failed, in one line without newline. Returns "" if none has
 * failed, and never NULL. Calls on a session use mar_session_error. A thread keeps the reasons of the four handles
 * whose calls failed last; the string is valid until its next failing call on any handle. mar_error(NULL) covers calls
 * that were given neither handle nor session. */
MAR_API const char *mar_error(const mar *m);
MAR_API const char *mar_version(void); /* the library's, "MAJOR.MINOR.PATCH" */
MAR_API int mar_version_number(void);  /* MAJOR * 10000 + MINOR * 100 + PATCH */

/* Returns the number of GPUs, 0 if the library has no CUDA. mar_options.device counts from 0. */
MAR_API int mar_gpu_count(void);

/* --- models -------------------------------------------------------------------------------------- */

typedef struct mar_model mar_model; /* transformer and diffusion head, packed for the backend */
typedef struct mar_vae mar_vae;     /* image decoder */

/* What chooses the image that a model makes. */
typedef enum {
    MAR_CONDITION_NONE = 0, /* a drafter, which makes no images */
    MAR_CONDITION_CLASS,    /* a class number */
    MAR_CONDITION_FEATURES, /* a caption's features from a text encoder (a T5) */
    MAR_CONDITION_IDS,      /* a prompt's tokens, by the model's own tokenizer and embedding */
} mar_conditioning;

/* Order of an image's tokens: random sets, or row by row from the upper left. */
typedef enum { MAR_ORDER_SETS = 0, MAR_ORDER_RASTER } mar_order;

/* What draws a token: a diffusion head with the chain of DDPM, one with a linear flow, or a distribution over a
 * codebook. */
typedef enum { MAR_HEAD_DDPM = 0, MAR_HEAD_FLOW, MAR_HEAD_SOFTMAX } mar_head;

/* Schedule of guidance over an image's tokens (mar_params.cfg_schedule). AUTO: the model's. */
typedef enum { MAR_CFG_LINEAR = 0, MAR_CFG_CONSTANT, MAR_CFG_AUTO } mar_cfg_schedule;

/* Shape of a model, and its defaults. All but `heads` is derived from the tensors. */
typedef struct {
    size_t size;
    int width;         /* embedding size D of the transformer */
    int encoder_depth; /* transformer blocks in the encoder; 0: one transformer, whose blocks are decoder_depth */
    int decoder_depth;
    int heads;         /* attention heads of the encoder (mar_model_load) */
    int decoder_heads; /* attention heads of the decoder */
    int mlp_hidden;    /* hidden size of the transformer's MLP, MAR: 4 * width */
    int buffer;        /* class tokens before the image tokens (official: MAR 64, SphereAR 16) */
    int seq_len;       /* image tokens (official: 256, a 16x16 grid); in rows of grid_width */
    int token_dim;     /* channels of one token (official: 16) */
    int classes;       /* labels are 0..classes-1 */
    int head_width;    /* width of the diffusion head */
    int head_depth;    /* residual blocks of the diffusion head */
    long parameters;   /* number of weights */
    /* "mar"; "spherear": autoregressive over continuous tokens; "llamagen", "lumina-mgpt", "anole", "emu3":
     * autoregressive over discrete tokens; "eagle": a drafter for one of these, makes no images. Static. */
    const char *family;
    /* Discrete tokens: size of the vocabulary; a token is one number, so token_dim is 1. 0: continuous tokens. */
    int vocabulary;
    int caption_tokens; /* text-to-image: positions of a caption's features; 0: class-conditional */
    int caption_dim;    /* numbers of one of these features; 1 where conditioning is IDS: the id */
    int int8_weights;   /* 1: loaded from a file with int8 weights (mar_convert) */
    int heads_guessed;  /* 1: not in the file: mar_model_load fails without heads. Only in mar_report_model */
    /* Latent pixels per side of a token, by mar_options or the metadata. 0: unknown; the image decoder's channels
     * decide if they can (mar_options.patch_size). */
    int patch_size;
    int image_decoder; /* 1: its file has the image decoder, too: mar_vae_load takes the same file */
    int grid_width;    /* tokens in a row; seq_len is a multiple of it. 0: a drafter, whose seq_len is 0, too */
    const char *title; /* of the family, for messages: "MAR", "Lumina-mGPT"; static */
    mar_conditioning conditioning;
    mar_order order;
    mar_head head;
    int sizes;           /* 1: mar_options.image_size has an effect */
    int num_iter;        /* mar_params.num_iter where it is automatic; 0: a drafter */
    const char *warning; /* about a guess in this configuration, a line; NULL: none. Valid as long as the model */
    /* Fast hash of what was loaded: tensors, metadata and config.json. 0: of a file that is not loaded. */
    uint64_t hash;
    float cfg; /* as num_iter: this and the fields below are mar_params' where they are automatic */
    mar_cfg_schedule cfg_schedule;
    int num_sampling_steps; /* 0: discrete tokens */
    float time_shift;       /* 0: no flow */
    int token_norm;         /* 0: the normalisation of tokens cannot be turned off, or there is none */
    int token_pixels;       /* pixels of a token's side, which the image decoder has to make; 0: those that it makes */
} mar_model_config;

typedef struct {
    size_t size;
    int z_channels; /* latent channels: the model's token_dim / patch_size^2 */
    int stride;     /* pixels per latent pixel, per axis (KL-16: 16) */
    int channels;   /* base width, the official `ch` */
    int levels;     /* number of resolutions */
    int res_blocks; /* residual blocks per level of the encoder; the decoder has one more */
    int codebook;   /* VQ: number of codes of z_channels numbers; 0: continuous latents */
    long parameters;
    /* A ViT decoder, a transformer in front of convolutions: width, blocks and heads; 0 in others. `levels` are its
     * resolutions and `channels` those of the finest: l-DeTok has one of 3, SphereAR more. */
    int width, depth, heads;
    int grid;           /* ViT: rows and columns of tokens; 0: any */
    int encoder;        /* 1: the image encoder is loaded, too */
    int norm;           /* rows and columns of latents that the encoder normalises together; 0: it normalises none */
    uint64_t hash;      /* of the decoder, as in mar_model_config */
    float scale, shift; /* KL: tokens are (latent - shift) * scale; 0 in others */
} mar_vae_config;

/* An open checkpoint: a file or a folder. Its tables are read once, however many objects are loaded from it. Loading
 * holds no reference to it, but for a model of prompt ids. Any number of threads may use it. */
typedef struct mar_file mar_file;

/* Where a checkpoint is: exactly one of path, data, fd and file. */
typedef struct {
    size_t size;      /* sizeof(mar_source) in the caller, by mar_source_init */
    const char *path; /* a file, or the name of a built-in model */
    /* [bytes] a file's contents, read in place. They must not change during the call, and are not needed after it. */
    const void *data;
    size_t bytes;
    /* A regular file open for reading; -1: none. It is read from offset 0, wherever its position is. The call neither
     * moves that nor closes the descriptor. */
    int fd;
    const char *name;                     /* of data or fd in messages; NULL: "memory" or "fd 3" */
    int heads;                            /* as in mar_model_load; 0 for a VAE */
    mar_load_progress_function *progress; /* NULL: none */
    void *user;                           /* first argument of progress */
    int encoder;                          /* VAE: 1 loads the image encoder, too; 0: the decoder alone */
    int reserved;                         /* 0 */
    const mar_file *file;                 /* an open file, whose set of weights counts (mar_file_open) */
} mar_source;
/* Sets fd to -1 and all else to nothing. Writes the first `size` bytes; pass sizeof *source. */
MAR_API void mar_source_init(mar_source *source, size_t size);

/* Loads a model: MAR, Harmon, NextStep-1, SphereAR, LlamaGen, a decoder that writes images among text (Lumina-mGPT,
 * Anole, Emu3), or an EAGLE drafter of one (also LANTERN's). The path is a file, .safetensors or PyTorch's .pth, .pt,
 * .ckpt or .bin, of weights or of a training run; or a folder as Hugging Face writes it (mar_text_load), or Meta's
 * release. Weights are F64, F32, F16, BF16, fp8 (F8_E4M3 or F8_E5M2, plain or with scales), or int8 and int4 of
 * mar_convert. What training wrappers add to tensors' names is taken off. Other entries of a file may be of any type.
 *
 * Built-in models have names: "demo", "demo-draft"; with discrete tokens "demo-discrete", "demo-discrete-draft",
 * "demo-discrete-eagle"; SphereAR's "demo-sphere", "demo-sphere-draft"; of prompts "demo-t2i", "demo-mgpt",
 * "demo-harmon", "demo-nextstep". They are files in share/libmar/demo beside the library (or the program that libmar.a
 * is linked into), in the two folders above, or where it was to be installed. MAR_DATA_DIR in the environment names
 * another such folder.
 *
 * The file may be deleted afterwards; that of a model of prompt ids stays open, for rows of its embedding, and must not
 * change. Every call makes its own copy of the weights.
 *
 * `heads` is the number of attention heads, or mar_heads of two. 0 takes it from the metadata, or else from the
 * official model of that width; MAR_EMODEL if there is none: no tensor shows the number, and a wrong one makes wrong
 * images. MAR_EMODEL also for an image decoder, and for NaN or infinite weights (mar_options.allow_nonfinite). MAR_EIO
 * if the file changes while it is read. */
MAR_API mar_status mar_model_load(mar *m, const char *path, int heads, mar_model **out);
/* Does the same from any source. MAR_EIO for a descriptor of a pipe, a directory or a file open for writing only. */
MAR_API mar_status mar_model_load_from(mar *m, const mar_source *source, mar_model **out);
/* Returns the `heads` of a MAR model whose encoder and decoder have different numbers of heads, each 1..1024. */
static inline int mar_heads(int encoder, int decoder)
{
    return decoder * 65536 + encoder;
}
MAR_API void mar_model_free(mar_model *model);
MAR_API const mar_model_config *mar_model_get_config(const mar_model *model);

/* Loads the decoder of a KL autoencoder (kl16.ckpt), of a VQ autoencoder (LlamaGen's vq_ds16_c2i.pt, Chameleon's
 * vqgan.ckpt or a model's folder with one in model.vqmodel, the folder of BAAI/Emu3-VisionTokenizer), l-DeTok's
 * ViT (its tokenizer, with stats.pkl in the same folder), SphereAR's ViT decoder (a model's file, or vae.pt), or a
 * .safetensors of any; or the built-in one of a built-in model. Without the encoder, an image of up to 1024x1024 pixels
 * is decoded in at most 1.5 GB of memory. Errors are those of mar_model_load. Sessions with a method of LANTERN find
 * the codebook's neighbours in seconds, and cache them in PATH.neighbours-METRIC-K.npz if that is writable. */
MAR_API mar_status mar_vae_load(mar *m, const char *path, mar_vae **out);
/* Does the same from any source, with the encoder if source->encoder is 1: MAR_EMODEL if the file has none, or
 * Emu3's. A codebook's neighbours are cached only beside a path. MAR_EARG for heads. */
MAR_API mar_status mar_vae_load_from(mar *m, const mar_source *source, mar_vae **out);
MAR_API void mar_vae_free(mar_vae *vae);
MAR_API const mar_vae_config *mar_vae_get_config(const mar_vae *vae);
/* Returns the codebook for lookup: float [codebook][z_channels], LlamaGen's with rows of length 1. Valid as long as the
 * VAE. Returns NULL without a codebook. */
MAR_API const float *mar_vae_codebook(const mar_vae *vae);

/* --- text ----------------------------------------------------------------------------------------- */

/* A text encoder, which turns prompts into the features that text-to-image models take (mar_session_begin_captions): a
 * T5 for LlamaGen; for a model of prompt ids (Harmon, NextStep-1, Lumina-mGPT, Anole, Emu3) its tokenizer and template,
 * whose features are ids of its vocabulary; a folder with Qwen2.5's tokenizer alone is one of Harmon. A T5's weights
 * are on the handle's device, in its dtype. It has a reference on the handle and a queue of its own. One thread at a
 * time may use it; several may be loaded. Free it once the prompts are encoded. */
typedef struct mar_text mar_text;

typedef struct {
    size_t size;
    const char *name; /* "T5 encoder", "Lumina-mGPT", ...; static */
    long parameters;  /* number of weights of the encoder */
    int dim;          /* length of a token's features; 1: an id */
    int depth;        /* layers */
    int heads;
    int hidden;         /* of the MLP */
    int vocabulary;     /* rows of the embedding */
    int int8_weights;   /* 1: matrices are int8 in the file */
    const char *family; /* "t5", or as mar_model_config.family, with depth, heads and hidden 0; static */
    int tokens;         /* of a sequence in front of the image at most, template included; T5: 0, any number */
    int negative;       /* 1: mar_text_encode_negative takes a text */
    mar_conditioning conditioning; /* of the models that it is for: FEATURES or IDS */
    int reserved;                  /* 0 */
    const char *warning;           /* about mar_options.image_size, a line; NULL: none. Valid as long as the encoder */
    uint64_t hash;                 /* of a T5, as in mar_model_config; IDS: 0 */
} mar_text_config;

/* What is done to a prompt before it is divided into tokens. LLAMAGEN: the cleaning of LlamaGen's release, twice, as
 * there: lower case, without URLs, HTML tags and other noise; without ftfy's repair of encodings. OFF: nothing. */
typedef enum { MAR_CLEAN_LLAMAGEN = 0, MAR_CLEAN_OFF } mar_clean;

/* Loads what encodes prompts: the folder of a T5, or of a model that writes images among text, with its tokenizer. Of
 * such a model no weights are loaded. MAR_EARG if it makes no images of mar_options.image_size.
 *
 * A T5 is an encoder of version 1.1 (flan-t5, t5-v1_1; gated-gelu) from a folder as Hugging Face writes it:
 * spiece.model, config.json, and model.safetensors or pytorch_model.bin, whole or in shards. Without config.json a
 * model.safetensors that mar_convert has written will do. Built in: "demo-t5", that of demo-t2i. Errors are those of
 * mar_model_load. mar_text_free accepts NULL. */
MAR_API mar_status mar_text_load(mar *m, const char *folder, mar_text **out);
/* Does the same from source->path, with progress. MAR_EARG for data, fd, heads and encoder. */
MAR_API mar_status mar_text_load_from(mar *m, const mar_source *source, mar_text **out);
MAR_API void mar_text_free(mar_text *t);
MAR_API const mar_text_config *mar_text_get_config(const mar_text *t);

enum { MAR_TEXT_TOKENS_MAX = 4096 };

/* Encodes n prompts, UTF-8, for a model of `tokens` text tokens (LlamaGen: 120), 1..MAR_TEXT_TOKENS_MAX. A prompt's
 * tokens end with the end token; those of a longer one are cut off in front of it. Writes features float
 * [n][tokens][dim] and mask uint8_t [n][tokens], 1 for a token and 0 for padding. Padding is on the left, as LlamaGen
 * has it, and its features are 0. counts int [n], or NULL, gets each prompt's tokens before the cut, the end token
 * included. If cleaning leaves nothing of a prompt, its only token is the end token, as in LlamaGen's release. A
 * prompt's features do not depend on the other prompts: on a CPU bit for bit.
 *
 * For a model of prompt ids the tokens are all that come before the image's first token: start, template and size
 * tokens around the prompt, as its release has them. `clean` has no effect, and a longer prompt is MAR_EARG, as is one
 * with <image>, a token that UniPic-1 adds to Qwen2.5's, unless the folder is Harmon's own.
 *
 * MAR_EARG for invalid UTF-8, for an empty prompt, and with MAR_CLEAN_LLAMAGEN for a prompt of more than 4096 bytes or
 * one whose cleaning takes too many steps. Of several prompts the reason has the index from 0. MAR_EMODEL if a feature
 * is NaN or infinite. After an error all results are 0. */
MAR_API mar_status mar_text_encode(mar_text *t, const char *const *prompts, int n, mar_clean clean, int tokens,
                                   float *features, uint8_t *mask, int *counts);
/* Encodes the second context of guidance of a model that writes images among text, as mar_text_encode encodes a prompt:
 * features float [tokens][dim] and mask uint8_t [tokens], for mar_session_set_negative. text is the negative prompt;
 * NULL: the family's own. count, or NULL, gets the number of tokens. MAR_EARG for a T5, for a text where the family has
 * no negative prompt (mar_text_config.negative), and for one that is too long. */
MAR_API mar_status mar_text_encode_negative(mar_text *t, const char *text, int tokens, float *features, uint8_t *mask,
                                            int *count);

/* --- generation ---------------------------------------------------------------------------------- */

/* Schedule of diffusion steps over the autoregressive steps (DiSA: Zhao et al., 2025). */
typedef enum { MAR_ANNEAL_OFF = 0, MAR_ANNEAL_LINEAR, MAR_ANNEAL_COSINE, MAR_ANNEAL_TWO_STAGE } mar_annealing;

/* Context in which the target verifies drafts. PREFIX: the last verified tokens, for the whole block. This gives the
 * process of coarser autoregressive steps. FULL: each draft step's own. AUTO: FULL with spec path, else PREFIX. */
typedef enum { MAR_CONTEXT_PREFIX = 0, MAR_CONTEXT_FULL, MAR_CONTEXT_AUTO } mar_context;

/* Initial draft of Jacobi decoding: a uniform draw, the token to the left, or the token above. */
typedef enum { MAR_FIRST_UNIFORM = 0, MAR_FIRST_LEFT, MAR_FIRST_ABOVE } mar_first;

/* Distance between tokens of a codebook: Euclidean, or one minus the cosine. */
typedef enum { MAR_METRIC_L2 = 0, MAR_METRIC_COSINE } mar_metric;

/* Type of cached keys and values (mar_params.cache_dtype). */
typedef enum { MAR_CACHE_AUTO = 0, MAR_CACHE_BF16, MAR_CACHE_INT8 } mar_cache;

/* Parameters of an image. Names and meanings are those of the official implementation and of the papers that `mar
 * methods` lists. mar_methods.h has a table with each field's default, range and description. */
typedef struct {
    size_t size; /* sizeof(mar_params) in the caller, by mar_params_init; new fields come last */

    /* Autoregressive steps, 1..seq_len; 0: the model's, MAR 64 or seq_len if less. In raster order 0 or seq_len. */
    int num_iter;
    int num_sampling_steps; /* diffusion steps, 2..1000; SphereAR: noisy ones, one follows; 0: the model's, MAR 100 */
    float cfg;              /* guidance scale; 1: none; -1: the model's */
    /* LINEAR: 1 + (cfg-1) * (fraction of tokens known after the step; SphereAR: before it; NextStep-1: left) */
    mar_cfg_schedule cfg_schedule;
    /* Continuous tokens: only steps with a fraction cfg_low..cfg_high of known tokens are guided; 0 and 1: all. */
    float cfg_low;
    float cfg_high;
    /* Discrete tokens: -1: guidance for all; else none after token cfg_interval + 1, from 0. At most seq_len - 2. */
    int cfg_interval;
    float temperature; /* scale of the noise, but not of x_T; discrete tokens: divisor of the logits; 0: greedy */
    int top_k;         /* discrete tokens: tokens below the k-th largest logit have probability 0; 0: all tokens */
    float top_p;       /* discrete tokens: only the most probable ones, until their sum reaches it; 1: all */
    uint64_t seed;

    /* Lossless speculation inside the head: diffusion steps a call may decide, 1..64; 0: off; -1: by head_costs. */
    int head_spec;

    /* Shortcuts. They change the output distribution. */
    mar_sampler sampler;
    mar_annealing diff_annealing; /* OFF: num_sampling_steps at every step */
    int diff_upper_steps;         /* annealed: diffusion steps of the first autoregressive step */
    int diff_lower_steps;         /* annealed: diffusion steps of the last autoregressive step */
    int lazy;                     /* 1: LazyMAR's token and condition caches in the transformer */
    int lazy_head;                /* 1: reuse inside the head, in 6 of 7 calls, as in LazyMAR's release */
    int gtr;                      /* 1: GtR's two stages, one for each colour of a chessboard */
    int gtr_generation_steps;     /* autoregressive steps of GtR's first stage; both replace num_iter */
    int gtr_reconstruction_steps; /* autoregressive steps of GtR's second stage */
    float gtr_detail;             /* fraction of the second stage's tokens with num_sampling_steps, 0..1 */
    int gtr_sampling_steps;       /* diffusion steps of the others; 0: 50, or num_sampling_steps if less */
    /* Raster order: type of the keys and values that are kept. AUTO: that of the matrix products' operands. BF16
     * halves, INT8 quarters the memory and the reading of f32; the distribution changes by their rounding. */
    mar_cache cache_dtype;

    /* Speculation across tokens: `draft` drafts gamma autoregressive steps, and the model verifies them by `spec`. */
    mar_model *draft; /* NULL: none. Same tokens and classes as the model; a session references it */
    /* Verifier, a name from mar_method_get for the model's kind of tokens. "path" without a draft uses the model's own
     * last conditions as the draft. "sjd", "sjd-pac" and "scd" take no draft. NULL: with head_spec the draft's head
     * proposes inside the head; else "path", for discrete tokens "vanilla". A session copies texts. */
    const char *spec;
    /* Autoregressive steps of a block, 1 or more; blocks end with the image. -1, 0: 8. spec path: 0: by round_costs, at
     * most 16; -1 on a CPU: none, plain decoding. Discrete tokens: at most seq_len; -1, 0 of vanilla: round_costs. */
    int gamma;
    float prefill;           /* fraction of the autoregressive steps that the target makes alone; not with spec path */
    mar_context context;     /* FULL without a draft */
    int align;               /* 1: draft and target share x_T and all noise; 0: independent noise, not with spec path */
    float inner_temperature; /* cspd: factor of the standard deviations in its criterion */
    int window;       /* sjd, sjd-pac, scd: drafts of a round, tree included; -1, 0: 64, on a CPU 16, by round_costs */
    mar_first first;  /* sjd, sjd-pac, scd: initial draft of a position */
    int pac_children; /* sjd-pac, scd: drafts per position of the tree, K; 1: none (PD off); 0: 4, of scd 1 */
    int pac_depth;    /* sjd-pac, scd: tokens of a path of the tree, root included, D; 0, 1: none */
    int pac_continue; /* sjd-pac: 1: verification continues after a rejection (AC); 0: it stops */
    /* With a draft: NULL or "chain"; "static" (LANTERN++); "dynamic" (EAGLE-2); or children of every draft by level,
     * "4,2,1,1". gamma is the depth. */
    const char *tree;
    int tree_top;              /* dynamic: drafts kept per level, and children tried of each */
    int tree_total;            /* dynamic: drafts verified */
    float cool_delta;          /* uniform-rsd, cool-sd-exp, cool-sd-linear: relaxation */
    float cool_nu;             /* cool-sd-exp: decay of the relaxation along a block */
    float cool_ell;            /* cool-sd-linear: decay of the relaxation along a block */
    int lantern_k;             /* lantern...: neighbours, the token included; 0: lantern 1000, lantern-pp 10 */
    float lantern_delta;       /* lantern, lantern-gstar: bound on the neighbours' probability */
    float lantern_lambda;      /* lantern-pp, lantern-pp-gstar: the same as a multiple of the token's own */
    mar_metric lantern_metric; /* lantern...: distance between tokens */
    int check;                 /* 1: reports the layer that makes the first non-finite number; slower, same output */
    float time_shift;          /* flows: s, 1..100, makes t / (s - (s - 1) t) of the steps' times; 0: the model's */
    int token_norm; /* NextStep-1: 1: drawn tokens get mean 0 and variance 1; 2: they do not; 0: the model's */
    /* Exact methods choose drafts by times of rounds of 1, 2, 4, ... (Jacobi, path: 2, 4, ...; a tree: its own) over a
     * plain one; +T: of a token that the draft catches up on. NULL: window, gamma 0: measured; -1: computed or none. */
    const char *round_costs;
    const char *head_costs; /* head_spec -1: the same of evaluations of 2, 4, ... states an image, over one of one */
} mar_params;

/* Sets every field to its default. Writes the first `size` bytes; pass sizeof *params. */
MAR_API void mar_params_init(mar_params *params, size_t size);
/* For bindings that do not know the struct: returns the library's mar_params, set up; NULL without memory.
 * mar_params_set sets a field. mar_params_free accepts NULL. */
MAR_API mar_params *mar_params_new(void);
MAR_API void mar_params_free(mar_params *params);

/* Calls mar_param_set by name: mar_params_set(&p, "cfg", "2.9", why, sizeof why). "cfg_interval" with two numbers,
 * "0.2,0.8", sets cfg_low and cfg_high. */
MAR_API mar_status mar_params_set(mar_params *params, const char *name, const char *text, char *why, size_t size);

typedef struct mar_session mar_session;

/* Creates a session, with all working memory for up to `max_batch` images in one block on the backend. `params` is
 * copied. `vae` may be NULL if only tokens are wanted. On failure *out is NULL, and mar_error of the model's handle has
 * the reason.
 *
 * On a CPU neither batches of any size nor reading their results allocate anything. A GPU prepares products of new
 * shapes at their first use, and records work that a session repeats (mar_stats.recorded_bytes). MAR_ENOMEM names the
 * block's size; a block larger than the available memory, where the system tells that, is refused. */
MAR_API mar_status mar_session_create(mar_model *model, mar_vae *vae, const mar_params *params, int max_batch,
                                      mar_session **out);
/* Frees the session. NULL is fine. Inside a callback of the session it does nothing, and mar_session_error says so. */
MAR_API void mar_session_free(mar_session *s);

/* Returns why the session's last failing call failed, in one line without newline. Returns "" if none has failed, and
 * never NULL. Valid until the session's next failing call. For NULL it returns mar_error(NULL).
 *
 * A step that fails (memory, backend, non-finite token) or is cancelled drops the batch. mar_session_done is then 1.
 * Calls for the batch's images or tokens return MAR_EARG and say so. The next mar_session_begin starts afresh,
 * unless the GPU itself is lost. */
MAR_API const char *mar_session_error(const mar_session *s);

/* Starts images first_image .. first_image+n-1 of this seed, with labels[n], 1 <= n <= max_batch. A label is a class
 * number, or -1 for unconditional. Drops an unfinished batch. Invalid arguments are refused before anything changes. */
MAR_API mar_status mar_session_begin(mar_session *s, uint64_t first_image, const int *labels, int n);
/* Starts a batch of a text-to-image model, whose captions mar_text_encode or the caller has encoded: features float
 * [n][caption_tokens][caption_dim], and mask uint8_t [n][caption_tokens], 1 at the caption's tokens; NULL: 1
 * everywhere. Models of prompt ids: MAR_EARG for a mask with a 0 behind a 1, or without a 1, and with guidance
 * before mar_session_set_negative. MAR_EARG for other models; mar_session_begin is MAR_EARG for these. */
MAR_API mar_status mar_session_begin_captions(mar_session *s, uint64_t first_image, const float *features,
                                              const uint8_t *mask, int n);
/* Sets what stands in the second branch of guidance in place of the caption, for images that begin later: features
 * float [caption_tokens][caption_dim], mask uint8_t [caption_tokens], as mar_text_encode_negative writes them. Models
 * of ids need it before an image with guidance, but for a request that has its own. MAR_EARG for other models. */
MAR_API mar_status mar_session_set_negative(mar_session *s, const float *features, const uint8_t *mask);
/* Makes one autoregressive step of all images in progress, or with speculation across tokens one round of several.
 * Waiting requests (mar_session_submit) begin with it. MAR_EARG when no image is left to make. On a GPU the step may
 * still run when the call returns, and fail a later call. The last step of an image waits for all.
 *
 * A NaN or infinite token fails the batch with MAR_EMODEL: "image 3, step 17: a token is NaN (position 40, channel 2);
 * ...". On a GPU the last step reports it; with mar_params.check, the token's own step does, and the line ends with the
 * first layer whose output is not finite, by its checkpoint name ("draft: " precedes a draft's). check also fails a
 * batch if such a layer leaves all tokens finite. Of requests, only the one with that token fails, and the step returns
 * MAR_OK. Discrete tokens: a step is a round, and a distribution can fail: "image 3, token 40: no token has a
 * probability: ...". */
MAR_API mar_status mar_session_step(mar_session *s);
MAR_API int mar_session_done(const mar_session *s);       /* 1: no step is left, or the batch was dropped */
MAR_API int mar_session_steps_left(const mar_session *s); /* autoregressive steps of the slowest image */

/* Cancels the images in progress. The running mar_session_begin, _step, _tokens or _images soon returns MAR_ECANCELLED;
 * if none is running, the next one does. A cancelled begin or step drops the batch, unless it was the last step and is
 * complete. Finished images stay. Of requests, a cancelled step fails those in progress with MAR_ECANCELLED; those that
 * wait stay. The next mar_session_begin clears a cancel that no call has seen. It only sets a flag: any thread,
 * callback or signal handler may call it while the session exists. */
MAR_API void mar_session_cancel(mar_session *s);

/* Progress of the batch. */
typedef struct {
    size_t size;
    int step, steps;      /* autoregressive steps done, and in total */
    int images, batch;    /* images that the running mar_session_images has finished, and in total */
    uint64_t first_image; /* that of mar_session_begin */
} mar_progress;

/* Progress callback. Runs after every successful mar_session_step of a batch and after every image of
 * mar_session_images, on the calling thread. On a GPU several images finish together. On this session it may call
 * mar_session_cancel, and getters; the interrupted call then returns MAR_ECANCELLED. Calls with a status return
 * MAR_EARG, and mar_session_free does nothing. f = NULL removes the callback. */
typedef void mar_progress_function(void *user, mar_session *s, const mar_progress *progress);
MAR_API void mar_session_on_progress(mar_session *s, mar_progress_function *f, void *user);

/* Moves the session to a stream of the host, a cudaStream_t on the session's GPU, which outlives it; NULL: back to its
 * own. Waits for pending work. MAR_EARG on a CPU, and for cudaStreamPerThread. */
MAR_API mar_status mar_session_set_stream(mar_session *s, void *stream);

/* Return the results after the last step. Tokens: float [n][seq_len][token_dim], as the model predicts them (before
 * /0.2325 or mar_vae_config's scale and shift, of l-DeTok before *std + mean; SphereAR: on the sphere of radius
 * sqrt(token_dim)); discrete tokens as their numbers. Images: uint8_t [n][H][W][3], RGB, top to bottom.
 *
 * A pixel that is NaN or infinite before conversion fails the batch with MAR_EMODEL. The line names image and pixel,
 * with mar_params.check also the layer. An image with no value between -1 and 1 before clipping fails too: it would be
 * blank. */
MAR_API mar_status mar_session_tokens(mar_session *s, float *tokens);
MAR_API mar_status mar_session_images(mar_session *s, uint8_t *rgb);
/* Decodes tokens [n][seq_len][token_dim], returned earlier by mar_session_tokens for images first_image ..
 * first_image+n-1, to their pixels. 1 <= n <= max_batch. The session's batch is dropped. vae_s, vae_flop and total_s of
 * mar_session_get_stats are this call's then. Returns MAR_EARG for a token that is not finite or not in the vocabulary,
 * and fails as mar_session_images does. */
MAR_API mar_status mar_session_decode(mar_session *s, uint64_t first_image, const float *tokens, int n, uint8_t *rgb);
MAR_API void mar_session_image_size(const mar_session *s, int *width, int *height); /* 0 x 0 without a VAE */

/* How pixels are written. RGB8, RGBA8: uint8_t; alpha is 255, and in a preview 0 where no token is known. RGB_F32:
 * float, nominally 0 to 1, not clipped. */
typedef enum { MAR_PIXELS_RGB8 = 0, MAR_PIXELS_RGBA8, MAR_PIXELS_RGB_F32 } mar_pixel_format;

/* Memory of the caller for the pixels of one image: rows from top to bottom, pixels from left to right. */
typedef struct {
    size_t size; /* sizeof(mar_pixels) in the caller, by mar_pixels_init; new fields come last */
    mar_pixel_format format;
    int reserved; /* 0 */
    void *data;
    size_t stride;   /* bytes from a row to the next; 0: rows are adjacent */
    size_t capacity; /* bytes at data; if they are too few, the call returns MAR_EARG and writes nothing */
} mar_pixels;

/* Sets format RGB8, and all else to 0. Writes the first `size` bytes; pass sizeof *pixels. */
MAR_API void mar_pixels_init(mar_pixels *pixels, size_t size);
/* Writes image i of the finished batch, as mar_session_images does all of them. */
MAR_API mar_status mar_session_image(mar_session *s, int i, mar_pixels *pixels);

/* Writes the tokens [seq_len][token_dim] of a picture of the session's size, RGB8 or RGBA8 (alpha is ignored), as
 * mar_request.tokens takes them: the mean of the KL posterior, shifted, scaled and normed as drawn tokens are, or the
 * nearest rows of a VQ codebook. The images in progress are not affected. MAR_EARG if the VAE was loaded without its
 * encoder (mar_source.encoder). After a failure the tokens are undefined. */
MAR_API mar_status mar_session_encode(mar_session *s, const mar_pixels *pixels, float *tokens);

/* --- one call: from a class or a prompt to pixels ----------------------------------------------------------------- */

/* A model with its image decoder and, for a model of prompts, what encodes them. It has a reference on the handle. One
 * thread at a time may use it. */
typedef struct mar_pipeline mar_pipeline;

/* Loads the three. `vae` NULL: the decoder in the model's own file or folder, or the built-in model's. `text` NULL: the
 * model's own folder, or the built-in model's; not read for a model of classes. Errors are those of mar_model_load,
 * mar_vae_load and mar_text_load. mar_pipeline_free accepts NULL. */
MAR_API mar_status mar_pipeline_load(mar *m, const char *model, const char *vae, const char *text, mar_pipeline **out);
MAR_API void mar_pipeline_free(mar_pipeline *p);
/* Returns the pipeline's model, for mar_session_create and mar_model_get_config; valid as long as the pipeline. */
MAR_API mar_model *mar_pipeline_model(const mar_pipeline *p);

/* An image to make in one call. */
typedef struct {
    size_t size;              /* sizeof(mar_job) in the caller, by mar_job_init; new fields come last */
    const char *prompt;       /* UTF-8; NULL for a model of classes */
    const char *negative;     /* negative prompt; NULL: the family's own. MAR_EARG for a family without one */
    int label;                /* class, or -1 for unconditional; unused with a prompt */
    int reserved;             /* 0 */
    uint64_t image;           /* number of the image; the seed is that of params */
    const mar_params *params; /* NULL: the defaults of mar_params_init */
} mar_job;
/* Sets label to -1 and all else to nothing. Writes the first `size` bytes; pass sizeof *job. */
MAR_API void mar_job_init(mar_job *job, size_t size);

/* Makes one image: the pixels of mar_session_begin with the same parameters. *rgb becomes uint8_t [*height][*width][3],
 * top to bottom, to be freed by mar_rgb_free. On failure it is NULL, and mar_error of the handle has the reason. Errors
 * are those of mar_text_encode and of a session. */
MAR_API mar_status mar_generate(mar_pipeline *p, const mar_job *job, uint8_t **rgb, int *width, int *height);
MAR_API void mar_rgb_free(uint8_t *rgb); /* NULL is fine */

/* --- requests: images that come and go one at a time -------------------------------------------------------------- */

/* An image to make. It is a function of (model, the session's parameters, and the fields here), whatever runs beside
 * it: on a CPU bit for bit that of mar_session_begin with the same seed, number and guidance. */
typedef struct {
    size_t size;           /* sizeof(mar_request) in the caller, by mar_request_init; new fields come last */
    int label;             /* class, or -1 for unconditional */
    float cfg;             /* guidance scale; 1 in a session created with 1 */
    uint64_t seed, image;  /* seed, and number of the image */
    const float *features; /* text-to-image: [caption_tokens][caption_dim], see mar_session_begin_captions; else NULL */
    const uint8_t *mask;   /* text-to-image: [caption_tokens], or NULL */
    /* Editing: tokens [seq_len][token_dim], of which those with known[i] not 0 are kept, bit for bit. known is
     * [seq_len]. Both NULL: none is known. The rest is drawn given these: the model's steps go on from as many known
     * tokens. In raster order a token is drawn given those before it; known discrete tokens must come first. */
    const float *tokens;
    const uint8_t *known;
    const float *negative;        /* of a model of ids: its own second context; NULL: mar_session_set_negative's */
    const uint8_t *negative_mask; /* [caption_tokens] as of mar_session_set_negative, or NULL: 1 everywhere */
} mar_request;

/* Sets the session's seed and guidance, image 0, label -1 and no known tokens. Writes the first `size` bytes; pass
 * sizeof *request. */
MAR_API void mar_request_init(const mar_session *s, mar_request *request, size_t size);

/* Adds a request. It begins with a later mar_session_step, when fewer than max_batch images are in progress. Arrays are
 * copied. *id is unique in the session and never 0.
 *
 * Images at different steps share their passes. With an accelerator that keeps a state of the whole batch (draft, spec
 * path, lazy, gtr), requests begin together with those that wait, when no other is in progress; guidance must be the
 * session's, and no token may be known. Images of discrete tokens begin at any step, with every option.
 *
 * A batch in progress is dropped. mar_session_begin returns MAR_EARG until all requests are taken or cancelled. */
MAR_API mar_status mar_session_submit(mar_session *s, const mar_request *request, uint64_t *id);

typedef enum {
    MAR_REQUEST_UNKNOWN = 0, /* never submitted, taken or cancelled */
    MAR_REQUEST_WAITING,
    MAR_REQUEST_RUNNING,
    MAR_REQUEST_DONE,
    MAR_REQUEST_FAILED,
} mar_request_state;

typedef struct {
    size_t size; /* sizeof(mar_request_info) in the caller, by mar_request_info_init; new fields come last */
    mar_request_state state;
    mar_status status; /* FAILED: the reason; else MAR_OK */
    int step, steps;   /* autoregressive steps done, and in total; 0 before it begins */
    const char *why;   /* FAILED: the reason in one line; else "". Valid until the request is taken or cancelled */
} mar_request_info;

/* Sets all fields but size to 0. Writes the first `size` bytes; pass sizeof *info. */
MAR_API void mar_request_info_init(mar_request_info *info, size_t size);
/* Returns the state of a request, or of an image of the batch (mar_session_batch_request). */
MAR_API mar_status mar_session_get_request(mar_session *s, uint64_t id, mar_request_info *info);
/* Returns the number of requests that wait or are in progress. Call mar_session_step while it is not 0. */
MAR_API int mar_session_pending(const mar_session *s);
/* Returns the oldest request that is DONE or FAILED, 0 if there is none. */
MAR_API uint64_t mar_session_next_finished(const mar_session *s);
/* Returns the results of a DONE request, and forgets it: tokens [seq_len][token_dim] and pixels, each unless NULL. If
 * pixels cannot be had, nothing is written and the request stays. A FAILED request's status is returned, with its
 * reason in mar_session_error, and the request is forgotten. */
MAR_API mar_status mar_session_take(mar_session *s, uint64_t id, float *tokens, mar_pixels *pixels);
/* Forgets a request in any state. Others are not affected. */
MAR_API mar_status mar_session_cancel_request(mar_session *s, uint64_t id);

/* Writes the image so far of a RUNNING or DONE request, or of an image of the batch: its known tokens decoded, and
 * cells of the others grey. It changes nothing. */
MAR_API mar_status mar_session_preview(mar_session *s, uint64_t id, mar_pixels *pixels);
/* Returns the id of image i of the batch, for mar_session_get_request and mar_session_preview; 0 if there is none. */
MAR_API uint64_t mar_session_batch_request(const mar_session *s, int i);

/* --- results of a session ---------------------------------------------------------------------------------------- */

/* Returns the session's parameters with automatic values filled in. They, and the draft model in them, are valid as
 * long as the session. `spec` is static. */
MAR_API const mar_params *mar_session_get_params(const mar_session *s);

/* The guarantee on the distribution of a session's images. It is relative to plain sampling with the session's options:
 * one pass of the model for each autoregressive step, and the head's own chain. Strings are the session's. */
typedef struct {
    size_t size;
    int exact;             /* 1: the distribution is that of `reference` */
    int departures;        /* options in `departing`; 0: plain sampling as the model has it by default */
    const char *reference; /* "plain sampling, 8 steps of 10"; discrete tokens: "plain sampling, 256 steps" */
    /* exact: what keeps the distribution, "by speculation inside the head"; else what changes it: "changed by lazy".
     * "": nothing. */
    const char *method;
    /* Options of plain sampling that are not the model's defaults, and these: "num_iter 8 (64), cfg 30 (2.9)". */
    const char *departing;
} mar_guarantee;

/* Returns the session's guarantee, valid as long as the session; NULL for NULL. */
MAR_API const mar_guarantee *mar_session_get_guarantee(const mar_session *s);
/* Returns it as a line: "exact to: plain sampling, 64 steps of 100 (the model's defaults)", "exact to: plain sampling,
 * 8 steps of 100, by speculation inside the head; not the model's defaults: num_iter 8 (64)", "approximate: changed by
 * lazy; relative to plain sampling, 64 steps of 100 (the model's defaults)". Valid as long as the session. */
MAR_API const char *mar_session_guarantee(const mar_session *s);
/* Writes the line for an image of a request to `text`, char [size], and returns it: its guidance may be another, and
 * its known tokens are given. 1024 bytes are enough; the rest is cut. "" for invalid arguments. */
MAR_API const char *mar_session_request_guarantee(const mar_session *s, const mar_request *request, char *text,
                                                  size_t size);

#ifdef __cplusplus
}
#endif
#endif
