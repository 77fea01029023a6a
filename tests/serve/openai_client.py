#!/usr/bin/env python3
"""Uses a service with OpenAI's own client: openai_client.py URL TOKEN SEVEN.png.

SEVEN.png is image 1 of class 7 and seed 5 with guidance 2, as `mar generate` wrote it. The service serves the demo, with
room for no more than 10 images that wait and one that is made, slowly enough that a full queue is seen."""
import base64
import io
import struct
import sys
import urllib.request
import zlib

try:
    import openai
except ImportError:
    print("SKIPPED: no Python package openai")
    sys.exit(77)


def png(rgba, side=32):
    """Returns a PNG of side x side equal pixels, but for the right half, which is transparent."""
    row = b"\0" + bytes(rgba) * (side // 2) + bytes(rgba[:3] + (0,)) * (side // 2)

    def chunk(name, data):
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))

    return (b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", side, side, 8, 6, 0, 0, 0)) +
            chunk(b"IDAT", zlib.compress(row * side)) + chunk(b"IEND", b""))


def refused(kind, call, part):
    try:
        call()
    except kind as error:
        assert part in str(error), error
        return
    raise SystemExit(f"no {kind.__name__}, expected one with {part!r}")


def main(url, token, seven):
    client = openai.OpenAI(base_url=url + "/v1", api_key=token, max_retries=0)
    assert [m.id for m in client.models.list()] == ["demo"]
    assert client.models.retrieve("demo").owned_by == "libmar"

    extra = {"seed": 5, "cfg": 2}
    made = client.images.generate(prompt="7", n=2, size="32x32", response_format="b64_json", extra_body=extra)
    with open(seven, "rb") as file:
        assert base64.b64decode(made.data[1].b64_json) == file.read(), "the picture is not that of mar generate"
    made = client.images.generate(model="demo", prompt="7", size="auto", quality="standard", user="test")
    with urllib.request.urlopen(made.data[0].url) as picture:
        assert picture.read(4) == b"\x89PNG"

    refused(openai.BadRequestError, lambda: client.images.generate(prompt="77"), "class 77: out of range")
    refused(openai.BadRequestError, lambda: client.images.generate(prompt="7", size="1024x1024"), "expected 32x32")
    refused(openai.NotFoundError, lambda: client.images.generate(prompt="7", model="dall-e-3"), "is not served")
    stranger = openai.OpenAI(base_url=url + "/v1", api_key="another token here", max_retries=0)
    refused(openai.AuthenticationError, lambda: stranger.models.list(), "no valid token")
    jobs = [client.post("/jobs", body={"prompt": "1", "n": 10}, cast_to=object) for _ in range(1)]
    refused(openai.RateLimitError, lambda: client.images.generate(prompt="7", n=10), "the queue is full")
    for job in jobs:
        client.post(f"/jobs/{job['id']}/cancel", cast_to=object)

    def edit(image, mask=None):
        files = {"image": ("image.png", io.BytesIO(image), "image/png")}
        if mask:
            files["mask"] = ("mask.png", io.BytesIO(mask), "image/png")
        return client.images.edit(prompt="3", response_format="b64_json", extra_body={"seed": 7}, **files)

    refused(openai.BadRequestError, lambda: edit(png((0, 0, 0, 255), 16)), "has 16x16 pixels, expected 32x32")
    refused(openai.BadRequestError, lambda: edit(b"no PNG"), "is not a whole PNG")
    edited = edit(png((0, 0, 0, 255)))
    assert base64.b64decode(edited.data[0].b64_json)[:4] == b"\x89PNG"
    print("openai_client.py: OpenAI's client", openai.__version__, "works")


main(*sys.argv[1:])
