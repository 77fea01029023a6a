/* Tables for command lines, bindings and lists: options with their ranges and help, and the methods. */
#ifndef LIBMAR_METHODS_H
#define LIBMAR_METHODS_H

#include "mar.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Type of an option's field. */
typedef enum {
    MAR_TYPE_FLAG,   /* int, 0 or 1; as text: on or off */
    MAR_TYPE_INT,    /* int */
    MAR_TYPE_UINT64, /* uint64_t */
    MAR_TYPE_FLOAT,  /* float */
    MAR_TYPE_CHOICE, /* an enumeration or int: index into choices */
    MAR_TYPE_NAME,   /* const char *: NULL, or one of choices */
    MAR_TYPE_TEXT,   /* const char *: nonempty text, owned by the caller */
    MAR_TYPE_MODEL,  /* mar_model *: NULL, or a model; on the command line a file. No text sets it */
} mar_type;

/* An option. The command line, --help, the manual, records and hosts are all made from this table. A program may have
 * rows of its own, with size = sizeof(mar_param). */
typedef struct {
    size_t size;
    const char *name;  /* name of the field, for mar_params_set, and of the command line's --name */
    const char *help;  /* first line: --help; the rest: the manual only */
    const char *group; /* heading in lists: "Sampling" */
    mar_type type;
    size_t offset;          /* offset of the field in its struct, bytes */
    double value, min, max; /* default and inclusive range; CHOICE: value is an index */
    /* CHOICE, NAME: the values, NULL at the end. INT, FLOAT: names of the values from min on, by ones, used as text
     * instead of numbers, or NULL. TEXT: texts with a special meaning, or NULL. */
    const char *const *choices;
    /* Option or verifier that this option needs to have an effect, or alternatives: "lantern|lantern-gstar". NULL:
     * none. */
    const char *method;
    /* TEXT, MODEL: placeholder for the value in help and messages: "FILE". NAME: placeholder in help if the choices are
     * too many for a line. */
    const char *argument;
    const char *tokens; /* tokens it applies to: "continuous" (MAR, SphereAR) or "discrete"; NULL: both */
} mar_param;

/* Sets the field of `option` in the struct at `fields` from text. On MAR_EARG nothing changes, and `why`, char [size]
 * or NULL, receives one line: "--cfg nan: expected a number from 0 to 100". */
MAR_API mar_status mar_param_set(const mar_param *option, void *fields, const char *text, char *why, size_t size);
/* Writes the expected value, such as "a number from 0 to 100", to text, char [size]. Returns text, or "" for invalid
 * arguments. */
MAR_API const char *mar_param_expects(const mar_param *option, char *text, size_t size);
/* Writes the field's value to `text`, char [size], so that mar_param_set reads back the same value. NULL and models
 * give "". Returns text, or "" for invalid arguments. */
MAR_API const char *mar_param_text(const mar_param *option, const void *fields, char *text, size_t size);
/* Returns 1 if the field has its default value. */
MAR_API int mar_param_is_default(const mar_param *option, const void *fields);

/* The options of mar_options that text can set: i = 0..count-1, static. Returns NULL for other i. */
MAR_API int mar_option_count(void);
MAR_API const mar_param *mar_option_get(int i);

/* The options of mar_params, one per field: i = 0..count-1, static. Returns NULL for other i. */
MAR_API int mar_param_count(void);
MAR_API const mar_param *mar_param_get(int i);
/* Returns why option i has no effect with the other values, such as "needs --gtr". Returns NULL if it has one. Returns
 * NULL also if an option is out of range; mar_session_create refuses that. Valid until this thread's next call. */
MAR_API const char *mar_params_unused(const mar_params *params, int i);

/* An accelerator, and its effect on the output distribution. */
typedef struct {
    size_t size;
    const char *name; /* "conditional" */
    const char *kind; /* "verifier": tests drafts against the target, a value of `spec`; else "shortcut" */
    /* Options that enable it, optional ones in brackets: "--draft FILE --spec conditional", "[--draft FILE] --spec
     * path". NULL: not in `mar generate`. */
    const char *option;
    const char *tokens;    /* "continuous", "discrete", "continuous, discrete" */
    const char *topology;  /* verifiers: accepted shapes of drafts, "chain, tree"; else NULL */
    int exact;             /* 1: the output distribution is plain sampling's */
    int parameter_count;   /* mar_method_get_parameter */
    const char *guarantee; /* "exact to: plain sampling with the same options"; "none: ..." */
    const char *source;    /* paper and equation */
    const char *summary;   /* one line */
    const char *models;    /* families that it is for: "MAR, SphereAR" */
    int codebook;          /* 1: it needs the codebook of the session's VAE */
    int reserved;          /* 0 */
} mar_method_info;

/* A parameter of a method. */
typedef struct {
    size_t size;
    const char *name, *meaning;
    double value, min, max; /* default and inclusive range */
} mar_method_parameter;

/* All methods: i = 0..count-1, static. Returns NULL for other i. */
MAR_API int mar_method_count(void);
MAR_API const mar_method_info *mar_method_get(int i);
/* Parameters of method `method`: i = 0..parameter_count-1, static. Returns NULL for others. */
MAR_API const mar_method_parameter *mar_method_get_parameter(int method, int i);

/* A measured preset of options, which change the output distribution: `mar generate --fast LEVEL`. */
typedef struct {
    size_t size;
    int level;    /* 1 (nearest to plain sampling) to 3 (fastest) */
    int reserved; /* 0 */
    /* Names, NULL at the end: the first is the handle's, "dtype", of which every preset has int8, for CPUs; the others
     * are of mar_params. Options that are given stay. */
    const char *const *options;
    double distance; /* energy distance of whole images to plain sampling, on the demo */
    double floor;    /* below which another seed of plain sampling stays 95 times in 100 */
} mar_preset;

/* Returns the preset of a level for a model, static; NULL if there is none. Discrete tokens have level 1 only,
 * continuous tokens in raster order (SphereAR, NextStep-1) none. */
MAR_API const mar_preset *mar_preset_get(int level, const mar_model_config *model);
/* Writes the value of option i for the model to `text`, char [size], as mar_param_set reads it. Returns text, or "" for
 * invalid arguments. */
MAR_API const char *mar_preset_value(const mar_preset *preset, int i, const mar_model_config *model, char *text,
                                     size_t size);

#ifdef __cplusplus
}
#endif
#endif
