#include "tools/edit/picture.h"

#include "tools/cli/command.h"

#include <stdlib.h>

static int clamp(int x, int most)
{
    return x < 0 ? 0 : x > most ? most : x;
}

/* Returns where the picture begins along an axis. */
static int begin_of(int given, int side, int canvas, int cell)
{
    return given >= 0 ? given : (canvas - side) / 2 / cell * cell;
}

int edit_place(const char *name, const image *picture, int x, int y, int width, int height, int columns, image *out,
               uint8_t *known)
{
    const int cell = width / columns, left = begin_of(x, picture->width, width, cell),
              top = begin_of(y, picture->height, height, cell);
    if (left + picture->width > width || top + picture->height > height)
        return tool_error("--offset %d,%d: %s does not fit there, expected %d,%d at most", left, top, name,
                          width - picture->width, height - picture->height);
    *out = (image){width, height, malloc((size_t)width * (size_t)height * 3)};
    if (!out->rgb) return tool_error("out of memory for a picture of %dx%d", width, height);
    for (int row = 0; row < height; row++)
        for (int column = 0; column < width; column++) {
            const int from_row = clamp(row - top, picture->height - 1),
                      from_column = clamp(column - left, picture->width - 1);
            const uint8_t *from = picture->rgb + 3 * ((size_t)from_row * (size_t)picture->width + (size_t)from_column);
            uint8_t *to = out->rgb + 3 * ((size_t)row * (size_t)width + (size_t)column);
            for (int c = 0; c < 3; c++) to[c] = from[c];
        }
    for (int i = 0; i < height / cell * columns; i++) {
        const int row = i / columns * cell, column = i % columns * cell;
        known[i] = row >= top && row + cell <= top + picture->height && column >= left &&
                   column + cell <= left + picture->width;
    }
    return 0;
}

int edit_mask(const char *name, const image *mask, const image *picture, int x, int y, int width, int height,
              int columns, uint8_t *known)
{
    const int cell = width / columns, is_canvas = mask->width == width && mask->height == height;
    const int left = is_canvas ? 0 : begin_of(x, picture->width, width, cell),
              top = is_canvas ? 0 : begin_of(y, picture->height, height, cell);
    if (!is_canvas && (mask->width != picture->width || mask->height != picture->height))
        return tool_error("%s: has %dx%d pixels, expected those of the picture, %dx%d, or of the model, %dx%d", name,
                          mask->width, mask->height, picture->width, picture->height, width, height);
    for (int row = 0; row < mask->height; row++)
        for (int column = 0; column < mask->width; column++) {
            const uint8_t *pixel = mask->rgb + 3 * ((size_t)row * (size_t)mask->width + (size_t)column);
            if (pixel[0] < 128 && pixel[1] < 128 && pixel[2] < 128) continue;
            known[(top + row) / cell * columns + (left + column) / cell] = 0;
        }
    return 0;
}

/* Returns the next random number (SplitMix64: Steele, Lea, Flood, 2014). */
static uint64_t next_random(uint64_t *state)
{
    uint64_t z = *state += 0x9E3779B97F4A7C15u;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
}

void edit_keep(double fraction, uint64_t seed, uint64_t number, int count, uint8_t *known)
{
    uint64_t state = seed;
    state = next_random(&state) ^ number;
    int left = edit_count(known, count), kept = (int)(fraction * left + 0.5);
    if (fraction < 1 && kept == left && left > 0) kept--; /* something is made */
    for (int i = 0; i < count; i++) {
        if (!known[i]) continue;
        known[i] = next_random(&state) % (uint64_t)left < (uint64_t)kept; /* each choice of `kept` is as likely */
        kept -= known[i];
        left--;
    }
}

int edit_count(const uint8_t *known, int count)
{
    int n = 0;
    for (int i = 0; i < count; i++) n += known[i];
    return n;
}
