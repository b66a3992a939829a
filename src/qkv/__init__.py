"""qkv: every transformer, from one set of parts."""
