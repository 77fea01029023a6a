/* Reference statistics. Written files read back, the statistics of the real digits are right, and a wrong file gets a
 * message. */
#include "tests/support/archive.h"
#include "tests/support/golden_doubles.h"

#include "eval/frechet.h"
#include "eval/moments.h"
#include "eval/reference.h"
#include "weights/npy.h"
#include "weights/npz.h"

#include <math.h>
#include <string.h>

typedef struct {
    const char *name;
    npz_dtype dtype;
    int rank;
    int64_t shape[4];
    const void *data;
} array;

static const char *file_path(void)
{
    static char *path;
    if (!path) path = test_path("r.npz");
    return path;
}

/* Writes arrays up to the first without a name. */
static void write_file(const array *a)
{
    char why[NPZ_WHY_MAX] = "";
    npz_writer *w = NULL;
    if (npz_writer_open(file_path(), 1, &w, why) != MAR_OK) fail_msg("%s", why);
    for (; a->name; a++)
        if (npz_writer_add(w, a->name, a->dtype, a->rank, a->shape, a->data, why) != MAR_OK) fail_msg("%s", why);
    if (npz_writer_commit(w, why) != MAR_OK) fail_msg("%s", why);
}

TEST_CASE(there_and_back)
{
    double mu[2] = {1, -2.5}, sigma[4] = {2, 0.1, 0.1, 3}, mu_s[1] = {7}, sigma_s[1] = {0.3};
    float features[6] = {1, 2, 3, 4, 5.5f, -6};
    const eval_reference r = {.dim = 2,
                              .mu = mu,
                              .sigma = sigma,
                              .spatial = 1,
                              .mu_s = mu_s,
                              .sigma_s = sigma_s,
                              .features = features,
                              .feature_count = 3,
                              .images = 12345,
                              .resize = 0};
    eval_reference back;
    char why[512] = "";
    if (eval_reference_save(file_path(), &r, why, sizeof why) != MAR_OK) fail_msg("%s", why);
    if (eval_reference_load(file_path(), &back, why, sizeof why) != MAR_OK) fail_msg("%s", why);
    assert_string_equal(back.path, file_path());
    assert_true(back.dim == 2 && back.spatial == 1 && back.feature_count == 3 && back.images == 12345);
    assert_int_equal(back.pictures, 0);
    assert_int_equal(back.resize, 0);
    assert_memory_equal(back.mu, mu, sizeof mu);
    assert_memory_equal(back.sigma, sigma, sizeof sigma);
    assert_memory_equal(back.mu_s, mu_s, sizeof mu_s);
    assert_memory_equal(back.sigma_s, sigma_s, sizeof sigma_s);
    assert_memory_equal(back.features, features, sizeof features);
    eval_reference_free(&back);

    /* Optional arrays may be absent: no error, and no array. */
    if (eval_reference_save(file_path(), &(eval_reference){.dim = 2, .mu = mu, .sigma = sigma, .resize = -1}, why,
                            sizeof why))
        fail_msg("%s", why);
    if (eval_reference_load(file_path(), &back, why, sizeof why) != MAR_OK) fail_msg("%s", why);
    assert_true(back.dim == 2 && !back.spatial && !back.mu_s && !back.sigma_s && !back.features && !back.images);
    assert_int_equal(back.resize, -1);
    eval_reference_free(&back);
    assert_int_equal(eval_reference_save("/nowhere/r.npz", &r, why, sizeof why), MAR_EIO);
    assert_non_null(strstr(why, "/nowhere/"));
}

/* Published statistics files: a float32 mean with a float64 covariance, and ADM's, with images. */
TEST_CASE(as_published)
{
    const float mu[2] = {1, 2};
    const double sigma[4] = {2, 0.1, 0.1 + 1e-8, 3};
    const uint8_t images[2 * 2 * 2 * 3] = {0};
    eval_reference r;
    char why[512] = "";
    write_file((array[]){{"mu", NPZ_F32, 1, {2}, mu},
                         {"arr_0", NPZ_U8, 4, {2, 2, 2, 3}, images},
                         {"sigma", NPZ_F64, 2, {2, 2}, sigma},
                         {0}});
    if (eval_reference_load(file_path(), &r, why, sizeof why) != MAR_OK) fail_msg("%s", why);
    assert_true(r.dim == 2 && r.mu[1] == 2 && r.pictures == 2);
    assert_int_equal(r.images, 0); /* ADM's mu and sigma are of more images than arr_0 */
    assert_true(r.sigma[1] == r.sigma[2]);
    assert_near(r.sigma[1], 0.1 + 0.5e-8, 1e-15);
    eval_reference_free(&r);
    write_file((array[]){{"arr_0", NPZ_U8, 4, {2, 2, 2, 3}, images}, {0}});
    if (eval_reference_load(file_path(), &r, why, sizeof why) != MAR_OK) fail_msg("%s", why);
    assert_true(r.dim == 0 && !r.mu && r.pictures == 2 && r.images == 2);
    eval_reference_free(&r);
}

