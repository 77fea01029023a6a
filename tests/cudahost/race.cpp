/* The check for races. The .cu files are compiled with -fsanitize=thread, and the functions here replace the library's
 * functions called at each access. An error is reported once per pair of code places, and fails the launch at its end.
 * Errors are:
 *   - two unordered accesses of different threads to one byte, at least one of them a write;
 *   - reads of uninitialized shared memory;
 *   - accesses to shared memory between a cp.async to it and the wait for that copy;
 *   - accesses of a kernel to memory outside the device's;
 *   - accesses of a kernel that began early to what the launches before it may still access, before it waits for them.
 * __syncthreads orders a block's threads, bar.sync those of a team, __syncwarp those of a warp, and a cluster's barrier
 * those of its blocks. What a thread knows of others it passes on by each of these, and by atomics. What a team's
 * thread tells other blocks counts for all threads of its block. Shuffles and votes order no memory. Atomics and
 * volatile accesses to one address order any two threads. Accesses before the write to that address precede the
 * reader's accesses behind its next __threadfence, as in a barrier of the grid. Without one they only precede its
 * writes of what they read: words (kernels/cuda/ptx.h) order no reads of anything else. That the writer has a fence is
 * not checked, and a cluster's barrier, also cluster_meet, counts as one of its threads. An arrival at a barrier of
 * shared memory counts for all threads of its block, and a tile's copy precedes each wait at its barrier. */
#include "fibres.h"
#include "runtime.h"

#include <algorithm>
#include <map>
#include <set>
#include <stdarg.h>
#include <sys/mman.h>

/* The time of an access. A block's epoch is unique among blocks, and grows at each of its barriers, also those of a
 * team. The clock counts the thread's __syncwarp calls. Zero: never. */
struct moment {
    uint32_t epoch;
    uint32_t atomic : 1, thread : 10, clock : 21;
};
struct access {
    moment when;
    uint32_t code; /* relative to the code of this program */
};
/* Accesses to one byte of shared memory, or to two of global memory: the last write, and reads by two threads. With
 * more readers, a write is checked against these two. */
struct cell {
    access write, read, other_read;
};

/* Knowledge of one block of the launch, held by a thread or block. It covers the block's epochs below `all`, and epoch
 * `own` of its thread `thread`. */
struct knowledge {
    uint32_t all, own, thread;
};
typedef std::vector<knowledge> known;
/* What orders all accesses of its holder, and what it has read of others without a fence since: only its writes. */
enum { ORDERED, HEARD, KINDS };

struct warp_clocks {
    uint32_t clock[32];    /* of each lane */
    uint32_t whole[32];    /* time of the whole warp's last meeting */
    uint32_t part[32][32]; /* a lane's knowledge of another, from __syncwarp of some lanes */
};

struct block_race {
    size_t number; /* in the grid */
    uint32_t begin, epoch;
    uint32_t synced;             /* time of the last barrier of all threads */
    std::vector<uint32_t> teams; /* [warps][warps] a warp knows another's epochs below it; empty without teams */
    std::vector<warp_clocks> warps;
    cell *shared;                      /* [shared bytes] */
    std::vector<unsigned char> copied; /* [shared bytes] 1: a cp.async is under way; empty before the first one */
    known of_blocks[KINDS];
    std::map<unsigned, known> of_thread[KINDS]; /* additional knowledge of single threads */
};

static uint32_t epoch = 1;
static uint32_t launch_epoch = 1;             /* first epoch of the running launch */
static uint32_t ended_epoch = 1;              /* launches before this epoch had ended when the running one began */
static std::vector<block_race *> epoch_block; /* owner of each epoch, from launch_epoch on */
static std::map<uintptr_t, known> released;   /* knowledge gained by a read of an address */
static std::map<uintptr_t, cell *> global;    /* cells of each allocation */
static std::vector<block_race *> block_pool;  /* the blocks of this launch */
static std::vector<cell *> free_cells;        /* cells for shared memory; later launches use them again */
static size_t free_bytes;                     /* shared memory that each is for */
static std::set<std::pair<uint32_t, uint32_t>> reported;
static const size_t most_blocks = 4096; /* most blocks of a launch whose atomics make order */

static const uintptr_t code_base = (uintptr_t)&cudahost_sync_block - 0x80000000u;

static cell *map_cells(size_t n)
{
    void *p =
        mmap(nullptr, n * sizeof(cell) + 1, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED) {
        fprintf(stderr, "cudahost: no memory to check %zu bytes for races\n", n);
        abort();
    }
    return (cell *)p;
}

