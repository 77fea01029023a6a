"""Golden data for eval/statistics.c: two small runs and what numpy and scipy say of them.
python3 tests/golden/make_statistics.py  ->  tests/golden/data/statistics.safetensors"""

import itertools
import sys
from pathlib import Path

import numpy as np
import torch
from scipy.spatial.distance import cdist
from scipy.stats import ks_2samp

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "reference"))

from pymar.io import write_safetensors  # noqa: E402

N, S, C = 10, 3, 4


def energy(a, b):
    """Without bias: image i of one run and image i of the other are not independent, so i = j is left out everywhere."""
    other = ~np.eye(N, dtype=bool)
    return 2 * cdist(a, b)[other].mean() - cdist(a, a)[other].mean() - cdist(b, b)[other].mean()


def energies(a, b):
    """Of whole images and, on average over positions, of single tokens."""
    image = energy(a.reshape(N, -1), b.reshape(N, -1))
    return np.array([image, np.mean([energy(a[:, p], b[:, p]) for p in range(S)])])


def ks(a, b):
    return np.array([ks_2samp(a[..., c].ravel(), b[..., c].ravel()).statistic for c in range(C)])


def main():
    generator = np.random.default_rng(3)
    shared = generator.normal(size=(N, S, C))
    a = (shared + 0.8 * generator.normal(size=(N, S, C))).astype(np.float32)
    b = (shared + 0.8 * generator.normal(size=(N, S, C)) + 0.3).astype(np.float32)
    b[0, 0, 0] = a[1, 0, 0]  # a tie between the runs
    scale = b.reshape(-1, C).astype(np.float64).std(0)
    observed, observed_ks = energies(a / scale, b / scale), ks(a, b)

    # Exact p-values: all 2^N ways to swap pairs.
    above, above_ks = np.zeros(2), np.zeros(C)
    for swap in itertools.product([False, True], repeat=N):
        swap = np.array(swap)[:, None, None]
        u, v = np.where(swap, b, a), np.where(swap, a, b)
        above += energies(u / scale, v / scale) >= observed - 1e-9
        above_ks += ks(u, v).max() >= observed_ks - 1e-9
    flat_a, flat_b = a.reshape(-1, C).astype(np.float64), b.reshape(-1, C).astype(np.float64)
    mean = np.sqrt((((flat_a.mean(0) - flat_b.mean(0)) / flat_b.std(0, ddof=1)) ** 2).mean())
    cov_a, cov_b = np.cov(flat_a.T), np.cov(flat_b.T)
    golden = {"a": a, "b": b, "energy": observed, "energy_p": above / 2 ** N, "ks": observed_ks,
              "ks_p": above_ks / 2 ** N, "gaps": np.array([mean, np.linalg.norm(cov_a - cov_b) / np.linalg.norm(cov_b)])}
    for name in list(golden)[2:]:
        print(name, golden[name])
    write_safetensors(HERE / "data/statistics.safetensors",
                      {name: torch.from_numpy(np.asarray(value, np.float32)) for name, value in golden.items()},
                      {"made_by": "tests/golden/make_statistics.py"})


if __name__ == "__main__":
    main()
