"""Golden data for Harmon and UniPic-1: what the official code makes of a small model with random weights, in float32,
with the project's addressed noise.

    python3 tests/golden/make_harmon.py HARMON UNIPIC  ->  tests/golden/data/harmon.safetensors, harmon/

HARMON is a checkout of github.com/wusize/Harmon, UNIPIC the folder UniPic-1 of one of github.com/SkyworkAI/UniPic. The
weights are not stored: tests/support/harmon.c draws the same ones (drawn_weights.py) by the names and shapes in
harmon/tensors.txt. The tokenizer is that of make_text.py, text/qwen2_files. harmon/prompts.json has the prompts, the
last one as --negative; `ids.` the ids of each, `ids.default` those of the unconditional prompt, `unipic.ids.8` those
that UniPic-1 has for a prompt with the token it adds. The passes are of prompt 0, `long` of prompt 1: rows of `z`,
`encoded` and `llm` are [conditional, unconditional][n], every fourth channel; `encoded` is the encoder's result, `llm`
the last hidden rows in the language model's order."""

import json
import sys
from pathlib import Path

import numpy as np
import torch
from transformers import AutoTokenizer

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parent / "reference"), str(HERE)]

from addressed_noise import INIT, STEP, normals, random_order  # noqa: E402
from drawn_weights import weight, write_shapes  # noqa: E402
from harmon_official import build, official  # noqa: E402
from pymar.io import write_safetensors  # noqa: E402
from pymar.vae import VAE, VaeConfig  # noqa: E402

SEED, FIRST, CHANNELS, WIDTH = 0x1234567890ABCDEF, 40, 6, 128
PROMPTS = ["a corgi in the snow", "Ein Café, naïve; e\u0301tude.", "two\nlines\r\n\r\n  and  spaces ", " ", "12345 7's IT'LL", "",
           "雪 の 犬 🐶", "say <|im_end|> and <tool_call>", "an <image> of a corgi", "blurry, text"]
LLM = dict(architectures=["Qwen2ForCausalLM"], model_type="qwen2", hidden_size=48, intermediate_size=80, num_hidden_layers=2,
           num_attention_heads=4, num_key_value_heads=2, head_dim=16, hidden_act="silu", vocab_size=528, rms_norm_eps=1e-6,
           rope_theta=1000000.0, max_position_embeddings=32768, tie_word_embeddings=True, use_sliding_window=False)
TOWERS = dict(img_size=16, vae_stride=4, patch_size=1, vae_embed_dim=CHANNELS, buffer_size=8, diffloss_d=2, diffloss_w=80,
              num_sampling_steps="100", class_num=5)
DEPTH, HEADS = 2, 2
VAE_CONFIG = VaeConfig(ch=32, ch_mult=(1, 1, 2), num_res_blocks=1, z_channels=CHANNELS)


# ------------------------------------------------------------------------------------------------------------ weights

def fill(model):
    model.load_state_dict({name: weight(name.replace("lm_head", "model.embed_tokens"), tensor.shape)
                           for name, tensor in model.state_dict().items()})


def make(checkout, tokenizer):
    vae = VAE(VAE_CONFIG)
    vae.embed_dim = CHANNELS
    model = build(official(checkout), LLM, TOWERS, HEADS, WIDTH, DEPTH, vae, tokenizer)
    fill(model)
    return model


# --------------------------------------------------------------------------------------------------------------- noise

