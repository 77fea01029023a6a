#!/usr/bin/env python3
"""Whether whole images with --spec path have the law of plain sampling: makes images, keeps their tokens, compares them.

    python3 bench/path_law.py make --dir law --images 2000 --num_sampling_steps 25          # goes on where it was stopped
    python3 bench/path_law.py make --dir law --images 2000 --num_sampling_steps 25 --part 1/2   # the odd batches only
    python3 bench/path_law.py compare --dir law --out bench/results/path_law.json

Three samples of the demo's images in f32, as many of each class: `path` (--spec path), `paired` (plain sampling, the same
seed) and `other` (plain sampling, another seed). Plain sampling uses --head_spec, too, whose law is tested elsewhere.

Unpaired, `path` against `other`, and `paired` against `other` for comparison: Kolmogorov-Smirnov on random projections of
whole images, on every coordinate and on products of neighbouring tokens, and the energy distance within classes, with
permutations within classes. Paired, `path` against `paired`: the means of the same numbers and of the coordinates' squares,
by the largest |z| of a family, and the energy distance, both with labels swapped within pairs. p-values are corrected for
the size of each family, and `holm` for the families of a comparison. The power is what these tests would find with
probability 0.9 at level 0.01: a shift of one coordinate, and a shift of all of them in random directions.
"""

import argparse
import ctypes
import json
from pathlib import Path

import numpy as np

from libmar import BUILT, Library

SEEDS = {"path": 0, "paired": 0, "other": 77}
BATCH, CLASSES, SIDE = 16, 10, 8
LEVEL, POWER = 0.01, 0.9

# --- images ------------------------------------------------------------------------------------------------------------


def tokens(library, session, first, n):
    """[n][64][8] and fates [n][64] of images first .. first+n-1."""
    made, fates = np.zeros((n, SIDE * SIDE, 8), np.float32), np.zeros((n, SIDE * SIDE), np.uint8)
    library.tokens(session, first, [(first + i) % CLASSES for i in range(n)], made)
    library.check(library.lib.mar_session_token_status(session, fates.ctypes.data_as(ctypes.c_void_p), None), session)
    return made, fates


