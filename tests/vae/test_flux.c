/* Flux's KL autoencoder, NextStep-1's, against the official code (tests/golden/make_flux_vae.py): both sides, from the
 * folder of its release, from its file, from the folder of a model and from a converted file; configurations that are
 * refused. */
#include "tests/support/support.h"
#include "tests/support/tensor_files.h"

#include "kernels/pixels.h"
#include "mar_files.h"
#include "vae/vae.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { Z = 4, STRIDE = 4, TENSORS = 148 };
static const int grids[][2] = {{4, 4}, {3, 5}}, picture_grid[2] = {4, 6};

/* The release's config.json, without its last number's end. */
#define CONFIG                                                                                                         \
    "{\"resolution\": 16, \"in_channels\": 3, \"ch\": 32, \"out_ch\": 3, \"ch_mult\": [1, 2, 2], "                     \
    "\"num_res_blocks\": 1, \"z_channels\": 4, \"deterministic\": true, "
static const char usual[] = CONFIG "\"scaling_factor\": 0.3611, \"shift_factor\": 0.1159, \"encoder_norm\": false}",
                  normed[] = CONFIG "\"scaling_factor\": 0.3611, \"shift_factor\": 0.1159, \"encoder_norm\": true, "
                                    "\"psz\": null}",
                  patches[] = CONFIG "\"scaling_factor\": 0.3611, \"shift_factor\": 0.1159, \"encoder_norm\": true, "
                                     "\"psz\": 2}";

/* --- files -------------------------------------------------------------------------------------------------------- */

/* Writes FOLDER/vae with this config.json, unless it is NULL. Returns the path, valid until the next call. */
static const char *write_release(const char *folder, const char *config)
{
    static char path[PATH_MAX];
    file_tensor *tensors = calloc(FILE_TENSORS_MAX, sizeof *tensors);
    assert_non_null(tensors);
    snprintf(path, sizeof path, "%s/vae", folder);
    assert_int_equal(mkdir(path, 0700), 0);
    const int count = tensors_drawn("flux_vae_tensors.txt", tensors);
    assert_int_equal(count, TENSORS);
    tensors_write_torch(path, "checkpoint.pt", NULL, tensors, count);
    tensors_free(tensors, count);
    free(tensors);
    bytes b = {0};
    if (config) bytes_text(&b, config);
    if (config) bytes_to_folder(path, "config.json", &b);
    return path;
}

/* Writes the other files of a model's folder. */
static void write_model(const char *folder)
{
    file_tensor t = {.name = "image_in_projector.weight", .rank = 2, .shape = {2, 3}};
    bytes b = {0};
    tensor_draw(&t, t.name, 0);
    tensors_write_safetensors(folder, "model.safetensors", &t, 1);
    bytes_text(&b, "{\"model_type\": \"nextstep\"}");
    bytes_to_folder(folder, "config.json", &b);
    bytes_free(&t.data);
}

static const char *inside(const char *folder, const char *name)
{
    static char path[PATH_MAX];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    return path;
}

/* Opens a file or a folder, with what its config.json says. */
static wt_file *open_flux(const char *path)
{
    wt_file *f = NULL;
    mar_err err = {0};
    if (wt_is_folder(path))
        assert_ok(wt_open_folder(path, MAR_WEIGHTS_AUTO, &f, &err), &err);
    else
        f = open_weights(path);
    assert_ok(vae_config_complete(f, &err), &err);
    return f;
}

/* --- numbers ------------------------------------------------------------------------------------------------------ */

/* A decoder and a run for an image. */
typedef struct {
    kern_queue *k;
    vae_decoder *d;
    vae_run *r;
    void *memory;
    size_t tokens, values; /* numbers of an image's tokens and pixels */
} running;

static running begin_run(const wt_file *f, mar_dtype dtype, int threads, const int grid[2], int encoder)
{
    running run = {.k = open_queue(dtype, threads)};
    mar_err err = {0};
    if (!run.k) skip(); /* a processor without bf16 */
    assert_ok(vae_decoder_create(run.k, f, &run.d, &err), &err);
    if (encoder) assert_ok(vae_decoder_add_encoder(run.d, run.k, f, &err), &err);
    assert_ok(vae_run_create(run.k, run.d, grid[0], grid[1], 1, VAE_MEMORY, &run.r, &err), &err);
    assert_ok(vae_run_plan(run.r, 1, &err), &err);
    vae_run_lay_out(run.r, run.memory = backend_memory(run.k, vae_run_lay_out(run.r, NULL)));
    run.tokens = (size_t)(grid[0] * grid[1] * Z);
    run.values = (size_t)(grid[0] * grid[1] * STRIDE * STRIDE * 3);
    return run;
}

