"""Requests of images, one step at a time."""
from __future__ import annotations

import ctypes as c
import weakref
from typing import TYPE_CHECKING, Any, Mapping, Optional

import numpy as np
import numpy.typing as npt

from . import _lib
from ._core import (LOAD, PARAMS, Float32Array, MarError, UInt8Array, as_bytes, as_text, encoded, pointer, shaped,
                    unknown)
from ._lib import lib

if TYPE_CHECKING:
    from ._model import Model


#: Groups of options that are no accelerators.
_BASIC = (b"Steps", b"Sampling", b"Checks")


def _request(number: int) -> int:
    made: int = _lib.fit("request", number, c.c_uint64)
    return made


def _apply_preset(made: int, given: Mapping[str, object], model: Model) -> None:
    """Sets the options of the model's preset that were not given, have an effect, and do not conflict with those given,
    as mar generate --fast does."""
    # presets were measured without accelerators, so that only these can conflict
    tries = bool(model._draft) or any(PARAMS[name][1].contents.group not in _BASIC for name in given)
    old, text = c.create_string_buffer(64), c.create_string_buffer(64)
    options: Any = model._preset.contents.options if model._preset else [None, None]
    i = 1  # the first one is dtype
    while options[i] is not None:
        name = options[i].decode()
        number, row = PARAMS[name]
        if name not in given:
            lib.mar_param_text(row, made, old, len(old))
            lib.mar_preset_value(model._preset, i, lib.mar_model_get_config(model._model), text, len(text))
            lib.mar_param_set(row, made, text.value, None, 0)
            status, session = _lib.OK if lib.mar_params_unused(made, number) is None else _lib.EARG, c.c_void_p()
            if status == _lib.OK and tries:
                status = lib.mar_session_create(model._model, model._vae, made, 1, c.byref(session))
                lib.mar_session_free(session)
            if status == _lib.ENOMEM:
                model._library.check(status)
            if status != _lib.OK:
                lib.mar_param_set(row, made, old.value, None, 0)
        i += 1


