/* The files of the page as read-only data, for routes.c. */
        .macro  file name, path
        .globl  \name, \name\()_end
        .hidden \name, \name\()_end
\name:
        .incbin "\path"
\name\()_end:
        .endm

        .section .rodata
        file    page_html, "tools/serve/page.html"
        file    page_css, "tools/serve/page.css"
        file    page_js, "tools/serve/page.js"

#if defined(__linux__) && defined(__ELF__)
        .section .note.GNU-stack, "", %progbits
#endif