static device_thread *current()
{
    return static_cast<device_thread *>(cudahost_now);
}
static block_race *race_of(const cudahost_block *b)
{
    return (block_race *)b->race;
}

static uint32_t next_epoch(block_race *b)
{
    epoch_block.push_back(b);
    return b->epoch = epoch++;
}

/* --- order ------------------------------------------------------------------------------------------------------- */

static void join(known *into, const known &from)
{
    if (into->size() < from.size()) into->resize(from.size());
    for (size_t i = 0; i < from.size(); i++) {
        if (from[i].all > (*into)[i].all) (*into)[i].all = from[i].all;
        if (from[i].own > (*into)[i].own) (*into)[i].own = from[i].own, (*into)[i].thread = from[i].thread;
    }
}

static bool knows(const known &k, size_t block, const moment &m)
{
    return block < k.size() && (m.epoch < k[block].all || (m.epoch == k[block].own && m.thread == k[block].thread));
}

/* Returns whether the access at m precedes the thread's current one, by its knowledge of the first `kinds` kinds. */
static bool is_before(const moment &m, const device_thread *t, int kinds)
{
    if (m.epoch < launch_epoch) return t->waited || m.epoch < ended_epoch;
    const block_race *mine = race_of(t->block), *other = epoch_block[m.epoch - launch_epoch];
    if (other == mine && m.epoch >= mine->begin) {
        if (m.epoch < mine->synced || m.thread == t->number) return true;
        const unsigned lane = m.thread % 32, warp = t->number / 32;
        const warp_clocks *w = &mine->warps[warp];
        if (!mine->teams.empty() && m.epoch < mine->teams[warp * mine->warps.size() + m.thread / 32]) return true;
        if (m.thread / 32 == warp && std::max(w->whole[lane], w->part[t->number % 32][lane]) > m.clock) return true;
    }
    for (int kind = 0; kind < kinds; kind++) {
        if (knows(mine->of_blocks[kind], other->number, m)) return true;
        const auto own = mine->of_thread[kind].find(t->number);
        if (own != mine->of_thread[kind].end() && knows(own->second, other->number, m)) return true;
    }
    return false;
}

static moment this_moment(const device_thread *t, bool atomic)
{
    const block_race *b = race_of(t->block);
    return {b->epoch, atomic, t->number & 1023, b->warps[t->number / 32].clock[t->number % 32] & 0x1fffff};
}

/* Orders an atomic or volatile access. The thread hears the knowledge stored at the address. A write adds the thread's
 * own. */
static void synchronize(const device_thread *t, uintptr_t p, bool writes)
{
    const dim3 g = fibre_launch()->grid;
    const size_t n = (size_t)g.x * g.y * g.z;
    if (n > most_blocks) return;
    block_race *b = race_of(t->block);
    known &there = released[p];
    join(&b->of_thread[HEARD][t->number], there);
    if (!writes) return;
    for (int kind = 0; kind < KINDS; kind++) {
        join(&there, b->of_blocks[kind]);
        join(&there, b->of_thread[kind][t->number]);
    }
    there.resize(n);
    there[b->number].all = std::max(there[b->number].all, b->epoch);
    there[b->number].own = b->epoch, there[b->number].thread = t->number;
}

/* --- reports ----------------------------------------------------------------------------------------------------- */

static std::string place(uint32_t code)
{
    return fibre_symbol((const void *)(code_base + code - 1), true);
}

static void report(const device_thread *t, uint32_t code, uint32_t earlier, const char *format, ...)
    __attribute__((format(printf, 4, 5)));
static void report(const device_thread *t, uint32_t code, uint32_t earlier, const char *format, ...)
{
    if (fibre_holds || reported.size() >= 20 || !reported.insert({code, earlier}).second) return;
    char what[512];
    va_list list;
    va_start(list, format);
    vsnprintf(what, sizeof(what), format, list);
    va_end(list);
    fprintf(stderr, "cudahost: %s: %s\n  in %s\n", fibre_describe(t).c_str(), what, place(code).c_str());
    if (earlier) fprintf(stderr, "  and %s\n", place(earlier).c_str());
}

