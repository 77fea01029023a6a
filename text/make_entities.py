"""Writes text/entities_data.c, HTML's named characters, of Python's table html.entities.html5.
python3 text/make_entities.py"""

from html.entities import html5
from pathlib import Path

HEAD = """/* Written by text/make_entities.py: HTML's named characters (html.spec.whatwg.org, named character references). */
#include "text/entities.h"

/* Sorted lines: a name, with ";" behind it if it needs one; a space; one or two code points in hexadecimal. */
const char text_entities[] ="""

lines = []
for name in sorted({n.rstrip(";") for n in html5}):
    value = html5.get(name + ";", html5.get(name))
    assert name + ";" in html5 and html5.get(name, value) == value and len(value) <= 2
    lines.append(f"{name}{'' if name in html5 else ';'} {','.join(f'{ord(c):x}' for c in value)}\\n")
text, row = HEAD, ""
for line in lines + [None]:
    if line is None or len(row) + len(line) > 112:
        text += f'\n    "{row}"'
        row = ""
    row += line or ""
Path(__file__).with_name("entities_data.c").write_text(text + ";\n")
