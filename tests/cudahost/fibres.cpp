/* Launches on the CPU. A block's threads are fibres; one runs until it waits for others. Warps with threads that can
 * run are in a queue. If there are none and some threads have not ended, they are deadlocked. One thread of the program
 * launches at a time, and stays with the launch to its end. runtime_mutex protects all data here. */
#include "fibres.h"

#include <cxxabi.h>
#include <dlfcn.h>
#include <pthread.h>
#include <stdarg.h>
#include <sys/mman.h>
#include <ucontext.h>
#include <unistd.h>

#if CUDAHOST_ASAN
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

__thread cudahost_thread *cudahost_now;
uint3 threadIdx, blockIdx;
dim3 blockDim, gridDim;
const race_hooks *cudahost_race;
uintptr_t fibre_bottom;
size_t fibre_bytes;

/* --- stacks and switching ---------------------------------------------------------------------------------------- */

/* State of a stopped fibre, or of the host. */
struct fibre_stack {
    void *stopped; /* its stack pointer */
    ucontext_t context;
    void *fake; /* AddressSanitizer's */
    const void *bottom;
    size_t bytes;
};

static const size_t stack_bytes = CUDAHOST_ASAN ? 512 << 10 : 128 << 10;
static std::vector<fibre_stack *> free_stacks;
static fibre_stack host;

extern "C" void cudahost_switch(void **save, void *load);
#ifdef __x86_64__
/* Saves the callee-saved registers on the stack, and continues where `load` saved its own. */
asm(R"(
    .text
    .globl cudahost_switch
    .hidden cudahost_switch
    .type cudahost_switch, @function
cudahost_switch:
    pushq %rbp
    pushq %rbx
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movq %rsp, (%rdi)
    movq %rsi, %rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbx
    popq %rbp
    popq %rcx
    jmpq *%rcx
    .size cudahost_switch, .-cudahost_switch
)");
#endif

/* Switches stacks. `ends`: nothing returns to `from`. */
static void switch_stacks(fibre_stack *from, fibre_stack *to, bool ends)
{
#if CUDAHOST_ASAN
    __sanitizer_start_switch_fiber(ends ? nullptr : &from->fake, to->bottom, to->bytes);
#else
    (void)ends;
#endif
#ifdef __x86_64__
    cudahost_switch(&from->stopped, to->stopped);
#else
    swapcontext(&from->context, &to->context);
#endif
#if CUDAHOST_ASAN
    __sanitizer_finish_switch_fiber(from->fake, nullptr, nullptr);
#endif
}

static void fibre_main();

static void *host_memory(size_t bytes)
{
    void *p = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED) {
        fprintf(stderr, "cudahost: no memory for %zu bytes of fibres' stacks\n", bytes);
        abort();
    }
    return p;
}

/* Returns a stack that starts in fibre_main. */
static fibre_stack *new_stack()
{
    if (free_stacks.empty()) {
        /* A guard page, the stack, and its header. The header's offset in its page differs between stacks. Otherwise
         * the lines that all threads use would share a few sets of the cache. */
        static size_t stacks;
        const size_t guard = 4096, own = (sizeof(fibre_stack) + 63) / 64 * 64 + stacks++ % 13 * 320;
        unsigned char *memory = (unsigned char *)host_memory(guard + stack_bytes);
        mprotect(memory, guard, PROT_NONE);
        fibre_stack *s = (fibre_stack *)(memory + guard + stack_bytes - own);
        s->bottom = memory + guard;
        s->bytes = stack_bytes - own;
        free_stacks.push_back(s);
    }
    fibre_stack *s = free_stacks.back();
    free_stacks.pop_back();
#ifdef __x86_64__
    void **top = (void **)((uintptr_t)s->bottom + s->bytes); /* 16-byte aligned, as before a call */
    *--top = nullptr;                                        /* no return address */
    *--top = (void *)(uintptr_t)fibre_main;
    for (int i = 0; i < 6; i++) *--top = nullptr;
    s->stopped = top;
#else
    getcontext(&s->context);
    s->context.uc_stack.ss_sp = (void *)s->bottom;
    s->context.uc_stack.ss_size = s->bytes;
    makecontext(&s->context, fibre_main, 0);
#endif
    return s;
}

