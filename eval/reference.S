/* Statistics of real digits as read-only data (eval/reference.c). */
#if defined(__APPLE__)
#error "eval/reference.S is written for ELF"
#endif
        .section .rodata
        .hidden eval_file_reference
        .hidden eval_file_reference_end
        .globl  eval_file_reference
        .globl  eval_file_reference_end
        .balign 64
eval_file_reference:
        .incbin "weights/demo/reference.npz"
eval_file_reference_end:
        .byte   0

#if defined(__linux__) && defined(__ELF__)
        .section .note.GNU-stack, "", %progbits
#endif
