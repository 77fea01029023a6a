#include "mar/neighbours.h"

#include "specdec/neighbours.h"

mar_status mar_neighbours(const mar_vae *vae, mar_metric metric, int k, int *table, mar_err *err)
{
    const mar_vae_config *c = mar_vae_get_config(vae);
    (void)metric;
    if (spec_neighbour_table(mar_vae_codebook(vae), c->codebook, c->z_channels, k, table) == 0) return MAR_OK;
    return err_set(err, MAR_ENOMEM, "out of memory for the near tokens of %d", c->codebook);
}
