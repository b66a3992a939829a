"""Text to text on two CPU cores in single precision: T5-small greedily and Marian by four beams.

    python bench/text_to_text_cpu.py          # some nine minutes on two quiet cores
    python bench/text_to_text_cpu.py --small

Weights are random and the same for all, and all write the same tokens before anything is timed. Peers: the reference
library's `generate` and CTranslate2 (nobody exports the loop around a model to ONNX Runtime but libraries that are not
installed here). Ours are `greedy` and `beam_search` on a model made ready, which `TextToText.run` calls.

Random weights end where they like, so the end is forbidden. Sources of one length are given as many tokens each. A file
has sentences of real, unequal lengths, and each output the length that its real translation has: the reference library
runs a batch to the end of its longest, in the order of the file; CTranslate2, which cannot be told a length for each
sentence either, gets sentences in order of the length of their outputs, where little is written in vain.
In 8 bits tokens may differ, and are not compared. The limit is the reading of all of a decoder's weights once a step,
or the products of all rows.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from common import THREADS, marian_base
from decode_file_vs_marian import LENGTHS, Given
from peers import Bench, Disagreement
from same_weights import ours_of, reference_of
from turns import Call, Most, Work, main, need

from qkv.generate.beam import beam_search
from qkv.generate.prepare import prepare
from qkv.models.t5 import SIZES
from qkv.parts.eight_bits import quantised

TINY = {
    "vocabulary": 300, "width": 64, "key_width": 16, "hidden": 96, "heads": 4, "encoder_layers": 2, "decoder_layers": 2,
}  # fmt: skip
SOURCE, NEW = 32, 32
OF_HF, OF_CTRANSLATE2 = 16, 32  # sentences of a file that they get together; ours takes all that its default holds
Ids = list[list[int]]


class Pair:
    """A model of ours and the reference library's with the same weights."""

    def __init__(self, called: str, model: Any, reference: Any, start: int, end: int, beams: int) -> None:
        self.called, self.model, self.reference, self.beams = called, model, reference, beams
        self.start, self.end, self.never = start, end, sorted({start, end})

    @staticmethod
    def t5(bench: Bench) -> Pair:
        sizes = replace(SIZES["small"], **(TINY if bench.small else {}))
        model, start, end = ours_of("t5", sizes, None, bench), 0, 1
        told = {"pad_token_id": start, "eos_token_id": end, "decoder_start_token_id": start}
        return Pair("T5-small, greedy", model, reference_of(model, bench, told), start, end, beams=1)

    @staticmethod
    def marian(bench: Bench) -> Pair:
        reference, model = marian_base(vocabulary=bench.pick(58101, 301))
        end, start = 0, model.target_vocabulary - 1
        for table in (reference.model.shared.weight, model.source.tokens.weight, model.target.tokens.weight):
            table.data[start] = 0.0  # as published: outputs begin with nothing
        return Pair("Marian, 4 beams", model, reference, start, end, beams=4)

    def written(self, ready: Any, sources: Ids, new: list[int]) -> Ids:
        """All together, the longest first: each leaves when it has its length."""
        order = sorted(range(len(sources)), key=lambda place: -len(sources[place]))
        ids, seen = self.padded([sources[place] for place in order])
        answers = beam_search(
            ready,
            ids,
            seen.sum(1),
            start=self.start,
            end=self.end,
            beams=self.beams,
            length_penalty=0.0,
            limit=Given([new[place] for place in order]),
            never=self.never,
        )
        found = {place: answer[0].ids for place, answer in zip(order, answers, strict=True)}
        return [found[place] for place in range(len(sources))]

    def hf(self, sources: Ids, new: list[int]) -> Ids:
        """In batches, as they come: each runs to the end of its longest output."""
        found: Ids = []
        for first in range(0, len(sources), OF_HF):
            ids, seen = self.padded(sources[first : first + OF_HF])
            limits = new[first : first + OF_HF]
            with torch.inference_mode():
                rows = self.reference.generate(
                    ids,
                    attention_mask=seen,
                    do_sample=False,
                    num_beams=self.beams,
                    length_penalty=0.0 if self.beams > 1 else None,
                    min_new_tokens=max(limits),
                    max_new_tokens=max(limits),
                    suppress_tokens=self.never,
                )
            found += [row[:most] for row, most in zip(rows[:, 1:].tolist(), limits, strict=True)]
        return found

    def ctranslate2(self, bench: Bench, precision: str) -> Callable[[Ids, list[int]], Ids]:
        need("ctranslate2")
        import ctranslate2

        folder = bench.folder / "ctranslate2"
        if not folder.exists():
            convert(self.reference, folder, self)
        translator = ctranslate2.Translator(str(folder), compute_type=precision, intra_threads=THREADS)

        def write(sources: Ids, new: list[int]) -> Ids:
            order = sorted(range(len(sources)), key=lambda place: -new[place])
            found: dict[int, list[int]] = {}
            for first in range(0, len(order), OF_CTRANSLATE2):
                some = order[first : first + OF_CTRANSLATE2]
                answers = translator.translate_batch(
                    [[f"t{token}" for token in sources[place]] for place in some],
                    beam_size=self.beams,
                    length_penalty=0,
                    min_decoding_length=new[some[0]],
                    max_decoding_length=new[some[0]],
                    suppress_sequences=[
                        [f"t{token}"] for token in self.never if token != self.model.target_vocabulary - 1
                    ],
                )
                for place, answer in zip(some, answers, strict=True):
                    found[place] = [int(token[1:]) for token in answer.hypotheses[0]][: new[place]]
            return [found[place] for place in range(len(sources))]

        return write

    def padded(self, sources: Ids) -> tuple[torch.Tensor, torch.Tensor]:
        """Ids [b s] and which of them are real."""
        longest = max(map(len, sources))
        ids = torch.tensor([source + [self.start] * (longest - len(source)) for source in sources])
        return ids, (torch.arange(longest) < torch.tensor([len(source) for source in sources])[:, None]).long()

    def least(self, sources: Ids, new: list[int], most: Most) -> float:
        """Seconds that the machine's limits allow: all products of a step, or the reading of its matrices once."""
        matrices = [each.numel() for each in self.model.decoder.parameters() if each.ndim == 2]
        of_memory = sum(block.cross.mixer.project.weight.numel() for block in self.model.decoder.blocks)
        step = sum(matrices) - of_memory + self.model.head.weight.numel()
        source = sum(each.numel() for each in self.model.encoder.parameters() if each.ndim == 2) + of_memory
        total = most.seconds(flops=2 * source * sum(map(len, sources)))
        for number in range(max(new)):
            live = sum(limit > number for limit in new) * (self.beams if number else 1)
            total += most.seconds(flops=2 * step * live, bytes=4 * step)
        return total


