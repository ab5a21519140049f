"""Fitting a density to a table."""
