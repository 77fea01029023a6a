/* The pictures of edits over HTTP: PNG, JPEG and WebP, other files by their names, and PNGs that expand, which cost the
 * service neither memory nor time. */
#include "tests/support/png_bombs.h"
#include "tests/support/service.h"

#include "tests/support/test.h"
#include "tools/images/source.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define LIMITS_MEMORY 0 /* their shadow memory is of terabytes */
#else
#define LIMITS_MEMORY 1
#endif

#define QUICK "--num_iter 2 --num_sampling_steps 4"

enum { SIDE = 32, BODY_MAX = 16 << 20, GIGABYTES = 2400 /* MB, 10 s at least */ };

static char *directory;
static service_process service;

static int set_up(void **state)
{
    if (command_setup(state) != 0) return 1;
    directory = *state;
    service = service_start(directory, QUICK " --batch 2 --timeout 300");
    return 0;
}

static int tear_down(void **state)
{
    assert_int_equal(service_stop(&service), 0);
    return command_teardown(state);
}

TEST_GROUP(set_up, tear_down)

/* --- requests ----------------------------------------------------------------------------------------------------- */

static void put(png_file *form, const void *data, size_t size)
{
    form->data = realloc(form->data, form->size + size);
    assert_non_null(form->data);
    memcpy(form->data + form->size, data, size);
    form->size += size;
}

static void put_part(png_file *form, const char *name, const void *data, size_t size)
{
    char head[200];
    put(form, head,
        (size_t)snprintf(head, sizeof head, "--xx\r\nContent-Disposition: form-data; name=\"%s\"\r\n\r\n", name));
    put(form, data, size);
    put(form, "\r\n", 2);
}

/* Asks for an edit with the seed 9. A mask of NULL: none. */
static reply edit(const void *picture, size_t picture_size, const void *mask, size_t mask_size)
{
    png_file form = {0};
    put_part(&form, "prompt", "3", 1);
    put_part(&form, "seed", "9", 1);
    put_part(&form, "response_format", "url", 3);
    put_part(&form, "image", picture, picture_size);
    if (mask) put_part(&form, "mask", mask, mask_size);
    put(&form, "--xx--\r\n", 8);
    reply r = service_request(&service, "POST", "/v1/images/edits",
                              "Content-Type: multipart/form-data; boundary=xx\r\n", form.data, form.size);
    free(form.data);
    return r;
}

static void check_refused(reply r, const char *message)
{
    if (r.code != 400 || !strstr(r.body, message)) fail_msg("%d, %s, expected %s", r.code, r.body, message);
    reply_free(&r);
}

/* --- formats ------------------------------------------------------------------------------------------------------ */

/* Returns the picture of an edit, which is the same whatever the format was. */
static image edited(const void *picture, size_t picture_size, const void *mask, size_t mask_size)
{
    char why[IMAGE_WHY_MAX];
    image out;
    reply r = edit(picture, picture_size, mask, mask_size);
    if (r.code != 200) fail_msg("%d, %s", r.code, r.body);
    cJSON *json = cJSON_Parse(r.body);
    reply made = service_get(&service, strstr(json_text(json, "data.0.url"), "/v1/"));
    assert_int_equal(image_decode(made.body, made.size, &out, why), 0);
    reply_free(&made);
    cJSON_Delete(json);
    reply_free(&r);
    return out;
}

