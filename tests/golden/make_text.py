"""Tokenizers and the hashes of the ids that the reference libraries make with them.
python3 tests/golden/make_text.py  ->  tests/golden/data/text/<model>/

Models, trained on the lines of text_lines.py:
  unigram        sentencepiece, normalisation nmt_nfkc as T5's; its table, 240 kB, is only in weights/demo/t5/spiece.model
  unigram_bytes  identity, byte_fallback, user-defined symbols, spaces kept
  unigram_suffix pieces that are unused or end with a space; written by hand from the first
  bpe            tokenizers, tokenizer.json as GPT-2's, with added tokens of all kinds
  bpe_mixed      other splits and normalizers, ignore_merges, merges as strings
  bpe_words      the patterns of Chameleon and Llama 3, then words of Rust's classes; 2000 lines
  bpe_fallback   as Llama's: no splits, bytes for unknown characters
  clip           tokenizer.json as CLIP's
  clip_files     the same from vocab.json and merges.txt, by transformers
  qwen2          tokenizer.json as Qwen2.5's
  qwen2_files    the same from vocab.json, merges.txt and tokenizer_config.json, by transformers; its hashes are qwen2's
hashes.bin has a number of 16 bits for each of 10 000 lines."""

import io
import json
import struct
import sys
from pathlib import Path

import sentencepiece
from sentencepiece import sentencepiece_model_pb2
from tokenizers import (AddedToken, Regex, Tokenizer, models, normalizers as norm, pre_tokenizers as pre, processors,
                        trainers)
from transformers import AutoTokenizer, CLIPTokenizer

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

from text_lines import hash_ids, line  # noqa: E402

OUT = HERE / "data" / "text"
DEMO = HERE.parent.parent / "weights" / "demo" / "t5" / "spiece.model"
LINES = 10000


def write_hashes(folder, encode, lines=LINES):
    """Writes the hashes of encode(text), a list of ids."""
    hashes = [hash_ids(encode(line(i))) for i in range(lines)]
    (folder / "hashes.bin").write_bytes(struct.pack(f"<{lines}H", *hashes))


def without_table(model):
    """Returns the model without its normalisation's table, which the demo's T5 has, too."""
    proto, demo = (sentencepiece_model_pb2.ModelProto.FromString(x) for x in (model, DEMO.read_bytes()))
    assert proto.normalizer_spec.precompiled_charsmap == demo.normalizer_spec.precompiled_charsmap
    proto.normalizer_spec.precompiled_charsmap = b""
    return proto.SerializeToString()


def write_unigram(name, model, written=None):
    folder = OUT / name
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "spiece.model").write_bytes(written or model)
    processor = sentencepiece.SentencePieceProcessor(model_proto=model)
    write_hashes(folder, processor.encode)


def train(**options):
    out = io.BytesIO()
    text = (line(i) for i in range(20000, 26000) if i % 1000 > 2)
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=(x.replace("\0", "") for x in text), model_writer=out, model_type="unigram",
        num_threads=1, minloglevel=2, character_coverage=0.98, **options)
    return out.getvalue()


def with_suffix(model):
    """Returns the model with spaces at the end of pieces, unescaped, and with pieces that are unused."""
    proto = sentencepiece_model_pb2.ModelProto.FromString(model)
    proto.trainer_spec.treat_whitespace_as_suffix = True
    proto.normalizer_spec.escape_whitespaces = False
    proto.normalizer_spec.precompiled_charsmap = b""
    for i, piece in enumerate(proto.pieces):
        if piece.type != 1:
            continue
        if piece.piece.startswith("\u2581") and len(piece.piece) > 1:
            piece.piece = piece.piece[1:] + " "
        if i % 7 == 0:
            piece.type = 5
    return proto.SerializeToString()


