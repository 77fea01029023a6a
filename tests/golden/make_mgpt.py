"""Golden data for decoders that write images among text: what transformers and the official code make of small random models.

    python3 tests/golden/make_mgpt.py LUMINA ANOLE EMU3     ->  tests/golden/data/mgpt.safetensors

LUMINA, ANOLE, EMU3 are clones of github.com/Alpha-VLLM/Lumina-mGPT, GAIR-NLP/anole and baaivision/Emu3, bare or not. The weights
are not stored: tests/support/decoders.c draws the same ones. Run from the official code are: Lumina's three logits processors
(inference_solver.py), Anole's transformer.py as it is released, Emu3's Emu3PrefixConstrainedLogitsHelper with transformers'
processors. Guidance of Anole is LANTERN's: u + s (c - u) against bos and begin of image.
"""

import ast
import subprocess
import sys
import tempfile
import types
from pathlib import Path

import numpy as np
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from transformers import (ChameleonConfig, ChameleonForConditionalGeneration, DynamicCache, Emu3Config, Emu3ForConditionalGeneration,
                          LlamaConfig, LlamaForCausalLM)
from transformers.generation.logits_process import (LogitsProcessor, PrefixConstrainedLogitsProcessor,
                                                    UnbatchedClassifierFreeGuidanceLogitsProcessor)

HERE = Path(__file__).parent
WIDTH, DEPTH, HEADS, HIDDEN = 32, 2, 4, 48
SALT = 0  # of the weights, chosen so that rounding decides no greedy token
SUBSET = 64  # values of a golden distribution
PROMPTS = ["two cats", "a red house by the sea, at night"]


# ------------------------------------------------------------------------------------------------------------ weights

def mix(x):
    """splitmix64 of uint64 numbers."""
    x = x + np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def weight(name, *shape):
    """The tensor of this name: uniform numbers by the name's hash (FNV-1a) and the place, scaled by what the tensor is."""
    hashed = 0xCBF29CE484222325 + SALT
    for byte in name.encode():
        hashed = (hashed ^ byte) * 0x100000001B3 % 2 ** 64
    with np.errstate(over="ignore"):
        bits = mix(np.uint64(hashed) + np.arange(np.prod(shape), dtype=np.uint64))
    u = (bits >> np.uint64(40)).astype(np.float64) / 2 ** 23 - 1
    if "norm" in name:
        u = 0.3 * u + (0 if name.endswith("bias") else 1)
    elif "emb" in name:
        u = 1.7 * u
    else:
        u = u * (3 / shape[-1]) ** 0.5 * (1.5 if name in ("lm_head.weight", "output.weight") else 2)
    return torch.from_numpy(u.astype(np.float32)).reshape(shape)


def fill(model):
    """Draws all weights of a model of transformers."""
    state = {name: weight(name, *tensor.shape) for name, tensor in model.state_dict().items() if "vqmodel" not in name}
    missing, unexpected = model.load_state_dict(state, strict=False)
    assert not unexpected and all("vqmodel" in name for name in missing), (missing, unexpected)
    return model.eval()


# ------------------------------------------------------------------------------------------------------ official code

def source(repository, name):
    return subprocess.run(["git", "-C", repository, "show", f"HEAD:{name}"], check=True, capture_output=True, text=True).stdout


def classes(text, names, scope):
    """These classes of a file, run in a scope of their own."""
    tree = ast.parse(text)
    tree.body = [node for node in tree.body if isinstance(node, ast.ClassDef) and node.name in names]
    exec(compile(tree, "official", "exec"), scope)
    return [scope[name] for name in names]


