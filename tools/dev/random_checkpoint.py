#!/usr/bin/env python3
"""Write a full-size checkpoint with random weights, so that speed can be measured without the real ones.

    python3 tools/dev/random_checkpoint.py --arch mar_base --out mar_base.pth
    python3 tools/dev/random_checkpoint.py --arch kl16 --out kl16.ckpt
    python3 tools/dev/random_checkpoint.py --arch detok_bb --out detok-BB.pth
    python3 tools/dev/random_checkpoint.py --arch gpt_l --seq_len 64 --out c2i_L.pt
    python3 tools/dev/random_checkpoint.py --arch t2i_xl --out t2i_XL_stage1_256.safetensors
    python3 tools/dev/random_checkpoint.py --arch eagle_xl --out pytorch_model.bin
    python3 tools/dev/random_checkpoint.py --arch vq16 --out vq_ds16_c2i.pt
    python3 tools/dev/random_checkpoint.py --arch spherear_b --out SphereAR_B.pt
    python3 tools/dev/random_checkpoint.py --arch flan_t5_xl --out flan-t5-xl
    python3 tools/dev/random_checkpoint.py --arch lumina_7b --depth 4 --out Lumina-mGPT-7B-768
    python3 tools/dev/random_checkpoint.py --arch vqgan --out vqgan.ckpt
    python3 tools/dev/random_checkpoint.py --arch harmon_0.5b --out Harmon-0_5B
    python3 tools/dev/random_checkpoint.py --arch unipic --out pytorch_model.bin
    python3 tools/dev/random_checkpoint.py --arch nextstep_14b --depth 4 --out NextStep-1-Large

The names, shapes and the .pth/.ckpt/.pt layout are the official ones. SphereAR's file has one set of weights, `ema`, and no image
encoder, which only mar edit needs. A T5 is a folder with shards and config.json, in f32 or with --bf16; its spiece.model is the
user's. lumina_7b, anole_7b and emu3_8b are folders with shards in bf16, config.json and a tokenizer of bytes; with --depth they have
fewer layers. vqgan is Chameleon's image decoder. detok_bb is l-DeTok's tokenizer, with stats.pkl beside it; the MAR models on it have the
shapes of mar_base and mar_large. harmon_0.5b, harmon_1.5b and unipic are folders in bf16 with image decoder and
tokenizer, or by the name's ending .pth or .bin the release's file beside a folder NAME-tokenizer; their image decoder is kl16.
nextstep_14b is a folder with shards in bf16, tokenizer and Flux's autoencoder in vae/; --depth as above.
eagle_xl is a drafter for t2i_xl as LANTERN publishes it. --seq_len is LlamaGen's
number of tokens and goes to the metadata of a safetensors file. Every tensor is random, also the adaLN and output layers. MAR's head is wired so that
eps is close to x at high noise. Thus the chain stays finite, in bfloat16 too, although the cosine schedule multiplies an
error of eps by 2e4 at its first step. The images are noise.
"""

import argparse
import pickle
import sys
from pathlib import Path

import torch
from torch import nn

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests/reference"))

from random_decoder import DECODERS, write_decoder  # noqa: E402
from random_harmon import HARMONS, write_harmon  # noqa: E402
from random_nextstep import FLUX, NEXTSTEPS, write_nextstep  # noqa: E402
from random_t5 import T5S, write_t5  # noqa: E402
from pymar import (ARCHS, GPT, KL16, MAR, VAE, VQ, GptConfig, SphereAR, SphereConfig, SphereVaeConfig,  # noqa: E402
                   VaeConfig, save_official_mar, save_official_vae, write_safetensors)
from pymar.vae import Decoder  # noqa: E402

GPTS = {  # width, depth, heads, hidden
    "gpt_b": (768, 12, 12, 2048),
    "gpt_l": (1024, 24, 16, 2816),
    "gpt_xl": (1280, 36, 20, 3584),
    "gpt_xxl": (1536, 48, 24, 4096),
    "gpt_3b": (3200, 24, 32, 8704),
}
TEXT_TO_IMAGE = {"t2i_xl": "gpt_xl"}  # the same layers behind 120 positions of a caption's 2048 features
EAGLES = {"eagle_xl": "gpt_xl"}
SPHERES = {
    "spherear_b": SphereConfig(),
    "spherear_l": SphereConfig(width=1024, depth=32, heads=16, head_width=1024, head_depth=8),
    "spherear_h": SphereConfig(width=1280, depth=40, heads=20, head_width=1280, head_depth=12, head_modulations=3),
}


