"""Whole jobs in a few lines: read pairs, train, load, score, look. `import qkv` gives these names."""
