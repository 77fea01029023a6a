#include "tools/page/page.h"

#include "tools/cli/command.h"
#include "tools/cli/file.h"
#include "tools/page/markup.h"

#include <png.h>
#include <stdlib.h>
#include <string.h>

static const char common_style[] =
    "body{font:16px/1.5 system-ui,sans-serif;color:" MARKUP_INK ";max-width:68rem;margin:2rem auto;padding:0 1rem}"
    "h1{font-size:1.7rem;margin:0}h2{font-size:1.2rem;margin:2.2rem 0 .6rem}h3{font-size:1rem;margin:0 0 .3rem}"
    ".sub{color:#5b6675;margin:.2rem 0 1.4rem}code{font:.92em ui-monospace,monospace}code span{white-space:nowrap}"
    ".card{border-left:6px solid;background:#f6f7f9;padding:.55rem 1rem;margin:.5rem 0}"
    ".same{border-color:" MARKUP_SAME "}.unsure{border-color:" MARKUP_AXIS "}.close{border-color:" MARKUP_CLOSE "}"
    ".off{border-color:" MARKUP_OFF "}"
    ".card b{font-size:1.05rem}.card small{color:#5b6675;display:block}"
    "table{border-collapse:collapse;font-variant-numeric:tabular-nums;width:100%}"
    "th,td{padding:.3rem .5rem;text-align:right;border-bottom:1px solid #dde1e7;white-space:nowrap}"
    "th{font-weight:600;font-size:.85rem;vertical-align:bottom;white-space:normal}"
    "th:first-child,td:first-child{text-align:left;white-space:normal}tr.floor td{color:#5b6675}"
    "td small{display:block;color:#5b6675}"
    ".dot{display:inline-block;width:.8em;height:.8em;border-radius:50%;margin-right:.45em}"
    ".row{display:flex;flex-wrap:wrap;gap:1.6rem}.map{image-rendering:pixelated;display:block}"
    ".maps{display:flex;flex-wrap:wrap;gap:.4rem}.maps img{outline:1px solid "
    "#c9ced6}figure{margin:0}figcaption{font-size:.85rem;color:#5b6675}" MARKUP_PLOT_STYLE ".wide{overflow-x:auto}";

FILE *page_open(text_buffer *text, const char *title, const char *style, const char *path)
{
    FILE *out = text_open(text);
    if (!out) {
        tool_error("%s: out of memory for the page", path);
        return NULL;
    }
    fputs(
        "<!DOCTYPE html>\n<html lang=en><meta charset=utf-8><meta name=viewport content=\"width=device-width\"><title>",
        out);
    markup_escape(out, title);
    fprintf(out, "</title><style>%s%s</style>\n", common_style, style);
    return out;
}

int page_close(FILE *out, text_buffer *text, int lacks, const char *path)
{
    fprintf(out, "<p class=sub>libmar %s</p>\n</html>\n", mar_version());
    if (text_close(out, text) != 0) return tool_error("%s: out of memory for the page", path);
    const int failed = lacks ? tool_error("%s: out of memory for the pictures in the page", path)
                             : tool_write_file(path, text->data, text->size);
    free(text->data);
    return failed;
}

static void base64(FILE *out, const uint8_t *data, size_t size)
{
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    for (size_t i = 0; i < size; i += 3) {
        const uint32_t three = (uint32_t)data[i] << 16 | (uint32_t)(i + 1 < size ? data[i + 1] : 0) << 8 |
                               (uint32_t)(i + 2 < size ? data[i + 2] : 0);
        fputc(digits[three >> 18], out);
        fputc(digits[three >> 12 & 63], out);
        fputc(i + 1 < size ? digits[three >> 6 & 63] : '=', out);
        fputc(i + 2 < size ? digits[three & 63] : '=', out);
    }
}

int page_picture(FILE *out, const image *picture, int width, int height, const char *title)
{
    png_image png = {.version = PNG_IMAGE_VERSION,
                     .width = (png_uint_32)picture->width,
                     .height = (png_uint_32)picture->height,
                     .format = PNG_FORMAT_RGB};
    png_alloc_size_t size = 0;
    uint8_t *data = NULL;
    int done = png_image_write_to_memory(&png, NULL, &size, 0, picture->rgb, 0, NULL) && (data = malloc(size)) &&
               png_image_write_to_memory(&png, data, &size, 0, picture->rgb, 0, NULL);
    if (done) {
        fprintf(out, "<img class=map width=%d height=%d alt=\"", width, height);
        markup_escape(out, title);
        fputs("\" title=\"", out);
        markup_escape(out, title);
        fputs("\" src=\"data:image/png;base64,", out);
        base64(out, data, size);
        fputs("\">\n", out);
    }
    free(data);
    return !done;
}

void page_options(FILE *out, const char *options)
{
    fputs("<code>", out);
    while (*options) {
        const char *next = strstr(options + 1, " --");
        const int length = next ? (int)(next - options) : (int)strlen(options);
        fputs("<span>", out);
        markup_escape_part(out, options, (size_t)length);
        fputs(next ? "</span> " : "</span>", out);
        options += length + (next != NULL);
    }
    fputs("</code>", out);
}

void page_share(FILE *out, double share)
{
    if (share >= 0)
        fprintf(out, "<td>%.1f %%", 100 * share);
    else
        fputs("<td>–", out);
}