/* --- the queue of warps that can run ----------------------------------------------------------------------------- */

static enum { FORWARD, REVERSE, SHUFFLED } order;
static uint64_t random_state;
const device_launch *fibre_running;
static std::vector<device_warp *> queue; /* a ring */
static size_t queue_first, queue_size;
static device_warp *turn;    /* its threads run while one of them can: their stacks stay in the cache */
static size_t alive;         /* threads of the resident blocks that have not ended */
static unsigned long yields; /* consecutive yields without other progress */

static uint32_t random_below(uint32_t n)
{
    random_state = random_state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)((random_state >> 32) * n >> 32);
}

static void make_ready(device_thread *t)
{
    device_warp *warp = &t->block->warps[t->number / 32];
    t->wait = CUDAHOST_RUNS;
    warp->ready |= 1u << t->number % 32;
    if (warp->queued || warp == turn) return;
    size_t at = queue_first + queue_size++;
    if (at >= queue.size()) at -= queue.size();
    queue[at] = warp;
    warp->queued = true;
}

static void report_deadlock();
static void release_held();
static unsigned long hold_polls; /* of cudahost_hold_last */

static device_warp *take_warp()
{
    if (order == SHUFFLED) {
        size_t at = queue_first + random_below((uint32_t)queue_size);
        if (at >= queue.size()) at -= queue.size();
        std::swap(queue[queue_first], queue[at]);
    }
    device_warp *warp = queue[queue_first];
    if (++queue_first == queue.size()) queue_first = 0;
    queue_size--;
    warp->queued = false;
    return warp;
}

static device_thread *take_ready()
{
    if (!turn || !turn->ready) {
        turn = nullptr;
        if (queue_size == 0) release_held();
        if (queue_size == 0) {
            if (alive > 0) report_deadlock();
            return nullptr;
        }
        turn = take_warp();
    }
    /* The next ready lane from this one on, so that each has its turn */
    const unsigned from = order == SHUFFLED ? random_below(32) : turn->last;
    const uint32_t ready = turn->ready >> from | turn->ready << (32 - from) % 32;
    const unsigned step = order == REVERSE ? 31 - (unsigned)__builtin_clz(ready) : (unsigned)__builtin_ctz(ready);
    const unsigned lane = (from + step) % 32;
    turn->ready &= ~(1u << lane);
    turn->last = order == REVERSE ? lane : (lane + 1) % 32;
    return &turn->lanes[lane];
}

static device_thread *now()
{
    return static_cast<device_thread *>(cudahost_now);
}

static void set_now(device_thread *t)
{
    cudahost_now = t;
    if (!t) return;
    fibre_bottom = (uintptr_t)t->stack->bottom, fibre_bytes = t->stack->bytes;
    threadIdx = t->index;
    blockIdx = t->block->index;
}

/* Stops the running thread, to be made ready by another, and runs the next. */
static void run_others()
{
    device_thread *me = now(), *next = take_ready();
    if (next == me) return;
    if (!next->stack) next->stack = new_stack();
    set_now(next);
    switch_stacks(me->stack, next->stack, false);
}

static void thread_ends(device_thread *t);

/* Runs threads to their ends on one fibre, while the next thread has not begun elsewhere. */
static void fibre_main()
{
#if CUDAHOST_ASAN
    __sanitizer_finish_switch_fiber(nullptr, nullptr, nullptr);
#endif
    for (;;) {
        fibre_running->call->run();
        device_thread *me = now();
        fibre_stack *stack = me->stack;
        me->stack = nullptr;
        thread_ends(me);
        device_thread *next = take_ready();
        if (next && !next->stack) {
            next->stack = stack;
            set_now(next);
            continue;
        }
        set_now(next);
        free_stacks.push_back(stack); /* not reused before the switch */
        switch_stacks(stack, next ? next->stack : &host, true);
    }
}

