"""Compares CLIP ViT-B/32 of random weights with transformers: embeddings and score of eight pictures and texts.

    python3 bench/clip.py     (needs torch, transformers, Pillow before 13, and the Python module; MAR_LIBRARY names another libmar.so)

The tokenizer is that of tests/golden/data/clip_tiny, whose ids the embedding of 49408 rows has, too.
"""

import json
import shutil
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from transformers import CLIPConfig, CLIPModel, CLIPTokenizer
from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil

ROOT = Path(__file__).parent.parent
sys.path[:0] = [str(ROOT / "python")]

import mar  # noqa: E402

TINY, COUNT = ROOT / "tests/golden/data/clip_tiny", 8


def make_model(folder):
    vocabulary, config = json.loads((TINY / "vocab.json").read_text(encoding="utf-8")), CLIPConfig()
    config.text_config.bos_token_id, config.text_config.eos_token_id = (vocabulary[f"<|{name}oftext|>"] for name in ("start", "end"))
    model = CLIPModel(config).eval()
    with torch.no_grad():
        for name, p in model.named_parameters():
            if p.ndim > 1:
                p.normal_(std=0.3 if "embedding" in name else p[0].numel() ** -0.5)
            elif "norm" not in name and p.ndim == 1:
                p.normal_(std=0.1)
    model.save_pretrained(folder)
    for name in ("vocab.json", "merges.txt"):
        shutil.copy(TINY / name, folder)
    return model


@torch.no_grad()
def reference(model, pictures, texts):
    pixels = CLIPImageProcessorPil()([Image.fromarray(x) for x in pictures], return_tensors="pt")["pixel_values"]
    tokenizer = CLIPTokenizer(str(TINY / "vocab.json"), str(TINY / "merges.txt"))
    ids = [tokenizer(text, truncation=True, max_length=77, return_tensors="pt") for text in texts]
    made = [model.get_image_features(pixel_values=pixels), *[model.get_text_features(**each) for each in ids]]
    made = [getattr(each, "pooler_output", each) for each in made]
    return [(each / each.norm(dim=-1, keepdim=True)).numpy() for each in (made[0], torch.cat(made[1:]))]


def main():
    torch.manual_seed(0)
    random = np.random.RandomState(1)
    pictures = np.stack([np.asarray(Image.fromarray(random.randint(0, 256, (9, 9, 3)).astype(np.uint8)).resize((256, 256)))
                         for _ in range(COUNT)])
    texts = [f"a photo of thing {i} " * (3 * i + 1) for i in range(COUNT)]
    with tempfile.TemporaryDirectory() as folder:
        expected = reference(make_model(folder), pictures, texts)
        clip = mar.Clip(folder, dtype="f32", batch=COUNT)
        got = clip.images(pictures), clip.texts(texts)
    for name, a, b in zip(("images", "texts"), got, expected):
        print(f"{name}: relative error {(np.linalg.norm(a - b, axis=1) / np.linalg.norm(b, axis=1)).max():.2g}")
    print("score: {:.6f}, transformers {:.6f}".format(*(100 * (a * b).sum(1).mean() for a, b in (got, expected))))


main()
