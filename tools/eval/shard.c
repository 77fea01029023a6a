#include "tools/eval/shard.h"

#include "tools/cli/command.h"
#include "tools/cli/file.h"
#include "tools/cli/file_sum.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* --- the file ------------------------------------------------------------------------------------------- */

typedef struct {
    char magic[8];
    uint64_t settings;
    int64_t shard, samples;
    uint64_t process;
    uint64_t size; /* bytes of the file */
    uint64_t sum;  /* of what is above */
} head;

static const char magic[8] = "marshard";

static off_t aligned(size_t bytes)
{
    return (off_t)((bytes + 7) / 8 * 8);
}

static size_t moment_bytes(int dim)
{
    const size_t n = (size_t)dim;
    return (n + n * (n + 1) / 2) * sizeof(double);
}

/* Where the parts are. Sets s->n, first and the offsets; the file's end is behind the checksum at `sum`. */
static void place(eval_shard *s, const eval_layout *l, int shard, int samples)
{
    s->layout = l;
    s->first = eval_shard_first(l, shard);
    s->n = eval_shard_size(l, shard);
    s->samples = samples;
    const size_t n = (size_t)s->n, kept = (size_t)samples;
    s->figures = (off_t)sizeof(head);
    s->pooled = s->figures + aligned(sizeof(eval_figures));
    s->spatial = s->pooled + aligned(moment_bytes(l->features));
    s->crc = s->spatial + aligned(moment_bytes(l->spatial));
    s->logits = s->crc + aligned(n * sizeof(uint32_t));
    s->features = s->logits + aligned(n * (size_t)l->classes * sizeof(float));
    s->sample_table = s->features + (l->keeps_features ? aligned(n * (size_t)l->features * sizeof(float)) : 0);
    s->pixels = s->sample_table + aligned(kept * sizeof(eval_sample));
    s->sum = s->pixels + aligned(kept * eval_pixel_bytes(l));
}

static off_t size_of(const eval_shard *s)
{
    return s->sum + (off_t)sizeof(uint64_t);
}

/* --- writing -------------------------------------------------------------------------------------------- */

/* The samples of a shard: those that the layout asks for, and the images with most tokens replaced. */
typedef struct {
    eval_sample *rows; /* [capacity], those asked for first */
    uint8_t *pixels;   /* [capacity][height][width][3] */
    int asked;         /* rows of those asked for */
    int count;         /* rows in all */
    int capacity;
} sample_list;

typedef struct {
    eval_shard file;
    int fd;
    eval_figures figures;
    eval_moments pooled, spatial;
    sample_list samples;
} writer;

static int samples_asked(const eval_layout *l, long first, int n)
{
    int count = 0;
    for (int i = 0; i < n; i++) count += eval_is_sample(l, first + i);
    return count;
}

static int write_part(const writer *w, const void *data, size_t n, off_t at)
{
    if (tool_write_at(w->fd, data, n, at) == 0) return 0;
    return tool_error("%s: cannot write %zu bytes: %s", w->file.path, n, strerror(errno));
}

/* Where among the rejected ones image i of the record goes: a free place, or that of the one with the smallest share of
 * drafts replaced, of equals the last, if it has a smaller one. -1: nowhere. */
static int place_of_rejected(const eval_layout *l, sample_list *list, uint32_t replaced, uint32_t verified)
{
    if (replaced == 0) return -1;
    if (list->count - list->asked < l->rejected_images) return list->count++;
    int least = -1;
    for (int i = list->asked; i < list->count; i++)
        if (least < 0 || !eval_is_larger_share(list->rows[i].replaced, list->rows[i].verified,
                                               list->rows[least].replaced, list->rows[least].verified))
            least = i;
    return least >= 0 &&
                   eval_is_larger_share(replaced, verified, list->rows[least].replaced, list->rows[least].verified)
               ? least
               : -1;
}

