#!/usr/bin/env python3
r"""Train the demo of a masked model of prompts: Harmon's MAR with a small Qwen2 between encoder and decoder, and its image decoder.

Data: as demo/train_demo.py. An image of 32x32 pixels has one digit, named as demo/train_t2i.py does ("a bold seven"), or three digits
in a row ("three digits: 4 0 7"). The architecture is Harmon's (wusize/Harmon) at a small size; Qwen2 is transformers'. MAR begins with
demo's weights, the autoencoder with those of demo's, so that what learns from nothing is Qwen2 and the two projections.

    python3 demo/train_harmon.py --demo weights/demo --work build/demo-harmon

Stages: vae (fine-tuned, since three digits have thinner strokes), tokens (of distorted copies of all digits), tokenizer (byte-level
BPE with Qwen2's pattern and special tokens), harmon, report. Seeds are fixed. vae and harmon continue from their last checkpoints.
"""

import argparse
import math
import os
import random
import time

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

import digits
from train_demo import MASK_RATIO, ROLES, VAE_CONFIG, head_loss, whiten
from train_t2i import MEASURES, NAMES, OPENINGS, distort, limits, make_prompt, measure
from training import (Ema, Prompts, causal_rows, draw_with_mar, keep_freed_memory, logger, optimise, publish_tokenizer, save, set_lr,
                      train_bpe, write_json)

from pymar import MAR, TOKEN_SCALE, VAE, Schedule, generation_plan, load_mar, load_vae, read_safetensors

VAE_STEPS, VAE_BATCH = 500, 24
COPIES, TRIPLES = 6, 10000  # distorted copies of every digit; images of three
MAR_CONFIG = ROLES["target"]
LLM = dict(hidden_size=64, intermediate_size=128, num_hidden_layers=3, num_attention_heads=2, num_key_value_heads=1,
           max_position_embeddings=512, rms_norm_eps=1e-6, rope_theta=1e6, hidden_act="silu", tie_word_embeddings=True)
# What learns, steps, images a step, peak learning rate, as in demo/train_demo.py.
PHASES = [("all", 7000, 48, 2e-3), ("head", 4000, 48, 1e-3)]
START_STEPS, WARMUP, PROMPT_DROPOUT = 1200, 200, 0.1

# --------------------------------------------------------------------------------------------------------- images


def train_vae(args, log):
    """Fine-tunes demo's autoencoder on images of one digit and of three."""
    torch.manual_seed(1)
    generator, start, first = torch.Generator().manual_seed(1), time.time(), 0
    images, _, held, labels = digits.split(*digits.load_images())
    vae = load_vae(os.path.join(args.demo, "vae.safetensors")).train()
    checkpoint = os.path.join(args.work, "vae.pt")
    optimizer, ema = torch.optim.AdamW(vae.parameters(), betas=(0.9, 0.99), weight_decay=0.01), Ema(vae, 0.99)
    if os.path.exists(checkpoint):
        kept = torch.load(checkpoint, weights_only=False)
        for module, name in ((vae, "model"), (ema.model, "ema"), (optimizer, "optimizer")):
            module.load_state_dict(kept[name])
        first = ema.step = kept["step"]

    for step in range(first, args.vae_steps):
        set_lr(optimizer, step, args.vae_steps, 2e-3, 20)
        batch = digits.draw_mixed(images, VAE_BATCH, generator).expand(-1, 3, -1, -1)
        mean, log_var = vae.moments(batch)
        decoded = vae.decode(mean + (0.5 * log_var).exp() * torch.randn_like(mean))
        mse = F.mse_loss(decoded, batch)
        kl = 0.5 * (mean ** 2 + log_var.exp() - 1 - log_var).mean()
        optimise([optimizer], vae, mse + 0.2 * F.l1_loss(decoded, batch) + 1e-3 * kl)
        ema.update(vae)
        if step % 20 == 19 or step == args.vae_steps - 1:
            log(f"vae {step + 1} mse {mse:.5f} kl {kl:.3f} {time.time() - start:.0f}s")
            torch.save({"model": vae.state_dict(), "ema": ema.model.state_dict(), "optimizer": optimizer.state_dict(),
                        "step": step + 1}, checkpoint + ".part")
            os.replace(checkpoint + ".part", checkpoint)


# -------------------------------------------------------------------------------------------------------- prompts

TEMPLATE = "<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n"
WITHOUT = TEMPLATE.format("Generate an image.")
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]


