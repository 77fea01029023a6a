"""Golden data for EAGLE drafters as LANTERN publishes them: small ones with random weights, and what LANTERN's own code
predicts behind a prefix and in a tree, in float32. Those of cnets_llamagen.py are over the models of make_llamagen.py,
those of cnets_anole.py and cnets_lumina_mgpt.py over small Chameleons of transformers, which are written, too.

    python3 tests/golden/make_lantern.py LLAMAGEN LANTERN
        ->  tests/golden/data/lantern.safetensors, lantern_{c2i,t2i,anole}.bin, lantern_lumina.safetensors,
            {anole,lumina}.safetensors

LLAMAGEN is a clone of github.com/FoundationVision/LlamaGen, LANTERN one of github.com/jadohu/LANTERN, bare or not. The .bin
files are what torch.save makes of the drafter's state, as pytorch_model.bin is."""

import subprocess
import sys
import tempfile
from pathlib import Path

import torch
from make_llamagen import HERE, official, run
from safetensors.torch import load_file, save_file

FILES = ("models/configs/configs.py", "models/configs/configuration_anole.py", "models/configs/configuration_lumina_mgpt.py",
         "models/drafters/cnets_llamagen.py", "models/drafters/cnets_anole.py", "models/drafters/cnets_lumina_mgpt.py",
         "models/drafters/utils_c.py", "models/drafters/choices.py")
TREE = [-1, -1, -1, 0, 0, 2, 3, 5]
LEVELS = [[0, 1, 2], [3, 4, 5], [6, 7]]
CFG = 3.0
WIDTH, HIDDEN, HEADS, IDS = 16, 20, 2, 22
IMAGE_IDS = [7, 20, 3, 12, 9, 4, 21, 16, 5, 19, 8, 13, 6, 17, 10, 14]  # by number in the codebook
LINE_END, COLUMNS, IMAGE_TOKENS = 11, 4, 16


def lantern(repository):
    """The modules cnets_llamagen, choices, cnets_anole and cnets_lumina_mgpt."""
    folder = tempfile.mkdtemp()
    for name in FILES:
        path = Path(folder) / name
        path.parent.mkdir(parents=True, exist_ok=True)
        (path.parent / "__init__.py").touch()
        path.write_bytes(subprocess.run(["git", "-C", repository, "show", f"HEAD:{name}"], check=True,
                                        capture_output=True).stdout)
    sys.path.insert(0, folder)
    import models.drafters.choices as choices
    import models.drafters.cnets_anole as anole
    import models.drafters.cnets_llamagen as cnets
    import models.drafters.cnets_lumina_mgpt as lumina
    return cnets, choices, anole, lumina


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


def randomise_chameleon(model, shared_norms, generator):
    """Values that are exact in half precision, as those of drafter_for. Lumina-mGPT's norms of q and k have one row for all
    heads."""
    for name, p in model.state_dict().items():
        noise = torch.randn(p.shape, generator=generator)
        scale = 0.02 if name.startswith("fc") else 0.5 if "embed" in name else (0.4 if "lm_head" in name else 1.5) / p.shape[-1] ** 0.5
        value = 0.3 * noise if name.endswith("bias") else 1 + 0.3 * noise if "norm" in name else scale * noise
        if shared_norms and ("q_norm" in name or "k_norm" in name):
            value = value[:1].expand_as(value)
        p.copy_(value.half().float())


