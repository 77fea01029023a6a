#include "tools/images/kind.h"

#include "tools/cli/text.h"

#include <string.h>
#include <strings.h>

int image_kind_format(const void *data, size_t size)
{
    const char *p = data;
    if (size >= 8 && memcmp(p, IMAGE_PNG_SIGNATURE, 8) == 0) return IMAGE_PNG;
    if (size >= 3 && memcmp(p, "\xff\xd8\xff", 3) == 0) return IMAGE_JPEG;
    return size >= 12 && memcmp(p, "RIFF", 4) == 0 && memcmp(p + 8, "WEBP", 4) == 0 ? IMAGE_WEBP : -1;
}

const char *image_kind_expected(void)
{
    return image_format_lacks(IMAGE_WEBP) ? "a PNG or a JPEG" : "a PNG, a JPEG or a WebP";
}

static const struct {
    size_t at; /* of the bytes in the file */
    const char *bytes;
    size_t size; /* of the bytes */
    const char *name;
} kinds[] = {
    {0, IMAGE_PNG_SIGNATURE, 8, "a PNG"},
    {0, "\xff\xd8\xff", 3, "a JPEG"},
    {0, "GIF8", 4, "a GIF"},
    {0, "II*\0", 4, "a TIFF"},
    {0, "MM\0*", 4, "a TIFF"},
    {0, "II+\0", 4, "a TIFF"}, /* of 64-bit offsets */
    {0, "MM\0+", 4, "a TIFF"},
    {4, "ftypavif", 8, "an AVIF"},
    {4, "ftypavis", 8, "an AVIF"},
    {4, "ftyphe", 6, "a HEIC"}, /* heic, heix, hevc and others */
    {4, "ftypmif1", 8, "a HEIF"},
    {4, "ftypmsf1", 8, "a HEIF"},
    {4, "ftypqt  ", 8, "a QuickTime film"},
    {4, "ftyp", 4, "an ISO media file (MP4)"},
    {0, "\xff\x0a", 2, "a JPEG XL"},
    {4, "JXL \r\n\x87\n", 8, "a JPEG XL"},
    {4, "jP  \r\n\x87\n", 8, "a JPEG 2000"},
    {0, "\xff\x4f\xff\x51", 4, "a JPEG 2000"},
    {0, "qoif", 4, "a QOI"},
    {0, "8BPS", 4, "a Photoshop file"},
    {0, "v/1\x01", 4, "an OpenEXR file"},
    {0, "\0\0\1\0", 4, "an icon"},
    {0, "%PDF", 4, "a PDF"},
    {0, "%!PS", 4, "a PostScript file"},
    {0, "<svg", 4, "an SVG"},
    {0, "\x93NUMPY", 6, "a NumPy array"},
    {0, "version https://git-lfs", 23, "a Git LFS pointer"},
    {0, "Rar!", 4, "an archive"},
    {0, "7z\xbc\xaf\x27\x1c", 6, "an archive"},
    {257, "ustar", 5, "a tar archive"},
    {0, "\x1f\x8b", 2, "a gzip file"},
    {0, "\x28\xb5\x2f\xfd", 4, "a zstd file"},
    {0, "\x80\x02\x8a\x0al\xfc\x9c", 7, "a PyTorch file"}, /* before PyTorch 1.6: a pickle of its magic number */
    {0, "GGUF", 4, "a GGUF file"},
    {0, "\x89HDF\r\n\x1a\n", 8, "an HDF5 file"},
    {0,
     "\x7f"
     "ELF",
     4, "a program"},
};

static int has_bytes(const void *data, size_t size, const char *text)
{
    return memmem(data, size, text, strlen(text)) != NULL;
}

/* Returns what a zip file has by its entries' names, which are in plain text. */
static const char *zip_kind(const void *data, size_t size)
{
    return has_bytes(data, size, "data.pkl") ? "a PyTorch file"
           : has_bytes(data, size, ".npy")   ? "an npz"
                                             : "a zip file";
}

/* Returns whether the file begins with a tag of HTML, in either case, behind spaces. */
static int is_html(const char *p, size_t size)
{
    static const char *const tags[] = {"<!doctype html", "<html", "<head", "<body"};
    while (size > 0 && strchr(" \t\r\n", *p) && *p) p++, size--;
    for (size_t i = 0; i < sizeof tags / sizeof *tags; i++)
        if (size >= strlen(tags[i]) && strncasecmp(p, tags[i], strlen(tags[i])) == 0) return 1;
    return 0;
}

/* Returns whether the file is in Netpbm's formats (P1 to P7). */
static int is_netpbm(const char *p, size_t size)
{
    return size >= 3 && p[0] == 'P' && p[1] >= '1' && p[1] <= '7' && strchr(" \t\r\n", p[2]) && p[2];
}

/* Returns the kind, or NULL if it is not known. */
static const char *kind_of(const char *p, size_t size)
{
    uint64_t header = 0;
    if (image_kind_format(p, size) == IMAGE_WEBP) return "a WebP";
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        if (size >= kinds[i].at + kinds[i].size && memcmp(p + kinds[i].at, kinds[i].bytes, kinds[i].size) == 0)
            return kinds[i].name;
    if (size >= 4 && (memcmp(p, "PK\3\4", 4) == 0 || memcmp(p, "PK\5\6", 4) == 0)) return zip_kind(p, size);
    if (size >= 6 && memcmp(p, "BM", 2) == 0 && memcmp(p + 6, "\0\0\0\0", size < 10 ? size - 6 : 4) == 0)
        return "a BMP";
    if (size >= 2 && p[0] == '\x80' && p[1] >= 2 && p[1] <= 5) return "a Python pickle";
    if (is_html(p, size)) return "HTML";
    if (is_netpbm(p, size)) return "a PPM, PGM or PBM";
    for (size_t i = 0; i < 8 && size > 8; i++) header |= (uint64_t)(uint8_t)p[i] << 8 * i;
    return header > 0 && header <= size - 8 && p[8] == '{' ? "a safetensors file" : NULL;
}

int image_refuse_kind(const void *data, size_t size, const char *expected, char why[IMAGE_WHY_MAX])
{
    enum { SHOWN = 16 };
    char start[SHOWN + 1];
    const uint8_t *p = data;
    const char *kind = kind_of(data, size);
    const size_t n = size < SHOWN ? size : SHOWN;
    if (size == 0) return text_fail(why, IMAGE_WHY_MAX, "is empty, expected %s", expected);
    if (kind) return text_fail(why, IMAGE_WHY_MAX, "is %s, expected %s", kind, expected);
    for (size_t i = 0; i < n; i++) start[i] = (char)(p[i] >= 32 && p[i] < 127 ? p[i] : '.');
    start[n] = '\0';
    return text_fail(why, IMAGE_WHY_MAX, "%zu bytes that begin with \"%s\", expected %s", size, start, expected);
}
