#!/usr/bin/env python3
"""Seconds an image that a model of a GPU's time expects, from constants of the machine, assumed or measured.

    python3 bench/gpu_model.py
    python3 bench/gpu_model.py --constants gpu_micro.json --json      # with what `mar bench --micro --json` measured

Bytes, products, barriers and kernels are counts. What one of each takes is a constant. That their sum is the time is the
model. A comment says what is only a guess. On an H200 the transformer and large products took what these constants say, the
head with few rows nearly twice that (docs/gpu.md, "MAR"). An image has 256 tokens, 100 diffusion steps and guidance.
"""

import argparse
import dataclasses
import functools
import json
import sys
from math import acos, ceil, cos, exp, floor, inf, isfinite, log
from pathlib import Path

# name in a file: meaning, unit, 1 / unit, assumed value
CONSTANTS = {
    "barrier_seconds": ("barrier of the head's grid", "us", 1e6, 1.2e-6),
    "cluster_barrier_seconds": ("barrier of a cluster", "us", 1e6, 0.3e-6),
    "launch_seconds": ("least operation in a recording", "us", 1e6, 2.0e-6),
    "ramp_seconds": ("what a kernel's start and end add to that", "us", 1e6, 2.0e-6),
    "l2_bytes_per_second": ("reads from the L2 cache", "TB/s", 1e-12, 5.5e12),
    "memory_bytes_per_second": ("device memory", "TB/s", 1e-12, 4.3e12),
    "flop_per_second": ("matrix products in bf16 and f16", "TFLOP/s", 1e-12, 790e12),
    # the share of an H200's data sheet that bf16 has, 0.8 of 67
    "f32_flop_per_second": ("matrix products in f32, without TF32", "TFLOP/s", 1e-12, 53e12),
    "clock_hz": ("clock", "GHz", 1e-9, 1.9e9),
    "multiprocessors": ("multiprocessors", "", 1, 132),
    "cache_bytes": ("L2 cache", "MB", 1e-6, 50e6),
    "cluster_blocks": ("blocks of a cluster of the head's grid", "", 1, 8),
    "clusters_at_once": ("clusters that the GPU holds at once", "", 1, 16),
    # 3000 instructions for the tilt and 16 * 90 for a candidate (docs/gpu.md), 4 cycles each, are 9.3 us
    "rejection_seconds": ("drawing one residual", "us", 1e6, 10e-6),
    "calls_per_token": ("calls of the head a token at --head_spec 8", "", 1, 14.3),  # of the demo
    "wait_seconds": ("the host's wait for a result, and its next launch", "us", 1e6, 20e-6),  # a guess
    "acceptance_power": ("acceptance of a path is the demo's to the power of", "", 1, 1),
}

# width and blocks of the encoder and of the decoder, width and depth of the head (tools/dev/random_checkpoint.py)
SHAPES = {"MAR-B": (768, 12, 1024, 6), "MAR-L": (1024, 16, 1280, 8), "MAR-H": (1280, 20, 1536, 12)}
SEQ, DIFFUSION_STEPS, CONDITIONS, BUFFER, CHANNELS = 256, 100, 2, 64, 16
MOST_ROWS = 128  # of the persistent kernel
TURNS = 2  # tokens of a launch of it for a slot, at most (kernels/cuda/speculation.cu)
PARTS = 8  # of the channels, in it
CANDIDATES, CANDIDATES_MOST = 8, 64  # SPEC_PATH_CANDIDATES, ..._MOST of specdec/path.h
JUDGED_PATHS = 4096 // (CONDITIONS * DIFFUSION_STEPS)  # of a call; diffusion/paths.c: JUDGED_ROWS

