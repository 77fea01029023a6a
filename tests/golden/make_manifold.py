"""Golden numbers for eval/manifold.c: precision and recall by the formulas of ADM's evaluator (guided-diffusion's
evaluations/evaluator.py: ManifoldEstimator, _batch_pairwise_distances) of features that tests/mar/test_manifold.c
makes, too. And for eval/kernel_distance.c: KID of torch-fidelity 0.4, of features in float32 and in float64.
python3 tests/golden/make_manifold.py  ->  the tables in that test"""

import numpy as np
import torch
from torch_fidelity.metric_kid import kid_features_to_metric

from addressed_noise import INIT, counters, philox

SEED, DIM, CLUSTERS, SCALE = 17, 2048, 24, np.float32(0.0021)


def octets(image):
    """DIM numbers 0..255"""
    words = philox(SEED, counters(INIT, image, 0, 0, DIM // 16))
    return words.astype("<u4").reshape(-1).view(np.uint8).astype(np.int64)


def features(which, n, shift):
    """float32 [n][DIM] of set `which`: points of clusters of several widths, never negative, as Inception's features"""
    x = np.empty((n, DIM), np.int64)
    for i in range(n):
        centre = octets(1000000 + (i + shift) % CLUSTERS)
        x[i] = np.maximum(2 * centre + (2 + i % 3) * octets(which * 100000 + i) - 500, 0)
    return x.astype(np.float32) * SCALE


def distances(u, v, dtype):
    """fp16 as a GPU has it: sums in float32, rounded once"""
    u, v = u.astype(dtype), v.astype(dtype)
    norm_u = np.square(u).astype(np.float32).sum(1).astype(dtype)
    norm_v = np.square(v).astype(np.float32).sum(1).astype(dtype)
    product = (u.astype(np.float32) @ v.astype(np.float32).T).astype(dtype)
    return np.maximum(norm_u[:, None] - dtype(2) * product + norm_v[None, :], dtype(0)).astype(np.float32)


def precision_recall(measure, reference, images, k):
    radius = [np.partition(measure(x, x), np.arange(k + 1), axis=1)[:, k] for x in (reference, images)]
    between = measure(reference, images)
    return (between <= radius[0][:, None]).any(0).mean(), (between <= radius[1][None, :]).any(1).mean()


def kernel_distance(images, reference, subsets, size):
    """mean and deviation of float32, as torch-fidelity has features, and of float64"""
    for dtype in (np.float32, np.float64):
        a, b = (torch.from_numpy(x.astype(dtype)) for x in (images, reference))
        yield from kid_features_to_metric(a, b, kid_subsets=subsets, kid_subset_size=size, verbose=False).values()


def main():
    for n, m, k, shift in [(300, 400, 3, 0), (700, 500, 3, 5), (500, 700, 5, 0)]:
        a, b = features(1, n, 0), features(2, m, shift)
        rows = [precision_recall(lambda u, v, t=t: distances(u, v, t), a, b, k) for t in (np.float32, np.float16)]
        print("{%d, %d, %d, %d, {%.17g, %.17g}, {%.17g, %.17g}}," % (n, m, k, shift, *rows[0], *rows[1]))
    for n, m, subsets, size, shift in [(300, 400, 5, 100, 0), (330, 300, 2, 300, 5), (40, 50, 100, 20, 1)]:
        values = kernel_distance(features(1, n, 0), features(2, m, shift), subsets, size)
        print("{%d, %d, %d, %d, %d, {%.17g, %.17g}, {%.17g, %.17g}}," % (n, m, subsets, size, shift, *values))


if __name__ == "__main__":
    main()
