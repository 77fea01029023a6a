"""Golden data for the tests of LlamaGen: small models with random weights, and what LlamaGen's own gpt.py and generate.py
make of them in float32.

    python3 tests/golden/make_llamagen.py LLAMAGEN
        ->  tests/golden/data/llamagen{,_c2i,_c2i20,_t2i}.safetensors

LLAMAGEN is a clone of github.com/FoundationVision/LlamaGen, bare or not."""

import subprocess
import sys
import tempfile
from pathlib import Path

import torch
from safetensors.torch import save_file

HERE = Path(__file__).parent
FILES = ("autoregressive/models/gpt.py", "autoregressive/models/generate.py", "utils/drop_path.py")


def official(repository):
    """The modules gpt and generate."""
    folder = tempfile.mkdtemp()
    for name in FILES:
        path = Path(folder) / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(subprocess.run(["git", "-C", repository, "show", f"HEAD:{name}"], check=True,
                                        capture_output=True).stdout)
    sys.path.insert(0, folder)
    import autoregressive.models.generate as generate
    import autoregressive.models.gpt as gpt
    return gpt, generate


def randomise(model, generator):
    """Nothing stays at an initialisation; all values are exact in the half precision they are stored in."""
    for name, p in model.state_dict().items():
        noise = torch.randn(p.shape, generator=generator)
        if name.endswith("norm.weight"):
            value = 1 + 0.2 * noise
        elif "embedding" in name and "cap_proj" not in name:
            value = noise
        else:
            value = 1.5 * noise / p.shape[-1] ** 0.5
        p.copy_(value.half().float())


def make(gpt, generator, side, **arguments):
    model = gpt.Transformer(gpt.ModelArgs(block_size=side * side, multiple_of=16, **arguments)).eval()
    randomise(model, generator)
    return model


def resized(gpt, model, side):
    """The same weights with another grid: no tensor depends on it."""
    arguments = dict(vars(model.config), block_size=side * side)
    other = gpt.Transformer(gpt.ModelArgs(**arguments)).eval()
    other.load_state_dict(model.state_dict())
    return other


def save(model, name):
    c = model.config
    save_file({k: v.half().contiguous() for k, v in model.state_dict().items()},
              HERE / "data" / f"{name}.safetensors",
              metadata={"mar.heads": str(c.n_head), "mar.seq_len": str(c.block_size),
                        "names": "".join(name + " " for name in model.state_dict())})


@torch.no_grad()
def run(generate, model, condition, tokens, cfg=1.0, interval=-1, masks=None, **sampling):
    """generate.py's generate with these tokens [B][n] in place of the drawn ones; without tokens, greedily. Returns the
    logits that it samples from, the probabilities it draws from, and the tokens."""
    logits, probabilities = [], []
    plain = generate.sample

    def sample(x, **kwargs):
        logits.append(x[:, -1].clone())
        index, p = plain(x.clone(), sample_logits=False, **kwargs)
        probabilities.append(p)
        return (index if tokens is None else tokens[:, len(logits) - 1:len(logits)]), p

    generate.sample = sample
    try:
        n = model.config.block_size
        made = generate.generate(model, condition, n, emb_masks=masks, cfg_scale=cfg, cfg_interval=interval, **sampling)
    finally:
        generate.sample = plain
    logits = torch.stack(logits, 1)
    if tokens is None:  # no tie, so that rounding decides no token
        top = logits.topk(2, -1)[0]
        assert (top[..., 0] - top[..., 1]).min() > 1e-4, "choose another seed"
    return logits, torch.stack(probabilities, 1), made


def main():
    gpt, generate = official(sys.argv[1])
    g = torch.Generator().manual_seed(15)
    out = {}

    def laws(name, *args, **kwargs):
        out[name] = torch.log_softmax(run(generate, *args, **kwargs)[0], -1)

    def greedy(name, *args, **kwargs):
        out[name] = run(generate, *args, None, **kwargs)[2].float()

    def draw(model, n, count=None):
        return torch.randint(model.config.vocab_size, (n, count or model.config.block_size), generator=g)

    model = make(gpt, g, 8, dim=48, n_layer=2, n_head=3, vocab_size=61, num_classes=5)
    save(model, "llamagen_c2i")
    label, tokens = torch.tensor([3, 0]), draw(model, 2)
    out["c2i.label"], out["c2i.tokens"] = label.float(), tokens.float()
    laws("c2i.plain", model, label, tokens)
    laws("c2i.guided", model, label, tokens, cfg=2.5)
    laws("c2i.interval", model, label[:1], tokens[:1], cfg=2.5, interval=9)
    greedy("c2i.greedy", model, label)
    greedy("c2i.greedy_guided", model, label, cfg=2.5)

    # A head size of 3B's kind: 20 numbers are 5 pairs by row and 5 by column. Then the same model with 6 x 6 tokens.
    model = make(gpt, g, 4, dim=40, n_layer=2, n_head=2, vocab_size=73, num_classes=4)
    save(model, "llamagen_c2i20")
    label = torch.tensor([1, 2, 3])
    for name, m in (("c2i20", model), ("c2i20.large", resized(gpt, model, 6))):
        tokens = draw(m, 3)
        out[f"{name}.tokens"] = tokens.float()
        laws(f"{name}.guided", m, label, tokens, cfg=1.7)
        greedy(f"{name}.greedy", m, label, cfg=1.7)
        if m is model:
            out["c2i20.filtered"] = run(generate, m, label, tokens, cfg=1.7, temperature=0.8, top_k=20, top_p=0.9)[1]

    # Captions of three lengths, which end at the image; what is in front of one is masked. And a mask of no such form.
    model = make(gpt, g, 4, dim=32, n_layer=2, n_head=2, vocab_size=50, model_type="t2i", caption_dim=12,
                 cls_token_num=120)
    save(model, "llamagen_t2i")
    masks = torch.stack([(torch.arange(120) >= 120 - n).long() for n in (1, 66, 120)] + [torch.arange(120) % 7 % 2])
    assert masks[3, -1] == 0
    captions = torch.randn(4, 120, 12, generator=g).half().float()
    tokens = draw(model, 4)
    out["t2i.captions"], out["t2i.masks"], out["t2i.tokens"] = captions.half(), masks.half(), tokens.float()
    laws("t2i.plain", model, captions, tokens, masks=masks)
    laws("t2i.guided", model, captions, tokens, cfg=3.0, masks=masks)
    greedy("t2i.greedy", model, captions, cfg=3.0, masks=masks)
    save_file({k: v.contiguous() for k, v in out.items()}, HERE / "data" / "llamagen.safetensors")


if __name__ == "__main__":
    main()