/* --- descriptions of threads ------------------------------------------------------------------------------------- */

std::string fibre_symbol(const void *code, bool with_line)
{
    char command[1024], name[512] = "", place[512] = "";
    snprintf(command, sizeof(command), "%p", code);
    const std::string hexadecimal = command;
    Dl_info info;
    if (!dladdr(code, &info) || !info.dli_fname) return hexadecimal;
    uintptr_t address = (uintptr_t)code;
    /* Position-independent objects are linked for address 0. Kernels are static: only the file has their names. */
    const bool independent = ((const unsigned char *)info.dli_fbase)[16] == 3;
    if (independent) address -= (uintptr_t)info.dli_fbase;
    snprintf(command, sizeof(command), "addr2line -f -C -i -e '%s' 0x%zx 2>/dev/null", info.dli_fname, (size_t)address);
    FILE *out = popen(command, "r");
    std::string symbol;
    while (out && fgets(name, sizeof(name), out) && fgets(place, sizeof(place), out)) {
        name[strcspn(name, "\n")] = place[strcspn(place, " \n")] = 0;
        if (name[0] == '?' || (!with_line && !symbol.empty())) continue;
        if (!symbol.empty()) symbol += ", inlined in ";
        symbol += name;
        if (with_line && place[0] != '?') symbol = symbol + " at " + place;
    }
    if (out) pclose(out);
    return symbol.empty() ? hexadecimal : symbol;
}

std::string fibre_describe(const device_thread *t)
{
    std::string r = "kernel " + (fibre_running ? fibre_symbol(fibre_running->kernel, false) : "?");
    char place[128];
    if (!t) return r;
    snprintf(place, sizeof(place), ", block (%u,%u,%u), thread (%u,%u,%u)", t->block->index.x, t->block->index.y,
             t->block->index.z, t->index.x, t->index.y, t->index.z);
    return r + place;
}

void fibre_fail(const device_thread *t, const char *format, ...)
{
    char what[2048];
    va_list list;
    va_start(list, format);
    vsnprintf(what, sizeof(what), format, list);
    va_end(list);
    fprintf(stderr, "cudahost: %s: %s\n", fibre_describe(t).c_str(), what);
    fflush(stderr);
    abort();
}

static const char *wait_name(cudahost_wait w)
{
    static const char *const names[] = {"running",   "__syncthreads", "__syncthreads_or", "cluster sync", "__syncwarp",
                                        "a shuffle", "a vote",        "__nanosleep",      "bar.sync"};
    return names[w];
}

static std::vector<cudahost_block *> resident;

/* Reports where threads wait, each place once. */
static void report_deadlock()
{
    const device_thread *example = nullptr;
    std::string places;
    for (const cudahost_block *b : resident) {
        std::vector<const device_thread *> seen;
        for (const device_thread &t : b->threads) {
            if (t.exited) continue;
            if (!example) example = &t;
            bool known = false;
            for (const device_thread *s : seen) known |= s->wait == t.wait && s->line == t.line && s->file == t.file;
            if (known) continue;
            seen.push_back(&t);
            size_t same = 0, exited = 0;
            for (const device_thread &u : b->threads) {
                same += !u.exited && u.wait == t.wait && u.line == t.line && u.file == t.file;
                exited += u.exited;
            }
            char text[512];
            snprintf(text, sizeof(text),
                     "\n  block (%u,%u,%u): %zu threads, (%u,%u,%u) the first, in %s at %s:%d; %zu of %zu ended",
                     b->index.x, b->index.y, b->index.z, same, t.index.x, t.index.y, t.index.z, wait_name(t.wait),
                     t.file, t.line, exited, b->threads.size());
            if (places.size() < 1500) places += text;
        }
    }
    fibre_fail(example, "deadlock, waiting for what cannot happen:%s", places.c_str());
}

