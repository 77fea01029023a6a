"""A loaded model, called with what its images show."""
from __future__ import annotations

import ctypes as c
import difflib
import os
import sys
import time
import warnings
import weakref
from typing import Any, Callable, Mapping, NamedTuple, Optional, Sequence, Union

import numpy as np
import numpy.typing as npt

from . import _classes, _lib, _pictures
from ._core import (HANDLE, LOAD, PARAMS, Float32Array, Library, MarError, Path, UInt8Array, as_path, encoded, unknown,
                    wanted)
from ._judge import Text, energy_test
from ._lib import lib
from ._session import Session

#: What an image shows: a prompt, a class's name or its number.
What = Union[str, int]
Callback = Callable[[int, int, int], object]
Wish = dict[str, Any]  # arguments of Session.submit

#: Image decoders of the demo models.
_OWN = ("demo", "demo-discrete", "demo-sphere", "demo-mgpt", "demo-harmon", "demo-nextstep")
_BUILT_IN = {**{name: name for name in _OWN}, "demo-t2i": "demo-discrete", "demo-draft": "demo",
             "demo-discrete-draft": "demo-discrete", "demo-sphere-draft": "demo-sphere"}


class Comparison(NamedTuple):
    """Images of two sets of options, made of the same seeds."""
    distance: float  # energy distance of whole images
    floor: float  # below which another seed of the reference stays 95 times in 100; nan: too few images to tell
    p: float  # chance of such a distance if both had the same distribution
    seconds: float  # of an image, median
    reference_seconds: float
    speed: float  # how much faster than the reference, median of the batches' ratios


def _source(name: str, path: Path, heads: int = 0, encoder: bool = False) -> Any:
    source = _lib.Source.new("mar_source_init")
    source.path, source.heads, source.encoder = as_path(name, path), heads, bool(encoder)
    return source


def _stored_dtype(path: Path) -> str:
    """Returns the type of the weights of a model of prompts that mar convert has made: "int8", "int4" or "auto"."""
    opened, stored = c.c_void_p(), 0
    if lib.mar_file_open(as_path("path", path), 0, c.byref(opened)) == _lib.OK:
        info = lib.mar_file_get_info(opened).contents
        stored = info.stored if info.prompts else 0
        lib.mar_file_close(opened)
    return {3: "int8", 5: "int4"}.get(stored, "auto")


def _open(options: Mapping[str, Any], fast: int, model: Optional[Path]) -> Library:
    """Opens the library with the dtype that mar generate has: a preset's int8, on a CPU that has it, else that of the
    weights of `model` unless another was given. None: a built-in model, which decides nothing."""
    if fast and options.get("dtype") is None:
        try:
            library = Library({**options, "dtype": "int8"})
            if library.backend.startswith("cpu"):
                return library
        except MarError:
            pass  # without it
    if model is not None and options.get("dtype") in (None, "auto"):
        options = {**options, "dtype": _stored_dtype(model)}
    return Library(options)


class _Bar:
    """A tqdm bar, or nothing. None: if tqdm is installed and standard error is a terminal."""

    def __init__(self, progress: Optional[bool]) -> None:
        self._bar: Any = None
        if progress is None:
            try:
                progress = sys.stderr.isatty() and bool(wanted("", "tqdm.auto", "", ""))
            except (ImportError, AttributeError):
                progress = False
        if progress:
            self._bar = wanted("progress=True", "tqdm.auto", "tqdm", "progress=False").tqdm()

    def set(self, done: int, total: int) -> None:
        if self._bar is not None:
            self._bar.total = total
            self._bar.update(done - self._bar.n)

    def __enter__(self) -> _Bar:
        return self

    def __exit__(self, *error: object) -> None:
        if self._bar is not None:
            self._bar.close()


def _run(session: Session, requests: Sequence[int], callback: Optional[Callback], bar: _Bar) -> UInt8Array:
    """Steps until all requests are taken. An exception, also of the callback, forgets the requests that are left."""
    images = np.zeros((len(requests), *session.shape, 3), np.uint8)
    place, left, done = {r: i for i, r in enumerate(requests)}, set(requests), [0] * len(requests)
    try:
        while left:
            session.step()
            for request in sorted(left):
                i, (step, steps) = place[request], session.progress(request)
                if step > done[i]:
                    done[i] = step
                    bar.set(sum(done), steps * len(requests))
                    if callback:
                        callback(i, step, steps)
            while session.finished:
                request = session.finished
                images[place[request]] = session.take(request)
                left.discard(request)
    finally:
        for request in left:
            try:
                session.cancel(request)
            except MarError:
                pass  # a failed request is forgotten once it was taken
    return images


