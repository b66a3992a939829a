"""What works on a GPU, found out in parts of a few minutes each: `make gpu-verify`, and the page docs/gpu.md."""