def lumina_processors(repository, model, cfg, top_k, ids):
    text = source(repository, "lumina_mgpt/inference_solver.py").replace('device="cuda"', 'device="cpu"').replace("print(", "str(")
    import copy
    import math
    import transformers
    from typing import List, Optional, Union
    guide, constrain, warp = classes(text, ["LLMImageStartTriggeredUnbatchedClassifierFreeGuidanceLogitsProcessor",
                                            "MultiModalLogitsProcessor", "InterleavedTopKLogitsWarper"],
                                     {**locals(), "torch": torch, "LogitsProcessor": LogitsProcessor, "LogitsWarper": LogitsProcessor})
    place = dict(image_start_token_id=ids.begin_image, image_end_token_id=ids.end_image)
    line = dict(image_next_line_token_id=ids.line_end, patch_size=32)
    return [guide(guidance_scale=cfg, model=model, **place, **line), constrain(voc_size=ids.vocabulary, **place, **line),
            warp(image_top_k=top_k, text_top_k=10, **place)]


def emu3_processors(repository, model, cfg, ids, negative, rows, columns):
    scope = {"torch": torch}
    helper, = classes(source(repository, "emu3/mllm/utils_emu3.py"), ["Emu3PrefixConstrainedLogitsHelper"], scope)
    constrain = helper(height=torch.tensor([rows]), width=torch.tensor([columns]), img_token=ids.begin_image, eoi_token=ids.end_image,
                       eos_token=ids.eos, eol_token=ids.line_end, eof_token=ids.frame_end, pad_token=0,
                       visual_tokens=list(range(ids.first_image, ids.vocabulary)))
    return [UnbatchedClassifierFreeGuidanceLogitsProcessor(cfg, model, unconditional_ids=negative),
            PrefixConstrainedLogitsProcessor(constrain, num_beams=1)]


def xformers():
    """What transformer.py takes from xformers, for one sequence in float32."""
    class RMSNorm(torch.nn.Module):
        def __init__(self, dim, eps):
            super().__init__()
            self.weight, self.eps = torch.nn.Parameter(torch.ones(dim)), eps

        def forward(self, x):
            return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps) * self.weight

    class Bias:
        @classmethod
        def from_seqlens(cls, q_seqlen, kv_seqlen, kv_padding):
            self = cls()
            self.queries, self.keys = q_seqlen[0], kv_seqlen[0]
            return self

    def rotate(x, first, theta):  # neighbours are a complex number
        at = torch.arange(first, first + x.shape[1])[:, None]
        angle = at * theta ** -(torch.arange(0, x.shape[-1], 2) / x.shape[-1])
        turned = torch.view_as_complex(x.reshape(*x.shape[:-1], -1, 2)) * torch.polar(torch.ones_like(angle), angle)[None, :, None]
        return torch.view_as_real(turned).flatten(3)

    def rope_padded(xq, xk, xv, cache_k, cache_v, attn_bias, theta):
        first = attn_bias.keys - attn_bias.queries
        cache_k[:, first:attn_bias.keys], cache_v[:, first:attn_bias.keys] = rotate(xk, first, theta), xv
        return rotate(xq, first, theta)

    def attention(q, k, v, attn_bias):
        q, k, v = (x.flatten(2, 3).transpose(1, 2) for x in (q, k[:, :attn_bias.keys], v[:, :attn_bias.keys]))
        mask = torch.ones(attn_bias.queries, attn_bias.keys).tril(attn_bias.keys - attn_bias.queries).bool()
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, mask).transpose(1, 2)

    ops, fmha, bias = (types.ModuleType(name) for name in ("xformers.ops", "xformers.ops.fmha", "xformers.ops.fmha.attn_bias"))
    ops.RMSNorm, ops.rope_padded, ops.fmha = RMSNorm, rope_padded, fmha
    fmha.memory_efficient_attention_forward, fmha.attn_bias = attention, bias
    bias.BlockDiagonalCausalWithOffsetPaddedKeysMask = Bias
    sys.modules.update({"xformers": types.ModuleType("xformers"), **{m.__name__: m for m in (ops, fmha, bias)}})


