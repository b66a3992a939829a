"""What a step of training will take, found by taking one with shapes alone: operations, memory and time."""
