"""Compares HPS v2.1 and ImageReward at their true sizes, with random weights, with their own code: scores of four pictures
and prompts, and the seconds of both.

    python3 bench/scores.py HPSV2 IMAGEREWARD     (as tests/golden/make_scores.py, whose clones these are; the command mar
                                                   in build/release, or MAR; 10 GB of memory and of /tmp)
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from PIL import Image

ROOT = Path(__file__).parent.parent
sys.path[:0] = [str(ROOT / "tests/golden")]

from make_scores import Reward, bert_tokenizer, blip, hps_scores, open_clip  # noqa: E402

MAR = os.environ.get("MAR", str(ROOT / "build/release/mar"))
PROMPTS = ["a corgi in the snow", "It’s a “red” house &amp; a tree", "An astronaut riding a horse, digital art, highly detailed",
           "two cats " * 40]
SIZES = [(256, 256), (384, 512), (701, 402), (224, 224)]  # width, height


def randomise(model):
    generator = torch.Generator().manual_seed(3)
    for name, p in model.state_dict().items():
        if not p.is_floating_point() or p.ndim == 0:
            continue
        noise = torch.randn(p.shape, generator=generator)
        is_scale = p.ndim == 1 and name.endswith(".weight")
        p.copy_((1 + 0.1 * noise if is_scale else 0.05 * noise if p.ndim == 1 else noise / p[0].numel() ** 0.5).half().float())


def write_clip_vocabulary(folder, tokenizer):
    names = {"<start_of_text>": "<|startoftext|>", "<end_of_text>": "<|endoftext|>"}
    vocabulary = {names.get(piece, piece): i for piece, i in tokenizer.encoder.items()}
    (folder / "vocab.json").write_text(json.dumps(vocabulary), encoding="utf-8")
    (folder / "merges.txt").write_text("#version: 0.2\n" + "".join(f"{a} {b}\n" for a, b in tokenizer.bpe_ranks), encoding="utf-8")


def run_mar(folder, option, file, key):
    start = time.time()
    out = subprocess.run([MAR, "eval", option, str(folder / file), "--images", str(folder / "images"), "--prompts",
                          str(folder / "prompts.txt"), "--json", "--threads", "1"], check=True, capture_output=True)
    return json.loads(out.stdout)["numbers"][key], time.time() - start


@torch.no_grad()
def main():
    torch.set_num_threads(1)
    folder = Path(tempfile.mkdtemp())
    random = np.random.RandomState(1)
    (folder / "images").mkdir()
    pictures = [Image.fromarray(random.randint(0, 256, (9, 9, 3)).astype(np.uint8)).resize(size) for size in SIZES]
    for i, picture in enumerate(pictures):
        picture.save(folder / "images" / f"{i}.png")
    (folder / "prompts.txt").write_text("".join(f"{x}\n" for x in PROMPTS), encoding="utf-8")

    modules = open_clip(sys.argv[1])
    model = modules[0].CLIP(1024, dict(image_size=224, patch_size=14, width=1280, head_width=80, layers=32),
                            dict(context_length=77, vocab_size=49408, width=1024, heads=16, layers=24)).eval()
    randomise(model)
    torch.save({"state_dict": {k: v.half() for k, v in model.state_dict().items()}}, folder / "hps.pt")
    write_clip_vocabulary(folder, modules[1]._tokenizer)
    start = time.time()
    expected = hps_scores(modules, model, 224, modules[1].tokenize, PROMPTS, pictures).diagonal().mean().item()
    seconds = time.time() - start
    del model
    got, own = run_mar(folder, "--hps", "hps.pt", "hps_cosine")
    print(f"HPS v2.1: {got:.7f}, hpsv2 {expected:.7f}, difference {abs(got - expected):.2g}; {own:.1f} s with loading, "
          f"PyTorch {seconds:.1f} s without")
    os.remove(folder / "hps.pt")

    pieces = (ROOT / "tests/golden/data/text/words/vocab.txt").read_text(encoding="utf-8").splitlines()
    pieces += [f"[unused{i}]" for i in range(30522 - len(pieces))]
    (folder / "vocab.txt").write_text("".join(x + "\n" for x in pieces), encoding="utf-8")
    med, vit = blip(sys.argv[2])
    reward = Reward(med, vit, dict(img_size=224, patch_size=16, embed_dim=1024, depth=24, num_heads=16),
                    dict(hidden_size=768, num_attention_heads=12, num_hidden_layers=12, intermediate_size=3072,
                         max_position_embeddings=512, layer_norm_eps=1e-12, hidden_act="gelu", hidden_dropout_prob=0.0,
                         attention_probs_dropout_prob=0.0, vocab_size=30524)).eval()
    randomise(reward)
    torch.save({k: v.half() if v.is_floating_point() else v for k, v in reward.state_dict().items()}, folder / "reward.pt")
    tokenizer, start = bert_tokenizer(folder / "vocab.txt"), time.time()
    expected = np.mean([reward.score(tokenizer, text, x).item() for text, x in zip(PROMPTS, pictures)])
    seconds = time.time() - start
    got, own = run_mar(folder, "--imagereward", "reward.pt", "image_reward")
    print(f"ImageReward: {got:.7f}, its code {expected:.7f}, difference {abs(got - expected):.2g}; {own:.1f} s with loading, "
          f"PyTorch {seconds:.1f} s without")


if __name__ == "__main__":
    main()
