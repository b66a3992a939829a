"""How much faster a distilled student reads than its teacher, on a CPU: the sizes of recipes/sentiment.py.

    python bench/student_vs_teacher.py

The networks alone, on rows of token numbers; weights do not matter to the time. The reference library's BERT of the
teacher's sizes stands beside them.
"""

from __future__ import annotations

import statistics

import torch
from common import THREADS, interleaved, report
from transformers import BertConfig, BertForSequenceClassification

from qkv.models.bert import BertSizes
from qkv.models.catalogue import build
from qkv.models.head_choice import HeadChoice

ROWS, VOCABULARY = 16, 16_001


def main() -> None:
    torch.set_num_threads(THREADS)
    torch.manual_seed(0)
    head = HeadChoice("classification", labels=("negative", "positive"))
    sizes = {"vocabulary": VOCABULARY, "width": 384, "hidden": 1536, "heads": 6, "positions": 512}
    teacher = build("bert", BertSizes(**sizes, layers=8), head).eval()
    student = build("bert", BertSizes(**sizes, layers=4), head).eval()
    config = BertConfig(
        vocab_size=VOCABULARY, hidden_size=384, num_hidden_layers=8, num_attention_heads=6, intermediate_size=1536
    )
    reference = BertForSequenceClassification(config).eval()
    rows = []
    for length in (64, 256):
        ids = torch.randint(VOCABULARY, (ROWS, length))
        with torch.inference_mode():
            times = interleaved(
                {
                    "teacher": lambda ids=ids: teacher(ids),
                    "student": lambda ids=ids: student(ids),
                    "reference": lambda ids=ids: reference(input_ids=ids).logits,
                },
                seconds=20,
            )
        middle = {name: statistics.median(some) for name, some in times.items()}
        rows.append(
            {
                "rows": ROWS,
                "length": length,
                "student against teacher": f"{middle['teacher'] / middle['student']:.2f}x",
                "teacher against the reference's BERT": f"{middle['reference'] / middle['teacher']:.2f}x",
                "repeats": len(times["teacher"]),
            }
        )
    report("student_vs_teacher", rows, {"layers": "8 and 4, of 384"})


if __name__ == "__main__":
    main()
