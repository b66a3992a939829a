"""Decoding: greedy and beam search over any sequence-to-sequence model, and text in, text out."""