@torch.no_grad()
def randomise(model, seed):
    """Weights of std 0.8 / sqrt(inputs), norms near 1, biases and embeddings small."""
    generator = torch.Generator().manual_seed(seed)
    for name, p in model.named_parameters():
        p.normal_(generator=generator)
        if p.ndim == 1:
            p.mul_(0.05)
            if name.endswith("weight"):  # of a norm
                p.add_(1.0)
        elif "pos_embed" in name or name in ("fake_latent", "mask_token", "class_emb.weight", "pos_for_diff.weight"):
            p.mul_(0.2)
        else:
            p.mul_(0.8 / p[0].numel() ** 0.5)


@torch.no_grad()
def tame_head(head, offset=8.0):
    """Make eps about x: the last layer reads the input projection back, and the blocks only perturb it.

    Between them stands a layer norm, which would fix the length of eps. A constant part of `offset` standard deviations,
    orthogonal to the projection, keeps the norm nearly independent of x.
    """
    width, channels = head.input_proj.weight.shape
    columns = torch.cat([torch.ones(width, 1), head.input_proj.weight, head.input_proj.bias[:, None]], dim=1)
    basis = torch.linalg.qr(columns)[0] * width ** 0.5  # orthogonal, of unit mean square; all but the first have mean 0
    head.input_proj.weight.copy_(basis[:, 1:-1] / channels ** 0.5)
    head.input_proj.bias.copy_(basis[:, -1] * offset)
    head.final_layer.linear.weight[:channels] = basis[:, 1:-1].t() * ((1 + offset ** 2) * channels) ** 0.5 / width
    head.final_layer.linear.weight[channels:] *= 0.3
    head.final_layer.linear.bias *= 0.1
    for block in head.res_blocks:
        block.mlp[2].weight *= 0.1
    head.final_layer.adaLN_modulation[1].weight *= 0.01
    head.final_layer.adaLN_modulation[1].bias *= 0.01


def random_mar(arch, seed=0):
    """A MAR of ARCHS[arch], or of a configuration, in eval mode with the weights this program writes."""
    with torch.device("meta"):
        model = MAR(ARCHS.get(arch, arch))
    model = model.to_empty(device="cpu")
    randomise(model, seed)
    tame_head(model.head)
    return model.eval()


def random_vae(seed=0, config=KL16):
    model = VAE(config)
    randomise(model, seed)
    return model.eval()


def random_gpt(arch, seq_len, seed=0):
    width, depth, heads, hidden = GPTS[arch]
    model = GPT(GptConfig(width=width, depth=depth, heads=heads, hidden=hidden, seq_len=seq_len))
    randomise(model, seed)
    return model.eval()


def random_tensor(generator, *shape):
    return torch.randn(shape, generator=generator) * (0.8 / shape[-1] ** 0.5)


def random_t2i(arch, seq_len, seed=0):
    """The tensors of a text-to-image model: those of a class-conditional one with a caption's projection for its classes."""
    state = dict(random_gpt(TEXT_TO_IMAGE[arch], seq_len, seed).state_dict())
    generator, width = torch.Generator().manual_seed(seed + 1), GPTS[TEXT_TO_IMAGE[arch]][0]
    del state["cls_embedding.embedding_table.weight"]
    state["cls_embedding.uncond_embedding"] = random_tensor(generator, 120, 2048)
    state["cls_embedding.cap_proj.fc1.weight"] = random_tensor(generator, width, 2048)
    state["cls_embedding.cap_proj.fc2.weight"] = random_tensor(generator, width, width)
    return state


