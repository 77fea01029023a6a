/* Read-only data for the evaluation of the demo's images: the digit classifier's weights (eval/classifier.c) and the
 * statistics of real digits (eval/reference.c). */
#if defined(__APPLE__)
#error "eval/demo.S is written for ELF"
#endif
        .section .rodata

        .macro  demo name, file
        .hidden eval_file_\name
        .hidden eval_file_\name\()_end
        .globl  eval_file_\name
        .globl  eval_file_\name\()_end
        .balign 64
eval_file_\name:
        .incbin "weights/demo/\file"
eval_file_\name\()_end:
        .byte   0
        .endm

        demo    classifier, classifier.safetensors
        demo    reference, reference.npz

#if defined(__linux__) && defined(__ELF__)
        .section .note.GNU-stack, "", %progbits
#endif
