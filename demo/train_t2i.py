#!/usr/bin/env python3
r"""Train the text-to-image demo bundle: a LlamaGen transformer of captions over the tokens of demo-discrete's tokenizer, and the
T5 encoder and SentencePiece model that read its prompts.

Data: as demo/train_demo.py. Prompts such as "a bold seven, slanted left" are made of a digit's label and of what its image
measures. The architectures are LlamaGen's (Sun et al. 2024) and T5 v1.1's at a small size.

    python3 demo/train_t2i.py --demo weights/demo --work build/demo-t2i

Stages: spm (spiece.model), encoder (an image encoder for the published discrete-vq.safetensors, which has a decoder only),
codes (of distorted copies of all digits, with their measures), t2i (transformer and T5 together, from discrete-target's
weights), report. Seeds are fixed. t2i continues from its last checkpoint.
"""

import argparse
import json
import os
import random
import shutil
import subprocess
import time

import numpy as np
import sentencepiece
import torch
import torch.nn.functional as F
from PIL import Image
from torch import nn
from transformers import T5Config, T5EncoderModel

import digits
from training import Ema, keep_freed_memory, logger, optimise, save, set_lr

from pymar import GPT, GptConfig, generate_codes, load_gpt, load_vq

TOKENS, DIM, VOCABULARY = 16, 128, 256  # of a prompt; of its features; of T5
COPIES = 16
GPT_CONFIG = GptConfig(width=128, depth=6, heads=4, hidden=256, vocabulary=256, seq_len=64, classes=0, dropout=0.1,
                       caption_tokens=TOKENS, caption_dim=DIM)
T5_CONFIG = dict(d_model=DIM, d_kv=32, num_heads=4, d_ff=256, num_layers=2, relative_attention_num_buckets=32,
                 relative_attention_max_distance=128, feed_forward_proj="gated-gelu", dropout_rate=0.1,
                 pad_token_id=0, eos_token_id=1, decoder_start_token_id=0, tie_word_embeddings=False)
START_STEPS, STEPS, BATCH, PEAK_LR, WARMUP, CAPTION_DROPOUT = 400, 450, 32, 2e-3, 20, 0.1

# -------------------------------------------------------------------------------------------------------- prompts

NAMES = "zero one two three four five six seven eight nine".split()
# What an image may be called if its measure is among the highest or the lowest fifth of its digit's.
WORDS = {"weight": (["bold", "bold", "thick", "heavy"], ["thin", "thin", "fine", "light"]),
         "size": (["large", "large", "big"], ["small", "small", "little"]),
         "shape": (["wide", "wide", "broad"], ["narrow", "narrow", "slim"])}
SLANT = (["slanted right", "leaning right"], ["slanted left", "leaning left"])
MEASURES = (*WORDS, "slant")
CLEAR = 0.2  # share of images at either end
OPENINGS = ["", "", "", "", "", "a picture of ", "an image of ", "a drawing of ", "draw ", "write "]


def article(words):
    return ("an " if words[0] in "aeiou8" and not words.startswith("one") else "a ") + words


def make_prompt(label, signs, rng, chance=0.7):
    """A prompt for a digit; signs: {measure: 1 high, -1 low, 0 neither}. It names each clear measure with this chance."""
    named = {m: sign for m, sign in signs.items() if sign and rng.random() < chance}
    noun = NAMES[label] if rng.random() < 0.75 else str(label)
    if rng.random() < 0.1:
        noun = rng.choice(["digit ", "number "]) + noun
    before = [rng.choice(WORDS[m][sign < 0]) for m, sign in named.items() if m != "slant"]
    slant = [rng.choice(SLANT[named["slant"] < 0])] if "slant" in named else []
    rng.shuffle(before)
    if rng.random() < 0.3:
        behind = before + slant
        rng.shuffle(behind)
        before, slant = [], []
        if behind:
            noun += ", " + ", ".join(behind[:-1]) + (" and " if len(behind) > 1 else "") + behind[-1]
    words = " ".join((["handwritten"] if rng.random() < 0.1 else []) + before + [noun])
    opening = rng.choice(OPENINGS)
    if "digit" in words or "number" in words:
        words = "the " + words
    elif opening or rng.random() < 0.6:
        words = article(words)
    if slant:
        words += rng.choice([" ", ", "]) + slant[0]
    return opening + words


