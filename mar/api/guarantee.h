/* The guarantee on the distribution of a session's images: its facts, and the sentence that every program prints. */
#ifndef MAR_GUARANTEE_H
#define MAR_GUARANTEE_H

#include "mar/core/engine.h"

typedef struct {
    mar_guarantee facts; /* of the texts below */
    char reference[96], departing[320];
    mar_effect effect;
    char line[1024];
} mar_guarantee_text;

/* Writes the guarantee of images with these parameters, whose automatic values are filled in. known: host [seq_len] 1
 * where a token is known, NULL: none is. Known tokens condition the others, in raster order those behind them. */
void mar_guarantee_write(const mar_model *model, const mar_engine_state *state, const mar_params *params,
                         const uint8_t *known, mar_guarantee_text *out);

#endif
