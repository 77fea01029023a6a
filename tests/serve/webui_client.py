#!/usr/bin/env python3
"""Uses a service with a client of AUTOMATIC1111's API, the package webuiapi: webui_client.py URL. The service serves
demo-harmon with --accept_any_size."""
import sys

try:
    import webuiapi
    from PIL import Image, ImageChops, ImageStat
except ImportError:
    print("SKIPPED: no Python package webuiapi")
    sys.exit(77)


def refused(call, message):
    try:
        call()
    except RuntimeError as error:
        assert error.args[0] == 400 and message in error.args[1], error.args
    else:
        raise SystemExit("taken, expected: " + message)


def distance(a, b, box):
    """The mean of absolute differences in a box."""
    return sum(ImageStat.Stat(ImageChops.difference(a, b).crop(box)).mean)


def main(url):
    client = webuiapi.WebUIApi(baseurl=url + "/sdapi/v1")
    assert client.util_get_model_names() == ["demo-harmon"]
    client.util_set_model("demo-harmon")
    client.util_wait_for_ready()
    same = {"prompt": "a bold seven", "seed": 5, "cfg_scale": 2, "batch_size": 2, "sampler_name": "Euler a"}
    made = [client.txt2img(**same) for _ in range(2)]
    assert [picture.size for picture in made[0].images] == [(32, 32)] * 2
    assert all(a.tobytes() == b.tobytes() for a, b in zip(made[0].images, made[1].images))
    assert made[0].info["seed"] == 5 and "size: has no effect, images are 32x32" in made[0].info["warnings"]
    assert client.txt2img(prompt="a thin two").images[0].size == (32, 32)
    refused(lambda: client.txt2img(prompt=""), "the prompt is empty")
    picture, mask = made[0].image, Image.new("L", (32, 32))
    mask.paste(255, (0, 16, 32, 32))
    edit = {"prompt": "a bold seven", "seed": 6, "mask_blur": 0, "inpaint_full_res": False, "denoising_strength": 1}
    lower = client.img2img(images=[picture], mask_image=mask, **edit)
    upper = client.img2img(images=[picture], mask_image=mask, inpainting_mask_invert=1, **edit)
    for result, kept, changed in ((lower, (0, 0, 32, 14), (0, 18, 32, 32)), (upper, (0, 18, 32, 32), (0, 0, 32, 14))):
        assert result.image.size == (32, 32)
        assert distance(result.image, picture, kept) < distance(result.image, picture, changed)
        assert not any("mask" in warning or "strength" in warning for warning in result.info["warnings"])
    warnings = client.img2img(images=[picture], mask_image=mask, prompt="a bold seven").info["warnings"]
    for name in ("denoising_strength", "mask_blur", "inpaint_full_res"):
        assert any(warning.startswith(name + ": has no effect") for warning in warnings), warnings
    refused(lambda: client.img2img(images=[picture], prompt="a bold seven"), "mask: is missing")
    assert client.interrupt() == {}
    print("webui_client.py: webuiapi works")


main(*sys.argv[1:])