TEST_CASE(digits)
{
    eval_reference r;
    char why[512] = "";
    if (eval_reference_load("demo", &r, why, sizeof why) != MAR_OK) fail_msg("%s", why);
    assert_true(r.dim == 64 && r.spatial == 0 && r.feature_count == 1797 && r.images == 1797);
    /* The statistics are those of the features, up to their rounding to float16. */
    eval_moments m;
    double mean[64], covariance[64 * 64], distance = -1;
    assert_int_equal(eval_moments_create(64, &m), MAR_OK);
    eval_moments_add(&m, r.features, (int)r.feature_count);
    eval_moments_finish(&m, mean, covariance);
    for (int i = 0; i < 64; i++) assert_near(mean[i], r.mu[i], 1e-3);
    for (int i = 0; i < 64 * 64; i++) assert_near(covariance[i], r.sigma[i], 1e-2);
    assert_int_equal(eval_frechet(64, &(eval_gaussian){mean, covariance}, &(eval_gaussian){r.mu, r.sigma}, &distance,
                                  why, sizeof why),
                     MAR_OK);
    assert_near(distance, 0, 1e-4);
    eval_moments_free(&m);
    eval_reference_free(&r);
    eval_reference_free(&r); /* freeing {0} is allowed */
}

TEST_CASE(refused)
{
    static const double mu[4] = {1, 2, 3, 4}, nan_mu[2] = {1, NAN}, sigma[4] = {2, 0.1, 0.1, 3}, skew[4] = {2, 1, 0, 3},
                        negative[4] = {2, 0, 0, -1}, zero = 0;
    static const uint8_t black[24] = {0};
    static const int32_t numbers[24] = {0};
    static const struct {
        array arrays[4];
        const char *says;
    } cases[] = {
        {{{"mu", NPZ_F64, 1, {2}, mu}}, "r.npz: has no array \"sigma\"; it has \"mu\""},
        {{{"sigma", NPZ_F64, 2, {2, 2}, sigma}}, "r.npz: has no array \"mu\"; it has \"sigma\""},
        {{{"x", NPZ_F64, 1, {2}, mu}}, "it has \"x\", expected mu and sigma, or images in arr_0"},
        {{{"mu", NPZ_F64, 1, {4}, mu}, {"sigma", NPZ_F64, 2, {2, 2}, sigma}}, "sigma is [2][2], expected [4][4]"},
        {{{"mu", NPZ_F64, 2, {2, 2}, mu}, {"sigma", NPZ_F64, 2, {2, 2}, sigma}}, "mu is [2][2], expected [n]"},
        {{{"mu", NPZ_F64, 1, {2}, nan_mu}, {"sigma", NPZ_F64, 2, {2, 2}, sigma}}, "mu has a number that is not finite"},
        {{{"mu", NPZ_F64, 1, {2}, mu}, {"sigma", NPZ_F64, 2, {2, 2}, skew}},
         "sigma is not symmetric, expected a covariance"},
        {{{"mu", NPZ_F64, 1, {2}, mu}, {"sigma", NPZ_F64, 2, {2, 2}, negative}},
         "sigma has a variance of -1, expected none below 0"},
        {{{"mu", NPZ_F64, 1, {2}, mu}, {"sigma", NPZ_F64, 2, {2, 2}, sigma}, {"mu_s", NPZ_F64, 1, {2}, mu}},
         "has no array \"sigma_s\""},
        {{{"mu", NPZ_F64, 1, {2}, mu}, {"sigma", NPZ_F64, 2, {2, 2}, sigma}, {"features", NPZ_F64, 2, {1, 4}, mu}},
         "features is [1][4], expected [n][2]"},
        {{{"mu", NPZ_F64, 1, {2}, mu}, {"sigma", NPZ_F64, 2, {2, 2}, sigma}, {"num_images", NPZ_F64, 0, {0}, &zero}},
         "num_images is 0, expected 1 or more"},
        {{{"mu", NPZ_F64, 1, {2}, mu}, {"sigma", NPZ_F64, 2, {2, 2}, sigma}, {"num_images", NPZ_F64, 1, {2}, mu}},
         "num_images is [2], expected one number"},
        {{{"arr_0", NPZ_U8, 4, {2, 2, 6, 1}, black}}, "arr_0 is [2][2][6][1], expected [n][n][n][3]"},
        {{{"arr_0", NPZ_I32, 4, {2, 2, 2, 3}, numbers}}, "arr_0 has numbers of another type, expected images in uint8"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        eval_reference r;
        char why[512] = "";
        write_file(cases[i].arrays);
        assert_int_equal(eval_reference_load(file_path(), &r, why, sizeof why), MAR_EMODEL);
        if (!strstr(why, cases[i].says) || !strstr(why, file_path()))
            fail_msg("\"%s\", expected \"%s\"", why, cases[i].says);
        assert_true(!r.mu && !r.sigma && !r.features);
    }
    eval_reference r;
    char why[512] = "";
    assert_int_equal(eval_reference_load("/nowhere/r.npz", &r, why, sizeof why), MAR_EIO);
    FILE *f = fopen(file_path(), "wb");
    assert_non_null(f);
    fputs("no zip and no array, but long enough to be looked at", f);
    fclose(f);
    assert_int_equal(eval_reference_load(file_path(), &r, why, sizeof why), MAR_EFORMAT);
    assert_non_null(strstr(why, file_path()));
}

/* Makes a .npy file of zeros. */
static bytes zeros(npz_dtype dtype, int rank, const int64_t *shape, size_t size)
{
    bytes b = {0};
    uint8_t header[NPY_WRITTEN_MAX];
    bytes_put(&b, header, npy_write(dtype, rank, shape, header));
    bytes_number(&b, 0, (int)size);
    return b;
}

static void expect_too_large(const zip_part *parts, int count, const char *claims_size, const char *says)
{
    enum { IMAGES = (1 << 23) + 1, DIM = 64 };
    eval_reference r;
    char why[512] = "";
    bytes file = make_zip(parts, count, 0);
    uint8_t *entry = NULL;
    for (size_t at = 0; claims_size && at + 46 + strlen(claims_size) <= file.size; at++)
        if (memcmp(file.data + at, "PK\1\2", 4) == 0 &&
            memcmp(file.data + at + 46, claims_size, strlen(claims_size)) == 0)
            entry = file.data + at;
    const uint32_t size = 128 + IMAGES * DIM;
    for (int i = 0; entry && i < 4; i++) entry[24 + i] = (uint8_t)(size >> 8 * i);
    bytes_to_file(&file, file_path());
    const mar_status status = eval_reference_load(file_path(), &r, why, sizeof why);
    if (status != MAR_EMODEL || !strstr(why, says)) fail_msg("\"%s\", expected \"%s\"", why, says);
    bytes_free(&file);
}

/* Half a megabyte claims to be 512 MB of compressed features. Checks that it is refused before 2 GB are allocated. */
TEST_CASE(small_files_stay_small)
{
    enum { IMAGES = (1 << 23) + 1, DIM = 64, BLOCKS = 9 };
    const int64_t shape[2] = {DIM, DIM}, wide[1] = {8193}, features[2] = {IMAGES, DIM};
    bytes mu = zeros(NPZ_F64, 1, shape, DIM * 8), sigma = zeros(NPZ_F64, 2, shape, DIM * DIM * 8),
          wide_mu = zeros(NPZ_F64, 1, wide, 8193 * 8), header = zeros(NPZ_U8, 2, features, 0), packed = {0};
    assert_int_equal(header.size, 128);
    bytes_put(&packed, (const uint8_t[]){0, 128, 0, 0x7f, 0xff}, 5); /* a stored block of 128 bytes */
    bytes_put(&packed, header.data, header.size);
    for (int i = 0; i < BLOCKS; i++) {
        bytes_put(&packed, (const uint8_t[]){0, 0xff, 0xff, 0, 0}, 5);
        bytes_number(&packed, 0, 65535);
    }
    const zip_part parts[] = {{"mu.npy", mu.data, mu.size, 0, 0, npz_crc(mu.data, mu.size)},
                              {"sigma.npy", sigma.data, sigma.size, 0, 0, npz_crc(sigma.data, sigma.size)},
                              {"features.npy", packed.data, packed.size, 8, 0, 0}};
    expect_too_large(parts, 3, "features.npy", "features are 8388609 images, compressed, expected at most 8388608");
    const zip_part wide_parts[] = {{"mu.npy", wide_mu.data, wide_mu.size, 0, 0, npz_crc(wide_mu.data, wide_mu.size)}};
    expect_too_large(wide_parts, 1, NULL, "mu has 8193 numbers, expected 8192 at most");
    bytes_free(&mu), bytes_free(&sigma), bytes_free(&wide_mu), bytes_free(&header), bytes_free(&packed);
}

/* A cache of torch-fidelity's is a file of torch.save: it is called that. */
TEST_CASE(files_of_torch)
{
    eval_reference r;
    char why[512] = "";
    assert_int_equal(eval_reference_load("tests/weights/data/views.pt", &r, why, sizeof why), MAR_EFORMAT);
    assert_string_equal(why, "tests/weights/data/views.pt: is a file of torch.save, expected a .npz: "
                             "numpy.savez(\"stats.npz\", mu=mu, sigma=sigma)");
}
