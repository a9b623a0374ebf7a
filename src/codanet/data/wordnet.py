"""WordNet ids and the words for them, as ImageNet's subsets use them."""

from __future__ import annotations

import re
from pathlib import Path

WNID = re.compile(r"n\d{8}")
WORD_FILES = ("words.txt", "LOC_synset_mapping.txt")


def class_words(root: Path, wnids: list[str]) -> tuple[str, ...]:
    """The first word for each wnid, or the wnid where `root` has no list of words; shared words get the wnid added."""
    words: dict[str, str] = {}
    for name in WORD_FILES:
        if (root / name).is_file():
            lines = (root / name).read_text(encoding="utf-8", errors="replace").splitlines()
            words = {line[:9]: line[9:].split(",")[0].strip() for line in lines}
            break
    names = [words.get(wnid) or wnid for wnid in wnids]
    return tuple(n if names.count(n) == 1 else f"{n} ({w})" for n, w in zip(names, wnids, strict=True))
