"""Ids of prompts by the official code of Lumina-mGPT, Anole and Emu3, with small tokenizers in their layouts.
python3 tests/golden/make_prompts.py LUMINA ANOLE EMU3  ->  tests/golden/data/prompts/

LUMINA, ANOLE, EMU3  clones of Alpha-VLLM/Lumina-mGPT, GAIR-NLP/anole and baaivision/Emu3
chameleon/           tokenizer.json as Chameleon's
emu3/                emu3.tiktoken, emu3_vision_tokens.txt; hashes.bin: 16 bits for each of 2000 lines, by tiktoken
prompts.json         texts; the last is a negative prompt
ids.txt              a line each: family, width, height, number of the text, and ids; -1: the second context without a
                     text of its own"""

import importlib.util
import json
import struct
import sys
import types
import unicodedata
from base64 import b64encode
from pathlib import Path

import tiktoken
from tokenizers import AddedToken, Regex, Tokenizer, models, pre_tokenizers as pre, trainers
from transformers import PreTrainedTokenizerFast

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

from text_lines import hash_ids, line  # noqa: E402

OUT = HERE / "data" / "prompts"
LINES = 2000
PROMPTS = ["a corgi in the snow", "Ein Café, naïve; e\u0301tude.", "two\nlines\r\n\r\n  and  spaces ", " ", "12345 7's IT'LL",
           "雪 の 犬 🐶", "<reserved08706> inside <s>", "<|image start|>90*90<|image token|>", "IMGIMGBCZ IMGIMGZ", "a" * 300]
NEGATIVE = "blurry, text"
SIZES = {"lumina-mgpt": [(768, 768), (512, 1024)], "anole": [(512, 512)], "emu3": [(720, 720), (512, 800)]}


def prompts_of(family, w, h):
    """Returns the prompts for images of this size: two for others than the family's own."""
    return PROMPTS if (w, h) == SIZES[family][0] else PROMPTS[:2]


def train(size, specials):
    """Returns a byte-level BPE trained on the lines, with these ids first."""
    t = Tokenizer(models.BPE())
    t.pre_tokenizer = pre.ByteLevel(add_prefix_space=False)
    text = (line(i) for i in range(20000, 26000) if i % 1000 > 2)
    t.train_from_iterator(text, trainers.BpeTrainer(
        vocab_size=size, special_tokens=specials, show_progress=False, initial_alphabet=pre.ByteLevel.alphabet()))
    return t


def chameleon_tokenizer():
    """Writes a tokenizer.json with Chameleon's special tokens and splits."""
    images = ["IMGIMG" + "".join(chr(ord("A") + int(d)) for d in str(i)) + "Z" for i in (2, 0, 3, 1, 10, 11, 4, 5, 6, 7, 8, 9)]
    sizes = [f"<reserved{i:05d}>" for i in (8706, 8799, 8816, 8824, 8832)]
    t = train(400, ["<s>", "<pad>", "</s>", "<unk>"] + images + ["<eoss>", "<racm3:break>"] + sizes)
    t.pre_tokenizer = pre.Sequence([
        pre.Split(Regex(r"(IMGIMG)((A|B|C|D|E|F|G|H|I){1,4})Z"), "isolated"),
        pre.Digits(individual_digits=True), pre.ByteLevel(add_prefix_space=False)])
    data = json.loads(t.to_str())
    data["added_tokens"] = [x for x in data["added_tokens"] if x["content"] not in images]
    folder = OUT / "chameleon"
    folder.mkdir(parents=True, exist_ok=True)
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"))
    (folder / "tokenizer.json").write_text(text, encoding="utf-8")
    return folder


def emu3_files():
    """Writes emu3.tiktoken and emu3_vision_tokens.txt."""
    char_of = {}
    printable = list(range(33, 127)) + list(range(161, 173)) + list(range(174, 256))
    for byte in range(256):
        char_of[chr(byte if byte in printable else 256 + sum(b not in printable for b in range(byte)))] = byte
    vocab = train(560, []).get_vocab()
    pieces = [bytes(char_of[c] for c in x) for x, _ in sorted(vocab.items(), key=lambda x: x[1])]
    folder = OUT / "emu3"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "emu3.tiktoken").write_bytes(b"".join(b64encode(x) + b" %d\n" % i for i, x in enumerate(pieces)))
    tokens = ["<|image token|>", "<|image start|>", "<|image end|>"] + [f"<|visual token {i:06d}|>" for i in range(4)]
    (folder / "emu3_vision_tokens.txt").write_text("\n".join(tokens) + "\n")
    return folder, len(pieces)


def module(path, name, package=None):
    spec = importlib.util.spec_from_file_location(name, path)
    m = importlib.util.module_from_spec(spec)
    sys.modules[name] = m
    spec.loader.exec_module(m)
    return m


def lumina_ids(root, folder):
    """Yields the ids of the conversation (item_processor.py) and, behind them, of the image's begin
    (inference_solver.py draws them; process_image has their order)."""
    sys.path.insert(0, str(root))
    from xllmx.data.item_processor import MMConvItemProcessor
    from xllmx.model.tokenizer import Tokenizer as LuminaTokenizer
    conversation = module(root / "lumina_mgpt" / "data" / "convertsation.py", "convertsation").Conversation
    tokenizer = PreTrainedTokenizerFast(tokenizer_file=str(folder / "tokenizer.json"), bos_token="<s>", eos_token="</s>")
    tokenizer.save_pretrained("/tmp/make_prompts")
    processor = MMConvItemProcessor({}, [], LuminaTokenizer("/tmp/make_prompts"), conversation)
    vocab = tokenizer.get_vocab()
    for w, h in SIZES["lumina-mgpt"]:
        begin = [vocab["<racm3:break>"]] + [vocab[f"<reserved{8800 + x // 32:05d}>"] for x in (h, w)]
        for i, prompt in enumerate(prompts_of("lumina-mgpt", w, h)):
            text = f"Generate an image of {w}x{h} according to the following prompt:\n{prompt}"
            item = {"conversations": [{"from": "human", "value": text}, {"from": "gpt", "value": None}]}
            yield "lumina-mgpt", w, h, i, processor.process_item(item) + begin
        yield "lumina-mgpt", w, h, -1, begin


