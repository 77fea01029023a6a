"""The library's handle, its options and its errors."""
from __future__ import annotations

import ctypes as c
import difflib
import importlib
import logging
import os
import re
import weakref
from typing import Any, Iterable, Mapping, Optional, Union

import numpy as np
import numpy.typing as npt

from . import _lib
from ._lib import lib

Path = Union[str, os.PathLike[str]]
UInt8Array = npt.NDArray[np.uint8]
Float32Array = npt.NDArray[np.float32]
Float64Array = npt.NDArray[np.float64]
BoolArray = npt.NDArray[np.bool_]
Int32Array = npt.NDArray[np.int32]


class MarError(RuntimeError):
    """A call of libmar failed. The text is the library's line, with options as keywords, and `status` its name for the
    kind."""

    def __init__(self, status: int, line: str) -> None:
        super().__init__(keywords(line))
        self.status: str = lib.mar_status_name(status).decode()


def keywords(line: str) -> str:
    """Returns the library's line with "--cfg" as "cfg"."""
    return re.sub(r"(?<![\w-])--(?=[a-z])", "", line)


#: What diffusers calls an option of this module.
_OTHER = {"prompt": "the first argument", "class_labels": "the first argument", "label": "the first argument",
          "negative_prompt": "negative", "num_images_per_prompt": "num", "generator": "seed", "output_type": "output",
          "num_inference_steps": "num_iter, autoregressive steps, or num_sampling_steps, of the head",
          "guidance_scale": "cfg", "callback_on_step_end": "callback", "torch_dtype": "dtype", "backend": "device",
          "height": "size of mar.load", "width": "size of mar.load", "image": "the first argument", "mask_image": "mask",
          "strength": "keep"}


def unknown(name: str, known: Iterable[str], elsewhere: str = "", others: Iterable[str] = ()) -> TypeError:
    """The error for an option that is none of `known`. `elsewhere` takes those in `others`."""
    names = sorted(known)
    near = difflib.get_close_matches(name, names, 1)
    if name in others:
        return TypeError(f"{name}: is an option of {elsewhere}")
    if name in _OTHER:
        return TypeError(f"no option {name!r}: here it is {_OTHER[name]}")
    if near:
        return TypeError(f"no option {name!r}: did you mean {near[0]!r}?")
    return TypeError(f"no option {name!r}: expected one of {', '.join(names)}")


def wanted(name: str, module: str, package: str, instead: str) -> Any:
    """Imports a module that `name` needs. `instead`: what goes without it."""
    try:
        return importlib.import_module(module)
    except ImportError:
        raise ImportError(f"{name}: needs {package}, expected it (pip install {package.lower()}) or {instead}"
                          ) from None


def as_text(name: str, value: object) -> bytes:
    """A parameter as text: on and off for bools, what Python prints for the rest."""
    if isinstance(value, (bool, np.bool_)):
        return b"on" if value else b"off"
    if isinstance(value, (float, np.floating)):
        return repr(float(value)).encode()
    if isinstance(value, (tuple, list)):
        return b",".join(as_text(name, v) for v in value)
    return encoded(name, str(value))


def encoded(name: str, text: str) -> bytes:
    """Text for C, which ends at a NUL."""
    if not isinstance(text, str):
        raise TypeError(f"{name}: {type(text).__name__}, expected text")
    made: bytes = _lib.fit(name, text.encode("utf-8", "surrogateescape"), c.c_char_p)
    return made


def as_path(name: str, path: Path) -> bytes:
    if not isinstance(path, (str, bytes, os.PathLike)):
        raise TypeError(f"{name}: {type(path).__name__}, expected the path of a file or folder")
    if not os.fspath(path):
        raise ValueError(f"{name}: is empty, expected the path of a file or folder")
    made: bytes = _lib.fit(name, os.fsencode(path), c.c_char_p)
    return made


def pointer(array: Optional[npt.NDArray[Any]]) -> Optional[int]:
    return None if array is None else array.ctypes.data


