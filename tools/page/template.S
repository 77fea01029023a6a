/* The template of the pages as read-only data, for page.c. */
        .section .rodata
        .globl  page_template
        .hidden page_template
page_template:
        .incbin "tools/page/template.html"
        .byte   0

#if defined(__linux__) && defined(__ELF__)
        .section .note.GNU-stack, "", %progbits
#endif
