/* libmar - class-conditional images from masked autoregressive models with continuous tokens
 * (MAR: Li, Tian, Li, Deng, He, "Autoregressive Image Generation without Vector Quantization", 2024).
 *
 * In ten lines (error handling: every call returns a status; mar_error() or, of a session's calls, mar_session_error()
 * has the one-line reason):
 *
 *     mar *m;  mar_model *model;  mar_vae *vae;  mar_session *s;  mar_params p;
 *     int label = 207;                                      // a golden retriever
 *     mar_params_init(&p, sizeof p);                        // guidance 2.9, 64 steps of 100, as the command
 *     mar_open(NULL, &m);
 *     mar_model_load(m, "mar_base.safetensors", 0, &model);
 *     mar_vae_load(m, "kl16.safetensors", &vae);
 *     mar_session_create(model, vae, &p, 1, &s);
 *     mar_session_begin(s, 0, &label, 1);                   // image 0 of this seed
 *     while (!mar_session_done(s)) mar_session_step(s);     // one autoregressive step a call
 *     mar_session_images(s, rgb);                           // uint8_t rgb[256 * 256 * 3]
 *     mar_session_free(s); mar_vae_free(vae); mar_model_free(model); mar_close(m);
 *
 * An image depends on (model, parameters, seed, image index) only: not on the batch it is made in, the
 * number of threads, or what was generated before it. Bit for bit on a CPU with AVX-512. Without it, some oneDNN 2.6
 * products depend on the batch in their last bits. Products on a GPU can, too.
 *
 * Threads: any number of threads may use one handle, its models and its VAEs at a time. Models and VAEs never change
 * after loading. Any number of sessions on any threads share them, and their weights are in memory once. One thread may
 * load a model while others generate. A session belongs to one thread at a time, whichever that is;
 * mar_session_cancel may be called from any. To generate on several threads, make a session on each. On a CPU the
 * sessions at work share the handle's threads. A call on a CPU takes at most 64 KB of its thread's stack.
 *
 * Lifetimes: a session holds references on its model, draft model and VAE, and these hold one on the handle.
 * mar_model_free, mar_vae_free and mar_close drop the caller's. So everything may be freed in any order and on any
 * thread, and is gone when nobody uses it any more. Strings returned by the library stay valid until their owner is
 * freed, unless they say otherwise.
 *
 * Mistakes: NULL where a pointer is expected, an index or a number out of range, and a handle that could not be opened
 * are refused. A call with a status returns MAR_EARG and says why; without a handle or session to ask, mar_error(NULL)
 * says it. One without a status does nothing, or returns NULL, "" or 0.
 *
 * Forks: a process forked from the one that opened a handle has neither its threads nor its GPU. There the handle's
 * calls, and those of what was made with it, are refused in the same way, and freeing does nothing: nothing waits, and
 * the memory goes with the process. mar_session_get_params and the like still answer. Another handle can be opened
 * there, with two exceptions, in which mar_open fails and says so. CUDA works in one of the processes only; the CPU
 * goes. And if a thread was loading a model or beginning a batch at the moment of the fork, oneDNN's locks stay taken.
 * A program that is started anew has neither problem.
 *
 * Text: messages, lines for the log and the facts and problems of a report are valid UTF-8 that may be printed
 * anywhere. In them control characters, what turns the direction of text around, and bytes that are not UTF-8 are shown
 * as \n, \x1b or \u202e.
 *
 * Failures: a call that fails leaves all other sessions and the handle as they were. Memory that runs out is
 * MAR_ENOMEM, in oneDNN, too: on Linux for x86-64 and ARM64, if oneDNN is a shared library on libstdc++ (2.6.3 is what
 * was tried); elsewhere that ends the program. If a program loads libmar by dlopen, glibc ends it when memory is out at
 * a thread's first call. A CPU backend has as many threads as the system starts. Nothing else here ends the program,
 * prints, or changes what belongs to the process: signal handlers, locale, umask, the affinity of the caller's threads.
 * Only oneDNN's cache of primitives is turned off, and what libdnnl imports for memory is led through libmar. Numbers
 * in text are read and written by the C library in the process's locale: LC_NUMERIC should be "C", as it is unless the
 * program changes it.
 */
#ifndef MAR_H
#define MAR_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(_WIN32)
#define MAR_API __declspec(dllexport)
#else
#define MAR_API __attribute__((visibility("default")))
#endif

typedef enum {
    MAR_OK = 0,
    MAR_EARG,       /* an option or argument is out of its range */
    MAR_ENOMEM,     /* an allocation failed; the message names the size */
    MAR_EIO,        /* a file cannot be opened, read or written */
    MAR_EFORMAT,    /* a file is not what its name or magic says, is truncated or malformed */
    MAR_EMODEL,     /* the tensors in a file do not make a model: missing, extra, wrong shape, NaN; or a token or pixel
                     * that a model made is NaN or infinite */
    MAR_EBACKEND,   /* the compute backend failed or is not there */
    MAR_ECANCELLED, /* mar_session_cancel was called */
} mar_status;

typedef enum { MAR_DTYPE_AUTO = 0, MAR_DTYPE_F32, MAR_DTYPE_BF16, MAR_DTYPE_INT8, MAR_DTYPE_F16 } mar_dtype;

/* --- options --------------------------------------------------------------------------------------- */

/* The type of an option's field. */
typedef enum {
    MAR_TYPE_FLAG,   /* int, 0 or 1. As text: on or off */
    MAR_TYPE_INT,    /* int */
    MAR_TYPE_UINT64, /* uint64_t */
    MAR_TYPE_FLOAT,  /* float */
    MAR_TYPE_CHOICE, /* an enumeration, or an int: an index into choices */
    MAR_TYPE_NAME,   /* const char *: NULL, or one of choices */
    MAR_TYPE_TEXT,   /* const char *: any text that is not empty. The field points to the caller's text */
    MAR_TYPE_MODEL,  /* mar_model *: NULL, or a model. No text sets it; on the command line it is a file */
} mar_type;