def write_bpe(name, tokenizer, merges_as_strings=False, lines=LINES):
    folder = OUT / name
    folder.mkdir(parents=True, exist_ok=True)
    data = json.loads(tokenizer.to_str())
    if merges_as_strings:
        data["model"]["merges"] = [" ".join(pair) for pair in data["model"]["merges"]]
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"))
    (folder / "tokenizer.json").write_text(text, encoding="utf-8")
    tokenizer = Tokenizer.from_str(text)
    write_hashes(folder, lambda x: tokenizer.encode(x, add_special_tokens=False).ids, lines)


def train_bpe(tokenizer, special, size=700, alphabet=True, **options):
    text = (line(i) for i in range(20000, 26000) if i % 1000 > 2)
    tokenizer.train_from_iterator(text, trainers.BpeTrainer(
        vocab_size=size, special_tokens=special, show_progress=False,
        initial_alphabet=pre.ByteLevel.alphabet() if alphabet else [], **options))


def gpt2():
    t = Tokenizer(models.BPE())
    t.pre_tokenizer = pre.ByteLevel(add_prefix_space=True)
    train_bpe(t, ["<|endoftext|>"])
    t.add_special_tokens([AddedToken("[img]", normalized=False, lstrip=True)])
    t.add_tokens([AddedToken("snow", single_word=True), AddedToken("<sep>", rstrip=True, lstrip=True),
                  AddedToken("</s>", normalized=False, rstrip=True), AddedToken("cat dog")])
    return t


def mixed():
    t = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, ignore_merges=True))
    t.normalizer = norm.Sequence([norm.NFKC(), norm.Strip(), norm.Replace("'", "`"), norm.Lowercase()])
    t.pre_tokenizer = pre.Sequence([
        pre.Split(Regex(r"(?i:d.g)|[^\r\n\p{L}\p{N}]?\p{L}+|\s+(?!\S)"), "merged_with_next"), pre.Digits(True),
        pre.Punctuation("contiguous"), pre.Split("n", "merged_with_previous"), pre.Split(Regex(r"\s+$"), "removed"),
        pre.ByteLevel(add_prefix_space=False, use_regex=False)])
    train_bpe(t, ["<unk>"], alphabet=False, limit_alphabet=90)
    t.add_tokens([AddedToken("BOLD", normalized=True), AddedToken("Seven", normalized=False)])
    return t


def words():
    t = Tokenizer.from_file(str(OUT / "bpe" / "tokenizer.json"))
    t.add_tokens([AddedToken("dog", single_word=True, normalized=False)])
    t.pre_tokenizer = pre.Sequence([
        pre.Split(Regex(r"(IMGIMG)((A|B|C|D|E|F|G|H|I){1,4})Z"), "isolated"),
        pre.Split(Regex(r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|"
                        r"\s*[\r\n]+|\s+(?!\S)|\s+"), "isolated"),
        pre.Split(Regex(r"\p{Lu}"), "merged_with_next"), pre.Whitespace(),
        pre.ByteLevel(add_prefix_space=False, use_regex=False)])
    return t


def fallback():
    t = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    t.normalizer = norm.Sequence([norm.Prepend("\u2581"), norm.Replace(" ", "\u2581")])
    t.pre_tokenizer = pre.WhitespaceSplit()
    train_bpe(t, ["<unk>"] + [f"<0x{i:02X}>" for i in range(255)], size=900, alphabet=False, limit_alphabet=120)
    data = json.loads(t.to_str())
    data["pre_tokenizer"] = None
    data["added_tokens"] = data["added_tokens"][:1]
    return Tokenizer.from_str(json.dumps(data))


def clip():
    t = Tokenizer(models.BPE(unk_token="<|endoftext|>", end_of_word_suffix="</w>"))
    t.normalizer = norm.Sequence([norm.NFC(), norm.Replace(Regex(r"\s+"), " "), norm.Lowercase()])
    t.pre_tokenizer = pre.Sequence([
        pre.Split(Regex(r"'s|'t|'re|'ve|'m|'ll|'d|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+"), "removed", invert=True),
        pre.ByteLevel(add_prefix_space=False)])
    train_bpe(t, ["<|startoftext|>", "<|endoftext|>"], end_of_word_suffix="</w>")
    data = json.loads(t.to_str())
    letters = [x for x in data["model"]["vocab"] if len(x) == 1]
    for x in letters:  # as in OpenAI's vocabulary, each byte also ends a word
        data["model"]["vocab"].setdefault(x + "</w>", len(data["model"]["vocab"]))
    t = Tokenizer.from_str(json.dumps(data))
    t.post_processor = processors.RobertaProcessing(("<|endoftext|>", 1), ("<|startoftext|>", 0), False, False)
    return t


