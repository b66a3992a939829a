"""One training on many devices: who holds what of the model, of a batch and of a row."""
