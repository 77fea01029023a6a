/* The instructions of kernels/cuda/hopper.h: barriers of shared memory that count bytes, copies of tiles, and
 * products that compute at their wait. */
#include "fibres.h"
#include "runtime.h"

#include <algorithm>

static device_thread *current()
{
    return static_cast<device_thread *>(cudahost_now);
}

/* --- barriers ---------------------------------------------------------------------------------------------------- */

/* The 64 bits of a barrier. `created` is no number that fresh memory has. */
struct tile_barrier {
    uint64_t created : 8, arrivals : 12, left : 12, phase : 1, unused : 7;
    int64_t bytes : 24; /* expected and not come; negative: come before they are expected */
};
static_assert(sizeof(tile_barrier) == sizeof(uint64_t), "a barrier has 64 bits");
enum { CREATED = 0x5a, MOST_ARRIVALS = (1 << 12) - 1 };

static tile_barrier *barrier_at(uint64_t *barrier)
{
    tile_barrier *b = (tile_barrier *)barrier;
    if (b->created != CREATED) fibre_fail(current(), "uses a barrier of shared memory that nobody has created");
    return b;
}
static void change(tile_barrier *b, unsigned arrivals, int bytes)
{
    if (b->left < arrivals) fibre_fail(current(), "arrives at a barrier of shared memory for which all have");
    b->left -= arrivals, b->bytes += bytes;
    if (b->left || b->bytes) return;
    b->left = b->arrivals, b->phase ^= 1;
}

void cudahost_barrier_create(uint64_t *barrier, unsigned arrivals)
{
    if (arrivals < 1 || arrivals > MOST_ARRIVALS) fibre_fail(current(), "creates a barrier of %u arrivals", arrivals);
    tile_barrier b = {};
    b.created = CREATED, b.arrivals = b.left = arrivals & MOST_ARRIVALS;
    memcpy(barrier, &b, sizeof b);
    current()->created = true;
}
void cudahost_barriers_created()
{
    current()->created = false;
}
void cudahost_barrier_arrive(uint64_t *barrier, unsigned bytes)
{
    if (cudahost_race) cudahost_race->barrier(barrier, 1);
    change(barrier_at(barrier), 1, (int)bytes);
}

/* --- tiles ------------------------------------------------------------------------------------------------------- */

/* What cuTensorMapEncodeTiled writes. */
struct tile_map {
    const unsigned char *from;
    uint64_t columns, rows, pitch; /* pitch: bytes */
    uint32_t box_columns, box_rows, described;
};
static_assert(sizeof(tile_map) <= sizeof(CUtensorMap), "it has room");

CUresult cuTensorMapEncodeTiled(CUtensorMap *map, CUtensorMapDataType type, cuuint32_t rank, void *address,
                                const cuuint64_t *size, const cuuint64_t *pitch, const cuuint32_t *box,
                                const cuuint32_t *step, CUtensorMapInterleave interleave, CUtensorMapSwizzle swizzle,
                                CUtensorMapL2promotion, CUtensorMapFloatOOBfill fill)
{
    const tile_map m = {(const unsigned char *)address, size[0], size[1], pitch[0], box[0], box[1], CREATED};
    /* The shim knows rows of 128 bytes of bf16. */
    if (rank != 2 || type != CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 || interleave != CU_TENSOR_MAP_INTERLEAVE_NONE ||
        swizzle != CU_TENSOR_MAP_SWIZZLE_128B || fill != CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE || step[0] != 1 ||
        step[1] != 1 || m.box_columns != 64 || m.box_rows < 1 || m.box_rows > 256 || !m.columns || !m.rows ||
        m.pitch % 16 || (uintptr_t)address % 16)
        return CUDA_ERROR_INVALID_VALUE;
    if (!runtime_on_device(address, (size_t)((m.rows - 1) * m.pitch + m.columns * 2))) return CUDA_ERROR_INVALID_VALUE;
    memset(map, 0, sizeof *map);
    memcpy(map, &m, sizeof m);
    return CUDA_SUCCESS;
}

/* A copy to one block that is under way. */
struct tile_on_the_way {
    tile_map map;
    int column, row;
    unsigned char *to;
    uint64_t *barrier;
    const cudahost_block *block;
};
static std::vector<tile_on_the_way> tiles;

