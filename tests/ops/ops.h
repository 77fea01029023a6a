/* One table of tests for the operations of kernels/ops.h: cases x backends x reference.
 *
 * An operation's entry in the table says how a case becomes arrays (`build`, which also computes what is expected, in
 * double), and how it is called (`run`). Everything else is done here, for every case:
 *   - the operation runs on each backend, and its results are compared with the reference;
 *   - on a CPU every instruction set and number of threads that is here gives the same bits;
 *   - rows that are computed alone, or with fewer others, keep their bits;
 *   - no rows, a failed queue and a cancelled queue change nothing;
 *   - on a GPU a recording, replayed with other contents of the same arrays, gives the bits of the calls.
 * What the reference does not write must keep its bits.
 *
 * The same source tests the CPU backend (ops.*), and linked with a CUDA backend that one (gpu.*; on the host, by
 * tests/cudahost, cudarace.* and cudahost.*). */
#ifndef TESTS_OPS_H
#define TESTS_OPS_H

#include "tests/support/brief.h"
#include "tests/support/device.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { OPS_ARRAYS = 16, OPS_NUMBERS = 24 };

typedef enum { OPS_FLOAT, OPS_ACT, OPS_INT, OPS_BYTE, OPS_DOUBLE } ops_element;

/* An array in backend memory. */
typedef struct {
    ops_element type;
    size_t n;
    size_t row;     /* elements of a row; 0: the array is not divided into rows */
    size_t offset;  /* elements by which it misses its alignment */
    double *x;      /* [n] before the call, as the backend has it */
    double *want;   /* [n] after the call; NULL: it is not written. Set to ops_any, it is not compared */
    double allowed; /* error relative to the array's norm; 0: each element is equal */
    double each;    /* if not 0: instead of `allowed`, of each element, relative to max(1, |want|) */
} ops_array;

/* A case of an operation on operands of one type. */
typedef struct {
    int n[OPS_NUMBERS]; /* the case's numbers */
    int index;          /* of the case */
    int built;          /* 1 */
    int bf16, int8;     /* of the backend: operands, and products with KERN_INT8 */
    int other;          /* 1: other contents of the same arrays */
    int first, rows;    /* rows of this call; `build` sets rows: 0 if there are none to divide */
    void *object;       /* what `prepare` made on this call's device */
    int arrays;
    ops_array array[OPS_ARRAYS];
    void *data;     /* host arrays of `build`'s own */
    void *host[64]; /* freed with the call */
    int hosts;
    uint64_t stream; /* of the next random numbers */
} ops_call;

enum {
    OPS_ALONE = 1,        /* rows have their bits alone on every backend */
    OPS_ALONE_ON_CPU = 2, /* on a CPU */
    OPS_HOST = 4,         /* waits, or is not for recordings for another reason */
    OPS_INT8 = 8,         /* on a CPU with int8 */
    OPS_ISAS_AGREE = 16,  /* all instruction sets give the same bits in f32 */
    OPS_LARGE = 32,       /* takes too long on the host's imagined GPU */
    OPS_LONG = 64,        /* takes too long there in the change lane */
    OPS_NOT_ISAS = 128,   /* the same source for all instruction sets: one is enough */
};

typedef struct {
    const char *name, *numbers; /* for messages: the names of a case's numbers */
    const int *cases;           /* [count][width] */
    int count, width;
    unsigned flags;
    void (*build)(ops_call *c);
    void (*run)(kern_queue *k, const ops_call *c, void *const *a); /* a: the arrays, from row c->first on */
    void *(*prepare)(kern_queue *k, const ops_call *c);            /* may be NULL, and so the next two */
    void (*release)(kern_device *d, void *object);
    void (*check)(const ops_call *c, double *const *got); /* what else must hold of the results */
} ops_entry;

#define OPS_CASES(table) (const int *)(table), sizeof(table) / sizeof *(table), sizeof *(table) / sizeof(int)

/* What a reference leaves as it was, and what it has no number for. */
extern const double ops_untouched, ops_any;

/* Whether the backend under test is CUDA. */
int ops_on_cuda(void);
/* Whether a case of each kind is enough: under a sanitizer, and with CUDA in the change lane. */
int ops_brief(void);
/* How much larger sizes may be than the host's: more than 1 on a GPU. */
int ops_scale(void);
/* A queue of the backend under test. NULL: the processor has no bf16. */
kern_queue *ops_open(mar_dtype dtype);

/* Add an array and return its numbers: normal ones of deviation `scale` for an input; what is expected, everywhere
 * ops_untouched, for an output, which begins with any numbers. */
double *ops_input(ops_call *c, ops_element type, size_t n, size_t row, double scale);
double *ops_output(ops_call *c, ops_element type, size_t n, size_t row, double f32, double bf16);
/* Makes the array added last one that is written, too: it is expected to stay as it is. */
double *ops_written(ops_call *c, double f32, double bf16);
/* The array added last. */
ops_array *ops_last(ops_call *c);
/* A number as an element of that type has it. */
double ops_element_of(const ops_call *c, ops_element type, double x);
double ops_bf16(double x);

/* Host memory that lives as long as the call: zeros, normal numbers, whole numbers below a bound. `weights` are the
 * same with other contents. */
void *ops_host(ops_call *c, size_t bytes);
void *ops_keep(ops_call *c, void *p); /* frees p with the call */
float *ops_floats(ops_call *c, size_t n, double scale);
float *ops_weights(ops_call *c, size_t n, double scale);
int *ops_below(ops_call *c, size_t n, int bound);
/* Golden numbers; the same. */
float *ops_golden(ops_call *c, const wt_file *f, const char *name, int64_t n);
uint32_t ops_word(ops_call *c);
double ops_dot(const double *x, const double *y, int n);

/* Runs a table's tests, then others; the status of the program. */
int ops_run(const ops_entry *table, size_t count, const struct CMUnitTest *others, size_t other_count);
#define ops_main(table) ops_run(table, sizeof(table) / sizeof *(table), NULL, 0)
#define ops_main_and(table, others)                                                                                    \
    ops_run(table, sizeof(table) / sizeof *(table), others, sizeof(others) / sizeof *(others))

#endif
