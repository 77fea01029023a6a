"""Golden data for EAGLE drafters as LANTERN publishes them: small ones with random weights over the models of
make_llamagen.py, and what LANTERN's own cnets_llamagen.py predicts behind a prefix and in a tree, in float32.

    python3 tests/golden/make_lantern.py LLAMAGEN LANTERN
        ->  tests/golden/data/lantern.safetensors, lantern_{c2i,t2i}.bin

LLAMAGEN is a clone of github.com/FoundationVision/LlamaGen, LANTERN one of github.com/jadohu/LANTERN, bare or not. The .bin
files are what torch.save makes of the drafter's state, as pytorch_model.bin is."""

import subprocess
import sys
import tempfile
from pathlib import Path

import torch
from make_llamagen import HERE, official, run
from safetensors.torch import load_file, save_file

FILES = ("models/configs/configs.py", "models/drafters/cnets_llamagen.py", "models/drafters/utils_c.py",
         "models/drafters/choices.py")
TREE = [-1, -1, -1, 0, 0, 2, 3, 5]
LEVELS = [[0, 1, 2], [3, 4, 5], [6, 7]]
CFG = 3.0


def lantern(repository):
    """The modules cnets_llamagen and choices."""
    folder = tempfile.mkdtemp()
    for name in FILES:
        path = Path(folder) / name
        path.parent.mkdir(parents=True, exist_ok=True)
        (path.parent / "__init__.py").touch()
        path.write_bytes(subprocess.run(["git", "-C", repository, "show", f"HEAD:{name}"], check=True,
                                        capture_output=True).stdout)
    sys.path.insert(0, folder)
    import models.drafters.choices as choices
    import models.drafters.cnets_llamagen as cnets
    return cnets, choices


def target_of(gpt, name, **arguments):
    weights = {k: v.float() for k, v in load_file(HERE / f"data/{name}.safetensors").items()}
    model = gpt.Transformer(gpt.ModelArgs(multiple_of=16, **arguments)).eval()
    model.load_state_dict(weights)
    return model


def drafter_for(cnets, target, prefix, bias, generator):
    """A drafter whose values are exact in half precision. fc is small, so that the norm's epsilon counts."""
    c = target.config
    config = cnets.EConfig(vocab_size=c.vocab_size, hidden_size=c.dim, intermediate_size=40, num_hidden_layers=1,
                           num_attention_heads=c.n_head, input_type="t2i" if prefix > 1 else "c2i")
    config.rope_scaling = None  # which later transformers fill in
    model = cnets.Model(config, bias=bias).eval()
    side = int(c.block_size ** 0.5)
    model.freqs_cis = cnets.precompute_freqs_cis_2d(side, c.dim // c.n_head, 10000, prefix - 1)  # of this small grid
    for name, p in model.state_dict().items():
        noise = torch.randn(p.shape, generator=generator)
        value = 1 + 0.2 * noise if "norm" in name else 0.02 * noise if name.startswith("fc") else noise / p.shape[-1] ** 0.5
        p.copy_(value.half().float())
    return model


def features_of(generate, model, condition, tokens, masks, cfg):
    """The results of the target's last norm [branches][prefix + n - 1][D] before the tokens [n] and behind each but the last."""
    seen = []
    hook = model.norm.register_forward_hook(lambda module, inputs, output: seen.append(output.detach()))
    full = torch.cat([tokens, torch.zeros(model.config.block_size - len(tokens), dtype=torch.long)])[None]
    run(generate, model, condition, full, cfg=cfg, masks=masks)
    hook.remove()
    return torch.cat(seen[:len(tokens)], 1)


@torch.no_grad()
def laws(drafter, target, features, tokens, drafts, prefix, cfg):
    """log-softmax of the logits behind the tokens, and behind each draft of TREE, as topK_genrate asks for them."""
    branches = features.shape[0]

    def head(hidden):
        logits = target.output(hidden)
        return (logits[1:] + (logits[:1] - logits[1:]) * cfg if branches == 2 else logits)[0].log_softmax(-1)

    ids = torch.cat([torch.zeros(prefix - 1, dtype=torch.long), tokens])[None].repeat(branches, 1)
    drafter.reset()
    hidden, keys = drafter(features, input_ids=ids, use_cache=True)
    out = [head(hidden[:, -1:])]
    before, mask = hidden[:, -1:].repeat(1, len(LEVELS[0]), 1), torch.eye(len(LEVELS[0]))[None, None]
    for i, level in enumerate(LEVELS):
        drafter.tree_mask = mask
        at = torch.full((len(level),), ids.shape[1] + i, dtype=torch.long)
        hidden, keys = drafter(before, input_ids=drafts[level][None].repeat(branches, 1), past_key_values=keys, position_ids=at,
                               use_cache=True)
        out.append(head(hidden))
        if i + 1 < len(LEVELS):
            parents = [level.index(TREE[n]) for n in LEVELS[i + 1]]
            before = hidden[:, parents]
            mask = torch.cat([mask[:, :, parents], torch.eye(len(parents))[None, None]], 3)
    return torch.cat(out)


def main():
    torch.set_num_threads(1)
    gpt, generate = official(sys.argv[1])
    cnets, choices = lantern(sys.argv[2])
    g = torch.Generator().manual_seed(47)
    golden, out = load_file(HERE / "data/llamagen.safetensors"), {}
    c2i = target_of(gpt, "llamagen_c2i20", block_size=16, dim=40, n_layer=2, n_head=2, vocab_size=73, num_classes=4)
    t2i = target_of(gpt, "llamagen_t2i", block_size=16, dim=32, n_layer=2, n_head=2, vocab_size=50, model_type="t2i",
                    caption_dim=12, cls_token_num=120)
    for name, target, prefix, bias, cfg in (("c2i", c2i, 1, True, 1.0), ("t2i", t2i, 120, False, CFG)):
        drafter = drafter_for(cnets, target, prefix, bias, g)
        torch.save({k: v.half() for k, v in drafter.state_dict().items()}, HERE / f"data/lantern_{name}.bin")
        for image, n in enumerate((1, 6)):
            tokens = torch.randint(target.config.vocab_size, (n,), generator=g)
            drafts = torch.randperm(target.config.vocab_size, generator=g)[:len(TREE)]
            if prefix > 1:
                condition = golden["t2i.captions"][image:image + 1].float()
                features = features_of(generate, target, condition, tokens, golden["t2i.masks"][image:image + 1].float(), cfg)
            else:
                features = features_of(generate, target, torch.tensor([2 - 2 * image]), tokens, None, cfg)
            out[f"{name}.{image}.prefix"], out[f"{name}.{image}.draft"] = tokens.float(), drafts.float()
            out[f"{name}.{image}.laws"] = laws(drafter, target, features, tokens, drafts, prefix, cfg)
    for name in ("mc_sim_7b_63", "mc_sim_7b_63_balanced", "naive_extend_57", "medusa_2_7b_63", "reverse_balanced_25"):
        paths = sorted(getattr(choices, name), key=lambda path: (len(path), path))
        out[f"tree.{name}"] = torch.tensor([paths.index(path[:-1]) if len(path) > 1 else -1 for path in paths]).float()
    save_file({k: v.contiguous() for k, v in out.items()}, HERE / "data/lantern.safetensors")


if __name__ == "__main__":
    main()
