"""The parts every transformer is built from: arrays → stream → answer."""