def measure(images):
    """Measures [B, len(MEASURES)] of images [B,1,H,W] in [-1,1]: stroke width, size, width over height, slant to the right."""
    ink = (images[:, 0] + 1) / 2
    side = ink.shape[-1]
    total = ink.sum((1, 2))
    outline = (ink.diff(dim=1)[:, :, 1:].square() + ink.diff(dim=2)[:, 1:].square() + 1e-12).sqrt().sum((1, 2))
    at = torch.arange(side).float()
    x, y = ((ink * at).sum((1, 2)) / total, (ink * at[:, None]).sum((1, 2)) / total)
    dx, dy = at[None] - x[:, None], at[None] - y[:, None]
    xx = (ink.sum(1) * dx.square()).sum(1) / total
    yy = (ink.sum(2) * dy.square()).sum(1) / total
    xy = (ink * dx[:, None] * dy[:, :, None]).sum((1, 2)) / total
    return torch.stack([2 * total / outline, (xx + yy).sqrt(), (xx / yy).sqrt(), -xy / yy], 1)


def limits(measures, labels):
    """Low and high limits [10, 2, len(MEASURES)] of each digit's measures."""
    q = torch.tensor([CLEAR, 1 - CLEAR])
    return torch.stack([torch.quantile(measures[labels == digit], q, dim=0) for digit in range(10)])


# ---------------------------------------------------------------------------------------------------------- files

def train_spm(folder, log):
    """A unigram model of made prompts, with T5's special pieces and normaliser."""
    rng = random.Random(4)
    text = os.path.join(folder, "prompts.txt")
    with open(text, "w") as file:
        for _ in range(40000):
            signs = {m: rng.choice([-1, 0, 0, 1]) for m in MEASURES}
            prompt = make_prompt(rng.randrange(10), signs, rng)
            file.write(f"{prompt}\n{prompt.replace(' ', ', ')},\n")  # a piece must occur in two different words
    letters = "".join(map(chr, range(33, 127)))
    sentencepiece.SentencePieceTrainer.train(
        input=text, model_prefix=os.path.join(folder, "spiece"), model_type="unigram", vocab_size=VOCABULARY, pad_id=0, eos_id=1,
        unk_id=2, bos_id=-1, normalization_rule_name="nmt_nfkc", required_chars=letters, hard_vocab_limit=False,
        shuffle_input_sentence=False, num_threads=1, minloglevel=2)
    os.remove(text)
    os.remove(os.path.join(folder, "spiece.vocab"))
    spm = sentencepiece.SentencePieceProcessor(model_file=os.path.join(folder, "spiece.model"))
    log(f"spm {spm.vocab_size()} pieces; {spm.encode('a picture of a large bold seven, slanted left', out_type=str)}")


class Encoder(nn.Module):
    """Images [B,1,32,32] -> the direction of each token's row of the codebook [B,64,8]. discrete-vq.safetensors has no
    encoder, and the one that it was trained with is not published."""

    def __init__(self, width=64):
        super().__init__()
        self.down = nn.Sequential(nn.Conv2d(1, 32, 4, 2, 1), nn.SiLU(), nn.Conv2d(32, width, 4, 2, 1))
        self.blocks = nn.ModuleList(nn.Sequential(nn.GroupNorm(8, width), nn.SiLU(), nn.Conv2d(width, width, 3, padding=1),
                                                  nn.GroupNorm(8, width), nn.SiLU(), nn.Conv2d(width, width, 3, padding=1))
                                    for _ in range(4))
        self.out = nn.Sequential(nn.GroupNorm(8, width), nn.SiLU(), nn.Conv2d(width, 8, 1))

    def forward(self, images):
        x = self.down(images)
        for block in self.blocks:
            x = x + block(x)
        return F.normalize(self.out(x).flatten(2).transpose(1, 2), dim=-1)

    def codes(self, images, codebook):
        return torch.cat([(self(part) @ codebook.t()).argmax(-1) for part in images.split(256)])


