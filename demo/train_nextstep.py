#!/usr/bin/env python3
r"""Train the demo of a language model whose image tokens are vectors: NextStep-1 at a small size, with its image decoder.

Data and prompts: as demo/train_harmon.py. The layout is NextStep-1's (stepfun-ai/NextStep-1): a trunk of Qwen2's kind, a flow head, and
Flux's decoder, whose latents are joined to tokens 2x2. All numbers of a token together have mean 0 and variance 1, in the tokens that
the model learns as in those that it draws, so the autoencoder has the same norm between its halves.

    python3 demo/train_nextstep.py --demo weights/demo --work build/demo-nextstep

Stages: vae (the decoder begins with layers of demo's), tokens, tokenizer, nextstep, report. Seeds are fixed.
"""

import argparse
import os
import time

import torch
import torch.nn.functional as F
from torch import nn

import digits
from train_harmon import Batches, make_pictures, report_prompts, train_tokenizer
from training import (Ema, Prompts, causal_rows, draw_with_mar, keep_freed_memory, logger, optimise, publish_tokenizer, save, set_lr,
                      transformer_optimizers, write_json)

from pymar import FlowHead, NextStepNet, VaeConfig, load_vae
from pymar.vae import Decoder

CHANNELS, PATCH, STRIDE = 4, 2, 8  # of a latent; latents of a token's side; pixels of a token's side
TOKEN, SIDE = CHANNELS * PATCH ** 2, digits.SIDE // STRIDE  # numbers of a token; tokens of an image's side
SCALE, SHIFT = 0.3611, 0.1159  # Flux's: latent = token / SCALE + SHIFT
DECODER = VaeConfig(ch=32, ch_mult=(1, 1, 1), num_res_blocks=1, z_channels=CHANNELS)
VAE_STEPS, VAE_BATCH, VAE_NOISE, TOKEN_NOISE = 800, 24, 0.3, 0.15
LLM = dict(hidden_size=96, intermediate_size=192, num_hidden_layers=4, num_attention_heads=3, num_key_value_heads=1,
           max_position_embeddings=512, rms_norm_eps=1e-6, rope_theta=1e6, hidden_act="silu", tie_word_embeddings=False)
HEAD_WIDTH, HEAD_DEPTH, HEAD_REPEATS = 128, 3, 4  # repeats: times and noises that the head sees of a token in a step
STEPS, BATCH, PEAK_LR, WARMUP, PROMPT_DROPOUT = 4000, 48, 3e-3, 100, 0.1
CHAIN, CFG = 50, 3  # the release's steps, the last one without noise; guidance by default, which the release has not in its files
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "[PAD]",
           *(f"<|{name}|>" for name in "image_area begin_of_image end_of_image image_placeholder".split())]


def framed(prompt):
    """A prompt (None: the empty one) and what stands between it and the first image token."""
    return f"{prompt or ''}<|image_area|>{SIDE}*{SIDE}<|begin_of_image|>"


# ------------------------------------------------------------------------------------------------------- autoencoder

def normalised(tokens):
    return F.layer_norm(tokens, tokens.shape[-1:], eps=1e-6)


