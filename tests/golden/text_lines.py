"""The lines of text that tests/text cuts into tokens, made by the same rules as tests/support/text_lines.c."""

MASK = (1 << 64) - 1

WORDS = ("a the of in with and on corgi snow photo bold seven red blue cat dog house mountain river old young woman man "
         "painting watercolor portrait astronaut riding horse digital art highly detailed light sunset city street "
         "wooden table flower garden small large bright dark green yellow white black person's don't it's we've I'll "
         "you're they'd 3d 4k 1920s HDR").split()

# First and last code points of the runs from which words are drawn.
BLOCKS = [
    (0xA1, 0xFF), (0x100, 0x17F), (0x1C4, 0x1CC), (0x391, 0x3A1), (0x3A3, 0x3C9), (0x410, 0x44F), (0x531, 0x556),
    (0x5D0, 0x5EA), (0x621, 0x64A), (0x64B, 0x652), (0x904, 0x939), (0x93E, 0x94D), (0xE01, 0xE3A), (0x10D0, 0x10FA),
    (0x13A0, 0x13F5), (0x1100, 0x1112), (0x1161, 0x1175), (0x11A8, 0x11C2), (0xAC00, 0xD7A3), (0x3041, 0x3096),
    (0x30A1, 0x30FA), (0x4E00, 0x9FA5), (0xF900, 0xFA2D), (0xFF01, 0xFF9D), (0x300, 0x36F), (0x2010, 0x2027),
    (0x2030, 0x205E), (0x2074, 0x208E), (0x2100, 0x214F), (0x2150, 0x2188), (0x2460, 0x24FF), (0x1D400, 0x1D454),
    (0x1F600, 0x1F64F), (0x1F300, 0x1F5FF), (0x1F1E6, 0x1F1FF), (0x1, 0x1F), (0x7F, 0x9F), (0x200B, 0x200F),
    (0xFE76, 0xFEFC), (0xFB00, 0xFB06), (0x1D15E, 0x1D164), (0x1E00, 0x1EFF), (0x10400, 0x1044F), (0x660, 0x669),
    (0x30, 0x39), (0x21, 0x2F)]

SPECIALS = ["</s>", "<unk>", "<s>", "<extra_id_0>", "<|endoftext|>", "<|startoftext|>", "\u2581", "\u2581\u2581",
            "\U0001F469\u200D\U0001F469\u200D\U0001F467", "e\u0301", "\uFB01n", "\u0130", "\u039F\u03A3", "\u2026",
            "\0", "\uFFFD", "\uFEFF", "<0x41>", "\u00BD", "\u2126", "\u1E9B\u0323", "\U0001D15E", "\u0F73", "[img]",
            "<sep>", "http://a.b/c?d=e&f", "\u30AB\u3099", "\u1100\u1161\u11A8", "\u180E", "\u0345", "\u00AD", "'S"]

SEPARATORS = [" ", " ", " ", " ", " ", " ", " ", " ", " ", " ", "  ", "   ", "\t", "\n", "\r\n", "", "\u00A0", "\u3000",
              "\u2003", "\x0b\x0c"]


class Random:
    """SplitMix64."""

    def __init__(self, seed):
        self.state = seed & MASK

    def below(self, n):
        self.state = (self.state + 0x9E3779B97F4A7C15) & MASK
        z = self.state
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
        return (z ^ (z >> 31)) % n


def word(r):
    kind = r.below(20)
    if kind < 10:
        w = WORDS[r.below(len(WORDS))]
        case = r.below(8)
        return w.upper() if case == 0 else w[0].upper() + w[1:] if case == 1 else w
    if kind == 10:
        return "".join(chr((0x41 if r.below(3) == 0 else 0x61) + r.below(26)) for _ in range(1 + r.below(10)))
    if kind == 11:
        return "".join(chr(0x30 + r.below(10)) for _ in range(1 + r.below(8)))
    if kind == 12:
        return "".join(chr(0x21 + r.below(15)) for _ in range(1 + r.below(5)))
    if kind < 18:
        first, last = BLOCKS[r.below(len(BLOCKS))]
        return "".join(chr(first + r.below(last - first + 1)) for _ in range(1 + r.below(6)))
    if kind == 18:
        return SPECIALS[r.below(len(SPECIALS))]
    first, last = BLOCKS[r.below(len(BLOCKS))]
    return chr(first + r.below(last - first + 1))


def line(i):
    """Line i of the text. Some are empty, of white space only, or of some 50 000 bytes."""
    r = Random(i)
    if i % 1000 == 0:
        return ""
    if i % 1000 == 2:
        return "".join(SEPARATORS[r.below(len(SEPARATORS))] for _ in range(5))
    parts = []
    for _ in range(10000 if i % 1000 == 1 else 1 + r.below(12)):
        parts.append(SEPARATORS[r.below(len(SEPARATORS))])
        parts.append(word(r))
    return "".join(parts if r.below(4) == 0 else parts[1:])


def hash_ids(ids):
    """16 bits of FNV-1a over the ids as numbers of 4 bytes."""
    h = 0x811C9DC5
    for i in ids:
        for byte in int(i).to_bytes(4, "little"):
            h = ((h ^ byte) * 0x01000193) & 0xFFFFFFFF
    return (h ^ (h >> 16)) & 0xFFFF
