"""libmar by ctypes: the structs and functions of libmar's headers that the package uses. tests/python checks the
structs' layout against tests/rooms/abi.txt."""
from __future__ import annotations

import ctypes as c
import operator
import os
from pathlib import Path
from typing import Any


#: The ranges of C's whole numbers.
_SIGNED: list[Any] = [c.c_int, c.c_long]
_UNSIGNED: list[Any] = [c.c_uint64, c.c_size_t]
_RANGES = {kind: (-2 ** (8 * c.sizeof(kind) - 1), 2 ** (8 * c.sizeof(kind) - 1) - 1) for kind in _SIGNED}
_RANGES.update({kind: (0, 2 ** (8 * c.sizeof(kind)) - 1) for kind in _UNSIGNED})


def fit(name: str, value: Any, kind: Any) -> Any:
    """Returns the value for an argument or field of C's type `kind`. ctypes itself would cut a number that does not fit,
    and C a text at its NUL."""
    if kind is c.c_char_p and isinstance(value, bytes) and b"\0" in value:
        raise ValueError(f"{name}: has a NUL, expected text without one")
    if kind not in _RANGES:
        return value
    low, high = _RANGES[kind]
    try:
        number = operator.index(value)
    except TypeError:
        raise TypeError(f"{name}: {type(value).__name__}, expected a whole number") from None
    if not low <= number <= high:
        raise ValueError(f"{name} {number}: expected {low} to {high}")
    return number


class _Argument:
    """The type of a function's argument, which refuses what does not fit."""

    def __init__(self, kind: Any) -> None:
        self._kind = kind

    def from_param(self, value: Any) -> Any:
        return self._kind.from_param(fit("argument", value, self._kind))


class Sized(c.Structure):
    """A struct of libmar. Its first field is its size. A field refuses what does not fit."""

    def __setattr__(self, name: str, value: Any) -> None:
        kinds = {field[0]: field[1] for field in self._fields_}
        super().__setattr__(name, fit(name, value, kinds.get(name)))

    @classmethod
    def new(cls, initialiser: str, *before: Any) -> Any:
        """Returns a struct that the library's initialiser has set up; `before` are the arguments in front of it."""
        made = cls()
        getattr(lib, initialiser)(*before, c.byref(made), c.sizeof(made))
        return made


class Options(Sized):
    _fields_ = [("size", c.c_size_t), ("dtype", c.c_int), ("threads", c.c_int), ("backend", c.c_int),
                ("device", c.c_int), ("log", c.c_void_p), ("log_user", c.c_void_p), ("allow_nonfinite", c.c_int),
                ("head_dtype", c.c_int), ("int8_below", c.c_int), ("seq_len", c.c_int), ("weights", c.c_int),
                ("patch_size", c.c_int), ("alloc", c.c_void_p), ("free", c.c_void_p), ("alloc_user", c.c_void_p),
                ("image_size", c.c_char_p), ("tuning", c.c_char_p), ("tune", c.c_int), ("reserved", c.c_int)]


class Source(Sized):
    _fields_ = [("size", c.c_size_t), ("path", c.c_char_p), ("data", c.c_void_p), ("bytes", c.c_size_t),
                ("fd", c.c_int), ("name", c.c_char_p), ("heads", c.c_int), ("progress", c.c_void_p),
                ("user", c.c_void_p), ("encoder", c.c_int), ("reserved", c.c_int), ("file", c.c_void_p)]


class Pixels(Sized):
    _fields_ = [("size", c.c_size_t), ("format", c.c_int), ("reserved", c.c_int), ("data", c.c_void_p),
                ("stride", c.c_size_t), ("capacity", c.c_size_t)]


class Request(Sized):
    _fields_ = [("size", c.c_size_t), ("label", c.c_int), ("cfg", c.c_float), ("seed", c.c_uint64),
                ("image", c.c_uint64), ("features", c.c_void_p), ("mask", c.c_void_p), ("tokens", c.c_void_p),
                ("known", c.c_void_p), ("negative", c.c_void_p), ("negative_mask", c.c_void_p)]


