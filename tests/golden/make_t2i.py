"""Golden data for text to image as a whole: prompts through LlamaGen's own cleaning, T5 of transformers, gpt.py, generate.py and
vq_model.py in float32, greedily, with guidance 7.5, as autoregressive/sample/sample_t2i.py does.

    python3 tests/golden/make_t2i.py LLAMAGEN     ->  tests/golden/data/t2i_model.safetensors, t2i.safetensors

LLAMAGEN is a clone of github.com/FoundationVision/LlamaGen, bare or not. T5 and tokenizer are those of make_t5.py and make_vq.py.
Needs ftfy and beautifulsoup4."""

import runpy
import subprocess
import sys
import tempfile
from pathlib import Path

import sentencepiece
import torch
from safetensors.torch import save_file
from transformers import T5EncoderModel

from make_llamagen import make, official, run, save
from make_vq import build

HERE = Path(__file__).parent
TOKENS, SIDE, VOCABULARY = 120, 4, 50
PROMPTS = ["a bold seven", "The quick brown fox jumps over the lazy dog, twice, and then once more over the moon",
           "A PHOTO of two <b>dogs</b> & 3 cats: https://example.com/x.jpg"]


def module(repository, name):
    """A file of the repository, run on its own: {name: value}."""
    path = Path(tempfile.mkdtemp()) / Path(name).name
    path.write_bytes(subprocess.run(["git", "-C", repository, "show", f"HEAD:{name}"], check=True, capture_output=True).stdout)
    return runpy.run_path(str(path))


def encode(embedder, prompts):
    """Features [B, TOKENS, D] and mask [B, TOKENS], padded behind: T5Embedder.get_text_embeddings, with the ids of sentencepiece."""
    cleaner = embedder.__new__(embedder)
    cleaner.use_text_preprocessing = True
    spm = sentencepiece.SentencePieceProcessor(model_file=str(HERE / "data/t5/spiece.model"))
    rows = [spm.encode(cleaner.text_preprocessing(prompt))[:TOKENS - 1] + [1] for prompt in prompts]
    ids = torch.tensor([row + [0] * (TOKENS - len(row)) for row in rows])
    mask = torch.tensor([[1] * len(row) + [0] * (TOKENS - len(row)) for row in rows])
    model = T5EncoderModel.from_pretrained(HERE / "data/t5", dtype=torch.float32).eval()
    return model(input_ids=ids, attention_mask=mask).last_hidden_state, mask


def rotate(features, masks):
    """sample_t2i.py's padding in front."""
    rows = [torch.cat([row[int(mask.sum()):], row[:int(mask.sum())]]) for row, mask in zip(features, masks)]
    flipped = torch.flip(masks, dims=[-1])
    return torch.stack(rows) * flipped[:, :, None], flipped


@torch.no_grad()
def main():
    repository = sys.argv[1]
    gpt, generate = official(repository)
    features, masks = rotate(*encode(module(repository, "language/t5.py")["T5Embedder"], PROMPTS))
    model = make(gpt, torch.Generator().manual_seed(31), SIDE, dim=32, n_layer=2, n_head=2, vocab_size=VOCABULARY, model_type="t2i",
                 caption_dim=features.shape[-1], cls_token_num=TOKENS)
    save(model, "t2i_model")
    _, _, codes = run(generate, model, features, None, cfg=7.5, masks=masks, temperature=1.0, top_k=1)
    vq = build(module(repository, "tokenizer/tokenizer_image/vq_model.py"))
    weights = torch.load(HERE / "data/vq.pth", weights_only=False)["model"]
    vq.load_state_dict({name: tensor.float() for name, tensor in weights.items()})
    samples = vq.decode_code(codes, [len(codes), vq.config.codebook_embed_dim, SIDE, SIDE])
    pixels = (samples * 0.5 + 0.5).mul(255).add(0.5).clamp(0, 255).to(torch.uint8)  # torchvision's save_image
    print([len(set(row.tolist())) for row in codes], pixels.float().std().item())
    last = int(masks.sum(1).max())
    save_file({"features": features[:, -last:].contiguous(), "mask": masks[:, -last:].half().contiguous(), "codes": codes.float(),
               "pixels": pixels.permute(0, 2, 3, 1).half().contiguous()}, HERE / "data" / "t2i.safetensors")


if __name__ == "__main__":
    main()
