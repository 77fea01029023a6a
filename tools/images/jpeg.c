/* Reads JPEGs with libjpeg's default settings, as PIL does: the same library gives the same pixels, to the bit. Writes
 * JPEGs with texts as comments. */
#include "tools/cli/json.h"
#include "tools/cli/text.h"
#include "tools/images/image.h"

#include <cjson/cJSON.h>

#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <jpeglib.h> /* needs stdio.h */

#include <jerror.h>

/* --- reading ------------------------------------------------------------------------------------------------------ */

typedef struct {
    struct jpeg_decompress_struct cinfo;
    struct jpeg_error_mgr errors;
    struct jpeg_progress_mgr progress;
    jmp_buf failed;
    char *why; /* char [IMAGE_WHY_MAX], reason of failure; "": none */
} jpeg_reader;

/* A file may have endless scans, each of which takes time in proportion to the pixels. Encoders make about ten, of CMYK
 * eighteen. A large picture may have fewer. */
enum { SCANS_MAX = 100, SCANS_LEAST = 20, SCANS_PIXELS_MAX = 1 << 30 /* pixels times scans, beyond SCANS_LEAST */ };

static void reading_failed(j_common_ptr cinfo)
{
    jpeg_reader *r = cinfo->client_data;
    char message[JMSG_LENGTH_MAX];
    cinfo->err->format_message(cinfo, message);
    if (!*r->why) snprintf(r->why, IMAGE_WHY_MAX, "is not a whole JPEG (%s)", message);
    longjmp(r->failed, 1);
}

/* Accepts warnings, as PIL does for surplus bytes, except a premature end: libjpeg would fill in grey. */
static void jpeg_warned(j_common_ptr cinfo, int level)
{
    jpeg_reader *r = cinfo->client_data;
    if (level >= 0 || cinfo->err->msg_code != JWRN_JPEG_EOF) return;
    snprintf(r->why, IMAGE_WHY_MAX, "is not a whole JPEG (it ends too early)");
    reading_failed(cinfo);
}

static void count_scans(j_common_ptr cinfo)
{
    jpeg_reader *r = cinfo->client_data;
    const double pixels = (double)r->cinfo.image_width * r->cinfo.image_height;
    double most = SCANS_PIXELS_MAX / pixels;
    most = most < SCANS_LEAST ? SCANS_LEAST : most > SCANS_MAX ? SCANS_MAX : most;
    if (r->cinfo.input_scan_number <= most) return;
    snprintf(r->why, IMAGE_WHY_MAX, "is a JPEG of more than %.0f scans", most);
    reading_failed(cinfo);
}

/* Creates the reader. It must be destroyed whatever this returns. */
static int jpeg_open_reader(jpeg_reader *r, const void *data, size_t size, char *why)
{
    memset(r, 0, sizeof *r);
    r->why = why;
    *why = '\0';
    r->cinfo.err = jpeg_std_error(&r->errors);
    r->cinfo.client_data = r;
    r->errors.error_exit = reading_failed;
    r->errors.emit_message = jpeg_warned;
    if (setjmp(r->failed)) return 1;
    jpeg_create_decompress(&r->cinfo);
    r->progress.progress_monitor = count_scans;
    r->cinfo.progress = &r->progress;
    jpeg_mem_src(&r->cinfo, data, (unsigned long)size);
    return 0;
}

static int is_cmyk(const jpeg_reader *r)
{
    return r->cinfo.jpeg_color_space == JCS_CMYK || r->cinfo.jpeg_color_space == JCS_YCCK;
}

/* Reads the header, and rejects what cannot be decoded to RGB. */
static int images_jpeg_read_header(jpeg_reader *r)
{
    if (setjmp(r->failed)) return 1;
    jpeg_read_header(&r->cinfo, TRUE);
    const J_COLOR_SPACE space = r->cinfo.jpeg_color_space;
    if (!is_cmyk(r) && space != JCS_GRAYSCALE && space != JCS_YCbCr && space != JCS_RGB)
        snprintf(r->why, IMAGE_WHY_MAX, "is a JPEG of %d colours of an unknown kind", r->cinfo.num_components);
    else if (r->cinfo.arith_code)
        snprintf(r->why, IMAGE_WHY_MAX, "is a JPEG in arithmetic coding, expected Huffman's");
    return *r->why != '\0';
}