static void report_race(const device_thread *t, uint32_t code, bool writes, const access &a, bool wrote,
                        const char *memory, size_t offset)
{
    if (a.when.epoch < launch_epoch) {
        report(t, code, a.code, "it %s byte %zu of %s, which a launch before %s, and has not waited for it",
               writes ? "writes" : "reads", offset, memory, wrote ? "wrote" : "read");
        return;
    }
    const block_race *other = epoch_block[a.when.epoch - launch_epoch];
    const dim3 g = fibre_launch()->grid, b = fibre_launch()->block;
    const size_t n = other->number, i = a.when.thread;
    report(t, code, a.code, "race: it %s byte %zu of %s, which block (%zu,%zu,%zu), thread (%zu,%zu,%zu) %s",
           writes ? "writes" : "reads", offset, memory, n % g.x, n / g.x % g.y, n / g.x / g.y, i % b.x, i / b.x % b.y,
           i / b.x / b.y, wrote ? "wrote" : "read");
}

/* --- accesses ---------------------------------------------------------------------------------------------------- */

/* Checks and stores an access. Accesses before epoch `since` belong to another block's shared memory, so they are
 * dropped. */
static void touch(cell *c, uint32_t since, const device_thread *t, const access &now, bool writes, const char *memory,
                  size_t offset)
{
    const uint32_t code = now.code;
    const bool atomic = now.when.atomic;
    access *const all[] = {&c->write, &c->read, &c->other_read};
    for (access *a : all)
        if (a->when.epoch < since) *a = access();
    if (c->write.when.epoch && !(atomic && c->write.when.atomic) && !is_before(c->write.when, t, HEARD))
        report_race(t, code, writes, c->write, true, memory, offset);
    if (writes) {
        for (const access *a : {&c->read, &c->other_read})
            if (a->when.epoch && !is_before(a->when, t, KINDS)) report_race(t, code, true, *a, false, memory, offset);
        c->write = now;
        return;
    }
    /* A read known to this thread need not be kept: accesses ordered after this read are ordered after that one. */
    if (!c->read.when.epoch || is_before(c->read.when, t, KINDS))
        c->read = now;
    else if (!c->other_read.when.epoch || is_before(c->other_read.when, t, KINDS))
        c->other_read = now;
    else if (c->read.when.thread / 32 == c->other_read.when.thread / 32)
        c->other_read = now; /* preferably readers of two warps */
}

/* Does the same for `n` cells from `first` on, of `bytes` bytes each. Adjacent equal cells stay equal. */
static void touch_cells(cell *cells, size_t first, size_t n, size_t bytes, uint32_t since, const device_thread *t,
                        const access &now, bool writes, const char *memory)
{
    cell before, after;
    for (size_t i = first; i < first + n; i++) {
        if (i > first && memcmp(&cells[i], &before, sizeof(cell)) == 0) {
            cells[i] = after;
            continue;
        }
        before = cells[i];
        touch(&cells[i], since, t, now, writes, memory, bytes * i);
        after = cells[i];
    }
}

static void touch_shared(const device_thread *t, const cudahost_block *b, uintptr_t p, size_t n, uint32_t code,
                         bool writes, bool atomic)
{
    const size_t offset = p - (uintptr_t)b->shared, bytes = fibre_launch()->shared_bytes;
    const uint32_t since = race_of(b->cluster ? b->cluster->blocks[0] : b)->begin;
    if (offset + n > bytes) fibre_fail(t, "touches byte %zu of %zu bytes of shared memory", offset + n - 1, bytes);
    cell *cells = race_of(b)->shared;
    const std::vector<unsigned char> &copied = race_of(b)->copied;
    for (size_t i = offset; i < offset + n && !copied.empty(); i++)
        if (copied[i]) {
            report(t, code, 0, "%s byte %zu of shared memory, which a cp.async that was not waited for copies",
                   writes ? "writes" : "reads", i);
            return;
        }
    if (!writes || atomic)
        for (size_t i = offset; i < offset + n; i++)
            if (cells[i].write.when.epoch < since) {
                report(t, code, 0, "reads byte %zu of shared memory, which nobody has written", i);
                return;
            }
    touch_cells(cells, offset, n, 1, since, t, {this_moment(t, atomic), code}, writes, "shared memory");
}

/* The last accessed allocation, and its cells. Addresses are not reused. */
static uintptr_t last_first;
static cell *last_cells;
static size_t early_bytes;
size_t cudahost_early_bytes()
{
    return early_bytes;
}

