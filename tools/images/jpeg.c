/* Reads JPEGs with libjpeg's default settings, as PIL does. The same library gives the same pixels, to the bit. */
#include "tools/images/image.h"

#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <jpeglib.h> /* needs stdio.h */

#include <jerror.h>

typedef struct {
    struct jpeg_decompress_struct cinfo;
    struct jpeg_error_mgr errors;
    struct jpeg_progress_mgr progress;
    jmp_buf failed;
    char *why; /* char [IMAGE_WHY_MAX], reason of failure; "": none */
} jpeg_reader;

/* A file may have endless scans, each of which takes time in proportion to the pixels. Encoders make about ten. */
enum { SCANS_MAX = 100 };

static void reading_failed(j_common_ptr cinfo)
{
    jpeg_reader *r = cinfo->client_data;
    char message[JMSG_LENGTH_MAX];
    cinfo->err->format_message(cinfo, message);
    if (!*r->why) snprintf(r->why, IMAGE_WHY_MAX, "is not a whole JPEG (%s)", message);
    longjmp(r->failed, 1);
}

/* Accepts warnings, as PIL does for surplus bytes, except a premature end: libjpeg would fill in grey. */
static void warned(j_common_ptr cinfo, int level)
{
    jpeg_reader *r = cinfo->client_data;
    if (level >= 0 || cinfo->err->msg_code != JWRN_JPEG_EOF) return;
    snprintf(r->why, IMAGE_WHY_MAX, "is not a whole JPEG (it ends too early)");
    reading_failed(cinfo);
}

static void count_scans(j_common_ptr cinfo)
{
    jpeg_reader *r = cinfo->client_data;
    if (r->cinfo.input_scan_number <= SCANS_MAX) return;
    snprintf(r->why, IMAGE_WHY_MAX, "is a JPEG of more than %d scans", SCANS_MAX);
    reading_failed(cinfo);
}

/* Creates the reader. It must be destroyed whatever this returns. */
static int open_reader(jpeg_reader *r, const void *data, size_t size, char *why)
{
    memset(r, 0, sizeof *r);
    r->why = why;
    *why = '\0';
    r->cinfo.err = jpeg_std_error(&r->errors);
    r->cinfo.client_data = r;
    r->errors.error_exit = reading_failed;
    r->errors.emit_message = warned;
    if (setjmp(r->failed)) return 1;
    jpeg_create_decompress(&r->cinfo);
    r->progress.progress_monitor = count_scans;
    r->cinfo.progress = &r->progress;
    jpeg_mem_src(&r->cinfo, data, (unsigned long)size);
    return 0;
}

/* Reads the header, and rejects what cannot be decoded to RGB. */
static int read_header(jpeg_reader *r)
{
    if (setjmp(r->failed)) return 1;
    jpeg_read_header(&r->cinfo, TRUE);
    const J_COLOR_SPACE space = r->cinfo.jpeg_color_space;
    if (space == JCS_CMYK || space == JCS_YCCK)
        snprintf(r->why, IMAGE_WHY_MAX, "is a JPEG of CMYK colours, expected RGB or grey");
    else if (space != JCS_GRAYSCALE && space != JCS_YCbCr && space != JCS_RGB)
        snprintf(r->why, IMAGE_WHY_MAX, "is a JPEG of %d colours of an unknown kind", r->cinfo.num_components);
    else if (r->cinfo.arith_code)
        snprintf(r->why, IMAGE_WHY_MAX, "is a JPEG in arithmetic coding, expected Huffman's");
    return *r->why != '\0';
}

static int read_rows(jpeg_reader *r, const image *out)
{
    if (setjmp(r->failed)) return 1;
    r->cinfo.out_color_space = JCS_RGB;
    jpeg_start_decompress(&r->cinfo);
    while (r->cinfo.output_scanline < r->cinfo.output_height) {
        JSAMPROW row = out->rgb + (size_t)r->cinfo.output_scanline * (size_t)out->width * 3;
        jpeg_read_scanlines(&r->cinfo, &row, 1);
    }
    jpeg_finish_decompress(&r->cinfo);
    return 0;
}

int image_decode_jpeg(const void *data, size_t size, image *out, char why[IMAGE_WHY_MAX])
{
    enum { PIXELS_MAX = 512 }; /* of a byte: each block of 8x8 takes a bit at least */
    jpeg_reader r;
    const int failed = open_reader(&r, data, size, why) || read_header(&r) ||
                       image_make_room(r.cinfo.image_width, r.cinfo.image_height, size, PIXELS_MAX, out, why) ||
                       read_rows(&r, out);
    jpeg_destroy_decompress(&r.cinfo);
    return failed;
}
