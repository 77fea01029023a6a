"""Judging images: feature networks, text encoders, CLIP, distances, and the list of accelerators."""
from __future__ import annotations

import ctypes as c
import weakref
from typing import Any, NamedTuple, Optional, Sequence, Union

import numpy as np
import numpy.typing as npt

from . import _lib
from ._core import (BoolArray, Float32Array, Float64Array, Int32Array, Library, Path, as_bytes, as_path, encoded,
                    numbers, pointer)
from ._lib import lib


class Features:
    """A feature network: the file of Inception-v3 or VGG16, or "demo" for the digits of the demo. clean: Inception
    resizes images as clean-fid does it."""

    def __init__(self, path: Path = "demo", batch: int = 64, clean: bool = False, **options: object) -> None:
        self._library, self._batch = Library(options), _lib.fit("batch", batch, c.c_int)
        made = c.c_void_p()
        self._library.check(lib.mar_features_load(self._library.pointer, as_path("path", path), self._batch,
                                                  c.byref(made)))
        self._pointer = made
        weakref.finalize(self, lib.mar_features_free, made)
        if clean:
            self._library.check(lib.mar_features_set_resize(made, 1))
        config = lib.mar_features_get_config(made).contents
        self.size, self.classes = int(config.features), int(config.classes)

    def __call__(self, images: npt.ArrayLike) -> tuple[Float32Array, Float32Array]:
        """Returns features [n, size] and logits [n, classes] of images uint8 [n, height, width, 3]."""
        pixels = np.ascontiguousarray(as_bytes(images, "images"))
        if pixels.ndim != 4 or pixels.shape[3] != 3:
            raise ValueError(f"images: shape {pixels.shape}, expected (n, height, width, 3)")
        n, height, width, _ = pixels.shape
        features, logits = np.zeros((n, self.size), np.float32), np.zeros((n, self.classes), np.float32)
        for i in range(0, n, self._batch):
            part = min(self._batch, n - i)
            self._library.check(lib.mar_features_run(self._pointer, pointer(pixels[i:]), part, width, height,
                                                     pointer(features[i:]), pointer(logits[i:]), None))
        return features, logits


class Text:
    """A T5 encoder, or the prompts' side of Harmon, NextStep-1, Lumina-mGPT, Anole or Emu3, in a folder as Hugging Face
    writes it: it turns prompts into a text-to-image model's captions."""

    def __init__(self, folder: Path, **options: object) -> None:
        self._open(Library(options), folder)

    @classmethod
    def _load(cls, library: Library, folder: Path) -> Text:
        text = cls.__new__(cls)
        text._open(library, folder)
        return text

    def _open(self, library: Library, folder: Path) -> None:
        self._library, made = library, c.c_void_p()
        self._library.check(lib.mar_text_load(self._library.pointer, as_path("folder", folder), c.byref(made)))
        self._pointer = made
        weakref.finalize(self, lib.mar_text_free, made)
        config = lib.mar_text_get_config(made).contents
        self.size, self.parameters, self.has_negative = int(config.dim), int(config.parameters), bool(config.negative)

    def encode(self, prompts: Union[str, Sequence[str]], tokens: int = 120, clean: bool = True,
               ) -> tuple[Float32Array, BoolArray, Int32Array]:
        """Returns features [n, tokens, size], mask [n, tokens], and each prompt's number of tokens before it was cut.
        Padding is on the left. clean: as LlamaGen's release cleans captions."""
        texts = [prompts] if isinstance(prompts, str) else list(prompts)
        tokens, n = _lib.fit("tokens", tokens, c.c_int), len(texts)
        given = (c.c_char_p * n)(*(encoded("prompts", text) for text in texts))
        room = min(max(tokens, 0), _lib.TEXT_TOKENS_MAX)  # the library refuses others
        features, mask = np.zeros((n, room, self.size), np.float32), np.zeros((n, room), np.bool_)
        counts = np.zeros(n, np.int32)
        self._library.check(lib.mar_text_encode(self._pointer, given, n, 0 if clean else 1, tokens, pointer(features),
                                                pointer(mask), pointer(counts)))
        return features, mask, counts

    def encode_negative(self, text: Optional[str], tokens: int) -> tuple[Float32Array, BoolArray]:
        """Returns features [tokens, size] and mask [tokens] of the second context of guidance, for
        Session.set_negative. None: the model's own. A T5 has none."""
        given, tokens = None if text is None else encoded("text", text), _lib.fit("tokens", tokens, c.c_int)
        room = min(max(tokens, 0), _lib.TEXT_TOKENS_MAX)
        features, mask = np.zeros((room, self.size), np.float32), np.zeros(room, np.bool_)
        self._library.check(lib.mar_text_encode_negative(self._pointer, given, tokens, pointer(features),
                                                         pointer(mask), None))
        return features, mask