static void touch_global(const device_thread *t, uintptr_t first, size_t bytes, uintptr_t p, size_t n, uint32_t code,
                         bool writes, bool atomic)
{
    if (p + n > first + bytes)
        fibre_fail(t, "touches %zu bytes behind an allocation of %zu", p + n - first - bytes, bytes);
    if (!t->waited && !writes) early_bytes += n;
    if (n < 2) return;
    if (first != last_first) {
        cell *&cells = global[first];
        if (!cells) cells = map_cells(bytes / 2 + 1);
        last_cells = cells, last_first = first;
    }
    const size_t i = (p - first) / 2;
    touch_cells(last_cells, i, (p - first + n - 1) / 2 - i + 1, 2, ended_epoch, t, {this_moment(t, atomic), code},
                writes, "an allocation");
}

extern "C" const char __executable_start, _end;

static bool within(uintptr_t p, const void *first, size_t bytes)
{
    return p - (uintptr_t)first < bytes;
}

static void note(const void *address, size_t n, bool writes, bool atomic, bool is_volatile, const void *return_address)
{
    const device_thread *t = current();
    if (!t || n == 0) return;
    const uintptr_t p = (uintptr_t)address;
    if (p - fibre_bottom < fibre_bytes) return;
    const uint32_t code = (uint32_t)((uintptr_t)return_address - code_base);
    static uintptr_t first; /* the last accessed allocation; addresses are not reused */
    static size_t bytes;
    if (p - first < bytes && !is_volatile && !atomic) return touch_global(t, first, bytes, p, n, code, writes, false);
    const cudahost_block *b = t->block;
    const device_launch *l = fibre_launch();
    if (!b->cluster && !is_volatile && within(p, b->shared, l->shared_bytes))
        return touch_shared(t, b, p, n, code, writes, atomic);
    if (p >= (uintptr_t)&__executable_start && p < (uintptr_t)&_end) return;
    if (address == &cudahost_now) return;
    if (b->cluster)
        for (const cudahost_block *other : b->cluster->blocks)
            if (within(p, other->shared, l->shared_bytes)) b = other;
    if (within(p, b->shared, l->shared_bytes)) {
        if (!is_volatile)
            touch_shared(t, b, p, n, code, writes, atomic);
        else if (writes)
            for (size_t i = 0; i < n; i++)
                race_of(b)->shared[p - (uintptr_t)b->shared + i].write = {this_moment(t, true), code};
        return;
    }
    if (within(p, t->block->threads.data(), t->block->threads.size() * sizeof(device_thread)) ||
        within(p, t->block->warps.data(), t->block->warps.size() * sizeof(device_warp)) ||
        within(p, l->call, l->call->bytes))
        return;
    if (within(p, (void *)first, bytes) || runtime_device_range(address, &first, &bytes)) {
        if (is_volatile || atomic) synchronize(t, p, writes);
        if (!is_volatile) touch_global(t, first, bytes, p, n, code, writes, atomic);
        return;
    }
    if (!runtime_is_pinned(address, n)) report(t, code, 0, "touches memory that is not the device's, at %p", address);
}

/* --- hooks of the launch ----------------------------------------------------------------------------------------- */

