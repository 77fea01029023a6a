"""A tiny T5 encoder with random weights, as transformers writes it, and its features.
python3 tests/golden/make_t5.py  ->  tests/golden/data/t5/, tests/golden/data/t5_bin/

t5      config.json, two safetensors shards with their index, spiece.model, features.safetensors
t5_bin  config.json, pytorch_model.bin: the encoder, with the embedding under three names

t5 has the decoder, too. features.safetensors has the last hidden states of id sequences of several lengths, those of
prompts with LlamaGen's padding (sample_t2i.py: rotated to the left, multiplied by the mask), and transformers' buckets
of relative positions."""

import io
import json
import shutil
import sys
from pathlib import Path

import sentencepiece
import torch
from transformers import T5Config, T5EncoderModel, T5ForConditionalGeneration
from transformers.models.t5.modeling_t5 import T5Attention

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "reference"))
sys.path.insert(0, str(HERE))

from pymar import write_safetensors  # noqa: E402
from text_lines import line  # noqa: E402

OUT = HERE / "data"
LENGTHS = [1, 7, 40, 150, 300]
TOKENS, DISTANCE = 24, 400
PROMPTS = ["a bold seven", "The quick brown fox jumps over the lazy dog, twice, and then once more over the moon",
           "x", "tall trees \u00c4\u00d6"]
BUCKETS = [(32, 128), (32, 256), (64, 128), (8, 20)]
CONFIG = {"vocab_size": 256, "d_model": 32, "d_kv": 24, "d_ff": 40, "num_layers": 2, "num_decoder_layers": 1, "num_heads": 2,
          "feed_forward_proj": "gated-gelu", "layer_norm_epsilon": 1e-6, "tie_word_embeddings": False, "dropout_rate": 0.0}


def make_tokenizer():
    out = io.BytesIO()
    text = [x for x in map(line, range(30000, 32000)) if x.isascii()] + PROMPTS * 20
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(x.replace("\0", "")[:200] for x in text), model_writer=out, model_type="unigram", vocab_size=230,
        character_coverage=1.0, unk_id=2, bos_id=-1, eos_id=1, pad_id=0, normalization_rule_name="identity", num_threads=1,
        minloglevel=2)
    return out.getvalue()


def make_model():
    model = T5ForConditionalGeneration(T5Config(**CONFIG)).eval()
    for name, p in model.named_parameters():
        noise = torch.randn(p.shape)
        scale = 1.2 / p.shape[-1] ** 0.5 if ".q." not in name else 1.2 / (p.shape[-1] * CONFIG["d_kv"]) ** 0.5
        if "norm" in name:
            p.data = 1 + 0.3 * noise
        elif "relative_attention_bias" in name or "shared" in name or "embed" in name:
            p.data = noise
        else:
            p.data = noise * scale
    return model


def encode(encoder, ids):
    return encoder(input_ids=torch.tensor([ids])).last_hidden_state[0]


def captions(encoder, tokenizer):
    """Features [prompts][TOKENS][dim] and mask, as sample_t2i.py hands them to the image model."""
    ids = [(tokenizer.encode(text)[:TOKENS - 1] + [1]) for text in PROMPTS]
    mask = torch.tensor([[1] * len(x) + [0] * (TOKENS - len(x)) for x in ids])
    padded = torch.tensor([x + [0] * (TOKENS - len(x)) for x in ids])
    features = encoder(input_ids=padded, attention_mask=mask).last_hidden_state
    left = torch.stack([torch.cat([f[n:], f[:n]]) for f, n in zip(features, mask.sum(1).tolist())])
    mask = torch.flip(mask, dims=[-1])
    counts = torch.tensor([len(tokenizer.encode(text)) + 1 for text in PROMPTS])
    return {"captions.features": left * mask[:, :, None], "captions.mask": mask.float(), "captions.counts": counts.float()}


def buckets():
    distance = torch.arange(-DISTANCE, DISTANCE + 1)
    return {f"buckets.{n}.{most}": T5Attention._relative_position_bucket(
        distance, bidirectional=True, num_buckets=n, max_distance=most).float() for n, most in BUCKETS}


def main():
    torch.manual_seed(32)
    torch.set_grad_enabled(False)
    model, spiece = make_model(), make_tokenizer()
    for name in ("t5", "t5_bin"):
        shutil.rmtree(OUT / name, ignore_errors=True)
        (OUT / name).mkdir()
        (OUT / name / "config.json").write_text(json.dumps(model.config.to_dict(), indent=1) + "\n")
        (OUT / name / "spiece.model").write_bytes(spiece)
    state = {k: v for k, v in model.state_dict().items() if "embed_tokens" not in k and "lm_head" not in k}
    names = sorted(state)
    parts = [names[:len(names) // 2], names[len(names) // 2:]]
    index = {"metadata": {"total_size": sum(4 * v.numel() for v in state.values())}, "weight_map": {}}
    for i, part in enumerate(parts):
        shard = f"model-{i + 1:05d}-of-00002.safetensors"
        write_safetensors(OUT / "t5" / shard, {k: state[k] for k in part}, {"format": "pt"})
        index["weight_map"] |= {k: shard for k in part}
    for k in "decoder.embed_tokens.weight", "encoder.embed_tokens.weight":  # shared: named, but in no shard
        index["weight_map"][k] = index["weight_map"]["shared.weight"]
    index["weight_map"] = dict(sorted(index["weight_map"].items()))
    (OUT / "t5/model.safetensors.index.json").write_text(json.dumps(index, indent=1) + "\n")
    embedding = {k: v for k, v in model.state_dict().items() if "embed_tokens" in k or "shared" in k}
    torch.save(embedding | {k: v.clone() for k, v in state.items() if k.startswith("encoder.")},
               OUT / "t5_bin/pytorch_model.bin")
    encoder = T5EncoderModel.from_pretrained(OUT / "t5").eval()
    tokenizer = sentencepiece.SentencePieceProcessor(model_proto=spiece)
    tensors = buckets() | captions(encoder, tokenizer)
    for n in LENGTHS:
        ids = torch.randint(3, CONFIG["vocab_size"], (n,)).tolist()
        tensors |= {f"ids.{n}": torch.tensor(ids).float(), f"features.{n}": encode(encoder, ids)}
    write_safetensors(OUT / "t5" / "features.safetensors", tensors, {})


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