class Session:
    """Images in progress. Requests come and go one at a time: submit, step while pending, take."""

    def __init__(self, model: Model, batch: int, params: Mapping[str, object]) -> None:
        self.model = model
        made, why = lib.mar_params_new(), c.create_string_buffer(1024)
        if not made:
            raise MemoryError("no memory for parameters")
        try:
            for name, value in params.items():
                if name not in PARAMS or name == "draft":
                    raise unknown(name, set(PARAMS) - {"draft"}, f"mar.load: mar.load(..., {name}=...)", LOAD)
                status = lib.mar_params_set(made, encoded(name, name), as_text(name, value), why, len(why))
                if status != _lib.OK:
                    raise MarError(status, why.value.decode())
            if model._draft:
                c.c_void_p.from_address(made + PARAMS["draft"][1].contents.offset).value = model._draft.value
            _apply_preset(made, params, model)
            session = c.c_void_p()
            batch = _lib.fit("batch", batch, c.c_int)
            model._library.check(lib.mar_session_create(model._model, model._vae, made, batch, c.byref(session)))
        finally:
            lib.mar_params_free(made)
        self._pointer = session
        weakref.finalize(self, lib.mar_session_free, session)
        width, height = c.c_int(), c.c_int()
        lib.mar_session_image_size(session, c.byref(width), c.byref(height))
        self.shape: tuple[int, int] = (height.value, width.value)
        self._tokens = (int(model.config["seq_len"]), int(model.config["token_dim"]))

    def _check(self, status: int) -> None:
        if status != _lib.OK:
            raise MarError(status, lib.mar_session_error(self._pointer).decode())

    @property
    def guarantee(self) -> str:
        """What is guaranteed of the images' distribution, in one line."""
        return str(lib.mar_session_guarantee(self._pointer).decode())

    @property
    def pending(self) -> int:
        """Requests that wait or are in progress."""
        return int(lib.mar_session_pending(self._pointer))

    @property
    def finished(self) -> int:
        """The oldest request that is done or has failed; 0 if there is none."""
        return int(lib.mar_session_next_finished(self._pointer))

    def submit(self, label: int = -1, *, seed: Optional[int] = None, image: int = 0, cfg: Optional[float] = None,
               tokens: Optional[npt.ArrayLike] = None, known: Optional[npt.ArrayLike] = None,
               features: Optional[npt.ArrayLike] = None, mask: Optional[npt.ArrayLike] = None,
               negative: Optional[npt.ArrayLike] = None, negative_mask: Optional[npt.ArrayLike] = None) -> int:
        """Adds a request and returns its number. tokens [seq_len, token_dim] with known [seq_len]: those that are kept
        bit for bit. features and mask: a caption, for text-to-image models; negative and negative_mask: its second
        context of guidance, in place of the session's. Model.caption makes them of a prompt."""
        request = _lib.Request.new("mar_request_init", self._pointer)
        request.label, request.image = label, image
        if seed is not None:
            request.seed = seed
        if cfg is not None:
            request.cfg = cfg
        positions, dim = self.model.config["caption_tokens"], self.model.config["caption_dim"]
        arrays = [shaped(tokens, np.float32, self._tokens, "tokens"),
                  shaped(known, np.bool_, self._tokens[:1], "known"),
                  shaped(features, np.float32, (positions, dim), "features"),
                  shaped(mask, np.bool_, (positions,), "mask"),
                  shaped(negative, np.float32, (positions, dim), "negative"),
                  shaped(negative_mask, np.bool_, (positions,), "negative_mask")]
        (request.tokens, request.known, request.features, request.mask, request.negative,
         request.negative_mask) = map(pointer, arrays)
        number = c.c_uint64()
        self._check(lib.mar_session_submit(self._pointer, c.byref(request), c.byref(number)))
        return number.value

    def set_negative(self, features: npt.ArrayLike, mask: npt.ArrayLike) -> None:
        """Sets the second context of guidance for requests that begin later, as Text.encode_negative gives it.
        Requests of Harmon, NextStep-1, Lumina-mGPT, Anole and Emu3 with guidance need it, or their own."""
        positions, dim = self.model.config["caption_tokens"], self.model.config["caption_dim"]
        arrays = (shaped(features, np.float32, (positions, dim), "features"),
                  shaped(mask, np.bool_, (positions,), "mask"))
        self._check(lib.mar_session_set_negative(self._pointer, *map(pointer, arrays)))

    def step(self) -> None:
        """Makes one step of all images in progress; waiting requests begin with it."""
        if not self.pending:
            raise ValueError("no request is pending, expected one that was submitted")
        self._check(lib.mar_session_step(self._pointer))

    def progress(self, request: int) -> tuple[int, int]:
        """Steps done and steps in all; (0, 0) before the request begins. KeyError for an unknown request."""
        info = _lib.RequestInfo.new("mar_request_info_init")
        self._check(lib.mar_session_get_request(self._pointer, _request(request), c.byref(info)))
        if info.state == _lib.UNKNOWN:
            raise KeyError(request)
        return info.step, info.steps

    def _into(self, alpha: bool) -> tuple[UInt8Array, Any]:
        array = np.zeros((*self.shape, 4 if alpha else 3), np.uint8)
        pixels = _lib.Pixels.new("mar_pixels_init")
        pixels.format, pixels.data, pixels.capacity = _lib.RGBA8 if alpha else _lib.RGB8, pointer(array), array.nbytes
        return array, pixels

    def take(self, request: int) -> UInt8Array:
        """Returns the pixels [height, width, 3] of a finished request and forgets it. A failed request raises."""
        array, pixels = self._into(alpha=False)
        self._check(lib.mar_session_take(self._pointer, _request(request), None, c.byref(pixels)))
        return array

    def take_tokens(self, request: int) -> Float32Array:
        """As take, but returns the tokens [seq_len, token_dim]."""
        tokens = np.zeros(self._tokens, np.float32)
        self._check(lib.mar_session_take(self._pointer, _request(request), pointer(tokens), None))
        return tokens

    def preview(self, request: int) -> UInt8Array:
        """Returns the image so far [height, width, 4]; alpha is 0 where no token is known."""
        array, pixels = self._into(alpha=True)
        self._check(lib.mar_session_preview(self._pointer, _request(request), c.byref(pixels)))
        return array

    def cancel(self, request: Optional[int] = None) -> None:
        """Forgets a request. Without one, stops the running step, from any thread: it raises MarError with the status
        "cancelled"."""
        if request is None:
            lib.mar_session_cancel(self._pointer)
        else:
            self._check(lib.mar_session_cancel_request(self._pointer, _request(request)))

    def encode(self, picture: npt.ArrayLike) -> Float32Array:
        """Returns the tokens of a picture [height, width, 3], for submit. The model needs load(..., encoder=True)."""
        array = shaped(as_bytes(picture, "picture"), np.uint8, (*self.shape, 3), "picture")
        pixels = _lib.Pixels.new("mar_pixels_init")
        pixels.data, pixels.capacity = pointer(array), 0 if array is None else array.nbytes
        tokens = np.zeros(self._tokens, np.float32)
        self._check(lib.mar_session_encode(self._pointer, c.byref(pixels), pointer(tokens)))
        return tokens