# Calls of the head a token, of the demo, by window (docs/gpu.md).
DEMO_CALLS = {0: DIFFUSION_STEPS, 4: 26.3, 8: 14.3, 16: 8.7, 32: 6.2}
# Acceptance of the demo target's own late conditions, measured with guidance 2.9, 64 steps of one token and 100 diffusion
# steps in f32, by how many 64ths of the image they are late, of all tokens. bench/path_figures.py of commit 4cbc1a71 measured it of steps that
# counted: up to 0.02 less below a lateness of 8, and 0.09 more at 16.
DEMO_ACCEPTED = ((1, 0.949), (2, 0.930), (4, 0.871), (8, 0.816), (16, 0.723), (32, 0.556))


class Constants(dict):
    """By name. It is not changed after the first call of a formula, whose results are kept."""
    __hash__ = object.__hash__


def read_constants(record):
    """All constants, and the names of those that the record of `mar bench --micro --json` has."""
    c, measured = Constants((name, info[3]) for name, info in CONSTANTS.items()), record.get("constants", {})
    if str(record.get("backend", "")).startswith("cpu "):
        raise ValueError(f"was measured on a CPU ({record['backend']}), expected a GPU")
    for name, x in measured.items():
        if name not in c:
            raise ValueError(f"constant {name}: there is none of that name")
        if not isinstance(x, (int, float)) or not 0 < x < inf:
            raise ValueError(f"constant {name}: expected a number above 0")
        if name == "cluster_blocks" and x not in (1, 2, 4, 8):
            raise ValueError(f"constant {name}: expected 1, 2, 4 or 8")
        if name in ("multiprocessors", "clusters_at_once") and (x != floor(x) or x > 65536):
            raise ValueError(f"constant {name}: expected a whole number from 1 to 65536")
        c[name] = x
    if "clusters_at_once" not in measured and ("cluster_blocks" in measured or "multiprocessors" in measured):
        c["clusters_at_once"] = max(c["multiprocessors"] // c["cluster_blocks"], 1)
    return c, [name for name in CONSTANTS if name in measured]


class Head:
    """The head's persistent kernel, divided as persistent_choose and persistent_carve (kernels/cuda) do it with the shared
    memory of sm_90. Its times are those of a phase up to its barrier, a step of the chain, a round of speculation."""

    def __init__(self, c, width, depth):
        """Best are all weights in shared memory, then as many as fit beside two places that the others are copied to; then
        the largest chunk."""
        self.c, self.width, self.depth = c, width, depth
        self.cluster = c["cluster_blocks"]  # blocks of a cluster, which share the 8 parts of the channels
        self.pairs = ceil(width / 32 / PARTS)  # pairs of mmas of a part, 32 channels each
        self.tiles = ceil(width / 8 / c["clusters_at_once"])  # of 8 columns, of a cluster
        self.clusters = ceil(width / 8 / self.tiles)  # of the grid
        shared, products = 232448, 2 * depth
        weights = self.tiles * PARTS / self.cluster * self.pairs * 512  # of a product
        for least in (products, 2):
            for self.chunk in (4, 2, 1):  # tiles of 16 rows that a product takes at a time
                room = (shared - self.other_bytes()) // weights
                if room >= least:
                    self.resident = products if room >= products else room - 2  # products in shared memory
                    return
        raise ValueError(f"a head of width {width}: the persistent kernel has no form with these constants")

    def other_bytes(self):
        """Bytes of shared memory of a block beside the weights."""
        own = ceil(4 * self.tiles / self.cluster)  # pairs of columns of a block
        inbox = PARTS * own * self.chunk * 128
        operand = max(self.chunk * PARTS / self.cluster * self.pairs * 1024, MOST_ROWS * PARTS * 8)
        return 16 * self.depth * own + 16 * ceil(own * (CHANNELS + 1) / 2) + MOST_ROWS * 16 + max(inbox + operand, 16384)

    def at_a_time(self):
        """Rows that a block normalises at a time: 8 threads have a row's part."""
        return 256 / 8 / PARTS * self.cluster

    def barrier(self):
        """A barrier, then the first load's way to the L2 cache, and threads that wait for each other within a block. 650
        cycles are a guess."""
        return self.c["barrier_seconds"] + 650 / self.c["clock_hz"]

    def normalise(self, turns):
        """A thread normalises 4 * pairs channels of each row's part it has. Instructions are counts in the machine code of
        sm_90a (docs/persistent.md): 218 for 16 channels, and 123 that merge a row's moments. 2 cycles of each are a guess."""
        return 2 * (123 + 218 / 16 * 4 * self.pairs * turns) / self.c["clock_hz"]

    def read_operand(self, rows, size):
        """Every cluster reads an operand, `size` bytes an element."""
        return self.clusters * rows * self.width * size / self.c["l2_bytes_per_second"]

    def meet(self, rows, before):
        """The blocks of a cluster meet once when the parts' sums are there, and twice more for each chunk after the first."""
        chunks = ceil(ceil(rows / 16) / self.chunk)
        return (before + 2 * chunks - 1) * self.c["cluster_barrier_seconds"] if self.cluster > 1 else 0

    def fc1(self, rows):
        """Each cluster normalises all rows. A row is read in f32; modulation is loaded before the barrier, as far as
        registers keep it: of other rows x is read twice, and shift and scale once, after it."""
        kept = (4 if self.pairs <= 2 else 2 if self.pairs <= 4 else 1) * self.at_a_time()
        return (self.barrier() + self.normalise(ceil(rows / self.at_a_time())) + self.read_operand(rows, 4) +
                self.read_operand(max(rows - kept, 0), 8) + self.meet(rows, 1))

    def fc2(self, rows):
        return self.barrier() + self.read_operand(rows, 2) + self.meet(rows, 0)

    def stream(self):
        """Weights that are streamed come from the L2 cache as far as they fill 60 % of it, a guess, else from memory, while
        the phases go on."""
        streamed = (2 * self.depth - self.resident) * self.width * PARTS * self.pairs * 64
        kept = min(streamed, 0.6 * self.c["cache_bytes"])
        return kept / self.c["l2_bytes_per_second"] + (streamed - kept) / self.c["memory_bytes_per_second"]

    def step(self, rows):
        """2*depth + 2 barriers: one of each phase, of the input and of the output. The mmas of the products are left
        out."""
        return max(self.depth * (self.fc1(rows) + self.fc2(rows)) + 2 * self.barrier(), self.stream())

    def round(self, rows):
        """A step, a barrier in front of it, and the turn of the tokens: nearly each round of several tokens has a rejection,
        and its residual is drawn while the grid waits."""
        return self.step(rows) + self.barrier() + 0.97 * self.c["rejection_seconds"]

    @functools.cache
    def products(self, rows, f32=False):
        """A step by products and kernels between them. Four kernels a block, three more for input, output and the step.
        Bytes a row and block: the norm reads 4W and writes 2W, fc1 4W, silu 4W, fc2 6W, gate and sum 12W; and a modulation
        row. In f32 all are 4W but for the norm, silu and fc2, which are 8W, and gate and sum. The weights come from memory
        while products go on."""
        c, w, depth, size = self.c, self.width, self.depth, 4 if f32 else 2
        flop = 2 * rows * w * (2 * depth * w + 3 * CHANNELS)
        moved = rows * ((40 if f32 else 32) * w * depth + 3 * size * depth * w + 8 * w)
        multiplied = max(flop / matrix_rate(c, f32), 2 * depth * w * w * size / c["memory_bytes_per_second"])
        return multiplied + moved / c["memory_bytes_per_second"] + (4 * depth + 3) * small(c)


@functools.cache
def head_of(c, width, depth):
    return Head(c, width, depth)


def matrix_rate(c, f32):
    return c["f32_flop_per_second" if f32 else "flop_per_second"]


def small(c):
    """A kernel's start and end."""
    return c["launch_seconds"] + c["ramp_seconds"]


def schedule(steps):
    """[steps + 1]: the tokens known before each autoregressive step, and after the last; the cosine schedule,
    mar/masked_runner.c."""
    known, masked = [0], SEQ
    for i in range(1, steps):
        masked = max(min(floor(SEQ * cos(acos(-1) / 2 * i / steps)), masked - 1), 1)
        known.append(SEQ - masked)
    return known + [SEQ]


def transformer(c, width, blocks, rows, length):
    """A pass of `blocks` blocks over `rows` rows, of sequences of `length`. Products: 12 D^2 multiply-adds a row,
    attention 2 D a pair. Seven kernels a block. Bytes a row and block: 64 D, the operands and results of four products,
    attention and two norms, and the f32 stream that two of them add to, in the L2 cache where it has room for a hidden
    layer. The weights come from memory while products go on."""
    multiplied = max(2 * rows * blocks * width * (12 * width + 2 * length) / c["flop_per_second"],
                     24 * width * width * blocks / c["memory_bytes_per_second"])
    fits = rows * 8 * width < c["cache_bytes"]
    return (multiplied + blocks * rows * 64 * width / c["l2_bytes_per_second" if fits else "memory_bytes_per_second"] +
            7 * blocks * small(c))


def transformer_pass(c, shape, known, batch=1):
    """A pass over a context for each entry of `known`, its known tokens, of each of `batch` images."""
    width, blocks, *_ = shape
    lengths = [BUFFER + n for n in known]
    rows, pairs = (CONDITIONS * batch * sum(n**power for n in lengths) for power in (1, 2))
    length = BUFFER + SEQ
    return (transformer(c, width, blocks, rows, pairs / rows) +
            transformer(c, width, blocks, CONDITIONS * batch * len(known) * length, length))


@functools.cache
def modulation(c, shape, rows, f32=False):
    """The modulation of `rows` rows (conditions * tokens * diffusion steps): 3 depth + 2 products of W^2 a row, whose
    results are written once."""
    _, _, w, depth = shape
    macs, size = w * w * (3 * depth + 2), 4 if f32 else 2
    moved = size * macs + rows * (3 * size * depth * w + 8 * w)
    return 2 * macs * rows / matrix_rate(c, f32) + moved / c["memory_bytes_per_second"] + 5 * small(c)


def image_decoder(c):
    """KL-16 at 256x256: 0.22 TFLOP by `mar bench`, 130 kernels and 5 GB by a rough count of its layers. One at a time."""
    return 0.22e12 / c["flop_per_second"] + 5e9 / c["memory_bytes_per_second"] + 130 * small(c)


def slowest(tokens):
    """How many calls more the slowest of some tokens needs: the demo's has 15.4, 16.3 and 17.1 at W = 8 among 4, 16 and 64
    tokens, 9.9, 11.0 and 12.0 at W = 16 (`mar bench --batch N --head_spec W`)."""
    return 0.75 * log(tokens)


@functools.cache
def chain(c, shape, tokens, window, f32=False):
    """Seconds and calls of the head for `tokens` tokens with --head_spec `window`; 0: the plain chain. Up to TURNS tokens
    a slot one launch draws them (kernels/cuda/speculation.cu), in f16; else products evaluate between two small kernels,
    and the host looks about twice who is finished."""
    head, rows = head_of(c, *shape[2:]), CONDITIONS * tokens
    if tokens == 0:
        return 0, 0
    if window == 0:
        step = head.step(rows) if rows <= MOST_ROWS and not f32 else head.products(rows, f32)
        return DIFFUSION_STEPS * step, DIFFUSION_STEPS
    fit = MOST_ROWS // (CONDITIONS * window)
    slots, mean = min(tokens, fit), c["calls_per_token"] / DEMO_CALLS[8] * DEMO_CALLS[window]
    if tokens <= TURNS * fit and not f32:
        rounds = ceil(tokens / slots) * mean + slowest(slots)
        return rounds * head.round(CONDITIONS * window * slots), rounds
    rounds = mean + slowest(tokens)
    step = head.products(rows * window, f32) + 2 * small(c) + 0.97 * c["rejection_seconds"]
    return rounds * step + 2 * c["wait_seconds"], rounds


@dataclasses.dataclass
class Times:
    """Passes of the transformer and calls of the head, one after another, and seconds. Modulation: and the image decoder.
    Judging: modulation and evaluations of drafts and candidates under the other law. Waiting: of the host, and what runs
    meanwhile nowhere."""
    passes: float = 0
    calls: float = 0
    transformer: float = 0
    modulation: float = 0
    head: float = 0
    judging: float = 0
    waiting: float = 0

    def add(self, weight, other):
        for name, x in vars(other).items():
            setattr(self, name, getattr(self, name) + weight * x)

    def total(self):
        return self.transformer + self.modulation + self.head + self.judging + self.waiting


def image(c, shape, batch=1, steps=64, window=0):
    """One of a batch of `batch` images, in `steps` autoregressive steps."""
    known, t = schedule(steps), Times(passes=steps)
    for i in range(steps):
        tokens = batch * (known[i + 1] - known[i])
        seconds, calls = chain(c, shape, tokens, window)
        t.add(1, Times(0, calls, transformer_pass(c, shape, known[i:i + 1], batch) / batch,
                       modulation(c, shape, CONDITIONS * tokens * DIFFUSION_STEPS) / batch, seconds / batch))
    t.modulation += image_decoder(c)
    return t


def accepted(c, late, seq):
    """The probability that a path with conditions stale by `late` tokens of `seq` is accepted. -log of it is a power
    of the lateness between two measurements, and beyond them. What is late by a part of an image is late by the same part of
    a larger one: of the demo's four-token steps, late by 1, 2 and 4 steps, 0.867, 0.807 and 0.718 were accepted, as of its
    single tokens late by 4, 8 and 16."""
    x, i = log(64 * late / seq), 0
    while i < len(DEMO_ACCEPTED) - 2 and x > log(DEMO_ACCEPTED[i + 1][0]):
        i += 1
    (x0, y0), (x1, y1) = ((log(at), log(-log(share))) for at, share in DEMO_ACCEPTED[i:i + 2])
    return exp(-c["acceptance_power"] * exp(y0 + (x - x0) / (x1 - x0) * (y1 - y0)))


def beyond(rejected, n):
    """The probability that a token needs more than n candidates. One is kept as often as a draft of that token is rejected,
    which differs among tokens: let the share be Beta(1, b) distributed. For the demo, whose mean is 1/7, it gives 1 % beyond
    54, and the longest of its replacements took 54 to 91."""
    b = 1 / rejected - 1
    return b * (b + 1) / ((b + n) * (b + n + 1))


def needed_after(rejected, n):
    """The mean number of candidates that a token needs after n: the sum of `beyond` from n on."""
    b = 1 / rejected - 1
    return b * (b + 1) / (b + n)


class PathImage:
    """An image by --spec path (specdec/path.h) with drafts from the model's own last conditions, one at a time. A round is
    an arithmetic of counts; how many rounds an image has is an expectation over what is accepted. No sampling: a round's
    first step says all about it but what the round before left to replace, so expectations follow from the last step to the
    first. Guesses: a step's tokens are accepted independently, an image's first steps as often as its last.
    f32: the head computes in f32; else in f16, which --head_dtype auto means on a GPU."""

    def __init__(self, c, shape, known, gamma, window, f32):
        self.c, self.shape, self.known, self.steps = c, shape, known, len(known) - 1
        self.gamma, self.window, self.f32 = gamma, window, f32

    def times(self):
        """The first pass has one context, of which the first step's conditions are true ones: this step's drafts need no
        judge."""
        rest, t, length = {}, Times(passes=1), min(self.gamma, self.steps)  # rest[i]: from the round of step i to the end
        for first in range(self.steps - 1, 0, -1):
            rest[first] = self.round_from(first, min(self.gamma, self.steps - first), rest)
        t.transformer = transformer_pass(self.c, self.shape, self.known[:1])
        t.add(1, self.draw_and_replace(self.known[length], 0, 0))
        if length > 1:
            t.add(1, self.round_from(1, length - 1, rest))
        else:
            self.draw_from(1, 0, 0, rest, 1, t)
        t.modulation += image_decoder(self.c)
        return t

    def round_from(self, first, length, rest):
        """The round of steps first .. first + length - 1, whose drafts have been drawn, and all after it. Their conditions
        are those of the context of step first - 1, the last one of the round before."""
        known, t, left = self.known, Times(passes=1), 1  # left: the probability that all steps so far are kept
        t.transformer = transformer_pass(self.c, self.shape, known[first:first + length])
        self.judge(known[first + length] - known[first], known[first + length] - known[first], 1, t)
        for at in range(first, first + length):
            tokens = known[at + 1] - known[at]
            share = accepted(self.c, known[at] - known[first - 1], known[-1])
            kept = share**tokens  # the probability that all the step's paths are
            if kept < 1:
                mean = ceil(tokens * (1 - share) / (1 - kept) - 1e-9)  # rejections of a step that has one
                self.draw_from(at + 1, mean, 1 - share, rest, left * (1 - kept), t)
            left *= kept
        self.draw_from(first + length, 0, 0, rest, left, t)
        return t

    def draw_from(self, first, tokens, rejected, rest, weight, t):
        """From the draw before the round that begins with step `first`, to the image's end."""
        drafts = self.known[min(first + self.gamma, self.steps)] - self.known[first]
        t.add(weight, self.draw_and_replace(drafts, tokens, rejected))
        t.add(weight, rest.get(first, Times()))

    @functools.cache
    def draw_and_replace(self, drafts, replaced, rejected):
        """Draws `drafts` tokens and, in the same chain, the first candidates for what the round before left to replace; then
        more candidates, twice as many each time, until all are replaced. rejected: the share of drafts that are."""
        t, tokens, had, each = Times(), replaced, 0, CANDIDATES  # had: the candidates that a token had before
        candidates = candidates_of(tokens, each)
        self.draw(drafts + candidates, drafts + tokens, 1, t)
        self.judge(candidates, tokens, 1, t)
        if tokens == 0:
            return t
        while candidates < CANDIDATES_MOST:
            each *= 2
            had += candidates / tokens
            weight = 1 - (1 - beyond(rejected, had))**replaced  # the mean number of such draws
            if weight <= 0:
                return t
            tokens = ceil(replaced * beyond(rejected, had) / weight - 1e-9)
            candidates = candidates_of(tokens, each)
            self.draw(candidates, tokens, weight, t)
            self.judge(candidates, tokens, weight, t)
        had += candidates / tokens  # from here on the draws have one size
        weight = replaced * needed_after(rejected, had) / candidates
        self.draw(candidates, tokens, weight, t)
        self.judge(candidates, tokens, weight, t)
        return t

    def draw(self, paths, conditions, weight, t):
        """Draws `paths` paths of `conditions` conditions."""
        if paths == 0:
            return
        seconds, calls = chain(self.c, self.shape, paths, self.window, self.f32)
        rows = CONDITIONS * DIFFUSION_STEPS * conditions
        t.add(weight, Times(calls=calls, head=seconds, modulation=modulation(self.c, self.shape, rows, self.f32)))

    def judge(self, paths, conditions, weight, t):
        """Calls of the head over all states of some paths, under conditions that are new to it. A kernel a call adds up,
        another one decides, and the host waits for what it says."""
        if paths == 0:
            return
        c, rows, calls = self.c, CONDITIONS * DIFFUSION_STEPS, ceil(paths / JUDGED_PATHS)
        call = (modulation(c, self.shape, rows * conditions / calls, self.f32) + small(c) +
                head_of(c, *self.shape[2:]).products(ceil(rows * paths / calls), self.f32))
        t.add(weight, Times(calls=calls, judging=calls * call + small(c), waiting=c["wait_seconds"]))


def candidates_of(tokens, each):
    return min(tokens * each, max(tokens, CANDIDATES_MOST))


def images(c):
    """One image in 64 steps, plain and by --head_spec 8, and one of larger batches, beside the seconds aimed at."""
    kinds = ((1, 0, {"MAR-B": 0.20, "MAR-H": 0.50}), (1, 8, {"MAR-B": 0.08, "MAR-H": 0.20}), (8, 0, {}), (16, 0, {}),
             (32, 0, {}), (64, 0, {}), (256, 0, {"MAR-B": 0.030, "MAR-L": 0.067, "MAR-H": 0.13}))
    for batch, window, target in kinds:
        for model, shape in SHAPES.items():
            t = image(c, shape, batch, 64, window)
            yield {"model": model, "batch": batch, "head_spec": window, "transformer_seconds": t.transformer,
                   "modulation_and_vae_seconds": t.modulation, "head_seconds": t.head, "total_seconds": t.total(),
                   **({"target_seconds": target[model]} if model in target else {})}


def paths(c):
    """One image at a time, by number of steps, gamma and window; gamma 0: without --spec path."""
    for model, shape in SHAPES.items():
        for steps in (64, 128, 256):
            for gamma in (0, 2, 4, 8, 16, 32):
                for window in (0, 8, 16, 32):
                    for f32 in (False, True) if gamma else (False,):
                        t = (PathImage(c, shape, schedule(steps), gamma, window, f32).times() if gamma else
                             image(c, shape, 1, steps, window))
                        yield {"model": model, "num_iter": steps, "gamma": gamma, "head_spec": window,
                               "head_dtype": "f32" if f32 else "f16", "passes_in_sequence": t.passes,
                               "head_calls_in_sequence": t.calls, "transformer_seconds": t.transformer,
                               "modulation_and_vae_seconds": t.modulation, "head_seconds": t.head,
                               "judging_seconds": t.judging, "waiting_seconds": t.waiting, "total_seconds": t.total()}


def model_time(record):
    """All that the model says, with the constants of a record of `mar bench --micro --json`; {}: as assumed."""
    c, measured = read_constants(record)
    return {"constants": c, "measured": measured, "images": list(images(c)), "paths": list(paths(c))}


def print_tables(result):
    print("Seconds an image that a model expects on a GPU, with 64 autoregressive and 100 diffusion\n"
          "steps and guidance. It is a model: what is measured is marked so.\n")
    for name, (meaning, unit, scale, _) in CONSTANTS.items():
        said = "measured" if name in result["measured"] else "assumed"
        print(f"{meaning:<50} {result['constants'][name] * scale:9.4g} {unit:<8} {said}")
    print(f"\n{'':<32} {'transformer':>11} {'modulation + VAE':>16} {'head':>8} {'total':>8} {'target':>8}")
    for r in result["images"]:
        name = f"{r['model']}, batch {r['batch']}{', --head_spec 8' if r['head_spec'] else ''}"
        print(f"{name:<32} {r['transformer_seconds']:11.4f} {r['modulation_and_vae_seconds']:16.4f} {r['head_seconds']:8.4f} "
              f"{r['total_seconds']:8.4f} {r.get('target_seconds', ''):>8}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--constants", type=Path, help="what `mar bench --micro --json` wrote")
    parser.add_argument("--json", action="store_true", help="one JSON object; with bench/path_model.py's rows")
    args = parser.parse_args()
    try:
        result = model_time(json.loads(args.constants.read_text()) if args.constants else {})
    except ValueError as error:
        sys.exit(f"{args.constants}: {error}")
    print(json.dumps(result, indent=1)) if args.json else print_tables(result)


if __name__ == "__main__":
    main()
