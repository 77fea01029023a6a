"""Golden data for NextStep-1: what the official code makes of a small model with random weights, in float32, with the
project's addressed noise.

    python3 tests/golden/make_nextstep.py NEXTSTEP HEADS  ->  tests/golden/data/nextstep.safetensors, nextstep/

NEXTSTEP is a checkout of github.com/stepfun-ai/NextStep-1 of 2025. HEADS is heads.py beside the weights of NextStep-1.1,
as vLLM-Omni has it (vllm_omni/diffusion/models/nextstep_1_1/modeling_nextstep_heads.py): its chain, in the same
pipeline, makes images.newer*. The weights are not stored:
tests/support/nextstep.c draws the same ones (drawn_weights.py) by the names and shapes in nextstep/tensors.txt; those
of vae.* are of the image decoder's file. The tokenizer is make_text.py's of Qwen2 with the release's added tokens.

nextstep/prompts.json has prompts with their additions and sizes. The golden data:

  ids.I.conditional, ids.I.unconditional   prompt I in its frame, and its negative one
  forced.hidden   [conditional, unconditional][1 + n][width] the last hidden row behind the frame of prompt 0, and
                  behind each of forced.tokens [n][16]
  forced.c        what image_out_projector makes of them; forced.c.pos: with gen_pos_embed
  head.velocity   velocities of rows head.x at times head.time / 1000 for conditions head.z; head.guided: against
                  head.u, with CFG
  images.*        [image][h*w][16] tokens of prompts 0 and 1 as images FIRST and on, all against NEGATIVE
  images.forced   the same with known.tokens [image][h*w][16] in place of drawn ones where known.mask [image][h*w] is 1
  pictures.square the first of images.square, decoded, in 8 bits
  encoded.picture a picture of 64x64 in 8 bits; encoded.tokens: its tokens; encoded.normed: with the norm of drawn ones
  vae.*           tokens in two rows of three; their latents [4][H][W]; the decoder's pixels [3][H][W]; the picture in
                  8 bits"""

import json
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch.nn.functional import layer_norm
from tokenizers import AddedToken, Tokenizer
from transformers import PreTrainedTokenizerFast

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parent / "reference"), str(HERE)]

from addressed_noise import INIT, STEP, normals  # noqa: E402
from drawn_weights import weight, write_shapes  # noqa: E402
from nextstep_official import Cache49, build, official  # noqa: E402
from pymar.io import write_safetensors  # noqa: E402

SEED, FIRST, STEPS, CFG = 0x1234567890ABCDEF, 40, 8, 7.5
POSITIVE = "masterpiece, film grained, best quality."
NEGATIVE = "lowres, bad anatomy, blurry."
PROMPTS = [dict(prompt=prompt, positive=positive, negative=negative, height=height, width=width)
           for prompt, positive, negative, height, width in [
    ("a corgi in the snow", "", "", 64, 64),
    ("Ein Café, naïve; e\u0301tude.", POSITIVE, NEGATIVE, 64, 64),
    ("two\nlines\r\n\r\n  and  spaces ", POSITIVE, "", 96, 32),
    (" ", "", NEGATIVE, 512, 512),
    ("12345 7's IT'LL", "", " ", 1024, 16),
    ("", "", NEGATIVE, 256, 512),
    ("雪 の 犬 🐶", "", "雪", 512, 256),
    ("say <|im_end|> and <|image_area|>4*4<|begin_of_image|>", "a <tool_call>", "<|image_placeholder|>", 64, 64),
    ("an <image> of a corgi ", " twice", "no <image>", 160, 144)]]
MODEL = dict(architectures=["NextStepForCausalLM"], model_type="nextstep", attention_bias=True, o_attention_bias=False,
             mlp_bias=False, hidden_size=64, intermediate_size=96, num_hidden_layers=3, num_attention_heads=4,
             num_key_value_heads=2, head_dim=16, hidden_act="silu", vocab_size=536, rms_norm_eps=1e-6,
             rope_theta=1000000.0, rope_scaling=None, max_position_embeddings=4096, tie_word_embeddings=False,
             latent_size=32, latent_patch_size=2, latent_channels=4, fm_head_dim=48, fm_head_layers=3,
             fm_head_batch_mul=4, use_gen_pos_embed=False, vae_name_or_path="vae/", torch_dtype="float32")