class Release:
    """Anole's transformer.py as it is released."""

    def __init__(self, repository, vocabulary):
        xformers()
        self.module = types.ModuleType("transformer")
        sys.modules["transformer"] = self.module
        exec(compile(source(repository, "chameleon/inference/transformer.py"), "transformer.py", "exec"), self.module.__dict__)
        # The hidden size is the next multiple of 48 to half of two thirds of four times the width.
        self.arguments = self.module.ModelArgs(dim=WIDTH, n_layers=DEPTH, n_heads=HEADS, vocab_size=vocabulary, multiple_of=HIDDEN,
                                               ffn_dim_multiplier=0.5, qk_normalization=True)
        self.model = self.module.Transformer(self.arguments).float().eval()
        square, head = (WIDTH, WIDTH), (WIDTH // HEADS,)
        state = {"tok_embeddings.weight": (vocabulary, WIDTH), "norm.weight": (WIDTH,), "output.weight": (vocabulary, WIDTH)}
        layer = {"attention.wq.weight": square, "attention.wk.weight": square, "attention.wv.weight": square,
                 "attention.wo.weight": square, "attention.q_normalization.weight": head, "attention.q_normalization.bias": head,
                 "attention.k_normalization.weight": head, "attention.k_normalization.bias": head,
                 "feed_forward.w1.weight": (HIDDEN, WIDTH), "feed_forward.w3.weight": (HIDDEN, WIDTH),
                 "feed_forward.w2.weight": (WIDTH, HIDDEN), "attention_norm.weight": (WIDTH,), "ffn_norm.weight": (WIDTH,)}
        state.update({f"layers.{i}.{name}": shape for i in range(DEPTH) for name, shape in layer.items()})
        self.model.load_state_dict({name: weight(name, *shape) for name, shape in state.items()})

    def context(self):
        """A function of a sequence's next ids that returns the logits behind the last."""
        cache, length = self.module.make_cache(self.arguments, 2048, dtype=torch.float32), 0

        def read(ids):
            nonlocal length
            logits = self.model.forward(torch.tensor(ids), torch.tensor([len(ids)]), torch.tensor([length]), cache, 2048)
            length += len(ids)
            return logits[-1]
        return read


# --------------------------------------------------------------------------------------------------------- sequences

class ChameleonIds:
    """Ids as Chameleon has them for a codebook of 8192: those behind the image tokens move with a smaller one. A byte's id stands
    for its letter of the byte-level BPE, which has no merges here."""

    def __init__(self, codebook):
        base = 4 + codebook
        self.codebook, self.bos, self.end_image, self.begin_image = codebook, 0, base, base + 1
        self.end_turn, self.line_end, self.size, self.vocabulary = base + 514, base + 607, base + 608, base + 620

    def image(self, number):
        return 4 + number * 2731 % self.codebook

    def text(self, prompt):
        return [4 + self.codebook + 8 + byte for byte in prompt.encode()]


class Emu3Ids:
    """Bytes, then the special ids, then the image tokens."""

    def __init__(self, codebook):
        self.codebook, self.line_end, self.frame_end, self.bos, self.eos = codebook, 260, 261, 263, 264
        self.begin_image, self.start_image, self.end_image, self.first_image = 265, 266, 267, 268
        self.vocabulary = self.first_image + codebook

    def image(self, number):
        return self.first_image + number

    def text(self, prompt):
        return list(prompt.encode())


def numbers_of(ids):
    return torch.tensor([ids.image(number) for number in range(ids.codebook)])


def golden(out, name, plain, without, guided, tokens, ids, positions):
    """plain, without, guided: logits [n, vocabulary] before each token. Kept are the softmax's logarithms over the image tokens at
    a few positions, of SUBSET tokens evenly over the codebook, and all tokens."""
    rows, some = numbers_of(ids), torch.arange(SUBSET) * (ids.codebook // SUBSET)
    for kind, logits in (("plain", plain), ("without", without), ("guided", guided)):
        laws = logits[:, rows].log_softmax(-1)
        out[f"{name}.{kind}"] = laws[positions][:, some].contiguous()
    top = guided[:, rows].topk(2, -1)[0]
    print(name, "least gap", (top[:, 0] - top[:, 1]).min().item(), "distinct tokens", tokens.unique().numel(), "of", len(tokens),
          "spread", guided[:, rows].std().item())
    assert (top[:, 0] - top[:, 1]).min() > 5e-4, "choose other weights"
    assert torch.equal(guided[:, rows].argmax(-1), tokens)
    out[f"{name}.tokens"] = tokens.float()


class Plain:
    """A model of transformers as the official processors call it; Chameleon's class hides the image tokens, Lumina's does not."""

    def __init__(self, model):
        self.model = model

    def __call__(self, input_ids, past_key_values=None, cache=None, **_):
        """past_key_values and cache are the same, by the version of transformers."""
        cache = cache if past_key_values is None else past_key_values
        made = self.model.model(input_ids=input_ids, use_cache=True, past_key_values=cache)

        class Out(dict):
            logits = self.model.lm_head(made.last_hidden_state)
        return Out(past_key_values=made.past_key_values, cache=made.past_key_values)


def generate(model, prompt, processors, count):
    """Greedy decoding with the processors in turn: the sequence, and per step the model's logits and the processors' results."""
    sequence, cache, steps = torch.tensor([prompt]), DynamicCache(), []
    ids = sequence
    for _ in range(count):
        scores = model(ids, past_key_values=cache).logits[:, -1]
        results = [scores]
        for processor in processors:
            results.append(processor(sequence, results[-1]))
        steps.append(results)
        ids = results[-1].argmax(-1, keepdim=True)
        sequence = torch.cat([sequence, ids], 1)
    return sequence[0, len(prompt):], steps


def without_prompt(model, prompt, sequence):
    """Logits before each id of a sequence behind a prompt, with no guidance."""
    return model(torch.cat([torch.tensor([prompt]), sequence[None, :-1]], 1)).logits[0, len(prompt) - 1:]


def split_lines(sequence, columns, rows, ids):
    """The tokens' places in a sequence of rows with line ends; checks the ends."""
    at = [row * (columns + 1) + column for row in range(rows) for column in range(columns)]
    assert all(sequence[row * (columns + 1) + columns] == ids.line_end for row in range(rows))
    number = {ids.image(n): n for n in range(ids.codebook)}
    return at, torch.tensor([number[int(sequence[i])] for i in at])


# ------------------------------------------------------------------------------------------------------------- models

def make_lumina(repository, out):
    ids, columns, rows = ChameleonIds(8192), 6, 4
    config = ChameleonConfig(vocab_size=ids.vocabulary, hidden_size=WIDTH, intermediate_size=HIDDEN, num_hidden_layers=DEPTH,
                             num_attention_heads=HEADS, num_key_value_heads=HEADS, vocabulary_map={"<image>": ids.vocabulary - 1},
                             vq_config=dict(base_channels=32, channel_multiplier=[1], num_res_blocks=1, embed_dim=4, latent_channels=4,
                                            num_embeddings=4, attn_resolutions=None))
    model = Plain(fill(ChameleonForConditionalGeneration(config)))
    for i, text in enumerate(PROMPTS):
        size = [ids.begin_image, ids.size + rows // 2, ids.size + columns // 2]
        words = f"Generate an image of {16 * columns}x{16 * rows} according to the following prompt:\n{text}"
        prompt = [ids.bos, *ids.text(words), ids.end_turn, *size]
        processors = lumina_processors(repository, model, 3.0, 2000, ids)
        sequence, steps = generate(model, prompt, processors, (columns + 1) * rows + 1)
        assert sequence[-1] == ids.end_image
        at, tokens = split_lines(sequence, columns, rows, ids)
        plain, guided, masked, top = (torch.stack([step[k][0] for step in steps])[at] for k in range(4))
        golden(out, f"lumina.{i}", plain, without_prompt(model, size, sequence)[at], guided, tokens, ids, [0, 5, 6, 17, 23])
        assert torch.isinf(masked[:, ids.vocabulary - 1]).all()
        kept = top[3, numbers_of(ids)]
        out[f"lumina.{i}.top"] = kept.softmax(-1)[torch.arange(SUBSET) * (ids.codebook // SUBSET)]
        assert (kept > -torch.inf).sum() == 2000


def make_anole(repository, out):
    ids = ChameleonIds(64)
    release, rows = Release(repository, ids.vocabulary), numbers_of(ids)
    contexts = [release.context(), release.context()]
    fed = [[ids.bos, *ids.text(PROMPTS[0]), ids.end_turn, ids.begin_image], [ids.bos, ids.begin_image]]
    tokens, steps = [], []
    for _ in range(1024):
        c, u = (read(new) for read, new in zip(contexts, fed))
        steps.append((c, u, u + 3 * (c - u)))
        tokens.append(int(steps[-1][2][rows].argmax()))
        fed = [[ids.image(tokens[-1])]] * 2
    plain, without, guided = (torch.stack(parts) for parts in zip(*steps))
    golden(out, "anole.0", plain, without, guided, torch.tensor(tokens), ids, [0, 1, 31, 32, 500, 1023])


def check_emu3(llama, ids):
    """transformers' Emu3ForConditionalGeneration has the same function, under the names that tests/support/decoders.c writes."""
    config = Emu3Config(text_config=dict(vocab_size=ids.vocabulary, hidden_size=WIDTH, intermediate_size=HIDDEN, num_hidden_layers=DEPTH,
                                         num_attention_heads=HEADS, num_key_value_heads=HEADS // 2, pad_token_id=0, bos_token_id=ids.bos,
                                         eos_token_id=ids.eos),
                        vq_config=dict(codebook_size=4, base_channels=32, channel_multiplier=[1], num_res_blocks=1, attn_resolutions=[0],
                                       hidden_size=32), vocabulary_map={"<image>": 0})
    model, weights = Emu3ForConditionalGeneration(config).eval(), llama.state_dict()
    missing, unexpected = model.load_state_dict({name.replace("model.", "model.text_model."): t for name, t in weights.items()}, strict=False)
    assert not unexpected and all("vqmodel" in name for name in missing), (missing, unexpected)
    sequence = torch.arange(200)[None] * 7 % ids.vocabulary
    torch.testing.assert_close(model(sequence).logits, llama(sequence).logits, rtol=1e-5, atol=1e-5)
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        with safe_open(Path(folder) / "model.safetensors", "pt") as saved:
            names = {name for name in saved.keys() if not name.startswith("vqmodel.")}
    assert names == {"text_model." + name for name in weights}, names


def make_emu3(repository, out):
    ids, columns, rows = Emu3Ids(128), 6, 4
    config = LlamaConfig(vocab_size=ids.vocabulary, hidden_size=WIDTH, intermediate_size=HIDDEN, num_hidden_layers=DEPTH,
                         num_attention_heads=HEADS, num_key_value_heads=HEADS // 2, rms_norm_eps=1e-5, rope_theta=1e6,
                         rope_parameters={"rope_type": "default", "rope_theta": 1e6}, max_position_embeddings=9216)
    model = Plain(fill(LlamaForCausalLM(config)))
    assert abs(model.model.model.rotary_emb.inv_freq[1].item() - 1e6 ** -0.25) < 1e-6

    check_emu3(model.model, ids)

    def sequence_of(text):
        return [ids.bos, *ids.text(text), ids.start_image, *ids.text(f"{rows}*{columns}"), ids.begin_image]
    negative = sequence_of("lowres, bad anatomy")
    for i, text in enumerate(PROMPTS):
        prompt = sequence_of(text + " masterpiece, film grained, best quality.")
        processors = emu3_processors(repository, model, 3.0, ids, torch.tensor([negative]), rows, columns)
        sequence, steps = generate(model, prompt, processors, (columns + 1) * rows + 3)
        assert sequence[-3:].tolist() == [ids.frame_end, ids.end_image, ids.eos]
        at, tokens = split_lines(sequence, columns, rows, ids)
        plain, guided = (torch.stack([step[k][0] for step in steps])[at] for k in range(2))
        golden(out, f"emu3.{i}", plain, without_prompt(model, negative, sequence)[at], guided, tokens, ids, [0, 5, 6, 17, 23])


@torch.no_grad()
def main():
    torch.set_num_threads(1)
    out = {}
    make_lumina(sys.argv[1], out)
    make_anole(sys.argv[2], out)
    make_emu3(sys.argv[3], out)
    save_file(out, HERE / "data" / "mgpt.safetensors")


if __name__ == "__main__":
    main()
