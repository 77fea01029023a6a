/* Model families, a file each: how a family's files are recognised, what their tensors are named, the shapes that
 * follow from them or from config.json, its prompts, sizes, defaults and limits, which matrices are low-bit, and the
 * metadata that are written and read. A family knows neither a device nor a handle: what it derives is data, from which
 * mar/ makes the net of nets/, the head of diffusion/ and the loop. docs/adding.md walks through one. */
#ifndef FAMILIES_FAMILIES_H
#define FAMILIES_FAMILIES_H

#include "diffusion/chain.h"
#include "diffusion/head.h"
#include "families/language.h"
#include "nets/causal_shape.h"
#include "specdec/eagle_model.h"
#include "weights/kind.h"

/* What is done to a token that the diffusion head has drawn. */
typedef enum {
    RASTER_AS_DRAWN,
    RASTER_ON_SPHERE,  /* normalised to the sphere of radius sqrt(channels) */
    RASTER_LAYER_NORM, /* mean 0, variance 1 over its channels; eps 1e-6 */
} raster_norm;

/* What is derived from a model's file. A family fills in what it has. */
typedef struct family_facts {
    mar_model_config config; /* as mar.h shows it; its order, head and conditioning choose the loop */
    causal_shape shape;      /* raster order: of the transformer; masked: of the language model between the towers */
    int side;                /* masked: masked_shape.side */
    diff_head_shape head;    /* raster order, of vectors: of the diffusion head */
    diff_process process;    /* of its chain */
    raster_norm norm;        /* of the tokens it draws */
    int falls;               /* 1: the linear guidance schedule falls from the scale to 1; 0: it rises from 1 */
    int first_is_apart;      /* 1: with that schedule the unconditional branch draws its first token for itself */
    int last_is_counted;     /* 1: --num_sampling_steps counts the flow's last step, too */
    int last_is_noisy;       /* 1: that step is like the others (diff_spec); 0: it is without noise */
    eagle_config eagle;      /* of a drafter */
    mar_vae_config vae;      /* of the image decoder in the same file; depth 0: there is none */
    language language;       /* of a language model: how prompts become ids; family NULL in others */
    int seq_len_guessed;     /* LlamaGen: nothing tells the number of tokens; config.warning says so */
    long image_size, downsample_size; /* LlamaGen: options of train_c2i.py in the file; 0: absent */
    char note[224];                   /* config.warning */
} family_facts;

/* Rows of the families; and all in the order in which they are asked to recognise a file, NULL at the end. */
extern const wt_kind family_mar, family_harmon, family_spherear, family_nextstep, family_language, family_llamagen,
    family_eagle;
extern const wt_kind *const families[];

/* Appends the titles of the families whose models make such tokens in this order: "Lumina-mGPT, LlamaGen". */
void family_add_titles(mar_order order, int discrete, char *text, size_t size);
/* Gives the tensors of a file the names that the families have for them, where its release has others: those of a text
 * model in a file of Emu3ForConditionalGeneration, and of Harmon's parts. Returns MAR_EFORMAT if two get one name, and
 * MAR_ENOMEM. */
mar_status family_rename(wt_file *f, mar_err *err);

/* Names of tensors: of LlamaGen, of SphereAR, and of transformers' Llama. */
extern const causal_names llamagen_names, sphere_names, language_llama_names;

/* Sets heads, kv_heads, head_dim and config.heads_guessed of a transformer with a width: `heads` if not 0, else the
 * metadata's mar.heads, else those of LlamaGen's official model of this width, which SphereAR's have, too, else a
 * guess. Returns MAR_EARG or MAR_EMODEL if they do not divide the width (causal_heads_divide). */
mar_status family_derive_heads(const wt_file *f, int heads, family_facts *out, mar_err *err);
/* Sets the part of config that the transformer's shape and the family's row tell. */
void family_show_shape(family_facts *facts, const wt_kind *row);
/* Writes "12 heads", and says if the number is a guess. */
enum { FAMILY_HEADS_TEXT = 96 };
const char *family_heads_text(const mar_model_config *c, char text[FAMILY_HEADS_TEXT]);
/* Tells whether the tensor is a matrix of a layer of Llama's kind, which dtype int8 multiplies in int8 and an int8 file
 * stores as I8 (weights/weights.h). */
int family_is_int8(const char *tensor);

#endif
