"""Golden data for CLIP: a small one in a folder as transformers writes it, random weights, and its embeddings.

    python3 tests/golden/make_clip.py    ->  tests/golden/data/clip_tiny/, clip.safetensors     (needs transformers, Pillow before 13)

clip.safetensors has pictures of several sizes, and the embeddings of these and of the texts in tests/support/clip.h, with
their tokens, from CLIPModel, CLIPImageProcessorPil and CLIPTokenizer.
"""

import collections
import json
import sys
from pathlib import Path

import numpy as np
import PIL
import torch
from PIL import Image
from transformers import CLIPConfig, CLIPModel, CLIPTokenizer
from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil

ROOT = Path(__file__).parent.parent.parent
sys.path[:0] = [str(ROOT / "tests/reference")]

from pymar.io import write_safetensors  # noqa: E402

FOLDER = ROOT / "tests/golden/data/clip_tiny"
SIZES = [(40, 32), (33, 61), (32, 32), (17, 90)]  # height, width
TEXTS = ["a cat", "A photo depicts  the cat on the mat!", "", "\u00dcber \U0001f600 caf\u00e9 \u6f22 1234",
         "the cat sat on the mat and the hat, " * 8]
MERGES = 40


def bytes_to_letters():
    kept = [*range(33, 127), *range(161, 173), *range(174, 256)]
    letters = {b: chr(b) for b in kept}
    for b in range(256):
        letters.setdefault(b, chr(256 + len(letters) - len(kept)))
    return [letters[b] for b in kept] + [letters[b] for b in range(256) if b not in kept]


def learn_merges():
    words = [tuple(w[:-1]) + (w[-1] + "</w>",) for w in (" ".join(TEXTS[:2]) + TEXTS[4]).lower().replace(",", "").split()]
    merges = []
    while len(merges) < MERGES:
        pairs = collections.Counter(p for w in words for p in zip(w, w[1:]))
        if not pairs:
            break
        a, b = max(pairs, key=lambda p: (pairs[p], p))
        merges.append((a, b))
        for i, w in enumerate(words):
            made, k = [], 0
            while k < len(w):
                both = k + 1 < len(w) and (w[k], w[k + 1]) == (a, b)
                made.append(a + b if both else w[k])
                k += 2 if both else 1
            words[i] = tuple(made)
    return merges


def write_tokenizer():
    letters, merges = bytes_to_letters(), learn_merges()
    names = letters + [x + "</w>" for x in letters] + [a + b for a, b in merges] + ["<|startoftext|>", "<|endoftext|>"]
    vocabulary = {name: i for i, name in enumerate(names)}
    FOLDER.mkdir(exist_ok=True)
    (FOLDER / "vocab.json").write_text(json.dumps(vocabulary, ensure_ascii=False) + "\n", encoding="utf-8")
    (FOLDER / "merges.txt").write_text("#version: 0.2\n" + "".join(f"{a} {b}\n" for a, b in merges), encoding="utf-8")
    return vocabulary, merges


def make_model(vocabulary):
    text = dict(vocab_size=len(vocabulary) + 3, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=2,
                max_position_embeddings=20, projection_dim=24, hidden_act="quick_gelu", bos_token_id=vocabulary["<|startoftext|>"],
                eos_token_id=vocabulary["<|endoftext|>"], pad_token_id=vocabulary["<|endoftext|>"])
    image = dict(hidden_size=48, intermediate_size=64, num_hidden_layers=2, num_attention_heads=3, image_size=32, patch_size=8,
                 projection_dim=24, hidden_act="gelu", layer_norm_eps=1e-5)
    model = CLIPModel(CLIPConfig(text_config=text, vision_config=image, projection_dim=24)).eval()
    with torch.no_grad():
        for name, p in model.named_parameters():
            if "norm" in name or "layrnorm" in name:
                p.copy_(torch.randn_like(p) * 0.2 + (1 if name.endswith("weight") else 0))
            elif p.ndim > 1:
                p.normal_(std=1 if "embedding.weight" in name and "patch" not in name else 1.5 / p[0].numel() ** 0.5)
            elif p.ndim == 1:
                p.normal_(std=0.5)
    return model


def main():
    assert int(PIL.__version__.split(".")[0]) < 13, PIL.__version__
    torch.set_num_threads(1)
    torch.manual_seed(32)
    vocabulary, _ = write_tokenizer()
    model = make_model(vocabulary)
    model.save_pretrained(FOLDER)
    (FOLDER / "model.safetensors").chmod(0o644)
    processor = CLIPImageProcessorPil(size={"shortest_edge": 32}, crop_size={"height": 32, "width": 32})
    processor.save_pretrained(FOLDER)
    tokenizer = CLIPTokenizer(str(FOLDER / "vocab.json"), str(FOLDER / "merges.txt"))
    random, tensors, pictures = np.random.RandomState(32), {}, []
    for n, (height, width) in enumerate(SIZES):
        grey = random.randint(0, 256, (height // 4 + 1, width // 4 + 1, 3)).astype(np.uint8)
        pictures.append(Image.fromarray(grey).resize((width, height), Image.NEAREST))
        tensors[f"{n}.picture"] = torch.from_numpy(np.asarray(pictures[n]).astype(np.float16))
    with torch.no_grad():
        made = model.get_image_features(pixel_values=processor(pictures, return_tensors="pt")["pixel_values"])
        tensors["images"] = getattr(made, "pooler_output", made)
        rows, tokens = [], []
        for text in TEXTS:
            ids = tokenizer(text, truncation=True, max_length=20, return_tensors="pt")
            row = model.get_text_features(**ids)
            rows.append(getattr(row, "pooler_output", row)[0])
            tokens.append(ids["input_ids"][0].float())
        tensors["texts"] = torch.stack(rows)
        tensors["ids"] = torch.cat(tokens)
        tensors["lengths"] = torch.tensor([float(len(t)) for t in tokens])
    for name in ("images", "texts"):
        tensors[name] = tensors[name] / tensors[name].norm(dim=-1, keepdim=True)
    write_safetensors(ROOT / "tests/golden/data/clip.safetensors", tensors, {})


main()
