"""Markov chains, by Pyro. Nothing here may be handed out."""