class Clip:
    """OpenAI's CLIP, in a folder as Hugging Face writes it: embeddings of length 1, whose products are cosines."""

    def __init__(self, folder: Path, batch: int = 64, **options: object) -> None:
        self._library, self._batch = Library(options), _lib.fit("batch", batch, c.c_int)
        made = c.c_void_p()
        self._library.check(lib.mar_clip_load(self._library.pointer, as_path("folder", folder), self._batch,
                                              c.byref(made)))
        self._pointer = made
        weakref.finalize(self, lib.mar_clip_free, made)
        config = lib.mar_clip_get_config(made).contents
        self.size, self.image_size, self.positions = int(config.embedding), int(config.image_size), int(config.positions)

    def images(self, images: npt.ArrayLike) -> Float32Array:
        """Returns embeddings [n, size] of images uint8 [n, height, width, 3], resized and cut as CLIP's processor does."""
        pixels = np.ascontiguousarray(as_bytes(images, "images"))
        if pixels.ndim != 4 or pixels.shape[3] != 3:
            raise ValueError(f"images: shape {pixels.shape}, expected (n, height, width, 3)")
        n, height, width, _ = pixels.shape
        made = np.zeros((n, self.size), np.float32)
        for i in range(0, n, self._batch):
            self._library.check(lib.mar_clip_images(self._pointer, pointer(pixels[i:]), min(self._batch, n - i), width,
                                                    height, pointer(made[i:])))
        return made

    def texts(self, texts: Union[str, Sequence[str]]) -> Float32Array:
        """Returns embeddings [n, size]. Of a longer text the first tokens and the end token are kept."""
        all_texts = [texts] if isinstance(texts, str) else list(texts)
        n = len(all_texts)
        made = np.zeros((n, self.size), np.float32)
        for i in range(0, n, self._batch):
            part = [encoded("texts", text) for text in all_texts[i:i + self._batch]]
            self._library.check(lib.mar_clip_texts(self._pointer, (c.c_char_p * len(part))(*part), len(part),
                                                   pointer(made[i:])))
        return made


def frechet_distance(a: npt.ArrayLike, b: npt.ArrayLike) -> float:
    """The Frechet distance of Gaussians with the mean and covariance of features a and b, each [n, size]: FID with
    those of Inception-v3 (Heusel et al., 2017)."""
    x, y = np.asarray(a, np.float64), np.asarray(b, np.float64)
    mean = x.mean(0) - y.mean(0)
    cov_x, cov_y = np.cov(x, rowvar=False), np.cov(y, rowvar=False)
    values, vectors = np.linalg.eigh(cov_x)
    root = (vectors * np.sqrt(np.maximum(values, 0))) @ vectors.T
    product = np.linalg.eigvalsh(root @ cov_y @ root)  # of the eigenvalues of cov_x cov_y
    return float(mean @ mean + np.trace(cov_x) + np.trace(cov_y) - 2 * np.sqrt(np.maximum(product, 0)).sum())


def _feature_sets(reference: npt.ArrayLike, images: npt.ArrayLike) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    a, b = numbers(reference, np.float32, "reference"), numbers(images, np.float32, "images")
    if a.ndim != 2 or b.ndim != 2 or a.shape[1] != b.shape[1]:
        raise ValueError(f"features: shapes {a.shape} and {b.shape}, expected (n, size) of one size")
    return a, b


