"""libmar for Python: images from autoregressive models with continuous tokens (MAR, Harmon, SphereAR, NextStep-1) and
discrete ones (LlamaGen).

    import mar
    pixels = mar.generate(classes=[3, 7], seed=1, num_iter=32)      # uint8 [2, 32, 32, 3], digits of the demo model

    model = mar.load("mar_base.safetensors", vae="kl16.safetensors")
    session = model.session(batch=4, cfg=2.9)
    request = session.submit(label=207, seed=7)
    while session.pending:
        session.step()
    pixels = session.take(request)

Every function is a thin layer over libmar's headers, which document parameters and guarantees. A call leaves the
interpreter's lock, so that other threads run. Objects free themselves. A session belongs to one thread at a time; only
Session.cancel() without a request may be called from any thread.
"""
from __future__ import annotations

import ctypes as c
import os
import weakref
from typing import Any, Callable, NamedTuple, Optional, Sequence, Union

import numpy as np
import numpy.typing as npt

from . import _lib
from ._lib import lib

__all__ = ["MarError", "Model", "Session", "Features", "Text", "Clip", "Method", "load", "generate", "edit", "frechet_distance",
           "precision_recall", "methods", "__version__"]

__version__: str = lib.mar_version().decode()

Path = Union[str, "os.PathLike[str]"]
UInt8Array = npt.NDArray[np.uint8]
Float32Array = npt.NDArray[np.float32]
BoolArray = npt.NDArray[np.bool_]
Int32Array = npt.NDArray[np.int32]


class MarError(RuntimeError):
    """A call of libmar failed. The text is the library's line, and `status` its name for the kind."""

    def __init__(self, status: int, line: str) -> None:
        super().__init__(line)
        self.status: str = lib.mar_status_name(status).decode()


def _text(name: str, value: object) -> bytes:
    """A parameter as text: on and off for bools, what Python prints for the rest."""
    if isinstance(value, (bool, np.bool_)):
        return b"on" if value else b"off"
    if isinstance(value, (float, np.floating)):
        return repr(float(value)).encode()
    if isinstance(value, (tuple, list)):
        return b",".join(_text(name, v) for v in value)
    return _encoded(name, str(value))


def _encoded(name: str, text: str) -> bytes:
    """Text for C, which ends at a NUL."""
    made: bytes = _lib.fit(name, text.encode("utf-8", "surrogateescape"), c.c_char_p)
    return made


def _path(name: str, path: Path) -> bytes:
    made: bytes = _lib.fit(name, os.fsencode(path), c.c_char_p)
    return made


def _request(number: int) -> int:
    made: int = _lib.fit("request", number, c.c_uint64)
    return made


def _pointer(array: Optional[npt.NDArray[Any]]) -> Optional[int]:
    return None if array is None else array.ctypes.data


class _Library:
    """A handle: the device, shared by what is loaded with it."""

    def __init__(self, options: dict[str, object]) -> None:
        made = _lib.Options.new("mar_options_init")
        why = c.create_string_buffer(1024)
        texts: list[bytes] = []
        rows = {lib.mar_option_get(i).contents.name.decode(): lib.mar_option_get(i)
                for i in range(lib.mar_option_count())}
        for name, value in options.items():
            if name not in rows:
                raise TypeError(f"no option {name!r}: expected one of {', '.join(sorted(rows))}")
            texts.append(_text(name, value))  # made points to it
            status = lib.mar_param_set(rows[name], c.byref(made), texts[-1], why, len(why))
            if status != _lib.OK:
                raise MarError(status, why.value.decode())
        handle = c.c_void_p()
        status = lib.mar_open(c.byref(made), c.byref(handle))
        self.pointer = handle
        weakref.finalize(self, lib.mar_close, handle)
        self.check(status)

    def check(self, status: int) -> None:
        if status != _lib.OK:
            raise MarError(status, lib.mar_error(self.pointer).decode())