def chameleon(family, generator):
    """A small target, written as mar_convert writes one."""
    from transformers import ChameleonConfig, ChameleonForConditionalGeneration
    vq = dict(base_channels=32, channel_multiplier=[1], num_res_blocks=1, latent_channels=32, embed_dim=32, num_embeddings=16)
    config = ChameleonConfig(vocab_size=IDS, hidden_size=WIDTH, intermediate_size=HIDDEN, num_hidden_layers=1, vq_config=vq,
                             num_attention_heads=HEADS, num_key_value_heads=HEADS, rms_norm_eps=1e-5, pad_token_id=None,
                             vocabulary_map={"<image>": 2}, attn_implementation="eager")
    model = ChameleonForConditionalGeneration(config).eval()
    lumina = family == "lumina-mgpt"
    randomise_chameleon(model, lumina, generator)
    weights = {k: v.half() for k, v in model.state_dict().items() if "vqmodel" not in k}
    if lumina:
        weights = {k: v[:1].clone() if "q_norm" in k or "k_norm" in k else v for k, v in weights.items()}
    metadata = {"mar.family": family, "mar.image_tokens": ",".join(map(str, IMAGE_IDS)), "mar.heads": str(HEADS), "mar.eps": "1e-5",
                "mar.rope_base": "10000"}
    metadata |= {"mar.line_end": str(LINE_END), "mar.image_size": "64x64", "mar.context": "36"} if lumina else \
        {"mar.image_size": "512x512", "mar.context": "1040"}
    save_file(weights, HERE / f"data/{'lumina' if lumina else 'anole'}.safetensors", metadata)
    return model


def chameleon_drafter(module, target, bias, generator):
    config = module.EConfig(vocab_size=IDS, hidden_size=WIDTH, intermediate_size=HIDDEN, num_hidden_layers=1,
                            num_attention_heads=HEADS, num_key_value_heads=HEADS, rms_norm_eps=1e-5, attention_bias=False,
                            attention_dropout=0.0, mlp_bias=False, model_parallel_size=1, dropout=0.05,
                            attn_implementation="eager")
    config.rope_scaling, config.rope_theta = None, 10000.0  # which later transformers change
    model = module.Model(config, bias=bias).eval()
    randomise_chameleon(model, False, generator)
    model.embed_tokens.weight.copy_(target.model.embed_tokens.weight)
    return model


def with_line_ends(tokens, drafts):
    """The ids behind a prompt, and nodes (id, parent, draft): TREE's drafts and the line ends behind rows. The line end behind
    the last token is a node, since the target has no feature of that token yet."""
    ids, nodes, depth = [], [], {-1: 0}
    for i, token in enumerate(tokens):
        ids.append(IMAGE_IDS[token])
        ends = (i + 1) % COLUMNS == 0 and i + 1 < IMAGE_TOKENS
        if ends and i + 1 < len(tokens):
            ids.append(LINE_END)
        elif ends:
            nodes.append((LINE_END, -1, -1))
    last = {-1: 0 if nodes else -1}  # by draft: the node with its distribution
    for n, (token, parent) in enumerate(zip(drafts, TREE)):
        depth[n] = depth[parent] + 1
        nodes.append((IMAGE_IDS[token], last[parent], n))
        place = len(tokens) + depth[n]
        if place % COLUMNS == 0 and place < IMAGE_TOKENS:
            nodes.append((LINE_END, len(nodes) - 1, n))
        last[n] = len(nodes) - 1
    return ids, nodes, last