/* An option. The command line, --help, the manual, records and hosts take all they know of it from here. */
typedef struct {
    const char *name;  /* the field's name, and that for mar_params_set and, behind --, on the command line */
    const char *help;  /* the first line is for --help; what follows it is for the manual only */
    const char *group; /* the heading it is listed under: "Sampling" */
    mar_type type;
    size_t offset;              /* of the field in its struct */
    double value, min, max;     /* default and range, both ends allowed. CHOICE: value is the index */
    const char *const *choices; /* CHOICE, NAME: ends with NULL. INT: names of its values from min on, which have no
                                 * other text, or NULL. TEXT: texts that have a meaning of their own, or NULL */
    const char *method;         /* the option or verifier without which it has no effect, or several of them, any of
                                 * which will do: "lantern|lantern-gstar"; NULL: it always has one */
    const char *argument;       /* TEXT, MODEL: what stands for the value in help and messages: "FILE"; NAME: in help,
                                 * if its choices are too many for a line */
    const char *tokens;         /* the kind of a model's tokens that it has an effect on: "continuous" (MAR) or
                                 * "discrete" (LlamaGen); NULL: both */
} mar_param;

/* Sets the field of `option` in the struct at `fields` from text. On MAR_EARG nothing has changed and `why`, char
 * [size], which may be NULL, has one line: "cfg nan: expected a number from 0 to 100". */
MAR_API mar_status mar_param_set(const mar_param *option, void *fields, const char *text, char *why, size_t size);
/* Writes what a value must be, such as "a number from 0 to 100", to text, char [size]. Returns text, or "" if there is
 * none. */
MAR_API const char *mar_param_expects(const mar_param *option, char *text, size_t size);
/* The field's value as text that mar_param_set reads back to the same value, "" for NULL and for models: into `text`,
 * char [size]; returns it, or "" if there is none. */
MAR_API const char *mar_param_text(const mar_param *option, const void *fields, char *text, size_t size);
/* Whether the field has its default value. */
MAR_API int mar_param_is_default(const mar_param *option, const void *fields);

/* --- the library handle ------------------------------------------------------------------------- */

typedef struct mar mar; /* what everything runs on: a GPU, or the CPU with its worker threads */

typedef enum { MAR_BACKEND_AUTO = 0, MAR_BACKEND_CPU, MAR_BACKEND_CUDA } mar_backend;

/* What a handle and all that is made from it have to say: a line without newline, valid during the call. INFO: the
 * handle was opened, with AUTO why on the CPU; a model or VAE loaded; a checkpoint converted; a session created.
 * WARNING: a batch failed; a GPU refuses to record steps; a session's criterion suits the arithmetic of the head badly.
 * It is called on the thread that called the library, so on several at a time if several use the handle. It may make
 * calls on the handle; those on the session whose call it comes from are as in a mar_progress_function. A GPU that it
 * makes the thread's current one (cudaSetDevice) need not stay that: the call may set it back to the one it found. */
typedef enum { MAR_LOG_INFO, MAR_LOG_WARNING } mar_log_level;
typedef void mar_log_function(void *user, mar_log_level level, const char *line);

/* Whether the products of a GPU are timed (mar_options.tuning). */
typedef enum { MAR_TUNING_ON = 0, MAR_TUNING_OFF } mar_tuning;

/* Which weights of a training checkpoint (mar_options.weights). */
typedef enum { MAR_WEIGHTS_AUTO = 0, MAR_WEIGHTS_EMA, MAR_WEIGHTS_MODEL } mar_weights;

typedef struct {
    mar_dtype dtype; /* arithmetic of matrix products: F32, BF16, AUTO (bf16 on a GPU, and where the processor has it),
                      * or INT8 on a CPU: approximate. The transformer's blocks and the head's are in int8, weights
                      * quantised by output channel and activations by row; the rest is as with AUTO. A file's int8
                      * weights (mar_convert) are multiplied as they are with INT8, else as the f32 that they stand
                      * for; AUTO never becomes INT8 */
    int threads; /* threads of the CPU, no more than there are cores; 0: one per core that affinity and quota allow */
    mar_backend backend;   /* AUTO: CUDA if the library was built with it and there is a GPU, else CPU */
    int device;            /* CUDA: number of the GPU, from 0 */
    mar_log_function *log; /* NULL: lines go nowhere */
    void *log_user;        /* handed to log */
    int allow_nonfinite;   /* 1: models and VAEs with weights that are NaN or infinite are loaded, not refused */
    mar_tuning tuning; /* CUDA: ON times several of cuBLASLt's algorithms for a new shape of product, when a session is
                        * made or a batch begun, with spec path in its steps too, and takes the fastest of those that
                        * give the same bits. The products that are timed take at most some two seconds for a handle */
    mar_dtype head_dtype; /* arithmetic of the diffusion heads: F32, whatever dtype is; BF16, which dtype must be too;
                           * or AUTO, as dtype. Criterion path compares two evaluations of the head, and in bf16 their
                           * rounding alone rejects many of its drafts. In f32 a head takes twice the time on a CPU */
    int int8_below; /* dtype INT8: the head is in int8 at timesteps below this, of 1000; 0: 985. The first steps of a
                     * chain multiply an error of the head by up to 20000. MAR_EARG with another dtype or head_dtype */
    int seq_len; /* LlamaGen models whose file has no mar.seq_len in its metadata: tokens of an image, a square number
                  * up to 65536; 0: 256. Official models for 384 pixels need 576. mar_inspect and mar_convert refuse
                  * it for a file of another kind (MAR_EARG), which mar_model_load and mar_vae_load do not */
    mar_weights weights; /* of a training checkpoint that PyTorch wrote. EMA: the averaged ones, `model_ema` or `ema`;
                          * MODEL: those that were trained, `model`, `module` or `state_dict`; AUTO: the first there is
                          * of `model_ema`, `model`, `module`, `state_dict` and `ema`, as the models' own code takes
                          * them. MAR_EARG for a file with the other ones only. It is of no meaning to a file with one
                          * set of weights without a name, which mar_inspect and mar_convert refuse with it (MAR_EARG),
                          * nor to mar_vae_load and mar_features_load */
    int patch_size; /* MAR models whose file has no mar.patch_size in its metadata: latent pixels on a side of a token,
                     * up to 16, the official option; 0: 1 if token_dim equals the image decoder's channels, else
                     * sqrt(token_dim / 16) for a decoder of 16 channels, KL-16's. MAR_EARG if its square does not
                     * divide token_dim. mar_inspect and mar_convert refuse it for a file of another kind */
} mar_options;

