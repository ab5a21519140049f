"""The fitted density, a Pyro distribution, and all that it is made of."""
