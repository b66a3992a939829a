"""What models remember beside their parts: where they come from, and what their parts say again."""

DESCRIBED = (
    "family", "sizes", "head_choice", "attention_choice", "longest", "vocabulary", "source_vocabulary",
    "target_vocabulary", "looks_back", "counts_slots", "keeps", "heeds_marks",
)  # fmt: skip