/* Compares two file names. Names of one file are usually the same string. */
static bool same_file(const char *a, const char *b)
{
    return a == b || strcmp(a, b) == 0;
}

/* --- barriers ---------------------------------------------------------------------------------------------------- */

/* Waits until all of a barrier's threads have reached the same place. Returns whether the caller came last; it runs on.
 * Sets *value to the number of threads with a nonzero value. */
static bool barrier_wait(fibre_barrier *b, cudahost_wait kind, int *value, const char *file, int line)
{
    device_thread *me = now();
    if (b->exited)
        fibre_fail(me, "in %s at %s:%d, which %u threads that have ended do not reach", wait_name(kind), file, line,
                   b->exited);
    if (b->arrived == 0) {
        b->kind = kind, b->file = file, b->line = line;
        b->value = 0;
        b->first = b->last = nullptr;
    } else if (b->kind != kind || b->line != line || !same_file(b->file, file)) {
        fibre_fail(me, "in %s at %s:%d, while thread (%u,%u,%u) is in %s at %s:%d", wait_name(kind), file, line,
                   b->first->index.x, b->first->index.y, b->first->index.z, wait_name(b->kind), b->file, b->line);
    }
    b->arrived++;
    b->value += *value != 0;
    if (b->arrived < b->expected) {
        me->wait = kind, me->file = file, me->line = line;
        me->next = nullptr;
        if (b->last)
            b->last->next = me;
        else
            b->first = me;
        b->last = me;
        run_others();
        *value = b->result;
        return false;
    }
    yields = 0;
    *value = b->result = b->value;
    b->arrived = 0;
    for (device_thread *t = b->first; t; t = t->next) make_ready(t);
    return true;
}

int cudahost_sync_block(cudahost_wait kind, int value, const char *file, int line)
{
    if (now()->created) fibre_fail(now(), "meets others, and has created barriers without barriers_created");
    cudahost_block *block = cudahost_now->block;
    if (barrier_wait(&block->barrier, kind, &value, file, line) && cudahost_race) cudahost_race->block_syncs(block);
    return value;
}

void cudahost_sync_team(unsigned team, unsigned threads, const char *file, int line)
{
    cudahost_block *block = cudahost_now->block;
    int value = 0;
    if (team < 1 || team >= CUDAHOST_TEAMS || threads == 0 || threads % 32 || threads > block->threads.size())
        fibre_fail(now(), "in bar.sync %u, %u at %s:%d: no team", team, threads, file, line);
    fibre_barrier *barrier = &block->teams[team];
    barrier->expected = threads;
    if (!barrier_wait(barrier, CUDAHOST_TEAM, &value, file, line) || !cudahost_race) return;
    unsigned warps = 1u << now()->number / 32;
    for (const device_thread *t = barrier->first; t; t = t->next) warps |= 1u << t->number / 32;
    cudahost_race->team_syncs(block, warps);
}

