"""libmar on the CPU, by way of ctypes."""

import ctypes
import sys
from pathlib import Path

import numpy as np

BUILT = str(Path(__file__).resolve().parent.parent / "build/release/libmar.so")
DTYPES = {"auto": 0, "f32": 1, "bf16": 2, "int8": 3, "f16": 4}  # mar_dtype


class Option(ctypes.Structure):
    """mar_param, up to the offset."""

    _fields_ = [("size", ctypes.c_size_t), ("name", ctypes.c_char_p), ("help", ctypes.c_char_p), ("group", ctypes.c_char_p), ("type", ctypes.c_int),
                ("offset", ctypes.c_size_t)]


class Library:
    """A handle, and models that are loaded once. A call that fails ends the program with its reason. head_dtype and
    int8_below: those of mar_options."""

    def __init__(self, path, dtype, threads, head_dtype="auto", int8_below=0):
        self.lib = lib = ctypes.CDLL(path)
        for name in ("mar_error", "mar_session_error", "mar_backend_description"):
            getattr(lib, name).restype = ctypes.c_char_p
        for name in ("mar_param_get", "mar_option_get"):
            getattr(lib, name).restype = ctypes.POINTER(Option)
        lib.mar_session_free.argtypes = [ctypes.c_void_p]
        self.handle, self.models = ctypes.c_void_p(), {}
        options = (ctypes.c_char * 512)()  # mar_options: size, and fields by their rows
        offsets = {row.name: row.offset for row in (lib.mar_option_get(i).contents for i in range(lib.mar_option_count()))}
        size = (max(offsets.values()) + 4 + 7) // 8 * 8  # the last field has 4 bytes, the structure pointers
        lib.mar_options_init(options, ctypes.c_size_t(size))
        for name, value in {"dtype": DTYPES[dtype], "threads": threads, "backend": 1, "head_dtype": DTYPES[head_dtype],
                            "int8_below": int8_below}.items():
            ctypes.c_int.from_buffer(options, offsets[name.encode()]).value = value
        self.check(lib.mar_open(options, ctypes.byref(self.handle)))

    def check(self, status, session=None):
        if status:
            why = self.lib.mar_session_error(session) if session else self.lib.mar_error(self.handle)
            sys.exit(why.decode())

    def model(self, name):
        if name not in self.models:
            self.models[name] = ctypes.c_void_p()
            self.check(self.lib.mar_model_load(self.handle, name.encode(), 0, ctypes.byref(self.models[name])))
        return self.models[name]

    def vae(self, name):
        vae = ctypes.c_void_p()
        self.check(self.lib.mar_vae_load(self.handle, name.encode(), ctypes.byref(vae)))
        return vae

    def session(self, model, vae, options, batch):
        """Of the model of that name. Options are texts by their names, the draft's is a model's name."""
        lib = self.lib
        rows = [lib.mar_param_get(i).contents for i in range(lib.mar_param_count())]
        size = (max(row.offset for row in rows) + 4 + 7) // 8 * 8  # the last field has 4 bytes, the structure pointers
        params, why, tree = (ctypes.c_char * size)(), ctypes.create_string_buffer(256), None
        lib.mar_params_init(params, ctypes.c_size_t(size))
        for name, value in options.items():
            offset = next((row.offset for row in rows if row.name == name.encode()), None)
            if name == "draft":
                ctypes.c_void_p.from_buffer(params, offset).value = self.model(value).value
            elif name == "tree":  # a text of the caller's, which lives as long as this call
                tree = ctypes.create_string_buffer(value.encode())
                ctypes.c_void_p.from_buffer(params, offset).value = ctypes.addressof(tree)
            elif lib.mar_params_set(params, name.encode(), value.encode(), why, ctypes.c_size_t(256)):
                sys.exit(why.value.decode())
        session = ctypes.c_void_p()
        self.check(lib.mar_session_create(self.model(model), vae, params, batch, ctypes.byref(session)))
        return session

    def description(self):
        """What the handle runs on."""
        return self.lib.mar_backend_description(self.handle).decode()

    def tokens(self, session, first, labels, out):
        """Makes images first .. first+len(labels)-1 of these classes, and writes their tokens to a float32 array."""
        lib, n = self.lib, len(labels)
        assert out.dtype == np.float32 and out.flags.c_contiguous and len(out) == n
        self.check(lib.mar_session_begin(session, ctypes.c_uint64(first), (ctypes.c_int * n)(*labels), n), session)
        while not lib.mar_session_done(session):
            self.check(lib.mar_session_step(session), session)
        self.check(lib.mar_session_tokens(session, out.ctypes.data_as(ctypes.c_void_p)), session)