static void take_samples(const eval_layout *l, sample_list *list, int *asked, const eval_record *r)
{
    const size_t bytes = eval_pixel_bytes(l);
    const uint8_t *rgb = r->pixels;
    for (int i = 0; i < r->n; i++) {
        if (!r->kept[i]) continue;
        const long image = r->first + i;
        const int at =
            eval_is_sample(l, image) ? (*asked)++ : place_of_rejected(l, list, r->replaced[i], r->verified[i]);
        if (at >= 0) {
            list->rows[at] = (eval_sample){image, r->labels[i], r->verified[i], r->replaced[i], 0};
            memcpy(list->pixels + (size_t)at * bytes, rgb, bytes);
        }
        rgb += bytes;
    }
}

/* What one record has for the file. */
static int write_rows(const writer *w, const eval_record *r)
{
    const eval_layout *l = w->file.layout;
    const size_t n = (size_t)r->n, classes = (size_t)l->classes * sizeof(float),
                 features = (size_t)l->features * sizeof(float);
    const off_t at = (off_t)(r->first - w->file.first);
    if (write_part(w, r->crc, n * sizeof *r->crc, w->file.crc + at * (off_t)sizeof *r->crc) != 0) return 1;
    if (write_part(w, r->logits, n * classes, w->file.logits + at * (off_t)classes) != 0) return 1;
    return l->keeps_features ? write_part(w, r->features, n * features, w->file.features + at * (off_t)features) : 0;
}

static int add_records(writer *w, eval_journal *j, eval_record *r)
{
    int asked = 0, status;
    eval_journal_rewind(j);
    while ((status = eval_journal_read(j, r)) == 1) {
        eval_figures_add(&w->figures, r->figures);
        eval_moments_add(&w->pooled, r->features, r->n);
        if (w->file.layout->spatial) eval_moments_add(&w->spatial, r->spatial, r->n);
        take_samples(w->file.layout, &w->samples, &asked, r);
        if (write_rows(w, r) != 0) return 1;
    }
    if (status < 0) return 1;
    if (j->next != w->file.first + w->file.n)
        return tool_error("%s: has changed: image %ld is missing, expected it whole", j->path, j->next);
    return 0;
}

static int write_moments(const writer *w, const eval_moments *m, off_t at)
{
    const size_t n = (size_t)m->dim, sums = n * sizeof(double);
    return write_part(w, m->sum, sums, at) || write_part(w, m->products, moment_bytes(m->dim) - sums, at + (off_t)sums);
}

static int write_head(const writer *w, int shard, int process)
{
    head h = {.settings = w->file.layout->settings,
              .shard = shard,
              .samples = w->file.samples,
              .process = (uint64_t)process,
              .size = (uint64_t)size_of(&w->file)};
    memcpy(h.magic, magic, sizeof h.magic);
    h.sum = memory_sum(&h, offsetof(head, sum));
    return write_part(w, &h, sizeof h, 0);
}

/* All but the rows and the checksum. */
static int write_rest(writer *w, int shard, int process)
{
    const sample_list *list = &w->samples;
    place(&w->file, w->file.layout, shard, list->count); /* whose number is known now */
    if (ftruncate(w->fd, size_of(&w->file)) != 0) return tool_cannot_write(w->file.path); /* gaps are zero */
    if (write_head(w, shard, process) != 0) return 1;
    if (write_part(w, &w->figures, sizeof w->figures, w->file.figures) != 0) return 1;
    if (write_moments(w, &w->pooled, w->file.pooled) != 0) return 1;
    if (w->file.layout->spatial && write_moments(w, &w->spatial, w->file.spatial) != 0) return 1;
    if (write_part(w, list->rows, (size_t)list->count * sizeof *list->rows, w->file.sample_table) != 0) return 1;
    return write_part(w, list->pixels, (size_t)list->count * eval_pixel_bytes(w->file.layout), w->file.pixels);
}

static int write_sum(const writer *w)
{
    uint64_t sum;
    if (file_sum_part(w->fd, w->file.sum, &sum) != 0)
        return tool_error("%s: cannot read: %s", w->file.path, errno ? strerror(errno) : "it has become shorter");
    return write_part(w, &sum, sizeof sum, w->file.sum);
}

