"""Golden data for eval/order.c, moments.c, frechet.c and score.c: what NumPy, SciPy and torch-fidelity 0.4 say of random data.
python3 tests/golden/make_numbers.py  ->  tests/golden/data/numbers.safetensors

Double-precision results are pairs of floats: `name` and what is missing in it, `name.rest`."""

import sys
from pathlib import Path

import numpy as np
import scipy.linalg
import torch
from torch_fidelity.metric_fid import fid_statistics_to_metric
from torch_fidelity.metric_isc import isc_features_to_metric

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "reference"))

from pymar.io import write_safetensors  # noqa: E402

ORDERS = [(0, 1), (0, 2), (1, 3), (2020, 10), (2020, 257), (4294967295, 1000), (12345, 4096)]
DIM, WIDE = 40, 96


def checksum(order):
    """A number below 2^24 that depends on every place."""
    value = 0
    for x in order:
        value = (value * 31 + int(x) + 1) % 16777213
    return value


def adm_frechet(a, b):
    """The formula of ADM's evaluator, and of TTUR before it."""
    (mu1, sigma1), (mu2, sigma2) = a, b
    covmean, _ = scipy.linalg.sqrtm(sigma1.dot(sigma2), disp=False)
    diff = mu1 - mu2
    return diff.dot(diff) + np.trace(sigma1) + np.trace(sigma2) - 2 * np.trace(covmean.real)


def statistics(x):
    return x.astype(np.float64).mean(0), np.cov(x.astype(np.float64), rowvar=False)


def torch_fidelity_frechet(a, b):
    stats = [{"mu": mu, "sigma": sigma} for mu, sigma in (a, b)]
    return fid_statistics_to_metric(*stats, False)["frechet_inception_distance"]


def adm_score(logits, split_size):
    """compute_inception_score of ADM's evaluator, in double precision."""
    p = torch.from_numpy(logits).double().softmax(1).numpy()
    scores = []
    for i in range(0, len(p), split_size):
        part = p[i:i + split_size]
        kl = part * (np.log(part) - np.log(part.mean(0, keepdims=True)))
        scores.append(np.exp(kl.sum(1).mean()))
    return float(np.mean(scores))


def features(generator, n, dim, shift):
    """As a network's after ReLU: not negative, correlated, of very different variances."""
    mix = np.random.default_rng(1).normal(size=(dim, dim)) / dim ** 0.5
    scale = 10 ** np.random.default_rng(2).uniform(-2, 0.5, size=dim)
    return (np.maximum(generator.normal(size=(n, dim)) @ mix + shift, 0) * scale).astype(np.float32)


def main():
    generator = np.random.default_rng(13)
    golden, doubles = {}, {}
    for seed, n in ORDERS:
        golden[f"order.{seed}.{n}"] = np.random.RandomState(seed).permutation(n)
    golden["checksum.50000"] = np.array([checksum(np.random.RandomState(2020).permutation(50000))])

    x, y = features(generator, 300, DIM, 0.3), features(generator, 200, DIM, 0.6)
    golden |= {"x": x, "y": y}
    a, b = statistics(x), statistics(y)
    doubles |= {"mean": a[0], "covariance": a[1]}
    doubles["frechet"] = np.array([adm_frechet(a, b), torch_fidelity_frechet(a, b), adm_frechet(a, a)])
    # fewer images than numbers: the images, the reference, both
    few, many, other = (features(generator, n, WIDE, shift) for n, shift in ((30, 0.2), (400, 0.5), (25, 0.1)))
    golden |= {"few": few, "many": many, "other": other}
    few, many, other = statistics(few), statistics(many), statistics(other)
    doubles["frechet.few"] = np.array([adm_frechet(few, many), adm_frechet(many, few), adm_frechet(few, other)])

    logits = (generator.normal(size=(203, 12)) * 3).astype(np.float32)
    golden["logits"] = logits
    score = isc_features_to_metric(torch.from_numpy(logits))
    doubles["score"] = np.array([score["inception_score_mean"], score["inception_score_std"], adm_score(logits, 5000)])
    # 10400 images with 4 logits, from a formula that C repeats: three of ADM's splits
    i = np.arange(10400)[:, None]
    many_logits = (((i * np.array([[7, 11, 13, 17]])) % 101) / 16 + (i // 3000 == np.arange(4))).astype(np.float32)
    order = np.random.RandomState(0).permutation(10400)
    doubles["score.adm"] = np.array([adm_score(many_logits, 5000), adm_score(many_logits[order], 5000)])

    for name, value in doubles.items():
        print(name, value.ravel()[:6])
        golden[name] = value.astype(np.float32)
        golden[name + ".rest"] = value - golden[name]
    write_safetensors(HERE / "data/numbers.safetensors",
                      {name: torch.from_numpy(np.asarray(value, np.float32)) for name, value in golden.items()},
                      {"made_by": "tests/golden/make_numbers.py"})


if __name__ == "__main__":
    main()
