#include "tools/eval/record.h"

#include "tools/cli/command.h"
#include "tools/cli/file_sum.h"
#include "tools/generate/stats.h"

#include <stdlib.h>
#include <string.h>

/* --- how images are divided ----------------------------------------------------------------------------- */

int eval_shard_count(const eval_layout *l)
{
    return (int)((l->images + l->shard_images - 1) / l->shard_images);
}

long eval_shard_first(const eval_layout *l, int shard)
{
    return (long)shard * l->shard_images;
}

int eval_shard_size(const eval_layout *l, int shard)
{
    const long rest = l->images - eval_shard_first(l, shard);
    return rest < l->shard_images ? (int)rest : l->shard_images;
}

int eval_batch_size(const eval_layout *l, long first)
{
    const int shard = (int)(first / l->shard_images);
    const long rest = eval_shard_first(l, shard) + eval_shard_size(l, shard) - first;
    return rest < l->batch ? (int)rest : l->batch;
}

/* Sample k of S is image k * images / S, rounded down. */
int eval_is_sample(const eval_layout *l, long i)
{
    const long long k = ((long long)i * l->samples + l->images - 1) / l->images;
    return k < l->samples && (long)(k * l->images / l->samples) == i;
}

size_t eval_pixel_bytes(const eval_layout *l)
{
    return (size_t)l->width * (size_t)l->height * 3;
}

int eval_is_larger_share(uint32_t replaced, uint32_t verified, uint32_t other_replaced, uint32_t other_verified)
{
    return (uint64_t)replaced * other_verified > (uint64_t)other_replaced * verified;
}

/* --- figures -------------------------------------------------------------------------------------------- */

/* The bits that any of n counts has: below a power of 2 if all of them are. */
static uint64_t bits_of(const int64_t *counts, size_t n)
{
    uint64_t bits = 0;
    for (size_t i = 0; i < n; i++) bits |= (uint64_t)counts[i];
    return bits;
}

int eval_figures_check(const eval_figures *f, int n)
{
    /* 2^30 or more an image; of a million images the sums fit in a double, and in result.json. */
    uint64_t limit = (uint64_t)1 << 30;
    while (limit < (uint64_t)n << 30) limit *= 2;
    const mar_stats *s = &f->stats;
    const int64_t counts[] = {s->tokens,   s->proposals, s->proposals_accepted, s->drafted,
                              s->accepted, s->rounds,    s->round_steps,        s->residual_tries};
    const double seconds[] = {f->generate_s, f->features_s, f->write_s};
    uint64_t bits = bits_of(counts, sizeof counts / sizeof *counts);
    for (size_t i = 0; i < STATS_LENGTHS; i++) bits |= (uint64_t)s->accepted_lengths[i];
    bits |= bits_of(f->accepted, EVAL_CURVE_MAX) | bits_of(f->replaced, EVAL_CURVE_MAX) |
            bits_of(f->tokens, EVAL_CURVE_MAX) | bits_of(f->accepted_late, EVAL_CURVE_MAX) |
            bits_of(f->replaced_late, EVAL_CURVE_MAX);
    int can_be = bits < limit && f->recognised >= 0 && f->recognised <= n;
    for (size_t i = 0; i < sizeof seconds / sizeof *seconds; i++) can_be &= seconds[i] >= 0 && seconds[i] <= 1e9 * n;
    return can_be && (s->arena_bytes | s->recorded_bytes) >> 53 == 0;
}

void eval_figures_add(eval_figures *sum, const eval_figures *f)
{
    stats_add(&sum->stats, &f->stats);
    sum->generate_s += f->generate_s;
    sum->features_s += f->features_s;
    sum->write_s += f->write_s;
    sum->recognised += f->recognised;
    for (int i = 0; i < EVAL_CURVE_MAX; i++) {
        sum->accepted[i] += f->accepted[i];
        sum->replaced[i] += f->replaced[i];
        sum->tokens[i] += f->tokens[i];
        sum->accepted_late[i] += f->accepted_late[i];
        sum->replaced_late[i] += f->replaced_late[i];
    }
}

/* --- records -------------------------------------------------------------------------------------------- */

typedef struct {
    char magic[8];
    int64_t first, n, kept; /* kept: images whose pixels are there */
    uint64_t size;          /* of the record */
    uint64_t sum;           /* of the record, with 0 in this field */
} head;

_Static_assert(sizeof(head) == EVAL_RECORD_HEAD, "a head has another size");

static const char magic[8] = "marbatch";