/* The options of mar_options that have a text: i = 0..count-1, static; NULL for other i. */
MAR_API int mar_option_count(void);
MAR_API const mar_param *mar_option_get(int i);

/* Opens the library. `options` may be NULL (all defaults), and those of `mar_options o = {0};`, in C++ `{}`, are the
 * defaults. *out is set even on failure, so that mar_error(*out) has the reason (NULL only if memory ran out). Such a
 * handle is to be closed, and all other calls refuse it with that reason. */
MAR_API mar_status mar_open(const mar_options *options, mar **out);
/* Drops the caller's reference. Models, VAEs and sessions that still exist go on to work. NULL is fine. */
MAR_API void mar_close(mar *m);

/* Why this thread's last failing call on the handle failed: mar_open, loading, mar_session_create, mar_inspect,
 * mar_convert, mar_measure_peak, mar_measure_bandwidth. One line without newline, "" if none has failed. Valid until
 * the thread's next failing call on any handle. Never NULL. The other calls on a session leave their reason there:
 * mar_session_error. Of NULL: why the thread's last failing call failed, if it was given neither handle nor session. */
MAR_API const char *mar_error(const mar *m);
MAR_API const char *mar_status_name(mar_status status);
MAR_API const char *mar_version(void); /* "MAJOR.MINOR.PATCH" */

/* What the handle runs on, for reports: "cpu bf16 (avx512_bf16), 2 threads", or "cpu bf16, head f32 (...". "" if it was
 * not opened. */
MAR_API const char *mar_backend_description(const mar *m);

/* The number of GPUs, which mar_options.device counts from 0; 0 without any or without CUDA in the library. */
MAR_API int mar_gpu_count(void);

/* Measures the rate of large matrix products on this handle's backend and arithmetic, in flop per second (2 a
 * multiply-add): the best of many 1024x1024x1024 products, or, where these are too short to tell, of 8192x8192x8192,
 * by the operation that computes the models' layers. Takes some seconds. The yardstick of `mar bench`. */
MAR_API mar_status mar_measure_peak(mar *m, double *flop_per_second);
/* Measures how fast this handle's backend reads memory that is in no cache, in bytes per second: the best of many
 * passes over an array of 512 MiB, or of four times the last cache up to 4 GiB, with all threads, in pages like those
 * of weights. A backend without an operation that reads alone copies, and what it writes counts. What decoding at batch
 * 1 can take at the least is the bytes of the weights divided by this. Takes about a second. */
MAR_API mar_status mar_measure_bandwidth(mar *m, double *bytes_per_second);

/* --- models -------------------------------------------------------------------------------------- */

typedef struct mar_model mar_model; /* transformer and diffusion head, packed for the backend */
typedef struct mar_vae mar_vae;     /* image decoder */

/* Everything that defines a MAR model's shape. All but `heads` are derived from the tensors. */
typedef struct {
    int width;         /* transformer embedding size D */
    int encoder_depth; /* transformer blocks in the encoder */
    int decoder_depth;
    int heads;          /* attention heads, those of the encoder; see mar_model_load */
    int mlp_hidden;     /* hidden size of the transformer's MLP, 4*width */
    int buffer;         /* class tokens in front of the image tokens (official: 64) */
    int seq_len;        /* image tokens (official: 256, a 16x16 grid) */
    int token_dim;      /* channels of one token (official: 16) */
    int classes;        /* class labels 0..classes-1 */
    int head_width;     /* diffusion head */
    int head_depth;     /* residual blocks of the diffusion head */
    long parameters;    /* total count */
    const char *family; /* "mar"; "llamagen": autoregressive over discrete tokens; "eagle": a drafter for such a model,
                         * which makes no images itself. Static */
    int vocabulary;     /* discrete tokens: how many there are; a token is one number, token_dim is 1. 0: continuous */
    int caption_tokens; /* text-to-image: positions of a caption's features; 0: it has classes */
    int caption_dim;    /* numbers of each of these features */
    int int8_weights;   /* 1: loaded from a file with int8 weights (mar_convert) */
    int decoder_heads;  /* attention heads of the decoder */
    int heads_guessed;  /* 1: nothing says the number of heads, so that the model is not loaded; of mar_report_model */
    int patch_size;     /* latent pixels on a side of a token, as mar_options or the metadata say; 0: they do not, and
                         * the image decoder's channels do, or do not either (mar_options.patch_size) */
} mar_model_config;

typedef struct {
    int z_channels; /* latent channels: the model's token_dim over the square of its patch size */
    int stride;     /* pixels per latent pixel and axis (official KL-16: 16) */
    int channels;   /* base width `ch` */
    int levels;     /* resolutions */
    int res_blocks; /* residual blocks per level of the encoder; the decoder has one more */
    long parameters;
    int codebook; /* VQ: tokens there are, each of which stands for z_channels numbers; 0: latents are continuous */
} mar_vae_config;

/* Loads a MAR or LlamaGen checkpoint: .safetensors, the official PyTorch .pth or .pt, or "demo" / "demo-draft", and of
 * discrete tokens "demo-discrete" / "demo-discrete-draft" / "demo-discrete-eagle", for the models built into the
 * library. `heads` is the number of attention heads, or mar_heads of two; 0 takes it from the file's metadata or,
 * without any, from the official model of that width (MAR: 768, 1024, 1280. LlamaGen: 768 to 4096). MAR_EMODEL if
 * there is none: no tensor tells the number of heads, and a wrong one makes wrong images.
 * MAR_EIO if the file changes while it is read. MAR_EMODEL, with a line that says what the file is, for an image
 * decoder, and of mar_vae_load for a model. MAR_EMODEL, too, if weights are NaN or infinite
 * (mar_options.allow_nonfinite). The model keeps no reference to the file. mar_model_free drops the caller's reference;
 * NULL is fine. */