class RequestInfo(Sized):
    _fields_ = [("size", c.c_size_t), ("state", c.c_int), ("status", c.c_int), ("step", c.c_int), ("steps", c.c_int),
                ("why", c.c_char_p)]


class ModelConfig(Sized):
    _fields_ = [("size", c.c_size_t), ("width", c.c_int), ("encoder_depth", c.c_int), ("decoder_depth", c.c_int),
                ("heads", c.c_int), ("decoder_heads", c.c_int), ("mlp_hidden", c.c_int), ("buffer", c.c_int),
                ("seq_len", c.c_int), ("token_dim", c.c_int), ("classes", c.c_int), ("head_width", c.c_int),
                ("head_depth", c.c_int), ("parameters", c.c_long), ("family", c.c_char_p), ("vocabulary", c.c_int),
                ("caption_tokens", c.c_int), ("caption_dim", c.c_int), ("int8_weights", c.c_int),
                ("heads_guessed", c.c_int), ("patch_size", c.c_int), ("image_decoder", c.c_int), ("grid_width", c.c_int),
                ("title", c.c_char_p), ("conditioning", c.c_int), ("order", c.c_int), ("head", c.c_int), ("sizes", c.c_int),
                ("num_iter", c.c_int), ("warning", c.c_char_p), ("hash", c.c_uint64), ("cfg", c.c_float),
                ("cfg_schedule", c.c_int), ("num_sampling_steps", c.c_int), ("time_shift", c.c_float),
                ("token_norm", c.c_int), ("token_pixels", c.c_int)]


class VaeConfig(Sized):
    _fields_ = [("size", c.c_size_t), ("z_channels", c.c_int), ("stride", c.c_int), ("channels", c.c_int),
                ("levels", c.c_int), ("res_blocks", c.c_int), ("codebook", c.c_int)]


class FileInfo(Sized):
    _fields_ = [("size", c.c_size_t), ("kind", c.c_int), ("stored", c.c_int), ("folder", c.c_int), ("prompts", c.c_int)]


class FeaturesConfig(Sized):
    _fields_ = [("size", c.c_size_t), ("name", c.c_char_p), ("features", c.c_int), ("classes", c.c_int),
                ("spatial", c.c_int), ("parameters", c.c_long)]


class TextConfig(Sized):
    _fields_ = [("size", c.c_size_t), ("name", c.c_char_p), ("parameters", c.c_long), ("dim", c.c_int), ("depth", c.c_int),
                ("heads", c.c_int), ("hidden", c.c_int), ("vocabulary", c.c_int), ("int8_weights", c.c_int),
                ("family", c.c_char_p), ("tokens", c.c_int), ("negative", c.c_int), ("conditioning", c.c_int),
                ("reserved", c.c_int), ("warning", c.c_char_p), ("hash", c.c_uint64)]


class ClipConfig(Sized):
    _fields_ = [("size", c.c_size_t), ("name", c.c_char_p), ("parameters", c.c_long), ("embedding", c.c_int),
                ("image_size", c.c_int), ("patch", c.c_int), ("positions", c.c_int), ("vocabulary", c.c_int),
                ("reserved", c.c_int)]


class MethodInfo(Sized):
    _fields_ = [("size", c.c_size_t), ("name", c.c_char_p), ("kind", c.c_char_p), ("option", c.c_char_p),
                ("tokens", c.c_char_p), ("topology", c.c_char_p), ("exact", c.c_int), ("parameter_count", c.c_int),
                ("guarantee", c.c_char_p), ("source", c.c_char_p), ("summary", c.c_char_p), ("models", c.c_char_p),
                ("codebook", c.c_int), ("reserved", c.c_int)]


