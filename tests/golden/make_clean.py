"""Captions, and what LlamaGen's own code cleans them to, with ftfy left out and text/clean.h's rule for tags.
python3 tests/golden/make_clean.py LLAMAGEN [COUNT]  ->  tests/golden/data/text/captions.bin

LLAMAGEN is a clone of FoundationVision/LlamaGen.
captions.bin has pairs of strings, each with its size before it, u16 little-endian. With COUNT, writes COUNT captions
and results, u32 sizes, to standard output. U+0000 is removed, as libmar does."""

import html
import random
import re
import struct
import sys
import types
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

from text_lines import line  # noqa: E402

WORDS = ("a the of in with and on corgi snow photo bold seven red blue cat dog house mountain river old young page "
         "click for on free download shipping worldwide image images png jpg person portrait jc6640 jc6640vc 6640vc231 "
         "j2d1a2a 10x20 3.5x4 10х20 10×20. 1x1_ 5x6.7a 12:30 1:23 192.168.1.1 #123 #1234 #12345 1234567 @nick "
         "this-is-my-cute-cat this_is_my_cute_cat ΑΣ ΟΔΟΣ İstanbul ΣΣ Σ. don't \"quoted\" ''x'' ... . : ; , -- — – “a” ‘b’ "
         "«c» `d` *** ### (x) [y] {z} a|b a\\b a/b \\n 漢字 カタカナ ㍿ ㈱ ㇰ ㇀ 한글 café naïve Ünïcode x,y x.y 3,4 a.b.c "
         "e\u0301 \u00a0 \u3000 \x1c \x85 \u2028 \u180e ²x³ ½ №5 x٣٤٥٦٧٨ ٣ab").split(" ")

URLS = ["http://a.com/b?c=d", "https://www.example.org/x-y_z", "www.foo.com", "www:8080", "foo.co.uk/bar", "bar.netx",
        "me@site.com", "https:a", "http:///", "sub.domain.gov/", "x.it", "a.b.ru/ж", "com.com@com", "file.name.PNG",
        "a.jpg.png", "x.webp.", "dir/photo.jpeg", ".mp4", "a.pdf,b.eps", "HTTPS://A.EDU!"]

MARKUP = ["<b>", "</b>", "<br>", "<br/>", "</br>", "<p class='x'>", "<a href=\"http://a.com\">", "</a>", "<img src=x.png>",
          "<script>var a = '<b>';</script>", "<script>", "</script >", "<style>p{}</style>", "<!-- a comment -->", "<!--",
          "--  >", "<!doctype html>", "<!x>", "<?php echo ?>", "<?", "<![CDATA[ data ]]>", "<![cdata[]]>",
          "<![if x]> y <![endif]>", "<", ">", "< b>", "<3", "<b", "<b x", "<b x=", "<b 'y'>", "<b/x>", "<b x='>", "</", "</>",
          "</ b>", "</b x>", "</1>", "<pre> </pre>", "<textarea>\n</textarea>", "<rt>ruby</rt>", "<template> t </template>",
          "<rp>", "</rp>", "<hr", "<person>", "<PERSON>", "<b\t/>", "<a\n=x>", "<ß>", "<b =\"x\"y>", "<i/ >", "<b>\n \n</b>",
          "<input/>", "</input>", "<a b='1' c=\"2\" d=3 e>", "<a b=c/d>", "<a//>"]

ENTITIES = ["&amp;", "&amp;amp;", "&lt;b&gt;", "&quot;", "&quot", "&#39;", "&#x27;", "&#128;", "&#x80", "&#0;", "&#xd800;",
            "&#1114112;", "&#99999999999;", "&#12a;", "&#;", "&#", "&#x;", "&#xg;", "&#31;", "&#x7f;", "&#xfffe;", "&eacute;",
            "&eacute", "&EACUTE;", "&notit;", "&notin;", "&nbsp;", "&nbsp", "&hellip;", "&unknown;", "&unknown", "&a", "&a-",
            "&a.b;", "&", "& ", "&&amp;", "&nGt;", "&bne;", "&fjlig;", "&frac12;", "&frac12x", "&Aacute;", "&copy;2020",
            "&amp;eacute;", "&ampeacute;", "&amp;#233;", "&lt;script&gt;", "&zwnj;", "&amp;quot;", "&1", "&é;", "&#x41;&#66"]

ESCAPES = ["%20", "%C3%A9", "%c3", "%A9", "%E2%82%AC", "%E2%82", "%F0%9F%98%80", "%F0%9F", "%ED%A0%80", "%zz", "%", "%2",
           "%00", "%3Cb%3E", "%26amp%3B", "%0A", "%2B", "+", "é%A9", "%C3é", "%ff%fe", "%E0%80%80", "%F4%90%80%80", "%c2%85"]

LETTERS = "ab1 .,:;-_'\"/\\<>&#@x%+=!?()[]\n\tÉéΣσ漢\u2014"


def word(r):
    kind = r.randrange(12)
    if kind < 5:
        w = r.choice(WORDS)
        return w.upper() if r.randrange(6) == 0 else w
    if kind == 5:
        return r.choice(URLS)
    if kind < 8:
        return r.choice(MARKUP)
    if kind == 8:
        return r.choice(ENTITIES)
    if kind == 9:
        return r.choice(ESCAPES)
    if kind == 10:
        return "".join(r.choice(LETTERS) for _ in range(r.randrange(1, 12)))
    return "".join(r.choice("<>&;/!-abps='\" ") for _ in range(r.randrange(1, 14)))


def caption(i):
    r = random.Random(i)
    if i % 10 == 9:
        return line(i)[:300]
    separators = [" "] * 6 + ["", "", "  ", "\n", " - ", "."]
    return "".join(word(r) + r.choice(separators) for _ in range(r.randrange(1, 14)))


class WithoutTags:
    """What stands for BeautifulSoup: `text` is the markup without tags, its character references decoded."""

    def __init__(self, markup, features):
        self.text = html.unescape(re.sub("<[a-z/!?][^<>]*>", "", markup))


def official(folder):
    """Returns the official text_preprocessing, in which ftfy.fix_text changes nothing."""
    for name, fields in {"ftfy": {"fix_text": lambda text: text}, "bs4": {"BeautifulSoup": WithoutTags}, "torch": {},
                         "transformers": {"T5EncoderModel": None, "AutoTokenizer": None},
                         "huggingface_hub": {"hf_hub_download": None}}.items():
        sys.modules[name] = types.ModuleType(name)
        sys.modules[name].__dict__.update(fields)
    sys.path.insert(0, str(folder))
    from language.t5 import T5Embedder
    cleaner = T5Embedder.__new__(T5Embedder)
    cleaner.use_text_preprocessing = True
    return cleaner.text_preprocessing


def pairs(folder, count):
    clean = official(folder)
    for i in range(count):
        text = caption(i)
        yield text, clean(text).replace("\0", "").strip()


def main():
    if len(sys.argv) > 2:
        for pair in pairs(sys.argv[1], int(sys.argv[2])):
            for text in pair:
                sys.stdout.buffer.write(struct.pack("<I", len(text.encode())) + text.encode())
        return
    with open(HERE / "data" / "text" / "captions.bin", "wb") as out:
        for pair in pairs(sys.argv[1], 600):
            for text in pair:
                out.write(struct.pack("<H", len(text.encode())) + text.encode())


if __name__ == "__main__":
    main()
