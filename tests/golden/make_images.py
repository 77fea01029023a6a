"""PNG, JPEG and WebP files of every kind, and the RGB pixels that PIL's convert("RGB") makes of them.
python3 tests/golden/make_images.py  ->  tests/golden/data/images

expected.npz has, under the name of each file that is read, uint8 [height][width][3]. PIL writes few kinds of PNG, so they
are written here, from random samples; what they mean is what PIL says."""

import io
import struct
import zlib
from pathlib import Path

import numpy as np
from PIL import Image

OUT = Path(__file__).parent / "data" / "images"
W, H = 37, 23
CHANNELS = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}  # of PNG's colour types: grey, RGB, palette, grey and alpha, RGBA


def chunk(name, data):
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))


def pack(samples, depth):
    """Rows of samples [height][width][channels] as PNG stores them. Of 8 bits every other row is filtered by its left."""
    out = b""
    for y, row in enumerate(samples):
        if depth == 16:
            out += b"\x00" + row.astype(">u2").tobytes()
        elif depth == 8:
            left = np.zeros_like(row)
            left[1:] = row[:-1]
            out += bytes([y % 2]) + (row - y % 2 * left).astype(np.uint8).tobytes()
        else:
            bits = row.reshape(-1, 1) >> np.arange(depth - 1, -1, -1) & 1
            out += b"\x00" + np.packbits(bits.reshape(-1).astype(np.uint8)).tobytes()
    return out


STACK = ["colour_with_clear_value.png", "gamma.png", "grey_with_clear_value.png", "jpeg_420.jpg", "jpeg_422.jpg"]
ADAM7 = [(0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4), (0, 2, 2, 4), (1, 0, 2, 2), (0, 1, 1, 2)]


def png(samples, kind, depth, interlaced=False, extra=b""):
    height, width, _ = samples.shape
    passes = ADAM7 if interlaced else [(0, 0, 1, 1)]
    data = b""
    for x, y, dx, dy in passes:
        part = samples[y::dy, x::dx]
        if part.size:
            data += pack(part, depth)
    header = struct.pack(">IIBBBBB", width, height, depth, kind, 0, 0, int(interlaced))
    return (b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + extra + chunk(b"IDAT", zlib.compress(data, 9)) +
            chunk(b"IEND", b""))


def make_pngs(rng):
    files = {}
    for kind, depths in {0: (1, 2, 4, 8, 16), 2: (8, 16), 3: (1, 2, 4, 8), 4: (8, 16), 6: (8, 16)}.items():
        for depth in depths:
            samples = rng.integers(0, 2**depth, (H, W, CHANNELS[kind]))
            extra = b""
            if kind == 3:
                extra = chunk(b"PLTE", rng.integers(0, 256, 3 * 2**depth, np.uint8).tobytes())
                if depth > 1:  # with transparency
                    extra += chunk(b"tRNS", rng.integers(0, 256, 2**depth, np.uint8).tobytes())
            files[f"png{kind}_{depth}.png"] = png(samples, kind, depth, extra=extra)
            if (kind, depth) in ((0, 2), (0, 16), (2, 8), (3, 4), (6, 16)):
                files[f"png{kind}_{depth}_interlaced.png"] = png(samples, kind, depth, True, extra)
    grey = rng.integers(0, 256, (H, W, 1))
    colour = rng.integers(0, 256, (H, W, 3))
    files["grey_with_clear_value.png"] = png(grey, 0, 8, extra=chunk(b"tRNS", struct.pack(">H", grey[0, 0, 0])))
    files["colour_with_clear_value.png"] = png(colour, 2, 8, extra=chunk(b"tRNS", struct.pack(">3H", *colour[0, 0])))
    files["gamma.png"] = png(colour, 2, 8, extra=chunk(b"gAMA", struct.pack(">I", 100000)))  # is not applied
    return files