MAR_API mar_status mar_model_load(mar *m, const char *path, int heads, mar_model **out);
/* The `heads` of a MAR model whose encoder and decoder have different numbers of heads, 1..1024 each. */
static inline int mar_heads(int encoder, int decoder)
{
    return decoder * 65536 + encoder;
}
MAR_API void mar_model_free(mar_model *model);
MAR_API const mar_model_config *mar_model_get_config(const mar_model *model);

/* Loads the decoder of a KL autoencoder (kl16.ckpt) or of LlamaGen's VQ one (vq_ds16_c2i.pt), or .safetensors of
 * either, or "demo" (also called "demo-vae"), "demo-discrete" (also called "demo-discrete-vq"). mar_vae_free drops the
 * caller's reference; NULL is fine. Errors are those of mar_model_load. A session with a method of LANTERN keeps what
 * it finds out about a codebook, which takes seconds, in PATH.neighbours-METRIC-K.npz, if that can be written. */
MAR_API mar_status mar_vae_load(mar *m, const char *path, mar_vae **out);
MAR_API void mar_vae_free(mar_vae *vae);
MAR_API const mar_vae_config *mar_vae_get_config(const mar_vae *vae);
/* VQ: what the tokens stand for, as they are looked up: float [codebook][z_channels], rows of length 1. Valid as long
 * as the VAE. NULL without a codebook, and of NULL. */
MAR_API const float *mar_vae_codebook(const mar_vae *vae);

/* --- generation ---------------------------------------------------------------------------------- */

typedef enum { MAR_CFG_LINEAR = 0, MAR_CFG_CONSTANT } mar_cfg_schedule;

/* How the head draws a token: the model's own chain (DDPM with learned variances), or an ODE solver: DDIM (Song et al.,
 * 2021, eta 0) or DPM-Solver++ (Lu et al., 2022, second-order multistep). */
typedef enum { MAR_SAMPLER_DDPM = 0, MAR_SAMPLER_DDIM, MAR_SAMPLER_DPMPP } mar_sampler;

/* How the number of diffusion steps falls over the autoregressive steps (DiSA: Zhao et al., 2025). */
typedef enum { MAR_ANNEAL_OFF = 0, MAR_ANNEAL_LINEAR, MAR_ANNEAL_COSINE, MAR_ANNEAL_TWO_STAGE } mar_annealing;

/* The context in which the target verifies drafts. PREFIX: the last verified tokens, for the whole block, which is the
 * process of coarser autoregressive steps. FULL: each draft step's own. AUTO: FULL with spec path, else PREFIX. */
typedef enum { MAR_CONTEXT_PREFIX = 0, MAR_CONTEXT_FULL, MAR_CONTEXT_AUTO } mar_context;

/* How a position that nothing is known of gets its first draft, in Jacobi decoding: a draw from the uniform law, or the
 * token to its left, or the one above. */
typedef enum { MAR_FIRST_UNIFORM = 0, MAR_FIRST_LEFT, MAR_FIRST_ABOVE } mar_first;

/* The distance between tokens of a codebook: Euclidean, or one minus the cosine. */
typedef enum { MAR_METRIC_L2 = 0, MAR_METRIC_COSINE } mar_metric;

/* What an image is made with. Names and meanings are those of the official implementation, and of the papers that
 * `mar methods` names. mar_param_get(i) has each field's default, range and description. */