class Param(Sized):
    _fields_ = [("size", c.c_size_t), ("name", c.c_char_p), ("help", c.c_char_p), ("group", c.c_char_p),
                ("type", c.c_int), ("offset", c.c_size_t), ("value", c.c_double), ("min", c.c_double),
                ("max", c.c_double), ("choices", c.c_void_p), ("method", c.c_char_p), ("argument", c.c_char_p),
                ("tokens", c.c_char_p)]


class Preset(Sized):
    _fields_ = [("size", c.c_size_t), ("level", c.c_int), ("reserved", c.c_int), ("options", c.POINTER(c.c_char_p))]


#: The structs by their names in C.
STRUCTS = {"mar_options": Options, "mar_source": Source, "mar_pixels": Pixels, "mar_request": Request,
           "mar_request_info": RequestInfo, "mar_model_config": ModelConfig, "mar_vae_config": VaeConfig,
           "mar_file_info": FileInfo, "mar_features_config": FeaturesConfig, "mar_clip_config": ClipConfig,
           "mar_text_config": TextConfig, "mar_method_info": MethodInfo, "mar_param": Param, "mar_preset": Preset}

TEXT_TOKENS_MAX = 4096  # MAR_TEXT_TOKENS_MAX
OK, EARG, ENOMEM, EIO, EFORMAT, EMODEL, EBACKEND, ECANCELLED = range(8)
RGB8, RGBA8, RGB_F32 = range(3)
UNKNOWN, WAITING, RUNNING, DONE, FAILED = range(5)
NONE, CLASS, FEATURES, IDS = range(4)
SOFTMAX = 2  # MAR_HEAD_SOFTMAX: discrete tokens


def _load() -> c.CDLL:
    """Loads the package's library, or that of MAR_LIBRARY."""
    given = os.environ.get("MAR_LIBRARY")
    path = Path(given) if given else Path(__file__).with_name("libmar.so")
    return c.CDLL(str(path))


lib = _load()

#: mar_log_function: user, level, line.
Log = c.CFUNCTYPE(None, c.c_void_p, c.c_int, c.c_char_p)