def make_jpegs(rng):
    y, x = np.mgrid[0:H, 0:W] / 10.0
    waves = np.stack([np.sin(x + 2 * y), np.cos(3 * x - y), np.sin(x * y)], -1) * 80 + 128
    colour = np.clip(waves + rng.normal(0, 20, (H, W, 3)), 0, 255).astype(np.uint8)
    picture = Image.fromarray(colour)
    files = {}

    def save(name, im=picture, **options):
        out = io.BytesIO()
        im.save(out, "JPEG", **options)
        files[name] = out.getvalue()

    for name, sampling in (("444", "4:4:4"), ("422", "4:2:2"), ("420", "4:2:0")):
        save(f"jpeg_{name}.jpg", subsampling=sampling, quality=90)
    save("jpeg_bad.JPG", quality=5)
    save("jpeg_progressive.jpeg", progressive=True, quality=80)
    save("jpeg_grey.jpg", picture.convert("L"))
    save("jpeg_rgb.jpg", keep_rgb=True, quality=95)
    save("jpeg_restart.jpg", restart_marker_blocks=2, optimize=True)
    exif = Image.Exif()
    exif[0x0112] = 6  # turned by 90 degrees: is not applied
    save("jpeg_turned.jpg", exif=exif, dpi=(72, 72))
    whole = files["jpeg_420.jpg"]
    files["jpeg_more.jpg"] = whole[:-2] + b"\x00\x01\x02" + whole[-2:] + b"behind the end"  # libjpeg warns of it
    return files


def make_cmyk(rng):
    """JPEGs of four colours. PIL writes them inverted, with Adobe's marker, whose last byte is 0: CMYK, or 2: YCCK."""
    noise = Image.fromarray(rng.integers(0, 256, (H // 4 + 1, W // 4 + 1, 4), np.uint8), "CMYK").resize((W, H))
    files = {}
    for name, options in (("jpeg_cmyk.jpg", {}), ("jpeg_cmyk_progressive.jpg", {"progressive": True})):
        out = io.BytesIO()
        noise.save(out, "JPEG", quality=90, **options)
        files[name] = out.getvalue()
    whole = files["jpeg_cmyk.jpg"]
    at = whole.index(b"Adobe")
    files["jpeg_ycck.jpg"] = whole[: at + 11] + b"\x02" + whole[at + 12 :]
    files["jpeg_cmyk_plain.jpg"] = whole[: at - 4] + whole[at + 12 :]  # without the marker
    return files


def make_webps(rng):
    noise = Image.fromarray(rng.integers(0, 256, (H // 4 + 1, W // 4 + 1, 4), np.uint8), "RGBA").resize((W, H))
    files = {}
    for name, picture, options in (
        ("webp_lossy.webp", noise.convert("RGB"), {"quality": 80}),
        ("webp_lossless.webp", noise.convert("RGB"), {"lossless": True}),
        ("webp_lossy_alpha.webp", noise, {"quality": 80}),
        ("webp_lossless_alpha.webp", noise, {"lossless": True, "exact": True}),
    ):
        out = io.BytesIO()
        picture.save(out, "WEBP", **options)
        files[name] = out.getvalue()
    out = io.BytesIO()
    noise.save(out, "WEBP", save_all=True, append_images=[noise.rotate(180)], duration=100)
    files["refused_animated.webp"] = out.getvalue()
    return files


def main():
    OUT.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(77)
    expected = {}
    more = np.random.default_rng(78)
    for name, data in {**make_pngs(rng), **make_jpegs(rng), **make_cmyk(more), **make_webps(more)}.items():
        (OUT / name).write_bytes(data)
        with Image.open(io.BytesIO(data)) as im:
            pixels = np.asarray(im.convert("RGB"))
        if not name.startswith("refused"):
            expected[name] = pixels
    np.savez_compressed(OUT / "expected.npz", **expected)
    (OUT / "square").mkdir(exist_ok=True)  # 32x32 pixels, as the demo's images have
    square = rng.integers(0, 256, (32, 32, 3))
    (OUT / "square" / "a.png").write_bytes(png(square // 32 * 32, 2, 8))
    (OUT / "square" / "b.png").write_bytes(png(square[..., :1] // 16, 3, 4, True, chunk(b"PLTE", bytes(range(48)))))
    Image.fromarray(square.astype(np.uint8)).resize((8, 8)).resize((32, 32)).save(OUT / "square" / "c.jpg", quality=70)
    np.savez(OUT / "stack.npz", np.stack([expected[name] for name in STACK]))


if __name__ == "__main__":
    main()