@torch.no_grad()
def chameleon_laws(drafter, target, prompts, tokens, drafts, line_ends):
    """log-softmax over the image tokens behind the tokens and behind each draft of TREE. As topK_generate calls the drafter:
    both branches of guidance at once, the shorter prompt padded on the left, the tree level by level."""
    if line_ends:
        ids, nodes, last = with_line_ends(tokens, drafts)
    else:
        ids, nodes = [IMAGE_IDS[t] for t in tokens], [(IMAGE_IDS[t], p, n) for n, (t, p) in enumerate(zip(drafts, TREE))]
        last = {n: n for n in range(-1, len(TREE))}
    length = len(prompts[0]) + len(ids)
    features, rows = torch.zeros(2, length - 1, WIDTH), torch.ones(2, length, dtype=torch.long)
    mask = torch.zeros(2, len(prompts[0]), dtype=torch.bool)
    for branch, prompt in enumerate(prompts):
        both = torch.tensor(prompt + ids)
        hidden = target.model(input_ids=both[None, :-1]).last_hidden_state[0]
        features[branch, -len(hidden):], rows[branch, -len(both):] = hidden, both
        mask[branch, -len(prompt):] = True
    places = torch.nn.functional.pad(mask, (0, len(ids) - 1), value=True).cumsum(-1) - 1

    def head(hidden):
        logits = target.lm_head(hidden)[..., IMAGE_IDS]
        return (logits[1] + (logits[0] - logits[1]) * CFG).log_softmax(-1)

    drafter.reset()
    hidden, keys = drafter(features, input_ids=rows[:, 1:], attention_mask=mask, position_ids=places.clamp(0), use_cache=True)
    feature, laws, seen = {-1: hidden[:, -1:]}, {-1: head(hidden[:, -1:])}, []
    depth = {-1: 0}
    for n, node in enumerate(nodes):
        depth[n] = depth[node[1]] + 1
    for level in range(1, max(depth.values()) + 1):
        new = [n for n in depth if depth[n] == level]
        seen += new
        paths = []
        for n in new:
            path, at = set(), n
            while at >= 0:
                path.add(at)
                at = nodes[at][1]
            paths.append([float(m in path) for m in seen])
        drafter.tree_mask = torch.tensor(paths)[None, None].repeat(2 if line_ends else 1, 1, 1, 1)
        hidden, keys = drafter(torch.cat([feature[nodes[n][1]] for n in new], 1),
                               input_ids=torch.tensor([[nodes[n][0] for n in new]] * 2), attention_mask=mask, past_key_values=keys,
                               position_ids=places[:, -1:] + level + torch.zeros(len(new), dtype=torch.long), use_cache=True)
        for i, n in enumerate(new):
            feature[n], laws[n] = hidden[:, i:i + 1], head(hidden[:, i:i + 1])
    return torch.cat([laws[last[n]] for n in range(-1, len(TREE))])


def make_chameleon(name, module, bias, out):
    """Prompts are ids, the second context of guidance a shorter one: <s> and the image's begin, or the last three."""
    line_ends = name == "lumina"
    g = torch.Generator().manual_seed(53 + line_ends)
    target = chameleon("lumina-mgpt" if line_ends else "anole", g)
    drafter = chameleon_drafter(module, target, bias, g)
    weights = {k: v.half() for k, v in drafter.state_dict().items()}
    if line_ends:
        save_file(weights, HERE / f"data/lantern_{name}.safetensors")
    else:
        torch.save(weights, HERE / f"data/lantern_{name}.bin")
    # the first token; the middle of a row; the end of a row, and drafts over two more
    for image, n in enumerate((1, 6, 8)):
        prompt = [0, *torch.randint(2, IDS, (4 + 2 * image,), generator=g).tolist(), 18, 1, 2]
        other = prompt[-3:] if line_ends else [0, 18]
        tokens = torch.randint(len(IMAGE_IDS), (n,), generator=g).tolist()
        drafts = torch.randperm(len(IMAGE_IDS), generator=g)[:len(TREE)].tolist()
        for key, value in (("prompt", prompt), ("negative", other), ("prefix", tokens), ("draft", drafts)):
            out[f"{name}.{image}.{key}"] = torch.tensor(value).float()
        out[f"{name}.{image}.laws"] = chameleon_laws(drafter, target, (prompt, other), tokens, drafts, line_ends)


@torch.no_grad()
def main():
    torch.set_num_threads(1)
    gpt, generate = official(sys.argv[1])
    cnets, choices, anole, lumina = lantern(sys.argv[2])
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
    make_chameleon("anole", anole, True, out)
    make_chameleon("lumina", lumina, False, out)
    save_file({k: v.contiguous() for k, v in out.items()}, HERE / "data/lantern.safetensors")


if __name__ == "__main__":
    main()