static void block_begins(cudahost_block *b)
{
    const device_launch *l = fibre_launch();
    if (!l->early) ended_epoch = launch_epoch;
    block_race *r = new block_race();
    r->number = b->index.x + l->grid.x * (b->index.y + (size_t)l->grid.y * b->index.z);
    b->race = r;
    r->begin = r->synced = next_epoch(r);
    r->warps.resize(b->warps.size());
    if (l->shared_bytes > free_bytes) { /* all are free: blocks of one launch have one size */
        for (cell *c : free_cells) munmap(c, free_bytes * sizeof(cell) + 1);
        free_cells.clear();
        free_bytes = l->shared_bytes;
    }
    if (free_cells.empty()) free_cells.push_back(map_cells(free_bytes));
    r->shared = free_cells.back();
    free_cells.pop_back();
    block_pool.push_back(r);
}
static void block_ends(cudahost_block *b)
{
    block_race *r = race_of(b); /* kept: its epochs and its number may still be read */
    free_cells.push_back(r->shared);
    r->warps = {};
    r->copied = {};
    for (int kind = 0; kind < KINDS; kind++) r->of_blocks[kind] = {}, r->of_thread[kind] = {};
}
static void block_syncs(cudahost_block *b)
{
    block_race *r = race_of(b);
    for (int kind = 0; kind < KINDS; kind++) {
        for (const auto &t : r->of_thread[kind]) join(&r->of_blocks[kind], t.second);
        r->of_thread[kind].clear();
    }
    r->teams.clear();
    r->synced = next_epoch(r);
}
static void cluster_syncs(device_cluster *c)
{
    known all; /* what the blocks knew, and their own epochs before these */
    for (cudahost_block *b : c->blocks) {
        block_syncs(b);
        for (const known &k : race_of(b)->of_blocks) join(&all, k);
    }
    for (const cudahost_block *b : c->blocks) {
        const size_t number = race_of(b)->number;
        if (all.size() <= number) all.resize(number + 1);
        all[number].all = race_of(c->blocks[0])->epoch;
    }
    for (cudahost_block *b : c->blocks) race_of(b)->of_blocks[ORDERED] = all, race_of(b)->of_blocks[HEARD] = {};
}
/* Gives these lanes of these warps what each of them knows of other blocks. */
static void share(block_race *r, unsigned warps, unsigned lanes)
{
    for (std::map<unsigned, known> &of_thread : r->of_thread) {
        known all;
        for (const auto &k : of_thread)
            if (warps >> k.first / 32 & 1 && lanes >> k.first % 32 & 1) join(&all, k.second);
        for (unsigned i = 0; i < 32 * r->warps.size() && !all.empty(); i++)
            if (warps >> i / 32 & 1 && lanes >> i % 32 & 1) join(&of_thread[i], all);
    }
}
static void team_syncs(cudahost_block *b, unsigned warps)
{
    block_race *r = race_of(b);
    const size_t n = r->warps.size();
    const uint32_t now = next_epoch(r);
    r->teams.resize(n * n);
    for (size_t other = 0; other < n; other++) { /* each warp learns what one of them knows */
        uint32_t most = warps >> other & 1 ? now : 0;
        for (size_t w = 0; w < n; w++)
            if (warps >> w & 1) most = std::max(most, r->teams[w * n + other]);
        for (size_t w = 0; w < n; w++)
            if (warps >> w & 1) r->teams[w * n + other] = most;
    }
    share(r, warps, ~0u);
}
static void warp_syncs(cudahost_block *b, unsigned warp, unsigned mask)
{
    block_race *r = race_of(b);
    warp_clocks *w = &r->warps[warp];
    for (unsigned i = 0; i < 32; i++)
        if (mask >> i & 1) w->clock[i]++;
    if (mask == b->warps[warp].exists) {
        memcpy(w->whole, w->clock, sizeof(w->whole));
    } else {
        uint32_t most[32] = {};
        for (unsigned i = 0; i < 32; i++) {
            if (!(mask >> i & 1)) continue;
            for (unsigned j = 0; j < 32; j++) most[j] = std::max(most[j], std::max(w->whole[j], w->part[i][j]));
            most[i] = w->clock[i];
        }
        for (unsigned i = 0; i < 32; i++)
            if (mask >> i & 1) memcpy(w->part[i], most, sizeof(most));
    }
    share(r, 1u << warp, mask);
}
static void thread_fences()
{
    block_race *b = race_of(current()->block);
    const auto heard = b->of_thread[HEARD].find(current()->number);
    if (heard == b->of_thread[HEARD].end()) return;
    join(&b->of_thread[ORDERED][heard->first], heard->second);
    b->of_thread[HEARD].erase(heard);
}
static void launch_ends()
{
    const bool failed = !reported.empty();
    for (block_race *r : block_pool) delete r;
    block_pool.clear();
    epoch_block.clear();
    released.clear();
    launch_epoch = epoch;
    if (failed) abort();
}
static void atomic_access(void *p, size_t bytes, void *code)
{
    note(p, bytes, true, true, false, code);
}
/* The copy may read and write at any time between these two. */
static void copy_begins(const device_copy *c)
{
    const cudahost_block *b = current()->block;
    std::vector<unsigned char> &copied = race_of(b)->copied;
    note(c->from, 16, false, false, false, c->code);
    note(c->to, 16, true, false, false, c->code);
    copied.resize(fibre_launch()->shared_bytes);
    memset(copied.data() + ((unsigned char *)c->to - b->shared), 1, 16);
}
static void copy_ends(const device_copy *c)
{
    const cudahost_block *b = current()->block;
    memset(race_of(b)->copied.data() + ((unsigned char *)c->to - b->shared), 0, 16);
    note(c->from, 16, false, false, false, c->code);
    note(c->to, 16, true, false, false, c->code);
}
static void memory_ends(void *p)
{
    uintptr_t first;
    size_t bytes;
    const auto cells = global.find((uintptr_t)p);
    if (cells == global.end() || !runtime_device_range(p, &first, &bytes)) return;
    munmap(cells->second, (bytes / 2 + 1) * sizeof(cell) + 1);
    global.erase(cells);
    last_first = 0;
}

