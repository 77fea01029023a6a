"""Pictures to edit, as mar edit takes them: place on the model's grid, what is made anew, what is pasted back."""
from __future__ import annotations

import ctypes as c
import os
import warnings
from typing import Any, Optional, Sequence

import numpy as np

from . import _lib
from ._core import BoolArray, UInt8Array, as_bytes

Place = Optional[Sequence[int]]  # x, y; None: the middle


def rgb(name: str, image: Any) -> Any:
    """Returns the pixels of an image of PIL [height, width, 3], with a warning if one is not opaque, or an array as it
    is."""
    if not hasattr(image, "convert"):
        return image
    pixels = np.asarray(image.convert("RGBA"))
    if (pixels[..., 3] < 255).any():
        warnings.warn(f"{name}: its transparency is not used, white in mask= says where a picture is made anew",
                      stacklevel=3)
    return pixels[..., :3]


def picture_pixels(picture: Any) -> UInt8Array:
    """Returns the pixels [height, width, 3] of an array."""
    if isinstance(picture, (str, os.PathLike)):
        raise TypeError(f"picture: {type(picture).__name__}, expected an image of Pillow or an array")
    array = as_bytes(picture, "picture")
    if array.ndim != 3 or array.shape[2] != 3 or 0 in array.shape:
        raise ValueError(f"picture: shape {array.shape}, expected (height, width, 3)")
    return array


def mask_pixels(mask: Any) -> BoolArray:
    """Returns where a mask is true, or white: 128 or more in a channel. [height, width]"""
    given = np.asarray(mask)
    white: Any = given if given.dtype == np.bool_ else as_bytes(given, "mask") >= 128
    if white.ndim == 3 and white.shape[2] in (1, 3):
        white = white.any(2)
    if white.ndim != 2:
        raise ValueError(f"mask: shape {given.shape}, expected (height, width) or (height, width, 3)")
    made: BoolArray = white
    return made


def _whole(name: str, values: Any, count: int, low: int) -> list[int]:
    """Returns whole numbers of C, each `low` or more but the first two, which begin at 0."""
    given = list(values) if isinstance(values, (tuple, list)) else []
    found: list[int] = [_lib.fit(name, value, c.c_int) for value in given]
    if len(found) != count or min(found[:2]) < 0 or min(found[2:], default=low) < low:
        raise ValueError(f"{name} {values}: expected {'x, y, width, height' if count == 4 else 'x, y'} in pixels")
    return found


class Canvas:
    """A picture on the model's image: pixels [height, width, 3], and `inside`, where the picture is."""

    def __init__(self, picture: UInt8Array, shape: tuple[int, int], columns: int, offset: Place) -> None:
        self.cell, self.columns = shape[1] // columns, columns
        (height, width), size = shape, picture.shape[:2]
        if size[0] > height or size[1] > width:
            raise ValueError(f"picture: {size[1]}x{size[0]} pixels, expected the model's {width}x{height} at most")
        if offset is None:
            self._at = [(whole - side) // 2 // self.cell * self.cell for whole, side in zip(shape, size)]
        else:
            self._at = _whole("offset", offset, 2, 0)[::-1]
        if any(at + side > whole for at, side, whole in zip(self._at, size, shape)):
            raise ValueError(f"offset {offset}: expected {width - size[1]}, {height - size[0]} at most")
        rows, rest = ([np.clip(np.arange(whole) - at, 0, side - 1) for at, side, whole in zip(self._at, size, shape)])
        self.pixels: UInt8Array = np.ascontiguousarray(picture[rows][:, rest])  # its sides continue
        self._size = size
        self.inside = self._placed(np.ones(size, np.bool_))

    def _placed(self, pixels: BoolArray) -> BoolArray:
        made = np.zeros(self.pixels.shape[:2], np.bool_)
        made[self._at[0]:self._at[0] + self._size[0], self._at[1]:self._at[1] + self._size[1]] = pixels
        return made

    def made_anew(self, mask: Any, box: Optional[Sequence[int]]) -> BoolArray:
        """Returns the pixels of a mask or a box [height, width]."""
        height, width = shape = self.pixels.shape[:2]
        if mask is not None:
            white = mask_pixels(mask)
            if white.shape not in (shape, self._size):
                raise ValueError(f"mask: {white.shape[1]}x{white.shape[0]} pixels, expected {width}x{height}"
                                 " or those of the picture")
            return white if white.shape == shape else self._placed(white)
        made = np.zeros(shape, np.bool_)
        if box is not None:
            x, y, w, h = _whole("box", box, 4, 1)
            if x + w > width or y + h > height:
                raise ValueError(f"box {box}: ends at {x + w}, {y + h}, beyond the model's {width}x{height} pixels")
            made[y:y + h, x:x + w] = True
        return made

    def known(self, made: BoolArray) -> BoolArray:
        """Returns the tokens that are kept [tokens]: whole cells of the picture without a pixel that is made anew."""
        kept = self.inside & ~made
        known: BoolArray = kept.reshape(-1, self.cell, self.columns, self.cell).all(axis=(1, 3)).reshape(-1)
        return known

    def paste(self, images: UInt8Array, made: BoolArray, feather: int) -> UInt8Array:
        """Pastes the picture's pixels over images [n, height, width, 3]: all of each from `feather` pixels on from those
        that are made, nearer to these less."""
        most = feather + 1
        squares = np.where(~self.inside | made, 0, most * most)
        for axis in (0, 1):
            lines, best = np.moveaxis(squares, axis, 0), np.moveaxis(squares, axis, 0).copy()
            for d in range(1, min(most, len(lines) - 1) + 1):
                np.minimum(best[d:], lines[:-d] + d * d, out=best[d:])
                np.minimum(best[:-d], lines[d:] + d * d, out=best[:-d])
            squares = np.moveaxis(best, 0, axis)
        weight = np.rint(255 * np.minimum(1, np.sqrt(squares) / most)).astype(np.int64)[..., None]
        pasted: UInt8Array = ((self.pixels * weight + images * (255 - weight) + 127) // 255).astype(np.uint8)
        return pasted


def keep(fraction: float, seed: int, number: int, known: BoolArray) -> BoolArray:
    """Returns which of the known tokens an image keeps, as mar edit --keep chooses them (edit_keep)."""
    bits, made = 2 ** 64 - 1, known.copy()
    state = seed

    def draw() -> int:  # SplitMix64
        nonlocal state
        state = (state + 0x9E3779B97F4A7C15) & bits
        z = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & bits
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & bits
        return z ^ (z >> 31)

    state = draw() ^ number
    left = int(known.sum())
    kept = int(float(np.float32(fraction)) * left + 0.5)
    kept -= fraction < 1 and kept == left > 0  # something is made
    for i in np.flatnonzero(known):
        made[i] = draw() % left < kept
        kept -= int(made[i])
        left -= 1
    return made