def as_bytes(picture: npt.ArrayLike, name: str) -> UInt8Array:
    array = np.asarray(picture)
    if array.dtype != np.uint8:
        raise ValueError(f"{name}: {array.dtype}, expected uint8")
    return array


def numbers(value: npt.ArrayLike, dtype: Any, name: str) -> npt.NDArray[Any]:
    """Returns the numbers in C's order. For bool any whole number but 0 is true."""
    given = np.asarray(value)
    if given.dtype.kind not in ("biu" if dtype is not np.float32 else "biuf"):
        raise ValueError(f"{name}: {given.dtype}, expected {np.dtype(dtype)}")
    return np.ascontiguousarray(given, dtype)


def shaped(value: Optional[npt.ArrayLike], dtype: Any, shape: tuple[int, ...], name: str,
           ) -> Optional[npt.NDArray[Any]]:
    if value is None:
        return None
    array = numbers(value, dtype, name)
    if array.shape != shape:
        raise ValueError(f"{name}: shape {array.shape}, expected {shape}")
    return array


def _tell(user: object, level: int, line: Optional[bytes]) -> None:
    logging.getLogger("mar").log(logging.WARNING if level else logging.INFO, "%s", keywords((line or b"").decode()))


_log = _lib.Log(_tell)  # C keeps its address

#: Rows of the library's options, by name: of a handle, and of a session.
OPTIONS = {lib.mar_option_get(i).contents.name.decode(): lib.mar_option_get(i) for i in range(lib.mar_option_count())}
PARAMS = {lib.mar_param_get(i).contents.name.decode(): (i, lib.mar_param_get(i)) for i in range(lib.mar_param_count())}
#: Options of a handle by their names in Python: `device` takes the place of backend and device.
HANDLE = set(OPTIONS) - {"backend"}


def _handle_texts(options: Mapping[str, Any]) -> dict[str, bytes]:
    """The options of a handle as the library's texts."""
    texts = {}
    for name, value in options.items():
        if name not in HANDLE:
            raise unknown(name, HANDLE, "an image: pipe(..., " + name + "=...)", PARAMS)
        if name == "device" and value is not None:
            match = re.fullmatch(r"(cpu|cuda)(?::(\d+))?", str(value))
            if not match or match[1] == "cpu" and match[2]:
                raise ValueError(f'device {value!r}: expected "cpu", "cuda" or "cuda:1", the number of a GPU')
            texts["backend"] = match[1].encode()
            if match[2]:
                texts["device"] = match[2].encode()
        elif name == "size" and isinstance(value, (tuple, list)):
            texts[name] = encoded(name, "x".join(str(side) for side in value))
        elif name.endswith("dtype") and value is not None:  # torch.bfloat16, too
            text = str(value).rpartition(".")[2]
            texts[name] = encoded(name, {"float32": "f32", "bfloat16": "bf16", "float16": "f16"}.get(text, text))
        elif value is not None:
            texts[name] = as_text(name, value)
    return texts


class Library:
    """A handle: the device, shared by what is loaded with it."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        made = _lib.Options.new("mar_options_init")
        made.log = c.cast(_log, c.c_void_p)
        why = c.create_string_buffer(1024)
        texts = _handle_texts(options)  # made points to them
        for name, text in texts.items():
            status = lib.mar_param_set(OPTIONS[name], c.byref(made), text, why, len(why))
            if status != _lib.OK:
                raise MarError(status, why.value.decode())
        handle = c.c_void_p()
        status = lib.mar_open(c.byref(made), c.byref(handle))
        self.pointer = handle
        weakref.finalize(self, lib.mar_close, handle)
        self.check(status)

    @property
    def backend(self) -> str:
        return str(lib.mar_backend_description(self.pointer).decode())

    def check(self, status: int) -> None:
        if status != _lib.OK:
            raise MarError(status, lib.mar_error(self.pointer).decode())


#: What mar.load takes beside the path.
LOAD = HANDLE | {"vae", "draft", "text", "heads", "encoder", "fast", "class_names"}