/* Converts n pixels as PIL does, which takes all CMYK for Adobe's, inverted: cmyk is 255 less the ink. */
static void cmyk_to_rgb(const uint8_t *cmyk, int n, uint8_t *rgb)
{
    for (int i = 0; i < n; i++, cmyk += 4)
        for (int c = 0; c < 3; c++) {
            const int light = cmyk[3], taken = (255 - cmyk[c]) * light + 128; /* of the black, by the ink; times 255 */
            const int left = light - ((taken + (taken >> 8)) >> 8);
            *rgb++ = (uint8_t)(left < 0 ? 0 : left);
        }
}

/* cmyk: room for a row of four colours; NULL: the picture has RGB or grey. */
static int jpeg_read_rows(jpeg_reader *r, const image *out, uint8_t *cmyk)
{
    if (setjmp(r->failed)) return 1;
    r->cinfo.out_color_space = cmyk ? JCS_CMYK : JCS_RGB;
    jpeg_start_decompress(&r->cinfo);
    while (r->cinfo.output_scanline < r->cinfo.output_height) {
        uint8_t *rgb = out->rgb + (size_t)r->cinfo.output_scanline * (size_t)out->width * 3;
        JSAMPROW row = cmyk ? cmyk : rgb;
        jpeg_read_scanlines(&r->cinfo, &row, 1);
        if (cmyk) cmyk_to_rgb(cmyk, out->width, rgb);
    }
    jpeg_finish_decompress(&r->cinfo);
    return 0;
}

static int jpeg_read_pixels(jpeg_reader *r, const image *out)
{
    uint8_t *cmyk = is_cmyk(r) ? malloc((size_t)out->width * 4) : NULL;
    if (is_cmyk(r) && !cmyk) return text_fail(r->why, IMAGE_WHY_MAX, "out of memory");
    const int failed = jpeg_read_rows(r, out, cmyk);
    free(cmyk);
    return failed;
}

int image_decode_jpeg(const void *data, size_t size, image *out, char why[IMAGE_WHY_MAX])
{
    enum { PIXELS_MAX = 512 }; /* of a byte: each block of 8x8 takes a bit at least */
    jpeg_reader r;
    const int failed = jpeg_open_reader(&r, data, size, why) || images_jpeg_read_header(&r) ||
                       image_make_room(r.cinfo.image_width, r.cinfo.image_height, size, PIXELS_MAX, out, why) ||
                       jpeg_read_pixels(&r, out);
    jpeg_destroy_decompress(&r.cinfo);
    return failed;
}

int image_jpeg_size(const void *data, size_t size, double *width, double *height, char why[IMAGE_WHY_MAX])
{
    jpeg_reader r;
    const int failed = jpeg_open_reader(&r, data, size, why) || images_jpeg_read_header(&r);
    *width = r.cinfo.image_width;
    *height = r.cinfo.image_height;
    jpeg_destroy_decompress(&r.cinfo);
    return failed;
}

/* --- writing: in memory, so that encoding cannot fail within a file ----------------------------------------------- */

enum { COMMENT_MAX = 65533 /* bytes of a marker */, FULL_COLOUR = 90 /* quality from which no colour is averaged */ };

typedef struct {
    struct jpeg_compress_struct cinfo;
    struct jpeg_error_mgr errors;
    struct jpeg_destination_mgr destination;
    jmp_buf failed;
    uint8_t *data; /* [capacity] */
    size_t capacity;
    char *why; /* char [IMAGE_WHY_MAX], reason of failure */
} jpeg_writer;

static void jpeg_writing_failed(j_common_ptr cinfo)
{
    jpeg_writer *w = cinfo->client_data;
    char message[JMSG_LENGTH_MAX];
    cinfo->err->format_message(cinfo, message);
    snprintf(w->why, IMAGE_WHY_MAX, "%s", message);
    longjmp(w->failed, 1);
}

