#!/usr/bin/env python3
"""Uses a service with a client of AUTOMATIC1111's API, the package webuiapi: webui_client.py URL. The service serves the
demo of text, demo-t2i, with --accept_any_size."""
import sys

try:
    import webuiapi
except ImportError:
    print("SKIPPED: no Python package webuiapi")
    sys.exit(77)


def main(url):
    client = webuiapi.WebUIApi(baseurl=url + "/sdapi/v1")
    assert client.util_get_model_names() == ["demo-t2i"]
    client.util_set_model("demo-t2i")
    client.util_wait_for_ready()
    made = [client.txt2img(prompt="a bold seven", seed=5, cfg_scale=2, batch_size=2, sampler_name="Euler a") for _ in range(2)]
    assert [picture.size for picture in made[0].images] == [(32, 32)] * 2
    assert all(a.tobytes() == b.tobytes() for a, b in zip(made[0].images, made[1].images))
    assert made[0].info["seed"] == 5 and "size: has no effect, images are 32x32" in made[0].info["warnings"]
    assert client.txt2img(prompt="a thin two").images[0].size == (32, 32)
    try:
        client.txt2img(prompt="")
    except RuntimeError as error:
        assert error.args[0] == 400 and "the prompt is empty" in error.args[1]
    else:
        raise SystemExit("an empty prompt was taken")
    assert client.interrupt() == {}
    print("webui_client.py: webuiapi works")


main(*sys.argv[1:])
