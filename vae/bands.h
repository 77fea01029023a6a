/* Decoding of large images: the last steps in bands of rows. Private to vae/. */
#ifndef VAE_BANDS_H
#define VAE_BANDS_H

#include "vae/pass.h"

typedef struct vae_bands vae_bands;

/* Looks for a division of the decoder's steps with at most `limit` bytes of working memory for an image: the first
 * steps as a whole, those that need more in bands. p has the queue and the grid. Without such a division the one of
 * fewest bytes is taken, unless all steps as a whole need no more. Sets *out to NULL if all steps are to run as a
 * whole. Returns MAR_ENOMEM. */
mar_status vae_bands_create(const vae_pass *p, const vae_decoder *d, size_t limit, vae_bands **out, mar_err *err);
void vae_bands_free(vae_bands *b); /* NULL is fine */
/* Returns the steps that run as a whole. Their result, and so p->x, begins at the memory's base. */
int vae_bands_first(const vae_bands *b);
/* Returns the bytes of working memory, whole steps included. Assigns it, backend memory at base. base NULL only counts.
 */
size_t vae_bands_lay_out(vae_bands *b, char *base);
/* Sets the buffers of the whole steps to this memory. */
void vae_bands_whole(const vae_bands *b, vae_pass *p);
mar_status vae_bands_plan(const vae_bands *b, const vae_pass *p, mar_err *err);
/* Runs the other steps from the base of the memory on. Returns the pixels [height][width][3]. */
float *vae_bands_run(const vae_bands *b, const vae_pass *p);

#endif