static void end_run(running *run)
{
    mar_err err = {0};
    assert_ok(kern_check(run->k, &err), &err);
    vae_run_free(run->r);
    vae_decoder_free(run->d);
    run->k->core->free(run->k->device, run->memory);
    close_queue(run->k);
}

static float *golden(const char *what, const int *grid, size_t count)
{
    char name[64];
    wt_file *f = golden_open("flux_vae");
    snprintf(name, sizeof name, "%s_%dx%d", what, grid[0], grid[1]);
    float *values = golden_f32(f, grid == picture_grid ? what : name, (int64_t)count);
    wt_close(f);
    return values;
}

/* Compares the golden images. The bytes are the official ones of the official pixels, and differ by rounding only. */
static void check_decoder(const wt_file *f, mar_dtype dtype, double tolerance, int byte_tolerance)
{
    for (size_t g = 0; g < sizeof grids / sizeof *grids; g++) {
        running run = begin_run(f, dtype, 2, grids[g], 0);
        float *tokens = golden("tokens", grids[g], run.tokens), *expected = golden("image", grids[g], run.values),
              *byte = golden("bytes", grids[g], run.values), *pixels = malloc(run.values * sizeof *pixels);
        uint8_t *rgb = malloc(run.values);
        void *at = backend_memory(run.k, run.tokens * sizeof *tokens);
        assert_true(pixels && rgb);
        run.k->core->upload(run.k, at, tokens, run.tokens * sizeof *tokens);
        const vae_pictures p = vae_decode(run.r, at, 1);
        run.k->core->download(run.k, pixels, p.pixels, run.values * sizeof *pixels);
        run.k->core->download(run.k, rgb, p.bytes, run.values);
        assert_close(pixels, expected, run.values, tolerance);
        for (size_t i = 0; i < run.values; i++) {
            assert_int_equal(byte[i], kern_pixel_byte(expected[i], KERN_BYTES_NEAREST));
            assert_int_equal(rgb[i], kern_pixel_byte(pixels[i], KERN_BYTES_NEAREST));
            assert_true(abs(rgb[i] - (int)byte[i]) <= byte_tolerance);
        }
        run.k->core->free(run.k->device, at);
        free(tokens), free(expected), free(byte), free(pixels), free(rgb);
        end_run(&run);
    }
}

/* Compares the tokens of the golden picture. */
static void check_encoder(const wt_file *f, const char *expected_name, mar_dtype dtype, double tolerance)
{
    running run = begin_run(f, dtype, 2, picture_grid, 1);
    float *expected = golden(expected_name, picture_grid, run.tokens),
          *rgb = golden("picture", picture_grid, run.values), *tokens = malloc(run.tokens * sizeof *tokens);
    uint8_t *picture = malloc(run.values);
    assert_true(tokens && picture);
    for (size_t i = 0; i < run.values; i++) picture[i] = (uint8_t)rgb[i];
    vae_encode(run.r, picture, (size_t)(picture_grid[1] * STRIDE) * 3, 3, tokens);
    assert_close(tokens, expected, run.tokens, tolerance);
    free(expected), free(rgb), free(tokens), free(picture);
    end_run(&run);
}

TEST_CASE(both_sides_are_the_official_codes)
{
    static const struct {
        const char *config, *tokens;
    } sides[] = {{usual, "encoded_plain"}, {normed, "encoded_normed"}, {patches, "encoded_patches"}};
    for (size_t i = 0; i < sizeof sides / sizeof *sides; i++) {
        wt_file *f = open_flux(write_release(test_directory(), sides[i].config));
        check_decoder(f, MAR_DTYPE_F32, 1e-5, 1);
        check_encoder(f, sides[i].tokens, MAR_DTYPE_F32, 1e-5);
        wt_close(f);
    }
}

/* bf16 rounds every operand to 8 bits. */
TEST_CASE(bf16_is_near)
{
    wt_file *f = open_flux(write_release(test_directory(), patches));
    check_decoder(f, MAR_DTYPE_BF16, 2.5e-2, 12);
    check_encoder(f, "encoded_patches", MAR_DTYPE_BF16, 2.5e-2);
    wt_close(f);
}