static void ignore_warning(j_common_ptr cinfo, int level)
{
    (void)cinfo, (void)level;
}

/* Makes room behind the `used` bytes. libjpeg's own memory destination loses its buffer after an error. */
static void jpeg_make_room(j_compress_ptr cinfo, size_t used)
{
    jpeg_writer *w = cinfo->client_data;
    const size_t capacity = 2 * w->capacity + 65536;
    uint8_t *grown = realloc(w->data, capacity);
    if (!grown) ERREXIT1(cinfo, JERR_OUT_OF_MEMORY, 0);
    w->data = grown;
    w->capacity = capacity;
    w->destination.next_output_byte = grown + used;
    w->destination.free_in_buffer = capacity - used;
}

static void begin_output(j_compress_ptr cinfo)
{
    jpeg_make_room(cinfo, 0);
}

static boolean continue_output(j_compress_ptr cinfo)
{
    jpeg_make_room(cinfo,
                   ((jpeg_writer *)cinfo->client_data)->capacity); /* the whole buffer is used, whatever is free */
    return TRUE;
}

static void end_output(j_compress_ptr cinfo)
{
    (void)cinfo;
}

static void write_comment(j_compress_ptr c, const char *text)
{
    for (size_t left = strlen(text), n; left > 0; left -= n, text += n) {
        n = left < COMMENT_MAX ? left : COMMENT_MAX;
        jpeg_write_marker(c, JPEG_COM, (const JOCTET *)text, (unsigned)n);
    }
}

/* Writes the picture and its comment. */
static int jpeg_write_picture(jpeg_writer *w, const image *picture, int quality, const char *comment)
{
    struct jpeg_compress_struct *c = &w->cinfo;
    if (setjmp(w->failed)) return 1;
    jpeg_create_compress(c);
    w->destination = (struct jpeg_destination_mgr){
        .init_destination = begin_output, .empty_output_buffer = continue_output, .term_destination = end_output};
    c->dest = &w->destination;
    c->image_width = (JDIMENSION)picture->width;
    c->image_height = (JDIMENSION)picture->height;
    c->input_components = 3;
    c->in_color_space = JCS_RGB;
    jpeg_set_defaults(c);
    jpeg_set_quality(c, quality, TRUE);
    if (quality >= FULL_COLOUR) c->comp_info[0].h_samp_factor = c->comp_info[0].v_samp_factor = 1;
    c->optimize_coding = TRUE;
    jpeg_start_compress(c, TRUE);
    write_comment(c, comment);
    while (c->next_scanline < c->image_height) {
        JSAMPROW row = picture->rgb + (size_t)c->next_scanline * (size_t)picture->width * 3;
        jpeg_write_scanlines(c, &row, 1);
    }
    jpeg_finish_compress(c);
    return 0;
}

/* Returns the texts as one JSON object, which the caller frees; NULL without memory. */
static char *comment_of(const image_text *texts, int count)
{
    size_t size;
    cJSON *object = tool_json();
    for (int i = 0; i < count; i++) cJSON_AddStringToObject(object, texts[i].key, texts[i].value);
    char *text = tool_json_text(object, 0, &size);
    if (text) text[size - 1] = '\0'; /* the newline */
    return text;
}

uint8_t *image_encode_jpeg(const image *picture, int quality, const image_text *texts, int text_count, size_t *size,
                           char why[IMAGE_WHY_MAX])
{
    jpeg_writer w = {.why = why};
    char *comment = text_count > 0 ? comment_of(texts, text_count) : NULL;
    snprintf(why, IMAGE_WHY_MAX, "out of memory");
    if (text_count > 0 && !comment) return NULL;
    w.cinfo.err = jpeg_std_error(&w.errors);
    w.cinfo.client_data = &w;
    w.errors.error_exit = jpeg_writing_failed;
    w.errors.emit_message = ignore_warning;
    const int failed = jpeg_write_picture(&w, picture, quality, comment ? comment : "");
    *size = w.capacity - w.destination.free_in_buffer;
    jpeg_destroy_compress(&w.cinfo);
    free(comment);
    if (!failed) return w.data;
    free(w.data);
    return NULL;
}
