#!/usr/bin/env python3
r"""Train the demo of a decoder that writes images among text: Chameleon's transformer and sequences as Lumina-mGPT has them,
over the tokens of a VQ decoder in Chameleon's layout.

Data: as demo/train_demo.py. An image has one or two rows of one to three digits, 32x32 pixels each; its prompt names them:
"two rows of three digits: 1 2 3 / 4 5 6". A sequence is bos, prompt, end of turn, begin of image, height and width in units of
32 pixels, rows of image tokens each with a line end, end of image. The architecture is that of transformers' class
ChameleonForConditionalGeneration, which is what is trained here.

    python3 demo/train_mgpt.py --demo weights/demo --work build/demo-mgpt

Stages: vq, refine (of the same), codes (of jittered copies of all digits), tokenizer, mgpt, report. Seeds are fixed. vq and mgpt
continue from their last checkpoints.
"""

import argparse
import json
import os
import random
import shutil
import subprocess
import time

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from torch import nn

import digits
from training import Ema, keep_freed_memory, logger, optimise, save, set_lr

from pymar import VaeConfig, read_safetensors
from pymar.vae import Decoder, Encoder

SIDE, STRIDE, CELL = 32, 8, 4  # pixels of a digit's side; of a token's; tokens of a digit's
CODEBOOK, CODE_DIM = 512, 8
GRIDS = [(1, 1), (1, 2), (1, 3), (2, 1), (2, 2), (2, 3)]  # rows and columns of digits
VQ_CONFIG = VaeConfig(ch=32, ch_mult=(1, 1, 1, 2), num_res_blocks=1, z_channels=16, encoder_attention=False)
VQ_STEPS, REFINE_STEPS, VQ_CELLS = 480, 240, 24
COPIES = 6
MODEL = dict(hidden_size=128, intermediate_size=256, num_hidden_layers=4, num_attention_heads=4, num_key_value_heads=4,
             max_position_embeddings=256, rms_norm_eps=1e-5, hidden_act="silu", tie_word_embeddings=False, attention_bias=False,
             attention_dropout=0.0, mlp_bias=False, swin_norm=False, bos_token_id=0, pad_token_id=1, eos_token_id=2)
STEPS, CELLS, PEAK_LR, WARMUP, PROMPT_DROPOUT = 980, 96, 1e-2, 40, 0.1

# ------------------------------------------------------------------------------------------------------- sequences

NUMBERS = "zero one two three".split()
# Chameleon's names. The numbers of the ids differ: <racm3:break> is 8197 there.
FIRST = ["<s>", "<pad>", "</s>", "<unk>"]
BREAK, END_OF_IMAGE, END_OF_TURN, LINE_END = "<racm3:break>", "<eoss>", "<reserved08706>", "<reserved08799>"
OTHERS = [END_OF_IMAGE, BREAK, END_OF_TURN, LINE_END] + [f"<reserved{8800 + n:05d}>" for n in range(4)] + ["<image>"]


def image_token(number):
    """Chameleon's name of a codebook's row: its decimal digits as letters from A on."""
    return "IMGIMG" + "".join(chr(ord("A") + int(digit)) for digit in str(number)) + "Z"


def make_prompt(grid, labels):
    """The prompt of an image: its digits row by row, labels [rows * columns]."""
    rows, columns = grid
    lines = " / ".join(" ".join(str(int(label)) for label in labels[i * columns:(i + 1) * columns]) for i in range(rows))
    return (f"{NUMBERS[rows]} row{'s' * (rows > 1)} of {NUMBERS[columns]} digit{'s' * (columns > 1)}: {lines}")


