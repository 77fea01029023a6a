"""Golden data for the laws of discrete tokens: LlamaGen's own guidance and `sample` (autoregressive/models/generate.py)
on random logits, some of which are equal.
python3 tests/golden/make_sampling.py LLAMAGEN_CHECKOUT  ->  tests/golden/data/sampling.safetensors
https://github.com/FoundationVision/LlamaGen"""

import sys
from pathlib import Path

import torch

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
sys.path[:0] = [str(ROOT / "tests/reference"), str(HERE)]

from pymar.io import write_safetensors  # noqa: E402

ROWS, SIZE = 6, 331
# cfg, temperature, top_k, top_p: tests/ops/test_discrete.c has the same table
SETTINGS = [(1, 1, 0, 1), (4, 1, 0, 1), (4, 1, 50, 1), (1.5, 0.7, 0, 0.9), (2, 1.3, 40, 0.8), (1, 1e-7, 0, 1),
            (4, 1, 0, 0.001), (1, 1, 1000, 1), (1, 1, 7, 1), (7.5, 0.5, 1, 1), (1, 2, 0, 0.999)]


@torch.no_grad()
def main():
    sys.path.insert(0, sys.argv[1])
    from autoregressive.models.generate import sample
    torch.manual_seed(5)
    logits = 1.3 * torch.randn(2, ROWS, SIZE)
    logits[:, 0] = logits[:, 0].round()  # many equal ones, also at the k-th place
    logits[:, 1] *= 4
    tensors = {"logits": logits}
    for i, (cfg, temperature, top_k, top_p) in enumerate(SETTINGS):
        both = logits[0]
        if cfg > 1:
            both = logits[1] + (logits[0] - logits[1]) * cfg
        first = 1 if top_p < 1 else 0  # PyTorch sorts equal logits in no order that it states
        both = both[first:, None].clone()
        _, probs = sample(both, temperature=temperature, top_k=top_k, top_p=top_p)
        greedy, _ = sample(both, temperature=1.0, top_k=0, top_p=1.0, sample_logits=False)
        tensors[f"probs_{i}"] = torch.cat([torch.zeros(first, SIZE), probs])
        tensors[f"greedy_{i}"] = torch.cat([torch.zeros(first), greedy[:, 0]])
        print(i, (probs > 0).sum(-1).tolist())
    write_safetensors(HERE / "data/sampling.safetensors", {name: tensor.float() for name, tensor in tensors.items()},
                      {"made_by": "tests/golden/make_sampling.py"})


if __name__ == "__main__":
    main()
