/* Conversion of the image decoder's output to bytes. */
#include "kernels/cpu/cpu.h"
#include "kernels/pixels.h"

typedef struct {
    const float *x;
    int values;
    kern_bytes how;
    uint8_t *y;
    int *found;
} to_bytes;

static void to_bytes_body(void *arg, int first, int last, int thread)
{
    const to_bytes *t = arg;
    (void)thread;
    for (int image = first; image < last; image++) {
        const float *x = t->x + (size_t)image * (size_t)t->values;
        uint8_t *y = t->y + (size_t)image * (size_t)t->values;
        int found = 0;
        for (int i = 0; i < t->values; i++) found |= kern_pixel_found(x[i]);
        for (int i = 0; i < t->values; i++) y[i] = kern_pixel_byte(x[i], t->how);
        t->found[image] = found;
    }
}

void cpu_to_bytes(kern_queue *k, const float *x, int images, int values, kern_bytes how, uint8_t *y, int *found)
{
    to_bytes t = {x, values, how, y, found};
    if (kern_live(k)) cpu_for(cpu_of(k), images, 16.0 * images * values, to_bytes_body, &t);
}