def train_tokenizer(path, log):
    """A byte-level BPE of made prompts as tokenizer.json: special and image tokens first, then bytes and merges."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
    rng = random.Random(4)
    texts = []
    for _ in range(2000):
        grid = rng.choice(GRIDS)
        texts.append(make_prompt(grid, [rng.randrange(10) for _ in range(grid[0] * grid[1])]))
    images = [image_token(number) for number in range(CODEBOOK)]
    first = FIRST + images + OTHERS
    learned = Tokenizer(models.BPE())
    learned.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(vocab_size=10 ** 4, min_frequency=2, special_tokens=first, show_progress=False,
                                  initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    learned.train_from_iterator(texts, trainer)
    model = json.loads(learned.to_str())["model"]
    tokenizer = Tokenizer(models.BPE(vocab=model["vocab"], merges=[tuple(m) for m in model["merges"]]))
    tokenizer.pre_tokenizer, tokenizer.decoder = learned.pre_tokenizer, decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(name, special=True, normalized=False) for name in FIRST + OTHERS])
    tokenizer.save(path)
    log(f"tokenizer {tokenizer.get_vocab_size()} tokens; {tokenizer.encode(texts[0]).tokens}")


class Sequences:
    """Ids of prompts and images, by a tokenizer.json."""

    def __init__(self, path):
        from tokenizers import Tokenizer
        self.tokenizer = Tokenizer.from_file(path)
        self.id = self.tokenizer.get_vocab()
        self.first_image = self.id[image_token(0)]
        self.vocabulary = len(self.id)

    def begin(self, grid):
        """From the begin of an image to its size: also the whole context without a prompt."""
        return [self.id[BREAK]] + [self.id[f"<reserved{8800 + side:05d}>"] for side in grid]

    def prompt(self, grid, labels):
        text = self.tokenizer.encode(make_prompt(grid, labels)).ids
        return [self.id["<s>"], *text, self.id[END_OF_TURN], *self.begin(grid)]

    def image(self, codes):
        """codes [B, rows of tokens, columns] -> ids with line ends and the end of the image, [B, n]"""
        ends = torch.full((*codes.shape[:2], 1), self.id[LINE_END])
        rows = torch.cat([codes + self.first_image, ends], 2).flatten(1)
        return torch.cat([rows, torch.full((len(codes), 1), self.id[END_OF_IMAGE])], 1)


def compose(cells, grid):
    """cells [B * rows * columns, ..., h, w] -> [B, ..., rows * h, columns * w]"""
    rows, columns = grid
    *middle, h, w = cells.shape[1:]
    x = cells.reshape(-1, rows, columns, *middle, h, w)
    order = [0, *range(3, 3 + len(middle)), 1, 3 + len(middle), 2, 4 + len(middle)]
    return x.permute(order).reshape(len(x), *middle, rows * h, columns * w)


def separate(images, grid):
    """The inverse of compose for images [B, C, rows * h, columns * w]."""
    rows, columns = grid
    b, c, h, w = images.shape
    x = images.reshape(b, c, rows, h // rows, columns, w // columns).permute(0, 2, 4, 1, 3, 5)
    return x.reshape(b * rows * columns, c, h // rows, w // columns)


# ------------------------------------------------------------------------------------------------------- tokenizer of images

class Codebook(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(CODEBOOK, CODE_DIM)

    def forward(self, z):
        """z [N, CODE_DIM] -> the numbers of the nearest rows and the squared distances [N, CODEBOOK]"""
        rows = self.embedding.weight.detach()
        distance = z.detach().square().sum(1, keepdim=True) - 2 * z.detach() @ rows.t() + rows.square().sum(1)
        return distance.argmin(1), distance


class VQ(nn.Module):
    """Meta's names. The encoder sees one digit at a time, so that its tokens do not depend on the digits beside it."""

    def __init__(self):
        super().__init__()
        self.encoder, self.decoder, self.quantize = Encoder(VQ_CONFIG), Decoder(VQ_CONFIG), Codebook()
        self.quant_conv = nn.Conv2d(2 * VQ_CONFIG.z_channels, CODE_DIM, 1)
        self.post_quant_conv = nn.Conv2d(CODE_DIM, VQ_CONFIG.z_channels, 1)

    def encode(self, images):
        """images [B,1,32,32] -> codes [B,4,4]"""
        h = self.quant_conv(self.encoder(images.expand(-1, 3, -1, -1)))
        return self.quantize(h.permute(0, 2, 3, 1).flatten(0, 2))[0].reshape(len(h), *h.shape[2:])

    def decode_codes(self, codes):
        """codes [B,h,w] -> images [B,1,8h,8w]"""
        rows = self.quantize.embedding.weight[codes].permute(0, 3, 1, 2)
        return self.decoder(self.post_quant_conv(rows)).mean(1, keepdim=True)