/* --- where it is ---------------------------------------------------------------------------------------------------
 */

/* Loads a decoder by the public call. Returns its configuration, whose hash depends on where the numbers stand. */
static mar_vae_config load_public(const char *path)
{
    mar *m = open_mar(MAR_DTYPE_F32, 1);
    mar_vae *vae = NULL;
    mar_source source;
    mar_source_init(&source, sizeof source);
    source.path = path;
    source.encoder = 1;
    assert_library(m, mar_vae_load_from(m, &source, &vae));
    const mar_vae_config c = *mar_vae_get_config(vae);
    mar_vae_free(vae);
    mar_close(m);
    return c;
}

static void check_config(const mar_vae_config *c)
{
    assert_int_equal(c->z_channels, Z);
    assert_int_equal(c->stride, STRIDE);
    assert_int_equal(c->levels, 3);
    assert_int_equal(c->res_blocks, 1);
    assert_int_equal(c->channels, 32);
    assert_int_equal(c->norm, 2);
    assert_true(c->scale == 0.3611f && c->shift == 0.1159f);
}

TEST_CASE(folder_file_and_converted_file_are_one)
{
    const char *folder = write_release(test_directory(), patches);
    char *converted = test_path("flux.safetensors"), file[PATH_MAX];
    snprintf(file, sizeof file, "%s", inside(folder, "checkpoint.pt"));
    mar *m = open_mar(MAR_DTYPE_F32, 1);
    assert_library(m, mar_convert(m, folder, converted, MAR_DTYPE_AUTO, 0));
    mar_close(m);
    const char *const paths[] = {folder, file, converted};
    for (int i = 0; i < 3; i++) {
        const mar_vae_config c = load_public(paths[i]);
        check_config(&c);
        wt_file *f = open_flux(paths[i]);
        assert_true(!vae_config_is_vq(f) && vae_config_is_flux(f));
        assert_string_equal(vae_config_made_for(f), "NextStep-1");
        check_decoder(f, MAR_DTYPE_F32, 1e-5, 1);
        check_encoder(f, "encoded_patches", MAR_DTYPE_F32, 1e-5);
        wt_close(f);
    }
}

typedef struct {
    const wt_file *f;
    int seen;
} counting;

static void count_inside(void *user, const char *name, int rank, const int64_t *shape)
{
    counting *c = user;
    const wt_tensor *t = wt_find(c->f, name);
    if (!t || t->rank != rank || memcmp(t->shape, shape, (size_t)rank * sizeof *shape) != 0) fail_msg("%s", name);
    c->seen++;
}

TEST_CASE(the_folder_of_a_model_has_it)
{
    const char *folder = test_directory();
    mar_err err = {0};
    mar_vae_config c;
    wt_file *decoder = NULL;
    write_release(folder, patches);
    write_model(folder);
    wt_file *f = open_flux(folder);
    assert_int_equal(wt_count(f), TENSORS + 1);
    assert_string_equal(wt_format(f), "safetensors");
    assert_ok(vae_open_inside(f, &decoder, &err), &err);
    assert_ok(vae_config_derive(decoder, &c, &err), &err);
    check_config(&c);
    counting count = {.f = f};
    vae_inside_tensors(f, &c, count_inside, &count);
    assert_int_equal(count.seen, TENSORS);
    check_decoder(decoder, MAR_DTYPE_F32, 1e-5, 1);
    wt_close(decoder);
    wt_close(f);
    c = load_public(folder);
    check_config(&c);
    f = open_weights(inside(folder, "model.safetensors"));
    decoder = f;
    assert_ok(vae_open_inside(f, &decoder, &err), &err);
    assert_null(decoder);
    wt_close(f);
}

TEST_CASE(a_report_names_its_numbers)
{
    static const char latents[] = "latents: tokens / 0.3611 + 0.1159; the encoder normalises 2x2 of them together";
    mar *m = open_mar(MAR_DTYPE_F32, 1);
    mar_report *r = NULL;
    int found = 0;
    assert_library(m, mar_inspect(m, write_release(test_directory(), patches), 0, &r));
    assert_int_equal(mar_report_problem_count(r), 0);
    for (int i = 0; i < mar_report_fact_count(r); i++) found += strcmp(mar_report_fact(r, i), latents) == 0;
    assert_int_equal(found, 1);
    mar_report_free(r);
    mar_close(m);
}

