"""A training step beside the reference library's Marian: forward, backward and AdamW, same weights, batch and loss.

python bench/train_step_vs_marian.py
"""

import statistics

import torch
from common import THREADS, interleaved, marian_base, ratio, report

from qkv.data.pairs import PairBatch
from qkv.train.objectives.sequence_to_sequence import SequenceToSequenceLoss
from qkv.train.optimizers import adamw

SENTENCES, LONGEST = 24, 24
SECONDS = 100.0


def main() -> None:
    torch.set_num_threads(THREADS)
    reference, ours = marian_base(dropout=0.0)
    reference.train()
    ours.train()
    start = ours.target_vocabulary - 1
    lengths = torch.randint(LONGEST // 2, LONGEST + 1, (SENTENCES,))
    source = torch.randint(1, start, (SENTENCES, LONGEST))
    target = torch.randint(1, start, (SENTENCES, LONGEST + 1))
    target[:, 0] = start
    real = torch.arange(LONGEST) < lengths[:, None]
    batch = PairBatch(source, lengths, target, lengths + 1)
    labels = target[:, 1:].masked_fill(~real, -100)
    objective = SequenceToSequenceLoss(smoothing=0.0)
    optimizer = adamw(ours, learning_rate=1e-6)
    reference_optimizer = torch.optim.AdamW(reference.parameters(), lr=1e-6, fused=True)

    def step() -> float:
        optimizer.zero_grad()
        loss = objective(ours, batch)
        mean = loss.total / loss.count
        mean.backward()
        optimizer.step()
        return mean.item()

    def step_reference() -> float:
        reference_optimizer.zero_grad()
        loss = reference(
            input_ids=source, attention_mask=real.long(), decoder_input_ids=target[:, :-1], labels=labels
        ).loss
        loss.backward()
        reference_optimizer.step()
        return loss.item()

    mine, theirs = step(), step_reference()
    if abs(mine - theirs) > 1e-3 * abs(theirs):
        raise SystemExit(f"The two sides have different losses: {mine} and {theirs}.")
    times = interleaved({"reference": step_reference, "qkv": step}, seconds=SECONDS)
    tokens = int(lengths.sum()) * 2
    row = {
        "tokens (source + target)": tokens,
        "loss": round(mine, 4),
        "reference tokens/s": round(tokens / statistics.median(times["reference"])),
        "qkv tokens/s": round(tokens / statistics.median(times["qkv"])),
        "times faster": round(ratio(times), 2),
        "repeats": len(times["qkv"]),
    }
    model = "Marian base, 6 + 6 layers of width 512, vocabulary of 58101, random weights, no dropout"
    report("train_step_vs_marian", [row], {"model": model, "optimizer": "AdamW, fused on both sides"})


if __name__ == "__main__":
    main()
