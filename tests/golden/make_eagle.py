"""Golden data for the tests of EAGLE drafters: small ones with random weights over tests/golden/data/llamagen_c2i20.safetensors,
and the laws that PyTorch makes of chains and trees of drafts, each path computed whole.

    python3 tests/golden/make_eagle.py    ->  tests/golden/data/eagle{,_plain,_official}.safetensors

eagle_plain is a drafter as demo/train_eagle.py writes it; eagle_official has what EAGLE's own cnets.py has: a bias in fc, and
no norm in front of its layer's attention."""

import sys
from pathlib import Path

import torch
from torch import nn

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "reference"))

from pymar import Eagle, load_gpt, read_safetensors, write_safetensors  # noqa: E402
from pymar.gpt import filter_logits  # noqa: E402

HIDDEN = 56
PLAIN = {"cfg": 1.0, "interval": -1, "temperature": 1.0, "top_k": 0, "top_p": 1.0}
GUIDED = {"cfg": 1.7, "interval": 5, "temperature": 0.8, "top_k": 30, "top_p": 0.95}
# An image's rounds: accepted drafts of the last round's path (their numbers), the number of other tokens, then a tree.
CHAIN, TREE = [-1, 0, 1], [-1, -1, 0, 0, 1, 4, 2]
ROUNDS = [([], 0, CHAIN), ([0, 1], 1, CHAIN), ([], 1, TREE), ([1, 4], 1, TREE), ([0, 2, 6], 1, CHAIN), ([0], 3, [-1, -1]), ([], 1, [])]


def build(target, generator, official):
    """A drafter whose values are exact in the half precision they are stored in."""
    eagle = Eagle(target.config).eval()
    d = target.config.width
    eagle.fc = nn.Linear(2 * d, d, bias=official)
    block = eagle.layers[0]
    for name, shape in (("w1", (HIDDEN, d)), ("w3", (HIDDEN, d)), ("w2", (d, HIDDEN))):
        setattr(block.feed_forward, name, nn.Linear(shape[1], shape[0], bias=False))
    if official:
        block.attention_norm = nn.Identity()
    for name, p in eagle.state_dict().items():
        noise = torch.randn(p.shape, generator=generator)
        value = 1 + 0.2 * noise if "norm" in name else noise / p.shape[-1] ** 0.5 if p.dim() == 2 else 0.3 * noise
        p.copy_(value.half().float())
    write_safetensors(HERE / f"data/eagle_{'official' if official else 'plain'}.safetensors",
                      {f"eagle.{name}": p.half() for name, p in eagle.state_dict().items()},
                      {"mar.kind": "eagle", "mar.heads": target.config.heads})
    return eagle


def predicted(target, eagle, label, prefix, path):
    """The feature of the last token of prefix and path, [W]: the target's are those of the prefix but its last token."""
    label = torch.tensor([label])
    known = target.features(label, torch.tensor([prefix[:-1]], dtype=torch.long))
    if not prefix:  # those of the class; the drafter adds its own behind them
        known = target.features(label, torch.zeros(1, 0, dtype=torch.long))
    features = known[0]
    tokens = prefix + path
    for n in range(len(prefix), len(tokens) + 1):
        if n == 0:
            continue
        out, _ = eagle(target.tok_embeddings(torch.tensor([tokens[:n]])), features[None, :n])
        features = torch.cat([features[:n], out[0, -1:]])
    return features[-1]


def law(target, eagle, label, prefix, path, s):
    conditional = target.output(predicted(target, eagle, label, prefix, path))
    index = len(prefix) + len(path) - 1  # the decode step of the token that follows
    if s["cfg"] > 1 and not -1 < s["interval"] < index:
        without = target.output(predicted(target, eagle, target.config.classes, prefix, path))
        conditional = without + (conditional - without) * s["cfg"]
    return filter_logits(conditional[None] / s["temperature"], s["top_k"], s["top_p"]).softmax(-1)[0]


def path_to(parents, drafts, n):
    path = []
    while n >= 0:
        path.insert(0, drafts[n])
        n = parents[n]
    return path


@torch.no_grad()
def main():
    torch.set_num_threads(1)
    g = torch.Generator().manual_seed(31)
    target = load_gpt(HERE / "data/llamagen_c2i20.safetensors")
    vocabulary, out = target.config.vocabulary, {}
    golden, _ = read_safetensors(HERE / "data/llamagen.safetensors")
    tokens, labels = golden["c2i20.tokens"].long(), torch.tensor([1, 2, 3])
    both = target(torch.cat([labels, torch.full((3,), target.config.classes)]), torch.cat([tokens, tokens])[:, :-1])
    logits = both[3:] + (both[:3] - both[3:]) * 1.7
    error = (logits.log_softmax(-1) - golden["c2i20.guided"]).norm() / golden["c2i20.guided"].norm()
    print(f"the target against gpt.py: {error:.2g}")
    assert error < 1e-5
    for name, settings in (("plain", PLAIN), ("official", GUIDED)):
        eagle = build(target, g, name == "official")
        for image, label in enumerate((2, 0)):
            prefix, drafts, parents = [], [], []
            for i, (accepted, others, tree) in enumerate(ROUNDS):
                prefix += [drafts[a] for a in accepted] + torch.randint(vocabulary, (others,), generator=g).tolist()
                parents, drafts = tree, torch.randperm(vocabulary, generator=g)[:len(tree)].tolist()
                laws = [law(target, eagle, label, prefix, path_to(parents, drafts, n), settings) for n in range(-1, len(tree))]
                key = f"{name}.{image}.{i}"
                out[f"{key}.prefix"] = torch.tensor([len(prefix)] + prefix).float()
                out[f"{key}.draft"] = torch.tensor([len(tree)] + drafts).float()
                out[f"{key}.parent"] = torch.tensor([len(tree)] + parents).float()
                out[f"{key}.laws"] = torch.stack(laws)
            print(name, label, len(prefix), "tokens; the law's largest probability", torch.stack(laws).max().item())
    write_safetensors(HERE / "data/eagle.safetensors", out, {})


if __name__ == "__main__":
    main()