/* Bytes of the parts in front of the pixels. */
static size_t fixed_size(const eval_layout *l, int n)
{
    const size_t numbers = (size_t)l->features + (size_t)l->classes + (size_t)l->spatial;
    return sizeof(head) + sizeof(eval_figures) + (size_t)n * (numbers * sizeof(float) + 5 * sizeof(uint32_t));
}

int eval_record_create(const eval_layout *l, eval_record *out)
{
    const size_t most = fixed_size(l, l->batch) + (size_t)l->batch * eval_pixel_bytes(l);
    *out = (eval_record){.bytes = malloc(most), .capacity = most};
    return out->bytes
               ? 0
               : tool_error("out of memory for what is kept of %d images; a smaller --batch needs less", l->batch);
}

void eval_record_free(eval_record *r)
{
    free(r->bytes);
    *r = (eval_record){0};
}

static void point(const eval_layout *l, long first, eval_record *r)
{
    const size_t n = (size_t)eval_batch_size(l, first);
    uint8_t *at = r->bytes + sizeof(head);
    r->first = first;
    r->n = (int)n;
    r->figures = (eval_figures *)at;
    r->features = (float *)(at + sizeof(eval_figures));
    r->logits = r->features + n * (size_t)l->features;
    r->spatial = r->logits + n * (size_t)l->classes;
    r->crc = (uint32_t *)(r->spatial + n * (size_t)l->spatial);
    r->labels = (int32_t *)(r->crc + n);
    r->verified = (uint32_t *)(r->labels + n);
    r->replaced = r->verified + n;
    r->kept = r->replaced + n;
    r->pixels = (uint8_t *)(r->kept + n);
}

void eval_record_begin(const eval_layout *l, long first, eval_record *r)
{
    memset(r->bytes, 0, fixed_size(l, eval_batch_size(l, first)));
    point(l, first, r);
}

/* Marks the images of the batch with the largest share of drafts replaced; of equals the first. */
static void mark_rejected(const eval_layout *l, eval_record *r)
{
    for (int k = 0; k < l->rejected_images; k++) {
        int most = -1;
        for (int i = 0; i < r->n; i++)
            if (r->kept[i] < 2 && r->replaced[i] > 0 &&
                (most < 0 ||
                 eval_is_larger_share(r->replaced[i], r->verified[i], r->replaced[most], r->verified[most])))
                most = i;
        if (most < 0) break;
        r->kept[most] = 2; /* marked now */
    }
    for (int i = 0; i < r->n; i++) r->kept[i] = r->kept[i] > 0;
}

void eval_record_finish(const eval_layout *l, const uint8_t *rgb, eval_record *r)
{
    const size_t bytes = eval_pixel_bytes(l);
    head h = {.first = r->first, .n = r->n};
    memcpy(h.magic, magic, sizeof h.magic);
    for (int i = 0; i < r->n; i++) r->kept[i] = (uint32_t)eval_is_sample(l, r->first + i);
    mark_rejected(l, r);
    for (int i = 0; i < r->n; i++)
        if (r->kept[i]) memcpy(r->pixels + (size_t)h.kept++ * bytes, rgb + (size_t)i * bytes, bytes);
    h.size = r->size = fixed_size(l, r->n) + (size_t)h.kept * bytes;
    memcpy(r->bytes, &h, sizeof h);
    h.sum = memory_sum(r->bytes, r->size);
    memcpy(r->bytes, &h, sizeof h);
}

size_t eval_record_size(const eval_layout *l, long first, const void *bytes)
{
    head h;
    const int n = eval_batch_size(l, first);
    memcpy(&h, bytes, sizeof h);
    if (memcmp(h.magic, magic, sizeof h.magic) != 0 || h.first != first || h.n != n || h.kept < 0 || h.kept > n)
        return 0;
    return h.size == fixed_size(l, n) + (size_t)h.kept * eval_pixel_bytes(l) ? h.size : 0;
}

int eval_record_check(const eval_layout *l, long first, eval_record *r)
{
    head h;
    memcpy(&h, r->bytes, sizeof h);
    const uint64_t sum = h.sum;
    h.sum = 0;
    memcpy(r->bytes, &h, sizeof h);
    const int same = memory_sum(r->bytes, h.size) == sum;
    h.sum = sum;
    memcpy(r->bytes, &h, sizeof h);
    if (!same) return 0;
    point(l, first, r);
    r->size = h.size;
    int64_t kept = 0;
    int rows = 1; /* whether those that a shard takes over can be */
    for (int i = 0; i < r->n; i++) {
        kept += r->kept[i] != 0;
        rows &= r->replaced[i] <= r->verified[i] && (r->kept[i] || !eval_is_sample(l, first + i));
    }
    return kept == h.kept && rows && eval_figures_check(r->figures, r->n);
}