def random_eagle(arch, seed=0):
    """The tensors of one of LANTERN's drafters."""
    width, _, _, hidden = GPTS[EAGLES[arch]]
    generator = torch.Generator().manual_seed(seed)
    state = {"embed_tokens.weight": random_tensor(generator, 16384, width)}
    for name in "qkvo":
        state[f"layers.0.self_attn.{name}_proj.weight"] = random_tensor(generator, width, width)
    state["layers.0.mlp.gate_proj.weight"] = random_tensor(generator, hidden, width)
    state["layers.0.mlp.up_proj.weight"] = random_tensor(generator, hidden, width)
    state["layers.0.mlp.down_proj.weight"] = random_tensor(generator, width, hidden)
    state["layers.0.post_attention_layernorm.weight"] = torch.ones(width)
    state["fc.weight"] = random_tensor(generator, width, 2 * width)
    state["fc.bias"] = 0.05 * torch.randn(width, generator=generator)
    return state


def random_vq(seed=0):
    model = VQ()
    randomise(model, seed)
    return model.eval()


def random_vqgan(seed=0):
    """The tensors of Chameleon's decoder of 8192 tokens, without its encoder."""
    model = nn.Module()
    model.decoder, model.post_quant_conv = Decoder(VaeConfig(z_channels=256)), nn.Conv2d(256, 256, 1)
    model.quantize = nn.Module()
    model.quantize.embedding = nn.Embedding(8192, 256)
    randomise(model, seed)
    return model.state_dict()


def random_detok(seed=0, width=768, depth=12, hidden=2048, grid=16, patch=16, channels=16):
    """The tensors of l-DeTok's tokenizer, and the statistics of its latents."""
    generator, state = torch.Generator().manual_seed(seed), {}

    def layer(name, *shape):
        state[f"{name}.weight"] = torch.randn(shape, generator=generator) * (0.8 / torch.Size(shape[1:]).numel() ** 0.5)
        state[f"{name}.bias"] = 0.05 * torch.randn(shape[0], generator=generator)

    def norm(name):
        state[f"{name}.weight"] = 1 + 0.05 * torch.randn(width, generator=generator)
    for side in ("encoder", "decoder"):
        state[f"{side}.positional_embedding"] = 0.2 * torch.randn(1, grid * grid, width, generator=generator)
        if side == "encoder":
            layer("encoder.patch_embed.0", width, 3, patch, patch)
        else:
            state["decoder.mask_token"] = 0.2 * torch.randn(1, 1, width, generator=generator)
            layer("decoder.decoder_embed", width, channels)
        norm(f"{side}.ln_pre")
        for i in range(depth):
            name = f"{side}.transformer.{i}"
            norm(f"{name}.norm1"), norm(f"{name}.norm2")
            layer(f"{name}.attn.qkv", 3 * width, width), layer(f"{name}.attn.proj", width, width)
            layer(f"{name}.mlp.w12", 2 * hidden, width), layer(f"{name}.mlp.w3", width, hidden)
        norm(f"{side}.ln_post")
    layer("encoder.latent_head", 2 * channels, width)
    layer("decoder.ffn.1", 3 * patch * patch, width, 1, 1)
    layer("decoder.conv_out", 3, 3, 3, 3)
    mean = 0.3 * torch.randn(2 * channels, generator=generator)
    return state, (mean, 1 + torch.rand(2 * channels, generator=generator))


