/* When --preview writes its file, by a clock of the test, and what is in it. */
#include "tools/generate/preview.h"

#include "tests/support/test.h"
#include "tools/cli/command.h"

#include <string.h>

enum { IMAGES = 16, SIDE = 4, STEPS = 64 };

static double now, decode_s, last_written, longest_wait;
static int writes, step, drawn_at[IMAGES]; /* step in which an image was drawn last; -1: never */
static image written;

double __wrap_tool_seconds(void);
void __wrap_mar_session_image_size(const mar_session *s, int *width, int *height);
uint64_t __wrap_mar_session_batch_request(const mar_session *s, int i);
mar_status __wrap_mar_session_preview(mar_session *s, uint64_t id, mar_pixels *out);
int __wrap_image_write(const char *path, const image *picture, image_format format, int quality,
                       const image_text *texts, int count, image_store store);

double __wrap_tool_seconds(void)
{
    return now;
}

void __wrap_mar_session_image_size(const mar_session *s, int *width, int *height)
{
    (void)s;
    *width = *height = SIDE;
}

uint64_t __wrap_mar_session_batch_request(const mar_session *s, int i)
{
    (void)s;
    return (uint64_t)i;
}

mar_status __wrap_mar_session_preview(mar_session *s, uint64_t id, mar_pixels *out)
{
    (void)s;
    now += decode_s;
    drawn_at[id] = step;
    for (size_t y = 0; y < SIDE; y++) memset(out->data + y * out->stride, (int)id, 3 * SIDE);
    return MAR_OK;
}

int __wrap_image_write(const char *path, const image *picture, image_format format, int quality,
                       const image_text *texts, int count, image_store store)
{
    (void)path, (void)format, (void)quality, (void)texts, (void)count, (void)store;
    if (now - last_written > longest_wait) longest_wait = now - last_written;
    last_written = now;
    written = *picture;
    writes++;
    return 0;
}

/* Returns the first byte of image i in the file. */
static int shown(int i)
{
    const size_t row = (size_t)(i / 4), column = (size_t)(i % 4); /* of 4 x 4 */
    return written.rgb[3 * (row * (SIDE + GRID_GAP) * (size_t)written.width + column * (SIDE + GRID_GAP))];
}

/* Makes a batch of 64 steps. Returns the seconds that its steps take. */
static double make_batch(preview *p, double step_s, double image_s)
{
    decode_s = image_s;
    longest_wait = 0;
    last_written = now;
    writes = 0;
    memset(drawn_at, -1, sizeof drawn_at);
    for (step = 0; step < STEPS; step++) {
        now += step_s;
        preview_show(p, NULL, IMAGES);
        if (step == 0)
            for (int i = 0; i < IMAGES; i++) assert_int_equal(shown(i), drawn_at[i] == 0 ? i : 128);
    }
    return STEPS * step_s;
}

/* MAR-B on two cores: a step of 16 images takes 4.5 s, an image's decoding one. One by one the images are drawn, and
 * the file is written every few seconds. Every batch begins grey and ends with its images. */
TEST_CASE(a_slow_decoder)
{
    static uint8_t rgb[IMAGES][SIDE][SIDE][3];
    preview p = {.path = NULL};
    memset(rgb, 200, sizeof rgb);
    assert_int_equal(preview_create(&p, "x.png", NULL, IMAGES), 0);
    for (int batch = 0; batch < 2; batch++) {
        const double began = now, work = make_batch(&p, 4.5, 1);
        if (longest_wait > 11) fail_msg("%.1f s between two writes", longest_wait);
        for (int i = 0; i < IMAGES; i++) assert_true(drawn_at[i] >= 0 && drawn_at[i] >= step - 36);
        const double share = (now - began - work) / (now - began);
        if (share > 0.15) fail_msg("previews take %.0f %% of the time", 100 * share);
        const int before = writes;
        preview_finish(&p, IMAGES, &rgb[0][0][0][0]);
        assert_int_equal(writes, before + 1);
        for (int i = 0; i < IMAGES; i++) assert_int_equal(shown(i), 200);
    }
    preview_free(&p);
}

/* The demo: all images are in each file, in a tenth of the time. */
TEST_CASE(a_fast_decoder)
{
    preview p = {.path = NULL};
    assert_int_equal(preview_create(&p, "x.png", NULL, IMAGES), 0);
    const double began = now, work = make_batch(&p, 0.01, 0.001);
    for (int i = 0; i < IMAGES; i++) assert_int_equal(drawn_at[i], drawn_at[0]);
    assert_true(writes >= 4 && longest_wait < 0.2);
    assert_true((now - began - work) / (now - began) <= 0.12); /* the first is at once */
    preview_free(&p);
}
