/* Parts of SVG plots: axes with ticks, lines, and places for labels. Text and lines have the classes of
 * MARKUP_PLOT_STYLE. */
#ifndef TOOLS_PLOT_H
#define TOOLS_PLOT_H

#include <stddef.h>
#include <stdio.h>

/* Margins around the axes, in pixels. */
enum { PLOT_LEFT = 62, PLOT_RIGHT = 14, PLOT_TOP = 14, PLOT_BOTTOM = 48 };

typedef struct {
    int width, height;    /* of the whole plot, in pixels */
    double x_low, x_high; /* the values at the ends of the axes, low < high */
    double y_low, y_high;
    int x_log; /* 1: the horizontal axis is logarithmic, x_low above 0 */
} plot_frame;

/* Where a value lies, in pixels. */
double plot_x(const plot_frame *f, double v);
double plot_y(const plot_frame *f, double v);

/* 1, 2 or 5 times a power of ten, so that `span` has three to seven steps. */
double plot_tick(double span);

/* Grid, axes, ticks, and what the axes mean: text that needs no escape. */
void plot_axes(FILE *out, const plot_frame *f, const char *x_label, const char *y_label);

void plot_line(FILE *out, const char *class, double x1, double y1, double x2, double y2);

/* The line through value(of, i) at i = 0, 1, ... n-1; it breaks where that is NaN. */
void plot_curve(FILE *out, const plot_frame *f, const char *colour, double (*value)(const void *of, int i),
                const void *of, int n);

/* A place beside point `own` for a label of some 11 x 12 pixels, where none of taken[0..count) is: pixels of points,
 * and of labels placed before. The caller adds it. */
void plot_place(const plot_frame *f, const double (*taken)[2], int count, int own, double place[2]);

#endif
