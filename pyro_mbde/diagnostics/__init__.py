"""Whether chains have mixed and sample what they should: statistics of ArviZ, and a test against exact draws."""
