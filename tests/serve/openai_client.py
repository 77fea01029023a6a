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
    with open(seven, "rb") as file:
        expected = file.read()
    made = client.images.generate(prompt="7", n=2, size="32x32", extra_body=extra)
    assert base64.b64decode(made.data[1].b64_json) == expected, "the picture is not that of mar generate"
    made = client.images.generate(model="demo", prompt="7", size="auto", quality="high", user="test", background="auto",
                                  output_format="jpeg", output_compression=80)
    assert base64.b64decode(made.data[0].b64_json)[:3] == b"\xff\xd8\xff" and made.output_format == "jpeg"
    assert made.warnings == ["quality: has no effect", "user: has no effect"], made.warnings
    made = client.images.generate(prompt="7", response_format="url")
    with urllib.request.urlopen(made.data[0].url) as picture:
        assert picture.read(4) == b"\x89PNG"

    stream = client.images.generate(prompt="7", n=2, stream=True, partial_images=2, extra_body=extra)
    events = list(stream)
    assert sum(e.type == "image_generation.completed" for e in events) == 2, [e.type for e in events]
    partial = [e for e in events if e.type == "image_generation.partial_image"]
    assert partial and {(e.image, e.partial_image_index) for e in partial} <= {(i, p) for i in range(2) for p in range(2)}
    assert all(base64.b64decode(e.b64_json)[:4] == b"\x89PNG" for e in partial)
    last = [e for e in events if e.type.endswith("completed") and e.image == 1]
    assert base64.b64decode(last[0].b64_json) == expected, "the streamed picture is not that of mar generate"
    refused(openai.BadRequestError, lambda: client.images.generate(prompt="77", stream=True), "class 77: out of range")

    refused(openai.BadRequestError, lambda: client.images.generate(prompt="77"), "class 77: out of range")
    refused(openai.BadRequestError, lambda: client.images.generate(prompt="7", size="1024x1024"), "expected 32x32")
    refused(openai.NotFoundError, lambda: client.images.generate(prompt="7", model="dall-e-3"), "is not served")
    stranger = openai.OpenAI(base_url=url + "/v1", api_key="another token here", max_retries=0)
    refused(openai.AuthenticationError, lambda: stranger.models.list(), "no valid token")
    jobs = [client.post("/jobs", body={"prompt": "1", "n": 10}, cast_to=object) for _ in range(1)]
    refused(openai.RateLimitError, lambda: client.images.generate(prompt="7", n=10), "the queue is full")
    for job in jobs:
        client.post(f"/jobs/{job['id']}/cancel", cast_to=object)

    def edit(image, mask=None, stream=False):
        files = {"image": ("image.png", io.BytesIO(image), "image/png")}
        if mask:
            files["mask"] = ("mask.png", io.BytesIO(mask), "image/png")
        return client.images.edit(prompt="3", stream=stream, extra_body={"seed": 7}, **files)

    refused(openai.BadRequestError, lambda: edit(png((0, 0, 0, 255), 16)), "has 16x16 pixels, expected 32x32")
    refused(openai.BadRequestError, lambda: edit(b"no PNG"), "expected a PNG, a JPEG")
    edited = edit(png((0, 0, 0, 255)))
    assert base64.b64decode(edited.data[0].b64_json)[:4] == b"\x89PNG"
    events = list(edit(png((0, 0, 0, 255)), stream=True))
    assert [e.type for e in events] == ["image_edit.completed"] and events[0].b64_json == edited.data[0].b64_json
    print("openai_client.py: OpenAI's client", openai.__version__, "works")


main(*sys.argv[1:])