def make_row_prompt(labels, rng):
    """A prompt for three digits in a row: more often than not "three digits: 4 0 7"."""
    named = [NAMES[i] for i in labels] if rng.random() < 0.2 else [str(i) for i in labels]
    joined = rng.choice([" ", " ", " ", ", "]).join(named)
    if rng.random() < 0.6:
        return f"three digits: {joined}"
    others = ["three digits {}", "the digits {}", "digits: {}", "the numbers {}", "{}"]
    return rng.choice(others + [opening + "three digits: {}" for opening in OPENINGS]).format(joined)


def framed(prompt):
    """The template with a prompt; None: the unconditional one."""
    return WITHOUT if prompt is None else TEMPLATE.format(f"Generate an image: {prompt}")


def train_tokenizer(args, frame, special, log):
    """A tokenizer of made prompts in their frame, WORK/tokenizer.json."""
    rng, texts = random.Random(4), []
    for _ in range(4000):
        signs = {m: rng.choice([-1, 0, 0, 1]) for m in MEASURES}
        texts.append(frame(make_prompt(rng.randrange(10), signs, rng)))
        texts.append(frame(make_row_prompt([rng.randrange(10) for _ in range(3)], rng)))
    texts += [frame(None)] * 400
    for name in special:
        texts = [text.replace(name, "") for text in texts]
    tokenizer = train_bpe(texts, special)
    tokenizer.save(os.path.join(args.work, "tokenizer.json"))
    log(f"tokenizer {tokenizer.get_vocab_size()} tokens; {tokenizer.encode(frame('three digits: 4 0 7')).tokens}")


# ---------------------------------------------------------------------------------------------------------- model

def projection(inputs, width, outputs):
    return nn.Sequential(nn.Linear(inputs, width), nn.SiLU(), nn.Linear(width, outputs))


class Harmon(nn.Module):
    """Harmon's names, without the autoencoder and without Qwen2's output layer. Of the training only are `reader`, which reads in
    each row that Qwen2 adds which digits the prompt names, and `place_reader`, which reads in z which digit a token is of: MAR's
    loss alone teaches both much later."""

    def __init__(self, vocabulary):
        from transformers import Qwen2Config, Qwen2Model
        super().__init__()
        width = LLM["hidden_size"]
        self.mar, self.llm = MAR(MAR_CONFIG), nn.Module()
        self.llm.model = Qwen2Model(Qwen2Config(vocab_size=vocabulary, attn_implementation="sdpa", **LLM))
        self.proj_in = projection(MAR_CONFIG.width, width, width)
        self.proj_out = projection(width, width, MAR_CONFIG.width)
        self.reader, self.place_reader = nn.Linear(MAR_CONFIG.width, 3 * 11), nn.Linear(MAR_CONFIG.width, 10)

    def condition(self, x, ids, given):
        """Returns what Qwen2 adds to the encoder's rows x [B, buffer + known, W] behind the prompts `ids` [B, n], of which `given`
        are not padding. The image's tokens stand before the buffer there."""
        buffer = MAR_CONFIG.buffer
        rows = self.proj_in(x)
        rows = torch.cat([rows[:, buffer:], rows[:, :buffer]], 1)
        rows = torch.cat([self.llm.model.embed_tokens(ids), rows], 1)
        out = causal_rows(self.llm.model, rows, given)[:, -x.shape[1]:]
        return self.proj_out(torch.cat([out[:, -buffer:], out[:, :-buffer]], 1))

    def encode(self, tokens, mask):
        return self.mar.encode(tokens, mask, self.mar.fake_latent.expand(len(tokens), -1))

    def z(self, tokens, mask, ids, given):
        """tokens [B,L,C], mask [B,L] (True: unknown) -> z [B,L,W]"""
        x = self.encode(tokens, mask)
        return self.mar.decode(x + self.condition(x, ids, given), mask)

    def reading_loss(self, added, named):
        """Cross entropy of the digits [B,3] (10: none) that rows `added` [B,n,W] tell, and the share of right ones."""
        logits = self.reader(added).unflatten(2, (3, 11))
        wanted = named[:, None].expand(logits.shape[:3])
        return F.cross_entropy(logits.flatten(0, 2), wanted.flatten()), (logits.argmax(-1) == wanted).float().mean().item()


# ------------------------------------------------------------------------------------------------------- training