VAE = dict(resolution=64, in_channels=3, ch=32, out_ch=3, ch_mult=[1, 1, 2, 2], num_res_blocks=1, z_channels=4,
           scaling_factor=0.3611, shift_factor=0.1159, deterministic=True, encoder_norm=True, psz=1)
TOKEN = MODEL["latent_channels"] * MODEL["latent_patch_size"] ** 2


# -------------------------------------------------------------------------------------------------------------- model

def write_tokenizer(path, tokens):
    t = Tokenizer.from_file(str(HERE / "data/text/qwen2/tokenizer.json"))
    names = [tokens.DEFAULT_PAD_TOKEN, *tokens.additional_special_tokens]
    t.add_special_tokens([AddedToken(name, normalized=False) for name in names])
    path.write_text(t.to_str() + "\n")
    config = dict(bos_token=None, eos_token="<|im_end|>", pad_token=tokens.DEFAULT_PAD_TOKEN, model_max_length=131072,
                  additional_special_tokens=tokens.additional_special_tokens, tokenizer_class="Qwen2Tokenizer")
    path.with_name("tokenizer_config.json").write_text(json.dumps(config, indent=1) + "\n")
    return {name: t.token_to_id(name) for name in names}


def load_tokenizer(path):
    """As a pipeline loads it: sentences are padded at their left."""
    return PreTrainedTokenizerFast(tokenizer_file=str(path), padding_side="left", pad_token="[PAD]",
                                   eos_token="<|im_end|>")


def make(modules, folder):
    """The pipeline, and the shapes of all tensors."""
    folder.mkdir(exist_ok=True)
    (folder / "vae").mkdir(exist_ok=True)
    ids = write_tokenizer(folder / "tokenizer.json", modules.tokens)
    fields = MODEL | dict(boi=ids[modules.tokens.DEFAULT_BOI_TOKEN], eoi=ids[modules.tokens.DEFAULT_EOI_TOKEN],
                          image_placeholder_id=ids[modules.tokens.DEFAULT_IMAGE_PLACEHOLDER_TOKEN],
                          pad_token_id_added=ids[modules.tokens.DEFAULT_PAD_TOKEN])
    (folder / "config.json").write_text(json.dumps(fields, indent=1) + "\n")
    (folder / "vae/config.json").write_text(json.dumps(VAE, indent=1) + "\n")
    (folder / "prompts.json").write_text(json.dumps(PROMPTS, indent=1) + "\n")
    model, vae = build(modules, fields), modules.vae.AutoencoderKL(modules.vae.AutoEncoderParams(**VAE)).eval()
    shapes = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    model.load_state_dict({name: weight(name, shape) for name, shape in shapes.items()})
    decoder = {name: tuple(tensor.shape) for name, tensor in vae.state_dict().items()}
    vae.load_state_dict({name: weight(f"vae.{name}", shape) for name, shape in decoder.items()})
    shapes |= {f"vae.{name}": shape for name, shape in decoder.items()}
    write_shapes(folder / "tensors.txt", shapes)
    tokenizer = load_tokenizer(folder / "tokenizer.json")
    return modules.pipeline.NextStepPipeline(tokenizer=tokenizer, model=model, vae=vae)


# ----------------------------------------------------------------------------------------------------------- sequences

def framed(pipeline, prompt, negative, positive, hw):
    """input_ids and attention_mask of a prompt and of the negative one."""
    captions, _ = pipeline._build_captions(prompt, None, 1, positive, negative, CFG)
    given = pipeline.tokenizer(captions, padding="longest", truncation=False,
                               add_special_tokens=True, return_tensors="pt")
    return pipeline._add_prefix_ids(hw, given.input_ids.long(), given.attention_mask)


def write_ids(pipeline, out):
    for i, p in enumerate(PROMPTS):
        ids, mask = framed(pipeline, p["prompt"], p["negative"], p["positive"], (p["height"], p["width"]))
        for name, row, kept in zip(("conditional", "unconditional"), ids, mask):
            out[f"ids.{i}.{name}"] = row[kept.bool()].float()