static void tile_comes(size_t number)
{
    const tile_on_the_way t = tiles[number];
    tiles.erase(tiles.begin() + (long)number);
    if (t.block->barrier.exited == t.block->barrier.expected)
        fibre_fail(current(), "sees a tile come to block (%u,%u,%u), which has ended", t.block->index.x,
                   t.block->index.y, t.block->index.z);
    for (unsigned r = 0; r < t.map.box_rows; r++)
        for (unsigned c = 0; c < 64; c++) {
            const int64_t row = t.row + (int64_t)r, column = t.column + (int64_t)c;
            const bool given =
                row >= 0 && (uint64_t)row < t.map.rows && column >= 0 && (uint64_t)column < t.map.columns;
            const uintptr_t at = (uintptr_t)t.to + 128 * r + 2 * c;
            memset((void *)(at ^ (at >> 7 & 7) << 4), 0, 2);
            if (given)
                memcpy((void *)(at ^ (at >> 7 & 7) << 4), t.map.from + row * (int64_t)t.map.pitch + 2 * column, 2);
        }
    change(barrier_at(t.barrier), 0, -(int)(128 * t.map.box_rows));
}

void cudahost_tile_copy(void *shared, const CUtensorMap *map, int column, int row, uint64_t *barrier, unsigned blocks)
{
    const device_thread *me = current();
    tile_on_the_way t;
    memcpy(&t.map, map, sizeof t.map);
    if (t.map.described != CREATED) fibre_fail(me, "copies a tile of a matrix that is not described");
    if ((uintptr_t)shared % 128) fibre_fail(me, "copies a tile to a misaligned address");
    const size_t offset = (size_t)((unsigned char *)shared - me->block->shared), bytes = 128 * t.map.box_rows;
    if (offset > fibre_running->shared_bytes || fibre_running->shared_bytes - offset < bytes)
        fibre_fail(me, "copies a tile to an address outside of shared memory");
    if (!blocks || blocks >> cudahost_cluster_blocks()) fibre_fail(me, "copies a tile to blocks 0x%x", blocks);
    if (!(blocks & (blocks - 1)) && blocks != 1u << me->block->rank)
        fibre_fail(me, "copies a tile to another block alone");
    for (unsigned r = 0; r < t.map.box_rows && cudahost_race; r++) {
        const int64_t from = row + (int64_t)r, columns = std::min((int64_t)t.map.columns - column, (int64_t)64);
        if (from >= 0 && (uint64_t)from < t.map.rows && columns > 0)
            cudahost_race->tile_reads(t.map.from + from * (int64_t)t.map.pitch + 2 * column, 2 * (size_t)columns);
    }
    for (unsigned rank = 0; blocks >> rank; rank++) {
        if (!(blocks >> rank & 1)) continue;
        t.column = column, t.row = row;
        t.block = me->block->cluster ? me->block->cluster->blocks[rank] : me->block;
        t.to = (unsigned char *)cudahost_cluster_map(shared, rank, __FILE__, __LINE__);
        t.barrier = (uint64_t *)cudahost_cluster_map(barrier, rank, __FILE__, __LINE__);
        if (cudahost_race) {
            cudahost_race->tile_writes(t.to, bytes);
            cudahost_race->barrier(t.barrier, 1);
        }
        tiles.push_back(t);
        if (fibre_pick(2)) tile_comes(tiles.size() - 1); /* at once; else when somebody waits */
    }
}

void cudahost_barrier_wait(uint64_t *barrier, unsigned parity, const char *file, int line)
{
    const tile_barrier *b = barrier_at(barrier);
    while (b->phase == parity)
        if (tiles.empty())
            cudahost_yield(file, line);
        else
            tile_comes(fibre_pick(tiles.size()));
    if (cudahost_race) cudahost_race->barrier(barrier, 0);
}

size_t hopper_tiles()
{
    return tiles.size();
}

/* --- products ---------------------------------------------------------------------------------------------------- */

void cudahost_multiply_begin()
{
    current()->multiplies = device_thread::OPEN;
}
void cudahost_multiply_end()
{
    current()->multiplies = device_thread::COMMITTED;
}

static void check_tile(const void *tile)
{
    if ((uintptr_t)tile % 1024) fibre_fail(current(), "multiplies a tile that is not aligned to 1024 bytes");
}
void cudahost_multiply_later(cudahost_product kind, int n, float *d, const uint32_t *a, const void *x, const void *tile,
                             int k, int add)
{
    device_thread *me = current();
    check_tile(tile), check_tile(x);
    if (k % 16 || fibre_running->block.x % 128) fibre_fail(me, "multiplies from number %d on, with no warpgroup", k);
    if (me->multiplies != device_thread::OPEN) fibre_fail(me, "multiplies without warpgroup_begin before it");
    if (me->n_products == sizeof me->products / sizeof *me->products)
        fibre_fail(me, "starts more than %u products without a wait", me->n_products);
    me->products[me->n_products++] = {kind, (unsigned)n, d, a, {}, x, tile, (unsigned)k, add};
}

