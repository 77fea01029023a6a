"""UCI handwritten digits as 32x32 images, and the classifier that judges generated ones.

Data: "Optical Recognition of Handwritten Digits", E. Alpaydin and C. Kaynak, UCI Machine Learning Repository,
CC BY 4.0, as shipped with scikit-learn (`load_digits`: 1797 images of 8x8, 17 grey levels).
"""

import os

import numpy as np
import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn

SIDE = 32
CELL, ROWS = 22, 24  # of three digits in a row: columns of each that are kept, pixels of their height
HELD_OUT = 5  # every fifth image is never trained on


def load_images():
    """images [1797,1,32,32] in [-1,1] (white on black, strokes smoothed and sharpened), labels [1797]."""
    data = load_digits()
    small = torch.from_numpy(data.images).float()[:, None] / 16
    padded = F.pad(small, (1, 1, 1, 1))  # strokes touch the border of the 8x8 image
    large = F.interpolate(padded, size=(SIDE, SIDE), mode="bicubic", align_corners=False)
    sharp = torch.sigmoid((large - 0.45) * 9)
    low, high = torch.sigmoid(torch.tensor([-0.45 * 9, 0.55 * 9]))
    return ((sharp - low) / (high - low)).clamp(0, 1) * 2 - 1, torch.from_numpy(data.target)


def split(images, labels):
    """(train images, train labels, held-out images, held-out labels)"""
    held = torch.arange(len(images)) % HELD_OUT == 0
    return images[~held], labels[~held], images[held], labels[held]


def jitter(images, generator, degrees=6.0, shift=0.04, zoom=0.06):
    """Small random rotation, translation (fraction of half the side) and scale: [B,C,H,W] -> the same."""
    batch = len(images)

    def uniform(limit):
        return (torch.rand(batch, generator=generator) * 2 - 1) * limit
    angle, scale = uniform(degrees * np.pi / 180), 1 + uniform(zoom)
    cos, sin = angle.cos() * scale, angle.sin() * scale
    affine = torch.stack([torch.stack([cos, -sin, uniform(shift)], 1), torch.stack([sin, cos, uniform(shift)], 1)], 1)
    grid = F.affine_grid(affine, list(images.shape), align_corners=False)
    return F.grid_sample(images, grid, mode="bilinear", padding_mode="border", align_corners=False)


