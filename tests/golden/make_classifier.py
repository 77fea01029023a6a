"""Golden data for eval/classifier.c: real digits and images of the demo as bytes, and PyTorch's logits of the classifier that
ships.  python3 tests/golden/make_classifier.py  ->  tests/golden/data/classifier.safetensors"""

import sys
from pathlib import Path

import torch
import torch.nn.functional as F

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
sys.path[:0] = [str(ROOT / "tests/reference"), str(ROOT / "demo")]

import digits  # noqa: E402
from pymar.io import read_safetensors, write_safetensors  # noqa: E402


def classify(weights, rgb):
    """rgb uint8 [B,32,32,3] -> features [B,64] before the last ReLU, logits [B,10]"""
    x = (rgb.float().mean(3) / 127.5 - 1)[:, None]
    for i in range(3):
        x = F.max_pool2d(F.relu(F.conv2d(x, weights[f"conv{i}.weight"], weights[f"conv{i}.bias"], padding=1)), 2)
    x = F.linear(x.flatten(1), weights["features.weight"], weights["features.bias"])
    return x, F.linear(F.relu(x), weights["out.weight"], weights["out.bias"])


@torch.no_grad()
def main():
    weights, _ = read_safetensors(ROOT / "weights/demo/classifier.safetensors")
    images, labels = digits.load_images()
    real = ((images + 1) * 127.5).round().byte().expand(-1, 3, -1, -1).permute(0, 2, 3, 1)
    held = torch.arange(len(images)) % digits.HELD_OUT == 0
    right = (classify(weights, real[held])[1].argmax(1) == labels[held]).float().mean().item()
    print(f"held-out real digits recognised: {right:.4f}")

    demo, _ = read_safetensors(HERE / "data/demo.safetensors")
    made = ((demo["pixels"].clamp(-1, 1) + 1) * 127.5).round().byte()
    rgb = torch.cat([real[:5], made])
    features, logits = classify(weights, rgb)
    write_safetensors(HERE / "data/classifier.safetensors", {"rgb": rgb, "features": features, "logits": logits},
                      {"made_by": "tests/golden/make_classifier.py"})


if __name__ == "__main__":
    main()