/* Barriers of shared memory order as a release and an acquire. An arrival tells what its whole block has done. */
static void barrier(void *p, int arrives)
{
    const device_thread *t = current();
    if (arrives) next_epoch(race_of(t->block));
    synchronize(t, (uintptr_t)p, arrives);
    if (!arrives) thread_fences();
}
static void tile_reads(const void *from, size_t bytes)
{
    note(from, bytes, false, false, false, __builtin_return_address(0));
}
/* At its start: who reads or writes it before the barrier's wait does so behind the write, in no order. */
static void tile_writes(void *to, size_t bytes)
{
    note(to, bytes, true, false, false, __builtin_return_address(0));
}

static const race_hooks hooks = {block_begins, block_ends,    launch_ends,   block_syncs, cluster_syncs,
                                 team_syncs,   warp_syncs,    atomic_access, copy_begins, copy_ends,
                                 memory_ends,  thread_fences, barrier,       tile_reads,  tile_writes};
__attribute__((constructor)) static void install()
{
    cudahost_race = &hooks;
}

/* --- entry points of the compiler -------------------------------------------------------------------------------- */

#define HERE __builtin_return_address(0)
extern "C" {
#define ACCESSES(n)                                                                                                    \
    void __tsan_read##n(void *p)                                                                                       \
    {                                                                                                                  \
        note(p, n, false, false, false, HERE);                                                                         \
    }                                                                                                                  \
    void __tsan_write##n(void *p)                                                                                      \
    {                                                                                                                  \
        note(p, n, true, false, false, HERE);                                                                          \
    }                                                                                                                  \
    void __tsan_unaligned_read##n(void *p)                                                                             \
    {                                                                                                                  \
        note(p, n, false, false, false, HERE);                                                                         \
    }                                                                                                                  \
    void __tsan_unaligned_write##n(void *p)                                                                            \
    {                                                                                                                  \
        note(p, n, true, false, false, HERE);                                                                          \
    }                                                                                                                  \
    void __tsan_volatile_read##n(void *p)                                                                              \
    {                                                                                                                  \
        note(p, n, false, false, true, HERE);                                                                          \
    }                                                                                                                  \
    void __tsan_volatile_write##n(void *p)                                                                             \
    {                                                                                                                  \
        note(p, n, true, false, true, HERE);                                                                           \
    }
ACCESSES(1)
ACCESSES(2)
ACCESSES(4)
ACCESSES(8)
ACCESSES(16)
void __tsan_read_range(void *p, size_t n)
{
    note(p, n, false, false, false, HERE);
}
void __tsan_write_range(void *p, size_t n)
{
    note(p, n, true, false, false, HERE);
}
void __tsan_init() {}
void __tsan_func_entry(void *) {}
void __tsan_func_exit() {}
void __tsan_vptr_update(void *, void *) {}
void __tsan_vptr_read(void *) {}
/* For static variables and atomics of host code. */
#define ATOMICS(bits)                                                                                                  \
    uint##bits##_t __tsan_atomic##bits##_load(const volatile uint##bits##_t *p, int)                                   \
    {                                                                                                                  \
        return __atomic_load_n(p, __ATOMIC_SEQ_CST);                                                                   \
    }                                                                                                                  \
    void __tsan_atomic##bits##_store(volatile uint##bits##_t *p, uint##bits##_t v, int)                                \
    {                                                                                                                  \
        __atomic_store_n(p, v, __ATOMIC_SEQ_CST);                                                                      \
    }                                                                                                                  \
    uint##bits##_t __tsan_atomic##bits##_fetch_add(volatile uint##bits##_t *p, uint##bits##_t v, int)                  \
    {                                                                                                                  \
        return __atomic_fetch_add(p, v, __ATOMIC_SEQ_CST);                                                             \
    }                                                                                                                  \
    uint##bits##_t __tsan_atomic##bits##_exchange(volatile uint##bits##_t *p, uint##bits##_t v, int)                   \
    {                                                                                                                  \
        return __atomic_exchange_n(p, v, __ATOMIC_SEQ_CST);                                                            \
    }
ATOMICS(8)
ATOMICS(32)
ATOMICS(64)
}
