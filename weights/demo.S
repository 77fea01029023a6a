/* The demo models as read-only data. The symbols are hidden: wt_demo_mar and wt_demo_vae return the data. */
#if defined(__APPLE__)
#error "weights/demo.S is written for ELF"
#endif
        .section .rodata

        .macro  demo name, file
        .hidden wt_file_\name
        .hidden wt_file_\name\()_end
        .globl  wt_file_\name
        .globl  wt_file_\name\()_end
        .balign 64
wt_file_\name:
        .incbin "demo/\file"
wt_file_\name\()_end:
        .byte   0
        .endm

        demo    target, target.safetensors
        demo    draft, draft.safetensors
        demo    vae, vae.safetensors
        demo    discrete_target, discrete-target.safetensors
        demo    discrete_draft, discrete-draft.safetensors
        demo    discrete_eagle, discrete-eagle.safetensors
        demo    discrete_vq, discrete-vq.safetensors

#if defined(__linux__) && defined(__ELF__)
        .section .note.GNU-stack, "", %progbits
#endif
