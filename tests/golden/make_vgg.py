"""Golden data for VGG16's features, with torchvision's layers and names, narrow and with random weights.

    python3 tests/golden/make_vgg.py    ->  tests/golden/data/vgg_tiny.pth, vgg.safetensors     (needs Pillow before 13)

vgg.safetensors has pictures of several sizes and their features: torchvision's transforms Resize([224, 224]), ToTensor and Normalize on
PIL images, then vgg16.classifier[:4], as LANTERN's entrypoints/eval_prec_recall.py has it.
"""

import sys
from pathlib import Path

import numpy as np
import PIL
import torch
from PIL import Image
from torch import nn

ROOT = Path(__file__).parent.parent.parent
sys.path[:0] = [str(ROOT / "tests/reference")]

from pymar.io import write_safetensors  # noqa: E402

LAYERS = [4, 5, "M", 6, 7, "M", 8, 8, 9, "M", 9, 8, 8, "M", 8, 9, 7, "M"]  # 64, 64, "M", 128, ... in VGG16
HIDDEN, FEATURES, CLASSES = 12, 10, 3
SIZES = [(23, 37), (61, 40), (224, 224)]  # height, width
MEAN, DEVIATION = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]


class Vgg(nn.Module):
    """torchvision.models.vgg16 of other widths."""

    def __init__(self):
        super().__init__()
        layers, channels = [], 3
        for layer in LAYERS:
            if layer == "M":
                layers.append(nn.MaxPool2d(2, 2))
            else:
                layers += [nn.Conv2d(channels, layer, 3, padding=1), nn.ReLU(True)]
                channels = layer
        self.features = nn.Sequential(*layers)
        self.avgpool = nn.AdaptiveAvgPool2d((7, 7))
        self.classifier = nn.Sequential(nn.Linear(channels * 49, HIDDEN), nn.ReLU(True), nn.Dropout(), nn.Linear(HIDDEN, FEATURES),
                                        nn.ReLU(True), nn.Dropout(), nn.Linear(FEATURES, CLASSES))

    def forward(self, x):
        return self.classifier[:4](self.avgpool(self.features(x)).flatten(1))


def pixels(picture):
    x = torch.from_numpy(np.asarray(picture.resize((224, 224), Image.BILINEAR)).copy()).permute(2, 0, 1).float() / 255
    return (x - torch.tensor(MEAN)[:, None, None]) / torch.tensor(DEVIATION)[:, None, None]


def main():
    assert int(PIL.__version__.split(".")[0]) < 13, PIL.__version__
    torch.set_num_threads(1)
    torch.manual_seed(16)
    model = Vgg().eval()
    with torch.no_grad():
        for layer in model.modules():
            if isinstance(layer, (nn.Conv2d, nn.Linear)):
                nn.init.kaiming_normal_(layer.weight)
                nn.init.normal_(layer.bias, std=0.3)
        torch.save(model.state_dict(), ROOT / "tests/golden/data/vgg_tiny.pth")
        random, tensors = np.random.RandomState(16), {}
        for n, (height, width) in enumerate(SIZES):
            grey = random.randint(0, 256, (height // 4 + 1, width // 4 + 1, 3)).astype(np.uint8)
            picture = Image.fromarray(grey).resize((width, height), Image.NEAREST)
            tensors[f"{n}.picture"] = torch.from_numpy(np.asarray(picture).astype(np.float16))
            tensors[f"{n}.features"] = model(pixels(picture)[None])[0]
        del tensors["2.picture"]  # the constant 77
        grey = Image.new("RGB", (224, 224), (77, 77, 77))
        tensors["2.features"] = model(pixels(grey)[None])[0]
    write_safetensors(ROOT / "tests/golden/data/vgg.safetensors", tensors, {})


main()
