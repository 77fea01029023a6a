#include "tools/page/plot.h"

#include <math.h>

double plot_tick(double span)
{
    const double power = pow(10, floor(log10(span / 3)));
    const double parts = span / 3 / power;
    return power * (parts < 2 ? 1 : parts < 5 ? 2 : 5);
}

double plot_x(const plot_frame *f, double v)
{
    const double part =
        f->x_log ? log(v / f->x_low) / log(f->x_high / f->x_low) : (v - f->x_low) / (f->x_high - f->x_low);
    return PLOT_LEFT + part * (f->width - PLOT_LEFT - PLOT_RIGHT);
}

double plot_y(const plot_frame *f, double v)
{
    return f->height - PLOT_BOTTOM - (v - f->y_low) / (f->y_high - f->y_low) * (f->height - PLOT_TOP - PLOT_BOTTOM);
}

void plot_line(FILE *out, const char *class, double x1, double y1, double x2, double y2)
{
    fprintf(out, "<line class=\"%s\" x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\"/>", class, x1, y1, x2, y2);
}

static void write_x_tick(FILE *out, const plot_frame *f, double v)
{
    const int bottom = f->height - PLOT_BOTTOM;
    plot_line(out, "grid", plot_x(f, v), PLOT_TOP, plot_x(f, v), bottom);
    fprintf(out, "<text x=\"%.1f\" y=\"%d\" text-anchor=\"middle\">%.4g</text>", plot_x(f, v), bottom + 17, v);
}

/* 1, 2 and 5 times the powers of ten. */
static void write_log_ticks(FILE *out, const plot_frame *f)
{
    static const double parts[] = {1, 2, 5};
    for (double power = pow(10, floor(log10(f->x_low))); power <= f->x_high; power *= 10)
        for (int i = 0; i < 3; i++)
            if (parts[i] * power >= f->x_low && parts[i] * power <= f->x_high) write_x_tick(out, f, parts[i] * power);
}

void plot_axes(FILE *out, const plot_frame *f, const char *x_label, const char *y_label)
{
    const int bottom = f->height - PLOT_BOTTOM, right = f->width - PLOT_RIGHT;
    const double x_tick = plot_tick(f->x_high - f->x_low), y_tick = plot_tick(f->y_high - f->y_low);
    if (f->x_log)
        write_log_ticks(out, f);
    else
        for (double v = x_tick * ceil(f->x_low / x_tick); v <= f->x_high + 0.0001 * x_tick; v += x_tick)
            write_x_tick(out, f, v);
    for (double v = y_tick * ceil(f->y_low / y_tick); v <= f->y_high + 0.0001 * y_tick; v += y_tick) {
        plot_line(out, "grid", PLOT_LEFT, plot_y(f, v), right, plot_y(f, v));
        fprintf(out, "<text x=\"%d\" y=\"%.1f\" text-anchor=\"end\">%.4g</text>", PLOT_LEFT - 6, plot_y(f, v) + 4, v);
    }
    plot_line(out, "axis", PLOT_LEFT, bottom, right, bottom);
    plot_line(out, "axis", PLOT_LEFT, PLOT_TOP, PLOT_LEFT, bottom);
    fprintf(out,
            "<text x=\"%d\" y=\"%d\" text-anchor=\"middle\">%s</text>"
            "<text transform=\"translate(14 %d) rotate(-90)\" text-anchor=\"middle\">%s</text>\n",
            (PLOT_LEFT + right) / 2, f->height - 8, x_label, (PLOT_TOP + bottom) / 2, y_label);
}

void plot_curve(FILE *out, const plot_frame *f, const char *colour, double (*value)(const void *of, int i),
                const void *of, int n)
{
    int drawing = 0;
    for (int i = 0; i < n; i++) {
        const double v = value(of, i);
        if (isnan(v)) {
            if (drawing) fputs("\"/>", out);
            drawing = 0;
            continue;
        }
        if (!drawing) fprintf(out, "<polyline fill=\"none\" stroke=\"%s\" stroke-width=\"2\" points=\"", colour);
        fprintf(out, "%.1f,%.1f ", plot_x(f, i), plot_y(f, v));
        drawing = 1;
    }
    if (drawing) fputs("\"/>", out);
}

void plot_place(const plot_frame *f, const double (*taken)[2], int count, int own, double place[2])
{
    static const double beside[][2] = {{10, -8},  {-10, -8},  {10, 16}, {-10, 16}, {0, -14},
                                       {18, 4},   {-18, 4},   {26, -8}, {-26, -8}, {0, -28},
                                       {14, -24}, {-14, -24}, {34, 4},  {-34, 4},  {0, -42}};
    int clear = 0;
    for (size_t k = 0; k < sizeof beside / sizeof beside[0] && !clear; k++) {
        place[0] = taken[own][0] + beside[k][0];
        place[1] = taken[own][1] + 4 + beside[k][1];
        clear = place[1] < f->height - PLOT_BOTTOM && place[0] < f->width - PLOT_RIGHT && place[0] > PLOT_LEFT;
        for (int j = 0; j < count && clear; j++)
            clear = fabs(taken[j][0] - place[0]) >= 11 || fabs(taken[j][1] + 4 - place[1]) >= 12 || j == own;
    }
}