def vq_step(vq, batch, grid):
    """(loss, mean square error, encodings, codes, distances) of digits [B,1,32,32] that stand in images of `grid`."""
    h = vq.quant_conv(vq.encoder(batch.expand(-1, 3, -1, -1)))
    z = h.permute(0, 2, 3, 1).flatten(0, 2)
    codes, distance = vq.quantize(z)
    rows = vq.quantize.embedding.weight[codes]
    latent = (z + (rows - z).detach()).reshape(len(batch), CELL, CELL, CODE_DIM).permute(0, 3, 1, 2)
    decoded = vq.decoder(vq.post_quant_conv(compose(latent, grid)))
    wanted = compose(batch, grid).expand(-1, 3, -1, -1)
    mse = F.mse_loss(decoded, wanted)
    loss = mse + 0.2 * F.l1_loss(decoded, wanted) + F.mse_loss(rows, z.detach()) + 0.25 * F.mse_loss(z, rows.detach())
    return loss, mse.item(), z.detach(), codes, distance


@torch.no_grad()
def restart(vq, used, z, distance):
    """Puts rows that no encoding has used in a while where encodings are that the codebook misses."""
    dead = (used < 0.3).nonzero()[:, 0]
    if len(dead):
        rows = torch.multinomial(distance.amin(1).clamp(min=0) + 1e-8, len(dead), replacement=True)
        vq.quantize.embedding.weight[dead] = z[rows] + 0.01 * torch.randn(len(dead), CODE_DIM)
        used[dead] = 1.0


@torch.no_grad()
def fit_codebook(vq, images, generator, copies=6, rounds=25):
    """Sets the codebook to k-means of the encodings of jittered digits: gradients alone leave rows far from their encodings."""
    z = []
    for _ in range(copies):
        for part in digits.jitter(images, generator, 6, 0.05, 0.06).split(128):
            h = vq.quant_conv(vq.encoder(part.expand(-1, 3, -1, -1)))
            z.append(h.permute(0, 2, 3, 1).flatten(0, 2))
    z = torch.cat(z)
    rows = z[torch.randperm(len(z), generator=generator)[:CODEBOOK]].clone()
    for _ in range(rounds):
        vq.quantize.embedding.weight.copy_(rows)
        nearest = [vq.quantize(part) for part in z.split(4096)]
        codes, distance = torch.cat([c for c, _ in nearest]), torch.cat([d.amin(1) for _, d in nearest]).clamp(min=0)
        counts = torch.bincount(codes, minlength=CODEBOOK)
        rows = torch.zeros_like(rows).index_add_(0, codes, z) / counts.clamp(min=1)[:, None]
        empty = (counts == 0).nonzero()[:, 0]
        rows[empty] = z[torch.multinomial(distance + 1e-8, len(empty), generator=generator)] if len(empty) else rows[empty]
    return distance.mean().item() / CODE_DIM


def refine_vq(args, log):
    """The second half of the training: the codebook by k-means, then the decoder alone."""
    torch.manual_seed(2)
    rng, generator = random.Random(2), torch.Generator().manual_seed(2)
    images, _, held, labels = digits.split(*digits.load_images())
    vq, start = VQ(), time.time()
    vq.load_state_dict(torch.load(os.path.join(args.work, "vq.pt"), weights_only=False)["ema"])
    log(f"codebook by k-means, mean square distance {fit_codebook(vq, images, generator):.4f}, {time.time() - start:.0f}s")
    vq.encoder.requires_grad_(False)
    vq.quant_conv.requires_grad_(False)
    vq.quantize.requires_grad_(False)
    trained = nn.ModuleList([vq.decoder, vq.post_quant_conv])
    optimizer, ema = torch.optim.AdamW(trained.parameters(), lr=1e-3, betas=(0.9, 0.99), weight_decay=0.01), Ema(vq, 0.98)
    for step in range(args.refine_steps):
        set_lr(optimizer, step, args.refine_steps, 1.5e-3, 20)
        batch = digits.jitter(images[torch.randint(len(images), (VQ_CELLS,), generator=generator)], generator, 6, 0.05, 0.06)
        loss, mse, *_ = vq_step(vq, batch, rng.choice(GRIDS))
        optimise([optimizer], trained, loss)
        ema.update(vq)
        if step % 20 == 0 or step == args.refine_steps - 1:
            log(f"refine {step} mse {mse:.5f} {time.time() - start:.0f}s")
            torch.save(ema.model.state_dict(), os.path.join(args.work, "vq_ema.pt"))
    vq = ema.model
    kept = {name: tensor for name, tensor in vq.state_dict().items() if not name.startswith(("encoder.", "quant_conv."))}
    save(os.path.join(args.demo, "mgpt-vq.safetensors"), kept, {"mar.kind": "vq", "mar.vae_stride": STRIDE})
    judge_vq(args, vq, held, labels, log)