static int allocate(writer *w, const eval_layout *l)
{
    sample_list *list = &w->samples;
    list->asked = list->count = samples_asked(l, w->file.first, w->file.n);
    list->capacity = list->asked + l->rejected_images;
    list->rows = calloc((size_t)list->capacity + 1, sizeof *list->rows);
    list->pixels = calloc((size_t)list->capacity + 1, eval_pixel_bytes(l));
    if (list->rows && list->pixels && eval_moments_create(l->features, &w->pooled) == MAR_OK &&
        (!l->spatial || eval_moments_create(l->spatial, &w->spatial) == MAR_OK))
        return 0;
    return tool_error("out of memory for the sums of a shard");
}

static int write_file(writer *w, eval_journal *j, int process, eval_record *scratch)
{
    w->fd = tool_create_file(w->file.path);
    if (w->fd < 0) return tool_cannot_write(w->file.path);
    int failed = add_records(w, j, scratch) || write_rest(w, j->shard, process) || write_sum(w);
    if (!failed && tool_sync(w->fd) != 0) failed = tool_cannot_write(w->file.path);
    if (close(w->fd) != 0 && !failed) failed = tool_cannot_write(w->file.path);
    return failed;
}

int eval_shard_write(const run_directory *d, const eval_layout *l, eval_journal *j, int process, eval_record *scratch)
{
    char path[RUN_PATH];
    writer *w = calloc(1, sizeof *w);
    if (!w) return tool_error("out of memory for the sums of a shard");
    place(&w->file, l, j->shard, 0);
    run_shard_path(d, j->shard, ".new", w->file.path); /* of nobody else: the shard is locked */
    int failed = allocate(w, l) || write_file(w, j, process, scratch);
    if (!failed && rename(w->file.path, run_shard_path(d, j->shard, ".mars", path)) != 0)
        failed = tool_cannot_write(path);
    unlink(failed ? w->file.path : j->path);
    free(w->samples.rows);
    free(w->samples.pixels);
    eval_moments_free(&w->pooled);
    eval_moments_free(&w->spatial);
    free(w);
    return failed;
}

int eval_shard_exists(const run_directory *d, int shard, char *path)
{
    return access(run_shard_path(d, shard, ".mars", path), F_OK) == 0;
}

/* --- reading -------------------------------------------------------------------------------------------- */

static eval_shard_state say_damaged(const char *path, const char *what)
{
    tool_error("%s: %s, expected a shard of this run", path, what);
    return EVAL_SHARD_DAMAGED;
}

/* The head, and whether the file has the size that it says. */
static eval_shard_state read_head(eval_shard *s, const eval_layout *l, int shard)
{
    head h;
    struct stat st;
    if (fstat(s->fd, &st) != 0 || (tool_read_at(s->fd, &h, sizeof h, 0) != 0 && errno != 0)) {
        tool_error("%s: cannot read: %s", s->path, strerror(errno));
        return EVAL_SHARD_ERROR;
    }
    if (st.st_size < (off_t)sizeof h || memcmp(h.magic, magic, sizeof magic) != 0 ||
        h.sum != memory_sum(&h, offsetof(head, sum)))
        return say_damaged(s->path, "is damaged (its head)");
    if (h.settings != l->settings || h.shard != shard || h.samples < 0 || h.samples > eval_shard_size(l, shard))
        return say_damaged(s->path, "is of other settings or another shard");
    place(s, l, shard, (int)h.samples);
    s->process = h.process;
    if (h.size != (uint64_t)size_of(s) || st.st_size != size_of(s))
        return say_damaged(s->path, "is damaged (its size)");
    return EVAL_SHARD_THERE;
}

static eval_shard_state open_file(const run_directory *d, const eval_layout *l, int shard, eval_shard *out)
{
    *out = (eval_shard){.fd = -1};
    run_shard_path(d, shard, ".mars", out->path);
    out->fd = tool_open_file(out->path, O_RDONLY | O_NOFOLLOW);
    if (out->fd < 0 && errno == ENOENT) return EVAL_SHARD_MISSING;
    if (out->fd < 0) {
        tool_cannot_open(out->path, "a shard of this run");
        return EVAL_SHARD_ERROR;
    }
    const eval_shard_state state = read_head(out, l, shard);
    if (state != EVAL_SHARD_THERE) eval_shard_close(out);
    return state;
}

