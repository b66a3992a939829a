"""Products in 8 bits while a model learns, of blocks whose parts are known."""