static float2 two_of(uint32_t bits)
{
    return make_float2(__uint_as_float(bits << 16), __uint_as_float(bits & 0xffff0000u));
}
/* Returns a piece of a tile, of 8 numbers. */
static const uint16_t *piece_of(const void *tile, unsigned row, unsigned piece)
{
    return (const uint16_t *)((const char *)tile + 128 * row + (piece ^ row % 8) * 16);
}
static void reads(const void *tile, unsigned first, unsigned rows, unsigned piece, unsigned pieces)
{
    for (unsigned row = first; row < first + rows && cudahost_race; row++)
        for (unsigned i = 0; i < pieces; i++) cudahost_race->tile_reads(piece_of(tile, row, piece + i), 16);
}

/* The twins of kernels/cuda/hopper.h, to the bit but for warpgroup_mma_rows. One lane's reads stand for all of the
 * warp. */
static void multiply(const device_product &p, const uint64_t *given, unsigned thread)
{
    const unsigned lane = thread % 32, t = lane % 4;
    float2 row[4][4];
    for (unsigned quad = 0; quad < 4; quad++)
        for (unsigned i = 0; i < 4; i++)
            row[quad][i] = two_of(((const device_product *)(uintptr_t)given[lane - t + quad])->a[i]);
    const bool rows = p.kind == CUDAHOST_ROWS;
    if (lane == 0) reads(p.tile, rows ? p.k : 0, rows ? 16 : p.n, rows ? 0 : p.k / 8, rows ? 8 : 2);
    if (lane == 0 && p.x) reads(p.x, thread / 32 % 4 * 16, 16, p.k / 8, 2);
    for (unsigned n = 0; n < p.n / 8; n++)
        for (unsigned j = 0; j < 2; j++)
            for (unsigned half = 0; half < 2; half++) {
                const unsigned column = 8 * n + 2 * t + j;
                const uint16_t *piece = piece_of(p.tile, rows ? 0 : column, rows ? 0 : p.k / 8 + half);
                for (unsigned quad = 0; quad < 4; quad++) {
                    uint32_t two = ((const uint32_t *)piece)[quad];
                    if (rows) {
                        const unsigned k = p.k + 8 * half + 2 * quad;
                        two = piece_of(p.tile, k, n)[column % 8] | (uint32_t)piece_of(p.tile, k + 1, n)[column % 8]
                                                                       << 16;
                    }
                    for (unsigned i = 0; i < 2; i++) {
                        const float2 x = row[quad][2 * half + i], y = two_of(two);
                        p.d[4 * n + 2 * i + j] += x.x * y.x;
                        p.d[4 * n + 2 * i + j] += x.y * y.y;
                    }
                }
            }
}

void cudahost_tiles_written()
{
    device_thread *me = current();
    if (me->unfenced) me->unfenced = false, me->block->unfenced--;
}

/* A warp's lanes wait together. */
void cudahost_multiply_now(const char *file, int line)
{
    device_thread *me = current();
    const unsigned lane = me->number % 32, first = me->number / 32 % 4 * 16 + lane / 4;
    if (me->block->unfenced)
        fibre_fail(me, "multiplies tiles, and a thread has copied to them without a fence (tiles_written)");
    if (me->multiplies == device_thread::OPEN) fibre_fail(me, "waits for products without warpgroup_end behind them");
    me->multiplies = device_thread::CLOSED;
    for (unsigned i = 0; i < me->n_products; i++) {
        device_product &p = me->products[i];
        if (p.from) memcpy(p.a, p.from, sizeof p.a);
        for (unsigned j = 0; j < 4 && p.x; j++)
            p.a[j] = ((const uint32_t *)piece_of(p.x, first + j % 2 * 8, p.k / 8 + j / 2))[lane % 4];
        if (!p.add) std::fill(p.d, p.d + p.n / 2, 0.0f);
        multiply(p, cudahost_sync_warp(CUDAHOST_SHUFFLE, ~0u, (uint64_t)(uintptr_t)&p, file, line), me->number);
        cudahost_sync_warp(CUDAHOST_SYNCWARP, ~0u, 0, file, line);
    }
    me->n_products = 0;
}