def write_forced(pipeline, out, count=4):
    """Hidden rows and conditions with given tokens in place of drawn ones."""
    model = pipeline.model
    tokens = torch.randn(count, TOKEN, generator=torch.Generator().manual_seed(5))
    p = PROMPTS[0]
    ids, mask = framed(pipeline, p["prompt"], p["negative"], p["positive"], (p["height"], p["width"]))
    cache = Cache49(model.config, 2, ids.shape[1] + count, "cpu", torch.float32)
    rows = [model.forward_model(model.prepare_inputs_embeds(ids), mask, cache, True).last_hidden_state[:, -1]]
    for token in tokens:
        mask = torch.cat([mask, mask.new_ones(2, 1)], 1)
        given = model.image_in_projector(token).repeat(2, 1, 1)
        rows.append(model.forward_model(given, mask, cache, True).last_hidden_state[:, -1])
    out["forced.tokens"], out["forced.hidden"] = tokens, torch.stack(rows, 1)
    out["forced.c"] = model.image_out_projector(out["forced.hidden"])
    out["forced.c.pos"] = model.image_out_projector(out["forced.hidden"] + model.gen_pos_embed[:, :count + 1])


def write_head(pipeline, out):
    head, generator = pipeline.model.image_head, torch.Generator().manual_seed(7)
    t = torch.tensor([0.0, 0.02, 0.25, 0.5, 0.9, 0.96])
    x = torch.randn(len(t), TOKEN, generator=generator)
    c, u = (torch.randn(len(t), MODEL["hidden_size"], generator=generator) for _ in range(2))
    out["head.time"], out["head.x"], out["head.z"], out["head.u"] = 1000 * t, x, c, u
    both = head.net(x.repeat(2, 1), t.repeat(2), torch.cat([c, u]))
    out["head.velocity"], out["head.guided"] = both[:len(t)], head.get_velocity_from_cfg(both, CFG, 1.0, 2)


# -------------------------------------------------------------------------------------------------------------- images

class Noise:
    """Takes the place of randn_tensor in `sample` by this project's numbers, of images FIRST and on. A step's number is
    the chain's index, from STEPS - 1 down to `last`."""

    def __init__(self, module, steps, last):
        self.module, self.steps, self.last, self.position, self.index = module, steps, last, -1, last

    def randn_tensor(self, shape, noise_repeat, device, dtype=torch.float32):
        purpose, step = STEP, self.index - 1
        if self.index == self.last:
            purpose, step, self.index, self.position = INIT, 0, self.steps, self.position + 1
        else:
            self.index -= 1
        return torch.from_numpy(np.stack([normals(SEED, purpose, FIRST + i, self.position, step, shape[1])
                                          for i in range(shape[0])]))

    def __enter__(self):
        self.plain = self.module.randn_tensor
        self.module.randn_tensor = self.randn_tensor

    def __exit__(self, *_):
        self.module.randn_tensor = self.plain


class Newer:
    """Takes the place of FlowMatchingHead.sample by that of NextStep-1.1."""

    def __init__(self, module, heads):
        self.head, self.heads = module.FlowMatchingHead, heads

    def __enter__(self):
        self.plain, newer = self.head.sample, self.heads.FlowMatchingHead.sample
        self.head.sample = lambda head, c, cfg, cfg2, **more: newer(head, c, cfg, cfg2, **more)

    def __exit__(self, *_):
        self.head.sample = self.plain


def load(path):
    """The module in a file."""
    spec = spec_from_file_location("heads", path)
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Known:
    """Lets `sample` of the head return known tokens in place of drawn ones, whose noise is passed over."""

    def __init__(self, pipeline, out):
        generator = torch.Generator().manual_seed(11)
        self.head, self.position = pipeline.model.image_head, -1
        self.tokens = layer_norm(torch.randn(2, 16, TOKEN, generator=generator), (TOKEN,), eps=1e-6)
        self.mask = torch.tensor([[0, 1, 1, 0, 0, 0, 1, 0, 1, 1, 1, 0, 0, 1, 0, 1],
                                  [1, 1, 0, 0, 1, 0, 0, 0, 0, 1, 1, 0, 1, 0, 0, 0]])
        out["known.tokens"], out["known.mask"] = self.tokens, self.mask.float()

    def sample(self, *arguments, **more):
        drawn, self.position = self.plain(*arguments, **more), self.position + 1
        return torch.where(self.mask[:, self.position, None].bool(), self.tokens[:, self.position], drawn)

    def __enter__(self):
        self.plain, self.head.sample = self.head.sample, self.sample

    def __exit__(self, *_):
        del self.head.sample