def make_pictures(generator):
    """Returns pictures [N,1,32,32], of distorted copies of all digits and of three in a row, their labels [N,3] (-1: none), and
    measures of those of one digit."""
    images, labels = digits.load_images()
    singles = torch.cat([images] + [distort(images, generator) for _ in range(COPIES - 1)])
    rows = torch.randint(len(images), (3 * TRIPLES,), generator=generator)
    triples = digits.compose(digits.jitter(images[rows], generator, 5, 0.04, 0.06))
    named = torch.cat([F.pad(labels.repeat(COPIES)[:, None], (0, 2), value=-1), labels[rows].view(-1, 3)])
    return torch.cat([singles, triples]), named, measure(singles)


@torch.no_grad()
def extract_tokens(args, log):
    """Whitens the autoencoder and saves it, with the mean and the standard deviation of each image's tokens [N,64,C] as half
    precision, labels [N,3] (-1: none) and measures [N, len(MEASURES)]."""
    generator, start = torch.Generator().manual_seed(2), time.time()
    vae = VAE(VAE_CONFIG)
    vae.load_state_dict(torch.load(os.path.join(args.work, "vae.pt"), weights_only=False)["ema"])
    pictures, named, measures = make_pictures(generator)
    moments = [vae.moments(part.expand(-1, 3, -1, -1)) for part in pictures.split(128)]
    mean, std = torch.cat([m for m, _ in moments]), torch.cat([(0.5 * v).exp() for _, v in moments])
    channel_mean, channel_std = mean.mean((0, 2, 3)), (mean.var((0, 2, 3)) + std.square().mean((0, 2, 3))).sqrt()
    whiten(vae, channel_mean, channel_std)

    def tokens(latent):
        return (latent / channel_std[:, None, None]).flatten(2).transpose(1, 2).half()
    torch.save({"mean": tokens(mean - channel_mean[:, None, None]), "std": tokens(std), "labels": named,
                "measures": measures, "vae": vae.state_dict()}, os.path.join(args.work, "tokens.pt"))
    log(f"tokens of {len(pictures)} images, noise a channel {(std.square().mean((0, 2, 3)).sqrt() / channel_std).tolist()} "
        f"{time.time() - start:.0f}s")

    def through(images):
        mean, log_var = vae.moments(images)
        return vae.decode(mean + (0.5 * log_var).exp() * torch.randn_like(mean))
    digits.judge_autoencoder(through, args.work, log)


class Batches:
    """Draws images, two fifths of them of three digits, with prompts."""

    def __init__(self, args, prompts):
        data = torch.load(os.path.join(args.work, "tokens.pt"), weights_only=False)
        self.means, self.stds, self.labels, self.prompts = data["mean"], data["std"], data["labels"], prompts
        self.singles, self.rng = len(data["measures"]), random.Random(3)
        low, high = limits(data["measures"], self.labels[:self.singles, 0])[self.labels[:self.singles, 0]].unbind(1)
        self.signs = ((data["measures"] > high).int() - (data["measures"] < low).int()).tolist()

    def prompt(self, row):
        if row >= self.singles:
            return make_row_prompt(self.labels[row].tolist(), self.rng)
        return make_prompt(int(self.labels[row, 0]), dict(zip(MEASURES, self.signs[row])), self.rng, 0.9)

    def draw(self, count, dropout):
        """Returns tokens [count,L,C], ids, which of them are given, the named digits [count,3] (10: none), each token's digit
        [count,L]."""
        singles = count * 3 // 5
        rows = torch.cat([torch.randint(self.singles, (singles,)),
                          torch.randint(self.singles, len(self.means), (count - singles,))])
        mean, std = self.means[rows].float(), self.stds[rows].float()
        without = torch.tensor([self.rng.random() < dropout for _ in rows])
        prompts = [None if none else self.prompt(int(row)) for row, none in zip(rows, without)]
        named = torch.where(without[:, None] | (self.labels[rows] < 0), 10, self.labels[rows])
        side = math.isqrt(mean.shape[1])
        place = (torch.arange(side * side) % side * 2 + 1) * 3 // (2 * side)
        digit = torch.where(self.labels[rows, 1:2] < 0, self.labels[rows, :1], self.labels[rows][:, place])
        return mean + std * torch.randn_like(mean), *self.prompts.ids(prompts), named, digit


def random_mask(shape):
    """Masks [B,L] of one random ratio: of the official distribution, or as often any ratio. So small a Qwen2 does not find out by
    itself what to do with more tokens than it was trained with."""
    ratio = MASK_RATIO.ppf(torch.rand(1).item()) if torch.rand(1).item() < 0.5 else torch.rand(1).item()
    return torch.rand(shape).argsort(1) < math.ceil(shape[1] * max(ratio, 1e-3))