@torch.no_grad()
def draw_pairs(args, vq, generator, count):
    """Codes that discrete-target draws, some of them replaced by others, and the images that the decoder makes of them."""
    model = load_gpt(os.path.join(args.demo, "discrete-target.safetensors"))
    labels = torch.arange(count) % 10
    codes = torch.cat([generate_codes(model, part, 1.5, generator=generator) for part in labels.split(500)])
    share = torch.rand(count, 1, generator=generator) * 0.1
    other = torch.rand(codes.shape, generator=generator) < share
    codes = torch.where(other, codes[torch.randperm(count, generator=generator)], codes)
    return codes, torch.cat([vq.decode_codes(part).mean(1, keepdim=True).clamp(-1, 1) for part in codes.split(250)])


def train_encoder(args, path, log, steps=700):
    """An image encoder for the published decoder: from images that it decoded, their codes."""
    torch.manual_seed(1)
    generator, start = torch.Generator().manual_seed(1), time.time()
    vq, model = load_vq(os.path.join(args.demo, "discrete-vq.safetensors")), Encoder()
    codebook = vq.quantize.codebook().detach()
    codes, images = draw_pairs(args, vq, generator, args.pairs)
    log(f"{len(codes)} pairs {time.time() - start:.0f}s")
    optimizer = torch.optim.AdamW(model.parameters(), lr=4e-3, betas=(0.9, 0.99), weight_decay=0.01)
    real, _ = digits.load_images()
    real = distort(real[::20], generator)
    for step in range(steps):
        set_lr(optimizer, step, steps, 4e-3, 50)
        rows = torch.randint(len(codes), (64,), generator=generator)
        loss = F.cross_entropy(20 * (model(images[rows]) @ codebook.t()).flatten(0, 1), codes[rows].flatten())
        optimise([optimizer], model, loss)
        if step % 100 == 0 or step == steps - 1:
            with torch.no_grad():
                again = vq.decode_codes(model.codes(real, codebook)).mean(1, keepdim=True)
            log(f"encoder {step} loss {loss.item():.4f} mse of distorted digits {F.mse_loss(again, real):.5f} {time.time() - start:.0f}s")
    torch.save(model.state_dict(), path)


def distort(images, generator):
    """Copies that differ in what prompts name: stroke width, size, width over height and slant. [B,1,H,W] -> the same"""
    batch = len(images)

    def uniform(limit):
        return (torch.rand(batch, generator=generator) * 2 - 1) * limit
    level = uniform(1.0)[:, None, None, None]
    ink = torch.logit(((images + 1) / 2).clamp(0.004, 0.996))
    images = torch.sigmoid(1.2 * (ink + 1.6 * level)) * 2 - 1
    images = ((images + 1) / (images.amax((1, 2, 3), keepdim=True) + 1) * 2 - 1).clamp(-1, 1)
    zoom, ratio, shear, angle = 1 + uniform(0.14) + 0.04, 1 + uniform(0.12), uniform(0.2), uniform(0.05)
    row = torch.stack([zoom * ratio, shear * zoom, uniform(0.03)], 1)
    column = torch.stack([angle, zoom / ratio, uniform(0.03)], 1)
    grid = F.affine_grid(torch.stack([row, column], 1), list(images.shape), align_corners=False)
    return F.grid_sample(images, grid, mode="bilinear", padding_mode="border", align_corners=False)


@torch.no_grad()
def extract_codes(args, encoder_path, path, log):
    """Writes codes [N, 64], labels [N], measures [N, len(MEASURES)] of the digits and distorted copies of them."""
    generator, start = torch.Generator().manual_seed(2), time.time()
    vq, encoder = load_vq(os.path.join(args.demo, "discrete-vq.safetensors")), Encoder()
    encoder.load_state_dict(torch.load(encoder_path))
    images, labels = digits.load_images()
    codes, measures, copies = [], [], []
    for copy_index in range(COPIES):
        batch = images if copy_index == 0 else distort(images, generator)
        measures.append(measure(batch))
        copies.append(batch[:40])
        codes.append(encoder.codes(batch, vq.quantize.codebook()))
    codes, measures, labels = torch.cat(codes), torch.cat(measures), labels.repeat(COPIES)
    np.savez_compressed(path, codes=codes.numpy().astype(np.uint16), labels=labels.numpy().astype(np.uint16),
                        measures=measures.numpy())
    again = vq.decode_codes(codes[-1797:-1797 + 40])
    digits.save_grid(path.replace(".npz", ".png"), torch.cat([torch.cat(copies[-3:]), again.mean(1, keepdim=True)]), 20)
    log(f"codes {list(codes.shape)}, {codes.unique().numel()} used, mean square error of a few "
        f"{F.mse_loss(again.mean(1, keepdim=True), copies[-1]):.5f}, {time.time() - start:.0f}s")


