#include "kernels/cpu/guard.h"

#include <errno.h>
#include <link.h>
#include <omp.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#include <unwind.h>

#if defined(__ELF__) && defined(__linux__) && (defined(__x86_64__) || defined(__aarch64__))
#define GUARDS 1
#else
#define GUARDS 0
#endif

static _Thread_local int depth;          /* nesting of guarded calls on this thread */
static _Thread_local int no_code_memory; /* see failing_mmap */
static int hooked;                       /* 1: omp_get_max_threads is replaced; written before the first guarded call */

#if GUARDS

/* --- the frame ---------------------------------------------------------------------------------------------------- */

/* from libstdc++, which comes with oneDNN */
extern void *__cxa_begin_catch(void *exception) __attribute__((weak));
extern void __cxa_end_catch(void) __attribute__((weak));
extern void _ZSt17__throw_bad_allocv(void) __attribute__((weak, noreturn)); /* std::__throw_bad_alloc() */
extern void *_Znwm(size_t size) __attribute__((weak));                      /* operator new(size_t) */

/* Calls body: int guard_frame(int (*body)(void *arg), void *arg, int caught). An exception continues at guard_landing,
 * in the same frame, with its address in the first exception register; the frame keeps `caught`. */
int guard_frame(int (*body)(void *arg), void *arg, int caught) __attribute__((visibility("hidden")));
extern const char guard_landing[] __attribute__((visibility("hidden")));
void guard_catch(void *exception) __attribute__((visibility("hidden"), used)); /* used by the assembler's text alone */
_Unwind_Reason_Code guard_personality(int version, _Unwind_Action actions, _Unwind_Exception_Class kind,
                                      struct _Unwind_Exception *exception, struct _Unwind_Context *context)
    __attribute__((visibility("hidden"), used));

/* Tells the unwinder of guard_personality: a self-relative address of a pointer to it (0x9b: indirect, relative, 4
 * bytes), filled in by the loader. */
__asm__(".pushsection .data.rel.local, \"aw\"\n"
        ".balign 8\n"
        "guard_personality_at:\n"
        "    .quad guard_personality\n"
        ".popsection\n"
        ".pushsection .text\n"
        ".globl guard_frame, guard_landing\n"
        ".hidden guard_frame\n"
        ".hidden guard_landing\n"
        ".type guard_frame, %function\n"
        ".balign 16\n"
        "guard_frame:\n"
        "    .cfi_startproc\n"
        "    .cfi_personality 0x9b, guard_personality_at\n"
#if defined(__x86_64__)
        "    endbr64\n"
        "    pushq %rbp\n"
        "    .cfi_def_cfa_offset 16\n"
        "    .cfi_offset %rbp, -16\n"
        "    movq %rsp, %rbp\n"
        "    .cfi_def_cfa_register %rbp\n"
        "    subq $16, %rsp\n"
        "    movl %edx, -8(%rbp)\n"
        "    movq %rdi, %rax\n"
        "    movq %rsi, %rdi\n"
        "    callq *%rax\n"
        "1:  leave\n"
        "    .cfi_remember_state\n"
        "    .cfi_def_cfa %rsp, 8\n"
        "    .cfi_restore %rbp\n"
        "    retq\n"
        "    .cfi_restore_state\n"
        "guard_landing:\n"
        "    endbr64\n"
        "    movq %rax, %rdi\n"
        "    callq guard_catch\n"
        "    movl -8(%rbp), %eax\n"
        "    jmp 1b\n"
#else
        "    hint #34\n" /* bti c */
        "    stp x29, x30, [sp, #-32]!\n"
        "    .cfi_def_cfa_offset 32\n"
        "    .cfi_offset x29, -32\n"
        "    .cfi_offset x30, -24\n"
        "    mov x29, sp\n"
        "    .cfi_def_cfa_register x29\n"
        "    str w2, [x29, #16]\n"
        "    mov x9, x0\n"
        "    mov x0, x1\n"
        "    blr x9\n"
        "1:  ldp x29, x30, [sp], #32\n"
        "    .cfi_remember_state\n"
        "    .cfi_def_cfa sp, 0\n"
        "    .cfi_restore x29\n"
        "    .cfi_restore x30\n"
        "    ret\n"
        "    .cfi_restore_state\n"
        "guard_landing:\n"
        "    hint #36\n" /* bti j */
        "    bl guard_catch\n"
        "    ldr w0, [x29, #16]\n"
        "    b 1b\n"
#endif
        "    .cfi_endproc\n"
        ".size guard_frame, .-guard_frame\n"
        ".popsection\n");

