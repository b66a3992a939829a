"""Raw input to arrays: tables of text, tokenizers, batches of id pairs, and the data set that travels with qkv."""
