"""Drawing from a fitted density: exactly by rejection, or approximately by Pyro's Markov chains."""
