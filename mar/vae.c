/* The public face of the image decoder. */
#include "mar/vae.h"

#include <stdlib.h>

mar_status mar_vae_load(mar *m, const char *path, mar_vae **out)
{
    *out = NULL;
    wt_file *file = NULL;
    const wt_embedded *demo = wt_demo_vae(path);
    mar_status status =
        demo ? wt_open_memory(demo->data, demo->size, path, &file, &m->err) : wt_open(path, &file, &m->err);
    if (status != MAR_OK) return status;
    mar_vae *vae = calloc(1, sizeof *vae);
    if (!vae) {
        wt_close(file);
        return err_set(&m->err, MAR_ENOMEM, "out of memory");
    }
    vae->m = m;
    kern_queue *k;
    status = m->device->core->queue_create(m->device, &k, &m->err);
    if (status == MAR_OK) {
        status = vae_decoder_create(k, file, &vae->decoder, &m->err);
        k->core->finish(k);
        k->core->queue_free(k);
    }
    wt_close(file);
    if (status != MAR_OK) {
        mar_vae_free(vae);
        return status;
    }
    *out = vae;
    return MAR_OK;
}

void mar_vae_free(mar_vae *vae)
{
    if (!vae) return;
    vae_decoder_free(vae->decoder);
    free(vae);
}

const mar_vae_config *mar_vae_get_config(const mar_vae *vae)
{
    return vae_decoder_config(vae->decoder);
}
