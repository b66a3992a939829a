"""Texts that are no prose, cut before their pieces are looked up: for vocabularies whose files do not say how.

The tokenizer of a published model of molecules is often a `vocab.txt` alone, and that texts are cut by a regular
expression stands in the program that trained it. A person must say so; see `SPLITS`.
"""

import json
from dataclasses import replace

from tokenizers import Tokenizer

from qkv.data.tokenizer import TextTokenizer
from qkv.errors import QkvError, nearest_or_all

# Atoms in brackets, atoms of two letters and of one, aromatic ones, rings of more than nine, and single signs.
# [schwaller2019]
SMILES = (
    r"\[[^\]]+\]|Br|Cl|[BCNOPSFI]|[bcnops]|%\([0-9]{3}\)|%[0-9]{2}|[0-9]|>>|>"
    r"|\(|\)|\.|=|#|-|\+|\\|/|:|~|@|\?|\*|\$|\|"
)
SPLITS = {"smiles": SMILES}


def split_by(tokenizer: TextTokenizer, way: str) -> TextTokenizer:
    """The same vocabulary for texts that are cut in this way; a piece that it does not hold whole is unknown."""
    if way not in SPLITS:
        raise QkvError(f"There is no way {way!r} to split texts: {nearest_or_all(way, SPLITS)}")
    state = json.loads(tokenizer.library_state())
    if state["model"]["type"] not in ("WordPiece", "WordLevel"):
        raise QkvError(
            f"Only a vocabulary of whole pieces can be looked up by what {way} are split into, and this is one of "
            f"{state['model']['type']}."
        )
    state["model"] = {
        "type": "WordLevel",
        "vocab": state["model"]["vocab"],
        "unk_token": tokenizer.roles["unknown"],
    }
    state["normalizer"] = None  # capitals are atoms, small letters aromatic ones
    state["pre_tokenizer"] = {
        "type": "Split",
        "pattern": {"Regex": SPLITS[way]},
        "behavior": "Isolated",
        "invert": False,
    }
    state["decoder"] = {"type": "Fuse"}
    notes = replace(tokenizer.notes, roles=tokenizer.roles, clean_up=False)
    return TextTokenizer(Tokenizer.from_str(json.dumps(state)), notes)
