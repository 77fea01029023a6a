#include "text/charsmap.h"

#include <stdlib.h>
#include <string.h>

/* A unit of the double array (Darts-clone, DoubleArrayUnit). A leaf has bit 31 set, and a replacement's place in the
 * other bits. Any other unit has its label in bits 0 to 7, in bit 8 whether a leaf hangs on it, and the distance to its
 * children in bits 10 to 30, times 256 if bit 9 is set. */
static uint32_t unit_offset(uint32_t unit)
{
    return (unit >> 10) << ((unit & 1u << 9) >> 6);
}

static int unit_has_leaf(uint32_t unit)
{
    return (unit >> 8 & 1) != 0;
}

static uint32_t unit_label(uint32_t unit)
{
    return unit & (1u << 31 | 0xff);
}

/* Checks that the children of unit i lie in the array, and that its replacement is a short string of the table. */
static int unit_is_sound(const text_charsmap *c, size_t i)
{
    const uint32_t unit = c->units[i];
    if (unit >> 31) return i != 0; /* a leaf is checked with its parent; the root is not one */
    const size_t children = i ^ unit_offset(unit);
    if ((children | 0xff) >= c->count) return 0;
    if (!unit_has_leaf(unit)) return 1;
    const size_t at = c->units[children] & 0x7fffffff;
    return i != 0 && c->units[children] >> 31 && at < c->size &&
           memchr(c->replacements + at, '\0', CHARSMAP_LONGEST + 1);
}

mar_status text_charsmap_read(const uint8_t *data, size_t size, const char *label, text_charsmap *out, mar_err *err)
{
    *out = (text_charsmap){0};
    const size_t trie =
        size < 4 ? 0 : (size_t)data[0] | (size_t)data[1] << 8 | (size_t)data[2] << 16 | (size_t)data[3] << 24;
    if (trie == 0 || trie % 1024 != 0 || trie >= size - 4)
        return err_set(err, MAR_EFORMAT, "%s: precompiled_charsmap: a trie of %zu bytes in %zu, expected whole KiB",
                       label, trie, size);
    out->count = trie / 4;
    out->size = size - 4 - trie;
    out->units = malloc(trie);
    out->replacements = calloc(1, out->size + CHARSMAP_LONGEST + 1); /* so that memchr above stays inside */
    if (!out->units || !out->replacements) {
        text_charsmap_free(out);
        return err_set(err, MAR_ENOMEM, "%s: no memory for the %zu bytes of precompiled_charsmap", label, size);
    }
    for (size_t i = 0; i < out->count; i++) {
        const uint8_t *const at = data + 4 + 4 * i;
        out->units[i] = at[0] | (uint32_t)at[1] << 8 | (uint32_t)at[2] << 16 | (uint32_t)at[3] << 24;
    }
    memcpy(out->replacements, data + 4 + trie, out->size);
    for (size_t i = 0; i < out->count; i++)
        if (!unit_is_sound(out, i)) {
            text_charsmap_free(out);
            return err_set(err, MAR_EFORMAT, "%s: precompiled_charsmap: unit %zu leads out of the table", label, i);
        }
    return MAR_OK;
}

void text_charsmap_free(text_charsmap *c)
{
    free(c->units);
    free(c->replacements);
    *c = (text_charsmap){0};
}

size_t text_charsmap_find(const text_charsmap *c, const char *text, size_t n, const char **replacement)
{
    size_t longest = 0;
    if (!c->units) return 0;
    size_t at = unit_offset(c->units[0]);
    for (size_t i = 0; i < n && i < CHARSMAP_LONGEST; i++) {
        const uint8_t byte = (uint8_t)text[i];
        at ^= byte;
        const uint32_t unit = c->units[at];
        if (unit_label(unit) != byte) break;
        at ^= unit_offset(unit);
        if (!unit_has_leaf(unit)) continue;
        *replacement = c->replacements + (c->units[at] & 0x7fffffff);
        longest = i + 1;
    }
    return longest;
}
