"""Tests the installed Python module: test_mar.py MAR_COMMAND ABI_TXT. Called by test_wheel.sh in a fresh venv."""
import gc
import json
import logging
import pathlib
import resource
import subprocess
import sys
import tempfile
import threading
import types
import typing
import unittest
import warnings
import zlib
from unittest import mock

import numpy as np

import mar
from mar import _lib

COMMAND, ABI = sys.argv[1:3]
ROOT = pathlib.Path(__file__).parents[2]


def read_png(path):
    """Returns the pixels of an 8-bit RGB PNG."""
    data, at, packed = pathlib.Path(path).read_bytes(), 8, b""
    while at < len(data):
        size, kind = int.from_bytes(data[at:at + 4], "big"), data[at + 4:at + 8]
        body, at = data[at + 8:at + 8 + size], at + 12 + size
        if kind == b"IHDR":
            width, height = int.from_bytes(body[:4], "big"), int.from_bytes(body[4:8], "big")
        if kind == b"IDAT":
            packed += body
    rows = np.frombuffer(zlib.decompress(packed), np.uint8).reshape(height, 1 + 3 * width)
    image, before = np.zeros((height, 3 * width), np.uint8), np.zeros(3 * width, np.int64)
    for y, row in enumerate(rows):
        line = row[1:].astype(np.int64)
        for x in range(3 * width):
            left, up, corner = (line[x - 3] if x >= 3 else 0), before[x], (before[x - 3] if x >= 3 else 0)
            nearest = min((abs(up - corner), 0, left), (abs(left - corner), 1, up),
                          (abs(left + up - 2 * corner), 2, corner))[2]
            line[x] = (line[x] + [0, left, up, (left + up) // 2, nearest][row[0]]) & 255
        image[y], before = line, line
    return image.reshape(height, width, 3)


def write_png(path, pixels):
    """Writes pixels [height, width, 3] as a PNG."""
    def chunk(kind, body):
        return len(body).to_bytes(4, "big") + kind + body + zlib.crc32(kind + body).to_bytes(4, "big")
    head = b"".join(side.to_bytes(4, "big") for side in pixels.shape[1::-1]) + bytes([8, 2, 0, 0, 0])
    rows = zlib.compress(b"".join(b"\0" + row.tobytes() for row in np.ascontiguousarray(pixels)))
    pathlib.Path(path).write_bytes(b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", rows) + chunk(b"IEND", b""))


def command(*arguments, status=0):
    """Runs the command and returns what it printed, as a failure the line."""
    done = subprocess.run([COMMAND, *map(str, arguments)], capture_output=True, text=True)
    if done.returncode != status:
        raise AssertionError(f"{arguments}: status {done.returncode}: {done.stderr}")
    return done.stdout if status == 0 else done.stderr


def made_by_command(count, *arguments):
    """Returns the images that a command writes to a directory [count, height, width, 3]."""
    with tempfile.TemporaryDirectory() as out:
        command(*arguments, "--quiet", "--out", f"{out}/d")
        return np.stack([read_png(f"{out}/d/{i:06d}.png") for i in range(count)])


def write_thousand_classes(path):
    """Writes the demo model with 1000 classes, whose embeddings are multiples of the demo's."""
    data = next(ROOT.glob("weights/demo/target.safetensors")).read_bytes()
    size = int.from_bytes(data[:8], "little")
    header, body = json.loads(data[8:8 + size]), data[8 + size:]
    begin, end = header["class_emb.weight"]["data_offsets"]
    kind = header["class_emb.weight"]["dtype"]
    item = {"F32": 4, "F16": 2, "BF16": 2}[kind]
    width = header["class_emb.weight"]["shape"][1] * item
    rows = [body[begin + i % 10 * width:begin + (i % 10 + 1) * width] for i in range(1000)]
    header["class_emb.weight"] = {"dtype": kind, "shape": [1000, width // item],
                                  "data_offsets": [len(body), len(body) + 1000 * width]}
    header["filler"] = {"dtype": "U8", "shape": [end - begin], "data_offsets": [begin, end]}  # no byte is left out
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + body + b"".join(rows))


#: Few steps, for models of continuous tokens.
FEW = dict(num_iter=4, num_sampling_steps=4)
FEW_OPTIONS = ["--num_iter", "4", "--num_sampling_steps", "4"]


class Picture:
    """Stands for an image of Pillow."""

    def __init__(self, pixels):
        self.pixels = pixels

    def convert(self, mode):
        assert mode == "RGBA"
        opaque = np.full((*self.pixels.shape[:2], 1), 255, np.uint8)
        return self if self.pixels.shape[2] == 4 else Picture(np.concatenate([self.pixels, opaque], 2))

    def __array__(self, dtype=None, copy=None):
        return self.pixels


class Bar:
    """Stands for a bar of tqdm."""
    bars = []

    def __init__(self):
        self.n, self.total, self.closed = 0, None, False
        Bar.bars.append(self)

    def update(self, more):
        self.n += more

    def close(self):
        self.closed = True


def without(module):
    """Makes an import of the module fail."""
    return mock.patch.dict(sys.modules, {module: None})


try:
    from PIL import Image
except ImportError:
    Image = None


class Test(unittest.TestCase):
    def setUp(self):
        if not Image:
            stand_in = {"PIL": types.ModuleType("PIL"), "PIL.Image": types.SimpleNamespace(fromarray=Picture)}
            patch = mock.patch.dict(sys.modules, stand_in)
            patch.start()
            self.addCleanup(patch.stop)

    def test_layout(self):
        """The structs are those of mar.h, or begin as they do."""
        fields = {}
        for line in pathlib.Path(ABI).read_text().splitlines():
            words = line.split()
            if words[0] == "field":
                fields[words[1]] = (int(words[2]), int(words[3]))
        for name, struct in _lib.STRUCTS.items():
            for field, *_ in struct._fields_:
                at = getattr(struct, field)
                self.assertEqual((at.offset, at.size), fields[f"{name}.{field}"], f"{name}.{field}")

    def test_types(self):
        """The types of all functions and methods are those of names that their modules have."""
        for module in mar._core, mar._lib, mar._classes, mar._judge, mar._model, mar._pictures, mar._session:
            classes = [each for each in vars(module).values() if isinstance(each, type)]
            for each in [one for table in map(vars, [module, *classes]) for one in table.values()]:
                if isinstance(each, types.FunctionType) and each.__module__ == module.__name__:
                    typing.get_type_hints(each, None, {"Model": mar.Model})  # _session has it for checkers only

    def test_classes(self):
        """The command's pixels of several classes, whatever the batch; a callback sees every step; a bar, too."""
        expected = made_by_command(4, "generate", "--class", "3,7", "--num", "2", "--seed", "5", "--num_iter", "6",
                                   "--num_sampling_steps", "8")
        seen, module, params = [], types.SimpleNamespace(tqdm=Bar), dict(num_iter=6, num_sampling_steps=8)
        pipe = mar.load("demo")
        with mock.patch.dict(sys.modules, {"tqdm.auto": module}):
            images = pipe([3, "7"], num=2, seed=5, batch=3, output="numpy", progress=True, **params,
                          callback=lambda image, step, steps: seen.append((image, step, steps)))
            pipe(3, output="numpy", **FEW)  # no terminal, no bar
        np.testing.assert_array_equal(images, expected)
        self.assertEqual(sorted(seen), [(image, step, 6) for image in range(4) for step in range(1, 7)])
        (bar,) = Bar.bars
        self.assertEqual((bar.n, bar.total, bar.closed), (24, 24, True))
        np.testing.assert_array_equal(pipe(np.array([3, 7]), num=2, seed=5, output="numpy", **params), expected)
        np.testing.assert_array_equal(pipe(3, seed=5, output="numpy", **params), expected[0])
        seeds = pipe(3, num=2, seed=[5, 9], output="numpy", **params)
        np.testing.assert_array_equal(seeds[0], expected[0])
        np.testing.assert_array_equal(seeds[1], pipe([3], seed=9, output="numpy", **params)[0])
        self.assertEqual(pipe([3], output="numpy", **FEW).shape, (1, 32, 32, 3))
        expected = made_by_command(2, "generate", "--class", "none,3", "--num", "1", *FEW_OPTIONS)
        np.testing.assert_array_equal(pipe(["None", 3], output="numpy", **FEW), expected)
        for label in -1, 10:
            with self.assertRaisesRegex(ValueError, f'^what {label}: expected 0 to 9, or "none": unconditional$'):
                pipe([3, label], output="numpy")

    def test_pillow(self):
        """Images of Pillow are the default; without Pillow an error says what to do."""
        pipe = mar.load("demo")
        one, many = pipe(3, **FEW), pipe(3, num=1, **FEW)
        self.assertTrue(isinstance(one, Image.Image if Image else Picture) and len(many) == 1)
        np.testing.assert_array_equal(np.asarray(one), pipe(3, output="numpy", **FEW))
        np.testing.assert_array_equal(np.asarray(many[0]), np.asarray(one))
        with without("PIL.Image"), self.assertRaises(ImportError) as caught:
            pipe(3, **FEW)
        self.assertEqual(str(caught.exception),
                         'output="pil": needs Pillow, expected it (pip install pillow) or output="numpy"')
        with without("tqdm.auto"), self.assertRaisesRegex(ImportError, "^progress=True: needs tqdm, expected it "):
            pipe(3, output="numpy", progress=True, **FEW)
        if not Image:
            self.skipTest("the part with Pillow itself")
        mask = Image.new("L", (32, 32))
        mask.paste(255, (4, 8, 20, 20))
        edited = pipe.edit(one.convert("RGBA"), 5, mask=mask, **FEW)
        self.assertEqual(edited, pipe.edit(np.asarray(one), 5, box=(4, 8, 16, 12), **FEW))
        mask.info["transparency"] = 0
        with self.assertWarnsRegex(UserWarning, "^mask: its transparency is not used, "):
            self.assertEqual(edited, pipe.edit(one, 5, mask=mask, **FEW))

    def test_names(self):
        """The command's image of a class's name, and its reason for a name that it does not take."""
        with tempfile.TemporaryDirectory() as out:
            path = pathlib.Path(out) / "thousand.safetensors"
            write_thousand_classes(path)
            pipe = mar.load(path, vae="demo")
            expected = made_by_command(1, "generate", "--model", path, "--vae", "demo", "--class", "Golden_Retriever",
                                       "--seed", "2", *FEW_OPTIONS)
            for what in "Golden_Retriever", " golden  retriever", 207, "207":
                np.testing.assert_array_equal(pipe([what], seed=2, output="numpy", **FEW), expected)
            for name in "crane", "retriever", "no such class", "--":
                line = command("generate", "--model", path, "--vae", "demo", f"--class={name}", status=1)
                with self.assertRaises(ValueError) as caught:
                    pipe(name)
                ours, theirs = str(caught.exception), line.strip().replace("mar: --class: ", "what: ")
                if "classes have" in theirs:
                    self.assertEqual(ours.replace("'", '"'), theirs)
                else:
                    self.assertTrue(ours.startswith(f'what: class "{name}": expected a number from 0 to 999, or '), ours)
        names = json.loads(command("classes", "--json"))["classes"]
        table = mar._classes.imagenet()
        self.assertEqual([list(row) for row in table], [row["names"] for row in names])
        system = types.SimpleNamespace(_name="/usr/lib/libmar.so")  # as with MAR_LIBRARY
        with tempfile.TemporaryDirectory() as out, mock.patch.object(mar._classes, "lib", system), \
                mock.patch.object(mar._classes, "__file__", f"{out}/_classes.py"):
            with self.assertRaisesRegex(FileNotFoundError, "^what: the names of ImageNet's classes are missing, neither "):
                mar._classes.imagenet()
            file = pathlib.Path(out) / "share/libmar/imagenet_classes.txt"
            file.parent.mkdir(parents=True)
            file.write_text("\n".join(map(", ".join, table)), encoding="utf-8")
            self.assertEqual(mar._classes.imagenet(), table)
        once = [name.lower() for row in table for name in row]
        for row in names:
            for name in row["names"]:
                if once.count(name.lower()) == 1:
                    self.assertEqual(mar._classes.find(name.upper().replace(" ", "-"), table), row["class"])
        with self.assertRaisesRegex(ValueError, "what: class \"dog\": the classes have no names, expected 0 to 9"):
            mar.load("demo")("dog")
        with tempfile.TemporaryDirectory() as out:
            path = pathlib.Path(out) / "names.txt"
            path.write_text("zero, nought\none\ntwo\nthree\nfour\nfive\nsix\nseven\neight\nnine digit\n")
            pipe, plain = mar.load("demo", class_names=path), mar.load("demo")
            np.testing.assert_array_equal(pipe(["Nought", "digit"], output="numpy", **FEW),
                                          plain([0, 9], output="numpy", **FEW))
            for text, line in [("one\ntwo\n", "has the names of 2 classes, expected 10"),
                               ("one\n,two\n", "line 2: an empty name, expected those of class 1")]:
                other = pathlib.Path(out) / f"{len(text)}.txt"
                other.write_text(text)
                with self.assertRaisesRegex(ValueError, f"^class_names: .*: {line}$"):
                    mar.load("demo", class_names=other)

    def test_fast(self):
        """A level is that of the command; what is given stays."""
        expected = made_by_command(2, "generate", "--fast", "3", "--class", "3", "--num", "2", "--seed", "4")
        pipe = mar.load("demo", fast=3)
        np.testing.assert_array_equal(pipe(3, num=2, seed=4, output="numpy"), expected)
        given = made_by_command(1, "generate", "--fast", "3", "--class", "3", "--num", "1", "--num_iter", "2")
        np.testing.assert_array_equal(pipe([3], num_iter=2, output="numpy"), given)
        gtr = dict(gtr=True, gtr_generation_steps=2, num_sampling_steps=4)
        given = made_by_command(1, "generate", "--fast", "1", "--class", "3", "--num", "1", "--gtr",
                                "--gtr_generation_steps", "2", "--num_sampling_steps", "4")
        np.testing.assert_array_equal(mar.load("demo", fast=1)([3], output="numpy", **gtr), given)
        for draft, given in (None, dict(head_spec=8)), ("demo-draft", dict(gamma=2)):  # neither goes with its sampler
            texts = ["--draft", draft, "--gamma", "2"] if draft else ["--head_spec", "8"]
            expected = made_by_command(1, "generate", "--fast", "3", "--class", "7", "--num", "1", *texts)
            other = mar.load("demo", draft=draft, fast=3, head_dtype="f32" if draft else None)
            np.testing.assert_array_equal(other([7], output="numpy", **given), expected)
        with self.assertRaisesRegex(mar.MarError, "head_spec 999999: expected"):
            pipe(7, head_spec=999999, output="numpy")
        with mock.patch.object(_lib.lib, "mar_session_create", side_effect=[_lib.ENOMEM]):  # that of the first option
            with self.assertRaises(mar.MarError) as caught:
                pipe(7, head_spec=8, output="numpy")
        self.assertEqual(caught.exception.status, "out of memory")
        discrete = made_by_command(1, "generate", "--model", "demo-discrete", "--fast", "1", "--class", "3", "--num", "1")
        np.testing.assert_array_equal(mar.load("demo-discrete", fast=1)([3], output="numpy"), discrete)
        for name, level, line in [("demo-discrete", 2, "LlamaGen has level 1 only"),
                                  ("demo-sphere", 1, "SphereAR has no preset"),
                                  ("demo", 4, "MAR has levels 1 to 3")]:
            with self.assertRaisesRegex(ValueError, f"^fast {level}: {line}$"):
                mar.load(name, fast=level)

    def test_draft(self):
        """Speculation with a draft model is the command's; by default there is none on a CPU."""
        options = ["generate", "--draft", "demo-draft", "--class", "3", "--num", "2", *FEW_OPTIONS]
        pipe = mar.load("demo", draft="demo-draft", head_dtype="f32")
        drafted = pipe(3, num=2, output="numpy", gamma=2, **FEW)
        np.testing.assert_array_equal(drafted, made_by_command(2, *options, "--gamma", "2"))
        self.assertIn("drafts of the draft model", pipe.session(gamma=2, **FEW).guarantee)
        plain = mar.load("demo", draft="demo-draft")(3, num=2, output="numpy", **FEW)
        np.testing.assert_array_equal(plain, made_by_command(2, *options))
        self.assertTrue((plain != drafted).any())

    def test_compare(self):
        """The distance and the floor are those of mar fidelity."""
        for model, own, reference in [("demo", {"num_iter": 4}, {"num_iter": 8}),
                                      ("demo-discrete", {"top_k": 5}, {"top_k": 0, "dtype": "f32"})]:
            shared = {"num_sampling_steps": 4} if model == "demo" else {}
            texts = [[f"--{name}={value}" for name, value in {**shared, **options}.items()] for options in (own, reference)]
            with tempfile.TemporaryDirectory() as out:
                record = json.loads(command("fidelity", "--model", model, *texts[0], "--against", *texts[1], "--num", 20,
                                            "--seed", 3, "--json", "--quiet", "--out", f"{out}/page.html"))
            found = mar.load(model).compare({**shared, **own}, {**shared, **reference}, num=20, seed=3)
            theirs = record["runs"][0]["energy_image"]
            self.assertAlmostEqual(found.distance, theirs["distance"], delta=1e-4 * abs(theirs["distance"]) + 1e-6)
            # both are estimates from signs drawn at random, by another generator
            self.assertAlmostEqual(found.floor, record["floor"]["image_95"], delta=0.3 * record["floor"]["image_95"])
            self.assertAlmostEqual(found.p, theirs["p"], delta=0.12)
            self.assertTrue(found.seconds > 0 and found.reference_seconds > 0 and found.speed > 0)
        same = mar.load("demo").compare({}, what=[1], num=4, **{})
        self.assertEqual((same.distance, same.p), (0, 1))
        pipe = mar.load("demo")
        for call, error, line in [
                (lambda: pipe.compare({"seed": 3}), TypeError, "seed: is an option of compare itself"),
                (lambda: pipe.compare({"steps": 3}), TypeError, "no option 'steps': "),
                (lambda: pipe.compare({}, num=1), ValueError, "num 1: expected 2 or more"),
                (lambda: mar.load("demo-t2i").compare({}), ValueError, "what: missing, expected what the images show")]:
            with self.assertRaisesRegex(error, f"^{line}"):
                call()

    def test_requests(self):
        """Requests with their own seeds are the same in company and alone."""
        model = mar.load("demo", threads=2)
        session = model.session(2, num_iter=4, num_sampling_steps=4)
        self.assertIn("exact", session.guarantee)
        first = session.submit(2, seed=1)
        session.step()
        second = session.submit(4, seed=9, image=3, cfg=4.0)
        self.assertEqual(session.progress(second), (0, 0))
        while session.pending:
            session.step()
        together = [session.take(first), session.take(second)]
        with self.assertRaises(KeyError):
            session.progress(first)
        for i, wish in enumerate([dict(label=2, seed=1), dict(label=4, seed=9, image=3, cfg=4.0)]):
            request = session.submit(**wish)
            while session.pending:
                session.step()
            np.testing.assert_array_equal(session.take(request), together[i])

    def test_cancel(self):
        """Another thread's cancel stops a step, and an exception in a callback forgets the requests."""
        session = mar.load("demo").session(1)
        for i in range(500):
            session.submit(1, image=i)
        session.step()
        timer = threading.Timer(0.05, session.cancel)
        timer.start()
        with self.assertRaises(mar.MarError) as caught:
            while session.pending:
                session.step()
        timer.join()
        self.assertEqual(caught.exception.status, "cancelled")

        class Enough(Exception):
            pass

        def stop(image, step, steps):
            raise Enough

        with self.assertRaises(Enough):
            mar.load("demo")([1, 2], output="numpy", callback=stop)

    def test_tokens(self):
        """Kept tokens come back bit for bit."""
        model = mar.load("demo", encoder=True)
        session = model.session(1, num_iter=8, num_sampling_steps=8)
        picture = model(3, num_iter=8, num_sampling_steps=8, output="numpy")
        tokens, known = session.encode(picture), np.arange(64) % 3 == 0
        request = session.submit(5, tokens=tokens, known=known)
        while session.pending:
            session.step()
        made = session.take_tokens(request)
        np.testing.assert_array_equal(made[known], tokens[known])
        self.assertTrue((made[~known] != tokens[~known]).any(axis=1).all())

    def test_edit(self):
        """Edits are those of the command: box, mask, paste, a smaller picture and its place, variations."""
        pipe, few = mar.load("demo"), [*FEW_OPTIONS, "--seed", "6", "--class", "5", "--num", "2"]
        picture = pipe(3, num_iter=8, num_sampling_steps=8, output="numpy")
        mask = np.zeros((32, 32), bool)
        mask[20:, 3:9] = True
        small = picture[5:25, 4:20]
        with tempfile.TemporaryDirectory() as out:
            corner = np.where(np.arange(20 * 16).reshape(20, 16, 1) < 100, np.uint8(200), np.uint8(100))
            files = {"picture": picture, "mask": mask[..., None].repeat(3, 2).astype(np.uint8) * 255, "small": small,
                     "corner": corner.repeat(3, 2)}
            for name, pixels in files.items():
                write_png(f"{out}/{name}.png", pixels)
            for own, options in [
                    (dict(picture=picture, box=(4, 8, 16, 12)), ["--image", "picture", "--box", "4,8,16,12"]),
                    (dict(picture=Picture(picture), box=[4, 8, 16, 12], paste=3),
                     ["--image", "picture", "--box", "4,8,16,12", "--paste", "3"]),
                    (dict(picture=picture, mask=mask, paste=0), ["--image", "picture", "--mask", "mask", "--paste", "0"]),
                    (dict(picture=picture, mask=Picture(files["mask"])), ["--image", "picture", "--mask", "mask"]),
                    (dict(picture=small), ["--image", "small"]),
                    (dict(picture=small, offset=(3, 9), mask=files["corner"], paste=40),
                     ["--image", "small", "--offset", "3,9", "--mask", "corner", "--paste", "40"]),
                    (dict(picture=picture, keep=0.3), ["--image", "picture", "--keep", "0.3"])]:
                options = [f"{out}/{word}.png" if word in files else word for word in options]
                expected = made_by_command(2, "edit", *options, *few)
                edited = pipe.edit(what=5, num=2, seed=6, output="numpy", **own, **FEW)
                np.testing.assert_array_equal(edited, expected, str(options))
                self.assertTrue((edited[0] != edited[1]).any())
        clear = np.concatenate([picture, np.full((32, 32, 1), 255, np.uint8)], 2)
        box = dict(box=(0, 0, 4, 4), output="numpy", **FEW)
        np.testing.assert_array_equal(pipe.edit(Picture(clear), 5, **box), pipe.edit(picture, 5, **box))
        clear[3, 5, 3] = 254
        for name, own in [("picture", {"picture": Picture(clear), **box}),
                          ("mask", {"picture": picture, "mask": Picture(clear)})]:
            with self.assertWarnsRegex(UserWarning, f"^{name}: its transparency is not used, white in mask= ") as caught:
                pipe.edit(what=5, **{"output": "numpy", **FEW, **own})
            self.assertEqual(caught.filename, __file__)
        pipe, free, freed = mar.load("demo"), _lib.lib.mar_vae_free, []
        with mock.patch.object(pipe, "_load_vae", side_effect=mar.MarError(_lib.ENOMEM, "no memory")):
            with self.assertRaisesRegex(mar.MarError, "^no memory$"):
                pipe.edit(picture, 5, box=(0, 0, 4, 4))
        with mock.patch.object(_lib.lib, "mar_vae_free", lambda vae: (freed.append(vae), free(vae))):
            pipe = mar.load("demo")
            session, old = pipe.session(**FEW), pipe._vae.value
            pipe.edit(picture, 5, box=(0, 0, 4, 4), **FEW)
            self.assertEqual(freed, [old])  # the decoder without its encoder
        request = session.submit(3)
        while session.pending:
            session.step()
        np.testing.assert_array_equal(session.take(request), pipe(3, output="numpy", **FEW))
        whole = np.ones((32, 32), bool)
        for call, line in [
                (lambda: pipe.edit(picture, 5), "mask: missing, the picture covers all tokens"),
                (lambda: pipe.edit(picture, 5, mask=~whole), "mask: is true nowhere"),
                (lambda: pipe.edit(picture, 5, mask=whole, box=(0, 0, 4, 4)), "box: has no effect beside mask"),
                (lambda: pipe.edit(picture, 5, mask=whole[1:]), "mask: 32x31 pixels, expected 32x32"),
                (lambda: pipe.edit(picture, 5, mask=whole * 1.0), "mask: float64, expected uint8"),
                (lambda: pipe.edit(picture, 5, mask=whole[0]), r"mask: shape \(32,\), expected \(height, width\)"),
                (lambda: pipe.edit(picture, 5, mask=clear), r"mask: shape \(32, 32, 4\), expected "),
                (lambda: pipe.edit(picture, 5, box=(4, 8, 30, 2)), "box .*: ends at 34, 10, beyond the model's 32x32 pixels"),
                (lambda: pipe.edit(picture, 5, box=(4, 8, 0, 2)), "box .*: expected x, y, width, height in pixels"),
                (lambda: pipe.edit(picture, 5, box=3), "box 3: expected x, y, width, height in pixels"),
                (lambda: pipe.edit(small, 5, offset=(20, 0)), r"offset \(20, 0\): expected 16, 12 at most"),
                (lambda: pipe.edit(small, 5, offset=(-1, 0)), r"offset \(-1, 0\): expected x, y in pixels"),
                (lambda: pipe.edit(picture, 5, keep=1.5), "keep 1.5: expected 0 to 1"),
                (lambda: pipe.edit(picture, 5, keep=0.5, paste=3), "paste: has no effect beside keep"),
                (lambda: pipe.edit(picture, 5, box=(0, 0, 4, 4), paste=-1), "paste -1: expected 0 to 512"),
                (lambda: pipe.edit(picture.repeat(2, 0), 5), "picture: 32x64 pixels, expected the model's 32x32"),
                (lambda: pipe.edit(picture[..., :2], 5), "picture: shape .*, expected "),
                (lambda: pipe.edit(picture / 255, 5), "picture: float64, expected uint8"),
                (lambda: mar.load("demo-discrete").edit(picture, 5, box=(0, 0, 4, 4)), "edit: LlamaGen makes tokens from ")]:
            with self.assertRaisesRegex(ValueError, f"^{line}"):
                call()

    def test_text(self):
        """A prompt's features are behind its padding; bad prompts are refused."""
        text = mar.Text(ROOT / "tests/golden/data/t5")
        features, mask, counts = text.encode(["a bold seven", "x"], tokens=40, clean=False)
        self.assertEqual((features.shape, mask.shape, text.size), ((2, 40, 32), (2, 40), 32))
        self.assertEqual(mask.sum(1).tolist(), counts.tolist())
        self.assertTrue(mask[0, -counts[0]:].all() and (features[~mask] == 0).all() and (features[mask] != 0).any(1).all())
        one, _, _ = text.encode("x", tokens=40, clean=False)
        self.assertTrue((one[0] == features[1]).all())
        with self.assertRaisesRegex(mar.MarError, "prompt 1 is empty"):
            text.encode(["x", ""], clean=False)
        with self.assertRaisesRegex(mar.MarError, "has neither model.safetensors"):
            mar.Text(ROOT / "tests")

    def test_clip(self):
        """Embeddings of length 1, the same in any batch."""
        clip = mar.Clip(ROOT / "tests/golden/data/clip_tiny", batch=2)
        texts = clip.texts(["a cat", "", "the mat"])
        images = clip.images(np.random.default_rng(1).integers(0, 256, (3, 40, 50, 3), np.uint8))
        self.assertEqual((texts.shape, images.shape, clip.size, clip.image_size), ((3, 24), (3, 24), 24, 32))
        self.assertTrue(np.allclose((texts ** 2).sum(1), 1, atol=1e-5) and np.allclose((images ** 2).sum(1), 1, atol=1e-5))
        self.assertTrue((clip.texts("the mat")[0] == texts[2]).all())
        with self.assertRaisesRegex(mar.MarError, "text 1: "):
            clip.texts(["x", "\udcff"])
        with self.assertRaisesRegex(mar.MarError, "is no CLIP"):
            mar.Clip(ROOT / "tests/golden/data/t5")

    def test_evaluation(self):
        """The distance of images to themselves is 0, and grows with their difference."""
        judge = mar.Features("demo", batch=8)
        images = mar.load("demo")([i % 10 for i in range(40)], num_iter=16, num_sampling_steps=50, output="numpy")
        features, logits = judge(images)
        self.assertEqual((features.shape, logits.shape), ((40, judge.size), (40, judge.classes)))
        self.assertGreater(np.mean(logits.argmax(1) == np.arange(40) % 10), 0.6)
        self.assertAlmostEqual(mar.frechet_distance(features, features), 0, places=4)
        far = mar.frechet_distance(features, judge(255 - images)[0])
        self.assertGreater(far, 1)
        self.assertEqual(mar.precision_recall(features, features), (1, 1))
        ones = np.ones((2, 1)) # kernels 8, 125 and 27
        self.assertEqual(mar.kernel_distance(2 * ones, ones, subsets=3, subset_size=2), (8 + 125 - 2 * 27, 0))
        # two Gaussians whose distance is known: |mean|^2 + sum (s - 1)^2
        x = np.random.default_rng(0).standard_normal((200000, 2))
        self.assertAlmostEqual(mar.frechet_distance(x, x * [2, 3] + [1, 0]), 1 + 1 + 4, places=1)

    def test_errors(self):
        """The library's line and status with options as keywords, or Python's error for a wrong shape or name."""
        pipe = mar.load("demo")
        session = pipe.session()
        for call, line in [(lambda: mar.load("no.safetensors"), "No such file or directory; models are not downloaded"),
                           (lambda: mar.load("demo-harmn"), "; did you mean 'demo-harmon'?"),
                           (lambda: mar.load("demo", dtype="f64"), "dtype f64: expected "),
                           (lambda: mar.load("demo-harmon", size=(31, 32)), "an image of 31x32"),
                           (lambda: session.submit(10), "class 10: expected 0..9"),
                           (lambda: pipe(1, num_iter=65, output="numpy"), "num_iter 65: expected 0..64"),
                           (lambda: pipe(1, cfg="high", output="numpy"), "cfg high: expected auto or a number"),
                           (lambda: session.encode(np.zeros((32, 32, 3), np.uint8)), "without its encoder")]:
            with self.assertRaises(mar.MarError) as caught:
                call()
            self.assertIn(line, str(caught.exception))
            self.assertNotRegex(str(caught.exception), "\n|--")
        for call, line in [
                (lambda: pipe(1, nm=4), "no option 'nm': did you mean 'num'?"),
                (lambda: pipe(1, num_itr=4), "no option 'num_itr': did you mean 'num_iter'?"),
                (lambda: pipe(1, guidance_scale=4), "no option 'guidance_scale': here it is cfg"),
                (lambda: pipe(1, dtype="f32"), "dtype: is an option of mar.load: mar.load(..., dtype=...)"),
                (lambda: pipe(1, fast=1), "fast: is an option of mar.load: mar.load(..., fast=...)"),
                (lambda: pipe.edit(1, 2, steps=1), "no option 'steps': "),
                (lambda: pipe.session(colour=3), "no option 'colour': "),
                (lambda: mar.load("demo", thread=2), "no option 'thread': did you mean 'threads'?"),
                (lambda: mar.load("demo", backend="cpu"), "no option 'backend': here it is device"),
                (lambda: mar.load("demo", num_iter=2), "num_iter: is an option of a call: pipe(..., num_iter=...)"),
                (lambda: pipe(None), "what: NoneType, expected a prompt, a class or a list of them"),
                (lambda: pipe(prompt="x"), "no option 'prompt': here it is the first argument"),
                (lambda: pipe(1, callback=3), "callback: int, expected a function"),
                (lambda: pipe.edit("dog.png", 1), "picture: str, expected an image of Pillow or an array"),
                (lambda: mar.load("demo-harmon")("x", negative=["y"]), "negative: list, expected text"),
                (lambda: mar.load("demo", draft=False), "draft: bool, expected the path of a file or folder"),
                (lambda: mar.load(3), "path: int, expected the path of a file or folder"),
                (lambda: pipe([1.5]), "what: float, expected a whole number"),
                (lambda: pipe(1, num=1.5), "num: float, expected a whole number"),
                (lambda: mar.load("demo-harmon")(7), "what: 7, expected a prompt: Harmon makes images of prompts")]:
            with self.assertRaises(TypeError) as caught:
                call()
            self.assertTrue(str(caught.exception).startswith(line), str(caught.exception))
        with self.assertRaisesRegex(ValueError, r"tokens: shape \(3,\), expected \(64, 8\)"):
            session.submit(1, tokens=[1, 2, 3], known=np.ones(64))
        for call, line in [(lambda: session.encode(np.zeros((32, 32, 3))), "picture: float64, expected uint8"),
                           (session.step, "no request is pending"),
                           (lambda: pipe(1, seed=-1), "seed -1: expected 0"),
                           (lambda: pipe(1, seed=[1, 2]), "seed: 2 seeds, expected one, or one for each of 1 images"),
                           (lambda: pipe(1, num=0), "num 0: expected 1 or more"),
                           (lambda: pipe([]), "what: is empty"),
                           (lambda: pipe(1, output="tensor"), 'output \'tensor\': expected "pil" or "numpy"'),
                           (lambda: pipe(1, negative="x"), "negative: has no effect, the model makes images of classes"),
                           (lambda: mar.load("demo-t2i")("a bold seven", negative="x"), "negative: has no effect, guidance is"),
                           (lambda: mar.load("demo-mgpt")("x", negative="y"), "negative: has no effect, .* has no "),
                           (lambda: mar.load("demo-sphere").edit(np.zeros((32, 32, 3), np.uint8), 1, box=(0, 0, 4, 4)),
                            "edit: needs the image encoder: demo-sphere has no encoder"),
                           (lambda: mar.load("demo-discrete-eagle"), "path: demo-discrete-eagle is a drafter, "),
                           (lambda: mar.load("demo", text="demo-t5"), "text: has no effect on a model of MAR"),
                           (lambda: mar.load(""), "path: is empty, expected the path of a file or folder"),
                           (lambda: mar.load("demo", vae=""), "vae: is empty, expected the path of a file or folder"),
                           (lambda: mar.load("demo", draft=""), "draft: is empty, expected "),
                           (lambda: mar.load("demo-t2i", text=""), "text: is empty, expected "),
                           (lambda: mar.load("demo", class_names=""), "class_names: is empty, expected "),
                           (lambda: mar.load("demo", size=(64, 64)), "size: has no effect on a model of MAR"),
                           (lambda: mar.load("demo", seq_len=64), "seq_len: has no effect on a model of MAR"),
                           (lambda: mar.load("demo-sphere", patch_size=1), "patch_size: has no effect on "),
                           (lambda: mar.load("demo-discrete", head_dtype="f32"), "head_dtype: has no effect on "),
                           (lambda: mar.load("demo-discrete", dtype="int8", int8_below=9), "int8_below: has no effect on "),
                           (lambda: mar.load("demo", device="gpu"), "device 'gpu': expected \"cpu\", \"cuda\" or "),
                           (lambda: mar.load("demo", device="cpu:1"), "device 'cpu:1': expected "),
                           (lambda: mar.load(ROOT / "weights/demo/target.safetensors")(1), "vae: missing, expected ")]:
            with self.assertRaisesRegex(ValueError, f"^{line}"):
                call()
        self.assertTrue(any(m.name == "head-spec" and m.exact for m in mar.methods()))

    def test_machine(self):
        """Device and arithmetic by the names that PyTorch has for them; the log goes to logging."""
        with self.assertLogs("mar", logging.INFO) as log:
            self.assertRegex(mar.load("demo", device="cpu", dtype="torch.float32", threads=1).backend, "^cpu f32 .*1 thread")
        self.assertTrue(any("demo" in line for line in log.output), log.output)
        self.assertRegex(repr(mar.load("demo")), "^<mar.Model MAR, 'demo', .*>$")
        self.assertIn("cpu bf16", mar.load("demo", dtype="bfloat16").backend)
        self.assertEqual(mar.load("demo-harmon", size=(48, 32)).session().shape, (32, 48))
        self.assertEqual(mar.load("demo-harmon", size="48x32").session().shape, (32, 48))
        try:
            mar.load("demo", device="cuda:0")
        except mar.MarError as error:
            self.assertIn("cuda", str(error).lower())

    def test_cut(self):
        """What C would cut is refused, with the argument's name: numbers of more bits, text with a NUL, other numbers."""
        model, text = mar.load("demo"), mar.Text(ROOT / "tests/golden/data/t5")
        session, clip = model.session(1, num_iter=2, num_sampling_steps=2), ROOT / "tests/golden/data/clip_tiny"
        request = session.submit(1)
        session.step()
        session.step()
        tokens, features = np.zeros((64, 8), np.float32), np.zeros((9, 4), np.float32)
        int32, uint64 = "expected -2147483648 to 2147483647", "expected 0 to 18446744073709551615"
        for call, line in [
                (lambda: model.session(2**40 + 1), f"batch 1099511627777: {int32}"),
                (lambda: session.take(2**64 + request), f"request {2**64 + request}: {uint64}"),
                (lambda: session.take_tokens(2**64 + request), f"request {2**64 + request}: {uint64}"),
                (lambda: session.preview(request - 2**64), f"request {request - 2**64}: {uint64}"),
                (lambda: session.progress(2**64 + request), f"request {2**64 + request}: {uint64}"),
                (lambda: session.cancel(2**64 + request), f"request {2**64 + request}: {uint64}"),
                (lambda: session.submit(2**32 + 1), f"label 4294967297: {int32}"),
                (lambda: session.submit(1, image=2**64), f"image 18446744073709551616: {uint64}"),
                (lambda: session.submit(1, seed=-1), f"seed -1: {uint64}"),
                (lambda: model(1, seed=2**64, output="numpy"), f"seed 18446744073709551616: {uint64}"),
                (lambda: model(1, num=2**32, output="numpy"), f"num 4294967296: {int32}"),
                (lambda: model(2**32, output="numpy"), f"what 4294967296: {int32}"),
                (lambda: mar.load("demo", heads=2**32 + 4), f"heads 4294967300: {int32}"),
                (lambda: mar.Features("demo", batch=2**32 + 1), f"batch 4294967297: {int32}"),
                (lambda: mar.Clip(clip, batch=2**32 + 1), f"batch 4294967297: {int32}"),
                (lambda: text.encode("x", tokens=2**32 + 40), f"tokens 4294967336: {int32}"),
                (lambda: text.encode_negative("x", 2**32 + 40), f"tokens 4294967336: {int32}"),
                (lambda: mar.precision_recall(features, features, k=2**32 + 3), f"k 4294967299: {int32}"),
                (lambda: mar.load("demo\0.safetensors"), "path: has a NUL, expected text without one"),
                (lambda: mar.load("demo", vae="demo\0x"), "vae: has a NUL, expected text without one"),
                (lambda: mar.load("demo", draft=b"demo-draft\0x"), "draft: has a NUL, expected text without one"),
                (lambda: mar.load("demo", dtype="f32\0x"), "dtype: has a NUL, expected text without one"),
                (lambda: mar.load("demo", tuning="/nowhere\0x"), "tuning: has a NUL, expected text without one"),
                (lambda: model.session(1, sampler="ddim\0x"), "sampler: has a NUL, expected text without one"),
                (lambda: mar.Text("demo-t5\0x"), "folder: has a NUL, expected text without one"),
                (lambda: mar.Clip("demo\0x"), "folder: has a NUL, expected text without one"),
                (lambda: mar.Features("demo\0x"), "path: has a NUL, expected text without one"),
                (lambda: text.encode("a\0b"), "prompts: has a NUL, expected text without one"),
                (lambda: session.submit(1, tokens=tokens * 1j, known=np.ones(64, bool)),
                 "tokens: complex64, expected float32"),
                (lambda: session.submit(1, tokens=tokens, known=np.full(64, 0.5)), "known: float64, expected bool"),
                (lambda: mar.precision_recall(features * 1j, features), "reference: complex64, expected float32")]:
            with self.assertRaises(ValueError) as caught:
                call()
            self.assertEqual(str(caught.exception), line)
        for call, line in [(lambda: model.session(1.5), "batch: float, expected a whole number"),
                           (lambda: session.take(None), "request: NoneType, expected a whole number"),
                           (lambda: session.submit("3"), "label: str, expected a whole number")]:
            with self.assertRaises(TypeError) as caught:
                call()
            self.assertEqual(str(caught.exception), line)
        for cfg in float("nan"), float("inf"), 1e39, -1.0:
            with self.assertRaisesRegex(mar.MarError, "expected"):
                session.submit(1, cfg=cfg)
            with self.assertRaisesRegex(mar.MarError, "cfg .*expected"):
                model.session(1, cfg=cfg)
        # a number that is 0 in 8 bits keeps its token
        kept = session.submit(np.int64(1), tokens=tokens + 0.5, known=np.arange(64)[::-1] * 256)
        while session.pending:
            session.step()
        np.testing.assert_array_equal(session.take_tokens(kept)[:63], tokens[:63] + 0.5)
        self.assertEqual(session.take(request).shape, (32, 32, 3))

    def test_prompt(self):
        """Every demo model of prompts makes the command's image, from its folder and from a converted one, too."""
        rows = "two rows of three digits: 1 2 3 / 4 5 6"
        nextstep, demo = {"num_sampling_steps": 4}, ROOT / "weights/demo"
        for model, pipe, prompt, few in [("demo-t2i", mar.load("demo-t2i"), "a bold seven", {}),
                                         ("demo-mgpt", mar.load("demo-mgpt"), rows, {}),
                                         ("demo-mgpt", mar.load(demo / "mgpt", "demo-mgpt"), rows, {}),
                                         ("demo-nextstep", mar.load("demo-nextstep"), "a bold seven", nextstep),
                                         ("demo-nextstep", mar.load(demo / "nextstep"), "a bold seven", nextstep),
                                         ("demo-harmon", mar.load(demo / "harmon"), "a bold seven", FEW)]:
            texts = [f"--{name}={value}" for name, value in few.items()]
            expected = made_by_command(2, "generate", "--model", model, "--prompt", prompt, "--num", "2", "--seed", "5",
                                       *texts)
            made = pipe(prompt, num=2, seed=5, output="numpy", **few)
            np.testing.assert_array_equal(made, expected, model)
        with tempfile.TemporaryDirectory() as out:
            command("convert", ROOT / "weights/demo/harmon", f"{out}/int8", "--dtype", "int8")
            command("convert", ROOT / "weights/demo/harmon", f"{out}/one.safetensors")
            expected = made_by_command(1, "generate", "--model", f"{out}/int8", "--prompt", "a bold seven", *FEW_OPTIONS)
            pipe = mar.load(f"{out}/int8")
            self.assertIn("int8", pipe.backend)
            np.testing.assert_array_equal(pipe(["a bold seven"], output="numpy", **FEW), expected)
            expected = made_by_command(1, "generate", "--model", f"{out}/int8", "--prompt", "a bold seven", "--fast", "3",
                                       "--dtype", "auto")
            pipe = mar.load(f"{out}/int8", fast=3, dtype="auto")
            self.assertIn("int8", pipe.backend)
            np.testing.assert_array_equal(pipe(["a bold seven"], output="numpy"), expected)
            command("convert", ROOT / "weights/demo/harmon", f"{out}/int4", "--dtype", "int4")
            self.assertIn("int4", mar.load(f"{out}/int4", dtype="auto").backend)
            self.assertIn("int8", mar.load(f"{out}/int4", fast=1).backend)

            def library(options):
                if options["dtype"] == "int8":
                    raise mar.MarError(_lib.EBACKEND, "a CPU without int8")
                return mar._core.Library(options)

            with mock.patch.object(mar._model, "Library", library):
                self.assertIn("int4", mar.load(f"{out}/int4", fast=1).backend)
            with self.assertRaisesRegex(ValueError, "^text: missing, .*: expected mar.load.*the folder of the model"):
                mar.load(f"{out}/one.safetensors", vae=ROOT / "weights/demo/harmon")("a bold seven", output="numpy")
            pipe = mar.load(f"{out}/one.safetensors", vae=ROOT / "weights/demo/harmon", text=ROOT / "weights/demo/harmon")
            self.assertEqual(pipe("a bold seven", output="numpy", **FEW).shape, (32, 32, 3))
        with self.assertRaisesRegex(ValueError, "^vae: missing, expected the image decoder's file: .*mgpt: is "):
            mar.load(demo / "mgpt")(rows, output="numpy")
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            mar.load("demo-t2i").caption("seven " * 100)
        self.assertRegex(str(caught[0].message), r"^prompt: \d+ tokens, cut to the 16 that the model takes$")

    def test_negative(self):
        """A decoder's second context of guidance; without it guidance is refused."""
        model = mar.load("demo-mgpt", dtype="f32")
        positions = model.config["caption_tokens"]
        text = mar.Text("demo-mgpt", dtype="f32")
        features, mask, counts = text.encode("two rows of three digits: 1 2 3 / 4 5 6", positions)
        negative, negative_mask = text.encode_negative(None, positions)
        self.assertTrue(0 < negative_mask.sum() < counts[0] == mask.sum())
        session = model.session(1, cfg=3)
        with self.assertRaisesRegex(mar.MarError, "nothing to guide away from"):
            session.submit(features=features[0], mask=mask[0])
        session.set_negative(negative, negative_mask)
        session.submit(features=features[0], mask=mask[0])
        session.step()
        with self.assertRaisesRegex(mar.MarError, "has no negative prompt"):
            text.encode_negative("blurry", positions)
        with self.assertRaisesRegex(ValueError, "^text: has a NUL, expected text without one$"):
            text.encode_negative("a\0b", positions)

    def test_harmon(self):
        """Harmon's images with a negative prompt are the command's, and so is an edit of a prompt."""
        few = ["--model", "demo-harmon", "--prompt", "a bold seven", "--negative", "a thin 2", "--seed", "5", *FEW_OPTIONS]
        pipe = mar.load("demo-harmon")
        picture = pipe("a bold seven", negative="a thin 2", seed=5, output="numpy", **FEW)
        np.testing.assert_array_equal(picture, made_by_command(1, "generate", *few)[0])
        self.assertTrue((picture != pipe("a bold seven", seed=5, output="numpy", **FEW)).any())
        with tempfile.TemporaryDirectory() as out:
            write_png(f"{out}/picture.png", picture)
            expected = made_by_command(1, "edit", "--image", f"{out}/picture.png", "--box", "0,16,32,16", *few)
        edited = pipe.edit(picture, "a bold seven", box=(0, 16, 32, 16), negative="a thin 2", seed=5, output="numpy", **FEW)
        np.testing.assert_array_equal(edited, expected[0])
        both = pipe(["a bold seven", "a thin 2"], num=2, output="numpy", **FEW)
        self.assertEqual(both.shape, (4, 32, 32, 3))

    def test_memory(self):
        """Objects are freed in any order, and with the last reference."""
        def once():
            model = mar.load("demo", threads=1)
            session = model.session(4, num_iter=2, num_sampling_steps=2)
            del model
            session.submit(1)
            session.step()

        for _ in range(5):
            once()
        gc.collect()
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        for _ in range(30):
            once()
        gc.collect()
        self.assertLess(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, before + 20000)  # KB; a session has 5 MB


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[3:]])