def _source(name: str, path: Path, heads: int = 0, encoder: bool = False) -> Any:
    source = _lib.Source.new("mar_source_init")
    source.path, source.heads, source.encoder = _path(name, path), heads, bool(encoder)
    return source


class Model:
    """A loaded model, its image decoder and, for speculation, a draft model. mar.load makes it."""

    def __init__(self, library: _Library, path: Path, vae: Optional[Path], draft: Optional[Path], text: Path,
                 heads: int, encoder: bool) -> None:
        self._library = library
        self._text: Union[Path, Text] = text  # loaded for the first prompt
        self._model = self._load(lib.mar_model_load_from, lib.mar_model_free, _source("path", path, heads))
        self._draft = draft and self._load(lib.mar_model_load_from, lib.mar_model_free, _source("draft", draft))
        self.config: dict[str, Any] = {
            name: getattr(lib.mar_model_get_config(self._model).contents, name)
            for name, *_ in _lib.ModelConfig._fields_ if name not in ("size", "reserved")}
        self.config["family"] = self.config["family"].decode()
        if not vae and self.config["image_decoder"]:
            vae = path
        self._vae = vae and self._load(lib.mar_vae_load_from, lib.mar_vae_free, _source("vae", vae, 0, encoder))

    def _load(self, load: Any, free: Any, source: Any) -> c.c_void_p:
        made = c.c_void_p()
        self._library.check(load(self._library.pointer, c.byref(source), c.byref(made)))
        weakref.finalize(self, free, made)
        return made

    @property
    def backend(self) -> str:
        """The device and its arithmetic: "cpu bf16 (avx512_bf16), 2 threads"."""
        return str(lib.mar_backend_description(self._library.pointer).decode())

    def caption(self, prompt: str, negative: Optional[str] = None, clean: bool = True) -> dict[str, npt.NDArray[Any]]:
        """Returns what Session.submit takes of a prompt: submit(**model.caption("a corgi")). negative: the negative
        prompt of Harmon, NextStep-1 and Emu3; None: the model's own. clean: as of Text.encode."""
        tokens = self.config["caption_tokens"]
        if not tokens:
            raise ValueError("prompt: the model makes images of classes, expected a label")
        if not isinstance(self._text, Text):
            self._text = Text._load(self._library, self._text)
        features, mask, _ = self._text.encode(prompt, tokens, clean)
        made: dict[str, npt.NDArray[Any]] = {"features": features[0], "mask": mask[0]}
        if negative is not None or self.config["conditioning"] == _lib.IDS:
            made["negative"], made["negative_mask"] = self._text.encode_negative(negative, tokens)
        return made

    def session(self, batch: int = 1, **params: object) -> Session:
        """Makes a session with room for `batch` images at a time. params are the options of mar generate, such as
        num_iter=32, cfg=2.9, head_spec=8; seed and cfg are those of requests that give none."""
        return Session(self, batch, params)


