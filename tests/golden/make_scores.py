"""Golden data for HPS v2 and ImageReward: the scores of small ones by their own code, and ids by BertTokenizer.

    python3 tests/golden/make_scores.py HPSV2 IMAGEREWARD     (needs torchvision, ftfy, timm, transformers, Pillow before 14)
        ->  tests/golden/data/scores.safetensors, {hps,imagereward}.header, text/words/{vocab.txt,hashes.bin}

HPSV2 is a clone of github.com/tgxs002/HPSv2, IMAGEREWARD one of github.com/THUDM/ImageReward, bare or not. A .header is
that of a safetensors file with the model's tensors; their values follow from their names (hashed_tensor, and
tests/support/scores.h). Pictures are those of make_clip.py.
"""

import io
import json
import struct
import subprocess
import sys
import tarfile
import tempfile
import types
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers
from transformers import BertTokenizer, CLIPTokenizer

HERE = Path(__file__).parent
DATA = HERE / "data"
sys.path[:0] = [str(HERE), str(HERE.parent / "reference")]

from make_conv import uniform  # noqa: E402
from pymar.io import read_safetensors, write_safetensors  # noqa: E402
from text_lines import hash_ids, line  # noqa: E402

TEXTS = ["a cat", "A photo depicts  the cat on the mat!", "", "\u00dcber \U0001f600 caf\u00e9 \u6f22 1234",
         "the cat sat on the mat and the hat, " * 8, "It\u2019s a \u201ccat&quot; &amp;amp; the mat &lt;3"]
HPS_VISION = dict(image_size=32, patch_size=8, width=160, head_width=80, layers=2, mlp_ratio=0.5)
HPS_TEXT = dict(context_length=20, width=128, heads=2, layers=2)
BERT = dict(hidden_size=128, num_attention_heads=2, num_hidden_layers=2, intermediate_size=96, max_position_embeddings=40,
            layer_norm_eps=1e-12, hidden_act="gelu", hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
            add_cross_attention=True, type_vocab_size=2)
SPECIAL = "[CLS] a[MASK]b [sep] [[SEP]][ENC] [DEC] [DEC"
PIECES, LINES = 600, 2000


def fnv(text):
    value = 0x811C9DC5
    for byte in text.encode():
        value = (value ^ byte) * 0x01000193 & 0xFFFFFFFF
    return value


def hashed_tensor(name, shape):
    """Uniform numbers, with the hash of the name as seed: scales of norms around 1, matrices of unit gain."""
    values = uniform(fnv(name), tuple(shape))
    if len(shape) > 1:
        return values * np.float32(1.5 / np.prod(shape[1:]) ** 0.5)
    is_scale = name.endswith(".weight")
    return values * np.float32(0.3) + (1 if is_scale else 0)


def fill(model, prefix=""):
    """Gives the model its weights. Returns its tensors of floats."""
    state = {name: value for name, value in model.state_dict().items() if value.is_floating_point() and value.ndim}
    for name, value in state.items():
        value.copy_(hashed_tensor(prefix + name, value.shape))
    return {prefix + name: value for name, value in state.items()}


def folder_of(repository, path, package):
    """Imports a folder of the repository as a package of this name, without its __init__.py."""
    packed = subprocess.run(["git", "-C", repository, "archive", "HEAD", path], check=True, capture_output=True).stdout
    folder = tempfile.mkdtemp()
    tarfile.open(fileobj=io.BytesIO(packed)).extractall(folder)
    (Path(folder) / path / "__init__.py").write_text("")
    module = types.ModuleType(package)
    module.__path__ = [str(Path(folder) / path)]
    sys.modules[package] = module
    return module


def open_clip(repository):
    folder_of(repository, "hpsv2/src/open_clip", "open_clip")
    import open_clip.model as model
    import open_clip.tokenizer as tokenizer
    import open_clip.transform as transform
    return model, tokenizer, transform