def train_vq(args, log):
    torch.manual_seed(1)
    rng, generator = random.Random(1), torch.Generator().manual_seed(1)
    images, _, held, labels = digits.split(*digits.load_images())
    vq, checkpoint = VQ(), os.path.join(args.work, "vq.pt")
    optimizer = torch.optim.AdamW(vq.parameters(), lr=1e-3, betas=(0.9, 0.99), weight_decay=0.01)
    ema, start, used, first = Ema(vq, 0.99), time.time(), torch.zeros(CODEBOOK), 0
    if os.path.exists(checkpoint):
        kept = torch.load(checkpoint, weights_only=False)
        for module, name in ((vq, "model"), (ema.model, "ema"), (optimizer, "optimizer")):
            module.load_state_dict(kept[name])
        first, ema.step, used = kept["step"], kept["step"], kept["used"]
    log(f"vq parameters: decoder {sum(p.numel() for p in vq.decoder.parameters())}, all {sum(p.numel() for p in vq.parameters())}")
    for step in range(first, args.vq_steps):
        set_lr(optimizer, step, args.vq_steps, 2e-3, 100)
        grid = rng.choice(GRIDS)
        batch = digits.jitter(images[torch.randint(len(images), (VQ_CELLS,), generator=generator)], generator, 10, 0.08, 0.1)
        loss, mse, z, codes, distance = vq_step(vq, batch, grid)
        optimise([optimizer], vq, loss)
        ema.update(vq)
        used.mul_(0.98).add_(torch.bincount(codes, minlength=CODEBOOK))
        if step % 20 == 9 and step < args.vq_steps // 2:
            restart(vq, used, z, distance)
            ema.model.quantize.load_state_dict(vq.quantize.state_dict())
        if step % 20 == 0 or step == args.vq_steps - 1:
            log(f"vq {step} mse {mse:.5f} code distance {distance.amin(1).mean():.4f} codes {codes.unique().numel()} "
                f"{time.time() - start:.0f}s")
            torch.save({"model": vq.state_dict(), "ema": ema.model.state_dict(), "optimizer": optimizer.state_dict(),
                        "step": step + 1, "used": used}, checkpoint)
    judge_vq(args, ema.model, held, labels, log)


