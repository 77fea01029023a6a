#!/usr/bin/env python3
"""Whether SphereAR's exact methods have the law of plain sampling: makes images, keeps their tokens, compares them.

    python3 bench/sphere_law.py --dir law --images 1000 --out bench/results/sphere_law.json    # goes on where it was stopped

Images of the demo in f32, as many of each class. Each method (METHODS) is compared with plain sampling twice: with `other`,
of another seed, and with `plain`, of the same seed, whose noise is partly the same. Two controls are compared likewise:
plain sampling itself, which must not differ from `other`, and noise 1 % stronger, which is not exact and shows the power.

Unpaired: the energy distance of whole images, with permutations within classes, and Kolmogorov-Smirnov tests of each of the
16 channels over all tokens, also with permutations of whole images within classes, since an image's tokens depend on one
another, corrected by Holm's method. bench/path_law.py describes the other tests and the paired ones. `least_p` is the
least of a comparison's p, corrected by Holm's method for the number of families.
"""

import argparse
import ctypes
import json
import time
from pathlib import Path

import numpy as np

from libmar import BUILT, Library
from path_law import BATCH, CLASSES, SIDE, holm, paired, unpaired

CHANNELS = 16
PERMUTATIONS = 499
PLAIN, OTHER = "plain", "other"
METHODS = {  # options, whether the law is that of plain sampling
    "head_spec 8": ({"head_spec": "8"}, True),
    "head_spec 16": ({"head_spec": "16"}, True),
    "path": ({"spec": "path", "head_spec": "8"}, True),
    "temperature 1.01": ({"temperature": "1.01"}, False),
}
SEEDS = {OTHER: 77}  # the others: 0

# --- images ------------------------------------------------------------------------------------------------------------


def make(args, library, name, options):
    """Tokens [images][64][16] and states [images][64] (0 plain, 1 accepted, 2 replaced) of a method, from files where there
    are some. Makes the others."""
    options = dict(options, seed=str(SEEDS.get(name, 0)))
    if "spec" in options:
        options["draft"] = args.draft
    folder, session, start = args.dir / name.replace(" ", "_"), None, time.time()
    folder.mkdir(parents=True, exist_ok=True)
    out = []
    for batch in range(args.images // BATCH):
        file = folder / f"{batch:05d}.npz"
        if not file.exists():
            session = session or library.session(args.model, None, options, BATCH)
            tokens, status = np.zeros((BATCH, SIDE * SIDE, CHANNELS), np.float32), np.zeros((BATCH, SIDE * SIDE), np.uint8)
            library.tokens(session, batch * BATCH, [(batch * BATCH + i) % CLASSES for i in range(BATCH)], tokens)
            library.check(library.lib.mar_session_token_status(session, status.ctypes.data_as(ctypes.c_void_p), None), session)
            np.savez(file.with_suffix(".new"), tokens=tokens, status=status)
            file.with_suffix(".new.npz").rename(file)
        read = np.load(file)
        out.append((read["tokens"], read["status"]))
    if session:
        library.lib.mar_session_free(session)
        print(f"{name}: {time.time() - start:.0f} s", flush=True)
    return tuple(np.concatenate(part) for part in zip(*out))


# --- statistics ----------------------------------------------------------------------------------------------------------


def channel_ks(a, b, labels, random):
    """p of each channel, uncorrected: the rank of the largest distance of the distribution functions over all tokens
    [N][64][16] among permutations of images within classes."""
    images, tokens = len(a), SIDE * SIDE
    both, sides = np.concatenate([a, b]), np.repeat([1.0, -1.0], images) * np.ones((PERMUTATIONS + 1, 1))
    for c in range(CLASSES):
        rows = np.flatnonzero(np.concatenate([labels, labels]) == c)
        sides[1:, rows] = random.permuted(sides[1:, rows], axis=1)
    p = []
    for channel in range(CHANNELS):
        image = np.argsort(both[..., channel].ravel(), kind="stable") // tokens
        distance = np.array([np.abs(np.cumsum(side[image])).max() for side in sides])
        p.append(float((distance >= distance[0]).mean()))
    return p


def compare(method, plain, other, labels, random):
    against_other = unpaired(method, other, labels, random)
    channels = channel_ks(method, other, labels, random)
    against_other["channels"] = holm(dict(enumerate(channels)))
    families_p = {name: p for name, p in against_other.items() if name != "holm"}
    out = {"against another seed": dict(families_p, least_p=holm(families_p), channels_uncorrected=channels)}
    if method is not plain:
        same = paired(method, plain, labels, random)
        same["least_p"] = same.pop("holm")
        out["against the same noise"] = same
    return out


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dir", required=True, type=Path, help="where the tokens are kept")
    parser.add_argument("--out", type=Path, help="JSON file")
    parser.add_argument("--images", default=1000, type=int, help=f"of each sample, a multiple of {BATCH * CLASSES // 2} [1000]")
    parser.add_argument("--only", help=f"these methods, comma-separated: {', '.join(METHODS)}")
    parser.add_argument("--model", default="demo-sphere")
    parser.add_argument("--draft", default="demo-sphere-draft")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--library", default=BUILT)
    args = parser.parse_args()
    names = args.only.split(",") if args.only else list(METHODS)
    if any(name not in METHODS for name in names):
        parser.error(f"--only {args.only}: expected some of {', '.join(METHODS)}")
    if args.images < 1 or args.images % (BATCH * CLASSES // 2):
        parser.error(f"--images {args.images}: expected a multiple of {BATCH * CLASSES // 2}")
    library = Library(args.library, "f32", args.threads)
    labels, random = np.arange(args.images) % CLASSES, np.random.default_rng(31)
    plain, other = (make(args, library, name, {})[0] for name in (PLAIN, OTHER))
    result = {"images_a_side": args.images, "tokens_a_side": args.images * SIDE * SIDE,
              PLAIN: {"exact": True, **compare(plain, plain, other, labels, random)}}
    for name in names:
        options, exact = METHODS[name]
        tokens, status = make(args, library, name, options)
        result[name] = {"exact": exact, **compare(tokens, plain, other, labels, random)}
        if "spec" in options:
            drafted = (status > 0).sum()
            result[name]["tokens"] = {"drafted": int(drafted), "accepted": float((status == 1).sum() / max(drafted, 1))}
    for name in (PLAIN, *names):
        r = result[name]
        print(f"{name:17} exact: {r['exact']!s:5} " + "  ".join(
            f"{against}: energy {p['energy']:.3f}" + (f" channels {p['channels']:.3f}" if "channels" in p else "") +
            f" least p {p['least_p']:.3f}" for against, p in r.items() if against.startswith("against")))
    if args.out:
        args.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