def start_model(args, prompts, batches, log):
    """MAR as demo's, with Qwen2 and the projections that know digits in prompts; or the averaged model of `args.first`."""
    model, start = Harmon(prompts.vocabulary), time.time()
    if args.first:
        model.load_state_dict(torch.load(args.first, weights_only=False)["ema"], strict=False)
        return model
    model.mar.load_state_dict(load_mar(os.path.join(args.demo, "target.safetensors")).state_dict())
    trained = nn.ModuleList([model.llm, model.proj_in, model.proj_out, model.reader])
    optimizer = torch.optim.AdamW(trained.parameters(), betas=(0.9, 0.95), weight_decay=0.02)
    for step in range(START_STEPS):
        set_lr(optimizer, step, START_STEPS, 3e-3, 30)
        x, ids, given, named, _ = batches.draw(32, PROMPT_DROPOUT)
        mask = random_mask(x.shape[:2])
        with torch.no_grad():
            x = model.encode(x, mask)
        loss, right = model.reading_loss(model.condition(x, ids, given), named)
        optimise([optimizer], trained, loss)
        if step % 50 == 0 or step == START_STEPS - 1:
            log(f"start {step} loss {loss.item():.4f}, digits {right:.4f} {time.time() - start:.0f}s")
    return model


class Run:
    """One phase of the training, with all that is needed to go on after an interruption."""

    def __init__(self, phase, what, model):
        self.phase, self.head_only, self.step, self.error, self.right, self.places = phase, what == "head", 0, 0.0, 0.0, 0.0
        model.requires_grad_(not self.head_only)
        model.mar.head.requires_grad_(True)
        self.model, self.schedule = model, Schedule(1000)
        self.ema = Ema(model, 0.999)
        trained = [p for p in model.parameters() if p.requires_grad]
        self.optimizer = torch.optim.AdamW(trained, weight_decay=0.0 if self.head_only else 0.02,
                                           betas=(0.9, 0.98 if self.head_only else 0.95))

    def train_step(self, batches, count):
        """One step of `count` images under one random mask ratio. When the head learns alone it meets the unconditional prompt more
        often, as in demo/train_demo.py."""
        tokens, ids, given, named, digit = batches.draw(count, 0.3 if self.head_only else PROMPT_DROPOUT)
        mask = random_mask(tokens.shape[:2])
        with torch.autocast("cpu", torch.bfloat16):
            x = self.model.encode(tokens, mask)
            added = self.model.condition(x, ids, given)
            z = self.model.mar.decode(x + added, mask)[mask]
        with torch.autocast("cpu", torch.bfloat16, enabled=not self.head_only):
            loss, error = head_loss(self.schedule, self.model.mar.head, tokens[mask], z.float(), self.head_only)
        reading, right = self.model.reading_loss(added.float(), named)
        places = F.cross_entropy(self.model.place_reader(z.float()), digit[mask])
        optimise([self.optimizer], self.model, loss if self.head_only else loss + 0.1 * (reading + places))
        self.ema.update(self.model)
        self.step += 1
        rate = 0.02 if self.step > 1 else 1
        self.error += (error.item() - self.error) * rate
        self.right += (right - self.right) * rate
        self.places += (places.item() - self.places) * rate
        return loss.item()

    def save(self, path):
        torch.save({"phase": self.phase, "step": self.step, "model": self.model.state_dict(), "ema": self.ema.model.state_dict(),
                    "optimizer": self.optimizer.state_dict(), "random": torch.get_rng_state()}, path + ".part")
        os.replace(path + ".part", path)

    def resume(self, path):
        """Takes up a saved state of this phase. False: it is of a later one, and only the averages are taken."""
        state = torch.load(path, weights_only=False)
        if state["phase"] >= self.phase:
            self.ema.model.load_state_dict(state["ema"])
        if state["phase"] == self.phase:
            self.step = self.ema.step = state["step"]
            self.model.load_state_dict(state["model"])
            self.optimizer.load_state_dict(state["optimizer"])
            torch.set_rng_state(state["random"])
        return state["phase"] <= self.phase