class Session:
    """Images in progress. Requests come and go one at a time: submit, step while pending, take."""

    def __init__(self, model: Model, batch: int, params: dict[str, object]) -> None:
        self.model = model
        made, why = lib.mar_params_new(), c.create_string_buffer(1024)
        if not made:
            raise MemoryError("no memory for parameters")
        try:
            for name, value in params.items():
                status = lib.mar_params_set(made, _encoded("name of a parameter", name), _text(name, value), why, len(why))
                if status != _lib.OK:
                    raise MarError(status, why.value.decode())
            if model._draft:
                for i in range(lib.mar_param_count()):
                    row = lib.mar_param_get(i).contents
                    if row.name == b"draft":
                        c.c_void_p.from_address(made + row.offset).value = model._draft.value
            pointer = c.c_void_p()
            batch = _lib.fit("batch", batch, c.c_int)
            model._library.check(lib.mar_session_create(model._model, model._vae, made, batch, c.byref(pointer)))
        finally:
            lib.mar_params_free(made)
        self._pointer = pointer
        weakref.finalize(self, lib.mar_session_free, pointer)
        width, height = c.c_int(), c.c_int()
        lib.mar_session_image_size(pointer, c.byref(width), c.byref(height))
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
        arrays = [_shaped(tokens, np.float32, self._tokens, "tokens"),
                  _shaped(known, np.bool_, self._tokens[:1], "known"),
                  _shaped(features, np.float32, (positions, dim), "features"),
                  _shaped(mask, np.bool_, (positions,), "mask"),
                  _shaped(negative, np.float32, (positions, dim), "negative"),
                  _shaped(negative_mask, np.bool_, (positions,), "negative_mask")]
        (request.tokens, request.known, request.features, request.mask, request.negative,
         request.negative_mask) = map(_pointer, arrays)
        number = c.c_uint64()
        self._check(lib.mar_session_submit(self._pointer, c.byref(request), c.byref(number)))
        return number.value

    def set_negative(self, features: npt.ArrayLike, mask: npt.ArrayLike) -> None:
        """Sets the second context of guidance for requests that begin later, as Text.encode_negative gives it.
        Requests of Harmon, NextStep-1, Lumina-mGPT, Anole and Emu3 with guidance need it, or their own."""
        positions, dim = self.model.config["caption_tokens"], self.model.config["caption_dim"]
        arrays = (_shaped(features, np.float32, (positions, dim), "features"),
                  _shaped(mask, np.bool_, (positions,), "mask"))
        self._check(lib.mar_session_set_negative(self._pointer, *map(_pointer, arrays)))

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
        pixels.format, pixels.data, pixels.capacity = _lib.RGBA8 if alpha else _lib.RGB8, _pointer(array), array.nbytes
        return array, pixels

    def take(self, request: int) -> UInt8Array:
        """Returns the pixels [height, width, 3] of a finished request and forgets it. A failed request raises."""
        array, pixels = self._into(alpha=False)
        self._check(lib.mar_session_take(self._pointer, _request(request), None, c.byref(pixels)))
        return array

    def take_tokens(self, request: int) -> Float32Array:
        """As take, but returns the tokens [seq_len, token_dim]."""
        tokens = np.zeros(self._tokens, np.float32)
        self._check(lib.mar_session_take(self._pointer, _request(request), _pointer(tokens), None))
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
        array = _shaped(_bytes(picture, "picture"), np.uint8, (*self.shape, 3), "picture")
        pixels = _lib.Pixels.new("mar_pixels_init")
        pixels.data, pixels.capacity = _pointer(array), 0 if array is None else array.nbytes
        tokens = np.zeros(self._tokens, np.float32)
        self._check(lib.mar_session_encode(self._pointer, c.byref(pixels), _pointer(tokens)))
        return tokens


def _bytes(picture: npt.ArrayLike, name: str) -> UInt8Array:
    array = np.asarray(picture)
    if array.dtype != np.uint8:
        raise ValueError(f"{name}: {array.dtype}, expected uint8")
    return array


def _numbers(value: npt.ArrayLike, dtype: Any, name: str) -> npt.NDArray[Any]:
    """Returns the numbers in C's order. For bool any whole number but 0 is true."""
    given = np.asarray(value)
    if given.dtype.kind not in ("biu" if dtype is not np.float32 else "biuf"):
        raise ValueError(f"{name}: {given.dtype}, expected {np.dtype(dtype)}")
    return np.ascontiguousarray(given, dtype)


def _shaped(value: Optional[npt.ArrayLike], dtype: Any, shape: tuple[int, ...], name: str,
            ) -> Optional[npt.NDArray[Any]]:
    if value is None:
        return None
    array = _numbers(value, dtype, name)
    if array.shape != shape:
        raise ValueError(f"{name}: shape {array.shape}, expected {shape}")
    return array