typedef struct {
    size_t size; /* sizeof(mar_params) where the caller was compiled: mar_params_init sets it. New fields come last */

    int num_iter;                  /* autoregressive steps, 1..seq_len; 0: 64, or seq_len if that is less. Discrete
                                      tokens: 0, or seq_len, which they always take */
    int num_sampling_steps;        /* diffusion steps of the head, 2..1000 */
    float cfg;                     /* guidance scale, 1 = none */
    mar_cfg_schedule cfg_schedule; /* LINEAR: 1 + (cfg-1) * (fraction of tokens known after the step) */
    float temperature;             /* scales the noise of every diffusion step but not x_T. Discrete tokens: divides
                                      the logits; 0: greedy */
    uint64_t seed;

    /* Lossless speculation inside the head: the number of diffusion steps that one call of the head may settle, 1..64.
     * All but one of them are proposed beforehand. 0 is the plain chain. The law of the output is the same. */
    int head_spec;

    /* Shortcuts. They change the law of the output. */
    mar_sampler sampler;
    mar_annealing diff_annealing; /* OFF: num_sampling_steps throughout */
    int diff_upper_steps;         /* annealed diffusion steps of the first autoregressive step */
    int diff_lower_steps;         /* annealed diffusion steps of the last autoregressive step */
    int lazy;                     /* 1: LazyMAR's token and condition caches in the transformer */
    int lazy_head;                /* 1: the reuse inside the head of LazyMAR's release, in 6 of 7 calls */
    int gtr;                      /* 1: GtR's two stages, one for each colour of a chessboard */
    int gtr_generation_steps;     /* autoregressive steps of GtR's first stage. Both stages' replace num_iter */
    int gtr_reconstruction_steps; /* autoregressive steps of GtR's second stage */
    float gtr_detail;             /* fraction of the second stage's tokens that get num_sampling_steps, 0..1 */
    int gtr_sampling_steps; /* diffusion steps of its other tokens; 0: 50, or num_sampling_steps if that is less */

    /* Speculation across tokens: `draft` drafts gamma autoregressive steps, the model verifies them by `spec`. */
    mar_model *draft; /* same tokens and classes as the model; NULL: none. A session holds a reference on it */
    const char *spec; /* a verifier of mar_method_get for the model's kind of tokens: "path", "vanilla". "path" without
                       * a draft: the model's own last conditions are the draft. "sjd" and "sjd-pac" have none. NULL:
                       * with head_spec the draft's head proposes inside the head, without it "path", of discrete
                       * tokens "vanilla". A session keeps no reference to the text, nor to that of tree */
    int gamma; /* 1 or more; a block ends with the image. 0: with spec path by what was accepted in the image so far, at
                  most 16; else 8. Discrete tokens: at most seq_len (MAR_EARG), to which the default is lowered */
    float prefill;           /* fraction of the autoregressive steps that the target makes alone, 0..1; not with path */
    mar_context context;     /* without a draft it is FULL */
    int align;               /* 1: draft and target share x_T and all noise; 0: independent noise; not with spec path */
    float inner_temperature; /* cspd: tempers the standard deviations of its criterion */
    int reserved;            /* 0. The struct has no padding at its end, so that every new field changes its size */

    int check; /* 1: a failure for a number that is not finite names the layer it comes from. Slower, of the same output
                */
    int reserved_2; /* 0 */

    /* Discrete tokens (LlamaGen), whose order is that of an image's rows. */
    int cfg_interval; /* -1: guidance throughout; else tokens after number cfg_interval + 1, from 0, have none.
                       * At most seq_len - 2 */
    int top_k;        /* 0: all tokens; else those with less than the k-th largest logit are never drawn */
    float top_p;      /* 1: all; else of the tokens by falling probability those behind the first that reaches top_p */
    int window;      /* sjd, sjd-pac: drafts of a round, those of the tree among them. 1 to seq_len; the default, 64, is
                      * lowered to that */
    mar_first first; /* sjd, sjd-pac: how a position gets its first draft */
    int pac_children; /* sjd-pac: drafts at a position of its tree, K; 1: none (PD off) */
    int pac_depth;    /* sjd-pac: tokens of a path of its tree, its root among them, D; 0, 1: none (PD off) */
    int pac_continue; /* sjd-pac: 1: verification goes on behind a rejection (AC); 0: it stops */
    const char *tree; /* with a draft: NULL or "chain"; "static", LANTERN++'s; "dynamic", EAGLE-2's; or the children of
                       * every draft by levels, "4,2,1,1". gamma is the depth */
    int tree_top;     /* dynamic: drafts kept of a level, and children tried of each */
    int tree_total;   /* dynamic: drafts verified */
    float cool_delta; /* uniform-rsd, cool-sd-exp, cool-sd-linear: relaxation */
    float cool_nu;    /* cool-sd-exp: how fast it falls along a block */
    float cool_ell;   /* cool-sd-linear: likewise */
    int lantern_k; /* lantern...: neighbours looked at, the token itself among them; 0: lantern 1000, lantern-pp 10, or
                    * the vocabulary if that is less, above which it is refused (MAR_EARG) */
    float lantern_delta;       /* lantern, lantern-gstar: the neighbours may have less than this probability */
    float lantern_lambda;      /* lantern-pp, lantern-pp-gstar: or less than this many times the token's own */
    mar_metric lantern_metric; /* lantern...: which tokens are near */
    int reserved_3;            /* 0 */

    /* Continuous tokens (MAR): an interval of guidance. Steps before which a fraction of the image's tokens is known
     * that is below cfg_low or above cfg_high have scale 1 and compute no unconditional rows. */
    float cfg_low;  /* 0..cfg_high. 0, the default: from the first step on */
    float cfg_high; /* cfg_low..1. 1, the default: to the last step */
} mar_params;

/* Sets every field to its default: those of the command. `size` is sizeof *params, whose first `size` bytes it writes.
 */
MAR_API void mar_params_init(mar_params *params, size_t size);

/* The options of mar_params, one a field: i = 0..count-1, static; NULL for other i. */
MAR_API int mar_param_count(void);
MAR_API const mar_param *mar_param_get(int i);
/* mar_param_set by name: mar_params_set(&p, "cfg", "2.9", why, sizeof why). "cfg_interval" with two numbers, "0.2,0.8",
 * sets cfg_low and cfg_high. */
MAR_API mar_status mar_params_set(mar_params *params, const char *name, const char *text, char *why, size_t size);
/* NULL if option i has an effect together with the others as they are, else why it has none: "needs gtr". The text
 * stays until this thread's next call. NULL, too, for parameters that mar_session_create refuses for an option's
 * range. */
MAR_API const char *mar_params_unused(const mar_params *params, int i);

typedef struct mar_session mar_session;

/* A session owns all working memory for up to `max_batch` images at a time, one block on the backend. A step allocates
 * nothing, with three exceptions. Beginning a batch of another size than the last one prepares the products of its
 * shapes. A round of speculation in context full does so, too, as its shapes depend on what was accepted. On a GPU what
 * a session does for the second time, such as each step of the second batch of a size, is recorded for those that
 * follow (mar_stats.recorded_bytes). MAR_ENOMEM names the block's size. A block of more memory than is available is
 * refused, where the system says how much that is; the pages of a large one are taken when they are first used. So a
 * creation is short whatever the batch, and what takes long is in calls that mar_session_cancel stops.
 * `params` is copied. If they come from a program compiled with an older mar.h, the fields that it lacks have their
 * defaults. Those of a newer mar.h are refused. `vae` may be NULL if only tokens are wanted. If it fails, *out is NULL
 * and mar_error of the model's handle has the reason. */
MAR_API mar_status mar_session_create(mar_model *model, mar_vae *vae, const mar_params *params, int max_batch,
                                      mar_session **out);
/* NULL is fine. From a callback of a call on the session it frees nothing, and mar_session_error says so. */
MAR_API void mar_session_free(mar_session *s);