/* --- what is refused ---------------------------------------------------------------------------------------------- */

/* Expects the decoder with this config.json, or without one, to be refused in a line with file and reason. */
static void expect_refused(const char *config, const char *reason)
{
    mar_err err = {0};
    mar_vae_config c;
    const char *path = inside(write_release(test_directory(), config), "checkpoint.pt");
    wt_file *f = open_weights(path);
    mar_status status = vae_config_complete(f, &err);
    if (status == MAR_OK) status = vae_config_derive(f, &c, &err);
    if ((status != MAR_EMODEL && status != MAR_EFORMAT) || !strstr(err.text, reason) || strchr(err.text, '\n') ||
        strncmp(err.text, path, strlen(path) - strlen("checkpoint.pt")) != 0)
        fail_msg("expected \"%s\": %s (%s)", reason, mar_status_name(status), err.text);
    wt_close(f);
}

#define NUMBERS "\"scaling_factor\": 1, \"shift_factor\": 0"

TEST_CASE(other_configurations_are_refused)
{
    static const char *const scales[] = {"0", "-1", "NaN", "1e-60", "1e7"}, *const shifts[] = {"Infinity", "-1e7"},
                             *const sides[] = {"0", "65", "1.5", "-1"};
    char config[256], reason[256];
    for (size_t i = 0; i < sizeof scales / sizeof *scales; i++) {
        snprintf(config, sizeof config, "{\"scaling_factor\": %s, \"shift_factor\": 0}", scales[i]);
        snprintf(reason, sizeof reason, "has scaling_factor %s, expected a positive number", scales[i]);
        expect_refused(config, reason);
    }
    for (size_t i = 0; i < sizeof shifts / sizeof *shifts; i++) {
        snprintf(config, sizeof config, "{\"scaling_factor\": 1, \"shift_factor\": %s}", shifts[i]);
        snprintf(reason, sizeof reason, "has shift_factor %s, expected a number", shifts[i]);
        expect_refused(config, reason);
    }
    for (size_t i = 0; i < sizeof sides / sizeof *sides; i++) {
        snprintf(config, sizeof config, "{" NUMBERS ", \"encoder_norm\": true, \"psz\": %s}", sides[i]);
        snprintf(reason, sizeof reason, "metadata mar.vae_psz, has psz %s, expected null or 1 to 64", sides[i]);
        expect_refused(config, reason);
    }
    expect_refused("{\"scaling_factor\": [1], \"shift_factor\": 0}", "has scaling_factor array, expected a positive");
    expect_refused("{\"scaling_factor\": 1, \"shift_factor\": \"0\"}", "has shift_factor string, expected a number");
    expect_refused("{" NUMBERS ", \"encoder_norm\": 1}", "has encoder_norm 1, expected true or false");
    expect_refused("{", "is no valid JSON");
}

TEST_CASE(nothing_of_a_configuration_may_be_missing)
{
    static const char no_number[] =
        "and no scaling_factor of a decoder without it: expected scaling_factor (a positive number) in a "
        "config.json beside it";
    expect_refused(NULL, no_number);
    expect_refused("{}", no_number);
    expect_refused("{\"scaling_factor\": 1}", "and no shift_factor of a decoder without it");
    expect_refused("{" NUMBERS "}", "and no encoder_norm of a decoder without it");
}

TEST_CASE(a_grid_of_half_patches_is_refused)
{
    wt_file *f = open_flux(write_release(test_directory(), patches));
    kern_queue *k = open_queue(MAR_DTYPE_F32, 1);
    vae_decoder *d = NULL;
    vae_run *r = NULL;
    mar_err err = {0};
    assert_ok(vae_decoder_create(k, f, &d, &err), &err);
    assert_ok(vae_run_create(k, d, 3, 4, 1, VAE_MEMORY, &r, &err), &err); /* to decode */
    vae_run_free(r);
    assert_ok(vae_decoder_add_encoder(d, k, f, &err), &err);
    assert_int_equal(vae_run_create(k, d, 3, 4, 1, VAE_MEMORY, &r, &err), MAR_EMODEL);
    assert_string_equal(err.text, "latent grid 3x4: the encoder normalises 2x2 latents together, expected a multiple");
    vae_decoder_free(d);
    wt_close(f);
    close_queue(k);
}
