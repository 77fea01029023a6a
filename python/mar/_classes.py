"""Names of a model's classes: ImageNet's, or those of a file. The rules are those of mar generate --class."""
from __future__ import annotations

import pathlib
import re

from ._core import Path
from ._lib import lib

Names = tuple[tuple[str, ...], ...]  # of each class


def _normal(name: str) -> str:
    return re.sub(r"[\s_-]+", " ", name).strip().lower()


def read(path: Path) -> Names:
    """Reads names: a class a line, separated by commas."""
    lines = pathlib.Path(path).read_text(encoding="utf-8-sig").rstrip().split("\n")
    table = tuple(tuple(name.strip() for name in line.split(",")) for line in lines)
    for i, names in enumerate(table):
        if not all(names):
            raise ValueError(f"class_names: {path}: line {i + 1}: an empty name, expected those of class {i}")
    return table


def imagenet() -> Names:
    """Returns the names of the 1000 classes, from the file beside the package, or beside the library in a build."""
    files = [pathlib.Path(beside).with_name("share") / "libmar" / "imagenet_classes.txt"
             for beside in (__file__, lib._name)]
    for path in files:
        if path.exists():
            return read(path)
    raise FileNotFoundError(f"what: the names of ImageNet's classes are missing, neither {files[0]} nor {files[1]} is "
                            "there: expected a number, or mar.load(..., class_names=a file of names)")


def of_model(path: Path, classes: int) -> Names:
    """Returns the names in a file, of a model of so many classes."""
    table = read(path)
    if len(table) != classes:
        raise ValueError(f"class_names: {path}: has the names of {len(table)} classes, expected {classes}")
    return table


def find(name: str, table: Names) -> int:
    """Returns the class with this name, or else the only one with these words in a name."""
    word = _normal(name)
    exact = [i for i, names in enumerate(table) if word in map(_normal, names)]
    has_words = [[n for n in names if word and f" {word} " in f" {_normal(n)} "] for names in table]
    found = exact or [i for i, names in enumerate(has_words) if names]
    if len(found) == 1:
        return found[0]
    if not found:
        raise ValueError(f'what: class "{name}": expected a number from 0 to {len(table) - 1}, or a name such as '
                         f'"{table[207 if len(table) == 1000 else 0][0]}"')
    # of classes of one name, another name of each
    shown = [next((n for n in table[i] if _normal(n) != word), name) if exact else has_words[i][0] for i in found[:3]]
    how = "this name" if exact else "it in a name"
    raise ValueError(f'what: class "{name}": {len(found)} classes have {how}, expected one of '
                     f"{', '.join(f'{n!r} ({i})' for n, i in zip(shown, found))}{', ...' * (len(found) > 3)}")