def blip(repository):
    """ImageReward's modules vit and med; stands in for what newer timm and transformers have no more."""
    import timm.models.vision_transformer as vision
    import transformers.modeling_utils as utils
    from transformers import pytorch_utils
    vision._cfg = getattr(vision, "_cfg", None)
    for name in ("timm.models.registry", "timm.models.hub", "timm.models.layers", "timm.models.helpers", "fairscale",
                 "fairscale.nn", "fairscale.nn.checkpoint", "fairscale.nn.checkpoint.checkpoint_activations"):
        sys.modules[name] = types.ModuleType(name)
    from timm.layers import DropPath, trunc_normal_
    sys.modules["timm.models.registry"].register_model = None
    vars(sys.modules["timm.models.layers"]).update(DropPath=DropPath, trunc_normal_=trunc_normal_)
    vars(sys.modules["timm.models.helpers"]).update(named_apply=None, adapt_input_conv=None)
    sys.modules["fairscale.nn.checkpoint.checkpoint_activations"].checkpoint_wrapper = None
    for name in ("apply_chunking_to_forward", "find_pruneable_heads_and_indices", "prune_linear_layer"):
        setattr(utils, name, getattr(pytorch_utils, name, None))
    files = types.ModuleType("transformers.file_utils")
    files.ModelOutput = object
    sys.modules["transformers.file_utils"] = files
    folder_of(repository, "ImageReward/models/BLIP", "BLIP")
    import BLIP.med as med
    import BLIP.vit as vit
    med.BertModel.all_tied_weights_keys = {}
    med.BertModel.init_weights = med.BertModel.post_init = lambda self: None
    med.BertModel.invert_attention_mask = lambda self, mask: (1.0 - mask[:, None, None, :].float()) * torch.finfo(torch.float32).min
    med.BertModel.get_head_mask = lambda self, mask, layers: [None] * layers
    return med, vit


class Reward(torch.nn.Module):
    """ImageReward.ImageReward without its downloads; score() is the original's."""

    def __init__(self, med, vit, vision, bert):
        super().__init__()
        from transformers import BertConfig
        self.blip = torch.nn.Module()
        self.blip.visual_encoder = vit.VisionTransformer(**vision)
        config = BertConfig(**bert)
        config.encoder_width, config.add_cross_attention = vision["embed_dim"], True
        config.chunk_size_feed_forward = 0
        self.blip.text_encoder = med.BertModel(config=config, add_pooling_layer=False)
        sizes = [bert["hidden_size"], 1024, 128, 64, 16, 1] if bert["hidden_size"] == 768 else [bert["hidden_size"], 20, 9, 7, 5, 1]
        parts = [torch.nn.Linear(a, b) for a, b in zip(sizes, sizes[1:])]
        self.mlp = torch.nn.Module()
        none = torch.nn.Identity()
        self.mlp.layers = torch.nn.Sequential(parts[0], none, parts[1], none, parts[2], none, parts[3], parts[4])
        self.side = vision["img_size"]

    def score(self, tokenizer, prompt, picture):
        from torchvision.transforms import CenterCrop, Compose, InterpolationMode, Normalize, Resize, ToTensor
        preprocess = Compose([Resize(self.side, interpolation=InterpolationMode.BICUBIC), CenterCrop(self.side),
                              lambda image: image.convert("RGB"), ToTensor(),
                              Normalize((0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711))])
        text = tokenizer(prompt, padding="max_length", truncation=True, max_length=35, return_tensors="pt")
        embeds = self.blip.visual_encoder(preprocess(picture).unsqueeze(0))
        out = self.blip.text_encoder(text.input_ids, attention_mask=text.attention_mask, encoder_hidden_states=embeds,
                                     encoder_attention_mask=torch.ones(embeds.size()[:-1], dtype=torch.long), return_dict=True)
        return (self.mlp.layers(out.last_hidden_state[:, 0, :].float()) - 0.16717362830052426) / 1.0333394966054072