def load(path: Path = "demo", vae: Optional[Path] = None, *, draft: Optional[Path] = None, text: Optional[Path] = None,
         heads: int = 0, encoder: bool = False, **options: object) -> Model:
    """Loads a model, and its image decoder. Built-in models such as "demo" and SphereAR's files bring theirs. text: the
    folder of what encodes prompts, without it the model's own. encoder: also the image encoder, for Session.encode and
    mar.edit. options are the library's: dtype="bf16", threads=2, backend="cpu"."""
    own = ("demo", "demo-discrete", "demo-sphere", "demo-mgpt", "demo-harmon", "demo-nextstep")
    built_in = {"demo-t2i": "demo-discrete", **{name: name for name in own}}
    prompts = text or ("demo-t5" if path == "demo-t2i" else path)
    return Model(_Library(options), path, vae or built_in.get(os.fspath(path)), draft, prompts, heads, encoder)


Progress = Callable[[int, int], object]
Preview = Callable[[int, UInt8Array], object]


def _run(session: Session, requests: Sequence[int], on_progress: Optional[Progress], on_preview: Optional[Preview],
         ) -> UInt8Array:
    """Steps until all requests are taken. An exception, also of a callback, forgets the requests that are left."""
    images = np.zeros((len(requests), *session.shape, 3), np.uint8)
    place, left = {r: i for i, r in enumerate(requests)}, set(requests)
    try:
        while left:
            session.step()
            for request in sorted(left) if on_preview else ():
                if session.progress(request)[0] and on_preview:
                    on_preview(place[request], session.preview(request))
            while session.finished:
                request = session.finished
                images[place[request]] = session.take(request)
                left.discard(request)
                if on_progress:
                    on_progress(len(requests) - len(left), len(requests))
    finally:
        for request in left:
            try:
                session.cancel(request)
            except MarError:
                pass  # a failed request is forgotten once it was taken
    return images


def generate(model: Union[Model, Path] = "demo", classes: Sequence[int] = tuple(range(10)), *,
             prompts: Optional[Sequence[str]] = None, negative: Optional[str] = None, seed: int = 0, batch: int = 16,
             vae: Optional[Path] = None, on_progress: Optional[Progress] = None, on_preview: Optional[Preview] = None,
             **params: object) -> UInt8Array:
    """Makes an image of each class, or of each prompt (Model.caption): uint8 [n, height, width, 3]. Image i is that of
    mar generate with this seed and number i, bit for bit. on_progress(done, total) is called after each image,
    on_preview(i, rgba) after each step. An exception in them cancels."""
    loaded = model if isinstance(model, Model) else load(model, vae)
    wishes: list[dict[str, Any]] = ([{"label": label} for label in classes] if prompts is None else
                                    [loaded.caption(prompt, negative) for prompt in prompts])
    session = loaded.session(min(batch, max(1, len(wishes))), **params)
    requests = [session.submit(**wish, seed=seed, image=i) for i, wish in enumerate(wishes)]
    return _run(session, requests, on_progress, on_preview)


def edit(model: Model, picture: npt.ArrayLike, mask: npt.ArrayLike, label: Optional[int] = None, *,
         prompt: Optional[str] = None, negative: Optional[str] = None, n: int = 1, seed: int = 0, batch: int = 16,
         on_progress: Optional[Progress] = None, on_preview: Optional[Preview] = None, **params: object) -> UInt8Array:
    """Makes the part of a picture [height, width, 3] anew where mask [height, width] is true, n times: of a class, or
    of a prompt (Model.caption). Tokens are cells of pixels; one with any true pixel is made anew. The model needs
    load(..., encoder=True)."""
    if (label is None) == (prompt is None):
        raise ValueError("label and prompt: expected one of them")
    if prompt is None and negative is not None:
        raise ValueError("negative: expected a prompt with it")
    wish: dict[str, Any] = {"label": label} if prompt is None else model.caption(prompt, negative)
    session = model.session(min(batch, n), **params)
    given = np.asarray(mask)
    if given.dtype != np.bool_:
        raise ValueError(f"mask: {given.dtype}, expected bool")
    cells = _shaped(given, np.bool_, session.shape, "mask")
    columns = int(model.config["grid_width"])
    cell = session.shape[1] // columns
    if cells is None or not cells.any():
        raise ValueError("mask: expected true where the picture is to change")
    made = cells.reshape(-1, cell, columns, cell).any(axis=(1, 3))
    tokens, known = session.encode(picture), ~made.reshape(-1)
    requests = [session.submit(**wish, seed=seed, image=i, tokens=tokens, known=known) for i in range(n)]
    return _run(session, requests, on_progress, on_preview)