def convert(reference: Any, folder: Any, pair: Pair) -> None:
    """What CTranslate2's converter does with a folder, for a model that has no tokenizer: tokens are t0, t1, …"""
    from ctranslate2.converters import transformers as converters

    class Names:
        bos_token = pad_token = f"t{pair.start}"
        eos_token, unk_token = f"t{pair.end}", "t2"

        @staticmethod
        def convert_ids_to_tokens(token: int) -> str:
            return f"t{token}"

    loader = converters._MODEL_LOADERS[type(reference.config).__name__]
    spec = loader.get_model_spec(deepcopy(reference))
    loader.set_config(spec.config, reference, Names)
    count = len(spec.decoder.projection.weight)  # Marian's start token is not among them
    loader.set_vocabulary(spec, [f"t{token}" for token in range(count)])
    spec.validate()
    spec.optimize(quantization=None)
    folder.mkdir()
    spec.save(str(folder))


def decoding(bench: Bench, make: Callable[[Bench], Pair], lengths: list[tuple[int, int]], what: str) -> Work:
    pair = make(bench)
    lengths = bench.pick(lengths, [(5, 6), (3, 4)])
    sources = [torch.randint(3, pair.model.target_vocabulary - 1, (source,)).tolist() for source, _ in lengths]
    new = [target for _, target in lengths]

    def ours(narrow: bool) -> Call:
        ready = prepare(quantised(deepcopy(pair.model)) if narrow else pair.model)
        return lambda: pair.written(ready, sources, new)

    def theirs(precision: str) -> Call:
        write = pair.ctranslate2(bench, precision)
        return lambda: write(sources, new)

    return Work(
        title=f"{pair.called}: {what.format(*lengths[0])}",
        unit="tokens/s",
        amount=sum(new),
        ways={
            "qkv": lambda: ours(narrow=False),
            "HF": lambda: lambda: pair.hf(sources, new),
            "CTranslate2": lambda: theirs("float32"),
            "qkv, 8 bits": lambda: ours(narrow=True),
            "CTranslate2, 8 bits": lambda: theirs("int8"),
        },
        agree=partial(same, new=new, beams=pair.beams),
        least=lambda most: pair.least(sources, new, most),
        narrow=frozenset({"qkv, 8 bits", "CTranslate2, 8 bits"}),
    )


def same(ours: Ids, theirs: Ids, new: list[int], beams: int) -> str:
    """All tokens; but where a batch of beams ran on, those of the longest: a best beginning is not that of the best."""
    told = [place for place, limit in enumerate(new) if beams == 1 or limit == max(new)]
    if [ours[place] for place in told] != [theirs[place] for place in told]:
        raise Disagreement("other tokens are written")
    return f"{sum(new[place] for place in told)} tokens equal"


ONE, EIGHT = [(SOURCE, NEW)], [(SOURCE, NEW)] * 8
WORKS = {
    f"{name}-{number}": partial(decoding, make=make, lengths=lengths, what=what)
    for name, make, times in (("t5", Pair.t5, 2), ("marian", Pair.marian, 1))
    for number, lengths, what in (
        ("one", ONE, "a source of {} tokens, {} written"),
        ("eight", EIGHT, "8 sources of {} tokens, {} written"),
        ("file", times * LENGTHS, f"a file of {times * len(LENGTHS)} sentences"),
    )
}

if __name__ == "__main__":
    main(
        "text_to_text_cpu",
        WORKS,
        {
            "weights": "random, the same for all",
            "sentences of a file together": f"HF {OF_HF}, CTranslate2 {OF_CTRANSLATE2}, qkv all",
        },
        seconds=8.0,
    )
