"""Attacks on a training function, to see whether its guarantee holds."""
