"""A folder of tokenised shards that can be used without the texts they came from, on any machine.

`tokens.json` lists the shards in their order, and the tokenizer stands beside it.
"""

import re
from pathlib import Path
from typing import Any

from qkv.data.token_shards import VERSION, TokenShards, cutting_of
from qkv.data.tokenizer import TextTokenizer
from qkv.errors import QkvError
from qkv.files import read_json, write_json

LIST, TOKENIZER = "tokens.json", "tokenizer.json"
KEY = re.compile(r"[0-9a-f]{32}")


def write_list(shards: TokenShards) -> int:
    """Say in their folder which shards there are, or will be, and by which tokenizer.

    A folder may be used again for a corpus that has grown or changed: what both have stays. Returns the number of
    shards that were listed there and are no more.
    """
    folder = shards.folder
    before: list[str] = []
    if is_token_folder(folder):
        old = open_tokens(folder)
        if cutting_of(old.tokenizer) != cutting_of(shards.tokenizer):
            raise QkvError(f"{folder} holds tokens of another tokenizer: give another folder.")
        before = old.keys
    try:
        folder.mkdir(parents=True, exist_ok=True)
        shards.tokenizer.save(folder / TOKENIZER)
        listed = [{"name": name, "key": key} for name, key in zip(shards.names, shards.keys, strict=True)]
        about = {"version": VERSION, "fingerprint": shards.fingerprint, "tokenizer": shards.tokenizer.fingerprint()}
        write_json(folder / LIST, {**about, "shards": listed})
    except OSError as error:
        raise QkvError(f"Tokens cannot be written to {folder}: {error.strerror or error}.") from error
    return len(set(before) - set(shards.keys))


def is_token_folder(folder: Path | str) -> bool:
    return (Path(folder) / LIST).is_file()


def open_tokens(folder: Path | str) -> TokenShards:
    """The shards of a folder that `qkv tokenize` made."""
    folder = Path(folder)
    if not is_token_folder(folder):
        raise QkvError(f"{folder} holds no tokens: it should be a folder that qkv tokenize made.")
    about = read_json(folder / LIST)
    names, keys = _listed(about, folder / LIST)
    tokenizer = TextTokenizer.load(folder / TOKENIZER)
    shards = TokenShards.made_before(names, keys, tokenizer, folder)
    if shards.fingerprint != about.get("fingerprint") or tokenizer.fingerprint() != about.get("tokenizer"):
        raise QkvError(
            f"The list or the tokenizer in {folder} was edited: they do not belong together. Tokenise again."
        )
    return shards


def _listed(about: Any, file: Path) -> tuple[list[str], list[str]]:
    wrong = QkvError(f"{file} is not a list of tokenised shards.")
    if not isinstance(about, dict):
        raise wrong
    if about.get("version") != VERSION:
        raise QkvError(f"{file} is of version {about.get('version')!r}, and {VERSION} can be read: tokenise again.")
    shards = about.get("shards")
    if not isinstance(shards, list) or not shards:
        raise wrong
    names, keys = [], []
    for shard in shards:
        match shard:
            case {"name": str(name), "key": str(key)} if KEY.fullmatch(key):
                names.append(name)
                keys.append(key)
            case _:
                raise wrong
    return names, keys