def anole_ids(root, folder):
    """Yields the ids of TokenManager.tokens_from_ui (chameleon/inference/chameleon.py) and of ImageDecoder's begin."""
    vocab_module = module(root / "chameleon" / "inference" / "vocab.py", "anole_vocab")
    source = (root / "chameleon" / "inference" / "chameleon.py").read_text()
    start = source.index("    def tokens_from_ui"), source.index("    def decode_text")
    scope = {"Image": type(None)}
    exec("class Manager:\n" + source[start[0]:start[1]], scope)  # the module needs a GPU's libraries
    manager = scope["Manager"]()
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    manager.vocab = vocab_module.VocabInfo(json.loads((folder / "tokenizer.json").read_text())["model"]["vocab"])
    manager.tokenize_text = lambda text: tokenizer.encode(text).ids
    for i, prompt in enumerate(PROMPTS):
        ids = manager.tokens_from_ui([{"type": "text", "value": prompt}, {"type": "sentinel", "value": "<END-OF-TURN>"}])
        yield "anole", 512, 512, i, ids + [manager.vocab.begin_image]
    yield "anole", 512, 512, -1, [manager.vocab.bos_id, manager.vocab.begin_image]


def emu3_ids(root, folder, pieces):
    """Yields the ids of Emu3Processor with Emu3Tokenizer, and writes the hashes of lines."""
    package = types.ModuleType("emu3_mllm")
    package.__path__ = [str(root / "emu3" / "mllm")]
    sys.modules["emu3_mllm"] = package
    tokenization = importlib.import_module("emu3_mllm.tokenization_emu3")
    processing = importlib.import_module("emu3_mllm.processing_emu3")
    ranks = tokenization._load_tiktoken_bpe(str(folder / "emu3.tiktoken"))
    vision = [x.strip() for x in open(folder / "emu3_vision_tokens.txt") if x.strip()]
    names = (tokenization.ENDOFTEXT, tokenization.IMSTART, tokenization.IMEND) + tokenization.EXTRAS + tuple(vision)
    encoding = tiktoken.Encoding("Emu3", pat_str=tokenization.PAT_STR, mergeable_ranks=ranks,
                                 special_tokens={x: pieces + i for i, x in enumerate(names)})
    encode = lambda x: encoding.encode(unicodedata.normalize("NFC", x), allowed_special="all")
    tokenizer = types.SimpleNamespace(bos_token="<|extra_203|>", boi_token="<|image start|>", img_token="<|image token|>")
    text_of = lambda prompt, h, w: (tokenizer.bos_token + prompt + tokenizer.boi_token +
                                    "{H}*{W}".format(H=h, W=w) + tokenizer.img_token)
    source = (root / "image_generation.py").read_text()
    scope = {}
    exec("\n".join(x for x in source.splitlines() if x.startswith(("POSITIVE_PROMPT =", "NEGATIVE_PROMPT ="))), scope)
    call = processing.Emu3Processor.__call__
    for w, h in SIZES["emu3"]:
        fake = types.SimpleNamespace(
            tokenizer=None, vision_tokenizer=types.SimpleNamespace(spatial_scale_factor=8), prefix_template="{H}*{W}",
            calculate_generate_size=lambda *a: (h // 8, w // 8))
        collected = []
        fake.tokenizer = type("T", (), dict(vars(tokenizer), __call__=lambda s, x, **k: (collected.extend(x), {})[1]))()
        texts = [p + scope["POSITIVE_PROMPT"] for p in prompts_of("emu3", w, h)] + [scope["NEGATIVE_PROMPT"], NEGATIVE]
        call(fake, text=texts, mode="G", ratio=["1:1"] * len(texts))
        assert collected == [text_of(x, h // 8, w // 8) for x in texts]
        numbers = list(range(len(texts) - 2)) + [-1, len(PROMPTS)]
        for i, text in zip(numbers, collected):
            yield "emu3", w, h, i, encode(text)
    hashes = [hash_ids(encode(line(i))) for i in range(10000)]
    (folder / "hashes.bin").write_bytes(struct.pack(f"<{LINES}H", *hashes[:LINES]))
    if len(sys.argv) > 4:  # all 10 000 lines, to compare once
        Path(sys.argv[4]).write_bytes(struct.pack(f"<{len(hashes)}H", *hashes))


def main():
    lumina, anole, emu3 = (Path(x) for x in sys.argv[1:4])
    chameleon = chameleon_tokenizer()
    lines = list(lumina_ids(lumina, chameleon)) + list(anole_ids(anole, chameleon)) + list(emu3_ids(emu3, *emu3_files()))
    with open(OUT / "ids.txt", "w") as f:
        for family, w, h, i, ids in lines:
            print(family, w, h, i, *ids, file=f)
    (OUT / "prompts.json").write_text(json.dumps(PROMPTS + [NEGATIVE]), encoding="utf-8")


if __name__ == "__main__":
    main()
