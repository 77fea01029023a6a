#!/usr/bin/env python3
"""Inception-v3 of libmar and of torch-fidelity in turn on this machine's CPU: images a second, from uint8 pixels to features
and logits, the resize included, and what bf16 changes.

    scripts/build.sh release && pip install -r bench/requirements.txt
    python3 bench/inception.py --threads 2 --out bench/results/inception.json
    python3 bench/inception.py --rounds 1 --images 8 --judged 0      # does it run? half a minute

Both have the same random weights of the published network's size and layout (tools/dev/random_inception.py, written once, to
build/bench) and the same images. Each runs in a process of its own that waits while the other works. torch-fidelity has
batches of 64 and those that were fastest before the rounds. A round is one run of each; the table has medians of all
rounds, and the ratio is the median of the rounds' ratios. With --threads 1 the processor's time counts, which programs
beside these hardly change.
"""

import argparse
import ctypes
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
SIDE, FEATURES, CLASSES = 256, 2048, 1008
# An image, 2 a multiply-add: the convolutions
FLOP = 11.42e9
BATCHES = [1, 2, 4, 8, 16, 32, 64]


def images(n, seed, tint=0.0):
    """Smooth random pictures [n][SIDE][SIDE][3]: noise of several sizes added up. `tint` shifts the colours."""
    generator = np.random.default_rng(seed)
    out = np.zeros((n, SIDE, SIDE, 3), np.float32)
    for size in (4, 16, 64, SIDE):
        noise = generator.normal(size=(n, size, size, 3)).astype(np.float32)
        out += noise.repeat(SIDE // size, 1).repeat(SIDE // size, 2) * (0.35 if size < SIDE else 0.08)
    out += tint * np.array([1, -0.5, 0.25], np.float32)
    return np.clip(127.5 + 90 * out, 0, 255).astype(np.uint8)


# --- the two of them, each in a process of its own -----------------------------------------------------------------------


class Options(ctypes.Structure):
    _fields_ = [("size", ctypes.c_size_t), ("dtype", ctypes.c_int), ("threads", ctypes.c_int), ("backend", ctypes.c_int), ("device", ctypes.c_int),
                ("log", ctypes.c_void_p), ("log_user", ctypes.c_void_p), ("allow_nonfinite", ctypes.c_int),
                ("head_dtype", ctypes.c_int)]


class Libmar:
    """The library as a program would use it."""

    def __init__(self, args):
        self.lib = ctypes.CDLL(args.library)
        self.lib.mar_error.restype = self.lib.mar_backend_description.restype = ctypes.c_char_p
        self.handle, self.features = ctypes.c_void_p(), ctypes.c_void_p()
        dtypes, cpu = {"f32": 1, "bf16": 2}, 1  # mar_dtype and mar_backend
        options = Options(size=ctypes.sizeof(Options), dtype=dtypes[args.dtype], threads=args.threads, backend=cpu)
        self.check(self.lib.mar_open(ctypes.byref(options), ctypes.byref(self.handle)))
        self.check(self.lib.mar_features_load(self.handle, args.weights.encode(), 64, ctypes.byref(self.features)))

    def check(self, status):
        if status != 0:
            sys.exit(self.lib.mar_error(self.handle).decode())

    def describe(self):
        return self.lib.mar_backend_description(self.handle).decode()

    def run(self, rgb, batch):
        features = np.empty((len(rgb), FEATURES), np.float32)
        logits = np.empty((len(rgb), CLASSES), np.float32)
        for i in range(0, len(rgb), batch):
            n = min(batch, len(rgb) - i)
            self.check(self.lib.mar_features_run(self.features, rgb[i:].ctypes.data_as(ctypes.c_void_p), n, SIDE, SIDE,
                                                 features[i:].ctypes.data_as(ctypes.c_void_p),
                                                 logits[i:].ctypes.data_as(ctypes.c_void_p), None))
        return features, logits


class TorchFidelity:
    def __init__(self, args):
        os.environ["OMP_NUM_THREADS"] = str(args.threads)
        import torch
        from torch_fidelity.feature_extractor_inceptionv3 import FeatureExtractorInceptionV3

        torch.set_num_threads(args.threads)
        self.torch = torch
        self.network = FeatureExtractorInceptionV3("inception", ["2048", "logits_unbiased"],
                                                   feature_extractor_weights_path=args.weights)

    def describe(self):
        import importlib.metadata

        return (f"torch-fidelity {importlib.metadata.version('torch-fidelity')}, torch {self.torch.__version__}, "
                f"{self.torch.get_num_threads()} threads")

    def run(self, rgb, batch):
        torch, parts = self.torch, []
        with torch.inference_mode():
            for i in range(0, len(rgb), batch):
                parts.append(self.network(torch.from_numpy(rgb[i:i + batch]).permute(0, 3, 1, 2).contiguous()))
        return tuple(np.concatenate([part[j].numpy() for part in parts]) for j in range(2))


def serve(args):
    """Answers lines "IMAGES SEED TINT BATCH FILE" with the seconds and the processor's seconds of a run, and writes features and logits to FILE."""
    network = (Libmar if args.serve == "libmar" else TorchFidelity)(args)
    print(network.describe(), flush=True)
    for line in sys.stdin:
        n, seed, tint, batch, file = line.split()
        rgb = images(int(n), int(seed), float(tint))
        start, busy = time.monotonic(), time.process_time()
        features, logits = network.run(rgb, int(batch))
        seconds, busy = time.monotonic() - start, time.process_time() - busy
        if file != "-":
            np.savez(file, features=features, logits=logits)
        print(seconds, busy, flush=True)


class Server:
    def __init__(self, args, which, weights, dtype="f32"):
        command = [sys.executable, __file__, "--serve", which, "--library", args.library, "--weights", weights, "--dtype",
                   dtype, "--threads", args.threads]
        self.process = subprocess.Popen([str(part) for part in command], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                        text=True)
        self.description = self.answer()

    def answer(self):
        line = self.process.stdout.readline()
        if not line:
            sys.exit(f"a process ended: status {self.process.wait()}")
        return line.strip()

    def run(self, n, batch, seed=1, tint=0.0, file="-"):
        print(n, seed, tint, batch, file, file=self.process.stdin, flush=True)
        return [float(part) for part in self.answer().split()]


# --- what bf16 changes ------------------------------------------------------------------------------------------------------


def frechet(a, b):
    from scipy import linalg

    mean = a.mean(0) - b.mean(0)
    cov_a, cov_b = np.cov(a, rowvar=False), np.cov(b, rowvar=False)
    values, vectors = linalg.eigh(cov_a)
    root = (vectors * np.sqrt(np.maximum(values, 0))) @ vectors.T
    product = linalg.eigvalsh(root @ cov_b @ root)
    return mean @ mean + np.trace(cov_a) + np.trace(cov_b) - 2 * np.sqrt(np.maximum(product, 0)).sum()


def score(logits):
    logits = logits - logits.max(1, keepdims=True)
    p = np.exp(logits)
    p /= p.sum(1, keepdims=True)
    return np.exp((p * (np.log(p) - np.log(p.mean(0)))).sum(1).mean())


def error(a, b):
    return float(np.linalg.norm(a - b) / np.linalg.norm(b))


def judge(servers, n, folder):
    """Two sets of n images each by each network: relative error of features, Frechet distance, score."""
    results = {}
    for name, server in servers.items():
        found = []
        for side, tint in enumerate((0.0, 0.25)):
            file = folder / f"{name.replace(' ', '_')}_{side}.npz"
            server.run(n, 16, seed=100 + side, tint=tint, file=file)
            data = np.load(file)
            found.append({key: data[key].astype(np.float64) for key in ("features", "logits")})
            file.unlink()
        results[name] = found
    reference, out = results["torch-fidelity"], {"images_of_a_set": n}
    for name, found in results.items():
        out[name] = {"frechet_distance": frechet(found[0]["features"], found[1]["features"]),
                     "score": score(found[0]["logits"]),
                     "features_relative_error": error(found[0]["features"], reference[0]["features"]),
                     "logits_relative_error": error(found[0]["logits"], reference[0]["logits"])}
    return out


# --- the comparison -----------------------------------------------------------------------------------------------------------


def weights(path):
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        subprocess.run([sys.executable, ROOT / "tools/dev/random_inception.py", "--width", "1", "--out", path], check=True)
    return path


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--library", default=ROOT / "build/release/libmar.so", help="[build/release/libmar.so]")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)), help="of either [one per core]")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--images", type=int, default=64, help="of a run")
    parser.add_argument("--judged", type=int, default=500, help="images of each set whose distance is taken; 0: none")
    parser.add_argument("--out", help="also write everything as JSON to this file")
    parser.add_argument("--serve", choices=["libmar", "torch-fidelity"], help=argparse.SUPPRESS)
    parser.add_argument("--weights", help=argparse.SUPPRESS)
    parser.add_argument("--dtype", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.serve:
        return serve(args)
    folder = ROOT / "build/bench"
    file = weights(folder / "inception.pth")
    servers = {"libmar bf16": Server(args, "libmar", file, "bf16"), "libmar f32": Server(args, "libmar", file, "f32"),
               "torch-fidelity": Server(args, "torch-fidelity", file)}
    for server in servers.values():
        print(server.description)
        server.run(4, 4)
    torch = servers["torch-fidelity"]
    clock = 1 if args.threads == 1 else 0  # of one thread the processor's time, which other programs do not lengthen
    tried = {batch: torch.run(args.images, batch)[clock] for batch in BATCHES if batch <= args.images}
    best = min(tried, key=lambda batch: tried[batch])
    turns = {"libmar bf16": ("libmar bf16", 64), "libmar f32": ("libmar f32", 64), "torch-fidelity": ("torch-fidelity", 64),
             "torch-fidelity, best batch": ("torch-fidelity", best)}
    seconds = {turn: [] for turn in turns}
    for _ in range(args.rounds):
        for turn, (server, batch) in turns.items():
            seconds[turn].append(servers[server].run(args.images, batch)[clock])
    rate = {turn: args.images / statistics.median(s) for turn, s in seconds.items()}
    ratios = {}
    for ours in ("libmar bf16", "libmar f32"):
        for theirs in ("torch-fidelity", "torch-fidelity, best batch"):
            ratios[f"{ours} / {theirs}"] = statistics.median(t / o for o, t in zip(seconds[ours], seconds[theirs]))
    print(f"torch-fidelity is fastest with batches of {best}: "
          + ", ".join(f"{batch}: {args.images / s:.1f}/s" for batch, s in tried.items()))
    for turn, value in rate.items():
        print(f"{turn:28} {value:7.2f} images/s {1e3 / value:8.1f} ms an image, {value * FLOP / 1e9:6.0f} GFLOP/s")
    for name, value in ratios.items():
        print(f"{name:50} {value:.2f} times as fast")
    judged = judge(servers, args.judged, folder) if args.judged else None
    if judged:
        print(json.dumps(judged, indent=1))
    if args.out:
        Path(args.out).write_text(json.dumps({
            "machine": servers["libmar bf16"].description, "torch_fidelity": torch.description, "images": args.images,
            "clock": "processor" if clock else "wall", "pixels": SIDE, "rounds": args.rounds, "torch_fidelity_best_batch": best, "images_per_second": rate,
            "ratios": ratios, "seconds": seconds, "what_bf16_changes": judged}, indent=1) + "\n")


if __name__ == "__main__":
    main()
