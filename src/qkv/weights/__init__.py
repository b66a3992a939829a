"""Model folders: names, loading, saving."""
