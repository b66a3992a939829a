"""Attention: who may see whom, the mixers, their cache and their kernels."""
