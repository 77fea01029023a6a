"""Golden data for Inception-v3: what torch-fidelity makes of addressed weights and images.

    python3 tests/golden/make_inception.py    ->  tests/golden/data/inception.safetensors     (needs torch-fidelity; minutes)

Weights and images are not in the file: tests/support/inception.c makes the same ones, from uniform numbers at Philox's addresses.
The file has the convolutions' shapes and the mean variance of each one's results (their `gain`), which its batch norm undoes, so
that images do not become alike on their way through the network; results for a few images, in full size, at an eighth of the
width, and of the network in tests/golden/data/inception_tiny.pth, which has the published file's format; and FID, sFID,
Inception score, precision and recall of two sets of images. torch-fidelity computes features, FID and the score; sFID,
precision and recall follow ADM's evaluator (openai/guided-diffusion, evaluations/evaluator.py).
"""

import collections
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch_fidelity.feature_extractor_inceptionv3 import FeatureExtractorInceptionV3
from torch_fidelity.interpolate_compat_tensorflow import interpolate_bilinear_2d_like_tensorflow1x
from torch_fidelity.metric_fid import fid_features_to_statistics, fid_statistics_to_metric
from torch_fidelity.metric_isc import isc_features_to_metric

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
sys.path[:0] = [str(ROOT / "tests/reference"), str(ROOT / "tools/dev"), str(HERE)]

from addressed_noise import INIT, philox  # noqa: E402
from pymar.io import write_safetensors  # noqa: E402
from random_inception import layers  # noqa: E402

SEED, IMAGE_SEED = 20151205, 299
SINGLE = [(256, 256), (64, 64), (299, 299), (500, 333), (33, 40)]  # height, width
SET, FULL_SET, SIDE = 100, 30, 64  # images of each set, for the small network and in full size


def words(seed, image, rows, n, step):
    """uint32 [rows][n]"""
    blocks = (n + 3) // 4
    c = np.zeros((rows, blocks, 4), np.uint32)
    c[..., 0] = (step << 16) | np.arange(blocks)[None]
    c[..., 1] = (INIT << 24) | np.arange(rows)[:, None]
    c[..., 2] = image
    return philox(seed, c).reshape(rows, blocks * 4)[:, :n]


def uniform(index, rows, n, step):
    """float64 [rows][n] in (-1/2, 1/2)"""
    return (words(SEED, index, rows, n, step) + 0.5) / 2.0 ** 32 - 0.5


def conv_tensors(name, index, shape, gain):
    """The five tensors of a convolution and its batch norm."""
    out, n = shape[0], int(np.prod(shape[1:]))
    u = uniform(index, out, n, 0)
    if index > 0:  # results that do not depend on the mean of their non-negative inputs
        u = u - u.mean(1, keepdims=True)
    vector = [uniform(index, 1, out, step)[0] for step in (1, 2, 3, 4)]
    made = {"conv.weight": (u * np.sqrt(12 / n)).reshape(shape), "bn.weight": 1 + 0.5 * vector[0], "bn.bias": 0.5 * vector[1],
            "bn.running_mean": 0.4 * np.sqrt(gain) * vector[2], "bn.running_var": gain * (1 + 0.8 * vector[3])}
    return {f"{name}.{key}": torch.from_numpy(value.astype(np.float32)) for key, value in made.items()}


def fc_tensors(index, shape, gain):
    return {"fc.weight": torch.from_numpy((uniform(index, *shape, 0) * gain).astype(np.float32)),
            "fc.bias": torch.from_numpy(uniform(index, 1, shape[0], 1)[0].astype(np.float32))}


