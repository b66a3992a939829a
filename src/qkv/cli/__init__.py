"""The `qkv` command: one file a verb. A verb imports torch only when it runs, so that `--help` is there at once."""
