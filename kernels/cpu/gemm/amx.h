/* Shared by the files that use AMX's tiles. */
#ifndef KERNELS_CPU_AMX_H
#define KERNELS_CPU_AMX_H

#include <immintrin.h>
#include <stdint.h>

/* The operand of LDTILECFG (Intel SDM, volume 1, table 18-1). */
typedef struct {
    uint8_t palette, start_row, reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
} amx_config;

static inline void amx_configure(const amx_config *c)
{
    __asm__ volatile("" ::"r"(c) : "memory"); /* some compilers assume that the next line reads 8 bytes of it */
    _tile_loadconfig(c);
}

#endif