_P = c.c_void_p
_FUNCTIONS: dict[str, tuple[Any, list[Any]]] = {
    "mar_version": (c.c_char_p, []),
    "mar_status_name": (c.c_char_p, [c.c_int]),
    "mar_error": (c.c_char_p, [_P]),
    "mar_options_init": (None, [_P, c.c_size_t]),
    "mar_option_count": (c.c_int, []),
    "mar_option_get": (c.POINTER(Param), [c.c_int]),
    "mar_param_set": (c.c_int, [_P, _P, c.c_char_p, c.c_char_p, c.c_size_t]),
    "mar_param_text": (c.c_char_p, [_P, _P, c.c_char_p, c.c_size_t]),
    "mar_open": (c.c_int, [_P, c.POINTER(_P)]),
    "mar_close": (None, [_P]),
    "mar_backend_description": (c.c_char_p, [_P]),
    "mar_file_open": (c.c_int, [c.c_char_p, c.c_int, c.POINTER(_P)]),
    "mar_file_close": (None, [_P]),
    "mar_file_get_info": (c.POINTER(FileInfo), [_P]),
    "mar_source_init": (None, [_P, c.c_size_t]),
    "mar_model_load_from": (c.c_int, [_P, _P, c.POINTER(_P)]),
    "mar_model_free": (None, [_P]),
    "mar_model_get_config": (c.POINTER(ModelConfig), [_P]),
    "mar_vae_load_from": (c.c_int, [_P, _P, c.POINTER(_P)]),
    "mar_vae_free": (None, [_P]),
    "mar_vae_get_config": (c.POINTER(VaeConfig), [_P]),
    "mar_vae_codebook": (c.POINTER(c.c_float), [_P]),
    "mar_params_new": (_P, []),
    "mar_params_free": (None, [_P]),
    "mar_param_count": (c.c_int, []),
    "mar_param_get": (c.POINTER(Param), [c.c_int]),
    "mar_params_unused": (c.c_char_p, [_P, c.c_int]),
    "mar_preset_get": (c.POINTER(Preset), [c.c_int, _P]),
    "mar_preset_value": (c.c_char_p, [_P, c.c_int, _P, c.c_char_p, c.c_size_t]),
    "mar_params_set": (c.c_int, [_P, c.c_char_p, c.c_char_p, c.c_char_p, c.c_size_t]),
    "mar_session_create": (c.c_int, [_P, _P, _P, c.c_int, c.POINTER(_P)]),
    "mar_session_free": (None, [_P]),
    "mar_session_error": (c.c_char_p, [_P]),
    "mar_session_step": (c.c_int, [_P]),
    "mar_session_cancel": (None, [_P]),
    "mar_session_image_size": (None, [_P, c.POINTER(c.c_int), c.POINTER(c.c_int)]),
    "mar_session_guarantee": (c.c_char_p, [_P]),
    "mar_pixels_init": (None, [_P, c.c_size_t]),
    "mar_request_init": (None, [_P, _P, c.c_size_t]),
    "mar_request_info_init": (None, [_P, c.c_size_t]),
    "mar_session_set_negative": (c.c_int, [_P, _P, _P]),
    "mar_session_submit": (c.c_int, [_P, _P, c.POINTER(c.c_uint64)]),
    "mar_session_get_request": (c.c_int, [_P, c.c_uint64, _P]),
    "mar_session_pending": (c.c_int, [_P]),
    "mar_session_next_finished": (c.c_uint64, [_P]),
    "mar_session_take": (c.c_int, [_P, c.c_uint64, _P, _P]),
    "mar_session_cancel_request": (c.c_int, [_P, c.c_uint64]),
    "mar_session_preview": (c.c_int, [_P, c.c_uint64, _P]),
    "mar_session_encode": (c.c_int, [_P, _P, _P]),
    "mar_text_load": (c.c_int, [_P, c.c_char_p, c.POINTER(_P)]),
    "mar_text_free": (None, [_P]),
    "mar_text_get_config": (c.POINTER(TextConfig), [_P]),
    "mar_text_encode": (c.c_int, [_P, _P, c.c_int, c.c_int, c.c_int, _P, _P, _P]),
    "mar_text_encode_negative": (c.c_int, [_P, c.c_char_p, c.c_int, _P, _P, _P]),
    "mar_features_load": (c.c_int, [_P, c.c_char_p, c.c_int, c.POINTER(_P)]),
    "mar_features_free": (None, [_P]),
    "mar_features_get_config": (c.POINTER(FeaturesConfig), [_P]),
    "mar_features_run": (c.c_int, [_P, _P, c.c_int, c.c_int, c.c_int, _P, _P, _P]),
    "mar_features_set_resize": (c.c_int, [_P, c.c_int]),
    "mar_clip_load": (c.c_int, [_P, c.c_char_p, c.c_int, c.POINTER(_P)]),
    "mar_clip_free": (None, [_P]),
    "mar_clip_get_config": (c.POINTER(ClipConfig), [_P]),
    "mar_clip_images": (c.c_int, [_P, _P, c.c_int, c.c_int, c.c_int, _P]),
    "mar_clip_texts": (c.c_int, [_P, _P, c.c_int, _P]),
    "mar_precision_recall": (c.c_int, [_P, _P, c.c_int, _P, c.c_int, c.c_int, c.c_int, c.POINTER(c.c_double),
                                       c.POINTER(c.c_double)]),
    "mar_kernel_distance": (c.c_int, [_P, _P, c.c_int, _P, c.c_int, c.c_int, c.c_int, c.c_int, c.POINTER(c.c_double),
                                      c.POINTER(c.c_double)]),
    "mar_method_count": (c.c_int, []),
    "mar_method_get": (c.POINTER(MethodInfo), [c.c_int]),
}
for _name, (_result, _arguments) in _FUNCTIONS.items():
    _function = getattr(lib, _name)
    _function.restype = _result
    _function.argtypes = [_Argument(_kind) if _kind in _RANGES or _kind is c.c_char_p else _kind for _kind in _arguments]