def image(number, height, width):
    """uint8 [height][width][3]: three triangle waves of random frequency, direction and colour. Odd ones have longer waves."""
    w = words(IMAGE_SEED, number, 1, 30, 0)[0].astype(np.int64)
    y, x = np.mgrid[:height, :width]
    most = 8 if number % 2 else 24
    total, weight = np.zeros((height, width, 3), np.int64), np.zeros(3, np.int64)
    for k in range(3):
        a, b = w[10 * k] % (2 * most + 1) - most, w[10 * k + 1] % (2 * most + 1) - most
        for c in range(3):
            t = (a * x + b * y + w[10 * k + 2 + c]) & 511
            amplitude = w[10 * k + 5 + c] & 255
            total[..., c] += np.where(t < 256, t, 511 - t) * amplitude
            weight[c] += amplitude
    return (total // (weight + 1)).astype(np.uint8)


# --- the network, for any number of channels ---------------------------------------------------------------------------

def forward(t, rgb, gains=None):
    """uint8 [B,H,W,3] -> features, logits, spatial features. gains, a dict, is filled and t completed, conv by conv."""
    def conv(x, name, **kwargs):
        if gains is not None:
            y = F.conv2d(x, t[f"{name}.conv.weight"], **kwargs)
            gains[name] = float(np.float32(y.var().item()))
            t.update(conv_tensors(name, len(gains) - 1, tuple(t[f"{name}.conv.weight"].shape), gains[name]))
        x = F.conv2d(x, t[f"{name}.conv.weight"], **kwargs)
        norm = [t[f"{name}.bn.{part}"] for part in ("running_mean", "running_var", "weight", "bias")]
        return F.relu(F.batch_norm(x, *norm, eps=1e-3))

    def mean(x):
        return F.avg_pool2d(x, 3, 1, 1, count_include_pad=False)

    def chain(x, block, *convs):
        for name, *padding in convs:
            x = conv(x, f"{block}.{name}", padding=tuple(padding) or 0)
        return x

    def a(x, n):
        return torch.cat([chain(x, n, ["branch1x1"]), chain(x, n, ["branch5x5_1"], ["branch5x5_2", 2, 2]),
                          chain(x, n, ["branch3x3dbl_1"], ["branch3x3dbl_2", 1, 1], ["branch3x3dbl_3", 1, 1]),
                          chain(mean(x), n, ["branch_pool"])], 1)

    def c(x, n):
        return torch.cat([chain(x, n, ["branch1x1"]), chain(x, n, ["branch7x7_1"], ["branch7x7_2", 0, 3], ["branch7x7_3", 3, 0]),
                          chain(x, n, ["branch7x7dbl_1"], ["branch7x7dbl_2", 3, 0], ["branch7x7dbl_3", 0, 3],
                                ["branch7x7dbl_4", 3, 0], ["branch7x7dbl_5", 0, 3]), chain(mean(x), n, ["branch_pool"])], 1)

    def e(x, n, pool):
        one, three = chain(x, n, ["branch1x1"]), chain(x, n, ["branch3x3_1"])
        left, right = chain(three, n, ["branch3x3_2a", 0, 1]), chain(three, n, ["branch3x3_2b", 1, 0])
        double = chain(x, n, ["branch3x3dbl_1"], ["branch3x3dbl_2", 1, 1])
        return torch.cat([one, left, right, chain(double, n, ["branch3x3dbl_3a", 0, 1]),
                          chain(double, n, ["branch3x3dbl_3b", 1, 0]), chain(pool(x), n, ["branch_pool"])], 1)

    x = interpolate_bilinear_2d_like_tensorflow1x(rgb.permute(0, 3, 1, 2).float(), size=(299, 299), align_corners=False)
    x = conv((x - 128) / 128, "Conv2d_1a_3x3", stride=2)
    x = F.max_pool2d(conv(conv(x, "Conv2d_2a_3x3"), "Conv2d_2b_3x3", padding=1), 3, 2)
    x = F.max_pool2d(conv(conv(x, "Conv2d_3b_1x1"), "Conv2d_4a_3x3"), 3, 2)
    for n in ("Mixed_5b", "Mixed_5c", "Mixed_5d"):
        x = a(x, n)
    n = "Mixed_6a"
    x = torch.cat([conv(x, f"{n}.branch3x3", stride=2),
                   conv(chain(x, n, ["branch3x3dbl_1"], ["branch3x3dbl_2", 1, 1]), f"{n}.branch3x3dbl_3", stride=2),
                   F.max_pool2d(x, 3, 2)], 1)
    spatial = None
    for n in ("Mixed_6b", "Mixed_6c", "Mixed_6d", "Mixed_6e"):
        x = c(x, n)
        if n == "Mixed_6d":
            spatial = x[:, :7].permute(0, 2, 3, 1).flatten(1)
    n = "Mixed_7a"
    x = torch.cat([conv(chain(x, n, ["branch3x3_1"]), f"{n}.branch3x3_2", stride=2),
                   conv(chain(x, n, ["branch7x7x3_1"], ["branch7x7x3_2", 0, 3], ["branch7x7x3_3", 3, 0]),
                        f"{n}.branch7x7x3_4", stride=2), F.max_pool2d(x, 3, 2)], 1)
    x = e(x, "Mixed_7b", mean)
    x = e(x, "Mixed_7c", lambda v: F.max_pool2d(v, 3, 1, 1)).mean((2, 3))
    if gains is not None:  # so that logits differ by about two between images
        plain = x @ fc_tensors(len(gains), tuple(t["fc.weight"].shape), 1.0)["fc.weight"].t()
        gains["fc"] = float(np.float32(2 / plain.std(0).mean().item()))
        t.update(fc_tensors(len(gains) - 1, tuple(t["fc.weight"].shape), gains["fc"]))
    return x, x @ t["fc.weight"].t(), spatial


def network(width, classes=1008):
    """Tensors of a network of this width factor, and its row of six numbers for every layer."""
    rows, t = {}, {}
    for index, (name, shape) in enumerate(layers(width, classes)):
        rows[name] = [*shape, *[1] * (4 - len(shape))]
        if name == "fc":
            t.update(fc_tensors(index, shape, 1.0))
        else:
            t.update(conv_tensors(name, index, shape, 1.0))
    gains = {}
    forward(t, torch.from_numpy(np.stack([image(10000 + i, 128, 128) for i in range(8)])), gains)
    assert list(gains) == list(rows), "the layers' order"
    return t, {name: torch.tensor([*rows[name], gains[name], i], dtype=torch.float32) for i, name in enumerate(rows)}


def run(t, images, batch=20):
    parts = [forward(t, images[i:i + batch]) for i in range(0, len(images), batch)]
    return [torch.cat(part) for part in zip(*parts)]


def single(t):
    return [torch.cat(part) for part in zip(*[forward(t, torch.from_numpy(image(i, *size))[None]) for i, size in enumerate(SINGLE)])]


# --- ADM's precision and recall ----------------------------------------------------------------------------------------

def precision_recall(reference, samples, k=3):
    def distances(a, b):
        return ((a[:, None].astype(np.float64) - b[None]) ** 2).sum(-1) if len(a) * len(b) * a.shape[1] < 1e6 else \
            np.stack([((row.astype(np.float64) - b) ** 2).sum(-1) for row in a])

    def radii(x):
        return np.sort(distances(x, x), 1)[:, k]  # the point itself comes first

    between = distances(samples, reference)
    return float((between <= radii(reference)[None]).any(1).mean()), float((between <= radii(samples)[:, None]).any(0).mean())


def save_old(t, path):
    """A state dict as the published file has it: torch.save of 2019, batch norms with their counters, _metadata."""
    state = collections.OrderedDict()
    for name, value in t.items():
        state[name] = value
        if name.endswith("running_var"):
            state[name.replace("running_var", "num_batches_tracked")] = torch.tensor(0)
    state._metadata = collections.OrderedDict({"": {"version": 1}, "Conv2d_1a_3x3.bn": {"version": 2}})
    torch.save(state, path, _use_new_zipfile_serialization=False)


def numbers(key, features, logits, spatial):
    """What is said of the even images against the odd ones, the reference; the score is that of all."""
    even, odd = slice(0, None, 2), slice(1, None, 2)

    def frechet(x):
        return fid_statistics_to_metric(fid_features_to_statistics(x[even]), fid_features_to_statistics(x[odd]),
                                        False)["frechet_inception_distance"]
    score = isc_features_to_metric(logits)
    precision, recall = precision_recall(features[odd].numpy(), features[even].numpy())
    made = {"fid": frechet(features), "is_mean": score["inception_score_mean"], "is_std": score["inception_score_std"],
            "sfid": frechet(spatial.double()), "precision": precision, "recall": recall}
    print(key, made, flush=True)
    return {f"{key}_{name}": torch.tensor(value, dtype=torch.float64) for name, value in made.items()}


@torch.no_grad()
def main():
    small, small_rows = network(1 / 8)
    full, full_rows = network(1)
    data = {f"small.{name}": row for name, row in small_rows.items()} | {f"full.{name}": row for name, row in full_rows.items()}
    for key, tensors in (("small", small), ("full", full)):
        for part, value in zip(("features", "logits", "spatial"), single(tensors)):
            print(key, part, tuple(value.shape), "mean", value.mean().item(), "std", value.std().item(), "between images",
                  value.std(0).mean().item())
            data[f"{key}_{part}"] = value.contiguous()

    tiny, _ = network(1 / 24, 16)
    save_old(tiny, HERE / "data/inception_tiny.pth")
    data |= {f"tiny_{part}": value.contiguous() for part, value in zip(("features", "logits", "spatial"), single(tiny))}

    # torch-fidelity's own network, loaded from a file in the published layout, says the same.
    with tempfile.TemporaryDirectory() as folder:
        torch.save(full, Path(folder) / "inception.pth")
        extractor = FeatureExtractorInceptionV3("inception-v3-compat", ["2048", "logits_unbiased"],
                                                feature_extractor_weights_path=Path(folder) / "inception.pth")
    taken = []
    extractor.Mixed_6d.branch1x1.register_forward_hook(lambda m, x, y: taken.append(y[:, :7].permute(0, 2, 3, 1).flatten(1)))
    for i, size in enumerate(SINGLE):
        features, logits = extractor(torch.from_numpy(image(i, *size)).permute(2, 0, 1)[None])
        for part, theirs in (("features", features), ("logits", logits), ("spatial", taken[-1])):
            ours = data[f"full_{part}"][i]
            error = ((ours - theirs[0]).norm() / theirs.norm()).item()
            assert error < 1e-5, (part, size, error)
            data[f"full_{part}"][i] = theirs[0]

    images = torch.from_numpy(np.stack([image(100 + i, SIDE, SIDE) for i in range(2 * SET)]))
    taken.clear()
    outputs = [extractor(images[i:i + 20].permute(0, 3, 1, 2)) for i in range(0, 2 * FULL_SET, 20)]
    features, logits = (torch.cat(part) for part in zip(*outputs))
    data |= numbers("full", features, logits, torch.cat(taken)) | numbers("small", *run(small, images))
    write_safetensors(HERE / "data/inception.safetensors", data, {"made_by": "tests/golden/make_inception.py"})


if __name__ == "__main__":
    main()
