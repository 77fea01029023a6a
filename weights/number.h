/* Numbers as files store them: little-endian integers, half precision, bfloat16. Rounding is to nearest even. */
#ifndef WEIGHTS_NUMBER_H
#define WEIGHTS_NUMBER_H

#include <stdint.h>
#include <string.h>

static inline uint32_t wt_f32_bits(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

static inline float wt_f32_from_bits(uint32_t bits)
{
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

static inline float wt_f32_from_bf16(uint16_t h)
{
    return wt_f32_from_bits((uint32_t)h << 16);
}

static inline uint16_t wt_bf16_from_f32(float x)
{
    uint32_t u = wt_f32_bits(x);
    if ((u & 0x7fffffffu) > 0x7f800000u) return (uint16_t)(u >> 16 | 0x40); /* keeps NaN */
    return (uint16_t)((u + 0x7fffu + (u >> 16 & 1)) >> 16);
}

static inline float wt_f32_from_f16(uint16_t h)
{
    uint32_t sign = (uint32_t)(h & 0x8000u) << 16, magnitude = h & 0x7fffu;
    if (magnitude >= 0x7c00u) return wt_f32_from_bits(sign | 0x7f800000u | (magnitude & 0x3ffu) << 13);
    /* Exponent and mantissa, moved into place, are the value times 2^-112, subnormals included. */
    float scaled = wt_f32_from_bits(magnitude << 13) * 0x1p112f;
    return wt_f32_from_bits(wt_f32_bits(scaled) | sign);
}

static inline uint16_t wt_f16_from_f32(float x)
{
    uint32_t u = wt_f32_bits(x), magnitude = u & 0x7fffffffu;
    uint16_t sign = (uint16_t)(u >> 16 & 0x8000u);
    if (magnitude > 0x7f800000u) return (uint16_t)(sign | 0x7e00u | (magnitude >> 13 & 0x3ffu));
    if (magnitude >= 0x477ff000u) return (uint16_t)(sign | 0x7c00u); /* 65520 and above round to infinity */
    if (magnitude < 0x38800000u) {                                   /* below 2^-14: subnormal */
        /* Adding 2^-1 makes one ulp of the sum 2^-24, the subnormal step. So the addition rounds. */
        float sum = wt_f32_from_bits(magnitude) + 0.5f;
        return (uint16_t)(sign | (wt_f32_bits(sum) - 0x3f000000u));
    }
    magnitude -= 112u << 23;
    return (uint16_t)(sign | (magnitude + 0xfffu + (magnitude >> 13 & 1)) >> 13);
}

/* The formats of OCP's 8-bit floating point: E4M3 without infinities, with one NaN of each sign, and E5M2, the upper
 * half of an f16. */
static inline float wt_f32_from_f8_e4m3(uint8_t b)
{
    const uint32_t sign = (uint32_t)(b & 0x80u) << 24, magnitude = b & 0x7fu;
    if (magnitude == 0x7fu) return wt_f32_from_bits(sign | 0x7fc00000u);
    /* As in wt_f32_from_f16, with 3 bits of mantissa and a bias of 7. */
    return wt_f32_from_bits(wt_f32_bits(wt_f32_from_bits(magnitude << 20) * 0x1p120f) | sign);
}

static inline float wt_f32_from_f8_e5m2(uint8_t b)
{
    return wt_f32_from_f16((uint16_t)(b << 8));
}

static inline uint16_t wt_le16(const uint8_t *p)
{
    return (uint16_t)(p[0] | p[1] << 8);
}
static inline uint32_t wt_le32(const uint8_t *p)
{
    return (uint32_t)wt_le16(p) | (uint32_t)wt_le16(p + 2) << 16;
}
static inline uint64_t wt_le64(const uint8_t *p)
{
    return (uint64_t)wt_le32(p) | (uint64_t)wt_le32(p + 4) << 32;
}

#endif