void cudahost_sync_cluster(const char *file, int line)
{
    if (now()->created) fibre_fail(now(), "meets others, and has created barriers without barriers_created");
    cudahost_block *block = cudahost_now->block;
    int value = 0;
    if (!block->cluster) fibre_fail(now(), "in cluster sync at %s:%d, but the launch has no clusters", file, line);
    if (!barrier_wait(&block->cluster->barrier, CUDAHOST_CLUSTER, &value, file, line)) return;
    cudahost_fence();
    if (cudahost_race) cudahost_race->cluster_syncs(block->cluster);
}
unsigned cudahost_cluster_rank()
{
    return cudahost_now->block->rank;
}
unsigned cudahost_cluster_blocks()
{
    return cudahost_now->block->cluster ? (unsigned)cudahost_now->block->cluster->blocks.size() : 1;
}
void *cudahost_cluster_map(const void *shared, unsigned rank, const char *file, int line)
{
    cudahost_block *block = cudahost_now->block;
    const size_t offset = (size_t)((const unsigned char *)shared - block->shared);
    if (offset >= fibre_running->shared_bytes)
        fibre_fail(now(), "map_shared_rank at %s:%d of an address outside of shared memory", file, line);
    if (rank >= cudahost_cluster_blocks())
        fibre_fail(now(), "map_shared_rank at %s:%d of rank %u in a cluster of %u blocks", file, line, rank,
                   cudahost_cluster_blocks());
    cudahost_block *other = block->cluster ? block->cluster->blocks[rank] : block;
    if (other->barrier.exited == other->barrier.expected)
        fibre_fail(now(), "map_shared_rank at %s:%d of rank %u, which has ended", file, line, rank);
    return (block->cluster ? block->cluster->blocks[rank] : block)->shared + offset;
}

const uint64_t *cudahost_sync_warp(cudahost_wait kind, unsigned mask, uint64_t value, const char *file, int line)
{
    device_thread *me = now();
    cudahost_block *block = me->block;
    device_warp *warp = &block->warps[me->number / 32];
    device_thread *lanes = &block->threads[me->number / 32 * 32];
    const unsigned lane = me->number % 32;
    if (!(mask >> lane & 1))
        fibre_fail(me, "in %s at %s:%d with mask 0x%08x, which does not name its lane %u", wait_name(kind), file, line,
                   mask, lane);
    if (kind == CUDAHOST_SYNCWARP)
        mask &= warp->exists & ~warp->exited; /* ended threads are not waited for */
    else if (mask & ~(warp->exists & ~warp->exited))
        fibre_fail(me, "in %s at %s:%d with mask 0x%08x, but the warp has only the lanes 0x%08x", wait_name(kind), file,
                   line, mask, warp->exists & ~warp->exited);
    warp->gives[lane] = value;
    warp->waits |= 1u << lane;
    me->wait = kind, me->file = file, me->line = line, me->mask = mask;
    if (mask & ~warp->waits) {
        run_others();
        return me->mask == ~0u || me->mask == warp->exists ? warp->gave : me->got;
    }
    for (unsigned i = 0; i < 32; i++) {
        if (!(mask >> i & 1)) continue;
        const device_thread *t = &lanes[i];
        if (t->wait != kind || t->mask != mask || t->line != line || !same_file(t->file, file))
            fibre_fail(me, "in %s at %s:%d with mask 0x%08x, while lane %u is in %s at %s:%d with mask 0x%08x",
                       wait_name(kind), file, line, mask, i, wait_name(t->wait), t->file, t->line, t->mask);
    }
    /* Only __syncwarp orders accesses to memory. */
    if (cudahost_race && kind == CUDAHOST_SYNCWARP) cudahost_race->warp_syncs(block, me->number / 32, mask);
    yields = 0;
    warp->waits &= ~mask;
    /* A whole warp's values stay until all its lanes come again. With a partial mask each lane keeps its own copy. */
    const bool whole = mask == ~0u || mask == warp->exists;
    if (whole) memcpy(warp->gave, warp->gives, sizeof(warp->gave));
    for (unsigned i = 0; i < 32; i++) {
        if (!(mask >> i & 1)) continue;
        if (!whole) memcpy(lanes[i].got, warp->gives, sizeof(lanes[i].got));
        if (i != lane) make_ready(&lanes[i]);
    }
    me->wait = CUDAHOST_RUNS;
    return whole ? warp->gave : me->got;
}

