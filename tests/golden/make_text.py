"""Tokenizers and the hashes of the ids that the reference libraries make with them.
python3 tests/golden/make_text.py  ->  tests/golden/data/text/<model>/

Models, trained on the lines of text_lines.py:
  unigram        sentencepiece, normalisation nmt_nfkc as T5's
  unigram_bytes  identity, byte_fallback, user-defined symbols, spaces kept
  unigram_suffix pieces that are unused or end with a space; written by hand from the first
hashes.bin has a number of 16 bits for each of 10 000 lines."""

import io
import struct
import sys
from pathlib import Path

import sentencepiece
from sentencepiece import sentencepiece_model_pb2

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

from text_lines import hash_ids, line  # noqa: E402

OUT = HERE / "data" / "text"
LINES = 10000


def write_hashes(folder, encode):
    """Writes the hashes of encode(text), a list of ids."""
    hashes = [hash_ids(encode(line(i))) for i in range(LINES)]
    (folder / "hashes.bin").write_bytes(struct.pack(f"<{LINES}H", *hashes))


def write_unigram(name, model):
    folder = OUT / name
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "spiece.model").write_bytes(model)
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


def main():
    model = train(vocab_size=2000, unk_id=2, bos_id=-1, eos_id=1, pad_id=0, normalization_rule_name="nmt_nfkc")
    write_unigram("unigram", model)
    write_unigram("unigram_suffix", with_suffix(model))
    write_unigram("unigram_bytes", train(
        vocab_size=2400, normalization_rule_name="identity", byte_fallback=True, remove_extra_whitespaces=False,
        user_defined_symbols=["[img]", "<sep>", "bold", "\u2581\u2581", "corgi in"], control_symbols=["<ctl>"]))


if __name__ == "__main__":
    main()