def generate(pipeline, module, prompts=2, h=4, w=4, cfg=CFG, use_norm=True, last=1, **more):
    """Tokens [n][h*w][TOKEN] and pictures [n][H][W][3]. The pipeline takes all images for squares: it is told the sides
    here."""
    tokens, plain = [], pipeline.model.unpatchify
    pipeline.model.unpatchify = lambda z: plain(tokens.append(z.clone()) or z, h, w)
    with Noise(module, STEPS, last):
        pictures = pipeline.generate_image(
            [p["prompt"] for p in PROMPTS[:prompts]], hw=(h * pipeline.down_factor, w * pipeline.down_factor), cfg=cfg,
            negative_prompt=NEGATIVE, use_norm=use_norm, num_sampling_steps=STEPS, seed=None, progress=False, **more)
    del pipeline.model.unpatchify
    return tokens[0], torch.from_numpy(np.stack([np.asarray(picture) for picture in pictures]))


def write_images(pipeline, module, heads, out):
    def images(name, module=module, **more):
        out[f"images.{name}"], pictures = generate(pipeline, module, **more)
        return pictures

    out["pictures.square"] = images("square")[:1].to(torch.bfloat16)
    images("tall", h=3, w=2)
    images("raw", use_norm=False)
    images("shifted", timesteps_shift=1.5)
    images("linear", cfg_schedule="linear")
    images("plain", cfg=1.0)
    with Known(pipeline, out):
        images("forced")
    pipeline.model.config.use_gen_pos_embed = True
    images("pos")
    pipeline.model.config.use_gen_pos_embed = False
    with Newer(module, heads):
        images("newer", heads, last=0, use_norm=False)
        images("newer.shifted", heads, last=0, timesteps_shift=1.5)


def write_encoder(pipeline, out):
    picture = torch.randint(256, (64, 64, 3), generator=torch.Generator().manual_seed(13), dtype=torch.uint8)
    mean = pipeline.vae.encode(pipeline.pil2tensor(Image.fromarray(picture.numpy()))[None]).latent_dist.mean
    tokens = pipeline.model.patchify((mean - pipeline.shift_factor) * pipeline.scaling_factor)[0]
    out["encoded.picture"], out["encoded.tokens"] = picture.to(torch.bfloat16), tokens
    out["encoded.normed"] = layer_norm(tokens, (TOKEN,), eps=1e-6)


def write_decoder(pipeline, modules, out):
    tokens = torch.randn(1, 6, TOKEN, generator=torch.Generator().manual_seed(9))
    latents = pipeline.model.unpatchify(tokens, 2, 3) / pipeline.scaling_factor + pipeline.shift_factor
    pixels = pipeline.vae.decode(latents).sample[0]
    out["vae.tokens"], out["vae.latents"], out["vae.pixels"] = tokens[0], latents[0], pixels
    eight = np.array(modules.pipeline.to_pil(pixels, "11"))
    out["vae.picture"] = torch.from_numpy(eight).to(torch.bfloat16)


@torch.no_grad()
def main():
    torch.set_num_threads(1)
    modules = official(sys.argv[1])
    pipeline, out = make(modules, HERE / "data/nextstep"), {}
    write_ids(pipeline, out)
    write_forced(pipeline, out)
    write_head(pipeline, out)
    write_images(pipeline, modules.head, load(sys.argv[2]), out)
    write_encoder(pipeline, out)
    write_decoder(pipeline, modules, out)
    write_safetensors(HERE / "data/nextstep.safetensors", out, {"made_by": "tests/golden/make_nextstep.py"})
    for name, value in out.items():
        print(name, tuple(value.shape), f"{value.float().abs().max():.3g}")


if __name__ == "__main__":
    main()
