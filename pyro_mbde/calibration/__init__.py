"""Where a score is placed in its public bounds, and the proof of it."""
