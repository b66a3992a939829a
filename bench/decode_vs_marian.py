"""Greedy and beam decoding beside the reference library's Marian: same weights, same inputs, same outputs.

Random weights end where they like, so the end is forbidden on both sides and every output has the same length. Length
penalties are off, because the two differ. Both sides write the same tokens before they are timed.

    python bench/decode_vs_marian.py
"""

import statistics
import time

import torch
from common import THREADS, interleaved, marian_base, ratio, read_bandwidth, report

from qkv.generate.beam import beam_search
from qkv.generate.decode import LengthLimit
from qkv.generate.prepare import prepare

SOURCE_TOKENS, NEW_TOKENS = 24, 32
SETTINGS = [(1, 1), (1, 4), (8, 1), (8, 4)]  # (sentences, beams)
SECONDS = 30.0  # for each setting


def bytes_read_each_step(model: torch.nn.Module) -> int:
    """Of weights, by a cached step of one row: decoder and head, but not what makes the memory's keys and values."""
    decoder = sum(parameter.numel() for parameter in model.decoder.parameters())
    of_memory = sum(
        parameter.numel() for block in model.decoder.blocks for parameter in block.cross.mixer.project.parameters()
    )
    head = model.head.weight.numel() + model.head.bias.numel()
    return 4 * (decoder - of_memory + head)


def main() -> None:
    torch.set_num_threads(THREADS)
    reference, ours = marian_base()
    before = time.perf_counter()
    ready = prepare(ours)
    packing = time.perf_counter() - before
    vocabulary = ours.target_vocabulary
    end, start = 0, vocabulary - 1
    rows = []
    for sentences, beams in SETTINGS:
        source = torch.randint(1, start, (sentences, SOURCE_TOKENS))
        seen = torch.ones_like(source)

        def decode_reference(source=source, seen=seen, beams=beams):
            with torch.inference_mode():
                written = reference.generate(
                    source,
                    attention_mask=seen,
                    do_sample=False,
                    num_beams=beams,
                    length_penalty=0.0 if beams > 1 else None,
                    min_new_tokens=NEW_TOKENS,
                    max_new_tokens=NEW_TOKENS,
                )
            return written[:, 1:].tolist()

        def decode_ours(source=source, beams=beams):
            answers = beam_search(
                ready,
                source,
                start=start,
                end=end,
                beams=beams,
                length_penalty=0.0,
                limit=LengthLimit(0, NEW_TOKENS),
                never=(end,),
            )
            return [answer[0].ids for answer in answers]

        if decode_ours() != decode_reference():
            raise SystemExit(f"{sentences} sentences, {beams} beams: the two sides write different tokens.")
        bandwidth = read_bandwidth()
        times = interleaved({"reference": decode_reference, "qkv": decode_ours}, seconds=SECONDS)
        bandwidth = max(bandwidth, read_bandwidth())
        mine, theirs = statistics.median(times["qkv"]), statistics.median(times["reference"])
        tokens = sentences * NEW_TOKENS
        limit = bytes_read_each_step(ours) / bandwidth * NEW_TOKENS
        rows.append(
            {
                "sentences": sentences,
                "beams": beams,
                "reference tokens/s": round(tokens / theirs, 1),
                "qkv tokens/s": round(tokens / mine, 1),
                "times faster": round(ratio(times), 2),
                "repeats": len(times["qkv"]),
                "read bandwidth GB/s": round(bandwidth / 1e9, 1),
                "share of the limit": round(limit / mine, 2) if sentences * beams == 1 else "",
            }
        )
        print(rows[-1], flush=True)
    report(
        "decode_vs_marian",
        rows,
        {
            "model": "Marian base, 6 + 6 layers of width 512, vocabulary of 58101, random weights",
            "source tokens": SOURCE_TOKENS,
            "new tokens": NEW_TOKENS,
            "seconds to pack the matrices, once": round(packing, 2),
            "megabytes read each step": round(bytes_read_each_step(ours) / 1e6),
        },
    )


if __name__ == "__main__":
    main()