def hps_scores(modules, model, side, tokenize, texts, pictures):
    """Cosines of each picture with each text, as hpsv2/img_score.py."""
    preprocess = modules[2].image_transform(side, is_train=False)
    images = torch.stack([preprocess(x) for x in pictures])
    features = [model.encode_image(images, normalize=True), model.encode_text(tokenize(texts), normalize=True)]
    return features[0] @ features[1].T


def write_header(name, tensors):
    header, at = {}, 0
    for key, value in sorted(tensors.items()):
        header[key] = {"dtype": "F32", "shape": list(value.shape), "data_offsets": [at, at + 4 * value.numel()]}
        at += 4 * value.numel()
    (DATA / f"{name}.header").write_text(json.dumps(header, separators=(",", ":")) + "\n")


def bert_tokenizer(path):
    tokenizer = BertTokenizer(str(path))
    tokenizer.add_special_tokens({"bos_token": "[DEC]"})
    tokenizer.add_special_tokens({"additional_special_tokens": ["[ENC]"]})
    return tokenizer


def write_words():
    folder = DATA / "text" / "words"
    folder.mkdir(parents=True, exist_ok=True)
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    t = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    t.normalizer, t.pre_tokenizer = normalizers.BertNormalizer(), pre_tokenizers.BertPreTokenizer()
    t.train_from_iterator((line(i) for i in range(20000, 24000) if i % 1000 > 2), trainers.WordPieceTrainer(
        vocab_size=PIECES, special_tokens=special, limit_alphabet=200, show_progress=False))
    pieces = sorted(t.get_vocab(), key=t.get_vocab().get)
    (folder / "vocab.txt").write_text("".join(x + "\n" for x in pieces), encoding="utf-8")
    tokenizer = bert_tokenizer(folder / "vocab.txt")
    hashes = [hash_ids(tokenizer(line(i), add_special_tokens=False)["input_ids"]) for i in range(LINES)]
    (folder / "hashes.bin").write_bytes(struct.pack(f"<{LINES}H", *hashes))
    return tokenizer


@torch.no_grad()
def main():
    torch.set_num_threads(1)
    modules = open_clip(sys.argv[1])
    clip = read_safetensors(DATA / "clip.safetensors")[0]
    pictures = [Image.fromarray(clip[f"{i}.picture"].numpy().astype(np.uint8)) for i in range(4)]
    tiny = DATA / "clip_tiny"
    tokenizer = CLIPTokenizer(str(tiny / "vocab.json"), str(tiny / "merges.txt"))

    def tokenize(texts):
        texts = [modules[1].whitespace_clean(modules[1].basic_clean(x)) for x in texts]
        ids = [tokenizer(x, truncation=True, max_length=20)["input_ids"] for x in texts]
        return torch.tensor([x + [0] * (20 - len(x)) for x in ids])

    hps = modules[0].CLIP(24, HPS_VISION, dict(HPS_TEXT, vocab_size=len(tokenizer) + 3)).eval()
    for block in hps.transformer.resblocks:
        assert block.mlp.c_fc.out_features == 512
    write_header("hps", fill(hps))
    tensors = {"hps": hps_scores(modules, hps, 32, tokenize, TEXTS, pictures)}

    bert = write_words()
    tensors["special"] = torch.tensor(bert(SPECIAL, add_special_tokens=False)["input_ids"]).float()
    med, vit = blip(sys.argv[2])
    reward = Reward(med, vit, dict(img_size=32, patch_size=8, embed_dim=64, depth=2, num_heads=1, mlp_ratio=1.5),
                    dict(BERT, vocab_size=len(bert))).eval()
    write_header("imagereward", fill(reward))
    tensors["reward"] = torch.stack([torch.cat([reward.score(bert, text, p)[0] for text in TEXTS]) for p in pictures])
    write_safetensors(DATA / "scores.safetensors", tensors, {})


if __name__ == "__main__":
    main()
