/* One table of tests for the operations of kernels/ops.h: cases x backends x reference.
 *
 * An operation's table entry has two functions. `build` turns a case into arrays and computes the expected results in
 * double. `run` calls the operation. ops.c checks for every case:
 *   - the operation runs on each backend, and its results are compared with the reference;
 *   - on a CPU every available instruction set and number of threads gives the same bits;
 *   - rows computed alone, or with fewer others, keep their bits;
 *   - no rows, a failed queue and a cancelled queue change nothing;
 *   - on a GPU a recording, replayed with other contents of the same arrays, gives the bits of the calls.
 * Elements that the reference does not write must keep their bits.
 *
 * The same source tests the CPU backend (ops.*). Linked with a CUDA backend it tests CUDA: gpu.* on a GPU; cudarace.*
 * and cudahost.* on the host, by tests/cudahost. */
#ifndef TESTS_OPS_H
#define TESTS_OPS_H

#include "kernels/causal.h"
#include "tests/support/brief.h"
#include "tests/support/device.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { OPS_ARRAYS = 16, OPS_NUMBERS = 25 };

typedef enum { OPS_FLOAT, OPS_ACT, OPS_INT, OPS_BYTE, OPS_DOUBLE } ops_element;

/* An array in backend memory. */
typedef struct {
    ops_element type;
    size_t n;
    size_t row;     /* elements of a row; 0: the array is not divided into rows */
    size_t offset;  /* elements by which it is misaligned */
    double *x;      /* [n] before the call, rounded to its type */
    double *want;   /* [n] after the call; NULL: not written. ops_any: element is not compared */
    double allowed; /* error relative to the array's norm; 0: elements must be equal */
    double each;    /* if not 0, replaces `allowed`: error of each element relative to max(1, |want|) */
} ops_array;

/* A case of an operation with one operand type. */
typedef struct {
    int n[OPS_NUMBERS];   /* the case's numbers */
    int index;            /* of the case */
    int built;            /* 1 */
    int bf16, int8, int4; /* the backend's operands, and its products with KERN_LOW */
    int other;            /* 1: other contents of the same arrays */
    int first, rows;      /* rows of this call; `build` sets rows, 0 if they cannot be divided */
    void *object;         /* result of `prepare` on this call's device */
    int arrays;
    ops_array array[OPS_ARRAYS];
    void *data;     /* private host data of `build` */
    void *host[64]; /* freed with the call */
    int hosts;
    uint64_t stream; /* stream of the next random numbers */
} ops_call;

enum {
    OPS_ALONE = 1,        /* rows computed alone keep their bits on every backend */
    OPS_ALONE_ON_CPU = 2, /* the same on a CPU only */
    OPS_HOST = 4,         /* waits, or cannot be recorded for another reason */
    OPS_INT8 = 8,         /* runs only with int8; without OPS_CUDA only on a CPU */
    OPS_CUDA = 16,        /* runs only with CUDA */
    OPS_LARGE = 32,       /* takes too long on the host's emulated GPU */
    OPS_LONG = 64,        /* takes too long there in the change lane */
    OPS_INT4 = 256,       /* the same with int4 */
    OPS_BF16 = 512,       /* the same with bf16 */
    OPS_NOT_ISAS = 128,   /* the same source for all instruction sets: one is enough */
};

typedef struct {
    const char *name, *numbers; /* names of a case's numbers, for messages */
    const int *cases;           /* [count][width] */
    int count, width;
    unsigned flags;
    void (*build)(ops_call *c);
    void (*run)(kern_queue *k, const ops_call *c, void *const *a); /* a: the arrays, from row c->first on */
    void *(*prepare)(kern_queue *k, const ops_call *c);            /* may be NULL, as may the next two */
    void (*release)(kern_device *d, void *object);
    void (*check)(const ops_call *c, double *const *got); /* further checks of the results */
} ops_entry;

#define OPS_CASES(table) (const int *)(table), sizeof(table) / sizeof *(table), sizeof *(table) / sizeof(int)

/* Expected values: the element is unchanged; the element may have any value. */
extern const double ops_untouched, ops_any;

/* Tells whether the backend under test is CUDA. */
int ops_on_cuda(void);
/* cuda_has_asked; 1 on a CPU. */
int ops_has_asked(void);
/* Tells whether one case of each kind suffices: under a sanitizer, and with CUDA in the change lane. */
int ops_brief(void);
/* Returns a factor for the host's sizes: more than 1 on a GPU. */
int ops_scale(void);
/* Opens a queue of the backend under test. Returns NULL if the processor does not support dtype. */
kern_queue *ops_open(mar_dtype dtype);

/* Add an array. ops_input returns its contents: normal numbers of deviation `scale`. ops_output returns its expected
 * contents, everywhere ops_untouched; the output begins with arbitrary numbers. */
double *ops_input(ops_call *c, ops_element type, size_t n, size_t row, double scale);
double *ops_output(ops_call *c, ops_element type, size_t n, size_t row, double f32, double bf16);
/* Declares the last added array as written, too. Returns its expected contents, initially unchanged. */
double *ops_written(ops_call *c, double f32, double bf16);
/* Returns the last added array. */
ops_array *ops_last(ops_call *c);
/* Rounds a number to an element's type. */
double ops_element_of(const ops_call *c, ops_element type, double x);
double ops_bf16(double x);

/* Return host memory that lives as long as the call: zeros, normal numbers, integers below a bound. ops_weights keeps
 * its numbers when the case has other contents. */
void *ops_host(ops_call *c, size_t bytes);
void *ops_keep(ops_call *c, void *p); /* frees p with the call */
float *ops_floats(ops_call *c, size_t n, double scale);
float *ops_weights(ops_call *c, size_t n, double scale);
int *ops_below(ops_call *c, size_t n, int bound);
/* Returns golden numbers with the same lifetime. */
float *ops_golden(ops_call *c, const wt_file *f, const char *name, int64_t n);
uint32_t ops_word(ops_call *c);
double ops_dot(const double *x, const double *y, int n);

/* Runs a table's tests, then others. Returns the program's exit status. */
int ops_run(const ops_entry *table, size_t count, const struct CMUnitTest *others, size_t other_count);
#define ops_main(table) ops_run(table, sizeof(table) / sizeof *(table), NULL, 0)
#define ops_main_and(table, others)                                                                                    \
    ops_run(table, sizeof(table) / sizeof *(table), others, sizeof(others) / sizeof *(others))

#endif
