"""Writes tests/weights/data/npz: arrays as NumPy writes them, and what NumPy says is in them.

    python tests/weights/make_npz.py          (needs tests/requirements.txt)

expected.safetensors holds, for every array of arrays.npz, its bytes in C order (NAME) and its numbers as float64
(NAME.f64); for the .npy files their numbers (FILE.f64).
"""

import io
import os
import warnings
import zipfile

import numpy as np
from safetensors.numpy import save_file

DATA = os.path.join(os.path.dirname(os.path.abspath(__file__)), "data", "npz")


def path(name):
    return os.path.join(DATA, name)


def plain(a):
    return np.array(a, order="C", copy=True)


def make_arrays(rng):
    """In the order in which they are written."""
    extremes = [0.0, -0.0, np.inf, -np.inf, np.nan, 6.1e-5, 5.96e-8, 65504, -1 / 3]
    arrays = {
        "u8": rng.integers(0, 256, (2, 3, 5), np.uint8),
        "i32": rng.integers(-2**31, 2**31, (7,), np.int32),
        "i64": rng.integers(-2**63, 2**63, (2, 3), np.int64),
        "f16": np.concatenate([rng.standard_normal(20), extremes]).astype(np.float16),
        "f32": np.concatenate([rng.standard_normal(20) * 1e10, extremes]).astype(np.float32).reshape(1, 29),
        "f64": rng.standard_normal((5, 4)) * 1e300,
        "sigma_\u00e4\u20ac": rng.standard_normal((3, 3)),  # names are UTF-8
        "scalar": np.float64(rng.standard_normal()),
        "empty": np.zeros((0,), np.float16),
        "hollow": np.zeros((3, 0, 2), np.int32),
    }
    return {name: np.asarray(a) for name, a in arrays.items()}


def transposed(arrays):
    """The same numbers, Fortran order in the file. NumPy itself writes arrays of fewer than two dimensions in C order."""
    return {name: np.asfortranarray(a) for name, a in arrays.items()}


def write_version(name, array, version):
    with open(path(name), "wb") as f, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        np.lib.format.write_array(f, array, version)


def main():
    os.makedirs(DATA, exist_ok=True)
    rng = np.random.default_rng(20251122)
    arrays = make_arrays(rng)
    np.savez(path("arrays.npz"), **arrays)
    np.savez_compressed(path("deflated.npz"), **arrays)
    np.savez(path("fortran.npz"), **transposed(arrays))
    np.savez_compressed(path("fortran_deflated.npz"), **transposed(arrays))
    expected = {}
    for name, a in arrays.items():
        expected[name] = plain(a)
        expected[name + ".f64"] = plain(a.astype(np.float64))

    # Positional arrays, as ADM's files have them: enough deflated bytes that the reader fetches them in pieces.
    images = rng.integers(0, 256, (24, 32, 32, 3), np.uint8)
    np.savez_compressed(path("images.npz"), images)
    np.savez(path("slots.npz"), images[:5])
    expected["images"] = images

    for name, version in (("v1.npy", (1, 0)), ("v2.npy", (2, 0)), ("v3.npy", (3, 0))):
        a = rng.standard_normal((4, 6)).astype(np.float32)
        write_version(name, a if version != (2, 0) else np.asfortranarray(a), version)
        expected[name + ".f64"] = plain(a.astype(np.float64))

    objects = np.empty(2, object)
    objects[:] = [None, {"a": 1}]
    np.savez(path("refused.npz"), big=np.arange(3).astype(">f8"), object=objects, complex=np.ones(2, np.complex64),
             structured=np.zeros(2, [("a", "<f4"), ("b'\u20ac", ">i8", (2, 3))]), text=np.array(["x"]),
             bool=np.array([True]), rank9=np.zeros((1,) * 9), right=np.arange(4, dtype=np.int32))
    with zipfile.ZipFile(path("bzip2.npz"), "w", zipfile.ZIP_BZIP2) as z:
        data = io.BytesIO()
        np.save(data, np.arange(4))
        z.writestr("arr_0.npy", data.getvalue())
        z.writestr("note.txt", "not an array")
    save_file(expected, path("expected.safetensors"))
    os.chmod(path("expected.safetensors"), 0o644)


if __name__ == "__main__":
    main()