# ------------------------------------------------------------------------------------------------------- training

class Both(nn.Module):
    def __init__(self):
        super().__init__()
        self.gpt = GPT(GPT_CONFIG)
        self.t5 = T5EncoderModel(T5Config(vocab_size=VOCABULARY, **T5_CONFIG))

    def features(self, ids):
        """ids [B, TOKENS], padded in front with 0 -> features as LlamaGen hands them to the transformer, and their mask. T5
        sees a prompt padded behind; its positions are relative, so that it computes the same of one padded in front."""
        mask = (ids != 0).long()
        return self.t5(input_ids=ids, attention_mask=mask).last_hidden_state * mask[:, :, None], mask


def tokenize(spm, prompts, rng=None):
    """Ids [B, TOKENS] of prompts, with the end token, padded in front with 0. With rng some words are spelled letter by letter,
    so that pieces of words that no prompt has are not random."""
    rows = []
    for prompt in prompts:
        row = spm.encode(prompt)
        if rng and row and rng.random() < 0.2:
            at = rng.randrange(len(row))
            spelled = row[:at] + [spm.piece_to_id(letter) for letter in spm.id_to_piece(row[at])] + row[at + 1:]
            row = spelled if len(spelled) < TOKENS else row
        rows.append(row[:TOKENS - 1] + [1])
    return torch.tensor([[0] * (TOKENS - len(row)) + row for row in rows])


def optimizer_of(model):
    return torch.optim.AdamW(model.parameters(), betas=(0.9, 0.98), weight_decay=0.01)


def start_model(target_path, first, spm, log):
    """Both models. The transformer begins with the layers, tokens and output of discrete-target, or of `args.first`. T5 and the
    layers behind it learn what takes the place of its class: at every position of a caption the embedding of the class that the
    prompt names, plus or minus a direction for each other thing that it names. The transformer learns these directions later."""
    model, target, rng, start = Both(), load_gpt(target_path).state_dict(), random.Random(2), time.time()
    known = {name: tensor for name, tensor in target.items() if not name.startswith("cls_embedding.")}
    model.gpt.load_state_dict({**model.gpt.state_dict(), **known})
    table, captions = target["cls_embedding.embedding_table.weight"], model.gpt.cls_embedding
    directions = F.normalize(torch.randn(len(MEASURES), table.shape[1]), dim=1) * table[:10].std() * table.shape[1] ** 0.5 * 0.7
    if first:
        model.gpt.load_state_dict({name[4:]: tensor for name, tensor in torch.load(first, weights_only=False)["ema"].items()
                                   if name.startswith("gpt.") and "cls_embedding" not in name}, strict=False)
    trained = nn.ModuleList([model.t5, captions])
    optimizer = optimizer_of(trained)
    for step in range(START_STEPS):
        set_lr(optimizer, step, START_STEPS, 3e-3, WARMUP)
        labels = torch.randint(10, (BATCH,))
        signs = [{m: rng.choice([-1, 0, 0, 1]) for m in MEASURES} for _ in labels]
        prompts = [make_prompt(int(i), named, rng, 1.0) for i, named in zip(labels, signs)]
        features, mask = model.features(tokenize(spm, prompts, rng))
        without = torch.rand(BATCH) < CAPTION_DROPOUT
        wanted = table[labels] + torch.tensor([[named[m] for m in MEASURES] for named in signs]).float() @ directions
        error = captions(features, without) - torch.where(without[:, None], table[10], wanted)[:, None]
        loss = (error.square().mean(-1) * mask).sum() / mask.sum() / table.var()
        optimise([optimizer], trained, loss)
        if step % 50 == 0 or step == START_STEPS - 1:
            log(f"start {step} loss {loss.item():.4f} {time.time() - start:.0f}s")
    return model