uint64_t cudahost_shuffle(unsigned mask, uint64_t value, int source, const char *file, int line)
{
    if (!(mask >> (source & 31) & 1))
        fibre_fail(now(), "in a shuffle at %s:%d from lane %d, which mask 0x%08x does not name", file, line,
                   source & 31, mask);
    return cudahost_sync_warp(CUDAHOST_SHUFFLE, mask, value, file, line)[source & 31];
}

size_t fibre_pick(size_t n)
{
    return order == FORWARD ? 0 : order == REVERSE ? n - 1 : random_below((uint32_t)n);
}

struct late_word {
    void *to;
    size_t bytes;
    unsigned char word[16];
};
static std::vector<late_word> late_words;

/* Makes the words visible that comes(word) chooses. */
template <typename F> static void words_come(F comes)
{
    size_t left = 0;
    for (const late_word &w : late_words)
        if (comes(w))
            memcpy(w.to, w.word, w.bytes);
        else
            late_words[left++] = w;
    late_words.resize(left);
}

void cudahost_fence()
{
    words_come([](const late_word &) { return true; });
    if (cudahost_race && cudahost_now) cudahost_race->thread_fences();
}

cudahost_late_store::cudahost_late_store(void *p, size_t n) : to(p), bytes(n)
{
    words_come([p](const late_word &w) { return w.to == p; }); /* those of one address come in order */
    memcpy(before, to, bytes);
}
cudahost_late_store::~cudahost_late_store()
{
    late_word w = {to, bytes, {}};
    if (order != SHUFFLED || random_below(2)) return;
    memcpy(w.word, to, bytes);
    memcpy(to, before, bytes);
    late_words.push_back(w);
}

unsigned cudahost_patience = UINT_MAX;
void cudahost_give_up_after(unsigned polls)
{
    cudahost_patience = polls;
}

static unsigned slow_block = UINT_MAX;
void cudahost_slow_block(unsigned block)
{
    slow_block = block;
}

void cudahost_yield(const char *file, int line)
{
    device_thread *me = now();
    const bool slow = fibre_running->together && me->block->index.x == slow_block;
    do {
        words_come([](const late_word &) { return random_below(2) != 0; });
        if (++yields > hold_polls) release_held();
        /* All others have had many turns, and only yielded. */
        if (yields > 1000000 + 1000 * alive) {
            me->wait = CUDAHOST_YIELDS, me->file = file, me->line = line;
            for (cudahost_block *b : resident)
                for (device_thread &t : b->threads)
                    if (t.wait == CUDAHOST_RUNS) t.wait = CUDAHOST_YIELDS;
            report_deadlock();
        }
        turn = nullptr; /* other warps are next */
        make_ready(me);
        me->file = file, me->line = line;
        run_others();
    } while (slow && yields < 4 * alive); /* the others have had a few turns, and only yielded */
}

void cudahost_trap(const char *file, int line)
{
    fibre_fail(now(), "__trap at %s:%d", file, line);
}

static void thread_ends(device_thread *t)
{
    cudahost_block *b = t->block;
    yields = 0;
    if (!t->copies.empty())
        fibre_fail(t, "ends, and has not waited for its cp.async at %s:%d", t->copies[0].file, t->copies[0].line);
    if (t->n_products) fibre_fail(t, "ends, and has not waited for its products");
    if (!t->waited) fibre_fail(t, "ends, and has not waited for the launch before it");
    t->exited = true;
    alive--;
    b->barrier.exited++;
    if (b->barrier.arrived)
        fibre_fail(t, "ends, while thread (%u,%u,%u) waits for it in %s at %s:%d", b->barrier.first->index.x,
                   b->barrier.first->index.y, b->barrier.first->index.z, wait_name(b->barrier.kind), b->barrier.file,
                   b->barrier.line);
    if (b->cluster) {
        b->cluster->barrier.exited++;
        if (b->cluster->barrier.arrived) fibre_fail(t, "ends, while others wait for it in cluster sync");
    }
    device_warp *warp = &b->warps[t->number / 32];
    warp->exited |= 1u << t->number % 32;
    for (unsigned i = 0; i < 32; i++) {
        if (!(warp->waits >> i & 1)) continue;
        device_thread *other = &b->threads[t->number / 32 * 32 + i];
        if (!(other->mask >> t->number % 32 & 1)) continue;
        fibre_fail(t, "ends, while lane %u waits for it in %s at %s:%d", i, wait_name(other->wait), other->file,
                   other->line);
    }
}

