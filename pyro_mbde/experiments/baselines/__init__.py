"""Baselines for the figures: other ways to fit a density, with the guarantees that they give, or none."""
