"""Decoding: greedy, sampled, beams and more over any model that writes, and text in, text out."""