def write_clip_files(tokenizer):
    folder = OUT / "clip_files"
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.model.save(str(folder))
    t = CLIPTokenizer(str(folder / "vocab.json"), str(folder / "merges.txt"))
    write_hashes(folder, lambda x: t(x, add_special_tokens=False)["input_ids"])


QWEN2_WORDS = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|"
               r"\s+(?!\S)|\s+")
QWEN2_SPECIAL = ["endoftext", "im_start", "im_end", "object_ref_start", "object_ref_end", "box_start", "box_end", "quad_start", "quad_end",
                 "vision_start", "vision_end", "vision_pad", "image_pad", "video_pad"]
QWEN2_OTHER = ["<tool_call>", "</tool_call>", "<|fim_prefix|>", "<|fim_middle|>", "<|fim_suffix|>", "<|fim_pad|>", "<|repo_name|>",
               "<|file_sep|>"]


def qwen2():
    t = Tokenizer(models.BPE())
    t.normalizer = norm.NFC()
    t.pre_tokenizer = pre.Sequence([pre.Split(Regex(QWEN2_WORDS), "isolated"),
                                    pre.ByteLevel(add_prefix_space=False, trim_offsets=False, use_regex=False)])
    train_bpe(t, [], size=500)
    t.add_special_tokens([AddedToken(f"<|{x}|>", normalized=False) for x in QWEN2_SPECIAL])
    t.add_tokens([AddedToken(x, normalized=False) for x in QWEN2_OTHER])
    return t


def write_qwen2_files(tokenizer):
    folder = OUT / "qwen2_files"
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.model.save(str(folder))
    added = {x["id"]: {k: v for k, v in x.items() if k != "id"} for x in json.loads(tokenizer.to_str())["added_tokens"]}
    (folder / "tokenizer_config.json").write_text(json.dumps({
        "add_prefix_space": False, "added_tokens_decoder": added, "bos_token": None, "eos_token": "<|im_end|>", "errors": "replace",
        "model_max_length": 131072, "pad_token": "<|endoftext|>", "split_special_tokens": False, "tokenizer_class": "Qwen2Tokenizer",
        "unk_token": None}))
    t = AutoTokenizer.from_pretrained(str(folder))
    for i in range(LINES):
        assert t(line(i), add_special_tokens=False)["input_ids"] == tokenizer.encode(line(i), add_special_tokens=False).ids, i


def main():
    write_bpe("bpe", gpt2())
    write_bpe("bpe_mixed", mixed(), merges_as_strings=True)
    write_bpe("bpe_words", words(), lines=2000)
    write_bpe("bpe_fallback", fallback())
    tokenizer = clip()
    write_bpe("clip", tokenizer)
    write_clip_files(tokenizer)
    tokenizer = qwen2()
    write_bpe("qwen2", tokenizer)
    write_qwen2_files(tokenizer)
    model = train(vocab_size=2000, unk_id=2, bos_id=-1, eos_id=1, pad_id=0, normalization_rule_name="nmt_nfkc")
    write_unigram("unigram", model, without_table(model))
    write_unigram("unigram_suffix", with_suffix(model))
    write_unigram("unigram_bytes", train(
        vocab_size=2400, normalization_rule_name="identity", byte_fallback=True, remove_extra_whitespaces=False,
        user_defined_symbols=["[img]", "<sep>", "bold", "\u2581\u2581", "corgi in"], control_symbols=["<ctl>"]))


if __name__ == "__main__":
    main()
