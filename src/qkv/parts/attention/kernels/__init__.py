"""Kernels `(q, k, v, mask, bias) -> o`: one meaning, computed in different ways. `exact` is the specification."""