class Model:
    """A loaded model, its image decoder and, for speculation, a draft model. mar.load makes it; a call makes images."""

    def __init__(self, given: dict[str, Any]) -> None:
        path, vae, options = given["path"], given["vae"], {name: given[name] for name in HANDLE if name in given}
        for option in ("vae", "draft", "text", "class_names"):
            if given[option] is not None:
                as_path(option, given[option])  # refuses what is no path
        name = os.fsdecode(as_path("path", path))
        built_in = name in _BUILT_IN
        fast, self._given = _lib.fit("fast", given["fast"], c.c_int), given
        self._library = _open(options, fast, None if built_in else path)
        # loaded for the first prompt
        self._text: Union[Path, Text] = given["text"] or ("demo-t5" if path == "demo-t2i" else path)
        try:
            self._model = self._load(lib.mar_model_load_from, lib.mar_model_free, _source("path", path, given["heads"]))
        except MarError as error:
            if error.status == "file error" and not os.path.exists(path):
                near = difflib.get_close_matches(name, _BUILT_IN, 1)
                error.args = (f"{error}" + (f"; did you mean {near[0]!r}?" if near else "; models are not downloaded"),)
            raise
        draft = given["draft"]
        self._draft = draft and self._load(lib.mar_model_load_from, lib.mar_model_free, _source("draft", draft))
        config = lib.mar_model_get_config(self._model).contents
        self.config: dict[str, Any] = {name: getattr(config, name) for name, *_ in config._fields_
                                       if name not in ("size", "reserved")}
        for text in ("family", "title", "warning"):
            self.config[text] = self.config[text] and self.config[text].decode()
        if self.config["warning"]:
            warnings.warn(f"{name}: {self.config['warning']}", stacklevel=4)
        self._names: Optional[_classes.Names] = None  # ImageNet's are read for the first name
        if given["class_names"] is not None:
            self._names = _classes.of_model(given["class_names"], 0 if config.caption_tokens else config.classes)
        self._preset = lib.mar_preset_get(fast, lib.mar_model_get_config(self._model))
        _refuse(given, fast and not self._preset, self.config)
        self._no_vae = "expected the image decoder's file: mar.load(path, vae=...)"
        self._vae_path = vae or _BUILT_IN.get(name) or path
        self._vae, self._has_encoder = None, bool(given["encoder"])
        if self._vae_path != path or built_in or config.image_decoder or config.conditioning == _lib.IDS:
            try:
                self._vae = self._load_vae(self._has_encoder)
            except MarError as error:
                if vae or error.status != "not a usable model":  # a model's folder may have none
                    raise
                self._no_vae += f"; {error}"

    def _load(self, load: Any, free: Any, source: Any) -> c.c_void_p:
        made = c.c_void_p()
        self._library.check(load(self._library.pointer, c.byref(source), c.byref(made)))
        weakref.finalize(made, free, made.value)  # sessions have references of their own
        return made

    def _load_vae(self, encoder: bool) -> c.c_void_p:
        return self._load(lib.mar_vae_load_from, lib.mar_vae_free, _source("vae", self._vae_path, 0, encoder))

    def __repr__(self) -> str:
        return f"<mar.Model {self.config['title']}, {os.fspath(self._given['path'])!r}, {self.backend}>"

    @property
    def backend(self) -> str:
        """The device and its arithmetic: "cpu bf16 (avx512_bf16), 2 threads"."""
        return self._library.backend

    def caption(self, prompt: str, negative: Optional[str] = None, clean: bool = True) -> dict[str, npt.NDArray[Any]]:
        """Returns what Session.submit takes of a prompt: submit(**model.caption("a corgi")). negative: the negative
        prompt of Harmon, UniPic-1, NextStep-1 and Emu3; None: the model's own. clean: as of Text.encode."""
        tokens, ids = self.config["caption_tokens"], self.config["conditioning"] == _lib.IDS
        if not tokens:
            raise ValueError("prompt: the model makes images of classes, expected a label")
        if negative is not None:
            encoded("negative", negative)
        if negative is not None and not ids:
            raise ValueError("negative: has no effect, guidance is against the unconditional caption in the file")
        if not isinstance(self._text, Text):
            if self._given["text"] is None and self._text != "demo-t5" and os.path.isfile(self._text):
                raise ValueError(f"text: missing, {os.fspath(self._text)} has nothing that encodes prompts: expected "
                                 f"mar.load(..., text=the folder of {'the model' if ids else 'a T5'})")
            self._text = Text._load(self._library, self._text)
        if negative is not None and not self._text.has_negative:
            raise ValueError(f"negative: has no effect, {self.config['title']} has no negative prompt")
        features, mask, counts = self._text.encode(prompt, tokens, clean)
        if counts[0] > tokens:
            warnings.warn(f"prompt: {counts[0]} tokens, cut to the {tokens} that the model takes", stacklevel=3)
        made: dict[str, npt.NDArray[Any]] = {"features": features[0], "mask": mask[0]}
        if ids:
            made["negative"], made["negative_mask"] = self._text.encode_negative(negative, tokens)
        return made

    def session(self, batch: int = 1, **params: object) -> Session:
        """Makes a session with room for `batch` images at a time. params are the options of mar generate, such as
        num_iter=32, cfg=2.9, head_spec=8; seed and cfg are those of requests that give none."""
        return Session(self, batch, params)

    def _label(self, what: Any) -> int:
        """Returns the class with a name or number; -1 for "none", as mar generate has it."""
        if isinstance(what, str) and not what.strip().isdigit():
            if what.strip().lower() == "none":
                return -1
            if not self._names and self.config["classes"] == 1000:
                self._names = _classes.imagenet()
            if not self._names:
                raise ValueError(f'what: class "{what}": the classes have no names, expected 0 to '
                                 f"{self.config['classes'] - 1}, or mar.load(..., class_names=a file of names)")
            return _classes.find(what, self._names)
        label: int = _lib.fit("what", int(what) if isinstance(what, str) else what, c.c_int)
        if not 0 <= label < self.config["classes"]:
            raise ValueError(f'what {label}: expected 0 to {self.config["classes"] - 1}, or "none": unconditional')
        return label

    def _wishes(self, what: Any, negative: Optional[str]) -> list[Wish]:
        """Returns what Session.submit takes of each."""
        whats = [what] if isinstance(what, (str, int, np.integer)) else list(what)
        if not whats:
            raise ValueError("what: is empty, expected a prompt, a class or a list of them")
        if not self.config["caption_tokens"]:
            if negative is not None:
                raise ValueError("negative: has no effect, the model makes images of classes")
            return [{"label": self._label(each)} for each in whats]
        for each in whats:
            if not isinstance(each, str):
                raise TypeError(f"what: {each!r}, expected a prompt: {self.config['title']} makes images of prompts")
        return [self.caption(str(each), negative) for each in whats]

    def _images(self, session: Session, wishes: list[Wish], seed: Union[int, Sequence[int]], num: Optional[int],
                callback: Optional[Callback], progress: Optional[bool], extras: Callable[[int, int], Wish],
                ) -> UInt8Array:
        """Makes `num` images of each wish. extras(seed, number) are more arguments of an image's Session.submit."""
        every = [wish for wish in wishes for _ in range(num or 1)]
        addresses = _addresses(seed, len(every))
        if callback is not None and not callable(callback):
            raise TypeError(f"callback: {type(callback).__name__}, expected a function")
        requests = [session.submit(**wish, seed=own, image=number, **extras(own, number))
                    for wish, (own, number) in zip(every, addresses)]
        with _Bar(progress) as bar:
            return _run(session, requests, callback, bar)

    def _session_for(self, what: Any, num: Optional[int], batch: int, params: Mapping[str, object]) -> Session:
        for name in params:
            if name in _CALL:
                raise TypeError(f"{name}: is an option of compare itself")
            if name not in PARAMS or name == "draft":
                raise unknown(name, _CALL | set(PARAMS), f"mar.load: mar.load(..., {name}=...)", LOAD)
        if num is not None and _lib.fit("num", num, c.c_int) < 1:
            raise ValueError(f"num {num}: expected 1 or more")
        if not self._vae:
            raise ValueError(f"vae: missing, {self._no_vae}")
        return self.session(min(_lib.fit("batch", batch, c.c_int), _count(what) * (num or 1)), **params)

    def __call__(self, what: Union[What, Sequence[What], None] = None, *, negative: Optional[str] = None,
                 num: Optional[int] = None, seed: Union[int, Sequence[int]] = 0, batch: int = 16, output: str = "pil",
                 callback: Optional[Callback] = None, progress: Optional[bool] = None, **params: object) -> Any:
        """Makes images.

        what: a prompt, an ImageNet class's name ("golden retriever"), a class number or "none", which is unconditional; or
            a list of them.
        negative: negative prompt of Harmon, UniPic-1, NextStep-1 and Emu3.
        num: images of each; None: one.
        seed: image i is that of mar generate with this seed and number i, bit for bit on a CPU. A list has a seed for
            each image, which then is number 0 of its seed.
        batch: images at a time; fewer need less memory, and change no image.
        output: "pil" for images of Pillow, "numpy" for uint8 [height, width, 3].
        callback(image, step, steps): called after each step of an image. An exception ends the call.
        progress: a tqdm bar; None: if tqdm is installed and standard error is a terminal.
        params: options of mar generate, such as cfg=3, num_iter=32, head_spec=8, temperature=0.95.

        Returns an image for a single `what` without num; else a list of them, or uint8 [n, height, width, 3], those of
        the first `what` first."""
        session, finish = self._session_for(what, num, batch, params), _output(output)
        wishes = self._wishes(what, negative)
        images = self._images(session, wishes, seed, num, callback, progress, lambda own, number: {})
        return finish(images, num is None and _is_single(what))

    def edit(self, picture: Any, what: Union[What, Sequence[What], None] = None, *, mask: Any = None,
             box: Optional[Sequence[int]] = None, offset: Optional[Sequence[int]] = None, keep: float = 1.0,
             paste: Optional[int] = None, negative: Optional[str] = None, num: Optional[int] = None,
             seed: Union[int, Sequence[int]] = 0, batch: int = 16, output: str = "pil", callback: Optional[Callback] = None,
             progress: Optional[bool] = None, **params: object) -> Any:
        """Makes a part of a picture anew, as mar edit does it: inpainting, outpainting and variations.

        picture: an image of Pillow, or uint8 [height, width, 3], of the model's size; of less, what surrounds it is made.
        mask: where it is made anew: white in an image of Pillow, 128 or more in uint8, true in bool [height, width].
            Tokens are cells of pixels; one with any such pixel is made anew as a whole.
        box: (x, y, width, height) in place of a mask.
        offset: (x, y) of a smaller picture; None: the middle.
        keep: fraction of the picture's tokens to keep, chosen at random: variations.
        paste: pixels in which the picture itself is pasted back outside of mask or box; None: kept tokens are decoded.

        The rest is as of a call. The image encoder is loaded with the first edit."""
        if self.config["vocabulary"]:
            raise ValueError(f"edit: {self.config['title']} makes tokens from the upper left on, expected a model of "
                             "continuous tokens")
        if mask is not None and box is not None:
            raise ValueError("box: has no effect beside mask, expected one of them")
        if not 0 <= keep <= 1:
            raise ValueError(f"keep {keep}: expected 0 to 1")
        if paste is not None and (keep < 1 or not 0 <= _lib.fit("paste", paste, c.c_int) <= 512):
            raise ValueError(f"paste {paste}: expected 0 to 512" if keep == 1 else
                             "paste: has no effect beside keep, whose tokens are made anew everywhere")
        if not self._has_encoder and self._vae:
            try:
                self._vae, self._has_encoder = self._load_vae(True), True
            except MarError as error:
                if error.status == "out of memory":
                    raise
                raise ValueError(f"edit: needs the image encoder: {error}") from None
        session, finish = self._session_for(what, num, batch, params), _output(output)
        picture, mask = _pictures.rgb("picture", picture), _pictures.rgb("mask", mask)
        pixels, columns = _pictures.picture_pixels(picture), int(self.config["grid_width"])
        canvas = _pictures.Canvas(pixels, session.shape, columns, offset)
        made = canvas.made_anew(mask, box)
        known = canvas.known(made)
        if known.all() and keep == 1:
            raise ValueError("mask: is true nowhere, expected true or white where the picture is to change"
                             if mask is not None else
                             "mask: missing, the picture covers all tokens: expected mask, box, keep or a smaller picture")
        wishes, tokens = self._wishes(what, negative), session.encode(canvas.pixels)

        def extras(own: int, number: int) -> Wish:
            return {"tokens": tokens, "known": _pictures.keep(keep, own, number, known) if keep < 1 else known}

        images = self._images(session, wishes, seed, num, callback, progress, extras)
        return finish(images if paste is None else canvas.paste(images, made, paste), num is None and _is_single(what))

    def _with(self, options: Mapping[str, object]) -> tuple[Model, dict[str, object]]:
        """Returns the model with the options that mar.load takes, loaded anew if there are any, and the others."""
        own = {name: value for name, value in options.items() if name in LOAD}
        model = Model({**self._given, **own}) if own else self
        return model, {name: value for name, value in options.items() if name not in LOAD}

    def compare(self, options: Mapping[str, object], against: Optional[Mapping[str, object]] = None, *,
                what: Union[What, Sequence[What], None] = None, negative: Optional[str] = None, num: int = 100,
                seed: int = 0, batch: int = 16, progress: Optional[bool] = None) -> Comparison:
        """Compares images of two sets of options, made of the same seeds side by side, as mar fidelity does it:
        pipe.compare({"fast": 1}), pipe.compare({"head_spec": 8, "dtype": "int8"}, against={"num_iter": 64}).

        options and against are those of a call and of mar.load; with the latter the model is loaded again. Image i
        shows what[i % len(what)]; None: all classes of a model with at most ten. The distance is near 0 if both have the
        same distribution, and above `floor` if they differ by more than another seed does."""
        if what is None:
            if self.config["caption_tokens"] or self.config["classes"] > 10:
                raise ValueError("what: missing, expected what the images show")
            what = list(range(self.config["classes"]))
        if _lib.fit("num", num, c.c_int) < 2:
            raise ValueError(f"num {num}: expected 2 or more")
        runs = [self._with(options), self._with(against or {})]
        sessions = [model._session_for([0] * num, 1, batch, params) for model, params in runs]
        wishes = [model._wishes(what, negative) for model, _ in runs]
        tokens: list[list[Float32Array]] = [[], []]
        seconds = np.zeros((-(-num // batch), 2))
        with _Bar(progress) as bar:
            for turn, first in enumerate(range(0, num, batch)):
                numbers = range(first, min(first + batch, num))
                for run, session in enumerate(sessions):
                    began = time.perf_counter()
                    wish = wishes[run]
                    requests = [session.submit(**wish[i % len(wish)], seed=seed, image=i) for i in numbers]
                    while session.pending:
                        session.step()
                    seconds[turn, run] = (time.perf_counter() - began) / len(numbers)
                    tokens[run] += [self._vectors(session.take_tokens(request)) for request in requests]
                bar.set(2 * numbers.stop, 2 * num)
        a, b = np.stack(tokens[0]), np.stack(tokens[1])
        distance, p, _ = energy_test(a, b)
        timed = seconds[1:] if len(seconds) > 1 else seconds  # the first turn prepares memory and products
        own, reference = np.median(timed, axis=0)
        return Comparison(distance, _floor(b, len(wishes[1])), p, float(own), float(reference),
                          float(np.median(timed[:, 1] / timed[:, 0])))

    def _vectors(self, tokens: Float32Array) -> Float32Array:
        """Returns the tokens [seq_len, channels], discrete ones as rows of the codebook."""
        if not self.config["vocabulary"]:
            return tokens
        config = lib.mar_vae_get_config(self._vae).contents
        table = np.ctypeslib.as_array(lib.mar_vae_codebook(self._vae), (config.codebook, config.z_channels))
        rows: Float32Array = table[tokens[:, 0].astype(np.int64)]
        return rows


def _refuse(given: Mapping[str, Any], no_preset: bool, config: Mapping[str, Any]) -> None:
    """Raises for a drafter, and for what mar.load was given and has no effect on such a model."""
    title, discrete, rows = config["title"], config["head"] == _lib.SOFTMAX, bool(config["order"])
    if config["conditioning"] == _lib.NONE:
        raise ValueError(f"path: {os.fspath(given['path'])} is a drafter, expected a model: give it as draft=")
    if no_preset:
        levels = "level 1 only" if discrete else "no preset" if rows else "levels 1 to 3"
        raise ValueError(f"fast {given['fast']}: {title} has {levels}")
    for name, has_no_effect in [("text", not config["caption_tokens"]),
                                ("size", not config["sizes"] and config["conditioning"] != _lib.IDS),
                                ("seq_len", not discrete or config["conditioning"] == _lib.IDS),
                                ("patch_size", discrete or rows), ("head_dtype", discrete), ("int8_below", discrete)]:
        if given.get(name) is not None and has_no_effect:
            raise ValueError(f"{name}: has no effect on a model of {title}")


def _floor(tokens: Float32Array, classes: int) -> float:
    """Returns the distance that runs of two seeds stay below 95 times in 100: image i of a class beside the next of that
    class. Halves of the images lie twice as far apart as runs of all."""
    turns = len(tokens) // classes // 2
    if turns * classes < 2:
        return float("nan")
    pairs = tokens[:2 * turns * classes].reshape(turns, 2, classes, *tokens.shape[1:])
    halves = [pairs[:, i].reshape(turns * classes, *tokens.shape[1:]) for i in range(2)]
    return energy_test(*halves)[2] * turns * classes / len(tokens)


def _is_single(what: Any) -> bool:
    return isinstance(what, (str, int, np.integer))


def _count(what: Any) -> int:
    if not _is_single(what) and not hasattr(what, "__len__"):
        raise TypeError(f"what: {type(what).__name__}, expected a prompt, a class or a list of them")
    return 1 if _is_single(what) else max(1, len(what))


def _addresses(seed: Union[int, Sequence[int]], count: int) -> list[tuple[int, int]]:
    """Returns seed and number of each image."""
    if not hasattr(seed, "__len__"):
        return [(_lib.fit("seed", seed, c.c_uint64), i) for i in range(count)]
    seeds = [_lib.fit("seed", each, c.c_uint64) for each in seed]  # type: ignore[union-attr]
    if len(seeds) != count:
        raise ValueError(f"seed: {len(seeds)} seeds, expected one, or one for each of {count} images")
    return [(each, 0) for each in seeds]


def _output(output: str) -> Callable[[UInt8Array, bool], Any]:
    """Returns what makes the result of pixels [n, height, width, 3], of which only one was asked for."""
    if output == "numpy":
        return lambda images, single: images[0] if single else images
    if output != "pil":
        raise ValueError(f'output {output!r}: expected "pil" or "numpy"')
    pil = wanted('output="pil"', "PIL.Image", "Pillow", 'output="numpy"')

    def finish(images: UInt8Array, single: bool) -> Any:
        made = [pil.fromarray(image) for image in images]
        return made[0] if single else made

    return finish


#: Keywords of a call and of an edit, for suggestions.
_CALL = {"negative", "num", "seed", "batch", "output", "callback", "progress"}


def load(path: Path = "demo", vae: Optional[Path] = None, *, draft: Optional[Path] = None, text: Optional[Path] = None,
         heads: int = 0, encoder: bool = False, fast: int = 0, device: Optional[str] = None,
         dtype: Optional[str] = None, size: Union[str, tuple[int, int], None] = None, class_names: Optional[Path] = None,
         **options: object) -> Model:
    """Loads a model and its image decoder.

    path: a file, a folder as Hugging Face has it, or a built-in model: "demo", "demo-discrete", "demo-sphere",
        "demo-t2i", "demo-mgpt", "demo-harmon", "demo-nextstep".
    vae: the image decoder, unless the model's file or folder has one.
    draft: a draft model, for speculation across tokens.
    text: the folder of what encodes prompts, unless the model's own has it: a T5's, or that of the model's tokenizer.
    heads: attention heads, if the file does not say.
    encoder: also the image encoder, for Session.encode; Model.edit loads it by itself.
    fast: the preset of mar generate --fast, 1 (nearest) to 3 (fastest): dtype int8, and options that calls do not give or
        conflict with.
    device: "cpu", "cuda" or "cuda:1"; None: a GPU if there is one.
    dtype: "f32", "bf16" (also as torch names them), "int8" or "int4"; None or "auto": bf16 where it is fast, and the type
        of stored int8 and int4 weights. With "auto" a preset does not change it.
    size: (width, height) or "768x512", for Harmon, UniPic-1, NextStep-1, Lumina-mGPT and Emu3.
    class_names: a file with the names of the model's own classes, a class a line, separated by commas.
    options: others of the library: threads, head_dtype, weights, seq_len, patch_size, ..."""
    given = {"path": path, "vae": vae, "draft": draft, "text": text, "heads": heads, "encoder": encoder, "fast": fast,
             "device": device, "dtype": dtype, "size": size, "class_names": class_names}
    for name in options:
        if name not in HANDLE:
            raise unknown(name, LOAD, f"a call: pipe(..., {name}=...)", PARAMS)
    return Model({**given, **options})
