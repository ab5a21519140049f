"""Baselines for the figures: other estimators, with their guarantees, or none."""
