/* The digit classifier's weights as read-only data (eval/classifier.c). */
#if defined(__APPLE__)
#error "eval/classifier.S is written for ELF"
#endif
        .section .rodata
        .hidden eval_file_classifier
        .hidden eval_file_classifier_end
        .globl  eval_file_classifier
        .globl  eval_file_classifier_end
        .balign 64
eval_file_classifier:
        .incbin "weights/demo/classifier.safetensors"
eval_file_classifier_end:
        .byte   0

#if defined(__linux__) && defined(__ELF__)
        .section .note.GNU-stack, "", %progbits
#endif
