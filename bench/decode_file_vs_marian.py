"""Translating a file: sentences of real, unequal lengths in batches, beside the reference library's Marian.

A batch of the reference runs until its longest output ends, and computes every row to that end; qkv orders sentences
by length and lets each leave its batch when it ends. Random weights end where they like, so the end is forbidden and
each output gets the length that its real translation has. The reference is timed twice: in the order of the file, which
is what its users write, and with the sentences put in order of length for it.

    python bench/decode_file_vs_marian.py
"""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from common import THREADS, interleaved, marian_base, report

from qkv.generate.beam import beam_search
from qkv.generate.prepare import prepare

# Source and target tokens of 32 sentences drawn from an English–German test set, `</s>` counted.
LENGTHS = [
    (21, 23), (37, 39), (24, 23), (17, 22), (6, 8), (34, 37), (6, 7), (14, 14), (12, 17), (16, 17), (57, 58),
    (26, 30), (34, 36), (16, 16), (10, 9), (22, 26), (16, 16), (13, 13), (16, 19), (15, 20), (15, 24), (13, 13),
    (6, 8), (21, 36), (41, 52), (19, 15), (12, 16), (14, 6), (31, 39), (20, 19), (16, 19), (7, 7),
]  # fmt: skip
BATCH = 16
BEAMS = (1, 4)
SECONDS = 60.0  # for each setting


@dataclass(frozen=True)
class Sentence:
    place: int  # in the file
    source: list[int]
    new_tokens: int


@dataclass(frozen=True)
class Given:
    """The limits of a batch's outputs, as they are."""

    limits: list[int]

    def of(self, source_lengths: Sequence[int]) -> list[int]:
        return self.limits


def batches(sentences: list[Sentence]) -> list[list[Sentence]]:
    return [sentences[first : first + BATCH] for first in range(0, len(sentences), BATCH)]


def padded(batch: list[Sentence], pad: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Sources [b s] and their lengths [b]."""
    lengths = torch.tensor([len(sentence.source) for sentence in batch])
    rows = [sentence.source + [pad] * (int(lengths.max()) - len(sentence.source)) for sentence in batch]
    return torch.tensor(rows), lengths


def main() -> None:
    torch.set_num_threads(THREADS)
    reference, ours = marian_base()
    ready = prepare(ours)
    start = ours.target_vocabulary - 1  # Marian starts with its padding
    end = 0
    torch.manual_seed(1)
    file = [
        Sentence(place, torch.randint(1, start, (source,)).tolist(), target)
        for place, (source, target) in enumerate(LENGTHS)
    ]
    by_length = sorted(file, key=lambda sentence: -len(sentence.source))

    def decode_reference(sentences: list[Sentence], beams: int) -> dict[int, list[int]]:
        written = {}
        for batch in batches(sentences):
            source, lengths = padded(batch, start)
            longest = max(sentence.new_tokens for sentence in batch)
            with torch.inference_mode():
                rows = reference.generate(
                    source,
                    attention_mask=(torch.arange(source.shape[1]) < lengths[:, None]).long(),
                    do_sample=False,
                    num_beams=beams,
                    length_penalty=0.0 if beams > 1 else None,
                    min_new_tokens=longest,
                    max_new_tokens=longest,
                )
            for sentence, row in zip(batch, rows[:, 1:].tolist(), strict=True):
                written[sentence.place] = row[: sentence.new_tokens]
        return written

    def decode_ours(beams: int) -> dict[int, list[int]]:
        written = {}
        for batch in batches(sorted(file, key=lambda sentence: -len(sentence.source))):
            answers = beam_search(
                ready,
                *padded(batch, start),
                start=start,
                end=end,
                beams=beams,
                length_penalty=0.0,
                limit=Given([sentence.new_tokens for sentence in batch]),
                never=(end,),
            )
            written |= {sentence.place: answer[0].ids for sentence, answer in zip(batch, answers, strict=True)}
        return written

    if decode_ours(1) != decode_reference(file, 1):  # a beam's best beginning is not the beginning of the best
        raise SystemExit("The two sides write different tokens.")
    tokens = sum(sentence.new_tokens for sentence in file)
    rows = []
    for beams in BEAMS:
        times = interleaved(
            {
                "reference": lambda beams=beams: decode_reference(file, beams),
                "reference, ordered": lambda beams=beams: decode_reference(by_length, beams),
                "qkv": lambda beams=beams: decode_ours(beams),
            },
            seconds=SECONDS,
            at_least=3,
        )
        speed = {name: tokens / statistics.median(seconds) for name, seconds in times.items()}
        rows.append(
            {
                "beams": beams,
                **{f"{name} tokens/s": round(value, 1) for name, value in speed.items()},
                "times faster": round(speed["qkv"] / speed["reference"], 2),
                "than ordered": round(speed["qkv"] / speed["reference, ordered"], 2),
                "repeats": len(times["qkv"]),
            }
        )
        print(rows[-1], flush=True)
    report(
        "decode_file_vs_marian",
        rows,
        {
            "model": "Marian base, 6 + 6 layers of width 512, vocabulary of 58101, random weights",
            "sentences": len(file),
            "batch": BATCH,
            "tokens written": tokens,
        },
    )


if __name__ == "__main__":
    main()