# --- evaluation -------------------------------------------------------------------------------------------------------

class Features:
    """A feature network: the file of Inception-v3 or VGG16, or "demo" for the digits of the demo. clean: Inception
    resizes images as clean-fid does it."""

    def __init__(self, path: Path = "demo", batch: int = 64, clean: bool = False, **options: object) -> None:
        self._library, self._batch = _Library(options), _lib.fit("batch", batch, c.c_int)
        made = c.c_void_p()
        self._library.check(lib.mar_features_load(self._library.pointer, _path("path", path), self._batch, c.byref(made)))
        self._pointer = made
        weakref.finalize(self, lib.mar_features_free, made)
        if clean:
            self._library.check(lib.mar_features_set_resize(made, 1))
        config = lib.mar_features_get_config(made).contents
        self.size, self.classes = int(config.features), int(config.classes)

    def __call__(self, images: npt.ArrayLike) -> tuple[Float32Array, Float32Array]:
        """Returns features [n, size] and logits [n, classes] of images uint8 [n, height, width, 3]."""
        pixels = np.ascontiguousarray(_bytes(images, "images"))
        if pixels.ndim != 4 or pixels.shape[3] != 3:
            raise ValueError(f"images: shape {pixels.shape}, expected (n, height, width, 3)")
        n, height, width, _ = pixels.shape
        features, logits = np.zeros((n, self.size), np.float32), np.zeros((n, self.classes), np.float32)
        for i in range(0, n, self._batch):
            part = min(self._batch, n - i)
            self._library.check(lib.mar_features_run(self._pointer, _pointer(pixels[i:]), part, width, height,
                                                     _pointer(features[i:]), _pointer(logits[i:]), None))
        return features, logits


class Text:
    """A T5 encoder, or the prompts' side of Harmon, NextStep-1, Lumina-mGPT, Anole or Emu3, in a folder as Hugging Face writes
    it: it turns prompts into a text-to-image model's captions."""

    def __init__(self, folder: Path, **options: object) -> None:
        self._open(_Library(options), folder)

    @classmethod
    def _load(cls, library: _Library, folder: Path) -> Text:
        text = cls.__new__(cls)
        text._open(library, folder)
        return text

    def _open(self, library: _Library, folder: Path) -> None:
        self._library, made = library, c.c_void_p()
        self._library.check(lib.mar_text_load(self._library.pointer, _path("folder", folder), c.byref(made)))
        self._pointer = made
        weakref.finalize(self, lib.mar_text_free, made)
        config = lib.mar_text_get_config(made).contents
        self.size, self.parameters = int(config.dim), int(config.parameters)

    def encode(self, prompts: Union[str, Sequence[str]], tokens: int = 120, clean: bool = True,
               ) -> tuple[Float32Array, BoolArray, Int32Array]:
        """Returns features [n, tokens, size], mask [n, tokens], and each prompt's number of tokens before it was cut.
        Padding is on the left. clean: as LlamaGen's release cleans captions."""
        texts = [prompts] if isinstance(prompts, str) else list(prompts)
        tokens, n = _lib.fit("tokens", tokens, c.c_int), len(texts)
        given = (c.c_char_p * n)(*(_encoded("prompts", text) for text in texts))
        room = min(max(tokens, 0), _lib.TEXT_TOKENS_MAX)  # the library refuses others
        features, mask = np.zeros((n, room, self.size), np.float32), np.zeros((n, room), np.bool_)
        counts = np.zeros(n, np.int32)
        self._library.check(lib.mar_text_encode(self._pointer, given, n, 0 if clean else 1, tokens, _pointer(features),
                                                _pointer(mask), _pointer(counts)))
        return features, mask, counts

    def encode_negative(self, text: Optional[str], tokens: int) -> tuple[Float32Array, BoolArray]:
        """Returns features [tokens, size] and mask [tokens] of the second context of guidance, for
        Session.set_negative. None: the model's own. A T5 has none."""
        given, tokens = None if text is None else _encoded("text", text), _lib.fit("tokens", tokens, c.c_int)
        room = min(max(tokens, 0), _lib.TEXT_TOKENS_MAX)
        features, mask = np.zeros((room, self.size), np.float32), np.zeros(room, np.bool_)
        self._library.check(lib.mar_text_encode_negative(self._pointer, given, tokens, _pointer(features),
                                                         _pointer(mask), None))
        return features, mask


