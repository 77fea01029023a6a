/* Shared by staging.cu and recording.cu: how host arrays get to the device while a recording is made and replayed. */
#ifndef KERNELS_CUDA_RECORDING_H
#define KERNELS_CUDA_RECORDING_H

#include "kernels/cuda/cuda.h"

#include <stdint.h>

typedef enum {
    CUDA_SEEN,       /* used once, without being recorded */
    CUDA_RECORDED,   /* replayed as a graph */
    CUDA_UNRECORDED, /* CUDA refuses the graph: the body does its work itself, at every use */
} cuda_recording_state;

struct kern_recording {
    cuda_recording_state state;
    char *pinned, *device; /* [bytes] the area of slots, on both sides */
    size_t bytes;          /* of the area */
    size_t used;           /* bytes staged in this run of the body */
    uint64_t calls;        /* a hash of the sizes staged in this run */
    uint64_t recorded;     /* that hash when the body was measured; it must not change */
    cudaEvent_t fetched;   /* the stream has copied the area for the last replay */
    cudaGraphExec_t graph;
};

/* What a run of a recording's body does: DIRECT its work, MEASURE and REFILL only hand over host arrays, RECORD puts
 * its work into a graph. */
typedef enum { CUDA_DIRECT, CUDA_MEASURE, CUDA_RECORD, CUDA_REFILL } cuda_stage_mode;

/* A list that is staged already in this run of a recording's body. */
typedef struct {
    const void *host, *device;
    size_t room;
} cuda_staged_list;
enum { CUDA_LISTS = 16 }; /* known at a time */

struct cuda_stage {
    struct ring *now;
    cuda_stage_mode mode;
    kern_recording *recording;   /* unless DIRECT */
    int unrecorded;              /* a recording's body is running DIRECT: so do the recordings in it */
    int misused;                 /* the body has done what it must not; that is final */
    int holds;                   /* between cuda_stage_hold and cuda_stage_send */
    size_t held_first, held_end; /* bytes of the ring that wait for it; held_end 0: none */
    cuda_staged_list list[CUDA_LISTS];
    int lists; /* staged in this run of the body; the oldest are forgotten */
};

/* staging.cu: memory on both sides, [bytes] each; and its end, when nothing uses it. NULL is fine there. */
mar_status cuda_stage_alloc(cuda_queue *c, size_t bytes, char **pinned, char **device, mar_err *err);
void cuda_stage_free(cuda_queue *c, char *pinned, char *device);
/* staging.cu: fails because a body's host arrays are not those that were measured. */
void cuda_stage_changed(cuda_queue *c);

#endif