def make(args, options):
    library, part, parts = Library(args.library, "f32", 1), *map(int, args.part.split("/"))
    sessions, made = {}, dict(options, head_spec=options.get("head_spec", "8"))
    for name, seed in SEEDS.items():
        plain = {k: v for k, v in made.items() if k not in ("gamma", "draft", "context", "prefill")}
        settings = dict(made, spec="path") if name == "path" else plain
        sessions[name] = library.session("demo", None, dict(settings, seed=str(seed)), BATCH)
        (args.dir / name).mkdir(parents=True, exist_ok=True)
    (args.dir / "options.json").write_text(json.dumps(made))
    for batch in range(part, args.images // BATCH, parts):
        for name, session in sessions.items():
            file = args.dir / name / f"{batch:05d}.npz"
            if not file.exists():
                made_tokens, fates = tokens(library, session, batch * BATCH, BATCH)
                np.savez(file.with_suffix(".new"), tokens=made_tokens, fates=fates)
                file.with_suffix(".new.npz").rename(file)


# --- statistics ----------------------------------------------------------------------------------------------------------


def neighbour_products(x):
    """x [N][64][8], centred and scaled -> [N][112]: the mean product of tokens beside and below one another."""
    g = x.reshape(len(x), SIDE, SIDE, -1)
    across, down = (g[:, :, 1:] * g[:, :, :-1]).mean(-1), (g[:, 1:] * g[:, :-1]).mean(-1)
    return np.concatenate([across.reshape(len(x), -1), down.reshape(len(x), -1)], axis=1)


def families(a, b, labels, random):
    """Numbers of images of both samples, [N][m] each, by family. Class means of both together are taken away."""
    both = np.concatenate([a, b]).reshape(len(a) + len(b), -1).astype(np.float64)
    for c in range(CLASSES):
        rows = np.concatenate([labels, labels]) == c
        both[rows] -= both[rows].mean(0)
    both /= both.std(0)
    lines = random.standard_normal((both.shape[1], 300))
    out = {"projections": both @ (lines / np.linalg.norm(lines, axis=0)), "coordinates": both,
           "neighbour_products": neighbour_products(both.reshape(len(both), SIDE * SIDE, -1))}
    return {name: (x[:len(a)], x[len(a):]) for name, x in out.items()}


def ks(a, b):
    """[N][m] each -> [m] asymptotic p-values."""
    n, both = len(a), np.concatenate([a, b])
    signs = np.where(np.argsort(both, axis=0, kind="stable") < n, 1, -1)
    t = np.abs(np.cumsum(signs, axis=0)).max(0) / n * np.sqrt(n / 2)
    k = np.arange(1, 101)[:, None]
    return np.where(t < 0.2, 1, np.clip(2 * ((-1.0) ** (k - 1) * np.exp(-2 * k * k * t * t)).sum(0), 0, 1))


def distances(x):
    square = (x * x).sum(1)
    return np.sqrt(np.maximum(square[:, None] + square - 2 * x @ x.T, 0))


def energy(a, b, labels, random, paired, permutations=499):
    """p of the sum over classes of the energy distance of whole images [N][512]."""
    total = np.zeros(permutations + 1)
    for c in range(CLASSES):
        u, v = a[labels == c], b[labels == c]
        n, d = len(u), distances(np.concatenate([u, v]))
        swap = random.choice([-1.0, 1.0], (permutations + 1, n))
        s = np.concatenate([swap, -swap], axis=1)
        if not paired:
            s = np.repeat([1.0, -1.0], n) * np.ones((permutations + 1, 1))
            s = random.permuted(s, axis=1)
        s[0] = np.repeat([1.0, -1.0], n)
        total -= np.einsum("ij,ij->i", s @ d, s) / n**2
    return float((total >= total[0] - 1e-12).mean())


def largest_z(a, b, random, permutations=999):
    """Paired: largest |z| of the differences of means, its p among swaps within pairs, and the level's critical one."""
    d = a - b
    d = d[:, (d != 0).any(0)]  # a number that is the same in all pairs, as those of a token drawn plainly by both
    scale = np.sqrt((d * d).sum(0))
    swaps = random.choice([-1.0, 1.0], (permutations, len(d)))
    swapped = np.abs(swaps @ d / scale).max(1)
    z = np.abs(d.sum(0) / scale).max()
    return float(z), float((1 + (swapped >= z).sum()) / (permutations + 1)), float(np.quantile(swapped, 1 - LEVEL))


def holm(p):
    names, out, worst = sorted(p, key=p.get), {}, 0.0
    for i, name in enumerate(names):
        worst = max(worst, min(1.0, p[name] * (len(names) - i)))
        out[name] = worst
    return min(out.values())


def unpaired(a, b, labels, random):
    p = {name: float(min(1, ks(x, y).min() * x.shape[1])) for name, (x, y) in families(a, b, labels, random).items()}
    p["energy"] = energy(*(x.reshape(len(x), -1) for x in (a, b)), labels, random, paired=False)
    return dict(p, holm=holm(p))


def paired(a, b, labels, random):
    f = families(a, b, labels, random)
    f["squares"] = tuple(x * x for x in f["coordinates"])
    p, z = {}, {}
    for name, (x, y) in f.items():
        z[name], p[name], critical = largest_z(x, y, random)
        if name == "coordinates":
            shift = (critical + 1.2816) * (x - y).std(0) / np.sqrt(len(x))
            correlation = [np.corrcoef(x[:, i], y[:, i])[0, 1] for i in range(x.shape[1])]
    p["energy"] = energy(*(x.reshape(len(x), -1) for x in (a, b)), labels, random, paired=True)
    return dict(p, holm=holm(p), largest_z=z, correlation_of_pairs=float(np.mean(correlation)),
                shift_of_a_coordinate_found=float(np.median(shift)))


def ks_power(n, family, random, rounds=400):
    """The shift of a normal coordinate that KS finds with the wanted probability."""
    low, high = 0.0, 1.0
    a, b = random.standard_normal((n, rounds)), random.standard_normal((n, rounds))
    for _ in range(12):
        middle = (low + high) / 2
        found = (ks(a + middle, b) * family < LEVEL).mean()
        low, high = (low, middle) if found >= POWER else (middle, high)
    return high


def energy_power(a, b, labels, random, rounds=10):
    """The shift of all coordinates at once, in random directions, that the energy distance finds with the wanted
    probability: two samples of plain images, one of them shifted."""
    std, low, high = a.std(0), 0.0, 0.1
    signs = random.choice([-1.0, 1.0], (rounds, a.shape[1]))
    for _ in range(5):
        middle = (low + high) / 2
        found = np.mean([energy(a + middle * std * s, b, labels, random, False, 199) <= LEVEL for s in signs])
        low, high = (low, middle) if found >= POWER else (middle, high)
    return high


def compare(args):
    batches = sorted(set.intersection(*({f.name for f in (args.dir / name).glob("*.npz")} for name in SEEDS)))
    files = {name: [np.load(args.dir / name / f) for f in batches] for name in SEEDS}
    x = {name: np.concatenate([f["tokens"] for f in list_]) for name, list_ in files.items()}
    fates = np.concatenate([f["fates"] for f in files["path"]])
    labels = np.concatenate([(int(f[:5]) * BATCH + np.arange(BATCH)) % CLASSES for f in batches])
    least = np.bincount(labels, minlength=CLASSES).min()
    order = np.concatenate([np.flatnonzero(labels == c)[:least] for c in range(CLASSES)])
    labels, x = labels[order], {name: v[order] for name, v in x.items()}
    random = np.random.default_rng(14)
    flat = {name: v.reshape(len(v), -1).astype(np.float64) for name, v in x.items()}
    options = json.loads((args.dir / "options.json").read_text())
    result = {
        "made by": "bench/path_law.py make " + " ".join(f"--{name} {value}" for name, value in options.items()), "seeds": SEEDS, "images_a_side": len(labels),
        "tokens": {"not verified": int((fates == 0).sum()), "accepted": int((fates == 1).sum()),
                   "replaced": int((fates == 2).sum())},
        "path against other": unpaired(x["path"], x["other"], labels, random),
        "paired against other": unpaired(x["paired"], x["other"], labels, random),
        "path against paired": paired(x["path"], x["paired"], labels, random),
        "found with probability 0.9 at level 0.01, in standard deviations": {
            "shift of one of 512 coordinates, unpaired": ks_power(len(labels), 512, random),
            "shift of all coordinates, random signs, energy distance": energy_power(flat["paired"], flat["other"], labels,
                                                                                    random)}}
    text = json.dumps(result, indent=1) + "\n"
    args.out.write_text(text) if args.out else print(text, end="")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["make", "compare"])
    parser.add_argument("--dir", required=True, type=Path, help="where the tokens are")
    parser.add_argument("--out", type=Path, help="JSON file; else it is printed")
    parser.add_argument("--images", default=2000, type=int, help="of each sample, in batches of 16 [2000]")
    parser.add_argument("--part", default="0/1", help="I/N: every N-th batch, from the I-th [0/1]")
    parser.add_argument("--library", default=BUILT)
    args, rest = parser.parse_known_args()
    if len(rest) % 2 or any(not name.startswith("--") for name in rest[::2]):
        parser.error("expected --OPTION VALUE of mar behind the others")
    options = {name[2:]: value for name, value in zip(rest[::2], rest[1::2])}
    make(args, options) if args.what == "make" else compare(args)


if __name__ == "__main__":
    main()
