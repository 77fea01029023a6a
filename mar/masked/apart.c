/* A step of images at different places of the plan, as requests are. They share the transformer's passes, which take
 * images with different numbers of known tokens (mar/masked/contexts.h), and calls of the head with the same number of
 * diffusion steps. Images with and without guidance take turns: their rows are of different numbers. A row's bits
 * depend on its image only, so an image is the same in any company. */
#include "mar/masked/masked.h"

/* Returns whether part a is drawn before part b; parts that are drawn together come in the order of their slots. */
static int comes_before(const mar_part *a, const mar_part *b)
{
    if (a->cfg_branches != b->cfg_branches) return a->cfg_branches > b->cfg_branches;
    if (a->step->sampling_steps != b->step->sampling_steps) return a->step->sampling_steps > b->step->sampling_steps;
    return a->slot < b->slot;
}

static int are_drawn_together(const mar_part *a, const mar_part *b)
{
    return a->cfg_branches == b->cfg_branches && a->step->sampling_steps == b->step->sampling_steps;
}

/* Lists the parts of all unfinished images, sorted. Returns their number. */
static int list_parts(mar_masked *g)
{
    int n = 0;
    for (int i = 0; i < g->max_images; i++) {
        const mar_slot *s = &g->slots.slot[i];
        if (!s->busy || s->step == g->params.num_iter) continue;
        const mar_step *step = &g->steps[s->step];
        const mar_part part = {.slot = i,
                               .step = step,
                               .predicted = step->known + step->predicted - s->known,
                               .cfg_branches = mar_masked_branches(g, i)};
        int at = n++;
        for (; at > 0 && comes_before(&part, &g->parts[at - 1]); at--) g->parts[at] = g->parts[at - 1];
        g->parts[at] = part;
    }
    return n;
}

/* Returns the number of parts from `first` on that satisfy `alike` with the first of them. */
static int count_alike(const mar_masked *g, int first, int n, int (*alike)(const mar_part *a, const mar_part *b))
{
    int count = 1;
    while (first + count < n && alike(&g->parts[first], &g->parts[first + count])) count++;
    return count;
}

static int have_the_same_branches(const mar_part *a, const mar_part *b)
{
    return a->cfg_branches == b->cfg_branches;
}

/* Places the z of parts that are drawn together: conditional rows, then unconditional ones. Returns the row behind. */
static int place(mar_masked *g, int first, int count, int row)
{
    int tokens = 0;
    for (int i = first; i < first + count; i++) {
        mar_part *p = &g->parts[i];
        const mar_slot *s = &g->slots.slot[p->slot];
        g->list[i] = (mar_image_context){p->slot, g->order[p->slot], s->known, p->predicted, {row + tokens, 0}};
        tokens += p->predicted;
    }
    for (int i = first; i < first + count; i++) g->list[i].z_row[1] = g->list[i].z_row[0] + tokens;
    return row + g->parts[first].cfg_branches * tokens;
}

/* Lists the tokens of parts that are drawn together as rows `row`.. Returns the row behind. */
static int list_rows(mar_masked *g, int first, int count, int row)
{
    const int seq = g->model->base.config.seq_len;
    for (int i = first; i < first + count; i++) {
        const mar_part *p = &g->parts[i];
        row =
            mar_masked_list(g, p->slot, p->step, seq - g->slots.slot[p->slot].known - p->predicted, p->predicted, row);
    }
    return row;
}

/* Computes the z of all parts. */
static void predict(mar_masked *g, int n)
{
    for (int i = 0, count, row = 0; i < n; i += count) {
        count = count_alike(g, i, n, are_drawn_together);
        row = place(g, i, count, row);
    }
    for (int i = 0, count; i < n; i += count) {
        count = count_alike(g, i, n, have_the_same_branches);
        g->contexts.branches = g->parts[i].cfg_branches;
        mar_contexts_run(&g->contexts, g->list + i, count, &g->target.embedded, NULL);
        g->stats.passes++;
        g->stats.contexts += count;
    }
}

void mar_masked_step_apart(mar_masked *g)
{
    const int n = list_parts(g);
    int rows = 0;
    predict(g, n);
    for (int i = 0, count; i < n; i += count) {
        count = count_alike(g, i, n, are_drawn_together);
        const int end = list_rows(g, i, count, rows);
        const mar_part *p = &g->parts[i];
        mar_masked_draw(g, rows, end - rows, g->list[i].z_row[0], p->cfg_branches, p->step->sampling_steps, NULL);
        rows = end;
    }
    mar_masked_keep(g, rows, NULL);
    for (int i = 0; i < n; i++) {
        mar_slot *s = &g->slots.slot[g->parts[i].slot];
        s->known += g->parts[i].predicted;
        s->step++;
    }
}