/* Why the session's last failing call failed: one line without newline, "" if none has. Valid until its next failing
 * call. Never NULL. Of NULL: what mar_error(NULL) says.
 * If a step fails, out of memory, in the backend or for a token that is not finite, or is cancelled, the batch is
 * dropped: mar_session_done is 1, and calls that ask for its images, tokens or fates fail with MAR_EARG and a line that
 * says so. mar_session_begin starts anew, and the session works again as if nothing had been, unless the GPU itself is
 * lost. */
MAR_API const char *mar_session_error(const mar_session *s);

/* Starts images first_image .. first_image+n-1 (indices of this seed's sequence) with labels[n]; a label is
 * a class number, or -1 for unconditional. 1 <= n <= max_batch. An unfinished batch is dropped. Wrong arguments are
 * refused before anything changes. */
MAR_API mar_status mar_session_begin(mar_session *s, uint64_t first_image, const int *labels, int n);
/* The same for text-to-image models, whose captions some T5 has encoded elsewhere: features float [n][caption_tokens]
 * [caption_dim], mask uint8_t [n][caption_tokens], 1 where the caption is; NULL: everywhere. MAR_EARG of other models,
 * as mar_session_begin is of these. */
MAR_API mar_status mar_session_begin_captions(mar_session *s, uint64_t first_image, const float *features,
                                              const uint8_t *mask, int n);
/* One autoregressive step, or a round of speculation across tokens: several; MAR_EARG when done. On a GPU it may still
 * be running when the call returns, and fail a later one; the last step waits for all of them. A token that is NaN or
 * infinite fails the batch with MAR_EMODEL (on a GPU at the last step, or with mar_params.check at its own): "image 3,
 * step 17: a token is NaN (position 40, channel 2); ...". The step is numbered as in mar_session_fates. With check the
 * line ends with the first layer whose output is not finite, as a checkpoint names it; a draft's begins with "draft: ".
 * check also fails a batch with such a layer whose tokens are finite, as they are if the draft's layer is one. Of
 * discrete tokens a step is a round, and what fails is a law: "image 3, token 40: no token has a probability: ...". */
MAR_API mar_status mar_session_step(mar_session *s);
MAR_API int mar_session_done(const mar_session *s);
MAR_API int mar_session_steps_left(const mar_session *s);

/* Cancels the batch in progress. The call at hand (mar_session_begin, _step, _tokens, _images) stops soon, or the next
 * one does if none is at hand, and returns MAR_ECANCELLED. If that was begin or a step, the batch is dropped, unless
 * the step was the last and is done. Finished images stay: tokens and images can be asked for, again if that is what
 * was cancelled, and images written already are whole. A mar_session_begin later forgets a cancel that no call has
 * seen. It only sets a flag, so any thread, a callback and a signal handler may call it, as long as the session exists.
 */
MAR_API void mar_session_cancel(mar_session *s);

/* How far the batch in progress is. */
typedef struct {
    int step, steps;      /* autoregressive steps done, and of how many */
    int images, batch;    /* images that the mar_session_images at hand has finished, and of how many */
    uint64_t first_image; /* mar_session_begin's */
} mar_progress;

/* `f` is called after every mar_session_step that succeeded and after every image of mar_session_images, on the thread
 * that called these, at their end or between images. On a GPU several images are finished at a time. Of the calls on
 * this session it may make mar_session_cancel: the call at hand then returns MAR_ECANCELLED. Those with a status return
 * MAR_EARG, and mar_session_free does nothing. Those that only tell something answer. NULL: no more. */
typedef void mar_progress_function(void *user, mar_session *s, const mar_progress *progress);
MAR_API void mar_session_on_progress(mar_session *s, mar_progress_function *f, void *user);

/* On a GPU: the session goes on on the host's stream, a cudaStream_t of the session's GPU, which must outlive the
 * session or its next mar_session_set_stream; NULL: on its own again. Waits for what the session has begun. MAR_EARG on
 * a CPU, and for cudaStreamPerThread, which is another stream on every thread. */
MAR_API mar_status mar_session_set_stream(mar_session *s, void *stream);

/* After the last step. Tokens: float [n][seq_len][token_dim], as the model predicts them (before /0.2325); discrete
 * ones by their numbers. Images: uint8_t [n][H][W][3], rows top to bottom, RGB. A pixel that is NaN or infinite before
 * it becomes a byte fails the batch with MAR_EMODEL and a line that names image and pixel, and with mar_params.check
 * the layer. So does an image without a value between -1 and 1 before it is clipped: it would be blank. */
MAR_API mar_status mar_session_tokens(mar_session *s, float *tokens);
MAR_API mar_status mar_session_images(mar_session *s, uint8_t *rgb);
/* Decodes tokens [n][seq_len][token_dim], as mar_session_tokens has returned them for images first_image ..
 * first_image+n-1: the pixels of these images, without making them again. 1 <= n <= max_batch. The session's batch is
 * dropped. Of mar_session_get_stats, vae_s, vae_flop and total_s then are the call's. MAR_EARG for a token that is not
 * finite or not in the vocabulary; else as mar_session_images. */
MAR_API mar_status mar_session_decode(mar_session *s, uint64_t first_image, const float *tokens, int n, uint8_t *rgb);
MAR_API void mar_session_image_size(const mar_session *s, int *width, int *height); /* 0 x 0 without a VAE */

/* The parameters that the session uses: `params` with its automatic values filled in. Valid as long as the session, and
 * so is the draft model in them; `spec` is static. */
MAR_API const mar_params *mar_session_get_params(const mar_session *s);

/* What the batch has taken since mar_session_begin. Times are in seconds. Arithmetic counts matrix products and
 * convolutions, 2 flops a multiply-add. Encoder, decoder and head are the target's. What the draft takes is in draft_*,
 * but its head inside head_spec counts as head. verify_s is that of speculation across tokens. */