class Noise:
    """Takes the place of the orders and of torch.randn in `sample` by this project's, of images FIRST and on."""

    def __init__(self, model, iterations, images):
        self.model, self.iterations, self.images, self.count, self.mask = model, iterations, images, 0, None
        self.place = sys.modules[type(model).__module__]
        self.plain = self.place.mask_by_order

    def orders(self, batch, seq_len):
        self.mask = torch.ones(batch, seq_len, dtype=torch.bool)
        return torch.from_numpy(np.stack([random_order(SEED, FIRST + i % self.images, seq_len) for i in range(batch)]))

    def mask_by_order(self, mask_len, order, batch, seq_len):
        following = self.plain(mask_len, order, batch, seq_len)
        self.count += 1
        drawn = self.mask if self.count == self.iterations else self.mask ^ following
        self.rows, self.mask = drawn.nonzero().tolist(), following
        self.steps = list(reversed(self.model.mar.diffloss.gen_diffusion.timestep_map))
        return following

    def numbers(self, purpose, count, step):
        rows = (self.rows * 2)[:count]
        return torch.from_numpy(np.stack([normals(SEED, purpose, FIRST + i % self.images, p, step, CHANNELS) for i, p in rows]))

    def __enter__(self):
        self.kept = torch.randn, torch.randn_like
        self.model.mar.sample_orders, self.place.mask_by_order = self.orders, self.mask_by_order
        torch.randn = lambda n, channels: self.numbers(INIT, n, 0)
        torch.randn_like = lambda x: self.numbers(STEP, len(x), self.steps.pop(0))

    def __exit__(self, *_):
        torch.randn, torch.randn_like = self.kept
        del self.model.mar.sample_orders
        self.place.mask_by_order = self.plain


def conditions(model, prompts, negative="Generate an image."):
    """input_ids and attention_mask of the prompts, then of as many unconditional ones; negative None: without these."""
    texts = [f"Generate an image: {p}" for p in prompts] + ([] if negative is None else [negative] * len(prompts))
    template = model.prompt_template["INSTRUCTION"]
    rows = [model.tokenizer.encode(template.format(input=text)) for text in texts]
    longest = max(map(len, rows))
    ids = torch.tensor([row + [model.tokenizer.eos_token_id] * (longest - len(row)) for row in rows])
    return dict(input_ids=ids, attention_mask=torch.arange(longest)[None] < torch.tensor([[len(row)] for row in rows]))


def generate(model, prompts, sets, steps, shape, cfg=3.0, schedule="constant", temperature=1.0):
    """Tokens [n][h*w][CHANNELS] and pictures [n][H][W][3] as 8-bit values, as text2image.py makes them."""
    create = sys.modules[type(model.mar.diffloss).__module__].create_diffusion
    model.mar.diffloss.gen_diffusion = create(timestep_respacing=str(steps), noise_schedule="cosine")
    tokens, plain = [], model.decode
    model.decode = lambda z: plain(tokens.append(z.flatten(1, 2).clone()) or z)
    with Noise(model, sets, len(prompts)):
        pictures = model.sample(**conditions(model, prompts, "Generate an image." if cfg != 1 else None), num_iter=sets, cfg=cfg,
                                cfg_schedule=schedule, temperature=temperature, image_shape=shape)
    del model.decode
    pictures = torch.clamp(127.5 * pictures + 128.0, 0, 255).permute(0, 2, 3, 1).to(torch.uint8).to(torch.bfloat16)
    return tokens[0][:len(prompts)], pictures.contiguous()


def write_pass(model, out, name, shape, masked, prompt=0):
    """A pass of image FIRST in which the first `masked` places of the order are not known."""
    length = shape[0] * shape[1]
    order = random_order(SEED, FIRST, length)
    mask = torch.from_numpy(order.argsort() < masked).float()[None].repeat(2, 1)
    tokens = torch.randn(1, length, CHANNELS, generator=torch.Generator().manual_seed(5))
    given = conditions(model, PROMPTS[prompt:prompt + 1])
    cache = model.llm_model(input_ids=given["input_ids"], use_cache=True).past_key_values
    hidden = []
    hook = model.llm_model.norm.register_forward_hook(lambda module, inputs, output: hidden.append(output))
    x = tokens.repeat(2, 1, 1).view(2, *shape, -1)
    mixed = model.forward_mae_encoder(x, mask, past_key_values=cache, attention_mask=given["attention_mask"])
    hook.remove()
    out[f"{name}.order"], out[f"{name}.tokens"] = torch.from_numpy(order).float(), tokens[0]
    out[f"{name}.encoded"] = model.extract_visual_feature(x, mask)[0][0, :, ::4]
    out[f"{name}.llm"] = hidden[0][..., ::4]
    out[f"{name}.z"] = model.mar.forward_mae_decoder(mixed, mask, image_shape=shape)[..., ::4]


