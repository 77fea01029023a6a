/* Conversion of the image decoder's output to bytes: the host downloads a quarter of the floats' size.
 *
 * Floor, per value: 4 bytes read, 1 written. */
#include "kernels/cuda/cuda.h"
#include "kernels/pixels.h"

enum { THREADS = 256, EACH = 16 /* values per thread */ };

/* A block takes THREADS * EACH values of an image. `found` is 0 on entry. */
static __global__ void __launch_bounds__(THREADS)
    bytes_kernel(const float *x, int blocks, int values, kern_bytes how, uint8_t *y, int *found)
{
    const int image = (int)blockIdx.x / blocks, first = (int)blockIdx.x % blocks * THREADS * EACH;
    const int last = min(values, first + THREADS * EACH);
    x += (size_t)image * (size_t)values;
    y += (size_t)image * (size_t)values;
    int own = 0;
    for (int i = first + (int)threadIdx.x; i < last; i += THREADS) {
        own |= kern_pixel_found(x[i]);
        y[i] = kern_pixel_byte(x[i], how);
    }
    for (int i = 16; i > 0; i /= 2) own |= __shfl_xor_sync(0xffffffffu, own, i);
    if (threadIdx.x % 32 == 0 && own) atomicOr(found + image, own);
}

void cuda_to_bytes(kern_queue *k, const float *x, int images, int values, kern_bytes how, uint8_t *y, int *found)
{
    cuda_queue *c = cuda_of(k);
    if (images <= 0 || !cuda_live(c)) return;
    const unsigned blocks = cuda_blocks((size_t)values, THREADS * EACH);
    cuda_ok(c, cudaMemsetAsync(found, 0, (size_t)images * sizeof *found, c->stream),
            "clearing what is found of pixels");
    cuda_launch(c, bytes_kernel, (unsigned)images * blocks, THREADS, 0, x, (int)blocks, values, how, y, found);
}
