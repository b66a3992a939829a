"""One file a family: sizes, a builder, and the published sizes."""