/* Catches every exception. Unwinding for another reason, such as a thread's end, passes. */
_Unwind_Reason_Code guard_personality(int version, _Unwind_Action actions, _Unwind_Exception_Class kind,
                                      struct _Unwind_Exception *exception, struct _Unwind_Context *context)
{
    (void)kind;
    if (version != 1) return _URC_FATAL_PHASE1_ERROR;
    if (actions & _UA_SEARCH_PHASE) return _URC_HANDLER_FOUND;
    if (!(actions & _UA_HANDLER_FRAME)) return _URC_CONTINUE_UNWIND;
    _Unwind_SetGR(context, __builtin_eh_return_data_regno(0), (_Unwind_Word)(uintptr_t)exception);
    _Unwind_SetIP(context, (_Unwind_Ptr)(uintptr_t)guard_landing);
    return _URC_INSTALL_CONTEXT;
}

/* Ends a catch block: frees the exception, and counts it as no longer active. */
void guard_catch(void *exception)
{
    no_code_memory = 0;
    if (!__cxa_begin_catch || !__cxa_end_catch) {
        _Unwind_DeleteException(exception);
        return;
    }
    __cxa_begin_catch(exception);
    __cxa_end_catch();
}

/* --- what oneDNN imports ------------------------------------------------------------------------------------------ */

typedef ElfW(Addr) address_t;
typedef ElfW(Dyn) dynamic_t;
typedef ElfW(Phdr) segment_t;
typedef ElfW(Rela) relocation_t;
typedef ElfW(Sym) symbol_t;

enum { MEMALIGN, NEW, MMAP, MAX_THREADS, IMPORTS };
enum { SLOTS = 4 };
static struct import {
    const char *name;
    void (*ours)(void), (*theirs)(void);   /* replacement, and the function it calls outside a guarded call */
    address_t *slot[SLOTS], before[SLOTS]; /* slots of the library's tables, and their former values */
    int slots;                             /* 0: not replaced */
} imports[IMPORTS];

static void lost(void)
{
    if (depth > 0 && _ZSt17__throw_bad_allocv) _ZSt17__throw_bad_allocv();
}

static int throwing_posix_memalign(void **out, size_t alignment, size_t size)
{
    const int status = posix_memalign(out, alignment, size);
    if (status != 0) lost();
    return status;
}

/* Xbyak gets memory for code from mmap, and records it in a table allocated by operator new. C++ holds that mmap does
 * not throw, so an exception here would end the process. The next operator new throws it instead. */
static void *failing_mmap(void *address, size_t size, int protection, int flags, int fd, off_t offset)
{
    void *p = mmap(address, size, protection, flags, fd, offset);
    if (p != MAP_FAILED || fd != -1 || depth == 0 || !imports[NEW].slots) return p;
    no_code_memory = 1;
    return NULL;
}

/* Allocates room for one more size_t. For AMX products (jit_brgemm_amx_uker.cpp, skipped_bd_mask) oneDNN 2.6 and 2.7
 * read, but do not use, the element after the last of a std::vector<size_t>. */
static void *throwing_new(size_t size)
{
    if (no_code_memory) {
        no_code_memory = 0;
        lost();
    }
    return _Znwm(size <= SIZE_MAX - sizeof(size_t) ? size + sizeof(size_t) : size);
}

static int one_thread(void)
{
    return depth > 0 ? 1 : omp_get_max_threads();
}

#define OURS(function) (void (*)(void))(function)
static struct import imports[IMPORTS] = {
    [MEMALIGN] = {.name = "posix_memalign", .ours = OURS(throwing_posix_memalign), .theirs = OURS(posix_memalign)},
    [NEW] = {.name = "_Znwm", .ours = OURS(throwing_new), .theirs = OURS(_Znwm)},
    [MMAP] = {.name = "mmap", .ours = OURS(failing_mmap), .theirs = OURS(mmap)},
    [MAX_THREADS] = {.name = "omp_get_max_threads", .ours = OURS(one_thread), .theirs = OURS(omp_get_max_threads)},
};

/* A loaded library. */
typedef struct {
    address_t base, begin, end;         /* base: origin of its addresses */
    address_t read_only, read_only_end; /* whole pages the loader has made read-only */
    const relocation_t *table[2];       /* of functions, of everything else */
    size_t count[2];
    const symbol_t *symbols;
    const char *names;
} image;

static void read_dynamic(image *l, const dynamic_t *d)
{
    for (; d->d_tag != DT_NULL; d++) {
        const address_t at = d->d_un.d_ptr; /* glibc has added the base; other C libraries have not */
        void *p = (void *)(at < l->base ? at + l->base : at);
        if (d->d_tag == DT_JMPREL) l->table[0] = p;
        if (d->d_tag == DT_PLTRELSZ) l->count[0] = d->d_un.d_val / sizeof *l->table[0];
        if (d->d_tag == DT_RELA) l->table[1] = p;
        if (d->d_tag == DT_RELASZ) l->count[1] = d->d_un.d_val / sizeof *l->table[1];
        if (d->d_tag == DT_SYMTAB) l->symbols = p;
        if (d->d_tag == DT_STRTAB) l->names = p;
    }
}

