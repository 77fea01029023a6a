/* Shared by staging.cu and recording.cu: transfer of host arrays while a recording is made and replayed. */
#ifndef KERNELS_CUDA_RECORDING_H
#define KERNELS_CUDA_RECORDING_H

#include "kernels/cuda/cuda.h"

#include <stdint.h>

typedef enum {
    CUDA_SEEN,       /* used once, not recorded */
    CUDA_RECORDED,   /* replayed as a graph */
    CUDA_UNRECORDED, /* CUDA refuses the graph: the body runs at every use */
} cuda_recording_state;

struct kern_recording {
    cuda_recording_state state;
    char *pinned, *device; /* [bytes] area of slots, on host and device */
    size_t bytes;          /* of the area */
    size_t used;           /* bytes staged in this run of the body */
    uint64_t calls;        /* hash of the sizes staged in this run */
    uint64_t recorded;     /* that hash when the body was measured; it must not change */
    cudaEvent_t fetched;   /* the stream has copied the area for the last replay */
    cudaGraphExec_t graph;
};

/* Modes of running a recording's body. DIRECT does its work. MEASURE and REFILL only collect host arrays. RECORD
 * captures its work in a graph. */
typedef enum { CUDA_DIRECT, CUDA_MEASURE, CUDA_RECORD, CUDA_REFILL } cuda_stage_mode;

/* A list already staged in this run of a recording's body. */
typedef struct {
    const void *host, *device;
    size_t room;
} cuda_staged_list;
enum { CUDA_LISTS = 16 }; /* remembered at a time */

struct cuda_stage {
    struct ring *now;
    cuda_stage_mode mode;
    kern_recording *recording; /* NULL if DIRECT */
    int unrecorded;            /* 1: a recording's body is running DIRECT; so do nested recordings */
    int misused;               /* 1: the body has broken its rules; that is final */
    size_t unsent, unsent_end; /* bytes of the ring to be copied; unsent_end 0: none */
    cuda_staged_list list[CUDA_LISTS];
    int lists; /* staged in this run of the body; the oldest are forgotten */
};

/* staging.cu: allocates and frees memory on host and device, [bytes] each. Free it when nothing uses it; NULL is
 * fine. */
mar_status cuda_stage_alloc(cuda_queue *c, size_t bytes, char **pinned, char **device, mar_err *err);
void cuda_stage_free(cuda_queue *c, char *pinned, char *device);
/* staging.cu: starts the copy of arrays staged outside a recording. */
void cuda_stage_send(cuda_queue *c);
/* staging.cu: fails because a body's host arrays differ from the measured ones. */
void cuda_stage_changed(cuda_queue *c);

#endif
