#include "vae/names.h"

#include <stdio.h>

const vae_names *vae_names_of(int is_vq)
{
    static const vae_names kl = {.encoder_level = "encoder.down.",
                                 .decoder_level = "decoder.up.",
                                 .block = ".block.",
                                 .middle = {"mid.block_1", "mid.attn_1", "mid.block_2"}};
    static const vae_names vq = {.encoder_level = "encoder.conv_blocks.",
                                 .decoder_level = "decoder.conv_blocks.",
                                 .coarsest_first = 1,
                                 .block = ".res.",
                                 .middle = {"mid.0", "mid.1", "mid.2"},
                                 .attends_at_coarsest = 1};
    return is_vq ? &vq : &kl;
}

void vae_name_level(const vae_names *names, int levels, int level, char *name)
{
    snprintf(name, VAE_NAME_SIZE, "%s%d", names->decoder_level, names->coarsest_first ? levels - 1 - level : level);
}