/* Returns 1 if the relocation fills a slot with the address of a function. */
static int is_slot(const relocation_t *r)
{
#if defined(__x86_64__)
    return ELF64_R_TYPE(r->r_info) == R_X86_64_JUMP_SLOT || ELF64_R_TYPE(r->r_info) == R_X86_64_GLOB_DAT;
#else
    return ELF64_R_TYPE(r->r_info) == R_AARCH64_JUMP_SLOT || ELF64_R_TYPE(r->r_info) == R_AARCH64_GLOB_DAT;
#endif
}

static address_t page_of(address_t at)
{
    return at - at % (address_t)sysconf(_SC_PAGESIZE);
}

/* Writes a slot of the table, otherwise read-only. */
static int write_slot(const image *l, address_t *slot, address_t value)
{
    void *page = (void *)page_of((address_t)slot);
    const int locked = (address_t)slot >= l->read_only && (address_t)slot < l->read_only_end;
    if (locked && mprotect(page, sizeof *slot, PROT_READ | PROT_WRITE) != 0) return 0;
    __atomic_store_n(slot, value, __ATOMIC_RELEASE);
    if (locked) mprotect(page, sizeof *slot, PROT_READ);
    return 1;
}

static image library; /* library whose imports are replaced */

/* Puts our function into a slot, unless it already holds a foreign one: another libmar's in this process, or that of a
 * library before the C library. Before its first call a function's slot points into the library itself. */
static void replace(const image *l, address_t *slot, struct import *m)
{
    const address_t now = *slot;
    if ((now < l->begin || now >= l->end) && now != (address_t)m->theirs) return;
    if (m->slots == SLOTS || !write_slot(l, slot, (address_t)m->ours)) return;
    m->slot[m->slots] = slot;
    m->before[m->slots++] = now;
}

static void replace_imports(const image *l)
{
    for (int t = 0; t < 2; t++)
        for (size_t i = 0; l->table[t] && i < l->count[t]; i++) {
            const relocation_t *r = &l->table[t][i];
            const char *name = l->names + l->symbols[ELF64_R_SYM(r->r_info)].st_name;
            for (int k = 0; is_slot(r) && k < IMPORTS; k++)
                if (strcmp(name, imports[k].name) == 0) replace(l, (address_t *)(l->base + r->r_offset), &imports[k]);
        }
}

/* Tests whether this is the library with the address. */
static int look_at(struct dl_phdr_info *info, size_t size, void *address)
{
    image l = {.base = info->dlpi_addr, .begin = ~(address_t)0};
    const address_t self = (address_t)guard_open;
    const dynamic_t *dynamic = NULL;
    int found = 0;
    (void)size;
    for (int i = 0; i < info->dlpi_phnum; i++) {
        const segment_t *p = &info->dlpi_phdr[i];
        const address_t begin = l.base + p->p_vaddr, end = begin + p->p_memsz;
        if (p->p_type == PT_LOAD && (address_t)address >= begin && (address_t)address < end) found = 1;
        if (p->p_type == PT_LOAD && begin < l.begin) l.begin = begin;
        if (p->p_type == PT_LOAD && end > l.end) l.end = end;
        if (p->p_type == PT_DYNAMIC) dynamic = (const dynamic_t *)begin;
        if (p->p_type == PT_GNU_RELRO) l.read_only = page_of(begin), l.read_only_end = page_of(end);
    }
    if (!found || !dynamic) return 0;
    read_dynamic(&l, dynamic);
    if (self >= l.begin && self < l.end) return 1; /* linked into this library: its imports are our own */
    if (l.symbols && l.names) library = l;
    return 1;
}

static pthread_once_t opened = PTHREAD_ONCE_INIT;
static const void *_Atomic address_in_library; /* the same library for every caller */

static void open_once(void)
{
    dl_iterate_phdr(look_at, (void *)(uintptr_t)address_in_library);
    if (!_Znwm || !_ZSt17__throw_bad_allocv) imports[NEW].name = ""; /* a different C++ library: left unchanged */
    if (library.names) replace_imports(&library);
    hooked = imports[MAX_THREADS].slots > 0;
}

void guard_open(const void *address)
{
    address_in_library = address;
    pthread_once(&opened, open_once);
}

/* Removes our functions; oneDNN may stay loaded. */
__attribute__((destructor)) static void put_back(void)
{
    for (struct import *m = imports; m < imports + IMPORTS; m++)
        for (int i = 0; i < m->slots; i++)
            if (*m->slot[i] == (address_t)m->ours) write_slot(&library, m->slot[i], m->before[i]);
}

#else

static int guard_frame(int (*body)(void *arg), void *arg, int caught)
{
    (void)caught;
    return body(arg);
}

void guard_open(const void *address)
{
    (void)address;
}

#endif

int guard_call(int (*body)(void *arg), void *arg, int caught)
{
    const int threads = hooked ? 0 : omp_get_max_threads();
    if (!hooked) omp_set_num_threads(1); /* the calling thread's own number. libgomp may end the process here */
    if (depth++ == 0) no_code_memory = 0;
    const int result = guard_frame(body, arg, caught);
    depth--;
    if (!hooked) omp_set_num_threads(threads);
    return result;
}