class Clip:
    """OpenAI's CLIP, in a folder as Hugging Face writes it: embeddings of length 1, whose products are cosines."""

    def __init__(self, folder: Path, batch: int = 64, **options: object) -> None:
        self._library, self._batch = _Library(options), _lib.fit("batch", batch, c.c_int)
        made = c.c_void_p()
        self._library.check(lib.mar_clip_load(self._library.pointer, _path("folder", folder), self._batch, c.byref(made)))
        self._pointer = made
        weakref.finalize(self, lib.mar_clip_free, made)
        config = lib.mar_clip_get_config(made).contents
        self.size, self.image_size, self.positions = int(config.embedding), int(config.image_size), int(config.positions)

    def images(self, images: npt.ArrayLike) -> Float32Array:
        """Returns embeddings [n, size] of images uint8 [n, height, width, 3], resized and cut as CLIP's processor does."""
        pixels = np.ascontiguousarray(_bytes(images, "images"))
        if pixels.ndim != 4 or pixels.shape[3] != 3:
            raise ValueError(f"images: shape {pixels.shape}, expected (n, height, width, 3)")
        n, height, width, _ = pixels.shape
        made = np.zeros((n, self.size), np.float32)
        for i in range(0, n, self._batch):
            self._library.check(lib.mar_clip_images(self._pointer, _pointer(pixels[i:]), min(self._batch, n - i), width,
                                                    height, _pointer(made[i:])))
        return made

    def texts(self, texts: Union[str, Sequence[str]]) -> Float32Array:
        """Returns embeddings [n, size]. Of a longer text the first tokens and the end token are kept."""
        all_texts = [texts] if isinstance(texts, str) else list(texts)
        n = len(all_texts)
        made = np.zeros((n, self.size), np.float32)
        for i in range(0, n, self._batch):
            part = [_encoded("texts", text) for text in all_texts[i:i + self._batch]]
            self._library.check(lib.mar_clip_texts(self._pointer, (c.c_char_p * len(part))(*part), len(part),
                                                   _pointer(made[i:])))
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


def precision_recall(reference: npt.ArrayLike, images: npt.ArrayLike, k: int = 3, **options: object,
                     ) -> tuple[float, float]:
    """Precision and recall (Kynkaanniemi et al., 2019) of features, each [n, size]."""
    a, b = _numbers(reference, np.float32, "reference"), _numbers(images, np.float32, "images")
    if a.ndim != 2 or b.ndim != 2 or a.shape[1] != b.shape[1]:
        raise ValueError(f"features: shapes {a.shape} and {b.shape}, expected (n, size) of one size")
    precision, recall, library = c.c_double(), c.c_double(), _Library(options)
    library.check(lib.mar_precision_recall(library.pointer, _pointer(a), len(a), _pointer(b), len(b), a.shape[1],
                                           _lib.fit("k", k, c.c_int),
                                           c.byref(precision), c.byref(recall)))
    return precision.value, recall.value


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
