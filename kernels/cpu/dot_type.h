/* For files compiled with KERN_TYPE=bf16 and with KERN_TYPE=int8. */
#ifndef KERNELS_CPU_DOT_TYPE_H
#define KERNELS_CPU_DOT_TYPE_H

#define PASTE_(a, b) a##_##b
#define PASTE(a, b)  PASTE_(a, b)
#define IS_int8      0
#define IS_bf16      1
#define BF16         PASTE(IS, KERN_TYPE)
/* dot_bf16_amx etc. */
#define NAME_(type, isa) dot_##type##_##isa
#define NAME(type, isa)  NAME_(type, isa)

#endif