/* --- launches ---------------------------------------------------------------------------------------------------- */

static uint3 unravel(size_t i, dim3 d)
{
    return make_uint3((unsigned)(i % d.x), (unsigned)(i / d.x % d.y), (unsigned)(i / d.x / d.y));
}

static cudahost_block *block_create(const device_launch *l)
{
    cudahost_block *b = new cudahost_block();
    const size_t n = (size_t)l->block.x * l->block.y * l->block.z;
    b->threads.resize(n);
    b->warps.resize((n + 31) / 32);
    void *shared = nullptr; /* of exactly that size, so that AddressSanitizer finds accesses beyond it */
    if (posix_memalign(&shared, 1024, l->shared_bytes)) abort();
    b->shared = (unsigned char *)shared;
    return b;
}

static void block_free(cudahost_block *b)
{
    free(b->shared);
    delete b;
}

static void block_begin(const device_launch *l, cudahost_block *b, size_t number)
{
    const size_t n = b->threads.size();
    b->index = unravel(number, l->grid);
    b->unfenced = 0;
    b->barrier = fibre_barrier();
    b->barrier.expected = (unsigned)n;
    for (fibre_barrier &team : b->teams) team = fibre_barrier();
    memset(b->shared, 0xff, l->shared_bytes);
    for (size_t w = 0; w < b->warps.size(); w++) {
        const size_t lanes = n - 32 * w < 32 ? n - 32 * w : 32;
        b->warps[w].exists = lanes == 32 ? ~0u : (1u << lanes) - 1;
        b->warps[w].exited = b->warps[w].waits = b->warps[w].ready = b->warps[w].last = 0;
        b->warps[w].queued = false;
        b->warps[w].lanes = &b->threads[32 * w];
    }
    for (size_t i = 0; i < n; i++) {
        device_thread *t = &b->threads[i];
        t->index = unravel(i, l->block);
        t->shared = b->shared;
        t->block = b;
        t->number = (unsigned)i;
        t->stack = nullptr;
        t->wait = CUDAHOST_RUNS;
        t->exited = false;
        t->groups = 0;
        t->n_products = 0;
        t->multiplies = device_thread::CLOSED;
        t->created = t->unfenced = false;
        t->waited = !l->early;
    }
    if (cudahost_race) cudahost_race->block_begins(b);
    resident.push_back(b);
}

bool fibre_holds;
static size_t held; /* last resident blocks that have not begun */
void cudahost_hold_last(unsigned long polls)
{
    hold_polls = polls;
    fibre_holds = polls == ULONG_MAX;
}
static void release_held()
{
    for (; held > 0; held--)
        for (device_thread &t : resident[resident.size() - held]->threads) make_ready(&t);
}

/* Runs the resident blocks to their ends. */
static void run_resident()
{
    size_t warps = 0;
    alive = 0;
    for (const cudahost_block *b : resident) alive += b->threads.size(), warps += b->warps.size();
    if (queue.size() < warps) queue.resize(warps);
    queue_first = queue_size = 0;
    turn = nullptr;
    yields = 0;
    const dim3 cluster = fibre_running->cluster;
    held = hold_polls && fibre_running->together ? (size_t)cluster.x * cluster.y * cluster.z : 0;
    const size_t blocks = resident.size() - held;
    for (size_t i = 0; i < blocks; i++) {
        cudahost_block *b = resident[order == REVERSE ? blocks - 1 - i : i];
        const size_t n = b->threads.size();
        for (size_t j = 0; j < n; j++) make_ready(&b->threads[order == REVERSE ? n - 1 - j : j]);
    }
    device_thread *first = take_ready();
    first->stack = new_stack();
    set_now(first);
    switch_stacks(&host, first->stack, false);
    cudahost_fence();
    if (hopper_tiles()) {
        fprintf(stderr, "cudahost: %s ends, and nobody has waited for %zu of its copies of tiles\n",
                fibre_symbol(fibre_running->kernel, false).c_str(), hopper_tiles());
        abort();
    }
    if (cudahost_race)
        for (cudahost_block *b : resident) cudahost_race->block_ends(b);
    resident.clear();
}