eval_shard_state eval_shard_look(const run_directory *d, const eval_layout *l, int shard)
{
    eval_shard s;
    const eval_shard_state state = open_file(d, l, shard, &s);
    if (state == EVAL_SHARD_THERE) eval_shard_close(&s);
    return state;
}

static int read_part(const eval_shard *s, void *data, size_t n, off_t at)
{
    if (tool_read_at(s->fd, data, n, at) == 0) return 0;
    return tool_error("%s: cannot read: %s", s->path, errno ? strerror(errno) : "it has become shorter");
}

static int read_sample(const eval_shard *s, int i, eval_sample *out)
{
    return read_part(s, out, sizeof *out, s->sample_table + i * (off_t)sizeof *out);
}

/* Whether the numbers that others are counted by can be, whatever the checksum says. */
static eval_shard_state check_numbers(const eval_shard *s)
{
    eval_sample row;
    eval_figures *f = malloc(sizeof *f);
    if (!f) tool_error("out of memory for the sums of a shard");
    eval_shard_state state = !f || eval_shard_figures(s, f) != 0 ? EVAL_SHARD_ERROR : EVAL_SHARD_THERE;
    if (state == EVAL_SHARD_THERE && !eval_figures_check(f, s->n)) state = say_damaged(s->path, "is damaged (a count)");
    for (int i = 0; i < s->samples && state == EVAL_SHARD_THERE; i++)
        if (read_sample(s, i, &row) != 0)
            state = EVAL_SHARD_ERROR;
        else if (row.image < s->first || row.image >= s->first + s->n || row.replaced > row.verified)
            state = say_damaged(s->path, "is damaged (a picture's row)");
    free(f);
    return state;
}

eval_shard_state eval_shard_open(const run_directory *d, const eval_layout *l, int shard, eval_shard *out)
{
    uint64_t sum = 0, found = 0;
    eval_shard_state state = open_file(d, l, shard, out);
    if (state != EVAL_SHARD_THERE) return state;
    if (file_sum_part(out->fd, out->sum, &found) != 0 || tool_read_at(out->fd, &sum, sizeof sum, out->sum) != 0) {
        tool_error("%s: cannot read: %s", out->path, errno ? strerror(errno) : "it has become shorter");
        state = EVAL_SHARD_ERROR;
    } else if (sum != found) {
        state = say_damaged(out->path, "is damaged (its checksum)");
    } else {
        state = check_numbers(out);
    }
    if (state != EVAL_SHARD_THERE) eval_shard_close(out);
    return state;
}

void eval_shard_close(eval_shard *s)
{
    if (s->fd >= 0) close(s->fd);
    s->fd = -1;
}

int eval_shard_figures(const eval_shard *s, eval_figures *out)
{
    return read_part(s, out, sizeof *out, s->figures);
}

static int read_moments(const eval_shard *s, eval_moments *m, off_t at)
{
    const size_t sums = (size_t)m->dim * sizeof(double);
    m->count = (uint64_t)s->n;
    return read_part(s, m->sum, sums, at) || read_part(s, m->products, moment_bytes(m->dim) - sums, at + (off_t)sums);
}

int eval_shard_moments(const eval_shard *s, eval_moments *pooled, eval_moments *spatial)
{
    return read_moments(s, pooled, s->pooled) || (s->layout->spatial ? read_moments(s, spatial, s->spatial) : 0);
}

int eval_shard_crc(const eval_shard *s, uint32_t *crc)
{
    return read_part(s, crc, (size_t)s->n * sizeof *crc, s->crc);
}

int eval_shard_logits(const eval_shard *s, int at, int n, float *logits)
{
    const size_t row = (size_t)s->layout->classes * sizeof(float);
    return read_part(s, logits, (size_t)n * row, s->logits + at * (off_t)row);
}

int eval_shard_features(const eval_shard *s, int at, int n, float *features)
{
    const size_t row = (size_t)s->layout->features * sizeof(float);
    return read_part(s, features, (size_t)n * row, s->features + at * (off_t)row);
}

int eval_shard_sample(const eval_shard *s, int i, eval_sample *out, uint8_t *rgb)
{
    const size_t bytes = eval_pixel_bytes(s->layout);
    return read_sample(s, i, out) || read_part(s, rgb, bytes, s->pixels + i * (off_t)bytes);
}
