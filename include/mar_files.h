/* Checkpoints as files: what one is, its contents and problems, and conversion. */
#ifndef LIBMAR_FILES_H
#define LIBMAR_FILES_H

#include "mar.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum {
    MAR_KIND_UNKNOWN = 0,
    MAR_KIND_MAR,
    MAR_KIND_VAE, /* KL, VQ or ViT autoencoder */
    MAR_KIND_INCEPTION,
    MAR_KIND_LLAMAGEN,
    MAR_KIND_EAGLE,    /* one-layer drafter over a LlamaGen model's features */
    MAR_KIND_SPHEREAR, /* model with its image decoder */
    MAR_KIND_T5,       /* text encoder */
    MAR_KIND_VGG16,
    MAR_KIND_DECODER, /* decoder that writes images among text: Lumina-mGPT, Anole, Emu3 */
    MAR_KIND_NEXTSTEP,
} mar_kind;

/* What a file is. */
typedef struct {
    size_t size;
    mar_kind kind;
    mar_dtype stored; /* type of a model's weights that mar_convert has quantised, INT8 or INT4; AUTO: none are */
    int folder;       /* 1: a folder as Hugging Face writes it, or Meta's */
    int prompts;      /* 1: a model of prompts, or a part of one, whose own tokenizer makes their ids */
} mar_file_info;

/* Opens a file, folder or built-in model and recognises it by its header: no weights are read. `weights` is as in
 * mar_options. The reason of a failure is in mar_error(NULL), and the errors are those of mar_model_load; a file of no
 * kind is MAR_KIND_UNKNOWN. mar_file_close accepts NULL. */
MAR_API mar_status mar_file_open(const char *path, mar_weights weights, mar_file **out);
MAR_API void mar_file_close(mar_file *f);
MAR_API const mar_file_info *mar_file_get_info(const mar_file *f);
/* Writes the configuration that the handle gives a model of this file, as mar_report_model has it: *out begins with its
 * size. No weights are read. MAR_EMODEL for a file of another kind; the other errors are those of mar_model_load. */
MAR_API mar_status mar_file_get_model(mar *m, const mar_file *f, int heads, mar_model_config *out);

typedef struct mar_report mar_report; /* contents and problems of a checkpoint */

/* Reads and checks a whole file. Succeeds for any file that can be parsed, model or not. MAR_EIO or MAR_EFORMAT if it
 * cannot be parsed or changes meanwhile. `heads` is as in mar_model_load, but a guessed number is only noted as a fact.
 * MAR_EARG if it is given for a file that is no model. */
MAR_API mar_status mar_inspect(mar *m, const char *path, int heads, mar_report **out);
MAR_API void mar_report_free(mar_report *r);
MAR_API mar_kind mar_report_kind(const mar_report *r);
MAR_API const mar_model_config *mar_report_model(const mar_report *r); /* NULL unless a model or drafter */
MAR_API const mar_vae_config *mar_report_vae(const mar_report *r);     /* NULL unless VAE */
/* Return facts and problems, one line each: "format: PyTorch zip, model_ema", "tensors: 364 (F32)". i = 0..count-1;
 * other i return NULL. */
MAR_API int mar_report_fact_count(const mar_report *r);
MAR_API const char *mar_report_fact(const mar_report *r, int i);
MAR_API int mar_report_problem_count(const mar_report *r);
MAR_API const char *mar_report_problem(const mar_report *r, int i);

/* Writes the model in `in` to `out` as safetensors, with its configuration as metadata. `dtype` applies to
 * floating-point tensors: F32, BF16 or F16; AUTO keeps each tensor's own.
 *
 * INT8 quantises the matrices of the transformer's blocks. NAME becomes I8 [out][in], and NAME_scale, F32 [out], has a
 * scale per output channel: its largest weight magnitude over 127. All other tensors become BF16. These include the
 * diffusion head, because its first steps need that precision. Int8 weights of the input stay int8 with AUTO and INT8,
 * and are dequantised otherwise.
 *
 * INT4 does the same with int4 weights. NAME becomes U8 [out][in/2], two weights plus 8 in a byte, the first in its low
 * half; NAME_scale is BF16 [out][in/32]. A matrix whose width is no multiple of 32 becomes BF16.
 *
 * If `in` is a folder of a text encoder or of a decoder among text, and `out` does not end in .safetensors, `out`
 * becomes a folder: model.safetensors, config.json and the tokenizer's files. It must not exist, or be empty.
 *
 * MAR_EARG for a file that is no model. Refuses a file in which mar_inspect finds problems. A guessed number of heads
 * is not written. The output is complete or absent. */
MAR_API mar_status mar_convert(mar *m, const char *in, const char *out, mar_dtype dtype, int heads);

#ifdef __cplusplus
}
#endif
#endif