typedef struct {
    double encoder_s, decoder_s, head_s, vae_s, draft_s, verify_s, total_s;
    double encoder_flop, decoder_flop, head_flop, vae_flop, draft_flop;
    /* Discrete tokens: bytes of weights, keys and values that the passes of the target and of the draft had to read,
     * each once a pass; else 0. Divided by mar_measure_bandwidth, the least that they can take. */
    double decoder_bytes, draft_bytes;
    size_t arena_bytes;     /* the session's working memory on the backend */
    size_t recorded_bytes;  /* host arrays of the session's recorded steps, on the backend besides (a GPU's; else 0) */
    double head_call_bytes; /* the head's weights that each of its sequential calls needs */
    int head_call_products; /* matrix products of such a call; each waits for the one before */

    /* The target's head: calls that had to wait for one another. A token's calls are those of its chain, shared with
     * the tokens drawn beside it. */
    long tokens;         /* tokens that entered the images */
    double head_calls;   /* sum over tokens of the sequential calls of its chain; with spec path over all that were
                          * drawn, drafts that were dropped and candidates included */
    int head_calls_max;  /* of one token */
    double head_batched; /* all calls of the target's head, one after another, each for all tokens at hand */
    double draft_calls;  /* the same of the draft's head */
    double head_rows;    /* head evaluations: sum over calls of states evaluated, conditions not counted twice */
    double passes;       /* passes of the target's transformer, one after another, each for all images at hand */
    double contexts;     /* that were in them, summed over images: an image's plain pass is one context */

    /* Inside the head (head_spec): transitions proposed, and those accepted. residual_tries counts these and the ones
     * below. */
    long proposals, proposals_accepted;

    /* Across tokens (spec): */
    long drafted, accepted;   /* tokens verified, and accepted */
    long rounds, round_steps; /* verifications of a block, and autoregressive steps they advanced */
    long residual_tries;      /* candidates drawn to replace rejected ones */
    long
        accepted_lengths[66]; /* discrete tokens: how many rounds of an image accepted so many drafts; the last: more */
    double accepted_shift;    /* root mean square, per channel, of the difference between what draft and target make of
                               * an accepted token at the last index. With spec path in context full the draft's is the
                               * token, else the target's; in context full later contexts have seen the draft's */

    /* Of the handle since it was opened (mar_options.tuning): */
    int products_tuned;     /* shapes of products whose algorithms were timed */
    int products_otherwise; /* those that another algorithm computes than without */
    double tuning_s;        /* what the GPU's products took in it */
} mar_stats;
/* Waits for the steps begun. All 0 in a forked process. */
MAR_API void mar_session_get_stats(const mar_session *s, mar_stats *stats);

/* How long something takes. `group` is "machine" (what the device is and can do), "phase", "step" and "speculation"
 * (parts of the head by themselves), "pass" (of one autoregressive step, and the image decoder), "operation" (of that
 * step) or "image decoder" (its operations). */
typedef struct {
    const char *group; /* static */
    const char *name;  /* "linear 3072 x 768, gelu"; valid during the call */
    int rows;          /* of what it works on; 0: it has none */
    double count;      /* how often it is called in that step; of a number of the machine, the number */
    double seconds;    /* of one call; 0 for what is a number, in count */
    double bytes;      /* that one call must at least move; 0: not counted */
    double flop;       /* of one call's products; 0: not counted */
} mar_measurement;
typedef void mar_measurement_function(void *user, const mar_measurement *m);
/* Measures what `mar bench --micro` shows, with the session's model, parameters and batch, and calls f for each row at
 * the end, whose calls on the session are refused as a mar_progress_function's are. It takes seconds, on a slow device
 * minutes, and memory besides. The batch in progress is lost. MAR_ECANCELLED if mar_session_cancel was called
 * meanwhile; f is called if nothing fails only. */
MAR_API mar_status mar_session_measure(mar_session *s, mar_measurement_function *f, void *user);

/* What became of each token, after the last step: uint8_t map[n][seq_len] (mar_token_fate) and int step[n][seq_len],
 * the autoregressive step it belongs to, of discrete tokens the round. Either may be NULL. */
typedef enum { MAR_TOKEN_TARGET = 0, MAR_TOKEN_ACCEPTED, MAR_TOKEN_REPLACED } mar_token_fate;
MAR_API mar_status mar_session_fates(mar_session *s, uint8_t *map, int *step);
/* How late each token's draft was, after the last step: int late[n][seq_len], by how many autoregressive steps the
 * conditions it was drafted with are older than its own (spec path without a draft model: 1 or more); 0 of tokens that
 * were not drafted so. */
MAR_API mar_status mar_session_lateness(mar_session *s, int *late);

/* One line that says what the session's output is, given its parameters: "exact: the target's law", "approximate: ...".
 * Valid as long as the session. */
MAR_API const char *mar_session_guarantee(const mar_session *s);

/* How the backend computes this session's batches, for reports, to `text`, char [size]; returns it, or "" if there is
 * none. One line: which way the head takes on this device, and why not a faster one; of a GPU how many recordings there
 * are, and, if the device refuses some, why: "head: persistent kernel up to 64 rows, clusters of 2 blocks, 6 of 6
 * products in shared memory; 14 recordings". 1024 bytes usually have room; the rest is cut. The first part is in the
 * log when a model is loaded, and a refused recording is a WARNING there. */
MAR_API const char *mar_session_description(const mar_session *s, char *text, size_t size);

/* --- judging images ------------------------------------------------------------------------------- */

/* A network that turns images into what FID and its relatives compare. Its weights are on the handle's device. One
 * thread at a time uses it; several may be loaded. */
typedef struct mar_features mar_features;

typedef struct {
    const char *name; /* "inception-v3" or "demo digits"; static */
    int features;     /* numbers of a feature vector, 2048: FID, precision and recall */
    int classes;      /* logits of an image, 1008: Inception score */
    int spatial;      /* numbers of a spatial feature vector, 7 channels of 17x17 pixels: sFID. 0: it has none */
    long parameters;  /* numbers of its file */
} mar_features_config;

/* Loads Inception-v3 with TensorFlow's weights of 2015-12-05, as torch-fidelity and pytorch-fid publish them (a .pth of
 * either, or that as safetensors), or "demo": the classifier of digits that is built in, for the demo's images. A
 * network of Inception's layout with other numbers of channels is taken as it is. `batch`: images that
 * mar_features_run takes at a time, 1..1024. Errors are those of mar_model_load. mar_features_free frees it; NULL is
 * fine. A network holds a reference on the handle. */