def compose(cells):
    """Digits [3B,1,32,32] -> images of three in a row [B,1,32,32], narrower than the digits."""
    margin = (SIDE - CELL) // 2
    strips = cells[..., margin:SIDE - margin].unflatten(0, (-1, 3)).permute(0, 2, 3, 1, 4).flatten(3)
    strips = F.interpolate(strips, (ROWS, SIDE), mode="bicubic", antialias=True, align_corners=False).clamp(-1, 1)
    return F.pad(strips, (0, 0, (SIDE - ROWS) // 2, (SIDE - ROWS) // 2), value=-1.0)


def separate(images):
    """The inverse of compose, but for what scaling loses: [B,1,32,32] -> [3B,1,32,32]."""
    margin, edge = (SIDE - CELL) // 2, (SIDE - ROWS) // 2
    strips = F.interpolate(images[:, :, edge:SIDE - edge], (SIDE, 3 * CELL), mode="bicubic", align_corners=False).clamp(-1, 1)
    cells = strips.unflatten(3, (3, CELL)).permute(0, 3, 1, 2, 4).flatten(0, 1)
    return F.pad(cells, (margin, margin), value=-1.0)


def draw_mixed(images, count, generator):
    """`count` jittered images, a third of them of one digit, the others of three."""
    cells = jitter(images[torch.randint(len(images), (count // 3 * 7,), generator=generator)], generator, 8, 0.06, 0.1)
    return torch.cat([cells[:count // 3], compose(cells[count // 3:])])


class Classifier(nn.Module):
    """[B,1,32,32] -> logits [B,10]; `features` gives the 64 numbers before the last ReLU and layer."""

    def __init__(self):
        super().__init__()
        layers, inputs = [], 1
        for outputs in (16, 32, 64):
            layers += [nn.Conv2d(inputs, outputs, 3, padding=1), nn.BatchNorm2d(outputs), nn.ReLU(), nn.MaxPool2d(2)]
            inputs = outputs
        self.body = nn.Sequential(*layers, nn.Flatten(), nn.Dropout(0.3), nn.Linear(64 * 16, 64))
        self.out = nn.Linear(64, 10)

    def features(self, images):
        return self.body(images)

    def forward(self, images):
        return self.out(F.relu(self.body(images)))


def train_classifier(seed=0, epochs=12):
    """A classifier trained on four fifths of the digits, and its accuracy on the rest. About ten seconds."""
    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(seed)
    x, y, x_held, y_held = split(*load_images())
    model, batch = Classifier(), 64
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.05)
    steps = epochs * (len(x) // batch)
    decay = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    for step in range(steps):
        rows = torch.randint(len(x), (batch,), generator=generator)
        loss = F.cross_entropy(model(jitter(x[rows], generator, 10, 0.08, 0.1)), y[rows], label_smoothing=0.05)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        decay.step()
    model.eval()
    with torch.no_grad():
        accuracy = (model(x_held).argmax(1) == y_held).float().mean().item()
    return model, accuracy


def load_classifier(work):
    """A trained classifier and its accuracy on held-out digits; trained once a work folder."""
    path = os.path.join(work, "classifier.pt")
    if not os.path.exists(path):
        with torch.enable_grad():
            model, accuracy = train_classifier()
        torch.save((model.state_dict(), accuracy), path)
    state, accuracy = torch.load(path)
    model = Classifier()
    model.load_state_dict(state)
    return model.eval(), accuracy


@torch.no_grad()
def judge_autoencoder(through, work, log):
    """Logs how many digits that it was not trained on are recognised in what `through` makes of images [B,3,32,32]: what comes
    of them after encoding, with the tokens' noise, and decoding."""
    classifier, _ = load_classifier(work)
    _, _, held, labels = split(*load_images())
    for name, images, back in (("one digit", held, lambda x: x), ("three digits", compose(held), separate)):
        decoded = through(images.expand(-1, 3, -1, -1)).mean(1, keepdim=True).clamp(-1, 1)
        right = [(classifier(back(x)).argmax(1) == labels).float().mean().item() for x in (images, decoded)]
        log(f"vae {name}: held-out mse {F.mse_loss(decoded, images):.5f}, recognised {right[1]:.4f} (real {right[0]:.4f})")
        save_grid(os.path.join(work, f"vae_{name[:3]}.png"), torch.cat([images[:40], decoded[:40]]), 20)


def folded(model):
    """The classifier's tensors with every batch norm folded into its convolution: what eval/classifier.c reads."""
    tensors = {}
    layers = [(model.body[i], model.body[i + 1]) for i in range(0, 12, 4)]
    for i, (conv, norm) in enumerate(layers):
        gain = norm.weight / (norm.running_var + norm.eps).sqrt()
        tensors[f"conv{i}.weight"] = conv.weight * gain[:, None, None, None]
        tensors[f"conv{i}.bias"] = (conv.bias - norm.running_mean) * gain + norm.bias
    for name, linear in (("features", model.body[14]), ("out", model.out)):
        tensors[f"{name}.weight"], tensors[f"{name}.bias"] = linear.weight, linear.bias
    return tensors


def frechet(a, b):
    """Fréchet distance of two feature sets [N,D] under a Gaussian fit."""
    from scipy.linalg import sqrtm
    a, b = a.double().numpy(), b.double().numpy()
    cov_a, cov_b = np.cov(a, rowvar=False), np.cov(b, rowvar=False)
    root = sqrtm(cov_a @ cov_b).real
    return float(((a.mean(0) - b.mean(0)) ** 2).sum() + np.trace(cov_a + cov_b - 2 * root))


@torch.no_grad()
def judge(classifier, images, labels):
    """Accuracy of the classifier on images [B,1 or 3,32,32], their Fréchet distance to the real ones, and the nearest
    real image's mean distance (small means copied)."""
    grey = images.mean(dim=1, keepdim=True).clamp(-1, 1)
    real, _ = load_images()
    accuracy = (classifier(grey).argmax(1) == labels).float().mean().item()
    distance = frechet(classifier.features(grey), classifier.features(real))
    nearest = torch.cdist(grey.flatten(1), real.flatten(1)).amin(1).mean().item()
    return {"accuracy": accuracy, "frechet": distance, "nearest": nearest}


def save_grid(path, images, columns):
    """images [B,1 or 3,H,W] in [-1,1] -> one PNG, with a pixel between images."""
    from PIL import Image
    pixels = ((images.clamp(-1, 1) + 1) * 127.5).round().byte().expand(-1, 3, -1, -1)
    pixels = F.pad(pixels, (0, 1, 0, 1), value=64)
    rows = [torch.cat(list(pixels[i:i + columns]), dim=2) for i in range(0, len(pixels) - columns + 1, columns)]
    Image.fromarray(torch.cat(rows, dim=1).permute(1, 2, 0).numpy()).save(path)