def train(args, spm, data, log):
    torch.manual_seed(3)
    rng = random.Random(3)
    codes, labels, measures = data
    low, high = limits(measures, labels)[labels].unbind(1)
    signs = ((measures > high).int() - (measures < low).int()).tolist()
    checkpoint = os.path.join(args.work, "checkpoint.pt")
    resumes = os.path.exists(checkpoint)
    model = Both() if resumes else start_model(os.path.join(args.demo, "discrete-target.safetensors"), args.first, spm, log)
    optimizer, ema, first, mean = optimizer_of(model), Ema(model, 0.99), 0, 0.0
    if resumes:
        kept = torch.load(checkpoint, weights_only=False)
        model.load_state_dict(kept["model"])
        ema.model.load_state_dict(kept["ema"])
        first, ema.step, mean = kept["step"], kept["step"], kept["mean"]
        optimizer.load_state_dict(kept["optimizer"])
    start = time.time()
    log(f"parameters: transformer {sum(p.numel() for p in model.gpt.parameters())}, T5 {sum(p.numel() for p in model.t5.parameters())}")
    for step in range(first, args.steps):
        set_lr(optimizer, step, args.steps, PEAK_LR, WARMUP)
        rows = torch.randint(len(codes), (BATCH,))
        prompts = [make_prompt(int(labels[i]), dict(zip(MEASURES, signs[i])), rng, 0.9) for i in rows]
        features, mask = model.features(tokenize(spm, prompts, rng))
        logits = model.gpt.caption_logits(features, mask, codes[rows, :-1], torch.rand(BATCH) < CAPTION_DROPOUT)
        loss = F.cross_entropy(logits.flatten(0, 1), codes[rows].flatten())
        optimise([optimizer], model, loss)
        ema.update(model)
        mean += (loss.item() - mean) * (0.02 if step else 1)
        if step % 20 == 0 or step == args.steps - 1:
            log(f"t2i {step} loss {mean:.4f} {time.time() - start:.0f}s; {prompts[0]}")
        if step % 20 == 19 or step == args.steps - 1:
            torch.save({"model": model.state_dict(), "ema": ema.model.state_dict(), "step": step + 1, "mean": mean,
                        "optimizer": optimizer.state_dict()}, checkpoint + ".part")
            os.replace(checkpoint + ".part", checkpoint)
    return ema.model


def publish(model, args):
    """The transformer as demo-t2i.safetensors, the encoder as a folder that transformers reads, both in half precision."""
    metadata = {"mar.kind": "llamagen", "mar.role": "target", "mar.heads": GPT_CONFIG.heads, "mar.seq_len": GPT_CONFIG.seq_len,
                "mar.vae_stride": 4}
    save(os.path.join(args.demo, "t2i.safetensors"), model.gpt.state_dict(), metadata, torch.bfloat16)
    folder = os.path.join(args.demo, "t5")
    os.makedirs(folder, exist_ok=True)
    tensors = {name: tensor for name, tensor in model.t5.state_dict().items() if name != "encoder.embed_tokens.weight"}
    save(os.path.join(folder, "model.safetensors"), tensors, {}, torch.float16)
    config = {"architectures": ["T5EncoderModel"], "model_type": "t5", "is_encoder_decoder": False, "vocab_size": VOCABULARY,
              "layer_norm_epsilon": 1e-6, "torch_dtype": "float16", **T5_CONFIG}
    with open(os.path.join(folder, "config.json"), "w") as file:
        file.write(json.dumps(config, indent=2, sort_keys=True) + "\n")
    shutil.copy(os.path.join(args.work, "spiece.model"), os.path.join(folder, "spiece.model"))


# --------------------------------------------------------------------------------------------------------- report

def load_published(demo):
    """Both models as they are published."""
    model = Both()
    model.gpt = load_gpt(os.path.join(demo, "t2i.safetensors"))
    model.t5 = T5EncoderModel.from_pretrained(os.path.join(demo, "t5"), dtype=torch.float32)
    return model.eval()


@torch.no_grad()
def draw(model, spm, vq, prompts, cfg, seed):
    features, mask = model.features(tokenize(spm, prompts))
    codes = generate_codes(model.gpt, (features, mask), cfg, generator=torch.Generator().manual_seed(seed))
    return vq.decode_codes(codes)


