/* An image decoder in a model's file: its tensors' names begin with VAE_INSIDE. */
#include "vae/vae.h"
#include "weights/shape.h"

#include <stdio.h>

typedef struct {
    vae_tensor_visitor *visit;
    void *user;
} inside_visitor;

static void inside_visit_tensor(void *user, const char *name, int rank, const int64_t *shape)
{
    const inside_visitor *v = user;
    char full[160];
    snprintf(full, sizeof full, VAE_INSIDE "%s", name);
    v->visit(v->user, full, rank, shape);
}

mar_status vae_open_inside(const wt_file *f, wt_file **out, mar_err *err)
{
    const mar_status status = wt_view(f, out, err);
    if (status != MAR_OK) return status;
    wt_narrow(*out, VAE_INSIDE);
    if (vae_config_recognise(*out)) return MAR_OK;
    wt_close(*out);
    *out = NULL;
    return MAR_OK;
}

void vae_inside_tensors(const wt_file *f, const mar_vae_config *config, vae_tensor_visitor *visit, void *user)
{
    wt_file *decoder = NULL;
    mar_err err = {0};
    inside_visitor v = {visit, user};
    (void)vae_open_inside(f, &decoder, &err); /* its tensors are unexpected then */
    if (decoder) vae_config_tensors(decoder, config, inside_visit_tensor, &v);
    wt_close(decoder);
}