/* A picture and a mask, white in its lower half, as PNG, JPEG and WebP. */
TEST_CASE(jpeg_and_webp)
{
    static uint8_t rgb[SIDE][SIDE][3], white[SIDE][SIDE][3];
    const image picture = {SIDE, SIDE, &rgb[0][0][0]}, mask = {SIDE, SIDE, &white[0][0][0]};
    char why[IMAGE_WHY_MAX];
    size_t size, mask_size, png_size;
    memset(white[SIDE / 2], 255, sizeof white / 2);
    for (int i = 0; i < (int)sizeof rgb; i++) (&rgb[0][0][0])[i] = (uint8_t)(i / 96 * 8);
    uint8_t *png_mask = image_encode_png(&mask, NULL, 0, &png_size, why);
    for (image_format format = IMAGE_JPEG; format <= IMAGE_WEBP && !image_format_lacks(format); format++) {
        image decoded;
        uint8_t *data = format == IMAGE_JPEG ? image_encode_jpeg(&picture, 90, NULL, 0, &size, why)
                                             : image_encode_webp(&picture, 90, &size, why);
        uint8_t *other = format == IMAGE_JPEG ? image_encode_jpeg(&mask, 100, NULL, 0, &mask_size, why)
                                              : image_encode_webp(&mask, 100, &mask_size, why);
        assert_int_equal(image_decode(data, size, &decoded, why), 0);
        size_t same_size;
        uint8_t *same = image_encode_png(&decoded, NULL, 0, &same_size, why);
        image a = edited(data, size, other, mask_size), b = edited(same, same_size, png_mask, png_size);
        assert_memory_equal(a.rgb, b.rgb, sizeof rgb);
        free(a.rgb), free(b.rgb), free(decoded.rgb), free(same), free(data), free(other);
    }
    memset(white, 0, sizeof white);
    uint8_t *black = image_encode_png(&mask, NULL, 0, &size, why);
    check_refused(edit(png_mask, png_size, black, size),
                  "mask: no pixel is white, expected white where the picture is to be made anew");
    check_refused(edit(png_mask, png_size, NULL, 0),
                  "image: no pixel is transparent, expected alpha 0 where the picture is to be made anew, or a mask");
    free(black);
    free(png_mask);
}

TEST_CASE(other_files_are_named)
{
    static const struct {
        const char *data, *message;
    } cases[] = {{"GIF89a", "image: is a GIF, expected a PNG"},
                 {"%PDF-1.4", "image: is a PDF, expected a PNG"},
                 {"<html>", "image: is HTML, expected a PNG"},
                 {"PK\3\4 archive/data.pkl", "image: is a PyTorch file, expected a PNG"},
                 {"what", "image: 4 bytes that begin with \\\"what\\\", expected a PNG"}};
    for (size_t i = 0; i < LENGTH(cases); i++)
        check_refused(edit(cases[i].data, strlen(cases[i].data), NULL, 0), cases[i].message);
}

/* --- bombs -------------------------------------------------------------------------------------------------------- */

/* Returns a number of /proc/PID/status, such as "VmHWM:", in kB. */
static long status_of(const char *name)
{
    char path[64], line[256];
    long value = 0;
    snprintf(path, sizeof path, "/proc/%d/status", (int)service.pid);
    FILE *f = fopen(path, "r");
    assert_non_null(f);
    while (fgets(line, sizeof line, f))
        if (strncmp(line, name, strlen(name)) == 0) value = strtol(line + strlen(name), NULL, 10);
    fclose(f);
    return value;
}

/* The service has 300 MB more than now, and 20 s, for pictures of which each took 10 s at least. */
TEST_CASE(pictures_that_expand)
{
    const rlim_t space = ((rlim_t)status_of("VmPeak:") << 10) + (300 << 20);
    struct rlimit seconds;
    if (LIMITS_MEMORY) assert_int_equal(prlimit(service.pid, RLIMIT_AS, &(struct rlimit){space, space}, NULL), 0);
    assert_int_equal(prlimit(service.pid, RLIMIT_CPU, NULL, &seconds), 0);
    seconds.rlim_cur = 20;
    assert_int_equal(prlimit(service.pid, RLIMIT_CPU, &seconds, NULL), 0);
    for (bomb_kind kind = 0; kind < BOMB_KINDS; kind++) {
        png_file f = png_bomb(kind, SIDE, SIDE, GIGABYTES);
        assert_true(f.size < BODY_MAX / 2);
        if (kind == BOMB_HUGE) {
            check_refused(edit(f.data, f.size, NULL, 0), "image: has 16384x16384 pixels, expected 32x32");
        } else { /* a right picture */
            check_refused(edit(f.data, f.size, NULL, 0), "image: no pixel is transparent");
            check_refused(edit(f.data, f.size, f.data, f.size), "mask: no pixel is white");
        }
        free(f.data);
    }
    reply r = service_get(&service, "/health");
    assert_int_equal(r.code, 200);
    reply_free(&r);
}