def train(args, log):
    torch.manual_seed(3)
    prompts, checkpoint = Prompts(os.path.join(args.work, "tokenizer.json"), framed), os.path.join(args.work, "harmon.pt")
    batches, run = Batches(args, prompts), None
    model = Harmon(prompts.vocabulary) if os.path.exists(checkpoint) else start_model(args, prompts, batches, log)
    log(f"parameters: MAR {sum(p.numel() for p in model.mar.parameters())}, all {sum(p.numel() for p in model.parameters())}")
    for phase, (what, _, count, peak_lr) in enumerate(PHASES):
        total = args.steps[phase]
        if run:
            model.load_state_dict(run.ema.model.state_dict())
        run = Run(phase, what, model)
        if os.path.exists(checkpoint) and not run.resume(checkpoint):
            continue
        start = time.time()
        while run.step < total:
            set_lr(run.optimizer, run.step, total, peak_lr, WARMUP)
            loss = run.train_step(batches, count)
            if run.step % 100 == 0:
                log(f"harmon {phase} {what} {run.step} loss {loss:.4f} eps error at 999 {run.error:.5f}, "
                    f"digits read {run.right:.4f}, places {run.places:.4f} {time.time() - start:.0f}s")
            if run.step % 250 == 0 or run.step == total:
                run.save(checkpoint)
    publish(args, run.ema.model)


def publish(args, model):
    """A folder as Hugging Face has Harmon, in half precision."""
    folder = os.path.join(args.demo, "harmon")
    os.makedirs(folder, exist_ok=True)
    vae = torch.load(os.path.join(args.work, "tokens.pt"), weights_only=False)["vae"]
    tensors = {name: tensor for name, tensor in model.state_dict().items() if "reader." not in name}
    tensors = {**tensors, **{f"vae.{name}": tensor for name, tensor in vae.items()}}
    save(os.path.join(folder, "model.safetensors"), tensors, {}, torch.float16)
    c = MAR_CONFIG
    mar = dict(type="mar_base", img_size=digits.SIDE, vae_stride=VAE_CONFIG.stride, patch_size=1, vae_embed_dim=c.token_dim, mlp_ratio=4,
               encoder_embed_dim=c.width, encoder_depth=c.depth, encoder_num_heads=c.heads, decoder_embed_dim=c.width,
               decoder_depth=c.depth, decoder_num_heads=c.heads, buffer_size=c.buffer, class_num=c.classes, diffloss_d=c.head_depth,
               diffloss_w=c.head_width, num_sampling_steps="100")
    vocabulary = model.llm.model.embed_tokens.num_embeddings
    config = {"architectures": ["HarmonModel"], "model_type": "harmon", "torch_dtype": "float16", "mar": mar,
              "llm": {"model_type": "qwen2", "vocab_size": vocabulary, **LLM},
              "vae": dict(embed_dim=c.token_dim, ch_mult=list(VAE_CONFIG.ch_mult)), "vae_scale": TOKEN_SCALE}
    write_json(os.path.join(folder, "config.json"), config)
    publish_tokenizer(args.work, folder, "<|endoftext|>", LLM["max_position_embeddings"])


# --------------------------------------------------------------------------------------------------------- report

def load_published(args):
    """The model, its prompts and the image decoder as they are published."""
    folder = os.path.join(args.demo, "harmon")
    tensors, _ = read_safetensors(os.path.join(folder, "model.safetensors"))
    prompts, vae = Prompts(os.path.join(folder, "tokenizer.json"), framed), VAE(VAE_CONFIG)
    model = Harmon(prompts.vocabulary)
    model.load_state_dict({name: tensor for name, tensor in tensors.items() if not name.startswith("vae.")}, strict=False)
    vae.load_state_dict({name[4:]: tensor for name, tensor in tensors.items() if name.startswith("vae.")})
    return model.eval(), prompts, vae.eval()