MAR_API mar_status mar_features_load(mar *m, const char *path, int batch, mar_features **out);
MAR_API void mar_features_free(mar_features *f);
MAR_API const mar_features_config *mar_features_get_config(const mar_features *f);

/* Images uint8_t rgb[n][height][width][3], 1 <= n <= batch, to float features[n][config.features], logits[n][classes]
 * (Inception's without the bias of the last layer, as the published Inception scores use them) and spatial[n][spatial],
 * row by row, then column, then channel. Each of the three may be NULL. Inception resizes images to 299x299 as
 * TensorFlow 1 did; sides are 1..16384 pixels, and an image has at most 4096x4096. The digits must be 32x32; their
 * features are the 64 numbers before the last ReLU and layer, as in the demo's Frechet distance. MAR_EMODEL if a result
 * is NaN or infinite; the line names the image by its place in the batch. Errors are in mar_error of the handle. */
MAR_API mar_status mar_features_run(mar_features *f, const uint8_t *rgb, int n, int width, int height, float *features,
                                    float *logits, float *spatial);

/* Precision and recall (Kynkaanniemi et al., 2019) as ADM's evaluator defines them. Precision is the fraction of the
 * images whose features lie no farther from some reference image than its k-th nearest neighbour in the reference, and
 * recall the converse; k is 3 there. A point is not its own neighbour; another one with the same features is. reference
 * float [reference_count][dim], images float [count][dim], both counts above k. The distances are in f32, added up of
 * squared differences (relative error some 1e-6), where ADM's are in fp16. Takes O((count + reference_count)^2 dim)
 * time on the handle's device, and 4 k + 5 bytes a point and some 64 MB of memory on host and device. MAR_EARG, too,
 * if a number is not finite, or if a k-th neighbour's squared distance is beyond f32. *precision and *recall are 0 on
 * failure. */
MAR_API mar_status mar_precision_recall(mar *m, const float *reference, int reference_count, const float *images,
                                        int count, int dim, int k, double *precision, double *recall);

/* --- files ---------------------------------------------------------------------------------------- */

typedef enum {
    MAR_KIND_UNKNOWN = 0,
    MAR_KIND_MAR,
    MAR_KIND_VAE, /* KL or VQ autoencoder */
    MAR_KIND_INCEPTION,
    MAR_KIND_LLAMAGEN,
    MAR_KIND_EAGLE, /* a drafter of one layer over a LlamaGen model's features */
} mar_kind;

typedef struct mar_report mar_report; /* what a checkpoint contains and what is wrong with it */

/* Reads the whole file and checks it. Succeeds for any file that can be parsed, even if it is no model;
 * fails with MAR_EIO / MAR_EFORMAT if it cannot, or if it changes meanwhile. `heads` as in mar_model_load, but a fact
 * says that the number is a guess; MAR_EARG if it is given for a file that is no model. */
MAR_API mar_status mar_inspect(mar *m, const char *path, int heads, mar_report **out);
MAR_API void mar_report_free(mar_report *r);
MAR_API mar_kind mar_report_kind(const mar_report *r);
MAR_API const mar_model_config *mar_report_model(const mar_report *r); /* NULL unless KIND_MAR, _LLAMAGEN or _EAGLE */
MAR_API const mar_vae_config *mar_report_vae(const mar_report *r);     /* NULL unless KIND_VAE */
/* One line a fact ("format: PyTorch zip, model_ema", "tensors: 364 (F32)"), then one line a problem. i = 0..count-1;
 * NULL for other i. */
MAR_API int mar_report_fact_count(const mar_report *r);
MAR_API const char *mar_report_fact(const mar_report *r, int i);
MAR_API int mar_report_problem_count(const mar_report *r);
MAR_API const char *mar_report_problem(const mar_report *r, int i);

/* Writes the model in `in` as safetensors, its configuration as metadata, floating-point tensors as `dtype`
 * (F32, BF16 or F16; AUTO keeps each tensor's own). INT8 makes int8 weights of the matrices of the transformer's
 * blocks: NAME becomes I8 [out][in] beside NAME_scale, F32 [out], a scale for each output channel, the greatest
 * magnitude of its weights over 127; all other tensors become BF16, those of the diffusion head, whose first steps need
 * it, too. MAR_EARG for a file that is no model. Of a file that has int8 weights AUTO and INT8 keep them, and the
 * others write the values that they stand for. Refuses a file that mar_inspect finds wrong. A number of heads that is a
 * guess is not written. The output is complete or not there at all. */
MAR_API mar_status mar_convert(mar *m, const char *in, const char *out, mar_dtype dtype, int heads);

/* --- methods --------------------------------------------------------------------------------------- */

/* A way to make generation faster, and what it does to the law of the output. */
typedef struct {
    const char *name; /* "conditional" */
    const char *kind; /* "verifier": tests drafts against the target, the value of `spec`; "shortcut": anything else */
    const char *option;    /* what turns it on: "--draft FILE --spec conditional", "[--draft FILE] --spec path", where
                            * brackets hold what may be left out; NULL: not in `mar generate` */
    const char *tokens;    /* "continuous", "discrete", "continuous, discrete" */
    const char *topology;  /* verifiers, the shapes of a draft: "chain, tree"; else NULL */
    int exact;             /* the output's law is the target's */
    const char *guarantee; /* in words */
    const char *source;    /* paper and equation */
    const char *summary;   /* one line */
    int parameter_count;
    struct {
        const char *name, *meaning;
        double value, min, max; /* default and range, both ends allowed */
    } parameters[8];
} mar_method_info;

/* All of them: i = 0..count-1, static; NULL for other i. */
MAR_API int mar_method_count(void);
MAR_API const mar_method_info *mar_method_get(int i);

#ifdef __cplusplus
}
#endif
#endif
