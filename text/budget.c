#include "text/budget.h"

/* A step takes 1 to 40 ns: a file's budget is spent within 3 s. */
enum {
    FILE_STEPS = 1 << 26,
    FILE_BYTES = 1 << 25,
    TEXT_STEPS = 1 << 23,
    TEXT_STEPS_PER_BYTE = 256,
    TEXT_BYTES = 1 << 20,
    TEXT_BYTES_PER_BYTE = 64,
    CAPTION_STEPS = 1 << 16,
    CAPTION_STEPS_PER_BYTE = 512
};

static text_budget budget_of(size_t steps, size_t bytes)
{
    return (text_budget){steps, bytes, steps, bytes, NULL};
}

text_budget text_budget_of_file(void)
{
    return budget_of(FILE_STEPS, FILE_BYTES);
}

text_budget text_budget_of_text(size_t n)
{
    return budget_of(TEXT_STEPS + TEXT_STEPS_PER_BYTE * n, TEXT_BYTES + TEXT_BYTES_PER_BYTE * n);
}

text_budget text_budget_of_caption(size_t n)
{
    return budget_of(CAPTION_STEPS + CAPTION_STEPS_PER_BYTE * n, 0);
}

static int charge(text_budget *b, size_t *left, size_t n, const char *name)
{
    if (b->exceeded) return 0;
    if (n > *left) {
        b->exceeded = name;
        return 0;
    }
    *left -= n;
    return 1;
}

int text_charge_steps(text_budget *b, size_t n)
{
    return charge(b, &b->steps, n, "steps");
}

int text_charge_bytes(text_budget *b, size_t n)
{
    return charge(b, &b->bytes, n, "bytes");
}

mar_status text_budget_check(const text_budget *b, const char *what, mar_err *err)
{
    if (!b->exceeded) return MAR_OK;
    if (*b->exceeded == 's') return err_set(err, MAR_EARG, "%s: exceeds the limit of %zu steps", what, b->all_steps);
    return err_set(err, MAR_EARG, "%s: grows by more than the limit of %zu bytes", what, b->all_bytes);
}