def precision_recall(reference: npt.ArrayLike, images: npt.ArrayLike, k: int = 3, **options: object,
                     ) -> tuple[float, float]:
    """Precision and recall (Kynkaanniemi et al., 2019) of features, each [n, size]."""
    a, b = _feature_sets(reference, images)
    precision, recall, library = c.c_double(), c.c_double(), Library(options)
    library.check(lib.mar_precision_recall(library.pointer, pointer(a), len(a), pointer(b), len(b), a.shape[1],
                                           _lib.fit("k", k, c.c_int),
                                           c.byref(precision), c.byref(recall)))
    return precision.value, recall.value


def kernel_distance(reference: npt.ArrayLike, images: npt.ArrayLike, subsets: int = 100, subset_size: int = 1000,
                    **options: object) -> tuple[float, float]:
    """Kernel distance (Binkowski et al., 2018) of features, each [n, size], as torch-fidelity's KID: mean, deviation."""
    a, b = _feature_sets(reference, images)
    mean, deviation, library = c.c_double(), c.c_double(), Library(options)
    library.check(lib.mar_kernel_distance(library.pointer, pointer(a), len(a), pointer(b), len(b), a.shape[1],
                                          _lib.fit("subsets", subsets, c.c_int),
                                          _lib.fit("subset_size", subset_size, c.c_int),
                                          c.byref(mean), c.byref(deviation)))
    return mean.value, deviation.value


PERMUTATIONS = 999  # as mar fidelity has them


def _distances(x: Float64Array, y: Float64Array) -> Float64Array:
    """Euclidean distances [n, n] of rows."""
    squares = (x ** 2).sum(1)[:, None] + (y ** 2).sum(1) - 2 * x @ y.T
    made: Float64Array = np.sqrt(np.maximum(squares, 0))
    return made


def energy_test(a: npt.ArrayLike, b: npt.ArrayLike) -> tuple[float, float, float]:
    """Returns the energy distance of a and b [n, ..., channels], its p-value, and the distance's 95 % quantile, both by
    swapping pairs at random. a[i] and b[i] share their seed (eval/statistics.h)."""
    x, y = np.asarray(a, np.float64), np.asarray(b, np.float64)
    if x.shape != y.shape or x.ndim < 2 or len(x) < 2:
        raise ValueError(f"tokens: shapes {x.shape} and {y.shape}, expected two of (n, ..., channels), n at least 2")
    n, scale = len(x), y.reshape(-1, y.shape[-1]).std(0)
    scale[scale == 0] = 1
    if np.array_equal(x, y):
        return 0.0, 1.0, 0.0
    x, y = (x / scale).reshape(n, -1), (y / scale).reshape(n, -1)
    across = _distances(x, y)
    kernel = _distances(x, x) + _distances(y, y) - across - across.T
    np.fill_diagonal(kernel, 0)
    signs = np.random.default_rng(0).choice([-1.0, 1.0], (PERMUTATIONS, n))
    distance = -kernel.sum() / (n * (n - 1))
    swapped = np.sort(-((signs @ kernel) * signs).sum(1) / (n * (n - 1)))
    p = (1 + (swapped >= distance - 1e-6 * abs(distance)).sum()) / (1 + PERMUTATIONS)
    return float(distance), float(p), float(swapped[int(0.95 * (PERMUTATIONS - 1))])


def energy_distance(a: npt.ArrayLike, b: npt.ArrayLike) -> float:
    """The energy distance 2 E|A-B| - E|A-A'| - E|B-B'| of whole images (Szekely, Rizzo 2004), in standard deviations of
    b's channels, as mar fidelity has it. a and b: tokens [n, ..., channels], of the same seeds. It is unbiased: chance
    can make it negative."""
    return energy_test(a, b)[0]


class Method(NamedTuple):
    """An accelerator: the options that turn it on, and what it does to the images' distribution."""
    name: str
    kind: str
    option: Optional[str]
    tokens: str
    exact: bool
    guarantee: str
    source: str
    summary: str
    models: str


def methods() -> list[Method]:
    """Returns all accelerators."""
    rows = (lib.mar_method_get(i).contents for i in range(lib.mar_method_count()))
    return [Method(r.name.decode(), r.kind.decode(), r.option and r.option.decode(), r.tokens.decode(), bool(r.exact),
                   r.guarantee.decode(), r.source.decode(), r.summary.decode(), r.models.decode()) for r in rows]