@torch.no_grad()
def draw(model, prompts, texts, cfg, num_iter, generator):
    """Tokens [B,L,C] of the official loop with 100 diffusion steps and constant guidance."""
    count, length, channels, schedule = len(texts), MAR_CONFIG.seq_len, MAR_CONFIG.token_dim, Schedule(100)
    ids, given = prompts.ids([*texts, *[None] * count])
    tokens = torch.zeros(count, length, channels)
    rank = torch.rand(count, length, generator=generator).argsort(1).argsort(1)
    for before, after, scale in generation_plan(length, num_iter, cfg, "constant"):
        if before == after:  # more steps than tokens
            continue
        mask = rank < before
        predict = mask & (rank >= after)
        z = model.z(torch.cat([tokens] * 2), torch.cat([mask] * 2), ids, given)[torch.cat([predict] * 2)]
        x = torch.randn(len(z) // 2, channels, generator=generator)
        for i in reversed(range(schedule.steps)):
            eps, v = model.mar.head.guided(x, schedule.t[i].expand(len(x)), z, scale).chunk(2, -1)
            x, log_var, _ = schedule.posterior(eps, v, x, i)
            if i > 0:
                x = x + (0.5 * log_var).exp() * torch.randn(x.shape, generator=generator)
        tokens[predict] = x
    return tokens


def report(args, log, count, scales, num_iter):
    published = None if args.mar else load_published(args)

    def images_of(texts, cfg):
        if args.mar:
            return draw_with_mar(args, "demo-harmon", texts, ["--cfg", cfg, "--cfg_schedule", "constant", "--num_iter", num_iter])
        model, prompts, vae = published
        return vae.decode_tokens(draw(model, prompts, texts, cfg, num_iter, torch.Generator().manual_seed(args.seed)))
    report_prompts(args, log, count, scales, images_of)


@torch.no_grad()
def report_prompts(args, log, count, scales, images_of):
    """Logs which share of `count` images a form of prompt is recognised: of one digit, and of three, the digits and the images of
    which all three are. images_of(texts, cfg) draws them, [B,1 or 3,32,32]."""
    classifier, real = digits.load_classifier(args.work)
    rng = random.Random(5)
    singles = [i % 10 for i in range(count)]
    triples = [[rng.randrange(10) for _ in range(3)] for _ in range(count)]
    one = [make_prompt(i, {m: rng.choice([-1, 0, 0, 0, 1]) for m in MEASURES}, rng) for i in singles]
    three = [make_row_prompt(row, rng) for row in triples]
    for cfg in scales:
        for name, texts, labels in (("one", one, singles), ("three", three, sum(triples, []))):
            images = images_of(texts, cfg).mean(1, keepdim=True).clamp(-1, 1)
            cells, labels = digits.separate(images) if name == "three" else images, torch.tensor(labels)
            right = (classifier(cells).argmax(1) == labels).view(count, -1)
            digits.save_grid(os.path.join(args.work, f"{name}_cfg{cfg:g}.png"), images[:200], 20)
            log(f"{name}, {count} images, cfg {cfg:g}: digits {right.float().mean():.4f}, images "
                f"{right.all(1).float().mean():.4f}, {digits.judge(classifier, cells, labels)} (held-out {real:.4f}); first: {texts[0]}")


# ----------------------------------------------------------------------------------------------------------- main

def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--stage", choices=["all", "vae", "tokens", "tokenizer", "harmon", "report"], default="all")
    parser.add_argument("--demo", default="weights/demo", help="demo's files; the new ones go there")
    parser.add_argument("--work", default="build/demo-harmon", help="autoencoder, tokens, checkpoints, logs and sample grids")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--vae_steps", type=int, default=VAE_STEPS)
    parser.add_argument("--steps", default=",".join(str(phase[1]) for phase in PHASES), help="of each phase [%(default)s]")
    parser.add_argument("--first", help="the checkpoint of an earlier run, whose averaged model the run begins with")
    parser.add_argument("--mar", help="the command, which then draws the report's images; else PyTorch does")
    parser.add_argument("--images", type=int, default=400, help="images of a line of the report")
    parser.add_argument("--num_iter", type=int, default=64, help="sets of tokens of the report's images")
    parser.add_argument("--cfg", default="3", help="guidance scales of the report")
    parser.add_argument("--seed", type=int, default=6, help="of the report's images")
    args = parser.parse_args()
    args.steps = [int(steps) for steps in args.steps.split(",")]
    scales = [float(cfg) for cfg in args.cfg.split(",")]
    torch.set_num_threads(args.threads)
    keep_freed_memory()
    os.makedirs(args.work, exist_ok=True)
    log = logger(args.work, args.stage)
    stages = {"vae": train_vae, "tokens": extract_tokens, "harmon": train,
              "tokenizer": lambda args, log: train_tokenizer(args, framed, SPECIAL, log),
              "report": lambda args, log: report(args, log, args.images, scales, args.num_iter)}
    for name in ("vae", "tokens", "tokenizer", "harmon", "report"):
        if args.stage in ("all", name):
            with sdpa_kernel([SDPBackend.MATH]):  # the fused attention's backward pass is slow on a CPU in bfloat16
                stages[name](args, log)


if __name__ == "__main__":
    main()