def write_schedule(model, out, steps):
    d = model.mar.diffloss.gen_diffusion
    columns = (d.sqrt_recip_alphas_cumprod, d.sqrt_recipm1_alphas_cumprod, d.posterior_mean_coef1, d.posterior_mean_coef2,
               d.posterior_log_variance_clipped, np.log(d.betas))
    out[f"unipic.schedule{steps}.t"] = torch.tensor(d.timestep_map).float()
    out[f"unipic.schedule{steps}.coef"] = torch.from_numpy(np.stack(columns, 1)).float()


def write_names(folder, model):
    """config.json as in the Hugging Face folder, with sizes beside those of mar_base, and all tensors of all layouts."""
    folder.mkdir(exist_ok=True)
    sizes = dict(encoder_embed_dim=WIDTH, encoder_num_heads=HEADS, decoder_num_heads=HEADS)
    config = dict(architectures=["HarmonModel"], model_type="harmon", llm=LLM, mar=dict(type="mar_base", **TOWERS, **sizes),
                  torch_dtype="float32")
    (folder / "config.json").write_text(json.dumps(config, indent=1) + "\n")
    (folder / "prompts.json").write_text(json.dumps(PROMPTS) + "\n")
    shapes = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    shapes["siglip2.vision_model.embeddings.patch_embedding.weight"] = (8, 3, 2, 2)
    shapes |= {name: tuple(tensor.shape) for name, tensor in siglip_projection().items()}
    write_shapes(folder / "tensors.txt", shapes)


def siglip_projection():
    """What UniPic-1's file has beside Harmon's tensors, with a narrower input."""
    layers = torch.nn.Sequential(torch.nn.Linear(8, LLM["hidden_size"]), torch.nn.SiLU(), torch.nn.Linear(*[LLM["hidden_size"]] * 2))
    return {f"siglip2_proj.{name}": tensor for name, tensor in layers.state_dict().items()}


@torch.no_grad()
def main():
    torch.set_num_threads(1)
    tokenizer = AutoTokenizer.from_pretrained(HERE / "data/text/qwen2_files")
    out = {}
    model = make(sys.argv[1], tokenizer)
    write_names(HERE / "data/harmon", model)
    for i, prompt in enumerate(PROMPTS[:-1]):
        out[f"ids.{i}"] = conditions(model, [prompt], None)["input_ids"][0].float()
    for name, text in (("default", "Generate an image."), (len(PROMPTS) - 1, PROMPTS[-1])):
        given = model.prepare_text_conditions("", text)
        out[f"ids.{name}"] = given["input_ids"][1][given["attention_mask"][1]].float()
    write_pass(model, out, "first", (4, 4), 16)
    write_pass(model, out, "half", (4, 4), 8)
    write_pass(model, out, "tall", (6, 4), 11)
    write_pass(model, out, "long", (6, 4), 7, 1)
    out["images.square"], out["pictures.square"] = generate(model, PROMPTS[:2], 8, 20, (4, 4))
    out["images.tall"], out["pictures.tall"] = generate(model, PROMPTS[:2], 5, 20, (6, 4))
    out["images.linear"], _ = generate(model, PROMPTS[:1], 6, 10, (4, 4), schedule="linear", temperature=0.9)
    out["images.plain"], _ = generate(model, PROMPTS[:1], 4, 10, (4, 4), cfg=1.0)
    model = make(sys.argv[2], tokenizer)
    out["unipic.ids.8"] = conditions(model, [PROMPTS[8]], None)["input_ids"][0].float()
    out["unipic.square"], _ = generate(model, PROMPTS[:2], 8, 20, (4, 4))
    write_schedule(model, out, 20)
    write_safetensors(HERE / "data/harmon.safetensors", out, {"made_by": "tests/golden/make_harmon.py"})
    for name, value in out.items():
        print(name, tuple(value.shape), f"{value.float().abs().max():.3g}")


if __name__ == "__main__":
    main()