class Autoencoder(nn.Module):
    """Images [B,3,H,W] -> tokens [B,L,TOKEN] -> images. The encoder is not published, so it is no more than two layers over pieces
    of 16x16 pixels."""

    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(nn.Conv2d(3, 256, 2 * STRIDE, STRIDE, STRIDE // 2), nn.SiLU(), nn.Conv2d(256, TOKEN, 1))
        self.decoder = Decoder(DECODER)

    def encode(self, images):
        return normalised(self.encoder(images).flatten(2).transpose(1, 2))

    def decode(self, tokens):
        grid = tokens.transpose(1, 2).unflatten(2, (SIDE, SIDE))
        return self.decoder(F.pixel_shuffle(grid, PATCH) / SCALE + SHIFT)

    def through(self, images, noise):
        tokens = self.encode(images)
        return self.decode(normalised(tokens + noise * torch.randn_like(tokens)))


def train_vae(args, log):
    torch.manual_seed(1)
    generator, start = torch.Generator().manual_seed(1), time.time()
    images, *_ = digits.split(*digits.load_images())
    vae, known = Autoencoder().to(memory_format=torch.channels_last), load_vae(os.path.join(args.demo, "vae.safetensors")).decoder
    own = vae.decoder.state_dict()
    vae.decoder.load_state_dict({name: tensor for name, tensor in known.state_dict().items()
                                 if name in own and own[name].shape == tensor.shape}, strict=False)
    optimizer, ema = torch.optim.AdamW(vae.parameters(), betas=(0.9, 0.99), weight_decay=0.01), Ema(vae, 0.99)
    for step in range(args.vae_steps):
        set_lr(optimizer, step, args.vae_steps, 3e-3, 50)
        batch = digits.draw_mixed(images, VAE_BATCH, generator).expand(-1, 3, -1, -1)
        decoded = vae.through(batch, VAE_NOISE)
        mse = F.mse_loss(decoded, batch)
        optimise([optimizer], vae, mse + 0.2 * F.l1_loss(decoded, batch))
        ema.update(vae)
        if step % 50 == 0 or step == args.vae_steps - 1:
            log(f"vae {step} mse {mse:.5f} {time.time() - start:.0f}s")
            torch.save(ema.model.state_dict(), os.path.join(args.work, "vae.pt"))


def load_autoencoder(args):
    vae = Autoencoder()
    vae.load_state_dict(torch.load(os.path.join(args.work, "vae.pt")))
    return vae.eval()


@torch.no_grad()
def extract_tokens(args, log):
    """Writes what train_harmon.Batches reads: tokens of pictures, the noise that training adds, labels and measures."""
    vae, start = load_autoencoder(args), time.time()
    pictures, named, measures = make_pictures(torch.Generator().manual_seed(2))
    mean = torch.cat([vae.encode(part.expand(-1, 3, -1, -1)).half() for part in pictures.split(128)])
    torch.save({"mean": mean, "std": torch.full((1, 1, 1), TOKEN_NOISE).expand_as(mean), "labels": named, "measures": measures},
               os.path.join(args.work, "tokens.pt"))
    log(f"tokens {list(mean.shape)} {time.time() - start:.0f}s, variance along their principal directions "
        + " ".join(f"{v:.2f}" for v in torch.linalg.svdvals(mean.flatten(0, 1).float()).square() / mean[..., 0].numel()))
    digits.judge_autoencoder(lambda images: vae.through(images, TOKEN_NOISE), args.work, log)


# ------------------------------------------------------------------------------------------------------------- model

class NextStep(nn.Module):
    """NextStep-1's names behind `llm.`, without the output layer of text. `reader` is of the training only: it reads in each
    condition which digits the prompt names, which the flow's loss alone teaches much later."""

    def __init__(self, vocabulary):
        from transformers import Qwen2Config, Qwen2Model
        super().__init__()
        width = LLM["hidden_size"]
        self.llm = Qwen2Model(Qwen2Config(vocab_size=vocabulary, attn_implementation="sdpa", **LLM))
        self.image_in_projector, self.image_out_projector = nn.Linear(TOKEN, width), nn.Linear(width, width)
        self.gen_pos_embed = nn.Parameter(torch.randn(1, SIDE ** 2, width) * 0.02)
        self.image_head = FlowHead(NextStepNet(HEAD_WIDTH, HEAD_DEPTH, TOKEN, width))
        self.reader = nn.Linear(width, 3 * 11)

    def conditions(self, ids, given, tokens):
        """The head's conditions [B,n+1,W] behind prompts `ids`, of which `given` are not padding, and behind tokens [B,n,TOKEN]"""
        rows = torch.cat([self.llm.embed_tokens(ids), self.image_in_projector(tokens)], 1)
        count = tokens.shape[1] + 1
        return self.image_out_projector(causal_rows(self.llm, rows, given)[:, -count:] + self.gen_pos_embed[:, :count])

    def loss(self, ids, given, tokens, named):
        c = self.conditions(ids, given, tokens[:, :-1])
        wanted = named[:, None].expand(-1, SIDE ** 2, -1)
        read = F.cross_entropy(self.reader(c).float().unflatten(2, (3, 11)).flatten(0, 2), wanted.flatten())
        repeated = (x.flatten(0, 1).repeat(HEAD_REPEATS, 1) for x in (tokens, c))
        return self.image_head.loss(*repeated), read

    @torch.no_grad()
    def draw(self, ids, given, cfg, generator):
        """Tokens [B,L,TOKEN] for B prompts, behind which as many empty ones stand in `ids`."""
        tokens = torch.zeros(len(ids), 0, TOKEN)
        for _ in range(SIDE ** 2):
            c = self.conditions(ids, given, tokens)[:, -1]
            token = normalised(self.image_head.sample(c, cfg, CHAIN - 1, generator))
            tokens = torch.cat([tokens, token[:, None]], 1)
        return tokens[:len(ids) // 2]


# ---------------------------------------------------------------------------------------------------------- training

def train(args, log):
    torch.manual_seed(3)
    prompts, start = Prompts(os.path.join(args.work, "tokenizer.json"), framed), time.time()
    batches, model, means = Batches(args, prompts), NextStep(prompts.vocabulary), [0.0, 0.0]
    optimizers, ema = transformer_optimizers(model, 0.02), Ema(model, 0.999)
    log(f"parameters: head {sum(p.numel() for p in model.image_head.parameters())}, all {sum(p.numel() for p in model.parameters())}")
    for step in range(args.steps):
        for optimizer in optimizers:
            set_lr(optimizer, step, args.steps, PEAK_LR, WARMUP)
        tokens, ids, given, named, _ = batches.draw(BATCH, PROMPT_DROPOUT)
        with torch.autocast("cpu", torch.bfloat16):
            losses = model.loss(ids, given, normalised(tokens), named)
        optimise(optimizers, model, losses[0] + 0.1 * losses[1])
        ema.update(model)
        means = [mean + (loss.item() - mean) * (0.02 if step else 1) for mean, loss in zip(means, losses)]
        if step % 100 == 0 or step == args.steps - 1:
            log(f"nextstep {step} loss {means[0]:.4f}, reading {means[1]:.4f} {time.time() - start:.0f}s")
        if step % 500 == 499 or step == args.steps - 1:
            torch.save(ema.model.state_dict(), os.path.join(args.work, "nextstep.pt"))
    publish(args, ema.model)


def publish(args, model):
    """A folder as NextStep-1's release has it, in half precision."""
    folder = os.path.join(args.demo, "nextstep")
    os.makedirs(os.path.join(folder, "vae"), exist_ok=True)
    tensors = {name.removeprefix("llm."): tensor for name, tensor in model.state_dict().items() if not name.startswith("reader.")}
    save(os.path.join(folder, "model.safetensors"), tensors, {})
    decoder = {f"decoder.{name}": tensor.half() for name, tensor in load_autoencoder(args).decoder.state_dict().items()}
    torch.save(decoder, os.path.join(folder, "vae/checkpoint.pt"))
    vocabulary = model.llm.embed_tokens.num_embeddings
    ids = {name: vocabulary - len(SPECIAL) + i for i, name in enumerate(SPECIAL)}
    write_json(os.path.join(folder, "config.json"), {
        "architectures": ["NextStepForCausalLM"], "model_type": "nextstep", "attention_bias": True, "o_attention_bias": False,
        "mlp_bias": False, "vocab_size": vocabulary, **LLM, "latent_size": SIDE, "latent_patch_size": PATCH, "latent_channels": CHANNELS,
        "fm_head_dim": HEAD_WIDTH, "fm_head_layers": HEAD_DEPTH, "fm_head_batch_mul": HEAD_REPEATS, "use_gen_pos_embed": True,
        "boi": ids["<|begin_of_image|>"], "eoi": ids["<|end_of_image|>"], "image_placeholder_id": ids["<|image_placeholder|>"],
        "pad_token_id_added": ids["[PAD]"], "cfg": CFG, "vae_name_or_path": "vae/", "torch_dtype": "float16"})
    write_json(os.path.join(folder, "vae/config.json"), {
        "resolution": digits.SIDE, "in_channels": 3, "ch": DECODER.ch, "out_ch": 3, "ch_mult": DECODER.ch_mult,
        "num_res_blocks": DECODER.num_res_blocks, "z_channels": CHANNELS, "scaling_factor": SCALE, "shift_factor": SHIFT,
        "deterministic": True, "encoder_norm": True, "psz": PATCH})
    publish_tokenizer(args.work, folder, "[PAD]", LLM["max_position_embeddings"])


def report(args, log):
    if not args.mar:
        prompts, vae = Prompts(os.path.join(args.work, "tokenizer.json"), framed), load_autoencoder(args)
        model = NextStep(prompts.vocabulary)
        model.load_state_dict(torch.load(os.path.join(args.work, "nextstep.pt")))
        model.eval()

    def images_of(texts, cfg):
        if args.mar:
            return draw_with_mar(args, "demo-nextstep", texts, ["--cfg", cfg])
        generator = torch.Generator().manual_seed(args.seed)
        return vae.decode(model.draw(*prompts.ids([*texts, *[None] * len(texts)]), cfg, generator))
    report_prompts(args, log, args.images, [float(cfg) for cfg in args.cfg.split(",")], images_of)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    stages = {"vae": train_vae, "tokens": extract_tokens,
              "tokenizer": lambda args, log: train_tokenizer(args, framed, SPECIAL, log), "nextstep": train, "report": report}
    parser.add_argument("--stage", choices=["all", *stages], default="all")
    parser.add_argument("--demo", default="weights/demo", help="demo's files; the new ones go there")
    parser.add_argument("--work", default="build/demo-nextstep", help="autoencoder, tokens, checkpoints, logs and sample grids")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--vae_steps", type=int, default=VAE_STEPS)
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--mar", help="the command, which then draws the report's images; else PyTorch does")
    parser.add_argument("--images", type=int, default=200, help="images of a line of the report")
    parser.add_argument("--cfg", default=str(CFG), help="guidance scales of the report")
    parser.add_argument("--seed", type=int, default=6, help="of the report's images")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    keep_freed_memory()
    os.makedirs(args.work, exist_ok=True)
    for name, stage in stages.items():
        if args.stage in ("all", name):
            stage(args, logger(args.work, name))


if __name__ == "__main__":
    main()