static void read_order()
{
    const char *name = getenv("MAR_CUDAHOST_ORDER"), *seed = getenv("MAR_CUDAHOST_SEED");
    order = FORWARD;
    if (name && strcmp(name, "reverse") == 0) order = REVERSE;
    if (name && strcmp(name, "shuffled") == 0) order = SHUFFLED;
    if (random_state == 0) random_state = 1 + (seed ? strtoull(seed, nullptr, 10) : 0);
#if CUDAHOST_ASAN
    static thread_local void *bottom; /* cached: the query takes longer than most launches */
    static thread_local size_t bytes;
    if (!bottom) {
        pthread_attr_t attributes;
        pthread_getattr_np(pthread_self(), &attributes);
        pthread_attr_getstack(&attributes, &bottom, &bytes);
        pthread_attr_destroy(&attributes);
    }
    host.bottom = bottom, host.bytes = bytes;
#endif
}

void fibre_run(const device_launch *l)
{
    const size_t blocks = (size_t)l->grid.x * l->grid.y * l->grid.z;
    const dim3 in_grid(l->grid.x / l->cluster.x, l->grid.y / l->cluster.y, l->grid.z / l->cluster.z);
    const size_t per_cluster = (size_t)l->cluster.x * l->cluster.y * l->cluster.z;
    const size_t clusters = blocks / per_cluster, at_once = l->together ? clusters : 1;
    read_order();
    fibre_running = l;
    blockDim = l->block;
    gridDim = l->grid;

    std::vector<cudahost_block *> pool;
    std::vector<device_cluster> cluster(at_once);
    for (size_t i = 0; i < at_once * per_cluster; i++) pool.push_back(block_create(l));
    std::vector<size_t> sequence(clusters);
    for (size_t i = 0; i < clusters; i++) sequence[i] = order == REVERSE ? clusters - 1 - i : i;
    if (order == SHUFFLED)
        for (size_t i = clusters; i > 1; i--) std::swap(sequence[i - 1], sequence[random_below((uint32_t)i)]);

    for (size_t done = 0; done < clusters; done += at_once) {
        for (size_t c = 0; c < at_once; c++) {
            const uint3 corner = unravel(sequence[done + c], in_grid);
            cluster[c].blocks.clear();
            for (size_t rank = 0; rank < per_cluster; rank++) {
                const uint3 in = unravel(rank, l->cluster);
                const size_t x = corner.x * l->cluster.x + in.x, y = corner.y * l->cluster.y + in.y,
                             z = corner.z * l->cluster.z + in.z;
                cudahost_block *b = pool[c * per_cluster + rank];
                b->cluster = per_cluster > 1 ? &cluster[c] : nullptr;
                b->rank = (unsigned)rank;
                cluster[c].blocks.push_back(b);
                block_begin(l, b, x + l->grid.x * (y + l->grid.y * z));
            }
            cluster[c].barrier = fibre_barrier();
            cluster[c].barrier.expected = (unsigned)(per_cluster * l->block.x * l->block.y * l->block.z);
        }
        run_resident();
    }
    for (cudahost_block *b : pool) block_free(b);
    if (cudahost_race) cudahost_race->launch_ends();
    fibre_running = nullptr;
}
