#include "tools/eval/journal.h"

#include "tools/cli/command.h"
#include "tools/cli/file.h"
#include "tools/cli/file_sum.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

typedef struct {
    char magic[8];
    uint64_t settings;
    int64_t shard;
    uint64_t sum; /* of the three above */
} head;

static head head_of(const eval_journal *j)
{
    head h = {.settings = j->layout->settings, .shard = j->shard};
    memcpy(h.magic, "marshrd1", sizeof h.magic);
    h.sum = memory_sum(&h, offsetof(head, sum));
    return h;
}

void eval_journal_rewind(eval_journal *j)
{
    j->next = eval_shard_first(j->layout, j->shard);
    j->end = sizeof(head);
}

/* Whether the file has our head; -1 after printing an error. */
static int has_head(const eval_journal *j)
{
    const head ours = head_of(j);
    head found;
    if (tool_read_at(j->fd, &found, sizeof found, 0) == 0) return memcmp(&found, &ours, sizeof ours) == 0;
    if (errno == 0) return 0;
    tool_error("%s: cannot read: %s", j->path, strerror(errno));
    return -1;
}

/* Begins a new file. What had the name is not ours, or not whole: it may have other names, and is not written to. */
static int begin(eval_journal *j)
{
    const head ours = head_of(j);
    j->fd = tool_create_file(j->path);
    return j->fd >= 0 && tool_write_at(j->fd, &ours, sizeof ours, 0) == 0 ? 0 : tool_cannot_write(j->path);
}

int eval_journal_open(const run_directory *d, const eval_layout *l, int shard, eval_journal *out)
{
    *out = (eval_journal){.layout = l, .shard = shard};
    run_shard_path(d, shard, ".part", out->path);
    out->fd = tool_open_file(out->path, O_RDWR | O_NOFOLLOW);
    if (out->fd < 0 && errno != ENOENT) return tool_cannot_open(out->path, "the journal of a shard");
    const int has = out->fd >= 0 ? has_head(out) : 0;
    if (has != 1) eval_journal_close(out);
    if (has < 0 || (has == 0 && begin(out) != 0)) {
        eval_journal_close(out);
        return 1;
    }
    eval_journal_rewind(out);
    return 0;
}

void eval_journal_close(eval_journal *j)
{
    if (j->fd >= 0) close(j->fd);
    j->fd = -1;
}

/* Returns 1, 0 if the file has no n bytes there, or -1 after printing. */
static int read_some(const eval_journal *j, void *data, size_t n, off_t at)
{
    if (tool_read_at(j->fd, data, n, at) == 0) return 1;
    if (errno == 0) return 0;
    tool_error("%s: cannot read: %s", j->path, strerror(errno));
    return -1;
}

int eval_journal_read(eval_journal *j, eval_record *r)
{
    const long behind = eval_shard_first(j->layout, j->shard) + eval_shard_size(j->layout, j->shard);
    if (j->next >= behind) return 0;
    int status = read_some(j, r->bytes, EVAL_RECORD_HEAD, j->end);
    if (status <= 0) return status;
    const size_t size = eval_record_size(j->layout, j->next, r->bytes);
    if (size == 0) return 0;
    status = read_some(j, r->bytes + EVAL_RECORD_HEAD, size - EVAL_RECORD_HEAD, j->end + EVAL_RECORD_HEAD);
    if (status <= 0) return status;
    if (!eval_record_check(j->layout, j->next, r)) return 0;
    j->next += r->n;
    j->end += (off_t)size;
    return 1;
}

void eval_journal_drop(eval_journal *j, const eval_record *r)
{
    j->next -= r->n;
    j->end -= (off_t)r->size;
}

int eval_journal_append(eval_journal *j, const eval_record *r)
{
    if (!j->is_cut && ftruncate(j->fd, j->end) != 0) return tool_cannot_write(j->path);
    j->is_cut = 1;
    if (tool_write_at(j->fd, r->bytes, r->size, j->end) != 0) {
        const int reason = errno;
        if (ftruncate(j->fd, j->end) != 0) j->is_cut = 0; /* what is there is not whole, and is known by that */
        errno = reason;
        return tool_error("%s: cannot write %zu bytes: %s", j->path, r->size, strerror(errno));
    }
    j->next += r->n;
    j->end += (off_t)r->size;
    return 0;
}