def random_spherear(arch, seed=0):
    """With its image decoder. A layer norm stands before the velocity, so the chain stays finite as it is."""
    model = SphereAR(SPHERES[arch], SphereVaeConfig())
    randomise(model, seed)
    return model.eval()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    archs = [*ARCHS, "kl16", "detok_bb", *GPTS, *TEXT_TO_IMAGE, *EAGLES, "vq16", "vqgan", *SPHERES, *T5S, *DECODERS, *HARMONS,
             *NEXTSTEPS]
    parser.add_argument("--arch", choices=archs, required=True)
    parser.add_argument("--out", required=True)
    parser.add_argument("--format", choices=["pth", "safetensors"], help="default: by the name of --out")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seq_len", type=int, default=256)
    parser.add_argument("--depth", type=int, help="layers of a folder of lumina_7b, anole_7b, emu3_8b or nextstep_14b; default: the "
                        "official number")
    parser.add_argument("--bf16", action="store_true", help="a T5's shards in bf16")
    args = parser.parse_args()
    if args.arch in DECODERS:
        write_decoder(args.arch, args.out, args.depth, args.seed)
        return
    if args.arch in HARMONS:
        _, towers, side = HARMONS[args.arch]
        write_harmon(args.arch, args.out, random_mar(ARCHS[towers].with_(seq_len=side * side), args.seed), random_vae(args.seed), args.seed)
        return
    if args.arch in NEXTSTEPS:
        write_nextstep(args.arch, args.out, random_vae(args.seed, FLUX), args.depth, args.seed)
        return
    if args.arch == "vqgan":
        torch.save({"state_dict": random_vqgan(args.seed)}, args.out)
        return
    if args.arch == "detok_bb":
        state, channel = random_detok(args.seed)
        torch.save({"model": {name: 1.01 * tensor for name, tensor in state.items()}, "model_ema": state}, args.out)
        Path(args.out).with_name("stats.pkl").write_bytes(pickle.dumps({Path(args.out).stem: {"channel": channel}}))
        return
    if args.arch in T5S:
        write_t5(args.arch, args.out, torch.bfloat16 if args.bf16 else torch.float32, args.seed)
        return
    safetensors = (args.format or ("safetensors" if args.out.endswith(".safetensors") else "pth")) == "safetensors"
    if args.arch == "kl16":
        state = random_vae(args.seed).state_dict()
        if safetensors:
            write_safetensors(args.out, state, {"format": "pt", "mar.kind": "vae", "mar.vae_stride": KL16.stride})
        else:
            save_official_vae(args.out, state)
        return
    if args.arch in EAGLES:
        torch.save({name: tensor.half() for name, tensor in random_eagle(args.arch, args.seed).items()}, args.out)
        return
    if args.arch in TEXT_TO_IMAGE:
        state = random_t2i(args.arch, args.seq_len, args.seed)
        heads = GPTS[TEXT_TO_IMAGE[args.arch]][2]
        if safetensors:
            write_safetensors(args.out, {name: tensor.bfloat16() for name, tensor in state.items()},
                              {"format": "pt", "mar.kind": "llamagen", "mar.heads": heads, "mar.seq_len": args.seq_len})
        else:
            torch.save({"model": state}, args.out)
        return
    if args.arch in GPTS or args.arch == "vq16":
        metadata = {"format": "pt", "mar.kind": "vq", "mar.vae_stride": 16}
        if args.arch in GPTS:
            metadata = {"format": "pt", "mar.kind": "llamagen", "mar.heads": GPTS[args.arch][2], "mar.seq_len": args.seq_len}
        model = random_vq(args.seed) if args.arch == "vq16" else random_gpt(args.arch, args.seq_len, args.seed)
        if safetensors:
            state = {name: tensor.bfloat16() for name, tensor in model.state_dict().items()}
            write_safetensors(args.out, state, metadata)
        else:
            torch.save({"model": model.state_dict()}, args.out)
        return
    if args.arch in SPHERES:
        state = random_spherear(args.arch, args.seed).state_dict()
        if safetensors:
            state = {name: tensor.bfloat16() for name, tensor in state.items()}
            write_safetensors(args.out, state, {"format": "pt", "mar.kind": "spherear", "mar.heads": SPHERES[args.arch].heads})
        else:
            torch.save({"ema": state}, args.out)
        return
    config, state = ARCHS[args.arch], random_mar(args.arch, args.seed).state_dict()
    if safetensors:
        write_safetensors(args.out, state, {"format": "pt", "mar.kind": "mar", "mar.heads": config.heads, "mar.vae_stride": 16})
    else:  # the raw weights differ from the averaged ones, so that a reader that takes the wrong set is noticed
        raw = {name: tensor + 0.01 * tensor.abs().mean() for name, tensor in state.items()}
        save_official_mar(args.out, raw, state, model=args.arch, img_size=256, vae_stride=16, patch_size=1,
                          vae_embed_dim=config.token_dim, class_num=config.classes, buffer_size=config.buffer,
                          diffloss_d=config.head_depth, diffloss_w=config.head_width, ema_rate=0.9999)


if __name__ == "__main__":
    main()
