"""Attention drawn: what the ledger recorded as an HTML page and as images, and training curves beside it."""
