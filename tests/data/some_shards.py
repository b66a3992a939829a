"""Real text on disk in several files: the paragraphs of this project's own guides."""

import json
from pathlib import Path

from qkv.data.sources import sources_of
from qkv.data.token_shards import TokenShards
from qkv.data.tokenizer import TextTokenizer
from tests.guides import DOCS

GUIDES = ("tasks.md", "sound.md", "pictures.md", "runs.md", "compare.md")


def paragraphs(guide: str) -> list[str]:
    text = (DOCS / guide).read_text(encoding="utf-8")
    return [paragraph for paragraph in text.split("\n\n") if len(paragraph) > 20]


def write_corpus(folder: Path, files: int = 5, each: int = 12) -> Path:
    """A folder of JSONL files, each with the first paragraphs of a guide."""
    folder.mkdir(parents=True)
    for number, guide in enumerate(GUIDES[:files]):
        lines = [json.dumps({"text": paragraph}) for paragraph in paragraphs(guide)[:each]]
        (folder / f"{number}-{guide.removesuffix('.md')}.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return folder


def byte_tokenizer() -> TextTokenizer:
    return TextTokenizer.train("bytes", paragraphs(GUIDES[0]))


def some_shards(folder: Path, files: int = 5, each: int = 12) -> TokenShards:
    return TokenShards(sources_of(write_corpus(folder / "texts", files, each)), byte_tokenizer(), folder / "tokens")