def draw_with_mar(args, prompts, cfg, seed):
    """Images of `mar generate`, one a prompt, as draw returns them."""
    folder = os.path.join(args.work, "pictures")
    shutil.rmtree(folder, ignore_errors=True)
    subprocess.run([args.mar, "generate", "--model", "demo-t2i", "--prompts", "-", "--out", folder, "--cfg", str(cfg), "--seed", str(seed),
                    "--quiet"], input="\n".join(prompts), text=True, check=True)
    pixels = [np.asarray(Image.open(os.path.join(folder, f"{i:06}.png"))) for i in range(len(prompts))]
    return torch.from_numpy(np.stack(pixels)).permute(0, 3, 1, 2).float() / 127.5 - 1


def report(args, log):
    """Logs which share of images the classifier recognises as the prompted digit, and the measures of images whose prompts name
    the two ends of one."""
    classifier, real = digits.train_classifier()
    spm = sentencepiece.SentencePieceProcessor(model_file=os.path.join(args.demo, "t5", "spiece.model"))
    rng, vq = random.Random(5), load_vq(os.path.join(args.demo, "discrete-vq.safetensors"))
    model = None if args.mar else load_published(args.demo)

    def images_of(prompts, cfg, seed):
        return draw_with_mar(args, prompts, cfg, seed) if args.mar else draw(model, spm, vq, prompts, cfg, seed)
    labels = torch.arange(10).repeat(50)
    log(f"classifier on held-out digits {real:.4f}")
    prompts = [make_prompt(int(label), {m: rng.choice([-1, 0, 0, 0, 1]) for m in MEASURES}, rng) for label in labels]
    for cfg in args.scales:
        images = images_of(prompts, cfg, 6)
        digits.save_grid(os.path.join(args.work, f"cfg{cfg:g}.png"), images[:200], 20)
        log(f"cfg {cfg:g} {digits.judge(classifier, images, labels)}")
    for m, (highs, lows) in {**WORDS, "slant": SLANT}.items():
        ends = []
        for word in (highs[0], lows[0]):
            texts = [f"a {NAMES[i]} {word}" if m == "slant" else f"a {word} {NAMES[i]}" for i in range(10)] * 10
            images = images_of(texts, args.scales[0], 7).mean(1, keepdim=True).clamp(-1, 1)
            right = (classifier(images).argmax(1) == torch.arange(10).repeat(10)).float().mean()
            ends.append(f"{word}: measure {measure(images).mean(0)[MEASURES.index(m)]:.3f}, ink {((images + 1) / 2).mean():.4f}, "
                        f"recognised {right:.2f}")
            digits.save_grid(os.path.join(args.work, f"{word.replace(' ', '_')}.png"), images, 10)
        log(f"{m}: " + "; ".join(ends))


# ----------------------------------------------------------------------------------------------------------- main

def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--stage", choices=["all", "spm", "encoder", "codes", "t2i", "report"], default="all")
    parser.add_argument("--demo", default="weights/demo", help="demo-discrete's files; the new ones go there")
    parser.add_argument("--work", default="build/demo-t2i", help="tokenizer, codes, checkpoint, logs and sample grids")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--pairs", type=int, default=4000, help="images that the encoder learns from")
    parser.add_argument("--first", help="the checkpoint of an earlier run, whose averaged transformer the run begins with")
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--mar", help="the command, which then draws the report's images; else PyTorch does")
    parser.add_argument("--cfg", default="2.9,2,4", help="guidance scales of the report; the first also for measures")
    args = parser.parse_args()
    args.scales = [float(cfg) for cfg in args.cfg.split(",")]
    torch.set_num_threads(args.threads)
    keep_freed_memory()
    os.makedirs(args.work, exist_ok=True)
    encoder_path, codes_path = (os.path.join(args.work, name) for name in ("encoder.pt", "codes.npz"))
    log = logger(args.work, args.stage)

    def wanted(stage):
        return args.stage in ("all", stage)
    if wanted("spm"):
        train_spm(args.work, log)
    if wanted("encoder"):
        train_encoder(args, encoder_path, log)
    if wanted("codes"):
        extract_codes(args, encoder_path, codes_path, log)
    if wanted("t2i"):
        data = np.load(codes_path)
        codes, labels = (torch.from_numpy(data[name].astype(np.int64)) for name in ("codes", "labels"))
        spm = sentencepiece.SentencePieceProcessor(model_file=os.path.join(args.work, "spiece.model"))
        publish(train(args, spm, (codes, labels, torch.from_numpy(data["measures"])), log), args)
    if wanted("report"):
        report(args, log)


if __name__ == "__main__":
    main()
