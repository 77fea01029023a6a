"""Tests the installed Python module: test_mar.py MAR_COMMAND ABI_TXT. Called by test_wheel.sh in a fresh venv."""
import gc
import pathlib
import resource
import subprocess
import sys
import tempfile
import threading
import unittest
import zlib

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


class Test(unittest.TestCase):
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

    def test_generate(self):
        """The same pixels as the command's, whatever the batch."""
        with tempfile.TemporaryDirectory() as out:
            subprocess.run([COMMAND, "generate", "-q", "--class", "3,7,1", "--num", "1", "--seed", "5", "--num_iter",
                            "6", "--num_sampling_steps", "8", "--out", f"{out}/d"], check=True)
            expected = [read_png(f"{out}/d/{i:06d}.png") for i in range(3)]
        done, shown = [], []
        images = mar.generate("demo", [3, 7, 1], seed=5, batch=2, num_iter=6, num_sampling_steps=8,
                              on_progress=lambda n, of: done.append((n, of)),
                              on_preview=lambda i, rgba: shown.append((i, rgba[..., 3].mean())))
        self.assertEqual(images.shape, (3, 32, 32, 3))
        np.testing.assert_array_equal(images, expected)
        self.assertEqual(done, [(1, 3), (2, 3), (3, 3)])
        alphas = [a for i, a in shown if i == 0]
        self.assertEqual(len(alphas), 6)
        self.assertTrue(0 < alphas[0] < alphas[-1] == 255 and alphas == sorted(alphas))

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

        def stop(i, rgba):
            raise Enough

        with self.assertRaises(Enough):
            mar.generate("demo", [1, 2], on_preview=stop)

    def test_edit(self):
        """Kept tokens come back bit for bit."""
        model = mar.load("demo", encoder=True)
        session = model.session(1, num_iter=8, num_sampling_steps=8)
        picture = mar.generate(model, [3], num_iter=8, num_sampling_steps=8)[0]
        tokens, known = session.encode(picture), np.arange(64) % 3 == 0
        request = session.submit(5, tokens=tokens, known=known)
        while session.pending:
            session.step()
        made = session.take_tokens(request)
        np.testing.assert_array_equal(made[known], tokens[known])
        self.assertTrue((made[~known] != tokens[~known]).any(axis=1).all())
        mask = np.zeros((32, 32), bool)
        mask[16:] = True
        edited = mar.edit(model, picture, mask, 8, n=2, num_iter=8, num_sampling_steps=8)
        self.assertEqual(edited.shape, (2, 32, 32, 3))
        top, bottom = (np.abs(edited[0].astype(int) - edited[1])[rows].mean() for rows in (slice(0, 12), slice(20, 32)))
        self.assertLess(2 * top, bottom)

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
        images = mar.generate("demo", [i % 10 for i in range(40)], num_iter=16, num_sampling_steps=50)
        features, logits = judge(images)
        self.assertEqual((features.shape, logits.shape), ((40, judge.size), (40, judge.classes)))
        self.assertGreater(np.mean(logits.argmax(1) == np.arange(40) % 10), 0.6)
        self.assertAlmostEqual(mar.frechet_distance(features, features), 0, places=4)
        far = mar.frechet_distance(features, judge(255 - images)[0])
        self.assertGreater(far, 1)
        self.assertEqual(mar.precision_recall(features, features), (1, 1))
        # two Gaussians whose distance is known: |mean|^2 + sum (s - 1)^2
        x = np.random.default_rng(0).standard_normal((200000, 2))
        self.assertAlmostEqual(mar.frechet_distance(x, x * [2, 3] + [1, 0]), 1 + 1 + 4, places=1)

    def test_errors(self):
        """The library's line and status, or Python's error for a wrong shape or name."""
        session = mar.load("demo").session()
        for call, line in [(lambda: mar.load("no.safetensors"), "no.safetensors: "),
                           (lambda: mar.load("demo", dtype="f64"), "--dtype f64: expected "),
                           (lambda: mar.generate("demo", [10]), "class 10: expected 0..9"),
                           (lambda: mar.generate("demo", [1], num_iter=65), "--num_iter 65: expected 0..64"),
                           (lambda: mar.generate("demo", [1], colour=3), "colour"),
                           (lambda: session.encode(np.zeros((32, 32, 3), np.uint8)), "without its encoder")]:
            with self.assertRaises(mar.MarError) as caught:
                call()
            self.assertIn(line, str(caught.exception))
            self.assertNotIn("\n", str(caught.exception))
        with self.assertRaisesRegex(TypeError, "no option 'thread'"):
            mar.load("demo", thread=2)
        with self.assertRaisesRegex(ValueError, r"tokens: shape \(3,\), expected \(64, 8\)"):
            mar.load("demo").session().submit(1, tokens=[1, 2, 3], known=np.ones(64))
        for call, line in [(lambda: session.encode(np.zeros((32, 32, 3))), "picture: float64, expected uint8"),
                           (session.step, "no request is pending"),
                           (lambda: mar.generate("demo", [1], seed=-1), "seed -1: expected 0")]:
            with self.assertRaisesRegex(ValueError, line):
                call()
        self.assertTrue(any(m.name == "head-spec" and m.exact for m in mar.methods()))

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
                (lambda: mar.generate("demo", [1], seed=2**64), f"seed 18446744073709551616: {uint64}"),
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
                (lambda: model.session(1, **{"cfg\0x": 1}), "name of a parameter: has a NUL, expected text without one"),
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
            with self.assertRaisesRegex(mar.MarError, "--cfg .*expected"):
                model.session(1, cfg=cfg)
        # a number that is 0 in 8 bits keeps its token
        kept = session.submit(np.int64(1), tokens=tokens + 0.5, known=np.arange(64)[::-1] * 256)
        while session.pending:
            session.step()
        np.testing.assert_array_equal(session.take_tokens(kept)[:63], tokens[:63] + 0.5)
        self.assertEqual(session.take(request).shape, (32, 32, 3))

    def test_prompt(self):
        """demo-t2i makes the picture of a prompt that the command makes."""
        features, mask, _ = mar.Text("demo-t5", dtype="f32").encode("a bold seven", 16)
        session = mar.load("demo-t2i", dtype="f32").session(1)
        session.submit(features=features[0], mask=mask[0])
        while not session.finished:
            session.step()
        picture = session.take(session.finished)
        self.assertEqual((picture.shape, picture.dtype), ((32, 32, 3), np.uint8))
        self.assertGreater(picture.std(), 20)

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

    def test_prompts(self):
        """Harmon's images of prompts are the command's. An edit of a prompt keeps the rest of the picture."""
        options = ["--num_iter", "4", "--num_sampling_steps", "4", "--dtype", "f32"]
        params = dict(num_iter=4, num_sampling_steps=4)
        with tempfile.TemporaryDirectory() as out:
            subprocess.run([COMMAND, "generate", "-q", "--model", "demo-harmon", "--prompt", "a bold seven",
                            "--negative", "a thin 2", "--seed", "5", "--out", f"{out}/a.png", *options], check=True)
            expected = read_png(f"{out}/a.png")
        model = mar.load("demo-harmon", encoder=True, dtype="f32")
        picture = mar.generate(model, prompts=["a bold seven"], negative="a thin 2", seed=5, **params)[0]
        np.testing.assert_array_equal(picture, expected)
        mask = np.zeros(picture.shape[:2], bool)
        mask[16:] = True
        edited = mar.edit(model, picture, mask, prompt="a thin 2", n=2, **params)
        other = mar.edit(model, picture, mask, prompt="a thin 2", negative="a bold seven", **params)
        self.assertEqual(edited.shape, (2, 32, 32, 3))
        self.assertTrue((edited[0] != edited[1]).any() and (edited[0] != other[0]).any())
        top, bottom = (np.abs(edited[0].astype(int) - edited[1])[rows].mean() for rows in (slice(0, 12), slice(20, 32)))
        self.assertLess(2 * top, bottom)
        for call, line in [
                (lambda: mar.edit(model, picture, mask), "label and prompt: expected one of them"),
                (lambda: mar.edit(model, picture, mask, 3, prompt="x"), "label and prompt: expected one of them"),
                (lambda: mar.edit(model, picture, mask, 3, negative="x"), "negative: expected a prompt with it"),
                (lambda: mar.generate("demo", prompts=["x"]),
                 "prompt: the model makes images of classes, expected a label")]:
            with self.assertRaisesRegex(ValueError, f"^{line}$"):
                call()
        with self.assertRaisesRegex(mar.MarError, "a T5 has no second context"):
            mar.load("demo-t2i").caption("a bold seven", "blurry")

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
    unittest.main(argv=sys.argv[:1])
