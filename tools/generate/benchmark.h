/* Folders that the judges of text-to-image benchmarks read: mar generate --benchmark. docs/evaluation.md has the
 * layouts, which the benchmarks' own repositories define. */
#ifndef TOOLS_BENCHMARK_H
#define TOOLS_BENCHMARK_H

#include "tools/cli/run_options.h"
#include "tools/generate/captions.h"
#include "tools/images/output.h"

#include <stdint.h>

typedef enum {
    BENCHMARK_NONE,
    BENCHMARK_GENEVAL,     /* 00000/metadata.jsonl, 00000/samples/00000.png */
    BENCHMARK_GENEVAL2,    /* 00000.png, image_paths.json */
    BENCHMARK_DPG,         /* NAME.png, a grid of the images of NAME.txt */
    BENCHMARK_PARTIPROMPTS /* 00000.png, a copy of the prompts' file */
} benchmark_kind;
extern const char *const benchmark_names[]; /* of the kinds but the first; ends with NULL */

/* Initialise with {0}: no benchmark. */
typedef struct {
    benchmark_kind kind;
    const char *file; /* of --prompts */
    int count;        /* prompts */
    int num;          /* images of each */
    char **prompts;   /* [count] owned; NULL: only the command's reader knows them */
    char **data;      /* [count] owned: GenEval's JSON of a prompt, DPG's NAME; else NULL */
    char *copied;     /* [copied_size] PartiPrompts' file, owned; else NULL */
    size_t copied_size;
    image grid; /* DPG: of the prompt in progress; rgb NULL before the first image */
    int prompt; /* its number */
    int placed; /* images on it */
} benchmark;

/* Reads the benchmark's prompts in `run` and checks that its judge takes such a file, and `num` images of a prompt; 0:
 * the default. `name` NULL: no benchmark. Returns 0, or 1 after printing an error, with the line of a file that is not
 * understood. The caller calls benchmark_free either way. */
int benchmark_open(const char *name, const run_options *run, int num, benchmark *out);
/* Checks that the command has read the same prompts, and that the judge takes images of this size. Returns 0, or 1 with
 * the error printed. */
int benchmark_check(benchmark *b, const captions *c, int width, int height);
void benchmark_free(benchmark *b);

/* Returns the path of image `index`, that of its grid for DPG; without a benchmark output_image_path. The caller frees
 * it. Returns NULL after printing "out of memory". */
char *benchmark_path(const benchmark *b, const output *out, long index);
/* Returns the images of a picture: more than 1 for DPG's grids. They are consecutive. */
int benchmark_images(const benchmark *b);
/* Sets the sides of a picture of images of this size. */
void benchmark_size(const benchmark *b, int *width, int *height);

/* Checks that the folder is missing or empty. Returns 0, or 1 with the error printed. */
int benchmark_check_free(const output *out);
/* Sets have[count * num] to 1 for images that the folder has. Returns their number; -1 after printing an error, also
 * for a picture that the judge would read and that is none of these. */
long benchmark_find(const benchmark *b, const output *out, uint8_t *have);

/* Writes what the judge needs besides pictures, before the first; and, of finished runs, behind the last. Return 0, or
 * 1 with the error printed. */
int benchmark_begin(const benchmark *b, const output *out);
int benchmark_finish(const benchmark *b, const output *out);

/* Places image `index`, uint8_t rgb [height][width][3], on DPG's grid. Returns 1 if b->grid is complete, 0 if not; -1
 * after printing "out of memory". */
int benchmark_place(benchmark *b, long index, int width, int height, const uint8_t *rgb);

#endif