@torch.no_grad()
def judge_vq(args, vq, images, labels, log):
    """Logs how many digits that it was not trained on are recognised after encoding and decoding, as parts of images of 2 x 3."""
    classifier, real = digits.train_classifier()
    images, labels = images[:len(images) // 6 * 6], labels[:len(labels) // 6 * 6]
    codes = vq.encode(images)
    decoded = separate(vq.decode_codes(compose(codes, (2, 3))), (2, 3)).clamp(-1, 1)
    recognised = (classifier(decoded).argmax(1) == labels).float().mean()
    log(f"vq held-out mse {F.mse_loss(decoded, images):.5f}, codes used {codes.unique().numel()}, recognised {recognised:.4f} "
        f"(real {real:.4f})")
    digits.save_grid(os.path.join(args.work, "vq.png"), torch.cat([images[:60], decoded[:60]]), 20)


@torch.no_grad()
def extract_codes(args, log):
    """Writes codes [COPIES * 1797, 4, 4] and labels; the first copy is the digits themselves."""
    generator, vq = torch.Generator().manual_seed(2), VQ()
    vq.load_state_dict(torch.load(os.path.join(args.work, "vq_ema.pt")))
    images, labels = digits.load_images()
    codes = []
    for copy_index in range(COPIES):
        batch = images if copy_index == 0 else digits.jitter(images, generator, 4, 0.03, 0.04)
        codes += [vq.encode(part) for part in batch.split(128)]
    codes = torch.cat(codes)
    np.savez_compressed(os.path.join(args.work, "codes.npz"), codes=codes.numpy().astype(np.uint16),
                        labels=labels.repeat(COPIES).numpy().astype(np.uint16))
    log(f"codes {list(codes.shape)}, {codes.unique().numel()} used")


# -------------------------------------------------------------------------------------------------------- transformer

def config_of(sequences):
    from transformers import ChameleonConfig
    vocabulary = {name: i for name, i in sorted(sequences.id.items(), key=lambda pair: pair[1])}
    return ChameleonConfig(vocab_size=sequences.vocabulary, vocabulary_map=vocabulary, **MODEL,
                           vq_config=dict(embed_dim=CODE_DIM, num_embeddings=CODEBOOK, base_channels=32, channel_multiplier=[1],
                                          num_res_blocks=1, latent_channels=CODE_DIM, resolution=SIDE, attn_resolutions=None))


def new_model(sequences):
    """transformers' model without the image encoder that belongs to its class."""
    from transformers import ChameleonForConditionalGeneration
    model = ChameleonForConditionalGeneration(config_of(sequences))
    del model.model.vqmodel
    return model


def image_logits(model, ids):
    """Logits [B, n, vocabulary]. The class's own forward hides image tokens."""
    return model.lm_head(model.model(input_ids=ids, use_cache=False).last_hidden_state)


class Muon(torch.optim.Optimizer):
    """torch.optim.Muon with match_rms_adamw, in float32: its bfloat16 takes three quarters of a step on a processor without it."""

    def __init__(self, matrices, weight_decay):
        super().__init__(matrices, dict(lr=1e-3, weight_decay=weight_decay))

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                mean = self.state[p].setdefault("mean", torch.zeros_like(p))
                mean.lerp_(p.grad, 0.05)
                x = torch.lerp(p.grad, mean, 0.95)
                x = x.t() if len(x) > x.shape[1] else x
                x = x / x.norm().clamp(min=1e-7)
                for _ in range(5):
                    gram = x @ x.t()
                    x = 3.4445 * x + (-4.775 * gram + 2.0315 * gram @ gram) @ x
                x = x if x.shape == p.shape else x.t()
                p.mul_(1 - group["lr"] * group["weight_decay"]).sub_(x, alpha=group["lr"] * 0.2 * max(p.shape) ** 0.5)


def make_optimizers(model):
    """Muon for the matrices of layers, AdamW for embeddings, norms and the output layer."""
    matrices = {name for name, p in model.named_parameters() if p.dim() == 2 and name.endswith("_proj.weight")}
    muon, adam = ([p for name, p in model.named_parameters() if (name in matrices) == wanted] for wanted in (True, False))
    return [Muon(muon, 0.05), torch.optim.AdamW(adam, betas=(0.9, 0.95), weight_decay=0.0)]


def make_batch(sequences, grid, codes, labels, rng):
    """Ids [B, n], padded behind, and the wanted ids [B, n], -100 where there is nothing to learn."""
    rows, columns = grid
    ids, wanted = [], []
    images = sequences.image(compose(codes, grid)).tolist()
    for image, named in zip(images, labels.reshape(-1, rows * columns).tolist()):
        before = sequences.begin(grid) if rng.random() < PROMPT_DROPOUT else sequences.prompt(grid, named)
        ids.append(before + image)
        wanted.append([-100] * len(before) + image)
    longest = max(map(len, ids))
    pad = sequences.id["<pad>"]
    ids = torch.tensor([row + [pad] * (longest - len(row)) for row in ids])
    wanted = torch.tensor([row + [-100] * (longest - len(row)) for row in wanted])
    return ids[:, :-1], wanted[:, 1:]


def choose_grid(rng, step, steps):
    """Small images first: they are cheap, and a digit's strokes are the same there."""
    if step < steps // 5:
        return rng.choice([(1, 1), (1, 1), (1, 2), (2, 1)])
    return rng.choice([*GRIDS, (1, 3), (2, 2), (2, 3), (2, 3), (2, 3)])


def train(args, log):
    torch.manual_seed(3)
    rng, start, mean, first = random.Random(3), time.time(), 0.0, 0
    sequences = Sequences(os.path.join(args.work, "tokenizer.json"))
    data = np.load(os.path.join(args.work, "codes.npz"))
    codes, labels = (torch.from_numpy(data[name].astype(np.int64)) for name in ("codes", "labels"))
    model, checkpoint = new_model(sequences).train(), os.path.join(args.work, "mgpt.pt")
    optimizers, ema = make_optimizers(model), Ema(model, 0.99)
    log(f"parameters {sum(p.numel() for p in model.parameters())}")
    if os.path.exists(checkpoint):
        kept = torch.load(checkpoint, weights_only=False)
        model.load_state_dict(kept["model"])
        ema.model.load_state_dict(kept["ema"])
        for optimizer, state in zip(optimizers, kept["optimizers"]):
            optimizer.load_state_dict(state)
        first, ema.step, mean = kept["step"], kept["step"], kept["mean"]
    for step in range(first, args.steps):
        for optimizer in optimizers:
            set_lr(optimizer, step, args.steps, PEAK_LR, WARMUP)
        grid = choose_grid(rng, step, args.steps)
        chosen = torch.randint(len(codes), (CELLS // (grid[0] * grid[1]) * grid[0] * grid[1],))
        ids, wanted = make_batch(sequences, grid, codes[chosen], labels[chosen], rng)
        logits = image_logits(model, ids)
        loss = F.cross_entropy(logits.flatten(0, 1), wanted.flatten(), ignore_index=-100)
        optimise(optimizers, model, loss)
        ema.update(model)
        mean += (loss.item() - mean) * (0.03 if step else 1)
        if step % 20 == 0 or step == args.steps - 1:
            log(f"mgpt {step} {grid} loss {mean:.4f} {time.time() - start:.0f}s")
            torch.save({"model": model.state_dict(), "ema": ema.model.state_dict(), "step": step + 1, "mean": mean,
                        "optimizers": [optimizer.state_dict() for optimizer in optimizers]}, checkpoint + ".part")
            os.replace(checkpoint + ".part", checkpoint)
    publish(args, ema.model, sequences)


def publish(args, model, sequences):
    """A folder as Hugging Face has it, in half precision, without the image encoder."""
    folder = os.path.join(args.demo, "mgpt")
    os.makedirs(folder, exist_ok=True)
    metadata = {"mar.kind": "decoder", "mar.family": "demo-mgpt"}
    save(os.path.join(folder, "model.safetensors"), dict(model.state_dict()), metadata, torch.float16)
    config = {"architectures": ["ChameleonForConditionalGeneration"], "model_type": "chameleon", "torch_dtype": "float16",
              "vocab_size": sequences.vocabulary, "rope_theta": 10000.0,
              "vocabulary_map": dict(sorted(sequences.id.items(), key=lambda pair: pair[1])), **MODEL}
    with open(os.path.join(folder, "config.json"), "w") as file:
        file.write(json.dumps(config, sort_keys=True) + "\n")
    with open(os.path.join(args.work, "tokenizer.json")) as file, open(os.path.join(folder, "tokenizer.json"), "w") as out:
        out.write(json.dumps(json.load(file), ensure_ascii=False) + "\n")


# ------------------------------------------------------------------------------------------------------------- report

def load_published(args):
    """The model, its sequences and the image decoder as they are published."""
    folder = os.path.join(args.demo, "mgpt")
    sequences = Sequences(os.path.join(folder, "tokenizer.json"))
    model, vq = new_model(sequences), VQ()
    model.load_state_dict(read_safetensors(os.path.join(folder, "model.safetensors"))[0])
    vq.load_state_dict(read_safetensors(os.path.join(args.demo, "mgpt-vq.safetensors"))[0], strict=False)
    return model.eval(), sequences, vq.eval()


@torch.no_grad()
def draw(model, sequences, grid, labels, cfg, generator):
    """Image tokens [B, rows of tokens, columns] drawn at temperature 1; labels [B, rows * columns]. Prompts of a grid are equally
    long, since a digit is a token."""
    from transformers import DynamicCache
    prompts = torch.tensor([sequences.prompt(grid, named) for named in labels.tolist()])
    contexts = [prompts, torch.tensor([sequences.begin(grid)] * len(labels))]
    caches, height, width = [DynamicCache(), DynamicCache()], grid[0] * CELL, grid[1] * CELL
    drawn = []
    for i in range(height * width):
        hidden = [model.model(input_ids=ids, past_key_values=cache, use_cache=True).last_hidden_state[:, -1]
                  for ids, cache in zip(contexts, caches)]
        given, without = (model.lm_head(h)[:, sequences.first_image:sequences.first_image + CODEBOOK] for h in hidden)
        probabilities = (without + cfg * (given - without)).softmax(-1)
        token = torch.multinomial(probabilities, 1, generator=generator)
        drawn.append(token)
        ids = token + sequences.first_image
        if (i + 1) % width == 0:
            ids = torch.cat([ids, torch.full_like(ids, sequences.id[LINE_END])], 1)
        contexts = [ids, ids]
    return torch.cat(drawn, 1).reshape(-1, height, width)


def draw_with_mar(args, grid, labels, cfg, seed):
    """Images [B, 1, h, w] of `mar generate`, one a prompt."""
    folder = os.path.join(args.work, "pictures")
    shutil.rmtree(folder, ignore_errors=True)
    prompts = [make_prompt(grid, named) for named in labels.tolist()]
    subprocess.run([args.mar, "generate", "--model", "demo-mgpt", "--prompts", "-", "--out", folder, "--cfg", str(cfg),
                    "--seed", str(seed), "--size", f"{grid[1] * SIDE}x{grid[0] * SIDE}", "--quiet"], input="\n".join(prompts),
                   text=True, check=True)
    pixels = [np.asarray(Image.open(os.path.join(folder, f"{i:06}.png"))) for i in range(len(prompts))]
    return (torch.from_numpy(np.stack(pixels)).permute(0, 3, 1, 2).float() / 127.5 - 1).mean(1, keepdim=True)


@torch.no_grad()
def report(args, log):
    """Logs which share of the digits of images the classifier recognises as the prompt's."""
    classifier, real = digits.train_classifier()
    log(f"classifier on held-out digits {real:.4f}")
    published = None if args.mar else load_published(args)
    for grid in [(2, 3), (1, 1), (1, 2)]:
        cells = grid[0] * grid[1]
        labels = torch.randint(10, (args.images // cells, cells), generator=torch.Generator().manual_seed(5))
        for cfg in args.scales:
            if args.mar:
                images = draw_with_mar(args, grid, labels, cfg, 6)
            else:
                model, sequences, vq = published
                images = vq.decode_codes(draw(model, sequences, grid, labels, cfg, torch.Generator().manual_seed(6)))
            result = digits.judge(classifier, separate(images, grid), labels.flatten())
            digits.save_grid(os.path.join(args.work, f"{grid[0]}x{grid[1]}_cfg{cfg:g}.png"), images[:24], 8)
            log(f"{grid[0]} rows of {grid[1]}, {len(images)} images, cfg {cfg:g} {result}; first: {make_prompt(grid, labels[0])}")


# --------------------------------------------------------------------------------------------------------------- main

def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--stage", choices=["all", "vq", "refine", "codes", "tokenizer", "mgpt", "report"], default="all")
    parser.add_argument("--demo", default="weights/demo", help="where the published files go")
    parser.add_argument("--work", default="build/demo-mgpt", help="image encoder, codes, checkpoints, logs and sample grids")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--vq_steps", type=int, default=VQ_STEPS)
    parser.add_argument("--refine_steps", type=int, default=REFINE_STEPS)
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--mar", help="the command, which then draws the report's images; else PyTorch does")
    parser.add_argument("--images", type=int, default=600, help="digits of a line of the report")
    parser.add_argument("--cfg", default="2,1.5,3", help="guidance scales of the report")
    args = parser.parse_args()
    args.scales = [float(cfg) for cfg in args.cfg.split(",")]
    torch.set_num_threads(args.threads)
    keep_freed_memory()
    os.makedirs(args.work, exist_ok=True)
    log = logger(args.work, args.stage)
    stages = {"vq": train_vq, "refine": refine_vq, "codes": extract_codes, "mgpt": train, "report": report,
              "tokenizer": lambda args, log: train_tokenizer(os.path.join(args.work, "tokenizer.json"), log)}
    for name in ("vq", "refine", "codes", "tokenizer", "mgpt", "report"):
        if args.stage in ("all", name):
            stages[name](args, log)


if __name__ == "__main__":
    main()
